// dump.c - --dump-grads: what one step computes, for comparisons with other programs.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "run/run.h"

// Logits of pass i on the device, fp32, to where its documents stand in the order in which they were drawn.
static void dump_logits(Run* run, int i, const int64_t* first, float* logits, float* document) {
    Model* m = &run->model;
    const Batch* b = &run->batch;
    const RankPass* pass = &b->planned->passes[i];
    int V = m->shape.V, n = 0;
    Row row = batch_row(run, i);
    model_forward(m, &row);
    for (int g = pass->first_group; g < pass->first_group + pass->n_groups; g++)
        for (int d = 0; d < b->planned->groups[g].mb->n_docs; d++) {
            int drawn = b->planned->plan.docs[b->planned->groups[g].mb->first_doc + d];
            for (int t = 0; t < b->pieces[drawn].length; t++, n++) {
                token_logits(run, n);
                memcpy(logits + (first[drawn] + t) * V, run->host_logits, (size_t)V * sizeof(float));
                document[first[drawn] + t] = (float)b->pieces[drawn].doc;
            }
        }
}

void run_dump(Run* run) {
    enum { MOST_BYTES = 256 << 20 };
    const Batch* b = &run->batch;
    run_micro_batches(run, run->data.train, 1);
    zero_reduce(&run->model);
    double loss = loss_sum(run) / (double)MAX(b->n_targets, 1);
    int V = run->model.shape.V,
        n_extra = run->model.world->size == 1 && b->n_tokens * V <= MOST_BYTES / (int)sizeof(float) ? 2 : 0;
    SafeTensor extra[2] = {{"logits", DT_F32, 2, {b->n_tokens, V}, NULL, (size_t)(b->n_tokens * V) * sizeof(float), 0},
                           {"documents", DT_F32, 1, {b->n_tokens}, NULL, (size_t)b->n_tokens * sizeof(float), 0}};
    float* logits = n_extra ? (float*)malloc(extra[0].bytes + extra[1].bytes) : NULL;
    int64_t* first = (int64_t*)calloc((size_t)b->n_pieces + 1, sizeof(int64_t));
    if (!first || (n_extra && !logits))
        die("--dump-grads: no memory for the logits of %" PRId64 " tokens", b->n_tokens);
    for (int i = 0; i < b->n_pieces; i++) first[i + 1] = first[i] + b->pieces[i].length;
    for (int i = 0; i < b->n_rows && n_extra; i++) dump_logits(run, i, first, logits, logits + b->n_tokens * V);
    extra[0].data = logits;
    extra[1].data = logits ? logits + b->n_tokens * V : NULL;
    run_dump_gradients(run, extra, n_extra);
    say(stdout, "loss %.9g over %" PRId64 " targets; gradients in %s", loss, b->n_targets, run->config.dump_grads);
    free(first);
    free(logits);
}
