// strategies.c - see strategies.h.
#include "plan/strategies.h"

#include <ctype.h>
#include <stdio.h>

#include "plan/layout.h"
#include "plan/split.h"

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

// ---- text

typedef struct Reader {
    const char *at, *end;
    int line;
} Reader;

// Spaces and comments; a new line ends a strategy.
static void skip(Reader* r) {
    while (r->at < r->end && (*r->at == '#' || (isspace((unsigned char)*r->at) && *r->at != '\n')))
        if (*r->at++ == '#')
            while (r->at < r->end && *r->at != '\n') r->at++;
}

static int ends(const Reader* r) { return r->at == r->end || *r->at == ';' || *r->at == '\n'; }

enum { MOST_COPIES = 16384, MOST_DEGREE = 64 };

// A number from 1 to MOST_COPIES; 0: there is none.
static int read_number(Reader* r) {
    int64_t value = 0;
    while (r->at < r->end && isdigit((unsigned char)*r->at)) {
        value = value * 10 + (*r->at++ - '0');
        if (value > MOST_COPIES) return 0;
    }
    return (int)value;
}

static int unexpected(const Reader* r, char* err, size_t errlen) {
    int n = 0;
    while (r->at + n < r->end && n < 20 && isgraph((unsigned char)r->at[n])) n++;
    return fail(err, errlen, "line %d: expected pipelines like 2xtp2pp3, joined by +, found \"%.*s\"", r->line, n,
                r->at);
}

// A word with a number up to MOST_DEGREE behind it.
static int read_word(Reader* r, const char* word, int* value) {
    size_t n = strlen(word);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n) != 0) return 0;
    r->at += n;
    *value = read_number(r);
    return *value > 0 && *value <= MOST_DEGREE ? 1 : -1;
}

static int read_group(PipelineGroup* g, Reader* r) {
    const char* start = r->at;
    *g = (PipelineGroup){1, 1, 1};
    int copies = read_number(r);
    if (copies > 0 && r->at < r->end && *r->at == 'x') g->copies = copies, r->at++;
    else if (copies > 0 || r->at != start) return -1;
    int tp = read_word(r, "tp", &g->tp), pp = tp < 0 ? -1 : read_word(r, "pp", &g->pp);
    return tp < 0 || pp < 0 || tp + pp == 0 ? -1 : 0;
}

// Like pipelines that stand apart are one group where they are neighbours only, so that ranks keep their order.
static int read_strategy(RankStrategy* s, Reader* r, char* err, size_t errlen) {
    *s = (RankStrategy){0};
    for (;;) {
        skip(r);
        if (s->n == MOST_PIPELINE_GROUPS)
            return fail(err, errlen, "line %d: expected at most %d kinds of pipelines", r->line, MOST_PIPELINE_GROUPS);
        PipelineGroup* g = &s->group[s->n++];
        if (read_group(g, r)) return unexpected(r, err, errlen);
        for (int i = 0; i < s->n - 1; i++)
            if (s->group[i].tp == g->tp && s->group[i].pp == g->pp)
                return fail(err, errlen, "line %d: expected each kind of pipeline once, found tp%dpp%d twice", r->line,
                            g->tp, g->pp);
        skip(r);
        if (ends(r)) return 0;
        if (*r->at++ != '+') return r->at--, unexpected(r, err, errlen);
    }
}

int strategies_parse(StrategyList* list, const char* text, size_t n, char* err, size_t errlen) {
    Reader r = {text, text + n, 1};
    list->n = 0;
    for (skip(&r); r.at < r.end; skip(&r)) {
        if (ends(&r)) {
            r.line += *r.at++ == '\n';
            continue;
        }
        if (list->n == MOST_RANK_STRATEGIES)
            return fail(err, errlen, "expected at most %d strategies", MOST_RANK_STRATEGIES);
        if (read_strategy(&list->strategy[list->n], &r, err, errlen)) return -1;
        list->n++;
    }
    return list->n ? 0 : fail(err, errlen, "expected strategies like \"tp4+2xtp2; 8xtp1\", found none");
}

const char* strategy_print(const RankStrategy* strategy, char text[STRATEGY_TEXT]) {
    int n = 0;
    for (int g = 0; g < strategy->n; g++) {
        const PipelineGroup* p = &strategy->group[g];
        n += snprintf(text + n, (size_t)(STRATEGY_TEXT - n), g ? "+" : "");
        if (p->copies > 1) n += snprintf(text + n, (size_t)(STRATEGY_TEXT - n), "%dx", p->copies);
        n += snprintf(text + n, (size_t)(STRATEGY_TEXT - n), "tp%d", p->tp);
        if (p->pp > 1) n += snprintf(text + n, (size_t)(STRATEGY_TEXT - n), "pp%d", p->pp);
    }
    return text;
}

// ---- what a model and ranks allow

int strategies_check(const StrategyList* list, const Shape* whole, int ranks, char* err, size_t errlen) {
    int most_tp = MIN(MIN(whole->NH, whole->U), (int)MOST_TP), most_pp = MIN(whole->L, (int)MOST_STAGES);
    for (int i = 0; i < list->n; i++) {
        const RankStrategy* s = &list->strategy[i];
        char text[STRATEGY_TEXT];
        strategy_print(s, text);
        if (strategy_ranks(s) != ranks)
            return fail(err, errlen, "%s: expected pipelines for all %d ranks, found some for %d", text, ranks,
                        strategy_ranks(s));
        for (int g = 0; g < s->n; g++) {
            const PipelineGroup* p = &s->group[g];
            if (p->tp > most_tp || p->pp > most_pp)
                return fail(err, errlen, "%s: expected at most tp%d and pp%d for this model, found tp%dpp%d", text,
                            most_tp, most_pp, p->tp, p->pp);
        }
    }
    return 0;
}
