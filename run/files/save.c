// save.c - a checkpoint of the run.
//
// A save is the work of all ranks: each writes the optimizer state that it owns, rank 0 the rest. They meet five times,
// with a report from each: the directory is there; all see it; all have copied what they will write; all files are
// written; the save is committed. Whatever fails where, all ranks learn of it at the next meeting.
//
// Between the third and the fourth meeting training goes on where a copy has room in memory: a thread writes, and every
// step ranks tell each other whether theirs has (Agreement.written).
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "data/model_files.h"
#include "plan/base/user_cache.h"
#include "run/files/close.h"
#include "run/files/files.h"
#include "run/files/saving.h"

void run_check_saving(Run* run) {
    char err[ERR_BYTES];
    if (!run->books->claims) return;
    close_settle(run);
    if (run->model.world->rank > 0) return;  // rank 0 writes these
    RunState saved = run_saved_state(run);
    Shape base = shape_base(&run->model.whole);
    if (hf_config_check(&base, err) || run_state_check(&saved, &run->config, err))
        die("no checkpoint of this run could be read again: %s", err);
}

size_t save_copy_bytes(const Run* run) {
    if (!run->books->claims || !run->config.save_every || run->model.k->no_results) return 0;
    return state_copy_bytes(run, run->model.world->rank);
}

// ---- a save

// The save under way.
static Writing writing;
static CheckpointWriter writer;

static int is_first(const Run* run) { return run->model.world->rank == 0; }

static int write_files(Writing* x) {
    char* err = x->words;
    if (state_copy_check(&x->copy, writer.dir, err)) return -1;
    for (const CopiedFile* f = x->copy.files; f < x->copy.files + x->copy.n; f++)
        if (f->bytes ? checkpoint_write_file(&writer, f->name, f->bytes, f->n, err)
                     : checkpoint_take_file(&writer, f->name, err))
            return -1;
    return 0;
}

// Rank 0, which has listed its own files, hears size and hash of the others' optimizer state, and commits.
static int commit(const Run* run, Err err) {
    Comm* c = run->model.world;
    uint64_t mine[] = {writer.bytes, writer.hash};
    uint64_t(*all)[2] = (uint64_t(*)[2])run_ask_all(run, c, mine, sizeof mine);
    int failed = 0;
    for (int r = 1; r < c->size && is_first(run) && !failed; r++) {
        char name[OPTIMIZER_NAME];
        optimizer_name(name, r, c->size);
        failed = checkpoint_add_file(&writer, name, all[r][0], all[r][1], err);
    }
    free(all);
    if (!is_first(run)) return 0;
    if (failed) return checkpoint_abort(&writer), -1;
    int saved = checkpoint_commit(&writer, run->config.keep, err);
    if (saved > 0) warn("%s", err);
    return MIN(saved, 0);
}

// ---- a checkpoint of run->state in the run directory `dir`
//
// All ranks begin and end it; both end the program where one is lost. 0, or -1 with a message on all ranks: then
// nothing is changed there, and nothing is under way.

static int drop(const Run* run) {
    if (is_first(run)) checkpoint_abort(&writer);
    return writing_leave(&writing, -1);
}

static int begin(Run* run, const char* dir, Err err) {
    char why[ERR_BYTES];
    writing_begin(&writing, run);
    run->books->saving.begun = writing.began, writer = (CheckpointWriter){0};
    if (run_meet(run, is_first(run) && checkpoint_begin(&writer, dir, run->state.step, why), why, err) ||
        run_meet(run, !is_first(run) && checkpoint_join(&writer, dir, run->state.step, why), why, err) ||
        run_meet(run, state_copy(run, &writing.copy, run->books->saving.copy, writer.dir, why), why, err))
        return drop(run);
    writing_start(&writing, write_files, writing.copy.files[writing.copy.n - 1].bytes != NULL);
    return 0;
}

static int end(Run* run, Err err) {
    char apart[48] = "", why[ERR_BYTES];
    double started = now_seconds();
    run->books->saving.all_written &= ~WRITTEN_FAR;
    writing_wait(&writing);
    if (run_meet(run, writing.failed, writing.words, err)) return drop(run);
    if (run_meet(run, commit(run, why), why, err)) return writing_leave(&writing, -1);
    writing.blocked += now_seconds() - started;
    double seconds = writing_tell(&writing, "save", writer.final);
    if (writing.blocked < 0.9 * seconds) snprintf(apart, sizeof apart, ", %.2f s of it between steps", writing.blocked);
    runlog_say(&run->books->log, "saved %s (%.1f s%s)", writer.final, seconds, apart);
    return writing_leave(&writing, 0);
}

