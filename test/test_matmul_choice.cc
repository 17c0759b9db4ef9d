// test_matmul_choice.cc - which of the library's algorithms a matmul takes, on the emulator, whose library then offers
// several that take as much time as a test says.
#include <cublasLt.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include "kernels/kernels.h"
#include "kernels/table/open.h"
#include "plan/base/disk.h"
#include "test/cache_files.h"
}
#include "kernels/cuda/cuda.h"

enum { MOST_N = 1100, C = 24, OC = 40 };

static const Kernels* k;
static char err[ERR_BYTES];
static float x[MOST_N * C], weight[OC * C], bias[OC], out[MOST_N * OC];

static int kept_files(void) { return disk_count(path_of("ragged")); }

static void open_kernels(int most_OC = OC) {
    KernelLimits limits = {};
    limits.N = MOST_N, limits.C = C, limits.OC = most_OC, limits.NH = limits.NKV = 1, limits.HS = 8, limits.context = 8;
    limits.spread = 1, limits.attention = ATTENTION_OWN;
    CHECK(k->open(&limits, err) == 0);
}

// Three answers, the second of which is the fastest.
static void offer_three(void) {
    emu::matmuls = emu::Matmuls{};
    emu::matmuls.answers = 3;
    emu::matmuls.seconds[0] = 30, emu::matmuls.seconds[1] = 10, emu::matmuls.seconds[2] = 20;
}

// out = x weight^T + bias for N rows, all of small integers; checked. The answer that made it, -1 when several ran.
static int forward(int N, int with_bias) {
    int before[3], used = -1, ran = 0;
    memcpy(before, emu::matmuls.ran, sizeof before);
    k->matmul_forward(out, NULL, x, weight, with_bias ? bias : NULL, N, C, OC, DT_F32, NULL);
    k->synchronize(NULL);
    for (int i = 0; i < 3; i++)
        if (emu::matmuls.ran[i] > before[i]) used = i, ran += emu::matmuls.ran[i] - before[i];
    int wrong = 0;
    for (int n = 0; n < N; n++)
        for (int o = 0; o < OC; o++) {
            float sum = with_bias ? bias[o] : 0;
            for (int c = 0; c < C; c++) sum += x[n * C + c] * weight[o * C + c];
            wrong += out[n * OC + o] != sum;
        }
    CHECK(wrong == 0);
    return ran == 1 ? used : -1;
}

static void begin(void) {
    cache_begin();
    k = kernels_find("emu", "auto", err);
    if (!k) die("%s", err);
    emu::lend_statics();
    for (int i = 0; i < COUNT(x); i++) x[i] = (float)(int)(hash64((uint64_t)i) % 9) - 4;
    for (int i = 0; i < COUNT(weight); i++) weight[i] = (float)(int)(hash64((uint64_t)i + 99999) % 7) - 3;
    for (int i = 0; i < OC; i++) bias[i] = (float)(i % 5) - 2;
}

CLAIM(the_fastest_answer_is_kept_for_later_runs) {
    empty_cache();
    offer_three();
    open_kernels();
    CHECK(forward(128, 1) == -1);  // all three are timed, and the best one makes the result
    CHECK(emu::matmuls.ran[0] == 4 && emu::matmuls.ran[1] == 5 && emu::matmuls.ran[2] == 4);
    CHECK(forward(128, 1) == 1);
    k->close();
    emu::matmuls.seconds[0] = 1;  // would be the fastest now
    open_kernels();
    CHECK(forward(128, 1) == 1 && kept_files() == 1);
    k->close();
}

CLAIM(sizes_that_round_to_one_share_a_choice) {
    empty_cache();
    offer_three();
    emu::matmuls.any_size = true;
    open_kernels();
    CHECK(forward(1030, 1) == -1 && kept_files() == 1);
    CHECK(forward(1025, 1) == 1 && forward(1100, 1) == 1 && kept_files() == 1);  // 1152
    CHECK(forward(1024, 1) == -1 && kept_files() == 2);
    k->close();
}

CLAIM(a_choice_that_does_not_serve_another_size_gives_way_to_the_first_answer) {
    empty_cache();
    offer_three();
    open_kernels();
    CHECK(forward(1030, 1) == -1);
    CHECK(forward(1031, 1) == 0 && forward(1030, 1) == 1 && kept_files() == 1);
    k->close();
}

CLAIM(a_damaged_choice_is_made_anew) {
    empty_cache();
    offer_three();
    open_kernels();
    CHECK(forward(128, 1) == -1);
    k->close();
    CHECK(shell("for f in $W/ragged/*; do echo damaged > $f; done") == 0);
    for (int run = 0; run < 2; run++) {
        open_kernels();
        CHECK(forward(128, 1) == (run == 0 ? -1 : 1) && kept_files() == 1);
        k->close();
    }
}

CLAIM(where_nothing_can_be_kept_the_first_answer_is_taken) {
    offer_three();
    setenv("XDG_CACHE_HOME", "/proc/no/such/place", 1);
    open_kernels();
    CHECK(forward(128, 1) == -1);  // timed once, to no effect, and never again
    CHECK(forward(128, 1) == 0 && forward(64, 1) == 0);
    k->close();
    setenv("XDG_CACHE_HOME", work, 1);
}

