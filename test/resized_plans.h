// resized_plans.h - for test_resized.c: a trainer as one rank of a tensor-parallel group, plans of what its ranks leave
// out or give away, drawn by seed, and what must become of the gradient of each weight, by the words of
// run/model/work.h alone.
//
// Included first, as test/trainer.h is.
#pragma once
#include "test/trainer.h"

enum { MOST_INDICES = 1024 };

static Trainer trainer;
static Run* const run = &trainer.run;
static Model* const m = &trainer.run.model;
static size_t elems;  // of this rank's part of the model

static int indices[LAYERS][N_LINEARS][MOST_INDICES];
static PrunedLayer kept[LAYERS];
static WorkPlan plan;

static inline void set_plan(int active) {
    WorkPlan now = plan;
    now.active = active;
    now.of_group = 1;  // perhaps another rank
    work_set(m, &now);
}

// ---- what is left out

// Units of a kind (0 key/value heads with their query heads, 1 hidden units) that this rank owns, gives away and takes;
// channels of a unit: columns of the row-parallel linear.
static inline int owned_units(int kind) { return kind == 0 ? m->shape.kv_heads : m->shape.hidden; }
static inline int span_of(int kind) { return kind == 0 ? m->shape.heads / m->shape.kv_heads * m->shape.HS : 1; }

static inline int moved_units(int kind, int taken) {
    int n = 0;
    for (int i = 0; i < plan.n_moves; i++)
        if ((taken ? plan.moves[i].to : plan.moves[i].from) == tp_rank(m))
            n += kind == 0 ? plan.moves[i].heads : plan.moves[i].hidden;
    return n;
}

static inline int staying_units(int kind) { return owned_units(kind) - moved_units(kind, 0); }

// About the fraction `part` of 0 .. of - 1, at least one of them.
static inline IndexList draw_list(int* index, int of, double part, uint64_t seed) {
    int n = MIN(of, MAX(1, (int)(part * of + 0.5)));
    if (of > MOST_INDICES) die("a list of %d", of);
    IndexList list = {0, index};
    for (int j = 0, left = n; j < of; j++)
        if (random_uniform(seed, (uint64_t)j) * (of - j) < left) index[list.n++] = j, left--;
    return list;
}

// Lists of this rank: of each another fraction in every layer, or `part` of all. Data ranks draw the same.
static inline void leave_out(double part, uint64_t seed) {
    for (int l = 0; l < m->shape.L; l++)
        for (int i = 0; i < N_LINEARS; i++) {
            int of = i % 2 == 0 ? m->shape.C : staying_units(i / 2) * span_of(i / 2);
            uint64_t key = hash64(seed ^ (uint64_t)(tp_rank(m) * 1000 + l * N_LINEARS + i));
            double fraction = part > 0 ? part : 0.1 + 0.8 * random_uniform(key, MOST_INDICES);
            kept[l].columns[i] = draw_list(indices[l][i], of, fraction, key);
        }
    plan.kept = kept;
    plan.active = 1;
}

static inline int holds(const IndexList* list, int j) {
    for (int i = 0; i < list->n; i++)
        if (list->index[i] == j) return 1;
    return 0;
}

// What becomes of the gradient of an element of a linear's weights. Idle: it is computed, and 0, because nothing reads
// the channel behind it.
typedef enum Fate { COMPUTED, LEFT_OUT, IDLE } Fate;

static inline Fate fate_of_column(const PrunedLayer* lists, LinearId id, int channel) {
    return holds(&lists->columns[id], channel) ? COMPUTED : LEFT_OUT;
}

// A row of the column-parallel linear: row `row` of what `unit` has of run `run`.
typedef struct RowOf {
    int run, unit, row;
} RowOf;

static inline RowOf row_of(int kind, int row) {
    const int rows[2][3] = {{span_of(0), m->shape.HS, m->shape.HS}, {1, 1, 0}};
    int run = 0, n = owned_units(kind);
    for (; row >= n * rows[kind][run]; run++) row -= n * rows[kind][run];
    return (RowOf){run, row / rows[kind][run], row % rows[kind][run]};
}

// Whether a channel of the unit is made of it: a query head of its queries, all heads of the keys, and channel c of all
// of them of value c.
static inline int is_read_by(int kind, RowOf r, int channel) {
    int HS = m->shape.HS;
    if (kind == 1 || r.run == 1) return 1;
    return r.run == 0 ? channel / HS == r.row / HS : channel % HS == r.row;
}

