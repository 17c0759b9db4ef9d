// open.c - the one place that knows which backends this build has.
#include "kernels/cpu/cpu.h"
#include "kernels/kernels.h"

static const Kernels* find_cpu(const char* isa, char* err, size_t errlen) {
    for (int i = CPU_ISAS - 1; i >= 0; i--) {
        if (!strcmp(isa, "auto") ? !cpu_has((CpuIsa)i) : strcmp(isa, cpu_isa_names[i]) != 0) continue;
        const Kernels* table = cpu_kernels((CpuIsa)i);
        if (!table) fail(err, errlen, "this processor or this build has no %s; try --cpu-isa auto", isa);
        return table;
    }
    fail(err, errlen, "unknown instruction set %s", isa);
    return NULL;
}

const Kernels* kernels_find(const char* device, const char* isa, char* err, size_t errlen) {
    if (!strcmp(device, "auto") || !strcmp(device, "cpu")) return find_cpu(isa, err, errlen);
    fail(err, errlen, "this build has no %s backend, only cpu; try --device cpu", device);
    return NULL;
}
