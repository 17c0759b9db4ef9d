// test_probe.c - where a run's cost model comes from: --probe and the file that it leaves, --machine, an estimate. Runs
// the whole program; several ranks where mpirun is.
#include "plan/cost/machine.h"
#include "run/step/probe.h"
#include "test/program.h"

#define TINY                                                                                            \
    "--data $W/corpus --layers 2 --width 64 --heads 4 --context 128 --batch-tokens 512 --eval-every 0 " \
    "--sample-every 0 --save-every 0 --dtype fp32 --threads 1 --verbose "
// On two ranks, by these options.
#define TWO "timeout 120 mpirun --oversubscribe -n 2 $P " TINY "--out $W/run "

static char cached[700];  // the one file in the cache, empty when there is none

static int find_cached(void) {
    CHECK_SH(0, "find $W/cache -type f 2>/dev/null | sort");
    snprintf(cached, sizeof cached, "%.*s", (int)strcspn(output, "\n"), output);
    return lines_in(output);
}

static Machine read_cached(void) {
    static char text[1 << 16];
    char err[ERR_BYTES];
    Machine machine = {.cost = {.per_token = NAN}};
    size_t n = read_text(cached, text, sizeof text);
    int bad = machine_parse(&machine, text, n, err);
    if (bad) printf("    %s: %s\n", cached, err);
    CHECK(!bad);
    return machine;
}

// A run of some steps on one rank; its status.
static int run(const char* options) {
    sh("rm -rf $W/run");
    return sh("$P " TINY "--steps 3 --out $W/run %s", options);
}

// ---- how times become constants

static ProbeTime row_of(double length, int n, double quadratic, double linear, double micro_batch) {
    ProbeTime row = {n * length * length, n * length, 0};
    row.ms = quadratic * row.s2 + linear * row.tokens + micro_batch;
    return row;
}

CLAIM(a_fit_finds_the_constants_of_exact_times) {
    const double truth[][3] = {{1e-5, 0.02, 1.5}, {0, 0.02, 1.5}, {1e-5, 0, 1.5}, {1e-5, 0.02, 0}, {0, 0.02, 0}};
    for (int t = 0; t < COUNT(truth); t++) {
        const double* c = truth[t];
        ProbeTime rows[] = {row_of(1024, 1, c[0], c[1], c[2]), row_of(64, 16, c[0], c[1], c[2]),
                            row_of(512, 1, c[0], c[1], c[2]), row_of(16, 8, c[0], c[1], c[2])};
        double found[3];
        probe_fit(found, rows, COUNT(rows));
        for (int i = 0; i < 3; i++) CHECK_CLOSE(found[i], c[i], 1e-9 * (c[i] + rows[3].ms));
    }
}

// Noise that a line through these times would explain with a negative constant.
CLAIM(constants_are_never_negative) {
    FOR_SEEDS(seed, 0, 200) {
        ProbeTime rows[6];
        double c[3];
        for (int i = 0; i < COUNT(rows); i++) {
            rows[i] = row_of(16 << i, 1 + i % 3, 1e-9, 0.01, 1e-3);
            rows[i].ms *= 0.3 + random_uniform(seed, (uint64_t)i);
        }
        probe_fit(c, rows, COUNT(rows));
        for (int i = 0; i < 3; i++) CHECK(c[i] >= 0 && isfinite(c[i]));
        CHECK(c[0] + c[1] + c[2] > 0);
    }
}

CLAIM(rows_that_say_too_little_are_explained_with_few_constants) {
    ProbeTime one = row_of(100, 1, 0, 0.01, 0), same[] = {one, one, one};
    double c[3];
    probe_fit(c, &one, 1);
    CHECK_CLOSE(c[0] * one.s2 + c[1] * one.tokens + c[2], one.ms, 1e-12);
    CHECK(c[0] == 0 && c[2] == 0);
    probe_fit(c, same, 3);
    CHECK_CLOSE(c[1], 0.01, 1e-12);
}

