// zeppelin.c - Zeppelin (arXiv 2509.21841, EuroSys 2026) as a published planner: zones of lengths, rings as wide as
// their zone, routing over all NICs, remapping of tokens for linear modules. It is a reconstruction: no code is public.
//
// Zones. A document is worth cutting if its attention takes at least as long as its communication:
//   quadratic(d) s^2 >= communication(d, s),  d one node for the zone inside, two for the zone across, which is routed.
// Micro-batches. Documents on the same window share a micro-batch, longest first, as many as its ranks hold; the rest
// goes to further micro-batches. Ranks work on micro-batches across nodes first, then inside, then local ones. Every
// cut document is a ring; documents beyond PlanLimits.max_ring_docs share heads. There is no barrier between rounds, so
// all micro-batches are one list. Routing and remapping are the engine's, for any plan (plan/step/remap.h,
// plan/cost/cost.h). The zones scale communication across nodes by the routed over the direct time of as many NICs as
// ranks, at the best number of proxies. A published machine's bandwidths are those of an all-to-all, which uses all
// NICs already, so this flatters Zeppelin there. It knows one capacity, the least.
#include "plan/published/published.h"

#include <limits.h>

double zeppelin_routed(int proxies, int nics, double inside) {
    return 2 * (inside * (proxies - 1) / proxies) + 1.0 / MIN(proxies, nics);
}

// ---- what the machine says

// The ms of all all-to-alls of a token on all d ranks of a published machine.
static double token_ms(const Cost* cost, int d) { return cost->link_scale * published_ms(cost, d, cost->token_bytes); }

// A ring costs what all-to-alls do on a published machine: that favours Zeppelin, as if attention hid the rest.
static GroupCost ring(const Setting* setting, int cp_size) {
    GroupCost g = cost_group(&setting->cost, &setting->limits, 0, cp_size, 1);
    if (setting->cost.n_groups > 0 && cp_size > 1) g.link_linear = token_ms(&setting->cost, cp_size) / cp_size;
    return g;
}

// The ms of a byte inside a node, or among ranks of several, in one unit for both; 0: not known.
static double byte_ms(const Setting* setting, int ranks) {
    const Cost* cost = &setting->cost;
    if (cost->n_groups > 0) return token_ms(cost, ranks);
    const LinkTable* link = &cost->link[ranks > setting->limits.node_size ? LINK_ACROSS : LINK_INSIDE];
    return link->n ? link->ms[link->n - 1] / MAX(link->bytes[link->n - 1], 1) : 0;
}

double zeppelin_across_scale(const Setting* setting) {
    int node = setting->limits.node_size;
    if (setting->limits.ranks <= node) return 1;
    double across = byte_ms(setting, MIN(2 * node, setting->limits.ranks)), least = 1;
    for (int proxies = 2; proxies <= node && across > 0; proxies++)
        least = MIN(least, zeppelin_routed(proxies, node, byte_ms(setting, node) / across));
    return least;
}

// The least length whose attention in this ring takes as long as its communication.
static int worth_cutting(const GroupCost* g, double scale) {
    int low = 0, high = INT_MAX;  // too short, long enough
    while (high - low > 1) {
        int s = low + (high - low) / 2;
        if (g->quadratic * s * s >= scale * group_communication_ms(g, s)) high = s;
        else low = s;
    }
    return high;
}

ZeppelinZones zeppelin_zones(const Setting* setting, double scale) {
    int ranks = setting->limits.ranks, node = MIN(setting->limits.node_size, ranks);
    GroupCost inside = ring(setting, node), across = ring(setting, MIN(2 * node, ranks));
    ZeppelinZones zones = {worth_cutting(&inside, 1), ranks > node ? worth_cutting(&across, scale) : INT_MAX};
    zones.across = MAX(zones.inside, zones.across);
    return zones;
}

// ---- partition: which ranks share a document
//
// Zeppelin's algorithms 1 and 2 are not public as pseudo-code. This is a reconstruction from their description, on
// windows of contiguous ranks:
//   1. Nodes. A document of the across zone takes k = ceil(length / mean tokens that a node has of this zone) nodes,
//      but at least ceil(length^2 / mean of length^2 that it has of it). Any other, and one with k = 1, goes whole to
//      a node.
//   2. Ranks of a node. What was cut across lies on all of them. A document from the inside zone on takes
//      g = ceil(length^2 / mean of length^2 that a rank has of these), a shorter one a rank.
// Documents come longest first. A cut one takes the window whose maximum of work (length^2 / ranks) is least: a window
// runs together, so all its ranks go on from that maximum. A whole one goes where fewest tokens are. Of the readings
// that the description allows (means of a zone or of all documents, whole ones by tokens or by work, k by tokens alone)
// this one came to the least mean makespan on a100-7b and h200-8b.
//
// A rank has room for the rounds that the step needs at least, ceil(tokens / (ranks capacity)). A window without
// room is passed over, a cut document may take a wider one. Where a whole document finds none, its zone's threshold
// falls to the longest document that is still whole, or further so that a 64th of all are cut, and the level starts
// over. What falls into a zone so is cut over all nodes, or all ranks of its node. Thresholds only fall, so this
// ends, at worst with every document on all ranks. What finds no room even so goes to further rounds.

