// balance_move.c - the lossless optimum: which ranks send slices to which, when that costs something.
//
// A rank that sends x slices ends at c + a + n/v - x (1/v - b), one that takes x at c + a + n/v + x (1/v + b'), a, b
// and b' being MoveCost's fixed, send and take. The step can end at T if what the ranks above T must send is not more
// than what those below can take by then. The first falls with T, the second rises, so the least T is found by halving.
// Where neither a limit nor a fixed cost binds, it is sum(k E) / sum(k) over all who send or take, E = c + a + n/v and
// k = 1 / (1/v -+ b).
//
// Many small senders need no case of their own: T never falls below a rank that would not win back the fixed cost.
#include "plan/balance_parts.h"

typedef struct Ranks {
    const RankSpeed* ranks;
    int n_ranks;
    const MoveCost* cost;
} Ranks;

// Slices that rank r must send to end by `target`.
static double must_send(const Ranks* x, int r, double target) {
    double over = rank_ms(&x->ranks[r]) - target;
    return over > 0 ? (over + x->cost->fixed) / rank_gain(&x->ranks[r], x->cost) : 0;
}

// The soonest that a rank can end by sending all it may, or by sending nothing.
static double soonest_end(const Ranks* x, int r) {
    double ms = rank_ms(&x->ranks[r]);
    return MIN(ms + x->cost->fixed - x->ranks[r].movable * rank_gain(&x->ranks[r], x->cost), ms);
}

// Whether helpers can take by `target` what must be sent then; or `slices`, if not negative.
static int is_enough(const Ranks* x, double slices, double target) {
    double supply = 0, demand = MAX(slices, 0);
    for (int r = 0; r < x->n_ranks; r++) {
        supply += rank_takes(&x->ranks[r], x->cost, target);
        if (slices < 0) demand += must_send(x, r, target);
    }
    return demand <= supply;
}

// The least target in [low, high] at which that is so; high, if none is.
static double least_target(const Ranks* x, double slices, double low, double high) {
    if (low >= high || is_enough(x, slices, low)) return MIN(low, high);
    double middle;  // until no number lies between the two
    while ((middle = low + (high - low) / 2) > low && middle < high) {
        if (is_enough(x, slices, middle)) high = middle;
        else low = middle;
    }
    return high;
}

void balance_take(double* taken, const RankSpeed* ranks, int n_ranks, const MoveCost* cost, double slices,
                  double target) {
    Ranks x = {ranks, n_ranks, cost};
    double first = target;
    for (int r = 0; r < n_ranks; r++) first = MIN(first, rank_ms(&ranks[r]));
    double end = slices > 0 ? least_target(&x, slices, first, target) : first;
    for (int r = 0; r < n_ranks; r++) taken[r] = rank_takes(&ranks[r], cost, end);
}

double balance_move(double* sent, double* taken, const RankSpeed* ranks, int n_ranks, const MoveCost* cost) {
    Ranks x = {ranks, n_ranks, cost};
    double slowest = 0, pinned = 0, all = 0;
    for (int r = 0; r < n_ranks; r++) {
        slowest = MAX(slowest, rank_ms(&ranks[r]));
        pinned = MAX(pinned, soonest_end(&x, r));
    }
    double T = least_target(&x, -1, pinned, slowest);
    for (int r = 0; r < n_ranks; r++) {
        sent[r] = MIN(must_send(&x, r, T), ranks[r].movable);
        all += sent[r];
    }
    balance_take(taken, ranks, n_ranks, cost, all, T);
    return T;
}
