// goodput.c - see goodput.h.
#include "plan/search/goodput.h"

#include <math.h>

static double between_deaths(int ranks, double mtbf_hours) { return 3600 * mtbf_hours / ranks; }

double goodput_share(int ranks, double mtbf_hours, double step, double save, double restart, double every) {
    double M = between_deaths(ranks, mtbf_hours), t = every * step;
    return t / (M * exp(restart / M) * expm1((t + save) / M));
}

// Bisects for the root of (1 - t / M) exp((t + C) / M) = 1 between 0 and M, where the left side falls.
static double best_seconds(double M, double save) {
    double low = 0, high = M;
    for (int i = 0; i < 100; i++) {
        double t = (low + high) / 2;
        if ((1 - t / M) * exp((t + save) / M) > 1) low = t;
        else high = t;
    }
    return low;
}

Goodput goodput_best(int ranks, double mtbf_hours, double step, double save, double restart) {
    double M = between_deaths(ranks, mtbf_hours), K = fmax(1, floor(best_seconds(M, save) / step));
    double less = goodput_share(ranks, mtbf_hours, step, save, restart, K),
           more = goodput_share(ranks, mtbf_hours, step, save, restart, K + 1);
    return (Goodput){3600 / M, more > less ? K + 1 : K, fmax(less, more)};
}
