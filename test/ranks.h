// ranks.h - claims of several ranks together, in programs that test/ranks.sh starts:
//
//   CLAIM(a_sum_is_the_same_on_all) { CHECK(...); }
//   int main(int n_arguments, char** arguments) {
//       ranks_start(&n_arguments, &arguments);  // rank and size
//       ranks_open_world();                     // world: the Comm of all ranks, in host memory
//       run_claims_together();
//       return ranks_done();
//   }
//
// All ranks run every claim. It fails where it fails on any rank, and is skipped where any rank skips it. Rank 0 prints
// the results to stdout; failed CHECKs of other ranks go to stderr, so that the closing line stays alone. Also C++.
//
// What the ranks tell each other about claims goes by MPI; where they were started without it, by memory that they map,
// a file (RANKS_FILE) or that of the process that they are forked from (RANKS_FORKED): each sum has a place of its own
// there, at first 0.
#pragma once
#ifdef HAVE_MPI
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#endif
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/comm/comm.h"
#ifdef __cplusplus
}
#endif
#include "test/test.h"

enum { RANKS_PATIENCE = 60 };  // seconds that the world waits for a rank

static int rank, size;
static Comm* world;

typedef struct RanksSum {
    int came, sum[2];
} RanksSum;
enum { MOST_SUMS = 1000 };
static RanksSum* ranks_sums;  // NULL: by MPI
static Comm* ranks_own;       // of this file, once it is needed

static inline void ranks_sleep(double seconds) {
    struct timespec t = {(time_t)seconds, (long)(1e9 * (seconds - floor(seconds)))};
    nanosleep(&t, NULL);
}

static inline void ranks_map(const char* path) {
    size_t bytes = MOST_SUMS * sizeof(RanksSum);
    RankIdentity id;
    char err[ERR_BYTES];
    if (rank_identity(&id, err)) die("%s", err);
    rank = id.rank;
    size = id.size;
    int file = open(path, O_RDWR);
    if (file < 0 || ftruncate(file, (off_t)bytes)) die("RANKS_FILE %s cannot be used", path);
    ranks_sums = (RanksSum*)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (ranks_sums == MAP_FAILED) die("RANKS_FILE %s cannot be mapped", path);
    close(file);
}

static inline void ranks_fork(int n) {
    char err[ERR_BYTES];
    ranks_sums =
        (RanksSum*)mmap(NULL, MOST_SUMS * sizeof(RanksSum), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ranks_sums == MAP_FAILED) die("no memory for sums over ranks");
    size = n;
    rank = comm_fork(n, err);
    if (rank < 0) die("%s", err);
}

static inline void ranks_start(int* n_arguments, char*** arguments) {
    if (getenv("RANKS_FORKED")) {
        ranks_fork(atoi(getenv("RANKS_FORKED")));
    } else if (getenv("RANKS_FILE")) {
        ranks_map(getenv("RANKS_FILE"));
    } else {
#ifdef HAVE_MPI
        int provided;
        MPI_Init_thread(n_arguments, arguments, MPI_THREAD_SERIALIZED, &provided);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
#else
        (void)n_arguments, (void)arguments;
        die("built without MPI: start with test/ranks.sh");
#endif
    }
    if (rank != 0) dup2(STDERR_FILENO, STDOUT_FILENO);
}

// x = its sum over all ranks, which all come here.
static inline void ranks_add_up(int x[2]) {
    static int n;
    if (!ranks_sums) {
#ifdef HAVE_MPI
        MPI_Allreduce(MPI_IN_PLACE, x, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
#endif
        return;
    }
    if (n == MOST_SUMS) die("more than %d sums over ranks", MOST_SUMS);
    RanksSum* s = &ranks_sums[n++];
    for (int i = 0; i < 2; i++) __atomic_fetch_add(&s->sum[i], x[i], __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&s->came, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&s->came, __ATOMIC_SEQ_CST) < size) ranks_sleep(1e-3);
    for (int i = 0; i < 2; i++) x[i] = s->sum[i];
}

static inline void ranks_meet(void) {
    int nothing[2] = {0, 0};
    ranks_add_up(nothing);
}

