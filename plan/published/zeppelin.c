// zeppelin.c - Zeppelin (arXiv 2509.21841, EuroSys 2026) as a published planner: zones of lengths, rings as wide as
// their zone, routing over all NICs, remapping of tokens for linear modules. A reconstruction: no code of it is public.
//
// Zones. A document is worth cutting where its attention takes at least as long as its communication:
//   quadratic(d) s^2 >= communication(d, s),  d one node for the zone inside, two for the zone across, which is routed.
// Micro-batches. Documents on the same window share a micro-batch, longest first, as many as the capacity of its ranks
// takes; the rest goes to further micro-batches. Ranks work through what is across nodes, then inside, then local.
// Every cut document is a ring; only those for which ring documents have run out (PlanLimits.max_ring_docs) share
// heads. There is no barrier between its rounds, so all micro-batches are one list without any. Routing and remapping
// are the engine's, for any plan (plan/step/remap.h, plan/cost/cost.h). For where zones begin, communication across
// nodes is taken at the routed over the direct time of as many NICs as ranks, at the best number of proxies. A
// published machine's bandwidths are those of an all-to-all, which uses all NICs already: there this flatters Zeppelin.
#include "plan/published/zeppelin.h"

#include <limits.h>

double zeppelin_routed(int proxies, int nics, double inside) {
    return 2 * (inside * (proxies - 1) / proxies) + 1.0 / MIN(proxies, nics);
}

// ---- what the machine says

// In Zeppelin's favour rings hide so much under attention that on a published machine they cost what all-to-alls do.
static GroupCost ring(const Setting* setting, int cp_size) {
    GroupCost g = cost_group(&setting->cost, &setting->limits, 0, cp_size, 1);
    if (setting->cost.n_groups > 0 && cp_size > 1) g.link_linear = published_token_ms(&setting->cost, cp_size);
    return g;
}

// ms that a rank of such a ring needs for an all-to-all of a token's heads, all layers, both ways; in the long run.
static double token_ms(const Setting* setting, int cp_size) {
    const Cost* cost = &setting->cost;
    GroupCost g = ring(setting, cp_size);
    if (cp_size == 1) return 0;
    if (cost->n_groups > 0) return g.link_linear * cp_size;
    const LinkTable* link = &cost->link[g.across ? LINK_ACROSS : LINK_INSIDE];
    if (link->n == 0) return 0;
    double per_byte = link->ms[link->n - 1] / MAX(link->bytes[link->n - 1], 1);
    return cost->link_scale * per_byte * 4 * cost->layers * (cost->channels + cost->kv_channels) * cost->elem_bytes;
}

double zeppelin_across_scale(const Setting* setting) {
    int node = setting->limits.node_size;
    if (setting->limits.ranks <= node) return 1;
    double across = token_ms(setting, MIN(2 * node, setting->limits.ranks)), least = 1;
    if (across <= 0) return 1;
    for (int proxies = 2; proxies <= node; proxies++)
        least = MIN(least, zeppelin_routed(proxies, node, token_ms(setting, node) / across));
    return least;
}

// The least length whose computing in this ring takes as long as its communication.
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

// A node on level 1, a rank on level 2. Work and tokens are of each of its ranks.
typedef struct Bin {
    int ranks;
    double work, tokens;
} Bin;

typedef struct Level {
    const PlanLimits* limits;
    Bin* bins;
    int n_bins;
    double room;  // tokens of a rank
} Level;

typedef struct Partition {
    const PlanLimits* limits;
    const int *documents, *sorted;  // (n) the longest first, and their lengths
    int n, n_nodes;
    Level nodes, ranks;
    Bin* across;                // (nodes) what is cut across them
    int *first, *count;         // (n) nodes of a document, or with count 0 its one node
    int *whole, *whole_sorted;  // (n) the documents of one node, as indices into `documents`, and their lengths
} Partition;

// ---- windows

static int holds(const PlanLimits* limits, int s, int ranks) {
    return CEIL_DIV(s, ranks) <= limits->capacity && widest_ring_rank(s, ranks) <= limits->capacity;
}

// Whether a document is in the zone from threshold on, or has to be cut because `ranks` do not hold it.
static int is_cut(const PlanLimits* limits, int s, int threshold, int ranks) {
    return s >= threshold || !holds(limits, s, ranks);
}

// By what a window is chosen; beyond_room: it need not have room for the document.
typedef struct Choice {
    int by_tokens, beyond_room;
} Choice;

// The window of `width` bins with the least maximum of work, or of tokens, among those that hold the document; -1 when
// there is none. *work: its maximum of work, *ranks: its ranks.
static int find_window(const Level* level, int s, int width, Choice choice, double* work, int* ranks) {
    double least = 0;
    int best = -1;
    for (int at = 0; at + width <= level->n_bins; at++) {
        double most = 0, tokens = 0;
        int n = 0;
        for (int b = at; b < at + width; b++) {
            n += level->bins[b].ranks;
            most = MAX(most, level->bins[b].work);
            tokens = MAX(tokens, level->bins[b].tokens);
        }
        double key = choice.by_tokens ? tokens : most;
        if (best >= 0 && key >= least) continue;
        if (!choice.beyond_room && tokens + (double)s / n > level->room) continue;
        if (!holds(level->limits, s, n)) continue;
        best = at, least = key, *work = most, *ranks = n;
    }
    return best;
}

