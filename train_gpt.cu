// train_gpt.cu - GPT-2 as a sequence of ops, and the loop that trains it.
//
// How to read it: main at the foot is a list of phases. Above it, in this order: the model (forward, backward,
// update), the rows that a step is packed into, evaluation, sampling, the loop. The objects and the phases before the
// first step are in run/run.h, the ops in kernels/kernels.h, the tables of parameters and activations in
// plan/shape.h.
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
#include "data/disk.h"
#include "kernels/kernels.h"
#include "kernels/limit.h"
#include "plan/base.h"
#include "plan/choose.h"
#include "plan/schedule.h"
#include "run/run.h"
#ifdef __cplusplus
}
#endif

// ---- the model

static void* param(const Model* m, ParamId id, int l) {
    return m->params + shape_param(&m->shape, id, l).offset * dtype_bytes(m->dt);
}

static float* grad(const Model* m, ParamId id, int l) { return m->grads + shape_param(&m->shape, id, l).offset; }

// The activation `id` of layer l; of the one copy when layers share it.
static void* act(const Model* m, ActId id, int l) {
    const Activation* a = &m->act_table[id];
    return m->acts + a->offset + (a->copies > 1 ? a->copy_bytes * (size_t)l : 0);
}

// Queries, keys and values of layer l lie interleaved, (N, 3, NH, HS): in QKV, or in the KV cache behind what is there.
static char* new_qkv(const Model* m, const Row* row, int l) {
    if (!row->use_cache) return (char*)act(m, QKV, l);
    return (char*)act(m, KV, l) + (size_t)row->cached * 3 * m->shape.C * dtype_bytes(m->dt);
}

static Attention row_attention(const Model* m, const Row* row, int l) {
    int C = m->shape.C, HS = C / m->shape.NH;
    char* q = new_qkv(m, row, l);
    char* first = row->use_cache ? (char*)act(m, KV, l) : q;
    Attention a;
    a.q = q;
    a.k = first + (size_t)C * dtype_bytes(m->dt);
    a.v = first + (size_t)2 * C * dtype_bytes(m->dt);
    a.cu_q = row->cu_q;
    a.cu_k = row->cu_k;
    a.Nq = row->N;
    a.Nk = row->cached + row->N;
    a.ldq = a.ldkv = 3 * C;
    a.ldo = C;
    a.n_docs = row->n_docs;
    a.NH = m->shape.NH;
    a.HS = HS;
    a.causal = 1;
    a.causal_offset = NULL;
    a.scale = 1 / sqrtf((float)HS);
    return a;
}

// In the functions below: the activation, statistic, weight and weight gradient of layer l, in the model m.
#define ACT(id) act(m, id, l)
#define STAT(id) ((float*)act(m, id, l))
#define W(id) param(m, id, l)
#define DW(id) grad(m, id, l)

// Block l from ln1 to the output of the MLP, which is left in PROJ: whoever comes next adds it to the residual stream.
static void block_forward(const Model* m, const Row* row, int l) {
    const Kernels* k = m->k;
    int N = row->N, C = m->shape.C;
    DType dt = m->dt;
    Stream s = m->s;
    Attention a = row_attention(m, row, l);
    k->matmul_forward(new_qkv(m, row, l), NULL, ACT(LN1), W(QKVW), W(QKVB), N, C, 3 * C, dt, s);
    k->attention_forward(ACT(ATT), STAT(LSE), &a, dt, s);
    k->matmul_forward(ACT(PROJ), NULL, ACT(ATT), W(ATTPROJW), W(ATTPROJB), N, C, C, dt, s);
    k->residual_layernorm_forward(ACT(RESIDUAL2), ACT(LN2), STAT(LN2_MEAN), STAT(LN2_RSTD), ACT(RESIDUAL), ACT(PROJ),
                                  W(LN2W), W(LN2B), N, C, dt, s);
    k->matmul_forward(ACT(FC), ACT(FC_GELU), ACT(LN2), W(FCW), W(FCB), N, C, 4 * C, dt, s);
    k->matmul_forward(ACT(PROJ), NULL, ACT(FC_GELU), W(FCPROJW), W(FCPROJB), N, 4 * C, C, dt, s);
}

