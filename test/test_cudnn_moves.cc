// test_cudnn_moves.cc - what is moved around cuDNN's attention, on the emulator, with the reference in cuDNN's place:
// it computes each of a plan's B places by itself, in any order, where the offsets say.
#include "kernels/cuda/cuda.h"

extern "C" {
#include "kernels/kernels.h"
#include "kernels/table/open.h"
}
#include "test/test.h"

enum { NH = 4, NKV = 2, HS = 16, C = NH * HS, CKV = NKV * HS, ROW = C + 2 * CKV, MOST_B = 40, MOST_N = 200, S = 128 };

static const Kernels* k;
static float qkv[MOST_N * ROW];
static int cu[MOST_B + 1];

typedef struct Places {
    int lengths[MOST_B], qkv[MOST_B + 1], out[MOST_B + 1], lse[MOST_B + 1];
} Places;

static CudnnPlan place(Places* x, const int* cu, int n_docs, int B) {
    CudnnPlan p = {MOST_N, B, S, NH, NKV, HS, 90};
    memset(x, 0x5a, sizeof *x);
    p.lengths = x->lengths, p.qkv = x->qkv, p.out = x->out, p.statistics = x->lse;
    cudnn_places(&p, cu, n_docs, NULL);
    k->synchronize(NULL);
    return p;
}

static Attention attention(const int* cu, int n_docs, const float* at) {
    Attention a = {};
    a.q = at, a.k = at + C, a.v = at + C + CKV;
    a.cu_q = a.cu_k = cu;
    a.Nq = a.Nk = cu[n_docs], a.n_docs = n_docs;
    a.ldq = a.ldkv = ROW, a.ldo = C;
    a.NH = NH, a.NKV = NKV, a.HS = HS, a.causal = 1, a.scale = 0.35f;
    return a;
}

// Place i, which reads and writes nothing but its own rows.
static void compute_place(const Places* x, int i, float* out, float* lse) {
    static float lse_of[NH * MOST_N];
    const int cu[2] = {0, x->lengths[i]};
    Attention a = attention(cu, 1, qkv + x->qkv[i]);
    cpu_reference.attention_forward(out + x->out[i], lse_of, &a, DT_F32, NULL);
    for (int h = 0; h < NH; h++)
        for (int t = 0; t < cu[1]; t++) lse[x->lse[i] + t * NH + h] = lse_of[h * cu[1] + t];
}

typedef struct Case {
    int B, n_docs, lengths[MOST_B];
} Case;

static const Case cases[] = {
    {1, 1, {7}},
    {4, 1, {1}},
    {4, 4, {5, 1, 9, 30}},
    {8, 3, {1, 20, 1}},
    {8, 5, {0, 3, 0, 0, 17}},
    {32, 2, {100, 90}},
    {40, 36, {1, 2, 3, 0, 5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
              1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 0, 1, 2, 3}},
};

static int begin_case(const Case* c) {
    cu[0] = 0;
    for (int b = 0; b < c->n_docs; b++) cu[b + 1] = cu[b] + c->lengths[b];
    return cu[c->n_docs];
}

CLAIM(no_place_is_empty_and_offsets_never_decrease) {
    for (int i = 0; i < COUNT(cases); i++) {
        int N = begin_case(&cases[i]), B = cases[i].B, real = 0, tokens = 0;
        static Places x;
        place(&x, cu, cases[i].n_docs, B);
        for (int b = 0; b < cases[i].n_docs; b++) real += cases[i].lengths[b] > 0;
        for (int b = 0; b < B; b++) {
            CHECK(x.lengths[b] >= 1 && x.qkv[b] + ROW * x.lengths[b] <= ROW * N);
            CHECK(x.qkv[b] <= x.qkv[b + 1] && x.out[b] <= x.out[b + 1] && x.lse[b] <= x.lse[b + 1]);
            if (b >= B - real) tokens += x.lengths[b];
        }
        CHECK(tokens == N && x.qkv[B] == ROW * N && x.out[B] == C * N && x.lse[B] == NH * N);
    }
}

// Out and log-sum-exp to the bit, whichever place writes last.
CLAIM(places_that_are_left_over_change_nothing) {
    for (int i = 0; i < COUNT(cases); i++)
        for (int backwards = 0; backwards < 2; backwards++) {
            static float out[MOST_N * C], lse[MOST_N * NH], expected[MOST_N * C], expected_lse[NH * MOST_N];
            int N = begin_case(&cases[i]), B = cases[i].B;
            static Places x;
            place(&x, cu, cases[i].n_docs, B);
            Attention a = attention(cu, cases[i].n_docs, qkv);
            cpu_reference.attention_forward(expected, expected_lse, &a, DT_F32, NULL);
            for (int b = 0; b < B; b++) compute_place(&x, backwards ? B - 1 - b : b, out, lse);
            CHECK(memcmp(out, expected, (size_t)N * C * sizeof(float)) == 0);
            for (int n = 0; n < N; n++)
                for (int h = 0; h < NH; h++) CHECK(lse[n * NH + h] == expected_lse[h * N + n]);
        }
}

CLAIM(the_log_sum_exp_comes_from_either_layout) {
    for (int i = 0; i < COUNT(cases); i++)
        for (int packed = 0; packed < 2; packed++) {
            static float theirs[MOST_B * NH * S], ours[NH * MOST_N];
            int N = begin_case(&cases[i]), B = cases[i].B;
            static Places x;
            CudnnPlan p = place(&x, cu, cases[i].n_docs, B);
            p.sm = packed ? 90 : 80, p.lse = theirs;
            CHECK(cudnn_packs(&p) == packed);
            for (int j = 0; j < COUNT(theirs); j++) theirs[j] = NAN;
            for (int b = 0; b < B; b++)
                for (int h = 0; h < NH; h++)
                    for (int t = 0; t < x.lengths[b]; t++)
                        theirs[packed ? x.lse[b] + t * NH + h : (b * NH + h) * S + t] =
                            (float)(h * N + x.lse[b] / NH + t);
            cudnn_lse(&p, ours, N, NULL);
            k->synchronize(NULL);
            for (int j = 0; j < NH * N; j++) CHECK(ours[j] == (float)j);
        }
}

int main(void) {
    char err[ERR_BYTES];
    KernelLimits limits = {};
    limits.N = MOST_N, limits.spread = 1, limits.C = 4 * C, limits.OC = 4 * C, limits.NH = NH, limits.NKV = NKV,
    limits.HS = HS;
    limits.context = S, limits.attention = ATTENTION_OWN;
    k = kernels_find("emu", "auto", err);
    if (!k || k->open(&limits, err)) die("%s", err);
    for (int i = 0; i < COUNT(qkv); i++) qkv[i] = (float)(int32_t)hash64((uint64_t)i) * 0x1p-30f;
    emu::lend_statics();
    run_claims();
    k->close();
    return test_done();
}
