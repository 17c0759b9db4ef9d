// goodput.h - how often to save where ranks die: the share of all time that goes into steps which count.
//
// Deaths are a Poisson process: a cluster of R ranks that each die once in `mtbf` seconds loses one every M = mtbf / R.
// A save stops training for C seconds, a death for S, from it to the first step again, and what came since the last
// save is done again. With a save every t seconds of steps (Daly 2006, A higher order estimate of the optimum
// checkpoint interval for restart dumps, eq. 13: also saves and restarts may be hit)
//
//   goodput = t / (M exp(S / M) (exp((t + C) / M) - 1))
//
// which is most where (1 - t / M) exp((t + C) / M) = 1, whatever S: about sqrt(2 C M) (Young 1974) while C << M.
#pragma once

typedef struct Goodput {
    double deaths;  // an hour, of the whole cluster
    double every;   // K: steps between two saves, at least 1
    double share;   // of time, from 0 to 1
} Goodput;

// ranks that each die once in mtbf_hours; seconds of a step, of a save, of a restart.
double goodput_share(int ranks, double mtbf_hours, double step, double save, double restart, double every);
// By the best number of steps.
Goodput goodput_best(int ranks, double mtbf_hours, double step, double save, double restart);
