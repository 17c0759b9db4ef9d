// cuda.h - inside the CUDA backend: what its files share on the host and on the device.
//
// Every file compiles in two ways: by nvcc, and by a plain C++ compiler for the emulator (test/emu), whose headers then
// stand in for NVIDIA's. So kernels are launched by LAUNCH, dynamic shared memory is named by DYNAMIC_SHARED, and
// instructions without a C++ name stay in ptx.cuh. No cooperative groups, no spinning between blocks.
#pragma once
#include <cuda_runtime.h>

extern "C" {
#include "kernels/comm_transport.h"
}

#ifdef __CUDACC__
#include "kernels/cuda/ptx.cuh"
// LAUNCH((kernel<T, 64>), grid, block, dynamic shared bytes, stream, arguments...)
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                       \
    do {                                                                             \
        kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__);          \
        cuda_check_at(__FILE__, __LINE__, cudaGetLastError(), "launch of " #kernel); \
    } while (0)
#define DYNAMIC_SHARED(type, name)                               \
    extern __shared__ __align__(16) unsigned char cuda_shared[]; \
    type* name = (type*)cuda_shared
#else
#include <emulated_ptx.h>
#endif

// ---- host

// Dies with the place, what was tried and CUDA's words.
void cuda_check_at(const char* file, int line, cudaError_t error, const char* what);
#define CUDA_CHECK(call) cuda_check_at(__FILE__, __LINE__, (call), #call)

typedef struct CudaDevice {
    int index, major, minor, sm_count;
    size_t shared_optin;  // most dynamic shared memory of a block: 99 KiB on sm_89 and sm_120, 227 KiB on sm_90
    KernelLimits limits;  // as given to open
    cudaStream_t stream;  // what Stream NULL means
    char* scratch;        // see cuda_scratch
    size_t scratch_bytes;
} CudaDevice;
extern CudaDevice cuda;

static inline cudaStream_t cuda_stream(Stream s) { return s ? (cudaStream_t)s : cuda.stream; }

// Device memory that the running op may use, 256-byte aligned; the next op uses the same. Dies when it is more than
// the file's ..._scratch_bytes promised for the limits.
void* cuda_scratch(size_t bytes);

// Lets a kernel have more than 48 KiB of dynamic shared memory. Cheap enough to call before each launch.
template <class Kernel>
static inline void cuda_allow_shared(Kernel* kernel, size_t bytes) {
    if (bytes > (48 << 10))
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
}

// Blocks of `threads` for n items.
static inline unsigned cuda_blocks(size_t n, size_t threads) { return (unsigned)CEIL_DIV(n, threads); }

// The entries of the table by file; signatures as in kernels.h. ..._scratch_bytes: most scratch that an op of the file
// needs under these limits.
// elementwise.cu
void cuda_gelu_forward(void* out, const void* x, size_t n, DType dt, Stream s);
void cuda_gelu_backward(void* dx, const void* pre, size_t n, DType dt, Stream s);  // dx (n) *= GELU'(pre)
void cuda_add(void* out, const void* a, const void* b, size_t n, DType dt, Stream s);
void cuda_cast(void* out, DType out_dt, const void* x, DType x_dt, size_t n, Stream s);
void cuda_gather_rows(void* out, const void* x, const int* rows, int n, int C, int ldo, int ldx, DType dt, Stream s);
void cuda_split_heads(void* out, const void* x, int N, int M, int NH, int HS, int d, DType dt, Stream s);
void cuda_join_heads(void* out, const void* x, int N, int M, int NH, int HS, int d, DType dt, Stream s);
void cuda_scatter_rows(void* out, const void* x, const int* rows, int n, int C, int ldo, int ldx, DType dt, Stream s);
void cuda_attention_merge(float* out, float* lse, const float* part, const float* part_lse, int N, int NH, int HS,
                          Stream s);
