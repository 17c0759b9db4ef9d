// layout_steps.c - see layout_steps.h.
#include "plan/search/layout_steps.h"

#include <math.h>

#include "plan/step/flex.h"

SampledSteps sampled_steps(const int* lengths, int n, int64_t tokens) {
    SampledSteps s = {.lengths = lengths};
    int64_t sum = 0;
    for (int i = 0; i < n && s.n < SAMPLED_STEPS; i++) {
        if (sum > 0 && sum + lengths[i] > tokens) s.first[++s.n] = i, sum = 0;
        sum += lengths[i];
    }
    if (s.n == 0 && n > 0) s.first[++s.n] = n;
    return s;
}

void layout_costs_of_steps(LayoutCosts* c, const SampledSteps* steps) {
    double sum = 0, squares = 0;
    for (int i = 0; i < steps->first[steps->n]; i++)
        sum += steps->lengths[i], squares += (double)steps->lengths[i] * steps->lengths[i];
    if (sum > 0) c->tokens = sum / steps->n, c->mean_length = squares / sum;
}

// ---- one step

static int node_of(const void* costs, int rank) {
    const LayoutCosts* c = (const LayoutCosts*)costs;
    return (c->first_rank + rank) / c->links.node_size;
}

// Fills in the data ranks' paces (layout_pace), as Setting.speeds, and returns their mean.
static double layout_speeds(double* speeds, const LayoutCosts* c, const Layout* layout) {
    double of_stage[MOST_STAGES], sum = 0;
    int R = layout->tp, run = c->ranks / layout->stages, groups = run / R;
    for (int g = 0; g < groups; g++) {
        for (int s = 0; s < layout->stages; s++) of_stage[s] = machine_speed(&c->machine, s * run + g * R, R);
        sum += speeds[g] = layout_pace(layout, c->whole, of_stage, 1);
    }
    return sum / groups;
}

double layout_setting(Setting* s, GroupCost* groups, double* speeds, const LayoutCosts* c, const Layout* layout,
                      int N) {
    const Shape* whole = c->whole;
    int R = layout->tp, P = layout->stages, node = c->links.node_size, zero = 1;
    TpSplit split = split_even(whole, R);
    for (int l = 0; l < whole->L; l++) zero = MAX(zero, layout->layer[l].zero);
    *s = (Setting){.cost = c->machine.cost, .groups = groups, .no_overlap = !c->overlap, .context = c->context};
    s->limits = (PlanLimits){.ranks = c->ranks / (R * P),
                             .node_size = layout_node_size(c->ranks, R, P, node_of, c),
                             .capacity = N,
                             .kv_heads = MAX(1, whole->NKV / R),
                             .max_ring_docs = (int)fmin(fmax(c->tokens, c->context), 4096),
                             .quadratic = s->cost.quadratic / fmax(s->cost.per_token, 1e-30)};
    s->rounds = P > 1 || (zero > 1 && s->limits.ranks > 1);
    s->cost.parts = c->overlap ? c->parts : 0;
    s->weights = layout_weights(c, layout, zero);
    layout_divide_cost(&s->cost, whole, layout, R > 1 ? &split : NULL, c->elem_bytes, CEIL_DIV(R, node),
                       c->tensor_overlap);
    cost_groups(groups, &s->cost, &s->limits, CP_CHOICE_AUTO);
    s->speeds = c->machine.n_kinds ? speeds : NULL;
    return layout_speeds(speeds, c, layout);
}

// Turns a pass into the work of a group of the mean pace, for the whole model. A pass's communication includes
// exchanges of tensor parallelism; without others what is left is rounding.
static RoundWork work_of(const CostTerms* pass, const Setting* s, int stages, double pace) {
    double tokens = s->cost.per_token > 0 ? pace * pass->per_token / s->cost.per_token : 0;
    double tensor = group_communication_ms(&s->groups[1], tokens);
    double squares = s->cost.quadratic > 0 ? pace * pass->quadratic / s->cost.quadratic : 0;
    double shared = pass->communication - tensor;
    double once = 1 + s->cost.again / 2;  // plays do exchanges again by themselves
    return (RoundWork){tokens, squares, shared > 1e-9 * pass->communication ? stages * shared / once : 0};
}

// Finds each round's pass that takes longest. Ranks that run freely count as like passes, as many as the rank has that
// ends last.
static int find_works(RoundWork* works, const Plan* plan, const Timeline* t, const Setting* s, int stages,
                      double pace) {
    int in_rounds = s->rounds || plan->has_barriers, n = in_rounds ? plan->n_rounds : t->critical_micro_batches;
    const CostTerms *all = &t->critical, each = {all->quadratic / n, all->per_token / n, all->communication / n, 0};
    for (int r = 0; r < n; r++) {
        CostTerms most = in_rounds ? (CostTerms){0} : each;
        for (int i = 0; i < plan->n_micro_batches && in_rounds; i++)
            if (plan->micro_batches[i].round == r && terms_ms(&t->terms[i]) > terms_ms(&most)) most = t->terms[i];
        works[r] = work_of(&most, s, stages, pace);
    }
    return n;
}

