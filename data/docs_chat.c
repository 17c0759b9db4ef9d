// docs_chat.c - instructions as documents, in the forms of data/README.md; only completions, what an "assistant" says,
// and the token that ends them are learnt.
//
// Each part is encoded alone, so that what is learnt begins at a token. Messages look as the vocabulary's models were
// taught, by the tokens that it has:
//
//   <|im_start|>ROLE\n CONTENT <|im_end|>\n                                            Qwen, SmolLM2
//   <|start_header_id|>ROLE<|end_header_id|>\n\n CONTENT <|eot_id|>                    Llama 3
//   ROLE: CONTENT, then a blank line, or after an assistant's the end of the text      others
//
// A chat with alternatives to what an assistant said is a tree (docs_tree.c). One segment leads up to the header of
// each such turn; its children are the turn's content with all that follows, and each alternative.
#include <stdlib.h>
#include <string.h>

#include "data/docs_making.h"
#include "data/tokenizer_files.h"
#include "plan/base/base.h"

// ---- opening

static Style style_of(const Tokenizer* t) {
    Style chat = {tokenizer_named(t, "<|im_start|>"), -1, tokenizer_named(t, "<|im_end|>"), "\n", "\n"};
    Style llama = {tokenizer_named(t, "<|start_header_id|>"), tokenizer_named(t, "<|end_header_id|>"),
                   tokenizer_named(t, "<|eot_id|>"), "\n\n", ""};
    if (chat.begin >= 0 && chat.end >= 0) return chat;
    if (llama.begin >= 0 && llama.header_end >= 0 && llama.end >= 0) return llama;
    return (Style){-1, -1, -1, ": ", "\n\n"};
}

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

static int put_words(Making* m, const char* words) { return making_text(m, words, strlen(words)); }

static int put_pair(Making* m) {
    const JsonValue* root = m->root;
    if (making_string(m, json_get(root, "prompt"), "\"prompt\"")) return -1;
    int64_t from = m->docs->more->n_encoded;
    if (making_string(m, json_get(root, "completion"), "\"completion\"")) return -1;
    return making_token(m, m->docs->tokenizer->stop) || making_learn(m, from) ? -1 : 0;
}

// Puts the header of a message, which stands before its content. The role may lie in scratch.
static int put_header(Making* m, const char* role) {
    if (making_token(m, m->style->begin) || put_words(m, role) || making_token(m, m->style->header_end)) return -1;
    return put_words(m, m->style->after_role);
}

// Puts the content of a message that comes in parts, as one text.
static int put_parts(Making* m, const JsonValue* parts) {
    size_t n = 0;
    for (const JsonValue* part = json_elements(parts); part; part = json_next(part)) {
        const JsonValue* type = json_get(part, "type");
        if (type && !json_is(type, "text"))
            return fail(m->err, "a message has a part of type \"%.*s\", expected text alone; leave such lines out",
                        (int)MIN(type->length, 40), type->text);
        int64_t more = json_prose(json_get(part, "text"), m->scratch + n, &m->docs->more->facts.replaced);
        if (more < 0) return fail(m->err, "expected a part of a message as {\"type\": \"text\", \"text\": \"...\"}");
        n += (size_t)more;
    }
    return making_text(m, m->scratch, n);
}

// Puts the content of a message, `more`, if there is any, after a blank line, and the token that ends the message.
static int put_content(Making* m, int learns, const JsonValue* content, const JsonValue* more, const char* what) {
    int64_t from = m->docs->more->n_encoded;
    int in_parts = content && content->type == JSON_ARRAY;
    if (in_parts ? put_parts(m, content) : making_string(m, content, what)) return -1;
    if (more && more->type != JSON_NULL && !json_is(more, ""))
        if (put_words(m, "\n\n") || making_string(m, more, "\"input\"")) return -1;
    if (making_token(m, m->style->end)) return -1;
    if (m->style->end < 0 && learns && making_token(m, m->docs->tokenizer->stop)) return -1;
    return learns ? making_learn(m, from) : 0;
}

// Puts the content and the text after it. If no token ends messages, the end of the text already ended a learnt one.
static int put_body(Making* m, int learns, const JsonValue* content, const JsonValue* more, const char* what) {
    if (put_content(m, learns, content, more, what)) return -1;
    return m->style->end < 0 && learns ? 0 : put_words(m, m->style->after_content);
}

static int put_message(Making* m, const char* role, const JsonValue* content, const JsonValue* more, const char* what) {
    int learns = !strcmp(role, "assistant");
    return put_header(m, role) || put_body(m, learns, content, more, what) ? -1 : 0;
}

