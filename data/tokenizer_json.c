// tokenizer_json.c - reads Hugging Face's tokenizer.json as far as it describes a tokenizer of GPT-2's kind: model BPE,
// the byte-level alphabet, GPT-2's pattern. Settings that would make other tokens of the same text are refused by name.
//
// In this alphabet every byte is a printable character: the bytes 33-126, 161-172 and 174-255 are the code points of
// the same number, the others, in order, 256, 257, ... Source: github.com/openai/gpt-2, src/encoder.py,
// bytes_to_unicode.
#include <stdlib.h>
#include <string.h>

#include "data/bpe.h"
#include "data/json.h"
#include "plan/base.h"

enum { N_SHIFTED = 68, TOKEN_MAX = 255 };  // bytes without a character of their own; what llm.c's format can hold

static int stands_for_itself(int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; }

// The byte that a code point stands for, or -1.
static int byte_of(uint32_t code) {
    if (code < 256) return stands_for_itself((int)code) ? (int)code : -1;
    if (code >= 256 + N_SHIFTED) return -1;
    int left = (int)code - 256, b = 0;
    while (stands_for_itself(b) || left-- > 0) b++;
    return b;
}

// Turns n bytes of UTF-8 in that alphabet into the bytes they stand for, in place. Their number, or -1.
static int64_t bytes_of_alphabet(char* s, int64_t n) {
    int64_t n_out = 0;
    for (int64_t i = 0; i < n; n_out++) {
        unsigned char lead = (unsigned char)s[i];
        int wide = lead >= 0x80;  // all code points of the alphabet take one or two bytes
        if (wide && ((lead & 0xe0) != 0xc0 || i + 1 >= n)) return -1;
        int b = byte_of(wide ? (uint32_t)(lead & 0x1f) << 6 | ((unsigned char)s[i + 1] & 0x3f) : lead);
        if (b < 0) return -1;
        s[n_out] = (char)b;
        i += 1 + wide;
    }
    return n_out;
}

// ---- settings

static int is_string(const JsonValue* value, const char* expected) {
    return value && value->type == JSON_STRING && value->length == strlen(expected) &&
           memcmp(value->text, expected, value->length) == 0;
}

static int is_unset(const JsonValue* value) {
    return !value || value->type == JSON_NULL || value->type == JSON_FALSE || is_string(value, "");
}

static int check_settings(const Json* json, const JsonValue* model, char* err, size_t errlen) {
    static const char* const unset[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback",
                                        "ignore_merges"};
    const JsonValue* splitter = json_get(json, json->values, "pre_tokenizer");
    if (!model || model->type != JSON_OBJECT) return fail(err, errlen, "no object \"model\"");
    if (json_get(json, model, "type") && !is_string(json_get(json, model, "type"), "BPE"))
        return fail(err, errlen, "\"model\" is not of type \"BPE\"");
    for (int i = 0; i < COUNT(unset); i++)
        if (!is_unset(json_get(json, model, unset[i])))
            return fail(err, errlen, "\"model\" sets \"%s\", which GPT-2's tokenizer does not", unset[i]);
    if (!is_unset(json_get(json, json->values, "normalizer")))
        return fail(err, errlen, "it has a \"normalizer\", which GPT-2's tokenizer has not");
    if (!splitter) return 0;
    const JsonValue* pattern = json_get(json, splitter, "use_regex");
    if (!is_string(json_get(json, splitter, "type"), "ByteLevel") || (pattern && pattern->type != JSON_TRUE))
        return fail(err, errlen, "\"pre_tokenizer\" is not \"ByteLevel\" with GPT-2's pattern");
    if (!is_unset(json_get(json, splitter, "add_prefix_space")))
        return fail(err, errlen, "\"pre_tokenizer\" sets \"add_prefix_space\", which GPT-2's tokenizer does not");
    return 0;
}

// ---- tokens

