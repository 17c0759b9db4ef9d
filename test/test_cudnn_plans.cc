// test_cudnn_plans.cc - cuDNN accepts our description of attention: plans are compiled for devices that are not there,
// from their descriptions in test/cudnn, and kept on disk. Nothing is executed.
//
// cuDNN loads the driver's libcuda.so.1 when it compiles. A stand-in is made here, in a directory of its own, and is
// gone when the test ends: every function of the toolkit's stub returns 0, cuInit reports no device, and the two
// functions that hand out code return a handle that is not NULL.
#if __has_include(<cudnn.h>)
#include "kernels/cuda/cudnn_plan.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test/cache_files.h"

static const char* why_no_plans;  // NULL when plans can be compiled on this machine
static char err[ERR_BYTES];

static void begin(void) {
    const char* toolkit = getenv("CUDA_HOME");
    char path[600];
    cache_begin();
    if (!toolkit) toolkit = "/usr/local/cuda";
    snprintf(path, sizeof path, "%s/lib64/stubs/libcuda.so", toolkit);
    if (shell("command -v gcc nm awk > $W/tools")) why_no_plans = "gcc, nm or awk is missing";
    else if (access(path, R_OK)) why_no_plans = "the CUDA toolkit's stub of libcuda is missing";
    else if (shell(
                 "cd $W && { echo 'static char code; int cuInit(void) { return 100; }';"
                 " echo 'int cuLibraryLoadData(void** p) { *p = &code; return 0; }';"
                 " echo 'int cuLibraryGetKernel(void** p) { *p = &code; return 0; }';"
                 " nm -D --defined-only '%s' | awk '$2 == \"T\" && $3 !~ /^cu(Init|LibraryLoadData|LibraryGetKernel)$/"
                 " { print \"int \" $3 \"(void) { return 0; }\" }'; } > standin.c &&"
                 " gcc -w -shared -fPIC -Wl,-soname,libcuda.so.1 standin.c -o libcuda.so.1",
                 path))
        why_no_plans = "gcc cannot make a stand-in for libcuda";
    snprintf(path, sizeof path, "%s/libcuda.so.1", work);
    // Whoever asks for libcuda.so.1 from now on gets this one.
    if (!why_no_plans && !dlopen(path, RTLD_NOW | RTLD_GLOBAL)) why_no_plans = "the stand-in for libcuda does not load";
    if (!why_no_plans && cudnn_load(err)) why_no_plans = err;
}

static PlanShape shape(int sm) { return PlanShape{4, 256, 3, 3, 64, sm}; }

static PlanTarget target(const char* name) {
    char path[100], json[4096] = "";
    snprintf(path, sizeof path, "test/cudnn/%s.json", name);
    FILE* file = fopen(path, "r");
    CHECK(file != NULL);
    size_t n = file ? fread(json, 1, sizeof json - 1, file) : 0;
    if (file) fclose(file);
    CHECK(n > 0);
    PlanTarget t = {NULL, plan_describe_device(json, err), name};
    if (!t.device) printf("    %s\n", err);
    CHECK(t.device != NULL);
    return t;
}

// Compiles the plan, then reads it back from disk.
static void check_plan(const char* device, const PlanShape* s) {
    PlanTarget t = target(device);
    Plan compiled, kept;
    empty_cache();
    double started = now_seconds();
    int failed = plan_open(&compiled, s, &t, err);
    double to_compile = now_seconds() - started;
    if (failed) printf("    %s\n", err);
    CHECK(!failed && !compiled.was_cached);
    started = now_seconds();
    CHECK(plan_open(&kept, s, &t, err) == 0);
    double to_read = now_seconds() - started;
    CHECK(kept.was_cached && kept.workspace == compiled.workspace && to_read < to_compile);
    CHECK((size_t)compiled.workspace <= plan_workspace_most(s));
    printf("    %s, head size %d: compiled in %.2f s, read in %.3f s, workspace %.2f MiB\n", device, s->HS, to_compile,
           to_read, (double)compiled.workspace / (1 << 20));
    plan_close(&compiled);
    plan_close(&kept);
    if (t.device) cudnn.BackendDestroyDescriptor(t.device);
}

#define NEEDS_PLANS \
    if (why_no_plans) SKIP(why_no_plans)

// Also of query heads that share keys and values.
static void check_device(const char* device, int sm) {
    NEEDS_PLANS;
    for (int share = 0; share < 2; share++) {
        PlanShape s = shape(sm);
        if (share) s.NH = 6, s.NKV = 2;
        check_plan(device, &s);
    }
}

CLAIM(a100_has_all_plans) { check_device("a100", 80); }
CLAIM(h100_has_all_plans) { check_device("h100", 90); }
CLAIM(b200_has_all_plans) { check_device("b200", 100); }

// ---- memory

