// comm_claims.h - what every Comm promises, whatever carries it: claims that test_comm.c makes over MPI, virtual ranks
// and one rank, and test_comm_nccl.cc over NCCL, emulated or not. They look at `world`, of which this rank is `own` of
// n_ranks, with memory of `k`. Also C++.
//
// Sums on the host are compared bit for bit: the order of ranks, in the element type, bf16 in fp32. Elsewhere the order
// is free: a sum of R terms in an element type with unit roundoff u is off by at most (R - 1) u times the sum of
// magnitudes, to first order in u; u is 2^-8 for bf16, 2^-24 and 2^-53. The factor 1.02 covers the rest, and fp64 gets
// twice as much, for the sum on the host is no better.
#pragma once
#include "test/ranks.h"

enum {
    MOST_RANKS = 64,
    GUARD = 64,    // bytes after each buffer that must stay as they are
    PATIENCE = 60  // seconds that a Comm waits where no rank is missing
};

static const Kernels* k;
static int own, n_ranks;
static int everyone[MOST_RANKS];  // 0, 1, 2, ...
static char err[ERR_BYTES];

// Another Comm of all ranks like `world`; NULL, with words on stdout, where it cannot be opened.
static Comm* open_another(double timeout_seconds);

static void use_world(Comm* c, const Kernels* kernels) {
    world = c, k = kernels;
    own = c->rank, n_ranks = c->size;
    for (int r = 0; r < MOST_RANKS; r++) everyone[r] = r;
}

// ---- memory: on the device, with a twin on the host and a guard behind it

typedef struct Buffer {
    char *host, *device;
    size_t bytes;
} Buffer;

static Buffer buffer(size_t bytes) {
    Buffer b = {(char*)malloc(bytes + GUARD), (char*)k->alloc(bytes + GUARD), bytes};
    if (!b.host || !b.device) die("no memory for %zu bytes", bytes);
    memset(b.host, 0xa5, bytes + GUARD);
    k->upload(b.device, b.host, bytes + GUARD, NULL);
    return b;
}

static void to_device(Buffer b) { k->upload(b.device, b.host, b.bytes, NULL); }

// What the device holds when s has come so far; also checks the guard.
static void fetch(Buffer b, Stream s) {
    int touched = 0;
    k->download(b.host, b.device, b.bytes + GUARD, s);
    for (size_t i = 0; i < GUARD; i++) touched += b.host[b.bytes + i] != (char)0xa5;
    CHECK(touched == 0);
}

// The same after waiting by the Comm.
static void to_host(Comm* c, Buffer b) {
    char words[ERR_BYTES] = "";
    int waited = c->table->wait(c, NULL, words);
    CHECK_STRING(words, "");
    if (waited == 0) fetch(b, NULL);
}

static void free_buffer(Buffer b) {
    free(b.host);
    k->free_memory(b.device);
}

// ---- numbers, different for each rank

static double get(const void* x, size_t i, DType dt) {
    return dt == DT_F64   ? ((const double*)x)[i]
           : dt == DT_F32 ? ((const float*)x)[i]
                          : bf16_to_float(((const bf16*)x)[i]);
}

static double rounded(double x, DType dt) {
    return dt == DT_F64 ? x : dt == DT_F32 ? (float)x : bf16_to_float(bf16_from_float((float)x));
}

// Element i of rank r's input.
static double value(int r, size_t i, DType dt) {
    return rounded((double)(hash64((uint64_t)r << 40 ^ i) >> 11) * ldexp(1, -50) - 4, dt);
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
static void check_sum(const void* x, size_t first, size_t n, DType dt, const int* of, int n_of) {
    const double u = dt == DT_F64 ? 2 * ldexp(1, -53) : dt == DT_F32 ? ldexp(1, -24) : ldexp(1, -8);
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        double sum = 0, magnitude = 0, found = get(x, i, dt);
        float narrow = 0;
        for (int r = 0; r < n_of; r++) {
            double v = value(of[r], first + i, dt);
            sum += v, narrow += (float)v, magnitude += fabs(v);
        }
        wrong += k->on_host ? found != rounded(dt == DT_F64 ? sum : narrow, dt)
                            : !(fabs(found - sum) <= 1.02 * (n_of - 1) * u * magnitude);
    }
    CHECK(wrong == 0);
}

