// plan_random.c - any valid plan, for tests: whatever a planner may come to think of, the program must run.
//
// Documents in random order are taken until a random group of ranks is full or has enough of them. A group that does
// not hold its first document is drawn again, a few times; then all groups are tried in turn, so drawing comes to an
// end. Documents that only a ring holds go first, while rings have room for them. In half of the plans borders are
// drawn too, and kept where the group still holds its documents. Then micro-batches join passes, or not.
#include "test/checks.h"

enum { TRIES = 16 };

typedef struct Random {
    uint64_t seed, index;
} Random;

// 0 .. n - 1
static int draw(Random* random, int n) { return (int)(random_uniform(random->seed, random->index++) * n); }

typedef struct Groups {
    const PlanLimits* limits;
    Random random;
    int first, ranks;  // where groups are drawn; when that fails they are looked for everywhere
    int* ring_docs;    // (limits->ranks) documents in rings so far
} Groups;

// How many more documents this group may have if it is a ring.
static int ring_room(const Groups* g, const MicroBatch* group) {
    int room = g->limits->max_ring_docs;
    for (int r = 0; r < group->cp_size; r++)
        room = MIN(room, g->limits->max_ring_docs - g->ring_docs[group->first_rank + r]);
    return room;
}

static int64_t room_of(const Groups* g, const MicroBatch* group) {
    PlanLimits own = limits_at(g->limits, group_capacity(g->limits, group->first_rank, group->cp_size));
    return ring_rank_capacity(&own, group->ulysses_size);
}

static int fits(const Groups* g, const MicroBatch* group, int s) {
    if (widest_ring_rank(s, group->cp_size / group->ulysses_size) > room_of(g, group)) return 0;
    return group->ulysses_size == group->cp_size || ring_room(g, group) > 0;
}

static MicroBatch draw_group(Groups* g) {
    MicroBatch group = {.ulysses_size = 1};
    // Half of them narrow, so that there are many at a time.
    group.cp_size = 1 + draw(&g->random, draw(&g->random, 2) ? g->ranks : MIN(4, g->ranks));
    group.first_rank = g->first + draw(&g->random, g->ranks - group.cp_size + 1);
    group.ulysses_size = 1 + draw(&g->random, MIN(group.cp_size, g->limits->kv_heads));
    while (group.cp_size % group.ulysses_size != 0) group.ulysses_size--;
    return group;
}

// A group that holds a document of s tokens, cp size 0 when there is none.
static MicroBatch find_group(Groups* g, int s) {
    for (int t = 0; t < TRIES; t++) {
        MicroBatch group = draw_group(g);
        if (fits(g, &group, s)) return group;
    }
    int ranks = g->limits->ranks;
    for (int cp_size = 1; cp_size <= ranks; cp_size++)
        for (int ulysses_size = MIN(cp_size, g->limits->kv_heads); ulysses_size > 0; ulysses_size--) {
            int windows = ranks - cp_size + 1, start = draw(&g->random, windows);
            for (int w = 0; w < windows && cp_size % ulysses_size == 0; w++) {
                MicroBatch group = {
                    .first_rank = (start + w) % windows, .cp_size = cp_size, .ulysses_size = ulysses_size};
                if (fits(g, &group, s)) return group;
            }
        }
    return (MicroBatch){0};
}

// Documents 0 .. n - 1 in random order; those first that may need a ring.
static void shuffle_docs(int* docs, const int* lengths, int n, const PlanLimits* limits, Random* random) {
    int64_t heads_hold = ring_rank_capacity(limits, MIN(limits->ranks, limits->kv_heads));
    for (int i = 0; i < n; i++) {
        int j = draw(random, i + 1);
        docs[i] = docs[j];
        docs[j] = i;
    }
    for (int i = 0, long_docs = 0; i < n; i++) {
        int doc = docs[i];
        if (lengths[doc] <= heads_hold) continue;
        docs[i] = docs[long_docs];
        docs[long_docs++] = doc;
    }
}

