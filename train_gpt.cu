// train_gpt.cu - GPT-2, Llama and Qwen as sequences of ops, and the loop that trains them.
//
// How to read it: main at the foot is a list of phases. Above it, in this order: the model (forward, backward, update),
// the micro-batches of a step, evaluation, sampling, the loop. The ops are in kernels/kernels.h, the tables of
// parameters and activations in plan/shape.h, the model as one rank holds it in run/model.h, the phases before the
// first step in run/run.h. What many ranks add: plans in plan/plan.h, attention shared by ranks in
// kernels/group_attention.h, who holds which weights and gradients in run/zero.h, tensor parallelism in run/model.h,
// what slow ranks compute in run/work.h and run/balance.h, communication in kernels/comm.h.
//
// Valid C11 and valid CUDA C++, without kernel syntax: cc -x c on a machine without CUDA, nvcc with it.
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/kernels.h"
#include "plan/base.h"
#include "plan/disk.h"
#include "run/strategies.h"
#ifdef __cplusplus
}
#endif

// ---- the model

// Weights, gradient sums of the tensor `id` of layer l; NULL where the model has none.
static void* param(const Model* m, ParamId id, int l) {
    ParamTensor tensor = shape_param(&m->shape, id, l);
    return tensor.elems ? zero_weights(m, &tensor) : NULL;
}

static float* grad(const Model* m, ParamId id, int l) {
    ParamTensor tensor = shape_param(&m->shape, id, l);
    return tensor.elems ? zero_grads(m, &tensor) : NULL;
}

// In the functions below: the activation, statistic, weight and weight gradient of layer l, in the model m.
#define ACT(id) model_act(m, id, l)
#define STAT(id) ((float*)model_act(m, id, l))
#define W(id) param(m, id, l)
#define DW(id) grad(m, id, l)

// ---- norms

// The norm n of layer l: out = norm(x) of x = a + b, which is stored, too; with b NULL x = a lies there already.
static void norm_forward(const Model* m, const Row* row, const NormRow* n, int l, const void* a, const void* b) {
    m->k->norm_forward(b ? ACT(n->x) : NULL, tp_own(m, ACT(n->out), row, l), STAT(n->mean), STAT(n->rstd), a, b,
                       W(n->weight), W(n->bias), (float)m->shape.eps, row->own, m->shape.C, m->dt, m->s);
}

// Adds to D_RESIDUAL; the gradient of what the norm has made is in D_NORM.
static void norm_backward(const Model* m, const Row* row, const NormRow* n, int l) {
    m->k->norm_backward(ACT(D_RESIDUAL), DW(n->weight), DW(n->bias), tp_own(m, ACT(D_NORM), row, l), ACT(n->x),
                        W(n->weight), STAT(n->mean), STAT(n->rstd), row->own, m->shape.C, m->dt, m->s);
}

// ---- attention

// Who shares the row's documents, and the heads of layer l that this rank computes now.
static RowAttention attention_of(const Model* m, const Row* row, int l) {
    RowAttention a = row->attention;
    a.NKV = work_units(m, ATTENTION, l);
    a.NH = a.NKV * shape_queries(&m->shape);
    return a;
}

// Queries, keys and values of layer l, a row a token (QKV_OUTPUTS of plan/arch.h): in QKV, or in the KV cache behind
// those of earlier tokens.
static char* new_qkv(const Model* m, const Row* row, int l) {
    RowAttention a = attention_of(m, row, l);
    size_t cached = (size_t)row->cached * (size_t)((a.NH + 2 * a.NKV) * m->shape.HS) * dtype_bytes(m->dt);
    return (char*)model_act(m, row->use_cache ? KV : QKV, l) + cached;
}

// New queries of one document, its keys so far in the cache.
static Attention cached_attention(const Model* m, const Row* row, int l) {
    int heads = attention_of(m, row, l).NH, kv_heads = attention_of(m, row, l).NKV, HS = m->shape.HS;
    size_t head = (size_t)HS * dtype_bytes(m->dt);
    char* first = (char*)model_act(m, KV, l);
    Attention a;
    memset(&a, 0, sizeof a);
    a.q = new_qkv(m, row, l);
    a.k = first + (size_t)heads * head;
    a.v = first + (size_t)(heads + kv_heads) * head;
    a.cu_q = row->cu;
    a.cu_k = row->cu + 2;
    a.Nq = row->N;
    a.Nk = row->cached + row->N;
    a.ldq = a.ldkv = (heads + 2 * kv_heads) * HS;
    a.ldo = heads * HS;
    a.n_docs = 1;
    a.NH = heads;
    a.NKV = kv_heads;
    a.HS = HS;
    a.causal = 1;
    a.scale = 1 / sqrtf((float)a.HS);
    return a;
}

// What the backward pass of attention needs, see kernels/group_attention.h.
static SavedAttention saved_attention(const Model* m, int l) {
    SavedAttention saved;
    saved.qkv = model_act(m, QKV, l);
    saved.out = model_act(m, ATT, l);
    saved.head_out = model_act(m, ATT_HEADS, l);
    saved.lse = (float*)model_act(m, LSE, l);
    return saved;
}