// Ends the program on all ranks.
__attribute__((noreturn)) static inline void ranks_give_up(void) {
    fflush(stdout);
#ifdef HAVE_MPI
    if (!ranks_sums) MPI_Abort(MPI_COMM_WORLD, 1);
#endif
    exit(1);
}

static inline int ranks_identity(RankIdentity* id, Err err) {
    int result = rank_identity(id, err);
    if (comm_is_forked()) id->rank = id->local_rank = rank, id->size = size;
    return result;
}

// Another Comm of all ranks; NULL, with words on stdout, when it cannot be opened.
static inline Comm* ranks_open(double timeout_seconds) {
    RankIdentity id;
    Comm* c = NULL;
    char err[ERR_BYTES];
    if (ranks_identity(&id, err) || comm_open_host(&c, &id, timeout_seconds, err)) {
        printf("    rank %d: %s\n", rank, err);
        fflush(stdout);
    }
    return c;
}

// Ends the program when it cannot be opened.
static inline void ranks_open_world(void) {
    world = ranks_open(RANKS_PATIENCE);
    if (!world) ranks_give_up();
}

// What rank 0 has, in memory of all.
static inline void ranks_tell(void* x, size_t bytes) {
    char err[ERR_BYTES];
    if (!ranks_own && !(ranks_own = ranks_open(RANKS_PATIENCE))) ranks_give_up();
    if (ranks_own->table->broadcast_host(ranks_own, x, bytes, 0, err)) die("%s", err);
}

// After a failure every entry of c returns, and what can say why says `words`; `memory` has room for its collectives.
// part: one of c's, which has failed with it; or NULL.
static inline void ranks_check_failed(Comm* c, Comm* part, const char* words, void* memory) {
    char later[ERR_BYTES] = "", own[4] = "", all[64 * sizeof own];
    Comm* none = NULL;
    c->table->all_reduce(c, memory, 4, DT_F32, NULL);
    comm_reduce_scatter(c, memory, memory, 1, DT_F32, NULL);
    comm_all_gather(c, memory, memory, 1, DT_F32, NULL);
    CHECK(c->table->wait(c, NULL, later) == -1);
    CHECK_STRING(later, words);
    CHECK(c->table->barrier(c, later) == -1);
    CHECK(c->table->all_gather_host(c, all, own, sizeof own, later) == -1);
    CHECK(c->table->broadcast_host(c, own, sizeof own, 0, later) == -1);
    CHECK(c->table->split(c, &none, 0, 0, later) == -1 && none == NULL);
    CHECK_STRING(later, words);
    if (part) CHECK(part->table->wait(part, NULL, later) == -1);
}

static inline void ranks_run(const char* name, void (*claim)(void)) {
    if (getenv("TEST_ONLY") && !strstr(name, getenv("TEST_ONLY"))) return;
    test_failures_in_claim = 0;
    test_skip_reason = NULL;
    claim();
    fflush(stdout);
    int all[2] = {test_failures_in_claim, test_skip_reason != NULL};
    ranks_add_up(all);
    if (all[0]) test_failed++;
    else if (all[1]) test_skipped++;
    else test_passed++;
    if (rank != 0) return;
    if (all[0]) printf("  FAILED  %s (%d failures, %d of them on rank 0)\n", name, all[0], test_failures_in_claim);
    else if (all[1]) printf("  skipped %s: %s\n", name, test_skip_reason ? test_skip_reason : "by another rank");
    else printf("  ok      %s\n", name);
    fflush(stdout);
}
#define RUN_TOGETHER(claim) ranks_run(#claim, claim)

static inline void run_claims_together(void) {
    for (int i = 0; i < test_n_claims; i++) ranks_run(test_claims[i].name, test_claims[i].check);
}

// The program's status. Closes the world where it is open.
static inline int ranks_done(void) {
    if (ranks_own) ranks_own->table->close(ranks_own);
    if (world) world->table->close(world);
#ifdef HAVE_MPI
    if (!ranks_sums) MPI_Finalize();
#endif
    return rank == 0 ? test_done() : test_failed > 0;
}
