// test_virtual.c - the whole program on virtual ranks (--device virtual): its steps take what the cost model predicts
// of their plans, the same digits in every run, over a CPU the same bits. Started alone; it starts mpirun itself.

#define RUN_FORKED
#include "dev/lengths.h"
#include "test/program.h"

#define SHAPE "--layers 2 --width 32 --context 16384 --batch-tokens 49152 "

enum { STEPS = 2, MOST_LOG = 1 << 20 };

// ---- what is trained on, and on what

// Two sources of lengths: most documents short and a few long; all of about one length.
static void write_document(const char* folder, int d, char letter, int n) {
    static char text[16384];
    memset(text, letter, sizeof text);
    write_text(filled("%s/%03d.txt", folder, d), text, (size_t)MIN(n, (int)sizeof text));
}

static void write_corpora(void) {
    CHECK_SH(0, "mkdir -p $W/skewed $W/even $W/mixed $W/blocks");
    for (int d = 0; d < 24; d++) write_document("mixed", d, 'a', d % 3 ? 5000 : 16000);
    for (int d = 0; d < 240; d++) {
        double u = random_uniform(5, (uint64_t)d);
        if (d % 2) write_document("even", d, (char)('a' + d % 26), 2500 + (int)(1500 * u));
        else write_document("skewed", d, (char)('a' + d % 26), (int)exp(4 + 5.6 * u * u));
    }
    for (int d = 0; d < 40; d++) write_document("blocks", d, (char)('a' + d % 26), 255);  // 256 tokens with their end
}

// With step_ms, gradients and weights take no time of their own: that is what no plan's prediction has.
static void write_machines(void) {
#define MACHINE                                                                                \
    "quadratic_ms 5e-6\nlinear_ms 0.18\nmicro_batch_ms 12\ntoken_bytes 2097152\ngroup 2 119\n" \
    "group 4 104\ngroup 8 96\ngroup 16 10\n"
    put_text("published", MACHINE "name published\nstep_ms 300\ncapacity 5000\n");
    put_text("measured",
             "name measured\nquadratic_ms 2e-5\nlinear_ms 0.05\nmicro_batch_ms 6\nstep_ms 20\ncapacity 4800\n"
             "link inside 1024 0.02\nlink inside 1048576 0.03\nlink inside 67108864 0.4\n"
             "link across 1024 0.04\nlink across 1048576 0.09\nlink across 67108864 3\nmodel 32 4096 2\n");
    put_text("only_matmuls",
             "name only_matmuls\nlinear_ms 0.05\nquadratic_ms 0\ncapacity 16384\n"
             "link inside 0 0\nlink inside 1000000000 0\nmodel 7 64 2\n");
    put_text("two_nics", MACHINE "name two_nics\nstep_ms 300\nnics 2\ncapacity 5000\n");
    // 2^30 parameters; with ZeRO-3 4864 tokens fit on 8 ranks.
    put_text("weights", MACHINE "name weights\nmemory 40 1 8\n");
    put_text("slow_half", MACHINE "name slow_half\nmemory 40 1 8\nranks 0 1 0\nranks 8 0.6 0\n");
    put_text("slow_links",
             "name slow_links\nquadratic_ms 2e-5\nlinear_ms 0.05\nmicro_batch_ms 6\nstep_ms 20\ncapacity 24000\n"
             "link inside 1024 0.02\nlink inside 1048576 0.06\nlink inside 67108864 3\nmodel 32 4096 2\n");
    put_text("no_step",
             "name no_step\nlinear_ms 0.05\nquadratic_ms 1e-5\ncapacity 16384\n"
             "link inside 0 0\nlink inside 1000000000 100\nmodel 2 32 2\n");
}

// ---- times

static void read_ms(const char* out, const char* member, double ms[STEPS]) {
    CHECK(log_values(out, member, ms, STEPS) == STEPS);
}

static void check_predicted(int ranks, const char* options, double tolerance) {
    if (run_on(ranks, "run", SHAPE "--device virtual --steps %d %s", STEPS, options)) return;
    CHECK_LOGGED("run", "measured_ms", "run", "predicted_ms", STEPS, tolerance);
}

