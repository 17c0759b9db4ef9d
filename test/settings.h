// settings.h - machines, random settings, random plans and the exact optimum of small cases, for the tests of bounds,
// timelines and planners.
#pragma once
#include <limits.h>

#include "plan/search/machine_asked.h"
#include "plan/cost/timeline.h"
#include "test/plans.h"

// A setting with its own memory. speeds: NULL in setting until a test points it here.
typedef struct World {
    Setting setting;
    GroupCost groups[MOST_RANKS + 1];
    double speeds[MOST_RANKS];
} World;

// A machine that is known by name, with more lines of its file. groups (ranks + 1) point into the setting's cost.
static inline void named_setting(Setting* setting, GroupCost* groups, const char* name, const char* more, int ranks,
                                 int node_size) {
    const char* known = machine_builtin(name);
    Machine machine;
    char text[4096], err[ERR_BYTES];
    int n = snprintf(text, sizeof text, "%s%s", known ? known : "", more);
    if (!known || machine_parse(&machine, text, (size_t)n, err) < 0 ||
        machine_setting(setting, &machine, ranks, node_size, 1 << 20, groups, err) < 0)
        die("%s: %s", name, known ? err : "no such machine");
}

static inline void named_world(World* world, const char* name, int ranks, int node_size) {
    named_setting(&world->setting, world->groups, name, "", ranks, node_size);
}

// A table as a probe would measure it, never falling.
static inline void random_link(LinkTable* link, uint64_t seed, double scale) {
    link->n = pick(seed, 0, 1, 6);
    double ms = scale * random_uniform(seed, 1), bytes = 1000;
    for (int i = 0; i < link->n; i++) {
        link->bytes[i] = bytes, link->ms[i] = ms;
        bytes *= 1 + 20 * random_uniform(seed, 10 + (uint64_t)i);
        ms += scale * random_uniform(seed, 20 + (uint64_t)i) * bytes / 1e5;
    }
}

// Any setting that there may be for these limits: published or measured links, micro-batches that cost something or
// nothing, hiding under its own attention or not, any kind, in one of three cases ranks of unlike speed.
static inline void random_world(World* world, const PlanLimits* limits, uint64_t seed) {
    Setting* s = &world->setting;
    Cost* c = &s->cost;
    *s = (Setting){.limits = *limits, .groups = world->groups, .kind = (CpChoice)pick(seed, 0, 0, 2)};
    *c = (Cost){.per_token = 0.1 + random_uniform(seed, 1), .link_scale = 1};
    c->parts = MAX(0, pick(seed, 15, -3, 4));
    c->quadratic = c->per_token * pick(seed, 2, 0, 4) / 4096.0;
    c->micro_batch = pick(seed, 3, 0, 1) ? 100 * random_uniform(seed, 4) : 0;
    if (pick(seed, 5, 0, 1)) {
        c->token_bytes = 1e6 * random_uniform(seed, 6);
        c->n_groups = pick(seed, 7, 1, 3);
        for (int i = 0; i < c->n_groups; i++) {
            c->group_cp_size[i] = 2 << i;
            c->group_gbps[i] = (1 + 100 * random_uniform(seed, 8 + (uint64_t)i)) / (1 << 2 * i);
        }
    } else {
        c->layers = 4, c->channels = 64, c->kv_channels = pick(seed, 14, 0, 1) ? 64 : 16, c->elem_bytes = 2;
        c->link_scale = pick(seed, 11, 0, 1) ? 1 : random_uniform(seed, 12);
        random_link(&c->link[LINK_INSIDE], seed ^ 0x1111, 0.5);
        c->link[LINK_ACROSS] = c->link[LINK_INSIDE];
        for (int i = 0; i < c->link[LINK_ACROSS].n; i++)
            c->link[LINK_ACROSS].ms[i] *= 1 + 10 * random_uniform(seed, 13);
    }
    for (int r = 0; r < limits->ranks; r++) {
        double u = random_uniform(seed, 100 + (uint64_t)r);
        world->speeds[r] = u < 0.2 ? 0.05 + u : 0.5 + u;
    }
    if (seed % 3 == 0) s->speeds = world->speeds;
    cost_groups(s->groups, c, limits, s->kind);
}

// The same, each in a random world.
__attribute__((unused)) static World world;

static inline int next_world(uint64_t* seed, uint64_t n) {
    if (!next_step(seed, n)) return 0;
    random_world(&world, &step.limits, *seed);
    return 1;
}

// The makespan of a plan; NAN where the cost model cannot play it.
static inline double plan_ms(const Plan* plan, const int* lengths, const Setting* setting) {
    static Arena arena;
    Timeline t;
    soil(&arena, 1, 1 << 18);
    return timeline_play(&t, plan, lengths, setting, &arena, NULL) < 0 ? NAN : t.makespan;
}

