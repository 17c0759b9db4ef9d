// docs_chat.c - instructions as documents; only completions, what an "assistant" says, and the token that ends them are
// learnt. A line of JSONL has one of these forms; the last two are those of the data sets Alpaca and ShareGPT.
//
//   {"prompt": "...", "completion": "..."}
//   {"messages": [{"role": "user", "content": "..."}, ...]}
//   {"instruction": "...", "input": "...", "output": "..."}       a user's message (and the input, where there is one,
//                                                                 behind a blank line), and the assistant's
//   {"conversations": [{"from": "human", "value": "..."}, ...]}   human is the user, gpt the assistant
//
// Each part is encoded alone, so that what is learnt begins at a token. Messages look as the vocabulary's models were
// taught, by the tokens that it has:
//
//   <|im_start|>ROLE\n CONTENT <|im_end|>\n                                            Qwen, SmolLM2
//   <|start_header_id|>ROLE<|end_header_id|>\n\n CONTENT <|eot_id|>                    Llama 3
//   ROLE: CONTENT, then a blank line, or after an assistant's the end of the text      others
#include <stdlib.h>
#include <string.h>

#include "data/docs_files.h"
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

// A document being made.
typedef struct Making {
    Docs* docs;
    char* scratch;  // room for the longest string
    int64_t first;  // of its tokens, in Docs.encoded
    char* err;
} Making;

// The member by the first name that it has; NULL: by neither.
static const JsonValue* get_either(const Json* json, const JsonValue* object, const char* name, const char* other) {
    const JsonValue* value = json_get(json, object, name);
    return value ? value : json_get(json, object, other);
}

static const JsonValue* messages_of(const Json* json) {
    return get_either(json, json->values, "messages", "conversations");
}

static int is_pair(const Json* json) {
    return json_get(json, json->values, "prompt") && json_get(json, json->values, "completion");
}

int docs_is_instruction(const Json* json) {
    const JsonValue* root = json->values;
    if (root->type != JSON_OBJECT) return 0;
    return messages_of(json) || is_pair(json) ||
           (json_get(json, root, "instruction") && json_get(json, root, "output"));
}

// Tokens appended since `from` are to be learnt.
static int learn(Making* m, int64_t from) {
    Docs* docs = m->docs;
    DocsMore* d = docs->more;
    int64_t before = 0, at = docs_tokens(docs) - m->first, end = d->n_encoded + at;
    int64_t span[] = {from - m->first, d->n_encoded - m->first};
    if (from + at == end) return 0;
    docs_hash_content(docs, span, sizeof span);
    if (d->n_spans)
        before = d->spans[d->n_spans - 1].before + d->spans[d->n_spans - 1].end - d->spans[d->n_spans - 1].first;
    if (reserve(&d->spans, &d->spans_capacity, d->n_spans, 1, sizeof *d->spans, m->err)) return -1;
    d->spans[d->n_spans++] = (DocsSpan){from + at, end, before};
    return 0;
}

static int put_text(Making* m, const char* text, size_t n) {
    docs_hash_content(m->docs, text, n);
    return docs_append_text(m->docs, text, n, m->err);
}

static int put_words(Making* m, const char* words) { return put_text(m, words, strlen(words)); }

static int put_token(Making* m, int token) {
    docs_hash_content(m->docs, &token, sizeof token);
    return docs_append_tokens(m->docs, &token, 1, m->err);
}

static int put_string(Making* m, const JsonValue* value, const char* what) {
    int64_t n = value && value->type == JSON_STRING ? json_string(value, m->scratch) : -1;
    if (n < 0) return fail(m->err, "expected %s as a string", what);
    return put_text(m, m->scratch, (size_t)n);
}

static int put_pair(Making* m, const Json* json) {
    if (put_string(m, json_get(json, json->values, "prompt"), "\"prompt\"")) return -1;
    int64_t from = m->docs->more->n_encoded;
    if (put_string(m, json_get(json, json->values, "completion"), "\"completion\"")) return -1;
    return put_token(m, m->docs->tokenizer->stop) || learn(m, from) ? -1 : 0;
}

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

// A message of a role of n bytes, which may lie in scratch: a content, and where there is more, that behind a blank
// line.
static int put_message(Making* m, const Style* style, const char* role, size_t n, const JsonValue* content,
                       const JsonValue* more, const char* what) {
    int learns = n == 9 && !memcmp(role, "assistant", 9);
    int ends = style->end < 0 && learns;  // the text itself ends: nothing else says so
    if (style->begin >= 0 && put_token(m, style->begin)) return -1;
    if (put_text(m, role, n)) return -1;
    if (style->header_end >= 0 && put_token(m, style->header_end)) return -1;
    if (put_words(m, style->after_role)) return -1;
    int64_t from = m->docs->more->n_encoded;
    if (put_string(m, content, what)) return -1;
    if (more && more->type != JSON_NULL && !(more->type == JSON_STRING && more->length == 0))
        if (put_words(m, "\n\n") || put_string(m, more, "\"input\"")) return -1;
    if (style->end >= 0 && put_token(m, style->end)) return -1;
    if (ends && put_token(m, m->docs->tokenizer->stop)) return -1;
    if (learns && learn(m, from)) return -1;
    return ends ? 0 : put_words(m, style->after_content);
}

static int put_task(Making* m, const Json* json) {
    Style style = style_of(m->docs->tokenizer);
    const JsonValue *task = json_get(json, json->values, "instruction"), *input = json_get(json, json->values, "input");
    if (put_message(m, &style, "user", 4, task, input, "\"instruction\"")) return -1;
    return put_message(m, &style, "assistant", 9, json_get(json, json->values, "output"), NULL, "\"output\"");
}

static int put_messages(Making* m, const Json* json, const JsonValue* messages) {
    Style style = style_of(m->docs->tokenizer);
    if (messages->type != JSON_ARRAY) return fail(m->err, "expected the messages as an array");
    for (int i = 0; i < messages->n; i++) {
        const JsonValue* message = json_at(json, messages, i);
        const char* role = m->scratch;
        int64_t n = json_string(get_either(json, message, "role", "from"), m->scratch);
        if (n < 0) return fail(m->err, "expected \"role\" or \"from\" of a message as a string");
        if (!strcmp(role, "human")) role = "user", n = 4;
        else if (!strcmp(role, "gpt")) role = "assistant", n = 9;
        if (put_message(m, &style, role, (size_t)n, get_either(json, message, "content", "value"), NULL,
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
    Making m = {docs, (char*)malloc(longest + 1), docs->more->n_encoded, err};
    if (!m.scratch) return fail(err, "out of memory for a line of %zu bytes", longest);
    const JsonValue* messages = messages_of(json);
    int failed = put_token(&m, docs->end_of_text);
    if (!failed)
        failed = messages ? put_messages(&m, json, messages) : is_pair(json) ? put_pair(&m, json) : put_task(&m, json);
    free(m.scratch);
    if (!failed && docs->more->n_spans == spans)
        failed = fail(err, "nothing here is to be learnt: no assistant speaks");
    return failed ? -1 : docs_add_encoded(docs, m.first, err);
}
