// plan.h - a step's plan: which ranks share which documents. A pure value, made from lengths alone, the same on every
// rank.
//
// A micro-batch is some documents on a group of `cp_size` contiguous ranks. All micro-batches of a rank with the same
// round are one pass through the model: their tokens stand behind one another in one row, and attention goes group by
// group. A rank runs its passes in ascending order of rounds.
//
// In every layer of a pass, forward and backward, a rank first posts the first exchange of each shared micro-batch, and
// then, again one after another, what each still has to exchange (group_attention.h). Both times it follows one
// global order (pass_order). Exchanges of a rank run one after another as they were posted, and a rank waits only for
// exchanges that it has posted. So it cannot deadlock: all exchanges of a step have one order, by round, forward or
// backward (in a pipeline by task of the stage), layer, first or later, place of the micro-batch, number; every rank
// posts its own in that order. Suppose that some exchanges never end, and let x be the first of them in that order. A
// rank of x that has not posted it waits for one that it posted before, which stands before x and ends: so all ranks of
// x come to post it. Whatever they posted before x ends too, so x runs: a contradiction. Where every rank could choose
// its own order, two ranks might each wait for the other in another micro-batch.
#pragma once
#include "plan/base/base.h"

typedef struct MicroBatch {
    int first_rank, cp_size;
    int ulysses_size;       // ranks that share heads; divides cp size, at most kv_heads. The other factor is a ring of
                            // cp size / ulysses_size: see kernels/comm/group_attention.h
    int first_doc, n_docs;  // its documents: Plan.docs[first_doc .. first_doc + n_docs), at least one
    int round;              // the number of the pass
} MicroBatch;

enum { MOST_SHARED = 32 };  // micro-batches of a rank and pass that it shares with others

typedef enum CpKind { CP_LOCAL, CP_ULYSSES, CP_RING, CP_ULYSSES_RING } CpKind;
CpKind cp_kind(const MicroBatch* mb);
const char* cp_kind_name(CpKind kind);  // "local", "ulysses", "ring", "ulysses x ring"

typedef struct Plan {
    int64_t step;
    int ranks, n_docs, n_micro_batches, n_rounds;
    int has_barriers;           // all ranks end a round before any begins the next, whatever the ZeRO stage
    int* docs;                  // (n_docs) indices into the lengths of the step, each once
    const double* squares;      // (n_docs) PlanLimits.squares
    MicroBatch* micro_batches;  // (n_micro_batches) at most n_docs
    // What each rank holds, where it is not the usual (see Placement): placement_ints of each micro-batch, from
    // placed[placed_at[i]] on. NULL: all have the usual.
    int *placed, *placed_at;  // (n_placed), (n_micro_batches)
    int n_placed;
} Plan;

// What every plan must respect.
typedef struct PlanLimits {
    int ranks;
    int node_size;      // ranks of a node: contiguous, the last node may have fewer
    int capacity;       // most tokens of a rank in one pass, most (token, kv head) pairs / kv_heads in attention; where
                        // ranks hold unlike much, of those that hold least
    int kv_heads;       // key/value heads, which ranks share; in tensor-parallel groups the fewest that a rank has
    int max_ring_docs;  // most documents in all micro-batches of a rank that are rings (ring_size > 1)
    double quadratic;   // cost of a document of s tokens is s + quadratic s^2, in units of a token without attention
    const int* capacities;  // (ranks) capacity of each; NULL: all hold `capacity`
    // Of each length that a plan is asked for, what stands for s^2 in its cost: twice the pairs of a token and one that
    // it sees, at most s^2 (Piece.squares). NULL: s^2 of all, no document is a tree.
    const double* squares;
} PlanLimits;

static inline int rank_capacity(const PlanLimits* limits, int rank) {
    return limits->capacities ? limits->capacities[rank] : limits->capacity;
}
// Of each rank of a group: they have equal shares of its tokens, so all hold what the least of them does.
int group_capacity(const PlanLimits* limits, int first_rank, int n);
// The most that this is for any n contiguous ranks.
int widest_capacity(const PlanLimits* limits, int n);
// The same limits where every rank holds so much: those of a group, which what fits (below) is asked with.
static inline PlanLimits limits_at(const PlanLimits* limits, int capacity) {
    PlanLimits own = *limits;
    own.capacity = capacity, own.capacities = NULL;
    return own;
}

