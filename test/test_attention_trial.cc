// test_attention_trial.cc - another's forward pass of attention is used only where it is right, on the emulator, with
// passes that make one mistake each.
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include "kernels/kernels.h"
#include "kernels/table/open.h"
#include "test/cache_files.h"
}
#include "kernels/cuda/cuda.h"

enum { N = 420, CONTEXT = 200, NH = 2, NKV = 1, HS = 16, C = NH * HS, FEW = 5, MANY = 64 };

static const char *const key = "a candidate of the test", *const mark = "a candidate of the test, under way";
static const Kernels* k;
static KernelLimits limits;
static char err[ERR_BYTES];

// ---- candidates: our own pass, and what one of them does to its results

typedef struct Mistake {
    void (*in)(bf16* out, float* lse, const int* cu, const Attention* a);
    int docs;  // in rows of so many documents; 0: in all
    int answer;
    int calls, longest, most_docs;  // seen
    int lengths[MANY];              // of the row of the most documents
} Mistake;

static Mistake mistake(void (*in)(bf16*, float*, const int*, const Attention*), int docs, int answer) {
    Mistake m = {};
    m.in = in, m.docs = docs, m.answer = answer;
    return m;
}

static int forward(void* out, float* lse, const Attention* a, void* context, Err why) {
    Mistake* m = (Mistake*)context;
    int cu[MANY + 1];
    m->calls++;
    k->download(cu, a->cu_q, (size_t)(a->n_docs + 1) * sizeof(int), NULL);
    for (int b = 0; b < a->n_docs; b++) m->longest = MAX(m->longest, cu[b + 1] - cu[b]);
    if (a->n_docs > m->most_docs)
        for (int b = 0; b < a->n_docs; b++) m->lengths[b] = cu[b + 1] - cu[b];
    m->most_docs = MAX(m->most_docs, a->n_docs);
    CHECK(cu[a->n_docs] == a->Nq && a->Nq <= N && a->n_docs <= MANY);
    const bf16* behind = (const bf16*)a->q + a->Nq * a->ldq;
    CHECK(a->tail == ATTENTION_TAIL);
    for (int i = 0; i < ATTENTION_TAIL * a->ldq; i++) CHECK(isnan(bf16_to_float(behind[i])));
    if (m->answer < 0) return fail(why, "the candidate has no words");
    if (m->answer) return m->answer;
    cuda_attention_forward(out, lse, a, DT_BF16, NULL);
    k->synchronize(NULL);
    if (m->in && (!m->docs || a->n_docs == m->docs)) m->in((bf16*)out, lse, cu, a);
    return 0;
}

static std::remove_pointer<decltype(Kernels::attention_backward)>::type* backward;  // of the candidate

static AttentionTrial trial(Mistake* m) {
    AttentionTrial t;
    AttentionCandidate c = {"the candidate", forward, m, {FEW, MANY}, 2, backward};
    CHECK(cuda_attention_trial(&t, &c, &limits, key, err) == 0);
    return t;
}

static int says(const AttentionTrial* t, const char* part) {
    if (!strstr(t->words, part)) printf("    %s\n", t->words);
    return strstr(t->words, part) != NULL;
}

// ---- claims

CLAIM(our_own_pass_is_right) {
    empty_cache();
    Mistake none = {};
    AttentionTrial t = trial(&none), kept = {};
    CHECK(!t.refused && t.difference == 0);
    CHECK(t.own_ms > 0 && t.own_ms < INFINITY && t.candidate_ms > 0 && t.candidate_ms < INFINITY);
    CHECK(says(&t, "own ") && says(&t, "the candidate "));
    CHECK(cuda_attention_trial_kept(&kept, "the candidate", key) == 1 && memcmp(&t, &kept, sizeof t) == 0);
    CHECK(cuda_attention_trial_kept(&kept, "the candidate", "another key") == 0);
}

// A row of the longest documents is tried once and timed; each of the others is tried.
CLAIM(rows_have_the_documents_that_were_promised) {
    empty_cache();
    Mistake none = {};
    const int expected[] = {1, 2, 3, 5, 64, 127, 128, 90};
    trial(&none);
    CHECK(none.calls == 1 + 6 + 2 && none.longest == CONTEXT && none.most_docs == 8);
    CHECK(memcmp(none.lengths, expected, sizeof expected) == 0);
}

// Its gradients are those of rows whose first document is one token longer.
static void back_with_a_border_moved(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                                     const Attention* a, DType dt, Stream s) {
    int cu[MANY + 1], *moved = (int*)k->alloc((size_t)(a->n_docs + 1) * sizeof(int));
    k->download(cu, a->cu_q, (size_t)(a->n_docs + 1) * sizeof(int), NULL);
    cu[1]++;
    k->upload(moved, cu, (size_t)(a->n_docs + 1) * sizeof(int), NULL);
    Attention wrong = *a;
    wrong.cu_q = wrong.cu_k = moved;
    cuda_attention_backward(dq, dk, dv, dout, out, lse, &wrong, dt, s);
    k->synchronize(NULL);
    k->free_memory(moved);
}

