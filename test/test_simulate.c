// test_simulate.c - claims about build/simulate, run as a program: its figures are those that planners, timeline and
// bounds give, its options do what they say, and mistakes are answered by a line.
#include "test/program.h"

#include "dev/bound_shares.h"
#include "dev/lengths.h"
#include "plan/search/machine_asked.h"
#include "plan/published/published.h"

enum { MOST = 16 };

enum {
    MEAN_MS,
    WORST_MS,
    ROUNDS_MS,
    STEP_MS,
    GAP_MEAN,
    GAP_WORST,
    US_MEAN,
    US_WORST,
    IDLE,
    SHARES_GAP,
    COMMUNICATION,
    FIELDS
};
static const char* const fields[FIELDS] = {"mean_ms",  "worst_ms",        "rounds_ms",    "step_ms",
                                           "gap_mean", "gap_worst",       "plan_us_mean", "plan_us_worst",
                                           "idle",     "shares_gap_mean", "communication"};

typedef struct Row {
    char plan[32];
    double of[FIELDS];
} Row;

static Row rows[MOST];

static int read_row(Row* row, const char* line, size_t n) {
    Json json;
    int bad = 0;
    if (json_parse(&json, line, n, NULL) < 0) return -1;
    bad |= json.values[0].type != JSON_OBJECT || json.values[0].n != FIELDS + 1;
    const JsonValue* plan = bad ? NULL : json_get(json.values, "plan");
    bad |= !plan || plan->length >= sizeof row->plan || json_string(plan, row->plan) < 0;
    for (int i = 0; i < FIELDS && !bad; i++) bad |= json_double(json_get(json.values, fields[i]), &row->of[i]) < 0;
    json_free(&json);
    return bad ? -1 : 0;
}

// Runs the simulator with --json; the number of its rows, each of exactly the fields above, in `rows`.
__attribute__((format(printf, 1, 2))) static int simulate(const char* format, ...) {
    char options[4096];
    int n = 0;
    va_list args;
    va_start(args, format);
    vsnprintf(options, sizeof options, format, args);
    va_end(args);
    int status = sh("$P --json %s", options);
    CHECK(status == 0);
    if (status != 0) printf("    simulate %s: %s", options, output);
    output[strlen(output) - strlen(errors)] = 0;
    memset(rows, 0, sizeof rows);
    for (char *line = output, *end; (end = strchr(line, '\n')) && n < MOST; line = end + 1) {
        int bad = read_row(&rows[n++], line, (size_t)(end - line));
        CHECK(bad == 0);
    }
    return n;
}

// All but fixed, which has no plan where a document is longer than a row of one rank.
static int n_planned(void) { return n_planners - 1; }

static const Row* row_of(const char* plan) {
    static const Row none;
    for (int i = 0; i < MOST; i++)
        if (strcmp(rows[i].plan, plan) == 0) return &rows[i];
    printf("    no row of %s\n", plan);
    test_failures_in_claim++;
    return &none;
}

// ---- figures

CLAIM(without_options_every_planner_is_in_the_table) {
    CHECK_SH(0, "$P --batches 2");  // but for this one, for time
    for (int i = 0; i < n_planners; i++) {
        char start[64];
        snprintf(start, sizeof start, "\n%s ", planners[i]->name);
        CHECK(!strstr(output, start) == (planners[i] == &planner_fixed));
    }
    CHECK(strstr(output, "L3/L1"));
    const char* left_out = strstr(output, "left out");
    CHECK(left_out && !strncmp(left_out, "left out: fixed: ", 17) && !strstr(left_out + 1, "left out"));
    CHECK(!strstr(output, "nan") && !strstr(output, "inf "));
    CHECK(errors[0] == 0);
}

