// layout.c - see layout.h.
#include "plan/layout.h"

#include <math.h>
#include <stdarg.h>
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
    Layout best = {.tp = tp, .stages = stages}, trial = best;
    double least = INFINITY;
    for (int n = 1; n <= whole->L; n++)
        for (int with_head = 0; with_head < 2; with_head++) {
            double most = with_head ? work_of(whole, whole->L - n, whole->L) : work_of(whole, -1, n - 1);
            double worst = fill(&trial, whole, most);
            if (worst < least) least = worst, best = trial;
        }
    for (int s = 0; s < stages; s++)
        layout_set_stage(&best, s, best.stage[s].layers, (LayerLayout){tp, zero, recompute});
    return best;
}

int layout_first(const Layout* layout, int s) {
    int first = 0;
    for (int i = 0; i < s; i++) first += layout->stage[i].layers;
    return first;
}

void layout_set_stage(Layout* layout, int s, int n, LayerLayout row) {
    int first = layout_first(layout, s);
    layout->stage[s] = (StageLayout){n, row.zero};
    for (int l = first; l < MIN(first + n, MOST_LAYERS); l++) layout->layer[l] = row;
}

static int are_like(LayerLayout a, LayerLayout b) {
    return a.tp == b.tp && a.zero == b.zero && a.recompute == b.recompute;
}

int layout_run(const Layout* layout, int l) {
    int n = 1, s = 0;
    while (layout_first(layout, s + 1) <= l) s++;
    while (l + n < layout_first(layout, s + 1) && are_like(layout->layer[l], layout->layer[l + n])) n++;
    return n;
}

