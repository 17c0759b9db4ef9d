// balance.c - remembers the ranks of a group, and decides about slow ones; see balance.h.
//
// A rank measures its work under the last decision, so that is undone first: matmuls that ran with a fraction g left
// out would take linear / (1 - g), and slices are counted as they ran. Without this the controller swings: a resized
// straggler looks healthy, is not resized, looks slow.
//
// Two thresholds keep noise out (Wang et al. 2024 act on slowness that lasts; the numbers are ours). A decision stays
// until another is clearly better, because speeds are noisy, J is often flat or has two valleys, and rounding changes
// the measurements. The lower median counts for an even number of ranks, so that one slow rank of two is seen.
//
// The slices to send, take and leave out are first found in fractions. Of that the fractions left out stay, and who
// sends and who takes; balance_divide makes whole units.
#include "plan/slow/balance.h"

#include <math.h>

static const double CLEARLY = 0.02;  // a fraction of the step or of J, or of a rank's matmuls
enum { SEMI_TARGETS = 64 };

// The ms of a rank's step while nothing is taken off it.
static double rank_ms(const RankSpeed* r) { return r->c + r->n / r->v; }

// ---- memory

static int is_jump(double old, double now) { return !(now <= 1.3 * old && old <= 1.3 * now); }

static void smooth(double* value, double now, int anew) {
    *value = anew || is_jump(*value, now) ? now : *value + (now - *value) / 2;
}

void balance_learn(BalanceMemory* memory, const RankTimes* times, int ranks) {
    for (int r = 0; r < ranks; r++) {
        const RankTimes* t = &times[r];
        double linear = t->pruned < 1 ? t->linear / (1 - t->pruned) : 0, busy = linear + t->attention;
        int says_something = linear > 0 && busy < 1e300 && t->slices > 0 && t->other >= 0 && t->other < 1e300;
        if (!says_something) continue;  // nor does NaN
        double v = t->slices / busy;
        int anew = memory->v[r] <= 0 || is_jump(memory->v[r], v);
        smooth(&memory->v[r], v, anew);
        smooth(&memory->c[r], t->other, anew);
        smooth(&memory->prunable[r], linear / busy, anew);
    }
    memory->steps++;
}

// ---- migration: the lossless optimum
//
// A rank that sends x slices ends at c + a + n/v - x (1/v - b), one that takes x at c + a + n/v + x (1/v + b'), a, b
// and b' being MoveCost's fixed, send and take. The step can end at T if the ranks above T must send no more than those
// below can take by then. The first falls with T, the second rises, so the least T is found by halving. T never falls
// below a rank that would not win back the fixed cost.

typedef struct Group {
    const RankSpeed* ranks;
    int n_ranks;
    const MoveCost* cost;
} Group;

// The slices that a rank can take and still end by `target`.
static double can_take(const RankSpeed* r, const MoveCost* cost, double target) {
    double spare = target - rank_ms(r) - cost->fixed;
    return spare > 0 ? MIN(r->room, spare / (1 / r->v + cost->take)) : 0;
}

// The milliseconds that a rank gains with each slice it sends; none if sending takes as long as computing.
static double gain_a_slice(const RankSpeed* r, const MoveCost* cost) { return 1 / r->v - cost->send; }

// The slices that rank r must send to end by `target`.
static double must_send(const Group* x, int r, double target) {
    double over = rank_ms(&x->ranks[r]) - target;
    return over > 0 ? (over + x->cost->fixed) / gain_a_slice(&x->ranks[r], x->cost) : 0;
}

// The soonest end of a rank that sends all it may, or nothing.
static double soonest_end(const Group* x, int r) {
    double ms = rank_ms(&x->ranks[r]);
    return MIN(ms + x->cost->fixed - x->ranks[r].movable * gain_a_slice(&x->ranks[r], x->cost), ms);
}

// Returns 1 if helpers can take by `target` all that must be sent then; or `slices`, if not negative.
static int is_enough(const Group* x, double slices, double target) {
    double supply = 0, demand = MAX(slices, 0);
    for (int r = 0; r < x->n_ranks; r++) {
        supply += can_take(&x->ranks[r], x->cost, target);
        if (slices < 0) demand += must_send(x, r, target);
    }
    return demand <= supply;
}

// The least target in [low, high] that is enough; high, if none is.
static double least_target(const Group* x, double slices, double low, double high) {
    if (low >= high || is_enough(x, slices, low)) return MIN(low, high);
    double middle;  // until no number lies between the two
    while ((middle = low + (high - low) / 2) > low && middle < high) {
        if (is_enough(x, slices, middle)) high = middle;
        else low = middle;
    }
    return high;
}

