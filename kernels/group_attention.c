// group_attention.c - a row of groups: Ulysses, tokens to heads and back, around the attention of rings
// (ring_attention.c), and exchanges of some groups under the computing of others.
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
#include "kernels/ring_attention.h"
#include "kernels/route.h"

enum {
    MOST_PEERS = 1024,  // of a plan's ulysses ranks, at most as many as key/value heads
};

// ---- scratch

typedef struct Scratch {
    // In the order of split_heads: slices of all units, own tokens, (n, NH + 2 NKV, HS) and (n,NH,HS).
    char *token_qkv, *token_out;
    // dqkv and dout of own units, all tokens of the ring rank: (n_a, (g + 2) H, HS), (n_a, g H, HS).
    char *head_qkv, *head_out;
    char* kv[2];  // of all rings; the rest is RingAttention's, of one at a time
    float *sum, *block[3];
    char* route;
} Scratch;

static char* take(char* base, size_t* used, size_t bytes) {
    char* p = base ? base + *used : NULL;
    *used += ROUND_UP(bytes, (size_t)64);
    return p;
}

// Lays scratch out from base (NULL: only counts) and returns its bytes, for `pairs` pairs of token and unit, of which
// each is g query heads, in any of its parts.
static size_t carve(Scratch* m, char* base, size_t pairs, int g, int HS, int ulysses, int ring, int routed, DType dt) {
    size_t used = 0, e = dtype_bytes(dt), kv = 2 * (size_t)HS, q = (size_t)(g * HS);
    if (ulysses) {
        m->token_qkv = take(base, &used, pairs * (q + kv) * e);
        m->token_out = take(base, &used, pairs * q * e);
        m->head_qkv = take(base, &used, pairs * (q + kv) * e);
        m->head_out = take(base, &used, pairs * q * e);
    }
    if (ring) {
        for (int i = 0; i < COUNT(m->kv); i++) m->kv[i] = take(base, &used, pairs * kv * e);
        m->sum = (float*)take(base, &used, pairs * q * sizeof(float));
        m->block[0] = (float*)take(base, &used, pairs * MAX(kv, q) * sizeof(float));
        m->block[1] = (float*)take(base, &used, pairs * MAX(kv, (size_t)g) * sizeof(float));
        m->block[2] = (float*)take(base, &used, pairs * kv * sizeof(float));
        m->route = take(base, &used, routed ? route_scratch(pairs * kv * sizeof(float)) : 0);
    }
    return used;
}

size_t group_attention_scratch(int N, int NH, int NKV, int HS, int ranks, int routed, DType dt) {
    Scratch unused;
    return carve(&unused, NULL, (size_t)N * (size_t)NKV, NH / NKV, HS, ranks > 1 && NKV > 1, ranks > 1, routed, dt);
}

// ---- one pass over a row, forward or backward

// What of the memory of a pass groups before this one have: pairs of token and unit.
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
    const char* in;   // rows of tokens: of M_in matrices
    char* out;        // and of M_out
    int M_in, M_out;  // 3 and 1, backward 1 and 3
    Scratch m;
    Used used;
} Pass;

// A group in it. Rows of tokens before and after attention; where ranks share heads, the same cut into slices, and of
// the own units over all tokens. Else the latter are the rows themselves.
typedef struct Call {
    const Pass* pass;
    const GroupAttention* ga;
    int parts;   // of the units
    int n, n_a;  // tokens of this rank, of its ring rank
    char *in, *out, *token_in, *token_out, *head_in, *head_out;
    char *qkv, *att;  // what is saved
    float* lse;
    char* kv[2];
    RingAttention ring;  // without ulysses
    Request there[ATTENTION_PARTS], back[ATTENTION_PARTS];
} Call;

// Bytes of `pairs` units of queries alone (M = 1), or of queries, keys and values (3).
static size_t unit_bytes(const Pass* x, size_t pairs, int M) {
    return pairs * (size_t)((x->g + M - 1) * x->row->HS) * dtype_bytes(x->dt);
}

static int head_border(const RowAttention* row, const GroupAttention* ga, int b) {
    return (int)((int64_t)ga->head_border[b] * row->NKV / ga->head_border[ga->ulysses_size]);
}

static int own_units(const RowAttention* row, const GroupAttention* ga) {
    return head_border(row, ga, ga->ulysses_rank + 1) - head_border(row, ga, ga->ulysses_rank);
}

// Where slice i of the units begins: rank b has slices b * parts up to (b + 1) * parts.
static int unit_border(const Call* c, int i) {
    const RowAttention* row = c->pass->row;
    int b = i / c->parts, first = head_border(row, c->ga, b);
    return i % c->parts ? first + (head_border(row, c->ga, b + 1) - first) * (i % c->parts) / c->parts : first;
}

