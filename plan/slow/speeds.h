// speeds.h - the speed of every rank, learnt from steps, so that plans give slow ranks less to do. Nothing is lost,
// because who computes a document changes no result. The foot has ranks that --straggle makes slow.
//
// In a plan rank r has w = quadratic + linear terms and i = micro-batch terms to compute: its own share of the
// micro-batches that contain it at speed 1, in ms of the cost model. The planner predicts w / v + i at the speed v that
// is set for it (timeline.h). If ranks measured y, without waiting and without communication, then
//   c = middle over ranks of y / (w / v + i)       what the model itself is off by: plan/cost/calibration.h learns that
//   s = (y / c - i) / w                            the slowness of a rank in this step
// where the middle is the mean of the values within 10 % of the median (for an even number the middle value nearer to
// the middle of the step before; in the first step the lower one). A rank's slowness is the lower median of its last
// SPEED_MEMORY values, so a step that stalls does not count. After two steps in a row that are off by more than 30 % on
// the same side, those before them are forgotten. Steps in which fewer than two ranks had work are ignored.
//
// A speed is the middle of all ranks' slowness over a rank's own, so that a common factor stays with the cost model.
// Ranks within 10 % of it count as equal to it, and a set speed stays while it is less than 10 % off. Medians of fewer
// than SPEED_MEMORY values count for less, as the square root of their number; the speed is set anew when more of them
// are known. Speeds have 6 significant bits and are at least 1/64.
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
// These are pure functions of what all ranks know, so they give the same bits.
#pragma once
#include "plan/cost/calibration.h"

enum { SPEED_MEMORY = 15 };

// The memory of one rank.
typedef struct RankPace {
    double slowness;              // relative, as last learnt
    CostTerms expected;           // of the step to be measured, at speed 1; without communication
    double measured;              // ms of it; 0: not measured
    double recent[SPEED_MEMORY];  // slowness in the last steps in which it had work, the latest last
    int n;                        // values in `recent`
    int jump;                     // the latest was far above (1) or below (-1) the others
    int told;                     // it had work since the last refresh
    int idle, wait;               // steps without work; as many come before a trial
    int on_trial;                 // it is assumed to be faster than it last was
    int behind;                   // values behind the speed that is set
    int as_planned;               // it took the predicted time in the last step
} RankPace;

typedef struct Speeds {
    int ranks, steps;  // steps learnt from
    // 1: every rank took the time that plans assume in the last step, within 30 %. Only then the step's time says
    // something about the cost model, and calibration_learn should skip others. It is 0 in the two steps after a
    // change, which were planned before it.
    int held;
    int in_flight;         // those of these two steps that are to come
    int urgent;            // plans should not wait for the next refresh: a trial fails, or a rank jumped twice
    double common;         // c of the last step that showed it clearly, 0 before
    double *speeds, *now;  // (ranks) as set, all 1 at the beginning; scratch
    RankPace* paces;       // (ranks)
} Speeds;

int speeds_start(Speeds* speeds, int ranks, Arena* arena);  // all ranks equal; 0, or -1 without memory

// Sets of_rank (ranks) to the time of every rank of a plan at speed 1, without communication. setting: its limits, and
// the best cost known now, that of calibration_apply.
void speeds_expect(CostTerms* of_rank, const Plan* plan, const int* lengths, const Setting* setting);
// Learns from one step, by whatever cost and speeds it was planned. expected: what every rank should have taken.
// compute_ms (ranks): that of its micro-batches, without waiting, communication and update; 0: not measured.
void speeds_learn(Speeds* speeds, const CostTerms* expected, const double* compute_ms);

// Teaches the calibration what it can learn from the ranks' computing, right after speeds_learn, if it made the cost of
// that. Its errors, those of whole steps, do not change.
void speeds_teach(const Speeds* speeds, Calibration* calibration);

// Sets the speeds to what was learnt. Returns 1 if one of them changed.
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

// Fills the first *n of list (MOST_STRAGGLERS). ranks: how many ranks there are. spec NULL or only blanks: none. 0, or
// -1 with a line that shows the place.
int straggle_parse(Straggler* list, int* n, const char* spec, int ranks, Err err);

// The factor by which something takes longer than by itself; 1 if nothing slows it.
typedef struct Slowness {
    double linear;  // the matmuls of the linears
    double whole;   // everything
} Slowness;

// The slowness of a rank in a step, the first is 1. Stragglers that overlap multiply.
Slowness straggle_at(const Straggler* list, int n, int rank, int64_t step);
