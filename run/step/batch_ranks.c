// batch_ranks.c - a step's documents on this rank: planned with all others', read, and laid out for the device.
//
// Every rank plans the whole step from lengths alone, and reads only the tokens of its share. Every pass becomes a row,
// with the tokens of its micro-batches behind one another; cu_seqlens of all chunks go to the device in one array.
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/sampler_cut.h"
#include "data/sampler_join.h"
#include "plan/cost/transfers.h"
#include "plan/published/published.h"
#include "plan/step/even_rows.h"
#include "plan/step/remap.h"
#include "run/model/tensor_parallel.h"
#include "run/rl/labels.h"
#include "run/strategies/strategies.h"
#include "run/setup/setup.h"

// ---- the plan

const double* batch_squares(Batch* b, const Run* run) {
    double* squares = run_has_trees(run) ? TAKE(&b->arena, double, b->n_pieces) : NULL;
    for (int i = 0; i < b->n_pieces && squares; i++) squares[i] = b->pieces[i].squares;
    return squares;
}

// A rank that is alone packs its rows, whatever the planner. Those that have a state of their own know no trees.
static int make_plan(Batch* b, const Run* run, const Setting* s, int64_t step, Err err) {
    const Config* c = &run->config;
    BatchPlan* x = b->planned;
    const int *lengths = b->lengths, n = b->n_pieces;
    x->predicted = 0;
    if (plan_checks && plan_checks->plan)
        return plan_checks->plan(&x->plan, step, lengths, n, &s->limits, hash64((uint64_t)c->seed ^ (uint64_t)step),
                                 &b->arena, err);
    if (run->clock->limits.ranks == 1)
        return plan_static(&x->plan, step, lengths, n, &s->limits, c->cp_size, s->kind, &b->arena, err);
    const Planner* planner = run_planner(run);
    const void* state = planner->open == planner_open_setting ? s : run->clock->settled;
    if (planner != &planner_flex) return planner->plan(state, &x->plan, step, lengths, n, &b->arena, err);
    x->predicted = 1;  // by a prediction that also tells of its search
    return plan_flex(&x->plan, &x->prediction, step, lengths, n, s, &b->arena, err);
}

// And its terms as the model had them before anything was learnt: what was learnt are factors of them.
static int predict(Batch* b, const Run* run, const Setting* s, Err err) {
    BatchPlan* x = b->planned;
    const Cost *now = &s->cost, *before = &run->clock->probed.cost;
    const CostTerms* t = &x->prediction.critical;
    if (!s->groups) return 0;
    if (!x->predicted && predict_plan(&x->prediction, &x->plan, b->lengths, s, &b->arena, err)) return -1;
    x->predicted = 1;
    double ms[] = {t->quadratic, t->per_token, t->communication, t->micro_batch, now->step},
           is[] = {now->quadratic, now->per_token, now->link_scale, cost_micro_batch(now), now->step},
           was[] = {before->quadratic, before->per_token, before->link_scale, cost_micro_batch(before), before->step};
    for (int i = 0; i < CALIBRATION_TERMS; i++) x->terms[i] = is[i] > 0 ? ms[i] * was[i] / is[i] : 0;
    return 0;
}

// ---- the tasks of all stages of the pipeline: what every round takes in every stage, by the cost model, and the order
// that follows from it (plan/value/tasks.h)

typedef struct PassTimes {
    Pipeline p;
    double matmuls[MOST_STAGES], layers[MOST_STAGES];  // shares of the stages
    TransferTimes links;                               // of one of a group's ranks
    int across;                                        // stages are on several nodes
    RankRound* of_rank;                                // (ranks)
    Timeline played;                                   // of the plan; terms NULL: no cost model is known
} PassTimes;

static void add_micro_batch(RankRound* of_rank, const Batch* b, const Run* run, const MicroBatch* mb) {
    const Setting* setting = &run->clock->setting;
    LengthSums sums = micro_batch_sums(&b->planned->plan, mb, b->lengths);
    GroupCost g = {0};
    if (setting->groups)
        g = cost_group(&setting->cost, &setting->limits, mb->first_rank, mb->cp_size, mb->ulysses_size);
    double tokens = sums.tokens / mb->cp_size;
    CostTerms terms = {run->clock->limits.quadratic * sums.squares / mb->cp_size, tokens, 0, 0};
    if (g.ulysses_size) terms = group_terms(&g, sums.squares, sums.tokens);
    for (RankRound* x = of_rank + mb->first_rank; x < of_rank + mb->first_rank + mb->cp_size; x++) {
        x->matmuls += terms.per_token, x->attention += terms.quadratic, x->messages += terms.communication;
        x->micro_batch = MAX(x->micro_batch, terms.micro_batch);  // once a pass
        x->tokens += tokens;
    }
}

// ms of a stage's part of what all stages together take if none waits: of a token's matmuls its share, of all else that
// of its layers.
static double stage_ms(const PassTimes* t, int s, double matmuls, double others) {
    return t->p.stages * (matmuls * t->matmuls[s] + others * t->layers[s]);
}

