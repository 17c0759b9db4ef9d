// progress.h - the line of a step for eyes: no wider than the terminal, loss and speed smoothed; log.jsonl has
// them raw.
#pragma once
#include "data/step_record.h"

// Means of the steps so far in which each step back counts 0.9 times the next.
void progress_add(Smooth* smooth, const StepRecord* r);

// The line without its end, of fewer than `columns` (0: any number of) characters where that can be: fields are left
// out, the least wanted first; step and loss stay.
void progress_line(char* text, size_t room, const Smooth* smooth, const StepRecord* r, int columns);

// Whether lines may be rewritten and have colour: standard output is a terminal, TERM is not dumb, NO_COLOR is not set.
int progress_is_terminal(void);
// The terminal's columns now; 0: not known.
int progress_columns(void);
