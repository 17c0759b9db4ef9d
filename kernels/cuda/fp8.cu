// fp8.cu - bf16 to E4M3, straight or transposed, and the greatest magnitude on the way, in one pass over memory.
#include "kernels/cuda/cuda.h"

enum { THREADS = 256, RUN = 16, HALF = RUN / 2, BLOCKS_A_SM = 8 };  // RUN: elements that a thread stores at once

// Transposed, a run is a part of a column, so that a warp still reads neighbours. The greatest does not depend on the
// order of warps, and magnitudes are ordered as their bits.
static __global__ void quantize_kernel(e4m3* out, float* amax, const bf16* x, const float* scale, int transposed,
                                       size_t N, size_t C) {
    float most = 0, factor = out ? *scale : 0;
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < N * C / RUN; i += gridDim.x * (size_t)THREADS) {
        Pack<bf16, HALF> v[2];
        Pack<unsigned short, HALF> codes;
        const bf16* from = transposed ? x + i / C * RUN * C + i % C : x + i * RUN;
        if (!transposed) v[0] = load_pack<HALF>(from), v[1] = load_pack<HALF>(from + HALF);
        for (int j = 0; j < RUN && transposed; j++) v[j / HALF].v[j % HALF] = from[j * C];
        for (int j = 0; j < RUN; j += 2) {
            float low = widen(v[j / HALF].v[j % HALF]), high = widen(v[j / HALF].v[j % HALF + 1]);
            most = fmaxf(most, fmaxf(fabsf(low), fabsf(high)));
            codes.v[j / 2] = pack_e4m3(low * factor, high * factor);
        }
        if (out) store_pack((unsigned short*)(out + (transposed ? i % C * N + i / C * RUN : i * RUN)), codes);
    }
    most = warp_max(most);
    if (amax && threadIdx.x % 32 == 0) atomicMax((int*)amax, __float_as_int(most));
}

void cuda_quantize(e4m3* out, float* amax, const void* x, const float* scale, int transposed, int N, int C, Stream s) {
    size_t n = (size_t)N, c = (size_t)C;
    unsigned blocks = MIN(cuda_blocks(n * c / RUN, THREADS), (unsigned)(BLOCKS_A_SM * cuda.sm_count));
    if (10 * cuda.major + cuda.minor < 89)
        die("--dtype fp8: expected a GPU of sm_89 or newer, found sm_%d%d; try --dtype bf16", cuda.major, cuda.minor);
    if (blocks)
        LAUNCH(quantize_kernel, blocks, THREADS, 0, cuda_stream(s), out, amax, (const bf16*)x, scale, transposed, n, c);
}
