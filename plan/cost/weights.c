// weights.c - see weights.h.
#include "plan/cost/weights.h"

double weights_all_ms(const double ms[N_WEIGHTS], int layers) {
    return ms[WEIGHTS_FIRST] + layers * ms[WEIGHTS_LAYER] + ms[WEIGHTS_LAST];
}

// Layers are alike, so the first or last layer waits longest, or what follows the last.
double weights_late_ms(const WeightTimes* w, const PassParts* pass, double start) {
    const double* g = w->gather;
    if (w->layers == 0 || !w->hides) return 0;
    double all = weights_all_ms(g, w->layers), f = pass->forward / w->layers, through = start + pass->forward;
    if (start >= all) return 0;
    double arrive = MAX(g[WEIGHTS_FIRST] + g[WEIGHTS_LAYER] + pass->forward, all - g[WEIGHTS_LAST] + f);
    double late = MAX(MAX(arrive, all) - through, 0);
    double exchange = start + (w->before * pass->linear + pass->slack[0]) / w->layers;
    return pass->meets ? MAX(late, all - exchange) : late;
}

// ---- all ranks, layer by layer

typedef struct WeightPlay {
    const WeightTimes* w;
    WeightRank* ranks;
    int n;
    double free;  // when the link is free
} WeightPlay;

// All ranks post a bucket.
static void post(WeightPlay* x, double ms) {
    double last = x->free;
    for (int r = 0; r < x->n; r++) last = MAX(last, x->ranks[r].at);
    x->free = last + ms;
    for (int r = 0; r < x->n && !x->w->hides; r++) x->ranks[r].at = x->free;
}

static void wait_for(WeightPlay* x, double arrived) {
    for (int r = 0; r < x->n; r++) x->ranks[r].at = MAX(x->ranks[r].at, arrived);
}

// A rank that meets posts exchanges after what was posted before, after a part of a layer's matmuls.
static void compute(WeightPlay* x, int is_backward, int inside_alone) {
    double L = x->w->layers, before = is_backward ? 2 * (1 - x->w->before) : x->w->before;
    for (WeightRank* r = x->ranks; r < x->ranks + x->n; r++) {
        double begun = r->at;
        if (inside_alone && !r->inside) continue;
        r->at += (is_backward ? r->pass.backward : r->pass.forward) / L;
        if (r->pass.meets)
            r->at += MAX(0, x->free - begun - (before * r->pass.linear + r->pass.slack[is_backward]) / L);
    }
}

// Zero 3: except in the first round the weights of layers 0 and 1 are in place.
static void forward(WeightPlay* x, int first) {
    const WeightTimes* w = x->w;
    double g = w->gather[WEIGHTS_LAYER], arrived = 0;
    if (first) post(x, w->gather[WEIGHTS_FIRST] + w->gather[WEIGHTS_LAST] + g), arrived = x->free;
    for (int l = 0; l < w->layers; l++) {
        wait_for(x, arrived);
        if (l + 1 < w->layers && (first || l > 0)) post(x, g), arrived = x->free;
        compute(x, 0, 0);
    }
}

// A layer's gradients take one of two places by turns.
static void backward(WeightPlay* x) {
    const WeightTimes* w = x->w;
    double arrived = 0, left[2] = {0, 0};
    for (int l = w->layers - 1; l >= 0; l--) {
        wait_for(x, arrived);
        if (w->zero == 3 && l > 0 && l < w->layers - 1) post(x, w->gather[WEIGHTS_LAYER]), arrived = x->free;
        wait_for(x, left[l & 1]);
        compute(x, 1, 0);
        post(x, w->reduce[WEIGHTS_LAYER]), left[l & 1] = x->free;
    }
}

double weights_play_round(const WeightTimes* w, WeightRank* ranks, int n, int first, int last) {
    WeightPlay x = {w, ranks, n, 0};
    const double* r = w->reduce;
    if (w->zero == 3) forward(&x, first);
    else
        for (int i = 0; i < n; i++) ranks[i].at += ranks[i].pass.forward;
    for (int i = 0; i < n; i++) ranks[i].at += ranks[i].pass.head;
    if (last && w->inside) post(&x, r[WEIGHTS_LAST]);
    backward(&x);
    for (int i = 0; i < n; i++) ranks[i].at += ranks[i].pass.fixed;
    wait_for(&x, x.free);
    if (last) post(&x, r[WEIGHTS_FIRST] + (w->inside ? 0 : r[WEIGHTS_LAST]));
    double end = x.free;
    for (int i = 0; i < n; i++) end = MAX(end, ranks[i].at);
    return end;
}

double weights_play_end(const WeightTimes* w, WeightRank* ranks, int n) {
    WeightPlay x = {w, ranks, n, 0};
    const double* r = w->reduce;
    double update = w->update, end = 0;
    if (w->layers && !w->hides && w->zero < 3) update += weights_all_ms(w->gather, w->layers);
    for (int i = 0; i < n; i++) end = MAX(end, ranks[i].at);
    if (w->layers == 0 || w->zero > 1) return end + update;
    if (!w->inside) return end + weights_all_ms(r, w->layers) + update;
    for (int i = 0; i < n; i++)
        if (ranks[i].inside) ranks[i].at -= ranks[i].pass.fixed + ranks[i].pass.backward;
    post(&x, r[WEIGHTS_LAST]);
    for (int l = w->layers - 1; l >= 0; l--) compute(&x, 1, 1), post(&x, r[WEIGHTS_LAYER]);
    for (int i = 0; i < n; i++)
        if (ranks[i].inside) ranks[i].at += ranks[i].pass.fixed;
    post(&x, r[WEIGHTS_FIRST]);
    return x.free + update;
}

void weights_stretch(const WeightTimes* w, double* forward_ms, double* backward_ms) {
    WeightRank rank = {{.forward = *forward_ms, .backward = *backward_ms, .linear = *forward_ms}, 0, 0};
    WeightPlay x = {w, &rank, 1, 0};
    if (w->layers == 0 || w->zero < 2) return;
    if (w->zero == 3) forward(&x, 0), *forward_ms = rank.at;
    rank.at = x.free = 0;
    backward(&x), wait_for(&x, x.free);
    *backward_ms = rank.at;
}

double weights_bound_ms(const WeightTimes* w, double plan, double rounds, double fixed) {
    const double *g = w->gather, *r = w->reduce;
    int L = w->layers, gathered = MAX(L - 2, 0), divided = w->zero == 3;
    if (L == 0) return plan + w->update;
    double gathers =
        divided ? g[WEIGHTS_FIRST] + g[WEIGHTS_LAST] + (L + gathered + (rounds - 1) * 2 * gathered) * g[WEIGHTS_LAYER]
                : weights_all_ms(g, L);
    double reduces = (w->zero > 1 ? rounds : 1) * L * r[WEIGHTS_LAYER] + r[WEIGHTS_FIRST] + r[WEIGHTS_LAST];
    if (!w->hides) return plan + gathers + reduces + w->update;
    double begin = g[WEIGHTS_FIRST] + g[WEIGHTS_LAYER] + (divided ? g[WEIGHTS_LAST] : 0);
    double behind_round = MAX(r[WEIGHTS_LAYER] - fixed, 0), end = r[WEIGHTS_FIRST];
    end += w->zero == 1 ? behind_round : rounds * behind_round;
    return MAX(plan + begin + end, gathers + reduces) + w->update;
}
