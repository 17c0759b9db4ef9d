// docs_making.h - a document being made of a line of JSONL, part after part: instructions (docs_chat.c), trees
// (docs_tree.c). All return 0, or -1 with a message.
#pragma once
#include "data/docs_files.h"

typedef struct Making {
    Docs* docs;
    const Json* json;
    char* scratch;              // room for the longest string
    const struct Style* style;  // of messages (docs_chat.c)
    int64_t first;              // of its tokens, in Docs.encoded
    char* err;
} Making;

int making_text(Making* m, const char* text, size_t n);
int making_token(Making* m, int token);                                  // -1: none is put
int making_string(Making* m, const JsonValue* value, const char* what);  // what: for the message
int making_learn(Making* m, int64_t from);  // tokens appended since Docs.more.n_encoded was `from` are to be learnt

// Tokens of an answer as they are; and what its members say of its labels, which were appended from `from` on.
typedef struct Rewards {
    double mean, deviation;
} Rewards;
int making_tokens(Making* m, const JsonValue* list);
int making_rewards(Making* m, const JsonValue* answers, Rewards* rewards);
int making_terms(Making* m, const JsonValue* answer, int64_t from, const Rewards* rewards, int* rank);

// A tree: its segments go to DocsMore.segments.
int docs_is_tree(const Json* json);
int making_tree(Making* m);
