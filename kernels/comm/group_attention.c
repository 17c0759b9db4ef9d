// group_attention.c - a row of groups: Ulysses, tokens to heads and back, around the attention of rings, and exchanges
// of some groups under the computing of others.
//
// The rows of a rank are cut by units, a key/value head with its g = NH / NKV query heads, into one slice for each
// ulysses rank of its ring rank. An all-to-all hands the slices out, and because peers hold contiguous runs of tokens,
// what arrives one after another is (n_a, (g + 2) H, HS) for H units, a packed row as any kernel knows it. The same
// all-to-all with senders and receivers swapped brings results back.
//
// With Comm.overlap units are cut into parts, so that one part travels while another is computed: slice
// i * parts + p is part p of rank i. With shared groups A (Ulysses) and B (a ring), and local ones, all ranks follow
//
//   A in 0, A in 1, B block 0 | local | (wait A in 0) compute, A out 0, (wait A in 1) compute, A out 1, B blocks 1 ..
#include "kernels/comm/group_attention.h"
#include "kernels/comm/route.h"

enum {
    MOST_PEERS = 1024,  // of a plan's ulysses ranks, at most as many as key/value heads
    MOST_RING = 4096
};

// ---- scratch

typedef struct Scratch {
    // slices of all units for own tokens, in the order of split_heads: (n, NH + 2 NKV, HS) and (n,NH,HS)
    char *token_qkv, *token_out;
    // dqkv and dout of own units for all tokens of the ring rank: (n_a, (g + 2) H, HS), (n_a, g H, HS)
    char *head_qkv, *head_out;
    char* kv[2];  // largest n_x times 2 W, of all rings
    // These serve one ring at a time; its two passes say what lies there.
    float *sum, *block[3];  // n_a Q; largest n_x times 2 W, the first also n_a Q, the second n_a NH
    char* route;            // route_scratch of a block
    char* tree;             // of one group at a time
} Scratch;

// Lays scratch out from base (NULL: only counts) and returns its bytes, for `pairs` pairs of token and unit, of which
// each is g query heads, in any of its parts.
static size_t carve(Scratch* m, char* base, size_t pairs, int g, int HS, int ulysses, int ring, int routed, int trees,
                    DType dt) {
    size_t used = 0, e = dtype_bytes(dt), kv = 2 * (size_t)HS, q = (size_t)(g * HS);
    if (ulysses) {
        m->token_qkv = scratch_take(base, &used, pairs * (q + kv) * e);
        m->token_out = scratch_take(base, &used, pairs * q * e);
        m->head_qkv = scratch_take(base, &used, pairs * (q + kv) * e);
        m->head_out = scratch_take(base, &used, pairs * q * e);
    }
    if (ring) {
        for (int i = 0; i < COUNT(m->kv); i++) m->kv[i] = scratch_take(base, &used, pairs * kv * e);
        m->sum = (float*)scratch_take(base, &used, pairs * q * sizeof(float));
        m->block[0] = (float*)scratch_take(base, &used, pairs * MAX(kv, q) * sizeof(float));
        m->block[1] = (float*)scratch_take(base, &used, pairs * MAX(kv, (size_t)g) * sizeof(float));
        m->block[2] = (float*)scratch_take(base, &used, pairs * kv * sizeof(float));
        m->route = scratch_take(base, &used, routed ? route_scratch(pairs * kv * sizeof(float)) : 0);
    }
    if (trees) m->tree = scratch_take(base, &used, tree_attention_scratch((int)pairs, g, 1, HS, dt));
    return used;
}

size_t group_attention_scratch(int N, int NH, int NKV, int HS, int ranks, int routed, int trees, DType dt) {
    Scratch unused;
    return carve(&unused, NULL, (size_t)N * (size_t)NKV, NH / NKV, HS, ranks > 1 && NKV > 1, ranks > 1, routed, trees,
                 dt);
}

// ---- one pass over a row, forward or backward

