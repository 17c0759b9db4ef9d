// ring_attention.h - attention over the tokens of one place of a group, for some heads; the ring when the group has
// more than one place. Private to group_attention.c, which brings heads and tokens to where this needs them.
#pragma once
#include "kernels/group_attention.h"

// W = H HS elements are a row of one matrix, n_a the tokens of this rank's place, n_x those of any place.
typedef struct PlaceAttention {
    const GroupAttention* ga;
    const Kernels* k;
    DType dt;
    Stream s;
    int H;            // heads, at least 1, the same at all places of the ring
    const void* qkv;  // (n_a,3,H,HS)
    void* out;        // (n_a,H,HS) = forward
    float* lse;       // (H,n_a) = forward; in a ring (H,n_low) and then (H,n_high), so that each half is a tensor
    // Scratch of a ring: see the two passes for what lies there.
    void* kv[2];      // largest n_x times 2 W of dt
    float* sum;       // n_a W
    float* block[3];  // largest n_x times 2 W
} PlaceAttention;

// Writes out and lse.
void place_attention_forward(const PlaceAttention* p);
// dqkv (n_a,3,H,HS) =; dout (n_a,H,HS).
void place_attention_backward(void* dqkv, const void* dout, const PlaceAttention* p);

static inline Request begin_send_receive_for(CommPurpose purpose, Comm* c, const Transfer* sends,
                                             const Transfer* receives, int n, Stream s) {
    CommPurpose before = c->purpose;
    c->purpose = purpose;
    Request request = c->table->begin_send_receive(c, sends, n, receives, n, s);
    c->purpose = before;
    return request;
}
