// test_run_page.c - the claims of run/show/run_page.h, and of the ranks in data/runlog.h: a page has the lines of the
// log, of very long logs so many of each kind, with what all of them come to, whatever else stands there; and a page
// that cannot be written leaves the older one. What its script makes of the lines: test/pages_in_browser.sh.
#include <inttypes.h>

#include "data/runlog.h"
#include "plan/base/disk.h"
#include "plan/base/terminal.h"
#include "run/show/run_page.h"
#include "test/page_checks.h"
#include "test/program.h"
#include "test/readers.h"

enum { RANKS = 3, MOST_LINES = 1200, LAST_LINES = 200 };

static char err[ERR_BYTES];
static char text[1 << 21];

// A page of a new directory, with an empty log.
static void open_page(RunPage* page, const char* name) {
    char log[DISK_PATH];
    CHECK_SH(0, "cd $W && rm -rf '%s' && mkdir -p '%s' && : > '%s/log.jsonl'", name, name, name);
    snprintf(log, sizeof log, "%s", path_of(name));
    run_page_open(page, log);
}

// Into its log.
static void line(const RunPage* page, const char* format, ...) {
    char path[DISK_PATH];
    va_list args;
    CHECK(disk_join(path, page->dir, "log.jsonl", err) == 0);
    FILE* file = fopen(path, "a");
    if (!file) die("cannot write %s", path);
    va_start(args, format);
    vfprintf(file, format, args);
    va_end(args);
    fputc('\n', file);
    CHECK(fclose(file) == 0);
}

// A step and its evaluation.
static void add_step(const RunPage* page, int64_t s, int val_loss) {
    line(page,
         "{\"step\": %" PRId64 ", \"loss\": %.17g, \"time\": 200}\n{\"step\": %" PRId64
         ", \"val_loss\": %d, \"val_targets\": 9, \"bits_per_byte\": null}",
         s, 1.0 / (double)s, s, val_loss);
}

static void make_page(RunPage* page, const char* name, int64_t first, int steps) {
    open_page(page, name);
    line(page, "{\"event\": \"start\", \"at\": 0, \"time\": 100.5}");
    for (int s = 0; s < steps; s++) add_step(page, first + s, s == steps / 3 ? 1 : 2);
}

// Numbers of ranks are written with four digits: half a unit of the last is at most 5e-4 of the number.
static int is_close(const JsonValue* found, double expected) {
    double x = NAN;
    if (isnan(expected)) return found && found->type == JSON_NULL;
    return json_double(found, &x) == 0 && fabs(x - expected) <= 5.01e-4 * fabs(expected);
}

static const char* written(RunPage* page, const char* name) {
    CHECK(run_page_write(page, 1, path_of(name), err) == 0);
    CHECK(read_text(path_of(name), text, sizeof text) < sizeof text - 1);
    check_page_needs_nothing_else(text);
    return text;
}

CLAIM(a_page_has_the_lines_of_the_log_as_they_are) {
    static const char* const lines[] = {
        "{\"event\": \"start\", \"at\": 0, \"options\": {\"--lr\": \"0.1\"}}",
        "{\"step\": 1, \"loss\": 2.5,  \"anything\": [null, {\"else\": 1e-300}]}",
        "{\"step\": 1, \"val_loss\": null, \"val_targets\": 9}",
        "{\"event\": \"of another version\", \"at\": 1}",
        "{\"event\": \"sample\", \"at\": 1, \"text\": \"\\u003c/script>\\u003cb>\xc3\xa9\"}",
    };
    char expected[2 * DISK_PATH];
    RunPage page;
    open_page(&page, "runs");
    snprintf(expected, sizeof expected,
             "\n{\"run\":\"%s\",\"seconds\":null,\"loss\":2.5,\"val_loss\":null,\"bits_per_byte\":null,\"tokens_per_"
             "second\":null}\n",
             page.dir);
    for (int i = 0; i < COUNT(lines); i++) {
        if (i < COUNT(lines) - 1) line(&page, "%s\r", lines[i]);
        else line(&page, "{\"event\": \"sample\", \"at\": 1, \"text\": \"</script><b>\xc3\xa9\"}");
        snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%s\n", lines[i]);
    }
    CHECK(strstr(written(&page, "lines.html"), expected) != NULL);
    run_page_close(&page);
}

