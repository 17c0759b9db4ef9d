// close.c - parts of a checkpoint on the nodes of the ranks that have them, and of partners; see close.h.
//
// Ranks meet three times: all have copied their part and say how long it is; partners exchange parts; all parts are
// written, which a thread does while training goes on. The last copy that all have written stays until then.
#define _GNU_SOURCE
#include "run/files/close.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "plan/base/user_cache.h"
#include "run/files/files.h"

enum {
    PIECE = 16 << 20,  // bytes of a message
    GENERATIONS = 2    // in DIR: the last one, and one on its way
};

static const char history_name[] = "history";  // a file of each part: the hash of all losses so far

static struct Copies {
    Run* run;  // NULL: there is no --close-copy
    Writing writing;
    char dir[CHECKPOINT_PATH];  // DIR/ragged-KEY
    int keeper, partner;        // who keeps this rank's part; whose part this one keeps. Itself: nobody
    int64_t done;               // the last one that all have written, -1: none
    uint64_t history;
    StateCopy other;  // the partner's part
    int has_told;
    int is_taken;  // the run goes on from close copies, and its newest checkpoint was of step far
    int64_t far;
} copies;

static int is_wanted(const Run* run) { return run->config.close_copy && run->books->claims; }

void close_settle(Run* run) {
    const Config* c = &run->config;
    if (!is_wanted(run)) return;
    if (!c->close_copy[0]) die("--close-copy: expected a directory on every node, as /dev/shm, found nothing");
    if (run->model.k->no_results)
        die("--close-copy: nothing is computed here, so there is nothing to keep; leave it out");
    if (!c->save_every)
        die("--close-copy: expected checkpoints in --out, too, found --save-every 0; nodes may be lost together");
}

// ---- who keeps whose part

// The shift of ranks that puts most parts on another node; the least of these.
static int best_shift(const Comm* c) {
    int best = 0, most = -1;
    for (int shift = 1; shift < c->size; shift++) {
        int n = 0;
        for (int r = 0; r < c->size; r++) n += c->node[r] != c->node[(r + shift) % c->size];
        if (n > most) best = shift, most = n;
        if (n == c->size) break;
    }
    return best;
}

// The rank that speaks for its node.
static int is_leader(const Comm* c) {
    int r = 0;
    while (c->node[r] != c->node[c->rank]) r++;
    return r == c->rank;
}

// ---- where parts are

static int part_dir(char path[CHECKPOINT_PATH], int owner, int ranks, int of_partner, Err err) {
    char name[64];
    snprintf(name, sizeof name, "rank-%05d-of-%05d%s", owner, ranks, of_partner ? ".partner" : "");
    return disk_join(path, copies.dir, name, err);
}

// Nobody else may have put it there, or read it. 0; 1: it is not there; -1 with a message.
static int check_dir(Err err) {
    struct stat s;
    int status = user_cache_check_above(copies.run->config.close_copy, err);
    if (status < 0) return -1;
    if (status || lstat(copies.dir, &s)) return fail(err, "%s: there is none any more", copies.dir), 1;
    if (S_ISDIR(s.st_mode) && s.st_uid == geteuid() && !(s.st_mode & 077)) return 0;
    return fail(err, "%s: not trusted: expected a directory that only this user can enter", copies.dir);
}

static void make(Run* run) {
    Comm* c = run->model.world;
    struct stat s = {0};
    char name[32], err[ERR_BYTES], *path = realpath(run->books->out, NULL);
    uint64_t key = 0;
    if (c->rank == 0 && !stat(run->books->out, &s) && path) key = hash_bytes(path, strlen(path), (uint64_t)s.st_ino);
    free(path);
    run_tell_all(c, &key, sizeof key);
    snprintf(name, sizeof name, "ragged-%016" PRIx64, key);
    if (disk_join(copies.dir, run->config.close_copy, name, err)) die("--close-copy: %s", err);
    int shift = best_shift(c);
    copies.run = run, copies.done = -1;
    copies.keeper = (c->rank + shift) % c->size, copies.partner = (c->rank + c->size - shift) % c->size;
}

