// cost.c - the cost model of cost.h worked out for groups of ranks.
//
// Exchanges of measured machines, for an item of n tokens, C channels and elements of e bytes, a layer, both ways (the
// formulas of kernels/group_attention.h, with tokens and heads divided evenly):
//   heads  2 exchanges of queries, keys and values, 2 of one tensor      e {3, 1} C (n / d) (inner - 1) / inner
//   ring   2 (outer - 1) hops of keys and values                         e 2 (C / inner) (n / outer)
//          outer hops of their gradients in fp32                         4 2 (C / inner) (n / outer)
// Heads travel inside a machine when every run of `inner` ranks lies in one, a ring when the whole group does. All of a
// published machine's exchanges are one number a token: token_bytes / (d GB/s).
#include "plan/cost.h"

#include "plan/planner.h"

// ---- links

double link_ms(const LinkTable* link, double bytes) {
    if (link->n < 2 || bytes <= link->bytes[0]) return link->n ? link->ms[0] : 0;
    // The line to follow begins at one of `lines` points from `from` on. Lengths come in any order: branches would
    // be mispredicted at every other step; a choice between two addresses is none.
    const double* from = link->bytes;
    for (int lines = link->n - 1; lines > 1;) {
        int half = lines / 2;
        from = from[half] <= bytes ? from + half : from;
        lines -= half;
    }
    const double* ms = link->ms + (from - link->bytes);
    return ms[0] + (ms[1] - ms[0]) * ((bytes - from[0]) / (from[1] - from[0]));
}

double link_sum_ms(const GroupCost* g, double tokens) {
    double ms = 0;
    for (int i = 0; i < g->n_exchanges; i++)
        ms += g->exchanges[i].count * link_ms(g->exchanges[i].link, g->exchanges[i].bytes_per_token * tokens);
    return ms;
}

// Whether no border between machines cuts a run of `inner` of the ranks [first, first + degree).
static int runs_inside(int first, int degree, int inner, int node_size) {
    int border = (first / node_size + 1) * node_size, end = first + degree;
    if (border >= end) return 1;
    return (border - first) % inner == 0 && (border + node_size >= end || node_size % inner == 0);
}

// ---- one group

static void add_exchange(GroupCost* g, const LinkTable* link, double count, double bytes_per_token) {
    if (count > 0 && link->n > 0) g->exchanges[g->n_exchanges++] = (Exchange){link, count, bytes_per_token};
}

static void add_exchanges(GroupCost* g, const Cost* cost, const PlanLimits* limits, int first_rank) {
    int inner = g->inner, outer = g->degree / inner;
    if (inner > 1) {
        const LinkTable* link =
            &cost->link[runs_inside(first_rank, g->degree, inner, limits->node_size) ? LINK_INSIDE : LINK_ACROSS];
        double tensor = (double)cost->elem_bytes * cost->channels / g->degree * (inner - 1) / inner;
        add_exchange(g, link, 2.0 * cost->layers, 3 * tensor);
        add_exchange(g, link, 2.0 * cost->layers, tensor);
    }
    if (outer > 1) {
        const LinkTable* link = &cost->link[g->across ? LINK_ACROSS : LINK_INSIDE];
        double channels = 2.0 * cost->channels / inner / outer;  // of keys and values
        add_exchange(g, link, 2.0 * (outer - 1) * cost->layers, cost->elem_bytes * channels);
        add_exchange(g, link, (double)outer * cost->layers, 4 * channels);
    }
}

static double published_gbps(const Cost* cost, int degree) {
    int i = 0;
    while (i < cost->n_groups - 1 && cost->group_degree[i] < degree) i++;
    return cost->group_gbps[i];
}

