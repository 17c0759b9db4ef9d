// probe.h - --probe measures this machine for planners.
#pragma once
#include "run/run.h"

void run_probe(Run* run);  // --probe: measures this machine into run->clock->probed, and saves it

// A timed row of documents, whose lengths have the sum `tokens` and the sum of squares s2.
typedef struct ProbeTime {
    double s2, tokens, ms;
} ProbeTime;

// Finds the constants c >= 0 for which the relative errors of c[0] s2 + c[1] tokens + c[2] have the least sum of
// squares. n >= 1; time that the rows do not tell apart goes to as few constants as will do.
void probe_fit(double c[3], const ProbeTime* rows, int n);
