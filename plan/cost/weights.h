// weights.h - when weights come and gradients leave (run/model/zero.h), and how much of that a step shows.
//
// Weights and gradients travel in buckets: the embeddings, each of L layers, the last norm with the classifier. They go
// one after another over their link, g ms each to gather, r ms to reduce. A pass goes through layers, f ms each
// forward, b ms backward, with the classifier between. What does not hide under the pass shows:
//
//   zero 1, 2   Weights set out when a step begins, all of them. A layer waits for its own, and an exchange over the
//               same link for all.
//   zero 3      A layer's weights travel while the layer before it computes: max(f, g) a layer, max(b, g + r) backward;
//               two layers are in place where a pass begins or turns.
//   zero 2, 3   A layer's gradients travel while the next ones compute, and a pass ends with the last of them.
//   zero 1      Gradients leave inside a rank's last pass if no other rank can wait for it there (WeightTimes.inside
//               and Plan), else after it.
//
// A bucket sets out when all ranks have come to it and the link is free. A rank's link takes one communication after
// another, as they were posted. So its exchanges over this link wait for buckets posted before, and for the last rank
// that comes to them.
#pragma once
#include "plan/base/base.h"

enum { WEIGHTS_FIRST, WEIGHTS_LAYER, WEIGHTS_LAST, N_WEIGHTS };  // kinds of buckets

#define WEIGHTS_BEFORE 0.25  // WeightTimes.before of a block whose MLP is four times as wide: 3 of 12

typedef struct WeightTimes {
    int zero, layers;                             // 0 layers: nothing travels, or other times include it
    int across;                                   // 1: over the links between nodes
    int hides;                                    // 0: the sender waits until it has been sent
    int inside;                                   // 1: gradients may leave inside the last pass
    double gather[N_WEIGHTS], reduce[N_WEIGHTS];  // ms of a bucket of each kind
    double head;                                  // the classifier's share of a token's matmuls
    double before;  // share of a layer's matmuls that a pass does before the first exchange, forward
    double update;  // ms of the update, after all else
} WeightTimes;

// A pass of a rank: ms of its layers forward and backward, of the classifier, and after its last layer.
typedef struct PassParts {
    double forward, head, backward, fixed;
    double linear;    // ms of matmuls in forward
    int meets;        // 1: exchanges go over the link of weights and gradients
    double slack[2];  // ms that the first exchange, forward and backward, may be late without showing more
} PassParts;

// A rank in a round, or at the end of its last pass.
typedef struct WeightRank {
    PassParts pass;  // all 0: no pass
    double at;       // ms after the beginning of the step
    int inside;      // 1: gradients leave inside this pass, its last one
} WeightRank;

double weights_all_ms(const double ms[N_WEIGHTS], int layers);  // ms of all buckets
// A lower bound of a step whose passes take at least `plan` ms by themselves, in at least `rounds` rounds that each
// cost `fixed` ms after their layers. All ranks wait for the first weights, the last gradients wait for all ranks, and
// one link carries all that travels.
double weights_bound_ms(const WeightTimes* w, double plan, double rounds, double fixed);
// Stretches the ms of a pass through a pipeline stage to those beside weights and gradients of zero 2 and 3, where
// forward and backward passes take turns.
void weights_stretch(const WeightTimes* w, double* forward, double* backward);
// Returns how much longer a pass that begins at `start` is while weights are on their way, zero 1 and 2.
double weights_late_ms(const WeightTimes* w, const PassParts* pass, double start);
// Plays a round of zero 2 or 3, in which all ranks meet in every layer. at (ranks): begin of the rank's pass in, end of
// the round there out; with zero 2 weights_late_ms is in it. first, last: the step's. Returns the latest end.
double weights_play_round(const WeightTimes* w, WeightRank* ranks, int n, int first, int last);
// Returns when all gradients have been reduced and weights updated; at: the ends of the last passes. With zero 2 and 3
// the rounds have reduced them.
double weights_play_end(const WeightTimes* w, WeightRank* ranks, int n);
