// test_comm_nccl.cc - exchanges between the ranks that `mpirun -n 4` starts, against sums and copies on the host.
//
// Built with the stand-ins of test/emu it runs anywhere. Built by nvcc with the real NCCL it runs on a machine with
// one GPU or more: where ranks share a GPU, each pretends to be a machine of its own and NCCL goes over sockets, at
// some milliseconds an exchange. Failures on any rank count; rank 0 prints.
//
// Tolerances. A sum of `size` terms in an element type with unit roundoff u is off by at most (size - 1) u times the sum
// of magnitudes, in any order, to first order in u; u is 2^-8 for bf16, 2^-24 and 2^-53. The factor 1.02 covers the
// rest, and fp64 gets twice as much, for the sum on the host is no better.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <unistd.h>

extern "C" {
#include "kernels/comm.h"
}
#include "kernels/cuda/cuda.h"
#include "test/test.h"

#ifdef __CUDACC__
enum { EMULATED = 0 };
#else
enum { EMULATED = 1 };
#endif

static const Kernels* k = &cuda_kernels;
static RankIdentity id;
static Comm* world;
static int rank, size;
static char err[ERR_BYTES];

enum {
    GUARD = 64,     // bytes after each buffer that must stay as they are
    PATIENCE = 60,  // seconds that a Comm waits where no rank is missing
    GIVE_UP = 2,    // and where one is
    SOON = 30       // seconds within which a loaded machine should have noticed
};

// ---- memory: a host copy and its device twin

typedef struct Buffer {
    char *host, *device;
    size_t bytes;
} Buffer;

static Buffer buffer(size_t bytes) {
    Buffer b = {(char*)malloc(bytes + GUARD), (char*)k->alloc(bytes + GUARD), bytes};
    memset(b.host, 0xa5, bytes + GUARD);
    k->upload(b.device, b.host, bytes + GUARD, NULL);
    return b;
}

static void to_device(Buffer b) { k->upload(b.device, b.host, b.bytes, NULL); }

// What the device holds, after waiting by the Comm; also checks the guard.
static void to_host(Comm* c, Buffer b) {
    int waited = c->table->wait(c, NULL, err, sizeof err), touched = 0;
    CHECK(waited == 0);
    if (waited) return;
    k->download(b.host, b.device, b.bytes + GUARD, NULL);
    for (size_t i = 0; i < GUARD; i++) touched += b.host[b.bytes + i] != (char)0xa5;
    CHECK(touched == 0);
}

static void free_buffer(Buffer b) {
    free(b.host);
    k->free_memory(b.device);
}

static double get(const void* x, size_t i, DType dt) {
    return dt == DT_F64   ? ((const double*)x)[i]
           : dt == DT_F32 ? ((const float*)x)[i]
                          : bf16_to_float(((const bf16*)x)[i]);
}

// Element i of rank r's input, rounded to dt.
static double value(int r, size_t i, DType dt) {
    double x = random_normal(77 + (uint64_t)r, i);
    return dt == DT_F64 ? x : dt == DT_F32 ? (float)x : bf16_to_float(bf16_from_float((float)x));
}

// Elements first .. first + n of rank r's input.
static void fill(void* x, int r, size_t first, size_t n, DType dt) {
    for (size_t i = 0; i < n; i++) {
        double v = value(r, first + i, dt);
        if (dt == DT_F64) ((double*)x)[i] = v;
        else if (dt == DT_F32) ((float*)x)[i] = (float)v;
        else ((bf16*)x)[i] = bf16_from_float((float)v);
    }
}

