// test_run_page.c - the claims of run/run_page.h and run/columns.h, and of the ranks in data/runlog.h: a run of any
// length is at most so many columns of true means, the page has what the log says, whatever else stands there, and a
// page that cannot be written leaves the older one.
#include <inttypes.h>
#include <sys/resource.h>

#include "data/runlog.h"
#include "plan/disk.h"
#include "plan/text.h"
#include "run/run_page.h"
#include "test/page_checks.h"
#include "test/program.h"

enum { RANKS = 3, MOST_STEPS = 5000 };

static char err[ERR_BYTES];
static char text[1 << 21];
static RankStep made[MOST_STEPS + 1][RANKS];  // by step

// Numbers are written with four digits: half a unit of the last is at most 5e-4 of the number. Means are kept in
// single precision, which at most a dozen merges make worse by 1e-6 of it.
static const double digits = 5.01e-4;

static RankStep make_rank(uint64_t seed, uint64_t i) {
    float x[RANK_FIELDS];
    // Three in ten are not known, in runs as well as alone, so that means of unlike many values are merged.
    for (uint64_t f = 0; f < RANK_FIELDS; f++) {
        uint64_t at = i * RANK_FIELDS + f;
        int known = random_uniform(seed + 1, at) < 0.7 && random_uniform(seed + 2, at / 97) < 0.9;
        x[f] = known ? (float)(100 * random_uniform(seed, at)) : NAN;
    }
    return (RankStep){x[0], x[1], x[2], x[3], x[4], x[5]};
}

static RunPage* make_page(int steps, uint64_t seed) {
    RunPage* h = run_page_open("a run");
    if (!h) abort();
    for (int s = 1; s <= steps; s++) {
        for (int r = 0; r < RANKS; r++) made[s][r] = make_rank(seed, (uint64_t)(s * RANKS + r));
        run_page_ranks(h, s, made[s], RANKS);
    }
    return h;
}

// Writes the page and reads its numbers. 0, or -1.
static int read_page(RunPage* h, Json* json) {
    CHECK(run_page_write(&h, 1, "a run", path_of("report.html"), err, sizeof err) == 0);
    CHECK(read_text(path_of("report.html"), text, sizeof text) < sizeof text - 1);
    return page_json(json, text);
}

// The mean of what is known of steps first to last; NaN: nothing.
static double plain_mean(int rank, int field, int64_t first, int64_t last) {
    double sum = 0;
    int n = 0;
    for (int64_t s = first; s <= last; s++) {
        float x = rank_field(&made[s][rank], field);
        if (isfinite(x)) sum += x, n++;
    }
    return n ? sum / n : NAN;
}

static int is_close(const JsonValue* found, double expected) {
    double x = NAN;
    if (isnan(expected)) return found && found->type == JSON_NULL;
    return json_double(found, &x) == 0 && fabs(x - expected) <= digits * fabs(expected);
}

// The ranks of the one run in a page.
static const JsonValue* ranks_of(const Json* json) {
    return member(json, json_at(json, member(json, json->values, "runs"), 0), "ranks");
}

static void check_columns(const Json* json, int steps) {
    const JsonValue *columns = member(json, ranks_of(json), "columns"), *ranks = member(json, ranks_of(json), "ranks");
    int64_t next = 1, span = 0;
    int wrong = 0;
    CHECK(columns && columns->n <= RANK_COLUMNS && columns->n >= MIN(steps, RANK_COLUMNS / 2));
    CHECK(ranks && ranks->n == RANKS);
    for (int c = 0; c < columns->n; c++) {
        int64_t first = -1, last = -1;
        const JsonValue* column = json_at(json, columns, c);
        CHECK(json_int64(json_at(json, column, 0), &first) == 0 && json_int64(json_at(json, column, 1), &last) == 0);
        if (c == 0) span = last - first + 1;
        CHECK(first == next && last <= steps && (last - first + 1 == span || (c == columns->n - 1 && last == steps)));
        if (first < 1 || last > steps) return;
        next = last + 1;
        for (int r = 0; r < RANKS; r++)
            for (int f = 0; f < RANK_FIELDS; f++) {
                const JsonValue* values = json_get(json, json_at(json, ranks, r), rank_field_names[f]);
                CHECK(c > 0 || (values && values->n == columns->n));
                wrong += !is_close(json_at(json, values, c), plain_mean(r, f, first, last));
            }
    }
    CHECK(next == steps + 1);
    CHECK(wrong == 0);
}

