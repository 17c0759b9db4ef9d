// plan.h - a step's plan: which ranks share which documents. A pure value, made from lengths alone, the same on every
// rank.
//
// A micro-batch is some documents on a group of `cp_size` contiguous ranks. All micro-batches of a rank with the same
// round are one pass through the model: one row holds their tokens one after another, and attention goes group by
// group. A rank runs its passes in ascending order of rounds.
//
// In every layer of a pass, forward and backward, a rank first posts the first exchange of each shared micro-batch.
// Then, again one after another, it posts what each still has to exchange (group_attention.h). Both times it
// follows one global order (pass_order). Exchanges of a rank run one after another as they were posted, and a rank
// waits only for exchanges that it has posted. So it cannot deadlock. All exchanges of a step have one order: by round,
// forward or backward (in a pipeline by task of the stage), layer, first or later, place of the micro-batch, number.
// Every rank posts its own in that order. Suppose that some never end, and let x be the first of them. A rank of x that
// has not posted x waits for one that it posted before; that one precedes x, so it ends. So all ranks of x post it, all
// they posted before x ends too, and x runs: a contradiction. If every rank chose its own order, two might wait for
// each other.
#pragma once
#include "plan/base/base.h"

typedef struct MicroBatch {
    int first_rank, cp_size;
    int ulysses_size;       // ranks that share heads; divides cp size, at most kv_heads. The other factor is a ring of
                            // cp size / ulysses_size: see kernels/comm/group_attention.h
    int first_doc, n_docs;  // its documents: Plan.docs[first_doc .. first_doc + n_docs), at least one
    int round;              // number of the pass
} MicroBatch;

enum { MOST_SHARED = 32 };  // most micro-batches that one rank shares with others in one pass

typedef enum CpKind { CP_LOCAL, CP_ULYSSES, CP_RING, CP_ULYSSES_RING } CpKind;
CpKind cp_kind(const MicroBatch* mb);
const char* cp_kind_name(CpKind kind);  // "local", "ulysses", "ring", "ulysses x ring"

typedef struct Plan {
    int64_t step;
    int ranks, n_docs, n_micro_batches, n_rounds;
    int has_barriers;           // all ranks end a round before any begins the next, whatever the ZeRO stage
    int* docs;                  // (n_docs) indices into the step's lengths, each once
    const double* squares;      // (n_docs) PlanLimits.squares
    MicroBatch* micro_batches;  // (n_micro_batches) at most n_docs
    // The Placement of each micro-batch, if any is unusual: placement_ints of micro-batch i from placed[placed_at[i]]
    // on. NULL: all are usual.
    int *placed, *placed_at;  // (n_placed), (n_micro_batches)
    int n_placed;
} Plan;

// The limits that every plan must respect.
typedef struct PlanLimits {
    int ranks;
    int node_size;      // ranks of a node: contiguous, the last node may have fewer
    int capacity;       // most tokens of a rank in one pass, and most (token, kv head) pairs / kv_heads in attention;
                        // if ranks differ, the smallest rank's
    int kv_heads;       // key/value heads, which ranks share; in tensor-parallel groups the fewest of any rank
    int max_ring_docs;  // most documents in all micro-batches of a rank that are rings (ring_size > 1)
    double quadratic;   // cost of a document of s tokens is s + quadratic s^2, in units of a token without attention
    const int* capacities;  // (ranks) capacity of each; NULL: `capacity` for all
    // (lengths) what stands for s^2 in the cost of each document: twice its pairs of a token and one that it sees, at
    // most s^2 (Piece.squares). NULL: s^2 for all, no document is a tree.
    const double* squares;
} PlanLimits;

static inline int rank_capacity(const PlanLimits* limits, int rank) {
    return limits->capacities ? limits->capacities[rank] : limits->capacity;
}
// Capacity of every rank in a group. Ranks have equal shares of its tokens, so the smallest rank decides.
int group_capacity(const PlanLimits* limits, int first_rank, int n);
// The largest group_capacity of any n contiguous ranks.
int widest_capacity(const PlanLimits* limits, int n);
// The same limits with one capacity for every rank. Functions that check what fits (below) take those of a group.
static inline PlanLimits limits_at(const PlanLimits* limits, int capacity) {
    PlanLimits own = *limits;
    own.capacity = capacity, own.capacities = NULL;
    return own;
}

