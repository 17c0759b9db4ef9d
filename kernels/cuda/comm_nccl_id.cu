// comm_nccl_id.cu - how the ranks of an NCCL world find each other: rank 0's id must reach all of them.
//
// With NCCL_COMM_ID, host and port where rank 0 listens, every rank computes the same id and no message is needed.
// It comes from MASTER_ADDR and MASTER_PORT; not under mpirun, which hands on no variables to other machines unless
// told to, where MPI is there. torchrun itself listens at its port, so NCCL takes the next.
#include <stdio.h>
#include <stdlib.h>

#ifdef HAVE_MPI
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#endif

#include "kernels/cuda/comm_nccl.h"

#ifdef HAVE_MPI
// Rank 0's id to all by MPI. 0; -1 with words; 1 when this program's MPI does not know the launcher.
static int id_by_mpi(ncclUniqueId* unique, const RankIdentity* id, double timeout_seconds, int* finalize, char* err,
                     size_t errlen) {
    struct {
        ncclUniqueId id;
        ncclResult_t result;
    } message = {};
    int initialized = 0, finalized = 0, rank = 0, size = 0, arrived = 0;
    MPI_Request request;
    MPI_Finalized(&finalized);
    if (finalized) return fail(err, errlen, "MPI was finalized: NCCL can be opened by MPI only once a process");
    MPI_Initialized(&initialized);
    if (!initialized) MPI_Init(NULL, NULL), *finalize = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank != id->rank || size != id->size) return 1;
    if (rank == 0) message.result = nccl.GetUniqueId(&message.id);
    MPI_Ibcast(&message, (int)sizeof message, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
    for (double start = now_seconds(); !arrived; nccl_pause(now_seconds() - start)) {
        MPI_Test(&request, &arrived, MPI_STATUS_IGNORE);
        if (!arrived && now_seconds() - start > timeout_seconds)
            return fail(err, errlen, "rank %d of %d: no word from rank 0 by MPI in %g s", rank, size, timeout_seconds);
    }
    if (message.result != ncclSuccess)
        return fail(err, errlen, "ncclGetUniqueId on rank 0: %s; NCCL_DEBUG=INFO tells more",
                    nccl.GetErrorString(message.result));
    *unique = message.id;
    return 0;
}

void nccl_finalize_mpi(void) { MPI_Finalize(); }
#else
void nccl_finalize_mpi(void) {}
#endif

int nccl_share_id(ncclUniqueId* unique, const RankIdentity* id, double timeout_seconds, int* finalize, char* err,
                  size_t errlen) {
    if (!getenv("NCCL_COMM_ID")) {
#ifdef HAVE_MPI
        if (strcmp(id->source, "mpirun") == 0) {
            int result = id_by_mpi(unique, id, timeout_seconds, finalize, err, errlen);
            if (result <= 0) return result;
        }
        const char* without = "";
#else
        (void)timeout_seconds, (void)finalize;
        const char* without = ", or build with MPI and start with its mpirun";
#endif
        if (!id->master[0])
            return fail(err, errlen,
                        "rank %d of %d (%s): nothing says where rank 0 is: set MASTER_ADDR and MASTER_PORT on all "
                        "ranks to its host and a free port%s",
                        id->rank, id->size, id->source, without);
        char address[sizeof id->master + 16];
        int port = id->master_port + (getenv("TORCHELASTIC_RUN_ID") != NULL);
        snprintf(address, sizeof address, strchr(id->master, ':') ? "[%s]:%d" : "%s:%d", id->master, port);
        setenv("NCCL_COMM_ID", address, 1);
    }
    ncclResult_t result = nccl.GetUniqueId(unique);
    if (result == ncclSuccess) return 0;
    return fail(err, errlen, "ncclGetUniqueId with NCCL_COMM_ID=%.200s: %s; %s", getenv("NCCL_COMM_ID"),
                nccl.GetErrorString(result), nccl_advice(result, ""));
}
