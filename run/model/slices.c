// slices.c - fills the compact weights of a step from those that this rank and others own, and brings gradients back:
// see work.h. With w bytes of a weight a step sends unit_elems (w + 4) bytes for a unit, weights one way and fp32
// gradients the other: in a GPT-2 (2 C + 1) (w + 4) for a hidden unit, (4 C + 3) HS (w + 4) for a head.
#include "run/model/slices.h"

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

// Of layer l in a part that has slabs with room for units[id], elements of `elem` bytes.
static Slab layer_slab(const Work* work, WorkPart part, const int units[], size_t elem, int l, SublayerId id) {
    size_t attention = slab_elems(work, ATTENTION, units[ATTENTION]), mlp = slab_elems(work, MLP, units[MLP]);
    size_t at = (size_t)l * (attention + mlp) + (id == MLP ? attention : 0);
    Slab slab = {.rows = work->part[part] + at * elem, .total = units[id], .stride = units[id] * work->span[id]};
    slab.bias = slab.rows + aligned(row_elems(work, id, units[id])) * elem;
    slab.columns = slab.bias + aligned(bias_elems(work, id, units[id])) * elem;
    return slab;
}

static Slab compact_slab(const Work* work, WorkPart part, size_t elem, int l, SublayerId id) {
    const SublayerWork* w = slice_work(work, l, id);
    Slab slab = layer_slab(work, part, work->most, elem, l, id);
    slab.total = w->stay + w->taken;
    slab.stride = w->columns + w->taken * work->span[id];
    return slab;
}

Slab slices_weights(const Work* work, int l, SublayerId id) {
    return compact_slab(work, PART_WEIGHTS, dtype_bytes(work->dt), l, id);
}

Slab slices_grads(const Work* work, int l, SublayerId id) {
    return compact_slab(work, PART_GRADS, sizeof(float), l, id);
}

static Slab slab_before(const Work* work, int l, SublayerId id) {
    return layer_slab(work, PART_BEFORE, work->own, sizeof(float), l, id);
}

static Slab owned(const Model* m, int l, SublayerId id, int gradients) {
    const Sublayer* sub = &sublayers[id];
    ParamTensor rows = shape_param(&m->shape, sub->weight[0], l), bias = shape_param(&m->shape, sub->bias[0], l),
                columns = shape_param(&m->shape, sub->weight[1], l);
    Slab slab = {.total = m->ranks->work->own[id], .stride = columns.cols};
    slab.rows = gradients ? (char*)tensor_grads(m, &rows) : tensor_weights(m, &rows);
    slab.bias = gradients ? (char*)tensor_grads(m, &bias) : tensor_weights(m, &bias);
    slab.columns = gradients ? (char*)tensor_grads(m, &columns) : tensor_weights(m, &columns);
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
    if (rows > 0 && columns > 0) m->k->ranks->gather_rows(to, from, NULL, rows, columns, ldo, ldx, dt, m->s);
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
        if (has_bias(m->ranks->work, id))
            copy_matrix(m, run_of(m, id, to->bias, to, run, 1, dt), rows, run_of(m, id, from->bias, from, run, 1, dt),
                        rows, MIN(rows, 1), rows, dt);
    }
    copy_matrix(m, to->columns, to->stride, from->columns, from->stride, C, n * m->ranks->work->span[id], dt);
}

// ---- this rank's own, to the compact slab and back

// Units of `elems` elements each between the compact slab and those of `units` of the owned one; NULL: the first n.
static void exchange_units(const Model* m, int back, char* here, char* own, const int* units, int n, int elems,
                           DType dt) {
    if (!back) m->k->ranks->gather_rows(here, own, units, n, elems, elems, elems, dt, m->s);
    else if (units) m->k->ranks->scatter_rows(own, here, units, n, elems, elems, elems, dt, m->s);
    else copy_matrix(m, own, elems, here, elems, n, elems, dt);
}

