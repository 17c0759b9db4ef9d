// backend.c - the clock of a rank of the virtual cluster, and the table of ops that advances it: see virtual.h.
//
// There are two tables: one over ops that do nothing, one over a CPU's. Only entries that take time are replaced.
#define _GNU_SOURCE  // MAP_NORESERVE
#include <stdio.h>
#include <sys/mman.h>

#include "kernels/rank_ops.h"
#include "kernels/virtual/virtual.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"  // ops that compute nothing ignore operands

// ---- the clock

static struct {
    double now;  // ms
    int node_size;
    VirtualMachine machine;
    double events[MOST_EVENTS];  // seconds
} rank = {.node_size = 8};

void virtual_nodes(int node_size) { rank.node_size = node_size; }
int virtual_node_size(void) { return rank.node_size; }
void virtual_use(const VirtualMachine* machine) { rank.machine = *machine; }
double virtual_now(void) { return rank.now; }
void virtual_wait_until(double ms) { rank.now = MAX(rank.now, ms); }

double virtual_transfer_ms(const VirtualTransfer* transfer) {
    const VirtualMachine* m = &rank.machine;
    return m->transfer_ms ? m->transfer_ms(m->context, transfer) : 0;
}

static void charge(double ms) { rank.now += ms; }

static double virtual_clock(void) { return 1e-3 * rank.now; }
static void wait_until(double seconds) { virtual_wait_until(1e3 * seconds); }
static void record_event(int i, Stream s) { rank.events[i] = virtual_clock(); }
static void read_events(double* seconds, int n) { memcpy(seconds, rank.events, (size_t)n * sizeof(double)); }

// ---- ops that take time; `below` computes, or does nothing

static const Kernels* below;

static void charge_matmul(int N, int C, int OC) {
    const VirtualMachine* m = &rank.machine;
    charge(m->token_ms * N * ((double)C * OC / m->matmul_weights) / 3);
}

static void matmul_forward(void* out, void* gelu, const void* x, const void* weight, const void* bias, int N, int C,
                           int OC, DType dt, Stream s) {
    below->matmul_forward(out, gelu, x, weight, bias, N, C, OC, dt, s);
    charge_matmul(N, C, OC);
}

static void matmul_backward_input(void* dx, const void* dout, const void* weight, const void* pre, int N, int C, int OC,
                                  DType dt, Stream s) {
    below->matmul_backward_input(dx, dout, weight, pre, N, C, OC, dt, s);
    charge_matmul(N, C, OC);
}

static void matmul_backward_weight(float* dweight, float* dbias, const void* dout, const void* x, int N, int C, int OC,
                                   DType dt, Stream s) {
    below->matmul_backward_weight(dweight, dbias, dout, x, N, C, OC, dt, s);
    charge_matmul(N, C, OC);
}

static void strided_matmul(const StridedMatmul* m, DType dt, Stream s) {
    below->ranks->strided_matmul(m, dt, s);
    charge_matmul(m->N, m->C, m->OC);
}

static void matmul_fp8(const Fp8Matmul* m, Stream s) {
    below->ranks->matmul_fp8(m, s);
    charge_matmul(m->N, m->K, m->OC);
}

// Returns p of a document of Q queries and K keys. Query i sees keys 0 .. i + offset, 2 (i + offset) + 1 half pairs, as
// long as the last of them exists: the sum over i of consecutive odd numbers is a difference of squares.
static double half_pairs(double Q, double K, double offset) {
    double first = MIN(MAX(0, -offset), Q), last = MAX(first, MIN(Q, K - offset));
    double up_to = last + offset, before = first + offset;
    return (last > first ? up_to * up_to - before * before : 0) + 2 * K * (Q - last);
}

static void charge_attention(const Attention* a, double share) {
    const VirtualMachine* m = &rank.machine;
    double p = 0;
    for (int b = 0; b < a->n_docs; b++) {
        double Q = a->cu_q[b + 1] - a->cu_q[b], K = a->cu_k[b + 1] - a->cu_k[b];
        p += a->causal ? half_pairs(Q, K, a->causal_offset ? a->causal_offset[b] : K - Q) : 2 * Q * K;
    }
    charge(share * m->pair_ms * p * a->NH / m->heads / m->layers);
}

static void attention_forward(void* out, float* lse, const Attention* a, DType dt, Stream s) {
    below->attention_forward(out, lse, a, dt, s);
    charge_attention(a, 1.0 / 3);
}

