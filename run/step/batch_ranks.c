// batch_ranks.c - a step's documents on this rank: planned with all others', read, and laid out for the device.
//
// Every rank plans the whole step from lengths alone, and reads only the tokens of its share. Every pass becomes a row,
// with the tokens of its micro-batches one after another; cu_seqlens of all chunks go to the device in one array.
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/sampler_cut.h"
#include "data/sampler_join.h"
#include "plan/published/published.h"
#include "run/model/tensor_parallel.h"
#include "run/step/labels.h"
#include "run/setup/setup.h"

// ---- the plan

const double* batch_squares(Batch* b, const Run* run) {
    double* squares = run_has_trees(run) ? TAKE(&b->arena, double, b->n_pieces) : NULL;
    for (int i = 0; i < b->n_pieces && squares; i++) squares[i] = b->pieces[i].squares;
    return squares;
}

// Returns the world of this rank's job (plan/step/step_plan.h), and its stages in `stage`.
static PlanWorld plan_world(const Run* run, int training, PlanStage stage[MOST_STAGES]) {
    const Model* m = &run->model;
    const Clock* clock = run->clock;
    const Planner* planner = run_planner(run);
    double matmuls[MOST_STAGES], layers[MOST_STAGES];
    layout_shares(&m->ranks->layout, &m->whole, matmuls, layers);
    for (int s = 0; s < m->stages; s++) {
        // A machine that knows whole pipelines counts all stages as equal.
        if (clock->probed.n_schemes > 0) matmuls[s] = layers[s] = 1.0 / m->stages;
        stage[s] = (PlanStage){matmuls[s], layers[s], layout_again(&m->ranks->layout, s),
                               clock->stage_speeds + s * clock->limits.ranks, &clock->stage_weights[s]};
    }
    PlanWorld w = {.setting = clock->setting,
                   .before = clock->probed.cost,
                   .seed = (uint64_t)run->config.seed,
                   .remap = (RemapChoice)config_choice(&run->config, "--plan remap"),
                   .evens = m->ranks->owner && training,
                   .training = training,
                   .stages = m->stages,
                   .stage = stage,
                   .links = transfer_times(&clock->probed, &m->whole, (int)dtype_bytes(m->dt), clock->limits.node_size),
                   .across = run_node_size(run, m->job, 1, 1) < m->job->size,
                   .stream = m->whole.C * (double)dtype_bytes(m->dt)};
    w.links.cost = &clock->setting.cost;
    if (planner && planner != &planner_flex) w.planner = planner->plan;
    if (planner && planner->open != planner_open_setting) w.state = clock->settled;
    return w;
}
// ---- this rank's part in it

// Returns 1 if all ranks have a pass in the last round.
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

int batch_list(Batch* b, const Run* run, Err err) {
    BatchPlan* x = b->planned;
    const Plan* plan = &x->made.plan;
    PlanStage stage[MOST_STAGES];
    PlanWorld world = plan_world(run, b->training, stage);
    int rank = run->model.comm->rank, in_rounds = run->clock->setting.rounds && run->clock->limits.ranks > 1, last = -1;
    ArenaMark mark = arena_mark(&b->arena);
    int* order = TAKE(&b->arena, int, plan->n_micro_batches);
    char* seen = TAKE(&b->arena, char, plan->ranks);
    if (arena_check(&b->arena, err) || pass_order(plan, run->clock->limits.node_size, order, &b->arena, err)) return -1;
    b->is_read = x->n_groups = 0;
    x->all_end_together = all_end_together(plan, seen);
    b->n_rows = in_rounds ? plan->n_rounds : 0;
    for (int i = 0; i < b->n_rows; i++) x->passes[i] = (RankPass){0, 0};
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[order[i]];
        if (rank < mb->first_rank || rank >= mb->first_rank + mb->cp_size) continue;
        int pass = in_rounds ? mb->round : mb->round == last ? b->n_rows - 1 : b->n_rows++;
        if (mb->round != last) x->passes[pass] = (RankPass){x->n_groups, 0};
        last = mb->round;
        x->passes[pass].n_groups++;
        x->groups[x->n_groups++] = (RankGroup){.mb = mb};
    }
    arena_reset(&b->arena, mark);
    return step_schedule(&x->made, &world, b->lengths, b->n_rows, &b->arena, err);
}

// ---- reductions inside a pass, and the times at which passes use layers (--strategies)

static int is_shared(const BatchPlan* x, int i) {
    int shared = 0, first = x->passes[i].first_group;
    for (int g = first; g < first + x->passes[i].n_groups; g++) shared |= x->groups[g].mb->cp_size > 1;
    return shared;
}

