// emulator.h - CUDA kernels on the CPU, thread by thread, so that they can be tested where there is no GPU.
//
// Every CUDA thread of a block is a fiber with its own stack; the blocks of a grid run one after another. A fiber runs
// until it waits: at __syncthreads for its block, at a warp operation (shuffle, ballot, mma, ldmatrix) for the lanes
// that the mask names. What a GPU would do silently wrong ends the program here, with kernel, block and the threads
// that wait: barriers that some threads do not reach, warp operations of lanes that have left, misaligned vectors.
//
// Memory has the two spaces of a GPU: global memory is what cudaMalloc gave, shared memory what the block has. An
// instruction that names a space ends the program where its address is in the other one, or in none; so does a kernel
// that is launched with a pointer of the host. All lies between pages that nobody may touch: other reads and writes
// that leave it end the program too, with the kernel's name. Stacks are like that as well.
//
// Missing barriers show in two ways. Shared memory begins every block as NaN, and EMU_ORDER=0..3 (ascending,
// descending, and both with one warp running as far as it can) changes who comes first. And under ThreadSanitizer each
// CUDA thread is a thread of its own, ordered with the others by barriers and warp operations alone: a race is reported
// with both lines. Under AddressSanitizer global memory, shared arrays and dynamic shared memory have red zones instead
// of pages between them.
//
// Not modelled: weak memory order between blocks, bank conflicts, registers, anything about time. One OS thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>

#if defined(__SANITIZE_ADDRESS__)
#define EMU_ADDRESS_SANITIZER
#elif defined(__SANITIZE_THREAD__)
#define EMU_THREAD_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ADDRESS_SANITIZER
#elif __has_feature(thread_sanitizer)
#define EMU_THREAD_SANITIZER
#endif
#endif

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct CUstream_st;
struct CUtensorMap;

