// cudnn_plan.cu - attention described to cuDNN operation by operation, and the memory around it, see cudnn_plan.h.
//
// cuDNN 9 has no single operation for attention with a causal mask; it recognises the chain of
// matmuls, masks and reductions below and compiles it into one kernel (the documentation's "fused flash attention";
// the order of operations is that of NVIDIA's cudnn-frontend, whose kernels ours must match). Compiling takes 0.3 to
// 3 s for every plan and every time, reading a compiled one back milliseconds: so plans are kept on disk.
#include "kernels/cuda/cudnn_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/library.h"

typedef cudnnBackendDescriptor_t Descriptor;

// ---- the library

Cudnn cudnn;

int cudnn_load(Err err) {
    static const char* const files[] = {"libcudnn.so.9", "libcudnn.so", NULL};
    const LibrarySymbol symbols[] = {
#define SYMBOL(name) {"cudnn" #name, (void**)&cudnn.name},
        CUDNN_CALLS(SYMBOL)
#undef SYMBOL
    };
    if (cudnn.version) return 0;
    if (library_open("cuDNN", files, symbols, COUNT(symbols), err)) return -1;
    cudnn.version = cudnn.GetVersion();
    return 0;
}

// Fails with cuDNN's message for the last failure, in one line.
static int fail_cudnn(Err err, const char* what, cudnnStatus_t status) {
    char words[256] = "";
    cudnn.GetLastErrorString(words, sizeof words);
    words[sizeof words - 1] = 0;
    for (char* c = words; *c; c++)
        if (*c == '\n') *c = ' ';
    return fail(err, "cuDNN %zu.%zu.%zu: %s: %s; %s", cudnn.version / 10000, cudnn.version / 100 % 100,
                cudnn.version % 100, what, cudnn.GetErrorString(status), words);
}

// ---- a graph of operations under construction; after a failure every further step does nothing

enum { MOST_DESCRIPTORS = 256, MOST_OPS = 32, FIRST_VIRTUAL = 1000, ALIGNMENT = 16 };

struct Graph {
    const PlanShape* shape;
    Descriptor made[MOST_DESCRIPTORS];  // all that must be destroyed
    int n_made;
    Descriptor ops[MOST_OPS];
    int n_ops;
    int n_virtual;
    int failed;
    char* err;
};

static void check(Graph* g, cudnnStatus_t status, const char* what) {
    if (status != CUDNN_STATUS_SUCCESS && !g->failed) g->failed = fail_cudnn(g->err, what, status);
}

static Descriptor make(Graph* g, cudnnBackendDescriptorType_t type) {
    Descriptor d = NULL;
    if (g->n_made == MOST_DESCRIPTORS) broken("a plan has more than %d descriptors", MOST_DESCRIPTORS);
    if (!g->failed) check(g, cudnn.BackendCreateDescriptor(type, &d), "creating a descriptor");
    if (d) g->made[g->n_made++] = d;
    return d;
}

static void set(Graph* g, Descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
                const void* values) {
    if (g->failed) return;
    char what[40];
    cudnnStatus_t status = cudnn.BackendSetAttribute(d, name, type, n, values);
    if (status != CUDNN_STATUS_SUCCESS) snprintf(what, sizeof what, "setting attribute %d", (int)name);
    check(g, status, what);
}

