// train_gpt.cu - GPT-2, Llama and Qwen as sequences of ops, and the loop that trains them.
//
// How to read it: main at the foot is a list of phases, train the loop, train_step one step. Above stands the model.
// Ops are in kernels/kernels.h, the tables of parameters and activations in plan/model/shape.h, the model as one rank
// holds it and its update in run/model/model.h, a run in run/core.h. A line with MANY lets many ranks do more, or
// something else, as the table in run/model/many_ranks.h says. One rank leaves all of that out.
//
// Valid C11 and valid CUDA C++, without kernel syntax: cc -x c on a machine without CUDA, nvcc with it.
#include <math.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "run/core.h"
#include "run/model/many_ranks.h"
#ifdef __cplusplus
}
#endif

// ---- the model

// The activation, statistic, weight and weight gradient of layer l in the model m. These macros capture the variables
// `m` and `l` of the function they stand in, so that lines show what they compute; what has no layer sets l = 0.
#define ACT(id) model_act(m, id, l)
#define STAT(id) ((float*)model_act(m, id, l))
#define W(id) model_weights(m, id, l)
#define DW(id) model_grads(m, id, l)

// ---- norms

// Returns the gradient of Out's bias in layer l if the norm sums it that follows: its backward pass makes Out's dout.
// NULL: there is none, or the linear sums it.
static float* bias_of_norm(const Model* m, SublayerId id, int l) {
    int norm_is_here = id == ATTENTION || l < m->shape.L - 1 || !m->shape.no_head;
    int is_open = !m->many || (m->many->grads_stay && m->many->grads_stay(m));
    return m->k->sums_dx && l >= 0 && norm_is_here && is_open ? DW(sublayers[id].bias[1]) : NULL;
}

// Norm n of layer l stores x = a + b, then out = norm(x). If b is NULL, x = a is in place already.
static void norm_forward(const Model* m, const Row* row, const NormEntry* n, int l, const void* a, const void* b) {
    m->k->norm_forward(b ? ACT(n->x) : NULL, own_tokens(m, ACT(n->out), row, l), STAT(n->mean), STAT(n->rstd), a, b,
                       W(n->weight), W(n->bias), (float)m->shape.eps, row->own, m->shape.C, m->dt, m->s);
}

// Adds to D_RESIDUAL the gradient by x, and the sums of its columns to dx_sums; D_NORM has that by the norm's output.
static void norm_backward(const Model* m, const Row* row, const NormEntry* n, int l, float* dx_sums) {
    m->k->norm_backward(ACT(D_RESIDUAL), DW(n->weight), DW(n->bias), dx_sums, own_tokens(m, ACT(D_NORM), row, l),
                        ACT(n->x), W(n->weight), STAT(n->mean), STAT(n->rstd), row->own, m->shape.C, m->dt, m->s);
}

// ---- linears: In and Out of both sublayers

// out (N,OC) = x W^T + b, x (N,K). If gelu is not NULL, gelu (N,OC) = GELU(out).
static void linear_forward(const Model* m, const Row* row, LinearId id, int l, void* out, void* gelu, void* x) {
    const Sublayer* sub = &sublayers[sublayer_of(id)];
    const ParamPlace *w = param_place(m, sub->weight[id % 2], l), *b = param_place(m, sub->bias[id % 2], l);
    if (MANY(linear_forward, m, row, id, l, out, gelu, x)) return;
    TimeKind before = timer_enter(m->timer, TIME_LINEAR, m->s);
    m->k->matmul_forward(out, gelu, x, w->weights, b->weights, row->N, w->cols, w->rows, m->dt, m->s);
    timer_enter(m->timer, before, m->s);
}

// dx (N,K) = dout W, dW += dout^T x, db += sum of dout over tokens, dout (N,OC). If pre (N,K) is not NULL, x was
// GELU(pre), and dx is the gradient by pre.
static void linear_backward(const Model* m, const Row* row, LinearId id, int l, void* dx, void* dout, void* x,
                            const void* pre) {
    const Sublayer* sub = &sublayers[sublayer_of(id)];
    const ParamPlace *w = param_place(m, sub->weight[id % 2], l), *b = param_place(m, sub->bias[id % 2], l);
    if (MANY(linear_backward, m, row, id, l, dx, dout, x, pre)) return;
    TimeKind before = timer_enter(m->timer, TIME_LINEAR, m->s);
    m->k->matmul_backward_input(dx, dout, w->weights, pre, row->N, w->cols, w->rows, m->dt, m->s);
    int is_summed = !is_linear_in(id) && bias_of_norm(m, sublayer_of(id), l);
    m->k->matmul_backward_weight(w->grads, is_summed ? NULL : b->grads, dout, x, row->N, w->cols, w->rows, m->dt, m->s);
    timer_enter(m->timer, before, m->s);
}

