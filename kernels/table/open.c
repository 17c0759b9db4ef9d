// open.c - the one place that knows which backends and transports this build has; it also measures peaks.
//
// HAVE_CUDA: the CUDA sources, compiled by nvcc. HAVE_EMU: instead of them the same sources for the emulator. HAVE_MPI:
// comm_mpi.c.
#include <math.h>

#include "kernels/comm/comm_transport.h"
#include "kernels/cpu/cpu.h"
#include "kernels/table/open.h"
#include "kernels/virtual/virtual.h"

#if defined(HAVE_CUDA) || defined(HAVE_EMU)
extern const Kernels cuda_kernels;
int cuda_find_device(Err err);
static const Kernels* find_cuda(Err err) { return cuda_find_device(err) ? NULL : &cuda_kernels; }
#endif

static const Kernels* find_cpu(const char* isa, Err err) {
    for (int i = CPU_ISAS - 1; i >= 0; i--) {
        if (!strcmp(isa, "auto") ? !cpu_has((CpuIsa)i) : strcmp(isa, cpu_isa_names[i]) != 0) continue;
        const Kernels* table = cpu_kernels((CpuIsa)i);
        if (!table) fail(err, "this processor or this build has no %s; try --cpu-isa auto", isa);
        return table;
    }
    fail(err, "unknown instruction set %s", isa);
    return NULL;
}

const Kernels* kernels_find(const char* device, const char* isa, Err err) {
    const Kernels* table = NULL;
    if (!strcmp(device, "virtual")) return virtual_kernels(NULL);
    if (!strcmp(device, "virtual-cpu")) return (table = find_cpu(isa, err)) ? virtual_kernels(table) : NULL;
#ifdef HAVE_CUDA
    if (!strcmp(device, "cuda")) return find_cuda(err);
    if (!strcmp(device, "auto")) table = find_cuda(err);
#elif defined(HAVE_EMU)
    if (!strcmp(device, "emu")) return find_cuda(err);
#endif
    if (!strcmp(device, "auto") || !strcmp(device, "cpu")) return table ? table : find_cpu(isa, err);
    fail(err, "this program was built without %s; try --device cpu, or build it: make %s=yes", device,
         !strcmp(device, "emu") ? "EMU" : "CUDA");
    return NULL;
}

#ifndef HAVE_MPI
int comm_open_mpi(Comm** world, const RankIdentity* id, double timeout_seconds, Err err) {
    (void)timeout_seconds;
    *world = NULL;
    return fail(err,
                "this is rank %d of %d (says %s), but the program was built without MPI: install it (Debian: apt-get "
                "install libopenmpi-dev openmpi-bin) and build again (make)",
                id->rank, id->size, id->source);
}
#endif

int comm_open_host(Comm** world, const RankIdentity* id, double timeout_seconds, Err err) {
    if (id->size == 1) return comm_open_self(world, timeout_seconds, err);
    return comm_is_forked() ? comm_open_local(world, timeout_seconds, err)
                            : comm_open_mpi(world, id, timeout_seconds, err);
}

int comm_open(Comm** world, const Kernels* k, const RankIdentity* id, double timeout_seconds, Err err) {
    *world = NULL;
    if (k->virtual_time) return comm_open_virtual(world, !k->no_results, id, timeout_seconds, err);
#if defined(HAVE_CUDA) || defined(HAVE_EMU)
    if (!k->on_host) return comm_open_nccl(world, id, timeout_seconds, err);
#endif
    if (!k->on_host) return fail(err, "this build has no communication for memory of %s", k->name);
    return comm_open_host(world, id, timeout_seconds, err);
}

// ---- the peak that speeds are compared with: of registers, or of a square matmul

// Fills x with random values: a GPU multiplies zeros faster than anything else, because they take less power.
static void fill_randomly(const Kernels* k, void* x, size_t bytes, DType dt) {
    enum { N = 1 << 14 };
    static char values[N * sizeof(float)];
    for (int i = 0; i < N; i++) {
        float value = (float)random_uniform(1, (uint64_t)i) - 0.5f;
        if (dt == DT_BF16) ((bf16*)values)[i] = bf16_from_float(value);
        else ((float*)values)[i] = value;
    }
    size_t block = N * dtype_bytes(dt);
    for (size_t at = 0; at < bytes; at += block) k->upload((char*)x + at, values, MIN(block, bytes - at), NULL);
}

// Returns the best seconds of at least three runs of a square matmul, and about a tenth of a second; -1: no memory.
static double best_time(const Kernels* k, int side, DType dt) {
    size_t bytes = (size_t)side * side * dtype_bytes(dt);
    void *out = k->alloc(bytes), *x = k->alloc(bytes), *weight = k->alloc(bytes);
    double best = -1;
    if (out && x && weight) {
        best = 1e30;
        fill_randomly(k, x, bytes, dt);
        fill_randomly(k, weight, bytes, dt);
        k->synchronize(NULL);
    }
    double started = now_seconds();
    for (int run = 0; best > 0 && run < 20 && (run < 3 || now_seconds() - started < 0.1); run++) {
        double t = now_seconds();
        k->matmul_forward(out, NULL, x, weight, NULL, side, side, side, dt, NULL);
        k->synchronize(NULL);
        t = now_seconds() - t;
        best = MIN(best, t);
    }
    k->free_memory(out);
    k->free_memory(x);
    k->free_memory(weight);
    return best;
}

// Returns whether it fits a small part of the free memory: taking all that a container has would end the program.
static int fits(const Kernels* k, int side, DType dt) {
    return 3 * (size_t)side * side * dtype_bytes(dt) <= k->memory_available() / 8;
}

// Each thread is measured in its own processor time, which more threads than cores do not have at once.
double kernels_peak_again(const Kernels* k, DType dt, double cores) {
    double registers = cpu_peak(k, dt);
    return cores > 0 ? registers * fmin(1, cores / team_threads()) : registers;
}

double kernels_peak(const Kernels* k, DType dt, int threads, double cores, Err err) {
    enum { FIRST_SIDE = 256 };
    const double most_seconds = 0.25;
    int side = FIRST_SIDE, full = k->full_matmul;
    KernelLimits limits = {
        .N = full, .C = full, .OC = full, .NH = 1, .NKV = 1, .HS = 64, .context = full, .threads = threads};
    limits.dt = dt;
    limits.attention = ATTENTION_OWN;
    if (k->open(&limits, err)) return -1;
    double registers = kernels_peak_again(k, dt, cores);
    if (registers > 0) return k->close(), registers;
    double seconds = best_time(k, side, dt);
    // Twice the side is eight times the work, so a slow device, such as the plain reference, stops before it takes
    // long. It is also four times the memory, for which ranks that share it ask at once.
    while (seconds > 0 && side < full && 8 * seconds < most_seconds && fits(k, 2 * side, dt))
        seconds = best_time(k, side *= 2, dt);
    k->close();
    if (seconds < 0) return fail(err, "no memory to measure a matmul");
    return 2.0 * side * side * side / seconds;
}