static void every_column_is_the_mean_of_its_steps_however_often_columns_were_merged(void) {
    const int lengths[] = {1, 2, 511, 512, 513, 514, 1024, 1025, 1030, 2048, 2051, MOST_STEPS};
    for (int i = 0; i < COUNT(lengths); i++) {
        Json json;
        RunPage* h = make_page(lengths[i], (uint64_t)i);
        if (!read_page(h, &json)) {
            check_columns(&json, lengths[i]);
            json_free(&json);
        }
        if (test_failures_in_claim) printf("    with %d steps, seed %d\n", lengths[i], i);
        run_page_close(h);
        if (test_failures_in_claim) return;
    }
}

static void the_page_has_each_rank_once_with_its_means_of_all_steps(void) {
    const int steps = 1500;
    Json json;
    RunPage* h = make_page(steps, 7);
    if (!read_page(h, &json)) {
        const JsonValue* ranks = member(&json, ranks_of(&json), "ranks");
        CHECK(ranks && ranks->n == RANKS);
        for (int r = 0; r < RANKS; r++) {
            const JsonValue *rank = json_at(&json, ranks, r), *mean = member(&json, rank, "mean");
            CHECK(number(&json, rank, "rank") == r);
            for (int f = 0; f < RANK_FIELDS; f++)
                CHECK(is_close(member(&json, mean, rank_field_names[f]), plain_mean(r, f, 1, steps)));
        }
        json_free(&json);
    }
    run_page_close(h);
}

static void a_page_may_be_written_at_any_time_and_changes_nothing(void) {
    enum { STEPS = 1300 };
    static char once[sizeof text];
    RunPage* h = make_page(STEPS, 11);
    CHECK(run_page_write(&h, 1, "a run", path_of("once.html"), err, sizeof err) == 0);
    read_text(path_of("once.html"), once, sizeof once);
    run_page_close(h);
    h = run_page_open("a run");
    for (int s = 1; s <= STEPS; s++) {
        run_page_ranks(h, s, made[s], RANKS);
        if (s % 101 == 0) CHECK(run_page_write(&h, 1, "a run", path_of("often.html"), err, sizeof err) == 0);
    }
    CHECK(run_page_write(&h, 1, "a run", path_of("often.html"), err, sizeof err) == 0);
    read_text(path_of("often.html"), text, sizeof text);
    CHECK(strlen(once) > 1000 && !strcmp(once, text));
    run_page_close(h);
}

static void the_page_needs_nothing_else_and_no_text_escapes_into_it(void) {
    Json json;
    char title[64];
    const char* bad = "a run </script><b>\"of\\ two";
    for (int steps = 0; steps < 3; steps++) {  // no step at all is a page too
        RunPage* h = make_page(steps, 5);
        CHECK(run_page_write(&h, 1, bad, path_of("report.html"), err, sizeof err) == 0);
        read_text(path_of("report.html"), text, sizeof text);
        check_page_needs_nothing_else(text);
        CHECK(!strstr(text, "<b>") && !strstr(text, "nan"));
        if (!page_json(&json, text)) {
            const JsonValue* ranks = ranks_of(&json);
            CHECK(json_string(member(&json, json.values, "title"), title) > 0);
            CHECK_STRING(title, bad);
            if (steps == 0) CHECK(ranks && ranks->type == JSON_NULL);
            else CHECK(ranks && member(&json, ranks, "columns")->n == steps);
            json_free(&json);
        }
        run_page_close(h);
    }
}

// ---- what the log says

static void line(RunPage* page, const char* format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    CHECK(run_page_line(page, text, (size_t)n) == 0);
}

