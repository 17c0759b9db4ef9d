// layout.c - see layout.h.
#include "plan/layout/layout.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>

#include "plan/base/words.h"
#include "plan/model/split.h"

const char* const recompute_names[] = {"none", "activation", "block"};

// ---- shares of work

// The matmul weights of layers [first, end) of the whole model; the last layer's count includes the classifier.
static double work_of(const Shape* whole, int first, int end) {
    double head = (double)whole->V * whole->C, layers = shape_matmul_weights(whole) - head;
    return layers / whole->L * (end - first) + (end == whole->L ? head : 0);
}

// Fills stages from the front with as much as `most` allows, at least a layer each, and leaves one for each later
// stage. Returns the most work of a stage.
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

// The largest stage has the work of n layers, without or with the classifier; so all of these are tried.
Layout layout_even(const Shape* whole, int tp, int stages, int zero, Recompute recompute) {
    Layout even = {.tp = tp, .stages = stages};
    double least = INFINITY;
    for (int n = 1; n <= whole->L; n++) {
        least = fmin(least, fill(&even, whole, work_of(whole, -1, n - 1)));
        least = fmin(least, fill(&even, whole, work_of(whole, whole->L - n, whole->L)));
    }
    fill(&even, whole, least);
    for (int s = 0; s < stages; s++)
        layout_set_stage(&even, s, even.stage[s].layers, (LayerLayout){tp, zero, recompute});
    return even;
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

void layout_shares(const Layout* layout, const Shape* whole, double* matmuls, double* layers) {
    for (int s = 0; s < layout->stages; s++) {
        matmuls[s] = work_of(whole, layout_first(layout, s), layout_first(layout, s + 1)) / work_of(whole, 0, whole->L);
        layers[s] = (double)layout->stage[s].layers / whole->L;
    }
}

double layout_pace(const Layout* layout, const Shape* whole, const double* speed, int stride) {
    double matmuls[MOST_STAGES], layers[MOST_STAGES], longest = 0, alike = 0;
    layout_shares(layout, whole, matmuls, layers);
    for (int s = 0; s < layout->stages; s++) {
        alike = MAX(alike, matmuls[s]);
        longest = MAX(longest, matmuls[s] / speed[s * stride]);
    }
    return alike / longest;
}

// ---- text

// The values that a line may give.
typedef struct Line {
    int layers;
    LayerLayout row;
} Line;

enum { LAYERS, TP, ZERO, RECOMPUTE, N_PAIRS };
static const Field pairs[N_PAIRS] = {
    [LAYERS] = {"layers", INT, offsetof(Line, layers), 1, MOST_LAYERS, NULL},
    [TP] = {"tp", INT, offsetof(Line, row.tp), 1, MOST_STAGES, NULL},
    [ZERO] = {"zero", INT, offsetof(Line, row.zero), 1, 3, NULL},
    [RECOMPUTE] = {"recompute", INDEX, offsetof(Line, row.recompute), 0, 0, "none|activation|block"},
};

static int read_pair(Line* line, const Field* pair, Words* w) {
    char wanted[WANTED];
    Word value;
    if (!words_next(w, ' ', &value)) value = (Word){NULL, 0};
    return field_set(pair, line, value, wanted) ? words_refuse(w, value, "expected %s", wanted) : 0;
}

static int read_pairs(Line* line, Words* w) {
    for (Word key; words_next(w, ' ', &key);) {
        const Field* pair = field_find(pairs, N_PAIRS, key);
        if (!pair) return words_refuse(w, key, "expected layers N, tp N, zero 1|2|3 or recompute NAME");
        if (read_pair(line, pair, w)) return -1;
    }
    return 0;
}

// Adds the layers of a line to the last stage.
static int add_layers(Layout* layout, const Line* line, const Words* w) {
    int first = layout_first(layout, layout->stages), end = first + line->layers;
    if (end > MOST_LAYERS) return words_refuse(w, w->all, "expected at most %d layers", MOST_LAYERS);
    for (int l = first; l < end; l++) layout->layer[l] = line->row;
    layout->stage[layout->stages - 1].layers += line->layers;
    return 0;
}

// Ends the last stage, whose lines have all been read. `stage` is the line that began it; 0 layers: it says no number.
static int end_stage(Layout* layout, const Line* stage, const Words* w) {
    int s = layout->stages - 1, expected = stage->layers, found = s < 0 ? 0 : layout->stage[s].layers;
    if (s < 0 || (found && !expected) || (found && found == expected)) return 0;
    if (!expected) return words_refuse(w, w->left, "expected layers N of the stage before");
    if (!found) return add_layers(layout, stage, w);
    return words_refuse(w, w->left, "expected lines of %d layers together below stage %d, found %d", expected, s,
                        found);
}

// stage: the line of the last stage; usual: what lines leave out.
static int read_line(Layout* layout, Line* stage, const LayerLayout* usual, Words* w) {
    Words rest = *w;
    Word word;
    Line line = {0, stage->row};
    words_next(&rest, ' ', &word);
    if (word_is(word, "stage")) {
        if (end_stage(layout, stage, &rest)) return -1;
        if (layout->stages == MOST_STAGES) return words_refuse(w, w->all, "expected at most %d stages", MOST_STAGES);
        *stage = (Line){0, *usual};
        if (read_pairs(stage, &rest)) return -1;
        layout->stage[layout->stages++] = (StageLayout){0, stage->row.zero};
        return 0;
    }
    if (word_is(word, "layers")) {
        if (layout->stages == 0) return words_refuse(w, w->all, "expected stage ... before layers");
        return read_pairs(&line, w) ? -1 : add_layers(layout, &line, w);
    }
    if (!word_is(word, "tp")) return words_refuse(w, word, "expected stage ..., layers N ... or tp N");
    if (read_pair(&line, &pairs[TP], &rest)) return -1;
    layout->tp = line.row.tp;
    return words_next(&rest, ' ', &word) ? words_refuse(w, word, "expected the end of the line") : 0;
}

// A layer without a tp of its own takes the group's. A later line may give that, so it is 0 until then.
int layout_parse(Layout* layout, const Layout* otherwise, const char* text, size_t n, Err err) {
    Words words = words_of(text, n, err), line;
    Line stage = {0};
    LayerLayout usual = otherwise->layer[0];
    usual.tp = 0;
    memset(layout, 0, sizeof *layout);
    layout->tp = otherwise->tp;
    while (words_statement(&words, &line))
        if (read_line(layout, &stage, &usual, &line)) return -1;
    if (layout->stages == 0)
        return words_refuse(&words, (Word){NULL, 0}, "expected a line stage layers N for every stage");
    if (end_stage(layout, &stage, &words)) return -1;
    for (int l = 0; l < layout_first(layout, layout->stages); l++)
        if (layout->layer[l].tp == 0) layout->layer[l].tp = layout->tp;
    return 0;
}

size_t layout_print(const Layout* layout, char* text, size_t bytes) {
    size_t n = 0;
    text_append(text, bytes, &n, "tp %d\n", layout->tp);
    for (int s = 0; s < layout->stages; s++) {
        int first = layout_first(layout, s), end = layout_first(layout, s + 1);
        LayerLayout row = layout->layer[first], whole = {layout->tp, layout->stage[s].zero, row.recompute};
        text_append(text, bytes, &n, "stage layers %d zero %d", end - first, layout->stage[s].zero);
        if (are_like(row, whole) && layout_run(layout, first) == end - first) {
            text_append(text, bytes, &n, " recompute %s\n", recompute_names[row.recompute]);
            continue;
        }
        text_append(text, bytes, &n, "\n");
        for (int l = first; l < end; l += layout_run(layout, l)) {
            row = layout->layer[l];
            text_append(text, bytes, &n, "  layers %d tp %d zero %d recompute %s\n", layout_run(layout, l), row.tp,
                        row.zero, recompute_names[row.recompute]);
        }
    }
    return n;
}

int layout_print_line(const Layout* layout, char* text, size_t bytes) {
    static char lines[LAYOUT_TEXT];
    size_t n = layout_print(layout, lines, sizeof lines), at = 0;
    for (const char* c = lines; *c && at + 3 < bytes; c++) {
        if (*c != '\n') text[at++] = *c;
        else if (c[1]) text[at++] = ';', text[at++] = ' ', c += strspn(c + 1, " ");
    }
    text[at] = 0;
    return n < sizeof lines && at + 3 < bytes;
}

static int check_layer(const Layout* layout, const Shape* whole, int l, Err err) {
    int tp = layout->layer[l].tp;
    if (layout->tp % tp)
        return fail(err, "layer %d has tp %d: expected a divisor of the groups' tp %d", l, tp, layout->tp);
    if (!split_has_cut(whole, layout->tp, tp))
        return fail(err,
                    "layer %d has tp %d in groups of %d ranks: expected a divisor or a multiple of the %d key/value "
                    "heads, or groups of at most as many ranks; leave its tp out",
                    l, tp, layout->tp, whole->NKV);
    return 0;
}

int layout_check(const Layout* layout, const Shape* whole, int ranks, Err err) {
    int P = layout->stages, R = layout->tp, layers = layout_first(layout, P);
    if (layers != whole->L)
        return fail(err, "expected stages of %d layers together, as the model has, found %d", whole->L, layers);
    if (layers > MOST_LAYERS) return fail(err, "expected at most %d layers, found %d", MOST_LAYERS, layers);
    for (int l = 0; l < layers; l++)
        if (check_layer(layout, whole, l, err)) return -1;
    char stages[32] = "", groups[64] = "";
    if (P > 1) snprintf(stages, sizeof stages, "%d stages", P);
    if (R > 1) snprintf(groups, sizeof groups, "%stensor-parallel groups of %d", P > 1 ? " of " : "", R);
    if (ranks % (R * P))
        return fail(err, "%s%s do not divide %d rank%s; try mpirun -n %d", stages, groups, ranks, ranks > 1 ? "s" : "",
                    ROUND_UP(ranks, R * P));
    return 0;
}

// ---- strategies

int strategy_ranks(const RankStrategy* strategy) {
    int ranks = 0;
    for (int g = 0; g < strategy->n; g++) ranks += group_ranks(&strategy->group[g]);
    return ranks;
}

int strategy_group(const RankStrategy* strategy, int rank, int* place) {
    int g = 0;
    while (g < strategy->n - 1 && rank >= group_ranks(&strategy->group[g])) rank -= group_ranks(&strategy->group[g++]);
    *place = rank;
    return g;
}

// Takes these letters and the digits behind them from the beginning of a word. Returns 1 if both are there; -1: the
// number is not from 1 to `most`.
static int take_number(Word* word, const char* letters, int* value, int most) {
    size_t n = strlen(letters);
    if (word->n <= n || memcmp(word->at, letters, n) || !isdigit((unsigned char)word->at[n])) return 0;
    for (*value = 0; n < word->n && isdigit((unsigned char)word->at[n]); n++)
        *value = MIN(*value * 10 + (word->at[n] - '0'), 1 << 24);
    *word = (Word){word->at + n, word->n - n};
    return *value >= 1 && *value <= most ? 1 : -1;
}

// Reads a word like 2xtp2pp3; its parts come in this order.
static int read_group(PipelineGroup* g, Word word) {
    enum { MOST_COPIES = 16384, MOST_DEGREE = 64 };
    *g = (PipelineGroup){1, 1, 1};
    int copies = take_number(&word, "", &g->copies, MOST_COPIES);
    int tp = take_number(&word, copies ? "xtp" : "tp", &g->tp, MOST_DEGREE);
    int pp = take_number(&word, copies && !tp ? "xpp" : "pp", &g->pp, MOST_DEGREE);
    return copies < 0 || tp < 0 || pp < 0 || tp + pp == 0 || word.n > 0 ? -1 : 0;
}

// Each kind of pipeline may come only once: ranks keep their order, so like pipelines group only as neighbours.
static int read_strategy(RankStrategy* s, Words* w) {
    Word word;
    *s = (RankStrategy){0};
    while (words_next(w, '+', &word)) {
        if (s->n == MOST_PIPELINE_GROUPS)
            return words_refuse(w, word, "expected at most %d kinds of pipelines", MOST_PIPELINE_GROUPS);
        PipelineGroup* g = &s->group[s->n++];
        if (read_group(g, word)) return words_refuse(w, word, "expected pipelines like 2xtp2pp3, joined by +");
        for (int i = 0; i < s->n - 1; i++)
            if (s->group[i].tp == g->tp && s->group[i].pp == g->pp)
                return words_refuse(w, word, "expected each kind of pipeline once");
    }
    return 0;
}

int strategies_parse(StrategyList* list, const char* text, size_t n, Err err) {
    Words words = words_of(text, n, err), line;
    list->n = 0;
    while (words_statement(&words, &line)) {
        if (list->n == MOST_RANK_STRATEGIES)
            return words_refuse(&line, line.all, "expected at most %d strategies", MOST_RANK_STRATEGIES);
        if (read_strategy(&list->strategy[list->n++], &line)) return -1;
    }
    return list->n ? 0 : fail(err, "expected strategies like \"tp4+2xtp2; 8xtp1\", found none");
}

const char* strategy_print(const RankStrategy* strategy, char text[STRATEGY_TEXT]) {
    size_t n = 0;
    for (int g = 0; g < strategy->n; g++) {
        const PipelineGroup* p = &strategy->group[g];
        if (g) text_append(text, STRATEGY_TEXT, &n, "+");
        if (p->copies > 1) text_append(text, STRATEGY_TEXT, &n, "%dx", p->copies);
        text_append(text, STRATEGY_TEXT, &n, "tp%d", p->tp);
        if (p->pp > 1) text_append(text, STRATEGY_TEXT, &n, "pp%d", p->pp);
    }
    return text;
}

int strategies_check(const StrategyList* list, const Shape* whole, int ranks, Err err) {
    int most_tp = MIN(MIN(whole->NH, whole->U), (int)MOST_TP), most_pp = MIN(whole->L, (int)MOST_STAGES);
    for (int i = 0; i < list->n; i++) {
        const RankStrategy* s = &list->strategy[i];
        char text[STRATEGY_TEXT];
        strategy_print(s, text);
        if (strategy_ranks(s) != ranks)
            return fail(err, "%s: expected pipelines for all %d ranks, found some for %d", text, ranks,
                        strategy_ranks(s));
        for (int g = 0; g < s->n; g++) {
            const PipelineGroup* p = &s->group[g];
            if (p->tp > most_tp || p->pp > most_pp)
                return fail(err, "%s: expected at most tp%d and pp%d for this model, found tp%dpp%d", text, most_tp,
                            most_pp, p->tp, p->pp);
        }
    }
    return 0;
}
