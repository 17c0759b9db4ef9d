// sample.c - draws a token from each row of logits. A thread takes a row and reads it a few times over: for the largest
// logit, with top_k for the least that is drawn from, for the two sums, and for the run of ids in which the token is.
#include <math.h>
#include <string.h>

#include "kernels/cpu/simd.h"

enum { RUN = 256, LEAST_FINITE = 0x800000 };  // ids whose weights are added up at once; place of -FLT_MAX

typedef struct Row {
    const void* z;
    float best, least;  // the largest logit of the ids; the least that is drawn from
    float scale;        // 1 / temperature
} Row;

// Returns the largest of the logits begin .. end, at least `max`.
SIMD_INLINE float largest(float max, const void* z, size_t begin, size_t end, DType dt) {
    vf highest = vf_set1(max);
    FOR_VECTORS(v, n, begin, end, {
        vf x = vf_get(z, v, n, dt);
        if (n < SIMD_FLOATS) x = vf_select(vf_lanes() < vf_set1((float)n), x, highest);
        highest = vf_max(x, highest);
    });
    return vf_highest(highest);
}

SIMD_INLINE size_t count_from(float least, const void* z, size_t ids, DType dt) {
    size_t count = 0;
    for (size_t begin = 0; begin < ids; begin += 1 << 20) {  // a lane counts without rounding
        vf sum = (vf){0};
        FOR_VECTORS(v, n, begin, MIN(ids, begin + (1 << 20)), {
            vf one = vf_select(vf_get(z, v, n, dt) >= vf_set1(least), vf_set1(1), (vf){0});
            sum += n < SIMD_FLOATS ? vf_select(vf_lanes() < vf_set1((float)n), one, (vf){0}) : one;
        });
        count += (size_t)vf_sum(sum);
    }
    return count;
}

// Returns the float whose place in the order of all floats is `key`: bits of negative ones count down.
static float float_at(uint32_t key) {
    float x;
    uint32_t bits = key >> 31 ? key & 0x7fffffff : ~key;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// Returns the k-th largest logit of the ids, found bit by bit of its place. The search does not find -infinity, since
// it meets NaN below the least finite float.
SIMD_INLINE float least_drawn(const void* z, size_t ids, int k, DType dt) {
    uint32_t key = 0;
    if (k <= 0 || (size_t)k >= ids) return -INFINITY;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1)
        if (count_from(float_at(key | bit), z, ids, dt) >= (size_t)k) key |= bit;
    return key < LEAST_FINITE ? -INFINITY : float_at(key);
}

// Writes weights (RUN) of the ids begin .. end, and returns their sum.
SIMD_INLINE double weigh_run(float* weights, const Row* r, size_t begin, size_t end, DType dt) {
    vf sum = (vf){0};
    FOR_VECTORS(v, n, begin, end, {
        vf x = vf_get(r->z, v, n, dt), w = vf_exp_bounded((x - r->best) * r->scale);
        w = vf_select(x >= vf_set1(r->least), w, (vf){0});
        if (n < SIMD_FLOATS) w = vf_select(vf_lanes() < vf_set1((float)n), w, (vf){0});
        vf_store(weights + (v - begin), w);
        sum += w;
    });
    return (double)vf_sum(sum);
}

SIMD_INLINE double sum_exponentials(const void* z, float max, size_t V, DType dt) {
    double total = 0;
    for (size_t begin = 0; begin < V; begin += RUN) {
        vf sum = (vf){0};
        FOR_VECTORS(v, n, begin, MIN(begin + RUN, V), {
            vf x = vf_exp_bounded(vf_get(z, v, n, dt) - max);
            sum += n < SIMD_FLOATS ? vf_select(vf_lanes() < vf_set1((float)n), x, (vf){0}) : x;
        });
        total += (double)vf_sum(sum);
    }
    return total;
}

// Returns the id at which the weights pass u times their sum; `best` if none does, which only rounding or NaN brings.
SIMD_INLINE int find_token(const Row* r, size_t ids, double u, int best, DType dt) {
    float weights[RUN + SIMD_FLOATS];
    double total = 0, below = 0;
    for (size_t v = 0; v < ids; v += RUN) total += weigh_run(weights, r, v, MIN(v + RUN, ids), dt);
    for (size_t begin = 0; begin < ids; begin += RUN) {
        size_t end = MIN(begin + RUN, ids);
        double sum = weigh_run(weights, r, begin, end, dt), upto = below;
        below += sum;
        if (!(u * total < below)) continue;
        for (size_t v = begin; v < end; v++) {
            upto += (double)weights[v - begin];
            if (weights[v - begin] > 0) best = (int)v;  // one by one the sum may end below that of the vectors
            if (u * total < upto) return (int)v;
        }
        return best;
    }
    return best;
}

SIMD_INLINE void sample_row(Draw* draw, const void* z, const Sampling* how, DType dt) {
    size_t ids = (size_t)how->ids, V = (size_t)how->V;
    Row r = {z, largest(-INFINITY, z, 0, ids, dt), -INFINITY, 1};
    float max = largest(r.best, z, ids, V, dt);
    int best = 0;
    while ((size_t)best + 1 < ids && dtype_load(z, (size_t)best, dt) != r.best) best++;
    draw->token = best;
    if (how->temperature > 0) {
        r.least = least_drawn(z, ids, how->top_k, dt), r.scale = (float)(1 / MAX(how->temperature, 1e-30));
        draw->token = find_token(&r, ids, draw->u, best, dt);
    }
    draw->logprob = (float)(dtype_load(z, (size_t)draw->token, dt) - max - log(sum_exponentials(z, max, V, dt)));
}

typedef struct Job {
    Draw* draws;
    const void* logits;
    const Sampling* how;
    size_t Vp;
    DType dt;
} Job;

static void sample_token(const void* job, size_t n, int thread) {
    const Job* j = (const Job*)job;
    WITH_DTYPE(j->dt, sample_row, &j->draws[n], row_of(j->logits, n, j->Vp, j->dt), j->how);
}

static void sample(Draw* draws, const void* logits, const Sampling* how, int N, int Vp, DType dt, Stream s) {
    Job j = {draws, logits, how, (size_t)Vp, dt};
    cpu_for(sample_token, &j, (size_t)N, (size_t)N * (size_t)how->V);
}

static void install(Kernels* table) { table->sample = sample; }

const CpuFamily ISA_NAME(sample) = {install, NULL, NULL};
