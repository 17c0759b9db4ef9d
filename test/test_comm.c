// test_comm.c - collectives between ranks in host memory: each entry of the table, orders, counts, parts.
//
//   mpirun -n 1, 2, 3, 4 or 8 build/release/test/test_comm
//
// Sums are compared bit for bit: the transport promises the order of ranks, in the element type, bf16 in fp32.
#include "test/comm_timer_checks.h"
#include "test/part_checks.h"

enum { GUARD = 64 };

// A rank-independent choice of 0 .. below - 1.
static int choose(uint64_t seed, uint64_t index, int below) {
    return (int)(hash64(hash64(seed) ^ index) % (uint64_t)below);
}

// ---- memory with a guard behind it

static char* buffer(size_t bytes) {
    char* x = (char*)malloc(bytes + GUARD);
    if (!x) die("no memory for %zu bytes", bytes);
    memset(x, 0xa5, bytes + GUARD);
    return x;
}

static void release(char* x, size_t bytes) {
    int touched = 0;
    for (int i = 0; i < GUARD; i++) touched += x[bytes + (size_t)i] != (char)0xa5;
    CHECK(touched == 0);
    free(x);
}

// ---- values: element i of rank r's input

static double value(int r, size_t i, DType dt) {
    double x = (double)(hash64((uint64_t)r << 40 ^ i) >> 11) * 0x1p-50 - 4;
    return dt == DT_F64 ? x : dt == DT_F32 ? (float)x : bf16_to_float(bf16_from_float((float)x));
}

static void put(void* x, size_t i, double v, DType dt) {
    if (dt == DT_F64) ((double*)x)[i] = v;
    else if (dt == DT_F32) ((float*)x)[i] = (float)v;
    else ((bf16*)x)[i] = bf16_from_float((float)v);
}

static void fill(void* x, int r, size_t first, size_t n, DType dt) {
    for (size_t i = 0; i < n; i++) put(x, i, value(r, first + i, dt), dt);
}

// x (n) must have the bits of the sum of elements first .. first + n of these ranks, taken in their order.
static void check_sum(const void* x, size_t first, size_t n, DType dt, const int* ranks, int n_ranks) {
    size_t wrong = 0, bytes = dtype_bytes(dt);
    for (size_t i = 0; i < n; i++) {
        double wide = value(ranks[0], first + i, dt), expected;
        float sum = (float)wide;
        for (int r = 1; r < n_ranks; r++) {
            wide += value(ranks[r], first + i, dt);
            sum += (float)value(ranks[r], first + i, dt);
        }
        put(&expected, 0, dt == DT_F64 ? wide : sum, dt);
        wrong += memcmp(&expected, (const char*)x + i * bytes, bytes) != 0;
    }
    CHECK(wrong == 0);
}

static const DType dtypes[] = {DT_F32, DT_BF16, DT_F64};

// From nothing to several chunks of each rank; odd.
static size_t some_count(uint64_t seed, uint64_t index) {
    static const size_t edges[] = {0, 1, 2, 3, 511, 512, 1023, 1024, 1025, 65536, 65537, 131073};
    if (choose(seed, 2 * index, 2)) return edges[choose(seed, 2 * index + 1, COUNT(edges))];
    return (size_t)choose(seed, 2 * index + 1, 1 << choose(seed, 3 * index, 18));
}

// ---- sums

static void all_reduce_adds_in_the_order_of_ranks(void) {
    for (int d = 0; d < COUNT(dtypes); d++)
        for (uint64_t i = 0; i < 25; i++) {
            size_t n = some_count(11, i), bytes = n * dtype_bytes(dtypes[d]);
            char* x = buffer(bytes);
            fill(x, rank, 0, n, dtypes[d]);
            world->table->all_reduce(world, x, n, dtypes[d], NULL);
            CHECK(world->table->wait(world, NULL, err, sizeof err) == 0);
            check_sum(x, 0, n, dtypes[d], everyone, size);
            release(x, bytes);
        }
}

