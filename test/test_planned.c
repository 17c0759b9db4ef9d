// test_planned.c - the whole program under --plan flex: every step has its own groups of unlike cp sizes, and nothing
// but rounding tells so. Started alone; it starts mpirun itself.
//
// The machine file makes attention dear, links cheap and rows short, so that long documents want many ranks and short
// ones a rank of their own. Plans follow from it and the lengths alone.
#include "test/numbers.h"
#include "test/program.h"

#define TINY                                                                                                     \
    "--data $W/corpus --layers 2 --width 48 --heads 6 --context 512 --batch-tokens 2048 --lr 0.0003 --warmup 0 " \
    "--eval-every 0 --sample-every 0 --save-every 0 --dtype fp32 --threads 1 "
#define ON_FILE "--machine $W/machine "

enum { STEPS = 8, MOST_STEPS = 64 };

// Most documents are short, some are cut into pieces of the whole context.
static const char machine[] =
    "name test\nquadratic_ms 1e-4\nlinear_ms 1e-3\nmicro_batch_ms 1e-3\nstep_ms 1\n"
    "link inside 64 0.002\nlink inside 1048576 0.01\nlink across 64 0.004\nlink across 1048576 0.02\n"
    "model 2 48 4\ncapacity 128\n";

// ---- the log

enum { LOSS, ROWS, PLAN_US, STALL_US, PREDICTED, MEASURED, GAP, BYTES };
enum { HEADS = BYTES, RING, GRADIENTS, PARAMETERS, INSIDE, ACROSS, FIELDS };
static const char* const fields[FIELDS] = {
    "loss",          "micro_batches", "plan_us",         "plan_stall_us",    "predicted_ms", "measured_ms", "gap",
    "bytes.ulysses", "bytes.ring",    "bytes.gradients", "bytes.parameters", "bytes.inside", "bytes.across"};

// The steps of a run; plans as they are written there.
typedef struct Log {
    int n;
    double of[FIELDS][MOST_STEPS];
    char cp_sizes[MOST_STEPS][200], plan[MOST_STEPS][16];
} Log;

static void read_plan(void* context, const Json* json) {
    Log* log = (Log*)context;
    const JsonValue *sizes = json_get(json->values, "cp_sizes"), *plan = json_get(json->values, "plan");
    if (log->n == MOST_STEPS || !json_get(json->values, "loss")) return;
    CHECK(sizes && plan && sizes->length < sizeof log->cp_sizes[0] && plan->length < sizeof log->plan[0]);
    if (sizes) snprintf(log->cp_sizes[log->n], sizeof log->cp_sizes[0], "%.*s", (int)sizes->length, sizes->text);
    if (plan) json_text(plan, log->plan[log->n], sizeof log->plan[0]);
    log->n++;
}

// Runs some steps in an empty directory; returns the number of steps in the log.
static int run_steps(int ranks, const char* options, const char* run, Log* log) {
    run_on(ranks, run, TINY "%s", options);
    log->n = 0;
    each_logged(run, read_plan, log);
    for (int f = 0; f < FIELDS; f++) CHECK(log_values(run, fields[f], log->of[f], MOST_STEPS) == log->n);
    return log->n;
}

// What the last n steps were predicted too long by is no more than a fifth and twice what their errors differ by among
// themselves: other programs on the machine make times uncertain, not predictions wrong in one direction.
static void check_learnt(const Log* log, int n) {
    double logs[MOST_STEPS], apart[MOST_STEPS];
    const double *predicted = log->of[PREDICTED] + log->n - n, *measured = log->of[MEASURED] + log->n - n;
    for (int i = 0; i < n; i++) logs[i] = log2(predicted[i] / measured[i]);
    double bias = median_of(logs, n);
    for (int i = 0; i < n; i++) apart[i] = fabs(logs[i] - bias);
    double spread = median_of(apart, n);
    printf("    predictions are too long by a factor of %.2f in the last %d steps; within %.2f\n", exp2(bias), n,
           exp2(spread));
    CHECK(fabs(bias) <= log2(1.2) + 2 * spread);
}

static int has_unlike_cp_sizes(const Log* log, int t) { return strchr(log->cp_sizes[t], ',') != NULL; }

// ---- plans

// fp32 in another order of sums is off by 1e-7; a lost or repeated token changes the loss by 1e-4 and more.
static const double NEAR = 1e-5;

// The losses and evaluations of a run are those of the run `one`.
static void check_like_one(const char* run, int losses, int evaluations) {
    CHECK_LOSSES(run, "one", losses, NEAR);
    CHECK_LOGGED(run, "val_loss", "one", "val_loss", evaluations, NEAR);
}