// Of micro-batch i's pass, as it was played, at the pace of its slowest rank in this stage.
static double played_ms(const PassTimes* t, const Run* run, const MicroBatch* mb, int i, int s) {
    const Clock* clock = run->clock;
    const CostTerms* terms = &t->played.terms[i];
    double v = INFINITY, pace = slowest_speed(&clock->setting, mb->first_rank, mb->cp_size);
    for (int r = 0; r < mb->cp_size; r++)
        v = fmin(v, clock->stage_speeds[s * clock->limits.ranks + mb->first_rank + r]);
    return stage_ms(t, s, terms->per_token * pace / v,
                    terms->quadratic * pace / v + terms->communication + terms->micro_batch);
}

// Of what a rank has in the round.
static double rank_ms(const PassTimes* t, const Run* run, int rank, int s) {
    const RankRound* x = &t->of_rank[rank];
    double v = run->clock->stage_speeds[s * run->clock->limits.ranks + rank];
    return stage_ms(t, s, x->matmuls / v, x->attention / v + x->messages + x->micro_batch);
}

// A round of a stage takes what its longest pass does.
static void find_round(PassTimes* t, const Batch* b, const Run* run, int round) {
    const Model* m = &run->model;
    const Plan* plan = &b->planned->plan;
    double tokens = 0;
    int P = t->p.stages, ranks = run->clock->limits.ranks;
    memset(t->of_rank, 0, sizeof *t->of_rank * (size_t)ranks);
    for (int i = 0; i < plan->n_micro_batches; i++)
        if (plan->micro_batches[i].round == round) add_micro_batch(t->of_rank, b, run, &plan->micro_batches[i]);
    for (int r = 0; r < ranks; r++) tokens = MAX(tokens, t->of_rank[r].tokens);
    for (int s = 0; s < P; s++) {
        double ms = 0;
        for (int i = 0; i < plan->n_micro_batches && t->played.terms; i++)
            if (plan->micro_batches[i].round == round) ms = fmax(ms, played_ms(t, run, &plan->micro_batches[i], i, s));
        for (int r = 0; r < ranks && !t->played.terms; r++) ms = fmax(ms, rank_ms(t, run, r, s));
        pipeline_set(&t->p, s, round, ms, layout_again(&m->ranks->layout, s));
        int at = s * t->p.rounds + round;
        if (b->training) weights_stretch(&run->clock->stage_weights[s], &t->p.forward[at], &t->p.backward[at]);
    }
    double bytes = tokens * m->whole.C * (double)dtype_bytes(m->dt);
    t->p.message[round] = P * transfer_ms(&t->links, TRANSFER_STREAM, 2, t->across, bytes, bytes);
}

// A machine that knows whole pipelines has one for each of its stages.
static void find_shares(double matmuls[MOST_STAGES], double layers[MOST_STAGES], const Run* run) {
    const Model* m = &run->model;
    layout_shares(&m->ranks->layout, &m->whole, matmuls, layers);
    for (int s = 0; s < m->stages && run->clock->probed.n_schemes > 0; s++) matmuls[s] = layers[s] = 1.0 / m->stages;
}

// Of one stage all times are 0: it runs as it comes.
static int make_tasks(Batch* b, const Run* run, Err err) {
    char why[ERR_BYTES];
    PassTimes t;
    const Model* m = &run->model;
    const Clock* clock = run->clock;
    t.of_rank = TAKE(&b->arena, RankRound, clock->limits.ranks);
    if (pipeline_take(&t.p, m->stages, b->n_rows, b->training, &b->arena, err)) return -1;
    t.links = transfer_times(&clock->probed, &m->whole, (int)dtype_bytes(m->dt), clock->limits.node_size);
    t.links.cost = &clock->setting.cost;
    t.across = run_node_size(run, m->job, 1, 1) < m->job->size;
    find_shares(t.matmuls, t.layers, run);
    t.played = (Timeline){0};
    if (m->stages > 1 && clock->setting.groups &&
        timeline_play(&t.played, &b->planned->plan, b->lengths, &clock->setting, &b->arena, err))
        return -1;
    for (int r = 0; r < b->n_rows && m->stages > 1; r++) find_round(&t, b, run, r);
    if (schedule_tasks(&b->planned->schedule, &t.p, &b->arena, err)) return -1;
    if (plan_checks && plan_checks->check_schedule(&b->planned->schedule, &t.p, &b->arena, why))
        return fail(err, "this schedule is wrong: %s", why);
    return 0;
}

