// runlog.c - log.jsonl and the progress line; see runlog.h.
#define _POSIX_C_SOURCE 200809L
#include "data/runlog.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include "data/disk.h"
#include "data/json.h"

// Where the objects of steps up to last_step end: the first line that is torn, is no object, or belongs to a later
// step ends what is kept.
static long kept_bytes(FILE* file, int64_t last_step) {
    char* line = NULL;
    size_t room = 0;
    long kept = 0;
    ssize_t n;
    rewind(file);
    while ((n = getline(&line, &room, file)) > 0 && line[n - 1] == '\n') {
        Json json;
        int64_t step = 0;
        if (json_parse(&json, line, (size_t)n, NULL, 0)) break;
        int bad = json_int64(json_get(&json, json.values, "step"), &step);
        json_free(&json);
        if (bad || step > last_step) break;
        kept += n;
    }
    free(line);
    return kept;
}

int runlog_open(RunLog* log, const char* dir, int64_t last_step, char* err, size_t errlen) {
    char path[DISK_PATH];
    memset(log, 0, sizeof *log);
    log->is_terminal = isatty(STDOUT_FILENO);
    if (disk_join(path, dir, "log.jsonl", err, errlen)) return -1;
    log->file = fopen(path, "a+");
    if (!log->file) return fail(err, errlen, "%s: cannot write: %s", path, strerror(errno));
    if (ftruncate(fileno(log->file), kept_bytes(log->file, last_step))) {
        runlog_close(log);
        return fail(err, errlen, "%s: cannot cut off later steps: %s", path, strerror(errno));
    }
    return 0;
}

void runlog_close(RunLog* log) {
    if (log->file) fclose(log->file);
    log->file = NULL;
}

const char* runlog_number(double x, int digits, char text[32]) {
    if (!isfinite(x)) snprintf(text, 32, "null");
    else snprintf(text, 32, "%.*g", digits, x);
    return text;
}

const char* const rank_field_names[RANK_FIELDS] = {"compute_ms", "wait_ms", "gamma", "sent", "taken", "speed"};

float rank_field(const RankStep* r, int field) {
    const float values[RANK_FIELDS] = {r->compute_ms, r->wait_ms, r->gamma, r->sent, r->taken, r->speed};
    return values[field];
}

// Objects are written part by part; end_line reports what failed in any of them.
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void
write_part(RunLog* log, const char* format, ...) {
    if (!log->file) return;
    va_list args;
    va_start(args, format);
    vfprintf(log->file, format, args);
    va_end(args);
}

static void write_number(RunLog* log, const char* name, double x) {
    char text[32];
    write_part(log, ", \"%s\": %s", name, runlog_number(x, 17, text));
}

static int end_line(RunLog* log) {
    if (!log->file) return 0;
    write_part(log, "}\n");
    return fflush(log->file) || ferror(log->file) ? -1 : 0;
}

static void print_step(RunLog* log, const StepRecord* r) {
    double now = now_seconds();
    int last = r->step == r->steps;
    // Ten lines a second are enough for eyes; a file gets a line whenever the rhythm of a reader allows.
    double interval = log->is_terminal ? 0.1 : 10;
    if (!last && r->step != 1 && now - log->last_print < interval) return;
    log->last_print = now;
    char left[32], speed[32];
    double tps = r->tokens / r->seconds;
    snprintf(speed, sizeof speed, tps >= 9950 ? "%.0fk" : tps >= 995 ? "%.1fk" : "%.0f", tps >= 995 ? tps / 1000 : tps);
    printf("%sstep %*lld/%lld | loss %.4f | norm %.3f | lr %.2e | %s tok/s | %.1f%% of matmul limit | %s left%s",
           log->is_terminal ? "\r\033[K" : "", (int)snprintf(NULL, 0, "%lld", (long long)r->steps), (long long)r->step,
           (long long)r->steps, r->loss, r->grad_norm, r->lr, speed, 100 * r->mfu,
           runlog_duration(r->seconds_left, left), log->is_terminal ? "" : "\n");
    log->line_open = log->is_terminal;
    fflush(stdout);
}

