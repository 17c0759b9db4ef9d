// run.c - functions that every room of a run asks; see run.h.
#include "run/run.h"

#include <inttypes.h>
#include <stdlib.h>

#include "data/json.h"
#include "data/sampler_join.h"
#include "plan/base/sort.h"

Config run_settled_config(const Run* run) {
    Config c = run->config;
    c.layout = run->settled.layout, c.strategies = run->settled.strategies;
    if (run->strategies) return c;
    c.capacity = run->settled.capacity, c.rank_capacity = run->settled.rank_capacity;
    c.tp = run->settled.tp, c.pp = run->settled.pp;
    return c;
}

void run_path(char path[CHECKPOINT_PATH], const char* dir, const char* name) {
    char err[ERR_BYTES];
    if (disk_join(path, dir, name, err)) die("%s", err);
}

double run_median(double* x, int n) {
    sort_doubles(x, (size_t)n);
    return n ? (x[(n - 1) / 2] + x[n / 2]) / 2 : 0;
}

int run_sample_lengths(const Run* run, int* lengths) {
    int n = (int)MIN(sampler_pieces(run->data.train, SPLIT_TRAIN), (int64_t)SAMPLED_LENGTHS);
    for (int i = 0; i < n; i++) lengths[i] = sampler_train_piece(run->data.train, (SamplerPosition){.index = i}).length;
    return n;
}

int run_joins(const Run* run) {
    const Docs* docs = run->data.docs;
    int asked = !strcmp(run->config.shared_prefix, "auto") && !run->labels;  // labels have weights by document
    return run->training && docs && docs_may_join(docs) && asked;
}

const char* run_joined(int64_t tokens, int64_t drawn, char words[96]) {
    snprintf(words, 96, "documents that begin alike: %" PRId64 " tokens for %" PRId64 ", %.1f %% less", tokens, drawn,
             100 * (1 - (double)tokens / (double)MAX(drawn, 1)));
    return words;
}

const char* run_spared(const TreeCounts* x, char words[160]) {
    snprintf(words, 160,
             "%" PRId64 " trees of %" PRId64 " segments: %" PRId64 " tokens, their paths written out %" PRId64
             ", %.2f times as many",
             x->trees, x->segments, x->tokens, x->path_tokens, (double)x->path_tokens / (double)MAX(x->tokens, 1));
    return words;
}

int run_has_trees(const Run* run) {
    const Data* d = &run->data;
    return run_joins(run) || (d->docs && docs_has_trees(d->docs)) || (d->val_docs && docs_has_trees(d->val_docs));
}

void run_set_paces(Run* run) {
    Clock* x = run->clock;
    int ranks = run->model.comm->size;
    x->setting.speeds = NULL;
    for (int r = 0; r < ranks; r++) {
        x->paces[r] = layout_pace(&run->model.ranks->layout, &run->model.whole, x->stage_speeds + r, ranks);
        if (x->paces[r] != 1) x->setting.speeds = x->paces;
    }
}

void run_log_event(Run* run, const char* event, const char* name, const char* value) {
    size_t n = strlen(value), room = strlen(name) + 6 * n + 16;
    char* member = (char*)malloc(room);
    if (!member) return;
    int at = snprintf(member, room, ", \"%s\": ", name);
    member[(size_t)at + json_quote(member + at, value, n)] = 0;
    runlog_event(&run->books->log, event, run->state.step, member);
    free(member);
}

// ---- what ranks ask each other

void run_lost(const Run* run, const char* words) {
    char out[CHECKPOINT_PATH];
    const char* saved = run->training && run->config.save_every ? text_quoted(run->books->out, out, sizeof out) : NULL;
    die("step %" PRId64 ": %s; %s%s", run->state.step + 1, words,
        saved ? "continue from the last checkpoint with --resume --out " : "start it again", saved ? saved : "");
}

void run_tell_all(Comm* c, void* what, size_t bytes) {
    char err[ERR_BYTES];
    if (c->table->broadcast_host(c, what, bytes, 0, err)) die("%s", err);
}

void* run_ask_all(const Run* run, Comm* c, const void* mine, size_t bytes) {
    char err[ERR_BYTES];
    void* all = calloc((size_t)c->size, bytes);
    if (!all) die("no memory for what %d ranks say", c->size);
    if (c->table->all_gather_host(c, all, mine, bytes, err)) run_lost(run, err);
    return all;
}

double run_most(const Run* run, Comm* c, double mine) {
    double most = mine, *all = (double*)run_ask_all(run, c, &mine, sizeof mine);
    for (int r = 0; r < c->size; r++) most = MAX(most, all[r]);
    free(all);
    return most;
}

int run_meet(const Run* run, int failed, const char* words, Err err) {
    Err mine = "";
    Comm* c = run->model.world;
    if (failed) snprintf(mine, sizeof mine, "%s", words[0] ? words : "it failed");
    Err* all = (Err*)run_ask_all(run, c, mine, sizeof mine);
    int r = 0;
    while (r < c->size && !all[r][0]) r++;
    if (r < c->size && c->size == 1) fail(err, "%s", all[r]);
    else if (r < c->size) fail(err, "rank %d: %s", r, all[r]);
    free(all);
    return r < c->size ? -1 : 0;
}
