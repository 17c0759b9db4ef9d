// matmul.cu - the matmuls by cuBLASLt, and the unfused passes after them.
//
// The library computes column-major D = op(A) op(B) + beta C, so each tensor is described to it transposed: row-major
// (rows, columns) is column-major columns x rows, with columns as the leading dimension.
//
// These follow the product, computed by:
//
//   forward           out = x W^T + bias        the library; where it cannot, it adds to rows of the bias
//                     gelu = GELU(out)          cuda_activation_forward
//   backward_input    dx *= GELU'(pre)          the library; where it cannot, cuda_activation_backward
//   backward_weight   dbias += sums of dout     cuda_column_sum
//
// The library's GELU' wins a third of its matmul's time on an H100. Its GELU and sums of dout stay out: a step of 124M
// took as long with them, and that GELU was off by up to 9e-4 in fp32 too, as tanh.approx would make it.
//
// If the library has no algorithm for a fused form, the plain form and the other way follow, and this is remembered.
// It has plain products for all sizes and addresses; if it says otherwise the run ends with its words.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/library.h"

extern "C" {
#include "plan/base/user_cache.h"
}
#include <cublasLt.h>

#include <stdio.h>
#include <stdlib.h>

typedef enum Op { FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT } Op;

// One product as the library is asked for it, column-major; weight is C x OC, x and dx are C x N, out and dout OC x N.
//   FORWARD          out = weight^T x           a = weight, b = x,    d = out
//   BACKWARD_INPUT   dx = weight dout           a = weight, b = dout, d = dx
//   BACKWARD_WEIGHT  dweight += x dout^T        a = x,      b = dout, d = dweight, fp32
struct Asked {
    Op op;
    int N, C, OC;
    DType dt;
    cublasLtEpilogue_t epilogue;
    int sms;            // multiprocessors that it may count on, while exchanges have the others; 0: all
    int lda, ldb, ldd;  // elements from row to row as we see them; 0: there are no gaps
    int fp8 = 0;        // 1: a and b are E4M3
};

struct Product : Asked {
    const void *a, *b;
    void* d;
    const void* bias;                            // read by BIAS
    const void* aux;                             // GELU's argument, read by DGELU; shaped like d
    int accumulate;                              // d += instead of d =
    float scale;                                 // of the product
    const float *a_unit = NULL, *b_unit = NULL;  // (1) on the device, with fp8
};

// ---- the library

#define FUNCTIONS(F)                         \
    F(cublasLtCreate);                       \
    F(cublasLtDestroy);                      \
    F(cublasLtGetStatusName);                \
    F(cublasLtGetStatusString);              \
    F(cublasLtMatmulDescCreate);             \
    F(cublasLtMatmulDescDestroy);            \
    F(cublasLtMatmulDescSetAttribute);       \
    F(cublasLtMatrixLayoutCreate);           \
    F(cublasLtMatrixLayoutDestroy);          \
    F(cublasLtMatrixLayoutSetAttribute);     \
    F(cublasLtMatmulPreferenceCreate);       \
    F(cublasLtMatmulPreferenceDestroy);      \
    F(cublasLtMatmulPreferenceSetAttribute); \
    F(cublasLtMatmulAlgoGetHeuristic);       \
    F(cublasLtMatmulAlgoCheck);              \
    F(cublasLtGetVersion);                   \
    F(cublasLtMatmul);

// One set of descriptors serves all products: to set an attribute is to store a number, and the library has read them
// when a call returns. So nothing is allocated after open.
static struct {
#define POINTER(name) decltype(&::name) name
    FUNCTIONS(POINTER)
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulPreference_t preference;
    int keeps_nothing;
} lt;

// CUDA 12 and 13 agree in all that is used here; the library of the toolkit that compiled this file comes first.
static const char* const library_files[] = {
#if CUDART_VERSION >= 13000
    "libcublasLt.so.13", "libcublasLt.so.12",
#else
    "libcublasLt.so.12", "libcublasLt.so.13",
#endif
    "libcublasLt.so", NULL};

