// step_guess.h - one guess of plan_flex: can all documents end before a target time? Private to step.c.
#pragma once
#include "plan/step.h"

// A micro-batch under construction, in units of `unit` ranks.
typedef struct OpenMicroBatch {
    int first, cp_size;  // units
    int older;           // the micro-batch before it on its unit that may still take documents, -1 none
    int docs;
    int64_t room;  // tokens
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
    const int* sorted;        // (n) lengths, descending
    int n, unit;              // no group is narrower than `unit` ranks, and windows begin at multiples of it
    int units, node;          // units in all; units of a node
    double* alone;            // (n) ms on one unit, infinite where it does not fit
    double* rest;             // (n + 1) sum of alone from a document on
    double* least_rest;       // (n + 1) unit-ms that the documents from one on take at least, at any cp size
    double *least2, *least1;  // (units + 1) of that, a token^2 and a token, from a cp size on
    double tokens;            // of all documents
    double loaded, opened;    // of the guess: sum of load; tokens that fit the micro-batches opened so far
    double* load;             // (units) ms at which a unit is free
    double* speed;            // (units) of its slowest rank; NULL: all 1
    int levels;               // micro-batches that cost something are opened on the emptiest unit, not on the fullest
    double fastest;           // of them
    int* last;                // (units) the micro-batch it runs last, -1 none
    int* ring_docs;           // (units)
    double *node_least, *node_most;  // (nodes) load
    int* heap;                       // (units)
    int64_t* local_room;  // (units) most tokens that a one-unit micro-batch there still takes, -1: there is none
    int64_t* node_room;   // (nodes) most of these
    int *wide,
        *next_wide;  // (units + 1) (n) lists of micro-batches of a cp size that may still take documents, as they
                     // were opened
    int *wide_sizes, n_wide_sizes;  // (units) cp sizes that have some
    double* takes;                  // (units + 1) those of a cp size take no longer document; infinite: not known
    double* free_from;              // (units + 1) ms before which no window of a cp size inside a node is free
    int64_t* sure;                  // (ranks + 1) a length that groups of so many ranks hold for sure
    struct Task* tasks;             // (units + 1) the document looked at last with each cp size
    int* task_of;                   // (units + 1) which document that is, -1 none
} Search;

// sorted (n): lengths, descending.
Search search_take(const int* sorted, int n, const Setting* setting, Arena* arena);
// Before guesses with this unit, which divides ranks, and node_size where that is smaller.
void search_set_unit(Search* search, int unit);
void search_guess(Search* search, Guess* guess, double target);