// What weights and gradients show at the ends of a step of stages: a first pass waits for weights, and each stage's
// gradients leave when it is through.
static double stages_end(const Run* run, const Schedule* schedule) {
    const Model* m = &run->model;
    double late = 0, end = 0, update = 0;
    for (int s = 0; s < m->stages; s++) {
        const WeightTimes* w = &run->clock->stage_weights[s];
        const TaskList* list = &schedule->stages[s];
        const Task *first = NULL, *last = NULL;
        for (const Task* t = list->tasks; t < list->tasks + list->n; t++) {
            if (!first && t->kind == TASK_FORWARD) first = t;
            if (t->kind == TASK_BACKWARD) last = t;
        }
        if (!first || !last) return schedule->makespan;
        PassParts pass = {.forward = first->end - first->start, .linear = first->end - first->start};
        if (w->zero < 3) late = fmax(late, weights_late_ms(w, &pass, first->start));
        double ends = w->reduce[WEIGHTS_FIRST] + w->reduce[WEIGHTS_LAST];
        double reduced = w->layers == 0 ? 0 : w->zero == 1 ? weights_all_ms(w->reduce, w->layers) : ends;
        double gathers = w->layers && !w->hides && w->zero < 3 ? weights_all_ms(w->gather, w->layers) : 0;
        end = fmax(end, last->end + reduced), update = fmax(update, w->update + gathers);
    }
    return fmax(late + end, schedule->makespan) + update;
}

// What the step takes is what its stages take together.
static void predict_tasks(Batch* b, const Run* run) {
    BatchPlan* x = b->planned;
    double* ms = &x->prediction.makespan;
    if (run->model.stages == 1 || !x->predicted || *ms <= 0) return;
    for (int i = 0; i < CALIBRATION_TERMS - 1; i++) x->terms[i] *= x->schedule.makespan / *ms;  // all but the update
    *ms = x->schedule.makespan;
    x->prediction.step = stages_end(run, &x->schedule);
}

// ---- what this rank does of it

// Whether all ranks have a pass in the last round of all.
static int all_end_together(const Plan* plan, char* seen) {
    int ranks = 0;
    memset(seen, 0, (size_t)plan->ranks);
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        if (mb->round < plan->n_rounds - 1) continue;
        for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++) ranks += !seen[r], seen[r] = 1;
    }
    return ranks == plan->ranks;
}

int batch_list(Batch* b, const Run* run, Err err) {
    BatchPlan* x = b->planned;
    const Plan* plan = &x->plan;
    int rank = run->model.comm->rank, in_rounds = run->clock->setting.rounds && run->clock->limits.ranks > 1, last = -1;
    ArenaMark mark = arena_mark(&b->arena);
    int* order = TAKE(&b->arena, int, plan->n_micro_batches);
    char* seen = TAKE(&b->arena, char, plan->ranks);
    if (arena_check(&b->arena, err) || pass_order(plan, run->clock->limits.node_size, order, &b->arena, err)) return -1;
    b->is_read = x->n_groups = 0;
    x->all_end_together = all_end_together(plan, seen);
    b->n_rows = in_rounds ? plan->n_rounds : 0;
    for (int i = 0; i < b->n_rows; i++) x->passes[i] = (RankPass){0, 0};
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[order[i]];
        if (rank < mb->first_rank || rank >= mb->first_rank + mb->cp_size) continue;
        int pass = in_rounds ? mb->round : mb->round == last ? b->n_rows - 1 : b->n_rows++;
        if (mb->round != last) x->passes[pass] = (RankPass){x->n_groups, 0};
        last = mb->round;
        x->passes[pass].n_groups++;
        x->groups[x->n_groups++] = (RankGroup){.mb = mb};
    }
    arena_reset(&b->arena, mark);
    return make_tasks(b, run, err);
}

// A plan with the tokens of some micro-batches elsewhere is another one: what was predicted is not of it.
static int remap(Batch* b, const Run* run, const Setting* s, Err err) {
    RemapChoice choice = (RemapChoice)config_choice(&run->config, "--plan remap");
    int changed;
    if (plan_remap(&b->planned->plan, &changed, b->lengths, s, choice, &b->arena, err)) return -1;
    b->planned->predicted &= !changed;
    return 0;
}

// ---- what is reduced inside a pass; and with strategies when passes use layers

// The round of pass i of this rank.
static int round_of(const BatchPlan* x, int i) { return x->groups[x->passes[i].first_group].mb->round; }

static int is_shared(const BatchPlan* x, int i) {
    int shared = 0, first = x->passes[i].first_group;
    for (int g = first; g < first + x->passes[i].n_groups; g++) shared |= x->groups[g].mb->cp_size > 1;
    return shared;
}

// Whether gradients are reduced inside the backward of pass i of this rank, rather than after its last.
// A reduction waits for ranks that come to it late, and communications run in the order of the calls. So nothing of
// this rank may come behind its reductions, no barrier either: one rank has the row alone, or all ranks are in the last
// round of all, where reductions of a layer stand between its exchanges and those of the layer below. Then every rank's
// order is a part of one global order, and no rank waits in a circle. With ZeRO-2 and 3 all ranks are in every round.
static int reduces_inside(const Batch* b, const Model* m, int i) {
    const BatchPlan* x = b->planned;
    if (i < b->n_rows - 1 || !zero_can_reduce_inside(m)) return 0;
    if (m->ranks->zero.stage > 1) return 1;
    if (x->plan.has_barriers && round_of(x, i) < x->plan.n_rounds - 1) return 0;
    return !is_shared(x, i) || x->all_end_together;
}