// x (n) must be the sum over these ranks of their elements first .. first + n.
static void check_sum(const void* x, size_t first, size_t n, DType dt, const int* ranks, int n_ranks) {
    const double u = dt == DT_F64 ? 2 * ldexp(1, -53) : dt == DT_F32 ? ldexp(1, -24) : ldexp(1, -8);
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        double sum = 0, magnitude = 0;
        for (int r = 0; r < n_ranks; r++) {
            double v = value(ranks[r], first + i, dt);
            sum += v;
            magnitude += fabs(v);
        }
        wrong += !(fabs(get(x, i, dt) - sum) <= 1.02 * (n_ranks - 1) * u * magnitude);
    }
    CHECK(wrong == 0);
}

static const DType dtypes[] = {DT_F32, DT_BF16, DT_F64};
static const size_t counts[] = {0, 1, 3, 1000, 70001};
static int everyone[64];  // 0, 1, 2, ...

// ---- sums

static void all_reduce_is_the_sum_of_all_ranks(void) {
    for (int d = 0; d < COUNT(dtypes); d++)
        for (int i = 0; i < COUNT(counts); i++) {
            size_t n = counts[i];
            Buffer x = buffer(n * dtype_bytes(dtypes[d]));
            fill(x.host, rank, 0, n, dtypes[d]);
            to_device(x);
            world->table->all_reduce(world, x.device, n, dtypes[d], NULL);
            to_host(world, x);
            check_sum(x.host, 0, n, dtypes[d], everyone, size);
            free_buffer(x);
        }
}

static void reduce_scatter_then_all_gather(size_t n, DType dt, int in_place) {
    size_t part = n * dtype_bytes(dt), offset = (size_t)rank * part;
    Buffer in = buffer((size_t)size * part), sum = buffer(part), all = buffer((size_t)size * part);
    char* out = in_place ? in.device + offset : sum.device;
    fill(in.host, rank, 0, (size_t)size * n, dt);
    to_device(in);
    world->table->reduce_scatter(world, out, in.device, n, dt, NULL);
    if (in_place) {
        k->download(sum.host, out, part, NULL);
        check_sum(sum.host, (size_t)rank * n, n, dt, everyone, size);
        world->table->all_gather(world, in.device, out, n, dt, NULL);
        to_host(world, in);
        check_sum(in.host, 0, (size_t)size * n, dt, everyone, size);
    } else {
        to_host(world, sum);
        check_sum(sum.host, (size_t)rank * n, n, dt, everyone, size);
        to_host(world, in);
        check_sum(in.host, 0, (size_t)size * n, dt, &rank, 1);  // as it was
        world->table->all_gather(world, all.device, out, n, dt, NULL);
        to_host(world, all);
        check_sum(all.host, 0, (size_t)size * n, dt, everyone, size);
    }
    free_buffer(in), free_buffer(sum), free_buffer(all);
}

static void reduce_scatter_and_all_gather_make_an_all_reduce(void) {
    for (int d = 0; d < COUNT(dtypes); d++)
        for (int in_place = 0; in_place < 2; in_place++) {
            reduce_scatter_then_all_gather(1, dtypes[d], in_place);
            reduce_scatter_then_all_gather(777, dtypes[d], in_place);
        }
    world->table->reduce_scatter(world, NULL, NULL, 0, DT_F32, NULL);
    world->table->all_gather(world, NULL, NULL, 0, DT_F32, NULL);
}

// The same on every run, and on every rank.
static void sums_have_the_same_bits_every_time(void) {
    enum { N = 5000, RUNS = 3 };
    uint64_t hashes[RUNS], of_all[64];
    for (int d = 0; d < COUNT(dtypes); d++) {
        Buffer x = buffer(N * dtype_bytes(dtypes[d]));
        for (int run = 0; run < RUNS; run++) {
            fill(x.host, rank, 0, N, dtypes[d]);
            to_device(x);
            world->table->all_reduce(world, x.device, N, dtypes[d], NULL);
            to_host(world, x);
            hashes[run] = hash_bytes(x.host, x.bytes, 0);
            CHECK(hashes[run] == hashes[0]);
        }
        free_buffer(x);
        CHECK(world->table->all_gather_host(world, of_all, hashes, sizeof hashes[0], err, sizeof err) == 0);
        for (int r = 0; r < size; r++) CHECK(of_all[r] == hashes[0]);
    }
}

