// state.c - weights, moments and gradients between the device and files.
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/gpt2_files.h"
#include "run/run.h"

static float* state_block(const Model* m, StateKind kind) {
    return kind == STATE_MASTER ? m->master : kind == STATE_M ? m->m : kind == STATE_V ? m->v : m->grads;
}

static void fetch_state(void* context, StateKind kind, const ParamTensor* tensor, float* value) {
    const Model* m = (const Model*)context;
    size_t elem = kind == STATE_WEIGHTS ? dtype_bytes(m->dt) : sizeof(float);
    const char* from = kind == STATE_WEIGHTS ? m->params : (const char*)state_block(m, kind);
    m->k->download(value, from + tensor->offset * elem, tensor->elems * elem, m->s);
    if (elem == sizeof(bf16)) bf16_widen_in_place(value, tensor->elems);
}

// value is fp32; weights are rounded to dt in the staging buffer itself, which is this program's to overwrite.
static void put_state(void* context, StateKind kind, const ParamTensor* tensor, float* value) {
    const Model* m = (const Model*)context;
    size_t elem = kind == STATE_WEIGHTS ? dtype_bytes(m->dt) : sizeof(float);
    char* to = kind == STATE_WEIGHTS ? m->params : (char*)state_block(m, kind);
    if (kind == STATE_MASTER && !m->master) return;  // not training
    if (elem == sizeof(bf16)) bf16_narrow_in_place(value, tensor->elems);
    m->k->upload(to + tensor->offset * elem, value, tensor->elems * elem, m->s);
    m->k->synchronize(m->s);
}

static ModelState model_state(Run* run) {
    ModelState state;
    state.shape = &run->model.shape;
    state.dt = run->model.dt;
    state.staging = run->staging;
    state.fetch = fetch_state;
    state.put = put_state;
    state.context = &run->model;
    return state;
}

static void make_path(char* path, const char* dir, const char* name) {
    if (snprintf(path, CHECKPOINT_PATH, "%s/%s", dir, name) >= CHECKPOINT_PATH) die("%s/%s: path too long", dir, name);
}

// Everything that a later run needs, as one checkpoint. 0, or -1 with a message; older checkpoints stay as they are
// then.
static int write_checkpoint(Run* run, CheckpointWriter* w, char* err, size_t errlen) {
    const Model* m = &run->model;
    ModelState state = model_state(run);
    char path[CHECKPOINT_PATH], text[2048];
    make_path(path, w->dir, "model.safetensors");
    if (gpt2_write(&state, STATE_WEIGHTS, NULL, 0, path, err, errlen)) return -1;
    make_path(path, w->dir, "optimizer-00000-of-00001.safetensors");
    if (gpt2_write_optimizer(&state, has_master(m), path, err, errlen)) return -1;
    make_path(path, w->dir, "tokenizer.bin");
    // Token shards may have been made by a tokenizer that nobody named.
    int describes_tokens = docs_max_token(run->data.docs) < tokenizer_vocab(run->data.tokenizer);
    if (describes_tokens && tokenizer_save(run->data.tokenizer, path, err, errlen)) return -1;
    size_t n = gpt2_config_text(&m->shape, m->dt, docs_end_of_text(run->data.docs), text, sizeof text);
    if (checkpoint_write_file(w, "config.json", text, n, err, errlen)) return -1;
    char* run_state = run_state_text(&run->state, &run->config);
    if (!run_state) return fail(err, errlen, "no memory for state.json");
    int result = checkpoint_write_file(w, "state.json", run_state, strlen(run_state), err, errlen);
    free(run_state);
    return result;
}

void run_save_checkpoint(Run* run) {
    char err[ERR_BYTES];
    CheckpointWriter w;
    double started = now_seconds();
    if (checkpoint_begin(&w, run->out, run->state.step, err, sizeof err)) die("%s", err);
    if (write_checkpoint(run, &w, err, sizeof err)) {
        checkpoint_abort(&w);
        die("cannot save step %" PRId64 ": %s; older checkpoints in %s are untouched", run->state.step, err, run->out);
    }
    if (checkpoint_commit(&w, run->config.keep, err, sizeof err)) die("%s", err);
    runlog_say(&run->log, "saved %s (%.1f s)", w.final, now_seconds() - started);
}

// The model's own initial values; masters first, because putting weights rounds them in the staging buffer.
static void init_weights(Run* run) {
    enum { PIECE = 1 << 14 };
    Model* m = &run->model;
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        ParamTensor tensor = shape_tensor(&m->shape, i);
#pragma omp parallel for
        for (size_t first = 0; first < tensor.elems; first += PIECE)
            shape_init_param(&m->shape, &tensor, (uint64_t)run->config.seed, first,
                             MIN((size_t)PIECE, tensor.elems - first), run->staging);
        if (has_master(m)) put_state(m, STATE_MASTER, &tensor, run->staging);
        put_state(m, STATE_WEIGHTS, &tensor, run->staging);
    }
}

// Weights, and with --resume moments too, from the checkpoint in start_from; the model's own initial values without
// one.
void run_load_weights(Run* run) {
    char err[ERR_BYTES], path[CHECKPOINT_PATH];
    Model* m = &run->model;
    ModelState state = model_state(run);
    if (!run->start_from[0]) {
        init_weights(run);
        return;
    }
    make_path(path, run->start_from, "model.safetensors");
    if (gpt2_read(&state, has_master(m), path, err, sizeof err)) die("%s", err);
    make_path(path, run->start_from, "optimizer-00000-of-00001.safetensors");
    if (run->config.resume && gpt2_read_optimizer(&state, has_master(m), path, err, sizeof err)) die("%s", err);
}

void run_dump_gradients(Run* run, const SafeTensor* extra, int n_extra) {
    char err[ERR_BYTES];
    ModelState state = model_state(run);
    if (gpt2_write(&state, STATE_GRADS, extra, n_extra, run->config.dump_grads, err, sizeof err))
        die("--dump-grads: %s", err);
}
