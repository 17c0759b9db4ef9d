// bench_comm.c - collectives between ranks in host memory beside those of the MPI that carries them.
//
//   mpirun --oversubscribe --bind-to none -n 2 build/release/dev/bench_comm
//
// Each operation alternates with MPI's own blocking collective for the same bytes; a time is that of the slowest rank,
// figures are medians. MPI's collectives spin while they wait and never notice a rank that died: the percentage shows
// what polling with pauses costs. Sizes are what each rank sends, its own part included; the parts of an all-to-all are
// uneven. MPI may take sums in any order.
#include <mpi.h>

#include "dev/bench.h"
#include "kernels/comm/comm.h"

enum { MOST_RANKS = 64, MOST_ROUNDS = 201 };

static Comm* world;
static char *from, *to;
static int counts[MOST_RANKS], offsets[MOST_RANKS], came[MOST_RANKS], came_offsets[MOST_RANKS];
static Transfer sends[MOST_RANKS], receives[MOST_RANKS];
static size_t part;  // elements of a rank's part of a sum

static void all_to_all(void) { comm_send_receive(world, sends, world->size, receives, world->size, NULL); }
static void mpi_all_to_all(void) {
    MPI_Alltoallv(from, counts, offsets, MPI_BYTE, to, came, came_offsets, MPI_BYTE, MPI_COMM_WORLD);
}
static void reduce_scatter(void) { comm_reduce_scatter(world, to, from, part, DT_F32, NULL); }
static void mpi_reduce_scatter(void) {
    MPI_Reduce_scatter_block(from, to, (int)part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void all_gather(void) { comm_all_gather(world, to, from, part, DT_F32, NULL); }
static void mpi_all_gather(void) {
    MPI_Allgather(from, (int)part, MPI_FLOAT, to, (int)part, MPI_FLOAT, MPI_COMM_WORLD);
}

static const struct {
    const char* name;
    void (*ours)(void);
    void (*mpi)(void);
} operations[] = {{"all-to-all", all_to_all, mpi_all_to_all},
                  {"reduce-scatter fp32", reduce_scatter, mpi_reduce_scatter},
                  {"all-gather", all_gather, mpi_all_gather}};

// Rank r sends rank p a share of `bytes` that grows with (r + p) modulo 3.
static int share(int r, int p, size_t bytes) {
    int weight = 1 + (r + p) % 3, weights = 0;
    for (int i = 0; i < world->size; i++) weights += 1 + (r + i) % 3;
    return (int)(bytes * (size_t)weight / (size_t)weights);
}

static void lay_out(size_t bytes) {
    int sent = 0, received = 0;
    part = bytes / sizeof(float) / (size_t)world->size;
    for (int r = 0; r < world->size; r++) {
        counts[r] = share(world->rank, r, bytes);
        came[r] = share(r, world->rank, bytes);
        offsets[r] = sent;
        came_offsets[r] = received;
        sends[r] = (Transfer){r, from + sent, (size_t)counts[r]};
        receives[r] = (Transfer){r, to + received, (size_t)came[r]};
        sent += counts[r];
        received += came[r];
    }
}

// Returns the seconds of one call on the slowest rank.
static double seconds(void (*call)(void), int calls) {
    double slowest, own;
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now_seconds();
    for (int i = 0; i < calls; i++) call();
    own = (now_seconds() - start) / calls;
    MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static void measure(int operation, size_t bytes) {
    double ours[MOST_ROUNDS], mpi[MOST_ROUNDS];
    int rounds = (int)MIN((size_t)MOST_ROUNDS, MAX((size_t)15, ((size_t)256 << 20) / bytes));
    int calls = (int)MAX((size_t)1, ((size_t)64 << 10) / bytes);
    lay_out(bytes);
    for (int i = -2; i < rounds; i++) {  // the first two warm up
        int at = MAX(i, 0);
        if (i % 2) mpi[at] = seconds(operations[operation].mpi, calls);
        ours[at] = seconds(operations[operation].ours, calls);
        if (i % 2 == 0) mpi[at] = seconds(operations[operation].mpi, calls);
    }
    if (world->rank != 0) return;
    char name[96];
    double speed = (double)bytes / bench_median(ours, rounds) * 1e-9, limit = (double)bytes / bench_median(mpi, rounds);
    limit *= 1e-9;
    snprintf(name, sizeof name, "%s %zu KiB, %d ranks", operations[operation].name, bytes >> 10, world->size);
    printf("%-40s %8.3f GB/s %10.1f us, MPI's own %8.3f GB/s: %5.1f %%\n", name, speed, 1e-3 * (double)bytes / speed,
           limit, 100 * speed / limit);
    bench_record(name, speed, "GB/s", limit);
}

int main(int n_arguments, char** arguments) {
    const size_t most = (size_t)64 << 20;
    RankIdentity id;
    char err[ERR_BYTES];
    int provided;
    MPI_Init_thread(&n_arguments, &arguments, MPI_THREAD_SERIALIZED, &provided);
    if (rank_identity(&id, err) || comm_open_mpi(&world, &id, 60, err) || world->size > MOST_RANKS) {
        fprintf(stderr, "bench_comm: %s\n", world ? "too many ranks" : err);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    // The longest receive: all ranks may give this one more than their even share.
    from = (char*)calloc(3, most);
    to = (char*)calloc(3, most);
    if (!from || !to) MPI_Abort(MPI_COMM_WORLD, 1);
    for (int operation = 0; operation < COUNT(operations); operation++)
        for (size_t bytes = 1 << 10; bytes <= most; bytes *= 4) measure(operation, bytes);
    free(from), free(to);
    world->table->close(world);
    MPI_Finalize();
    return 0;
}