static void attention_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                               const Attention* a, DType dt, Stream s) {
    below->attention_backward(dq, dk, dv, dout, out, lse, a, dt, s);
    charge_attention(a, 2.0 / 3);
}

void virtual_end_row(void) { charge(rank.machine.micro_batch_ms); }

// Ends a row, since it is its last op on ranks with the embedding, also where no table learns. Those with a part of the
// vocabulary call it once more, for positions alone.
static void embedding_backward(float* dwte, float* dwpe, const void* dout, const int* tokens, const int* positions,
                               int N, int C, DType dt, Stream s) {
    below->embedding_backward(dwte, dwpe, dout, tokens, positions, N, C, dt, s);
    if ((tokens || !positions) && N > 0) virtual_end_row();
}

// Takes the time of an update, in which it comes once.
static void clip_scale(float* scale, const double* norm2, float clip, Stream s) {
    below->clip_scale(scale, norm2, clip, s);
    charge(rank.machine.step_ms);
}

static void install(Kernels* table) {
    static RankOps ranks;
    ranks = *below->ranks, ranks.strided_matmul = strided_matmul, ranks.matmul_fp8 = matmul_fp8;
    table->ranks = &ranks;
    table->virtual_time = 1;
    table->matmul_forward = matmul_forward;
    table->matmul_backward_input = matmul_backward_input;
    table->matmul_backward_weight = matmul_backward_weight;
    table->attention_forward = attention_forward;
    table->attention_backward = attention_backward;
    table->embedding_backward = embedding_backward;
    table->clip_scale = clip_scale;
    table->clock = virtual_clock;
    table->record_event = record_event;
    table->read_events = read_events;
    table->wait_until = wait_until;
}

// ---- memory that is address space: pages come when they are written to

enum { ALIGN_BYTES = 64 };  // before each piece, with its size

static size_t memory_available(void) { return (size_t)1 << 46; }

static void* alloc(size_t bytes) {
    size_t all = bytes + ALIGN_BYTES;
    void* p = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    memcpy(p, &all, sizeof all);
    return (char*)p + ALIGN_BYTES;
}

static void free_memory(void* p) {
    size_t all;
    if (!p) return;
    memcpy(&all, (char*)p - ALIGN_BYTES, sizeof all);
    munmap((char*)p - ALIGN_BYTES, all);
}

static void upload(void* device, const void* host, size_t bytes, Stream s) { memcpy(device, host, bytes); }
static void download(void* host, const void* device, size_t bytes, Stream s) { memcpy(host, device, bytes); }

// ---- ops that do nothing: one function stands for all of them, which return nothing and whose caller clears the
// arguments away. So no op can be missing: they are the pointers of the table from the first op up to the clock.

static void nothing_done(void) {}
static size_t no_workspace(const KernelLimits* limits) { return 0; }
static int open_nothing(const KernelLimits* limits, Err err) { return 0; }
static const char* no_choices(void) { return ""; }
static void clear(void* device, size_t bytes, Stream s) {}
static void synchronize(Stream s) {}

static RankOps nothing_by_ranks;

static Kernels nothing = {
    .name = "virtual",
    .prefers_bf16 = 1,
    .full_matmul = 8192,
    .no_results = 1,
    .ranks = &nothing_by_ranks,
    .memory_available = memory_available,
    .workspace_bytes = no_workspace,
    .open = open_nothing,
    .close = nothing_done,
    .choices = no_choices,
    .alloc = alloc,
    .free_memory = free_memory,
    .alloc_host = alloc,
    .free_host = free_memory,
    .upload = upload,
    .download = download,
    .clear = clear,
    .synchronize = synchronize,
};

static void fill_with_nothing(void* first, void* end) {
    void (*op)(void) = nothing_done;
    for (char* at = (char*)first; at < (char*)end; at += sizeof op) memcpy(at, &op, sizeof op);
}

const Kernels* virtual_kernels(const Kernels* computing) {
    static char name[64];
    static Kernels table;
    fill_with_nothing(&nothing.embedding_forward, &nothing.clock);
    fill_with_nothing(&nothing_by_ranks, &nothing_by_ranks + 1);
    below = computing ? computing : &nothing;
    table = *below;
    if (computing) snprintf(name, sizeof name, "virtual over %s", computing->name), table.name = name;
    install(&table);
    return &table;
}
