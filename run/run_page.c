// run_page.c - lines of log.jsonl become columns and events, and these the numbers of a page; run_page.h.
//
// Events are kept as the JSON that they are in the log. Three are not in it and are made here: a change of the work
// that slow ranks leave out or give away, by the figures of ranks, and the two ends of an injected straggler.
#define _GNU_SOURCE
#include "run/run_page.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/json.h"
#include "data/progress.h"
#include "plan/disk.h"
#include "plan/page.h"
#include "plan/straggle.h"
#include "plan/text.h"
#include "run/columns.h"
#include "run/run_page_script.h"

enum { SERIES = 9, EVALS = 2, MOST_EVENTS = 4000, MOST_STRATEGIES = 12 };

static const char* const series[SERIES] = {"loss",        "grad_norm",    "lr",  "tokens_per_second", "mfu",
                                           "measured_ms", "predicted_ms", "gap", "exposed_seconds"};

static const char* const eval_series[EVALS] = {"val_loss", "bits_per_byte"};

struct RunPage {
    char* name;
    Columns* steps;
    Columns* ranks;  // NULL: one rank
    int n_ranks;
    RankStep* before;                       // (n_ranks) of the last step
    Columns* strategies;                    // 1 for the strategy that a step chose, 0 for others; NULL: there are none
    char* strategy_names[MOST_STRATEGIES];  // in the order in which they appeared; the last one stands for all behind
    int n_strategies;
    Columns* evals;
    double best[EVALS];  // the least of all; NaN: not known
    int n_events;
    char* events[MOST_EVENTS];  // (n_events) JSON, after each other
    Smooth smooth;          // of the loss: that of the line of a step
    double seconds;         // from the first line to the last, of all invocations; NaN: not known
    double began, earlier;  // when the last of them did, and seconds of those before it
};

RunPage* run_page_open(const char* name) {
    RunPage* page = (RunPage*)calloc(1, sizeof *page);
    if (!page) return NULL;
    page->name = strdup(name);
    page->seconds = page->began = NAN;
    page->steps = columns_open(SERIES, PAGE_COLUMNS);
    page->evals = columns_open(EVALS, PAGE_COLUMNS);
    for (int i = 0; i < EVALS; i++) page->best[i] = NAN;
    if (page->name && page->steps && page->evals) return page;
    run_page_close(page);
    return NULL;
}

void run_page_close(RunPage* page) {
    if (!page) return;
    for (int i = 0; i < page->n_events; i++) free(page->events[i]);
    free(page->before);
    free(page->name);
    columns_close(page->steps);
    columns_close(page->evals);
    columns_close(page->ranks);
    columns_close(page->strategies);
    for (int i = 0; i < page->n_strategies; i++) free(page->strategy_names[i]);
    free(page);
}

// ---- what lines say

// Takes over text. Of very many the later ones are left out.
static int add_event(RunPage* page, char* text) {
    if (!text) return -1;
    if (page->n_events < MOST_EVENTS) page->events[page->n_events++] = text;
    else free(text);
    return 0;
}

__attribute__((format(printf, 2, 3))) static int make_event(RunPage* page, const char* format, ...) {
    char* text = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    return n < 0 ? -1 : add_event(page, text);
}

static double number_of(const Json* json, const JsonValue* object, const char* name) {
    double x = NAN;
    if (json_double(json_get(json, object, name), &x)) x = NAN;
    return x;
}

// Where an injected straggler begins and ends.
static int add_stragglers(RunPage* page, const char* spec, int ranks) {
    Straggler all[MOST_STRAGGLERS];
    int n = 0;
    if (straggle_parse(all, &n, spec, ranks, NULL, 0)) return 0;
    for (int i = 0; i < n; i++) {
        const Straggler* s = &all[i];
        if (make_event(page,
                       "{\"event\": \"straggler\", \"at\": %" PRId64 ", \"rank\": %d, \"words\": \"rank %d is made "
                       "%g times as slow\"}",
                       s->from, s->rank, s->rank, s->x))
            return -1;
        if (s->to < INT64_MAX / 2 &&
            make_event(page,
                       "{\"event\": \"straggler\", \"at\": %" PRId64 ", \"rank\": %d, \"words\": \"rank %d is as "
                       "fast as before\"}",
                       s->to + 1, s->rank, s->rank))
            return -1;
    }
    return 0;
}

