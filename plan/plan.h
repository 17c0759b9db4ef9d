// plan.h - a step's plan: which ranks share which documents. A pure value, made from lengths alone, the same on every
// rank.
//
// A micro-batch is a packed row of documents on a group of `cp_size` contiguous ranks. Every rank runs the
// micro-batches that contain it in the order of Plan.micro_batches, and a micro-batch runs when all its ranks have come
// to it.
//
// One global order cannot deadlock. Suppose that some micro-batches never run, and let m be the first of them in the
// list. Each rank of m runs only micro-batches that stand before m in the list until it comes to m. All of those run,
// and end, since m is the first that does not. So every rank of m comes to m, and m runs: a contradiction. Where every
// rank could choose its own order, two ranks might each wait for the other in another micro-batch (schedule_stuck finds
// such lists).
#pragma once
#include "plan/base.h"

typedef struct MicroBatch {
    int first_rank, cp_size;
    int ulysses_size;       // ranks that share heads; divides cp size, at most kv_heads. The other factor is a ring of
                            // cp size / ulysses_size: see kernels/group_attention.h
    int first_doc, n_docs;  // its documents: Plan.docs[first_doc .. first_doc + n_docs), at least one
    int round;              // see plan_set_rounds
} MicroBatch;

typedef enum CpKind { CP_LOCAL, CP_ULYSSES, CP_RING, CP_ULYSSES_RING } CpKind;
CpKind cp_kind(const MicroBatch* mb);
const char* cp_kind_name(CpKind kind);  // "local", "ulysses", "ring", "ulysses x ring"

typedef struct Plan {
    int64_t step;
    int ranks, n_docs, n_micro_batches, n_rounds;
    int has_barriers;           // all ranks end a round before any begins the next, whatever the ZeRO stage
    int* docs;                  // (n_docs) indices into the lengths of the step, each once
    MicroBatch* micro_batches;  // (n_micro_batches) at most n_docs
} Plan;

// What every plan must respect.
typedef struct PlanLimits {
    int ranks;
    int node_size;      // ranks of a node: contiguous, the last node may have fewer
    int capacity;       // most tokens of a rank in one micro-batch, most (token, kv head) pairs / kv_heads in attention
    int kv_heads;       // key/value heads, which ranks share; in tensor-parallel groups the fewest that a rank has
    int max_ring_docs;  // most documents in all micro-batches of a rank that are rings (ring_size > 1)
    double quadratic;   // cost of a document of s tokens is s + quadratic s^2, in units of a token without attention
} PlanLimits;

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
                CpChoice kind, Arena* arena, char* err, size_t errlen);
// Any valid list of micro-batches, as uniform as seems useful: for tests.
int plan_random(Plan* plan, int64_t step, const int* lengths, int n, const PlanLimits* limits, uint64_t seed,
                Arena* arena, char* err, size_t errlen);

// Where parameters or gradients are gathered layer by layer (ZeRO-2 and 3), all ranks run micro-batches in rounds: each
// micro-batch gets the earliest round in which all its ranks are free, in the order of micro-batches. Ranks without a
// micro-batch in a round run an empty one. 0, or -1 without memory.
int plan_set_rounds(Plan* plan, Arena* arena, char* err, size_t errlen);

// Proves a plan: every document once, micro-batches inside the ranks, ulysses_size | cp size, heads, capacity at every
// rank, rounds (when set) that never share a rank, and that following the lists of the ranks comes to an end
// (schedule_stuck). 0, or -1 with what is wrong.
int plan_check(const Plan* plan, const int* lengths, int n, const PlanLimits* limits, Arena* arena, char* err,
               size_t errlen);
// Rank r runs micro-batches list[first[r] .. first[r + 1]) in that order; a micro-batch runs when it is next on all of
// its ranks. Returns the number of micro-batches that can never run (0: everything ends), or -1 without memory. Of the
// micro-batches only cp_size and first_rank count.
int schedule_stuck(const MicroBatch* micro_batches, int n_micro_batches, const int* list, const int* first, int ranks,
                   Arena* arena);

// Equal on all ranks exactly when plan and lengths are.
uint64_t plan_hash(const Plan* plan, const int* lengths);

// ---- what one rank holds of a micro-batch

// A run of tokens of one document.
typedef struct Span {
    int doc;     // index into the lengths of the step
    int first;   // its first token in the document
    int length;  // at least 1
} Span;

typedef struct Share {
    int ulysses_size, ring_size, ring_rank, ulysses_rank;  // see kernels/group_attention.h
    int n;                                                 // tokens of this rank
    int ring_n;                                            // tokens of all ulysses ranks of this ring rank
    int n_spans;
} Share;

// Where chunk j of a document of s tokens begins when it is cut into 2 * ring_size chunks, j in [0, 2 * ring_size]:
// floor(j s / (2 ring_size)). Borders at multiples of a kernel's tile would cost more than they save: rounded to 128
// from 256 ring_size tokens on, the busiest of 8 ring ranks had 1.8 times the mean work, and 1.1 times at 2048
// ring_size.
int chunk_border(int s, int ring_size, int j);

// The share of `rank`, which must be one of the micro-batch's. spans: NULL, or room for 2 * n_docs of them, in the
// order of the rank's tokens.
Share micro_batch_share(const Plan* plan, const MicroBatch* mb, const int* lengths, int rank, Span* spans);
// Tokens of every ring rank and how many are low: (ring_size) each. With ring_size = 1 all are low.
void micro_batch_ring_tokens(const Plan* plan, const MicroBatch* mb, const int* lengths, int* tokens, int* low);
// cu_seqlens as group attention wants them: micro_batch_cu_ints of them.
size_t micro_batch_cu_ints(const MicroBatch* mb);
void micro_batch_cu(const Plan* plan, const MicroBatch* mb, const int* lengths, int* cu);

// ---- what the planners share: which documents a group of ranks can hold
//
// A group with `ulysses_size` ranks for the heads holds documents whose tokens on any rank of its ring are at most
// ring_rank_capacity in all. A document of s tokens takes widest_ring_rank(s, ring_size) of that: a row of documents
// fits where the sum of these does.

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

// 0, or -1 with words: limits, lengths below 1, more tokens in all than an int counts.
int check_lengths(const int* lengths, int n, const PlanLimits* limits, char* err, size_t errlen);

// check_lengths, then an empty plan of this step in the arena.
int plan_begin(Plan* plan, int64_t step, const int* lengths, int n, const PlanLimits* limits, Arena* arena, char* err,
               size_t errlen);