// The memory of a pass that groups before this one have, in pairs of token and unit.
typedef struct Used {
    size_t tokens, heads, saved, kv;
} Used;

typedef struct Pass {
    const RowAttention* row;
    const SavedAttention* saved;
    const Kernels* k;
    DType dt;
    Stream s;
    int g;            // query heads of a unit
    const char* in;   // rows of tokens, of M_in matrices
    char* out;        // and of M_out
    int M_in, M_out;  // 3 and 1, backward 1 and 3
    Scratch m;
    Used used;
} Pass;

typedef struct Call Call;

// Attention of some heads over the tokens of one ring rank; without a ring the ordinary kernel computes it. A row of
// queries has Q = NH HS elements, of keys or values W = NKV HS; n_a are this ring rank's tokens, n_x any other's.
typedef struct RingAttention {
    const Call* c;
    int NH, NKV;      // at least 1, the same on all ranks of the ring
    const void* qkv;  // (n_a, Q + 2 W)
    void* out;        // (n_a,Q) = forward
    float* lse;       // (NH,n_a) = forward; in a ring chunk after chunk, so that each is a tensor
    Request keys;     // the exchange of the first block of keys and values, posted beforehand
} RingAttention;

// A group in a pass: rows of tokens before and after attention; if ranks share heads, the same cut into slices, and
// own units over all tokens; else the latter are the rows themselves.
struct Call {
    const Pass* pass;
    const GroupAttention* ga;
    int parts;   // of the units
    int n, n_a;  // tokens of this rank, of its ring rank
    char *in, *out, *token_in, *token_out, *head_in, *head_out;
    char *qkv, *att;  // saved for the backward pass
    float* lse;
    char* kv[2];
    RingAttention ring;  // without ulysses
    Request there[ATTENTION_PARTS], back[ATTENTION_PARTS];
};

// Returns the bytes of `pairs` units of queries alone (M = 1), or of queries, keys and values (3).
static size_t unit_bytes(const Pass* x, size_t pairs, int M) {
    return pairs * (size_t)((x->g + M - 1) * x->row->HS) * dtype_bytes(x->dt);
}

static int head_border(const RowAttention* row, const GroupAttention* ga, int b) {
    return (int)((int64_t)ga->head_border[b] * row->NKV / ga->head_border[ga->ulysses_size]);
}

static int own_units(const RowAttention* row, const GroupAttention* ga) {
    return head_border(row, ga, ga->ulysses_rank + 1) - head_border(row, ga, ga->ulysses_rank);
}

// Returns where slice i of the units begins: rank b has slices b * parts up to (b + 1) * parts.
static int unit_border(const Call* c, int i) {
    const RowAttention* row = c->pass->row;
    int b = i / c->parts, first = head_border(row, c->ga, b);
    return i % c->parts ? first + (head_border(row, c->ga, b + 1) - first) * (i % c->parts) / c->parts : first;
}

// Returns part p of x, which holds (n_a, H_p, elements) for part after part: elements of M matrices, or one for each
// query head.
static char* part_of(const Call* c, char* x, int p, int M) {
    int first = c->ga->ulysses_rank * c->parts, before = unit_border(c, first + p) - unit_border(c, first);
    size_t pairs = (size_t)c->n_a * (size_t)before;
    return x + (M ? unit_bytes(c->pass, pairs, M) : pairs * (size_t)c->pass->g * sizeof(float));
}

static RingAttention ring_of(const Call* c, int p) {
    int slice = c->ga->ulysses_rank * c->parts + p, NKV = unit_border(c, slice + 1) - unit_border(c, slice);
    return (RingAttention){.c = c,
                           .NH = c->pass->g * NKV,
                           .NKV = NKV,
                           .qkv = part_of(c, c->qkv, p, 3),
                           .out = part_of(c, c->att, p, 1),
                           .lse = (float*)part_of(c, (char*)c->lse, p, 0)};
}

