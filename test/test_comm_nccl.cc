// test_comm_nccl.cc - collectives between GPUs by NCCL: what every Comm promises (comm_claims.h), streams, how worlds
// open and how they fail.
//
// Built with the stand-ins of test/emu it runs anywhere, and goes through the collectives twice: with streams that do
// their work at once and with streams that do it as late as they may (test/emu/streams.h), so that a wait for an event
// that is missing on either side shows. Built by nvcc with the real NCCL it runs on a machine with one GPU or more,
// with MPI or without (test/ranks.sh). Where ranks share a GPU their kernels take turns, at some milliseconds a
// collective.
//
//   test_comm_nccl CALL    the last rank does not come to a call of NCCL in which the others wait for it: open,
//                          all-reduce (the first of a communicator), send (the first between two ranks) or close.
//                          That ends them: test/nccl_missing_rank.sh says what they must say
#if __has_include(<nccl.h>)
#include <nccl.h>
#else
#define NCCL_VERSION_CODE 0  // a build without NCCL, which says so when a claim opens it
#endif

#include "kernels/cuda/cuda.h"
#include "test/comm_claims.h"

#ifdef __CUDACC__
enum { EMULATED = 0 };
#else
enum { EMULATED = 1 };
#endif

static RankIdentity id;
static cudaStream_t second;  // a stream that has nothing to do with the first

enum {
    GIVE_UP = 2,  // seconds that a Comm waits where a rank is missing
    SOON = 30     // seconds within which a loaded machine should have noticed
};

// ---- ranks