// ---- messages: their bytes follow from who sends them to whom, and a number

static void fill_message(char* x, int from, int to, int number, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = hash64((uint64_t)from << 52 ^ (uint64_t)to << 40 ^ (uint64_t)number << 30 ^ i);
        memcpy(x + i, &word, MIN(bytes - i, sizeof word));
    }
}

static void check_message(const char* x, int from, int to, int number, size_t bytes) {
    char* expected = (char*)malloc(bytes + 1);
    fill_message(expected, from, to, number, bytes);
    CHECK(memcmp(x, expected, bytes) == 0);
    free(expected);
}

static Transfer message(int peer, void* data, size_t bytes) {
    Transfer t = {peer, data, bytes};
    return t;
}

// ---- one of several communications that are under way at once: its kind depends on i, each has memory of its own

typedef struct Job {
    Comm* c;
    int kind;  // 0: reduce-scatter, 1: all-gather, 2: a step of a ring
    size_t n;
    Buffer in, out;
    Request request;
} Job;

static Job begin_job(Comm* c, int i) {
    size_t n = 100 + 37 * (size_t)i, all = (size_t)c->size * n;
    int kind = i % 3;
    Job j = {c, kind, n, buffer((kind == 0 ? all : n) * sizeof(float)), buffer((kind == 1 ? all : n) * sizeof(float)),
             0};
    fill(j.in.host, own, 0, j.in.bytes / sizeof(float), DT_F32);
    to_device(j.in);
    Transfer send = message((c->rank + 1) % c->size, j.in.device, j.in.bytes);
    Transfer receive = message((c->rank + c->size - 1) % c->size, j.out.device, j.out.bytes);
    j.request = kind == 0   ? c->table->begin_reduce_scatter(c, j.out.device, j.in.device, n, DT_F32, NULL)
                : kind == 1 ? c->table->begin_all_gather(c, j.out.device, j.in.device, n, DT_F32, NULL)
                            : c->table->begin_send_receive(c, &send, 1, &receive, 1, NULL);
    memset(&send, 0xff, sizeof send);  // the lists are the caller's again
    if (!c->overlap) CHECK(j.request == 0);
    return j;
}

// Ends it on the stream, and checks it there: no other wait may help. Its hash. of: those of its Comm in the world.
static uint64_t end_job(Job j, const int* of, Stream s) {
    int before = (j.c->rank + j.c->size - 1) % j.c->size;
    j.c->table->end(j.c, j.request, s);
    fetch(j.out, s);
    if (j.kind == 0) check_sum(j.out.host, (size_t)j.c->rank * j.n, j.n, DT_F32, of, j.c->size);
    for (int r = 0; r < j.c->size && j.kind == 1; r++)
        check_sum(j.out.host + (size_t)r * j.n * sizeof(float), 0, j.n, DT_F32, &of[r], 1);
    if (j.kind == 2) check_sum(j.out.host, 0, j.n, DT_F32, &of[before], 1);
    uint64_t hash = hash_bytes(j.out.host, j.out.bytes, 0);
    free_buffer(j.in), free_buffer(j.out);
    return hash;
}

// ---- parts

static Comm* split(Comm* c, int color, int key) {
    Comm* part = NULL;
    CHECK(c->table->split(c, &part, color, key, err) == 0);
    if (part) CHECK(part->overlap == c->overlap && part->timer == NULL);
    return part;
}

static void close_part(Comm* part) {
    if (part) part->table->close(part);
}