// The same planners asked here, batch by batch.
CLAIM(figures_are_those_of_planner_timeline_and_bound) {
    enum { RANKS = 16, DOCS = 40, BATCHES = 3, CONTEXT = 65536, SEED = 5 };
    static GroupCost groups[RANKS + 1];
    static int lengths[DOCS];
    char err[ERR_BYTES];
    Machine machine;
    Setting setting;
    Prediction prediction;
    const char* text = machine_builtin("h200-8b");
    double ms = 0, worst = 0, gap = 0, gap_worst = 0, idle = 0, links = 0, l4, shares_gap = 0;
    CHECK(machine_parse(&machine, text, strlen(text), err) == 0);
    CHECK(machine_setting(&setting, &machine, RANKS, 4, CONTEXT, groups, err) == 0);
    Lengths* source = lengths_open("prolong", CONTEXT, setting.limits.capacity, err);
    Arena arena = {0};
    for (int b = 0; b < BATCHES; b++) {
        Plan plan;
        Timeline timeline;
        lengths_draw(source, lengths, DOCS, SEED, b);
        CHECK(plan_flex(&plan, &prediction, b, lengths, DOCS, &setting, &arena, err) == 0);
        CHECK(timeline_play(&timeline, &plan, lengths, &setting, &arena, err) == 0);
        double over = timeline.makespan / prediction.bounds.l3 - 1;
        ms += timeline.makespan / BATCHES, worst = MAX(worst, timeline.makespan);
        gap += over / BATCHES, gap_worst = MAX(gap_worst, over);
        sort_lengths(lengths, DOCS);
        CHECK(bound_of_shares(&l4, lengths, DOCS, &setting, &arena, err) == 0);
        shares_gap += (timeline.makespan / l4 - 1) / BATCHES;
        idle += timeline.idle / BATCHES, links += timeline.communication_share / BATCHES;
    }
    arena_free(&arena), lengths_close(source);
    CHECK(simulate("--machine h200-8b --ranks %d --node-size 4 --docs %d --batches %d --context %d --seed %d "
                   "--lengths prolong --zero 1 --plans flex",
                   RANKS, DOCS, BATCHES, CONTEXT, SEED) == 1);
    const Row* row = row_of("flex");
    const double expected[FIELDS] = {
        [MEAN_MS] = ms, [WORST_MS] = worst,        [GAP_MEAN] = gap,       [GAP_WORST] = gap_worst,
        [IDLE] = idle,  [SHARES_GAP] = shares_gap, [COMMUNICATION] = links};
    for (int i = 0; i < FIELDS; i++)  // nine digits are printed
        if (expected[i] > 0) CHECK_CLOSE(row->of[i], expected[i], 1e-8 * fmax(expected[i], 1));
    CHECK(row->of[US_MEAN] > 0 && row->of[US_WORST] >= row->of[US_MEAN]);
}

// ZeRO-2 and 3: a barrier can only cost time, and those who have one play as before. With two full documents a rank
// nobody waits, and the fixed costs of two micro-batches are those of two rounds.
CLAIM(rounds_cost_those_who_have_none) {
    CHECK(simulate("--machine flexsp-7b --capacity 6449 --zero 1 --lengths prolong --batches 2") == n_planned());
    for (int i = 0; i < n_planned(); i++) CHECK(rows[i].of[ROUNDS_MS] >= rows[i].of[MEAN_MS] * (1 - 1e-9));
    CHECK(row_of("flex")->of[ROUNDS_MS] > row_of("flex")->of[MEAN_MS] * 1.01);
    CHECK(row_of("flexsp")->of[ROUNDS_MS] == row_of("flexsp")->of[MEAN_MS]);
    CHECK(simulate("--machine flexsp-7b --docs 128 --lengths equal --capacity 4096 --context 4096 --batches 1 --zero 1 "
                   "--plans flex") == 1);
    CHECK_CLOSE(row_of("flex")->of[ROUNDS_MS], row_of("flex")->of[MEAN_MS], 1e-6);
}

// ---- options

// Each word of --overlap hides no less than the one before, of everybody's exchanges; their own attention hides most.
CLAIM(what_exchanges_hide_under_can_be_said) {
    const char* words[] = {"no", "passes", "yes"};
    double before[MOST], sum = INFINITY;
    for (int i = 0; i < COUNT(words); i++) {
        double now = 0;
        CHECK(simulate("--machine a100-7b --lengths prolong --zero 1 --batches 2 --plans flex,flexsp,adaptive "
                       "--overlap %s",
                       words[i]) == 3);
        for (int r = 0; r < 3; r++) {
            CHECK(i == 0 || rows[r].of[MEAN_MS] <= before[r] * (1 + 1e-9) || !strcmp(rows[r].plan, "flex"));
            now += before[r] = rows[r].of[MEAN_MS];
        }
        CHECK(i < 2 ? now <= sum : now < 0.99 * sum);
        sum = now;
    }
}

