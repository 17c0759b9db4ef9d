// trials.h - plans of flex and adaptive, each in dirty memory of its own, and what any of them must be.
#pragma once
#include "dev/bound_shares.h"
#include "plan/step/flex.h"
#include "test/settings.h"

typedef int PlanFunction(Plan* plan, Prediction* prediction, int64_t step, const int* lengths, int n,
                         const Setting* setting, Arena* arena, Err err);

typedef struct Trial {
    Plan plan;
    Prediction f;
    int result;
    Arena arena;
    char err[ERR_BYTES];
} Trial;

static inline Trial planned(PlanFunction* plan, const int* lengths, int n, const Setting* setting) {
    Trial t = {0};
    soil(&t.arena, 0xa5, 1 << 20);
    memset(&t.f, 0xa5, sizeof t.f);
    t.result = plan(&t.plan, &t.f, 3, lengths, n, setting, &t.arena, t.err);
    return t;
}

static inline void free_trial(Trial* t) { arena_free(&t->arena); }

// The kind of the try that was chosen.
static inline FlexTryKind chosen_kind(const Prediction* f) {
    for (int i = 0; i < f->n_tries; i++)
        if (f->tries[i].chosen) return f->tries[i].kind;
    return FLEX_TRY_KINDS;
}

// Whether a pass has several micro-batches.
static inline int merged(const Plan* plan) {
    for (int i = 0; i < plan->n_micro_batches && plan->n_rounds > 0; i++)
        for (int j = 0; j < i; j++) {
            const MicroBatch *a = &plan->micro_batches[i], *b = &plan->micro_batches[j];
            int apart = a->first_rank + a->cp_size <= b->first_rank || b->first_rank + b->cp_size <= a->first_rank;
            if (a->round == b->round && !apart) return 1;
        }
    return 0;
}

static inline void check_trial(Trial* t, const int* lengths, int n, const Setting* setting) {
    Bounds b;
    double l4;
    int* sorted = TAKE(&t->arena, int, n);
    CHECK(t->result == 0);
    if (t->result == 0) {
        double ms = t->f.makespan;
        CHECK(plan_check(&t->plan, lengths, n, &setting->limits, &t->arena, t->err) == 0);
        CHECK(t->plan.step == 3 && t->plan.n_docs == n && (t->plan.n_rounds == 0 || n > 0));
        CHECK(ms == plan_ms(&t->plan, lengths, setting));
        sort_descending(sorted, lengths, n);
        CHECK(bounds_of(&b, sorted, n, setting, &t->arena, t->err) == 0);
        CHECK(bound_of_shares(&l4, sorted, n, setting, &t->arena, t->err) == 0);
        CHECK(t->f.bounds.l1 == b.l1 && t->f.bounds.l2 == b.l2 && t->f.bounds.l3 == b.l3);
        CHECK(ms >= b.l3 && ms >= l4);
        CHECK_CLOSE(terms_ms(&t->f.critical), ms, 1e-12 * ms);
        CHECK(prediction_gap(&t->f) == (n == 0 ? 0 : ms / b.l3 - 1));
        CHECK(t->f.n_tries >= 0 && t->f.n_tries <= FLEX_TRIES);
    }
    if (test_failures_in_claim && t->err[0]) printf("    %.200s\n", t->err);
}
