// balance_files.c - decisions and lists in checkpoints, so that a run goes on as it was; and the page for people.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "run/balance_parts.h"

// ---- files

static int lists_path(char* path, const Run* run, const char* dir, char* err, size_t errlen) {
    const Comm* c = run->model.world;
    int n = snprintf(path, CHECKPOINT_PATH, "%s/kept-%05d-of-%05d.safetensors", dir, c->rank, c->size);
    return n < CHECKPOINT_PATH ? 0 : fail(err, errlen, "%.60s...: path too long", dir);
}

int balance_save(Run* run, const char* dir, char* err, size_t errlen) {
    char path[CHECKPOINT_PATH];
    const Balance* b = run->balance;
    const BalanceDecision* d = &b->decision;
    RunState* s = &run->state;
    s->balanced = d->active ? b->setting.ranks : 0;
    memcpy(s->pruned, d->pruned, sizeof s->pruned);
    memcpy(s->sent, d->sent, sizeof s->sent);
    memcpy(s->taken, d->taken, sizeof s->taken);
    memcpy(s->v, d->v, sizeof s->v);
    for (int t = 0; t < s->balanced; t++) s->head_work[t] = b->head_work;
    if (!b->kept || !kept_layers(b->kept)) return 0;
    return lists_path(path, run, dir, err, errlen) ? -1 : kept_save(b->kept, path, err, errlen);
}

// The decision that was in force when the checkpoint was saved, where groups are as they were.
void balance_take_up(Run* run) {
    char path[CHECKPOINT_PATH], err[ERR_BYTES];
    Balance* b = run->balance;
    const RunState* s = &run->state;
    BalanceDecision* d = &b->decision;
    int t = tp_rank(&run->model);
    if (!s->balanced) return;
    d->active = 1;
    memcpy(d->pruned, s->pruned, sizeof s->pruned);
    memcpy(d->sent, s->sent, sizeof s->sent);
    memcpy(d->taken, s->taken, sizeof s->taken);
    memcpy(d->v, s->v, sizeof s->v);
    b->head_work = s->head_work[0];
    balance_make_moves(run);
    if (lists_path(path, run, run->start_from, err, sizeof err)) die("--resume: %s", err);
    // Where so little was to be left out that no list came of it, none was saved.
    if (b->kept && d->pruned[t] > 0 && !access(path, F_OK)) {
        zero_settle(&run->model);
        if (kept_load(b->kept, path, err, sizeof err)) die("--resume: %s", err);
    }
    balance_set_work(run, b->kept ? kept_layers(b->kept) : NULL);
}

void balance_write_page(Run* run) {
    char path[CHECKPOINT_PATH + 16], err[ERR_BYTES];
    const Balance* b = run->balance;
    if (!b->history) return;
    snprintf(path, sizeof path, "%s/ranks.html", run->out);
    if (history_write(b->history, path, run->out, err, sizeof err)) fprintf(stderr, "train: %s\n", err);
    else printf("what every rank did: %s\n", path);
}
