// test_strategies.c - the whole program with --strategies: pipelines of unlike degrees side by side, others every step,
// have the losses, gradients, weights and samples of one rank. Started alone; it starts mpirun itself.
#include "plan/model/holding.h"
#include "plan/layout/layout.h"
#include "test/numbers.h"
#include "test/plans.h"
#include "test/program.h"
#include "test/tensors.h"
#include "test/shapes.h"

enum { STEPS = 20, HALF = 10 };

#define TINY                                                                                                         \
    "--data $W/corpus --layers 4 --width 48 --heads 4 --context 320 --batch-tokens 1280 --lr 0.0003 --warmup 0 "     \
    "--steps 20 --save-every 10 --sample-every 10 --keep 0 --eval-every 10 --temperature 0 --tokens 32 --threads 1 " \
    "--dtype fp32 --machine $W/machine "
#define SLOW "--balance documents --plan refresh=4 --straggle 'rank=1,x=3,whole' "
#define LLAMA "--arch llama,kv-heads=2,tie=no "

// Distinct values of "strategy" in a run's log.
static int count_strategies(const char* name) {
    CHECK_SH(0, "grep -o '\"strategy\": \"[^\"]*' $W/%s/log.jsonl | sort -u | wc -l", name);
    return atoi(output);
}

static Curve run(const char* name, int ranks, const char* options) {
    run_on(ranks, name, TINY "%s", options);
    return curve_in(name, STEPS);
}

static Curve one, llama_one;

static void run_ones(void) {
    if (!one.loss[0]) one = run("one", 1, ""), llama_one = run("llama_one", 1, LLAMA);
}

static const struct {
    const char* options;
    int ranks, least;  // strategies that its steps choose at least
} jobs[] = {
    {"--capacity 400 --strategies 'tp2+2xtp1'", 4, 1},
    {"--capacity 400 --strategies 'tp2pp2+tp3'", 7, 1},
    {"--capacity 100 --strategies '4xtp1; tp4; tp3+tp1; 2xtp2; tp2pp2'", 4, 2},
    {LLAMA "--capacity 200 --strategies 'tp4+tp1; 5xtp1; 2xtp2+tp1' --plan static", 5, 2},
    {LLAMA "--capacity 330 --strategies 'pp3; tp3; 3xtp1' --recompute block", 3, 1},
    {"--capacity 400 --zero 2 --strategies 'tp2+2xtp1'", 4, 1},
    {"--capacity 100 --zero 3 --strategies '4xtp1; tp4; tp3+tp1; 2xtp2; 2xtp1pp2'", 4, 2},
    {LLAMA "--capacity 330 --zero 3 --strategies '2xtp2pp2; 8xtp1' --recompute block", 8, 1},
    {"--capacity 100 --strategies '4xtp1; tp4; tp3+tp1; 2xtp2; tp2pp2' " SLOW, 4, 2},
    {LLAMA "--capacity 330 --zero 3 --strategies '4xtp1; tp2+2xtp1; 2xtp1pp2' " SLOW, 4, 1},
};

CLAIM(unlike_pipelines_have_the_losses_of_one_rank) {
    run_ones();
    for (int i = 0; i < COUNT(jobs); i++) {
        const Curve c = run("job", jobs[i].ranks, jobs[i].options),
                    *like = strstr(jobs[i].options, LLAMA) ? &llama_one : &one;
        check_curves(jobs[i].options, &c, like, 0, STEPS, 1e-6);
        check_val(&c, like, 3, 1e-6);
        CHECK(count_strategies("job") >= jobs[i].least);
    }
}

// What ranks of a pipeline's groups give each other changes no loss; in virtual time, where paces are exact.
CLAIM(groups_whose_ranks_migrate_have_the_losses_of_one_rank) {
    static const struct {
        const char* options;
        int ranks;
    } rows[] = {{"--capacity 100 --strategies '4xtp1; tp4; tp3+tp1; 2xtp2; tp2pp2'", 4},
                {"--capacity 100 --zero 3 --strategies 'tp4; 2xtp2; 2xtp1pp2'", 4},
                {LLAMA "--capacity 200 --strategies 'tp4+tp1; 2xtp2+tp1' --zero 2", 5}};
    run_ones();
    for (int i = 0; i < COUNT(rows); i++) {
        const Curve c = run("moves", rows[i].ranks,
                            filled("%s --device virtual-cpu --balance migrate --plan refresh=4 "
                                   "--straggle 'rank=1,x=3,whole;rank=3,x=2,whole,from=10'",
                                   rows[i].options)),
                    *like = strstr(rows[i].options, LLAMA) ? &llama_one : &one;
        check_curves(rows[i].options, &c, like, 0, STEPS, 1e-6);
        check_val(&c, like, 3, 1e-6);
        CHECK(sh("grep -o '\"sent\": [^]]*' $W/moves/log.jsonl | grep -c '[1-9]'") == 0 && atoi(output) > 10);
    }
}

