// fp8.cu - bf16 to E4M3, straight or transposed, and the greatest magnitude on the way, in one pass over memory.
#include "kernels/cuda/cuda.h"

enum { THREADS = 256, RUN = 16, BLOCKS_A_SM = 8 };  // RUN: elements that a thread stores at once; it has several runs

// Transposed, a thread's run is a part of a column, so that a warp still reads neighbours. The greatest does not depend
// on the order of warps, and magnitudes are ordered as their bits.
template <bool TRANSPOSED>
static __global__ void quantize_kernel(e4m3* out, float* amax, const bf16* x, const float* scale, size_t N, size_t C) {
    float most = 0, factor = out ? *scale : 0;
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < N * C / RUN; i += gridDim.x * (size_t)THREADS) {
        Pack<bf16, RUN / 2> v[2];
        Pack<unsigned short, RUN / 2> codes;
        size_t row = i / C * RUN, column = i % C;
        for (int j = 0; j < 2; j++)
            if (!TRANSPOSED) v[j] = load_pack<RUN / 2>(x + (2 * i + j) * (RUN / 2));
        for (int j = 0; j < RUN && TRANSPOSED; j++) v[j / (RUN / 2)].v[j % (RUN / 2)] = x[(row + j) * C + column];
        for (int j = 0; j < RUN; j += 2) {
            const bf16* two = &v[j / (RUN / 2)].v[j % (RUN / 2)];
            float low = widen(two[0]), high = widen(two[1]);
            most = fmaxf(most, fmaxf(fabsf(low), fabsf(high)));
            codes.v[j / 2] = pack_e4m3(low * factor, high * factor);
        }
        if (out) store_pack((unsigned short*)(out + (TRANSPOSED ? column * N + row : i * RUN)), codes);
    }
    most = warp_max(most);
    if (amax && threadIdx.x % 32 == 0) atomicMax((int*)amax, __float_as_int(most));
}

void cuda_quantize(e4m3* out, float* amax, const void* x, const float* scale, int transposed, int N, int C, Stream s) {
    size_t n = (size_t)N, c = (size_t)C;
    unsigned blocks = MIN(cuda_blocks(n * c / RUN, THREADS), (unsigned)(BLOCKS_A_SM * cuda.sm_count));
    if (10 * cuda.major + cuda.minor < 89)
        die("--dtype fp8: expected a GPU of compute capability 8.9 or newer, found %d.%d; try --dtype bf16", cuda.major,
            cuda.minor);
    if (blocks == 0) return;
    if (transposed)
        LAUNCH(quantize_kernel<true>, blocks, THREADS, 0, cuda_stream(s), out, amax, (const bf16*)x, scale, n, c);
    else LAUNCH(quantize_kernel<false>, blocks, THREADS, 0, cuda_stream(s), out, amax, (const bf16*)x, scale, n, c);
}