// Embedding, all blocks, final norm: leaves LNF (N,C), from which logits are one matmul with wte.
static void model_forward(const Model* m, const Row* row) {
    const Kernels* k = m->k;
    int N = row->N, C = m->shape.C, L = m->shape.L, l = 0;
    DType dt = m->dt;
    Stream s = m->s;
    k->embedding_forward(ACT(RESIDUAL), row->tokens, row->positions, W(WTE), W(WPE), N, C, dt, s);
    k->layernorm_forward(ACT(LN1), STAT(LN1_MEAN), STAT(LN1_RSTD), ACT(RESIDUAL), W(LN1W), W(LN1B), N, C, dt, s);
    while (l < L) {
        void *residual2 = ACT(RESIDUAL2), *proj = ACT(PROJ);
        block_forward(m, row, l++);
        // What the block adds to the stream, and the norm that reads it: ln1 of the next block, or the final one.
        if (l < L)
            k->residual_layernorm_forward(ACT(RESIDUAL), ACT(LN1), STAT(LN1_MEAN), STAT(LN1_RSTD), residual2, proj,
                                          W(LN1W), W(LN1B), N, C, dt, s);
        else
            k->residual_layernorm_forward(ACT(RESIDUAL), ACT(LNF), STAT(LNF_MEAN), STAT(LNF_RSTD), residual2, proj,
                                          W(LNFW), W(LNFB), N, C, dt, s);
    }
}

// Losses of all tokens of the row, and with train the gradients of wte and, in D_NARROW, of LNF. The row goes through
// in chunks so that logits of a whole row never exist. scale: 1 / targets of the whole step.
static void classify(const Model* m, const Row* row, float scale, int train) {
    const Kernels* k = m->k;
    int C = m->shape.C, V = m->shape.V, Vp = m->shape.Vp, l = 0;  // nothing here belongs to a layer
    DType dt = m->dt;
    Stream s = m->s;
    void* logits = ACT(LOGITS);
    for (int n = 0; n < row->N; n += m->classifier_N) {
        int N = MIN(m->classifier_N, row->N - n);
        size_t at = (size_t)n * C * dtype_bytes(dt);
        char* lnf = (char*)ACT(LNF) + at;
        k->matmul_forward(logits, NULL, lnf, W(WTE), NULL, N, C, Vp, dt, s);
        k->classifier(STAT(LOSSES) + n, logits, row->targets + n, scale, train, N, V, Vp, dt, s);
        if (!train) continue;
        k->matmul_backward_input((char*)ACT(D_NARROW) + at, logits, W(WTE), NULL, N, C, Vp, m->dt, s);
        k->matmul_backward_weight(DW(WTE), NULL, logits, lnf, N, C, Vp, dt, s);
    }
}

// What the forward pass did not keep of block l.
static void recompute_block(const Model* m, const Row* row, int l) {
    const Kernels* k = m->k;
    int N = row->N, C = m->shape.C;
    DType dt = m->dt;
    Stream s = m->s;
    if (m->recompute == RECOMPUTE_GELU) k->gelu_forward(ACT(FC_GELU), ACT(FC), (size_t)N * 4 * C, dt, s);
    if (m->recompute != RECOMPUTE_BLOCK) return;
    k->layernorm_forward(ACT(LN1), STAT(LN1_MEAN), STAT(LN1_RSTD), ACT(RESIDUAL), W(LN1W), W(LN1B), N, C, dt, s);
    block_forward(m, row, l);
}