static void bf16_is_added_in_fp32_and_rounded_once(void) {
    bf16 few[7], many[9000];
    for (int i = 0; i < COUNT(few); i++) few[i] = bf16_from_float(rank == 0 ? 256 : 1);
    for (int i = 0; i < COUNT(many); i++) many[i] = bf16_from_float(rank == 0 ? 256 : 1);
    world->table->all_reduce(world, few, COUNT(few), DT_BF16, NULL);
    world->table->all_reduce(world, many, COUNT(many), DT_BF16, NULL);
    float expected = bf16_to_float(bf16_from_float((float)(256 + size - 1)));
    if (size > 2) CHECK(expected > 256);  // where 256 + 1 is rounded, it stays 256
    for (int i = 0; i < COUNT(few); i++) CHECK(bf16_to_float(few[i]) == expected);
    for (int i = 0; i < COUNT(many); i++) CHECK(bf16_to_float(many[i]) == expected);
}

static void reduce_scatter_then_all_gather(size_t n, DType dt, int in_place) {
    size_t part = n * dtype_bytes(dt), total = (size_t)size * part, offset = (size_t)rank * part;
    char *in = buffer(total), *sum = buffer(part), *all = buffer(total);
    char* out = in_place ? in + offset : sum;
    fill(in, rank, 0, (size_t)size * n, dt);
    comm_reduce_scatter(world, out, in, n, dt, NULL);
    check_sum(out, (size_t)rank * n, n, dt, everyone, size);
    if (!in_place) check_sum(in, 0, (size_t)size * n, dt, &rank, 1);  // as it was
    comm_all_gather(world, in_place ? in : all, out, n, dt, NULL);
    check_sum(in_place ? in : all, 0, (size_t)size * n, dt, everyone, size);
    release(in, total), release(sum, part), release(all, total);
}

static void reduce_scatter_and_all_gather_make_an_all_reduce(void) {
    for (world->overlap = 0; world->overlap < 2; world->overlap++)
        for (int d = 0; d < COUNT(dtypes); d++)
            for (uint64_t i = 0; i < 10; i++)
                reduce_scatter_then_all_gather(some_count(12, i), dtypes[d], (int)(i % 2));
    world->overlap = 0;
    comm_reduce_scatter(world, NULL, NULL, 0, DT_F32, NULL);
    comm_all_gather(world, NULL, NULL, 0, DT_F32, NULL);
}

// ---- messages: their bytes follow from who sends them to whom, and a number

static uint64_t word_of(int from, int to, int number, size_t i) {
    return hash64((uint64_t)from << 52 ^ (uint64_t)to << 40 ^ (uint64_t)number << 30 ^ i);
}

static void fill_message(char* x, int from, int to, int number, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = word_of(from, to, number, i);
        memcpy(x + i, &word, MIN(bytes - i, sizeof word));
    }
}

static void check_message(const char* x, int from, int to, int number, size_t bytes) {
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = word_of(from, to, number, i);
        wrong += memcmp(x + i, &word, MIN(bytes - i, sizeof word)) != 0;
    }
    CHECK(wrong == 0);
}

// Bytes that `from` sends `to` in all-to-all `number`; of some pairs none, of others more than MPI sends at once.
static size_t bytes_between(int from, int to, int number) {
    static const size_t most[] = {1, 2, 64, 5000, 300000};
    uint64_t pair = (uint64_t)from << 20 ^ (uint64_t)to;
    return (size_t)choose(21 + (uint64_t)number, pair, (int)most[choose(number, pair, COUNT(most))]);
}

typedef struct AllToAll {
    Transfer sends[MOST_RANKS], receives[MOST_RANKS];
    char *from, *to;
    size_t from_bytes, to_bytes;
    int number;
    Request request;
} AllToAll;

