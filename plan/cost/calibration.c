// calibration.c - recursive least squares that forgets only what it hears again; see calibration.h. With h = P w and
// r = w' h, P changes by a multiple of h h' such that
//   w' P w  becomes  r / (lambda (1 + r)),
// which is what dividing all of P by lambda gives along w. r settles at (1 - lambda) / lambda.
#include "plan/cost/calibration.h"

#include <math.h>

#include "plan/base/sort.h"

static const double LAMBDA = 0.95;  // a step's weight along one direction halves after 14 others
// Variances before the first step, in units of a step's own noise, which is some 5 %: all scales may be off together by
// a factor of about 3, and each by about a half on top.
static const double TOGETHER = 1600, ALONE = 100;
static const double LEAST_SCALE = 0.01;  // the scale of a term that seems to cost nothing, or less
// An outlier is off by OUTLIER usual errors; never less than a tenth off, always if more than a factor of 3.
static const double OUTLIER = 5, LEAST_OUTLIER = 0.1, SURE_OUTLIER = 2;
enum { SEVERAL = 3 };  // after SEVERAL outliers in a row the machine has changed

static void widen(Calibration* calibration) {
    for (int i = 0; i < CALIBRATION_TERMS; i++)
        for (int j = 0; j < CALIBRATION_TERMS; j++)
            calibration->P[i][j] = calibration->theta[i] * calibration->theta[j] * (TOGETHER + (i == j ? ALONE : 0));
}

void calibration_start(Calibration* calibration) {
    memset(calibration, 0, sizeof *calibration);
    for (int i = 0; i < CALIBRATION_TERMS; i++) calibration->theta[i] = 1;
    widen(calibration);
}

double calibration_predict(const Calibration* calibration, const double terms[CALIBRATION_TERMS]) {
    double sum = 0;
    for (int i = 0; i < CALIBRATION_TERMS; i++) sum += calibration->theta[i] * terms[i];
    return sum;
}

double calibration_median_error(const Calibration* calibration) {
    double sorted[CALIBRATION_MEMORY];
    int n = MIN(calibration->n, CALIBRATION_MEMORY);
    memcpy(sorted, calibration->errors, sizeof(double) * (size_t)n);
    sort_doubles(sorted, (size_t)n);
    return n == 0 ? 0 : (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

// Raises scales below the least to it; the others make up for it as far as P says that they can (constrained least
// squares, one constraint after another). Terms that the step lacks stay.
static void keep_positive(Calibration* calibration, const double w[CALIBRATION_TERMS]) {
    double* theta = calibration->theta;
    for (int k = 0; k < CALIBRATION_TERMS; k++) {
        if (theta[k] >= LEAST_SCALE || calibration->P[k][k] <= 0) continue;
        double shift = (LEAST_SCALE - theta[k]) / calibration->P[k][k];
        for (int j = 0; j < CALIBRATION_TERMS; j++)
            if (w[j] > 0) theta[j] += shift * calibration->P[j][k];
    }
    for (int k = 0; k < CALIBRATION_TERMS; k++) theta[k] = MAX(theta[k], LEAST_SCALE);
}

// Does one step of least squares: features w, which sum to 1, took `ratio`. A term that the step lacks keeps its scale
// and its variance. Its covariances with the others are updated with them, so that P stays a covariance.
static void learn(Calibration* calibration, const double w[CALIBRATION_TERMS], double ratio) {
    double h[CALIBRATION_TERMS], r = 0, error = ratio;
    for (int i = 0; i < CALIBRATION_TERMS; i++) {
        h[i] = 0;
        for (int j = 0; j < CALIBRATION_TERMS; j++) h[i] += calibration->P[i][j] * w[j];
        r += w[i] * h[i];
        error -= w[i] * calibration->theta[i];
    }
    if (!(r > 0)) return;
    double change = (1 / (LAMBDA * (1 + r)) - 1) / r;
    for (int i = 0; i < CALIBRATION_TERMS; i++) {
        if (w[i] > 0) calibration->theta[i] += h[i] / (1 + r) * error;
        for (int j = 0; j < CALIBRATION_TERMS; j++)
            if (w[i] > 0 || w[j] > 0) calibration->P[i][j] += change * (h[i] * h[j]);
    }
    keep_positive(calibration, w);
}

int calibration_learn(Calibration* calibration, const double terms[CALIBRATION_TERMS], double measured) {
    double w[CALIBRATION_TERMS], sum = 0, predicted = calibration_predict(calibration, terms),
                                 usual = calibration_median_error(calibration);
    for (int i = 0; i < CALIBRATION_TERMS; i++) sum += terms[i];
    if (!(sum > 0 && measured > 0) || !isfinite(sum) || !isfinite(measured)) return 0;
    for (int i = 0; i < CALIBRATION_TERMS; i++) w[i] = terms[i] / sum;
    double off = MAX(predicted / measured, measured / predicted) - 1;
    int is_outlier = calibration->n > 0 && off > MIN(MAX(OUTLIER * usual, LEAST_OUTLIER), SURE_OUTLIER);
    calibration->errors[calibration->n++ % CALIBRATION_MEMORY] = fabs(predicted / measured - 1);
    if (is_outlier && calibration->in_a_row + 1 < SEVERAL) {
        calibration->in_a_row++;
        calibration->outliers++;
        return 0;
    }
    if (is_outlier) widen(calibration);
    calibration->in_a_row = 0;
    learn(calibration, w, measured / sum);
    return 1;
}

void calibration_apply(Cost* calibrated, const Cost* probed, const Calibration* calibration) {
    const double* theta = calibration->theta;
    *calibrated = *probed;
    calibrated->quadratic *= theta[0];
    calibrated->per_token *= theta[1];
    calibrated->link_scale *= theta[2];
    calibrated->micro_batch *= theta[3], calibrated->round *= theta[3];
    calibrated->step *= theta[4];
}
