// model_ranks.c - how a model is divided among ranks, and who holds what of its tensors. See model_ranks.h.
#include "run/model/model_ranks.h"

// ---- Comms

Comm* model_split(const Model* m, int color, CommPurpose purpose, int overlap) {
    char err[ERR_BYTES];
    Comm *job = m->job, *part;
    if (job->table->split(job, &part, color, job->rank, err)) die("%s", err);
    if (part) part->purpose = purpose, part->overlap = overlap;
    return part;
}

int model_comms(Comm* list[MOST_COMMS], const Model* m) {
    const ModelRanks* x = m->ranks;
    Comm* all[] = {x->pipe.ends,
                   x->pipe.comm,
                   x->kv,
                   m->tp,
                   m->comm != m->job ? m->comm : NULL,
                   m->job != m->world ? m->job : NULL};
    int n = 0;
    for (const LayerGroup* g = x->groups; g < x->groups + x->n_groups; g++) {
        if (g->cut) list[n++] = g->cut;
        if (g->kv) list[n++] = g->kv;
        list[n++] = g->spread, list[n++] = g->data;
    }
    for (int i = 0; i < COUNT(all); i++)
        if (all[i]) list[n++] = all[i];
    return n;
}

void model_set_timer(Model* m, Timer* timer) {
    Comm* comms[MOST_COMMS];
    m->timer = m->world->timer = timer;
    for (int i = 0, n = model_comms(comms, m); i < n; i++) comms[i]->timer = timer;
}

void model_close_comms(Model* m) {
    Comm* comms[MOST_COMMS];
    for (int i = 0, n = model_comms(comms, m); i < n; i++) comms[i]->table->close(comms[i]);
}

// ---- layers of less tp than their group

const LayerGroup* layer_group(const Model* m, int l) {
    for (int i = 0; i < m->ranks->n_groups && l >= 0 && l < m->shape.L; i++)
        if (m->ranks->groups[i].tp == layer_layout(m, l)->tp) return &m->ranks->groups[i];
    return NULL;
}

// ---- tensors of the whole model

const TpSplit* tp_split_of(const Model* m, const ParamTensor* tensor) {
    const LayerGroup* g = layer_group(m, tensor_layer(tensor));
    return g ? &g->split : &m->ranks->split;
}

int tp_boxes(Box boxes[MOST_RUNS], const Model* m, const ParamTensor* part) {
    boxes[0] = (Box){0, 0, part->rows, part->cols};
    if (!m->tp) return 1;
    return split_boxes(boxes, &m->whole, tp_split_of(m, part), layer_cut_rank(m, tensor_layer(part)), part->id);
}

int tp_runs(OwnedRun runs[MOST_RUNS], const Model* m, const Segment* owned) {
    Box boxes[MOST_RUNS];
    const ParamTensor* part = &owned->tensor;
    size_t width = (size_t)shape_param(&m->whole, part->id, pipeline_layer(m, part)).cols, begin = 0;
    int n = 0, n_boxes = tp_boxes(boxes, m, part);
    for (const Box* box = boxes; box < boxes + n_boxes; box++) {
        size_t cols = (size_t)box->cols, end = begin + (size_t)box->rows * cols;
        size_t first = MAX(begin, owned->first), last = MIN(end, owned->first + owned->n), before = first - begin;
        begin = end;
        if (first >= last) continue;
        size_t row = (size_t)box->row + before / cols, col = before % cols;
        runs[n++] = (OwnedRun){{*part, first, last - first, owned->at + (first - owned->first)},
                               {row * width + (size_t)box->col + col, col, cols, box->rows > 1 ? width - cols : 0}};
    }
    return n;
}

int pipeline_layer(const Model* m, const ParamTensor* own) {
    return own->layer + (param_is_per_layer(own->id) ? m->shape.first_layer : 0);
}

ParamTensor pipeline_part(const Model* m, const ParamTensor* tensor) {
    int layer = tensor->layer - (param_is_per_layer(tensor->id) ? m->shape.first_layer : 0);
    int is_elsewhere = layer < 0 || layer >= m->shape.L;
    ParamTensor part = shape_param(&m->shape, tensor->id, is_elsewhere ? 0 : layer);
    if (is_elsewhere) part.elems = 0;
    return part;
}

int pipeline_stage_of(const Model* m, const ParamTensor* tensor) {
    int s = 0;
    if (m->stages == 1 || tensor->id < LN1W) return 0;
    if (tensor->id >= LNFW) return m->stages - 1;
    while (tensor->layer >= layout_first(&m->ranks->layout, s + 1)) s++;
    return s;
}
