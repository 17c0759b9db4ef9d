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
    return ((json_get(root, "prompt") || json_get(root, "messages")) && json_get(root, "answers")) ||
           (json_get(root, "chosen") && json_get(root, "rejected")) ||
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
    const JsonValue* text = is_object ? json_get(value, "text") : value;
    if (!tokens && m->n_messages) {
        if (!text) return fail(m->err, "expected \"text\" or \"tokens\" of an answer");
        if (making_answer(m, text)) return -1;
    } else if (!tokens && (making_string(m, text, "an answer") || making_token(m, m->docs->tokenizer->stop))) return -1;
    if ((tokens || !m->n_messages) && making_learn(m, node.first + 1)) return -1;
    DocsSegment* segment = &m->docs->more->segments[m->docs->more->n_segments - 1];
    segment->rank = rank;
    return is_object ? making_terms(m, value, node.first + 1, rewards, segment) : 0;
}

// Puts the prompt of an answer: text, or messages.
static int put_prompt(Making* m, const JsonValue* prompt) {
    if (prompt->type == JSON_ARRAY) return making_messages(m, prompt) || making_prompt(m, m->n_messages) ? -1 : 0;
    return making_token(m, m->docs->end_of_text) || making_string(m, prompt, "\"prompt\"") ? -1 : 0;
}

static int same_json(const JsonValue* a, const JsonValue* b) {
    return a->length == b->length && !memcmp(a->text, b->text, a->length);
}

// Puts what two chats begin with, all but their last messages, which become said[0 .. 2). No string is read twice: the
// scratch has room for a line.
static int put_common_messages(Making* m, const JsonValue* const pair[2], ChatMessage said[2]) {
    const JsonValue *a = json_elements(pair[0]), *b = json_elements(pair[1]);
    while (a && b && json_next(a) && json_next(b) && same_json(a, b)) a = json_next(a), b = json_next(b);
    if (!a || !b || json_next(a) || json_next(b))
        return fail(m->err, "expected \"chosen\" and \"rejected\" that are alike up to their last messages");
    if (making_messages(m, pair[0]) || making_messages(m, b)) return -1;
    m->docs->more->chats--, m->n_messages -= 2;
    for (int i = 0; i < 2; i++) {
        said[i] = m->messages[m->n_messages + i];
        if (!chat_learns(&said[i]))
            return fail(m->err,
                        "expected \"chosen\" and \"rejected\" that end with an assistant's message, found %.40s's",
                        said[i].role);
    }
    return making_prompt(m, m->n_messages);
}

// Puts what two dialogs begin with, up to the last "\n\nAssistant:" (Anthropic's HH); answers: what follows it.
static int put_common_text(Making* m, const JsonValue* pair[2], const char* answer[2], size_t n[2]) {
    static const char mark[] = "\n\nAssistant:";
    size_t same = 0, end = 0;
    if (making_read(m, pair[0], "\"chosen\"", &answer[0], &n[0])) return -1;
    if (making_read(m, pair[1], "\"rejected\"", &answer[1], &n[1])) return -1;
    while (same < MIN(n[0], n[1]) && answer[0][same] == answer[1][same]) same++;
    for (size_t i = 0; i + sizeof mark - 1 <= same; i++)
        if (!memcmp(answer[0] + i, mark, sizeof mark - 1)) end = i + sizeof mark - 1;
    if (!end)
        return fail(m->err,
                    "expected a \"prompt\", or \"chosen\" and \"rejected\" that begin alike, up to "
                    "\"\\n\\nAssistant:\"");
    if (making_token(m, m->docs->end_of_text) || making_text(m, answer[0], end)) return -1;
    for (int i = 0; i < 2; i++) answer[i] += end, n[i] -= end;
    return 0;
}

// Puts two answers that are text already.
static int put_texts(Making* m, const Node* prompt, const char* const text[2], const size_t n[2]) {
    for (int i = 0; i < 2; i++) {
        Node node;
        if (making_node(m, &node, prompt, 0) || making_text(m, text[i], n[i])) return -1;
        if (making_token(m, m->docs->tokenizer->stop) || making_learn(m, node.first + 1)) return -1;
        m->docs->more->segments[m->docs->more->n_segments - 1].rank = i;
    }
    return 0;
}

// Puts two answers that are messages already.
static int put_replies(Making* m, const Node* prompt, const ChatMessage said[2]) {
    for (int i = 0; i < 2; i++) {
        Node node;
        if (making_node(m, &node, prompt, 0) || making_reply(m, &said[i])) return -1;
        m->docs->more->segments[m->docs->more->n_segments - 1].rank = i;
    }
    return 0;
}

static int put_answers(Making* m) {
    const JsonValue *root = m->root, *answers = json_get(root, "answers"), *asked = json_get(root, "prompt");
    const JsonValue* pair[] = {json_get(root, "chosen"), json_get(root, "rejected")};
    Rewards rewards = {0, 0};
    const char* text[2] = {NULL, NULL};
    ChatMessage said[2] = {{0}, {0}};
    size_t n[2];
    Node prompt;
    if (!asked && answers) asked = json_get(root, "messages");
    int has_chats = asked && !answers && asked->type == JSON_STRING && pair[0]->type == JSON_ARRAY && pair[0]->n > 1;
    if (has_chats) asked = NULL;  // they begin with it
    if (making_node(m, &prompt, NULL, 1)) return -1;
    int failed = asked                         ? put_prompt(m, asked)
                 : pair[0]->type == JSON_ARRAY ? put_common_messages(m, pair, said)
                                               : put_common_text(m, pair, text, n);
    if (failed) return -1;
    if (making_children(m, &prompt, answers, "\"answers\"")) return -1;
    if (text[0]) return put_texts(m, &prompt, text, n);
    if (said[0].role) return put_replies(m, &prompt, said);
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
    if (making_node(m, &node, up, is_first) || (!up && making_token(m, m->docs->end_of_text))) return -1;
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
