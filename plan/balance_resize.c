// balance_resize.c - how much of its matmuls a straggler leaves out, and in which layers.
//
// gamma is Wang et al.'s pruning ratio (2024); how it is found here is ours: from un-pruned times, so that a rank that
// meets the target because it is resized stays resized.
//
// Ratios, ours: the least sum_l w_l g_l^2 with sum_l m_l g_l = delta has g_l = delta (m_l / w_l) /
// sum_i m_i^2 / w_i. A layer above `most` is fixed there; the others then have to save more, so it stays fixed.
#include "plan/balance.h"

double balance_gamma(double m, double c, double target, double most) {
    double over = m + c - target;
    if (!(over > 0 && m > 0)) return 0;
    return MIN(over / m, most);
}

// The weight that a layer counts with: one without any would save everything alone, and divide by zero.
static double loss_weight(double w, double heaviest) { return heaviest > 0 ? MAX(w, 1e-9 * heaviest) : 1; }

double balance_ratios(double* g, const double* m, const double* w, int n, double delta, double most) {
    double heaviest = 0, saved = 0;
    for (int l = 0; l < n; l++) g[l] = 0, heaviest = MAX(heaviest, w[l]);
    if (!(delta > 0 && most > 0)) return 0;
    double left = delta, scale;
    int fixed;
    do {
        double sum = 0;
        for (int l = 0; l < n; l++)
            if (g[l] < most) sum += m[l] * m[l] / loss_weight(w[l], heaviest);
        scale = sum > 0 ? left / sum : 0;
        fixed = 0;
        for (int l = 0; l < n; l++)
            if (g[l] < most && scale * m[l] / loss_weight(w[l], heaviest) > most)
                g[l] = most, left -= most * m[l], fixed = 1;
    } while (fixed);
    for (int l = 0; l < n; l++) {
        if (g[l] < most) g[l] = scale * m[l] / loss_weight(w[l], heaviest);
        saved += g[l] * m[l];
    }
    return saved;
}
