// test_pass_order.c - a pass with a group across nodes, one inside each node and documents of this rank alone, on
// virtual ranks: what the order of its groups hides, with the reverse order as control.
//
//   mpirun -n 4 build/release/test/test_pass_order
//
// On a rank let L, A, B be the time of attention of its own documents, of the group across nodes and of the one inside,
// x the time in which a third of what A sends travels (queries, keys or values of its tokens; what comes back is as
// much), y the same of B. Links inside nodes and across them are two queues. Forward three thirds travel there and one
// back, backward the other way round: with `there` and `back` thirds A first is over after
//
//   a = max(L, there x) + A,  b = max(a, there y) + B,  max(a + back x, b + back y)
//
// and with B first the same with A and x for B and y.
#include "kernels/comm/group_attention.h"
#include "test/virtual_ranks.h"

enum { RANKS = 4, NODE = 2, HEADS = 4, HEAD_SIZE = 8, MOST_TOKENS = 4096 };

typedef struct Times {
    double across, inside;  // ms a byte
} Times;

static Times byte_ms;

static double transfer_ms(const void* context, const VirtualTransfer* t) {
    (void)context;
    return t->sent * (t->across ? byte_ms.across : byte_ms.inside);
}

static const VirtualMachine machine = {
    .pair_ms = 1e-6, .matmul_weights = 1, .layers = 1, .heads = HEADS, .transfer_ms = transfer_ms};

static const Kernels* kernels;

// A group on `ranks` contiguous ranks that share the heads of one document of n tokens each.
typedef struct Group {
    GroupAttention ga;
    int head_border[RANKS + 1], token_border[RANKS + 1], owner, chunk_tokens;
} Group;

static void make_group(Group* g, int ranks, int n, int first) {
    int cu[2] = {0, n * ranks};
    for (int b = 0; b <= ranks; b++) g->head_border[b] = b * HEADS / ranks, g->token_border[b] = b * n;
    g->owner = 0, g->chunk_tokens = n * ranks;
    int* on_device = (int*)kernels->alloc(sizeof cu);
    kernels->upload(on_device, cu, sizeof cu, NULL);
    g->ga = (GroupAttention){rank / ranks * ranks, ranks, 1, .ulysses_rank = rank % ranks, .first = first, .n_docs = 1};
    g->ga.n_chunks = 1, g->ga.head_border = g->head_border, g->ga.token_border = g->token_border;
    g->ga.owner = &g->owner, g->ga.chunk_tokens = &g->chunk_tokens, g->ga.cu = on_device;
}

// Tokens of a rank: of its own document (0: none), of the group across nodes, of the one inside. Returns ms forward and
// backward.
static void play(double ms[2], int own, int across, int inside, int reversed) {
    Group groups[3];
    GroupAttention list[3];
    int n = 0, tokens = own + across + inside;
    if (own) make_group(&groups[n++], 1, own, 0);
    make_group(&groups[n], RANKS, across, own);
    make_group(&groups[n + 1], NODE, inside, own + across);
    // The one order: across nodes, inside, alone.
    for (int i = 0; i < 2; i++) list[i] = groups[n + (reversed ? 1 - i : i)].ga;
    if (own) list[2] = groups[0].ga;
    size_t row = (size_t)HEADS * HEAD_SIZE * sizeof(float), N = (size_t)tokens;
    char* memory = (char*)kernels->alloc(10 * N * row + N * HEADS * sizeof(float));
    SavedAttention saved = {memory, memory + 3 * N * row, memory + 4 * N * row, (float*)(memory + 10 * N * row)};
    size_t scratch = group_attention_scratch(tokens, HEADS, HEADS, HEAD_SIZE, RANKS, 0, 0, DT_F32);
    RowAttention r = {world, list, 2 + (own > 0), HEADS, HEADS, HEAD_SIZE, 1, .parts = 1};
    r.scratch = kernels->alloc(scratch);
    double began = clocks_meet();
    group_attention_forward(&saved, &r, kernels, DT_F32, NULL);
    double turned = clocks_meet();
    group_attention_backward(memory + 5 * N * row, memory + 8 * N * row, &saved, &r, kernels, DT_F32, NULL);
    ms[0] = turned - began, ms[1] = clocks_meet() - turned;
    kernels->free_memory(r.scratch), kernels->free_memory(memory);
    for (int i = 0; i < n + 2; i++) kernels->free_memory((void*)groups[i].ga.cu);
}

// ms of a pass by the formulas above.
static double expected(double L, double A, double B, double x, double y, int there, int back, int reversed) {
    double first = reversed ? fmax(L, there * y) + B : fmax(L, there * x) + A;
    double second = reversed ? fmax(first, there * x) + A : fmax(first, there * y) + B;
    return fmax(first + back * (reversed ? y : x), second + back * (reversed ? x : y));
}

// The reverse order's time over the time of the one order; both as the formulas say.
static double gain(int own, int across, int inside, double across_ms, double inside_ms) {
    double ms[2] = {0};
    byte_ms = (Times){across_ms, inside_ms};
    // Of a row of all heads a rank keeps a fourth, or a half; the rest leaves.
    double bytes = (double)HEADS * HEAD_SIZE * sizeof(float);
    double x = across * bytes * 3 / 4 * across_ms, y = inside * bytes / 2 * inside_ms;
    double L = 1e-6 * own * own, A = 1e-6 * across * across * 4, B = 1e-6 * inside * inside * 2;
    for (int reversed = 0; reversed < 2; reversed++) {
        double pass[2], forward = expected(L / 3, A / 3, B / 3, x, y, 3, 1, reversed);
        double backward = expected(2 * L / 3, 2 * A / 3, 2 * B / 3, x, y, 1, 3, reversed);
        play(pass, own, across, inside, reversed);
        CHECK_CLOSE(pass[0], forward, 1e-9 * forward);
        CHECK_CLOSE(pass[1], backward, 1e-9 * backward);
        ms[reversed] = pass[0] + pass[1];
    }
    return ms[1] / ms[0];
}

CLAIM(the_slowest_exchange_first_hides_what_the_reverse_order_shows) {
    CHECK_CLOSE(gain(2000, 1000, 1000, 1e-5, 1e-6), 1.0996, 1e-4);
    CHECK_CLOSE(gain(1000, 1000, 1000, 1e-5, 1e-6), 1.0890, 1e-4);
    CHECK_CLOSE(gain(0, 1000, 1000, 1e-5, 1e-6), 1.0374, 1e-4);  // what is behind the last group has nothing to hide
}

CLAIM(the_reverse_order_is_never_shorter) {
    double most = 1;
    for (uint64_t seed = 0; seed < 60; seed++) {
        int tokens[3];
        for (uint64_t i = 0; i < 3; i++) tokens[i] = 1 + (int)((MOST_TOKENS - 1) * pow(random_uniform(seed, i), 3));
        double across_ms = 1e-4 * pow(random_uniform(seed, 3), 3);
        double x = across_ms * tokens[1] * 3 / 4, inside_ms = x / (tokens[2] / 2.0) * random_uniform(seed, 4);
        double ratio = gain(seed % 4 ? tokens[0] : 0, tokens[1], tokens[2], across_ms, inside_ms);
        CHECK(ratio >= 1 - 1e-12);
        most = fmax(most, ratio);
    }
    if (rank == 0) printf("    up to %.3f times as long\n", most);
}

int main(int n_arguments, char** arguments) {
    ranks_start(&n_arguments, &arguments);
    virtual_ranks_open(&machine, RANKS, NODE, 0);
    kernels = virtual_kernels(NULL);
    run_claims_together();
    return ranks_done();
}
