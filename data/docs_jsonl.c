// docs_jsonl.c - JSONL as documents: the string "text" of each line, or an instruction; see docs_format.h.
//
// Read by bytes, a document's place is the offset of its string in the file. JSONL is parsed at opening, which marks
// further offsets in long strings, so that reading a piece need not undo the escapes of all text before it.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/docs_format.h"
#include "data/json.h"
#include "plan/base/base.h"

enum { STRIDE = 4096 };  // bytes of text between marks

// ---- reading

static int read_jsonl(const Docs* docs, const DocsFile* file, int64_t doc, int64_t first, int n, int* out, Err err) {
    char buffer[4096], bytes[4];
    size_t begin = 0, end = 0;
    int64_t wanted = docs->list[doc].start + 1 + first;  // the first token asked for
    const DocsMark* marks = docs->more->marks;
    DocsMark mark = {docs->list[doc].start + 1, docs->list[doc].place};
    if (docs->more->n_marks > 0 && marks->token <= wanted) {
        const DocsMark* last = &marks[last_at_most(&marks->token, sizeof *marks, docs->more->n_marks, wanted)];
        if (last->token > mark.token) mark = *last;
    }
    int64_t place = mark.place;
    // i: where in out the next byte belongs, which is before it from the mark to the first token asked for
    for (int64_t i = mark.token - wanted; i < n;) {
        if (end - begin < 12) {  // the longest escape, a pair of surrogates
            memmove(buffer, buffer + begin, end - begin);
            end -= begin;
            begin = 0;
            size_t more = (size_t)MIN((int64_t)(sizeof buffer - end), file->file.size - place);
            if (file_read(&file->file, place, buffer + end, more, err)) return -1;
            place += (int64_t)more;
            end += more;
        }
        int n_bytes;
        size_t taken = end > begin ? json_unescape(buffer + begin, end - begin, bytes, &n_bytes) : 0;
        if (taken == 0)
            return fail(err, "%s: the string at about byte %lld has changed since it was opened", file->file.path,
                        (long long)(place - (int64_t)(end - begin)));
        begin += taken;
        for (int k = 0; k < n_bytes && i < n; k++, i++)
            if (i >= 0) out[i] = (unsigned char)bytes[k];
    }
    return 0;
}

static const DocsFormat jsonl = {1, read_jsonl, NULL};

// ---- opening

// A window that slides over the file and grows to the longest line.
typedef struct LineReader {
    const DocsFile* file;
    char* buffer;
    int64_t capacity;
    int64_t offset;    // of buffer[0] in the file
    int64_t begin, n;  // of the next line, of all bytes in the buffer
    int64_t number;    // of the line, from 1
} LineReader;

// 1 and the line without its end, 0 at the end of the file, or -1.
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

// Marks in the newest document, whose string (n bytes, still escaped) is at offset `place` of the file.
static int add_marks(Docs* docs, const char* string, size_t n, int64_t place, Err err) {
    int64_t token = docs->list[docs->n - 1].start + 1, marked = token;
    if (n <= STRIDE) return 0;
    for (size_t i = 0, taken; i < n; i += taken) {
        int n_bytes;
        char bytes[4];
        if (token - marked >= STRIDE) {
            if (reserve(&docs->more->marks, &docs->more->marks_capacity, docs->more->n_marks, 1,
                        sizeof *docs->more->marks, err))
                return -1;
            docs->more->marks[docs->more->n_marks++] = (DocsMark){token, place + (int64_t)i};
            marked = token;
        }
        taken = json_unescape(string + i, n - i, bytes, &n_bytes);
        if (taken == 0) return fail(err, "the string \"%s\" holds an invalid escape", docs->more->text_key);
        token += n_bytes;
    }
    return 0;
}

