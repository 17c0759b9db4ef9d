// owned.h - who owns which parts of optimizer state, as a list of boxes of whole tensors: what run/mover.h moves into
// any other layout, into files or for good.
#pragma once
#include "plan/holding.h"
#include "run/model.h"

// Of all ranks, of a kind of state: `at` counts elements of this model's array of it, for STATE_WEIGHTS of
// Zero.part[ZERO_WEIGHTS]. Every rank tells the others its own list, so any layout will do. Collective; in the arena;
// ends the program where a rank is lost.
Holdings owned_holdings(const Model* m, StateKind kind, Arena* arena);
