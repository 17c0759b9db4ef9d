// progress.c - the line of a step for eyes; see runlog.h.
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "data/runlog.h"
#include "plan/base/terminal.h"

int progress_is_terminal(void) {
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && !(term && !strcmp(term, "dumb")) && !(no_color && *no_color);
}

// Asked for every line, so that a window may change its size.
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

// What may stand in a line, in its order; the first to go has the least number.
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
    // Above 1 the peak was measured beside other work: it is none.
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
