// published.h - the table of planners: this project's and other systems', rebuilt from their papers and released code.
// The trainer (--plan NAME), --explain, build/simulate and the benches take planners from here.
//
// Each makes a Plan (micro-batches on contiguous ranks). The micro-batch of FlexSP and Megatron-LM, the work of all
// ranks between two barriers, is a round here, and their plans have barriers with any ZeRO stage (Plan.has_barriers).
// Hydraulis' micro-batch is a micro-batch. All pay alike: the machine's fixed cost for each micro-batch.
#pragma once
#include "plan/step/flex.h"

typedef struct Planner {
    const char* name;   // "static", "adaptive", "flexsp", "hydraulis", "zeppelin", "megatron", "fixed", "flex"
    const char* words;  // a line about it: what it does, whose it is
    // Makes the planner's state before the first step, in the arena, where it stays as long as the planner is used. A
    // system may look at lengths (n_sample) of the data set. NULL: impossible or no memory, with a message. The setting
    // outlives the planner.
    void* (*open)(const Setting* setting, const int* sample, int n_sample, Arena* arena, Err err);
    // Makes the plan, in the arena. 0, or -1 with a message.
    int (*plan)(const void* planner, Plan* plan, int64_t step, const int* lengths, int n, Arena* arena, Err err);
    // The most bytes of an arena that `plan` takes beyond planning_bytes (NULL: none), and that `open` takes (NULL:
    // planning_bytes of a document).
    size_t (*more_bytes)(int n, const PlanLimits* limits);
    size_t (*open_bytes)(const PlanLimits* limits);
} Planner;

extern const Planner* const planners[];  // (n_planners) pointers, because planners of other files are no constants
extern const int n_planners;

extern const Planner planner_static, planner_adaptive, planner_flex, planner_fixed;          // published.c
extern const Planner planner_flexsp, planner_hydraulis, planner_zeppelin, planner_megatron;  // each in its own file

const Planner* planner_named(const char* name);  // NULL: there is none
// The most bytes of arenas: for a step of n documents, planned, predicted and checked; for the state made before.
size_t planner_bytes(const Planner* planner, int n, const PlanLimits* limits);
size_t planner_open_bytes(const Planner* planner, const PlanLimits* limits);

// ---- what the planners share

// Returns -1, and err says that no group holds the document; for systems whose groups are powers of two of the ranks.
int refuse_document(int doc, int length, const PlanLimits* limits, Err err);

// For systems that know one capacity: sets *own to the setting with the least capacity for every rank. If ranks are
// unlike, its groups come from the arena. 0, or -1 without memory.
int planner_alike(Setting* own, const Setting* setting, Arena* arena, Err err);

// Puts the documents, in this order, into the micro-batches of mb_of (n, by document). It fills plan->docs, and
// first_doc and n_docs of the micro-batches, which must be 0 before.
void plan_fill(Plan* plan, const int* order, const int* mb_of);

// The `open` of planners whose state is the setting.
void* planner_open_setting(const Setting* setting, const int* sample, int n_sample, Arena* arena, Err err);

// ---- parts of FlexSP that can be proven by themselves, see flexsp.c. Without memory they return any valid answer, and
// arena_check says so.

enum {
    FLEXSP_CP_SIZES = 24,       // powers of two
    FLEXSP_BUCKETS = 16,        // the number that is tried first
    FLEXSP_MOST_BUCKETS = 256,  // from here on documents go without buckets
    FLEXSP_TRIALS = 5,          // M' of the paper
    FLEXSP_ENUMERATED = 128,    // ranks up to which all partitions are tried
    FLEXSP_BEAM = 8             // partitions that are kept beyond
};

// Plans a step. ms: NULL, or FlexSP's expectation: slowest groups and fixed costs of all rounds. no_buckets: each
// document is a bucket, so that trials can be checked by themselves; 0: as published. 0, or -1 with a message that
// names the document and the limit.
int flexsp_plan(Plan* plan, double* ms, int64_t step, const int* lengths, int n, const Setting* setting, int no_buckets,
                Arena* arena, Err err);