// NVIDIA recommends 32 MiB from sm_90 on. That also stands for a device that was not looked for yet.
static size_t workspace_bytes() { return (size_t)(cuda.major == 8 ? 4 : 32) << 20; }

// After the workspace lies room for the output, or an operand, of a trial whose own output must not change, see
// trial_of.
size_t cuda_matmul_scratch_bytes(const KernelLimits* limits) {
    const size_t most_trial = (size_t)64 << 20;
    return workspace_bytes() + MIN((size_t)limits->C * (size_t)limits->OC * sizeof(float), most_trial);
}

static void check_product(cublasStatus_t status, const char* what, const Product* p) {
    static const char* const names[] = {"forward", "backward_input", "backward_weight"};
    if (status == CUBLAS_STATUS_SUCCESS) return;
    die("cuBLASLt: %s: %s, %s; in matmul %s with N %d, C %d, OC %d of %s, epilogue %d%s", what,
        lt.cublasLtGetStatusName(status), lt.cublasLtGetStatusString(status), names[p->op], p->N, p->C, p->OC,
        p->fp8 ? "fp8" : dtype_name(p->dt), (int)p->epilogue, p->fp8 ? "; try --dtype bf16" : "");
}

static cublasStatus_t create_descriptors() {
    uint64_t workspace = workspace_bytes();
    // Split-K may add partial sums in fp32; the other schemes do it in the output's type.
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasStatus_t status = lt.cublasLtCreate(&lt.handle);
    // fp32 means fp32: CUBLAS_COMPUTE_32F does not allow TF32.
    if (!status) status = lt.cublasLtMatmulDescCreate(&lt.product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!status) status = lt.cublasLtMatrixLayoutCreate(&lt.a, CUDA_R_32F, 1, 1, 1);
    if (!status) status = lt.cublasLtMatrixLayoutCreate(&lt.b, CUDA_R_32F, 1, 1, 1);
    if (!status) status = lt.cublasLtMatrixLayoutCreate(&lt.d, CUDA_R_32F, 1, 1, 1);
    if (!status) status = lt.cublasLtMatmulPreferenceCreate(&lt.preference);
    if (!status)
        status = lt.cublasLtMatmulPreferenceSetAttribute(lt.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                         &workspace, sizeof workspace);
    if (!status)
        status = lt.cublasLtMatmulPreferenceSetAttribute(lt.preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                         &schemes, sizeof schemes);
    return status;
}

int cuda_matmul_open(Err err) {
    LibrarySymbol symbols[20];
    int n = 0;
#define SYMBOL(name) symbols[n++] = {#name, (void**)&lt.name}
    FUNCTIONS(SYMBOL)
    if (library_open("cuBLASLt", library_files, symbols, n, err)) return -1;
    cublasStatus_t status = create_descriptors();
    if (status == CUBLAS_STATUS_SUCCESS) return 0;
    fail(err, "cuBLASLt does not start: %s, %s; is there GPU memory left, is the driver as new as the library?",
         lt.cublasLtGetStatusName(status), lt.cublasLtGetStatusString(status));
    cuda_matmul_close();
    return -1;
}

// ---- describing a product

template <class V>
static void set_product(const Product* p, cublasLtMatmulDescAttributes_t attribute, V value) {
    check_product(lt.cublasLtMatmulDescSetAttribute(lt.product, attribute, &value, sizeof value), "product attribute",
                  p);
}
template <class V>
static void set_layout(const Product* p, cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
                       V value) {
    check_product(lt.cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof value), "layout attribute", p);
}

static void set_matrix(const Product* p, cublasLtMatrixLayout_t layout, DType dt, int rows, int columns, int ld) {
    cudaDataType plain = dt == DT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    set_layout<uint32_t>(p, layout, CUBLASLT_MATRIX_LAYOUT_TYPE, p->fp8 && layout != lt.d ? CUDA_R_8F_E4M3 : plain);
    set_layout<uint64_t>(p, layout, CUBLASLT_MATRIX_LAYOUT_ROWS, (uint64_t)rows);
    set_layout<uint64_t>(p, layout, CUBLASLT_MATRIX_LAYOUT_COLS, (uint64_t)columns);
    set_layout<int64_t>(p, layout, CUBLASLT_MATRIX_LAYOUT_LD, ld ? ld : rows);
}

