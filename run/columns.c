// columns.c - see columns.h. Merging two columns weighs them by how many values are known: m = (n1 m1 + n2 m2) / (n1 +
// n2).
#include "run/columns.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Of values that are finite.
typedef struct Sum {
    double sum;
    int64_t n;
} Sum;

typedef struct Mean {
    float mean;  // unknown when n is 0
    uint32_t n;
} Mean;

struct Columns {
    int width, most, n;     // n: full columns
    int64_t span;           // steps of a full column
    int64_t open;           // steps of the last column, which is filled now; 0: there is none
    int64_t *first, *last;  // (most) steps of a column
    Mean* full;             // (most, width)
    Sum *filling, *total;   // (width) of the last column; of all steps
};

Columns* columns_open(int width, int most) {
    Columns* c = (Columns*)calloc(1, sizeof *c);
    if (!c) return NULL;
    c->width = width;
    c->most = most;
    c->span = 1;
    c->first = (int64_t*)calloc((size_t)most, sizeof *c->first);
    c->last = (int64_t*)calloc((size_t)most, sizeof *c->last);
    c->full = (Mean*)calloc((size_t)most * (size_t)width, sizeof *c->full);
    c->filling = (Sum*)calloc((size_t)width, sizeof *c->filling);
    c->total = (Sum*)calloc((size_t)width, sizeof *c->total);
    if (c->first && c->last && c->full && c->filling && c->total) return c;
    columns_close(c);
    return NULL;
}

void columns_close(Columns* c) {
    if (!c) return;
    free(c->first);
    free(c->last);
    free(c->full);
    free(c->filling);
    free(c->total);
    free(c);
}

static double mean_of(const Sum* s) { return s->n ? s->sum / (double)s->n : NAN; }

static Mean merged(Mean a, Mean b) {
    Mean both = {0, a.n + b.n};
    if (both.n) both.mean = (float)(((double)a.mean * a.n + (double)b.mean * b.n) / both.n);
    return both;
}

static void halve(Columns* c) {
    size_t width = (size_t)c->width;
    c->n /= 2;
    c->span *= 2;
    for (int i = 0; i < c->n; i++) {
        const Mean *a = c->full + 2 * (size_t)i * width, *b = a + width;
        Mean* to = c->full + (size_t)i * width;
        c->first[i] = c->first[2 * i];
        c->last[i] = c->last[2 * i + 1];
        for (size_t k = 0; k < width; k++) to[k] = merged(a[k], b[k]);
    }
}

static void add(Sum* s, double x) {
    if (!isfinite(x)) return;
    s->sum += x;
    s->n++;
}

static void close_column(Columns* c) {
    Mean* to = c->full + (size_t)c->n * (size_t)c->width;
    for (int i = 0; i < c->width; i++) {
        const Sum* s = &c->filling[i];
        to[i] = (Mean){s->n ? (float)mean_of(s) : 0, (uint32_t)s->n};
    }
    memset(c->filling, 0, (size_t)c->width * sizeof *c->filling);
    c->open = 0;
    c->n++;
}

void columns_add(Columns* c, int64_t step, const float* values) {
    if (c->n == c->most) halve(c);
    if (c->open == 0) c->first[c->n] = step;
    c->last[c->n] = step;
    c->open++;
    for (int i = 0; i < c->width; i++) {
        add(&c->filling[i], values[i]);
        add(&c->total[i], values[i]);
    }
    if (c->open == c->span) close_column(c);
}

int columns_count(const Columns* c) { return c->n + (c->open > 0); }
int64_t columns_first(const Columns* c, int column) { return c->first[column]; }
int64_t columns_last(const Columns* c, int column) { return c->last[column]; }
double columns_total_mean(const Columns* c, int i) { return mean_of(&c->total[i]); }

double columns_mean(const Columns* c, int column, int i) {
    if (column == c->n) return mean_of(&c->filling[i]);
    const Mean* m = &c->full[(size_t)column * (size_t)c->width + (size_t)i];
    return m->n ? m->mean : NAN;
}