// On entry D_RESIDUAL is the gradient of what leaves block l, on return of what enters it.
static void block_backward(const Model* m, const Row* row, int l) {
    const Kernels* k = m->k;
    int N = row->N, C = m->shape.C;
    DType dt = m->dt;
    Stream s = m->s;
    void *d_residual = ACT(D_RESIDUAL), *d_narrow = ACT(D_NARROW);
    char* d_wide = (char*)ACT(D_WIDE);
    Attention a = row_attention(m, row, l);
    // MLP
    k->matmul_backward_weight(DW(FCPROJW), DW(FCPROJB), d_residual, ACT(FC_GELU), N, 4 * C, C, dt, s);
    k->matmul_backward_input(d_wide, d_residual, W(FCPROJW), ACT(FC), N, 4 * C, C, dt, s);
    k->matmul_backward_weight(DW(FCW), DW(FCB), d_wide, ACT(LN2), N, C, 4 * C, dt, s);
    k->matmul_backward_input(d_narrow, d_wide, W(FCW), NULL, N, C, 4 * C, dt, s);
    k->layernorm_backward(d_residual, DW(LN2W), DW(LN2B), d_narrow, ACT(RESIDUAL2), W(LN2W), STAT(LN2_MEAN),
                          STAT(LN2_RSTD), N, C, dt, s);
    // attention
    k->matmul_backward_weight(DW(ATTPROJW), DW(ATTPROJB), d_residual, ACT(ATT), N, C, C, dt, s);
    k->matmul_backward_input(d_narrow, d_residual, W(ATTPROJW), NULL, N, C, C, dt, s);
    size_t third = (size_t)C * dtype_bytes(dt);
    k->attention_backward(d_wide, d_wide + third, d_wide + 2 * third, d_narrow, ACT(ATT), STAT(LSE), &a, dt, s);
    k->matmul_backward_weight(DW(QKVW), DW(QKVB), d_wide, ACT(LN1), N, C, 3 * C, dt, s);
    k->matmul_backward_input(d_narrow, d_wide, W(QKVW), NULL, N, C, 3 * C, dt, s);
    k->layernorm_backward(d_residual, DW(LN1W), DW(LN1B), d_narrow, ACT(RESIDUAL), W(LN1W), STAT(LN1_MEAN),
                          STAT(LN1_RSTD), N, C, dt, s);
}

// After model_forward and classify with train: adds the row's gradients to grads.
static void model_backward(const Model* m, const Row* row) {
    const Kernels* k = m->k;
    int N = row->N, C = m->shape.C, l = m->shape.L;
    DType dt = m->dt;
    Stream s = m->s;
    void* d_residual = ACT(D_RESIDUAL);
    k->zero(d_residual, (size_t)N * C * dtype_bytes(dt), s);
    k->layernorm_backward(d_residual, DW(LNFW), DW(LNFB), ACT(D_NARROW), ACT(RESIDUAL), W(LNFW), STAT(LNF_MEAN),
                          STAT(LNF_RSTD), N, C, dt, s);
    while (l-- > 0) {
        recompute_block(m, row, l);
        block_backward(m, row, l);
    }
    k->embedding_backward(DW(WTE), DW(WPE), d_residual, row->tokens, row->positions, N, C, dt, s);
}

// The seed of stochastic rounding of one tensor in one step; 0 rounds to nearest.
static uint64_t rounding_seed(const Config* config, const ParamTensor* tensor, int64_t t) {
    if (!strcmp(config->rounding, "nearest")) return 0;
    return hash64(hash64((uint64_t)config->seed ^ (uint64_t)t) ^ tensor->offset) | 1;
}

// Clips, steps and zeroes the gradients; t is the 1-based step. The squared norm before clipping stays on the device. A
// norm that is not finite leaves the weights as they were. The host does not wait.
static void model_update(Model* m, const Config* config, double lr, int64_t t) {
    size_t elems = shape_param_elems(&m->shape);
    m->k->sum_of_squares(m->grad_norm2, m->grads, elems, m->s);
    m->k->clip_scale(m->grad_scale, m->grad_norm2, (float)config->clip, m->s);
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        ParamTensor tensor = shape_tensor(&m->shape, i);
        AdamW a;
        a.param = m->params + tensor.offset * dtype_bytes(m->dt);
        a.master = m->master + tensor.offset;
        a.m = m->m + tensor.offset;
        a.v = m->v + tensor.offset;
        a.grad = m->grads + tensor.offset;
        a.n = tensor.elems;
        a.lr = (float)lr;
        a.beta1 = (float)config->beta1;
        a.beta2 = (float)config->beta2;
        a.eps = 1e-8f;
        a.weight_decay = param_table[tensor.id].decay ? (float)config->weight_decay : 0;
        a.grad_scale = m->grad_scale;
        a.t = (int)MIN(t, (int64_t)1 << 30);
        a.rounding = rounding_seed(config, &tensor, t);
        m->k->adamw(&a, m->dt, m->s);
    }
    m->k->zero(m->grads, elems * sizeof(float), m->s);
}