static void begin_all_to_all(AllToAll* a, int number) {
    a->from_bytes = a->to_bytes = 0;
    a->number = number;
    for (int r = 0; r < size; r++) {
        a->from_bytes += bytes_between(rank, r, number);
        a->to_bytes += bytes_between(r, rank, number);
    }
    a->from = buffer(a->from_bytes);
    a->to = buffer(a->to_bytes);
    char *from = a->from, *to = a->to;
    for (int r = 0; r < size; r++) {
        a->sends[r] = (Transfer){r, from, bytes_between(rank, r, number)};
        a->receives[size - 1 - r] = (Transfer){r, to, bytes_between(r, rank, number)};  // the order of peers is free
        fill_message(from, rank, r, number, a->sends[r].bytes);
        from += bytes_between(rank, r, number);
        to += bytes_between(r, rank, number);
    }
    a->request = world->table->begin_send_receive(world, a->sends, size, a->receives, size, NULL);
    memset(a->sends, 0xff, sizeof a->sends);  // the lists are the caller's again
    if (!world->overlap) CHECK(a->request == 0);
}

static void end_all_to_all(AllToAll* a) {
    world->table->end(world, a->request, NULL);
    for (int r = 0; r < size; r++)
        check_message(a->receives[size - 1 - r].data, r, rank, a->number, bytes_between(r, rank, a->number));
    release(a->from, a->from_bytes), release(a->to, a->to_bytes);
}

static void ragged_all_to_all(void) {
    AllToAll a;
    for (world->overlap = 0; world->overlap < 2; world->overlap++)
        for (int number = 0; number < 10; number++) begin_all_to_all(&a, number), end_all_to_all(&a);
    world->overlap = 0;
}

static void requests_may_end_in_any_order(void) {
    enum { AT_ONCE = 9 };
    static AllToAll a[AT_ONCE];
    for (world->overlap = 0; world->overlap < 2; world->overlap++) {
        for (int i = 0; i < AT_ONCE; i++) begin_all_to_all(&a[i], 100 + i);
        for (int i = 0; i < AT_ONCE; i++) end_all_to_all(&a[(i * 4 + 3 + rank) % AT_ONCE]);
    }
    world->overlap = 0;
}

static void more_requests_than_the_queue_has_room_for(void) {
    enum { AT_ONCE = 300 };
    static int sent[AT_ONCE], came[AT_ONCE];
    static Request requests[AT_ONCE];
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    world->overlap = 1;
    for (int i = 0; i < AT_ONCE; i++) {
        sent[i] = 1000 * rank + i;
        Transfer send = {to, &sent[i], sizeof(int)}, receive = {from, &came[i], sizeof(int)};
        requests[i] = world->table->begin_send_receive(world, &send, 1, &receive, 1, NULL);
    }
    CHECK(world->table->wait(world, NULL, err, sizeof err) == 0);
    for (int i = 0; i < AT_ONCE; i++) CHECK(came[i] == 1000 * from + i);
    for (int i = 0; i < AT_ONCE; i++) world->table->end(world, requests[i], NULL);  // wait did not end them
    world->overlap = 0;
}

static void messages_of_a_pair_match_in_order(void) {
    enum { BYTES = 5000, HALF = BYTES / 2 };
    char *f = buffer(2 * BYTES), *t = buffer(2 * BYTES);
    int other = (rank + 1) % size, before = (rank + size - 1) % size;
    fill_message(f, rank, other, 0, BYTES);
    fill_message(f + BYTES, rank, rank, 1, BYTES);
    if (size > 1) {
        Transfer sends[] = {{other, f, HALF}, {rank, f + BYTES, HALF},       {other, f, 0}, {other, f + HALF, HALF},
                            {rank, f, 0},     {rank, f + BYTES + HALF, HALF}};
        Transfer receives[] = {
            {rank, t + BYTES, HALF}, {rank, t + BYTES + HALF, HALF}, {before, t, HALF}, {before, t + HALF, HALF}};
        comm_send_receive(world, sends, COUNT(sends), receives, COUNT(receives), NULL);
        check_message(t, before, rank, 0, BYTES);
        check_message(t + BYTES, rank, rank, 1, BYTES);
    }
    release(f, 2 * BYTES), release(t, 2 * BYTES);
}