// ---- messages

static char byte_of(int from, int to, size_t i) { return (char)hash64((uint64_t)from << 40 ^ (uint64_t)to << 32 ^ i); }

static void fill_message(char* x, int from, int to, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) x[i] = byte_of(from, to, i);
}

static void check_message(const char* x, int from, int to, size_t bytes) {
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; i++) wrong += x[i] != byte_of(from, to, i);
    CHECK(wrong == 0);
}

// Of some pairs none at all; of others an odd number, or more than what MPI sends at once.
static size_t bytes_between(int from, int to) {
    static const size_t sizes[] = {0, 1003, 1, 200001, 64};
    return sizes[(from * 2 + to) % COUNT(sizes)];
}

static void uneven_all_to_all(void) {
    size_t send_bytes = 0, receive_bytes = 0, none = 0;
    Transfer sends[64], receives[64];
    for (int r = 0; r < size; r++) {
        send_bytes += bytes_between(rank, r);
        receive_bytes += bytes_between(r, rank);
        for (int to = 0; to < size; to++) none += bytes_between(r, to) == 0;
    }
    CHECK(none > 0);
    Buffer from = buffer(send_bytes), to = buffer(receive_bytes);
    size_t f = 0, t = 0;
    for (int r = 0; r < size; r++) {
        sends[r] = {r, from.device + f, bytes_between(rank, r)};
        receives[size - 1 - r] = {r, to.device + t, bytes_between(r, rank)};  // the order of peers is free
        fill_message(from.host + f, rank, r, sends[r].bytes);
        f += bytes_between(rank, r);
        t += bytes_between(r, rank);
    }
    to_device(from);
    world->table->exchange(world, sends, size, receives, size, NULL);
    to_host(world, to);
    for (int r = 0; r < size; r++)
        check_message(to.host + ((char*)receives[size - 1 - r].data - to.device), r, rank, bytes_between(r, rank));
    free_buffer(from), free_buffer(to);
}

static void messages_of_a_pair_match_in_order(void) {
    enum { BYTES = 500, HALF = BYTES / 2 };
    Buffer from = buffer(2 * BYTES), to = buffer(2 * BYTES);
    int other = (rank + 1) % size, before = (rank + size - 1) % size;
    fill_message(from.host, rank, other, BYTES);
    fill_message(from.host + BYTES, rank, rank, BYTES);
    to_device(from);
    char *f = from.device, *t = to.device;
    Transfer sends[] = {{other, f, HALF}, {rank, f + BYTES, HALF},       {other, f, 0}, {other, f + HALF, HALF},
                        {rank, f, 0},     {rank, f + BYTES + HALF, HALF}};
    Transfer receives[] = {
        {rank, t + BYTES, HALF}, {rank, t + BYTES + HALF, HALF}, {before, t, HALF}, {before, t + HALF, HALF}};
    world->table->exchange(world, sends, COUNT(sends), receives, COUNT(receives), NULL);
    to_host(world, to);
    check_message(to.host, before, rank, BYTES);
    check_message(to.host + BYTES, rank, rank, BYTES);
    free_buffer(from), free_buffer(to);
}

// Blocks go round while each rank adds what comes by: the steps of ring attention.
static void ring_steps(void) {
    enum { BYTES = 3000 };
    Buffer block[2] = {buffer(BYTES), buffer(BYTES)};
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    fill_message(block[0].host, rank, 0, BYTES);
    to_device(block[0]);
    for (int step = 0; step < size; step++) {
        Transfer send = {to, block[step % 2].device, BYTES}, receive = {from, block[(step + 1) % 2].device, BYTES};
        world->table->exchange(world, &send, 1, &receive, 1, NULL);
        to_host(world, block[(step + 1) % 2]);
        check_message(block[(step + 1) % 2].host, (rank + size - 1 - step) % size, 0, BYTES);
    }
    free_buffer(block[0]), free_buffer(block[1]);
}

