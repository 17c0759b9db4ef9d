// passes.c - the passes of a step on many ranks, by the schedule, and the hooks of core.c (RunRanks).
#include "run/model/tensor_parallel.h"
#include "run/step/labels.h"
#include "run/step/step.h"

// ---- tokens to the device

// Uploads the rows of this rank's part of wte for the first n tokens; -1: another rank has it.
static void upload_vocab_rows(Run* run, int n) {
    const Model* m = &run->model;
    const Batch* b = &run->batch;
    if (!m->tp) return;
    for (int i = 0; i < n; i++) {
        int row = b->tokens[i] - m->shape.first_vocab_row;
        b->planned->vocab_rows[i] = row >= 0 && row < m->shape.vocab_rows ? row : -1;
    }
    batch_upload_ints(b, m, b->planned->vocab_rows, n);
}

static void read_now(Run* run, const Sampler* sampler) {
    char err[ERR_BYTES];
    if (!run->batch.is_read && batch_read(&run->batch, run, sampler, err)) die("%s", err);
    upload_vocab_rows(run, run->batch.n_read);
    if (run->labels) labels_upload(run);
}

// ---- rows

// Waits for all ranks at the end of every round between pass i - 1 and pass i of this rank (n_rows: the end), if rounds
// have barriers. With ZeRO-2, 3 or a pipeline ranks wait in every layer anyway.
static void end_rounds(const Batch* b, const Model* m, int i) {
    const BatchPlan* x = b->planned;
    if (!x->made.plan.has_barriers || m->ranks->zero.stage > 1 || m->stages > 1 || m->comm->size == 1) return;
    int from = i > 0 ? pass_round(x, i - 1) : 0, to = i < b->n_rows ? pass_round(x, i) : x->made.plan.n_rounds - 1;
    for (int r = from; r < to; r++) {
        m->k->clear(m->ranks->barrier, sizeof *m->ranks->barrier, m->s);
        m->comm->table->all_reduce(m->comm, m->ranks->barrier, 1, DT_F64, m->s);
    }
}

_Static_assert((int)MOST_SHARED == (int)MOST_SHARED_GROUPS, "plans share as many at once as attention can");

static GroupAttention group_attention(const Batch* b, const RankGroup* mine) {
    const Share* share = &mine->share;
    GroupAttention g = {0};
    g.first_rank = mine->mb->first_rank;
    g.ulysses_size = share->ulysses_size, g.ring_size = share->ring_size;
    g.ring_rank = share->ring_rank, g.ulysses_rank = share->ulysses_rank;
    g.first = mine->first;
    g.n_docs = mine->mb->n_docs, g.n_chunks = mine->placed.n_chunks;
    g.head_border = mine->placed.head_border;
    g.token_border = mine->placed.token_border + share->ring_rank * (share->ulysses_size + 1);
    g.owner = mine->placed.owner, g.chunk_tokens = mine->chunk_tokens;
    g.cu = batch_on_device(b, b->cu + mine->cu);
    g.tree = mine->tree;
    return g;
}

// Fills in this rank's own tokens of the row outside attention and MLP, and the documents that other ranks share.
static void fill_row(Run* run, Row* row, int i) {
    const Model* m = &run->model;
    const Batch* b = &run->batch;
    BatchPlan* x = b->planned;
    row->n = CEIL_DIV(row->N, tp_size(m));
    row->first = MIN(row->N, tp_rank(m) * row->n);
    row->own = MIN(row->n, row->N - row->first);
    row->vocab_rows = batch_on_device(b, x->vocab_rows + (i < 0 ? 0 : b->rows[i].token));
    if (i < 0) return;
    if (run->labels) labels_fill_row(run, row);
    const RankPass* pass = &x->passes[i];
    const RankGroup* first = &x->groups[pass->first_group];
    if (pass->n_groups == 1 && first->mb->cp_size == 1 && !first->tree) return;
    row->n_docs = 0, row->cu = NULL;
    RowAttention* a = &x->shared[i];
    row->shared = a;
    memset(a, 0, sizeof *a);
    a->comm = m->comm;
    a->groups = x->attention + pass->first_group;
    a->n_groups = pass->n_groups;
    for (int g = pass->first_group; g < pass->first_group + pass->n_groups; g++)
        x->attention[g] = group_attention(b, &x->groups[g]);
    a->parts = attention_parts(m);
    a->scratch = m->ranks->group_scratch;
}

