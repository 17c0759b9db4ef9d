// test_cudnn_moves.cc - what is moved around cuDNN's attention, on the emulator, with the reference in cuDNN's place:
// it computes each of a plan's B places by itself, in any order, where the offsets say. And the whole pass as a build
// with cuDNN has it, over a library that is the reference, or fails.
#include "kernels/cuda/cuda.h"

// The program of the test has these functions already, without cuDNN.
#define HAVE_CUDNN
#define cudnn_places places_here
#define cudnn_lse lse_here
#define cuda_cudnn_open open_here
#define cuda_cudnn_scratch_bytes scratch_bytes_here
#define cuda_cudnn_forward forward_here
#define cudnn_version version_here
#define cudnn_headers headers_here
#define cudnn_plans plans_here
#define cudnn_build build_here
#define cudnn_run run_here
extern size_t cudnn_version;
extern const int cudnn_headers;
int cudnn_plans(CudnnPlan plans[CUDNN_PLANS], const KernelLimits* limits, int sm, char* base, Err err);
int cudnn_build(CudnnPlan* p, const char* json, Err err);
int cudnn_run(const CudnnPlan* p, void* out, const Attention* a, cudaStream_t stream, Err err);
void cudnn_places(const CudnnPlan* p, const int* cu, int n_docs, cudaStream_t s);
void cudnn_lse(const CudnnPlan* p, float* ours, int Nq, cudaStream_t s);
#include "kernels/cuda/attention_cudnn.cu"

extern "C" {
#include "kernels/kernels.h"
#include "kernels/table/open.h"
#include "test/cache_files.h"
}

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

// ---- the pass, over a library that this is

size_t cudnn_version = 91900;
const int cudnn_headers = 13200;
static const char* fails;  // "build", "run", or NULL
static int builds, runs;

int cudnn_plans(CudnnPlan plans[CUDNN_PLANS], const KernelLimits* limits, int sm, char* base, Err err) {
    int B = 2;
    if (sm < 80) return fail(err, "too old");
    for (int i = 0; i < CUDNN_PLANS; i++, B *= 2) {
        plans[i] = CudnnPlan{limits->N, B, S, limits->NH, limits->NKV, limits->HS, sm};
        int** const arrays[] = {&plans[i].lengths, &plans[i].qkv, &plans[i].out, &plans[i].statistics};
        for (int j = 0; j < 4; j++) *arrays[j] = base ? (int*)base + j * (MOST_B + 1) : NULL;
        plans[i].lse = base ? (float*)base + 4 * (MOST_B + 1) : NULL;
        plans[i].bytes = (4 * (MOST_B + 1) + MAX(MOST_N, B * S) * NH) * sizeof(float);
    }
    return CUDNN_PLANS;
}

int cudnn_build(CudnnPlan* p, const char*, Err err) {
    if (fails && !strcmp(fails, "build")) return fail(err, "cuDNN: it does not build");
    builds += !p->graph;
    p->graph = (struct CudnnGraph*)p;
    return 0;
}

int cudnn_run(const CudnnPlan* p, void* out, const Attention* a, cudaStream_t, Err err) {
    static float lse[NH * MOST_N];
    k->synchronize(NULL);
    runs++;
    CHECK(p->graph && a->n_docs <= p->B);
    if (fails) return fail(err, "cuDNN: it does not run");
    for (int i = 0; i < p->B; i++) {
        const int cu[2] = {0, p->lengths[i]};
        Attention one = *a;
        one.q = (const bf16*)a->q + p->qkv[i], one.k = (const bf16*)a->k + p->qkv[i];
        one.v = (const bf16*)a->v + p->qkv[i], one.cu_q = one.cu_k = cu;
        one.Nq = one.Nk = cu[1], one.n_docs = 1;
        cpu_reference.attention_forward((bf16*)out + p->out[i], lse, &one, DT_BF16, NULL);
        for (int h = 0; h < NH; h++)
            for (int t = 0; t < cu[1]; t++)
                p->lse[cudnn_packs(p) ? p->statistics[i] + t * NH + h : (i * NH + h) * S + t] = lse[h * cu[1] + t];
    }
    return 0;
}