static void set_descriptor(Graph* g, Descriptor d, cudnnBackendAttributeName_t name, Descriptor value) {
    if (value) set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void set_integer(Graph* g, Descriptor d, cudnnBackendAttributeName_t name, int64_t value) {
    set(g, d, name, CUDNN_TYPE_INT64, 1, &value);
}

static void set_type(Graph* g, Descriptor d, cudnnBackendAttributeName_t name, cudnnDataType_t value) {
    set(g, d, name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}

static void finalize(Graph* g, Descriptor d, const char* what) {
    if (!g->failed) check(g, cudnn.BackendFinalize(d), what);
}

static void destroy(Graph* g) {
    while (g->n_made > 0) cudnn.BackendDestroyDescriptor(g->made[--g->n_made]);
}

// ---- tensors

typedef struct Layout {
    int64_t dims[4], strides[4];
    Descriptor offsets;  // where each document begins; NULL: strides[0] elements after the last one
} Layout;

static const cudnnDataType_t F32 = CUDNN_DATA_FLOAT, BF16 = CUDNN_DATA_BFLOAT16, I32 = CUDNN_DATA_INT32,
                             BOOL = CUDNN_DATA_BOOLEAN;

// Describes a tensor; id 0: it exists only between two operations.
static Descriptor tensor(Graph* g, int id, cudnnDataType_t type, Layout l) {
    Descriptor d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const bool yes = true;
    set_integer(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, id ? id : FIRST_VIRTUAL + g->n_virtual++);
    set_integer(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, ALIGNMENT);
    set_type(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, l.dims);
    set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, l.strides);
    set_descriptor(g, d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, l.offsets);
    if (!id) set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (id >= PLAN_SCALE && id <= PLAN_HIDE_FUTURE)
        set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    finalize(g, d, "describing a tensor");
    return d;
}

static Descriptor vector(Graph* g, int id, cudnnDataType_t type, int64_t n) {
    return tensor(g, id, type, Layout{{n, 1, 1, 1}, {1, 1, 1, 1}, NULL});
}

static Descriptor scalar(Graph* g, int id) { return vector(g, id, F32, 1); }

// These lay out (B,n,S,HS) in rows of `row` elements for each token, and the same with the last two axes swapped.
static Layout heads(const Graph* g, int n, int64_t row, Descriptor offsets) {
    const PlanShape* s = g->shape;
    return Layout{{s->B, n, s->S, s->HS}, {s->S * row, s->HS, row, 1}, offsets};
}
static Layout transposed(Layout l) {
    return Layout{{l.dims[0], l.dims[1], l.dims[3], l.dims[2]},
                  {l.strides[0], l.strides[1], l.strides[3], l.strides[2]},
                  l.offsets};
}

// Lays out (B,NH,S,n) with room for S tokens in each document: n = HS for heads, 1 for a statistic, S for scores, which
// no memory ever holds.
static Layout padded(const Graph* g, int64_t n) {
    int64_t NH = g->shape->NH, S = g->shape->S;
    return Layout{{g->shape->B, NH, S, n}, {NH * S * n, S * n, n, 1}, NULL};
}
static Layout statistic(const Graph* g, Descriptor offsets) {
    int64_t NH = g->shape->NH, S = g->shape->S;
    return offsets ? Layout{{g->shape->B, NH, S, 1}, {S * NH, 1, NH, 1}, offsets} : padded(g, 1);
}
static Descriptor scores(Graph* g, cudnnDataType_t type) { return tensor(g, 0, type, padded(g, g->shape->S)); }

// ---- operations

static void add_op(Graph* g, Descriptor op, const char* what) {
    finalize(g, op, what);
    if (g->n_ops == MOST_OPS) broken("a plan has more than %d operations", MOST_OPS);
    g->ops[g->n_ops++] = op;
}

// y = mode(x), mode(x, b), or, for a selection, mask ? x : b.
static Descriptor pointwise(Graph* g, cudnnPointwiseMode_t mode, cudnnDataType_t precision, int axis, Descriptor x,
                            Descriptor b, Descriptor mask, Descriptor y) {
    Descriptor how = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_type(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, precision);
    if (axis >= 0) set_integer(g, how, CUDNN_ATTR_POINTWISE_AXIS, axis);
    finalize(g, how, "describing a pointwise operation");
    Descriptor op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, mask);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_op(g, op, "adding a pointwise operation");
    return y;
}

// The common case of pointwise has fp32 scores in, fp32 scores out.
static Descriptor on_scores(Graph* g, cudnnPointwiseMode_t mode, Descriptor x, Descriptor b) {
    return pointwise(g, mode, F32, -1, x, b, NULL, scores(g, F32));
}

