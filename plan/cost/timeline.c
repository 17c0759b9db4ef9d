// timeline.c - plays a plan pass by pass, in the order of rounds; without rounds every micro-batch is a pass, in the
// order of the list. See timeline.h.
//
// Passes of several ranks that share micro-batches go together: they are known by the first of their micro-batches.
// Each remembers the one whose end decided its start, so that the chain to the one that ends last can be followed back.
#include "plan/cost/timeline.h"

typedef struct Play {
    const Plan* plan;
    const int* lengths;
    const Setting* setting;
    int in_rounds;     // with a barrier between rounds
    CostTerms* terms;  // (n_micro_batches) of each, and then of passes
    double (*first_ms)
        [2];           // (n_micro_batches) of what is posted first, what other attention may hide, forward and backward
    int* before;       // (n_micro_batches) of passes: the one that decided the start, -1: nothing ran before
    int* order;        // (n_micro_batches)
    int* first;        // (n_micro_batches + 1) of a round in order
    int *next, *pass;  // (n_micro_batches) of the same passes, -1: the last; the first of them
    int* last;         // (ranks) last pass of a rank, -1: none
    int* at;           // (ranks) a micro-batch of it in this round, -1: none
    int* attends;      // (n_micro_batches) remapped_to
    struct RankPart *parts, *longest;  // (ranks)
    GroupCost other;                   // a group that is not one of the setting's
    int n_rounds;
    double busy, communication;  // rank-ms so far
} Play;

// What one rank does in a pass, in ms.
typedef struct RankPart {
    double linear, local, shared, communication, first[2];  // local, shared: attention; first: of communication
} RankPart;

// ---- micro-batches

// The tokens that a rank has of a remapped micro-batch.
static int remapped_tokens(const Play* x, int i, int rank) {
    const MicroBatch* mb = &x->plan->micro_batches[i];
    const int* border = plan_placement(x->plan, mb).token_border + (rank - mb->first_rank);
    return border[1] - border[0];
}

// Whether a rank of micro-batch i has anything to do in it.
static int takes_part(const Play* x, int i, int rank) {
    return x->attends[i] < 0 || x->attends[i] == rank || remapped_tokens(x, i, rank) > 0;
}

// Chunk j of a document of s tokens is e - b of them: as queries of a causal document they see e^2 - b^2 of its s^2. On
// published machines an exchange counts what stays on a rank, too. Ranks that share heads wait for each other between
// linear layers and attention; those of a ring do not, so that the one with most of both together counts.
static GroupFactors factors_of(const Play* x, const MicroBatch* mb) {
    Placement p = plan_placement(x->plan, mb);
    int u = mb->ulysses_size, ring_size = mb->cp_size / u, heads = x->setting->limits.kv_heads;
    const Cost* c = &x->setting->cost;
    int counts_kept = c->n_groups > 0;
    LengthSums sums = micro_batch_sums(x->plan, mb, x->lengths);
    GroupFactors most = {0};
    for (int a = 0; a < ring_size; a++) {
        const int* border = p.token_border + a * (u + 1);
        double seen = 0, all = border[u], linear = 0, attention = 0;
        for (int k = 0; k < mb->n_docs * p.n_chunks; k++) {
            const int* chunk = p.chunk_border + k / p.n_chunks * (p.n_chunks + 1) + k % p.n_chunks;
            double end = chunk[1], begin = chunk[0];
            if (p.owner[k % p.n_chunks] == a) seen += end * end - begin * begin;
        }
        for (int b = 0; b < u; b++) {
            double own = border[b + 1] - border[b], part = (double)(p.head_border[b + 1] - p.head_border[b]) / heads;
            double moved = MAX(own * (1 - part), (all - own) * part) + (counts_kept ? own * part : 0);
            linear = MAX(linear, own), attention = MAX(attention, seen * part);
            most.exchange = MAX(most.exchange, moved), most.hop = MAX(most.hop, all * part);
        }
        if (c->per_token * linear + c->quadratic * attention >
            c->per_token * most.linear + c->quadratic * most.attention)
            most.linear = linear, most.attention = attention;
    }
    most.linear *= mb->cp_size / sums.tokens, most.hop *= mb->cp_size / sums.tokens;
    most.attention *= mb->cp_size / sums.squares;
    most.exchange *= mb->cp_size / sums.tokens / (counts_kept || u == 1 ? 1 : 1 - 1.0 / u);
    return most;
}

