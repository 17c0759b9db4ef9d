// sampler_cut.h - beside sampler.h: trees of a step that no group of ranks holds, as several (tree_cut.h).
//
// The documents of a step and what is learnt of them do not depend on its ranks, so a tree is cut inside its step:
// each label is learnt once, in the first part that has it. Loss and gradients are those of the whole tree.
#pragma once
#include "data/docs_files.h"
#include "data/sampler.h"
#include "data/sampler_join.h"

// Of a step's n pieces trees of more than `most` tokens, which every path fits into, become several, which stand behind
// one another: Piece.rest says how many still come. They look as those of sampler_join do, which stay as they are.
// Pieces and the parts behind them have `room`. Returns how many pieces there are then, parts not counted, or -1.
int sampler_cut(const Sampler* s, Piece* pieces, int n, int64_t most, int room, Arena* arena, Err err);
// How many times as many tokens as it draws a step may have then; 1: no document is cut. Adds what is cut to *told. -1
// with a message: no memory.
double docs_cut_factor(const Docs* docs, int64_t most, DocsSplit* told, Err err);