// Cuts lengths (n), descending, into buckets: runs, each counted as its longest member, with the least total
// over-statement (Eq. 15). It takes the least number, from `least` on, whose tokens so counted are at most most_tokens;
// n if that takes FLEXSP_MOST_BUCKETS. first (n + 1): where each begins, and n. Returns how many.
int flexsp_buckets(int* first, const int* lengths, int n, int least, int64_t most_tokens, Arena* arena);
// Cuts lengths (n) into m rounds, contiguous runs whose largest sum of tokens is least; later runs are filled first.
// first (m + 1): where each begins, and n.
void flexsp_chunks(int* first, const int* lengths, int n, int m);
// The least number of contiguous runs of at most `capacity` tokens; n + 1 if a document is longer than that.
int flexsp_least_chunks(const int* lengths, int n, int64_t capacity);

typedef struct FlexspCpSizes {
    int n, ranks;
    int cp_size[FLEXSP_CP_SIZES], ulysses_size[FLEXSP_CP_SIZES], ring_size[FLEXSP_CP_SIZES];
    double quadratic[FLEXSP_CP_SIZES], linear[FLEXSP_CP_SIZES];  // ms a token^2, a token
    int64_t room[FLEXSP_CP_SIZES];                               // tokens of a rank
} FlexspCpSizes;

void flexsp_cp_sizes(FlexspCpSizes* cp_sizes, const Setting* setting);

// The documents of a round, longest first; those of a bucket are alike.
typedef struct FlexspBatch {
    int n;
    int* bucket;         // (n) of each document
    double* ms;          // (buckets, cp sizes) a document adds to a group of that cp size
    int64_t* takes;      // (buckets, cp sizes) tokens of a rank
    double* least_work;  // (cp sizes, n + 1) least rank-ms of documents i .. n - 1 on groups of cp size c or wider
} FlexspBatch;

// Fills it, in the arena, for lengths (n), longest first, in buckets by flexsp_buckets.
void flexsp_batch(FlexspBatch* batch, const int* lengths, int n, const int* first, int n_buckets,
                  const FlexspCpSizes* cp_sizes, Arena* arena);

// Calls visit with every way to write `ranks` as a sum of powers of two, counts[c] parts of 1 << c for c < n_cp_sizes.
void flexsp_partitions(int ranks, int n_cp_sizes, void (*visit)(void* of, const int* counts), void* of);

// Finds a good partition of the ranks: counts (cp sizes), and for each document the number of its group, from the
// widest to the narrowest. Returns the time of the slowest group, INFINITY if no partition holds the documents.
// enumerated: the most ranks for which all partitions are tried (FLEXSP_ENUMERATED).
double flexsp_groups(const FlexspCpSizes* cp_sizes, const FlexspBatch* batch, int enumerated, int* counts,
                     int* group_of, Arena* arena);

// ---- parts of Zeppelin, see zeppelin.c

// The time of a transfer between nodes through `proxies` ranks on each side (dispatch, transfer, combine), in units of
// a direct transfer. inside: the time of a byte inside a node, in the same units.
double zeppelin_routed(int proxies, int nics, double inside);

// Documents shorter than `inside` tokens stay on a rank; from `across` on they may be cut across nodes; those between
// are cut inside one. inside <= across.
typedef struct ZeppelinZones {
    int inside, across;
} ZeppelinZones;

// The routed over the direct time of communication across nodes, at the best number of proxies; 1 on one node.
double zeppelin_across_scale(const Setting* setting);
// The lengths at which the cost curves of the setting cross: see zeppelin.c.
ZeppelinZones zeppelin_zones(const Setting* setting, double across_scale);

typedef enum ZeppelinQueue { QUEUE_ACROSS, QUEUE_INSIDE, QUEUE_LOCAL, N_QUEUES } ZeppelinQueue;

typedef struct ZeppelinWindow {
    int first_rank, cp_size;
    ZeppelinQueue queue;  // in the order in which a rank works on them
} ZeppelinWindow;

// Chooses the ranks of every document: windows (n) for documents (n), the longest first, and their lengths, sorted.
// zones fall if ranks overflow, and come back as they end. 0, or -1 with a message (a document is too long for all
// ranks, no memory).
int zeppelin_partition(ZeppelinWindow* windows, ZeppelinZones* zones, const int* documents, const int* sorted, int n,
                       const PlanLimits* limits, Arena* arena, Err err);
