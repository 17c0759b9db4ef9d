// test_pp.c - the whole program as a pipeline (--pp): losses, gradient norms, evaluation, samples and checkpoints are
// those of one rank, whatever the stages, and a checkpoint goes on in any other division. Started alone; it starts
// mpirun itself.
#include "test/program.h"

enum { STEPS = 8, HALF = 4 };

#define TINY                                                                                                        \
    "--data $W/corpus --layers 5 --width 48 --heads 4 --context 128 --capacity 160 --batch-tokens 768 --lr 0.0003 " \
    "--warmup 0 --steps 8 --save-every 4 --sample-every 4 --keep 0 --eval-every 4 --temperature 0 --tokens 32 "     \
    "--threads 1 --dtype fp32 --machine flexsp-7b "
#define LLAMA "--arch llama,kv-heads=2,tie=no "

static Curve run(const char* name, int ranks, const char* options) {
    run_on(ranks, name, TINY "%s", options);
    return curve_in(name, STEPS);
}

static void check_same(const char* what, const Curve* a, const Curve* b, int from) {
    check_curves(what, a, b, from, STEPS, 1e-6);
    CHECK_STRING(a->sample, b->sample);
}

static const struct {
    const char *name, *options;
    int ranks;
} jobs[] = {
    {"two", "--pp 2", 2},          {"five", "--pp 5 --recompute block", 5},    {"four", "--pp 2 --tp 2 --zero 1", 4},
    {"six", "--pp 3 --zero 3", 6}, {"llama_four", LLAMA "--pp 2 --zero 2", 4},
};

static Curve one;

CLAIM(a_pipeline_has_the_losses_and_samples_of_one_rank) {
    Curve llama_one = run("llama_one", 1, LLAMA);
    one = run("one", 1, "");
    CHECK(one.sample[0] && strcmp(one.sample, llama_one.sample) != 0);
    for (int i = 0; i < COUNT(jobs); i++) {
        const Curve c = run(jobs[i].name, jobs[i].ranks, jobs[i].options),
                    *like = strstr(jobs[i].options, LLAMA) ? &llama_one : &one;
        check_same(jobs[i].name, &c, like, 0);
        check_val(&c, like, 3, 1e-6);
    }
}

// From the checkpoint of step 4 of one division into another.
CLAIM(a_checkpoint_goes_on_in_any_other_division) {
    const struct {
        const char *from, *options;
        int ranks;
    } ways[] = {{"two", "", 1},
                {"one", "--pp 3", 3},
                {"six", "--pp 2 --tp 2 --zero 1", 4},
                {"four", "--tp 2", 2},
                {"five", "--pp 2 --zero 2", 4}};
    for (int i = 0; i < COUNT(ways); i++) {
        sh("cd $W; rm -rf again; mkdir again; cp -r %s/step-000004 %s/log.jsonl again", ways[i].from, ways[i].from);
        CHECK_SH(0, ON_RANKS "$P --resume step-000004 --pp 1 --tp 1 --zero 1 %s --out $W/again", ways[i].ranks,
                 ways[i].options);
        Curve c = curve_in("again", STEPS);
        check_same(ways[i].from, &c, &one, HALF);
    }
}

// Layers of one stage that differ in tp, in what ranks divide, and in what is computed again; a stage without cut
// layers beside one with some. From its checkpoint one rank goes on.
CLAIM(layers_of_a_stage_may_be_unlike) {
    put_text("unlike.txt",
             "tp 2\nstage\n layers 1 tp 1 zero 3 recompute block\n layers 1 zero 2\n"
             " layers 1 tp 1 zero 1\nstage layers 2 tp 1 zero 2\n");
    Curve c = run("unlike", 4, "--layout $W/unlike.txt");
    check_same("unlike", &c, &one, 0);
    CHECK_SH(0, "$P --resume step-000004 --pp 1 --tp 1 --zero 1 --out $W/unlike");
    c = curve_in("unlike", STEPS);
    check_same("unlike", &c, &one, HALF);
    CHECK_REFUSED("layer 0 has tp 3 in groups of 6 ranks: expected a divisor or a multiple of the 4 key/value heads",
                  ON_RANKS "$P " TINY "--layout 'tp 6; stage layers 5 tp 3' --heads 8 --arch llama,kv-heads=4", 6);
}

// Ranks 0 to 2 are a node, rank 3 another: stages have unlike shares of nodes.
CLAIM(stages_on_nodes_of_unlike_size_follow_one_plan) {
    if (!one.sample[0]) one = run("one", 1, "");
    setenv("RAGGED_NODE_SIZE", "3", 1);
    Curve c = run("unlike_nodes", 4, "--pp 2");
    unsetenv("RAGGED_NODE_SIZE");
    check_same("unlike nodes", &c, &one, 0);
}

CLAIM(the_log_tells_of_the_stages) {
    double stages[STEPS], bubble[STEPS], in_flight[STEPS];
    CHECK(log_values("five", "stages", stages, STEPS) == STEPS && stages[0] == 5);
    CHECK(log_values("five", "in_flight", in_flight, STEPS) == STEPS && in_flight[0] >= 2 && in_flight[0] <= 5);
    CHECK(log_values("five", "bubble", bubble, STEPS) == STEPS);
    for (int i = 0; i < STEPS; i++) CHECK(bubble[i] > 0.1 && bubble[i] < 1);
    CHECK(log_values("one", "stages", stages, STEPS) == 0);
}

CLAIM(what_cannot_be_is_refused_in_one_line) {
    static const Refusal rows[] = {
        {"--pp 6", "expected at most as many stages as layers, found 5 layers; try --pp 5", 6},
        {"--pp 2", "--pp: 2 stages do not divide 3 ranks; try mpirun -n 4", 3},
        {"--layout auto", "expected --memory SIZE, found none", 2},
        {"--layout auto --memory 1M", "expected a layout of at most 1.0 MiB a rank, found none below", 4},
        {"--memory 1M", "1.0 MiB available (of --memory)", 1},
        {"--memory 3X", "--memory expects a size like 64M or 24G", 1}};
    CHECK_REFUSALS(TINY "--out $W/refused", rows);
}

PROGRAM_TEST { write_ragged_corpus(60, 7.6, 25); }
