// tokenizer_json.c - reads Hugging Face's tokenizer.json as far as it describes byte-level BPE with a pattern that
// bpe.c knows; settings that would make other tokens of the same text are refused by name. And writes it, of a
// tokenizer that was read from another format, with tokenizer_config.json, so that AutoTokenizer finds what a
// checkpoint was trained with.
//
// In this alphabet every byte is a printable character: the bytes 33-126, 161-172 and 174-255 are the code points of
// the same number, the others, in order, 256, 257, ... Source: github.com/openai/gpt-2, src/encoder.py,
// bytes_to_unicode.
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/bpe.h"
#include "data/json.h"
#include "plan/base/base.h"

enum { N_SHIFTED = 68, TOKEN_MAX = 255 };  // bytes without a character of their own; what llm.c's format can hold

static int stands_for_itself(int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; }

// Returns the byte that a code point stands for, or -1.
static int byte_of(uint32_t code) {
    if (code < 256) return stands_for_itself((int)code) ? (int)code : -1;
    if (code >= 256 + N_SHIFTED) return -1;
    int left = (int)code - 256, b = 0;
    while (stands_for_itself(b) || left-- > 0) b++;
    return b;
}

// Turns n bytes of UTF-8 in that alphabet into the bytes they stand for, in place. Returns their number, or -1.
static int64_t bytes_of_alphabet(char* s, int64_t n) {
    int64_t n_out = 0;
    for (int64_t i = 0; i < n; n_out++) {
        size_t length;
        int b = byte_of(utf8_decode(s + i, (size_t)(n - i), &length));
        if (b < 0) return -1;
        s[n_out] = (char)b;
        i += (int64_t)length;
    }
    return n_out;
}

// ---- settings

static int is_unset(const JsonValue* value) {
    return !value || value->type == JSON_NULL || value->type == JSON_FALSE || json_is(value, "");
}

static int has_type(const JsonValue* object, const char* type) { return json_is(json_get(object, "type"), type); }

// shown writes a value as it stands in the file, but on one line, for messages.
enum { SHOWN = 260 };
static const char* shown(const JsonValue* value, char out[SHOWN]) {
    size_t n = 0;
    for (size_t i = 0; value && i < value->length && n < SHOWN - 4; i++) {
        char c = value->text[i];
        if (c > ' ' && c <= '~') out[n++] = c;
        else if (c == ' ' && n > 0 && out[n - 1] != ' ') out[n++] = c;
    }
    strcpy(out + n, !value ? "absent" : n == SHOWN - 4 ? "..." : "");
    return out;
}

// Returns the pattern of a Sequence that first splits by it; -1: it is not known.
static int split_by_pattern(const JsonValue* first) {
#define PATTERN(numbers)                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"                                     \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
    const JsonValue* regex = json_get(json_get(first, "pattern"), "Regex");
    if (!has_type(first, "Split") || !json_is(json_get(first, "behavior"), "Isolated") ||
        !is_unset(json_get(first, "invert")))
        return -1;
    return json_is(regex, PATTERN("\\p{N}{1,3}")) ? SPLIT_LLAMA3 : json_is(regex, PATTERN("\\p{N}")) ? SPLIT_QWEN2 : -1;
}

static int find_split(const JsonValue* splitter) {
    const JsonValue* parts = json_get(splitter, "pretokenizers");
    const JsonValue *first = json_at(parts, 0), *bytes = splitter;
    int split = SPLIT_GPT2;
    if (has_type(splitter, "Sequence")) {
        const JsonValue* digits = json_get(first, "individual_digits");
        if (!parts || parts->n != 2) return -1;
        bytes = json_at(parts, 1);
        if (!has_type(first, "Digits")) split = split_by_pattern(first);
        else split = digits && digits->type == JSON_TRUE ? SPLIT_GPT2_DIGITS : -1;
    }
    const JsonValue* by_pattern = json_get(bytes, "use_regex");  // true: by GPT-2's, also if it is absent
    int has_pattern = !by_pattern || by_pattern->type == JSON_TRUE;
    int wants_pattern = split == SPLIT_GPT2 || split == SPLIT_GPT2_DIGITS;
    if (!has_type(bytes, "ByteLevel") || !is_unset(json_get(bytes, "add_prefix_space"))) return -1;
    return has_pattern == wants_pattern ? split : -1;
}

