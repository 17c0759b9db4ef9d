// runlog.c - log.jsonl and the progress line; see runlog.h.
#define _GNU_SOURCE
#include "data/runlog.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "data/json.h"
#include "plan/base/disk.h"
#include "plan/base/terminal.h"
#include "plan/base/text.h"

enum {
    MOST_PENDING = 4 << 20,  // bytes of lines that could not be written yet
    FIRST_ROOM = 1 << 16,    // bytes for lines that are taken at the start; few runs need more
};

// ---- opening: what is there already

// The lines that an older invocation left.
typedef struct Old {
    int64_t kept;                     // bytes up to the first line of a step that will come again
    int64_t superseded;               // lines after them
    int64_t unreadable, first_wrong;  // lines, which stay where they are; the number of the first, from 1
} Old;

// Returns the step of a line, or that at which an event was; -1: the line is no object of a log.
static int64_t step_of(const char* line, size_t n) {
    Json json;
    int64_t step;
    if (json_parse(&json, line, n, NULL)) return -1;
    const char* name = json_get(json.values, "event") ? "at" : "step";
    if (json_int64(json_get(json.values, name), &step) || step < 0) step = -1;
    json_free(&json);
    return step;
}

static Old read_old(FILE* file, int64_t last_step) {
    Old old = {0};
    char* line = NULL;
    size_t room = 0;
    int64_t number = 0;
    ssize_t n;
    while ((n = getline(&line, &room, file)) > 0) {
        int whole = line[n - 1] == '\n';
        int64_t step = whole ? step_of(line, (size_t)n) : INT64_MAX;  // a torn line is superseded, whatever it was
        number++;
        if (step > last_step || old.superseded > 0) {
            old.superseded++;
            continue;
        }
        if (step < 0 && old.unreadable++ == 0) old.first_wrong = number;
        old.kept += n;
    }
    free(line);
    return old;
}

// Makes DIR/log.N.jsonl for the first free N, and its name and path. Returns its descriptor, or -1.
static int make_aside(char* name, size_t room, const char* dir, char path[DISK_PATH], Err err) {
    for (int n = 1;; n++) {
        snprintf(name, room, "log.%d.jsonl", n);
        if (disk_join(path, dir, name, err)) return -1;
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) return fd;
        if (errno != EEXIST) return fail(err, "%s: cannot write: %s", path, strerror(errno));
    }
}

// Copies superseded lines into a file of their own, and only then cuts them off.
static int move_aside(RunLog* log, int64_t kept, char* name, size_t room, const char* dir, Err err) {
    char path[DISK_PATH], piece[1 << 14];
    int fd = make_aside(name, room, dir, path, err), bad = 0;
    if (fd < 0) return -1;
    for (int64_t at = kept, n = 1; n > 0 && !bad; at += n) {
        n = pread(log->fd, piece, sizeof piece, at);
        bad = n < 0 || disk_write(fd, piece, (size_t)n);
    }
    if (disk_finish(fd, path, bad, err)) return -1;
    if (ftruncate(log->fd, kept) == 0) return 0;
    return fail(err, "%s/log.jsonl: cannot cut off later steps: %s", dir, strerror(errno));
}

// Continues an older log with the step after last_step.
static int continue_old(RunLog* log, const char* dir, int64_t last_step, Err err) {
    char name[32];
    int fd = dup(log->fd);
    FILE* file = fd < 0 ? NULL : fdopen(fd, "r");
    if (!file) return fail(err, "%s/log.jsonl: cannot read: %s", dir, strerror(errno));
    Old old = read_old(file, last_step);
    int bad = ferror(file);
    fclose(file);
    if (bad) return fail(err, "%s/log.jsonl: cannot read: %s", dir, strerror(errno));
    if (old.unreadable)
        warn("%s/log.jsonl: %lld lines cannot be read, the first is line %lld; they stay as they are", dir,
             (long long)old.unreadable, (long long)old.first_wrong);
    if (old.superseded == 0) return 0;
    if (move_aside(log, old.kept, name, sizeof name, dir, err)) return -1;
    runlog_say(log, "%s/log.jsonl: %lld lines after step %lld are in %s now", dir, (long long)old.superseded,
               (long long)last_step, name);
    return 0;
}

