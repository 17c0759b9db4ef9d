// run_page.c - lines of log.jsonl are kept, some of very many, and summed; see run_page.h.
#define _GNU_SOURCE
#include "run/show/run_page.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/json.h"
#include "plan/base/disk_files.h"
#include "plan/show/explain.h"
#include "plan/base/terminal.h"

extern const char run_show_run_page_css[], run_show_run_page_js[];

enum { LAST_LINES = 200, MOST_LINES = 1200 };  // of a kind

typedef enum LineKind { LINE_STEP, LINE_EVALUATION, LINE_START, LINE_EVENT, LINE_KINDS, LINE_OTHER } LineKind;

typedef struct Line {
    char* text;
    LineKind kind;
    int64_t number;  // of its kind, from 0
} Line;

struct RunPage {
    char* name;
    Line* lines;  // (n of room) in their order
    int n, room;
    int64_t seen[LINE_KINDS], every[LINE_KINDS];  // of each kind; before the last ones every so many-th is kept
    int kept[LINE_KINDS];
    // What all lines come to; NaN: not known.
    int64_t last_step;
    double val_loss, bits_per_byte;  // the least of all
    double speed, speeds;            // tokens a second, added up; how many
    Smooth smooth;                   // of the loss: that of the line of a step
    double seconds;                  // from the first line to the last, of all invocations
    double began, earlier;           // when the last of them did, and seconds of those before it
};

RunPage* run_page_open(const char* name) {
    RunPage* page = (RunPage*)calloc(1, sizeof *page);
    if (!page) return NULL;
    page->name = strdup(name);
    page->seconds = page->began = page->val_loss = page->bits_per_byte = NAN;
    for (int k = 0; k < LINE_KINDS; k++) page->every[k] = 1;
    if (page->name) return page;
    free(page);
    return NULL;
}

void run_page_close(RunPage* page) {
    if (!page) return;
    for (int i = 0; i < page->n; i++) free(page->lines[i].text);
    free(page->lines);
    free(page->name);
    free(page);
}

// ---- which lines are kept

static void drop(RunPage* page, LineKind kind) {
    int n = 0;
    for (int i = 0; i < page->n; i++) {
        Line* line = &page->lines[i];
        int stays = line->kind != kind || line->number % page->every[kind] == 0 ||
                    line->number >= page->seen[kind] - LAST_LINES;
        if (stays) page->lines[n++] = *line;
        else free(line->text), page->kept[kind]--;
    }
    page->n = n;
}

static void thin(RunPage* page, LineKind kind) {
    if (page->kept[kind] <= MOST_LINES) return;
    drop(page, kind);
    while (page->kept[kind] > (LAST_LINES + MOST_LINES) / 2) page->every[kind] *= 2, drop(page, kind);
}

static int keep(RunPage* page, LineKind kind, const char* text, size_t n) {
    if (page->n == page->room) {
        int room = 2 * page->room + 64;
        Line* more = (Line*)realloc(page->lines, (size_t)room * sizeof *more);
        if (!more) return -1;
        page->lines = more;
        page->room = room;
    }
    char* copy = strndup(text, n);
    if (!copy) return -1;
    page->lines[page->n++] = (Line){copy, kind, page->seen[kind]++};
    page->kept[kind]++;
    thin(page, kind);
    return 0;
}

// ---- what all lines come to

static double number_of(const Json* json, const char* name) {
    double x = NAN;
    if (json_double(json_get(json, json->values, name), &x)) x = NAN;
    return x;
}

static LineKind kind_of(const Json* json) {
    int64_t at;
    char event[16] = "";
    const JsonValue *root = json->values, *name = json_get(json, root, "event");
    if (root->type != JSON_OBJECT) return LINE_OTHER;
    if (name) {
        if (name->type != JSON_STRING || json_int64(json_get(json, root, "at"), &at)) return LINE_OTHER;
        if (name->length < sizeof event && json_string(name, event) < 0) return LINE_OTHER;
        return strcmp(event, "start") ? LINE_EVENT : LINE_START;
    }
    if (json_int64(json_get(json, root, "step"), &at) || at < 0) return LINE_OTHER;
    if (json_get(json, root, "val_targets")) return LINE_EVALUATION;
    return json_get(json, root, "loss") ? LINE_STEP : LINE_OTHER;
}

