// even_rows.h - passes of a rank alone, as even as its documents allow. Planners fill a row before they begin the next,
// which leaves a short last one. That costs nothing by itself, but what moves under the first forward and the last
// backward pass (plan/layout/strategy_moves.h) hides under both as far as they last.
#pragma once
#include "plan/value/plan.h"

// Of each rank that shares nothing: its documents in as many rows as before, longest first to the row with least work,
// where a row holds them; the row with most work last. Ranks keep their documents, so a step takes as long as before.
// 0, or -1 without memory.
int plan_even_rows(Plan* plan, const int* lengths, const PlanLimits* limits, Arena* arena, Err err);