// Groups of the setting begin at rank 0: those that begin at a node, or are inside one, cost the same.
static const GroupCost* group_of(Play* x, const MicroBatch* mb) {
    const PlanLimits* limits = &x->setting->limits;
    int at = mb->first_rank % limits->node_size;
    if (x->plan->placed_at && mb->cp_size > 1 && remapped_to(x->plan, mb) < 0) {
        GroupFactors factors = factors_of(x, mb);
        x->other =
            cost_group_in_shares(&x->setting->cost, limits, mb->first_rank, mb->cp_size, mb->ulysses_size, &factors);
        return &x->other;
    }
    const GroupCost* known = &x->setting->groups[mb->cp_size];
    if (known->ulysses_size == mb->ulysses_size && (at == 0 || at + mb->cp_size <= limits->node_size)) return known;
    x->other = cost_group(&x->setting->cost, limits, mb->first_rank, mb->cp_size, mb->ulysses_size);
    return &x->other;
}

static int weigh_micro_batch(Play* x, int i, Err err) {
    const MicroBatch* mb = &x->plan->micro_batches[i];
    double speed = slowest_speed(x->setting, mb->first_rank, mb->cp_size);
    const GroupCost* g = group_of(x, mb);
    x->attends[i] = remapped_to(x->plan, mb);
    if (g->ulysses_size == 0)
        return fail(err, "micro-batch %d: the cost model knows no group of %d ranks of which %d share heads", i,
                    mb->cp_size, mb->ulysses_size);
    LengthSums sums = micro_batch_sums(x->plan, mb, x->lengths);
    CostTerms* t = &x->terms[i];
    *t = group_terms(g, sums.squares, sums.tokens);
    t->quadratic /= speed;
    if (x->attends[i] >= 0) {  // all heads on one rank
        double own_speed = x->setting->speeds ? x->setting->speeds[x->attends[i]] : 1;
        t->quadratic = x->setting->cost.quadratic * sums.squares / own_speed;
    }
    t->per_token /= speed;
    double faster[2];
    x->first_ms[i][0] = x->first_ms[i][1] = 0;
    t->communication -= route_saved_ms(faster, x->setting, g, mb->first_rank, sums.tokens);
    if (x->setting->no_overlap) return 0;
    double hidden = group_hidden_ms(x->first_ms[i], g, t->quadratic, sums.tokens, faster);
    t->communication = MAX(t->communication - hidden, 0);
    return 0;
}

// Without rounds all are of one. 0, or -1 for rounds that no plan of so many micro-batches has.
static int order_micro_batches(Play* x, Err err) {
    const Plan* plan = x->plan;
    int in_rounds = x->in_rounds || plan->n_rounds > 0;
    memset(x->first, 0, sizeof(int) * ((size_t)plan->n_micro_batches + 1));
    x->n_rounds = plan->n_micro_batches > 0;
    for (int i = 0; i < plan->n_micro_batches && in_rounds; i++) {
        int round = plan->micro_batches[i].round;
        if (round < 0 || round >= plan->n_micro_batches)
            return fail(err, "micro-batch %d is in round %d of a plan of %d micro-batches", i, round,
                        plan->n_micro_batches);
        x->n_rounds = MAX(x->n_rounds, round + 1);
    }
    for (int i = 0; i < plan->n_micro_batches; i++) x->first[in_rounds ? plan->micro_batches[i].round + 1 : 1]++;
    for (int r = 0; r < x->n_rounds; r++) x->first[r + 1] += x->first[r];
    for (int i = 0; i < plan->n_micro_batches; i++)
        x->order[x->first[in_rounds ? plan->micro_batches[i].round : 0]++] = i;
    // Each first[r] has walked to the start of round r + 1: move them one place up.
    memmove(x->first + 1, x->first, sizeof(int) * (size_t)x->n_rounds);
    x->first[0] = 0;
    return 0;
}

