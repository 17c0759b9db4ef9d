// bpe.h - inside of a tokenizer: what tokenizer.c keeps, cutting and merging (bpe.c), and the reader of tokenizer.json
// (tokenizer_json.c). Everybody else includes tokenizer.h.
#pragma once
#include "data/tokenizer.h"

// Tokens left and right, side by side, become token id; of several candidates the least rank goes first.
typedef struct Merge {
    int left, right;
    int rank, id;
} Merge;

struct Tokenizer {
    int vocab, end_of_text, is_bytes;
    size_t* begin;  // (vocab + 1): token i is bytes[begin[i]] .. bytes[begin[i + 1]]
    char* bytes;
    int byte_id[256];  // the token of each single byte
    Merge* merges;
    int n_merges;
    int ids_are_ranks;  // merges follow from the vocabulary
    int* slots;         // hash table of (left, right): indices of merges, -1 where empty
    uint32_t slot_mask;
};

// Looks tokens up by their bytes; needed only while a tokenizer is read. End-of-text is not among them, for no text
// becomes it; of equal tokens the first counts.
typedef struct TokenIndex {
    const Tokenizer* t;
    int* slots;
    size_t mask;
} TokenIndex;

static inline size_t token_length(const Tokenizer* t, int id) { return t->begin[id + 1] - t->begin[id]; }

// ---- bpe.c

// Needs vocab, end_of_text, begin and bytes. 0, or -1.
int token_index_open(TokenIndex* index, const Tokenizer* t, char* err, size_t errlen);
int token_index_find(const TokenIndex* index, const char* bytes, size_t n);  // -1: no such token
void token_index_close(TokenIndex* index);

// Sets byte_id. 0, or -1 when a byte has no token.
int bpe_find_bytes(Tokenizer* t, const TokenIndex* index, char* err, size_t errlen);
// Sets merges from the vocabulary: any two tokens whose concatenation is a token, which is the rank. 0, or -1.
int bpe_derive_merges(Tokenizer* t, const TokenIndex* index, char* err, size_t errlen);
// Appends the merge of next rank to merges, which has room for it. 0, or -1 when left and right together are no token.
int bpe_add_merge(Tokenizer* t, const TokenIndex* index, int left, int right);
// Makes merges ready for encoding: fills slots. 0, or -1.
int bpe_index_merges(Tokenizer* t, char* err, size_t errlen);
// Tokens of n bytes, merged as far as they go: out has room for n. Returns the count.
size_t bpe_encode(const Tokenizer* t, int* out, const char* bytes, size_t n);

// Length of the first part of n > 0 bytes by GPT-2's pattern, at least 1.
size_t pretoken_length(const char* text, size_t n);

// ---- tokenizer_json.c

// Fills a zeroed Tokenizer but for slots and is_bytes. 0, or -1; the caller closes it in either case.
int tokenizer_read_json(Tokenizer* t, const char* text, size_t n, char* err, size_t errlen);