// Puts a document on `width` bins. Returns the first of them, -1 where no window can have it.
static int put(const Level* level, int s, int width, Choice choice) {
    double work = 0;
    int ranks = 0, at = find_window(level, s, width, choice, &work, &ranks);
    for (int b = at; at >= 0 && b < at + width; b++) {
        level->bins[b].work = work + (double)s * s / ranks;
        level->bins[b].tokens += (double)s / ranks;
    }
    return at;
}

// The same on at least *width bins, if need be beyond their room; *width becomes how many. -1: all do not hold it.
static int put_cut(const Level* level, int s, int* width) {
    int least = *width;
    for (int beyond_room = 0; beyond_room < 2; beyond_room++)
        for (*width = least; *width <= level->n_bins; ++*width) {
            int at = put(level, s, *width, (Choice){0, beyond_room});
            if (at >= 0) return at;
        }
    return -1;
}

// The threshold after an overflow; some of the n documents are below it.
static int lower(const int* sorted, int n, int threshold) {
    int whole = 0;
    while (sorted[whole] >= threshold) whole++;
    return sorted[MIN(whole + n / 64, n - 1)];
}

// ---- nodes

static int refuse(int doc, int s, const PlanLimits* limits, Err err) {
    return fail(err,
                "document %d of the step has %d tokens, and a ring of all %d ranks holds %d at capacity %d; try "
                "--capacity %lld or more ranks",
                doc, s, limits->ranks, longest_fitting(limits, s, 1, limits->ranks), limits->capacity,
                (long long)capacity_for(limits, s, 1, limits->ranks));
}

// ceil(part / (all / bins)), 1 to bins: how many bins a part of all takes.
static int bins_of(double part, double all, int bins) {
    double share = part * bins / all;
    if (share >= bins) return bins;
    int whole = (int)share;
    return MAX(whole + (whole < share), 1);
}

// Of the documents that have to be cut, those from threshold on and those that `ranks` do not hold.
typedef struct Total {
    double tokens, work;
} Total;

static Total total_cut(const PlanLimits* limits, const int* sorted, int n, int threshold, int ranks) {
    Total total = {0};
    for (int i = 0; i < n; i++) {
        double s = sorted[i];
        if (!is_cut(limits, sorted[i], threshold, ranks)) continue;
        total.tokens += s;
        total.work += s * s;
    }
    return total;
}

static int nodes_of(const Partition* p, int s, const Total* total) {
    return MAX(bins_of(s, total->tokens, p->n_nodes), bins_of((double)s * s, total->work, p->n_nodes));
}

// One pass with this threshold, which may have fallen from `crossing`. 1, or 0 where a document found no room, -1 where
// one is too long.
static int assign_nodes(Partition* p, int threshold, int crossing, Err err) {
    const PlanLimits* limits = p->limits;
    for (int b = 0; b < p->n_nodes; b++) {
        p->nodes.bins[b] = (Bin){.ranks = MIN(limits->node_size, limits->ranks - b * limits->node_size)};
        p->across[b] = (Bin){0};
    }
    Total total = total_cut(limits, p->sorted, p->n, threshold, p->nodes.bins[0].ranks);
    for (int i = 0; i < p->n; i++) {
        int s = p->sorted[i], *count = &p->count[i], ranks = 0;
        *count = 1;
        if (!is_cut(limits, s, threshold, p->nodes.bins[0].ranks)) {
            p->first[i] = put(&p->nodes, s, 1, (Choice){1, p->n_nodes == 1});
            if (p->first[i] < 0) return 0;
        } else {
            int fallen = s >= threshold && s < crossing;
            *count = fallen ? p->n_nodes : nodes_of(p, s, &total);
            p->first[i] = put_cut(&p->nodes, s, count);
            if (p->first[i] < 0) return refuse(p->documents[i], s, limits, err);
        }
        if (*count == 1) *count = 0;
        for (int b = 0; b < *count; b++) ranks += p->nodes.bins[p->first[i] + b].ranks;
        for (int b = p->first[i]; b < p->first[i] + *count; b++) {
            p->across[b].work += (double)s * s / ranks;
            p->across[b].tokens += (double)s / ranks;
        }
    }
    return 1;
}

// ---- the ranks of a node