// An empty plan with room for n documents in the arena; arena_check says whether there was memory.
void plan_take(Plan* plan, int n, Arena* arena);
// The same plan in the arrays of `to`, which have room for as many documents.
void plan_copy(Plan* to, const Plan* from);

// The planners: 0, or -1 with a message that names the document and the limit. lengths (n), each at least 1. The plan
// lies in the arena; whatever else a planner took of it has been given back when it returns 0, here and below.

typedef enum CpChoice { CP_CHOICE_AUTO, CP_CHOICE_ULYSSES, CP_CHOICE_RING } CpChoice;
// One cp size for all documents (0: the least that holds the longest one), best-fit packed rows, rows dealt to the
// ranks / cp size groups, the heaviest first to the least loaded. Kind auto: ulysses while cp size <= kv_heads and
// inside a node, a ring where heads do not suffice, both across nodes.
int plan_static(Plan* plan, int64_t step, const int* lengths, int n, const PlanLimits* limits, int cp_size,
                CpChoice kind, Arena* arena, Err err);

// Every micro-batch a pass of its own: each gets the earliest round in which all its ranks are free, in the order of
// micro-batches. Where parameters or gradients are gathered layer by layer (ZeRO-2 and 3) all ranks are in the same
// round, and those without a micro-batch run an empty pass; else a rank goes on with its next. 0, or -1 without memory.
int plan_set_rounds(Plan* plan, Arena* arena, Err err);
// The one order in which ranks post exchanges: by round; of a round those across nodes, then those inside one, then
// micro-batches of one rank; else as in the list. order (n_micro_batches) =; 0, or -1 without memory.
int pass_order(const Plan* plan, int node_size, int* order, Arena* arena, Err err);

// Equal on all ranks exactly when plan and lengths are.
uint64_t plan_hash(const Plan* plan, const int* lengths);

// Of a document of s tokens, its squares over s: as many tokens as it has, of a tree as many as one of its cost would.
static inline double seen_tokens(const double* squares, int doc, int s) { return squares ? squares[doc] / s : s; }

// Of the lengths of a micro-batch's documents: their sum, and the sum of their squares.
typedef struct LengthSums {
    double tokens, squares;
} LengthSums;
LengthSums micro_batch_sums(const Plan* plan, const MicroBatch* mb, const int* lengths);

// ---- what one rank holds of a micro-batch

// A run of tokens of one document.
typedef struct Span {
    int doc;     // index into the lengths of the step
    int first;   // its first token in the document
    int length;  // at least 1
} Span;

// How a micro-batch is divided, as integers that nothing has to be even in. Attention is causal: early tokens see few
// keys, late ones many. A document is cut into chunks, and each chunk belongs to one ring rank, which holds its chunks
// in ascending order, each of all documents. The ulysses ranks of a ring rank divide this run of tokens, and the heads.
// Without a ring there is one chunk, the document.
typedef struct Placement {
    int n_chunks;
    int* head_border;  // (ulysses_size + 1) of the key/value heads: ulysses rank b computes border b up to border b + 1
    int* token_border;  // (ring_size, ulysses_size + 1) of the tokens of a ring rank, likewise
    int* owner;         // (n_chunks) the ring rank that has the chunk
    int* chunk_border;  // (n_docs, n_chunks + 1) of a document's tokens
} Placement;

size_t placement_ints(const MicroBatch* mb);
// The plan's, or the usual one, which is then taken from the arena (arena_check). kv_heads: PlanLimits's.
Placement micro_batch_placement(const Plan* plan, const MicroBatch* mb, const int* lengths, int kv_heads, Arena* arena);
// With plan->placed_at: where the plan's own lies, to be filled.
Placement plan_placement(const Plan* plan, const MicroBatch* mb);
// The one rank that computes all heads of a micro-batch that others hold tokens of (plan/step/remap.h); -1: heads are
// divided, or chunks, or one rank has all.
int remapped_to(const Plan* plan, const MicroBatch* mb);
// Even heads, even tokens, and the zigzag (picture in plan.c).
void fill_usual_placement(const Placement* p, const Plan* plan, const MicroBatch* mb, const int* lengths, int kv_heads);

