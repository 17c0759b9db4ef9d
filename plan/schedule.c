// schedule.c - warm-up and decay; see schedule.h.
#include "plan/schedule.h"

#include <math.h>

// How much of the way from lr down to min_lr * lr has been gone: 0 .. 1.
static double descent(const Config* config, int64_t t) {
    double after = (double)MAX(config->steps - config->warmup, (int64_t)1);
    double x = (double)(t - config->warmup) / after;
    x = x < 0 ? 0 : x > 1 ? 1 : x;
    if (!strcmp(config->schedule, "linear")) return x;
    if (!strcmp(config->schedule, "cosine")) return 0.5 * (1 - cos(3.141592653589793 * x));
    if (!strcmp(config->schedule, "wsd")) {
        double fall = 0.2 * (double)config->steps, y = ((double)t - ((double)config->steps - fall)) / MAX(fall, 1);
        return y <= 0 ? 0 : sqrt(MIN(y, 1));
    }
    return 0;
}

double schedule_lr(const Config* config, int64_t t) {
    if (t < config->warmup) return config->lr * (double)t / config->warmup;
    return config->lr * (1 - (1 - config->min_lr) * descent(config, t));
}