// Pipelines for all ranks, each kind once: tp at most 4, as there are heads, and at most 4 stages, as there are layers.
static void random_strategy(char text[256], uint64_t seed, int ranks) {
    int copies[5][5] = {{0}}, kinds = 0, n = 0;
    for (int draw = 0; ranks > 0; draw++) {
        int tp = pick(seed, 3 * (uint64_t)draw, 1, MIN(4, ranks)), most = MIN(4, ranks / tp);
        int pp = pick(seed, 3 * (uint64_t)draw + 1, 1, most);
        if (!copies[tp][pp] && ++kinds == 4) tp = pp = 1;
        copies[tp][pp]++, ranks -= tp * pp;
    }
    for (int tp = 4; tp > 0; tp--)
        for (int pp = 4; pp > 0; pp--)
            if (copies[tp][pp])
                n += snprintf(text + n, 256 - (size_t)n, "%s%dxtp%dpp%d", n ? "+" : "", copies[tp][pp], tp, pp);
}

// STRATEGY_CASES of them from STRATEGY_SEED on.
CLAIM(random_strategies_have_the_losses_of_one_rank) {
    static const char *plans[] = {"flex", "static", "adaptive"}, *recompute[] = {"none", "activation", "block"};
    const char *cases = getenv("STRATEGY_CASES"), *first = getenv("STRATEGY_SEED");
    uint64_t from = first ? strtoull(first, NULL, 10) : 1;
    run_ones();
    FOR_SEEDS(seed, from, from + (cases ? strtoull(cases, NULL, 10) : 2)) {
        int ranks = pick(seed, 100, 2, 8), n = pick(seed, 101, 1, 3), is_llama = pick(seed, 102, 0, 1), end = 0;
        char list[1024], options[1400];
        for (int i = 0; i < n; i++) {
            char text[256];
            random_strategy(text, 1000 * seed + (uint64_t)i, ranks);
            end += snprintf(list + end, sizeof list - (size_t)end, "%s%s", i ? "; " : "", text);
        }
        snprintf(options, sizeof options,
                 "%s--capacity %d --plan %s --recompute %s --overlap %s --zero %d --strategies '%s'",
                 is_llama ? LLAMA : "", pick(seed, 103, 320, 700), plans[pick(seed, 104, 0, 2)],
                 recompute[pick(seed, 105, 0, 2)], pick(seed, 106, 0, 1) ? "yes" : "no", pick(seed, 107, 1, 3), list);
        Curve c = run("random", ranks, options);
        check_curves(options, &c, is_llama ? &llama_one : &one, 0, STEPS, 1e-6);
    }
}

// Also where rows are as long as memory lets them be.
CLAIM(strategies_are_found_with_and_without_a_capacity) {
    run_ones();
    for (int i = 0; i < 2; i++) {
        Curve c = run("found", 4, i ? "--layout hydraulis --zero 2" : "--layout hydraulis --capacity 330");
        check_curves("found", &c, &one, 0, STEPS, 1e-6);
    }
}

// Of two files in $W.
static double difference(const char* a, const char* b) { return tensors_differ(path_of(a), path_of(b), 1); }

CLAIM(every_gradient_is_that_of_one_rank) {
    CHECK_SH(0, "$P " TINY "--dump-grads $W/one.grads");
    const struct {
        const char* list;
        int ranks;
        int zero;
    } ways[] = {
        {"tp2+2xtp1", 4, 1}, {"tp1pp2+2xtp2", 6, 1}, {"tp4+tp1pp4", 8, 1}, {"3xtp2", 6, 2}, {"2xpp2+tp3", 7, 3}};
    for (int i = 0; i < COUNT(ways); i++) {
        CHECK_SH(0, ON_RANKS "$P " TINY "--capacity 400 --zero %d --strategies '%s' --dump-grads $W/many.grads",
                 ways[i].ranks, ways[i].zero, ways[i].list);
        CHECK_CLOSE(difference("many.grads", "one.grads"), 0, 1e-5);
    }
}

// 20 steps that switch, beside 20 of one strategy. A Llama: a GPT-2's biases of keys have gradients of nothing but
// rounding, which AdamW makes as large as any others.
CLAIM(weights_after_switching_are_those_of_a_fixed_strategy) {
    run("fixed", 4, LLAMA "--capacity 400 --strategies 'tp2+2xtp1'");
    CHECK(count_strategies("fixed") == 1);
    for (int zero = 1; zero <= 3; zero += 2) {
        run("switching", 4,
            filled(LLAMA "--capacity 100 --zero %d --strategies '4xtp1; tp4; tp3+tp1; 2xtp2; 2xpp2'", zero));
        CHECK(count_strategies("switching") >= 2);
        double most = difference("switching/step-000020/model.safetensors", "fixed/step-000020/model.safetensors");
        CHECK_CLOSE(most, 0, 1e-5);
    }
}

