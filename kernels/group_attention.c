// group_attention.c - Ulysses: tokens to heads and back, around the attention of a ring (ring_attention.c).
//
// The rows of a rank are cut by units, a key/value head with its g = NH / NKV query heads, into one slice for each
// ulysses rank of its ring rank. An all-to-all hands the slices out, and because peers hold contiguous runs of tokens,
// what arrives one after another is (n_a, (g + 2) H, HS) for H units, a packed row as any kernel knows it. The same
// all-to-all with senders and receivers swapped brings results back.
//
// With Comm.overlap units are cut into two parts, so that one part travels while the other is computed: slice
// i * parts + p is part p of rank i. All ranks follow one order:
//
//   in 0, in 1, (wait 0) compute 0, out 0, (wait 1) compute 1, out 1
#include "kernels/ring_attention.h"

enum {
    MOST_PARTS = 2,
    MOST_PEERS = 1024,  // ulysses_size <= NKV, of which no model has more
};

// ---- scratch

typedef struct Scratch {
    // In the order of split_heads: slices of all units, own tokens, (n, NH + 2 NKV, HS) and (n,NH,HS).
    void *token_qkv, *token_out;
    // dqkv and dout of own units, all tokens of the ring rank: (n_a, (g + 2) H, HS), (n_a, g H, HS).
    void *head_qkv, *head_out;
    void* kv[2];  // the rest is RingAttention's
    float *sum, *block[3];
} Scratch;

static void* take(char* base, size_t* used, size_t bytes) {
    char* p = base ? base + *used : NULL;
    *used += ROUND_UP(bytes, (size_t)64);
    return p;
}

// Lays scratch out from base (NULL: only counts) and returns its bytes: own and shared are the largest numbers of
// (token, unit) pairs that this rank holds as tokens of all units, and that any rank of its ring holds as units of all
// tokens; units of g query heads.
static size_t carve(Scratch* m, char* base, size_t own, size_t shared, int g, int HS, int ulysses, int ring, DType dt) {
    size_t used = 0, e = dtype_bytes(dt), kv = 2 * (size_t)HS, q = (size_t)(g * HS);
    if (ulysses) {
        m->token_qkv = take(base, &used, own * (q + kv) * e);
        m->token_out = take(base, &used, own * q * e);
        m->head_qkv = take(base, &used, shared * (q + kv) * e);
        m->head_out = take(base, &used, shared * q * e);
    }
    if (ring) {
        for (int i = 0; i < COUNT(m->kv); i++) m->kv[i] = take(base, &used, shared * kv * e);
        m->sum = (float*)take(base, &used, shared * q * sizeof(float));
        m->block[0] = (float*)take(base, &used, shared * MAX(kv, q) * sizeof(float));
        m->block[1] = (float*)take(base, &used, shared * MAX(kv, (size_t)g) * sizeof(float));
        m->block[2] = (float*)take(base, &used, shared * kv * sizeof(float));
    }
    return used;
}

size_t group_attention_scratch(int N, int NH, int NKV, int HS, int ranks, DType dt) {
    Scratch unused;
    size_t pairs = (size_t)N * (size_t)NKV;
    return carve(&unused, NULL, pairs, pairs, NH / NKV, HS, ranks > 1 && NKV > 1, ranks > 1, dt);
}

// ---- one call

typedef struct Call {
    const GroupAttention* ga;
    const Kernels* k;
    DType dt;
    Stream s;
    int parts;   // of the units
    int g;       // query heads of a unit
    int n, n_a;  // tokens of this rank, of its ring rank
    Scratch m;
} Call;

// Where slice i of the units begins, as split_heads cuts them: rank b has slices b * parts up to (b + 1) * parts.
static int unit_border(const Call* c, int i) {
    return (int)((int64_t)i * c->ga->NKV / ((int64_t)c->ga->ulysses_size * c->parts));
}

static int token_border(const Call* c, int b) { return (int)((int64_t)b * c->n_a / c->ga->ulysses_size); }

