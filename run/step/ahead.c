// ahead.c - the next step is planned and read by a thread of its own while this one computes, at no cost of time.
//
// The two sides take turns. Between ahead_start and ahead_wait the thread owns run->ahead and reads what planning reads
// (configuration, limits, cost model); at all other times it sleeps, and the main thread may change them. The mutex
// orders the turns. The thread neither prints nor talks to other ranks: what went wrong, the main thread says.
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "run/strategies/strategies.h"
#include "run/slow/balance.h"
#include "run/step/batch_ranks.h"

enum { STACK_BYTES = 1 << 20 };  // planners have their scratch elsewhere; sanitizers want room

struct Ahead {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    Run* run;
    int64_t step;
    int busy, closing;  // the two sides' turns; under the mutex
    int failed;
    char err[ERR_BYTES];
};

static void draw_and_plan(Ahead* a) {
    Run* run = a->run;
    Batch* b = &run->ahead;
    batch_draw(b, run);
    a->failed = batch_plan(b, run, a->step, a->err) || batch_read(b, run, run->data.train, a->err);
}

static void* work(void* argument) {
    Ahead* a = (Ahead*)argument;
    pthread_mutex_lock(&a->mutex);
    for (;;) {
        while (!a->busy && !a->closing) pthread_cond_wait(&a->changed, &a->mutex);
        if (a->closing) break;
        draw_and_plan(a);
        a->busy = 0;
        pthread_cond_signal(&a->changed);
    }
    pthread_mutex_unlock(&a->mutex);
    return NULL;
}

// Signals are for the main thread, which a signal must wake from what it waits for.
static int begin_thread(Ahead* a) {
    sigset_t all, before;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes)) return -1;
    sigfillset(&all);
    int failed = pthread_attr_setstacksize(&attributes, STACK_BYTES) || pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!failed) {
        failed = pthread_create(&a->thread, &attributes, work, a);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    pthread_attr_destroy(&attributes);
    return failed ? -1 : 0;
}

static Ahead* open_ahead(Run* run) {
    Ahead* a = (Ahead*)calloc(1, sizeof *a);
    if (!a) die("no memory for the thread that plans");
    a->run = run;
    if (pthread_mutex_init(&a->mutex, NULL) || pthread_cond_init(&a->changed, NULL) || begin_thread(a))
        die("cannot start the thread that plans: is the number of threads limited (ulimit -u)?");
    return a;
}

void ahead_start(Run* run, int64_t step) {
    SamplerPosition start = {0};
    if (!run->clock->planner) run->clock->planner = open_ahead(run);
    Ahead* a = run->clock->planner;
    // state stays behind the step at work until that is done.
    run->ahead.after = run->config.overfit           ? start
                       : step == run->state.step + 1 ? run->state.position
                                                     : run->batch.after;
    pthread_mutex_lock(&a->mutex);
    a->step = step;
    a->busy = 1;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->mutex);
}

void ahead_none(Run* run) {
    Batch* b = &run->ahead;
    b->planned->plan = (Plan){0};
    b->planned->predicted = 0;
    b->planned->dispatch_hash = 0;
    b->planned->strategy = run->batch.planned->strategy;
}

double ahead_wait(Run* run) {
    Ahead* a = run->clock->planner;
    double started = now_seconds();
    pthread_mutex_lock(&a->mutex);
    while (a->busy) pthread_cond_wait(&a->changed, &a->mutex);
    pthread_mutex_unlock(&a->mutex);
    if (a->failed) {
        fail(run->cluster->why, "step %" PRId64 ": %s", a->step, a->err);
        ahead_none(run);
    }
    return now_seconds() - started;
}

void ahead_close(Run* run) {
    Ahead* a = run->clock->planner;
    if (!a) return;
    pthread_mutex_lock(&a->mutex);
    a->closing = 1;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->mutex);
    pthread_join(a->thread, NULL);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->mutex);
    free(a);
    run->clock->planner = NULL;
}

// ---- what all ranks agree on

void ahead_agree(Run* run, const RankReport* report) {
    char err[ERR_BYTES];
    Comm* c = run->model.world;
    PlanHash made = run_plan_hash(run, &run->ahead);
    made.plan = hash_bytes(run->clock->calibration.theta, sizeof run->clock->calibration.theta,
                           made.plan ^ balance_state_hash(run));
    made.failed = run->cluster->why[0] != 0;
    double expected = calibration_predict(&run->clock->calibration, run->ahead.planned->terms) +
                      strategies_start_ms(run, run->ahead.planned->strategy);
    Agreement mine = {made,
                      (uint64_t)interrupted,
                      (uint64_t)run->model.left,
                      run->clock->last_ms,
                      run->ahead.planned->predicted ? expected : NAN,
                      run_processor_seconds(run),
                      *report};
    double ms = mine.ms;
    run->stopped_by = interrupted;
    run->left = run->model.left;
    run->cluster->processor = c->size > 1 ? 0 : mine.processor;
    run->cluster->agreed[0] = mine;
    run->ahead.planned->expected_ms = mine.predicted;
    if (c->size > 1 && c->table->all_gather_host(c, run->cluster->agreed, &mine, sizeof mine, err)) run_lost(run, err);
    for (int r = 0; r < c->size; r++) run->cluster->unplanned |= run->cluster->agreed[r].made.failed != 0;
    for (int r = 0; r < c->size && c->size > 1; r++) {
        const Agreement* other = &run->cluster->agreed[r];
        if (!run->cluster->unplanned)
            run_compare_plan(run, &run->ahead, r, other->made, run->cluster->agreed[0].made, made);
        run->stopped_by = (int)MAX((uint64_t)run->stopped_by, other->signal);
        run->left |= (int)other->left;
        run->cluster->processor += other->processor;
        ms = MAX(ms, other->ms);
        if (run->strategies) run->ahead.planned->expected_ms = fmax(run->ahead.planned->expected_ms, other->predicted);
    }
    if (ms > 0 && balance_explains_step(run)) calibration_learn(&run->clock->calibration, run->clock->last_terms, ms);
    run->clock->last_ms = 0;
}

void ahead_plan_now(Run* run) {
    RankReport none = {0};
    ahead_start(run, run->state.step + 1);
    ahead_wait(run);
    ahead_agree(run, &none);
    if (run->cluster->unplanned) run_end_unplanned(run);
    if (run->strategies) zero_gather(&run_under(run, run->ahead.planned->strategy)->model);
    strategies_turn(run, run->ahead.planned->strategy);
}

void ahead_plan_next(Run* run) {
    int64_t step = run->batch.planned->plan.step;
    int is_due = run->config.refresh > 0 && step % run->config.refresh == 0;
    if (step == run->config.steps) {
        ahead_none(run);
        return;
    }
    if (run->clock->setting.groups && !run->config.machine && is_due) run_set_cost(run);
    ahead_start(run, step + 1);
}