#define SWITCHING                                                                                            \
    "mpirun --oversubscribe --bind-to none -n 4 sh -c 'echo $$ >$W/pid.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; " \
    "exec \"$@\"' sh %s " TINY                                                                               \
    "--dtype bf16 --schedule constant --eval-every 0 --save-every 0 --sample-every 0 --capacity 100 "        \
    "--strategies '4xtp1; tp4; tp3+tp1; 2xtp2; tp2pp2' "

// SIGTERM to one rank, as a node's manager sends it, not to the launcher. In bf16, whose masters are apart from
// weights.
CLAIM(a_signal_to_one_rank_ends_all_and_the_rest_repeats_to_the_bit) {
    enum { MOST = 1000 };
    static double whole[MOST], alone[MOST];
    if (!has_mpirun()) SKIP("mpirun is not here");
    pid_t pid = start(SWITCHING "--steps %d --out $W/told", program, MOST);
    for (int i = 0; i < 500 && steps_logged("told") < 3; i++) sleep_ms(20);
    CHECK_SH(0, "kill -TERM $(cat $W/pid.1)");
    CHECK(ended_within(pid, 20) == 0);
    int n = steps_logged("told") + 4;
    CHECK(n >= 7 && n < MOST);
    CHECK_SH(0, ON_RANKS "$P --resume --threads 1 --machine $W/machine --steps %d --out $W/told", 4, n);
    const char* hash = loss_hash();
    CHECK_SH(0, SWITCHING "--steps %d --out $W/whole", program, n);
    CHECK_STRING(hash, loss_hash());
    CHECK(count_strategies("whole") >= 2);
    run_on(1, "alone",
           TINY "--dtype bf16 --schedule constant --eval-every 0 --save-every 0 --sample-every 0 --steps %d", n);
    CHECK(log_values("whole", "loss", whole, MOST) == n && log_values("alone", "loss", alone, MOST) == n);
    for (int i = 0; i < MIN(n, MOST); i++) CHECK_CLOSE(whole[i], alone[i], 2e-3 * alone[i]);  // test_tp.c: BF16
}

// What rank 0 sends in a step between the parts of a strategy and the pieces of owners; divided: as holdings_of_parts
// has it.
static double expected_bytes(int ranks, const Part* parts, ReshardKind kind, const char* divided) {
    char err[ERR_BYTES];
    Shape whole = shape_make(4, 48, 4, 257, 320);
    Arena arena = {0};
    Holdings pieces, held;
    Transfers t;
    double sum = 0;
    int node[8] = {0}, sums = kind == RESHARD_SUM;
    whole.shards = ranks;
    CHECK(!holdings_of_pieces(&pieces, &whole, &arena, err) &&
          !holdings_of_parts(&held, &whole, parts, ranks, divided, &arena, err) &&
          !reshard(&t, &whole, sums ? &held : &pieces, sums ? &pieces : &held, kind, 0, ranks, node, &arena, err));
    for (int w = 0; w < t.waves; w++) sum += 4.0 * (double)t.wave[w].sends.elems;
    arena_free(&arena);
    return sum;
}

// Of all steps, of one rank.
static double sum_of_bytes(const char* name, const char* member) {
    double bytes[STEPS], sum = 0;
    int n = log_values(name, member, bytes, STEPS);
    for (int i = 0; i < n; i++) sum += bytes[i];
    return sum;
}

CLAIM(bytes_are_those_of_the_transfers_and_optimizer_state_stays) {
    Shape whole = shape_make(4, 48, 4, 257, 320);
    TpSplit two = split_even(&whole, 2), alone = split_even(&whole, 1);
    Part parts[4] = {{&two, 0, 0, 4, 1, 0}, {&two, 1, 0, 4, 1, 0}, {&alone, 0, 0, 4, 2, 0}, {&alone, 0, 0, 4, 2, 1}};
    run("bytes", 4, "--capacity 400 --strategies 'tp2+2xtp1' --verbose");
    double gradients = expected_bytes(4, parts, RESHARD_SUM, NULL),
           weights = expected_bytes(4, parts, RESHARD_COPY, NULL);
    CHECK(gradients > 0 && weights > 0);
    CHECK_CLOSE(sum_of_bytes("bytes", "bytes.gradients") / STEPS, gradients, 0.5);
    CHECK_CLOSE(sum_of_bytes("bytes", "bytes.parameters") / STEPS, weights, 0.5);
    CHECK_SAID("sent by all ranks & !optimizer state");
}