// Blocks go round while the next step is already on its way: the steps of ring attention.
static void ring_steps(void) {
    enum { BYTES = 30001 };
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    for (world->overlap = 0; world->overlap < 2; world->overlap++) {
        char* block[2] = {buffer(BYTES), buffer(BYTES)};
        fill_message(block[0], rank, 0, 0, BYTES);
        for (int step = 0; step < size; step++) {
            Transfer send = {to, block[step % 2], BYTES}, receive = {from, block[(step + 1) % 2], BYTES};
            Request request = world->table->begin_send_receive(world, &send, 1, &receive, 1, NULL);
            check_message(block[step % 2], (rank + size - step) % size, 0, 0, BYTES);  // reading is allowed
            world->table->end(world, request, NULL);
        }
        check_message(block[size % 2], rank, 0, 0, BYTES);
        release(block[0], BYTES), release(block[1], BYTES);
    }
    world->overlap = 0;
}

static void ranks_without_messages_need_not_communication(void) {
    char* x = buffer(100);
    int last = size - 1;
    fill_message(x, rank, 5, 0, 100);
    Transfer message = {rank == 0 ? last : 0, x, 100};
    if (size > 1 && rank == 0) comm_send_receive(world, &message, 1, NULL, 0, NULL);
    if (size > 1 && rank == last) comm_send_receive(world, NULL, 0, &message, 1, NULL);
    check_message(x, rank == last ? 0 : rank, 5, 0, 100);
    comm_send_receive(world, NULL, 0, NULL, 0, NULL);
    release(x, 100);
}

// More than what one message of MPI carries here, and than the pieces it is cut into.
static void long_messages_travel_in_pieces(void) {
    const size_t bytes = ((size_t)64 << 20) + 12345;
    if (rank > 1 || size < 2) return;
    char* x = buffer(bytes);
    if (rank == 0) fill_message(x, 0, 1, 7, bytes);
    Transfer message = {1 - rank, x, bytes};
    comm_send_receive(world, &message, rank == 0, &message, rank == 1, NULL);
    check_message(x, 0, 1, 7, bytes);
    release(x, bytes);
}

// ---- a list of collectives that all ranks know, each between some of the ranks: nobody waits in a circle, each
// message arrives, whatever part of them overlaps

enum { SCHEDULE = 200, PENDING = 6 };

typedef struct Pending {
    Request request;
    Comm* c;
    char *sent, *came;
    size_t sent_bytes, came_bytes;
    int from, number;
} Pending;

static void end_pending(Pending* p) {
    if (!p->c) return;
    p->c->table->end(p->c, p->request, NULL);
    check_message(p->came, p->from, rank, p->number, p->came_bytes);
    release(p->sent, p->sent_bytes), release(p->came, p->came_bytes);
    p->c = NULL;
}

// Each rank of a random subset sends to the next one of it, some nothing.
static void begin_scheduled(Pending* p, Comm* c, uint64_t seed, int number) {
    int members[MOST_RANKS], n = 0, own = -1;
    for (int r = 0; r < size; r++) {
        if (!choose(seed + 1, (uint64_t)(number * MOST_RANKS + r), 3)) continue;
        if (r == rank) own = n;
        members[n++] = r;
    }
    if (own < 0) return;
    int to = members[(own + 1) % n];
    p->from = members[(own + n - 1) % n];
    p->number = number;
    p->sent_bytes = bytes_between(rank, to, number);
    p->came_bytes = bytes_between(p->from, rank, number);
    p->sent = buffer(p->sent_bytes);
    p->came = buffer(p->came_bytes);
    p->c = c;
    fill_message(p->sent, rank, to, number, p->sent_bytes);
    Transfer send = {to, p->sent, p->sent_bytes}, receive = {p->from, p->came, p->came_bytes};
    p->request = c->table->begin_send_receive(c, &send, 1, &receive, 1, NULL);
}