static void steps_evaluations_and_events_of_the_log_stand_in_the_page(void) {
    Json json;
    char words[64];
    RunPage* page = run_page_open("runs/0");
    line(page,
         "{\"event\": \"start\", \"at\": 0, \"ranks\": 2, \"straggle\": \"rank=1,x=4,from=3,to=5\", \"options\": "
         "{\"--lr\": \"0.1\"}}\n");
    for (int s = 1; s <= 6; s++) {
        line(page,
             "{\"step\": %d, \"loss\": %g, \"grad_norm\": 1, \"lr\": 0.1, \"seconds\": 0.5, \"measured_ms\": 500, "
             "\"predicted_ms\": null, \"ranks\": {\"compute_ms\": [1, 2], \"wait_ms\": [1, 0], \"gamma\": [0, 0], "
             "\"sent\": [0, %d], \"taken\": [%d, 0], \"speed\": [1, 1]}}\n",
             s, 7.0 - s, s > 3 ? 64 : 0, s > 3 ? 64 : 0);
        if (s % 3 == 0)
            line(page, "{\"step\": %d, \"val_loss\": 4.5, \"val_targets\": 9, \"bits_per_byte\": 2.25}\n", s);
    }
    line(page, "{\"event\": \"sample\", \"at\": 6, \"text\": \"</script><b>\"}");
    CHECK(run_page_write(&page, 1, "runs/0", path_of("said.html"), err, sizeof err) == 0);
    CHECK(read_text(path_of("said.html"), text, sizeof text) < sizeof text - 1);
    check_page_needs_nothing_else(text);
    if (!page_json(&json, text)) {
        const JsonValue* run = json_at(&json, member(&json, json.values, "runs"), 0);
        const JsonValue *losses = member(&json, member(&json, run, "series"), "loss"),
                        *evals = member(&json, run, "evals");
        CHECK(losses && losses->n == 6 && is_close(json_at(&json, losses, 4), 2));
        CHECK(evals && member(&json, evals, "columns")->n == 2);
        CHECK(is_close(json_at(&json, member(&json, evals, "bits_per_byte"), 1), 2.25));
        const JsonValue* events = member(&json, run, "events");
        const struct {
            const char* kind;
            int at;
        } expected[] = {{"start", 0}, {"straggler", 3}, {"straggler", 6}, {"balance", 4}, {"sample", 6}};
        CHECK(events && events->n == COUNT(expected));
        for (int i = 0; i < COUNT(expected); i++) {
            const JsonValue* e = json_at(&json, events, i);
            CHECK(json_string(member(&json, e, "event"), words) > 0 && !strcmp(words, expected[i].kind));
            CHECK(number(&json, e, "at") == expected[i].at);
        }
        json_free(&json);
    }
    run_page_close(page);
}

// Steps as large as numbers go, and a start that does not say its options.
static void evaluations_are_merged_as_steps_are_and_the_best_stays(void) {
    enum { EVALS = 200000 };
    Json json;
    RunPage* page = run_page_open("x");
    FILE* nowhere = fopen("/dev/null", "w");
    line(page, "{\"event\": \"start\", \"at\": 0}");
    for (int i = 0; i < EVALS; i++)
        line(page, "{\"step\": %" PRId64 ", \"val_loss\": %d, \"val_targets\": 9, \"bits_per_byte\": null}",
             INT64_MAX - EVALS + i, i == 77777 ? 1 : 2);
    CHECK(run_page_write(&page, 1, "x", path_of("evals.html"), err, sizeof err) == 0);
    CHECK(read_text(path_of("evals.html"), text, sizeof text) < 200000);
    if (!page_json(&json, text)) {
        const JsonValue* evals = member(&json, json_at(&json, member(&json, json.values, "runs"), 0), "evals");
        const JsonValue* best = member(&json, evals, "best");
        int n = member(&json, evals, "columns")->n;
        CHECK(n > PAGE_COLUMNS / 2 && n <= PAGE_COLUMNS && member(&json, evals, "val_loss")->n == n);
        CHECK(number(&json, best, "val_loss") == 1 && member(&json, best, "bits_per_byte")->type == JSON_NULL);
        json_free(&json);
    }
    run_page_table(nowhere, &page, 1);
    fclose(nowhere);
    run_page_close(page);
}

static void the_strategy_that_each_step_chose_is_counted(void) {
    RunPage* page = run_page_open("x");
    Json json;
    for (int s = 1; s <= 10; s++)
        line(page, "{\"step\": %d, \"loss\": 2, \"strategy\": \"%s\"}", s, s % 5 ? "tp2+2xtp1" : "4xtp1");
    for (int s = 11; s <= 40; s++) line(page, "{\"step\": %d, \"loss\": 2, \"strategy\": \"kind%d\"}", s, s);
    CHECK(run_page_write(&page, 1, "x", path_of("chosen.html"), err, sizeof err) == 0);
    read_text(path_of("chosen.html"), text, sizeof text);
    if (!page_json(&json, text)) {
        const JsonValue* chosen = member(&json, json_at(&json, member(&json, json.values, "runs"), 0), "strategies");
        const JsonValue* list = member(&json, chosen, "list");
        CHECK(list && list->n == 12 && member(&json, chosen, "columns")->n == 40);  // the 12th stands for all others
        const double means[] = {8.0 / 40, 2.0 / 40};
        for (int i = 0; list && i < 12; i++) {
            double x = 0;
            CHECK(json_double(member(&json, json_at(&json, list, i), "mean"), &x) == 0);
            CHECK_CLOSE(x, i < 2 ? means[i] : i < 11 ? 1.0 / 40 : 21.0 / 40, 1e-5);
        }
        json_free(&json);
    }
    run_page_close(page);
}

