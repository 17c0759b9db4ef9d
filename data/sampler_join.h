// sampler_join.h - beside sampler.h: joins documents of a step that begin alike to trees (kernels/tree_attention.h), so
// that what they share is computed once.
//
// Only a beginning of which nothing is learnt is shared, such as a prompt: a learnt one would count once, where the
// documents written out learn it several times. So loss and gradients are those of the documents.
#pragma once
#include "data/docs_files.h"
#include "data/sampler.h"

enum { JOIN_LEAST = 64 };  // tokens that are worth a segment

// Returns whether documents may have beginnings that are not learnt.
static inline int docs_may_join(const Docs* docs) { return docs->more->n_learnt > 0; }

// Joins whole documents among a step's n pieces to trees of at most `most` tokens, if they are no trees and have at
// least JOIN_LEAST first tokens in common. A tree is a piece with n_parts > 0 and the sums of its documents: its
// segments are the pieces from part on, depth first, each a part of a document that belongs to the tree. The same
// pieces are joined alike everywhere. pieces: room for as many as they have tokens, as has `tokens`, which is
// overwritten. Returns how many pieces there are then, parts not counted, or -1 with a message.
int sampler_join(const Sampler* s, Piece* pieces, int n, int64_t most, int* tokens, Arena* arena, Err err);
// piece_stretch returns stretch k < piece_stretches of a piece; each is of one document without a break.
static inline int piece_stretches(const Piece* p) { return p->n_parts ? p->n_parts : 1; }
static inline const Piece* piece_stretch(const Piece* pieces, const Piece* p, int k) {
    return p->n_parts ? &pieces[p->part + k] : p;
}
// Returns how many pieces there are with the parts after them, as sampler_join leaves them.
static inline int pieces_with_parts(const Piece* pieces, int n) {
    return n && pieces[n - 1].n_parts ? pieces[n - 1].part + pieces[n - 1].n_parts : n;
}
