// emulated_sm90.h - the CPU twins of kernels/cuda/ptx_sm90.cuh. They check what NVIDIA's PTX ISA manual demands of
// wgmma, mbarrier, cp.async.bulk.tensor, setmaxnreg and bar (sections "Register fragments and shared memory matrix
// layouts" and those of the instructions); emulator.cc has the machine behind them.
#pragma once
#include "cuda.h"
#include "emulated_ptx.h"

inline unsigned shared_address(const void* p) { return emu::shared_address(p); }
inline void mbarrier_init(uint64_t* barrier, unsigned arrivals) { emu::mbarrier_init(barrier, arrivals); }
inline void mbarrier_init_fence() { emu::mbarrier_init_fence(); }
inline void mbarrier_arrive(uint64_t* barrier) { emu::mbarrier_arrive(barrier, 0); }
inline void mbarrier_arrive_expect(uint64_t* barrier, unsigned bytes) { emu::mbarrier_arrive(barrier, bytes); }
inline void mbarrier_wait(uint64_t* barrier, unsigned parity) { emu::mbarrier_wait(barrier, parity); }
inline void named_barrier_sync(int index, int threads) { emu::named_barrier(index, threads, true); }
inline void named_barrier_arrive(int index, int threads) { emu::named_barrier(index, threads, false); }

inline void fence_async_proxy() { emu::fence_proxy(); }
inline void keep_4(unsigned* p, unsigned v) {
    emu::check_shared_address("st.shared", p, sizeof v);
    *p = v;
    emu::wrote_for_proxy(p, sizeof v);
}
inline void clear_16(uint4* p) {
    keep_16(p, make_uint4(0, 0, 0, 0));
    emu::wrote_for_proxy(p, sizeof *p);
}

template <int REGISTERS>
void give_registers() {
    emu::set_registers(REGISTERS, false);
}
template <int REGISTERS>
void take_registers() {
    emu::set_registers(REGISTERS, true);
}

inline void tma_load(void* box, const CUtensorMap* map, int column, int head, int row, uint64_t* barrier) {
    emu::tma_load({shared_address(box), map, column, head, row, barrier});
}

// ---- matmuls of a warpgroup

// Element (line, depth) of an operand in shared memory, where line is a row of a or a column of b. Rows of memory have
// 128 bytes and lie in groups of eight; their chunks of 16 bytes are permuted by bits 7 to 9 of the address.
inline float described(uint64_t operand, bool transposed, int line, int depth) {
    if (operand >> 62 != 1) emu::fail("wgmma: the descriptor asks for another swizzle than that of 128 bytes");
    if (operand >> 49 & 7) emu::fail("wgmma: the descriptor has a base offset, but tiles begin at multiples of 1024");
    unsigned address = (unsigned)(operand & 0x3fff) * 16, slab = (unsigned)(operand >> 16 & 0x3fff) * 16;
    unsigned group = (unsigned)(operand >> 32 & 0x3fff) * 16, l = (unsigned)line, k = (unsigned)depth;
    if (transposed) address += l / 64 * slab + k / 8 * group + k % 8 * 128 + l % 64 * 2;
    else address += l / 8 * group + l % 8 * 128 + k * 2;
    address ^= (address >> 7 & 7) << 4;
    const char* p = emu::at_shared_address("wgmma", address);
    emu::check_proxy("wgmma", p);
    return bf16_to_float(*(const bf16*)p);
}

// The lane's part of a product: rows lane / 4 and 8 more of its warp's 16, columns 2 * (lane % 4) and the next of 8.
inline void emulated_product(emu::Product* p) {
    int lane = emu::position->lane, warp = (int)(threadIdx.x / 32 % 4);
    float a[2][16];
    for (int half = 0; half < 2; half++)
        for (int k = 0; k < 16; k++)
            a[half][k] = p->a ? bf16_to_float(p->rows[half][k])
                              : described(p->a_described, p->transposed_a, 16 * warp + 8 * half + lane / 4, k);
    for (int column = 0; column < p->n; column++) {
        if (column % 8 / 2 != lane % 4) continue;
        float b[16];
        for (int k = 0; k < 16; k++) b[k] = described(p->b_described, p->transposed_b, column, k);
        for (int half = 0; half < 2; half++) {
            float* d = &p->value[column / 8 * 4 + 2 * half + column % 2];
            if (!p->add) *d = 0;
            for (int k = 0; k < 16; k += 8) {  // eight products at a time, and what there is
                float terms[9] = {*d};
                for (int i = 0; i < 8; i++) terms[1 + i] = a[half][k + i] * b[k + i];
                *d = truncated_sum(terms, 9);
            }
        }
    }
}

inline void wgmma_fence() { emu::wgmma_fence(); }
inline void wgmma_commit() { emu::wgmma_commit(); }
template <int OPEN>
void wgmma_wait() {
    __syncwarp();
    while (emu::Product* p = emu::wgmma_next(OPEN)) emulated_product(p);
    emu::wgmma_settle();
}
template <class T>
void hold_still(T&) {}

template <int TA, int TB, int N>
void wgmma(float (&d)[N][4], uint64_t a, uint64_t b, int add) {
    emu::Product p = {};
    __syncwarp();
    p.d = d[0], p.n = 8 * N, p.a_described = a, p.b_described = b;
    p.transposed_a = TA, p.transposed_b = TB, p.add = add;
    emu::wgmma_begin(p);
}
template <int N>
void wgmma_add(float (&d)[N][4], const unsigned (&a)[4], uint64_t b) {
    emu::Product p = {};
    const emu::Gathered* g = emu::gather(~0u, a, sizeof a);
    for (int half = 0; half < 2; half++)
        for (int k = 0; k < 16; k++) {
            unsigned two;
            emu::read_lane(&two, g, emu::position->lane / 4 * 4 + k % 8 / 2, 4 * (size_t)(half + 2 * (k / 8)), 4);
            p.rows[half][k] = (uint16_t)(two >> 16 * (k % 2));
        }
    p.d = d[0], p.n = 8 * N, p.a = a, p.b_described = b, p.transposed_b = 1, p.add = 1;
    emu::wgmma_begin(p);
}

// ---- turns between blocks, which run one after another here

inline void add_16(float* p, float4 v) {
    emu::check_global_address("red.global", p, sizeof v);
    p[0] += v.x, p[1] += v.y, p[2] += v.z, p[3] += v.w;
}
inline void wait_for_turn(const int* count, int turn) {
    emu::check_global_address("ld.acquire", count, sizeof *count);
    if (*count != turn) emu::fail("a block waits for turn %d, and blocks before it have ended %d", turn, *count);
}
inline void end_turn(int* count) {
    emu::check_global_address("red.release", count, sizeof *count);
    ++*count;
}