static Call begin_call(const GroupAttention* ga, const Kernels* k, DType dt, Stream s) {
    Call c = {.ga = ga, .k = k, .dt = dt, .s = s, .parts = 1, .g = ga->NH / ga->NKV};
    if (ga->ulysses_size > MOST_PEERS) broken("%d ranks share heads, at most %d can", ga->ulysses_size, MOST_PEERS);
    if (ga->comm->overlap && ga->ulysses_size > 1 && ga->NKV > ga->ulysses_size) c.parts = MOST_PARTS;
    c.n_a = ga->ring_tokens[ga->ring_rank];
    c.n = token_border(&c, ga->ulysses_rank + 1) - token_border(&c, ga->ulysses_rank);
    int H = unit_border(&c, (ga->ulysses_rank + 1) * c.parts) - unit_border(&c, ga->ulysses_rank * c.parts), most = 0;
    for (int x = 0; x < ga->ring_size; x++) most = MAX(most, ga->ring_tokens[x]);
    carve(&c.m, (char*)ga->scratch, (size_t)c.n * (size_t)ga->NKV, (size_t)most * (size_t)H, c.g, ga->HS,
          ga->ulysses_size > 1, ga->ring_size > 1, dt);
    return c;
}

// Elements of a token and unit: of queries alone, or of queries, keys and values.
static int unit_elems(const Call* c, int matrices) { return (c->g + matrices - 1) * c->ga->HS; }

// Part p of x, which holds (n_a, H_p, elems) of dt for part after part.
static void* part_of(const Call* c, const void* x, int p, int elems, DType dt) {
    int before = unit_border(c, c->ga->ulysses_rank * c->parts + p) - unit_border(c, c->ga->ulysses_rank * c->parts);
    return (char*)x + (size_t)c->n_a * (size_t)before * (size_t)elems * dtype_bytes(dt);
}

static RingAttention ring_attention(const Call* c, const void* qkv, void* out, float* lse, int p) {
    int slice = c->ga->ulysses_rank * c->parts + p;
    RingAttention ring = {.ga = c->ga, .k = c->k, .dt = c->dt, .s = c->s, .sum = c->m.sum};
    ring.NKV = unit_border(c, slice + 1) - unit_border(c, slice);
    ring.NH = c->g * ring.NKV;
    ring.qkv = part_of(c, qkv, p, unit_elems(c, 3), c->dt);
    ring.out = part_of(c, out, p, unit_elems(c, 1), c->dt);
    ring.lse = (float*)part_of(c, lse, p, c->g, DT_F32);
    memcpy(ring.kv, c->m.kv, sizeof ring.kv);
    memcpy(ring.block, c->m.block, sizeof ring.block);
    return ring;
}

// ---- tokens to heads, or back

typedef enum Direction { TO_HEADS, TO_TOKENS } Direction;

// Begins the all-to-all of part p of M matrices between tokens, slice after slice of n rows, and heads, part after part
// of n_a rows.
static Request begin_all_to_all(const Call* c, Direction direction, void* tokens, void* heads, int M, int p) {
    const GroupAttention* ga = c->ga;
    Transfer token_side[MOST_PEERS], head_side[MOST_PEERS];
    int own = ga->ulysses_rank * c->parts + p;
    size_t row = (size_t)unit_elems(c, M) * dtype_bytes(c->dt);  // of one unit
    size_t own_row = (size_t)(unit_border(c, own + 1) - unit_border(c, own)) * row;
    for (int i = 0; i < ga->ulysses_size; i++) {
        int peer = ga->first_rank + ga->ring_rank * ga->ulysses_size + i, slice = i * c->parts + p;
        size_t first_unit = (size_t)unit_border(c, slice), first_token = (size_t)token_border(c, i);
        size_t n_units = (size_t)unit_border(c, slice + 1) - first_unit;
        size_t n_tokens = (size_t)token_border(c, i + 1) - first_token;
        token_side[i] = (Transfer){peer, (char*)tokens + first_unit * (size_t)c->n * row, n_units * (size_t)c->n * row};
        head_side[i] = (Transfer){peer, (char*)part_of(c, heads, p, unit_elems(c, M), c->dt) + first_token * own_row,
                                  n_tokens * own_row};
    }
    return direction == TO_HEADS
               ? begin_send_receive_for(COMM_ULYSSES, ga->comm, token_side, head_side, ga->ulysses_size, c->s)
               : begin_send_receive_for(COMM_ULYSSES, ga->comm, head_side, token_side, ga->ulysses_size, c->s);
}

