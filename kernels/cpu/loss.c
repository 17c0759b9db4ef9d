// loss.c - the classifier (softmax cross-entropy with its gradient, in place), labels that do not count alike, AdamW
// and the norm of the gradient.
#include <float.h>
#include <math.h>

#include "kernels/cpu/simd.h"

enum {
    CHUNK = 1 << 12,  // elements handled at once
    PIECE = 1 << 9,   // weights updated at once
    PARTS = 256,      // fixed pieces of sum_of_squares
};

// ---- classifier

// Finds max and total = sum of exp(x - max) of a row, by chunks in one pass over memory: a chunk that raises max scales
// the total down. Starting from -FLT_MAX instead of -infinity lets a whole chunk be -infinity.
SIMD_INLINE void log_sum_exp(float* max, float* total, const void* x, size_t V, DType dt) {
    *max = -FLT_MAX;
    *total = 0;
    for (size_t begin = 0; begin < V; begin += CHUNK) {
        size_t end = MIN(begin + CHUNK, V);
        vf highest = vf_set1(*max), sum = {0};
        float old = *max;
        FOR_VECTORS(v, n, begin, end, {
            vf here = vf_get(x, v, n, dt);
            if (n < SIMD_FLOATS) here = vf_select(vf_lanes() < vf_set1((float)n), here, highest);
            highest = vf_max(highest, here);
        });
        *max = vf_highest(highest);
        FOR_VECTORS(v, n, begin, end, {
            vf p = vf_exp_bounded(vf_get(x, v, n, dt) - *max);
            if (n < SIMD_FLOATS) p = vf_select(vf_lanes() < vf_set1((float)n), p, (vf){0});
            sum += p;
        });
        *total = *total * expf(old - *max) + vf_sum(sum);
    }
}

static float logit(const void* logits, size_t v, DType dt) { return (float)dtype_load(logits, v, dt); }

// Logits become their gradient, given max and total of the softmax. The target is a column, or not one of these V.
SIMD_INLINE void write_gradient_row(void* logits, int target, float max, float total, float scale, size_t V, size_t Vp,
                                    DType dt) {
    int here = target >= 0 && (size_t)target < V;
    float factor = scale / total, at_target = here ? logit(logits, (size_t)target, dt) : 0;
    FOR_VECTORS(v, n, 0, V, vf_put(logits, v, n, vf_exp_bounded(vf_get(logits, v, n, dt) - max) * factor, dt););
    memset((char*)logits + V * dtype_bytes(dt), 0, (Vp - V) * dtype_bytes(dt));
    if (here) vf_put(logits, (size_t)target, 1, vf_set1((expf(at_target - max) / total - 1) * scale), dt);
}

SIMD_INLINE float classify_row(void* logits, int target, float scale, int write_gradient, size_t V, size_t Vp,
                               DType dt) {
    if (target < 0) {
        if (write_gradient) memset(logits, 0, Vp * dtype_bytes(dt));
        return 0;
    }
    float max, total, at_target = logit(logits, (size_t)target, dt);
    log_sum_exp(&max, &total, logits, V, dt);
    if (write_gradient) write_gradient_row(logits, target, max, total, scale, V, Vp, dt);
    return max - at_target + logf(total);
}

typedef struct Classifier {
    float *losses, *stats;  // stats: classifier_part writes, classifier_join reads them
    void* logits;
    const int* targets;
    float scale;
    int write_gradient, parts, first;
    size_t N, V, Vp;
    DType dt;
    const TokenLoss* of;  // weigh_labels reads it
} Classifier;

static void classify_token(const void* job, size_t n, int thread) {
    const Classifier* c = (const Classifier*)job;
    void* row = (void*)row_of(c->logits, n, c->Vp, c->dt);
    c->losses[n] = WITH_DTYPE(c->dt, classify_row, row, c->targets[n], c->scale, c->write_gradient, c->V, c->Vp);
}

static void classifier(float* losses, void* logits, const int* targets, float scale, int write_gradient, int N, int V,
                       int Vp, DType dt, Stream s) {
    Classifier c = {losses,    NULL,      logits,     targets, scale, write_gradient, 1, 0,
                    (size_t)N, (size_t)V, (size_t)Vp, dt,      NULL};
    cpu_for(classify_token, &c, c.N, c.N * c.Vp);
}

// ---- the classifier in parts of the vocabulary

// Writes the stats of a row. If all logits are -infinity the greatest is too, and the sum is 0.
SIMD_INLINE void summarize_row(float stats[3], const void* logits, int target, size_t V, DType dt) {
    log_sum_exp(&stats[0], &stats[1], logits, V, dt);
    if (stats[1] == 0) stats[0] = -INFINITY;
    stats[2] = target >= 0 && (size_t)target < V ? logit(logits, (size_t)target, dt) : 0;
}

// Returns the target's column in a part that begins at `first`: below 0, or V or more, if another part has it.
static int column_of(int target, int first) { return target < first ? -1 : target - first; }