// ---- the rows of a step

// Packs the n_pieces pieces that stand in b into rows and counts what they hold.
static void batch_pack(Batch* b) {
    char err[ERR_BYTES];
    double started = now_seconds();
    b->n_tokens = b->n_targets = 0;
    b->sum_s2 = 0;
    for (int i = 0; i < b->n_pieces; i++) {
        b->lengths[i] = b->pieces[i].length;
        b->n_tokens += b->pieces[i].length;
        b->n_targets += b->pieces[i].n_targets;
        b->sum_s2 += (double)b->pieces[i].length * b->pieces[i].length;
    }
    if (pack_best_fit(&b->packing, b->lengths, b->n_pieces, b->capacity, b->pack_scratch, err, sizeof err))
        die("%s", err);
    b->plan_us = 1e6 * (now_seconds() - started);
}

// The device's copy of what lies at `host` in the step's indices.
static int* on_device(const Batch* b, const int* host) { return b->device_indices + (host - b->indices); }

static void upload_ints(const Batch* b, const Model* m, const int* host, int n) {
    m->k->upload(on_device(b, host), host, (size_t)n * sizeof(int), m->s);
}

// Reads the documents of all rows, one after another, and brings them to the device: nothing else is read there until
// the step is done. Row r has its cu_seqlens, which begin at 0, behind those of the rows before it.
static void batch_upload(Batch* b, const Sampler* sampler, const Model* m) {
    char err[ERR_BYTES];
    int n = 0, *cu = b->cu;
    for (int r = 0; r < b->packing.n_rows; r++) {
        b->row_begin[r] = n;
        for (int i = b->packing.first[r]; i < b->packing.first[r + 1]; i++) {
            const Piece* piece = &b->pieces[b->packing.order[i]];
            if (sampler_read(sampler, piece, b->tokens + n, b->targets + n, err, sizeof err)) die("%s", err);
            *cu++ = n - b->row_begin[r];
            for (int t = 0; t < piece->length; t++) b->positions[n + t] = t;
            n += piece->length;
        }
        *cu++ = n - b->row_begin[r];
    }
    b->row_begin[b->packing.n_rows] = n;
    upload_ints(b, m, b->tokens, n);
    upload_ints(b, m, b->positions, n);
    upload_ints(b, m, b->targets, n);
    upload_ints(b, m, b->cu, (int)(cu - b->cu));
}

static Row batch_row(const Batch* b, int r) {
    Row row;
    int begin = b->row_begin[r];
    row.N = b->row_begin[r + 1] - begin;
    row.n_docs = b->packing.first[r + 1] - b->packing.first[r];
    row.tokens = on_device(b, b->tokens + begin);
    row.positions = on_device(b, b->positions + begin);
    row.targets = on_device(b, b->targets + begin);
    row.cu_q = row.cu_k = on_device(b, b->cu + b->packing.first[r] + r);
    row.use_cache = row.cached = 0;
    return row;
}

static volatile sig_atomic_t interrupted;

// The first Ctrl-C lets the step finish and saves; the second one ends the program as usual.
static void on_signal(int number) {
    interrupted = number;
    signal(number, SIG_DFL);
}

// Forward over all rows of the batch, and with train backward: gradients are added up. The sum of the losses of all
// targets is left on the device; nothing here waits for it.
static void run_rows(Run* run, const Sampler* sampler, int train) {
    const Model* m = &run->model;
    Batch* b = &run->batch;
    m->k->zero(m->loss_sum, sizeof *m->loss_sum, m->s);
    batch_upload(b, sampler, m);
    for (int r = 0; r < b->packing.n_rows; r++) {
        Row row = batch_row(b, r);
        model_forward(m, &row);
        classify(m, &row, 1 / (float)MAX(b->n_targets, 1), train);
        m->k->add_sum(m->loss_sum, (const float*)act(m, LOSSES, 0), (size_t)row.N, m->s);
        if (train) model_backward(m, &row);
    }
}

