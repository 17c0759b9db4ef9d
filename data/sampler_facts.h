// sampler_facts.h - what is said about a sampler.
#pragma once
#include "data/sampler.h"

static inline int64_t sampler_tokens(const Sampler* s, Split split) { return s->sides[split].n_tokens; }
static inline int64_t sampler_documents(const Sampler* s, Split split) { return s->sides[split].n; }

const char* sampler_describe(const Sampler* sampler, char words[256]);  // one line: how validation text was chosen
// seen[s] = 1 for every length s of a piece; seen (context + 1).
void sampler_mark_lengths(const Sampler* sampler, Split split, char* seen);
