// layout_cost.h - what a step of a layout (plan/layout/layout.h) takes on a machine, by term: for the search, and to
// explain what it found.
//
// Every stage runs v equal rounds of N tokens a group of R ranks: v = tokens of a step / (groups of a stage N), rounded
// up. A layer computes its share of the machine's ms a token and token^2, a third more where it computes again; with
// tp T > 1 the ranks of a cut exchange activations, a fixed number of times a round; with T < R the cuts turn tokens
// into heads and back (run/model/model.h). Layers of unlike T have their tokens in the same places: between them
// nothing moves. With zero 2 and 3 gradients are reduced and weights gathered in every round, with zero 1 once a step.
// Times of computing are those of the rank with most heads and hidden units, of messages those of
// plan/cost/transfers.h; what of them is seen, plan/search/layout_play.h says, which plays the step.
#pragma once
#include <stdio.h>

#include "plan/search/layout_play.h"
#include "plan/layout/layout_ranks.h"
#include "plan/search/layout_search.h"
#include "plan/model/split.h"
#include "plan/cost/transfers.h"

// Elements of a bucket, and of runs of tensors in it that a tensor-parallel group does not cut.
typedef struct BucketWeights {
    double elems, replicated[8];
    int n_replicated;
} BucketWeights;

typedef struct LayoutCosts {
    const Shape* whole;
    Machine machine;      // one rank that computes the whole model
    TransferTimes links;  // of `machine`
    int ranks, elem_bytes;
    int overlap, tensor_overlap;           // messages hide under computing; those of tensor-parallel groups too
    double slow_exchange, slow_computing;  // factors of both while they go on together
    double memory;                         // bytes of a rank, where the machine says no less
    int context;                           // no document is longer
    int parts;                             // in which heads travel (plan/cost/cost.h)
    int rounds_read_weights;  // what a round costs in any case is for weights, as on real ranks; else the end of a pass
    double tokens;            // of a step, on all ranks
    double mean_length;       // sum of squares of documents' lengths / sum
    // Of a group all of whose ranks cut a layer: ms of a row's token, of a token^2 and of any row, with its exchanges,
    // as --probe --tp measures them. 0: not measured; then the machine's constants are divided, and exchanges added.
    struct {
        double token, pair, row;
    } of_tp[MOST_TP + 1];
    BucketWeights layer, end[2];  // of `whole`: a layer, the embeddings, the last norm and the classifier
    double tied;                  // elements of an embedding that is the classifier, too; 0: it is not
    // How the run plans a step, as Planner.plan (plan/published/published.h); NULL: flex.
    int (*plan)(const void* context, Plan* plan, const Setting* setting, const int* lengths, int n, Arena* arena,
                Err err);
    const void* plan_context;
    int played_rounds;  // at most; 0: 64, and 8 for each stage. Others take what the last of these do
    // Of a job among others, which a strategy gives a part of all ranks: the first of them; its weights come from their
    // owners before a step and its gradients go there behind it (plan/layout/strategy_moves.h).
    int first_rank, has_owners;
    Arena* arena;  // for what is played
} LayoutCosts;

// What a group has to do in a round: tokens, the sum of the squares of its documents' lengths, and ms of exchanges with
// ranks that it shares documents with, in all layers, what is not hidden.
typedef struct RoundWork {
    double tokens, squares, exchange;
} RoundWork;

extern const char* const layout_term_names[N_LAYOUT_TERMS];

// *c is not to be moved. `machine` is copied, the arena is kept.
void layout_costs(LayoutCosts* c, const Shape* whole, const Machine* machine, int ranks, int node_size, int elem_bytes,
                  Arena* arena);
// A problem for layout_search whose times are these: layers up to all that the model and ranks allow. Rows, memory and
// bytes are the caller's.
LayoutProblem layout_problem(LayoutCosts* c);
// Rounds of a step with rows of N tokens a group, at least 1.
double layout_rounds(const LayoutCosts* c, const Layout* layout, int N);
// Weights and gradients of a layout's first stage, whose layers are all as the first one.
WeightTimes layout_weights(const LayoutCosts* c, const Layout* layout, int zero);
// += ms of a step that layer l takes, and that stage s takes beside its layers.
void layout_layer_ms(double ms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int s, int l, int N);
void layout_ends_ms(double ms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int s, int N);
// A step as stages play it (plan/value/tasks.h), and the terms of the stage that takes longest: TERM_STAGES is what its
// step lasts beyond them. Infinite without memory.
double layout_step_ms(double terms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int N);
// The same of `rounds` rounds of these works. apart: ranks come to the end of their rows at unlike times, and reduce
// nothing inside the last one (run/step/batch_ranks.c).
double layout_rounds_ms(double terms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout,
                        const RoundWork* works, int rounds, int apart);
// "matmuls 80.1 %, ...": the terms of a step.
void layout_print_terms(FILE* out, const double terms[N_LAYOUT_TERMS], double ms);
