// timeline.c - plays a plan pass by pass, in the order of rounds; without rounds every micro-batch is a pass, in the
// order of the list. See timeline.h.
//
// Passes of several ranks that share micro-batches go together, named by the first of their micro-batches. Each
// remembers the pass whose end decided its start, so that the critical chain can be followed back.
#include "plan/cost/timeline.h"

// The parts of a rank's pass, ms. LOCAL and SHARED are attention; FIRST is the communication posted first, forward and
// backward.
enum { LINEAR, LOCAL, SHARED, COMMUNICATION, FIRST, N_PARTS = FIRST + 2 };
typedef double Parts[N_PARTS];

typedef struct PlayedMicroBatch {
    double first[2];  // ms of what is posted first, which other attention may hide
    int meets;        // PassParts.meets
    double slack[2];  // PassParts.slack
    double ahead;     // forward pass's share of the exchanges that show
    int attends;      // remapped_to
    int pass, next;   // first micro-batch of the same passes; the next one, -1: the last
    int before;       // of passes: the one that decided the start, -1: nothing ran before
} PlayedMicroBatch;

typedef struct PlayedRank {
    Parts own, longest;  // parts of the pass that is played, else 0; of those that it waits for
    int last;            // pass, -1: none
    int at;              // one of its micro-batches in this round, -1: none
} PlayedRank;

typedef struct Play {
    const Plan* plan;
    const int* lengths;
    const Setting* setting;
    int in_rounds, n_rounds;     // in_rounds: with a barrier between rounds
    CostTerms* terms;            // (n_micro_batches) of each micro-batch, later of its pass
    PlayedMicroBatch* mb;        // (n_micro_batches)
    PlayedRank* rank;            // (ranks)
    int *order, *first;          // (n_micro_batches) by rounds; (n_micro_batches + 2) start of each round in order
    GroupCost other;             // a group that the setting lacks
    WeightRank* whole;           // (ranks) the last pass, and when it ends beside weights and gradients
    double busy, communication;  // rank-ms so far
} Play;

// ---- micro-batches

// Counts the tokens that a rank has of a remapped micro-batch.
static int remapped_tokens(const Play* x, int i, int rank) {
    const MicroBatch* mb = &x->plan->micro_batches[i];
    const int* border = plan_placement(x->plan, mb).token_border + (rank - mb->first_rank);
    return border[1] - border[0];
}

// Returns the next rank after r (-1: the first) with anything to do in micro-batch i; -1: none.
static inline int next_rank(const Play* x, int i, int r) {
    const MicroBatch* mb = &x->plan->micro_batches[i];
    int attends = x->mb[i].attends, end = mb->first_rank + mb->cp_size;
    r = r < 0 ? mb->first_rank : r + 1;
    while (attends >= 0 && attends != r && r < end && remapped_tokens(x, i, r) == 0) r++;
    return r < end ? r : -1;
}

// Chunk j of a document of s tokens has e - b tokens: as causal queries they see e^2 - b^2 of its s^2. On published
// machines an exchange counts what stays on a rank, too. Ranks that share heads wait for each other between linear
// layers and attention. Those of a ring do not, so the rank with most of both together counts.
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
            int doc = x->plan->docs[mb->first_doc + k / p.n_chunks];
            if (p.n_chunks == 1) seen += end * seen_tokens(x->plan->squares, doc, x->lengths[doc]);
            else if (p.owner[k % p.n_chunks] == a) seen += end * end - begin * begin;
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

// The setting's groups begin at rank 0; groups that begin at a node, or lie inside one, cost the same.
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

// Returns whether its exchanges go over the link of weights and gradients.
static int meets_weights(const Play* x, const MicroBatch* mb) {
    const WeightTimes* w = &x->setting->weights;
    const Cost* cost = &x->setting->cost;
    int node = x->setting->limits.node_size, last = mb->first_rank + mb->cp_size - 1;
    if (cost->tensor_ranks > 1 && (cost->tensor_nodes > 1 || !w->across)) return 1;
    return mb->cp_size > 1 && (!w->across || mb->first_rank / node != last / node);
}

