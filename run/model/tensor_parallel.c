// tensor_parallel.c - see tensor_parallel.h.
#include "run/model/tensor_parallel.h"

#include "kernels/rank_ops.h"
#include "run/model/work.h"

// ---- layers of less tp than their group

static LayerGroup plan_group(const Model* m, int T) {
    int G = tp_size(m) / T, j = tp_rank(m) % T, queries = m->whole.NH / m->whole.NKV;
    const int* head = &m->ranks->split.head[j * G];
    LayerGroup g = {.tp = T, .split = split_cut(&m->ranks->split, T)};
    g.shares_kv = split_shares_kv(&m->whole, &m->ranks->split);
    for (int i = 0; i <= G; i++)
        g.heads_from[i] = head[i] - head[0], g.kv_from[i] = head[i] / queries - head[0] / queries;
    return g;
}

void layers_plan(Model* m) {
    int R = tp_size(m), is_unlike = 0;
    m->ranks->n_groups = 0;
    m->shape.units = NULL;
    for (int T = 1; T < R; T++) {
        int l = 0;
        while (l < m->whole.L && m->layers[l].tp != T) l++;
        if (l < m->whole.L) m->ranks->groups[m->ranks->n_groups++] = plan_group(m, T);
    }
    for (int l = 0; l < m->shape.L && m->ranks->n_groups; l++) {
        m->ranks->units[l] = shape_units(&m->shape, l);
        if (!layer_group(m, l)) continue;
        m->ranks->units[l] =
            split_units(&m->whole, &m->ranks->split, tp_rank(m), layer_layout(m, l)->tp, m->shape.shards);
        is_unlike = 1;
    }
    if (is_unlike) m->shape.units = m->ranks->units;
}

Comm* layers_join_sharers(const Model* m, const TpSplit* split, int t) {
    int first, sharers = split_kv_sharers(&m->whole, split, t, &first);
    if (!split_shares_kv(&m->whole, split)) return NULL;
    Comm* kv = model_split(m, m->job->rank - t + first, COMM_TENSOR, m->job->overlap);
    if (sharers > 1) return kv;
    kv->table->close(kv);
    return NULL;
}

void layers_join(Model* m) {
    int R = tp_size(m), rank = m->job->rank;
    for (int i = 0; i < m->ranks->n_groups; i++) {
        LayerGroup* g = &m->ranks->groups[i];
        int T = g->tp, j = rank % T;
        if (T > 1) g->cut = model_split(m, rank / T, COMM_TENSOR, m->tp->overlap);
        g->kv = layers_join_sharers(m, &g->split, j);
        g->spread = model_split(m, rank / R * T + j, COMM_ULYSSES, m->job->overlap);
        g->data = model_split(m, m->stage * T + j, COMM_OTHER, m->job->overlap);
    }
}

// ---- a tensor-parallel group

static Comm* cut_of(const Model* m, int l) {
    const LayerGroup* g = layer_group(m, l);
    return g ? g->cut : m->tp;
}

// Counts the tokens of a row that `cut` has. Its first is token cut T n.
static int tokens_of_cut(const Row* row, int T, int cut) {
    int first = MIN(row->N, cut * T * row->n);
    return MIN(T * row->n, row->N - first);
}

int tp_tokens(const Model* m, const Row* row, int l) {
    const LayerGroup* g = layer_group(m, l);
    return g ? tokens_of_cut(row, g->tp, tp_rank(m) / g->tp) : row->N;
}

static size_t share_elems(const Model* m, const Row* row) { return (size_t)row->n * (size_t)m->shape.C; }

void* tp_own(const Model* m, void* x, const Row* row, int l) {
    return (char*)x + (size_t)layer_cut_rank(m, l) * share_elems(m, row) * dtype_bytes(m->dt);
}

// Gathers own rows (n,C) into full (T n, C) and returns it; in a group of one it returns `own`.
static void* gather(const Model* m, void* own, void* full, const Row* row, int l) {
    Comm* c = cut_of(m, l);
    if (!c) return own;
    comm_all_gather(c, full, own, share_elems(m, row), m->dt, m->s);
    return full;
}

void tp_all_gather(const Model* m, void* x, const Row* row, int l) { gather(m, tp_own(m, x, row, l), x, row, l); }

static Request begin_reduce_scatter(const Model* m, void* x, const Row* row, int l) {
    Comm* c = cut_of(m, l);
    return c ? c->table->begin_reduce_scatter(c, tp_own(m, x, row, l), x, share_elems(m, row), m->dt, m->s) : 0;
}