// Weights of what this rank keeps of its own; or gradients back, and what was not computed of rows that were is filled.
static void exchange_own(const Model* m, SublayerId id, const SublayerWork* w, int l, int back) {
    static const ColumnFill fills[] = {
        [IMPUTE_ZERO] = FILL_ZERO, [IMPUTE_AVERAGE] = FILL_MEAN, [IMPUTE_SAME] = FILL_KEEP};
    const Kernels* k = m->k;
    ColumnFill fill = fills[m->ranks->work->plan.imputation];
    DType dt = back ? DT_F32 : m->dt;
    Slab own = owned(m, l, id, back),
         here = back ? slices_grads(m->ranks->work, l, id) : slices_weights(m->ranks->work, l, id);
    int C = m->shape.C;
    Runs unit = unit_rows(&m->shape, id, 1);
    for (int run = 0; run < unit.n && w->stay > 0; run++) {
        char *to = run_of(m, id, here.rows, &here, run, w->K, dt), *from = run_of(m, id, own.rows, &own, run, C, dt);
        int rows = unit.size[run];
        if (!w->kept_in) exchange_units(m, back, to, from, w->rows, w->stay, rows * C, dt);
        else if (back) k->ranks->scatter_columns(from, to, w->place_in, fill, w->stay * rows, C, w->K, dt, m->s);
        else k->ranks->gather_columns(to, from, w->kept_in, w->stay * rows, w->K, C, dt, m->s);
        if (has_bias(m->ranks->work, id))
            exchange_units(m, back, run_of(m, id, here.bias, &here, run, 1, dt),
                           run_of(m, id, own.bias, &own, run, 1, dt), w->rows, w->stay, rows, dt);
    }
    // Columns that are kept lie tight before they have their place beside those of other ranks.
    char* tight = !w->kept_out ? own.columns : w->taken > 0 ? m->ranks->work->part[PART_SCRATCH] : here.columns;
    int stride = w->kept_out ? w->columns : own.stride;
    if (!back && w->kept_out && w->columns > 0)
        k->ranks->gather_columns(tight, own.columns, w->kept_out, C, w->columns, own.stride, dt, m->s);
    if (tight != here.columns && back) copy_matrix(m, tight, stride, here.columns, here.stride, C, w->columns, dt);
    if (tight != here.columns && !back) copy_matrix(m, here.columns, here.stride, tight, stride, C, w->columns, dt);
    if (back && w->kept_out && w->columns > 0)
        k->ranks->scatter_columns(own.columns, tight, w->place_out, fill, C, own.stride, w->columns, dt, m->s);
}

// ---- what goes from rank to rank: two lists of who has the units that move, and the mover between them

static int units_of(const Move* move, SublayerId id) { return id == ATTENTION ? move->heads : move->hidden; }

// The units of a move in a tensor of the whole model: what a rank would have that owned these alone.
static int boxes_of_move(Box boxes[MOST_RUNS], const Model* m, const Move* move, ParamId tensor) {
    int t = move->from, queries = m->whole.NH / m->whole.NKV;
    TpSplit only = m->ranks->split;
    only.head[t] += move->head * queries, only.hidden[t] += move->first_hidden;
    only.head[t + 1] = only.head[t] + move->heads * queries, only.hidden[t + 1] = only.hidden[t] + move->hidden;
    return split_boxes(boxes, &m->whole, &only, t, tensor);
}

// The array of this rank that they leave, or come to; of weights or of gradients.
static char* array_of(const Model* m, int taken, int gradients) {
    if (taken) return m->ranks->work->part[gradients ? PART_GRADS : PART_WEIGHTS];
    return (char*)m->array[gradients ? MODEL_GRADS : MODEL_WEIGHTS];
}

// Of a layer in it, seen from the first unit of a move: as owned; or compact, behind what stays and `before` others.
static Slab slab_of_move(const Model* m, const Move* move, int l, SublayerId id, int taken, int gradients, int before) {
    const SublayerWork* w = slice_work(m->ranks->work, l, id);
    int first = id == ATTENTION ? move->head : move->first_hidden, span = m->ranks->work->span[id];
    DType dt = gradients ? DT_F32 : m->dt;
    if (!taken) return from_unit(owned(m, l, id, gradients), first, first * span, dt);
    Slab slab = gradients ? slices_grads(m->ranks->work, l, id) : slices_weights(m->ranks->work, l, id);
    return from_unit(slab, w->stay + before, w->columns + before * span, dt);
}

// One holding for each run of the tensor. Where the units lie in memory only their rank has to know.
static int add_units(Holding* list, const Model* m, const Move* move, const ParamTensor* t, SublayerId id, int taken,
                     int gradients, int before) {
    const Sublayer* sub = &sublayers[id];
    Box boxes[MOST_RUNS];
    int n = boxes_of_move(boxes, m, move, t->id), is_columns = t->id == sub->weight[1];
    DType dt = gradients ? DT_F32 : m->dt;
    for (int i = 0; i < n; i++) {
        list[i] = (Holding){taken ? move->to : move->from, boxes[i], 0, boxes[i].cols};
        if (list[i].rank != tp_rank(m)) continue;
        Slab slab = slab_of_move(m, move, t->layer, id, taken, gradients, before);
        const char* at = is_columns                ? slab.columns
                         : t->id == sub->weight[0] ? run_of(m, id, slab.rows, &slab, i, m->shape.C, dt)
                                                   : run_of(m, id, slab.bias, &slab, i, 1, dt);
        list[i].at = (size_t)(at - array_of(m, taken, gradients)) / dtype_bytes(dt);
        if (is_columns) list[i].stride = slab.stride;
    }
    return n;
}