// Whether groups hold a document: any, or such as planners use.
static inline int is_held(const Setting* setting, int s, int canonical) {
    for (int d = 1; d <= setting->limits.ranks; d++)
        if (setting->groups[d].canonical >= canonical && group_holds(&setting->groups[d], s)) return 1;
    return 0;
}

static inline int longest_of(const Step* x) {
    int longest = 0;
    for (int i = 0; i < x->n; i++) longest = MAX(longest, x->lengths[i]);
    return longest;
}

static inline int longer_first(const void* a, const void* b) {
    int x = *(const int*)a, y = *(const int*)b;
    return (x < y) - (x > y);
}

static inline void sort_descending(int* sorted, const int* lengths, int n) {
    memcpy(sorted, lengths, sizeof(int) * (size_t)n);
    qsort(sorted, (size_t)n, sizeof(int), longer_first);
}

// Documents become trees, the longest first: of each, what its pairs of tokens may be.
static inline void grow_trees(Step* x, PlanLimits* limits, uint64_t seed) {
    static double squares[MOST_DOCS];
    sort_descending(x->lengths, x->lengths, x->n);
    for (int i = 0; i < x->n; i++) {
        double s = x->lengths[i], u = random_uniform(seed, 2000 + (uint64_t)i);
        squares[i] = u < 0.3 ? s * s : s + u * u * (s * s - s);
    }
    limits->squares = x->limits.squares = squares;
}

// The step's ranks hold from its capacity on up to eight times as much; every third of these steps has two kinds.
static inline void make_unlike(Step* x, int* capacities, uint64_t seed) {
    PlanLimits* l = &x->limits;
    int least = INT_MAX;
    for (int r = 0; r < l->ranks; r++) {
        uint64_t at = 3000 + (seed % 3 == 0 ? (uint64_t)r / MAX(1, (uint64_t)l->ranks / 2) : (uint64_t)r);
        capacities[r] = (int)(l->capacity * (1 + 7 * pow(random_uniform(seed, at), 3)));
        least = MIN(least, capacities[r]);
    }
    l->capacity = least, l->capacities = capacities;
}

// A step that brute force can solve: at most `most` documents, 4 ranks, on one machine or two.
static inline Step small_random_step(uint64_t seed, int most) {
    Step step = {.n = pick(seed, 0, 1, most)};
    int longest = pick(seed, 1, 1, 3) * 4000;
    step.limits = (PlanLimits){.ranks = pick(seed, 2, 1, 4),
                               .node_size = pick(seed, 3, 1, 4),
                               .capacity = pick(seed, 4, 1, 8) * 1000,
                               .kv_heads = pick(seed, 5, 1, 8),
                               .max_ring_docs = MOST_DOCS};
    for (int i = 0; i < step.n; i++) {
        double u = random_uniform(seed, 100 + (uint64_t)i);
        step.lengths[i] = 1 + (int)(u * u * longest);
    }
    step_memory(&step);
    return step;
}

// ---- any plan at all

// Whether document s and those with so many tokens at every place so far fit one micro-batch.
static inline int joins(const GroupCost* g, int64_t* place, int s) {
    int ring_size = g->cp_size / g->ulysses_size;
    int64_t sum = *place + widest_ring_rank(s, ring_size);
    if (sum > g->room) return 0;
    *place = sum;
    return 1;
}

// Documents in any order, in micro-batches of any cp size that the setting has, on any ranks, alone or with others. 0,
// or -1 where a document fits no group.
static inline int scatter(Plan* plan, const int* lengths, int n, const Setting* setting, uint64_t seed) {
    const PlanLimits* l = &setting->limits;
    int64_t place = 0;
    *plan = (Plan){.ranks = l->ranks,
                   .n_docs = n,
                   .docs = plan->docs,
                   .squares = l->squares,
                   .micro_batches = plan->micro_batches};
    for (int i = 0; i < n; i++) plan->docs[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int j = pick(seed, (uint64_t)i, 0, i), doc = plan->docs[i];
        plan->docs[i] = plan->docs[j], plan->docs[j] = doc;
    }
    for (int i = 0; i < n; i++) {
        int s = lengths[plan->docs[i]], cp_sizes[MOST_RANKS], n_cp_sizes = 0;
        uint64_t at = 1000 + 4 * (uint64_t)i;
        MicroBatch* last = &plan->micro_batches[plan->n_micro_batches - (plan->n_micro_batches > 0)];
        if (plan->n_micro_batches > 0 && pick(seed, at, 0, 2) && joins(&setting->groups[last->cp_size], &place, s)) {
            last->n_docs++;
            continue;
        }
        for (int d = 1; d <= l->ranks; d++)
            if (group_holds(&setting->groups[d], s)) cp_sizes[n_cp_sizes++] = d;
        if (!n_cp_sizes) return -1;
        // The least cp size that holds it is taken often, else few micro-batches would have several documents.
        int d = cp_sizes[pick(seed, at + 1, 0, 1) ? 0 : pick(seed, at + 2, 0, n_cp_sizes - 1)];
        int first = pick(seed, at + 3, 0, l->ranks - d);
        plan->micro_batches[plan->n_micro_batches++] = (MicroBatch){first, d, setting->groups[d].ulysses_size, i, 1, 0};
        place = widest_ring_rank(s, d / setting->groups[d].ulysses_size);
    }
    return 0;
}

