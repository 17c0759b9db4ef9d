// test_comm.c - collectives between ranks in host memory: over MPI or forked, over virtual ranks, and of one rank
// alone.
//
//   test/ranks.sh N build/release/test/test_comm                       N: 1, 2, 3, 4 or 8
//   RANKS_MPI=forked test/ranks.sh N build/release/test/test_comm      forked ranks
#include "kernels/table/open.h"
#include "kernels/virtual/virtual.h"
#include "test/comm_claims.h"

static Comm* open_another(double timeout_seconds) { return ranks_open(timeout_seconds); }

// ---- messages

// More than what one message of MPI carries here, than the pieces it is cut into, and than a ring holds; a short one
// waits behind it.
static void long_messages_travel_in_pieces(void) {
    const size_t bytes = ((size_t)64 << 20) + 12345, few = 1000;
    if (own > 1 || n_ranks < 2) return;
    Buffer x = buffer(bytes), behind = buffer(few);
    if (own == 0) fill_message(x.device, 0, 1, 7, bytes), fill_message(behind.device, 0, 1, 8, few);
    Transfer both[] = {{1 - own, x.device, bytes}, {1 - own, behind.device, few}};
    comm_send_receive(world, both, own == 0 ? 2 : 0, both, own == 1 ? 2 : 0, NULL);
    to_host(world, x), to_host(world, behind);
    check_message(x.host, 0, 1, 7, bytes);
    check_message(behind.host, 0, 1, 8, few);
    free_buffer(x), free_buffer(behind);
}

// The last rank hears from all others, many times and little each time, while they go on sending: what comes between
// two looks at a ring belongs to the next message.
static void short_messages_come_while_others_do(void) {
    enum { BYTES = 40 };
    static char x[MOST_RANKS][BYTES], expected[MOST_RANKS][BYTES];
    Transfer list[MOST_RANKS];
    int to = n_ranks - 1, wrong = 0, times = comm_is_forked() ? 200000 : 2000;
    for (int r = 0; r < to; r++) fill_message(expected[r], r, to, 0, BYTES);
    for (int i = 0; i < times; i++) {
        int own_list = own == to ? to : 1;
        for (int r = 0; r < to && own == to; r++) list[r] = message(r, memset(x[r], 0, BYTES), BYTES);
        if (own < to) list[0] = message(to, expected[own], BYTES);
        if (own < to) comm_send_receive(world, list, own_list, NULL, 0, NULL);
        else comm_send_receive(world, NULL, 0, list, own_list, NULL);
        wrong += own == to && memcmp(x, expected, (size_t)to * BYTES) != 0;
    }
    CHECK(world->table->wait(world, NULL, err) == 0 && wrong == 0);
}

// A list of collectives that all ranks know, each between some of the ranks: nobody waits in a circle, each message
// arrives, whatever part of them overlaps.

enum { SCHEDULE = 200, PENDING = 6 };

// A rank-independent choice of 0 .. below - 1.
static int choose(uint64_t seed, uint64_t index, int below) {
    return (int)(hash64(hash64(seed) ^ index) % (uint64_t)below);
}

typedef struct Pending {
    Request request;
    Comm* c;
    Buffer sent, came;
    int from, number;
} Pending;

static void end_pending(Pending* p) {
    if (!p->c) return;
    p->c->table->end(p->c, p->request, NULL);
    fetch(p->came, NULL);
    check_message(p->came.host, p->from, own, p->number, p->came.bytes);
    free_buffer(p->sent), free_buffer(p->came);
    p->c = NULL;
}

// Each rank of a random subset sends to the next one of it, some nothing.
static void begin_scheduled(Pending* p, Comm* c, uint64_t seed, int number) {
    int members[MOST_RANKS], n = 0, place = -1;
    for (int r = 0; r < n_ranks; r++) {
        if (!choose(seed + 1, (uint64_t)(number * MOST_RANKS + r), 3)) continue;
        if (r == own) place = n;
        members[n++] = r;
    }
    if (place < 0) return;
    int to = members[(place + 1) % n], from = members[(place + n - 1) % n];
    *p =
        (Pending){0, c, buffer(bytes_between(own, to, number)), buffer(bytes_between(from, own, number)), from, number};
    fill_message(p->sent.device, own, to, number, p->sent.bytes);
    Transfer send = {to, p->sent.device, p->sent.bytes}, receive = {from, p->came.device, p->came.bytes};
    p->request = c->table->begin_send_receive(c, &send, 1, &receive, 1, NULL);
}

static void run_schedule(uint64_t seed, Comm* second) {
    Pending pending[PENDING] = {0};
    int failures = test_failures_in_claim;
    for (int i = 0; i < SCHEDULE; i++) {
        Comm* c = choose(seed, (uint64_t)i, 3) ? world : second;
        Pending* p = &pending[choose(seed + 2 + (uint64_t)own, (uint64_t)i, PENDING)];
        end_pending(p);
        if (choose(seed + 3, (uint64_t)i, 20) == 0) {  // all ranks, and over when it returns
            float x[2] = {(float)own, 1};
            c->table->all_reduce(c, x, 2, DT_F32, NULL);
            CHECK(x[0] == (float)(n_ranks * (n_ranks - 1) / 2) && x[1] == (float)n_ranks);
        }
        begin_scheduled(p, c, seed, i);
        if (!c->overlap) end_pending(p);
    }
    for (int i = 0; i < PENDING; i++) end_pending(&pending[i]);
    if (test_failures_in_claim > failures) printf("    rank %d: schedule of seed %llu\n", own, (long long)seed);
}

