// ptx.cuh - all instructions that CUDA C++ has no name for, each behind one function. test/emu/emulated_ptx.h has a
// twin of each for the CPU; its comments say where the elements of a fragment lie.
#pragma once
#include <cuda_bf16.h>

// Rounds two floats to two bf16, to nearest; `low` goes to the lower half.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
    unsigned two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}

// Rounds two floats to E4M3, to nearest, beyond 448 to that; `low` goes to the lower byte. sm_89 and newer.
__device__ __forceinline__ unsigned short pack_e4m3(float low, float high) {
    unsigned short two = 0;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
#endif
    return two;
}

// These take 2^x, e^x and log(x) by the special function unit: errors are about 2 ulp, denormals count as zero.
__device__ __forceinline__ float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float fast_exp(float x) { return __expf(x); }
__device__ __forceinline__ float fast_log(float x) { return __logf(x); }

// d (16,8) fp32 += a (16,16) bf16 b (16,8) bf16, by one warp.
__device__ __forceinline__ void mma_m16n8k16(float d[4], const unsigned a[4], const unsigned b[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads 8 x 8 matrices of 16-bit elements from shared memory: lane 8 * m + i brings the address of row i of matrix m,
// 16-byte aligned; r[m] is then the lane's two elements of matrix m, or of its transpose.
__device__ __forceinline__ void ldmatrix_x4(unsigned r[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_transposed(unsigned r[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

// Copies 16 bytes from global to shared memory without waiting; only the first `bytes` (0 to 16) are read, the rest is
// filled with zeros. Both addresses 16-byte aligned. Copies between two commits are a group; wait returns when at most
// OPEN of the thread's newest groups are still under way. Other threads see the data after a barrier.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "l"(global), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int OPEN>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(OPEN) : "memory");
}

// These store 16 bytes at once: store_16 to global memory, keep_16 to shared memory. An assignment may be split into
// stores of 2 and 4 bytes. An address of the other space is not refused: the compiler takes the conversion at its word.
__device__ __forceinline__ void store_16(uint4* p, uint4 v) {
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(__cvta_generic_to_global(p)), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}
__device__ __forceinline__ void keep_16(uint4* p, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"((unsigned)__cvta_generic_to_shared(p)), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

// These serve data that is met once: they do not displace what the caches hold for others.
template <class V>
__device__ __forceinline__ V load_once(const V* p) {
    return __ldcs(p);
}
template <class V>
__device__ __forceinline__ void store_once(V* p, V v) {
    __stcs(p, v);
}
