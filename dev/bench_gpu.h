// bench_gpu.h - what the sections of bench_gpu share, and its last one: the trainer itself beside PyTorch.
#pragma once
#include "dev/bench.h"

#include <sys/wait.h>
#include <unistd.h>

#include "kernels/table/open.h"
#include "plan/model/split.h"
#include "test/shapes.h"

enum { CONTEXT = 1024 };

typedef struct GptModel {
    const char* name;
    int L, C, NH, NKV;
    int row;            // tokens of a row in the benches of ops
    int rows;           // documents of CONTEXT tokens that the trainer, and PyTorch, take at a time
    int batch, steps;   // tokens of an optimizer step; steps of a run
    int seconds, peer;  // guesses of what a run takes, ours and PyTorch's
    const char* compile;
} GptModel;

static const GptModel all_models[] = {
    {"gpt2-124m", 12, 768, 12, 12, 16384, 32, 131072, 8, 8, 45, "model"},
    {"gpt2-350m", 24, 1024, 16, 16, 16384, 16, 131072, 6, 11, 25, "block"},
    {"gpt2-774m", 36, 1280, 20, 20, 8192, 16, 65536, 5, 13, 28, "block"},
    {"gpt2-1558m", 48, 1600, 25, 25, 8192, 8, 32768, 5, 18, 32, "block"},
};
static const GptModel quick_models[] = {{"quick", 2, 64, 2, 2, 256, 2, 512, 4, 3, 5, "off"}};
// The width and heads of Llama 3 8B, for the benches of ops and of attention alone.
static const GptModel llama = {.name = "llama3-8b", .C = 4096, .NH = 32, .NKV = 8, .row = 8192};
static const GptModel quick_llama = {.name = "quick llama", .C = 64, .NH = 4, .NKV = 2, .row = 256};

static struct {
    const char *device, *only, *record;
    int quick;
    double seconds, started;
    char train[512];  // the program
} options = {"cuda", "", "build/bench_gpu.jsonl", 0, 330, 0, "build/release/train"};

// Shared between the processes.
static struct Limits {
    char name[300];
    int is_cuda;
    double copy, matmul;  // GB/s, TFLOP/s
} * limits;

static int seconds_left(void) { return (int)(options.seconds - (now_seconds() - options.started)); }

static int time_for(double seconds, const char* what) {
    if (seconds_left() >= seconds) return 1;
    printf("  %s: left out, about %.0f s more than --seconds %.0f allows\n", what, seconds - seconds_left(),
           options.seconds);
    return 0;
}

static void record(const char* group, const char* name, double value, const char* unit, double limit) {
    char full[200];
    snprintf(full, sizeof full, "%s %s", group, name);
    bench_record_in(options.record, "make bench-gpu", full, value, unit, limit);
}

// Length of document i of a ragged corpus: log-normal, median 350 tokens, mean about 800, like an encyclopedia's.
static int ragged_length(uint64_t seed, int i) {
    double median = options.quick ? 35 : 350;
    return (int)MAX(8, MIN(median * exp(1.3 * random_normal(seed, (uint64_t)i)), 1 << 20));
}

// ---- section: the whole trainer

typedef struct Corpus {
    const char* name;
    double mean, s2;  // tokens of a piece; sum of s^2 / sum of s over the pieces
} Corpus;

static char work[64];                          // a folder
enum { END_OF_TEXT = 50256 };                  // the last of GPT-2's tokens
enum { TIMED_OUT = 124, GRACE_SECONDS = 15 };  // status of timeout(1); what a run may take beyond --seconds

// A shard of llm.c's format with documents of the same length, or ragged ones (0). Pieces are at most `context` long.
static Corpus write_shard(const char* name, int length, int context) {
    enum { TOKENS = 1 << 21 };
    int header[256] = {20240520, 1, TOKENS};
    char path[128];
    uint16_t* tokens = (uint16_t*)malloc(sizeof(uint16_t) * TOKENS);
    double pieces = 0, s2 = 0;
    for (int i = 0, docs = 0, n; i < TOKENS; i += n) {
        n = MIN(length ? length : ragged_length(5, docs++), TOKENS - i);
        tokens[i] = END_OF_TEXT;
        for (int j = 1; j < n; j++) tokens[i + j] = (uint16_t)(hash64((uint64_t)(i + j)) % END_OF_TEXT);
        pieces += CEIL_DIV(n, context);
        s2 += (double)(n / context) * context * context + (double)(n % context) * (n % context);
    }
    snprintf(path, sizeof path, "%s/%s.bin", work, name);
    FILE* file = fopen(path, "wb");
    int bad = !file || fwrite(header, sizeof header, 1, file) != 1 || fwrite(tokens, 2, TOKENS, file) != TOKENS;
    if (file) bad |= fclose(file);
    if (bad) exit((fprintf(stderr, "bench_gpu: cannot write %s\n", path), 1));
    free(tokens);
    return (Corpus){name, TOKENS / pieces, s2 / TOKENS};
}

