// backend.cu - the CUDA device: finding it, its memory, its scratch, and the table.
#include "kernels/cuda/cuda.h"

#include <stdio.h>

CudaDevice cuda;

void cuda_check_at(const char* file, int line, cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    if (cuda.failing) cuda.failing(what, cudaGetErrorString(error));
    die_at(file, line, "CUDA: %s: %s; the first failed call may be an earlier one, try CUDA_LAUNCH_BLOCKING=1", what,
           cudaGetErrorString(error));
}

// ---- the device

enum { LEAST_MAJOR = 8 };  // mma.sync with bf16 and cp.async came with sm_80

// Ranks of a node each take the GPU of their local rank; CUDA_VISIBLE_DEVICES hides others as usual.
static int device_index(int n_devices) {
    RankIdentity id;
    return rank_identity(&id, NULL) ? 0 : id.local_rank % n_devices;
}

static char device_name[300];

int cuda_find_device(Err err) {
    int n = 0;
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess || n == 0) {
        cudaGetLastError();
        return fail(err, "no CUDA device: %s; try --device cpu",
                    error != cudaSuccess ? cudaGetErrorString(error) : "none is visible, see CUDA_VISIBLE_DEVICES");
    }
    cudaDeviceProp properties;
    cuda.index = device_index(n);
    error = cudaGetDeviceProperties(&properties, cuda.index);
    if (error != cudaSuccess) return fail(err, "CUDA device %d: %s", cuda.index, cudaGetErrorString(error));
    cuda.major = properties.major;
    cuda.minor = properties.minor;
    cuda.sm_count = properties.multiProcessorCount;
    if (cuda.major < LEAST_MAJOR)
        return fail(err, "%s has compute capability %d.%d, expected 8.0 or newer; try --device cpu", properties.name,
                    cuda.major, cuda.minor);
    int driver = 0;
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    snprintf(device_name, sizeof device_name, "cuda %s, sm_%d%d", properties.name, cuda.major, cuda.minor);
    snprintf(cuda.model, sizeof cuda.model, "%.200s, driver %d", properties.name, driver);
    error = cudaSetDevice(cuda.index);
    if (error != cudaSuccess)
        return fail(err, "%s cannot be used: %s; is it busy, or was this program built for another GPU?",
                    properties.name, cudaGetErrorString(error));
    return 0;
}

// ---- waiting for the device: only here, so that no rank waits for ever behind a collective of one that is missing

static cudaEvent_t reached;

static int reach_event(cudaEvent_t event) {
    if (cuda.settle) return cuda.settle(event);
    CUDA_CHECK(cudaEventSynchronize(event));
    return 0;
}

// Waits until all is done that s was given. 0, or -1: that will never be.
static int reach(Stream s) {
    if (!reached) CUDA_CHECK(cudaEventCreateWithFlags(&reached, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventRecord(reached, cuda_stream(s)));
    return reach_event(reached);
}

static void synchronize(Stream s) {
    if (cuda.settle) reach(s);
    else CUDA_CHECK(cudaStreamSynchronize(cuda_stream(s)));
}

// Every PACE launches it waits for the event before, and records one for the next time.
void cuda_keep_pace(cudaStream_t stream) {
    enum { PACE = 256 };
    static cudaEvent_t behind[2];
    static unsigned launches;
    if (!cuda.settle || ++launches % PACE) return;
    cudaEvent_t *next = &behind[launches / PACE % 2], last = behind[1 - launches / PACE % 2];
    if (last) cuda.settle(last);
    if (!*next) CUDA_CHECK(cudaEventCreateWithFlags(next, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventRecord(*next, stream));
}

// ---- memory

static size_t memory_available(void) {
    size_t available = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&available, &total));
    return available;
}

// An allocation that fails is an answer, not an error to find later.
void* cuda_allocate(size_t bytes, bool on_host) {
    void* p = NULL;
    bytes = MAX(bytes, (size_t)1);
    if ((on_host ? cudaMallocHost(&p, bytes) : cudaMalloc(&p, bytes)) == cudaSuccess) return p;
    cudaGetLastError();
    return NULL;
}

static void* alloc(size_t bytes) {
    void* p = cuda_allocate(bytes, false);
    if (!p) return NULL;
    CUDA_CHECK(cudaMemsetAsync(p, 0, bytes, cuda.stream));
    synchronize(NULL);
    return p;
}

// Here CUDA waits for the whole device.
static void free_memory(void* p) {
    if (!p || (cuda.settle && (reach(NULL) || cuda.settle(NULL)))) return;
    CUDA_CHECK(cudaFree(p));
}