// ---- attention

// Returns queries, keys and values of token n of the row (QKV_OUTPUTS of plan/model/shape.h) for NKV key/value heads.
// Generation has those of earlier tokens before them in the cache.
static char* qkv_of(const Model* m, const Row* row, int l, int NKV, int n) {
    size_t width = (size_t)(NKV * (shape_units(&m->shape, l).queries + 2) * m->shape.HS);
    return (char*)ACT(row->qkv) + (size_t)(row->place + row->cached + n) * width * dtype_bytes(m->dt);
}

// Returns causal attention of the row's tokens within each document, for the heads that this rank computes now.
static Attention attention_of(const Model* m, const Row* row, int l) {
    Attention a;
    memset(&a, 0, sizeof a);
    a.NKV = units_now(m, ATTENTION, l);
    a.NH = a.NKV * shape_units(&m->shape, l).queries;
    a.HS = m->shape.HS;
    size_t head = (size_t)a.HS * dtype_bytes(m->dt);
    char* first = qkv_of(m, row, l, a.NKV, -row->cached);
    a.q = qkv_of(m, row, l, a.NKV, 0);
    a.k = first + (size_t)a.NH * head;
    a.v = first + (size_t)(a.NH + a.NKV) * head;
    a.cu_q = row->cu;
    a.cu_k = row->cached ? row->cu_keys : row->cu;
    a.Nq = row->N;
    a.Nk = row->cached + row->N;
    a.ldq = a.ldkv = (a.NH + 2 * a.NKV) * a.HS;
    a.ldo = a.NH * a.HS;
    a.n_docs = row->n_docs;
    a.causal = 1;
    a.scale = 1 / sqrtf((float)a.HS);
    a.tail = row->qkv == QKV ? m->k->attention_tail : 0;
    a.row = row->number;
    return a;
}

static Rotary rotary_of(const Model* m, const Row* row, const Attention* a, int l) {
    Rotary r = {row->positions, m->rope, row->N,    a->NH,     a->NKV,
                a->HS,          a->ldq,  W(QNORMW), W(KNORMW), (float)m->shape.eps};
    return r;
}

static void attention_forward(const Model* m, const Row* row, int l, void* qkv) {
    TimeKind before = timer_enter(m->timer, TIME_ATTENTION, m->s);
    Attention a = attention_of(m, row, l);
    Rotary r = rotary_of(m, row, &a, l);
    if (m->rope && a.NH) m->k->rotary_forward(qkv, ACT(QK_RAW), &r, m->dt, m->s);
    if (row->shared) m->many->attention_forward(m, row, l, &a);
    else if (a.NH && a.n_docs) m->k->attention_forward(ACT(ATT), STAT(LSE), &a, m->dt, m->s);
    timer_enter(m->timer, before, m->s);
}

static void attention_backward(const Model* m, const Row* row, int l, void* d_qkv, const void* d_att) {
    TimeKind before = timer_enter(m->timer, TIME_ATTENTION, m->s);
    Attention a = attention_of(m, row, l);
    Rotary r = rotary_of(m, row, &a, l);
    size_t head = (size_t)a.HS * dtype_bytes(m->dt);
    char *d_k = (char*)d_qkv + (size_t)a.NH * head, *d_v = d_k + (size_t)a.NKV * head;
    if (row->shared) m->many->attention_backward(m, row, l, &a, d_qkv, d_att);
    else if (a.NH && a.n_docs) m->k->attention_backward(d_qkv, d_k, d_v, d_att, ACT(ATT), STAT(LSE), &a, m->dt, m->s);
    if (m->rope && a.NH) m->k->rotary_backward(d_qkv, DW(QNORMW), DW(KNORMW), ACT(QK_RAW), &r, m->dt, m->s);
    timer_enter(m->timer, before, m->s);
}

// ---- MLP

// GELU is fused into the matmuls beside it, because they have what it reads at hand.
static int is_fused(const Model* m, SublayerId id) { return id == MLP && shape_fuses_gelu(&m->shape); }