static void sum(RunPage* page, const Json* json, LineKind kind) {
    double now = number_of(json, "time"), speed = number_of(json, "tokens_per_second");
    if (kind == LINE_START) page->began = now, page->earlier = isfinite(page->seconds) ? page->seconds : 0;
    if (isfinite(now - page->began)) page->seconds = page->earlier + MAX(now - page->began, 0);
    if (kind == LINE_EVALUATION) {
        page->val_loss = fmin(page->val_loss, number_of(json, "val_loss"));
        page->bits_per_byte = fmin(page->bits_per_byte, number_of(json, "bits_per_byte"));
    }
    if (kind != LINE_STEP) return;
    StepRecord record = {.loss = number_of(json, "loss")};
    progress_add(&page->smooth, &record);
    json_int64(json_get(json, json->values, "step"), &page->last_step);
    if (isfinite(speed)) page->speed += speed, page->speeds++;
}

int run_page_line(RunPage* page, const char* line, size_t n) {
    Json json;
    int failed = 0;
    while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
    if (n == 0 || memchr(line, '\n', n) || json_parse(&json, line, n, NULL)) return 0;
    LineKind kind = kind_of(&json);
    if (kind != LINE_OTHER) {
        sum(page, &json, kind);
        failed = keep(page, kind, line, n);
    }
    json_free(&json);
    return failed;
}

double run_page_seconds(const RunPage* page) { return page->seconds; }
Smooth run_page_smooth(const RunPage* page) { return page->smooth; }
static double smooth_loss(const RunPage* page) {
    return page->smooth.losses > 0 ? page->smooth.loss / page->smooth.losses : NAN;
}

int run_page_read(RunPage* page, const char* path, Err err) {
    FILE* file = fopen(path, "r");
    char* line = NULL;
    size_t room = 0;
    ssize_t n;
    int failed = 0;
    if (!file) return fail(err, "%s: cannot read: %s", path, strerror(errno));
    while (!failed && (n = getline(&line, &room, file)) > 0) failed = run_page_line(page, line, (size_t)n);
    int bad = ferror(file);
    free(line);
    fclose(file);
    if (failed) return fail(err, "%s: no memory for its lines", path);
    return bad ? fail(err, "%s: cannot read: %s", path, strerror(errno)) : 0;
}

// ---- the page

void run_page_print(FILE* out, RunPage* const* pages, int n) {
    char text[32];
    page_begin(out, run_show_run_page_css);
    for (int i = 0; i < n; i++) {
        const RunPage* page = pages[i];
        const struct {
            const char* name;
            double value;
        } sums[] = {{"seconds", page->seconds},
                    {"loss", smooth_loss(page)},
                    {"val_loss", page->val_loss},
                    {"bits_per_byte", page->bits_per_byte}};
        fputs("{\"run\":", out);
        page_string(out, page->name);
        for (int s = 0; s < COUNT(sums); s++)
            fprintf(out, ",\"%s\":%s", sums[s].name, runlog_number(sums[s].value, 9, text));
        fputs("}\n", out);
        for (int l = 0; l < page->n; l++) page_line(out, page->lines[l].text, strlen(page->lines[l].text));
    }
    page_end(out, run_show_run_page_js);
}

int run_page_write(RunPage* const* pages, int n, const char* path, Err err) {
    char* text = NULL;
    size_t bytes = 0;
    FILE* out = open_memstream(&text, &bytes);
    if (!out) return fail(err, "%s: no memory for this page: %s", path, strerror(errno));
    run_page_print(out, pages, n);
    int torn = ferror(out), failed = fclose(out) || torn;
    failed = failed ? fail(err, "%s: no memory for this page", path) : disk_put(path, text, bytes, 1, err);
    free(text);
    return failed;
}

