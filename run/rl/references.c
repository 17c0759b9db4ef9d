// references.c - the log-probabilities of the model that training stays near, where the data do not have them: those of
// the starting model, found by it before the first step.
//
// They are kept in the run, since a run that goes on has another model: references.bin holds the hash of the documents,
// the number of their tokens, the hash of what follows, and a float for each token, 0 where it is no label.
#include <math.h>
#include <stdlib.h>

#include "run/step/labels.h"
#include "run/step/step.h"

typedef struct ReferenceHead {
    char magic[8];  // "RAGGEDLP"
    uint64_t content, tokens, hash;
} ReferenceHead;

static ReferenceHead head_of(const Docs* docs, const float* all) {
    uint64_t n = (uint64_t)docs_tokens(docs);
    return (ReferenceHead){"RAGGEDR", docs_content(docs), n, hash_bytes(all, (size_t)n * sizeof *all, 0)};
}

// Evaluates all documents as --score does.
static void find(Run* run, float* all) {
    char err[ERR_BYTES];
    Sampler* val = run->data.val;
    double started = now_seconds();
    say(stdout, "references of every answer, by the starting model, before the first step ...");
    fflush(stdout);
    if (sampler_open(&run->data.val, run->data.docs, run->config.context, 1, 0, err)) die("--data: %s", err);
    int64_t labels = labels_score(run, all);
    sampler_close(run->data.val);
    run->data.val = val;
    if (labels < 0) die("stopped before the first step: references of the starting model are not all known");
    say(stdout, "references of %lld labels, in %.1f s", (long long)labels, now_seconds() - started);
}

static void keep(const Run* run, const char* path, const float* all) {
    char err[ERR_BYTES];
    ReferenceHead head = head_of(run->data.docs, all);
    size_t n = sizeof head + (size_t)head.tokens * sizeof *all;
    char* bytes = (char*)malloc(n);
    if (!bytes) die("no memory for references");
    memcpy(bytes, &head, sizeof head);
    memcpy(bytes + sizeof head, all, n - sizeof head);
    if (disk_put(path, bytes, n, 1, err)) die("references: %s", err);
    free(bytes);
}

// Reads what a run kept. Returns 1 if it is there and of these documents.
static int read_kept(const Run* run, const char* path, float* all) {
    char err[ERR_BYTES];
    ReferenceHead head;
    size_t wanted = sizeof head + (size_t)docs_tokens(run->data.docs) * sizeof *all, n = 0;
    char* bytes = disk_read_file(path, wanted + 1, &n, err);
    int is_it = bytes && n == wanted;
    if (is_it) memcpy(all, bytes + sizeof head, n - sizeof head), head = head_of(run->data.docs, all);
    is_it = is_it && !memcmp(bytes, &head, sizeof head);
    free(bytes);
    return is_it;
}

void references_find(Run* run) {
    char path[CHECKPOINT_PATH], err[ERR_BYTES];
    Docs* docs = run->data.docs;
    Comm* world = run->model.world;
    int known = 1;
    if (!run->labels || !run->labels->lacks_references || run->model.k->no_results) return;
    float* all = (float*)calloc((size_t)docs_tokens(docs) + 1, sizeof *all);
    if (!all) die("no memory for references of %lld tokens", (long long)docs_tokens(docs));
    run_path(path, run->books->out, "references.bin");
    if (run->config.resume) {
        if (world->rank == 0) known = read_kept(run, path, all);
        run_tell_all(world, &known, sizeof known);
        if (!known)
            die("--resume: expected references of the starting model for these documents in %s, found none that are "
                "whole; put them into the data (--score by that model), or start a new run with --init",
                path);
        run_tell_all(world, all, (size_t)docs_tokens(docs) * sizeof *all);
    } else {
        find(run, all);
        if (world->rank == 0) keep(run, path, all);
    }
    if (docs_set_references(docs, all, err)) die("%s", err);
    free(all);
}
