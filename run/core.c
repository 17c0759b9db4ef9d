// core.c - a run on one rank: the batch of a step in rows, the learning rate, an evaluation, a sample; see core.h.
#define _POSIX_C_SOURCE 200809L
#include "run/core.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "plan/base/text.h"
#include "run/core_ranks.h"

// ---- memory of a batch

size_t batch_bytes(int max_tokens) {
    size_t n = (size_t)max_tokens;
    return n * (sizeof(Piece) + sizeof(int)) + (n + 1) * sizeof(RowPlace);
}

// The integers are tokens, positions, targets and cu_seqlens, which have one entry more a row; generation needs four.
size_t batch_index_ints(int max_tokens) { return 5 * (size_t)max_tokens + 4; }

void batch_carve(Batch* b, void* memory, int* indices, int* device_indices, int max_tokens) {
    size_t n = (size_t)max_tokens;
    b->max_tokens = max_tokens;
    b->pieces = (Piece*)memory;
    b->rows = (RowPlace*)(b->pieces + n);
    b->lengths = (int*)(b->rows + n + 1);
    b->indices = b->tokens = indices;
    b->device_indices = device_indices;
    b->positions = b->tokens + n;
    b->targets = b->positions + n;
    b->cu = b->targets + n;
}

// ---- the pieces of a step

void batch_draw(Batch* b, const Run* run) {
    b->training = 1;
    b->n_pieces = sampler_draw_step(run->data.train, &b->after, b->pieces, b->max_tokens, run->config.batch_tokens);
}

int batch_draw_val(Batch* b, const Run* run, int64_t* next, int64_t* tokens) {
    int64_t limit = MIN(run->config.batch_tokens, run->config.eval_tokens - *tokens), used = 0;
    int64_t pieces = sampler_pieces(run->data.val, SPLIT_VAL);
    b->training = 0;
    b->val_from = *next ? b->val_to : 0;
    for (b->n_pieces = 0; *next < pieces; ++*next) {
        Piece piece = sampler_val_piece(run->data.val, *next);
        if (used + piece.length > limit && (*tokens > 0 || b->n_pieces > 0)) break;
        used += piece.length;
        b->pieces[b->n_pieces++] = piece;
    }
    *tokens += used;
    b->val_to = fmax((double)*next / (double)pieces, (double)*tokens / run->config.eval_tokens);
    return b->n_pieces;
}

void batch_count(Batch* b) {
    b->n_tokens = b->n_targets = 0;
    b->sum_s2 = b->weight = 0;
    for (int i = 0; i < b->n_pieces; i++) {
        b->n_tokens += b->lengths[i] = b->pieces[i].length;
        b->n_targets += b->pieces[i].n_labels;
        b->weight += b->pieces[i].weight;
        b->sum_s2 += b->pieces[i].squares;
    }
    if (b->weight == 0) b->weight = 1;
}

// ---- rows

int batch_read_part(Batch* b, const Sampler* sampler, int piece, int first, int length, Err err) {
    Piece part = b->pieces[piece];
    // Only the end of a piece can lack a label.
    int n = b->n_read, is_end = first + length == part.length, unlabelled = part.length - part.n_targets;
    part.first += first;
    part.length = length;
    part.n_targets = length - (is_end ? unlabelled : 0);
    if (sampler_read(sampler, &part, b->tokens + n, b->targets + n, err)) return -1;
    for (int t = 0; t < length; t++) b->positions[n + t] = first + t;
    b->n_read += length;
    return 0;
}

double row_quadratic(const Shape* shape) {
    double weights = 0;
    for (int i = 0; i < N_LINEARS; i++) weights += (double)shape_param(shape, sublayers[i / 2].weight[i % 2], 0).elems;
    return 1.0 / (weights / (shape->NH * shape->HS));
}

// Reads the pieces of one rank alone in rows of at most --capacity, the heaviest row first.
static void read_rows(Run* run, const Sampler* sampler) {
    Err err;
    Rows rows;
    Batch* b = &run->batch;
    batch_count(b);
    arena_reset(&b->arena, (ArenaMark){0});
    int64_t capacity = MIN((int64_t)run->settled.capacity, b->n_tokens);
    if (pack_rows(&rows, b->lengths, b->n_pieces, capacity, &b->arena, err) ||
        rows_weigh(&rows, b->lengths, NULL, row_quadratic(&run->model.whole), &b->arena, err))
        die("%s", err);
    b->n_read = b->n_cu = 0;
    for (b->n_rows = 0; b->n_rows < rows.n; b->n_rows++) {
        const int* row = &rows.first[rows.heaviest[b->n_rows].number];
        RowPlace place = b->rows[b->n_rows] = (RowPlace){b->n_read, b->n_cu};
        b->cu[b->n_cu++] = 0;
        for (int i = row[0]; i < row[1]; i++) {
            int piece = rows.order[i];
            if (batch_read_part(b, sampler, piece, 0, b->lengths[piece], err)) die("%s", err);
            b->cu[b->n_cu++] = b->n_read - place.token;
        }
    }
    b->rows[rows.n] = (RowPlace){b->n_read, b->n_cu};
}

