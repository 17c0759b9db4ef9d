// balance.h - what to take off the slow ranks of a tensor-parallel group: nothing, a part of their matmuls (resizing,
// lossy: Wang et al. 2024, "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control"), slices that
// others compute for them (migration, exact), or both (SEMI). The paper gives the ideas; the formulas here are our own.
// Work is counted in slices of one hidden unit; a head is `head_work` of them. Everything here is a pure function of
// numbers that all ranks have: they come to the same decision.
#pragma once
#include "plan/model/split.h"

// DOCUMENTS: nothing inside a group, plans give slow groups less.
typedef enum BalanceMode {
    BALANCE_OFF,
    BALANCE_DOCUMENTS,
    BALANCE_RESIZE,
    BALANCE_MIGRATE,
    BALANCE_SEMI
} BalanceMode;

// ---- the decision

// Milliseconds that migration costs: a rank that sends pays fixed + send a slice, a rank that takes fixed + take a
// slice.
typedef struct MoveCost {
    double fixed, send, take;
} MoveCost;

typedef struct BalanceSetting {
    BalanceMode mode;
    // Acts when the slowest takes more than start times the (lower) median; then goes on down to stop times. Those
    // above stop times the median are stragglers. 1.2, 1.1
    double start, stop;
    double most_pruned;  // of a rank's resizable work
    double semi_lambda;  // see balance_decide; 0: fastest, infinite: lossless
    MoveCost cost;
} BalanceSetting;

typedef struct RankSpeed {
    double v, n, c;   // slices a millisecond; that it owns; ms that can neither move nor shrink
    double prunable;  // fraction of a slice's time that resizing saves: 1 where only matmuls are counted
    double room;      // slices that it can take besides its own
    double movable;   // slices that it can give away
} RankSpeed;

// In whole heads and hidden units.
typedef struct SliceCount {
    int heads, hidden;
} SliceCount;

typedef struct BalanceDecision {
    int active;
    double step_ms, idle_ms;                     // expected with this decision, and with none
    double objective;                            // SEMI's J
    double pruned[MOST_TP];                      // gamma: fraction of the resizable work that stays which is left out
    double sent[MOST_TP], taken[MOST_TP];        // slices
    double v[MOST_TP];                           // speeds that it was made with
    SliceCount counts[MOST_TP], tiles[MOST_TP];  // what each computes; heads and tiles, the last may be short
} BalanceDecision;

// What the ranks of a group own and may come to compute, in units that go whole.
typedef struct UnitGroup {
    int ranks, tile, keep_heads;  // hidden units go in tiles; a rank keeps its first tile and so many heads
    double head_work, matrices;   // a head in hidden units: all of it; its matrices, without attention
    SliceCount own[MOST_TP], most[MOST_TP];
} UnitGroup;

// What one rank measured of its last steps, mean ms of one: see kernels/timer.h. The slices that it ran: n_own less
// sent, more taken; of these the fraction `pruned` of the resizable part was left out.
typedef struct RankTimes {
    double linear, attention, other;
    double slices, pruned;
} RankTimes;

// What is remembered from decision to decision: un-pruned speeds, smoothed; a jump by more than 30 % starts anew.
typedef struct BalanceMemory {
    int steps, active;
    double v[MOST_TP], c[MOST_TP], prunable[MOST_TP];
    BalanceDecision last;  // stays until another is better by 2 % of J (SEMI), of the step, or of what is left out
} BalanceMemory;

// times (ranks), agreed by all ranks.
void balance_learn(BalanceMemory* memory, const RankTimes* times, int ranks);
// In whole units, and of the steps that they take. SEMI's is the one of 64 steps T with the least
// J(T) = T (1 + lambda sum_s g_s^2 n_s / S): rank s leaves out the fraction g_s of its n_s slices, S are those of all
// ranks, lambda is the setting's.
BalanceDecision balance_decide(BalanceMemory* memory, const BalanceSetting* setting, const UnitGroup* units);
// Another division for good, which nothing is left out of: active where it gains a tenth.
BalanceDecision balance_redivide(const BalanceMemory* memory, const BalanceSetting* setting, const UnitGroup* units);
// For ranks to compare.
uint64_t balance_hash(const BalanceDecision* decision, int ranks);

// The lossless optimum: who sends and who takes how many slices (ranks each, >= 0), so that all end at the same time
// as far as that helps. Returns the time of the step. Nothing moves where no rank gains, or where sending a slice is
// not cheaper than computing it.
double balance_move(double* sent, double* taken, const RankSpeed* ranks, int n_ranks, const MoveCost* cost);

// ---- in whole heads and hidden units

// Divides what ranks with d->sent > 0 have among those with d->taken > 0, each kind of unit so that its slowest rank
// ends soonest with d->pruned as it is; fills counts, tiles, sent, taken and step_ms.
void balance_divide(BalanceDecision* d, const RankSpeed* ranks, const UnitGroup* units, const MoveCost* cost);

// Slices of `from` that `to` computes in its stead: its own heads head .. head + heads and hidden units first_hidden ..
// first_hidden + hidden, counted from its first.
typedef struct Move {
    int from, to;
    int head, heads, first_hidden, hidden;
} Move;

// The moves that lead from own to tiles, heads and tiles of hidden units. What a rank gives are the last of its own,
// from a multiple of `tile` on, so that its last tile may be short. Their number, at most 2 * ranks; in order of
// `from`, then `to`, a pair once.
int balance_moves(Move* moves, const SliceCount* own, const SliceCount* tiles, int ranks, int tile);
// What `rank` computes with these moves.
SliceCount balance_count(const Move* moves, int n_moves, const SliceCount* own, int rank);