CLAIM(cp_sizes_differ_in_a_step_and_between_steps_and_losses_are_those_of_one_rank) {
    static Log log;
    const struct {
        int ranks;
        const char* options;
    } runs[] = {{8, "--steps 8 --capacity 128"},
                {8, "--steps 8 --capacity 128 --zero 2 --cp kind=ring"},
                {3, "--steps 8 --capacity 256"},
                {3, "--steps 8 --capacity 256 --zero 3 --cp kind=ulysses"}};
    run_on(1, "one", TINY ON_FILE "--steps 8 --eval-every 8");
    for (int i = 0; i < COUNT(runs); i++) {
        char options[256];
        snprintf(options, sizeof options, "%s --eval-every 8 " ON_FILE, runs[i].options);
        CHECK(run_steps(runs[i].ranks, options, "other", &log) == STEPS);
        check_like_one("other", STEPS, 2);  // evaluated before the first step, and after the last
        int unlike = 0, changes = 0;
        for (int t = 0; t < STEPS; t++) {
            unlike += has_unlike_cp_sizes(&log, t);
            changes += t > 0 && strcmp(log.cp_sizes[t - 1], log.cp_sizes[t]) != 0;
        }
        CHECK(changes >= STEPS / 2);
        // Three ranks may do best as one group, or as single ranks; in rounds groups are as often alike.
        if (runs[i].ranks == 8) CHECK(unlike >= STEPS / 4);
    }
}

// Times that are measured must not get into plans that follow from a file. A run that was cut has the file from its
// checkpoint, and has learnt nothing yet when it goes on.
CLAIM(a_machine_file_gives_the_same_plans_and_bits_in_every_run) {
    run_on(8, "parts", TINY ON_FILE "--steps 24 --save-every 12 --keep 0 --capacity 128 --plan refresh=1");
    const char* whole = loss_hash();
    CHECK_SH(0, "rm -r $W/parts/step-000024; " ON_RANKS "$P --resume --threads 1 --out $W/parts", 8);
    CHECK_STRING(loss_hash(), whole);
}

// What each rank holds is saved with the run; text comes from ranks that hold unlike much as from one.
CLAIM(ranks_plan_with_what_each_holds_and_go_on_so) {
    double of_eval[2] = {0};
    char sample[2000] = "";
    static const char kinds[] = "--capacity '400,ranks=1 130; 3 200' ";
    static const Refusal rows[] = {
        {"--layout auto --memory 4G --capacity 'ranks=2 100'", "--layout auto & rows that all ranks hold & ranks=", 4}};
    run_on(1, "one", TINY ON_FILE "--steps 4 --save-every 4 --eval-every 4");
    for (int zero = 1; zero <= 3; zero++) {
        run_on(4, "kinds", TINY ON_FILE "--steps 4 --save-every 2 --keep 0 --verbose --zero %d %s", zero, kinds);
        CHECK_SAID("in rows of at most 130 to 400, by rank");
        const char* whole = loss_hash();
        CHECK_LOSSES("kinds", "one", 4, NEAR);
        CHECK_SH(0, "rm -r $W/kinds/step-000004; " ON_RANKS "$P --resume --verbose --threads 1 --out $W/kinds", 4);
        CHECK_SAID("in rows of at most 130 to 400, by rank & --capacity ranks 0 400; 1 130; 3 200");
        CHECK_STRING(loss_hash(), whole);
    }
    CHECK_SH(0, "rm -r $W/kinds/step-000004; " ON_RANKS "$P --resume --verbose --threads 1 --out $W/kinds %s", 4,
             "--capacity 300");
    CHECK_SAID("in rows of at most 300\n");
    for (int i = 0; i < 2; i++) {
        const char *file = i ? ON_FILE : "", *held = i ? kinds : "";
        CHECK_SH(0, ON_RANKS "$P --eval --data $W/corpus --threads 1 --out $W/one %s%s", i ? 4 : 1, file, held);
        const char* loss = strstr(output, "loss ");
        CHECK(loss && sscanf(loss, "loss %lf", &of_eval[i]) == 1);
        CHECK_SH(0, ON_RANKS "$P --sample 'a b' --temperature 0 --tokens 200 --threads 1 --out $W/one %s%s", i ? 4 : 1,
                 file, held);
        const char* text = strstr(output, "a b");
        CHECK(text && (i == 0 || !strcmp(text, sample)));
        snprintf(sample, sizeof sample, "%s", text ? text : "");
    }
    CHECK_CLOSE(of_eval[1], of_eval[0], NEAR * of_eval[0]);
    CHECK_REFUSALS(TINY "--out $W/refused", rows);
}