// ---- on a terminal

// The options with which the run was started last; NULL: not known. Freed with json.
static const JsonValue* last_options(const RunPage* page, Json* json) {
    int i = page->n;
    while (i-- > 0 && page->lines[i].kind != LINE_START) continue;
    if (i < 0 || json_parse(json, page->lines[i].text, strlen(page->lines[i].text), NULL)) return NULL;
    const JsonValue* options = json_get(json, json->values, "options");
    return options && options->type == JSON_OBJECT ? options : NULL;
}

static int is_same(const JsonValue* a, const JsonValue* b) {
    return a && b ? a->length == b->length && !memcmp(a->text, b->text, a->length) : a == b;
}

// A row with the values of an option, where they differ.
static void put_option(TextTable* table, const char* name, const Json* json, const JsonValue* const* options, int n) {
    const JsonValue* first = json_get(&json[0], options[0], name);
    int differs = 0;
    for (int i = 1; i < n; i++) differs |= !is_same(json_get(&json[i], options[i], name), first);
    if (!differs) return;
    text_cells(table, "%s", name);
    for (int i = 0; i < n; i++) {
        const JsonValue* value = json_get(&json[i], options[i], name);
        char* text = value && value->type == JSON_STRING ? (char*)malloc(value->length + 1) : NULL;
        if (text && json_string(value, text) < 0) text[0] = 0;
        if (text) text_clean(text);
        text_cells(table, "\t%s", text && text[0] ? text : "-");
        free(text);
    }
    text_cells(table, "\n");
}

static void put_options(TextTable* table, RunPage* const* pages, int n) {
    Json* json = (Json*)calloc((size_t)MAX(n, 1), sizeof *json);
    const JsonValue** options = (const JsonValue**)calloc((size_t)MAX(n, 1), sizeof *options);
    for (int i = 0; i < n && json && options; i++) options[i] = last_options(pages[i], &json[i]);
    for (int i = 0; i < n && json && options; i++) {
        const JsonValue* key = options[i] ? options[i] + 1 : NULL;
        for (int m = 0; key && m < options[i]->n; m++, key = &json[i].values[key[1].next]) {
            char name[64] = "";
            int is_new = key->length < sizeof name && json_string(key, name) > 0;
            text_clean(name);
            for (int k = 0; k < i && is_new; k++) is_new = !json_get(&json[k], options[k], name);
            if (is_new) put_option(table, name, json, options, n);
        }
    }
    for (int i = 0; i < n && json; i++) json_free(&json[i]);
    free(options);
    free(json);
}

static void put_number(TextTable* table, double x, int decimals) {
    if (isfinite(x)) text_cells(table, "\t%.*f", decimals, x);
    else text_cells(table, "\t-");
}

void run_page_table(FILE* out, RunPage* const* pages, int n) {
    TextTable results = {0}, options = {0};
    text_cells(&results, "run\tsteps\tloss\tvalidation\tbits/byte\ttokens/s\tseconds\n");
    for (int i = 0; i < n; i++) {
        const RunPage* page = pages[i];
        char* name = strdup(page->name);
        if (name) text_clean(name);
        text_cells(&results, "%s\t%" PRId64, name ? name : "", page->last_step);
        put_number(&results, smooth_loss(page), 4);
        put_number(&results, page->val_loss, 4);
        put_number(&results, page->bits_per_byte, 4);
        put_number(&results, page->speeds > 0 ? page->speed / page->speeds : NAN, 0);
        put_number(&results, page->seconds, 1);
        text_cells(&results, "\n");
        free(name);
    }
    put_options(&options, pages, n);
    text_table(out, &results, "");
    text_table(out, &options, "");
}