static void end_request(const Model* m, Request request, int l) {
    Comm* c = cut_of(m, l);
    if (c) c->table->end(c, request, m->s);
}

void tp_reduce_scatter(const Model* m, void* x, const Row* row, int l) {
    end_request(m, begin_reduce_scatter(m, x, row, l), l);
}

// ---- tokens to heads

// A Spread is what the ranks of a spread exchange, each pair (tokens of a cut, heads of rank i). Data by heads are
// packed; data by tokens lie where they are used.
typedef struct Exchange {
    const LayerGroup* group;
    int N, M, n;
    int heads, kv_heads;  // the heads of the weights
    void* sum[2];         // (N, keys and values of a head): gradients of a head that several ranks have
    Transfer by_heads[MOST_TP], by_tokens[MOST_TP];
} Exchange;

static int turns_to_heads(const Model* m, SublayerId i, int l) { return i == ATTENTION && layer_group(m, l); }

// Returns the key/value heads of spread rank i.
static int kv_heads_of(const LayerGroup* g, int i) { return g->shares_kv ? 1 : g->kv_from[i + 1] - g->kv_from[i]; }

// Returns the channels of a token that spread rank i gets.
static int channels_of(const Model* m, const Exchange* x, int i) {
    const LayerGroup* g = x->group;
    return (g->heads_from[i + 1] - g->heads_from[i] + (x->M - 1) * kv_heads_of(g, i)) * m->shape.HS;
}

static Exchange plan_exchange(const Model* m, void* spread, int M, const Row* row, int l) {
    const LayerGroup* g = layer_group(m, l);
    LayerUnits units = shape_units(&m->shape, l);
    size_t elem = dtype_bytes(m->dt);
    Exchange x = {g, tp_tokens(m, row, l), M, g->spread->size, units.heads, units.kv_heads, {NULL, NULL}, {{0}}, {{0}}};
    const ActPlace* place = &m->act_places[EXCHANGED * (m->shape.L + 1) + l];
    char *first = (char*)model_act(m, EXCHANGED, l), *packed = first + place->bytes / 2;  // packed is the second place
    size_t own = (size_t)channels_of(m, &x, g->spread->rank) * elem;
    for (int i = 0; i < x.n; i++) {
        size_t bytes = (size_t)channels_of(m, &x, i) * (size_t)x.N * elem;
        x.by_heads[i] = (Transfer){i, packed, bytes};
        x.by_tokens[i] = (Transfer){i, (char*)spread + own * (size_t)MIN(row->N, i * g->tp * row->n),
                                    own * (size_t)tokens_of_cut(row, g->tp, i)};
        packed += bytes;
    }
    x.sum[0] = first + (size_t)x.N * (size_t)((x.heads + 2 * x.kv_heads) * m->shape.HS) * elem, x.sum[1] = packed;
    return x;
}

// Copies n channels of each of N rows.
static void copy_channels(const Model* m, void* out, int at, int ldo, const void* x, int from, int ldx, int n, int N) {
    size_t elem = dtype_bytes(m->dt);
    m->k->ranks->gather_rows((char*)out + (size_t)at * elem, (const char*)x + (size_t)from * elem, NULL, N, n, ldo, ldx,
                             m->dt, m->s);
}

// Sends each key/value head to all ranks that compute queries of it, as a group has more ranks than such heads.
static void split_shared(const Model* m, const Exchange* e, const void* x) {
    const LayerGroup* g = e->group;
    int HS = m->shape.HS, width = (e->heads + (e->M - 1) * e->kv_heads) * HS;
    for (int i = 0; i < e->n; i++) {
        int first = g->heads_from[i] * HS, q = g->heads_from[i + 1] * HS - first, wide = channels_of(m, e, i);
        copy_channels(m, e->by_heads[i].data, 0, wide, x, first, width, q, e->N);
        for (int j = 0; j < e->M - 1; j++)
            copy_channels(m, e->by_heads[i].data, q + j * HS, wide, x,
                          (e->heads + j * e->kv_heads + g->kv_from[i]) * HS, width, HS, e->N);
    }
}

