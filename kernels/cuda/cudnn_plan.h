// cudnn_plan.h - the forward pass of attention over packed documents as plans of cuDNN 9: which rows they serve, what
// memory they take, built and run. A plan can be built for a device that is elsewhere.
#pragma once
extern "C" {
#include "kernels/kernels.h"
}

// A plan is compiled for its shape: any batch of at most B documents of at most S tokens each. It runs on a row of at
// most N tokens, with C = NH * HS channels of queries and CKV = NKV * HS of keys and of values.
//
// All B places hold a document, and cuDNN before 9.25 answers one of length 0 with NaN (cudnn-frontend #943). So places
// that are left over, which come first lest offsets decrease, hold a document of the row's first token alone. In its
// own document too it sees only itself: out and log-sum-exp are written twice with the same bits.
typedef struct CudnnPlan {
    int N, B, S, NH, NKV, HS;
    int sm;                           // 10 times the compute capability: 80, 90, 100, ...
    struct CudnnGraph* graph = NULL;  // NULL: it is not built
    int* lengths = NULL;              // (B) tokens of each document
    int *qkv = NULL, *out = NULL;  // (B+1) elements where they begin and the last ends, in rows of C + 2 CKV and of C
    int* statistics = NULL;        // the same in rows of NH
    float* lse = NULL;  // natural log-sum-exp of the scaled scores; packed: (tokens,NH), else padded: (B,NH,S)
    void* workspace = NULL;
    size_t bytes = 0;  // of all this memory
} CudnnPlan;

// sm_8x ignores the strides of a packed statistic without a word (cudnn-frontend #304). Packed sums with a head size
// that is no multiple of 16 have "a known functional issue" (its infer_properties_node): on an H100 NaN.
static inline int cudnn_packs(const CudnnPlan* p) { return (p->sm / 10 == 9 || p->sm / 10 == 10) && p->HS % 16 == 0; }

// A plan costs a little for each of its B documents, real or not. So there are plans for B0, 4 B0, 16 B0 and 64 B0
// documents, where B0 documents of the full context fill a row; a row takes the first that holds it. All use the same
// scratch memory, at base.
enum { CUDNN_PLANS = 4 };
// Describes those that limits->most_scratch allows. Returns how many, or -1 with the reason why cuDNN cannot be used.
int cudnn_plans(CudnnPlan plans[CUDNN_PLANS], const KernelLimits* limits, int sm, char* base, Err err);

// Builds the plan, in a second or two the first time, for this process's device, or for one of these properties, in
// cuDNN's own form, if json is not NULL. 0, or -1 with a message.
int cudnn_build(CudnnPlan* p, const char* json, Err err);
// Runs a plan that was built for this process's device. 0, or -1 with a message.
int cudnn_run(const CudnnPlan* p, void* out, const Attention* a, struct CUstream_st* stream, Err err);

extern size_t cudnn_version;     // of the library: 10000 for each major version, 100 for each minor; 0: not opened yet
extern const int cudnn_headers;  // version of the cudnn-frontend that this program was built with
