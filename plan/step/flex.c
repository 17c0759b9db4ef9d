// flex.c - plan_flex: groups of unlike cp sizes for every step, by a search over target times.
//
// No plan whose passes have one micro-batch beats Bounds.alone. A guess (packer.c) packs all documents to end before a
// target; targets rise from there in growing steps until one is met, then bisection finds the least that is. If
// documents are few or micro-batches dear, the search is repeated in other ways: with the fullest ranks first, and with
// groups of 8 ranks and multiples, which help if single ranks cannot be filled evenly. A plan within 0.3 % of the bound
// ends the search.
//
// People wait for the whole step (plan/cost/weights.h). Passes run in the order, as found or reversed, in which it
// takes least (order.c). If a step is 1.5 % or more above the bound, the best single cp size is tried, too
// (plan_adaptive), and a plan made for rounds, which ends with full rows on all ranks.
//
// The number of guesses is bounded, time plays no part in decisions, and sums run in one order, so every rank makes the
// same plan.
#include <math.h>

#include "plan/step/packer.h"

static const double good_enough = 1.003;      // of the bound
static const double resolution = 1.0015;      // of the target: bisection ends there
static const double dear_micro_batch = 0.01;  // of the bound: from here on other ways and plans for rounds pay
static const double dear_start = 1.03;        // of the bound: the first target then, as less is hardly ever met
static const double widest_target = 64;       // of the bound: a search gives up there
static const double poor = 1.015;             // of the bound: from here on other kinds of plans are tried, too
static const double very_poor = 1.05;         // the same for many documents
enum { BISECTIONS = 8, MANY = 2048 };

const char* const flex_try_names[FLEX_TRY_KINDS] = {"", "the best single cp size", "cut into rounds afterwards",
                                                    "made for rounds"};

typedef struct Scratch {
    int *order, *sorted;  // (n) documents by descending length, and their lengths
    int* all;             // (n) 0, 1, ...
    GroupChoices groups;  // that planners use
    Arena* arena;
} Scratch;

// Checks that some group that planners use holds every document. 0, or -1 with words.
static int check_held(const Scratch* x, const Packer* packer, Err err) {
    memset(x->groups.ulysses_sizes, 0, sizeof(int) * ((size_t)packer->n_ranks + 1));
    for (int i = 0; i < packer->n_sizes; i++) {
        const CpSize* size = &packer->sizes[i];
        x->groups.ulysses_sizes[size->g->cp_size] = size->g->ulysses_size;
        x->groups.capacities[size->g->cp_size] = size->holds;
        if (packer->n == 0 || group_holds_in(size->g, x->sorted[0], size->room)) return 0;
    }
    return refuse_length(x->order[0], x->sorted[0], &packer->setting->limits, &x->groups, err);
}

// ---- the search

typedef struct Best {
    const int* all;  // documents
    double makespan, target;
    PackWay way;
    double aim;  // ms: no guess ends before it
    int chosen;  // the try that it came from
    int is_last;
} Best;

static int try_target(Packer* packer, Best* b, Prediction* f, PackWay way, double target) {
    double makespan = pack(packer, b->all, packer->n, 0, way, target);
    if (f->n_tries < FLEX_TRIES)
        f->tries[f->n_tries++] =
            (FlexTry){FLEX_GUESS, way.least, target, makespan, makespan < INFINITY ? packer->n_bins : 0, 0};
    b->is_last = makespan < b->makespan;
    if (b->is_last) b->makespan = makespan, b->target = target, b->way = way, b->chosen = f->n_tries - 1;
    return makespan <= target;
}

