// run_page.c - what the lines of log.jsonl come to, and which of very many a page has; see run_page.h.
#define _GNU_SOURCE
#include "run/show/run_page.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/json.h"
#include "plan/base/disk.h"
#include "plan/show/page.h"
#include "plan/base/terminal.h"

extern const char run_show_run_page_css[], run_show_run_page_js[];

enum { LAST_LINES = 250, MOST_LINES = 1200 };  // of a kind

void run_page_open(RunPage* page, const char* dir) {
    *page = (RunPage){.val_loss = NAN, .bits_per_byte = NAN, .seconds = NAN, .began = NAN};
    snprintf(page->dir, sizeof page->dir, "%s", dir);
}

void run_page_close(RunPage* page) {
    free(page->kinds);
    free(page->start);
}

// ---- what all lines come to

static double number_of(const Json* json, const char* name) {
    double x = NAN;
    json_double(json_get(json->values, name), &x);
    return x;
}

static LineKind kind_of(const Json* json) {
    int64_t at;
    char event[64];
    const JsonValue *root = json->values, *name = json_get(root, "event");
    if (root->type != JSON_OBJECT) return LINE_OTHER;
    if (json_int64(json_get(root, name ? "at" : "step"), &at) || at < 0) return LINE_OTHER;
    if (name && json_text(name, event, sizeof event)) return LINE_OTHER;
    if (name) return strcmp(event, "start") ? LINE_EVENT : LINE_START;
    if (json_get(root, "val_targets")) return LINE_EVALUATION;
    return json_get(root, "loss") ? LINE_STEP : LINE_OTHER;
}

static void sum(RunPage* page, const Json* json, LineKind kind) {
    double now = number_of(json, "time"), tokens = number_of(json, "tokens"), spent = number_of(json, "seconds");
    if (kind == LINE_START) page->began = now, page->earlier = isfinite(page->seconds) ? page->seconds : 0;
    if (isfinite(now - page->began)) page->seconds = page->earlier + MAX(now - page->began, 0);
    if (kind == LINE_EVALUATION) {
        page->val_loss = fmin(page->val_loss, number_of(json, "val_loss"));
        page->bits_per_byte = fmin(page->bits_per_byte, number_of(json, "bits_per_byte"));
    }
    if (kind != LINE_STEP) return;
    StepRecord record = {.loss = number_of(json, "loss")};
    progress_add(&page->smooth, &record);
    json_int64(json_get(json->values, "step"), &page->last_step);
    if (isfinite(tokens) && spent > 0) page->tokens += tokens, page->in_steps += spent;
}

static size_t without_end(const char* line, size_t n) {
    while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
    return n;
}

LineKind run_page_line(RunPage* page, const char* line, size_t n) {
    Json json;
    n = without_end(line, n);
    if (n == 0 || json_parse(&json, line, n, NULL)) return LINE_OTHER;
    LineKind kind = kind_of(&json);
    if (kind != LINE_OTHER) sum(page, &json, kind), page->seen[kind]++;
    if (kind == LINE_START) free(page->start), page->start = strndup(line, n);
    json_free(&json);
    return kind;
}

static FILE* open_log(const RunPage* page, Err err) {
    char path[DISK_PATH];
    return disk_join(path, page->dir, "log.jsonl", err) ? NULL : disk_open_stream(path, err);
}

int run_page_read(RunPage* page, Err err) {
    char* line = NULL;
    size_t room = 0;
    ssize_t n;
    FILE* file = open_log(page, err);
    if (!file) return -1;
    int failed = fseeko(file, page->bytes, SEEK_SET);
    while (!failed && (n = getline(&line, &room, file)) > 0 && line[n - 1] == '\n') {
        failed = reserve(&page->kinds, &page->room, page->n, 1, 1, err);
        if (!failed) page->kinds[page->n++] = (char)run_page_line(page, line, (size_t)n), page->bytes += n;
    }
    if (ferror(file)) failed = fail(err, "%s/log.jsonl: cannot read: %s", page->dir, strerror(errno));
    free(line);
    fclose(file);
    return failed ? -1 : 0;
}

// ---- the page

static double smooth_loss(const RunPage* page) {
    return page->smooth.losses > 0 ? page->smooth.loss / page->smooth.losses : NAN;
}

// Tokens a second of all steps together, without what is between them.
static double speed_of(const RunPage* page) { return page->in_steps > 0 ? page->tokens / page->in_steps : NAN; }

// Before the last lines of a kind every so many-th is there.
static int put_lines(FILE* out, const RunPage* page, Err err) {
    int64_t every[LINE_KINDS], numbers[LINE_KINDS] = {0};
    char* line = NULL;
    size_t room = 0;
    ssize_t n;
    FILE* file = open_log(page, err);
    if (!file) return -1;
    for (int k = 0; k < LINE_KINDS; k++)
        for (every[k] = 1; page->seen[k] - LAST_LINES > every[k] * (MOST_LINES - LAST_LINES);) every[k] *= 2;
    for (int64_t i = 0; i < page->n && (n = getline(&line, &room, file)) > 0; i++) {
        LineKind kind = (LineKind)page->kinds[i];
        if (kind == LINE_OTHER) continue;
        int64_t number = numbers[kind]++;
        if (number % every[kind] == 0 || number >= page->seen[kind] - LAST_LINES)
            page_line(out, line, without_end(line, (size_t)n));
    }
    free(line);
    fclose(file);
    return 0;
}

