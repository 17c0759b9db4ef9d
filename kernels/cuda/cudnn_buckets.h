// cudnn_buckets.h - which rows cuDNN's plans serve, and what memory they take. Nothing here touches a device.
//
// A plan serves every row of at most B documents, and costs a little for each of the B, real or not. So there are plans
// for B0, 4 B0, 16 B0 and 64 B0 documents, where B0 documents of the full context fill a row; a row takes the first
// that holds it. Each pass has as many of them as limits->most_scratch allows: the deterministic backward pass on sm_90
// keeps every score, B NH S^2 numbers of two bytes.
#pragma once
#include "kernels/cuda/cudnn_plan.h"

extern "C" {
#include "kernels/kernels.h"
}

enum {
    BUCKETS = 4,
    PLAN_TAIL = 128  // rows after the last token that a block of cuDNN's kernels may reach
};

typedef struct Memory {
    void* tensors[PLAN_TENSORS];
    void* workspace;
    int* lse_offsets;                             // of every plan; bound only where statistics are packed
    int *gradient_offsets, *kv_gradient_offsets;  // of every plan; bound only in the backward pass
    size_t statistic_bytes;                       // of a statistic
    size_t bytes;                                 // of everything
} PlanMemory;

PlanShape bucket_shape(const KernelLimits* limits, int sm, int bucket, int backward);
// What a plan needs besides the op's own tensors, in scratch memory at base; with base NULL only how much.
PlanMemory plan_memory(const PlanShape* shape, int N, char* base);
size_t bucket_bytes(const KernelLimits* limits, int sm, int bucket, int backward);
// Scratch that a plan may take.
size_t most_plan_bytes(const KernelLimits* limits);
// Of the first buckets, how many have a plan of this pass.
int buckets_that_fit(const KernelLimits* limits, int sm, int backward);
// For people: which rows cuDNN computes with n[0] buckets forward, one at least, and n[1] backward, and why no others.
void describe_buckets(char* words, size_t room, const KernelLimits* limits, int sm, const int n[2]);
