// shape_parts.c - see shape_parts.h.
#include "plan/model/shape_parts.h"

Shape shape_make(int layers, int width, int heads, int vocab, int context) {
    const ArchRow* arch = &arch_table[ARCH_GPT2];
    return shape_whole((Shape){.arch = ARCH_GPT2,
                               .features = arch->features,
                               .L = layers,
                               .C = width,
                               .NH = heads,
                               .V = vocab,
                               .NKV = heads,
                               .HS = width / heads,
                               .U = 4 * width,
                               .context = context,
                               .positions = context,
                               .eps = arch->eps});
}

Shape shape_stage(const Shape* shape, int first, int end) {
    Shape s = *shape;
    s.first_layer = shape->first_layer + first;
    s.L = end - first;
    s.no_embedding |= first > 0;
    s.no_head |= end < shape->L;
    if (s.units) s.units += first;
    return s;
}

size_t shape_state_bytes(const Bucket* b, int zero, DType dt) {
    size_t fp32 = sizeof(float), moments = 2 * fp32, master = dt == DT_BF16 ? fp32 : 0;
    return (zero > 2 ? b->piece : b->elems) * dtype_bytes(dt) + (zero > 1 ? b->piece : b->elems) * fp32 +
           b->piece * (moments + master);
}

size_t shape_layer_activations(const Shape* shape, const ActNeeds* needs, const ActPlace* places, int l) {
    size_t bytes = 0;
    for (int i = 0; i < N_ACTS; i++) {
        const ActPlace* place = &places[i * (shape->L + 1) + l];
        if (place->is_own) bytes += place->bytes * (size_t)(place->slot ? MAX(needs->slots, 1) : 1);
    }
    return bytes;
}

Segment shape_segment(const Shape* shape, int i, int rank) {
    Segment segment = {.tensor = shape_tensor(shape, i)};
    const ParamTensor* t = &segment.tensor;
    Bucket bucket = shape_bucket(shape, shape_bucket_of(t, shape));
    size_t begin = bucket.offset + bucket.piece * (size_t)rank;
    size_t low = MAX(begin, t->offset), high = MIN(begin + bucket.piece, t->offset + t->elems);
    if (low >= high) return segment;
    segment.first = low - t->offset;
    segment.n = high - low;
    segment.at = bucket.at + (low - begin);
    return segment;
}

// ---- work

double shape_matmul_weights(const Shape* shape) {
    double weights = (double)shape->V * shape->C;
    for (int id = LN1W; id < LNFW; id++)
        if (param_table[id].rows != ONE)
            weights += (double)shape->L * runs_sum(shape_runs(shape, param_table[id].rows)) *
                       runs_sum(shape_runs(shape, param_table[id].cols));
    return weights;
}

double shape_training_flops(const Shape* shape, double sum_s, double sum_s2) {
    return 6 * shape_matmul_weights(shape) * sum_s + 6 * shape->L * (double)(shape->NH * shape->HS) * sum_s2;
}

uint64_t shape_hash(const Shape* s) {
    const int dims[] = {(int)s->arch, s->features, s->L, s->C,       s->NH,       s->NKV,
                        s->HS,        s->U,        s->V, s->context, s->positions};
    const double numbers[] = {s->eps,         s->theta,        s->scaling.factor,
                              s->scaling.low, s->scaling.high, s->scaling.original};
    return hash_bytes(numbers, sizeof numbers, hash_bytes(dims, sizeof dims, 0));
}
