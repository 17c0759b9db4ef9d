// work.c - this rank's work of a step as lists and views: see work.h. Where a rank computes exactly the units of a
// sublayer that it owns, they are used in place; elsewhere there are compact copies, first of the units that stay, then
// of those that are taken, in the order of moves. One list of columns serves a linear's three
// matmuls (Wang et al. 2024): each costs 2 OC K FLOPs a token, K the columns that are left.
#include "run/model/work.h"

#include <stdlib.h>

#include "run/model/slices.h"
#include "run/model/tensor_parallel.h"
#include "run/run.h"

// ---- views

// What differs from what this rank owns; NULL: nothing does, or no step is at work, as in evaluation and sampling.
static const SublayerWork* changed(const Model* m, SublayerId id, int l) {
    if (!m->ranks->work || !m->ranks->work->differs || !m->ranks->work->in_step) return NULL;
    const SublayerWork* w = slice_work(m->ranks->work, l, id);
    return w->differs ? w : NULL;
}

// Weights and bias where they are owned.
static Linear owned_linear(const Model* m, LinearId id, int l) {
    const Sublayer* sub = &sublayers[sublayer_of(id)];
    ParamTensor w = shape_param(&m->shape, sub->weight[id % 2], l), b = shape_param(&m->shape, sub->bias[id % 2], l);
    Linear linear = {.w = tensor_weights(m, &w), .dw = tensor_grads(m, &w), .OC = w.rows, .K = w.cols, .width = w.cols};
    int adds_bias = b.elems > 0 && (is_column(id) || layer_cut_rank(m, l) == 0);
    if (adds_bias) linear.b = tensor_weights(m, &b), linear.db = tensor_grads(m, &b);
    return linear;
}

Linear work_linear(const Model* m, LinearId id, int l) {
    Linear linear = owned_linear(m, id, l);
    SublayerId sub = sublayer_of(id);
    const SublayerWork* w = changed(m, sub, l);
    if (!w) return linear;
    Slab weights = slices_weights(m->ranks->work, l, sub), grads = slices_grads(m->ranks->work, l, sub);
    int units = w->stay + w->taken, span = m->ranks->work->span[sub];
    linear.fill = m->ranks->work->plan.imputation == IMPUTE_AVERAGE ? FILL_MEAN : FILL_ZERO;
    if (is_column(id)) {
        linear.w = weights.rows, linear.dw = (float*)grads.rows;
        if (linear.b) linear.b = weights.bias, linear.db = (float*)grads.bias;
        linear.OC = runs_sum(unit_rows(&m->shape, sub, units));
        linear.K = w->K;
        linear.kept = w->kept_in, linear.source = w->place_in;
    } else {
        linear.w = weights.columns, linear.dw = (float*)grads.columns;
        linear.K = w->columns + w->taken * span;
        linear.width = units * span;
        if (w->source_out) linear.kept = w->kept_out, linear.source = w->source_out;
    }
    return linear;
}

int work_units(const Model* m, SublayerId id, int l) {
    const SublayerWork* w = changed(m, id, l);
    LayerUnits units = shape_units(&m->shape, l);
    return w ? w->stay + w->taken : id == ATTENTION ? units.core_kv_heads : units.hidden;
}

int work_freezes(const Model* m) { return m->ranks->work && m->ranks->work->cut; }

// ---- memory

// One after another: kept_in, place_in (C); rows, kept_out, source_out (most); place_out (own).
static size_t list_ints(const Work* work, int id) {
    size_t most = (size_t)work->most[id], span = (size_t)work->span[id];
    return 2 * (size_t)work->C + most + 2 * most * span + (size_t)work->own[id] * span;
}

