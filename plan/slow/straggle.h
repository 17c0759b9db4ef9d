// straggle.h - slow ranks on purpose, for tests: what --straggle says, and how slow a rank is in a step.
//
//   --straggle "rank=1,x=4; rank=2,x=1.5,from=20,to=80,whole"
//
// Pieces are separated by ';', the words of a piece by ',', in any order; blanks around them do not matter.
//   rank=N  which one, from 0; required
//   x=F     how many times as slow, from 1 to 1000, fractions allowed; required
//   from=N  the first step, from 1; default 1
//   to=N    the last step, itself included; default: for ever
//   whole   everything that the rank computes is slowed, not only the matmuls of the linears
#pragma once
#include "plan/base/base.h"

typedef struct Straggler {
    int rank;
    double x;
    int64_t from, to;
    int whole;
} Straggler;

enum { MOST_STRAGGLERS = 64 };

// Into list (MOST_STRAGGLERS), of which the first *n are filled; ranks: how many there are. Nothing but blanks, or
// NULL: none. 0, or -1 with a line that shows the place.
int straggle_parse(Straggler* list, int* n, const char* spec, int ranks, Err err);

// How many times as long something takes as it would by itself; 1 when nothing slows it.
typedef struct Slowness {
    double linear;  // the matmuls of the linears: kernels/straggle.h
    double whole;   // everything
} Slowness;

// Of a rank in a step, 1 for the first. Stragglers that overlap multiply.
Slowness straggle_at(const Straggler* list, int n, int rank, int64_t step);
