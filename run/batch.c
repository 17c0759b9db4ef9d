// batch.c - a step's documents on this rank: planned with all others', read, and laid out for the device.
//
// Every rank plans the whole step from lengths alone. What the plan should take is predicted where a cost model is
// known, whoever made the plan.
//
// Only the tokens of this rank's share are read. Every micro-batch becomes a row; cu_seqlens of its documents and, on a
// ring, of the chunks of all places stand in one array that goes to the device at once.
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "plan/published/published.h"
#include "run/run.h"

// ---- memory

size_t batch_bytes(int max_tokens) {
    return (size_t)max_tokens * (sizeof(Piece) + sizeof(int) + sizeof(RankMicroBatch) + 2 * sizeof(Span));
}

// A place of a ring has two numbers of tokens; cu_seqlens of low and high chunks of every place. A micro-batch holds a
// document at least.
static size_t ring_ints(const Run* run) { return 2 * (size_t)run->limits.ranks * (size_t)run->limits.max_ring_docs; }

// Tokens, positions, targets and rows of wte; cu_seqlens of whole documents, which have one more entry a row;
// generation needs four.
size_t batch_index_ints(const Run* run, int max_tokens) {
    return 6 * (size_t)max_tokens + 4 + (run->limits.ranks > 1 ? 3 * ring_ints(run) : 0);
}

void batch_carve(Batch* b, const Run* run, void* memory, int* indices, int* device_indices, int max_tokens) {
    size_t n = (size_t)max_tokens;
    b->max_tokens = max_tokens;
    b->pieces = (Piece*)memory;
    b->micro_batches = (RankMicroBatch*)(b->pieces + n);
    b->spans = (Span*)(b->micro_batches + n);
    b->lengths = (int*)(b->spans + 2 * n);
    b->indices = indices;
    b->device_indices = device_indices;
    b->tokens = indices;
    b->positions = b->tokens + n;
    b->targets = b->positions + n;
    b->vocab_rows = b->targets + n;
    b->cu = b->vocab_rows + n;
    b->ring = indices + batch_index_ints(run, max_tokens) - (run->limits.ranks > 1 ? ring_ints(run) : 0);
}

static int* on_device(const Batch* b, const int* host) { return b->device_indices + (host - b->indices); }

// ---- pieces of documents

int batch_draw_val(Batch* b, const Run* run, int64_t* next, int64_t* tokens) {
    int64_t limit = MIN((int64_t)b->max_tokens, run->config.eval_tokens - *tokens), used = 0;
    b->training = 0;
    for (b->n_pieces = 0; *next < sampler_pieces(run->data.val, SPLIT_VAL); ++*next) {
        Piece piece = sampler_val_piece(run->data.val, *next);
        if (used + piece.length > limit && (*tokens > 0 || b->n_pieces > 0)) break;
        used += piece.length;
        b->pieces[b->n_pieces++] = piece;
    }
    *tokens += used;
    return b->n_pieces;
}

// ---- the plan

// Lengths and what follows from them alone.
static void count_pieces(Batch* b) {
    b->n_tokens = b->n_targets = 0;
    b->sum_s2 = 0;
    for (int i = 0; i < b->n_pieces; i++) {
        b->lengths[i] = b->pieces[i].length;
        b->n_tokens += b->pieces[i].length;
        b->n_targets += b->pieces[i].n_targets;
        b->sum_s2 += (double)b->pieces[i].length * b->pieces[i].length;
    }
}