static void ranks_without_messages_need_not_exchange(void) {
    Buffer x = buffer(100);
    int last = size - 1;
    fill_message(x.host, rank, 5, 100);
    to_device(x);
    Transfer message = {rank == 0 ? last : 0, x.device, 100};
    if (rank == 0) world->table->exchange(world, &message, 1, NULL, 0, NULL);
    if (rank == last) world->table->exchange(world, NULL, 0, &message, 1, NULL);
    to_host(world, x);
    check_message(x.host, rank == last ? 0 : rank, 5, 100);
    world->table->exchange(world, NULL, 0, NULL, 0, NULL);
    free_buffer(x);
}

static void broadcast_from_every_root(void) {
    for (int root = 0; root < size; root++) {
        Buffer x = buffer(12345);
        fill_message(x.host, rank, 0, x.bytes);
        to_device(x);
        world->table->broadcast(world, x.device, x.bytes, root, NULL);
        world->table->broadcast(world, x.device, 0, root, NULL);
        to_host(world, x);
        check_message(x.host, root, 0, x.bytes);
        free_buffer(x);
    }
}

// ---- values of the host

static void host_values_of_any_size(void) {
    static const size_t sizes[] = {0, 1, 24, 300001, (3 << 20) + 17};  // the last ones in pieces
    for (int i = 0; i < COUNT(sizes); i++) {
        size_t bytes = sizes[i];
        char *own = (char*)malloc(bytes + 1), *all = (char*)malloc((size_t)size * bytes + 1);
        fill_message(own, rank, i, bytes);
        CHECK(world->table->all_gather_host(world, all, own, bytes, err, sizeof err) == 0);
        for (int r = 0; r < size; r++) check_message(all + (size_t)r * bytes, r, i, bytes);
        CHECK(world->table->broadcast_host(world, own, bytes, size - 1, err, sizeof err) == 0);
        check_message(own, size - 1, i, bytes);
        free(own), free(all);
    }
}

// ---- parts

// A sum over the part must be that over `ranks`, ranks of the world in the part's order.
static void check_part(Comm* part, const int* ranks, int n_ranks) {
    int own = -1, found[64];
    for (int r = 0; r < n_ranks; r++)
        if (ranks[r] == rank) own = r;
    CHECK(part != NULL);
    if (!part) return;
    CHECK(part->size == n_ranks);
    CHECK(part->rank == own);
    CHECK(part->local_rank == id.local_rank && part->local_size == id.local_size);
    CHECK(part->timeout_seconds == PATIENCE);
    CHECK(part->table->all_gather_host(part, found, &rank, sizeof rank, err, sizeof err) == 0);
    for (int r = 0; r < n_ranks; r++) CHECK(found[r] == ranks[r]);
    Buffer x = buffer(999 * sizeof(float));
    fill(x.host, rank, 0, 999, DT_F32);
    to_device(x);
    part->table->all_reduce(part, x.device, 999, DT_F32, NULL);
    to_host(part, x);
    check_sum(x.host, 0, 999, DT_F32, ranks, n_ranks);
    free_buffer(x);
}

static Comm* split(Comm* c, int color, int key) {
    Comm* part = NULL;
    CHECK(c->table->split(c, &part, color, key, err, sizeof err) == 0);
    return part;
}

static void close_part(Comm* part) {
    if (part) part->table->close(part);
}

static void split_into_neighbours(void) {
    int pair = rank / 2, ranks[] = {2 * pair, 2 * pair + 1};
    Comm* part = split(world, pair, 0);
    check_part(part, ranks, MIN(2, size - 2 * pair));
    close_part(part);
    check_part(world, everyone, size);
}

