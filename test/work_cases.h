// work_cases.h - a tensor-parallel group whose weights and gradients are known functions of their place in the whole
// model, and an oracle: by the words of run/work.h alone, which channels and columns a rank computes, and what its
// gradients must be after the step. All values are small integers, exact in bf16 and in any order of sums.
#pragma once
#include "run/run.h"
#include "test/rank_threads.h"
#include "test/tables.h"

enum { MOST_LAYERS = 3, MOST_CHANNELS = 512 };

typedef struct TestRank {
    Model m;
    void* work_memory;
    float *grads, *before;  // host copies after this step and the one before
    PrunedLayer kept[MOST_LAYERS];
    WorkPlan plan;  // its kept is not used: kept above, NULL unless leaves_out
    int leaves_out;
    // Of its last step, while it was at work.
    double flops[3];
    int heads[MOST_LAYERS], in_place[MOST_LAYERS][N_LINEARS];
} TestRank;

typedef struct Group {
    const Kernels* k;
    DType dt;
    int ranks, step;
    Shape whole;
    TpSplit split;
    RankThreads threads;
    TestRank rank[MOST_THREADS];
} Group;

// A linear and its kind, as numbers in the whole model.
typedef struct LinearRow {
    ParamId weights, bias;
    int runs, column_parallel, kind;  // kind 0 heads, 1 hidden units
} LinearRow;

static const LinearRow linear_rows[N_LINEARS] = {
    {QKVW, QKVB, 3, 1, 0}, {ATTPROJW, ATTPROJB, 1, 0, 0}, {FCW, FCB, 1, 1, 1}, {FCPROJW, FCPROJB, 1, 0, 1}};

static inline int span_of(const Group* g, int kind) { return kind ? 1 : g->whole.HS; }
static inline int channels_in_all(const Group* g, int kind) { return kind ? 4 * g->whole.C : g->whole.C; }
static inline int border(const Group* g, int kind, int rank) {
    return (kind ? g->split.hidden[rank] : g->split.head[rank]) * span_of(g, kind);
}

// ---- values

static inline int small_integer(uint64_t key, ParamId id, int l, size_t i, int most) {
    uint64_t place = (uint64_t)id << 56 | (uint64_t)l << 48 | i;
    return (int)(hash64(hash64(key) ^ place) % (uint64_t)(2 * most + 1)) - most;
}
static inline int weight_at(ParamId id, int l, size_t i) { return small_integer(1, id, l, i, 127); }
static inline int gradient_at(const Group* g, ParamId id, int l, size_t i) {
    return small_integer(100 + (uint64_t)g->step, id, l, i, 300);
}

// Element of the whole tensor: row `row` of channel ch's run, or its column in row `row`.
static inline size_t weight_place(const Group* g, LinearId id, int run, int ch, int other) {
    const LinearRow* row = &linear_rows[id];
    size_t n = (size_t)channels_in_all(g, row->kind), C = (size_t)g->whole.C;
    return row->column_parallel ? ((size_t)run * n + (size_t)ch) * C + (size_t)other : (size_t)other * n + (size_t)ch;
}

// ---- what a rank computes

typedef struct Expected {
    int n, stay;                    // channels; of them its own, which come first
    int channel[MOST_CHANNELS];     // in the whole model
    int n_in, in[MOST_CHANNELS];    // columns of the column-parallel linear
    int n_out, out[MOST_CHANNELS];  // of the row-parallel linear, counted in channel[]
    int given[MOST_CHANNELS];       // 1 for own channels that others compute, counted from the rank's first
} Expected;

static inline void expect_moves(const Group* g, const WorkPlan* plan, int rank, int kind, Expected* e) {
    int span = span_of(g, kind);
    for (int i = 0; i < plan->n_moves; i++) {
        const Move* move = &plan->moves[i];
        int first = (kind ? move->first_hidden : move->head) * span, n = (kind ? move->hidden : move->heads) * span;
        for (int j = first; j < first + n; j++) {
            if (move->from == rank) e->given[j] = 1;
            if (move->to == rank) e->channel[e->n++] = border(g, kind, move->from) + j;
        }
    }
}

static inline Expected expected_of(const Group* g, int rank, int l, int kind) {
    static Expected e;
    const TestRank* r = &g->rank[rank];
    const WorkPlan* plan = &r->plan;
    int active = plan->active, span = span_of(g, kind), own = border(g, kind, rank + 1) - border(g, kind, rank);
    int sheds_slices = active && r->leaves_out && plan->shed == SHED_SLICES,
        sheds_columns = active && r->leaves_out && plan->shed == SHED_COLUMNS;
    const PrunedLayer* kept = &r->kept[l];
    const IndexList* slices = kind ? &kept->units[MLP] : &kept->units[ATTENTION];
    memset(&e, 0, sizeof e);
    Expected moved;
    memset(&moved, 0, sizeof moved);
    if (active) expect_moves(g, plan, rank, kind, &moved);
    memcpy(e.given, moved.given, sizeof e.given);
    for (int j = 0, at = 0; j < own; j++) {
        if (moved.given[j]) continue;
        while (at < slices->n && slices->index[at] < j / span) at++;
        if (!sheds_slices || (at < slices->n && slices->index[at] == j / span))
            e.channel[e.n++] = border(g, kind, rank) + j;
    }
    e.stay = e.n;
    for (int j = 0; j < moved.n; j++) e.channel[e.n++] = moved.channel[j];
    int cuts_in = sheds_columns && moved.n == 0;
    e.n_in = cuts_in ? kept->columns[2 * kind].n : g->whole.C;
    for (int j = 0; j < e.n_in; j++) e.in[j] = cuts_in ? kept->columns[2 * kind].index[j] : j;
    const IndexList* out = &kept->columns[2 * kind + 1];
    for (int j = 0; j < (sheds_columns ? out->n : e.stay); j++) e.out[e.n_out++] = sheds_columns ? out->index[j] : j;
    for (int j = e.stay; j < e.n; j++) e.out[e.n_out++] = j;
    return e;
}

