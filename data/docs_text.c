// docs_text.c - text as documents: a whole file, or in JSONL the string "text" of each line, or an instruction; see
// docs_format.h.
//
// A document's tokens are end-of-text and then its bytes, or what these encode to with a BPE vocabulary: then text is
// encoded at opening and its tokens are kept. Read by bytes, a text file needs no memory. All lines of JSONL are parsed
// at opening, and marks are kept: the offset of each document's string in the file, and further offsets in long ones,
// so that reading a piece need not undo the escapes of all text before it.
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "data/docs_format.h"
#include "data/json.h"
#include "plan/base.h"

enum {
    BLOCK = 1 << 20,  // bytes that are encoded at once
    STRIDE = 4096,    // bytes of text between marks
};

// ---- text files

// The last offset > 0 where text may be cut and each half encoded alone: between an ASCII letter or digit and white
// space, where every pattern ends a part, and nothing is joined by normalization. 0 when there is none.
static size_t safe_cut(const char* text, size_t n) {
    for (size_t i = n; i-- > 1;) {
        int is_space = text[i] == ' ' || (text[i] >= '\t' && text[i] <= '\r');
        unsigned before = (unsigned char)text[i - 1];
        if (is_space && ((before | 32) - 'a' < 26 || before - '0' < 10)) return i;
    }
    return 0;
}

static int encode_file(Docs* docs, const DocsFile* file, char* err, size_t errlen) {
    char* text = NULL;
    int64_t capacity = 0, wanted = BLOCK;
    int status = 0;
    for (int64_t at = 0; status == 0 && at < file->size;) {
        if ((status = docs_reserve(&text, &capacity, 0, MIN(wanted, file->size - at), 1, err, errlen))) break;
        size_t n = (size_t)MIN(wanted, file->size - at);
        if ((status = docs_file_read(file, at, text, n, err, errlen))) break;
        size_t cut = at + (int64_t)n == file->size ? n : safe_cut(text, n);
        docs_hash_content(docs, text, cut);
        if (cut > 0) status = docs_append_text(docs, text, cut, err, errlen);
        else wanted *= 2;
        at += (int64_t)cut;
    }
    free(text);
    return status;
}

int docs_index_text(Docs* docs, DocsFile* file, char* err, size_t errlen) {
    file->kind = FILE_TEXT;
    if (docs->encodes) {
        if (docs_append_tokens(docs, &docs->end_of_text, 1, err, errlen) || encode_file(docs, file, err, errlen))
            return -1;
        return docs_add_encoded(docs, file->first_encoded, err, errlen);
    }
    char head[DOCS_HEAD_BYTES], block[1 << 16];
    for (int64_t at = 0; at < file->size; at += (int64_t)sizeof block) {
        size_t n = (size_t)MIN(file->size - at, (int64_t)sizeof block);
        if (docs_file_read(file, at, block, n, err, errlen)) return -1;
        docs_hash_content(docs, block, n);
        if (at == 0) memcpy(head, block, MIN(n, sizeof head));
    }
    return docs_add(docs, 1 + file->size, head, (size_t)MIN(file->size, (int64_t)sizeof head), err, errlen);
}

int docs_read_text(const DocsFile* file, int64_t at, int n, int* out, char* err, size_t errlen) {
    // The bytes come into the last quarter of out and are spread from there: byte 3n + i is read before it is
    // overwritten.
    unsigned char* bytes = (unsigned char*)out + 3 * (size_t)n;
    if (docs_file_read(file, at, bytes, (size_t)n, err, errlen)) return -1;
    for (int i = 0; i < n; i++) out[i] = bytes[i];
    return 0;
}

// ---- JSONL: opening

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
static int next_line(LineReader* r, const char** line, size_t* n, char* err, size_t errlen) {
    for (int64_t searched = r->begin;;) {
        const char* end = r->n > searched ? memchr(r->buffer + searched, '\n', (size_t)(r->n - searched)) : NULL;
        int64_t rest = r->file->size - r->offset - r->n;
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
        if (docs_reserve(&r->buffer, &r->capacity, r->n, MIN(rest, 1 << 16), 1, err, errlen)) return -1;
        int64_t more = MIN(rest, r->capacity - r->n);
        if (docs_file_read(r->file, r->offset + r->n, r->buffer + r->n, (size_t)more, err, errlen)) return -1;
        r->n += more;
    }
}

static int add_mark(Docs* docs, int64_t token, int64_t place, char* err, size_t errlen) {
    if (docs_reserve(&docs->marks, &docs->marks_capacity, docs->n_marks, 1, sizeof *docs->marks, err, errlen))
        return -1;
    docs->marks[docs->n_marks++] = (DocsMark){token, place};
    return 0;
}

// Marks in the newest document, whose string (n bytes, still escaped) is at offset `place` of the file.
static int add_marks(Docs* docs, const char* string, size_t n, int64_t place, char* err, size_t errlen) {
    int64_t token = docs->start[docs->n_docs - 1] + 1, marked = token;
    if (add_mark(docs, token, place, err, errlen)) return -1;
    if (n <= STRIDE) return 0;
    for (size_t i = 0, taken; i < n; i += taken) {
        int n_bytes;
        char bytes[4];
        if (token - marked >= STRIDE) {
            if (add_mark(docs, token, place + (int64_t)i, err, errlen)) return -1;
            marked = token;
        }
        taken = json_unescape(string + i, n - i, bytes, &n_bytes);
        if (taken == 0) return fail(err, errlen, "the string \"text\" holds an invalid escape");
        token += n_bytes;
    }
    return 0;
}

