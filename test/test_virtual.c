// test_virtual.c - the whole program on virtual ranks (--device virtual): its steps take what the cost model predicts
// of their plans, the same digits in every run, over a CPU the same bits. Started alone; it starts mpirun itself.
#include <math.h>

#include "plan/base/base.h"
#include "test/program.h"

#define SHAPE "--layers 2 --width 32 --context 16384 --batch-tokens 49152 "

enum { STEPS = 2, MOST_LOG = 1 << 20 };

// ---- what is trained on, and on what

// Two sources of lengths: most documents short and a few long; all of about one length.
static void write_corpora(void) {
    static char text[16384];
    char name[64];
    CHECK_SH(0, "mkdir -p $W/skewed $W/even $W/mixed $W/blocks");
    for (int d = 0; d < 24; d++) {
        memset(text, 'a', sizeof text);
        snprintf(name, sizeof name, "mixed/%02d.txt", d);
        write_text(name, text, d % 3 ? 5000 : 16000);
    }
    for (int d = 0; d < 240; d++) {
        double u = random_uniform(5, (uint64_t)d);
        int is_even = d % 2, n = is_even ? 2500 + (int)(1500 * u) : (int)exp(4 + 5.6 * u * u);
        memset(text, 'a' + d % 26, sizeof text);
        snprintf(name, sizeof name, "%s/%03d.txt", is_even ? "even" : "skewed", d);
        write_text(name, text, (size_t)MIN(n, (int)sizeof text));
    }
    for (int d = 0; d < 40; d++) {  // of 256 tokens with their end
        memset(text, 'a' + d % 26, sizeof text);
        snprintf(name, sizeof name, "blocks/%03d.txt", d);
        write_text(name, text, 255);
    }
}

// With step_ms, gradients and weights take no time of their own: that is what no plan's prediction has.
static void write_machines(void) {
    put_text("published",
             "name published\nquadratic_ms 5e-6\nlinear_ms 0.18\nmicro_batch_ms 12\nstep_ms 300\n"
             "capacity 5000\ntoken_bytes 2097152\n"
             "group 2 119\ngroup 4 104\ngroup 8 96\ngroup 16 10\n");
    put_text("measured",
             "name measured\nquadratic_ms 2e-5\nlinear_ms 0.05\nmicro_batch_ms 6\nstep_ms 20\ncapacity 4800\n"
             "link inside 1024 0.02\nlink inside 1048576 0.03\nlink inside 67108864 0.4\n"
             "link across 1024 0.04\nlink across 1048576 0.09\nlink across 67108864 3\nmodel 32 4096 2\n");
    put_text("only_matmuls",
             "name only_matmuls\nlinear_ms 0.05\nquadratic_ms 0\ncapacity 16384\n"
             "link inside 0 0\nlink inside 1000000000 0\nmodel 7 64 2\n");
    put_text("two_nics",
             "name two_nics\nquadratic_ms 5e-6\nlinear_ms 0.18\nmicro_batch_ms 12\nstep_ms 300\nnics 2\n"
             "capacity 5000\ntoken_bytes 2097152\n"
             "group 2 119\ngroup 4 104\ngroup 8 96\ngroup 16 10\n");
    // 2^30 parameters; with ZeRO-3 4864 tokens fit on 8 ranks.
    put_text("weights",
             "name weights\nquadratic_ms 5e-6\nlinear_ms 0.18\nmicro_batch_ms 12\n"
             "memory 40 1 8\ntoken_bytes 2097152\ngroup 2 119\ngroup 4 104\ngroup 8 96\ngroup 16 10\n");
    put_text("slow_links",
             "name slow_links\nquadratic_ms 2e-5\nlinear_ms 0.05\nmicro_batch_ms 6\nstep_ms 20\ncapacity 24000\n"
             "link inside 1024 0.02\nlink inside 1048576 0.06\nlink inside 67108864 3\nmodel 32 4096 2\n");
    put_text("no_step",
             "name no_step\nlinear_ms 0.05\nquadratic_ms 1e-5\ncapacity 16384\n"
             "link inside 0 0\nlink inside 1000000000 100\nmodel 2 32 2\n");
}