// Makes room for the log of a new run: a log that is there, whoever wrote it, gets another name.
static int rename_old(RunLog* log, const char* dir, const char* path, Err err) {
    char aside[DISK_PATH], name[32];
    struct stat s;
    if (lstat(path, &s)) return errno == ENOENT ? 0 : fail(err, "%s: %s", path, strerror(errno));
    if (S_ISREG(s.st_mode) && s.st_size == 0) return 0;
    int fd = make_aside(name, sizeof name, dir, aside, err);
    if (fd < 0) return -1;
    close(fd);
    if (rename(path, aside)) return fail(err, "%s: cannot rename to %s: %s", path, name, strerror(errno));
    runlog_say(log, "%s was there already: it is %s now", path, name);
    return 0;
}

int runlog_open(RunLog* log, const char* dir, int resumes, int64_t last_step, Err err) {
    char path[DISK_PATH];
    struct stat s;
    memset(log, 0, sizeof *log);
    log->fd = -1;
    log->is_terminal = progress_is_terminal();
    if (disk_join(path, dir, "log.jsonl", err)) return -1;
    if (stat(path, &s) == 0 && !S_ISREG(s.st_mode))
        return fail(err, "%s: expected a file to write, found another kind", path);
    if (!resumes && rename_old(log, dir, path, err)) return -1;
    log->fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (log->fd < 0) return fail(err, "%s: cannot write: %s", path, strerror(errno));
    snprintf(log->path, sizeof log->path, "%s", path);
    log->room = FIRST_ROOM;
    log->pending = malloc((size_t)log->room);
    int bad = log->pending ? 0 : fail(err, "%s: no memory for its lines", path);
    if (!bad && resumes) bad = continue_old(log, dir, last_step, err);
    if (bad) runlog_close(log);
    return bad;
}

const char* runlog_number(double x, int digits, char text[32]) {
    if (!isfinite(x)) snprintf(text, 32, "null");
    else snprintf(text, 32, "%.*g", digits, x);
    return text;
}

// ---- lines are put together in memory

__attribute__((format(printf, 2, 3))) static void write_part(RunLog* log, const char* format, ...) {
    va_list args;
    for (int tries = 0; tries < 2 && log->fd >= 0; tries++) {
        size_t room = (size_t)log->room - log->used;
        va_start(args, format);
        int n = vsnprintf(log->pending + log->used, room, format, args);
        va_end(args);
        if (n >= 0 && (size_t)n < room) {
            log->used += (size_t)n;
            return;
        }
        if (reserve(&log->pending, &log->room, (int64_t)log->used, MAX(n, 0) + 1, 1, NULL)) break;
    }
    log->torn = log->fd >= 0;  // no memory for this line
}

static void write_number(RunLog* log, const char* name, double x) {
    char text[32];
    write_part(log, ", \"%s\": %s", name, runlog_number(x, 17, text));
}

// Writes what is pending, as far as it goes, in whole lines. 0, or -1 with errno set.
static int write_pending(RunLog* log) {
    size_t done = 0;
    while (done < log->used) {
        ssize_t n = write(log->fd, log->pending + done, log->used - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += (size_t)n;
    }
    int error = errno;
    const char* end = done ? memrchr(log->pending, '\n', done) : NULL;
    size_t whole = end ? (size_t)(end - log->pending) + 1 : 0;
    if (done > whole && ftruncate(log->fd, lseek(log->fd, 0, SEEK_END) - (off_t)(done - whole)) == 0) done = whole;
    log->used -= done;
    memmove(log->pending, log->pending + done, log->used);
    errno = error;
    return log->used > 0 ? -1 : 0;
}

int runlog_move(RunLog* log, const char* dir, Err err) {
    char path[DISK_PATH];
    if (log->fd < 0 || log->used == 0) return 0;
    if (disk_join(path, dir, "log.jsonl", err)) return -1;
    int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) return fail(err, "%s: cannot write: %s", path, strerror(errno));
    if (disk_finish(dup(fd), path, disk_write(fd, log->pending, log->used), err)) return close(fd), -1;
    close(log->fd);
    log->fd = fd;
    log->used = log->line = 0;
    log->is_late = 0;
    snprintf(log->path, sizeof log->path, "%s", path);
    return 0;
}

