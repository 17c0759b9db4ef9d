// cost.c - the cost model of cost.h worked out for groups of ranks.
//
// Communication on measured machines, for a micro-batch of n tokens on d = u r ranks (ulysses size u, ring size r), C
// channels of queries, K of keys and elements of e bytes, a layer, forward and backward together (the formulas of
// kernels/comm/group_attention.h, with tokens and heads divided evenly):
//   ulysses  2 all-to-alls of queries, keys and values   e (C + 2 K) (n / d) (u - 1) / u    bytes
//            2 of outputs                                e C (n / d) (u - 1) / u
//   ring     2 (r - 1) hops of keys and values           e 2 (K / u) (n / r)
//            r hops of their gradients in fp32           4 2 (K / u) (n / r)
// and each exchange of a tensor-parallel group, if ranks are such groups, tensor_bytes n / d. The all-to-alls stay
// inside a node when every run of u ranks lies in one, a ring when the whole group does. With uneven heads a message is
// that of the rank with most.
//
// A published machine says B = token_bytes = 2 L e (2 C + 2 K), which counts what stays on a rank too; C / K and e
// divide it. Then u ranks move B n / d bytes in their all-to-alls, and a ring's keys and values of one way are B K / (2
// C + 2 K) bytes a token.
#include "plan/cost/cost.h"

#include <math.h>

// ---- links

double link_ms(const LinkTable* link, double bytes) {
    if (link->n < 2 || bytes <= link->bytes[0]) return link->n ? link->ms[0] : 0;
    // The line to follow begins at one of `lines` points from `from` on. Lengths come in any order, so branches would
    // be mispredicted at every other step; a choice between two addresses is no branch.
    const double* from = link->bytes;
    for (int lines = link->n - 1; lines > 1;) {
        int half = lines / 2;
        from = from[half] <= bytes ? from + half : from;
        lines -= half;
    }
    const double* ms = link->ms + (from - link->bytes);
    return ms[0] + (ms[1] - ms[0]) * ((bytes - from[0]) / (from[1] - from[0]));
}

double published_ms(const Cost* cost, int ranks, double bytes) {
    int i = 0;
    while (i < cost->n_groups - 1 && cost->group_cp_size[i] < ranks) i++;
    return bytes / (cost->group_gbps[i] * 1e6);
}

double message_ms(const Cost* cost, int ranks, int across, int node_size, double bytes) {
    if (cost->n_groups > 0)
        return published_ms(cost, across ? MAX(ranks, ranks_between(cost, node_size)) : ranks, bytes);
    return link_ms(&cost->link[across ? LINK_ACROSS : LINK_INSIDE], bytes);
}

// bytes: what a rank sends over links of a node or between nodes.
static double part_ms(const Cost* cost, LinkKind kind, int ranks, int node_size, double bytes) {
    const LinkTable* sums = &cost->sum[kind];
    return sums->n ? link_ms(sums, bytes) : message_ms(cost, ranks, kind == LINK_ACROSS, node_size, bytes);
}

double collective_ms(const Cost* cost, int ranks, int nodes, int node_size, double bytes) {
    if (ranks < 2) return 0;
    double m = MAX(MIN(nodes, ranks), 1), k = ceil(ranks / m), ms[N_LINKS] = {0}, least[N_LINKS] = {0};
    if (k > 1) ms[LINK_INSIDE] = part_ms(cost, LINK_INSIDE, (int)k, node_size, bytes * (k - 1) / k);
    if (m > 1) ms[LINK_ACROSS] = part_ms(cost, LINK_ACROSS, ranks, node_size, bytes / k * (m - 1) / m);
    if (m == 1 || k == 1 || cost->sum[LINK_ACROSS].n) return ms[m > 1];  // measured times have both in them
    least[LINK_INSIDE] = part_ms(cost, LINK_INSIDE, (int)k, node_size, 0);
    least[LINK_ACROSS] = part_ms(cost, LINK_ACROSS, ranks, node_size, 0);
    LinkKind longer = ms[LINK_ACROSS] > ms[LINK_INSIDE] ? LINK_ACROSS : LINK_INSIDE;
    return ms[longer] + least[!longer];
}