// With --zero 2 two like pipelines sum layers once a round, a half each, and only that half goes to owners; with 3 the
// weights of a half come, and what is missing twice a round, whatever the rounds are.
CLAIM(bytes_of_what_like_pipelines_divide_are_those_of_rounds_and_of_pieces) {
    static const char all[] = {1, 1, 1, 1};
    Shape whole = shape_make(4, 48, 4, 257, 320);
    TpSplit two = split_even(&whole, 2), alone = split_even(&whole, 1);
    Part parts[4] = {{&alone, 0, 0, 4, 2, 0}, {&alone, 0, 0, 4, 2, 1}, {&two, 0, 0, 4, 1, 0}, {&two, 1, 0, 4, 1, 0}};
    double moved[] = {expected_bytes(4, parts, RESHARD_SUM, all), expected_bytes(4, parts, RESHARD_COPY, NULL),
                      expected_bytes(4, parts, RESHARD_SUM, all), expected_bytes(4, parts, RESHARD_COPY, all)};
    whole.shards = 2;
    double layers = 4.0 * 4 * (double)shape_bucket(&whole, 1).piece;
    for (int zero = 2; zero <= 3; zero++) {
        double gradients[STEPS], weights[STEPS];
        const char* name = zero == 2 ? "rounds" : "pieces";
        run(name, 4,
            filled("--capacity 400 --zero %d --plan static --eval-every 0 --sample-every 0 --save-every 0 "
                   "--strategies '2xtp1+tp2'",
                   zero));
        CHECK(log_values(name, "bytes.gradients", gradients, STEPS) == STEPS);
        CHECK(log_values(name, "bytes.parameters", weights, STEPS) == STEPS);
        for (int i = 1; i < STEPS; i++) {
            double rounds = (gradients[i] - moved[2 * zero - 4]) / layers;
            CHECK(rounds >= 1 && rounds <= 20);
            CHECK_CLOSE(rounds, round(rounds), 1e-9);
            CHECK(zero == 3 || weights[i] == moved[1]);
        }
    }
    CHECK_LOSSES("pieces", "rounds", STEPS, 1e-6);
}

// Half of the bytes of fp32, by collectives, by messages, and in the rounds of like pipelines; losses are those of one
// rank within what a rounding to 8 bits changes.
CLAIM(gradients_travel_as_bf16) {
    static const char* const lists[] = {"--strategies 4xtp1", "--strategies 'tp2+2xtp1; 2xtp1pp2' --capacity 330",
                                        "--strategies 2xtp2 --zero 2"};
    run_ones();
    for (int i = 0; i < COUNT(lists); i++) {
        double bytes[2][STEPS];
        for (int half = 0; half < 2; half++) {
            Curve c =
                run("bf16", 4,
                    filled("--capacity 400 --plan static %s --dtype fp32,grads=%s", lists[i], half ? "bf16" : "fp32"));
            check_curves(lists[i], &c, &one, 0, STEPS, half ? 2e-4 : 1e-6);
            CHECK(log_values("bf16", "bytes.gradients", bytes[half], STEPS) == STEPS);
        }
        for (int s = 0; s < STEPS; s++) CHECK(bytes[0][s] > 0 && bytes[1][s] == bytes[0][s] / 2);
    }
}

// KiB of an entry of the memory table.
static double table_kib(const char* name) {
    char unit[8] = "";
    double value = NAN;
    const char* at = strstr(output, filled("\n  %s  ", name));
    if (at) sscanf(at + strlen(name) + 3, " %lf %7s", &value, unit);
    return value * (strcmp(unit, "MiB") ? 1 : 1024);
}

// Of twelve layers, KiB that a rank has in use which divides those of stages `from` on with another one: pieces, two
// layers at work, of gradients two pieces on their way. Ends are whole.
static double kib_in_use(int ranks, int zero, int from) {
    Shape whole = shape_make(12, 48, 4, 257, 320);
    whole.shards = ranks;
    Bucket layer = shape_bucket(&whole, 1), first = shape_bucket(&whole, 0), last = shape_bucket(&whole, 13);
    double pieces = zero < from ? 0 : from == 2 ? 14 : 12, layers = zero < from ? 12 : 2;
    return 4.0 / 1024 *
           ((double)(first.elems + last.elems) + layers * (double)layer.elems + pieces * (double)layer.piece);
}

// A strategy with two like pipelines needs more than one with four.
CLAIM(the_memory_table_shows_what_like_pipelines_divide) {
    for (int zero = 1; zero <= 3; zero++) {
        CHECK_SH(0,
                 ON_RANKS "$P " TINY
                          "--layers 12 --verbose --capacity 400 --zero %d --strategies '4xtp1; 2xtp1+tp2' "
                          "--explain",
                 4, zero);
        CHECK_CLOSE(table_kib("gradients in use"), MAX(kib_in_use(2, zero, 2), kib_in_use(4, zero, 2)), 0.06);
        CHECK_CLOSE(table_kib("parameters in use"), MAX(kib_in_use(2, zero, 3), kib_in_use(4, zero, 3)), 0.06);
    }
}

#define MIXED "stage layers 4; layers 1 zero 3; layers 2 zero 2 recompute block; layers 1 zero 1"