// Tokens do not always divide, and whoever has the most sets the pace: the model knows it of heads alone.
static void plans_take_what_is_predicted(int ranks) {
    const char *plans[] = {"static --cp 4", "flex", "adaptive"}, *machines[] = {"published", "measured"},
               *data[] = {"skewed", "even"};
    for (int i = 0; i < 12; i++) {
        // Ranks that share a document of a pass meet in every layer; the model plays the passes of flex as wholes.
        check_predicted(ranks,
                        filled("--heads 16 --overlap no --plan %s --machine $W/%s --data $W/%s", plans[i / 4],
                               machines[i % 2], data[i / 2 % 2]),
                        strcmp(plans[i / 4], "flex") ? 0.002 : 0.005);
    }
}

CLAIM(plans_of_8_ranks_take_what_is_predicted) { plans_take_what_is_predicted(8); }
CLAIM(plans_of_16_ranks_on_2_nodes_take_what_is_predicted) { plans_take_what_is_predicted(16); }

#define PUBLISHED "--machine $W/published --data $W/skewed "
#define MEASURED "--machine $W/measured --data $W/skewed "
#define SHOWN "--heads 16 --overlap no "
#define ZERO SHOWN "--arch llama --layers 12 --width 128 --machine $W/weights --data $W/skewed --capacity 4864 "
#define WHOLE                                                                                              \
    "--heads 32 --arch llama --layers 12 --width 128 --machine $W/weights --data $W/mixed --val $W/mixed " \
    "--capacity 4864 "