// text (n bytes) is the document, string the same in the file, still escaped.
static int add_document(Docs* docs, const char* text, size_t n, const JsonValue* string, int64_t place, Err err) {
    docs_hash_content(docs, text, n);
    if (!docs->more->encodes) {
        if (docs_add_hashed(docs, 1 + (int64_t)n, place, text, MIN(n, DOCS_HEAD_BYTES), err)) return -1;
        return add_marks(docs, string->text, string->length, place, err);
    }
    int64_t first = docs->more->n_encoded;
    if (docs_append_tokens(docs, &docs->end_of_text, 1, err) || docs_append_text(docs, text, n, err)) return -1;
    return docs_add_encoded(docs, first, err);
}

// scratch has room for the line and one byte more.
static int index_line(Docs* docs, const LineReader* r, const char* line, size_t n, char* scratch, Err err) {
    Json json;
    if (json_parse(&json, line, n, err)) return -1;
    const char* key = docs->more->text_key;
    const JsonValue* text = json_get(&json, json.values, key);
    char names[256];
    int status = 0;
    int64_t length = json_string(text, scratch);
    if (r->file->format == &docs_instructions) status = docs_add_instruction(docs, &json, err);
    else if (!text)
        status =
            fail(err,
                 "no member \"%s\", expected an object like {\"%s\": \"...\"} or an instruction, found the members "
                 "%s; try --text-key NAME",
                 key, key, json_names(&json, names, sizeof names));
    else if (text->type != JSON_STRING) status = fail(err, "the member \"%s\" is not a string", key);
    else if (length < 0) status = fail(err, "the string \"%s\" holds an invalid escape", key);
    else status = add_document(docs, scratch, (size_t)length, text, r->offset + (text->text - r->buffer), err);
    json_free(&json);
    return status;
}

static int is_blank(const char* line, size_t n) {
    while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\t' || line[n - 1] == '\r')) n--;
    return n == 0;
}

// The first line that is not blank: 0 where there is none, 2 where it is an instruction, 1 where it has a text; -1. A
// text of another name than the usual one was asked for, and goes first.
static int first_kind(const Docs* docs, const DocsFile* file, Err err) {
    LineReader r = {.file = file};
    const char* line = NULL;
    size_t n = 0;
    Json json;
    int status, kind = 0;
    while ((status = next_line(&r, &line, &n, err)) > 0 && is_blank(line, n)) continue;
    if (status > 0 && json_parse(&json, line, n, NULL) == 0) {
        const JsonValue* text = json_get(&json, json.values, docs->more->text_key);
        int has_text = text && text->type == JSON_STRING, is_asked = strcmp(docs->more->text_key, DOCS_TEXT_KEY) != 0;
        kind = docs_is_instruction(&json) && !(has_text && is_asked) ? 2 : has_text;
        json_free(&json);
    }
    free(r.buffer);
    return status < 0 ? -1 : kind;
}

int docs_looks_like_jsonl(const Docs* docs, const DocsFile* file, int* is_jsonl, Err err) {
    int kind = first_kind(docs, file, err);
    if (kind < 0) return -1;
    *is_jsonl = kind > 0;
    return 0;
}

int docs_index_jsonl(Docs* docs, DocsFile* file, Err err) {
    LineReader r = {.file = file};
    const char* line = NULL;
    char *scratch = NULL, why[ERR_BYTES];
    int64_t capacity = 0;
    size_t n = 0;
    int status, first = first_kind(docs, file, err);
    if (first < 0) return -1;
    file->format = first == 2 ? &docs_instructions : docs->more->encodes ? &docs_encoded : &jsonl;
    while ((status = next_line(&r, &line, &n, err)) > 0) {
        if (is_blank(line, n)) continue;
        if ((status = reserve(&scratch, &capacity, 0, (int64_t)n + 1, 1, err))) break;
        if ((status = index_line(docs, &r, line, n, scratch, why))) {
            fail(err, "%s:%lld: %s", file->file.path, (long long)r.number, why);
            break;
        }
    }
    free(scratch);
    free(r.buffer);
    return status;
}