// What the layers of a stage of this rank take in pass i, ms; fixed: what comes behind them.
static double pass_ms(double* fixed, const Batch* b, const Run* run, int i, RankRound* of_rank) {
    const Model* m = &run->model;
    const BatchPlan* x = b->planned;
    const RankPass* pass = &x->passes[i];
    double matmuls[MOST_STAGES], layers[MOST_STAGES];
    int data = m->comm->rank, P = m->stages;
    memset(of_rank, 0, sizeof *of_rank * (size_t)run->clock->limits.ranks);
    for (int g = pass->first_group; g < pass->first_group + pass->n_groups; g++)
        add_micro_batch(of_rank, b, run, x->groups[g].mb);
    const RankRound* own = &of_rank[data];
    double v = run->clock->stage_speeds[m->stage * run->clock->limits.ranks + data];
    find_shares(matmuls, layers, run);
    double head = m->shape.no_head ? 0 : (double)m->whole.V * m->whole.C / shape_matmul_weights(&m->whole);
    *fixed = P * own->micro_batch * layers[m->stage];
    return P *
           (own->matmuls / v * (matmuls[m->stage] - head) + (own->attention / v + own->messages) * layers[m->stage]);
}

// But for the end of the step, which is known when all ranks have told what their jobs take.
static int find_window(Batch* b, const Run* run, Err err) {
    const Model* m = &run->model;
    int last = b->n_rows - 1, shares = m->stages > 1 || m->ranks->zero.stage > 1;
    double again = layout_again(&m->ranks->layout, m->stage), fixed;
    MoveWindow* w = &b->planned->window;
    ArenaMark mark = arena_mark(&b->arena);
    RankRound* of_rank = TAKE(&b->arena, RankRound, run->clock->limits.ranks);
    if (arena_check(&b->arena, err)) return -1;
    for (int i = 0; i <= last; i++) shares |= is_shared(b->planned, i);
    *w = (MoveWindow){.first_layer = m->shape.first_layer, .layers = m->shape.L, .lag = m->ranks->zero.stage > 1};
    w->together = m->world->rank - (shares ? m->job->rank : tp_rank(m));
    if (last >= 0) {
        w->forward = pass_ms(&fixed, b, run, 0, of_rank) / (3 + again), w->first = m->stage * w->forward;
        w->backward = pass_ms(&w->tail, b, run, last, of_rank) * (2 + again) / (3 + again);
        w->hides = reduces_inside(b, m, last) && (!m->k->on_host || m->k->virtual_time);
    }
    arena_reset(&b->arena, mark);
    return 0;
}

static int even_rows(Plan* plan, Batch* b, const Setting* s, Err err) {
    PlanLimits limits = s->limits;
    if (s->cost.per_token > 0) limits.quadratic = s->cost.quadratic / s->cost.per_token;
    return plan_even_rows(plan, b->lengths, &limits, &b->arena, err);
}

// A plan, and what it should take.
static int plan_for(Batch* b, const Run* run, const Setting* s, int64_t step, Err err) {
    Plan* plan = &b->planned->plan;
    int evens = run->model.ranks->owner && b->training && !s->rounds;
    if (make_plan(b, run, s, step, err)) return -1;
    plan->squares = s->limits.squares;
    if (remap(b, run, s, err) || predict(b, run, s, err)) return -1;
    if (plan->n_rounds == 0 && plan_set_rounds(plan, &b->arena, err)) return -1;
    return evens && !plan->has_barriers ? even_rows(plan, b, s, err) : 0;
}

// The tasks that follow from it.
static int list_and_predict(Batch* b, const Run* run, Err err) {
    if (batch_list(b, run, err)) return -1;
    predict_tasks(b, run);
    return run->model.ranks->owner ? find_window(b, run, err) : 0;
}

static int chooses_rounds(const Batch* b, const Run* run) {
    if (run->model.stages == 1 || !b->training || !run->clock->setting.groups) return 0;
    if (plan_checks && plan_checks->plan) return 0;
    return run->clock->limits.ranks == 1 || run_planner(run) == &planner_flex;
}

// The run's setting for rows of at most so many tokens; what it points to lies in the arena.
static int set_capacity(Setting* s, Batch* b, const Run* run, int capacity, Err err) {
    const PlanLimits* limits = &run->clock->limits;
    int* capacities = limits->capacities ? TAKE(&b->arena, int, limits->ranks) : NULL;
    s->groups = TAKE(&b->arena, GroupCost, limits->ranks + 1);
    if (arena_check(&b->arena, err)) return -1;
    s->limits.capacity = MIN(limits->capacity, capacity), s->limits.capacities = capacities;
    for (int r = 0; r < limits->ranks && capacities; r++) capacities[r] = MIN(limits->capacities[r], capacity);
    cost_groups(s->groups, &run->clock->setting.cost, &s->limits, s->kind);
    return 0;
}

