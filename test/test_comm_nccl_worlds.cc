// test_comm_nccl_worlds.cc - worlds of 4 ranks: how they open, what they know of machines, what they count, and
// how they fail. Each claim opens its own.
//
//   test_comm_nccl_worlds CALL    the last rank does not come to a call of NCCL in which the others wait for it: open,
//                                 all-reduce (the first of a communicator), send (the first between two ranks) or
//                                 close. That ends them: test/nccl_missing_rank.sh says what they must say
#include "test/nccl_ranks.h"

enum {
    GIVE_UP = 2,  // seconds that a Comm waits where a rank is missing
    SOON = 30     // seconds within which a loaded machine should have noticed
};

static void open_world(Comm** c, double timeout_seconds) {
    int opened = comm_open_nccl(c, &id, timeout_seconds, err, sizeof err);
    CHECK(opened == 0);
    if (opened) printf("    rank %d: %s\n", rank, err);
}

// ---- machines, and what goes between them

// What was counted since the last check: for the purpose, and for rank r of the Comm bytes[r]; nothing else.
static void check_sent(Comm* c, CommPurpose purpose, const size_t* bytes) {
    uint64_t expected[N_PURPOSES][2] = {};
    for (int r = 0; r < c->size; r++)
        if (r != c->rank) expected[purpose][c->node[r] != c->node[c->rank]] += bytes[r];
    CHECK(memcmp(c->sent, expected, sizeof expected) == 0);
    memset(c->sent, 0, sizeof c->sent);
}

static void check_sent_to_each(Comm* c, CommPurpose purpose, size_t bytes) {
    size_t each[MOST_RANKS] = {};
    for (int r = 0; r < c->size; r++) each[r] = bytes;
    check_sent(c, purpose, each);
}