// That it is of `of` (n_of), ranks of the world in the part's order, and adds up over these.
static void check_part(Comm* part, const int* of, int n_of) {
    int place = -1, found[MOST_RANKS];
    for (int r = 0; r < n_of; r++)
        if (of[r] == own) place = r;
    CHECK(part != NULL);
    if (!part) return;
    CHECK(part->size == n_of && part->rank == place);
    CHECK(part->local_size == world->local_size);
    CHECK(part->timeout_seconds == world->timeout_seconds);
    CHECK(part->table->all_gather_host(part, found, &own, sizeof own, err) == 0);
    for (int r = 0; r < n_of; r++) CHECK(found[r] == of[r]);
    Buffer x = buffer(3001 * sizeof(float));
    fill(x.host, own, 0, 3001, DT_F32);
    to_device(x);
    part->table->all_reduce(part, x.device, 3001, DT_F32, NULL);
    to_host(part, x);
    check_sum(x.host, 0, 3001, DT_F32, of, n_of);
    free_buffer(x);
}

static void parts_have_their_ranks_in_the_order_of_keys(void) {
    int pair[2] = {own / 2 * 2, own / 2 * 2 + 1}, stride[MOST_RANKS], n = 0;
    for (int r = n_ranks - 1; r >= 0; r--)
        if (r % 2 == own % 2) stride[n++] = r;
    Comm *pairs = split(world, own / 2, 0), *strides = split(world, 7 + own % 2, -own);
    check_part(pairs, pair, MIN(2, n_ranks - pair[0]));
    check_part(strides, stride, n);
    close_part(pairs), close_part(strides);
    check_part(world, everyone, n_ranks);
}

static void parts_may_have_one_rank_or_none(void) {
    Comm *part = split(world, own, 0), *uneven = split(world, own == 0, 0);  // one alone, the rest together
    Comm* without = split(world, own == 0 ? -5 : 3, 0);
    check_part(part, &own, 1);
    if (own == 0) check_part(uneven, &own, 1);
    else check_part(uneven, everyone + 1, n_ranks - 1);
    if (own == 0) CHECK(without == NULL);
    else check_part(without, everyone + 1, n_ranks - 1);
    close_part(part), close_part(uneven), close_part(without);
    CHECK(split(world, -1, 0) == NULL);
}

static void parts_of_parts_outlive_their_parents(void) {
    int first = own / 2 * 2, pair[2] = {first + 1, first};
    Comm *all = split(world, 0, -own), *part = split(all, own / 2, 0);
    close_part(all);
    if (first + 1 == n_ranks) check_part(part, &own, 1);
    else check_part(part, pair, 2);
    close_part(part);
}

// ---- every collective, of every type and size

static const DType dtypes[] = {DT_F32, DT_BF16, DT_F64};
static const size_t counts[] = {0, 1, 3, 511, 777, 1024, 1025, 70001};  // from nothing to several chunks; odd

static void check_collectives(size_t n, DType dt, int in_place) {
    size_t part = n * dtype_bytes(dt), all = (size_t)n_ranks * part;
    Buffer x = buffer(part), in = buffer(all), sum = buffer(part), gathered = buffer(all);
    char* out = in_place ? in.device + (size_t)own * part : sum.device;
    fill(x.host, own, 0, n, dt), to_device(x);
    fill(in.host, own, 0, (size_t)n_ranks * n, dt), to_device(in);
    world->table->all_reduce(world, x.device, n, dt, NULL);
    to_host(world, x);
    check_sum(x.host, 0, n, dt, everyone, n_ranks);
    comm_reduce_scatter(world, out, in.device, n, dt, NULL);
    CHECK(world->table->wait(world, NULL, err) == 0);
    k->download(sum.host, out, part, NULL);
    check_sum(sum.host, (size_t)own * n, n, dt, everyone, n_ranks);
    to_host(world, in);
    if (!in_place) check_sum(in.host, 0, (size_t)n_ranks * n, dt, &own, 1);  // as it was
    Buffer to = in_place ? in : gathered;
    comm_all_gather(world, to.device, out, n, dt, NULL);
    to_host(world, to);
    check_sum(to.host, 0, (size_t)n_ranks * n, dt, everyone, n_ranks);
    free_buffer(x), free_buffer(in), free_buffer(sum), free_buffer(gathered);
}

