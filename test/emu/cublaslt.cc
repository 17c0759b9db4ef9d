// cublaslt.cc - the library behind test/emu/cublasLt.h: plain products that take descriptors at their word, so that a
// wrong one gives wrong numbers, and refuse what NVIDIA's header says the real library refuses.
//
// Stricter than the real one, so that misuse shows: an algorithm serves only the very problem and the alignments that
// the heuristic was asked about; the workspace is overwritten; a fused form whose auxiliary pointer is not 16-byte
// aligned has no algorithm. Only column-major order exists.
#include "cublasLt.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

extern "C" {
#include "kernels/e4m3.h"
}

struct cublasLtContext {
    int unused;
};

struct cublasLtMatrixLayoutOpaque_t {
    uint32_t type;
    uint64_t rows, cols;
    int64_t ld;
};

struct cublasLtMatmulDescOpaque_t {
    cublasComputeType_t compute_type;
    cudaDataType_t scale_type;
    int32_t transpose_a, transpose_b;
    uint32_t epilogue;
    void* bias;
    void* aux;
    int64_t aux_ld;
    int32_t sms;
    const float *a_scale, *b_scale;  // of the device
};

struct cublasLtMatmulPreferenceOpaque_t {
    uint64_t workspace;
    uint32_t schemes, alignment_a, alignment_b, alignment_c, alignment_d;
};

// ---- descriptors

template <class T>
static cublasStatus_t create(T** p, const T& value) {
    if (!p) return CUBLAS_STATUS_INVALID_VALUE;
    *p = (T*)malloc(sizeof(T));
    if (!*p) return CUBLAS_STATUS_ALLOC_FAILED;
    **p = value;
    return CUBLAS_STATUS_SUCCESS;
}

template <class T>
static cublasStatus_t destroy(T* p) {
    return free(p), CUBLAS_STATUS_SUCCESS;
}

