// reshard.c - fills the compact weights of a step from those that this rank and others own, and brings gradients back:
// see work.h. Of a layer all messages go at once, one for each move: its heads, then its hidden units, each as rows of
// the column-parallel weights, biases, columns of the row-parallel weights. With w bytes of a weight a step sends
// (2 C + 1) (w + 4) bytes for a hidden unit and (4 C + 3) HS (w + 4) for a head, weights one way and fp32 gradients the
// other.
#include "run/reshard.h"

const KindRow slice_kinds[N_SLICE_KINDS] = {
    [SLICE_HEADS] = {QKVW, QKVB, ATTPROJW, 3},
    [SLICE_HIDDEN] = {FCW, FCB, FCPROJW, 1},
};

// ---- slabs

enum { ALIGN_ELEMS = 64 };

static size_t aligned(size_t elems) { return ROUND_UP(elems, (size_t)ALIGN_ELEMS); }
static size_t row_elems(const Work* work, SliceKind kind, int channels) {
    return (size_t)slice_kinds[kind].runs * (size_t)channels * (size_t)work->C;
}
static size_t bias_elems(SliceKind kind, int channels) { return (size_t)slice_kinds[kind].runs * (size_t)channels; }
static size_t column_elems(const Work* work, int channels) { return (size_t)work->C * (size_t)channels; }

size_t slab_elems(const Work* work, SliceKind kind, int channels) {
    return aligned(row_elems(work, kind, channels)) + aligned(bias_elems(kind, channels)) +
           aligned(column_elems(work, channels));
}

size_t packet_elems(const Work* work, SliceKind kind, int channels) {
    return row_elems(work, kind, channels) + bias_elems(kind, channels) + column_elems(work, channels);
}

// Of layer l in a part that has slabs with room for channels[kind], elements of `elem` bytes.
static Slab layer_slab(const Work* work, WorkPart part, const int channels[], size_t elem, int l, SliceKind kind) {
    size_t heads = slab_elems(work, SLICE_HEADS, channels[SLICE_HEADS]),
           hidden = slab_elems(work, SLICE_HIDDEN, channels[SLICE_HIDDEN]);
    size_t at = (size_t)l * (heads + hidden) + (kind == SLICE_HIDDEN ? heads : 0);
    Slab slab = {.rows = work->part[part] + at * elem, .total = channels[kind], .stride = channels[kind]};
    slab.bias = slab.rows + aligned(row_elems(work, kind, channels[kind])) * elem;
    slab.columns = slab.bias + aligned(bias_elems(kind, channels[kind])) * elem;
    return slab;
}

static Slab compact(const Work* work, WorkPart part, size_t elem, int l, SliceKind kind) {
    const KindWork* w = slice_work(work, l, kind);
    Slab slab = layer_slab(work, part, work->most, elem, l, kind);
    slab.total = w->stay + w->taken;
    slab.stride = w->columns + w->taken;
    return slab;
}

Slab slices_weights(const Work* work, int l, SliceKind kind) {
    return compact(work, PART_WEIGHTS, dtype_bytes(work->dt), l, kind);
}

Slab slices_grads(const Work* work, int l, SliceKind kind) { return compact(work, PART_GRADS, sizeof(float), l, kind); }

static Slab slab_before(const Work* work, int l, SliceKind kind) {
    return layer_slab(work, PART_BEFORE, work->own, sizeof(float), l, kind);
}

static Slab owned(const Model* m, int l, SliceKind kind, int gradients) {
    const KindRow* row = &slice_kinds[kind];
    ParamTensor rows = shape_param(&m->shape, row->rows, l), bias = shape_param(&m->shape, row->bias, l),
                columns = shape_param(&m->shape, row->columns, l);
    int own = m->work->own[kind];
    if (gradients)
        return (Slab){(char*)zero_grads(m, &rows), (char*)zero_grads(m, &bias), (char*)zero_grads(m, &columns), own,
                      own};
    return (Slab){zero_weights(m, &rows), zero_weights(m, &bias), zero_weights(m, &columns), own, own};
}

static Slab packet_slab(const Work* work, SliceKind kind, int channels, char* memory, size_t elem) {
    Slab slab = {.rows = memory, .total = channels, .stride = channels};
    slab.bias = slab.rows + row_elems(work, kind, channels) * elem;
    slab.columns = slab.bias + bias_elems(kind, channels) * elem;
    return slab;
}

// ---- copies between slabs

// The slab from channel `row` on, as it stands at `column` among the columns.
static Slab from_channel(const Model* m, Slab slab, int row, int column, DType dt) {
    size_t elem = dtype_bytes(dt);
    slab.rows += (size_t)row * (size_t)m->shape.C * elem;
    slab.bias += (size_t)row * elem;
    slab.columns += (size_t)column * elem;
    return slab;
}

static void copy_matrix(const Model* m, char* to, int ldo, const char* from, int ldx, int rows, int columns, DType dt) {
    if (rows > 0 && columns > 0) m->k->gather_rows(to, from, NULL, rows, columns, ldo, ldx, dt, m->s);
}

