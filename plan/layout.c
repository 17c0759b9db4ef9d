// layout.c - see layout.h.
#include "plan/layout.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const char* const recompute_names[] = {"none", "activation", "block"};

// ---- shares of work

// Matmul weights of layers [first, end) of the whole model, with those of the classifier behind the last one.
static double work_of(const Shape* whole, int first, int end) {
    double head = (double)whole->V * whole->C, layers = shape_matmul_weights(whole) - head;
    return layers / whole->L * (end - first) + (end == whole->L ? head : 0);
}

// Fills stages from the front with as much as `most` allows, at least a layer each, and leaves one for each behind.
// Returns the most that one of them has.
static double fill(Layout* layout, const Shape* whole, double most) {
    double worst = 0;
    int at = 0, stages = layout->stages;
    for (int s = 0; s < stages; s++) {
        int end = s == stages - 1 ? whole->L : at + 1, last = whole->L - (stages - 1 - s);
        while (end < last && work_of(whole, at, end + 1) <= most) end++;
        worst = fmax(worst, work_of(whole, at, end));
        layout->stage[s].layers = end - at;
        at = end;
    }
    return worst;
}

// The most that a stage has is the work of n layers, or of n - 1 and the classifier.
Layout layout_even(const Shape* whole, int tp, int stages, int zero, Recompute recompute) {
    Layout best = {.tp = tp, .stages = stages};
    double least = INFINITY;
    for (int s = 0; s < stages; s++) best.stage[s] = (StageLayout){0, zero, recompute};
    Layout trial = best;
    for (int n = 1; n <= whole->L; n++)
        for (int with_head = 0; with_head < 2; with_head++) {
            double most = with_head ? work_of(whole, whole->L - n, whole->L) : work_of(whole, -1, n - 1);
            double worst = fill(&trial, whole, most);
            if (worst < least) least = worst, best = trial;
        }
    return best;
}

int layout_first(const Layout* layout, int s) {
    int first = 0;
    for (int i = 0; i < s; i++) first += layout->stage[i].layers;
    return first;
}

double layout_work(const Layout* layout, const Shape* whole, int s) {
    return work_of(whole, layout_first(layout, s), layout_first(layout, s + 1)) / work_of(whole, 0, whole->L);
}

void layout_shares(const Layout* layout, const Shape* whole, double* matmuls, double* layers) {
    for (int s = 0; s < layout->stages; s++) {
        matmuls[s] = layout_work(layout, whole, s);
        layers[s] = (double)layout->stage[s].layers / whole->L;
    }
}

// ---- text

// The words of a line, cut from it in place.
typedef struct Words {
    char line[256];
    const char* word[16];
    int n;
} Words;

static int is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// Lines without words have none; 0, or -1 for one with too many, or with too long ones.
static int split_line(Words* w, const char* text, size_t n) {
    w->n = 0;
    const char* comment = (const char*)memchr(text, '#', n);
    if (comment) n = (size_t)(comment - text);
    if (n >= sizeof w->line || memchr(text, 0, n)) return -1;
    memcpy(w->line, text, n);
    w->line[n] = 0;
    for (char* c = w->line; *c;) {
        while (is_blank(*c)) *c++ = 0;
        if (!*c) break;
        if (w->n == COUNT(w->word)) return -1;
        w->word[w->n++] = c;
        while (*c && !is_blank(*c)) c++;
    }
    return 0;
}

// A number of [least, most].
static int read_number(int* value, const char* word, int least, int most) {
    char* end;
    long found = strtol(word, &end, 10);
    if (end == word || *end || found < least || found > most) return -1;
    *value = (int)found;
    return 0;
}

static int read_pair(StageLayout* stage, const char* key, const char* value) {
    if (!strcmp(key, "layers")) return read_number(&stage->layers, value, 1, 1 << 20);
    if (!strcmp(key, "zero")) return read_number(&stage->zero, value, 1, 3);
    if (strcmp(key, "recompute") != 0) return -1;
    for (int i = 0; i < COUNT(recompute_names); i++)
        if (!strcmp(value, recompute_names[i])) {
            stage->recompute = (Recompute)i;
            return 0;
        }
    return -1;
}