// Returns the sums or maxima of x over the keys.
static Descriptor reduce(Graph* g, cudnnReduceTensorOp_t sum_or_max, Descriptor x) {
    Descriptor y = tensor(g, 0, F32, padded(g, 1));
    Descriptor how = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &sum_or_max);
    set_type(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, F32);
    finalize(g, how, "describing a reduction");
    Descriptor op = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_op(g, op, "adding a reduction");
    return y;
}

// y = a b for each document and head; m, n and k are the lengths of each document along those axes, or NULL.
static Descriptor matmul(Graph* g, Descriptor a, Descriptor b, Descriptor y, Descriptor m, Descriptor n, Descriptor k) {
    Descriptor how = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    const double padding = 0;
    set_type(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, F32);
    if (n) set(g, how, CUDNN_ATTR_MATMUL_PADDING_VALUE, CUDNN_TYPE_DOUBLE, 1, &padding);
    finalize(g, how, "describing a matmul");
    Descriptor op = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, y);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, m);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, n);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, k);
    add_op(g, op, "adding a matmul");
    return y;
}

// ---- attention

enum { QUERY_AXIS = 2, KEY_AXIS = 3 };

typedef struct Lengths {
    Descriptor q, k;
} Lengths;

static Descriptor index_along(Graph* g, Descriptor s, int axis, cudnnDataType_t precision) {
    return pointwise(g, CUDNN_POINTWISE_GEN_INDEX, precision, axis, s, NULL, NULL, scores(g, I32));
}

// s where query and key are tokens of the document, -infinity elsewhere.
static Descriptor hide_padding(Graph* g, Descriptor s, Lengths lengths) {
    Descriptor query = index_along(g, s, QUERY_AXIS, I32), key = index_along(g, s, KEY_AXIS, I32);
    Descriptor q_real = pointwise(g, CUDNN_POINTWISE_CMP_LT, BOOL, -1, query, lengths.q, NULL, scores(g, BOOL));
    Descriptor k_real = pointwise(g, CUDNN_POINTWISE_CMP_LT, BOOL, -1, key, lengths.k, NULL, scores(g, BOOL));
    Descriptor real = pointwise(g, CUDNN_POINTWISE_LOGICAL_AND, BOOL, -1, q_real, k_real, NULL, scores(g, BOOL));
    return pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, F32, -1, s, scalar(g, PLAN_HIDE_PADDING), real, scores(g, F32));
}

// s where the key is not after the query, -infinity elsewhere.
static Descriptor hide_future(Graph* g, Descriptor s) {
    Descriptor query = index_along(g, s, QUERY_AXIS, F32), key = index_along(g, s, KEY_AXIS, F32);
    Descriptor past = pointwise(g, CUDNN_POINTWISE_CMP_GE, BOOL, -1, query, key, NULL, scores(g, BOOL));
    return pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, F32, -1, s, scalar(g, PLAN_HIDE_FUTURE), past, scores(g, F32));
}