// Relative errors count: a short row's as much as a long one's.
CLAIM(short_rows_weigh_as_much_as_long_ones) {
    ProbeTime rows[] = {row_of(1, 1000, 0, 1, 0), row_of(1, 1, 0, 1, 0)};
    rows[0].ms *= 1.1;
    rows[1].ms /= 1.1;
    double c[3];
    probe_fit(c, rows, 2);
    // To fit both, a micro-batch's constant would be negative. What is left is linear alone, the least of
    // (c / 1.1 - 1)^2 + (1.1 c - 1)^2; absolute errors would give 1.1.
    CHECK_CLOSE(c[1], (1 / 1.1 + 1.1) / (1 / 1.21 + 1.21), 1e-9);
    CHECK(c[2] == 0);
}

// ---- one rank

CLAIM(without_a_probe_the_model_is_estimated_and_nothing_is_written) {
    CHECK(run("") == 0 && errors[0] == 0 && has_words(output, "!cost    ") && find_cached() == 0);
}

CLAIM(a_probe_leaves_a_file_and_no_run) {
    sh("rm -rf $W/run");
    double started = now_seconds(), median = NAN, worst = NAN;
    CHECK_SH(0, "$P " TINY "--out $W/run --probe");
    CHECK(strstr(output, "\nprobing rows of documents, 3 s or more\nprobing "));  // while it is silent otherwise
    CHECK(now_seconds() - started < 30);
    const char* at = strstr(output, "held-out error: median");
    CHECK(at && sscanf(at, "held-out error: median %lf %%, worst %lf", &median, &worst) == 2);
    CHECK(median >= 0 && worst >= median);
    printf("    held-out error: median %.1f %%, worst %.1f %%\n", median, worst);
    CHECK(find_cached() == 1);
    CHECK(strstr(cached, "/cache/ragged/cost-") && strstr(output, cached));
    Machine m = read_cached();
    CHECK(m.cost.per_token > 0 && m.cost.step > 0 && m.cost.quadratic >= 0 && m.cost.micro_batch >= 0);
    CHECK(m.cost.layers == 2 && m.cost.channels == 64 && m.cost.kv_channels == 64 && m.cost.elem_bytes == 4 &&
          m.heads == 4);
    CHECK(m.cost.link[LINK_INSIDE].n == 0 && m.cost.link[LINK_ACROSS].n == 0);
    CHECK(sh("test -e $W/run") != 0);
}

// Its first steps take about what it says: units and terms are right. This machine may be as busy as it likes, so only
// a factor of ten counts.
CLAIM(the_next_run_finds_what_was_measured) {
    double predicted[3], measured[3];
    Machine m = read_cached();
    CHECK(run("") == 0 && strstr(output, "cost    measured, ") && strstr(output, cached));
    CHECK(strstr(output, filled(" %.3g ms a token, %.3g ms a token^2, %.3g ms a micro-batch, %.3g ms a step",
                                m.cost.per_token, m.cost.quadratic, m.cost.micro_batch, m.cost.step)));
    CHECK(log_values("run", "predicted_ms", predicted, 3) == 3 && log_values("run", "measured_ms", measured, 3) == 3);
    for (int i = 0; i < 3; i++) CHECK(predicted[i] > measured[i] / 10 && predicted[i] < 10 * measured[i]);
}

CLAIM(another_model_does_not_find_it) { CHECK(run("--width 32") == 0 && has_words(output, "!cost    ")); }

CLAIM(a_measured_file_can_be_named) {
    CHECK(run(filled("--width 32 --machine %s", cached)) == 0 && strstr(output, "cost    of --machine ") &&
          strstr(output, cached));
    CHECK(run("--machine a100-7b") == 0 && has_words(output, "cost    of --machine a100-7b\n"));
}