static KernelLimits limits_of(int N, int context, size_t most_scratch) {
    KernelLimits limits = {};
    limits.N = N, limits.context = context, limits.NH = limits.NKV = 12, limits.HS = 64, limits.dt = DT_BF16;
    limits.most_scratch = most_scratch;
    return limits;
}

// On an H100 the log-sum-exp of the row's tokens; on an A100 of the full context for every document.
CLAIM(free_memory_decides_which_rows_cudnn_takes) {
    KernelLimits some = limits_of(8192, 4096, 0), little = limits_of(8192, 4096, 4 << 20),
                 none = limits_of(8192, 4096, 1);
    CHECK(bucket_shape(&some, 90, 0).B == 2 && bucket_shape(&some, 90, BUCKETS - 1).B == 128);
    CHECK(bucket_bytes(&some, 90, BUCKETS - 1) < 1 << 20 && bucket_bytes(&some, 80, 1) > 8 * 4096 * 12 * sizeof(float));
    CHECK(buckets_that_fit(&little, 90) == BUCKETS && buckets_that_fit(&little, 80) == 2);
    CHECK(buckets_that_fit(&none, 90) == 0 && buckets_that_fit(&none, 80) == 0);
    for (int i = 0; i < 2; i++) CHECK(bucket_bytes(&little, 80, i) <= most_plan_bytes(&little));
}

// What the table promises for a ragged shape is what cuDNN asks for.
CLAIM(the_workspace_of_a_ragged_row_is_enough) {
    NEEDS_PLANS;
    KernelLimits limits = limits_of(8192, 4096, 0);
    PlanShape few = bucket_shape(&limits, 90, 0), many = bucket_shape(&limits, 90, BUCKETS - 1);
    check_plan("h100", &few);
    check_plan("h100", &many);
}

// ---- support in words

static int refused(PlanShape s, size_t version, const char* word) {
    err[0] = 0;
    return plan_check(&s, version, err) == -1 && strstr(err, word) != NULL;
}

CLAIM(what_is_not_supported_is_refused_in_words) {
    PlanShape odd = shape(90), wide = odd, ragged = odd, small = odd;
    odd.HS = 60, wide.HS = 136, ragged.S = 192, small.HS = 24;
    CHECK(refused(odd, 91900, "60"));
    CHECK(refused(wide, 91900, "136"));
    CHECK(refused(ragged, 91900, "192"));
    CHECK(refused(small, 91900, "multiples of 16"));
    CHECK(refused(shape(90), 90700, "9.7.0"));
    CHECK(refused(shape(90), 91000, "9.10.2"));
    CHECK(refused(shape(90), 91001, "9.10.2"));
    CHECK(refused(shape(90), 100000, "cuDNN 9"));
    CHECK(refused(shape(75), 91900, "sm_75"));
    CHECK(refused(shape(110), 91900, "sm_110"));
    CHECK(refused(shape(120), 91900, "interleaved"));
    CHECK(refused(shape(86), 91800, "9.18.1"));
    const PlanShape good[] = {shape(80), shape(86), shape(90), shape(100), shape(103)};
    for (int i = 0; i < COUNT(good); i++) CHECK(plan_check(&good[i], 91900, err) == 0);
    CHECK(!plan_packed(&good[0]) && !plan_packed(&good[1]) && plan_packed(&good[2]) && plan_packed(&good[3]));
}

// ---- what is kept

CLAIM(a_damaged_plan_is_compiled_anew) {
    NEEDS_PLANS;
    static char good[1 << 20];
    size_t n;
    PlanShape s = shape(80);
    Plan plan;
    empty_cache();
    PlanTarget t = target("a100");
    CHECK(plan_open(&plan, &s, &t, err) == 0 && !plan.was_cached);
    plan_close(&plan);
    const char* path = only_file(good, sizeof good, &n);
    CHECK(n > 10000 && n < sizeof good);
    write_file(path, good, n / 2);
    CHECK(plan_open(&plan, &s, &t, err) == 0 && !plan.was_cached);
    plan_close(&plan);
    CHECK(plan_open(&plan, &s, &t, err) == 0 && plan.was_cached);
    plan_close(&plan);
    // A sound file with a plan that cuDNN does not take.
    char key[PLAN_KEY];
    plan_key(key, &s, &t);
    cache_write(key, "{}", 2, 1);
    CHECK(reads(key, "{}"));
    CHECK(plan_open(&plan, &s, &t, err) == 0 && !plan.was_cached);
    plan_close(&plan);
    CHECK(plan_open(&plan, &s, &t, err) == 0 && plan.was_cached);
    plan_close(&plan);
    if (t.device) cudnn.BackendDestroyDescriptor(t.device);
}

int main(void) {
    begin();
    run_claims();
    return temporary_end();
}

#else
#include "test/test.h"

CLAIM(plans_of_cudnn) { SKIP("cuDNN's headers are missing"); }

int main(void) { return test_main(); }
#endif