// Sets all attributes, each time: none may be left over from the last product. The heuristic looks at the alignment of
// the epilogue's pointers, so they are set before it is asked.
static void describe(const Product* p) {
    int weight_gradient = p->op == BACKWARD_WEIGHT, d_rows = p->op == FORWARD ? p->OC : p->C;
    set_matrix(p, lt.a, p->dt, p->C, weight_gradient ? p->N : p->OC, p->lda);
    set_matrix(p, lt.b, p->dt, p->op == FORWARD ? p->C : p->OC, p->N, p->ldb);
    set_matrix(p, lt.d, weight_gradient ? DT_F32 : p->dt, d_rows, weight_gradient ? p->OC : p->N, p->ldd);
    set_product<int32_t>(p, CUBLASLT_MATMUL_DESC_TRANSA, p->op == FORWARD ? CUBLAS_OP_T : CUBLAS_OP_N);
    set_product<int32_t>(p, CUBLASLT_MATMUL_DESC_TRANSB, weight_gradient ? CUBLAS_OP_T : CUBLAS_OP_N);
    set_product<uint32_t>(p, CUBLASLT_MATMUL_DESC_EPILOGUE, p->epilogue);
    set_product<int32_t>(p, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, p->sms);
    set_product(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p->a_unit);
    set_product(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p->b_unit);
    set_product(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p->bias);
    set_product(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p->aux);
    set_product<int64_t>(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p->aux ? d_rows : 0);
}

// ---- choosing an algorithm, and remembering the choice
//
// The first time that a question comes, on this machine, the eight best answers of the library's heuristic are timed on
// the very operands, and the fastest is kept on disk: later runs, and other ranks of the node, take it, so that the
// bits repeat. If nothing can be kept, the first answer is taken, a function of the question alone. A kept answer
// serves every N that is rounded up to the same number, at most an eighth away; if the library says that it does not,
// the first answer for this N does.
//
// In memory a question has a place in one set, by its hash, and there displaces the one that was used longest ago:
// about 60 different N, 15 questions each (5 matrices, 3 ops), of 10 to 100 us on the host.

enum { SETS = 128, WAYS = 8, ANSWERS = 8 };
static const uintptr_t MOST_ALIGNMENT = 256;  // that the library asks for

// The question that the heuristic answers: transposes, types and leading dimensions follow from op, dt and sizes. It
// has no padding, since it is compared and hashed as bytes.
struct Question : Asked {
    uint16_t alignment[5], unused;  // of a, b, d, bias, aux
};

typedef struct Choice {
    Question question;
    int offered;    // 0: the library has no algorithm for it
    uint64_t used;  // when it was used last; 0: the place is free
    cublasLtMatmulAlgo_t algorithm;
} Choice;

static Choice choices[SETS][WAYS];
static uint64_t uses;

// Returns the greatest power of two that divides the address, in bytes. NULL is as aligned as can be.
static uint16_t alignment(const void* p) {
    uintptr_t lowest_bit = (uintptr_t)p & (0 - (uintptr_t)p);
    return (uint16_t)(lowest_bit == 0 ? MOST_ALIGNMENT : MIN(lowest_bit, MOST_ALIGNMENT));
}

static void prefer_alignment(const Product* p, cublasLtMatmulPreferenceAttributes_t attribute, uint32_t bytes) {
    check_product(lt.cublasLtMatmulPreferenceSetAttribute(lt.preference, attribute, &bytes, sizeof bytes),
                  "preferred alignment", p);
}

