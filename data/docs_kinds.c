// docs_kinds.c - recognizes files that are no text as they stand, by name and first bytes: UTF-16 becomes UTF-8, all
// else is refused, or passed over in a directory, with a hint of what to try; see docs_files.h.
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <string.h>
#include <strings.h>

#include "data/docs_files.h"
#include "data/unicode.h"
#include "plan/base/disk.h"

// ---- UTF-16, by its byte order mark

typedef struct Utf16 {
    int big_endian;
    uint32_t high;  // the first half of a pair, whose other half comes next; 0: none
    int64_t lone;   // halves without the other one, and half a unit at the end
} Utf16;

static size_t put_lone(Utf16* u, char* out) {
    u->lone++, u->high = 0;
    return utf8_encode(out, 0xfffd);
}

// A unit makes 4 bytes at most, and 3 more with a half before it.
static size_t put_unit(Utf16* u, char* out, uint32_t unit) {
    int is_low = unit >= 0xdc00 && unit <= 0xdfff;
    if (is_low && u->high) {
        uint32_t code = 0x10000 + ((u->high - 0xd800) << 10) + (unit - 0xdc00);
        u->high = 0;
        return utf8_encode(out, code);
    }
    size_t n = u->high ? put_lone(u, out) : 0;
    if (is_low) return n + put_lone(u, out + n);
    if (unit < 0xd800 || unit > 0xdbff) return n + utf8_encode(out + n, unit);
    u->high = unit;
    return n;
}

// Replaces the file by its text in UTF-8.
static int read_utf16(Docs* docs, DocsFile* file, int big_endian, Err err) {
    enum { UNITS = 1 << 14 };
    unsigned char in[2 * UNITS];
    char out[4 * UNITS + 4];
    Utf16 u = {.big_endian = big_endian};
    int64_t total = 0, n;
    int fd = docs_unpacked(docs->more, err);
    if (fd < 0) return -1;
    for (int64_t at = 2; at < file->file.size; at += n) {
        size_t made = 0;
        n = MIN((int64_t)sizeof in, file->file.size - at);
        if (file_read(&file->file, at, in, (size_t)n, err)) return -1;
        for (int64_t i = 0; i + 1 < n; i += 2)
            made += put_unit(&u, out + made, (uint32_t)in[i + !big_endian] << 8 | in[i + big_endian]);
        if (at + n == file->file.size && (u.high || n % 2)) made += put_lone(&u, out + made);
        if (disk_write(fd, out, made))
            return fail(err, "%s: cannot write its text to TMPDIR or /tmp: %s%s", file->file.path, strerror(errno),
                        disk_hint(errno));
        total += (int64_t)made;
    }
    docs->more->facts.replaced += u.lone;
    docs_use_unpacked(docs->more, &file->file, total);
    return 0;
}

// ---- other kinds

typedef struct Kind {
    const char *suffix, *magic;  // NULL: any
    int at;                      // of the magic
    const char *what, *hint;
} Kind;

static const Kind kinds[] = {
    {NULL, "%PDF-", 0, "a PDF", "pdftotext FILE"},
    {NULL, "PK\3\4", 0, "a zip archive, or what is one inside (docx, epub)", "unzip FILE -d DIR, and --data DIR"},
    {NULL,
     "\xfd"
     "7zXZ",
     0, "a file compressed by xz", "unxz FILE; read as they are: .gz and .zst"},
    {NULL, "1AY&SY", 4, "a file compressed by bzip2", "bunzip2 FILE; read as they are: .gz and .zst"},
    {NULL, "\x1f\x8b", 0, "a file compressed by gzip", "a name that ends in .gz"},
    {NULL, "\x28\xb5\x2f\xfd", 0, "a file compressed by zstd", "a name that ends in .zst"},
    {NULL, "PAR1", 0, "a parquet file", "scripts/parquet_to_shards.py DIR FILE, and --data DIR"},
    {".csv", NULL, 0, "a table (CSV)",
     "JSONL, a {\"text\": ...} for each row; as plain text it reads under the name FILE.txt"},
    {".tsv", NULL, 0, "a table (TSV)",
     "JSONL, a {\"text\": ...} for each row; as plain text it reads under the name FILE.txt"},
    {".json", "{", 0, "JSON",
     "jq -c . FILE > DATA.jsonl, or where each line is an object the name FILE.jsonl; as plain text it reads under the "
     "name FILE.txt"},
    {".json", "[\"", 0, "a JSON array", "jq -c '.[] | {text: .}' FILE > DATA.jsonl"},
    {".json", "[", 0, "a JSON array", "jq -c '.[]' FILE > DATA.jsonl"},
    {".jsonl", "[{", 0, "a JSON array", "jq -c '.[]' FILE > DATA.jsonl"},
    {".jsonl", "[\"", 0, "a JSON array", "jq -c '.[] | {text: .}' FILE > DATA.jsonl"},
};

static int ends_in(const char* name, const char* suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && !strcasecmp(name + n - m, suffix);
}

enum { HEAD = 512 };

// is_kind tells whether name, first bytes (head) and first bytes without blanks (dense) fit; a zero ends both.
static int is_kind(const Kind* kind, const char* name, const char* head, const char* dense) {
    if (kind->suffix && !ends_in(name, kind->suffix)) return 0;
    if (!kind->magic) return 1;
    const char* from = strchr("{[", *kind->magic) ? dense : head;
    return strnlen(from, HEAD) > (size_t)kind->at && !strncmp(from + kind->at, kind->magic, strlen(kind->magic));
}

int docs_check_kind(Docs* docs, DocsFile* file, const char* name, Err err) {
    char head[HEAD + 1] = "", dense[HEAD + 1] = "";
    int n = (int)MIN(file->file.size, HEAD), used = 0;
    if (file_read(&file->file, 0, head, (size_t)n, err)) return -1;
    int little = !strncmp(head, "\xff\xfe", 2), big = !strncmp(head, "\xfe\xff", 2);
    int is_wide = n >= 4 && !head[2] && !head[3];  // UTF-32, or no text
    if ((little || big) && !is_wide) {
        if (read_utf16(docs, file, big, err)) return -1;
        n = (int)MIN(file->file.size, HEAD);
        if (memset(head, 0, sizeof head), file_read(&file->file, 0, head, (size_t)n, err)) return -1;
    }
    const char* begin = head + utf8_mark(head, (size_t)n);
    for (const char* p = begin; *p; p++)
        if (!strchr(" \t\r\n", *p)) dense[used++] = *p;
    for (int i = 0; i < COUNT(kinds); i++)
        if (is_kind(&kinds[i], name, begin, dense))
            return fail(err, "%s: expected text or JSONL, found %s; try: %s", file->file.path, kinds[i].what,
                        kinds[i].hint),
                   1;
    return docs_check_text(file, err);
}
