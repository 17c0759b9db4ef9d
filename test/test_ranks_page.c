// test_ranks_page.c - the claims of run/ranks_page.h and of the ranks in data/runlog.h: a history of any length is at
// most 512 columns of true means, the page has their numbers, and a page that cannot be written leaves the older one.
#include <signal.h>
#include <sys/resource.h>

#include "data/runlog.h"
#include "run/ranks_page.h"
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

static char* path_of(const char* name) {
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", work, name);
    return path;
}

static History* make_history(int steps, uint64_t seed) {
    History* h = history_open(RANKS);
    if (!h) abort();
    for (int s = 1; s <= steps; s++) {
        for (int r = 0; r < RANKS; r++) made[s][r] = make_rank(seed, (uint64_t)(s * RANKS + r));
        history_add(h, s, made[s]);
    }
    return h;
}

// Writes the page and reads its numbers. 0, or -1.
static int read_page(const History* h, Json* json) {
    CHECK(history_write(h, path_of("ranks.html"), "a run", err, sizeof err) == 0);
    CHECK(read_text(path_of("ranks.html"), text, sizeof text) < sizeof text - 1);
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

static void check_columns(const Json* json, int steps) {
    const JsonValue *columns = member(json, json->values, "columns"), *ranks = member(json, json->values, "ranks");
    int64_t next = 1, span = 0;
    int wrong = 0;
    CHECK(columns && columns->n <= MOST_COLUMNS && columns->n >= MIN(steps, MOST_COLUMNS / 2));
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
        History* h = make_history(lengths[i], (uint64_t)i);
        if (!read_page(h, &json)) {
            check_columns(&json, lengths[i]);
            json_free(&json);
        }
        if (test_failures_in_claim) printf("    with %d steps, seed %d\n", lengths[i], i);
        history_close(h);
        if (test_failures_in_claim) return;
    }
}

static void the_page_has_each_rank_once_with_its_means_of_all_steps(void) {
    const int steps = 1500;
    Json json;
    History* h = make_history(steps, 7);
    if (!read_page(h, &json)) {
        const JsonValue* ranks = member(&json, json.values, "ranks");
        CHECK(number(&json, json.values, "steps") == steps && ranks && ranks->n == RANKS);
        for (int r = 0; r < RANKS; r++) {
            const JsonValue *rank = json_at(&json, ranks, r), *mean = member(&json, rank, "mean");
            CHECK(number(&json, rank, "rank") == r);
            for (int f = 0; f < RANK_FIELDS; f++)
                CHECK(is_close(member(&json, mean, rank_field_names[f]), plain_mean(r, f, 1, steps)));
        }
        json_free(&json);
    }
    history_close(h);
}

static void a_page_may_be_written_at_any_time_and_changes_nothing(void) {
    enum { STEPS = 1300 };
    static char once[sizeof text];
    History* h = make_history(STEPS, 11);
    CHECK(history_write(h, path_of("once.html"), "a run", err, sizeof err) == 0);
    read_text(path_of("once.html"), once, sizeof once);
    history_close(h);
    h = history_open(RANKS);
    for (int s = 1; s <= STEPS; s++) {
        history_add(h, s, made[s]);
        if (s % 101 == 0) CHECK(history_write(h, path_of("often.html"), "a run", err, sizeof err) == 0);
    }
    CHECK(history_write(h, path_of("often.html"), "a run", err, sizeof err) == 0);
    read_text(path_of("often.html"), text, sizeof text);
    CHECK(strlen(once) > 1000 && !strcmp(once, text));
    history_close(h);
}

static void the_page_needs_nothing_else_and_no_text_escapes_into_it(void) {
    Json json;
    char title[64];
    const char* bad = "a run </script><b>\"of\\ two";
    for (int steps = 0; steps < 3; steps++) {  // no step at all is a page too
        History* h = make_history(steps, 5);
        CHECK(history_write(h, path_of("ranks.html"), bad, err, sizeof err) == 0);
        read_text(path_of("ranks.html"), text, sizeof text);
        check_page_needs_nothing_else(text);
        CHECK(!strstr(text, "<b>") && !strstr(text, "nan"));
        if (!page_json(&json, text)) {
            const JsonValue* columns = member(&json, json.values, "columns");
            CHECK(json_string(member(&json, json.values, "title"), title) > 0);
            CHECK_STRING(title, bad);
            CHECK(columns && columns->n == steps);
            json_free(&json);
        }
        history_close(h);
    }
}

// ---- what fails

static int files_in(const char* dir) {
    int n = 0;
    DIR* d = opendir(dir);
    for (struct dirent* e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static void a_page_that_cannot_be_written_leaves_the_older_one_and_says_why(void) {
    static char older[sizeof text];
    History *small = make_history(2, 1), *large = make_history(600, 2);
    CHECK(mkdir(path_of("full"), 0777) == 0);
    CHECK(history_write(small, path_of("full/ranks.html"), "older", err, sizeof err) == 0);
    size_t n = read_text(path_of("full/ranks.html"), older, sizeof older);
    struct rlimit before, least;
    getrlimit(RLIMIT_FSIZE, &before);
    least = before;
    least.rlim_cur = n + 100;  // as a full disk does, this ends the writing somewhere in the middle
    signal(SIGXFSZ, SIG_IGN);
    fflush(stdout);
    setrlimit(RLIMIT_FSIZE, &least);
    int failed = history_write(large, path_of("full/ranks.html"), "newer", err, sizeof err);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_DFL);
    CHECK(failed < 0 && strstr(err, "full/ranks.html") && strstr(err, "cannot write"));
    CHECK(read_text(path_of("full/ranks.html"), text, sizeof text) == n && !strcmp(text, older));
    CHECK(files_in(path_of("full")) == 1);
    CHECK(history_write(large, path_of("full/ranks.html"), "newer", err, sizeof err) == 0);
    CHECK(read_text(path_of("full/ranks.html"), text, sizeof text) > n && strstr(text, "\"newer\""));
    CHECK(files_in(path_of("full")) == 1);
    history_close(small);
    history_close(large);
}

static void a_page_without_a_place_says_so(void) {
    History* h = make_history(2, 1);
    CHECK(history_write(h, path_of("nowhere/ranks.html"), "a run", err, sizeof err) < 0);
    CHECK(strstr(err, "nowhere/ranks.html") != NULL);
    CHECK(mkdir(path_of("place"), 0777) == 0 && mkdir(path_of("place/ranks.html"), 0777) == 0);
    CHECK(history_write(h, path_of("place/ranks.html"), "a run", err, sizeof err) < 0);
    CHECK(strstr(err, "place/ranks.html: ") != NULL && files_in(path_of("place")) == 1);
    history_close(h);
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

int main(int argc, char** argv) {
    program_begin(argc, argv);
    RUN(every_column_is_the_mean_of_its_steps_however_often_columns_were_merged);
    RUN(the_page_has_each_rank_once_with_its_means_of_all_steps);
    RUN(a_page_may_be_written_at_any_time_and_changes_nothing);
    RUN(the_page_needs_nothing_else_and_no_text_escapes_into_it);
    RUN(a_page_that_cannot_be_written_leaves_the_older_one_and_says_why);
    RUN(a_page_without_a_place_says_so);
    RUN(a_log_line_has_what_every_rank_did);
    RUN(the_fields_of_a_rank_keep_their_names);
    RUN(a_log_line_has_null_for_ranks_that_are_not_known);
    return program_end();
}