GroupCost cost_group(const Cost* cost, const PlanLimits* limits, int first_rank, int degree, int inner) {
    GroupCost g = {.degree = degree, .link_scale = cost->link_scale};
    if (inner < 1 || inner > limits->NH || degree % inner != 0) return g;
    int node = limits->node_size;
    g.inner = inner;
    g.across = first_rank / node != (first_rank + degree - 1) / node;
    g.canonical = degree <= node || degree % node == 0 || degree == limits->ranks;
    double uneven = (double)CEIL_DIV(limits->NH, inner) * inner / limits->NH;
    g.quadratic = cost->quadratic * uneven / degree;
    g.linear = cost->linear / degree;
    g.item = cost->item;
    g.room = place_capacity(limits, inner);
    if (degree == 1) return g;
    if (cost->n_groups > 0)
        g.link_linear = cost->link_scale * cost->token_bytes / (degree * published_gbps(cost, degree) * 1e6);
    else add_exchanges(&g, cost, limits, first_rank);
    return g;
}

CostTerms group_terms(const GroupCost* g, double s2, double tokens) {
    return (CostTerms){g->quadratic * s2, g->linear * tokens, group_exchange_ms(g, tokens), g->item};
}

int group_holds(const GroupCost* g, int s) {
    if (g->inner == 0) return 0;
    int outer = g->degree / g->inner;
    // Exact sizes of all places take a division each; only a length within a token or two of the room needs them.
    if (CEIL_DIV((int64_t)s, outer) > g->room) return 0;
    if (2 * CEIL_DIV((int64_t)s, 2 * outer) <= g->room) return 1;
    return widest_place(s, outer) <= g->room;
}

// ---- all degrees

static int greatest_common_divisor(int a, int b) {
    while (b != 0) {
        int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

// The largest divisor of n that is at most `most`.
static int largest_divisor(int n, int most) {
    int best = 1;
    for (int i = 1; i <= n / i; i++) {
        if (n % i != 0) continue;
        if (n / i <= most) return n / i;  // i ascends: larger than any other, and than any i
        if (i <= most) best = i;
    }
    return best;
}

int group_inners(int* inners, const PlanLimits* limits, int degree) {
    int NH = limits->NH, n = 0, mixed = largest_divisor(greatest_common_divisor(degree, limits->node_size), NH);
    if (degree <= NH) inners[n++] = degree;
    if (degree > 1) inners[n++] = 1;
    if (mixed > 1 && mixed < degree) inners[n++] = mixed;
    return n;
}

// The group of `degree` ranks from rank 0 on with the inner that costs least for one document that fills half of it.
static void cheapest_group(GroupCost* best, const Cost* cost, const PlanLimits* limits, int degree) {
    int inners[GROUP_INNERS], n = group_inners(inners, limits, degree);
    double tokens = 0.5 * degree * limits->capacity, least = 0;
    *best = cost_group(cost, limits, 0, degree, inners[0]);
    if (n > 1) least = group_ms(best, tokens * tokens, tokens);
    for (int i = 1; i < n; i++) {
        GroupCost g = cost_group(cost, limits, 0, degree, inners[i]);
        double ms = group_ms(&g, tokens * tokens, tokens);
        if (ms < least) *best = g, least = ms;
    }
}

// Of a published machine, whose exchanges cost the same whatever inner is.
static int most_heads(const PlanLimits* limits, int degree) {
    return degree <= limits->NH ? degree : largest_divisor(degree, limits->NH);
}

void cost_groups(GroupCost* groups, const Cost* cost, const PlanLimits* limits, KindChoice kind) {
    groups[0] = (GroupCost){0};
    for (int d = 1; d <= limits->ranks; d++) {
        if (kind == KIND_RING) groups[d] = cost_group(cost, limits, 0, d, 1);
        else if (kind == KIND_HEADS) groups[d] = cost_group(cost, limits, 0, d, d <= limits->NH ? d : 0);
        else if (cost->n_groups > 0) groups[d] = cost_group(cost, limits, 0, d, most_heads(limits, d));
        else cheapest_group(&groups[d], cost, limits, d);
    }
}