static void lines_that_are_no_log_change_nothing(void) {
    static const char* const bad[] = {"",
                                      "{",
                                      "[]",
                                      "5",
                                      "{\"step\": -1, \"loss\": 1}",
                                      "{\"step\": \"x\"}",
                                      "{\"event\": \"a\\q\", \"at\": 1}",
                                      "{\"event\": 3}",
                                      "{\"step\": 1}"};
    static char clean[sizeof text];
    RunPage* page = run_page_open("x");
    CHECK(run_page_write(&page, 1, "x", path_of("clean.html"), err, sizeof err) == 0);
    read_text(path_of("clean.html"), clean, sizeof clean);
    for (int i = 0; i < COUNT(bad); i++) line(page, "%s", bad[i]);
    CHECK(run_page_write(&page, 1, "x", path_of("clean.html"), err, sizeof err) == 0);
    read_text(path_of("clean.html"), text, sizeof text);
    CHECK(!strcmp(text, clean));
    line(page,
         "{\"step\": 3, \"loss\": 1, \"ranks\": {\"compute_ms\": [1, 2], \"wait_ms\": [1]}}");  // ranks that disagree
    CHECK(run_page_write(&page, 1, "x", path_of("clean.html"), err, sizeof err) == 0);
    read_text(path_of("clean.html"), text, sizeof text);
    CHECK(strstr(text, "\"ranks\":null"));
    run_page_close(page);
}

#define TINY                                                                                                           \
    "--data $W/b.txt --layers 1 --width 32 --heads 2 --context 64 --batch-tokens 256 --sample-every 0 --eval-every 2 " \
    "--eval-tokens 512 "

static void a_run_writes_its_page_and_several_are_laid_side_by_side(void) {
    double losses[8];
    CHECK(sh("cp plan/base.h $W/b.txt && %s " TINY "--steps 4 --out $W/first", program) == 0);
    CHECK(sh("%s " TINY "--steps 4 --lr 0.001 --out $W/second", program) == 0);
    CHECK(sh("grep -c bits_per_byte $W/first/report.html && echo old > $W/first/ranks.html") == 0);
    CHECK(log_values("first", "val_loss", losses, 8) == 3);  // before the first step, too
    CHECK_CLOSE(losses[0], log(257), 0.3);
    double bits[8];
    CHECK(log_values("first", "bits_per_byte", bits, 8) == 3);
    CHECK(bits[2] >= losses[2] / log(2) - 1e-9 && bits[2] < 1.1 * losses[2] / log(2));  // an end of text has no byte
    CHECK(sh("%s --resume --steps 6 --out $W/first", program) == 0);
    CHECK(sh("! ls $W/first/ranks.html && grep -c '\"resumed\": 1' $W/first/report.html") == 0);
    CHECK(sh("%s --report $W/first $W/second --out $W/both", program) == 0);
    CHECK(strstr(output, "--lr") && strstr(output, "0.001") && strstr(output, "both/report.html"));
    CHECK(strstr(output, "--steps") && !strstr(output, "--width"));
    Json json;
    read_text(path_of("both/report.html"), text, sizeof text);
    check_page_needs_nothing_else(text);
    if (!page_json(&json, text)) {
        const JsonValue* runs = member(&json, json.values, "runs");
        CHECK(runs && runs->n == 2 && member(&json, json_at(&json, runs, 0), "columns")->n == 6);
        json_free(&json);
    }
    CHECK(sh("%s --report $W/nowhere", program) == 1 && strstr(errors, "nowhere/log.jsonl"));
}

// ---- what fails