// Where a claim begins it has a name.
static const struct Predicted {
    const char* claim;
    int ranks;
    const char* options;
    double tolerance;
} predicted[] = {
    // Nothing is shared, so nothing is rounded to whole tokens or heads: what is left is rounding of sums.
    {"one_rank_takes_exactly_what_is_predicted", 1, MEASURED "--capacity 16384", 1e-12},
    // Other systems' planners: with barriers after each of their rounds, or without.
    {"every_planner_takes_what_is_predicted", 16, SHOWN MEASURED "--plan flexsp", 0.02},
    {NULL, 8, SHOWN PUBLISHED "--plan flexsp", 0.02},
    {NULL, 16, SHOWN MEASURED "--plan hydraulis", 0.02},
    {NULL, 8, SHOWN PUBLISHED "--plan hydraulis", 0.02},
    {NULL, 16, SHOWN MEASURED "--plan zeppelin", 0.02},
    {NULL, 8, SHOWN PUBLISHED "--plan zeppelin", 0.02},
    {NULL, 16, SHOWN MEASURED "--plan megatron", 0.02},
    {NULL, 8, SHOWN PUBLISHED "--plan megatron", 0.02},
    {NULL, 8, MEASURED "--plan fixed --capacity 16384", 0.002},
    // Tokens elsewhere than their attention: ranks that get tokens of several others meet them one after another, which
    // the model does not know. Rings whose messages between nodes go through proxies, with a NIC for each rank or
    // fewer.
    {"remapped_and_routed_steps_take_what_is_predicted", 16, SHOWN PUBLISHED "--plan zeppelin,remap=yes", 0.05},
    {NULL, 16, SHOWN MEASURED "--plan zeppelin,remap=yes", 0.05},
    {NULL, 16, SHOWN PUBLISHED "--cp 16,kind=ring --plan route=yes", 0.005},
    {NULL, 16, SHOWN MEASURED "--cp 16,kind=ring --plan route=auto", 0.005},
    {NULL, 16, SHOWN PUBLISHED "--cp 16,kind=ring --plan route=yes --machine $W/two_nics", 0.005},
    // What ZeRO-2 and 3 gather and reduce in every round, and at the ends of a step.
    {"what_zero_moves_takes_what_is_predicted", 8, ZERO "--zero 2 --plan flex", 0.005},
    {NULL, 8, ZERO "--zero 3 --plan flex", 0.005},
    {NULL, 8, ZERO "--zero 2 --plan flexsp", 0.005},
    {NULL, 8, ZERO "--zero 3 --plan flexsp", 0.005},
    {NULL, 8, ZERO "--zero 2 --plan static --cp 4", 0.005},
    {NULL, 8, ZERO "--zero 3 --plan static --cp 4", 0.005},
    // What steps move at their ends, and in rounds; documents shared by ranks of several nodes, whose exchanges go over
    // the same links; a slow half; tensor parallelism, whose exchanges hide. Steps behind the first gather weights.
    {"whole_steps_take_what_is_predicted", 16, WHOLE "--zero 1", 0.005},
    {NULL, 16, WHOLE "--zero 2", 0.005},
    {NULL, 16, WHOLE "--zero 3", 0.01},
    {NULL, 16, WHOLE "--zero 1 --overlap no", 0.005},
    {NULL, 16, WHOLE "--zero 3 --overlap no", 0.005},
    {NULL, 16, WHOLE "--zero 1 --tp 2", 0.005},
    // Blocks computed again: that their forward pass hides exchanges once more is not in the prediction.
    {NULL, 16, WHOLE "--zero 1 --recompute block --overlap no", 0.005},
    {NULL, 16, WHOLE "--zero 3 --recompute block", 0.03},
    {NULL, 16, WHOLE "--zero 1 --tp 2 --recompute block", 0.03},
    {NULL, 16, MEASURED "--zero 1 --recompute block", 0.01},
    {NULL, 16, WHOLE "--zero 2 --tp 2 --plan static --cp 4", 0.015},
    {NULL, 16, WHOLE "--zero 1 --plan hydraulis", 0.005},
    {NULL, 16, WHOLE "--zero 1 --plan flexsp", 0.005},
    {NULL, 16, WHOLE "--zero 1 --machine $W/slow_half", 0.005},
    {NULL, 16, WHOLE "--zero 1 --pp 2", 0.02},
    // Any groups anywhere: rings, heads, both. Ranks of a ring whose neighbours are of their own node end before those
    // beside another node, and may go on: plans that chain such groups at random, in uneven shares, differ by up to
    // 5 %, and by 8 % where some have no share at all, and the rest exchange among fewer ranks than the model counts.
    {"any_plan_takes_what_is_predicted", 24, SHOWN PUBLISHED "--plan random", 0.05},
    {NULL, 24, SHOWN MEASURED "--plan random --tp 2", 0.05},
    {NULL, 24, SHOWN PUBLISHED "--plan flex --cp kind=ring", 0.002},
    {NULL, 24, SHOWN MEASURED "--cp 3,kind=ring --capacity 8000", 0.002},
    {NULL, 16, SHOWN PUBLISHED "--plan flex --tp 4 --recompute activation --data $W/even", 0.002},
    {NULL, 16, SHOWN MEASURED "--plan adaptive --tp 2 --data $W/even", 0.002},
    {NULL, 12, SHOWN PUBLISHED "--plan random --preset llama-tiny --width 64 --arch kv-heads=4", 0.1},
    {NULL, 64, SHOWN MEASURED "--plan random --batch-tokens 200000", 0.05},
    // Heads in parts, rings, both; documents alone in a pass, and beside local ones.
    {"what_hides_under_its_own_attention_takes_what_is_predicted", 16, "--heads 32 --plan flex " PUBLISHED, 0.02},
    {NULL, 16, "--heads 32 --plan flex " MEASURED, 0.02},
    {NULL, 16, "--heads 32 --cp 8,kind=ring --machine $W/published --data $W/even", 0.02},
    {NULL, 16, "--heads 32 --cp 16,kind=ring --plan route=yes --machine $W/published --data $W/even", 0.02},
    {NULL, 16, "--heads 32 --cp 16,kind=auto --machine $W/measured --data $W/even", 0.02},
    {NULL, 16, "--heads 32 --plan flexsp --machine $W/slow_links --capacity 4800 --data $W/even", 0.02},
    {NULL, 16, "--heads 32 --zero 3 --machine $W/slow_links --data $W/mixed --val $W/mixed", 0.02},
    // Ragged documents, groups of ranks in every stage, tensor parallelism: what stages wait for is in the prediction.
    {"pipelines_take_what_is_predicted", 8, MEASURED "--overlap no --pp 2", 0.05},
    {NULL, 8, "--machine $W/measured --data $W/even --overlap no --pp 2 --plan static --cp 4", 0.05},
    {NULL, 8, PUBLISHED "--overlap no --pp 2 --tp 2 --capacity 8192", 0.05},
    // Stages that begin inside nodes, and groups that end there.
    // Groups chain in a round: each part of a pass is that of the rank with most of it, which is too much together.
    {NULL, 12, SHOWN MEASURED "--pp 2 --plan node-size=4", 0.03},
    {NULL, 6, SHOWN MEASURED "--pp 2 --plan node-size=2 --cp 3 --capacity 6000", 0.02},
};

static void check_rows(const struct Predicted* row) {
    do check_predicted(row->ranks, row->options, row->tolerance);
    while (++row < predicted + COUNT(predicted) && !row->claim);
}

