// hydraulis_planner.c - Hydraulis as a published planner: the cp sizes of this project take the place of tensor x
// pipeline parallelism. A pipeline is a group of ranks that share documents by ulysses or ring, pp = 1, one scheme for
// each power of two. So its gains are those of unlike cp sizes chosen each step, not of unlike stages. It does not know
// ranks of unequal speed or capacity: it counts with the least capacity.
#include "plan/published/hydraulis.h"

#include <limits.h>

typedef struct Hydraulis {
    const Setting* setting;
    SchemePool pool;
    Strategy list[HYDRAULIS_LIST];
    int n;
} Hydraulis;

static void pool_of_setting(SchemePool* pool, const Setting* setting) {
    *pool = (SchemePool){.ranks = setting->limits.ranks};
    for (int d = 1; d <= pool->ranks && pool->n < HYDRAULIS_SCHEMES; d += d) {
        const GroupCost* g = &setting->groups[d];
        if (!g->canonical || g->ulysses_size == 0) continue;
        int ring = g->cp_size / g->ulysses_size;
        PipelineScheme scheme = scheme_of_group(g, g->cp_size, 1, g->room * ring);
        scheme.ring = ring;
        if (ring > 1) scheme.max_docs = setting->limits.max_ring_docs;
        scheme_add(pool, &scheme);
    }
}

static void* planner_open(const Setting* setting, const int* sample, int n_sample, Arena* arena, Err err) {
    Hydraulis* h = TAKE(arena, Hydraulis, 1);
    Setting own;
    if (arena_check(arena, err) < 0 || planner_alike(&own, setting, arena, err) < 0) return NULL;
    h->setting = setting;
    pool_of_setting(&h->pool, &own);
    if (h->pool.n == 0) return fail(err, "no cp size of %d ranks is a power of two", setting->limits.ranks), NULL;
    h->n = strategies_short_list(h->list, &h->pool, setting->context, sample, n_sample, arena, err);
    return h->n > 0 ? h : NULL;
}

// Adds the micro-batches of the pipeline on ranks first_rank .., the longest first.
static void add_micro_batches(Plan* plan, StepWork* w, int k, int p, MicroBatch mb) {
    const int *docs = w->docs + w->first[p], *mb_of = w->mb_of + w->first[p];
    int n = w->first[p + 1] - w->first[p], v = 0;
    for (int i = 0; i < n; i++) v = MAX(v, mb_of[i] + 1);
    if (n > 0) hydraulis_time(mb_of, w, k, docs, n, v);
    for (int r = 0; r < v; r++) {
        int longest = 0;
        for (int j = 1; j < v; j++)
            if (w->mb_ms[j] > w->mb_ms[longest]) longest = j;
        w->mb_ms[longest] = -1;
        w->scratch[longest] = plan->n_micro_batches;
        plan->micro_batches[plan->n_micro_batches++] = mb;
    }
    for (int i = 0; i < n; i++) w->candidate[docs[i]] = w->scratch[mb_of[i]];
}

// Pipelines lie in descending order of cp size. So each begins at a multiple of its own, and none needlessly crosses a
// border between nodes of a power of two of ranks.
static void plan_of_choice(Plan* plan, const Hydraulis* h, StepWork* w, const Strategy* strategy) {
    const SchemePool* pool = &h->pool;
    for (int k = 0, p = 0; k < pool->n; k++) {
        int cp_size = pool->scheme[k].gpus, first_rank = 0;
        for (int i = 0; i < pool->n; i++)
            if (pool->scheme[i].gpus > cp_size) first_rank += strategy->copies[i] * pool->scheme[i].gpus;
        for (int copy = 0; copy < strategy->copies[k]; copy++, p++, first_rank += cp_size)
            add_micro_batches(
                plan, w, k, p,
                (MicroBatch){
                    .first_rank = first_rank, .cp_size = cp_size, .ulysses_size = cp_size / pool->scheme[k].ring});
    }
    plan_fill(plan, w->sorted, w->candidate);
}

static int planner_plan(const void* planner, Plan* plan, int64_t step, const int* lengths, int n, Arena* arena,
                        Err err) {
    const Hydraulis* h = (const Hydraulis*)planner;
    StepWork work;
    if (plan_begin(plan, step, lengths, n, &h->setting->limits, arena, err) < 0) return -1;
    ArenaMark mark = arena_mark(arena);
    if (step_work(&work, &h->pool, lengths, h->setting->limits.squares, n, arena, err) < 0) return -1;
    Choice choice = hydraulis_choose(&work, h->list, h->n, HYDRAULIS_SHUFFLES, (uint64_t)step);
    if (choice.strategy >= 0) plan_of_choice(plan, h, &work, &h->list[choice.strategy]);
    else if (n > 0)
        return fail(err,
                    "a document has %d tokens, and no strategy has a group that holds more than %d; try a larger "
                    "--capacity or more ranks",
                    lengths[work.sorted[0]], scheme_longest(&h->pool.scheme[0]));
    arena_reset(arena, mark);
    return 0;
}

// The table of strategies_propose has 14 bytes a cell, of up to HYDRAULIS_BINS lengths and `ranks` GPUs; scoring holds
// a double for each candidate and batch, and the work of a batch.
static size_t open_bytes(const PlanLimits* limits) {
    size_t ranks = (size_t)limits->ranks, work = 28 * HYDRAULIS_SCHEMES;
    return sizeof(Hydraulis) + HYDRAULIS_CANDIDATES * (sizeof(Strategy) + HYDRAULIS_BATCHES * sizeof(double)) +
           (HYDRAULIS_BINS + 1) * (ranks + 1) * 16 + (512 + 4 * ranks) * work + ((size_t)1 << 20);
}

const Planner planner_hydraulis = {.name = "hydraulis",
                                   .words =
                                       "strategies of unlike groups from a dynamic program, one a step, documents "
                                       "dispatched and packed (Hydraulis, 2024)",
                                   .open = planner_open,
                                   .plan = planner_plan,
                                   .open_bytes = open_bytes};