double layout_again(const Layout* layout, int s) {
    int n = 0, first = layout_first(layout, s), end = layout_first(layout, s + 1);
    for (int l = first; l < end; l++) n += layout->layer[l].recompute == RECOMPUTE_BLOCK;
    return (double)n / (end - first);
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

// Up to its end, or to a semicolon before any comment.
static size_t line_length(const char* text, size_t n) {
    size_t i = 0;
    for (int comment = 0; i < n && text[i] != '\n' && (comment || text[i] != ';'); i++) comment |= text[i] == '#';
    return i;
}

// A number of [least, most].
static int read_number(int* value, const char* word, int least, int most) {
    char* end;
    long found = strtol(word, &end, 10);
    if (end == word || *end || found < least || found > most) return -1;
    *value = (int)found;
    return 0;
}

// What lines leave out while a file is read.
typedef struct Reader {
    Layout* layout;
    LayerLayout usual, row;  // of the options; of the stage that is read
    int expected, found;     // its layers: those its line says, 0 for none; those of the lines below it
} Reader;

static int read_pair(LayerLayout* row, int* layers, const char* key, const char* value) {
    if (!strcmp(key, "layers")) return read_number(layers, value, 1, MOST_LAYERS);
    if (!strcmp(key, "tp")) return read_number(&row->tp, value, 1, MOST_STAGES);
    if (!strcmp(key, "zero")) return read_number(&row->zero, value, 1, 3);
    if (strcmp(key, "recompute") != 0) return -1;
    for (int i = 0; i < COUNT(recompute_names); i++)
        if (!strcmp(value, recompute_names[i])) {
            row->recompute = (Recompute)i;
            return 0;
        }
    return -1;
}

static int read_pairs(LayerLayout* row, int* layers, const Words* w, int first, char* err, size_t errlen) {
    for (int i = first; i < w->n; i += 2)
        if (i + 1 == w->n || read_pair(row, layers, w->word[i], w->word[i + 1]))
            return fail(err, errlen,
                        "expected \"layers N\", \"tp N\", \"zero 1|2|3\" or \"recompute none|activation|block\", found "
                        "\"%s%s%s\"",
                        w->word[i], i + 1 < w->n ? " " : "", i + 1 < w->n ? w->word[i + 1] : "");
    return 0;
}

// The stage that was read last has all its lines.
static int end_stage(Reader* r, char* err, size_t errlen) {
    Layout* layout = r->layout;
    int s = layout->stages - 1;
    if (s < 0) return 0;
    if (!r->expected && !r->found) return fail(err, errlen, "expected \"layers N\" of the stage before, found none");
    if (r->expected && r->found && r->expected != r->found)
        return fail(err, errlen, "expected lines of %d layers together below stage %d, found %d", r->expected, s,
                    r->found);
    if (!r->found) layout_set_stage(layout, s, r->expected, r->row);
    layout->stage[s].layers = r->found ? r->found : r->expected;
    r->found = r->expected = 0;
    if (layout_first(layout, s + 1) <= MOST_LAYERS) return 0;
    return fail(err, errlen, "expected at most %d layers, found %d", MOST_LAYERS, layout_first(layout, s + 1));
}

static int read_stage(Reader* r, const Words* w, char* err, size_t errlen) {
    Layout* layout = r->layout;
    if (end_stage(r, err, errlen)) return -1;
    if (layout->stages == MOST_STAGES) return fail(err, errlen, "expected at most %d stages", MOST_STAGES);
    r->row = r->usual;
    if (read_pairs(&r->row, &r->expected, w, 1, err, errlen)) return -1;
    layout->stage[layout->stages++] = (StageLayout){0, r->row.zero};
    return 0;
}

static int read_layers(Reader* r, const Words* w, char* err, size_t errlen) {
    Layout* layout = r->layout;
    LayerLayout row = r->row;
    int n = 0, s = layout->stages - 1;
    if (s < 0) return fail(err, errlen, "expected \"stage ...\" before \"layers\"");
    if (read_pairs(&row, &n, w, 0, err, errlen)) return -1;
    int first = layout_first(layout, s) + r->found;
    if (first + n > MOST_LAYERS)
        return fail(err, errlen, "expected at most %d layers, found %d", MOST_LAYERS, first + n);
    for (int l = first; l < first + n; l++) layout->layer[l] = row;
    r->found += n;
    return 0;
}

static int read_line(Reader* r, const Words* w, char* err, size_t errlen) {
    if (!strcmp(w->word[0], "stage")) return read_stage(r, w, err, errlen);
    if (!strcmp(w->word[0], "layers")) return read_layers(r, w, err, errlen);
    if (strcmp(w->word[0], "tp") != 0)
        return fail(err, errlen, "expected \"tp N\", \"stage ...\" or \"layers N ...\", found \"%s\"", w->word[0]);
    if (w->n != 2 || read_number(&r->layout->tp, w->word[1], 1, MOST_STAGES))
        return fail(err, errlen, "expected \"tp N\", N from 1 to %d", MOST_STAGES);
    return 0;
}

// A layer whose tp no line says has the group's, which a line further down may say: 0 until then.
static int end_file(Reader* r, char* err, size_t errlen) {
    Layout* layout = r->layout;
    if (layout->stages == 0)
        return fail(err, errlen, "expected a line \"stage layers N ...\" for every stage, found none");
    if (end_stage(r, err, errlen)) return -1;
    for (int l = 0; l < layout_first(layout, layout->stages); l++)
        if (layout->layer[l].tp == 0) layout->layer[l].tp = layout->tp;
    return 0;
}

int layout_parse(Layout* layout, const Layout* otherwise, const char* text, size_t n, char* err, size_t errlen) {
    char why[ERR_BYTES];
    Words w;
    Reader r = {.layout = layout, .usual = otherwise->layer[0]};
    size_t at = 0;
    r.usual.tp = 0;
    memset(layout, 0, sizeof *layout);
    layout->tp = otherwise->tp;
    for (int line = 1; at < n; line++) {
        size_t length = line_length(text + at, n - at);
        if (split_line(&w, text + at, length)) return fail(err, errlen, "line %d: expected a short line of text", line);
        if (w.n && read_line(&r, &w, why, sizeof why)) return fail(err, errlen, "line %d: %s", line, why);
        at += length + 1;
    }
    return end_file(&r, err, errlen);
}

// snprintf at *n of text, which has room for `bytes`; *n goes on by what it wanted.
static void append(char* text, size_t bytes, size_t* n, const char* format, ...) {
    va_list args;
    va_start(args, format);
    *n += (size_t)vsnprintf(*n < bytes ? text + *n : NULL, *n < bytes ? bytes - *n : 0, format, args);
    va_end(args);
}

size_t layout_print(const Layout* layout, char* text, size_t bytes) {
    size_t n = 0;
    append(text, bytes, &n, "tp %d\n", layout->tp);
    for (int s = 0; s < layout->stages; s++) {
        int first = layout_first(layout, s), end = layout_first(layout, s + 1);
        LayerLayout row = layout->layer[first], whole = {layout->tp, layout->stage[s].zero, row.recompute};
        append(text, bytes, &n, "stage layers %d zero %d", end - first, layout->stage[s].zero);
        if (are_like(row, whole) && layout_run(layout, first) == end - first) {
            append(text, bytes, &n, " recompute %s\n", recompute_names[row.recompute]);
            continue;
        }
        append(text, bytes, &n, "\n");
        for (int l = first; l < end; l += layout_run(layout, l)) {
            row = layout->layer[l];
            append(text, bytes, &n, "  layers %d tp %d zero %d recompute %s\n", layout_run(layout, l), row.tp, row.zero,
                   recompute_names[row.recompute]);
        }
    }
    return n;
}

static int check_layer(const Layout* layout, const Shape* whole, int l, char* err, size_t errlen) {
    int tp = layout->layer[l].tp;
    if (layout->tp % tp)
        return fail(err, errlen, "layer %d has tp %d: expected a divisor of the groups' tp %d", l, tp, layout->tp);
    if (tp < layout->tp && layout->tp > whole->NKV)
        return fail(err, errlen,
                    "layer %d has tp %d in groups of %d ranks: expected groups of at most %d there, one for each "
                    "key/value head; leave its tp out, or try smaller groups",
                    l, tp, layout->tp, whole->NKV);
    return 0;
}

int layout_check(const Layout* layout, const Shape* whole, int ranks, char* err, size_t errlen) {
    int P = layout->stages, R = layout->tp, layers = layout_first(layout, P);
    if (layers != whole->L)
        return fail(err, errlen, "expected stages of %d layers together, as the model has, found %d", whole->L, layers);
    if (layers > MOST_LAYERS) return fail(err, errlen, "expected at most %d layers, found %d", MOST_LAYERS, layers);
    for (int l = 0; l < layers; l++)
        if (check_layer(layout, whole, l, err, errlen)) return -1;
    char stages[32] = "", groups[64] = "";
    if (P > 1) snprintf(stages, sizeof stages, "%d stages", P);
    if (R > 1) snprintf(groups, sizeof groups, "%stensor-parallel groups of %d", P > 1 ? " of " : "", R);
    if (ranks % (R * P))
        return fail(err, errlen, "%s%s do not divide %d rank%s; try mpirun -n %d", stages, groups, ranks,
                    ranks > 1 ? "s" : "", ROUND_UP(ranks, R * P));
    return 0;
}