static void back_with_a_nan(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                            const Attention* a, DType dt, Stream s) {
    cuda_attention_backward(dq, dk, dv, dout, out, lse, a, dt, s);
    k->synchronize(NULL);
    ((bf16*)dv)[(size_t)(a->Nq - 1) * a->ldq] = bf16_from_float(NAN);
}

CLAIM(gradients_of_a_candidate_that_goes_back_are_compared) {
    Mistake none = {};
    empty_cache();
    backward = cuda_attention_backward;
    AttentionTrial t = trial(&none);
    CHECK(!t.refused && says(&t, "own "));
    empty_cache();
    backward = back_with_a_nan;
    t = trial(&none);
    CHECK(t.refused && says(&t, "wrong in 0 values") && says(&t, "and 1 gradients"));
    empty_cache();
    backward = back_with_a_border_moved;
    t = trial(&none);
    CHECK(t.refused && says(&t, "wrong in 0 values") && !strstr(t.words, "and 0 gradients"));
    backward = NULL;
}

static void move_a_border(bf16* out, float* lse, const int* cu, const Attention* a) {
    int* moved = (int*)k->alloc((size_t)(a->n_docs + 1) * sizeof(int));
    k->upload(moved, cu, (size_t)(a->n_docs + 1) * sizeof(int), NULL);
    moved[1]++;
    Attention wrong = *a;
    wrong.cu_q = wrong.cu_k = moved;
    cuda_attention_forward(out, lse, &wrong, DT_BF16, NULL);
    k->synchronize(NULL);
    k->free_memory(moved);
}

CLAIM(a_border_in_the_wrong_place_is_seen_in_every_row) {
    const int docs[] = {3, FEW, 8};
    for (int i = 0; i < COUNT(docs); i++) {
        empty_cache();
        Mistake m = mistake(move_a_border, docs[i], 0);
        AttentionTrial t = trial(&m), kept = {};
        CHECK(t.refused && t.difference > ATTENTION_TRIAL_OUT && says(&t, "the candidate's attention is wrong in"));
        CHECK(cuda_attention_trial_kept(&kept, "the candidate", key) == 1 && kept.refused);
    }
}

static void write_a_nan(bf16* out, float*, const int*, const Attention* a) {
    out[(size_t)a->Nq * C - 1] = bf16_from_float(NAN);
}
static void write_a_nan_to_lse(bf16*, float* lse, const int*, const Attention* a) { lse[a->Nq * NH - 1] = NAN; }
static void write_infinity(bf16* out, float*, const int*, const Attention*) { out[7] = bf16_from_float(INFINITY); }

CLAIM(a_value_that_is_no_number_is_seen) {
    void (*const mistakes[])(bf16*, float*, const int*, const Attention*) = {write_a_nan, write_a_nan_to_lse,
                                                                             write_infinity};
    for (int i = 0; i < COUNT(mistakes); i++) {
        empty_cache();
        Mistake m = mistake(mistakes[i], 3, 0);
        AttentionTrial t = trial(&m);
        CHECK(t.refused && says(&t, i == 1 ? "wrong in 0 values" : "wrong in 1 values"));
    }
}

static float factor;
static void move_a_value(bf16* out, float*, const int*, const Attention*) {
    size_t i = 0;
    while (fabsf(bf16_to_float(out[i])) > 0.5f) i++;  // where bf16 has steps of less than 2^-8
    out[i] = bf16_from_float(bf16_to_float(out[i]) + factor * ATTENTION_TRIAL_OUT);
}
static void move_an_lse(bf16*, float* lse, const int*, const Attention* a) {
    lse[a->Nq * NH / 2] += factor * ATTENTION_TRIAL_LSE;
}

// In one element of the row of many documents.
CLAIM(a_little_more_than_the_tolerance_is_too_much) {
    for (int i = 0; i < 4; i++) {
        empty_cache();
        factor = i % 2 ? 1.1f : 0.9f;
        Mistake m = mistake(i < 2 ? move_a_value : move_an_lse, 8, 0);
        AttentionTrial t = trial(&m);
        CHECK(t.refused == i % 2);
        CHECK(says(&t, !t.refused ? "own "
                       : i < 2    ? "wrong in 1 values"
                                  : ", 1 log-sum-exps and 0 gradients of a row of 8 doc"));
    }
}

CLAIM(a_candidate_that_takes_no_long_rows_is_not_faster) {
    empty_cache();
    Mistake m = mistake(NULL, 0, 1);
    AttentionTrial t = trial(&m);
    CHECK(!t.refused && t.candidate_ms == INFINITY && t.own_ms < INFINITY && says(&t, "does not take"));
}

