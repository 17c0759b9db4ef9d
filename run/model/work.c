// work.c - this rank's work of a step as lists and views, and the copies that it needs: see work.h. If a rank computes
// exactly the units of a sublayer that it owns, they are used in place. Otherwise there are compact copies, first of
// the units that stay, then of those that are taken, in the order of moves. One list of columns serves a linear's three
// matmuls (Wang et al. 2024): each costs 2 OC K FLOPs a token, K being the columns that are left.
#include "run/model/work.h"

#include <stdlib.h>

#include "run/model/fp8.h"
#include "run/model/lora.h"

// A Cut is the computed columns of a linear's input; lists are on the device.
typedef struct Cut {
    int n;
    const int* kept;   // (n) computed columns, ascending; NULL: the first ones
    const int* place;  // (all that this rank owns) the inverse of kept, -1 for a column not in it
} Cut;

// Three tensors of a sublayer have parts of a unit: In and its bias have rows in each run, Out has columns.
typedef enum UnitPart { ROWS, BIAS, COLUMNS, N_UNIT_PARTS } UnitPart;

// A SublayerWork is what this rank computes of a sublayer in a layer: `stay` units of its own, then `taken` ones in the
// order of moves, beside which nothing is left out. Columns of Out are unit_columns for each unit.
typedef struct SublayerWork {
    int differs;  // 0: what it owns, in place
    int stay, taken;
    Cut in, out;                      // columns of In, and of Out for `stay` units
    ParamPlace copies[N_UNIT_PARTS];  // compact ones of the three tensors
} SublayerWork;

typedef enum WorkPart {
    PART_WEIGHTS,  // compact copies, layer by layer; dt
    PART_GRADS,    // their gradient sums, fp32
    PART_MOVING,   // messages of two layers: slices that this rank gives or takes; elements of 4 bytes or less
    PART_LISTS,
    N_WORK_PARTS
} WorkPart;

struct Work {
    Shape shape;  // shape of what this rank owns
    int L, C;
    int span[N_SUBLAYERS], own[N_SUBLAYERS], most[N_SUBLAYERS];  // channels of a unit; units: owned, ever computed
    DType dt;
    char* part[N_WORK_PARTS];  // on the device
    size_t bytes[N_WORK_PARTS];
    int *lists, *lists_end;  // host copy of PART_LISTS, and how far it reaches
    WorkPlan plan;
    Mover mover[2];  // movers of the plan's weights and gradients; in the arena
    Arena arena;
    int in_step;           // 1 between work_begin and work_end
    int differs, cut;      // differs: some layer's work is not what is owned; cut: something is left out
    SublayerWork* layers;  // (L, N_SUBLAYERS)
};

static const SublayerWork* work_of(const Work* work, int l, SublayerId id) {
    return &work->layers[l * N_SUBLAYERS + (int)id];
}

// ---- units as rows and columns

// Returns the shape of a rank with n units of everything.
static Shape shape_of_units(const Shape* shape, int n) {
    Shape s = *shape;
    s.heads = n * shape_queries(shape);
    s.kv_heads = s.hidden = n;
    return s;
}

Runs unit_rows(const Shape* shape, SublayerId id, int n) {
    Shape s = shape_of_units(shape, n);
    return shape_runs(&s, param_table[sublayers[id].weight[0]].rows);
}

int unit_columns(const Shape* shape, SublayerId id) {
    Shape s = shape_of_units(shape, 1);
    return shape_runs(&s, param_table[sublayers[id].weight[1]].cols).size[0];
}

static ParamId tensor_of(SublayerId id, int part) {
    const Sublayer* sub = &sublayers[id];
    return part == ROWS ? sub->weight[0] : part == BIAS ? sub->bias[0] : sub->weight[1];
}

static size_t part_elems(const Shape* shape, SublayerId id, int part, int units) {
    Shape s = shape_of_units(shape, units);
    return shape_param(&s, tensor_of(id, part), 0).elems;
}

