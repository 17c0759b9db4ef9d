// state.c - weights, moments and gradients between the device and files.
//
// Files know whole tensors, and segments of whole tensors, whatever part of the model a rank holds: so any number of
// ranks, divided in any way, goes on from what any other has saved. In a tensor-parallel group the ranks' parts are put
// together on the way out, and each takes its own on the way in.
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/cpu.h"
#include "run/files/adapter.h"
#include "run/model/tensor_parallel.h"

// ---- the model's side of files

// Returns 1 if whole tensors lie on several ranks, apart from --zero.
static int is_divided(const Model* m) { return !m->ranks->owner && (m->tp || m->stages > 1); }
// Returns 1 if this stage of the pipeline has the tensor: its ranks join it together, also one that owns no head.
static int is_here(const Model* m, const ParamTensor* tensor) { return pipeline_stage_of(m, tensor) == m->stage; }

static void fetch_state(void* context, StateKind kind, const ParamTensor* tensor, float* value) {
    Run* run = (Run*)context;
    Model* m = &run->model;
    if (m->ranks->owner && kind == STATE_GRADS) {
        zero_fetch_grads(m->ranks->owner, tensor, value);
        return;
    }
    ParamTensor own = pipeline_part(m, tensor);
    float* part = m->tp ? run->books->part : value;
    if (own.elems && kind == STATE_GRADS) zero_fetch_grads(m, &own, part);
    else if (own.elems) zero_fetch_weights(m, &own, part);
    if (is_here(m, tensor)) tp_join(m, &own, value, part, run->books->others);
    pipeline_share(m, value, tensor->elems * sizeof *value, pipeline_stage_of(m, tensor));
}

static void put_weights(void* context, const ParamTensor* tensor, float* value) {
    Run* run = (Run*)context;
    Model* m = &run->model;
    ParamTensor own = pipeline_part(m, tensor);
    if (m->ranks->owner)
        zero_put_weights(m->ranks->owner, tensor, memcpy(run->books->part, value, tensor->elems * sizeof(float)));
    if (!own.elems) return;
    tp_take(m, &own, value, value);
    zero_put_weights(m, &own, value);
}

static void upload_owned(const Model* m, StateKind kind, const Segment* segment, const float* value) {
    m->k->upload(zero_owned(m, kind, segment), value, segment->n * sizeof(float), m->s);
    m->k->synchronize(m->s);
}

// The segment is of a whole tensor; in a tensor-parallel group it is the tensor, of which this rank takes its own.
static void put_owned(void* context, StateKind kind, const Segment* segment, const float* value) {
    Run* run = (Run*)context;
    const Model* m = &run->model;
    if (!is_divided(m)) {
        upload_owned(model_owner(&run->model), kind, segment, value);
        return;
    }
    ParamTensor part = pipeline_part(m, &segment->tensor);
    if (!part.elems) return;
    Segment own = zero_segment(m, part.index);
    if (m->tp) tp_take(m, &part, run->books->part, value);
    if (own.n) upload_owned(m, kind, &own, (m->tp ? run->books->part : value) + own.first);
}

static size_t collected_elems(const Shape* whole) { return shape_param_elems(whole) / (size_t)whole->shards; }

// Where collect_state has put them, or straight from the device.
static void fetch_owned(void* context, StateKind kind, const Segment* segment, float* value) {
    const Run* run = (const Run*)context;
    const Model* m = &run->model;
    const float* collected =
        run->books->collected + (size_t)(kind - STATE_MASTER) * collected_elems(&m->whole) + segment->at;
    if (is_divided(m)) m->k->download(value, collected, segment->n * sizeof(float), m->s);
    else
        m->k->download(value, zero_owned(m->ranks->owner ? m->ranks->owner : m, kind, segment),
                       segment->n * sizeof(float), m->s);
}

static void* take(const Model* m, size_t elems) {
    void* p = m->k->alloc(MAX(elems, (size_t)1) * sizeof(float));
    if (!p) die("no memory for %zu MiB of optimizer state on its way to a file", elems * sizeof(float) >> 20);
    return p;
}

