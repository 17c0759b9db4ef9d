// run.c - what every room of a run asks of its ranks; see run.h.
#include "run/run.h"

#include <inttypes.h>
#include <stdlib.h>

void run_lost(const Run* run, const char* words) {
    char out[CHECKPOINT_PATH];
    const char* saved = run->training && run->config.save_every ? text_quoted(run->books->out, out, sizeof out) : NULL;
    die("step %" PRId64 ": %s; %s%s", run->state.step + 1, words,
        saved ? "continue from the last checkpoint with --resume --out " : "start it again", saved ? saved : "");
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

Report* reports_make(const Comm* c) {
    Report* all = (Report*)calloc((size_t)c->size, sizeof(Report));
    if (!all) die("no memory for the reports of %d ranks", c->size);
    return all;
}

int reports_meet(const Run* run, const Report* mine, Report* all, Err err) {
    Comm* c = run->model.world;
    if (c->table->all_gather_host(c, all, mine, sizeof *mine, err)) run_lost(run, err);
    int r = 0;
    while (r < c->size && !all[r].failed) r++;
    if (r == c->size) return 0;
    return c->size == 1 ? fail(err, "%s", all[r].words) : fail(err, "rank %d: %s", r, all[r].words);
}

double run_median(double* x, int n) {
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && x[j - 1] > x[j]; j--) {
            double swapped = x[j];
            x[j] = x[j - 1];
            x[j - 1] = swapped;
        }
    return n ? (x[(n - 1) / 2] + x[n / 2]) / 2 : 0;
}

void run_begin_clocks(Run* run) {
    if (run->model.k->on_host) run->clock->processor_before = host_processor_seconds();
}

double run_processor_seconds(Run* run) {
    return run->model.k->on_host ? host_processor_seconds() - run->clock->processor_before : 0;
}

int run_sample_lengths(const Run* run, int* lengths) {
    int n = (int)MIN(sampler_pieces(run->data.train, SPLIT_TRAIN), (int64_t)SAMPLED_LENGTHS);
    for (int i = 0; i < n; i++) {
        SamplerPosition position = {.index = i};
        lengths[i] = sampler_train_piece(run->data.train, position).length;
    }
    return n;
}
