// sampler_mix.h - pieces of several corpora with weights (docs_files.h), drawn so that each has its share of the
// tokens: the next one is of the corpus that is furthest behind, w_c T - t_c, where t_c of the T tokens so far are from
// it. Each goes through its own epochs.
#pragma once
#include "data/sampler.h"

extern const SamplerMix sampler_mix;
int64_t sampler_corpus_tokens(const Sampler* sampler, int corpus);  // of a corpus with a weight: its training tokens