// A rank that is alone packs its rows, whatever the planner.
static int make_plan(Batch* b, const Run* run, int64_t step, char* err, size_t errlen) {
    const Config* c = &run->config;
    const Setting* s = &run->setting;
    int alone = run->limits.ranks == 1;
    if (!strcmp(c->plan, "random"))
        return plan_random(&b->plan, step, b->lengths, b->n_pieces, &run->limits,
                           hash64((uint64_t)c->seed ^ (uint64_t)step), &b->arena, err, errlen);
    if (alone)
        return plan_static(&b->plan, step, b->lengths, b->n_pieces, &run->limits, c->cp_size, s->kind, &b->arena, err,
                           errlen);
    const Planner* planner = run_planner(run);
    b->predicted = planner == &planner_flex;  // whose prediction also tells of its search
    if (b->predicted)
        return plan_flex(&b->plan, &b->prediction, step, b->lengths, b->n_pieces, s, &b->arena, err, errlen);
    PlayRule rule;
    return planner->plan(run->settled, &b->plan, &rule, step, b->lengths, b->n_pieces, &b->arena, err, errlen);
}

// A prediction's terms as the model had them before anything was learnt: what was learnt are factors of them.
static void find_terms(Batch* b, const Run* run) {
    const Cost *now = &run->setting.cost, *before = &run->probed.cost;
    const CostTerms* t = &b->prediction.critical;
    double ms[CALIBRATION_TERMS] = {t->quadratic, t->per_token, t->communication, t->micro_batch, now->step},
           is[CALIBRATION_TERMS] = {now->quadratic, now->per_token, now->link_scale, cost_micro_batch(now), now->step},
           was[CALIBRATION_TERMS] = {before->quadratic, before->per_token, before->link_scale, cost_micro_batch(before),
                                     before->step};
    for (int i = 0; i < CALIBRATION_TERMS; i++) b->terms[i] = is[i] > 0 ? ms[i] * was[i] / is[i] : 0;
}

static int predict(Batch* b, const Run* run, char* err, size_t errlen) {
    if (!run->setting.groups) return 0;
    if (!b->predicted && predict_plan(&b->prediction, &b->plan, b->lengths, &run->setting, &b->arena, err, errlen))
        return -1;
    b->predicted = 1;
    find_terms(b, run);
    return 0;
}

// ---- what this rank does of it

static void list_micro_batches(Batch* b, const Run* run) {
    b->is_read = 0;
    int rank = run->model.comm->rank, in_rounds = run->setting.rounds && run->limits.ranks > 1;
    RankMicroBatch nothing = {NULL, {1, 1, 0, 0, 0, 0, 0}, 0, 0, 0};
    b->n_micro_batches = in_rounds ? b->plan.n_rounds : 0;
    for (int r = 0; r < b->n_micro_batches; r++) b->micro_batches[r] = nothing;
    for (int i = 0; i < b->plan.n_micro_batches; i++) {
        const MicroBatch* mb = &b->plan.micro_batches[i];
        if (rank < mb->first_rank || rank >= mb->first_rank + mb->cp_size) continue;
        RankMicroBatch* mine = &b->micro_batches[in_rounds ? mb->round : b->n_micro_batches++];
        *mine = nothing;
        mine->mb = mb;
    }
}

size_t batch_schedule_bytes(const Run* run, int max_tokens) {
    size_t v = (size_t)max_tokens, P = (size_t)run->model.stages;
    return P * v * (6 * sizeof(Task) + 6 * sizeof(double)) + (P << 10);
}

// The longest rank of round r of the whole model, in ms, or in tokens where no cost is known.
static double round_cost(const Batch* b, const Run* run, int r) {
    double most = 0;
    for (int i = 0; i < b->plan.n_micro_batches; i++) {
        const MicroBatch* mb = &b->plan.micro_batches[i];
        if ((run->limits.ranks > 1 ? mb->round : i) != r) continue;
        double s2 = 0, tokens = 0;
        for (int d = mb->first_doc; d < mb->first_doc + mb->n_docs; d++) {
            double s = b->lengths[b->plan.docs[d]];
            tokens += s, s2 += s * s;
        }
        const GroupCost* g = run->setting.groups ? &run->setting.groups[mb->cp_size] : NULL;
        double cost = g && g->ulysses_size ? group_ms(g, s2, tokens) + g->micro_batch
                                           : (tokens + run->limits.quadratic * s2) / mb->cp_size;
        most = MAX(most, cost);
    }
    return most;
}

