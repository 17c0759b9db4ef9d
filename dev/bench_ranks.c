// bench_ranks.c - several ranks on this machine's cores: what the engine costs one rank, how two ranks scale at fixed
// work, and what sharing documents costs them.
//
//   build/release/dev/bench_ranks
//
// Every run is the program itself with one thread a rank; kinds of runs alternate, and figures are medians of their
// logs. Two ranks on two cores share caches and memory: the limit beside them is two independent runs at the same time.
#define _GNU_SOURCE
#include "dev/bench.h"

#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 3, STEPS = 5 };

static char work[] = "/tmp/ragged-bench-XXXXXX";

// Runs train on this project's own sources, by bytes.
#define MODEL                                                                                                       \
    "--data plan data run kernels --layers 4 --width 256 --heads 4 --context 256 --batch-tokens 8192 --dtype fp32 " \
    "--threads 1 --eval-every 0 --sample-every 0 --save-every 0 --plan static "

typedef struct Kind {
    const char *name, *launch, *options;
    int copies;  // independent runs at the same time
    double speed[ROUNDS], exposed[ROUNDS];
} Kind;

static double log_median(int copy, const char* member) {
    char path[600];
    snprintf(path, sizeof path, "%s/run%d/log.jsonl", work, copy);
    return bench_median_of_log(path, member, 1);
}

// Measures tokens a second of all copies together, and the share of a step in which rank 0 waited for others.
static void run(Kind* kind, int round) {
    char command[4096];
    size_t n = (size_t)snprintf(command, sizeof command, "rm -rf %s/run*; ", work);
    for (int i = 0; i < kind->copies; i++)
        n += (size_t)snprintf(command + n, sizeof command - n,
                              "%s build/release/train --steps %d " MODEL
                              "%s --out %s/run%d > %s/out%d 2>&1 & pids=\"$pids $!\"; ",
                              kind->launch, STEPS, kind->options, work, i, work, i);
    snprintf(command + n, sizeof command - n, "for p in $pids; do wait $p || exit 1; done");
    if (system(command)) exit((fprintf(stderr, "bench_ranks: %s failed; see %s\n", kind->name, work), 1));
    kind->speed[round] = 0;
    for (int i = 0; i < kind->copies; i++) kind->speed[round] += log_median(i, "tokens_per_second");
    kind->exposed[round] = log_median(0, "exposed_seconds") / log_median(0, "seconds");
}

int main(void) {
#define MPIRUN "mpirun --oversubscribe --bind-to core -n "
    static Kind kinds[] = {
        {.name = "one rank", .launch = "taskset -c 0", .options = "", .copies = 1},
        {.name = "one rank, started by mpirun", .launch = MPIRUN "1 taskset -c 0", .options = "", .copies = 1},
        {.name = "two independent runs at once", .launch = "", .options = "", .copies = 2},
        {.name = "2 ranks, documents on one rank", .launch = MPIRUN "2", .options = "", .copies = 1},
        {.name = "2 ranks, ZeRO-3", .launch = MPIRUN "2", .options = "--zero 3", .copies = 1},
        {.name = "2 ranks share heads", .launch = MPIRUN "2", .options = "--cp 2,kind=ulysses", .copies = 1},
        {.name = "2 ranks in a ring", .launch = MPIRUN "2", .options = "--cp 2,kind=ring", .copies = 1},
    };
    char command[128], name[128];
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    if (system("command -v mpirun > /dev/null")) return puts("several ranks: mpirun is not here, nothing measured"), 0;
    if (!mkdtemp(work)) return perror("bench_ranks"), 1;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < COUNT(kinds); i++) run(&kinds[i], round);
    printf("several ranks, one thread each, median of %d runs of %d steps\n", ROUNDS, STEPS);
    double one = bench_median(kinds[0].speed, ROUNDS);
    for (int i = 0; i < COUNT(kinds); i++) {
        double speed = bench_median(kinds[i].speed, ROUNDS), exposed = bench_median(kinds[i].exposed, ROUNDS);
        printf("  %-32s %7.0f tokens/s, %5.3f of one rank, %4.1f %% of the time waiting\n", kinds[i].name, speed,
               speed / one, 100 * exposed);
        snprintf(name, sizeof name, "ranks: %s", kinds[i].name);
        bench_record(name, speed, "tokens/s", i < 2 ? one : 2 * one);
    }
    snprintf(command, sizeof command, "rm -r %s", work);
    return system(command) ? 1 : 0;
}
