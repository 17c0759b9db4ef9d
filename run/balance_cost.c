// balance_cost.c - what balancing needs to know of this machine, measured once, before the first step.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "run/balance_parts.h"
#include "run/linear.h"

// ms of an exchange of so many bytes with the next rank of the group, the slowest rank's, by the clock that times
// steps.
static double communication_ms(Run* run, char* memory, size_t bytes) {
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
        comm_send_receive(c, &out, 1, &in, 1, m->s);
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
    double small = communication_ms(run, memory, SMALL), large = MAX(small, communication_ms(run, memory, LARGE));
    double byte = (large - small) / (LARGE - SMALL), L = m->shape.L;
    double slice = L * (2.0 * m->shape.C + 1) * (double)(dtype_bytes(m->dt) + sizeof(float)) * byte;
    m->k->free_memory(memory);
    b->setting.cost = (MoveCost){.fixed = 2 * L * small, .send = slice, .take = slice};
    if (b->keeps) b->setting.cost = (MoveCost){0, 0, 0};  // paid once
    printf("balance %s; an exchange takes %.3g ms, a slice given away for a step %.3g ms\n", run->config.balance, small,
           b->setting.cost.send);
}

// ---- what resizing saves

// Milliseconds of the first block's linears, forward and backward, over N tokens with the lists of the plan: of the
// matmuls, and of what comes with them.
typedef struct LinearTime {
    double matmuls, rest;
} LinearTime;

static void time_linears(LinearTime* least, Run* run, const WorkPlan* plan, int N) {
    Model* m = &run->model;
    const Activation* a = m->act_table;
    double seconds[N_TIMES];
    char *wide = m->acts + a[D_HIDDEN].offset, *narrow = m->acts + a[D_NORM].offset, *fc = m->acts + a[FC].offset,
         *gelu = m->acts + a[FC_GELU].offset, *ln = m->acts + a[LN1].offset;
    work_set(m, plan);
    work_begin(m);
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
    work_end(m);
    least->matmuls = MIN(least->matmuls, 1e3 * seconds[TIME_LINEAR]);
    least->rest = MIN(least->rest, 1e3 * seconds[TIME_OTHER]);
}

// The median of what all ranks say.
static double middle(Run* run, double mine) {
    char err[ERR_BYTES];
    Comm* c = run->model.world;
    double* all = (double*)balance_room((size_t)c->size, sizeof *all);
    if (c->table->all_gather_host(c, all, &mine, sizeof mine, err, sizeof err)) run_lost(run, err);
    double value = run_median(all, c->size);
    free(all);
    return value;
}

// A matmul of a quarter of the columns takes more than a quarter of the time: GELU and biases are the same, and thin
// matmuls are less efficient. With g left out it takes fixed + (1 - fixed) (1 - g) of the time. `fixed` is measured at
// 3/4, where its error counts most, on all ranks, of which the median counts; and with it what gathering columns takes,
// which is over when nothing is left out. Without these a healthy rank that leaves something out would look slow for
// ever. Whole and resized ones take turns, so that both see the same machine.
void balance_find_fixed(Run* run) {
    enum { TIMES = 12 };
    Model* m = &run->model;
    Balance* b = run->balance;
    int N = MIN(run->config.capacity, run->config.batch_tokens);
    SliceCount own = {m->shape.heads, m->shape.hidden};
    WorkPlan whole, resized;
    LinearTime all = {INFINITY, INFINITY}, some = all;
    double fixed = 0, gathering = 0;
    memset(&whole, 0, sizeof whole);
    memset(&resized, 0, sizeof resized);
    resized.shed = b->shed, resized.imputation = b->imputation;
    resized.kept = kept_choose(b->kept, m, 0.75, own, 0);
    resized.active = resized.kept != NULL;
    double g = resized.active ? kept_left_out(b->kept) : 0;
    for (int i = 0; i < TIMES && g > 0; i++) {
        time_linears(&all, run, &whole, N);
        time_linears(&some, run, &resized, N);
    }
    if (g > 0 && all.matmuls > 0) fixed = (some.matmuls / all.matmuls - (1 - g)) / g, gathering = some.rest - all.rest;
    work_set(m, &whole);
    kept_choose(b->kept, m, 0, own, 0);
    zero_clear_grads(m);
    b->fixed = MAX(0, MIN(0.9, middle(run, fixed)));
    double groups = m->world->size / tp_size(m), tokens = run->config.batch_tokens / groups;  // of a step
    b->gathering = MAX(0, middle(run, gathering) * m->shape.L * tokens / N);
}
