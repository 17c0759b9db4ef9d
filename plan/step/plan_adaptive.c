// plan_adaptive.c - one cp size for all documents, chosen anew for every step: the strongest homogeneous planner.
//
// plan_static deals the documents at every cp size worth a try, the cost model plays what comes out, and the plan that
// ends first is kept. Worth a try are the cp sizes that planners use (GroupCost.canonical) and that hold the longest
// document.
//
// Before a cp size is tried it is bounded from below. Groups of speeds v run documents of S tokens and S2 tokens^2, no
// token communicated faster than in messages of the best size:
//   makespan >= (quadratic S2 + per_token S + min v (communication S + micro-batch rows)) / sum v,
// and no micro-batch is shorter than that of the longest document. Cp sizes are tried in the order of this bound: from
// the first that is not below the best makespan on, none can win (but by a rounding), and the others cost nothing. A
// group that a border of nodes cuts is bounded as if it were inside: links across are taken not to be the faster
// ones.
#include <math.h>

#include "plan/step/flex.h"

typedef struct Candidate {
    double bound;  // ms
    int cp_size;
} Candidate;

// ---- bounds

typedef struct Work {
    double s2, tokens;
    int longest;
} Work;

// Speeds of the groups of one cp size, as plan_static lays them out.
typedef struct Pace {
    double sum, least, most;
} Pace;

static Pace group_pace(const Setting* setting, int cp_size) {
    int groups = setting->limits.ranks / cp_size;
    if (!setting->speeds) return (Pace){groups, 1, 1};
    Pace pace = {0};
    for (int g = 0; g < groups; g++) {
        double slowest = slowest_speed(setting, g * cp_size, cp_size);
        pace.sum += slowest;
        pace.least = g ? MIN(pace.least, slowest) : slowest;
        pace.most = MAX(pace.most, slowest);
    }
    return pace;
}

static double bound_of_group(const GroupCost* g, const Work* work, const Pace* pace) {
    double row = (double)g->room * (g->cp_size / g->ulysses_size), rows = work->tokens / row, s = work->longest;
    double rate = least_token_ms(g, row, HIDING_OWN);
    double area = g->quadratic * work->s2 + g->per_token * work->tokens +
                  pace->least * (rate * work->tokens + g->micro_batch * MAX(rows, 1));
    double micro_batch = (g->quadratic * s + g->per_token) * s / pace->most + rate * s + g->micro_batch;
    return MAX(area / pace->sum, micro_batch);
}

// The least over every way to divide heads that plan_static may take. Negative: none holds the longest document.
static double bound_of_cp_size(const Setting* setting, int cp_size, const Work* work) {
    Pace pace = group_pace(setting, cp_size);
    double least = -1;
    for (int ulysses_size = MIN(cp_size, setting->limits.kv_heads); ulysses_size > 0; ulysses_size--) {
        if (cp_size % ulysses_size != 0) continue;
        if (setting->kind == CP_CHOICE_RING && ulysses_size > 1) continue;
        if (setting->kind == CP_CHOICE_ULYSSES && ulysses_size < cp_size) break;
        GroupCost g = cost_group(&setting->cost, &setting->limits, 0, cp_size, ulysses_size);
        if (!group_holds(&g, work->longest)) continue;
        double bound = bound_of_group(&g, work, &pace);
        if (least < 0 || bound < least) least = bound;
    }
    return least;
}

// Cp sizes worth a try, the least bound first, of equal bounds the narrower group.
static int list_candidates(Candidate* list, const Setting* setting, const Work* work) {
    int n = 0;
    for (int cp_size = setting->limits.ranks; cp_size > 0; cp_size--) {
        if (!setting->groups[cp_size].canonical) continue;
        double bound = bound_of_cp_size(setting, cp_size, work);
        if (bound < 0) continue;
        int at = n++;
        for (; at > 0 && list[at - 1].bound >= bound; at--) list[at] = list[at - 1];
        list[at] = (Candidate){bound, cp_size};
    }
    return n;
}

// ---- the search

int plan_adaptive(Plan* plan, Prediction* prediction, int64_t step, const int* lengths, int n, double below,
                  const Setting* setting, Arena* arena, Err err) {
    const PlanLimits* limits = &setting->limits;
    if (plan_begin(plan, step, lengths, n, limits, arena, err) < 0) return -1;
    Work work = {0};
    for (int i = 0; i < n; i++) {
        double s = lengths[i];
        work.s2 += s * s;
        work.tokens += s;
        work.longest = MAX(work.longest, lengths[i]);
    }
    ArenaMark mark = arena_mark(arena);
    Candidate* list = TAKE(arena, Candidate, limits->ranks);
    if (arena_check(arena, err) < 0) return -1;
    double best = below;
    int made = 0;
    ArenaMark untried = arena_mark(arena);
    for (int i = 0, candidates = list_candidates(list, setting, &work); i < candidates; i++) {
        Plan trial;
        Timeline timeline;
        if (list[i].bound >= best) break;
        arena_reset(arena, untried);
        if (plan_static(&trial, step, lengths, n, limits, list[i].cp_size, setting->kind, arena, NULL) < 0) continue;
        if (step_play(&timeline, &trial, lengths, setting, arena, NULL) < 0 || timeline.makespan >= best) continue;
        best = timeline.makespan, made = 1;
        plan_copy(plan, &trial);
    }
    arena_reset(arena, mark);
    if (!made && below < INFINITY) return 1;
    // Where none of these can be, either some other cp size can or this says why not.
    if (!made && plan_static(plan, step, lengths, n, limits, 0, setting->kind, arena, err) < 0) return -1;
    if (predict_plan(prediction, plan, lengths, setting, arena, err) < 0) return -1;
    return plan_merge(plan, prediction, lengths, setting, arena, err);
}