static Work dimensions(const Model* m, const WorkNeeds* needs) {
    const Shape* shape = &m->shape;
    const int least[N_SUBLAYERS] = {[ATTENTION] = needs->most_heads, [MLP] = needs->most_hidden};
    Work work = {.shape = *shape, .L = shape->L, .C = shape->C, .keep_gradients = needs->keep_gradients, .dt = m->dt};
    for (int i = 0; i < N_SUBLAYERS; i++) {
        SublayerId id = (SublayerId)i;
        work.span[id] = unit_columns(shape, id);
        work.own[id] = own_units(shape, id);
        work.most[id] = MAX(least[id], work.own[id]);
        size_t *bytes = work.bytes, elem = sizeof(float), L = (size_t)work.L;
        size_t most = slab_elems(&work, id, work.most[id]), own = (size_t)(work.own[id] * work.span[id]);
        bytes[PART_WEIGHTS] += L * most * dtype_bytes(m->dt);
        bytes[PART_GRADS] += L * most * elem;
        bytes[PART_BEFORE] += needs->keep_gradients ? L * slab_elems(&work, id, work.own[id]) * elem : 0;
        bytes[PART_MOVING] += 2 * (size_t)work.most[id] * unit_elems(shape, id) * elem;  // given and taken
        bytes[PART_SCRATCH] = MAX(bytes[PART_SCRATCH], (size_t)work.C * own * elem);
        bytes[PART_LISTS] += L * list_ints(&work, i) * sizeof(int);
    }
    return work;
}

enum { ALIGN_BYTES = 64 };

size_t work_bytes(const Model* m, const WorkNeeds* needs) {
    Work work = dimensions(m, needs);
    size_t bytes = 0;
    for (int i = 0; i < N_WORK_PARTS; i++) bytes += ROUND_UP(work.bytes[i], (size_t)ALIGN_BYTES);
    return bytes;
}

Work* work_open(const Model* m, const WorkNeeds* needs, void* memory) {
    Work* work = (Work*)malloc(sizeof *work);
    if (!work) die("no memory for lists of slices");
    *work = dimensions(m, needs);
    work->lists = (int*)malloc(work->bytes[PART_LISTS]);
    work->layers = (SublayerWork*)calloc((size_t)work->L * N_SUBLAYERS, sizeof *work->layers);
    if (!work->lists || !work->layers) die("no memory for lists of slices");
    char* at = (char*)memory;
    for (int i = 0; i < N_WORK_PARTS; i++) {
        work->part[i] = at;
        at += ROUND_UP(work->bytes[i], (size_t)ALIGN_BYTES);
    }
    if (work->keep_gradients) m->k->clear(work->part[PART_BEFORE], work->bytes[PART_BEFORE], m->s);
    return work;
}

void work_close(Work* work) {
    if (!work) return;
    arena_free(&work->arena);
    free(work->lists);
    free(work->layers);
    free(work);
}

// ---- lists

// A list in Work.lists, and how far they reach.
typedef struct Lists {
    Work* work;
    int* end;
} Lists;

static int* new_list(Lists* lists, int n) {
    int* list = lists->end;
    lists->end += n;
    return list;
}

// Where a list of Work.lists is on the device.
static const int* on_device(const Work* work, const int* list) {
    return (const int*)work->part[PART_LISTS] + (list - work->lists);
}

static void check_list(const IndexList* list, int of) {
    for (int i = 0; i < list->n; i++)
        if (list->index[i] < (i ? list->index[i - 1] + 1 : 0) || list->index[i] >= of)
            die("entry %d of a list of %d of %d is %d; lists ascend", i, list->n, of, list->index[i]);
    if (list->n < 0 || list->n > of) die("a list of %d of %d", list->n, of);
}

// place (n) = where each of 0 .. n - 1 stands in kept (n_kept), or -1.
static void invert(int* place, int n, const int* kept, int n_kept) {
    for (int j = 0; j < n; j++) place[j] = -1;
    for (int j = 0; j < n_kept; j++) place[kept[j]] = j;
}

// Columns of the input of a column-parallel linear.
static void cut_inputs(Lists* lists, SublayerWork* w, const IndexList* columns) {
    const Work* work = lists->work;
    int *kept = new_list(lists, columns->n), *place = new_list(lists, work->C);
    check_list(columns, work->C);
    if (columns->n == 0) die("all columns of a linear are left out");
    memcpy(kept, columns->index, (size_t)columns->n * sizeof *kept);
    invert(place, work->C, kept, columns->n);
    w->K = columns->n;
    w->kept_in = on_device(work, kept), w->place_in = on_device(work, place);
}