// NCCL 2.30 and newer is told that ranks share a GPU. For an older one each needs a host name of its own and the
// network between them.
static void share_a_gpu(void) {
    static const char* const settings[][2] = {
        {"NCCL_MULTI_RANK_GPU_ENABLE", "1"},
        {"NCCL_NVLS_ENABLE", "0"},
        {"NCCL_MNNVL_ENABLE", "0"},
        {"NCCL_MAX_NCHANNELS", "1"},
        {"NCCL_RAS_ENABLE", "0"},
        {"NCCL_ALGO", "Ring"},
        {"NCCL_PROTO", "Simple"},
        {"NCCL_BUFFSIZE", "1048576"},
        {"NCCL_SOCKET_IFNAME", "lo"},
    };
    static const char* const as_machines[][2] = {
        {"NCCL_NET", "Socket"}, {"NCCL_IB_DISABLE", "1"}, {"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}};
    char host[32];
    for (int i = 0; i < COUNT(settings); i++) setenv(settings[i][0], settings[i][1], 0);
    if (NCCL_VERSION_CODE >= 23000) return;
    snprintf(host, sizeof host, "rank%d", rank);
    setenv("NCCL_HOSTID", host, 0);
    for (int i = 0; i < COUNT(as_machines); i++) setenv(as_machines[i][0], as_machines[i][1], 0);
}

// Who this rank is, and its device with two streams. Ends the program, with words, where a rank has none.
static void start_nccl_ranks(int* n_arguments, char*** arguments) {
    ranks_start(n_arguments, arguments);
    int devices = 0, failed = rank_identity(&id, err);
    if (!failed && (id.rank != rank || id.size != size || size < 2 || size > MOST_RANKS))
        failed = fail(err, "start with test/ranks.sh 4");
    if (!failed) failed = cuda_find_device(err);
    if (!failed) {
        cudaGetDeviceCount(&devices);
        if (!EMULATED && devices < id.size) share_a_gpu();
        CUDA_CHECK(cudaStreamCreateWithFlags(&cuda.stream, cudaStreamNonBlocking));
        CUDA_CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    }
    if (failed) printf("    rank %d: %s\n", rank, err), fflush(stdout);
    int all_failed[2] = {failed != 0, 0};
    ranks_add_up(all_failed);
    if (all_failed[0]) ranks_give_up();
}

static Comm* open_another(double timeout_seconds) {
    Comm* c = NULL;
    int opened = comm_open_nccl(&c, &id, timeout_seconds, err);
    CHECK(opened == 0);
    if (opened) printf("    rank %d: %s\n", rank, err);
    return c;
}

// ---- streams

// Two streams and two communicators: every rank starts them in one order, nobody waits in between.
static void communications_on_two_streams_keep_their_order(void) {
    enum { N = 4096 };
    Comm* part = split(world, rank / 2, 0);
    Buffer x = buffer(N * sizeof(float));
    size_t wrong = 0;
    fill(x.host, rank, 0, N, DT_F32);
    to_device(x);
    CHECK(part->table->wait(part, NULL, err) == 0);
    part->table->all_reduce(part, x.device, N, DT_F32, NULL);
    world->table->all_reduce(world, x.device, N, DT_F32, (Stream)second);
    CHECK(world->table->wait(world, (Stream)second, err) == 0);
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
}

// Another stream ends them: only the collective itself waits for the first one, which has the input. More than the
// transport has events, the oldest first and the last by its own stream.
static void a_communication_sends_what_was_computed_before_it_and_old_requests_end(void) {
    enum { JOBS = 150 };
    static Job jobs[JOBS];
    for (int i = 0; i < 3; i++) end_job(begin_job(world, i), everyone, (Stream)second);
    for (int i = 0; i < JOBS; i++) jobs[i] = begin_job(world, i % 3 + 3 * (i % 2));
    for (int i = 0; i < JOBS; i++) end_job(jobs[i], everyone, i < JOBS - 1 ? (Stream)second : NULL);
}

static void work_after_the_end_sees_what_came_and_overwrites_what_was_sent(void) {
    for (int i = 0; i < 3; i++) {
        Job j = begin_job(world, i);
        size_t n = j.out.bytes / sizeof(float), wrong = 0;
        Buffer twice = buffer(j.out.bytes), meanwhile = buffer(j.out.bytes);
        k->clear(meanwhile.device, meanwhile.bytes, NULL);
        world->table->end(world, j.request, NULL);
        k->clear(j.in.device, j.in.bytes, NULL);
        k->add(twice.device, j.out.device, j.out.device, n, DT_F32, NULL);
        fetch(twice, NULL), fetch(meanwhile, NULL), fetch(j.out, NULL);
        for (size_t e = 0; e < n; e++) {
            wrong += get(twice.host, e, DT_F32) != 2 * get(j.out.host, e, DT_F32);
            wrong += get(meanwhile.host, e, DT_F32) != 0;
        }
        CHECK(wrong == 0);
        end_job(j, everyone, NULL);  // a second time, which does no harm
        free_buffer(twice), free_buffer(meanwhile);
    }
}

// Without an end and on a stream that has nothing to do with it.
static void wait_waits_for_all_that_has_begun(void) {
    for (int i = 0; i < 3; i++) {
        Job j = begin_job(world, i);
        Request request = j.request;
        CHECK(world->table->wait(world, (Stream)second, err) == 0);
        j.request = 0;
        end_job(j, everyone, (Stream)second);
        world->table->end(world, request, NULL);
    }
}

// NCCL takes no more multiprocessors than matmuls beside it leave, and they leave some only while it is at work.
static void matmuls_leave_processors_to_what_is_under_way(void) {
    Buffer x = buffer(MOST_RANKS * sizeof(float)), y = buffer(MOST_RANKS * sizeof(float));
    CHECK(cuda.exchange_sms == 0);
    Request first = world->table->begin_all_gather(world, x.device, x.device + 4 * rank, 1, DT_F32, NULL);
    Request second = world->table->begin_all_gather(world, y.device, y.device + 4 * rank, 1, DT_F32, NULL);
    int during = cuda.exchange_sms;
    world->table->end(world, first, NULL);
    CHECK(during > 0 && during < cuda.sm_count && cuda.exchange_sms == during);
    world->table->end(world, second, NULL);
    CHECK(cuda.exchange_sms == 0);
    comm_all_gather(world, x.device, x.device + 4 * rank, 1, DT_F32, NULL);
    CHECK(cuda.exchange_sms == 0);
#ifndef __CUDACC__
    CHECK(emu_most_ctas == during);
#endif
    free_buffer(x), free_buffer(y);
}

// ---- opening

static void local_ranks_are_counted(void) {
    Comm* c = NULL;
    CHECK(comm_open_nccl(&c, &id, PATIENCE, err) == 0);
    if (!c) return;
    CHECK(c->local_size == size);
    for (int r = 0; r < size; r++) CHECK(c->node[r] == 0);
    c->table->close(c);
}

static void one_rank_alone_copies(void) {
    static const RankIdentity alone = {0, 1, 0, "alone", "", 0};
    Comm *all = world, *c = NULL;
    CHECK(comm_open_nccl(&c, &alone, PATIENCE, err) == 0);
    if (!c) return;
    use_world(c, k);
    sums_and_gathers_are_those_of_all_ranks();
    values_of_one_rank_come_to_all_and_of_all_to_each();
    ragged_all_to_all();
    parts_may_have_one_rank_or_none();
    for (int p = 0; p < N_PURPOSES; p++) CHECK(c->sent[p][0] + c->sent[p][1] == 0);
    use_world(all, k);
    c->table->close(c);
}

// ---- what goes wrong

static void nothing_says_where_rank_0_is(void) {
    RankIdentity lost = id;
    Comm* c = NULL;
    lost.source = "torchrun";
    lost.master[0] = 0;
    unsetenv("NCCL_COMM_ID");
    CHECK(comm_open_nccl(&c, &lost, 5, err) == -1);
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
        CHECK(comm_open_nccl(&c, &id, PATIENCE, err) == -1);
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
    CHECK(comm_open_nccl(&c, &named, PATIENCE, err) == 0);
    CHECK_STRING(getenv("NCCL_COMM_ID") ? getenv("NCCL_COMM_ID") : "", "127.0.0.1:29611");
    if (c) {
        use_world(c, k);
        check_part(c, everyone, size);
        c->table->close(c);
        world = NULL;
    }
    unsetenv("NCCL_COMM_ID");
}

// What a host does behind a collective that one rank does not come to, and what blocks on a GPU.
enum { WAIT, DRAG, DOWNLOAD, SYNCHRONIZE, READ_EVENTS, FREE_MEMORY, FILL_THE_QUEUE, WAYS };

static Request block(Comm* c, int way, void* memory) {
    double seconds[N_TIMES];
    float x;
    if (way == WAIT) return c->table->begin_reduce_scatter(c, memory, memory, 100 / (size_t)size, DT_F32, NULL);
    timer.on = 1;
    timer_slow_down(&timer, 1, 2);  // a straggler on purpose waits for its stream after every collective
    if (way == DRAG) c->timer = &timer, timer_begin(&timer, k, NULL);
    c->table->all_reduce(c, memory, 100, DT_F32, NULL);
    if (way == DRAG) timer_read(&timer, seconds, NULL), c->timer = NULL;
    if (way == DOWNLOAD) k->download(&x, memory, sizeof x, NULL);
    if (way == SYNCHRONIZE) k->synchronize(NULL);
    if (way == READ_EVENTS) k->record_event(0, NULL), k->record_event(1, NULL), k->read_events(seconds, 2);
    if (way == FREE_MEMORY) k->free_memory(k->alloc(100));
    for (int i = 0; i < 5000 && way == FILL_THE_QUEUE; i++) k->add(memory, memory, memory, 1, DT_F32, NULL);
    return 0;
}

// The others wait no longer than they said, and every later call fails with the same words.
static void do_without_the_last(int way) {
    char here = 1, all[MOST_RANKS];
    Comm *c = open_another(GIVE_UP), *part = NULL;
    if (!c) return;
    part = split(c, 0, 0);
    Buffer x = buffer(400);
    c->overlap = 1;
    double start = now_seconds();
    if (rank != size - 1) {
        alarm(2 * SOON);  // for a host that does wait
        Request request = block(c, way, x.device);
        CHECK(c->table->wait(c, NULL, err) == -1);
        alarm(0);
        CHECK(strstr(err, "waiting for the GPU: not done after 2 s: a rank is missing") != NULL);
        CHECK(now_seconds() - start >= GIVE_UP && now_seconds() - start < GIVE_UP + SOON);
        start = now_seconds();
        c->table->end(c, request, NULL);
        ranks_check_failed(c, part, err, x.device);  // a part's memory is the world's
        CHECK(now_seconds() - start < GIVE_UP);
    } else {
        usleep(2000000 * GIVE_UP);  // and finds nobody
        CHECK(c->table->all_gather_host(c, all, &here, 1, err) == -1);
    }
    close_part(part);
    c->table->close(c);
    free_buffer(x);
    ranks_meet();
}

static void a_host_waits_nowhere_for_a_rank_that_stays_away(void) {
    for (int way = 0; way < WAYS; way++) do_without_the_last(way);
}

static void a_broken_link_is_told_at_once(void) {
    if (!EMULATED) SKIP("no link of a real machine can be broken here");
    Comm* c = open_another(10 * SOON);
    if (!c) return;
    setenv("EMU_NCCL_SECONDS", "0.5", 1);
    double start = now_seconds();
    char byte = 0;
    if (rank != 0) {
        CHECK(c->table->broadcast_host(c, &byte, 1, 0, err) == -1);
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
    if (comm_open_nccl(&world, &id, GIVE_UP, err)) die("%s", err);
    Comm* part = split(world, 0, 0);
    if (missing) stay_away();
    Buffer x = buffer(100);
    Transfer message = {size - 1, x.device, 4};
    if (!strcmp(call, "all-reduce")) part->table->all_reduce(part, x.device, 1, DT_F32, NULL);
    if (!strcmp(call, "send")) comm_send_receive(part, &message, 1, NULL, 0, NULL);
    if (!strcmp(call, "close")) part->table->close(part);
    die("%s came back without the last rank", call);
}

// ---- running

static void claim_streams(void) {
    claim_collectives();
    RUN_TOGETHER(communications_on_two_streams_keep_their_order);
    RUN_TOGETHER(a_communication_sends_what_was_computed_before_it_and_old_requests_end);
    RUN_TOGETHER(work_after_the_end_sees_what_came_and_overwrites_what_was_sent);
    RUN_TOGETHER(wait_waits_for_all_that_has_begun);
    RUN_TOGETHER(matmuls_leave_processors_to_what_is_under_way);
    claim_timers();
}

static void claim_worlds(void) {
    RUN_TOGETHER(bytes_are_counted_by_purpose_and_node);
    RUN_TOGETHER(a_node_of_no_ranks_is_refused);
    RUN_TOGETHER(local_ranks_are_counted);
    RUN_TOGETHER(one_rank_alone_copies);
    world->table->close(world);
    world = NULL;
    RUN_TOGETHER(nothing_says_where_rank_0_is);
    RUN_TOGETHER(two_ranks_on_one_gpu_are_refused);
    RUN_TOGETHER(master_address_opens_without_mpi);
    RUN_TOGETHER(a_host_waits_nowhere_for_a_rank_that_stays_away);
    RUN_TOGETHER(a_broken_link_is_told_at_once);
}

int main(int n_arguments, char** arguments) {
    start_nccl_ranks(&n_arguments, &arguments);
    k = &cuda_kernels;
    if (n_arguments > 1) miss(arguments[1]);
    if (EMULATED) setenv("RAGGED_EXCHANGE_SMS", "1", 1);  // of 4
    if (comm_open_nccl(&world, &id, PATIENCE, err)) die("%s", err);
    use_world(world, k);
    world->overlap = 1;
    claim_streams();
    if (EMULATED) {
        if (rank == 0) printf("  and once more with work on streams as late as it may come:\n");
        setenv("EMU_STREAMS", "late", 1);
        claim_streams();
        unsetenv("EMU_STREAMS");
    }
    claim_worlds();
    return ranks_done();
}