double balance_move(double* sent, double* taken, const RankSpeed* ranks, int n_ranks, const MoveCost* cost) {
    Group x = {ranks, n_ranks, cost};
    double fastest = INFINITY, slowest = 0, pinned = 0, all = 0;
    for (int r = 0; r < n_ranks; r++) {
        fastest = MIN(fastest, rank_ms(&ranks[r]));
        slowest = MAX(slowest, rank_ms(&ranks[r]));
        pinned = MAX(pinned, soonest_end(&x, r));
    }
    double T = least_target(&x, -1, pinned, slowest);
    for (int r = 0; r < n_ranks; r++) {
        sent[r] = MIN(must_send(&x, r, T), ranks[r].movable);
        all += sent[r];
    }
    // Helpers share the slices so that the last one ends soonest.
    double end = all > 0 ? least_target(&x, all, MIN(fastest, T), T) : MIN(fastest, T);
    for (int r = 0; r < n_ranks; r++) taken[r] = can_take(&ranks[r], cost, end);
    return T;
}

// ---- in whole heads and hidden units
//
// Attention and MLP each end in a communication of the whole group, and so does all that cannot move. So a step takes
//   T = max c + max heads head_ms + max hidden hidden_ms + max moving          each maximum over the ranks
// with head_ms = (matrices of a head) hidden_ms (1 - g) + attention, g the fraction of its matmuls that a rank leaves
// out. Each maximum is made least for itself. Units go one at a time from the rank that decides it to the one that ends
// first with it, as long as that is sooner: then no other division of equal units ends sooner, since the last to give
// cannot, or would take as long elsewhere. What moves is sent before the first segment and comes back after the last.

typedef struct UnitTimes {
    double head, hidden;  // ms of one
} UnitTimes;

static UnitTimes unit_times(const RankSpeed* rank, SliceCount own, const UnitGroup* x, double pruned) {
    double ms = rank->n / rank->v, matmuls = units_matrices(x, own);
    double hidden = rank->prunable * ms / matmuls, attention = own.heads ? (1 - rank->prunable) * ms / own.heads : 0;
    return (UnitTimes){x->matrices * hidden * (1 - pruned) + attention, hidden * (1 - pruned)};
}

// The hidden units that a rank takes (> 0) or gives; a head counts as `head` of them.
static double moved(SliceCount own, SliceCount now, double head) {
    return now.hidden - own.hidden + (now.heads - own.heads) * head;
}

// Returns T. pruned (ranks): the fraction of its matmuls that each leaves out.
static double step_ms(const SliceCount* counts, const double* pruned, const RankSpeed* ranks, const UnitGroup* x,
                      const MoveCost* cost) {
    double c = 0, attention = 0, mlp = 0, moving = 0;
    for (int r = 0; r < x->ranks; r++) {
        UnitTimes t = unit_times(&ranks[r], x->own[r], x, pruned[r]);
        double change = moved(x->own[r], counts[r], x->matrices);
        c = MAX(c, ranks[r].c);
        attention = MAX(attention, counts[r].heads * t.head);
        mlp = MAX(mlp, counts[r].hidden * t.hidden);
        if (change < 0) moving = MAX(moving, cost->fixed - change * cost->send);
        if (change > 0) moving = MAX(moving, cost->fixed + change * cost->take);
    }
    return c + attention + mlp + moving;
}

// ---- one kind of unit, divided: heads, or hidden units, which go in tiles

enum { GIVES = -1, TAKES = 1 };

typedef struct UnitShare {
    int count, tiles;  // those of a rank; its last tile may be short
    int least, most;   // bounds of count
    int role;          // 0: neither gives nor takes
    double ms;         // of one
} UnitShare;

static double end_of(const UnitShare* x, int more) { return (x->count + more) * x->ms; }

static void divide_kind(UnitShare* of, int ranks, int tile) {
    for (;;) {
        UnitShare *last = of, *first = NULL;
        for (int r = 1; r < ranks; r++)
            if (end_of(&of[r], 0) > end_of(last, 0)) last = &of[r];
        int size = last->count % tile ? last->count % tile : tile;
        if (last->role != GIVES || last->count - size < last->least) return;
        for (int r = 0; r < ranks; r++) {
            if (of[r].role != TAKES || of[r].count + tile > of[r].most) continue;
            if (!first || end_of(&of[r], size) < end_of(first, size)) first = &of[r];
        }
        if (!first || end_of(first, size) >= end_of(last, 0)) return;
        last->count -= size, last->tiles--;
        first->count += size, first->tiles++;
    }
}