// columns.cu
void cuda_gather_columns(void* out, const void* x, const int* columns, int N, int n, int ldx, DType dt, Stream s);
void cuda_scatter_columns(void* out, const void* x, const int* source, ColumnFill fill, int N, int K, int n, DType dt,
                          Stream s);
// embedding.cu
size_t cuda_embedding_scratch_bytes(const KernelLimits* limits);
void cuda_embedding_forward(void* out, const int* tokens, const int* positions, const void* wte, const void* wpe, int N,
                            int C, DType dt, Stream s);
void cuda_embedding_backward(float* dwte, float* dwpe, const void* dout, const int* tokens, const int* positions, int N,
                             int C, DType dt, Stream s);
// layernorm.cu
size_t cuda_layernorm_scratch_bytes(const KernelLimits* limits);
void cuda_layernorm_forward(void* out, float* mean, float* rstd, const void* x, const void* weight, const void* bias,
                            int N, int C, DType dt, Stream s);
void cuda_residual_layernorm_forward(void* sum, void* out, float* mean, float* rstd, const void* a, const void* b,
                                     const void* weight, const void* bias, int N, int C, DType dt, Stream s);
void cuda_layernorm_backward(void* dx, float* dweight, float* dbias, const void* dout, const void* x,
                             const void* weight, const float* mean, const float* rstd, int N, int C, DType dt,
                             Stream s);
// column_sum.cu: sums[c] (C) += sum over rows of x (N,C), in a fixed order; for bias gradients
size_t cuda_column_sum_scratch_bytes(const KernelLimits* limits);
void cuda_column_sum(float* sums, const void* x, int N, int C, DType dt, Stream s);
// Column c of parts (n_parts, columns) is added to sums[c], or from C on to more_sums[c - C]; in order.
void cuda_add_parts(float* sums, float* more_sums, const float* parts, int n_parts, int C, int columns,
                    cudaStream_t stream);
// matmul.cu
int cuda_matmul_open(char* err, size_t errlen);
void cuda_matmul_close(void);
size_t cuda_matmul_scratch_bytes(const KernelLimits* limits);  // cuBLASLt's workspace among them
void cuda_matmul_forward(void* out, void* gelu, const void* x, const void* weight, const void* bias, int N, int C,
                         int OC, DType dt, Stream s);
void cuda_matmul_backward_input(void* dx, const void* dout, const void* weight, const void* pre, int N, int C, int OC,
                                DType dt, Stream s);
void cuda_matmul_backward_weight(float* dweight, float* dbias, const void* dout, const void* x, int N, int C, int OC,
                                 DType dt, Stream s);
// attention.cu, attention_backward.cu
size_t cuda_attention_scratch_bytes(const KernelLimits* limits);
void cuda_attention_forward(void* out, float* lse, const Attention* a, DType dt, Stream s);
void cuda_attention_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                             const Attention* a, DType dt, Stream s);
// attention_plain.cu: what the two hand on, any element type and head sizes to 256; backward: with ld_dq and ld_dkv set
// whether the attention is partial or not
size_t cuda_attention_plain_scratch_bytes(const KernelLimits* limits);
void cuda_attention_plain_forward(void* out, float* lse, const Attention* a, DType dt, Stream s);
void cuda_attention_plain_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                                   const Attention* a, DType dt, Stream s);
// attention_cudnn.cu; open returns -1 with the reason why cuDNN cannot be used with these limits. forward and backward
// return 0, or -1 when cuDNN cannot do this very call (then nothing was done)
int cuda_cudnn_open(const KernelLimits* limits, char* err, size_t errlen);
void cuda_cudnn_close(void);
const char* cuda_cudnn_choice(void);  // own kernels or cuDNN's, and why: a sentence
size_t cuda_cudnn_scratch_bytes(const KernelLimits* limits);
int cuda_cudnn_forward(void* out, float* lse, const Attention* a, DType dt, Stream s);
int cuda_cudnn_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                        const Attention* a, DType dt, Stream s);
// classifier.cu
void cuda_classifier(float* losses, void* logits, const int* targets, float scale, int write_gradient, int N, int V,
                     int Vp, DType dt, Stream s);