// dweight (n_OC, C) += dout^T x of `rows` rows, small integers; checked. How often an answer ran.
static int weight_gradient(int rows, int n_OC) {
    float* sums = (float*)calloc((size_t)(n_OC * C), sizeof(float));
    float* dout = (float*)calloc((size_t)(n_OC * rows), sizeof(float));
    int before = emu::matmuls.ran[1], wrong = 0;
    for (int i = 0; i < n_OC * C; i++) sums[i] = (float)(i % 7);
    for (int i = 0; i < rows * n_OC; i++) dout[i] = (float)(i % 5) - 2;
    k->matmul_backward_weight(sums, NULL, dout, x, rows, C, n_OC, DT_F32, NULL);
    k->synchronize(NULL);
    for (int o = 0; o < n_OC; o++)
        for (int c = 0; c < C; c++) {
            float sum = (float)((o * C + c) % 7);
            for (int n = 0; n < rows; n++) sum += dout[n * n_OC + o] * x[n * C + c];
            wrong += sums[o * C + c] != sum;
        }
    CHECK(wrong == 0);
    free(sums), free(dout);
    return emu::matmuls.ran[1] - before;
}

CLAIM(timing_adds_nothing_to_a_weight_gradient) {
    empty_cache();
    offer_three();
    open_kernels();
    CHECK(weight_gradient(64, OC) == 5 && kept_files() == 1);
    k->close();
}

// An exchange that has some of the processors makes another question of the same product.
CLAIM(beside_exchanges_a_matmul_counts_on_fewer_processors) {
    empty_cache();
    offer_three();
    open_kernels();
    CHECK(forward(128, 1) == -1 && forward(128, 1) == 1 && emu::matmuls.sms == 0 && kept_files() == 1);
    cuda.exchange_sms = 1;
    CHECK(forward(128, 1) == -1 && forward(128, 1) == 1 && emu::matmuls.sms == cuda.sm_count - 1 && kept_files() == 2);
    cuda.exchange_sms = 0;
    CHECK(forward(128, 1) == 1 && emu::matmuls.sms == 0 && kept_files() == 2);
    k->close();
}

// The classifier's is larger than the room for trials.
CLAIM(a_weight_gradient_larger_than_scratch_is_timed_too) {
    enum { VOCABULARY = 1400000 };
    empty_cache();
    offer_three();
    open_kernels(VOCABULARY);
    CHECK((size_t)VOCABULARY * C * sizeof(float) > cuda.scratch_bytes);
    CHECK(weight_gradient(2, VOCABULARY) == 5 && kept_files() == 1);
    k->close();
}

// Lists of tiles, which the next attention reads, lie behind the scratch that trials write to.
CLAIM(timing_writes_nothing_to_what_attention_keeps) {
    empty_cache();
    offer_three();
    open_kernels();
    size_t kept = cuda.scratch_bytes - cuda_scratch_planned(), changed = 0;
    memset(cuda_kept(), 0, kept);
    for (size_t workspace = 4; workspace <= 32; workspace += 28)  // MiB of the library, by device
        for (size_t inside = 1; inside < 4; inside++) {
            size_t end = cuda_scratch_planned() - MIN(workspace << 20, cuda_scratch_planned()) + inside * kept / 4;
            weight_gradient(2, (int)(end / ((C + 1) * sizeof(float))));
        }
    for (size_t i = 0; i < kept; i++) changed += cuda_kept()[i] != 0;
    CHECK(kept > 1000 && changed == 0);
    k->close();
}

// By a status that the header allows for the question itself, and by the two that say "not for this".
CLAIM(an_epilogue_that_is_not_offered_is_done_another_way) {
    const cublasStatus_t refusals[] = {CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_NOT_SUPPORTED,
                                       CUBLAS_STATUS_ARCH_MISMATCH};
    for (int i = 0; i < COUNT(refusals); i++) {
        emu::matmuls = emu::Matmuls{};
        emu::matmuls.refused_epilogue = CUBLASLT_EPILOGUE_BIAS;
        emu::matmuls.refusal = refusals[i];
        open_kernels();
        CHECK(forward(70, 1) == 0 && forward(70, 1) == 0);  // by the library all the same
        k->close();
    }
    emu::matmuls = emu::Matmuls{};
}

CLAIM(a_plain_product_that_is_refused_ends_with_what_it_was) {
    char words[2000];
    int status = 0;
    emu::matmuls.refused_epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    open_kernels();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (freopen(path_of("words"), "w", stderr)) forward(70, 0);
        _exit(0);
    }
    waitpid(child, &status, 0);
    read_text(path_of("words"), words, sizeof words);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    CHECK(strstr(words, "in matmul forward with N 70, C 24, OC 40 of fp32"));
    k->close();
    emu::matmuls = emu::Matmuls{};
}

int main(void) {
    begin();
    run_claims();
    return temporary_end();
}