// Waits for the device, then the sum of the losses of the rows that ran last.
static double loss_sum(const Run* run) {
    double sum = 0;
    run->model.k->download(&sum, run->model.loss_sum, sizeof sum, run->model.s);
    return sum;
}

// ---- evaluation

// The next validation pieces from *next on, while they fit in a batch and in --eval-tokens. Returns 0 when there are
// none.
static int draw_val(Run* run, int64_t* next, int64_t* tokens) {
    Batch* b = &run->batch;
    int64_t limit = MIN((int64_t)b->max_tokens, run->config.eval_tokens - *tokens), used = 0;
    for (b->n_pieces = 0; *next < sampler_pieces(run->data.val, SPLIT_VAL); ++*next) {
        Piece piece = sampler_val_piece(run->data.val, *next);
        if (used + piece.length > limit && (*tokens > 0 || b->n_pieces > 0)) break;
        used += piece.length;
        b->pieces[b->n_pieces++] = piece;
    }
    *tokens += used;
    return b->n_pieces;
}

// Mean loss a target over the validation pieces; *targets their number. Overwrites the batch.
static double evaluate(Run* run, int64_t* targets) {
    int64_t next = 0, tokens = 0;
    double sum = 0;
    *targets = 0;
    while (draw_val(run, &next, &tokens)) {
        batch_pack(&run->batch);
        run_rows(run, run->data.val, 0);
        sum += loss_sum(run);
        *targets += run->batch.n_targets;
    }
    return *targets ? sum / (double)*targets : NAN;
}

// The loss of a model that knows nothing but how often each token occurs: frequencies of (the first millions of) the
// training tokens, each counted once more so that none has probability zero. What a language model must beat.
static double unigram_loss(Run* run) {
    enum { ENOUGH_TOKENS = 4000000 };
    char err[ERR_BYTES];
    Batch* b = &run->batch;
    int V = run->model.shape.V;
    double* count = (double*)calloc((size_t)V, sizeof(double));
    double total = V, sum = 0;
    int64_t next = 0, tokens = 0, targets = 0;
    if (!count) die("no memory to count %d token frequencies", V);
    for (int v = 0; v < V; v++) count[v] = 1;
    for (int64_t i = 0; i < sampler_pieces(run->data.train, SPLIT_TRAIN) && total < ENOUGH_TOKENS; i++) {
        SamplerPosition position = {0, i};
        Piece piece = sampler_train_piece(run->data.train, position);
        if (sampler_read(run->data.train, &piece, b->tokens, b->targets, err, sizeof err)) die("%s", err);
        for (int t = 0; t < piece.length; t++)
            if (b->targets[t] >= 0) count[b->targets[t]]++, total++;
    }
    while (draw_val(run, &next, &tokens))
        for (int i = 0; i < b->n_pieces; i++) {
            if (sampler_read(run->data.val, &b->pieces[i], b->tokens, b->targets, err, sizeof err)) die("%s", err);
            for (int t = 0; t < b->pieces[i].length; t++)
                if (b->targets[t] >= 0) sum -= log(count[b->targets[t]] / total), targets++;
        }
    free(count);
    return targets ? sum / (double)targets : NAN;
}

// ---- sampling

// The logits of token n of the row on the device, after model_forward, as fp32 in host_logits.
static void token_logits(Run* run, int n) {
    const Model* m = &run->model;
    int Vp = m->shape.Vp, C = m->shape.C, l = 0;
    char* lnf = (char*)ACT(LNF) + (size_t)n * C * dtype_bytes(m->dt);
    m->k->matmul_forward(ACT(LOGITS), NULL, lnf, W(WTE), NULL, 1, C, Vp, m->dt, m->s);
    m->k->download(run->host_logits, ACT(LOGITS), (size_t)Vp * dtype_bytes(m->dt), m->s);
    if (m->dt == DT_BF16) bf16_widen_in_place(run->host_logits, (size_t)Vp);
}