static size_t parts_bytes(const Run* run) {
    int rank = run->model.world->rank;
    return state_copy_bytes(run, rank) + (copies.partner != rank ? state_copy_bytes(run, copies.partner) : 0);
}

size_t close_copy_bytes(const Run* run) { return copies.run ? parts_bytes(run) : 0; }
size_t close_stage_bytes(const Run* run) {
    return copies.run && !run->model.k->on_host && run->model.world->size > 1 ? 2 * (size_t)PIECE : 0;
}
size_t close_files_bytes(const Run* run) {
    enum { TMPFS = 0x01021994, RAMFS = (int)0x858458f6 };  // magic numbers of statfs(2)
    struct statfs s;
    if (!copies.run || statfs(run->config.close_copy, &s)) return 0;
    return (int)s.f_type == TMPFS || (int)s.f_type == RAMFS ? GENERATIONS * parts_bytes(run) : 0;
}

// ---- keeping a part

// Before another one comes the last that all ranks have written stays alone.
static int remove_other(void* context, const char* path, const char* name, Err err) {
    (void)context;
    return checkpoint_step(name) == copies.done ? 0 : disk_remove_tree(path, err);
}

static int write_part(int owner, const StateCopy* part, Err err) {
    const Comm* c = copies.run->model.world;
    CheckpointWriter w;
    char dir[CHECKPOINT_PATH], history[17];
    snprintf(history, sizeof history, "%016" PRIx64, copies.history);
    if (check_dir(err) || part_dir(dir, owner, c->size, owner != c->rank, err) || disk_make_dirs(dir, err) ||
        disk_visit(dir, remove_other, NULL, err) || checkpoint_begin(&w, dir, copies.writing.step, err))
        return -1;
    int failed = checkpoint_write_file(&w, history_name, history, 16, err);
    for (const CopiedFile* f = part->files; f < part->files + part->n && !failed; f++)
        failed = checkpoint_write_file(&w, f->name, f->bytes, f->n, err);
    if (!failed) return MIN(checkpoint_commit(&w, 0, err), 0);
    checkpoint_abort(&w);
    return -1;
}

static int write_parts(Writing* own) {
    int rank = own->run->model.world->rank;
    char* err = own->words;
    if (state_copy_check(&own->copy, copies.dir, err) || write_part(rank, &own->copy, err)) return -1;
    return copies.partner == rank ? 0 : write_part(copies.partner, &copies.other, err);
}

// ---- a copy

// This rank's part, of which all tensors lie in memory.
static int copy_part(Err err) {
    Run* run = copies.run;
    StateCopy* own = &copies.writing.copy;
    SafeImage room = {run->books->close_room, state_copy_bytes(run, run->model.world->rank), 0};
    if (state_copy(run, own, room, copies.dir, err)) return -1;
    for (int i = 0; i < own->n; i++)
        if (!own->files[i].bytes) return fail(err, "the state has no room in memory");
    return 0;
}

// Learns names and sizes of the partner's part, and finds places: for tensors behind this rank's own.
static int place_partner(Err err) {
    Run* run = copies.run;
    Comm* c = run->model.world;
    StateCopy* parts = (StateCopy*)run_ask_all(run, c, &copies.writing.copy, sizeof *parts);
    char* at = run->books->close_room + state_copy_bytes(run, c->rank);
    int failed = 0;
    copies.other = copies.partner == c->rank ? (StateCopy){.n = 0} : parts[copies.partner];
    for (CopiedFile* f = copies.other.files; f < copies.other.files + copies.other.n; f++) {
        int is_large = copied_is_tensors(f);
        f->bytes = is_large ? at : (char*)malloc(MAX(f->n, (size_t)1));
        if (is_large) at += f->n;
        else if (!f->bytes) failed = fail(err, "no memory for %zu bytes of a partner's %s", f->n, f->name);
    }
    free(parts);
    return failed;
}