size_t unit_elems(const Shape* shape, SublayerId id) {
    return part_elems(shape, id, ROWS, 1) + part_elems(shape, id, BIAS, 1) + part_elems(shape, id, COLUMNS, 1);
}

// ---- units in memory, in the tensors that this rank owns and in its copies

enum { ALIGN_ELEMS = 64 };

// These return the elements of so many units in a compact copy: of one part, and of all parts.
static size_t compact_elems(const Work* work, SublayerId id, int part, int units) {
    return ROUND_UP(part_elems(&work->shape, id, part, units), (size_t)ALIGN_ELEMS);
}
static size_t sublayer_elems(const Work* work, SublayerId id, int units) {
    size_t elems = 0;
    for (int i = 0; i < N_UNIT_PARTS; i++) elems += compact_elems(work, id, i, units);
    return elems;
}

// Places the copies of a sublayer, whose units and columns are known.
static void place_copies(const Work* work, SublayerWork* w, int l, SublayerId id) {
    size_t attention = sublayer_elems(work, ATTENTION, work->most[ATTENTION]);
    size_t at = (size_t)l * (attention + sublayer_elems(work, MLP, work->most[MLP])) + (id == MLP ? attention : 0);
    int OC = runs_sum(unit_rows(&work->shape, id, w->stay + w->taken));
    const int rows[] = {OC, 1, work->C}, cols[] = {w->in.n, OC, w->out.n + w->taken * work->span[id]};
    for (int i = 0; i < N_UNIT_PARTS; i++) {
        size_t elems = compact_elems(work, id, i, work->most[id]);
        if (elems)
            w->copies[i] = (ParamPlace){rows[i], cols[i], work->part[PART_WEIGHTS] + at * dtype_bytes(work->dt),
                                        (float*)work->part[PART_GRADS] + at};
        at += elems;
    }
}

// A Strip is rows of a matrix, `stride` elements apart.
typedef struct Strip {
    char* at;
    int rows, cols, stride;
} Strip;

// Lists n units of a tensor, from its unit `first` on: a strip for each run of rows or of the bias, or one of all
// columns; returns how many.
static int list_strips(Strip strips[MOST_RUNS], const Work* work, SublayerId id, int part, const ParamPlace* tensor,
                       int gradients, int first, int n) {
    Runs unit = unit_rows(&work->shape, id, 1);
    size_t elem = gradients ? sizeof(float) : dtype_bytes(work->dt);
    char* at = gradients ? (char*)tensor->grads : (char*)tensor->weights;
    int span = work->span[id], units = (part == ROWS ? tensor->rows : tensor->cols) / runs_sum(unit);
    if (!at) return 0;
    if (part == COLUMNS) {
        strips[0] = (Strip){at + (size_t)(first * span) * elem, tensor->rows, n * span, tensor->cols};
        return 1;
    }
    for (int i = 0; i < unit.n; i++) {
        int rows = n * unit.size[i], width = part == BIAS ? 1 : tensor->cols;
        char* begin = at + (size_t)(first * unit.size[i]) * (size_t)width * elem;
        strips[i] = part == BIAS ? (Strip){begin, 1, rows, rows} : (Strip){begin, rows, width, width};
        at += (size_t)(units * unit.size[i]) * (size_t)width * elem;
    }
    return unit.n;
}

// ---- this rank's own, to the copies; and their gradients back, 0 for what was not computed of rows that were

static void exchange_own(const Model* m, SublayerId id, int l, int back) {
    const RankOps* ops = m->k->ranks;
    const Work* work = m->ranks->work;
    const SublayerWork* w = work_of(work, l, id);
    DType dt = back ? DT_F32 : m->dt;
    for (int part = 0; part < N_UNIT_PARTS && w->stay > 0; part++) {
        Strip owns[MOST_RUNS], here[MOST_RUNS];
        const Cut* cut = part == ROWS ? &w->in : &w->out;
        int whole = part == BIAS || !cut->kept;
        int n = list_strips(owns, work, id, part, param_place(m, tensor_of(id, part), l), back, 0, w->stay);
        list_strips(here, work, id, part, &w->copies[part], back, 0, w->stay);
        for (int i = 0; i < n; i++) {
            const Strip *own = &owns[i], *copy = &here[i], *to = back ? own : copy, *from = back ? copy : own;
            if (whole)
                ops->gather_rows(to->at, from->at, NULL, own->rows, own->cols, to->stride, from->stride, dt, m->s);
            else if (back)
                ops->scatter_columns(own->at, copy->at, cut->place, own->rows, own->stride, cut->n, dt, m->s);
            else ops->gather_columns(copy->at, own->at, cut->kept, own->rows, cut->n, own->stride, dt, m->s);
        }
    }
}

