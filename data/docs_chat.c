// docs_chat.c - instructions as documents, in the forms of data/README.md; only completions, what an "assistant" says,
// and the token that ends them are learnt.
//
// Each part is encoded alone, so that what is learnt begins at a token. Messages look as the vocabulary's models were
// taught, by the tokens that it has:
//
//   <|im_start|>ROLE\n CONTENT <|im_end|>\n                                            Qwen, SmolLM2
//   <|start_header_id|>ROLE<|end_header_id|>\n\n CONTENT <|eot_id|>                    Llama 3
//   ROLE: CONTENT, then a blank line, or after an assistant's the end of the text      others
#include <stdlib.h>
#include <string.h>

#include "data/docs_making.h"
#include "data/tokenizer_files.h"
#include "plan/base/base.h"

// ---- what is to be learnt

// Tokens to be learnt before `token`, counted from the beginning of the corpus.
static int64_t labels_before(const DocsMore* m, int64_t token) {
    if (m->n_spans == 0 || token <= m->spans[0].first) return 0;
    const DocsSpan* s = &m->spans[last_at_most(&m->spans->first, sizeof *m->spans, m->n_spans, token)];
    return s->before + MIN(token, s->end) - s->first;
}

static int learnt(const Docs* docs, int64_t doc, int64_t first, int n, int* targets) {
    const DocsMore* m = docs->more;
    if (m->n_spans == 0 || n <= 0) return n;
    int64_t token = docs->list[doc].start + first;
    const DocsSpan* end = m->spans + m->n_spans;
    const DocsSpan* s = m->spans + last_at_most(&m->spans->first, sizeof *m->spans, m->n_spans, token);
    for (int i = 0; targets && i < n; i++) {
        while (s < end && s->end <= token + i) s++;
        if (s == end || token + i < s->first) targets[i] = -1;
    }
    return (int)(labels_before(m, token + n) - labels_before(m, token));
}

const DocsFormat docs_instructions = {0, docs_read_encoded, learnt};

// ---- opening

// How a vocabulary's models see messages.
typedef struct Style {
    int begin, header_end, end;  // tokens; -1: none
    const char *after_role, *after_content;
} Style;

static Style style_of(const Tokenizer* t) {
    Style chat = {tokenizer_named(t, "<|im_start|>"), -1, tokenizer_named(t, "<|im_end|>"), "\n", "\n"};
    Style llama = {tokenizer_named(t, "<|start_header_id|>"), tokenizer_named(t, "<|end_header_id|>"),
                   tokenizer_named(t, "<|eot_id|>"), "\n\n", ""};
    if (chat.begin >= 0 && chat.end >= 0) return chat;
    if (llama.begin >= 0 && llama.header_end >= 0 && llama.end >= 0) return llama;
    return (Style){-1, -1, -1, ": ", "\n\n"};
}

// The member by the first name that it has; NULL: by neither.
static const JsonValue* get_either(const Json* json, const JsonValue* object, const char* name, const char* other) {
    const JsonValue* value = json_get(json, object, name);
    return value ? value : json_get(json, object, other);
}

static const JsonValue* messages_of(const Json* json) {
    return get_either(json, json->values, "messages", "conversations");
}

static int has_both(const Json* json, const char* name, const char* other) {
    return json_get(json, json->values, name) && json_get(json, json->values, other);
}

int docs_is_instruction(const Json* json) {
    return messages_of(json) || has_both(json, "prompt", "completion") || has_both(json, "instruction", "output") ||
           docs_is_tree(json);
}

static int put_words(Making* m, const char* words) { return making_text(m, words, strlen(words)); }

static int put_pair(Making* m) {
    const JsonValue* root = m->json->values;
    if (making_string(m, json_get(m->json, root, "prompt"), "\"prompt\"")) return -1;
    int64_t from = m->docs->more->n_encoded;
    if (making_string(m, json_get(m->json, root, "completion"), "\"completion\"")) return -1;
    return making_token(m, m->docs->tokenizer->stop) || making_learn(m, from) ? -1 : 0;
}

// A message: its content, and where there is more, that behind a blank line. The role may lie in scratch.
static int put_message(Making* m, const char* role, const JsonValue* content, const JsonValue* more, const char* what) {
    int learns = !strcmp(role, "assistant");
    int ends = m->style->end < 0 && learns;  // the text itself ends: nothing else says so
    if (making_token(m, m->style->begin) || put_words(m, role) || making_token(m, m->style->header_end)) return -1;
    if (put_words(m, m->style->after_role)) return -1;
    int64_t from = m->docs->more->n_encoded;
    if (making_string(m, content, what)) return -1;
    if (more && more->type != JSON_NULL && !json_is(more, ""))
        if (put_words(m, "\n\n") || making_string(m, more, "\"input\"")) return -1;
    if (making_token(m, m->style->end)) return -1;
    if (ends && making_token(m, m->docs->tokenizer->stop)) return -1;
    if (learns && making_learn(m, from)) return -1;
    return ends ? 0 : put_words(m, m->style->after_content);
}

static int put_task(Making* m) {
    const JsonValue *root = m->json->values, *input = json_get(m->json, root, "input");
    if (put_message(m, "user", json_get(m->json, root, "instruction"), input, "\"instruction\"")) return -1;
    return put_message(m, "assistant", json_get(m->json, root, "output"), NULL, "\"output\"");
}

static int put_messages(Making* m, const JsonValue* messages) {
    if (messages->type != JSON_ARRAY) return fail(m->err, "expected the messages as an array");
    for (int i = 0; i < messages->n; i++) {
        const JsonValue* message = json_at(m->json, messages, i);
        const JsonValue* role = get_either(m->json, message, "role", "from");
        if (json_string(role, m->scratch) < 0)
            return fail(m->err, "expected \"role\" or \"from\" of a message as a string");
        const char* name = json_is(role, "human") ? "user" : json_is(role, "gpt") ? "assistant" : m->scratch;
        if (put_message(m, name, get_either(m->json, message, "content", "value"), NULL,
                        "\"content\" or \"value\" of a message"))
            return -1;
    }
    return 0;
}

int docs_add_instruction(Docs* docs, const Json* json, Err err) {
    size_t longest = 0;
    int64_t spans = docs->more->n_spans;
    char names[256];
    if (!docs_is_instruction(json))
        return fail(err, "expected an instruction, as in the first line, found the members %s",
                    json_names(json, names, sizeof names));
    for (int i = 0; i < json->n; i++) longest = MAX(longest, json->values[i].length);
    Making m = {docs, json, .scratch = malloc(longest + 1), .first = docs->more->n_encoded, .err = err};
    if (!m.scratch) return fail(err, "out of memory for a line of %zu bytes", longest);
    const JsonValue* messages = messages_of(json);
    int is_pair = !messages && has_both(json, "prompt", "completion"), failed = making_token(&m, docs->end_of_text);
    int has_roles = !is_pair && !docs_is_tree(json);
    Style style = has_roles ? style_of(docs->tokenizer) : (Style){0};
    m.style = &style;
    if (!failed && has_roles) failed = messages ? put_messages(&m, messages) : put_task(&m);
    else if (!failed) failed = is_pair ? put_pair(&m) : making_tree(&m);
    free(m.scratch);
    if (!failed && docs->more->n_spans == spans)
        failed = fail(err, "nothing here is to be learnt: no assistant speaks");
    return failed ? -1 : docs_add_encoded(docs, m.first, err);
}