// ---- the exact optimum, each document a micro-batch of its own

enum { OPTIMUM_DOCS = 8, OPTIMUM_RANKS = 4, OPTIMUM_WINDOWS = OPTIMUM_RANKS * (OPTIMUM_RANKS + 1) / 2 };

typedef struct Optimum {
    int n, ranks, n_windows;
    int lengths[OPTIMUM_DOCS];
    double seen[OPTIMUM_DOCS];
    int first[OPTIMUM_WINDOWS], end[OPTIMUM_WINDOWS];
    double ms[OPTIMUM_DOCS][OPTIMUM_WINDOWS];  // INFINITY: does not fit
    double area[OPTIMUM_DOCS];                 // least ranks x ms
    double best;
} Optimum;

// Documents start in the order in which they are placed: any schedule can be written so, and ranks that are free before
// `start` stay so until then. Of equal documents the first comes first.
static inline void place_rest(Optimum* o, int done, const double* load, double start, double area) {
    double taken = area, end = 0;
    for (int r = 0; r < o->ranks; r++) taken += MAX(load[r], start), end = MAX(end, load[r]);
    if (taken >= o->best * o->ranks * (1 - 1e-12) || end >= o->best) return;
    if (done == (1 << o->n) - 1) {
        o->best = end;
        return;
    }
    for (int i = 0; i < o->n; i++) {
        int twin =
            i > 0 && o->lengths[i] == o->lengths[i - 1] && o->seen[i] == o->seen[i - 1] && !(done >> (i - 1) & 1);
        if (done >> i & 1 || twin) continue;
        for (int w = 0; w < o->n_windows; w++) {
            double begin = 0, after[OPTIMUM_RANKS];
            for (int r = o->first[w]; r < o->end[w]; r++) begin = MAX(begin, load[r]);
            if (begin < start || begin + o->ms[i][w] >= o->best) continue;
            for (int r = 0; r < o->ranks; r++)
                after[r] = r >= o->first[w] && r < o->end[w] ? begin + o->ms[i][w] : load[r];
            place_rest(o, done | 1 << i, after, begin, area - o->area[i]);
        }
    }
}

// Whether planners put groups there: inside a machine, on whole machines, or on all ranks.
static inline int usual_window(const PlanLimits* l, int first, int end) {
    int node = l->node_size;
    return first / node == (end - 1) / node || (first % node == 0 && end % node == 0) || end - first == l->ranks;
}

// lengths (n) descending. usual: only on usual windows. below: only what is better is looked for, INFINITY for
// anything; the least makespan, or `below`.
static inline double optimum(const int* lengths, int n, const Setting* setting, int usual, double below) {
    const PlanLimits* l = &setting->limits;
    Optimum o = {.n = n, .ranks = l->ranks, .best = below};
    double load[OPTIMUM_RANKS] = {0}, area = 0;
    if (n > OPTIMUM_DOCS || l->ranks > OPTIMUM_RANKS) abort();
    for (int i = 0; i < n; i++) o.seen[i] = seen_tokens(l->squares, i, lengths[i]);
    for (int first = 0; first < l->ranks; first++)
        for (int end = first + 1; end <= l->ranks; end++) {
            if (usual && !usual_window(l, first, end)) continue;
            o.first[o.n_windows] = first, o.end[o.n_windows] = end;
            GroupCost g = cost_group(&setting->cost, l, first, end - first, setting->groups[end - first].ulysses_size);
            double speed = INFINITY;
            for (int r = first; r < end; r++) speed = MIN(speed, setting->speeds ? setting->speeds[r] : 1);
            for (int i = 0; i < n; i++) {
                double s = lengths[i];
                CostTerms t = group_terms(&g, s * o.seen[i], s);
                double left[2];
                t.communication -= group_hidden_ms(left, &g, t.quadratic / speed, s, NULL);
                int fits = g.ulysses_size > 0 && group_holds(&g, lengths[i]);
                o.ms[i][o.n_windows] =
                    fits ? (t.quadratic + t.per_token) / speed + t.communication + t.micro_batch : INFINITY;
            }
            o.n_windows++;
        }
    for (int i = 0; i < n; i++) {
        o.lengths[i] = lengths[i];
        o.area[i] = INFINITY;
        for (int w = 0; w < o.n_windows; w++) o.area[i] = MIN(o.area[i], o.ms[i][w] * (o.end[w] - o.first[w]));
        area += o.area[i];
    }
    place_rest(&o, 0, load, 0, area);
    return o.best;
}