CLAIM(planners_can_be_named_and_a_bad_machine_is_refused) {
    static Log one, log;
    const char* const planners[] = {"adaptive",  "static",   "random",   "flexsp",
                                    "hydraulis", "zeppelin", "megatron", "fixed"};
    static const Refusal rows[] = {{"--machine $W/nothing", "--machine & nothing", 2},
                                   {"--machine $W/bad", "bad & 2", 2}};
    CHECK(run_steps(1, "--steps 4 " ON_FILE, "one", &one) == 4);
    CHECK_STRING(one.plan[0], "flex");
    for (int i = 0; i < COUNT(planners); i++) {
        CHECK(run_steps(4, filled("--steps 4 --plan %s " ON_FILE, planners[i]), "other", &log) == 4);
        CHECK_LOSSES("other", "one", 4, NEAR);
        for (int t = 0; t < 4; t++) {
            CHECK_STRING(log.plan[t], i == 2 ? "flex" : planners[i]);  // random ones come instead of flex
            // Whoever planned, it is played in the model.
            CHECK(log.of[GAP][t] > -1e-6 && log.of[PREDICTED][t] > 0);
            if (i < 2) CHECK(!has_unlike_cp_sizes(&log, t));
        }
    }
    put_text("bad", "name x\nquadratic_ms many\n");
    CHECK_REFUSALS(TINY "--out $W/refused", rows);
}

// A machine of three nodes, cut inside a node by two stages or by groups of two; not all ranks of a stage, or of a
// place in groups, then have neighbours where the others have. Evaluations have plans, too.
CLAIM(nodes_cut_by_stages_have_one_plan_on_all_ranks) {
    const struct {
        const char *node, *options;
        int ranks;
    } cases[] = {{"2", "--pp 2 --capacity 200", 6}, {"3", "--tp 2 --cp 4 --capacity 256", 8}};
    for (int i = 0; i <= COUNT(cases); i++) {
        const char* name = i ? "cut" : "one";
        if (i) setenv("RAGGED_NODE_SIZE", cases[i - 1].node, 1);
        run_on(i ? cases[i - 1].ranks : 1, name, TINY ON_FILE "--steps 2 --eval-every 2 --save-every 2 %s",
               i ? cases[i - 1].options : "");
        unsetenv("RAGGED_NODE_SIZE");
        check_like_one(name, 2, 2);
    }
    const char* eval = "--eval --data $W/corpus --out $W/one --threads 1 --cp 2 --capacity 256";
    CHECK_REFUSED("validation after step 2: rank 1 has the plan ",
                  "timeout 60 mpirun --oversubscribe -n 1 $P %s --plan node-size=1 : -n 1 $P %s --plan node-size=2",
                  eval, eval);
}

// One of 500 letters among 60 short ones, in what is trained on or in what is validated on.
CLAIM(a_document_without_a_plan_is_named_at_the_start) {
    static const char* const options[] = {"--plan flex",        "--plan adaptive",
                                          "--plan fixed",       "--plan flexsp",
                                          "--plan hydraulis",   "--plan zeppelin",
                                          "--plan megatron",    "--cp 2",
                                          "--strategies 2xtp1", "--data $W/short --val $W/long --eval-every 1"};
    CHECK_SH(
        0,
        "mkdir -p $W/short && for i in $(seq 60); do head -c $((40 + i)) /dev/zero | tr '\\0' a >$W/short/$i; done "
        "&& cp -r $W/short $W/long && head -c 500 /dev/zero | tr '\\0' b >$W/long/500");
    for (int i = 0; i < COUNT(options); i++) {
        int is_val = strstr(options[i], "--val") != NULL;
        CHECK_SH(1,
                 "rm -rf $W/x; " ON_RANKS
                 "$P --layers 2 --width 48 --heads 6 --context 512 --batch-tokens 512 --steps 2 --eval-every 0 "
                 "--sample-every 0 --save-every 1 --threads 1 --capacity 140 --out $W/x %s %s " ON_FILE,
                 2, is_val ? "" : "--data $W/long", options[i]);
        const char* line = strstr(errors, is_val ? "train: rank 0: --val: " : "train: rank 0: --data: ");
        CHECK(line && has_words(line,
                                "the longest document has 501 tokens & capacity & ; try & --capacity & or a "
                                "smaller --context (documents are cut to 512 tokens"));
        int is_list = strstr(options[i], "--strategies") != NULL;
        CHECK(line && has_words(line, is_list ? "holds more than 140" : "; 2 ranks hold at most 280)"));
        CHECK(sh("ls -d $W/x/step-*") != 0 && log_values("x", "loss", (double[2]){0}, 2) == 0);
    }
}

