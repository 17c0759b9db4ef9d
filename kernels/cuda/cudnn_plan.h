// cudnn_plan.h - the forward pass of attention over packed documents as plans of cuDNN 9: described, compiled, kept on
// disk; which rows they serve, and what memory they take. Nothing here touches a device, so plans can be made for one
// that is elsewhere.
#pragma once
#include <cudnn.h>

extern "C" {
#include "kernels/kernels.h"
#include "plan/base/user_cache.h"
}

#if CUDNN_VERSION < 91100
#error "cuDNN's headers are older than 9.11: install newer ones, or build with CUDNN=no"
#endif

// The functions of libcudnn that are used, and the version of the library that was found: 10000 for each major version,
// 100 for each minor.
#define CUDNN_CALLS(CALL)          \
    CALL(Create)                   \
    CALL(Destroy)                  \
    CALL(SetStream)                \
    CALL(GetVersion)               \
    CALL(GetErrorString)           \
    CALL(GetLastErrorString)       \
    CALL(BackendCreateDescriptor)  \
    CALL(BackendDestroyDescriptor) \
    CALL(BackendSetAttribute)      \
    CALL(BackendGetAttribute)      \
    CALL(BackendFinalize)          \
    CALL(BackendExecute)
typedef struct Cudnn {
    size_t version;
#define MEMBER(name) decltype(&cudnn##name) name;
    CUDNN_CALLS(MEMBER)
#undef MEMBER
} Cudnn;
extern Cudnn cudnn;

// Fills the table. 0, or -1 with a message; cheap after the first time.
int cudnn_load(Err err);

// The shape that a plan is compiled for: any batch of at most B documents of at most S tokens each.
typedef struct PlanShape {
    int B, S, NH, NKV, HS;
    int sm;  // 10 times the compute capability: 80, 90, 100, ...
} PlanShape;

// The device that a plan runs on: that of `handle`, or, with handle NULL, one that is only described.
typedef struct PlanTarget {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t device;  // see plan_describe_device
    const char* name;                 // of device and driver: part of the name of the file that keeps the plan
} PlanTarget;

// The memory that a plan works on; its unique ids. Documents lie one after another, C = NH * HS channels of queries and
// CKV = NKV * HS of keys, so that a row of q, k and v has C + 2 CKV; bf16 if not said. Statistics are fp32: (tokens,NH)
// where plan_packed, else (B,NH,S).
typedef enum PlanTensor {
    PLAN_Q = 1,  // q (tokens,C), k and v (tokens,CKV), in rows of all three
    PLAN_K,
    PLAN_V,
    PLAN_OUT,           // (tokens,C)
    PLAN_LSE,           // statistic: natural log-sum-exp of the scaled scores
    PLAN_Q_LENGTHS,     // (B) int32, tokens of each document, none of them 0: see CudnnPlaces
    PLAN_K_LENGTHS,     // the same again
    PLAN_QKV_OFFSETS,   // (B+1) int32, element where each document begins and the last one ends: in rows of C + 2 CKV
    PLAN_OUT_OFFSETS,   // in rows of C
    PLAN_LSE_OFFSETS,   // in rows of NH; unused where not plan_packed
    PLAN_SCALE,         // this and the next two: one float of host memory
    PLAN_HIDE_PADDING,  // -infinity
    PLAN_HIDE_FUTURE,   // -infinity
    PLAN_TENSORS
} PlanTensor;

typedef struct Graph Graph;

typedef struct Plan {
    cudnnBackendDescriptor_t descriptor;
    Graph* graph;       // the graph it was compiled from, which lives as long; NULL: it was read from disk
    int64_t workspace;  // bytes
    int was_cached;
} Plan;

// Returns 1 if statistics follow the packed tokens, 0 if every document has room for S of them.
int plan_packed(const PlanShape* shape);
// Returns the most workspace that cuDNN is expected to want, which is known before the plan is.
size_t plan_workspace_most(const PlanShape* shape);
// Returns 0 if this version of cuDNN computes the shape, and rightly; -1 with the reason.
int plan_check(const PlanShape* shape, size_t version, Err err);
// Writes the key that the plan is kept under.
enum { PLAN_KEY = 600 };
void plan_key(char key[PLAN_KEY], const PlanShape* shape, const PlanTarget* target);
// Reads the plan from disk or compiles it, which takes up to 3 s. 0, or -1 with a message.
int plan_open(Plan* plan, const PlanShape* shape, const PlanTarget* target, Err err);
void plan_close(Plan* plan);
// Runs the plan on the stream. tensors[id] is NULL for those that the plan does not have. 0, or -1 with a message.
int plan_run(const Plan* plan, cudnnHandle_t handle, cudaStream_t stream, void* const tensors[PLAN_TENSORS],
             void* workspace, Err err);

// Makes a device from its properties in JSON, in the form that cuDNN itself writes; NULL with a message.
cudnnBackendDescriptor_t plan_describe_device(const char* json, Err err);

// ---- buckets
//
// A plan costs a little for each of its B documents, real or not. So there are plans for B0, 4 B0, 16 B0 and 64 B0
// documents, where B0 documents of the full context fill a row; a row takes the first that holds it. There are as many
// of them as limits->most_scratch allows.

enum { BUCKETS = 4 };

typedef struct Memory {
    void* tensors[PLAN_TENSORS];
    void* workspace;
    int* lse_offsets;  // of every plan; bound only where statistics are packed
    size_t bytes;      // of everything
} PlanMemory;

PlanShape bucket_shape(const KernelLimits* limits, int sm, int bucket);
// Lays out what a plan needs besides the op's own tensors, in scratch memory at base; with base NULL only counts it.
PlanMemory plan_memory(const PlanShape* shape, int N, char* base);
size_t bucket_bytes(const KernelLimits* limits, int sm, int bucket);
// Returns the bytes of scratch that a plan may take.
size_t most_plan_bytes(const KernelLimits* limits);
// Returns how many of the first buckets there is memory for.
int buckets_that_fit(const KernelLimits* limits, int sm);