// Whatever stage has them. The resumed run says so, and has the losses that it had.
CLAIM(layers_run_as_a_layout_beside_the_strategies_says) {
    double before[STEPS], after[STEPS];
    run_ones();
    Curve c = run("mixed", 4, "--capacity 330 --layout '" MIXED "' --strategies '4xtp1; 2xtp2; 2xtp1pp2'");
    check_curves("mixed", &c, &one, 0, STEPS, 1e-6);
    CHECK(log_values("mixed", "loss", before, STEPS) == STEPS);
    CHECK_SH(0,
             "cd $W/mixed; rm -r step-000020; grep -- '--layout\\|--strategies' step-000010/state.json >saved; "
             "[ $(wc -l <saved) = 2 ]");
    CHECK_SH(0, ON_RANKS "$P --resume --threads 1 --out $W/mixed", 4);
    CHECK(log_values("mixed", "loss", after, STEPS) == STEPS && !memcmp(before, after, sizeof before));
    CHECK_SH(0, "cd $W/mixed; grep -- '--layout\\|--strategies' step-000020/state.json | cmp - saved");
    CHECK_SH(0, ON_RANKS "$P " TINY "--capacity 330 --layout '" MIXED "' --strategies '2xtp1pp2; tp4' --explain layout",
             4);
    CHECK_SAID(
        "strategy tp4 & 2xtp1pp2 stage 1: ranks 2 to 3, layers 2 to 3 & layers 0 to 0: zero 3, recompute none & "
        "layers 2 to 2: zero 2, recompute block & 1xtp4pp1 stage 0: ranks 0 to 3");
}

// MiB of the fullest rank of stage 0 under a single strategy: those of rank 0's memory table, and what rank 1 packs
// more of what moves.
CLAIM(explain_layout_says_what_stages_of_strategies_hold) {
    for (int zero = 1; zero <= 3; zero++) {
        CHECK_SH(0, ON_RANKS "$P " TINY "--capacity 400 --zero %d --strategies 2xpp2 --verbose --explain layout", 4,
                 zero);
        const char *table = strstr(output, "\n  total  "), *stage = strstr(output, "ranks 0 to 1, layers 0 to 1, ");
        double total = table ? strtod(table + 8, NULL) : NAN, mib = stage ? strtod(stage + 29, NULL) : NAN;
        CHECK(mib > total - 0.051 && mib < total + 0.151);
    }
}

// Without its last ten steps a run goes on by these options to the losses of one rank.
static void check_goes_on(const char* name, const char* launcher, const char* options) {
    sh("rm -rf $W/%s/step-000020", name);
    CHECK_SH(0, "%s $P --resume --out $W/%s --threads 1 %s", launcher, name, options);
    Curve c = curve_in(name, STEPS);
    check_curves(options, &c, &one, HALF, STEPS, 1e-6);
}

CLAIM(a_run_of_eight_ranks_is_killed_and_goes_on_with_five_and_with_one) {
    run_ones();
    Curve eight = run("eight", 8, "--capacity 90 --strategies '8xtp1; tp4+4xtp1; tp4+2xtp2; tp4pp2; tp2pp2+tp4'");
    check_curves("eight", &eight, &one, 0, STEPS, 1e-6);
    CHECK(count_strategies("eight") >= 2);
    check_goes_on("eight", "mpirun --oversubscribe -n 5", "--capacity 100 --strategies '5xtp1; tp4+tp1; tp3+2xtp1'");
    check_goes_on("eight", "", "--capacity 400");
    CHECK_SAID("resume  without its saved --strategies, which 1 rank cannot have");
}

CLAIM(strategies_go_on_from_a_run_that_was_divided_otherwise) {
    run_ones();
    run("divided", 4, "--capacity 400 --tp 2 --pp 2 --zero 2");
    check_goes_on("divided", "mpirun --oversubscribe -n 4", "--strategies 'tp2+2xtp1'");
    CHECK_SH(0, "grep -q '\"--zero\", \"2\"' $W/divided/step-000020/state.json");
    check_goes_on("divided", "mpirun --oversubscribe -n 4", "--zero 3 --strategies '4xtp1; 2xtp2'");
}

// The length of a row is each strategy's own, and settled when --capacity does not say it.
CLAIM(samples_without_a_capacity_are_those_of_one_rank) {
    static char alone[sizeof output];
    const char* command = ON_RANKS "$P " TINY
                                   "--steps 4 --sample-every 4 --save-every 0 --eval-every 0 %s --out $W/samples && "
                                   "grep -o '\"text\": .*, ' $W/samples/log.jsonl";
    for (int i = 0; i < 2; i++) {
        sh("rm -rf $W/samples");
        CHECK(sh(command, i ? 4 : 1, i ? "--strategies 'tp4; tp2+2xtp1'" : "") == 0);
        const char* samples = strstr(output, "\"text\": ");
        CHECK(samples && strstr(samples + 1, "\"text\": "));
        if (!samples) return;
        if (i) CHECK(!strcmp(samples, alone));
        else strcpy(alone, samples);
    }
}

// Also where leaks are looked for, which libraries of MPI have: the suite runs this one so.
CLAIM(a_strategy_of_one_rank_ends_without_a_word_on_stderr) {
    CHECK_SH(0, "$P " TINY "--steps 2 --strategies tp1 --out $W/alone");
    CHECK(errors[0] == 0);
}