// A node, or a rank of one. Work and tokens are those of each of its ranks.
typedef struct Bin {
    int ranks;
    double work, tokens;
} Bin;

// Documents and their bins: level 1 deals them to nodes, level 2 those of one node to its ranks.
typedef struct Level {
    const PlanLimits* limits;
    int of_nodes, n_bins, n;
    Bin* bins;
    double room, work, tokens;  // a rank's room, and what it has from the beginning
    const int* sorted;          // (n) lengths of the documents, the longest first
    int *first, *width;         // (n) the bins of each
} Level;

static int holds(const PlanLimits* limits, int s, int ranks) {
    return CEIL_DIV(s, ranks) <= limits->capacity && widest_ring_rank(s, ranks) <= limits->capacity;
}

// Returns 1 if a document is in the zone from threshold on, or must be cut because a bin does not hold it.
static int is_cut(const Level* l, int s, int threshold) {
    return s >= threshold || !holds(l->limits, s, l->bins[0].ranks);
}

// Puts a document on the window of `width` bins with the least maximum of work, or of tokens (by_tokens), among those
// that hold it and have room (or beyond_room). Returns its first bin, -1 for none.
static int put(const Level* l, int s, int width, int by_tokens, int beyond_room) {
    double least = 0, work = 0;
    int best = -1, ranks = 0;
    for (int at = 0; at + width <= l->n_bins; at++) {
        double most = 0, tokens = 0;
        int n = 0;
        for (int b = at; b < at + width; b++) {
            n += l->bins[b].ranks;
            most = MAX(most, l->bins[b].work);
            tokens = MAX(tokens, l->bins[b].tokens);
        }
        double key = by_tokens ? tokens : most;
        if (best >= 0 && key >= least) continue;
        if (!beyond_room && tokens + (double)s / n > l->room) continue;
        if (!holds(l->limits, s, n)) continue;
        best = at, least = key, work = most, ranks = n;
    }
    for (int b = best; best >= 0 && b < best + width; b++) {
        l->bins[b].work = work + (double)s * s / ranks;
        l->bins[b].tokens += (double)s / ranks;
    }
    return best;
}

// The same on at least *width bins, if need be beyond their room; sets *width. All bins together hold the document.
static int put_cut(const Level* l, int s, int* width) {
    int least = *width, at = -1;
    for (int beyond_room = 0; beyond_room < 2 && at < 0; beyond_room++)
        for (*width = least; (at = put(l, s, *width, 0, beyond_room)) < 0 && *width < l->n_bins;) ++*width;
    return at;
}

// The number of bins that a part of all takes: ceil(part / (all / bins)), from 1 to bins.
static int bins_of(double part, double all, int bins) {
    double share = part * bins / all;
    if (share >= bins) return bins;
    int whole = (int)share;
    return MAX(whole + (whole < share), 1);
}

// Makes one pass with this threshold, which may have fallen from `crossing`. Returns 1 if all documents found room.
static int assign(const Level* l, int threshold, int crossing) {
    double tokens = 0, work = 0;  // of the documents that are cut
    for (int b = 0; b < l->n_bins; b++) l->bins[b].work = l->work, l->bins[b].tokens = l->tokens;
    for (int i = 0; i < l->n; i++) {
        double s = l->sorted[i];
        if (is_cut(l, l->sorted[i], threshold)) tokens += s, work += s * s;
    }
    for (int i = 0; i < l->n; i++) {
        int s = l->sorted[i], *width = &l->width[i];
        *width = 1;
        if (is_cut(l, s, threshold)) {
            *width = bins_of((double)s * s, work, l->n_bins);
            if (l->of_nodes) *width = MAX(*width, bins_of(s, tokens, l->n_bins));
            if (s >= threshold && s < crossing) *width = l->n_bins;
            l->first[i] = put_cut(l, s, width);
        } else if ((l->first[i] = put(l, s, 1, 1, l->of_nodes && l->n_bins == 1)) < 0) return 0;
    }
    return 1;
}

