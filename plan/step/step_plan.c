// step_plan.c - see step_plan.h.
#include "plan/step/step_plan.h"

#include <math.h>

#include "plan/step/even_rows.h"

// ---- the plan

// A rank that is alone packs its rows, whatever the planner.
static int make_plan(StepPlan* x, const PlanWorld* w, const Setting* s, int64_t step, const int* lengths, int n,
                     Arena* arena, Err err) {
    x->predicted = 0;
    if (plan_checks && plan_checks->plan)
        return plan_checks->plan(&x->plan, step, lengths, n, &s->limits, hash64(w->seed ^ (uint64_t)step), arena, err);
    if (s->limits.ranks == 1)
        return plan_static(&x->plan, step, lengths, n, &s->limits, s->cp_size, s->kind, arena, err);
    if (w->planner) return w->planner(w->state ? w->state : s, &x->plan, step, lengths, n, arena, err);
    x->predicted = 1;  // by a prediction that also tells of its search
    return plan_flex(&x->plan, &x->prediction, step, lengths, n, s, arena, err);
}

// Predicts the plan; its terms are those of the model before anything was learnt, since what is learnt are factors of
// them.
static int predict(StepPlan* x, const PlanWorld* w, const Setting* s, const int* lengths, Arena* arena, Err err) {
    const Cost *now = &s->cost, *before = &w->before;
    const CostTerms* t = &x->prediction.critical;
    if (!s->groups) return 0;
    if (!x->predicted && predict_plan(&x->prediction, &x->plan, lengths, s, arena, err)) return -1;
    x->predicted = 1;
    double ms[] = {t->quadratic, t->per_token, t->communication, t->micro_batch, now->step},
           is[] = {now->quadratic, now->per_token, now->link_scale, cost_micro_batch(now), now->step},
           was[] = {before->quadratic, before->per_token, before->link_scale, cost_micro_batch(before), before->step};
    for (int i = 0; i < CALIBRATION_TERMS; i++) x->terms[i] = is[i] > 0 ? ms[i] * was[i] / is[i] : 0;
    return 0;
}

// Plans for rows as s has them. A plan that remapping changes is another one: what was predicted is not of it.
static int plan_for(StepPlan* x, const PlanWorld* w, const Setting* s, int64_t step, const int* lengths, int n,
                    Arena* arena, Err err) {
    Plan* plan = &x->plan;
    PlanLimits limits = s->limits;
    int changed;
    if (make_plan(x, w, s, step, lengths, n, arena, err)) return -1;
    plan->squares = s->limits.squares;
    if (plan_remap(plan, &changed, lengths, s, w->remap, arena, err)) return -1;
    x->predicted &= !changed;
    if (predict(x, w, s, lengths, arena, err)) return -1;
    if (plan->n_rounds == 0 && plan_set_rounds(plan, arena, err)) return -1;
    if (!w->evens || s->rounds || plan->has_barriers) return 0;
    if (s->cost.per_token > 0) limits.quadratic = s->cost.quadratic / s->cost.per_token;
    return plan_even_rows(plan, lengths, &limits, arena, err);
}

// ---- the capacity of rows in a pipeline

static int chooses_capacity(const PlanWorld* w) {
    if (w->stages == 1 || !w->training || !w->setting.groups) return 0;
    if (plan_checks && plan_checks->plan) return 0;
    return w->setting.limits.ranks == 1 || !w->planner;
}

// The world's setting for rows of at most so many tokens; what it points to lies in the arena.
static int set_capacity(Setting* s, const PlanWorld* w, int capacity, Arena* arena, Err err) {
    const PlanLimits* limits = &w->setting.limits;
    int* capacities = limits->capacities ? TAKE(arena, int, limits->ranks) : NULL;
    s->groups = TAKE(arena, GroupCost, limits->ranks + 1);
    if (arena_check(arena, err)) return -1;
    s->limits.capacity = MIN(limits->capacity, capacity), s->limits.capacities = capacities;
    for (int r = 0; r < limits->ranks && capacities; r++) capacities[r] = MIN(limits->capacities[r], capacity);
    cost_groups(s->groups, &w->setting.cost, &s->limits, s->kind);
    return 0;
}