// Sends a file to the keeper and receives one from the partner, through the device's memory: the host's on a CPU.
static void exchange(const CopiedFile* own, const CopiedFile* other) {
    const Model* model = &copies.run->model;
    const Kernels* k = model->k;
    char* stage = copies.run->books->close_stage;
    for (size_t at = 0; at < MAX(own->n, other->n); at += PIECE) {
        size_t out = own->n > at ? MIN(own->n - at, (size_t)PIECE) : 0;
        size_t in = other->n > at ? MIN(other->n - at, (size_t)PIECE) : 0;
        Transfer send = {copies.keeper, stage || !out ? stage : own->bytes + at, out};
        Transfer receive = {copies.partner, stage ? stage + PIECE : in ? other->bytes + at : NULL, in};
        if (stage && out) k->upload(stage, own->bytes + at, out, model->s);
        comm_send_receive(model->world, &send, out > 0, &receive, in > 0, model->s);
        if (stage && in) k->download(other->bytes + at, receive.data, in, model->s);
        if (stage) k->synchronize(model->s);
    }
}

static void exchange_parts(void) {
    Run* run = copies.run;
    Comm* c = run->model.world;
    CommPurpose purpose = c->purpose;
    char err[ERR_BYTES];
    if (copies.partner == c->rank) return;
    c->purpose = COMM_STATE;
    for (int i = 0; i < COPIED_FILES; i++) exchange(&copies.writing.copy.files[i], &copies.other.files[i]);
    c->purpose = purpose;
    if (c->table->wait(c, run->model.s, err)) run_lost(run, err);
}

static int leave(void) {
    state_copy_free(&copies.other);
    return writing_leave(&copies.writing, -1);
}

static int meet(int failed, const char* words) {
    char err[ERR_BYTES];
    if (!run_meet(copies.run, failed, words, err)) return 0;
    if (copies.run->model.world->rank == 0)
        warn("--close-copy: step %" PRId64 " is not kept: %s; training goes on, with %s", copies.writing.step, err,
             copies.done < 0 ? "none yet" : "the one before");
    return leave();
}

int close_is_due(const Run* run) {
    return copies.run && run->state.step % run->config.close_every == 0 && run->state.step < run->config.steps;
}

void close_begin(Run* run) {
    char why[ERR_BYTES];
    if (copies.writing.is_begun) return;  // the one before is being written still
    copies.history = run->state.loss_hash;
    writing_begin(&copies.writing, run);
    if (meet(copy_part(why), why) || meet(place_partner(why), why)) return;
    exchange_parts();
    writing_start(&copies.writing, write_parts, 1);
}

int close_is_written(void) { return writing_is_done(&copies.writing); }

void close_end(Run* run) {
    if (!copies.writing.is_begun) return;
    run->books->saving.all_written &= ~WRITTEN_CLOSE;
    writing_wait(&copies.writing);
    if (meet(copies.writing.failed, copies.writing.words)) return;
    copies.done = copies.writing.step;
    if (!copies.has_told++) writing_tell(&copies.writing, "close copy", copies.dir);  // more lines would say the same
    leave();
}

// ---- the newest step of which all parts are there

// A part that a rank's node has, which that has looked at.
typedef struct Kept {
    int64_t step;
    uint64_t history;
    int owner, ranks, of_partner, rank;
} Kept;

typedef struct KeptList {
    Kept* all;
    int n, rank;    // this rank
    int64_t after;  // older steps are not looked at
} KeptList;