// ms of the steps of a run with these options.
static void measure(int ranks, const char* options, double ms[STEPS]) {
    run_on(ranks, "run", SHAPE "--device virtual --steps %d %s", STEPS, options);
    read_ms("run", "measured_ms", ms);
}

CLAIM(rings_of_many_nodes_are_faster_by_routes) {
    double direct[STEPS], routed[STEPS];
    measure(16, "--heads 16 " PUBLISHED "--cp 16,kind=ring", direct);
    measure(16, "--heads 16 " PUBLISHED "--cp 16,kind=ring --plan route=auto", routed);
    for (int i = 0; i < STEPS; i++) CHECK(routed[i] < 0.8 * direct[i]);
}

// A message of b bytes takes b / 1e7 ms there.
CLAIM(without_step_ms_gradients_and_weights_take_the_time_of_their_bytes) {
    double measured[STEPS], plan_ms[STEPS], bytes = 0;
    measure(8, "--verbose --heads 4 --overlap no --plan static --cp 1 --machine $W/no_step --data $W/even", measured);
    read_ms("run", "plan_ms", plan_ms);
    const char *sent = strstr(output, "sent by all ranks"), *kinds[] = {"gradients ", "parameters "};
    for (int i = 0; i < COUNT(kinds); i++) {
        const char* at = sent ? strstr(sent, kinds[i]) : NULL;
        CHECK(at != NULL);
        bytes += at ? atof(at + strlen(kinds[i])) * (1 << 20) / 8 / STEPS : 0;  // of a rank in a step
    }
    for (int i = 0; i < STEPS; i++)  // known to 0.1 MiB of all ranks and steps
        CHECK_CLOSE(measured[i] - plan_ms[i], bytes / 1e7, 0.1 * (1 << 20) / 8 / STEPS / 1e7);
    CHECK_LOGGED("run", "measured_ms", "run", "predicted_ms", STEPS, 1e-9);
}

// Lengths as they were published, up to 32768: two steps of 2^20 tokens.
static void write_lengths(const char* name) {
    enum { MOST_DOCUMENTS = 8192, CONTEXT = 32768, TOKENS = 5 << 19 };
    static int lengths[MOST_DOCUMENTS];
    char why[ERR_BYTES], path[64];
    snprintf(path, sizeof path, "%s.jsonl", name);
    Lengths* source = lengths_open(name, CONTEXT, CONTEXT, why);
    if (!source) die("%s", why);
    lengths_draw(source, lengths, MOST_DOCUMENTS, 1, 0);
    FILE* file = fopen(path_of(path), "w");
    for (int i = 0, sum = 0; file && i < MOST_DOCUMENTS && sum < TOKENS; sum += lengths[i++])
        fprintf(file, "{\"text\": \"%0*d\"}\n", MAX(lengths[i] - 1, 1), 0);
    CHECK(file && fclose(file) == 0);
    lengths_close(source);
}

// Three cells of dev/results/steps.md: whole steps on 64 ranks, under flex and under published planners.
CLAIM(steps_under_flex_are_no_longer_than_under_any_published_planner) {
    static const struct {
        const char *machine, *lengths;
        int zero;
    } cells[] = {{"a100-7b", "github", 3}, {"h200-8b", "arxiv", 1}, {"a100-7b", "sft", 1}};
    static const char* const others[] = {"flexsp", "hydraulis", "adaptive"};
    for (int c = 0; c < COUNT(cells); c++) {
        double ms[STEPS], flex = 0;
        write_lengths(cells[c].lengths);
        for (int k = -1; k < COUNT(others); k++) {
            run_on(64, "run",
                   "--device virtual --machine %s --zero %d --plan %s --data $W/%s.jsonl --val $W/%s.jsonl --preset "
                   "llama-3.1-8b --vocab 128256 --context 32768 --batch-tokens 1048576 --steps %d",
                   cells[c].machine, cells[c].zero, k < 0 ? "flex" : others[k], cells[c].lengths, cells[c].lengths,
                   STEPS);
            read_ms("run", "measured_ms", ms);
            if (k < 0) flex = ms[0] + ms[1];
            else CHECK(flex < 1.003 * (ms[0] + ms[1]));
        }
    }
}

// ---- slow ranks