static int read_settings(Bpe* t, const JsonValue* root, const JsonValue* model, Err err) {
    static const char* const unset[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"};
    char found[SHOWN];
    if (!model || model->type != JSON_OBJECT) return fail(err, "no object \"model\"");
    if (json_get(model, "type") && !has_type(model, "BPE"))
        return fail(err, "\"model\" is of type \"%s\", known is \"BPE\"", shown(json_get(model, "type"), found));
    for (int i = 0; i < COUNT(unset); i++)
        if (!is_unset(json_get(model, unset[i])))
            return fail(err, "\"model\" sets \"%s\" to %s, known is byte-level BPE without it", unset[i],
                        shown(json_get(model, unset[i]), found));
    t->ignore_merges = !is_unset(json_get(model, "ignore_merges"));
    const JsonValue* normalizer = json_get(root, "normalizer");
    t->nfc = has_type(normalizer, "NFC");
    if (!t->nfc && !is_unset(normalizer))
        return fail(err, "\"normalizer\" is %s, known are none and {\"type\":\"NFC\"}", shown(normalizer, found));
    const JsonValue* splitter = json_get(root, "pre_tokenizer");
    int split = find_split(splitter);
    if (split < 0)
        return fail(err,
                    "\"pre_tokenizer\" is %s, known are ByteLevel (GPT-2), Digits and ByteLevel (SmolLM2), Split by "
                    "Llama 3's or Qwen2's pattern and ByteLevel, all without add_prefix_space",
                    shown(splitter, found));
    t->split = (Pattern)split;
    return 0;
}

// ---- tokens

// Tokens come in any order of their ids; one of no length is not there yet.
static int add_token(Bpe* t, int capacity, const JsonValue* text, const JsonValue* id_value, int in_alphabet, Err err) {
    int64_t id;
    char* bytes = t->bytes + t->n_bytes;
    if (json_int64(id_value, &id) || id < 0 || id >= capacity)
        return fail(err, "the token \"%.*s\" has no id in 0 .. %d", text ? (int)MIN(text->length, 40) : 0,
                    text ? text->text : "", capacity - 1);
    if (t->length[id] && !in_alphabet) return t->added[id] = 1, 0;  // an added token that the vocabulary lists, too
    int64_t n = json_string(text, bytes);
    if (n >= 0 && in_alphabet) n = bytes_of_alphabet(bytes, n);
    if (n < 1 || n > TOKEN_MAX || t->length[id])
        return fail(err, "token %lld is %s", (long long)id,
                    n < 0           ? "not written in the byte-level alphabet"
                    : n < 1         ? "empty"
                    : n > TOKEN_MAX ? "longer than 255 bytes"
                                    : "there twice");
    t->begin[id] = t->n_bytes;
    t->length[id] = (unsigned char)n;
    t->added[id] = !in_alphabet;
    t->n_bytes += (size_t)n;
    t->base.vocab++;
    return 0;
}

static int add_tokens(Bpe* t, int capacity, const JsonValue* vocab, const JsonValue* added, Err err) {
    for (const JsonValue* key = json_members(vocab); key; key = json_next(key))
        if (add_token(t, capacity, key, key + 1, 1, err)) return -1;
    int has_begin = 0;
    t->base.end_of_text = -1;
    for (const JsonValue* entry = json_elements(added); entry; entry = json_next(entry)) {
        const JsonValue *content = json_get(entry, "content"), *special = json_get(entry, "special");
        if (add_token(t, capacity, content, json_get(entry, "id"), 0, err)) return -1;
        int64_t id = -1;
        int begins = json_is(content, "<|begin_of_text|>"), ends = json_is(content, "<|endoftext|>");
        json_int64(json_get(entry, "id"), &id);
        if (special && special->type == JSON_FALSE) t->marks[t->n_marks++] = (int)id;
        if (begins || (ends && !has_begin)) t->base.end_of_text = (int)id;
        if (json_is(content, "<|end_of_text|>")) t->base.stop = (int)id;
        has_begin |= begins;
    }
    if (t->base.end_of_text < 0) return fail(err, "\"added_tokens\" has neither <|endoftext|> nor <|begin_of_text|>");
    for (int id = 0; id < t->base.vocab; id++)
        if (t->length[id] == 0) return fail(err, "there are %d tokens, but none has the id %d", t->base.vocab, id);
    return 0;
}

// Sets all of tokens, added and end_of_text.
static int read_vocabulary(Bpe* t, const JsonValue* root, const JsonValue* model, size_t file_bytes, Err err) {
    const JsonValue* vocab = json_get(model, "vocab");
    const JsonValue* added = json_get(root, "added_tokens");
    if (!vocab || vocab->type != JSON_OBJECT) return fail(err, "\"model\" has no object \"vocab\"");
    if (added && added->type != JSON_ARRAY) return fail(err, "\"added_tokens\" is no array");
    int capacity = vocab->n + (added ? added->n : 0);
    t->begin = calloc((size_t)capacity + 1, sizeof *t->begin);
    t->length = calloc((size_t)capacity + 1, 1);
    t->added = calloc((size_t)capacity + 1, 1);
    t->bytes = malloc(file_bytes + 1);
    t->marks = malloc(((size_t)capacity + 1) * sizeof *t->marks);
    if (!t->begin || !t->length || !t->added || !t->bytes || !t->marks)
        return fail(err, "out of memory for %d tokens", capacity);
    return add_tokens(t, capacity, vocab, added, err);
}

// ---- merges: "left right" or ["left", "right"]

// Finds the ids of both halves. scratch has room for the unescaped strings.
static int read_pair(const Bpe* t, const JsonValue* merge, char* scratch, int ids[2]) {
    char* half[2] = {scratch, NULL};
    int64_t n[2] = {-1, -1};
    if (merge->type == JSON_ARRAY && merge->n == 2) {
        n[0] = json_string(json_at(merge, 0), half[0]);
        half[1] = scratch + MAX(0, n[0]);
        n[1] = json_string(json_at(merge, 1), half[1]);
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
        ids[i] = n[i] < 1 ? -1 : bpe_find_token(t, half[i], (size_t)n[i]);
    }
    return ids[0] < 0 || ids[1] < 0 ? -1 : 0;
}

static int read_merges(Bpe* t, const JsonValue* merges, size_t file_bytes, Err err) {
    if (!merges || merges->type != JSON_ARRAY) return fail(err, "\"model\" has no array \"merges\"");
    char* scratch = malloc(file_bytes + 2);
    t->merges = malloc(MAX(1, (size_t)merges->n) * sizeof *t->merges);
    int status = 0, ids[2];
    if (!scratch || !t->merges) status = fail(err, "out of memory for %d merges", merges->n);
    for (const JsonValue* merge = json_elements(merges); status == 0 && merge; merge = json_next(merge))
        if (read_pair(t, merge, scratch, ids) || bpe_add_merge(t, ids[0], ids[1]))
            status = fail(err, "merge %d does not join two tokens into a third", t->n_merges);
    free(scratch);
    return status;
}

int tokenizer_read_json(Bpe* t, const char* text, size_t n, Err err) {
    Json json;
    if (json_parse(&json, text, n, err)) return -1;
    const JsonValue* model = json_get(json.values, "model");
    // Without a token for what is unknown, bytes that have none may be left out.
    int some_missing = is_unset(json_get(model, "unk_token"));
    int status = read_settings(t, json.values, model, err);
    if (status == 0) status = read_vocabulary(t, json.values, model, n, err);
    if (status == 0) status = bpe_index_tokens(t, err);
    if (status == 0) status = read_merges(t, json_get(model, "merges"), n, err);
    if (status == 0) status = bpe_find_bytes(t, some_missing, err);
    json_free(&json);
    return status;
}

// ---- writing

static void put_byte(FILE* out, int byte) {
    char bytes[4];
    int character = stands_for_itself(byte) ? byte : 256;
    for (int b = 0; character >= 256 && b < byte; b++) character += !stands_for_itself(b);
    if (character == '"' || character == '\\') fputc('\\', out);
    fwrite(bytes, 1, utf8_encode(bytes, (uint32_t)character), out);
}

static void put_token(FILE* out, const Bpe* t, int id) {
    for (size_t i = 0; i < token_length(t, id); i++) put_byte(out, (unsigned char)t->bytes[t->begin[id] + i]);
}

// Writes the name of an added token as a string of JSON.
static void put_name(FILE* out, const Bpe* t, int id) { json_put(out, t->bytes + t->begin[id], token_length(t, id)); }

static int compare_merges(const void* a, const void* b) {
    const Merge *x = (const Merge*)a, *y = (const Merge*)b;
    if (x->rank != y->rank) return (x->rank > y->rank) - (x->rank < y->rank);
    return (x->left > y->left) - (x->left < y->left);
}

static void put_merges(FILE* out, const Bpe* t) {
    size_t slots = (size_t)t->table_mask + 1;
    int n = 0;
    Merge* merges = (Merge*)malloc(slots * sizeof *merges);
    for (size_t i = 0; merges && t->table && i < slots; i++)
        if (t->table[i].left >= 0) merges[n++] = t->table[i];
    if (n) qsort(merges, (size_t)n, sizeof *merges, compare_merges);
    for (int i = 0; i < n; i++) {
        fputs(i ? ",\n\"" : "\n\"", out);
        put_token(out, t, merges[i].left);
        fputc(' ', out);
        put_token(out, t, merges[i].right);
        fputc('"', out);
    }
    free(merges);
}

char* tokenizer_json_text(const Tokenizer* tokenizer, size_t* n) {
    const Bpe* t = bpe_of(tokenizer);
    char* text = NULL;
    FILE* out = open_memstream(&text, n);
    if (!out) return NULL;
    fprintf(out,
            "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n\"added_tokens\": [{\"id\": %d, "
            "\"content\": ",
            t->base.end_of_text);
    put_name(out, t, t->base.end_of_text);
    fputs(
        ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}],\n"
        "\"normalizer\": null,\n\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
        "\"trim_offsets\": true, \"use_regex\": true},\n\"post_processor\": null,\n\"decoder\": {\"type\": "
        "\"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true},\n\"model\": "
        "{\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": \"\", "
        "\"end_of_word_suffix\": \"\", \"fuse_unk\": false, \"byte_fallback\": false,\n\"vocab\": {",
        out);
    for (int id = 0, first = 1; id < t->base.vocab; id++) {
        if (id == t->base.end_of_text) continue;
        fputs(first ? "\n\"" : ",\n\"", out);
        put_token(out, t, id);
        fprintf(out, "\": %d", id);
        first = 0;
    }
    fputs("},\n\"merges\": [", out);
    put_merges(out, t);
    fputs("]}}\n", out);
    return json_end(out, &text);
}

char* tokenizer_config_text(const Tokenizer* tokenizer, const TokenizerConfig* config, size_t* n) {
    const Bpe* t = bpe_of(tokenizer);
    char* text = NULL;
    FILE* out = open_memstream(&text, n);
    if (!out) return NULL;
    fputs("{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"bos_token\": ", out);
    put_name(out, t, t->base.end_of_text);
    fputs(",\n  \"eos_token\": ", out);
    put_name(out, t, config->stop);
    if (config->chat) fputs(",\n  \"chat_template\": ", out), json_put(out, config->chat, config->n_chat);
    fprintf(out, ",\n  \"clean_up_tokenization_spaces\": false,\n  \"model_max_length\": %d\n}\n", config->context);
    return json_end(out, &text);
}