// One pass for the n_whole documents that are whole in a node, all of which fit it. 1, or 0 where a document found no
// room.
static int assign_ranks(Partition* p, ZeppelinWindow* windows, int node, int n_whole, int threshold, int crossing) {
    int ranks = p->nodes.bins[node].ranks;
    Total total = total_cut(p->limits, p->whole_sorted, n_whole, threshold, 1);
    p->ranks.n_bins = ranks;
    for (int r = 0; r < ranks; r++) p->ranks.bins[r] = (Bin){1, p->across[node].work, p->across[node].tokens};
    for (int i = 0; i < n_whole; i++) {
        int s = p->whole_sorted[i], cp_size = 1, at;
        if (!is_cut(p->limits, s, threshold, 1)) {
            at = put(&p->ranks, s, 1, (Choice){1, 0});
            if (at < 0) return 0;
        } else {
            cp_size = bins_of((double)s * s, total.work, ranks);
            if (s >= threshold && s < crossing) cp_size = ranks;
            at = put_cut(&p->ranks, s, &cp_size);
        }
        windows[p->whole[i]] =
            (ZeppelinWindow){node * p->limits->node_size + at, cp_size, cp_size > 1 ? QUEUE_INSIDE : QUEUE_LOCAL};
    }
    return 1;
}

// What lies in node `node`: those cut across get their windows, the others are listed. Returns how many these are.
static int list_members(Partition* p, ZeppelinWindow* windows, int node) {
    int n_whole = 0;
    for (int i = 0; i < p->n; i++) {
        if (p->first[i] != node) continue;
        if (p->count[i] == 0) {
            p->whole[n_whole] = i, p->whole_sorted[n_whole++] = p->sorted[i];
            continue;
        }
        int ranks = 0;
        for (int b = node; b < node + p->count[i]; b++) ranks += p->nodes.bins[b].ranks;
        windows[i] = (ZeppelinWindow){node * p->limits->node_size, ranks, QUEUE_ACROSS};
    }
    return n_whole;
}

// ---- both

static int partition(Partition* p, ZeppelinWindow* windows, ZeppelinZones* zones, Err err) {
    int crossing = zones->across, done;
    while ((done = assign_nodes(p, zones->across, crossing, err)) == 0)
        zones->across = lower(p->sorted, p->n, zones->across);
    if (done < 0) return -1;
    crossing = zones->inside;
    zones->inside = MIN(zones->inside, zones->across);
    for (int node = 0; node < p->n_nodes; node++) {
        int n_whole = list_members(p, windows, node), threshold = crossing;
        while (!assign_ranks(p, windows, node, n_whole, threshold, crossing))
            threshold = lower(p->whole_sorted, n_whole, threshold);
        zones->inside = MIN(zones->inside, threshold);
    }
    return 0;
}

int zeppelin_partition(ZeppelinWindow* windows, ZeppelinZones* zones, const int* documents, const int* sorted, int n,
                       const PlanLimits* limits, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    Partition p = {.limits = limits,
                   .documents = documents,
                   .sorted = sorted,
                   .n = n,
                   .n_nodes = CEIL_DIV(limits->ranks, limits->node_size),
                   .first = TAKE(arena, int, n),
                   .count = TAKE(arena, int, n),
                   .whole = TAKE(arena, int, n),
                   .whole_sorted = TAKE(arena, int, n)};
    p.across = TAKE(arena, Bin, p.n_nodes);
    int64_t total = 0, held = (int64_t)limits->capacity * limits->ranks;
    for (int i = 0; i < n; i++) total += sorted[i];
    int64_t room = limits->capacity * MAX(CEIL_DIV(total, held), 1);
    p.nodes = (Level){limits, TAKE(arena, Bin, p.n_nodes), p.n_nodes, (double)room};
    p.ranks = (Level){limits, TAKE(arena, Bin, limits->ranks), 0, (double)room};
    // One node has nothing to cut across with.
    if (p.n_nodes == 1) zones->across = INT_MAX;
    zones->inside = MIN(zones->inside, zones->across);
    if (arena_check(arena, err) < 0 || partition(&p, windows, zones, err) < 0) return -1;
    arena_reset(arena, mark);
    return 0;
}

// ---- micro-batches

typedef struct Zeppelin {
    const Setting* setting;
    ZeppelinZones zones;
} Zeppelin;

typedef struct Scratch {
    int *documents, *sorted;  // (n) the longest first, their lengths
    int *micro_batch, *room;  // (n)
    ZeppelinWindow* windows;  // (n)
    int* ring_docs;           // (ranks)
} Scratch;

// Micro-batches of all windows, queue by queue; a document joins the first micro-batch of its window that has room.
static void make_micro_batches(Plan* plan, Scratch* x, const PlanLimits* limits) {
    plan->n_micro_batches = 0;
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
            plan->micro_batches[at].n_docs++;
            x->micro_batch[i] = at;
        }
    for (int i = 0, docs = 0; i < plan->n_micro_batches; i++) {
        plan->micro_batches[i].first_doc = docs;
        docs += plan->micro_batches[i].n_docs;
        plan->micro_batches[i].n_docs = 0;
    }
    for (int i = 0; i < plan->n_docs; i++) {
        MicroBatch* mb = &plan->micro_batches[x->micro_batch[i]];
        plan->docs[mb->first_doc + mb->n_docs++] = x->documents[i];
    }
}

// Micro-batches beyond the documents that rings may have become ulysses groups.
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
                 .micro_batch = TAKE(arena, int, n),
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
