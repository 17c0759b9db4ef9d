// bench_plan.c - the planner for unlike groups (plan_flex): how long it plans, and how close to the lower bound.
//
//   build/release/dev/bench_plan                                   all cells
//   build/release/dev/bench_plan RANKS                             those of so many ranks
//   build/release/dev/bench_plan MACHINE LENGTHS N K BATCHES       one cell, quickly; behind it perhaps: rounds
//   build/release/dev/bench_plan steps free|rounds [FILE]...       what steps take, for comparing planners
//
// A cell is a machine, a distribution of lengths under a limit of 192K, N ranks of nodes of 8 and K documents a step;
// batches are drawn with seed 1. The gap is predicted makespan / L3 - 1 (plan/cost/bound.h); then
// over Bounds.beside, the closest bound of all plans, and over Bounds.alone, of plans that hide no exchange under other
// documents, which the search aims at. The time is all of planning: checks, sorting, search, bounds, micro-batches; one
// thread, in processor time, because other programs may share the core. Each batch is planned RUNS times: the least of
// these is what planning takes, the median what it takes while the machine is as busy as now. In the record the limit
// beside a figure is the wanted one.
//
// steps: a line a cell of the second table of dev/results/planning.md, planned for free ranks or for rounds, with lists
// of lengths of one's own.

#include <unistd.h>

#include "dev/bench.h"
#include "dev/lengths.h"
#include "plan/base/disk.h"
#include "plan/search/machine_asked.h"
#include "plan/published/published.h"
#include "test/checks.h"

enum { NODE = 8, CONTEXT = 196608, SEED = 1, RUNS = 5 };

typedef struct Cell {
    int ranks, docs;
    double wanted_gap, wanted_ms;  // in the mean; 0: nothing is
} Cell;

static const double wanted_worst_gap = 0.08, wanted_beside = 0.03;

typedef struct Figures {
    double ms;  // predicted, mean
    double gap_mean, gap_worst;
    double beside_mean, beside_worst, alone_mean;  // over Bounds.beside, alone
    double us_mean, us_worst;                      // of the least of each batch's runs
    double us_median;                              // mean of the medians of each batch's runs
} Figures;

static void stop(const char* message) {
    fprintf(stderr, "bench_plan: %s\n", message);
    exit(1);
}

static Setting open_setting(const char* machine_name, int ranks, GroupCost* groups) {
    char err[ERR_BYTES];
    Machine machine;
    Setting setting;
    const char* text = machine_builtin(machine_name);
    if (!text) stop("no such machine");
    if (machine_parse(&machine, text, strlen(text), err) < 0 ||
        machine_setting(&setting, &machine, ranks, NODE, CONTEXT, groups, err) < 0)
        stop(err);
    return setting;
}

static void* need(size_t bytes) {
    void* memory = malloc(bytes);
    if (!memory) stop("no memory");
    return memory;
}

static Lengths* open_lengths(const char* name, int capacity) {
    char err[ERR_BYTES];
    uint64_t size = 0;
    int fd = strchr(name, '/') ? disk_open(name, &size, err) : -1;
    if (strchr(name, '/') && fd < 0) stop(err);
    if (fd < 0) {
        Lengths* drawn = lengths_open(name, CONTEXT, capacity, err);
        if (!drawn) stop(err);
        return drawn;
    }
    char* text = (char*)need((size_t)size);
    int64_t n = disk_read_at(fd, 0, text, (size_t)size);
    Lengths* listed = n == (int64_t)size ? lengths_parse(text, (size_t)size, CONTEXT, err) : NULL;
    if (!listed) stop(n == (int64_t)size ? err : "a list of lengths cannot be read");
    close(fd), free(text);
    return listed;
}