static void run_schedule(uint64_t seed, Comm* second) {
    Pending pending[PENDING] = {0};
    int failures = test_failures_in_claim;
    for (int i = 0; i < SCHEDULE; i++) {
        Comm* c = choose(seed, (uint64_t)i, 3) ? world : second;
        Pending* p = &pending[choose(seed + 2 + (uint64_t)rank, (uint64_t)i, PENDING)];
        end_pending(p);
        if (choose(seed + 3, (uint64_t)i, 20) == 0) {  // all ranks, and over when it returns
            float x[2] = {(float)rank, 1};
            c->table->all_reduce(c, x, 2, DT_F32, NULL);
            CHECK(x[0] == (float)(size * (size - 1) / 2) && x[1] == (float)size);
        }
        begin_scheduled(p, c, seed, i);
        if (!c->overlap) end_pending(p);
    }
    for (int i = 0; i < PENDING; i++) end_pending(&pending[i]);
    if (test_failures_in_claim > failures) printf("    rank %d: schedule of seed %llu\n", rank, (long long)seed);
}

static void random_schedules_of_overlapping_communications(void) {
    Comm* second = NULL;
    CHECK(world->table->split(world, &second, 0, rank, err, sizeof err) == 0);
    if (!second) return;
    for (uint64_t seed = 1000; seed < 1008; seed++) {
        world->overlap = choose(seed, (uint64_t)rank << 32, 4) > 0;  // ranks need not agree
        second->overlap = choose(seed, (uint64_t)rank << 33, 4) > 0;
        run_schedule(seed, second);
    }
    world->overlap = 0;
    second->table->close(second);
}

// ---- values of all ranks

static void broadcast_from_every_root(void) {
    static const size_t sizes[] = {0, 1, 12345, 300001};
    for (int root = 0; root < size; root++)
        for (int i = 0; i < COUNT(sizes); i++) {
            char* x = buffer(sizes[i]);
            fill_message(x, rank, 0, i, sizes[i]);
            world->table->broadcast(world, x, sizes[i], root, NULL);
            check_message(x, root, 0, i, sizes[i]);
            CHECK(world->table->broadcast_host(world, x, sizes[i], (root + 1) % size, err, sizeof err) == 0);
            check_message(x, root, 0, i, sizes[i]);
            release(x, sizes[i]);
        }
}

static void host_values_of_any_size(void) {
    static const size_t sizes[] = {0, 1, 24, 300001};
    for (int i = 0; i < COUNT(sizes); i++) {
        size_t bytes = sizes[i], total = (size_t)size * bytes;
        char *own = buffer(bytes), *all = buffer(total);
        fill_message(own, rank, 0, i, bytes);
        CHECK(world->table->all_gather_host(world, all, own, bytes, err, sizeof err) == 0);
        for (int r = 0; r < size; r++) check_message(all + (size_t)r * bytes, r, 0, i, bytes);
        CHECK(world->table->broadcast_host(world, own, bytes, size - 1, err, sizeof err) == 0);
        check_message(own, size - 1, 0, i, bytes);
        release(own, bytes), release(all, total);
    }
}

static void nobody_passes_a_barrier_before_the_last_comes(void) {
    for (int late = 0; late < size; late++) {
        double start, all[MOST_RANKS];
        if (rank == late) ranks_sleep(0.05);
        start = now_seconds();  // of one clock: all ranks are on this machine
        CHECK(world->table->barrier(world, err, sizeof err) == 0);
        double passed = now_seconds();
        CHECK(world->table->all_gather_host(world, all, &start, sizeof start, err, sizeof err) == 0);
        CHECK(passed >= all[late]);
    }
}