static int put_task(Making* m) {
    const JsonValue *root = m->root, *input = json_get(root, "input");
    if (put_message(m, "user", json_get(root, "instruction"), input, "\"instruction\"")) return -1;
    return put_message(m, "assistant", json_get(root, "output"), NULL, "\"output\"");
}

// ---- messages, and the tree that they are where an assistant might have said something else

static const char content_words[] = "\"content\" or \"value\" of a message";

// check_calls refuses calls beside a content: templates of models write them, and no template is known here.
static int check_calls(Making* m, const JsonValue* message) {
    static const char* const names[] = {"tool_calls", "function_call"};
    for (int i = 0; i < COUNT(names); i++) {
        const JsonValue* calls = json_get(message, names[i]);
        if (calls && calls->type != JSON_NULL && (calls->n > 0 || calls->length > 2))
            return fail(m->err,
                        "a message has \"%s\", expected all that it says in \"content\"; write the calls there, as the "
                        "model's own template does",
                        names[i]);
    }
    return 0;
}

static int put_turns(Making* m, const JsonValue* message, Node* up);

// Branches after the header of a turn: its content, with all turns after it, becomes a child of all before it, and so
// does each alternative. `up` is the segment of all before it; NULL: the first one, which begins here.
static int put_branches(Making* m, const JsonValue* message, Node* up, int learns, const JsonValue* content) {
    const JsonValue* others = json_get(message, "alternatives");
    Node root, child;
    if (!learns) return fail(m->err, "\"alternatives\" of a message that is not an assistant's: nobody learns them");
    if (m->depth++ == MOST_DEPTH) return fail(m->err, "more than %d turns have \"alternatives\"", MOST_DEPTH);
    if (!up && making_node(m, up = &root, NULL, 1)) return -1;
    if (making_children(m, up, others, "\"alternatives\"") || making_node(m, &child, up, 1)) return -1;
    if (put_body(m, 1, content, NULL, content_words) || put_turns(m, json_next(message), &child)) return -1;
    for (const JsonValue* other = json_elements(others); other; other = json_next(other))
        if (making_node(m, &child, up, 0) || put_content(m, 1, other, NULL, "an alternative")) return -1;
    return 0;
}

// Puts a message and all that follow it.
static int put_turns(Making* m, const JsonValue* message, Node* up) {
    for (; message; message = json_next(message)) {
        const JsonValue *role = get_either(message, "role", "from"), *content = get_either(message, "content", "value"),
                        *others = json_get(message, "alternatives");
        if (json_string(role, m->scratch) < 0)
            return fail(m->err, "expected \"role\" or \"from\" of a message as a string");
        const char* name = json_is(role, "human") ? "user" : json_is(role, "gpt") ? "assistant" : m->scratch;
        int learns = !strcmp(name, "assistant");
        if (check_calls(m, message) || put_header(m, name)) return -1;
        if (others && others->type != JSON_NULL) return put_branches(m, message, up, learns, content);
        if (put_body(m, learns, content, NULL, content_words)) return -1;
    }
    return 0;
}

static int put_messages(Making* m, const JsonValue* messages) {
    if (messages->type != JSON_ARRAY) return fail(m->err, "expected the messages as an array");
    return put_turns(m, json_elements(messages), NULL);
}

int docs_add_instruction(Docs* docs, const JsonValue* root, Err err) {
    char names[256];
    if (!docs_is_instruction(root))
        return fail(err, "expected an instruction, as in the first line, found the members %s",
                    json_names(root, names, sizeof names));
    size_t room = root->length + 1;  // for the line, and so for all its strings
    DocsMore* d = docs->more;
    Making m = {docs, root, .scratch = malloc(room), .first = d->n_encoded, .segments = d->n_segments, .err = err};
    if (!m.scratch) return fail(err, "out of memory for a line of %zu bytes", room);
    const JsonValue* messages = messages_of(root);
    int is_pair = !messages && has_both(root, "prompt", "completion"), failed = making_token(&m, docs->end_of_text);
    int has_roles = !is_pair && !docs_is_tree(root);
    making_judges(&m, root);
    if (has_roles && !d->style.after_role) d->style = style_of(docs->tokenizer);
    m.style = &d->style;
    if (!failed && has_roles) failed = messages ? put_messages(&m, messages) : put_task(&m);
    else if (!failed) failed = is_pair ? put_pair(&m) : making_tree(&m);
    free(m.scratch);
    if (!failed && !m.learns) failed = fail(err, "nothing here is to be learnt: no assistant speaks");
    int64_t end = d->n_encoded;
    for (int64_t i = d->n_segments; i-- > m.segments; end = d->segments[i].place)
        d->segments[i].length = (int)(end - d->segments[i].place);
    return failed ? -1 : docs_add_encoded(docs, m.first, err);
}