// ---- baselines

static double ms_of(const char* plan) { return row_of(plan)->of[MEAN_MS]; }

// deepspeed, batchada and the rings are our planners held to one kind; what is gathered hides nothing.
CLAIM(baselines_are_our_planners_held_to_less) {
    const char* options =
        "--machine h200-8b --ranks 32 --docs 60 --lengths prolong --context 65536 --zero 1 --batches 2";
    CHECK(simulate("%s --overlap yes --plans deepspeed,batchada,te-cp,te-cp-all,kv-gather,flex", options) == 6);
    double heads = ms_of("deepspeed"), best = ms_of("batchada"), ring = ms_of("te-cp"), all = ms_of("te-cp-all"),
           gathered = ms_of("kv-gather"), flex = ms_of("flex");
    CHECK(flex < best && best < heads && ring < gathered && ring < 0.5 * all);
    CHECK(simulate("%s --overlap yes --plans flex", options) == 1);
    CHECK(ms_of("flex") == flex);
    CHECK(simulate("%s --overlap yes --cp-kind ulysses --plans static,adaptive", options) == 2);
    CHECK(ms_of("static") == heads && ms_of("adaptive") == best);
    CHECK(simulate("%s --overlap yes --cp-kind ring --plans static", options) == 1);
    CHECK(ms_of("static") == ring);
    CHECK(simulate("%s --overlap no --cp-kind ring --plans static", options) == 1);
    CHECK_CLOSE(ms_of("static"), gathered, 1e-9 * gathered);
}

// A group of T ranks without links computes a T-th of everything, of T times the tokens: as a ring of T ranks does.
CLAIM(tensor_parallel_baselines_take_a_share_of_everything) {
    const char* free_links = "name free\nquadratic_ms 1e-6; linear_ms 0.01; heads 16; memory 40 4 1\n";
    const char* model = "--arch llama --layers 8 --width 1024 --heads 16 --vocab 32768 --arch tie=no,hidden=4096";
    put_text("free.txt", free_links);
    write_text("long.txt", "16000\n", 6);
    const char* options = "--ranks 8 --docs 4 --batches 1 --context 16000 --overlap yes";
    CHECK(simulate("%s --machine %s/free.txt --lengths %s/long.txt --model '%s' --plans te-cp-all,tp8-cp,tp4-cp",
                   options, work, work, model) == 3);
    double ms = 4 * (1e-6 * 16000 * 16000 + 0.01 * 16000) / 8;
    for (int i = 0; i < 3; i++) CHECK_CLOSE(rows[i].of[MEAN_MS], ms, 1e-6 * ms);
    // With ZeRO-1 40 GB hold 40960 tokens of a MB less states of 4 (6 + 12 / ranks) / T GB, T times as many in a group
    // of T; two groups of 4 share no document of 16000, one of 200000 does not fit.
    write_text("short.txt", "23000\n", 6);
    CHECK(simulate("--ranks 8 --docs 1 --batches 1 --context 23000 --machine %s/free.txt --lengths %s/short.txt "
                   "--model '%s' --plans tp1-cp,tp2-cp",
                   work, work, model) == 2);
    // 4 (6 + 12 / 8) GB leave a rank 10240 tokens, so three share 23000; 2 (6 + 12 / 4) leave a group of two 45056.
    double of_three = (1e-6 * 23000 * 23000 + 0.01 * 23000) / 3;
    CHECK_CLOSE(ms_of("tp2-cp"), of_three * 3 / 2, 1e-6 * of_three);
    CHECK_CLOSE(ms_of("tp1-cp"), (1e-6 * 23000 * 23000 + 0.01 * 23000) / 4, 1e-3 * of_three);  // powers of two
}

// Ring messages through proxies, and plans that are remapped: as ./train --route and --remap.
CLAIM(routing_and_remapping_can_be_played) {
    const char* options =
        "--machine a100-7b --ranks 16 --docs 80 --lengths prolong --context 65536 --zero 1 --batches 2 "
        "--overlap yes --plans te-cp-all,zeppelin,flex";
    CHECK(simulate("%s", options) == 3);
    double ring = ms_of("te-cp-all"), cut = ms_of("zeppelin"), flex = ms_of("flex");
    CHECK(simulate("%s --route yes", options) == 3);
    CHECK(ms_of("te-cp-all") < 0.6 * ring && ms_of("zeppelin") <= cut);
    CHECK(simulate("%s --remap yes", options) == 3);
    CHECK(ms_of("te-cp-all") == ring && ms_of("zeppelin") != cut && ms_of("flex") != flex);
    CHECK(simulate("%s --remap auto", options) == 3);
    CHECK(ms_of("flex") <= flex && ms_of("zeppelin") <= cut);
}

