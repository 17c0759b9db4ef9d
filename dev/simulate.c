// simulate.c - build/simulate: the program that searches. It finds layouts for runs (`simulate layout`, `simulate
// what-if`: run/search/search.h), and plays the planners of several systems on the same batches, in the cost model.
//
//   make simulate && build/simulate --machine h200-8b --ranks 256 --docs 2048 --lengths prolong
//
// Every batch is drawn once and planned by all; the plans are played by the same rules (plan/cost/timeline.h): the same
// memory, that of the ZeRO stage; the machine's fixed cost for each micro-batch; links as the machine says; rounds with
// a barrier where the system has them, and for everyone with ZeRO-2 and 3. These are simulations of how planners divide
// work, not measurements of the systems.
//
// Without a barrier a rank needs all weights and all gradients of its own: ZeRO-1. All ranks of ZeRO-2 and 3 join in
// every layer's collectives and run micro-batches in rounds (plan_set_rounds), and flex and adaptive plan for that.
// --zero 1 plays each plan a second time, cut into rounds: the column "in rounds".
//
// A gap is makespan / L3 - 1, where L3 is the lower bound of plan/cost/bound.h for this batch; over L4, the bound for
// any shares of tokens and heads, in the column beside it.
#include "dev/simulate.h"

#include <stdio.h>
#include <stdlib.h>

#include "dev/bench.h"
#include "dev/bound_shares.h"
#include "plan/base/disk.h"
#include "plan/search/explain.h"
#include "plan/step/remap.h"
#include "run/search/search.h"
#include "test/checks.h"

enum { SAMPLE = 16384 };  // lengths of the data set that planners may see before the first step

static void draw_batch(Simulation* s, int batch) {
    int n = s->options->docs;
    lengths_draw(s->lengths, s->drawn, n, (uint64_t)s->options->seed, batch);
    memcpy(s->sorted, s->drawn, sizeof(int) * (size_t)n);
    sort_lengths(s->sorted, n);
}

static int is_held(const Setting* setting, int length) {
    for (int d = 1; d <= setting->limits.ranks; d++)
        if (setting->groups[d].ulysses_size && group_holds(&setting->groups[d], length)) return 1;
    return 0;
}

// Neither planners nor bounds are defined for a document that no group holds.
static void check_held(const Simulation* s, int batch) {
    const PlanLimits* limits = &s->setting.limits;
    for (int i = 0; i < s->options->docs; i++)
        if (!is_held(&s->setting, s->sorted[i]))
            die("batch %d has a document of %d tokens, and no group of up to %d ranks holds it at capacity %d; try "
                "more --ranks, --capacity, or a smaller --context",
                batch, s->sorted[i], limits->ranks, widest_capacity(limits, 1));
}

static void leave_out(Tally* t, const char* why) {
    t->out = 1;
    snprintf(t->why, sizeof t->why, "%s", why);
}

static void open_planners(Simulation* s) {
    char err[ERR_BYTES];
    int* sample = (int*)need(sizeof(int) * SAMPLE);
    lengths_draw(s->lengths, sample, SAMPLE, (uint64_t)s->options->seed, -1);
    for (int i = 0; i < s->n_tallies; i++) {
        Tally* t = &s->tallies[i];
        if (t->out) continue;
        t->state = t->planner->open(&t->setting, sample, SAMPLE, &s->planners, err);
        if (!t->state) leave_out(t, err);
    }
    free(sample);
}

// Cuts a plan without rounds into rounds.
static int play_in_rounds(const Simulation* s, const Tally* t, Plan* plan, Arena* arena, char* err, double* ms) {
    Timeline timeline;
    Setting setting = t->setting;
    setting.rounds = 1;
    if (step_play(&timeline, plan, s->drawn, &setting, arena, err) < 0) return -1;
    *ms = timeline.makespan;
    return 0;
}

// Plans the drawn batch, and plays the plan.
static int play(const Simulation* s, const Tally* t, Shown* x, int batch, Arena* arena, Err err) {
    int n = s->options->docs, changed;
    Plan* plan = &x->plan;
    double start = processor_seconds();
    if (t->planner->plan(t->state, plan, batch, s->drawn, n, arena, err) < 0) return -1;
    *x = (Shown){.name = t->name, .words = t->words, .plan = *plan, .plan_us = 1e6 * (processor_seconds() - start)};
    if (plan_check(plan, s->drawn, n, &t->setting.limits, arena, err) < 0) return -1;
    if (plan_remap(plan, &changed, s->drawn, &t->setting, (RemapChoice)s->options->remap, arena, err) < 0) return -1;
    return step_play(&x->timeline, plan, s->drawn, &t->setting, arena, err);
}

