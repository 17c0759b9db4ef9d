// packer.h - one guess of plan_flex: can all documents end before a target time? Private to
// flex.c. Documents of one round are packed by round_packer.h.
#pragma once
#include "plan/step/flex.h"

// One way to pack.
typedef struct PackWay {
    int least;     // of whose multiples all cp sizes are, so that no group is narrower
    double price;  // in rounds: of a rank that nothing has begun on, in parts of the target
    int levels;    // a micro-batch is opened on the emptiest ranks, not on the fullest
} PackWay;

// A micro-batch under construction.
typedef struct OpenMicroBatch {
    int first, cp_size;  // ranks
    int older;           // the micro-batch before it on the same ranks, which may still take documents, -1 none
    int docs;
    int64_t room;       // tokens
    int64_t most_room;  // of it and the older ones
    double start;       // ms
} OpenMicroBatch;

// What a guess comes to.
typedef struct Guess {
    double makespan;  // ms; infinite: not all fit
    int n_micro_batches;
    OpenMicroBatch* micro_batches;  // (n)
    int* micro_batch_of;            // (n) of each document of `sorted`
} Guess;

// Everything that guesses share. Documents are known by their place in `sorted`.
typedef struct Search {
    const Setting* setting;
    const int* sorted;  // (n) lengths, descending
    int n, ranks, node;

    // What the lengths say, once.
    double* alone;            // (n) ms on one rank, infinite where it does not fit
    double* least_rest;       // (n + 1) rank-ms that the documents from one on take at least, at any cp size
    double *least2, *least1;  // (ranks + 1) of that, a token^2 and a token, from a cp size on
    double tokens;            // of all documents
    double fastest;           // speed of a rank

    // How full ranks are, of the guess that is made.
    PackWay way;
    double loaded, opened;           // sum of load; tokens that fit the micro-batches opened so far
    double* load;                    // (ranks) ms at which a rank is free
    double *node_least, *node_most;  // (nodes) load
    int* ring_docs;                  // (ranks)

    // Micro-batches that a document may join.
    int* last;            // (ranks) the micro-batch it runs last, -1 none
    int64_t* local_room;  // (ranks) most tokens that a one-rank micro-batch there still takes, -1: there is none
    int64_t* node_room;   // (nodes) no less than most of these
    int* wide;            // (ranks + 1) the first of the micro-batches of a cp size that may still take documents
    int* next_wide;       // (n) the next of them, as they were opened
    int *wide_sizes, n_wide_sizes;  // (ranks) cp sizes that have some

    // Of a cp size (ranks + 1), so that windows are looked at once.
    double* takes;      // its micro-batches take no longer document; infinite: not known
    double* free_from;  // ms before which no window inside a node is free
} Search;

// sorted (n): lengths, descending.
Search search_take(const int* sorted, int n, const Setting* setting, Arena* arena);
void search_begin(Search* search);
// Whether all end by the target. way.least divides ranks, and node_size where that is smaller.
int search_guess(Search* search, Guess* guess, PackWay way, double target);
