// state.c - weights, moments and gradients between the device and files.
//
// Files know whole tensors, and segments of whole tensors, whatever part of the model a rank holds: so any number of
// ranks, divided in any way, goes on from what any other has saved. In a tensor-parallel group the ranks' parts are put
// together on the way out, and each takes its own on the way in.
//
// A save is the work of all ranks: each writes the optimizer state that it owns, rank 0 the rest. They meet four times,
// with a report from each: the directory is there; all see it; all files are written; the save is committed. Whatever
// fails where, all ranks learn of it at the next meeting and end with the same words.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "plan/disk.h"
#include "data/hf_config.h"
#include "data/hf_files.h"
#include "data/optimizer_files.h"
#include "kernels/cpu/team.h"
#include "run/mover.h"
#include "run/owned.h"
#include "run/run.h"

// ---- the model's side of files

// Whether whole tensors lie on several ranks, apart from --zero.
static int is_divided(const Model* m) { return !m->owner && (m->tp || m->stages > 1); }
// Whether this stage of the pipeline has the tensor: its ranks join it together, also one that owns no head.
static int is_here(const Model* m, const ParamTensor* tensor) { return pipeline_stage_of(m, tensor) == m->stage; }

static void fetch_state(void* context, StateKind kind, const ParamTensor* tensor, float* value) {
    Run* run = (Run*)context;
    Model* m = &run->model;
    if (m->owner && kind == STATE_GRADS) {
        zero_fetch_grads(m->owner, tensor, value);
        return;
    }
    ParamTensor own = pipeline_part(m, tensor);
    float* part = m->tp ? run->part : value;
    if (own.elems && kind == STATE_GRADS) zero_fetch_grads(m, &own, part);
    else if (own.elems) zero_fetch_weights(m, &own, part);
    if (is_here(m, tensor)) tp_join(m, &own, value, part, run->others);
    pipeline_share(m, value, tensor->elems, pipeline_stage_of(m, tensor));
}

static void put_weights(void* context, const ParamTensor* tensor, float* value) {
    Run* run = (Run*)context;
    Model* m = &run->model;
    ParamTensor own = pipeline_part(m, tensor);
    if (m->owner) zero_put_weights(m->owner, tensor, memcpy(run->part, value, tensor->elems * sizeof(float)));
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
    Segment own = zero_segment(m, shape_index(&m->shape, &part));
    if (m->tp) tp_take(m, &part, run->part, value);
    if (own.n) upload_owned(m, kind, &own, (m->tp ? run->part : value) + own.first);
}

static size_t collected_elems(const Shape* whole) { return shape_param_elems(whole) / (size_t)whole->shards; }

// Where collect_state has put them, or straight from the device.
static void fetch_owned(void* context, StateKind kind, const Segment* segment, float* value) {
    const Run* run = (const Run*)context;
    const Model* m = &run->model;
    const float* collected = run->collected + (size_t)(kind - STATE_MASTER) * collected_elems(&m->whole) + segment->at;
    if (is_divided(m)) m->k->download(value, collected, segment->n * sizeof(float), m->s);
    else m->k->download(value, zero_owned(m->owner ? m->owner : m, kind, segment), segment->n * sizeof(float), m->s);
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
    Mover mover;
    const size_t elems = collected_elems(&m->whole);
    if (holdings_of_pieces(&pieces, &m->whole, &arena, err, sizeof err)) die("%s", err);
    mover_open(&mover, m, &owned, &pieces, &arena);
    run->collected = (float*)take(m, 3 * elems);
    char* scratch = (char*)take(m, mover_scratch(&mover));
    for (StateKind kind = with_master ? STATE_MASTER : STATE_M; kind <= STATE_V; kind = (StateKind)(kind + 1))
        mover_run(&mover, m->world, &m->whole, (char*)(run->collected + (size_t)(kind - STATE_MASTER) * elems),
                  (const char*)m->zero.part[zero_part_of(kind)], scratch, DT_F32, m->k, m->s);
    m->k->synchronize(m->s);
    m->k->free_memory(scratch);
    arena_free(&arena);
}

// What is written: all ranks share in the whole model.
static ModelState model_state(Run* run) {
    ModelState state;
    state.shape = &run->model.whole;
    state.dt = run->model.dt;
    state.rank = run->model.world->rank;
    state.staging = run->staging;
    state.fetch = fetch_state;
    state.put_weights = put_weights;
    state.fetch_owned = fetch_owned;
    state.put_owned = put_owned;
    state.context = run;
    return state;
}