static void note_step(KeptList* list, const char* path, int64_t step, Kept part) {
    char dir[CHECKPOINT_PATH], why[ERR_BYTES];
    size_t n;
    if (checkpoint_path(dir, path, step, NULL)) return;
    char* history = checkpoint_verify(dir, why) ? NULL : checkpoint_read_file(dir, history_name, &n, why);
    Kept* more = history ? (Kept*)realloc(list->all, sizeof *more * ((size_t)list->n + 1)) : NULL;
    if (!history) warn("--close-copy: %s", why);
    if (more) {
        part.step = step, part.history = strtoull(history, NULL, 16), part.rank = list->rank;
        list->all = more, list->all[list->n++] = part;
    }
    free(history);
}

static int note_part(void* context, const char* path, const char* name, Err err) {
    KeptList* list = (KeptList*)context;
    Kept part = {0};
    CheckpointList steps;
    int n = 0;
    (void)err;
    if (sscanf(name, "rank-%d-of-%d%n", &part.owner, &part.ranks, &n) < 2 || checkpoint_list(&steps, path, NULL))
        return 0;
    part.of_partner = name[n] != 0;
    for (int i = 0; i < steps.n; i++)
        if (steps.all[i].step > list->after) note_step(list, path, steps.all[i].step, part);
    free(steps.all);
    return 0;
}

// Lists on all ranks what all nodes have; the leader of each node looks.
static KeptList list_kept(int64_t after) {
    Run* run = copies.run;
    Comm* c = run->model.world;
    KeptList list = {NULL, 0, c->rank, after};
    char err[ERR_BYTES];
    int status = is_leader(c) ? check_dir(err) : 1;
    if (status == 0 && disk_is_dir(copies.dir)) status = disk_visit(copies.dir, note_part, &list, err);
    if (status < 0) warn("--close-copy: %s", err);
    int most = MAX((int)run_most(run, c, list.n), 1), n = 0;
    Kept* mine = (Kept*)calloc((size_t)most, sizeof *mine);
    if (!mine) die("no memory for a list of %d parts", most);
    if (list.n) memcpy(mine, list.all, (size_t)list.n * sizeof *mine);
    free(list.all);
    list.all = (Kept*)run_ask_all(run, c, mine, (size_t)most * sizeof *mine);
    free(mine);
    for (int i = 0; i < most * c->size; i++)
        if (list.all[i].ranks) list.all[n++] = list.all[i];
    list.n = n;
    return list;
}

// The first that has the part of this owner, of the same copy; NULL: nobody has.
static const Kept* find_part(const KeptList* list, const Kept* like, int owner) {
    for (const Kept* k = list->all; k < list->all + list->n; k++)
        if (k->owner == owner && k->step == like->step && k->ranks == like->ranks && k->history == like->history)
            return k;
    return NULL;
}

static int lacks(const KeptList* list, const Kept* like) {  // the first owner whose part nobody has; its ranks: none
    int owner = 0;
    while (owner < like->ranks && find_part(list, like, owner)) owner++;
    return owner;
}

// A part of the newest copy that is whole; NULL: there is none. *torn: of one that is newer, and not whole.
static const Kept* choose(const KeptList* list, const Kept** torn) {
    const Kept* best = NULL;
    *torn = NULL;
    for (const Kept* k = list->all; k < list->all + list->n; k++) {
        int is_whole = lacks(list, k) == k->ranks;
        const Kept** of = is_whole ? &best : torn;
        if (!*of || k->step > (*of)->step) *of = k;
    }
    if (best && *torn && (*torn)->step <= best->step) *torn = NULL;
    return best;
}

// ---- it becomes a checkpoint of the run

static int copy_file(void* context, const char* path, const char* name, Err err) {
    size_t n;
    if (!strcmp(name, "DONE") || !strcmp(name, history_name)) return 0;
    char* bytes = disk_read_file(path, SIZE_MAX - 1, &n, err);
    int failed = !bytes || checkpoint_write_file((CheckpointWriter*)context, name, bytes, n, err);
    free(bytes);
    return failed ? -1 : 0;
}

