// goodput.h - how often to save if ranks die: the share of all time that goes into steps which count.
//
// Deaths are a Poisson process: a cluster of R ranks that each die once in `mtbf` seconds loses one every M = mtbf / R.
// A save stops training for C seconds, a death for S until the first step again, and the steps since the last save are
// done again. A save every t seconds of steps gives (Daly 2006, A higher order estimate of the optimum checkpoint
// interval for restart dumps, eq. 13: also saves and restarts may be hit)
//
//   goodput = t / (M exp(S / M) (exp((t + C) / M) - 1))
//
// which is greatest where (1 - t / M) exp((t + C) / M) = 1, whatever S: about sqrt(2 C M) (Young 1974) while C << M.
#pragma once

typedef struct Goodput {
    double deaths;  // an hour, of the whole cluster
    double every;   // K: steps between two saves, at least 1
    double share;   // of time, from 0 to 1
} Goodput;

// The share for `ranks` ranks that each die once in mtbf_hours; step, save and restart take seconds, every: steps.
double goodput_share(int ranks, double mtbf_hours, double step, double save, double restart, double every);
// The same with the best number of steps between saves.
Goodput goodput_best(int ranks, double mtbf_hours, double step, double save, double restart);
