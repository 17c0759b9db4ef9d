// cudnn_plan.cu - attention as a graph of NVIDIA's header-only cudnn-frontend, and its memory, see cudnn_plan.h.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING  // library.cu opens libcudnn: nothing is linked
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cstring>
#include <map>

#include <cudnn_frontend.h>  // which needs <cstring> above it

#include "kernels/cuda/cudnn_plan.h"
#include "kernels/cuda/library.h"

namespace fe = cudnn_frontend;
void* fe::cudnn_dlhandle = RTLD_DEFAULT;  // library_open makes what it finds global

struct CudnnGraph : fe::graph::Graph {};

const int cudnn_headers = CUDNN_FRONTEND_VERSION;
size_t cudnn_version;
// The device's handle, and graphs by all that they depend on, are never destroyed: libcudnn may end before them.
static cudnnHandle_t handle;
static auto& graphs = *new std::map<std::vector<int>, CudnnGraph>;

static std::string found() { return "cuDNN " + fe::detail::convert_version_to_str(cudnn_version); }

// Steps of cudnn-frontend and of cuDNN throw here when they fail. 0, or -1 with a message of one line.
template <class F>
static int attempt(const char* what, Err err, F steps) {
    try {
        steps();
        return 0;
    } catch (const std::exception& e) {
        std::string words = e.what();
        for (char& c : words) c = c == '\n' ? ' ' : c;
        return fail(err, "%s: %s: %.300s", found().c_str(), what, words.c_str());
    }
}

static void must(bool done, const std::string& words) {
    if (!done) throw std::runtime_error(words);
}

static void must(fe::error_t error) { must(error.is_good(), error.get_message()); }

// ---- what is supported; sources: cudnn-frontend's sdpa_support_surface.h, and plans that were tried with cuDNN 9.19

// Opens the library, the first time. 0, or -1 with the reason why it does not serve the plan.
static int check(const CudnnPlan* p, DType dt, Err err) {
    static const char* const files[] = {"libcudnn.so.9", "libcudnn.so", NULL};
    int major = p->sm / 10;
    if (dt != DT_BF16) return fail(err, "cuDNN's attention takes bf16, not %s; try --dtype bf16", dtype_name(dt));
    auto ask = [] { cudnn_version = fe::detail::get_backend_version(); };
    if (!cudnn_version && (library_open("cuDNN", files, NULL, 0, err) || attempt("opening", err, ask))) return -1;
    if (cudnn_version < 91002)
        return fail(err, "%s is too old: attention needs 9.10.2, and 9.10.0 and 9.10.1 compute it wrongly",
                    found().c_str());
    if (cudnn_version >= 100000)
        return fail(err, "%s is not known to this program: attention needs cuDNN 9", found().c_str());
    if (p->HS % 8 || p->HS > 128)
        return fail(err, "cuDNN's attention takes head sizes that are multiples of 8, up to 128, not %d", p->HS);
    if (major == 9 && p->HS % 16)  // a model with heads of 8 made NaN on an H100, and ended with an error
        return fail(err, "cuDNN's attention on sm_90 takes head sizes that are multiples of 16, not %d", p->HS);
    if (major == 12)
        return fail(err, "cuDNN's attention cannot read q, k and v from one interleaved buffer on sm_%d", p->sm);
    if (p->sm < 80 || p->sm > 103)
        return fail(err, "cuDNN's attention was not tried on sm_%d, only on sm_80 to sm_103", p->sm);
    if (major == 8 && cudnn_version < 91801)
        return fail(err, "%s is too old: packed documents on sm_%d need 9.18.1", found().c_str(), p->sm);
    if (((size_t)p->N + ATTENTION_TAIL) * (p->NH + 2 * p->NKV) * p->HS > INT32_MAX)
        return fail(err,
                    "a row of %d tokens has more elements than the 32-bit offsets of cuDNN's attention "
                    "count; try a smaller --capacity",
                    p->N);
    return 0;
}

// ---- memory

static size_t most_workspace(const CudnnPlan* p) { return (64 << 10) + (size_t)p->B * 2048; }

static void lay_out(CudnnPlan* p, char* base) {
    size_t B = (size_t)p->B, rows = cudnn_packs(p) ? (size_t)p->N + ATTENTION_TAIL : B * p->S;
    auto carve = [&](size_t bytes) {
        char* place = base ? base + p->bytes : NULL;
        p->bytes += ROUND_UP(bytes, (size_t)256);
        return place;
    };
    p->lengths = (int*)carve(B * sizeof(int));
    for (int** offsets : {&p->qkv, &p->out, &p->statistics}) *offsets = (int*)carve((B + 1) * sizeof(int));
    p->lse = (float*)carve(rows * p->NH * sizeof(float));
    p->workspace = carve(most_workspace(p));
}

