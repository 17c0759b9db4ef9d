// remap.h - remapping: tokens of documents that one rank attends to lie on other ranks of its node. So linear work is
// even, as attention already is (Zeppelin, arXiv 2509.21841).
//
// In a remapped micro-batch the ulysses ranks hold any tokens, and one of them has all heads (Placement): queries, keys
// and values travel to it, outputs back, and backward the other way round. So all linear layers see the even tokens,
// projections too. With C channels of queries, K of keys, e bytes an element and m tokens that lie elsewhere, a layer
// moves
//
//   queries, keys, values, outputs      2 e (2 C + 2 K) m bytes, forward and backward: what is done here
//   the hidden vector instead           2 e (2 C) m, forward and backward, before QKV and behind attention
//
// The hidden vector is less, half with K = C and four fifths with K = C / 4, but leaves QKV and the projection on the
// rank that attends: a third of a GPT-2 block's linear work, a fifth of a Llama's. And it would need a second layout of
// tokens inside a block, beside the placements.
#pragma once
#include "plan/cost/cost.h"

typedef enum RemapChoice { REMAP_NO, REMAP_YES, REMAP_AUTO } RemapChoice;

// Remaps local micro-batches of a plan, inside nodes. Yes: every pass of a node gets tokens as even as its local
// micro-batches and heads allow. Auto: a node does so, with even tokens or even times, if it then ends sooner as played
// and the step does, too. It sets rounds if there are none. *changed: some are remapped. 0, or -1 with a message.
int plan_remap(Plan* plan, int* changed, const int* lengths, const Setting* setting, RemapChoice choice, Arena* arena,
               Err err);
