// hydraulis.h - Hydraulis rebuilt (arXiv 2412.07894, 2024; released code of 2025): it proposes strategies of unlike
// pipelines before the run. Every step chooses one, and its documents go first to pipelines, then into micro-batches.
//
// A scheme is one way to run a replica of the model, a "pipeline": numbers of GPUs and of stages (pp). A micro-batch of
// documents of s tokens takes it sum(t(s)) + fixed, where t(s) = quadratic s^2 + linear s. A strategy is a number of
// pipelines of each scheme. A step of a pipeline of v micro-batches, the longest of them Z without `fixed`, takes
//   (Z + fixed) (pp - 1 + v)     as published, where pp > 1
//   sum of t + fixed v           where pp = 1: there is nothing to wait for between them
#pragma once
#include "plan/layout/strategy_moves.h"
#include "plan/published/published.h"

enum {
    HYDRAULIS_SCHEMES = 24,
    HYDRAULIS_BINS = 256,
    HYDRAULIS_SHUFFLES = 50,
    HYDRAULIS_COUNTS = 20,
    HYDRAULIS_LIST = 16,
    HYDRAULIS_FEW_RANKS = 8,  // up to so many ranks all strategies are proposed
    HYDRAULIS_BATCHES = 36,   // batches on which strategies are compared
    HYDRAULIS_CANDIDATES = HYDRAULIS_SCHEMES + 2 * HYDRAULIS_SCHEMES * HYDRAULIS_BINS  // of the published planner
};

typedef struct PipelineScheme {
    int gpus, pp;
    double quadratic, linear, fixed;  // ms a token^2, a token, a micro-batch
    int64_t max_tokens;               // of a micro-batch
    int ring;      // ring size, 1: none; a ring cuts documents: s tokens take ring * widest_ring_rank(s, ring)
    int max_docs;  // most documents of a pipeline in a step
} PipelineScheme;

typedef struct SchemePool {
    int ranks;  // GPUs in all
    int n;
    PipelineScheme scheme[HYDRAULIS_SCHEMES];  // in descending order of max_tokens
    int may_be_empty;  // 1: empty pipelines do not matter; 0, as published: strategies with one come last
} SchemePool;

// A strategy's pipelines are numbered scheme by scheme.
typedef struct Strategy {
    int copies[HYDRAULIS_SCHEMES];  // pipelines of each scheme
    int longest;                    // most tokens of a document that it was proposed for
    double ms;                      // expected for the whole sample
    // The ms that moving the model takes; 0 as published. A scheme's pipelines have their weights `start` after the
    // step begins, and gradients take `end` after its last pass.
    double start[HYDRAULIS_SCHEMES], end;
    // The pace of each pipeline: t(s) takes it t(s) / pace. NULL: all are as fast as their schemes say.
    const double* pace;
} Strategy;

double scheme_ms(const PipelineScheme* scheme, int s);  // t(s)
int scheme_longest(const PipelineScheme* scheme);       // longest document that a micro-batch holds

// The scheme of a pipeline of pp stages whose ranks planners see as one rank with these costs, for micro-batches of at
// most max_tokens. Between a quarter of that and all of it a measured machine's communication counts as linear.
PipelineScheme scheme_of_group(const GroupCost* g, int gpus, int pp, int64_t max_tokens);
// Inserts a scheme after those of a pool that hold as much. Returns its place; all after it have moved.
int scheme_add(SchemePool* pool, const PipelineScheme* scheme);

int strategy_pipelines(const Strategy* strategy, const SchemePool* pool);

// ---- before the run

typedef enum FixedCharge {
    FIXED_PER_DOCUMENT,    // as released: every document pays for a micro-batch of its own
    FIXED_PER_MICRO_BATCH  // micro-batches count as full
} FixedCharge;

typedef struct Proposal {
    int longest, step;  // maximum lengths step, 2 step, .. longest; at most HYDRAULIS_BINS of them
    int narrowest;      // only schemes of at least this many GPUs
    FixedCharge charge;
} Proposal;

// Proposes the best strategy for each maximum length, each one once, by dynamic programming over the lengths of a
// sample. Returns how many; -1 without memory or schemes.
int strategies_propose(Strategy list[HYDRAULIS_BINS], const SchemePool* pool, const Proposal* proposal,
                       const int* sample, int n_sample, Arena* arena, Err err);

