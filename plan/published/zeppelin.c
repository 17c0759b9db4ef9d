// zeppelin.c - Zeppelin (arXiv 2509.21841, EuroSys 2026) as a published planner: zones of lengths, rings as wide as
// their zone, routing over all NICs, remapping of tokens for linear modules. A reconstruction: no code of it is public.
//
// Zones. A document is worth cutting where its attention takes at least as long as its exchanges:
//   quadratic(d) s^2 >= exchanges(d, s),  d a whole machine for s0, two machines for s1; exchanges across are routed.
// Micro-batches. Documents on the same window share a micro-batch, longest first, as many as the capacity of its ranks
// takes; the rest goes to further micro-batches. Ranks work through what is across machines, then inside, then local.
// Every cut document is a ring; by heads go only those for which ring documents have run out
// (PlanLimits.max_ring_docs). How it is played, where in doubt in its favour:
//   across_scale  routed / direct time of exchanges across machines with as many NICs as ranks, at the best number of
//                 proxies. A published machine's bandwidths are those of an all-to-all, which uses all NICs already:
//                 there this flatters Zeppelin.
//   remap_ms      queries, keys and values to where attention is, outputs back, h + 2 h_kv and h a token, and the same
//                 backward: the bytes a token that heads exchange. All linear modules are balanced, projections too.
//                 Transfers are those of zeppelin_remap.c for the whole step at once, the busiest rank sets the time.
//   Cost.round    is paid once for each round, ceil(tokens / capacity) of the rank with most of them, and not for
//                 every micro-batch: a round has all three queues. There is no barrier between rounds: all
//                 micro-batches are of one round, which takes the time of all.
#include "plan/published/zeppelin.h"

#include <limits.h>
#include <stdlib.h>

#include "plan/planner.h"
#include "plan/published/longest.h"
#include "plan/published/published.h"

// ---- formulas

double zeppelin_routed(int proxies, int nics, double inside) {
    return 2 * (inside * (proxies - 1) / proxies) + 1.0 / MIN(proxies, nics);
}

// ---- what the machine says

static GroupCost ring(const Setting* setting, int cp_size) {
    return cost_group(&setting->cost, &setting->limits, 0, cp_size, 1);
}