static Figures measure(const char* machine_name, const char* lengths_name, int ranks, int docs, int batches,
                       int rounds) {
    char err[ERR_BYTES];
    Plan plan;
    Prediction prediction;
    Figures f = {0};
    GroupCost* groups = (GroupCost*)need(sizeof(GroupCost) * ((size_t)ranks + 1));
    Setting setting = open_setting(machine_name, ranks, groups);
    setting.rounds = rounds;
    Lengths* lengths = open_lengths(lengths_name, setting.limits.capacity);
    int* drawn = (int*)need(sizeof(int) * (size_t)docs);
    Arena arena = {0};
    for (int b = 0; b < batches; b++) {
        double us[RUNS];
        lengths_draw(lengths, drawn, docs, SEED, b);
        for (int run = 0; run < RUNS; run++) {
            arena_reset(&arena, (ArenaMark){0});
            double start = processor_seconds();
            if (plan_flex(&plan, &prediction, b, drawn, docs, &setting, &arena, err) < 0) stop(err);
            us[run] = 1e6 * (processor_seconds() - start);
            if (rounds && run == 0)
                for (run = 1; run < RUNS; run++) us[run] = us[0];
        }
        f.us_median += bench_median(us, RUNS) / batches;  // sorts them
        f.us_mean += us[0] / batches, f.us_worst = MAX(f.us_worst, us[0]);
        f.ms += prediction.makespan / batches;
        double gap = prediction.bounds.l3 > 0 ? prediction.makespan / prediction.bounds.l3 - 1 : 0;
        f.gap_mean += gap / batches, f.gap_worst = MAX(f.gap_worst, gap);
        double beside = prediction.makespan / prediction.bounds.beside - 1;
        f.beside_mean += beside / batches, f.beside_worst = MAX(f.beside_worst, beside);
        f.alone_mean += (prediction.makespan / prediction.bounds.alone - 1) / batches;
        if (plan_check(&plan, drawn, docs, &setting.limits, &arena, err) < 0) stop(err);
    }
    lengths_close(lengths);
    arena_free(&arena);
    free(drawn), free(groups);
    return f;
}

static void print_head(void) {
    printf("flex, 100 batches a cell (in brackets: wanted; worst gap %.0f %%); <- behind what misses it\n\n",
           100 * wanted_worst_gap);
    printf(
        "machine, lengths     ranks x      over L3, %%          beside, %%          alone, %%  planning, us of a "
        "processor\n"
        "                     documents    mean       worst    mean (%.0f)  worst  mean      mean           worst  "
        "median\n",
        100 * wanted_beside);
}

// "<-" stands behind a line that misses a wanted figure.
static void print(const char* machine, const char* lengths, const Figures* f, const Cell* cell) {
    int missed = f->beside_mean > wanted_beside || (cell->wanted_gap > 0 && f->gap_mean > cell->wanted_gap) ||
                 f->gap_worst > wanted_worst_gap || (cell->wanted_ms > 0 && f->us_mean > 1e3 * cell->wanted_ms);
    char name[80], gap[16] = "", us[16] = "";
    snprintf(name, sizeof name, "%s, %s", machine, lengths);
    if (cell->wanted_gap > 0) snprintf(gap, sizeof gap, "(%.0f)", 100 * cell->wanted_gap);
    if (cell->wanted_ms > 0) snprintf(us, sizeof us, "(%.0f)", 1e3 * cell->wanted_ms);
    printf("%-20s %4d x %4d  %5.2f %-4s %5.2f   %5.2f %9.2f     %5.2f  %8.0f %-7s %7.0f %7.0f%s\n", name, cell->ranks,
           cell->docs, 100 * f->gap_mean, gap, 100 * f->gap_worst, 100 * f->beside_mean, 100 * f->beside_worst,
           100 * f->alone_mean, f->us_mean, us, f->us_worst, f->us_median, missed ? "   <-" : "");
    fflush(stdout);
}

static void record(const char* name, const Figures* f, const Cell* cell) {
    char what[160];
    snprintf(what, sizeof what, "plan: gap, mean, %s", name);
    bench_record(what, 100 * f->gap_mean, "%", 100 * cell->wanted_gap);
    snprintf(what, sizeof what, "plan: gap, worst of 100, %s", name);
    bench_record(what, 100 * f->gap_worst, "%", 100 * wanted_worst_gap);
    snprintf(what, sizeof what, "plan: over the closest bound, mean, %s", name);
    bench_record(what, 100 * f->beside_mean, "%", 100 * wanted_beside);
    snprintf(what, sizeof what, "plan: time, %s", name);
    bench_record(what, f->us_mean, "us", 1e3 * cell->wanted_ms);
}

