// attention_few.h - the forward pass of a document with few queries, as each answer is in generation: it reads keys and
// values where they lie, since packing them into blocks would cost more than they do. It is a part of
// attention_tasks.h, which has declared documents, rows of heads and how these leave fp32.
#pragma once

enum { FEW = 3 };  // queries: by the count of loads, four cost as much as a packed block

// s (n, rounded up to whole vectors) = products of q (HSp) with n rows of keys. On the way it fetches, from `first` on,
// `fetch` bytes of each of the next rows.
SIMD_INLINE void few_scores(float* s, const float* q, const char* k, const char* first, size_t fetch, size_t ld, int n,
                            int HS, DType dt) {
    size_t row_bytes = ld * dtype_bytes(dt);
    for (int j = 0; j < n; j += SIMD_FLOATS) {
        vf sum[SIMD_FLOATS] = {(vf){0}}, total = (vf){0};
        for (int i = 0; i < MIN(SIMD_FLOATS, n - j); i++) {
            size_t row = (size_t)(j + i) * row_bytes;
            for (size_t byte = 0; byte < fetch; byte += 64) __builtin_prefetch(first + row + AHEAD * row_bytes + byte);
            sum[i] = (vf){0};
            FOR_VECTORS(c, lanes, 0, HS, sum[i] += vf_load(q + c) * vf_get(k + row, c, lanes, dt););
        }
        vf_transpose(sum);
        for (int i = 0; i < SIMD_FLOATS; i++) total += sum[i];
        vf_store(s + j, total);
    }
}

// s = exp(s - max) of n scores, none of the other lanes. Returns what sums so far shrink by.
SIMD_INLINE float few_probabilities(float* s, float* max, float* sum, int n) {
    vf lanes = vf_lanes(), top = vf_set1(*max), total = (vf){0};
    for (int j = 0; j < n; j += SIMD_FLOATS) {
        vf x = vf_select(lanes < vf_set1((float)(n - j)), vf_load(s + j), vf_set1(-INFINITY));
        vf_store(s + j, x);
        top = vf_max(x, top);
    }
    float old = *max;
    *max = vf_highest(top);
    for (int j = 0; j < n; j += SIMD_FLOATS) {
        vf p = vf_exp_bounded(vf_load(s + j) - *max);
        vf_store(s + j, p);
        total += p;
    }
    float keep = expf(old - *max);
    *sum = *sum * keep + vf_sum(total);
    return keep;
}

// o (HSp) = keep o + the sum of p[j] times row j of n rows of values; four sums at once, lest each wait for the last.
SIMD_INLINE void few_values(float* o, float keep, const float* p, const char* v, size_t ld, int n, int HS, DType dt) {
    size_t row = ld * dtype_bytes(dt);
    FOR_VECTORS(c, lanes, 0, HS, {
        vf sum[4] = {vf_load(o + c) * keep, (vf){0}, (vf){0}, (vf){0}};
        int j = 0;
        for (; j + 4 <= n; j += 4)
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) sum[i] += p[j + i] * vf_get(v + (size_t)(j + i) * row, c, lanes, dt);
        for (; j < n; j++) sum[0] += p[j] * vf_get(v + (size_t)j * row, c, lanes, dt);
        vf_store(o + c, (sum[0] + sum[1]) + (sum[2] + sum[3]));
    });
}

// The state so far of one query and a head; q and o lie after it.
typedef struct FewHead {
    float max, sum;
} FewHead;

static size_t few_width(int HS) { return ROUND_UP(padded(HS), (size_t)SIMD_FLOATS); }
static size_t few_bytes(const KernelLimits* limits) {
    return (size_t)limits->NH * (sizeof(FewHead) + 2 * few_width(limits->HS) * sizeof(float)) + 64;
}

// Computes query i of the document, heads h0 .. h1: all heads of a block of keys before the next block, because their
// keys lie side by side, and memory is the limit.
static void forward_few(void* out, float* lse, const Attention* a, Span d, int i, int h0, int h1, DType dt,
                        void* scratch) {
    int HS = a->HS, all = n_visible(a, d, i);
    float s[BLOCK], *q = (float*)scratch, *o = q + (size_t)(h1 - h0) * few_width(HS);
    FewHead* heads = (FewHead*)(o + (size_t)(h1 - h0) * few_width(HS));
    size_t row = d.q0 + (size_t)i, ld = (size_t)a->ldkv, width = few_width(HS);
    DType out_dt = result_type(a, dt);
    // The first head brings keys and values of all, which lie side by side; one alone brings its keys.
    int is_all = h1 - h0 > 1, first_kv = is_all ? 0 : h0 / heads_of_key(a);
    size_t bytes = (size_t)(is_all ? 2 * a->NKV * HS : HS) * dtype_bytes(dt);
    for (int h = h0; h < h1; h++) {
        const void* query = element(a->q, at(row, a->ldq, h, HS), dt);
        float *my_q = q + (size_t)(h - h0) * width, *my_o = o + (size_t)(h - h0) * width;
        heads[h - h0] = (FewHead){-FLT_MAX, 0};
        FOR_VECTORS(c, lanes, 0, HS, vf_store(my_q + c, vf_get(query, c, lanes, dt) * a->scale);
                    vf_store(my_o + c, (vf){0}););
    }
    for (int j = 0; j < all; j += BLOCK) {
        int n = MIN(BLOCK, all - j);
        for (int h = h0; h < h1; h++) {
            size_t key = at(d.k0 + (size_t)j, a->ldkv, h / heads_of_key(a), HS), mine = (size_t)(h - h0) * width;
            FewHead* x = &heads[h - h0];
            size_t first = at(d.k0 + (size_t)j, a->ldkv, first_kv, HS), fetch = h == h0 ? bytes : 0;
            WITH_DTYPE(dt, few_scores, s, q + mine, (const char*)element(a->k, key, dt),
                       (const char*)element(a->k, first, dt), fetch, ld, n, HS);
            float keep = few_probabilities(s, &x->max, &x->sum, n);
            WITH_DTYPE(dt, few_values, o + mine, keep, s, (const char*)element(a->v, key, dt), ld, n, HS);
        }
    }
    for (int h = h0; h < h1; h++) {
        const FewHead* x = &heads[h - h0];
        store_rows((void*)element(out, at(row, a->ldo, h, HS), out_dt), a->ldo, o + (size_t)(h - h0) * width, 1, HS,
                   1 / x->sum, out_dt);
        lse[(size_t)h * (size_t)a->cu_q[a->n_docs] + row] = x->max + logf(x->sum);
    }
}