// What is read: a rank of a tensor-parallel group sees whole tensors pass by.
static ModelState reading_state(Run* run, Shape* alone) {
    ModelState state = model_state(run);
    *alone = run->model.whole;
    if (!is_divided(&run->model)) return state;
    alone->shards = 1;
    state.shape = alone;
    state.rank = 0;
    return state;
}

// Masters exist apart from weights: in training, and where weights are not fp32 themselves.
static int keeps_master(const Model* m) { return m->zero.part[ZERO_MASTER] != NULL; }

// ---- what ranks tell each other

typedef struct Report {
    int failed;
    char words[ERR_BYTES];
    uint64_t bytes, hash;  // of the rank's optimizer file, once it is written
} Report;

static Report* make_reports(const Comm* c) {
    Report* all = (Report*)calloc((size_t)c->size, sizeof(Report));
    if (!all) die("no memory for the reports of %d ranks", c->size);
    return all;
}

// All ranks call it. Fills all (size). 0 when every report is good, else -1 with the words of the first that is not;
// ends the program where a rank is lost.
static int meet(const Run* run, const Report* mine, Report* all, char* err, size_t errlen) {
    Comm* c = run->model.world;
    if (c->table->all_gather_host(c, all, mine, sizeof *mine, err, errlen)) run_lost(run, err);
    int r = 0;
    while (r < c->size && !all[r].failed) r++;
    if (r == c->size) return 0;
    return c->size == 1 ? fail(err, errlen, "%s", all[r].words) : fail(err, errlen, "rank %d: %s", r, all[r].words);
}

// ---- a save

static int begin_save(Run* run, const char* dir, CheckpointWriter* w, Report* all, char* err, size_t errlen) {
    Report mine = {0};
    int is_first = run->model.world->rank == 0;
    if (is_first) mine.failed = checkpoint_begin(w, dir, run->state.step, mine.words, sizeof mine.words);
    if (meet(run, &mine, all, err, errlen)) return -1;
    if (!is_first) mine.failed = checkpoint_join(w, dir, run->state.step, mine.words, sizeof mine.words);
    if (!meet(run, &mine, all, err, errlen)) return 0;
    if (is_first) checkpoint_abort(w);
    return -1;
}

// A text that was made for it; the writer frees it.
static int write_text(CheckpointWriter* w, const char* name, char* text, size_t n, char* err, size_t errlen) {
    int failed =
        text ? checkpoint_write_file(w, name, text, n, err, errlen) : fail(err, errlen, "no memory for %s", name);
    free(text);
    return failed;
}

// The file that the tokenizer was read from, and what else Hugging Face's AutoTokenizer needs.
static int write_tokenizer(const Run* run, CheckpointWriter* w, char* err, size_t errlen) {
    const Tokenizer* t = run->data.tokenizer;
    const void* file;
    size_t n;
    const char* name = tokenizer_file(t, &file, &n);
    if (checkpoint_write_file(w, name, file, n, err, errlen)) return -1;
    char* config = tokenizer_config_text(t, run->model.whole.positions, &n);
    if (write_text(w, "tokenizer_config.json", config, n, err, errlen)) return -1;
    if (!strcmp(name, "tokenizer.json")) return 0;
    char* json = tokenizer_json_text(t, &n);
    return write_text(w, "tokenizer.json", json, n, err, errlen);
}

// What is neither weights nor optimizer state.
static int write_small_files(Run* run, CheckpointWriter* w, char* err, size_t errlen) {
    const Model* m = &run->model;
    char text[HF_CONFIG_BYTES];
    // Token shards may have been made by a tokenizer that nobody named.
    int describes_tokens = docs_max_token(run->data.docs) < tokenizer_vocab(run->data.tokenizer);
    size_t n;
    if (describes_tokens && write_tokenizer(run, w, err, errlen)) return -1;
    n = hf_config_text(&m->whole, m->dt, docs_end_of_text(run->data.docs), run_stop_token(run), text, sizeof text);
    if (checkpoint_write_file(w, "config.json", text, n, err, errlen)) return -1;
    char* run_state = run_state_text(&run->state, &run->config);
    if (!run_state) return fail(err, errlen, "no memory for state.json");
    int result = checkpoint_write_file(w, "state.json", run_state, strlen(run_state), err, errlen);
    free(run_state);
    return result;
}