static KernelLimits cudnn_limits(void) {
    KernelLimits limits = {};
    limits.N = MOST_N, limits.context = S, limits.NH = NH, limits.NKV = NKV, limits.HS = HS, limits.spread = 1;
    limits.dt = DT_BF16, limits.attention = ATTENTION_CUDNN;
    return limits;
}

// Of padded log-sum-exps and packed ones. A second opening takes the trial from disk, and builds when rows come.
CLAIM(the_pass_gives_what_the_reference_gives) {
    static bf16 row[(MOST_N + ATTENTION_TAIL) * ROW], out[MOST_N * C], expected[MOST_N * C];
    static float lse[NH * MOST_N], expected_lse[NH * MOST_N];
    KernelLimits limits = cudnn_limits();
    for (int major = 8; major <= 9; major++) {
        Err words = "";
        empty_cache();
        cuda.major = major, builds = 0;
        CHECK(open_here(&limits, words) == 0 && strstr(words, "of at most 16 documents") && builds == CUDNN_PLANS);
        builds = 0;
        CHECK(open_here(&limits, words) == 0 && builds == 0);
        for (int i = 0; i < MOST_N * ROW; i++) row[i] = bf16_from_float(qkv[i]);
        for (int i = 0; i < COUNT(cases); i++) {
            int N = begin_case(&cases[i]), served = cases[i].n_docs <= 16;
            Attention a = attention(cu, cases[i].n_docs, NULL);
            a.q = row, a.k = row + C, a.v = row + C + CKV, a.tail = ATTENTION_TAIL;
            for (int j = 0; j < ATTENTION_TAIL * ROW; j++) row[N * ROW + j] = 0x7fc0;
            runs = 0;
            CHECK(forward_here(out, lse, &a, DT_BF16, NULL) == (served ? 0 : -1) && runs == served);
            k->synchronize(NULL);
            for (int j = 0; j < ATTENTION_TAIL * ROW && served; j++) CHECK(row[N * ROW + j] == 0);
            for (int j = N * ROW; j < MOST_N * ROW; j++) row[j] = bf16_from_float(qkv[j]);
            if (!served) continue;
            cpu_reference.attention_forward(expected, expected_lse, &a, DT_BF16, NULL);
            CHECK(memcmp(out, expected, (size_t)N * C * sizeof(bf16)) == 0);
            CHECK(memcmp(lse, expected_lse, (size_t)N * NH * sizeof(float)) == 0);
        }
        CHECK(builds > 0 && builds < CUDNN_PLANS);
    }
    cuda.major = 8;
}

CLAIM(a_library_that_fails_leaves_rows_to_our_own_kernels) {
    static bf16 row[(MOST_N + ATTENTION_TAIL) * ROW], out[MOST_N * C];
    static float lse[NH * MOST_N];
    static const char* const failures[] = {"build", "run"};
    KernelLimits limits = cudnn_limits();
    for (int i = 0; i < 2; i++) {
        Err words = "";
        empty_cache();
        fails = failures[i];
        CHECK(open_here(&limits, words) == -1 && strstr(words, fails));
        fails = NULL;
        empty_cache();
        CHECK(open_here(&limits, words) == 0);
        begin_case(&cases[2]);
        Attention a = attention(cu, cases[2].n_docs, NULL);
        a.q = row, a.k = row + C, a.v = row + C + CKV, a.tail = ATTENTION_TAIL;
        CHECK(forward_here(out, lse, &a, DT_BF16, NULL) == 0);
        CHECK(forward_here(out, lse, &a, DT_F32, NULL) == -1);
        fails = failures[i], runs = 0;
        CHECK(forward_here(out, lse, &a, DT_BF16, NULL) == -1);
        fails = NULL, runs = 0;
        CHECK(forward_here(out, lse, &a, DT_BF16, NULL) == -1 && runs == 0);
    }
}

int main(void) {
    char err[ERR_BYTES];
    cache_begin();
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
    return temporary_end();
}