int* batch_on_device(const Batch* b, const int* host) { return b->device_indices + (host - b->indices); }

void batch_upload_ints(const Batch* b, const Model* m, const int* host, int n) {
    m->k->upload(batch_on_device(b, host), host, (size_t)n * sizeof(int), m->s);
}

static void upload(const Batch* b, const Model* m, int n, int n_cu) {
    batch_upload_ints(b, m, b->tokens, n);
    batch_upload_ints(b, m, b->positions, n);
    batch_upload_ints(b, m, b->targets, n);
    batch_upload_ints(b, m, b->cu, n_cu);
}

void batch_upload(Run* run, const Sampler* sampler) {
    if (run->ranks) run->ranks->read(run, sampler);
    upload(&run->batch, &run->model, run->batch.n_read, run->batch.n_cu);
}

// Returns the row of N tokens from at.token on, with cu_seqlens from at.cu on.
static Row row_of(const Batch* b, RowPlace at, int N, int n_docs) {
    static uint64_t rows;  // so far, of this process
    Row row = {.N = N, .n = N, .own = N, .n_docs = n_docs, .number = ++rows, .qkv = QKV};
    row.tokens = batch_on_device(b, b->tokens + at.token);
    row.positions = batch_on_device(b, b->positions + at.token);
    row.targets = batch_on_device(b, b->targets + at.token);
    row.cu = batch_on_device(b, b->cu + at.cu);
    return row;
}

Row batch_row(Run* run, int i) {
    const RowPlace* at = &run->batch.rows[i];
    Row row = row_of(&run->batch, at[0], at[1].token - at[0].token, at[1].cu - at[0].cu - 1);
    if (run->ranks) run->ranks->fill_row(run, &row, i);
    return row;
}

int run_next_pass(Run* run, Pass* pass, int i, int train) {
    Batch* b = &run->batch;
    if (run->ranks) return run->ranks->next_pass(run, pass, i, train);
    int row = train ? i / 2 : i;
    if (row == b->n_rows) return 0;
    *pass = (Pass){train && i % 2 ? PASS_BACKWARD : PASS_FORWARD, &b->row, 1};
    if (pass->kind == PASS_FORWARD) b->row = batch_row(run, row);
    return 1;
}

// ---- the learning rate

// Returns the share of the way from lr down to min_lr * lr: 0 .. 1.
static double descent(const Config* config, int64_t t) {
    double after = (double)MAX(config->steps - config->warmup, (int64_t)1);
    double x = (double)(t - config->warmup) / after;
    x = x < 0 ? 0 : x > 1 ? 1 : x;
    if (!strcmp(config->schedule, "linear")) return x;
    if (!strcmp(config->schedule, "cosine")) return 0.5 * (1 - cos(3.141592653589793 * x));
    if (!strcmp(config->schedule, "wsd")) {
        double fall = 0.2 * (double)config->steps, y = ((double)t - ((double)config->steps - fall)) / MAX(fall, 1);
        return y <= 0 ? 0 : sqrt(MIN(y, 1));
    }
    return 0;
}

double schedule_lr(const Config* config, int64_t t) {
    if (t < config->warmup) return config->lr * (double)t / config->warmup;
    return config->lr * (1 - (1 - config->min_lr) * descent(config, t));
}

// ---- an evaluation

double loss_sum(Run* run) {
    double sum;
    if (run->ranks) return run->ranks->loss_sum(run);
    run->model.k->download(&sum, run->model.loss_sum, sizeof sum, run->model.s);
    return sum;
}

static int plan_val(Run* run) {
    if (run->ranks) return run->ranks->plan_val(run);
    read_rows(run, run->data.val);
    return 1;
}

