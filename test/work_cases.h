// work_cases.h - a tensor-parallel group whose weights and gradients are known functions of their place in the whole
// model, and an oracle: by the words of run/work.h alone, which channels and columns a rank computes, and what its
// gradients must be after the step. All values are small integers, exact in bf16 and in any order of sums.
#pragma once
#include "run/run.h"
#include "test/rank_threads.h"
#include "test/tables.h"

enum { WORK_LAYERS = 3, MOST_CHANNELS = 512 };

typedef struct TestRank {
    Model m;
    void* work_memory;
    float *grads, *before;  // host copies after this step and the one before
    PrunedLayer kept[WORK_LAYERS];
    WorkPlan plan;  // its kept is not used: kept above, NULL unless leaves_out
    int leaves_out;
    // Of its last step, while it was at work.
    double flops[3];
    int heads[WORK_LAYERS], in_place[WORK_LAYERS][N_LINEARS];
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
    int column_parallel, kind;  // kind 0 key/value heads with their query heads, 1 hidden units
} LinearRow;

static const LinearRow linear_rows[N_LINEARS] = {
    {QKVW, QKVB, 1, 0}, {ATTPROJW, ATTPROJB, 0, 0}, {FCW, FCB, 1, 1}, {FCPROJW, FCPROJB, 0, 1}};

static inline int has_bias(const Group* g, LinearId id) {
    return shape_has(&g->whole, param_table[linear_rows[id].bias].needs);
}

// ---- units
//
// A unit has a number in the whole model: that of its first query head, or of the hidden unit. Ranks that share a
// key/value head have some of its query heads each.

static inline int query_heads(const Group* g) { return g->whole.NH / g->whole.NKV; }  // of a key/value head
static inline const int* borders_of(const Group* g, int kind) { return kind ? g->split.hidden : g->split.head; }
static inline int border(const Group* g, int kind, int rank) { return borders_of(g, kind)[rank]; }
static inline int numbers_of_unit(const Group* g, int kind, int rank) {
    return kind ? 1 : MIN(query_heads(g), border(g, 0, rank + 1) - border(g, 0, rank));
}
static inline int own_units_of(const Group* g, int kind, int rank) {
    return (border(g, kind, rank + 1) - border(g, kind, rank)) / numbers_of_unit(g, kind, rank);
}
// Channels: columns of the row-parallel linear.
static inline int span_of(const Group* g, int kind, int rank) {
    return numbers_of_unit(g, kind, rank) * (kind ? 1 : g->whole.HS);
}

// Row `row` of what `unit` has of a run of the column-parallel linear.
typedef struct RowOf {
    int run, unit, row;
} RowOf;

static inline int n_runs(const Group* g, int kind) { return kind ? 1 + (g->whole.arch != ARCH_GPT2) : 3; }
static inline int rows_in_run(const Group* g, int kind, int rank, int run) {
    return kind ? 1 : run == 0 ? span_of(g, 0, rank) : g->whole.HS;
}
static inline int rows_of_unit(const Group* g, int kind, int rank) {
    int rows = 0;
    for (int run = 0; run < n_runs(g, kind); run++) rows += rows_in_run(g, kind, rank, run);
    return rows;
}

// Where n units stand one after another in every run, as on this rank; unit counts them.
static inline RowOf row_of(const Group* g, int kind, int rank, int n, int row) {
    int run = 0, rows;
    for (; row >= n * (rows = rows_in_run(g, kind, rank, run)); run++) row -= n * rows;
    return (RowOf){run, row / rows, row % rows};
}