// An empty plan with room for n documents in the arena; arena_check says whether there was memory.
void plan_take(Plan* plan, int n, Arena* arena);
// Copies the plan into the arrays of `to`, which have room for as many documents.
void plan_copy(Plan* to, const Plan* from);

// The planners return 0, or -1 with a message that names the document and the limit. lengths (n), each at least 1. The
// plan lies in the arena. A planner that returns 0 has given back whatever else it took, here and below.

typedef enum CpChoice { CP_CHOICE_AUTO, CP_CHOICE_ULYSSES, CP_CHOICE_RING } CpChoice;
// Plans one cp size for all documents (0: the least that holds the longest one) in best-fit packed rows. Rows go to the
// ranks / cp size groups, heaviest first to the least loaded. Kind auto: ulysses while cp size <= kv_heads and inside a
// node, a ring if heads do not suffice, both across nodes.
int plan_static(Plan* plan, int64_t step, const int* lengths, int n, const PlanLimits* limits, int cp_size,
                CpChoice kind, Arena* arena, Err err);

// Makes every micro-batch a pass of its own: each gets the earliest round in which all its ranks are free, in the order
// of micro-batches. With layerwise gathers (ZeRO-2 and 3) all ranks are in the same round, and those without a
// micro-batch run an empty pass; else a rank goes on with its next. 0, or -1 without memory.
int plan_set_rounds(Plan* plan, Arena* arena, Err err);
// The one order in which ranks post exchanges: by round; within it micro-batches across nodes, then inside one, then of
// one rank; else as in the list. order (n_micro_batches) =; 0, or -1 without memory.
int pass_order(const Plan* plan, int node_size, int* order, Arena* arena, Err err);

// Equal on all ranks exactly when plan and lengths are.
uint64_t plan_hash(const Plan* plan, const int* lengths);

// The squares of a document of s tokens over s: s itself, but for a tree the tokens of a plain document of equal cost.
static inline double seen_tokens(const double* squares, int doc, int s) { return squares ? squares[doc] / s : s; }

// The sum of the lengths of a micro-batch's documents, and the sum of their squares.
typedef struct LengthSums {
    double tokens, squares;
} LengthSums;
LengthSums micro_batch_sums(const Plan* plan, const MicroBatch* mb, const int* lengths);

// ---- what one rank holds of a micro-batch

// A run of tokens of one document.
typedef struct Span {
    int doc;     // index into the step's lengths
    int first;   // index of its first token in the document
    int length;  // at least 1
} Span;

// How a micro-batch is divided, in integers, nothing of it necessarily even. Attention is causal: early tokens see few
// keys, late ones many. A document is cut into chunks, and each chunk belongs to one ring rank, which holds its chunks
// of all documents in ascending order. The ulysses ranks of a ring rank divide this run of tokens, and the heads.
// Without a ring the document is the one chunk.
typedef struct Placement {
    int n_chunks;
    int* head_border;   // (ulysses_size + 1) in key/value heads: ulysses rank b computes border b up to border b + 1
    int* token_border;  // (ring_size, ulysses_size + 1) in tokens of a ring rank, likewise
    int* owner;         // (n_chunks) the ring rank of each chunk
    int* chunk_border;  // (n_docs, n_chunks + 1) in tokens of a document
} Placement;

size_t placement_ints(const MicroBatch* mb);
// The plan's own placement, or the usual one, taken from the arena (arena_check). kv_heads: PlanLimits's.
Placement micro_batch_placement(const Plan* plan, const MicroBatch* mb, const int* lengths, int kv_heads, Arena* arena);
// The plan's own placement, to be filled. Needs plan->placed_at.
Placement plan_placement(const Plan* plan, const MicroBatch* mb);
// The one rank that computes all heads of a micro-batch whose tokens lie on others (plan/step/remap.h). -1: heads or
// chunks are divided, or one rank has all.
int remapped_to(const Plan* plan, const MicroBatch* mb);
// Fills in even heads, even tokens, and the zigzag (picture in plan.c).
void fill_usual_placement(const Placement* p, const Plan* plan, const MicroBatch* mb, const int* lengths, int kv_heads);

// The usual start of chunk j of a document of s tokens cut into 2 * ring_size chunks, j in [0, 2 * ring_size]: floor(j
// s / (2 ring_size)). Borders at multiples of a kernel's tile would cost more than they save. Rounded to 128, the
// busiest of 8 ring ranks had 1.8 times the mean work from 256 ring_size tokens on, and 1.1 times at 2048 ring_size.
int chunk_border(int s, int ring_size, int j);