void cuda_classifier_part(float* stats, const void* logits, const int* targets, int first, int N, int V, int Vp,
                          DType dt, Stream s);
void cuda_classifier_join(float* losses, void* logits, const float* stats, int parts, const int* targets, int first,
                          float scale, int write_gradient, int N, int V, int Vp, DType dt, Stream s);
// optimizer.cu
size_t cuda_optimizer_scratch_bytes(const KernelLimits* limits);
void cuda_adamw(const AdamW* a, DType dt, Stream s);
void cuda_sum_of_squares(double* result, const float* x, size_t n, Stream s);
void cuda_add_sum(double* result, const float* x, size_t n, Stream s);
void cuda_clip_scale(float* scale, const double* norm2, float clip, Stream s);

// ---- Comms (backend.cu)

// The Comm of one rank. local_rank and local_size are those of the world that it is a part of. 0, or -1 with words.
int comm_open_cuda_self(Comm** c, int local_rank, int local_size, double timeout_seconds, char* err, size_t errlen);
// In device memory, for comm_copy_to_self.
void comm_copy_device(void* to, const void* from, size_t bytes, Stream s);

// ---- device

#define FULL_WARP 0xffffffffu

// Kernels are templates over the element type T: float or bf16 (which is the 16 bits of one).
__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float((unsigned)x << 16); }
template <class T>
__device__ __forceinline__ T narrow(float x);
template <>
__device__ __forceinline__ float narrow<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ bf16 narrow<bf16>(float x) {
    return (bf16)pack_bf16(x, 0.0f);
}

// W elements that one thread reads or writes at a time, 16 bytes of them unless W says otherwise.
template <class T, int W = 16 / (int)sizeof(T)>
struct __align__(W * sizeof(T)) Pack {
    static constexpr int N = W;
    T v[W];
};

// p must be aligned like the pack. load_pack<4>(p) loads 4 elements.
template <class T>
__device__ __forceinline__ Pack<T> load_pack(const T* p) {
    return *(const Pack<T>*)p;
}
template <int W, class T>
__device__ __forceinline__ Pack<T, W> load_pack(const T* p) {
    return *(const Pack<T, W>*)p;
}
template <class T, int W>
__device__ __forceinline__ void store_pack(T* p, const Pack<T, W>& x) {
    *(Pack<T, W>*)p = x;
}

// Every lane gets the sum, or the maximum, of all 32; a fixed tree.
__device__ __forceinline__ float warp_sum(float x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(FULL_WARP, x, lanes);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, lanes));
    return x;
}

// GELU, see kernels.h. With u = sqrt(2/pi) (x + 0.044715 x^3):  (1 + tanh u) / 2 = 1 / (1 + exp(-2u)), which loses no
// digits where x is negative. An error of exp counts at most a quarter, so the fast one does for fp32 too: in all below
// 7 * 2^-24 |x|. Where u overflows the result is x or 0.
__device__ __forceinline__ float exp_minus_2u(float x) { return fast_exp(x * (x * x * -0.0713548163f - 1.59576912f)); }
__device__ __forceinline__ float gelu_of(float x) { return __fdividef(x, 1.0f + exp_minus_2u(x)); }
// Its derivative. With e = exp(-2u), s = 1 / (1 + e), 1 - s = e s:  s + x s (e s) 2 du/dx. Beyond |x| = 10 that is 0 or
// 1, and e would overflow.
__device__ __forceinline__ float gelu_slope(float x) {
    x = fabsf(x) > 10.0f ? copysignf(10.0f, x) : x;  // a NaN stays one
    float e = exp_minus_2u(x), s = __fdividef(1.0f, 1.0f + e);
    return s + x * s * (e * s) * (x * x * 0.214064449f + 1.59576912f);
}

extern "C" const Kernels cuda_kernels;
// The table's device: 0, or -1 with the reason why there is none that can be used.
extern "C" int cuda_find_device(char* err, size_t errlen);