// Columns of Row, of `span` channels for each entry. Of units that go altogether the block computes nothing; otherwise
// it computes all channels and the linear uses these.
static void cut_outputs(Lists* lists, SublayerId id, SublayerWork* w, const IndexList* list, int units_go) {
    const Work* work = lists->work;
    int unit = work->span[id], span = units_go ? unit : 1, own = work->own[id] * unit, n = list->n * span;
    check_list(list, w->stay * unit / span);
    int *kept = new_list(lists, n + w->taken * unit), *place = new_list(lists, own);
    for (int j = 0; j < n; j++) kept[j] = list->index[j / span] * span + j % span;
    invert(place, own, kept, n);
    w->columns = n;
    w->kept_out = on_device(work, kept), w->place_out = on_device(work, place);
    if (units_go) {
        int* rows = new_list(lists, list->n);
        memcpy(rows, list->index, (size_t)list->n * sizeof *rows);
        w->rows = on_device(work, rows);
        w->stay = list->n;
        return;
    }
    for (int j = 0; j < w->taken * unit; j++) kept[n + j] = w->stay * unit + j;
    int width = (w->stay + w->taken) * unit, *source = new_list(lists, width);
    if (n + w->taken == 0) die("all columns of a linear are left out");
    invert(source, width, kept, n + w->taken * unit);
    w->source_out = on_device(work, source);
}

// Units that others gave to this rank need all columns of the input, so nothing is left out of it then.
static void leave_out(Lists* lists, SublayerId id, SublayerWork* w, const PrunedLayer* kept, Shed shed) {
    const Work* work = lists->work;
    if (shed == SHED_SLICES) {
        if (kept->units[id].n != w->stay) cut_outputs(lists, id, w, &kept->units[id], 1);
        return;
    }
    const IndexList *in = &kept->columns[column_linear(id)], *out = &kept->columns[row_linear(id)];
    if (in->n != work->C && w->taken == 0) cut_inputs(lists, w, in);
    if (out->n != w->stay * work->span[id]) cut_outputs(lists, id, w, out, 0);
}

// ---- a new plan

// Units that rank gives away, or takes.
static int moved(const Work* work, const WorkPlan* plan, SublayerId id, int rank, int taken) {
    int n = 0, first = work->own[id];
    for (int i = 0; i < plan->n_moves; i++) {
        const Move* move = &plan->moves[i];
        int units = id == ATTENTION ? move->heads : move->hidden;
        if ((taken ? move->to : move->from) != rank || units == 0) continue;
        n += units;
        first = MIN(first, id == ATTENTION ? move->head : move->first_hidden);
    }
    if (!taken && first + n != work->own[id]) die("rank %d gives away slices that are not its last", rank);
    return n;
}

static void set_layer(Lists* lists, int rank, const WorkPlan* plan, int l) {
    Work* work = lists->work;
    for (int i = 0; i < N_SUBLAYERS; i++) {
        SublayerId id = (SublayerId)i;
        int given = moved(work, plan, id, rank, 0), taken = moved(work, plan, id, rank, 1);
        int stay = work->own[id] - given;
        SublayerWork w = {.stay = stay, .taken = taken, .K = work->C, .columns = stay * work->span[id]};
        if (taken > work->most[id] - work->own[id]) die("rank %d takes more slices than it has room for", rank);
        if (plan->kept) leave_out(lists, id, &w, &plan->kept[l], plan->shed);
        int cut = w.kept_in || w.kept_out;
        w.differs = given > 0 || taken > 0 || cut;
        work->differs |= w.differs;
        work->cut |= cut;
        work->layers[l * N_SUBLAYERS + i] = w;
    }
}

