// run_page.h - a run, or several beside each other, as a page: report.html, which is the lines of log.jsonl as they are
// and a script that draws them (run_page.js); and as a table on a terminal.
//
//   RunPage page;
//   run_page_open(&page, dir);
//   run_page_write(&page, 1, path, err);     // whenever asked
//
// The page is bounded, however long the run: of steps, of evaluations, of starts and of all other lines each the last
// 250 are there, and before these, of more than 1200, every second, fourth, ... What all lines come to is exact.
#pragma once
#include "data/runlog.h"
#include "plan/base/disk.h"

typedef enum LineKind { LINE_STEP, LINE_EVALUATION, LINE_START, LINE_EVENT, LINE_KINDS, LINE_OTHER } LineKind;

typedef struct RunPage {
    char dir[DISK_PATH];  // the run's name, too
    int64_t bytes;        // of its log that are read
    char* kinds;          // (n of room) of the lines there
    int64_t n, room;
    int64_t seen[LINE_KINDS];
    char* start;  // the last line of that kind; NULL: none yet
    // Sums of all lines; NaN: not known.
    int64_t last_step;
    double val_loss, bits_per_byte;  // the least of all
    double tokens, in_steps;         // of all steps, and the seconds that they took
    Smooth smooth;                   // the training loss: what the line of a step shows, see progress_add
    double seconds;                  // from the first line to the last, of all invocations
    double began, earlier;           // when the last of them did, and seconds of those before it
} RunPage;

void run_page_open(RunPage* page, const char* dir);
void run_page_close(RunPage* page);
// One line, with or without its end: which kind it is of, LINE_OTHER where it is no object of a log.
LineKind run_page_line(RunPage* page, const char* line, size_t n);
// Reads what has come to the log since it was read last. 0, or -1 with a message.
int run_page_read(RunPage* page, Err err);
// All logs, read to their ends, as one HTML file that needs nothing else; an older one stays when this fails. 0, or -1
// with a message.
int run_page_write(RunPage* pages, int n, const char* path, Err err);
// Several runs side by side on a terminal: results, and options that differ.
void run_page_table(FILE* out, const RunPage* pages, int n);