static Rotary rotary_of(const Model* m, const Row* row, int l) {
    RowAttention a = attention_of(m, row, l);
    Rotary r;
    memset(&r, 0, sizeof r);
    r.positions = row->positions;
    r.table = m->rope;
    r.N = row->N;
    r.NH = a.NH;
    r.NKV = a.NKV;
    r.HS = m->shape.HS;  // row->attention is none where keys are cached
    r.ld = (a.NH + 2 * a.NKV) * r.HS;
    r.q_weight = W(QNORMW);
    r.k_weight = W(KNORMW);
    r.eps = (float)m->shape.eps;
    return r;
}

static void attention_forward(const Model* m, const Row* row, int l, void* qkv) {
    TimeKind before = timer_enter(m->timer, TIME_ATTENTION, m->s);
    SavedAttention saved = saved_attention(m, l);
    RowAttention att = attention_of(m, row, l);
    Rotary r = rotary_of(m, row, l);
    if (m->rope && att.NH) m->k->rotary_forward(qkv, ACT(QK_RAW), &r, m->dt, m->s);
    if (row->use_cache) {
        Attention a = cached_attention(m, row, l);
        if (a.NH) m->k->attention_forward(ACT(ATT), STAT(LSE), &a, m->dt, m->s);
    } else if (att.NH) group_attention_forward(&saved, &att, m->k, m->dt, m->s);
    timer_enter(m->timer, before, m->s);
}

static void attention_backward(const Model* m, const Row* row, int l, void* d_qkv, const void* d_att) {
    TimeKind before = timer_enter(m->timer, TIME_ATTENTION, m->s);
    SavedAttention saved = saved_attention(m, l);
    RowAttention att = attention_of(m, row, l);
    Rotary r = rotary_of(m, row, l);
    if (att.NH) group_attention_backward(d_qkv, d_att, &saved, &att, m->k, m->dt, m->s);
    if (m->rope && att.NH) m->k->rotary_backward(d_qkv, DW(QNORMW), DW(KNORMW), ACT(QK_RAW), &r, m->dt, m->s);
    timer_enter(m->timer, before, m->s);
}

// ---- MLP

// GELU is a part of the matmuls beside it, which have what it reads at hand.
static int is_fused(const Model* m, SublayerId id) { return id == MLP && shape_act(&m->shape) == ACT_GELU; }

static void activate(const Model* m, const Row* row, int l) {
    m->k->activation_forward(ACT(FC_ACT), ACT(FC), shape_act(&m->shape), tp_tokens(m, row, l), work_units(m, MLP, l),
                             m->dt, m->s);
}

static void mlp_forward(const Model* m, const Row* row, int l, void* fc) {
    (void)fc;
    if (!is_fused(m, MLP)) activate(m, row, l);
}

static void mlp_backward(const Model* m, const Row* row, int l, void* d_fc, const void* d_activated) {
    if (is_fused(m, MLP)) return;
    m->k->activation_backward(d_fc, d_activated, ACT(FC), shape_act(&m->shape), tp_tokens(m, row, l),
                              work_units(m, MLP, l), m->dt, m->s);
}

// ---- a block: two sublayers of one form

// What stands between the linears of sublayer i. forward: column_out -> core_out; backward: the gradient of the loss by
// core_out -> that by column_out.
typedef struct Core {
    void (*forward)(const Model* m, const Row* row, int l, void* column_out);
    void (*backward)(const Model* m, const Row* row, int l, void* d_column, const void* d_core);
} Core;
static const Core cores[N_SUBLAYERS] = {{attention_forward, attention_backward}, {mlp_forward, mlp_backward}};

// Sublayer i of layer l: PROJ = Row(core(Column(norm(x)))), which the next norm_forward adds to the stream x. The table
// `sublayers` of run/model.c names what these are; in a GPT-2, a token's x (C) passes through
//
//   LN1       = LN(x; ln1w, ln1b)                                 (C)
//   QKV       = LN1 W^T + b, W = qkvw                             (3C): queries, keys, values; NH heads of HS channels
//   P         = softmax(Q K^T / sqrt(HS))                         of each head and document, over tokens up to its own
//   ATT       = P V                                               (C)
//   RESIDUAL2 = x + ATT W^T + b, W = attprojw                     (C)
//   LN2       = LN(RESIDUAL2; ln2w, ln2b)                         (C)
//   FC        = LN2 W^T + b, W = fcw                              (4C)
//   PROJ      = GELU(FC) W^T + b, W = fcprojw                     (C)
//
// with LN(x; w, b) = w xhat + b, xhat = (x - mean) rstd, rstd = 1 / sqrt(variance + eps), W (OC,K), b (OC). A Llama has
// RMSNorms (no mean, no b) and no biases, rotates Q and K by the token's position, has NKV heads of keys and values,
// each for NH / NKV heads of queries, and FC = (gate, up), PROJ = (silu(gate) * up) W^T. Qwen2 adds biases to QKV,
// Qwen3 an RMSNorm of each head of Q and K before it is rotated.
//
// In a tensor-parallel group cores see all tokens of the row, each rank with its units; norms and stream see only the
// rank's own tokens. In a layer of less tp than the group the linears and the MLP see those of a cut: run/model.h.
static void sublayer_forward(const Model* m, const Row* row, SublayerId i, int l) {
    const Sublayer* sub = &sublayers[i];
    void *column_out = i == ATTENTION ? new_qkv(m, row, l) : ACT(sub->column_out), *core_out = ACT(sub->core_out);
    int turns = turns_to_heads(m, i, l);
    linear_forward_gathered(m, column_linear(i), l, turns ? ACT(EXCHANGED) : column_out,
                            is_fused(m, i) ? core_out : NULL, ACT(sub->norm.out), row);
    if (turns) tokens_to_heads(m, column_out, ACT(EXCHANGED), 3, row, l);
    cores[i].forward(m, row, l, column_out);
    if (turns) heads_to_tokens(m, ACT(ATT_TOKENS), core_out, 1, row, l);
    linear_forward(m, row_linear(i), l, ACT(PROJ), NULL, turns ? ACT(ATT_TOKENS) : core_out, tp_tokens(m, row, l));
    tp_reduce_scatter(m, ACT(PROJ), row, l);
}

