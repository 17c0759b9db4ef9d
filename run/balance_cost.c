// balance_cost.c - what balancing needs to know of this machine, measured once, before the first step.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "run/balance_parts.h"
#include "run/linear.h"

// ms of an exchange of so many bytes with the next rank of the group, the slowest rank's, by the clock that times
// steps.
static double exchange_ms(Run* run, char* memory, size_t bytes) {
    enum { TIMES = 5 };
    char err[ERR_BYTES];
    const Model* m = &run->model;
    Comm* c = m->tp;
    double least = INFINITY, slowest = 0, *all = (double*)balance_room((size_t)m->world->size, sizeof *all);
    Transfer out = {(c->rank + 1) % c->size, memory, bytes},
             in = {(c->rank + c->size - 1) % c->size, memory + bytes, bytes};
    for (int i = 0; i < TIMES; i++) {
        m->k->synchronize(m->s);
        double started = m->k->clock();
        comm_exchange(c, &out, 1, &in, 1, m->s);
        m->k->synchronize(m->s);
        least = MIN(least, 1e3 * (m->k->clock() - started));
    }
    if (m->world->table->all_gather_host(m->world, all, &least, sizeof least, err, sizeof err)) run_lost(run, err);
    for (int r = 0; r < m->world->size; r++) slowest = MAX(slowest, all[r]);
    free(all);
    return slowest;
}

// Weights out and gradients back, once a layer and step each.
void balance_find_move_cost(Run* run) {
    enum { SMALL = 1 << 10, LARGE = 1 << 20 };
    const Model* m = &run->model;
    Balance* b = run->balance;
    char* memory = (char*)m->k->alloc(2 * LARGE);
    if (!memory) die("no memory to time an exchange of %d bytes", LARGE);
    double small = exchange_ms(run, memory, SMALL), large = MAX(small, exchange_ms(run, memory, LARGE));
    double byte = (large - small) / (LARGE - SMALL), L = m->shape.L;
    double slice = L * (2.0 * m->shape.C + 1) * (double)(dtype_bytes(m->dt) + sizeof(float)) * byte;
    m->k->free_memory(memory);
    b->setting.cost = (MoveCost){.fixed = 2 * L * small, .send = slice, .take = slice};
    if (b->keeps) b->setting.cost = (MoveCost){0, 0, 0};  // paid once
    printf("balance %s; an exchange takes %.3g ms, a slice given away for a step %.3g ms\n", run->config.balance, small,
           b->setting.cost.send);
}

// ---- what resizing saves

// Seconds of the linears of the first block, forward and backward, over N tokens, as they are computed now.
static double linear_seconds(Run* run, int N) {
    enum { TIMES = 5 };
    Model* m = &run->model;
    const Activation* a = m->act_table;
    double seconds[N_TIMES], least = INFINITY;
    char *wide = m->acts + a[D_WIDE].offset, *narrow = m->acts + a[D_NARROW].offset, *fc = m->acts + a[FC].offset,
         *gelu = m->acts + a[FC_GELU].offset, *ln = m->acts + a[LN1].offset;
    for (int i = 0; i < TIMES; i++) {
        timer_begin(m->timer, m->k, m->s);
        linear_forward(m, LINEAR_QKV, 0, wide, NULL, ln, N);
        linear_forward(m, LINEAR_ATTPROJ, 0, narrow, NULL, wide, N);
        linear_forward(m, LINEAR_FC, 0, fc, gelu, ln, N);
        linear_forward(m, LINEAR_FCPROJ, 0, narrow, NULL, gelu, N);
        linear_backward(m, LINEAR_FCPROJ, 0, wide, narrow, gelu, fc, N);
        linear_backward(m, LINEAR_FC, 0, narrow, wide, ln, NULL, N);
        linear_backward(m, LINEAR_ATTPROJ, 0, wide, narrow, gelu, NULL, N);
        linear_backward(m, LINEAR_QKV, 0, narrow, wide, ln, NULL, N);
        timer_read(m->timer, seconds, m->s);
        least = MIN(least, seconds[TIME_LINEAR]);
    }
    return least;
}

// A matmul of half the columns takes more than half the time: GELU and biases are the same, and thin matmuls are less
// efficient. With g left out it takes fixed + (1 - fixed) (1 - g) of the time; `fixed` is measured at a half, on all
// ranks, of which the median counts. Without it a healthy rank that leaves something out would look slow for ever.
void balance_find_fixed(Run* run) {
    char err[ERR_BYTES];
    Model* m = &run->model;
    Balance* b = run->balance;
    int N = MIN(run->config.capacity, run->config.batch_tokens);
    SliceCount own = {m->shape.heads, m->shape.units};
    WorkPlan plan;
    double mine = 0, *all = (double*)balance_room((size_t)m->world->size, sizeof *all), whole = linear_seconds(run, N);
    memset(&plan, 0, sizeof plan);
    plan.shed = b->shed, plan.imputation = b->imputation;
    plan.kept = kept_choose(b->kept, m, 0.5, own, 0);
    plan.active = plan.kept != NULL;
    work_set(m, &plan);
    work_begin(m);
    if (plan.active && whole > 0) {
        double g = kept_left_out(b->kept);
        mine = (linear_seconds(run, N) / whole - (1 - g)) / g;
    }
    work_end(m);
    plan.active = 0;
    work_set(m, &plan);
    kept_choose(b->kept, m, 0, own, 0);
    zero_clear_grads(m);
    if (m->world->table->all_gather_host(m->world, all, &mine, sizeof mine, err, sizeof err)) run_lost(run, err);
    b->fixed = MAX(0, MIN(0.9, balance_median(all, m->world->size)));
    free(all);
}