// A backward pass takes twice a forward pass, and another one where blocks are computed again.
static int make_schedule(Batch* b, const Run* run, char* err, size_t errlen) {
    const Model* m = &run->model;
    int P = m->stages, v = b->n_micro_batches, slots[MOST_STAGES];
    double share[MOST_STAGES], passes = m->recompute == RECOMPUTE_BLOCK ? 4 : 3;
    double* forward = TAKE(&b->arena, double, 2 * (size_t)P * (size_t)v + 1);
    double* backward = forward + (size_t)P * (size_t)v;
    if (arena_check(&b->arena, err, errlen)) return -1;
    pipeline_shares(share, m);
    for (int s = 0; s < P; s++) slots[s] = pipeline_slots(P, s);
    for (int r = 0; r < v; r++) {
        double cost = P > 1 ? round_cost(b, run, r) : 0;  // one stage runs as it comes
        for (int s = 0; s < P; s++) {
            forward[s * v + r] = cost * P * share[s] / passes;
            backward[s * v + r] = (passes - 1) * forward[s * v + r];
        }
    }
    Pipeline pipeline = {P, v, b->training, slots, forward, backward, 0};
    if (schedule_tasks(&b->schedule, &pipeline, &b->arena, err, errlen)) return -1;
    if (!run->config.check_plan) return 0;
    char why[ERR_BYTES];
    if (schedule_check(&b->schedule, &pipeline, &b->arena, why, sizeof why))
        return fail(err, errlen, "this schedule is wrong: %s", why);
    return 0;
}

int batch_list(Batch* b, const Run* run, char* err, size_t errlen) {
    list_micro_batches(b, run);
    return make_schedule(b, run, err, errlen);
}

// What the step takes is what its stages take together.
static void predict_pipeline(Batch* b, const Run* run) {
    double* ms = &b->prediction.makespan;
    if (run->model.stages == 1 || !b->predicted || *ms <= 0) return;
    double longer = b->schedule.makespan / *ms;
    for (int i = 0; i < CALIBRATION_TERMS - 1; i++) b->terms[i] *= longer;  // all but the update
    *ms = b->schedule.makespan;
}

int batch_plan(Batch* b, const Run* run, int64_t step, char* err, size_t errlen) {
    char why[ERR_BYTES];
    double started = now_seconds();
    count_pieces(b);
    b->predicted = 0;
    arena_reset(&b->arena, (ArenaMark){0});
    if (make_plan(b, run, step, err, errlen) || predict(b, run, err, errlen)) return -1;
    if (run->limits.ranks > 1 && b->plan.n_rounds == 0 && plan_set_rounds(&b->plan, &b->arena, err, errlen)) return -1;
    if (run->config.check_plan &&
        plan_check(&b->plan, b->lengths, b->n_pieces, &run->limits, &b->arena, why, sizeof why))
        return fail(err, errlen, "this plan is wrong: %s", why);
    if (batch_list(b, run, err, errlen)) return -1;
    predict_pipeline(b, run);
    b->plan_us = 1e6 * (now_seconds() - started);
    return 0;
}

// ---- the tokens

// Reads one micro-batch's share behind the n tokens that stand in the batch; returns how many stand there now, or -1.
static int read_micro_batch(Batch* b, const Sampler* sampler, RankMicroBatch* mine, int rank, int n, char* err,
                            size_t errlen) {
    mine->share = micro_batch_share(&b->plan, mine->mb, b->lengths, rank, b->spans);
    for (int i = 0; i < mine->share.n_spans; i++) {
        const Span* span = &b->spans[i];
        Piece part = b->pieces[span->doc];
        // Only the end of a piece can lack a label.
        int is_end = span->first + span->length == part.length, unlabelled = part.length - part.n_targets;
        part.first += span->first;
        part.length = span->length;
        part.n_targets = span->length - (is_end ? unlabelled : 0);
        if (sampler_read(sampler, &part, b->tokens + n, b->targets + n, err, errlen)) return -1;
        for (int t = 0; t < span->length; t++) b->positions[n + t] = span->first + t;
        n += span->length;
    }
    return n;
}