static inline Fate fate_of_row(const PrunedLayer* lists, LinearId id, RowOf r, int column) {
    int kind = id / 2, span = span_of(kind);
    LinearId next = (LinearId)(id + 1);
    if (!holds(&lists->columns[id], column)) return LEFT_OUT;
    for (int c = 0; c < span; c++)
        if (is_read_by(kind, r, c) && fate_of_column(lists, next, r.unit * span + c) == COMPUTED) return COMPUTED;
    return IDLE;
}

// By the words of run/model/work.h. Slices that are given away are computed by others, and whoever takes any leaves
// nothing out.
static inline Fate fate_of(LinearId id, int l, int row, int column) {
    int kind = id / 2, is_row_parallel = id % 2;
    RowOf r = {0, 0, 0};
    if (is_row_parallel) r.unit = column / span_of(kind);
    else r = row_of(kind, row);
    if (!plan.kept || moved_units(kind, 1) > 0 || r.unit >= staying_units(kind)) return COMPUTED;
    return is_row_parallel ? fate_of_column(&kept[l], id, column) : fate_of_row(&kept[l], id, r, column);
}

static const ParamId matrices[N_LINEARS] = {QKVW, ATTPROJW, FCW, FCPROJW};

// Calls visit for all elements of this rank's linears of a fate.
static inline void visit_elements(Fate fate, void (*visit)(float* x, size_t at), float* x) {
    for (int l = 0; l < m->shape.L; l++)
        for (int id = 0; id < N_LINEARS; id++) {
            ParamTensor t = shape_param(&m->shape, matrices[id], l);
            for (int r = 0; r < t.rows; r++)
                for (int c = 0; c < t.cols; c++)
                    if (fate_of((LinearId)id, l, r, c) == fate)
                        visit(x, t.offset + (size_t)r * (size_t)t.cols + (size_t)c);
        }
}

static inline void set_to_zero(float* x, size_t at) { x[at] = 0; }

static inline float* weights(void) { return (float*)m->array[MODEL_WEIGHTS]; }

// ---- what moves

// Units of the ranks of the group.
static inline int units_of_rank(int kind, int t) {
    const int* border = kind == 0 ? m->ranks->split.head : m->ranks->split.hidden;
    return (border[t + 1] - border[t]) / (kind == 0 ? m->whole.NH / m->whole.NKV : 1);
}

static inline int heads_stay(void) { return split_shares_kv(&m->whole, &m->ranks->split); }

// Ranks before `givers` give some or all of their slices to any of the others, as far as these have room.
static inline void move_slices(int givers, uint64_t seed) {
    int R = tp_size(m), room[2][MOST_TP];
    for (int t = 0; t < R; t++) {
        room[0][t] = heads_stay() ? 0 : run->model.ranks->work_needs.most_heads - units_of_rank(0, t);
        room[1][t] = run->model.ranks->work_needs.most_hidden - units_of_rank(1, t);
    }
    for (int from = 0; from < givers; from++) {
        int own[2] = {heads_stay() ? owned_units(0) : units_of_rank(0, from), units_of_rank(1, from)};
        int at[2] = {own[0], own[1]};
        for (int to = R; to-- > givers;) {  // the last slices go to the last helper
            Move move = {.from = from, .to = to};
            int n[2];
            for (int kind = 0; kind < 2; kind++) {
                double part = 1.3 * random_uniform(seed, (uint64_t)((from * R + to) * 2 + kind));
                n[kind] = MIN(MIN(at[kind], room[kind][to]), (int)ceil(part * own[kind]));
                at[kind] -= n[kind], room[kind][to] -= n[kind];
            }
            move.head = at[0], move.heads = n[0], move.first_hidden = at[1], move.hidden = n[1];
            if (n[0] + n[1] > 0) plan.moves[plan.n_moves++] = move;
        }
    }
    // In order of from, then to.
    for (int i = 1; i < plan.n_moves; i++)
        for (int j = i;
             j > 0 && plan.moves[j - 1].from == plan.moves[j].from && plan.moves[j - 1].to > plan.moves[j].to; j--) {
            Move moved = plan.moves[j];
            plan.moves[j] = plan.moves[j - 1], plan.moves[j - 1] = moved;
        }
    plan.active = plan.n_moves > 0;
}

static inline void no_plan(void) {
    memset(&plan, 0, sizeof plan);
    set_plan(0);
}