// Lists the library's answers, best first as it sees them; returns their number. Three statuses say that it has none.
static int ask_library(const Product* p, const Question* q, cublasLtMatmulAlgo_t answers[ANSWERS]) {
    cublasLtMatmulHeuristicResult_t results[ANSWERS] = {};
    int n = 0, good = 0;
    prefer_alignment(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, q->alignment[0]);
    prefer_alignment(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, q->alignment[1]);
    prefer_alignment(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, q->alignment[2]);
    prefer_alignment(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, q->alignment[2]);
    cublasStatus_t status = lt.cublasLtMatmulAlgoGetHeuristic(lt.handle, lt.product, lt.a, lt.b, lt.d, lt.d,
                                                              lt.preference, ANSWERS, results, &n);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH ||
        status == CUBLAS_STATUS_INVALID_VALUE)
        return 0;
    check_product(status, "choice of an algorithm", p);
    for (int i = 0; i < n; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS) answers[good++] = results[i].algo;
    return good;
}

// The product is described already.
static cublasStatus_t launch(const Product* p, const cublasLtMatmulAlgo_t* algorithm, Stream s) {
    float alpha = p->scale, beta = p->accumulate;
    return lt.cublasLtMatmul(lt.handle, lt.product, &alpha, p->a, lt.a, p->b, lt.b, &beta, p->d, lt.d, p->d, lt.d,
                             algorithm, cuda_scratch(workspace_bytes()), workspace_bytes(), cuda_stream(s));
}

// ---- timing

// Makes the product that is timed. It may write an output that is overwritten anyway. One that is added to goes to
// scratch; if that is too small, as for the head's weight gradient, to its own place with zeros in scratch for the
// smaller operand. 0: there is no room for either.
static int trial_of(Product* trial, const Product* p, Stream s) {
    size_t room = cuda_scratch_planned() - MIN(workspace_bytes(), cuda_scratch_planned()), C = (size_t)p->C,
           OC = (size_t)p->OC, operand = (size_t)p->N * MIN(C, OC) * dtype_bytes(p->dt);
    char* at = cuda.scratch + workspace_bytes();
    *trial = *p;
    if (!p->accumulate) return 1;
    if (p->op == BACKWARD_WEIGHT && C * OC * sizeof(float) > room) {
        if (operand > room) return 0;
        CUDA_CHECK(cudaMemsetAsync(at, 0, operand, cuda_stream(s)));
        *(C <= OC ? &trial->a : &trial->b) = at;
        return 1;
    }
    trial->d = at;
    return p->op == BACKWARD_WEIGHT || (size_t)p->N * MAX(MAX(C, OC), (size_t)p->ldd) * dtype_bytes(p->dt) <= room;
}

static int fastest(const Product* p, const cublasLtMatmulAlgo_t answers[], int n, Stream s) {
    enum { RUNS = 3 };
    int best = 0;
    float least = INFINITY;
    for (int i = 0; i < n; i++) {
        float milliseconds = cuda_best_time(RUNS, cuda_stream(s), [=] { return launch(p, &answers[i], s); });
        if (milliseconds < least) least = milliseconds, best = i;
    }
    return best;
}

// ---- what is kept

// Returns N rounded up: there are eight sizes from a power of two to the next.
static int rounded(int N) {
    int unit = 1;
    while (unit <= N / 16) unit *= 2;
    return ROUND_UP(N, unit);
}

static void name_question(char* key, size_t room, const Question* q) {
    enum { CHOICE_VERSION = 3, FP8 = 8 };  // FP8 stands for a DType
    snprintf(
        key, room,
        "matmul %d, cuBLASLt %zu, %s, %d SMs, op %d N %d C %d OC %d dt %d epilogue %d SMs %d rows %d %d %d aligned %d "
        "%d %d %d %d",
        CHOICE_VERSION, lt.cublasLtGetVersion(), cuda.model, cuda.sm_count, q->op, rounded(q->N), q->C, q->OC,
        q->fp8 ? FP8 : (int)q->dt, q->epilogue, q->sms, q->lda, q->ldb, q->ldd, q->alignment[0], q->alignment[1],
        q->alignment[2], q->alignment[3], q->alignment[4]);
}