static void upload_ints(const Batch* b, const Model* m, const int* host, int n) {
    m->k->upload(on_device(b, host), host, (size_t)n * sizeof(int), m->s);
}

// The first n tokens, their positions and targets, and the rows of wte that this rank holds of them.
static void upload_tokens(Batch* b, const Model* m, int n) {
    upload_ints(b, m, b->tokens, n);
    upload_ints(b, m, b->positions, n);
    upload_ints(b, m, b->targets, n);
    if (!m->tp) return;
    for (int i = 0; i < n; i++) {
        int row = b->tokens[i] - m->shape.first_vocab_row;
        b->vocab_rows[i] = row >= 0 && row < m->shape.vocab_rows ? row : -1;
    }
    upload_ints(b, m, b->vocab_rows, n);
}

// What of a row of N tokens is this rank's own outside attention and MLP.
static void share_tokens(Row* row, const Model* m, int N) {
    row->N = N;
    row->n = token_share(N, tp_size(m));
    row->first = MIN(N, tp_rank(m) * row->n);
    row->own = MIN(row->n, N - row->first);
}

int batch_read(Batch* b, const Model* m, const Sampler* sampler, char* err, size_t errlen) {
    int n = 0, cu = 0, ring = 0;
    for (int i = 0; i < b->n_micro_batches; i++) {
        RankMicroBatch* mine = &b->micro_batches[i];
        mine->tokens = n, mine->cu = cu, mine->ring = ring;
        if (!mine->mb) continue;
        if ((n = read_micro_batch(b, sampler, mine, m->comm->rank, n, err, errlen)) < 0) return -1;
        micro_batch_cu(&b->plan, mine->mb, b->lengths, b->cu + cu);
        cu += (int)micro_batch_cu_ints(mine->mb);
        if (mine->share.ring_size == 1) continue;
        micro_batch_ring_tokens(&b->plan, mine->mb, b->lengths, b->ring + ring, b->ring + ring + mine->share.ring_size);
        ring += 2 * mine->share.ring_size;
    }
    b->n_own = n, b->n_cu = cu;
    b->is_read = 1;
    return 0;
}

void batch_upload(Batch* b, const Model* m, const Sampler* sampler) {
    char err[ERR_BYTES];
    if (!b->is_read && batch_read(b, m, sampler, err, sizeof err)) die("%s", err);
    upload_tokens(b, m, b->n_own);
    upload_ints(b, m, b->cu, b->n_cu);
}

// In rounds that ZeRO-2, 3 or a pipeline need ranks wait in every layer anyway.
void batch_end_rounds(const Batch* b, const Model* m, int i) {
    if (!b->plan.has_barriers || m->zero.stage > 1 || m->stages > 1 || m->comm->size == 1) return;
    int from = i > 0 ? b->micro_batches[i - 1].mb->round : 0;
    int to = i < b->n_micro_batches ? b->micro_batches[i].mb->round : b->plan.n_rounds - 1;
    for (int r = from; r < to; r++) {
        m->k->clear(m->barrier, sizeof *m->barrier, m->s);
        m->comm->table->all_reduce(m->comm, m->barrier, 1, DT_F64, m->s);
    }
}

// A reduction waits for ranks that come to it late, and communications run in the order of the calls. So nothing of
// this rank may come behind its reductions, no barrier either: one rank has the row alone, or all ranks are in the last
// row of all together. Then every rank's order is a part of one global order, and no rank waits in a circle.
int batch_reduces_inside(const Batch* b, const Model* m, int i) {
    const MicroBatch *mb = b->micro_batches[i].mb, *last = &b->plan.micro_batches[b->plan.n_micro_batches - 1];
    if (i < b->n_micro_batches - 1 || !zero_can_reduce_inside(m)) return 0;
    if (b->plan.has_barriers && mb->round < b->plan.n_rounds - 1) return 0;
    return mb->cp_size == 1 || (mb == last && mb->cp_size == m->comm->size);
}