// The chain rule backwards through a sublayer; d_y is the gradient of the loss by y. On entry D_RESIDUAL (own, C) is
// that of the stream behind the sublayer, on return of the stream before it. A linear y = x W^T + b has
//
//   d_x = d_y W                      d_W += d_y^T x                        d_b += sum of d_y over tokens
//
// and a norm, with g = w d_y and means over the C channels of a token (an RMSNorm without mean(g) and d_b),
//
//   d_x += rstd (g - mean(g) - xhat mean(g xhat))     d_w += sum of d_y xhat over tokens     d_b += sum of d_y
//
// += because x also goes past the sublayer in the stream. d_FC = d_GELU * GELU'(FC). Attention computes P again from Q,
// K and LSE, for each query log(sum of exp(scores)): with D = sum of d_ATT * ATT over the channels of a head
//
//   d_V = P^T d_ATT     S = P * (d_ATT V^T - D) / sqrt(HS)     d_Q = S K     d_K = S^T Q
static void sublayer_backward(const Model* m, const Row* row, SublayerId i, int l) {
    const Sublayer* sub = &sublayers[i];
    int fused = is_fused(m, i), turns = turns_to_heads(m, i, l);
    void *d_column = ACT(D_COLUMN), *d_core = fused ? d_column : ACT(D_NORM), *by_tokens = ACT(EXCHANGED);
    linear_backward_gathered(m, row_linear(i), l, turns ? by_tokens : d_core, ACT(D_RESIDUAL), ACT(D_FULL),
                             ACT(turns ? ATT_TOKENS : sub->core_out), fused ? ACT(sub->column_out) : NULL, row);
    if (turns) tokens_to_heads(m, d_core, by_tokens, 1, row, l);
    cores[i].backward(m, row, l, d_column, d_core);
    if (turns) heads_to_tokens(m, by_tokens, d_column, 3, row, l);
    linear_backward_scattered(m, column_linear(i), l, ACT(D_NORM), turns ? by_tokens : d_column, ACT(sub->norm.out),
                              row);
    norm_backward(m, row, &sub->norm, l);
}

// LN1 is computed before the call, and the sum with PROJ after it, because one op adds to the stream and takes the next
// norm.
static void block_forward(const Model* m, const Row* row, int l) {
    sublayer_forward(m, row, ATTENTION, l);
    norm_forward(m, row, &sublayers[MLP].norm, l, ACT(RESIDUAL), tp_own(m, ACT(PROJ), row, l));
    sublayer_forward(m, row, MLP, l);
}

static void block_backward(const Model* m, const Row* row, int l) {
    sublayer_backward(m, row, MLP, l);
    sublayer_backward(m, row, ATTENTION, l);
}

// Computes again what the forward pass of block l did not keep: see --recompute.
static void recompute_block(const Model* m, const Row* row, int l) {
    Recompute again = layer_row(m, l)->recompute;
    if (again == RECOMPUTE_ACTIVATION) activate(m, row, l);
    if (again != RECOMPUTE_BLOCK) return;
    norm_forward(m, row, &sublayers[ATTENTION].norm, l, ACT(RESIDUAL), NULL);
    block_forward(m, row, l);
}

// ---- the ends of the model

// RESIDUAL of the first block: wte[token] + wpe[position], without learned positions wte[token]. Where ranks hold parts
// of wte, each looks up the tokens that it has and finds zeros for others; the sum over ranks is complete.
static void embed(const Model* m, const Row* row) {
    const Kernels* k = m->k;
    int C = m->shape.C, l = 0;
    if (!m->tp) {
        k->embedding_forward(ACT(RESIDUAL), row->tokens, row->positions, W(WTE), W(WPE), row->N, C, m->dt, m->s);
        return;
    }
    void *looked_up = tp_own(m, ACT(PROJ), row, ENDS), *positions = ACT(LN1);
    k->gather_rows(ACT(PROJ), W(WTE), row->vocab_rows, row->N, C, C, C, m->dt, m->s);
    tp_reduce_scatter(m, ACT(PROJ), row, ENDS);
    k->gather_rows(W(WPE) ? positions : ACT(RESIDUAL), W(WPE) ? W(WPE) : looked_up,
                   W(WPE) ? row->positions + row->first : NULL, row->own, C, C, C, m->dt, m->s);
    if (W(WPE)) k->add(ACT(RESIDUAL), looked_up, positions, (size_t)row->own * (size_t)C, m->dt, m->s);
}