// Whether a browser reads it, too: the parser leaves escapes alone.
static int is_strict(const Json* json, size_t n) {
    char* scratch = (char*)malloc(n + 1);
    int right = scratch != NULL;
    for (int i = 0; right && i < json->n; i++)
        if (json->values[i].type == JSON_STRING && json_string(&json->values[i], scratch) < 0) right = 0;
    free(scratch);
    return right;
}

static int note_event(RunPage* page, const Json* json, const char* line, size_t n) {
    char spec[512];
    if (!is_strict(json, n)) return 0;
    const JsonValue* value = json_get(json, json->values, "straggle");
    char* text = strndup(line, n);
    if (add_event(page, text)) return -1;
    if (!value || value->length >= sizeof spec || json_string(value, spec) <= 0) return 0;
    double ranks = number_of(json, json->values, "ranks");
    return ranks >= 1 && ranks < 1e6 ? add_stragglers(page, spec, (int)ranks) : 0;
}

static void note_evaluation(RunPage* page, const Json* json, int64_t step) {
    float values[EVALS];
    for (int i = 0; i < EVALS; i++) {
        double x = number_of(json, json->values, eval_series[i]);
        values[i] = (float)x;
        page->best[i] = fmin(page->best[i], x);  // NaN only where both are
    }
    columns_add(page->evals, step, values);
}

static int note_ranks(RunPage* page, const Json* json, int64_t step, const JsonValue* ranks) {
    const JsonValue* values[RANK_FIELDS];
    int n = 0;
    for (int f = 0; f < RANK_FIELDS; f++) {
        values[f] = json_get(json, ranks, rank_field_names[f]);
        if (!values[f] || values[f]->type != JSON_ARRAY || (f && values[f]->n != n)) return 0;
        n = values[f]->n;
    }
    if (n < 2) return 0;
    RankStep* all = (RankStep*)calloc((size_t)n, sizeof *all);
    if (!all) return -1;
    for (int f = 0; f < RANK_FIELDS; f++) {
        const JsonValue* value = values[f] + 1;
        for (int r = 0; r < n; r++, value = &json->values[value->next]) {
            double x = NAN;
            if (json_double(value, &x)) x = NAN;
            float* const to[RANK_FIELDS] = {&all[r].compute_ms, &all[r].wait_ms, &all[r].gamma,
                                            &all[r].sent,       &all[r].taken,   &all[r].speed};
            *to[f] = (float)x;
        }
    }
    int failed = run_page_ranks(page, step, all, n);
    free(all);
    return failed;
}

// A change of what ranks leave out or give away, by more than a tenth and what is to be seen.
static int changed(float a, float b, float least) {
    return isfinite(a) && isfinite(b) && fabsf(a - b) > MAX(least, 0.1f * MAX(a, b));
}

static int note_decision(RunPage* page, int64_t step, const RankStep* now, int n) {
    for (int r = 0; r < n; r++) {
        const RankStep *a = &page->before[r], *b = &now[r];
        char gamma[64] = "", sent[64] = "";
        if (changed(a->gamma, b->gamma, 0.005f))
            snprintf(gamma, sizeof gamma, b->gamma > 0 ? "leaves out %.1f %% of its matmuls" : "leaves nothing out",
                     100 * (double)b->gamma);
        if (changed(a->sent, b->sent, 0.5f))
            snprintf(sent, sizeof sent, b->sent > 0 ? "gives away %.0f hidden units" : "gives nothing away",
                     (double)b->sent);
        const char* const words[] = {gamma, sent};
        for (int i = 0; i < COUNT(words); i++)
            if (words[i][0] &&
                make_event(page,
                           "{\"event\": \"balance\", \"at\": %" PRId64 ", \"rank\": %d, \"words\": \"rank %d %s\"}",
                           step, r, r, words[i]))
                return -1;
    }
    return 0;
}

int run_page_ranks(RunPage* page, int64_t step, const RankStep* ranks, int n) {
    if (n < 1) return 0;
    if (page->n_ranks != n) {
        columns_close(page->ranks);
        free(page->before);
        page->ranks = columns_open(n * RANK_FIELDS, RANK_COLUMNS);
        page->before = (RankStep*)calloc((size_t)n, sizeof *page->before);
        page->n_ranks = page->ranks && page->before ? n : 0;
        if (!page->n_ranks) return -1;
    }
    float* values = (float*)malloc(sizeof *values * (size_t)n * RANK_FIELDS);
    if (!values || note_decision(page, step, ranks, n)) {
        free(values);
        return -1;
    }
    for (int r = 0; r < n; r++)
        for (int f = 0; f < RANK_FIELDS; f++) values[r * RANK_FIELDS + f] = rank_field(&ranks[r], f);
    columns_add(page->ranks, step, values);
    memcpy(page->before, ranks, sizeof *ranks * (size_t)n);
    free(values);
    return 0;
}