// The micro-batch of the documents that follow docs[first]: as many as fit and as were drawn.
static MicroBatch fill_group(Groups* g, MicroBatch group, const int* docs, const int* lengths, int first, int n) {
    int ring_size = group.cp_size / group.ulysses_size, want = draw(&g->random, 4) ? 1 + draw(&g->random, 6) : n;
    if (ring_size > 1) want = MIN(want, ring_room(g, &group));
    int64_t room = room_of(g, &group);
    group.first_doc = first;
    for (int i = first; i < n && group.n_docs < want; i++) {
        room -= widest_ring_rank(lengths[docs[i]], ring_size);
        if (room < 0) break;
        group.n_docs++;
    }
    for (int r = 0; ring_size > 1 && r < group.cp_size; r++) g->ring_docs[group.first_rank + r] += group.n_docs;
    return group;
}

static void shuffle_micro_batches(MicroBatch* micro_batches, int n, Random* random) {
    for (int i = n - 1; i > 0; i--) {
        int j = draw(random, i + 1);
        MicroBatch mb = micro_batches[i];
        micro_batches[i] = micro_batches[j];
        micro_batches[j] = mb;
    }
}

// ---- placements

// n + 1 borders from 0 to end, in any places; some parts have nothing.
static void draw_borders(Random* random, int* border, int n, int end) {
    border[0] = 0, border[n] = end;
    for (int b = 1; b < n; b++) {
        int x = draw(random, 3) ? draw(random, end + 1) : draw(random, 2) * end, at = b;
        for (; at > 1 && border[at - 1] > x; at--) border[at] = border[at - 1];
        border[at] = x;
    }
}

static void draw_placement(Random* random, const Placement* p, const Plan* plan, const MicroBatch* mb,
                           const int* lengths, int kv_heads) {
    int u = mb->ulysses_size, ring_size = mb->cp_size / u;
    if (draw(random, 2)) draw_borders(random, p->head_border, u, kv_heads);
    for (int j = 0; j < p->n_chunks; j++)
        if (draw(random, 2)) p->owner[j] = draw(random, ring_size);
    for (int i = 0; i < mb->n_docs; i++)
        if (draw(random, 2))
            draw_borders(random, p->chunk_border + i * (p->n_chunks + 1), p->n_chunks,
                         lengths[plan->docs[mb->first_doc + i]]);
    for (int a = 0; a < ring_size; a++) {
        int tokens = 0;
        for (int k = 0; k < mb->n_docs * p->n_chunks; k++) {
            const int* border = p->chunk_border + k / p->n_chunks * (p->n_chunks + 1) + k % p->n_chunks;
            tokens += p->owner[k % p->n_chunks] == a ? border[1] - border[0] : 0;
        }
        int* border = p->token_border + a * (u + 1);
        for (int b = 0; b <= u; b++) border[b] = (int)((int64_t)b * tokens / u);
        if (draw(random, 2)) draw_borders(random, border, u, tokens);
    }
}

static int holds_all(const PlanLimits* limits, const MicroBatch* mb, const Placement* p, PassLoad* loads) {
    int fits = 1;
    micro_batch_load(loads, mb, p);
    for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++) {
        fits &= load_fits(&loads[r], limits, r);
        loads[r] = (PassLoad){0, 0};
    }
    return fits;
}

static int draw_placements(Plan* plan, Groups* g, const int* lengths, Arena* arena, Err err) {
    plan->placed_at = TAKE(arena, int, plan->n_micro_batches);
    if (arena_check(arena, err) < 0) return -1;
    for (int i = 0; i < plan->n_micro_batches; i++) {
        plan->placed_at[i] = plan->n_placed;
        plan->n_placed += (int)placement_ints(&plan->micro_batches[i]);
    }
    plan->placed = TAKE(arena, int, plan->n_placed);
    ArenaMark mark = arena_mark(arena);
    PassLoad* loads = TAKE(arena, PassLoad, plan->ranks);
    if (arena_check(arena, err) < 0) return -1;
    memset(loads, 0, sizeof(PassLoad) * (size_t)plan->ranks);
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        Placement p = plan_placement(plan, mb);
        int fits = 0;
        for (int t = 0; t < TRIES && !fits; t++) {
            fill_usual_placement(&p, plan, mb, lengths, g->limits->kv_heads);
            draw_placement(&g->random, &p, plan, mb, lengths, g->limits->kv_heads);
            fits = holds_all(g->limits, mb, &p, loads);
        }
        if (!fits) fill_usual_placement(&p, plan, mb, lengths, g->limits->kv_heads);
    }
    arena_reset(arena, mark);
    return 0;
}