static void sums_and_gathers_are_those_of_all_ranks(void) {
    int overlap = world->overlap;
    for (world->overlap = 0; world->overlap < 2; world->overlap++)
        for (int d = 0; d < COUNT(dtypes); d++)
            for (int i = 0; i < COUNT(counts); i++) check_collectives(counts[i], dtypes[d], (i + world->overlap) % 2);
    world->overlap = overlap;
}

// The same on every run, and on every rank.
static void sums_have_the_same_bits_every_time(void) {
    enum { N = 5000, RUNS = 3 };
    uint64_t hashes[RUNS], of_all[MOST_RANKS];
    for (int d = 0; d < COUNT(dtypes); d++) {
        Buffer x = buffer(N * dtype_bytes(dtypes[d]));
        for (int run = 0; run < RUNS; run++) {
            fill(x.host, own, 0, N, dtypes[d]);
            to_device(x);
            world->table->all_reduce(world, x.device, N, dtypes[d], NULL);
            to_host(world, x);
            hashes[run] = hash_bytes(x.host, x.bytes, 0);
            CHECK(hashes[run] == hashes[0]);
        }
        free_buffer(x);
        CHECK(world->table->all_gather_host(world, of_all, hashes, sizeof hashes[0], err) == 0);
        for (int r = 0; r < n_ranks; r++) CHECK(of_all[r] == hashes[0]);
    }
}

static void values_of_one_rank_come_to_all_and_of_all_to_each(void) {
    static const size_t sizes[] = {0, 1, 24, 12345, 300001, (3 << 20) + 17};  // in pieces, where there are pieces
    for (int i = 0; i < COUNT(sizes); i++) {
        size_t bytes = sizes[i];
        char *mine = (char*)malloc(bytes + 1), *all = (char*)malloc((size_t)n_ranks * bytes + 1);
        fill_message(mine, own, 0, i, bytes);
        CHECK(world->table->all_gather_host(world, all, mine, bytes, err) == 0);
        for (int r = 0; r < n_ranks; r++) check_message(all + (size_t)r * bytes, r, 0, i, bytes);
        CHECK(world->table->broadcast_host(world, mine, bytes, i % n_ranks, err) == 0);
        check_message(mine, i % n_ranks, 0, i, bytes);
        free(mine), free(all);
    }
}

static void nobody_passes_a_barrier_before_the_last_comes(void) {
    for (int late = 0; late < n_ranks; late++) {
        double came, all_came[MOST_RANKS];
        if (own == late) ranks_sleep(0.05);
        came = now_seconds();  // of one clock: all ranks are on this machine
        CHECK(world->table->barrier(world, err) == 0);
        double left = now_seconds();
        CHECK(world->table->all_gather_host(world, all_came, &came, sizeof came, err) == 0);
        for (int r = 0; r < n_ranks; r++) CHECK(left >= all_came[r]);
    }
}

// ---- messages

// Of some pairs none at all; of others an odd number, or more than what MPI sends at once.
static size_t bytes_between(int from, int to, int number) {
    static const size_t sizes[] = {0, 1003, 1, 200001, 64, 17};
    return sizes[(from * 2 + to + number) % COUNT(sizes)];
}

static void check_all_to_all(int number) {
    Transfer sends[MOST_RANKS], receives[MOST_RANKS];
    size_t out = 0, in = 0, f = 0, t = 0;
    for (int r = 0; r < n_ranks; r++) out += bytes_between(own, r, number), in += bytes_between(r, own, number);
    Buffer from = buffer(out), to = buffer(in);
    for (int r = 0; r < n_ranks; r++) {
        sends[r] = message(r, from.device + f, bytes_between(own, r, number));
        receives[n_ranks - 1 - r] = message(r, to.device + t, bytes_between(r, own, number));  // the order is free
        fill_message(from.host + f, own, r, number, sends[r].bytes);
        f += bytes_between(own, r, number), t += bytes_between(r, own, number);
    }
    to_device(from);
    comm_send_receive(world, sends, n_ranks, receives, n_ranks, NULL);
    to_host(world, to);
    for (int r = 0; r < n_ranks; r++) {
        const char* came = to.host + ((char*)receives[n_ranks - 1 - r].data - to.device);
        check_message(came, r, own, number, bytes_between(r, own, number));
    }
    free_buffer(from), free_buffer(to);
}