// Returns the tokens of ring rank a.
static int ring_tokens(const GroupAttention* ga, int a) {
    int tokens = 0;
    for (int j = 0; j < ga->n_chunks; j++) tokens += ga->owner[j] == a ? ga->chunk_tokens[j] : 0;
    return tokens;
}

// Returns the pairs of token and own unit of the widest rank of a ring.
static size_t widest_block(const RowAttention* row, const GroupAttention* ga) {
    int widest = 0;
    for (int a = 0; a < ga->ring_size; a++) widest = MAX(widest, ring_tokens(ga, a));
    return (size_t)widest * (size_t)own_units(row, ga);
}

// Takes the group's share of the memory of the pass.
static Call open_call(Pass* x, const GroupAttention* ga) {
    const SavedAttention* saved = x->saved;
    size_t first = (size_t)ga->first * (size_t)x->row->NKV, NKV = (size_t)x->row->NKV;
    Call c = {.pass = x, .ga = ga, .parts = 1, .n_a = ga->token_border[ga->ulysses_size]};
    if (ga->ulysses_size > MOST_PEERS) broken("%d ranks share heads, at most %d can", ga->ulysses_size, MOST_PEERS);
    c.n = ga->token_border[ga->ulysses_rank + 1] - ga->token_border[ga->ulysses_rank];
    size_t H = (size_t)own_units(x->row, ga), pairs = (size_t)c.n_a * H, at = first;
    c.in = (char*)x->in + unit_bytes(x, first, x->M_in), c.out = x->out + unit_bytes(x, first, x->M_out);
    c.head_in = c.in, c.head_out = c.out, c.att = (char*)saved->out + unit_bytes(x, first, 1);
    if (ga->ulysses_size > 1) {
        char *token[] = {x->m.token_out, x->m.token_qkv}, *head[] = {x->m.head_out, x->m.head_qkv};
        if (x->row->comm->overlap) c.parts = MIN(x->row->parts, CEIL_DIV(x->row->NKV, ga->ulysses_size));
        at = x->used.saved;
        c.att = (char*)saved->head_out + unit_bytes(x, at, 1);
        c.token_in = token[x->M_in == 3] + unit_bytes(x, x->used.tokens, x->M_in);
        c.token_out = token[x->M_out == 3] + unit_bytes(x, x->used.tokens, x->M_out);
        c.head_in = head[0] + unit_bytes(x, x->used.heads, 1);
        c.head_out = head[1] + unit_bytes(x, x->used.heads, 3);
        x->used.tokens += (size_t)c.n * NKV, x->used.heads += pairs, x->used.saved += pairs;
    }
    c.qkv = (char*)saved->qkv + unit_bytes(x, at, 3);
    c.lse = saved->lse + at * (size_t)x->g;
    if (ga->ulysses_size > 1 && x->M_in == 3) c.head_in = c.qkv, c.head_out = c.att;
    if (ga->ring_size == 1) return c;
    for (int i = 0; i < COUNT(c.kv); i++)
        c.kv[i] = x->m.kv[i] + x->used.kv * 2 * (size_t)x->row->HS * dtype_bytes(x->dt);
    x->used.kv += widest_block(x->row, ga);
    return c;
}

// ---- attention over the tokens of a ring: keys and values travel around, queries stay
//
// Chunks belong to ring ranks as their owners say. The numbers of its chunk and of the keys' tell what a query
// sees: all of an earlier chunk, its own up to itself, nothing of a later one. In the usual zigzag, here of a ring of
// 3, every step but the first is two products of equal size on each rank:
//
//   chunk               0      1      2      3      4        5
//   held by ring rank   0      1      2      2      1        0
//   chunk 4 sees        all    all    all    all    causal   nothing
//
// Ring rank a keeps its queries and lets the blocks of keys and values of all ring ranks come by: at step t it has the
// block of ring rank x = a - t, and passes it on while it computes with it.
//
// Forward, ring_attention of test/ring_attention.h is the specification. Here RankOps.attention_merge merges
// the part of a block, while the block travels on to ring rank a + 1.
//
// Backward, probabilities are exp(S - lse) with the merged lse, so each pair of chunks simply adds its share: dq stays
// here, dk and dv follow their keys in fp32, one step late, and are home after ring_size steps.

