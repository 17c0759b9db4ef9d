// test_comm_nccl.cc - collectives between 4 ranks, against sums and copies on the host.
//
// On the emulator it goes through them twice: with streams that do their work at once and with streams that do it as
// late as they may (test/emu/streams.h), so that a wait for an event that is missing on either side shows.
#include "test/nccl_ranks.h"

static const DType dtypes[] = {DT_F32, DT_BF16, DT_F64};
static const size_t counts[] = {0, 1, 3, 1000, 70001};

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
    comm_reduce_scatter(world, out, in.device, n, dt, NULL);
    if (in_place) {
        k->download(sum.host, out, part, NULL);
        check_sum(sum.host, (size_t)rank * n, n, dt, everyone, size);
        comm_all_gather(world, in.device, out, n, dt, NULL);
        to_host(world, in);
        check_sum(in.host, 0, (size_t)size * n, dt, everyone, size);
    } else {
        to_host(world, sum);
        check_sum(sum.host, (size_t)rank * n, n, dt, everyone, size);
        to_host(world, in);
        check_sum(in.host, 0, (size_t)size * n, dt, &rank, 1);  // as it was
        comm_all_gather(world, all.device, out, n, dt, NULL);
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
    comm_reduce_scatter(world, NULL, NULL, 0, DT_F32, NULL);
    comm_all_gather(world, NULL, NULL, 0, DT_F32, NULL);
}

// The same on every run, and on every rank.
static void sums_have_the_same_bits_every_time(void) {
    enum { N = 5000, RUNS = 3 };
    uint64_t hashes[RUNS], of_all[MOST_RANKS];
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

// Of some pairs none at all; of others an odd number, or more than what MPI sends at once.
static size_t bytes_between(int from, int to) {
    static const size_t sizes[] = {0, 1003, 1, 200001, 64};
    return sizes[(from * 2 + to) % COUNT(sizes)];
}

static void uneven_all_to_all(void) {
    size_t send_bytes = 0, receive_bytes = 0, none = 0;
    Transfer sends[MOST_RANKS], receives[MOST_RANKS];
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
    comm_send_receive(world, sends, size, receives, size, NULL);
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
    comm_send_receive(world, sends, COUNT(sends), receives, COUNT(receives), NULL);
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
        comm_send_receive(world, &send, 1, &receive, 1, NULL);
        to_host(world, block[(step + 1) % 2]);
        check_message(block[(step + 1) % 2].host, (rank + size - 1 - step) % size, 0, BYTES);
    }
    free_buffer(block[0]), free_buffer(block[1]);
}

static void ranks_without_messages_need_not_communication(void) {
    Buffer x = buffer(100);
    int last = size - 1;
    fill_message(x.host, rank, 5, 100);
    to_device(x);
    Transfer message = {rank == 0 ? last : 0, x.device, 100};
    if (rank == 0) comm_send_receive(world, &message, 1, NULL, 0, NULL);
    if (rank == last) comm_send_receive(world, NULL, 0, &message, 1, NULL);
    to_host(world, x);
    check_message(x.host, rank == last ? 0 : rank, 5, 100);
    comm_send_receive(world, NULL, 0, NULL, 0, NULL);
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

// Two streams and two communicators: every rank starts them in one order, nobody waits in between.
static void communications_on_two_streams_keep_their_order(void) {
    enum { N = 4096 };
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
}

// ---- collectives under way

// One of several that are under way at once: what kind depends on i, and each has memory of its own.
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
    fill(j.in.host, rank, 0, j.in.bytes / sizeof(float), DT_F32);
    to_device(j.in);
    Transfer send = {(c->rank + 1) % c->size, j.in.device, j.in.bytes};
    Transfer receive = {(c->rank + c->size - 1) % c->size, j.out.device, j.out.bytes};
    j.request = kind == 0   ? c->table->begin_reduce_scatter(c, j.out.device, j.in.device, n, DT_F32, NULL)
                : kind == 1 ? c->table->begin_all_gather(c, j.out.device, j.in.device, n, DT_F32, NULL)
                            : c->table->begin_send_receive(c, &send, 1, &receive, 1, NULL);
    return j;
}

// Ends it on the stream, and checks it there: no other wait may help. Its hash. ranks: those of its Comm in the world.
static uint64_t end_job(Job j, const int* ranks, Stream s) {
    int before = (j.c->rank + j.c->size - 1) % j.c->size;
    j.c->table->end(j.c, j.request, s);
    fetch(j.out, s);
    if (j.kind == 0) check_sum(j.out.host, (size_t)j.c->rank * j.n, j.n, DT_F32, ranks, j.c->size);
    for (int r = 0; r < j.c->size && j.kind == 1; r++)
        check_sum(j.out.host + (size_t)r * j.n * sizeof(float), 0, j.n, DT_F32, &ranks[r], 1);
    if (j.kind == 2) check_sum(j.out.host, 0, j.n, DT_F32, &ranks[before], 1);
    uint64_t hash = hash_bytes(j.out.host, j.out.bytes, 0);
    free_buffer(j.in), free_buffer(j.out);
    return hash;
}

