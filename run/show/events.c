// events.c - what happens in a run beside its steps, as lines of log.jsonl.
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/json.h"
#include "data/sampler_mix.h"
#include "plan/base/disk_files.h"
#include "run/run.h"
#include "run/show/run_page.h"

// An event on its way into the log: further members of its line.
typedef struct Event {
    FILE* out;  // NULL: no log, or no memory
    char* text;
    size_t n;
} Event;

static void open_event(Event* e, const Run* run) {
    *e = (Event){0};
    if (run->books->log.fd >= 0) e->out = open_memstream(&e->text, &e->n);
}

static void end_event(Run* run, Event* e, const char* name) {
    int failed = !e->out || ferror(e->out);
    if (e->out && !fclose(e->out) && !failed) runlog_event(&run->books->log, name, run->state.step, e->text);
    free(e->text);
}

// The inside of a string of JSON.
static void put_text(FILE* out, const char* text) {
    size_t n = strlen(text);
    char* quoted = (char*)malloc(6 * n + 3);
    if (quoted) n = json_quote(quoted, text, n), fwrite(quoted + 1, 1, n - 2, out);
    free(quoted);
}

static void put_member(FILE* out, const char* name, const char* value) {
    fprintf(out, ", \"%s\": \"", name);
    put_text(out, value);
    fputc('"', out);
}

// An option that stands several times (--data) has its values behind each other.
typedef struct Options {
    FILE* out;
    const char* last;
} Options;

static void put_option(void* context, const char* name, const char* value) {
    Options* o = (Options*)context;
    if (o->last && !strcmp(o->last, name)) fputc(' ', o->out);
    else fprintf(o->out, "%s\"%s\": \"", o->last ? "\", " : "", name);
    put_text(o->out, value);
    o->last = name;
}

void run_log_start(Run* run) {
    const Config* c = &run->config;
    const Model* m = &run->model;
    Event e;
    open_event(&e, run);
    if (!e.out) return;
    Options options = {.out = e.out};
    if (c->straggle) put_member(e.out, "straggle", c->straggle);
    fprintf(e.out, ", \"resumed\": %d, \"ranks\": %d", c->resume, m->world->size);
    put_member(e.out, "device", m->k->name);
    fprintf(e.out,
            ", \"dtype\": \"%s\", \"model\": \"%s\", \"parameters\": %.0f, \"tokens\": %" PRId64
            ", \"documents\": %" PRId64 ", \"version\": \"" RUN_VERSION "\", \"matmul_gflops\": %.4g, \"options\": {",
            dtype_name(m->dt), arch_table[m->whole.arch].title, (double)shape_param_count(&m->whole),
            sampler_tokens(run->data.train, SPLIT_TRAIN), sampler_documents(run->data.train, SPLIT_TRAIN),
            isfinite(run->cluster->peak) ? run->cluster->peak / 1e9 : 0);
    Config config = run_settled_config(run);
    config_visit(&config, put_option, &options);
    fputs(options.last ? "\"}" : "}", e.out);
    end_event(run, &e, "start");
}

void run_log_event(Run* run, const char* event, const char* name, const char* value) {
    Event e;
    open_event(&e, run);
    if (e.out) put_member(e.out, name, value);
    end_event(run, &e, event);
}

// ---- report.html

static void hear(void* hearer, const char* line, size_t n) {
    if (run_page_line((RunPage*)hearer, line, n)) warn("no memory for all of report.html");
}

void run_open_report(Run* run) {
    char path[CHECKPOINT_PATH], err[ERR_BYTES];
    if (run->books->log.fd < 0) return;
    run->books->page = run_page_open(run->books->out);
    if (!run->books->page) {
        warn("no memory for report.html");
        return;
    }
    run_path(path, run->books->out, "log.jsonl");
    if (run->config.resume && run_page_read(run->books->page, path, err)) warn("%s", err);
    Smooth before = run_page_smooth(run->books->page);
    run->books->log.smooth.loss = before.loss,
    run->books->log.smooth.losses = before.losses;  // a run has one training loss
    run->books->log.hear = hear;
    run->books->log.hearer = run->books->page;
}

void run_write_report(Run* run) {
    char path[CHECKPOINT_PATH], err[ERR_BYTES];
    if (!run->books->page) return;
    run_path(path, run->books->out, "report.html");
    if (run_page_write(&run->books->page, 1, path, err)) warn("%s", err);
}

void run_reports(Run* run) {
    static RunPage* pages[MAX_PATHS];
    char path[CHECKPOINT_PATH], err[ERR_BYTES];
    const Config* c = &run->config;
    int n = c->report.n;
    for (int i = 0; i < n; i++) {
        run_path(path, c->report.paths[i], "log.jsonl");
        pages[i] = run_page_open(c->report.paths[i]);
        if (!pages[i]) die("--report: no memory for %d runs", n);
        if (run_page_read(pages[i], path, err)) die("--report: %s", err);
    }
    const char* dir = c->out ? c->out : n == 1 ? c->report.paths[0] : ".";
    if (c->out && disk_make_dirs(dir, err)) die("--report: %s", err);
    run_path(path, dir, "report.html");
    if (run_page_write(pages, n, path, err)) die("--report: %s", err);
    run_page_table(stdout, pages, n);
    say(stdout, "the same with charts: %s", path);
    for (int i = 0; i < n; i++) run_page_close(pages[i]);
    end_output();
    exit(0);
}