CLAIM(a_broken_file_gets_one_line_and_an_estimate) {
    CHECK_SH(0, "cp %s $W/kept", cached);
    const char* const breaks[] = {"head -c 300 $W/kept",
                                  "cat $W/kept; echo frobnicate 5",
                                  ":",
                                  "head -c 5000 /dev/zero",
                                  "sed s/^linear_ms.*/linear_ms.nan/ $W/kept",
                                  "yes name | head -c 3000000"};
    for (int i = 0; i < COUNT(breaks); i++) {
        CHECK_SH(0, "{ %s ; } > %s", breaks[i], cached);
        CHECK(run("") == 0 && lines_in(errors) == 1 && strstr(errors, cached) && has_words(output, "!cost    "));
    }
    CHECK_SH(0, "rm %s; cp $W/kept %s", cached, cached);
    CHECK(run("") == 0 && errors[0] == 0 && strstr(output, "cost    measured"));
}

CLAIM(a_machine_that_cannot_be_used_gets_one_line) {
    static const Refusal rows[] = {{"--machine $W/bad", "/bad & 3", 0},
                                   {"--machine $W/dir", "/dir & expected a file", 0},
                                   {"--machine $W/nothing", "/nothing & flexsp-7b", 0},
                                   {"--machine flexsp-8b", "flexsp-8b & flexsp-7b", 0},
                                   {"--machine hydraulis-7b", "hydraulis-7b & a rank alone has no times", 0}};
    sh("printf 'name x\\nlinear_ms 1\\nquadratic_ms many\\n' > $W/bad; mkdir -p $W/dir");
    CHECK_REFUSALS(TINY "--out $W/refused", rows);
}

CLAIM(a_probe_without_a_place_for_its_file_says_so) {
#define NOWHERE "env -u HOME -u XDG_CACHE_HOME $P " TINY "--out $W/run "
    sh("rm -rf $W/run; : > $W/file");
    CHECK_REFUSED("--probe & XDG_CACHE_HOME", NOWHERE "--probe");
    CHECK(sh(NOWHERE "--steps 1") == 0 && errors[0] == 0 && has_words(output, "!cost    "));
    CHECK_REFUSED("/file", "XDG_CACHE_HOME=$W/file $P " TINY "--out $W/run2 --probe");
    CHECK_SH(0, "env -u XDG_CACHE_HOME HOME=$W/home $P " TINY "--out $W/run2 --probe");
    CHECK_SH(0, "ls $W/home/.cache/ragged/cost-*.txt");
    CHECK_SH(0, "XDG_CACHE_HOME=relative HOME=$W/home $P " TINY "--steps 1 --out $W/run2");
    CHECK_SAID("cost    measured");
}

// ---- several ranks

// first: bytes of the shortest message.
static void check_table(const LinkTable* link, double first) {
    CHECK(link->n >= 4 && link->bytes[0] == first);
    for (int i = 0; i < link->n; i++) CHECK(link->ms[i] > 0 && (i == 0 || link->ms[i] >= link->ms[i - 1]));
}

// Ranks that did not have the same model would soon make unlike plans, and the run would end.
CLAIM(two_ranks_measure_once_and_plan_alike) {
    if (!has_mpirun()) SKIP("mpirun is not here");
    CHECK_SH(0, "rm -rf $W/cache $W/run; " TWO "--steps 1");
    CHECK_SAID("cost    estimated from the processor's peak");
    CHECK_SH(0, TWO "--probe");
    CHECK(find_cached() == 1);
    Machine m = read_cached();
    check_table(&m.cost.link[LINK_INSIDE], 1024);
    check_table(&m.cost.sum[LINK_INSIDE], 512);  // of two ranks each sends a half
    CHECK(m.cost.link[LINK_ACROSS].n == 0);
    // Rows of this model take less than a millisecond: what others do on the machine may cost as much as a block.
    for (int again = 0; again < 3 && m.again <= 0; again++) {
        CHECK_SH(0, TWO "--probe");
        m = read_cached();
    }
    CHECK(m.again > 0 && m.overlap >= 1 && m.overlap <= 2);
    CHECK_SH(0, TWO "--steps 6 --plan refresh=2 --capacity 128");
    CHECK_SAID("cost    measured,  & 1 MiB inside a node");
    // One rank is another machine, and says nothing of an estimate.
    CHECK(run("") == 0 && has_words(output, "!cost    "));
}

