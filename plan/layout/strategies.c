// strategies.c - see strategies.h.
#include "plan/layout/strategies.h"

#include "plan/layout/layout.h"
#include "plan/model/split.h"
#include "plan/base/words.h"

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

// Of 2xtp2pp3: all that a word may say, in this order.
static int read_group(PipelineGroup* g, Word word) {
    enum { MOST_COPIES = 16384, MOST_DEGREE = 64 };
    int tp = 0, pp = 0;
    *g = (PipelineGroup){1, 1, 1};
    int copies = word_take_number(&word, &g->copies, MOST_COPIES);
    if (copies && (g->copies < 1 || copies < 0 || !word_take(&word, "x"))) return -1;
    if (!copies) g->copies = 1;
    if (word_take(&word, "tp")) tp = word_take_number(&word, &g->tp, MOST_DEGREE) > 0 && g->tp > 0 ? 1 : -1;
    if (word_take(&word, "pp")) pp = word_take_number(&word, &g->pp, MOST_DEGREE) > 0 && g->pp > 0 ? 1 : -1;
    return tp < 0 || pp < 0 || tp + pp == 0 || word.n > 0 ? -1 : 0;
}

// Like pipelines that stand apart are one group where they are neighbours only, so that ranks keep their order.
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

// ---- what a model and ranks allow

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