// out = P v with P = exp(S - max) / sum, S = scale q k^T, lse = max + log(sum).
static void attention_graph(Graph* g) {
    int NH = g->shape->NH, NKV = g->shape->NKV;
    int64_t B = g->shape->B, HS = g->shape->HS, row = (NH + 2 * NKV) * HS;
    Descriptor qkv_offsets = vector(g, PLAN_QKV_OFFSETS, I32, B + 1),
               out_offsets = vector(g, PLAN_OUT_OFFSETS, I32, B + 1);
    Descriptor lse_offsets = plan_packed(g->shape) ? vector(g, PLAN_LSE_OFFSETS, I32, B + 1) : NULL;
    Lengths n = {vector(g, PLAN_Q_LENGTHS, I32, B), vector(g, PLAN_K_LENGTHS, I32, B)};
    Descriptor q = tensor(g, PLAN_Q, BF16, heads(g, NH, row, qkv_offsets));
    Layout kv = heads(g, NKV, row, qkv_offsets);
    Descriptor s = matmul(g, q, tensor(g, PLAN_K, BF16, transposed(kv)), scores(g, F32), n.q, n.k, NULL);
    s = on_scores(g, CUDNN_POINTWISE_MUL, s, scalar(g, PLAN_SCALE));
    s = hide_future(g, hide_padding(g, s, n));
    Descriptor max = reduce(g, CUDNN_REDUCE_TENSOR_MAX, s);
    Descriptor e = on_scores(g, CUDNN_POINTWISE_EXP, on_scores(g, CUDNN_POINTWISE_SUB, s, max), NULL);
    Descriptor sum = reduce(g, CUDNN_REDUCE_TENSOR_ADD, e);
    Descriptor log = pointwise(g, CUDNN_POINTWISE_LOG, F32, -1, sum, NULL, NULL, tensor(g, 0, F32, padded(g, 1)));
    pointwise(g, CUDNN_POINTWISE_ADD, F32, -1, max, log, NULL, tensor(g, PLAN_LSE, F32, statistic(g, lse_offsets)));
    Descriptor p = pointwise(g, CUDNN_POINTWISE_DIV, F32, -1, e, sum, NULL, scores(g, BF16));
    Descriptor out = tensor(g, PLAN_OUT, BF16, heads(g, NH, NH * HS, out_offsets));
    matmul(g, p, tensor(g, PLAN_V, BF16, kv), out, n.q, NULL, n.k);
}

// ---- what is supported; sources: cudnn-frontend's sdpa_support_surface.h, and plans that were tried with cuDNN 9.19

// sm_8x ignores the strides of a packed statistic without a word (cudnn-frontend #304). Packed sums with a head size
// that is no multiple of 16 have "a known functional issue" (its infer_properties_node): on an H100 NaN.
int plan_packed(const PlanShape* shape) { return (shape->sm / 10 == 9 || shape->sm / 10 == 10) && shape->HS % 16 == 0; }

size_t plan_workspace_most(const PlanShape* shape) { return (64 << 10) + (size_t)shape->B * 2048; }

