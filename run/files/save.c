// save.c - a checkpoint of the run.
//
// A save is the work of all ranks: each writes the optimizer state that it owns, rank 0 the rest. They meet four times,
// with a report from each: the directory is there; all see it; all files are written; the save is committed. Whatever
// fails where, all ranks learn of it at the next meeting and end with the same words.
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "data/model_files.h"
#include "plan/base/user_cache.h"
#include "run/run.h"
#include "run/slow/balance.h"

void run_check_saving(Run* run) {
    char err[ERR_BYTES];
    RunState saved = run_saved_state(run);
    if (!run->books->claims) return;
    if (hf_config_check(&run->model.whole, err) || run_state_check(&saved, &run->config, err))
        die("no checkpoint of this run could be read again: %s", err);
}

// ---- a save

typedef struct Save {
    Run* run;
    CheckpointWriter w;
    int is_first;
    Report mine, *all;  // of this rank; (ranks)
} Save;

static int meet(Save* s, int failed, Err err) {
    s->mine.failed = failed;
    return reports_meet(s->run, &s->mine, s->all, err);
}

// A text that was made for it; the writer frees it.
static int write_text(CheckpointWriter* w, const char* name, char* text, size_t n, Err err) {
    int failed = text ? checkpoint_write_file(w, name, text, n, err) : fail(err, "no memory for %s", name);
    free(text);
    return failed;
}

// The file that the tokenizer was read from, and what else Hugging Face's AutoTokenizer needs.
static int write_tokenizer(const Run* run, CheckpointWriter* w, Err err) {
    const Tokenizer* t = run->data.tokenizer;
    const void* file;
    size_t n;
    const char* name = tokenizer_file(t, &file, &n);
    if (checkpoint_write_file(w, name, file, n, err)) return -1;
    char* config = tokenizer_config_text(t, run->model.whole.positions, &n);
    if (write_text(w, "tokenizer_config.json", config, n, err)) return -1;
    if (!strcmp(name, "tokenizer.json")) return 0;
    char* json = tokenizer_json_text(t, &n);
    return write_text(w, "tokenizer.json", json, n, err);
}

// What is neither weights nor optimizer state.
static int write_small_files(const Run* run, CheckpointWriter* w, Err err) {
    const Model* m = &run->model;
    // Token shards may have been made by a tokenizer that nobody named.
    int describes_tokens = run->data.docs->max_token < run->data.tokenizer->vocab;
    RunState saved = run_saved_state(run);
    Config config = run_settled_config(run);
    size_t n;
    if (describes_tokens && write_tokenizer(run, w, err)) return -1;
    char* text = hf_config_text(&m->whole, m->dt, run->data.docs->end_of_text, run->data.stop, &n);
    if (write_text(w, "config.json", text, n, err) || run_state_check(&saved, &config, err)) return -1;
    text = run_state_text(&saved, &config);
    return write_text(w, "state.json", text, text ? strlen(text) : 0, err);
}

// This rank's files. All ranks fetch all weights, whatever happened to one of them.
static int write_files(Save* s) {
    static const char model[] = "model.safetensors";
    Run* run = s->run;
    const Comm* c = run->model.world;
    Report* mine = &s->mine;
    char path[CHECKPOINT_PATH], *err = mine->words;
    SafeTensor lists[PRUNER_TENSORS];
    int n_lists = balance_save(run, lists);
    run->books->saved.ranks = c->size;
    run_path(path, s->w.dir, model);
    int failed = state_write(run, STATE_WEIGHTS, NULL, 0, s->is_first ? path : NULL, err);
    if (s->is_first && !failed)
        failed = disk_hash(path, 0, &mine->bytes, &mine->hash, err) ||
                 checkpoint_add_file(&s->w, model, mine->bytes, mine->hash, err);
    if (state_write_owned(run, s->w.dir, lists, n_lists, failed, err) ||
        optimizer_path(path, s->w.dir, c->rank, c->size, err) || disk_hash(path, 0, &mine->bytes, &mine->hash, err))
        return -1;
    return s->is_first ? write_small_files(run, &s->w, err) : 0;
}

static int commit(Save* s) {
    int ranks = s->run->model.world->size;
    for (int r = 0; r < ranks; r++) {
        char name[OPTIMIZER_NAME];
        optimizer_name(name, r, ranks);
        if (!checkpoint_add_file(&s->w, name, s->all[r].bytes, s->all[r].hash, s->mine.words)) continue;
        checkpoint_abort(&s->w);
        return -1;
    }
    int saved = checkpoint_commit(&s->w, s->run->config.keep, s->mine.words);
    if (saved > 0) warn("%s", s->mine.words);
    return MIN(saved, 0);
}

