// batch_ranks.c - a step's documents on this rank: planned with all others', read, and laid out for the device.
//
// Every rank plans the whole step from lengths alone. What the plan should take is predicted where a cost model is
// known, whoever made the plan.
//
// Only the tokens of this rank's share are read. Every pass becomes a row, with the tokens of its micro-batches behind
// one another; cu_seqlens of all chunks stand in one array that goes to the device at once.
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "plan/published/published.h"
#include "plan/step/remap.h"
#include "run/model/tensor_parallel.h"
#include "run/strategies/strategies.h"
#include "run/step/batch_ranks.h"

// ---- the plan

// A rank that is alone packs its rows, whatever the planner.
static int make_plan(Batch* b, const Run* run, const Setting* s, int64_t step, Err err) {
    const Config* c = &run->config;
    int alone = run->clock->limits.ranks == 1;
    if (plan_checks && plan_checks->plan)
        return plan_checks->plan(&b->planned->plan, step, b->lengths, b->n_pieces, &run->clock->limits,
                                 hash64((uint64_t)c->seed ^ (uint64_t)step), &b->arena, err);
    if (alone)
        return plan_static(&b->planned->plan, step, b->lengths, b->n_pieces, &s->limits, c->cp_size, s->kind, &b->arena,
                           err);
    const Planner* planner = run_planner(run);
    b->planned->predicted = planner == &planner_flex;  // whose prediction also tells of its search
    if (b->planned->predicted)
        return plan_flex(&b->planned->plan, &b->planned->prediction, step, b->lengths, b->n_pieces, s, &b->arena, err);
    return planner->plan(run->clock->settled, &b->planned->plan, step, b->lengths, b->n_pieces, &b->arena, err);
}

// A prediction's terms as the model had them before anything was learnt: what was learnt are factors of them.
static void find_terms(Batch* b, const Run* run) {
    const Cost *now = &run->clock->setting.cost, *before = &run->clock->probed.cost;
    const CostTerms* t = &b->planned->prediction.critical;
    double ms[CALIBRATION_TERMS] = {t->quadratic, t->per_token, t->communication, t->micro_batch, now->step},
           is[CALIBRATION_TERMS] = {now->quadratic, now->per_token, now->link_scale, cost_micro_batch(now), now->step},
           was[CALIBRATION_TERMS] = {before->quadratic, before->per_token, before->link_scale, cost_micro_batch(before),
                                     before->step};
    for (int i = 0; i < CALIBRATION_TERMS; i++) b->planned->terms[i] = is[i] > 0 ? ms[i] * was[i] / is[i] : 0;
}

static int predict(Batch* b, const Run* run, Err err) {
    if (!run->clock->setting.groups) return 0;
    if (!b->planned->predicted &&
        predict_plan(&b->planned->prediction, &b->planned->plan, b->lengths, &run->clock->setting, &b->arena, err))
        return -1;
    b->planned->predicted = 1;
    find_terms(b, run);
    return 0;
}

// ---- what this rank does of it

// Whether all ranks have a pass in the last round of all.
static int all_end_together(const Plan* plan, char* seen) {
    int ranks = 0;
    memset(seen, 0, (size_t)plan->ranks);
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        if (mb->round < plan->n_rounds - 1) continue;
        for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++) ranks += !seen[r], seen[r] = 1;
    }
    return ranks == plan->ranks;
}

static int list_passes(Batch* b, const Run* run, Err err) {
    const Plan* plan = &b->planned->plan;
    int rank = run->model.comm->rank, in_rounds = run->clock->setting.rounds && run->clock->limits.ranks > 1, last = -1;
    ArenaMark mark = arena_mark(&b->arena);
    int* order = TAKE(&b->arena, int, plan->n_micro_batches);
    char* seen = TAKE(&b->arena, char, plan->ranks);
    if (arena_check(&b->arena, err) || pass_order(plan, run->clock->limits.node_size, order, &b->arena, err)) return -1;
    b->is_read = b->planned->n_groups = 0;
    b->planned->all_end_together = all_end_together(plan, seen);
    b->n_rows = in_rounds ? plan->n_rounds : 0;
    for (int i = 0; i < b->n_rows; i++) b->planned->passes[i] = (RankPass){0, 0};
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[order[i]];
        if (rank < mb->first_rank || rank >= mb->first_rank + mb->cp_size) continue;
        int pass = in_rounds ? mb->round : mb->round == last ? b->n_rows - 1 : b->n_rows++;
        if (mb->round != last) b->planned->passes[pass] = (RankPass){b->planned->n_groups, 0};
        last = mb->round;
        b->planned->passes[pass].n_groups++;
        b->planned->groups[b->planned->n_groups++] = (RankGroup){.mb = mb};
    }
    arena_reset(&b->arena, mark);
    return 0;
}