static void summarize_token(const void* job, size_t n, int thread) {
    const Classifier* c = (const Classifier*)job;
    const void* row = row_of(c->logits, n, c->Vp, c->dt);
    WITH_DTYPE(c->dt, summarize_row, c->stats + 3 * n, row, column_of(c->targets[n], c->first), c->V);
}

static void classifier_part(float* stats, const void* logits, const int* targets, int first, int N, int V, int Vp,
                            DType dt, Stream s) {
    Classifier c = {NULL, stats, (void*)logits, targets, 0, 0, 1, first, (size_t)N, (size_t)V, (size_t)Vp, dt, NULL};
    cpu_for(summarize_token, &c, c.N, c.N * c.Vp);
}

static void join_token(const void* job, size_t n, int thread) {
    const Classifier* c = (const Classifier*)job;
    void* row = (void*)row_of(c->logits, n, c->Vp, c->dt);
    CpuSoftmax all = cpu_join_softmax(c->stats, c->parts, c->N, n);
    int target = c->targets[n];
    c->losses[n] = target < 0 ? 0 : all.loss;
    if (!c->write_gradient) return;
    if (target < 0) memset(row, 0, c->Vp * dtype_bytes(c->dt));
    else
        WITH_DTYPE(c->dt, write_gradient_row, row, column_of(target, c->first), (float)all.max, (float)all.total,
                   c->scale, c->V, c->Vp);
}

static void classifier_join(float* losses, void* logits, const float* stats, int parts, const int* targets, int first,
                            float scale, int write_gradient, int N, int V, int Vp, DType dt, Stream s) {
    Classifier c = {losses,    (float*)stats, logits,     targets, scale, write_gradient, parts, first,
                    (size_t)N, (size_t)V,     (size_t)Vp, dt,      NULL};
    cpu_for(join_token, &c, c.N, c.N * c.Vp);
}

// ---- labels that do not count alike

SIMD_INLINE void scale_row(void* x, float factor, size_t n_columns, DType dt) {
    FOR_VECTORS(v, n, 0, n_columns, vf_put(x, v, n, vf_get(x, v, n, dt) * factor, dt););
}

static void weigh_token(const void* job, size_t n, int thread) {
    const Classifier* w = (const Classifier*)job;
    float slope = 0;
    w->losses[n] = w->targets[n] < 0 ? 0 : token_loss(w->of, n, w->losses[n], &slope);
    if (w->write_gradient) WITH_DTYPE(w->dt, scale_row, (void*)row_of(w->logits, n, w->Vp, w->dt), slope, w->Vp);
}

static void weigh_labels(float* losses, void* logits, const int* targets, const TokenLoss* of, int write_gradient,
                         int N, int Vp, DType dt, Stream s) {
    Classifier w = {losses, NULL, logits, targets, 0, write_gradient, 1, 0, (size_t)N, 0, (size_t)Vp, dt, of};
    cpu_for(weigh_token, &w, w.N, w.N * w.Vp);
}

// ---- AdamW: reads 16 and writes 12 bytes a weight, 14 with bf16 weights; and Muon, by the same loop

typedef struct AdamWStep {  // the factors of one step, as every weight needs them
    float m_keep, m_take, v_keep, v_take, v_correction, lr_corrected, lr_decay, eps, grad_scale;
} AdamWStep;

// Rounds by integers alone, of which the compiler makes vectors. The masters are still in the first cache. An element
// whose `grad` (unless NULL) is 0 is frozen.
static void round_run(bf16* restrict to, const float* restrict x, const float* grad, size_t n, uint64_t seed,
                      uint64_t first) {
    for (size_t i = 0; i < n; i++)
        if (!grad || grad[i] != 0) to[i] = bf16_round(x[i], seed, first + i);
}

static void round_range(const AdamW* a, size_t begin, size_t end) {
    const Place* p = &a->place;
    for (size_t n; begin < end; begin += n) {
        n = p->gap ? MIN(end - begin, p->cols - (p->col + begin) % p->cols) : end - begin;
        round_run((bf16*)a->param + begin, a->master + begin, a->freeze ? a->grad + begin : NULL, n, a->rounding,
                  place_of(p, begin));
    }
}

typedef enum Update { ADAMW, MOMENTUM, FOLLOW } Update;

