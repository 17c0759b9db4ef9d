// copy.c - the state of a run as the files of a checkpoint in memory, and their way to a disk: see files.h.
#include "run/files/files.h"
#include "run/files/chats.h"

#include <stdio.h>
#include <stdlib.h>

#include "data/json.h"
#include "data/tokenizer_files.h"
#include "run/files/saving.h"
#include "run/slow/balance.h"

static const char* model_name(const Run* run) {
    return run->model.whole.lora.is_all ? ADAPTER_FILE : "model.safetensors";
}

static void add_file(StateCopy* copy, const char* name, char* bytes, size_t n) {
    CopiedFile* file = &copy->files[copy->n++];
    *file = (CopiedFile){.bytes = bytes, .n = n};
    snprintf(file->name, sizeof file->name, "%s", name);
}

// A text that was made for it: it is the copy's from now on.
static int add_text(StateCopy* copy, const char* name, char* text, size_t n, Err err) {
    if (!text) return fail(err, "no memory for %s", name);
    add_file(copy, name, text, n);
    return 0;
}

// The file that the tokenizer was read from, and what else Hugging Face's AutoTokenizer needs.
static int add_tokenizer(StateCopy* copy, const Run* run, Err err) {
    const Tokenizer* t = run->data.tokenizer;
    const void* file;
    size_t n;
    const char* name = tokenizer_file(t, &file, &n);
    char *bytes = (char*)malloc(MAX(n, (size_t)1)), *text;
    if (bytes) memcpy(bytes, file, n);
    if (add_text(copy, name, bytes, n, err)) return -1;
    text = run_tokenizer_config(run, &n);
    if (add_text(copy, "tokenizer_config.json", text, n, err)) return -1;
    if (!strcmp(name, "tokenizer.json")) return 0;
    text = tokenizer_json_text(t, &n);
    return add_text(copy, "tokenizer.json", text, n, err);
}

// Adds what says how a model of this shape is used.
static int add_configs(StateCopy* copy, const Run* run, const Shape* whole, Err err) {
    // Token shards may have been made by a tokenizer that nobody named.
    int describes_tokens = !run->data.docs || run->data.docs->max_token < run->data.tokenizer->vocab;
    int is_adapter = whole->lora.is_all;
    size_t n;
    if (describes_tokens && add_tokenizer(copy, run, err)) return -1;
    char* text = is_adapter ? lora_config_text(whole, run->books->base, &n)
                            : hf_config_text(whole, run->model.dt, run->data.begin, run->data.stop, &n);
    if (add_text(copy, is_adapter ? ADAPTER_CONFIG : "config.json", text, n, err)) return -1;
    text = run_generation_config(run, &n);
    if (text) add_file(copy, "generation_config.json", text, n);
    return 0;
}

int state_put_configs(const Run* run, const Shape* whole, const char* dir, Err err) {
    char path[CHECKPOINT_PATH];
    StateCopy copy = {.n = 0};
    int failed = add_configs(&copy, run, whole, err);
    for (const CopiedFile* f = copy.files; f < copy.files + copy.n && !failed; f++)
        failed = disk_join(path, dir, f->name, err) || disk_put(path, f->bytes, f->n, 0, err);
    state_copy_free(&copy);
    return failed;
}

// Adds the files that are neither weights nor optimizer state.
static int add_small_files(StateCopy* copy, const Run* run, Err err) {
    RunState saved = run_saved_state(run);
    Config config = run_settled_config(run);
    if (add_configs(copy, run, &run->model.whole, err) || run_state_check(&saved, &config, err)) return -1;
    char* text = run_state_text(&saved, &config);
    return add_text(copy, "state.json", text, text ? strlen(text) : 0, err);
}

// Returns the most bytes of a file of n tensors whose values have so many.
static size_t file_bytes(size_t values, int n) { return values + 512 * ((size_t)n + 8); }

static size_t model_bytes(const Run* run, int rank) {
    const Model* m = &run->model;
    size_t values = shape_param_elems(&m->whole) * dtype_bytes(m->dt);
    return rank ? 0 : file_bytes(values, MOST_RUNS * shape_tensors(&m->whole));
}