static int weigh_micro_batch(Play* x, int i, Err err) {
    const MicroBatch* mb = &x->plan->micro_batches[i];
    const WeightTimes* w = &x->setting->weights;
    double faster[2], speed = slowest_speed(x->setting, mb->first_rank, mb->cp_size);
    const GroupCost* g = group_of(x, mb);
    int attends = remapped_to(x->plan, mb);
    x->mb[i] =
        (PlayedMicroBatch){.attends = attends, .pass = i, .next = -1, .meets = meets_weights(x, mb), .ahead = 0.5};
    if (g->ulysses_size == 0)
        return fail(err, "micro-batch %d: the cost model knows no group of %d ranks of which %d share heads", i,
                    mb->cp_size, mb->ulysses_size);
    LengthSums sums = micro_batch_sums(x->plan, mb, x->lengths);
    CostTerms* t = &x->terms[i];
    *t = group_terms(g, sums.squares, sums.tokens);
    t->quadratic /= speed, t->per_token /= speed;
    if (attends >= 0)  // all heads on one rank
        t->quadratic = x->setting->cost.quadratic * sums.squares / slowest_speed(x->setting, attends, 1);
    t->communication -= route_saved_ms(faster, x->setting, g, mb->first_rank, sums.tokens);
    if (x->setting->no_overlap) return 0;
    double hidden = group_hidden_ms(x->mb[i].first, g, t->quadratic, sums.tokens, faster);
    if (w->layers) group_slack_ms(x->mb[i].slack, g, t->quadratic, sums.tokens);
    double forward = w->layers ? group_forward_ms(g, t->quadratic, sums.tokens, t->communication) : 0;
    t->communication = MAX(t->communication - hidden, 0);
    if (t->communication > 0) x->mb[i].ahead = MIN(forward / t->communication, 1);
    return 0;
}

// Without rounds all are in round 0. 0, or -1 for a round number that no plan of this size has.
static int order_micro_batches(Play* x, Err err) {
    int n = x->plan->n_micro_batches, in_rounds = x->in_rounds || x->plan->n_rounds > 0;
    x->n_rounds = n > 0;
    memset(x->first, 0, sizeof(int) * ((size_t)n + 2));
    for (int i = 0; i < n; i++) {
        int round = x->mb[i].before = in_rounds ? x->plan->micro_batches[i].round : 0;
        if (round < 0 || round >= n)
            return fail(err, "micro-batch %d is in round %d of a plan of %d micro-batches", i, round, n);
        x->n_rounds = MAX(x->n_rounds, round + 1);
        x->first[round + 2]++;
    }
    for (int r = 2; r <= x->n_rounds; r++) x->first[r + 1] += x->first[r];
    for (int i = 0; i < n; i++) x->order[x->first[x->mb[i].before + 1]++] = i;
    return 0;
}

// Joins the passes of micro-batches a and b, which share a rank of this round.
static void join_passes(Play* x, int a, int b) {
    int keep = MIN(x->mb[a].pass, x->mb[b].pass), other = MAX(x->mb[a].pass, x->mb[b].pass), end = keep;
    if (keep == other) return;
    while (x->mb[end].next >= 0) end = x->mb[end].next;
    x->mb[end].next = other;
    for (int i = other; i >= 0; i = x->mb[i].next) x->mb[i].pass = keep;
}

// Finds the passes of one round, if the plan has rounds.
static void find_passes(Play* x, int round) {
    for (int r = 0; r < x->plan->ranks && x->plan->n_rounds > 0; r++) x->rank[r].at = -1;
    for (const int* i = x->order + x->first[round]; i < x->order + x->first[round + 1] && x->plan->n_rounds > 0; i++)
        for (int r = -1; (r = next_rank(x, *i, r)) >= 0; x->rank[r].at = *i)
            if (x->rank[r].at >= 0) join_passes(x, x->rank[r].at, *i);
}

// ---- playing

// The first exchanges hide under the attention of documents that are not shared, forward a third of it.
static double shown_ms(const Parts ms) {
    return ms[COMMUNICATION] - (MIN(ms[LOCAL] / 3, ms[FIRST]) + MIN(2 * ms[LOCAL] / 3, ms[FIRST + 1]));
}

static void raise(Parts a, const Parts b) {
    for (int k = 0; k < N_PARTS; k++) a[k] = MAX(a[k], b[k]);
}

