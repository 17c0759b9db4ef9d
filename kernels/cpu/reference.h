// reference.h - inside the plain CPU backend: elements of any type, and the table of all its ops.
#pragma once
#include "kernels/kernels.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"  // the CPU has no streams: ops have finished when they return

extern const Kernels cpu_reference_kernels;  // all entries but memory_available: cpu_kernels has it

// `open` of every table chooses the clock: see KernelLimits.oversubscribed.
void cpu_open_clock(const KernelLimits* limits);

static inline double load(const void* p, size_t i, DType dt) {
    if (dt == DT_F64) return ((const double*)p)[i];
    return dt == DT_F32 ? ((const float*)p)[i] : bf16_to_float(((const bf16*)p)[i]);
}

// a where b is NaN. With fmax gcc 12 for ARM ends in an internal error at -O3.
static inline double greater(double a, double b) { return b > a ? b : a; }

static inline void store(void* p, size_t i, double x, DType dt) {
    if (dt == DT_F64) ((double*)p)[i] = x;
    else if (dt == DT_F32) ((float*)p)[i] = (float)x;
    else ((bf16*)p)[i] = bf16_from_float((float)x);
}

// ---- reference_ranks.c: ops that only many ranks need; contracts in kernels.h

void reference_attention_merge(float* out, float* lse, const float* part, const float* part_lse, int N, int NH, int HS,
                               Stream s);
void reference_cast(void* out, DType out_dt, const void* x, DType x_dt, size_t n, Stream s);
void reference_gather_rows(void* out, const void* x, const int* rows, int n, int C, int ldo, int ldx, DType dt,
                           Stream s);
void reference_scatter_rows(void* out, const void* x, const int* rows, int n, int C, int ldo, int ldx, DType dt,
                            Stream s);
void reference_split_heads(void* out, const void* x, int N, int M, int HS0, int HS, const int* border, int d, DType dt,
                           Stream s);
void reference_join_heads(void* out, const void* x, int N, int M, int HS0, int HS, const int* border, int d, DType dt,
                          Stream s);
void reference_gather_columns(void* out, const void* x, const int* columns, int N, int n, int ldx, DType dt, Stream s);
void reference_scatter_columns(void* out, const void* x, const int* source, ColumnFill fill, int N, int K, int n,
                               DType dt, Stream s);
void reference_classifier_part(float* stats, const void* logits, const int* targets, int first, int N, int V, int Vp,
                               DType dt, Stream s);
void reference_classifier_join(float* losses, void* logits, const float* stats, int parts, const int* targets,
                               int first, float scale, int write_gradient, int N, int V, int Vp, DType dt, Stream s);
