// timeline.c - plays a plan micro-batch by micro-batch, in the order of its list; see timeline.h.
//
// With rounds the micro-batches are taken round by round, in the order of the list inside each. Every micro-batch
// remembers the one whose end decided its start, so that the chain to the micro-batch that ends last can be followed
// back.
#include "plan/timeline.h"

typedef struct Play {
    const Plan* plan;
    const int* lengths;
    const Setting* setting;
    const PlayRule* rule;
    CostTerms* terms;  // (n_micro_batches)
    int* before;       // (n_micro_batches) the micro-batch that decided the start, -1: nothing ran before
    int* order;        // (n_micro_batches)
    int* first;        // (n_micro_batches + 1) of a round in order
    int* last;         // (ranks) last micro-batch of a rank, -1: none
    GroupCost other;   // a group that is not one of the setting's
    int n_rounds;
} Play;

// ---- micro-batches

// Groups of the setting begin at rank 0: those that begin at a node, or are inside one, cost the same.
static const GroupCost* group_of(Play* x, const MicroBatch* mb) {
    const PlanLimits* limits = &x->setting->limits;
    int at = mb->first_rank % limits->node_size;
    const GroupCost* known = &x->setting->groups[mb->cp_size];
    if (known->ulysses_size == mb->ulysses_size && (at == 0 || at + mb->cp_size <= limits->node_size)) return known;
    x->other = cost_group(&x->setting->cost, limits, mb->first_rank, mb->cp_size, mb->ulysses_size);
    return &x->other;
}

static double slowest(const double* speeds, const MicroBatch* mb) {
    double speed = speeds[mb->first_rank];
    for (int r = 1; r < mb->cp_size; r++) speed = MIN(speed, speeds[mb->first_rank + r]);
    return speed;
}

static int weigh_micro_batch(Play* x, int i, char* err, size_t errlen) {
    const MicroBatch* mb = &x->plan->micro_batches[i];
    double s2 = 0, tokens = 0, speed = x->setting->speeds ? slowest(x->setting->speeds, mb) : 1;
    const GroupCost* g = group_of(x, mb);
    if (g->ulysses_size == 0)
        return fail(err, errlen, "micro-batch %d: the cost model knows no group of %d ranks of which %d share heads", i,
                    mb->cp_size, mb->ulysses_size);
    for (int j = 0; j < mb->n_docs; j++) {
        double s = x->lengths[x->plan->docs[mb->first_doc + j]];
        s2 += s * s, tokens += s;
    }
    CostTerms* t = &x->terms[i];
    *t = group_terms(g, s2, tokens);
    t->quadratic /= speed;
    t->per_token = x->rule->even_linear ? 0 : t->per_token / speed;
    if (x->rule->hidden_rings && x->setting->cost.n_groups > 0 && mb->cp_size > 1)
        t->communication = published_token_ms(&x->setting->cost, mb->cp_size) * tokens;
    if (g->across && x->rule->across_scale > 0) t->communication *= x->rule->across_scale;
    return 0;
}

// Without rounds all are of one. 0, or -1 for rounds that no plan of so many micro-batches has.
static int order_micro_batches(Play* x, char* err, size_t errlen) {
    const Plan* plan = x->plan;
    memset(x->first, 0, sizeof(int) * ((size_t)plan->n_micro_batches + 1));
    x->n_rounds = plan->n_micro_batches > 0;
    for (int i = 0; i < plan->n_micro_batches && x->rule->in_rounds; i++) {
        int round = plan->micro_batches[i].round;
        if (round < 0 || round >= plan->n_micro_batches)
            return fail(err, errlen, "micro-batch %d is in round %d of a plan of %d micro-batches", i, round,
                        plan->n_micro_batches);
        x->n_rounds = MAX(x->n_rounds, round + 1);
    }
    for (int i = 0; i < plan->n_micro_batches; i++)
        x->first[x->rule->in_rounds ? plan->micro_batches[i].round + 1 : 1]++;
    for (int r = 0; r < x->n_rounds; r++) x->first[r + 1] += x->first[r];
    for (int i = 0; i < plan->n_micro_batches; i++)
        x->order[x->first[x->rule->in_rounds ? plan->micro_batches[i].round : 0]++] = i;
    // Each first[r] has walked to the start of round r + 1: move them one place up.
    memmove(x->first + 1, x->first, sizeof(int) * (size_t)x->n_rounds);
    x->first[0] = 0;
    return 0;
}

// ---- playing

