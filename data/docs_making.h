// docs_making.h - a document being made of a line of JSONL, part after part: instructions (docs_chat.c), trees
// (docs_tree.c). All return 0, or -1 with a message.
#pragma once
#include "data/chat.h"
#include "data/docs_files.h"

typedef struct Making {
    Docs* docs;
    const JsonValue* root;  // of the line
    char* scratch;          // room for all strings of the line, one after another
    size_t used;            // bytes of it
    ChatMessage* messages;  // (n_messages) of the chat, in scratch
    int n_messages;
    ChatWriter writer;        // of their tokens
    int64_t first, segments;  // place of its first token, and segments of all documents before
    int learns;               // something of it
    int depth;                // of the branch that is being put
    char* err;
} Making;

int making_text(Making* m, const char* text, size_t n);
int making_token(Making* m, int token);                                  // -1: none is put
int making_string(Making* m, const JsonValue* value, const char* what);  // what: for the message
// making_read appends a string to scratch, without its tokens.
int making_read(Making* m, const JsonValue* value, const char* what, const char** text, size_t* n);
int making_learn(Making* m, int64_t from);  // tokens from this place on are to be learnt

// making_tokens puts the tokens of an answer as they are; making_terms reads what its members say of labels `from` on.
typedef struct Rewards {
    double mean, deviation;  // of n answers; the sum of squares is divided by n - 1
} Rewards;
int making_tokens(Making* m, const JsonValue* list);
int making_rewards(Making* m, const JsonValue* answers, Rewards* rewards);
int making_terms(Making* m, const JsonValue* answer, int64_t from, const Rewards* rewards, DocsSegment* segment);

// making_messages reads a list of messages behind those that are there. making_prompt puts the first n of them, and the
// header of an answer; making_answer puts an answer to these, a string or a list of one message, and learns it;
// making_reply one that is read already.
int making_messages(Making* m, const JsonValue* messages);
int making_prompt(Making* m, int n);
int making_reply(Making* m, const ChatMessage* as);
int making_answer(Making* m, const JsonValue* value);

void making_judges(Making* m, const JsonValue* object);  // sets DocsMore.judges by its members

// Trees, whose segments go to DocsMore.segments.
int docs_add_segment(DocsMore* more, DocsSegment segment, Err err);
int docs_is_tree(const JsonValue* root);
int making_tree(Making* m);

enum { MOST_DEPTH = 64 };

// A segment, and the token that its children begin with.
typedef struct Node {
    int index;      // in the document
    int64_t first;  // place of its first token
    int position;   // of what follows it on a path
    int last;       // the token that it ends before
    int learns;
} Node;

// Begins a segment below `up`, of all that is made from here on; NULL: the root, of all that was made of the document.
int making_node(Making* m, Node* node, const Node* up, int is_first);
// Ends the node's text: its last token moves to its children, `children`, which messages call `what`.
int making_children(Making* m, Node* node, const JsonValue* children, const char* what);