// What the first decision of a run promised to win, ms a step, and what it won: the step before it and the one after.
static void check_promise(int ranks, const char* options) {
    double ms[8], idle = NAN, expected = NAN;
    run_on(ranks, "run",
           "--layers 2 --width 1024 --heads 32 --context 1024 --capacity 8192 --batch-tokens 8192 --data $W/even "
           "--overfit --machine h200-8b --device virtual --tp %d --plan refresh=4 --balance migrate --steps 6 %s",
           ranks, options);
    const char* said = strstr(output, "balance: ");
    CHECK(said && sscanf(said, "balance: %lf ms a step without, %lf ms expected", &idle, &expected) == 2);
    CHECK(log_values("run", "measured_ms", ms, 8) == 6);
    CHECK_CLOSE(idle - expected, ms[2] - ms[5], 0.1 * (ms[2] - ms[5]));
}

CLAIM(a_decision_wins_what_it_promises_within_a_tenth) {
    check_promise(8, "--straggle rank=1,x=2");
    check_promise(8, "--straggle rank=1,x=8");
    check_promise(4, "--straggle rank=3,x=4,whole");
    check_promise(4, "--balance resize --straggle rank=1,x=4");
    check_promise(4, "--balance semi --straggle rank=1,x=8");
    check_promise(8, "--straggle 'rank=0,x=8;rank=2,x=6;rank=5,x=4;rank=7,x=2'");
    check_promise(8, "--balance semi --straggle 'rank=0,x=8;rank=2,x=6;rank=5,x=4;rank=7,x=2'");
    check_promise(4, "--arch llama,kv-heads=8 --straggle 'rank=0,x=4;rank=2,x=2'");
}

// Refreshes follow steps 5, 10, ...: a rank that is slow from step 6 on leaves out, from step 11 on, what makes it as
// fast as the others, which leave out nothing. So the step then takes as long as without a slow rank.
CLAIM(what_is_left_out_follows_who_is_slow) {
    enum { LAST = 55, FIRST = 6, SECOND = 26, GONE = 41, LATER = 5 };
    double ms[LAST], gamma[4];
    run_on(4, "run",
           "--layers 2 --width 1024 --heads 32 --context 1024 --capacity 8192 --batch-tokens 8192 --data $W/even "
           "--overfit --machine h200-8b --device virtual --tp 4 --plan refresh=5 --balance resize --steps 55 "
           "--straggle 'rank=1,x=4,from=6,to=25;rank=2,x=4,from=26,to=40'");
    CHECK(log_values("run", "measured_ms", ms, LAST) == LAST);
    CHECK_SH(0, "grep -o '\"gamma\": [^]]*' $W/run/log.jsonl");
    const char* at = output;
    for (int t = 1; t <= LAST; t++, at += strcspn(at, "\n") + 1) {
        int slow = t < FIRST + LATER || t >= GONE + LATER ? 0 : t < SECOND + LATER ? 1 : 2;
        CHECK(sscanf(at, "\"gamma\": [%lf, %lf, %lf, %lf", &gamma[0], &gamma[1], &gamma[2], &gamma[3]) == 4);
        for (int r = 0; r < 4; r++) CHECK(slow && r == slow ? gamma[r] > 0.5 : gamma[r] == 0);
        int is_settled = t < FIRST || t >= GONE || (t >= FIRST + LATER && (t < SECOND || t >= SECOND + LATER));
        CHECK(is_settled ? ms[t - 1] < 1.1 * ms[2] : ms[t - 1] > 2 * ms[2]);
    }
}

// A stage learns how slow its ranks are, and plans go by each data rank's slowest stage: two ranks of a third of the
// pace of two others in another place, or one of them, leave (1 + 1/3) / 2 of what there was. Each step has a plan of
// its own, and takes what is predicted.
CLAIM(pipelines_give_less_to_those_with_a_slow_stage) {
    static const char* const slow[] = {"rank=1,x=3,whole", "rank=3,x=3,whole", "rank=1,x=3,whole;rank=3,x=2,whole"};
    enum { LAST = 10, SETTLED = 6 };
    double usual[LAST], waits[LAST], ms[LAST], said[LAST];
#define PIPELINE                                                                                                      \
    "--layers 8 --width 64 --heads 8 --context 256 --batch-tokens 8192 --data $W/skewed --steps 10 --plan refresh=3 " \
    "--device virtual --machine h200-8b --pp 2 "
    run_on(4, "run", PIPELINE), log_values("run", "measured_ms", usual, LAST);
    for (int i = 0; i < COUNT(slow); i++) {
        run_on(4, "run", PIPELINE "--straggle '%s'", slow[i]);
        CHECK(log_values("run", "measured_ms", waits, LAST) == LAST);
        run_on(4, "run", PIPELINE "--straggle '%s' --balance migrate", slow[i]);
        CHECK(log_values("run", "measured_ms", ms, LAST) == LAST);
        CHECK(log_values("run", "predicted_ms", said, LAST) == LAST);
        for (int s = SETTLED; s < LAST; s++) {
            CHECK(waits[s] > 2.2 * usual[s] && ms[s] < 1.1 * 1.5 * usual[s]);
            CHECK_CLOSE(said[s], ms[s], 0.02 * ms[s]);
        }
    }
}