// Puts the passes of micro-batches a and b together, which share a rank of this round.
static void join_passes(Play* x, int a, int b) {
    int keep = MIN(x->pass[a], x->pass[b]), other = MAX(x->pass[a], x->pass[b]), end = keep;
    if (keep == other) return;
    while (x->next[end] >= 0) end = x->next[end];
    x->next[end] = other;
    for (int i = other; i >= 0; i = x->next[i]) x->pass[i] = keep;
}

// Of one round, where the plan has rounds.
static void find_passes(Play* x, int round) {
    for (int j = x->first[round]; j < x->first[round + 1]; j++) x->pass[x->order[j]] = x->order[j];
    for (int j = x->first[round]; j < x->first[round + 1]; j++) x->next[x->order[j]] = -1;
    if (x->plan->n_rounds == 0) return;
    for (int r = 0; r < x->plan->ranks; r++) x->at[r] = -1;
    for (int j = x->first[round]; j < x->first[round + 1]; j++) {
        const MicroBatch* mb = &x->plan->micro_batches[x->order[j]];
        for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++) {
            if (!takes_part(x, x->order[j], r)) continue;
            if (x->at[r] >= 0) join_passes(x, x->at[r], x->order[j]);
            x->at[r] = x->order[j];
        }
    }
}

// ---- playing

// The first exchanges hide under the attention of documents that are not shared, forward a third of it.
static double hidden_ms(const RankPart* part) {
    return MIN(part->local / 3, part->first[0]) + MIN(2 * part->local / 3, part->first[1]);
}

static RankPart longer(RankPart a, const RankPart* b) {
    return (RankPart){MAX(a.linear, b->linear),
                      MAX(a.local, b->local),
                      MAX(a.shared, b->shared),
                      MAX(a.communication, b->communication),
                      {MAX(a.first[0], b->first[0]), MAX(a.first[1], b->first[1])}};
}

// ms that the queries, keys, values and outputs of so many remapped tokens take among the ranks of a micro-batch, as
// plan/step/remap.h counts them; first: what is posted first, forward and backward.
static double moved_ms(const Play* x, const MicroBatch* mb, double tokens, double first[2]) {
    const Cost* cost = &x->setting->cost;
    double keys = cost->channels ? (double)cost->kv_channels / cost->channels : 1, out = 1 / (4 + 4 * keys), ms;
    double channel = cost->elem_bytes * tokens, d = mb->cp_size;
    int node = x->setting->limits.node_size;
    int across = mb->first_rank / node != (mb->first_rank + mb->cp_size - 1) / node;
    if (tokens == 0) return first[0] = first[1] = 0;
    if (cost->n_groups > 0) {  // whose speeds count what stays on a rank, a d-th
        ms = cost->link_scale * message_ms(cost, mb->cp_size, across, node, cost->token_bytes * tokens * d / (d - 1));
        first[0] = ms * (0.5 - out), first[1] = ms * out;
    } else {
        double layers = cost->link_scale * cost->layers;
        first[0] = layers * message_ms(cost, 2, across, node, channel * (cost->channels + 2 * cost->kv_channels));
        first[1] = layers * message_ms(cost, 2, across, node, channel * cost->channels);
        ms = 2 * (first[0] + first[1]);
    }
    for (int k = 0; k < 2; k++) first[k] = x->setting->no_overlap ? 0 : first[k];
    return ms;
}

// What one rank has of a remapped micro-batch.
static void add_remapped(Play* x, int i, int rank) {
    const MicroBatch* mb = &x->plan->micro_batches[i];
    const Cost* cost = &x->setting->cost;
    RankPart* part = &x->parts[rank];
    double own = remapped_tokens(x, i, rank), speed = x->setting->speeds ? x->setting->speeds[rank] : 1, first[2];
    double all = plan_placement(x->plan, mb).token_border[mb->cp_size], moved = x->attends[i] == rank ? all - own : own;
    part->linear += cost->per_token * own / speed;
    part->communication += moved_ms(x, mb, moved, first) + group_communication_ms(&x->setting->groups[1], own);
    for (int k = 0; k < 2; k++) part->first[k] += first[k];
    if (x->attends[i] == rank) part->shared += x->terms[i].quadratic;
}

