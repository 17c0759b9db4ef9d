// part_checks.h - claims about parts of a Comm, whatever transport it is over. Also C++.
#pragma once
#include "test/ranks.h"

enum { MOST_RANKS = 64 };

static char err[ERR_BYTES];
static int everyone[MOST_RANKS];  // 0, 1, 2, ...

// What is not the transport's own, of a part of `ranks` (n_ranks), ranks of the world in the part's order. 1: it is
// there.
static inline int check_members(Comm* part, const int* ranks, int n_ranks) {
    int own = -1, found[MOST_RANKS];
    for (int r = 0; r < n_ranks; r++)
        if (ranks[r] == rank) own = r;
    CHECK(part != NULL);
    if (!part) return 0;
    CHECK(part->size == n_ranks && part->rank == own);
    CHECK(part->table->all_gather_host(part, found, &rank, sizeof rank, err, sizeof err) == 0);
    for (int r = 0; r < n_ranks; r++) CHECK(found[r] == ranks[r]);
    return 1;
}

// These, and that a sum over the part is that over `ranks`. Of each transport.
static void check_part(Comm* part, const int* ranks, int n_ranks);

static inline Comm* split(Comm* c, int color, int key) {
    Comm* part = NULL;
    CHECK(c->table->split(c, &part, color, key, err, sizeof err) == 0);
    if (part) CHECK(part->overlap == c->overlap);
    return part;
}

static inline void close_part(Comm* part) {
    if (part) part->table->close(part);
}

static inline void split_into_neighbours(void) {
    int pair = rank / 2, ranks[] = {2 * pair, 2 * pair + 1};
    Comm* part = split(world, pair, 0);
    check_part(part, ranks, MIN(2, size - 2 * pair));
    close_part(part);
    check_part(world, everyone, size);
}

static inline void split_by_stride_in_order_of_keys(void) {
    int ranks[MOST_RANKS], n = 0;
    for (int r = size - 1; r >= 0; r--)
        if (r % 2 == rank % 2) ranks[n++] = r;
    Comm* part = split(world, 7 + rank % 2, -rank);
    check_part(part, ranks, n);
    close_part(part);
}

static inline void split_leaves_out_negative_colors(void) {
    Comm* part = split(world, rank == 0 ? -5 : 3, 0);
    if (rank == 0) CHECK(part == NULL);
    else check_part(part, everyone + 1, size - 1);
    close_part(part);
}

static inline void parts_of_parts_outlive_their_parents(void) {
    Comm *all = split(world, 0, -rank), *part = split(all, rank / 2, 0);
    int pair = rank / 2, ranks[] = {2 * pair + 1, 2 * pair};
    close_part(all);
    if (2 * pair + 1 == size) check_part(part, &rank, 1);
    else check_part(part, ranks, 2);
    close_part(part);
}