CLAIM(files_do_what_names_do) {
    char lengths[] = "4096\n\n 4096 \n";
    const char* machine = machine_builtin("a100-7b");
    put_text("lengths.txt", lengths);
    put_text("machine.txt", machine);
    const char* options = "--ranks 8 --docs 20 --batches 1 --plans flex";
    CHECK(simulate("%s --machine a100-7b --lengths equal", options) == 1);
    double ms = rows[0].of[MEAN_MS];
    CHECK(simulate("%s --machine %s/machine.txt --lengths %s/lengths.txt", options, work, work) == 1);
    CHECK(rows[0].of[MEAN_MS] == ms);
}

CLAIM(a_slow_rank_and_a_small_capacity_cost_time) {
    const char* options = "--machine a100-7b --ranks 8 --docs 60 --batches 2 --plans flex,adaptive";
    CHECK(simulate("%s", options) == 2);
    double flex = row_of("flex")->of[MEAN_MS], adaptive = row_of("adaptive")->of[MEAN_MS];
    CHECK(simulate("%s --speeds 2=0.5", options) == 2);
    CHECK(row_of("flex")->of[MEAN_MS] > flex && row_of("adaptive")->of[MEAN_MS] > adaptive);
    CHECK(simulate("%s --speeds 0=2,1=2,2=2,3=2,4=2,5=2,6=2,7=2", options) == 2);
    CHECK(row_of("flex")->of[MEAN_MS] < flex);
    CHECK(simulate("%s --context 20000 --capacity 3000", options) == 2);
    double tight = row_of("flex")->of[MEAN_MS];
    CHECK(simulate("%s --context 20000 --capacity 20000", options) == 2);
    CHECK(row_of("flex")->of[MEAN_MS] < tight);
}

CLAIM(planners_are_chosen_by_name) {
    CHECK(simulate("--lengths mock --machine a100-7b --capacity 2048 --context 8192 --docs 64 --ranks 8 --batches 2 "
                   "--plans balanced,megatron,flex") == 3);
    CHECK_STRING(rows[0].plan, "balanced");
    CHECK_STRING(rows[1].plan, "megatron");
    CHECK_STRING(rows[2].plan, "flex");
    CHECK(rows[2].of[MEAN_MS] < rows[0].of[MEAN_MS]);
    // Rows of cp size 4 hold 8192 tokens, and need no more than 4 ranks.
    write_text("longest.txt", "8192\n", 5);
    CHECK(simulate("--lengths %s/longest.txt --machine a100-7b --capacity 2048 --context 8192 --docs 6 --ranks 4 "
                   "--batches 1 --plans balanced",
                   work) == 1);
}