// What one rank has of micro-batch i.
static void add_part(Play* x, int i, int rank) {
    RankPart* part = &x->parts[rank];
    const CostTerms* t = &x->terms[i];
    int is_shared = x->plan->micro_batches[i].cp_size > 1;
    if (x->attends[i] >= 0) {
        add_remapped(x, i, rank);
        return;
    }
    part->linear += t->per_token, part->communication += t->communication;
    *(is_shared ? &part->shared : &part->local) += t->quadratic;
    for (int k = 0; k < 2 && is_shared; k++) part->first[k] += x->first_ms[i][k];
}

// What each rank has to do of these passes, and of those that it shares documents with the most, which it waits for.
static void add_parts(Play* x, int pass) {
    const MicroBatch* all = x->plan->micro_batches;
    for (int i = pass; i >= 0; i = x->next[i])
        for (int r = all[i].first_rank; r < all[i].first_rank + all[i].cp_size; r++)
            if (takes_part(x, i, r)) x->parts[r] = x->longest[r] = (RankPart){0};
    for (int i = pass; i >= 0; i = x->next[i])
        for (int r = all[i].first_rank; r < all[i].first_rank + all[i].cp_size; r++)
            if (takes_part(x, i, r)) add_part(x, i, r);
    for (int i = pass; i >= 0; i = x->next[i]) {
        RankPart most = {0};
        for (int r = all[i].first_rank; r < all[i].first_rank + all[i].cp_size; r++)
            if (takes_part(x, i, r)) most = longer(most, &x->parts[r]);
        for (int r = all[i].first_rank; r < all[i].first_rank + all[i].cp_size; r++)
            if (takes_part(x, i, r)) x->longest[r] = longer(most, &x->longest[r]);
    }
}

// Passes that go together, from their micro-batches: in every layer a rank waits for those that it shares documents
// with, in the linear part, in the part where exchanges hide, and in what comes then. Leaves in the terms of each
// micro-batch what the pass takes at that of its ranks which takes longest.
static void weigh_passes(Play* x, int pass) {
    add_parts(x, pass);
    for (int i = pass; i >= 0; i = x->next[i]) {
        CostTerms longest = {0}, *all = &x->terms[i];
        for (int r = 0; r < x->plan->micro_batches[i].cp_size; r++) {
            const RankPart* p = &x->longest[x->plan->micro_batches[i].first_rank + r];
            if (!takes_part(x, i, x->plan->micro_batches[i].first_rank + r)) continue;
            CostTerms t = {p->local + p->shared, p->linear, p->communication - hidden_ms(p), all->micro_batch};
            if (terms_ms(&t) > terms_ms(&longest)) longest = t;
        }
        *all = longest;
    }
}

// Counts the micro-batches of a pass on each of its ranks, with x->at.
static void number_places(Play* x, Timeline* t, int pass) {
    for (int counted = 0; counted < 3; counted++)
        for (int i = pass; i >= 0; i = x->next[i]) {
            const MicroBatch* mb = &x->plan->micro_batches[i];
            int most = 0;
            for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++) {
                if (counted == 0) x->at[r] = 0;
                most = MAX(most, x->at[r]);
            }
            for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size && counted == 1; r++) x->at[r] = most + 1;
            if (counted == 1) t->place[i] = most;
            if (counted == 2) t->beside[i] = most;
        }
}

