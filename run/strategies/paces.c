// paces.c - pipelines of unlike pace: every strategy's plans go by the known paces of ranks (a machine's kinds of
// ranks, or --balance).
//
// A stage goes at the pace of its slowest rank, unless that gives work to others (groups.c); a pipeline at that of its
// slowest stage. The choice of a strategy and the dispatch of documents know every pipeline's pace, the planner of a
// job those of its own pipelines.
#include "run/strategies/strategies.h"

#include <stdlib.h>

// Finds the paces of group g's pipelines, whose ranks begin at `first`: of_stage (stages, copies) of each stage, pace
// (copies) of each as a whole.
static void find_paces(double* of_stage, double* pace, const Run* run, int s, const PipelineGroup* g, int first,
                       const double* speeds) {
    Layout layout = strategies_layout(run, g);
    for (int i = 0; i < g->pp * g->copies; i++) {
        of_stage[i] = speeds[first + i * g->tp];
        for (int t = 1; t < g->tp; t++) of_stage[i] = MIN(of_stage[i], speeds[first + i * g->tp + t]);
    }
    for (int i = 0; i < g->pp; i++)
        strategies_group_paces(of_stage + i * g->copies, run, s, g, i, first + i * g->copies * g->tp, speeds);
    for (int q = 0; q < g->copies; q++) pace[q] = layout_pace(&layout, &run->model.whole, of_stage + q, g->copies);
}

// Sets the paces of a strategy's pipelines, which Hydraulis numbers scheme by scheme. Returns 1 if any is not 1.
static int set_strategy(Run* run, int s, double* pace, double* of_stage, const double* speeds) {
    Strategies* x = run->strategies;
    const RankStrategy* strategy = &x->list.strategy[s];
    int place, unlike = 0;
    Run* as = x->as[s];
    const PipelineGroup* own = strategies_group(run, s, run->model.world->rank, &place);
    for (int g = 0, first = 0; g < strategy->n; first += group_ranks(&strategy->group[g++])) {
        const PipelineGroup* group = &strategy->group[g];
        int at = 0;
        for (int k = 0; k < strategies_kind(&x->kinds, group); k++) at += x->choices[s].copies[k];
        find_paces(of_stage, pace + at, run, s, group, first, speeds);
        for (int q = 0; q < group->copies; q++) unlike |= pace[at + q] != 1;
        if (group != own) continue;
        memcpy(as->clock->stage_speeds, of_stage, sizeof *of_stage * (size_t)(group->pp * group->copies));
        run_set_paces(as);
    }
    return unlike;
}

void strategies_set_paces(Run* run, const double* speeds) {
    Strategies* x = run->strategies;
    size_t ranks = (size_t)run->model.world->size;
    if (!x->paces) x->paces = (double*)calloc(((size_t)x->list.n + 1) * ranks, sizeof *x->paces);
    if (!x->paces) die("no memory for the paces of %zu ranks", ranks);
    for (int s = 0; s < x->list.n; s++) {
        double* pace = x->paces + ((size_t)s + 1) * ranks;
        x->choices[s].pace = set_strategy(run, s, pace, x->paces, speeds) ? pace : NULL;
    }
}

void strategies_know_paces(Run* run) {
    const Machine* machine = &run->strategies->as[0]->clock->probed;
    int ranks = run->model.world->size;
    if (machine->n_kinds == 0) return;
    double* speeds = (double*)calloc((size_t)ranks, sizeof *speeds);
    if (!speeds) die("no memory for the paces of %d ranks", ranks);
    for (int r = 0; r < ranks; r++) speeds[r] = machine_speed(machine, r, 1);
    strategies_set_paces(run, speeds);
    free(speeds);
}