static void ragged_all_to_all(void) {
    int overlap = world->overlap;
    for (int number = 0; number < 12; number++) world->overlap = number % 2, check_all_to_all(number);
    world->overlap = overlap;
}

static void messages_of_a_pair_match_in_order(void) {
    enum { BYTES = 5000, HALF = BYTES / 2 };
    Buffer from = buffer(2 * BYTES), to = buffer(2 * BYTES);
    int other = (own + 1) % n_ranks, before = (own + n_ranks - 1) % n_ranks;
    if (n_ranks == 1) return;
    fill_message(from.host, own, other, 0, BYTES);
    fill_message(from.host + BYTES, own, own, 1, BYTES);
    to_device(from);
    char *f = from.device, *t = to.device;
    Transfer sends[] = {{other, f, HALF}, {own, f + BYTES, HALF},       {other, f, 0}, {other, f + HALF, HALF},
                        {own, f, 0},      {own, f + BYTES + HALF, HALF}};
    Transfer receives[] = {
        {own, t + BYTES, HALF}, {own, t + BYTES + HALF, HALF}, {before, t, HALF}, {before, t + HALF, HALF}};
    comm_send_receive(world, sends, COUNT(sends), receives, COUNT(receives), NULL);
    to_host(world, to);
    check_message(to.host, before, own, 0, BYTES);
    check_message(to.host + BYTES, own, own, 1, BYTES);
    free_buffer(from), free_buffer(to);
}

// Blocks go round while the next step is already on its way: the steps of ring attention.
static void ring_steps(void) {
    enum { BYTES = 30001 };
    Buffer block[2] = {buffer(BYTES), buffer(BYTES)};
    int to = (own + 1) % n_ranks, from = (own + n_ranks - 1) % n_ranks;
    fill_message(block[0].host, own, 0, 0, BYTES);
    to_device(block[0]);
    for (int step = 0; step < n_ranks; step++) {
        Transfer send = message(to, block[step % 2].device, BYTES);
        Transfer receive = message(from, block[(step + 1) % 2].device, BYTES);
        Request request = world->table->begin_send_receive(world, &send, 1, &receive, 1, NULL);
        fetch(block[step % 2], NULL);  // reading is allowed
        check_message(block[step % 2].host, (own + n_ranks - step) % n_ranks, 0, 0, BYTES);
        world->table->end(world, request, NULL);
    }
    fetch(block[n_ranks % 2], NULL);
    check_message(block[n_ranks % 2].host, own, 0, 0, BYTES);
    free_buffer(block[0]), free_buffer(block[1]);
}

static void ranks_without_messages_need_not_communicate(void) {
    Buffer x = buffer(100);
    int last = n_ranks - 1;
    fill_message(x.host, own, 5, 0, 100);
    to_device(x);
    Transfer t = message(own == 0 ? last : 0, x.device, 100);
    if (last > 0 && own == 0) comm_send_receive(world, &t, 1, NULL, 0, NULL);
    if (last > 0 && own == last) comm_send_receive(world, NULL, 0, &t, 1, NULL);
    to_host(world, x);
    check_message(x.host, own == last ? 0 : own, 5, 0, 100);
    comm_send_receive(world, NULL, 0, NULL, 0, NULL);
    free_buffer(x);
}

// Of the world and of a part at the same time, each rank in an order of its own.
static void communications_end_in_any_order_with_the_same_bits(void) {
    enum { JOBS = 12 };
    uint64_t hashes[2][JOBS];
    Job jobs[JOBS];
    int of[MOST_RANKS], n = 0, overlap = world->overlap;
    for (int r = own % 2; r < n_ranks; r += 2) of[n++] = r;
    for (world->overlap = 0; world->overlap < 2; world->overlap++) {
        Comm* part = split(world, own % 2, 0);
        for (int i = 0; i < JOBS; i++) jobs[i] = begin_job(i / 3 % 2 ? part : world, i);
        for (int i = 0; i < JOBS; i++) {
            int next = (own + 1 + (own % 2 ? 5 : 7) * i) % JOBS;  // all of them, for 12 has no such factor
            hashes[world->overlap][next] = end_job(jobs[next], jobs[next].c == world ? everyone : of, NULL);
        }
        close_part(part);
    }
    for (int i = 0; i < JOBS; i++) CHECK(hashes[0][i] == hashes[1][i]);
    world->overlap = overlap;
}