static int run(int ranks, const char* options, const char* out) {
    return run_on(ranks, out, SHAPE "--steps %d %s", STEPS, options);
}

// ---- times

// more: ms that a step takes besides.
static void check_predicted_with(int ranks, const char* options, double more, double tolerance) {
    double measured[STEPS], predicted[STEPS];
    if (run(ranks, options, "run")) return;
    CHECK(log_values("run", "measured_ms", measured, STEPS) == STEPS);
    CHECK(log_values("run", "predicted_ms", predicted, STEPS) == STEPS);
    for (int i = 0; i < STEPS; i++) {
        predicted[i] += more;
        CHECK_CLOSE(measured[i], predicted[i], tolerance * predicted[i]);
    }
}

static void check_predicted(int ranks, const char* options, double tolerance) {
    check_predicted_with(ranks, options, 0, tolerance);
}

// Nothing is shared, so nothing is rounded to whole tokens or heads: what is left is rounding of sums.
CLAIM(one_rank_takes_exactly_what_is_predicted) {
    check_predicted(1, "--data $W/skewed --machine $W/measured --device virtual --capacity 16384", 1e-12);
}

// Tokens do not always divide, and whoever has the most sets the pace: the model knows it of heads alone.
static void plans_take_what_is_predicted(int ranks) {
    const char *plans[] = {"static --cp 4", "flex", "adaptive"}, *machines[] = {"published", "measured"},
               *data[] = {"skewed", "even"};
    char options[256];
    for (int i = 0; i < 12; i++) {
        snprintf(options, sizeof options,
                 "--heads 16 --device virtual --overlap no --plan %s --machine $W/%s --data $W/%s", plans[i / 4],
                 machines[i % 2], data[i / 2 % 2]);
        // Ranks that share a document of a pass meet in every layer; the model plays the passes of flex as wholes.
        check_predicted(ranks, options, strcmp(plans[i / 4], "flex") ? 0.002 : 0.005);
    }
}

CLAIM(plans_of_8_ranks_take_what_is_predicted) { plans_take_what_is_predicted(8); }
CLAIM(plans_of_16_ranks_on_2_nodes_take_what_is_predicted) { plans_take_what_is_predicted(16); }

// Other systems' planners too: with barriers after each of their rounds, or without.
CLAIM(every_planner_takes_what_is_predicted) {
    static const char* const plans[] = {"flexsp", "hydraulis", "zeppelin", "megatron"};
    char options[256];
    for (int i = 0; i < 2 * COUNT(plans); i++) {
        int is_published = i % 2;
        snprintf(options, sizeof options,
                 "--heads 16 --device virtual --overlap no --plan %s --machine $W/%s --data $W/skewed", plans[i / 2],
                 is_published ? "published" : "measured");
        check_predicted(is_published ? 8 : 16, options, 0.02);
    }
    check_predicted(8, "--device virtual --plan fixed --capacity 16384 --machine $W/measured --data $W/skewed", 0.002);
}

// Tokens elsewhere than their attention; rings whose messages between nodes go through proxies, with a NIC for each
// rank or fewer. Ranks that get tokens of several others meet them one after another, which the model does not know.
CLAIM(remapped_and_routed_steps_take_what_is_predicted) {
    static const char* const cases[] = {"--plan zeppelin,remap=yes --machine $W/published",
                                        "--plan zeppelin,remap=yes --machine $W/measured",
                                        "--cp 16,kind=ring --plan route=yes --machine $W/published",
                                        "--cp 16,kind=ring --plan route=auto --machine $W/measured",
                                        "--cp 16,kind=ring --plan route=yes --machine $W/two_nics"};
    static const double tolerances[] = {0.05, 0.05, 0.005, 0.005, 0.005};
    char options[320];
    double direct[STEPS], routed[STEPS];
    for (int i = 0; i < COUNT(cases); i++) {
        snprintf(options, sizeof options, "--heads 16 --device virtual --overlap no --data $W/skewed %s", cases[i]);
        check_predicted(16, options, tolerances[i]);
    }
    run(16, "--heads 16 --device virtual --data $W/skewed --cp 16,kind=ring --machine $W/published", "direct");
    run(16, "--heads 16 --device virtual --data $W/skewed --cp 16,kind=ring --plan route=auto --machine $W/published",
        "routed");
    CHECK(log_values("direct", "measured_ms", direct, STEPS) == STEPS);
    CHECK(log_values("routed", "measured_ms", routed, STEPS) == STEPS);
    for (int i = 0; i < STEPS; i++) CHECK(routed[i] < 0.8 * direct[i]);
}

