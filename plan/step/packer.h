// packer.h - one guess of plan_flex: can all documents end before a target time? Private to
// flex.c. Documents of one round are packed by round_packer.h.
#pragma once
#include "plan/step/flex.h"

// A micro-batch under construction, in units of `unit` ranks.
typedef struct OpenMicroBatch {
    int first, cp_size;  // units
    int older;           // the micro-batch before it on its unit that may still take documents, -1 none
    int docs;
    int64_t room;       // tokens
    int64_t most_room;  // of it and the older ones
    double start;  // ms
} OpenMicroBatch;

// What a guess comes to.
typedef struct Guess {
    double makespan;  // ms; infinite: not all fit
    double lacking;   // ms by which the target is too short then, roughly
    int n_micro_batches;
    OpenMicroBatch* micro_batches;  // (n)
    int* micro_batch_of;            // (n) of each document of `sorted`
} Guess;

// Everything that guesses share. Documents are known by their place in `sorted`.
typedef struct Search {
    const Setting* setting;
    const int* sorted;  // (n) lengths, descending
    int n, unit;        // no group is narrower than `unit` ranks, and windows begin at multiples of it
    int floor;
    int units, node;    // units in all; units of a node
    int levels;         // micro-batches that cost something are opened on the emptiest unit, not on the fullest

    // What the unit says, once: of documents, and of cp sizes, which are in units.
    double* alone;            // (n) ms on one unit, infinite where it does not fit
    double* rest;             // (n + 1) sum of alone from a document on
    double* least_rest;       // (n + 1) unit-ms that the documents from one on take at least, at any cp size
    double *least2, *least1;  // (units + 1) of that, a token^2 and a token, from a cp size on
    double tokens;            // of all documents
    double* speed;            // (units) of its slowest rank; NULL: all 1
    double fastest;           // of them

    // How full ranks are, of the guess that is made.
    double loaded, opened;           // sum of load; tokens that fit the micro-batches opened so far
    double* load;                    // (units) ms at which a unit is free
    double *node_least, *node_most;  // (nodes) load
    int* heap;                       // (units) the least loaded first, for fillers
    int* ring_docs;                  // (units)

    // Micro-batches that a document may join.
    int* last;            // (units) the micro-batch it runs last, -1 none
    int64_t* local_room;  // (units) most tokens that a one-unit micro-batch there still takes, -1: there is none
    int64_t* node_room;   // (nodes) most of these
    int* wide;            // (units + 1) the first of the micro-batches of a cp size that may still take documents
    int* next_wide;       // (n) the next of them, as they were opened
    int *wide_sizes, n_wide_sizes;  // (units) cp sizes that have some

    // Of a cp size (units + 1), so that windows are looked at once.
    double* takes;      // its micro-batches take no longer document; infinite: not known
    double* free_from;  // ms before which no window inside a node is free
} Search;

// sorted (n): lengths, descending.
Search search_take(const int* sorted, int n, const Setting* setting, Arena* arena);
// Before guesses with this unit, which divides ranks, and node_size where that is smaller.
void search_set_unit(Search* search, int unit);
void search_guess(Search* search, Guess* guess, double target);
