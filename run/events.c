// events.c - what happens in a run beside its steps, as lines of log.jsonl.
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/json.h"
#include "plan/disk.h"
#include "run/run.h"

static void put_string(FILE* out, const char* text) {
    size_t n = strlen(text);
    char* quoted = (char*)malloc(6 * n + 3);
    if (quoted) json_quote(quoted, text, n);
    fputs(quoted ? quoted : "\"\"", out);
    free(quoted);
}

// Options on their way into text. One that stands several times (--data) has its values behind each other.
typedef struct Options {
    FILE* out;
    const char* last;
    char* values;
    size_t n;
} Options;

static void end_option(Options* o) {
    if (!o->last) return;
    put_string(o->out, o->values ? o->values : "");
    o->last = NULL;
}

static void put_option(void* context, const char* name, const char* value) {
    Options* o = (Options*)context;
    int same = o->last && !strcmp(o->last, name);
    if (!same) {
        int is_first = o->n == 0;
        end_option(o);
        fprintf(o->out, "%s\"%s\": ", is_first ? "" : ", ", name);
        o->last = name;
    }
    size_t before = same ? strlen(o->values ? o->values : "") + 1 : 0, n = before + strlen(value) + 1;
    char* more = (char*)realloc(o->values, n);
    if (!more) return;
    if (before) more[before - 1] = ' ';
    strcpy(more + before, value);
    o->values = more;
    o->n = n;
}

void run_log_start(Run* run) {
    const Config* c = &run->config;
    const Model* m = &run->model;
    char* text = NULL;
    size_t n = 0;
    if (run->log.fd < 0) return;
    FILE* out = open_memstream(&text, &n);
    if (!out) return;
    if (c->straggle) fputs(", \"straggle\": ", out), put_string(out, c->straggle);
    fprintf(out, ", \"resumed\": %d, \"ranks\": %d, \"device\": ", c->resume, m->world->size);
    put_string(out, m->k->name);
    fprintf(out,
            ", \"dtype\": \"%s\", \"model\": \"%s\", \"parameters\": %.0f, \"tokens\": %" PRId64
            ", \"documents\": %" PRId64 ", \"version\": \"" RUN_VERSION "\", \"matmul_gflops\": %.4g, \"options\": {",
            dtype_name(m->dt), arch_table[m->whole.arch].title, (double)shape_param_count(&m->whole),
            sampler_tokens(run->data.train, SPLIT_TRAIN), sampler_documents(run->data.train, SPLIT_TRAIN),
            isfinite(run->peak) ? run->peak / 1e9 : 0);
    Options options = {.out = out};
    config_visit(c, put_option, &options);
    end_option(&options);
    free(options.values);
    fputc('}', out);
    int failed = ferror(out);
    if (!fclose(out) && !failed) runlog_event(&run->log, "start", run->state.step, text);
    free(text);
}

void run_log_event(Run* run, const char* event, const char* name, const char* value) {
    char* text = NULL;
    size_t n = 0;
    if (run->log.fd < 0) return;
    FILE* out = open_memstream(&text, &n);
    if (!out) return;
    fprintf(out, ", \"%s\": ", name);
    put_string(out, value);
    int failed = ferror(out);
    if (!fclose(out) && !failed) runlog_event(&run->log, event, run->state.step, text);
    free(text);
}

// ---- report.html

static void hear(void* hearer, const char* line, size_t n) {
    if (run_page_line((RunPage*)hearer, line, n)) warn("no memory for all of report.html");
}

void run_open_report(Run* run) {
    char path[CHECKPOINT_PATH], err[ERR_BYTES];
    if (run->log.fd < 0) return;
    run->page = run_page_open(run->out);
    if (!run->page) {
        warn("no memory for report.html");
        return;
    }
    run_path(path, run->out, "log.jsonl");
    if (run->config.resume && run_page_read(run->page, path, err, sizeof err)) warn("%s", err);
    Smooth before = run_page_smooth(run->page);
    run->log.smooth.loss = before.loss, run->log.smooth.losses = before.losses;  // a run has one training loss
    run->log.hear = hear;
    run->log.hearer = run->page;
    run_path(path, run->out, "ranks.html");  // of an older version, and of an older state of this run
    remove(path);
}

void run_write_report(Run* run) {
    char path[CHECKPOINT_PATH], err[ERR_BYTES];
    if (!run->page) return;
    run_path(path, run->out, "report.html");
    if (run_page_write(&run->page, 1, run->out, path, err, sizeof err)) warn("%s", err);
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
        if (run_page_read(pages[i], path, err, sizeof err)) die("--report: %s", err);
    }
    const char* dir = c->out ? c->out : n == 1 ? c->report.paths[0] : ".";
    if (c->out && disk_make_dirs(dir, err, sizeof err)) die("--report: %s", err);
    run_path(path, dir, "report.html");
    if (run_page_write(pages, n, n == 1 ? c->report.paths[0] : "runs", path, err, sizeof err)) die("--report: %s", err);
    run_page_table(stdout, pages, n);
    say(stdout, "the same with charts: %s", path);
    for (int i = 0; i < n; i++) run_page_close(pages[i]);
    end_output();
    exit(0);
}
