// test_straggle.c - claims about injected slowness. Of plan/slow/speeds.h: what a spec says is what comes out, and
// stragglers that overlap multiply (what is refused: test_words.c). Of kernels/straggle.h: a slowed matmul takes x
// times as long on every kind of device, and leaves the bits of one that is not slowed; a matmul of the device itself
// stays as it is.
#include "plan/slow/speeds.h"

#include "kernels/straggle.h"
#include "kernels/virtual/virtual.h"
#include "test/test.h"

enum { RANKS = 8 };

static Straggler list[MOST_STRAGGLERS];
static int n;
static char err[ERR_BYTES];

// The spec lies in memory of just its size, for AddressSanitizer.
static int parse(const char* spec, int ranks) {
    size_t bytes = strlen(spec) + 1;
    char* exact = (char*)malloc(bytes);
    memcpy(exact, spec, bytes);
    memset(list, 0xa5, sizeof list);
    memset(err, 0, sizeof err);
    n = -1;
    int bad = straggle_parse(list, &n, exact, ranks, err);
    free(exact);
    return bad;
}

static int is(const Straggler* s, int rank, double x, int64_t from, int64_t to, int whole) {
    return s->rank == rank && s->x == x && s->from == from && s->to == to && s->whole == whole;
}

CLAIM(a_spec_is_read_as_it_is_written) {
    static const struct {
        const char* spec;
        int n;
        Straggler last;
    } cases[] = {
        {"", 0, {0}},
        {" \t ", 0, {0}},
        {"rank=3,x=4", 1, {3, 4, 1, INT64_MAX, 0}},
        {"rank=2,x=1.5,from=20,to=80,whole", 1, {2, 1.5, 20, 80, 1}},
        {"whole,to=80,from=20,x=1.5,rank=2", 1, {2, 1.5, 20, 80, 1}},
        {"rank=1,x=4;rank=0,to=9,x=2,whole;x=1000,rank=7,from=5", 3, {7, 1000, 5, INT64_MAX, 0}},
        {"  rank = 1 ,\tx= 4 ; rank=2 , whole , x =2 ;", 2, {2, 2, 1, INT64_MAX, 1}},
        {"rank=0,x=1,from=1,to=1", 1, {0, 1, 1, 1, 0}},
        {"rank=7,x=1000,from=1000000000000,to=1000000000000", 1, {7, 1000, 1000000000000, 1000000000000, 0}},
        {"rank=00,x=1.0009765625e0", 1, {0, 1.0009765625, 1, INT64_MAX, 0}},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        const Straggler *s = &list[MAX(cases[i].n, 1) - 1], *e = &cases[i].last;
        CHECK(parse(cases[i].spec, RANKS) == 0 && n == cases[i].n && !err[0]);
        if (n > 0) CHECK(is(s, e->rank, e->x, e->from, e->to, e->whole));
    }
    n = 5;
    CHECK(straggle_parse(list, &n, NULL, RANKS, err) == 0 && n == 0);
}

CLAIM(the_example_in_the_words_is_a_spec) {
    char example[ERR_BYTES];
    CHECK(parse("nonsense", RANKS) == -1);
    const char* start = strstr(err, "example: \"");
    CHECK(start != NULL);
    if (!start) return;
    snprintf(example, sizeof example, "%s", start + strlen("example: \""));
    *strchr(example, '"') = 0;
    CHECK(parse(example, 1) == 0 && n == 1);
}

CLAIM(stragglers_are_slow_from_their_first_step_to_their_last_and_multiply) {
    static const char
        one[] = "rank=1,x=4,from=20,to=80",
        overlapping[] =
            "rank=1,x=2,to=10; rank=1,x=3,from=5; rank=2,x=8; rank=1,x=1.5,whole,from=8,to=8; rank=1,x=4,whole,to=8";
    static const struct {
        const char* spec;
        int rank;
        int64_t step;
        double linear, whole;
    } rows[] = {{one, 1, 19, 1, 1},
                {one, 1, 20, 4, 1},
                {one, 1, 80, 4, 1},
                {one, 1, 81, 1, 1},
                {one, 0, 50, 1, 1},
                {one, 2, 50, 1, 1},
                {"rank=1,x=4", 1, 1, 4, 1},
                {"", 0, 1, 1, 1},
                {"rank=1,x=4", 1, INT64_MAX, 4, 1},
                {overlapping, 1, 1, 2, 4},
                {overlapping, 1, 5, 6, 4},
                {overlapping, 1, 8, 6, 6},
                {overlapping, 1, 10, 6, 1},
                {overlapping, 1, 11, 3, 1},
                {overlapping, 2, 8, 8, 1},
                {overlapping, 3, 8, 1, 1},
                {"rank=0,x=1.5,whole", 0, 7, 1, 1.5}};
    for (int i = 0; i < COUNT(rows); i++) {
        CHECK(parse(rows[i].spec, RANKS) == 0);
        Slowness slow = straggle_at(list, n, rows[i].rank, rows[i].step);
        CHECK(slow.linear == rows[i].linear && slow.whole == rows[i].whole);
    }
}

