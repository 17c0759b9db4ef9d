// check.c - measures a cluster of run.sh from inside an MPI program: rank 0 prints NAME=VALUE, integers, for check.sh.
//
// Ranks of a node are those that MPI_Comm_split_type(SHARED) puts together. Rank 0 sends to its last neighbour on the
// node, then to the first rank of another node, then both ways at once; meanwhile it reads how much its node's link
// carried. Bandwidth = bytes / time until the receiver has confirmed all of them.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PIECE = 1 << 20, PIECES = 32, PINGS = 50 };

typedef struct Path {
    long mbit;        // payload, a second
    long link_bytes;  // that left this node over its link
    long ping_us;     // one byte there and back
} Path;

static long link_counter(void) {
    long bytes = -1;
    FILE* f = fopen("/sys/class/net/data/statistics/tx_bytes", "r");
    if (f && fscanf(f, "%ld", &bytes) != 1) bytes = -1;
    if (f) fclose(f);
    return bytes;
}

// Called by both; the sender's result counts. both_ways: the peer sends as much at the same time.
static Path measure(int peer, int is_sender, int both_ways, char* out, char* in) {
    MPI_Request requests[2 * PIECES];
    int n = 0;
    char byte = 0;
    double start = MPI_Wtime();
    for (int i = 0; i < PINGS; i++) {
        if (is_sender) MPI_Send(&byte, 1, MPI_CHAR, peer, 1, MPI_COMM_WORLD);
        MPI_Recv(&byte, 1, MPI_CHAR, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (!is_sender) MPI_Send(&byte, 1, MPI_CHAR, peer, 1, MPI_COMM_WORLD);
    }
    Path path = {.ping_us = (long)(1e6 * (MPI_Wtime() - start) / PINGS), .link_bytes = link_counter()};
    start = MPI_Wtime();
    for (int i = 0; i < PIECES; i++) {
        size_t place = (size_t)i * PIECE;
        if (is_sender || both_ways) MPI_Isend(out + place, PIECE, MPI_CHAR, peer, 2, MPI_COMM_WORLD, &requests[n++]);
        if (!is_sender || both_ways) MPI_Irecv(in + place, PIECE, MPI_CHAR, peer, 2, MPI_COMM_WORLD, &requests[n++]);
    }
    MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
    MPI_Sendrecv(&byte, 1, MPI_CHAR, peer, 3, &byte, 1, MPI_CHAR, peer, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    path.mbit = (long)(8e-6 * PIECE * PIECES / (MPI_Wtime() - start));
    path.link_bytes = link_counter() - path.link_bytes;
    return path;
}

int main(int argc, char** argv) {
    int rank, size, node_size;
    MPI_Comm node;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &node_size);
    MPI_Bcast(&node_size, 1, MPI_INT, 0, MPI_COMM_WORLD);
    char *out = calloc(PIECES, PIECE), *in = calloc(PIECES, PIECE);
    if (!out || !in || node_size < 2 || node_size == size) {
        fprintf(stderr, "check: %d ranks a node of %d in all, expected two nodes of at least two\n", node_size, size);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    const int peers[] = {node_size - 1, node_size, node_size};
    const char* names[] = {"inside", "across", "both_ways"};
    if (rank == 0) printf("ranks_on_node=%d bytes=%d", node_size, PIECE * PIECES);
    for (int i = 0; i < 3; i++) {
        Path path = {0};
        if (rank == 0 || rank == peers[i]) path = measure(rank == 0 ? peers[i] : 0, rank == 0, i == 2, out, in);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0)
            printf(" %s_mbit=%ld %s_link_bytes=%ld %s_ping_us=%ld", names[i], path.mbit, names[i], path.link_bytes,
                   names[i], path.ping_us);
    }
    if (rank == 0) printf("\n");
    free(out), free(in);
    MPI_Finalize();
    return 0;
}