static void play_one(Simulation* s, Tally* t, Arena* arena, int batch, double l3, double l4) {
    char err[ERR_BYTES];
    Shown x;
    double rounds = 0;
    arena_reset(arena, (ArenaMark){0});
    if (play(s, t, &x, batch, arena, err) < 0 || play_in_rounds(s, t, &x.plan, arena, err, &rounds) < 0) {
        leave_out(t, err);
        return;
    }
    const Timeline* played = &x.timeline;
    double gap = l3 > 0 ? played->makespan / l3 - 1 : 0;
    t->batches++;
    t->ms += played->makespan, t->ms_worst = MAX(t->ms_worst, played->makespan);
    t->rounds_ms += rounds, t->step_ms += played->step;
    t->gap += gap, t->gap_worst = MAX(t->gap_worst, gap);
    t->shares_gap += l4 > 0 ? played->makespan / l4 - 1 : 0;
    t->us += x.plan_us, t->us_worst = MAX(t->us_worst, x.plan_us);
    t->idle += played->idle, t->communication_share += played->communication_share;
}

// The time is looked at between batches only: planners cannot be interrupted.
static void look_at_patience(const Options* options, Tally* t) {
    char why[ERR_BYTES];
    double seconds = 1e-6 * t->us;
    if (t->out || options->patience == 0 || seconds <= options->patience || t->batches == options->batches) return;
    snprintf(why, sizeof why, "planned for %.0f s at %d of %d batches; --patience 0 waits", seconds, t->batches,
             options->batches);
    leave_out(t, why);
}

static void play_all(Simulation* s) {
    char err[ERR_BYTES];
    int n = s->options->docs;
    Arena arena = {0};
    open_planners(s);
    for (int b = 0; b < s->options->batches; b++) {
        draw_batch(s, b);
        check_held(s, b);
        Bounds bounds;
        arena_reset(&arena, (ArenaMark){0});
        if (bounds_of(&bounds, s->sorted, n, &s->setting, &arena, err) < 0) die("%s", err);
        double l4;
        if (bound_of_shares(&l4, s->sorted, n, &s->setting, &arena, err) < 0) die("%s", err);
        s->l1 += bounds.l1, s->l3 += bounds.l3, s->l4 += l4;
        s->longest = MAX(s->longest, s->sorted[0]);
        for (int i = 0; i < n; i++) s->tokens += s->sorted[i];
        for (int i = 0; i < s->n_tallies; i++) {
            if (!s->tallies[i].out) play_one(s, &s->tallies[i], &arena, b, bounds.l3, l4);
            look_at_patience(s->options, &s->tallies[i]);
        }
    }
    arena_free(&arena);
}

// ---- the page of plan/search/explain.h about the first batch: what flex plans, beside all others

// flex tells its searches only to whom it plans for.
static void predict_chosen(const Simulation* s, const Tally* chosen, Shown* shown, Prediction* prediction,
                           Arena* arena) {
    char err[ERR_BYTES];
    int n = s->options->docs, status;
    Plan again;
    if (chosen->planner == &planner_flex)
        status = plan_flex(&again, prediction, 0, s->drawn, n, &s->setting, arena, err);
    else status = predict_plan(prediction, &shown->plan, s->drawn, &s->setting, arena, err);
    if (status < 0) die("%s: %s", chosen->name, err);
}

static void write_file(const char* path, const Explained* x) {
    char err[ERR_BYTES], *text;
    size_t bytes;
    FILE* page = open_memstream(&text, &bytes);
    if (!page) die("--explain: no memory for a page");
    explain_page(page, x);
    if (disk_put_stream(path, 1, page, &text, &bytes, err)) die("--explain: %s", err);
}

static void write_page(Simulation* s) {
    char title[256], err[ERR_BYTES];
    const Options* o = s->options;
    Prediction prediction;
    int chosen = -1, n = 0;
    Shown* shown = (Shown*)need(sizeof(Shown) * (size_t)s->n_tallies);
    Arena arena = {0};
    draw_batch(s, 0);
    for (int i = s->n_tallies - 1; i >= 0; i--)
        if (!s->tallies[i].out && (chosen < 0 || s->tallies[chosen].planner != &planner_flex)) chosen = i;
    for (int i = -1; i < s->n_tallies; i++) {
        const Tally* t = &s->tallies[i < 0 ? chosen : i];
        if (i == chosen || t->out) continue;
        if (play(s, t, &shown[n], 0, &arena, err) < 0) die("%s: %s", t->name, err);
        shown[n++].chosen = i < 0;
    }
    predict_chosen(s, &s->tallies[chosen], &shown[0], &prediction, &arena);
    snprintf(title, sizeof title, "%s, %d ranks in nodes of %d, %d documents (%s, seed %lld)", s->machine.cost.name,
             o->ranks, o->node_size, o->docs, o->lengths, (long long)o->seed);
    Explained x = {.title = title,
                   .lengths = s->drawn,
                   .n = o->docs,
                   .setting = &s->setting,
                   .prediction = &prediction,
                   .shown = shown,
                   .n_shown = n};
    write_file(o->explain, &x);
    if (!o->json) printf("the first batch is explained in %s\n", o->explain);
    arena_free(&arena);
    free(shown);
}

