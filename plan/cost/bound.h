// bound.h - what no plan can beat: lower bounds of the makespan of whole documents on contiguous ranks.
//
// T(s, d) is the time of a document of s tokens by itself on d ranks, over ALL d that hold it, whatever cp sizes a
// planner uses; with CP_CHOICE_AUTO also over all of group_ulysses_sizes. f is the fixed cost of a micro-batch
// (Cost.micro_batch). C is the capacity of a rank, the largest if they differ, since a rank may have much beside what
// it shares with smaller ones. The documents of a micro-batch share its costs: at most d C tokens share f. No token is
// communicated for less than e_d, the sum over the group's collectives of the least time a token in messages of up to
// what any d ranks hold (on published machines all tokens cost the same). e_d leaves out what a pass posts before it
// computes, which other attention may hide (timeline.h), and all that its own may hide (cost.h). V_d is the sum of the
// d least speeds of ranks, d when all are 1. So a document occupies at least
//   w(s, d) = d (T(s, d) - communication(d, s)) + V_d (e_d s + f s / (d C))     ms of a rank of speed 1,
// and no makespan is less than
//   L1 = sum over documents of min_d w / sum of speeds     the work, divided without limit
//   L2 = max over documents of min_d (T + f)               the longest micro-batch that cannot be avoided
//   L3 = the least tau such that every document has a d with T + f <= tau, and the sum of the least w among those d
//        is at most tau times the sum of speeds            (Turek, Wolf and Yu 1992; Ludwig and Tiwari 1994)
// If f is more than 0.5 % of that, L3 is the least such tau at which whole micro-batches suffice, too (bound.c), and in
// rounds (Setting.rounds) whole rounds.
//
// Other attention than its own is that of local documents in the same pass of the same rank (timeline.h). A third of it
// forward and two thirds backward hide no more than that. Take a pass of one rank with a ms of local attention and x_k
// ms of remaining exchanges, forward and backward. It takes at least (1 - lambda_k) (x_k - (k + 1) a / 3) ms more than
// L3 says, for any lambda_k in [0, 1]. So L3 stays a bound if 1 - lambda_k of these exchanges show, and a document on
// one rank has (1 - lambda_0) / 3 + 2 (1 - lambda_1) / 3 of its attention less (a Lagrangian relaxation).
//   L3     = both hide for free
//   beside = the most of it over lambda = (1, 1), which is L3, (0, 1) and (0, 0); between these it is hardly ever more
//   alone  = L3 of plans that hide nothing so, since their passes have one micro-batch each: what a search that knows
//            of no others aims at. Other plans may beat it.
// L3 <= beside <= alone. beside bounds passes that have at most one shared micro-batch of a rank.
//
// A slow rank is slow at computing, not at communication or at f (timeline.h): in L2 and in the condition of L3 the
// fastest speed divides the computing part of T. L3 >= max(L1, L2). Any schedule's makespan is at least L3, as long as
// its groups share heads in these ways and a message takes no less time when it is longer or leaves its node.
#pragma once
#include "plan/cost/cost.h"

typedef struct Bounds {
    double l1, l2, l3;  // ms
    double beside;      // ms: L3 if exchanges hide under the attention that there is beside them
    double step;        // ms: a bound of whole steps, beside weights and gradients (weights_bound_ms of `beside`)
    double alone;       // ms: L3 if they hide under none: not a bound of all plans
    int longest;        // the document that decides L2, an index into `sorted`; -1 without documents
} Bounds;

// sorted (n): lengths, descending; some group holds each. All bounds are rounded down, L3 by less than 2e-6 of itself.
// 0, or -1 without memory.
int bounds_of(Bounds* bounds, const int* sorted, int n, const Setting* setting, Arena* arena, Err err);

// Returns e_d, the least communication of a token in a micro-batch of at most most_tokens, whatever else is in it.
double least_token_ms(const GroupCost* g, double most_tokens, Hiding hides);

// ---- for bounds of other plans: dev/bound_shares.h

// A document: its tokens, and its least work in rank-milliseconds.
typedef struct DensePart {
    double tokens, work;
} DensePart;

typedef struct WholeMicroBatches {
    int ranks;
    const double* held;          // (ranks + 1) most tokens that n ranks hold in a pass: the n largest
    double rounds;               // at least so many rounds; 0: no rounds
    double micro_batch, linear;  // ms a micro-batch; least ms a token
    double apart;                // rank-ms of work that is not bound to tokens
    DensePart* parts;            // (n) most work a token first
    int n;
} WholeMicroBatches;

// Fills held (ranks + 1) as in WholeMicroBatches.
void most_held(double* held, const PlanLimits* limits);
int denser_first(const void* a, const void* b);
// Returns whether ranks that run whole micro-batches can have done `work`, with what is apart, by tau. 0: no plan can.
int whole_micro_batches_suffice(const WholeMicroBatches* x, double tau, double work);
// Returns the least time a byte of messages up to `bytes`.
double least_byte_ms(const LinkTable* link, double bytes);
