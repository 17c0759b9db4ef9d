// explain.c - prints a plan as text: what runs where, the parts of its time, its distance to the bound, the searches
// that found worse plans, and other planners' plans for the same documents.
#include "plan/search/explain.h"

#include "plan/base/terminal.h"

static double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

// ---- groups

typedef struct GroupSum {
    int micro_batches, docs, longest;
    int64_t tokens;
    double rank_ms;  // time of its micro-batches times their ranks; a pass's divides equally
} GroupSum;

static GroupSum sum_groups(const Shown* shown, const int* lengths, int cp_size, int ulysses_size) {
    GroupSum sum = {0};
    for (int i = 0; i < shown->plan.n_micro_batches; i++) {
        const MicroBatch* mb = &shown->plan.micro_batches[i];
        if (mb->cp_size != cp_size || mb->ulysses_size != ulysses_size) continue;
        sum.micro_batches++;
        sum.docs += mb->n_docs;
        sum.rank_ms += (shown->timeline.end[i] - shown->timeline.start[i]) * cp_size / shown->timeline.beside[i];
        for (int d = mb->first_doc; d < mb->first_doc + mb->n_docs; d++) {
            int s = lengths[shown->plan.docs[d]];
            sum.tokens += s;
            sum.longest = MAX(sum.longest, s);
        }
    }
    return sum;
}

static void print_groups(FILE* out, const Explained* x) {
    const Shown* chosen = &x->shown[0];
    double all = chosen->timeline.makespan * chosen->plan.ranks;
    TextTable table = {0};
    text_cells(&table, "kind\tranks\tmicro-batches\tdocuments\ttokens\tlongest\tof all ranks' time\n");
    for (int cp_size = chosen->plan.ranks; cp_size > 0; cp_size--)
        for (int ulysses_size = cp_size; ulysses_size > 0; ulysses_size--) {
            if (cp_size % ulysses_size != 0) continue;
            GroupSum sum = sum_groups(chosen, x->lengths, cp_size, ulysses_size);
            MicroBatch mb = {.cp_size = cp_size, .ulysses_size = ulysses_size};
            if (sum.micro_batches == 0) continue;
            text_cells(&table, "%s\t%d\t%d\t%d\t%lld\t%d\t%.1f %%\n", cp_kind_name(cp_kind(&mb)), cp_size,
                       sum.micro_batches, sum.docs, (long long)sum.tokens, sum.longest, percent(sum.rank_ms, all));
        }
    fputc('\n', out);
    text_table(out, &table, "  ");
}

// ---- the chosen plan

static void print_time(FILE* out, const Explained* x) {
    const Prediction* f = x->prediction;
    const CostTerms* c = &f->critical;
    const Shown* chosen = &x->shown[0];
    if (x->setting->weights.layers > 0)
        fprintf(out, "  whole step %.2f ms with weights and gradients; no plan's takes less than %.2f\n", f->step,
                f->bounds.step);
    fprintf(out, "  makespan %.2f ms, at least %.2f (beside): %.2f %% above; planned in %.0f us\n", f->makespan,
            f->bounds.beside, 100 * prediction_gap(f), chosen->plan_us);
    fprintf(out,
            "  of it, along the ranks that end last: attention %.1f %%, linear layers %.1f %%, communication %.1f %%, "
            "micro-batches' own %.1f %%\n",
            percent(c->quadratic, f->makespan), percent(c->per_token, f->makespan),
            percent(c->communication, f->makespan), percent(c->micro_batch, f->makespan));
    fprintf(out, "  all ranks: idle %.1f %%, communication %.1f %%\n", 100 * chosen->timeline.idle,
            100 * chosen->timeline.communication_share);
    int together = 0;
    for (int i = 0; i < chosen->plan.n_micro_batches; i++) together += chosen->timeline.beside[i] > 1;
    if (together)
        fprintf(out, "  passes: %d of %d micro-batches are in one pass with others, and hide exchanges of each other\n",
                together, chosen->plan.n_micro_batches);
    int longest = 0;
    for (int i = 0; i < x->n; i++) longest = MAX(longest, x->lengths[i]);
    fprintf(out,
            "  bounds: work divided without limit (L1) %.2f ms, longest document (L2) %.2f ms, of %d tokens, exchanges "
            "hidden for nothing (L3) %.2f ms\n",
            f->bounds.l1, f->bounds.l2, longest, f->bounds.l3);
}

// ---- what was rejected

static void print_searches(FILE* out, const Prediction* f) {
    double best = f->makespan;
    if (f->n_tries == 0) return;
    fprintf(out, "\n  searches, each for the least target time that all documents meet:\n");
    for (int i = 0; i < f->n_tries;) {
        FlexTryKind kind = f->tries[i].kind;
        int unit = f->tries[i].unit, guesses = 0, met = 0, chosen = 0;
        double least = 0, missed = 0;
        for (; i < f->n_tries && f->tries[i].unit == unit && f->tries[i].kind == kind; i++, guesses++) {
            const FlexTry* t = &f->tries[i];
            chosen |= t->chosen;
            if (t->micro_batches == 0) missed = MAX(missed, t->target);
            else least = met++ ? MIN(least, t->makespan) : t->makespan;
        }
        if (kind != FLEX_GUESS) fprintf(out, "  %s: ", flex_try_names[kind]);
        else
            fprintf(out, "  %2d rank%s or more a group, %d guess%s: ", unit, unit == 1 ? " " : "s", guesses,
                    guesses == 1 ? "" : "es");
        if (met) fprintf(out, "%.2f ms%s", least, chosen ? ", chosen" : "");
        else
            fprintf(out, "rejected, nothing within %.2f ms (%.2f %% more than the bound)", missed,
                    percent(missed - f->bounds.beside, f->bounds.beside));
        if (met && !chosen) fprintf(out, ", rejected, %.2f %% longer", percent(least - best, best));
        fprintf(out, "\n");
    }
}

static void print_others(FILE* out, const Explained* x) {
    if (x->n_shown < 2) return;
    TextTable table = {0};
    int weighs = x->setting->weights.layers > 0;
    text_cells(&table, "plan\tms\tlonger\t%sidle\tcommunication\tmicro-batches\tplanned in\n", weighs ? "step\t" : "");
    for (int i = 0; i < x->n_shown; i++) {
        const Shown* s = &x->shown[i];
        char step[32] = "";
        if (weighs) snprintf(step, sizeof step, "%.2f\t", s->timeline.step);
        text_cells(&table, "%s\t%.2f\t%.3fx\t%s%.1f %%\t%.1f %%\t%d\t%.0f us%s\n", s->name, s->timeline.makespan,
                   x->shown[0].timeline.makespan > 0 ? s->timeline.makespan / x->shown[0].timeline.makespan : 1, step,
                   100 * s->timeline.idle, 100 * s->timeline.communication_share, s->plan.n_micro_batches, s->plan_us,
                   s->chosen ? "\tchosen" : "");
    }
    fputc('\n', out);
    text_table(out, &table, "  ");
}

void explain_text(FILE* out, const Explained* x) {
    fprintf(out, "%s: %s\n", x->shown[0].name, x->title);
    print_time(out, x);
    print_groups(out, x);
    print_searches(out, x->prediction);
    print_others(out, x);
}
