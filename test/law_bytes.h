// law_bytes.h - what the ranks of test_law.c should send each other, by the formulas of the headers; included there.
#pragma once

// What this rank should send in a forward and a backward pass of the plan.
typedef struct Bytes {
    double heads, remap, ring, route, tensor, copies, pipeline;
} Bytes;

static int layers(void) { return run->model.shape.L; }
static int is_first(void) { return run->model.stage == 0; }
static int is_last(void) { return run->model.stage == stages - 1; }
static int is_recomputed(int l) { return layer_layout(&run->model, l)->recompute == RECOMPUTE_BLOCK; }
static int tp_of(int l) { return group > 1 ? layer_layout(&run->model, l)->tp : 1; }

// Tokens of ring rank a, from the borders alone.
static int tokens_of(const Placement* p, const MicroBatch* mb, int a) {
    int n = 0;
    for (int k = 0; k < mb->n_docs * p->n_chunks; k++) {
        const int* border = p->chunk_border + k / p->n_chunks * (p->n_chunks + 1) + k % p->n_chunks;
        n += p->owner[k % p->n_chunks] == a ? border[1] - border[0] : 0;
    }
    return n;
}

// Whether one of the ulysses ranks computes all heads.
static int has_all_heads(const Placement* p, int ulysses_size) {
    int with_heads = 0;
    for (int b = 0; b < ulysses_size; b++) with_heads += p->head_border[b + 1] > p->head_border[b];
    return with_heads == 1;
}

// The rank with ring rank a in this rank's ring, and those of the ring in its node, in their order from it on.
static int ring_of_node(int* there, const MicroBatch* mb, const Share* share, int a) {
    const int* node = run->model.comm->node;
    int n = 0;
    for (int i = 0; i < share->ring_size; i++) {
        int r = mb->first_rank + (a + i) % share->ring_size * share->ulysses_size + share->ulysses_rank;
        if (i == 0 || node[r] == node[there[0]]) there[n++] = r;
    }
    return n;
}

// What this rank sends so many times for the message of ring rank a to the next one: itself, or parts of it through
// proxies, a multiple of 16 bytes each (kernels/comm/route.h).
static void add_message_bytes(Bytes* bytes, const MicroBatch* mb, const Share* share, int a, double times, size_t n) {
    const Comm* c = run->model.comm;
    int from[64], to[64];
    int x = MIN(ring_of_node(from, mb, share, a), ring_of_node(to, mb, share, (a + 1) % share->ring_size));
    if (c->node[from[0]] == c->node[to[0]] || n < c->route_least || c->route_least == 0) x = 1;
    size_t part = x > 1 ? ROUND_UP(CEIL_DIV(n, (size_t)x), (size_t)16) : n;
    for (int j = 0; j < x; j++) {
        double sent = times * (double)(MIN(n, part * (size_t)(j + 1)) - MIN(n, part * (size_t)j));
        if (from[j] == c->rank) bytes->ring += sent;
        if (j > 0) bytes->route += sent * ((from[0] == c->rank) + (to[j] == c->rank));
    }
    routed_messages += x > 1;
}

// In attention of layer l: see group_attention.h. Returns elements that this rank computes: of all its heads'
// queries, keys and values.
static double add_attention_bytes(Bytes* bytes, const MicroBatch* mb, const Share* share, const Placement* p, int l) {
    LayerUnits units = shape_units(&run->model.shape, l);
    int NKV = units.core_kv_heads, g = units.queries, ring_size = share->ring_size;
    int forward = 1 + is_recomputed(l), f = p->head_border[share->ulysses_size];
    const int* border = p->head_border + share->ulysses_rank;
    int own = border[1] * NKV / f - border[0] * NKV / f;  // of this rank's heads, in proportion
    // Of a matrix of keys.
    double HS = run->model.shape.HS, out = share->n * (NKV - own) * HS, back = (share->ring_n - share->n) * own * HS;
    // Forward queries, keys and values there and outputs back, backward the other way round.
    *(has_all_heads(p, share->ulysses_size) ? &bytes->remap : &bytes->heads) +=
        4.0 * (forward * ((g + 2) * out + g * back) + g * out + (g + 2) * back);
    int parts = run->model.comm->overlap && share->ulysses_size > 1 && NKV > share->ulysses_size ? 2 : 1;
    for (int t = 0; t < ring_size && ring_size > 1; t++) {  // the block that is here after t turns is passed on
        // Its gradients, and itself, forward and backward.
        double times = 1.0 + (t < ring_size - 1) * (forward + 1);
        for (int a = 0; a < ring_size * parts; a++) {
            int from = a / parts, i = a % parts, heads = own * (i + 1) / parts - own * i / parts;
            int tokens = tokens_of(p, mb, (from - t + ring_size) % ring_size);
            add_message_bytes(bytes, mb, share, from, times, (size_t)(4 * 2 * tokens * heads * run->model.shape.HS));
        }
    }
    return (double)share->ring_n * own * (g + 2) * HS;
}