int batch_list(Batch* b, const Run* run, Err err) { return list_passes(b, run, err) ? -1 : batch_tasks(b, run, err); }

// A plan with the tokens of some micro-batches elsewhere is another one: what was predicted is not of it.
static int remap(Batch* b, const Run* run, const Setting* s, Err err) {
    RemapChoice choice = (RemapChoice)config_choice(&run->config, "--plan remap");
    int changed;
    if (plan_remap(&b->planned->plan, &changed, b->lengths, s, choice, &b->arena, err)) return -1;
    b->planned->predicted &= !changed;
    return 0;
}

// A plan, what it should take, and the tasks that follow from it.
static int plan_for(Batch* b, const Run* run, const Setting* s, int64_t step, Err err) {
    b->planned->predicted = 0;
    if (make_plan(b, run, s, step, err) || remap(b, run, s, err) || predict(b, run, err)) return -1;
    if (b->planned->plan.n_rounds == 0 && plan_set_rounds(&b->planned->plan, &b->arena, err)) return -1;
    if (batch_list(b, run, err)) return -1;
    batch_predict_tasks(b, run);
    return 0;
}

static int chooses_rounds(const Batch* b, const Run* run) {
    if (run->model.stages == 1 || !b->training || !run->clock->setting.groups) return 0;
    if (plan_checks && plan_checks->plan) return 0;
    return run->clock->limits.ranks == 1 || run_planner(run) == &planner_flex;
}

// The run's setting for rows of at most so many tokens; its groups lie in the arena.
static int set_capacity(Setting* s, Batch* b, const Run* run, int capacity, Err err) {
    s->limits.capacity = capacity;
    s->groups = TAKE(&b->arena, GroupCost, run->clock->limits.ranks + 1);
    if (arena_check(&b->arena, err)) return -1;
    cost_groups(s->groups, &run->clock->setting.cost, &s->limits, s->kind);
    return 0;
}

// Few long rounds leave stages idle at the ends of a step, many short ones pay what a round costs in any case. With v
// equal rounds of W ms in all, c ms more each, a step takes (W / v + c) (stages - 1 + v). So plans are made for rows
// that hold 1/v of the tokens, v = 1, 2, 4 ..., and played. Returns the capacity of the best.
static int best_capacity(Batch* b, const Run* run, int64_t step) {
    enum { WORSE = 2 };  // so many in a row end the search
    char why[ERR_BYTES];
    Setting s = run->clock->setting;
    ArenaMark mark = arena_mark(&b->arena);
    double least = INFINITY;
    int best = s.limits.capacity, worse = 0;
    for (int64_t v = 1; v < b->n_tokens && worse < WORSE; v *= 2) {
        int64_t share = CEIL_DIV(b->n_tokens, v * run->clock->limits.ranks);
        if (share >= 2 * (int64_t)run->clock->limits.capacity) continue;
        arena_reset(&b->arena, mark);
        if (set_capacity(&s, b, run, (int)MIN(share, (int64_t)run->clock->limits.capacity), why)) break;
        if (plan_for(b, run, &s, step, why)) break;  // the longest document does not fit
        worse = b->planned->schedule.makespan < least ? 0 : worse + 1;
        if (worse == 0) least = b->planned->schedule.makespan, best = s.limits.capacity;
    }
    arena_reset(&b->arena, mark);
    return best;
}

int batch_plan(Batch* b, const Run* run, int64_t step, Err err) {
    char why[ERR_BYTES];
    double started = now_seconds();
    batch_count(b);
    arena_reset(&b->arena, (ArenaMark){0});
    if (run->strategies && strategies_dispatch(b, run, step, err)) return -1;
    run = run_under((Run*)run, b->planned->strategy);
    Setting s = run->clock->setting;
    if (chooses_rounds(b, run) && set_capacity(&s, b, run, best_capacity(b, run, step), err)) return -1;
    if (plan_for(b, run, &s, step, err)) return -1;
    if (plan_checks &&
        plan_checks->check(&b->planned->plan, b->lengths, b->n_pieces, &run->clock->limits, &b->arena, why))
        return fail(err, "this plan is wrong: %s", why);
    b->planned->plan_us = 1e6 * (now_seconds() - started);
    return 0;
}

// ---- the tokens

// Reads one micro-batch's share behind what stands in the batch. 0, or -1.
static int read_share(Batch* b, const Sampler* sampler, const RankGroup* mine, Err err) {
    for (int i = 0; i < mine->share.n_spans; i++) {
        const Span* span = &b->planned->spans[i];
        if (batch_read_part(b, sampler, span->doc, span->first, span->length, err)) return -1;
    }
    return 0;
}

