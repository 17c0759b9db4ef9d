// speeds.h - how fast every rank computes, learnt from steps, so that plans give slow ranks less to do. Nothing is
// lost: who computes a document changes no result. At its foot ranks that --straggle makes slow.
//
// In a plan rank r has to compute w = quadratic + linear terms and i = micro-batch terms: its own share of the
// micro-batches that contain it at speed 1, in ms of the cost model. The planner predicts w / v + i at the speed v that
// is set for it (timeline.h). If ranks measured y, without waiting and without communication, then
//   c = middle over ranks of y / (w / v + i)       what the model itself is off by: plan/cost/calibration.h learns that
//   s = (y / c - i) / w                            the slowness of a rank in this step
// where the middle is the mean of what is within 10 % of the median (of the two middle ones of an even number the one
// that is nearer to the middle of the step before; in the first step the lower one). A rank's slowness is the lower
// median of its last SPEED_MEMORY values: a step that stalls does not count. After two steps in a row that are off by
// more than 30 % on the same side, those before them are forgotten. Steps in which fewer than two ranks had work say
// nothing.
//
// A speed is the middle of all ranks' slowness over a rank's own, so that a common factor stays with the cost model.
// Ranks within 10 % of it count as equal to it, and what is set stays while it is less than 10 % off. Medians of
// fewer than SPEED_MEMORY values count for less, as the square root of their number; the speed is set anew when
// more of them are known. Speeds have 6 significant bits and are at least 1/64.
//
// Attention that takes longer than the model says makes the rank with the longest document look slow. So the model must
// learn from the same numbers: speeds_teach gives it the times of those ranks that were as fast as assumed; the time of
// a whole step should reach it only where Speeds.held.
//
// A rank so slow that plans leave it out cannot show that it has recovered. So a slow rank without work for 100 steps
// is assumed to be 1.5 times faster at every refresh, until plans try it again. A trial in which it takes k times as
// long as assumed may make a step k times as long. So it must end at once (see urgent), and the next one waits for
// 100 k steps, or for twice as many as this one did: trials cost some 2 %, and less and less.
//
// Pure functions of what all ranks know: they come to the same bits.
#pragma once
#include "plan/cost/calibration.h"

enum { SPEED_MEMORY = 15 };

// What is remembered of one rank.
typedef struct RankPace {
    double slowness;              // relative, as last learnt
    CostTerms expected;           // of the step to be measured, at speed 1; without communication
    double measured;              // ms of it; 0: not measured
    double recent[SPEED_MEMORY];  // slowness in the last steps in which it had work, the latest last
    int n;                        // of them
    int jump;                     // the latest was far above (1) or below (-1) the others
    int told;                     // it had work since the last refresh
    int idle, wait;               // steps without work; how many of them before a trial
    int on_trial;                 // it is assumed to be faster than it last was
    int behind;                   // values that the speed which is set comes from
    int as_planned;               // in the last step it took the time that was predicted
} RankPace;

typedef struct Speeds {
    int ranks, steps;  // steps learnt from
    // Whether the last step's times are what plans assume of each rank, within 30 %. Only then does the time of the
    // step say something about the cost model: calibration_learn is to skip others. Not so in the two steps after a
    // change, which were planned before it.
    int held;
    int in_flight;         // of these steps, those to come
    int urgent;            // plans should not wait for the next refresh: a trial fails, or a rank has jumped twice
    double common;         // c of the last step that told it clearly, 0 before the first
    double *speeds, *now;  // (ranks) as set, all 1 at the beginning; scratch
    RankPace* paces;       // (ranks)
} Speeds;

int speeds_start(Speeds* speeds, int ranks, Arena* arena);  // all ranks equal; 0, or -1 without memory

// What every rank of a plan should take at speed 1 (ranks), without communication. setting: its limits, and the best
// cost that is known now, that of calibration_apply.
void speeds_expect(CostTerms* of_rank, const Plan* plan, const int* lengths, const Setting* setting);
// Learns from one step, whatever cost and speeds it was planned by: what every rank should have taken, and
// compute_ms (ranks): of its micro-batches, without waiting, communication and update; 0: not measured.
void speeds_learn(Speeds* speeds, const CostTerms* expected, const double* compute_ms);

// Right after it: what calibration can learn from the ranks' computing, if it made the cost that speeds_learn was
// given. Its errors, those of whole steps, do not change.
void speeds_teach(const Speeds* speeds, Calibration* calibration);

// Sets the speeds to what was learnt. Returns 1 when one of them changed.
int speeds_refresh(Speeds* speeds);

// ---- slow ranks on purpose, for tests: what --straggle says, and how slow a rank is in a step
//
//   --straggle "rank=1,x=4; rank=2,x=1.5,from=20,to=80,whole"
//
// Pieces are separated by ';', the words of a piece by ',', in any order; blanks around them do not matter.
//   rank=N  which one, from 0; required
//   x=F     how many times as slow, from 1 to 1000, fractions allowed; required
//   from=N  the first step, from 1; default 1
//   to=N    the last step, itself included; default: for ever
//   whole   everything that the rank computes is slowed, not only the matmuls of the linears
typedef struct Straggler {
    int rank;
    double x;
    int64_t from, to;
    int whole;
} Straggler;

enum { MOST_STRAGGLERS = 64 };

// Into list (MOST_STRAGGLERS), of which the first *n are filled; ranks: how many there are. Nothing but blanks, or
// NULL: none. 0, or -1 with a line that shows the place.
int straggle_parse(Straggler* list, int* n, const char* spec, int ranks, Err err);

// How many times as long something takes as it would by itself; 1 when nothing slows it.
typedef struct Slowness {
    double linear;  // the matmuls of the linears
    double whole;   // everything
} Slowness;

// Of a rank in a step, 1 for the first. Stragglers that overlap multiply.
Slowness straggle_at(const Straggler* list, int n, int rank, int64_t step);