// Reads the algorithm that was kept, if the library says that it serves this very product, else takes the first answer.
// 0: none was kept.
static int recall(const char* key, cublasLtMatmulAlgo_t* algorithm) {
    cublasLtMatmulHeuristicResult_t result = {};
    size_t n = 0;
    char* kept = cache_read(key, &n);
    cublasLtMatmulAlgo_t found;
    int sound = kept && n == sizeof found;
    if (sound) memcpy(&found, kept, n);
    free(kept);
    if (!sound) return 0;
    if (lt.cublasLtMatmulAlgoCheck(lt.handle, lt.product, lt.a, lt.b, lt.d, lt.d, &found, &result) ==
            CUBLAS_STATUS_SUCCESS &&
        result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_bytes())
        *algorithm = found;
    return 1;
}

// Picks one of n answers: the one that was kept, or the fastest, which it keeps.
static cublasLtMatmulAlgo_t pick(const Product* p, const Question* q, const cublasLtMatmulAlgo_t answers[], int n,
                                 Stream s) {
    char key[700];
    cublasLtMatmulAlgo_t algorithm = answers[0];
    Product trial;
    if (n == 1 || lt.keeps_nothing || !trial_of(&trial, p, s)) return algorithm;
    name_question(key, sizeof key, q);
    if (recall(key, &algorithm)) return algorithm;
    const cublasLtMatmulAlgo_t* best = &answers[fastest(&trial, answers, n, s)];
    cache_write(key, best, sizeof *best, 0);
    // Another rank may have been first: all take its choice. A file that cannot be read is replaced.
    if (recall(key, &algorithm)) return algorithm;
    cache_write(key, best, sizeof *best, 1);
    lt.keeps_nothing = !recall(key, &algorithm);
    return algorithm;
}

// The product is described already.
static const Choice* choose(const Product* p, Stream s) {
    cublasLtMatmulAlgo_t answers[ANSWERS];
    Question q = {*p, {alignment(p->a), alignment(p->b), alignment(p->d), alignment(p->bias), alignment(p->aux)}, 0};
    Choice *set = choices[hash_bytes(&q, sizeof q, 0) % SETS], *oldest = set;
    for (Choice* c = set; c < set + WAYS; c++) {
        if (c->used > 0 && memcmp(&c->question, &q, sizeof q) == 0) {
            c->used = ++uses;
            return c;
        }
        if (c->used < oldest->used) oldest = c;
    }
    oldest->question = q;
    oldest->used = ++uses;
    int n = ask_library(p, &q, answers);
    oldest->offered = n > 0;
    if (n > 0) oldest->algorithm = pick(p, &q, answers, n, s);
    return oldest;
}

// Multiplies by the library. 0; -1: it has no algorithm for the product, and nothing was done.
static int multiply_by_library(const Product* product, Stream s) {
    Product p = *product;
    p.sms = cuda.exchange_sms > 0 ? cuda.sm_count - cuda.exchange_sms : 0;
    describe(&p);
    const Choice* choice = choose(&p, s);
    if (!choice->offered) return -1;
    check_product(launch(&p, &choice->algorithm, s), "matmul", &p);
    cuda_keep_pace(cuda_stream(s));
    return 0;
}

void cuda_matmul_close(void) {
    if (lt.preference) lt.cublasLtMatmulPreferenceDestroy(lt.preference);
    if (lt.d) lt.cublasLtMatrixLayoutDestroy(lt.d);
    if (lt.b) lt.cublasLtMatrixLayoutDestroy(lt.b);
    if (lt.a) lt.cublasLtMatrixLayoutDestroy(lt.a);
    if (lt.product) lt.cublasLtMatmulDescDestroy(lt.product);
    if (lt.handle) lt.cublasLtDestroy(lt.handle);
    memset(&lt, 0, sizeof lt);
    memset(choices, 0, sizeof choices);
}