// ---- the table

static const Tally* find_flex(const Simulation* s) {
    for (int i = 0; i < s->n_tallies; i++)
        if (s->tallies[i].planner == &planner_flex && !s->tallies[i].out) return &s->tallies[i];
    return NULL;
}

static void print_head(const Simulation* s) {
    const Options* o = s->options;
    char least[32] = "";
    if (s->setting.limits.capacities) snprintf(least, sizeof least, "%d to ", s->setting.limits.capacity);
    printf("%s: %d ranks in nodes of %d, %s%d tokens a rank; %d batches of %d documents, %s up to %d tokens\n\n",
           s->machine.cost.name, o->ranks, o->node_size, least, widest_capacity(&s->setting.limits, 1), o->batches,
           o->docs, o->lengths, o->context);
    printf("%-10s %19s  %15s %7s %15s %6s %6s  %10s %9s %20s\n", "", "predicted, ms", "over L3, %", "L4, %",
           "planning, us", "idle", "links", "in rounds,", "step,", "flex is faster");
    printf("%-10s %9s %9s  %7s %7s %7s %7s %7s %6s %6s  %10s %9s %6s %9s %6s\n", "plan", "mean", "worst", "mean",
           "worst", "mean", "mean", "worst", "%", "%", "ms", "ms", o->zero > 1 ? "" : "free", "in rounds", "step");
}

static void print_row(const Tally* t, const Tally* flex) {
    int n = t->batches;
    printf("%-10s %9.1f %9.1f  %7.2f %7.2f %7.2f", t->name, t->ms / n, t->ms_worst, 100 * t->gap / n,
           100 * t->gap_worst, 100 * t->shares_gap / n);
    printf(" %7.0f %7.0f %6.1f %6.1f  %10.1f %9.1f", t->us / n, t->us_worst, 100 * t->idle / n,
           100 * t->communication_share / n, t->rounds_ms / n, t->step_ms / n);
    if (flex && flex->ms > 0)
        printf(" %5.2fx %8.2fx %5.3fx", t->ms / flex->ms, t->rounds_ms / flex->rounds_ms, t->step_ms / flex->step_ms);
    printf("\n");
}

static void print_json(const Tally* t) {
    int n = t->batches;
    printf("{\"plan\":\"%s\",\"mean_ms\":%.9g,\"worst_ms\":%.9g,\"rounds_ms\":%.9g,\"step_ms\":%.9g,", t->name,
           t->ms / n, t->ms_worst, t->rounds_ms / n, t->step_ms / n);
    printf("\"gap_mean\":%.9g,\"gap_worst\":%.9g,\"shares_gap_mean\":%.9g,", t->gap / n, t->gap_worst,
           t->shares_gap / n);
    printf("\"plan_us_mean\":%.6g,\"plan_us_worst\":%.6g,\"idle\":%.9g,\"communication\":%.9g}\n", t->us / n,
           t->us_worst, t->idle / n, t->communication_share / n);
}

static void print_foot(const Simulation* s) {
    double n = s->options->batches;
    printf(
        "\nlower bounds, mean: work divided without limit L1 %.1f ms, whole documents L3 %.1f ms (L3/L1 %.3f), any "
        "shares "
        "L4 %.1f ms; %.0f tokens a batch, the longest document %d\n",
        s->l1 / n, s->l3 / n, s->l1 > 0 ? s->l3 / s->l1 : 1, s->l4 / n, s->tokens / n, s->longest);
}

int main(int argc, char** argv) {
    Simulation s;
    die_as.program = "simulate";
    if (argc > 1 && (!strcmp(argv[1], "layout") || !strcmp(argv[1], "what-if"))) return search_main(argc, argv);
    if (argc > 1 && !strcmp(argv[1], "explain")) return explain_main(argc, argv);
    Options options = read_options(argc, argv);
    int played = 0;
    if (options.layout) return simulate_layout(&options), 0;
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
            fprintf(options.json ? stderr : stdout, "left out: %s: %s\n", s.tallies[i].name, s.tallies[i].why);
    if (options.explain && played > 0) write_page(&s);
    close_simulation(&s);
    if (played == 0) die("no planner played all batches");
    return 0;
}
