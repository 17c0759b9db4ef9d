// virtual_ranks.h - programs of test/ranks.sh whose ranks are virtual: the Comm `world` sends over it in virtual time.
#pragma once
#include "kernels/virtual/virtual.h"
#include "test/ranks.h"

// Behind ranks_start. payload 0: no content is sent.
static inline void virtual_ranks_open(const VirtualMachine* machine, int ranks, int node_size, int payload) {
    char err[ERR_BYTES];
    RankIdentity id;
    if (size != ranks) die("%d ranks, expected %d", size, ranks);
    virtual_nodes(node_size);
    virtual_use(machine);
    if (ranks_identity(&id, err) || comm_open_virtual(&world, payload, &id, RANKS_PATIENCE, err)) die("%s", err);
    world->overlap = 1;
}

static inline double most_of_ranks(double ms) {
    enum { MOST_VIRTUAL = 64 };
    double all[MOST_VIRTUAL], most = ms;
    char err[ERR_BYTES];
    if (size > MOST_VIRTUAL || world->table->all_gather_host(world, all, &ms, sizeof ms, err))
        die("no most of %d", size);
    for (int r = 0; r < size; r++) most = MAX(most, all[r]);
    return most;
}

// Brings all clocks to the last of them, which is returned.
static inline double clocks_meet(void) {
    double last = most_of_ranks(virtual_now());
    virtual_wait_until(last);
    return last;
}
