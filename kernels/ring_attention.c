// ring_attention.c - attention over the tokens of one ring rank: keys and values travel around, queries stay.
//
// Chunks belong to ring ranks as their owners say. What a query may see is a matter of the numbers of its chunk and of
// the keys': of an earlier chunk all, of its own what is not later than itself, of a later one nothing. In the usual
// zigzag, here of a ring of 3, every step but the first is two products of equal size on each rank:
//
//   chunk               0      1      2      3      4        5
//   held by ring rank   0      1      2      2      1        0
//   chunk 4 sees        all    all    all    all    causal   nothing
//
// Ring rank a keeps its queries and lets the blocks of keys and values of all ring ranks come by: at step t it has the
// block of ring rank x = a - t, and passes it on while it computes with it.
//
// Forward, naively; `merge` is attention_merge of kernels.h, which is exact in any order of parts:
//
//   out = 0, lse = -infinity
//   for (t = 0; t < ring_size; t++) {
//       (part, part_lse) = attention(queries, keys of block x, values of block x)     x = a - t
//       M = max(lse, part_lse), p = exp(lse - M), r = exp(part_lse - M)
//       out = (p out + r part) / (p + r), lse = M + log(p + r)                        merge
//       send the block to ring rank a + 1, receive the next one from ring rank a - 1
//   }
//
// Backward, probabilities are exp(S - lse) with the merged lse, so each pair of chunks simply adds its share: dq stays
// here, dk and dv travel behind their keys in fp32, one step late, and are home after ring_size steps.
#include "kernels/ring_attention.h"
#include "kernels/route.h"

enum { MOST_RING = 4096 };

typedef struct Chunk {
    const int* cu;  // where its documents begin
    int first, n;   // rows within its ring rank
} Chunk;

static Chunk chunk_of(const GroupAttention* ga, int j) {
    Chunk chunk = {ga->cu + (size_t)j * (size_t)(ga->n_docs + 1), 0, ga->chunk_tokens[j]};
    for (int i = 0; i < j; i++) chunk.first += ga->owner[i] == ga->owner[j] ? ga->chunk_tokens[i] : 0;
    return chunk;
}

// What this rank computes with block x, one after another, from {0}: chunk q of the queries here with chunk k of the
// keys there. The causal pairs come first: each writes its part of out, the others merge.
typedef struct Pair {
    int q, k, causal, begun;
} Pair;

static int next_pair(Pair* pair, const GroupAttention* ga, int x) {
    int a = ga->ring_rank, n = ga->n_chunks, at = pair->begun ? pair->q * n + pair->k + 1 : 0;
    if (!pair->begun) pair->begun = pair->causal = 1;
    for (;; at = 0, pair->causal = 0) {
        for (; at < n * n; at++) {
            int q = at / n, k = at % n, fits = pair->causal ? q == k : k < q;
            if (ga->owner[q] != a || !ga->chunk_tokens[q]) at = q * n + n - 1;  // nothing of this chunk
            else if (fits && ga->owner[k] == x && ga->chunk_tokens[k]) {
                pair->q = q, pair->k = k;
                return 1;
            }
        }
        if (!pair->causal) return 0;
    }
}

// Elements of a row: of queries, of keys or of values, of all three.
static size_t q_width(const RingAttention* p) { return (size_t)p->NH * (size_t)p->row->HS; }
static size_t kv_width(const RingAttention* p) { return (size_t)p->NKV * (size_t)p->row->HS; }
static size_t row_width(const RingAttention* p) { return q_width(p) + 2 * kv_width(p); }
static void* element(const void* x, size_t i, DType dt) { return (char*)x + i * dtype_bytes(dt); }