// After the backward pass of all blocks: gradients of what embed has read.
static void embed_backward(const Model* m, const Row* row) {
    const Kernels* k = m->k;
    int C = m->shape.C, l = 0;
    void *own = ACT(D_RESIDUAL), *all = tp_full(m, own, ACT(D_FULL), row, ENDS);
    if (!m->tp) {
        k->embedding_backward(DW(WTE), DW(WPE), all, row->tokens, DW(WPE) ? row->positions : NULL, row->N, C, m->dt,
                              m->s);
        return;
    }
    k->embedding_backward(DW(WTE), NULL, all, row->vocab_rows, NULL, row->N, C, m->dt, m->s);
    if (DW(WPE)) k->embedding_backward(NULL, DW(WPE), own, NULL, row->positions + row->first, row->own, C, m->dt, m->s);
}

// Embedding, all blocks, final norm: leaves LNF (N,C), from which logits are one matmul. A stage of a pipeline runs its
// part of that; the stream comes in RESIDUAL of its first layer and leaves in that behind its last one.
void model_forward(Model* m, const Row* row) {
    int L = m->shape.L, l = 0;
    zero_use_layer(m, -1, 1);
    zero_use_layer(m, 0, 1);
    if (!m->shape.no_embedding) embed(m, row);
    norm_forward(m, row, &sublayers[ATTENTION].norm, l, ACT(RESIDUAL), NULL);
    while (l < L) {
        void *residual2 = ACT(RESIDUAL2), *proj = tp_own(m, ACT(PROJ), row, l);
        block_forward(m, row, l++);
        zero_use_layer(m, l, 1);
        if (l < L || !m->shape.no_head)
            norm_forward(m, row, l < L ? &sublayers[ATTENTION].norm : &final_norm, l, residual2, proj);
        else m->k->add(ACT(RESIDUAL), residual2, proj, (size_t)row->own * (size_t)m->shape.C, m->dt, m->s);
    }
    if (!m->shape.no_head) tp_all_gather(m, ACT(LNF), row, ENDS);
}

// Losses of tokens n .. n + N of the row, -log softmax(logits)[target]; with train their logits (N, vocab_rows) become
// gradients, scale (softmax(logits) - onehot(target)). Where ranks hold parts of the vocabulary, each tells the others
// three numbers a token.
static void classify_chunk(const Model* m, const Row* row, void* logits, int n, int N, float scale, int train) {
    const Kernels* k = m->k;
    int l = 0, rows = m->shape.vocab_rows, labels = shape_labels(&m->shape), first = m->shape.first_vocab_row;
    const int* targets = row->targets + n;
    float *losses = STAT(LOSSES) + n, *stats = STAT(STATS);
    if (!m->tp) {
        k->classifier(losses, logits, targets, scale, train, N, labels, rows, m->dt, m->s);
        return;
    }
    float* own = stats + (size_t)tp_rank(m) * 3 * (size_t)N;
    k->classifier_part(own, logits, targets, first, N, labels, rows, m->dt, m->s);
    comm_all_gather(m->tp, stats, own, 3 * (size_t)N, DT_F32, m->s);
    k->classifier_join(losses, logits, stats, tp_size(m), targets, first, scale, train, N, labels, rows, m->dt, m->s);
}

// Losses of all tokens of the row, logits = LNF W^T with the classifier's weights W (shape_head), and with train the
// gradients of W and, in D_NORM, of LNF. The row goes through in chunks, so that the logits of a whole row never exist.
// scale: 1 / targets of the whole step.
static void classify(const Model* m, const Row* row, float scale, int train) {
    const Kernels* k = m->k;
    int C = m->shape.C, rows = m->shape.vocab_rows, l = 0;  // nothing here belongs to a layer
    ParamId head = shape_head(&m->shape);
    void* logits = ACT(LOGITS);
    for (int n = 0; n < row->N; n += m->classifier_N) {
        int N = MIN(m->classifier_N, row->N - n);
        size_t at = (size_t)n * C * dtype_bytes(m->dt);
        char* lnf = (char*)ACT(LNF) + at;
        k->matmul_forward(logits, NULL, lnf, W(head), NULL, N, C, rows, m->dt, m->s);
        classify_chunk(m, row, logits, n, N, scale, train);
        if (!train) continue;
        k->matmul_backward_input((char*)ACT(D_NORM) + at, logits, W(head), NULL, N, C, rows, m->dt, m->s);
        k->matmul_backward_weight(DW(head), NULL, logits, lnf, N, C, rows, m->dt, m->s);
    }
    if (train) tp_reduce_scatter(m, ACT(D_NORM), row, ENDS);
}