CLAIM(a_name_cannot_end_the_data_and_no_step_is_a_page_too) {
    Json json;
    char name[DISK_PATH];
    const char* bad = "a run </script><b>\"of\\ two";
    RunPage page;
    open_page(&page, bad);
    CHECK(!strstr(written(&page, "none.html"), "<b>") && !strstr(text, "nan"));
    if (!page_json(&json, text)) {
        CHECK(json_string(member(json.values, "run"), name) > 0);
        CHECK_STRING(name, page.dir);
        CHECK(member(json.values, "loss")->type == JSON_NULL);
        json_free(&json);
    }
    run_page_close(&page);
}

// The steps of a kind of line, from the first on; returns how many.
static int steps_kept(int64_t* steps, const char* kind, int64_t first) {
    char found[16];
    int64_t step;
    int n = 0;
    for (const char* at = text; (at = strchr(at, '\n')) && n <= MOST_LINES; at++)
        if (sscanf(at, "\n{\"step\": %" SCNd64 ", \"%15[a-z_]", &step, found) == 2 && !strcmp(found, kind))
            steps[n++] = step - first;
    return n;
}

// Of n steps: all, or equally many apart, a power of two, and then at least the last 200 all.
static void check_kept(const int64_t* steps, int kept, int n) {
    int64_t apart = kept > 1 ? steps[1] : 1;
    int i = 1;
    CHECK(kept <= MOST_LINES && steps[0] == 0 && steps[kept - 1] == n - 1 && (apart & (apart - 1)) == 0);
    CHECK(n > MOST_LINES || kept == n);
    while (i < kept && steps[i] == steps[i - 1] + apart) i++;
    if (i < kept) CHECK(steps[i] <= steps[i - 1] + apart && i >= 250 && kept - i >= LAST_LINES);
    i++;
    for (int wrong = 0; i < kept && !wrong; i++) CHECK(!(wrong = steps[i] != steps[i - 1] + 1));
}

// Steps as large as numbers go, too.
CLAIM(of_a_long_log_equally_many_are_left_out_but_of_the_last) {
    static int64_t steps[MOST_LINES + 1];
    const int lengths[] = {1, 2, MOST_LINES, MOST_LINES + 1, 2000, 5003, 100000};
    for (int i = 0; i < COUNT(lengths); i++) {
        int n = lengths[i];
        int64_t first = i % 2 ? INT64_MAX - n : 1;
        Json json;
        RunPage page;
        make_page(&page, "long", first, n);
        for (int k = 0; k < 3000; k++) line(&page, "{\"event\": \"start\", \"at\": %d, \"time\": 300}", k);
        written(&page, "long.html");
        check_kept(steps, steps_kept(steps, "loss", first), n);
        check_kept(steps, steps_kept(steps, "val_loss", first), n);
        CHECK(strstr(text, "\"at\": 2999,") && count(text, "{\"event\": \"start\"") <= MOST_LINES);
        if (!page_json(&json, text)) {
            CHECK(number(json.values, "val_loss") == 1);  // the least of all, whichever are kept
            CHECK(number(json.values, "seconds") == 99.5);
            json_free(&json);
        }
        if (test_failures_in_claim) printf("    of %d lines\n", n);
        run_page_close(&page);
        if (test_failures_in_claim) return;
    }
}

CLAIM(a_page_may_be_written_at_any_time_and_changes_nothing) {
    static char once[sizeof text];
    RunPage page;
    make_page(&page, "a run", 1, 1300);
    strcpy(once, written(&page, "once.html"));
    run_page_close(&page);
    make_page(&page, "a run", 1, 0);
    for (int s = 0; s < 1300; s++) {
        add_step(&page, 1 + s, s == 1300 / 3 ? 1 : 2);
        if (s % 101 == 0) written(&page, "often.html");
    }
    CHECK(!strcmp(written(&page, "often.html"), once));
    run_page_close(&page);
}