// Of the world and of a part at the same time, each rank in an order of its own.
static void communications_end_in_any_order_with_the_same_bits(void) {
    enum { JOBS = 12 };
    uint64_t hashes[2][JOBS];
    Job jobs[JOBS];
    int ranks[MOST_RANKS], n = 0;
    for (int r = rank % 2; r < size; r += 2) ranks[n++] = r;
    for (int overlap = 0; overlap < 2; overlap++) {
        world->overlap = overlap;
        Comm* part = split(world, rank % 2, 0);
        for (int i = 0; i < JOBS; i++) {
            jobs[i] = begin_job(i / 3 % 2 ? part : world, i);
            CHECK((jobs[i].request != 0) == (overlap && jobs[i].c->size > 1));
        }
        for (int i = 0; i < JOBS; i++) {
            int next = (rank + 1 + (rank % 2 ? 5 : 7) * i) % JOBS;  // all of them, for 12 has no such factor
            hashes[overlap][next] = end_job(jobs[next], jobs[next].c == world ? everyone : ranks, NULL);
        }
        close_part(part);
    }
    for (int i = 0; i < JOBS; i++) CHECK(hashes[0][i] == hashes[1][i]);
}

// More requests than the transport has events, the oldest first and all but the last by another stream.
static void very_old_requests_end(void) {
    enum { JOBS = 150 };
    static Job jobs[JOBS];
    for (int i = 0; i < JOBS; i++) jobs[i] = begin_job(world, i % 3 + 3 * (i % 2));
    for (int i = 0; i < JOBS; i++) end_job(jobs[i], everyone, i < JOBS - 1 ? (Stream)second : NULL);
}

// Another stream ends it: only the collective itself waits for the first one, which has the input.
static void an_communication_sends_what_was_computed_before_it(void) {
    for (int i = 0; i < 3; i++) end_job(begin_job(world, i), everyone, (Stream)second);
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
        CHECK(world->table->wait(world, (Stream)second, err, sizeof err) == 0);
        j.request = 0;
        end_job(j, everyone, (Stream)second);
        world->table->end(world, request, NULL);
    }
}

// Nobody leaves before the last has come.
static void barrier_holds_everyone(void) {
    double came, left, all_came[MOST_RANKS];
    for (int late = 0; late < size; late++) {
        if (rank == late) usleep(50000);
        came = now_seconds();
        CHECK(world->table->barrier(world, err, sizeof err) == 0);
        left = now_seconds();
        CHECK(world->table->all_gather_host(world, all_came, &came, sizeof came, err, sizeof err) == 0);
        for (int r = 0; r < size; r++) CHECK(left >= all_came[r]);
    }
}

// ---- what the timer is told

static Timer timer;

static void begin_timing(double drag) {
    CHECK(world->table->barrier(world, err, sizeof err) == 0);
    timer.on = 1;
    timer.drag = drag;
    world->timer = &timer;
    timer_begin(&timer, k, NULL);
    timer_enter(&timer, TIME_LINEAR, NULL);
}

static void end_timing(double seconds[N_TIMES]) {
    CHECK(timer_enter(&timer, TIME_LINEAR, NULL) == TIME_LINEAR);  // every entry came back to it
    timer_read(&timer, seconds, NULL);
    world->timer = NULL;
}

// Where the stream comes to an end, or the host sends values of its own.
static void each_communication_that_is_waited_for_cuts_a_step_once(void) {
    double seconds[N_TIMES];
    char byte = 0, bytes[MOST_RANKS];
    Buffer x = buffer(MOST_RANKS * sizeof(float)), y = buffer(MOST_RANKS * sizeof(float));
    Transfer send = {(rank + 1) % size, x.device, 4}, receive = {(rank + size - 1) % size, y.device, 4};
    int overlap = world->overlap;
    to_device(x);
    for (world->overlap = 0; world->overlap < 2; world->overlap++) {
        begin_timing(0);
        world->table->all_reduce(world, x.device, 1, DT_F32, NULL);
        world->table->broadcast(world, x.device, 4, 0, NULL);
        comm_reduce_scatter(world, y.device, x.device, 1, DT_F32, NULL);
        comm_all_gather(world, x.device, y.device, 1, DT_F32, NULL);
        comm_send_receive(world, &send, 1, &receive, 1, NULL);
        comm_all_gather(world, NULL, NULL, 0, DT_F32, NULL);
        comm_send_receive(world, NULL, 0, NULL, 0, NULL);
        CHECK(world->table->all_gather_host(world, bytes, &byte, 1, err, sizeof err) == 0);
        CHECK(world->table->broadcast_host(world, &byte, 1, 0, err, sizeof err) == 0);
        CHECK(world->table->barrier(world, err, sizeof err) == 0);
        CHECK(world->table->wait(world, NULL, err, sizeof err) == 0);
        end_timing(seconds);
        CHECK(timer.n_segments == 5 + 4 + 1);
        Comm* part = split(world, rank / 2, 0);
        CHECK(part && part->timer == NULL);
        close_part(part);
    }
    world->overlap = overlap;
    free_buffer(x), free_buffer(y);
}

