// bound.h - what no plan can beat: lower bounds of the makespan of whole documents on contiguous ranks.
//
// T(s, d) is the time of a document by itself on d ranks, over ALL d that hold it, whatever cp sizes a planner uses;
// with CP_CHOICE_AUTO over all of group_ulysses_sizes, too.
// Documents of one micro-batch share what it costs once: at most d capacity tokens share `micro-batch`, and messages of
// at most so many tokens cost no token less than e_d, the sum over the group's exchanges of the least time a token (on
// published machines all tokens cost the same). So a document occupies at least
//   w(s, d) = d (T(s, d) - exchanges(d, s)) + V_d (e_d s + micro-batch s / (d capacity)) ms of a rank of speed 1 L1 =
//   sum min_d w / sum of speeds work divided without limit L2 = max_k min_d (T(s_k, d) + micro-batch) the longest
//   unavoidable micro-batch L3 = least tau such that every document has a d with T + micro-batch <= tau, and the sum of
//   the least w among those d is
//        at most tau times the sum of speeds      (Turek, Wolf and Yu 1992; Ludwig and Tiwari 1994)
// Where a micro-batch costs more than 0.5 % of that, L3 is the least such tau at which whole micro-batches suffice, too
// (bound_micro_batches.c).
// A slow rank is slow at computing, not at exchanges and micro-batches (timeline.h): V_d is the sum of the d least
// speeds, d when all are 1, and in L2 and the condition of L3 the fastest speed divides what T computes. L3 >= max(L1,
// L2), and any schedule's makespan is at least L3, as long as its groups share heads in these ways and a message takes
// no less time when it is longer or leaves its machine.
#pragma once
#include "plan/cost.h"

typedef struct Bounds {
    double l1, l2, l3;  // ms
    int longest;        // the document that L2 speaks of, an index into `sorted`; -1 without documents
} Bounds;

// sorted (n): lengths, descending; each is held by some group. All are rounded down, L3 by less than
// 2e-6 of itself. 0, or -1 without memory.
int bounds_of(Bounds* bounds, const int* sorted, int n, const Setting* setting, Arena* arena, char* err,
              size_t errlen);
