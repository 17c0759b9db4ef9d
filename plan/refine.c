// refine.c - recursive least squares that forgets only what it hears again; see refine.h.
//
// Dividing all of P by lambda would widen it without end in directions that steps never tell apart, until noise moved
// them. So only the direction of the step itself forgets (Kulhavy 1987, "Restricted exponential forgetting in
// real-time identification"): with h = P w and r = w' h, P changes by a multiple of h h' such that
//   w' P w  becomes  r / (lambda (1 + r)),
// which is what the formula of the header gives along w. r settles at (1 - lambda) / lambda.
#include "plan/refine.h"

#include <math.h>

static const double LAMBDA = 0.95;  // along one direction a step counts half after 14 others
// Variances before the first step, in units of a step's own noise, which is some 5 %: all scales may be off together by
// a factor of about 3, and each by about a half on top.
static const double TOGETHER = 1600, ALONE = 100;
static const double LEAST_SCALE = 0.01;  // a term that seems to cost nothing, or less
// An outlier is off by so many usual errors, but never one that is off by less than a tenth, always one by more than a
// factor of 3.
static const double OUTLIER = 5, LEAST_OUTLIER = 0.1, SURE_OUTLIER = 2;
enum { SEVERAL = 3 };  // so many outliers in a row: the machine has changed

static void widen(Refine* refine) {
    for (int i = 0; i < REFINE_TERMS; i++)
        for (int j = 0; j < REFINE_TERMS; j++)
            refine->P[i][j] = refine->theta[i] * refine->theta[j] * (TOGETHER + (i == j ? ALONE : 0));
}

void refine_start(Refine* refine) {
    memset(refine, 0, sizeof *refine);
    for (int i = 0; i < REFINE_TERMS; i++) refine->theta[i] = 1;
    widen(refine);
}

double refine_predict(const Refine* refine, const double terms[REFINE_TERMS]) {
    double sum = 0;
    for (int i = 0; i < REFINE_TERMS; i++) sum += refine->theta[i] * terms[i];
    return sum;
}

double refine_median_error(const Refine* refine) {
    double sorted[REFINE_MEMORY];
    int n = MIN(refine->n, REFINE_MEMORY);
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] > refine->errors[i]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = refine->errors[i];
    }
    return n == 0 ? 0 : (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

// Scales below the least are put there; the others make up for it as far as P says that they can (the constrained least
// squares, one constraint after another). Terms that the step does not have stay.
static void keep_positive(Refine* refine, const double w[REFINE_TERMS]) {
    double* theta = refine->theta;
    for (int k = 0; k < REFINE_TERMS; k++) {
        if (theta[k] >= LEAST_SCALE || refine->P[k][k] <= 0) continue;
        double shift = (LEAST_SCALE - theta[k]) / refine->P[k][k];
        for (int j = 0; j < REFINE_TERMS; j++)
            if (w[j] > 0) theta[j] += shift * refine->P[j][k];
    }
    for (int k = 0; k < REFINE_TERMS; k++) theta[k] = MAX(theta[k], LEAST_SCALE);
}

// One step of least squares: features w, which sum to 1, took `ratio`. A term that the step does not have keeps its
// scale and its variance; what ties it to the others is updated with them, so that P stays a covariance.
static void learn(Refine* refine, const double w[REFINE_TERMS], double ratio) {
    double h[REFINE_TERMS], r = 0, error = ratio;
    for (int i = 0; i < REFINE_TERMS; i++) {
        h[i] = 0;
        for (int j = 0; j < REFINE_TERMS; j++) h[i] += refine->P[i][j] * w[j];
        r += w[i] * h[i];
        error -= w[i] * refine->theta[i];
    }
    if (!(r > 0)) return;
    double change = (1 / (LAMBDA * (1 + r)) - 1) / r;
    for (int i = 0; i < REFINE_TERMS; i++) {
        if (w[i] > 0) refine->theta[i] += h[i] / (1 + r) * error;
        for (int j = 0; j < REFINE_TERMS; j++)
            if (w[i] > 0 || w[j] > 0) refine->P[i][j] += change * (h[i] * h[j]);
    }
    keep_positive(refine, w);
}

int refine_learn(Refine* refine, const double terms[REFINE_TERMS], double measured) {
    double w[REFINE_TERMS], sum = 0, predicted = refine_predict(refine, terms), usual = refine_median_error(refine);
    for (int i = 0; i < REFINE_TERMS; i++) sum += terms[i];
    if (!(sum > 0 && measured > 0) || !isfinite(sum) || !isfinite(measured)) return 0;
    for (int i = 0; i < REFINE_TERMS; i++) w[i] = terms[i] / sum;
    double off = MAX(predicted / measured, measured / predicted) - 1;
    int is_outlier = refine->n > 0 && off > MIN(MAX(OUTLIER * usual, LEAST_OUTLIER), SURE_OUTLIER);
    refine->errors[refine->n++ % REFINE_MEMORY] = fabs(predicted / measured - 1);
    if (is_outlier && refine->in_a_row + 1 < SEVERAL) {
        refine->in_a_row++;
        refine->outliers++;
        return 0;
    }
    if (is_outlier) widen(refine);
    refine->in_a_row = 0;
    learn(refine, w, measured / sum);
    return 1;
}

void refine_apply(Cost* refined, const Cost* probed, const Refine* refine) {
    const double* theta = refine->theta;
    *refined = *probed;
    refined->quadratic *= theta[0];
    refined->linear *= theta[1];
    refined->link_scale *= theta[2];
    refined->item *= theta[3];
    refined->step *= theta[4];
}
