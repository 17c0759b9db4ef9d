// open.c - the one place that knows which backends and transports this build has.
//
// HAVE_CUDA: the CUDA sources, compiled by nvcc. HAVE_EMU: instead of them the same sources for the emulator. HAVE_MPI:
// comm_mpi.c.
#include "kernels/comm.h"
#include "kernels/cpu/cpu.h"
#include "kernels/open.h"
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

int comm_open(Comm** world, const Kernels* k, const RankIdentity* id, double timeout_seconds, Err err) {
    *world = NULL;
    if (k->virtual_time) return comm_open_virtual(world, !k->no_results, id, timeout_seconds, err);
#if defined(HAVE_CUDA) || defined(HAVE_EMU)
    if (!k->on_host) return comm_open_nccl(world, id, timeout_seconds, err);
#endif
    if (!k->on_host) return fail(err, "this build has no communication for memory of %s", k->name);
    if (id->size == 1) return comm_open_self(world, timeout_seconds, err);
    return comm_open_mpi(world, id, timeout_seconds, err);
}