template <class T>
static cublasStatus_t store(T* field, const void* value, size_t bytes) {
    if (!value || bytes != sizeof *field) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return create(handle, {0}); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    return handle ? destroy(handle) : CUBLAS_STATUS_NOT_INITIALIZED;
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
        case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
        case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "unknown status";
}
const char* cublasLtGetStatusString(cublasStatus_t) { return "said by the emulator"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute_type,
                                        cudaDataType_t scale_type) {
    return create(product, {compute_type, scale_type, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr,
                            nullptr, 0, 0, nullptr, nullptr});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) { return destroy(product); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
    if (!product) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
        case CUBLASLT_MATMUL_DESC_TRANSA: return store(&product->transpose_a, value, bytes);
        case CUBLASLT_MATMUL_DESC_TRANSB: return store(&product->transpose_b, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE: return store(&product->epilogue, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return store(&product->bias, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return store(&product->aux, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return store(&product->aux_ld, value, bytes);
        case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: return store(&product->sms, value, bytes);
        case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return store(&product->a_scale, value, bytes);
        case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return store(&product->b_scale, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
    return create(layout, {(uint32_t)type, rows, cols, ld});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
    if (!layout) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
        case CUBLASLT_MATRIX_LAYOUT_TYPE: return store(&layout->type, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_ROWS: return store(&layout->rows, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_COLS: return store(&layout->cols, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_LD: return store(&layout->ld, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

// The defaults of the header: no workspace, and pointers aligned to 256 bytes.
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
    return create(preference, {0, CUBLASLT_REDUCTION_SCHEME_MASK, 256, 256, 256, 256});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
    if (!preference) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return store(&preference->workspace, value, bytes);
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return store(&preference->schemes, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return store(&preference->alignment_a, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return store(&preference->alignment_b, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return store(&preference->alignment_c, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return store(&preference->alignment_d, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

// ---- what a problem must be like

// A product with its operands' shapes resolved: D (m,n) = op(A) (m,k) op(B) (k,n). Zeroed before it is filled, since
// an algorithm keeps its hash.
struct Problem {
    uint64_t m, n, k;
    int64_t lda, ldb, ldc, ldd, aux_ld;
    uint32_t type, d_type, epilogue;
    int32_t transpose_a, transpose_b;
};

static bool valid(const cublasLtMatrixLayoutOpaque_t* l) {
    return l && l->rows >= 1 && l->cols >= 1 && l->rows <= INT32_MAX && l->cols <= INT32_MAX &&
           l->ld >= (int64_t)l->rows;
}

static cublasStatus_t check_epilogue(const cublasLtMatmulDescOpaque_t* product, uint64_t rows) {
    uint32_t e = product->epilogue;
    bool bias = e == CUBLASLT_EPILOGUE_BIAS, aux = e == CUBLASLT_EPILOGUE_DGELU;
    if (!bias && !aux && e != CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (bias && !product->bias) return CUBLAS_STATUS_INVALID_VALUE;
    if (aux && (!product->aux || product->aux_ld % 8 || product->aux_ld < (int64_t)rows))
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

// FP8: the first operand is transposed and the second is not, so that both are k long; k and the rows of D are
// multiples of 16, leading dimensions of 16 bytes. Scales are of FP8 alone.
static cublasStatus_t check_fp8(const Problem* p, const cublasLtMatmulDescOpaque_t* product) {
    if (p->type != CUDA_R_8F_E4M3)
        return product->a_scale || product->b_scale ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
    bool fits = p->k % 16 == 0 && p->m % 16 == 0 && p->lda % 16 == 0 && p->ldb % 16 == 0 && p->ldd % 8 == 0;
    bool offered = !getenv("EMU_LACKS_FP8") && p->epilogue != CUBLASLT_EPILOGUE_DGELU;
    return p->transpose_a && !p->transpose_b && fits && offered ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static cublasStatus_t resolve(Problem* p, const cublasLtMatmulDescOpaque_t* product,
                              const cublasLtMatrixLayoutOpaque_t* a, const cublasLtMatrixLayoutOpaque_t* b,
                              const cublasLtMatrixLayoutOpaque_t* c, const cublasLtMatrixLayoutOpaque_t* d) {
    if (!product || !valid(a) || !valid(b) || !valid(c) || !valid(d)) return CUBLAS_STATUS_INVALID_VALUE;
    memset(p, 0, sizeof *p);
    p->transpose_a = product->transpose_a, p->transpose_b = product->transpose_b;
    p->lda = a->ld, p->ldb = b->ld, p->ldc = c->ld, p->ldd = d->ld, p->aux_ld = product->aux_ld;
    p->type = a->type, p->d_type = d->type, p->epilogue = product->epilogue;
    p->m = p->transpose_a ? a->cols : a->rows;
    p->k = p->transpose_a ? a->rows : a->cols;
    p->n = p->transpose_b ? b->rows : b->cols;
    if (p->k != (p->transpose_b ? b->cols : b->rows) || p->m != d->rows || p->n != d->cols || c->rows != d->rows ||
        c->cols != d->cols)
        return CUBLAS_STATUS_INVALID_VALUE;
    bool bf16_in = p->type == CUDA_R_16BF && (p->d_type == CUDA_R_16BF || p->d_type == CUDA_R_32F),
         fp32_in = p->type == CUDA_R_32F && p->d_type == CUDA_R_32F,
         fp8_in = p->type == CUDA_R_8F_E4M3 && p->d_type == CUDA_R_16BF;
    if (product->compute_type != CUBLAS_COMPUTE_32F || product->scale_type != CUDA_R_32F || b->type != a->type ||
        c->type != d->type || (!bf16_in && !fp32_in && !fp8_in))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (cublasStatus_t status = check_fp8(p, product)) return status;
    return check_epilogue(product, p->m);
}

// ---- algorithms

// What the 64 bytes of an algorithm hold here.
struct Algorithm {
    uint64_t problem;  // its hash
    uint32_t workspace, answer;
    uint32_t alignment_a, alignment_b, alignment_c, alignment_d, alignment_bias, alignment_aux;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm must fit");

enum { WANTED_WORKSPACE = 64 << 10 };

emu::Matmuls emu::matmuls;

static uint64_t hash(Problem p) {
    if (emu::matmuls.any_size) p.m = p.n = p.k = 0, p.lda = p.ldb = p.ldc = p.ldd = p.aux_ld = 0;
    return hash_bytes(&p, sizeof p, 0);
}

size_t cublasLtGetVersion() { return 0; }

static uint32_t alignment(const void* p) {
    uint64_t lowest_bit = (uint64_t)(uintptr_t)p & (0 - (uint64_t)(uintptr_t)p);
    return lowest_bit == 0 || lowest_bit > 256 ? 256 : (uint32_t)lowest_bit;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
    Problem p;
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!preference || asked <= 0 || !results || !found) return CUBLAS_STATUS_INVALID_VALUE;
    *found = 0;
    cublasStatus_t status = resolve(&p, product, a, b, c, d);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    uint32_t bias = alignment(product->bias), aux = alignment(product->aux);
    uint32_t operands = MIN(MIN(preference->alignment_a, preference->alignment_b), preference->alignment_d);
    if (aux < 16 || (p.type == CUDA_R_8F_E4M3 && operands < 16)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p.epilogue == emu::matmuls.refused_epilogue) return emu::matmuls.refusal;
    Algorithm algorithm = {hash(p),
                           (uint32_t)MIN(preference->workspace, (uint64_t)WANTED_WORKSPACE),
                           0,
                           preference->alignment_a,
                           preference->alignment_b,
                           preference->alignment_c,
                           preference->alignment_d,
                           bias,
                           aux};
    for (*found = 0; *found < MIN(asked, emu::matmuls.answers); ++*found) {
        cublasLtMatmulHeuristicResult_t* result = &results[algorithm.answer = (uint32_t)*found];
        memset(result, 0, sizeof *result);
        memcpy(&result->algo, &algorithm, sizeof algorithm);
        result->workspaceSize = algorithm.workspace;
        result->wavesCount = 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
    Problem p;
    Algorithm algorithm;
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    cublasStatus_t status = resolve(&p, product, a, b, c, d);
    if (status != CUBLAS_STATUS_SUCCESS || !algo || !result) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&algorithm, algo, sizeof algorithm);
    if (algorithm.problem != hash(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(result, 0, sizeof *result);  // its algorithm is never written
    result->workspaceSize = algorithm.workspace;
    return CUBLAS_STATUS_SUCCESS;
}

static bool aligned(const void* p, uint32_t bytes) { return alignment(p) >= bytes; }

// ---- the product: panels of op(A) and op(B) in fp32, tiles of D summed over all of k in registers

enum { MR = 8, NR = 4 };
typedef float Lanes __attribute__((vector_size(16)));
enum { LANES = 4 };

static float load(const void* p, size_t i, uint32_t type) {
    if (type == CUDA_R_8F_E4M3) return e4m3_to_float(((const e4m3*)p)[i]);
    return type == CUDA_R_16BF ? bf16_to_float(((const bf16*)p)[i]) : ((const float*)p)[i];
}
static void store_element(void* p, size_t i, uint32_t type, float x) {
    if (type == CUDA_R_16BF) ((bf16*)p)[i] = bf16_from_float(x);
    else ((float*)p)[i] = x;
}

// Element (i,j) of a matrix of n rows or columns goes to panel i / unit, there to [j][i % unit]; zeros fill the last.
template <class T>
static void pack(float* to, size_t unit, const T* from, size_t n, size_t k, size_t stride_i, size_t stride_k) {
    for (size_t first = 0; first < n; first += unit)
        for (size_t j = 0; j < k; j++)
            for (size_t i = 0; i < unit; i++)
                *to++ = first + i < n ? load(from, (first + i) * stride_i + j * stride_k,
                                             sizeof(T) == 1   ? CUDA_R_8F_E4M3
                                             : sizeof(T) == 2 ? CUDA_R_16BF
                                                              : CUDA_R_32F)
                                      : 0;
}

static void pack_as(uint32_t type, float* to, size_t unit, const void* from, size_t n, size_t k, size_t ld,
                    bool k_is_fast) {
    size_t stride_i = k_is_fast ? ld : 1, stride_k = k_is_fast ? 1 : ld;
    if (type == CUDA_R_8F_E4M3) pack(to, unit, (const e4m3*)from, n, k, stride_i, stride_k);
    else if (type == CUDA_R_16BF) pack(to, unit, (const bf16*)from, n, k, stride_i, stride_k);
    else pack(to, unit, (const float*)from, n, k, stride_i, stride_k);
}

static void multiply_panels(float sums[NR][MR], const float* a, const float* b, size_t k) {
    Lanes s00 = {}, s01 = {}, s10 = {}, s11 = {}, s20 = {}, s21 = {}, s30 = {}, s31 = {};
    for (; k > 0; k--, a += MR, b += NR) {
        Lanes a0, a1;
        memcpy(&a0, a, sizeof a0);
        memcpy(&a1, a + LANES, sizeof a1);
        s00 += a0 * b[0], s01 += a1 * b[0], s10 += a0 * b[1], s11 += a1 * b[1];
        s20 += a0 * b[2], s21 += a1 * b[2], s30 += a0 * b[3], s31 += a1 * b[3];
    }
    const Lanes all[NR][MR / LANES] = {{s00, s01}, {s10, s11}, {s20, s21}, {s30, s31}};
    memcpy(sums, all, sizeof all);
}

static double tanh_argument(double x) { return 0.7978845608028654 * (x + 0.044715 * x * x * x); }
static float gelu_slope(float x) {
    double t = tanh(tanh_argument(x));
    return (float)(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x));
}

// From the sum to the element (i,j) of D. C is not read where beta is 0.
static void finish(const Problem* p, const cublasLtMatmulDescOpaque_t* product, float x, float beta, const void* C,
                   void* D, size_t i, size_t j) {
    size_t aux = j * (size_t)p->aux_ld + i;
    if (beta != 0) x += beta * load(C, j * (size_t)p->ldc + i, p->d_type);
    if (p->epilogue == CUBLASLT_EPILOGUE_BIAS) x += load(product->bias, i, p->d_type);
    if (p->epilogue == CUBLASLT_EPILOGUE_DGELU) x *= gelu_slope(load(product->aux, aux, p->d_type));
    store_element(D, j * (size_t)p->ldd + i, p->d_type, x);
}

static void multiply(const Problem* p, const cublasLtMatmulDescOpaque_t* product, float* a_panels, float* b_panels,
                     float alpha, const void* A, const void* B, float beta, const void* C, void* D) {
    pack_as(p->type, a_panels, MR, A, p->m, p->k, (size_t)p->lda, p->transpose_a);
    pack_as(p->type, b_panels, NR, B, p->n, p->k, (size_t)p->ldb, !p->transpose_b);
    for (size_t j = 0; j < p->n; j += NR)
        for (size_t i = 0; i < p->m; i += MR) {
            float sums[NR][MR];
            multiply_panels(sums, a_panels + i * p->k, b_panels + j * p->k, p->k);
            for (size_t jj = 0; jj < NR && j + jj < p->n; jj++)
                for (size_t ii = 0; ii < MR && i + ii < p->m; ii++)
                    finish(p, product, alpha * sums[jj][ii], beta, C, D, i + ii, j + jj);
        }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void* alpha, const void* A,
                              cublasLtMatrixLayout_t a, const void* B, cublasLtMatrixLayout_t b, const void* beta,
                              const void* C, cublasLtMatrixLayout_t c, void* D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
    Problem p;
    Algorithm algorithm;
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    cublasStatus_t status = resolve(&p, product, a, b, c, d);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (!algo || !alpha || !beta || !A || !B || !D || (!C && *(const float*)beta != 0) || (C == D && p.ldc != p.ldd))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&algorithm, algo, sizeof algorithm);
    if (algorithm.problem != hash(p) || algorithm.workspace > workspace_bytes ||
        (algorithm.workspace && (!workspace || !aligned(workspace, 16))))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!aligned(A, algorithm.alignment_a) || !aligned(B, algorithm.alignment_b) ||
        !aligned(C, algorithm.alignment_c) || !aligned(D, algorithm.alignment_d) ||
        !aligned(product->bias, algorithm.alignment_bias) || !aligned(product->aux, algorithm.alignment_aux))
        return CUBLAS_STATUS_INVALID_VALUE;
    emu::put_launch(stream, [=, description = *product, factor = *(const float*)alpha, add = *(const float*)beta] {
        float *a_panels = (float*)malloc(ROUND_UP(p.m, (uint64_t)MR) * p.k * sizeof(float)),
              *b_panels = (float*)malloc(ROUND_UP(p.n, (uint64_t)NR) * p.k * sizeof(float));
        if (!a_panels || !b_panels) emu::fail("no memory for the panels of a matmul");
        emu::spend(emu::matmuls.seconds[algorithm.answer]);
        emu::matmuls.ran[algorithm.answer]++;
        emu::matmuls.sms = description.sms;
        float units = 1;
        for (const float* scale : {description.a_scale, description.b_scale}) {
            if (scale) emu::check_global_address("a matmul's scale", scale, sizeof *scale), units *= *scale;
        }
        multiply(&p, &description, a_panels, b_panels, factor * units, A, B, add, C, D);
        if (algorithm.workspace) memset(workspace, 0xff, algorithm.workspace);  // last: a result kept there is lost
        free(a_panels);
        free(b_panels);
    });
    return CUBLAS_STATUS_SUCCESS;
}
