// packer.h - one guess: can documents end before a target time? Of ranks that run freely, or of one round, in which a
// rank has one pass. Private to flex.c and rounds.c.
#pragma once
#include "plan/step/flex.h"

// One way to pack.
typedef struct PackWay {
    int least;     // of whose multiples all cp sizes are, so that no group is narrower
    double price;  // in rounds: of a rank that nothing has begun on, in parts of the target
    int inside;    // no group spans nodes
    int levels;    // micro-batches are opened on the emptiest ranks; in rounds all of them first, and then documents go
                   // where they end first
} PackWay;

// A micro-batch under construction; in rounds also the local ones of its ranks in the same pass.
typedef struct Bin {
    int first_rank, cp_size, size;  // size: the place of cp_size in Packer.sizes
    int docs, at;                   // at: where its next document stands in the plan
    int older;                      // the one before it on the same ranks, which may still take documents, -1 none
    int listed;                     // it is in the list of its cp size
    int64_t room, most_room;        // tokens of a ring rank; the most of its own and that of older ones
    double pace;                    // of its slowest rank
    double start, shared, end;      // ms: shared: when its own documents end
    // in rounds
    int idlest;                // its rank that has least to do by itself
    int64_t kept, beside;      // of room, what local documents of the fullest rank take; what a rank may have of them
    double tokens, s2;         // of its documents
    double first[2];           // ms of their exchanges that others may hide, forward and backward
    double attention, linear;  // ms of local documents, each of the rank that has most
} Bin;

enum { LEAST_SIZES = 6 };

// What all guesses share. Documents are known by their place in `sorted`.
typedef struct Packer {
    const Setting* setting;
    const int* sorted;                 // (n) lengths, descending
    int n, ranks, node, nodes;         // node: ranks of one
    int *sizes, n_sizes;               // (ranks) cp sizes that planners use, ascending
    int *holds, unlike;                // (sizes) capacity of a window that holds most; ranks differ in it, or in pace
    int64_t* room;                     // (sizes) of a ring rank of that window
    double fastest, speeds, capacity;  // pace of the fastest rank; sum of all; tokens of all ranks
    int* least;                        // (n) the place in `sizes` of the least cp size that holds a document
    double* ms;             // (n LEAST_SIZES) of a document by itself at the cp sizes from there on, infinite
                            // where it does not fit
    double *work, *tokens;  // (n + 1) sums of the documents before: ms of computing on one rank, tokens
    double* least_rest;     // (n + 1) rank-ms that the documents from one on take at least, at any cp size
    int64_t placed;         // documents placed by all guesses so far

    // The guess that is made.
    int one_pass;  // a rank has one, with local documents beside shared ones
    PackWay way;
    double target;
    int joins;     // documents join a micro-batch that there is before one is opened
    int shortest;  // tokens of the shortest document
    Bin* bins;     // (n)
    int n_bins;
    int* bin_of;                     // (n) of each document of the list
    int* rank_of;                    // (n) the rank that has it to itself beside what the bin shares, -1: it is shared
    int *of_size, *begin;            // bins of a cp size that may take documents, the one that ends last first; where
                                     // those of each of `sizes` begin
    int* n_of_size;                  // (sizes)
    double loaded, opened;           // sum of load; tokens that fit the bins opened so far
    double* load;                    // (ranks) ms at which a rank is free
    double *node_least, *node_most;  // (nodes) load
    int* last;                       // (ranks) the bin it runs last, -1 none
    int* ring_docs;                  // (ranks)
    double* free_from;               // (sizes) ms before which no window inside a node is free
    int* node_free;                  // (nodes) ranks without a pass
    int *wide, n_wide;               // (ranks) bins of several ranks, beside which documents may be local
    double *attention, *linear;      // (ranks) ms of local documents
    int64_t* local_tokens;           // (ranks)
    Keyed* by_start;                 // (n) bins
} Packer;

// sorted (n): lengths, descending; read by packer_begin. The setting's limits have the squares of these.
Packer packer_take(const int* sorted, int n, const Setting* setting, Arena* arena);
void packer_begin(Packer* x);
// Whether a window of ranks of this place in `sizes` holds a document of s tokens.
int packer_holds(const Packer* x, int size, int s);
// Packs documents docs (n), ascending, to end by `target`, freely or into one pass of each rank; fills bins, bin_of and
// rank_of. way.least divides ranks, and node_size where that is smaller. Returns when the last one ends; infinite: not
// all fit.
double pack(Packer* x, const int* docs, int n, int one_pass, PackWay way, double target);
// Appends what was packed to a plan, bins by their start. order: as sort_longest_first.
void packer_write(const Packer* x, Plan* plan, const int* docs, int n, const int* order, int round);
// No round of these documents is shorter. tokens, work: sums.
double round_bound(const Packer* x, int longest, double tokens, double work);

// A plan made for rounds, with room for the packer's documents. 1, and the plan is overwritten, where the rounds of a
// step take not much more than `known` ms, what the plan takes; 0 where they do; -1 without memory.
int plan_rounds(Plan* plan, Packer* packer, const int* order, double known, Arena* arena, Err err);