// Writes the line. One that cannot be written waits for the next; warnings tell when that begins and when it is over.
static int end_line(RunLog* log) {
    if (log->fd < 0) return 0;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    write_part(log, ", \"time\": %.3f}\n", (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    if (log->torn) log->used = log->line;  // the others are whole
    int failed = write_pending(log) || log->torn, error = log->torn ? ENOMEM : errno;
    log->torn = 0;
    log->line = log->used;
    if (failed && !log->is_late)
        warn("%s: cannot write: %s%s; trying again with each line", log->path, strerror(error), disk_hint(error));
    if (!failed && log->is_late) warn("%s: all lines are written now", log->path);
    log->is_late = failed;
    return log->used > MOST_PENDING ? -1 : 0;
}

int runlog_close(RunLog* log) {
    int lost = log->used > 0 && write_pending(log);
    if (lost) warn("%s: the last %zu bytes could not be written: %s", log->path, log->used, strerror(errno));
    if (log->fd >= 0) close(log->fd);
    log->fd = -1;
    free(log->pending);
    log->pending = NULL;
    log->used = 0, log->room = 0;
    return lost ? -1 : 0;
}

// ---- the line of a step for eyes

int progress_is_terminal(void) {
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && !(term && !strcmp(term, "dumb")) && !(no_color && *no_color);
}

// progress_columns is asked for every line, because a window may change its size.
int progress_columns(void) {
    struct winsize size;
    const char* columns = getenv("COLUMNS");
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return columns ? MAX(atoi(columns), 0) : 0;
}

void progress_print(const char* line, int rewrites) {
    printf(rewrites ? "\r\033[K%s" : "%s\n", line);
    fflush(stdout);
}

void progress_add(Smooth* smooth, const StepRecord* r) {
    const double kept = 0.9;
    if (isfinite(r->loss)) {
        smooth->loss = kept * smooth->loss + r->loss;
        smooth->losses = kept * smooth->losses + 1;
    }
    smooth->tokens = kept * smooth->tokens + (double)r->tokens;
    smooth->seconds = kept * smooth->seconds + r->seconds;
    double busy = r->used > 0 ? r->used * r->seconds : r->seconds;
    smooth->at_peak = kept * smooth->at_peak + r->mfu * busy;
    smooth->busy = kept * smooth->busy + busy;
    smooth->had = kept * smooth->had + (r->had > 0 ? r->had : 1) * r->seconds;
}

// The fields of a line, in its order; a line that is too long loses the one of the least worth first.
enum { STEP, LOSS, NORM, LR, SPEED, LIMIT, HAD, LEFT, N_FIELDS };
static const int worth[N_FIELDS] = {9, 8, 1, 2, 6, 0, 3, 7};

static void fill_fields(char fields[N_FIELDS][48], const Smooth* s, const StepRecord* r) {
    char left[32];
    double speed = s->seconds > 0 ? s->tokens / s->seconds : 0;
    int digits = snprintf(NULL, 0, "%" PRId64, r->steps);
    snprintf(fields[STEP], 48, "step %*" PRId64 "/%" PRId64, digits, r->step, r->steps);
    if (s->losses > 0) snprintf(fields[LOSS], 48, "loss %.4f", s->loss / s->losses);  // virtual ranks have none
    if (isfinite(r->grad_norm)) snprintf(fields[NORM], 48, "norm %.3f", r->grad_norm);
    snprintf(fields[LR], 48, "lr %.2e", r->lr);
    const char* unit = r->virtual_time ? "virtual tok/s" : "tok/s";
    if (speed >= 9950) snprintf(fields[SPEED], 48, "%.0fk %s", speed / 1000, unit);
    else if (speed >= 995) snprintf(fields[SPEED], 48, "%.1fk %s", speed / 1000, unit);
    else snprintf(fields[SPEED], 48, "%.0f %s", speed, unit);
    // A share above 1 is not shown: the peak was measured beside other work, so it is none.
    double share = s->busy > 0 ? s->at_peak / s->busy : NAN, had = s->seconds > 0 ? s->had / s->seconds : 1;
    if (share <= 1) snprintf(fields[LIMIT], 48, "%.1f%% of peak", 100 * share);
    const char* cores = r->cores == 1 ? "core" : "cores";
    if (had < 0.8) snprintf(fields[HAD], 48, "had %.0f%% of %.3g %s", 100 * had, r->cores, cores);
    snprintf(fields[LEFT], 48, "%s left", text_duration(r->seconds_left, left));
}

void progress_line(char* text, size_t room, const Smooth* smooth, const StepRecord* r, int columns) {
    char fields[N_FIELDS][48] = {{0}};
    fill_fields(fields, smooth, r);
    for (;;) {
        size_t n = 0;
        int least = -1;
        text[0] = 0;
        for (int f = 0; f < N_FIELDS; f++) {
            if (!fields[f][0]) continue;
            n += (size_t)snprintf(text + n, room - n, "%s%s", n ? " | " : "", fields[f]);
            n = MIN(n, room - 1);
            if (f != STEP && f != LOSS && (least < 0 || worth[f] < worth[least])) least = f;
        }
        if (columns <= 0 || (int)n < columns || least < 0) return;
        fields[least][0] = 0;
    }
}

static void print_step(RunLog* log, const StepRecord* r) {
    double now = now_seconds();
    progress_add(&log->smooth, r);
    int last = r->step == r->steps;
    // Ten lines a second are enough for eyes; a file gets one every 10 s, which stay readable.
    double interval = log->is_terminal ? 0.1 : 10;
    if (!last && r->step != 1 && now - log->last_print < interval) return;
    log->last_print = now;
    char line[256];
    progress_line(line, sizeof line, &log->smooth, r, log->is_terminal ? progress_columns() : 0);
    progress_print(line, log->is_terminal);
    log->line_open = log->is_terminal;
}

// Writes the numbers of micro-batches by cp size, ascending.
static void write_cp_sizes(RunLog* log, const Plan* plan) {
    write_part(log, ", \"cp_sizes\": {");
    for (int size = 1, left = plan ? plan->n_micro_batches : 0, written = 0; left > 0; size++) {
        int n = 0;
        for (int i = 0; i < plan->n_micro_batches; i++) n += plan->micro_batches[i].cp_size == size;
        if (n) write_part(log, "%s\"%d\": %d", written++ ? ", " : "", size, n);
        left -= n;
    }
    write_part(log, "}");
}

static void write_bytes(RunLog* log, const StepRecord* r) {
    static const char* const names[SENT_KINDS] = {"ulysses",    "ring",   "routing", "remap",  "gradients",
                                                  "parameters", "tensor", "slices",  "inside", "across"};
    write_part(log, ", \"bytes\": {");
    for (int i = 0; i < SENT_KINDS; i++) write_part(log, "%s\"%s\": %" PRIu64, i ? ", " : "", names[i], r->sent[i]);
    write_part(log, "}");
}

static void write_ranks(RunLog* log, const StepRecord* r) {
    static const char* const names[] = {"compute_ms", "wait_ms", "gamma", "sent", "taken", "speed"};
    char text[32];
    if (!r->ranks || r->n_ranks == 0) {
        write_part(log, ", \"ranks\": null");
        return;
    }
    for (int f = 0; f < COUNT(names); f++) {
        write_part(log, "%s\"%s\": [", f ? "], " : ", \"ranks\": {", names[f]);
        for (int i = 0; i < r->n_ranks; i++) {
            const RankStep* rank = &r->ranks[i];
            const float values[] = {rank->compute_ms, rank->wait_ms, rank->gamma, rank->sent, rank->taken, rank->speed};
            write_part(log, "%s%s", i ? ", " : "", runlog_number(values[f], 4, text));
        }
    }
    write_part(log, "]}");
}

int runlog_step(RunLog* log, const StepRecord* r) {
    const struct {
        const char* name;
        double value;
    } numbers[] = {{"loss", r->loss},
                   {"grad_norm", r->grad_norm},
                   {"lr", r->lr},
                   {"seconds", r->seconds},
                   {"tokens_per_second", (double)r->tokens / r->seconds},
                   {"mfu", r->mfu},
                   {"had", r->had > 0 ? r->had : NAN},
                   {"plan_us", r->plan_us},
                   {"plan_stall_us", r->plan_stall_us},
                   {"plan_ms", r->plan_ms},
                   {"predicted_ms", r->predicted_ms},
                   {"measured_ms", r->measured_ms},
                   {"gap", r->gap},
                   {"exposed_seconds", r->exposed_seconds},
                   {"emulated_ms", r->emulated_ms > 0 ? r->emulated_ms : NAN}};
    print_step(log, r);
    write_part(log, "{\"step\": %" PRId64, r->step);
    for (int i = 0; i < COUNT(numbers); i++) write_number(log, numbers[i].name, numbers[i].value);
    write_part(log, ", \"tokens\": %" PRId64 ", \"targets\": %" PRId64 ", \"micro_batches\": %d, \"plan\": \"%s\"",
               r->tokens, r->targets, r->micro_batches, r->planner ? r->planner : "");
    if (r->drawn) write_part(log, ", \"drawn\": %" PRId64, r->drawn);
    if (isfinite(r->reward)) write_number(log, "reward", r->reward);
    if (r->strategy) write_part(log, ", \"strategy\": \"%s\"", r->strategy);
    if (r->strategy) write_number(log, "moving_ms", r->moving_ms);
    if (r->stages > 1)
        write_part(log, ", \"stages\": %d, \"rounds\": %d, \"in_flight\": %d", r->stages, r->rounds, r->in_flight);
    if (r->stages > 1) write_number(log, "bubble", r->bubble);
    write_cp_sizes(log, r->plan);
    write_bytes(log, r);
    write_ranks(log, r);
    write_part(log, ", \"loss_hash\": \"%016" PRIx64 "\"", r->loss_hash);
    return end_line(log);
}

int runlog_eval(RunLog* log, int64_t step, double val_loss, int64_t targets, double bits_per_byte) {
    write_part(log, "{\"step\": %" PRId64, step);
    write_number(log, "val_loss", val_loss);
    write_part(log, ", \"val_targets\": %" PRId64, targets);
    write_number(log, "bits_per_byte", bits_per_byte);
    return end_line(log);
}

int runlog_event(RunLog* log, const char* event, int64_t at, const char* more) {
    write_part(log, "{\"event\": \"%s\", \"at\": %" PRId64 "%s", event, at, more);
    return end_line(log);
}

static void say_line(RunLog* log, int strong, const char* format, va_list args) {
    if (log->line_open) putchar('\n');
    log->line_open = 0;
    if (strong && log->is_terminal) fputs("\033[1m", stdout);
    say_list(stdout, format, args);
    if (strong && log->is_terminal) fputs("\033[0m", stdout);
    putchar('\n');
    fflush(stdout);
}

void runlog_say(RunLog* log, const char* format, ...) {
    va_list args;
    va_start(args, format);
    say_line(log, 0, format, args);
    va_end(args);
}

void runlog_strong(RunLog* log, const char* format, ...) {
    va_list args;
    va_start(args, format);
    say_line(log, 1, format, args);
    va_end(args);
}
