// weights.h - when weights come and gradients leave (run/model/zero.h), and what a step shows of it.
//
// Weights and gradients travel in buckets: the embeddings, each of L layers, the last norm with the classifier. Over
// their link they go one after another, g ms each to gather, r ms to reduce. A pass goes through layers, f ms each
// forward, b ms backward, with the classifier between. It shows what does not hide under it:
//
//   zero 1, 2   Weights set out when a step begins, all of them. A layer waits for its own, and an exchange over the
//               same link for all.
//   zero 3      A layer's weights travel while the layer before it computes: max(f, g) a layer, max(b, g + r) backward;
//               two layers are in place where a pass begins or turns.
//   zero 2, 3   A layer's gradients travel while the next ones compute, and a pass ends with the last of them.
//   zero 1      Gradients leave inside a rank's last pass, where no other rank can wait for it (WeightTimes.inside and
//               Plan), else behind it.
//
// A bucket sets out when all ranks have come to it and the link is free. A rank's link takes one communication after
// another, as they were posted: its exchanges over the same link wait for a bucket that was posted before them, and so
// for the last rank that comes to it.
#pragma once
#include "plan/base/base.h"

enum { WEIGHTS_FIRST, WEIGHTS_LAYER, WEIGHTS_LAST, N_WEIGHTS };  // kinds of buckets

#define WEIGHTS_BEFORE 0.25  // WeightTimes.before of a block whose MLP is four times as wide: 3 of 12

typedef struct WeightTimes {
    int zero, layers;                             // 0 layers: nothing travels, or its time is in others
    int across;                                   // over the links between nodes
    int hides;                                    // 0: who sends waits until it has been sent
    int inside;                                   // gradients may leave inside the last pass
    double gather[N_WEIGHTS], reduce[N_WEIGHTS];  // ms of a bucket of each kind
    double head;                                  // the classifier's share of a token's matmuls
    double before;  // share of a layer's matmuls that a pass does before the first exchange, forward
    double update;  // ms behind all
} WeightTimes;

// A pass of a rank: ms of its layers forward and backward, of the classifier, and behind its last layer.
typedef struct PassParts {
    double forward, head, backward, fixed;
    double linear;    // of forward, matmuls
    int meets;        // exchanges go over the link of weights and gradients
    double slack[2];  // of forward and backward, for which their first exchange may be late and shows no more
} PassParts;

// A rank in a round, or at the end of its last pass.
typedef struct WeightRank {
    PassParts pass;  // all 0: it has none
    double at;       // ms behind the beginning of the step
    int inside;      // gradients leave inside this pass, its last one
} WeightRank;

double weights_all_ms(const double ms[N_WEIGHTS], int layers);  // of all buckets
// No step is shorter whose passes take `plan` ms at least by themselves, in so many rounds at least, each of which
// costs `fixed` ms behind its layers: all ranks wait for the first weights, the last gradients wait for all ranks, and
// what travels goes over one link.
double weights_bound_ms(const WeightTimes* w, double plan, double rounds, double fixed);
// Of a pass through a stage of a pipeline, ms: what it takes beside the weights and gradients of zero 2 and 3, where
// forward and backward passes come by turns.
void weights_stretch(const WeightTimes* w, double* forward, double* backward);
// By how much a pass that begins at `start` is longer since weights are on their way, zero 1 and 2.
double weights_late_ms(const WeightTimes* w, const PassParts* pass, double start);
// A round of zero 2 or 3 in which all ranks meet in every layer. at (ranks) =: from when the rank's pass begins to when
// the round is over there; zero 2: weights_late_ms is in it. first, last: of the rounds of a step. Returns the last.
double weights_play_round(const WeightTimes* w, WeightRank* ranks, int n, int first, int last);
// When all gradients have been reduced and weights updated; at: when the last passes end. Of zero 2 and 3 rounds have
// reduced them.
double weights_play_end(const WeightTimes* w, WeightRank* ranks, int n);
