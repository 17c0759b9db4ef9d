// docs_tree.c - a prompt with several answers, or text that branches, as one document: a tree of segments (docs.h).
//
//   {"prompt": "...", "answers": ["...", ...]}           only answers, and the token that ends each, are learnt;
//                                                        one may be an object (docs_terms.c)
//   {"prompt": "...", "chosen": "...", "rejected": "..."}        the same, of two ranks
//   {"text": "...", "children": [{"text": "..."}, ...]}  to any depth; every token is learnt, once
//
// Each string is encoded alone. A node's tokens but the last stand in its segment; each child begins with a copy of
// that last one, so that each branch has its own next token there:
//
//   prompt a b c, answers d e and f        segments   a b | c d e . | c f .
//   learnt after these                                      c d e     c f
#include <math.h>
#include <string.h>

#include "data/docs_making.h"

// ---- making one

int docs_is_tree(const JsonValue* root) {
    int has_prompt = json_get(root, "prompt") != NULL;
    return (has_prompt && json_get(root, "answers")) ||
           (has_prompt && json_get(root, "chosen") && json_get(root, "rejected")) ||
           (json_get(root, "text") && json_get(root, "children"));
}

int making_node(Making* m, Node* node, const Node* up, int is_first) {
    DocsMore* d = m->docs->more;
    *node = (Node){.index = (int)(d->n_segments - m->segments),
                   .first = up ? d->n_encoded : m->first,
                   .position = up ? up->position : 0};
    DocsSegment segment = {.place = node->first, .first = (int)(node->first - m->first), .rank = -1, .reward = NAN};
    segment.parent = up ? up->index : -1, segment.position = node->position;
    if (docs_add_segment(d, segment, m->err)) return -1;
    docs_hash_content(m->docs, &segment.parent, sizeof segment.parent);
    if (!up) return 0;
    if (making_token(m, up->last)) return -1;
    return is_first && up->learns ? making_learn(m, node->first) : 0;
}

int making_children(Making* m, Node* node, const JsonValue* children, const char* what) {
    DocsMore* d = m->docs->more;
    if (children && (children->type != JSON_ARRAY || children->n == 0))
        return fail(m->err, "expected %s as an array that is not empty", what);
    if (d->n_encoded - node->first < 2) return fail(m->err, "%s belong to a text without tokens", what);
    node->last = docs_drop_token(d);
    node->position += (int)(d->n_encoded - node->first);
    return 0;
}

// Puts an answer; `rank` is its rank unless it says another one.
static int put_answer(Making* m, const Node* prompt, const JsonValue* value, const Rewards* rewards, int rank) {
    Node node;
    int is_object = value->type == JSON_OBJECT;
    const JsonValue* tokens = is_object ? json_get(value, "tokens") : NULL;
    if (making_node(m, &node, prompt, 0)) return -1;
    if (tokens && making_tokens(m, tokens)) return -1;
    if (!tokens && making_string(m, is_object ? json_get(value, "text") : value, "an answer")) return -1;
    if (!tokens && making_token(m, m->docs->tokenizer->stop)) return -1;
    if (making_learn(m, node.first + 1)) return -1;
    DocsSegment* segment = &m->docs->more->segments[m->docs->more->n_segments - 1];
    segment->rank = rank;
    return is_object ? making_terms(m, value, node.first + 1, rewards, segment) : 0;
}

static int put_answers(Making* m) {
    const JsonValue *root = m->root, *answers = json_get(root, "answers");
    const JsonValue* pair[] = {json_get(root, "chosen"), json_get(root, "rejected")};
    Rewards rewards = {0, 0};
    Node prompt;
    if (making_node(m, &prompt, NULL, 1)) return -1;
    if (making_string(m, json_get(root, "prompt"), "\"prompt\"")) return -1;
    if (making_children(m, &prompt, answers, "\"answers\"")) return -1;
    if (answers && making_rewards(m, answers, &rewards)) return -1;
    for (int i = 0; i < 2 && !answers; i++)
        if (put_answer(m, &prompt, pair[i], &rewards, i)) return -1;
    for (const JsonValue* answer = json_elements(answers); answer; answer = json_next(answer))
        if (put_answer(m, &prompt, answer, &rewards, -1)) return -1;
    return 0;
}

static int put_branch(Making* m, const JsonValue* object, const Node* up, int is_first) {
    const JsonValue* children = json_get(object, "children");
    Node node;
    if (m->depth == MOST_DEPTH) return fail(m->err, "branches at more than %d depths", MOST_DEPTH);
    if (making_node(m, &node, up, is_first)) return -1;
    int64_t own = m->docs->more->n_encoded;
    if (making_string(m, json_get(object, "text"), "\"text\" of a branch")) return -1;
    if (m->docs->more->n_encoded == own) return fail(m->err, "the \"text\" of a branch has no tokens");
    node.learns = 1;
    if (children && making_children(m, &node, children, "\"children\"")) return -1;
    if (m->docs->more->n_encoded > own && making_learn(m, own)) return -1;
    m->depth++;
    for (const JsonValue* child = json_elements(children); child; child = json_next(child))
        if (put_branch(m, child, &node, child == children + 1)) return -1;
    m->depth--;
    return 0;
}

int making_tree(Making* m) { return json_get(m->root, "children") ? put_branch(m, m->root, NULL, 1) : put_answers(m); }