// Brings gradients back: that of a key/value head is the sum of those that come.
static void join_shared(const Model* m, const Exchange* e, void* out) {
    const LayerGroup* g = e->group;
    int HS = m->shape.HS, width = (e->heads + (e->M - 1) * e->kv_heads) * HS;
    for (int i = 0, first = 0; i < e->n; i++) {
        int at = g->heads_from[i] * HS, q = g->heads_from[i + 1] * HS - at, wide = channels_of(m, e, i);
        copy_channels(m, out, at, width, e->by_heads[i].data, 0, wide, q, e->N);
        if (e->M == 1) continue;
        if (g->kv_from[i] > g->kv_from[first]) first = i;
        copy_channels(m, e->sum[i > first], 0, 2 * HS, e->by_heads[i].data, q, wide, 2 * HS, e->N);
        if (i > first) m->k->add(e->sum[0], e->sum[0], e->sum[1], (size_t)(e->N * 2 * HS), m->dt, m->s);
        if (i < e->n - 1 && g->kv_from[i + 1] == g->kv_from[first]) continue;
        for (int j = 0; j < 2; j++)
            copy_channels(m, out, (e->heads + j * e->kv_heads + g->kv_from[i]) * HS, width, e->sum[0], j * HS, 2 * HS,
                          HS, e->N);
    }
}

// Attention of layers of tp T < R: x (T n, heads of the weights) of the cut's tokens becomes out (N, own heads) of all
// tokens of the row, and back. M = 3: a token has its heads' queries, keys and values; M = 1: what attention makes of
// them. Data by tokens may lie at EXCHANGED.
static void tokens_to_heads(const Model* m, void* out, const void* x, int M, const Row* row, int l) {
    Exchange e = plan_exchange(m, out, M, row, l);
    int queries = m->whole.NH / m->whole.NKV * m->shape.HS;
    if (e.group->shares_kv) split_shared(m, &e, x);
    else
        m->k->ranks->split_heads(e.by_heads[0].data, x, e.N, M, queries, m->shape.HS, e.group->kv_from, e.n, m->dt,
                                 m->s);
    comm_send_receive(e.group->spread, e.by_heads, e.n, e.by_tokens, e.n, m->s);
}

static void heads_to_tokens(const Model* m, void* out, void* x, int M, const Row* row, int l) {
    Exchange e = plan_exchange(m, x, M, row, l);
    int queries = m->whole.NH / m->whole.NKV * m->shape.HS;
    comm_send_receive(e.group->spread, e.by_tokens, e.n, e.by_heads, e.n, m->s);
    if (e.group->shares_kv) join_shared(m, &e, out);
    else
        m->k->ranks->join_heads(out, e.by_heads[0].data, e.N, M, queries, m->shape.HS, e.group->kv_from, e.n, m->dt,
                                m->s);
}

// ---- the ends of the model

void tp_embed(const Model* m, const Row* row) {
    const Kernels* k = m->k;
    int C = m->shape.C;
    const void *wte = model_weights(m, WTE, 0), *wpe = model_weights(m, WPE, 0);
    void *sums = model_act(m, PROJ, 0), *looked_up = tp_own(m, sums, row, ENDS), *out = model_act(m, RESIDUAL, 0);
    void* positions = model_act(m, LN1, 0);
    k->ranks->gather_rows(sums, wte, row->vocab_rows, row->N, C, C, C, m->dt, m->s);
    tp_reduce_scatter(m, sums, row, ENDS);
    k->ranks->gather_rows(wpe ? positions : out, wpe ? wpe : looked_up, wpe ? row->positions + row->first : NULL,
                          row->own, C, C, C, m->dt, m->s);
    if (wpe) k->add(out, looked_up, positions, (size_t)row->own * (size_t)C, m->dt, m->s);
}

void tp_embed_backward(const Model* m, const Row* row) {
    const Kernels* k = m->k;
    int C = m->shape.C;
    float *dwte = model_grads(m, WTE, 0), *dwpe = model_grads(m, WPE, 0);
    void *own = model_act(m, D_RESIDUAL, 0), *all = gather(m, own, model_act(m, D_FULL, 0), row, ENDS);
    k->embedding_backward(dwte, NULL, all, row->vocab_rows, NULL, row->N, C, m->dt, m->s);
    if (dwpe) k->embedding_backward(NULL, dwpe, own, NULL, row->positions + row->first, row->own, C, m->dt, m->s);
}

void tp_classify(const Model* m, const Row* row, void* logits, int n, int N, float scale, int train) {
    const Kernels* k = m->k;
    int rows = m->shape.vocab_rows, labels = shape_labels(&m->shape), first = m->shape.first_vocab_row;
    const int* targets = row->targets + n;
    float *losses = (float*)model_act(m, LOSSES, 0) + n, *stats = (float*)model_act(m, STATS, 0);
    float* own = stats + (size_t)tp_rank(m) * 3 * (size_t)N;
    k->ranks->classifier_part(own, logits, targets, first, N, labels, rows, m->dt, m->s);
    comm_all_gather(m->tp, stats, own, 3 * (size_t)N, DT_F32, m->s);
    k->ranks->classifier_join(losses, logits, stats, tp_size(m), targets, first, scale, train, N, labels, rows, m->dt,
                              m->s);
}