typedef struct Chunk {
    const int* cu;  // cu_seqlens of its documents
    int first, n;   // rows within its ring rank
} Chunk;

static Chunk chunk_of(const GroupAttention* ga, int j) {
    Chunk chunk = {ga->cu + (size_t)j * (size_t)(ga->n_docs + 1), 0, ga->chunk_tokens[j]};
    for (int i = 0; i < j; i++) chunk.first += ga->owner[i] == ga->owner[j] ? ga->chunk_tokens[i] : 0;
    return chunk;
}

// A pair that this rank computes with block x: chunk q of the queries here with chunk k of the keys there. From {0} on
// the causal pairs come first: each writes its part of out, the others merge.
typedef struct Pair {
    int q, k, causal, next;
} Pair;

static int next_pair(Pair* pair, const GroupAttention* ga, int x) {
    for (int n = ga->n_chunks, at = pair->next; at < 2 * n * n; at++) {
        int q = at / n % n, k = at % n, causal = at < n * n;
        if (ga->owner[q] != ga->ring_rank || !ga->chunk_tokens[q]) at += n - 1 - k;  // nothing of this chunk
        else if ((causal ? k == q : k < q) && ga->owner[k] == x && ga->chunk_tokens[k]) {
            *pair = (Pair){q, k, causal, at + 1};
            return 1;
        }
    }
    return 0;
}

// These return the elements of a row of queries, of keys or values, of all three.
static size_t q_width(const RingAttention* p) { return (size_t)p->NH * (size_t)p->c->pass->row->HS; }
static size_t kv_width(const RingAttention* p) { return (size_t)p->NKV * (size_t)p->c->pass->row->HS; }
static size_t row_width(const RingAttention* p) { return q_width(p) + 2 * kv_width(p); }
static void* element(const void* x, size_t i, DType dt) { return (char*)x + i * dtype_bytes(dt); }

static Attention pair_attention(const RingAttention* p, const void* kv, Chunk q, Chunk k, int causal) {
    const Pass* pass = p->c->pass;
    size_t W = kv_width(p), key = (size_t)k.first * 2 * W;
    int width = (int)q_width(p);
    // clang-format off
    return (Attention){.q = element(p->qkv, (size_t)q.first * row_width(p), pass->dt),
                       .k = element(kv, key, pass->dt), .v = element(kv, key + W, pass->dt),
                       .cu_q = q.cu, .cu_k = k.cu, .Nq = q.n, .Nk = k.n,
                       .ldq = (int)row_width(p), .ldkv = (int)(2 * W), .ldo = width,
                       .n_docs = p->c->ga->n_docs, .NH = p->NH, .NKV = p->NKV, .HS = pass->row->HS,
                       .causal = causal, .scale = pass->row->scale, .row = pass->row->row,
                       .partial = 1, .ld_dq = width, .ld_dkv = (int)(2 * W)};
    // clang-format on
}

// ---- around the ring

// Returns the ring rank whose block is here at step t <= ring_size.
static int block_at(const GroupAttention* ga, int t) { return (ga->ring_rank - t + ga->ring_size) % ga->ring_size; }

static size_t block_elems(const RingAttention* p, int x) { return (size_t)ring_tokens(p->c->ga, x) * 2 * kv_width(p); }

