// reshard.c - fills the compact weights of a step from those that this rank and others own, and brings gradients back:
// see work.h. Of a layer all messages go at once, one for each move: its heads, then its hidden units, each as rows of
// the column-parallel weights, biases, columns of the row-parallel weights. With w bytes of a weight a step sends
// unit_elems (w + 4) bytes for a unit, weights one way and fp32 gradients the other: in a GPT-2 (2 C + 1) (w + 4) for a
// hidden unit, (4 C + 3) HS (w + 4) for a head.
#include "run/reshard.h"

#include "run/mover.h"
#include "run/owned.h"

// ---- slabs

enum { ALIGN_ELEMS = 64 };

static size_t aligned(size_t elems) { return ROUND_UP(elems, (size_t)ALIGN_ELEMS); }
static int rows_of(const Work* work, SublayerId id, int units) { return runs_sum(unit_rows(&work->shape, id, units)); }
static size_t row_elems(const Work* work, SublayerId id, int units) {
    return (size_t)rows_of(work, id, units) * (size_t)work->C;
}
static int has_bias(const Work* work, SublayerId id) {
    return shape_has(&work->shape, param_table[sublayers[id].bias[0]].needs);
}
static size_t bias_elems(const Work* work, SublayerId id, int units) {
    return has_bias(work, id) ? (size_t)rows_of(work, id, units) : 0;
}
static size_t column_elems(const Work* work, SublayerId id, int units) {
    return (size_t)work->C * (size_t)(units * work->span[id]);
}

size_t slab_elems(const Work* work, SublayerId id, int units) {
    return aligned(row_elems(work, id, units)) + aligned(bias_elems(work, id, units)) +
           aligned(column_elems(work, id, units));
}

size_t packet_elems(const Work* work, SublayerId id, int units) {
    return row_elems(work, id, units) + bias_elems(work, id, units) + column_elems(work, id, units);
}

// Of layer l in a part that has slabs with room for units[id], elements of `elem` bytes.
static Slab layer_slab(const Work* work, WorkPart part, const int units[], size_t elem, int l, SublayerId id) {
    size_t attention = slab_elems(work, ATTENTION, units[ATTENTION]), mlp = slab_elems(work, MLP, units[MLP]);
    size_t at = (size_t)l * (attention + mlp) + (id == MLP ? attention : 0);
    Slab slab = {.rows = work->part[part] + at * elem, .total = units[id], .stride = units[id] * work->span[id]};
    slab.bias = slab.rows + aligned(row_elems(work, id, units[id])) * elem;
    slab.columns = slab.bias + aligned(bias_elems(work, id, units[id])) * elem;
    return slab;
}

static Slab compact(const Work* work, WorkPart part, size_t elem, int l, SublayerId id) {
    const SublayerWork* w = slice_work(work, l, id);
    Slab slab = layer_slab(work, part, work->most, elem, l, id);
    slab.total = w->stay + w->taken;
    slab.stride = w->columns + w->taken * work->span[id];
    return slab;
}

Slab slices_weights(const Work* work, int l, SublayerId id) {
    return compact(work, PART_WEIGHTS, dtype_bytes(work->dt), l, id);
}

Slab slices_grads(const Work* work, int l, SublayerId id) { return compact(work, PART_GRADS, sizeof(float), l, id); }

static Slab slab_before(const Work* work, int l, SublayerId id) {
    return layer_slab(work, PART_BEFORE, work->own, sizeof(float), l, id);
}

static Slab owned(const Model* m, int l, SublayerId id, int gradients) {
    const Sublayer* sub = &sublayers[id];
    ParamTensor rows = shape_param(&m->shape, sub->weight[0], l), bias = shape_param(&m->shape, sub->bias[0], l),
                columns = shape_param(&m->shape, sub->weight[1], l);
    Slab slab = {.total = m->work->own[id], .stride = columns.cols};
    slab.rows = gradients ? (char*)zero_grads(m, &rows) : zero_weights(m, &rows);
    slab.bias = gradients ? (char*)zero_grads(m, &bias) : zero_weights(m, &bias);
    slab.columns = gradients ? (char*)zero_grads(m, &columns) : zero_weights(m, &columns);
    return slab;
}

static Slab packet_slab(const Work* work, SublayerId id, int units, char* memory, size_t elem) {
    Slab slab = {.rows = memory, .total = units, .stride = units * work->span[id]};
    slab.bias = slab.rows + row_elems(work, id, units) * elem;
    slab.columns = slab.bias + bias_elems(work, id, units) * elem;
    return slab;
}

// ---- copies between slabs

