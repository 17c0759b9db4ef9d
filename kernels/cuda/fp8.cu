// fp8.cu - bf16 to E4M3, straight or transposed, and the greatest magnitude on the way: one pass over memory each.
#include "kernels/cuda/cuda.h"

enum {
    THREADS = 256,
    BLOCKS_A_SM = 8,              // a thread takes several packs, so that few warps meet at *amax
    TILE = 32,                    // rows and columns of a transposed tile
    RUN = TILE * TILE / THREADS,  // elements of a tile's row that a thread takes
};

// A maximum does not depend on the order in which warps come. Magnitudes are ordered as their bits.
__device__ __forceinline__ void raise(float* amax, float mine) {
    mine = warp_max(mine);
    if (amax && threadIdx.x % 32 == 0) atomicMax((int*)amax, __float_as_int(mine));
}

static __global__ void quantize_kernel(e4m3* out, float* amax, const bf16* x, const float* scale, size_t packs) {
    constexpr int W = Pack<bf16>::N;
    float most = 0, factor = out ? *scale : 0;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < packs; i += (size_t)gridDim.x * THREADS) {
        Pack<bf16> v = load_pack(x + i * W);
        Pack<unsigned short, W / 2> codes;
        for (int j = 0; j < W; j += 2) {
            float low = widen(v.v[j]), high = widen(v.v[j + 1]);
            most = fmaxf(most, fmaxf(fabsf(low), fabsf(high)));
            codes.v[j / 2] = pack_e4m3(low * factor, high * factor);
        }
        if (out) store_pack((unsigned short*)(out + i * W), codes);
    }
    raise(amax, most);
}

// out (C,N) of x (N,C): a block takes a tile, whose codes stand in shared memory by columns.
static __global__ void quantize_transposed_kernel(e4m3* out, float* amax, const bf16* x, const float* scale, int N,
                                                  int C) {
    __shared__ e4m3 tile[TILE][TILE + RUN];
    int row = (int)threadIdx.x / (TILE / RUN), first = (int)threadIdx.x % (TILE / RUN) * RUN;
    size_t n = (size_t)blockIdx.y * TILE, c = (size_t)blockIdx.x * TILE;
    float most = 0, factor = *scale;
    if (n + row < (size_t)N && c + first < (size_t)C) {
        Pack<bf16, RUN> v = load_pack<RUN>(x + (n + row) * C + c + first);
        for (int j = 0; j < RUN; j++) {
            most = fmaxf(most, fabsf(widen(v.v[j])));
            tile[first + j][row] = (e4m3)pack_e4m3(widen(v.v[j]) * factor, 0.0f);
        }
    }
    __syncthreads();
    if (c + row < (size_t)C && n + first < (size_t)N) {
        Pack<e4m3, RUN> codes;
        for (int j = 0; j < RUN; j++) codes.v[j] = tile[row][first + j];
        store_pack(out + (c + row) * N + n + first, codes);
    }
    raise(amax, most);
}

void cuda_quantize(e4m3* out, float* amax, const void* x, const float* scale, int transposes, int N, int C, Stream s) {
    if (10 * cuda.major + cuda.minor < 89)
        die("--dtype fp8: expected a GPU of compute capability 8.9 or newer, found %d.%d; try --dtype bf16", cuda.major,
            cuda.minor);
    size_t packs = (size_t)N * (size_t)C / Pack<bf16>::N;
    if (packs == 0) return;
    if (transposes)
        LAUNCH(quantize_transposed_kernel, dim3(cuda_blocks((size_t)C, TILE), cuda_blocks((size_t)N, TILE)), THREADS, 0,
               cuda_stream(s), out, amax, (const bf16*)x, scale, N, C);
    else
        LAUNCH(quantize_kernel, MIN(cuda_blocks(packs, THREADS), (unsigned)(BLOCKS_A_SM * cuda.sm_count)), THREADS, 0,
               cuda_stream(s), out, amax, (const bf16*)x, scale, packs);
}
