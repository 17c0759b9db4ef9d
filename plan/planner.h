// planner.h - what the planners share among themselves: which documents a group of ranks can hold.
//
// A group with `ulysses_size` ranks for the heads holds documents whose tokens at any place of its ring are at most
// place_capacity in all. A document of s tokens takes widest_place(s, ring_size) of that: a row of documents fits where
// the sum of these does.
#pragma once
#include "plan/plan.h"

// Most tokens of a place: those whose attention, at ceil(NH / ulysses_size) heads, is capacity * NH pairs of token and
// head. Never more than ulysses_size * capacity, so its ranks have at most capacity tokens each.
int64_t place_capacity(const PlanLimits* limits, int ulysses_size);
// Most tokens that one place of a ring of `ring_size` has of a document of s tokens.
int widest_place(int s, int ring_size);
// The greatest length not above s that fits a group by itself. 1 always does.
int longest_fitting(const PlanLimits* limits, int s, int ulysses_size, int ring_size);
// The least --capacity with which a group holds a document of s tokens by itself.
int64_t capacity_for(const PlanLimits* limits, int s, int ulysses_size, int ring_size);

// 0, or -1 with words: limits, lengths below 1, more tokens in all than an int counts.
int check_lengths(const int* lengths, int n, const PlanLimits* limits, char* err, size_t errlen);

// check_lengths, then an empty plan of this step in the arena.
int plan_begin(Plan* plan, int64_t step, const int* lengths, int n, const PlanLimits* limits, Arena* arena, char* err,
               size_t errlen);

void sort_lengths(int* lengths, int n);  // descending, as bounds want them