// Where a micro-batch of this rank lies in the row, and what it has.
static int place_group(Batch* b, const Model* m, const Run* run, RankGroup* mine, Err err) {
    mine->placed =
        micro_batch_placement(&b->planned->plan, mine->mb, b->lengths, run->clock->limits.kv_heads, &b->arena);
    mine->chunk_tokens = TAKE(&b->arena, int, mine->placed.n_chunks);
    if (arena_check(&b->arena, err)) return -1;
    mine->share = micro_batch_share(&b->planned->plan, mine->mb, &mine->placed, m->comm->rank, NULL);
    mine->cu = b->n_cu;
    micro_batch_cu(&mine->placed, mine->mb, b->cu + b->n_cu);
    for (int j = 0; j < mine->placed.n_chunks; j++) {
        b->n_cu += mine->mb->n_docs + 1;
        mine->chunk_tokens[j] = b->cu[b->n_cu - 1];
    }
    return 0;
}

// Behind what stands in the batch; first those micro-batches whose ranks do not share heads, as attention wants it.
static int read_pass(Batch* b, const Model* m, const Sampler* sampler, int i, Err err) {
    BatchPlan* x = b->planned;
    RankGroup *first = x->groups + x->passes[i].first_group, *end = first + x->passes[i].n_groups;
    for (int shares_heads = 0; shares_heads < 2; shares_heads++)
        for (RankGroup* mine = first; mine < end; mine++) {
            if ((mine->share.ulysses_size > 1) != shares_heads) continue;
            mine->first = b->n_read - b->rows[i].token;
            micro_batch_share(&x->plan, mine->mb, &mine->placed, m->comm->rank, x->spans);
            if (read_share(b, sampler, mine, err)) return -1;
        }
    return 0;
}

int batch_read(Batch* b, const Run* run, const Sampler* sampler, Err err) {
    run = run_under((Run*)run, b->planned->strategy);
    const Model* m = &run->model;
    b->n_read = b->n_cu = 0;
    b->planned->attention = TAKE(&b->arena, GroupAttention, b->planned->n_groups);
    b->planned->shared = TAKE(&b->arena, RowAttention, b->n_rows);
    if (arena_check(&b->arena, err)) return -1;
    for (int i = 0; i < b->planned->n_groups; i++)
        if (place_group(b, m, run, &b->planned->groups[i], err)) return -1;
    for (int i = 0, group = 0; i < b->n_rows; group += b->planned->passes[i++].n_groups) {
        b->rows[i] = (RowPlace){b->n_read, group < b->planned->n_groups ? b->planned->groups[group].cu : b->n_cu};
        if (read_pass(b, m, sampler, i, err)) return -1;
    }
    b->rows[b->n_rows] = (RowPlace){b->n_read, b->n_cu};
    b->is_read = 1;
    return 0;
}

static void read_now(Run* run, const Sampler* sampler) {
    char err[ERR_BYTES];
    if (!run->batch.is_read && batch_read(&run->batch, run, sampler, err)) die("%s", err);
}

// ---- what core.c asks for

// The rows of wte that this rank holds of the first n tokens.
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

// In rounds that ZeRO-2, 3 or a pipeline need ranks wait in every layer anyway.
void batch_end_rounds(const Batch* b, const Model* m, int i) {
    if (!b->planned->plan.has_barriers || m->ranks->zero.stage > 1 || m->stages > 1 || m->comm->size == 1) return;
    int from = i > 0 ? b->planned->groups[b->planned->passes[i - 1].first_group].mb->round : 0;
    int to =
        i < b->n_rows ? b->planned->groups[b->planned->passes[i].first_group].mb->round : b->planned->plan.n_rounds - 1;
    for (int r = from; r < to; r++) {
        m->k->clear(m->barrier, sizeof *m->barrier, m->s);
        m->comm->table->all_reduce(m->comm, m->barrier, 1, DT_F64, m->s);
    }
}

// A reduction waits for ranks that come to it late, and communications run in the order of the calls. So nothing of
// this rank may come behind its reductions, no barrier either: one rank has the row alone, or all ranks are in the last
// round of all, where reductions of a layer stand between its exchanges and those of the layer below. Then every rank's
// order is a part of one global order, and no rank waits in a circle. With ZeRO-2 and 3 all ranks are in every round.
int batch_reduces_inside(const Batch* b, const Model* m, int i) {
    if (i < b->n_rows - 1 || !zero_can_reduce_inside(m)) return 0;
    if (m->ranks->zero.stage > 1) return 1;
    int shared = 0, round = 0;
    for (int g = b->planned->passes[i].first_group;
         g < b->planned->passes[i].first_group + b->planned->passes[i].n_groups; g++)
        shared |= b->planned->groups[g].mb->cp_size > 1, round = b->planned->groups[g].mb->round;
    if (b->planned->plan.has_barriers && round < b->planned->plan.n_rounds - 1) return 0;
    return !shared || b->planned->all_end_together;
}

