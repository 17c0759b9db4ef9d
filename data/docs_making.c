// docs_making.c - see docs_making.h.
#include "data/docs_making.h"

int making_text(Making* m, const char* text, size_t n) {
    docs_hash_content(m->docs, text, n);
    m->docs->more->not_utf8 += docs_utf8_open(0, text, n) != 0;
    return docs_append_text(m->docs, text, n, m->err);
}

int making_token(Making* m, int token) {
    if (token < 0) return 0;
    docs_hash_content(m->docs, &token, sizeof token);
    return docs_append_tokens(m->docs, &token, 1, m->err);
}

int making_string(Making* m, const JsonValue* value, const char* what) {
    int64_t n = json_prose(value, m->scratch, &m->docs->more->replaced);
    return n < 0 ? fail(m->err, "expected %s as a string", what) : making_text(m, m->scratch, (size_t)n);
}

int making_learn(Making* m, int64_t from) {
    DocsMore* d = m->docs->more;
    int64_t at = docs_tokens(m->docs) - m->first, span[] = {from - m->first, d->n_encoded - m->first};
    if (from == d->n_encoded) return 0;
    docs_hash_content(m->docs, span, sizeof span);
    if (reserve(&d->spans, &d->spans_capacity, d->n_spans, 1, sizeof *d->spans, m->err)) return -1;
    const DocsSpan* last = d->n_spans ? &d->spans[d->n_spans - 1] : NULL;
    d->spans[d->n_spans++] =
        (DocsSpan){from + at, d->n_encoded + at, last ? last->before + last->end - last->first : 0};
    return 0;
}
