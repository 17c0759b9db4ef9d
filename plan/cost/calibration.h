// calibration.h - the cost model learns from steps: recursive least squares on five scales.
//
// A step's time is predicted as x . theta: x are its terms (quadratic, per token, communication, micro-batch, step) in
// ms under the probed model, and theta starts at ones. After a step that took y, with relative features
// w = x / (x . 1), h = P w and r = w . h:
//   theta += h / (1 + r) (y / (x . 1) - w . theta)
// P is updated as in recursive least squares with forgetting (Ljung and Soderstrom 1983), but forgets only along h, the
// direction that the step measured (Kulhavy 1987, "Restricted exponential forgetting in real-time identification").
// Dividing all of P by lambda would widen it without end if the data never tell terms apart. P starts wide along theta,
// so that a common factor is learnt in a step or two, and narrow across. A step with an unusually large error is not
// learnt from, unless several follow each other: then the machine has changed. Scales stay above 0.01; the scale of a
// term that a step lacks keeps its value.
#pragma once
#include "plan/cost/cost.h"

enum { CALIBRATION_TERMS = 5, CALIBRATION_MEMORY = 64 };

typedef struct Calibration {
    double theta[CALIBRATION_TERMS], P[CALIBRATION_TERMS][CALIBRATION_TERMS];
    double errors[CALIBRATION_MEMORY];  // |predicted / measured - 1| of the last steps, each before it was learnt from
    int n;                              // steps seen
    int outliers, in_a_row;             // steps not learnt from; how many of the last in a row
} Calibration;

void calibration_start(Calibration* calibration);
// Returns the predicted ms of a step with these terms under the uncalibrated model.
double calibration_predict(const Calibration* calibration, const double terms[CALIBRATION_TERMS]);
// Returns 1 when the step was learnt from, 0 for an outlier. measured: ms, above 0.
int calibration_learn(Calibration* calibration, const double terms[CALIBRATION_TERMS], double measured);
// Sets *calibrated to the probed model with the learnt scales.
void calibration_apply(Cost* calibrated, const Cost* probed, const Calibration* calibration);
// Median of the last CALIBRATION_MEMORY errors; 0 before the first.
double calibration_median_error(const Calibration* calibration);
