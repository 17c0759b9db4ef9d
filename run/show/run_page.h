// run_page.h - a run, or several beside each other, as a page: report.html, which is the lines of log.jsonl as they are
// and a script that draws them (run_page.js); and as a table on a terminal.
//
//   RunPage* page = run_page_open(name);
//   run_page_line(page, line, n);                        // of log.jsonl, as it is written; or run_page_read
//   run_page_write(&page, 1, path, err);     // whenever asked
//
// Memory and page are bounded, however long the run: of steps, of evaluations, of starts and of all other lines each
// the last 200 are kept, and before these, of more than 1200, every second, fourth, ... What all lines come to is kept
// exactly.
#pragma once
#include "data/runlog.h"

typedef struct RunPage RunPage;

RunPage* run_page_open(const char* name);  // NULL: no memory
void run_page_close(RunPage* page);        // NULL is fine
// One line, with or without its end. What is no object of a log is passed over. 0, or -1: no memory for it.
int run_page_line(RunPage* page, const char* line, size_t n);
// The training loss: what the line of a step shows, see progress_add.
Smooth run_page_smooth(const RunPage* page);
// From the first line of the log to the last, of all invocations of the run; NaN: no line has said when it was.
double run_page_seconds(const RunPage* page);
// A whole log. 0, or -1 with a message.
int run_page_read(RunPage* page, const char* path, Err err);
void run_page_print(FILE* out, RunPage* const* pages, int n);
// The same as one HTML file that needs nothing else; an older one stays when this fails. 0, or -1 with a message.
int run_page_write(RunPage* const* pages, int n, const char* path, Err err);
// Several runs side by side on a terminal: results, and options that differ.
void run_page_table(FILE* out, RunPage* const* pages, int n);
