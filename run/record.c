// record.c - what is known of a step when it is over: for the log, for the cost model, and for the last line of a run.
#include <math.h>
#include <stdio.h>

#include "run/run.h"

double run_median(double* x, int n) {
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && x[j - 1] > x[j]; j--) {
            double swapped = x[j];
            x[j] = x[j - 1];
            x[j - 1] = swapped;
        }
    return n ? (x[(n - 1) / 2] + x[n / 2]) / 2 : 0;
}

static uint64_t sent_for(const Comm* c, const Comm* before, CommPurpose purpose, int link) {
    return c->sent[purpose][link] - before->sent[purpose][link];
}

static void count_bytes(const Comm* c, const Comm* before, StepRecord* r) {
    const CommPurpose purposes[] = {COMM_ULYSSES, COMM_RING, COMM_GRADIENTS, COMM_PARAMETERS, COMM_TENSOR, COMM_SLICES};
    uint64_t* const counts[] = {&r->heads, &r->ring, &r->gradients, &r->parameters, &r->tensor, &r->slices};
    r->inside = r->across = 0;
    for (int i = 0; i < COUNT(purposes); i++) {
        uint64_t inside = sent_for(c, before, purposes[i], 0), across = sent_for(c, before, purposes[i], 1);
        *counts[i] = inside + across;
        r->inside += inside;
        r->across += across;
    }
}

void run_fill_record(const Run* run, StepRecord* r, double seconds, const Comm* before) {
    const Batch* b = &run->batch;
    Comm now = run_sent(&run->model);
    const Comm* c = &now;
    r->exposed_seconds = c->exposed_seconds - before->exposed_seconds;
    r->seconds = seconds;
    r->tokens = b->n_tokens;
    r->targets = b->n_targets;
    r->rows = b->plan.n_micro_batches;
    r->mfu = shape_training_flops(&run->model.shape, (double)r->tokens, b->sum_s2) / seconds / run->matmul_limit;
    r->planner = run->config.plan;
    r->plan = &b->plan;
    r->plan_us = b->plan_us;
    r->measured_ms = 1e3 * seconds - 1e-3 * r->plan_stall_us;
    r->gap = b->predicted ? prediction_gap(&b->prediction) : NAN;
    count_bytes(c, before, r);
}

void run_remember_step(Run* run, const StepRecord* r) {
    const Batch* b = &run->batch;
    PlanningSums* sum = &run->planning;
    sum->plan_us += b->plan_us;
    sum->worst_us = MAX(sum->worst_us, b->plan_us);
    sum->stall_us += r->plan_stall_us;
    sum->predicted += b->predicted;
    sum->gap += b->predicted ? r->gap : 0;
    if (sum->steps++ == 0 || !b->predicted) return;
    run->last_ms = r->measured_ms;
    memcpy(run->last_terms, b->terms, sizeof run->last_terms);
}

void run_print_planning(const Run* run) {
    const PlanningSums* sum = &run->planning;
    if (run->model.world->size == 1 || sum->steps == 0) return;
    printf("planning took %.0f us a step, %.0f at most; steps waited for it %.1f ms in all",
           sum->plan_us / (double)sum->steps, sum->worst_us, sum->stall_us / 1e3);
    if (sum->predicted)
        printf("; their times were predicted within %.1f %% (median), plans within %.1f %% of the bound (mean)",
               100 * calibration_median_error(&run->calibration), 100 * sum->gap / (double)sum->predicted);
    printf("\n");
}