typedef struct Share {
    int ulysses_size, ring_size, ring_rank, ulysses_rank;  // see kernels/comm/group_attention.h
    int n;                                                 // tokens of this rank
    int ring_n;                                            // tokens of all ulysses ranks of this ring rank
    int n_spans;
} Share;

// The share of `rank`, which must be one of the micro-batch's. spans, in the order of the rank's tokens: NULL, or room
// for as many as the rank has tokens, at most n_docs of each chunk.
Share micro_batch_share(const Plan* plan, const MicroBatch* mb, const Placement* p, int rank, Span* spans);
// Fills cu_seqlens as group attention wants them, an array for each chunk: n_chunks (n_docs + 1) values.
void micro_batch_cu(const Placement* p, const MicroBatch* mb, int* cu);

// The load of a pass on a rank: its tokens, and its pairs of token and key/value head in attention. A ring passes every
// block by each rank, so the widest block counts.
typedef struct PassLoad {
    int64_t tokens, pairs;
} PassLoad;
// Adds micro-batch i to loads (of all ranks); the arena is for scratch. 0, or -1 without memory.
int plan_add_load(PassLoad* loads, const Plan* plan, int i, const int* lengths, const PlanLimits* limits, Arena* arena);
void micro_batch_load(PassLoad* loads, const MicroBatch* mb, const Placement* p);
static inline int load_fits(const PassLoad* load, const PlanLimits* limits, int rank) {
    int64_t capacity = rank_capacity(limits, rank);
    return load->tokens <= capacity && load->pairs <= capacity * limits->kv_heads;
}

// ---- what the planners share: which documents a group of ranks can hold
//
// A group with `ulysses_size` ranks for the heads holds documents if no rank of its ring has more than
// ring_rank_capacity of their tokens. A document of s tokens takes widest_ring_rank(s, ring_size) of that; a row fits
// if the sum does. These functions look at PlanLimits.capacity alone, which must be the group's (limits_at).

// Most tokens of a ring rank, all its ulysses ranks together. Attention over them, at ceil(kv_heads / ulysses_size)
// heads a rank, is capacity * kv_heads pairs. It is never more than ulysses_size * capacity, so each rank has at most
// capacity tokens.
int64_t ring_rank_capacity(const PlanLimits* limits, int ulysses_size);
// Most tokens that one rank of a ring of `ring_size` has of a document of s tokens.
int widest_ring_rank(int s, int ring_size);
// The greatest length up to s that fits a group by itself. 1 always does.
int longest_fitting(const PlanLimits* limits, int s, int ulysses_size, int ring_size);
// The least --capacity with which a group holds a document of s tokens by itself.
int64_t capacity_for(const PlanLimits* limits, int s, int ulysses_size, int ring_size);

// The groups of each cp size that a planner has.
typedef struct GroupChoices {
    int *ulysses_sizes,
        *capacities;  // (ranks + 1) ranks that share heads, 0: no such group; capacity of the largest such group
    int first, last;  // cp sizes
    const char* how;  // what --cp says of these groups; NULL: nothing
} GroupChoices;

// Returns -1 with words: none of these groups holds document `doc` of s tokens.
int refuse_length(int doc, int s, const PlanLimits* limits, const GroupChoices* groups, Err err);

// Checks limits, lengths of at least 1, and that an int counts all tokens. 0, or -1 with words.
int check_lengths(const int* lengths, int n, const PlanLimits* limits, Err err);

// Calls check_lengths, then makes an empty plan of this step in the arena.
int plan_begin(Plan* plan, int64_t step, const int* lengths, int n, const PlanLimits* limits, Arena* arena, Err err);

// ---- a seam for tests: NULL in the program. build/.../train_checked proves every plan and every schedule before it
// runs, and runs any plan in place of the planner's (test/checked.c).

struct Schedule;  // plan/value/tasks.h
struct Pipeline;
typedef struct PlanChecks {
    // NULL: the planner plans.
    int (*plan)(Plan* plan, int64_t step, const int* lengths, int n, const PlanLimits* limits, uint64_t seed,
                Arena* arena, Err err);
    int (*check)(const Plan* plan, const int* lengths, int n, const PlanLimits* limits, Arena* arena, Err err);
    int (*check_schedule)(const struct Schedule* schedule, const struct Pipeline* pipeline, Arena* arena, Err err);
} PlanChecks;
extern const PlanChecks* plan_checks;