// Few long rounds leave stages idle at the ends of a step, many short ones pay what a round costs in any case. With v
// equal rounds of W ms in all, c ms more each, a step takes (W / v + c) (stages - 1 + v). So plans are made for rows
// that hold 1/v of the tokens, v = 1, 2, 4 ..., and played. Returns the most tokens of a row of the best.
static int best_capacity(Batch* b, const Run* run, Setting s, int64_t step) {
    enum { WORSE = 2 };  // so many in a row end the search
    char why[ERR_BYTES];
    ArenaMark mark = arena_mark(&b->arena);
    double least = INFINITY;
    int64_t most = widest_capacity(&s.limits, 1);
    int best = (int)most, worse = 0;
    for (int64_t v = 1; v < b->n_tokens && worse < WORSE; v *= 2) {
        int64_t share = CEIL_DIV(b->n_tokens, v * run->clock->limits.ranks);
        if (share >= 2 * most) continue;
        arena_reset(&b->arena, mark);
        int capacity = (int)MIN(share, most);
        if (set_capacity(&s, b, run, capacity, why)) break;
        // The longest document may not fit.
        if (plan_for(b, run, &s, step, why) || list_and_predict(b, run, why)) break;
        worse = b->planned->schedule.makespan < least ? 0 : worse + 1;
        if (worse == 0) least = b->planned->schedule.makespan, best = capacity;
    }
    arena_reset(&b->arena, mark);
    return best;
}

// What is the same on all ranks.
static int choose_plan(Batch* b, const Run* run, int64_t step, Err err) {
    char why[ERR_BYTES];
    Setting s = run->clock->setting;
    s.limits.squares = batch_squares(b, run);
    // Weights are in place where a run begins; with zero 3 layers are not. A run that goes on has the plans of one that
    // was not left.
    if (step == 1 && s.weights.zero < 3 && s.weights.hides) memset(s.weights.gather, 0, sizeof s.weights.gather);
    if (chooses_rounds(b, run) && set_capacity(&s, b, run, best_capacity(b, run, s, step), err)) return -1;
    if (plan_for(b, run, &s, step, err)) return -1;
    if (plan_checks &&
        plan_checks->check(&b->planned->plan, b->lengths, b->n_pieces, &run->clock->limits, &b->arena, why))
        return fail(err, "this plan is wrong: %s", why);
    return 0;
}

// Most tokens of a tree of documents: what a row of every rank holds, and of the step no more than an even share,
// because one rank has a tree alone.
static int64_t most_of_a_tree(const Run* run, int64_t tokens) {
    int64_t ranks = run->clock->limits.ranks * run->model.stages, holds = run->settled.capacity;
    if (run_planner(run) == &planner_fixed) holds = MIN(holds, run->config.context);
    if (run->strategies) {
        const SchemePool* pool = &run->strategies->kinds.pool;
        ranks = run->model.world->size, holds = pool->scheme[pool->n - 1].max_tokens;
    }
    return MIN(holds, CEIL_DIV(tokens, ranks));
}

int batch_cut_trees(Batch* b, const Run* run, const Sampler* sampler, Err err) {
    int64_t room = run->cluster->tree_room;
    int n = room ? sampler_cut(sampler, b->pieces, b->n_pieces, room, b->max_tokens, &b->arena, err) : b->n_pieces;
    if (n < 0) return -1;
    b->n_pieces = n;
    batch_count(b);
    return 0;
}

int batch_draw_joined(Batch* b, const Run* run, Err err) {
    ArenaMark mark = arena_mark(&b->arena);
    batch_draw(b, run);
    batch_count(b);
    b->planned->drawn = b->n_tokens;
    if (!run_joins(run)) return batch_cut_trees(b, run, run->data.train, err);
    b->n_pieces = sampler_join(run->data.train, b->pieces, b->n_pieces, most_of_a_tree(run, b->n_tokens), b->tokens,
                               &b->arena, err);
    arena_reset(&b->arena, mark);
    return b->n_pieces < 0 ? -1 : batch_cut_trees(b, run, run->data.train, err);
}

static int draw_and_choose(Batch* b, const Run* run, int64_t step, Err err) {
    return batch_draw_joined(b, run, err) ? -1 : choose_plan(b, run, step, err);
}

static int plan(Batch* b, const Run* run, int64_t step, PlanMaker make, Err err) {
    double started = now_seconds();
    arena_reset(&b->arena, (ArenaMark){0});
    if (run->strategies && strategies_dispatch(b, run, step, err)) return -1;
    run = run_under((Run*)run, b->planned->strategy);
    if (plan_once(b, run, step, make, make == draw_and_choose, err) || list_and_predict(b, run, err)) return -1;
    b->planned->plan_us = 1e6 * (now_seconds() - started);
    return 0;
}

