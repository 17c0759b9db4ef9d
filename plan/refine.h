// refine.h - the cost model learns from steps: recursive least squares on five scales.
//
// A step's time is predicted as x . theta, where x are its terms (quadratic, linear, exchange, item, step) in ms as the
// model that was probed says, and theta starts at ones. After a step that took y, with relative features
// w = x / (x . 1), h = P w and r = w . h:
//   theta += h / (1 + r) (y / (x . 1) - w . theta)
// and P is updated as in recursive least squares with forgetting (Ljung and Soderstrom 1983), but forgets only along
// h, the direction that the step told something about (Kulhavy 1987): dividing all of P by lambda would let what the
// data never tell apart drift without end. P starts wide along theta, so that a common factor is learnt in a step or
// two, and narrow across. A step whose error is far outside of what is usual is not learnt from, unless several follow
// each other: then the machine has changed. Scales stay above 0.01; the scale of a term that a step lacks keeps its
// value.
#pragma once
#include "plan/cost.h"

enum { REFINE_TERMS = 5, REFINE_MEMORY = 64 };

typedef struct Refine {
    double theta[REFINE_TERMS], P[REFINE_TERMS][REFINE_TERMS];
    double errors[REFINE_MEMORY];  // |predicted / measured - 1| of the last steps, each before it was learnt from
    int n;                         // steps seen
    int outliers, in_a_row;        // not learnt from; and how many of the last in a row
} Refine;

void refine_start(Refine* refine);
// terms: of the step under the unrefined model. Returns the prediction, ms.
double refine_predict(const Refine* refine, const double terms[REFINE_TERMS]);
// Returns 1 when the step was learnt from, 0 for an outlier. measured: ms, above 0.
int refine_learn(Refine* refine, const double terms[REFINE_TERMS], double measured);
// The model with what was learnt.
void refine_apply(Cost* refined, const Cost* probed, const Refine* refine);
// Median of the last REFINE_MEMORY errors; 0 before the first.
double refine_median_error(const Refine* refine);