// Steps of short documents take narrow pipelines; those to validate on need all ranks, and get the weights there. Also
// where nothing is trained.
CLAIM(an_evaluation_takes_any_strategy_that_holds_its_documents) {
    const char* options = "--data $W/short --val $W/corpus --steps 4 --save-every 4 --sample-every 0 --eval-every 2";
    const char *list = "--strategies 'tp2+2xtp1; tp4'", *runs[] = {"one", "wide", "narrow"};
    double evaluated[2] = {0};
    CHECK_SH(0,
             "mkdir -p $W/short && for i in $(seq 40); do head -c $((40 + i)) $W/corpus/$((i + 10)).txt >$W/short/$i; "
             "done");
    for (int i = 0; i < 3; i++) {
        const char* capacity = i == 2 ? "--capacity 85" : i == 1 ? "--capacity 400" : "";
        run_on(i ? 4 : 1, runs[i], TINY "%s %s %s", options, i ? list : "", capacity);
        CHECK_LOSSES(runs[i], "one", 4, 1e-6);
        CHECK_LOGGED(runs[i], "val_loss", "one", "val_loss", 3, 1e-6);
    }
    CHECK(sh("grep -c '\"strategy\": \"tp4\"' $W/narrow/log.jsonl; true") == 0 && atoi(output) == 0);
    for (int i = 0; i < 2; i++) {
        CHECK_SH(0, ON_RANKS "$P --eval --data $W/corpus --out $W/narrow --threads 1 --dtype fp32 %s", i ? 4 : 1,
                 i ? list : "--strategies none --capacity 400");
        const char* at = strstr(output, "loss ");
        CHECK(at && sscanf(at, "loss %lf", &evaluated[i]) == 1);
    }
    CHECK_CLOSE(evaluated[1], evaluated[0], 2e-6);
}

#define SCHEMES                                                                                                \
    "name schemes\\nlinear_ms 0\\nquadratic_ms 0\\nscheme TP4 4 1 1e-5 0.02 3\\nscheme TP2 2 1 2e-5 0.04 2\\n" \
    "scheme TP1 1 1 4e-5 0.08 1\\nscheme TP2PP2 2 2 1e-5 0.02 1\\n"

#define WITHOUT_STAGES "tp4+2xtp2; 2xtp4; tp4+4xtp1"

// Steps of virtual ranks, four a node, take what is predicted; how many strategies they chose.
static int check_virtual_steps(const char* machine, const char* list, double moving[2 * STEPS], double tolerance) {
    enum { MOST = 2 * STEPS };
    sh("printf '%s' > $W/schemes", machine);
    run_on(8, "virtual",
           "--device virtual --machine $W/schemes --data $W/corpus --layers 4 --width 128 --heads 4 --vocab 512 "
           "--context 320 --batch-tokens 1280 --capacity 400 --steps 20 --threads 1 --plan node-size=4 --strategies "
           "'%s'",
           list);
    CHECK_LOGGED("virtual", "measured_ms", "virtual", "predicted_ms", STEPS, tolerance);
    CHECK(log_values("virtual", "moving_ms", moving, MOST) == STEPS);
    return count_strategies("virtual");
}

// Virtual steps of eight ranks, of many tokens each.
static void run_slow(const char* options) {
    run_on(8, "straggling",
           "--machine h200-8b --device virtual --data $W/corpus --layers 4 --width 128 --heads 4 --vocab 512 "
           "--context 320 --batch-tokens 16384 --steps 20 --threads 1 %s",
           options);
}

// Milliseconds of these steps, once all have noticed who is slow; how many strategies they
// chose.
static int slow_steps(const char* options, double* ms) {
    double all[STEPS];
    run_slow(filled("--plan refresh=4 %s", options));
    CHECK(log_values("straggling", "measured_ms", all, STEPS) == STEPS);
    for (int i = *ms = 0; i < HALF; i++) *ms += all[HALF + i] / HALF;
    return count_strategies("straggling");
}

// The limit: ranks in all over the sum of their paces, 8 / (7 + 1/3). Pipelines of four ranks go at the pace of their
// slowest, 2 / (1 + 1/3), unless that gives work to others: in whole heads and tiles, and moving it takes time.
CLAIM(slow_ranks_get_fewer_documents_under_any_strategy) {
    static const struct {
        const char *list, *mode;
        double most;
    } rows[] = {{"--strategies '8xtp1; tp4+4xtp1'", "documents", 1.01 * 12 / 11},
                {"--capacity 100 --strategies '2xtp4; tp2pp2+tp4'", "documents", 1.5},
                {"--capacity 100 --strategies '2xtp4; tp2pp2+tp4' --heads 16", "migrate", 1.2}};
    for (int i = 0; i < COUNT(rows); i++) {
        double healthy, off, on;
        slow_steps(rows[i].list, &healthy);
        slow_steps(filled("%s --straggle rank=1,x=3,whole", rows[i].list), &off);
        slow_steps(filled("%s --straggle rank=1,x=3,whole --balance %s", rows[i].list, rows[i].mode), &on);
        CHECK(off > 2.45 * healthy && on < rows[i].most * healthy);
        printf("    %.2f ms a step, %.2f with --balance %s, %.2f without a slow rank: %.3f times\n", off, on,
               rows[i].mode, healthy, on / healthy);
    }
}