// A reduction waits for ranks that come to it late, and communications run in the order of the calls. So nothing of
// this rank may come after its reductions, no barrier either: one rank has the row alone, or all ranks are in the last
// round. There reductions of a layer stand between its exchanges and those of the layer below. So every rank's order is
// a part of one global order, and no rank waits in a circle. With ZeRO-2 and 3 all ranks are in every round.
int pass_reduces_inside(const Batch* b, const Model* m, int i) {
    const BatchPlan* x = b->planned;
    if (i < b->n_rows - 1 || !zero_can_reduce_inside(m)) return 0;
    if (m->ranks->zero.stage > 1) return 1;
    if (x->made.plan.has_barriers && pass_round(x, i) < x->made.plan.n_rounds - 1) return 0;
    return !is_shared(x, i) || x->all_end_together;
}

// Returns the ms of the layers of this rank's stage in pass i; fixed: the ms after them; of_rank (ranks): scratch.
static double pass_ms(double* fixed, const Batch* b, const Run* run, const PlanWorld* world, int i,
                      RankRound* of_rank) {
    const Model* m = &run->model;
    const BatchPlan* x = b->planned;
    const RankPass* pass = &x->passes[i];
    const PlanStage* stage = &world->stage[m->stage];
    int data = m->comm->rank, P = m->stages;
    memset(of_rank, 0, sizeof *of_rank * (size_t)run->clock->limits.ranks);
    for (int g = pass->first_group; g < pass->first_group + pass->n_groups; g++)
        round_add(of_rank, &x->made, world, b->lengths, x->groups[g].mb);
    const RankRound* own = &of_rank[data];
    double v = stage->speeds[data];
    double head = m->shape.no_head ? 0 : (double)m->whole.V * m->whole.C / shape_matmul_weights(&m->whole);
    *fixed = P * own->micro_batch * stage->layers;
    return P * (own->matmuls / v * (stage->matmuls - head) + (own->attention / v + own->messages) * stage->layers);
}

// Fills the window but for the end of the step, which is known when all ranks have told the times of their jobs.
static int find_window(Batch* b, const Run* run, Err err) {
    const Model* m = &run->model;
    int last = b->n_rows - 1, shares = m->stages > 1 || m->ranks->zero.stage > 1;
    double again = layout_again(&m->ranks->layout, m->stage), fixed;
    PlanStage stage[MOST_STAGES];
    PlanWorld world = plan_world(run, b->training, stage);
    MoveWindow* w = &b->planned->window;
    ArenaMark mark = arena_mark(&b->arena);
    RankRound* of_rank = TAKE(&b->arena, RankRound, run->clock->limits.ranks);
    if (arena_check(&b->arena, err)) return -1;
    for (int i = 0; i <= last; i++) shares |= is_shared(b->planned, i);
    *w = (MoveWindow){.first_layer = m->shape.first_layer, .layers = m->shape.L, .lag = m->ranks->zero.stage > 1};
    w->together = m->world->rank - (shares ? m->job->rank : tp_rank(m));
    if (last >= 0) {
        w->forward = pass_ms(&fixed, b, run, &world, 0, of_rank) / (3 + again), w->first = m->stage * w->forward;
        w->backward = pass_ms(&w->tail, b, run, &world, last, of_rank) * (2 + again) / (3 + again);
        w->hides = pass_reduces_inside(b, m, last) && (!m->k->on_host || m->k->virtual_time);
        w->meets = run->clock->probed.n_schemes == 0 && (m->tp || is_shared(b->planned, last));
    }
    arena_reset(&b->arena, mark);
    return 0;
}

// Lists the tasks that follow from the plan.
static int list_and_predict(Batch* b, const Run* run, Err err) {
    if (batch_list(b, run, err)) return -1;
    return run->model.ranks->owner ? find_window(b, run, err) : 0;
}

// Plans, with the same result on all ranks of the job.
static int choose_plan(Batch* b, const Run* run, int64_t step, Err err) {
    PlanStage stage[MOST_STAGES];
    PlanWorld world = plan_world(run, b->training, stage);
    return step_plan(&b->planned->made, &world, step, b->lengths, batch_squares(b, run), b->n_pieces, &b->arena, err);
}

// Returns the most tokens of a tree of joined documents. One rank has a tree alone, so a row of every rank must hold
// it, and it takes no more than an even share of the step.
static int64_t most_of_a_tree(const Run* run, int64_t tokens) {
    int64_t ranks = run->clock->limits.ranks * run->model.stages, holds = run->settled.capacity;
    if (run_planner(run) == &planner_fixed) holds = MIN(holds, run->config.context);
    if (run->strategies) ranks = run->model.world->size, holds = strategies_holds(run);
    return MIN(holds, CEIL_DIV(tokens, ranks));
}