static void split_by_stride_in_order_of_keys(void) {
    int ranks[64], n = 0;
    for (int r = size - 1; r >= 0; r--)
        if (r % 2 == rank % 2) ranks[n++] = r;
    Comm* part = split(world, 7 + rank % 2, -rank);
    check_part(part, ranks, n);
    close_part(part);
}

static void split_leaves_out_negative_colors(void) {
    Comm* part = split(world, rank == 0 ? -5 : 3, 0);
    if (rank == 0) CHECK(part == NULL);
    else check_part(part, everyone + 1, size - 1);
    close_part(part);
}

static void split_into_single_ranks(void) {
    Comm* part = split(world, rank, 0);
    check_part(part, &rank, 1);
    close_part(part);
    Comm* uneven = split(world, rank == 0, 0);  // one alone, the rest together
    if (rank == 0) check_part(uneven, &rank, 1);
    else check_part(uneven, everyone + 1, size - 1);
    close_part(uneven);
    CHECK(split(world, -1, 0) == NULL);
}

static void parts_of_parts_outlive_their_parents(void) {
    Comm *all = split(world, 0, -rank), *part = split(all, rank / 2, 0);
    int pair = rank / 2, ranks[] = {2 * pair + 1, 2 * pair};
    int n = MIN(2, size - 2 * pair);
    close_part(all);
    if (n == 1) check_part(part, &rank, 1);
    else check_part(part, ranks, n);
    close_part(part);
}

// Two streams and two communicators: every rank starts them in one order, nobody waits in between.
static void exchanges_on_two_streams_keep_their_order(void) {
    enum { N = 4096 };
    cudaStream_t second;
    CUDA_CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    Comm* part = split(world, rank / 2, 0);
    Buffer x = buffer(N * sizeof(float));
    size_t wrong = 0;
    fill(x.host, rank, 0, N, DT_F32);
    to_device(x);
    CHECK(part->table->wait(part, NULL, err, sizeof err) == 0);
    part->table->all_reduce(part, x.device, N, DT_F32, NULL);
    world->table->all_reduce(world, x.device, N, DT_F32, (Stream)second);
    CHECK(world->table->wait(world, (Stream)second, err, sizeof err) == 0);
    to_host(world, x);
    for (size_t i = 0; i < N; i++) {  // a pair's sum was counted by each of its ranks
        double sum = 0, magnitude = 0;
        for (int r = 0; r < size; r++) {
            double times = MIN(2, size - r / 2 * 2);
            sum += times * value(r, i, DT_F32), magnitude += times * fabs(value(r, i, DT_F32));
        }
        wrong += !(fabs(get(x.host, i, DT_F32) - sum) <= 1.02 * size * ldexp(1, -24) * magnitude);
    }
    CHECK(wrong == 0);
    close_part(part);
    free_buffer(x);
    CUDA_CHECK(cudaStreamDestroy(second));
}

static void one_rank_alone_copies(void) {
    RankIdentity alone = {0, 1, 0, 1, "alone", "", 0};
    Comm *c = NULL, *part = NULL;
    Buffer from = buffer(100), to = buffer(100);
    char host[4] = {1, 2, 3, 4}, copy[4] = {};
    CHECK(comm_open_nccl(&c, &alone, 5, err, sizeof err) == 0);
    if (!c) return;
    fill_message(from.host, rank, 9, 100);
    to_device(from);
    CHECK(c->rank == 0 && c->size == 1);
    c->table->all_reduce(c, from.device, 25, DT_F32, NULL);
    c->table->broadcast(c, from.device, 100, 0, NULL);
    c->table->reduce_scatter(c, to.device, from.device, 10, DT_F32, NULL);
    c->table->all_gather(c, to.device + 40, from.device + 40, 10, DT_BF16, NULL);
    Transfer sends[] = {{0, from.device + 60, 10}, {0, NULL, 0}, {0, from.device + 70, 30}};
    Transfer receives[] = {{0, to.device + 60, 10}, {0, to.device + 70, 30}};
    c->table->exchange(c, sends, COUNT(sends), receives, COUNT(receives), NULL);
    to_host(c, to);
    check_message(to.host, rank, 9, 100);
    CHECK(c->table->all_gather_host(c, copy, host, sizeof host, err, sizeof err) == 0);
    CHECK(c->table->broadcast_host(c, host, sizeof host, 0, err, sizeof err) == 0);
    CHECK(memcmp(copy, host, sizeof host) == 0);
    CHECK(c->table->split(c, &part, 2, 0, err, sizeof err) == 0 && part && part->size == 1);
    close_part(part);
    CHECK(c->table->split(c, &part, -1, 0, err, sizeof err) == 0 && part == NULL);
    c->table->close(c);
    free_buffer(from), free_buffer(to);
}

