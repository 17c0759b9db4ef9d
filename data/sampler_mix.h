// sampler_mix.h - beside sampler.h: corpora with weights, and what is said about a sampler.
#pragma once
#include "data/sampler.h"

// Pieces of several corpora with weights (docs_files.h), drawn so that each has its share of the tokens: the next one
// is of the corpus that is furthest behind, w_c T - t_c, where t_c of the T tokens so far are from it. Each goes
// through its own epochs. See DocsFormats; the check is that each has something to learn.
int sampler_mix_check(const Sampler* s, Err err);
Piece sampler_mix_next(const Sampler* s, SamplerPosition* position);
int64_t sampler_corpus_tokens(const Sampler* sampler, int corpus);  // of a corpus with a weight: its training tokens

// A corpus of which nothing is learnt is an error: 0, or -1 with a message. *unlearnt: training pieces that are never
// drawn, since nothing of them is learnt.
int sampler_check_labels(const Sampler* sampler, int64_t* unlearnt, Err err);

static inline int64_t sampler_tokens(const Sampler* s, Split split) { return s->sides[split].n_tokens; }
static inline int64_t sampler_documents(const Sampler* s, Split split) { return s->sides[split].n; }

const char* sampler_describe(const Sampler* sampler, char words[256]);  // one line: how validation text was chosen
// seen[s] = 1 for every length s of a piece that is no tree; seen (context + 1).
void sampler_mark_lengths(const Sampler* sampler, Split split, char* seen);