// ---- what is counted

static void bytes_are_counted_by_purpose_and_machine(void) {
    enum { N = 1001, PER_NODE = 2 };
    setenv("RAGGED_NODE_SIZE", "2", 1);
    Comm* c = ranks_open(RANKS_PATIENCE);
    unsetenv("RAGGED_NODE_SIZE");
    CHECK(c != NULL);
    if (!c) return;
    uint64_t near = 0, far = 0, none[N_PURPOSES][2] = {{0}};
    for (int r = 0; r < size; r++) {
        CHECK(c->node[r] == r / PER_NODE);
        if (r != rank) *(r / PER_NODE == rank / PER_NODE ? &near : &far) += 1;
    }
    CHECK(memcmp(c->sent, none, sizeof none) == 0);
    float* x = (float*)calloc((size_t)(size + 1) * N, sizeof *x);
    const CommPurpose purposes[] = {COMM_OTHER, COMM_GRADIENTS, COMM_PARAMETERS, COMM_STATE};
    const size_t part = CEIL_DIV((size_t)N, (size_t)size);
    const uint64_t each[] = {2 * 8 * part, 4 * N, 2 * N, 0};  // to each other rank
    c->table->all_reduce(c, x, N, DT_F64, NULL);
    c->purpose = COMM_GRADIENTS;
    comm_reduce_scatter(c, x, x + 0, 0, DT_F32, NULL);
    comm_reduce_scatter(c, x + rank * N, x, N, DT_F32, NULL);
    c->purpose = COMM_PARAMETERS;
    comm_all_gather(c, x, (bf16*)x + rank * N, N, DT_BF16, NULL);
    for (int i = 0; i < COUNT(purposes); i++) {
        CHECK(c->sent[purposes[i]][0] == near * each[i]);
        CHECK(c->sent[purposes[i]][1] == far * each[i]);
    }
    c->purpose = COMM_STATE;
    int root = size - 1;
    c->table->broadcast(c, x, 77, root, NULL);
    CHECK(c->table->broadcast_host(c, x, 55, root, err, sizeof err) == 0);
    CHECK(c->table->all_gather_host(c, x, (char*)x + 33 * rank, 33, err, sizeof err) == 0);
    CHECK(c->sent[COMM_STATE][0] == (rank == root ? 77 * near : 0));
    CHECK(c->sent[COMM_STATE][1] == (rank == root ? 77 * far : 0));
    CHECK(c->sent[COMM_HOST][0] == 33 * near + (rank == root ? 55 * near : 0));
    CHECK(c->sent[COMM_HOST][1] == 33 * far + (rank == root ? 55 * far : 0));
    c->table->close(c);
    free(x);
}

static void messages_are_counted_with_and_without_overlap(void) {
    AllToAll a;
    uint64_t before[2], sent[2] = {0, 0};
    world->purpose = COMM_ULYSSES;
    memcpy(before, world->sent[COMM_ULYSSES], sizeof before);
    for (world->overlap = 0; world->overlap < 2; world->overlap++) {
        begin_all_to_all(&a, 55), end_all_to_all(&a);
        for (int r = 0; r < size; r++)
            if (r != rank) sent[world->node[r] != world->node[rank]] += bytes_between(rank, r, 55);
    }
    for (int far = 0; far < 2; far++) CHECK(world->sent[COMM_ULYSSES][far] - before[far] == sent[far]);
    world->overlap = 0;
    world->purpose = COMM_OTHER;
}

