// megatron.c - Megatron-LM's scheduler for documents of unlike lengths (released code of 2026), rebuilt.
//
// Its micro-batch, what all ranks do between two barriers, is a round here. Dynamic context parallelism sizes groups by
// memory and balances by attention alone:
//   cp size = least power of two that holds s,   load of a group = sum s^2 / cp size
// A round starts with all ranks free. Documents come longest first; one whose cp size still finds free ranks opens a
// group there, else it joins the least loaded group of its cp size that has room. If its cp size has neither group nor
// ranks, narrower ones go on. The round ends when the groups of a document are full, or, once cp sizes have begun to
// fall, when the loads of all ranks are within 5 %. Ranks that are left over widen the narrowest groups, twofold each.
// Nothing is carried to the next round, and all ranks wait for each other in between. The release cuts the sorted list
// into parts of equal work first, which only changes where it goes on after a cp size that is blocked: here that is the
// next narrower cp size. MicroBatch.round is the round.
//
// Groups are the machine's (Setting.groups): ulysses or ring, room and balance of heads as for every other planner
// here. Every rank counts with the least capacity, because the published scheduler knows one.
#include "plan/published/published.h"

// Tokens of a rank that a document takes in groups of this cost.
static int64_t takes(const GroupCost* g, int s) { return widest_ring_rank(s, g->cp_size / g->ulysses_size); }

typedef struct Batch {
    const Setting* setting;
    Plan* plan;
    int n;
    int *docs, *lengths;  // (n) documents, longest first, and their lengths
    int* cp_size;         // (n) the least that holds them
    int* mb_of;           // (n) the group of each document; -1: none yet
    double* load;         // (n) of each group
    int64_t* taken;       // (n)
    int first;            // groups of this round are the micro-batches from here on
    int free_ranks, left;
} Batch;

static int choose_cp_sizes(Batch* x, Err err) {
    const PlanLimits* limits = &x->setting->limits;
    for (int i = 0, d = 1; i < x->n; i++) {
        int s = x->lengths[i];
        for (d = 1; d <= limits->ranks && !group_holds(&x->setting->groups[d], s);) d *= 2;
        if (d > limits->ranks) return refuse_document(x->docs[i], s, limits, err);
        x->cp_size[i] = d;
        x->mb_of[i] = -1;
    }
    return 0;
}

// Finds the group for document i: a new one, the least loaded of its cp size with room, or -1. *full: its cp size has
// groups, but none with room.
static int find_group(Batch* x, int i, int* full) {
    int cp_size = x->cp_size[i], best = -1, same = 0, new = x->plan->n_micro_batches;
    const GroupCost* g = &x->setting->groups[cp_size];
    if (x->free_ranks >= cp_size) {
        x->plan->micro_batches[new] = (MicroBatch){.cp_size = cp_size};
        x->load[new] = 0, x->taken[new] = 0;
        x->free_ranks -= cp_size;
        return x->plan->n_micro_batches++;
    }
    for (int k = x->first; k < new; k++) {
        if (x->plan->micro_batches[k].cp_size != cp_size) continue;
        same = 1;
        if (x->taken[k] + takes(g, x->lengths[i]) > g->room) continue;
        if (best < 0 || x->load[k] < x->load[best]) best = k;
    }
    *full = best < 0 && same;
    return best;
}

static int balanced(const Batch* x) {
    double least = x->free_ranks > 0 ? 0 : x->load[x->first], most = least;
    for (int k = x->first; k < x->plan->n_micro_batches; k++) {
        least = MIN(least, x->load[k]);
        most = MAX(most, x->load[k]);
    }
    return most - least <= 0.05 * most;
}

