// test_tp.c - the whole program under --tp: losses, gradient norms, checkpoints and samples are those of one rank,
// whatever the numbers of ranks, and activations move by the formula. Started alone; it starts mpirun itself.
//
// Five heads and 3.75 tiles of hidden units divide evenly among no number of ranks that is tried here. Where the ranks
// are one group every batch is one row, so that a step's tokens say what its collectives weigh. "grouped" is a Qwen3 of
// ten heads with two key/value heads, "shared" a Qwen2 of four heads with one; their heads' channels are not the width.
#include "test/program.h"
#include "test/tensors.h"

enum { LAYERS = 2, WIDTH = 60, STEPS = 10 };

#define TINY                                                                                                      \
    "--data $W/corpus --layers 2 --width 60 --heads 5 --context 128 --batch-tokens 512 --lr 0.0003 --warmup 0 "   \
    "--steps 10 --save-every 5 --sample-every 5 --keep 0 --eval-every 0 --temperature 0 --tokens 48 --threads 1 " \
    "--machine flexsp-7b "
#define GROUPED "--dtype fp32 --arch qwen3 --heads 10 --arch kv-heads=2,head-size=8,hidden=150,tie=no "
#define SHARED "--arch qwen2 --heads 4 --arch kv-heads=1,head-size=16,hidden=150 "

// ---- runs

// A run of STEPS steps in a directory of its name, from which others go on.
typedef struct Job {
    const char *name, *like;  // the same model on one rank, in fp32; NULL: that is it
    int ranks;
    const char* options;
    int is_done;
    Curve curve;
} Job;

// Three ranks divide two key/value heads into 1, 1/2 and 1/2, five into halves and thirds.
static Job jobs[] = {
    {.name = "one", .ranks = 1, .options = "--dtype fp32"},
    {.name = "two", .like = "one", .ranks = 2, .options = "--dtype fp32 --tp 2"},
    {.name = "three", .like = "one", .ranks = 3, .options = "--dtype fp32 --tp 3 --recompute block"},
    {.name = "groups", .like = "one", .ranks = 4, .options = "--dtype fp32 --tp 2 --zero 3"},
    {.name = "grouped_one", .ranks = 1, .options = GROUPED},
    {.name = "grouped_two", .like = "grouped_one", .ranks = 2, .options = GROUPED "--tp 2"},
    {.name = "grouped_three", .like = "grouped_one", .ranks = 3, .options = GROUPED "--tp 3 --recompute block"},
    {.name = "grouped_five", .like = "grouped_one", .ranks = 5, .options = GROUPED "--tp 5 --recompute activation"},
    {.name = "shared_one", .ranks = 1, .options = SHARED "--dtype fp32"},
    {.name = "shared_three", .like = "shared_one", .ranks = 3, .options = SHARED "--dtype fp32 --tp 3"},
    {.name = "shared_groups",
     .like = "shared_one",
     .ranks = 4,
     .options = SHARED "--dtype fp32 --tp 2 --zero 2 --plan random --capacity 130"},
    {.name = "one_bf16", .ranks = 1, .options = "--dtype bf16"},
    {.name = "three_bf16", .ranks = 3, .options = "--dtype bf16 --tp 3"},
    {.name = "groups_bf16", .ranks = 4, .options = "--dtype bf16 --tp 2 --zero 2"},
    {.name = "shared_bf16", .ranks = 3, .options = SHARED "--dtype bf16,rounding=stochastic --tp 3"}};

static Job* job_of(const char* name) {
    Job* job = jobs;
    while (strcmp(job->name, name) != 0) job++;
    return job;
}

// Runs it when it is asked for first.
static const Curve* curve_of(const char* name) {
    Job* job = job_of(name);
    if (job->is_done++) return &job->curve;
    run_on(job->ranks, name, TINY "%s", job->options);
    job->curve = curve_in(name, STEPS);
    return &job->curve;
}

// A copy of a run goes on from its middle.
static Curve resumed(const char* from, int ranks, const char* options) {
    curve_of(from);
    CHECK_SH(0, "rm -rf $W/other && cp -r $W/%s $W/other && rm -r $W/other/step-000010", from);
    CHECK_SH(0, ON_RANKS "$P --resume --threads 1 %s --out $W/other", ranks, options);
    return curve_in("other", STEPS);
}

// ---- losses and norms

// fp32 in another order of sums is off by 1e-7 in a step, and by 1e-6 at most after ten, because the optimizer divides
// small gradients by their own size. A head or a token that is lost or counted twice changes the loss by 1e-3.
static const double FP32 = 1e-5;