// This rank's files. All ranks fetch all weights, whatever happened to one of them.
static int write_files(Run* run, CheckpointWriter* w, Report* mine) {
    ModelState state = model_state(run);
    char path[CHECKPOINT_PATH], name[OPTIMIZER_NAME];
    int is_first = state.rank == 0;
    run_path(path, w->dir, "model.safetensors");
    int unwritten = hf_write(&state, STATE_WEIGHTS, NULL, 0, is_first ? path : NULL, mine->words, sizeof mine->words);
    optimizer_name(name, state.rank, state.shape->shards);
    run_path(path, w->dir, name);
    int lost = balance_save(run, w->dir, mine->words, sizeof mine->words);
    if (is_divided(&run->model)) collect_state(run, keeps_master(&run->model));  // with all others, whatever has failed
    int failed = unwritten || lost ||
                 optimizer_write(&state, keeps_master(&run->model), w->dir, mine->words, sizeof mine->words) ||
                 disk_hash(path, 0, &mine->bytes, &mine->hash, mine->words, sizeof mine->words);
    if (run->collected) run->model.k->free_memory(run->collected);
    run->collected = NULL;
    if (failed) return -1;
    return is_first ? write_small_files(run, w, mine->words, sizeof mine->words) : 0;
}

static int commit_save(Run* run, CheckpointWriter* w, Report* all, char* err, size_t errlen) {
    Comm* c = run->model.world;
    Report mine = {0};
    for (int r = 0; r < c->size && c->rank == 0 && !mine.failed; r++) {
        char name[OPTIMIZER_NAME];
        optimizer_name(name, r, c->size);
        mine.failed = checkpoint_add_file(w, name, all[r].bytes, all[r].hash, mine.words, sizeof mine.words);
        if (mine.failed) checkpoint_abort(w);
    }
    if (c->rank == 0 && !mine.failed) {
        int saved = checkpoint_commit(w, run->config.keep, mine.words, sizeof mine.words);
        mine.failed = saved < 0;
        if (saved > 0) warn("%s", mine.words);
    }
    return meet(run, &mine, all, err, errlen);
}

static int save(Run* run, const char* dir, CheckpointWriter* w, Report* all, char* err, size_t errlen) {
    Report mine = {0};
    if (begin_save(run, dir, w, all, err, errlen)) return -1;
    mine.failed = write_files(run, w, &mine);
    if (meet(run, &mine, all, err, errlen) == 0) return commit_save(run, w, all, err, errlen);
    if (run->model.world->rank == 0) checkpoint_abort(w);
    return -1;
}

int run_save_checkpoint(Run* run, const char* dir, char* err, size_t errlen) {
    CheckpointWriter w;
    Report* all = make_reports(run->model.world);
    double started = now_seconds();
    int result = save(run, dir, &w, all, err, errlen);
    free(all);
    if (result == 0) run_log_event(run, "save", "path", w.final);
    if (result == 0) runlog_say(&run->log, "saved %s (%.1f s)", w.final, now_seconds() - started);
    return result;
}

// Where a checkpoint goes that cannot be written into the run directory; rank 0 names it.
static void find_elsewhere(const Run* run, char dir[CHECKPOINT_PATH]) {
    char err[ERR_BYTES];
    Comm* c = run->model.world;
    const char *base = getenv("TMPDIR"), *name = strrchr(run->out, '/');
    snprintf(dir, CHECKPOINT_PATH, "%.1000s/ragged-%.200s-%ld", base && base[0] ? base : "/tmp",
             name && name[1] ? name + 1 : "run", (long)getpid());
    if (c->table->broadcast_host(c, dir, CHECKPOINT_PATH, 0, err, sizeof err)) run_lost(run, err);
}

void run_save_last(Run* run) {
    enum { TRIES = 3 };
    char err[ERR_BYTES], why[ERR_BYTES], elsewhere[CHECKPOINT_PATH];
    int is_first = run->model.world->rank == 0;
    for (int i = 0; i < TRIES; i++) {
        if (i > 0) sleep(1);
        if (run_save_checkpoint(run, run->out, err, sizeof err) == 0) return;
        if (is_first) warn("cannot save step %" PRId64 ", try %d of %d: %s", run->state.step, i + 1, TRIES, err);
    }
    find_elsewhere(run, elsewhere);
    if (run_save_checkpoint(run, elsewhere, why, sizeof why))
        die("cannot save step %" PRId64 " in %s (%s), nor elsewhere (%s); older checkpoints are untouched",
            run->state.step, run->out, err, why);
    if (is_first) warn("step %" PRId64 " is saved in %s, not in %s: %s", run->state.step, elsewhere, run->out, err);
    strcpy(run->out, elsewhere);
    run->failed = 1;
}

