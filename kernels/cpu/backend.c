// backend.c - finds the instruction sets of this processor, makes their tables, holds their scratch memory and threads,
// and measures the processor's peak.
//
// A table starts as a copy of the reference and is overridden family by family. Each set has all families of its own,
// but AMX, which overrides some entries of avx512bf16's table. All tables share one scratch memory, because ops run one
// at a time.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "kernels/host.h"

const char* const cpu_isa_names[CPU_ISAS] = {"reference", "generic", "avx2", "avx512", "avx512bf16", "amx"};

// The families of each set. The Makefile names the sets that the compiler knows as HAVE_...
#define DECLARE(isa) \
    extern const CpuFamily matmul_##isa, attention_##isa, norm_##isa, elementwise_##isa, loss_##isa, sample_##isa;
#define FAMILIES(isa) &matmul_##isa, &attention_##isa, &norm_##isa, &elementwise_##isa, &loss_##isa, &sample_##isa
DECLARE(generic)
#ifdef HAVE_X86_ISAS
DECLARE(avx2)
DECLARE(avx512)
DECLARE(avx512bf16)
extern const CpuFamily attention_pairs_avx512bf16;
#endif
#ifdef HAVE_AMX
extern const CpuFamily matmul_amx, attention_pairs_amx;
#endif

static const CpuFamily* const families[CPU_ISAS][7] = {
    [CPU_GENERIC] = {FAMILIES(generic)},
#ifdef HAVE_X86_ISAS
    [CPU_AVX2] = {FAMILIES(avx2)},
    [CPU_AVX512] = {FAMILIES(avx512)},
    [CPU_AVX512BF16] = {FAMILIES(avx512bf16), &attention_pairs_avx512bf16},
#endif
#ifdef HAVE_AMX
    [CPU_AMX] = {&matmul_amx, &attention_pairs_amx},
#endif
};

#ifdef HAVE_AMX
// Linux hands out the 8 KiB of tile registers only on request: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
static int request_tiles(void) {
    static int granted = -1;
    if (granted < 0) granted = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
    return granted;
}

// CPUID leaf 7, subleaf 0, EDX bits 22 (AMX-BF16) and 24 (AMX-TILE): __builtin_cpu_supports has no name for them before
// GCC 13.
static int cpuid_has_amx(void) {
    unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
    __asm__ volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    return (edx >> 22 & 1) && (edx >> 24 & 1);
}
#endif

int cpu_has(CpuIsa isa) {
    if (isa <= CPU_GENERIC) return 1;
#ifdef HAVE_X86_ISAS
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    int avx512bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
    if (isa == CPU_AVX2) return avx2;
    if (isa == CPU_AVX512) return avx512;
    if (isa == CPU_AVX512BF16) return avx512bf16;
#ifdef HAVE_AMX
    if (isa == CPU_AMX) return avx512bf16 && cpuid_has_amx() && request_tiles();
#endif
#endif
    return 0;
}

// ---- time: ops have finished when they return, so an event is a reading of the clock

static struct {
    int oversubscribed;
    double seconds[MOST_EVENTS];
} events;

// If ranks share cores, the wall clock would count the work of others too.
static double cpu_clock(void) { return events.oversubscribed ? host_thread_seconds() : now_seconds(); }

static void record_event(int i, Stream s) { events.seconds[i] = cpu_clock(); }
static void read_events(double* seconds, int n) { memcpy(seconds, events.seconds, (size_t)n * sizeof(double)); }

static int open_reference(const KernelLimits* limits, Err err) {
    events.oversubscribed = limits->oversubscribed;
    return 0;
}

// ---- scratch memory

static struct {
    char *shared, *threads;
    size_t shared_bytes, thread_bytes;  // as mapped
    int n_threads, users;
} scratch;

void* cpu_shared_scratch(void) { return scratch.shared; }
void* cpu_thread_scratch(int thread) { return scratch.threads + (size_t)thread * scratch.thread_bytes; }

static size_t memory_available(void) { return host_memory("", 1).bytes; }

static int threads_wanted(const KernelLimits* limits) {
    return limits->threads > 0 ? limits->threads : host_cores("", 0);
}

