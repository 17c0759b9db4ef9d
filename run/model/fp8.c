// fp8.c - see fp8.h.
#include "run/model/fp8.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/rank_ops.h"

// Each linear of the whole model has three tensors with an amax and a scale; numbers are one after another, layer by
// layer.
typedef enum Fp8Tensor { FP8_X, FP8_DOUT, FP8_W, FP8_TENSORS } Fp8Tensor;

static int is_fp8(const Run* run) { return run->training && !strcmp(run->config.dtype, "fp8"); }

static int numbers_of(const Model* m) { return m->whole.L * N_LINEARS * FP8_TENSORS; }

static int number_of(const Model* m, LinearId id, int l, Fp8Tensor tensor) {
    return ((m->shape.first_layer + l) * N_LINEARS + (int)id) * FP8_TENSORS + (int)tensor;
}

static ParamTensor weights_of(const Model* m, LinearId id, int l) {
    return shape_param(&m->shape, sublayers[sublayer_of(id)].weight[id % 2], l);
}

// ---- what it does not go with

enum { FP8_UNIT = 16 };  // elements that widths must be multiples of

static int check_widths(const Model* m, Err err) {
    for (int i = 0; i < m->shape.L * N_LINEARS; i++) {
        ParamTensor t = weights_of(m, (LinearId)(i % N_LINEARS), i / N_LINEARS);
        if (t.rows % FP8_UNIT == 0 && t.cols % FP8_UNIT == 0) continue;
        return fail(err,
                    "--dtype fp8: expected linears whose inputs and outputs are multiples of %d on each rank, found %d "
                    "and %d of %s; try other widths, another --tp, or --dtype bf16",
                    FP8_UNIT, t.cols, t.rows, param_table[t.id].name);
    }
    return 0;
}

void fp8_check(const Run* run) {
    const Config* c = &run->config;
    const char* other = run->strategies                     ? "--strategies"
                        : c->lora_rank                      ? "--lora"
                        : config_choice(c, "--balance") > 1 ? "--balance resize, migrate or semi"
                                                            : NULL;
    Err err, why;
    if (!is_fp8(run)) return;
    if (other) die("--dtype fp8: expected no %s, whose weights are not quantised; try --dtype bf16", other);
    int failed = check_widths(&run->model, why);
    if (run_meet(run, failed, why, err)) die("%s", err);
}

// ---- memory

// Both copies of a linear's weights, as they are and transposed, lie twice as far from those of the first layer as
// weights do.
static e4m3* copies_of(const Model* m, LinearId id, int l) {
    return m->ranks->fp8.weights + 2 * (weights_of(m, id, l).offset - shape_bucket(&m->shape, 1).offset);
}

static size_t copies_bytes(const Shape* s) {
    return 2 * (shape_bucket(s, s->L + 1).offset - shape_bucket(s, 1).offset);
}

void fp8_plan(MemoryPlan* plan, const Run* run, int N) {
    const Model* m = &run->model;
    size_t numbers = (size_t)numbers_of(m) * sizeof(float), widest = 0, most = 0;
    int at = memory_find(plan, "activations");
    if (!is_fp8(run)) return;
    for (int i = 0; i < m->shape.L * N_LINEARS; i++) {
        ParamTensor t = weights_of(m, (LinearId)(i % N_LINEARS), i / N_LINEARS);
        widest = MAX(widest, (size_t)MAX(t.rows, t.cols)), most = MAX(most, t.elems);
    }
    size_t operand = (size_t)N * widest, room = (operand + most) * sizeof(bf16);
    memory_insert(plan, at, "fp8 operands as bf16", plan->on_host ? room : 0, ON_DEVICE);
    memory_insert(plan, at, "fp8 operand", operand, ON_DEVICE);
    memory_insert(plan, at, "fp8 weights", copies_bytes(&m->shape), ON_DEVICE);
    memory_insert(plan, at, "fp8 scales", 3 * numbers, ON_DEVICE);
    memory_add(plan, "fp8 scales, host", 4 * numbers, ON_HOST);
}

void fp8_open(Run* run, const MemoryPlan* plan) {
    const RunState* saved = &run->books->saved;
    const Model* m = &run->model;
    Fp8* f = &m->ranks->fp8;
    if (!is_fp8(run)) return;
    *f = (Fp8){.n = numbers_of(m)};
    f->amax = (float*)memory_of(plan, "fp8 scales"), f->scales = f->amax + f->n;
    f->last = (float*)memory_of(plan, "fp8 scales, host"), f->now = f->last + f->n, f->host_scales = f->now + f->n;
    f->weights = (e4m3*)memory_of(plan, "fp8 weights"), f->operand = (e4m3*)memory_of(plan, "fp8 operand");
    f->room = (bf16*)memory_of(plan, "fp8 operands as bf16");
    f->known = saved->fp8 == f->n;
    for (int i = 0; i < f->n && f->known; i++) f->last[i] = (float)saved->amaxes[i];
    m->k->ranks->quantize(NULL, NULL, NULL, NULL, 0, 0, FP8_UNIT, m->s);  // a device that cannot says so
}