double evaluate(Run* run, int64_t* targets) {
    int64_t next = 0, tokens = 0;
    double sum = 0;
    *targets = 0;
    while (!run->stopped_by && batch_draw_val(&run->batch, run, &next, &tokens) && plan_val(run)) {
        run_micro_batches(run, run->data.val, 0);
        sum += loss_sum(run);
        *targets += run->batch.n_targets;
    }
    if (run->ranks && !run->ranks->end_val(run)) *targets = 0;
    return *targets ? sum / (double)*targets : NAN;
}

void run_evaluate(Run* run) {
    if (sampler_pieces(run->data.val, SPLIT_VAL) == 0) return;
    double loss = evaluate(run, &run->val_targets);
    if (run->val_targets == 0) return;
    run->state.val_loss = loss;
    run_tell_loss(run);
}

// ---- a sample: a document's tokens one after another, with keys and values of those before in the KV cache

void run_decode(Run* run, const int* tokens, const int* lengths, int n, int place, int cached) {
    Batch* b = &run->batch;
    int N = 0;
    run->model.k->synchronize(run->model.s);  // uploads of the pass before read what this one overwrites
    for (int d = 0; d < n; b->cu[++d] = N)
        for (int i = 0; i < lengths[d]; i++, N++) b->positions[N] = cached + i, b->targets[N] = -1;
    Row row = row_of(b, (RowPlace){0, 0}, N, n);
    row.qkv = KV, row.place = place, row.cached = cached, row.cu_keys = row.cu + n + 1;
    memcpy(b->tokens, tokens, (size_t)N * sizeof(int));
    b->cu[0] = b->cu[n + 1] = 0, b->cu[n + 2] = cached + N;
    upload(b, &run->model, N, n + 3);
    if (run->ranks) run->ranks->decode(run, &row);
    else model_forward(&run->model, &row);
}

// Rows go through in chunks, as in classify.
void run_draw(Run* run, int n, int N) {
    const Model* m = &run->model;
    const Config* c = &run->config;
    Sampling how = {m->shape.V, MIN(m->shape.V, run->data.tokenizer->vocab), c->temperature, c->top_k};
    m->k->upload(run->device_draws, run->draws, sizeof(Draw) * (size_t)N, m->s);
    for (int i = 0; i < N && !m->shape.no_head; i += m->sampled_N) {
        int chunk = MIN(m->sampled_N, N - i);
        void* logits = model_act(m, LOGITS, 0);
        if (run->ranks) logits = run->ranks->logits(run, n + i, chunk);
        else model_logits(m, logits, n + i, chunk);
        m->k->sample(run->device_draws + i, logits, &how, chunk, m->shape.Vp, m->dt, m->s);
    }
    m->k->download(run->draws, run->device_draws, sizeof(Draw) * (size_t)N, m->s);
    if (run->ranks) run->ranks->share_draws(run, N);
}

// Prints bytes of generated text as a terminal may see them. A character that a token ends inside waits for its rest.
static void print_token(const Run* run, TextFilter* filter, FILE* copy, int token) {
    size_t bytes = 0;
    const char* piece = run->data.tokenizer->decode(run->data.tokenizer, token, &bytes);
    text_print(stdout, filter, piece, bytes);
    if (copy) fwrite(piece, 1, bytes, copy);
    fflush(stdout);
}

// A full context forgets its older half.
void sample_tokens(Run* run, int* text, int n_tokens, int n_new, uint64_t seed, FILE* copy) {
    TextFilter filter = {{0}, 0, 0};
    int context = run->model.shape.context, cached = 0, first = 0;  // text[first .. first + cached) is in the cache
    for (int i = 1; i < n_tokens; i++) print_token(run, &filter, copy, text[i]);
    for (int i = 0; i < n_new; i++) {
        if (n_tokens - first > context) first = n_tokens - MAX(context / 2, 1), cached = 0;
        int last = 0;  // tokens of the last pass
        for (int N; (N = MIN(n_tokens - first - cached, run->settled.capacity)) > 0; cached += N)
            last = N, run_decode(run, text + first + cached, &N, 1, 0, cached);
        run->draws->u = random_uniform(seed, (uint64_t)i);
        run_draw(run, last - 1, 1);
        int token = run->draws->token;
        if (token == text[0] || token == run->data.stop) break;
        print_token(run, &filter, copy, text[n_tokens++] = token);
    }
    text_print_end(stdout, &filter);
    putchar('\n');
}

int* sample_begin(const Run* run, size_t tokens) {
    int* text = (int*)malloc((tokens + 1) * sizeof(int));
    if (!text) die("no memory for a sample of %zu tokens", tokens);
    text[0] = run->data.begin;
    return text;
}