static Holdings list_moves(const Model* m, int taken, int gradients, Arena* arena) {
    const WorkPlan* plan = &m->ranks->work->plan;
    char err[ERR_BYTES];
    Holdings h = {.tensors = shape_tensors(&m->whole)};
    h.first = TAKE(arena, int, h.tensors + 1);
    h.list = TAKE(arena, Holding, h.tensors * plan->n_moves * MOST_RUNS);
    if (arena_check(arena, err)) die("%s", err);
    h.first[0] = 0;
    for (int i = 0, n = 0; i < h.tensors; h.first[++i] = n) {
        ParamTensor t = shape_tensor(&m->whole, i);
        int id = 0, before = 0;
        while (id < N_SUBLAYERS && t.id != sublayers[id].weight[0] && t.id != sublayers[id].bias[0] &&
               t.id != sublayers[id].weight[1])
            id++;
        for (const Move* move = plan->moves; id < N_SUBLAYERS && move < plan->moves + plan->n_moves; move++) {
            int units = units_of(move, (SublayerId)id);
            if (units == 0) continue;
            n += add_units(h.list + n, m, move, &t, (SublayerId)id, taken, gradients, before);
            if (move->to == tp_rank(m)) before += units;
        }
    }
    return h;
}

// Weights go from owners to takers, gradients back.
void slices_open(Model* m) {
    Work* work = m->ranks->work;
    arena_reset(&work->arena, (ArenaMark){0});
    for (int gradients = 0; gradients < 2; gradients++) {
        Arena scratch = {0};
        Holdings from = list_moves(m, gradients, gradients, &scratch),
                 to = list_moves(m, !gradients, gradients, &scratch);
        work->mover[gradients] = mover_open(RESHARD_COPY, COMM_SLICES, m->tp, &m->whole, &from, &to, &work->arena);
        arena_free(&scratch);
    }
}

static void communicate(const Model* m, int gradients) {
    if (m->ranks->work->plan.n_moves > 0)
        mover_run(&m->ranks->work->mover[gradients], m->tp, &m->whole, array_of(m, !gradients, gradients),
                  array_of(m, gradients, gradients), m->ranks->work->part[PART_MOVING], gradients ? DT_F32 : m->dt,
                  m->k, m->s);
}

// ---- a step

void slices_take(Model* m) {
    const Work* work = m->ranks->work;
    for (int l = 0; l < work->L; l++)
        for (int id = 0; id < N_SUBLAYERS; id++) {
            const SublayerWork* w = slice_work(work, l, (SublayerId)id);
            if (w->differs) exchange_own(m, (SublayerId)id, w, l, 0);
        }
    communicate(m, 0);
    m->k->clear(work->part[PART_GRADS], work->bytes[PART_GRADS], m->s);
}

static void copy_owned(Model* m, int l, SublayerId id, int from_before) {
    Slab own = owned(m, l, id, 1), before = slab_before(m->ranks->work, l, id);
    copy_slab(m, id, from_before ? &own : &before, from_before ? &before : &own, m->ranks->work->own[id], DT_F32);
}

// exchange_own fills also the gradients of slices that others compute; what these send back overwrites it.
void slices_return(Model* m) {
    const Work* work = m->ranks->work;
    for (int l = 0; l < work->L; l++)
        for (int id = 0; id < N_SUBLAYERS; id++) {
            const SublayerWork* w = slice_work(work, l, (SublayerId)id);
            int fills = work->plan.imputation == IMPUTE_SAME && (w->kept_in || w->kept_out);
            if (!w->differs) continue;
            if (fills) copy_owned(m, l, (SublayerId)id, 1);
            exchange_own(m, (SublayerId)id, w, l, 1);
        }
    communicate(m, 1);
}

void slices_remember(Model* m) {
    for (int l = 0; l < m->ranks->work->L; l++)
        for (int id = 0; id < N_SUBLAYERS; id++) copy_owned(m, l, (SublayerId)id, 0);
}
