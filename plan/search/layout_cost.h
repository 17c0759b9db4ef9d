// layout_cost.h - what a step of a layout (plan/layout/layout.h) takes on a machine, by term, for the search and to
// explain its result.
//
// Every stage runs v equal rounds of N tokens a group of R ranks: v = tokens of a step / (groups of a stage N), rounded
// up. A layer computes its share of the machine's ms a token and token^2, a third more if it computes again. With tp T
// > 1 the ranks of a cut exchange activations a fixed number of times a round; with T < R the cuts turn tokens into
// heads and back (run/model/model.h). Layers of unlike T have their tokens in the same places, so nothing moves between
// them. With zero 2 and 3 gradients are reduced and weights gathered in every round, with zero 1 once a step. The rank
// with most heads and hidden units sets the times of computing, plan/cost/transfers.h those of messages.
// plan/search/layout_play.h plays the step, and so says which of them show.
#pragma once
#include <stdio.h>

#include "plan/search/layout_play.h"
#include "plan/layout/layout_ranks.h"
#include "plan/search/layout_search.h"
#include "plan/model/split.h"
#include "plan/cost/transfers.h"

// The elements of a bucket, and those of its runs of tensors that a tensor-parallel group does not cut.
typedef struct BucketWeights {
    double elems, replicated[8];
    int n_replicated;
} BucketWeights;

typedef struct LayoutCosts {
    const Shape* whole;
    Machine machine;      // one rank that computes the whole model
    TransferTimes links;  // of `machine`
    int ranks, elem_bytes;
    int overlap, tensor_overlap;  // messages hide under computing; those of tensor-parallel groups too
    double memory;                // bytes of a rank, if the machine says no less
    int context;                  // no document is longer
    int parts;                    // the parts in which heads travel (plan/cost/cost.h)
    int rounds_read_weights;      // a round's fixed cost is reading weights, as on real ranks; 0: a pass's end
    double tokens;                // of a step, on all ranks
    double mean_length;           // sum of squares of documents' lengths / sum
    // The ms of a row's token, of a token^2 and of any row, exchanges included, if all ranks of a group cut a layer.
    // --probe --tp measures them. 0: not measured; then the machine's constants are divided, and exchanges added.
    struct {
        double token, pair, row;
    } of_tp[MOST_TP + 1];
    BucketWeights layer, end[2];  // of `whole`: a layer; the embeddings; last norm and classifier
    double tied;                  // elements of an embedding that is the classifier, too; 0: it is not
    // Plans a step as the run does, like Planner.plan (plan/published/published.h); NULL: flex.
    int (*plan)(const void* context, Plan* plan, const Setting* setting, const int* lengths, int n, Arena* arena,
                Err err);
    const void* plan_context;
    int played_rounds;  // at most; 0: 64, and 8 for each stage. Other rounds take the last ones' time
    // For a job to which a strategy gives a part of all ranks. first_rank is the first of them. has_owners: weights
    // come from their owners before a step, and gradients go there after it (plan/layout/strategy_moves.h).
    int first_rank, has_owners;
    Arena* arena;  // the arena of the plays
} LayoutCosts;

// The work of a group in a round: tokens, the sum of its documents' squared lengths, and the ms, in all layers, of
// exchanges with ranks that share its documents, as far as they are not hidden.
typedef struct RoundWork {
    double tokens, squares, exchange;
} RoundWork;

extern const char* const layout_term_names[N_LAYOUT_TERMS];

// Fills in *c, which must not be moved then. It copies `machine` and keeps the arena.
void layout_costs(LayoutCosts* c, const Shape* whole, const Machine* machine, int ranks, int node_size, int elem_bytes,
                  Arena* arena);
// A problem for layout_search with these times and all tp, stages and zero that the model allows. Rows, memory and
// bytes are the caller's.
LayoutProblem layout_problem(LayoutCosts* c);
// The rounds of a step with rows of N tokens a group, at least 1.
double layout_rounds(const LayoutCosts* c, const Layout* layout, int N);
// The times of weights and gradients of a layout's first stage, all layers as its first one.
WeightTimes layout_weights(const LayoutCosts* c, const Layout* layout, int zero);
// Adds the ms of a step that layer l takes, and those that stage s takes beside its layers.
void layout_layer_ms(double ms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int s, int l, int N);
void layout_ends_ms(double ms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int s, int N);
// Returns the ms of a step as its stages play it (plan/value/tasks.h). The terms are those of the stage that takes
// longest; TERM_STAGES is the rest of its step. Infinite without memory.
double layout_step_ms(double terms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int N);
// The same for `rounds` rounds of these works. apart: ranks end their rows at unlike times, and reduce nothing inside
// the last one (run/step/batch_ranks.c).
double layout_rounds_ms(double terms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout,
                        const RoundWork* works, int rounds, int apart);
// Prints the terms of a step: "matmuls 80.1 %, ...".
void layout_print_terms(FILE* out, const double terms[N_LAYOUT_TERMS], double ms);
