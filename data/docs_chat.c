// docs_chat.c - instructions as documents: a line of JSONL with "prompt" and "completion", or with "messages" of roles;
// only completions, what an "assistant" says, and the token that ends them are learnt.
//
// Each part is encoded alone, so that what is learnt begins at a token. Messages look as the vocabulary's models were
// taught, by the tokens that it has:
//
//   <|im_start|>ROLE\n CONTENT <|im_end|>\n                                            Qwen, SmolLM2
//   <|start_header_id|>ROLE<|end_header_id|>\n\n CONTENT <|eot_id|>                    Llama 3
//   ROLE: CONTENT, then a blank line, or after an assistant's the end of the text      others
#include <stdlib.h>
#include <string.h>

#include "data/docs_format.h"
#include "plan/base.h"

// A document being made.
typedef struct Making {
    Docs* docs;
    char* scratch;  // room for the longest string
    int64_t first;  // of its tokens, in Docs.encoded
    char* err;
    size_t errlen;
} Making;

int docs_is_instruction(const Json* json) {
    const JsonValue* root = json->values;
    if (root->type != JSON_OBJECT) return 0;
    return json_get(json, root, "messages") || (json_get(json, root, "prompt") && json_get(json, root, "completion"));
}

// Tokens appended since `from` are to be learnt.
static int learn(Making* m, int64_t from) {
    Docs* d = m->docs;
    int64_t before = 0, at = docs_tokens(d) - m->first, end = d->n_encoded + at;
    int64_t span[] = {from - m->first, d->n_encoded - m->first};
    if (from + at == end) return 0;
    docs_hash_content(d, span, sizeof span);
    if (d->n_spans)
        before = d->spans[d->n_spans - 1].before + d->spans[d->n_spans - 1].end - d->spans[d->n_spans - 1].first;
    if (docs_reserve(&d->spans, &d->spans_capacity, d->n_spans, 1, sizeof *d->spans, m->err, m->errlen)) return -1;
    d->spans[d->n_spans++] = (DocsSpan){from + at, end, before};
    return 0;
}

static int put_text(Making* m, const char* text, size_t n) {
    docs_hash_content(m->docs, text, n);
    return docs_append_text(m->docs, text, n, m->err, m->errlen);
}

static int put_words(Making* m, const char* words) { return put_text(m, words, strlen(words)); }

static int put_token(Making* m, int token) {
    docs_hash_content(m->docs, &token, sizeof token);
    return docs_append_tokens(m->docs, &token, 1, m->err, m->errlen);
}

static int put_string(Making* m, const JsonValue* value, const char* what) {
    int64_t n = value && value->type == JSON_STRING ? json_string(value, m->scratch) : -1;
    if (n < 0) return fail(m->err, m->errlen, "expected %s as a string", what);
    return put_text(m, m->scratch, (size_t)n);
}

static int put_pair(Making* m, const Json* json) {
    if (put_string(m, json_get(json, json->values, "prompt"), "\"prompt\"")) return -1;
    int64_t from = m->docs->n_encoded;
    if (put_string(m, json_get(json, json->values, "completion"), "\"completion\"")) return -1;
    return put_token(m, tokenizer_stop(m->docs->tokenizer)) || learn(m, from) ? -1 : 0;
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

static int put_message(Making* m, const Json* json, const JsonValue* message, const Style* style) {
    const JsonValue *role = json_get(json, message, "role"), *content = json_get(json, message, "content");
    int learns = role && role->type == JSON_STRING && role->length == 9 && !memcmp(role->text, "assistant", 9);
    if (style->begin >= 0 && put_token(m, style->begin)) return -1;
    if (put_string(m, role, "\"role\" of a message")) return -1;
    if (style->header_end >= 0 && put_token(m, style->header_end)) return -1;
    if (put_words(m, style->after_role)) return -1;
    int64_t from = m->docs->n_encoded;
    if (put_string(m, content, "\"content\" of a message")) return -1;
    int ends = style->end < 0 && learns;  // the text itself ends: nothing else says so
    if (style->end >= 0 && put_token(m, style->end)) return -1;
    if (ends && put_token(m, tokenizer_stop(m->docs->tokenizer))) return -1;
    if (learns && learn(m, from)) return -1;
    return ends ? 0 : put_words(m, style->after_content);
}

static int put_messages(Making* m, const Json* json, const JsonValue* messages) {
    Style style = style_of(m->docs->tokenizer);
    if (messages->type != JSON_ARRAY) return fail(m->err, m->errlen, "expected an array \"messages\"");
    for (int i = 0; i < messages->n; i++)
        if (put_message(m, json, json_at(json, messages, i), &style)) return -1;
    return 0;
}

int docs_add_instruction(Docs* docs, const Json* json, char* err, size_t errlen) {
    size_t longest = 0;
    int64_t spans = docs->n_spans;
    if (!docs_is_instruction(json))
        return fail(err, errlen, "expected \"messages\", or \"prompt\" and \"completion\", as in the first line");
    for (int i = 0; i < json->n; i++) longest = MAX(longest, json->values[i].length);
    Making m = {docs, (char*)malloc(longest + 1), docs->n_encoded, err, errlen};
    if (!m.scratch) return fail(err, errlen, "out of memory for a line of %zu bytes", longest);
    const JsonValue* messages = json_get(json, json->values, "messages");
    int failed = put_token(&m, docs->end_of_text) || (messages ? put_messages(&m, json, messages) : put_pair(&m, json));
    free(m.scratch);
    if (!failed && docs->n_spans == spans)
        failed = fail(err, errlen, "nothing here is to be learnt: no assistant speaks");
    return failed ? -1 : docs_add_encoded(docs, m.first, err, errlen);
}