// Which of its strategies a step chose.
static int note_strategy(RunPage* page, int64_t step, const JsonValue* name) {
    float chosen[MOST_STRATEGIES] = {0};
    int i = 0;
    if (!name || name->type != JSON_STRING) return 0;
    if (!page->strategies) page->strategies = columns_open(MOST_STRATEGIES, RANK_COLUMNS);
    char* text = (char*)malloc(name->length + 1);
    if (text && json_string(name, text) < 0) text[0] = 0;
    while (text && i < page->n_strategies && i < MOST_STRATEGIES - 1 && strcmp(page->strategy_names[i], text)) i++;
    int is_new = i == page->n_strategies;
    if (is_new && i == MOST_STRATEGIES - 1) free(text), text = strdup("others");
    if (!text || !page->strategies) {
        free(text);
        return -1;
    }
    if (is_new) page->strategy_names[page->n_strategies++] = text;
    else free(text);
    chosen[i] = 1;
    columns_add(page->strategies, step, chosen);
    return 0;
}

static int note_step(RunPage* page, const Json* json, int64_t step) {
    float values[SERIES];
    const JsonValue* ranks = json_get(json, json->values, "ranks");
    for (int i = 0; i < SERIES; i++) values[i] = (float)number_of(json, json->values, series[i]);
    columns_add(page->steps, step, values);
    StepRecord record = {.loss = number_of(json, json->values, "loss")};
    progress_add(&page->smooth, &record);
    if (note_strategy(page, step, json_get(json, json->values, "strategy"))) return -1;
    return ranks && ranks->type == JSON_OBJECT ? note_ranks(page, json, step, ranks) : 0;
}

// Every line has the time at which it was written.
static void note_time(RunPage* page, const Json* json) {
    char event[16];
    const JsonValue* name = json_get(json, json->values, "event");
    double now = number_of(json, json->values, "time");
    int starts = name && name->type == JSON_STRING && name->length < sizeof event && json_string(name, event) > 0 &&
                 !strcmp(event, "start");
    if (starts) page->began = now, page->earlier = isfinite(page->seconds) ? page->seconds : 0;
    if (isfinite(now - page->began)) page->seconds = page->earlier + MAX(now - page->began, 0);
}

double run_page_seconds(const RunPage* page) { return page->seconds; }
Smooth run_page_smooth(const RunPage* page) { return page->smooth; }
static double smooth_loss(const RunPage* page) {
    return page->smooth.losses > 0 ? page->smooth.loss / page->smooth.losses : NAN;
}

int run_page_line(RunPage* page, const char* line, size_t n) {
    Json json;
    int64_t step;
    int status = 0;
    while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
    if (n == 0 || json_parse(&json, line, n, NULL, 0)) return 0;
    const JsonValue* root = json.values;
    if (root->type != JSON_OBJECT) status = 0;
    else if (json_int64(json_get(&json, root, "at"), &step) == 0 && json_get(&json, root, "event"))
        status = note_event(page, &json, line, n);
    else if (json_int64(json_get(&json, root, "step"), &step) || step < 0) status = 0;
    else if (json_get(&json, root, "val_targets")) note_evaluation(page, &json, step);
    else if (json_get(&json, root, "loss")) status = note_step(page, &json, step);
    if (root->type == JSON_OBJECT) note_time(page, &json);
    json_free(&json);
    return status;
}

int run_page_read(RunPage* page, const char* path, char* err, size_t errlen) {
    FILE* file = fopen(path, "r");
    char* line = NULL;
    size_t room = 0;
    ssize_t n;
    int failed = 0;
    if (!file) return fail(err, errlen, "%s: cannot read: %s", path, strerror(errno));
    while (!failed && (n = getline(&line, &room, file)) > 0) failed = run_page_line(page, line, (size_t)n);
    int bad = ferror(file);
    free(line);
    fclose(file);
    if (failed) return fail(err, errlen, "%s: no memory for its lines", path);
    return bad ? fail(err, errlen, "%s: cannot read: %s", path, strerror(errno)) : 0;
}

// ---- the numbers of the page

static void put_number(FILE* out, double x, int digits) {
    char text[32];
    fputs(runlog_number(x, digits, text), out);
}