int batch_plan(Batch* b, const Run* run, int64_t step, Err err) {
    batch_count(b);
    return plan(b, run, step, choose_plan, err);
}

int batch_draw_and_plan(Batch* b, const Run* run, int64_t step, Err err) {
    if (!run->strategies) return plan(b, run, step, draw_and_choose, err);
    if (batch_draw_joined(b, run, err)) return -1;
    return batch_plan(b, run, step, err);
}

// ---- the tokens

// Segments of the documents of a micro-batch, in their order: as many as there are, or lengths and parents, too.
static int list_segments(const Batch* b, const Docs* docs, const MicroBatch* mb, int* lengths, int* parents) {
    int n = 0;
    for (int i = 0; i < mb->n_docs; i++) {
        int doc = b->planned->plan.docs[mb->first_doc + i], length = b->lengths[doc];
        const DocsSegment* list = NULL;
        const Piece* piece = &b->pieces[doc];
        for (int k = 0; lengths && k < piece->n_parts; k++) {
            const Piece* part = piece_stretch(b->pieces, piece, k);
            lengths[n + k] = part->length, parents[n + k] = part->parent < 0 ? -1 : n + part->parent;
        }
        n += piece->n_parts;
        if (piece->n_parts) continue;
        int of_doc = docs_segments(docs, piece->doc, &list);
        for (int k = 0; lengths && k < MAX(of_doc, 1); k++) {
            int64_t end = k + 1 < of_doc ? list[k + 1].first : of_doc ? list[0].first + length : length;
            lengths[n + k] = (int)(end - (of_doc ? list[k].first : 0));
            parents[n + k] = of_doc && list[k].parent >= 0 ? n + list[k].parent : -1;
        }
        n += MAX(of_doc, 1);
    }
    return n;
}

static int place_tree(Batch* b, const Docs* docs, RankGroup* mine, Err err) {
    int n = list_segments(b, docs, mine->mb, NULL, NULL);
    mine->tree = NULL;
    if (n == mine->mb->n_docs) return 0;
    if (mine->share.ring_size > 1) return fail(err, "a tree is in a ring: expected a group that shares heads");
    int *lengths = TAKE(&b->arena, int, n), *parents = TAKE(&b->arena, int, n);
    TreeLevel* levels = TAKE(&b->arena, TreeLevel, n);
    mine->tree = TAKE(&b->arena, Tree, 1);
    if (arena_check(&b->arena, err)) return -1;
    list_segments(b, docs, mine->mb, lengths, parents);
    tree_fill(mine->tree, levels, b->cu + b->n_cu, lengths, parents, n);
    for (int i = 0; i < mine->tree->n_levels; i++) {
        levels[i].cu_q = batch_on_device(b, levels[i].cu_q);
        levels[i].cu_k = batch_on_device(b, levels[i].cu_k);
    }
    mine->tree->cu = batch_on_device(b, mine->tree->cu);
    b->n_cu += (int)tree_ints(n);
    return 0;
}

// Where a micro-batch of this rank lies in the row, and what it has.
static int place_group(Batch* b, const Run* run, const Docs* docs, RankGroup* mine, Err err) {
    const Plan* plan = &b->planned->plan;
    mine->placed = micro_batch_placement(plan, mine->mb, b->lengths, run->clock->limits.kv_heads, &b->arena);
    mine->chunk_tokens = TAKE(&b->arena, int, mine->placed.n_chunks);
    if (arena_check(&b->arena, err)) return -1;
    mine->share = micro_batch_share(plan, mine->mb, &mine->placed, run->model.comm->rank, NULL);
    mine->cu = b->n_cu;
    micro_batch_cu(&mine->placed, mine->mb, b->cu + b->n_cu);
    for (int j = 0; j < mine->placed.n_chunks; j++) {
        b->n_cu += mine->mb->n_docs + 1;
        mine->chunk_tokens[j] = b->cu[b->n_cu - 1];
    }
    return place_tree(b, docs, mine, err);
}

// read_span appends tokens of a piece, with their positions on the paths of a tree. A part of a joined piece keeps its
// positions in its own document.
static int read_span(Batch* b, const Sampler* sampler, const Span* span, Err err) {
    const Piece* piece = &b->pieces[span->doc];
    for (int k = 0, first = 0; k < piece_stretches(piece); k++) {
        const Piece* part = piece_stretch(b->pieces, piece, k);
        int from = MAX(span->first - first, 0), n = MIN(span->first + span->length - first, part->length) - from;
        int* positions = b->positions + b->n_read;
        if (n > 0) {
            if (batch_read_part(b, sampler, (int)(part - b->pieces), from, n, err)) return -1;
            for (int t = 0; t < n && piece->n_parts; t++) positions[t] += (int)part->first;
            docs_tree_positions(sampler->docs, part->doc, part->first + from, n, positions);
            if (b->planned->starts)
                labels_read(b, sampler, part, from, n, b->planned->starts[span->doc] + first + from);
        }
        first += part->length;
    }
    return 0;
}

