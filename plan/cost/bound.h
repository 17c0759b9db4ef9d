// bound.h - what no plan can beat: lower bounds of the makespan of whole documents on contiguous ranks.
//
// T(s, d) is the time of a document of s tokens by itself on d ranks, over ALL d that hold it, whatever cp sizes a
// planner uses; with CP_CHOICE_AUTO also over all of group_ulysses_sizes. f is what a micro-batch costs by itself
// (Cost.micro_batch), C the capacity of a rank: of unlike ones the largest, for a rank may have much beside what it
// shares with those that hold less. The documents of a micro-batch share these costs: at most d C tokens share f, and
// no token is communicated for less than e_d, the sum over the group's collectives of the least time a token in
// messages of up to what any d ranks hold (on published machines all tokens cost the same), without what a pass posts
// before it computes, which other attention may hide (timeline.h), and without all that its own may hide (cost.h). V_d
// is the sum of the d least speeds of ranks, d when all are 1. So a document occupies at least
//   w(s, d) = d (T(s, d) - communication(d, s)) + V_d (e_d s + f s / (d C))     ms of a rank of speed 1,
// and no makespan is less than
//   L1 = sum over documents of min_d w / sum of speeds     the work, divided without limit
//   L2 = max over documents of min_d (T + f)               the longest micro-batch that cannot be avoided
//   L3 = the least tau such that every document has a d with T + f <= tau, and the sum of the least w among those d
//        is at most tau times the sum of speeds            (Turek, Wolf and Yu 1992; Ludwig and Tiwari 1994)
// Where f is more than 0.5 % of that, L3 is the least such tau at which whole micro-batches suffice, too (bound.c), and
// in rounds (Setting.rounds) whole rounds.
//
// Other attention than its own is that of local documents, in the same pass of the same rank (timeline.h): a third of
// it forward, two thirds backward, hides no more than that. A pass of one rank takes, with a ms of local attention and
// x_k ms of exchanges that are left, forward and backward, at least (1 - lambda_k) (x_k - (k + 1) a / 3) ms more than
// L3 says, for any lambda_k in [0, 1]. So L3 stays a bound where 1 - lambda_k of these exchanges show, and a document
// on one rank has (1 - lambda_0) / 3 + 2 (1 - lambda_1) / 3 of its attention less (a Lagrangian relaxation).
//   L3     = both hidings for nothing
//   beside = the most of it over lambda = (1, 1), which is L3, (0, 1) and (0, 0); between these it is hardly ever more
//   alone  = L3 of plans that hide nothing so, since their passes have one micro-batch each: what a search that knows
//            of no others aims at. Other plans may beat it.
// L3 <= beside <= alone. beside is of passes that have at most one shared micro-batch of a rank.
//
// A slow rank is slow at computing, not at communication or at f (timeline.h): in L2 and in the condition of L3 the
// fastest speed divides what T computes. L3 >= max(L1, L2). Any schedule's makespan is at least L3, as long as its
// groups share heads in these ways and a message takes no less time when it is longer or leaves its node.
#pragma once
#include "plan/cost/cost.h"

typedef struct Bounds {
    double l1, l2, l3;  // ms
    double beside;      // ms: L3 where exchanges hide under the attention that there is beside them
    double step;        // ms: no whole step takes less, beside weights and gradients (weights_bound_ms of `beside`)
    double alone;       // ms: L3 where they hide under none: not a bound of all plans
    int longest;        // the document that L2 speaks of, an index into `sorted`; -1 without documents
} Bounds;

// sorted (n): lengths, descending; each is held by some group. All are rounded down, L3 by less than
// 2e-6 of itself. 0, or -1 without memory.
int bounds_of(Bounds* bounds, const int* sorted, int n, const Setting* setting, Arena* arena, Err err);

// e_d: a token of a micro-batch of at most so many is not communicated for less, whatever else the micro-batch holds.
double least_token_ms(const GroupCost* g, double most_tokens, Hiding hides);

// ---- for bounds of other plans: dev/bound_shares.h

// A document: tokens, and the least work of it in rank-milliseconds.
typedef struct DensePart {
    double tokens, work;
} DensePart;

typedef struct WholeMicroBatches {
    int ranks;
    const double* held;          // (ranks + 1) tokens that so many ranks hold in a pass at most: those that hold most
    double rounds;               // at least, 0: there are none
    double micro_batch, linear;  // ms a micro-batch; ms a token at least
    double apart;                // rank-ms of work that is not bound to tokens
    DensePart* parts;            // (n) most work a token first
    int n;
} WholeMicroBatches;

// held (ranks + 1) =: as in WholeMicroBatches.
void most_held(double* held, const PlanLimits* limits);
int denser_first(const void* a, const void* b);
// Whether ranks that run whole micro-batches can have done `work`, with what is apart, by tau. No: no plan can.
int whole_micro_batches_suffice(const WholeMicroBatches* x, double tau, double work);
// Least time a byte of messages up to `bytes`.
double least_byte_ms(const LinkTable* link, double bytes);