// ---- what goes wrong; each claim opens a world of its own

static void open_world(Comm** c, double timeout_seconds) {
    int opened = comm_open_nccl(c, &id, timeout_seconds, err, sizeof err);
    CHECK(opened == 0);
    if (opened) printf("    rank %d: %s\n", rank, err);
}

static void local_ranks_are_counted_where_nobody_tells_them(void) {
    RankIdentity unknown = id;
    Comm* c = NULL;
    unknown.local_rank = unknown.rank;
    unknown.local_size = 0;
    CHECK(comm_open_nccl(&c, &unknown, PATIENCE, err, sizeof err) == 0);
    if (!c) return;
    CHECK(c->local_rank == id.local_rank && c->local_size == id.local_size);
    c->table->close(c);
}

static void nothing_says_where_rank_0_is(void) {
    RankIdentity lost = id;
    Comm* c = NULL;
    lost.source = "torchrun";
    lost.master[0] = 0;
    CHECK(comm_open_nccl(&c, &lost, 5, err, sizeof err) == -1);
    CHECK(c == NULL && strstr(err, "MASTER_ADDR") && strstr(err, "MASTER_PORT"));
}

static void two_ranks_on_one_gpu_are_refused(void) {
    if (!EMULATED) SKIP("NCCL_HOSTID hides that ranks share a GPU");
    Comm* c = NULL;
    setenv("EMU_NCCL_ONE_GPU", "1", 1);
    CHECK(comm_open_nccl(&c, &id, PATIENCE, err, sizeof err) == -1);
    CHECK(c == NULL && strstr(err, "Duplicate GPU") && strstr(err, "CUDA_VISIBLE_DEVICES"));
    unsetenv("EMU_NCCL_ONE_GPU");
}

static void master_address_opens_without_mpi(void) {
    RankIdentity named = id;
    Comm* c = NULL;
    named.source = "torchrun";
    snprintf(named.master, sizeof named.master, "127.0.0.1");
    named.master_port = 29611;
    CHECK(comm_open_nccl(&c, &named, PATIENCE, err, sizeof err) == 0);
    CHECK_STRING(getenv("NCCL_COMM_ID") ? getenv("NCCL_COMM_ID") : "", "127.0.0.1:29611");
    if (c) check_part(c, everyone, size), c->table->close(c);
    unsetenv("NCCL_COMM_ID");
}

static void a_rank_that_does_not_open_is_not_waited_for(void) {
    Comm* c = NULL;
    double start = now_seconds();
    setenv("NCCL_COMM_ID", "127.0.0.1:29612", 1);  // so that nobody waits by MPI
    if (rank != size - 1) {
        CHECK(comm_open_nccl(&c, &id, GIVE_UP, err, sizeof err) == -1);
        CHECK(c == NULL && strstr(err, "opening NCCL") && strstr(err, "missing"));
        CHECK(now_seconds() - start >= GIVE_UP && now_seconds() - start < GIVE_UP + SOON);
    }
    unsetenv("NCCL_COMM_ID");
}