CLAIM(ten_steps_are_those_of_one_rank_however_heads_divide) {
    for (int i = 0; i < COUNT(jobs); i++)
        if (jobs[i].like) check_curves(jobs[i].name, curve_of(jobs[i].name), curve_of(jobs[i].like), 0, STEPS, FP32);
}

// A loss is a mean over some 500 targets of values that are rounded to 2^-9 of logits of size about 5, and as much
// again comes from every rounded tensor below, about 12 a layer: 5 * 2^-9 * sqrt(1 + 12 LAYERS) / sqrt(500) = 2.2e-3 in
// a loss of 5, 4.4e-4 of it. Two runs differ by sqrt(2) of that; in a group each partial sum is rounded once more,
// another sqrt(2) at most; ten steps may meet two standard deviations: 1.8e-3.
static const double BF16 = 1.8e-3;

CLAIM(ten_steps_in_bf16_stay_in_the_band_of_its_rounding) {
    const Curve* one = curve_of("one_bf16");
    Curve alone = resumed("groups_bf16", 1, "--tp 1"), same = resumed("groups_bf16", 4, "");
    check_curves("three_bf16", curve_of("three_bf16"), one, 0, STEPS, BF16);
    check_curves("groups_bf16", curve_of("groups_bf16"), one, 0, STEPS, BF16);
    check_curves("groups_bf16 on one rank", &alone, one, 0, STEPS, BF16);
    CHECK_STRING(same.hash, curve_of("groups_bf16")->hash);  // masters and moments have come back to the bit
}

CLAIM(a_run_says_how_the_model_is_divided) {
    run_on(4, "none", TINY "--verbose --steps 0 --tp 2");
    CHECK_SAID("groups of 2 ranks; rank 0 of a group has 2 heads and 128 hidden units, the last one 3 and 112");
}

// ---- checkpoints

CLAIM(a_checkpoint_goes_on_in_any_division) {
    const struct {
        const char* from;
        int ranks;
        const char* options;
    } runs[] = {{"groups", 3, "--tp 3 --zero 1"}, {"one", 4, "--tp 2 --zero 2"},
                {"three", 1, "--tp 1"},           {"grouped_five", 3, "--tp 3"},
                {"grouped_one", 4, "--tp 4"},     {"shared_groups", 3, "--tp 3 --zero 1"}};
    for (int i = 0; i < COUNT(runs); i++) {
        Curve c = resumed(runs[i].from, runs[i].ranks, runs[i].options);
        const char* like = job_of(runs[i].from)->like;
        check_curves(runs[i].options, &c, curve_of(like ? like : runs[i].from), 0, STEPS, FP32);
    }
}

static void check_same_division(const char* name) {
    Curve c = resumed(name, job_of(name)->ranks, "");
    CHECK_STRING(c.hash, curve_of(name)->hash);
}

CLAIM(a_checkpoint_goes_on_in_the_same_division_to_the_bit) {
    check_same_division("groups"), check_same_division("three");
}

// Files hold them once: ranks that share them must have had the same bits.
CLAIM(shared_key_value_heads_go_on_to_the_bit) { check_same_division("shared_bf16"); }

static const char* file_in(const char* run, const char* name, char path[700]) {
    snprintf(path, 700, "%s/%s/step-000005/%s", work, run, name);
    return path;
}

// As one rank's; but for biases of keys, whose gradient is 0 but for rounding, or nearly so where they hardly turn from
// one position to the next, and the optimizer makes it as large as any other. Moments: a_checkpoint_goes_on.
CLAIM(files_name_whole_tensors_and_hold_them_once) {
    static const char* const names[] = {"three", "groups", "grouped_five", "shared_groups"};
    char a[700], b[700];
    for (int i = 0; i < COUNT(names); i++) {
        const char* like = job_of(names[i])->like;
        curve_of(like), curve_of(names[i]);
        CHECK(tensors_differ(file_in(names[i], "model.safetensors", a), file_in(like, "model.safetensors", b), 0) <=
              1e-5);
    }
}

// ---- samples

// The likeliest token every time. Two tokens as close as rounding would be a rare chance.
static const char* sample_of(const char* run) {
    CHECK_SH(0, "$P --out $W/%s --sample abc --tokens 60 --temperature 0 --threads 1", run);
    return output;
}

CLAIM(samples_are_those_of_one_rank) {
    const struct {
        const char* name;
        int ranks;  // that sample together, too
    } runs[] = {{"three", 0}, {"groups", 3}, {"grouped_five", 3}, {"shared_three", 0}};
    static char expected[4096];
    for (int i = 0; i < COUNT(runs); i++) {
        const char *name = runs[i].name, *like = job_of(name)->like;
        CHECK_STRING(curve_of(name)->sample, curve_of(like)->sample);
        snprintf(expected, sizeof expected, "%.4000s", sample_of(like));
        CHECK(strlen(expected) > 60);
        CHECK_STRING(sample_of(name), expected);
        if (!runs[i].ranks) continue;
        CHECK_SH(0, ON_RANKS "$P --tp 3 --out $W/%s --sample abc --tokens 60 --temperature 0 --threads 1", 3, name);
        CHECK_SAID(expected);
    }
}

