// mechanisms.c - what happens around a step, and around all steps, beside training itself: the next step is planned,
// slow ranks are measured and relieved, strategies change, records are filled and written.
//
// A row of the table is one of these; train_gpt.cu calls the rows in their order at four moments of every step.
#include <inttypes.h>
#include <math.h>

#include "run/strategies/strategies.h"

// ---- the rows

static void begin_clocks(Run* run, StepRecord* r) {
    (void)r;
    run->cluster->sent_before = run_sent(run);
    run->clock->step_began = run_seconds(run);
    run_begin_clocks(run);
}

static void fill_record(Run* run, StepRecord* r) {
    run_fill_record(run, r, run_seconds(run) - run->clock->step_began, &run->cluster->sent_before);
    run_remember_step(run, r);
}

static void take_plan(Run* run, StepRecord* r) {
    (void)r;
    Batch swapped = run->batch;
    run->batch = run->ahead;
    run->ahead = swapped;
}

static void change_work(Run* run, StepRecord* r) { (void)r, balance_change(run); }

static void plan_next(Run* run, StepRecord* r) {
    ahead_plan_next(run);
    r->predicted_ms = run->batch.predicted ? calibration_predict(&run->clock->calibration, run->batch.terms) : NAN;
    r->plan_stall_us = 0;
}

static void begin_work(Run* run, StepRecord* r) { (void)r, balance_begin(run); }
static void measure_work(Run* run, StepRecord* r) { (void)r, balance_measure(run, &run->cluster->report); }

// The update sends the weights of the strategy that comes next.
static void agree_on_strategy(Run* run, StepRecord* r) {
    if (!run->strategies) return;
    r->plan_stall_us += 1e6 * ahead_wait(run);
    strategies_agree(run);
    strategies_predict(run, r);
}

static void agree_on_plan(Run* run, StepRecord* r) {
    r->plan_stall_us += 1e6 * ahead_wait(run);
    ahead_agree(run, &run->cluster->report);
    if (!run->left) balance_hear(run, r);
    if (!run->strategies) zero_gather(&run->model);
    else if (run->left) strategies_turn(run, run->ahead.strategy);
    if (run->left) pace_say_left(run);
}

static void turn(Run* run, StepRecord* r) { (void)r, strategies_turn(run, run->ahead.strategy); }

const Mechanism mechanisms[] = {
    {"record", begin_clocks, NULL, NULL, fill_record},
    {"batch", take_plan, NULL, NULL, NULL},
    {"slow ranks, decisions", change_work, NULL, NULL, NULL},
    {"planner", plan_next, NULL, NULL, NULL},
    {"slow ranks, work", begin_work, NULL, measure_work, NULL},
    {"strategies", NULL, agree_on_strategy, NULL, turn},
    {"agreement", NULL, NULL, agree_on_plan, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

// ---- before the first step and behind the last one

void run_start(Run* run) {
    char err[ERR_BYTES];
    const Config* c = &run->config;
    int tells = c->eval_every && sampler_pieces(run->data.val, SPLIT_VAL) && run->model.world->rank == 0;
    run->books->unigram_loss = run->books->val_bytes = NAN;
    if (tells) run_unigram_loss(run);
    run_catch_signals(run);
    ahead_plan_now(run);
    run->books->log.fd = -1;
    if (run->model.world->rank == 0 &&
        runlog_open(&run->books->log, run->books->out, c->resume, run->state.step, err, sizeof err))
        die("%s", err);
    run_open_report(run);
    run_log_start(run);
    run_write_report(run);
    run_tell_of_long_steps(run);
    // Launchers give ranks a terminal that nobody looks at.
    if (strcmp(run->cluster->identity.source, "alone") != 0) run->books->log.is_terminal = 0;
    run->books->first_step = run->state.step;
    run->books->saving.done = c->resume ? run->state.step : -1;
}

void run_tell_step(Run* run, StepRecord* r) {
    if (runlog_step(&run->books->log, r)) interrupted = SIGTERM;
}

// Alone, the signal itself counts; with others, what all have agreed on.
int run_is_stopped(Run* run) {
    if (run->model.world->size == 1) run->stopped_by = interrupted;
    return run->stopped_by || run->cluster->unplanned;
}

void run_finish(Run* run) {
    int saves = run->stopped_by || run->cluster->unplanned ? !run->model.k->no_results : run->config.save_every > 0;
    if (saves && run->books->saving.done != run->state.step) run_save_last(run);
    run_print_end(run, now_seconds() - run->began);
    run_write_report(run);
    run->failed |= runlog_close(&run->books->log) != 0;
    if (run->cluster->unplanned) run_end_unplanned(run);
}

void run_plan_only(Run* run) {
    ahead_plan_now(run);
    take_plan(run, NULL);
    if (run->config.dump_grads) run_dump(run);
    else if (run->model.world->rank == 0) run_explain(run);
}

// ---- before both

// See Run.time_row in run/run.h.
static double time_row(Run* run, const int* lengths, int n, int repeats) {
    Model* m = &run->model;
    Row row = batch_probe_row(&run->batch, run, lengths, n);
    double least = INFINITY;
    m->k->synchronize(m->s);
    for (int i = 0; i < repeats; i++) {
        double started = now_seconds();
        model_train(m, &row, 1 / (float)row.N);
        m->k->synchronize(m->s);
        least = MIN(least, 1e3 * (now_seconds() - started));
    }
    zero_clear_grads(m);
    m->k->synchronize(m->s);
    return least;
}

void run_prepare(Run* run) {
    MemoryPlan plan = run_plan_memory(run);
    if (run->training) {
        run_measure_limit(run);
        if (!run->books->uses_model) run_print(run, &plan);
        fflush(stdout);
    }
    run_take_memory(run, &plan);
    const char* choices = run->model.k->choices();
    if (run->training && choices[0] && !run_is_brief(run)) printf("kernels %s\n", choices);
    run_load_weights(run);
    if (run->model.ranks->zero.stage == 3) zero_gather(&run->model);
    run->clock->time_row = time_row;
    if (run->training) run_find_cost(run), balance_ready(run), run_check_documents(run);
}