// Where chunk j of a document of s tokens usually begins when it is cut into 2 * ring_size chunks, j in [0, 2 *
// ring_size]: floor(j s / (2 ring_size)). Borders at multiples of a kernel's tile would cost more than they save:
// rounded to 128 from 256 ring_size tokens on, the busiest of 8 ring ranks had 1.8 times the mean work, and 1.1 times
// at 2048 ring_size.
int chunk_border(int s, int ring_size, int j);

typedef struct Share {
    int ulysses_size, ring_size, ring_rank, ulysses_rank;  // see kernels/comm/group_attention.h
    int n;                                                 // tokens of this rank
    int ring_n;                                            // tokens of all ulysses ranks of this ring rank
    int n_spans;
} Share;

// The share of `rank`, which must be one of the micro-batch's. spans: NULL, or room for as many as the rank has tokens,
// at most n_docs of each chunk; in the order of the rank's tokens.
Share micro_batch_share(const Plan* plan, const MicroBatch* mb, const Placement* p, int rank, Span* spans);
// cu_seqlens as group attention wants them, an array for each chunk: n_chunks (n_docs + 1) of them.
void micro_batch_cu(const Placement* p, const MicroBatch* mb, int* cu);

// What a pass takes of a rank: its tokens, and pairs of token and key/value head in attention. In a ring the blocks of
// others come by, so that the widest one counts.
typedef struct PassLoad {
    int64_t tokens, pairs;
} PassLoad;
// loads (of all ranks) += those of micro-batch i; the arena is for scratch. 0, or -1 without memory.
int plan_add_load(PassLoad* loads, const Plan* plan, int i, const int* lengths, const PlanLimits* limits, Arena* arena);
void micro_batch_load(PassLoad* loads, const MicroBatch* mb, const Placement* p);
static inline int load_fits(const PassLoad* load, const PlanLimits* limits, int rank) {
    int64_t capacity = rank_capacity(limits, rank);
    return load->tokens <= capacity && load->pairs <= capacity * limits->kv_heads;
}

// ---- what the planners share: which documents a group of ranks can hold
//
// A group with `ulysses_size` ranks for the heads holds documents whose tokens on any rank of its ring are at most
// ring_rank_capacity in all. A document of s tokens takes widest_ring_rank(s, ring_size) of that: a row of documents
// fits where the sum of these does. All of these look at PlanLimits.capacity alone, which is to be the group's.

// Most tokens of a ring rank (of all its ulysses ranks together): those whose attention, at ceil(kv_heads /
// ulysses_size) of them, is capacity * kv_heads pairs of token and kv head. Never more than ulysses_size * capacity, so
// its ranks have at most capacity tokens each.
int64_t ring_rank_capacity(const PlanLimits* limits, int ulysses_size);
// Most tokens that one rank of a ring of `ring_size` has of a document of s tokens.
int widest_ring_rank(int s, int ring_size);
// The greatest length not above s that fits a group by itself. 1 always does.
int longest_fitting(const PlanLimits* limits, int s, int ulysses_size, int ring_size);
// The least --capacity with which a group holds a document of s tokens by itself.
int64_t capacity_for(const PlanLimits* limits, int s, int ulysses_size, int ring_size);

// The groups that a planner has of each cp size.
typedef struct GroupChoices {
    int *ulysses_sizes,
        *capacities;  // (ranks + 1) ranks that share heads, 0: there is none; of the one that holds most
    int first, last;  // cp sizes
    const char* how;  // what --cp says of these groups; NULL: nothing
} GroupChoices;

// -1 with words: none of them holds document `doc` of s tokens.
int refuse_length(int doc, int s, const PlanLimits* limits, const GroupChoices* groups, Err err);

// 0, or -1 with words: limits, lengths below 1, more tokens in all than an int counts.
int check_lengths(const int* lengths, int n, const PlanLimits* limits, Err err);

// check_lengths, then an empty plan of this step in the arena.
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