// The slab from its unit `first` on, whose first channel stands at `column` of the columns.
static Slab from_unit(Slab slab, int first, int column, DType dt) {
    slab.first = first;
    slab.columns += (size_t)column * dtype_bytes(dt);
    return slab;
}

static void copy_matrix(const Model* m, char* to, int ldo, const char* from, int ldx, int rows, int columns, DType dt) {
    if (rows > 0 && columns > 0) m->k->gather_rows(to, from, NULL, rows, columns, ldo, ldx, dt, m->s);
}

// Rows of unit slab->first in a run: with elements a row the weights', with 1 the bias'.
static char* run_of(const Model* m, SublayerId id, char* base, const Slab* slab, int run, int elems, DType dt) {
    Runs unit = unit_rows(&m->shape, id, 1);
    int row = slab->first * unit.size[run];
    for (int i = 0; i < run; i++) row += slab->total * unit.size[i];
    return base + (size_t)row * (size_t)elems * dtype_bytes(dt);
}

// The first n units.
static void copy_slab(const Model* m, SublayerId id, const Slab* to, const Slab* from, int n, DType dt) {
    int C = m->shape.C;
    Runs unit = unit_rows(&m->shape, id, n);
    for (int run = 0; run < unit.n; run++) {
        int rows = unit.size[run];
        copy_matrix(m, run_of(m, id, to->rows, to, run, C, dt), C, run_of(m, id, from->rows, from, run, C, dt), C, rows,
                    C, dt);
        if (has_bias(m->work, id))
            copy_matrix(m, run_of(m, id, to->bias, to, run, 1, dt), rows, run_of(m, id, from->bias, from, run, 1, dt),
                        rows, MIN(rows, 1), rows, dt);
    }
    copy_matrix(m, to->columns, to->stride, from->columns, from->stride, C, n * m->work->span[id], dt);
}

// ---- this rank's own

// Weights of what this rank keeps of its own: from the slab that it owns to the compact one.
static void take_own(const Model* m, SublayerId id, const SublayerWork* w, const Slab* to, const Slab* own) {
    const Kernels* k = m->k;
    DType dt = m->dt;
    int C = m->shape.C;
    Runs unit = unit_rows(&m->shape, id, 1);
    for (int run = 0; run < unit.n && w->stay > 0; run++) {
        char *here = run_of(m, id, to->rows, to, run, w->K, dt), *there = run_of(m, id, own->rows, own, run, C, dt);
        int rows = unit.size[run];
        if (w->kept_in) k->gather_columns(here, there, w->kept_in, w->stay * rows, w->K, C, dt, m->s);
        else k->gather_rows(here, there, w->rows, w->stay, rows * C, rows * C, rows * C, dt, m->s);
        if (has_bias(m->work, id))
            k->gather_rows(run_of(m, id, to->bias, to, run, 1, dt), run_of(m, id, own->bias, own, run, 1, dt), w->rows,
                           w->stay, rows, rows, rows, dt, m->s);
    }
    if (!w->kept_out) {
        copy_matrix(m, to->columns, to->stride, own->columns, own->stride, C, w->columns, dt);
        return;
    }
    char* tight = w->taken > 0 ? m->work->part[PART_SCRATCH] : to->columns;
    if (w->columns > 0) k->gather_columns(tight, own->columns, w->kept_out, C, w->columns, own->stride, dt, m->s);
    if (tight != to->columns) copy_matrix(m, to->columns, to->stride, tight, w->columns, C, w->columns, dt);
}

// n units of `elems` elements each.
static void put_units(const Model* m, char* to, const char* from, const int* units, int n, int elems) {
    if (units) m->k->scatter_rows(to, from, units, n, elems, elems, elems, DT_F32, m->s);
    else copy_matrix(m, to, elems, from, elems, n, elems, DT_F32);
}

