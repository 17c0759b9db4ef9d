// docs_chat.c - instructions as documents, in the forms of data/README.md; only completions, what an "assistant" says,
// and the token that ends them are learnt. Messages become what the model's chat template makes of them (chat.h).
//
// A chat with alternatives to what an assistant said is a tree (docs_tree.c). One segment leads up to the header of
// each such turn; its children are the turn's content with all that follows, and each alternative.
#include <stdlib.h>
#include <string.h>

#include "data/docs_making.h"
#include "data/tokenizer_files.h"
#include "plan/base/base.h"

// ---- which form a line has

// Returns the member under the first of two names that the object has; NULL: it has neither.
static const JsonValue* get_either(const JsonValue* object, const char* name, const char* other) {
    const JsonValue* value = json_get(object, name);
    return value ? value : json_get(object, other);
}

static const JsonValue* messages_of(const JsonValue* root) { return get_either(root, "messages", "conversations"); }

static int has_both(const JsonValue* root, const char* name, const char* other) {
    return json_get(root, name) && json_get(root, other);
}

int docs_is_instruction(const JsonValue* root) {
    return messages_of(root) || has_both(root, "prompt", "completion") || has_both(root, "instruction", "output") ||
           docs_is_tree(root);
}

// ---- messages and their tokens

int making_messages(Making* m, const JsonValue* messages) {
    DocsMore* d = m->docs->more;
    if (d->reading.no_chat) return fail(m->err, "%s", d->reading.no_chat);
    int n = m->n_messages,
        failed = chat_read_list(&m->messages, &m->n_messages, messages, m->scratch, &m->used, m->err);
    m->writer.list = m->messages;
    for (int i = n; i < m->n_messages && !failed; i++) {
        const ChatMessage* x = &m->messages[i];
        d->facts.replaced += x->replaced, d->facts.not_utf8 += docs_utf8_open(0, x->content, x->n) != 0;
    }
    d->chats++;
    return failed;
}

// Moves the tokens made so far into the document.
static int take(Making* m) {
    ChatWriter* w = &m->writer;
    if (chat_flush(w)) return -1;
    size_t n = (size_t)w->n;
    w->n = 0;
    docs_hash_content(m->docs, w->tokens, n * sizeof *w->tokens);
    return docs_append_tokens(m->docs, w->tokens, n, m->err);
}

int making_prompt(Making* m, int n) { return chat_render(&m->writer, m->messages, n) || take(m) ? -1 : 0; }

// Puts what an assistant says in message i, or in its place, and learns it.
static int put_reply(Making* m, int i, const ChatMessage* as) {
    int64_t from = m->docs->more->n_encoded;
    return chat_content(&m->writer, i, as) || take(m) || making_learn(m, from) ? -1 : 0;
}

int making_reply(Making* m, const ChatMessage* as) { return put_reply(m, m->writer.n_list, as); }

int making_answer(Making* m, const JsonValue* value) {
    ChatMessage as = {.role = "assistant"};
    int n = m->n_messages;
    if (value->type == JSON_ARRAY && making_messages(m, value)) return -1;
    if (value->type == JSON_ARRAY && (m->n_messages != n + 1 || !chat_learns(&m->messages[n])))
        return fail(m->err, "expected an answer as a string or one message of an assistant, found %d messages",
                    m->n_messages - n);
    if (value->type == JSON_ARRAY) as = m->messages[n], m->n_messages = n;
    else if (making_read(m, value, "an answer", &as.content, &as.n)) return -1;
    return put_reply(m, m->writer.n_list, &as);
}

static int put_turns(Making* m, int i, const JsonValue* value, Node* up);

// Branches after the header of message i: its content, with all messages after it, becomes a child of all before it,
// and so does each alternative. `up` is the segment of all before it; NULL: the first one, which begins here.
static int put_branches(Making* m, int i, const JsonValue* value, Node* up) {
    const JsonValue* others = json_get(value, "alternatives");
    Node root, child;
    if (!chat_learns(&m->messages[i]))
        return fail(m->err, "\"alternatives\" of a message that is not an assistant's: nobody learns them");
    if (m->depth++ == MOST_DEPTH) return fail(m->err, "more than %d turns have \"alternatives\"", MOST_DEPTH);
    if (take(m) || (!up && making_node(m, up = &root, NULL, 1))) return -1;
    if (making_children(m, up, others, "\"alternatives\"") || making_node(m, &child, up, 1)) return -1;
    if (put_reply(m, i, NULL) || chat_after(&m->writer, i) || put_turns(m, i + 1, json_next(value), &child)) return -1;
    for (const JsonValue* other = json_elements(others); other; other = json_next(other)) {
        ChatMessage as = {.role = "assistant"};
        if (making_node(m, &child, up, 0)) return -1;
        if (making_read(m, other, "an alternative", &as.content, &as.n) || put_reply(m, i, &as)) return -1;
    }
    return 0;
}