// Returns the ms that queries, keys, values and outputs of `tokens` remapped tokens take among a micro-batch's ranks,
// as plan/step/remap.h counts them. first: what is posted first, forward and backward.
static double moved_ms(const Play* x, const MicroBatch* mb, double tokens, double first[2]) {
    const Cost* cost = &x->setting->cost;
    double keys = cost->channels ? (double)cost->kv_channels / cost->channels : 1, out = 1 / (4 + 4 * keys), ms;
    double channel = cost->elem_bytes * tokens, d = mb->cp_size;
    int node = x->setting->limits.node_size;
    int across = mb->first_rank / node != (mb->first_rank + mb->cp_size - 1) / node;
    if (tokens == 0) return first[0] = first[1] = 0;
    if (cost->n_groups > 0) {  // published speeds count what stays on a rank, a d-th
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

// Adds one rank's part of a remapped micro-batch.
static void add_remapped(Play* x, int i, int rank) {
    const MicroBatch* mb = &x->plan->micro_batches[i];
    double *ms = x->rank[rank].own, own = remapped_tokens(x, i, rank), first[2];
    double all = plan_placement(x->plan, mb).token_border[mb->cp_size],
           moved = x->mb[i].attends == rank ? all - own : own;
    ms[LINEAR] += x->setting->cost.per_token * own / slowest_speed(x->setting, rank, 1);
    ms[COMMUNICATION] += moved_ms(x, mb, moved, first) + group_communication_ms(&x->setting->groups[1], own);
    for (int k = 0; k < 2; k++) ms[FIRST + k] += first[k];
    if (x->mb[i].attends == rank) ms[SHARED] += x->terms[i].quadratic;
}

// Adds one rank's part of micro-batch i.
static void add_part(Play* x, int i, int rank) {
    double* ms = x->rank[rank].own;
    const CostTerms* t = &x->terms[i];
    int is_shared = x->plan->micro_batches[i].cp_size > 1;
    if (x->mb[i].attends >= 0) {
        add_remapped(x, i, rank);
        return;
    }
    ms[LINEAR] += t->per_token, ms[COMMUNICATION] += t->communication, ms[is_shared ? SHARED : LOCAL] += t->quadratic;
    for (int k = 0; k < 2 && is_shared; k++) ms[FIRST + k] += x->mb[i].first[k];
}

// Weighs passes that go together. In every layer a rank waits for those that it shares documents with: in the linear
// part, in the part where exchanges hide, and in what follows. Leaves in the terms of each micro-batch those of the
// pass on its slowest rank.
static void weigh_passes(Play* x, int pass) {
    for (int i = pass; i >= 0; i = x->mb[i].next)
        for (int r = -1; (r = next_rank(x, i, r)) >= 0;) add_part(x, i, r);
    for (int i = pass; i >= 0; i = x->mb[i].next) {
        Parts most = {0};
        for (int r = -1; (r = next_rank(x, i, r)) >= 0;) raise(most, x->rank[r].own);
        for (int r = -1; (r = next_rank(x, i, r)) >= 0;) raise(x->rank[r].longest, most);
    }
    for (int i = pass; i >= 0; i = x->mb[i].next) {
        CostTerms longest = {0};
        for (int r = -1; (r = next_rank(x, i, r)) >= 0;) {
            const double* ms = x->rank[r].longest;
            CostTerms t = {ms[LOCAL] + ms[SHARED], ms[LINEAR], shown_ms(ms), x->terms[i].micro_batch};
            if (terms_ms(&t) > terms_ms(&longest)) longest = t;
        }
        x->terms[i] = longest;
    }
}

// Counts for each micro-batch how many of the passes come before it on its ranks, and the most that one of these has.
static void number_places(Play* x, Timeline* t, int pass) {
    for (int counted = 0; counted < 3; counted++)
        for (int i = pass; i >= 0; i = x->mb[i].next) {
            PlayedRank* first = &x->rank[x->plan->micro_batches[i].first_rank];
            PlayedRank* end = first + x->plan->micro_batches[i].cp_size;
            int most = 0;
            for (PlayedRank* r = first; r < end; r++) most = MAX(most, r->at = counted ? r->at : 0);
            for (PlayedRank* r = first; r < end && counted == 1; r++) r->at = most + 1;
            if (counted) (counted == 1 ? t->place : t->beside)[i] = most;
        }
}

// Counts the work of the ranks in passes that go together, once.
static void count_parts(Play* x, int i, double micro_batch) {
    for (int r = -1; (r = next_rank(x, i, r)) >= 0;) {
        const double* ms = x->rank[r].own;
        double computing = ms[LINEAR] + ms[LOCAL] + ms[SHARED], communication = MAX(shown_ms(ms), 0);
        x->communication += communication, x->busy += computing + communication + (computing > 0 ? micro_batch : 0);
        x->rank[r] = (PlayedRank){.last = x->rank[r].last};
    }
}

// Plays passes after the last ones of their ranks, but not before `open`, which pass `opener` decided.
static void play_passes(Play* x, Timeline* t, int pass, double open, int opener) {
    int before = opener, alone = x->mb[pass].next < 0 && x->mb[pass].attends < 0;
    double start = open, fixed = x->terms[pass].micro_batch;
    if (alone) t->beside[pass] = 1, t->place[pass] = 0;
    else weigh_passes(x, pass), number_places(x, t, pass);
    for (int i = pass; i >= 0; i = x->mb[i].next)
        for (int r = -1; (r = next_rank(x, i, r)) >= 0;)
            if (t->rank_end[r] > start) start = t->rank_end[r], before = x->rank[r].last;
    for (int i = pass; i >= 0; i = x->mb[i].next) {
        int cp_size = x->plan->micro_batches[i].cp_size;
        double end = start + terms_ms(&x->terms[i]);
        x->mb[i].before = before;
        t->start[i] = start, t->end[i] = end;
        t->communication[i] = alone || cp_size > 1 ? x->terms[i].communication : 0;
        if (alone) x->busy += cp_size * (end - start), x->communication += cp_size * t->communication[i];
        else count_parts(x, i, fixed);
        for (int r = -1; (r = next_rank(x, i, r)) >= 0;)
            if (end > t->rank_end[r]) t->rank_end[r] = end, x->rank[r].last = i;
    }
}

// ---- the same beside weights and gradients

// Takes a third of computing as forward.
static PassParts parts_of(const Play* x, int i, const PlayedMicroBatch* shared) {
    const CostTerms* t = &x->terms[i];
    const WeightTimes* w = &x->setting->weights;
    double linear = t->per_token * (1 - w->head), computing = linear + t->quadratic;
    return (PassParts){.forward = computing / 3 + shared->ahead * t->communication,
                       .head = t->per_token * w->head,
                       .backward = 2 * computing / 3 + (1 - shared->ahead) * t->communication,
                       .fixed = t->micro_batch,
                       .linear = linear / 3,
                       .meets = shared->meets,
                       .slack = {shared->slack[0], shared->slack[1]}};
}

static void play_whole(Play* x, int pass, double open) {
    const WeightTimes* w = &x->setting->weights;
    double start = open;
    PlayedMicroBatch shared = x->mb[pass];
    for (int i = pass; i >= 0; i = x->mb[i].next) {
        if (x->plan->micro_batches[i].cp_size > 1 && x->mb[i].meets >= shared.meets) shared = x->mb[i];
        for (int r = -1; (r = next_rank(x, i, r)) >= 0;) start = MAX(start, x->whole[r].at);
    }
    for (int i = pass; i >= 0; i = x->mb[i].next) {
        PassParts parts = parts_of(x, i, &shared);
        double late = weights_late_ms(w, &parts, start), end = start + late + terms_ms(&x->terms[i]);
        if (w->zero == 3) end -= late;
        for (int r = -1; (r = next_rank(x, i, r)) >= 0;) {
            WeightRank own = {parts, end, 0};
            if (end > x->whole[r].at) x->whole[r] = own;
        }
    }
}

// Ends the round for all ranks together, also those without a pass.
static double end_round(Play* x, int round, double open) {
    const WeightTimes* w = &x->setting->weights;
    int ranks = x->plan->ranks;
    double end = open;
    for (int r = 0; r < ranks; r++) {
        WeightRank* of = &x->whole[r];
        if (of->at <= open) *of = (WeightRank){.at = open};
        else if (w->zero > 1) of->at -= of->pass.forward + of->pass.head + of->pass.backward + of->pass.fixed;
        end = MAX(end, of->at);
    }
    if (w->zero > 1) end = weights_play_round(w, x->whole, ranks, round == 0, round == x->n_rounds - 1);
    for (int r = 0; r < ranks && w->zero > 1; r++) x->whole[r].at = end;
    return end;
}

// The end of a rank's passes.
typedef struct RankEnd {
    int round, shares;  // round of its last pass, -1: none; whether it shares documents there
} RankEnd;

// Returns the number of rounds. Without any, each micro-batch has the earliest round in which all its ranks are free
// (plan_set_rounds).
static int find_ends(const Play* x, RankEnd* end) {
    const Plan* plan = x->plan;
    int rounds = 0;
    for (int r = 0; r < plan->ranks; r++) end[r] = (RankEnd){-1, 0};
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        int first = mb->first_rank, behind = first + mb->cp_size, round = mb->round;
        for (int r = first; r < behind && plan->n_rounds == 0; r++)
            round = MAX(r > first ? round : 0, end[r].round + 1);
        for (int r = first; r < behind; r++) {
            if (round > end[r].round) end[r] = (RankEnd){round, 0};
            if (round == end[r].round) end[r].shares |= mb->cp_size > 1;
        }
        rounds = MAX(rounds, round + 1);
    }
    return rounds;
}

// Gradients leave inside the last pass of a rank if it shares nothing there: others may wait for it in that pass,
// unless all are in the last round (reduces_inside in run/step/batch_ranks.c). end: (ranks), for scratch.
static double end_step(Play* x, RankEnd* end) {
    int ranks = x->plan->ranks, rounds = find_ends(x, end), together = 1;
    for (int r = 0; r < ranks; r++) together &= end[r].round == rounds - 1;
    for (int r = 0; r < ranks; r++) {
        int barrier = x->plan->has_barriers && end[r].round < rounds - 1;
        int inside = end[r].round >= 0 && !barrier && (!end[r].shares || together);
        x->whole[r].inside = inside;
    }
    return weights_play_end(&x->setting->weights, x->whole, ranks);
}

static void play_rounds(Play* x, Timeline* t) {
    double open = 0, whole = 0;
    int opener = -1;
    for (int round = 0; round < x->n_rounds; round++) {
        double end = open;
        int ended = opener;
        find_passes(x, round);
        for (int j = x->first[round]; j < x->first[round + 1]; j++) {
            int i = x->order[j];
            if (x->mb[i].pass != i) continue;
            play_passes(x, t, i, open, opener);
            if (x->setting->weights.layers > 0) play_whole(x, i, whole);
            if (t->end[i] > end) end = t->end[i], ended = i;
        }
        if (x->in_rounds) open = end, opener = ended;
        if (x->in_rounds && x->setting->weights.layers > 0) whole = end_round(x, round, whole);
    }
}

static void follow_back(const Play* x, Timeline* t, int i) {
    for (; i >= 0; i = x->mb[i].before) {
        const CostTerms* a = &x->terms[i];
        t->critical.quadratic += a->quadratic;
        t->critical.per_token += a->per_token;
        t->critical.communication += a->communication;
        t->critical.micro_batch += a->micro_batch;
        t->critical_micro_batches++;
    }
}

int timeline_play(Timeline* timeline, const Plan* plan, const int* lengths, const Setting* setting, Arena* arena,
                  Err err) {
    int n = plan->n_micro_batches, last = 0;
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
              .mb = TAKE(arena, PlayedMicroBatch, n),
              .rank = TAKE(arena, PlayedRank, plan->ranks),
              .order = TAKE(arena, int, n),
              .first = TAKE(arena, int, n + 2),
              .whole = TAKE(arena, WeightRank, plan->ranks)};
    RankEnd* rank_ends = TAKE(arena, RankEnd, plan->ranks);
    if (arena_check(arena, err) < 0) return -1;
    for (int i = 0; i < n; i++)
        if (weigh_micro_batch(&x, i, err) < 0) return -1;
    if (order_micro_batches(&x, err) < 0) return -1;
    for (int r = 0; r < plan->ranks; r++)
        t->rank_end[r] = 0, x.rank[r] = (PlayedRank){.last = -1}, x.whole[r] = (WeightRank){0};
    play_rounds(&x, t);
    for (int r = 1; r < plan->ranks; r++)
        if (t->rank_end[r] > t->rank_end[last]) last = r;
    follow_back(&x, t, x.rank[last].last);
    t->makespan = t->rank_end[last];
    t->step = setting->weights.layers > 0 ? end_step(&x, rank_ends) : t->makespan + setting->weights.update;
    double all = plan->ranks * t->makespan;
    if (all > 0) t->idle = MAX(1 - x.busy / all, 0), t->communication_share = x.communication / all;
    arena_reset(arena, mark);
    return 0;
}
