// sampler_cut.h - beside sampler.h: cuts trees of a step that no group of ranks holds into several (tree_cut.h).
//
// The documents of a step and what is learnt of them do not depend on its ranks, so a tree is cut inside its step:
// each label is learnt once, in the first part that has it. Loss and gradients are those of the whole tree.
#pragma once
#include "data/docs_files.h"
#include "data/sampler.h"
#include "data/sampler_join.h"
#include "data/tree_cut.h"

// sampler_cut makes several pieces of each tree that has more than `most` tokens, where every path fits. They follow
// one another, and Piece.rest counts those still to come. They look as those of sampler_join, which stay as they are.
// pieces: n of them, with room for `room`, parts included. Returns how many there are then without parts, or -1.
int sampler_cut(const Sampler* s, Piece* pieces, int n, int64_t most, int room, Arena* arena, Err err);
// docs_cut_factor returns the upper bound of a step's tokens after cuts over those that it draws; 1: no tree is cut. It
// adds the cuts to *told. -1 with a message: no memory.
double docs_cut_factor(const Docs* docs, int64_t most, DocsSplit* told, Err err);
