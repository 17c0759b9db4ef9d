// run_page.h - a run, or several beside each other, as a page: report.html, made of what log.jsonl says.
//
//   RunPage* page = run_page_open(name);
//   run_page_line(page, line, n);                        // of log.jsonl, as it is written; or run_page_read
//   run_page_write(&page, 1, title, path, err, sizeof err);   // whenever asked
//
// Memory is bounded, however long the run: columns of steps and of evaluations, 24 KiB a rank, 4000 events.
#pragma once
#include "data/runlog.h"

enum { PAGE_COLUMNS = 1024, RANK_COLUMNS = 512 };

typedef struct RunPage RunPage;

RunPage* run_page_open(const char* name);  // NULL: no memory
void run_page_close(RunPage* page);        // NULL is fine
// One line, with or without its end. What is no object of a log is passed over. 0, or -1: no memory for it.
int run_page_line(RunPage* page, const char* line, size_t n);
// The training loss: what the line of a step shows, see data/progress.h.
Smooth run_page_smooth(const RunPage* page);
// From the first line of the log to the last, of all invocations of the run; NaN: no line has said when it was.
double run_page_seconds(const RunPage* page);
// What every rank did in a step; lines tell it themselves. Another number of ranks than before begins anew.
int run_page_ranks(RunPage* page, int64_t step, const RankStep* ranks, int n);
// A whole log. 0, or -1 with a message.
int run_page_read(RunPage* page, const char* path, char* err, size_t errlen);
void run_page_print(FILE* out, RunPage* const* pages, int n, const char* title);
// The same as one HTML file that needs nothing else; an older one stays when this fails. 0, or -1 with a message.
int run_page_write(RunPage* const* pages, int n, const char* title, const char* path, char* err, size_t errlen);
// Several runs side by side on a terminal: results, and options that differ.
void run_page_table(FILE* out, RunPage* const* pages, int n);