static void* alloc_host(size_t bytes) {
    void* p = cuda_allocate(bytes, true);
    return p ? memset(p, 0, bytes) : NULL;
}

static void free_host(void* p) {
    if (p) CUDA_CHECK(cudaFreeHost(p));
}

static void upload(void* device, const void* host, size_t bytes, Stream s) {
    CUDA_CHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, cuda_stream(s)));
}

static void download(void* host, const void* device, size_t bytes, Stream s) {
    if (cuda.settle && reach(s)) return;
    CUDA_CHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, cuda_stream(s)));
    CUDA_CHECK(cudaStreamSynchronize(cuda_stream(s)));
}

static void clear(void* device, size_t bytes, Stream s) {
    CUDA_CHECK(cudaMemsetAsync(device, 0, bytes, cuda_stream(s)));
}

// ---- the time of a step: an event on the stream for each, made when it is first recorded
//
// An event is a few bytes of work for the device, and the host does not wait until events are read. The driver gives
// the time between two events as fp32 milliseconds: a relative error of 6e-8, which is a microsecond after 16 s. So
// times are added up from event to event, in double: the time between two events keeps its digits however long
// the step is.

static cudaEvent_t events[MOST_EVENTS];

static void record_event(int i, Stream s) {
    if (i < 0 || i >= MOST_EVENTS) broken("event %d of at most %d", i, MOST_EVENTS);
    if (!events[i]) CUDA_CHECK(cudaEventCreateWithFlags(&events[i], 0));
    CUDA_CHECK(cudaEventRecord(events[i], cuda_stream(s)));
}

static void read_events(double* seconds, int n) {
    for (int i = 0; i < n; i++) {
        float milliseconds = 0;
        if (!events[i]) broken("event %d was never recorded", i);
        int missing = reach_event(events[i]);  // one after another: each is a sign of the others
        if (i > 0 && !missing) CUDA_CHECK(cudaEventElapsedTime(&milliseconds, events[i - 1], events[i]));
        seconds[i] = (i > 0 ? seconds[i - 1] : 0) + 1e-3 * (double)milliseconds;
    }
}

static void close_events(void) {
    for (int i = 0; i < MOST_EVENTS; i++) {
        if (events[i]) CUDA_CHECK(cudaEventDestroy(events[i]));
        events[i] = NULL;
    }
    if (reached) CUDA_CHECK(cudaEventDestroy(reached));
    reached = NULL;
}

// ---- the Comm of one rank: NCCL would take 512 MiB for it; here every entry is a copy on the caller's own stream

void comm_copy_device(void* to, const void* from, size_t bytes, Stream s) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_stream(s)));
}

static int wait_for_stream(Comm*, Stream s, Err err) {
    cudaError_t error = cudaStreamSynchronize(cuda_stream(s));
    return error == cudaSuccess ? 0 : fail(err, "CUDA: %s", cudaGetErrorString(error));
}

int comm_open_cuda_self(Comm** c, double timeout_seconds, Err err) {
    return comm_open_alone(c, comm_copy_device, wait_for_stream, timeout_seconds, err);
}

// ---- scratch: one block, as large as the neediest op

static size_t workspace_bytes(const KernelLimits* limits) {
    size_t most = cuda_matmul_scratch_bytes(limits);
    most = MAX(most, cuda_embedding_scratch_bytes(limits));
    most = MAX(most, cuda_norm_scratch_bytes(limits));
    most = MAX(most, cuda_attention_scratch_bytes(limits));
    most = MAX(most, cuda_cudnn_scratch_bytes(limits));
    return ROUND_UP(most, (size_t)256) + cuda_attention_kept_bytes(limits);
}

size_t cuda_scratch_planned(void) { return cuda.scratch_bytes - cuda_attention_kept_bytes(&cuda.limits); }

void* cuda_scratch(size_t bytes) {
    if (bytes > cuda_scratch_planned())
        broken("an op needs %zu bytes of scratch, %zu were planned: its dimensions exceed those given to open", bytes,
               cuda_scratch_planned());
    return cuda.scratch;
}

char* cuda_kept(void) { return cuda.scratch + cuda_scratch_planned(); }

static int use_cudnn;                   // for the calls that it can do
static Err wgmmas_words, cudnns_words;  // why, or why not

static void close_cuda(void) {
    if (!cuda.stream) return;
    CUDA_CHECK(cudaDeviceSynchronize());
    cuda_matmul_close();
    free_memory(cuda.scratch);
    close_events();
    CUDA_CHECK(cudaStreamDestroy(cuda.stream));
    cuda.scratch = NULL;
    cuda.scratch_bytes = 0;
    cuda.stream = NULL;
}