// Puts message i and all that follow it; `value` is its JSON, NULL where there is none with alternatives.
static int put_turns(Making* m, int i, const JsonValue* value, Node* up) {
    ChatWriter* w = &m->writer;
    for (; i < m->n_messages; i++, value = value ? json_next(value) : NULL) {
        const JsonValue* others = value ? json_get(value, "alternatives") : NULL;
        if (chat_header(w, i)) return -1;
        if (others && others->type != JSON_NULL) return put_branches(m, i, value, up);
        int learns = chat_learns(&m->messages[i]);
        if (learns ? take(m) || put_reply(m, i, NULL) : chat_content(w, i, NULL)) return -1;
        if (chat_after(w, i)) return -1;
    }
    return take(m);
}

// Puts all messages; those of `values` may have alternatives.
static int put_messages(Making* m, const JsonValue* values) {
    if (chat_begin(&m->writer, m->messages, m->n_messages)) return -1;
    return put_turns(m, 0, values ? json_elements(values) : NULL, NULL);
}

// Puts an instruction with its input, if there is any, after a blank line.
static int put_task(Making* m) {
    const JsonValue *root = m->root, *input = json_get(root, "input");
    ChatMessage list[2] = {{.role = "user"}, {.role = "assistant"}};
    const char* more;
    size_t n;
    if (m->docs->more->reading.no_chat) return fail(m->err, "%s", m->docs->more->reading.no_chat);
    if (making_read(m, json_get(root, "instruction"), "\"instruction\"", &list[0].content, &list[0].n)) return -1;
    if (input && input->type != JSON_NULL && !json_is(input, "")) {
        char* end = m->scratch + --m->used;  // the NUL of the instruction
        memcpy(end, "\n\n", 2), m->used += 2;
        if (making_read(m, input, "\"input\"", &more, &n)) return -1;
        list[0].n += 2 + n;
    }
    if (making_read(m, json_get(root, "output"), "\"output\"", &list[1].content, &list[1].n)) return -1;
    m->messages = (ChatMessage*)malloc(sizeof list);
    if (!m->messages) return fail(m->err, "out of memory for 2 messages");
    memcpy(m->messages, list, sizeof list);
    m->n_messages = 2, m->docs->more->chats++;
    return put_messages(m, NULL);
}

static int is_list_of(const JsonValue* value, JsonType type) {
    const JsonValue* first = value->type == JSON_ARRAY ? json_elements(value) : NULL;
    return first && first->type == type;
}

// Puts a prompt and its completion: two strings, two lists of messages, or two of tokens, which stay as they are.
static int put_pair(Making* m) {
    const JsonValue *prompt = json_get(m->root, "prompt"), *completion = json_get(m->root, "completion");
    if (is_list_of(prompt, JSON_NUMBER)) {
        int64_t from = m->docs->more->n_encoded + prompt->n;
        return making_tokens(m, prompt) || making_tokens(m, completion) || making_learn(m, from) ? -1 : 0;
    }
    if (prompt->type == JSON_ARRAY)
        return making_messages(m, prompt) || making_messages(m, completion) || put_messages(m, NULL) ? -1 : 0;
    if (making_token(m, m->docs->end_of_text) || making_string(m, prompt, "\"prompt\"")) return -1;
    int64_t from = m->docs->more->n_encoded;
    if (making_string(m, completion, "\"completion\"")) return -1;
    return making_token(m, m->docs->tokenizer->stop) || making_learn(m, from) ? -1 : 0;
}

static int put_document(Making* m) {
    const JsonValue* messages = messages_of(m->root);
    if (messages && !json_get(m->root, "answers") && !docs_is_tree(m->root))  // a pair may bring its chat along
        return making_messages(m, messages) || put_messages(m, messages) ? -1 : 0;
    if (has_both(m->root, "prompt", "completion")) return put_pair(m);
    return docs_is_tree(m->root) ? making_tree(m) : put_task(m);
}

int docs_add_instruction(Docs* docs, const JsonValue* root, Err err) {
    char names[256];
    if (!docs_is_instruction(root))
        return fail(err, "expected an instruction, as in the first line, found the members %s",
                    json_names(root, names, sizeof names));
    size_t room = root->length + 3;  // for the line, and so for all its strings
    DocsMore* d = docs->more;
    Making m = {docs, root, .scratch = malloc(room), .first = d->n_encoded, .segments = d->n_segments, .err = err};
    m.writer = (ChatWriter){.chat = &d->chat, .tokenizer = docs->tokenizer, .err = err};
    if (!m.scratch) return fail(err, "out of memory for a line of %zu bytes", room);
    making_judges(&m, root);
    int failed = put_document(&m);
    chat_free(&m.writer);
    free(m.messages), free(m.scratch);
    if (!failed && !m.learns) failed = fail(err, "nothing here is to be learnt: no assistant speaks");
    int64_t end = d->n_encoded;
    for (int64_t i = d->n_segments; i-- > m.segments; end = d->segments[i].place)
        d->segments[i].length = (int)(end - d->segments[i].place);
    return failed ? -1 : docs_add_encoded(docs, m.first, err);
}
