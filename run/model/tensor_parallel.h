// tensor_parallel.h - a block on the ranks of a tensor-parallel group: Megatron's layout with sequence-parallel norms
// (Korthikanti et al. 2022).
//
// Outside attention and MLP rank t of a group of R has the tokens [t n, (t + 1) n) of a row of N, n = ceil(N / R), the
// last ranks fewer; a sum over ranks is a reduce-scatter there, and an all-gather comes before the next matmul:
// together the bytes of one all-reduce. A row makes four of these pairs in each block, forward and backward together,
// whichever ranks compute the slices of slow ones. In a group of one these functions do nothing.
//
// A layer of tp T < R does that among the T ranks of a cut, over their tokens alone: weights are larger, and exchanges
// smaller. Attention needs all tokens: an all-to-all among the cuts turns tokens into heads, each rank computes as many
// as if all R cut the weights, and another one turns back (as in kernels/comm/group_attention.h).
// The ends of the model, l = -1 and l = L, belong to the whole group.
#pragma once
#include "run/model/model_ranks.h"

// Makes groups and units of the layout. It needs tp and comm, or their sizes, split and shape.
void layers_plan(Model* m);
void layers_join(Model* m);  // makes their Comms; collective
// Returns the ranks of a cut with this split that share the key/value head of this rank, number t of the cut; NULL if
// it has its own. Collective.
Comm* layers_join_sharers(const Model* m, const TpSplit* split, int t);

// ---- entries of ManyRanks (run/model/many_ranks.h)

// Counts the tokens of a row that the ranks of a cut have between them: T n, the last cuts fewer. The next three see
// them.
int tp_tokens(const Model* m, const Row* row, int l);
// x is (T n, C). tp_own finds own rows, tp_all_gather sends them to all, tp_reduce_scatter sums rows over ranks for
// their owners; others' rows are not to be read after it.
void* tp_own(const Model* m, void* x, const Row* row, int l);
void tp_all_gather(const Model* m, void* x, const Row* row, int l);
void tp_reduce_scatter(const Model* m, void* x, const Row* row, int l);

// These are the linears of run/model/work.h with the exchanges among the ranks that cut layer l; N counts their tokens.
// Forward, In has own rows of x (N, width) and gets all others; Out makes own rows of out (N,OC) sums over ranks.
// Backward, Out gathers dout (own,OC); In makes own rows of dx (N, width) sums.
void tp_linear_forward(const Model* m, const Row* row, LinearId id, int l, void* out, void* gelu, void* x);
void tp_linear_backward(const Model* m, const Row* row, LinearId id, int l, void* dx, void* dout, void* x,
                        const void* pre);

// At the ends of the model ranks hold parts of wte and of the classifier. Each rank looks up the tokens that it has and
// finds zeros for others; the sum over ranks is complete. It tells the others three numbers a token about its logits.
void tp_embed(const Model* m, const Row* row);
void tp_embed_backward(const Model* m, const Row* row);
void tp_classify(const Model* m, const Row* row, void* logits, int n, int N, float scale, int train);

// A TpGather is tp_all_gather of the cut's rows in the order in which a linear can use them. Comm.overlap divides it
// into two parts: first the rows of the half of the group that this rank is in, then the others' while those are
// multiplied. More parts would hide more, but a matmul of an eighth of the rows leaves most of a GPU's processors idle.
// Otherwise, in a group of one, and where a part would have a single row, all rows are one part.
//   TpGather g = tp_gather_begin(m, own, full, row, l);
//   for (TpRows r; tp_gather_next(m, &g, &r);) ...   // rows r.first .. r.first + r.n of the row stand at r.x
// Own rows (n,C) may lie in full (R n, C); neither is to be written before the loop is over.
typedef struct TpGather {
    const Row* row;
    int l, N;  // tokens of the cut
    char *own, *full;
    int part, parts;
    Request arriving[2];  // by part
} TpGather;

typedef struct TpRows {
    const void* x;
    int first, n;
} TpRows;

TpGather tp_gather_begin(const Model* m, void* own, void* full, const Row* row, int l);
int tp_gather_next(const Model* m, TpGather* g, TpRows* rows);  // 0: that was all

// ---- files know whole tensors

// part = this rank's elements of whole, both (elems, host, fp32) of a tensor of this stage; they may be one memory.
void tp_take(const Model* m, const ParamTensor* tensor, float* part, const float* whole);
// whole (elems, host, fp32) = the parts of all ranks; `part` is this rank's. `others` is scratch for the largest part
// of any rank. Collective in the group. In a group of one whole and part may be the same.
void tp_join(const Model* m, const ParamTensor* tensor, float* whole, float* part, float* others);

// ---- generation

size_t tp_logits_room(const Model* m);  // ActNeeds.gathered
// Returns model_logits of the whole vocabulary, (N,Vp) on the device, N at most sampled_N. Collective in the group.
void* tp_logits(const Model* m, int n, int N);