// Opens groups and gives them documents until the round is full or balanced.
static void fill_round(Batch* x) {
    int blocked = 0, widest = 0, full = 0;
    x->first = x->plan->n_micro_batches;
    x->free_ranks = x->setting->limits.ranks;
    for (int i = 0; i < x->n && !full; i++) {
        if (x->mb_of[x->docs[i]] >= 0 || x->cp_size[i] == blocked) continue;
        int k = find_group(x, i, &full), cp_size = x->cp_size[i];
        if (k < 0) {
            blocked = cp_size;
            continue;
        }
        double s = x->lengths[i];
        x->mb_of[x->docs[i]] = k;
        x->taken[k] += takes(&x->setting->groups[cp_size], x->lengths[i]);
        x->load[k] += s * seen_tokens(x->setting->limits.squares, x->docs[i], x->lengths[i]) / cp_size;
        x->left--;
        if (widest == 0) widest = cp_size;
        if (x->left > 0 && cp_size < widest && balanced(x)) return;
    }
}

// Returns 1 if the documents of group k fit `cp_size` ranks.
static int fits(const Batch* x, int k, int cp_size) {
    const GroupCost* g = &x->setting->groups[cp_size];
    int64_t taken = 0;
    for (int i = 0; i < x->n && g->ulysses_size > 0; i++)
        if (x->mb_of[x->docs[i]] == k) taken += takes(g, x->lengths[i]);
    return g->ulysses_size > 0 && taken <= g->room;
}

// Widens the first of the narrowest groups with free ranks, again and again.
static void widen_groups(Batch* x) {
    MicroBatch* groups = x->plan->micro_batches;
    while (x->free_ranks > 0) {
        int narrowest = x->first;
        for (int k = x->first; k < x->plan->n_micro_batches; k++)
            if (groups[k].cp_size < groups[narrowest].cp_size) narrowest = k;
        int cp_size = groups[narrowest].cp_size;
        if (cp_size > x->free_ranks || !fits(x, narrowest, 2 * cp_size)) return;
        groups[narrowest].cp_size = 2 * cp_size;
        x->free_ranks -= cp_size;
    }
}

// Groups lie in the order in which they were opened. Their cp sizes never rise from one to the next, so each begins at
// a multiple of its own.
static void place_groups(Batch* x) {
    int rank = 0;
    for (int k = x->first; k < x->plan->n_micro_batches; k++) {
        MicroBatch* mb = &x->plan->micro_batches[k];
        mb->first_rank = rank, mb->round = x->plan->n_rounds;
        mb->ulysses_size = x->setting->groups[mb->cp_size].ulysses_size;
        rank += mb->cp_size;
    }
}

static int plan_megatron(const void* planner, Plan* plan, int64_t step, const int* lengths, int n, Arena* arena,
                         Err err) {
    Setting own;
    if (plan_begin(plan, step, lengths, n, &((const Setting*)planner)->limits, arena, err) < 0) return -1;
    ArenaMark mark = arena_mark(arena);
    if (planner_alike(&own, (const Setting*)planner, arena, err) < 0) return -1;
    Batch x = {.setting = &own,
               .plan = plan,
               .n = n,
               .left = n,
               .docs = TAKE(arena, int, n),
               .lengths = TAKE(arena, int, n),
               .cp_size = TAKE(arena, int, n),
               .mb_of = TAKE(arena, int, n),
               .load = TAKE(arena, double, n),
               .taken = TAKE(arena, int64_t, n)};
    if (arena_check(arena, err) < 0) return -1;
    plan->has_barriers = 1;
    sort_longest_first(x.docs, x.lengths, lengths, n);
    if (choose_cp_sizes(&x, err) < 0) return -1;
    for (; x.left > 0; plan->n_rounds++) {
        fill_round(&x);
        widen_groups(&x);
        place_groups(&x);
    }
    plan_fill(plan, x.docs, x.mb_of);
    arena_reset(arena, mark);
    return 0;
}

const Planner planner_megatron = {
    .name = "megatron",
    .words = "Megatron-LM's dynamic context parallelism: cp sizes by memory, balance by s^2",
    .open = planner_open_setting,
    .plan = plan_megatron};