// Returns 1 if a rank would wait in the reductions of its last row: the row is shared or a barrier may follow, and
// others end in other rounds. last: (ranks).
static int ends_apart(const Plan* plan, int* last) {
    int apart = 0, waits = plan->has_barriers;
    for (int r = 0; r < plan->ranks; r++) last[r] = -1;
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++) last[r] = MAX(last[r], mb->round);
    }
    for (int r = 0; r < plan->ranks; r++) apart |= last[r] < plan->n_rounds - 1;
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        for (int r = 0; r < mb->cp_size && mb->cp_size > 1; r++) waits |= last[mb->first_rank + r] == mb->round;
    }
    return apart && waits;
}

static int plan_step(Plan* plan, const LayoutCosts* c, const Setting* setting, const int* lengths, int n, Err err) {
    Prediction prediction;
    if (setting->limits.ranks == 1)
        return plan_static(plan, 1, lengths, n, &setting->limits, 0, CP_CHOICE_AUTO, c->arena, err);
    if (c->plan) return c->plan(c->plan_context, plan, setting, lengths, n, c->arena, err);
    return plan_flex(plan, &prediction, 1, lengths, n, setting, c->arena, err);
}

double layout_documents_ms(double terms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int N,
                           const int* lengths, int n, Err err) {
    Plan plan;
    Timeline t;
    Setting setting;
    int D = c->ranks / (layout->tp * layout->stages);
    ArenaMark mark = arena_mark(c->arena);
    GroupCost* groups = TAKE(c->arena, GroupCost, D + 1);
    double* speeds = TAKE(c->arena, double, D);
    RoundWork* works = TAKE(c->arena, RoundWork, n + 1);
    int* last = TAKE(c->arena, int, D);
    double ms = INFINITY;
    if (arena_check(c->arena, err)) return INFINITY;
    double pace = layout_setting(&setting, groups, speeds, c, layout, N);
    if (!plan_step(&plan, c, &setting, lengths, n, err) && !step_play(&t, &plan, lengths, &setting, c->arena, err)) {
        int v = find_works(works, &plan, &t, &setting, layout->stages, pace);
        ms = layout_rounds_ms(terms, c, layout, works, v, !setting.rounds && ends_apart(&plan, last));
    }
    arena_reset(c->arena, mark);
    return ms;
}

double layout_steps_ms(double terms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int N,
                       const SampledSteps* steps, Err err) {
    double sum = 0, of_step[N_LAYOUT_TERMS] = {0};
    for (int i = 0; i < N_LAYOUT_TERMS; i++) terms[i] = 0;
    for (int i = 0; i < steps->n && sum < INFINITY; i++) {
        int first = steps->first[i], end = steps->first[i + 1];
        sum += layout_documents_ms(of_step, c, layout, N, steps->lengths + first, end - first, err);
        for (int k = 0; k < N_LAYOUT_TERMS; k++) terms[k] += of_step[k] / steps->n;
    }
    return sum / steps->n;
}

// ---- the choice

// Sorts the first n by ms.
static void sort_tries(LayoutTry* tries, int n) {
    for (int i = 1; i < n; i++) {
        static LayoutTry t;
        int at = i;
        t = tries[i];
        for (; at > 0 && tries[at - 1].ms > t.ms; at--) tries[at] = tries[at - 1];
        tries[at] = t;
    }
}

static void look(LayoutTry* t, const LayoutCosts* c, const SampledSteps* steps) {
    char err[ERR_BYTES];
    t->ms = layout_steps_ms(t->terms, c, &t->layout, t->N, steps, err);
}

#define BOUND 0.9   // a share of the ms of equal rounds
#define CLOSE 1.05  // tries that close to the best in the first step are played in all steps

double layout_choose(LayoutTry* tries, int n, int* looked, const LayoutCosts* c, const SampledSteps* steps) {
    double best = INFINITY, bound = INFINITY;
    SampledSteps first = *steps;
    int k = 0, close = 0;
    first.n = 1;
    for (; k < n && tries[k].fits && BOUND * tries[k].ms < best; k++) {
        look(&tries[k], c, &first);
        best = fmin(best, tries[k].ms);
    }
    if (k < n && tries[k].fits) bound = BOUND * tries[k].ms;
    sort_tries(tries, k);
    for (; close < k && tries[close].ms <= CLOSE * best; close++) look(&tries[close], c, steps);
    sort_tries(tries, close);
    *looked = k;
    return best < INFINITY ? fmax(0, 1 - bound / best) : 0;
}