void balance_divide(BalanceDecision* d, const RankSpeed* ranks, const UnitGroup* x, const MoveCost* cost) {
    UnitShare heads[MOST_TP], hidden[MOST_TP];
    Move moves[2 * MOST_TP];
    for (int r = 0; r < x->ranks; r++) {
        UnitTimes t = unit_times(&ranks[r], x->own[r], x, d->pruned[r]);
        int role = d->sent[r] > 0 ? GIVES : d->taken[r] > 0 ? TAKES : 0;
        SliceCount own = x->own[r], most = x->most[r];
        heads[r] = (UnitShare){own.heads, own.heads, x->keep_heads, most.heads, role, t.head};
        hidden[r] = (UnitShare){own.hidden, CEIL_DIV(own.hidden, x->tile), MIN(x->tile, own.hidden), most.hidden, role,
                                t.hidden};
    }
    divide_kind(heads, x->ranks, 1);
    divide_kind(hidden, x->ranks, x->tile);
    for (int r = 0; r < x->ranks; r++) d->tiles[r] = (SliceCount){heads[r].tiles, hidden[r].tiles};
    // The moves settle who gets a short tile.
    int n_moves = balance_moves(moves, x->own, d->tiles, x->ranks, x->tile);
    for (int r = 0; r < x->ranks; r++) {
        d->counts[r] = balance_count(moves, n_moves, x->own, r);
        double change = moved(x->own[r], d->counts[r], x->head_work);
        d->sent[r] = MAX(0, -change), d->taken[r] = MAX(0, change);
    }
    d->step_ms = step_ms(d->counts, d->pruned, ranks, x, cost);
}

// ---- moves
//
// Givers and takers are matched in order of their ranks, which leaves few pairs: at most one less than givers and
// takers together, for heads and for hidden units.

// Takes from both what both have, and returns it.
static int match(int* give, int* get) {
    int n = MAX(0, MIN(*give, *get));
    *give -= n;
    *get -= n;
    return n;
}

int balance_moves(Move* moves, const SliceCount* own, const SliceCount* tiles, int ranks, int tile) {
    int n = 0, get_heads[MOST_TP], get_tiles[MOST_TP];  // less than 0: to give
    for (int r = 0; r < ranks; r++) {
        get_heads[r] = tiles[r].heads - own[r].heads;
        get_tiles[r] = tiles[r].hidden - CEIL_DIV(own[r].hidden, tile);
    }
    for (int from = 0; from < ranks; from++) {
        int give_heads = MAX(0, -get_heads[from]), give_tiles = MAX(0, -get_tiles[from]);
        int head = own[from].heads - give_heads, first_tile = CEIL_DIV(own[from].hidden, tile) - give_tiles;
        for (int to = 0; to < ranks; to++) {
            int n_heads = match(&give_heads, &get_heads[to]), n_tiles = match(&give_tiles, &get_tiles[to]);
            if (n_heads == 0 && n_tiles == 0) continue;
            int first = MIN(first_tile * tile, own[from].hidden), end = MIN(first + n_tiles * tile, own[from].hidden);
            moves[n++] = (Move){from, to, head, n_heads, first, end - first};
            head += n_heads;
            first_tile += n_tiles;
        }
    }
    return n;
}

SliceCount balance_count(const Move* moves, int n_moves, const SliceCount* own, int rank) {
    SliceCount count = own[rank];
    for (int i = 0; i < n_moves; i++) {
        int sign = (moves[i].to == rank) - (moves[i].from == rank);
        count.heads += sign * moves[i].heads;
        count.hidden += sign * moves[i].hidden;
    }
    return count;
}

// ---- what is to be decided

typedef struct Question {
    const BalanceSetting* setting;
    const UnitGroup* units;
    const BalanceDecision* last;
    int n_ranks;
    RankSpeed ranks[MOST_TP];
    int order[MOST_TP];  // from the slowest rank on, equals by number
    double median;       // ms; of an even number the lower one
} Question;

