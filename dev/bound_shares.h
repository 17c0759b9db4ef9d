// bound_shares.h - L4, a bound beside those of plan/cost/bound.h.
#pragma once
#include "plan/cost/bound.h"

// L4: no plan of any shares can beat it, however many of a document's tokens and heads a rank has, even or not, while
// each document stands in one pass of a rank. See bound_shares.c. 0, or -1 without memory.
int bound_of_shares(double* l4, const int* sorted, int n, const Setting* setting, Arena* arena, Err err);
