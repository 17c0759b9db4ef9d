// ring_attention.h - attention over the tokens of one ring rank, for some heads; the ordinary kernel where there is no
// ring. Private to group_attention.c, which brings heads and tokens to where this needs them.
#pragma once
#include "kernels/group_attention.h"

// Q = NH HS elements are a row of queries, W = NKV HS of keys or of values, n_a the tokens of this ring rank, n_x those
// of any other.
typedef struct RingAttention {
    const RowAttention* row;
    const GroupAttention* ga;
    const Kernels* k;
    DType dt;
    Stream s;
    int NH, NKV;      // at least 1, the same on all ranks of the ring
    const void* qkv;  // (n_a, Q + 2 W)
    void* out;        // (n_a,Q) = forward
    float* lse;       // (NH,n_a) = forward; in a ring chunk after chunk, so that each is a tensor
    // Scratch of a ring: see the two passes for what lies there.
    void* kv[2];      // largest n_x times 2 W of dt; in use from ring_attention_begin on
    float* sum;       // n_a Q
    float* block[3];  // largest n_x times 2 W; the first also n_a Q, the second n_a NH
    void* route;      // route_scratch of a block
    Request keys;     // that ring_attention_begin has posted
} RingAttention;

// Posts the exchange of the first block of keys and values, where there is a ring.
void ring_attention_begin(RingAttention* p);
// Behind that: writes out and lse.
void ring_attention_forward(const RingAttention* p);
// dqkv (n_a, Q + 2 W) =; dout (n_a,Q).
void ring_attention_backward(void* dqkv, const void* dout, const RingAttention* p);

// Tokens of ring rank a.
static inline int ring_tokens(const GroupAttention* ga, int a) {
    int tokens = 0;
    for (int j = 0; j < ga->n_chunks; j++) tokens += ga->owner[j] == a ? ga->chunk_tokens[j] : 0;
    return tokens;
}

static inline Request begin_send_receive_for(CommPurpose purpose, Comm* c, const Transfer* sends,
                                             const Transfer* receives, int n, Stream s) {
    CommPurpose before = c->purpose;
    c->purpose = purpose;
    Request request = c->table->begin_send_receive(c, sends, n, receives, n, s);
    c->purpose = before;
    return request;
}