// Fills in the question. Work that cannot move ends in exchanges of its own, so on all ranks it takes as long as on the
// slowest. Returns the slowest rank's time, 0 if nothing is known of one.
static double ask(Question* q, const BalanceMemory* memory, const BalanceSetting* setting, const UnitGroup* units) {
    double c = 0, slowest = 0;
    *q = (Question){.setting = setting, .units = units, .last = &memory->last, .n_ranks = units->ranks};
    for (int r = 0; r < q->n_ranks; r++) c = MAX(c, memory->c[r]);
    for (int r = 0; r < q->n_ranks; r++) {
        SliceCount own = units->own[r];
        double first_tile = units_work(units, (SliceCount){own.heads - units->keep_heads, own.hidden}) - units->tile;
        SliceCount spare = {MAX(0, units->most[r].heads - own.heads), MAX(0, units->most[r].hidden - own.hidden)};
        if (!(memory->v[r] > 0)) return 0;
        q->ranks[r] = (RankSpeed){memory->v[r],        units_work(units, own),   c,
                                  memory->prunable[r], units_work(units, spare), MAX(0, first_tile)};
        int i = r;
        for (; i > 0 && rank_ms(&q->ranks[q->order[i - 1]]) < rank_ms(&q->ranks[r]); i--) q->order[i] = q->order[i - 1];
        q->order[i] = r;
        slowest = MAX(slowest, rank_ms(&q->ranks[r]));
    }
    q->median = rank_ms(&q->ranks[q->order[q->n_ranks / 2]]);
    return slowest;
}

// ---- resizing: the share of its matmuls that a straggler leaves out
//
// gamma is Wang et al.'s pruning ratio (2024). We find it from un-pruned times, so that a rank that meets the target
// only because it is resized stays resized.

// The milliseconds of all of a rank's resizable work.
static double resizable_ms(const RankSpeed* r) { return r->prunable * r->n / r->v; }

// The step if stragglers only leave out: the slowest of the others, or a straggler that leaves out all it may. No rank
// needs to go below that. A rank that leaves nothing out now is a straggler only from `start` on, or noise would make
// healthy ones lossy.
static double resize_ms(const Question* q) {
    double target = 0;
    for (int r = 0; r < q->n_ranks; r++) {
        double ms = rank_ms(&q->ranks[r]);
        double edge = q->last->active && q->last->pruned[r] > 0 ? q->setting->stop : q->setting->start;
        if (ms > edge * q->median) ms -= q->setting->most_pruned * resizable_ms(&q->ranks[r]);
        target = MAX(target, ms);
    }
    return target;
}

static double resize(BalanceDecision* d, const Question* q) {
    double target = resize_ms(q);
    for (int r = 0; r < q->n_ranks; r++) {
        double m = resizable_ms(&q->ranks[r]), over = m + (rank_ms(&q->ranks[r]) - m) - target;
        d->pruned[r] = over > 0 && m > 0 ? MIN(over / m, q->setting->most_pruned) : 0;
    }
    balance_divide(d, q->ranks, q->units, &q->setting->cost);
    return target;
}

static double migrate(BalanceDecision* d, const Question* q) {
    double T = balance_move(d->sent, d->taken, q->ranks, q->n_ranks, &q->setting->cost);
    balance_divide(d, q->ranks, q->units, &q->setting->cost);
    return T;
}

// ---- SEMI: shares of resizing and migration together
//
// The heaviest straggler sends what it needs of what helpers can take by a target, then the next. The fixed cost pays
// best where most slices leave, and the largest fraction left out costs most. A straggler leaves out what it cannot
// send; it sends only if that leaves out less than sending nothing. The one of 64 targets with the least J is taken, at
// equal distances between the step of pure resizing and the lossless one.

// Sets the slices that a straggler sends, at most `most_sent`, and the fraction left out of the rest, to end by target.
static void divide_straggler(double* sent, double* pruned, const BalanceSetting* setting, const RankSpeed* r,
                             double most_sent, double target) {
    double over = rank_ms(r) - target, gain = gain_a_slice(r, &setting->cost);
    double left_out = over * r->v / r->prunable;
    *sent = 0, *pruned = MIN(left_out / r->n, setting->most_pruned);
    if (gain <= 0 || most_sent <= 0) return;
    double needed = (over + setting->cost.fixed) / gain, u = MIN(needed, most_sent);
    double rest = u < needed ? (needed - u) * gain * r->v / r->prunable : 0;
    if (rest >= left_out || rest > setting->most_pruned * (r->n - u)) return;
    *sent = u, *pruned = rest > 0 ? rest / (r->n - u) : 0;
}

// J of balance_decide, for d->step_ms and the fractions left out.
static double objective(const BalanceDecision* d, const Question* q) {
    double loss = 0, slices = 0;
    for (int r = 0; r < q->n_ranks; r++) {
        double n = q->ranks[r].n, g = d->pruned[r] * (n - d->sent[r]) / n;
        loss += g * g * n;
        slices += n;
    }
    return d->step_ms * (loss > 0 ? 1 + q->setting->semi_lambda * loss / slices : 1);  // infinity times 0 is NaN
}