// The same row in the whole model; unit is a number there.
static inline int row_in_all(const Group* g, int kind, RowOf r) {
    const Shape* s = &g->whole;
    if (kind) return r.run * s->U + r.unit;
    if (r.run == 0) return r.unit * s->HS + r.row;
    return (s->NH + (r.run - 1) * s->NKV + r.unit / query_heads(g)) * s->HS + r.row;
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

// ---- what a rank computes

typedef struct Expected {
    int n, stay;                    // units; of them its own, which come first
    int span;                       // channels of a unit
    int unit[MOST_CHANNELS];        // numbers in the whole model
    int n_in, in[MOST_CHANNELS];    // columns of the column-parallel linear
    int n_out, out[MOST_CHANNELS];  // of the row-parallel linear: channels, counted as unit[] has them
    int given[MOST_CHANNELS];       // 1 for own units that others compute, counted from the rank's first
} Expected;

// In the whole model, the column of the row-parallel linear that is channel ch of unit[].
static inline int column_in_all(const Group* g, int kind, const Expected* e, int ch) {
    return e->unit[ch / e->span] * (kind ? 1 : g->whole.HS) + ch % e->span;
}

// Elements of whole tensors.
static inline size_t row_element(const Group* g, int kind, RowOf r, int column) {
    return (size_t)row_in_all(g, kind, r) * (size_t)g->whole.C + (size_t)column;
}
static inline size_t column_element(const Group* g, int kind, int row, int column) {
    int columns = kind ? g->whole.U : g->whole.NH * g->whole.HS;
    return (size_t)row * (size_t)columns + (size_t)column;
}

static inline void expect_moves(const Group* g, const WorkPlan* plan, int rank, int kind, Expected* e) {
    for (int i = 0; i < plan->n_moves; i++) {
        const Move* move = &plan->moves[i];
        int first = kind ? move->first_hidden : move->head, n = kind ? move->hidden : move->heads;
        for (int j = first; j < first + n; j++) {
            if (move->from == rank) e->given[j] = 1;
            if (move->to == rank)
                e->unit[e->n++] = border(g, kind, move->from) + j * numbers_of_unit(g, kind, move->from);
        }
    }
}

static inline Expected expected_of(const Group* g, int rank, int l, int kind) {
    static Expected e;
    const TestRank* r = &g->rank[rank];
    const WorkPlan* plan = &r->plan;
    int active = plan->active, span = span_of(g, kind, rank);
    int sheds_slices = active && r->leaves_out && plan->shed == SHED_SLICES,
        sheds_columns = active && r->leaves_out && plan->shed == SHED_COLUMNS;
    const PrunedLayer* kept = &r->kept[l];
    const IndexList* slices = kind ? &kept->units[MLP] : &kept->units[ATTENTION];
    memset(&e, 0, sizeof e);
    Expected moved;
    memset(&moved, 0, sizeof moved);
    if (active) expect_moves(g, plan, rank, kind, &moved);
    memcpy(e.given, moved.given, sizeof e.given);
    e.span = span;
    for (int j = 0, at = 0; j < own_units_of(g, kind, rank); j++) {
        if (moved.given[j]) continue;
        while (at < slices->n && slices->index[at] < j) at++;
        if (!sheds_slices || (at < slices->n && slices->index[at] == j))
            e.unit[e.n++] = border(g, kind, rank) + j * numbers_of_unit(g, kind, rank);
    }
    e.stay = e.n;
    for (int j = 0; j < moved.n; j++) e.unit[e.n++] = moved.unit[j];
    int cuts_in = sheds_columns && moved.n == 0;
    e.n_in = cuts_in ? kept->columns[2 * kind].n : g->whole.C;
    for (int j = 0; j < e.n_in; j++) e.in[j] = cuts_in ? kept->columns[2 * kind].index[j] : j;
    const IndexList* out = &kept->columns[2 * kind + 1];
    for (int j = 0; j < (sheds_columns ? out->n : e.stay * span); j++)
        e.out[e.n_out++] = sheds_columns ? out->index[j] : j;
    for (int j = e.stay * span; j < e.n * span; j++) e.out[e.n_out++] = j;
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

static inline float computed(const Group* g, ParamId id, int l, size_t at) {
    return MICRO_BATCHES_SUM * (float)gradient_at(g, id, l, at);
}

static inline void expect_columns_of(const Group* g, int rank, LinearId id, int l, const Expected* e, float* want) {
    const TestRank* r = &g->rank[rank];
    int kind = linear_rows[id].kind;
    ParamTensor t = shape_param(&r->m.shape, linear_rows[id].weights, l);
    int first = border(g, kind, rank) * (kind ? 1 : g->whole.HS);
    for (int i = 0; i < t.rows; i++) {
        size_t line = t.offset + (size_t)i * (size_t)t.cols;
        double sum = 0;
        int n = 0;
        static char done[MOST_CHANNELS];
        memset(done, 0, sizeof done);
        for (int j = 0; j < t.cols; j++)
            if (e->given[j / e->span])
                want[line + (size_t)j] = computed(g, t.id, l, column_element(g, kind, i, first + j)), done[j] = 1;
        for (int j = 0; j < e->n_out; j++) {
            if (e->out[j] >= e->stay * e->span) continue;
            int column = column_in_all(g, kind, e, e->out[j]), here = column - first;
            want[line + (size_t)here] = computed(g, t.id, l, column_element(g, kind, i, column));
            sum += (double)want[line + (size_t)here], n++, done[here] = 1;
        }
        for (int j = 0; j < t.cols; j++)
            if (!done[j]) want[line + (size_t)j] = missing(r, line + (size_t)j, n ? sum / n : 0);
    }
}

// One row of the column-parallel weights, all of whose columns somebody computed, or those of e->in, or none.
typedef enum RowFate { ROW_WHOLE, ROW_CUT, ROW_MISSING } RowFate;

static inline void expect_row(const Group* g, const TestRank* r, LinearId id, int l, RowOf row, RowFate fate,
                              const Expected* e, float* want, size_t at) {
    int C = g->whole.C, n = fate == ROW_WHOLE ? C : fate == ROW_CUT ? e->n_in : 0, kind = linear_rows[id].kind;
    ParamId weights = linear_rows[id].weights;
    double sum = 0;
    for (int j = 0; j < n; j++)
        sum += (double)computed(g, weights, l, row_element(g, kind, row, fate == ROW_CUT ? e->in[j] : j));
    for (int j = 0; j < C; j++) want[at + (size_t)j] = missing(r, at + (size_t)j, n ? sum / n : 0);
    for (int j = 0; j < n; j++) {
        int c = fate == ROW_CUT ? e->in[j] : j;
        want[at + (size_t)c] = computed(g, weights, l, row_element(g, kind, row, c));
    }
}

static inline void expect_rows_of(const Group* g, int rank, LinearId id, int l, const Expected* e, float* want) {
    const TestRank* r = &g->rank[rank];
    int kind = linear_rows[id].kind, own = own_units_of(g, kind, rank);
    ParamTensor t = shape_param(&r->m.shape, linear_rows[id].weights, l),
                b = shape_param(&r->m.shape, linear_rows[id].bias, l);
    for (int line = 0; line < t.rows; line++) {
        RowOf row = row_of(g, kind, rank, own, line);
        RowFate fate = e->given[row.unit] ? ROW_WHOLE : ROW_MISSING;
        row.unit = border(g, kind, rank) + row.unit * numbers_of_unit(g, kind, rank);
        for (int i = 0; i < e->stay; i++)
            if (e->unit[i] == row.unit) fate = ROW_CUT;
        expect_row(g, r, id, l, row, fate, e, want, t.offset + (size_t)line * (size_t)t.cols);
        if (b.elems == 0) continue;
        size_t at = b.offset + (size_t)line;
        want[at] = fate == ROW_MISSING ? missing(r, at, 0) : computed(g, b.id, l, (size_t)row_in_all(g, kind, row));
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
            for (size_t j = 0; j < b.elems && rank == 0; j++) want[b.offset + j] = computed(g, b.id, l, j);
        }
}