Row batch_row(const Batch* b, const Model* m, int i) {
    static uint64_t rows;  // so far, of this process
    const RankMicroBatch* mine = &b->micro_batches[i];
    Row row;
    memset(&row, 0, sizeof row);
    share_tokens(&row, m, mine->share.n);
    row.tokens = on_device(b, b->tokens + mine->tokens);
    row.vocab_rows = on_device(b, b->vocab_rows + mine->tokens);
    row.positions = on_device(b, b->positions + mine->tokens);
    row.targets = on_device(b, b->targets + mine->tokens);
    GroupAttention* g = &row.group;
    g->comm = m->comm;
    g->first_rank = mine->mb ? mine->mb->first_rank : m->comm->rank;
    g->n_docs = mine->mb ? mine->mb->n_docs : 0;
    g->ulysses_size = mine->share.ulysses_size, g->ring_size = mine->share.ring_size;
    g->ring_rank = mine->share.ring_rank, g->ulysses_rank = mine->share.ulysses_rank;
    g->NH = m->shape.heads;
    g->NKV = m->shape.kv_heads;
    g->HS = m->shape.HS;
    g->ring_tokens = g->ring_size > 1 ? b->ring + mine->ring : &mine->share.ring_n;
    g->ring_low = g->ring_size > 1 ? g->ring_tokens + g->ring_size : g->ring_tokens;
    g->cu = on_device(b, b->cu + mine->cu);
    g->scale = 1 / sqrtf((float)g->HS);
    g->row = ++rows;
    g->scratch = m->group_scratch;
    return row;
}

Row batch_cached_row(Batch* b, const Model* m, const int* tokens, int N, int cached) {
    Row row;
    memset(&row, 0, sizeof row);
    share_tokens(&row, m, N);
    row.tokens = on_device(b, b->tokens);
    row.vocab_rows = on_device(b, b->vocab_rows);
    row.positions = on_device(b, b->positions);
    row.cu = on_device(b, b->cu);
    row.use_cache = 1;
    row.cached = cached;
    memcpy(b->tokens, tokens, (size_t)N * sizeof(int));
    for (int i = 0; i < N; i++) b->positions[i] = cached + i, b->targets[i] = -1;
    b->cu[0] = b->cu[2] = 0, b->cu[1] = N, b->cu[3] = cached + N;
    upload_tokens(b, m, N);
    upload_ints(b, m, b->cu, 4);
    return row;
}

// Reads N tokens and their targets into the batch, from the first training pieces one after another.
static void read_tokens(Batch* b, const Sampler* sampler, int N) {
    char err[ERR_BYTES];
    SamplerPosition at = {0, 0};
    for (int n = 0; n < N; at.index++) {
        if (at.index == sampler_pieces(sampler, SPLIT_TRAIN)) at.index = 0;
        Piece piece = sampler_train_piece(sampler, at);
        piece.length = MIN(piece.length, N - n);
        piece.n_targets = MIN(piece.n_targets, piece.length);
        if (sampler_read(sampler, &piece, b->tokens + n, b->targets + n, err, sizeof err)) die("%s", err);
        n += piece.length;
    }
}

Row batch_probe_row(Batch* b, const Model* m, const Sampler* sampler, const int* lengths, int n) {
    char err[ERR_BYTES];
    MicroBatch mb = {m->comm->rank, 1, 1, 0, n, 0};
    int N = 0;
    arena_reset(&b->arena, (ArenaMark){0});
    plan_take(&b->plan, n, &b->arena);
    if (arena_check(&b->arena, err, sizeof err)) die("%s", err);
    RankMicroBatch local = {b->plan.micro_batches, {1, 1, 0, 0, 0, 0, 0}, 0, 0, 0};
    b->plan.micro_batches[0] = mb;
    for (int i = 0; i < n; i++) {
        b->plan.docs[i] = i;
        b->lengths[i] = lengths[i];
        for (int t = 0; t < lengths[i]; t++) b->positions[N++] = t;
    }
    local.share = micro_batch_share(&b->plan, &mb, b->lengths, m->comm->rank, NULL);
    b->micro_batches[0] = local;
    read_tokens(b, sampler, N);
    micro_batch_cu(&b->plan, &mb, b->lengths, b->cu);
    upload_tokens(b, m, N);
    upload_ints(b, m, b->cu, n + 1);
    return batch_row(b, m, 0);
}

