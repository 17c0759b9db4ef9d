// comm_timer_checks.h - claims of test_comm.c about Comm.timer: a transport tells it of each wait for other ranks, and
// of nothing else. Comms here are in host memory and of the size of the world.
#pragma once
#include "test/ranks.h"

enum { TIMED_RANKS = 64 };  // at most

static Timer timer;
static char timer_err[ERR_BYTES];

// A step of the world from here on, timed by the wall's clock.
static void begin_timing(Comm* c) {
    CHECK(c->table->barrier(c, timer_err, sizeof timer_err) == 0);
    timer.on = 1;
    c->timer = &timer;
    timer_begin(&timer, kernels_find("cpu", "generic", timer_err, sizeof timer_err), NULL);
    timer_enter(&timer, TIME_LINEAR, NULL);
}

static void end_timing(Comm* c, double seconds[N_TIMES]) {
    CHECK(timer_enter(&timer, TIME_LINEAR, NULL) == TIME_LINEAR);  // every entry came back to it
    timer_read(&timer, seconds, NULL);
    c->timer = NULL;
}

// Each once, those that begin and end included.
static void every_kind_of_communication(Comm* c, size_t n) {
    float x[TIMED_RANKS] = {0}, y[TIMED_RANKS];
    Transfer send = {(rank + 1) % size, x, n * sizeof *x}, receive = {(rank + size - 1) % size, y, n * sizeof *x};
    c->table->all_reduce(c, x, n, DT_F32, NULL);
    c->table->broadcast(c, x, n, 0, NULL);
    comm_reduce_scatter(c, x + (size_t)rank * n, x, n, DT_F32, NULL);
    comm_all_gather(c, y, x, n, DT_F32, NULL);
    comm_send_receive(c, &send, n > 0, &receive, n > 0, NULL);
    CHECK(c->table->all_gather_host(c, y, x, n, timer_err, sizeof timer_err) == 0);
    CHECK(c->table->broadcast_host(c, x, n, 0, timer_err, sizeof timer_err) == 0);
}

// A begun one when it ends. What has nothing to send does not cut either, and nor does a part, whose timer is its own.
static void each_communication_that_is_waited_for_cuts_a_step_once(void) {
    double seconds[N_TIMES];
    for (world->overlap = 0; world->overlap < 2; world->overlap++) {
        Comm* part = NULL;
        begin_timing(world);
        every_kind_of_communication(world, 1);
        every_kind_of_communication(world, 0);
        CHECK(world->table->barrier(world, timer_err, sizeof timer_err) == 0);
        CHECK(world->table->wait(world, NULL, timer_err, sizeof timer_err) == 0);
        end_timing(world, seconds);
        CHECK(timer.n_segments == 7 + 2 + 1);
        CHECK(world->table->split(world, &part, 0, 0, timer_err, sizeof timer_err) == 0 && part && part->timer == NULL);
        if (part) part->table->close(part);
    }
    world->overlap = 0;
}

// In a world that computes in lock step the wall's clock is the same on all ranks; the late one computes longer, and
// the others wait for it. Half a second, against what other work on this machine may take.
static void timers_tell_which_rank_is_late(void) {
    for (int overlap = 0; overlap < 2; overlap++) {
        float x[2] = {1, 2}, all[2 * TIMED_RANKS];
        double seconds[N_TIMES], walls[TIMED_RANKS], least = 1e9, most = 0;
        int late = size - 1;
        begin_timing(world);
        world->overlap = overlap;
        if (rank == late) ranks_sleep(0.5);
        comm_all_gather(world, all, x, 2, DT_F32, NULL);
        end_timing(world, seconds);
        double wall = seconds[TIME_LINEAR] + seconds[TIME_WAIT] + seconds[TIME_OTHER];
        CHECK(world->table->all_gather_host(world, walls, &wall, sizeof wall, timer_err, sizeof timer_err) == 0);
        for (int r = 0; r < size; r++) least = MIN(least, walls[r]), most = MAX(most, walls[r]);
        CHECK_CLOSE(most, least, 0.2);
        CHECK(rank == late ? seconds[TIME_LINEAR] >= 0.5 : seconds[TIME_LINEAR] < 0.2);
        CHECK(rank == late ? seconds[TIME_WAIT] < 0.2 : seconds[TIME_WAIT] > 0.3);
    }
    world->overlap = 0;
}

// Beginning one more than there is room for is waiting too.
static void waiting_for_room_is_no_computing(void) {
    enum { AT_ONCE = 100 };
    static float x[AT_ONCE], all[AT_ONCE][TIMED_RANKS];
    Request requests[AT_ONCE];
    double seconds[N_TIMES];
    begin_timing(world);
    world->overlap = 1;
    if (rank == size - 1) ranks_sleep(0.5);
    for (int i = 0; i < AT_ONCE; i++)
        requests[i] = world->table->begin_all_gather(world, all[i], &x[i], 1, DT_F32, NULL);
    if (rank < size - 1) CHECK(timer.n > 2);
    for (int i = 0; i < AT_ONCE; i++) world->table->end(world, requests[i], NULL);
    end_timing(world, seconds);
    if (rank < size - 1) CHECK(seconds[TIME_LINEAR] < 0.3);
    world->overlap = 0;
}

// Straggling on purpose makes the others wait, also for a collective that only begins, and the straggler's own
// collectives are no longer for it.
static void an_injected_straggler_makes_the_others_wait(void) {
    for (int overlap = 0; overlap < 2; overlap++) {
        double seconds[N_TIMES], exposed = world->exposed_seconds;
        float x = 1, all[TIMED_RANKS];
        int slow = rank == size - 1;
        timer.drag = slow ? 6 : 1;
        begin_timing(world);
        world->overlap = overlap;
        ranks_sleep(0.1);
        comm_all_gather(world, all, &x, 1, DT_F32, NULL);
        end_timing(world, seconds);
        timer.drag = 0;
        exposed = world->exposed_seconds - exposed;
        CHECK(slow ? seconds[TIME_LINEAR] >= 0.6 : seconds[TIME_LINEAR] < 0.3);
        CHECK(slow ? seconds[TIME_WAIT] < 0.2 && exposed < 0.3 : seconds[TIME_WAIT] > 0.3);
    }
    world->overlap = 0;
}
