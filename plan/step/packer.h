// packer.h - one guess: can documents end before a target time, on ranks that run freely, or in one round, in which a
// rank has one pass? It is private to flex.c and rounds.c.
#pragma once
#include "plan/step/flex.h"

// A way to pack.
typedef struct PackWay {
    int least;     // every cp size is a multiple of this, so no group is narrower
    double price;  // in rounds: of a rank on which nothing has begun, in parts of the target
    int inside;    // 1: no group spans nodes
    int levels;    // 1: micro-batches open on the emptiest ranks; in rounds all open first, and then documents go where
                   // they end first
} PackWay;

// A micro-batch under construction; in rounds also the local ones of its ranks in the same pass.
typedef struct Bin {
    int first_rank, cp_size, size;  // size: the place of cp_size in Packer.sizes
    int docs, at;                   // at: the place of its next document in the plan
    int older;                      // the bin before on the same ranks, which may still take documents; -1: none
    int listed;                     // 1: it is in the list of its cp size
    int64_t room, most_room;        // tokens of a ring rank; the most of its own and older bins'
    double pace;                    // of its slowest rank
    double start, shared, end;      // ms; shared: the end of its own documents
    // in rounds
    int idlest;                // its rank with least local work
    int64_t kept, beside;      // room that local documents of the fullest rank take; most tokens of these on a rank
    double tokens, s2;         // of its documents
    double first[2];           // ms of their exchanges that others may hide, forward and backward
    double attention, linear;  // ms of local documents, each on the rank with most
} Bin;

enum { LEAST_SIZES = 6 };

// The state of all guesses, and of one. A document is its place in `sorted`.
typedef struct Packer {
    const Setting* setting;
    const int* sorted;                 // (n) lengths, descending
    int n, ranks, node, nodes;         // node: ranks of one
    int *sizes, n_sizes;               // (ranks) cp sizes that planners use, ascending
    int *holds, unlike;                // (sizes) most capacity of a window; unlike: ranks differ in capacity or pace
    int64_t* room;                     // (sizes) of a ring rank of that window
    double fastest, speeds, capacity;  // pace of the fastest rank; sum of all; tokens of all ranks
    int* least;                        // (n) the place in `sizes` of the least cp size that holds a document
    double* ms;             // (n LEAST_SIZES) of a document by itself at the cp sizes from there on; infinite: it does
                            // not fit
    double *work, *tokens;  // (n + 1) sums of the documents before: ms of computing on one rank, tokens
    int64_t placed;         // documents placed by all guesses so far

    // The guess at hand.
    int one_pass;  // 1: a rank has one pass, with local documents beside shared ones
    PackWay way;
    double target;
    int joins;     // 1: documents join an open micro-batch before one opens
    int shortest;  // tokens of the shortest document
    Bin* bins;     // (n)
    int n_bins;
    int* bin_of;                     // (n) of each document of the list
    int* rank_of;                    // (n) the rank that has it alone, beside the bin's shared ones; -1: it is shared
    int *of_size, *begin;            // bins of each cp size that may take documents, the one that ends last first;
                                     // begin: (sizes) where they begin
    int* n_of_size;                  // (sizes)
    double* load;                    // (ranks) ms at which a rank is free
    double *node_least, *node_most;  // (nodes) load
    int* last;                       // (ranks) the bin it runs last, -1: none
    int* ring_docs;                  // (ranks)
    int* node_free;                  // (nodes) ranks without a pass
    int *wide, n_wide;               // (ranks) bins of several ranks, beside which documents may be local
    double *attention, *linear;      // (ranks) ms of local documents
    int64_t* local_tokens;           // (ranks)
    Keyed* by_start;                 // (n) bins
} Packer;

// Takes a packer's memory. sorted (n): lengths, descending, for packer_begin. The setting's limits have their squares.
Packer packer_take(const int* sorted, int n, const Setting* setting, Arena* arena);
void packer_begin(Packer* x);
// Returns 1 if a window of the cp size at this place in `sizes` holds a document of s tokens.
int packer_holds(const Packer* x, int size, int s);
// Packs documents docs (n), ascending, to end by `target`, freely or into one pass of each rank; fills bins, bin_of and
// rank_of. way.least divides ranks, and node_size if that is smaller. Returns the end of the last; infinite: not all
// fit.
double pack(Packer* x, const int* docs, int n, int one_pass, PackWay way, double target);
// Appends the packed bins to a plan by their start. order: as sort_longest_first.
void packer_write(const Packer* x, Plan* plan, const int* docs, int n, const int* order, int round);
// A lower bound of a round of these documents. tokens, work: sums.
double round_bound(const Packer* x, int longest, double tokens, double work);

// Makes a plan for rounds, with room for the packer's documents. Returns 1, and overwrites the plan, if its rounds take
// not much more than the `known` ms of the plan's step; 0 if they do; -1 without memory.
int plan_rounds(Plan* plan, Packer* packer, const int* order, double known, Arena* arena, Err err);
