// test_slow_ranks.c - the whole program on ranks of which some are slow: what is measured of them, what is done about
// them, and what that does to the loss; what it wins, and how it follows who is slow, in virtual time: test_virtual.c.
// Started alone; it starts mpirun itself.
//
// Slow ranks are injected (--straggle), so that how slow they are is known. Ranks share this machine's cores, where a
// rank's times are those of its own processor time. Other programs disturb even these: a claim about times holds if it
// does in one of three attempts, since what is wrong is wrong every time. Claims about losses hold always.
#include "test/numbers.h"
#include "test/program.h"

// Losses of runs of unlike length are comparable: the learning rate is constant.
#define COMMON                                                                                                         \
    "--data $W/corpus --layers 1 --heads 8 --schedule constant --lr 0.001 --warmup 0 --eval-every 0 --sample-every 0 " \
    "--save-every 0 --dtype fp32 --threads 1 --machine flexsp-7b --plan refresh=5 "
#define NARROW "--width 64 --context 64 --batch-tokens 256 "
// Two query heads for each key/value head; and fewer of these than ranks.
#define LLAMA "--arch llama,kv-heads=4,head-size=12,hidden=256,tie=no "
#define QWEN "--arch qwen2,kv-heads=2,head-size=16,hidden=256 "
#define WIDE "--width 256 --context 128 --batch-tokens 1024 "

enum { MOST_STEPS = 128, RANKS = 8, ATTEMPTS = 3 };

typedef enum Field { COMPUTE, WAIT, GAMMA, SENT, TAKEN, SPEED, FIELDS } Field;
static const char* const field_names[FIELDS] = {"compute_ms", "wait_ms", "gamma", "sent", "taken", "speed"};

typedef struct Step {
    double loss, seconds, slices;
    char hash[17];
    double of[FIELDS][RANKS];  // NaN: not known
} Step;

// ---- the log

static double number(const JsonValue* value) {
    double x = NAN;
    json_double(value, &x);
    return x;
}

typedef struct Steps {
    Step* step;
    int last;
} Steps;

static void read_step(void* context, const Json* json) {
    Steps* all = (Steps*)context;
    if (all->last == MOST_STEPS - 1 || !json_get(json->values, "loss_hash")) return;
    CHECK(number(json_get(json->values, "step")) == all->last + 1);
    Step* s = &all->step[++all->last];
    const JsonValue *root = json->values, *ranks = json_get(root, "ranks"), *bytes = json_get(root, "bytes");
    CHECK(json_text(json_get(root, "loss_hash"), s->hash, sizeof s->hash) == 0);
    s->loss = number(json_get(root, "loss"));
    s->seconds = number(json_get(root, "seconds"));
    s->slices = number(json_get(bytes, "slices"));
    for (int f = 0; f < FIELDS; f++) {
        const JsonValue* values = json_get(ranks, field_names[f]);
        CHECK(values && values->type == JSON_ARRAY && values->n <= RANKS);
        for (int r = 0; values && r < RANKS; r++) s->of[f][r] = number(json_at(values, r));
    }
}

// The steps in a run's log, step t at [t]. Returns the last one's number.
static int read_log(const char* run, Step* steps) {
    Steps all = {steps, 0};
    memset(steps, 0, MOST_STEPS * sizeof *steps);
    each_logged(run, read_step, &all);
    return all.last;
}

static char words[sizeof output];  // what the last run said

// Runs the program in an empty directory, or where a run is to be resumed. Returns the last step's number.
static int run_steps(int ranks, const char* options, const char* run, Step* steps) {
    if (!strstr(options, "--resume")) sh("rm -rf $W/%s", run);
    CHECK_SH(0, ON_RANKS "$P " COMMON "%s --out $W/%s", ranks, options, run);
    memcpy(words, output, sizeof words);
    return read_log(run, steps);
}

// ---- numbers

// Of one rank in the steps first .. last.
static double typical(const Step* steps, int first, int last, Field field, int r) {
    double values[MOST_STEPS];
    for (int t = first; t <= last; t++) values[t - first] = steps[t].of[field][r];
    return median_of(values, last - first + 1);
}

// The largest difference of losses, relative.
static double curves_differ(const Step* a, const Step* b, int last) {
    double most = 0;
    for (int t = 1; t <= last; t++) {
        double d = fabs(a[t].loss - b[t].loss) / b[t].loss;
        if (!(d <= most)) most = d;
    }
    return most;
}

// ---- what depends on times

static int misses;

#define expect(holds, ...) check_miss(holds, filled(__VA_ARGS__))
static void check_miss(int holds, const char* what) {
    if (!holds) misses++, printf("    missed: %s\n", what);
}

static void one_attempt_holds(void (*attempt)(void)) {
    for (int i = 0; i < ATTEMPTS; i++) {
        misses = 0;
        attempt();
        if (misses == 0 || test_failures_in_claim) return;
    }
    CHECK(!"held in one of three attempts");
}

// ---- undisturbed runs, which others are compared with

enum { UNDISTURBED = 60 };