void sample_print(Run* run, const char* prompt, int n_new, uint64_t seed, FILE* copy) {
    size_t n = strlen(prompt);
    int* text = sample_begin(run, n * (size_t)run->data.tokenizer->most + (size_t)n_new);
    int n_tokens = 1 + (int)run->data.tokenizer->encode(run->data.tokenizer, text + 1, prompt, n);
    sample_tokens(run, text, n_tokens, n_new, seed, copy);
    free(text);
}

// ---- the phases of one rank: rows of the table in core_stubs.c

void core_read_options(Run* run) {
    Err err;
    Config* c = &run->config;
    if (config_parse(c, run->argc, run->argv, err) || config_settle(c, byte_tokenizer.vocab, err)) die("%s", err);
}

void core_open_data(Run* run) {
    Err err;
    const Config* c = &run->config;
    Data* d = &run->data;
    Docs start = {.tokenizer = &byte_tokenizer, .most_open = 64, .separator = c->separator};
    if (!c->data.n) die("expected text to train on, found none; try --data PATH");
    if (docs_open(&d->docs, start, c->data.paths, c->data.n, err) ||
        sampler_open(&d->train, d->docs, c->context, HELD_OUT, (uint64_t)c->seed, err))
        die("--data: %s", err);
    d->val = d->train;
    d->tokenizer = (Tokenizer*)&byte_tokenizer;
    d->begin = d->docs->end_of_text, d->stop = byte_tokenizer.stop;
}

// Takes all memory of the run as a table.
static void take_memory(Run* run, const ModelNeeds* needs) {
    Err err;
    Model* m = &run->model;
    MemoryPlan plan = {.on_host = m->k->on_host};
    int tokens = run->config.batch_tokens;
    size_t indices = batch_index_ints(tokens) * sizeof(int);
    model_plan(&plan, m->k, needs);
    memory_add(&plan, "step indices", indices, ON_DEVICE);
    memory_add(&plan, "step indices, host", indices, ON_HOST_PINNED);
    memory_add(&plan, "step buffers", batch_bytes(tokens), ON_HOST);
    memory_add(&plan, "draws", sizeof(Draw), ON_DEVICE);
    memory_add(&plan, "draws, host", sizeof(Draw), ON_HOST_PINNED);
    if (m->k->open(&needs->limits, err)) die("%s", err);
    memory_take(&plan, m->k);
    model_carve(m, &plan);
    model_place_params(m);
    model_place_activations(m, needs);
    batch_carve(&run->batch, memory_of(&plan, "step buffers"), (int*)memory_of(&plan, "step indices, host"),
                (int*)memory_of(&plan, "step indices"), tokens);
    run->device_draws = (Draw*)memory_of(&plan, "draws");
    run->draws = (Draw*)memory_of(&plan, "draws, host");
}

void core_open_model(Run* run) {
    const Config* c = &run->config;
    Model* m = &run->model;
    m->k = &cpu_reference;
    m->dt = !strcmp(c->dtype, "bf16") ? DT_BF16 : DT_F32;
    m->whole = m->shape = config_shape(c);
    LayerLayout* layers = (LayerLayout*)calloc((size_t)m->shape.L, sizeof *layers);  // nothing is computed again
    if (!layers) die("no memory for %d layers", m->shape.L);
    m->layers = layers;
    run->training = 1;
    run->settled.capacity = MAX(MIN(c->capacity ? c->capacity : 8192, c->batch_tokens), c->context);
    ModelNeeds needs = model_needs(m->k, &m->shape, m->dt, layers, c, run->training, run->settled.capacity);
    take_memory(run, &needs);
}

void core_init_weights(Run* run) {
    const Model* m = &run->model;
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        ParamTensor t = shape_tensor(&m->shape, i);
        size_t bytes = t.elems * sizeof(float);
        float *value = (float*)malloc(bytes), *master = (float*)m->array[MODEL_MASTER];
        if (!value) die("no memory for %zu bytes of weights", bytes);
        shape_init_param(&m->shape, &t, (uint64_t)run->config.seed, 0, t.elems, value);
        if (master) m->k->upload(master + t.offset, value, bytes, m->s);
        if (m->dt == DT_BF16) bf16_narrow_in_place(value, t.elems);
        m->k->upload(model_weights(m, t.id, t.layer), value, t.elems * dtype_bytes(m->dt), m->s);
        free(value);
    }
}

void core_next_batch(Run* run) {
    run->batch.after = run->state.position;
    batch_draw(&run->batch, run);
    read_rows(run, run->data.train);
}
