// tp.h - what the ranks of a tensor-parallel group exchange: Megatron's layout with sequence-parallel norms
// (Korthikanti et al. 2022). Outside attention and MLP rank t has the tokens [t n, (t + 1) n) of a row of N, n = ceil(N
// / R), the last ranks fewer; a sum over ranks is a reduce-scatter there, and an all-gather comes before the next
// matmul: together the bytes of one all-reduce. A row makes four of these pairs in each block, forward and backward
// together, wherever slow ranks' work is computed. With a group of one nothing here does anything.
#pragma once
#include "plan/shape.h"

typedef struct Model Model;
typedef struct Row Row;

// The own rows of x (R n, C).
void* tp_own(const Model* m, void* x, const Row* row);
// x (R n, C): own rows to all ranks.
void tp_all_gather(const Model* m, void* x, const Row* row);
// x (R n, C): own rows become sums over ranks of those rows; all others are spent.
void tp_reduce_scatter(const Model* m, void* x, const Row* row);
// Own rows (n,C) gathered into full (R n, C), which is returned; in a group of one `own` itself.
void* tp_full(const Model* m, void* own, void* full, const Row* row);

// Files know whole tensors. whole (elems, host, fp32) = the parts of all ranks, of which `part` is this one's; others:
// scratch for the largest part of any rank. Collective in the group. In a group of one whole and part may be the same.
void tp_join(const Model* m, const ParamTensor* tensor, float* whole, float* part, float* others);

// logits (Vp, host): the own rows are there, all others come. Collective in the group.
void tp_share_logits(const Model* m, float* logits);
