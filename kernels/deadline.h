// deadline.h - an end for a call that never returns where a rank is missing: MPI's start and end, for which there is no
// form that one can poll, and the calls of NCCL.
//
//   deadline_begin(timeout_seconds, "rank %d of %d: MPI_Init", rank, size);
//   MPI_Init(NULL, NULL);
//   deadline_end();
//
// When the seconds are over first, the process prints one line to stderr, "train: rank 1 of 4: MPI_Init: not done after
// 600 s: ...", and leaves with status 1 at once: MPI is not finalized, for that would wait as well, and nothing that is
// registered for the end runs. One deadline at a time; it is kept by SIGALRM, which nobody else here uses.
#pragma once

__attribute__((format(printf, 2, 3))) void deadline_begin(double seconds, const char* format, ...);
void deadline_end(void);