static void a_page_that_cannot_be_written_leaves_the_older_one_and_says_why(void) {
    static char older[sizeof text];
    RunPage *small = make_page(2, 1), *large = make_page(600, 2);
    CHECK(mkdir(path_of("full"), 0777) == 0);
    CHECK(run_page_write(&small, 1, "older", path_of("full/report.html"), err, sizeof err) == 0);
    size_t n = read_text(path_of("full/report.html"), older, sizeof older);
    struct rlimit before, least;
    getrlimit(RLIMIT_FSIZE, &before);
    least = before;
    least.rlim_cur = n + 100;  // as a full disk does, this ends the writing somewhere in the middle
    signal(SIGXFSZ, SIG_IGN);
    fflush(stdout);
    setrlimit(RLIMIT_FSIZE, &least);
    int failed = run_page_write(&large, 1, "newer", path_of("full/report.html"), err, sizeof err);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_DFL);
    CHECK(failed < 0 && strstr(err, "full/report.html") && strstr(err, "cannot write"));
    CHECK(read_text(path_of("full/report.html"), text, sizeof text) == n && !strcmp(text, older));
    CHECK(disk_count(path_of("full")) == 1);
    CHECK(run_page_write(&large, 1, "newer", path_of("full/report.html"), err, sizeof err) == 0);
    CHECK(read_text(path_of("full/report.html"), text, sizeof text) > n && strstr(text, "\"newer\""));
    CHECK(disk_count(path_of("full")) == 1);
    run_page_close(small);
    run_page_close(large);
}

static void a_page_without_a_place_says_so(void) {
    RunPage* h = make_page(2, 1);
    CHECK(run_page_write(&h, 1, "a run", path_of("nowhere/report.html"), err, sizeof err) < 0);
    CHECK(strstr(err, "nowhere/report.html") != NULL);
    CHECK(mkdir(path_of("place"), 0777) == 0 && mkdir(path_of("place/report.html"), 0777) == 0);
    CHECK(run_page_write(&h, 1, "a run", path_of("place/report.html"), err, sizeof err) < 0);
    CHECK(strstr(err, "place/report.html: ") != NULL && disk_count(path_of("place")) == 1);
    run_page_close(h);
}

// ---- the log

// The line of one step, read. 0, or -1.
static int log_line(const char* run, const StepRecord* record, Json* json) {
    RunLog log;
    char name[64];
    CHECK(mkdir(path_of(run), 0777) == 0 && runlog_open(&log, path_of(run), 0, 0, err, sizeof err) == 0);
    log.last_print = now_seconds();  // no progress line
    CHECK(runlog_step(&log, record) == 0);
    runlog_close(&log);
    snprintf(name, sizeof name, "%s/log.jsonl", run);
    size_t n = read_text(path_of(name), text, sizeof text);
    if (!json_parse(json, text, n, err, sizeof err)) return 0;
    printf("    %s\n", err);
    test_failures_in_claim++;
    return -1;
}

static void a_log_line_has_what_every_rank_did(void) {
    Json json;
    RankStep ranks[RANKS];
    for (int r = 0; r < RANKS; r++) ranks[r] = make_rank(4, (uint64_t)r);
    ranks[1].speed = INFINITY;
    ranks[2].speed = 0.125f;
    StepRecord record = {.step = 2, .steps = 5, .seconds = 1, .emulated_ms = 1.0 / 3, .tensor = 12, .slices = 34};
    record.ranks = ranks;
    record.n_ranks = RANKS;
    if (log_line("ranks", &record, &json)) return;
    const JsonValue *found = member(&json, json.values, "ranks"), *bytes = member(&json, json.values, "bytes");
    int known = 0;
    CHECK(found && found->type == JSON_OBJECT && found->n == RANK_FIELDS);
    for (int f = 0; f < RANK_FIELDS; f++) {
        const JsonValue* values = member(&json, found, rank_field_names[f]);
        CHECK(values && values->type == JSON_ARRAY && values->n == RANKS);
        for (int r = 0; r < RANKS; r++) {
            double x = rank_field(&ranks[r], f);
            known += isfinite(x) != 0;
            CHECK(is_close(json_at(&json, values, r), isfinite(x) ? x : NAN));
        }
    }
    CHECK(known > RANK_FIELDS && known < RANKS * RANK_FIELDS);
    CHECK(number(&json, json.values, "emulated_ms") == 1.0 / 3);
    CHECK(number(&json, bytes, "tensor") == 12 && number(&json, bytes, "slices") == 34);
    json_free(&json);
}

