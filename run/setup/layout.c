// layout.c - settles who runs which layers, before ranks are joined: as the options or a file say, or as build/simulate
// answers for --layout auto and hydraulis (run/setup/ask.h).
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "plan/base/disk.h"
#include "run/setup/ask.h"
#include "run/setup/setup.h"

// The layout that rank 0 has read from --layout, or that the search has answered.
typedef struct LayoutFile {
    int failed, capacity;
    Layout layout;
    char strategies[MOST_RANK_STRATEGIES * STRATEGY_TEXT];  // empty: all ranks run the layout
    char words[ERR_BYTES];
} LayoutFile;

// ---- a layout that is searched for

// Asks, on rank 0 before ranks are joined, for the fastest layout, or list, that fits --memory. 0, or -1 with words.
static int ask_layout(LayoutFile* file, Run* run, const Layout* otherwise) {
    char* err = file->words;
    int lists_alone = !strcmp(run->config.layout, "hydraulis");
    SearchQuestion q = {.layout = run->config.layout, .ranks = run->model.world, .tells = 1};
    SearchAnswer a;
    if (!run->config.memory && !lists_alone)
        return fail(err, "auto: expected --memory SIZE, found none; try --memory 4G");
    if (lists_alone) run_find_available(run);
    if (run_ask_search(&a, &q, run, err)) return -1;
    file->capacity = a.capacity;
    if (a.strategies) snprintf(file->strategies, sizeof file->strategies, "%s", a.strategies);
    int failed = layout_parse(&file->layout, otherwise, a.layout, strlen(a.layout), err);
    free(a.line);
    return failed;
}

int run_ask_time(double* ms, const Run* run, int slow_rank, double pace, int tells, Err err) {
    const Layout* layout = &run->model.ranks->layout;
    SearchAnswer a;
    size_t room = 2 * layout_print(layout, NULL, 0) + 4;
    char* line = (char*)malloc(room);
    if (!line || !layout_print_line(layout, line, room)) return free(line), fail(err, "no memory for a layout");
    SearchQuestion q = {line, run->settled.capacity, run->model.world, slow_rank, pace, NULL, tells};
    int failed = run_ask_search(&a, &q, run, err);
    if (!failed) *ms = a.ms;
    free(line);
    return failed;
}

int run_layout_without(double ms[2], const Run* run, int rank, double pace, Comm* rest, Err err) {
    SearchQuestion q = {.layout = "auto", .ranks = rest, .without = ", --tp, --pp, --zero,"};
    SearchAnswer a;
    char why[ERR_BYTES];
    if (run_ask_time(&ms[0], run, rank, pace, 0, err)) return -1;
    ms[1] = INFINITY;
    if (run_ask_search(&a, &q, run, why)) return 0;  // nothing fits
    ms[1] = a.ms;
    free(a.line);
    return 0;
}

// ---- a layout that was named

static void read_layout(LayoutFile* file, const Run* run, const Layout* otherwise) {
    enum { MOST = 1 << 16 };
    const char* named = run->config.layout;
    int is_text = strchr(named, ';') && access(named, F_OK);  // the layout itself
    size_t n = strlen(named);
    char why[ERR_BYTES], *text = is_text ? strdup(named) : disk_read_file(named, MOST, &n, file->words);
    file->failed = !text;
    if (text && layout_parse(&file->layout, otherwise, text, n, why))
        file->failed = fail(file->words, "%s%s%s", is_text ? "" : named, is_text ? "" : ": ", why);
    free(text);
}

// Keeps the layout as text in one line, to save it with the run: a file may change, and a search find another.
static void keep_layout(Run* run) {
    size_t room = 2 * layout_print(&run->model.ranks->layout, NULL, 0) + 4;
    char* line = config_string(&run->config, room);
    if (!line || !layout_print_line(&run->model.ranks->layout, line, room)) die("no memory for the text of a layout");
    run->settled.layout = line;
}

void run_settle_layout(Run* run) {
    static LayoutFile file;
    char err[ERR_BYTES];
    const Config* c = &run->config;
    Model* m = &run->model;
    Layout* layout = &m->ranks->layout;
    int lists_alone = c->layout && !strcmp(c->layout, "hydraulis"), is_named = c->layout != NULL;
    int capacity = capacity_of_rank(c->rank_capacity, c->capacity, m->world->rank, err);
    run->settled = (Settled){.capacity = capacity, .tp = c->tp, .pp = c->pp, .layout = c->layout};
    run->settled.strategies = c->strategies;
    if (c->memory > 0) run->cluster->available = (HostMemory){(size_t)c->memory, "of --memory"};
    if (c->pp > m->whole.L)
        die("--pp %d: expected at most as many stages as layers, found %d layers; try --pp %d", c->pp, m->whole.L,
            m->whole.L);
    *layout = layout_even(&m->whole, c->tp, c->pp, c->zero, (Recompute)config_choice(c, "--recompute"));
    if (is_named) {
        int is_search = lists_alone || !strcmp(c->layout, "auto");
        if (is_search && c->rank_capacity)
            die("--layout %s looks for rows that all ranks hold, found --capacity ranks=\"%s\"; leave that out",
                c->layout, c->rank_capacity);
        if (lists_alone) strategies_refuse_others(run);
        if (is_search) run_measure_limit(run);
        if (m->world->rank == 0 && is_search) file.failed = ask_layout(&file, run, layout);
        else if (m->world->rank == 0) read_layout(&file, run, layout);
        run_tell_all(m->world, &file, sizeof file);
        if (file.failed) die("--layout: %s", file.words);
        *layout = file.layout;
        if (file.capacity) run->settled.capacity = file.capacity;  // as the search has answered
        if (file.strategies[0]) run->settled.strategies = file.strategies;
    }
    const char* option = c->layout ? c->layout : c->pp > 1 ? "--pp" : "--tp";
    if (layout_check(layout, &m->whole, m->world->size, err)) die("%s: %s", option, err);
    if (is_named) keep_layout(run);
    run->settled.tp = layout->tp, run->settled.pp = layout->stages;
}