// Runs N tokens of one document that follow `cached` others in the KV cache; leaves the logits of the last in
// host_logits.
static void decode(Run* run, const int* tokens, int N, int cached) {
    const Model* m = &run->model;
    const Batch* b = &run->batch;
    int cu_k[2] = {0, cached + N};
    Row row;
    row.N = N;
    row.n_docs = 1;
    row.tokens = on_device(b, b->tokens);
    row.positions = on_device(b, b->positions);
    row.targets = NULL;
    row.cu_q = on_device(b, b->cu);
    row.cu_k = row.cu_q + 2;
    row.use_cache = 1;
    row.cached = cached;
    memcpy(b->tokens, tokens, (size_t)N * sizeof(int));
    for (int i = 0; i < N; i++) b->positions[i] = cached + i;
    b->cu[0] = 0, b->cu[1] = N;
    memcpy(b->cu + 2, cu_k, sizeof cu_k);
    upload_ints(b, m, b->tokens, N);
    upload_ints(b, m, b->positions, N);
    upload_ints(b, m, b->cu, 4);
    model_forward(m, &row);
    token_logits(run, N - 1);
}

// Bytes of generated text as a terminal may see them: control characters other than tab and newline become a dot.
static void print_token(const Run* run, int token) {
    size_t bytes = 0;
    const char* piece = tokenizer_decode(run->data.tokenizer, token, &bytes);
    for (size_t j = 0; j < bytes; j++) {
        unsigned char c = (unsigned char)piece[j];
        putchar((c < 32 && c != '\t' && c != '\n') || c == 127 ? '.' : c);
    }
    fflush(stdout);
}

// Continues text (n_tokens, with room for n_new more) and prints each token as it comes. When the context is full the
// older half is forgotten. seed makes the choices repeatable.
static void generate(Run* run, int* text, int n_tokens, int n_new, uint64_t seed) {
    const Config* c = &run->config;
    int context = run->model.shape.context, cached = 0, first = 0;  // text[first .. first + cached) is in the cache
    for (int i = 0; i < n_new; i++) {
        if (n_tokens - first > context) first = n_tokens - MAX(context / 2, 1), cached = 0;
        decode(run, text + first + cached, n_tokens - first - cached, cached);
        cached = n_tokens - first;
        text[n_tokens] = choose_token(run->host_logits, run->model.shape.V, c->temperature, c->top_k,
                                      random_uniform(seed, (uint64_t)i), run->host_scratch);
        print_token(run, text[n_tokens++]);
    }
}

// Prints the prompt (which follows an end-of-text token, as every document does) and its continuation.
static void print_sample(Run* run, const char* prompt, int n_new, uint64_t seed) {
    size_t n = strlen(prompt);
    int* text = (int*)malloc((n + (size_t)n_new + 1) * sizeof(int));
    if (!text) die("no memory for a sample of %d tokens", n_new);
    text[0] = run->data.docs ? docs_end_of_text(run->data.docs) : tokenizer_end_of_text(run->data.tokenizer);
    int n_tokens = 1 + (int)tokenizer_encode(run->data.tokenizer, text + 1, prompt, n);
    for (int i = 1; i < n_tokens; i++) print_token(run, text[i]);
    generate(run, text, n_tokens, n_new, seed);
    putchar('\n');
    free(text);
}

// Plans the memory and takes it, and fills in the weights. For training also measures what the device can do, and
// prints what was understood before anything is taken.
static void prepare(Run* run) {
    char err[ERR_BYTES];
    MemoryPlan plan = run_plan_memory(run);
    if (run->training) {
        run->matmul_limit = kernels_matmul_limit(run->model.k, run->model.dt, run->config.threads, err, sizeof err);
        if (run->matmul_limit < 0) die("%s", err);
        run_print(run);
        run_print_memory(&plan);
        fflush(stdout);
    }
    run_take_memory(run, &plan);
    const char* choices = run->model.k->choices();
    if (run->training && choices[0]) printf("kernels %s\n", choices);
    run_load_weights(run);
}

// ---- the loop

static void draw_step(Run* run) {
    Batch* b = &run->batch;
    SamplerPosition start = {0, 0};
    if (run->config.overfit) run->state.position = start;
    b->n_pieces = sampler_draw(run->data.train, &run->state.position, b->pieces, b->max_tokens, b->max_tokens);
    batch_pack(b);
}