// In all output. Fewer tokens fit with ZeRO-2 than with ZeRO-3. With one document of 3000 tokens what is sized for a
// context of 196608 cannot be planned; everything else can. Nothing is left to wait for after the last batch.
CLAIM(what_is_left_out_and_explained_is_said) {
#define SMALL "--docs 40 --ranks 8 --machine a100-7b --batches 1 --context 32768 --plans static"
#define SHORT "--machine a100-7b --ranks 4 --docs 5 --batches 1 --lengths $W/short.txt --plans static"
    static const struct {
        int status;
        const char *options, *words[3];
    } rows[] = {
        {0, "--zero 2 --batches 1 --plans flex", {" 3196 tokens a rank"}},
        {0, "--zero 3 --batches 1 --plans flex", {" 6449 tokens a rank"}},
        {0, SHORT ",flex", {"left out: static: ", "196608", "\nflex "}},
        {0, SHORT ",flex --json", {"left out: static: ", "196608", "{\"plan\":\"flex\""}},
        {1, SHORT, {"no planner played all batches"}},
        {1, "--batches 1 --plans tp8-cp", {"left out: tp8-cp: it needs --model"}},
        {1,
         "--batches 3 --plans static,flex --patience 1e-9",
         {"left out: flex: planned for 0 s at 1 of 3 batches; --patience 0 waits"}},
        {0, "--batches 3 --plans flex --patience 0", {"\nflex "}},
        {0, "--batches 1 --plans flex --patience 1e-9", {"\nflex "}},
        {0,
         SMALL ",adaptive,flex --explain $W/page.html && cat $W/page.html",
         {"<html", "a100-7b, 8 ranks in nodes of 8, 40 documents", "adaptive"}},
        {1, SMALL " --explain $W/nowhere/page.html", {"nowhere/page.html"}},
        {0, "--help", {"--explain", "--patience", "megatron"}},
    };
    write_text("short.txt", "3000\n", 5);
    for (int i = 0; i < COUNT(rows); i++) {
        int status = sh("$P %s", rows[i].options), said = status == rows[i].status;
        for (int k = 0; k < 3 && rows[i].words[k]; k++) said = said && strstr(output, rows[i].words[k]);
        CHECK(said);
        if (!said) printf("    %s: status %d, %s\n", rows[i].options, status, output);
    }
    CHECK_SH(0, "$P --help");
    CHECK(strstr(output, machine_names()) && strstr(output, lengths_names()));
    for (int i = 0; i < n_planners; i++) CHECK(strstr(output, planners[i]->name));
}

CLAIM(mistakes_are_answered_by_a_line) {
    static const struct {
        const char *options, *line;
    } bad[] = {
        {"--rank 4", "unknown option --rank"},
        {"--ranks", "--ranks needs a value"},
        {"--ranks 0", "--ranks 0: expected a whole number from 1"},
        {"--ranks 8x", "--ranks 8x: expected"},
        {"--ranks 99999999999999999999", "--ranks 99999999999999999999: expected"},
        {"--ranks 1000000", "from 1 to 65536"},
        {"--overlap never", "--overlap never: expected no|passes|yes"},
        {"--zero 4", "--zero 4: expected a whole number from 1 to 3"},
        {"--seed -1", "--seed -1: expected"},
        {"--patience -1", "--patience -1: expected"},
        {"--patience x", "--patience x: expected"},
        {"--machine nothing", "--machine nothing is neither a file nor one of"},
        {"--machine $W", "expected a file"},
        {"--machine $W/bad.txt", "bad.txt: "},
        {"--lengths nothing", "--lengths nothing is neither a file nor one of"},
        {"--lengths $W/bad.txt", "bad.txt: line 2 is \"what\""},
        {"--lengths $W/empty.txt", "empty.txt: no length"},
        {"--lengths prolong --context 100", "575 or more"},
        {"--plans flex,nothing", "no planner is called \"nothing\""},
        {"--plans ''", "names no planner"},
        {"--cp-kind heads", "--cp-kind heads: expected auto|ulysses|ring"},
        {"--remap never", "--remap never: expected no|yes|auto"},
        {"--plans flex,flex", "flex is there twice"},
        {"--speeds 1", "expected RANK=X"},
        {"--speeds 1=", "expected RANK=X"},
        {"--speeds 1=0", "expected RANK=X"},
        {"--speeds 1=nan", "expected RANK=X"},
        {"--speeds 64=1", "not a whole number from 0 to 63"},
        {"--machine flexsp-30b --ranks 2", "no room"},
        {"--zero 1", "--zero 1: the states of flexsp-7b leave no room for a token on 64 ranks of 30 GB; try --zero 3"},
        {"--machine a100-7b --ranks 4 --lengths one-long", "no group of up to 4 ranks holds it"},
    };
    write_text("bad.txt", "7\nwhat\n", 7);
    write_text("empty.txt", "", 0);
    for (int i = 0; i < COUNT(bad); i++) {
        int status = sh("$P --batches 1 %s", bad[i].options), lines = 0;
        for (const char* c = errors; *c; c++) lines += *c == '\n';
        if (status != 1 || lines != 1 || strncmp(errors, "simulate: ", 10) != 0 || !strstr(errors, bad[i].line))
            printf("    %s: status %d, %s\n", bad[i].options, status, output), test_failures_in_claim++;
    }
}

int main(int argc, char** argv) {
    program_begin(argc, argv);
    run_claims();
    return program_end();
}