static int put_run(FILE* out, const RunPage* page, Err err) {
    static const char* const names[] = {"seconds", "loss", "val_loss", "bits_per_byte", "tokens_per_second"};
    const double sums[] = {page->seconds, smooth_loss(page), page->val_loss, page->bits_per_byte, speed_of(page)};
    char text[32];
    fputs("{\"run\":", out);
    page_string(out, page->dir);
    for (int s = 0; s < COUNT(sums); s++) fprintf(out, ",\"%s\":%s", names[s], runlog_number(sums[s], 9, text));
    fputs("}\n", out);
    return put_lines(out, page, err);
}

int run_page_write(RunPage* pages, int n, const char* path, Err err) {
    char* text = NULL;
    size_t bytes = 0;
    int failed = 0;
    for (int i = 0; i < n; i++)
        if (run_page_read(&pages[i], err)) return -1;
    FILE* out = open_memstream(&text, &bytes);
    if (!out) return fail(err, "%s: no memory for this page: %s", path, strerror(errno));
    page_begin(out, run_show_run_page_css);
    for (int i = 0; i < n && !failed; i++) failed = put_run(out, &pages[i], err);
    page_end(out, run_show_run_page_js);
    if (!failed) return disk_put_stream(path, 0, out, &text, &bytes, err);
    fclose(out);
    free(text);
    return -1;
}

// ---- on a terminal

// The options with which a run was started last; NULL: not known. Freed with json.
static const JsonValue* last_options(const RunPage* page, Json* json) {
    if (!page->start || json_parse(json, page->start, strlen(page->start), NULL)) return NULL;
    const JsonValue* options = json_get(json->values, "options");
    return options && options->type == JSON_OBJECT ? options : NULL;
}

// A row with the values of an option, where they differ.
static void put_option(TextTable* table, const char* name, const JsonValue* const* options, int n) {
    const JsonValue *first = json_get(options[0], name), *value;
    int differs = 0;
    for (int i = 1; i < n; i++) {
        value = json_get(options[i], name);
        differs |= !value != !first ||
                   (value && (value->length != first->length || memcmp(value->text, first->text, value->length) != 0));
    }
    if (!differs) return;
    text_cells(table, "%s", name);
    for (int i = 0; i < n; i++) {
        value = json_get(options[i], name);
        char* text = value && value->type == JSON_STRING ? (char*)calloc(value->length + 1, 1) : NULL;
        if (text && json_string(value, text) < 0) text[0] = 0;
        if (text) text_clean(text);
        text_cells(table, "\t%s", text && text[0] ? text : "-");
        free(text);
    }
    text_cells(table, "\n");
}

static void put_options(TextTable* table, const RunPage* pages, int n) {
    Json* json = (Json*)calloc((size_t)MAX(n, 1), sizeof *json);
    const JsonValue** options = (const JsonValue**)calloc((size_t)MAX(n, 1), sizeof *options);
    for (int i = 0; i < n && json && options; i++) options[i] = last_options(&pages[i], &json[i]);
    for (int i = 0; i < n && json && options; i++)
        for (const JsonValue* key = json_members(options[i]); key; key = json_next(key)) {
            char name[64] = "";
            int is_new = json_text(key, name, sizeof name) == 0;
            for (int k = 0; k < i && is_new; k++) is_new = !json_get(options[k], name);
            if (is_new) put_option(table, name, options, n);
        }
    for (int i = 0; i < n && json; i++) json_free(&json[i]);
    free(options);
    free(json);
}

void run_page_table(FILE* out, const RunPage* pages, int n) {
    TextTable results = {0}, options = {0};
    text_cells(&results, "run\tsteps\tloss\tvalidation\tbits/byte\ttokens/s\tseconds\n");
    for (int i = 0; i < n; i++) {
        const RunPage* page = &pages[i];
        char name[DISK_PATH];
        const double cells[] = {smooth_loss(page), page->val_loss, page->bits_per_byte, speed_of(page), page->seconds};
        static const int decimals[] = {4, 4, 4, 0, 1};
        strcpy(name, page->dir);
        text_clean(name);
        text_cells(&results, "%s\t%" PRId64, name, page->last_step);
        for (int c = 0; c < COUNT(cells); c++)
            if (isfinite(cells[c])) text_cells(&results, "\t%.*f", decimals[c], cells[c]);
            else text_cells(&results, "\t-");
        text_cells(&results, "\n");
    }
    put_options(&options, pages, n);
    text_table(out, &results, "");
    text_table(out, &options, "");
}