// More than a transport keeps room or events for; `wait` does not end them.
static void more_requests_than_there_is_room_for(void) {
    enum { JOBS = 300 };
    static Job jobs[JOBS];
    int overlap = world->overlap;
    world->overlap = 1;
    for (int i = 0; i < JOBS; i++) jobs[i] = begin_job(world, i % 3);
    CHECK(world->table->wait(world, NULL, err) == 0);
    for (int i = 0; i < JOBS; i++) end_job(jobs[i], everyone, NULL);
    world->overlap = overlap;
}

// ---- what is counted, by purpose and by link

// What was counted since the last check: for the purpose, and for rank r of the Comm bytes[r]; nothing else.
static void check_sent(Comm* c, CommPurpose purpose, const size_t* bytes) {
    uint64_t expected[N_PURPOSES][2];
    memset(expected, 0, sizeof expected);
    for (int r = 0; r < c->size; r++)
        if (r != c->rank) expected[purpose][c->node[r] != c->node[c->rank]] += bytes[r];
    CHECK(memcmp(c->sent, expected, sizeof expected) == 0);
    memset(c->sent, 0, sizeof c->sent);
}

static void check_sent_to_each(Comm* c, CommPurpose purpose, size_t bytes) {
    size_t each[MOST_RANKS];
    for (int r = 0; r < c->size; r++) each[r] = bytes;
    check_sent(c, purpose, each);
}

static void check_counts_of_sends(Comm* c) {
    Buffer in = buffer(MOST_RANKS * 1000), out = buffer(MOST_RANKS * 1000);
    Transfer sends[MOST_RANKS], receives[MOST_RANKS];
    size_t bytes[MOST_RANKS];
    for (int r = 0; r < c->size; r++) {
        sends[r] = message(r, in.device + 1000 * r, (size_t)(10 * c->rank + r));
        receives[r] = message(r, out.device + 1000 * r, (size_t)(10 * r + c->rank));
        bytes[r] = sends[r].bytes;
    }
    c->purpose = COMM_ULYSSES;
    comm_send_receive(c, sends, c->size, receives, c->size, NULL);
    check_sent(c, COMM_ULYSSES, bytes);
    c->purpose = COMM_GRADIENTS;
    comm_reduce_scatter(c, out.device, in.device, 10, DT_BF16, NULL);
    check_sent_to_each(c, COMM_GRADIENTS, 20);
    c->purpose = COMM_PARAMETERS;
    comm_all_gather(c, out.device, in.device, 7, DT_F64, NULL);
    check_sent_to_each(c, COMM_PARAMETERS, 56);
    c->purpose = COMM_RING;
    c->table->all_reduce(c, in.device, 1001, DT_F32, NULL);
    check_sent_to_each(c, COMM_RING, 2 * 4 * CEIL_DIV((size_t)1001, (size_t)c->size));
    c->purpose = COMM_OTHER;
    comm_all_gather(c, out.device, in.device, 0, DT_F64, NULL);
    check_sent_to_each(c, COMM_OTHER, 0);
    to_host(c, out);
    free_buffer(in), free_buffer(out);
}

// As comm.h says, with and without overlap, and values of the host for one purpose only.
static void check_counts(Comm* c) {
    char host[MOST_RANKS * 24] = {0};
    check_sent_to_each(c, COMM_OTHER, 0);  // whatever opening it took
    for (c->overlap = 0; c->overlap < 2; c->overlap++) check_counts_of_sends(c);
    c->overlap = 0;
    c->purpose = COMM_ULYSSES;
    CHECK(c->table->all_gather_host(c, host, "twenty-four bytes, or so", 24, err) == 0);
    check_sent_to_each(c, COMM_HOST, 24);
    CHECK(c->table->broadcast_host(c, host, 5, 0, err) == 0);
    check_sent_to_each(c, COMM_HOST, c->rank == 0 ? 5 : 0);
    CHECK(c->table->barrier(c, err) == 0);
    Comm* part = split(c, 0, 0);
    check_sent_to_each(c, COMM_ULYSSES, 0);
    close_part(part);
    c->purpose = COMM_OTHER;
}

