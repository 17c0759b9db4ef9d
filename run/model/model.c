// model.c - a model's weights, gradients and activations by their names, and the table of a block: see model.h.
#include "run/model/model.h"

// ---- a block

const Sublayer sublayers[N_SUBLAYERS] = {
    [ATTENTION] = {{LN1W, LN1B, RESIDUAL, LN1, LN1_MEAN, LN1_RSTD}, {QKVW, ATTPROJW}, {QKVB, ATTPROJB}, QKV, ATT},
    [MLP] = {{LN2W, LN2B, RESIDUAL2, LN2, LN2_MEAN, LN2_RSTD}, {FCW, FCPROJW}, {FCB, FCPROJB}, FC, FC_ACT},
};

const NormRow final_norm = {LNFW, LNFB, RESIDUAL, LNF, LNF_MEAN, LNF_RSTD};

// A rank with n units of everything.
static Shape shape_of_units(const Shape* shape, int n) {
    Shape s = *shape;
    s.heads = n * shape_queries(shape);
    s.kv_heads = s.hidden = n;
    return s;
}

Runs unit_rows(const Shape* shape, SublayerId id, int n) {
    Shape s = shape_of_units(shape, n);
    return shape_runs(&s, param_table[sublayers[id].weight[0]].rows);
}

int unit_columns(const Shape* shape, SublayerId id) {
    Shape s = shape_of_units(shape, 1);
    return shape_runs(&s, param_table[sublayers[id].weight[1]].cols).size[0];
}

int own_units(const Shape* shape, SublayerId id) { return id == ATTENTION ? shape->kv_heads : shape->hidden; }

size_t unit_elems(const Shape* shape, SublayerId id) {
    Shape s = shape_of_units(shape, 1);
    const Sublayer* sub = &sublayers[id];
    return shape_param(&s, sub->weight[0], 0).elems + shape_param(&s, sub->bias[0], 0).elems +
           shape_param(&s, sub->weight[1], 0).elems;
}

void* model_act(const Model* m, ActId id, int l) {
    if (id == D_RESIDUAL && m->shape.no_head) return model_act(m, RESIDUAL, m->shape.L);
    const ActPlace* place = &m->act_places[id * (m->shape.L + 1) + l];
    return place->exists ? m->acts + place->at + place->slot * (size_t)m->slot : NULL;
}

// ---- parameters

static const ParamBlock* block_of(const Model* m, const ParamTensor* tensor) {
    return &m->block[shape_bucket_of(tensor, &m->shape)];
}

char* tensor_weights(const Model* m, const ParamTensor* tensor) {
    const ParamBlock* x = block_of(m, tensor);
    return x->weights + (tensor->offset - x->offset) * dtype_bytes(m->dt);
}

float* tensor_grads(const Model* m, const ParamTensor* tensor) {
    const ParamBlock* x = block_of(m, tensor);
    return x->grads + (tensor->offset - x->offset);
}

void* model_weights(const Model* m, ParamId id, int l) {
    ParamTensor tensor = shape_param(&m->shape, id, l);
    return tensor.elems ? tensor_weights(m, &tensor) : NULL;
}

float* model_grads(const Model* m, ParamId id, int l) {
    ParamTensor tensor = shape_param(&m->shape, id, l);
    return tensor.elems ? tensor_grads(m, &tensor) : NULL;
}