// Those of which this rank is the first to have them.
static int copy_parts(const KeptList* list, const Kept* like, CheckpointWriter* w, Err err) {
    for (int owner = 0; owner < like->ranks; owner++) {
        char dir[CHECKPOINT_PATH], path[CHECKPOINT_PATH];
        const Kept* k = find_part(list, like, owner);
        if (k->rank != list->rank) continue;
        if (part_dir(dir, owner, k->ranks, k->of_partner, err) || checkpoint_path(path, dir, k->step, err) ||
            disk_visit(path, copy_file, w, err))
            return -1;
    }
    return 0;
}

static int take_copied(void* context, const char* path, const char* name, Err err) {
    (void)path;
    return strcmp(name, "SAVING") ? checkpoint_take_file((CheckpointWriter*)context, name, err) : 0;
}

static int commit(CheckpointWriter* w, Err err) {
    if (!disk_visit(w->dir, take_copied, w, err)) return MIN(checkpoint_commit(w, 0, err), 0);
    checkpoint_abort(w);
    return -1;
}

static int restore(const KeptList* list, const Kept* like, Err err) {
    const Run* run = copies.run;
    const char* out = run->books->out;
    char why[ERR_BYTES];
    int is_first = list->rank == 0;
    CheckpointWriter w = {0}, part;  // of rank 0, which lists the files; of this rank
    if (run_meet(run, is_first && checkpoint_begin(&w, out, like->step, why), why, err)) return -1;
    int failed = checkpoint_join(&part, out, like->step, why) || copy_parts(list, like, &part, why);
    if (!run_meet(run, failed, why, err)) return run_meet(run, is_first && commit(&w, why), why, err);
    if (is_first) checkpoint_abort(&w);
    return -1;
}

void close_find(Run* run) {
    char err[ERR_BYTES], far[CHECKPOINT_PATH];
    int64_t newest = -1;
    const Kept* torn;
    if (!is_wanted(run) || !run->config.close_copy[0]) return;
    make(run);
    int first = run->model.world->rank == 0;
    if (!run->config.resume || run->config.resume_from) return;
    if (first && checkpoint_latest(run->books->out, far, &newest, err) <= 0) newest = -1;
    run_tell_all(run->model.world, &newest, sizeof newest);
    KeptList list = list_kept(newest);
    const Kept* best = choose(&list, &torn);
    if (torn && first)
        warn("--close-copy: of step %" PRId64
             " the part of rank %d is on no node that is here; an older state is taken",
             torn->step, lacks(&list, torn));
    int failed = best ? restore(&list, best, err) : 0;
    if (failed && first) warn("--close-copy: step %" PRId64 " cannot become a checkpoint: %s", best->step, err);
    if (best && !failed) {
        copies.far = newest, copies.is_taken = 1;
        say(stdout,
            "resume  step %" PRId64 ", from close copies of %d rank%s; the newest checkpoint was of step %" PRId64,
            best->step, best->ranks, best->ranks > 1 ? "s" : "", newest);
    }
    free(list.all);
}

// ---- training begins, and ends

void close_start(Run* run) {
    char err[ERR_BYTES];
    if (!copies.run) return;
    int failed = disk_make_dirs(run->config.close_copy, err) || user_cache_check_above(run->config.close_copy, err) ||
                 (is_leader(run->model.world) && disk_remove_tree(copies.dir, err)) ||
                 (mkdir(copies.dir, 0700) && errno != EEXIST && fail(err, "%s: %s", copies.dir, strerror(errno)));
    if (failed) warn("--close-copy: %s", err);  // a copy will say it again
    if (!copies.is_taken) return;
    char members[64];
    snprintf(members, sizeof members, ", \"checkpoint\": %" PRId64, copies.far);
    runlog_event(&run->books->log, "from close copies", run->state.step, members);
}

void close_finish(Run* run) {
    char err[ERR_BYTES];
    if (!copies.run) return;
    if (!run->books->failed && is_leader(run->model.world) && disk_remove_tree(copies.dir, err))
        warn("--close-copy: %s", err);
    copies.run = NULL;
}
