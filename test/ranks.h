// ranks.h - claims of several ranks together, in programs that mpirun starts:
//
//   static void a_sum_is_the_same_on_all(void) { CHECK(...); }
//   int main(int n_arguments, char** arguments) {
//       ranks_start(&n_arguments, &arguments);  // rank and size
//       ranks_open_world();                     // world: the Comm of all ranks, in host memory
//       RUN_TOGETHER(a_sum_is_the_same_on_all);
//       return ranks_done();
//   }
//
// All ranks run every claim. It fails where it fails on any rank, and is skipped where any rank skips it. Rank 0 prints
// the results to stdout; failed CHECKs of other ranks go to stderr, so that the closing line stays alone. Also C++.
#pragma once
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/comm.h"
#ifdef __cplusplus
}
#endif
#include "test/test.h"

enum { RANKS_PATIENCE = 60 };  // seconds that the world waits for a rank

static int rank, size;
static Comm* world;

static inline void ranks_start(int* n_arguments, char*** arguments) {
    int provided;
    MPI_Init_thread(n_arguments, arguments, MPI_THREAD_SERIALIZED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank != 0) dup2(STDERR_FILENO, STDOUT_FILENO);
}

// Another Comm of all ranks; NULL, with words on stdout, when it cannot be opened.
static inline Comm* ranks_open(double timeout_seconds) {
    RankIdentity id;
    Comm* c = NULL;
    char err[ERR_BYTES];
    if (rank_identity(&id, err, sizeof err) || comm_open_mpi(&c, &id, timeout_seconds, err, sizeof err)) {
        printf("    rank %d: %s\n", rank, err);
        fflush(stdout);
    }
    return c;
}

// Ends the program when it cannot be opened.
static inline void ranks_open_world(void) {
    world = ranks_open(RANKS_PATIENCE);
    if (!world) MPI_Abort(MPI_COMM_WORLD, 1);
}

static inline void ranks_sleep(double seconds) {
    struct timespec t = {(time_t)seconds, (long)(1e9 * (seconds - floor(seconds)))};
    nanosleep(&t, NULL);
}

static inline void ranks_run(const char* name, void (*claim)(void)) {
    static int own[2], all[2];
    if (getenv("TEST_ONLY") && !strstr(name, getenv("TEST_ONLY"))) return;
    test_failures_in_claim = 0;
    test_skip_reason = NULL;
    claim();
    fflush(stdout);
    own[0] = test_failures_in_claim;
    own[1] = test_skip_reason != NULL;
    MPI_Allreduce(own, all, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (all[0]) test_failed++;
    else if (all[1]) test_skipped++;
    else test_passed++;
    if (rank != 0) return;
    if (all[0]) printf("  FAILED  %s (%d failures, %d of them on rank 0)\n", name, all[0], own[0]);
    else if (all[1]) printf("  skipped %s: %s\n", name, test_skip_reason ? test_skip_reason : "by another rank");
    else printf("  ok      %s\n", name);
    fflush(stdout);
}
#define RUN_TOGETHER(claim) ranks_run(#claim, claim)

// The program's status. Closes the world where it is open.
static inline int ranks_done(void) {
    if (world) world->table->close(world);
    MPI_Finalize();
    return rank == 0 ? test_done() : test_failed > 0;
}