static void activate(const Model* m, const Row* row, int l) {
    m->k->activation_forward(ACT(FC_ACT), ACT(FC), shape_act(&m->shape), row_tokens(m, row, l), units_now(m, MLP, l),
                             m->dt, m->s);
}

static void mlp_forward(const Model* m, const Row* row, int l, void* fc) {
    (void)fc;
    if (!is_fused(m, MLP)) activate(m, row, l);
}

static void mlp_backward(const Model* m, const Row* row, int l, void* d_fc, const void* d_activated) {
    if (is_fused(m, MLP)) return;
    m->k->activation_backward(d_fc, d_activated, ACT(FC), shape_act(&m->shape), row_tokens(m, row, l),
                              units_now(m, MLP, l), m->dt, m->s);
}

// ---- a block: two sublayers of one form

// A Core stands between the linears of sublayer i. Forward, core_in becomes core_out; backward, the gradient by
// core_out becomes that by core_in.
typedef struct Core {
    void (*forward)(const Model* m, const Row* row, int l, void* core_in);
    void (*backward)(const Model* m, const Row* row, int l, void* d_core_in, const void* d_core_out);
} Core;
static const Core cores[N_SUBLAYERS] = {{attention_forward, attention_backward}, {mlp_forward, mlp_backward}};

// Sublayer i of layer l: PROJ = Out(core(In(norm(x)))), which the next norm_forward adds to the stream x. The table
// `sublayers` of run/model/model.c names what these are; in a GPT-2, a token's x (C) passes through
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
// Linears and cores see all tokens of the row in a tensor-parallel group (run/model/tensor_parallel.h), each rank with
// its units; norms and the stream see only the rank's own tokens.
static void sublayer_forward(const Model* m, const Row* row, SublayerId i, int l) {
    const Sublayer* sub = &sublayers[i];
    void *core_out = ACT(sub->core_out), *core_in = ACT(sub->core_in);
    if (i == ATTENTION) core_in = qkv_of(m, row, l, units_now(m, ATTENTION, l), 0);
    linear_forward(m, row, linear_in(i), l, core_in, is_fused(m, i) ? core_out : NULL, ACT(sub->norm.out));
    cores[i].forward(m, row, l, core_in);
    linear_forward(m, row, linear_out(i), l, ACT(PROJ), NULL, core_out);
}

// This is the chain rule backwards through a sublayer; d_y is the gradient of the loss by y. On entry D_RESIDUAL (own,
// C) is that by the stream after the sublayer, on return that by the stream before it. A linear y = x W^T + b has
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
    int fused = is_fused(m, i);
    void *d_core_in = ACT(D_CORE_IN), *d_core_out = fused ? d_core_in : ACT(D_NORM);
    linear_backward(m, row, linear_out(i), l, d_core_out, ACT(D_RESIDUAL), ACT(sub->core_out),
                    fused ? ACT(sub->core_in) : NULL);
    cores[i].backward(m, row, l, d_core_in, d_core_out);
    linear_backward(m, row, linear_in(i), l, ACT(D_NORM), d_core_in, ACT(sub->norm.out), NULL);
    norm_backward(m, row, &sub->norm, l, i == MLP ? bias_of_norm(m, ATTENTION, l) : bias_of_norm(m, MLP, l - 1));
}

// Adding to the stream and the next norm are one op, because the sum would else be read from memory again. So LN1 is
// there before the call, and the block ends before its own add, which the caller does with the next LN1.
static void block_forward(const Model* m, const Row* row, int l) {
    sublayer_forward(m, row, ATTENTION, l);
    norm_forward(m, row, &sublayers[MLP].norm, l, ACT(RESIDUAL), own_tokens(m, ACT(PROJ), row, l));
    sublayer_forward(m, row, MLP, l);
}

static void block_backward(const Model* m, const Row* row, int l) {
    sublayer_backward(m, row, MLP, l);
    sublayer_backward(m, row, ATTENTION, l);
}

// Computes again what the forward pass of block l did not keep: see --recompute.
static void recompute_block(const Model* m, const Row* row, int l) {
    Recompute again = layer_layout(m, l)->recompute;
    if (again == RECOMPUTE_ACTIVATION) activate(m, row, l);
    if (again != RECOMPUTE_BLOCK) return;
    norm_forward(m, row, &sublayers[ATTENTION].norm, l, ACT(RESIDUAL), NULL);
    block_forward(m, row, l);
}