// The last line of a program's output that is not empty.
static void last_words(const char* file, char* words, size_t bytes) {
    char path[128], line[512];
    snprintf(words, bytes, "no output");
    snprintf(path, sizeof path, "%s/%s", work, file);
    FILE* f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\r\n")] = 0;
        if (line[0]) snprintf(words, bytes, "%s", line);
    }
    if (f) fclose(f);
}

typedef struct Speed {
    double tokens, loss;  // a second; of the last step. 0 tokens: it failed
    int rows;
} Speed;

// The medians of a run's log, the first step left out. Half the row where the memory does not suffice.
static Speed run_train(const GptModel* m, const Corpus* corpus, int context, const char* extra) {
    char command[2048], path[128], words[512];
    Speed s = {0, 0, m->rows};
    for (; s.rows >= 1; s.rows /= 2) {
        snprintf(
            command, sizeof command,
            "rm -rf %s/run; exec timeout -k 5 %d %s --device %s --dtype bf16 --preset gpt2-124m --layers %d --width %d "
            "--heads %d --context %d --data %s/%s.bin --val %s/%s.bin --batch-tokens %d --capacity %d --steps %d "
            "--eval-every 0 --sample-every 0 --save-every 0 %s --out %s/run > %s/out 2>&1",
            work, MAX(seconds_left(), 0) + GRACE_SECONDS, options.train, options.device, m->L, m->C, m->NH, context,
            work, corpus->name, work, corpus->name, m->batch, s.rows * (options.quick ? context : CONTEXT), m->steps,
            extra, work, work);
        fflush(stdout);
        int status = system(command);
        if (status == 0) break;
        last_words("out", words, sizeof words);
        if (WIFEXITED(status) && WEXITSTATUS(status) == TIMED_OUT) snprintf(words, sizeof words, "it took too long");
        printf("  failed with rows of %d x %d: %.150s\n", s.rows, CONTEXT, words);
        if (!strstr(words, "memory")) return s;
    }
    snprintf(path, sizeof path, "%s/run/log.jsonl", work);
    s.tokens = bench_median_of_log(path, "tokens_per_second", 1);
    s.loss = bench_median_of_log(path, "loss", m->steps - 1);
    return s;
}

// Dense bf16 with fp32 sums, from the vendor's data sheets; 0 for others. The comma ends the name: an H200 NVL is
// slower.
static double vendor_tflops(void) {
    static const struct {
        const char* name;
        double tflops;
    } peaks[] = {{"H100 80GB HBM3,", 989.4}, {"NVIDIA H200,", 989.4}, {"NVIDIA A100", 312}, {"L40S,", 362},
                 {"RTX 4090,", 165},         {"NVIDIA B200,", 2250}};
    for (int i = 0; i < COUNT(peaks); i++)
        if (strstr(limits->name, peaks[i].name)) return peaks[i].tflops;
    return 0;
}

static void show_speed(const GptModel* m, const char* label, Speed s, const Corpus* corpus, int context) {
    Shape shape = shape_make(m->L, m->C, m->NH, END_OF_TEXT + 1, context);
    double flops = shape_training_flops(&shape, 1, corpus->s2), rate = 1e-12 * flops * s.tokens;
    double vendor = vendor_tflops();
    if (s.tokens <= 0) return;
    printf("  %-28s %8.0f tokens/s  %6.4g TFLOP/s  %4.1f %% of the matmul limit", label, s.tokens, rate,
           100 * rate / limits->matmul);
    if (vendor > 0) printf(", %4.1f %% of %.1f", 100 * rate / vendor, vendor);
    printf("; loss %.2f", s.loss);
    if (s.rows != m->rows) printf("; rows of %d x %d", s.rows, CONTEXT);
    printf("\n");
    record(m->name, label, s.tokens, "tokens/s", 1e12 * limits->matmul / flops);
}