// Each field under its own name.
static void the_fields_of_a_rank_keep_their_names(void) {
    Json json;
    RankStep rank = {.compute_ms = 1, .wait_ms = 2, .gamma = 3, .sent = 4, .taken = 5, .speed = 6};
    StepRecord record = {.step = 2, .steps = 5, .seconds = 1, .ranks = &rank, .n_ranks = 1};
    const char* names[] = {"compute_ms", "wait_ms", "gamma", "sent", "taken", "speed"};
    if (log_line("names", &record, &json)) return;
    const JsonValue* found = member(&json, json.values, "ranks");
    for (int i = 0; i < COUNT(names); i++) {
        double x = NAN;
        CHECK(json_double(json_at(&json, member(&json, found, names[i]), 0), &x) == 0 && x == i + 1);
    }
    json_free(&json);
}

static void a_log_line_has_null_for_ranks_that_are_not_known(void) {
    Json json;
    StepRecord record = {.step = 2, .steps = 5, .seconds = 1, .emulated_ms = NAN, .n_ranks = 4};
    if (log_line("unknown", &record, &json)) return;
    const JsonValue *ranks = member(&json, json.values, "ranks"), *ms = member(&json, json.values, "emulated_ms");
    CHECK(ranks && ranks->type == JSON_NULL && ms && ms->type == JSON_NULL);
    json_free(&json);
}

// Of a run that was resumed, too.
static void terminal_table_and_page_say_one_loss_and_one_time(void) {
    char loss[16] = "", after[32] = "", of_table[2][16] = {"", ""}, words[32];
    double seconds[100], sum = 0;
    Json json;
    const char* tiny =
        "--layers 1 --width 32 --heads 2 --context 64 --batch-tokens 256 --eval-every 20 --sample-every 0";
    CHECK(sh("%s %s --data plan --steps 40 --out $W/one && sleep 1 && %s --resume --steps 60 --out $W/one", program,
             tiny, program) == 0);
    const char *line = strstr(output, "step 60/60 | loss "), *done = strstr(output, "done at step 60 of 60 after ");
    CHECK(line && done && sscanf(line + 18, "%15[0-9.]", loss) == 1 && sscanf(done + 28, "%31[^;]", after) == 1);
    CHECK(sh("%s --report $W/one", program) == 0);
    const char* row = strstr(output, "/one ");
    CHECK(row && sscanf(row, "%*s %*s %15s %*s %*s %*s %15s", of_table[0], of_table[1]) == 2);
    CHECK_STRING(of_table[0], loss);
    CHECK_STRING(text_duration(atof(of_table[1]), words), after);
    CHECK(read_text(path_of("one/report.html"), text, sizeof text) < sizeof text - 1);
    if (page_json(&json, text)) return;
    const JsonValue* run = json_at(&json, member(&json, json.values, "runs"), 0);
    snprintf(words, sizeof words, "%.4f", number(&json, run, "loss"));
    CHECK_STRING(words, loss);
    CHECK_STRING(text_duration(number(&json, run, "seconds"), words), after);
    int n = log_values("one", "seconds", seconds, COUNT(seconds));
    for (int k = 0; k < n; k++) sum += seconds[k];
    CHECK(n == 60 && number(&json, run, "seconds") > sum);  // what is between steps counts
    json_free(&json);
}

int main(int argc, char** argv) {
    program_begin(argc, argv);
    RUN(every_column_is_the_mean_of_its_steps_however_often_columns_were_merged);
    RUN(the_page_has_each_rank_once_with_its_means_of_all_steps);
    RUN(a_page_may_be_written_at_any_time_and_changes_nothing);
    RUN(the_page_needs_nothing_else_and_no_text_escapes_into_it);
    RUN(steps_evaluations_and_events_of_the_log_stand_in_the_page);
    RUN(evaluations_are_merged_as_steps_are_and_the_best_stays);
    RUN(the_strategy_that_each_step_chose_is_counted);
    RUN(lines_that_are_no_log_change_nothing);
    RUN(a_run_writes_its_page_and_several_are_laid_side_by_side);
    RUN(a_page_that_cannot_be_written_leaves_the_older_one_and_says_why);
    RUN(a_page_without_a_place_says_so);
    RUN(a_log_line_has_what_every_rank_did);
    RUN(the_fields_of_a_rank_keep_their_names);
    RUN(a_log_line_has_null_for_ranks_that_are_not_known);
    RUN(terminal_table_and_page_say_one_loss_and_one_time);
    return program_end();
}
