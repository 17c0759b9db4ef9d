// many_ranks.h - what many ranks do instead of an op of train_gpt.cu or around it: the table Model.many, NULL on one
// rank, and the macro MANY by which the model asks it.
#pragma once
#include "run/model/model.h"

// The first two entries stand around layers; l counts from 0, the embeddings are layer -1, the final norm and the
// classifier layer L. Each other entry replaces an op on one rank; NULL keeps that op.
typedef struct ManyRanks {
    // Makes the weights of layer l readable, and backward its gradients writable, until the layer after the next is
    // used. Those of the next one in `direction` (1 forward, -1 backward, 0 none) begin to come.
    void (*use_layer)(Model* m, int l, int direction);
    void (*close_grads)(Model* m, int l);  // gradients of layer l are complete for this row; l = -1 ends the row
    int (*grads_stay)(const Model* m);     // gradients of all layers are writable all the time; NULL: never

    // Linears: see linear_forward of train_gpt.cu. `units` counts those of a sublayer that this rank computes.
    int (*units)(const Model* m, SublayerId id, int l);
    void (*linear_forward)(const Model* m, const Row* row, LinearId id, int l, void* out, void* gelu, void* x);
    void (*linear_backward)(const Model* m, const Row* row, LinearId id, int l, void* dx, void* dout, void* x,
                            const void* pre);

    // A tensor-parallel group has x for all tokens of the row: own_tokens finds this rank's, gather_tokens sends all to
    // each rank, sum_tokens makes them sums over ranks. `tokens` counts those that this rank sees in layer l.
    int (*tokens)(const Model* m, const Row* row, int l);
    void* (*own_tokens)(const Model* m, void* x, const Row* row, int l);
    void (*gather_tokens)(const Model* m, void* x, const Row* row, int l);
    void (*sum_tokens)(const Model* m, void* x, const Row* row, int l);
    // Its ranks have parts of wte and of the classifier; classify is Kernels.classifier of tokens n .. n + N.
    void (*embed)(const Model* m, const Row* row);
    void (*embed_backward)(const Model* m, const Row* row);
    void (*classify)(const Model* m, const Row* row, void* logits, int n, int N, float scale, int train);

    // Attention of a row with documents that ranks share; `a` has the heads of this rank and the scale.
    void (*attention_forward)(const Model* m, const Row* row, int l, const Attention* a);
    void (*attention_backward)(const Model* m, const Row* row, int l, const Attention* a, void* d_qkv,
                               const void* d_att);

    // The update: reduce makes gradients and losses sums over all ranks and adds the squares of the gradients to
    // *grad_norm2. step calls model_step_tensor for all that this rank owns, sends that to whoever needs it next, and
    // zeroes the gradients.
    void (*reduce)(Model* m);
    void (*step)(Model* m, const Config* config, double lr, int64_t t);
} ManyRanks;

// Calls an entry and is 1, or is 0 where the op on one rank remains. It captures the `m` of the function it stands in.
#define MANY(entry, ...) (m->many && m->many->entry ? (m->many->entry(__VA_ARGS__), 1) : 0)

static inline int units_now(const Model* m, SublayerId id, int l) {
    return m->many && m->many->units ? m->many->units(m, id, l) : own_units(&m->shape, id);
}
static inline void* own_tokens(const Model* m, void* x, const Row* row, int l) {
    return m->many && m->many->own_tokens ? m->many->own_tokens(m, x, row, l) : x;
}
static inline int row_tokens(const Model* m, const Row* row, int l) {
    return m->many && m->many->tokens ? m->many->tokens(m, row, l) : row->N;
}