static int save(Save* s, const char* dir, Err err) {
    int64_t step = s->run->state.step;
    if (meet(s, s->is_first ? checkpoint_begin(&s->w, dir, step, s->mine.words) : 0, err)) return -1;
    if (meet(s, s->is_first ? 0 : checkpoint_join(&s->w, dir, step, s->mine.words), err) ||
        meet(s, write_files(s), err)) {
        if (s->is_first) checkpoint_abort(&s->w);
        return -1;
    }
    return meet(s, s->is_first ? commit(s) : 0, err);
}

// A checkpoint of run->state in the run directory `dir`. All ranks call it; it ends the program where one is lost. 0,
// or -1 with a message on all ranks: then nothing is changed there.
static int save_checkpoint(Run* run, const char* dir, Err err) {
    double started = now_seconds();
    Save s = {.run = run, .is_first = run->model.world->rank == 0, .all = reports_make(run->model.world)};
    int failed = save(&s, dir, err);
    free(s.all);
    if (failed) return -1;
    run_log_event(run, "save", "path", s.w.final);
    runlog_say(&run->books->log, "saved %s (%.1f s)", s.w.final, now_seconds() - started);
    return 0;
}

// ---- the last one

typedef struct Elsewhere {
    int failed;
    char dir[CHECKPOINT_PATH], words[ERR_BYTES];
} Elsewhere;

// A new directory, which only this user can enter, in one where nobody else can put another in its place.
static int make_elsewhere(const Run* run, Elsewhere* e) {
    const char *base = getenv("TMPDIR"), *name = strrchr(run->books->out, '/');
    if (!base || !base[0] || user_cache_check_above(base, NULL) < 0) base = "/tmp";
    if (user_cache_check_above(base, e->words) < 0) return -1;
    snprintf(e->dir, sizeof e->dir, "%.1000s/ragged-%.200s-XXXXXX", base, name && name[1] ? name + 1 : "run");
    if (mkdtemp(e->dir)) return 0;
    return fail(e->words, "%s: cannot make a directory there: %s", base, strerror(errno));
}

// Where a checkpoint goes that cannot be written into the run directory, with the lines of the log that wait. 0, or -1
// with a message.
static int save_elsewhere(Run* run, Elsewhere* e, Err err) {
    Comm* c = run->model.world;
    if (c->rank == 0) e->failed = make_elsewhere(run, e);
    if (c->table->broadcast_host(c, e, sizeof *e, 0, err)) run_lost(run, err);
    if (e->failed) return fail(err, "%s", e->words);
    if (save_checkpoint(run, e->dir, err)) return -1;
    if (runlog_move(&run->books->log, e->dir, err)) warn("%s", err);
    return 0;
}

void run_save_last(Run* run) {
    enum { TRIES = 3 };
    static Elsewhere elsewhere;
    char err[ERR_BYTES], why[ERR_BYTES];
    int is_first = run->model.world->rank == 0;
    for (int i = 0; i < TRIES; i++) {
        if (i > 0) sleep(1);
        if (save_checkpoint(run, run->books->out, err) == 0) return;
        if (is_first) warn("cannot save step %" PRId64 ", try %d of %d: %s", run->state.step, i + 1, TRIES, err);
    }
    if (save_elsewhere(run, &elsewhere, why))
        die("cannot save step %" PRId64 " in %s (%s), nor elsewhere (%s); older checkpoints are untouched",
            run->state.step, run->books->out, err, why);
    if (is_first)
        warn("step %" PRId64 " is saved in %s, not in %s: %s", run->state.step, elsewhere.dir, run->books->out, err);
    strcpy(run->books->out, elsewhere.dir);
    run->books->failed = 1;
}

// A checkpoint that cannot be written does not end the run: it tries again one step later, then two, four, ...
void run_save(Run* run) {
    char err[ERR_BYTES];
    Saving* saving = &run->books->saving;
    if (save_checkpoint(run, run->books->out, err) == 0) {
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

int run_save_is_due(const Run* run) {
    int64_t step = run->state.step, every = run->config.save_every;
    return (every > 0 && step % every == 0) || step == run->books->saving.again;
}