// The text is gone while the model is evaluated before its first step, whose tokens have been read: no plan is made
// ahead of a last step; of another one, what it lacks ends the run with all that was done.
CLAIM(a_step_without_a_plan_comes_after_a_checkpoint) {
    CHECK_SH(0, "mkdir -p $W/texts && cat $W/corpus/* >$W/whole");
    for (int steps = 1; steps <= 2; steps++) {
        sh("rm -rf $W/torn; cp $W/whole $W/texts/text");
        pid_t job = start(
            "$P --layers 2 --width 96 --heads 6 --context 512 --batch-tokens 2048 --threads 1 --warmup 0 "
            "--sample-every 0 --val $W/whole plan --eval-every tokens=200000 --data $W/texts --steps %d "
            "--eval-every 1000 --out $W/torn",
            steps);
        CHECK(comes("torn/log.jsonl", 30));
        sh(": >$W/texts/text");
        int status = ended_within(job, 100);
        read_background();
        CHECK(status == steps - 1 && steps_logged("torn") == 1 && sh("ls $W/torn/step-000001/DONE") == 0);
    }
    read_background();
    CHECK_SAID("continue:  &  --resume & train: step 2: ");
    sh("cp $W/whole $W/texts/text");
    CHECK(sh("$P --resume --out $W/torn --threads 1 --eval-every 0") == 0 && steps_logged("torn") == 2);
}

// ---- what is logged

static void check_fields(const Log* log, int t, int ranks) {
    double rows = 0, x[FIELDS];
    int size = 0, last = 0, n = 0;
    for (int f = 0; f < FIELDS; f++) x[f] = log->of[f][t];
    CHECK_STRING(log->plan[t], "flex");
    CHECK(x[PLAN_US] > 0 && x[PLAN_US] < 1e6 && x[STALL_US] >= 0);
    CHECK(x[PREDICTED] > 0 && x[MEASURED] > 0 && x[GAP] > -1e-6 && x[GAP] < 10);
    for (const char* at = log->cp_sizes[t]; (at = strchr(at, '"')); at = strchr(at + 1, '"') + 1, last = size) {
        CHECK(sscanf(at, "\"%d\": %d", &size, &n) == 2 && size > last && size <= ranks && n > 0);
        rows += n;
    }
    CHECK(rows == x[ROWS]);
    CHECK(x[GRADIENTS] > 0 && x[GRADIENTS] == x[PARAMETERS]);  // fp32, ZeRO-1: as many bytes out as back
    CHECK(x[HEADS] + x[RING] + x[GRADIENTS] + x[PARAMETERS] == x[INSIDE] + x[ACROSS]);
    CHECK(x[ACROSS] > 0 && x[INSIDE] > 0);
}

CLAIM(every_step_says_how_it_was_planned) {
    static Log log;
    // Two machines of four ranks, as far as counting goes.
    setenv("RAGGED_NODE_SIZE", "4", 1);
    CHECK(run_steps(8, ON_FILE "--steps 20 --capacity 128 --verbose", "other", &log) == 20);
    CHECK_SAID("planning took  &  us a step");
    unsetenv("RAGGED_NODE_SIZE");
    double shared = 0;
    for (int t = 0; t < 20; t++) {
        check_fields(&log, t, 8);
        shared += log.of[HEADS][t] + log.of[RING][t];
        CHECK(log.of[GRADIENTS][t] == log.of[GRADIENTS][0]);
    }
    CHECK(shared > 0);  // rank 0 has been in a group
    CHECK(median_of(log.of[STALL_US], 20) < 1000);
    // The file knows nothing of this machine: what is predicted well at the end was learnt.
    check_learnt(&log, 10);
}

// All ranks learn from the slowest one's time, so they go on to make the same plans: or the run would end.
CLAIM(a_model_that_learns_at_every_step_stays_the_same_on_all_ranks) {
    static Log log;
    run_on(1, "one", TINY "--steps 30");
    CHECK(run_steps(3, "--steps 30 --plan refresh=1 --capacity 256", "other", &log) == 30);
    CHECK_LOSSES("other", "one", 30, 1e-4);
    check_learnt(&log, 15);
}

// ---- a plan for people

static void check_explained(const char* page) {
    CHECK_SAID("flex & static & adaptive & step 1: ");
    CHECK(strstr(output, page) && !errors[0]);
    CHECK(read_text(path_of(page), output, sizeof output) > 2000 && has_words(output, "<html & adaptive"));
}

CLAIM(an_explanation_is_printed_and_written_and_nothing_is_trained) {
    run_on(8, "explained", TINY ON_FILE "--capacity 128 --explain");
    check_explained("explained/plan.html");
    CHECK_SH(0, "cd $W/explained && ls");
    CHECK_STRING(output, "plan.html\n");
    char* path = realpath(program, NULL);
    CHECK(path && sh("cd $W && %s " TINY "--explain", path) == 0);  // one rank, no --out: the page is where one stands
    free(path);
    check_explained("plan.html");
    CHECK(sh("ls $W/runs") != 0);
}

PROGRAM_TEST {
    write_ragged_corpus(90, 8.2, 15);
    put_text("machine", machine);
}
