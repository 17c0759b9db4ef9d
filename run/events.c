// events.c - what happens in a run beside its steps, as lines of log.jsonl.
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/json.h"
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
    fprintf(out, ", \"resumed\": %d, \"ranks\": %d, \"device\": ", c->resume, m->world->size);
    put_string(out, m->k->name);
    fprintf(out,
            ", \"dtype\": \"%s\", \"model\": \"%s\", \"parameters\": %.0f, \"tokens\": %" PRId64
            ", \"documents\": %" PRId64 ", \"version\": \"" RUN_VERSION "\", \"options\": {",
            dtype_name(m->dt), arch_table[m->whole.arch].title, (double)shape_param_count(&m->whole),
            sampler_tokens(run->data.train, SPLIT_TRAIN), sampler_documents(run->data.train, SPLIT_TRAIN));
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