int batch_cut_trees(Batch* b, const Run* run, const Sampler* sampler, Err err) {
    int64_t room = run->cluster->tree_room;
    int n = room ? sampler_cut(sampler, b->pieces, b->n_pieces, room, b->max_tokens, &b->arena, err) : b->n_pieces;
    if (n < 0) return -1;
    b->n_pieces = n;
    batch_count(b);
    return 0;
}

int batch_draw_joined(Batch* b, const Run* run, Err err) {
    ArenaMark mark = arena_mark(&b->arena);
    batch_draw(b, run);
    batch_count(b);
    b->planned->drawn = b->n_tokens;
    if (!run_joins(run)) return batch_cut_trees(b, run, run->data.train, err);
    b->n_pieces = sampler_join(run->data.train, b->pieces, b->n_pieces, most_of_a_tree(run, b->n_tokens), b->tokens,
                               &b->arena, err);
    arena_reset(&b->arena, mark);
    return b->n_pieces < 0 ? -1 : batch_cut_trees(b, run, run->data.train, err);
}

static int draw_and_choose(Batch* b, const Run* run, int64_t step, Err err) {
    return batch_draw_joined(b, run, err) ? -1 : choose_plan(b, run, step, err);
}

static int plan(Batch* b, const Run* run, int64_t step, PlanMaker make, Err err) {
    double started = now_seconds();
    arena_reset(&b->arena, (ArenaMark){0});
    if (run->strategies && strategies_dispatch(b, run, step, err)) return -1;
    run = run_under((Run*)run, b->planned->strategy);
    if (plan_once(b, run, step, make, make == draw_and_choose, err) || list_and_predict(b, run, err)) return -1;
    b->planned->plan_us = 1e6 * (now_seconds() - started);
    return 0;
}

int batch_plan(Batch* b, const Run* run, int64_t step, Err err) {
    batch_count(b);
    return plan(b, run, step, choose_plan, err);
}

int batch_draw_and_plan(Batch* b, const Run* run, int64_t step, Err err) {
    if (!run->strategies) return plan(b, run, step, draw_and_choose, err);
    if (batch_draw_joined(b, run, err)) return -1;
    return batch_plan(b, run, step, err);
}

// ---- the tokens

// Returns the number of segments of a micro-batch's documents, and fills lengths and parents of each in their order;
// lengths NULL: counts only.
static int list_segments(const Batch* b, const Docs* docs, const MicroBatch* mb, int* lengths, int* parents) {
    int n = 0;
    for (int i = 0; i < mb->n_docs; i++) {
        int doc = b->planned->made.plan.docs[mb->first_doc + i], length = b->lengths[doc];
        const DocsSegment* list = NULL;
        const Piece* piece = &b->pieces[doc];
        for (int k = 0; lengths && k < piece->n_parts; k++) {
            const Piece* part = piece_stretch(b->pieces, piece, k);
            lengths[n + k] = part->length, parents[n + k] = part->parent < 0 ? -1 : n + part->parent;
        }
        n += piece->n_parts;
        if (piece->n_parts) continue;
        int of_doc = docs_segments(docs, piece->doc, &list);
        for (int k = 0; lengths && k < MAX(of_doc, 1); k++) {
            lengths[n + k] = of_doc ? list[k].length : length;
            parents[n + k] = of_doc && list[k].parent >= 0 ? n + list[k].parent : -1;
        }
        n += MAX(of_doc, 1);
    }
    return n;
}

static int place_tree(Batch* b, const Docs* docs, RankGroup* mine, Err err) {
    int n = list_segments(b, docs, mine->mb, NULL, NULL);
    mine->tree = NULL;
    if (n == mine->mb->n_docs) return 0;
    if (mine->share.ring_size > 1) return fail(err, "a tree is in a ring: expected a group that shares heads");
    int *lengths = TAKE(&b->arena, int, n), *parents = TAKE(&b->arena, int, n);
    TreeLevel* levels = TAKE(&b->arena, TreeLevel, n);
    mine->tree = TAKE(&b->arena, Tree, 1);
    if (arena_check(&b->arena, err)) return -1;
    list_segments(b, docs, mine->mb, lengths, parents);
    tree_fill(mine->tree, levels, b->cu + b->n_cu, lengths, parents, n);
    for (int i = 0; i < mine->tree->n_levels; i++) {
        levels[i].cu_q = batch_on_device(b, levels[i].cu_q);
        levels[i].cu_k = batch_on_device(b, levels[i].cu_k);
    }
    mine->tree->cu = batch_on_device(b, mine->tree->cu);
    b->n_cu += (int)tree_ints(n);
    return 0;
}