// Returns the most that any op of any usable set needs, so that every table can be open at once.
static CpuScratch scratch_needed(const KernelLimits* limits) {
    CpuScratch most = {0, 0};
    for (int isa = CPU_GENERIC; isa < CPU_ISAS; isa++)
        for (int f = 0; cpu_has((CpuIsa)isa) && f < COUNT(families[isa]) && families[isa][f]; f++) {
            if (!families[isa][f]->scratch) continue;
            CpuScratch one = families[isa][f]->scratch(limits);
            most.shared_bytes = MAX(most.shared_bytes, one.shared_bytes);
            most.thread_bytes = MAX(most.thread_bytes, one.thread_bytes);
        }
    size_t page = 2 << 20;
    most.shared_bytes = ROUND_UP(most.shared_bytes, page);
    most.thread_bytes = ROUND_UP(most.thread_bytes, page);
    return most;
}

static size_t workspace_bytes(const KernelLimits* limits) {
    CpuScratch need = scratch_needed(limits);
    return need.shared_bytes + need.thread_bytes * (size_t)threads_wanted(limits);
}

// Returns zeroed memory; large blocks are in huge pages if the system gives them: packed panels are walked end to end,
// and rows of heads lie pages apart, so that 4 KiB pages would miss the TLB. Pages given back read as zero: each is
// cleared when, and near where, a thread first uses it.
static void* zeroed(size_t bytes) {
    enum { HUGE = 2 << 20 };
    void* p = NULL;
    size_t pages = bytes / HUGE * HUGE;
    if (posix_memalign(&p, pages ? HUGE : 64, ROUND_UP(MAX(bytes, (size_t)1), (size_t)64))) return NULL;
#ifdef MADV_HUGEPAGE
    if (pages) madvise(p, pages, MADV_HUGEPAGE);
#endif
    if (pages && madvise(p, pages, MADV_DONTNEED)) pages = 0;
    memset((char*)p + pages, 0, bytes - pages);
    return p;
}

static void release(void) {
    free(scratch.shared);
    free(scratch.threads);
    memset(&scratch, 0, sizeof scratch);
}

static int open_cpu(const KernelLimits* limits, Err err) {
    CpuScratch need = scratch_needed(limits);
    int n_threads = threads_wanted(limits), users = scratch.users + 1;
    int fits = scratch.users > 0 && need.shared_bytes <= scratch.shared_bytes &&
               need.thread_bytes <= scratch.thread_bytes && n_threads <= scratch.n_threads;
    team_open(n_threads);
    if (!fits) {
        release();
        scratch.shared = need.shared_bytes ? zeroed(need.shared_bytes) : NULL;
        scratch.threads = need.thread_bytes ? zeroed(need.thread_bytes * (size_t)n_threads) : NULL;
        if ((need.shared_bytes && !scratch.shared) || (need.thread_bytes && !scratch.threads)) {
            release();
            return fail(err, "no memory for %zu MiB of kernel scratch; try a smaller --capacity or fewer --threads",
                        (need.shared_bytes + need.thread_bytes * (size_t)n_threads) >> 20);
        }
        scratch.shared_bytes = need.shared_bytes;
        scratch.thread_bytes = need.thread_bytes;
    }
    scratch.n_threads = n_threads;
    scratch.users = users;
    return open_reference(limits, err);
}

static void close_cpu(void) {
    if (scratch.users > 0 && --scratch.users == 0) release();
}

// ---- tables

const Kernels* cpu_kernels(CpuIsa isa) {
    static char names[CPU_ISAS][32];
    static Kernels tables[CPU_ISAS];
    static RankOps ranks[CPU_ISAS];
    Kernels* table = &tables[isa];
    if (!cpu_has(isa)) return NULL;
    if (table->name) return table;  // it is made
    *table = cpu_reference;
    ranks[isa] = reference_rank_ops;
    table->ranks = &ranks[isa];
    table->memory_available = memory_available;
    table->open = open_reference;
    table->clock = cpu_clock;
    table->record_event = record_event;
    table->read_events = read_events;
    if (isa == CPU_REFERENCE) return table;
    snprintf(names[isa], sizeof names[isa], "cpu %s", cpu_isa_names[isa]);
    table->name = names[isa];
    table->prefers_bf16 = isa == CPU_AMX;
    table->workspace_bytes = workspace_bytes;
    table->open = open_cpu;
    table->close = close_cpu;
    table->alloc = table->alloc_host = zeroed;
    for (int base = isa == CPU_AMX ? CPU_AVX512BF16 : isa; base <= (int)isa; base++)
        for (int f = 0; f < COUNT(families[base]) && families[base][f]; f++) {
            families[base][f]->install(table);
            if (families[base][f]->install_ranks) families[base][f]->install_ranks(&ranks[isa]);
        }
    return table;
}

