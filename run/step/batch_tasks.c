// batch_tasks.c - the tasks of a step for all stages of the pipeline: what every round takes in every stage, by the
// cost model, and the order that follows from it (plan/value/tasks.h).
#include "run/run.h"
#include "run/step/batch_ranks.h"

// Times of a pipeline, from the arena.
typedef struct PassTimes {
    int stages, rounds, across;                        // across: stages are on several nodes
    double matmuls[MOST_STAGES], layers[MOST_STAGES];  // shares of the stages
    double *forward, *backward, *message;              // see plan/value/tasks.h
    RankRound* of_rank;                                // (ranks)
} PassTimes;

static void add_micro_batch(RankRound* of_rank, const Batch* b, const Run* run, const MicroBatch* mb) {
    const Setting* setting = &run->clock->setting;
    double s2 = 0, tokens = 0;
    for (int d = mb->first_doc; d < mb->first_doc + mb->n_docs; d++) {
        double s = b->lengths[b->planned->plan.docs[d]];
        tokens += s, s2 += s * s;
    }
    GroupCost g = {0};
    if (setting->groups)
        g = cost_group(&setting->cost, &setting->limits, mb->first_rank, mb->cp_size, mb->ulysses_size);
    CostTerms terms = {run->clock->limits.quadratic * s2 / mb->cp_size, tokens / mb->cp_size, 0, 0};
    if (g.ulysses_size) terms = group_terms(&g, s2, tokens);
    for (int i = mb->first_rank; i < mb->first_rank + mb->cp_size; i++) {
        RankRound* x = &of_rank[i];
        x->matmuls += terms.per_token, x->others += terms.quadratic + terms.communication;
        x->micro_batch = MAX(x->micro_batch, terms.micro_batch);  // once a pass
        x->tokens += tokens / mb->cp_size;
    }
}

// A round of a stage takes what its longest rank does: of a token's matmuls the stage's share, of all else that of its
// layers. A cost says what all stages together would take if none waited. A backward pass takes twice a forward pass,
// and another one where blocks are computed again.
static void find_round(PassTimes* t, const Batch* b, const Run* run, int round) {
    const Model* m = &run->model;
    const Plan* plan = &b->planned->plan;
    const Cost* cost = &run->clock->setting.cost;
    double tokens = 0;
    int P = t->stages, ranks = run->clock->limits.ranks;
    memset(t->of_rank, 0, sizeof *t->of_rank * (size_t)ranks);
    for (int i = 0; i < plan->n_micro_batches; i++)
        if (plan->micro_batches[i].round == round) add_micro_batch(t->of_rank, b, run, &plan->micro_batches[i]);
    for (int i = 0; i < ranks; i++) {
        const RankRound* x = &t->of_rank[i];
        tokens = MAX(tokens, x->tokens);
        for (int s = 0; s < P; s++) {
            double* forward = &t->forward[s * t->rounds + round];
            double passes = 3 + layout_again(&m->ranks->layout, s);
            double ms = P * (x->matmuls * t->matmuls[s] + (x->others + x->micro_batch) * t->layers[s]);
            *forward = MAX(*forward, ms / passes);
            t->backward[s * t->rounds + round] = (passes - 1) * *forward;
        }
    }
    t->message[round] =
        P * cost->link_scale * stream_ms(cost, tokens / tp_size(m), t->across, run->clock->limits.node_size);
}

// Of one stage all are 0: it runs as it comes.
static int pass_times(PassTimes* t, Batch* b, const Run* run, Err err) {
    size_t n = (size_t)t->stages * (size_t)t->rounds;
    t->forward = TAKE(&b->arena, double, 2 * n + (size_t)t->rounds + 1);
    t->of_rank = TAKE(&b->arena, RankRound, run->clock->limits.ranks);
    if (arena_check(&b->arena, err)) return -1;
    t->backward = t->forward + n, t->message = t->backward + n;
    memset(t->forward, 0, sizeof *t->forward * (2 * n + (size_t)t->rounds));
    if (t->stages == 1) return 0;
    t->across = run_node_size(run, run->model.job, 1, 1) < run->model.job->size;
    layout_shares(&run->model.ranks->layout, &run->model.whole, t->matmuls, t->layers);
    // A machine that knows whole pipelines has one time for each of its stages.
    for (int s = 0; s < t->stages && run->clock->probed.n_schemes > 0; s++)
        t->matmuls[s] = t->layers[s] = 1.0 / t->stages;
    for (int r = 0; r < t->rounds; r++) find_round(t, b, run, r);
    return 0;
}

int batch_tasks(Batch* b, const Run* run, Err err) {
    char why[ERR_BYTES];
    int P = run->model.stages, slots[MOST_STAGES];
    PassTimes t = {.stages = P, .rounds = b->n_rows};
    if (pass_times(&t, b, run, err)) return -1;
    for (int s = 0; s < P; s++) slots[s] = pipeline_slots(P, s);
    Pipeline pipeline = {P, t.rounds, b->training, slots, t.forward, t.backward, t.message};
    if (schedule_tasks(&b->planned->schedule, &pipeline, &b->arena, err)) return -1;
    if (plan_checks && plan_checks->check_schedule(&b->planned->schedule, &pipeline, &b->arena, why))
        return fail(err, "this schedule is wrong: %s", why);
    return 0;
}

void batch_predict_tasks(Batch* b, const Run* run) {
    BatchPlan* x = b->planned;
    double* ms = &x->prediction.makespan;
    if (run->model.stages == 1 || !x->predicted || *ms <= 0) return;
    for (int i = 0; i < CALIBRATION_TERMS - 1; i++) x->terms[i] *= x->schedule.makespan / *ms;  // all but the update
    *ms = x->schedule.makespan;
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
    if (task->kind == TASK_FORWARD) batch_end_rounds(b, m, task->round);
    pass->kind = PASS_OTHER;
    if (pace_leaves(run, task)) return;
    if (task->kind >= TASK_SEND) pipeline_begin(m, task, pass->row);
    else pipeline_settle(m, task);
    if (task->kind == TASK_FORWARD) pass->kind = PASS_FORWARD;
    if (task->kind == TASK_BACKWARD) pass->kind = PASS_BACKWARD;
    if (task->kind == TASK_BACKWARD && batch_reduces_inside(b, m, task->round)) zero_last_row(m);
}

int batch_next_pass(Run* run, Pass* pass, int i, int train) {
    Model* m = &run->model;
    const Batch* b = &run->batch;
    const TaskList* list = &b->planned->schedule.stages[m->stage];
    if (i == 0) pace_begin(run, train);
    else if (pass->kind != PASS_OTHER) pace_end_task(run, &list->tasks[i - 1]);
    if (i < list->n) {
        begin_task(run, pass, &list->tasks[i]);
        return 1;
    }
    pipeline_finish(m);
    batch_end_rounds(b, m, b->n_rows);
    return 0;
}
