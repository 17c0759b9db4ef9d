// ring_attention.h - attention over the tokens of one ring rank, for some heads; the ordinary kernel where there is no
// ring. Private to group_attention.c, which brings heads and tokens to where this needs them.
#pragma once
#include "kernels/group_attention.h"

// W = H HS elements are a row of one matrix, n_a the tokens of this ring rank, n_x those of any other.
typedef struct RingAttention {
    const GroupAttention* ga;
    const Kernels* k;
    DType dt;
    Stream s;
    int H;            // heads, at least 1, the same on all ranks of the ring
    const void* qkv;  // (n_a,3,H,HS)
    void* out;        // (n_a,H,HS) = forward
    float* lse;       // (H,n_a) = forward; in a ring (H,n_low) and then (H,n_high), so that each half is a tensor
    // Scratch of a ring: see the two passes for what lies there.
    void* kv[2];      // largest n_x times 2 W of dt
    float* sum;       // n_a W
    float* block[3];  // largest n_x times 2 W
} RingAttention;

// Writes out and lse.
void ring_attention_forward(const RingAttention* p);
// dqkv (n_a,3,H,HS) =; dout (n_a,H,HS).
void ring_attention_backward(void* dqkv, const void* dout, const RingAttention* p);

static inline Request begin_send_receive_for(CommPurpose purpose, Comm* c, const Transfer* sends,
                                             const Transfer* receives, int n, Stream s) {
    CommPurpose before = c->purpose;
    c->purpose = purpose;
    Request request = c->table->begin_send_receive(c, sends, n, receives, n, s);
    c->purpose = before;
    return request;
}