// ---- a gather in two parts

// Part i of a rank's gather is the ranks from .. end. The first part is the half of the group that the rank is in; its
// rows follow each other, so that a part is one matmul however many ranks there are.
static void ranks_of_part(const Comm* c, int i, int* from, int* end) {
    int half = c->size / 2, is_low = (c->rank < half) == (i == 0);
    *from = is_low ? 0 : half, *end = is_low ? half : c->size;
}

// Every rank of the part gets own rows and sends its own. The first messages bring own rows to their place too.
static Request begin_part(const TpGather* g, Comm* c, int i, size_t bytes, Stream s) {
    Transfer sends[MOST_TP], receives[MOST_TP];
    char* place = g->full + (size_t)c->rank * bytes;
    int from, end, n = 0;
    ranks_of_part(c, i, &from, &end);
    if (end - from == 1 && from == c->rank) return 0;
    if (i == 0 || g->arriving[0] == 0) {
        size_t moves = g->own == place ? 0 : bytes;
        sends[n] = (Transfer){c->rank, g->own, moves}, receives[n++] = (Transfer){c->rank, place, moves};
    }
    for (int r = from; r < end; r++)
        if (r != c->rank) {
            sends[n] = (Transfer){r, g->own, bytes};
            receives[n++] = (Transfer){r, g->full + (size_t)r * bytes, bytes};
        }
    return c->table->begin_send_receive(c, sends, n, receives, n, s);
}

TpGather tp_gather_begin(const Model* m, void* own, void* full, const Row* row, int l) {
    TpGather g = {.row = row, .l = l, .N = tp_tokens(m, row, l), .own = (char*)own, .full = (char*)full, .parts = 1};
    Comm* c = cut_of(m, l);
    size_t bytes = share_elems(m, row) * dtype_bytes(m->dt);
    int low = c ? MIN(c->size / 2 * row->n, g.N) : 0;
    if (!c) g.full = g.own;
    // Matmuls sum in the same order for any number of rows but one (kernels/cpu/product.h).
    else if (c->overlap && low != 1 && g.N - low != 1) g.parts = 2;
    else gather(m, own, full, row, l);
    for (int i = 0; i < 2 && g.parts == 2; i++) g.arriving[i] = begin_part(&g, c, i, bytes, m->s);
    return g;
}

int tp_gather_next(const Model* m, TpGather* g, TpRows* rows) {
    int i = g->part++, n = g->row->n, from, end;
    if (i >= g->parts) return 0;
    *rows = (TpRows){g->full, 0, g->N};
    if (g->parts == 1) return 1;
    ranks_of_part(cut_of(m, g->l), i, &from, &end);
    end_request(m, g->arriving[i], g->l);
    int alone = i == 0 && end - from == 1;  // own rows, which nothing has moved yet
    rows->x = alone ? g->own : g->full + (size_t)from * share_elems(m, g->row) * dtype_bytes(m->dt);
    rows->first = MIN(from * n, g->N);
    rows->n = MIN(end * n, g->N) - rows->first;
    return 1;
}

// ---- linears

// Returns row n of x (N, width); NULL stays NULL.
static void* at_row(const Model* m, const void* x, int n, int width) {
    return x ? (char*)x + (size_t)n * (size_t)width * dtype_bytes(m->dt) : NULL;
}

// Rows of a matmul do not depend on each other, so each rank's are multiplied as they come. If fewer ranks than the
// group has cut the weights, QKV is made by tokens and attention wants heads.
void tp_linear_forward(const Model* m, const Row* row, LinearId id, int l, void* out, void* gelu, void* x) {
    int turns = turns_to_heads(m, sublayer_of(id), l);
    void* by_tokens = model_act(m, is_linear_in(id) ? EXCHANGED : ATT_TOKENS, l);
    if (!is_linear_in(id)) {
        if (turns) heads_to_tokens(m, by_tokens, x, 1, row, l);
        work_forward(m, id, l, out, gelu, turns ? by_tokens : x, tp_tokens(m, row, l));
        tp_reduce_scatter(m, out, row, l);
        return;
    }
    int OC = work_linear(m, id, l).OC;
    void* y = turns ? by_tokens : out;
    TpGather g = tp_gather_begin(m, tp_own(m, x, row, l), x, row, l);
    for (TpRows r; tp_gather_next(m, &g, &r);)
        work_forward(m, id, l, at_row(m, y, r.first, OC), at_row(m, gelu, r.first, OC), r.x, r.n);
    if (turns) tokens_to_heads(m, out, by_tokens, 3, row, l);
}

