// nccl_ranks.h - what the tests of collectives between GPUs share: ranks with a device each, memory there with a twin
// on the host, and what a rank sends and expects.
//
// Built with the stand-ins of test/emu they run anywhere. Built by nvcc with the real NCCL they run on a machine with
// one GPU or more, with MPI or without (test/ranks.sh). Where ranks share a GPU their kernels take turns, at some
// milliseconds a collective.
//
// Tolerances. A sum of `size` terms in an element type with unit roundoff u is off by at most (size - 1) u times the
// sum of magnitudes, in any order, to first order in u; u is 2^-8 for bf16, 2^-24 and 2^-53. The factor 1.02 covers
// the rest, and fp64 gets twice as much, for the sum on the host is no better.
#pragma once
#if __has_include(<nccl.h>)
#include <nccl.h>
#else
#define NCCL_VERSION_CODE 0  // a build without NCCL, which says so when a claim opens it
#endif

#include "kernels/cuda/cuda.h"
#include "test/part_checks.h"

#ifdef __CUDACC__
enum { EMULATED = 0 };
#else
enum { EMULATED = 1 };
#endif

static const Kernels* k = &cuda_kernels;
static RankIdentity id;
static cudaStream_t second;  // a stream that has nothing to do with the first

enum {
    GUARD = 64,    // bytes after each buffer that must stay as they are
    PATIENCE = 60  // seconds that a Comm waits where no rank is missing
};

// ---- ranks