// ---- the ends of the model

// RESIDUAL of the first block = wte[token] + wpe[position]; without learned positions wpe is left out.
static void embed(const Model* m, const Row* row) {
    int l = 0;
    if (!MANY(embed, m, row))
        m->k->embedding_forward(ACT(RESIDUAL), row->tokens, row->positions, W(WTE), W(WPE), row->N, m->shape.C, m->dt,
                                m->s);
}

// Adds the gradients of the tables that embed has read, after the backward pass of all blocks.
static void embed_backward(const Model* m, const Row* row) {
    int l = 0, *tokens = DW(WTE) ? row->tokens : NULL, *positions = DW(WPE) ? row->positions : NULL;
    if (!tokens || !MANY(embed_backward, m, row))
        m->k->embedding_backward(DW(WTE), DW(WPE), ACT(D_RESIDUAL), tokens, positions, row->N, m->shape.C, m->dt, m->s);
}

// Runs embedding, all blocks and the final norm, and leaves LNF (N,C), from which logits are one matmul. A stage of a
// pipeline finds the stream in RESIDUAL of its first layer and leaves it in that after its last layer.
void model_forward(Model* m, const Row* row) {
    int L = m->shape.L, l = 0;
    if (m->many) m->many->use_layer(m, -1, 1);
    if (m->many) m->many->use_layer(m, 0, 1);
    if (!m->shape.no_embedding) embed(m, row);
    norm_forward(m, row, &sublayers[ATTENTION].norm, l, ACT(RESIDUAL), NULL);
    while (l < L) {
        void *residual2 = ACT(RESIDUAL2), *proj = own_tokens(m, ACT(PROJ), row, l);
        block_forward(m, row, l++);
        if (m->many) m->many->use_layer(m, l, 1);
        if (l < L || !m->shape.no_head)
            norm_forward(m, row, l < L ? &sublayers[ATTENTION].norm : &final_norm, l, residual2, proj);
        else m->k->add(ACT(RESIDUAL), residual2, proj, (size_t)row->own * (size_t)m->shape.C, m->dt, m->s);
    }
    if (!m->shape.no_head) (void)MANY(gather_tokens, m, ACT(LNF), row, ENDS);
}

// Computes the losses of all tokens of the row, -log softmax(logits)[target] with logits = LNF W^T, W the classifier's
// weights (shape_head). train adds the gradients by W and, in D_NORM, by LNF: that by the logits is scale
// (softmax(logits) - onehot(target)), scale = 1 / the weight of all labels of the step. The row goes through in chunks,
// so that the logits of a whole row never exist.
static void classify(const Model* m, const Row* row, float scale, int train) {
    const Kernels* k = m->k;
    int C = m->shape.C, rows = m->shape.vocab_rows, l = 0;
    ParamId head = shape_head(&m->shape);
    void* logits = ACT(LOGITS);
    for (int n = 0; n < row->N; n += m->classifier_N) {
        int N = MIN(m->classifier_N, row->N - n);
        size_t at = (size_t)n * C * dtype_bytes(m->dt);
        char* lnf = (char*)ACT(LNF) + at;
        k->matmul_forward(logits, NULL, lnf, W(head), NULL, N, C, rows, m->dt, m->s);
        if (!MANY(classify, m, row, logits, n, N, scale, train))
            k->classifier(STAT(LOSSES) + n, logits, row->targets + n, scale, train, N, m->shape.V, rows, m->dt, m->s);
        if (row->weigh) row->weigh(m, row, logits, n, N, train);
        if (!train) continue;
        k->matmul_backward_input((char*)ACT(D_NORM) + at, logits, W(head), NULL, N, C, rows, m->dt, m->s);
        if (DW(head)) k->matmul_backward_weight(DW(head), NULL, logits, lnf, N, C, rows, m->dt, m->s);
    }
    if (train) (void)MANY(sum_tokens, m, ACT(D_NORM), row, ENDS);
}

