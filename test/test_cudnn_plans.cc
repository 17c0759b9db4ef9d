// test_cudnn_plans.cc - cuDNN accepts our description of attention: plans are compiled for devices that are not there,
// from their descriptions in test/cudnn. Nothing is executed.
//
// cuDNN loads the driver's libcuda.so.1 when it compiles. A stand-in is made here, in a directory of its own, and is
// gone when the test ends: every function of the toolkit's stub returns 0, cuInit reports no device, and the two
// functions that hand out code return a handle that is not NULL.
#ifdef HAVE_CUDNN
#include "kernels/cuda/cudnn_plan.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test/temporary.h"

static const char* why_no_plans;  // NULL when plans can be compiled on this machine
static char err[ERR_BYTES];

static KernelLimits limits_of(int N, int context) {
    KernelLimits limits = {};
    limits.N = N, limits.context = context, limits.NH = limits.NKV = 12, limits.HS = 64, limits.dt = DT_BF16;
    return limits;
}

static void begin(void) {
    const char* toolkit = getenv("CUDA_HOME");
    char path[600];
    temporary_begin();
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
    static CudnnPlan plans[CUDNN_PLANS];
    KernelLimits limits = limits_of(256, 256);
    if (!why_no_plans && cudnn_plans(plans, &limits, 90, NULL, err) < 0) why_no_plans = err;
}

static const char* description(const char* device) {
    static char json[4096];
    char path[100];
    snprintf(path, sizeof path, "test/cudnn/%s.json", device);
    FILE* file = fopen(path, "r");
    CHECK(file != NULL);
    size_t n = file ? fread(json, 1, sizeof json - 1, file) : 0;
    if (file) fclose(file);
    CHECK(n > 0);
    json[n] = 0;
    return json;
}

#define NEEDS_PLANS \
    if (why_no_plans) SKIP(why_no_plans)

// Builds a plan, which also says that its workspace is within what was laid out for it; then finds it again.
static void check_plan(const char* device, CudnnPlan* p) {
    const char* json = description(device);
    double started = now_seconds();
    int failed = cudnn_build(p, json, err);
    double to_build = now_seconds() - started;
    if (failed) printf("    %s\n", err);
    CHECK(!failed);
    CudnnPlan again = *p;
    again.graph = NULL;
    started = now_seconds();
    CHECK(cudnn_build(&again, json, err) == 0 && again.graph == p->graph && now_seconds() - started < to_build);
    printf("    %s, %d documents of %d, heads %d / %d of %d: built in %.2f s\n", device, p->B, p->S, p->NH, p->NKV,
           p->HS, to_build);
}

// Also of query heads that share keys and values.
static void check_device(const char* device, int sm) {
    NEEDS_PLANS;
    static const int heads[][3] = {{3, 3, 64}, {6, 2, 64}, {16, 8, 128}};
    for (int i = 0; i < COUNT(heads); i++) {
        CudnnPlan plans[CUDNN_PLANS];
        KernelLimits limits = limits_of(1024, 256);
        limits.NH = heads[i][0], limits.NKV = heads[i][1], limits.HS = heads[i][2];
        CHECK(cudnn_plans(plans, &limits, sm, NULL, err) == CUDNN_PLANS);
        check_plan(device, &plans[0]);
    }
}

CLAIM(a100_has_all_plans) { check_device("a100", 80); }
CLAIM(h100_has_all_plans) { check_device("h100", 90); }
CLAIM(b200_has_all_plans) { check_device("b200", 100); }

// What was laid out for the workspace of a ragged row is what cuDNN asks for.
CLAIM(the_workspace_of_a_ragged_row_is_enough) {
    NEEDS_PLANS;
    CudnnPlan plans[CUDNN_PLANS];
    KernelLimits limits = limits_of(8192, 4096);
    CHECK(cudnn_plans(plans, &limits, 90, NULL, err) == CUDNN_PLANS);
    check_plan("h100", &plans[0]);
    check_plan("h100", &plans[CUDNN_PLANS - 1]);
}

// The words have one line, and what failed is not taken for built.
CLAIM(a_plan_that_fails_leaves_nothing) {
    NEEDS_PLANS;
    CudnnPlan plans[CUDNN_PLANS];
    KernelLimits limits = limits_of(640, 128);
    CHECK(cudnn_plans(plans, &limits, 90, NULL, err) == CUDNN_PLANS);
    for (int i = 0; i < 2; i++) {
        err[0] = 0;
        CHECK(cudnn_build(&plans[0], "no device", err) == -1);
        CHECK(strstr(err, "cuDNN 9.") == err && strstr(err, "compiling attention") && !strchr(err, '\n'));
    }
    check_plan("h100", &plans[0]);
}

// ---- memory and support in words, as of any version of the library

static int plans_of(CudnnPlan plans[CUDNN_PLANS], KernelLimits limits, int sm, size_t version) {
    size_t found = cudnn_version;
    err[0] = 0;
    cudnn_version = version;
    int n = cudnn_plans(plans, &limits, sm, NULL, err);
    cudnn_version = found;
    return n;
}