// Finds this rank's share of a micro-batch, and its cu_seqlens.
static int place_group(Batch* b, const Run* run, const Docs* docs, RankGroup* mine, Err err) {
    const Plan* plan = &b->planned->made.plan;
    mine->placed = micro_batch_placement(plan, mine->mb, b->lengths, run->clock->limits.kv_heads, &b->arena);
    mine->chunk_tokens = TAKE(&b->arena, int, mine->placed.n_chunks);
    if (arena_check(&b->arena, err)) return -1;
    mine->share = micro_batch_share(plan, mine->mb, &mine->placed, run->model.comm->rank, NULL);
    mine->cu = b->n_cu;
    micro_batch_cu(&mine->placed, mine->mb, b->cu + b->n_cu);
    for (int j = 0; j < mine->placed.n_chunks; j++) {
        b->n_cu += mine->mb->n_docs + 1;
        mine->chunk_tokens[j] = b->cu[b->n_cu - 1];
    }
    return place_tree(b, docs, mine, err);
}

// Appends tokens of a piece, with their positions on the paths of a tree. A part of a joined piece keeps its positions
// in its own document.
static int read_span(Batch* b, const Sampler* sampler, const Span* span, Err err) {
    const Piece* piece = &b->pieces[span->doc];
    for (int k = 0, first = 0; k < piece_stretches(piece); k++) {
        const Piece* part = piece_stretch(b->pieces, piece, k);
        int from = MAX(span->first - first, 0), n = MIN(span->first + span->length - first, part->length) - from;
        int* positions = b->positions + b->n_read;
        if (n > 0) {
            if (batch_read_part(b, sampler, (int)(part - b->pieces), from, n, err)) return -1;
            for (int t = 0; t < n && piece->n_parts; t++) positions[t] += (int)part->first;
            docs_tree_positions(sampler->docs, part->doc, part->first + from, n, positions);
            if (b->planned->starts)
                labels_read(b, sampler, part, from, n, b->planned->starts[span->doc] + first + from);
        }
        first += part->length;
    }
    return 0;
}

// Appends pass i to the batch. Micro-batches whose ranks do not share heads come first, as attention wants it.
static int read_pass(Batch* b, const Model* m, const Sampler* sampler, int i, Err err) {
    BatchPlan* x = b->planned;
    RankGroup *first = x->groups + x->passes[i].first_group, *end = first + x->passes[i].n_groups;
    for (int shares_heads = 0; shares_heads < 2; shares_heads++)
        for (RankGroup* mine = first; mine < end; mine++) {
            if ((mine->share.ulysses_size > 1) != shares_heads) continue;
            mine->first = b->n_read - b->rows[i].token;
            micro_batch_share(&x->made.plan, mine->mb, &mine->placed, m->comm->rank, x->spans);
            for (const Span* span = x->spans; span < x->spans + mine->share.n_spans; span++) {
                if (m->k->no_results) b->n_read += span->length;
                else if (read_span(b, sampler, span, err)) return -1;
            }
        }
    return 0;
}

int batch_read(Batch* b, const Run* run, const Sampler* sampler, Err err) {
    BatchPlan* x = b->planned;
    run = run_under((Run*)run, x->strategy);
    b->n_read = b->n_cu = 0;
    x->attention = TAKE(&b->arena, GroupAttention, x->n_groups);
    x->shared = TAKE(&b->arena, RowAttention, b->n_rows);
    x->starts = run->labels ? TAKE(&b->arena, int, b->n_pieces) : NULL;
    if (arena_check(&b->arena, err)) return -1;
    for (int i = 0, at = 0; i < b->n_pieces && x->starts; at += b->pieces[i++].length) x->starts[i] = at;
    for (int i = 0; i < x->n_groups; i++)
        if (place_group(b, run, sampler->docs, &x->groups[i], err)) return -1;
    for (int i = 0, group = 0; i < b->n_rows; group += x->passes[i++].n_groups) {
        b->rows[i] = (RowPlace){b->n_read, group < x->n_groups ? x->groups[group].cu : b->n_cu};
        if (read_pass(b, &run->model, sampler, i, err)) return -1;
    }
    b->rows[b->n_rows] = (RowPlace){b->n_read, b->n_cu};
    b->is_read = 1;
    return 0;
}