// What ZeRO-2 and 3 gather and reduce in every round is in the cost of a round. What else a step moves is not: with
// ZeRO-2 a gather of all weights, 7/8 of them from others at 96 GB/s; with ZeRO-3 two layers and what is no layer (3 %
// of the parameters).
CLAIM(what_zero_moves_in_a_round_takes_what_is_predicted) {
    static const char* const plans[] = {"flex", "flexsp", "static --cp 4"};
    char options[320];
    for (int i = 0; i < 2 * COUNT(plans); i++) {
        snprintf(options, sizeof options,
                 "--arch llama --layers 12 --width 128 --heads 16 --device virtual --overlap no --zero %d "
                 "--capacity 4864 --plan %s "
                 "--machine $W/weights --data $W/skewed",
                 2 + i % 2, plans[i / 2]);
        check_predicted_with(8, options, i % 2 ? 0 : 7 / 8. * 2 * (1 << 30) / 96e6, 0.02);
    }
}

// Any groups anywhere: rings, heads, both. Ranks of a ring whose neighbours are of their own node end before those
// beside another node, and may go on:
// plans that chain such groups at random, in uneven shares, differ by up to 5 %, and by 8 % where some have no share at
// all, and the rest exchange among fewer ranks than the model counts.
CLAIM(any_plan_takes_what_is_predicted) {
    static const struct {
        int ranks;
        const char *machine, *options;
        double tolerance;
    } cases[] = {
        {24, "published", "--plan random --data $W/skewed", 0.05},
        {24, "measured", "--plan random --tp 2 --data $W/skewed", 0.05},
        {24, "published", "--plan flex --cp kind=ring --data $W/skewed", 0.002},
        {24, "measured", "--cp 3,kind=ring --capacity 8000 --data $W/skewed", 0.002},
        {16, "published", "--plan flex --tp 4 --recompute activation --data $W/even", 0.002},
        {16, "measured", "--plan adaptive --tp 2 --data $W/even", 0.002},
        {12, "published", "--plan random --preset llama-tiny --width 64 --arch kv-heads=4 --data $W/skewed", 0.1},
        {64, "measured", "--plan random --batch-tokens 200000 --data $W/skewed", 0.05}};
    char options[256];
    for (int i = 0; i < COUNT(cases); i++) {
        snprintf(options, sizeof options, "--heads 16 --device virtual --overlap no --machine $W/%s %s",
                 cases[i].machine, cases[i].options);
        check_predicted(cases[i].ranks, options, cases[i].tolerance);
    }
}

// A message of b bytes takes b / 1e7 ms there.
CLAIM(without_step_ms_gradients_and_weights_take_the_time_of_their_bytes) {
    double measured[STEPS], predicted[STEPS];
    if (run(8,
            "--verbose --heads 4 --device virtual --overlap no --plan static --cp 1 --machine $W/no_step --data "
            "$W/even",
            "run"))
        return;
    CHECK(log_values("run", "measured_ms", measured, STEPS) == STEPS);
    CHECK(log_values("run", "predicted_ms", predicted, STEPS) == STEPS);
    const char *sent = strstr(output, "sent by all ranks"), *gradients = sent ? strstr(sent, "gradients ") : NULL,
               *parameters = sent ? strstr(sent, "parameters ") : NULL;
    CHECK(gradients && parameters);
    if (!gradients || !parameters) return;
    double mib = atof(gradients + strlen("gradients ")) + atof(parameters + strlen("parameters "));
    double bytes = mib * (1 << 20) / 8 / STEPS;  // of a rank in a step, known to 0.1 MiB of all ranks and steps
    for (int i = 0; i < STEPS; i++)
        CHECK_CLOSE(measured[i] - predicted[i], bytes / 1e7, 0.1 * (1 << 20) / 8 / STEPS / 1e7);
}