// One optimizer step; fills the record of it. A loss or norm that is not finite ends the run before it touches the
// weights.
static void train_step(Run* run, StepRecord* r) {
    const Config* c = &run->config;
    double started = now_seconds(), norm2 = 0;
    r->step = run->state.step + 1;
    r->steps = c->steps;
    draw_step(run);
    r->lr = schedule_lr(c, r->step);
    run_rows(run, run->data.train, 1);
    model_update(&run->model, c, r->lr, r->step);
    r->loss = loss_sum(run) / (double)MAX(run->batch.n_targets, 1);  // the one wait of a step
    run->model.k->download(&norm2, run->model.grad_norm2, sizeof norm2, run->model.s);
    r->grad_norm = sqrt(norm2);
    if (!isfinite(r->loss) || !isfinite(r->grad_norm))
        die("step %" PRId64
            ": expected a finite loss and gradient norm, found %g and %g; checkpoints in %s are "
            "untouched, try --resume with a smaller --lr or --clip",
            r->step, r->loss, r->grad_norm, run->out);
    r->seconds = now_seconds() - started;
    r->tokens = run->batch.n_tokens;
    r->targets = run->batch.n_targets;
    r->rows = run->batch.packing.n_rows;
    r->plan_us = run->batch.plan_us;
    r->mfu =
        shape_training_flops(&run->model.shape, (double)r->tokens, run->batch.sum_s2) / r->seconds / run->matmul_limit;
    run->state.step = r->step;
    run->state.loss_hash = r->loss_hash = hash_bytes(&r->loss, sizeof r->loss, run->state.loss_hash);
}

// Logits of the row on the device, fp32, to where its documents stand in the order in which they were drawn.
static void dump_logits(Run* run, int r, const int64_t* place, float* logits, float* document) {
    const Model* m = &run->model;
    const Batch* b = &run->batch;
    int V = m->shape.V, n = 0;
    Row row = batch_row(b, r);
    model_forward(m, &row);
    for (int i = b->packing.first[r]; i < b->packing.first[r + 1]; i++) {
        int drawn = b->packing.order[i];
        for (int t = 0; t < b->pieces[drawn].length; t++, n++) {
            token_logits(run, n);
            memcpy(logits + (place[drawn] + t) * V, run->host_logits, (size_t)V * sizeof(float));
            document[place[drawn] + t] = (float)b->pieces[drawn].doc;
        }
    }
}

// --dump-grads: the loss and gradients of the next step, which is not taken, and the logits of its tokens in the
// order in which their documents were drawn, whatever the packing: "logits" (tokens, V) and "documents" (tokens), the
// ids.
static void dump_gradients(Run* run) {
    enum { MOST_BYTES = 256 << 20 };
    const Batch* b = &run->batch;
    draw_step(run);
    run_rows(run, run->data.train, 1);
    double loss = loss_sum(run) / (double)MAX(b->n_targets, 1);
    int V = run->model.shape.V, n_extra = b->n_tokens * V <= MOST_BYTES / (int)sizeof(float) ? 2 : 0;
    SafeTensor extra[2] = {{"logits", DT_F32, 2, {b->n_tokens, V}, NULL, (size_t)(b->n_tokens * V) * sizeof(float)},
                           {"documents", DT_F32, 1, {b->n_tokens}, NULL, (size_t)b->n_tokens * sizeof(float)}};
    float* logits = n_extra ? (float*)malloc(extra[0].bytes + extra[1].bytes) : NULL;
    int64_t* place = (int64_t*)calloc((size_t)b->n_pieces + 1, sizeof(int64_t));
    if (!place || (n_extra && !logits))
        die("--dump-grads: no memory for the logits of %" PRId64 " tokens", b->n_tokens);
    for (int i = 0; i < b->n_pieces; i++) place[i + 1] = place[i] + b->pieces[i].length;
    for (int r = 0; r < b->packing.n_rows && n_extra; r++) dump_logits(run, r, place, logits, logits + b->n_tokens * V);
    extra[0].data = logits;
    extra[1].data = logits ? logits + b->n_tokens * V : NULL;
    run_dump_gradients(run, extra, n_extra);
    printf("loss %.9g over %" PRId64 " targets; gradients in %s\n", loss, b->n_targets, run->config.dump_grads);
    free(place);
    free(logits);
}

static int is_due(int64_t step, int every) { return every > 0 && step % every == 0; }