// Adds the row's gradients to grads, after model_forward and classify with train. A stage of a pipeline gets D_RESIDUAL
// from the next stage and leaves it for the one before.
static void model_backward(Model* m, const Row* row) {
    int l = m->shape.L;
    if (!m->shape.no_head) {
        m->k->clear(ACT(D_RESIDUAL), (size_t)row->own * m->shape.C * dtype_bytes(m->dt), m->s);
        norm_backward(m, row, &final_norm, l, bias_of_norm(m, MLP, l - 1));
    }
    if (m->many) m->many->close_grads(m, l);
    while (l-- > 0) {
        if (m->many) m->many->use_layer(m, l, -1);
        recompute_block(m, row, l);
        block_backward(m, row, l);
        if (m->many) m->many->close_grads(m, l);
    }
    if (!m->shape.no_embedding) embed_backward(m, row);
    if (m->many) m->many->close_grads(m, l);
}

// Computes loss and gradients of one row.
void model_train(Model* m, const Row* row, float scale) {
    model_forward(m, row);
    if (!m->shape.no_head) classify(m, row, scale, 1);
    model_backward(m, row);
}

// ---- a step

// Runs forward, and at the end of the model the losses and, with train, the gradients by the final norm's output.
static void forward_pass(Model* m, const Pass* pass, float scale, int train) {
    model_forward(m, pass->row);
    if (m->shape.no_head) return;
    classify(m, pass->row, scale, train);
    if (pass->counts) m->k->add_sum(m->loss_sum, (const float*)model_act(m, LOSSES, 0), (size_t)pass->row->N, m->s);
}

// Runs forward over the rows of this rank, and with train backward, which adds gradients up. The sum of the losses of
// all targets stays on the device; nothing here waits for it.
void run_micro_batches(Run* run, const Sampler* sampler, int train) {
    Model* m = &run->model;
    Pass pass;
    m->k->clear(m->loss_sum, sizeof *m->loss_sum, m->s);
    batch_upload(run, sampler);
    for (int i = 0; run_next_pass(run, &pass, i, train); i++) {
        if (pass.kind == PASS_FORWARD) forward_pass(m, &pass, 1 / (float)run->batch.weight, train);
        if (pass.kind == PASS_BACKWARD) model_backward(m, pass.row);
    }
}

// Takes one optimizer step. A loss or norm that is not finite ends the run before it touches the weights. 0, or -1: the
// step was left, and all is as before it.
static int train_step(Run* run) {
    const Config* c = &run->config;
    Model* m = &run->model;
    Step* step = &run->step;
    double sums[2];
    step->number = run->state.step + 1;
    step->lr = schedule_lr(c, step->number);
    run_next_batch(run);
    ALL_MECHANISMS(run, begin);
    run_micro_batches(run, run->data.train, 1);
    ALL_MECHANISMS(run, before_update);
    model_update(m, c, step->lr, step->number);
    run_agree(run);
    if (run->left) return -1;
    m->k->download(sums, m->loss_sum, sizeof sums, m->s);  // the one wait of a step; grad_norm2 follows loss_sum
    step->loss = sums[0] / run->batch.weight;
    step->grad_norm = sqrt(sums[1]);
    if (m->k->no_results) step->loss = step->grad_norm = NAN;
    else if (!isfinite(step->loss) || !isfinite(step->grad_norm)) run_diverged(run);
    ALL_MECHANISMS(run, end);
    run->state.step = step->number;
    run->state.loss = step->loss;
    run->state.position = run->batch.after;
    if (!m->k->no_results) run->state.loss_hash = hash_bytes(&step->loss, sizeof step->loss, run->state.loss_hash);
    return 0;
}

// ---- the loop

// Returns 1 at multiples of `every` and at the last step; every = 0 is never due.
static int is_due(const Config* c, int64_t step, int every) {
    return every > 0 && (step % every == 0 || step == c->steps);
}

static void train(Run* run) {
    const Config* c = &run->config;
    ALL_MECHANISMS(run, start);
    if (run->state.step == 0 && c->eval_every && c->steps > 0) run_evaluate(run);
    while (run->state.step < c->steps && !run->ends && train_step(run) == 0) {
        run_tell(run);
        if (is_due(c, run->state.step, c->eval_every)) run_evaluate(run);
        if (is_due(c, run->state.step, c->sample_every) && !run->ends) run_sample(run);
        run_keep(run);
    }
    ALL_MECHANISMS(run, finish);
}

// The phases of a run, from options to weights, are rows of the table, too.
int main(int argc, char** argv) {
    static Run run;
    run.began = now_seconds(), run.argc = argc, run.argv = argv;
    ALL_MECHANISMS(&run, open);
    if (run.instead) run.instead(&run);
    else train(&run);
    ALL_MECHANISMS(&run, close);
    return run.status;
}
