// sampler_mix.c - see sampler_mix.h.
#include "data/sampler_mix.h"

#include <math.h>
#include <stdio.h>

#include "data/docs_files.h"
#include "plan/base/terminal.h"

// Returns the first training piece of document `doc` or a later one. The pieces of a corpus are neighbours, because its
// documents are.
static int64_t first_piece(const Sampler* s, int64_t doc) {
    const Side* side = &s->sides[SPLIT_TRAIN];
    int64_t before = last_at_most(&side->list->doc, sizeof *side->list, side->n + 1, doc);
    return side->list[before + (side->list[before].doc < doc)].first_piece;
}

static int64_t pieces_of(const Sampler* s, int corpus, int64_t* first) {
    *first = first_piece(s, docs_corpus(s->docs, corpus)->first);
    return first_piece(s, docs_corpus(s->docs, corpus)->end) - *first;
}

static int is_drawn(const Piece* p) { return p->weight > 0 || p->n_targets == 0; }

// count_learnt counts the pieces, of n from `first` on, that have a label; *unlearnt += those that are never drawn.
// Only instructions and weights of 0 leave pieces without one.
static int64_t count_learnt(const Sampler* s, int64_t first, int64_t n, int64_t* unlearnt) {
    int in_doubt = s->docs->more->weigh != NULL;
    int64_t learnt = 0;
    for (int64_t i = 0; i < s->docs->n_files && !in_doubt; i++) in_doubt = s->docs->files[i].format->learnt != NULL;
    for (int64_t i = 0; i < n && in_doubt; i++) {
        Piece piece = sampler_piece(s, SPLIT_TRAIN, first, n, i, 0);
        learnt += piece.weight > 0, *unlearnt += !is_drawn(&piece);
    }
    return in_doubt ? learnt : n;
}

int sampler_check_labels(const Sampler* s, int64_t* unlearnt, Err err) {
    int64_t n = sampler_pieces(s, SPLIT_TRAIN);
    *unlearnt = 0;
    if (n == 0 || count_learnt(s, 0, n, unlearnt) > 0) return 0;
    return fail(err, "nothing is learnt of these documents: no label of any counts");
}

int sampler_mix_check(const Sampler* s, Err err) {
    int64_t first, unlearnt = 0;
    for (int c = 0; c < s->docs->more->n_corpora; c++) {
        int64_t n = pieces_of(s, c, &first);
        if (n == 0 || count_learnt(s, first, n, &unlearnt) == 0)
            return fail(err, "the corpus %s has no text to %s", docs_corpus(s->docs, c)->name,
                        n ? "learn" : "train on");
    }
    return 0;
}

int64_t sampler_corpus_tokens(const Sampler* s, int corpus) {
    const DocsCorpus* c = docs_corpus(s->docs, corpus);
    int64_t tokens = 0, begin, end;
    for (int64_t d = c->first; d < c->end; d++) tokens += sampler_extent(s, SPLIT_TRAIN, d, &begin, &end);
    return tokens;
}

// Returns the corpus that is furthest behind its share, the first of equals.
static int next_corpus(const Sampler* s, const SamplerPosition* position) {
    double total = 0, most = -INFINITY;
    int next = 0, n = s->docs->more->n_corpora;
    for (int c = 0; c < n; c++) total += (double)position->corpora[c].tokens;
    for (int c = 0; c < n; c++) {
        double behind = docs_corpus(s->docs, c)->share * (total + 1) - (double)position->corpora[c].tokens;
        if (behind > most) most = behind, next = c;
    }
    return next;
}

Piece sampler_mix_next(const Sampler* s, SamplerPosition* position) {
    if (s->docs->more->n_corpora == 0) return sampler_next(s, position);
    int c = next_corpus(s, position);
    CorpusPosition* at = &position->corpora[c];
    int64_t first, n = pieces_of(s, c, &first);
    Piece piece;
    do {
        uint64_t key = hash64(hash64(s->seed ^ hash64((uint64_t)c + 1)) ^ (uint64_t)at->epoch);
        piece = sampler_piece(s, SPLIT_TRAIN, first, n, at->index, key);
        if (++at->index == n) at->epoch++, at->index = 0;
    } while (!is_drawn(&piece));
    at->tokens += piece.length;
    return piece;
}

// ---- facts

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
        int64_t doc = s->sides[split].list[k].doc, length = sampler_extent(s, split, doc, &begin, &end);
        if (docs_squares(s->docs, doc) > 0) continue;
        if (length >= s->context) seen[s->context] = 1;
        if (length % s->context) seen[length % s->context] = 1;
    }
}
