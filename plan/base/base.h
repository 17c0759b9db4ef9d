// base.h - what every room needs and nobody should write twice: element types, errors, growing memory, hashes, the
// clock. Pure C11; also valid C++, because train_gpt.cu includes it.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// Both macros evaluate a or b twice. A value that takes time, has effects or may change gets a name first.
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define CEIL_DIV(a, b) (((a) + (b)-1) / (b))
#define ROUND_UP(a, b) (CEIL_DIV(a, b) * (b))
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

// ---- element types: an argument of every op, never a compile-time switch

typedef enum DType {
    DT_F32,
    DT_BF16,
    DT_F64,  // reference kernels and tests only: lets finite differences be taken in double
    DT_F16   // tensors in files only
} DType;

typedef uint16_t bf16;  // the upper half of an IEEE fp32

// The function between the two matrices of an MLP. act_runs is how many of their outputs one hidden unit reads: SwiGLU
// reads a gate and the value that it lets pass.
typedef enum ActFunction { ACT_GELU, ACT_SWIGLU } ActFunction;
static inline int act_runs(ActFunction f) { return f == ACT_SWIGLU ? 2 : 1; }

static inline size_t dtype_bytes(DType dt) { return dt == DT_F64 ? 8 : dt == DT_F32 ? 4 : 2; }
static inline const char* dtype_name(DType dt) { return dt == DT_F64 ? "fp64" : dt == DT_F32 ? "fp32" : "bf16"; }

static inline float bf16_to_float(bf16 b) {
    uint32_t bits = (uint32_t)b << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

// Rounds to nearest, ties to even; a NaN stays a (quiet) NaN.
static inline bf16 bf16_from_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    uint32_t nearest = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    return (bf16)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : nearest);
}

// The buffer has n floats, and its first 2n bytes hold n bf16. This widens them in place, from the end;
// bf16_narrow_in_place goes back, from the start.
static inline void bf16_widen_in_place(float* buffer, size_t n) {
    for (size_t i = n; i-- > 0;) {
        bf16 half;
        memcpy(&half, (const char*)buffer + i * sizeof half, sizeof half);
        buffer[i] = bf16_to_float(half);
    }
}

static inline void bf16_narrow_in_place(float* buffer, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bf16 half = bf16_from_float(buffer[i]);
        memcpy((char*)buffer + i * sizeof half, &half, sizeof half);
    }
}

// Returns element i of a tensor of any type, in double.
static inline double dtype_load(const void* p, size_t i, DType dt) {
    if (dt == DT_F64) return ((const double*)p)[i];
    return dt == DT_F32 ? ((const float*)p)[i] : bf16_to_float(((const bf16*)p)[i]);
}

static inline void dtype_store(void* p, size_t i, double x, DType dt) {
    if (dt == DT_F64) ((double*)p)[i] = x;
    else if (dt == DT_F32) ((float*)p)[i] = (float)x;
    else ((bf16*)p)[i] = bf16_from_float((float)x);
}

// ---- errors: 0 is success, negative is an error

// For main's phases and options: prints one line to stderr and exits with 1. The message says what, where, what was
// expected and found, and what to try.
__attribute__((noreturn, format(printf, 1, 2))) void die(const char* format, ...);
// For broken invariants, which no option can mend: the same, followed by the place in the code.
__attribute__((noreturn, format(printf, 3, 4))) void die_at(const char* file, int line, const char* format, ...);
#define broken(...) die_at(__FILE__, __LINE__, __VA_ARGS__)
// Prints one line to stderr about something that does not end the program.
__attribute__((format(printf, 1, 2))) void warn(const char* format, ...);
// How a program of several ranks ends (plan/base/terminal.h). who stands before each line; is_said: another rank has
// said it; last runs after the line; leave ends the process. NULL: say the line and exit.
typedef struct DieAs {
    const char* program;  // NULL: train
    char who[24];
    int (*is_said)(void);
    void (*last)(void);
    void (*leave)(int status);
} DieAs;
extern DieAs die_as;

// The words of an error, in an array of the caller. NULL: the caller wants none.
enum { ERR_BYTES = 512 };
typedef char Err[ERR_BYTES];

// For code that reads bytes: formats the message into err (always terminated, a long one without its middle), and
// returns -1, so that a reader can end with `return fail(err, "...")`. Prints nothing.
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
int fail(Err err, const char* format, ...);

// ---- memory for a computation whose sizes nobody wants to know beforehand

typedef struct ArenaBlock ArenaBlock;
typedef struct ArenaMark {
    ArenaBlock* block;
    size_t used;
} ArenaMark;

// Parts are taken one after another; a reset gives back all that were taken after a mark. Blocks of memory are kept for
// the next parts, so that a step whose sizes were seen before allocates nothing. {0} is an empty arena.
typedef struct Arena {
    ArenaBlock* first;
    ArenaMark at;    // the end of the last part
    size_t missing;  // bytes of the last part that could not be had; 0: all could
} Arena;

// Aligned as malloc's, contents undefined. NULL without memory: take all parts, then ask arena_check.
void* arena_take(Arena* arena, size_t bytes);
#define TAKE(arena, type, n) ((type*)arena_take((arena), sizeof(type) * (size_t)(n)))
int arena_check(const Arena* arena, Err err);  // 0, or -1 with words when a part could not be had
static inline ArenaMark arena_mark(const Arena* arena) { return arena->at; }
void arena_reset(Arena* arena, ArenaMark mark);  // {0}: gives back everything
size_t arena_bytes(const Arena* arena);          // the sum of all blocks
void arena_free(Arena* arena);

// Makes room in an array: *array has n elements of element_bytes and is to take `more`. 0, or -1 with a message.
int reserve(void* array, int64_t* capacity, int64_t n, int64_t more, size_t element_bytes, Err err);

// ---- hashes: also the source of every random choice, so that all ranks and all compilers agree

// The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64-bit numbers.
static inline uint64_t hash64(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// Rounds to bf16: to nearest when seed is 0, else stochastically, as a pure function of (x, seed, index). The upper
// half of x plus 16 random bits has x as its expected value. Infinities and NaN are as to nearest.
static inline bf16 bf16_round(float x, uint64_t seed, uint64_t index) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bf16 nearest = bf16_from_float(x), random = (bf16)((bits + (uint32_t)(hash64(seed ^ index) & 0xffff)) >> 16);
    return seed == 0 || (bits & 0x7f800000u) == 0x7f800000u ? nearest : random;  // no branch: loops become vectors
}

// A 64-bit hash of n bytes, chained through seed: hash_bytes(b, hash_bytes(a, 0)) covers a then b. It is the same on
// every machine, and not cryptographic.
uint64_t hash_bytes(const void* bytes, size_t n, uint64_t seed);

// Uniform in [0, 1) and standard normal, both pure functions of (seed, index), the same on every processor.
double random_uniform(uint64_t seed, uint64_t index);
void random_normals(double* value, uint64_t seed, uint64_t first, size_t n);  // those of the indices from `first` on
static inline double random_normal(uint64_t seed, uint64_t index) {
    double value;
    return random_normals(&value, seed, index, 1), value;
}

double now_seconds(void);  // monotonic