void work_set(Model* m, const WorkPlan* plan) {
    Work* work = m->ranks->work;
    if (plan->active && plan->n_moves > 0 && !m->tp) die("slices cannot move in a group of one rank");
    if (plan->active && plan->imputation == IMPUTE_SAME && !work->keep_gradients)
        die("gradients of the step before are not kept");
    Lists lists = {work, work->lists};
    work->plan = *plan;
    work->plan.kept = NULL;
    work->differs = plan->active && plan->n_moves > 0;  // then ranks without a move meet the others too
    work->cut = 0;
    for (int l = 0; l < work->L && plan->active; l++) set_layer(&lists, tp_rank(m), plan, l);
    if (plan->active && plan->n_moves > 0) slices_open(m);
    if (lists.end == work->lists) return;
    m->k->upload(work->part[PART_LISTS], work->lists, (size_t)(lists.end - work->lists) * sizeof(int), m->s);
    m->k->synchronize(m->s);
}

// ---- phases

void work_begin(Model* m) {
    if (!m->ranks->work) return;
    m->ranks->work->in_step = 1;
    if (m->ranks->work->differs) slices_take(m);
}

void work_end(Model* m) {
    if (!m->ranks->work) return;
    if (m->ranks->work->differs) slices_return(m);
    if (m->ranks->work->keep_gradients) slices_remember(m);
    m->ranks->work->in_step = 0;
}

// ---- the four linears

// The linear, and where nothing is left of its input, one column of zeros instead: a bias remains.
static Linear linear_of(const Model* m, LinearId id, int l) {
    Linear w = work_linear(m, id, l);
    if (w.K > 0) return w;
    w.K = 1;
    w.w = m->ranks->zeros;
    w.dw = (float*)m->ranks->spent;
    return w;
}

// The columns of x (N, width) that the linear uses.
static const void* kept_columns(const Model* m, const Linear* w, const void* x, void* scratch, int N) {
    if (w->width == 0) return x ? m->ranks->zeros : NULL;
    if (!w->kept || !x) return x;
    m->k->ranks->gather_columns(scratch, x, w->kept, N, w->K, w->width, m->dt, m->s);
    return scratch;
}

// The device, or one whose matmuls an injected straggler slows down.
static const Kernels* linear_kernels(const Model* m) { return m->ranks->slowed ? m->ranks->slowed : m->k; }

// The matmuls alone are what resizing shrinks: columns are gathered and scattered in the time of everything else.
void work_forward(const Model* m, LinearId id, int l, void* out, void* gelu, const void* x, int N) {
    Linear w = linear_of(m, id, l);
    if (w.OC == 0) return;
    x = kept_columns(m, &w, x, m->ranks->columns[0], N);
    TimeKind before = timer_enter(m->timer, TIME_LINEAR, m->s);
    linear_kernels(m)->matmul_forward(out, gelu, x, w.w, w.b, N, w.K, w.OC, m->dt, m->s);
    timer_enter(m->timer, before, m->s);
}

static void backward_weight(const Model* m, LinearId id, int l, const void* dout, const void* x, int N) {
    Linear w = linear_of(m, id, l);
    if (w.OC == 0) return;
    x = kept_columns(m, &w, x, m->ranks->columns[0], N);
    TimeKind before = timer_enter(m->timer, TIME_LINEAR, m->s);
    linear_kernels(m)->matmul_backward_weight(w.dw, w.db, dout, x, N, w.K, w.OC, m->dt, m->s);
    timer_enter(m->timer, before, m->s);
}

static void backward_input(const Model* m, LinearId id, int l, void* dx, const void* dout, const void* pre, int N) {
    const Kernels* k = m->k;
    Linear w = linear_of(m, id, l);
    if (w.width == 0) return;
    if (w.OC == 0) {
        k->clear(dx, (size_t)N * (size_t)w.width * dtype_bytes(m->dt), m->s);
        return;
    }
    void* computed = w.kept ? m->ranks->columns[1] : dx;
    pre = kept_columns(m, &w, pre, m->ranks->columns[0], N);
    TimeKind before = timer_enter(m->timer, TIME_LINEAR, m->s);
    linear_kernels(m)->matmul_backward_input(computed, dout, w.w, pre, N, w.K, w.OC, m->dt, m->s);
    timer_enter(m->timer, before, m->s);
    if (w.kept) k->ranks->scatter_columns(dx, computed, w.source, w.fill, N, w.width, w.K, m->dt, m->s);
}