double link_sum_ms(const GroupCost* g, double tokens) {
    double ms = 0;
    for (int i = 0; i < g->n_communications; i++)
        ms += g->communications[i].count *
              link_ms(g->communications[i].link, g->communications[i].bytes_per_token * tokens);
    return ms;
}

// ---- one group

static void add_communication(GroupCost* g, const LinkTable* link, double count, double bytes_per_token, double own,
                              double any) {
    if (count > 0 && link->n > 0)
        g->communications[g->n_communications++] =
            (Communication){link, count, bytes_per_token, {count - own, count - any}};
}

// Returns whether a border between nodes cuts a run of ulysses_size ranks.
static int ulysses_across(const GroupCost* g, const PlanLimits* limits, int first_rank) {
    int node = limits->node_size, border = (first_rank / node + 1) * node, end = first_rank + g->cp_size;
    if (border >= end) return 0;
    return (border - first_rank) % g->ulysses_size != 0 || (border + node < end && node % g->ulysses_size != 0);
}

// Adds collective_ms as communications. A group of several nodes counts the link that takes longer for a full rank, and
// the shortest message over the other one.
static void add_tensor_exchanges(GroupCost* g, const Cost* cost, double bytes) {
    const LinkTable* table[N_LINKS];
    double m = MAX(MIN(cost->tensor_nodes, cost->tensor_ranks), 1), k = ceil(cost->tensor_ranks / m), ms[N_LINKS];
    double part[] = {bytes * (k - 1) / k, bytes / k * (m - 1) / m}, full = (double)g->cp_size * g->capacity;
    double count = cost->tensor_exchanges * cost->layers;
    for (int i = 0; i < N_LINKS; i++) table[i] = cost->sum[i].n ? &cost->sum[i] : &cost->link[i];
    for (int i = 0; i < N_LINKS; i++) ms[i] = part[i] > 0 ? link_ms(table[i], part[i] * full) : 0;
    LinkKind longer =
        m > 1 && (ms[LINK_ACROSS] > ms[LINK_INSIDE] || cost->sum[LINK_ACROSS].n) ? LINK_ACROSS : LINK_INSIDE;
    add_communication(g, table[longer], count, part[longer], 0, 0);
    if (m > 1 && k > 1 && !cost->sum[LINK_ACROSS].n) add_communication(g, table[!longer], count, 0, 0, 0);
}

static void add_measured(GroupCost* g, const Cost* cost, const PlanLimits* limits, int first_rank,
                         const GroupFactors* f) {
    int ulysses_size = g->ulysses_size, ring_size = g->cp_size / ulysses_size, parts = MAX(g->parts, 1);
    double layers = cost->layers;
    if (ulysses_size > 1) {
        const LinkTable* link = &cost->link[ulysses_across(g, limits, first_rank) ? LINK_ACROSS : LINK_INSIDE];
        double channel = f->exchange * cost->elem_bytes / g->cp_size * (ulysses_size - 1) / ulysses_size / parts;
        double passes = (2 + cost->again) * layers, own = passes * (parts - 1), any = own + passes / 2;
        double count = passes * parts;
        add_communication(g, link, count, channel * (cost->channels + 2 * cost->kv_channels), own, any);
        add_communication(g, link, count, channel * cost->channels, own, any);
        if (link->n) g->first[0].count = g->first[1].count = layers * parts, g->first[1].at = 1;
    }
    if (ring_size > 1) {
        const LinkTable* link = &cost->link[g->across ? LINK_ACROSS : LINK_INSIDE];
        int of_parts = ulysses_size > 1 ? parts : 1;  // each part of the heads has a ring of its own
        double rings = of_parts * layers;
        double channels = f->hop * 2.0 * cost->kv_channels / ulysses_size / ring_size / of_parts;  // of keys and values
        double hops = (2 + cost->again) * (ring_size - 1) * rings, own = g->parts ? hops : 0,
               first = ulysses_size == 1 ? 2 * layers : 0;
        if (link->n && ulysses_size == 1) g->first[0].count = g->first[1].count = layers;
        if (link->n) g->hop[0] = (GroupExchange){0, rings, g->n_communications};
        if (link->n) g->hop[1] = (GroupExchange){0, rings, g->n_communications + 1};
        add_communication(g, link, hops, cost->elem_bytes * channels, own, MAX(own, first));
        own = g->parts ? (ring_size - 1) * rings : 0;
        add_communication(g, link, ring_size * rings, 4 * channels, own, own);
    }
    if (cost->tensor_ranks > 1) add_tensor_exchanges(g, cost, f->linear * cost->tensor_bytes / g->cp_size);
}

