// reshard.c - see reshard.h. Tensor after tensor, every kind of state is put together of the parts that ranks have
// under the old division and taken apart under the new one, in host memory. That moves more than has to change hands;
// it happens when a rank becomes slow for good, not in steps.
#include "run/reshard.h"

#include "run/run.h"

static void* take(const Model* m, size_t bytes) {
    void* p = m->k->alloc(bytes);
    if (!p)
        die("no memory for another division of the model, %zu MiB; try --moves step or a smaller --capacity",
            bytes >> 20);
    return p;
}

// The arrays of stage 1 for another shape; nothing is in them.
static void take_arrays(Model* next, const Model* m) {
    Zero* z = &next->zero;
    size_t elems = shape_param_elems(&next->shape), owned = elems / (size_t)next->shape.shards * sizeof(float);
    size_t embedding = shape_bucket(&next->shape, 0).elems, layer = shape_bucket(&next->shape, 1).elems;
    z->weights.whole = (char*)take(m, elems * dtype_bytes(m->dt));
    z->grads.whole = (char*)take(m, elems * sizeof(float));
    if (z->master) z->master = (float*)take(m, owned);
    z->m = (float*)take(m, owned);
    z->v = (float*)take(m, owned);
    if (!z->narrow[0]) return;
    z->narrow[0] = (char*)take(m, 2 * MAX(embedding, layer) * sizeof(bf16));
    z->narrow[1] = z->narrow[0] + MAX(embedding, layer) * sizeof(bf16);
}

static void give_back(const Model* m) {
    const Zero* z = &m->zero;
    m->k->synchronize(m->s);
    void* const arrays[] = {z->weights.whole, z->grads.whole, z->master, z->m, z->v, z->narrow[0]};
    for (int i = 0; i < COUNT(arrays); i++) m->k->free_memory(arrays[i]);
}

// The whole tensor, of one kind, in run->staging.
static void join(Run* run, StateKind kind, const ParamTensor* tensor) {
    Model* m = &run->model;
    ParamTensor own = shape_param(&m->shape, tensor->id, tensor->layer);
    if (kind == STATE_WEIGHTS) zero_fetch_weights(m, &own, run->part);
    else zero_fetch_state(m, &own, run->part);
    tp_join(m, &own, run->staging, run->part, run->others);
}

static void store(Run* run, Model* next, StateKind kind, const ParamTensor* tensor) {
    ParamTensor part = shape_param(&next->shape, tensor->id, tensor->layer);
    split_take(run->staging, run->staging, &next->whole, &next->split, tp_rank(next), tensor->id);
    if (kind == STATE_WEIGHTS) {
        zero_put_weights(next, &part, run->staging);
        return;
    }
    Segment own = shape_segment(&next->shape, shape_index(&next->shape, &part), next->comm->rank);
    if (own.n == 0) return;
    next->k->upload(zero_owned(next, kind, &own), run->staging + own.first, own.n * sizeof(float), next->s);
    next->k->synchronize(next->s);
}

static void carry(Run* run, Model* next, StateKind kind) {
    Model* m = &run->model;
    for (int i = 0, gathered = -1; i < shape_tensors(&m->whole); i++) {
        ParamTensor tensor = shape_tensor(&m->whole, i);
        int b = shape_bucket_of(&tensor, &m->whole);
        if (kind != STATE_WEIGHTS && b != gathered) zero_gather_state(m, kind, gathered = b);
        join(run, kind, &tensor);
        store(run, next, kind, &tensor);
    }
}

void run_reshard(Run* run, const TpSplit* split) {
    Model* m = &run->model;
    Model next = *m;
    if (m->zero.stage != 1) die("a new division of the model needs ZeRO stage 1, found %d", m->zero.stage);
    zero_settle(m);
    m->tp->purpose = COMM_STATE;
    next.split = *split;
    next.shape = split_shape(&m->whole, split, tp_rank(m));
    next.shape.shards = m->shape.shards;
    take_arrays(&next, m);
    carry(run, &next, STATE_WEIGHTS);
    if (m->zero.master) carry(run, &next, STATE_MASTER);
    carry(run, &next, STATE_M);
    carry(run, &next, STATE_V);
    give_back(m);
    *m = next;
    m->tp->purpose = COMM_TENSOR;
}