// Gradients the other way. What was not computed of rows that were is filled.
static void put_own(const Model* m, SublayerId id, const SublayerWork* w, const Slab* from, const Slab* own) {
    static const ColumnFill fills[] = {
        [IMPUTE_ZERO] = FILL_ZERO, [IMPUTE_AVERAGE] = FILL_MEAN, [IMPUTE_SAME] = FILL_KEEP};
    const Kernels* k = m->k;
    ColumnFill fill = fills[m->work->plan.imputation];
    int C = m->shape.C;
    Runs unit = unit_rows(&m->shape, id, 1);
    for (int run = 0; run < unit.n && w->stay > 0; run++) {
        char* here = run_of(m, id, from->rows, from, run, w->K, DT_F32);
        char* there = run_of(m, id, own->rows, own, run, C, DT_F32);
        int rows = unit.size[run];
        if (w->kept_in) k->scatter_columns(there, here, w->place_in, fill, w->stay * rows, C, w->K, DT_F32, m->s);
        else put_units(m, there, here, w->rows, w->stay, rows * C);
        if (has_bias(m->work, id))
            put_units(m, run_of(m, id, own->bias, own, run, 1, DT_F32), run_of(m, id, from->bias, from, run, 1, DT_F32),
                      w->rows, w->stay, rows);
    }
    if (!w->kept_out) {
        copy_matrix(m, own->columns, own->stride, from->columns, from->stride, C, w->columns, DT_F32);
        return;
    }
    char* tight = w->taken > 0 ? m->work->part[PART_SCRATCH] : from->columns;
    if (tight != from->columns) copy_matrix(m, tight, w->columns, from->columns, from->stride, C, w->columns, DT_F32);
    if (w->columns > 0)
        k->scatter_columns(own->columns, tight, w->place_out, fill, C, own->stride, w->columns, DT_F32, m->s);
}

// ---- what goes from rank to rank

static int units_of(const Move* move, SublayerId id) { return id == ATTENTION ? move->heads : move->hidden; }

static int is_mine(const Model* m, const Move* move, int taken) {
    return (taken ? move->to : move->from) == tp_rank(m);
}

// The messages of a layer for the slices that this rank takes, or gives; they stand one after another in their part.
static int list_messages(const Model* m, int taken, DType dt, Transfer messages[]) {
    const Work* work = m->work;
    char* at = work->part[taken ? PART_TAKEN : PART_GIVEN];
    int n = 0;
    for (int i = 0; i < work->plan.n_moves; i++) {
        const Move* move = &work->plan.moves[i];
        size_t elems = packet_elems(work, ATTENTION, move->heads) + packet_elems(work, MLP, move->hidden);
        if (!is_mine(m, move, taken) || elems == 0) continue;
        messages[n++] = (Transfer){taken ? move->from : move->to, at, elems * dtype_bytes(dt)};
        at += elems * dtype_bytes(dt);
    }
    return n;
}

// Copies them, weights or gradients, between messages and where this rank has them: in what it owns, or in the compact
// slabs, where they follow its own.
static void copy_messages(const Model* m, int l, int taken, int gradients, int pack) {
    const Work* work = m->work;
    DType dt = gradients ? DT_F32 : m->dt;
    char* at = work->part[taken ? PART_TAKEN : PART_GIVEN];
    int before[N_SUBLAYERS] = {0};
    for (int i = 0; i < work->plan.n_moves; i++) {
        const Move* move = &work->plan.moves[i];
        for (int sub = 0; sub < N_SUBLAYERS && is_mine(m, move, taken); sub++) {
            SublayerId id = (SublayerId)sub;
            const SublayerWork* w = slice_work(work, l, id);
            int n = units_of(move, id), first = id == ATTENTION ? move->head : move->first_hidden;
            Slab packed = packet_slab(work, id, n, at, dtype_bytes(dt)), here;
            if (n == 0) continue;
            if (taken) {
                here = gradients ? slices_grads(work, l, id) : slices_weights(work, l, id);
                here = from_unit(here, w->stay + before[id], w->columns + before[id] * work->span[id], dt);
            } else here = from_unit(owned(m, l, id, gradients), first, first * work->span[id], dt);
            copy_slab(m, id, pack ? &packed : &here, pack ? &here : &packed, n, dt);
            before[id] += n;
            at += packet_elems(work, id, n) * dtype_bytes(dt);
        }
    }
}

// Segments of computing lie between communications, and all ranks of a group have the same number of them: those
// without a message of their own too.
static void stand_aside(const Model* m) {
    if (m->work->plan.n_moves > 0) timer_enter(m->timer, timer_enter(m->timer, TIME_WAIT, m->s), m->s);
}

// Weights go from those who give to those who take, gradients the other way.
static void communication(const Model* m, int l, int gradients) {
    Transfer sends[2 * MOST_TP], receives[2 * MOST_TP];
    DType dt = gradients ? DT_F32 : m->dt;
    int sends_taken = gradients, n_sends = list_messages(m, sends_taken, dt, sends),
        n_receives = list_messages(m, !sends_taken, dt, receives);
    if (n_sends + n_receives == 0) {
        stand_aside(m);
        return;
    }
    copy_messages(m, l, sends_taken, gradients, 1);
    CommPurpose before = m->tp->purpose;
    m->tp->purpose = COMM_SLICES;
    comm_send_receive(m->tp, sends, n_sends, receives, n_receives, m->s);
    m->tp->purpose = before;
    copy_messages(m, l, !sends_taken, gradients, 0);
}

