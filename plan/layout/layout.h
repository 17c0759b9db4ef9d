// layout.h - who runs which layers, and how: a small file that one can write, check and give to a run (--layout FILE).
//
//   # a comment
//   tp 2
//   stage layers 3 zero 1 recompute none
//   stage zero 3
//     layers 1 tp 1 recompute block
//     layers 2 zero 1
//
// or in one line, with ; for line ends: "tp 2; stage layers 3 zero 1; stage zero 3; layers 1; layers 2".
//
// Each stage of the pipeline has a line, in order; if its layers differ, each run of like layers has a line below it.
// All stages have equally many ranks, in groups of `tp`. A layer's `tp` T divides the group's R: T ranks, a cut, divide
// its weights, and the R / T cuts share its tokens (run/model/model.h). `zero` says what ranks with the same weights
// divide, `recompute` what they compute again. A layer's line that leaves something out takes it from its stage's line,
// and that from the options; `tp` is then the group's. The whole group cuts embedding and classifier, and the stage's
// `zero` divides them.
#pragma once
#include "plan/model/split.h"

enum { MOST_STAGES = 64, MOST_LAYERS = 1000, LAYOUT_TEXT = (MOST_STAGES + MOST_LAYERS) * 64 };

typedef struct StageLayout {
    int layers, zero;  // zero is that of embedding and classifier
} StageLayout;

typedef struct Layout {
    int tp, stages;  // tp: ranks of a group
    StageLayout stage[MOST_STAGES];
    LayerLayout layer[MOST_LAYERS];
} Layout;

extern const char* const recompute_names[];  // by Recompute

// Makes `stages` (at most L) stages, all with the same tp, zero and recompute. They share the matmuls' work, the
// classifier's too, as evenly as whole layers allow: the largest share is least.
Layout layout_even(const Shape* whole, int tp, int stages, int zero, Recompute recompute);
// The first layer of stage s; L for s = stages.
int layout_first(const Layout* layout, int s);
// Gives stage s n layers, all like `row`; the stages before it must have theirs.
void layout_set_stage(Layout* layout, int s, int n, LayerLayout row);
// The share of stage s's layers whose forward pass is computed twice.
double layout_again(const Layout* layout, int s);
// The number of layers from l on, within its stage, that are like it.
int layout_run(const Layout* layout, int l);
// Fills in (stages) each stage's shares of a token's matmuls and of the layers.
void layout_shares(const Layout* layout, const Shape* whole, double* matmuls, double* layers);

// `otherwise` fills in what the text leaves out. 0, or -1 with the line, what was expected and found.
int layout_parse(Layout* layout, const Layout* otherwise, const char* text, size_t n, Err err);
// Writes what layout_parse reads back, at most LAYOUT_TEXT bytes. Returns the length that it wanted, as snprintf.
size_t layout_print(const Layout* layout, char* text, size_t bytes);
// The same in one line. Returns 1 if all of it is there.
int layout_print_line(const Layout* layout, char* text, size_t bytes);
// Checks that `ranks` ranks can run this model by it. 0, or -1 with words.
int layout_check(const Layout* layout, const Shape* whole, int ranks, Err err);

// The pace of the ranks with one place in all stages; the one in stage s computes at speed[s * stride]. It is the
// longest stage's time at full pace over the longest stage's time now.
double layout_pace(const Layout* layout, const Shape* whole, const double* speed, int stride);

// ---- what --strategies says: ways to divide all ranks among pipelines; every step takes one
//
//   tp4+2xtp2; tp2pp2+2xtp1pp2; 8xtp1        or a file with one a line; # begins a comment
//
// A strategy is a sum of groups of like pipelines, in the order of ranks: "2xtp2pp3" are two pipelines of three stages,
// each stage a tensor-parallel group of two ranks, 12 ranks in all. The pipelines of a group are its data ranks: they
// may share documents. Every strategy uses all ranks.
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
// Returns the group that a rank is in; *place: its number there.
int strategy_group(const RankStrategy* strategy, int rank, int* place);

// 0, or -1 with what was expected and found.
int strategies_parse(StrategyList* list, const char* text, size_t n, Err err);
// Checks that `ranks` ranks can run this model by each of them. 0, or -1 with words.
int strategies_check(const StrategyList* list, const Shape* whole, int ranks, Err err);
// Prints it as it could be typed, at most STRATEGY_TEXT bytes.
enum { STRATEGY_TEXT = 256 };
const char* strategy_print(const RankStrategy* strategy, char text[STRATEGY_TEXT]);