// ---- after a divergence

// The newest checkpoint that is not on its way up already: its loss is within a tenth of the least. -1: there is none.
static int64_t last_good(const Run* run) {
    enum { MOST = 64 };
    int64_t steps[MOST];
    double losses[MOST], least = INFINITY;
    int n = checkpoint_steps(run->out, steps, MOST);
    for (int i = 0; i < n; i++) {
        char dir[CHECKPOINT_PATH];
        size_t bytes;
        snprintf(dir, sizeof dir, "%.4000s/step-%06" PRId64, run->out, steps[i]);
        char* text = checkpoint_read_file(dir, "state.json", &bytes, NULL, 0);
        losses[i] = text ? run_state_loss(text, bytes) : NAN;
        free(text);
        if (losses[i] < least) least = losses[i];
    }
    for (int i = 0; i < n; i++)
        if (losses[i] <= 1.1 * least) return steps[i];
    return n > 0 ? steps[0] : -1;
}

void run_diverged(const Run* run, int64_t step, double loss, double grad_norm) {
    const Config* c = &run->config;
    int64_t good = last_good(run);
    char out[CHECKPOINT_PATH];
    double lr = c->lr / 4;
    const char* clip = c->clip > 0 ? "" : " --clip 1";
    if (good < 0)
        die("step %" PRId64
            ": expected a finite loss and gradient norm, found %g and %g; nothing was saved; start "
            "again with --lr %g%s",
            step, loss, grad_norm, lr, clip);
    die("step %" PRId64
        ": expected a finite loss and gradient norm, found %g and %g; no checkpoint is changed; go on "
        "from the last good one: ./train --resume-from step-%06" PRId64 " --out %s --lr %g%s",
        step, loss, grad_norm, good, text_quoted(run->out, out, sizeof out), lr, clip);
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
    ModelState state = reading_state(run, &alone);
    if (!run->model.k->on_host) team_open(host_cores("", 0));  // fewer threads take longer
    for (int i = 0; i < shape_tensors(&run->model.whole); i++) {
        Segment own = shape_segment(state.shape, i, state.rank);
        const ParamTensor* tensor = &own.tensor;
        InitialValues job = {&run->model.whole, tensor, (uint64_t)run->config.seed, run->staging};
        team_run(init_piece, &job, CEIL_DIV(tensor->elems, (size_t)INIT_PIECE), 1, 0);
        if (keeps_master(&run->model) && own.n) put_owned(run, STATE_MASTER, &own, run->staging + own.first);
        put_weights(run, tensor, run->staging);
    }
}

static int read_files(Run* run, char* err, size_t errlen) {
    Shape alone;
    ModelState state = reading_state(run, &alone);
    int with_master = keeps_master(&run->model);
    if (hf_read(&state, with_master, run->start_from, err, errlen)) return -1;
    return run->config.resume ? optimizer_read(&state, with_master, run->start_from, err, errlen) : 0;
}

// Weights, and with --resume moments too, from the checkpoint in start_from; the model's own initial values without
// one. Each rank reads for itself.
void run_load_weights(Run* run) {
    char err[ERR_BYTES];
    Report mine = {0}, *all = make_reports(run->model.world);
    if (run->start_from[0]) mine.failed = read_files(run, mine.words, sizeof mine.words);
    else if (!run->model.k->no_results) init_weights(run);
    if (meet(run, &mine, all, err, sizeof err)) die("%s", err);
    free(all);
    checkpoint_unpin(run->pin);
}

void run_dump_gradients(Run* run, const SafeTensor* extra, int n_extra) {
    char err[ERR_BYTES];
    Comm* c = run->model.world;
    ModelState state = model_state(run);
    Report mine = {0}, *all = make_reports(c);
    const char* path = c->rank == 0 ? run->config.dump_grads : NULL;
    mine.failed = hf_write(&state, STATE_GRADS, extra, n_extra, path, mine.words, sizeof mine.words);
    if (meet(run, &mine, all, err, sizeof err)) die("--dump-grads: %s", err);
    free(all);
}