// After model_forward and classify with train: adds the row's gradients to grads. In a stage of a pipeline D_RESIDUAL
// comes from the stage behind, and goes to the one before.
static void model_backward(Model* m, const Row* row) {
    int l = m->shape.L;
    if (!m->shape.no_head) {
        m->k->clear(ACT(D_RESIDUAL), (size_t)row->own * m->shape.C * dtype_bytes(m->dt), m->s);
        norm_backward(m, row, &final_norm, l);
    }
    zero_close_grads(m, l);
    while (l-- > 0) {
        zero_use_layer(m, l, -1);
        zero_open_grads(m, l);
        recompute_block(m, row, l);
        block_backward(m, row, l);
        zero_close_grads(m, l);
    }
    if (!m->shape.no_embedding) embed_backward(m, row);
    zero_close_grads(m, l);
    zero_end_round(m);
}

// The seed of stochastic rounding of one tensor in one step; 0 rounds to nearest.
static uint64_t rounding_seed(const Model* m, const Config* config, const ParamTensor* tensor, int64_t t) {
    if (!strcmp(config->rounding, "nearest")) return 0;
    return hash64(hash64((uint64_t)config->seed ^ (uint64_t)t) ^
                  ((uint64_t)param_table[tensor->id].number << 32 | (uint64_t)pipeline_layer(m, tensor))) |
           1;
}

// Where ranks have copies of key/value heads, those of an element have the same place and are frozen alike, so that
// they stay equal.
static void update_run(Model* m, const Config* config, const OwnedRun* run, double lr, int64_t t) {
    const Segment* segment = &run->segment;
    const ParamTensor* tensor = &segment->tensor;
    int has_copies = m->kv && (tensor->id == QKVW || tensor->id == QKVB);
    AdamW a;
    a.param = zero_owned_weights(m, segment);
    a.master = (float*)zero_owned(m, STATE_MASTER, segment);
    a.m = (float*)zero_owned(m, STATE_M, segment);
    a.v = (float*)zero_owned(m, STATE_V, segment);
    a.grad = zero_owned_grads(m, segment);
    a.n = segment->n;
    a.place = run->place;
    a.lr = (float)lr;
    a.beta1 = (float)config->beta1;
    a.beta2 = (float)config->beta2;
    a.eps = 1e-8f;
    a.weight_decay = param_table[tensor->id].decay ? (float)config->weight_decay : 0;
    a.grad_scale = m->grad_scale;
    a.t = (int)MIN(t, (int64_t)1 << 30);
    a.rounding = rounding_seed(m, config, tensor, t);
    a.freeze = work_freezes(m) && param_is_per_layer(tensor->id) && param_cut(tensor->id) >= 0 && !has_copies;
    m->k->adamw(&a, m->dt, m->s);
}

// Sums gradients and losses over all ranks, clips, steps what this rank owns and zeroes the gradients; t is the 1-based
// step. Loss and squared norm before clipping stay on the device. A norm that is not finite leaves the weights as they
// were. The host does not wait. Weights are whole again after zero_gather; or here, with m->next, in its layout.
void model_update(Model* m, const Config* config, double lr, int64_t t) {
    const double no_norm = INFINITY;  // of a step that this rank has left: see run/pace.c
    timer_enter(m->timer, TIME_UPDATE, m->s);
    if (m->work) work_end(m);
    zero_reduce(m);
    m->k->clear(m->grad_norm2, sizeof *m->grad_norm2, m->s);
    Model* owner = model_owner(m);
    zero_sum_of_squares(owner);
    if (m->left) m->k->upload(m->grad_norm2, &no_norm, sizeof no_norm, m->s);
    m->world->table->all_reduce(m->world, m->loss_sum, 2, DT_F64, m->s);  // grad_norm2 stands behind it
    m->k->clip_scale(m->grad_scale, m->grad_norm2, (float)config->clip, m->s);
    Moving leaving;
    if (m->next) zero_begin_gather(m->next, &leaving);
    for (int i = 0; i < shape_tensors(&owner->shape); i++) {
        OwnedRun runs[MOST_RUNS];
        Segment segment = zero_segment(owner, i);
        if (m->next) mover_advance(&leaving, shape_bucket_of(&segment.tensor, &owner->shape));
        for (int r = 0, n = tp_runs(runs, owner, &segment); r < n; r++) update_run(owner, config, &runs[r], lr, t);
    }
    if (m->next) mover_end(&leaving);
    zero_clear_grads(m);
}

// Forward, and at the end of the model the losses and, with train, the gradients of the final norm's output.
static void forward_task(Model* m, const Row* row, float scale, int train) {
    model_forward(m, row);
    if (m->shape.no_head) return;
    classify(m, row, scale, train);
    if (tp_rank(m) == 0) m->k->add_sum(m->loss_sum, (const float*)model_act(m, LOSSES, 0), (size_t)row->N, m->s);
}