static char* run_of(const Slab* slab, int run, size_t columns, DType dt) {
    return slab->rows + (size_t)run * (size_t)slab->total * columns * dtype_bytes(dt);
}

// The first n channels.
static void copy_slab(const Model* m, SliceKind kind, const Slab* to, const Slab* from, int n, DType dt) {
    int C = m->shape.C, runs = slice_kinds[kind].runs;
    for (int run = 0; run < runs; run++)
        copy_matrix(m, run_of(to, run, (size_t)C, dt), C, run_of(from, run, (size_t)C, dt), C, n, C, dt);
    copy_matrix(m, to->bias, to->total, from->bias, from->total, runs, n, dt);
    copy_matrix(m, to->columns, to->stride, from->columns, from->stride, C, n, dt);
}

// ---- this rank's own

static char* bias_run(const Slab* slab, int run, DType dt) {
    return slab->bias + (size_t)run * (size_t)slab->total * dtype_bytes(dt);
}

// Weights of what this rank keeps of its own: from the slab that it owns to the compact one.
static void take_own(const Model* m, SliceKind kind, const KindWork* w, const Slab* to, const Slab* own) {
    const Kernels* k = m->k;
    DType dt = m->dt;
    int C = m->shape.C;
    for (int run = 0; run < slice_kinds[kind].runs && w->stay > 0; run++) {
        char *here = run_of(to, run, (size_t)w->K, dt), *there = run_of(own, run, (size_t)C, dt);
        if (w->kept_in) k->gather_columns(here, there, w->kept_in, w->stay, w->K, C, dt, m->s);
        else k->gather_rows(here, there, w->rows, w->stay, C, C, C, dt, m->s);
        k->gather_rows(bias_run(to, run, dt), bias_run(own, run, dt), w->rows, w->stay, 1, 1, 1, dt, m->s);
    }
    if (!w->kept_out) {
        copy_matrix(m, to->columns, to->stride, own->columns, own->stride, C, w->columns, dt);
        return;
    }
    char* tight = w->taken > 0 ? m->work->part[PART_SCRATCH] : to->columns;
    if (w->columns > 0) k->gather_columns(tight, own->columns, w->kept_out, C, w->columns, own->stride, dt, m->s);
    if (tight != to->columns) copy_matrix(m, to->columns, to->stride, tight, w->columns, C, w->columns, dt);
}

static void put_rows(const Model* m, char* to, const char* from, const int* rows, int n, int columns) {
    if (rows) m->k->scatter_rows(to, from, rows, n, columns, columns, columns, DT_F32, m->s);
    else copy_matrix(m, to, columns, from, columns, n, columns, DT_F32);
}

