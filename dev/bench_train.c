// bench_train.c - the whole trainer: tokens a second of GPT-2 124M on full rows and on short documents, memory beside
// the table printed at the start, and the same model in PyTorch where $PYTHON has torch.
//
//   build/release/dev/bench_train [bf16|fp32]     (default: both)
//
// Every run is the program itself (build/release/train) on token shards of random tokens; figures are medians of its
// log.
#define _GNU_SOURCE
#include "dev/bench.h"
#include "kernels/host.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 5, BATCH_TOKENS = 4096 };

typedef struct Result {
    double tokens_per_second;          // medians, the first step left out
    double peak_bytes, planned_bytes;  // resident memory of the process; the table's total
    double flops;                      // a second
} Result;

// Returns the bytes of "memory 3456.7 MiB", or GiB, in what the program printed.
static double planned_bytes(const char* path) {
    char line[512], unit[4];
    double bytes = 0, size;
    FILE* file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "memory %lf %3s", &size, unit) == 2) bytes = size * (unit[0] == 'G' ? 1 << 30 : 1 << 20);
    if (file) fclose(file);
    return bytes;
}

static Result run(const char* work, const char* dtype, const char* shard) {
    char command[2048], path[600];
    struct rusage usage;
    Result r = {0};
    int status = 0;
    snprintf(command, sizeof command,
             "rm -rf %s/run; exec build/release/train --preset gpt2-124m --data %s/%s --val %s/%s --batch-tokens %d "
             "--steps %d --dtype %s --eval-every 0 --sample-every 0 --save-every 0 --out %s/run > %s/out",
             work, work, shard, work, shard, BATCH_TOKENS, STEPS, dtype, work, work);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", command, (char*)NULL);
        _exit(127);
    }
    wait4(pid, &status, 0, &usage);
    if (status) exit((fprintf(stderr, "bench_train: %s ended with %d\n", command, status), 1));
    snprintf(path, sizeof path, "%s/run/log.jsonl", work);
    r.tokens_per_second = bench_median_of_log(path, "tokens_per_second", 1);
    r.flops = 1e9 * bench_median_of_log(path, "mfu", 1) * bench_median_of_log(path, "matmul_gflops", 0);
    r.peak_bytes = 1024.0 * (double)usage.ru_maxrss;
    snprintf(path, sizeof path, "%s/out", work);
    r.planned_bytes = planned_bytes(path);
    return r;
}

// Returns tokens a second of dev/peer_torch.py, 0 without torch.
static double run_peer(const char* dtype) {
    char command[256];
    double speed = 0;
    snprintf(command, sizeof command,
             "OPENBLAS_CORETYPE=${OPENBLAS_CORETYPE:-SkylakeX} timeout 240 ${PYTHON:-python3} dev/peer_torch.py %s "
             "2>/dev/null",
             dtype);
    FILE* pipe = popen(command, "r");
    if (!pipe || fscanf(pipe, "%lf", &speed) != 1) speed = 0;
    if (pipe) pclose(pipe);
    return speed;
}

static void bench(const char* work, const char* dtype) {
    char name[128];
    Result full = run(work, dtype, "full.bin"), ragged = run(work, dtype, "ragged.bin");
    double peer = run_peer(dtype);
    char err[ERR_BYTES];
    team_open(host_cores("", 0));
    double limit = cpu_peak(kernels_find("cpu", "auto", err), strcmp(dtype, "bf16") ? DT_F32 : DT_BF16);
    double limit_tokens = full.flops > 0 ? limit / full.flops * full.tokens_per_second : 0;
    printf("  %s  full rows 4 x 1024  %7.0f tokens/s, %.0f GFLOP/s, %4.1f %% of the registers' %.0f\n", dtype,
           full.tokens_per_second, full.flops * 1e-9, 100 * full.flops / limit, limit * 1e-9);
    printf("        short documents    %7.0f tokens/s, %4.1f %% of full rows (mean length 300)\n",
           ragged.tokens_per_second, 100 * ragged.tokens_per_second / full.tokens_per_second);
    printf("        memory             %7.0f MiB resident at most, %.1f %% of the table's %.0f MiB\n",
           full.peak_bytes / (1 << 20), 100 * full.peak_bytes / full.planned_bytes, full.planned_bytes / (1 << 20));
    if (peer > 0)
        printf("        PyTorch            %7.0f tokens/s; ratio %.2f\n", peer, full.tokens_per_second / peer);
    else printf("        PyTorch            not found (PYTHON=python3 without torch)\n");
    snprintf(name, sizeof name, "train_gpt2_124m_%s_4x1024", dtype);
    bench_record(name, full.tokens_per_second, "tokens/s", limit_tokens);
    snprintf(name, sizeof name, "train_gpt2_124m_%s_mean300", dtype);
    bench_record(name, ragged.tokens_per_second, "tokens/s", full.tokens_per_second);
    snprintf(name, sizeof name, "memory_gpt2_124m_%s", dtype);
    bench_record(name, full.peak_bytes, "bytes", full.planned_bytes);
    snprintf(name, sizeof name, "pytorch_gpt2_124m_%s_4x1024", dtype);
    if (peer > 0) bench_record(name, peer, "tokens/s", limit_tokens);
}

int main(int argc, char** argv) {
    char work[] = "/tmp/ragged-bench-XXXXXX", path[64], command[128];
    if (!mkdtemp(work)) return perror("bench_train"), 1;
    snprintf(path, sizeof path, "%s/full.bin", work);
    bench_write_shard(path, 0, 1 << 17);
    snprintf(path, sizeof path, "%s/ragged.bin", work);
    bench_write_shard(path, 300, 1 << 17);
    printf("training GPT-2 124M, %d tokens a step, median of %d steps\n", BATCH_TOKENS, STEPS - 1);
    const char* dtypes[] = {"bf16", "fp32"};
    for (int i = 0; i < 2; i++)
        if (argc < 2 || !strcmp(argv[1], dtypes[i])) bench(work, dtypes[i]);
    snprintf(command, sizeof command, "rm -r %s", work);
    return system(command) ? 1 : 0;
}
