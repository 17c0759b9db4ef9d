// what_if.h - simulate what-if: what a cluster would take that need not be there, and what one change would win; or
// what the logged steps of a run would have taken without its slow ranks, or by others' plans.
//
//   what_if.c         clusters: the search for each machine and each change of it
//   logged_steps.c    the steps of a run, drawn again and played
//   what_if_show.c    tables for a terminal, and what-if.html
#pragma once
#include "plan/search/goodput.h"
#include "run/search/search.h"

// One thing that is changed: links that move twice the bytes in a time; twice the memory of each rank; slow ranks at
// the pace of the fastest.
typedef enum Change { CHANGE_LINKS, CHANGE_MEMORY, CHANGE_PACE, N_CHANGES } Change;

// What the time of a step goes into, of the stage that takes longest. Computing: all work divided over all ranks by
// their paces, which no layout beats; uneven: what the rank with most computes beyond that.
typedef enum TimePart {
    PART_COMPUTING,
    PART_UNEVEN,
    PART_LINKS,
    PART_AGAIN,
    PART_STAGES,
    PART_FIXED,
    N_PARTS
} TimePart;

typedef struct WhatIf {
    char name[COST_NAME];
    double ms, tokens;       // of a step in the mean; ms infinite: no layout fits, or none can be, for `words`
    double limit;            // ms: computing, divided over all ranks by their paces
    double part[N_PARTS];    // ms
    double bytes, room;      // of the fullest rank; that a rank has at most
    double price;            // of a rank-hour; NaN: nobody says
    double gain[N_CHANGES];  // share of ms that the change wins; NaN: there is nothing to change; 1: only so it fits
    const char* bound;       // what sets the pace
    double save;             // seconds for which a save stops training; of a logged run 0: it has saved nothing
    Goodput goodput;         // share 0: nobody asked
    Layout layout;
    int N;  // tokens of a row
    char words[ERR_BYTES];
} WhatIf;

enum { MOST_REPLAYED = 64 };  // the last logged steps

// The logged steps under one thing that differs: ms in the mean, infinite where `words` say why.
typedef struct Replayed {
    char name[64], words[ERR_BYTES];
    double ms;
} Replayed;

// What can be shown: n clusters; or the replays of a run, the first as it was, and in `cluster` (n 0) the run as it was
// measured.
typedef struct WhatIfs {
    const Run* run;
    int ranks, n;
    WhatIf* cluster;
    Replayed* replayed;
    int n_replayed, steps;
} WhatIfs;

// On the terminal, at most 80 columns, and as what-if.html in --out or here.
void what_if_show(const WhatIfs* x);

// Reads the log of what-if RUN, and the options of that run, before anything is opened.
void what_if_read(Run* run);
// Ends the program with what was asked. run: as a cluster of its ranks.
void what_if(Run* run);
// The steps of the run of what-if RUN, into x.
void what_if_replay(WhatIfs* x, Run* run, const Machine* machine);
