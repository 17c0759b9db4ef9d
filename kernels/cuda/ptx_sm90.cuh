// ptx_sm90.cuh - the instructions that Hopper (sm_90a) alone has, each behind one function: matmuls of a warpgroup
// (wgmma), barriers in shared memory (mbarrier), tensor copies (TMA), and registers that warpgroups trade.
// test/emu/emulated_sm90.h has a twin of each, which checks what NVIDIA's PTX ISA manual demands.
//
// Two proxies reach shared memory: ordinary loads and stores are of the generic one, wgmma and TMA of the asynchronous
// one. What the generic one wrote the other sees only after the writer's fence_async_proxy and a barrier.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <stdint.h>

// ---- shared memory and barriers

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// A phase of the barrier ends when `arrivals` threads have arrived and all bytes that they announced are here.
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Shows initialised barriers to the asynchronous proxy; a __syncthreads shows them to the other threads.
__device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect(uint64_t* barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
// Waits for the end of a phase: parity 0 means the first, third, ... one. A fresh barrier counts as after parity 1.
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, unsigned parity) {
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
}

// Barriers 1 to 15 of a block, for `threads` of it (a multiple of 32): who arrives does not wait.
__device__ __forceinline__ void named_barrier_sync(int index, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(index), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int index, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(index), "r"(threads) : "memory");
}

__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// These store to shared memory what wgmma will read: 4 bytes, or 16 of zeros.
__device__ __forceinline__ void keep_4(unsigned* p, unsigned v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared_address(p)), "r"(v) : "memory");
}
__device__ __forceinline__ void clear_16(uint4* p) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(shared_address(p)), "r"(0) : "memory");
}

// ---- registers: all warps of a warpgroup give registers back, or take them when they are free

template <int REGISTERS>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// ---- tensor copies: one thread begins a copy of a box; its bytes arrive at the barrier. Elements of the box that lie
// outside the tensor become zero. The map lies in the kernel's parameters (__grid_constant__).

__device__ __forceinline__ void tma_load(void* box, const CUtensorMap* map, int column, int head, int row,
                                         uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
        "[%5];" ::"r"(shared_address(box)),
        "l"(map), "r"(column), "r"(head), "r"(row), "r"(shared_address(barrier))
        : "memory");
}

// ---- matmuls of a warpgroup: d (64,N) fp32 = or += a (64,16) bf16 b (16,N) bf16, asynchronously
//
// Warp w of the four has rows 16 w to 16 w + 15 of d, and of a where that lies in registers, as in mma_m16n8k16. What
// lies in shared memory is described by 64 bits (attention_sm90.cuh). Operands must not be touched before
// wgmma_wait, and what registers hold must be settled by wgmma_fence before the first one that uses them.

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most OPEN of the newest groups are under way.
template <int OPEN>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(OPEN) : "memory");
}
// Keeps the compiler from moving what uses these registers across the line.
template <int N>
__device__ __forceinline__ void hold_still(float (&d)[N][4]) {
#pragma unroll
    for (int i = 0; i < 4 * N; i++) asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}
template <int N>
__device__ __forceinline__ void hold_still(unsigned (&a)[N][4]) {
#pragma unroll
    for (int i = 0; i < 4 * N; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

#define FLOATS_8(i)                                                                                   \
    "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3]), "+f"(d[i + 1][0]), "+f"(d[i + 1][1]), \
        "+f"(d[i + 1][2]), "+f"(d[i + 1][3])
#define FLOATS_32(i) FLOATS_8(i), FLOATS_8(i + 2), FLOATS_8(i + 4), FLOATS_8(i + 6)
#define NAMES_32                                                                                                     \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64                                                                                            \
    NAMES_32                                                                                                \
        ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
        "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA(N, NAMES, ADD, OPERANDS)                                               \
    "{ .reg .pred p; setp.ne.s32 p, " ADD ", 0; wgmma.mma_async.sync.aligned.m64n" N \
    "k16.f32.bf16.bf16 "                                                             \
    "{" NAMES "}, " OPERANDS "; }"

// Of both operands in shared memory; TA, TB: 1 where a's rows, or b's columns, are contiguous, not the depth.
template <int TA, int TB>
__device__ __forceinline__ void wgmma(float (&d)[8][4], uint64_t a, uint64_t b, int add) {
    asm volatile(WGMMA("64", NAMES_32, "%34", "%32, %33, p, 1, 1, %35, %36")
                 : FLOATS_32(0)
                 : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB));
}
template <int TA, int TB>
__device__ __forceinline__ void wgmma(float (&d)[16][4], uint64_t a, uint64_t b, int add) {
    asm volatile(WGMMA("128", NAMES_64, "%66", "%64, %65, p, 1, 1, %67, %68")
                 : FLOATS_32(0), FLOATS_32(8)
                 : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB));
}
// Of a in registers, b's columns contiguous; it always adds.
__device__ __forceinline__ void wgmma_add(float (&d)[8][4], const unsigned (&a)[4], uint64_t b) {
    asm volatile(WGMMA("64", NAMES_32, "1", "{%32, %33, %34, %35}, %36, p, 1, 1, 1")
                 : FLOATS_32(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_add(float (&d)[16][4], const unsigned (&a)[4], uint64_t b) {
    asm volatile(WGMMA("128", NAMES_64, "1", "{%64, %65, %66, %67}, %68, p, 1, 1, 1")
                 : FLOATS_32(0), FLOATS_32(8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// ---- turns between blocks

// Adds four floats to memory, without a result. p: global memory, 16-byte aligned.
__device__ __forceinline__ void add_16(float* p, float4 v) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}
// Waits until *count is `turn`. Only a block that started earlier may be waited for: it is running or done.
__device__ __forceinline__ void wait_for_turn(const int* count, int turn) {
    int now = turn - 1;
    while (now != turn)
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                     : "=r"(now)
                     : "l"(__cvta_generic_to_global(count))
                     : "memory");
}
// Ends the turn: what this thread wrote, or has seen written, comes first.
__device__ __forceinline__ void end_turn(int* count) {
    __threadfence();
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(__cvta_generic_to_global(count)) : "memory");
}
