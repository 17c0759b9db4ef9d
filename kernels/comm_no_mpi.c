// comm_no_mpi.c - stands in for comm_mpi.c in a build without MPI.
#include "kernels/comm.h"

int comm_open_mpi(Comm** world, const RankIdentity* id, double timeout_seconds, Err err) {
    (void)timeout_seconds;
    *world = NULL;
    return fail(err,
                "this is rank %d of %d (says %s), but the program was built without MPI: install it (Debian: apt-get "
                "install libopenmpi-dev openmpi-bin) and build again (make)",
                id->rank, id->size, id->source);
}