// Tokens as they come, in any order of their ids: token i is n[i] bytes at bytes + at[i]; n[i] = 0 where there is none
// yet.
typedef struct Collected {
    size_t* at;
    unsigned char* n;
    char* bytes;
    size_t n_bytes;
    int capacity, count;
} Collected;

static int collect(Collected* c, const JsonValue* text, const JsonValue* id_value, int in_alphabet, char* err,
                   size_t errlen) {
    int64_t id;
    if (json_int64(id_value, &id) || id < 0 || id >= c->capacity)
        return fail(err, errlen, "the token \"%.*s\" has no id in 0 .. %d", text ? (int)MIN(text->length, 40) : 0,
                    text ? text->text : "", c->capacity - 1);
    if (c->n[id] && !in_alphabet) return 0;  // an added token that the vocabulary lists, too
    int64_t n = json_string(text, c->bytes + c->n_bytes);
    if (n >= 0 && in_alphabet) n = bytes_of_alphabet(c->bytes + c->n_bytes, n);
    if (n < 1 || n > TOKEN_MAX || c->n[id])
        return fail(err, errlen, "token %lld is %s", (long long)id,
                    n < 0           ? "not written in the byte-level alphabet"
                    : n < 1         ? "empty"
                    : n > TOKEN_MAX ? "longer than 255 bytes"
                                    : "there twice");
    c->at[id] = c->n_bytes;
    c->n[id] = (unsigned char)n;
    c->n_bytes += (size_t)n;
    c->count++;
    return 0;
}

static const JsonValue* after(const Json* json, const JsonValue* value) { return &json->values[value->next]; }

static int collect_all(Collected* c, Tokenizer* t, const Json* json, const JsonValue* vocab, const JsonValue* added,
                       char* err, size_t errlen) {
    const JsonValue* key = vocab + 1;
    for (int i = 0; i < vocab->n; i++, key = after(json, after(json, key)))
        if (collect(c, key, after(json, key), 1, err, errlen)) return -1;
    t->end_of_text = -1;
    const JsonValue* entry = added ? added + 1 : NULL;
    for (int i = 0; added && i < added->n; i++, entry = after(json, entry)) {
        const JsonValue* content = json_get(json, entry, "content");
        if (collect(c, content, json_get(json, entry, "id"), 0, err, errlen)) return -1;
        int64_t id;
        if (is_string(content, "<|endoftext|>") && json_int64(json_get(json, entry, "id"), &id) == 0)
            t->end_of_text = (int)id;
    }
    if (t->end_of_text < 0) return fail(err, errlen, "\"added_tokens\" has no <|endoftext|>");
    for (int id = 0; id < c->count; id++)
        if (c->n[id] == 0) return fail(err, errlen, "there are %d tokens, but none has the id %d", c->count, id);
    return 0;
}

// Sets vocab, begin, bytes, end_of_text.
static int read_vocabulary(Tokenizer* t, const Json* json, const JsonValue* model, size_t file_bytes, char* err,
                           size_t errlen) {
    const JsonValue* vocab = json_get(json, model, "vocab");
    const JsonValue* added = json_get(json, json->values, "added_tokens");
    if (!vocab || vocab->type != JSON_OBJECT) return fail(err, errlen, "\"model\" has no object \"vocab\"");
    if (added && added->type != JSON_ARRAY) return fail(err, errlen, "\"added_tokens\" is no array");
    Collected c = {.capacity = vocab->n + (added ? added->n : 0)};
    c.at = calloc((size_t)c.capacity + 1, sizeof *c.at);
    c.n = calloc((size_t)c.capacity + 1, 1);
    c.bytes = malloc(file_bytes + 1);
    t->begin = calloc((size_t)c.capacity + 1, sizeof *t->begin);
    t->bytes = malloc(file_bytes + 1);
    int status;
    if (!c.at || !c.n || !c.bytes || !t->begin || !t->bytes)
        status = fail(err, errlen, "out of memory for %d tokens", c.capacity);
    else status = collect_all(&c, t, json, vocab, added, err, errlen);
    t->vocab = status ? 0 : c.count;
    for (int id = 0; id < t->vocab; id++) {
        memcpy(t->bytes + t->begin[id], c.bytes + c.at[id], c.n[id]);
        t->begin[id + 1] = t->begin[id] + c.n[id];
    }
    free(c.at);
    free(c.n);
    free(c.bytes);
    return status;
}