// Few long rounds leave stages idle at the ends of a step, many short ones pay what a round costs in any case. With v
// equal rounds of W ms in all, c ms more each, a step takes (W / v + c) (stages - 1 + v). So plans are made for rows
// that hold 1/v of the tokens, v = 1, 2, 4 ..., and played. Returns the most tokens of a row of the best.
static int best_capacity(StepPlan* x, const PlanWorld* w, Setting s, int64_t step, const int* lengths, int n,
                         Arena* arena) {
    enum { WORSE = 2 };  // so many in a row end the search
    char why[ERR_BYTES];
    ArenaMark mark = arena_mark(arena);
    double least = INFINITY;
    int64_t most = widest_capacity(&s.limits, 1), tokens = 0;
    int best = (int)most, worse = 0;
    for (int i = 0; i < n; i++) tokens += lengths[i];
    for (int64_t v = 1; v < tokens && worse < WORSE; v *= 2) {
        int64_t share = CEIL_DIV(tokens, v * s.limits.ranks);
        if (share >= 2 * most) continue;
        arena_reset(arena, mark);
        int capacity = (int)MIN(share, most);
        if (set_capacity(&s, w, capacity, arena, why)) break;
        if (plan_for(x, w, &s, step, lengths, n, arena, why)) break;  // the longest document may not fit
        if (step_schedule(x, w, lengths, x->plan.n_rounds, arena, why)) break;
        worse = x->schedule.makespan < least ? 0 : worse + 1;
        if (worse == 0) least = x->schedule.makespan, best = capacity;
    }
    arena_reset(arena, mark);
    return best;
}

int step_plan(StepPlan* x, const PlanWorld* w, int64_t step, const int* lengths, const double* squares, int n,
              Arena* arena, Err err) {
    char why[ERR_BYTES];
    Setting s = w->setting;
    s.limits.squares = squares;
    // Weights are in place where a run begins; with zero 3 layers are not. A run that goes on has the plans of one that
    // was not left.
    if (step == 1 && s.weights.zero < 3 && s.weights.hides) memset(s.weights.gather, 0, sizeof s.weights.gather);
    if (chooses_capacity(w) && set_capacity(&s, w, best_capacity(x, w, s, step, lengths, n, arena), arena, err))
        return -1;
    if (plan_for(x, w, &s, step, lengths, n, arena, err)) return -1;
    if (plan_checks && plan_checks->check(&x->plan, lengths, n, &w->setting.limits, arena, why))
        return fail(err, "this plan is wrong: %s", why);
    return 0;
}

// ---- the schedule: what every round takes in every stage, by the cost model, and the order that follows from it

typedef struct RoundTimes {
    const StepPlan* x;
    const PlanWorld* w;
    const int* lengths;
    Pipeline p;
    RankRound* of_rank;  // (ranks)
    Timeline played;     // of the plan; terms NULL: no cost model is known
} RoundTimes;

void round_add(RankRound* of_rank, const StepPlan* x, const PlanWorld* w, const int* lengths, const MicroBatch* mb) {
    const Setting* setting = &w->setting;
    LengthSums sums = micro_batch_sums(&x->plan, mb, lengths);
    GroupCost g = {0};
    if (setting->groups)
        g = cost_group(&setting->cost, &setting->limits, mb->first_rank, mb->cp_size, mb->ulysses_size);
    double tokens = sums.tokens / mb->cp_size;
    CostTerms terms = {setting->limits.quadratic * sums.squares / mb->cp_size, tokens, 0, 0};
    if (g.ulysses_size) terms = group_terms(&g, sums.squares, sums.tokens);
    for (RankRound* r = of_rank + mb->first_rank; r < of_rank + mb->first_rank + mb->cp_size; r++) {
        r->matmuls += terms.per_token, r->attention += terms.quadratic, r->messages += terms.communication;
        r->micro_batch = MAX(r->micro_batch, terms.micro_batch);  // once a pass
        r->tokens += tokens;
    }
}

// ms of a stage's part of what all stages together take if none waits: of a token's matmuls its share, of all else that
// of its layers.
static double stage_ms(const RoundTimes* t, int s, double matmuls, double others) {
    return t->p.stages * (matmuls * t->w->stage[s].matmuls + others * t->w->stage[s].layers);
}

