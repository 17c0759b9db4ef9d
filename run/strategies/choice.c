// choice.c - chooses every step's strategy by Hydraulis, to which a kind of pipeline is a scheme, and learns costs.
#include "run/strategies/strategies.h"
#include "run/setup/setup.h"

#include <math.h>
#include <stdlib.h>

static void add_kind(Kinds* kinds, const PipelineGroup* g, const PipelineScheme* scheme) {
    if (strategies_kind(kinds, g) >= 0) return;
    if (kinds->pool.n == HYDRAULIS_SCHEMES)
        die("--strategies: expected at most %d kinds of pipelines", HYDRAULIS_SCHEMES);
    int at = scheme_add(&kinds->pool, scheme);
    for (int i = kinds->pool.n - 1; i > at; i--) kinds->group[i] = kinds->group[i - 1];
    kinds->group[at] = (PipelineGroup){1, g->tp, g->pp};
}

// Each rank tells the costs and capacities of its own groups.
void strategies_find_choices(Run* run) {
    Strategies* x = run->strategies;
    Comm* world = run->model.world;
    x->kinds.pool = (SchemePool){.ranks = world->size, .may_be_empty = 1};
    for (int s = 0; s < x->list.n; s++) {
        const Run* as = x->as[s];
        int gpus = as->settled.tp * as->settled.pp;
        PipelineScheme mine = scheme_of_group(&as->clock->groups[1], gpus, as->settled.pp, as->clock->limits.capacity),
                       *all = (PipelineScheme*)run_ask_all(run, world, &mine, sizeof mine);
        const RankStrategy* strategy = &x->list.strategy[s];
        for (int g = 0, first = 0; g < strategy->n; first += group_ranks(&strategy->group[g++]))
            add_kind(&x->kinds, &strategy->group[g], &all[first]);
        free(all);
    }
    for (int s = 0; s < x->list.n; s++)
        for (int g = 0; g < x->list.strategy[s].n; g++) {
            const PipelineGroup* group = &x->list.strategy[s].group[g];
            x->choices[s].copies[strategies_kind(&x->kinds, group)] = group->copies;
        }
}

void run_find_cost(Run* run) {
    for (int s = 0; s < run_layouts(run); s++) run_find_job_cost(run_under(run, s));
    if (!run->strategies || run->config.probe) return;
    strategies_find_choices(run);
    strategies_time_moves(run);
    strategies_know_paces(run);
}

// ---- a step

// Keeps the pieces of pipelines like g; Hydraulis numbers pipelines scheme by scheme.
static void keep_pieces(Batch* b, const StepWork* w, const Strategies* x, const PipelineGroup* g) {
    const int* copies = x->choices[b->planned->strategy].copies;
    int kind = strategies_kind(&x->kinds, g), first = 0, n = 0;
    for (int k = 0; k < kind; k++) first += copies[k];
    for (int i = 0; i < b->n_pieces; i++)
        if (w->pipeline_of[i] >= first && w->pipeline_of[i] < first + copies[kind]) b->pieces[n++] = b->pieces[i];
    b->n_pieces = n;
    for (int i = 0; i < n; i++) b->lengths[i] = b->pieces[i].length;
}

int strategies_dispatch(Batch* b, const Run* run, int64_t step, Err err) {
    const Strategies* x = run->strategies;
    StepWork w;
    int place, first = b->training ? 0 : x->now, longest = 0;
    ArenaMark mark = arena_mark(&b->arena);
    if (step_work(&w, &x->kinds.pool, b->lengths, batch_squares(b, run), b->n_pieces, &b->arena, err)) return -1;
    uint64_t seed = hash64((uint64_t)run->config.seed ^ (uint64_t)step);
    Choice choice = hydraulis_choose(&w, x->choices + first, b->training ? x->list.n : 1, HYDRAULIS_SHUFFLES, seed);
    if (choice.strategy < 0 && !b->training)
        first = 0, choice = hydraulis_choose(&w, x->choices, x->list.n, HYDRAULIS_SHUFFLES, seed);
    for (int i = 0; i < b->n_pieces; i++) longest = MAX(longest, b->lengths[i]);
    if (choice.strategy < 0)
        return fail(err,
                    "a document has %d tokens, and no pipeline of a strategy holds more than %lld (tp%dpp%d does); try "
                    "--capacity %d, or a wider tp",
                    longest, (long long)x->kinds.pool.scheme[0].max_tokens, x->kinds.group[0].tp, x->kinds.group[0].pp,
                    CEIL_DIV(longest, x->kinds.group[0].tp));
    b->planned->strategy = first + choice.strategy;
    b->planned->dispatch_hash =
        hash_bytes(w.pipeline_of, sizeof(int) * (size_t)b->n_pieces,
                   hash_bytes(b->lengths, sizeof(int) * (size_t)b->n_pieces, (uint64_t)b->planned->strategy));
    keep_pieces(b, &w, x, strategies_group(run, b->planned->strategy, run->model.world->rank, &place));
    arena_reset(&b->arena, mark);
    return 0;
}

// ---- learning from steps

// A job's terms of the last step, and the ms before its rank could begin.
typedef struct JobTerms {
    double terms[CALIBRATION_TERMS], start_ms;
} JobTerms;

void strategies_learn(Run* run, double ms) {
    Calibration* calibration = &run->cluster->timing.calibration;
    const Comm* world = run->model.world;
    JobTerms mine = {.start_ms = run->cluster->timing.last_late_ms}, *all, *last;
    if (run->cluster->timing.last_ms > 0) memcpy(mine.terms, run->cluster->timing.last_terms, sizeof mine.terms);
    all = last = (JobTerms*)run_ask_all(run, run->model.world, &mine, sizeof mine);
    for (JobTerms* j = all; j < all + world->size; j++)
        if (calibration_predict(calibration, j->terms) + j->start_ms >
            calibration_predict(calibration, last->terms) + last->start_ms)
            last = j;
    if (ms > last->start_ms) calibration_learn(calibration, last->terms, ms - last->start_ms);
    free(all);
}
