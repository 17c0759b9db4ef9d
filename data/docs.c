// docs.c - opens a corpus, which indexes the documents of each file, and reads what is wanted of them; see docs.h.
#define _GNU_SOURCE
#include "data/docs_formats.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

// ---- the byte tokenizer

static size_t encode_bytes(const Tokenizer* t, int* out, const char* text, size_t n) {
    (void)t;
    for (size_t i = 0; i < n; i++) out[i] = (unsigned char)text[i];
    return n;
}

static const char* decode_byte(const Tokenizer* t, int token, size_t* n) {
    static char bytes[256];
    *n = token >= 0 && token < t->end_of_text;
    if (*n) bytes[token] = (char)token;
    return *n ? &bytes[token] : "";
}

const Tokenizer byte_tokenizer = {257, 256, 256, 1, 1, encode_bytes, decode_byte};

// ---- text files

static int read_text(const Docs* docs, const DocsFile* file, int64_t doc, int64_t first, int n, int* out, Err err) {
    // Bytes come into the last quarter of out and are spread from there: 3n + i is read before it is overwritten.
    unsigned char* bytes = (unsigned char*)out + 3 * (size_t)n;
    if (file_read(&file->file, docs->list[doc].place + first, bytes, (size_t)n, err)) return -1;
    for (int i = 0; i < n; i++) out[i] = bytes[i];
    return 0;
}

static const DocsFormat text_format = {1, read_text, NULL};

int docs_add(Docs* docs, int64_t length, int64_t place, const void* head, size_t head_bytes, Err err) {
    int64_t start = docs_tokens(docs);
    if (reserve(&docs->list, &docs->capacity, docs->n, 2, sizeof *docs->list, err)) return -1;
    docs->list[docs->n++] = (Document){start, place, hash_bytes(head, head_bytes, (uint64_t)length)};
    docs->list[docs->n].start = start + length;
    return 0;
}

// Adds bytes [begin, end) as a document, unless there are none: two adjacent separators enclose no document.
static int add_text(Docs* docs, const DocsFile* file, int64_t begin, int64_t end, const char* text, Err err) {
    char head[DOCS_HEAD_BYTES];
    size_t n_head = (size_t)MIN(end - begin, DOCS_HEAD_BYTES);
    if (begin == end) return 0;
    if (docs->formats) return docs->formats->add_text(docs, file, begin, end, text, err);
    if (!text && file_read(&file->file, begin, head, n_head, err)) return -1;
    return docs_add(docs, 1 + end - begin, begin, text ? text : head, n_head, err);
}

int docs_check_text(DocsFile* file, Err err) {
    char head[DOCS_HEAD_BYTES];
    size_t n = (size_t)MIN(file->file.size, DOCS_HEAD_BYTES);
    if (file_read(&file->file, 0, head, n, err)) return -1;
    size_t mark = n >= 3 && !memcmp(head, "\xef\xbb\xbf", 3) ? 3 : 0;  // a byte order mark
    const char* nul = memchr(head, 0, n);
    file->file.base += (int64_t)mark, file->file.size -= (int64_t)mark;
    if (n == mark) return fail(err, "%s: is empty", file->file.path), 1;
    if (!nul) return 0;
    return fail(err, "%s: is not text, byte %d is zero (token shards must be named *.bin)", file->file.path,
                (int)(nul - head)),
           1;
}

int docs_index_text(Docs* docs, DocsFile* file, int named, Err err) {
    enum { BLOCK = 1 << 20 };
    int64_t begin = 0, at = 0, n_separator = (int64_t)strlen(docs->separator), before = docs->n;
    int status = docs->formats ? 0 : docs_check_text(file, err), is_divided = 0;
    if (status) return named ? -1 : status;
    docs->max_token = MAX(docs->max_token, docs->tokenizer->vocab - 1);
    char* block = malloc((size_t)MIN(BLOCK, file->file.size));
    if (!block) return fail(err, "out of memory to read %s", file->file.path);
    while (status == 0 && at < file->file.size) {  // begin: of a document; at: of a block of n bytes
        int64_t n = MIN(BLOCK, file->file.size - at), used = 0;
        int is_last = at + n == file->file.size;
        const char* found = block;
        status = file_read(&file->file, at, block, (size_t)n, err);
        while (status == 0 && found) {
            while (is_divided && begin == at + used && used < n && strchr("\r\n", block[used]) && block[used])
                used++, begin++;
            found = n_separator ? memmem(block + used, (size_t)(n - used), docs->separator, (size_t)n_separator) : NULL;
            if (found || is_last)
                status = add_text(docs, file, begin, found ? at + (found - block) : at + n,
                                  begin >= at ? block + (begin - at) : NULL, err);
            if (!found) break;
            begin = at + (used = found - block + n_separator);
            is_divided = 1;
        }
        at += is_last ? n : MAX(used, n - MAX(n_separator - 1, 0));  // a separator may begin in the rest
    }
    free(block);
    if (is_divided) docs->divided += docs->n - before;
    return status;
}

