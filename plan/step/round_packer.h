// round_packer.h - the documents of one round: can all end before a target time when no rank gets two passes?
// Private to rounds.c.
#pragma once
#include "plan/step/packer.h"

// A micro-batch of the round, and the local ones of its ranks in the same pass.
typedef struct Bin {
    int first_rank, cp_size;
    int docs;
    int64_t room;               // tokens of a ring rank
    int64_t kept;               // of these, what local documents of the fullest rank take
    int64_t beside;             // tokens of local documents that a rank may have
    int idlest;                 // its rank that has least to do by itself
    double pace;                // of its slowest rank
    double first[2];            // ms of its documents' exchanges that others may hide, forward and backward
    double end;                 // ms
    double shared, tokens, s2;  // of its documents alone: ms, tokens, sum of squares
    double attention, linear;   // ms of local documents, each of the rank that has most
} Bin;

enum { LEAST_SIZES = 8 };

// What all guesses share. Documents are known by their place in `sorted`.
typedef struct RoundSearch {
    const Setting* setting;
    const int* sorted;              // (n) lengths, descending
    int *sizes, n_sizes;            // (ranks) cp sizes that planners use, ascending
    int node, nodes;                // ranks of a node, nodes
    int* least;                     // (n) the place in `sizes` of the least cp size that holds a document
    double* ms;                     // (n LEAST_SIZES) of a document by itself at the cp sizes from there on, infinite
                                    // where it does not fit
    double *alone, *work, *tokens;  // (n), (n + 1), (n + 1): ms on one rank, infinite where it does not fit; sums of
                                    // the documents before: ms of computing on one rank, tokens
    double fastest, speeds;         // pace of the fastest rank; sum of all
    double room;                    // tokens of all ranks
    int64_t placed;                 // documents placed by all guesses so far

    // Where documents of the list are.
    Bin* bins;  // (ranks)
    int n_bins;
    int* bin_of;   // (n) of each document of the list
    int* rank_of;  // (n) the rank that has it to itself beside what the bin shares, -1: the bin shares it

    // Ranks: which have begun, and what is local beside a bin.
    char* taken;                 // (ranks)
    int* node_free;              // (nodes) ranks
    double *attention, *linear;  // (ranks) ms of local documents
    int64_t* local_tokens;       // (ranks)

    // Bins that may take documents.
    int *wide, n_wide;     // (ranks) those of several ranks, beside which documents may be local
    int *of_size, *begin;  // those of a cp size that have room, the one that ends last first; where those of each of
                           // `sizes` begin
    int* n_of_size;        // (sizes)
} RoundSearch;

RoundSearch round_take(const int* sorted, int n, const Setting* setting, Arena* arena);
// Fills what the lengths say; sorted (n) may have changed.
void round_begin(RoundSearch* x, int n);
// Packs documents docs (n), ascending, to end by `target`; fills bins and bin_of. Returns when the last one ends;
// infinite: not all fit.
double round_pack(RoundSearch* x, const int* docs, int n, PackWay way, double target);
// No round of these documents is shorter. tokens, work: sums.
double round_bound(const RoundSearch* x, int longest, double tokens, double work);