static void put_columns(FILE* out, const Columns* c) {
    fputs("\"columns\":[", out);
    for (int i = 0; i < columns_count(c); i++)
        fprintf(out, "%s[%" PRId64 ",%" PRId64 "]", i ? "," : "", columns_first(c, i), columns_last(c, i));
    fputc(']', out);
}

static void put_means(FILE* out, const Columns* c, const char* name, int i, int digits) {
    fprintf(out, "\"%s\":[", name);
    for (int column = 0; column < columns_count(c); column++) {
        if (column) fputc(',', out);
        put_number(out, columns_mean(c, column, i), digits);
    }
    fputc(']', out);
}

// {"rank": 3, "compute_ms": [of each column], ..., "mean": {"compute_ms": of all steps, ...}}
static void put_rank(FILE* out, const RunPage* page, int rank) {
    fprintf(out, "{\"rank\":%d", rank);
    for (int f = 0; f < RANK_FIELDS; f++) {
        fputc(',', out);
        put_means(out, page->ranks, rank_field_names[f], rank * RANK_FIELDS + f, 4);
    }
    fputs(",\"mean\":{", out);
    for (int f = 0; f < RANK_FIELDS; f++) {
        fprintf(out, "%s\"%s\":", f ? "," : "", rank_field_names[f]);
        put_number(out, columns_total_mean(page->ranks, rank * RANK_FIELDS + f), 4);
    }
    fputs("}}", out);
}

static void put_ranks(FILE* out, const RunPage* page) {
    if (!page->ranks) {
        fputs("null", out);
        return;
    }
    fputc('{', out);
    put_columns(out, page->ranks);
    fputs(",\n\"ranks\":[\n", out);
    for (int r = 0; r < page->n_ranks; r++) {
        if (r) fputs(",\n", out);
        put_rank(out, page, r);
    }
    fputs("]}", out);
}

static void put_strategies(FILE* out, const RunPage* page) {
    if (!page->strategies) {
        fputs("null", out);
        return;
    }
    fputc('{', out);
    put_columns(out, page->strategies);
    fputs(",\"list\":[", out);
    for (int i = 0; i < page->n_strategies; i++) {
        fputs(i ? ",\n{\"name\":" : "\n{\"name\":", out);
        page_string(out, page->strategy_names[i]);
        fputc(',', out);
        put_means(out, page->strategies, "share", i, 4);
        fputs(",\"mean\":", out);
        put_number(out, columns_total_mean(page->strategies, i), 6);
        fputc('}', out);
    }
    fputs("]}", out);
}

// JSON inside a script element: nothing may end the element.
static void put_json(FILE* out, const char* text) {
    for (; *text; text++)
        if (*text == '<') fputs("\\u003c", out);
        else fputc((unsigned char)*text < ' ' ? ' ' : *text, out);
}

static void put_page(FILE* out, const RunPage* page) {
    fputs("{\"name\":", out);
    page_string(out, page->name);
    fputs(",\"seconds\":", out);
    put_number(out, page->seconds, 9);
    fputs(",\"loss\":", out);
    put_number(out, smooth_loss(page), 7);
    fputc(',', out);
    put_columns(out, page->steps);
    fputs(",\n\"series\":{", out);
    for (int i = 0; i < SERIES; i++) {
        fputs(i ? ",\n" : "\n", out);
        put_means(out, page->steps, series[i], i, 6);
    }
    fputs("},\n\"evals\":{", out);
    put_columns(out, page->evals);
    for (int i = 0; i < EVALS; i++) {
        fputc(',', out);
        put_means(out, page->evals, eval_series[i], i, 7);
    }
    fputs(",\"best\":{", out);
    for (int i = 0; i < EVALS; i++) {
        fprintf(out, "%s\"%s\":", i ? "," : "", eval_series[i]);
        put_number(out, page->best[i], 7);
    }
    fputs("}},\n\"events\":[", out);
    for (int i = 0; i < page->n_events; i++) {
        fputs(i ? ",\n" : "\n", out);
        put_json(out, page->events[i]);
    }
    fputs("],\n\"ranks\":", out);
    put_ranks(out, page);
    fputs(",\n\"strategies\":", out);
    put_strategies(out, page);
    fputc('}', out);
}