static Attention pair_attention(const RingAttention* p, const void* kv, Chunk q, Chunk k, int causal) {
    size_t W = kv_width(p), key = (size_t)k.first * 2 * W;
    return (Attention){.q = element(p->qkv, (size_t)q.first * row_width(p), p->dt),
                       .k = element(kv, key, p->dt),
                       .v = element(kv, key + W, p->dt),
                       .cu_q = q.cu,
                       .cu_k = k.cu,
                       .Nq = q.n,
                       .Nk = k.n,
                       .ldq = (int)row_width(p),
                       .ldkv = (int)(2 * W),
                       .ldo = (int)q_width(p),
                       .n_docs = p->ga->n_docs,
                       .NH = p->NH,
                       .NKV = p->NKV,
                       .HS = p->row->HS,
                       .causal = causal,
                       .scale = p->row->scale,
                       .row = p->row->row,
                       .partial = 1,
                       .ld_dq = (int)q_width(p),
                       .ld_dkv = (int)(2 * W)};
}

// ---- around the ring

// The ring rank whose block is here at step t <= ring_size.
static int block_at(const GroupAttention* ga, int t) { return (ga->ring_rank - t + ga->ring_size) % ga->ring_size; }

static size_t block_elems(const RingAttention* p, int x) { return (size_t)ring_tokens(p->ga, x) * 2 * kv_width(p); }

// Begins to send the block of step t on, elements of dt, and to receive that of step t + 1.
static Request pass_on(const RingAttention* p, int t, void* send, void* receive, DType dt) {
    const GroupAttention* ga = p->ga;
    Comm* comm = p->row->comm;
    CommPurpose before = comm->purpose;
    RouteMessage messages[MOST_RING];
    int R = ga->ring_size, first = ga->first_rank + ga->ulysses_rank;
    if (R > MOST_RING) broken("a ring of %d ranks, at most %d can", R, MOST_RING);
    for (int a = 0; a < R; a++)
        messages[a] = (RouteMessage){first + a * ga->ulysses_size, first + (a + 1) % R * ga->ulysses_size,
                                     block_elems(p, (a - t % R + R) % R) * dtype_bytes(dt)};
    comm->purpose = COMM_RING;
    Request request = begin_routed(comm, messages, R, ga->ulysses_size, send, receive, p->route, p->s);
    comm->purpose = before;
    return request;
}

// kv = the keys and values of this rank without the queries between them.
static void own_block(const RingAttention* p, void* kv) {
    int W = (int)kv_width(p);
    p->k->ranks->gather_rows(kv, element(p->qkv, q_width(p), p->dt), NULL, ring_tokens(p->ga, p->ga->ring_rank), 2 * W,
                             2 * W, (int)row_width(p), p->dt, p->s);
}

// The exchange of the keys of step t; that of the first has been posted.
static Request post_keys(const RingAttention* p, int t) {
    if (t == 0 || t + 1 == p->ga->ring_size) return p->keys;
    return pass_on(p, t, p->kv[t % 2], p->kv[(t + 1) % 2], p->dt);
}

void ring_attention_begin(RingAttention* p) {
    if (p->ga->ring_size == 1 || p->NKV == 0) return;
    own_block(p, p->kv[0]);
    p->keys = pass_on(p, 0, p->kv[0], p->kv[1], p->dt);
}

// ---- forward: out so far is in sum; block[0] and block[1] hold the out and lse of one pair

static void forward_pair(const RingAttention* p, Pair pair, const void* kv) {
    Chunk q = chunk_of(p->ga, pair.q), k = chunk_of(p->ga, pair.k);
    Attention a = pair_attention(p, kv, q, k, pair.causal);
    float *out = p->sum + (size_t)q.first * q_width(p), *lse = p->lse + (size_t)q.first * (size_t)p->NH;
    if (pair.causal) {
        p->k->attention_forward(out, lse, &a, p->dt, p->s);
        return;
    }
    p->k->attention_forward(p->block[0], p->block[1], &a, p->dt, p->s);
    p->k->ranks->attention_merge(out, lse, p->block[0], p->block[1], q.n, p->NH, p->row->HS, p->s);
}

static void forward_ring(const RingAttention* p) {
    const GroupAttention* ga = p->ga;
    Comm* comm = p->row->comm;
    for (int t = 0; t < ga->ring_size; t++) {
        void* kv = p->kv[t % 2];
        Request keys = post_keys(p, t);
        for (Pair pair = {0}; next_pair(&pair, ga, block_at(ga, t));) forward_pair(p, pair, kv);
        if (t + 1 < ga->ring_size) comm->table->end(comm, keys, p->s);
    }
    p->k->ranks->cast(p->out, p->dt, p->sum, DT_F32, (size_t)ring_tokens(ga, ga->ring_rank) * q_width(p), p->s);
}