static void evaluate_now(Run* run) {
    int64_t targets = 0;
    double started = now_seconds();
    if (sampler_pieces(run->data.val, SPLIT_VAL) == 0) return;
    run->state.val_loss = evaluate(run, &targets);
    runlog_say(&run->log,
               "step %" PRId64 ": %svalidation loss %.4f%s over %" PRId64 " targets (a unigram model has %.4f), %.1f s",
               run->state.step, runlog_bold(&run->log), run->state.val_loss, runlog_plain(&run->log), targets,
               run->unigram_loss, now_seconds() - started);
    if (runlog_eval(&run->log, run->state.step, run->state.val_loss, targets))
        die("%s/log.jsonl: cannot write: %s", run->out, strerror(errno));
}

static void sample_now(Run* run) {
    if (docs_max_token(run->data.docs) >= tokenizer_vocab(run->data.tokenizer)) {
        runlog_say(&run->log, "step %" PRId64 ": no sample, the tokens of these shards need --tokenizer",
                   run->state.step);
        return;
    }
    runlog_say(&run->log, "step %" PRId64 ": a sample", run->state.step);
    print_sample(run, "", MIN(run->config.tokens, 256), hash64((uint64_t)run->config.seed ^ (uint64_t)run->state.step));
}

static void train(Run* run) {
    char err[ERR_BYTES];
    const Config* c = &run->config;
    StepRecord record;
    int64_t saved = c->resume ? run->state.step : -1;
    if (disk_make_dirs(run->out, err, sizeof err) || runlog_open(&run->log, run->out, run->state.step, err, sizeof err))
        die("%s", err);
    run->unigram_loss = c->eval_every && sampler_pieces(run->data.val, SPLIT_VAL) ? unigram_loss(run) : NAN;
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    double started = now_seconds();
    run->first_step = run->state.step;
    while (run->state.step < c->steps && !interrupted) {
        train_step(run, &record);
        int64_t step = record.step, done = step - run->first_step;
        int last = step == c->steps;
        record.seconds_left = (now_seconds() - started) / (double)done * (double)(c->steps - step);
        if (runlog_step(&run->log, &record)) die("%s/log.jsonl: cannot write: %s", run->out, strerror(errno));
        if (is_due(step, c->eval_every) || (last && c->eval_every)) evaluate_now(run);
        if (is_due(step, c->sample_every) || (last && c->sample_every)) sample_now(run);
        if (is_due(step, c->save_every) || (last && c->save_every)) run_save_checkpoint(run), saved = step;
    }
    if (interrupted && saved != run->state.step) run_save_checkpoint(run);
}

// ---- the end

static void finish(Run* run, double started) {
    char elapsed[32];
    const Config* c = &run->config;
    runlog_say(&run->log, "%s at step %" PRId64 " of %" PRId64 " after %s; loss hash %016" PRIx64,
               interrupted ? "stopped" : "done", run->state.step, c->steps,
               runlog_duration(now_seconds() - started, elapsed), run->state.loss_hash);
    if (run->state.step < c->steps) printf("continue: ./train --resume --out %s\n", run->out);
    else if (c->resume && run->first_step >= c->steps)
        printf("its steps were done before; to go on: ./train --resume --out %s --steps %" PRId64 "\n", run->out,
               2 * c->steps);
    else if (c->save_every && c->steps > 0)
        printf("use it:   ./train --out %s --sample \"%s\"\n", run->out,
               c->data.n == 1 && !strcmp(c->data.paths[0], "/usr/include") ? "#include <" : "Once ");
    else printf("nothing was saved\n");
    runlog_close(&run->log);
}

int main(int argc, char** argv) {
    static Run run;
    double started = now_seconds();
    run_threads_without_spinning(argv);
    run_read_options(&run, argc, argv);
    run_open_data(&run);
    run_settle_model(&run);
    prepare(&run);
    if (run.config.sample) print_sample(&run, run.config.sample, run.config.tokens, (uint64_t)run.config.seed);
    else if (run.config.dump_grads) dump_gradients(&run);
    else train(&run), finish(&run, started);
    run_close(&run);
    return interrupted ? 128 + interrupted : 0;
}