// ---- slow ranks

// What the first decision of a run promised to win, ms a step, and what it won: the step before it and the one after.
static void check_promise(int ranks, const char* options) {
    double ms[8], idle, expected;
    char all[512];
    snprintf(all, sizeof all,
             "--layers 2 --width 1024 --heads 32 --context 1024 --capacity 8192 --batch-tokens 8192 --data $W/even "
             "--overfit --machine h200-8b --device virtual --tp %d --plan refresh=4 --balance migrate --steps 6 %s",
             ranks, options);
    run_on(ranks, "run", "%s", all);
    const char* said = strstr(output, "balance: ");
    CHECK(said && sscanf(said, "balance: %lf ms a step without, %lf ms expected", &idle, &expected) == 2);
    if (!said || log_values("run", "measured_ms", ms, 8) != 6) {
        CHECK(!"a decision and six steps");
        return;
    }
    double won = ms[2] - ms[5], promised = idle - expected;
    if (fabs(won - promised) > 0.1 * won) printf("    %s: %g ms promised, %g won\n", options, promised, won);
    CHECK_CLOSE(promised, won, 0.1 * won);
}

CLAIM(a_decision_wins_what_it_promises_within_a_tenth) {
    check_promise(8, "--straggle rank=1,x=2");
    check_promise(8, "--straggle rank=1,x=8");
    check_promise(4, "--straggle rank=3,x=4,whole");
    check_promise(8, "--straggle 'rank=0,x=8;rank=2,x=6;rank=5,x=4;rank=7,x=2'");
    check_promise(4, "--arch llama,kv-heads=8 --straggle 'rank=0,x=4;rank=2,x=2'");
}

CLAIM(overlap_hides_communication) {
    const char* options = "--heads 16 --device virtual --cp 8,kind=ring --machine $W/measured --data $W/even";
    char without[256];
    double hidden[STEPS], shown[STEPS], waited[STEPS], exposed[STEPS];
    snprintf(without, sizeof without, "%s --overlap no", options);
    run(8, options, "hidden"), run(8, without, "shown");
    CHECK(log_values("hidden", "measured_ms", hidden, STEPS) == STEPS);
    CHECK(log_values("hidden", "exposed_seconds", waited, STEPS) == STEPS);
    CHECK(log_values("shown", "measured_ms", shown, STEPS) == STEPS);
    CHECK(log_values("shown", "exposed_seconds", exposed, STEPS) == STEPS);
    for (int i = 0; i < STEPS; i++) {
        CHECK(waited[i] < 0.5 * exposed[i]);
        // What a rank no longer waits for, its step is shorter by; but for what reaches into the next step.
        CHECK_CLOSE(shown[i] - hidden[i], 1e3 * (exposed[i] - waited[i]), 0.01 * shown[i]);
    }
}

// Both ranks share all documents: the step is the slow one's, which computes 3 times as long; nothing else changes.
CLAIM(a_slow_rank_slows_those_that_share_its_documents) {
    const char* options = "--heads 4 --device virtual --cp 2 --machine $W/no_step --data $W/even --overlap no";
    char slow[256];
    double usual[STEPS], slowed[STEPS], waited[STEPS];
    snprintf(slow, sizeof slow, "%s --straggle rank=1,x=3,whole", options);
    run(2, options, "usual"), run(2, slow, "slowed");
    CHECK(log_values("usual", "measured_ms", usual, STEPS) == STEPS);
    CHECK(log_values("usual", "exposed_seconds", waited, STEPS) == STEPS);
    CHECK(log_values("slowed", "measured_ms", slowed, STEPS) == STEPS);
    for (int i = 0; i < STEPS; i++) {
        double computing = usual[i] - 1e3 * waited[i];
        CHECK_CLOSE(slowed[i] - usual[i], 2 * computing, 1e-3 * usual[i]);
    }
}

