// op_checks.h - how test_ops*.c try an op: buffers, a call of the reference, and the same call of every table.
//
// A claim fills buffers, runs the reference on them, states how far each element may be off (none: the same bits, which
// also holds for inputs), and compare() repeats the call for every table, from 8192 elements on with 1, 2 and 3
// threads. Outputs declared `=` start as NaN, buffers begin at odd addresses between guard bytes, on a device a second
// time at multiples of 16 bytes, as its widest loads and stores want them. E = 2^-24 is half an ulp of fp32; bf16
// results may round to either side of a border, which is one ulp, at most 2^-7 of their value.
#pragma once
#include "test/tables.h"

static const double E = 1.0 / (1 << 24);
enum { MOST_BUFFERS = 10, GUARD = 3 };

typedef struct Buffer {
    size_t n;
    DType dt;
    char *now, *start, *expected;  // n elements between GUARD elements each
    char* room;                    // where `now` lies
    double* tolerance;             // (n), NULL: the same bits
} Buffer;

static struct {
    Buffer b[MOST_BUFFERS];
    int n;
    KernelLimits limits;
    const Kernels* table;                 // that is being called
    void (*check)(const Kernels* table);  // NULL, or another look at what it has made
} world;

// Sizes around the vector lengths, the chunk of flat tensors and the threshold of the parallel loops.
static const size_t flat_sizes[] = {0,  1,  3,   4,    5,    7,    8,    9,     15,    16,    17,
                                    31, 33, 100, 4095, 4096, 4097, 8191, 16383, 16384, 16385, 50001};

static inline size_t flat_size(int i) { return (size_t)at_most((int)flat_sizes[i], 5000); }

static const int row_sizes[][2] = {  // N, C
    {0, 5},  {1, 1},  {3, 2},   {7, 3},    {8, 15},   {9, 16},   {5, 17},   {2, 63},
    {3, 64}, {3, 65}, {4, 100}, {64, 257}, {70, 768}, {520, 33}, {1030, 24}};

static inline KernelLimits row_limits(int N, int C, DType dt) {
    KernelLimits l = {.N = N, .C = C, .OC = MAX(4 * C, 16), .NH = 1, .NKV = 1, .HS = 8, .context = 16, .dt = dt};
    l.attention = ATTENTION_OWN;
    return l;
}

static size_t bytes_of(const Buffer* b) { return (b->n + 2 * GUARD) * dtype_bytes(b->dt); }
static void* host_data(int i) { return world.b[i].now + GUARD * dtype_bytes(world.b[i].dt); }

// For the table that is being called.
static void* data(int i) {
    Buffer* b = &world.b[i];
    return (char*)there(world.table, b->now, bytes_of(b)) + GUARD * dtype_bytes(b->dt);
}

static double get_from(const char* bytes, DType dt, size_t i) {
    const char* p = bytes + (GUARD + i) * dtype_bytes(dt);
    return dt == DT_BF16 ? bf16_to_float(*(const bf16*)p) : dt == DT_F32 ? *(const float*)p : *(const double*)p;
}

static double get(int buffer, size_t i) { return get_from(world.b[buffer].expected, world.b[buffer].dt, i); }

static void set(int buffer, size_t i, double x) {
    void* p = (char*)host_data(buffer) + i * dtype_bytes(world.b[buffer].dt);
    if (world.b[buffer].dt == DT_BF16) *(bf16*)p = bf16_from_float((float)x);
    else if (world.b[buffer].dt == DT_F32) *(float*)p = (float)x;
    else *(double*)p = x;
}

// A new buffer, all NaN; the index to call it by.
static int output(size_t n, DType dt) {
    Buffer* b = &world.b[world.n];
    *b = (Buffer){.n = n, .dt = dt};
    b->now = b->room = (char*)malloc(bytes_of(b) + 16), b->start = (char*)malloc(bytes_of(b)),
    b->expected = (char*)malloc(bytes_of(b));
    memset(b->now, 0xff, bytes_of(b));
    return world.n++;
}

static inline int input(size_t n, DType dt, double mean, double deviation) {
    int i = output(n, dt);
    for (size_t k = 0; k < n; k++) set(i, k, mean + deviation * random_normal((uint64_t)i + 1, k));
    return i;
}

