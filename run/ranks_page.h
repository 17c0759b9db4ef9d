// ranks_page.h - what every rank did over a run, as a page: OUT/ranks.html.
//
//   History* history = history_open(ranks);
//   history_add(history, step, record.ranks);                    // once a step
//   history_write(history, path, title, err, sizeof err);        // at the end, or whenever asked
//
// Memory is bounded: 24 KiB a rank, however long the run.
#pragma once
#include "data/runlog.h"

enum { MOST_COLUMNS = 512 };

typedef struct History History;

History* history_open(int ranks);  // NULL: no memory
void history_close(History* h);    // NULL is fine
// A step of all ranks, steps ascending. When there are MOST_COLUMNS columns, neighbours are merged two by two first, so
// that a column is the mean of 1, 2, 4, ... steps and only the last may be of fewer than the others. A value that is
// not finite is left out of the means.
void history_add(History* h, int64_t step, const RankStep* ranks);
// One HTML file that needs nothing else; an older one stays when this fails. 0, or -1 with a message.
int history_write(const History* h, const char* path, const char* title, char* err, size_t errlen);