// Behind what stands in the batch; first those micro-batches whose ranks do not share heads, as attention wants it.
static int read_pass(Batch* b, const Model* m, const Sampler* sampler, int i, Err err) {
    BatchPlan* x = b->planned;
    RankGroup *first = x->groups + x->passes[i].first_group, *end = first + x->passes[i].n_groups;
    for (int shares_heads = 0; shares_heads < 2; shares_heads++)
        for (RankGroup* mine = first; mine < end; mine++) {
            if ((mine->share.ulysses_size > 1) != shares_heads) continue;
            mine->first = b->n_read - b->rows[i].token;
            micro_batch_share(&x->plan, mine->mb, &mine->placed, m->comm->rank, x->spans);
            for (const Span* span = x->spans; span < x->spans + mine->share.n_spans; span++) {
                if (m->k->no_results) b->n_read += span->length;
                else if (read_span(b, sampler, span, err)) return -1;
            }
        }
    return 0;
}

int batch_read(Batch* b, const Run* run, const Sampler* sampler, Err err) {
    BatchPlan* x = b->planned;
    run = run_under((Run*)run, x->strategy);
    b->n_read = b->n_cu = 0;
    x->attention = TAKE(&b->arena, GroupAttention, x->n_groups);
    x->shared = TAKE(&b->arena, RowAttention, b->n_rows);
    x->starts = run->labels ? TAKE(&b->arena, int, b->n_pieces) : NULL;
    if (arena_check(&b->arena, err)) return -1;
    for (int i = 0, at = 0; i < b->n_pieces && x->starts; at += b->pieces[i++].length) x->starts[i] = at;
    for (int i = 0; i < x->n_groups; i++)
        if (place_group(b, run, sampler->docs, &x->groups[i], err)) return -1;
    for (int i = 0, group = 0; i < b->n_rows; group += x->passes[i++].n_groups) {
        b->rows[i] = (RowPlace){b->n_read, group < x->n_groups ? x->groups[group].cu : b->n_cu};
        if (read_pass(b, &run->model, sampler, i, err)) return -1;
    }
    b->rows[b->n_rows] = (RowPlace){b->n_read, b->n_cu};
    b->is_read = 1;
    return 0;
}

// The rows of wte that this rank holds of the first n tokens.
static void upload_vocab_rows(Run* run, int n) {
    const Model* m = &run->model;
    const Batch* b = &run->batch;
    if (!m->tp) return;
    for (int i = 0; i < n; i++) {
        int row = b->tokens[i] - m->shape.first_vocab_row;
        b->planned->vocab_rows[i] = row >= 0 && row < m->shape.vocab_rows ? row : -1;
    }
    batch_upload_ints(b, m, b->planned->vocab_rows, n);
}

static void read_now(Run* run, const Sampler* sampler) {
    char err[ERR_BYTES];
    if (!run->batch.is_read && batch_read(&run->batch, run, sampler, err)) die("%s", err);
    upload_vocab_rows(run, run->batch.n_read);
    if (run->labels) labels_upload(run);
}

// ---- what core.c asks for

// Before pass i of this rank, and with i = n_rows at the end: waits for all ranks at the end of every round that lies
// between, where the plan's rounds have barriers. In rounds that ZeRO-2, 3 or a pipeline need ranks wait in every layer
// anyway.
static void end_rounds(const Batch* b, const Model* m, int i) {
    const BatchPlan* x = b->planned;
    if (!x->plan.has_barriers || m->ranks->zero.stage > 1 || m->stages > 1 || m->comm->size == 1) return;
    int from = i > 0 ? round_of(x, i - 1) : 0, to = i < b->n_rows ? round_of(x, i) : x->plan.n_rounds - 1;
    for (int r = from; r < to; r++) {
        m->k->clear(m->barrier, sizeof *m->barrier, m->s);
        m->comm->table->all_reduce(m->comm, m->barrier, 1, DT_F64, m->s);
    }
}

_Static_assert((int)MOST_SHARED == (int)MOST_SHARED_GROUPS, "plans share as many at once as attention can");

static GroupAttention group_attention(const Batch* b, const RankGroup* mine) {
    const Share* share = &mine->share;
    GroupAttention g = {0};
    g.first_rank = mine->mb->first_rank;
    g.ulysses_size = share->ulysses_size, g.ring_size = share->ring_size;
    g.ring_rank = share->ring_rank, g.ulysses_rank = share->ulysses_rank;
    g.first = mine->first;
    g.n_docs = mine->mb->n_docs, g.n_chunks = mine->placed.n_chunks;
    g.head_border = mine->placed.head_border;
    g.token_border = mine->placed.token_border + share->ring_rank * (share->ulysses_size + 1);
    g.owner = mine->placed.owner, g.chunk_tokens = mine->chunk_tokens;
    g.cu = batch_on_device(b, b->cu + mine->cu);
    g.tree = mine->tree;
    return g;
}