// ---- what goes from rank to rank: two lists of who has the units that move, and the mover between them

SliceCount work_moved(const WorkPlan* plan, int rank, int taken) {
    SliceCount n = {0, 0};
    for (const Move* move = plan->moves; move < plan->moves + plan->n_moves; move++)
        if ((taken ? move->to : move->from) == rank) n.heads += move->heads, n.hidden += move->hidden;
    return n;
}

static int units_of(SliceCount n, SublayerId id) { return id == ATTENTION ? n.heads : n.hidden; }

// Returns the array of weights or gradients that moves of layer l leave, or come to. Owned ones may be there by turns.
static char* array_of(const Model* m, int l, int taken, int gradients) {
    if (taken) return m->ranks->work->part[gradients ? PART_GRADS : PART_WEIGHTS];
    const ZeroBucket* x = &m->ranks->zero.bucket[1 + l];
    return gradients ? (char*)x->grads : x->weights;
}

// Lists a part of the units of a move as boxes of the whole model's tensor: what a rank would have of it that owned
// these alone. Only their rank has to know their place in memory: as owned, or compact, after what stays and `before`
// others. Returns how many.
static int list_move(Holding* list, const Model* m, const Move* move, SublayerId id, int part, int l, int taken,
                     int gradients, int before) {
    const Work* work = m->ranks->work;
    Box boxes[MOST_RUNS];
    Strip strips[MOST_RUNS] = {{0}};
    int t = move->from, queries = m->whole.NH / m->whole.NKV, rank = taken ? move->to : move->from;
    TpSplit only = m->ranks->split;
    only.head[t] += move->head * queries, only.hidden[t] += move->first_hidden;
    only.head[t + 1] = only.head[t] + move->heads * queries, only.hidden[t + 1] = only.hidden[t] + move->hidden;
    int n = split_boxes(boxes, &m->whole, &only, t, tensor_of(id, part));
    if (rank == tp_rank(m)) {
        const SublayerWork* w = work_of(work, l, id);
        const ParamPlace* tensor = taken ? &w->copies[part] : param_place(m, tensor_of(id, part), l);
        int first = taken ? w->stay + before : id == ATTENTION ? move->head : move->first_hidden;
        list_strips(strips, work, id, part, tensor, gradients, first, id == ATTENTION ? move->heads : move->hidden);
    }
    for (int i = 0; i < n; i++) {
        list[i] = (Holding){rank, boxes[i], 0, part == COLUMNS ? strips[i].stride : boxes[i].cols};
        size_t bytes = strips[i].at ? (size_t)(strips[i].at - array_of(m, l, taken, gradients)) : 0;
        list[i].at = bytes / (gradients ? sizeof(float) : dtype_bytes(m->dt));
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
        int at = 0, before = 0;
        while (at < N_SUBLAYERS * N_UNIT_PARTS && tensor_of((SublayerId)(at / N_UNIT_PARTS), at % N_UNIT_PARTS) != t.id)
            at++;
        SublayerId id = (SublayerId)(at / N_UNIT_PARTS);
        int l = t.layer - m->shape.first_layer, is_here = id < N_SUBLAYERS && l >= 0 && l < m->shape.L;
        for (const Move* move = plan->moves; is_here && move < plan->moves + plan->n_moves; move++) {
            int units = units_of((SliceCount){move->heads, move->hidden}, id);
            if (units == 0) continue;
            n += list_move(h.list + n, m, move, id, at % N_UNIT_PARTS, l, taken, gradients, before);
            if (move->to == tp_rank(m)) before += units;
        }
    }
    return h;
}