// A rank comes half a second late. Those who wait for it stand still so long, unless they compute meanwhile.
static void exposed_seconds_are_those_that_nothing_hides(void) {
    for (int overlap = 0; overlap < 2; overlap++) {
        float x[2] = {1, 2}, all[2 * MOST_RANKS];
        CHECK(world->table->barrier(world, err, sizeof err) == 0);
        double before = world->exposed_seconds;
        world->overlap = overlap;
        if (rank == size - 1) ranks_sleep(0.5);
        Request request = world->table->begin_all_gather(world, all, x, 2, DT_F32, NULL);
        if (overlap && rank < size - 1) ranks_sleep(1);
        world->table->end(world, request, NULL);
        double exposed = world->exposed_seconds - before;
        if (rank < size - 1) CHECK(overlap ? exposed < 0.4 : exposed > 0.4);
    }
    world->overlap = 0;
}

static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// A poll every 200 us takes a few us; spinning would take the whole second.
static void who_waits_leaves_the_processor_to_others(void) {
    for (world->overlap = 0; world->overlap < 2; world->overlap++) {
        float x = 1, all[MOST_RANKS];
        CHECK(world->table->barrier(world, err, sizeof err) == 0);
        double start = processor_seconds();
        if (rank == size - 1) ranks_sleep(1);
        comm_all_gather(world, all, &x, 1, DT_F32, NULL);
        CHECK(processor_seconds() - start < 0.3);
    }
    world->overlap = 0;
}

// ---- parts

static void check_part(Comm* part, const int* ranks, int n_ranks) {
    enum { N = 3001 };
    float x[N];
    if (!check_members(part, ranks, n_ranks)) return;
    CHECK(part->local_rank == world->local_rank && part->local_size == world->local_size);
    CHECK(part->timeout_seconds == RANKS_PATIENCE);
    for (int r = 0; r < n_ranks; r++) CHECK(part->node[r] == 0);
    fill(x, rank, 0, N, DT_F32);
    part->table->all_reduce(part, x, N, DT_F32, NULL);
    check_sum(x, 0, N, DT_F32, ranks, n_ranks);
}

static void parts_number_machines_anew(void) {
    setenv("RAGGED_NODE_SIZE", "3", 1);
    Comm* c = ranks_open(RANKS_PATIENCE);
    unsetenv("RAGGED_NODE_SIZE");
    CHECK(c != NULL);
    if (!c) return;
    Comm* part = split(c, rank < 2 ? -1 : 0, -rank);  // from the last rank down to 2
    for (int r = 0; part && r < part->size; r++) CHECK(part->node[r] == (size - 1) / 3 - (size - 1 - r) / 3);
    close_part(part);
    c->table->close(c);
}

// ---- opening

static void one_rank_alone_copies(void) {
    RankIdentity alone = {0, 1, 0, 1, "alone", "", 0};
    Comm *c = NULL, *part = NULL;
    const Kernels* cpu = kernels_find("cpu", "generic", err, sizeof err);
    char from[100], to[100] = {0}, host[4] = {1, 2, 3, 4}, copy[4] = {0};
    CHECK(comm_open(&c, cpu, &alone, 5, err, sizeof err) == 0);
    if (!c) return;
    CHECK_STRING(c->table->name, "self");
    CHECK(c->rank == 0 && c->size == 1 && c->local_size == 1 && c->node[0] == 0 && c->timeout_seconds == 5);
    fill_message(from, rank, 9, 0, sizeof from);
    c->table->all_reduce(c, from, 25, DT_F32, NULL);
    c->table->broadcast(c, from, 100, 0, NULL);
    comm_reduce_scatter(c, to, from, 10, DT_F32, NULL);
    comm_all_gather(c, to + 40, from + 40, 10, DT_BF16, NULL);
    Transfer sends[] = {{0, from + 60, 10}, {0, NULL, 0}, {0, from + 70, 30}};
    Transfer receives[] = {{0, to + 60, 10}, {0, to + 70, 30}};
    c->overlap = 1;
    comm_send_receive(c, sends, COUNT(sends), receives, COUNT(receives), NULL);
    CHECK(c->table->wait(c, NULL, err, sizeof err) == 0 && c->table->barrier(c, err, sizeof err) == 0);
    check_message(to, rank, 9, 0, sizeof to);
    CHECK(c->table->all_gather_host(c, copy, host, sizeof host, err, sizeof err) == 0);
    CHECK(c->table->broadcast_host(c, host, sizeof host, 0, err, sizeof err) == 0);
    CHECK(memcmp(copy, host, sizeof host) == 0);
    CHECK(c->table->split(c, &part, 2, 0, err, sizeof err) == 0 && part && part->size == 1);
    close_part(part);
    CHECK(c->table->split(c, &part, -1, 0, err, sizeof err) == 0 && part == NULL);
    for (int purpose = 0; purpose < N_PURPOSES; purpose++) CHECK(c->sent[purpose][0] + c->sent[purpose][1] == 0);
    c->table->close(c);
}