// What a pass moves: M_in matrices of each token to heads, then M_out back.
typedef struct Pass {
    void *token_in, *head_in, *head_out, *token_out;
    int M_in, M_out;
    void (*compute)(const Call* c, const struct Pass* pass, const SavedAttention* saved, int p);
} Pass;

static void run_pass(const Call* c, const Pass* pass, const SavedAttention* saved, void* out, const void* in) {
    const GroupAttention* ga = c->ga;
    const CommTable* table = ga->comm->table;
    Request there[MOST_PARTS], back[MOST_PARTS];
    int slices = ga->ulysses_size * c->parts;
    c->k->split_heads(pass->token_in, in, c->n, pass->M_in, ga->NKV, c->g * ga->HS, ga->HS, slices, c->dt, c->s);
    for (int p = 0; p < c->parts; p++)
        there[p] = begin_all_to_all(c, TO_HEADS, pass->token_in, pass->head_in, pass->M_in, p);
    for (int p = 0; p < c->parts; p++) {
        table->end(ga->comm, there[p], c->s);
        pass->compute(c, pass, saved, p);
        back[p] = begin_all_to_all(c, TO_TOKENS, pass->token_out, pass->head_out, pass->M_out, p);
    }
    for (int p = 0; p < c->parts; p++) table->end(ga->comm, back[p], c->s);
    c->k->join_heads(out, pass->token_out, c->n, pass->M_out, ga->NKV, c->g * ga->HS, ga->HS, slices, c->dt, c->s);
}

// With fewer units than slices a part may have none.
static void forward_part(const Call* c, const Pass* pass, const SavedAttention* saved, int p) {
    RingAttention ring = ring_attention(c, pass->head_in, pass->head_out, saved->lse, p);
    if (ring.NKV > 0) ring_attention_forward(&ring);
}

static void backward_part(const Call* c, const Pass* pass, const SavedAttention* saved, int p) {
    RingAttention ring = ring_attention(c, saved->qkv, saved->out, saved->lse, p);
    if (ring.NKV > 0)
        ring_attention_backward(part_of(c, pass->head_out, p, unit_elems(c, 3), c->dt),
                                part_of(c, pass->head_in, p, unit_elems(c, 1), c->dt), &ring);
}

void group_attention_forward(void* out, const SavedAttention* saved, const void* qkv, const GroupAttention* ga,
                             const Kernels* k, DType dt, Stream s) {
    Call c = begin_call(ga, k, dt, s);
    if (ga->ulysses_size == 1) {
        RingAttention ring = ring_attention(&c, qkv, out, saved->lse, 0);
        ring_attention_forward(&ring);
        return;
    }
    Pass pass = {c.m.token_qkv, saved->qkv, saved->out, c.m.token_out, 3, 1, forward_part};
    run_pass(&c, &pass, saved, out, qkv);
}

void group_attention_backward(void* dqkv, const void* dout, const SavedAttention* saved, const GroupAttention* ga,
                              const Kernels* k, DType dt, Stream s) {
    Call c = begin_call(ga, k, dt, s);
    if (ga->ulysses_size == 1) {
        RingAttention ring = ring_attention(&c, saved->qkv, saved->out, saved->lse, 0);
        ring_attention_backward(dqkv, dout, &ring);
        return;
    }
    Pass pass = {c.m.token_out, c.m.head_out, c.m.head_qkv, c.m.token_qkv, 1, 3, backward_part};
    run_pass(&c, &pass, saved, dqkv, dout);
}