// Returns ms a token of the micro-batch.
static double published_link(GroupCost* g, const Cost* cost, const PlanLimits* limits, int first_rank,
                             const GroupFactors* f) {
    int u = g->ulysses_size, ring_size = g->cp_size / u, node = limits->node_size * MAX(1, cost->tensor_ranks);
    double keys = cost->channels ? (double)cost->kv_channels / cost->channels : 1, ms = 0;
    double gradient = cost->elem_bytes ? 4.0 / cost->elem_bytes : 2;  // fp32, in elements
    double token = cost->token_bytes / g->cp_size, all = 2 + 2 * keys;
    if (u > 1) ms += f->exchange * message_ms(cost, u, ulysses_across(g, limits, first_rank), node, token);
    g->first[0].linear = cost->link_scale * ms * (1 + 2 * keys) / (2 * all);
    g->first[1].linear = cost->link_scale * ms / (2 * all);
    double hop = f->hop * message_ms(cost, 2, g->across, node, token * keys / all);
    ms *= 1 + cost->again / 2;  // forward passes have half of it
    double own = g->parts ? cost->link_scale * ms * (g->parts - 1) / g->parts : 0, any = own;
    if (u == 1 && ring_size > 1) g->first[0].linear = g->first[1].linear = cost->link_scale * hop;
    if (u > 1 || !g->parts) any += ((1 + cost->again) * g->first[0].linear + g->first[1].linear) / MAX(g->parts, 1);
    double hops = (2 + cost->again) * (ring_size - 1);
    if (ring_size > 1) ms += (hops + ring_size * gradient) * hop;
    if (ring_size > 1 && g->parts) {
        g->hop[0].linear = cost->link_scale * hop, g->hop[1].linear = gradient * g->hop[0].linear;
        double hide = hops * g->hop[0].linear + (ring_size - 1) * g->hop[1].linear;
        own += hide, any += hide;
    }
    if (cost->tensor_ranks > 1)
        ms += cost->tensor_exchanges * collective_ms(cost, cost->tensor_ranks, cost->tensor_nodes, node,
                                                     f->linear * cost->tensor_bytes / g->cp_size);
    ms *= cost->link_scale;
    g->shown_linear[HIDING_OWN] = ms - own, g->shown_linear[HIDING_ANY] = ms - any;
    return ms;
}

GroupCost cost_group_in_shares(const Cost* cost, const PlanLimits* limits, int first_rank, int cp_size,
                               int ulysses_size, const GroupFactors* factors) {
    PlanLimits own = limits_at(limits, group_capacity(limits, first_rank, cp_size));
    GroupCost g = {.cp_size = cp_size, .link_scale = cost->link_scale, .capacity = own.capacity};
    if (ulysses_size < 1 || ulysses_size > limits->kv_heads || cp_size % ulysses_size != 0) return g;
    int node = limits->node_size;
    g.ulysses_size = ulysses_size;
    g.across = first_rank / node != (first_rank + cp_size - 1) / node;
    g.canonical = cp_size <= node || cp_size % node == 0 || cp_size == limits->ranks;
    g.quadratic = cost->quadratic * factors->attention / cp_size;
    g.per_token = factors->linear * cost->per_token / cp_size;
    g.micro_batch = cost_micro_batch(cost);
    g.room = ring_rank_capacity(&own, ulysses_size);
    if (cp_size > 1 && cost->parts) g.parts = MIN(cost->parts, CEIL_DIV(limits->kv_heads, ulysses_size));
    if (cost->n_groups > 0) g.link_linear = published_link(&g, cost, limits, first_rank, factors);
    else add_measured(&g, cost, limits, first_rank, factors);
    return g;
}