namespace emu {

constexpr int WARP = 32, LANE_BYTES = 64, PAGE = 4096;
// The least that any supported GPU (sm_89, sm_120) can give a block: what fits here fits everywhere. Without
// cudaFuncSetAttribute a kernel gets no more than the second number.
constexpr size_t SHARED_BYTES = 99 << 10, SHARED_UNASKED = 48 << 10;

// What the running thread is. Set by the scheduler; kernels see them as threadIdx and so on.
struct Position {
    uint3 thread, block;
    dim3 block_size, grid_size;
    int lane;
};
extern Position* position;

// The values that the lanes of a warp brought to a warp operation; valid until the thread's next one.
struct Gathered {
    unsigned mask;  // lanes that took part
    alignas(16) unsigned char value[WARP][LANE_BYTES];
};

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
void block_barrier(int line);
const Gathered* gather(unsigned mask, const void* value, size_t bytes);
void read_lane(void* value, const Gathered* g, int lane, size_t offset, size_t bytes);
void* dynamic_shared();

// `bytes` between pages that nobody may touch, or red zones; they end where the second begins, but for what alignment
// to a power of 2 takes. NULL without memory.
char* guarded(size_t bytes, size_t alignment);
void free_guarded(char* p, size_t bytes);

// The address of an instruction that names a space: ends the program unless all `bytes`, a power of 2 at a multiple of
// it, lie in the block's shared memory, or in one allocation of global memory.
void check_shared_address(const char* instruction, const void* p, size_t bytes);
void check_global_address(const char* instruction, const void* p, size_t bytes);

// The allocation that these bytes are a part of: where it begins, and its bytes; NULL when there is none. With bytes 0
// also where it ends. In cudart.cc.
const char* find_allocation(const void* p, size_t bytes, size_t* of_all);

// Kernels may use what is static in this program: for tests that have their tensors there. In cudart.cc.
void lend_statics();
extern char last_shared_page[];

// What a kernel is given: no address of the host.
void check_pointer(const char* kernel, const void* p);
template <class T>
void check_argument(const char* kernel, const T& x) {
    if constexpr (std::is_pointer_v<T>) check_pointer(kernel, (const void*)x);
    else (void)kernel, (void)x;
}

void launch(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes, void (*body)(void*), void* context);

// cudaFuncSetAttribute, for the dynamic shared memory of a kernel, which its address names; and the check of a launch.
void allow_shared(const void* kernel, size_t bytes);
void check_shared(const void* kernel, const char* name, size_t bytes);
template <class Kernel>
const void* address_of(Kernel* kernel) {
    return (const void*)kernel;
}

// Puts a launch on a stream, where it runs at once unless what stands before it waits for other ranks: see streams.h.
void put_launch(CUstream_st* stream, const std::function<void()>& run);

// Adds to the time that later events of every stream see.
void spend(double seconds);

template <class F>
void launch(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes, F&& call) {
    launch(
        kernel, grid, block, shared_bytes, [](void* p) { (*(std::remove_reference_t<F>*)p)(); }, (void*)&call);
}

// The arguments are copied, as in CUDA.
template <class F, class... Arguments>
void launch_on(CUstream_st* stream, const char* kernel, dim3 grid, dim3 block, size_t shared_bytes, F call,
               Arguments... x) {
    (check_argument(kernel, x), ...);
    put_launch(stream, [=] { launch(kernel, grid, block, shared_bytes, [&] { call(x...); }); });
}

// cp.async: a copy is made when its thread waits for it. Until then there is NaN, lest a forgotten wait, or a copy to
// what others still read, go unseen.
struct Copy {
    void* to;  // 16 bytes
    const void* from;
    int bytes, group;  // beyond `bytes` it fills up with zeros
};
void async_copy(void* shared, const void* global, int bytes);
void async_commit();
// Takes the copies out of the thread's list that a wait finishes, all but those of the newest groups; their number.
int finished_copies(int groups_that_may_be_open, const Copy** list);

// ---- what Hopper alone has; the rules are those of the PTX ISA manual

// The emulated GPU: EMU_CAPABILITY=80, 89 (also if it is not set) or 90, which has 227 KiB of shared memory a block.
int capability();
constexpr size_t SHARED_BYTES_HOPPER = 227 << 10;

// Barriers in shared memory count arrivals and bytes. Waiting threads sleep.
void mbarrier_init(uint64_t* barrier, unsigned arrivals);
void mbarrier_init_fence();
void mbarrier_arrive(uint64_t* barrier, unsigned bytes);
void mbarrier_wait(uint64_t* barrier, unsigned parity);
void named_barrier(int index, int threads, bool waits);
void set_registers(int registers, bool more);

// Dynamic shared memory has addresses, as descriptors name it; it begins at an odd multiple of 16.
unsigned shared_address(const void* p);
char* at_shared_address(const char* instruction, unsigned address);

// What a thread wrote for the asynchronous proxy, and that it fenced it; a read of what nobody fenced ends the program.
void wrote_for_proxy(const void* p, size_t bytes);
void fence_proxy();
void check_proxy(const char* instruction, const void* p);

// A copy of TMA: it is made at once, or, by EMU_ORDER 2 and 3, when no thread can run before; until then there is NaN.
struct BoxCopy {
    unsigned to;  // shared address
    const CUtensorMap* map;
    int column, head, row;
    uint64_t* barrier;
};
void tma_load(const BoxCopy& c);

// A matmul of a warpgroup under way, a thread's part of it. It is made when the thread waits for it, from what is in
// shared memory then; the accumulators hold NaN until then, and must not be touched, nor registers of a.
struct Product {
    float* d;  // (n / 2)
    float* value;
    const unsigned* a;  // in registers, or NULL
    uint16_t rows[2][16];
    unsigned a_before[4];
    uint64_t a_described, b_described;
    int n, transposed_a, transposed_b, add, group;
};
void wgmma_fence();
void wgmma_begin(Product p);
void wgmma_commit();
Product* wgmma_next(int open);  // the next one that a wait for all but `open` groups finishes; NULL: none is left
void wgmma_settle();            // gives accumulators back that nothing works on any more

template <class T>
T shuffle(unsigned mask, T value, int from_lane) {
    static_assert(sizeof(T) <= LANE_BYTES, "a lane brings at most 64 bytes");
    const Gathered* g = gather(mask, &value, sizeof value);
    if (from_lane < 0 || from_lane >= WARP || !(g->mask >> from_lane & 1)) return value;
    read_lane(&value, g, from_lane, 0, sizeof value);
    return value;
}

}  // namespace emu