// The gradient of the weights is one sum over all tokens, so that its order does not change.
void tp_linear_backward(const Model* m, const Row* row, LinearId id, int l, void* dx, void* dout, void* x,
                        const void* pre) {
    int turns = turns_to_heads(m, sublayer_of(id), l), N = tp_tokens(m, row, l);
    void* by_tokens = model_act(m, EXCHANGED, l);
    if (is_linear_in(id)) {
        if (turns) heads_to_tokens(m, by_tokens, dout, 3, row, l);
        work_backward_input(m, id, l, dx, turns ? by_tokens : dout, NULL, N);
        Request sums = begin_reduce_scatter(m, dx, row, l);
        work_backward_weight(m, id, l, turns ? by_tokens : dout, x, N);
        end_request(m, sums, l);
        return;
    }
    int width = work_linear(m, id, l).width;
    void* d_core = turns ? by_tokens : dx;
    TpGather g = tp_gather_begin(m, dout, model_act(m, D_FULL, l), row, l);
    for (TpRows r; tp_gather_next(m, &g, &r);)
        work_backward_input(m, id, l, at_row(m, d_core, r.first, width), r.x, at_row(m, pre, r.first, width), r.n);
    work_backward_weight(m, id, l, g.full, turns ? model_act(m, ATT_TOKENS, l) : x, N);
    if (turns) tokens_to_heads(m, dx, by_tokens, 1, row, l);
}

// ---- files

void tp_take(const Model* m, const ParamTensor* tensor, float* part, const float* whole) {
    if (m->tp)
        split_take(part, whole, &m->whole, tp_split_of(m, tensor), layer_cut_rank(m, tensor_layer(tensor)), tensor->id);
}

void tp_join(const Model* m, const ParamTensor* tensor, float* whole, float* part, float* others) {
    char err[ERR_BYTES];
    const TpSplit* split = tp_split_of(m, tensor);
    Comm* c = cut_of(m, tensor_layer(tensor));
    if (!c || split_is_replicated(tensor->id)) {
        if (whole != part) memcpy(whole, part, tensor->elems * sizeof(float));
        return;
    }
    for (int t = 0; t < c->size; t++) {
        Shape shape = split_shape(&m->whole, split, t);
        ParamTensor theirs = shape_param(&shape, tensor->id, tensor->layer);
        float* value = t == c->rank ? part : others;
        if (c->table->broadcast_host(c, value, theirs.elems * sizeof(float), t, err)) die("%s", err);
        split_put(whole, value, &m->whole, split, t, tensor->id);
    }
}

// ---- generation

// Returns the most rows of the vocabulary that a rank has: parts travel as large as that.
static int largest_part(const Model* m) {
    const int* border = m->ranks->split.vocab_row;
    int most = 0;
    for (int t = 0; t < tp_size(m); t++) most = MAX(most, border[t + 1] - border[t]);
    return most;
}

size_t tp_logits_room(const Model* m) {
    return m->tp ? (size_t)tp_size(m) * (size_t)largest_part(m) + (size_t)m->shape.Vp : 0;
}

// Gathers the parts of all ranks one after another, then places their rows side by side.
void* tp_logits(const Model* m, int n, int N) {
    char* parts = (char*)model_act(m, LOGITS, 0);
    if (!m->tp) return model_logits(m, parts, n, N), parts;
    const int* border = m->ranks->split.vocab_row;
    size_t elem = dtype_bytes(m->dt), part = (size_t)N * (size_t)largest_part(m);
    char *own = parts + (size_t)tp_rank(m) * part * elem, *whole = parts + (size_t)tp_size(m) * part * elem;
    model_logits(m, own, n, N);
    m->tp->purpose = COMM_TENSOR;
    comm_all_gather(m->tp, parts, own, part, m->dt, m->s);
    for (int t = 0; t < tp_size(m); t++) {
        int rows = border[t + 1] - border[t];
        m->k->ranks->gather_rows(whole + (size_t)border[t] * elem, parts + (size_t)t * part * elem, NULL, N, rows,
                                 m->shape.Vp, rows, m->dt, m->s);
    }
    return whole;
}