// ---- opening

static int add_file(Docs* docs, const char* path, int named, Err err) {
    if (reserve(&docs->files, &docs->files_capacity, docs->n_files, 1, sizeof *docs->files, err)) return -1;
    DocsFile* file = &docs->files[docs->n_files];
    *file = (DocsFile){{.path = strdup(path), .fd = -1}, &text_format, docs->n};
    if (!file->file.path) return fail(err, "out of memory for the list of files");
    int status = file_open(&file->file, err);
    if (status) status = !named && may_pass_over(errno) ? 1 : -1;
    else status = (docs->formats ? docs->formats->index : docs_index_text)(docs, file, named, err);
    if (status || docs->n_open >= docs->most_open) file_close(&file->file);
    if (status) free(file->file.path);
    if (status) return status > 0 ? paths_append(&docs->skipped, strdup(err), err) : -1;
    docs->n_open += file->file.fd >= 0 && !file->file.is_shared;
    docs->n_files++;
    return 0;
}

int docs_add_path(Docs* docs, const char* path, Err err) {
    struct stat st;
    Paths paths = {0};
    if (stat(path, &st)) return fail(err, "%s: %s%s", path, strerror(errno), disk_hint(errno));
    if (!S_ISDIR(st.st_mode)) return add_file(docs, path, 1, err);
    int status = paths_below(&paths, path, docs->formats ? docs->formats->leaves_out : NULL, docs, &docs->skipped, err);
    for (int64_t i = 0; status == 0 && i < paths.n; i++) status = add_file(docs, paths.list[i], 0, err);
    paths_free(&paths);
    return status;
}

int docs_open(Docs** out, Docs start, const char* const* paths, int n_paths, Err err) {
    enum { LONGEST = 256 };
    const char* separator = start.separator ? start.separator : DOCS_SEPARATOR;
    *out = NULL;
    if (n_paths < 1) return fail(err, "no corpus given");
    if (!*separator || strlen(separator) > LONGEST)
        return fail(err, "expected a separator of 1 to %d bytes between documents, or none", LONGEST);
    Docs* docs = malloc(sizeof *docs);
    if (!docs) return fail(err, "out of memory for the corpus");
    *docs = start;
    docs->separator = strcmp(separator, "none") ? separator : "";
    docs->end_of_text = docs->tokenizer->end_of_text;
    int status = 0;
    for (int i = 0; status == 0 && i < n_paths; i++)
        status = (docs->formats ? docs->formats->add_path : docs_add_path)(docs, paths[i], err);
    if (status == 0 && docs_tokens(docs) == docs->n)
        status = fail(err, "the corpus has no text: %lld documents in %lld files, each a single token",
                      (long long)docs->n, (long long)docs->n_files);
    if (status) docs->formats = NULL, docs_close(docs);  // the data of the formats stay the caller's
    else *out = docs;
    return status;
}

void docs_close(Docs* docs) {
    if (!docs) return;
    for (int64_t i = 0; i < docs->n_files; i++) {
        file_close(&docs->files[i].file);
        free(docs->files[i].file.path);
    }
    if (docs->formats) docs->formats->close(docs);
    free(docs->files);
    free(docs->list);
    paths_free(&docs->skipped);
    free(docs);
}

// ---- reading

const DocsFile* docs_file_of(const Docs* docs, int64_t doc) {
    return &docs->files[last_at_most(&docs->files->first_doc, sizeof *docs->files, docs->n_files, doc)];
}

int docs_read(const Docs* docs, int64_t doc, int64_t first, int n, int* out, Err err) {
    if (doc < 0 || doc >= docs->n || first < 0 || n < 0 || first > docs_length(docs, doc) - n)
        return fail(err, "%d tokens from %lld on of document %lld, of %lld, do not exist", n, (long long)first,
                    (long long)doc, (long long)docs->n);
    const DocsFile* file = docs_file_of(docs, doc);
    if (n > 0 && file->format->is_text && first-- == 0) *out++ = docs->end_of_text, n--, first++;
    return n ? file->format->read(docs, file, doc, first, n, out, err) : 0;
}

int docs_learnt(const Docs* docs, int64_t doc, int64_t first, int n, int* targets) {
    const DocsFormat* format = docs_file_of(docs, doc)->format;
    return format->learnt ? format->learnt(docs, doc, first, n, targets) : n;
}
