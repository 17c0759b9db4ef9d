// group_attention.h - exact causal attention over packed documents whose tokens lie on several ranks, both ways.
//
// A group is ulysses_size * ring_size contiguous ranks of a Comm: rank first_rank + a * ulysses_size + b has ring rank
// a and ulysses rank b. The ranks of one a share the tokens of a; the ranks of one b form a ring.
//
//   ulysses_size > 1: the ranks of one a hold equal runs of its tokens. An all-to-all turns tokens into heads, each
//     rank computes its share of the heads over all tokens of a, a second all-to-all turns back (Jacobs et al. 2023,
//     "DeepSpeed Ulysses"). What is shared are units: a key/value head with its NH / NKV query heads. They need not
//     divide; ulysses_size <= NKV.
//   ring_size > 1: every document is cut into 2 * ring_size chunks, and ring rank a holds chunks a and
//     2 * ring_size - 1 - a: zigzag, so that the causal work of all ring ranks is equal. Keys and values travel around
//     the ring; partial outputs and their log-sum-exp stay fp32 and are merged (Liu et al. 2023, "Ring Attention";
//     zigzag: Brandon et al. 2023 and others).
//   Both: Ulysses inside, rings outside. Neither: one call of the ordinary kernel.
//
// The tokens of ring rank a are in this order: the low chunks of all documents, then the high chunks of all documents.
// With ring_size = 1 they are whole documents one after another. Rank (a, b) has tokens [b n / ulysses_size,
// (b + 1) n / ulysses_size) of them, rounded down, n being ring_tokens[a].
//
// Bytes that a rank sends, which tests check against Comm.sent: n its own tokens, n_a those of its ring rank, H its
// share of the NKV key/value heads, each with g = NH / NKV query heads, e the size of an element:
//   Ulysses forward   e HS ((g + 2) n (NKV - H) + g (n_a - n) H)   (queries, keys, values out; output back)
//   Ulysses backward  e HS (g n (NKV - H) + (g + 2) (n_a - n) H)
//   ring forward      e HS 2 tokens(block) H, summed over the ring_size - 1 blocks that it passes on
//   ring backward     the same again, and fp32 gradients of keys and values: 4 HS 2 tokens(block) H, summed over
//                     ring_size blocks
#pragma once
#include "kernels/comm.h"

typedef struct GroupAttention {
    Comm* comm;
    int first_rank, ulysses_size, ring_size;  // ring_size >= 1, 1 <= ulysses_size <= NKV
    int ring_rank, ulysses_rank;              // a and b of this rank
    int NH, NKV, HS, n_docs;                  // query heads, key/value heads (NKV divides NH), size of each
    // Tokens of each ring rank, and how many of them are in low chunks. On the host; (ring_size) each.
    const int *ring_tokens, *ring_low;
    // On the device, int32: cu_seqlens of the low chunks of ring rank 0, of its high chunks, of the low chunks of ring
    // rank 1 and so on: 2 * ring_size arrays of n_docs + 1. With ring_size = 1 one array, of whole documents.
    const int* cu;
    float scale;
    uint64_t row;   // see Attention
    void* scratch;  // group_attention_scratch bytes on the device, the same for all layers
} GroupAttention;

// What the backward pass needs of the forward pass, on the device, one for each layer. n_a tokens of H key/value heads,
// laid out as attention used them: qkv (n_a, (g + 2) H, HS), queries, then keys, then values; out (n_a, g H, HS), lse
// (g H, n_a) fp32, in the order of low and high chunks.
// With Comm.overlap these are two parts of the heads, one after the other, so that overlap must be the same in both
// passes. With ulysses_size = 1, qkv is the qkv of the call itself and out its out: the caller passes the same
// pointers.
typedef struct SavedAttention {
    void *qkv, *out;
    float* lse;
} SavedAttention;

// Bytes of scratch for groups of up to `ranks` ranks in which no rank has more than N tokens, nor more than N * NKV
// pairs of token and key/value head.
size_t group_attention_scratch(int N, int NH, int NKV, int HS, int ranks, DType dt);

// out (n,NH,HS) =, saved = ; qkv (n, NH + 2 NKV, HS), n the tokens of this rank.
void group_attention_forward(void* out, const SavedAttention* saved, const void* qkv, const GroupAttention* ga,
                             const Kernels* k, DType dt, Stream s);
// dqkv (n, NH + 2 NKV, HS) =; dout (n,NH,HS).
void group_attention_backward(void* dqkv, const void* dout, const SavedAttention* saved, const GroupAttention* ga,
                              const Kernels* k, DType dt, Stream s);