// Computes the same sum, rounded once, if the library has no bias among its epilogues.
static int add_to_bias_rows(const Product* p, Stream s) {
    Product plain = *p;
    plain.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    plain.bias = NULL;
    plain.accumulate = 1;
    cuda_gather_rows(p->d, p->bias, NULL, p->N, p->OC, p->OC, 0, p->dt, s);
    return multiply_by_library(&plain, s);
}

static void multiply(const Product* p, Stream s) {
    if (multiply_by_library(p, s) && (!p->bias || add_to_bias_rows(p, s)))
        check_product(CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm", p);
}

// ---- the entries of the table

enum { AUX_UNIT = 8 };  // elements: the library wants rows of aux to be multiples of this

void cuda_matmul_forward(void* out, void* gelu, const void* x, const void* weight, const void* bias, int N, int C,
                         int OC, DType dt, Stream s) {
    if (N == 0) return;
    cublasLtEpilogue_t epilogue = bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    Product p = {{FORWARD, N, C, OC, dt, epilogue, 0, 0, 0, 0}, weight, x, out, bias, NULL, 0, 1};
    multiply(&p, s);
    if (gelu) cuda_activation_forward(gelu, out, ACT_GELU, N, OC, dt, s);
}

void cuda_matmul_backward_input(void* dx, const void* dout, const void* weight, const void* pre, int N, int C, int OC,
                                DType dt, Stream s) {
    if (N == 0) return;
    Product p = {
        {BACKWARD_INPUT, N, C, OC, dt, CUBLASLT_EPILOGUE_DEFAULT, 0, 0, 0, 0}, weight, dout, dx, NULL, NULL, 0, 1};
    if (pre && C % AUX_UNIT == 0) {
        Product fused = p;
        fused.epilogue = CUBLASLT_EPILOGUE_DGELU;
        fused.aux = pre;
        if (multiply_by_library(&fused, s) == 0) return;
    }
    multiply(&p, s);
    if (pre) cuda_activation_backward(dx, dx, pre, ACT_GELU, N, C, dt, s);
}

void cuda_matmul_backward_weight(float* dweight, float* dbias, const void* dout, const void* x, int N, int C, int OC,
                                 DType dt, Stream s) {
    if (N == 0) return;
    Product p = {
        {BACKWARD_WEIGHT, N, C, OC, dt, CUBLASLT_EPILOGUE_DEFAULT, 0, 0, 0, 0}, x, dout, dweight, NULL, NULL, 1, 1};
    multiply(&p, s);
    if (dbias) cuda_column_sum(dbias, dout, N, OC, dt, s);
}

// The library's a is our b, and its b our a: it sees all of them transposed.
void cuda_strided_matmul(const StridedMatmul* m, DType dt, Stream s) {
    static const Op ops[] = {FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT};
    if (m->N == 0) return;
    Product p = {{ops[m->kind], m->N, m->C, m->OC, dt, CUBLASLT_EPILOGUE_DEFAULT, 0, m->ldb, m->lda, m->ldo},
                 m->b,
                 m->a,
                 m->out,
                 NULL,
                 NULL,
                 m->adds || m->kind == MATMUL_WEIGHT,
                 m->scale};
    multiply(&p, s);
}

// The library wants both operands as long as the sum (its "TN"); GELU' is no epilogue of theirs.
void cuda_matmul_fp8(const Fp8Matmul* m, Stream s) {
    if (m->N == 0) return;
    cublasLtEpilogue_t epilogue = m->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    Product p = {{FORWARD, m->N, m->K, m->OC, DT_BF16, epilogue, 0, 0, 0, 0}, m->w, m->x, m->out, m->bias, NULL, 0, 1};
    p.fp8 = 1, p.a_unit = m->w_unit, p.b_unit = m->x_unit;
    multiply(&p, s);
    if (m->pre) cuda_activation_backward(m->out, m->out, m->pre, ACT_GELU, m->N, m->OC, DT_BF16, s);
    if (m->gelu) cuda_activation_forward(m->gelu, m->out, ACT_GELU, m->N, m->OC, DT_BF16, s);
}