// Lowers the threshold until all documents find room.
static int settle(const Level* l, int crossing) {
    int threshold = crossing;
    while (!assign(l, threshold, crossing)) {
        int whole = 0;
        while (l->sorted[whole] >= threshold) whole++;
        threshold = l->sorted[MIN(whole + l->n / 64, l->n - 1)];
    }
    return threshold;
}

// Deals a node's documents to its ranks; those cut across nodes get their windows. Returns the threshold. whole (2 n).
static int settle_node(ZeppelinWindow* windows, Level* ranks, const Level* nodes, int node, int crossing, int* whole) {
    int first_rank = node * nodes->limits->node_size, *lengths = whole + nodes->n;
    ranks->sorted = lengths;
    ranks->n = 0, ranks->work = 0, ranks->tokens = 0;
    ranks->n_bins = nodes->bins[node].ranks;
    for (int i = 0; i < nodes->n; i++) {
        int first = nodes->first[i], end = first + nodes->width[i], n = 0;
        double s = nodes->sorted[i];
        if (node < first || node >= end) continue;
        for (int b = first; b < end; b++) n += nodes->bins[b].ranks;
        if (nodes->width[i] == 1) whole[ranks->n] = i, lengths[ranks->n++] = nodes->sorted[i];
        else ranks->work += s * s / n, ranks->tokens += s / n;
        windows[i] = (ZeppelinWindow){first * nodes->limits->node_size, n, QUEUE_ACROSS};
    }
    int threshold = settle(ranks, crossing);
    for (int i = 0; i < ranks->n; i++)
        windows[whole[i]] = (ZeppelinWindow){first_rank + ranks->first[i], ranks->width[i],
                                             ranks->width[i] > 1 ? QUEUE_INSIDE : QUEUE_LOCAL};
    return threshold;
}

int zeppelin_partition(ZeppelinWindow* windows, ZeppelinZones* zones, const int* documents, const int* sorted, int n,
                       const PlanLimits* limits, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    int n_nodes = CEIL_DIV(limits->ranks, limits->node_size), *whole = TAKE(arena, int, 2 * n), inside = zones->inside;
    int64_t total = 0, held = (int64_t)limits->capacity * limits->ranks;
    for (int i = 0; i < n; i++) total += sorted[i];
    Level nodes = {.limits = limits, .of_nodes = 1, .n_bins = n_nodes, .n = n, .sorted = sorted}, ranks;
    nodes.room = (double)(limits->capacity * MAX(CEIL_DIV(total, held), 1));
    ranks = nodes, ranks.of_nodes = 0;
    for (int level = 0; level < 2; level++) {
        Level* l = level ? &ranks : &nodes;
        l->first = TAKE(arena, int, n), l->width = TAKE(arena, int, n), l->bins = TAKE(arena, Bin, limits->ranks);
    }
    if (arena_check(arena, err) < 0) return -1;
    if (limits->squares) return fail(err, "zeppelin cuts long documents by rings, and no tree; try --plan flex");
    for (int r = 0; r < limits->ranks; r++) ranks.bins[r].ranks = 1;
    for (int b = 0; b < n_nodes; b++)
        nodes.bins[b].ranks = MIN(limits->node_size, limits->ranks - b * limits->node_size);
    for (int i = 0; i < n; i++)
        if (!holds(limits, sorted[i], limits->ranks))
            return fail(err,
                        "document %d of the step has %d tokens, and a ring of all %d ranks holds %d at capacity %d; "
                        "try --capacity %lld or more ranks",
                        documents[i], sorted[i], limits->ranks, longest_fitting(limits, sorted[i], 1, limits->ranks),
                        limits->capacity, (long long)capacity_for(limits, sorted[i], 1, limits->ranks));
    // One node alone cuts nothing across nodes.
    zones->across = settle(&nodes, n_nodes == 1 ? INT_MAX : zones->across);
    zones->inside = MIN(inside, zones->across);
    for (int b = 0; b < n_nodes; b++)
        zones->inside = MIN(zones->inside, settle_node(windows, &ranks, &nodes, b, inside, whole));
    arena_reset(arena, mark);
    return 0;
}

// ---- micro-batches

typedef struct Zeppelin {
    const Setting* setting;
    ZeppelinZones zones;
} Zeppelin;

typedef struct Scratch {
    int *documents, *sorted;  // (n) the longest first; their lengths
    int *mb_of, *room;        // (n)
    ZeppelinWindow* windows;  // (n)
    int* ring_docs;           // (ranks)
} Scratch;