// Searches for the least target that a way meets, from good enough to what was met before. The latter is hard to beat,
// so steps below it grow from a small one. If nothing was met, targets rise by growing steps.
static void search_way(Packer* packer, Best* b, Prediction* f, PackWay way) {
    double aim = b->aim, low = aim, first = way.levels ? dear_start : good_enough;
    if (b->makespan < INFINITY) {
        double less = 0.001;
        for (low = MAX(b->makespan * (1 - less), aim); try_target(packer, b, f, way, low);) {
            if (b->makespan <= aim * good_enough) return;
            less *= 2;
            low = MAX(b->makespan * (1 - less), aim);
        }
    } else {
        double target = first * aim, step = way.levels ? dear_start - 1 : 0.004;
        while (!try_target(packer, b, f, way, target)) {
            low = target;
            target += step * aim;
            step *= 2;
            if (target > widest_target * aim) return;
        }
    }
    for (int i = 0; i < BISECTIONS && b->makespan > low * resolution && b->makespan > aim * good_enough; i++) {
        double target = (low + b->makespan) / 2;
        if (!try_target(packer, b, f, way, target)) low = target;
    }
}

static void search_all(Packer* packer, Best* b, Prediction* f) {
    static const PackWay ways[] = {{1, 0, 0, 1}, {1, 0, 0, 0}, {8, 0, 0, 1}};
    int few = packer->n <= 2 * packer->n_ranks;
    int dear = packer->setting->groups[1].micro_batch > dear_micro_batch * b->aim;
    for (int i = !dear; i < COUNT(ways); i++) {
        PackWay way = ways[i];
        if (way.least > 1 && ((!few && !dear) || b->makespan <= 1.006 * b->aim)) break;
        way.levels &= dear;
        int divides_ranks = packer->n_ranks % way.least == 0 && packer->node_size % way.least == 0;
        if (divides_ranks) search_way(packer, b, f, way);
    }
    if (b->makespan < INFINITY) f->tries[b->chosen].chosen = 1;
}

// ---- the plan

// Packs the best guess again, unless it was the last. A micro-batch's documents are in the order of their lengths.
static void write_plan(Plan* plan, const Scratch* x, Packer* packer, const Best* b) {
    if (!b->is_last) pack(packer, x->all, packer->n, 0, b->way, b->target);
    plan->n_micro_batches = plan->n_rounds = 0;
    packer_write(packer, plan, x->all, packer->n, x->order, 0);
}

// Returns 1 if other plans are worth a try. With many documents a search for rounds takes longer than a step may gain.
static int is_poor(const Prediction* f, int n) {
    double shown = f->bounds.step - f->bounds.beside;  // in any plan
    return f->step > (n > MANY ? very_poor : poor) * f->bounds.alone + shown;
}

// Notes that the plan, of another search, has replaced the chosen one.
static void choose(Prediction* f, FlexTryKind kind, const Plan* plan) {
    for (int i = 0; i < f->n_tries; i++) f->tries[i].chosen = 0;
    if (f->n_tries < FLEX_TRIES)
        f->tries[f->n_tries++] = (FlexTry){kind, 1, f->bounds.alone, f->makespan, plan->n_micro_batches, 1};
}

// Takes the best single cp size instead if guesses found nothing (makespan infinite) or a longer step.
static void try_adaptive(Plan* plan, Prediction* f, Scratch* x, const int* lengths, int n, const Setting* setting) {
    Plan by_one;
    Prediction other;
    if (plan_adaptive(&by_one, &other, plan->step, lengths, n, f->step, setting, x->arena, NULL)) return;
    plan_copy(plan, &by_one);
    f->makespan = other.makespan, f->step = other.step, f->critical = other.critical;
    choose(f, FLEX_ADAPTIVE, plan);
}

// Takes a plan made for rounds instead if its step takes less. If the setting has rounds, the guesses' results are of
// no use.
static int try_rounds(Plan* plan, Prediction* f, Scratch* x, Packer* packer, const int* lengths, Err err) {
    const Setting* setting = packer->setting;
    Prediction other = *f;
    Plan kept;
    plan_take(&kept, packer->n, x->arena);
    if (arena_check(x->arena, err) < 0) return -1;
    if (setting->rounds) f->n_tries = 0;
    if (setting->rounds && f->makespan < INFINITY) choose(f, FLEX_CUT, plan);
    plan_copy(&kept, plan);
    int found = plan_rounds(plan, packer, x->order, f->step, x->arena, err);
    if (found < 0 || (found && predict_time(&other, plan, lengths, setting, x->arena, err) < 0)) return -1;
    if (!found) return 0;
    if (other.step > f->step * (1 + 1e-12)) {  // of equal plans the one for rounds wins: its sum is known
        plan_copy(plan, &kept);
        return 0;
    }
    f->makespan = other.makespan, f->step = other.step, f->critical = other.critical;
    choose(f, FLEX_ROUNDS, plan);
    return 0;
}

