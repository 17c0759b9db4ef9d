// tree_attention.h - exact attention over a row whose documents are trees of segments: a prompt and its answers, say.
//
// A token sees its own segment up to itself, and all of its segment's ancestors. Segments stand depth first, so that
// what lies below a node is one run of tokens behind it. So attention is one causal call for all segments, and for each
// depth one call that is not causal: queries are what lies below a node of that depth, keys the node. The parts are
// merged by their log-sum-exp as those of a ring are (RankOps.attention_merge); the backward pass of every part is
// given the merged one. Two documents, a prompt with two answers and an ordinary one:
//
//   segment       prompt   answer 1   answer 2   text
//   causal call   prompt | answer 1 | answer 2 | text          queries and keys
//   depth 0       prompt | answer 1   answer 2 | text          queries: the middle run has the prompt as its keys
//                 prompt | answer 1   answer 2   text          keys:    which only that run sees
//
// Each depth computes (tokens below a node) x (tokens of the node) pairs: exactly those that are seen.
#pragma once
#include "kernels/rank_ops.h"

typedef struct TreeLevel {
    int n_docs;              // of the call: nodes, and runs between them that see nothing or are not seen
    const int *cu_q, *cu_k;  // (n_docs + 1) int32, on the device
} TreeLevel;

typedef struct Tree {
    int n_segments, n_levels;  // levels: depths at which some node has children; 0: ordinary documents
    const int* cu;             // (n_segments + 1) int32, on the device
    const TreeLevel* levels;   // on the host
} Tree;

// Segments of a row depth first: lengths (n), each at least 1; parents (n), the index of an earlier segment, or -1
// where a document begins. From them a tree, its levels (n; as many as there are depths suffice), and what these point
// to in ints, tree_ints of them, of which the last 2 n are scratch.
size_t tree_ints(int n);
void tree_fill(Tree* tree, TreeLevel* levels, int* ints, const int* lengths, const int* parents, int n);

// Generation: n answers to one prompt, side by side, a token of each at a time. The rows of one array, which a KV cache
// is, are the prompt, then room for the tokens of each answer, then what is new of each.
typedef struct Answers {
    int n, prompt, room, step;    // answers; tokens of the prompt; most of an answer; those that each has already
    const int *cu, *cu_q, *cu_k;  // on the device: (4) of the prompt; (2 n + 1) of the answers
} Answers;
enum { ANSWERS_INTS = 4 };  // and for each answer as many again, and 2
// ints (ANSWERS_INTS + 4 n + 2) = what cu, cu_q and cu_k point to one behind another.
void answers_fill(const Answers* answers, int* ints);

// Bytes of scratch on the device for N tokens.
size_t tree_attention_scratch(int N, int NH, int NKV, int HS, DType dt);
// As Kernels.attention_forward and attention_backward of the whole row, whose cu_q, cu_k and n_docs are not looked at.
// q, k and v are columns of one array of rows of ldq elements, and so are dq, dk and dv; ldo is NH HS.
void tree_attention_forward(void* out, float* lse, const Attention* a, const Tree* tree, void* scratch,
                            const Kernels* k, DType dt, Stream s);
// As Kernels.attention_forward, of the new tokens of all answers: a->q points to them, a->k and a->v to the prompt's
// first. What is new goes to its answer's room before.
void answers_attention_forward(void* out, float* lse, const Attention* a, const Answers* answers, void* scratch,
                               const Kernels* k, DType dt, Stream s);
void tree_attention_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                             const Attention* a, const Tree* tree, void* scratch, const Kernels* k, DType dt, Stream s);