// Forward over the passes of this rank, and with train backward: gradients are added up. The sum of the losses of all
// targets is left on the device; nothing here waits for it.
void run_micro_batches(Run* run, const Sampler* sampler, int train) {
    Model* m = &run->model;
    Batch* b = &run->batch;
    Row rows[MOST_STAGES];  // by slot
    m->k->clear(m->loss_sum, sizeof *m->loss_sum, m->s);
    batch_upload(b, run, sampler);
    pace_begin(run, train);
    const TaskList* list = &b->schedule.stages[m->stage];
    for (int i = 0; i < list->n; i++) {
        const Task* task = &list->tasks[i];
        Row* row = &rows[m->slot = task->slot];
        if (task->kind == (m->stage > 0 ? TASK_RECEIVE : TASK_FORWARD) && !task->backward)
            *row = batch_row(b, m, task->round);
        if (task->kind == TASK_FORWARD) batch_end_rounds(b, m, task->round);
        if (pace_leaves(run, task)) continue;
        if (task->kind >= TASK_SEND) pipeline_begin(m, task, row);
        else pipeline_settle(m, task);
        if (task->kind == TASK_FORWARD) forward_task(m, row, 1 / (float)MAX(b->n_targets, 1), train);
        if (task->kind == TASK_BACKWARD && batch_reduces_inside(b, m, task->round)) zero_last_row(m);
        if (task->kind == TASK_BACKWARD) model_backward(m, row);
        pace_end_task(run, task);
    }
    pipeline_finish(m);
    batch_end_rounds(b, m, b->n_passes);
}

// See Run.time_row in run/run.h.
static double time_row(Run* run, const int* lengths, int n, int repeats) {
    Model* m = &run->model;
    Row row = batch_probe_row(&run->batch, run, lengths, n);
    double least = INFINITY;
    m->k->synchronize(m->s);
    for (int i = 0; i < repeats; i++) {
        double started = now_seconds();
        model_forward(m, &row);
        classify(m, &row, 1 / (float)row.N, 1);
        model_backward(m, &row);
        m->k->synchronize(m->s);
        least = MIN(least, 1e3 * (now_seconds() - started));
    }
    zero_clear_grads(m);
    m->k->synchronize(m->s);
    return least;
}

// ---- logits, for sampling and for --dump-grads

// The logits of token n of the row on the device, after model_forward, as fp32 in host_logits.
void token_logits(Run* run, int n) {
    const Model* m = &run->model;
    int rows = m->shape.vocab_rows, C = m->shape.C, l = 0;
    char* lnf = (char*)ACT(LNF) + (size_t)n * C * dtype_bytes(m->dt);
    float* own = run->host_logits + m->shape.first_vocab_row;
    if (!m->shape.no_head) {
        m->k->matmul_forward(ACT(LOGITS), NULL, lnf, W(shape_head(&m->shape)), NULL, 1, C, rows, m->dt, m->s);
        m->k->download(own, ACT(LOGITS), (size_t)rows * dtype_bytes(m->dt), m->s);
        if (m->dt == DT_BF16) bf16_widen_in_place(own, (size_t)rows);
        tp_share_logits(m, run->host_logits);
    }
    pipeline_share(m, run->host_logits, (size_t)m->shape.Vp, m->stages - 1);
}

// ---- before the loop

// Plans the memory and takes it, and fills in the weights. For training also measures what the device can do, prints
// what was understood before anything is taken, and finds what planners need to know of this machine.
static void prepare(Run* run) {
    MemoryPlan plan = run_plan_memory(run);
    if (run->training) {
        run_measure_limit(run);
        if (!run->uses_model) run_print(run, &plan);
        fflush(stdout);
    }
    run_take_memory(run, &plan);
    const char* choices = run->model.k->choices();
    if (run->training && choices[0] && !run_is_brief(run)) printf("kernels %s\n", choices);
    run_load_weights(run);
    if (run->model.zero.stage == 3) zero_gather(&run->model);
    run->time_row = time_row;
    if (run->training) run_find_cost(run), balance_ready(run), run_check_documents(run);
}

// ---- the loop

static int is_due(int64_t step, int every) { return every > 0 && step % every == 0; }

// Before the first communication of a step: all ranks have the same plan in `ahead`, and have learnt the same for those
// to come, or the run ends. A signal that any rank has seen, or a plan that one lacks, stops all of them at the same
// step. The slowest rank's time of the last step corrects the cost model, on all ranks alike, so that they go on to
// make the same plans.
static void agree(Run* run, const RankReport* report) {
    char err[ERR_BYTES];
    Comm* c = run->model.world;
    PlanHash made = run_plan_hash(run, &run->ahead);
    made.plan = hash_bytes(run->calibration.theta, sizeof run->calibration.theta, made.plan ^ balance_state_hash(run));
    made.failed = run->why[0] != 0;
    double expected =
        calibration_predict(&run->calibration, run->ahead.terms) + strategies_start_ms(run, run->ahead.strategy);
    Agreement mine = {made,         (uint64_t)interrupted, (uint64_t)run->model.left,
                      run->last_ms, run->ahead.predicted ? expected : NAN, run_processor_seconds(run), *report};
    double ms = mine.ms;
    run->stopped_by = interrupted;
    run->left = run->model.left;
    run->processor = c->size > 1 ? 0 : mine.processor;
    run->agreed[0] = mine;
    run->ahead.expected_ms = mine.predicted;
    if (c->size > 1 && c->table->all_gather_host(c, run->agreed, &mine, sizeof mine, err, sizeof err))
        run_lost(run, err);
    for (int r = 0; r < c->size; r++) run->unplanned |= run->agreed[r].made.failed != 0;
    for (int r = 0; r < c->size && c->size > 1; r++) {
        const Agreement* other = &run->agreed[r];
        if (!run->unplanned) run_compare_plan(run, &run->ahead, r, other->made, run->agreed[0].made, made);
        run->stopped_by = (int)MAX((uint64_t)run->stopped_by, other->signal);
        run->left |= (int)other->left;
        run->processor += other->processor;
        ms = MAX(ms, other->ms);
        if (run->strategies) run->ahead.expected_ms = fmax(run->ahead.expected_ms, other->predicted);
    }
    if (ms > 0 && balance_explains_step(run)) calibration_learn(&run->calibration, run->last_terms, ms);
    run->last_ms = 0;
}