// ---- what its gradients must be

// Of own weights of a linear that nobody computed, in the place `at` of a tensor of this rank.
static inline float missing(const TestRank* r, size_t at, double mean) {
    Imputation imputation = r->plan.imputation;
    return imputation == IMPUTE_ZERO ? 0 : imputation == IMPUTE_SAME ? r->before[at] : (float)mean;
}

// Micro-batches of a step add 1 and 2 times the gradient.
enum { MICRO_BATCHES_SUM = 3 };

static inline void expect_columns_of(const Group* g, int rank, LinearId id, int l, const Expected* e, float* want) {
    const TestRank* r = &g->rank[rank];
    const LinearRow* row = &linear_rows[id];
    ParamTensor t = shape_param(&r->m.shape, row->weights, l);
    int first = border(g, row->kind, rank), own = t.cols;
    for (int i = 0; i < t.rows; i++) {
        float* line = want + t.offset + (size_t)i * (size_t)own;
        double sum = 0;
        int computed = 0;
        static char done[MOST_CHANNELS];
        memset(done, 0, sizeof done);
        for (int j = 0; j < own; j++)
            if (e->given[j])
                line[j] = MICRO_BATCHES_SUM * gradient_at(g, t.id, l, weight_place(g, id, 0, first + j, i)),
                done[j] = 1;
        for (int j = 0; j < e->n_out; j++) {
            if (e->out[j] >= e->stay) continue;
            int ch = e->channel[e->out[j]];
            line[ch - first] = MICRO_BATCHES_SUM * gradient_at(g, t.id, l, weight_place(g, id, 0, ch, i));
            sum += line[ch - first], computed++, done[ch - first] = 1;
        }
        for (int j = 0; j < own; j++)
            if (!done[j])
                line[j] = missing(r, t.offset + (size_t)i * (size_t)own + (size_t)j, computed ? sum / computed : 0);
    }
}

// One row of the column-parallel weights, all of whose columns somebody computed, or those of e->in, or none.
typedef enum RowFate { ROW_WHOLE, ROW_CUT, ROW_MISSING } RowFate;

static inline void expect_row(const Group* g, const TestRank* r, LinearId id, int l, int run, int ch, RowFate fate,
                              const Expected* e, float* want, size_t at) {
    int C = g->whole.C, n = fate == ROW_WHOLE ? C : fate == ROW_CUT ? e->n_in : 0;
    double sum = 0;
    for (int j = 0; j < n; j++)
        sum += MICRO_BATCHES_SUM *
               gradient_at(g, linear_rows[id].weights, l, weight_place(g, id, run, ch, fate == ROW_CUT ? e->in[j] : j));
    for (int j = 0; j < C; j++) want[at + (size_t)j] = missing(r, at + (size_t)j, n ? sum / n : 0);
    for (int j = 0; j < n; j++) {
        int c = fate == ROW_CUT ? e->in[j] : j;
        want[at + (size_t)c] =
            MICRO_BATCHES_SUM * (float)gradient_at(g, linear_rows[id].weights, l, weight_place(g, id, run, ch, c));
    }
}

static inline void expect_rows_of(const Group* g, int rank, LinearId id, int l, const Expected* e, float* want) {
    const TestRank* r = &g->rank[rank];
    const LinearRow* row = &linear_rows[id];
    ParamTensor t = shape_param(&r->m.shape, row->weights, l), b = shape_param(&r->m.shape, row->bias, l);
    int first = border(g, row->kind, rank), own = t.rows / row->runs;
    for (int run = 0; run < row->runs; run++)
        for (int j = 0; j < own; j++) {
            RowFate fate = e->given[j] ? ROW_WHOLE : ROW_MISSING;
            for (int i = 0; i < e->stay; i++)
                if (e->channel[i] == first + j) fate = ROW_CUT;
            size_t line = (size_t)(run * own + j);
            expect_row(g, r, id, l, run, first + j, fate, e, want, t.offset + line * (size_t)t.cols);
            size_t bias = (size_t)run * (size_t)channels_in_all(g, row->kind) + (size_t)(first + j);
            want[b.offset + line] = fate == ROW_MISSING ? missing(r, b.offset + line, 0)
                                                        : MICRO_BATCHES_SUM * (float)gradient_at(g, row->bias, l, bias);
        }
}

// The whole block of a rank's gradients; what belongs to no linear is 0.
static inline void expect_gradients(const Group* g, int rank, float* want) {
    const Shape* shape = &g->rank[rank].m.shape;
    memset(want, 0, shape_param_elems(shape) * sizeof *want);
    for (int l = 0; l < shape->L; l++)
        for (int id = 0; id < N_LINEARS; id++) {
            Expected e = expected_of(g, rank, l, linear_rows[id].kind);
            if (linear_rows[id].column_parallel) {
                expect_rows_of(g, rank, (LinearId)id, l, &e, want);
                continue;
            }
            expect_columns_of(g, rank, (LinearId)id, l, &e, want);
            ParamTensor b = shape_param(shape, linear_rows[id].bias, l);
            for (int j = 0; j < b.cols && rank == 0; j++)
                want[b.offset + (size_t)j] = MICRO_BATCHES_SUM * (float)gradient_at(g, b.id, l, (size_t)j);
        }
}