// In each stage the ranks of a group take over what the slow one gives: of four ranks one at a quarter or a third of
// the pace leaves 3.25 or 3.33 of 4.
CLAIM(pipelines_decide_in_every_stage) {
    double usual[STEPS], slow[8];
#define GROUPS                                                                                                       \
    "--layers 8 --width 512 --heads 16 --context 256 --capacity 512 --batch-tokens 4096 --data $W/blocks --overfit " \
    "--plan refresh=2 --device virtual --machine h200-8b --tp 4 --pp 2 "
    run_on(8, "run", GROUPS "--steps %d", STEPS), read_ms("run", "measured_ms", usual);
    run_on(8, "run", GROUPS "--steps 8 --balance migrate --straggle 'rank=1,x=4;rank=6,x=3'");
    CHECK_SAID("balance: stage 0, & ms expected; 1 gives & balance: stage 1, & ms expected; 2 gives");
    CHECK(log_values("run", "measured_ms", slow, 8) == 8);
    CHECK(slow[0] > 3 * usual[0] && slow[7] < 1.35 * usual[0]);
}

// Decisions of stages that differ change no loss; a run that goes on has the same bits.
CLAIM(pipelines_that_migrate_lose_nothing) {
    double found[6], again[6];
#define FOUR                                                                                                     \
    "--data $W/even --layers 3 --heads 8 --width 64 --context 256 --capacity 256 --batch-tokens 1024 --steps 6 " \
    "--eval-every 0 --sample-every 0 --save-every 4 --keep 0 --dtype fp32 --threads 1 --machine h200-8b --tp 2 " \
    "--pp 2 --plan refresh=2 "
    run_on(4, "exact", FOUR);
    const char* slow = "--device virtual-cpu --machine h200-8b --straggle 'rank=1,x=4;rank=2,x=3'";
    run_on(4, "run", FOUR "%s --balance migrate", slow);
    CHECK_SAID("balance: stage 0, & 1 gives & balance: stage 1, & 0 gives");
    CHECK(log_values("run", "loss", found, 6) == 6);
    CHECK_LOSSES("run", "exact", 6, 2e-7);
    CHECK_SH(0, ON_RANKS "$P --resume step-000004 --out $W/run %s", 4, slow);
    CHECK(log_values("run", "loss", again, 6) == 6 && memcmp(again, found, sizeof again) == 0);
}

// What was measured goes on with the run: losses and times of steps are those of a run that was not left, whether it
// was left between two refreshes or where one was due.
CLAIM(a_run_that_goes_on_balances_as_if_it_had_not_been_left) {
    enum { ALL = 14 };
    static const struct {
        const char* options;
        int left;
    } rows[] = {{"--balance documents --tp 1 --pp 1", 7},
                {"--balance migrate --tp 1 --pp 1 --strategies '4xtp1; tp4' --capacity 130", 8},
                {"--balance migrate --pp 1", 7},
                {"--balance resize --pp 1", 10},
                {"--balance migrate", 8}};
    for (int i = 0; i < COUNT(rows); i++) {
        double ms[2][ALL], loss[2][ALL];
        const char* slow =
            "--device virtual-cpu --machine h200-8b --straggle "
            "'rank=1,x=3,whole,from=2,to=9;rank=2,x=2,whole,from=4'";
        run_on(4, "run", FOUR "%s --plan refresh=4 --steps 14 --save-every %d %s", rows[i].options, rows[i].left, slow);
        for (int again = 0; again < 2; again++) {
            CHECK(log_values("run", "measured_ms", ms[again], ALL) == ALL);
            CHECK(log_values("run", "loss", loss[again], ALL) == ALL);
            if (!again) CHECK_SH(0, ON_RANKS "$P --resume step-%06d --out $W/run %s", 4, rows[i].left, slow);
        }
        for (int s = rows[i].left; s < ALL; s++) {
            CHECK(loss[1][s] == loss[0][s]);
            // weights of the first step have moved before it, and not under the update of the one before
            CHECK_CLOSE(ms[1][s], ms[0][s], (s == rows[i].left ? 1e-4 : 1e-5) * ms[0][s]);
        }
    }
}

