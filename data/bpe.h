// bpe.h - internals of a tokenizer: the data of tokenizer_files.c, cutting text into parts and merging (bpe.c), and the
// reader of tokenizer.json (tokenizer_json.c). Everybody else includes tokenizer_files.h.
#pragma once
#include "data/tokenizer_files.h"
#include "data/unicode.h"

// Tokens left and right, side by side, become token id; of several candidates the least rank goes first.
typedef struct Merge {
    int left, right;
    int rank, id;
} Merge;

// Finds tokens by their bytes; the first of equal tokens counts. End-of-text and added tokens are not in it, because no
// text becomes them.
typedef struct TokenIndex {
    int* slots;
    size_t mask;
} TokenIndex;

// The pattern that cuts text into parts.
typedef enum Pattern { SPLIT_GPT2, SPLIT_GPT2_DIGITS, SPLIT_LLAMA3, SPLIT_QWEN2 } Pattern;

typedef struct Bpe {
    Tokenizer base;
    Pattern split;
    int nfc;                // text is brought into normalization form C first
    int ignore_merges;      // a part that is a token is not merged from its bytes
    size_t* begin;          // (vocab)
    unsigned char* length;  // (vocab): token i has length[i] bytes from bytes[begin[i]] on
    size_t n_bytes;         // of all tokens
    char* bytes;
    char* added;  // (vocab) 1: a token that no text becomes; NULL: none but end-of-text
    int* marks;   // (n_marks) added tokens that are not "special"
    int n_marks;
    TokenIndex index;
    int byte_id[256];  // the token of each single byte, -1 where there is none
    Merge* merges;     // in the order of ranks, while it is read
    int n_merges;
    Merge* table;  // the same as a hash table of (left, right); left = -1 where it is empty
    uint32_t table_mask;
    char* file;  // copy of the file that it was read from
    size_t file_bytes;
} Bpe;

// Returns the Bpe that a tokenizer is the base of; only byte_tokenizer has none.
static inline const Bpe* bpe_of(const Tokenizer* t) { return (const Bpe*)t; }
static inline size_t token_length(const Bpe* t, int id) { return t->length[id]; }

// ---- bpe.c

// Sets index. Needs vocab, end_of_text, all of tokens and added. 0, or -1.
int bpe_index_tokens(Bpe* t, Err err);
int bpe_find_token(const Bpe* t, const char* bytes, size_t n);  // -1: no such token

// Sets byte_id. 0, or -1 when a byte has no token: with `some_missing` only a visible ASCII character, a space or a
// line break.
int bpe_find_bytes(Bpe* t, int some_missing, Err err);
// Sets merges from the vocabulary: any two tokens whose concatenation is a token, whose id is the rank. 0, or -1.
int bpe_derive_merges(Bpe* t, Err err);
// Appends the merge of next rank to merges, which has room for it. 0, or -1 when left and right together are no token.
int bpe_add_merge(Bpe* t, int left, int right);
// Makes merges ready for encoding: moves them to table. 0, or -1.
int bpe_index_merges(Bpe* t, Err err);
// Encodes one part of n bytes; out has room for n tokens. Bytes without a token are left out. Returns the count. The
// bytes may end where out ends, and are then overwritten: out[i] is written when byte i has been read.
size_t bpe_encode(const Bpe* t, int* out, const char* bytes, size_t n);
// Returns the length of the first part of n > 0 bytes, at least 1.
size_t pretoken_length(Pattern split, const char* text, size_t n);

// ---- tokenizer_files.c

size_t bpe_encode_text(const Tokenizer* t, int* out, const char* text, size_t n);  // Tokenizer.encode

// ---- tokenizer_json.c

// Fills a zeroed Bpe but for table, file and what tokenizer_parse sets. 0, or -1; the caller closes it in either case.
int tokenizer_read_json(Bpe* t, const char* text, size_t n, Err err);
