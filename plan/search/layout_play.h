// layout_play.h - plays a step of a layout (plan/layout/layout.h): each stage's rank with most, on a clock of its own
// (plan/cost/clock.h), in the order in which the engine computes and sends.
//
//   begins     all weights that are whole in a step are on their way, bucket by bucket
//   forward    a layer waits for its weights; with zero 3 those of the next one set out. Each sublayer gathers tokens
//              (its first matmul begins with those of the own half of the group), computes, adds up tokens
//   backward   the other way, the sums beside the weights' gradients; with zero 2 and 3 a layer's gradients set out
//              behind it, at most two layers' at a time (run/model/zero.c)
//   ends       what was not reduced in rounds nor inside the last backward pass; the update
//
// The stream and its gradient travel between stages, in the order of plan/value/tasks.h. Ranks of a stage are alike, so
// none waits for another.
#pragma once
#include "plan/cost/clock.h"
#include "plan/layout/layout.h"
#include "plan/value/tasks.h"

typedef enum LayoutTerm {
    TERM_MATMULS,
    TERM_ATTENTION,
    TERM_AGAIN,        // recomputation
    TERM_TENSOR,       // exchanges of ranks that cut the same weights
    TERM_SEQUENCE,     // tokens to heads and back, in layers of less tp than their group
    TERM_ROUNDS,       // gradients and weights in rounds, as far as not hidden
    TERM_MICRO_BATCH,  // the fixed cost of rounds
    TERM_STEP,         // gradients and weights at the ends of the step, as far as not hidden; the update
    TERM_STAGES,       // stages wait for each other and for messages between them
    N_LAYOUT_TERMS
} LayoutTerm;

// Weights and gradients of a bucket (plan/model/shape.h): ms to gather, to reduce, and to sum what all ranks of the cut
// hold; the links of data ranks and of the cut.
typedef struct BucketTimes {
    double gather, reduce, replicated;
    LinkKind data, cut;
} BucketTimes;

// A layer in a round, ms on the rank with most. Exchanges are 0 if there are none, or if other times include them.
typedef struct LayerTimes {
    double linear[2][2];               // [attention, MLP][column, row]: one pass of it
    double attention, again, read;     // a forward pass; factor of computing again; fixed cost of the layer
    double sums, first, second, half;  // adding tokens up, or gathering all; gathering in two parts; share of first
    double all_heads, queries;         // exchanges between the cuts of a group
    double shared;                     // a pass's exchanges with ranks that share its documents
    BucketTimes bucket;
    LinkKind cut, turn;  // links of tokens, and of heads
} LayerTimes;

// The first and last ops of a stage in a round, and its messages.
typedef struct EndTimes {
    double head;           // all passes of the classifier
    double sums, numbers;  // a group's tokens; the numbers that its ranks exchange for the losses
    double end;            // the end of a backward pass
    double message[2];     // between it and the stage before, and the one after
    LinkKind cut, border[2];
} EndTimes;

// Buckets 0 and L + 1, and the end of a step.
typedef struct StepTimes {
    BucketTimes bucket[2];
    double tied, update;
    LinkKind tied_link;
} StepTimes;

typedef struct PlayedStage {
    int layers, is_first, is_last;
    const LayerLayout* rows;  // (layers)
    const int* kind;          // (layers) index into a work's LayerTimes
    const LayerTimes* layer;  // (works, kinds)
    const EndTimes* ends;     // (works)
    StepTimes step;
    int kinds;
} PlayedStage;

typedef struct PlayedStep {
    int stages, rounds, works;  // works: one for each round, or 1 for all
    const PlayedStage* stage;   // (stages)
    int overlap, tensor_overlap, reduces_inside;
    double slow;  // the factor of computing and of an exchange while both go on
} PlayedStep;

// Returns the ms of the step, and `terms` of the stage that takes longest; TERM_STAGES is the rest of its step.
// Infinite without memory.
double layout_play(double terms[N_LAYOUT_TERMS], const PlayedStep* step, Arena* arena);
