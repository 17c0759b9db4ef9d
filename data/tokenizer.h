// tokenizer.h - text to tokens and back.
//
// Two kinds. Bytes: 256 values and the end-of-text token 256; needs no file. BPE: a vocabulary of byte strings whose
// ids are merge ranks, as GPT-2's; read from llm.c's tokenizer file (int32 header 20240328, version 1 or 2) or from a
// Hugging Face tokenizer.json of type BPE with the byte-level alphabet. Encoding splits text as GPT-2's pattern does,
// then merges the adjacent pair of lowest rank until none is left.
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct Tokenizer Tokenizer;

// path NULL or "": bytes. 0 and *out owned by the caller, or -1 with a message.
int tokenizer_open(Tokenizer** out, const char* path, char* err, size_t errlen);
// The same from bytes in memory (either format, told apart by the first bytes); nothing of data is kept.
int tokenizer_parse(Tokenizer** out, const void* data, size_t n, char* err, size_t errlen);
void tokenizer_close(Tokenizer* t);  // NULL is fine

int tokenizer_vocab(const Tokenizer* t);        // number of ids, end-of-text included
int tokenizer_end_of_text(const Tokenizer* t);  // its id
int tokenizer_is_bytes(const Tokenizer* t);

// Tokens of n bytes of text, no end-of-text added. out has room for n tokens (never more are needed). Returns the
// count. The text <|endoftext|> is ordinary text.
size_t tokenizer_encode(const Tokenizer* t, int* out, const char* text, size_t n);
// The bytes of one token (not terminated), *n their number; end-of-text and unknown ids have none.
const char* tokenizer_decode(const Tokenizer* t, int token, size_t* n);

// Writes llm.c's format to path and syncs it, so that a checkpoint carries what it was trained with; opened again, it
// is the same tokenizer. (Merges of a tokenizer.json that are not in the order of ids follow behind the tokens, in a
// version 3 that only this program reads.) 0, or -1 with a message.
int tokenizer_save(const Tokenizer* t, const char* path, char* err, size_t errlen);