// ---- passes

// Whether a micro-batch fits beside what one of its ranks has in its last pass.
static int fits_beside(const PassLoad* have, const PassLoad* more, int n_shared, const PlanLimits* limits, int rank) {
    PassLoad both = {have->tokens + more->tokens, have->pairs + more->pairs};
    return n_shared < MOST_SHARED && load_fits(&both, limits, rank);
}

int plan_join_rounds(Plan* plan, const int* lengths, const PlanLimits* limits, uint64_t* random, Arena* arena,
                     Err err) {
    ArenaMark mark = arena_mark(arena);
    int *last = TAKE(arena, int, plan->ranks), *shared = TAKE(arena, int, plan->ranks);
    PassLoad *have = TAKE(arena, PassLoad, plan->ranks), *more = TAKE(arena, PassLoad, plan->ranks);
    if (arena_check(arena, err) < 0) return -1;
    for (int r = 0; r < plan->ranks; r++) last[r] = -1, shared[r] = 0, have[r] = more[r] = (PassLoad){0, 0};
    plan->n_rounds = 0;
    for (int i = 0; i < plan->n_micro_batches; i++) {
        MicroBatch* mb = &plan->micro_batches[i];
        int first = mb->first_rank, end = first + mb->cp_size;
        if (plan_add_load(more, plan, i, lengths, limits, arena) < 0) return arena_check(arena, err);
        mb->round = -1;
        for (int r = first; r < end; r++) mb->round = MAX(mb->round, last[r]);
        int joins = mb->round >= 0 && !(random && hash64(++*random) % 3 == 0);
        for (int r = first; r < end; r++)
            if (last[r] == mb->round) joins &= fits_beside(&have[r], &more[r], shared[r], limits, r);
        mb->round += !joins;
        for (int r = first; r < end; r++) {
            if (last[r] != mb->round) have[r] = (PassLoad){0, 0}, shared[r] = 0;
            have[r] = (PassLoad){have[r].tokens + more[r].tokens, have[r].pairs + more[r].pairs};
            shared[r] += mb->cp_size > 1;
            last[r] = mb->round;
            more[r] = (PassLoad){0, 0};
        }
        plan->n_rounds = MAX(plan->n_rounds, mb->round + 1);
    }
    arena_reset(arena, mark);
    return 0;
}

int plan_random(Plan* plan, int64_t step, const int* lengths, int n, const PlanLimits* limits, uint64_t seed,
                Arena* arena, Err err) {
    if (plan_begin(plan, step, lengths, n, limits, arena, err) < 0) return -1;
    ArenaMark mark = arena_mark(arena);
    Groups g = {limits, {seed, 0}, 0, limits->ranks, TAKE(arena, int, limits->ranks)};
    if (arena_check(arena, err) < 0) return -1;
    memset(g.ring_docs, 0, sizeof(int) * (size_t)limits->ranks);
    if (draw(&g.random, 2)) {  // some ranks stay empty, if the others can do without them
        g.first = draw(&g.random, limits->ranks);
        g.ranks = 1 + draw(&g.random, limits->ranks - g.first);
    }
    shuffle_docs(plan->docs, lengths, n, limits, &g.random);
    for (int first = 0; first < n; first += plan->micro_batches[plan->n_micro_batches++].n_docs) {
        int doc = plan->docs[first];
        MicroBatch group = find_group(&g, lengths[doc]);
        if (group.cp_size == 0)
            return fail(err,
                        "document %d of the step has %d tokens, and no group of up to %d ranks holds it at capacity "
                        "%d with at most %d documents in the rings of a rank; try a larger --capacity or more ranks",
                        doc, lengths[doc], limits->ranks, limits->capacity, limits->max_ring_docs);
        plan->micro_batches[plan->n_micro_batches] = fill_group(&g, group, plan->docs, lengths, first, n);
    }
    shuffle_micro_batches(plan->micro_batches, plan->n_micro_batches, &g.random);
    arena_reset(arena, mark);
    if (draw(&g.random, 2) && draw_placements(plan, &g, lengths, arena, err) < 0) return -1;
    uint64_t joins = hash64(seed);
    if (draw(&g.random, 4)) return plan_join_rounds(plan, lengths, limits, &joins, arena, err);
    return plan_set_rounds(plan, arena, err);
}