// Heads in parts, rings, both; documents alone in a pass, and beside local ones.
CLAIM(what_hides_under_its_own_attention_takes_what_is_predicted) {
    static const char* const cases[] = {"--plan flex --machine $W/published --data $W/skewed",
                                        "--plan flex --machine $W/measured --data $W/skewed",
                                        "--cp 8,kind=ring --machine $W/published --data $W/even",
                                        "--cp 16,kind=ring --plan route=yes --machine $W/published --data $W/even",
                                        "--cp 16,kind=auto --machine $W/measured --data $W/even",
                                        "--plan flexsp --machine $W/slow_links --capacity 4800 --data $W/even",
                                        "--plan flex --zero 3 --machine $W/slow_links --data $W/mixed --val $W/mixed"};
    char options[320];
    for (int i = 0; i < COUNT(cases); i++) {
        snprintf(options, sizeof options, "--heads 32 --device virtual %s", cases[i]);
        check_predicted(16, options, 0.02);
    }
}

// Two ranks and two heads, so that a document's own parts hide nothing: what hides is the exchange of long documents,
// which both share, under the attention of short ones in the same pass. Without overlap nothing does, and plans know.
CLAIM(exchanges_hide_under_other_documents_as_is_predicted) {
    const char* options =
        "--heads 2 --cp kind=ulysses --device virtual --machine $W/slow_links --data $W/mixed --val $W/mixed";
    char without[256];
    double hidden[STEPS], shown[STEPS];
    check_predicted(2, options, 1e-3);
    CHECK(log_values("run", "measured_ms", hidden, STEPS) == STEPS);
    snprintf(without, sizeof without, "%s --overlap no", options);
    check_predicted(2, without, 1e-3);
    CHECK(log_values("run", "measured_ms", shown, STEPS) == STEPS);
    CHECK(hidden[0] < 0.995 * shown[0] || hidden[1] < 0.995 * shown[1]);
}

// ---- digits

// The log of a run without what is of this machine: planning, the time of day, options.
static void read_digits(const char* out, char* text) {
    CHECK_SH(0,
             "sed -E '/\"event\"/d; s/\"plan_(stall_)?us\": [^,]*,//g; s/, \"time\": [^}]*//' $W/%s/log.jsonl > "
             "$W/digits",
             out);
    CHECK(read_text(path_of("digits"), text, MOST_LOG) > 1000);
}

CLAIM(every_run_has_the_same_digits) {
    static char first[MOST_LOG], again[MOST_LOG];
    const char* options[] = {"--heads 16 --machine $W/published",
                             "--heads 16 --machine $W/measured --tp 2 --capacity 16384 --balance migrate "
                             "--plan refresh=1 --straggle rank=1,x=4",
                             "--heads 16 --machine $W/measured --zero 3 --plan adaptive"};
    for (int i = 0; i < COUNT(options); i++) {
        char all[512];
        snprintf(all, sizeof all, "%s --device virtual --data $W/skewed", options[i]);
        setenv("OMP_NUM_THREADS", "1", 1);
        run(8, all, "first"), read_digits("first", first);
        setenv("OMP_NUM_THREADS", "3", 1);
        snprintf(all, sizeof all, "%s --device virtual --data $W/skewed --threads 3", options[i]);
        run(8, all, "again"), read_digits("again", again);
        unsetenv("OMP_NUM_THREADS");
        if (strcmp(first, again)) printf("    %s: two runs\n    %.1200s\n    %.1200s\n", options[i], first, again);
        CHECK(strcmp(first, again) == 0);
    }
}