// Makes the micro-batches of all windows, queue by queue. A document joins the first of its window that has room.
static void make_micro_batches(Plan* plan, Scratch* x, const PlanLimits* limits) {
    for (ZeppelinQueue queue = 0; queue < N_QUEUES; queue++)
        for (int i = 0, first = plan->n_micro_batches; i < plan->n_docs; i++) {
            const ZeppelinWindow* w = &x->windows[i];
            if (w->queue != queue) continue;
            int widest = widest_ring_rank(x->sorted[i], w->cp_size), at = first;
            for (; at < plan->n_micro_batches; at++) {
                const MicroBatch* mb = &plan->micro_batches[at];
                if (mb->first_rank == w->first_rank && mb->cp_size == w->cp_size && x->room[at] >= widest) break;
            }
            if (at == plan->n_micro_batches) {
                plan->micro_batches[plan->n_micro_batches++] =
                    (MicroBatch){.first_rank = w->first_rank, .cp_size = w->cp_size, .ulysses_size = 1};
                x->room[at] = limits->capacity;
            }
            x->room[at] -= widest;
            x->mb_of[x->documents[i]] = at;
        }
    plan_fill(plan, x->documents, x->mb_of);
}

// Turns micro-batches into ulysses groups once rings have their most documents.
static int limit_rings(Plan* plan, Scratch* x, const int* lengths, const PlanLimits* limits, Err err) {
    memset(x->ring_docs, 0, sizeof(int) * (size_t)limits->ranks);
    for (int i = 0; i < plan->n_micro_batches; i++) {
        MicroBatch* mb = &plan->micro_batches[i];
        int most = 0;
        if (mb->cp_size == 1) continue;
        for (int r = 0; r < mb->cp_size; r++) most = MAX(most, x->ring_docs[mb->first_rank + r]);
        for (int r = 0; r < mb->cp_size && most + mb->n_docs <= limits->max_ring_docs; r++)
            x->ring_docs[mb->first_rank + r] += mb->n_docs;
        if (most + mb->n_docs <= limits->max_ring_docs) continue;
        int64_t tokens = (int64_t)micro_batch_sums(plan, mb, lengths).tokens;
        if (mb->cp_size > limits->kv_heads || tokens > ring_rank_capacity(limits, mb->cp_size))
            return fail(err,
                        "the rings of ranks %d to %d have %d documents, at most %d can be, and they do not fit when %d "
                        "key/value heads are shared",
                        mb->first_rank, mb->first_rank + mb->cp_size - 1, most + mb->n_docs, limits->max_ring_docs,
                        limits->kv_heads);
        mb->ulysses_size = mb->cp_size;
    }
    return 0;
}

// ---- the entry of the table

static void* zeppelin_open(const Setting* setting, const int* sample, int n_sample, Arena* arena, Err err) {
    (void)sample, (void)n_sample;
    Zeppelin* z = TAKE(arena, Zeppelin, 1);
    if (arena_check(arena, err) < 0) return NULL;
    *z = (Zeppelin){setting, zeppelin_zones(setting, zeppelin_across_scale(setting))};
    return z;
}

static int zeppelin_plan(const void* planner, Plan* plan, int64_t step, const int* lengths, int n, Arena* arena,
                         Err err) {
    const Zeppelin* z = (const Zeppelin*)planner;
    const PlanLimits* limits = &z->setting->limits;
    if (plan_begin(plan, step, lengths, n, limits, arena, err) < 0) return -1;
    ArenaMark mark = arena_mark(arena);
    Scratch x = {.documents = TAKE(arena, int, n),
                 .sorted = TAKE(arena, int, n),
                 .mb_of = TAKE(arena, int, n),
                 .room = TAKE(arena, int, n),
                 .windows = TAKE(arena, ZeppelinWindow, n),
                 .ring_docs = TAKE(arena, int, limits->ranks)};
    if (arena_check(arena, err) < 0) return -1;
    sort_longest_first(x.documents, x.sorted, lengths, n);
    ZeppelinZones zones = z->zones;
    if (zeppelin_partition(x.windows, &zones, x.documents, x.sorted, n, limits, arena, err) < 0) return -1;
    make_micro_batches(plan, &x, limits);
    if (limit_rings(plan, &x, lengths, limits, err) < 0) return -1;
    arena_reset(arena, mark);
    return 0;
}

const Planner planner_zeppelin = {.name = "zeppelin",
                                  .words =
                                      "documents cut by length across nodes, inside one or not, in rings "
                                      "(Zeppelin, 2025; our reconstruction; keys route, remap of --plan)",
                                  .open = zeppelin_open,
                                  .plan = zeppelin_plan};