// Ranks have ended their passes `last`; these start then, but not before `open`, which pass `opener` decided.
static void play_passes(Play* x, Timeline* t, int pass, double open, int opener) {
    int before = opener, alone = x->next[pass] < 0 && x->attends[pass] < 0;
    double start = open;
    if (!alone) weigh_passes(x, pass);
    number_places(x, t, pass);
    for (int i = pass; i >= 0; i = x->next[i]) {
        const MicroBatch* mb = &x->plan->micro_batches[i];
        for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++)
            if (takes_part(x, i, r) && t->rank_end[r] > start) start = t->rank_end[r], before = x->last[r];
    }
    for (int i = pass; i >= 0; i = x->next[i]) {
        const MicroBatch* mb = &x->plan->micro_batches[i];
        double end = start + terms_ms(&x->terms[i]);
        x->before[i] = before;
        t->start[i] = start, t->end[i] = end;
        t->communication[i] = alone || mb->cp_size > 1 ? x->terms[i].communication : 0;
        for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++) {
            RankPart* part = &x->parts[r];
            if (!takes_part(x, i, r)) continue;
            if (alone) *part = (RankPart){.linear = end - start - x->terms[pass].communication};
            if (alone) part->communication = x->terms[pass].communication;
            else part->communication = MAX(part->communication - hidden_ms(part), 0);
            x->communication += part->communication;
            x->busy += part->linear + part->local + part->shared + part->communication;
            if (!alone && (part->linear > 0 || part->local + part->shared > 0)) x->busy += x->terms[pass].micro_batch;
            *part = (RankPart){0};  // counted once
            if (end > t->rank_end[r]) t->rank_end[r] = end, x->last[r] = i;
        }
    }
}

static void play_rounds(Play* x, Timeline* t) {
    double open = 0;
    int opener = -1;
    for (int round = 0; round < x->n_rounds; round++) {
        double end = open;
        int ended = opener;
        find_passes(x, round);
        for (int j = x->first[round]; j < x->first[round + 1]; j++) {
            int i = x->order[j];
            if (x->pass[i] != i) continue;
            play_passes(x, t, i, open, opener);
            if (t->end[i] > end) end = t->end[i], ended = i;
        }
        if (x->in_rounds) open = end, opener = ended;
    }
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

static void count_shares(const Play* x, Timeline* t) {
    double all = x->plan->ranks * t->makespan;
    if (!(all > 0)) return;
    t->idle = MAX(1 - x->busy / all, 0);
    t->communication_share = x->communication / all;
}

int timeline_play(Timeline* timeline, const Plan* plan, const int* lengths, const Setting* setting, Arena* arena,
                  Err err) {
    int n = plan->n_micro_batches;
    Timeline* t = timeline;
    *t = (Timeline){.start = TAKE(arena, double, n),
                    .end = TAKE(arena, double, n),
                    .communication = TAKE(arena, double, n),
                    .place = TAKE(arena, int, n),
                    .beside = TAKE(arena, int, n),
                    .terms = TAKE(arena, CostTerms, n),
                    .rank_end = TAKE(arena, double, plan->ranks)};
    ArenaMark mark = arena_mark(arena);
    Play x = {.plan = plan,
              .lengths = lengths,
              .setting = setting,
              .in_rounds = setting->rounds || plan->has_barriers,
              .terms = t->terms,
              .first_ms = (double(*)[2])TAKE(arena, double, 2 * n),
              .next = TAKE(arena, int, n),
              .pass = TAKE(arena, int, n),
              .at = TAKE(arena, int, plan->ranks),
              .attends = TAKE(arena, int, n),
              .parts = TAKE(arena, RankPart, plan->ranks),
              .longest = TAKE(arena, RankPart, plan->ranks),
              .before = TAKE(arena, int, n),
              .order = TAKE(arena, int, n),
              .first = TAKE(arena, int, n + 1),
              .last = TAKE(arena, int, plan->ranks)};
    if (arena_check(arena, err) < 0) return -1;
    for (int i = 0; i < plan->n_micro_batches; i++)
        if (weigh_micro_batch(&x, i, err) < 0) return -1;
    if (order_micro_batches(&x, err) < 0) return -1;
    for (int r = 0; r < plan->ranks; r++) t->rank_end[r] = 0, x.last[r] = -1;

    play_rounds(&x, t);
    int last = 0;
    for (int r = 1; r < plan->ranks; r++)
        if (t->rank_end[r] > t->rank_end[last]) last = r;
    follow_back(&x, t, x.last[last]);
    t->makespan = t->rank_end[last];
    count_shares(&x, t);
    arena_reset(arena, mark);
    return 0;
}