#define SMALL                                                                                                    \
    "--data $W/even --layers 2 --heads 4 --width 32 --context 256 --capacity 128 --batch-tokens 1024 --steps 3 " \
    "--eval-every 0 --sample-every 0 --save-every 0 --dtype fp32 --threads 1 --machine $W/measured --plan random "

CLAIM(over_a_cpu_it_has_the_bits_of_the_cpu_and_its_own_times) {
    const char *devices[] = {"cpu", "virtual-cpu", "virtual"}, *more[] = {"", "--zero 3", "--tp 2 --overlap no"};
    for (int o = 0; o < COUNT(more); o++) {
        double losses[2][3], ms[2][3];
        for (int i = 0; i < COUNT(devices); i++) {
            run_on(4, "run", SMALL "%s --device %s", more[o], devices[i]);
            if (i < 2) CHECK(log_values("run", "loss", losses[i], 3) == 3);
            else CHECK(log_values("run", "loss", losses[0], 3) == 0);  // null: there is none
            if (i > 0) CHECK(log_values("run", "measured_ms", ms[i - 1], 3) == 3);
            if (i == 1) CHECK(memcmp(losses[0], losses[1], sizeof *losses) == 0);
        }
        CHECK(memcmp(ms[0], ms[1], sizeof *ms) == 0);
    }
}

// ---- pipelines

// A block's weights are 4 C^2 + 2 C U = 20480 for C = 64, U = 32, those of the classifier 320 C, the same: so 4 stages
// of 2 layers, the last one of 1 and the classifier, have equal work.
CLAIM(a_pipeline_waits_as_theory_says) {
    for (int v = 2; v <= 8; v *= 2) {
        double ms[2][STEPS], bubble[STEPS];
        for (int i = 0; i < 2; i++) {
            run_on(i ? 4 : 1, "run",
                   "--layers 7 --width 64 --arch hidden=32 --vocab 320 --context 256 --capacity 256 --overfit "
                   "--batch-tokens %d --steps %d --device virtual --machine $W/only_matmuls --data $W/blocks --pp %d",
                   256 * v, STEPS, i ? 4 : 1);
            CHECK(log_values("run", "measured_ms", ms[i], STEPS) == STEPS);
        }
        CHECK(log_values("run", "bubble", bubble, STEPS) == STEPS);
        for (int i = 0; i < STEPS; i++) {
            double theory = 3.0 / (3 + v);
            CHECK_CLOSE(1 - ms[0][i] / (4 * ms[1][i]), theory, 1e-9);
            CHECK_CLOSE(bubble[i], theory, 1e-9);
        }
    }
}

// Ragged documents, groups of ranks in every stage, tensor parallelism: what stages wait for is in the prediction.
CLAIM(pipelines_take_what_is_predicted) {
    check_predicted(8, "--data $W/skewed --machine $W/measured --device virtual --overlap no --pp 2", 0.05);
    check_predicted(8, "--data $W/even --machine $W/measured --device virtual --overlap no --pp 2 --plan static --cp 4",
                    0.05);
    check_predicted(
        8, "--data $W/skewed --machine $W/published --device virtual --overlap no --pp 2 --tp 2 --capacity 8192", 0.05);
    // Stages that begin inside nodes, and groups that end there.
    check_predicted(12,
                    "--heads 16 --data $W/skewed --machine $W/measured --device virtual --overlap no --pp 2 "
                    "--plan node-size=4",
                    0.02);
    check_predicted(6,
                    "--heads 16 --data $W/skewed --machine $W/measured --device virtual --overlap no --pp 2 "
                    "--plan node-size=2 --cp 3 --capacity 6000",
                    0.02);
}

// ---- what it has not