// Parts number the nodes of their own ranks: here in the order in which their ranks, backwards, come to them.
static void check_nodes(int ranks_of_node) {
    char text[16];
    snprintf(text, sizeof text, "%d", ranks_of_node);
    setenv("RAGGED_NODE_SIZE", text, 1);
    Comm* c = open_another(PATIENCE);
    unsetenv("RAGGED_NODE_SIZE");
    if (!c) return;
    for (int r = 0; r < n_ranks; r++) CHECK(c->node[r] == r / ranks_of_node);
    CHECK(c->local_size == world->local_size);
    check_counts(c);
    Comm *backwards = split(c, 0, -own), *stride = split(c, own % 2, -own);
    for (int r = 0; r < n_ranks; r++)
        CHECK(backwards->node[r] == (n_ranks - 1) / ranks_of_node - (n_ranks - 1 - r) / ranks_of_node);
    for (int r = 1; r < stride->size; r++) {
        int last = n_ranks - 1 - (n_ranks - 1 - own) % 2, above = last - 2 * (r - 1), here = above - 2;
        CHECK(stride->node[r] - stride->node[r - 1] == (above / ranks_of_node != here / ranks_of_node));
    }
    CHECK(stride->node[0] == 0);
    check_counts(backwards);
    check_counts(stride);
    close_part(backwards), close_part(stride);
    c->table->close(c);
}

static void bytes_are_counted_by_purpose_and_node(void) {
    for (int ranks_of_node = 1; ranks_of_node <= MIN(n_ranks, 4); ranks_of_node++) check_nodes(ranks_of_node);
}

static void a_node_of_no_ranks_is_refused(void) {
    static const char* const wrong[] = {"0", "-2", "two", "2x", "99999999999"};
    RankIdentity id;
    CHECK(ranks_identity(&id, err) == 0);
    for (int i = 0; i < COUNT(wrong); i++) {
        Comm* c = NULL;
        setenv("RAGGED_NODE_SIZE", wrong[i], 1);
        int opened = k->on_host ? comm_open_host(&c, &id, PATIENCE, err) : comm_open(&c, k, &id, PATIENCE, err);
        CHECK(opened == -1 && c == NULL && strstr(err, "RAGGED_NODE_SIZE") && strstr(err, wrong[i]));
    }
    unsetenv("RAGGED_NODE_SIZE");
}

// ---- what the timer is told: each wait for other ranks, and nothing else

static Timer timer;

// A step of the world from here on.
static void begin_timing(double drag) {
    CHECK(world->table->barrier(world, err) == 0);
    timer.on = 1;
    timer_slow_down(&timer, 1, drag);
    world->timer = &timer;
    timer_begin(&timer, k, NULL);
    timer_enter(&timer, TIME_LINEAR, NULL);
}

static void end_timing(double seconds[N_TIMES]) {
    CHECK(timer_enter(&timer, TIME_LINEAR, NULL) == TIME_LINEAR);  // every entry came back to it
    timer_read(&timer, seconds, NULL);
    world->timer = NULL;
}

// Each once, those that begin and end included.
static void every_kind_of_communication(Buffer x, Buffer y, size_t n) {
    char bytes[MOST_RANKS] = {0};
    Transfer send = message((own + 1) % n_ranks, x.device, 4 * n);
    Transfer receive = message((own + n_ranks - 1) % n_ranks, y.device, 4 * n);
    world->table->all_reduce(world, x.device, n, DT_F32, NULL);
    comm_reduce_scatter(world, y.device, x.device, n, DT_F32, NULL);
    comm_all_gather(world, x.device, y.device, n, DT_F32, NULL);
    comm_send_receive(world, &send, n > 0, &receive, n > 0, NULL);
    CHECK(world->table->all_gather_host(world, bytes, bytes, n, err) == 0);
    CHECK(world->table->broadcast_host(world, bytes, n, 0, err) == 0);
}