// A machine that names slow ranks: dispatching knows them from the first step on. The limit: 8 / (4 + 4/4).
CLAIM(strategies_know_a_machine_s_kinds_of_ranks) {
    double ms[2];
    for (int slow = 0; slow < 2; slow++) {
        CHECK_SH(0, "cp $W/machine $W/kinds && printf '%s' >>$W/kinds", slow ? "ranks 4 0.25 0\\n" : "");
        slow_steps("--machine $W/kinds --strategies '2xtp4; 4xtp2; 8xtp1'", &ms[slow]);
    }
    printf("    %.2f ms a step, %.2f with four ranks at a quarter of the pace\n", ms[0], ms[1]);
    CHECK(ms[1] > 1.5 * ms[0] && ms[1] < 1.65 * ms[0]);
}

// From a machine that is said to be a hundred times as slow as this one may be. Jobs have unlike terms, and all ranks
// learn the same: else the run ends, because they have unlike plans.
CLAIM(times_of_steps_are_learnt_by_all_ranks_alike) {
    double predicted[STEPS], measured[STEPS], ratio[STEPS];
    sh("printf 'name slow\\nquadratic_ms 1e-6\\nlinear_ms 8\\nheads 64\\ntoken_bytes 2097152\\ngroup 2 125\\ngroup 4 "
       "109\\n' >$W/slow");
    run("learnt", 4, "--machine $W/slow --capacity 400 --strategies 'tp2+2xtp1' --eval-every 0 --sample-every 0");
    CHECK(log_values("learnt", "predicted_ms", predicted, STEPS) == STEPS);
    CHECK(log_values("learnt", "measured_ms", measured, STEPS) == STEPS);
    for (int i = 0; i < STEPS; i++) ratio[i] = predicted[i] / measured[i];
    CHECK(ratio[0] > 10 && ratio[1] > 10);
    double later = median_of(ratio + HALF, HALF);
    CHECK(later > 0.4 && later < 2.5);
    printf("    predicted %.3g times what a step takes, later %.3g\n", ratio[0], later);
}

// On a machine that knows whole pipelines: every step takes what the slowest of the chosen ones takes.
CLAIM(virtual_pipelines_take_the_times_of_their_schemes) {
    double moving[2 * STEPS];
    CHECK(check_virtual_steps(SCHEMES, WITHOUT_STAGES, moving, 1e-6) >= 2);
    for (int i = 0; i < STEPS; i++) CHECK(moving[i] == 0);
    // Rounds of two pipelines in one order, each as long as the longer of both. Predictions have a third of the fixed
    // cost, 1 ms, under the forward pass, where virtual ranks have all of it behind the backward pass.
    CHECK(check_virtual_steps(SCHEMES, "tp4+tp2pp2; 2xtp2pp2", moving, 0.025) >= 1);
}

// Links that are dear between nodes: narrow pipelines, whose ranks want more of the model, are no longer chosen. Sums
// are played as if all pipelines ended together: those that end sooner have begun their first wave by then.
CLAIM(what_moving_takes_is_predicted_and_weighed) {
    double moving[2 * STEPS];
    CHECK(check_virtual_steps(SCHEMES "link inside 0 0.001\\nlink inside 1000000 0.01\\nlink across 0 0.002\\n"
                                      "link across 1000000 0.03\\nmodel 4 128 2\\n",
                              WITHOUT_STAGES, moving, 1e-3) >= 2);
    for (int i = 0; i < STEPS; i++) CHECK(moving[i] > 0.01);
    CHECK(check_virtual_steps(SCHEMES "link inside 0 0.001\\nlink inside 1000000 1\\nlink across 0 0.002\\n"
                                      "link across 1000000 50\\nmodel 4 128 2\\n",
                              WITHOUT_STAGES, moving, 1e-3) == 1);
    CHECK(sh("grep -c '\"strategy\": \"2xtp4\"' $W/virtual/log.jsonl") == 0 && atoi(output) == STEPS);
}

// Pipelines that come to their last passes at unlike times: sums inside these would hold the links that exchanges of
// tensor parallelism wait for, by a third of a step here.
CLAIM(sums_leave_behind_passes_whose_exchanges_would_wait) {
    run_slow("--capacity 2048 --strategies tp4+4xtp1");
    CHECK_LOGGED("straggling", "measured_ms", "straggling", "predicted_ms", STEPS, 1e-3);
}