// PyTorch's speed by dev/peer_torch.py.
static Speed run_peer(const GptModel* m, int context, char* label, size_t bytes) {
    char command[1024], path[128], version[64], words[512];
    Speed s = {0, 0, m->rows};
    double gigabytes = 0, setup = 0;
    snprintf(
        command, sizeof command,
        "exec timeout -k 5 %d ${PYTHON:-python3} dev/peer_torch.py bf16 --device %s --layers %d --width %d --heads %d "
        "--context %d --rows %d --batch-tokens %d --steps %d --compile %s > %s/peer 2> %s/peer.err",
        MAX(seconds_left(), 0) + GRACE_SECONDS, limits->is_cuda ? "cuda" : "cpu", m->L, m->C, m->NH, context, m->rows,
        m->batch, m->steps, m->compile, work, work);
    fflush(stdout);
    int status = system(command);
    snprintf(path, sizeof path, "%s/peer", work);
    FILE* f = fopen(path, "r");
    if (status || !f ||
        fscanf(f, "%lf %lf %lf %lf %d %63s", &s.tokens, &s.loss, &gigabytes, &setup, &s.rows, version) != 6) {
        s.tokens = 0;
        last_words("peer.err", words, sizeof words);
        if (WIFEXITED(status) && WEXITSTATUS(status) == TIMED_OUT) snprintf(words, sizeof words, "it took too long");
        printf("  PyTorch: no figure: %.160s\n", words);
    } else {
        snprintf(label, bytes, "PyTorch %.12s (%s)", version, m->compile);
        record(m->name, "PyTorch memory", gigabytes, "GB", 0);
        record(m->name, "PyTorch start and compilation", setup, "s", 0);
    }
    if (f) fclose(f);
    return s;
}

// Full rows, PyTorch, full rows again.
static void bench_beside_peer(const GptModel* m, const Corpus* full, int context) {
    char label[64];
    if (!time_for(m->seconds, m->name)) return;
    printf("training %s, %d tokens a step, context %d, bf16\n", m->name, m->batch, context);
    Speed first = run_train(m, full, context, "");
    snprintf(label, sizeof label, "full rows, %d x %d", m->rows, context);
    show_speed(m, label, first, full, context);
    if (first.tokens <= 0 || !time_for(m->peer + m->seconds, "PyTorch and a second turn")) return;
    Speed peer = run_peer(m, context, label, sizeof label);
    if (peer.tokens <= 0) return;
    show_speed(m, label, peer, full, context);
    Speed second = run_train(m, full, context, "");
    show_speed(m, "full rows again", second, full, context);
    if (second.tokens <= 0) return;
    double ratio = (first.tokens + second.tokens) / 2 / peer.tokens;
    printf("  %.2f times PyTorch (%.2f and %.2f in the two turns)\n", ratio, first.tokens / peer.tokens,
           second.tokens / peer.tokens);
    record(m->name, "times PyTorch", ratio, "", 0);
}

// Ragged documents beside equal ones that cost the same attention a token.
static void bench_ragged(const GptModel* m, const Corpus* ragged, const Corpus* equal, int context) {
    char label[64];
    if (!time_for(2 * m->seconds, "ragged documents")) return;
    Speed a = run_train(m, ragged, context, "");
    snprintf(label, sizeof label, "ragged, mean %.0f of %d", ragged->mean, context);
    show_speed(m, label, a, ragged, context);
    Speed b = run_train(m, equal, context, "");
    snprintf(label, sizeof label, "equal ones of %.0f of %d", equal->mean, context);
    show_speed(m, label, b, equal, context);
    if (a.tokens <= 0 || b.tokens <= 0) return;
    printf("  ragged documents run at %.1f %% of equal ones of the same work\n", 100 * a.tokens / b.tokens);
    snprintf(label, sizeof label, "ragged documents of context %d", context);
    record(m->name, label, 100 * a.tokens / b.tokens, "% of equal ones", 0);
}

static void bench_choices(const GptModel* m, const Corpus* full, int context) {
    static const char* const choices[] = {"--device attention=own", "--device attention=cudnn"};
    for (int i = 0; i < COUNT(choices) && limits->is_cuda; i++)
        if (time_for(m->seconds, choices[i]))
            show_speed(m, choices[i], run_train(m, full, context, choices[i]), full, context);
}

static void bench_train(void) {
    int context = options.quick ? 64 : CONTEXT, far = 8 * context;
    char command[128];
    snprintf(work, sizeof work, "/tmp/ragged-bench-XXXXXX");
    if (!mkdtemp(work)) exit((perror("bench_gpu"), 1));
    Corpus full = write_shard("full", context, context), ragged = write_shard("ragged", 0, context);
    Corpus equal = write_shard("equal", (int)(ragged.s2 + 0.5), context);
    Corpus far_ragged = write_shard("far_ragged", 0, far);
    Corpus far_equal = write_shard("far_equal", (int)(far_ragged.s2 + 0.5), far);
    const GptModel *m = options.quick ? quick_models : all_models, *small = m;
    // the most important first, in case the time runs out
    bench_beside_peer(small, &full, context);
    bench_ragged(small, &ragged, &equal, context);
    if (!options.quick) bench_beside_peer(&m[3], &full, context);
    bench_ragged(small, &far_ragged, &far_equal, far);
    if (!options.quick) bench_beside_peer(&m[2], &full, context);
    if (!options.quick) bench_beside_peer(&m[1], &full, context);
    bench_choices(small, &full, context);
    snprintf(command, sizeof command, "rm -r %s", work);
    if (system(command)) fprintf(stderr, "bench_gpu: cannot remove %s\n", work);
}
