// probe.h - what cost.c and probe.c share: the estimate that a probe begins with, the file that it leaves, and how its
// times become constants.
#pragma once
#include "run/run.h"

// The model of this machine that its matmul limit and the transport suggest, without any measurement.
void cost_estimate(Machine* machine, const Run* run);
// Where the measurements for this run lie, or would. 0, or -1 with a message (no home directory, too long a path).
int cost_cache_path(const Run* run, char* path, size_t bytes, char* err, size_t errlen);
// Writes run->probed there, whole or not at all. 0, or -1 with a message.
int cost_cache_save(const Run* run, char* err, size_t errlen);

// A row that was timed: documents with sum of squares s2, `tokens` in all.
typedef struct ProbeTime {
    double s2, tokens, ms;
} ProbeTime;

// The constants c >= 0 for which the relative errors of c[0] s2 + c[1] tokens + c[2] have the least sum of squares.
// n >= 1; what the rows do not tell apart is given to as few constants as will do.
void probe_fit(double c[3], const ProbeTime* rows, int n);
