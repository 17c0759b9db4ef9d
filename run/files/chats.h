// chats.h - what a model's files say of chats, and what its checkpoints say: the template, and the token that ends a
// turn.
#pragma once
#include "data/chat.h"
#include "run/run.h"

typedef struct ModelChat {
    ChatTemplate chat;
    char why[CHECKPOINT_PATH + ERR_BYTES];  // why messages cannot be read; empty: they can
    char* text;                             // (n) the template as a file has it; NULL: none has
    size_t n;
    char* generation;  // (n_generation) generation_config.json; NULL: there is none
    size_t n_generation;
    int ends_turns;  // 1: the files say that the model ends a text with the token that ends a turn
} ModelChat;

// Finds the files beside the tokenizer, or in the checkpoint that the run begins with. Bad ones end the program.
void run_open_chat(Run* run);
// Returns the template of the model's chats; ends the program with what cannot be read, after `option`.
const ChatTemplate* run_chat(const Run* run, const char* option);
// Returns 1 if the model ends a turn, and so a text, with the template's token: its files say so, or it learns chats.
int run_ends_turns(const Run* run);
int run_learns_chats(const Run* run);  // 1: messages are among the documents
// Texts of a checkpoint (*n bytes, malloc'ed). NULL: no memory, or, of the second one, there is nothing to say.
char* run_tokenizer_config(const Run* run, size_t* n);
char* run_generation_config(const Run* run, size_t* n);