// Decides for one target.
static void decide_for(BalanceDecision* d, const Question* q, double target) {
    const BalanceSetting* setting = q->setting;
    double supply = 0, all_sent = 0;
    for (int r = 0; r < q->n_ranks; r++) {
        supply += d->taken[r] = can_take(&q->ranks[r], &setting->cost, target);
        d->sent[r] = d->pruned[r] = 0;
    }
    for (int i = 0; i < q->n_ranks && rank_ms(&q->ranks[q->order[i]]) > target; i++) {
        int r = q->order[i];
        double most = MIN(supply - all_sent, q->ranks[r].movable);
        divide_straggler(&d->sent[r], &d->pruned[r], setting, &q->ranks[r], most, target);
        all_sent += d->sent[r];
    }
    balance_divide(d, q->ranks, q->units, &setting->cost);
}

static double resize_and_migrate(BalanceDecision* d, const Question* q) {
    BalanceDecision lossless = *d, next = *d;
    double least = resize_ms(q), T = migrate(&lossless, q);
    lossless.objective = objective(&lossless, q);
    d->objective = INFINITY;
    for (int i = 0; i < SEMI_TARGETS - 1 && T > least; i++) {
        decide_for(&next, q, least + (T - least) * i / (SEMI_TARGETS - 1));
        next.objective = objective(&next, q);
        if (next.objective < d->objective) *d = next;
    }
    // The last target is balance_move's: it leaves nothing out, not even by rounding.
    if (!(d->objective <= lossless.objective)) *d = lossless;
    return d->objective;
}

// ---- the decision

// The policies of the modes about stragglers. Each returns the value that it minimised, in fractions of slices.
static double (*const policies[])(BalanceDecision*, const Question*) = {
    [BALANCE_RESIZE] = resize, [BALANCE_MIGRATE] = migrate, [BALANCE_SEMI] = resize_and_migrate};

static double expected_ms(const BalanceDecision* d, const Question* q) {
    return step_ms(d->counts, d->pruned, q->ranks, q->units, &q->setting->cost);
}

// The decision by which all ranks compute what they own.
static BalanceDecision idle(const Question* q) {
    BalanceDecision d = {0};
    for (int r = 0; r < q->n_ranks; r++) d.v[r] = q->ranks[r].v, d.counts[r] = q->units->own[r];
    d.step_ms = d.idle_ms = expected_ms(&d, q);
    return d;
}

// Returns 1 if the last decision is nearly as good as `now`. Sets its times to those expected of it now.
static int still_good(BalanceDecision* last, const BalanceDecision* now, const Question* q) {
    int lossier = 0, semi = q->setting->mode == BALANCE_SEMI;
    for (int r = 0; r < q->n_ranks; r++) lossier = lossier || last->pruned[r] > now->pruned[r] + CLEARLY;
    last->step_ms = expected_ms(last, q);
    last->idle_ms = now->idle_ms;
    int faster = last->step_ms * (1 + CLEARLY) < now->step_ms;
    if (semi) last->objective = objective(last, q);
    if ((lossier && !(semi && faster)) || last->step_ms >= now->idle_ms) return 0;
    return semi ? last->objective <= (1 + CLEARLY) * now->objective : last->step_ms <= (1 + CLEARLY) * now->step_ms;
}

BalanceDecision balance_decide(BalanceMemory* memory, const BalanceSetting* setting, const UnitGroup* units) {
    BalanceDecision none = {0}, last = memory->last;
    Question q;
    double slowest = ask(&q, memory, setting, units), edge = memory->active ? setting->stop : setting->start;
    memory->last = none;
    if (slowest == 0) return none;
    q.last = &last;
    none = idle(&q);
    memory->active = setting->mode > BALANCE_DOCUMENTS && slowest > edge * q.median;
    if (!memory->active) return none;
    BalanceDecision d = none;
    policies[setting->mode](&d, &q);
    if (!(d.step_ms < d.idle_ms)) return none;
    d.active = 1;
    if (last.active && still_good(&last, &d, &q)) d = last;
    memory->last = d;
    return d;
}

uint64_t balance_hash(const BalanceDecision* decision, int ranks) {
    const double scalars[] = {decision->active, decision->step_ms, decision->idle_ms, decision->objective};
    const double* arrays[] = {decision->v, decision->pruned, decision->sent, decision->taken};
    uint64_t hash = hash_bytes(scalars, sizeof scalars, (uint64_t)ranks);
    for (int i = 0; i < COUNT(arrays); i++) hash = hash_bytes(arrays[i], (size_t)ranks * sizeof *arrays[i], hash);
    return hash_bytes(decision->tiles, (size_t)ranks * sizeof *decision->tiles, hash);
}
