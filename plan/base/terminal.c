// terminal.c - see terminal.h.
#define _GNU_SOURCE
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

void warn(const char* format, ...) {
    va_list args;
    fflush(stdout);
    fputs("train: warning: ", stderr);
    va_start(args, format);
    say_list(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

#ifdef __GLIBC__  // other libraries keep their stdout
// The line being written: its columns so far, the indent of its continuation, and if a control sequence is open.
static struct {
    int (*columns)(void);
    int at, indent, in_escape, pauses;
} line;

// Counts the columns of a word up to a blank, *bytes long. Control sequences and UTF-8 continuation bytes have none.
static int word_columns(const char* text, size_t n, size_t* bytes) {
    int columns = 0;
    for (*bytes = 0; *bytes < n && !strchr(" \r\n", text[*bytes]); ++*bytes) {
        unsigned char c = (unsigned char)text[*bytes];
        if (c == 033) line.in_escape = 1;
        columns += !line.in_escape && (c & 0xc0) != 0x80;
        if (line.in_escape && ((c | 0x20) >= 'a' && (c | 0x20) <= 'z')) line.in_escape = 0;
    }
    return columns;
}

static ssize_t write_wrapped(void* to, const char* text, size_t n) {
    FILE* out = (FILE*)to;
    int width = line.columns(), head = 8;  // "memory  ", "device  "
    for (const char *end = text + n, *word; text < end;) {
        size_t bytes = 0, blanks = 0;
        while (text + blanks < end && text[blanks] == ' ') blanks++;
        int columns = word_columns(text + blanks, (size_t)(end - text) - blanks, &bytes);
        if (line.at == 0) line.indent = blanks ? (int)blanks + 2 : head;
        if (!line.pauses && blanks && line.at > line.indent && line.at + (int)blanks + columns > width &&
            width > 2 * line.indent)
            text += blanks, blanks = 0, line.at = fprintf(out, "\n%*s", line.indent, "") - 1;
        word = text + blanks + bytes;
        line.at += (int)blanks + columns;
        if (word < end && *word != ' ') word++, line.at = 0;  // a new line, or the same from its beginning
        fwrite(text, 1, (size_t)(word - text), out);
        text = word;
    }
    return fflush(out) ? 0 : (ssize_t)n;
}

void wrap_output(int (*columns)(void)) {
    FILE* lines = isatty(STDOUT_FILENO) ? fopencookie(stdout, "w", (cookie_io_functions_t){.write = write_wrapped}) : 0;
    if (!lines || setvbuf(lines, NULL, _IOLBF, BUFSIZ)) return;
    line.columns = columns;
    stdout = lines;
}

void wrap_pause(int pauses) { line.pauses = pauses; }
#else
void wrap_output(int (*columns)(void)) { (void)columns; }
void wrap_pause(int pauses) { (void)pauses; }
#endif

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
    die_as.leave = _exit;  // exit handlers of libraries may wait for other ranks
}
