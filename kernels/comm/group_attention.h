// group_attention.h - exact causal attention over a row of packed documents, some of them on several ranks, both ways.
//
// A row is made of groups of documents, each on ulysses_size * ring_size contiguous ranks of a Comm: rank first_rank +
// a * ulysses_size + b of a group has ring rank a and ulysses rank b. Integers, which need not be even, say who
// holds what:
//
//   ulysses_size > 1: the ranks of one a hold runs of its tokens, cut at token_border. An all-to-all turns tokens into
//     heads, each rank computes its heads, cut at head_border, over all tokens of a, a second all-to-all turns back
//     (Jacobs et al. 2023, "DeepSpeed Ulysses"). What is shared are units: a key/value head with its query heads.
//   ring_size > 1: every document is cut into chunks, each of which its owner holds. Keys and values travel around the
//     ring of one b; partial outputs and their log-sum-exp stay fp32 and are merged (Liu et al. 2023, "Ring
//     Attention"). Ring rank a has the tokens of its chunks in ascending order, each of all documents in order.
//   Both: Ulysses inside, rings outside. Neither: one call of the ordinary kernel.
//
// The first exchange of each shared group is posted, in the order of `groups`, then groups on this rank alone are
// computed, then each shared one as its exchange ends. The order of groups must be one for all ranks (plan/value/plan.h
// says why that cannot deadlock).
//
// Bytes that a rank sends for a group, which tests check against Comm.sent: n its own tokens, n_a those of its ring
// rank, H its share of the NKV key/value heads, each with g = NH / NKV query heads, e the size of an element:
//   Ulysses forward   e HS ((g + 2) n (NKV - H) + g (n_a - n) H)   (queries, keys, values out; output back)
//   Ulysses backward  e HS (g n (NKV - H) + (g + 2) (n_a - n) H)
//     counted as COMM_REMAP where one of the ulysses ranks has all heads (H = NKV there, 0 on the others): tokens of
//     others travel to it and back
//   ring forward      e HS 2 tokens(block) H, summed over the ring_size - 1 blocks that it passes on
//     of which a message between nodes may go through proxies (route.h), which send its parts
//   ring backward     the same again, and fp32 gradients of keys and values: 4 HS 2 tokens(block) H, summed over
//                     ring_size blocks
#pragma once
#include "kernels/comm/comm.h"
#include "kernels/tree_attention.h"

enum {
    MOST_SHARED_GROUPS = 32,  // of a row: their exchanges are under way together
    ATTENTION_PARTS = 4,      // most of RowAttention.parts
};

// Pointers are to the host but for cu.
typedef struct GroupAttention {
    int first_rank, ulysses_size, ring_size;  // sizes >= 1
    int ring_rank, ulysses_rank;              // a and b of this rank
    int first;                                // where its tokens begin in the row
    int n_docs, n_chunks;                     // n_chunks 1 without a ring
    // (ulysses_size + 1), from 0 up: ulysses rank b computes heads head_border[b] up to head_border[b + 1]. The last is
    // NKV, or another number of heads, for NKV of which the borders are scaled, rounded down.
    const int* head_border;
    const int* token_border;          // (ulysses_size + 1) of the tokens of this ring rank
    const int *owner, *chunk_tokens;  // (n_chunks) ring rank of a chunk; its tokens of all documents
    const int* cu;                    // on the device, int32: cu_seqlens of each chunk, (n_chunks, n_docs + 1)
    const Tree* tree;                 // of its documents, without a ring; NULL: none of them is a tree
} GroupAttention;

// The attention of a row. Groups with ulysses_size 1 have the first tokens of the row.
typedef struct RowAttention RowAttention;
struct RowAttention {
    Comm* comm;
    const GroupAttention* groups;  // (n_groups) in the one order; at most MOST_SHARED_GROUPS are of several ranks
    int n_groups;
    int NH, NKV, HS;  // query heads, key/value heads (NKV divides NH), size of each
    float scale;
    int parts;               // of the heads of a group; with Comm.overlap each travels by itself
    uint64_t row;            // see Attention
    void* scratch;           // group_attention_scratch bytes on the device, the same for all layers
    const Answers* answers;  // generation: the row in place of groups, with tree_attention_scratch
};

// The results of the forward pass that the backward pass needs, on the device, for each layer. In groups with
// ulysses_size 1 these are rows of tokens: qkv (n, NH + 2 NKV, HS), out (n,NH,HS). After them come the others', as H
// key/value heads are computed here over n_a tokens: qkv (n_a, (g + 2) H, HS), queries, then keys, then values;
// head_out (n_a, g H, HS); lse (g H, n_a) fp32, in a ring chunk after chunk. With Comm.overlap these are parts of the
// heads, one after the other, so that overlap must be the same in both passes.
typedef struct SavedAttention {
    void *qkv, *out;  // before and after attention, of all tokens of the row in their order: qkv is overwritten
    void* head_out;   // NULL: no group has ulysses_size > 1
    float* lse;
} SavedAttention;

// Returns the bytes of scratch for groups of up to `ranks` ranks in which no rank has more than N tokens in a row, nor
// more than N * NKV pairs of token and key/value head, in a ring counted at its widest rank. routed: Comm.route_least
// may not be 0. trees: groups may have some.
size_t group_attention_scratch(int N, int NH, int NKV, int HS, int ranks, int routed, int trees, DType dt);

// saved->out (N,NH,HS) =; saved->qkv (N, NH + 2 NKV, HS) becomes its saved form. N: the tokens of this rank.
void group_attention_forward(const SavedAttention* saved, const RowAttention* row, const Kernels* k, DType dt,
                             Stream s);
// dqkv (N, NH + 2 NKV, HS) =; dout (N,NH,HS).
void group_attention_backward(void* dqkv, const void* dout, const SavedAttention* saved, const RowAttention* row,
                              const Kernels* k, DType dt, Stream s);
