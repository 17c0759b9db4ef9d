// bound_shares.c - L4: a lower bound for documents whose tokens and heads are divided in any way.
//
// L3 speaks of groups that share evenly. Here rank r has any part x_r of a document's tokens, for which it does linear
// work, and any part h_r of its heads, whose attention it computes for all tokens. Of s tokens that is linear p s, p
// being ms a token, and attention q s^2; w is their sum. All-to-alls bring a rank the tokens of its heads and take
// results back: x_r (1 - h_r) + (1 - x_r) h_r of the document leave it, so that of what moves when nothing stays where
// it is, all ranks together move 1 - sum x_r h_r. How much can stay?
//
// A rank has at most y = tau - f ms for its parts, f being what a pass costs, so t_r = p s x_r + q s^2 h_r <= y, and by
// the inequality of the means x_r h_r <= t_r^2 / (4 p s q s^2). The t_r sum to w, so
//   sum x_r h_r <= max(x_r h_r / t_r) sum t_r <= y w / (4 p s q s^2).
// It is at most C / s, too: x_r <= C / s for the largest capacity C, and the h_r sum to 1. Let rho be the least of both
// and of 1. The same holds for nodes of P ranks, whose parts are the sums of those of their ranks, with P y and P C:
// rho'.
// Then 1 - rho' of the document cross nodes, and 1 - rho move at all: the exchanges of a document take, of all ranks,
//   e(tau) = s ((rho' - rho) I + (1 - rho') A) ms,
// I and A being the least ms a token inside a node and between nodes. Where links hide, half of an all-to-all's
// exchanges may not show (timeline.h). A ring of two or more ranks sends all keys and values at least twice, and their
// gradients: where it may be had, and is less, that counts instead of e(tau).
//
// Each of N ranks has tau ms and runs a pass, or is idle for longer than one, and a pass has at most C tokens. So
//   sum (w + e(tau)) + f max(N, tokens / C) <= N tau,
// in rounds with N ceil(tokens / (N C)) passes. e falls with tau, so bisection finds the least tau, and where f is dear
// the least at which whole passes suffice (bound.c), exchanges being work that no tokens bind. A rank of speed v
// computes v y by then, but exchanges and starts passes no faster: w + v_least (...) <= tau sum v, and y v_most above.
#include "dev/bound_shares.h"

#include <math.h>
#include <stdlib.h>

typedef struct Shares {
    const int* sorted;
    int n, ranks, node;
    const double* held;             // (ranks + 1) as in WholeMicroBatches
    double capacity, tokens, work;  // of the rank that holds most; of all documents
    double linear, attention;       // ms a token, a token^2
    double inside, across, ring;    // ms a token of all ranks; ring, inside: infinite where there are none
    double pass, passes;            // ms of a pass; the least number
    double speeds, slowest, fastest;
} Shares;

// ---- what a token's exchanges take

static double least_published_ms(const Cost* cost, int from, int to, double bytes) {
    double least = published_ms(cost, from, bytes);
    for (int i = 0; i < cost->n_groups; i++)
        if (cost->group_cp_size[i] > from && cost->group_cp_size[i] <= to)
            least = MIN(least, published_ms(cost, cost->group_cp_size[i], bytes));
    return least;
}

// A table that is empty is free.
static double table_ms(const LinkTable* link, double count, double bytes, double tokens) {
    return count * bytes * least_byte_ms(link, bytes * tokens);
}

// all, keys: bytes a token of the all-to-alls, of one way of a ring's keys and values; gradients: of their fp32 ones
static void weigh_published(Shares* x, const Cost* cost, int hides) {
    double ratio = cost->channels ? (double)cost->kv_channels / cost->channels : 1;
    double gradient = cost->elem_bytes ? 4.0 / cost->elem_bytes : 2, all = cost->token_bytes;
    int tensor = MAX(1, cost->tensor_ranks), between = ranks_between(cost, x->node * tensor);
    double shown = hides ? 0.5 / MAX(1, cost->parts) : 1;
    x->inside = shown * least_published_ms(cost, 2, MAX(x->node, 2), all);
    x->across = shown * least_published_ms(cost, between, INT32_MAX, all);
    double hop = all * ratio / (2 + 2 * ratio);
    double least = MIN(published_ms(cost, 2, hop), published_ms(cost, between, hop));
    x->ring = ((hides ? 0 : 2) + (hides && cost->parts ? 1 : 2) * gradient) * least;
}

static void weigh_measured(Shares* x, const Cost* cost, int hides) {
    double count = (hides ? 1.0 / MAX(1, cost->parts) : 2) * cost->layers, e = cost->elem_bytes,
           gradients = (hides && cost->parts ? 1.0 : 2.0) * cost->layers,
           way = e * (cost->channels + 2.0 * cost->kv_channels);
    double back = e * cost->channels, keys = 2.0 * cost->kv_channels, least[N_LINKS], ring[N_LINKS];
    for (int k = 0; k < N_LINKS; k++) {
        const LinkTable* link = &cost->link[k];
        least[k] = table_ms(link, count, way, 2 * x->capacity) + table_ms(link, count, back, 2 * x->capacity);
        ring[k] = table_ms(link, hides ? 0 : 2.0 * cost->layers, e * keys, x->capacity) +
                  table_ms(link, gradients, 4 * keys, x->capacity);
    }
    x->inside = least[LINK_INSIDE], x->across = least[LINK_ACROSS];
    x->ring = MIN(ring[LINK_INSIDE], ring[LINK_ACROSS]);
}

