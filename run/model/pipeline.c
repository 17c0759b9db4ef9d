// pipeline.c - this rank in a pipeline: its stage, and messages to the stages before and behind it. See model_ranks.h.
#include "run/model/model_ranks.h"

// ---- stages

void pipeline_join(Model* m) {
    int place = m->job->rank % (m->job->size / m->stages);
    if (m->stages == 1) return;
    int is_end = m->stage == 0 || m->stage == m->stages - 1;
    int overlap = m->job->overlap, is_tied = !shape_has(&m->whole, HAS_HEAD);
    m->ranks->pipe.comm = model_split(m, place, COMM_PIPELINE, overlap);
    m->ranks->pipe.ends = model_split(m, is_tied && is_end ? place : -1, COMM_GRADIENTS, overlap);
}

// ---- messages

static void end(Model* m, Request* request) {
    if (*request) m->ranks->pipe.comm->table->end(m->ranks->pipe.comm, *request, m->s);
    *request = 0;
}

// The stream enters at the first layer's border and leaves after the last layer. Its gradient comes to where the stream
// left from, and leaves from the same place.
void pipeline_begin(Model* m, const Task* task, const Row* row) {
    Pipe* pipe = &m->ranks->pipe;
    int sends = task->kind == TASK_SEND, slot = task->slot;
    int peer = m->stage + (sends == !task->backward ? 1 : -1);
    void* data = task->backward ? model_act(m, D_RESIDUAL, 0) : model_act(m, RESIDUAL, sends ? m->shape.L : 0);
    Transfer message = {peer, data, (size_t)row->own * (size_t)m->shape.C * dtype_bytes(m->dt)};
    if (!sends) end(m, &pipe->sending[0][slot]);  // the gradient will overwrite what is sent
    Request* request = sends ? &pipe->sending[task->backward][slot] : &pipe->receiving[task->backward][slot];
    *request = pipe->comm->table->begin_send_receive(pipe->comm, &message, sends, &message, !sends, m->s);
}

void pipeline_settle(Model* m, const Task* task) {
    if (!m->ranks->pipe.comm) return;
    end(m, &m->ranks->pipe.receiving[task->backward][task->slot]);
    for (int d = 0; d < 2; d++) end(m, &m->ranks->pipe.sending[d][task->slot]);
}

void pipeline_finish(Model* m) {
    m->slot = 0;
    for (int slot = 0; slot < MOST_STAGES && m->ranks->pipe.comm; slot++)
        for (int d = 0; d < 2; d++) end(m, &m->ranks->pipe.sending[d][slot]);
}

void pipeline_meet(Model* m, const Row* row, TaskKind kind) {
    Task task = {kind, 0, 0, 0, 0, 0};
    if (m->stage == (kind == TASK_RECEIVE ? 0 : m->stages - 1)) return;
    pipeline_begin(m, &task, row);
    pipeline_settle(m, &task);
}

void pipeline_share(const Model* m, void* value, size_t bytes, int stage) {
    char err[ERR_BYTES];
    Comm* c = m->ranks->pipe.comm;
    if (c && c->table->broadcast_host(c, value, bytes, stage, err)) die("%s", err);
}
