// order.c - the order in which ranks run the passes of a plan, for the shortest whole step: see flex.h.
//
// A plan and its reverse take equally long by themselves. But weights and gradients hide under the first and the last
// passes (plan/cost/weights.h), which differ. Searches put long documents first, which leaves short rows for the end.
// The reverse ends with the long ones, in which all ranks may reduce gradients, if all are in the last round.
#include "plan/step/flex.h"

static void reverse(Plan* plan) {
    int n = plan->n_micro_batches;
    for (int i = 0; i < n / 2; i++) {
        MicroBatch kept = plan->micro_batches[i];
        plan->micro_batches[i] = plan->micro_batches[n - 1 - i], plan->micro_batches[n - 1 - i] = kept;
    }
    for (int i = 0; i < n; i++) plan->micro_batches[i].round = plan->n_rounds - 1 - plan->micro_batches[i].round;
}

typedef struct Late {
    Plan* plan;
    int *from, *listed;  // (n_rounds + 2), (n_micro_batches) micro-batches by round
    int *next, *at;      // (ranks) the round of a rank's next pass; that of its pass in the round at hand
    int* round;          // (n_micro_batches) the new rounds, as late as later passes allow
} Late;

// Puts a round late. Its micro-batches that share a rank stay together, so the least round counts for all.
static void put_late(Late* x, int first, int end) {
    for (int changed = 1; changed;) {
        changed = 0;
        for (int k = first; k < end; k++) {
            const MicroBatch* mb = &x->plan->micro_batches[x->listed[k]];
            int round = x->round[x->listed[k]];
            for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++) round = MIN(round, x->at[r]);
            for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++)
                changed |= x->at[r] != round, x->at[r] = round;
            x->round[x->listed[k]] = round;
        }
    }
    for (int k = first; k < end; k++) {
        const MicroBatch* mb = &x->plan->micro_batches[x->listed[k]];
        for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++) x->next[r] = x->at[r];
    }
}

int plan_end_late(Plan* plan, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    int n = plan->n_micro_batches, rounds = plan->n_rounds;
    Late x = {.plan = plan,
              .from = TAKE(arena, int, rounds + 2),
              .listed = TAKE(arena, int, n),
              .next = TAKE(arena, int, plan->ranks),
              .at = TAKE(arena, int, plan->ranks),
              .round = TAKE(arena, int, n)};
    if (arena_check(arena, err) < 0) return -1;
    memset(x.from, 0, sizeof(int) * ((size_t)rounds + 2));
    for (int i = 0; i < n; i++) x.from[plan->micro_batches[i].round + 2]++;
    for (int k = 2; k < rounds + 1; k++) x.from[k + 1] += x.from[k];
    for (int i = 0; i < n; i++) x.listed[x.from[plan->micro_batches[i].round + 1]++] = i;
    for (int r = 0; r < plan->ranks; r++) x.next[r] = rounds;
    for (int round = rounds - 1; round >= 0; round--) {
        for (int r = 0; r < plan->ranks; r++) x.at[r] = x.next[r] - 1;
        for (int k = x.from[round]; k < x.from[round + 1]; k++) x.round[x.listed[k]] = rounds;
        put_late(&x, x.from[round], x.from[round + 1]);
    }
    for (int i = 0; i < n; i++) plan->micro_batches[i].round = x.round[i];
    arena_reset(arena, mark);
    return 0;
}

// The ends of a rank's list of passes.
typedef struct RankPasses {
    int first, last, n;  // first, last: rounds; n: micro-batches
    int alone;           // the one micro-batch of the first pass, of this rank alone; -1: none
} RankPasses;

// Moves the first pass of a rank's list, if it is a local row, after all others except the last.
static int move_first_rows(Plan* plan, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    int n = plan->n_micro_batches, ranks = plan->ranks;
    RankPasses* of = TAKE(arena, RankPasses, ranks);
    if (arena_check(arena, err) < 0) return -1;
    for (int r = 0; r < ranks; r++) of[r] = (RankPasses){plan->n_rounds, -1, 0, -1};
    for (int i = 0; i < n; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        for (RankPasses* r = of + mb->first_rank; r < of + mb->first_rank + mb->cp_size; r++) {
            if (mb->round == r->first) r->alone = -1;
            if (mb->round < r->first) r->first = mb->round, r->alone = mb->cp_size == 1 ? i : -1;
            r->last = MAX(r->last, mb->round), r->n++;
        }
    }
    for (int i = 0; i < n; i++) plan->micro_batches[i].round *= 2;
    for (int r = 0; r < ranks; r++)
        if (of[r].alone >= 0 && of[r].n > 2) plan->micro_batches[of[r].alone].round = 2 * of[r].last - 1;
    plan->n_rounds *= 2;
    if (plan_end_late(plan, arena, err) < 0) return -1;
    arena_reset(arena, mark);
    return 0;
}

int plan_order(Plan* plan, Prediction* prediction, const int* lengths, const Setting* setting, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    Prediction tried = *prediction;
    Plan other, found;
    if (plan->n_docs == 0 || setting->weights.layers == 0) return 0;
    plan_take(&other, plan->n_docs, arena);
    if (arena_check(arena, err) < 0) return -1;
    if (plan->n_rounds == 0 && plan_set_rounds(plan, arena, err) < 0) return -1;
    plan_take(&found, plan->n_docs, arena);
    if (arena_check(arena, err) < 0) return -1;
    plan_copy(&found, plan);
    for (int k = setting->rounds ? 2 : 0; k < (setting->rounds ? 3 : 4); k++) {
        plan_copy(&other, &found);
        if (k > 1) reverse(&other);
        if (!setting->rounds && (k & 1 ? move_first_rows : plan_end_late)(&other, arena, err) < 0) return -1;
        if (plan_tidy(&other, setting->limits.node_size, arena, err) < 0) return -1;
        if (predict_time(&tried, &other, lengths, setting, arena, err) < 0) return -1;
        if (tried.step >= prediction->step) continue;
        plan_copy(plan, &other);
        prediction->step = tried.step, prediction->makespan = tried.makespan, prediction->critical = tried.critical;
    }
    arena_reset(arena, mark);
    return 0;
}
