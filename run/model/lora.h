// lora.h - adapters: a model whose weights are frozen, and small matrices beside its linears that learn (Hu et al.
// 2021; plan/model/shape.h: Lora).
//
//   y = x W^T + s (x A^T) B^T     u = x A^T     d_u = s d_y B     d_x = d_y W + d_u A     d_A += d_u^T x
//   d_B += s d_y^T u              A (rank, K)   B (OC, rank)      s = alpha / rank
//
// There are two models. Model is that of the adapters: its tensors, gradients and moments are theirs alone, so that
// ZeRO, clipping, the update and checkpoints need no word of this. ModelRanks.frozen is the other, with weights and
// nothing else; Model.param_places shows both. Ranks divide both alike: stage 3 of ZeRO divides the frozen weights,
// too. Where tensor parallelism cuts a linear by outputs, B is cut and A is on all ranks; else A is cut. What all have
// gets a part of its gradient on each (zero.c: sum_replicated).
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
// Returns the A of the adapter of a matrix of the base, whose B comes next; N_PARAMS: it has none.
ParamId lora_of(const Shape* adapters, ParamId matrix);
// value (elems) += s B A: a matrix of the base with its adapter, all of them whole, fp32, on the host.
void lora_merge(float* value, const ParamTensor* tensor, const Shape* adapters, const float* A, const float* B);
