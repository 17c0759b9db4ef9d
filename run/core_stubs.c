// core_stubs.c - build/core: what of the trainer remains where one rank trains alone, by the reference kernels.
#include <inttypes.h>

#include "run/core.h"

static void refuse_others(Run* run) {
    const char* other =
        config_other(&run->config,
                     ", model, optimizer, --data, --document-separator, --eval-every, --eval-every tokens, "
                     "--sample-every, --tokens, --temperature, --top-k, --cpu-isa, --dtype, --dtype rounding, "
                     "--capacity,");
    if (!strcmp(run->config.dtype, "fp8")) other = "--dtype fp8";
    if (other) die("%s: one rank trains here by the reference kernels, and keeps nothing; try ./train", other);
}

void run_next_batch(Run* run) { core_next_batch(run); }

void run_agree(Run* run) { (void)run; }

void run_keep(Run* run) { (void)run; }

void run_tell(Run* run) {
    const Step* s = &run->step;
    printf("step %" PRId64 "/%" PRId64 " | loss %.4f | norm %.3f | lr %.2e\n", s->number, run->config.steps, s->loss,
           s->grad_norm, s->lr);
}

void run_tell_loss(Run* run) {
    printf("step %" PRId64 ": validation loss %.4f over %" PRId64 " targets\n", run->state.step, run->state.val_loss,
           run->val_targets);
}

void run_sample(Run* run) { sample_print(run, "", run->config.tokens, (uint64_t)run->config.seed, NULL); }

void run_diverged(Run* run) { die("step %" PRId64 ": the loss or the norm is not finite", run->step.number); }

// Prints the hash of all losses, and one of the fp32 weights, tensor by tensor.
static void finish(Run* run) {
    const Model* m = &run->model;
    uint64_t weights = 0;
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        ParamTensor t = shape_tensor(&m->shape, i);
        const float* master = (const float*)m->array[MODEL_MASTER];
        const void* value = master ? (const void*)(master + t.offset) : model_weights(m, t.id, t.layer);
        weights ^= hash_bytes(value, t.elems * sizeof(float), (uint64_t)i);
    }
    printf("loss hash %016" PRIx64 ", weights hash %016" PRIx64 "\n", run->state.loss_hash, weights);
}

const Mechanism mechanisms[] = {
    {"options", .open = core_read_options},
    {"others", .open = refuse_others},
    {"data", .open = core_open_data},
    {"model", .open = core_open_model},
    {"weights", .open = core_init_weights},
    {"hashes", .finish = finish},
    {NULL},
};
