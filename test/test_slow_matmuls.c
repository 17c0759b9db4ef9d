// test_slow_matmuls.c - claims about kernels/straggle.h: a slowed matmul takes x times as long on every kind of device,
// and leaves the bits of one that is not slowed; a matmul of the device itself stays as it is.
#include "kernels/straggle.h"
#include "kernels/virtual/virtual.h"
#include "test/test.h"

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