// Indices lie in buffers of the same size.
static inline void set_int(int buffer, size_t i, int x) { memcpy((char*)host_data(buffer) + i * 4, &x, 4); }

static inline int get_int(int buffer, size_t i) {
    int x;
    memcpy(&x, world.b[buffer].expected + (GUARD + i) * 4, 4);
    return x;
}

static double* tolerate(int buffer) {
    Buffer* b = &world.b[buffer];
    return b->tolerance = (double*)calloc(b->n + 1, sizeof(double));
}

static void run_reference(void (*call)(const Kernels*)) {
    for (int i = 0; i < world.n; i++) memcpy(world.b[i].start, world.b[i].now, bytes_of(&world.b[i]));
    world.table = reference();
    call(reference());
    for (int i = 0; i < world.n; i++) memcpy(world.b[i].expected, world.b[i].now, bytes_of(&world.b[i]));
}

// One call of a table, on the buffers as they were at the start.
static void run_table(const Kernels* table, int threads, void (*call)(const Kernels*)) {
    char err[ERR_BYTES];
    for (int i = 0; i < world.n; i++) memcpy(world.b[i].now, world.b[i].start, bytes_of(&world.b[i]));
    world.limits.threads = threads;
    world.table = table;
    CHECK(table->open(&world.limits, err) == 0);
    call(table);
    bring_back();
    table->close();
}

static void free_buffers(void) {
    for (int i = 0; i < world.n; i++)
        free(world.b[i].room), free(world.b[i].start), free(world.b[i].expected), free(world.b[i].tolerance);
    world.n = 0, world.check = NULL;
}

static void compare_buffer(const Buffer* b) {
    size_t guard = GUARD * dtype_bytes(b->dt);
    CHECK(memcmp(b->now, b->expected, guard) == 0);
    CHECK(memcmp(b->now + bytes_of(b) - guard, b->expected + bytes_of(b) - guard, guard) == 0);
    if (!b->tolerance) CHECK(memcmp(b->now, b->expected, bytes_of(b)) == 0);
    for (size_t i = 0; i < b->n && b->tolerance; i++) {
        double found = get_from(b->now, b->dt, i), expected = get_from(b->expected, b->dt, i);
        double rounding = b->dt == DT_BF16 ? fabs(expected) / 128 : 0;
        if (isnan(expected)) CHECK(isnan(found));
        else if (isinf(expected)) CHECK(found == expected);
        else CHECK_CLOSE(found, expected, b->tolerance[i] + rounding);
    }
}

// Elements begin at multiples of 16 bytes, or only of their own size and end with their room, where a sanitizer sees a
// read beyond it; what is in the buffers is lost.
static void place_buffers(int aligned) {
    for (int i = 0; i < world.n; i++) {
        size_t guard = GUARD * dtype_bytes(world.b[i].dt);
        world.b[i].now = world.b[i].room + (aligned ? ROUND_UP(guard, (size_t)16) - guard : 16);
    }
}

// Runs every table, with 1 thread against the expected values, with more against the bits of 1. Frees the buffers.
static void compare(void (*call)(const Kernels*)) {
    const Kernels* tables[CPU_ISAS];
    int threads_tried = 1;
    for (int i = 0; i < world.n; i++)
        if (world.b[i].n >= 8192) threads_tried = most_threads();  // less is done by one thread anyway
    for (int t = 0, n = tested_tables(tables) * (1 + TESTS_DEVICE); t < n; t++) {
        char* one_thread[MOST_BUFFERS];
        place_buffers(t % (1 + TESTS_DEVICE));
        for (int threads = 1; threads <= threads_tried; threads++) {
            run_table(tables[t / (1 + TESTS_DEVICE)], threads, call);
            if (world.check) world.check(world.table);
            for (int i = 0; i < world.n; i++) {
                Buffer* b = &world.b[i];
                if (threads == 1) {
                    compare_buffer(b);
                    one_thread[i] = (char*)memcpy(malloc(bytes_of(b)), b->now, bytes_of(b));
                }
                CHECK(memcmp(b->now, one_thread[i], bytes_of(b)) == 0);
                if (threads == threads_tried) free(one_thread[i]);
            }
        }
    }
    free_buffers();
}
