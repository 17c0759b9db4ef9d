// simulate.c - build/simulate: the planners of several systems on the same batches, in the cost model.
//
//   make simulate && build/simulate --machine h200-8b --ranks 256 --docs 2048 --lengths prolong
//
// Every batch is drawn once and planned by all; the plans are played by the same rules (plan/timeline.h), each with
// the barriers and fixed costs of its own system. These are simulations of how planners divide work, not measurements
// of the systems.
#include "dev/simulate.h"

#include <stdio.h>
#include <stdlib.h>

static const Tally* find_flex(const Simulation* s) {
    for (int i = 0; i < s->n_tallies; i++)
        if (s->tallies[i].planner == &planner_flex && !s->tallies[i].out) return &s->tallies[i];
    return NULL;
}

static void print_head(const Simulation* s) {
    const Options* o = s->options;
    printf("%s: %d ranks in nodes of %d, %d tokens a rank; %d batches of %d documents, %s up to %d tokens\n\n",
           s->machine.cost.name, o->ranks, o->node_size, s->setting.limits.capacity, o->batches, o->docs, o->lengths,
           o->context);
    printf("%-10s %21s  %17s  %21s %7s %7s %8s\n", "", "makespan, ms", "over L3, %", "planning, us", "idle", "links",
           "flex is");
    printf("%-10s %10s %10s  %8s %8s  %10s %10s %7s %7s %8s\n", "plan", "mean", "worst", "mean", "worst", "mean",
           "worst", "%", "%", "faster");
}

static void print_row(const Tally* t, const Tally* flex) {
    int n = t->batches;
    printf("%-10s %10.1f %10.1f  ", t->planner->name, t->ms / n, t->ms_worst);
    if (t->left_model) printf("%8s %8s", "-", "-");
    else printf("%8.2f %8.2f", 100 * t->gap / n, 100 * t->gap_worst);
    printf("  %10.0f %10.0f %7.1f %7.1f", t->us / n, t->us_worst, 100 * t->idle / n, 100 * t->communication_share / n);
    if (flex && flex->ms > 0) printf(" %7.2fx", t->ms / flex->ms);
    printf("\n");
}

static void print_json(const Tally* t) {
    int n = t->batches;
    printf("{\"plan\":\"%s\",\"mean_ms\":%.9g,\"worst_ms\":%.9g,", t->planner->name, t->ms / n, t->ms_worst);
    if (t->left_model) printf("\"gap_mean\":null,\"gap_worst\":null,");
    else printf("\"gap_mean\":%.9g,\"gap_worst\":%.9g,", t->gap / n, t->gap_worst);
    printf("\"plan_us_mean\":%.6g,\"plan_us_worst\":%.6g,\"idle\":%.9g,\"communication\":%.9g}\n", t->us / n,
           t->us_worst, t->idle / n, t->communication_share / n);
}

static void print_foot(const Simulation* s) {
    double n = s->options->batches;
    printf(
        "\nlower bounds, mean: work divided without limit L1 %.1f ms, whole documents L3 %.1f ms (L3/L1 %.3f); %.0f "
        "tokens a batch, the longest document %d\n",
        s->l1 / n, s->l3 / n, s->l1 > 0 ? s->l3 / s->l1 : 1, s->tokens / n, s->longest);
}

int main(int argc, char** argv) {
    Simulation s;
    Options options = read_options(argc, argv);
    int played = 0;
    open_simulation(&s, &options);
    play_all(&s);
    const Tally* flex = find_flex(&s);
    if (!options.json) print_head(&s);
    for (int i = 0; i < s.n_tallies; i++) {
        if (s.tallies[i].out) continue;
        if (options.json) print_json(&s.tallies[i]);
        else print_row(&s.tallies[i], flex);
        played++;
    }
    if (!options.json) print_foot(&s);
    fflush(stdout);
    for (int i = 0; i < s.n_tallies; i++)
        if (s.tallies[i].out)
            fprintf(options.json ? stderr : stdout, "left out: %s: %s\n", s.tallies[i].planner->name, s.tallies[i].why);
    if (options.explain && played > 0) write_page(&s);
    close_simulation(&s);
    if (played == 0) refuse("no planner played all batches");
    return 0;
}