CLAIM(a_candidate_that_fails_is_refused_with_its_words) {
    empty_cache();
    Mistake m = mistake(NULL, 0, -1);
    AttentionTrial t = trial(&m);
    CHECK(t.refused && says(&t, "the candidate has no words") && m.calls == 1);
}

// ---- a process that ends in its trial

static void fail_in_cuda(bf16*, float*, const int*, const Attention*) { CUDA_CHECK(cudaErrorInvalidValue); }
static void leave(bf16*, float*, const int*, const Attention*) { _exit(3); }

// How a process ends that makes this mistake; what it says goes to the file `said`.
static int end_of(void (*in)(bf16*, float*, const int*, const Attention*)) {
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen(path_of("said"), "w", stderr)) _exit(9);
        Mistake m = mistake(in, 0, 0);
        trial(&m);
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

CLAIM(a_cuda_error_ends_the_process_in_one_line_and_is_kept) {
    static char said[4096];
    AttentionTrial kept = {};
    empty_cache();
    CHECK(end_of(fail_in_cuda) == 1);
    read_text(path_of("said"), said, sizeof said);
    CHECK(strstr(said, "the candidate's attention failed in its trial: CUDA: cudaErrorInvalidValue: ") != NULL);
    CHECK(strstr(said, "start again") && strstr(said, "--device attention=own"));
    CHECK(strchr(said, '\n') == said + strlen(said) - 1);
    CHECK(cuda_attention_trial_kept(&kept, "the candidate", key) == 1 && kept.refused);
    CHECK(says(&kept, "the candidate's attention failed in a trial on this machine, "));
}

CLAIM(a_trial_that_died_is_a_refusal) {
    AttentionTrial kept = {};
    empty_cache();
    CHECK(end_of(leave) == 3);
    CHECK(cuda_attention_trial_kept(&kept, "the candidate", key) == 1 && kept.refused);
    CHECK(says(&kept, "the candidate's attention failed in a trial on this machine"));
}

static void keep_mark(long pid, const char* host) {
    char words[600];
    snprintf(words, sizeof words, "trial under way, PID %ld on %s", pid, host);
    cache_write(mark, words, strlen(words), 1);
}

CLAIM(a_trial_that_lives_or_is_elsewhere_is_none) {
    AttentionTrial kept = {};
    char here[256] = "";
    gethostname(here, sizeof here - 1);
    pid_t gone = fork();
    if (gone == 0) _exit(0);
    CHECK(waitpid(gone, NULL, 0) == gone);
    empty_cache();
    keep_mark((long)getpid(), here);
    CHECK(cuda_attention_trial_kept(&kept, "the candidate", key) == 0);
    keep_mark((long)gone, "another-machine");
    CHECK(cuda_attention_trial_kept(&kept, "the candidate", key) == 0);
    keep_mark((long)gone, here);
    CHECK(cuda_attention_trial_kept(&kept, "the candidate", key) == 1 && kept.refused);
    // What is known counts for more than a mark; a trial that has ended leaves none.
    Mistake none = {};
    trial(&none);
    keep_mark((long)gone, here);
    CHECK(cuda_attention_trial_kept(&kept, "the candidate", key) == 1 && !kept.refused);
    empty_cache();
    trial(&none);
    CHECK(!reads(mark, "") && reads(mark, "the trial has ended"));
}

CLAIM(the_difference_is_the_largest_of_all_rows) {
    empty_cache();
    factor = 0.9f;
    Mistake m = mistake(move_a_value, 3, 0);  // in the first of them
    AttentionTrial t = trial(&m);
    CHECK(!t.refused && t.difference > 0.5f * ATTENTION_TRIAL_OUT);
}

CLAIM(what_is_damaged_is_written_anew) {
    AttentionTrial kept = {};
    empty_cache();
    cache_write(key, "damaged", 7, 1);
    Mistake none = {};
    AttentionTrial t = trial(&none);
    CHECK(cuda_attention_trial_kept(&kept, "the candidate", key) == 1 && memcmp(&t, &kept, sizeof t) == 0);
}

// Of two ranks the first one decides.
CLAIM(what_another_rank_has_found_meanwhile_is_taken) {
    AttentionTrial t = {};
    empty_cache();
    t.refused = 1;
    snprintf(t.words, sizeof t.words, "another rank has refused it");
    cache_write(key, &t, sizeof t, 1);
    Mistake none = {};
    t = trial(&none);
    CHECK(t.refused && says(&t, "another rank"));
}

int main(void) {
    cache_begin();
    limits.N = N, limits.spread = 1, limits.C = 4 * C, limits.OC = 4 * C, limits.NH = NH, limits.NKV = NKV;
    limits.HS = HS, limits.context = CONTEXT, limits.dt = DT_BF16, limits.attention = ATTENTION_OWN;
    k = kernels_find("emu", "auto", err);
    if (!k || k->open(&limits, err)) die("%s", err);
    run_claims();
    k->close();
    return temporary_end();
}