int cudnn_plans(CudnnPlan plans[CUDNN_PLANS], const KernelLimits* limits, int sm, char* base, Err err) {
    size_t most = limits->most_scratch ? limits->most_scratch : (size_t)1 << 30;
    int longest = MAX(1, MIN(limits->context, limits->N)), B = 1, n = 0;
    int S = ROUND_UP(longest, 128);  // a last block of 64 keys can make NaN on sm_90 (cudnn-frontend #628)
    while ((size_t)B * longest < (size_t)limits->N) B *= 2;
    for (; n < CUDNN_PLANS; n++, B *= 4) {
        plans[n] = CudnnPlan{limits->N, B, S, limits->NH, limits->NKV, limits->HS, sm};
        lay_out(&plans[n], base);
        if (plans[n].bytes > most) break;
    }
    if (check(&plans[0], limits->dt, err)) return -1;
    if (n > 0) return n;
    return fail(err, "cuDNN's attention needs %zu MiB of scratch and may take %zu; try a smaller --capacity",
                plans[0].bytes >> 20, most >> 20);
}

// ---- the graph

enum { Q = 1, K, V, OUT, LSE, Q_LENGTHS, K_LENGTHS, QKV_OFFSETS, OUT_OFFSETS, LSE_OFFSETS, SCALE };  // unique ids

// The graph is the chain of matmuls, masks and reductions (COMPOSITE) that ran on an H100. From 9.21 a single operation
// could stand in its place, which left log-sum-exps unwritten in 9.26 (cudnn-frontend #1083).
static void describe(CudnnGraph* g, const CudnnPlan* p) {
    typedef std::vector<int64_t> Sizes;
    typedef std::shared_ptr<fe::graph::Tensor_attributes> Tensor;
    const auto F32 = fe::DataType_t::FLOAT, BF16 = fe::DataType_t::BFLOAT16, I32 = fe::DataType_t::INT32;
    int64_t B = p->B, S = p->S, NH = p->NH, HS = p->HS, C = NH * HS, row = C + 2 * p->NKV * HS;
    auto tensor = [g](int id, fe::DataType_t type, Sizes dims, Sizes strides, Tensor offsets = NULL) {
        fe::graph::Tensor_attributes t;
        t.set_uid(id).set_data_type(type).set_dim(dims).set_stride(strides);
        return g->tensor(t.set_ragged_offset(offsets).set_is_pass_by_value(id == SCALE));
    };
    auto vector = [&](int id, int64_t n) { return tensor(id, I32, {n, 1, 1, 1}, {1, 1, 1, 1}); };
    auto offsets = vector(QKV_OFFSETS, B + 1), scale = tensor(SCALE, F32, {1, 1, 1, 1}, {1, 1, 1, 1});
    auto heads = [&](int id, int64_t n) { return tensor(id, BF16, {B, n, S, HS}, {S * row, HS, row, 1}, offsets); };
    fe::graph::SDPA_attributes a;
    a.set_implementation(fe::AttentionImplementation_t::COMPOSITE).set_generate_stats(true).set_attn_scale(scale);
    a.set_padding_mask(true).set_seq_len_q(vector(Q_LENGTHS, B)).set_seq_len_kv(vector(K_LENGTHS, B));
    a.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
    g->set_io_data_type(BF16).set_intermediate_data_type(F32).set_compute_data_type(F32);
    auto [out, lse] = g->sdpa(heads(Q, NH), heads(K, p->NKV), heads(V, p->NKV), a);
    out->set_output(true).set_uid(OUT).set_dim({B, NH, S, HS}).set_stride({S * C, HS, C, 1});
    out->set_ragged_offset(vector(OUT_OFFSETS, B + 1));
    lse->set_output(true).set_uid(LSE).set_data_type(F32).set_dim({B, NH, S, 1}).set_stride({NH * S, S, 1, 1});
    if (cudnn_packs(p)) lse->set_stride({S * NH, 1, NH, 1}).set_ragged_offset(vector(LSE_OFFSETS, B + 1));
}

int cudnn_build(CudnnPlan* p, const char* json, Err err) {
    std::vector<int> key = {p->B, p->S, p->NH, p->NKV, p->HS, p->sm, json != NULL};
    auto [at, is_new] = graphs.try_emplace(key);
    CudnnGraph* g = p->graph = &at->second;
    auto build = [&] {
        int64_t workspace = 0;
        g->set_sm_version(p->sm);  // cudnn-frontend would ask a second CUDA runtime for it
        describe(g, p);
        if (json) {
            auto device = std::make_shared<fe::DeviceProperties>();
            must(device->deserialize(std::vector<uint8_t>(json, json + strlen(json))));
            g->set_device_properties(device);
        } else if (!handle) must(!fe::detail::create_handle(&handle), "it does not start");
        must(g->build(json ? NULL : handle, {fe::HeurMode_t::A}));
        must(g->get_workspace_size(workspace));
        must((size_t)workspace <= most_workspace(p), "it wants " + std::to_string(workspace) + " bytes of workspace");
    };
    if (!is_new || !attempt("compiling attention", err, build)) return 0;
    graphs.erase(key);
    return -1;
}

int cudnn_run(const CudnnPlan* p, void* out, const Attention* a, cudaStream_t stream, Err err) {
    const void* by_id[] = {a->q,       a->k,   a->v,   out,           p->lse,   p->lengths,
                           p->lengths, p->qkv, p->out, p->statistics, &a->scale};
    return attempt("running attention", err, [&] {
        std::unordered_map<int64_t, void*> memory;
        for (int id = Q; id <= SCALE; id++) memory[id] = (void*)by_id[id - Q];
        must(!fe::detail::set_stream(handle, stream), "the stream is not taken");
        must(p->graph->execute(handle, memory, p->workspace));
    });
}
