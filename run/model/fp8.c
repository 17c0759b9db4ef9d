// fp8.c - see fp8.h.
#include "run/model/fp8.h"

#include <math.h>
#include <stdlib.h>

#include "run/model/work.h"

enum { FP8_UNIT = 16 };  // elements: widths are multiples of it

// Returns how many numbers the lists of amax and scales have; 0: this run has none.
static int numbers_of(const Run* run) {
    return run->training && !strcmp(run->config.dtype, "fp8") ? run->model.whole.L * N_LINEARS * FP8_TENSORS : 0;
}

static int number_of(const Model* m, LinearId id, int l, Fp8Tensor tensor) {
    return ((m->shape.first_layer + l) * N_LINEARS + (int)id) * FP8_TENSORS + (int)tensor;
}

// Returns the weights of linear i of this rank's, layer by layer.
static ParamTensor weights_of(const Model* m, int i) {
    int of_layer = i % N_LINEARS;
    return shape_param(&m->shape, sublayers[of_layer / 2].weight[of_layer % 2], i / N_LINEARS);
}

void fp8_check(const Run* run) {
    const Model* m = &run->model;
    const char* other = config_choice(&run->config, "--balance") > 1 ? "--balance" : NULL;
    if (run->config.lora_rank) other = "--lora";
    if (run->strategies) other = "--strategies";
    int most = COUNT(run->books->saved.amaxes) / FP8_TENSORS / N_LINEARS;  // layers
    if (numbers_of(run) == 0) return;
    if (m->whole.L > most) die("--dtype fp8: expected at most %d layers, found %d; try --dtype bf16", most, m->whole.L);
    if (other) die("%s with --dtype fp8: expected linears of the weights that a rank owns; try --dtype bf16", other);
    for (int i = 0; i < m->shape.L * N_LINEARS; i++) {
        ParamTensor t = weights_of(m, i);
        if (t.rows % FP8_UNIT || t.cols % FP8_UNIT)
            die("--dtype fp8: expected widths in multiples of %d on every rank, found %s of %d, %d; try --dtype bf16",
                FP8_UNIT, param_table[t.id].name, t.rows, t.cols);
    }
}

// ---- memory

// Both copies of weights, straight and transposed, lie twice as far from those of the first layer as weights do.
static e4m3* copies_of(const Model* m, LinearId id, int l) {
    size_t at = weights_of(m, l * N_LINEARS + (int)id).offset - shape_bucket(&m->shape, 1).offset;
    return m->ranks->fp8.weights + 2 * at;
}

void fp8_plan(MemoryPlan* plan, const Run* run, int N) {
    const Shape* s = &run->model.shape;
    size_t n = (size_t)numbers_of(run), widest = 0, most = 0;
    int at = memory_find(plan, "activations");
    if (n == 0) return;
    for (int i = 0; i < s->L * N_LINEARS; i++) {
        ParamTensor t = weights_of(&run->model, i);
        widest = MAX(widest, (size_t)MAX(t.rows, t.cols)), most = MAX(most, t.elems);
    }
    size_t operand = (size_t)N * widest, weights = shape_bucket(s, s->L + 1).offset - shape_bucket(s, 1).offset;
    memory_insert(plan, at, "fp8 as bf16", plan->on_host ? (operand + most) * sizeof(bf16) : 0, ON_DEVICE);
    memory_insert(plan, at, "fp8 operand", operand, ON_DEVICE);
    memory_insert(plan, at, "fp8 weights", 2 * weights, ON_DEVICE);
    memory_insert(plan, at, "fp8 scales", 3 * n * sizeof(float), ON_DEVICE);
}

