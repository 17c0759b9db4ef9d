// tokenizer_export.c - a tokenizer as Hugging Face's files: tokenizer.json of one that was not read from it, and
// tokenizer_config.json, so that AutoTokenizer finds what a checkpoint was trained with.
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/bpe.h"
#include "data/json.h"
#include "plan/base.h"

// The byte-level alphabet of GPT-2: visible characters of Latin-1 stand for themselves, other bytes, in their order,
// for the characters from 256 on.
static void put_byte(FILE* out, unsigned byte) {
    unsigned character = byte;
    if (!((byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173))) {
        character = 256;
        for (unsigned b = 0; b < byte; b++) character += !((b >= 33 && b <= 126) || (b >= 161 && b != 173));
    }
    if (character == '"' || character == '\\') fputc('\\', out);
    if (character < 128) fputc((int)character, out);
    else fprintf(out, "%c%c", (int)(0xc0 | character >> 6), (int)(0x80 | (character & 63)));
}

static void put_token(FILE* out, const Tokenizer* t, int id) {
    for (size_t i = t->begin[id]; i < t->begin[id + 1]; i++) put_byte(out, (unsigned char)t->bytes[i]);
}

// The name of an added token, as a string of JSON.
static void put_name(FILE* out, const Tokenizer* t, int id) {
    size_t n = token_length(t, id);
    char* quoted = (char*)malloc(6 * n + 3);
    if (quoted) json_quote(quoted, t->bytes + t->begin[id], n);
    fputs(quoted ? quoted : "\"\"", out);
    free(quoted);
}

static int compare_merges(const void* a, const void* b) {
    const Merge *x = (const Merge*)a, *y = (const Merge*)b;
    if (x->rank != y->rank) return (x->rank > y->rank) - (x->rank < y->rank);
    return (x->left > y->left) - (x->left < y->left);
}

static void put_merges(FILE* out, const Tokenizer* t) {
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

char* tokenizer_json_text(const Tokenizer* t, size_t* n) {
    char* text = NULL;
    FILE* out = open_memstream(&text, n);
    if (!out) return NULL;
    fprintf(out,
            "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n\"added_tokens\": [{\"id\": %d, "
            "\"content\": ",
            t->end_of_text);
    put_name(out, t, t->end_of_text);
    fputs(
        ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}],\n"
        "\"normalizer\": null,\n\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
        "\"trim_offsets\": true, \"use_regex\": true},\n\"post_processor\": null,\n\"decoder\": {\"type\": "
        "\"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true},\n\"model\": "
        "{\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": \"\", "
        "\"end_of_word_suffix\": \"\", \"fuse_unk\": false, \"byte_fallback\": false,\n\"vocab\": {",
        out);
    for (int id = 0, first = 1; id < t->vocab; id++) {
        if (id == t->end_of_text) continue;
        fputs(first ? "\n\"" : ",\n\"", out);
        put_token(out, t, id);
        fprintf(out, "\": %d", id);
        first = 0;
    }
    fputs("},\n\"merges\": [", out);
    put_merges(out, t);
    fputs("]}}\n", out);
    int failed = ferror(out);
    if (!fclose(out) && !failed) return text;
    free(text);
    return NULL;
}

char* tokenizer_config_text(const Tokenizer* t, int context, size_t* n) {
    char* text = NULL;
    FILE* out = open_memstream(&text, n);
    if (!out) return NULL;
    fputs("{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"bos_token\": ", out);
    put_name(out, t, t->end_of_text);
    fputs(",\n  \"eos_token\": ", out);
    put_name(out, t, t->stop);
    fprintf(out, ",\n  \"clean_up_tokenization_spaces\": false,\n  \"model_max_length\": %d\n}\n", context);
    int failed = ferror(out);
    if (!fclose(out) && !failed) return text;
    free(text);
    return NULL;
}