// What of the row is this rank's own outside attention and MLP; and the documents that other ranks share.
static void fill_row(Run* run, Row* row, int i) {
    const Model* m = &run->model;
    const Batch* b = &run->batch;
    BatchPlan* x = b->planned;
    row->n = CEIL_DIV(row->N, tp_size(m));
    row->first = MIN(row->N, tp_rank(m) * row->n);
    row->own = MIN(row->n, row->N - row->first);
    row->vocab_rows = batch_on_device(b, x->vocab_rows + (i < 0 ? 0 : b->rows[i].token));
    if (i < 0) return;
    if (run->labels) labels_fill_row(run, row);
    const RankPass* pass = &x->passes[i];
    const RankGroup* first = &x->groups[pass->first_group];
    if (pass->n_groups == 1 && first->mb->cp_size == 1 && !first->tree) return;
    row->n_docs = 0, row->cu = NULL;
    RowAttention* a = &x->shared[i];
    row->shared = a;
    memset(a, 0, sizeof *a);
    a->comm = m->comm;
    a->groups = x->attention + pass->first_group;
    a->n_groups = pass->n_groups;
    for (int g = pass->first_group; g < pass->first_group + pass->n_groups; g++)
        x->attention[g] = group_attention(b, &x->groups[g]);
    a->parts = attention_parts(m);
    a->scratch = m->group_scratch;
}

// ---- the rows of a step, by the schedule

// The row's losses and gradients are of all ranks of a tensor-parallel group alike. Between the passes a pipeline has
// messages.
static void begin_task(Run* run, Pass* pass, const Task* task) {
    Model* m = &run->model;
    const Batch* b = &run->batch;
    pass->row = &b->planned->rows[m->slot = task->slot];
    pass->counts = tp_rank(m) == 0;
    int begins = task->kind == (m->stage > 0 ? TASK_RECEIVE : TASK_FORWARD) && !task->backward;
    if (begins) *pass->row = batch_row(run, task->round);
    if (task->kind == TASK_FORWARD) end_rounds(b, m, task->round);
    pass->kind = PASS_OTHER;
    if (pace_leaves(run, task)) return;
    if (task->kind >= TASK_SEND) pipeline_begin(m, task, pass->row);
    else pipeline_settle(m, task);
    if (task->kind == TASK_FORWARD) pass->kind = PASS_FORWARD;
    if (task->kind == TASK_BACKWARD) pass->kind = PASS_BACKWARD;
    if (task->kind == TASK_BACKWARD && reduces_inside(b, m, task->round)) zero_last_row(m);
}

static int next_pass(Run* run, Pass* pass, int i, int train) {
    Model* m = &run->model;
    const Batch* b = &run->batch;
    const TaskList* list = &b->planned->schedule.stages[m->stage];
    if (i == 0) pace_begin(run, train);
    else if (pass->kind != PASS_OTHER) pace_end_task(run, &list->tasks[i - 1]);
    if (i < list->n && !train && list->tasks[i].backward) {  // a look at a step before it: forward passes alone
        pass->kind = PASS_OTHER;
        return 1;
    }
    if (i < list->n) {
        begin_task(run, pass, &list->tasks[i]);
        return 1;
    }
    pipeline_finish(m);
    end_rounds(b, m, b->n_rows);
    if (train) zero_end_rows(m);
    return 0;
}

// ---- what else core.c asks for

// Of several answers, which run_decode takes for one text.
static void fill_answers(Run* run, Row* row) {
    const Model* m = &run->model;
    const Batch* b = &run->batch;
    SideBySide* x = b->planned->answers;
    int* ints = b->cu + 4;  // behind what run_decode has put there, of one text
    for (int i = 0; i < x->n; i++) b->positions[i] = x->of[i].prompt_length + x->of[i].length;
    answers_fill(&x->answers, x->of, x->n, run->cluster->cache_tokens, run->cluster->answer_tokens, ints,
                 batch_on_device(b, ints));
    batch_upload_ints(b, m, b->positions, x->n);
    batch_upload_ints(b, m, ints, (int)answers_ints(x->n));
    x->shared = (RowAttention){.answers = &x->answers, .scratch = m->group_scratch};
    row->shared = &x->shared;
}

static void decode(Run* run, Row* row) {
    upload_vocab_rows(run, row->N);
    fill_row(run, row, -1);
    if (run->batch.planned->answers) fill_answers(run, row);
    pipeline_meet(&run->model, row, TASK_RECEIVE);
    model_forward(&run->model, row);
    pipeline_meet(&run->model, row, TASK_SEND);
}

static void* logits(Run* run, int n, int N) { return tp_logits(&run->model, n, N); }

static void share_draws(Run* run, int N) {
    pipeline_share(&run->model, run->draws, sizeof *run->draws * (size_t)N, run->model.stages - 1);
}

const RunRanks run_ranks = {eval_plan,     eval_end, read_now, fill_row,   next_pass,
                            eval_loss_sum, decode,   logits,   share_draws};