// NCCL 2.30 and newer is told that ranks share a GPU. For an older one each needs a host name of its own and the
// network between them.
static void share_a_gpu(void) {
    static const char* const settings[][2] = {
        {"NCCL_MULTI_RANK_GPU_ENABLE", "1"},
        {"NCCL_NVLS_ENABLE", "0"},
        {"NCCL_MNNVL_ENABLE", "0"},
        {"NCCL_MAX_NCHANNELS", "1"},
        {"NCCL_RAS_ENABLE", "0"},
        {"NCCL_ALGO", "Ring"},
        {"NCCL_PROTO", "Simple"},
        {"NCCL_BUFFSIZE", "1048576"},
        {"NCCL_SOCKET_IFNAME", "lo"},
    };
    static const char* const as_machines[][2] = {
        {"NCCL_NET", "Socket"}, {"NCCL_IB_DISABLE", "1"}, {"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}};
    char host[32];
    for (int i = 0; i < COUNT(settings); i++) setenv(settings[i][0], settings[i][1], 0);
    if (NCCL_VERSION_CODE >= 23000) return;
    snprintf(host, sizeof host, "rank%d", rank);
    setenv("NCCL_HOSTID", host, 0);
    for (int i = 0; i < COUNT(as_machines); i++) setenv(as_machines[i][0], as_machines[i][1], 0);
}

// Who this rank is, and its device with two streams. Ends the program, with words, where a rank has none.
static void start_nccl_ranks(int* n_arguments, char*** arguments) {
    ranks_start(n_arguments, arguments);
    int devices = 0, failed = rank_identity(&id, err, sizeof err);
    if (!failed && (id.rank != rank || id.size != size || size < 2 || size > MOST_RANKS))
        failed = fail(err, sizeof err, "start with test/ranks.sh 4");
    if (!failed) failed = cuda_find_device(err, sizeof err);
    if (!failed) {
        cudaGetDeviceCount(&devices);
        if (!EMULATED && devices < id.local_size) share_a_gpu();
        CUDA_CHECK(cudaStreamCreateWithFlags(&cuda.stream, cudaStreamNonBlocking));
        CUDA_CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    }
    if (failed) printf("    rank %d: %s\n", rank, err), fflush(stdout);
    int all_failed[2] = {failed != 0, 0};
    ranks_add_up(all_failed);
    if (all_failed[0]) ranks_give_up();
    for (int r = 0; r < MOST_RANKS; r++) everyone[r] = r;
}

// ---- memory

typedef struct Buffer {
    char *host, *device;
    size_t bytes;
} Buffer;

static Buffer buffer(size_t bytes) {
    Buffer b = {(char*)malloc(bytes + GUARD), (char*)k->alloc(bytes + GUARD), bytes};
    memset(b.host, 0xa5, bytes + GUARD);
    k->upload(b.device, b.host, bytes + GUARD, NULL);
    return b;
}

static void to_device(Buffer b) { k->upload(b.device, b.host, b.bytes, NULL); }

// What the device holds when s has come so far; also checks the guard.
static void fetch(Buffer b, Stream s) {
    int touched = 0;
    k->download(b.host, b.device, b.bytes + GUARD, s);
    for (size_t i = 0; i < GUARD; i++) touched += b.host[b.bytes + i] != (char)0xa5;
    CHECK(touched == 0);
}

// The same after waiting by the Comm.
static void to_host(Comm* c, Buffer b) {
    char words[ERR_BYTES] = "";
    int waited = c->table->wait(c, NULL, words, sizeof words);
    CHECK_STRING(words, "");
    if (waited == 0) fetch(b, NULL);
}

static void free_buffer(Buffer b) {
    free(b.host);
    k->free_memory(b.device);
}

// ---- numbers, different for each rank

static double get(const void* x, size_t i, DType dt) {
    return dt == DT_F64   ? ((const double*)x)[i]
           : dt == DT_F32 ? ((const float*)x)[i]
                          : bf16_to_float(((const bf16*)x)[i]);
}

// Element i of rank r's input, rounded to dt.
static double value(int r, size_t i, DType dt) {
    double x = random_normal(77 + (uint64_t)r, i);
    return dt == DT_F64 ? x : dt == DT_F32 ? (float)x : bf16_to_float(bf16_from_float((float)x));
}

// Elements first .. first + n of rank r's input.
static void fill(void* x, int r, size_t first, size_t n, DType dt) {
    for (size_t i = 0; i < n; i++) {
        double v = value(r, first + i, dt);
        if (dt == DT_F64) ((double*)x)[i] = v;
        else if (dt == DT_F32) ((float*)x)[i] = (float)v;
        else ((bf16*)x)[i] = bf16_from_float((float)v);
    }
}

// x (n) must be the sum over these ranks of their elements first .. first + n.
static void check_sum(const void* x, size_t first, size_t n, DType dt, const int* ranks, int n_ranks) {
    const double u = dt == DT_F64 ? 2 * ldexp(1, -53) : dt == DT_F32 ? ldexp(1, -24) : ldexp(1, -8);
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        double sum = 0, magnitude = 0;
        for (int r = 0; r < n_ranks; r++) {
            double v = value(ranks[r], first + i, dt);
            sum += v;
            magnitude += fabs(v);
        }
        wrong += !(fabs(get(x, i, dt) - sum) <= 1.02 * (n_ranks - 1) * u * magnitude);
    }
    CHECK(wrong == 0);
}

// ---- bytes, different for each pair of ranks

static char byte_of(int from, int to, size_t i) { return (char)hash64((uint64_t)from << 40 ^ (uint64_t)to << 32 ^ i); }

static void fill_message(char* x, int from, int to, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) x[i] = byte_of(from, to, i);
}

static void check_message(const char* x, int from, int to, size_t bytes) {
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; i++) wrong += x[i] != byte_of(from, to, i);
    CHECK(wrong == 0);
}

// ---- parts

static void check_part(Comm* part, const int* ranks, int n_ranks) {
    if (!check_members(part, ranks, n_ranks)) return;
    CHECK(part->local_rank == id.local_rank && part->local_size == id.local_size);
    CHECK(part->timeout_seconds == PATIENCE);
    Buffer x = buffer(999 * sizeof(float));
    fill(x.host, rank, 0, 999, DT_F32);
    to_device(x);
    part->table->all_reduce(part, x.device, 999, DT_F32, NULL);
    to_host(part, x);
    check_sum(x.host, 0, 999, DT_F32, ranks, n_ranks);
    free_buffer(x);
}