// Begins to send the block of step t on, elements of dt, and to receive that of step t + 1.
static Request pass_on(const RingAttention* p, int t, void* send, void* receive, DType dt) {
    const Pass* pass = p->c->pass;
    const GroupAttention* ga = p->c->ga;
    Comm* comm = pass->row->comm;
    CommPurpose before = comm->purpose;
    RouteMessage messages[MOST_RING];
    int R = ga->ring_size, first = ga->first_rank + ga->ulysses_rank;
    if (R > MOST_RING) broken("a ring of %d ranks, at most %d can", R, MOST_RING);
    for (int a = 0; a < R; a++)
        messages[a] = (RouteMessage){first + a * ga->ulysses_size, first + (a + 1) % R * ga->ulysses_size,
                                     block_elems(p, (a - t % R + R) % R) * dtype_bytes(dt)};
    comm->purpose = COMM_RING;
    Request request = begin_routed(comm, messages, R, ga->ulysses_size, send, receive, pass->m.route, pass->s);
    comm->purpose = before;
    return request;
}

// Posts the exchange of the keys of step t; that of the first was posted before.
static Request post_keys(const RingAttention* p, int t) {
    const Pass* pass = p->c->pass;
    if (t == 0 || t + 1 == p->c->ga->ring_size) return p->keys;
    return pass_on(p, t, p->c->kv[t % 2], p->c->kv[(t + 1) % 2], pass->dt);
}

// Posts the exchange of the first block of keys and values, if there is a ring: those of this rank, without the
// queries between them.
static void begin_ring(RingAttention* p) {
    const Pass* pass = p->c->pass;
    const GroupAttention* ga = p->c->ga;
    int W = (int)kv_width(p);
    if (ga->ring_size == 1 || W == 0) return;
    pass->k->ranks->gather_rows(p->c->kv[0], element(p->qkv, q_width(p), pass->dt), NULL,
                                ring_tokens(ga, ga->ring_rank), 2 * W, 2 * W, (int)row_width(p), pass->dt, pass->s);
    p->keys = pass_on(p, 0, p->c->kv[0], p->c->kv[1], pass->dt);
}

// ---- forward: out so far is in sum; block[0] and block[1] hold the out and lse of one pair

static void forward_pair(const RingAttention* p, Pair pair, const void* kv) {
    const Pass* pass = p->c->pass;
    Chunk q = chunk_of(p->c->ga, pair.q), k = chunk_of(p->c->ga, pair.k);
    Attention a = pair_attention(p, kv, q, k, pair.causal);
    float *out = pass->m.sum + (size_t)q.first * q_width(p), *lse = p->lse + (size_t)q.first * (size_t)p->NH;
    if (pair.causal) {
        pass->k->attention_forward(out, lse, &a, pass->dt, pass->s);
        return;
    }
    pass->k->attention_forward(pass->m.block[0], pass->m.block[1], &a, pass->dt, pass->s);
    pass->k->ranks->attention_merge(out, lse, pass->m.block[0], pass->m.block[1], q.n, p->NH, pass->row->HS, pass->s);
}

static void forward_ring(const RingAttention* p) {
    const Pass* pass = p->c->pass;
    const GroupAttention* ga = p->c->ga;
    Comm* comm = pass->row->comm;
    for (int t = 0; t < ga->ring_size; t++) {
        void* kv = p->c->kv[t % 2];
        Request keys = post_keys(p, t);
        for (Pair pair = {0}; next_pair(&pair, ga, block_at(ga, t));) forward_pair(p, pair, kv);
        if (t + 1 < ga->ring_size) comm->table->end(comm, keys, pass->s);
    }
    pass->k->ranks->cast(p->out, pass->dt, pass->m.sum, DT_F32, (size_t)ring_tokens(ga, ga->ring_rank) * q_width(p),
                         pass->s);
}

// ---- backward: dq so far is in sum; block[0] and block[1] hold, in turns, what this rank adds to the dk and dv of
// the block that is here; block[2] receives what the ranks before it added

static void backward_pair(const RingAttention* p, Pair pair, const void* kv, float* dkv, const void* dout) {
    const Pass* pass = p->c->pass;
    Chunk q = chunk_of(p->c->ga, pair.q), k = chunk_of(p->c->ga, pair.k);
    size_t W = kv_width(p), row = (size_t)q.first * q_width(p), key = (size_t)k.first * 2 * W;
    Attention a = pair_attention(p, kv, q, k, pair.causal);
    pass->k->attention_backward(pass->m.sum + row, dkv + key, dkv + key + W, element(dout, row, pass->dt),
                                element(p->out, row, pass->dt), p->lse + (size_t)q.first * (size_t)p->NH, &a, pass->dt,
                                pass->s);
}

