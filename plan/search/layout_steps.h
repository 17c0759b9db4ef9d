// layout_steps.h - a layout judged by the steps that it will see: the lengths of some of them, each planned by flex
// among the data ranks that the layout leaves (plan/step/flex.h), its rounds played through all stages and layers
// (layout_play.h).
//
// layout_search.h takes every step for rounds of as many tokens as fit, on all groups alike, in documents of one mean
// length. No plan is better than that, but for stages, which wait less where rounds are smaller; by a tenth at most
// here (test/test_layout_steps.c). So its ms, and a tenth less, are a bound by which layouts are looked at: the least
// first, until the next one's bound is no better than what has been found.
#pragma once
#include "plan/search/layout_cost.h"

enum { SAMPLED_STEPS = 4 };

// Steps from a list of lengths: step i has lengths[first[i] .. first[i + 1]).
typedef struct SampledSteps {
    int n, first[SAMPLED_STEPS + 1];
    const int* lengths;
} SampledSteps;

// As the sampler draws them: pieces in the order of the list while they fit in `tokens`. Fewer steps where the list is
// short; one, if it is shorter than that.
SampledSteps sampled_steps(const int* lengths, int n, int64_t tokens);
// c->tokens and c->mean_length become those of the steps.
void layout_costs_of_steps(LayoutCosts* c, const SampledSteps* steps);

// What a planner of this layout's data ranks knows, with rows of N tokens. groups: (data ranks + 1), speeds: (data
// ranks).
void layout_setting(Setting* s, GroupCost* groups, double* speeds, const LayoutCosts* c, const Layout* layout, int N);
// ms of a step of these documents, and its terms. Infinite, with words, as the next.
double layout_documents_ms(double terms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int N,
                           const int* lengths, int n, Err err);
// ms of a step in the mean, with rows of N tokens, and the mean terms. Infinite, with words, where a document
// fits no group or memory is missing.
double layout_steps_ms(double terms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int N,
                       const SampledSteps* steps, Err err);

// The n tries of layout_search (sorted) become those that were looked at, the fastest by their steps first, with their
// ms; then the others. looked: how many they are. Returns how much faster, as a share of its ms, another layout of the
// list may be than the first at most.
double layout_choose(LayoutTry* tries, int n, int* looked, const LayoutCosts* c, const SampledSteps* steps);