// Frozen weights are computed too, and then chosen as they were: so all others come from the same instructions, and
// have the same bits, with freezing and without.
SIMD_INLINE void update_range(const AdamW* a, AdamWStep k, size_t begin, size_t end, Update update, DType dt) {
    const vf_mask freeze = (vf_mask){0} - !!a->freeze;
    FOR_VECTORS(i, n, begin, end, {
        vf grad = vf_get(a->grad, i, n, DT_F32), g = grad * k.grad_scale, old_v = vf_get(a->v, i, n, DT_F32);
        vf along = old_v;
        vf_mask frozen = freeze & (grad == (vf){0});
        if (update != FOLLOW) {
            vf old_m = vf_get(a->m, i, n, DT_F32), m, v;
            if (update == MOMENTUM) {
                g *= k.m_take;
                m = old_m * k.m_keep + g, v = m * k.m_keep + g;
            } else {
                m = old_m * k.m_keep + g * k.m_take, v = old_v * k.v_keep + g * g * k.v_take;
                along = m / (vf_sqrt(v * k.v_correction) + k.eps);
            }
            vf_put(a->m, i, n, vf_select(frozen, old_m, m), DT_F32);
            vf_put(a->v, i, n, vf_select(frozen, old_v, v), DT_F32);
        }
        if (update != MOMENTUM) {
            vf old_x = vf_get(a->master, i, n, DT_F32), x = old_x - (along * k.lr_corrected + old_x * k.lr_decay);
            vf_put(a->master, i, n, vf_select(frozen, old_x, x), DT_F32);
            if (a->param != (void*)a->master)
                vf_put(a->param, i, n, vf_select(frozen, vf_get(a->param, i, n, dt), x), dt);
        }
    });
    if (update != MOMENTUM && dt == DT_BF16 && a->rounding) round_range(a, begin, end);
}

typedef struct AdamWJob {
    const AdamW* a;
    AdamWStep k;
    Update update;
    DType dt;
} AdamWJob;

static void update_task(const void* job, size_t piece, int thread) {
    const AdamWJob* j = (const AdamWJob*)job;
    size_t begin = piece * PIECE, end = MIN(begin + PIECE, j->a->n);
    switch (j->update) {
        case ADAMW: WITH_DTYPE(j->dt, update_range, j->a, j->k, begin, end, ADAMW); break;
        case MOMENTUM: update_range(j->a, j->k, begin, end, MOMENTUM, DT_F32); break;
        case FOLLOW: WITH_DTYPE(j->dt, update_range, j->a, j->k, begin, end, FOLLOW); break;
    }
}

static void update(const AdamW* a, Update update, DType dt) {
    if (!isfinite(*a->grad_scale)) return;
    double m_correction = 1 - pow(a->beta1, a->t), v_correction = 1 - pow(a->beta2, a->t);
    AdamWStep k = {a->beta1,
                   (float)(1.0 - a->beta1),
                   a->beta2,
                   (float)(1.0 - a->beta2),
                   (float)(1 / v_correction),
                   update == FOLLOW ? a->lr : (float)(a->lr / m_correction),
                   a->lr * a->weight_decay,
                   a->eps,
                   *a->grad_scale};
    cpu_for(update_task, &(AdamWJob){a, k, update, dt}, CEIL_DIV(a->n, (size_t)PIECE), a->n);
}

static void adamw(const AdamW* a, int n, DType dt, Stream s) {
    for (int i = 0; i < n; i++) update(&a[i], ADAMW, dt);
}
static void momentum(const AdamW* a, Stream s) { update(a, MOMENTUM, DT_F32); }
static void follow(const AdamW* a, DType dt, Stream s) { update(a, FOLLOW, dt); }

// Sums in double, because a gradient of 10^8 weights adds that many squares.
static double squares(const float* x, size_t begin, size_t end) {
    enum { LANES = SIMD_FLOATS / 2, SUMS = 8 };
    double sum[SUMS * LANES] = {0}, total = 0;
    size_t i = begin;
    for (; i + SUMS * LANES <= end; i += SUMS * LANES)
        for (int lane = 0; lane < SUMS * LANES; lane++) sum[lane] += (double)x[i + lane] * x[i + lane];
    for (; i < end; i++) total += (double)x[i] * x[i];
    for (int lane = 0; lane < SUMS * LANES; lane++) total += sum[lane];
    return total;
}

typedef struct Squares {
    double* part;
    const float* x;
    size_t n, each;
} Squares;

static void squares_of_part(const void* job, size_t p, int thread) {
    const Squares* j = (const Squares*)job;
    j->part[p] = squares(j->x, p * j->each, MIN((p + 1) * j->each, j->n));
}

static void sum_of_squares(double* result, const float* x, size_t n, Stream s) {
    double part[PARTS], total = 0;
    size_t each = ROUND_UP(CEIL_DIV(n, (size_t)PARTS), (size_t)CHUNK), parts = n ? CEIL_DIV(n, each) : 0;
    cpu_for(squares_of_part, &(Squares){part, x, n, each}, parts, n);
    for (size_t p = 0; p < parts; p++) total += part[p];
    *result += total;
}

static void install(Kernels* table) {
    table->classifier = classifier;
    table->adamw = adamw;
    table->sum_of_squares = sum_of_squares;
}

static void install_ranks(RankOps* table) {
    table->classifier_part = classifier_part;
    table->classifier_join = classifier_join;
    table->weigh_labels = weigh_labels;
    table->momentum = momentum;
    table->follow = follow;
}

const CpuFamily ISA_NAME(loss) = {install, install_ranks, NULL};
