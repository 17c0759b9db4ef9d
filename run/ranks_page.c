// ranks_page.c - what every rank did over a run. Steps are kept in columns of equally many; when there is no room for
// another column, every two neighbours become one that holds the mean of both, weighted by how many values are known:
// m = (n1 m1 + n2 m2) / (n1 + n2). The numbers stand in the page as JSON; ranks_page_text.c has the page around them,
// which draws.
#define _POSIX_C_SOURCE 200809L
#include "run/ranks_page.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "data/disk.h"
#include "plan/page_parts.h"
#include "run/ranks_page_text.h"

// Of values that are finite.
typedef struct Sum {
    double sum;
    int64_t n;
} Sum;

typedef struct Mean {
    float mean;  // unknown when n is 0
    uint32_t n;
} Mean;

struct History {
    int ranks, n;  // n: full columns
    int64_t span;  // steps of a full column
    int64_t open;  // steps of the last column, which is filled now; 0: there is none
    int64_t steps;
    int64_t first[MOST_COLUMNS], last[MOST_COLUMNS];  // steps of a column
    Mean* columns;                                    // (MOST_COLUMNS, ranks, RANK_FIELDS), full ones
    Sum *filling, *total;                             // (ranks, RANK_FIELDS) of the last column; of all steps
};

static size_t values(const History* h) { return (size_t)h->ranks * RANK_FIELDS; }

History* history_open(int ranks) {
    History* h = (History*)calloc(1, sizeof *h);
    if (!h) return NULL;
    h->ranks = ranks;
    h->span = 1;
    h->columns = (Mean*)calloc(MOST_COLUMNS * values(h), sizeof *h->columns);
    h->filling = (Sum*)calloc(values(h), sizeof *h->filling);
    h->total = (Sum*)calloc(values(h), sizeof *h->total);
    if (h->columns && h->filling && h->total) return h;
    history_close(h);
    return NULL;
}

void history_close(History* h) {
    if (!h) return;
    free(h->columns);
    free(h->filling);
    free(h->total);
    free(h);
}

// ---- columns

static double mean_of(const Sum* s) { return s->n ? s->sum / (double)s->n : NAN; }

static Mean merged(Mean a, Mean b) {
    Mean both = {0, a.n + b.n};
    if (both.n) both.mean = (float)(((double)a.mean * a.n + (double)b.mean * b.n) / both.n);
    return both;
}

static void halve(History* h) {
    h->n /= 2;
    h->span *= 2;
    for (int c = 0; c < h->n; c++) {
        const Mean *a = h->columns + 2 * (size_t)c * values(h), *b = a + values(h);
        Mean* to = h->columns + (size_t)c * values(h);
        h->first[c] = h->first[2 * c];
        h->last[c] = h->last[2 * c + 1];
        for (size_t i = 0; i < values(h); i++) to[i] = merged(a[i], b[i]);
    }
}

static void add(Sum* s, double x) {
    if (!isfinite(x)) return;
    s->sum += x;
    s->n++;
}

static void close_column(History* h) {
    Mean* to = h->columns + (size_t)h->n * values(h);
    for (size_t i = 0; i < values(h); i++) {
        const Sum* s = &h->filling[i];
        to[i] = (Mean){s->n ? (float)mean_of(s) : 0, (uint32_t)s->n};
    }
    memset(h->filling, 0, values(h) * sizeof *h->filling);
    h->open = 0;
    h->n++;
}

void history_add(History* h, int64_t step, const RankStep* ranks) {
    if (h->n == MOST_COLUMNS) halve(h);
    if (h->open == 0) h->first[h->n] = step;
    h->last[h->n] = step;
    h->open++;
    h->steps++;
    for (int r = 0; r < h->ranks; r++)
        for (int f = 0; f < RANK_FIELDS; f++) {
            size_t i = (size_t)r * RANK_FIELDS + (size_t)f;
            add(&h->filling[i], rank_field(&ranks[r], f));
            add(&h->total[i], rank_field(&ranks[r], f));
        }
    if (h->open == h->span) close_column(h);
}

// ---- the page

static void put_number(FILE* out, double x) {
    char text[32];
    fputs(runlog_number(x, 4, text), out);
}

// {"rank": 3, "compute_ms": [of each column], ..., "mean": {"compute_ms": of all steps, ...}}
static void put_rank(FILE* out, const History* h, int rank) {
    fprintf(out, "{\"rank\":%d", rank);
    for (int f = 0; f < RANK_FIELDS; f++) {
        size_t i = (size_t)rank * RANK_FIELDS + (size_t)f;
        fprintf(out, ",\"%s\":[", rank_field_names[f]);
        for (int c = 0; c < h->n; c++) {
            const Mean* m = &h->columns[(size_t)c * values(h) + i];
            if (c) fputc(',', out);
            put_number(out, m->n ? m->mean : NAN);
        }
        if (h->open) {
            if (h->n) fputc(',', out);
            put_number(out, mean_of(&h->filling[i]));
        }
        fputc(']', out);
    }
    fputs(",\"mean\":{", out);
    for (int f = 0; f < RANK_FIELDS; f++) {
        fprintf(out, "%s\"%s\":", f ? "," : "", rank_field_names[f]);
        put_number(out, mean_of(&h->total[(size_t)rank * RANK_FIELDS + (size_t)f]));
    }
    fputs("}}", out);
}

static void put_history(FILE* out, const History* h, const char* title) {
    fputs("{\"title\":", out);
    page_string(out, title);
    fprintf(out, ",\"steps\":%" PRId64 ",\"columns\":[", h->steps);
    for (int c = 0; c < h->n + (h->open > 0); c++)
        fprintf(out, "%s[%" PRId64 ",%" PRId64 "]", c ? "," : "", h->first[c], h->last[c]);
    fputs("],\n\"ranks\":[\n", out);
    for (int r = 0; r < h->ranks; r++) {
        if (r) fputs(",\n", out);
        put_rank(out, h, r);
    }
    fputs("]}\n", out);
}

int history_write(const History* h, const char* path, const char* title, char* err, size_t errlen) {
    char* text = NULL;
    size_t n = 0;
    FILE* out = open_memstream(&text, &n);
    if (!out) return fail(err, errlen, "%s: no memory for this page: %s", path, strerror(errno));
    fputs(page_begin, out);
    fputs(ranks_page_head, out);
    fputs(page_numbers, out);
    put_history(out, h, title);
    fputs(page_functions, out);
    fputs(ranks_page_foot, out);
    fputs(page_end, out);
    int torn = ferror(out), failed = fclose(out) || torn;
    failed = failed ? fail(err, errlen, "%s: no memory for this page", path) : disk_replace(path, text, n, err, errlen);
    free(text);
    return failed;
}