// Micro-batches by cp size, ascending.
static void write_cp_sizes(RunLog* log, const Plan* plan) {
    write_part(log, ", \"cp_sizes\": {");
    for (int cp_size = 0, next = 0; plan; cp_size = next) {
        int n = 0;
        next = 0;
        for (int i = 0; i < plan->n_micro_batches; i++) {
            int d = plan->micro_batches[i].cp_size;
            if (d <= cp_size) continue;
            if (next == 0 || d < next) next = d, n = 0;
            n += d == next;
        }
        if (next == 0) break;
        write_part(log, "%s\"%d\": %d", cp_size ? ", " : "", next, n);
    }
    write_part(log, "}");
}

static void write_bytes(RunLog* log, const StepRecord* r) {
    const char* const names[] = {"ulysses", "ring", "gradients", "parameters", "tensor", "slices", "inside", "across"};
    const uint64_t bytes[] = {r->ulysses, r->ring,   r->gradients, r->parameters,
                              r->tensor,  r->slices, r->inside,    r->across};
    write_part(log, ", \"bytes\": {");
    for (int i = 0; i < COUNT(bytes); i++) write_part(log, "%s\"%s\": %" PRIu64, i ? ", " : "", names[i], bytes[i]);
    write_part(log, "}");
}

static void write_ranks(RunLog* log, const StepRecord* r) {
    char text[32];
    if (!r->ranks || r->n_ranks == 0) {
        write_part(log, ", \"ranks\": null");
        return;
    }
    write_part(log, ", \"ranks\": {");
    for (int f = 0; f < RANK_FIELDS; f++) {
        write_part(log, "%s\"%s\": [", f ? ", " : "", rank_field_names[f]);
        for (int i = 0; i < r->n_ranks; i++)
            write_part(log, "%s%s", i ? ", " : "", runlog_number(rank_field(&r->ranks[i], f), 4, text));
        write_part(log, "]");
    }
    write_part(log, "}");
}

static void write_planning(RunLog* log, const StepRecord* r) {
    write_part(log, ", \"plan\": \"%s\"", r->planner ? r->planner : "");
    write_number(log, "plan_us", r->plan_us);
    write_number(log, "plan_stall_us", r->plan_stall_us);
    write_number(log, "predicted_ms", r->predicted_ms);
    write_number(log, "measured_ms", r->measured_ms);
    write_number(log, "gap", r->gap);
    write_cp_sizes(log, r->plan);
    write_bytes(log, r);
    write_number(log, "emulated_ms", r->emulated_ms > 0 ? r->emulated_ms : NAN);
    write_ranks(log, r);
}

int runlog_step(RunLog* log, const StepRecord* r) {
    print_step(log, r);
    write_part(log, "{\"step\": %" PRId64, r->step);
    write_number(log, "loss", r->loss);
    write_number(log, "grad_norm", r->grad_norm);
    write_number(log, "lr", r->lr);
    write_part(log, ", \"tokens\": %" PRId64 ", \"targets\": %" PRId64 ", \"micro_batches\": %d", r->tokens, r->targets,
               r->micro_batches);
    write_number(log, "seconds", r->seconds);
    write_number(log, "tokens_per_second", (double)r->tokens / r->seconds);
    write_number(log, "mfu", r->mfu);
    write_planning(log, r);
    write_number(log, "exposed_seconds", r->exposed_seconds);
    write_part(log, ", \"loss_hash\": \"%016" PRIx64 "\"", r->loss_hash);
    return end_line(log);
}

int runlog_eval(RunLog* log, int64_t step, double val_loss, int64_t targets) {
    write_part(log, "{\"step\": %" PRId64, step);
    write_number(log, "val_loss", val_loss);
    write_part(log, ", \"val_targets\": %" PRId64, targets);
    return end_line(log);
}

void runlog_say(RunLog* log, const char* format, ...) {
    if (log->line_open) putchar('\n');
    log->line_open = 0;
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

const char* runlog_bold(const RunLog* log) { return log->is_terminal ? "\033[1m" : ""; }
const char* runlog_plain(const RunLog* log) { return log->is_terminal ? "\033[0m" : ""; }

const char* runlog_duration(double seconds, char text[32]) {
    long s = seconds > 0 ? (long)(seconds + 0.5) : 0;
    if (s >= 3600) snprintf(text, 32, "%ldh%02ldm", s / 3600, s / 60 % 60);
    else if (s >= 60) snprintf(text, 32, "%ldm%02lds", s / 60, s % 60);
    else snprintf(text, 32, "%lds", s);
    return text;
}
