// balance.h - decides what to take off the slow ranks of a tensor-parallel group: nothing, a part of their matmuls
// (resizing, lossy: Wang et al. 2024, "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control"),
// slices that others compute for them (migration, exact), or both (SEMI). The paper gives the ideas; the formulas are
// our own. Work is counted in slices of one hidden unit; a head is `head_work` of them. Everything here is a pure
// function of numbers that all ranks have, so they make the same decision.
#pragma once
#include "plan/model/split.h"

// DOCUMENTS takes nothing off inside a group, but plans give slow groups less.
typedef enum BalanceMode { BALANCE_OFF, BALANCE_DOCUMENTS, BALANCE_RESIZE, BALANCE_MIGRATE, BALANCE_SEMI } BalanceMode;

// ---- the decision

// The milliseconds of a migration: a rank that sends pays fixed + send a slice, a rank that takes fixed + take a slice.
typedef struct MoveCost {
    double fixed, send, take;
} MoveCost;

typedef struct BalanceSetting {
    BalanceMode mode;
    // It acts when the slowest takes more than start (1.2) times the (lower) median, and goes on down to stop (1.1)
    // times. Ranks above stop times the median are stragglers.
    double start, stop;
    double most_pruned;  // a fraction of a rank's resizable work
    double semi_lambda;  // see balance_decide; 0: fastest, infinite: lossless
    MoveCost cost;
} BalanceSetting;

typedef struct RankSpeed {
    double v, n, c;   // slices a millisecond; slices that it owns; ms that can neither move nor shrink
    double prunable;  // fraction of a slice's time that resizing saves; 1: only matmuls count
    double room;      // slices that it can take besides its own
    double movable;   // slices that it can give away
} RankSpeed;

// A number of whole heads and hidden units.
typedef struct SliceCount {
    int heads, hidden;
} SliceCount;

typedef struct BalanceDecision {
    int active;
    double step_ms, idle_ms;                     // expected with this decision, and with none
    double objective;                            // SEMI's J
    double pruned[MOST_TP];                      // gamma: fraction left out of the resizable work that stays
    double sent[MOST_TP], taken[MOST_TP];        // slices
    double v[MOST_TP];                           // speeds behind the decision
    SliceCount counts[MOST_TP], tiles[MOST_TP];  // what each computes; heads and tiles, the last may be short
} BalanceDecision;

// The units that the ranks of a group own and may compute; units move whole.
typedef struct UnitGroup {
    int ranks, tile, keep_heads;  // hidden units go in tiles; a rank keeps its first tile and so many heads
    double head_work, matrices;   // a head in hidden units: all; its matrices alone
    SliceCount own[MOST_TP], most[MOST_TP];
} UnitGroup;

// Such a number in hidden units: all of the work, or that of matrices alone.
static inline double units_work(const UnitGroup* x, SliceCount n) { return n.hidden + n.heads * x->head_work; }
static inline double units_matrices(const UnitGroup* x, SliceCount n) { return n.hidden + n.heads * x->matrices; }

// A rank's mean ms of its last steps: see kernels/timer.h. slices: those that it ran, its own without sent, with taken.
// It left out the fraction `pruned` of their resizable part.
typedef struct RankTimes {
    double linear, attention, other;
    double slices, pruned;
} RankTimes;

// The memory from decision to decision: un-pruned speeds, smoothed; a jump by more than 30 % starts anew.
typedef struct BalanceMemory {
    int steps, active;
    double v[MOST_TP], c[MOST_TP], prunable[MOST_TP];
    BalanceDecision last;  // stays until another is better by 2 % of J (SEMI), of the step, or of the fraction left out
} BalanceMemory;

// Learns from times (ranks), on which all ranks agree.
void balance_learn(BalanceMemory* memory, const RankTimes* times, int ranks);
// Decides in whole units, by the steps that these take. SEMI takes the one of 64 steps T with the least J(T) = T (1 +
// lambda sum_s g_s^2 n_s / S): rank s leaves out the fraction g_s of its n_s slices, S are those of all ranks, lambda
// is the setting's.
BalanceDecision balance_decide(BalanceMemory* memory, const BalanceSetting* setting, const UnitGroup* units);
// A hash by which ranks compare decisions.
uint64_t balance_hash(const BalanceDecision* decision, int ranks);

// Finds the lossless optimum: the slices that each rank sends and takes (ranks each, >= 0), so that all end at the same
// time as far as that helps. Returns the time of the step. Nothing moves if no rank gains, or if sending a slice is not
// cheaper than computing it.
double balance_move(double* sent, double* taken, const RankSpeed* ranks, int n_ranks, const MoveCost* cost);

// ---- in whole heads and hidden units

// Divides the units of ranks with d->sent > 0 among those with d->taken > 0. Each kind's slowest rank ends soonest with
// d->pruned as it is. It fills counts, tiles, sent, taken and step_ms.
void balance_divide(BalanceDecision* d, const RankSpeed* ranks, const UnitGroup* units, const MoveCost* cost);

// The slices of `from` that `to` computes in its stead: its own heads head .. head + heads and hidden units
// first_hidden .. first_hidden + hidden, counted from its first.
typedef struct Move {
    int from, to;
    int head, heads, first_hidden, hidden;
} Move;

// Lists the moves from own to tiles (heads, and tiles of hidden units). A rank gives the last of its own, from a
// multiple of `tile` on, so its last tile may be short. Returns their number, at most 2 * ranks; they are in order of
// `from`, then `to`, a pair once.
int balance_moves(Move* moves, const SliceCount* own, const SliceCount* tiles, int ranks, int tile);
// The units that `rank` computes with these moves.
SliceCount balance_count(const Move* moves, int n_moves, const SliceCount* own, int rank);
