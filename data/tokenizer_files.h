// tokenizer_files.h - tokenizers by path: bytes, or byte pair encoding (BPE), a vocabulary of byte strings, read from
// llm.c's tokenizer file or from a Hugging Face tokenizer.json: data/README.md says of which kinds. A model ends a text
// with Llama 3's <|end_of_text|> where the vocabulary has it, else with the token between documents.
#pragma once
#include "data/docs.h"

// Opens a tokenizer; path NULL or "": bytes. 0 and *out owned by the caller, or -1 with a message.
int tokenizer_open(Tokenizer** out, const char* path, Err err);
// Reads one from bytes in memory (either format, told apart by the first bytes); nothing of data is kept.
int tokenizer_parse(Tokenizer** out, const void* data, size_t n, Err err);
void tokenizer_close(Tokenizer* t);  // NULL is fine

int tokenizer_named(const Tokenizer* t, const char* name);  // the added token of this name, -1: there is none
// Finds the next mark in n bytes of text: an added token that is not "special", such as <think>, which servers find in
// text. Returns it, and the bytes before it and of it; -1: there is none, and all bytes are before it.
int tokenizer_next_mark(const Tokenizer* t, const char* text, size_t n, size_t* before, size_t* length);
int tokenizer_is_qwens(const Tokenizer* t);  // 1: it cuts text as Qwen2's does

// The file that it was read from (bytes: one in llm.c's format) and the name that it has in a checkpoint, which so
// carries what it was trained with. The bytes live as long as t.
const char* tokenizer_file(const Tokenizer* t, const void** bytes, size_t* n);

// ---- text (*n bytes, malloc'ed) of Hugging Face's files; NULL without memory

char* tokenizer_json_text(const Tokenizer* t, size_t* n);  // tokenizer.json, of one that was read from another format
typedef struct TokenizerConfig {
    int context, stop;  // the token that ends a text
    const char* chat;   // (n_chat) the chat template; NULL: there is none
    size_t n_chat;
} TokenizerConfig;
char* tokenizer_config_text(const Tokenizer* t, const TokenizerConfig* config, size_t* n);