// The others wait no longer than they said, and every later call fails with the same words.
static void a_rank_that_stays_away_is_not_waited_for(void) {
    Comm *c = NULL, *part = NULL, *none = NULL;
    char later[ERR_BYTES] = "", own[8] = "", all[64 * sizeof own];
    open_world(&c, GIVE_UP);
    if (!c) return;
    part = split(c, 0, 0);
    Buffer x = buffer(400);
    double start = now_seconds();
    if (rank != size - 1) {
        c->table->all_reduce(c, x.device, 100, DT_F32, NULL);
        CHECK(c->table->wait(c, NULL, err, sizeof err) == -1);
        CHECK(strstr(err, "not done after 2 s") != NULL);
        CHECK(now_seconds() - start >= GIVE_UP && now_seconds() - start < GIVE_UP + SOON);
        start = now_seconds();
        c->table->all_reduce(c, x.device, 100, DT_F32, NULL);
        c->table->broadcast(c, x.device, 100, 0, NULL);
        CHECK(c->table->wait(c, NULL, later, sizeof later) == -1);
        CHECK_STRING(later, err);
        CHECK(part->table->wait(part, NULL, later, sizeof later) == -1);  // its memory is the world's
        CHECK(c->table->all_gather_host(c, all, own, sizeof own, later, sizeof later) == -1);
        CHECK(c->table->broadcast_host(c, own, sizeof own, 0, later, sizeof later) == -1);
        CHECK(c->table->split(c, &none, 0, 0, later, sizeof later) == -1 && none == NULL);
        CHECK_STRING(later, err);
        CHECK(now_seconds() - start < GIVE_UP);
    } else {
        usleep(2000000 * GIVE_UP);  // and finds nobody
        CHECK(c->table->all_gather_host(c, all, own, sizeof own, err, sizeof err) == -1);
    }
    close_part(part);
    c->table->close(c);
    free_buffer(x);
}

static void a_broken_link_is_told_at_once(void) {
    if (!EMULATED) SKIP("no link of a real machine can be broken here");
    Comm* c = NULL;
    open_world(&c, 10 * SOON);
    if (!c) return;
    setenv("EMU_NCCL_SECONDS", "0.5", 1);
    double start = now_seconds();
    char byte = 0;
    if (rank != 0) {
        CHECK(c->table->broadcast_host(c, &byte, 1, 0, err, sizeof err) == -1);
        CHECK(strstr(err, "network error") && strstr(err, "rank 0") && strstr(err, "another rank ended"));
    }
    CHECK(now_seconds() - start < SOON);
    c->table->close(c);
    unsetenv("EMU_NCCL_SECONDS");
}

// ---- running

