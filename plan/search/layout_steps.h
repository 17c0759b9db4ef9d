// layout_steps.h - judges a layout by sampled steps that it will see. Flex plans each among the layout's data ranks
// (plan/step/flex.h), and its rounds are played through all stages and layers (layout_play.h).
//
// layout_search.h takes every step for rounds of as many tokens as fit, on all groups alike, in documents of one mean
// length. No plan is better than that, except that stages wait less if rounds are smaller; that is a tenth at most here
// (test/test_layout_steps.c). So its ms less a tenth are a bound. Layouts are looked at by ascending bounds until the
// next bound is no better than the best found.
#pragma once
#include "plan/search/layout_cost.h"

enum { SAMPLED_STEPS = 4 };

// Steps cut from a list of lengths: step i has lengths[first[i] .. first[i + 1]).
typedef struct SampledSteps {
    int n, first[SAMPLED_STEPS + 1];
    const int* lengths;
} SampledSteps;

// Draws steps as the sampler does: pieces in the order of the list while they fit in `tokens`. A short list gives fewer
// steps; at least one unless it is empty.
SampledSteps sampled_steps(const int* lengths, int n, int64_t tokens);
// Sets c->tokens and c->mean_length to those of the steps.
void layout_costs_of_steps(LayoutCosts* c, const SampledSteps* steps);

// Makes the Setting of a planner for this layout's data ranks, with rows of N tokens. groups: (data ranks + 1), speeds:
// (data ranks); returns their mean.
double layout_setting(Setting* s, GroupCost* groups, double* speeds, const LayoutCosts* c, const Layout* layout, int N);
// Returns the ms of a step of these documents, and its terms. Infinite, with words, as the next.
double layout_documents_ms(double terms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int N,
                           const int* lengths, int n, Err err);
// Returns the mean ms of a step, with rows of N tokens, and the mean terms. Infinite, with words, if a document fits no
// group or memory is missing.
double layout_steps_ms(double terms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int N,
                       const SampledSteps* steps, Err err);

// Sorts the n (sorted) tries of layout_search anew: first the *looked tries that were looked at, by the ms of their
// steps, then the others. Returns a bound: no layout of the list is faster than the first by a larger share of its ms.
double layout_choose(LayoutTry* tries, int n, int* looked, const LayoutCosts* c, const SampledSteps* steps);