CLAIM(what_has_no_result_is_refused_with_a_line) {
    const char* refused[][2] = {
        {"", "needs --machine"},
        {"--machine a100-7b --sample x", "has no --sample"},
        {"--machine a100-7b --probe", "has no --probe"},
        {"--machine a100-7b --resume --out $W/run", "has no --resume"},
        {"--machine a100-7b --init $W/run", "has no --init"},
        {"--machine a100-7b --eval-every 5", "has no --eval-every"},
        {"--machine a100-7b --save-every 5", "has no --save-every"},
        {"--machine a100-7b --balance semi", "has no --balance resize or semi"},
        {"--machine a100-7b --dump-grads $W/g", "has no --dump-grads"},
        {"--machine hydraulis-7b", "a rank alone has no times"},
        {"--machine hydraulis-7b --layout auto --memory 4G", "it has times of whole pipelines, for --strategies"},
    };
    for (int i = 0; i < COUNT(refused); i++) {
        CHECK_SH(1, "$P --device virtual --data $W/even %s", refused[i][0]);
        CHECK(strstr(errors, refused[i][1]) && strchr(errors, '\n') == errors + strlen(errors) - 1);
    }
}

CLAIM(a_table_beyond_the_machines_memory_is_refused) {
    const char* options = "--device virtual --machine $W/small --data $W/even --heads 4 " SHAPE;
    put_text("small",
             "name small\nlinear_ms 0.05\nquadratic_ms 1e-5\ncapacity 16384\n"
             "pipeline_memory 1 1 0 0 0 0 0 48 0 0 0 0 0\n");
    CHECK_SH(1, "$P %s --steps 1 --out $W/run", options);
    CHECK(strstr(errors, "found 48.0 MiB available (gpu_mib of the machine)"));
    CHECK_SH(0, "$P %s --capacity 1024 --context 1024 --batch-tokens 2048 --steps 1 --out $W/run", options);
}

// MiB of a line of the memory table, from `at` on.
static double table_mib(const char* at, const char* name) {
    char unit[8] = "";
    double size = NAN;
    at = at ? strstr(at, name) : NULL;
    return at && sscanf(at + strlen(name), " %lf %7s", &size, unit) == 2 ? size / (unit[0] == 'K' ? 1024 : 1) : NAN;
}

// A device's memory holds what is in it, not what is in the host's, and the longest row that fits is taken.
CLAIM(rows_fill_the_memory_of_the_device) {
    const char* options =
        "--device virtual --data $W/even --layers 2 --width 32 --heads 4 --context 1024 --batch-tokens 8192 "
        "--verbose --steps 1";
    char machine[256];
    double sum = 0, total = 0;
    put_text("roomy", "name roomy\nlinear_ms 0.05\nquadratic_ms 1e-5\n");
    CHECK_SH(0, "$P %s --machine $W/roomy --capacity 4096 --out $W/run", options);
    const char *device = strstr(output, "\nmemory of the device\n"), *host = strstr(output, "\nmemory of the host\n");
    CHECK(device && host && device < host);
    if (!device || !host) return;
    total = table_mib(device, "\n  total");
    for (const char* at = strchr(device + 1, '\n'); at + 1 < host; at = strchr(at + 1, '\n')) {
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)(strstr(at + 3, "  ") - at), at);
        if (!strstr(name, "total")) sum += table_mib(at, name);
    }
    CHECK_CLOSE(sum, total, 0.5);
    CHECK(table_mib(host, "\n  step indices, host") > 0);
    for (int more = 1; more >= -1; more -= 2) {
        snprintf(machine, sizeof machine,
                 "name full\nlinear_ms 0.05\nquadratic_ms 1e-5\npipeline_memory 1 1 0 0 0 0 0 %.1f 0 0 0 0 0\n",
                 total + more);
        put_text("full", machine);
        CHECK_SH(0, "$P %s --machine $W/full --out $W/run", options);
        CHECK(strstr(output, more > 0 ? "in rows of at most 4096" : "in rows of at most 2048"));
    }
}

int main(int argc, char** argv) {
    program_begin(argc, argv);
    write_corpora();
    write_machines();
    run_claims();
    return program_end();
}