// Makes the published planner's list for documents of up to `context` tokens (0: any). Its first strategy holds every
// document that any does. Returns how many, -1 without memory.
int strategies_short_list(Strategy list[HYDRAULIS_LIST], const SchemePool* pool, int context, const int* sample,
                          int n_sample, Arena* arena, Err err);

// A search for another list shares these (plan/search/strategy_search.h). idle_ranks: ranks without a pipeline; add:
// appends a strategy to list (n) unless it is there, returns how many; of_one: all pipelines are of scheme k.
int strategy_idle_ranks(const Strategy* strategy, const SchemePool* pool);
int strategies_add(Strategy* list, int n, Strategy strategy);
Strategy strategy_of_one(const SchemePool* pool, int k);
// Picks those of n strategies, whose times on batches are ms (n), that a run needs. picks (most): always the one that
// lowers the sum of the least times most, until none does by more than `worth` of it. least (batches) +=: the best time
// so far. Returns how many.
int strategies_cover(int* picks, int most, double (*ms)[HYDRAULIS_BATCHES], int n, int batches, double* least,
                     double worth);

// Fills window (ranks) with what ranks compute beside moves in a step of `tokens` tokens in documents of the mean
// length. The strategy's pipelines end together. scheme: each group's. on_links: exchanges of tensor parallelism go
// over links; else they are in the times of schemes.
void strategy_windows(MoveWindow* window, const RankStrategy* strategy, const PipelineScheme* const* scheme,
                      const LayerLayout* how, int layers, double tokens, double mean_length, int hides, int on_links);

// ---- every step

// The documents of a step, with memory for what follows.
typedef struct StepWork {
    const SchemePool* pool;
    const int* lengths;
    int n;
    double* ms;                      // (schemes, n) t(s); infinite: a micro-batch does not hold the document
    int64_t* room;                   // (schemes, n) its share of a micro-batch
    int* sorted;                     // (n) documents, the longest first
    int *order, *trial, *candidate;  // (n) scratch of dispatching and choosing
    struct Load* load;               // (ranks)
    double* pipeline_ms;             // (ranks) those of stage 1, in the order that was tried last
    double pace;                     // of the pipeline that is being packed; 1 at first
    int* pipeline_of;                // (n) of the choice
    int *docs, *first;               // (n), (ranks + 2): the documents of every pipeline, the longest first
    int* mb_of;                      // (n) micro-batches of docs, from 0 in every pipeline
    int* scratch;                    // (n) scratch of packing
    double* mb_ms;                   // (n)
    int64_t* mb_room;                // (n)
} StepWork;

// Makes *work in the arena. squares (n): PlanLimits.squares. 0, or -1 without memory.
int step_work(StepWork* work, const SchemePool* pool, const int* lengths, const double* squares, int n, Arena* arena,
              Err err);

typedef struct Choice {
    int strategy;  // -1: none holds the documents
    int empty;     // pipelines without documents
    double ms;     // of the slowest pipeline; hydraulis_choose adds Strategy.end
} Choice;

// Stage 1 sends documents to pipelines such that the largest sum of t + (pp - 1) max t is small. pipeline_of (n).
// Choice.strategy is 0, or -1 if the strategy does not hold the documents.
Choice hydraulis_dispatch(int* pipeline_of, StepWork* work, const Strategy* strategy, int shuffles, uint64_t seed);

typedef struct Packing {
    int n;       // 0: impossible
    double ms;   // of the pipeline's step
    double max;  // Z
} Packing;

// Stage 2 packs docs (n, the longest first) of one pipeline into v micro-batches, or into the best number. mb_of (n).
Packing hydraulis_pack_into(int* mb_of, StepWork* work, int scheme, const int* docs, int n, int v);
Packing hydraulis_pack(int* mb_of, StepWork* work, int scheme, const int* docs, int n);
// Sums the times of documents packed into v anew, in their order, because moves and swaps leave their rounding in
// mb_ms.
Packing hydraulis_time(const int* mb_of, StepWork* work, int scheme, const int* docs, int n, int v);

// Runs both stages for each strategy and chooses the one whose slowest pipeline ends first; see also
// SchemePool.may_be_empty. work's pipeline_of, docs, first, mb_of are then those of the choice.
Choice hydraulis_choose(StepWork* work, const Strategy* list, int n_strategies, int shuffles, uint64_t seed);
