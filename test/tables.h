// tables.h - which tables a test of ops goes through: those of every usable CPU instruction set, or, compiled with
// -DTEST_DEVICE="emu" (or "cuda"), that of the device; with WITHOUT_BACKEND one of the test's own (exact_scratch.h).
// And how host memory reaches a device that cannot see it.
#pragma once
#include "kernels/table/open.h"
#include "kernels/cpu/cpu.h"
#include "test/test.h"

#ifdef TEST_DEVICE
enum { TESTS_DEVICE = 1 };
#else
enum { TESTS_DEVICE = 0 };
#endif

#ifdef WITHOUT_BACKEND
static inline const Kernels* reference(void) { return &cpu_reference; }
#else
static inline const Kernels* reference(void) { return cpu_kernels(CPU_REFERENCE); }
#endif
__attribute__((unused)) static const Kernels* only_table;  // where it is not NULL: in the place of all others

// Fills tables (room for CPU_ISAS) and returns their number. A device that is missing fails the claim.
static inline int tested_tables(const Kernels** tables) {
    int n = 0;
    if (only_table) return tables[0] = only_table, 1;
#ifdef TEST_DEVICE
    char err[ERR_BYTES];
    tables[0] = kernels_find(TEST_DEVICE, "auto", err);
    if (tables[0]) n = 1;
    else printf("    %s\n", err), test_failures_in_claim++;
#elif !defined(WITHOUT_BACKEND)
    for (int isa = CPU_GENERIC; isa < CPU_ISAS; isa++)
        if (cpu_kernels((CpuIsa)isa)) tables[n++] = cpu_kernels((CpuIsa)isa);
#endif
    return n;
}

// TEST_ATTENTION=wgmma: Hopper's kernels, of the head sizes that they take.
__attribute__((unused)) static AttentionKernels attention_under_test(int HS, DType dt) {
    const char* text = getenv("TEST_ATTENTION");
    int takes = HS >= 64 && HS <= 128 && HS % 16 == 0 && dt == DT_BF16;
    return TESTS_DEVICE && text && !strcmp(text, "wgmma") && takes ? ATTENTION_WGMMA : ATTENTION_OWN;
}

#ifndef WITHOUT_BACKEND
// Claims that every instruction set has entries of its own, where has_own says so: the reference's would be tested
// else. None of a device.
static inline void claim_own_entries(int (*has_own)(const Kernels* table, const Kernels* reference)) {
    for (int isa = CPU_GENERIC; isa < CPU_ISAS && !TESTS_DEVICE; isa++) {
        const Kernels* table = cpu_kernels((CpuIsa)isa);
        printf("  %s:\n", cpu_isa_names[isa]);
        if (!table)
            test_skipped++, printf("  skipped instruction_set_is_tested_here: not of this processor or build\n");
        else RUN_AS("instruction_set_is_tested_here", CHECK(has_own(table, reference())));
    }
}
#endif

// ThreadSanitizer watches every access and needs no large sizes: what it looks for is between neighbours. Under any
// sanitizer a case runs once, and fewer of a kind: that bits repeat is a claim about the build for use.
#ifdef __SANITIZE_THREAD__
enum { WATCHED = 1, SANITIZED = 1 };
#elif defined(__SANITIZE_ADDRESS__)
enum { WATCHED = 0, SANITIZED = 1 };
#else
enum { WATCHED = 0, SANITIZED = 0 };
#endif

// Results must be the same bits on 1 .. most_threads() threads; of a device, whenever it is asked.
static inline int most_threads(void) {
#ifdef TEST_DEVICE
    return SANITIZED ? 1 : 2;
#else
    return 3;
#endif
}

static inline int at_most(int n, int watched_limit) { return WATCHED ? MIN(n, watched_limit) : n; }

typedef struct Twin {
    const Kernels* k;
    void *host, *device;
    size_t bytes;
} Twin;

static Twin twins[32];
static int n_twins;

// Where the device of k finds the bytes at host: the CPU right there, a GPU in a copy, which keeps the alignment up to
// 64 bytes. The same host memory has one copy.
static inline void* there(const Kernels* k, void* host, size_t bytes) {
    for (int i = 0; i < n_twins; i++)
        if (twins[i].host == host) return twins[i].device;
    if (k->on_host) return host;
    size_t shift = (uintptr_t)host % 64;
    Twin t = {k, host, (char*)k->alloc(shift + bytes) + shift, bytes};
    k->upload(t.device, host, bytes, NULL);
    k->synchronize(NULL);
    twins[n_twins++] = t;
    return t.device;
}

// Brings all copies back to where they came from.
static inline void bring_back(void) {
    for (; n_twins > 0; n_twins--) {
        Twin t = twins[n_twins - 1];
        t.k->download(t.host, t.device, t.bytes, NULL);
        t.k->free_memory((char*)t.device - (uintptr_t)t.host % 64);
    }
}