// Nor does what ranks divide: with ZeRO-2 and 3 the losses are those of ZeRO-1, of what is left out, too.
CLAIM(zero_2_and_3_lose_nothing_where_slices_move) {
    static const char* const modes[] = {"migrate", "resize", "semi,lambda=4"};
    for (int i = 0; i < COUNT(modes); i++)
        for (int zero = 1; zero <= 3; zero++) {
            run_on(4, zero == 1 ? "zero_1" : "run",
                   FOUR "--pp 1 --zero %d --balance %s --device virtual-cpu --straggle 'rank=1,x=4;rank=3,x=4'", zero,
                   modes[i]);
            CHECK_SAID("balance: & ms expected; 1 ");
            CHECK_LOSSES(zero == 1 ? "zero_1" : "run", "zero_1", 6, 2e-7);
        }
}

CLAIM(overlap_hides_communication) {
    double hidden[STEPS], shown[STEPS], waited[STEPS], exposed[STEPS];
#define RINGS "--heads 16 --cp 8,kind=ring --machine $W/measured --data $W/even "
    measure(8, RINGS, hidden), read_ms("run", "exposed_seconds", waited);
    measure(8, RINGS "--overlap no", shown), read_ms("run", "exposed_seconds", exposed);
    for (int i = 0; i < STEPS; i++) {
        CHECK(waited[i] < 0.5 * exposed[i]);
        // What a rank no longer waits for, its step is shorter by; but for what reaches into the next step.
        CHECK_CLOSE(shown[i] - hidden[i], 1e3 * (exposed[i] - waited[i]), 0.01 * shown[i]);
    }
}

// Both ranks share all documents: the step is the slow one's, which computes 3 times as long; nothing else changes.
CLAIM(a_slow_rank_slows_those_that_share_its_documents) {
    double usual[STEPS], slowed[STEPS], waited[STEPS];
#define SHARED "--heads 4 --cp 2 --machine $W/no_step --data $W/even --overlap no "
    measure(2, SHARED, usual), read_ms("run", "exposed_seconds", waited);
    measure(2, SHARED "--straggle rank=1,x=3,whole", slowed);
    for (int i = 0; i < STEPS; i++)
        CHECK_CLOSE(slowed[i] - usual[i], 2 * (usual[i] - 1e3 * waited[i]), 1e-3 * usual[i]);
}

// Two ranks and two heads, so that a document's own parts hide nothing: what hides is the exchange of long documents,
// which both share, under the attention of short ones in the same pass. Without overlap nothing does, and plans know.
CLAIM(exchanges_hide_under_other_documents_as_is_predicted) {
    double hidden[STEPS], shown[STEPS];
#define HEADS "--heads 2 --cp kind=ulysses --machine $W/slow_links --data $W/mixed --val $W/mixed "
    check_predicted(2, HEADS, 1e-3), read_ms("run", "measured_ms", hidden);
    check_predicted(2, HEADS "--overlap no", 1e-3), read_ms("run", "measured_ms", shown);
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
    static char digits[2][MOST_LOG];
    const char* options[] = {"--heads 16 --machine $W/published",
                             "--heads 16 --machine $W/measured --tp 2 --capacity 16384 --balance migrate "
                             "--plan refresh=1 --straggle rank=1,x=4",
                             "--heads 16 --machine $W/measured --zero 3 --plan adaptive"};
    for (int i = 0; i < COUNT(options); i++) {
        for (int k = 0; k < 2; k++) {
            setenv("OMP_NUM_THREADS", k ? "3" : "1", 1);
            run_on(8, "run", SHAPE "--steps %d %s --device virtual --data $W/skewed%s", STEPS, options[i],
                   k ? " --threads 3" : "");
            read_digits("run", digits[k]);
        }
        unsetenv("OMP_NUM_THREADS");
        CHECK_STRING(digits[1], digits[0]);
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
            read_ms("run", "measured_ms", ms[i]);
        }
        read_ms("run", "bubble", bubble);
        for (int i = 0; i < STEPS; i++) {
            double theory = 3.0 / (3 + v);
            CHECK_CLOSE(1 - ms[0][i] / (4 * ms[1][i]), theory, 1e-9);
            CHECK_CLOSE(bubble[i], theory, 1e-9);
        }
    }
}