void work_backward(const Model* m, LinearId id, int l, void* dx, const void* dout, const void* x, const void* pre,
                   int N) {
    backward_weight(m, id, l, dout, x, N);
    backward_input(m, id, l, dx, dout, pre, N);
}

// ---- in a tensor-parallel group

// Row n of x (N, width); NULL stays NULL.
static void* at_row(const Model* m, const void* x, int n, int width) {
    return x ? (char*)x + (size_t)n * (size_t)width * dtype_bytes(m->dt) : NULL;
}

// Rows of a matmul do not depend on each other: those of one rank after another, as they come.
static void column_forward(const Model* m, LinearId id, int l, void* out, void* gelu, void* x, const Row* row) {
    TpGather g = tp_gather_begin(m, tp_own(m, x, row, l), x, row, l);
    int OC = work_linear(m, id, l).OC;
    for (TpRows r; tp_gather_next(m, &g, &r);)
        work_forward(m, id, l, at_row(m, out, r.first, OC), at_row(m, gelu, r.first, OC), r.x, r.n);
}

// Where weights are cut among fewer ranks than the group has, QKV is made by tokens and attention wants heads.
void work_linear_forward(const Model* m, const Row* row, LinearId id, int l, void* out, void* gelu, void* x) {
    int turns = turns_to_heads(m, sublayer_of(id), l);
    void* by_tokens = model_act(m, is_column(id) ? EXCHANGED : ATT_TOKENS, l);
    if (is_column(id)) {
        column_forward(m, id, l, turns ? by_tokens : out, gelu, x, row);
        if (turns) tokens_to_heads(m, out, by_tokens, 3, row, l);
        return;
    }
    if (turns) heads_to_tokens(m, by_tokens, x, 1, row, l);
    work_forward(m, id, l, out, gelu, turns ? by_tokens : x, tp_tokens(m, row, l));
    tp_reduce_scatter(m, out, row, l);
}

// The gradient of the weights is one sum over all tokens, so that its order does not change.
static void row_backward(const Model* m, LinearId id, int l, void* dx, void* dout, const void* x, const void* pre,
                         const Row* row) {
    TpGather g = tp_gather_begin(m, dout, model_act(m, D_FULL, l), row, l);
    int width = work_linear(m, id, l).width;
    for (TpRows r; tp_gather_next(m, &g, &r);)
        backward_input(m, id, l, at_row(m, dx, r.first, width), r.x, at_row(m, pre, r.first, width), r.n);
    backward_weight(m, id, l, g.full, x, g.N);
}

static void column_backward(const Model* m, LinearId id, int l, void* dx, const void* dout, const void* x,
                            const Row* row) {
    int N = tp_tokens(m, row, l);
    backward_input(m, id, l, dx, dout, NULL, N);
    Request sums = tp_begin_reduce_scatter(m, dx, row, l);
    backward_weight(m, id, l, dout, x, N);
    tp_end(m, sums, l);
}

void work_linear_backward(const Model* m, const Row* row, LinearId id, int l, void* dx, void* dout, void* x,
                          const void* pre) {
    int turns = turns_to_heads(m, sublayer_of(id), l);
    void* by_tokens = model_act(m, EXCHANGED, l);
    if (is_column(id)) {
        if (turns) heads_to_tokens(m, by_tokens, dout, 3, row, l);
        column_backward(m, id, l, dx, turns ? by_tokens : dout, x, row);
        return;
    }
    row_backward(m, id, l, turns ? by_tokens : dx, dout, turns ? model_act(m, ATT_TOKENS, l) : x, pre, row);
    if (turns) tokens_to_heads(m, dx, by_tokens, 1, row, l);
}