// ---- matmuls

static const double factors[] = {1, 1.25, 2, 2.5, 4, 8};

// ---- a device with a clock of its own: N rows take N s, a look at the clock takes a tick

#define TICK 1e-6
static struct {
    double now;
    int calls;
    char results[64];  // one byte a row of the true result, then two of scratch
} device;

static double look(void) { return device.now += TICK; }

static void compute(void* out, int N) {
    device.now += N;
    device.calls++;
    for (int n = 0; n < N; n++) ((char*)out)[n]++;
}

static void forward(void* out, void* gelu, const void* x, const void* weight, const void* bias, int N, int C, int OC,
                    DType dt, Stream s) {
    (void)gelu, (void)x, (void)weight, (void)bias, (void)C, (void)OC, (void)dt, (void)s;
    compute(out, N);
}

static void backward_input(void* dx, const void* dout, const void* weight, const void* pre, int N, int C, int OC,
                           DType dt, Stream s) {
    (void)dout, (void)weight, (void)pre, (void)C, (void)OC, (void)dt, (void)s;
    compute(dx, N);
}

static void backward_weight(float* dweight, float* dbias, const void* dout, const void* x, int N, int C, int OC,
                            DType dt, Stream s) {
    (void)dbias, (void)dout, (void)x, (void)C, (void)OC, (void)dt, (void)s;
    compute(dweight, N);
}

static Kernels fake(int on_host) {
    return (Kernels){.on_host = on_host,
                     .clock = look,
                     .matmul_forward = forward,
                     .matmul_backward_input = backward_input,
                     .matmul_backward_weight = backward_weight};
}

// A matmul of each kind over N rows.
static void three_matmuls(const Kernels* k, void* result, int N) {
    k->matmul_forward(result, NULL, NULL, NULL, NULL, N, 8, 8, DT_F32, NULL);
    k->matmul_backward_input(result, NULL, NULL, NULL, N, 8, 8, DT_F32, NULL);
    k->matmul_backward_weight((float*)result, NULL, NULL, NULL, N, 8, 8, DT_F32, NULL);
}

enum { N = 8 };

CLAIM(slowed_matmuls_take_x_times_as_long_and_write_once) {
    static char scratch[2 * 64];
    for (int on_host = 0; on_host < 2; on_host++) {
        Kernels below = fake(on_host);
        CHECK(straggle_bytes(&below, 64) == (on_host ? 0 : sizeof scratch));
        const Kernels* slow = straggle_kernels(&below, on_host ? NULL : scratch, 64);
        for (int i = 0; i < COUNT(factors); i++) {
            memset(&device, 0, sizeof device);
            straggle_slow_down(factors[i]);
            three_matmuls(slow, device.results, N);
            CHECK_CLOSE(device.now, 3 * N * factors[i], 3 * 8 * TICK * factors[i]);
            for (int n = 0; n < N; n++) CHECK(device.results[n] == 3);
            CHECK(!on_host || device.calls == 3);
            memset(&device, 0, sizeof device);
            three_matmuls(&below, device.results, N);
            CHECK(device.now == 3 * N);
        }
    }
    straggle_slow_down(1);
}

CLAIM(virtual_matmuls_take_x_times_as_long) {
    const Kernels* k = virtual_kernels(NULL);
    const Kernels* slow = straggle_kernels(k, NULL, 64);
    VirtualMachine machine = {.token_ms = 0.3, .matmul_weights = 64, .layers = 1, .heads = 1};
    virtual_use(&machine);
    CHECK(straggle_bytes(k, 64) == 0);
    for (int i = 0; i < COUNT(factors); i++) {
        double began = virtual_now(), whole = 1 + i;
        straggle_slow_down(factors[i]);
        virtual_slow_down(whole);
        three_matmuls(slow, NULL, N);
        CHECK_CLOSE(virtual_now() - began, 0.3 * N * factors[i] * whole, 1e-9);
        began = virtual_now();
        three_matmuls(k, NULL, N);
        CHECK_CLOSE(virtual_now() - began, 0.3 * N * whole, 1e-9);
    }
    straggle_slow_down(1), virtual_slow_down(1);
}

int main(void) { return test_main(); }