static int open_cuda(const KernelLimits* limits, Err err) {
    close_cuda();
    if (cuda_find_device(err)) return -1;
    CUDA_CHECK(cudaStreamCreateWithFlags(&cuda.stream, cudaStreamNonBlocking));
    cuda.limits = *limits;
    cuda.scratch_bytes = workspace_bytes(limits);
    cuda.scratch = (char*)alloc(cuda.scratch_bytes);
    cuda_attention_forget();
    if (!cuda.scratch) {
        fail(err, "no GPU memory for %zu MiB of kernel scratch; try a smaller --capacity", cuda.scratch_bytes >> 20);
    } else if (!cuda_matmul_open(err)) {
        AttentionKernels asked = limits->attention;
        int tries_wgmma = asked == ATTENTION_WGMMA || (asked == ATTENTION_AUTO && cuda.major == 9);
        wgmmas_words[0] = 0, cuda.wgmma = 0;  // in a trial our own are those of mma.sync
        cuda.wgmma = tries_wgmma && !cuda_wgmma_open(limits, wgmmas_words);
        use_cudnn = (asked == ATTENTION_AUTO || asked == ATTENTION_CUDNN) && !cuda_cudnn_open(limits, cudnns_words);
        if ((use_cudnn || asked != ATTENTION_CUDNN) && (cuda.wgmma || asked != ATTENTION_WGMMA)) return 0;
        fail(err, "%s", asked == ATTENTION_WGMMA ? wgmmas_words : cudnns_words);
    }
    close_cuda();
    return -1;
}

// ---- attention: our kernels or cuDNN's

static const char* choices(void) {
    static char text[2 * ERR_BYTES + 128];
    if (cuda.limits.attention == ATTENTION_OWN) return "";
    snprintf(text, sizeof text, "%s attention (%s%s%s)%s",
             use_cudnn    ? "cuDNN's"
             : cuda.wgmma ? "wgmma"
                          : "own",
             wgmmas_words, *wgmmas_words && *cudnns_words ? "; " : "", cudnns_words,
             use_cudnn && cuda.limits.spread > 1 ? ", own for documents on several ranks" : "");
    return text;
}

static void attention_forward(void* out, float* lse, const Attention* a, DType dt, Stream s) {
    if (!use_cudnn || cuda_cudnn_forward(out, lse, a, dt, s)) cuda_attention_forward(out, lse, a, dt, s);
}

// Kernels are loaded when they first run: ours, cuBLASLt's and cuDNN's took 545 to 555 MiB of an H100.
// NCCL keeps 9.2 MiB a channel for each peer (LL, LL128, Simple): 544 MB were seen of 2 ranks, 688 of 4 with NVLink
// (NVIDIA's NCCL issue 964); parts share them.
static const size_t MIB = 1 << 20, LIBRARIES = 560 * MIB, NCCL_LIBRARY = 768 * MIB;

// C++17 has no designated initializers: the entries stand in the order of the structs.
// clang-format off
static const RankOps rank_ops = {
    cuda_attention_merge, cuda_cast, cuda_gather_rows, cuda_split_heads, cuda_join_heads,
    /* gather_columns */ cuda_scatter_columns, cuda_scatter_columns, cuda_scatter_rows, cuda_classifier_part,
    cuda_classifier_join, cuda_weigh_labels, cuda_momentum, cuda_follow, cuda_normalize, cuda_combine,
    cuda_strided_matmul, cuda_quantize, cuda_matmul_fp8
};

const Kernels cuda_kernels = {
    device_name, /* prefers_bf16 */ 1, /* on_host */ 0, /* full_matmul */ 8192, /* virtual_time, no_results */ 0, 0,
    ATTENTION_TAIL, /* sums_dx */ 1, LIBRARIES, NCCL_LIBRARY, &rank_ops, memory_available, workspace_bytes,
    open_cuda, close_cuda, choices, alloc, free_memory, alloc_host, free_host, upload, download, clear, synchronize,
    cuda_embedding_forward, cuda_embedding_backward, cuda_norm_forward, cuda_norm_backward,
    cuda_matmul_forward, cuda_matmul_backward_input, cuda_matmul_backward_weight,
    cuda_rotary_forward, cuda_rotary_backward, attention_forward, cuda_attention_backward,
    cuda_activation_forward, cuda_activation_backward, cuda_add, cuda_classifier, cuda_sample, cuda_add_sum,
    cuda_adamw, cuda_sum_of_squares, cuda_clip_scale, now_seconds, record_event, read_events, /* wait_until */ NULL
};
// clang-format on
