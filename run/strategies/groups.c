// groups.c - --balance migrate with --strategies: what ranks of the pipelines' tensor-parallel groups give each other.
//
// Groups change from step to step, so each rank's pace is measured (plan/slow/speeds.h), and not the time of its
// linears. The cost model says the time of a pipeline's step at full pace. From both follows a decision of
// plan/slow/balance.h for every stage of every group of every strategy, the same on all ranks and without memory of
// earlier ones. Each rank carries out those of its own groups, and plans go by the paces of all.
#include <math.h>
#include <stdlib.h>

#include "run/slow/parts.h"
#include "run/strategies/strategies.h"

// A stage of a group of pipelines, the same on all ranks.
typedef struct GroupBalance {
    UnitGroup units;
    WorkPlan plan;
    double linear, attention, other;  // ms of one of its ranks in a step at full pace; linear: of blocks
    double blocks;                    // share of blocks in a token's matmuls
} GroupBalance;

// The groups of this rank.
struct Groups {
    MessageCost message;
    double mean_length;
    int used;                               // the strategy whose plan is set; -1: none
    GroupBalance of[MOST_RANK_STRATEGIES];  // under each
};

double strategies_mean_length(const Run* run) {
    static int lengths[SAMPLED_LENGTHS];
    double squares = 0, tokens = 0;
    for (int i = 0, n = run_sample_lengths(run, lengths); i < n; i++)
        squares += (double)lengths[i] * lengths[i], tokens += lengths[i];
    return tokens > 0 ? squares / tokens : 0;
}

static void ready(Run* run) {
    Strategies* x = run->strategies;
    if (run->balance->setting.mode != BALANCE_MIGRATE) return;
    struct Groups* groups = (struct Groups*)calloc(1, sizeof *groups);
    if (!groups) die("no memory for what ranks of %d strategies give away", x->list.n);
    groups->mean_length = strategies_mean_length(run), groups->used = -1;
    for (int s = 0; s < x->list.n; s++) {
        MessageCost mine = balance_message(run, x->as[s]->model.tp), *all = &groups->message;
        all->ms = fmax(all->ms, mine.ms), all->byte_ms = fmax(all->byte_ms, mine.byte_ms);
    }
    for (int s = 0; s < x->list.n; s++) x->as[s]->model.ranks->lends = 1;  // on all ranks alike
    x->groups = groups;
}

// Counts the work of a rank of this stage in a step. The cost of a pipeline is that of all stages if none waited.
static void count_work(GroupBalance* x, const Run* run, const PipelineGroup* g, const Layout* layout, int stage) {
    const Strategies* list = run->strategies;
    const Shape* whole = &run->model.whole;
    const PipelineScheme* k = &list->kinds.pool.scheme[strategies_kind(&list->kinds, g)];
    double matmuls[MOST_STAGES], layers[MOST_STAGES], weights = shape_matmul_weights(whole),
                                                      head = (double)whole->V * whole->C;
    double tokens = (double)run->config.batch_tokens * g->tp * g->pp / run->model.world->size;
    layout_shares(layout, whole, matmuls, layers);
    double all = k->linear * tokens * g->pp * matmuls[stage];
    x->blocks = fmin(1, layers[stage] * (weights - head) / weights / matmuls[stage]);
    x->linear = x->blocks * all;
    x->attention = k->quadratic * tokens * run->strategies->groups->mean_length * g->pp * layers[stage];
    x->other = all - x->linear + k->fixed * g->pp * layers[stage];
}

// Decides what the ranks of a group give each other. v (ranks of the group): the slowest pace of each place.
static void decide(GroupBalance* x, const Run* run, const Layout* layout, int stage, const double* v) {
    const Model* m = &run->model;
    BalanceMemory memory = {0};
    RankTimes times[MOST_TP];
    UnitGroup* units = &x->units;
    BalanceSetting setting = run->balance->setting;
    const TpSplit split = split_even(&m->whole, layout->tp);
    const Shape first = split_shape(&m->whole, &split, 0);
    balance_count_units(units, &m->whole, &split);
    double slice_ms = x->linear / units_matrices(units, units->own[0]);
    units->head_work = units->matrices + x->attention / units->own[0].heads / slice_ms;
    setting.cost = balance_move_cost(&run->strategies->groups->message, &first, m->dt, layout->stage[stage].layers);
    for (int t = 0; t < units->ranks; t++) {
        double slices = units_work(units, units->own[t]);
        times[t] = (RankTimes){x->linear / v[t], x->attention / v[t], x->other / v[t], slices, 0};
    }
    balance_learn(&memory, times, units->ranks);
    BalanceDecision d = balance_decide(&memory, &setting, units);
    balance_set_moves(&x->plan, units, &d);
    x->plan.active = x->plan.n_moves > 0, x->plan.of_group = d.active;
}