// ---- bytes

// What a rank sends the others of its group of R in a step whose only row has N tokens. A gather or a reduction is
// ceil(N / R) tokens of every channel to each other rank: in a block 4 forward and 4 backward, 4 more where it is
// computed again; the embedding and the classifier have one forward and one backward each. The classifier's parts are
// three fp32 a token.
static double tensor_bytes(int R, int N, int elem, int computed_again) {
    double share = (double)CEIL_DIV(N, R) * WIDTH * elem * (R - 1);
    return share * (LAYERS * (computed_again ? 12 : 8) + 4) + 3.0 * 4 * N * (R - 1);
}

CLAIM(activations_move_by_the_formula) {
    const struct {
        const char* name;
        int ranks, elem, computed_again;
    } runs[] = {{"two", 2, 4, 0}, {"three", 3, 4, 1}, {"three_bf16", 3, 2, 0}};
    for (int i = 0; i < COUNT(runs); i++) {
        double bytes[STEPS] = {0}, rows[STEPS] = {0};
        const Curve* c = curve_of(runs[i].name);
        CHECK(log_values(runs[i].name, "micro_batches", rows, STEPS) == STEPS);
        CHECK(log_values(runs[i].name, "bytes.tensor", bytes, STEPS) == STEPS);
        for (int t = 0; t < STEPS; t++) {
            CHECK(rows[t] == 1);
            CHECK_CLOSE(bytes[t], tensor_bytes(runs[i].ranks, (int)c->tokens[t], runs[i].elem, runs[i].computed_again),
                        0);
        }
    }
}

// ---- rounding at random

// A learning rate that is 0 in fp32 leaves the masters as they began, so that what is saved is their rounding alone.
CLAIM(weights_are_rounded_alike_however_the_model_is_divided) {
    const struct {
        int ranks;
        const char *model, *options;
    } ways[] = {{1, SHARED, ""},
                {3, SHARED, "--tp 3"},
                {4, SHARED, "--tp 2 --zero 3"},
                {4, SHARED, "--pp 2 --tp 2"},
                {3, SHARED, "--strategies 'tp2+tp1'"},
                {1, "", ""},
                {3, "", "--tp 3"},
                {4, "", "--layout $W/unlike"}};
    CHECK_SH(0, "printf 'tp 2\\nstage\\n layers 1 tp 1 zero 3\\n layers 1 zero 2\\n' > $W/unlike");
    for (int i = 0, one = 0; i < COUNT(ways); i++) {
        if (ways[i].ranks == 1) one = i;
        CHECK_SH(0,
                 ON_RANKS "$P " TINY
                          "%s --dtype bf16,rounding=stochastic --lr 1e-60 --steps 1 --save-every 1 %s "
                          "--out $W/rounded%d",
                 ways[i].ranks, ways[i].model, ways[i].options, i);
        CHECK_SH(0, "cmp $W/rounded%d/step-000001/model.safetensors $W/rounded%d/step-000001/model.safetensors", one,
                 i);
    }
}

// ---- refusals

CLAIM(a_group_that_cannot_be_is_refused_in_one_line) {
    static const Refusal rows[] = {
        {"--tp 2", "rank 0: --tp: tensor-parallel groups of 2 do not divide 3 ranks; try mpirun -n 4\n", 3},
        {"--tp 2", "--tp: tensor-parallel groups of 2 do not divide 1 rank; try mpirun -n 2\n", 1},
        {"--tp 6", "rank 0: --tp 6: expected at most as many ranks as heads, found 5 heads; try --tp 5\n", 6},
        {"--tp 3 --arch hidden=2", "--tp 3: expected at most as many ranks as hidden units, found 2", 3},
        {"--tp 0", "rank 0: --tp expects a whole number from 1 to 64", 2}};
    CHECK_REFUSALS(TINY "--out $W/refused", rows);
    curve_of("two");  // which has --tp 2 among its options
    CHECK_REFUSED("groups of 2 do not divide 1 rank", "$P --resume --tp 2 --threads 1 --out $W/two");
    CHECK_SH(0, "$P --resume --threads 1 --out $W/two");  // with what is given alone
    CHECK_SAID("without its saved --tp 2, which 1 rank cannot have");
}

PROGRAM_TEST { write_ragged_corpus(60, 7.6, 25); }