// Opens the movers of a new plan, whose layers are set: weights go from owners to takers, gradients back.
static void open_movers(Model* m) {
    Work* work = m->ranks->work;
    arena_reset(&work->arena, (ArenaMark){0});
    for (int gradients = 0; gradients < 2; gradients++) {
        Arena scratch = {0};
        Holdings from = list_moves(m, gradients, gradients, &scratch),
                 to = list_moves(m, !gradients, gradients, &scratch);
        work->mover[gradients] =
            mover_open(m, m->tp, RESHARD_COPY, COMM_SLICES, gradients ? DT_F32 : m->dt, &from, &to, &work->arena);
        arena_free(&scratch);
    }
}

static void begin_moves(const Model* m, Moving* x, int gradients) {
    const Work* work = m->ranks->work;
    char* copies = work->part[gradients ? PART_GRADS : PART_WEIGHTS];
    if (work->plan.n_moves > 0)
        mover_begin(x, &work->mover[gradients], gradients ? NULL : copies, gradients ? copies : NULL,
                    work->part[PART_MOVING]);
}

static int wave_of(const Model* m, int l) { return m->shape.first_layer + l + 1; }

// ---- around a step

// Copies are filled layer by layer, as ZeRO stage 3 has weights by turns. What leaves is packed when its wave begins.
void work_begin(Model* m) {
    Work* work = m->ranks->work;
    Moving x;
    if (!work) return;
    work->in_step = 1;
    if (!work->differs) return;
    begin_moves(m, &x, 0);
    for (int l = 0; l < work->L; l++) {
        zero_use_layer(m, l, 1);
        for (int i = 0; i < N_SUBLAYERS; i++)
            if (work_of(work, l, (SublayerId)i)->differs) exchange_own(m, (SublayerId)i, l, 0);
        if (work->plan.n_moves == 0) continue;
        x.from = array_of(m, l, 0, 0);
        mover_advance(&x, wave_of(m, l) + 1);
    }
    if (work->plan.n_moves > 0) mover_end(&x);
    m->k->clear(work->part[PART_GRADS], work->bytes[PART_GRADS], m->s);
}

// ZeRO stages 2 and 3 have a layer's gradients as sums over rounds already, at their owners. So what was computed apart
// from them is reduced once more, by all ranks of a group in which some rank has such gradients. exchange_own fills
// also those of slices that others compute, which the waves then overwrite. A wave arrives when the next one has begun.
void work_end(Model* m) {
    Work* work = m->ranks->work;
    Moving x;
    if (!work) return;
    begin_moves(m, &x, 1);
    for (int l = 0; l < work->L && (work->differs || work->plan.of_group); l++) {
        zero_open_grads(m, l);
        for (int i = 0; i < N_SUBLAYERS && work->differs; i++)
            if (work_of(work, l, (SublayerId)i)->differs) exchange_own(m, (SublayerId)i, l, 1);
        if (work->plan.n_moves > 0) x.to = array_of(m, l, 0, 1), mover_advance(&x, wave_of(m, l) + 2);
        zero_close_grads(m, l);
    }
    if (work->plan.n_moves > 0) mover_end(&x);
    if (work->plan.of_group) zero_close_grads(m, ENDS);
    work->in_step = 0;
}

// ---- memory

