// attention_sm90.cuh - code that the attention kernels for Hopper share: tiles in shared memory as TMA brings them and
// wgmma reads them, and the warp that loads them.
//
// A tile of R rows and D columns (64 or 128) consists of D / 64 slabs of 64 columns, a slab of R rows of 128 bytes. The
// 16-byte chunks of a row are permuted by the row's number modulo 8 (the swizzle of 128 bytes), so that neither side
// meets a bank twice. TMA brings boxes of 64 x 64 elements, one of 8 KiB after another.
//
// One warp loads, the warpgroups of consumers compute. A stage of the ring between them has two barriers: `full`, at
// which its bytes arrive, and `empty`, at which each warp of the consumers does when it has read them.
//
// Rows behind a document's last one are zero in every tile, as in attention_tiles.cuh: TMA brings the next document's,
// or what lies behind the tensor, so the loading warp clears them before it shows the tile.
#pragma once
#include "kernels/cuda/attention_tiles.cuh"
#ifdef __CUDACC__
#include "kernels/cuda/ptx_sm90.cuh"
#else
#include <emulated_sm90.h>
#endif

enum {
    WARPGROUP = 128,  // threads
    BOX = 64,         // rows and columns of a box
    BOX_BYTES = BOX * BOX * 2,
    PATTERN = 1024,         // bytes after which the swizzle repeats: a box begins at a multiple
    STAGES = 2,             // of a ring
    SYNC_BYTES = 128,       // for the barriers
    LOADING_REGISTERS = 24  // of a thread beside the consumers, who take what these leave
};

// Returns the thread's warpgroup, told so that the compiler knows it to be one number in a warp.
__device__ __forceinline__ int warpgroup_index() { return __shfl_sync(FULL_WARP, (int)(threadIdx.x / WARPGROUP), 0); }

// Returns the first multiple of PATTERN in dynamic shared memory, of which a kernel asks for PATTERN bytes more.
__device__ __forceinline__ bf16* first_tile(bf16* shared) {
    return shared + (PATTERN - (shared_address(shared) & (PATTERN - 1))) % PATTERN / sizeof(bf16);
}

// Describes to wgmma what begins at p: rows of 128 bytes, eight of them one after another; columns that do not fit into
// a row go on `slab` bytes farther (0: they all fit, or are the depth). PTX ISA, "Matrix descriptor": 16-byte units.
__device__ __forceinline__ uint64_t describe(const bf16* p, unsigned slab) {
    const uint64_t swizzle_128 = 1ull << 62, group_of_rows = (uint64_t)(PATTERN / 16) << 32;
    return swizzle_128 | group_of_rows | (uint64_t)(slab / 16) << 16 | (shared_address(p) & 0x3ffff) / 16;
}

// These describe step k of 16 in the depth of a product. Depth along a row's columns: 32 bytes a step within a slab.
template <int ROWS>
__device__ __forceinline__ uint64_t depth_in_columns(const bf16* tile, int k) {
    return describe(tile + k / 4 * ROWS * BOX + k % 4 * 16, 0);
}
// Depth along the rows, so that the operand counts as transposed.
template <int ROWS>
__device__ __forceinline__ uint64_t depth_in_rows(const bf16* tile, int k) {
    return describe(tile + k * 16 * BOX, ROWS * BOX * 2);
}

// A place in a ring: the stage, and the parity of its phases.
struct Ring {
    int stage, parity;
    __device__ __forceinline__ void next() {
        stage = (stage + 1) % STAGES;
        parity ^= stage == 0;
    }
};

// The barriers of a ring; begin is called by one thread, before a __syncthreads.
struct Barriers {
    uint64_t full[STAGES], empty[STAGES];
    __device__ __forceinline__ void begin(unsigned loaders, unsigned readers) {
        for (int i = 0; i < STAGES; i++) mbarrier_init(full + i, loaders), mbarrier_init(empty + i, readers);
    }
};

// The barrier at which the loading warp waits for the tiles that it clears rows of, and the parity of its phase.
struct Edge {
    uint64_t* barrier;
    int parity;
};

// A warp begins to load rows `row` and on of a head, of which the first n_rows are the document's, and arrives at
// `full` once.
template <int D, int ROWS>
__device__ __forceinline__ void load_tile(bf16* tile, const CUtensorMap* map, int head, int row, int n_rows,
                                          uint64_t* full, Edge* edge) {
    bool whole = n_rows >= ROWS;
    int boxes = MAX(0, MIN(CEIL_DIV(n_rows, (int)BOX), ROWS / BOX)), lane = (int)lane_index();
    uint64_t* barrier = whole ? full : edge->barrier;
    if (lane == 0) {
        mbarrier_arrive_expect(barrier, (unsigned)(boxes * (D / BOX) * BOX_BYTES));
        for (int i = 0; i < boxes; i++)
            for (int slab = 0; slab < D / BOX; slab++)
                tma_load(tile + (slab * ROWS + i * BOX) * BOX, map, slab * BOX, head, row + i * BOX, barrier);
    }
    if (whole) return;
    mbarrier_wait(barrier, (unsigned)edge->parity);
    edge->parity ^= 1;
    for (int i = MAX(0, n_rows) * 8 + lane; i < ROWS * 8; i += 32) {
        UNROLL
        for (int slab = 0; slab < D / BOX; slab++) clear_16((uint4*)(tile + slab * ROWS * BOX) + i);
    }
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(full);
}

// Every warp of the consumers says that it has read a stage.
__device__ __forceinline__ void release(uint64_t* empty) {
    __syncwarp();
    if (lane_index() == 0) mbarrier_arrive(empty);
}

// ---- host: maps of tensors for TMA

// Describes x (rows, heads, HS; row stride ld): a box is BOX columns of one head and BOX rows. Dies when CUDA refuses.
CUtensorMap cuda_tensor_map(const void* x, int rows, int heads, int HS, int ld);