static void wrong_surroundings_are_told(void) {
    RankIdentity id, other;
    Comm* c = NULL;
    CHECK(rank_identity(&id, err, sizeof err) == 0);
    other = id;
    other.size++;
    CHECK(comm_open_mpi(&c, &other, 5, err, sizeof err) == -1 && c == NULL);
    CHECK(strstr(err, "MPI says") && strstr(err, "mpirun"));
    setenv("RAGGED_NODE_SIZE", "two", 1);
    CHECK(comm_open_mpi(&c, &id, 5, err, sizeof err) == -1 && c == NULL);
    CHECK(strstr(err, "RAGGED_NODE_SIZE") != NULL);
    unsetenv("RAGGED_NODE_SIZE");
}

// ---- running

static void run_communications(void) {
    RUN_TOGETHER(all_reduce_adds_in_the_order_of_ranks);
    RUN_TOGETHER(bf16_is_added_in_fp32_and_rounded_once);
    RUN_TOGETHER(reduce_scatter_and_all_gather_make_an_all_reduce);
    RUN_TOGETHER(ragged_all_to_all);
    RUN_TOGETHER(requests_may_end_in_any_order);
    RUN_TOGETHER(more_requests_than_the_queue_has_room_for);
    RUN_TOGETHER(messages_of_a_pair_match_in_order);
    RUN_TOGETHER(ring_steps);
    RUN_TOGETHER(ranks_without_messages_need_not_communication);
    RUN_TOGETHER(long_messages_travel_in_pieces);
    RUN_TOGETHER(random_schedules_of_overlapping_communications);
    RUN_TOGETHER(broadcast_from_every_root);
    RUN_TOGETHER(host_values_of_any_size);
    RUN_TOGETHER(nobody_passes_a_barrier_before_the_last_comes);
    RUN_TOGETHER(bytes_are_counted_by_purpose_and_machine);
    RUN_TOGETHER(messages_are_counted_with_and_without_overlap);
    RUN_TOGETHER(each_communication_that_is_waited_for_cuts_a_step_once);
    if (size > 1) {
        RUN_TOGETHER(exposed_seconds_are_those_that_nothing_hides);
        RUN_TOGETHER(who_waits_leaves_the_processor_to_others);
        RUN_TOGETHER(timers_tell_which_rank_is_late);
        RUN_TOGETHER(waiting_for_room_is_no_computing);
        RUN_TOGETHER(an_injected_straggler_makes_the_others_wait);
    }
}

static void run_parts(void) {
    RUN_TOGETHER(split_into_neighbours);
    RUN_TOGETHER(split_by_stride_in_order_of_keys);
    RUN_TOGETHER(split_leaves_out_negative_colors);
    RUN_TOGETHER(parts_of_parts_outlive_their_parents);
    RUN_TOGETHER(parts_number_machines_anew);
    RUN_TOGETHER(one_rank_alone_copies);
    RUN_TOGETHER(wrong_surroundings_are_told);
}

int main(int n_arguments, char** arguments) {
    for (int r = 0; r < MOST_RANKS; r++) everyone[r] = r;
    ranks_start(&n_arguments, &arguments);
    ranks_open_world();
    run_communications();
    run_parts();
    return ranks_done();
}