static void weigh_links(Shares* x, const Setting* setting) {
    const Cost* cost = &setting->cost;
    if (cost->n_groups) weigh_published(x, cost, !setting->no_overlap);
    else weigh_measured(x, cost, !setting->no_overlap);
    x->inside = cost->link_scale * MIN(x->inside, x->across);  // whichever is the faster
    x->across *= cost->link_scale, x->ring *= cost->link_scale;
    if (x->node == 1) x->inside = x->across;
    if (setting->kind == CP_CHOICE_RING) x->inside = x->across = INFINITY;
    if (setting->kind == CP_CHOICE_ULYSSES) x->ring = INFINITY;
}

// ---- the bound

// rho of so many ranks together.
static double most_kept(const Shares* x, double s, double ranks, double y) {
    double linear = x->linear * s, attention = x->attention * s * s, both = 4 * linear * attention;
    double kept = MIN(1, ranks * x->capacity / s);
    return both > 0 ? MIN(kept, ranks * MAX(y, 0) * (linear + attention) / both) : kept;
}

// e of all documents.
static double exchanges_ms(const Shares* x, double tau) {
    double sum = 0, one = 0, y = x->fastest * (tau - x->pass);
    for (int i = 0; i < x->n; i++) {
        double s = x->sorted[i];
        if (i == 0 || x->sorted[i] != x->sorted[i - 1]) {
            double kept = most_kept(x, s, 1, y), inside = most_kept(x, s, x->node, y);
            if (kept >= 1) break;  // shorter ones are kept, too
            one = x->inside < INFINITY ? s * ((inside - kept) * x->inside + (1 - inside) * x->across) : INFINITY;
            one = MIN(one, s * x->ring);
        }
        sum += one;
    }
    return sum;
}

static int suffices(const Shares* x, WholeMicroBatches* whole, double tau) {
    whole->apart = exchanges_ms(x, tau);
    if (x->work + x->slowest * (whole->apart + x->pass * x->passes) > tau * x->speeds) return 0;
    return !whole->parts || whole_micro_batches_suffice(whole, tau, x->work + whole->apart);
}

static Shares open_shares(const int* sorted, int n, const Setting* setting, const double* held) {
    const PlanLimits* l = &setting->limits;
    const GroupCost* one = &setting->groups[1];
    Shares x = {.sorted = sorted, .n = n, .ranks = l->ranks, .node = l->node_size};
    x.held = held, x.capacity = held[1];
    x.linear = setting->cost.per_token, x.attention = setting->cost.quadratic, x.pass = one->micro_batch;
    x.slowest = INFINITY;
    for (int r = 0; r < x.ranks; r++) {
        double speed = slowest_speed(setting, r, 1);
        x.speeds += speed, x.slowest = MIN(x.slowest, speed), x.fastest = MAX(x.fastest, speed);
    }
    for (int i = 0; i < n; i++) {
        double s = sorted[i];
        x.tokens += s, x.work += (x.attention * s + x.linear) * s;
    }
    x.passes = setting->rounds ? x.ranks * ceil(x.tokens / held[x.ranks]) : MAX(x.ranks, x.tokens / x.capacity);
    weigh_links(&x, setting);
    return x;
}

int bound_of_shares(double* l4, const int* sorted, int n, const Setting* setting, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    *l4 = 0;
    if (n == 0) return 0;
    double* held = TAKE(arena, double, setting->limits.ranks + 1);
    DensePart* parts = TAKE(arena, DensePart, n);
    if (arena_check(arena, err) < 0) return -1;
    most_held(held, &setting->limits);
    Shares x = open_shares(sorted, n, setting, held);
    for (int i = 0; i < n; i++) {
        double s = sorted[i];
        parts[i] = (DensePart){s, (x.attention * s + x.linear) * s};  // longer ones are denser
    }
    int dear = x.pass > 0 && !setting->speeds;
    WholeMicroBatches whole = {x.ranks, held, 0, x.pass, x.linear, 0, dear ? parts : NULL, n};
    whole.rounds = setting->rounds ? x.passes / x.ranks : 0;
    double low = x.work / x.speeds, high = low + x.pass, step = MAX(high, 1e-9) / 64;
    while (!suffices(&x, &whole, high)) low = high, high += step, step *= 2;
    while (high - low > 1e-6 * low) {
        double tau = low + (high - low) / 2;
        if (suffices(&x, &whole, tau)) high = tau;
        else low = tau;
    }
    *l4 = low * (1 - (n + 16) * 0x1p-51);
    arena_reset(arena, mark);
    return 0;
}
