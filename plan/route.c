// route.c - messages between nodes through proxies in the cost model: see route.h.
#include "plan/route.h"

static double hop_ms(const Cost* cost, int node_size, int across, double bytes) {
    if (cost->n_groups > 0)
        return published_ms(cost, across ? ranks_between(cost, node_size * MAX(1, cost->tensor_ranks)) : 2, bytes);
    return link_ms(&cost->link[across ? LINK_ACROSS : LINK_INSIDE], bytes);
}

// To the other proxies of a node, or from them.
static double deal_ms(const Cost* cost, int x, double bytes) {
    return cost->n_groups > 0 ? published_ms(cost, MAX(x - 1, 2), bytes) : link_ms(&cost->link[LINK_INSIDE], bytes);
}

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

// As kernels/route.c chooses them, of `ranks` of a node.
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

// The fewest proxies that a message of such a ring has between two nodes.
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
        // All layers in one: a message is that of a layer only in its share of the bytes.
        scale = cost->link_scale, block = uneven * cost->token_bytes * keys / (2 + 2 * keys) / g->cp_size * tokens;
    } else scale = cost->link_scale * cost->layers, block = uneven * key * 2 * cost->kv_channels / g->cp_size * tokens;
    int x = fewest_proxies(setting, g, first_rank);
    hop[0] = scale * saved_of(setting, block, x, u), hop[1] = scale * saved_of(setting, block * 4 / key, x, u);
    return 2 * (r - 1) * hop[0] + r * hop[1];
}