// ---- the next step: planning and reading cost a step no time, a thread of its own does both while this one computes
//
// The two sides take turns. Between ahead_start and ahead_wait the thread owns run->ahead and reads what planning reads
// (configuration, limits, cost model); at all other times it sleeps, and the main thread may change them. The mutex
// orders the turns. The thread neither prints nor talks to other ranks: what went wrong, the main thread says.

enum { STACK_BYTES = 1 << 20 };  // planners have their scratch elsewhere; sanitizers want room

struct Ahead {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    Run* run;
    int64_t step;
    int busy, closing;  // the two sides' turns; under the mutex
    int failed;
    char err[ERR_BYTES];
};

static void draw_and_plan(Ahead* a) {
    Run* run = a->run;
    Batch* b = &run->ahead;
    b->training = 1;
    b->n_pieces = sampler_draw(run->data.train, &b->after, b->pieces, b->max_tokens, b->max_tokens);
    a->failed = batch_plan(b, run, a->step, a->err, sizeof a->err) ||
                batch_read(b, &run->model, run->data.train, a->err, sizeof a->err);
}

static void* work(void* argument) {
    Ahead* a = (Ahead*)argument;
    pthread_mutex_lock(&a->mutex);
    for (;;) {
        while (!a->busy && !a->closing) pthread_cond_wait(&a->changed, &a->mutex);
        if (a->closing) break;
        draw_and_plan(a);
        a->busy = 0;
        pthread_cond_signal(&a->changed);
    }
    pthread_mutex_unlock(&a->mutex);
    return NULL;
}

// Signals are for the main thread, which a signal must wake from what it waits for.
static int begin_thread(Ahead* a) {
    sigset_t all, before;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes)) return -1;
    sigfillset(&all);
    int failed = pthread_attr_setstacksize(&attributes, STACK_BYTES) || pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!failed) {
        failed = pthread_create(&a->thread, &attributes, work, a);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    pthread_attr_destroy(&attributes);
    return failed ? -1 : 0;
}

static Ahead* open_ahead(Run* run) {
    Ahead* a = (Ahead*)calloc(1, sizeof *a);
    if (!a) die("no memory for the thread that plans");
    a->run = run;
    if (pthread_mutex_init(&a->mutex, NULL) || pthread_cond_init(&a->changed, NULL) || begin_thread(a))
        die("cannot start the thread that plans: is the number of threads limited (ulimit -u)?");
    return a;
}

void ahead_start(Run* run, int64_t step) {
    SamplerPosition start = {0, 0};
    if (!run->planner) run->planner = open_ahead(run);
    Ahead* a = run->planner;
    // state stays behind the step at work until that is done.
    run->ahead.after = run->config.overfit           ? start
                       : step == run->state.step + 1 ? run->state.position
                                                     : run->batch.after;
    pthread_mutex_lock(&a->mutex);
    a->step = step;
    a->busy = 1;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->mutex);
}

double ahead_wait(Run* run) {
    Ahead* a = run->planner;
    double started = now_seconds();
    pthread_mutex_lock(&a->mutex);
    while (a->busy) pthread_cond_wait(&a->changed, &a->mutex);
    pthread_mutex_unlock(&a->mutex);
    if (a->failed) die("step %" PRId64 ": %s", a->step, a->err);
    return now_seconds() - started;
}

void ahead_close(Run* run) {
    Ahead* a = run->planner;
    if (!a) return;
    pthread_mutex_lock(&a->mutex);
    a->closing = 1;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->mutex);
    pthread_join(a->thread, NULL);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->mutex);
    free(a);
    run->planner = NULL;
}