void fp8_open(Run* run, const MemoryPlan* plan) {
    RunState* saved = &run->books->saved;
    const Model* m = &run->model;
    Fp8* f = &m->ranks->fp8;
    int n = numbers_of(run);
    if (saved->fp8 != n) saved->fp8 = 0;
    *f = (Fp8){.n = n, .known = saved->fp8 > 0, .amax = (float*)memory_of(plan, "fp8 scales")};
    f->scales = f->amax + n, f->weights = (e4m3*)memory_of(plan, "fp8 weights");
    f->operand = (e4m3*)memory_of(plan, "fp8 operand"), f->room = (bf16*)memory_of(plan, "fp8 as bf16");
    f->amaxes = saved->amaxes;
    if (run->config.probe) f->known = f->at_work = n > 0;  // rows take a later step's time, whatever they compute
    for (int i = 0; i < n && run->config.probe; i++) saved->amaxes[i] = 1;
    if (n) m->k->ranks->quantize(NULL, NULL, NULL, NULL, 0, 0, FP8_UNIT, m->s);  // a device that lacks it says so
}

// ---- around a step

// Returns (n) the greatest of all ranks since the last call, with room for scales, to be freed.
static float* find_greatest(const Run* run) {
    const Model* m = &run->model;
    const Fp8* f = &m->ranks->fp8;
    size_t bytes = (size_t)f->n * sizeof(float);
    float *amax = (float*)malloc(3 * bytes), *all;
    if (!amax) die("no memory for %d scales", f->n);
    m->k->download(amax, f->amax, bytes, m->s);
    m->k->clear(f->amax, bytes, m->s);
    all = (float*)run_ask_all(run, m->world, amax, bytes);
    for (int i = 0; i < f->n * m->world->size; i++) amax[i % f->n] = fmaxf(amax[i % f->n], all[i]);
    free(all);
    return amax;
}

// Finds the amax of this rank's weights, or quantises them both ways.
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

// Returns what the loss divides gradients by, which a step's labels decide: amaxes are kept without it.
static double divisor_of(const Run* run, int i) {
    return i % FP8_TENSORS == FP8_DOUT && run->batch.weight > 0 ? run->batch.weight : 1;
}

void fp8_begin(Run* run) {
    Model* m = &run->model;
    Fp8* f = &m->ranks->fp8;
    f->at_work = f->n > 0;
    if (!f->known) return;
    visit_weights(m, 0);
    float *amax = find_greatest(run), *scales = amax + f->n;
    for (int i = 0; i < f->n; i++) {
        double before = FP8_MARGIN * f->amaxes[i] / divisor_of(run, i);
        float most = i % FP8_TENSORS == FP8_W ? amax[i] : (float)before;
        scales[2 * i] = fminf(E4M3_MOST / most, 0x1p100f);  // also that of zeros
        scales[2 * i + 1] = 1 / scales[2 * i];
    }
    m->k->upload(f->scales, scales, 2 * (size_t)f->n * sizeof(float), m->s);
    free(amax);
    visit_weights(m, 1);
}

void fp8_end(Run* run) {
    Fp8* f = &run->model.ranks->fp8;
    if (f->n == 0) return;
    float* amax = find_greatest(run);
    for (int i = 0; i < f->n; i++) {
        double* kept = &run->books->saved.amaxes[i];
        *kept = fmax(amax[i] * divisor_of(run, i), FP8_FADING * *kept);
    }
    run->books->saved.fp8 = f->n, f->known = 1, f->at_work = 0;
    free(amax);
}

// ---- the linears

int fp8_multiply(const Model* m, LinearId id, int l, Fp8Tensor tensor, const void* x, Fp8Matmul p) {
    const Fp8* f = &m->ranks->fp8;
    int at = number_of(m, id, l, tensor), known = f->known && f->amaxes[at] > 0;
    if (!f->at_work) return 0;
    m->k->ranks->quantize(known ? f->operand : NULL, f->amax + at, x, f->scales + 2 * at, 0, p.N, p.K, m->s);
    p.x = f->operand, p.x_unit = f->scales + 2 * at + 1;
    p.w = copies_of(m, id, l) + (tensor == FP8_DOUT ? (size_t)p.K * (size_t)p.OC : 0);
    p.w_unit = f->scales + 2 * number_of(m, id, l, FP8_W) + 1;
    p.k = m->k, p.room = f->room;
    if (known) m->k->ranks->matmul_fp8(&p, m->s);
    return known;
}