static void check_counts_of_sends(Comm* c) {
    Buffer in = buffer(MOST_RANKS * 200), out = buffer(MOST_RANKS * 200);
    Transfer sends[MOST_RANKS + 1], receives[MOST_RANKS + 1];
    size_t bytes[MOST_RANKS], last = (size_t)c->size - 1;
    for (int r = 0; r < c->size; r++) {
        sends[r] = {r, in.device + 200 * r, (size_t)(10 * c->rank + r)};
        receives[r] = {r, out.device + 200 * r, (size_t)(10 * r + c->rank)};
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
    check_sent_to_each(c, COMM_RING, 2 * 4 * CEIL_DIV(1001u, (size_t)c->size));
    c->purpose = COMM_OTHER;
    c->table->broadcast(c, in.device, 100, (int)last, NULL);
    check_sent_to_each(c, COMM_OTHER, c->rank == (int)last ? 100 : 0);
    comm_all_gather(c, out.device, in.device, 0, DT_F64, NULL);
    check_sent_to_each(c, COMM_OTHER, 0);
    to_host(c, out);
    free_buffer(in), free_buffer(out);
}

// As comm.h says, and values of the host for one purpose only.
static void check_counts(Comm* c) {
    char host[MOST_RANKS * 24] = {};
    Comm* part = NULL;
    check_sent_to_each(c, COMM_OTHER, 0);  // whatever opening it took
    check_counts_of_sends(c);
    c->purpose = COMM_ULYSSES;
    CHECK(c->table->all_gather_host(c, host, "twenty-four bytes, or so", 24, err, sizeof err) == 0);
    check_sent_to_each(c, COMM_HOST, 24);
    CHECK(c->table->broadcast_host(c, host, 5, 0, err, sizeof err) == 0);
    check_sent_to_each(c, COMM_HOST, c->rank == 0 ? 5 : 0);
    CHECK(c->table->barrier(c, err, sizeof err) == 0);
    part = split(c, 0, 0);
    check_sent_to_each(c, COMM_ULYSSES, 0);
    close_part(part);
    CHECK(c->exposed_seconds == 0);
}

// Parts number the machines of their own ranks: here in the order in which their ranks, backwards, come to them.
static void check_machines(int ranks_of_machine) {
    char text[16];
    Comm* c = NULL;
    snprintf(text, sizeof text, "%d", ranks_of_machine);
    setenv("RAGGED_NODE_SIZE", text, 1);
    open_world(&c, PATIENCE);
    unsetenv("RAGGED_NODE_SIZE");
    if (!c) return;
    for (int r = 0; r < size; r++) CHECK(c->node[r] == r / ranks_of_machine);
    CHECK(c->local_rank == id.local_rank && c->local_size == id.local_size);
    check_counts(c);
    Comm *backwards = split(c, 0, -rank), *stride = split(c, rank % 2, -rank);
    for (int r = 0; r < size; r++)
        CHECK(backwards->node[r] == (size - 1) / ranks_of_machine - (size - 1 - r) / ranks_of_machine);
    for (int r = 1; r < stride->size; r++) {
        int last = size - 1 - (size - 1 - rank) % 2, above = last - 2 * (r - 1), own = above - 2;
        CHECK(stride->node[r] - stride->node[r - 1] == (above / ranks_of_machine != own / ranks_of_machine));
    }
    CHECK(stride->node[0] == 0);
    check_counts(backwards);
    check_counts(stride);
    close_part(backwards), close_part(stride);
    c->table->close(c);
}

static void bytes_are_counted_between_machines(void) {
    for (int ranks = 1; ranks <= size; ranks++) check_machines(ranks);
}

static void a_machine_of_no_ranks_is_refused(void) {
    static const char* const wrong[] = {"0", "-2", "two", "2x", "99999999999"};
    for (int i = 0; i < COUNT(wrong); i++) {
        Comm* c = NULL;
        setenv("RAGGED_NODE_SIZE", wrong[i], 1);
        CHECK(comm_open_nccl(&c, &id, PATIENCE, err, sizeof err) == -1);
        CHECK(c == NULL && strstr(err, "RAGGED_NODE_SIZE") && strstr(err, wrong[i]));
    }
    unsetenv("RAGGED_NODE_SIZE");
}

static void local_ranks_are_counted_where_nobody_tells_them(void) {
    RankIdentity unknown = id;
    Comm* c = NULL;
    unknown.local_rank = unknown.rank;
    unknown.local_size = 0;
    CHECK(comm_open_nccl(&c, &unknown, PATIENCE, err, sizeof err) == 0);
    if (!c) return;
    CHECK(c->local_rank == id.local_rank && c->local_size == id.local_size);
    for (int r = 0; r < size; r++) CHECK(c->node[r] == 0);
    c->table->close(c);
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
    CHECK(c->rank == 0 && c->size == 1 && c->node[0] == 0);
    c->table->all_reduce(c, from.device, 25, DT_F32, NULL);
    c->table->broadcast(c, from.device, 100, 0, NULL);
    comm_reduce_scatter(c, to.device, from.device, 10, DT_F32, NULL);
    comm_all_gather(c, to.device + 40, from.device + 40, 10, DT_BF16, NULL);
    Transfer sends[] = {{0, from.device + 60, 10}, {0, NULL, 0}, {0, from.device + 70, 30}};
    Transfer receives[] = {{0, to.device + 60, 10}, {0, to.device + 70, 30}};
    comm_send_receive(c, sends, COUNT(sends), receives, COUNT(receives), NULL);
    to_host(c, to);
    check_message(to.host, rank, 9, 100);
    CHECK(c->table->all_gather_host(c, copy, host, sizeof host, err, sizeof err) == 0);
    CHECK(c->table->broadcast_host(c, host, sizeof host, 0, err, sizeof err) == 0);
    CHECK(memcmp(copy, host, sizeof host) == 0);
    CHECK(c->table->barrier(c, err, sizeof err) == 0);
    for (int p = 0; p < N_PURPOSES; p++) CHECK(c->sent[p][0] + c->sent[p][1] == 0);
    CHECK(c->table->split(c, &part, 2, 0, err, sizeof err) == 0 && part && part->size == 1);
    close_part(part);
    CHECK(c->table->split(c, &part, -1, 0, err, sizeof err) == 0 && part == NULL);
    c->table->close(c);
    free_buffer(from), free_buffer(to);
}

// ---- what goes wrong

static void nothing_says_where_rank_0_is(void) {
    RankIdentity lost = id;
    Comm* c = NULL;
    lost.source = "torchrun";
    lost.master[0] = 0;
    unsetenv("NCCL_COMM_ID");
    CHECK(comm_open_nccl(&c, &lost, 5, err, sizeof err) == -1);
    CHECK(c == NULL && strstr(err, "MASTER_ADDR") && strstr(err, "MASTER_PORT"));
}

// In the words of NCCL to 2.29, and of newer ones.
static void two_ranks_on_one_gpu_are_refused(void) {
    static const char* const words[] = {"Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 59000",
                                        "Multiple Ranks are using the same GPU/Partition. Set "
                                        "NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration."};
    int n = EMULATED ? COUNT(words) : 0;
    if (n == 0) test_skip_reason = "NCCL is told that ranks share a GPU, or does not know";
    for (int i = 0; i < n; i++) {
        Comm* c = NULL;
        setenv("EMU_NCCL_ONE_GPU", words[i], 1);
        CHECK(comm_open_nccl(&c, &id, PATIENCE, err, sizeof err) == -1);
        CHECK(c == NULL && strstr(err, words[i]) && strstr(err, "CUDA_VISIBLE_DEVICES"));
    }
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
        c->overlap = 1;
        Request request = c->table->begin_reduce_scatter(c, x.device, x.device, 100 / (size_t)size, DT_F32, NULL);
        CHECK(c->table->wait(c, NULL, err, sizeof err) == -1);
        CHECK(strstr(err, "not done after 2 s") != NULL);
        CHECK(now_seconds() - start >= GIVE_UP && now_seconds() - start < GIVE_UP + SOON);
        start = now_seconds();
        c->table->end(c, request, NULL);
        c->table->all_reduce(c, x.device, 100, DT_F32, NULL);
        c->table->broadcast(c, x.device, 100, 0, NULL);
        CHECK(c->table->begin_all_gather(c, x.device, x.device, 1, DT_F32, NULL) == 0);
        CHECK(c->table->wait(c, NULL, later, sizeof later) == -1);
        CHECK_STRING(later, err);
        CHECK(part->table->wait(part, NULL, later, sizeof later) == -1);  // its memory is the world's
        CHECK(c->table->all_gather_host(c, all, own, sizeof own, later, sizeof later) == -1);
        CHECK(c->table->broadcast_host(c, own, sizeof own, 0, later, sizeof later) == -1);
        CHECK(c->table->barrier(c, later, sizeof later) == -1);
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

// All ranks but the last exchange something and wait for it on the host; the world gives up in time.
static void do_without_the_last(void (*exchange)(Comm* c, char* memory)) {
    Comm* c = NULL;
    char byte = 0, all[64];
    open_world(&c, GIVE_UP);
    if (!c) return;
    Buffer x = buffer(400);
    double start = now_seconds();
    if (rank != size - 1) {
        alarm(2 * SOON);  // for a host that does wait
        exchange(c, (char*)x.device);
        alarm(0);
        CHECK(c->table->wait(c, NULL, err, sizeof err) == -1);
        CHECK(strstr(err, "waiting for the GPU: not done after 2 s: a rank is missing") != NULL);
        CHECK(now_seconds() - start >= GIVE_UP && now_seconds() - start < GIVE_UP + SOON);
    } else {
        usleep(2000000 * GIVE_UP);  // and finds nobody
        CHECK(c->table->all_gather_host(c, all, &byte, 1, err, sizeof err) == -1);
    }
    c->table->close(c);
    free_buffer(x);
    ranks_meet();
}

// A straggler on purpose waits for its stream after every collective: not for ever.
static void drag(Comm* c, char* memory) {
    static Timer timer;
    double seconds[N_TIMES];
    timer.on = 1;
    timer.drag = 2;
    c->timer = &timer;
    timer_begin(&timer, k, NULL);
    c->table->all_reduce(c, memory, 100, DT_F32, NULL);
    timer_read(&timer, seconds, NULL);
}
static void a_timer_that_drags_does_not_wait_for_the_missing(void) { do_without_the_last(drag); }

// What a host does behind a collective that one rank does not come to, and that blocks on a GPU.
static void download_a_float(Comm* c, char* memory) {
    float x;
    c->table->all_reduce(c, memory, 100, DT_F32, NULL);
    k->download(&x, memory, sizeof x, NULL);
}
static void synchronize_the_stream(Comm* c, char* memory) {
    c->table->all_reduce(c, memory, 100, DT_F32, NULL);
    k->synchronize(NULL);
}
static void read_two_events(Comm* c, char* memory) {
    double seconds[2];
    c->table->all_reduce(c, memory, 100, DT_F32, NULL);
    k->record_event(0, NULL), k->record_event(1, NULL);
    k->read_events(seconds, 2);
}
static void free_some_memory(Comm* c, char* memory) {
    c->table->all_reduce(c, memory, 100, DT_F32, NULL);
    k->free_memory(k->alloc(100));
}
static void launch_more_than_a_queue_holds(Comm* c, char* memory) {
    c->table->all_reduce(c, memory, 100, DT_F32, NULL);
    for (int i = 0; i < 5000; i++) k->add(memory, memory, memory, 1, DT_F32, NULL);
}

static void a_host_does_not_block_behind_the_collective_of_a_missing_rank(void) {
    void (*const blocking[])(Comm*, char*) = {download_a_float, synchronize_the_stream, read_two_events,
                                              free_some_memory, launch_more_than_a_queue_holds};
    for (int i = 0; i < COUNT(blocking); i++) do_without_the_last(blocking[i]);
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

static void stay_away(void) {
    ranks_sleep(SOON);
    _exit(0);
}

static void miss(const char* call) {
    int missing = rank == size - 1;
    if (missing && !strcmp(call, "open")) stay_away();
    if (comm_open_nccl(&world, &id, GIVE_UP, err, sizeof err)) die("%s", err);
    Comm* part = split(world, 0, 0);
    if (missing) stay_away();
    Buffer x = buffer(100);
    Transfer message = {size - 1, x.device, 4};
    if (!strcmp(call, "all-reduce")) part->table->all_reduce(part, x.device, 1, DT_F32, NULL);
    if (!strcmp(call, "send")) comm_send_receive(part, &message, 1, NULL, 0, NULL);
    if (!strcmp(call, "close")) part->table->close(part);
    die("%s came back without the last rank", call);
}

int main(int n_arguments, char** arguments) {
    start_nccl_ranks(&n_arguments, &arguments);
    if (n_arguments > 1) miss(arguments[1]);
    RUN_TOGETHER(bytes_are_counted_between_machines);
    RUN_TOGETHER(a_machine_of_no_ranks_is_refused);
    RUN_TOGETHER(local_ranks_are_counted_where_nobody_tells_them);
    RUN_TOGETHER(one_rank_alone_copies);
    RUN_TOGETHER(nothing_says_where_rank_0_is);
    RUN_TOGETHER(two_ranks_on_one_gpu_are_refused);
    RUN_TOGETHER(master_address_opens_without_mpi);
    RUN_TOGETHER(a_rank_that_stays_away_is_not_waited_for);
    RUN_TOGETHER(a_timer_that_drags_does_not_wait_for_the_missing);
    RUN_TOGETHER(a_host_does_not_block_behind_the_collective_of_a_missing_rank);
    RUN_TOGETHER(a_broken_link_is_told_at_once);
    return ranks_done();
}
