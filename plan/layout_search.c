// layout_search.c - see layout_search.h.
#include "plan/layout_search.h"

#include <math.h>

// The best way to give l layers to the stages up to one of them.
typedef struct Best {
    double worst;     // ms of the longest stage; where bytes are searched for, bytes of the fullest
    int layers;       // of the last of them,
    LayerLayout row;  // which are alike
} Best;

typedef struct Search {
    const LayoutProblem* p;
    Best* best;  // (stages, L + 1)
    int L;
} Search;

static Best* best_of(const Search* x, int s, int l) { return &x->best[s * (x->L + 1) + l]; }

// The least ms of the stage under the limit, or with `by_bytes` its least bytes; infinite where nothing fits.
static double best_strategy(const Search* x, Layout* layout, int s, int n, int by_bytes) {
    double least = INFINITY;
    LayerLayout found = {layout->tp, 1, RECOMPUTE_NONE};
    for (int zero = 1; zero <= 3; zero++)
        for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_BLOCK; r++) {
            LayerLayout row = {layout->tp, zero, (Recompute)r};
            layout_set_stage(layout, s, n, row);
            double bytes = x->p->bytes(x->p->context, layout, s);
            double value = by_bytes ? bytes : bytes > x->p->memory ? INFINITY : x->p->ms(x->p->context, layout, s);
            if (value < least) least = value, found = row;
        }
    layout_set_stage(layout, s, n, found);
    return least;
}

// Stage s begins at `first`: where the stages before it lie does not matter.
static void set_first(Layout* layout, int s, int first) {
    for (int i = 0; i < s; i++) layout->stage[i].layers = i == 0 ? first - (s - 1) : 1;
}

static void fill_stage(const Search* x, Layout* layout, int s, int by_bytes) {
    int behind = layout->stages - 1 - s;
    for (int l = s + 1; l <= x->L - behind; l++) {
        Best* best = best_of(x, s, l);
        best->worst = INFINITY;
        if (behind == 0 && l < x->L) continue;
        for (int n = 1; n <= l - s; n++) {
            double before = s ? best_of(x, s - 1, l - n)->worst : l == n ? 0 : INFINITY;
            if (before >= best->worst) continue;
            set_first(layout, s, l - n);
            double worst = fmax(before, best_strategy(x, layout, s, n, by_bytes));
            if (worst < best->worst) *best = (Best){worst, n, layout->layer[l - n]};
        }
    }
}

// The best layout with these stages and tp; the worst of its stages.
static double search_one(Layout* layout, const Search* x, int by_bytes) {
    int P = layout->stages;
    for (int s = 0; s < P; s++) fill_stage(x, layout, s, by_bytes);
    double worst = best_of(x, P - 1, x->L)->worst;
    const Best* last[MOST_STAGES];
    for (int s = P - 1, l = x->L; s >= 0 && worst < INFINITY; s--) l -= (last[s] = best_of(x, s, l))->layers;
    for (int s = 0; s < P && worst < INFINITY; s++) layout_set_stage(layout, s, last[s]->layers, last[s]->row);
    return worst;
}

static LayoutTry try_one(const Search* x, int tp, int stages) {
    LayoutTry t = {.layout = {.tp = tp, .stages = stages}, .fits = 1};
    double v = x->p->rounds(x->p->context, &t.layout), longest = search_one(&t.layout, x, 0);
    t.ms = longest * (v + stages - 1) / v;
    t.fits = longest < INFINITY;
    if (!t.fits) search_one(&t.layout, x, 1);
    for (int s = 0; s < stages; s++) t.bytes = fmax(t.bytes, x->p->bytes(x->p->context, &t.layout, s));
    return t;
}

static int is_better(const LayoutTry* a, const LayoutTry* b) {
    if (a->fits != b->fits) return a->fits;
    return a->fits ? a->ms < b->ms : a->bytes < b->bytes;
}

int layout_search(LayoutTry tries[LAYOUT_TRIES], const LayoutProblem* problem, Arena* arena, char* err, size_t errlen) {
    int n = 0, L = problem->whole->L;
    Search x = {problem, TAKE(arena, Best, (size_t)MOST_STAGES * ((size_t)L + 1)), L};
    if (arena_check(arena, err, errlen)) return -1;
    for (int tp = 1; tp <= problem->most_tp; tp++)
        for (int stages = 1; stages <= L && stages <= MOST_STAGES && n < LAYOUT_TRIES; stages++) {
            if (problem->ranks % (tp * stages)) continue;
            LayoutTry t = try_one(&x, tp, stages);
            int at = n++;
            for (; at > 0 && is_better(&t, &tries[at - 1]); at--) tries[at] = tries[at - 1];
            tries[at] = t;
        }
    return n;
}