static Work dimensions(const Model* m, const WorkNeeds* needs) {
    const Shape* shape = &m->shape;
    const int least[N_SUBLAYERS] = {[ATTENTION] = needs->most_heads, [MLP] = needs->most_hidden};
    Work work = {.shape = *shape, .L = shape->L, .C = shape->C, .dt = m->dt};
    for (int i = 0; i < N_SUBLAYERS; i++) {
        SublayerId id = (SublayerId)i;
        work.span[id] = unit_columns(shape, id);
        work.own[id] = own_units(shape, id);
        work.most[id] = MAX(least[id], work.own[id]);
        size_t *bytes = work.bytes, elem = sizeof(float), L = (size_t)work.L;
        size_t most = sublayer_elems(&work, id, work.most[id]), own = (size_t)(work.own[id] * work.span[id]);
        bytes[PART_WEIGHTS] += L * most * dtype_bytes(m->dt);
        bytes[PART_GRADS] += L * most * elem;
        bytes[PART_MOVING] += 2 * (size_t)work.most[id] * unit_elems(shape, id) * elem;  // given and taken
        bytes[PART_LISTS] += L * 2 * ((size_t)work.C + own) * sizeof(int);               // both lists of both cuts
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
    return work;
}

void work_close(Work* work) {
    if (!work) return;
    arena_free(&work->arena);
    free(work->lists);
    free(work->layers);
    free(work);
}

// ---- lists of what is left out

// Cuts the columns of an input, of which this rank owns `all`, to those of a list; a list of as many cuts nothing.
static void cut_to(Work* work, Cut* cut, const IndexList* columns, int all) {
    int n = columns->n, *kept = work->lists_end, *place = kept + n;
    if (n == cut->n) return;
    memcpy(kept, columns->index, (size_t)n * sizeof *kept);
    for (int j = 0; j < all; j++) place[j] = -1;
    for (int j = 0; j < n; j++) place[kept[j]] = j;
    work->lists_end = place + all;
    const int* on_device = (const int*)work->part[PART_LISTS] + (kept - work->lists);
    *cut = (Cut){n, on_device, on_device + n};
}

void work_set(Model* m, const WorkPlan* plan) {
    Work* work = m->ranks->work;
    SliceCount given = work_moved(plan, tp_rank(m), 0), taken = work_moved(plan, tp_rank(m), 1);
    work->lists_end = work->lists;
    work->plan = *plan;
    work->plan.kept = NULL;
    if (!plan->active) work->plan.n_moves = 0;
    work->differs = plan->active && plan->n_moves > 0;  // then ranks without a move meet the others too
    work->cut = 0;
    for (int i = 0; i < work->L * N_SUBLAYERS && plan->active; i++) {
        SublayerId id = (SublayerId)(i % N_SUBLAYERS);
        int stay = work->own[id] - units_of(given, id);
        SublayerWork w = {0, stay, units_of(taken, id), {.n = work->C}, {.n = stay * work->span[id]}, {{0}}};
        const IndexList* kept = plan->kept ? plan->kept[i / N_SUBLAYERS].columns : NULL;
        if (kept && w.taken == 0) {
            cut_to(work, &w.in, &kept[linear_in(id)], work->C);
            cut_to(work, &w.out, &kept[linear_out(id)], work->own[id] * work->span[id]);
        }
        w.differs = stay < work->own[id] || w.taken > 0 || w.in.kept || w.out.kept;
        place_copies(work, &w, i / N_SUBLAYERS, id);
        work->differs |= w.differs;
        work->cut |= w.in.kept || w.out.kept;
        work->layers[i] = w;
    }
    if (plan->active && plan->n_moves > 0) open_movers(m);
    if (work->lists_end == work->lists) return;
    m->k->upload(work->part[PART_LISTS], work->lists, (size_t)(work->lists_end - work->lists) * sizeof(int), m->s);
    m->k->synchronize(m->s);
}

int work_freezes(const Model* m) { return m->ranks->work && m->ranks->work->cut; }

// ---- views

// Returns the work that differs from what this rank owns; NULL: nothing does, or no step is at work, as in evaluation.
static const SublayerWork* changed(const Model* m, SublayerId id, int l) {
    const Work* work = m->ranks->work;
    return work && work->differs && work->in_step && work_of(work, l, id)->differs ? work_of(work, l, id) : NULL;
}

int work_units(const Model* m, SublayerId id, int l) {
    const SublayerWork* w = changed(m, id, l);
    LayerUnits units = shape_units(&m->shape, l);
    return w ? w->stay + w->taken : id == ATTENTION ? units.core_kv_heads : units.hidden;
}

Linear work_linear(const Model* m, LinearId id, int l) {
    SublayerId sub = sublayer_of(id);
    const SublayerWork* now = changed(m, sub, l);
    int is_in = is_linear_in(id), adds_bias = is_in || layer_cut_rank(m, l) == 0;
    const ParamPlace *w = now ? &now->copies[is_in ? ROWS : COLUMNS] : param_place(m, sublayers[sub].weight[id % 2], l),
                     *b = now && is_in ? &now->copies[BIAS] : param_place(m, sublayers[sub].bias[id % 2], l);
    Linear linear = {.w = w->weights, .dw = w->grads, .OC = w->rows, .K = w->cols, .width = w->cols};
    if (adds_bias && b->cols > 0) linear.b = b->weights, linear.db = b->grads;
    if (!now) return linear;
    const Cut* cut = is_in ? &now->in : &now->out;
    linear.kept = cut->kept, linear.source = cut->place;
    linear.width = is_in ? m->shape.C : (now->stay + now->taken) * m->ranks->work->span[sub];
    return linear;
}

// ---- the four linears

// Returns the linear. If nothing is left of its input, that is one column of zeros, because a bias remains.
static Linear linear_of(const Model* m, LinearId id, int l) {
    Linear w = work_linear(m, id, l);
    if (w.K > 0) return w;
    w.K = 1;
    w.w = m->ranks->zeros;
    w.dw = (float*)m->ranks->spent;
    return w;
}

// Returns the columns of x (N, width) that the linear uses.
static const void* kept_columns(const Model* m, const Linear* w, const void* x, void* scratch, int N) {
    if (w->width == 0) return x ? m->ranks->zeros : NULL;
    if (!w->kept || !x) return x;
    m->k->ranks->gather_columns(scratch, x, w->kept, N, w->K, w->width, m->dt, m->s);
    return scratch;
}

// TIME_LINEAR is the matmuls alone, which resizing shrinks: gathering and scattering columns counts as other time.
void work_forward(const Model* m, LinearId id, int l, void* out, void* gelu, const void* x, int N) {
    Linear w = linear_of(m, id, l);
    if (w.OC == 0) return;
    x = kept_columns(m, &w, x, m->ranks->columns[0], N);
    TimeKind before = timer_enter(m->timer, TIME_LINEAR, m->s);
    Fp8Matmul p = {.out = out, .gelu = gelu, .bias = w.b, .N = N, .K = w.K, .OC = w.OC};
    if (!fp8_multiply(m, id, l, FP8_X, x, p)) m->k->matmul_forward(out, gelu, x, w.w, w.b, N, w.K, w.OC, m->dt, m->s);
    lora_forward(m, id, l, out, x, N);
    timer_enter(m->timer, before, m->s);
}

void work_backward_weight(const Model* m, LinearId id, int l, const void* dout, const void* x, int N) {
    Linear w = linear_of(m, id, l);
    if (w.OC == 0) return;
    x = kept_columns(m, &w, x, m->ranks->columns[0], N);
    TimeKind before = timer_enter(m->timer, TIME_LINEAR, m->s);
    if (w.dw) m->k->matmul_backward_weight(w.dw, w.db, dout, x, N, w.K, w.OC, m->dt, m->s);
    lora_backward_weight(m, id, l, dout, x, N);
    timer_enter(m->timer, before, m->s);
}

void work_backward_input(const Model* m, LinearId id, int l, void* dx, const void* dout, const void* pre, int N) {
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
    Fp8Matmul p = {.out = computed, .pre = pre, .N = N, .K = w.OC, .OC = w.K};
    if (!fp8_multiply(m, id, l, FP8_DOUT, dout, p))
        m->k->matmul_backward_input(computed, dout, w.w, pre, N, w.K, w.OC, m->dt, m->s);
    lora_backward_input(m, id, l, computed, dout, N);
    timer_enter(m->timer, before, m->s);
    if (w.kept) k->ranks->scatter_columns(dx, computed, w.source, N, w.width, w.K, m->dt, m->s);
}