void run_page_print(FILE* out, RunPage* const* pages, int n, const char* title) {
    fputs(page_begin, out);
    fputs(run_page_head, out);
    fputs(page_numbers, out);
    fputs("{\"title\":", out);
    page_string(out, title);
    fputs(",\"runs\":[", out);
    for (int i = 0; i < n; i++) {
        if (i) fputs(",\n", out);
        put_page(out, pages[i]);
    }
    fputs("]}\n", out);
    fputs(page_functions, out);
    fputs(run_page_foot, out);
    fputs(page_end, out);
}

int run_page_write(RunPage* const* pages, int n, const char* title, const char* path, char* err, size_t errlen) {
    char* text = NULL;
    size_t bytes = 0;
    FILE* out = open_memstream(&text, &bytes);
    if (!out) return fail(err, errlen, "%s: no memory for this page: %s", path, strerror(errno));
    run_page_print(out, pages, n, title);
    int torn = ferror(out), failed = fclose(out) || torn;
    failed =
        failed ? fail(err, errlen, "%s: no memory for this page", path) : disk_put(path, text, bytes, 1, err, errlen);
    free(text);
    return failed;
}

// ---- on a terminal

enum { MOST_NAMES = 256, NAME_ROOM = 64, VALUE_ROOM = 256 };

// The event with which the run was started last. 0, or -1: there is none.
static int last_start(const RunPage* page, Json* json) {
    static const char begin[] = "{\"event\": \"start\"";
    for (int i = page->n_events; i-- > 0;)
        if (!strncmp(page->events[i], begin, sizeof begin - 1))
            return json_parse(json, page->events[i], strlen(page->events[i]), NULL, 0);
    return -1;
}

// The value of an option in it, as text; "" where there is none.
static void option_of(const RunPage* page, const char* name, char value[VALUE_ROOM]) {
    Json json;
    value[0] = 0;
    if (last_start(page, &json)) return;
    const JsonValue* found = json_get(&json, json_get(&json, json.values, "options"), name);
    if (found && found->length < VALUE_ROOM && json_string(found, value) < 0) value[0] = 0;
    json_free(&json);
}

// Appends names of options of a log that are not in the list yet; returns their number now.
static int collect_names(const RunPage* page, char names[MOST_NAMES][NAME_ROOM], int n) {
    Json json;
    if (last_start(page, &json)) return n;
    const JsonValue* options = json_get(&json, json.values, "options");
    int members = options && options->type == JSON_OBJECT ? options->n : 0;
    const JsonValue* key = members ? options + 1 : NULL;
    for (int i = 0; i < members && n < MOST_NAMES; i++) {
        int k = 0;
        if (key->length < NAME_ROOM && json_string(key, names[n]) > 0) {
            while (k < n && strcmp(names[k], names[n])) k++;
            n += k == n;
        }
        if (i + 1 < members) key = &json.values[key[1].next];
    }
    json_free(&json);
    return n;
}

static void put_cell(FILE* out, double x, const char* format) {
    char text[32];
    snprintf(text, sizeof text, format, x);
    fprintf(out, " %12s", isfinite(x) ? text : "-");
}

static void put_result(FILE* out, const RunPage* page) {
    int n = columns_count(page->steps);
    fprintf(out, " %8" PRId64, n ? columns_last(page->steps, n - 1) : 0);
    put_cell(out, smooth_loss(page), "%.4f");
    for (int i = 0; i < EVALS; i++) put_cell(out, page->best[i], "%.4f");
    put_cell(out, columns_total_mean(page->steps, 3), "%.0f");
    put_cell(out, page->seconds, "%.1f");
}

void run_page_table(FILE* out, RunPage* const* pages, int n) {
    static char names[MOST_NAMES][NAME_ROOM];
    char value[VALUE_ROOM], first[VALUE_ROOM];
    int n_names = 0;
    fprintf(out, "%-24s %8s %12s %12s %12s %12s %12s\n", "run", "steps", "loss", "validation", "bits/byte", "tokens/s",
            "seconds");
    for (int i = 0; i < n; i++) {
        say_part(out, "%-24s", pages[i]->name);
        put_result(out, pages[i]);
        fputc('\n', out);
        n_names = collect_names(pages[i], names, n_names);
    }
    for (int k = 0; k < n_names; k++) {
        int differs = 0;
        option_of(pages[0], names[k], first);
        for (int i = 1; i < n; i++) option_of(pages[i], names[k], value), differs |= strcmp(value, first) != 0;
        if (!differs) continue;
        say_part(out, "%-24s", names[k]);
        for (int i = 0; i < n; i++) option_of(pages[i], names[k], value), say_part(out, "  %s", value[0] ? value : "-");
        fputc('\n', out);
    }
}
