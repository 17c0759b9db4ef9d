// published.h - the table of planners: this project's and other systems', rebuilt from their papers and released code.
// The trainer (--plan NAME), --explain, build/simulate and the benches take planners from here.
//
// Each comes to a Plan (micro-batches on contiguous ranks). What FlexSP and Megatron-LM call a micro-batch, the work of
// all ranks between two barriers, is a round here, and their plans have barriers with any ZeRO stage
// (Plan.has_barriers); Hydraulis' micro-batch is a micro-batch. Everyone pays alike: the machine's fixed cost for each
// micro-batch.
#pragma once
#include "plan/step/flex.h"

typedef struct Planner {
    const char* name;   // "static", "adaptive", "flexsp", "hydraulis", "zeppelin", "megatron", "fixed", "flex"
    const char* words;  // a line about it: what it does, whose it is
    // What is settled before the first step, in the arena, where it stays as long as the planner is used: a system may
    // look at lengths (n_sample) of the data set. NULL: impossible or out of memory, with a message. The setting
    // outlives the planner.
    void* (*open)(const Setting* setting, const int* sample, int n_sample, Arena* arena, Err err);
    // The plan, in the arena. 0, or -1 with a message.
    int (*plan)(const void* planner, Plan* plan, int64_t step, const int* lengths, int n, Arena* arena, Err err);
    // Most bytes of an arena that `plan` takes beyond planning_bytes, and that `open` takes. NULL: none; planning_bytes
    // of a document.
    size_t (*more_bytes)(int n, const PlanLimits* limits);
    size_t (*open_bytes)(const PlanLimits* limits);
} Planner;

extern const Planner* const planners[];  // n_planners of them; pointers, because those of other files are no constants
extern const int n_planners;

extern const Planner planner_static, planner_adaptive, planner_flex, planner_fixed;          // published.c
extern const Planner planner_flexsp, planner_hydraulis, planner_zeppelin, planner_megatron;  // each in its own file

const Planner* planner_named(const char* name);  // NULL: there is none
// Most bytes of arenas: for a step of n documents, planned, predicted and checked; for all that is settled before.
size_t planner_bytes(const Planner* planner, int n, const PlanLimits* limits);
size_t planner_open_bytes(const Planner* planner, const PlanLimits* limits);

// ---- what the planners share

// For systems whose groups are powers of two of the ranks: -1, and err says that none of them holds the document.
int refuse_document(int doc, int length, const PlanLimits* limits, Err err);

// For systems that know one capacity: the setting where every rank holds what those do that hold least, in *own, with
// groups from the arena where ranks are unlike. 0, or -1 without memory.
int planner_alike(Setting* own, const Setting* setting, Arena* arena, Err err);

// The documents in this order, each to the micro-batch that mb_of (n, by document) says: fills plan->docs, and
// first_doc and n_docs of its micro-batches, which are 0 before.
void plan_fill(Plan* plan, const int* order, const int* mb_of);

// For planners whose state is the setting.
void* planner_open_setting(const Setting* setting, const int* sample, int n_sample, Arena* arena, Err err);

// ---- parts of FlexSP that can be proven by themselves, see flexsp.c. Where memory is missing they return any valid
// answer, and arena_check says so.

enum {
    FLEXSP_CP_SIZES = 24,       // powers of two
    FLEXSP_BUCKETS = 16,        // the number that is tried first
    FLEXSP_MOST_BUCKETS = 256,  // from here on documents go without buckets
    FLEXSP_TRIALS = 5,          // M' of the paper
    FLEXSP_ENUMERATED = 128,    // ranks up to which all partitions are tried
    FLEXSP_BEAM = 8             // partitions that are kept beyond
};

// ms: NULL, or what FlexSP expects: slowest groups and fixed costs of all rounds. no_buckets: each document is one, so
// that trials can be checked by themselves; 0: as published. 0, or -1 with a message that names the document and the
// limit.
int flexsp_plan(Plan* plan, double* ms, int64_t step, const int* lengths, int n, const Setting* setting, int no_buckets,
                Arena* arena, Err err);

// Buckets of lengths (n), descending: runs, each counted as its longest member, with the least total over-statement
// (Eq. 15). Takes the least number, from `least` on, whose tokens so counted are at most most_tokens; n of one document
// each when that takes FLEXSP_MOST_BUCKETS. first (n + 1): where each begins, and n. Returns the number.
int flexsp_buckets(int* first, const int* lengths, int n, int least, int64_t most_tokens, Arena* arena);
// first (m + 1): where each of m rounds begins, and n. Contiguous runs of lengths (n) in the order of cutting, whose
// largest sum of tokens is the least; the later ones are filled first.
void flexsp_chunks(int* first, const int* lengths, int n, int m);
// The least number of contiguous runs of at most `capacity` tokens. n + 1 when a document is longer than that.
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
    int64_t* takes;      // (buckets, cp sizes) of a rank
    double* least_work;  // (cp sizes, n + 1) rank-ms of documents i .. n - 1 on groups of cp size c or wider, at least
} FlexspBatch;

// Fills it, in the arena, for lengths (n), longest first, in buckets by flexsp_buckets.
void flexsp_batch(FlexspBatch* batch, const int* lengths, int n, const int* first, int n_buckets,
                  const FlexspCpSizes* cp_sizes, Arena* arena);

// Calls visit with every way to write `ranks` as a sum of powers of two, counts[c] parts of 1 << c for c < n_cp_sizes.
void flexsp_partitions(int ranks, int n_cp_sizes, void (*visit)(void* of, const int* counts), void* of);

// The best partition of the ranks that was found: counts (cp sizes), and for each document the number of its group,
// groups numbered from the widest to the narrowest. Returns the time of the slowest group, INFINITY when no partition
// holds the documents. enumerated: the most ranks for which all partitions are tried (FLEXSP_ENUMERATED).
double flexsp_groups(const FlexspCpSizes* cp_sizes, const FlexspBatch* batch, int enumerated, int* counts,
                     int* group_of, Arena* arena);

// ---- parts of Zeppelin, see zeppelin.c

// Time of a transfer between nodes through `proxies` ranks on each side: dispatch, transfer, combine. In units of a
// direct transfer; inside: that of a byte inside a node in the same units.
double zeppelin_routed(int proxies, int nics, double inside);

// Documents shorter than `inside` tokens stay on a rank, from `across` on they may be cut across nodes, those between
// are cut inside one. inside <= across.
typedef struct ZeppelinZones {
    int inside, across;
} ZeppelinZones;

// Routed over direct time of communication across nodes, at the best number of proxies; 1 on one node.
double zeppelin_across_scale(const Setting* setting);
// Where the cost curves of the setting cross: see zeppelin.c.
ZeppelinZones zeppelin_zones(const Setting* setting, double across_scale);

typedef enum ZeppelinQueue { QUEUE_ACROSS, QUEUE_INSIDE, QUEUE_LOCAL, N_QUEUES } ZeppelinQueue;

typedef struct ZeppelinWindow {
    int first_rank, cp_size;
    ZeppelinQueue queue;  // in the order in which a rank works on them
} ZeppelinWindow;

// The ranks of every document: windows (n) for documents (n), the longest first, and their lengths, sorted. zones fall
// where ranks overflow: they come back as they were in the end. 0, or -1 with a message (a document is too long for all
// ranks, no memory).
int zeppelin_partition(ZeppelinWindow* windows, ZeppelinZones* zones, const int* documents, const int* sorted, int n,
                       const PlanLimits* limits, Arena* arena, Err err);