// Draws, plans and agrees on the next step, without a step beside it.
static void plan_now(Run* run) {
    RankReport none = {0};
    ahead_start(run, run->state.step + 1);
    ahead_wait(run);
    agree(run, &none);
    if (run->unplanned) run_end_unplanned(run);
    if (run->strategies) zero_gather(&run_under(run, run->ahead.strategy)->model);
    strategies_turn(run, run->ahead.strategy);
}

// The planned batch becomes the one at work.
static void begin_step(Run* run) {
    Batch swapped = run->batch;
    run->batch = run->ahead;
    run->ahead = swapped;
}

// While the step at work computes, unless it is the last. The cost model changes here, where no plan is being made.
static void plan_next(Run* run) {
    int64_t step = run->batch.plan.step;
    if (step == run->config.steps) {
        ahead_none(run);
        return;
    }
    if (run->setting.groups && !run->config.machine && is_due(step, run->config.refresh)) run_set_cost(run);
    ahead_start(run, step + 1);
}

// One optimizer step of the planned batch; fills the record of it, while the next one is planned. A loss or norm that
// is not finite ends the run before it touches the weights. 0, or -1: the step was left, and all is as before it.
static int train_step(Run* run, StepRecord* r) {
    const Config* c = &run->config;
    Model* m = &run->model;
    Comm before = run_sent(run);
    double started = run_seconds(run), sums[2];
    RankReport report;
    run_begin_clocks(run);
    begin_step(run);
    balance_change(run);
    plan_next(run);
    r->predicted_ms = run->batch.predicted ? calibration_predict(&run->calibration, run->batch.terms) : NAN;
    r->step = run->state.step + 1;
    r->steps = c->steps;
    r->lr = schedule_lr(c, r->step);
    balance_begin(run);
    run_micro_batches(run, run->data.train, 1);
    r->plan_stall_us = run->strategies ? 1e6 * ahead_wait(run) : 0;
    strategies_agree(run);
    if (run->strategies) strategies_predict(run, r);
    model_update(m, c, r->lr, r->step);
    balance_measure(run, &report);
    r->plan_stall_us += 1e6 * ahead_wait(run);
    agree(run, &report);
    if (!run->left) balance_hear(run, r);
    if (!run->strategies) zero_gather(m);
    if (run->left) return strategies_turn(run, run->ahead.strategy), -1;
    m->k->download(sums, m->loss_sum, sizeof sums, m->s);      // the one wait of a step; grad_norm2 stands behind
    r->loss = sums[0] / (double)MAX(run->batch.n_targets, 1);
    r->grad_norm = sqrt(sums[1]);
    if (m->k->no_results) r->loss = r->grad_norm = NAN;
    else if (!isfinite(r->loss) || !isfinite(r->grad_norm)) run_diverged(run, r->step, r->loss, r->grad_norm);
    run_fill_record(run, r, run_seconds(run) - started, &before);
    run_remember_step(run, r);
    run->state.step = r->step;
    run->state.loss = r->loss;
    run->state.position = run->batch.after;
    r->loss_hash = run->state.loss_hash;
    if (!m->k->no_results)
        run->state.loss_hash = r->loss_hash = hash_bytes(&r->loss, sizeof r->loss, run->state.loss_hash);
    strategies_turn(run, run->ahead.strategy);
    return 0;
}

// --explain, --dump-grads: the next step is planned, and not taken.
static void plan_only(Run* run) {
    plan_now(run);
    begin_step(run);
    if (run->config.dump_grads) run_dump(run);
    else if (run->model.world->rank == 0) run_explain(run);
}

// Alone, the signal itself counts; with others, what all have agreed on.
static int is_stopped(Run* run) {
    if (run->model.world->size == 1) run->stopped_by = interrupted;
    return run->stopped_by || run->unplanned;
}

static void evaluate_now(Run* run) {
    int64_t targets = 0;
    double started = now_seconds();
    if (sampler_pieces(run->data.val, SPLIT_VAL) == 0) return;
    double loss = evaluate(run, &targets);
    if (targets == 0) return;  // a signal came, or there was no plan
    run->state.val_loss = loss;
    runlog_strong(&run->log,
                  "step %" PRId64 ": validation loss %.4f over %" PRId64 " targets (a unigram model has %.4f), %.1f s",
                  run->state.step, run->state.val_loss, targets, run->unigram_loss, now_seconds() - started);
    double bits = run->state.val_loss / (log(2) * run->val_bytes);
    if (runlog_eval(&run->log, run->state.step, run->state.val_loss, targets, bits)) interrupted = SIGTERM;
}