// A begun one when it ends. What has nothing to send does not cut, and a rank alone waits for nobody.
static void each_communication_that_is_waited_for_cuts_a_step_once(void) {
    double seconds[N_TIMES];
    Buffer x = buffer(MOST_RANKS * sizeof(float)), y = buffer(MOST_RANKS * sizeof(float));
    int overlap = world->overlap, n_waits = world->size > 1 ? 6 + 2 : 0;
    for (world->overlap = 0; world->overlap < 2; world->overlap++) {
        begin_timing(0);
        every_kind_of_communication(x, y, 1);
        every_kind_of_communication(x, y, 0);
        CHECK(world->table->barrier(world, err) == 0);
        CHECK(world->table->wait(world, NULL, err) == 0);
        end_timing(seconds);
        CHECK(timer.n_segments == n_waits + 1);
    }
    world->overlap = overlap;
    free_buffer(x), free_buffer(y);
}

// In a world that computes in lock step the wall's clock is the same on all ranks; the last one computes half a second
// longer, and the others wait for it. With a drag of 6 it computes 0.1 s and stretches it: also a communication that
// only begins must be that late, and is none of its own waits. Streams that are late (test/emu) come to the first mark
// only after the sleep.
static void check_late(double sleep, double drag, double least, double most) {
    double seconds[N_TIMES];
    int overlap = world->overlap, late = own == n_ranks - 1, marks_are_late = getenv("EMU_STREAMS") != NULL;
    Buffer x = buffer(MOST_RANKS * sizeof(float));
    for (world->overlap = 0; world->overlap < 2; world->overlap++) {
        begin_timing(late ? drag : 1);
        double exposed = world->exposed_seconds;
        if (late || drag > 1) ranks_sleep(sleep);
        comm_all_gather(world, x.device, x.device + (size_t)own * sizeof(float), 1, DT_F32, NULL);
        end_timing(seconds);
        exposed = world->exposed_seconds - exposed;
        CHECK(late && (drag > 1 || !marks_are_late) ? seconds[TIME_LINEAR] >= least : seconds[TIME_LINEAR] < most);
        CHECK(late ? seconds[TIME_WAIT] < 0.2 && exposed < 0.3 : seconds[TIME_WAIT] > 0.3);
    }
    world->overlap = overlap;
    free_buffer(x);
}

static void timers_tell_which_rank_is_late(void) { check_late(0.5, 1, 0.5, 0.2); }
static void an_injected_straggler_makes_the_others_wait(void) { check_late(0.1, 6, 0.5, 0.3); }

// ---- running

static void claim_collectives(void) {
    RUN_TOGETHER(sums_and_gathers_are_those_of_all_ranks);
    RUN_TOGETHER(sums_have_the_same_bits_every_time);
    RUN_TOGETHER(values_of_one_rank_come_to_all_and_of_all_to_each);
    RUN_TOGETHER(nobody_passes_a_barrier_before_the_last_comes);
    RUN_TOGETHER(ragged_all_to_all);
    RUN_TOGETHER(messages_of_a_pair_match_in_order);
    RUN_TOGETHER(ring_steps);
    RUN_TOGETHER(ranks_without_messages_need_not_communicate);
    RUN_TOGETHER(communications_end_in_any_order_with_the_same_bits);
    RUN_TOGETHER(more_requests_than_there_is_room_for);
    RUN_TOGETHER(parts_have_their_ranks_in_the_order_of_keys);
    RUN_TOGETHER(parts_may_have_one_rank_or_none);
    RUN_TOGETHER(parts_of_parts_outlive_their_parents);
}

static void claim_timers(void) {
    RUN_TOGETHER(each_communication_that_is_waited_for_cuts_a_step_once);
    if (n_ranks == 1) return;
    RUN_TOGETHER(timers_tell_which_rank_is_late);
    RUN_TOGETHER(an_injected_straggler_makes_the_others_wait);
}