// Ranks have ended micro-batches `last`; the micro-batch starts then, but not before `open`, which micro-batch `opener`
// decided.
static void play_micro_batch(Play* x, Timeline* t, int i, double open, int opener) {
    const MicroBatch* mb = &x->plan->micro_batches[i];
    t->start[i] = open;
    x->before[i] = opener;
    for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++)
        if (t->rank_end[r] > t->start[i]) t->start[i] = t->rank_end[r], x->before[i] = x->last[r];
    t->end[i] = t->start[i] + terms_ms(&x->terms[i]);
    t->communication[i] = x->terms[i].communication;
    for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++) t->rank_end[r] = t->end[i], x->last[r] = i;
}

static void play_rounds(Play* x, Timeline* t) {
    double open = 0;
    int opener = -1;
    for (int round = 0; round < x->n_rounds; round++) {
        double end = open;
        int ended = opener;
        for (int j = x->first[round]; j < x->first[round + 1]; j++) {
            int i = x->order[j];
            play_micro_batch(x, t, i, open, opener);
            if (t->end[i] > end) end = t->end[i], ended = i;
        }
        open = end;
        opener = ended;
    }
}

// The linear work behind the micro-batches, at every rank's own pace: what it is, per rank of speed 1.
static double spread_linear(const Play* x, Timeline* t) {
    const Plan* plan = x->plan;
    double tokens = 0;
    for (int i = 0; i < plan->n_docs; i++) tokens += x->lengths[i];
    double linear = x->setting->cost.per_token * tokens / plan->ranks;
    for (int r = 0; r < plan->ranks; r++)
        t->rank_end[r] += x->rule->remap_ms + linear / (x->setting->speeds ? x->setting->speeds[r] : 1);
    return linear;
}

static void follow_back(const Play* x, Timeline* t, int i) {
    for (; i >= 0; i = x->before[i]) {
        const CostTerms* a = &x->terms[i];
        t->critical.quadratic += a->quadratic;
        t->critical.per_token += a->per_token;
        t->critical.communication += a->communication;
        t->critical.micro_batch += a->micro_batch;
        t->critical_micro_batches++;
    }
}

static void count_shares(const Play* x, Timeline* t, double linear) {
    const Plan* plan = x->plan;
    double all = plan->ranks * t->makespan, busy = 0, communication = 0;
    if (!(all > 0)) return;
    for (int i = 0; i < plan->n_micro_batches; i++) {
        busy += plan->micro_batches[i].cp_size * terms_ms(&x->terms[i]);
        communication += plan->micro_batches[i].cp_size * x->terms[i].communication;
    }
    for (int r = 0; r < plan->ranks && x->rule->even_linear; r++) {
        busy += x->rule->remap_ms + linear / (x->setting->speeds ? x->setting->speeds[r] : 1);
        communication += x->rule->remap_ms;
    }
    t->idle = MAX(1 - busy / all, 0);
    t->communication_share = communication / all;
}

int timeline_play(Timeline* timeline, const Plan* plan, const int* lengths, const Setting* setting,
                  const PlayRule* rule, Arena* arena, char* err, size_t errlen) {
    int n = plan->n_micro_batches;
    Timeline* t = timeline;
    *t = (Timeline){.start = TAKE(arena, double, n),
                    .end = TAKE(arena, double, n),
                    .communication = TAKE(arena, double, n),
                    .rank_end = TAKE(arena, double, plan->ranks)};
    ArenaMark mark = arena_mark(arena);
    Play x = {.plan = plan,
              .lengths = lengths,
              .setting = setting,
              .rule = rule,
              .terms = TAKE(arena, CostTerms, n),
              .before = TAKE(arena, int, n),
              .order = TAKE(arena, int, n),
              .first = TAKE(arena, int, n + 1),
              .last = TAKE(arena, int, plan->ranks)};
    if (arena_check(arena, err, errlen) < 0) return -1;
    for (int i = 0; i < plan->n_micro_batches; i++)
        if (weigh_micro_batch(&x, i, err, errlen) < 0) return -1;
    if (order_micro_batches(&x, err, errlen) < 0) return -1;
    for (int r = 0; r < plan->ranks; r++) t->rank_end[r] = 0, x.last[r] = -1;

    play_rounds(&x, t);
    double linear = rule->even_linear ? spread_linear(&x, t) : 0;
    int last = 0;
    for (int r = 1; r < plan->ranks; r++)
        if (t->rank_end[r] > t->rank_end[last]) last = r;
    follow_back(&x, t, x.last[last]);
    t->makespan = t->rank_end[last];
    if (rule->even_linear) {
        t->critical.per_token += linear / (setting->speeds ? setting->speeds[last] : 1);
        t->critical.communication += rule->remap_ms;
    }
    count_shares(&x, t, linear);
    arena_reset(arena, mark);
    return 0;
}
