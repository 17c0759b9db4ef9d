// strategies.h - what --strategies says: ways to divide all ranks among pipelines, of which every step takes one.
//
//   tp4+2xtp2; tp2pp2+2xtp1pp2; 8xtp1        or a file with one a line; # begins a comment
//
// A strategy is a sum of groups of like pipelines, in the order of ranks: "2xtp2pp3" are two pipelines of three stages,
// each stage a tensor-parallel group of two ranks, 12 ranks in all. The pipelines of a group are its data ranks: they
// may share documents. Every strategy uses all ranks.
#pragma once
#include "plan/model/shape.h"

enum { MOST_RANK_STRATEGIES = 16, MOST_PIPELINE_GROUPS = 8 };

typedef struct PipelineGroup {
    int copies, tp, pp;
} PipelineGroup;

typedef struct RankStrategy {
    int n;
    PipelineGroup group[MOST_PIPELINE_GROUPS];
} RankStrategy;

typedef struct StrategyList {
    int n;
    RankStrategy strategy[MOST_RANK_STRATEGIES];
} StrategyList;

static inline int group_ranks(const PipelineGroup* g) { return g->copies * g->tp * g->pp; }
int strategy_ranks(const RankStrategy* strategy);
// Which group a rank is in, and its number there.
int strategy_group(const RankStrategy* strategy, int rank, int* place);

// 0, or -1 with what was expected and found.
int strategies_parse(StrategyList* list, const char* text, size_t n, Err err);
// Whether `ranks` ranks can run this model by each of them. 0, or -1 with words.
int strategies_check(const StrategyList* list, const Shape* whole, int ranks, Err err);
// As it could be typed, at most STRATEGY_TEXT bytes.
enum { STRATEGY_TEXT = 256 };
const char* strategy_print(const RankStrategy* strategy, char text[STRATEGY_TEXT]);