// ---- backward: dq so far is in sum; block[0] and block[1] hold, in turns, what this rank adds to the dk and dv of
// the block that is here; block[2] receives what the ranks before it added

static void backward_pair(const RingAttention* p, Pair pair, const void* kv, float* dkv, const void* dout) {
    Chunk q = chunk_of(p->ga, pair.q), k = chunk_of(p->ga, pair.k);
    size_t W = kv_width(p), row = (size_t)q.first * q_width(p), key = (size_t)k.first * 2 * W;
    Attention a = pair_attention(p, kv, q, k, pair.causal);
    p->k->attention_backward(p->sum + row, dkv + key, dkv + key + W, element(dout, row, p->dt),
                             element(p->out, row, p->dt), p->lse + (size_t)q.first * (size_t)p->NH, &a, p->dt, p->s);
}

// columns = x, rounded: (n,width) into rows of qkv.
static void store_columns(void* columns, const RingAttention* p, const float* x, void* rounded, size_t width) {
    int n = ring_tokens(p->ga, p->ga->ring_rank);
    p->k->ranks->cast(rounded, p->dt, x, DT_F32, (size_t)n * width, p->s);
    p->k->ranks->gather_rows(columns, rounded, NULL, n, (int)width, (int)row_width(p), (int)width, p->dt, p->s);
}

static void backward_ring(void* dqkv, const void* dout, const RingAttention* p) {
    const GroupAttention* ga = p->ga;
    Comm* comm = p->row->comm;
    float* so_far = p->block[2];
    Request gradients = 0;
    p->k->clear(p->sum, (size_t)ring_tokens(ga, ga->ring_rank) * q_width(p) * sizeof(float), p->s);
    for (int t = 0; t < ga->ring_size; t++) {
        void* kv = p->kv[t % 2];
        Request keys = post_keys(p, t);
        float* dkv = p->block[t % 2];
        int x = block_at(ga, t);
        p->k->clear(dkv, block_elems(p, x) * sizeof(float), p->s);
        for (Pair pair = {0}; next_pair(&pair, ga, x);) backward_pair(p, pair, kv, dkv, dout);
        if (t + 1 < ga->ring_size) comm->table->end(comm, keys, p->s);
        if (t > 0) {
            comm->table->end(comm, gradients, p->s);
            p->k->add(dkv, dkv, so_far, block_elems(p, x), DT_F32, p->s);
        }
        gradients = pass_on(p, t, dkv, so_far, DT_F32);
    }
    comm->table->end(comm, gradients, p->s);
    // Nothing travels any more: the other blocks are free for what is rounded.
    store_columns(dqkv, p, p->sum, p->block[0], q_width(p));
    store_columns(element(dqkv, q_width(p), p->dt), p, so_far, p->block[1], 2 * kv_width(p));
}

// ---- no ring: whole documents, the ordinary kernel

static Attention whole_attention(const RingAttention* p) {
    Chunk whole = chunk_of(p->ga, 0);
    Attention a = pair_attention(p, NULL, whole, whole, 1);
    a.k = element(p->qkv, q_width(p), p->dt);
    a.v = element(p->qkv, q_width(p) + kv_width(p), p->dt);
    a.ldkv = a.ldq;
    a.partial = 0;
    return a;
}

void ring_attention_forward(const RingAttention* p) {
    Attention a;
    if (p->ga->ring_size > 1) {
        forward_ring(p);
        return;
    }
    a = whole_attention(p);
    p->k->attention_forward(p->out, p->lse, &a, p->dt, p->s);
}

void ring_attention_backward(void* dqkv, const void* dout, const RingAttention* p) {
    Attention a;
    if (p->ga->ring_size > 1) {
        backward_ring(dqkv, dout, p);
        return;
    }
    a = whole_attention(p);
    p->k->attention_backward(dqkv, element(dqkv, q_width(p), p->dt), element(dqkv, q_width(p) + kv_width(p), p->dt),
                             dout, p->out, p->lse, &a, p->dt, p->s);
}
