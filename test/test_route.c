// test_route.c - a message between two virtual nodes through proxies: the same bytes, in the time of the formula.
//
//   mpirun -n 16 build/release/test/test_route
#include "kernels/comm/route.h"
#include "test/virtual_ranks.h"

enum { NODE = 8, BYTES = 1 << 16 };

static double inside_ms = 1e-4;

// A byte between nodes takes a microsecond where all ranks of a node send.
static double transfer_ms(const void* context, const VirtualTransfer* t) {
    (void)context;
    return t->sent * (t->across ? 1e-3 : inside_ms);
}

static const VirtualMachine machine = {.matmul_weights = 1, .layers = 1, .heads = 1, .transfer_ms = transfer_ms};

// Rank 0 sends `bytes` to rank NODE; of both nodes every `stride`-th rank takes part, `members` of them. Returns ms
// until the last rank has what it waits for, on all ranks.
static double send_one(size_t bytes, int members, int stride) {
    static char out[BYTES], in[BYTES], scratch[BYTES + 64];
    RouteMessage messages[2 * NODE];
    for (int i = 0; i < 2 * members; i++) {
        int a = i / members * NODE + i % members * stride;
        messages[i] = (RouteMessage){a, a == 0 ? NODE : a, a == 0 ? bytes : 0};
    }
    for (size_t i = 0; i < BYTES; i++) out[i] = (char)(rank == 0 ? hash64(i) : 1), in[i] = 2;
    double started = clocks_meet();
    if (rank % NODE % stride == 0 && rank % NODE / stride < members)
        world->table->end(world, begin_routed(world, messages, 2 * members, 1, out, in, scratch, NULL), NULL);
    for (size_t i = 0; i < bytes && rank == NODE; i++) CHECK(in[i] == (char)hash64(i));
    for (size_t i = bytes; i < BYTES && rank == NODE; i++) CHECK(in[i] == 2);
    return most_of_ranks(virtual_now()) - started;
}

static void send_and_check(int nics, int members, int stride, double expected) {
    world->route_least = 0, world->nics = nics;
    inside_ms = nics == 4 ? 5e-5 : 1e-4;  // a tenth of what a NIC takes
    double direct = send_one(BYTES, members, stride);
    world->route_least = 1;
    double routed = send_one(BYTES, members, stride);
    CHECK_CLOSE(routed / direct, expected, 1e-9);
}

// Zeppelin's 1.000, 0.600, 0.400, 0.300: 2 (x - 1) / x / 10 + 1 / x. With 4 NICs eight ranks have four proxies, which
// beats the 0.425 that eight would take on them.
CLAIM(proxies_take_the_time_of_the_formula) {
    static const double eight_nics[] = {1, 0.6, 0.4, 0.3}, four_nics[] = {1, 0.6, 0.4, 0.4};
    for (int i = 0; i < 4; i++) {
        send_and_check(8, 1 << i, 1, eight_nics[i]);
        send_and_check(0, 1 << i, 1, eight_nics[i]);
        send_and_check(4, i == 3 ? 8 : 1 << i, i == 3 ? 1 : 2, four_nics[i]);
    }
}

// A machine's time is that of all eight ranks at once: one alone has a NIC that is as fast as its share of them.
CLAIM(ranks_that_share_a_nic_take_as_long_as_all_together) {
    static const int nics[] = {0, 8, 4, 2, 1};
    static const double alone[] = {1, 1, 0.5, 0.25, 0.125};
    world->route_least = 0;
    for (int i = 0; i < COUNT(nics); i++) {
        world->nics = nics[i];
        CHECK_CLOSE(send_one(BYTES, 1, 1), alone[i] * BYTES * 1e-3, 1e-6);
        char bytes[1000], got[1000];
        Transfer to = {(rank + NODE) % size, bytes, sizeof bytes}, from = {(rank + NODE) % size, got, sizeof got};
        memset(bytes, rank, sizeof bytes);
        double last = clocks_meet();
        world->at_once = NODE;
        comm_send_receive(world, &to, 1, &from, 1, NULL);
        world->at_once = 0;
        CHECK_CLOSE(virtual_now() - last, 1, 1e-9);
        CHECK(got[0] == (rank + NODE) % size);
    }
}

// Proxies of a message are on four NICs; where rings send beside it, on its share of them.
CLAIM(rings_beside_leave_fewer_proxies) {
    static const int expected[] = {4, 2, 1, 1, 1};
    RouteMessage messages[2 * NODE];
    for (int i = 0; i < 2 * NODE; i++) messages[i] = (RouteMessage){i, i ? i : NODE, i ? 0 : BYTES};
    world->nics = 4, world->route_least = 1;
    for (int i = 0; i < COUNT(expected); i++) CHECK(route_proxies(world, messages, 2 * NODE, 0, i + 1) == expected[i]);
}

// Any number of bytes and of proxies: what each rank sends, by the definition.
CLAIM(parts_are_counted_to_the_byte) {
    world->nics = 0, world->route_least = 1;
    for (uint64_t seed = 0; seed < 40; seed++) {
        int members = 1 + (int)(NODE * random_uniform(seed, 0)), node = rank / NODE, j = rank % NODE;
        size_t bytes = 1 + (size_t)((BYTES - 1) * pow(random_uniform(seed, 1), 6));
        Comm before = *world;
        world->purpose = COMM_RING;
        send_one(bytes, members, 1);
        world->purpose = COMM_OTHER;
        size_t part = ROUND_UP(CEIL_DIV(bytes, (size_t)members), (size_t)16);
        size_t own = j < members ? MIN(bytes, part * (size_t)(j + 1)) - MIN(bytes, part * (size_t)j) : 0;
        if (members == 1) own = j == 0 ? bytes : 0, part = bytes;
        CHECK(world->sent[COMM_RING][1] - before.sent[COMM_RING][1] == (node == 0 ? own : 0));
        CHECK(world->sent[COMM_RING][0] == before.sent[COMM_RING][0]);
        size_t inside = rank == 0 ? bytes - own : node == 1 && j > 0 ? own : 0;
        CHECK(world->sent[COMM_ROUTE][0] - before.sent[COMM_ROUTE][0] == inside);
        CHECK(world->sent[COMM_ROUTE][1] == before.sent[COMM_ROUTE][1]);
    }
}

int main(int n_arguments, char** arguments) {
    ranks_start(&n_arguments, &arguments);
    virtual_ranks_open(&machine, 2 * NODE, NODE, 1);
    run_claims_together();
    return ranks_done();
}