// A machine of two nodes with whole pipelines in each, whose ranks hold the same: sums are taken inside nodes first,
// and weights passed on there. Gradients leave under the last of several rows.
CLAIM(pipelines_of_one_node_sum_before_they_send) {
    setenv("RAGGED_NODE_SIZE", "2", 1);
    run_ones();
    for (int zero = 1; zero <= 3; zero++) {
        Curve c = run("nodes", 4, filled("--capacity 330 --zero %d --strategies '2xtp1+tp2; 4xtp1; 2xtp2'", zero));
        check_curves("nodes", &c, &one, 0, STEPS, 1e-6);
    }
    unsetenv("RAGGED_NODE_SIZE");
}

// What shows of the same moves under computing, and not.
CLAIM(moves_hide_under_passes) {
    double moving[2][2 * STEPS], sum[2] = {0};
    for (int overlap = 0; overlap < 2; overlap++) {
        const char* list = filled("2xtp4' --overlap %s --strategies '2xtp4", overlap ? "yes" : "no");
        check_virtual_steps(SCHEMES
                            "link inside 0 0.001\\nlink inside 1000000 0.1\\nlink across 0 0.002\\n"
                            "link across 1000000 3\\nmodel 4 128 2\\n",
                            list, moving[overlap], 1e-2);
        for (int i = 0; i < STEPS; i++) sum[overlap] += moving[overlap][i] / STEPS;
    }
    printf("    %.3f ms of moves a step without computing beside them, %.3f with\n", sum[0], sum[1]);
    CHECK(sum[1] > 0 && sum[1] < 0.5 * sum[0]);
}

CLAIM(what_does_not_go_with_strategies_is_said) {
    static const Refusal rows[] = {
        {"--strategies tp2 --tp 2", "found --tp; write who runs them into the strategies", 2},
        {"--strategies tp3",
         "tp3: expected pipelines for all 2 ranks, found some for 3; --strategies none goes on without", 2},
        {"--strategies '2xtp1;tp2' --cp 2",
         "tp2: expected at least 2 like pipelines for --cp 2, found 1; leave --cp out", 2},
        {"--strategies tp2 --layout 'tp 2; stage layers 4'", "at most a --layout of tp 1 and one stage", 2},
        {"--strategies tp2 --layout auto --memory 1G", "at most a --layout of tp 1 and one stage", 2},
        {"--strategies tp2 --balance resize", "expected --balance documents or migrate, found resize", 2},
        {"--strategies 2tp1", "\"^2tp1\": expected pipelines like 2xtp2pp3, joined by +", 2},
        {"--strategies '2xtp1' --capacity 100",
         "--data: the longest document has 3 & and no pipeline of a strategy holds more than 100 (tp1pp1 does); try "
         "--capacity 3 & or a smaller --context (documents are cut to 320 tokens)",
         2},
    };
    CHECK_REFUSALS(TINY "--out $W/refused", rows);
}

// --explain says of the first step what the run then does, and its pipelines have all documents.
CLAIM(explain_shows_the_choice_and_every_pipeline) {
    static const char options[] = "--capacity 100 --strategies '4xtp1; tp4; tp3+tp1; 2xtp2; tp2pp2'";
    char chosen[64] = "", word[64] = "", *line = output;
    int documents = 0, tokens = 0, docs = 0, pipelines = 0, rated = 0;
    run_on(4, "first", TINY "%s --steps 1 --eval-every 0 --save-every 0", options);
    CHECK_SH(0, "grep -o '\"strategy\": \"[^\"]*' $W/first/log.jsonl");
    CHECK(sscanf(output, "\"strategy\": \"%63[^\n]", chosen) == 1);
    run_on(4, "explained", TINY "%s --explain", options);
    char* table = strstr(output, "\nstrategies: step 1: ");
    CHECK(table && sscanf(table, "\nstrategies: step 1: %d documents, %d tokens on 4 ranks take %63[^;]", &documents,
                          &tokens, word) == 3);
    CHECK_STRING(word, chosen);
    for (line = table ? strchr(table + 1, '\n') : NULL; line && strncmp(line, "\nthe job", 8);) {
        char name[64], from[32];
        int n, sum, longest, mbs;
        double ms;
        line++;
        if (sscanf(line, "  %63s %31[0-9-] %d %d %d %d %lf", name, from, &n, &sum, &longest, &mbs, &ms) == 7)
            docs += n, tokens -= sum, pipelines++;
        rated += strstr(line, "chosen") && strcspn(line, "\n") > (size_t)(strstr(line, "chosen") - line);
        line = strchr(line, '\n');
    }
    CHECK(docs == documents && tokens == 0 && pipelines >= 1 && rated == 1);
}

PROGRAM_TEST {
    write_ragged_corpus(60, 5.9, 3);
    sh("printf 'name tiny\\nquadratic_ms 5.128e-6\\nlinear_ms 0.184\\nheads 64\\ntoken_bytes 2097152\\n"
       "group 2 125\\ngroup 4 109\\ngroup 8 101\\n' > $W/machine");
}