// ---- the multiply-add units on registers alone

// Runs n rounds of 12 independent instructions, enough to hide their latency. Their values do not matter; it writes
// only registers that a call may destroy.
#if defined(__x86_64__)
#define TWELVE(op) \
    op "0\n" op "1\n" op "2\n" op "3\n" op "4\n" op "5\n" op "6\n" op "7\n" op "8\n" op "9\n" op "10\n" op "11\n"
#define FOUR_TILES                                                   \
    "tdpbf16ps %tmm6, %tmm4, %tmm0\ntdpbf16ps %tmm7, %tmm4, %tmm1\n" \
    "tdpbf16ps %tmm6, %tmm5, %tmm2\ntdpbf16ps %tmm7, %tmm5, %tmm3\n"

static void run_rounds(PeakUnit unit, int n) {
    static const uint8_t tiles[64] = {
        [0] = 1,   [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64, [30] = 64,
        [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16};
    if (unit == PEAK_TILES) __asm__ volatile("ldtilecfg %0" ::"m"(tiles));
    else __asm__ volatile("vzeroall");  // else their contents might be subnormal, which is slow
    for (int i = 0; i < n; i++) {
        if (unit == PEAK_FMA_YMM) __asm__ volatile(TWELVE("vfmadd231ps %ymm15, %ymm14, %ymm"));
        else if (unit == PEAK_FMA_ZMM) __asm__ volatile(TWELVE("vfmadd231ps %zmm15, %zmm14, %zmm"));
        else if (unit == PEAK_PAIRS_ZMM) __asm__ volatile(TWELVE("vdpbf16ps %zmm15, %zmm14, %zmm"));
        else __asm__ volatile(FOUR_TILES FOUR_TILES FOUR_TILES);
    }
    if (unit == PEAK_TILES) __asm__ volatile("tilerelease");
    else __asm__ volatile("vzeroupper");
}
#else
static void run_rounds(PeakUnit unit, int n) { (void)unit, (void)n; }
#endif

static const CpuIsa needs[] = {CPU_AVX2, CPU_AVX512, CPU_AVX512BF16, CPU_AMX};

// FLOPs of one instruction: 2 for each multiply-add of 8 lanes, 16 lanes, 16 lanes of pairs, and of 16 x 16 sums over a
// depth of 32 bf16 (64 bytes).
static const double flops[] = {2 * 8, 2 * 16, 2 * 16 * 2, 2 * 16 * 16 * 32};

typedef struct Try {
    PeakUnit unit;
    double* rates;  // of each thread
} Try;

static void measure(const void* job, size_t task, int thread) {
    const Try* j = (const Try*)job;
    int rounds = j->unit == PEAK_TILES ? 10000 : 200000;
    (void)thread;
    double started = host_thread_seconds();
    run_rounds(j->unit, rounds);
    j->rates[task] = 12 * flops[j->unit] * rounds / (host_thread_seconds() - started);
}

double cpu_peak_of(PeakUnit unit) {
    enum { MOST_THREADS = 512, TRIES = 8 };
    double rates[MOST_THREADS], best = 0;
    int threads = MIN(team_threads(), (int)MOST_THREADS);
    for (int i = 0; i < TRIES && cpu_has(needs[unit]); i++) {
        double sum = 0;
        team_run(measure, &(Try){unit, rates}, (size_t)threads, 1, 0);
        for (int t = 0; t < threads; t++) sum += rates[t];
        best = MAX(best, sum);
    }
    return best;
}

double cpu_peak(const Kernels* k, DType dt) {
    double best = 0;
    int isa = CPU_ISAS - 1;
    while (isa > CPU_REFERENCE && cpu_kernels((CpuIsa)isa) != k) isa--;
    for (int unit = 0; unit < PEAK_UNITS; unit++)
        if ((int)needs[unit] <= isa && (dt == DT_BF16 || unit <= PEAK_FMA_ZMM))
            best = MAX(best, cpu_peak_of((PeakUnit)unit));
    return best;
}