// Prints the cells of dev/results/planning.md's second table: predicted ms, mean, and over the bounds.
static void steps(int rounds, char** files, int n_files) {
    static const int sizes[][3] = {{64, 128, 20}, {64, 512, 20}, {256, 2048, 4}};
    static const char* const drawn[] = {"wikipedia", "prolong", "github", "sft"};
    static const char* const machines[] = {"flexsp-7b", "a100-7b", "h200-8b"};
    double sum = 0;
    for (int i = 0; i < COUNT(sizes); i++)
        for (int m = 0; m < COUNT(machines); m++)
            for (int l = 0; l < COUNT(drawn) + n_files; l++) {
                const char* name = l < COUNT(drawn) ? drawn[l] : files[l - COUNT(drawn)];
                const char* base = strrchr(name, '/') ? strrchr(name, '/') : name;
                Figures f = measure(machines[m], name, sizes[i][0], sizes[i][1], sizes[i][2], rounds);
                printf("%3d x %4d  %-9s  %-14s  %-6s  %10.3f ms  L3 %5.2f  beside %5.2f  alone %5.2f %%  %9.0f us\n",
                       sizes[i][0], sizes[i][1], machines[m], base, rounds ? "rounds" : "free", f.ms, 100 * f.gap_mean,
                       100 * f.beside_mean, 100 * f.alone_mean, f.us_mean);
                fflush(stdout);
                sum += f.ms;
            }
    printf("sum %.3f ms\n", sum);
}

int main(int argc, char** argv) {
    static const Cell cells[] = {{64, 64, 0.04, 0},     {64, 128, 0.03, 0},   {64, 256, 0.02, 0},
                                 {64, 512, 0.01, 0.3},  {256, 2048, 0.01, 4}, {1024, 2048, 0.03, 0},
                                 {1024, 4096, 0.02, 15}};
    static const char* const machines[] = {"a100-7b", "h200-8b", "flexsp-7b"};
    static const char* const lengths[] = {"wikipedia", "prolong"};
    int ranks = argc == 2 ? atoi(argv[1]) : 0;
    if (argc > 2 && !strcmp(argv[1], "steps")) {
        int rounds = !strcmp(argv[2], "rounds");
        if (!rounds && strcmp(argv[2], "free")) stop("steps are free or rounds");
        steps(rounds, argv + 3, argc - 3);
        return 0;
    }
    if (argc != 1 && argc != 6 && argc != 7 && ranks < 1)
        stop("arguments are none, or RANKS, or MACHINE LENGTHS RANKS DOCUMENTS BATCHES [rounds]");
    if (argc >= 6) {
        Cell cell = {atoi(argv[3]), atoi(argv[4]), 0, 0};
        if (cell.ranks < 1 || cell.docs < 1 || atoi(argv[5]) < 1) stop("ranks, documents and batches are from 1 on");
        for (int i = 0; i < COUNT(cells); i++)
            if (cells[i].ranks == cell.ranks && cells[i].docs == cell.docs) cell = cells[i];
        Figures f = measure(argv[1], argv[2], cell.ranks, cell.docs, atoi(argv[5]), argc == 7);
        print(argv[1], argv[2], &f, &cell);
        return 0;
    }
    print_head();
    for (int m = 0; m < COUNT(machines); m++)
        for (int l = 0; l < COUNT(lengths); l++)
            for (int i = 0; i < COUNT(cells); i++) {
                char name[100];
                if (ranks && cells[i].ranks != ranks) continue;
                Figures f = measure(machines[m], lengths[l], cells[i].ranks, cells[i].docs, 100, 0);
                print(machines[m], lengths[l], &f, &cells[i]);
                snprintf(name, sizeof name, "%s, %s, %d ranks x %d", machines[m], lengths[l], cells[i].ranks,
                         cells[i].docs);
                record(name, &f, &cells[i]);
            }
    return 0;
}