int plan_flex(Plan* plan, Prediction* prediction, int64_t step, const int* lengths, int n, const Setting* setting,
              Arena* arena, Err err) {
    const PlanLimits* limits = &setting->limits;
    if (plan_begin(plan, step, lengths, n, limits, arena, err) < 0) return -1;
    ArenaMark mark = arena_mark(arena);
    Scratch x = {
        .order = TAKE(arena, int, n),
        .sorted = TAKE(arena, int, n),
        .all = TAKE(arena, int, n),
        .groups = {TAKE(arena, int, limits->ranks + 1), TAKE(arena, int, limits->ranks + 1), 1, limits->ranks, NULL},
        .arena = arena};
    Setting in_order = *setting;  // its squares are those of `sorted`
    if (arena_check(arena, err) < 0) return -1;
    *prediction = (Prediction){0};
    sort_longest_first(x.order, x.sorted, lengths, n);
    if (squares_in_order(&in_order.limits, x.order, n, arena, err) < 0) return -1;
    Packer packer = packer_open(x.sorted, n, &in_order, arena);
    if (arena_check(arena, err) < 0) return -1;
    if (check_held(&x, &packer, err) < 0) return -1;
    if (bounds_of(&prediction->bounds, x.sorted, n, &in_order, arena, err) < 0) return -1;
    if (n == 0) return arena_reset(arena, mark), 0;
    Setting freely = in_order;  // the plan cut into rounds is that of free ranks
    Bounds aim = prediction->bounds;
    freely.rounds = 0;
    if (setting->rounds && bounds_of(&aim, x.sorted, n, &freely, arena, err) < 0) return -1;
    Best best = {.all = x.all, .makespan = INFINITY, .aim = aim.alone};
    for (int k = 0; k < n; k++) x.all[k] = k;
    search_all(&packer, &best, prediction);
    prediction->makespan = best.makespan, prediction->step = INFINITY;
    if (best.makespan < INFINITY) {
        write_plan(plan, &x, &packer, &best);
        if (predict_time(prediction, plan, lengths, setting, arena, err) < 0) return -1;
        if (plan_merge(plan, prediction, lengths, setting, arena, err) < 0) return -1;
        if (plan_order(plan, prediction, lengths, setting, arena, err) < 0) return -1;
    }
    if (is_poor(prediction, n)) try_adaptive(plan, prediction, &x, lengths, n, setting);
    int full = is_poor(prediction, n) && n <= MANY;
    if ((setting->rounds || full) && try_rounds(plan, prediction, &x, &packer, lengths, err) < 0) return -1;
    int found = prediction->makespan < INFINITY;
    if (found && (setting->rounds || full) && plan_order(plan, prediction, lengths, setting, arena, err) < 0) return -1;
    arena_reset(arena, mark);
    if (found) return 0;
    return fail(err,
                "no plan for the %d documents of the step on %d ranks at capacity %d with at most %d documents in the "
                "rings of a rank; try --cp kind=ulysses, a larger --capacity or fewer --batch-tokens",
                n, limits->ranks, limits->capacity, limits->max_ring_docs);
}

// The bytes are counted by hand: plan_flex holds 350 a document when merging takes 150 and rounds take 130 more. A
// packing's tree has up to 2^16 leaves of 16 bytes, and as many counts.
size_t planning_bytes(int n, const PlanLimits* limits) {
    return (size_t)n * 512 + (size_t)limits->ranks * 1024 + ((size_t)2 << 20);
}
