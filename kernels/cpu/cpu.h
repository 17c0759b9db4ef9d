// cpu.h - inside the CPU backend: one source, several instruction sets, one scratch memory.
//
// matmul.c, attention.c, norm.c, elementwise.c and loss.c are compiled once for each instruction set with -DISA=avx2
// and the like (see the Makefile). In such a file ISA_NAME(f) is f_avx2, and SIMD_FLOATS is the number of fp32 lanes.
// Each file exports one CpuFamily, which overrides entries of the reference table; cpu_kernels (backend.c) builds the
// table of a set from them.
//
// The fast tables take fp32 and bf16. DT_F64 is for the reference table alone, where finite differences use it.
#pragma once
#include "kernels/rank_ops.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"  // the CPU has no streams: ops have finished when they return

#define CPU_PASTE_(a, b) a##_##b
#define CPU_PASTE(a, b) CPU_PASTE_(a, b)
#define ISA_NAME(name) CPU_PASTE(name, ISA)

#if defined(__AVX512F__)
enum { SIMD_FLOATS = 16 };
#elif defined(__AVX__)
enum { SIMD_FLOATS = 8 };
#else
enum { SIMD_FLOATS = 4 };  // SSE2, NEON
#endif

// Scratch that a family of ops needs: one block used by all threads together, and one for each thread.
typedef struct CpuScratch {
    size_t shared_bytes;
    size_t thread_bytes;
} CpuScratch;

typedef struct CpuFamily {
    void (*install)(Kernels* table);                    // overrides entries of the table
    void (*install_ranks)(RankOps* table);              // and of its ops of many ranks; NULL: none
    CpuScratch (*scratch)(const KernelLimits* limits);  // NULL: none
} CpuFamily;

// Every instruction set in rising order. A set is usable when the compiler knew it and the processor and the operating
// system have it.
typedef enum CpuIsa { CPU_REFERENCE, CPU_GENERIC, CPU_AVX2, CPU_AVX512, CPU_AVX512BF16, CPU_AMX, CPU_ISAS } CpuIsa;
extern const char* const cpu_isa_names[CPU_ISAS];
int cpu_has(CpuIsa isa);                 // 1 when usable here; for AMX this also asks the kernel for the tiles
const Kernels* cpu_kernels(CpuIsa isa);  // the table, or NULL when it is not usable here
extern const RankOps reference_rank_ops;

// The scratch memory, valid between open and close. Both are 2 MiB aligned; thread is what a TeamTask is given.
void* cpu_shared_scratch(void);
void* cpu_thread_scratch(int thread);

// ---- the threads, which are OpenMP's: a parallel loop over tasks

// Runs task `task` of `job`, on thread `thread`, which is 0 for the caller.
typedef void (*TeamTask)(const void* job, size_t task, int thread);

// Sets the number of threads, the caller one of them; the first loop starts them. Without OpenMP the caller is alone.
void team_open(int n);
// Returns the threads of team_open's last call; 1 before it.
int team_threads(void);

// Calls f(job, 0 .. n - 1), each once, on any thread and in any order; threads take `at_once` at a time, at least 1.
// With `alone` all run on the caller, in order. A task runs no team itself.
void team_run(TeamTask f, const void* job, size_t n, size_t at_once, int alone);

// Returns how many of n tasks of about the same cost a thread takes at a time: eight portions a thread.
static inline size_t cpu_portion(size_t n) { return n / (8 * (size_t)team_threads()) + 1; }

// Finds the part of n that thread t of nt works on, cut at multiples of `unit`: [*begin, *end).
static inline void cpu_share(size_t n, size_t unit, int t, int nt, size_t* begin, size_t* end) {
    size_t units = CEIL_DIV(n, unit);
    *begin = MIN(n, units * (size_t)t / (size_t)nt * unit);
    *end = MIN(n, units * ((size_t)t + 1) / (size_t)nt * unit);
}

// A row's softmax over all parts of the vocabulary, from the stats (parts,N,3) of classifier_part. One function for all
// instruction sets, so that ranks on different processors get the same bits: loss = max + log(total) - at_target.
typedef struct CpuSoftmax {
    double max, total;
    float loss;
} CpuSoftmax;
CpuSoftmax cpu_join_softmax(const float* stats, int parts, size_t N, size_t n);

// The multiply-add units of this processor, measured by arithmetic on registers alone.
typedef enum PeakUnit { PEAK_FMA_YMM, PEAK_FMA_ZMM, PEAK_PAIRS_ZMM, PEAK_TILES, PEAK_UNITS } PeakUnit;

// Returns the FLOP/s of one unit on all threads of the team together, the best of a few tries, in processor time,
// because other programs may share the cores. 0: the processor lacks the instruction.
double cpu_peak_of(PeakUnit unit);
// Returns the FLOP/s of the fastest unit that the instruction set of a table has for the type; 0: not known, for sets
// below avx2, other processors, and tables that are not the CPU's.
double cpu_peak(const Kernels* k, DType dt);
