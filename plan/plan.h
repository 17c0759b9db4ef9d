// plan.h - a step's plan: which ranks share which documents. A pure value, made from lengths alone, the same on every
// rank.
//
// An item is a packed row of documents on `degree` contiguous ranks. Ranks run the items that contain them in the order
// of `items`: one global order, so that no two ranks ever wait for each other in a circle.
#pragma once
#include "plan/base.h"

typedef struct Item {
    int first_rank, degree;
    int inner;              // ranks that share heads; divides degree, at most NH. The other factor is a ring of
                            // degree / inner: see kernels/group_attention.h
    int first_doc, n_docs;  // its documents: Plan.docs[first_doc .. first_doc + n_docs), at least one
    int round;              // see plan_set_rounds
} Item;

typedef enum ItemKind { ITEM_LOCAL, ITEM_HEADS, ITEM_RING, ITEM_HEADS_RING } ItemKind;
ItemKind item_kind(const Item* item);
const char* item_kind_name(ItemKind kind);  // "local", "heads", "ring", "heads x ring"

typedef struct Plan {
    int64_t step;
    int ranks, n_docs, n_items, n_rounds;
    int* docs;    // (n_docs) indices into the lengths of the step, each once
    Item* items;  // (n_items) at most n_docs
} Plan;

// What every plan must respect.
typedef struct PlanLimits {
    int ranks;
    int node_size;      // ranks of a machine: contiguous, the last one may have fewer
    int capacity;       // most tokens of a rank in one item, and most (token, head) pairs / NH in its attention
    int NH;             // heads
    int max_ring_docs;  // most documents in all items of a rank that are rings (outer > 1)
    double quadratic;   // cost of a document of s tokens is s + quadratic s^2, in units of a token's linear work
} PlanLimits;

// Bytes that a plan over n documents needs for its arrays; plan_carve lays them out there.
size_t plan_bytes(int n);
void plan_carve(Plan* plan, void* memory, int n);

// The planners: 0, or -1 with a message that names the document and the limit. lengths (n), each at least 1. scratch:
// plan_scratch_bytes(n, limits) bytes, aligned as malloc's.
size_t plan_scratch_bytes(int n, const PlanLimits* limits);

typedef enum KindChoice { KIND_AUTO, KIND_HEADS, KIND_RING } KindChoice;
// One degree for all documents (0: the least that holds the longest one), best-fit packed rows, rows dealt to the
// ranks / degree groups, the heaviest first to the least loaded. Kind auto: heads while degree <= NH and inside a
// machine, a ring where heads do not suffice, both across machines.
int plan_static(Plan* plan, int64_t step, const int* lengths, int n, const PlanLimits* limits, int degree,
                KindChoice kind, void* scratch, char* err, size_t errlen);
// Any valid list of items, as uniform as seems useful: for tests.
int plan_random(Plan* plan, int64_t step, const int* lengths, int n, const PlanLimits* limits, uint64_t seed,
                void* scratch, char* err, size_t errlen);

// Where parameters or gradients are gathered layer by layer (ZeRO-2 and 3), all ranks run items in rounds: each item
// gets the earliest round in which all its ranks are free, in the order of items. Ranks without an item in a round run
// an empty one. last (ranks) is scratch.
void plan_set_rounds(Plan* plan, int* last);

// Proves a plan: every document once, items inside the ranks, inner | degree, heads, capacity at every rank, rounds
// (when set) that never share a rank, and that following the lists of the ranks comes to an end (schedule_stuck).
// scratch as for planners. 0, or -1 with what is wrong.
int plan_check(const Plan* plan, const int* lengths, int n, const PlanLimits* limits, void* scratch, char* err,
               size_t errlen);
// Rank r runs items list[first[r] .. first[r + 1]) in that order; an item runs when it is next on all of its ranks.
// Returns the number of items that can never run (0: everything ends). degree and first_rank from items. scratch:
// n_items + 2 ranks ints.
int schedule_stuck(const Item* items, int n_items, const int* list, const int* first, int ranks, void* scratch);

// Equal on all ranks exactly when plan and lengths are.
uint64_t plan_hash(const Plan* plan, const int* lengths);

// ---- what one rank holds of an item

// A run of tokens of one document.
typedef struct Span {
    int doc;     // index into the lengths of the step
    int first;   // its first token in the document
    int length;  // at least 1
} Span;

typedef struct Share {
    int inner, outer, a, b;  // place of the rank: see kernels/group_attention.h
    int n;                   // tokens of this rank
    int ring_n;              // tokens of place a
    int n_spans;
} Share;

// Where chunk j of a document of s tokens begins when it is cut into 2 * outer chunks, j in [0, 2 * outer]:
// floor(j s / (2 outer)). Borders at multiples of a kernel's tile would cost more than they save: rounded to 128 from
// 256 outer tokens on, the busiest of 8 places had 1.8 times the mean work, and 1.1 times at 2048 outer.
int chunk_border(int s, int outer, int j);

// The share of `rank`, which must be one of the item's. spans: NULL, or room for 2 * n_docs of them, in the order of
// the rank's tokens.
Share item_share(const Plan* plan, const Item* item, const int* lengths, int rank, Span* spans);
// Tokens of every place of the ring and how many are low: (outer) each. With outer = 1 all are low.
void item_ring_tokens(const Plan* plan, const Item* item, const int* lengths, int* tokens, int* low);
// cu_seqlens as group attention wants them: item_cu_ints of them.
size_t item_cu_ints(const Item* item);
void item_cu(const Plan* plan, const Item* item, const int* lengths, int* cu);