GroupCost cost_group(const Cost* cost, const PlanLimits* limits, int first_rank, int cp_size, int ulysses_size) {
    int heads = limits->kv_heads, u = MAX(ulysses_size, 1);
    double uneven = (double)CEIL_DIV(heads, u) * u / heads;
    GroupFactors factors = {1, uneven, uneven, uneven};
    return cost_group_in_shares(cost, limits, first_rank, cp_size, ulysses_size, &factors);
}

static double exchange_ms(const GroupCost* g, const GroupExchange* x, double tokens) {
    const Communication* c = &g->communications[x->at];
    if (x->count == 0) return x->linear * tokens;
    return g->link_scale * x->count * link_ms(c->link, c->bytes_per_token * tokens);
}

// Returns the ms of hops that a ring hides, keys and values of hop[0] ms and gradients of hop[1], under `attention` ms
// of one direction. *shown: the rest.
static double ring_hidden_ms(double* shown, int ring_size, const double hop[2], double attention, int is_backward) {
    double block = attention / ring_size, gradient = is_backward ? hop[1] : 0;
    double hidden = MIN(hop[0], block) + (ring_size - 2) * MIN(hop[0] + gradient, block) + MIN(gradient, block);
    *shown = (ring_size - 1) * hop[0] + ring_size * gradient - hidden;
    return hidden;
}

static int ring_size_of(const GroupCost* g) { return g->ulysses_size ? g->cp_size / g->ulysses_size : 1; }

// Returns the hidden ms of all exchanges in direction k, 0: forward. first, hop: ms of these.
static double hidden_in(double* left, const GroupCost* g, double attention, const double first[2], const double hop[2],
                        int k) {
    int ring_size = ring_size_of(g);
    double part = g->parts > 1 ? (g->parts - 1.0) / g->parts : 0, own = attention * (k + 1) / 3, shown = 0, hidden = 0;
    if (ring_size > 1) hidden = ring_hidden_ms(&shown, ring_size, hop, own, k);
    if (g->ulysses_size == 1) {
        *left = MAX(hop[0] - own / ring_size, 0);
        return hidden;
    }
    double there = part * MIN(first[k], own + shown), back = part * MIN(first[1 - k], own + shown);
    *left -= there;
    return hidden + MIN(there + back, own + shown);
}

double group_hidden_ms(double left[2], const GroupCost* g, double attention, double tokens, const double faster[2]) {
    double hop[2], first[2];
    for (int k = 0; k < 2; k++)
        left[k] = exchange_ms(g, &g->first[k], tokens) - (faster && g->ulysses_size == 1 ? faster[0] : 0);
    if (!g->parts) return 0;
    for (int k = 0; k < 2; k++)
        first[k] = left[k], hop[k] = exchange_ms(g, &g->hop[k], tokens) - (faster ? faster[k] : 0);
    return hidden_in(&left[0], g, attention, first, hop, 0) + hidden_in(&left[1], g, attention, first, hop, 1);
}

void group_slack_ms(double slack[2], const GroupCost* g, double attention, double tokens) {
    double hop = exchange_ms(g, &g->hop[0], tokens);
    int ring_size = ring_size_of(g);
    for (int k = 0; k < 2; k++)
        slack[k] = g->parts && ring_size > 1 ? MAX(attention * (k + 1) / 3 / ring_size - hop, 0) : 0;
}

