// tree_attention.h - exact attention over a row whose documents are trees of segments, as a prompt and its answers.
//
// A token sees its own segment up to itself, and all of its segment's ancestors. Segments stand depth first, so that
// what lies below a node is one run of tokens after it. So attention is one causal call for all segments, and for each
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

// tree_fill makes a tree of a row's segments, which stand depth first: lengths (n), each at least 1; parents (n), the
// index of an earlier segment, or -1 where a document begins. It fills levels (n; as many as there are depths suffice),
// and ints (tree_ints), to which both point and whose last 2 n are scratch.
size_t tree_ints(int n);
void tree_fill(Tree* tree, TreeLevel* levels, int* ints, const int* lengths, const int* parents, int n);

// Generation computes a token of each of several answers at a time, answers to one prompt side by side. Prompts lie
// anywhere among the rows of one array, a KV cache. After it lie, in rows of keys and values alone, the tokens that
// answers have so far: each is read again for every token to come, and rows without gaps are read twice as fast.
typedef struct AnswerRows {
    int prompt, prompt_length;  // the first row of its prompt, and its tokens
    int own, length;            // the first row of its own tokens, and how many there are before the new one
} AnswerRows;

typedef struct Answers {
    int n;                   // answers
    int rows, own_rows;      // of the array, and after it
    const int* new_rows;     // (n) on the device: own rows, where the new tokens go
    TreeLevel prompts, own;  // the call for what all answers to a prompt see, and the one for what each has itself
} Answers;

size_t answers_ints(int n);
// Makes the calls of n answers, which point into ints (answers_ints); the device has a copy of these at `there`.
void answers_fill(Answers* answers, const AnswerRows* of, int n, int rows, int own_rows, int* ints, const int* there);

// Returns the bytes of scratch on the device for N tokens.
size_t tree_attention_scratch(int N, int NH, int NKV, int HS, DType dt);
// The tree_ functions are Kernels.attention_forward and _backward of the whole row, but ignore cu_q, cu_k and n_docs.
// q, k and v are columns of one array of rows of ldq elements, and so are dq, dk and dv; ldo is NH HS.
void tree_attention_forward(void* out, float* lse, const Attention* a, const Tree* tree, void* scratch,
                            const Kernels* k, DType dt, Stream s);
// Is Kernels.attention_forward for the new tokens of all answers: a->q points to them, which are rows of the array too,
// a->k and a->v to its first row. First it moves their keys and values to their answer's own rows.
void answers_attention_forward(void* out, float* lse, const Attention* a, const Answers* answers, void* scratch,
                               const Kernels* k, DType dt, Stream s);
void tree_attention_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                             const Attention* a, const Tree* tree, void* scratch, const Kernels* k, DType dt, Stream s);

// ---- what attention of groups has too (kernels/comm/group_attention.c)

// Returns `bytes` of the scratch at base, after *used others, and adds to these. Without a base it only counts.
char* scratch_take(char* base, size_t* used, size_t bytes);
// columns = x, rounded: (n,width) into rows of ld elements. rounded: room for all of them.
void store_columns(void* columns, int ld, const float* x, void* rounded, int n, int width, const Kernels* k, DType dt,
                   Stream s);
