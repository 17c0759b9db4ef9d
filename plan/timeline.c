// timeline.c - plays a plan item by item, in the order of its list; see timeline.h.
//
// With rounds the items are taken round by round, in the order of the list inside each. Every item remembers the one
// whose end decided its start, so that the chain to the item that ends last can be followed back.
#include "plan/timeline.h"

#include "plan/planner.h"

typedef struct Play {
    const Plan* plan;
    const int* lengths;
    const Setting* setting;
    const PlayRule* rule;
    CostTerms* terms;  // (n_items)
    int* before;       // (n_items) the item that decided the start, -1: nothing ran before
    int* order;        // (n_items)
    int* first;        // (n_items + 1) of a round in order
    int* last;         // (ranks) last item of a rank, -1: none
    GroupCost other;   // a group that is not one of the setting's
    int n_rounds;
} Play;

static size_t carve_play(Play* x, void* memory, int n_items, int ranks) {
    Carver c = {(char*)memory, 0};
    size_t ints = sizeof(int) * (size_t)n_items;
    x->terms = (CostTerms*)carve(&c, sizeof(CostTerms) * (size_t)n_items);
    x->before = (int*)carve(&c, ints);
    x->order = (int*)carve(&c, ints);
    x->first = (int*)carve(&c, ints + sizeof(int));
    x->last = (int*)carve(&c, sizeof(int) * (size_t)ranks);
    return c.bytes;
}

size_t timeline_scratch(int n_items, int ranks) { return carve_play(&(Play){0}, NULL, n_items, ranks); }

static size_t carve_timeline(Timeline* t, void* memory, int n_items, int ranks) {
    Carver c = {(char*)memory, 0};
    size_t items = sizeof(double) * (size_t)n_items;
    t->start = (double*)carve(&c, items);
    t->end = (double*)carve(&c, items);
    t->exchange = (double*)carve(&c, items);
    t->rank_end = (double*)carve(&c, sizeof(double) * (size_t)ranks);
    return c.bytes;
}

size_t timeline_bytes(int n_items, int ranks) { return carve_timeline(&(Timeline){0}, NULL, n_items, ranks); }

void timeline_carve(Timeline* timeline, void* memory, int n_items, int ranks) {
    *timeline = (Timeline){0};
    carve_timeline(timeline, memory, n_items, ranks);
}

// ---- items

// Groups of the setting begin at rank 0: those that begin at a machine, or are inside one, cost the same.
static const GroupCost* group_of(Play* x, const Item* item) {
    const PlanLimits* limits = &x->setting->limits;
    int at = item->first_rank % limits->node_size;
    const GroupCost* known = &x->setting->groups[item->degree];
    if (known->inner == item->inner && (at == 0 || at + item->degree <= limits->node_size)) return known;
    x->other = cost_group(&x->setting->cost, limits, item->first_rank, item->degree, item->inner);
    return &x->other;
}

static double slowest(const double* speeds, const Item* item) {
    double speed = speeds[item->first_rank];
    for (int r = 1; r < item->degree; r++) speed = MIN(speed, speeds[item->first_rank + r]);
    return speed;
}

static int weigh_item(Play* x, int i, char* err, size_t errlen) {
    const Item* item = &x->plan->items[i];
    double s2 = 0, tokens = 0, speed = x->setting->speeds ? slowest(x->setting->speeds, item) : 1;
    const GroupCost* g = group_of(x, item);
    if (g->inner == 0)
        return fail(err, errlen, "item %d: the cost model knows no group of %d ranks of which %d share heads", i,
                    item->degree, item->inner);
    for (int j = 0; j < item->n_docs; j++) {
        double s = x->lengths[x->plan->docs[item->first_doc + j]];
        s2 += s * s, tokens += s;
    }
    CostTerms* t = &x->terms[i];
    *t = group_terms(g, s2, tokens);
    t->quadratic /= speed;
    t->linear = x->rule->even_linear ? 0 : t->linear / speed;
    if (g->across && x->rule->across_scale > 0) t->exchange *= x->rule->across_scale;
    t->item += x->rule->item_ms;
    return 0;
}

// Without rounds all are of one. 0, or -1 for rounds that no plan of so many items has.
static int order_items(Play* x, char* err, size_t errlen) {
    const Plan* plan = x->plan;
    memset(x->first, 0, sizeof(int) * ((size_t)plan->n_items + 1));
    x->n_rounds = plan->n_items > 0;
    for (int i = 0; i < plan->n_items && x->rule->in_rounds; i++) {
        int round = plan->items[i].round;
        if (round < 0 || round >= plan->n_items)
            return fail(err, errlen, "item %d is in round %d of a plan of %d items", i, round, plan->n_items);
        x->n_rounds = MAX(x->n_rounds, round + 1);
    }
    for (int i = 0; i < plan->n_items; i++) x->first[x->rule->in_rounds ? plan->items[i].round + 1 : 1]++;
    for (int r = 0; r < x->n_rounds; r++) x->first[r + 1] += x->first[r];
    for (int i = 0; i < plan->n_items; i++) x->order[x->first[x->rule->in_rounds ? plan->items[i].round : 0]++] = i;
    // Each first[r] has walked to the start of round r + 1: move them one place up.
    memmove(x->first + 1, x->first, sizeof(int) * (size_t)x->n_rounds);
    x->first[0] = 0;
    return 0;
}