CLAIM(lines_that_are_no_log_change_nothing) {
    static const char* const bad[] = {"",
                                      "{",
                                      "[]",
                                      "5",
                                      "{'step': -1, 'loss': 1}",
                                      "{'step': 'x'}",
                                      "{'event': 'a\\q', 'at': 1}",
                                      "{'event': 3}",
                                      "{'step': 1}",
                                      "{'step': 1,\n'loss': 2}"};
    static char clean[sizeof text];
    RunPage page;
    open_page(&page, "x");
    strcpy(clean, written(&page, "clean.html"));
    for (int i = 0; i < COUNT(bad); i++) line(&page, "%s", quoted(bad[i]));
    CHECK(!strcmp(written(&page, "clean.html"), clean));
    run_page_close(&page);
}

#define TINY                                                                                                           \
    "--data $W/b.txt --layers 1 --width 32 --heads 2 --context 64 --batch-tokens 256 --sample-every 0 --eval-every 2 " \
    "--eval-every tokens=512 "

CLAIM(a_run_writes_its_page_and_several_are_laid_side_by_side) {
    double losses[8], bits[8];
    CHECK_SH(0, "cp plan/base/base.h $W/b.txt && $P " TINY "--steps 4 --out $W/first");
    CHECK_SH(0, "$P " TINY "--steps 4 --lr 0.001 --out $W/second");
    CHECK(log_values("first", "val_loss", losses, 8) == 3);  // before the first step, too
    CHECK_CLOSE(losses[0], log(257), 0.3);
    CHECK(log_values("first", "bits_per_byte", bits, 8) == 3);
    CHECK(bits[2] >= losses[2] / log(2) - 1e-9 && bits[2] < 1.1 * losses[2] / log(2));  // an end of text has no byte
    CHECK_SH(0, "$P --resume --steps 6 --out $W/first");
    CHECK_SH(1, "sed 's/</\\\\u003c/g' $W/first/log.jsonl | grep -vxFf $W/first/report.html");  // it has all lines
    CHECK_SH(0, "$P --report $W/first $W/second --out $W/both");
    CHECK_SAID("--lr & 0.001 & both/report.html & --steps & !--width");
    CHECK_SH(1, "sed 's/</\\\\u003c/g' $W/first/log.jsonl $W/second/log.jsonl | grep -vxFf $W/both/report.html");
    read_text(path_of("both/report.html"), text, sizeof text);
    check_page_needs_nothing_else(text);
    CHECK(count(text, "\n{\"run\":") == 2);
    CHECK_REFUSED("nowhere/log.jsonl", "$P --report $W/nowhere");
}

// Of a run that was resumed, too.
CLAIM(terminal_table_and_page_say_one_loss_one_speed_and_one_time) {
    char loss[16] = "", after[32] = "", of_table[2][16] = {"", ""}, words[32];
    double seconds[100], tokens[100], sum = 0, all = 0, speed = 0;
    Json json;
    CHECK_SH(0, "$P " TINY
                "--eval-every 20 --data plan --steps 40 --out $W/one && sleep 1 && "
                "$P --resume --steps 60 --out $W/one");
    const char *line = strstr(output, "step 60/60 | loss "), *done = strstr(output, "done at step 60 of 60 after ");
    CHECK(line && done && sscanf(line + 18, "%15[0-9.]", loss) == 1 && sscanf(done + 28, "%31[^;]", after) == 1);
    CHECK(read_text(path_of("one/report.html"), text, sizeof text) < sizeof text - 1);
    CHECK_SH(0, "$P --report $W/one");
    const char* row = strstr(output, "/one ");
    CHECK(row && sscanf(row, "%*s %*s %15s %*s %*s %lf %15s", of_table[0], &speed, of_table[1]) == 3);
    CHECK_STRING(of_table[0], loss);
    if (page_json(&json, text)) return;
    snprintf(words, sizeof words, "%.4f", number(json.values, "loss"));
    CHECK_STRING(words, loss);
    CHECK_STRING(text_duration(number(json.values, "seconds"), words), after);
    CHECK_CLOSE(atof(of_table[1]), number(json.values, "seconds"), 0.0501);
    int n = log_values("one", "seconds", seconds, COUNT(seconds));
    CHECK(n == 60 && log_values("one", "tokens", tokens, COUNT(tokens)) == 60);
    for (int k = 0; k < n; k++) sum += seconds[k], all += tokens[k];
    CHECK_CLOSE(number(json.values, "tokens_per_second"), all / sum, 1e-6 * all / sum);
    CHECK_CLOSE(speed, all / sum, 0.51);
    CHECK(number(json.values, "seconds") > sum);  // what is between steps counts
    json_free(&json);
}