static void sample_now(Run* run) {
    if (docs_max_token(run->data.docs) >= tokenizer_vocab(run->data.tokenizer)) {
        runlog_say(&run->log, "step %" PRId64 ": no sample, the tokens of these shards need --tokenizer",
                   run->state.step);
        return;
    }
    // Only where weights are divided do other ranks have to join in: those of one tensor-parallel group, or all.
    if (run->model.comm->rank > 0 && run->model.zero.stage < 3) return;
    for (int which = 0; which < SAMPLES_OF_A_STEP; which++) {
        runlog_say(&run->log, "step %" PRId64 ": a sample", run->state.step);
        run_log_sample(run, which, hash64((uint64_t)run->config.seed ^ (uint64_t)run->state.step));
    }
}

// A checkpoint that cannot be written does not end the run: it tries again one step later, then two, four, ...
static void save_now(Run* run) {
    char err[ERR_BYTES];
    Saving* saving = &run->saving;
    if (run_save_checkpoint(run, run->out, err, sizeof err) == 0) {
        saving->done = run->state.step;
        saving->wait = saving->again = 0;
        return;
    }
    int64_t every = run->config.save_every, next = every ? run->state.step / every * every + every : INT64_MAX;
    saving->wait = MIN(MAX(2 * saving->wait, 1), 1 << 20);
    saving->again = MIN(run->state.step + saving->wait, MIN(next, run->config.steps));
    if (run->model.world->rank == 0)
        warn("cannot save step %" PRId64 ": %s; older checkpoints are untouched; trying again at step %" PRId64,
             run->state.step, err, saving->again);
}

static void start_training(Run* run) {
    char err[ERR_BYTES];
    const Config* c = &run->config;
    int tells = c->eval_every && sampler_pieces(run->data.val, SPLIT_VAL) && run->model.world->rank == 0;
    run->unigram_loss = run->val_bytes = NAN;
    if (tells) run_unigram_loss(run);
    run_catch_signals(run);
    plan_now(run);
    run->log.fd = -1;
    if (run->model.world->rank == 0 && runlog_open(&run->log, run->out, c->resume, run->state.step, err, sizeof err))
        die("%s", err);
    run_open_report(run);
    run_log_start(run);
    run_write_report(run);
    run_tell_of_long_steps(run);
    // Launchers give ranks a terminal that nobody looks at.
    if (strcmp(run->identity.source, "alone") != 0) run->log.is_terminal = 0;
    run->first_step = run->state.step;
    run->saving.done = c->resume ? run->state.step : -1;
}

static void train(Run* run) {
    const Config* c = &run->config;
    StepRecord record = {0};
    start_training(run);
    if (run->state.step == 0 && c->eval_every && c->steps > 0) evaluate_now(run);
    double started = now_seconds();
    while (run->state.step < c->steps && !is_stopped(run)) {
        if (train_step(run, &record)) {
            pace_say_left(run);
            break;
        }
        int64_t step = record.step, done = step - run->first_step;
        int last = step == c->steps;
        record.seconds_left = (now_seconds() - started) / (double)done * (double)(c->steps - step);
        if (runlog_step(&run->log, &record)) interrupted = SIGTERM;
        if (is_due(step, c->eval_every) || (last && c->eval_every)) evaluate_now(run);
        if (c->sample_every && (last || is_due(step, c->sample_every)) && !is_stopped(run)) sample_now(run);
        if (is_due(step, c->eval_every)) run_write_report(run);
        if (!last && (is_due(step, c->save_every) || step == run->saving.again)) save_now(run);
    }
    int saves = run->stopped_by || run->unplanned ? !run->model.k->no_results : c->save_every > 0;
    if (saves && run->saving.done != run->state.step) run_save_last(run);
}

// ---- the end

static void finish(Run* run, double started) {
    run_print_end(run, now_seconds() - started);
    run_write_report(run);
    run->failed |= runlog_close(&run->log) != 0;
    if (run->unplanned) run_end_unplanned(run);
}

int main(int argc, char** argv) {
    static Run run;
    double started = now_seconds();
    run_find_ranks(&run);
    run_read_options(&run, argc, argv);
    run_open_ranks(&run);
    run_find_origin(&run);
    run_open_data(&run);
    run_settle_model(&run);
    run_settle_layout(&run);
    run_join_ranks(&run);
    run_check_saving(&run);
    run_open_virtual(&run);
    balance_open(&run);
    prepare(&run);
    if (run.config.sample) sample_print(&run, run.config.sample, run.config.tokens, (uint64_t)run.config.seed, NULL);
    else if (run.config.eval) run_eval(&run);
    else if (run.config.eval_choices) run_choices(&run);
    else if (run.config.probe) run_probe(&run);
    else if (run.config.check_layout) run_check_layout(&run);
    else if (run.config.explain || run.config.dump_grads) plan_only(&run);
    else train(&run), finish(&run, started);
    run_close(&run);
    if (run.stopped_by != SIGPIPE && run.stopped_by != SIGHUP) end_output();  // these have closed it
    if (run.failed) return 1;
    // A launcher takes any other status of a rank for a failure, and kills the ranks that are still on their way out.
    return run.stopped_by && run.identity.size == 1 ? 128 + run.stopped_by : 0;
}