void fp8_save(const Run* run, RunState* saved) {
    const Fp8* f = &run->model.ranks->fp8;
    saved->fp8 = f->known ? f->n : 0;
    for (int i = 0; i < saved->fp8; i++) saved->amaxes[i] = f->last[i];
}

// ---- around a step

// Fills amax (n, host) with the greatest of all ranks since the last call. Ranks without a linear have 0 there.
static void find_greatest(const Run* run, float* amax) {
    const Model* m = &run->model;
    const Fp8* f = &m->ranks->fp8;
    size_t bytes = (size_t)f->n * sizeof *amax;
    m->k->download(amax, f->amax, bytes, m->s);
    m->k->clear(f->amax, bytes, m->s);
    float* all = (float*)run_ask_all(run, m->world, amax, bytes);
    for (int i = 0; i < f->n * m->world->size; i++) amax[i % f->n] = fmaxf(amax[i % f->n], all[i]);
    free(all);
}

// Finds the amax of this rank's weights, or quantises them.
static void visit_weights(Model* m, int quantises) {
    const Fp8* f = &m->ranks->fp8;
    for (int i = 0; i < m->shape.L * N_LINEARS; i++) {
        LinearId id = (LinearId)(i % N_LINEARS);
        int l = i / N_LINEARS, at = number_of(m, id, l, FP8_W);
        if (id == 0) zero_use_layer(m, l, 1);
        Linear w = work_linear(m, id, l);
        e4m3* to = copies_of(m, id, l);
        for (int way = 0; way < 2 && quantises; way++, to += (size_t)w.OC * (size_t)w.K)
            m->k->ranks->quantize(to, NULL, w.w, f->scales + 2 * at, way, w.OC, w.K, m->s);
        if (!quantises) m->k->ranks->quantize(NULL, f->amax + at, w.w, NULL, 0, w.OC, w.K, m->s);
    }
}

// A tensor of zeros, or of numbers whose scale would be none, has scale 1.
static void set_scales(Fp8* f) {
    const float least = 0x1p-100f;
    for (int i = 0; i < f->n; i++) {
        float most = i % FP8_TENSORS == FP8_W ? f->now[i] : FP8_MARGIN * f->last[i];
        f->host_scales[2 * i] = most > least ? E4M3_MOST / most : 1;
        f->host_scales[2 * i + 1] = 1 / f->host_scales[2 * i];
    }
}

void fp8_begin(Run* run) {
    Model* m = &run->model;
    Fp8* f = &m->ranks->fp8;
    if (f->n == 0) return;
    f->at_work = 1;
    if (!f->known) return;
    visit_weights(m, 0);
    find_greatest(run, f->now);
    set_scales(f);
    m->k->upload(f->scales, f->host_scales, 2 * (size_t)f->n * sizeof(float), m->s);
    visit_weights(m, 1);
}

void fp8_end(Run* run) {
    Fp8* f = &run->model.ranks->fp8;
    if (f->n == 0) return;
    find_greatest(run, f->last);
    f->known = 1, f->at_work = 0;
}

// ---- the linears

// Multiplies x (N,K) by the copy of the weights that the tensor x needs; the rest of p is filled in.
static int multiply(const Model* m, LinearId id, int l, Fp8Tensor tensor, const void* x, Fp8Matmul* p) {
    const Fp8* f = &m->ranks->fp8;
    if (!f->at_work) return 0;
    int at = number_of(m, id, l, tensor);
    m->k->ranks->quantize(f->known ? f->operand : NULL, f->amax + at, x, f->scales + 2 * at, 0, p->N, p->K, m->s);
    p->x = f->operand, p->x_unit = f->scales + 2 * at + 1;
    p->w = copies_of(m, id, l) + (tensor == FP8_DOUT ? (size_t)p->K * (size_t)p->OC : 0);
    p->w_unit = f->scales + 2 * number_of(m, id, l, FP8_W) + 1;
    p->room = f->room;
    if (f->known) m->k->ranks->matmul_fp8(p, m->s);
    return f->known;
}

int fp8_forward(const Model* m, LinearId id, int l, const Linear* w, void* out, void* gelu, const void* x, int N) {
    Fp8Matmul p = {.out = out, .gelu = gelu, .bias = w->b, .N = N, .K = w->K, .OC = w->OC};
    return multiply(m, id, l, FP8_X, x, &p);
}

int fp8_backward_input(const Model* m, LinearId id, int l, const Linear* w, void* dx, const void* dout, const void* pre,
                       int N) {
    Fp8Matmul p = {.out = dx, .pre = pre, .N = N, .K = w->OC, .OC = w->K};
    return multiply(m, id, l, FP8_DOUT, dout, &p);
}