static void random_schedules_of_overlapping_communications(void) {
    Comm* second = split(world, 0, own);
    for (uint64_t seed = 1000; seed < 1008; seed++) {
        world->overlap = choose(seed, (uint64_t)own << 32, 4) > 0;  // ranks need not agree
        second->overlap = choose(seed, (uint64_t)own << 33, 4) > 0;
        run_schedule(seed, second);
    }
    world->overlap = 0;
    close_part(second);
}

// ---- waiting

// The last rank comes half a second late. Those who wait for it stand still so long, unless they compute meanwhile.
static void exposed_seconds_are_those_that_nothing_hides(void) {
    for (world->overlap = 0; world->overlap < 2; world->overlap++) {
        float x[2] = {1, 2}, all[2 * MOST_RANKS];
        CHECK(world->table->barrier(world, err) == 0);
        double before = world->exposed_seconds;
        if (own == n_ranks - 1) ranks_sleep(0.5);
        Request request = world->table->begin_all_gather(world, all, x, 2, DT_F32, NULL);
        if (world->overlap && own < n_ranks - 1) ranks_sleep(1);
        world->table->end(world, request, NULL);
        double exposed = world->exposed_seconds - before;
        if (own < n_ranks - 1) CHECK(world->overlap ? exposed < 0.4 : exposed > 0.4);
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
        CHECK(world->table->barrier(world, err) == 0);
        double start = processor_seconds();
        if (own == n_ranks - 1) ranks_sleep(1);
        comm_all_gather(world, all, &x, 1, DT_F32, NULL);
        CHECK(processor_seconds() - start < 0.3);
    }
    world->overlap = 0;
}

// Beginning one more than there is room for is waiting too.
static void waiting_for_room_is_no_computing(void) {
    enum { AT_ONCE = 100 };
    static float x[AT_ONCE], all[AT_ONCE][MOST_RANKS];
    Request requests[AT_ONCE];
    double seconds[N_TIMES];
    begin_timing(0);
    world->overlap = 1;
    if (own == n_ranks - 1) ranks_sleep(0.5);
    for (int i = 0; i < AT_ONCE; i++)
        requests[i] = world->table->begin_all_gather(world, all[i], &x[i], 1, DT_F32, NULL);
    if (own < n_ranks - 1) CHECK(timer.n > 2);
    for (int i = 0; i < AT_ONCE; i++) world->table->end(world, requests[i], NULL);
    end_timing(seconds);
    if (own < n_ranks - 1) CHECK(seconds[TIME_LINEAR] < 0.3);
    world->overlap = 0;
}

// ---- opening

static void a_launcher_that_mpi_contradicts_is_refused(void) {
    RankIdentity id;
    Comm* c = NULL;
    CHECK(rank_identity(&id, err) == 0);
    id.size++;
    CHECK(comm_open_mpi(&c, &id, 5, err) == -1 && c == NULL);
    CHECK(strstr(err, "MPI says") && strstr(err, "mpirun"));
}

static void virtual_ranks_count_the_bytes_of_others(void) {
    for (int r = 0; r < n_ranks; r++) CHECK(world->node[r] == r / 2);
    memset(world->sent, 0, sizeof world->sent);
    check_counts(world);
}

static void one_rank_sends_nothing(void) {
    CHECK_STRING(world->name, "self");
    for (int p = 0; p < N_PURPOSES; p++) CHECK(world->sent[p][0] + world->sent[p][1] == 0);
}

static Comm* open_on(const char* device, const RankIdentity* id) {
    const Kernels* kernels = kernels_find(device, "generic", err);
    Comm* c = NULL;
    if (!kernels || comm_open(&c, kernels, id, PATIENCE, err)) die("%s", err);
    use_world(c, kernels);
    return c;
}

// ---- running

static void claim_waiting(void) {
    RUN_TOGETHER(long_messages_travel_in_pieces);
    if (n_ranks > 1) RUN_TOGETHER(short_messages_come_while_others_do);
    RUN_TOGETHER(random_schedules_of_overlapping_communications);
    claim_timers();
    if (n_ranks == 1) return;
    RUN_TOGETHER(who_waits_leaves_the_processor_to_others);
    if (comm_is_forked()) return;  // there nothing runs beside the program
    RUN_TOGETHER(exposed_seconds_are_those_that_nothing_hides);
    RUN_TOGETHER(waiting_for_room_is_no_computing);
}

int main(int n_arguments, char** arguments) {
    static const RankIdentity alone = {.size = 1, .source = "alone"};
    RankIdentity id;
    ranks_start(&n_arguments, &arguments);
    ranks_open_world();
    Comm* real = world;
    use_world(real, kernels_find("cpu", "generic", err));
    claim_collectives();
    claim_waiting();
    RUN_TOGETHER(bytes_are_counted_by_purpose_and_node);
    RUN_TOGETHER(a_node_of_no_ranks_is_refused);
    if (!comm_is_forked()) RUN_TOGETHER(a_launcher_that_mpi_contradicts_is_refused);
    if (rank == 0) printf("  virtual ranks over these:\n");
    if (ranks_identity(&id, err)) die("%s", err);
    virtual_nodes(2);
    Comm* on_clocks = open_on("virtual-cpu", &id);
    claim_collectives();
    RUN_TOGETHER(virtual_ranks_count_the_bytes_of_others);
    if (rank == 0) printf("  each rank by itself:\n");
    Comm* self = open_on("cpu", &alone);
    claim_collectives();
    RUN_TOGETHER(one_rank_sends_nothing);
    self->table->close(self), on_clocks->table->close(on_clocks);
    world = real;
    return ranks_done();
}