// Part p of x, which holds (n_a, H_p, elements) for part after part: elements of M matrices, or one for each query
// head.
static char* part_of(const Call* c, char* x, int p, int M) {
    int first = c->ga->ulysses_rank * c->parts, before = unit_border(c, first + p) - unit_border(c, first);
    size_t pairs = (size_t)c->n_a * (size_t)before;
    return x + (M ? unit_bytes(c->pass, pairs, M) : pairs * (size_t)c->pass->g * sizeof(float));
}

static RingAttention ring_of(const Call* c, int p) {
    const Pass* x = c->pass;
    int slice = c->ga->ulysses_rank * c->parts + p;
    RingAttention ring = {.row = x->row, .ga = c->ga, .k = x->k, .dt = x->dt, .s = x->s, .sum = x->m.sum};
    ring.NKV = unit_border(c, slice + 1) - unit_border(c, slice);
    ring.NH = x->g * ring.NKV;
    ring.qkv = part_of(c, c->qkv, p, 3);
    ring.out = part_of(c, c->att, p, 1);
    ring.lse = (float*)part_of(c, (char*)c->lse, p, 0);
    memcpy(ring.kv, c->kv, sizeof ring.kv);
    memcpy(ring.block, x->m.block, sizeof ring.block);
    ring.route = x->m.route;
    return ring;
}

// Pairs of token and own unit of the widest rank of a ring.
static size_t widest_block(const RowAttention* row, const GroupAttention* ga) {
    int widest = 0;
    for (int a = 0; a < ga->ring_size; a++) widest = MAX(widest, ring_tokens(ga, a));
    return (size_t)widest * (size_t)own_units(row, ga);
}

// Takes for the group what it needs of the memory of the pass.
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
    CommPurpose purpose = one_has_all_heads(ga) ? COMM_REMAP : COMM_ULYSSES;
    Comm* comm = x->row->comm;
    for (int i = 0; i < ga->ulysses_size; i++)
        comm->at_once += comm->node[token_side[i].peer] == comm->node[comm->rank];
    Transfer *sends = direction == TO_HEADS ? token_side : head_side,
             *receives = sends == head_side ? token_side : head_side;
    Request request = begin_send_receive_for(purpose, comm, sends, receives, ga->ulysses_size, x->s);
    comm->at_once = 0;
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

// With fewer units than slices a part may have none.
static void compute(RingAttention* ring, const Call* c, int p) {
    if (ring->NKV == 0) return;
    if (c->pass->M_in == 3) ring_attention_forward(ring);
    else ring_attention_backward(part_of(c, c->head_out, p, 3), part_of(c, c->head_in, p, 1), ring);
}

static void post(Call* c) {
    if (shares_heads(c)) {
        for (int p = 0; p < c->parts; p++)
            c->there[p] = begin_all_to_all(c, TO_HEADS, c->token_in, c->head_in, c->pass->M_in, p);
        return;
    }
    c->ring = ring_of(c, 0);
    ring_attention_begin(&c->ring);
}

static void work(Call* c) {
    Comm* comm = c->pass->row->comm;
    if (!shares_heads(c)) compute(&c->ring, c, 0);
    for (int p = 0; p < c->parts && shares_heads(c); p++) {
        RingAttention ring = ring_of(c, p);
        comm->table->end(comm, c->there[p], c->pass->s);
        if (ring.NKV > 0) ring_attention_begin(&ring);
        compute(&ring, c, p);
        c->back[p] = begin_all_to_all(c, TO_TOKENS, c->token_out, c->head_out, c->pass->M_out, p);
    }
}

static void finish(const Call* c) {
    Comm* comm = c->pass->row->comm;
    for (int p = 0; p < c->parts; p++) comm->table->end(comm, c->back[p], c->pass->s);
    move_heads(c, c->pass->k->ranks->join_heads, c->out, c->token_out, c->pass->M_out);
}

// Slices are cut before anything arrives: what arrives may overwrite rows that are cut.
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

// Sums over groups how much of each part of scratch they need, and where rows of tokens end in what is saved.
static Pass begin_pass(const SavedAttention* saved, const RowAttention* row, const Kernels* k, DType dt, Stream s) {
    Pass x = {.row = row, .saved = saved, .k = k, .dt = dt, .s = s, .g = row->NH / row->NKV};
    Used needs = {0};
    for (int i = 0; i < row->n_groups; i++) {
        const GroupAttention* ga = &row->groups[i];
        int n_a = ga->token_border[ga->ulysses_size];
        int n = ga->token_border[ga->ulysses_rank + 1] - ga->token_border[ga->ulysses_rank];
        if (ga->ring_size > 1) needs.kv += widest_block(row, ga);
        if (ga->ulysses_size == 1) x.used.saved += (size_t)n * (size_t)row->NKV;
        else needs.tokens += (size_t)n * (size_t)row->NKV, needs.heads += (size_t)n_a * (size_t)own_units(row, ga);
    }
    carve(&x.m, (char*)row->scratch, MAX(MAX(needs.tokens, needs.heads), needs.kv), x.g, row->HS,
          needs.tokens + needs.heads > 0, needs.kv > 0, row->comm->route_least > 0, dt);
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