// In tensor-parallel groups and pipelines: this rank's segments of whole tensors, from those who own parts of them.
// Collective; between steps.
static void collect_state(Run* run, int with_master) {
    const Model* m = &run->model;
    Arena arena = {0};
    char err[ERR_BYTES];
    Holdings owned = owned_holdings(m, STATE_M, &arena), pieces;
    const size_t elems = collected_elems(&m->whole);
    if (holdings_of_pieces(&pieces, &m->whole, &arena, err)) die("%s", err);
    Mover mover = mover_open(m, m->world, RESHARD_COPY, COMM_STATE, DT_F32, &owned, &pieces, &arena);
    run->books->collected = (float*)take(m, 3 * elems);
    char* scratch = (char*)take(m, mover_scratch(&mover));
    for (StateKind kind = with_master ? STATE_MASTER : STATE_M; kind <= STATE_V; kind = (StateKind)(kind + 1))
        mover_run(&mover, (char*)(run->books->collected + (size_t)(kind - STATE_MASTER) * elems),
                  (const char*)m->array[zero_array_of(kind)], scratch);
    m->k->synchronize(m->s);
    m->k->free_memory(scratch);
    arena_free(&arena);
}

// Returns the state to write: all ranks share in the whole model.
ModelState state_to_write(Run* run) {
    ModelState state = {.shape = &run->model.whole, .dt = run->model.dt, .rank = run->model.world->rank};
    state.staging = run->books->staging, state.context = run;
    state.fetch = fetch_state, state.put_weights = put_weights;
    state.fetch_owned = fetch_owned, state.put_owned = put_owned;
    return state;
}

// A rank of a tensor-parallel group sees whole tensors pass by.
ModelState state_to_read(Run* run, Shape* alone) {
    ModelState state = state_to_write(run);
    *alone = run->model.whole;
    if (!is_divided(&run->model)) return state;
    alone->shards = 1;
    state.shape = alone;
    state.rank = 0;
    return state;
}

// Masters exist apart from weights: in training, and where weights are not fp32 themselves.
static int keeps_master(const Model* m) { return m->array[MODEL_MASTER] != NULL; }

// ---- into files

int state_write_owned(Run* run, const ModelState* state, const char* dir, int has_failed, Err err) {
    int with_master = keeps_master(&run->model);
    if (is_divided(&run->model)) collect_state(run, with_master);
    if (!has_failed) has_failed = optimizer_write(state, with_master, dir, err);
    if (run->books->collected) run->model.k->free_memory(run->books->collected);
    run->books->collected = NULL;
    return has_failed ? -1 : 0;
}

// ---- the beginning

enum { INIT_PIECE = 1 << 14 };

typedef struct InitialValues {
    const Shape* shape;
    const ParamTensor* tensor;
    uint64_t seed;
    float* to;
} InitialValues;

static void init_piece(const void* job, size_t piece, int thread) {
    const InitialValues* j = (const InitialValues*)job;
    size_t first = piece * INIT_PIECE, n = MIN((size_t)INIT_PIECE, j->tensor->elems - first);
    (void)thread;
    shape_init_param(j->shape, j->tensor, j->seed, first, n, j->to);
}

// The model's own initial values; masters first, because putting weights rounds them in the staging buffer.
static void init_weights(Run* run) {
    Shape alone;
    ModelState state = state_to_read(run, &alone);
    if (!run->model.k->on_host) team_open(host_cores("", 0));  // fewer threads take longer
    for (int i = 0; i < shape_tensors(&run->model.whole); i++) {
        Segment own = shape_segment(state.shape, i, state.rank);
        const ParamTensor* tensor = &own.tensor;
        InitialValues job = {&run->model.whole, tensor, (uint64_t)run->config.seed, run->books->staging};
        team_run(init_piece, &job, CEIL_DIV(tensor->elems, (size_t)INIT_PIECE), 1, 0);
        if (keeps_master(&run->model) && own.n) put_owned(run, STATE_MASTER, &own, run->books->staging + own.first);
        put_weights(run, tensor, run->books->staging);
    }
}

static int read_files(Run* run, Err err) {
    Shape alone;
    ModelState state = state_to_read(run, &alone);
    int with_master = keeps_master(&run->model);
    if (hf_read(&state, with_master, run->books->start_from, err)) return -1;
    if (!run->config.resume) return 0;
    return optimizer_read(&state, with_master, run->books->saved.ranks, run->books->start_from, err);
}

void die_together(const Run* run, int failed, const char* words, const char* what) {
    char err[ERR_BYTES];
    if (run_meet(run, failed, words, err)) die("%s%s", what, err);
}

// Each rank reads for itself.
void run_load_weights(Run* run) {
    char err[ERR_BYTES];
    int begins = run->books->base[0] && !adapter_is_there(run), reads = run->books->start_from[0] && !begins;
    die_together(run, adapter_read_base(run, err), err, "");
    if (!reads && !run->model.k->no_results) init_weights(run);
    die_together(run, reads && read_files(run, err), err, "");
    checkpoint_unpin(run->books->pin);
}
