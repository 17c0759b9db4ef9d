// what_if.h - simulate what-if: the time of a step on a cluster that need not exist, and the gain of one change; or the
// times of a run's logged steps without its slow ranks, or by others' plans.
//
//   what_if.c         clusters: the search for each machine and each change of it
//   logged_steps.c    the steps of a run, drawn again and played
//   what_if_show.c    tables for a terminal, and what-if.html
#pragma once
#include "plan/search/goodput.h"
#include "plan/search/machine_asked.h"
#include "run/search/search.h"

// One change: links move twice the bytes in a time; each rank has twice the memory; slow ranks have the pace of the
// fastest.
typedef enum Change { CHANGE_LINKS, CHANGE_MEMORY, CHANGE_PACE, N_CHANGES } Change;

// The parts of a step's time, in the stage that takes longest. Computing is all work divided over all ranks by their
// paces, which no layout beats; uneven is the time that the rank with most computes beyond that.
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
    double ms, tokens;       // mean of a step; ms infinite: no layout fits, or none can be, for `words`
    double limit;            // ms: computing, divided over all ranks by their paces
    double part[N_PARTS];    // ms
    double bytes, room;      // of the fullest rank; the most that a rank has
    double price;            // $ of a rank-hour; NaN: not known
    double gain[N_CHANGES];  // share of ms that the change wins; NaN: there is nothing to change; 1: only so it fits
    const char* bound;       // sets the pace
    double save;             // seconds for which a save stops training; 0: a logged run has saved nothing
    Goodput goodput;         // share 0: not asked for
    Layout layout;
    int N;  // tokens of a row
    char words[ERR_BYTES];
} WhatIf;

enum { MOST_REPLAYED = 64 };  // the last logged steps

// The contents of tables and page: n clusters; or (n 0) the run as it was measured, and behind it n_replayed replays of
// its logged steps with one difference each: the first as it was. Of replays name, ms and words are known.
typedef struct WhatIfs {
    const Run* run;
    int ranks, n;
    WhatIf* cluster;
    int n_replayed, steps;
} WhatIfs;

// Shows x on the terminal, at most 80 columns, and as what-if.html in --out or here. All functions here end the program
// with words if they fail.
void what_if_show(const WhatIfs* x);

// Reads the log of what-if RUN, and the options of that run, before anything is opened.
void what_if_read(Run* run);
// Answers, and shows the answer. run: as a cluster of its ranks.
void what_if(Run* run);
// Replays the steps of the run of what-if RUN into x.
void what_if_replay(WhatIfs* x, Run* run, const Machine* machine);
