// flexsp.h - the parts of the published planner FlexSP that can be proven by themselves; see flexsp.c. Where memory is
// missing they return any valid answer, and arena_check says so.
#pragma once
#include "plan/published/published.h"

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

// ---- cutting a list of documents into runs

// Buckets of lengths (n), descending: runs, each counted as its longest member, with the least total over-statement
// (Eq. 15). Takes the least number, from `least` on, whose tokens so counted are at most most_tokens; n of one document
// each when that takes FLEXSP_MOST_BUCKETS. first (n + 1): where each begins, and n. Returns the number.
int flexsp_buckets(int* first, const int* lengths, int n, int least, int64_t most_tokens, Arena* arena);
// first (m + 1): where each of m rounds begins, and n. Contiguous runs of lengths (n) in the order of cutting, whose
// largest sum of tokens is the least; the later ones are filled first.
void flexsp_chunks(int* first, const int* lengths, int n, int m);
// The least number of contiguous runs of at most `capacity` tokens. n + 1 when a document is longer than that.
int flexsp_least_chunks(const int* lengths, int n, int64_t capacity);

// ---- groups of one round

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
// holds the documents. enumerated: the most ranks for which all partitions are tried
// (FLEXSP_ENUMERATED).
double flexsp_groups(const FlexspCpSizes* cp_sizes, const FlexspBatch* batch, int enumerated, int* counts,
                     int* group_of, Arena* arena);