// A layout of groups takes what they were measured to take.
CLAIM(layouts_know_groups_that_were_measured) {
#define LAYOUT TWO "--explain layout --tp 2 --capacity 128"
    if (!has_mpirun()) SKIP("mpirun is not here");
    CHECK_SH(0, "rm -rf $W/cache $W/run; " LAYOUT);
    CHECK_SAID("times there are estimated & tensor-parallel exchanges");
    CHECK_SH(0, TWO "--probe && " TWO "--probe --tp 2 && " LAYOUT);
    CHECK_SH(0, LAYOUT);
    CHECK_SAID("times there are measured & !tensor-parallel exchanges");
}

CLAIM(links_between_machines_are_measured_apart) {
    if (!has_mpirun()) SKIP("mpirun is not here");
    for (int stage = 1; stage <= 3; stage += 2) {
        CHECK_SH(0,
                 "rm -rf $W/cache $W/run; timeout 120 mpirun --oversubscribe -n 3 $P " TINY
                 "--probe --plan node-size=2 --zero %d --out $W/run",
                 stage);
        CHECK(find_cached() == 1);
        Machine m = read_cached();
        check_table(&m.cost.link[LINK_INSIDE], 1024);
        check_table(&m.cost.sum[LINK_INSIDE], 512);  // of two ranks each sends a half
        check_table(&m.cost.link[LINK_ACROSS], 1024);
    }
}

// Of every kind of pipeline in the list a file, which strategies find, and a run that has such pipelines alone.
CLAIM(strategies_measure_each_kind_of_pipeline) {
#define PIPELINES "--capacity 256 --strategies '4xtp1; tp2+2xtp1; 2xtp1pp2' --out $W/run "
    if (!has_mpirun()) SKIP("mpirun is not here");
    CHECK_SH(0, "rm -rf $W/cache $W/run; timeout 120 mpirun --oversubscribe -n 4 $P " TINY PIPELINES "--probe");
    CHECK_SAID(
        "strategy 4xtp1 & 4xtp1pp1: held-out & strategy tp2+2xtp1 & 1xtp2pp1: held-out & 2xtp1pp1: held-out & "
        "strategy 2xtp1pp2 & 2xtp1pp2: held-out");
    CHECK(find_cached() == 4);
    Machine m = read_cached();
    CHECK(m.cost.per_token > 0 && m.cost.step > 0);
    CHECK_SH(0, "timeout 120 mpirun --oversubscribe -n 4 $P " TINY PIPELINES "--steps 2");
    CHECK_SAID("cost    measured, & cost    measured, & cost    measured, & !estimated");
    CHECK_SH(0, "rm -r $W/run; " TWO "--steps 2");
    CHECK_SAID("cost    measured,");
}

// Every stage measures its own layers. The file is of the mean stage, wherever the layers are: of the first one alone
// it would be seven times another. It lets a pipeline plan, and nobody else.
CLAIM(stages_measure_their_own_layers) {
#define PIPELINE TWO "--layers 8 --layout 'stage layers %d; stage layers %d' "
    Machine m[2];
    if (!has_mpirun()) SKIP("mpirun is not here");
    for (int i = 0; i < 2; i++) {
        CHECK_SH(0, "rm -rf $W/cache $W/run; " PIPELINE "--probe", 1 + 6 * i, 7 - 6 * i);
        CHECK(find_cached() == 1);
        m[i] = read_cached();
        check_table(&m[i].cost.link[LINK_INSIDE], 1024);
    }
    CHECK(m[0].cost.per_token < 3 * m[1].cost.per_token && m[1].cost.per_token < 3 * m[0].cost.per_token);
    CHECK_SH(0, PIPELINE "--steps 2", 7, 1);
    CHECK_SAID("cost    measured,");
    CHECK_SH(0, PIPELINE "--steps 2", 4, 4);
    CHECK_SAID("!cost    ");
}

PROGRAM_TEST {
    setenv("XDG_CACHE_HOME", path_of("cache"), 1);
    write_ragged_corpus(40, 7.6, 1);
}