static void backward_ring(void* dqkv, const void* dout, const RingAttention* p) {
    const Pass* pass = p->c->pass;
    const GroupAttention* ga = p->c->ga;
    Comm* comm = pass->row->comm;
    float* so_far = pass->m.block[2];
    int n = ring_tokens(ga, ga->ring_rank), ld = (int)row_width(p);
    Request gradients = 0;
    pass->k->clear(pass->m.sum, (size_t)n * q_width(p) * sizeof(float), pass->s);
    for (int t = 0; t < ga->ring_size; t++) {
        void* kv = p->c->kv[t % 2];
        Request keys = post_keys(p, t);
        float* dkv = pass->m.block[t % 2];
        int x = block_at(ga, t);
        pass->k->clear(dkv, block_elems(p, x) * sizeof(float), pass->s);
        for (Pair pair = {0}; next_pair(&pair, ga, x);) backward_pair(p, pair, kv, dkv, dout);
        if (t + 1 < ga->ring_size) comm->table->end(comm, keys, pass->s);
        if (t > 0) {
            comm->table->end(comm, gradients, pass->s);
            pass->k->add(dkv, dkv, so_far, block_elems(p, x), DT_F32, pass->s);
        }
        gradients = pass_on(p, t, dkv, so_far, DT_F32);
    }
    comm->table->end(comm, gradients, pass->s);
    // Nothing travels any more: the other blocks are free for rounded results.
    store_columns(dqkv, ld, pass->m.sum, pass->m.block[0], n, (int)q_width(p), pass->k, pass->dt, pass->s);
    store_columns(element(dqkv, q_width(p), pass->dt), ld, so_far, pass->m.block[1], n, 2 * (int)kv_width(p), pass->k,
                  pass->dt, pass->s);
}

// ---- no ring: whole documents, the ordinary kernel

// Returns the causal call of all queries with all keys, which stand beside them.
static Attention whole_attention(const RingAttention* p) {
    Chunk whole = chunk_of(p->c->ga, 0);
    Attention a = pair_attention(p, NULL, whole, whole, 1);
    a.k = element(p->qkv, q_width(p), p->c->pass->dt);
    a.v = element(p->qkv, q_width(p) + kv_width(p), p->c->pass->dt);
    a.ldkv = a.ldq;
    a.partial = 0;
    return a;
}

// ---- tokens to heads, or back

static int one_has_all_heads(const GroupAttention* ga) {
    for (int b = 0; b < ga->ulysses_size; b++)
        if (ga->head_border[b] == 0 && ga->head_border[b + 1] == ga->head_border[ga->ulysses_size]) return 1;
    return 0;
}

typedef enum Direction { TO_HEADS, TO_TOKENS } Direction;