typedef struct Undisturbed {
    const char *name, *options;
    int ranks, steps, have;
    Step step[MOST_STEPS];
} Undisturbed;

// Of three ranks the first has a key/value head with four query heads, the others one with two of four.
static Undisturbed gpt = {.name = "gpt", .options = NARROW "--tp 4 ", .ranks = 4, .steps = UNDISTURBED},
                   llama = {.name = "llama", .options = NARROW LLAMA "--tp 4 ", .ranks = 4, .steps = 30},
                   qwen = {.name = "qwen", .options = NARROW QWEN "--tp 3 ", .ranks = 3, .steps = 30};

static int have(Undisturbed* u) {
    if (!u->have)
        u->have = run_steps(u->ranks, filled("%s --steps %d", u->options, u->steps), u->name, u->step) == u->steps;
    CHECK(u->have);
    return u->have;
}

// The same run with other options too.
static int run_like(const Undisturbed* u, const char* options, Step* steps) {
    return run_steps(u->ranks, filled("%s --steps %d %s", u->options, u->steps, options), filled("like_%s", u->name),
                     steps);
}

// Nor does being slow, where nothing is done about it.
CLAIM(a_rank_that_is_slowed_by_one_changes_no_bit) {
    static const char* const straggle[] = {"'rank=1,x=1; rank=2,x=1,whole'", "'rank=1,x=2.5; rank=2,x=3,whole'"};
    static Step steps[MOST_STEPS];
    if (!have(&gpt)) return;
    for (int i = 0; i < COUNT(straggle); i++) {
        CHECK(run_steps(4, filled(NARROW "--tp 4 --steps 6 --straggle %s", straggle[i]), "slowed", steps) == 6);
        for (int t = 1; t <= 6; t++) CHECK_STRING(steps[t].hash, gpt.step[t].hash);
    }
}

// ---- what is measured

// With --balance resize the speed is slices over the time of the linears alone. It is known after the first refresh,
// while nothing is left out yet. Rank 0 is not slowed.
static void measure_slow_linears(const char* options, const double x[4]) {
    static Step steps[MOST_STEPS];
    double wall[MOST_STEPS], healthy[4];
    int slowest = 0, last = 7, n = 0;
    // Wider still: repeated matmuls find their operands in the caches, so that narrow ranks are slowed less.
    CHECK(run_steps(4,
                    filled(WIDE "--width 512 --batch-tokens 512 --tp 4 --steps 7 --plan refresh=6 "
                                "--balance resize %s",
                           options),
                    "measured", steps) == last);
    for (int r = 0; r < 4; r++)
        if (x[r] == 1) healthy[n++] = steps[last].of[SPEED][r];
    for (int r = 1; r < 4; r++) {
        if (x[r] == 1) continue;
        double found = median_of(healthy, n) / steps[last].of[SPEED][r];
        expect(found > 0.9 * x[r] && found < 1.1 * x[r], "rank %d is %.3g times as slow, expected %g", r, found, x[r]);
        if (x[r] > x[slowest]) slowest = r;
    }
    // The wall clock of rank 0 shows the slowest rank's time, rank 0's own computing does not.
    for (int t = 2; t < last; t++) wall[t] = 1e3 * steps[t].seconds;
    double slow = typical(steps, 2, last - 1, COMPUTE, slowest);
    expect(median_of(wall + 2, last - 2) > slow, "a step is over before its slowest rank");
    expect(typical(steps, 2, last - 1, COMPUTE, 0) < 0.6 * slow, "rank 0 seems slow itself");
}

static void measure_all(void) {
    measure_slow_linears("--straggle 'rank=1,x=1.5; rank=2,x=2; rank=3,x=4'", (double[]){1, 1.5, 2, 4});
    measure_slow_linears("--straggle 'rank=3,x=8'", (double[]){1, 1, 1, 8});
}

CLAIM(the_slowness_of_linears_is_measured_within_a_tenth) { one_attempt_holds(measure_all); }

// ---- losslessness

#define SLOW_RANK "--straggle 'rank=1,x=8,from=6' "

static int decided(const Step* steps, int last) {
    int n = 0;
    for (int t = 1; t <= last; t++) n += steps[t].slices > 0 || steps[t].of[SENT][1] > 0;
    return n;
}

// The run with slices that move by these options, and the losses of the one without.
static const Step* migrate(Undisturbed* u, const char* options) {
    static Step steps[MOST_STEPS];
    if (!have(u)) return steps;
    CHECK(run_like(u, options, steps) == u->steps);
    CHECK(curves_differ(steps, u->step, u->steps) < 1e-5);
    return steps;
}

static void migrate_by_steps(Undisturbed* u) {
    const Step* steps = migrate(u, "--balance migrate " SLOW_RANK);
    CHECK(decided(steps, u->steps) > u->steps / 2);
}

CLAIM(slices_that_move_for_a_step_leave_the_loss_curve_as_it_was) {
    migrate_by_steps(&gpt);
    migrate_by_steps(&llama);
    migrate_by_steps(&qwen);
    // Its head stays, which another rank shares, and a tile of its 64 hidden units.
    const char* gives = strstr(words, "; 1 gives ");
    CHECK(gives && atof(gives + strlen("; 1 gives ")) <= 64 - 16);
}

