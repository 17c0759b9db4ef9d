// trials.h - plans of flex and adaptive, each in dirty memory of its own.
#pragma once
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