// Counts the failures of all ranks; rank 0 prints.
static void run(const char* name, void (*claim)(void)) {
    int failures = 0;
    test_failures_in_claim = 0;
    test_skip_reason = NULL;
    unsetenv("NCCL_COMM_ID");  // opening by MASTER_ADDR sets it
    claim();
    fflush(stdout);
    MPI_Allreduce(&test_failures_in_claim, &failures, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (failures) test_failed++;
    else if (test_skip_reason) test_skipped++;
    else test_passed++;
    if (rank != 0) return;
    if (failures) printf("  FAILED  %s (%d failures on rank 0 of %d)\n", name, test_failures_in_claim, failures);
    else if (test_skip_reason) printf("  skipped %s: %s\n", name, test_skip_reason);
    else printf("  ok      %s\n", name);
    fflush(stdout);
}
#define RUN_TOGETHER(claim) run(#claim, claim)

// Where ranks share a GPU each needs a host name of its own and the network between them.
static void pretend_to_be_machines(void) {
    static const char* const settings[][2] = {
        {"NCCL_NET", "Socket"},    {"NCCL_IB_DISABLE", "1"},    {"NCCL_SOCKET_IFNAME", "lo"},
        {"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"},   {"NCCL_MNNVL_ENABLE", "0"},
        {"NCCL_NVLS_ENABLE", "0"}, {"NCCL_RAS_ENABLE", "0"},    {"NCCL_ALGO", "Ring"},
        {"NCCL_PROTO", "Simple"},  {"NCCL_MAX_NCHANNELS", "1"}, {"NCCL_BUFFSIZE", "1048576"},
    };
    char host[32];
    snprintf(host, sizeof host, "rank%d", rank);
    setenv("NCCL_HOSTID", host, 0);
    for (int i = 0; i < COUNT(settings); i++) setenv(settings[i][0], settings[i][1], 0);
}

// 0 when every rank has a device and the world is open.
static int begin(void) {
    int devices = 0, failed = rank_identity(&id, err, sizeof err), all_failed;
    if (!failed && (id.rank != rank || id.size != size || size < 2 || size > COUNT(everyone)))
        failed = fail(err, sizeof err, "start with mpirun -n 4");
    if (!failed) failed = cuda_find_device(err, sizeof err);
    if (!failed) {
        cudaGetDeviceCount(&devices);
        if (!EMULATED && devices < id.local_size) pretend_to_be_machines();
        CUDA_CHECK(cudaStreamCreateWithFlags(&cuda.stream, cudaStreamNonBlocking));
    }
    MPI_Allreduce(&failed, &all_failed, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (!all_failed) failed = comm_open_nccl(&world, &id, PATIENCE, err, sizeof err);
    if (failed) printf("    rank %d: %s\n", rank, err), fflush(stdout);
    MPI_Allreduce(&failed, &all_failed, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all_failed;
}

static void every_rank_opens_the_world(void) {
    CHECK(begin() == 0);
    for (int r = 0; r < COUNT(everyone); r++) everyone[r] = r;
}

static void run_exchanges(void) {
    RUN_TOGETHER(all_reduce_is_the_sum_of_all_ranks);
    RUN_TOGETHER(reduce_scatter_and_all_gather_make_an_all_reduce);
    RUN_TOGETHER(sums_have_the_same_bits_every_time);
    RUN_TOGETHER(uneven_all_to_all);
    RUN_TOGETHER(messages_of_a_pair_match_in_order);
    RUN_TOGETHER(ring_steps);
    RUN_TOGETHER(ranks_without_messages_need_not_exchange);
    RUN_TOGETHER(broadcast_from_every_root);
    RUN_TOGETHER(host_values_of_any_size);
    RUN_TOGETHER(split_into_neighbours);
    RUN_TOGETHER(split_by_stride_in_order_of_keys);
    RUN_TOGETHER(split_leaves_out_negative_colors);
    RUN_TOGETHER(split_into_single_ranks);
    RUN_TOGETHER(parts_of_parts_outlive_their_parents);
    RUN_TOGETHER(exchanges_on_two_streams_keep_their_order);
    RUN_TOGETHER(one_rank_alone_copies);
}

static void run_failures(void) {
    RUN_TOGETHER(local_ranks_are_counted_where_nobody_tells_them);
    RUN_TOGETHER(nothing_says_where_rank_0_is);
    RUN_TOGETHER(two_ranks_on_one_gpu_are_refused);
    RUN_TOGETHER(master_address_opens_without_mpi);
    RUN_TOGETHER(a_rank_that_does_not_open_is_not_waited_for);
    RUN_TOGETHER(a_rank_that_stays_away_is_not_waited_for);
    RUN_TOGETHER(a_broken_link_is_told_at_once);
}

int main(int n_arguments, char** arguments) {
    MPI_Init(&n_arguments, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank != 0) dup2(STDERR_FILENO, STDOUT_FILENO);  // what fails there is no result line
    RUN_TOGETHER(every_rank_opens_the_world);
    if (test_failed == 0) {
        run_exchanges();
        world->table->close(world);
        run_failures();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return rank == 0 ? test_done() : test_failed > 0;
}