// Begins the all-to-all of part p of M matrices between tokens, slice after slice of n rows, and heads, part after part
// of n_a rows.
static Request begin_all_to_all(const Call* c, Direction direction, char* tokens, char* heads, int M, int p) {
    const GroupAttention* ga = c->ga;
    const Pass* x = c->pass;
    Transfer token_side[MOST_PEERS], head_side[MOST_PEERS];
    int own = ga->ulysses_rank * c->parts + p;
    size_t row = unit_bytes(x, 1, M), own_row = (size_t)(unit_border(c, own + 1) - unit_border(c, own)) * row;
    for (int i = 0; i < ga->ulysses_size; i++) {
        int peer = ga->first_rank + ga->ring_rank * ga->ulysses_size + i, slice = i * c->parts + p;
        size_t first_unit = (size_t)unit_border(c, slice), first_token = (size_t)ga->token_border[i];
        size_t n_units = (size_t)unit_border(c, slice + 1) - first_unit;
        size_t n_tokens = (size_t)ga->token_border[i + 1] - first_token;
        token_side[i] = (Transfer){peer, tokens + first_unit * (size_t)c->n * row, n_units * (size_t)c->n * row};
        head_side[i] = (Transfer){peer, part_of(c, heads, p, M) + first_token * own_row, n_tokens * own_row};
    }
    Comm* comm = x->row->comm;
    CommPurpose before = comm->purpose;
    for (int i = 0; i < ga->ulysses_size; i++)
        comm->at_once += comm->node[token_side[i].peer] == comm->node[comm->rank];
    Transfer *sends = direction == TO_HEADS ? token_side : head_side,
             *receives = sends == head_side ? token_side : head_side;
    comm->purpose = one_has_all_heads(ga) ? COMM_REMAP : COMM_ULYSSES;
    Request request = comm->table->begin_send_receive(comm, sends, ga->ulysses_size, receives, ga->ulysses_size, x->s);
    comm->purpose = before, comm->at_once = 0;
    return request;
}

typedef void (*MoveHeads)(void* out, const void* x, int N, int M, int HS0, int HS, const int* border, int d, DType dt,
                          Stream s);

static void move_heads(const Call* c, MoveHeads move, void* out, const void* in, int M) {
    const Pass* x = c->pass;
    int border[ATTENTION_PARTS * MOST_PEERS + 1], slices = c->ga->ulysses_size * c->parts;
    for (int i = 0; i <= slices; i++) border[i] = unit_border(c, i);
    move(out, in, c->n, M, x->g * x->row->HS, x->row->HS, border, slices, x->dt, x->s);
}

// ---- a group's part of a pass

static int shares_heads(const Call* c) { return c->ga->ulysses_size > 1; }

// Computes part p, which may be without units, if there are fewer than slices.
static void compute(RingAttention* ring, const Call* c, int p) {
    const Pass* pass = c->pass;
    if (ring->NKV == 0) return;
    char *dqkv = part_of(c, c->head_out, p, 3), *dout = part_of(c, c->head_in, p, 1);
    if (c->ga->ring_size > 1) {
        if (pass->M_in == 3) forward_ring(ring);
        else backward_ring(dqkv, dout, ring);
        return;
    }
    Attention a = whole_attention(ring);
    const Tree* tree = c->ga->tree;
    void *dk = element(dqkv, q_width(ring), pass->dt), *dv = element(dqkv, q_width(ring) + kv_width(ring), pass->dt);
    if (tree && pass->M_in == 3)
        tree_attention_forward(ring->out, ring->lse, &a, tree, pass->m.tree, pass->k, pass->dt, pass->s);
    else if (tree)
        tree_attention_backward(dqkv, dk, dv, dout, ring->out, ring->lse, &a, tree, pass->m.tree, pass->k, pass->dt,
                                pass->s);
    else if (pass->M_in == 3) pass->k->attention_forward(ring->out, ring->lse, &a, pass->dt, pass->s);
    else pass->k->attention_backward(dqkv, dk, dv, dout, ring->out, ring->lse, &a, pass->dt, pass->s);
}

static void post(Call* c) {
    if (shares_heads(c)) {
        for (int p = 0; p < c->parts; p++)
            c->there[p] = begin_all_to_all(c, TO_HEADS, c->token_in, c->head_in, c->pass->M_in, p);
        return;
    }
    c->ring = ring_of(c, 0);
    begin_ring(&c->ring);
}

static void work(Call* c) {
    Comm* comm = c->pass->row->comm;
    if (!shares_heads(c)) compute(&c->ring, c, 0);
    for (int p = 0; p < c->parts && shares_heads(c); p++) {
        RingAttention ring = ring_of(c, p);
        comm->table->end(comm, c->there[p], c->pass->s);
        begin_ring(&ring);
        compute(&ring, c, p);
        c->back[p] = begin_all_to_all(c, TO_TOKENS, c->token_out, c->head_out, c->pass->M_out, p);
    }
}