CLAIM(a_lambda_of_nothing_leaves_most_out_and_a_large_one_nothing) {
    static Step steps[MOST_STEPS];
    if (!have(&gpt)) return;
    CHECK(run_steps(4, NARROW "--tp 4 --steps 21 --balance semi,lambda=1e9 " SLOW_RANK, "dear", steps) == 21);
    CHECK(curves_differ(steps, gpt.step, 21) < 1e-5);
    for (int t = 1; t <= 21; t++)
        for (int r = 0; r < 4; r++) CHECK(steps[t].of[GAMMA][r] == 0);
    CHECK(decided(steps, 21) > 5);
    CHECK(run_steps(4, NARROW "--tp 4 --steps 21 --balance semi,lambda=0 " SLOW_RANK, "cheap", steps) == 21);
    CHECK(steps[21].of[GAMMA][1] > 0.6);
    CHECK(curves_differ(steps, gpt.step, 21) > 1e-4);
}

// ---- checkpoints

static int same_decision(const Step* a, const Step* b) {
    int same = 1;
    for (int f = GAMMA; f <= TAKEN; f++)
        for (int r = 0; r < 4; r++) same = same && a->of[f][r] == b->of[f][r];
    return same;
}

// Saves after step 12, between two refreshes, and goes on from there for two steps.
static void resume_between_refreshes(const char* balance, Step* whole, Step* resumed) {
    CHECK(run_steps(4, filled(NARROW "--tp 4 --steps 14 --save-every 12 --keep 0 %s --straggle rank=1,x=8", balance),
                    "whole", whole) == 14);
    CHECK_SH(0, "cd $W && rm -rf resumed && cp -r whole resumed && rm -r resumed/step-*14");
    CHECK(run_steps(4, "--resume --straggle rank=1,x=8", "resumed", resumed) == 14);
}

CLAIM(a_resumed_run_goes_on_with_its_lists_and_decision) {
    static const char* const balances[] = {"--balance resize", LLAMA "--balance resize", "--balance migrate",
                                           QWEN "--balance semi,lambda=0"};
    static Step whole[MOST_STEPS], resumed[MOST_STEPS];
    for (int i = 0; i < COUNT(balances); i++) {
        resume_between_refreshes(balances[i], whole, resumed);
        for (int t = 12; t <= 14; t++) {
            CHECK(same_decision(&resumed[t], &whole[t]));
            CHECK_STRING(resumed[t].hash, whole[t].hash);
        }
        CHECK(whole[14].of[GAMMA][1] > 0 || whole[14].of[SENT][1] > 0);
    }
}

CLAIM(a_run_that_is_resumed_by_other_ranks_decides_anew_and_says_so) {
    static Step steps[MOST_STEPS];
    CHECK(run_steps(4, NARROW "--tp 4 --steps 7 --save-every 7 --balance resize --straggle rank=1,x=8", "saved",
                    steps) == 7);
    CHECK(steps[7].of[GAMMA][1] > 0);
    double before = steps[7].loss;
    CHECK(run_steps(2, "--resume --tp 2 --steps 9 --straggle rank=1,x=8", "saved", steps) == 9);
    CHECK(has_words(words, "balance anew"));
    for (int r = 0; r < 2; r++) CHECK(steps[8].of[GAMMA][r] == 0);
    CHECK(fabs(steps[8].loss - before) < 0.5);
}

// ---- nobody slow

// Between medians of 19 steps only a rank that other programs disturb for long can seem slow: then a decision is right.
static void leave_healthy_ranks_alone(void) {
    static Step steps[MOST_STEPS];
    if (!have(&gpt)) return;
    CHECK(run_steps(4, NARROW "--tp 4 --steps 41 --plan refresh=20 --balance semi", "healthy", steps) == 41);
    for (int t = 1; t <= 41 && misses == 0; t++) {
        for (int r = 0; r < 4; r++)
            expect(steps[t].of[GAMMA][r] == 0 && steps[t].of[SENT][r] == 0, "step %d: rank %d is taken for slow", t, r);
        if (misses == 0) CHECK_STRING(steps[t].hash, gpt.step[t].hash);
    }
}

CLAIM(where_nobody_is_slow_nothing_is_decided_and_no_bit_changes) { one_attempt_holds(leave_healthy_ranks_alone); }

// ---- what is refused

CLAIM(what_cannot_be_meant_is_refused_in_one_line) {
    static const Refusal rows[] = {{"--straggle rank=1", "expected both rank= and x=", 2},
                                   {"--straggle rank=2,x=4", "from 0 to 1", 2},
                                   {"--tp 2 --straggle 'rank=0,x=fast'", "x=^fast", 2},
                                   {"--balance sometimes", "off|documents|resize|migrate|semi", 1}};
    CHECK_REFUSALS(COMMON NARROW "--steps 2 --out $W/refused", rows);
}

PROGRAM_TEST { write_ragged_corpus(60, 8.2, 15); }