// text (n bytes) is the document, string the same in the file, still escaped.
static int add_document(Docs* docs, const char* text, size_t n, const JsonValue* string, int64_t place, char* err,
                        size_t errlen) {
    docs_hash_content(docs, text, n);
    if (!docs->encodes) {
        if (docs_add(docs, 1 + (int64_t)n, text, MIN(n, DOCS_HEAD_BYTES), err, errlen)) return -1;
        return add_marks(docs, string->text, string->length, place, err, errlen);
    }
    int64_t first = docs->n_encoded;
    if (docs_append_tokens(docs, &docs->end_of_text, 1, err, errlen) || docs_append_text(docs, text, n, err, errlen))
        return -1;
    return docs_add_encoded(docs, first, err, errlen);
}

// scratch has room for the line and one byte more.
static int index_line(Docs* docs, const LineReader* r, const char* line, size_t n, char* scratch, char* err,
                      size_t errlen) {
    Json json;
    if (json_parse(&json, line, n, err, errlen)) return -1;
    const JsonValue* text = json_get(&json, json.values, "text");
    int status = 0;
    int64_t length = json_string(text, scratch);
    if (r->file->encoded) status = docs_add_instruction(docs, &json, err, errlen);
    else if (!text) status = fail(err, errlen, "no member \"text\", expected an object like {\"text\": \"...\"}");
    else if (text->type != JSON_STRING) status = fail(err, errlen, "the member \"text\" is not a string");
    else if (length < 0) status = fail(err, errlen, "the string \"text\" holds an invalid escape");
    else status = add_document(docs, scratch, (size_t)length, text, r->offset + (text->text - r->buffer), err, errlen);
    json_free(&json);
    return status;
}

static int is_blank(const char* line, size_t n) {
    while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\t' || line[n - 1] == '\r')) n--;
    return n == 0;
}

// The first line that is not blank: 0 where there is none, 2 where it is an instruction, 1 where it has a text; -1.
static int first_kind(const DocsFile* file, char* err, size_t errlen) {
    LineReader r = {.file = file};
    const char* line = NULL;
    size_t n = 0;
    Json json;
    int status, kind = 0;
    while ((status = next_line(&r, &line, &n, err, errlen)) > 0 && is_blank(line, n)) continue;
    if (status > 0 && json_parse(&json, line, n, NULL, 0) == 0) {
        const JsonValue* text = json_get(&json, json.values, "text");
        kind = docs_is_instruction(&json) ? 2 : text && text->type == JSON_STRING;
        json_free(&json);
    }
    free(r.buffer);
    return status < 0 ? -1 : kind;
}

int docs_looks_like_jsonl(const DocsFile* file, int* is_jsonl, char* err, size_t errlen) {
    int kind = first_kind(file, err, errlen);
    if (kind < 0) return -1;
    *is_jsonl = kind > 0;
    return 0;
}

int docs_index_jsonl(Docs* docs, DocsFile* file, char* err, size_t errlen) {
    LineReader r = {.file = file};
    const char* line = NULL;
    char *scratch = NULL, why[ERR_BYTES];
    int64_t capacity = 0;
    size_t n = 0;
    int status, first = first_kind(file, err, errlen);
    if (first < 0) return -1;
    file->kind = FILE_JSONL;
    file->encoded = first == 2;
    while ((status = next_line(&r, &line, &n, err, errlen)) > 0) {
        if (is_blank(line, n)) continue;
        if ((status = docs_reserve(&scratch, &capacity, 0, (int64_t)n + 1, 1, err, errlen))) break;
        if ((status = index_line(docs, &r, line, n, scratch, why, sizeof why))) {
            fail(err, errlen, "%s:%lld: %s", file->path, (long long)r.number, why);
            break;
        }
    }
    free(scratch);
    free(r.buffer);
    return status;
}

// ---- JSONL: reading

int docs_read_jsonl(const Docs* docs, const DocsFile* file, int64_t doc, int64_t at, int n, int* out, char* err,
                    size_t errlen) {
    char buffer[4096], bytes[4];
    size_t begin = 0, end = 0;
    int64_t wanted = docs->start[doc] + 1 + at;  // the first token asked for
    const DocsMark* mark =
        &docs->marks[docs_last_at_most(&docs->marks->token, sizeof *docs->marks, docs->n_marks, wanted)];
    int64_t place = mark->place;
    // i: where in out the next byte belongs, which is before it from the mark to the first token asked for
    for (int64_t i = mark->token - wanted; i < n;) {
        if (end - begin < 12) {  // the longest escape, a pair of surrogates
            memmove(buffer, buffer + begin, end - begin);
            end -= begin;
            begin = 0;
            size_t more = (size_t)MIN((int64_t)(sizeof buffer - end), file->size - place);
            if (docs_file_read(file, place, buffer + end, more, err, errlen)) return -1;
            place += (int64_t)more;
            end += more;
        }
        int n_bytes;
        size_t taken = end > begin ? json_unescape(buffer + begin, end - begin, bytes, &n_bytes) : 0;
        if (taken == 0)
            return fail(err, errlen, "%s: the string at about byte %lld has changed since it was opened", file->path,
                        (long long)(place - (int64_t)(end - begin)));
        begin += taken;
        for (int k = 0; k < n_bytes && i < n; k++, i++)
            if (i >= 0) out[i] = (unsigned char)bytes[k];
    }
    return 0;
}