// ---- merges: "left right" or ["left", "right"]

// The ids of both halves. scratch has room for the unescaped strings.
static int read_pair(const Json* json, const JsonValue* merge, const TokenIndex* index, char* scratch, int ids[2]) {
    char* half[2] = {scratch, NULL};
    int64_t n[2] = {-1, -1};
    if (merge->type == JSON_ARRAY && merge->n == 2) {
        n[0] = json_string(json_at(json, merge, 0), half[0]);
        half[1] = scratch + MAX(0, n[0]);
        n[1] = json_string(json_at(json, merge, 1), half[1]);
    } else if (merge->type == JSON_STRING) {
        int64_t total = json_string(merge, scratch);
        char* space = total > 0 ? memchr(scratch, ' ', (size_t)total) : NULL;
        if (!space) return -1;
        half[1] = space + 1;
        n[0] = space - scratch;
        n[1] = total - n[0] - 1;
    }
    for (int i = 0; i < 2; i++) {
        n[i] = n[i] < 0 ? -1 : bytes_of_alphabet(half[i], n[i]);
        ids[i] = n[i] < 1 ? -1 : token_index_find(index, half[i], (size_t)n[i]);
    }
    return ids[0] < 0 || ids[1] < 0 ? -1 : 0;
}

// Ids are ranks when every token that is no byte comes from one merge, in the order of ids.
static int ids_are_ranks(const Tokenizer* t) {
    int in_order = t->n_merges == t->vocab - 257;
    for (int i = 1; in_order && i < t->n_merges; i++) in_order = t->merges[i - 1].id < t->merges[i].id;
    return in_order;
}

static int read_merges(Tokenizer* t, const Json* json, const JsonValue* merges, const TokenIndex* index,
                       size_t file_bytes, char* err, size_t errlen) {
    if (!merges || merges->type != JSON_ARRAY) return fail(err, errlen, "\"model\" has no array \"merges\"");
    char* scratch = malloc(file_bytes + 2);
    t->merges = malloc(MAX(1, (size_t)merges->n) * sizeof *t->merges);
    int status = 0, ids[2];
    if (!scratch || !t->merges) status = fail(err, errlen, "out of memory for %d merges", merges->n);
    const JsonValue* merge = merges + 1;
    for (int i = 0; status == 0 && i < merges->n; i++, merge = after(json, merge))
        if (read_pair(json, merge, index, scratch, ids) || bpe_add_merge(t, index, ids[0], ids[1]))
            status = fail(err, errlen, "merge %d does not join two tokens into a third", i);
    free(scratch);
    t->ids_are_ranks = status == 0 && ids_are_ranks(t);
    return status;
}

int tokenizer_read_json(Tokenizer* t, const char* text, size_t n, char* err, size_t errlen) {
    Json json;
    TokenIndex index = {0};
    if (json_parse(&json, text, n, err, errlen)) return -1;
    const JsonValue* model = json_get(&json, json.values, "model");
    int status = check_settings(&json, model, err, errlen);
    if (status == 0) status = read_vocabulary(t, &json, model, n, err, errlen);
    if (status == 0) status = token_index_open(&index, t, err, errlen);
    if (status == 0) status = read_merges(t, &json, json_get(&json, model, "merges"), &index, n, err, errlen);
    if (status == 0) status = bpe_find_bytes(t, &index, err, errlen);
    token_index_close(&index);
    json_free(&json);
    return status;
}
