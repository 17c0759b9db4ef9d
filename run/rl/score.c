// score.c - --score FILE: log-probabilities of the labels of --data, a line of JSON for each document, in its order.
//
//   {"document": 0, "logprobs": [...]}           of its labels; 0 of a label that no token stands before
//   {"document": 1, "logprobs": [[...], ...]}    of a tree, a list for each segment that has labels: for each answer
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "run/step/labels.h"
#include "run/step/step.h"

// Keeps -log p of the batch's labels, each at the place of the label itself in the corpus.
static void take_kept(const Run* run, float* all) {
    const Batch* b = &run->batch;
    const Docs* docs = run->data.val->docs;
    for (int i = 0, at = 0; i < b->n_pieces; i++)
        for (int k = 0; k < piece_stretches(&b->pieces[i]); k++) {
            const Piece* p = piece_stretch(b->pieces, &b->pieces[i], k);
            float* here = all + docs->list[p->doc].start + p->first + 1;
            for (int t = 0; t < p->n_targets && p->n_labels; t++) here[t] = run->labels->kept[at + t];
            at += p->length;
        }
}

static void write_labels(FILE* out, const Docs* docs, int64_t doc, int64_t first, int64_t end, const float* all) {
    const char* comma = "";
    fputc('[', out);
    for (int64_t t = MAX(first, (int64_t)1); t < end; t++) {
        int target = 0;
        docs_learnt(docs, doc, t, 1, &target);
        if (target < 0) continue;
        fprintf(out, "%s%.9g", comma, -(double)all[docs->list[doc].start + t]);
        comma = ", ";
    }
    fputc(']', out);
}

static int has_labels(const Docs* docs, int64_t doc, int64_t first, int64_t end) {
    return docs_learnt(docs, doc, MAX(first, (int64_t)1), (int)(end - MAX(first, (int64_t)1)), NULL) > 0;
}

static void write_document(FILE* out, const Docs* docs, int64_t doc, const float* all) {
    const DocsSegment* list;
    const char* comma = "";
    int n = docs_segments(docs, doc, &list);
    fprintf(out, "{\"document\": %" PRId64 ", \"logprobs\": ", doc);
    if (n == 0) write_labels(out, docs, doc, 0, docs_length(docs, doc), all);
    if (n > 0) fputc('[', out);
    for (int i = 0; i < n; i++) {
        int64_t first = list[i].first, end = first + list[i].length;
        if (!has_labels(docs, doc, first, end)) continue;
        fputs(comma, out);
        write_labels(out, docs, doc, first, end, all);
        comma = ", ";
    }
    fputs(n > 0 ? "]}\n" : "}\n", out);
}

// A model whose weights hold a NaN says nothing about any label.
static void expect_finite(const Docs* docs, const float* all) {
    for (int64_t doc = 0; doc < docs->n; doc++)
        for (int64_t i = 0, n = docs_length(docs, doc); i < n; i++)
            if (!isfinite(all[docs->list[doc].start + i]))
                die("--score: expected log-probabilities, found %g for token %" PRId64 " of document %" PRId64
                    "; are all weights of the model finite?",
                    -(double)all[docs->list[doc].start + i], i, doc);
}

static void write_scores(const char* path, const Docs* docs, const float* all) {
    char err[ERR_BYTES], *text;
    size_t bytes;
    FILE* out = open_memstream(&text, &bytes);
    if (!out) die("--score: no memory");
    for (int64_t doc = 0; doc < docs->n; doc++) write_document(out, docs, doc, all);
    if (disk_put_stream(path, 1, out, &text, &bytes, err)) die("--score: %s", err);
}

int64_t labels_score(Run* run, float* all) {
    int64_t next = 0, tokens = 0, labels = 0;
    while (!run->stopped_by && batch_draw_val(&run->batch, run, &next, &tokens) && run->ranks->plan_val(run)) {
        labels_keep(run, run->data.val);
        labels += run->batch.n_targets, tokens = 0;
        take_kept(run, all);
    }
    int is_whole = run->ranks->end_val(run);
    if (run->cluster->unplanned) run_end_unplanned(run);
    return is_whole ? labels : -1;
}

void run_score(Run* run) {
    Err err;
    const Docs* docs = run->data.val->docs;
    float* all = (float*)calloc((size_t)docs_tokens(docs) + 1, sizeof *all);
    if (disk_may_put(run->config.score, err)) die("--score: %s", err);
    if (!all) die("--score: no memory for %" PRId64 " tokens", docs_tokens(docs));
    int64_t labels = labels_score(run, all);
    if (labels < 0) die("--score was stopped, and %s was not written", run->config.score);
    expect_finite(docs, all);
    if (run->model.world->rank == 0) write_scores(run->config.score, docs, all);
    say(stdout, "log-probabilities of %" PRId64 " labels in %s", labels, run->config.score);
    free(all);
}