// ---- the rows of a step, by the schedule

// Begins a task: a pass, or a message of a pipeline. The ranks of a tensor-parallel group have equal losses, so the
// first one alone counts them.
static void begin_task(Run* run, Pass* pass, const Task* task) {
    Model* m = &run->model;
    const Batch* b = &run->batch;
    pass->row = &b->planned->rows[m->slot = task->slot];
    pass->counts = tp_rank(m) == 0;
    int begins = task->kind == (m->stage > 0 ? TASK_RECEIVE : TASK_FORWARD) && !task->backward;
    if (begins) *pass->row = batch_row(run, task->round);
    if (task->kind == TASK_FORWARD) end_rounds(b, m, task->round);
    pass->kind = PASS_OTHER;
    if (pace_leaves(run, task)) return;
    if (task->kind >= TASK_SEND) pipeline_begin(m, task, pass->row);
    else pipeline_settle(m, task);
    if (task->kind == TASK_FORWARD) pass->kind = PASS_FORWARD;
    if (task->kind == TASK_BACKWARD) pass->kind = PASS_BACKWARD;
    if (task->kind == TASK_BACKWARD && !b->planned->sums_behind && pass_reduces_inside(b, m, task->round))
        zero_last_row(m);
}

static int next_pass(Run* run, Pass* pass, int i, int train) {
    Model* m = &run->model;
    const Batch* b = &run->batch;
    const TaskList* list = &b->planned->made.schedule.stages[m->stage];
    if (i == 0) pace_begin(run, train);
    else if (pass->kind != PASS_OTHER) pace_end_task(run, &list->tasks[i - 1]);
    if (i < list->n && !train && list->tasks[i].backward) {  // a forward pass over a training batch (labels_keep)
        pass->kind = PASS_OTHER;
        return 1;
    }
    if (i < list->n) {
        begin_task(run, pass, &list->tasks[i]);
        return 1;
    }
    pipeline_finish(m);
    end_rounds(b, m, b->n_rows);
    if (train) zero_end_rows(m);
    return 0;
}

// ---- generation

// Replaces the row that run_decode has made of one text by one of several answers.
static void fill_answers(Run* run, Row* row) {
    const Model* m = &run->model;
    const Batch* b = &run->batch;
    SideBySide* x = b->planned->answers;
    int* ints = b->cu + 4;  // after the ints that run_decode has put there for one text
    for (int i = 0; i < x->n; i++) b->positions[i] = x->of[i].prompt_length + x->of[i].length;
    answers_fill(&x->answers, x->of, x->n, run->cluster->cache_tokens, run->cluster->answer_tokens, ints,
                 batch_on_device(b, ints));
    batch_upload_ints(b, m, b->positions, x->n);
    batch_upload_ints(b, m, ints, (int)answers_ints(x->n));
    x->shared = (RowAttention){.answers = &x->answers, .scratch = m->ranks->group_scratch};
    row->shared = &x->shared;
}

static void decode(Run* run, Row* row) {
    upload_vocab_rows(run, row->N);
    fill_row(run, row, -1);
    if (run->batch.planned->answers) fill_answers(run, row);
    pipeline_meet(&run->model, row, TASK_RECEIVE);
    model_forward(&run->model, row);
    pipeline_meet(&run->model, row, TASK_SEND);
}

static void* logits(Run* run, int n, int N) { return tp_logits(&run->model, n, N); }

static void share_draws(Run* run, int N) {
    pipeline_share(&run->model, run->draws, sizeof *run->draws * (size_t)N, run->model.stages - 1);
}

const RunRanks run_ranks = {eval_plan,     eval_end, read_now, fill_row,   next_pass,
                            eval_loss_sum, decode,   logits,   share_draws};