// Half a second, against what other work on this machine may take. Streams that are late come to the first mark only
// after the sleep.
static void timers_tell_which_rank_is_late(void) {
    double seconds[N_TIMES];
    int late = rank == size - 1, marks_are_late = getenv("EMU_STREAMS") != NULL;
    Buffer x = buffer(sizeof(float));
    to_device(x);
    begin_timing(0);
    if (late) usleep(500000);
    world->table->all_reduce(world, x.device, 1, DT_F32, NULL);
    end_timing(seconds);
    CHECK(late && !marks_are_late ? seconds[TIME_LINEAR] >= 0.5 : seconds[TIME_LINEAR] < 0.2);
    CHECK(late ? seconds[TIME_WAIT] < 0.2 : seconds[TIME_WAIT] > 0.3);
    free_buffer(x);
}

// Five times 0.1 s are its drag's, and no less wherever the first mark lies. The collective itself must be that late,
// or the others would wait only for the next one.
static void an_injected_straggler_makes_the_others_wait(void) {
    int overlap = world->overlap;
    for (world->overlap = 0; world->overlap < 2; world->overlap++) {
        double seconds[N_TIMES];
        int slow = rank == size - 1;
        Buffer x = buffer(MOST_RANKS * sizeof(float));
        to_device(x);
        begin_timing(slow ? 6 : 1);
        usleep(100000);
        comm_all_gather(world, x.device, x.device + (size_t)rank * sizeof(float), 1, DT_F32, NULL);
        end_timing(seconds);
        CHECK(slow ? seconds[TIME_LINEAR] >= 0.5 : seconds[TIME_LINEAR] < 0.3);
        CHECK(slow ? seconds[TIME_WAIT] < 0.2 : seconds[TIME_WAIT] > 0.3);
        free_buffer(x);
    }
    world->overlap = overlap;
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

// ---- running

static void run_communications(void) {
    RUN_TOGETHER(all_reduce_is_the_sum_of_all_ranks);
    RUN_TOGETHER(reduce_scatter_and_all_gather_make_an_all_reduce);
    RUN_TOGETHER(sums_have_the_same_bits_every_time);
    RUN_TOGETHER(uneven_all_to_all);
    RUN_TOGETHER(messages_of_a_pair_match_in_order);
    RUN_TOGETHER(ring_steps);
    RUN_TOGETHER(ranks_without_messages_need_not_communication);
    RUN_TOGETHER(broadcast_from_every_root);
    RUN_TOGETHER(host_values_of_any_size);
    RUN_TOGETHER(split_into_neighbours);
    RUN_TOGETHER(split_by_stride_in_order_of_keys);
    RUN_TOGETHER(split_leaves_out_negative_colors);
    RUN_TOGETHER(split_into_single_ranks);
    RUN_TOGETHER(parts_of_parts_outlive_their_parents);
    RUN_TOGETHER(communications_on_two_streams_keep_their_order);
    RUN_TOGETHER(communications_end_in_any_order_with_the_same_bits);
    RUN_TOGETHER(very_old_requests_end);
    RUN_TOGETHER(an_communication_sends_what_was_computed_before_it);
    RUN_TOGETHER(work_after_the_end_sees_what_came_and_overwrites_what_was_sent);
    RUN_TOGETHER(wait_waits_for_all_that_has_begun);
    RUN_TOGETHER(matmuls_leave_processors_to_what_is_under_way);
    RUN_TOGETHER(barrier_holds_everyone);
    RUN_TOGETHER(each_communication_that_is_waited_for_cuts_a_step_once);
    RUN_TOGETHER(timers_tell_which_rank_is_late);
    RUN_TOGETHER(an_injected_straggler_makes_the_others_wait);
}

int main(int n_arguments, char** arguments) {
    start_nccl_ranks(&n_arguments, &arguments);
    if (EMULATED) setenv("RAGGED_EXCHANGE_SMS", "1", 1);  // of 4
    if (comm_open_nccl(&world, &id, PATIENCE, err, sizeof err)) die("%s", err);
    world->overlap = 1;
    run_communications();
    if (EMULATED) {
        if (rank == 0) printf("  and once more with work on streams as late as it may come:\n");
        setenv("EMU_STREAMS", "late", 1);
        run_communications();
        unsetenv("EMU_STREAMS");
    }
    return ranks_done();
}
