// pipeline.c - see pipeline.h.
#include "run/pipeline.h"

#include <math.h>

// ---- who has which layers

// Work of a token in layers [first, end) of the whole model, in weights.
static double work_of(const Shape* whole, int first, int end) {
    double head = (double)whole->V * whole->C, layers = shape_matmul_weights(whole) - head;
    return layers / whole->L * (end - first) + (end == whole->L ? head : 0);
}

void pipeline_layers(int* first, const Shape* whole, int stages) {
    double least = INFINITY;
    // The most that a stage may have is the work of some stage: of k layers, or of k layers and the classifier.
    for (int k = 1; k <= 2 * whole->L; k++) {
        int n = (k + 1) / 2, at = 0, trial[MOST_STAGES + 1];
        double most = k % 2 ? work_of(whole, whole->L - n, whole->L) : work_of(whole, -1, n - 1), worst = 0;
        for (int s = 0; s < stages; s++) {
            int end = s == stages - 1 ? whole->L : at + 1;
            while (s < stages - 1 && end < whole->L - (stages - 1 - s) && work_of(whole, at, end + 1) <= most) end++;
            worst = MAX(worst, work_of(whole, at, end));
            trial[s] = at, at = end;
        }
        trial[stages] = whole->L;
        if (worst >= least) continue;
        least = worst;
        memcpy(first, trial, sizeof *first * (size_t)(stages + 1));
    }
}

void pipeline_shares(double* matmuls, double* layers, const Model* m) {
    int first[MOST_STAGES + 1];
    pipeline_layers(first, &m->whole, m->stages);
    for (int s = 0; s < m->stages; s++) {
        matmuls[s] = work_of(&m->whole, first[s], first[s + 1]) / work_of(&m->whole, 0, m->whole.L);
        layers[s] = (double)(first[s + 1] - first[s]) / m->whole.L;
    }
}

static int is_tied(const Model* m) { return !shape_has(&m->whole, HAS_HEAD); }

static void split_off(Model* m, Comm** part, int color) {
    char err[ERR_BYTES];
    if (m->world->table->split(m->world, part, color, m->world->rank, err, sizeof err))
        die("--pp %d: %s", m->stages, err);
    if (!*part) return;
    (*part)->overlap = m->world->overlap;
    (*part)->purpose = COMM_PIPELINE;
}

void pipeline_join(Model* m, int stages) {
    int first[MOST_STAGES + 1], ranks = m->world->size / MAX(stages, 1), place = m->world->rank % MAX(ranks, 1);
    m->stages = stages, m->stage = m->slot = 0;
    if (stages == 1) return;
    if (stages > m->whole.L)
        die("--pp %d: expected at most as many stages as layers, found %d layers; try --pp %d", stages, m->whole.L,
            m->whole.L);
    m->stage = m->world->rank / ranks;
    pipeline_layers(first, &m->whole, stages);
    m->shape = shape_stage(&m->shape, first[m->stage], first[m->stage + 1]);
    int is_end = m->stage == 0 || m->stage == stages - 1;
    split_off(m, &m->pipe.comm, place);
    split_off(m, &m->pipe.ends, is_tied(m) && is_end ? place : -1);
    if (m->pipe.ends) m->pipe.ends->purpose = COMM_GRADIENTS;
}

void pipeline_close(Model* m) {
    if (m->pipe.ends) m->pipe.ends->table->close(m->pipe.ends);
    if (m->pipe.comm) m->pipe.comm->table->close(m->pipe.comm);
}

// ---- messages

static size_t row_bytes(const Model* m, const Row* row) {
    return (size_t)row->own * (size_t)m->shape.C * dtype_bytes(m->dt);
}

static void end(Model* m, Request* request) {
    if (*request) m->pipe.comm->table->end(m->pipe.comm, *request, m->s);
    *request = 0;
}

// The stream enters at the first layer's border and leaves behind the last one; its gradient comes where the stream
// left from, and leaves from the same place.
void pipeline_begin(Model* m, const Task* task, const Row* row) {
    Pipe* pipe = &m->pipe;
    int sends = task->kind == TASK_SEND, slot = task->slot;
    int peer = m->stage + (sends == !task->backward ? 1 : -1);
    void* data = task->backward ? model_act(m, D_RESIDUAL, 0) : model_act(m, RESIDUAL, sends ? m->shape.L : 0);
    Transfer message = {peer, data, row_bytes(m, row)};
    if (!sends) end(m, &pipe->sending[0][slot]);  // what the gradient will overwrite
    Request* request = sends ? &pipe->sending[task->backward][slot] : &pipe->receiving[task->backward][slot];
    *request = pipe->comm->table->begin_send_receive(pipe->comm, &message, sends, &message, !sends, m->s);
}

void pipeline_settle(Model* m, const Task* task) {
    if (!m->pipe.comm) return;
    end(m, &m->pipe.receiving[task->backward][task->slot]);
    for (int d = 0; d < 2; d++) end(m, &m->pipe.sending[d][task->slot]);
}

void pipeline_finish(Model* m) {
    m->slot = 0;
    for (int slot = 0; slot < MOST_STAGES && m->pipe.comm; slot++)
        for (int d = 0; d < 2; d++) end(m, &m->pipe.sending[d][slot]);
}

void pipeline_receive(Model* m, const Row* row) {
    Task task = {TASK_RECEIVE, 0, 0, 0, 0, 0};
    if (m->stage == 0) return;
    pipeline_begin(m, &task, row);
    pipeline_settle(m, &task);
}

void pipeline_send(Model* m, const Row* row) {
    Task task = {TASK_SEND, 0, 0, 0, 0, 0};
    if (m->stage == m->stages - 1) return;
    pipeline_begin(m, &task, row);
    pipeline_settle(m, &task);
}

// ---- tensors of the whole model

int pipeline_layer(const Model* m, const ParamTensor* own) {
    return own->layer + (param_is_per_layer(own->id) ? m->shape.first_layer : 0);
}

ParamTensor pipeline_part(const Model* m, const ParamTensor* tensor) {
    int layer = tensor->layer - (param_is_per_layer(tensor->id) ? m->shape.first_layer : 0);
    ParamTensor part = shape_param(&m->shape, tensor->id, MAX(layer, 0));
    if (param_is_per_layer(tensor->id) && (layer < 0 || layer >= m->shape.L)) part.elems = 0;
    return part;
}

int pipeline_stage_of(const Model* m, const ParamTensor* tensor) {
    int first[MOST_STAGES + 1], s = 0;
    if (m->stages == 1 || tensor->id < LN1W) return 0;
    if (tensor->id >= LNFW) return m->stages - 1;
    pipeline_layers(first, &m->whole, m->stages);
    while (tensor->layer >= first[s + 1]) s++;
    return s;
}

void pipeline_share(const Model* m, float* value, size_t n, int stage) {
    char err[ERR_BYTES];
    Comm* c = m->pipe.comm;
    if (c && c->table->broadcast_host(c, value, n * sizeof *value, stage, err, sizeof err)) die("%s", err);
}

void pipeline_sum_tied(Model* m) {
    Comm* c = m->pipe.ends;
    if (!c) return;
    ParamTensor wte = shape_param(&m->shape, WTE, 0);
    c->table->all_reduce(c, zero_grads(m, &wte), wte.elems, DT_F32, m->s);
}