// Micro-batch i's pass, as it was played, at the pace of its slowest rank in this stage.
static double played_ms(const RoundTimes* t, int i, int s) {
    const MicroBatch* mb = &t->x->plan.micro_batches[i];
    const CostTerms* terms = &t->played.terms[i];
    double v = INFINITY, pace = slowest_speed(&t->w->setting, mb->first_rank, mb->cp_size);
    for (int r = 0; r < mb->cp_size; r++) v = fmin(v, t->w->stage[s].speeds[mb->first_rank + r]);
    return stage_ms(t, s, terms->per_token * pace / v,
                    terms->quadratic * pace / v + terms->communication + terms->micro_batch);
}

// All that a rank has in the round.
static double rank_ms(const RoundTimes* t, int rank, int s) {
    const RankRound* r = &t->of_rank[rank];
    double v = t->w->stage[s].speeds[rank];
    return stage_ms(t, s, r->matmuls / v, r->attention / v + r->messages + r->micro_batch);
}

// A round of a stage takes what its longest pass does.
static void find_round(RoundTimes* t, int round) {
    const Plan* plan = &t->x->plan;
    double tokens = 0;
    int P = t->p.stages, ranks = t->w->setting.limits.ranks;
    memset(t->of_rank, 0, sizeof *t->of_rank * (size_t)ranks);
    for (int i = 0; i < plan->n_micro_batches; i++)
        if (plan->micro_batches[i].round == round)
            round_add(t->of_rank, t->x, t->w, t->lengths, &plan->micro_batches[i]);
    for (int r = 0; r < ranks; r++) tokens = MAX(tokens, t->of_rank[r].tokens);
    for (int s = 0; s < P; s++) {
        double ms = 0;
        for (int i = 0; i < plan->n_micro_batches && t->played.terms; i++)
            if (plan->micro_batches[i].round == round) ms = fmax(ms, played_ms(t, i, s));
        for (int r = 0; r < ranks && !t->played.terms; r++) ms = fmax(ms, rank_ms(t, r, s));
        pipeline_set(&t->p, s, round, ms, t->w->stage[s].again);
        int at = s * t->p.rounds + round;
        if (t->p.training) weights_stretch(t->w->stage[s].weights, &t->p.forward[at], &t->p.backward[at]);
    }
    double bytes = tokens * t->w->stream;
    t->p.message[round] = P * transfer_ms(&t->w->links, TRANSFER_STREAM, 2, t->w->across, bytes, bytes);
}

// When the step of stages ends, beside what weights and gradients show: a first pass waits for weights, and each
// stage's gradients leave when it is through.
static double stages_end(const PlanWorld* world, const Schedule* schedule) {
    double late = 0, end = 0, update = 0;
    for (int s = 0; s < world->stages; s++) {
        const WeightTimes* w = world->stage[s].weights;
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

// The stages take together what the step takes; all terms but the update's grow with it.
static void predict_stages(StepPlan* x, const PlanWorld* w) {
    double* ms = &x->prediction.makespan;
    if (w->stages == 1 || !x->predicted || *ms <= 0) return;
    for (int i = 0; i < CALIBRATION_TERMS - 1; i++) x->terms[i] *= x->schedule.makespan / *ms;
    *ms = x->schedule.makespan;
    x->prediction.step = stages_end(w, &x->schedule);
}

int step_schedule(StepPlan* x, const PlanWorld* w, const int* lengths, int rounds, Arena* arena, Err err) {
    char why[ERR_BYTES];
    RoundTimes t = {.x = x, .w = w, .lengths = lengths, .of_rank = TAKE(arena, RankRound, w->setting.limits.ranks)};
    if (pipeline_take(&t.p, w->stages, rounds, w->training, arena, err)) return -1;
    if (w->stages > 1 && w->setting.groups && timeline_play(&t.played, &x->plan, lengths, &w->setting, arena, err))
        return -1;
    for (int r = 0; r < rounds && w->stages > 1; r++) find_round(&t, r);
    if (schedule_tasks(&x->schedule, &t.p, arena, err)) return -1;
    if (plan_checks && plan_checks->check_schedule(&x->schedule, &t.p, arena, why))
        return fail(err, "this schedule is wrong: %s", why);
    predict_stages(x, w);
    return 0;
}