double group_forward_ms(const GroupCost* g, double attention, double tokens, double all) {
    double left[2], first[2], hop[2], ring_size = ring_size_of(g);
    for (int k = 0; k < 2; k++)
        left[k] = first[k] = exchange_ms(g, &g->first[k], tokens), hop[k] = exchange_ms(g, &g->hop[k], tokens);
    double ring = ring_size > 1 ? (ring_size - 1) * hop[0] : 0, gradients = ring_size > 1 ? ring_size * hop[1] : 0;
    double forward = ring + MAX(all - 2 * ring - gradients, 0) / 2;
    return g->parts ? MAX(forward - hidden_in(left, g, attention, first, hop, 0), 0) : forward;
}

CostTerms group_terms(const GroupCost* g, double s2, double tokens) {
    return (CostTerms){g->quadratic * s2, g->per_token * tokens, group_communication_ms(g, tokens), g->micro_batch};
}

int group_holds(const GroupCost* g, int s) { return group_holds_in(g, s, g->room); }

int group_holds_in(const GroupCost* g, int s, int64_t room) {
    if (g->ulysses_size == 0) return 0;
    if (g->ulysses_size == g->cp_size) return s <= room;
    int ring_size = g->cp_size / g->ulysses_size;
    // Exact sizes of all ring ranks take a division each; only a length within a token or two of the room needs them.
    if (CEIL_DIV((int64_t)s, ring_size) > room) return 0;
    if (2 * CEIL_DIV((int64_t)s, 2 * ring_size) <= room) return 1;
    return widest_ring_rank(s, ring_size) <= room;
}

// ---- messages between nodes through proxies

static double hop_ms(const Cost* cost, int node_size, int across, double bytes) {
    return message_ms(cost, 2, across, node_size * MAX(1, cost->tensor_ranks), bytes);
}

// ms of a message to the other proxies of a node, or from them.
static double deal_ms(const Cost* cost, int x, double bytes) { return message_ms(cost, MAX(x - 1, 2), 0, 1, bytes); }

static double nic_share(const Cost* cost, int node_size, int at_once) {
    if (cost->nics == 0) return 1;
    return (double)(CEIL_DIV(MIN(at_once, node_size), cost->nics) * cost->nics) / node_size;
}

double route_ms(const Cost* cost, int node_size, double bytes, int x, int at_once, int overlap, int in_turn) {
    double part = bytes * (x - 1) / x, out = nic_share(cost, node_size, x * at_once);
    if (x == 1) return out * hop_ms(cost, node_size, 1, bytes);
    double transfer = out * hop_ms(cost, node_size, 1, bytes / x);
    double inside = hop_ms(cost, node_size, 0, bytes);
    double there = deal_ms(cost, x, part), turn = hop_ms(cost, node_size, 0, bytes / x);
    return there + (in_turn ? turn : there) + (overlap ? MAX(transfer, inside) : transfer + inside);
}

// Chooses proxies as kernels/comm/route.c does, among `ranks` of a node.
static int proxies(const Cost* cost, int ranks, int at_once) {
    return cost->nics > 0 ? MIN(ranks, MAX(1, cost->nics / at_once)) : ranks;
}

double route_least_bytes(const Cost* cost, const PlanLimits* limits) {
    enum { DOUBLINGS = 40 };
    int x = proxies(cost, limits->node_size, 1);
    double bytes = 1;
    for (int i = 0; i < DOUBLINGS && x > 1; i++, bytes *= 2)
        if (route_ms(cost, limits->node_size, bytes, x, 1, 1, 0) < route_ms(cost, limits->node_size, bytes, 1, 1, 1, 0))
            return bytes;
    return 0;
}

// Returns the fewest proxies that a message of such a ring has between two nodes.
static int fewest_proxies(const Setting* setting, const GroupCost* g, int first_rank) {
    int node = setting->limits.node_size, u = g->ulysses_size, fewest = node;
    for (int at = first_rank; at < first_rank + g->cp_size;) {
        int end = MIN((at / node + 1) * node, first_rank + g->cp_size);
        fewest = MIN(fewest, MAX(1, (end - at) / u));
        at = end;
    }
    return proxies(&setting->cost, fewest, u);
}

