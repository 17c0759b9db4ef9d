// lora.h - adapters: a model whose weights are frozen, and small matrices beside its linears that learn (Hu et al. 2021,
// "LoRA"; plan/model/shape.h: Lora).
//
//   y = x W^T + s (x A^T) B^T     u = x A^T     d_u = s d_y B     d_x = d_y W + d_u A     d_A += d_u^T x
//   d_B += s d_y^T u              A (rank, K)   B (OC, rank)      s = alpha / rank
//
// There are two models. Model is that of the adapters: its tensors, gradients and moments are theirs alone, so that
// ZeRO, clipping, the update and checkpoints need no word of this. ModelRanks.frozen is the other, with weights and
// nothing else; Model.param_places shows both. Ranks divide both alike: with ZeRO stage 3 they divide the frozen weights
// too. In a linear that tensor parallelism cuts by outputs B is cut and A is on all ranks, in the other A is cut; what
// all have gets a part of its gradient on each (zero.c: sum_replicated).
#pragma once
#include "run/model/model_ranks.h"

// Adds the bytes of frozen weights to those of the adapters' arrays.
void lora_sizes(const Model* m, int training, size_t bytes[N_MODEL_ARRAYS]);
// Makes ModelRanks.frozen once m->array is filled. It ends the program if there is no memory.
void lora_open(Model* m);
void lora_close(Model* m);

// These do nothing where a linear has no adapter. N: rows of x (N,K), dx (N,K), dout (N,OC), as this rank has the
// linear.
void lora_forward(const Model* m, LinearId id, int l, void* out, const void* x, int N);                 // out +=
void lora_backward_input(const Model* m, LinearId id, int l, void* dx, const void* dout, int N);        // dx +=
void lora_backward_weight(const Model* m, LinearId id, int l, const void* dout, const void* x, int N);  // dA, dB +=
// value (elems, fp32, host) += s B A of the adapter of a whole matrix of the base, if it has one; A and B as files have
// them.
void lora_merge(float* value, const ParamTensor* tensor, const Shape* adapters, const float* A, const float* B);
// The adapter of a matrix of the base: its A and B; 0 if a model of this shape has none.
int lora_of(ParamId pair[2], const Shape* adapters, ParamId matrix);