static void finish(const Call* c) {
    Comm* comm = c->pass->row->comm;
    for (int p = 0; p < c->parts; p++) comm->table->end(comm, c->back[p], c->pass->s);
    move_heads(c, c->pass->k->ranks->join_heads, c->out, c->token_out, c->pass->M_out);
}

// Runs the pass. Slices are cut before anything arrives, because that may overwrite the rows.
static void run_pass(Pass* x) {
    const RowAttention* row = x->row;
    Call calls[MOST_SHARED_GROUPS];
    int n = 0;
    for (int i = 0; i < row->n_groups; i++) {
        if (row->groups[i].ulysses_size * row->groups[i].ring_size == 1) continue;
        if (n == MOST_SHARED_GROUPS) broken("a row has more than %d shared groups", MOST_SHARED_GROUPS);
        calls[n] = open_call(x, &row->groups[i]);
        if (shares_heads(&calls[n]))
            move_heads(&calls[n], x->k->ranks->split_heads, calls[n].token_in, calls[n].in, x->M_in);
        n++;
    }
    for (int i = 0; i < n; i++) post(&calls[i]);
    for (int i = 0; i < row->n_groups; i++) {
        if (row->groups[i].ulysses_size * row->groups[i].ring_size > 1) continue;
        Call local = open_call(x, &row->groups[i]);
        RingAttention ring = ring_of(&local, 0);
        compute(&ring, &local, 0);
    }
    for (int i = 0; i < n; i++) work(&calls[i]);
    for (int i = 0; i < n; i++)
        if (shares_heads(&calls[i])) finish(&calls[i]);
}

// Sums over groups how much of each part of scratch they need, and where rows of tokens end in the saved memory.
static Pass begin_pass(const SavedAttention* saved, const RowAttention* row, const Kernels* k, DType dt, Stream s) {
    Pass x = {.row = row, .saved = saved, .k = k, .dt = dt, .s = s, .g = row->NH / row->NKV};
    Used needs = {0};
    size_t trees = 0;  // pairs of the widest group that has trees
    for (int i = 0; i < row->n_groups; i++) {
        const GroupAttention* ga = &row->groups[i];
        int n_a = ga->token_border[ga->ulysses_size];
        int n = ga->token_border[ga->ulysses_rank + 1] - ga->token_border[ga->ulysses_rank];
        if (ga->tree) trees = MAX(trees, (size_t)n_a * (size_t)own_units(row, ga));
        if (ga->ring_size > 1) needs.kv += widest_block(row, ga);
        if (ga->ulysses_size == 1) x.used.saved += (size_t)n * (size_t)row->NKV;
        else needs.tokens += (size_t)n * (size_t)row->NKV, needs.heads += (size_t)n_a * (size_t)own_units(row, ga);
    }
    carve(&x.m, (char*)row->scratch, MAX(MAX(MAX(needs.tokens, needs.heads), needs.kv), trees), x.g, row->HS,
          needs.tokens + needs.heads > 0, needs.kv > 0, row->comm->route_least > 0, trees > 0, dt);
    return x;
}

void group_attention_forward(const SavedAttention* saved, const RowAttention* row, const Kernels* k, DType dt,
                             Stream s) {
    Pass x = begin_pass(saved, row, k, dt, s);
    x.in = (const char*)saved->qkv, x.out = (char*)saved->out;
    x.M_in = 3, x.M_out = 1;
    run_pass(&x);
}

void group_attention_backward(void* dqkv, const void* dout, const SavedAttention* saved, const RowAttention* row,
                              const Kernels* k, DType dt, Stream s) {
    Pass x = begin_pass(saved, row, k, dt, s);
    x.in = (const char*)dout, x.out = (char*)dqkv;
    x.M_in = 1, x.M_out = 3;
    run_pass(&x);
}
