// terminal.c - see terminal.h.
#define _POSIX_C_SOURCE 200809L
#include "plan/base/terminal.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void say(FILE* out, const char* format, ...) {
    va_list args;
    va_start(args, format);
    say_list(out, format, args);
    va_end(args);
    fputc('\n', out);
}

void say_part(FILE* out, const char* format, ...) {
    va_list args;
    va_start(args, format);
    say_list(out, format, args);
    va_end(args);
}

void end_output(void) {
    if (fflush(stdout) || ferror(stdout)) die("standard output: cannot write: %s", strerror(errno));
}

const char* text_quoted(const char* text, char* word, size_t room) {
    const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,+@%";
    size_t n = 0;
    if (*text && !text[strspn(text, plain)]) {
        snprintf(word, room, "%s", text);
        return word;
    }
    if (n + 1 < room) word[n++] = '\'';
    for (; *text && n + 6 < room; text++) {
        if (*text == '\'') n += (size_t)snprintf(word + n, room - n, "'\\''");
        else word[n++] = *text;
    }
    if (n + 1 < room) word[n++] = '\'';
    word[n] = 0;
    return word;
}

const char* text_many(int64_t n, const char* noun, char text[64]) {
    snprintf(text, 64, "%" PRId64 " %.40s%s", n, noun, n == 1 ? "" : "s");
    return text;
}

const char* text_duration(double seconds, char text[32]) {
    long s = seconds > 0 ? (long)(seconds + 0.5) : 0;
    if (s >= 3600) snprintf(text, 32, "%ldh%02ldm", s / 3600, s / 60 % 60);
    else if (s >= 60) snprintf(text, 32, "%ldm%02lds", s / 60, s % 60);
    else snprintf(text, 32, "%lds", s);
    return text;
}

const char* text_bytes(double bytes, char text[32]) {
    double mib = bytes / (1 << 20);
    if (mib >= 10240) snprintf(text, 32, "%.1f GiB", mib / 1024);
    else snprintf(text, 32, "%.1f MiB", mib);
    return text;
}

void text_cells(TextTable* t, const char* format, ...) {
    va_list args;
    if (!t->rows) t->rows = open_memstream(&t->text, &t->n);
    if (!t->rows) return;
    va_start(args, format);
    vfprintf(t->rows, format, args);
    va_end(args);
}

static int cells_of(const char* row) {
    int n = 1;
    for (; *row != '\n'; row++) n += *row == '\t';
    return n;
}

void text_table(FILE* out, TextTable* t, const char* indent) {
    enum { MOST_COLUMNS = 16 };
    int width[MOST_COLUMNS] = {0};
    int failed = !t->rows || fclose(t->rows), columns = failed ? 0 : MIN(cells_of(t->text), MOST_COLUMNS);
    for (int prints = 0; prints < 2 && !failed; prints++)
        for (const char* at = t->text; *at;) {
            int cells = cells_of(at);
            if (prints) fputs(indent, out);
            for (int c = 0; c < cells; c++) {
                int n = (int)strcspn(at, "\t\n"), in_column = c < columns && (c < cells - 1 || cells >= columns);
                if (!prints && in_column) width[c] = MAX(width[c], n);
                if (prints) fprintf(out, "%s%*s%.*s", c ? "  " : "", in_column && c ? width[c] - n : 0, "", n, at);
                if (prints && c == 0 && cells > 1) fprintf(out, "%*s", MAX(width[0] - n, 0), "");
                at += n + 1;
            }
            if (prints) fputc('\n', out);
        }
    free(t->text);
    *t = (TextTable){0};
}

// ---- the last line of a rank

static volatile sig_atomic_t ended_by_launcher;

static void note_launcher(int number) {
    (void)number;
    ended_by_launcher = 1;
}

// A launcher ends a job by SIGCONT, SIGTERM, SIGKILL, with seconds between them.
static int others_have_spoken(void) {
    struct timespec turn = {0, 400000000};
    signal(SIGCONT, note_launcher);
    signal(SIGTERM, note_launcher);
    nanosleep(&turn, NULL);
    return ended_by_launcher;
}

void die_as_rank(int rank) {
    snprintf(die_as.who, sizeof die_as.who, "rank %d: ", rank);
    die_as.is_said = rank > 0 ? others_have_spoken : NULL;
    die_as.leave = _exit;  // what libraries have registered for the end may wait for the other ranks
}