int plan_check(const PlanShape* shape, size_t version, Err err) {
    int major = shape->sm / 10;
    char found[40];
    snprintf(found, sizeof found, "cuDNN %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
    if (version < 91002)
        return fail(err, "%s is too old: attention needs 9.10.2, and 9.10.0 and 9.10.1 compute it wrongly", found);
    if (version >= 100000) return fail(err, "%s is not known to this program: attention needs cuDNN 9", found);
    if (shape->HS % 8 || shape->HS > 128)
        return fail(err, "cuDNN's attention takes head sizes that are multiples of 8, up to 128, not %d", shape->HS);
    // A last block of 64 keys can make NaN on sm_90 (cudnn-frontend #628): whole blocks of 128 cannot.
    if (shape->S % 128) return fail(err, "documents of at most %d tokens, expected a multiple of 128", shape->S);
    if (major == 9 && shape->HS % 16)  // a model with heads of 8 made NaN on an H100, and ended with an error
        return fail(err, "cuDNN's attention on sm_90 takes head sizes that are multiples of 16, not %d", shape->HS);
    if (major == 12)
        return fail(err, "cuDNN's attention cannot read q, k and v from one interleaved buffer on sm_%d", shape->sm);
    if (shape->sm < 80 || shape->sm > 103)
        return fail(err, "cuDNN's attention was not tried on sm_%d, only on sm_80 to sm_103", shape->sm);
    if (major == 8 && version < 91801)
        return fail(err, "%s is too old: packed documents on sm_%d need 9.18.1", found, shape->sm);
    return 0;
}

// ---- from a graph to a plan

static void set_target(Graph* g, Descriptor d, const PlanTarget* target, cudnnBackendAttributeName_t handle,
                       cudnnBackendAttributeName_t device) {
    if (target->handle) set(g, d, handle, CUDNN_TYPE_HANDLE, 1, &target->handle);
    else set_descriptor(g, d, device, target->device);
}

// Lists engines for the graph, best first as cuDNN sees it. Returns their number.
static int suggested_engines(Graph* g, Descriptor graph, const PlanTarget* target, Descriptor* engines, int most) {
    Descriptor how = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t n = 0;
    set_descriptor(g, how, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(g, how, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (!target->handle) set_descriptor(g, how, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target->device);
    finalize(g, how, "choosing an engine");
    for (int i = 0; i < most; i++) engines[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!g->failed)
        check(g,
              cudnn.BackendGetAttribute(how, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, &n,
                                        engines),
              "choosing an engine");
    return (int)MIN(n, (int64_t)most);
}

cudnnBackendDescriptor_t plan_describe_device(const char* json, Err err) {
    Graph g = {};
    g.err = err;
    Descriptor device = make(&g, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    set(&g, device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(json), json);
    finalize(&g, device, "describing a device");
    if (!g.failed) return device;
    destroy(&g);
    return NULL;
}

static int compile(Plan* plan, const PlanShape* shape, const PlanTarget* target, Err err) {
    enum { MOST_ENGINES = 16 };
    Graph* g = (Graph*)calloc(1, sizeof *g);
    if (!g) return fail(err, "no memory for a plan of cuDNN");
    g->shape = shape, g->err = err;
    attention_graph(g);
    Descriptor graph = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR), engines[MOST_ENGINES];
    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops, g->ops);
    if (target->handle) set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target->handle);
    finalize(g, graph, "checking the operations of attention");
    int n = suggested_engines(g, graph, target, engines, MOST_ENGINES);
    cudnnStatus_t status = CUDNN_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < n && !g->failed && status != CUDNN_STATUS_SUCCESS; i++) {
        Descriptor d = make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        set_target(g, d, target, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
        set_descriptor(g, d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engines[i]);
        if (!g->failed) status = cudnn.BackendFinalize(d);
        if (status == CUDNN_STATUS_SUCCESS) plan->descriptor = d;
    }
    plan->graph = g;
    if (plan->descriptor) return 0;
    if (!g->failed) fail_cudnn(err, "compiling attention", status);
    plan_close(plan);
    return -1;
}

// Loads a compiled plan from JSON, which has its code, but is tied to this device, driver and version of cuDNN.
static int load(Plan* plan, const PlanTarget* target, const char* json, size_t n) {
    char err[ERR_BYTES];
    Graph g = {};
    g.err = err;
    Descriptor d = make(&g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_target(&g, d, target, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
    set(&g, d, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)n, json);
    finalize(&g, d, "reading a plan");
    if (g.failed) return destroy(&g), -1;
    plan->descriptor = d;
    return 0;
}

static void keep(const Plan* plan, const char* key) {
    int64_t n = 0;
    if (cudnn.BackendGetAttribute(plan->descriptor, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 0,
                                  &n, NULL))
        return;
    char* json = n > 0 ? (char*)malloc((size_t)n) : NULL;
    int64_t room = n;
    if (json &&
        !cudnn.BackendGetAttribute(plan->descriptor, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                   room, &n, json) &&
        n <= room)
        cache_write(key, json, (size_t)n, 1);
    free(json);
}

void plan_key(char key[PLAN_KEY], const PlanShape* shape, const PlanTarget* target) {
    enum { GRAPH_VERSION = 5 };  // of the operations above
    snprintf(key, PLAN_KEY, "plan %d, cuDNN %zu, %s, sm_%d, B %d S %d NH %d NKV %d HS %d", GRAPH_VERSION, cudnn.version,
             target->name, shape->sm, shape->B, shape->S, shape->NH, shape->NKV, shape->HS);
}

int plan_open(Plan* plan, const PlanShape* shape, const PlanTarget* target, Err err) {
    char key[PLAN_KEY];
    size_t n;
    int64_t one;
    memset(plan, 0, sizeof *plan);
    if (plan_check(shape, cudnn.version, err)) return -1;
    plan_key(key, shape, target);
    char* json = cache_read(key, &n);
    if (json) plan->was_cached = !load(plan, target, json, n);
    free(json);
    if (!plan->was_cached) {
        if (compile(plan, shape, target, err)) return -1;
        keep(plan, key);
    }
    cudnnStatus_t status = cudnn.BackendGetAttribute(plan->descriptor, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                     CUDNN_TYPE_INT64, 1, &one, &plan->workspace);
    if (status == CUDNN_STATUS_SUCCESS && plan->workspace >= 0) return 0;
    fail_cudnn(err, "asking for the workspace", status);
    plan_close(plan);
    return -1;
}

void plan_close(Plan* plan) {
    if (plan->graph) destroy(plan->graph);
    else if (plan->descriptor) cudnn.BackendDestroyDescriptor(plan->descriptor);
    free(plan->graph);
    memset(plan, 0, sizeof *plan);
}

int plan_run(const Plan* plan, cudnnHandle_t handle, cudaStream_t stream, void* const tensors[PLAN_TENSORS],
             void* workspace, Err err) {
    int64_t ids[PLAN_TENSORS];
    void* pointers[PLAN_TENSORS];
    int n = 0;
    for (int id = 1; id < PLAN_TENSORS; id++)
        if (tensors[id]) ids[n] = id, pointers[n++] = tensors[id];
    Graph g = {};
    g.err = err;
    check(&g, cudnn.SetStream(handle, stream), "setting the stream");
    Descriptor pack = make(&g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(&g, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids);
    set(&g, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointers);
    set(&g, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finalize(&g, pack, "binding the memory of attention");
    if (!g.failed) check(&g, cudnn.BackendExecute(handle, plan->descriptor, pack), "running attention");
    destroy(&g);
    return g.failed;
}

// ---- buckets

enum { BUCKET_STEP = 4 };

PlanShape bucket_shape(const KernelLimits* limits, int sm, int bucket) {
    PlanShape shape = {};
    int longest = MAX(1, MIN(limits->context, limits->N));
    for (shape.B = 1; (size_t)shape.B * longest < (size_t)limits->N;) shape.B *= 2;
    for (int i = 0; i < bucket; i++) shape.B *= BUCKET_STEP;
    shape.S = ROUND_UP(longest, 128);
    shape.NH = limits->NH;
    shape.NKV = limits->NKV;
    shape.HS = limits->HS;
    shape.sm = sm;
    return shape;
}

static void* carve(PlanMemory* m, char* base, size_t bytes) {
    void* p = base ? base + m->bytes : NULL;
    m->bytes += ROUND_UP(bytes, (size_t)256);
    return p;
}

PlanMemory plan_memory(const PlanShape* shape, int N, char* base) {
    PlanMemory m = {};
    int packed = plan_packed(shape);
    size_t B = (size_t)shape->B, rows = packed ? (size_t)N + ATTENTION_TAIL : B * shape->S;
    m.tensors[PLAN_Q_LENGTHS] = m.tensors[PLAN_K_LENGTHS] = carve(&m, base, B * sizeof(int));
    m.tensors[PLAN_QKV_OFFSETS] = carve(&m, base, (B + 1) * sizeof(int));
    m.tensors[PLAN_OUT_OFFSETS] = carve(&m, base, (B + 1) * sizeof(int));
    m.lse_offsets = (int*)carve(&m, base, (B + 1) * sizeof(int));
    if (packed) m.tensors[PLAN_LSE_OFFSETS] = m.lse_offsets;
    m.tensors[PLAN_LSE] = carve(&m, base, rows * shape->NH * sizeof(float));
    m.workspace = carve(&m, base, plan_workspace_most(shape));
    return m;
}

size_t bucket_bytes(const KernelLimits* limits, int sm, int bucket) {
    PlanShape shape = bucket_shape(limits, sm, bucket);
    return plan_memory(&shape, limits->N, NULL).bytes;
}

size_t most_plan_bytes(const KernelLimits* limits) {
    return limits->most_scratch ? limits->most_scratch : (size_t)1 << 30;
}

int buckets_that_fit(const KernelLimits* limits, int sm) {
    int n = 0;
    while (n < BUCKETS && bucket_bytes(limits, sm, n) <= most_plan_bytes(limits)) n++;
    return n;
}
