// docs_making.c - see docs_making.h.
#include "data/docs_making.h"

int making_text(Making* m, const char* text, size_t n) {
    docs_hash_content(m->docs, text, n);
    m->docs->more->facts.not_utf8 += docs_utf8_open(0, text, n) != 0;
    return docs_append_text(m->docs, text, n, m->err);
}

int making_token(Making* m, int token) {
    if (token < 0) return 0;
    docs_hash_content(m->docs, &token, sizeof token);
    return docs_append_tokens(m->docs, &token, 1, m->err);
}

int making_string(Making* m, const JsonValue* value, const char* what) {
    const char* text = "";
    size_t n = 0;
    return making_read(m, value, what, &text, &n) ? -1 : making_text(m, text, n);
}

int making_read(Making* m, const JsonValue* value, const char* what, const char** text, size_t* n) {
    int64_t bytes = json_prose(value, m->scratch + m->used, &m->docs->more->facts.replaced);
    if (bytes < 0) return fail(m->err, "expected %s as a string", what);
    *text = m->scratch + m->used, *n = (size_t)bytes;
    m->used += (size_t)bytes + 1;
    return 0;
}

int making_learn(Making* m, int64_t from) {
    int64_t end = m->docs->more->n_encoded, span[] = {from - m->first, end - m->first};
    if (from == end) return 0;
    docs_hash_content(m->docs, span, sizeof span);
    m->learns = 1;
    return docs_learn(m->docs->more, from, end, m->err);
}