// ---- playing

// Ranks have ended items `last`; the item starts then, but not before `open`, which item `opener` decided.
static void play_item(Play* x, Timeline* t, int i, double open, int opener) {
    const Item* item = &x->plan->items[i];
    t->start[i] = open;
    x->before[i] = opener;
    for (int r = item->first_rank; r < item->first_rank + item->degree; r++)
        if (t->rank_end[r] > t->start[i]) t->start[i] = t->rank_end[r], x->before[i] = x->last[r];
    t->end[i] = t->start[i] + terms_ms(&x->terms[i]);
    t->exchange[i] = x->terms[i].exchange;
    for (int r = item->first_rank; r < item->first_rank + item->degree; r++) t->rank_end[r] = t->end[i], x->last[r] = i;
}

static void play_rounds(Play* x, Timeline* t) {
    double open = 0;
    int opener = -1;
    for (int round = 0; round < x->n_rounds; round++) {
        double end = open;
        int ended = opener;
        for (int j = x->first[round]; j < x->first[round + 1]; j++) {
            int i = x->order[j];
            play_item(x, t, i, open, opener);
            if (t->end[i] > end) end = t->end[i], ended = i;
        }
        open = end + (x->rule->in_rounds ? x->rule->round_ms : 0);
        opener = ended;
    }
}

// The linear work behind the items, at every rank's own pace: what it is, per rank of speed 1.
static double spread_linear(const Play* x, Timeline* t) {
    const Plan* plan = x->plan;
    double tokens = 0;
    for (int i = 0; i < plan->n_docs; i++) tokens += x->lengths[i];
    double linear = x->setting->cost.linear * tokens / plan->ranks;
    for (int r = 0; r < plan->ranks; r++)
        t->rank_end[r] += x->rule->remap_ms + linear / (x->setting->speeds ? x->setting->speeds[r] : 1);
    return linear;
}

static void follow_back(const Play* x, Timeline* t, int i) {
    for (; i >= 0; i = x->before[i]) {
        const CostTerms* a = &x->terms[i];
        t->critical.quadratic += a->quadratic;
        t->critical.linear += a->linear;
        t->critical.exchange += a->exchange;
        t->critical.item += a->item;
        t->critical_items++;
    }
}

static void count_shares(const Play* x, Timeline* t, double linear) {
    const Plan* plan = x->plan;
    double all = plan->ranks * t->makespan, busy = 0, exchange = 0;
    if (!(all > 0)) return;
    for (int i = 0; i < plan->n_items; i++) {
        busy += plan->items[i].degree * terms_ms(&x->terms[i]);
        exchange += plan->items[i].degree * x->terms[i].exchange;
    }
    if (x->rule->in_rounds) busy += plan->ranks * (x->rule->round_ms * x->n_rounds);
    for (int r = 0; r < plan->ranks && x->rule->even_linear; r++) {
        busy += x->rule->remap_ms + linear / (x->setting->speeds ? x->setting->speeds[r] : 1);
        exchange += x->rule->remap_ms;
    }
    t->idle = MAX(1 - busy / all, 0);
    t->communication = exchange / all;
}

int timeline_play(Timeline* timeline, const Plan* plan, const int* lengths, const Setting* setting,
                  const PlayRule* rule, void* scratch, char* err, size_t errlen) {
    Play x = {.plan = plan, .lengths = lengths, .setting = setting, .rule = rule};
    Timeline* t = timeline;
    carve_play(&x, scratch, plan->n_items, plan->ranks);
    for (int i = 0; i < plan->n_items; i++)
        if (weigh_item(&x, i, err, errlen) < 0) return -1;
    if (order_items(&x, err, errlen) < 0) return -1;
    for (int r = 0; r < plan->ranks; r++) t->rank_end[r] = 0, x.last[r] = -1;
    t->critical = (CostTerms){0};
    t->critical_items = 0;
    t->idle = t->communication = 0;

    play_rounds(&x, t);
    double linear = rule->even_linear ? spread_linear(&x, t) : 0;
    int last = 0;
    for (int r = 1; r < plan->ranks; r++)
        if (t->rank_end[r] > t->rank_end[last]) last = r;
    follow_back(&x, t, x.last[last]);
    t->makespan = t->rank_end[last];
    if (rule->even_linear) {
        t->critical.linear += linear / (setting->speeds ? setting->speeds[last] : 1);
        t->critical.exchange += rule->remap_ms;
    }
    if (rule->in_rounds && x.n_rounds > 0) t->makespan += rule->round_ms;
    count_shares(&x, t, linear);
    return 0;
}
