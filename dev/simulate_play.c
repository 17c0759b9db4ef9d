// simulate_play.c - draws batches, lets every planner plan them, and plays the plans in the cost model.
//
// A gap is makespan / L3 - 1, where L3 is the lower bound of plan/bound.h for this batch under the fixed costs that the
// planner's own system has: `micro_batch_ms` on top of every micro-batch, and where it runs in rounds, round_ms for as
// many rounds as the batch's tokens fill ranks, at least one. Systems that move linear work between ranks, or whose
// exchanges between machines are faster than the model's, do what the bound knows nothing of: they have no gap.
#include <stdio.h>
#include <stdlib.h>

#include "dev/simulate.h"
#include "plan/planner.h"

enum { SAMPLE = 16384 };  // lengths of the data set that systems may look at before the first step

typedef struct Table {
    Plan plan;
    void *plan_memory, *timeline_memory, *scratch;
} Table;

void draw_batch(Simulation* s, int batch) {
    int n = s->options->docs;
    lengths_draw(s->lengths, s->drawn, n, (uint64_t)s->options->seed, batch);
    memcpy(s->sorted, s->drawn, sizeof(int) * (size_t)n);
    sort_lengths(s->sorted, n);
}

Setting setting_under_rule(const Setting* setting, const PlayRule* rule) {
    GroupCost* groups = (GroupCost*)need(sizeof(GroupCost) * ((size_t)setting->limits.ranks + 1));
    return setting_with_micro_batch(setting, rule->micro_batch_ms, groups);
}

static int is_held(const Setting* setting, int length) {
    for (int d = 1; d <= setting->limits.ranks; d++)
        if (setting->groups[d].ulysses_size && group_holds(&setting->groups[d], length)) return 1;
    return 0;
}

// Neither planners nor bounds know what to do with what no group holds.
static void check_held(const Simulation* s, int batch) {
    const PlanLimits* limits = &s->setting.limits;
    for (int i = 0; i < s->options->docs; i++)
        if (!is_held(&s->setting, s->sorted[i]))
            refuse(
                "batch %d has a document of %d tokens, and no group of up to %d ranks holds it at capacity %d; try "
                "more --ranks, --capacity, or a smaller --context",
                batch, s->sorted[i], limits->ranks, limits->capacity);
}

// The bounds of the batch with the rule's cost of micro-batches.
static Bounds bounds_under_rule(const Simulation* s, const PlayRule* rule, void* scratch) {
    Bounds bounds;
    Setting setting = setting_under_rule(&s->setting, rule);
    bounds_of(&bounds, s->sorted, s->options->docs, &setting, scratch);
    free(setting.groups);
    return bounds;
}

// What no plan that is played by this rule can beat; negative where the rule leaves the model.
static double bound_under_rule(const Simulation* s, const PlayRule* rule, void* scratch) {
    if (rule->even_linear || (rule->across_scale > 0 && rule->across_scale < 1)) return -1;
    int64_t tokens = 0, room = (int64_t)s->setting.limits.ranks * s->setting.limits.capacity;
    for (int i = 0; i < s->options->docs; i++) tokens += s->sorted[i];
    double rounds = rule->in_rounds ? rule->round_ms * (double)CEIL_DIV(tokens, room) : 0;
    return bounds_under_rule(s, rule, scratch).l3 + rounds;
}

static void leave_out(Tally* t, const char* why) {
    t->out = 1;
    snprintf(t->why, sizeof t->why, "%s", why);
}

static void open_planners(Simulation* s) {
    char err[ERR_BYTES];
    int* sample = (int*)need(sizeof(int) * SAMPLE);
    lengths_draw(s->lengths, sample, SAMPLE, (uint64_t)s->options->seed, -1);
    for (int i = 0; i < s->n_tallies; i++) {
        Tally* t = &s->tallies[i];
        t->state = t->planner->open(&s->setting, sample, SAMPLE, err, sizeof err);
        if (!t->state) leave_out(t, err);
    }
    free(sample);
}

static void play_one(Simulation* s, Tally* t, Table* table, int batch) {
    char err[ERR_BYTES];
    PlayRule rule = {0};
    Timeline timeline;
    int n = s->options->docs;
    plan_carve(&table->plan, table->plan_memory, n);
    double start = now_seconds();
    int status = t->planner->plan(t->state, &table->plan, &rule, batch, s->drawn, n, err, sizeof err);
    double us = 1e6 * (now_seconds() - start);
    if (status == 0) status = plan_check(&table->plan, s->drawn, n, &s->setting.limits, table->scratch, err, ERR_BYTES);
    timeline_carve(&timeline, table->timeline_memory, n, s->setting.limits.ranks);
    if (status == 0)
        status = timeline_play(&timeline, &table->plan, s->drawn, &s->setting, &rule, table->scratch, err, ERR_BYTES);
    if (status < 0) {
        leave_out(t, err);
        return;
    }
    double l3 = bound_under_rule(s, &rule, table->scratch), gap = l3 > 0 ? timeline.makespan / l3 - 1 : 0;
    t->batches++;
    t->left_model |= l3 < 0;
    t->ms += timeline.makespan, t->ms_worst = MAX(t->ms_worst, timeline.makespan);
    t->gap += gap, t->gap_worst = MAX(t->gap_worst, gap);
    t->us += us, t->us_worst = MAX(t->us_worst, us);
    t->idle += timeline.idle, t->communication_share += timeline.communication_share;
}

// Between batches only: planners cannot be interrupted.
static void look_at_patience(const Options* options, Tally* t) {
    char why[ERR_BYTES];
    double seconds = 1e-6 * t->us;
    if (t->out || options->patience == 0 || seconds <= options->patience || t->batches == options->batches) return;
    snprintf(why, sizeof why, "planned for %.0f s at %d of %d batches; --patience 0 waits", seconds, t->batches,
             options->batches);
    leave_out(t, why);
}

void play_all(Simulation* s) {
    const PlanLimits* limits = &s->setting.limits;
    int n = s->options->docs;
    size_t scratch = MAX(plan_scratch_bytes(n, limits), timeline_scratch(n, limits->ranks));
    Table table = {.plan_memory = need(plan_bytes(n)),
                   .timeline_memory = need(timeline_bytes(n, limits->ranks)),
                   .scratch = need(MAX(scratch, bounds_scratch(n, limits)))};
    open_planners(s);
    for (int b = 0; b < s->options->batches; b++) {
        draw_batch(s, b);
        check_held(s, b);
        Bounds bounds = bounds_under_rule(s, &(PlayRule){.micro_batch_ms = s->micro_batch_ms}, table.scratch);
        s->l1 += bounds.l1, s->l3 += bounds.l3;
        s->longest = MAX(s->longest, s->sorted[0]);
        for (int i = 0; i < n; i++) s->tokens += s->sorted[i];
        for (int i = 0; i < s->n_tallies; i++) {
            if (!s->tallies[i].out) play_one(s, &s->tallies[i], &table, b);
            look_at_patience(s->options, &s->tallies[i]);
        }
    }
    free(table.plan_memory), free(table.timeline_memory), free(table.scratch);
}
