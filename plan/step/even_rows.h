// even_rows.h - passes of a rank alone, as even as its documents allow. Planners fill a row before they begin the next,
// which leaves a short last one. That costs nothing by itself, but moves hide under the first forward and the last
// backward pass (plan/layout/strategy_moves.h) only as far as these last.
#pragma once
#include "plan/value/plan.h"

// Deals the documents of each rank that shares nothing to as many rows as before, longest first to the row with least
// work that holds them. The row with most work comes last. Ranks keep their documents, so a step takes as long as
// before. A rank stays as it is if a document finds no room. 0, or -1 without memory.
int plan_even_rows(Plan* plan, const int* lengths, const PlanLimits* limits, Arena* arena, Err err);