// ---- what it has not

CLAIM(what_has_no_result_is_refused_with_a_line) {
    static const Refusal rows[] = {
        {"", "needs --machine", 0},
        {"--machine a100-7b --sample x", "has no --sample", 0},
        {"--machine a100-7b --probe", "has no --probe", 0},
        {"--machine a100-7b --resume --out $W/run", "has no --resume", 0},
        {"--machine a100-7b --init $W/run", "has no --init", 0},
        {"--machine a100-7b --eval-every 5", "has no --eval-every", 0},
        {"--machine a100-7b --save-every 5", "has no --save-every", 0},
        {"--machine a100-7b --dump-grads $W/g", "has no --dump-grads", 0},
        {"--machine hydraulis-7b", "a rank alone has no times", 0},
        {"--machine hydraulis-7b --layout auto --memory 4G", "it has times of whole pipelines, for --strategies", 0},
    };
    CHECK_REFUSALS("--device virtual --data $W/even", rows);
}

CLAIM(a_table_beyond_the_machines_memory_is_refused) {
    const char* options = "--device virtual --machine $W/small --data $W/even --heads 4 " SHAPE;
    put_text("small",
             "name small\nlinear_ms 0.05\nquadratic_ms 1e-5\ncapacity 16384\n"
             "pipeline_memory 1 1 0 0 0 0 0 48 0 0 0 0 0\n");
    CHECK_REFUSED("found 48.0 MiB available (gpu_mib of the machine)", "$P %s --steps 1 --out $W/run", options);
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

// Four ranks with 64 GiB, four with 10 MiB. With the least for all rows are as short as those hold; the document that
// only a roomy rank holds is its own.
CLAIM(each_rank_of_a_machine_fills_its_own_memory) {
    const char* options =
        "--device virtual --data $W/even --layers 2 --width 32 --heads 4 --context 1024 --batch-tokens 65536 "
        "--verbose --steps 3 --plan node-size=4";
    static const char* const pairs[] = {"", "--pp 2"};
    double ms[2][STEPS];
    put_text("kinds",
             "name kinds\nlinear_ms 0.05\nquadratic_ms 1e-5\nmicro_batch_ms 20\nranks 0 1 64\nranks 4 1 0.01\n");
    put_text("small_card", "name kinds\nlinear_ms 0.05\nquadratic_ms 1e-5\nmicro_batch_ms 20\nranks 0 1 0.01\n");
    for (int i = 0; i < 2; i++) {
        run_on(8, "run", "%s --machine $W/%s", options, i ? "small_card" : "kinds");
        const char* rows = strstr(output, "in rows of at most ");
        int least = 0, most = 0, read = rows ? sscanf(rows, "in rows of at most %d to %d, by rank", &least, &most) : 0;
        CHECK(i ? read == 1 : read == 2 && most >= 2 * least);
        read_ms("run", "measured_ms", ms[i]);
    }
    for (int s = 0; s < STEPS; s++) CHECK(ms[0][s] < ms[1][s]);
    // Stages of one data rank hold what the smaller card does: all alike, where each has one of both.
    run_on(8, "run", "%s --machine $W/kinds %s", options, pairs[1]);
    CHECK(strstr(output, "in rows of at most ") && !strstr(output, ", by rank"));
}

// A machine that says what a token takes: 7.5 GB less 7 GB of states leave 512 tokens of a MB, 15.5 GB 8704.
CLAIM(a_kind_of_ranks_fills_its_own_memory) {
    put_text("two_kinds",
             "name two_kinds\nlinear_ms 0.05\nquadratic_ms 1e-5\nmemory 7.5 1.75 1\nranks 0 1 15.5\nranks 2 1 0\n");
    run_on(
        4, "run",
        "--device virtual --data $W/even --layers 2 --width 32 --heads 4 --context 512 --batch-tokens 65536 --verbose "
        "--steps 1 --zero 3 --machine $W/two_kinds --memory 900G");
    CHECK(strstr(output, "in rows of at most 512 to 8704, by rank"));
}

PROGRAM_TEST {
    write_corpora();
    write_machines();
    for (int i = 0; i < COUNT(predicted); i++)
        if (predicted[i].claim) RUN_AS(predicted[i].claim, check_rows(&predicted[i]));
}
