// docs_jsonl.c - JSONL as documents: the string "text" of each line, or an instruction; see docs_files.h.
//
// Text that is read by bytes is unescaped at opening, to the file without a name, where it is text as any other.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "data/docs_files.h"
#include "plan/base/disk.h"

// ---- lines

// A window, which slides over the file and grows to the longest line.
typedef struct LineReader {
    DocsFile* file;
    char* buffer;
    int64_t capacity;
    int64_t offset;    // of buffer[0] in the file
    int64_t begin, n;  // of the next line, of all bytes in the buffer
    int64_t number;    // of the line, from 1
    int64_t lines;     // that are not blank, so far
    int64_t unpacked;  // bytes of text so far
} LineReader;

// Finds the next line, without its end. 1; 0 at the end of the file; or -1.
static int next_line(LineReader* r, const char** line, size_t* n, Err err) {
    for (int64_t searched = r->begin;;) {
        const char* end = r->n > searched ? memchr(r->buffer + searched, '\n', (size_t)(r->n - searched)) : NULL;
        int64_t rest = r->file->file.size - r->offset - r->n;
        if (end || rest == 0) {
            *line = r->buffer + r->begin;
            *n = (size_t)((end ? end : r->buffer + r->n) - *line);
            if (!end && *n == 0) return 0;
            r->begin += (int64_t)*n + (end != NULL);
            r->number++;
            return 1;
        }
        if (r->begin > 0) memmove(r->buffer, r->buffer + r->begin, (size_t)(r->n - r->begin));
        r->offset += r->begin;
        searched = r->n -= r->begin;
        r->begin = 0;
        if (reserve(&r->buffer, &r->capacity, r->n, MIN(rest, 1 << 16), 1, err)) return -1;
        int64_t more = MIN(rest, r->capacity - r->n);
        if (file_read(&r->file->file, r->offset + r->n, r->buffer + r->n, (size_t)more, err)) return -1;
        r->n += more;
    }
}

// ---- documents

// Adds text (n bytes) as a document.
static int add_document(Docs* docs, LineReader* r, const char* text, int64_t n, Err err) {
    int64_t place = r->unpacked;
    if (!docs->more->encodes) {
        int fd = docs_unpacked(docs->more, err);
        if (fd < 0) return -1;
        if (disk_write(fd, text, (size_t)n))
            return fail(err, "cannot write its text to TMPDIR or /tmp: %s%s", strerror(errno), disk_hint(errno));
        r->unpacked += n;
    }
    return docs_add_text(docs, r->file, place, place + n, text, err);
}

// Takes the format of a file from its first line. A text of another name than the usual one was asked for, and goes
// first. Returns 0 if it is neither a text nor an instruction.
static int take_format(const Docs* docs, DocsFile* file, const JsonValue* root) {
    const JsonValue* text = json_get(root, docs->more->reading.text_key);
    int has_text = text && text->type == JSON_STRING,
        is_asked = strcmp(docs->more->reading.text_key, DOCS_TEXT_KEY) != 0;
    int instructs = docs_is_instruction(root) && !(has_text && is_asked);
    if (instructs) file->format = &docs_instructions;
    return instructs || has_text;
}

// scratch has room for the line and one byte more.
static int add_text(Docs* docs, LineReader* r, const JsonValue* root, char* scratch, Err err) {
    const char* key = docs->more->reading.text_key;
    const JsonValue* text = json_get(root, key);
    char names[256];
    int64_t replaced = 0, length = json_prose(text, scratch, &replaced);
    if (!text)
        return fail(err,
                    "no member \"%s\", expected an object like {\"%s\": \"...\"} or an instruction, found the members "
                    "%s; try --text-key NAME",
                    key, key, json_names(root, names, sizeof names));
    if (json_get(root, "children"))
        return fail(err, "a tree, but the first line of the file is none: trees want files of their own");
    if (text->type != JSON_STRING) return fail(err, "the member \"%s\" is not a string", key);
    if (length < 0) return fail(err, "the string \"%s\" holds an invalid escape", key);
    docs->more->facts.replaced += replaced;
    return add_document(docs, r, scratch, length, err);
}

static int is_blank(const char* line, size_t n) {
    while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\t' || line[n - 1] == '\r')) n--;
    return n == 0;
}

// Indexes a line. 1: it is the first of a file that nobody named, and no document.
static int index_line(Docs* docs, LineReader* r, const char* line, size_t n, int named, char* scratch, Err err) {
    Json json;
    int is_first = r->lines++ == 0, status = json_parse(&json, line, n, err);
    int is_document = !status && (!is_first || take_format(docs, r->file, json.values));
    if (is_first && !is_document && !named) status = 1;
    else if (!status && r->file->format == &docs_instructions) status = docs_add_instruction(docs, json.values, err);
    else if (!status) status = add_text(docs, r, json.values, scratch, err);
    json_free(&json);
    return status;
}

int docs_index_jsonl(Docs* docs, DocsFile* file, int named, Err err) {
    LineReader r = {.file = file};
    const char* line = NULL;
    char *scratch = NULL, why[ERR_BYTES];
    int64_t capacity = 0;
    size_t n = 0;
    int status;
    if (docs->more->encodes) file->format = &docs_encoded;
    while ((status = next_line(&r, &line, &n, err)) > 0) {
        if (is_blank(line, n)) continue;
        if ((status = reserve(&scratch, &capacity, 0, (int64_t)n + 1, 1, err))) break;
        if ((status = index_line(docs, &r, line, n, named, scratch, why)) == 0) continue;
        if (status < 0) fail(err, "%s:%lld: %s", file->file.path, (long long)r.number, why);
        break;
    }
    free(scratch);
    free(r.buffer);
    if (status == 0 && r.lines == 0 && !named) return 1;
    if (status == 0 && file->format->is_text) docs_use_unpacked(docs->more, &file->file, r.unpacked);
    return status;
}