// ---- the language: qualifiers and built-in variables

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __constant__
#define __grid_constant__
#if defined(EMU_ADDRESS_SANITIZER) || defined(EMU_THREAD_SANITIZER) || defined(EMU_FOR_THREAD_SANITIZER)
#define __shared__ static  // the sanitizer guards it
#else
// One section, NaN at the start of each block. The linker keeps the order of the objects: emulator.o, before all
// kernels, has the page that begins it, cudart.o the one that ends it.
#define __shared__ static EMU_SHARED_SECTION
#define EMU_SHARED_SECTION __attribute__((section("emu_shared")))
#endif

#define threadIdx (emu::position->thread)
#define blockIdx (emu::position->block)
#define blockDim (emu::position->block_size)
#define gridDim (emu::position->grid_size)
#define warpSize 32

#define EMU_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)       \
    emu::check_shared(emu::address_of(kernel), #kernel, (shared_bytes)), \
        emu::launch_on(                                                  \
            stream, #kernel, (grid), (block), (shared_bytes), [=](auto... x) { kernel(x...); }, __VA_ARGS__)
#define DYNAMIC_SHARED(type, name) type* name = (type*)emu::dynamic_shared()

// ---- built-in functions

// The line tells barriers apart: compilers may copy one to several addresses.
inline void __syncthreads(int line = __builtin_LINE()) { emu::block_barrier(line); }
inline void __syncwarp(unsigned mask = ~0u) { emu::gather(mask, nullptr, 0); }

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    return emu::shuffle(mask, value, (emu::position->lane & ~(width - 1)) + (from & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    int from = emu::position->lane ^ bits;
    return emu::shuffle(mask, value, from / width == emu::position->lane / width ? from : emu::position->lane);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    int from = emu::position->lane + (int)by;
    return emu::shuffle(mask, value, from / width == emu::position->lane / width ? from : emu::position->lane);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    int lane = emu::position->lane, from = lane - (int)by;
    return emu::shuffle(mask, value, from >= lane / width * width ? from : lane);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
    const emu::Gathered* g = emu::gather(mask, &predicate, sizeof predicate);
    unsigned result = 0;
    for (int lane = 0; lane < emu::WARP; lane++) {
        int p = 0;
        if (g->mask >> lane & 1) emu::read_lane(&p, g, lane, 0, sizeof p);
        result |= (unsigned)(p != 0) << lane;
    }
    return result;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
inline unsigned __match_any_sync(unsigned mask, int value) {
    const emu::Gathered* g = emu::gather(mask, &value, sizeof value);
    unsigned result = 0;
    for (int lane = 0; lane < emu::WARP; lane++) {
        int other = ~value;
        if (g->mask >> lane & 1) emu::read_lane(&other, g, lane, 0, sizeof other);
        result |= (unsigned)(other == value) << lane;
    }
    return result;
}

// Atomics are atomic for ThreadSanitizer too.
#define EMU_ATOMIC(name, T, result)                                                                   \
    inline T name(T* p, T x) {                                                                        \
        T old, now;                                                                                   \
        __atomic_load(p, &old, __ATOMIC_RELAXED);                                                     \
        do now = (result);                                                                            \
        while (!__atomic_compare_exchange(p, &old, &now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)); \
        return old;                                                                                   \
    }
EMU_ATOMIC(atomicAdd, int, old + x)
EMU_ATOMIC(atomicAdd, unsigned, old + x)
EMU_ATOMIC(atomicAdd, unsigned long long, old + x)
EMU_ATOMIC(atomicAdd, float, old + x)
EMU_ATOMIC(atomicAdd, double, old + x)
EMU_ATOMIC(atomicMin, int, x < old ? x : old)
EMU_ATOMIC(atomicMax, int, x > old ? x : old)
EMU_ATOMIC(atomicMin, unsigned, x < old ? x : old)
EMU_ATOMIC(atomicMax, unsigned, x > old ? x : old)
EMU_ATOMIC(atomicExch, int, x)
EMU_ATOMIC(atomicExch, unsigned, x)

inline int __float_as_int(float f) { return __builtin_bit_cast(int, f); }
inline unsigned __float_as_uint(float f) { return __builtin_bit_cast(unsigned, f); }
inline float __int_as_float(int i) { return __builtin_bit_cast(float, i); }
inline float __uint_as_float(unsigned u) { return __builtin_bit_cast(float, u); }
inline int __popc(unsigned u) { return __builtin_popcount(u); }
inline int __ffs(int i) { return __builtin_ffs(i); }
inline int __clz(int i) { return i ? __builtin_clz((unsigned)i) : 32; }
inline float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