// Gradients the other way. What was not computed of rows that were is filled.
static void put_own(const Model* m, SliceKind kind, const KindWork* w, const Slab* from, const Slab* own) {
    static const ColumnFill fills[] = {
        [IMPUTE_ZERO] = FILL_ZERO, [IMPUTE_AVERAGE] = FILL_MEAN, [IMPUTE_SAME] = FILL_KEEP};
    const Kernels* k = m->k;
    ColumnFill fill = fills[m->work->plan.imputation];
    int C = m->shape.C;
    for (int run = 0; run < slice_kinds[kind].runs && w->stay > 0; run++) {
        char *here = run_of(from, run, (size_t)w->K, DT_F32), *there = run_of(own, run, (size_t)C, DT_F32);
        if (w->kept_in) k->scatter_columns(there, here, w->place_in, fill, w->stay, C, w->K, DT_F32, m->s);
        else put_rows(m, there, here, w->rows, w->stay, C);
        put_rows(m, bias_run(own, run, DT_F32), bias_run(from, run, DT_F32), w->rows, w->stay, 1);
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

static int channels_of(const Work* work, const Move* move, SliceKind kind) {
    return (kind == SLICE_HEADS ? move->heads : move->hidden) * work->span[kind];
}

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
        size_t elems = packet_elems(work, SLICE_HEADS, channels_of(work, move, SLICE_HEADS)) +
                       packet_elems(work, SLICE_HIDDEN, channels_of(work, move, SLICE_HIDDEN));
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
    int before[N_SLICE_KINDS] = {0};
    for (int i = 0; i < work->plan.n_moves; i++) {
        const Move* move = &work->plan.moves[i];
        for (int kind = 0; kind < N_SLICE_KINDS && is_mine(m, move, taken); kind++) {
            const KindWork* w = slice_work(work, l, (SliceKind)kind);
            int n = channels_of(work, move, (SliceKind)kind);
            int first = (kind == SLICE_HEADS ? move->head : move->first_hidden) * work->span[kind];
            Slab packed = packet_slab(work, (SliceKind)kind, n, at, dtype_bytes(dt)), here;
            if (n == 0) continue;
            if (taken) {
                here = gradients ? slices_grads(work, l, (SliceKind)kind) : slices_weights(work, l, (SliceKind)kind);
                here = from_channel(m, here, w->stay + before[kind], w->columns + before[kind], dt);
            } else here = from_channel(m, owned(m, l, (SliceKind)kind, gradients), first, first, dt);
            copy_slab(m, (SliceKind)kind, pack ? &packed : &here, pack ? &here : &packed, n, dt);
            before[kind] += n;
            at += packet_elems(work, (SliceKind)kind, n) * dtype_bytes(dt);
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
        for (int kind = 0; kind < N_SLICE_KINDS; kind++) {
            const KindWork* w = slice_work(work, l, (SliceKind)kind);
            Slab own = owned(m, l, (SliceKind)kind, 0), here = slices_weights(work, l, (SliceKind)kind);
            if (w->differs) take_own(m, (SliceKind)kind, w, &here, &own);
        }
        communication(m, l, 0);
    }
    m->k->clear(work->part[PART_GRADS], work->bytes[PART_GRADS], m->s);
}

// put_own fills also the gradients of slices that others compute; what these send back overwrites it.
void reshard_slice_gradients(Model* m) {
    const Work* work = m->work;
    for (int l = 0; l < work->L; l++) {
        for (int kind = 0; kind < N_SLICE_KINDS; kind++) {
            const KindWork* w = slice_work(work, l, (SliceKind)kind);
            if (!w->differs) continue;
            Slab own = owned(m, l, (SliceKind)kind, 1), here = slices_grads(work, l, (SliceKind)kind);
            if (work->plan.imputation == IMPUTE_SAME && (w->kept_in || w->kept_out)) {
                Slab before = slab_before(work, l, (SliceKind)kind);
                copy_slab(m, (SliceKind)kind, &own, &before, work->own[kind], DT_F32);
            }
            put_own(m, (SliceKind)kind, w, &here, &own);
        }
        communication(m, l, 1);
    }
}

void slices_remember(Model* m) {
    const Work* work = m->work;
    for (int l = 0; l < work->L; l++)
        for (int kind = 0; kind < N_SLICE_KINDS; kind++) {
            Slab own = owned(m, l, (SliceKind)kind, 1), before = slab_before(work, l, (SliceKind)kind);
            copy_slab(m, (SliceKind)kind, &before, &own, work->own[kind], DT_F32);
        }
}

// ---- another division, for good
//
// Tensor after tensor, every kind of state is put together of the parts that ranks have
// under the old division and taken apart under the new one, in host memory. That moves more than has to change hands;
// it happens when a rank becomes slow for good, not in steps.

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

// The whole tensor, of one kind, in run->staging.
static void join(Run* run, StateKind kind, const ParamTensor* tensor) {
    Model* m = &run->model;
    ParamTensor own = shape_param(&m->shape, tensor->id, tensor->layer);
    if (kind == STATE_WEIGHTS) zero_fetch_weights(m, &own, run->part);
    else zero_fetch_state(m, &own, run->part);
    tp_join(m, &own, run->staging, run->part, run->others);
}

static void store(Run* run, Model* next, StateKind kind, const ParamTensor* tensor) {
    ParamTensor part = shape_param(&next->shape, tensor->id, tensor->layer);
    split_take(run->staging, run->staging, &next->whole, &next->split, tp_rank(next), tensor->id);
    if (kind == STATE_WEIGHTS) {
        zero_put_weights(next, &part, run->staging);
        return;
    }
    Segment own = shape_segment(&next->shape, shape_index(&next->shape, &part), next->comm->rank);
    if (own.n == 0) return;
    next->k->upload(zero_owned(next, kind, &own), run->staging + own.first, own.n * sizeof(float), next->s);
    next->k->synchronize(next->s);
}

static void carry(Run* run, Model* next, StateKind kind) {
    Model* m = &run->model;
    for (int i = 0, gathered = -1; i < shape_tensors(&m->whole); i++) {
        ParamTensor tensor = shape_tensor(&m->whole, i);
        int b = shape_bucket_of(&tensor, &m->whole);
        if (kind != STATE_WEIGHTS && b != gathered) zero_gather_state(m, kind, gathered = b);
        join(run, kind, &tensor);
        store(run, next, kind, &tensor);
    }
}

void run_reshard(Run* run, const TpSplit* split) {
    Model* m = &run->model;
    Model next = *m;
    if (m->zero.stage != 1) die("a new division of the model needs ZeRO stage 1, found %d", m->zero.stage);
    zero_settle(m);
    m->tp->purpose = COMM_STATE;
    next.split = *split;
    next.shape = split_shape(&m->whole, split, tp_rank(m));
    next.shape.shards = m->shape.shards;
    take_arrays(&next);
    carry(run, &next, STATE_WEIGHTS);
    if (m->zero.part[ZERO_MASTER]) carry(run, &next, STATE_MASTER);
    carry(run, &next, STATE_M);
    carry(run, &next, STATE_V);
    give_back(m);
    *m = next;
    m->tp->purpose = COMM_TENSOR;
}