// Finds the work of rank t under the plan over that of its own part: of matmuls of blocks, and of attention.
static void shares_of(double* matmuls, double* attention, const GroupBalance* x, int t) {
    SliceCount own = x->units.own[t], has = balance_count(x->plan.moves, x->plan.n_moves, x->units.own, t);
    *matmuls = units_matrices(&x->units, has) / units_matrices(&x->units, own);
    *attention = (double)has.heads / own.heads;
}

// Returns the pace of a stage of one pipeline, whose ranks give each other parts.
static double pace_of(const GroupBalance* x, const double* speeds) {
    double slowest = 0, matmuls, attention;
    for (int t = 0; t < x->units.ranks; t++) {
        shares_of(&matmuls, &attention, x, t);
        slowest = fmax(slowest, (x->linear * matmuls + x->attention * attention + x->other) / speeds[t]);
    }
    return (x->linear + x->attention + x->other) / slowest;
}

void strategies_group_paces(double* of_stage, const Run* run, int s, const PipelineGroup* g, int stage, int first,
                            const double* speeds) {
    struct Groups* groups = run->strategies->groups;
    GroupBalance x = {0};
    double v[MOST_TP];
    int rank = run->model.world->rank;
    if (!groups || g->tp == 1) return;
    Layout layout = strategies_layout(run, g);
    for (int t = 0; t < g->tp; t++) {
        v[t] = speeds[first + t];
        for (int q = 1; q < g->copies; q++) v[t] = fmin(v[t], speeds[first + q * g->tp + t]);
    }
    count_work(&x, run, g, &layout, stage);
    if (x.linear > 0) decide(&x, run, &layout, stage, v);  // a machine may say nothing of it
    if (rank >= first && rank < first + g->copies * g->tp) groups->of[s] = x, groups->used = -1;
    for (int q = 0; q < g->copies && x.plan.active; q++) of_stage[q] = pace_of(&x, speeds + first + q * g->tp);
}

// Sets the plan of this step's strategy, if it is another.
static void begin(Run* run) {
    struct Groups* groups = run->strategies->groups;
    Model* m = &run->model;
    int now = run->strategies->now;
    if (!groups || !m->ranks->work) return;
    if (groups->used != now) work_set(m, &groups->of[now].plan);
    groups->used = now;
    if (groups->of[now].plan.active) zero_settle(m);
}

static void report(const Run* run, RankReport* mine) {
    const Strategies* list = run->strategies;
    const Comm* tp = run->model.tp;
    double matmuls, attention;
    if (!list->groups || !tp || !list->groups->of[list->now].plan.active) return;
    const GroupBalance* x = &list->groups->of[list->now];
    shares_of(&matmuls, &attention, x, tp->rank);
    mine->expected.per_token *= 1 - x->blocks + x->blocks * matmuls;
    mine->expected.quadratic *= attention;
    for (int taken = 0; taken < 2; taken++) {
        SliceCount n = work_moved(&x->plan, tp->rank, taken);
        *(taken ? &mine->taken : &mine->sent) = units_work(&x->units, n);
    }
}

void strategies_balance(Run* run) {
    static const JobsBalance jobs = {strategies_set_paces, ready, begin, report};
    Balance* b = run->balance;
    if (!run->strategies) return;
    b->jobs = &jobs;
    for (int s = 0; s < run->strategies->list.n; s++) {
        Model* m = &run->strategies->as[s]->model;
        model_set_timer(m, run->model.timer);
        if (b->setting.mode == BALANCE_MIGRATE && run->training && m->tp) m->ranks->work_needs = balance_needs(m, b);
    }
}
