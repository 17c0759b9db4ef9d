// dump.c - --dump-grads: what one step computes, for comparisons with other programs.
#include <inttypes.h>
#include <stdlib.h>

#include "run/files/saving.h"
#include "run/model/fp8.h"
#include "run/step/labels.h"
#include "run/step/step.h"

// Logits of pass i on the device, fp32, to where its documents stand in the order in which they were drawn.
static void dump_logits(Run* run, int i, const int64_t* first, float* logits, float* document) {
    Model* m = &run->model;
    const Batch* b = &run->batch;
    const BatchPlan* x = b->planned;
    const RankPass* pass = &x->passes[i];
    int V = m->shape.V, n = 0;
    Row row = batch_row(run, i);
    model_forward(m, &row);
    for (int g = pass->first_group; g < pass->first_group + pass->n_groups; g++)
        for (int d = 0; d < x->groups[g].mb->n_docs; d++) {
            int drawn = x->made.plan.docs[x->groups[g].mb->first_doc + d];
            for (int t = 0; t < b->pieces[drawn].length; t++, n++) {
                memcpy(logits + (first[drawn] + t) * V, token_logits(run, n), (size_t)V * sizeof(float));
                document[first[drawn] + t] = (float)b->pieces[drawn].doc;
            }
        }
}

void run_dump(Run* run) {
    enum { MOST_BYTES = 256 << 20 };
    const Batch* b = &run->batch;
    const char* path = run->config.dump_grads;
    char err[ERR_BYTES];
    fp8_begin(run);
    labels_prefer(run);
    run_micro_batches(run, run->data.train, 1);
    zero_reduce(&run->model);
    double loss = loss_sum(run) / b->weight;
    int64_t V = run->model.shape.V, T = b->n_tokens;
    int n_extra = run->model.world->size == 1 && T * V <= MOST_BYTES / (int)sizeof(float) ? 2 : 0;
    SafeTensor extra[2] = {{"logits", DT_F32, 2, {T, V}, NULL, (size_t)(T * V) * sizeof(float), 0},
                           {"documents", DT_F32, 1, {T}, NULL, (size_t)T * sizeof(float), 0}};
    float* logits = n_extra ? (float*)malloc(extra[0].bytes + extra[1].bytes) : NULL;
    int64_t* first = (int64_t*)calloc((size_t)b->n_pieces + 1, sizeof(int64_t));
    if (!first || (n_extra && !logits)) die("--dump-grads: no memory for the logits of %" PRId64 " tokens", T);
    for (int i = 0; i < b->n_pieces; i++) first[i + 1] = first[i] + b->pieces[i].length;
    for (int i = 0; i < b->n_rows && n_extra; i++) dump_logits(run, i, first, logits, logits + T * V);
    extra[0].data = logits, extra[1].data = logits ? logits + T * V : NULL;
    ModelState state = state_to_write(run);
    int failed = hf_write(&state, STATE_GRADS, extra, n_extra, run->model.world->rank == 0 ? path : NULL, err);
    die_together(run, failed, err, "--dump-grads: ");
    say(stdout, "loss %.9g over %" PRId64 " targets; gradients in %s", loss, b->n_targets, path);
    free(first);
    free(logits);
}