size_t state_copy_bytes(const Run* run, int rank) {
    enum { STATES = 3 };
    const Shape* whole = &run->model.whole;
    size_t owned = STATES * sizeof(float) * (shape_param_elems(whole) / (size_t)whole->shards);
    return model_bytes(run, rank) + file_bytes(owned, STATES * shape_tensors(whole));
}

// Adds tensors that lie in memory, or in their file already where memory had no room.
static void add_image(StateCopy* copy, const char* name, SafeImage image) {
    add_file(copy, name, image.n ? image.bytes : NULL, image.n);
}

int state_copy(Run* run, StateCopy* copy, SafeImage room, const char* dir, Err err) {
    char path[CHECKPOINT_PATH], name[OPTIMIZER_NAME];
    int rank = run->model.world->rank, ranks = run->model.world->size;
    balance_save(run);
    run->books->saved.ranks = ranks;
    *copy = (StateCopy){.n = 0};
    SafeImage model = {room.bytes, MIN(room.room, model_bytes(run, rank)), 0};
    SafeImage optimizer = {room.bytes + model.room, room.room - model.room, 0};
    run_path(path, dir, model_name(run));
    ModelState state = state_to_write(run);
    state.image = &model;
    int failed = hf_write(&state, STATE_WEIGHTS, NULL, 0, rank == 0 ? path : NULL, err);
    state.image = &optimizer;
    if (state_write_owned(run, &state, dir, failed, err)) return -1;
    if (rank == 0) add_image(copy, model_name(run), model);
    if (rank == 0 && add_small_files(copy, run, err)) return -1;
    optimizer_name(name, rank, ranks);
    add_image(copy, name, optimizer);
    return 0;
}

int copied_is_tensors(const CopiedFile* file) { return strstr(file->name, ".safetensors") != NULL; }

int state_copy_check(const StateCopy* copy, const char* dir, Err err) {
    char path[CHECKPOINT_PATH];
    for (const CopiedFile* f = copy->files; f < copy->files + copy->n; f++) {
        SafeImage image = {f->bytes, f->n, f->n};
        if (!f->bytes || !copied_is_tensors(f)) continue;
        if (disk_join(path, dir, f->name, err) || safetensors_check_finite(path, &image, err)) return -1;
    }
    return 0;
}

void state_copy_free(StateCopy* copy) {
    for (CopiedFile* f = copy->files; f < copy->files + copy->n; f++)
        if (!copied_is_tensors(f)) free(f->bytes);
    copy->n = 0;
}

// ---- the way to files, on a thread while training goes on

void writing_begin(Writing* x, Run* run) {
    *x = (Writing){.run = run, .step = run->state.step, .is_begun = 1, .began = now_seconds()};
}

static void* write_files(void* argument) {
    Writing* x = (Writing*)argument;
    x->failed = x->write(x);
    atomic_store(&x->written, 1);
    return NULL;
}

void writing_start(Writing* x, int (*write)(Writing* x), int may_be_apart) {
    x->write = write;
    x->is_apart = may_be_apart && host_begin_thread(&x->thread, write_files, x);
    if (!x->is_apart) write_files(x);
    x->blocked = now_seconds() - x->began;
}

int writing_is_done(const Writing* x) { return x->is_begun && atomic_load(&x->written); }

void writing_wait(Writing* x) {
    if (x->is_apart) pthread_join(x->thread, NULL);
    x->is_apart = 0;
}

double writing_tell(Writing* x, const char* event, const char* path) {
    char members[6 * CHECKPOINT_PATH + 128] = ", \"path\": ";
    double seconds = now_seconds() - x->began;
    size_t n = strlen(members);
    n += json_quote(members + n, path, strlen(path));
    snprintf(members + n, sizeof members - n, ", \"save_blocked_ms\": %.3f, \"save_seconds\": %.3f", 1e3 * x->blocked,
             seconds);
    runlog_event(&x->run->books->log, event, x->step, members);
    return seconds;
}

int writing_leave(Writing* x, int status) {
    state_copy_free(&x->copy);
    x->is_begun = 0;
    return status;
}