static int save_checkpoint(Run* run, const char* dir, Err err) { return begin(run, dir, err) ? -1 : end(run, err); }

// ---- the last one

// A new directory, which only this user can enter, in one where nobody else can put another in its place.
static int make_elsewhere(const Run* run, char dir[CHECKPOINT_PATH], Err err) {
    const char *base = getenv("TMPDIR"), *name = strrchr(run->books->out, '/');
    if (!base || !base[0] || user_cache_check_above(base, NULL) < 0) base = "/tmp";
    if (user_cache_check_above(base, err) < 0) return -1;
    snprintf(dir, CHECKPOINT_PATH, "%.1000s/ragged-%.200s-XXXXXX", base, name && name[1] ? name + 1 : "run");
    if (mkdtemp(dir)) return 0;
    return fail(err, "%s: cannot make a directory there: %s", base, strerror(errno));
}

// Where a checkpoint goes that cannot be written into the run directory, with the lines of the log that wait. 0, or -1
// with a message.
static int save_elsewhere(Run* run, char dir[CHECKPOINT_PATH], Err err) {
    char why[ERR_BYTES];
    if (run_meet(run, is_first(run) && make_elsewhere(run, dir, why), why, err)) return -1;
    run_tell_all(run->model.world, dir, CHECKPOINT_PATH);
    if (save_checkpoint(run, dir, err)) return -1;
    if (runlog_move(&run->books->log, dir, err)) warn("%s", err);
    return 0;
}

void run_save_last(Run* run) {
    enum { TRIES = 3 };
    char err[ERR_BYTES], why[ERR_BYTES], elsewhere[CHECKPOINT_PATH] = "";
    for (int i = 0; i < TRIES; i++) {
        if (i > 0) sleep(1);
        if (save_checkpoint(run, run->books->out, err) == 0) return;
        if (is_first(run)) warn("cannot save step %" PRId64 ", try %d of %d: %s", run->state.step, i + 1, TRIES, err);
    }
    if (save_elsewhere(run, elsewhere, why))
        die("cannot save step %" PRId64 " in %s (%s), nor elsewhere (%s); older checkpoints are untouched",
            run->state.step, run->books->out, err, why);
    if (is_first(run))
        warn("step %" PRId64 " is saved in %s, not in %s: %s", run->state.step, elsewhere, run->books->out, err);
    strcpy(run->books->out, elsewhere);
    run->books->failed = 1;
}

// ---- those before it

// A checkpoint that cannot be written does not end the run: it tries again one step later, then two, four, ...
static void try_again(Run* run, const char* why) {
    Saving* saving = &run->books->saving;
    int64_t step = writing.step, every = run->config.save_every, now = run->state.step;
    int64_t next = every > 0 ? now / every * every + every : INT64_MAX;
    saving->wait = MIN(MAX(2 * saving->wait, 1), 1 << 20);
    saving->again = MIN(now + saving->wait, MIN(next, run->config.steps));
    if (run->model.world->rank == 0)
        warn("cannot save step %" PRId64 ": %s; older checkpoints are untouched; trying again at step %" PRId64, step,
             why, saving->again);
}

int save_is_due_by_clock(const Run* run) {
    int every = run->config.save_every;
    return every < 0 && now_seconds() - run->books->saving.begun >= -every;
}

int save_is_written(void) { return writing_is_done(&writing); }

void run_save_end(Run* run) {
    char err[ERR_BYTES];
    Saving* saving = &run->books->saving;
    if (!writing.is_begun) return;
    if (end(run, err)) {
        try_again(run, err);
        return;
    }
    saving->done = writing.step;
    saving->wait = saving->again = 0;
}

void run_save(Run* run) {
    char err[ERR_BYTES];
    run_save_end(run);
    if (begin(run, run->books->out, err)) try_again(run, err);
    else if (!writing.is_apart) run_save_end(run);
}

int run_save_is_due(const Run* run) {
    const Saving* saving = &run->books->saving;
    int64_t step = run->state.step, every = run->config.save_every;
    int none = saving->done < 0 && saving->again == 0 && !writing.is_begun;
    return (every > 0 && step % every == 0) || saving->is_due || step == saving->again || (none && close_is_due(run));
}