static double saved_of(const Setting* setting, double bytes, int x, int u) {
    int node = setting->limits.node_size;
    int routed = setting->route_least > 0 && bytes >= (double)setting->route_least ? x : 1;
    return hop_ms(&setting->cost, node, 1, bytes) -
           route_ms(&setting->cost, node, bytes, routed, u, !setting->no_overlap, 1);
}

double route_saved_ms(double hop[2], const Setting* setting, const GroupCost* g, int first_rank, double tokens) {
    const Cost* cost = &setting->cost;
    int u = g->ulysses_size, r = g->cp_size / u, K = setting->limits.kv_heads;
    hop[0] = hop[1] = 0;
    if (!g->across || r == 1 || (setting->route_least == 0 && cost->nics == 0)) return 0;
    double uneven = (double)CEIL_DIV(K, u) * u / K, key = cost->elem_bytes ? cost->elem_bytes : 2, scale, block;
    if (cost->n_groups > 0) {
        double keys = cost->channels ? (double)cost->kv_channels / cost->channels : 1;
        // All layers count as one message; each layer's own has only its share of the bytes.
        scale = cost->link_scale, block = uneven * cost->token_bytes * keys / (2 + 2 * keys) / g->cp_size * tokens;
    } else scale = cost->link_scale * cost->layers, block = uneven * key * 2 * cost->kv_channels / g->cp_size * tokens;
    int x = fewest_proxies(setting, g, first_rank);
    hop[0] = scale * saved_of(setting, block, x, u), hop[1] = scale * saved_of(setting, block * 4 / key, x, u);
    return 2 * (r - 1) * hop[0] + r * hop[1];
}

// ---- all cp sizes

int common_divisor(int a, int b, int most) {
    int d = MIN(MIN(a, b), most);
    while (a % d != 0 || b % d != 0) d--;
    return d;
}

int group_ulysses_sizes(int* ulysses_sizes, const PlanLimits* limits, int cp_size) {
    int heads = limits->kv_heads, n = 0;
    int mixed = common_divisor(cp_size, limits->node_size, heads);
    if (cp_size <= heads) ulysses_sizes[n++] = cp_size;
    if (cp_size > 1) ulysses_sizes[n++] = 1;
    if (mixed > 1 && mixed < cp_size) ulysses_sizes[n++] = mixed;
    return n;
}

// Finds the group of `cp_size` ranks from rank 0 on with the ulysses_size that costs least for one document that fills
// half of it.
static void cheapest_group(GroupCost* best, const Cost* cost, const PlanLimits* limits, int cp_size) {
    int ulysses_sizes[GROUP_ULYSSES_SIZES], n = group_ulysses_sizes(ulysses_sizes, limits, cp_size);
    double tokens = 0.5 * cp_size * limits->capacity, least = 0;
    *best = cost_group(cost, limits, 0, cp_size, ulysses_sizes[0]);
    if (n > 1) least = group_ms(best, tokens * tokens, tokens);
    for (int i = 1; i < n; i++) {
        GroupCost g = cost_group(cost, limits, 0, cp_size, ulysses_sizes[i]);
        double ms = group_ms(&g, tokens * tokens, tokens);
        if (ms < least) *best = g, least = ms;
    }
}

void cost_groups(GroupCost* groups, const Cost* cost, const PlanLimits* limits, CpChoice kind) {
    groups[0] = (GroupCost){0};
    for (int d = 1; d <= limits->ranks; d++) {
        PlanLimits own = limits_at(limits, widest_capacity(limits, d));
        if (kind == CP_CHOICE_RING) groups[d] = cost_group(cost, &own, 0, d, 1);
        else if (kind == CP_CHOICE_ULYSSES) groups[d] = cost_group(cost, &own, 0, d, d <= own.kv_heads ? d : 0);
        else if (cost->n_groups > 0)  // most heads: a ring sends more than an all-to-all
            groups[d] = cost_group(cost, &own, 0, d, common_divisor(d, d, own.kv_heads));
        else cheapest_group(&groups[d], cost, &own, d);
    }
}