// ---- a step

void reshard_slice_weights(Model* m) {
    const Work* work = m->work;
    for (int l = 0; l < work->L; l++) {
        for (int kind = 0; kind < N_SUBLAYERS; kind++) {
            const SublayerWork* w = slice_work(work, l, (SublayerId)kind);
            Slab own = owned(m, l, (SublayerId)kind, 0), here = slices_weights(work, l, (SublayerId)kind);
            if (w->differs) take_own(m, (SublayerId)kind, w, &here, &own);
        }
        communication(m, l, 0);
    }
    m->k->clear(work->part[PART_GRADS], work->bytes[PART_GRADS], m->s);
}

// put_own fills also the gradients of slices that others compute; what these send back overwrites it.
void reshard_slice_gradients(Model* m) {
    const Work* work = m->work;
    for (int l = 0; l < work->L; l++) {
        for (int kind = 0; kind < N_SUBLAYERS; kind++) {
            const SublayerWork* w = slice_work(work, l, (SublayerId)kind);
            if (!w->differs) continue;
            Slab own = owned(m, l, (SublayerId)kind, 1), here = slices_grads(work, l, (SublayerId)kind);
            if (work->plan.imputation == IMPUTE_SAME && (w->kept_in || w->kept_out)) {
                Slab before = slab_before(work, l, (SublayerId)kind);
                copy_slab(m, (SublayerId)kind, &own, &before, work->own[kind], DT_F32);
            }
            put_own(m, (SublayerId)kind, w, &here, &own);
        }
        communication(m, l, 1);
    }
}

void slices_remember(Model* m) {
    const Work* work = m->work;
    for (int l = 0; l < work->L; l++)
        for (int kind = 0; kind < N_SUBLAYERS; kind++) {
            Slab own = owned(m, l, (SublayerId)kind, 1), before = slab_before(work, l, (SublayerId)kind);
            copy_slab(m, (SublayerId)kind, &before, &own, work->own[kind], DT_F32);
        }
}

// ---- another division, for good: what changes hands moves, once (run/mover.h)

static void* take(const Model* m, size_t bytes) {
    void* p = m->k->alloc(bytes);
    if (!p)
        die("no memory for another division of the model, %zu MiB; try --moves step or a smaller --capacity",
            bytes >> 20);
    return p;
}

static void take_arrays(Model* next) {
    size_t bytes[N_ZERO_PARTS];
    zero_sizes(next, 1, bytes);
    for (int i = 0; i < N_ZERO_PARTS; i++) next->zero.part[i] = bytes[i] ? take(next, bytes[i]) : NULL;
    zero_open(next);
}

static void give_back(Model* m) {
    m->k->synchronize(m->s);
    for (int i = 0; i < N_ZERO_PARTS; i++) m->k->free_memory(m->zero.part[i]);
    zero_close(&m->zero);
}

// What ranks own of a kind of state, into arrays of the other division.
static void carry(const Model* m, const Model* next, StateKind kind) {
    Arena arena = {0};
    Mover mover;
    Holdings from = owned_holdings(m, kind, &arena), to = owned_holdings(next, kind, &arena);
    ZeroPart part = kind == STATE_WEIGHTS ? ZERO_WEIGHTS : zero_part_of(kind);
    DType dt = kind == STATE_WEIGHTS ? m->dt : DT_F32;
    mover_open(&mover, m, &from, &to, &arena);
    char* scratch = (char*)take(m, mover_scratch(&mover) * dtype_bytes(dt) + 1);
    mover_run(&mover, m->world, &m->whole, (char*)next->zero.part[part], (const char*)m->zero.part[part], scratch, dt,
              m->k, m->s);
    m->k->synchronize(m->s);
    m->k->free_memory(scratch);
    arena_free(&arena);
}

void run_reshard(Run* run, const TpSplit* split) {
    Model* m = &run->model;
    Model next = *m;
    if (m->zero.stage != 1) die("a new division of the model needs ZeRO stage 1, found %d", m->zero.stage);
    zero_settle(m);
    next.split = *split;
    next.shape = split_shape(&m->whole, split, tp_rank(m));
    next.shape.shards = m->shape.shards;
    take_arrays(&next);
    carry(m, &next, STATE_WEIGHTS);
    if (m->zero.part[ZERO_MASTER]) carry(m, &next, STATE_MASTER);
    carry(m, &next, STATE_M);
    carry(m, &next, STATE_V);
    give_back(m);
    *m = next;
    zero_gather(m);
    zero_settle(m);
}