_Static_assert((int)MOST_SHARED == (int)MOST_SHARED_GROUPS, "plans share as many at once as attention can");

static GroupAttention group_attention(const Batch* b, const RankGroup* mine) {
    const Share* share = &mine->share;
    GroupAttention g;
    memset(&g, 0, sizeof g);
    g.first_rank = mine->mb->first_rank;
    g.ulysses_size = share->ulysses_size, g.ring_size = share->ring_size;
    g.ring_rank = share->ring_rank, g.ulysses_rank = share->ulysses_rank;
    g.first = mine->first;
    g.n_docs = mine->mb->n_docs, g.n_chunks = mine->placed.n_chunks;
    g.head_border = mine->placed.head_border;
    g.token_border = mine->placed.token_border + share->ring_rank * (share->ulysses_size + 1);
    g.owner = mine->placed.owner, g.chunk_tokens = mine->chunk_tokens;
    g.cu = batch_on_device(b, b->cu + mine->cu);
    return g;
}

// What of the row is this rank's own outside attention and MLP; and the documents that other ranks share.
static void fill_row(Run* run, Row* row, int i) {
    const Model* m = &run->model;
    const Batch* b = &run->batch;
    BatchPlan* x = b->planned;
    row->n = token_share(row->N, tp_size(m));
    row->first = MIN(row->N, tp_rank(m) * row->n);
    row->own = MIN(row->n, row->N - row->first);
    row->vocab_rows = batch_on_device(b, x->vocab_rows + (i < 0 ? 0 : b->rows[i].token));
    if (i < 0) return;
    const RankPass* pass = &x->passes[i];
    if (pass->n_groups == 1 && x->groups[pass->first_group].mb->cp_size == 1) return;
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
    a->scratch = m->group_scratch;
}

static void decode(Run* run, Row* row) {
    pipeline_meet(&run->model, row, TASK_RECEIVE);
    model_forward(&run->model, row);
    pipeline_meet(&run->model, row, TASK_SEND);
}

static void share_logits(Run* run) {
    Model* m = &run->model;
    if (!m->shape.no_head) tp_share_logits(m, run->host_logits);
    pipeline_share(m, run->host_logits, (size_t)m->shape.Vp, m->stages - 1);
}

const RunRanks run_ranks = {eval_plan,       eval_end,      read_now, upload_vocab_rows, fill_row,
                            batch_next_pass, eval_loss_sum, decode,   share_logits};

// Reads N tokens and their targets into the batch, from the first training pieces one after another.
static void read_tokens(Batch* b, const Sampler* sampler, int N) {
    char err[ERR_BYTES];
    SamplerPosition at = {0};
    for (int n = 0; n < N; at.index++) {
        if (at.index == sampler_pieces(sampler, SPLIT_TRAIN)) at.index = 0;
        Piece piece = sampler_train_piece(sampler, at);
        piece.length = MIN(piece.length, N - n);
        piece.n_targets = MIN(piece.n_targets, piece.length);
        if (sampler_read(sampler, &piece, b->tokens + n, b->targets + n, err)) die("%s", err);
        n += piece.length;
    }
}

Row batch_probe_row(Run* run, const int* lengths, int n) {
    char err[ERR_BYTES];
    Batch* b = &run->batch;
    const Model* m = &run->model;
    MicroBatch mb = {m->comm->rank, 1, 1, 0, n, 0};
    BatchPlan* x = b->planned;
    int N = 0;
    arena_reset(&b->arena, (ArenaMark){0});
    plan_take(&x->plan, n, &b->arena);
    x->attention = TAKE(&b->arena, GroupAttention, 1);
    if (arena_check(&b->arena, err)) die("%s", err);
    x->plan.micro_batches[0] = mb;
    x->plan.n_docs = n, x->plan.n_micro_batches = 1;
    for (int i = 0; i < n; i++) {
        b->planned->plan.docs[i] = i;
        b->lengths[i] = lengths[i];
        for (int t = 0; t < lengths[i]; t++) b->positions[N++] = t;
    }
    b->n_cu = 0, b->is_read = 1;
    x->groups[0] = (RankGroup){.mb = x->plan.micro_batches};
    x->passes[0] = (RankPass){0, 1};
    if (place_group(b, m, run, &x->groups[0], err)) die("%s", err);
    read_tokens(b, run->data.train, N);
    b->n_read = N;
    b->rows[0] = (RowPlace){0, 0}, b->rows[1] = (RowPlace){N, b->n_cu};
    batch_upload(run, NULL);
    return batch_row(run, 0);
}