// ms that a rank of such a ring needs for what heads would exchange of a token, all layers, both ways; in the long run.
static double token_ms(const Setting* setting, int cp_size) {
    const Cost* cost = &setting->cost;
    GroupCost g = ring(setting, cp_size);
    if (cp_size == 1) return 0;
    if (cost->n_groups > 0) return g.link_linear * cp_size;
    const LinkTable* link = &cost->link[g.across ? LINK_ACROSS : LINK_INSIDE];
    if (link->n == 0) return 0;
    double per_byte = link->ms[link->n - 1] / MAX(link->bytes[link->n - 1], 1);
    return cost->link_scale * per_byte * 8 * cost->layers * cost->channels * cost->elem_bytes;
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

// The least length whose computing in this ring takes as long as its exchanges.
static int crossing(const GroupCost* g, double scale) {
    int low = 0, high = INT_MAX;  // not worth it, taken to be
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
    ZeppelinZones zones = {crossing(&inside, 1), ranks > node ? crossing(&across, scale) : INT_MAX};
    zones.across = MAX(zones.inside, zones.across);
    return zones;
}

// ---- micro-batches

typedef struct Zeppelin {
    const Setting* setting;
    double across_scale;
    ZeppelinZones zones;
} Zeppelin;

typedef struct Scratch {
    Sorted* by_length;                        // (n)
    int *sorted, *docs, *micro_batch, *room;  // (n)
    ZeppelinWindow* windows;                  // (n)
    int64_t *tokens, *targets, *left;         // (ranks)
    int64_t* moved[N_LINKS];                  // (ranks)
    int* ring_docs;                           // (ranks)
    Move* moves;                              // (2 ranks)
} Scratch;

static Scratch take_scratch(int n, int ranks, Arena* arena) {
    return (Scratch){.by_length = TAKE(arena, Sorted, n),
                     .sorted = TAKE(arena, int, n),
                     .docs = TAKE(arena, int, n),
                     .micro_batch = TAKE(arena, int, n),
                     .room = TAKE(arena, int, n),
                     .windows = TAKE(arena, ZeppelinWindow, n),
                     .tokens = TAKE(arena, int64_t, ranks),
                     .targets = TAKE(arena, int64_t, ranks),
                     .left = TAKE(arena, int64_t, ranks),
                     .moved = {TAKE(arena, int64_t, ranks), TAKE(arena, int64_t, ranks)},
                     .ring_docs = TAKE(arena, int, ranks),
                     .moves = TAKE(arena, Move, 2 * ranks)};
}

static void sort_documents(Scratch* x, const int* lengths, int n) {
    for (int i = 0; i < n; i++) x->by_length[i] = (Sorted){lengths[i], i};
    sort_longest_first(x->by_length, n);
    for (int i = 0; i < n; i++) x->sorted[i] = x->by_length[i].length, x->docs[i] = x->by_length[i].doc;
}

// Micro-batches of all windows, queue by queue; a document joins the first micro-batch of its window that has room.
static void make_micro_batches(Plan* plan, Scratch* x, const PlanLimits* limits) {
    plan->n_micro_batches = 0;
    for (ZeppelinQueue queue = 0; queue < N_QUEUES; queue++)
        for (int i = 0, first = plan->n_micro_batches; i < plan->n_docs; i++) {
            const ZeppelinWindow* w = &x->windows[i];
            if (w->queue != queue) continue;
            int widest = widest_place(x->sorted[i], w->cp_size), at = first;
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
        plan->docs[mb->first_doc + mb->n_docs++] = x->docs[i];
    }
}

// Micro-batches beyond the documents that rings may have share heads.
static int limit_rings(Plan* plan, Scratch* x, const int* lengths, const PlanLimits* limits, char* err, size_t errlen) {
    memset(x->ring_docs, 0, sizeof(int) * (size_t)limits->ranks);
    for (int i = 0; i < plan->n_micro_batches; i++) {
        MicroBatch* mb = &plan->micro_batches[i];
        int most = 0;
        int64_t tokens = 0;
        if (mb->cp_size == 1) continue;
        for (int r = 0; r < mb->cp_size; r++) most = MAX(most, x->ring_docs[mb->first_rank + r]);
        for (int r = 0; r < mb->cp_size && most + mb->n_docs <= limits->max_ring_docs; r++)
            x->ring_docs[mb->first_rank + r] += mb->n_docs;
        if (most + mb->n_docs <= limits->max_ring_docs) continue;
        for (int d = 0; d < mb->n_docs; d++) tokens += lengths[plan->docs[mb->first_doc + d]];
        if (mb->cp_size > limits->NH || tokens > place_capacity(limits, mb->cp_size))
            return fail(err, errlen,
                        "the rings of ranks %d to %d have %d documents, at most %d can be, and they do not fit when %d "
                        "heads are shared",
                        mb->first_rank, mb->first_rank + mb->cp_size - 1, most + mb->n_docs, limits->max_ring_docs,
                        limits->NH);
        mb->ulysses_size = mb->cp_size;
    }
    return 0;
}

// ---- the rule

static double transfer_ms(const Setting* setting, LinkKind kind, double tokens) {
    const Cost* cost = &setting->cost;
    int ranks = setting->limits.ranks;
    if (tokens == 0) return 0;
    if (cost->n_groups > 0)
        return tokens * token_ms(setting, kind == LINK_ACROSS ? ranks : MIN(setting->limits.node_size, ranks));
    double tensor = tokens * cost->channels * cost->elem_bytes;
    return cost->link_scale * 2 * cost->layers *
           (link_ms(&cost->link[kind], 3 * tensor) + link_ms(&cost->link[kind], tensor));
}

// Of the rank that takes longest; x->tokens are those of the ranks in attention.
static double remap_ms(Scratch* x, const Setting* setting, double across_scale) {
    int ranks = setting->limits.ranks, node = setting->limits.node_size;
    double most = 0;
    remap_targets(x->targets, x->tokens, ranks);
    int n = remap_moves(x->moves, x->tokens, x->targets, x->left, ranks, node);
    for (int l = 0; l < N_LINKS; l++) memset(x->moved[l], 0, sizeof(int64_t) * (size_t)ranks);
    for (int i = 0; i < n; i++) {
        const Move* move = &x->moves[i];
        int64_t* moved = x->moved[move->from / node != move->to / node ? LINK_ACROSS : LINK_INSIDE];
        // The way back: who sends and who receives is exchanged, a rank does only one of them.
        moved[move->from] += move->tokens;
        moved[move->to] += move->tokens;
    }
    for (int r = 0; r < ranks; r++) {
        double ms = transfer_ms(setting, LINK_INSIDE, (double)x->moved[LINK_INSIDE][r]) +
                    across_scale * transfer_ms(setting, LINK_ACROSS, (double)x->moved[LINK_ACROSS][r]);
        most = MAX(most, ms);
    }
    return most;
}

static PlayRule make_rule(const Zeppelin* z, const Plan* plan, const int* lengths, Scratch* x) {
    const PlanLimits* limits = &z->setting->limits;
    int64_t most = 0;
    memset(x->tokens, 0, sizeof(int64_t) * (size_t)limits->ranks);
    for (int i = 0; i < plan->n_micro_batches; i++)
        for (int r = plan->micro_batches[i].first_rank;
             r < plan->micro_batches[i].first_rank + plan->micro_batches[i].cp_size; r++)
            x->tokens[r] += micro_batch_share(plan, &plan->micro_batches[i], lengths, r, NULL).n;
    for (int r = 0; r < limits->ranks; r++) most = MAX(most, x->tokens[r]);
    return (PlayRule){.in_rounds = 1,
                      .round_ms = (double)CEIL_DIV(most, limits->capacity) * planner_micro_batch_ms(&z->setting->cost),
                      .across_scale = z->across_scale,
                      .even_linear = 1,
                      .remap_ms = remap_ms(x, z->setting, z->across_scale)};
}

// ---- the published planner

static void* zeppelin_open(const Setting* setting, const int* sample, int n_sample, char* err, size_t errlen) {
    (void)sample, (void)n_sample;
    Zeppelin* z = (Zeppelin*)malloc(sizeof *z);
    if (!z) {
        fail(err, errlen, "no memory for a planner");
        return NULL;
    }
    double scale = zeppelin_across_scale(setting);
    *z = (Zeppelin){setting, scale, zeppelin_zones(setting, scale)};
    return z;
}

static int zeppelin_plan(void* planner, Plan* plan, PlayRule* rule, int64_t step, const int* lengths, int n,
                         Arena* arena, char* err, size_t errlen) {
    const Zeppelin* z = (const Zeppelin*)planner;
    const PlanLimits* limits = &z->setting->limits;
    if (plan_begin(plan, step, lengths, n, limits, arena, err, errlen) < 0) return -1;
    ArenaMark mark = arena_mark(arena);
    Scratch x = take_scratch(n, limits->ranks, arena);
    if (arena_check(arena, err, errlen) < 0) return -1;
    sort_documents(&x, lengths, n);
    ZeppelinZones zones = z->zones;
    if (zeppelin_partition(x.windows, &zones, x.sorted, x.docs, n, limits, arena, err, errlen) < 0) return -1;
    make_micro_batches(plan, &x, limits);
    if (limit_rings(plan, &x, lengths, limits, err, errlen) < 0) return -1;
    *rule = make_rule(z, plan, lengths, &x);
    arena_reset(arena, mark);
    return 0;
}

const Planner planner_zeppelin = {
    "zeppelin",
    "documents cut by length across machines, inside one or not, rings, routing and remapping (Zeppelin, 2025; our "
    "reconstruction)",
    zeppelin_open, zeppelin_plan, free};
