// sampler_facts.c - see sampler_facts.h.
#include "data/sampler_facts.h"

#include <stdio.h>

#include "plan/base/terminal.h"

const char* sampler_describe(const Sampler* s, char words[256]) {
    const Side* val = &s->sides[SPLIT_VAL];
    long long n_tokens = val->n_tokens;
    char documents[64];
    text_many(s->docs->n, "document", documents);
    if (s->cut)
        snprintf(words, 256,
                 "validation on the last %lld tokens of the longest document: the corpus (%s) is too small to hold out "
                 "whole ones",
                 n_tokens, documents);
    else if (s->val_fraction == 1)
        snprintf(words, 256, "validation on all %s (%lld tokens) of --val", documents, n_tokens);
    else if (n_tokens == 0) snprintf(words, 256, "no validation text held out");
    else
        snprintf(words, 256, "validation on %lld of %s (%lld tokens), chosen by the hash of their content",
                 (long long)val->n, documents, n_tokens);
    return words;
}

void sampler_mark_lengths(const Sampler* s, Split split, char* seen) {
    int64_t begin, end;
    for (int64_t k = 0; k < s->sides[split].n; k++) {
        int64_t length = sampler_extent(s, split, s->sides[split].list[k].doc, &begin, &end);
        if (length >= s->context) seen[s->context] = 1;
        if (length % s->context) seen[length % s->context] = 1;
    }
}