// Between the cuts of a group for N tokens, in a layer of less tp: tokens become heads and come back, as above.
static double exchange_bytes(int N, int l) {
    int T = tp_of(l), n = T * CEIL_DIV(N, group), first = MIN(N, rank % group / T * n), own = MIN(n, N - first);
    LayerUnits units = shape_units(&run->model.shape, l);
    // Where more ranks are in a group than key/value heads, each gets one.
    int kv_heads = group > run->model.whole.NKV ? group / T : units.kv_heads;
    double HS = run->model.shape.HS, forward = 1 + is_recomputed(l);
    double q_out = own * (units.heads - units.queries * units.core_kv_heads) * HS,
           q_back = (N - own) * units.queries * units.core_kv_heads * HS,
           kv_out = 2.0 * own * (kv_heads - units.core_kv_heads) * HS,
           kv_back = 2.0 * (N - own) * units.core_kv_heads * HS;
    return T == group ? 0 : 4 * (forward * (q_out + kv_out + q_back) + q_out + q_back + kv_back);
}

// Between the ranks of a tensor-parallel group for N tokens: see run/model/model.h. A block has four gathers and four
// reductions among those that cut it, four more of either kind where it is computed again; each end of the model has
// one each way. Three numbers a token join the parts of the classifier.
static double row_bytes(int N) {
    double share = 4.0 * CEIL_DIV(N, group) * run->model.shape.C, bytes = 0;
    for (int l = 0; l < layers(); l++) bytes += (tp_of(l) - 1) * share * (is_recomputed(l) ? 12 : 8);
    return bytes + (group - 1) * (share * (2 * is_first() + 2 * is_last()) + 3 * 4.0 * N * is_last());
}

// To other stages: the stream of this rank's own tokens, and its gradient.
static double stage_bytes(int N) {
    int n = CEIL_DIV(N, group), own = MAX(0, MIN(n, N - tp_rank(&run->model) * n));
    return 4.0 * own * run->model.shape.C * (!is_first() + !is_last());
}

// Sums of n gradients over R ranks.
static double sum_bytes(int n, int R) { return (R - 1) * 2 * 4.0 * CEIL_DIV(n, R); }

// In a bucket, rows [first, end) of param_table: of what the ranks of a group all have, each run of neighbours at once
// with the gaps between them. Layer l, which R ranks cut; 0 and the whole group for other buckets.
static double bucket_sum_bytes(int first, int end, int l, int R) {
    const Shape* s = &run->model.shape;
    double bytes = 0;
    int n = 0;
    for (int id = first; id <= end; id++) {
        if (id < end && !shape_param(s, (ParamId)id, l).elems) continue;
        if (id < end && split_is_replicated((ParamId)id))
            n = ROUND_UP(n, 64) + (int)shape_param(s, (ParamId)id, l).elems;
        else bytes += sum_bytes(n, R), n = 0;
    }
    return bytes;
}

// In a layer: of key/value heads that several ranks have, weights and biases.
static double kv_sum_bytes(int l) {
    const Model* m = &run->model;
    const LayerGroup* g = layer_group(m, l);
    int first, R = split_kv_sharers(&m->whole, g ? &g->split : &m->ranks->split, layer_cut_rank(m, l), &first),
               n = 2 * shape_units(&m->shape, l).kv_heads * m->shape.HS;
    return sum_bytes(n * m->shape.C, R) + (shape_has(&m->shape, HAS_QKV_BIAS) ? sum_bytes(n, R) : 0);
}

static int several;  // passes with several micro-batches

static Bytes expected_bytes(void) {
    const Batch* b = &run->batch;
    Bytes bytes = {0};
    Arena arena = {0};
    for (int i = 0; i < b->n_rows; i++) {
        double tokens = 0, elems = 0;
        for (int j = 0; j < b->planned->passes[i].n_groups; j++) {
            const MicroBatch* mb = b->planned->groups[b->planned->passes[i].first_group + j].mb;
            Placement p =
                micro_batch_placement(&b->planned->made.plan, mb, b->lengths, run->clock->limits.kv_heads, &arena);
            Share share = micro_batch_share(&b->planned->made.plan, mb, &p, run->model.comm->rank, NULL);
            double most = 0;
            for (int l = 0; l < layers(); l++) most = fmax(most, add_attention_bytes(&bytes, mb, &share, &p, l));
            elems += most;
            tokens += share.n;
        }
        // They must fit: ranks of a tensor-parallel group may have more heads than the group has on average.
        double room = 0;
        for (int l = 0; l < layers(); l++)
            room = fmax(room, (double)run->model.act_places[QKV * (run->model.shape.L + 1) + l].bytes);
        CHECK(elems * (double)dtype_bytes(run->model.dt) <= room);
        if (!b->planned->passes[i].n_groups) continue;
        bytes.tensor += row_bytes((int)tokens), bytes.pipeline += stage_bytes((int)tokens);
        for (int l = 0; l < layers(); l++) bytes.heads += exchange_bytes((int)tokens, l);
        several += b->planned->passes[i].n_groups > 1;
    }
    arena_free(&arena);
    for (int l = 0; l < layers(); l++) {
        int n_sums = run->model.ranks->zero.bucket[1 + l].stage > 1 ? b->planned->made.plan.n_rounds : 1;
        bytes.copies += n_sums * (bucket_sum_bytes(LN1W, LNFW, l, tp_of(l)) + kv_sum_bytes(l));
    }
    bytes.copies += bucket_sum_bytes(WTE, LN1W, 0, group) + bucket_sum_bytes(LNFW, N_PARAMS, 0, group);
    return bytes;
}