// ---- what fails

CLAIM(a_page_without_a_place_says_so) {
    RunPage page;
    make_page(&page, "a run", 1, 2);
    CHECK(run_page_write(&page, 1, path_of("nowhere/report.html"), err) < 0);
    CHECK(strstr(err, "nowhere/report.html") != NULL);
    CHECK(mkdir(path_of("place"), 0777) == 0 && mkdir(path_of("place/report.html"), 0777) == 0);
    CHECK(run_page_write(&page, 1, path_of("place/report.html"), err) < 0);
    CHECK(strstr(err, "place/report.html: ") != NULL && disk_count(path_of("place")) == 1);
    run_page_close(&page);
}

// ---- the log

// The line of one step, read. 0, or -1.
static int log_line(const char* run, const StepRecord* record, Json* json) {
    RunLog log;
    CHECK(mkdir(path_of(run), 0777) == 0 && runlog_open(&log, path_of(run), 0, 0, err) == 0);
    log.last_print = now_seconds();  // no progress line
    CHECK(runlog_step(&log, record) == 0);
    runlog_close(&log);
    int failed = json_parse(json, text, read_text(path_of(filled("%s/log.jsonl", run)), text, sizeof text), err);
    CHECK(!failed);
    return failed;
}

// Each field under its own name; a number that is not known, or not finite, is null.
CLAIM(a_log_line_has_what_every_rank_did) {
    static const char* const names[] = {"compute_ms", "wait_ms", "gamma", "sent", "taken", "speed"};
    float values[RANKS][6] = {{1.25f, NAN, 0.3333333f, 1e-7f, 5, 6}, {7, 8, 9, 123456.7f, 11, INFINITY}, {0}};
    RankStep ranks[RANKS];
    Json json;
    for (int r = 0; r < RANKS; r++) {
        const float* v = values[r];
        ranks[r] = (RankStep){.compute_ms = v[0], .wait_ms = v[1], .gamma = v[2]};
        ranks[r].sent = v[3], ranks[r].taken = v[4], ranks[r].speed = v[5];
    }
    StepRecord record = {.step = 2, .steps = 5, .seconds = 1, .emulated_ms = 1.0 / 3};
    record.sent[SENT_TENSOR] = 12, record.sent[SENT_SLICES] = 34;
    record.ranks = ranks, record.n_ranks = RANKS;
    if (log_line("ranks", &record, &json)) return;
    const JsonValue *found = member(json.values, "ranks"), *bytes = member(json.values, "bytes");
    CHECK(found && found->type == JSON_OBJECT && found->n == COUNT(names));
    for (int f = 0; f < COUNT(names); f++) {
        const JsonValue* list = member(found, names[f]);
        CHECK(list && list->type == JSON_ARRAY && list->n == RANKS);
        for (int r = 0; r < RANKS; r++) {
            float x = values[r][f];
            CHECK(is_close(json_at(list, r), isfinite(x) ? (double)x : NAN));
        }
    }
    CHECK(number(json.values, "emulated_ms") == 1.0 / 3);
    CHECK(number(bytes, "tensor") == 12 && number(bytes, "slices") == 34);
    json_free(&json);
    record.ranks = NULL, record.emulated_ms = NAN;
    if (log_line("unknown", &record, &json)) return;
    CHECK(member(json.values, "ranks")->type == JSON_NULL);
    CHECK(member(json.values, "emulated_ms")->type == JSON_NULL);
    json_free(&json);
}

PROGRAM_TEST {}
