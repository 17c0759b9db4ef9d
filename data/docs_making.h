// docs_making.h - a document being made of a line of JSONL, part after part: instructions (docs_chat.c), trees
// (docs_tree.c). All return 0, or -1 with a message.
#pragma once
#include "data/docs_files.h"

typedef struct Making {
    Docs* docs;
    const Json* json;
    char* scratch;              // room for all strings of the line, one behind another
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
    double mean, deviation;  // of n answers, with n - 1 below the sum of squares
} Rewards;
int making_tokens(Making* m, const JsonValue* list);
int making_rewards(Making* m, const JsonValue* answers, Rewards* rewards);
int making_terms(Making* m, const JsonValue* answer, int64_t from, const Rewards* rewards, DocsSegment* segment);

void making_judges(Making* m, const JsonValue* object);  // DocsMore.judges, by its members

// A tree: its segments go to DocsMore.segments.
double docs_squares(const Docs* docs, int64_t doc);  // Docs.tree_squares
int docs_is_tree(const Json* json);
int making_tree(Making* m);

enum { MOST_DEPTH = 64 };

// A segment, and what its children begin with.
typedef struct Node {
    int index;      // in the document
    int64_t first;  // of its tokens, in Docs.encoded
    int position;   // of what follows it on a path
    int last;       // the token that it ends before
    int learns;
} Node;

// A tree so far.
typedef struct Growing {
    Making* m;
    int n, depth;
} Growing;

// What is made from here on is a segment below `up`; NULL: all that was made of the document is the root.
int making_node(Growing* g, Node* node, const Node* up, int is_first);
// The node's text stands there: its last token becomes that of its children, `children`, which are called `what`.
int making_children(Growing* g, Node* node, const JsonValue* children, const char* what);