static int read_stage(Layout* layout, const Layout* otherwise, const Words* w, char* err, size_t errlen) {
    StageLayout stage = otherwise->stage[0];
    stage.layers = 0;
    if (layout->stages == MOST_STAGES) return fail(err, errlen, "expected at most %d stages", MOST_STAGES);
    for (int i = 1; i < w->n; i += 2)
        if (i + 1 == w->n || read_pair(&stage, w->word[i], w->word[i + 1]))
            return fail(
                err, errlen,
                "expected \"layers N\", \"zero 1|2|3\" or \"recompute none|activation|block\", found \"%s%s%s\"",
                w->word[i], i + 1 < w->n ? " " : "", i + 1 < w->n ? w->word[i + 1] : "");
    if (stage.layers == 0) return fail(err, errlen, "expected \"layers N\" of the stage, found none");
    layout->stage[layout->stages++] = stage;
    return 0;
}

static int read_line(Layout* layout, const Layout* otherwise, const Words* w, char* err, size_t errlen) {
    if (!strcmp(w->word[0], "stage")) return read_stage(layout, otherwise, w, err, errlen);
    if (strcmp(w->word[0], "tp") != 0)
        return fail(err, errlen, "expected \"tp N\" or \"stage layers N ...\", found \"%s\"", w->word[0]);
    if (w->n != 2 || read_number(&layout->tp, w->word[1], 1, MOST_STAGES))
        return fail(err, errlen, "expected \"tp N\", N from 1 to %d", MOST_STAGES);
    return 0;
}

int layout_parse(Layout* layout, const Layout* otherwise, const char* text, size_t n, char* err, size_t errlen) {
    char why[ERR_BYTES];
    Words w;
    size_t at = 0;
    memset(layout, 0, sizeof *layout);
    layout->tp = otherwise->tp;
    for (int line = 1; at < n; line++) {
        const char* newline = (const char*)memchr(text + at, '\n', n - at);
        size_t length = newline ? (size_t)(newline - text) - at : n - at;
        if (split_line(&w, text + at, length)) return fail(err, errlen, "line %d: expected a short line of text", line);
        if (w.n && read_line(layout, otherwise, &w, why, sizeof why))
            return fail(err, errlen, "line %d: %s", line, why);
        at += length + 1;
    }
    return layout->stages ? 0 : fail(err, errlen, "expected a line \"stage layers N ...\" for every stage, found none");
}

size_t layout_print(const Layout* layout, char* text, size_t bytes) {
    size_t n = (size_t)snprintf(text, bytes, "tp %d\n", layout->tp);
    for (int s = 0; s < layout->stages; s++)
        n += (size_t)snprintf(n < bytes ? text + n : NULL, n < bytes ? bytes - n : 0,
                              "stage layers %d zero %d recompute %s\n", layout->stage[s].layers, layout->stage[s].zero,
                              recompute_names[layout->stage[s].recompute]);
    return n;
}

int layout_check(const Layout* layout, const Shape* whole, int ranks, char* err, size_t errlen) {
    int P = layout->stages, R = layout->tp, layers = layout_first(layout, P);
    if (layers != whole->L)
        return fail(err, errlen, "expected stages of %d layers together, as the model has, found %d", whole->L, layers);
    char stages[32] = "", groups[64] = "";
    if (P > 1) snprintf(stages, sizeof stages, "%d stages", P);
    if (R > 1) snprintf(groups, sizeof groups, "%stensor-parallel groups of %d", P > 1 ? " of " : "", R);
    if (ranks % (R * P))
        return fail(err, errlen, "%s%s do not divide %d rank%s; try mpirun -n %d", stages, groups, ranks,
                    ranks > 1 ? "s" : "", ROUND_UP(ranks, R * P));
    return 0;
}