// On an H100 the log-sum-exp of the row's tokens; on an A100 of the full context for every document.
CLAIM(free_memory_decides_which_rows_cudnn_takes) {
    CudnnPlan h100[CUDNN_PLANS], a100[CUDNN_PLANS];
    KernelLimits some = limits_of(8192, 4096), little = some, none = some;
    little.most_scratch = 4 << 20, none.most_scratch = 1;
    CHECK(plans_of(h100, some, 90, 91900) == CUDNN_PLANS && plans_of(a100, some, 80, 91900) == CUDNN_PLANS);
    CHECK(h100[0].B == 2 && h100[CUDNN_PLANS - 1].B == 128);
    CHECK(h100[CUDNN_PLANS - 1].bytes < 1 << 20 && a100[1].bytes > 8 * 4096 * 12 * sizeof(float));
    CHECK(plans_of(h100, little, 90, 91900) == CUDNN_PLANS && plans_of(a100, little, 80, 91900) == 2);
    for (int i = 0; i < 2; i++) CHECK(a100[i].bytes <= little.most_scratch);
    CHECK(plans_of(h100, none, 90, 91900) == -1 && strstr(err, "scratch"));
    CHECK(plans_of(a100, none, 80, 91900) == -1 && strstr(err, "scratch"));
}

// Every part of a plan's memory begins at 256 bytes, after the one before it and within the plan's bytes.
CLAIM(parts_of_a_plan_lie_apart) {
    static char memory[8 << 20];
    CudnnPlan plans[CUDNN_PLANS];
    KernelLimits limits = limits_of(1000, 100);
    char* base = (char*)ROUND_UP((uintptr_t)memory, (uintptr_t)256);
    for (int sm = 80; sm <= 90; sm += 10) {
        size_t found = cudnn_version;
        cudnn_version = 91900;
        CHECK(cudnn_plans(plans, &limits, sm, base, err) == CUDNN_PLANS);
        cudnn_version = found;
        for (const CudnnPlan& p : plans) {
            size_t B = (size_t)p.B, rows = cudnn_packs(&p) ? 1000 + ATTENTION_TAIL : B * p.S;
            const char* begins[] = {(char*)p.lengths, (char*)p.qkv,       (char*)p.out,  (char*)p.statistics,
                                    (char*)p.lse,     (char*)p.workspace, base + p.bytes};
            const size_t sizes[] = {4 * B, 4 * B + 4, 4 * B + 4, 4 * B + 4, 4 * rows * 12, 64 << 10};
            for (int i = 0; i < COUNT(sizes); i++)
                CHECK((uintptr_t)begins[i] % 256 == 0 && begins[i] + sizes[i] <= begins[i + 1]);
            CHECK(begins[0] == base && p.S == 128);
        }
    }
}

static int refused(KernelLimits limits, int sm, size_t version, const char* word) {
    CudnnPlan plans[CUDNN_PLANS];
    return plans_of(plans, limits, sm, version) == -1 && strstr(err, word) != NULL;
}

CLAIM(what_is_not_supported_is_refused_in_words) {
    KernelLimits good = limits_of(1024, 192), odd = good, wide = good, small = good, fp32 = good, large = good;
    CudnnPlan plans[CUDNN_PLANS];
    odd.HS = 60, wide.HS = 136, small.HS = 24, fp32.dt = DT_F32, large.N = 1 << 20;
    const struct {
        KernelLimits limits;
        int sm;
        size_t version;
        const char* word;
    } rows[] = {
        {odd, 90, 91900, "60"},
        {wide, 90, 91900, "136"},
        {small, 90, 91900, "multiples of 16"},
        {fp32, 90, 91900, "--dtype bf16"},
        {large, 90, 91900, "--capacity"},
        {good, 90, 90700, "9.7.0"},
        {good, 90, 91000, "9.10.2"},
        {good, 90, 91001, "9.10.2"},
        {good, 90, 100000, "cuDNN 9"},
        {good, 75, 91900, "sm_75"},
        {good, 110, 91900, "sm_110"},
        {good, 120, 91900, "interleaved"},
        {good, 86, 91800, "9.18.1"},
    };
    for (int i = 0; i < COUNT(rows); i++) CHECK(refused(rows[i].limits, rows[i].sm, rows[i].version, rows[i].word));
    static const int sms[] = {80, 86, 90, 100, 103};
    for (int i = 0; i < COUNT(sms); i++) {
        CHECK(plans_of(plans, good, sms[i], 91900) == CUDNN_PLANS);
        CHECK(plans[0].S == 256 && cudnn_packs(&plans[0]) == (sms[i] >= 90));
    }
}

int main(void) {
    begin();
    run_claims();
    return temporary_end();
}

#else
#include "test/test.h"

CLAIM(plans_of_cudnn) { SKIP("the headers of cuDNN or of cudnn-frontend are missing"); }

int main(void) { return test_main(); }
#endif
