// comm_no_nccl.cu - stands in for comm_nccl.cu where the machine that builds has no nccl.h: one rank only.
#include "kernels/cuda/cuda.h"

extern "C" int comm_open_nccl(Comm** world, const RankIdentity* id, double timeout_seconds, Err err) {
    *world = NULL;
    if (id->size == 1) return comm_open_cuda_self(world, timeout_seconds, err);
    return fail(err,
                "%d ranks were started (by %s), but this program was built without NCCL: install libnccl-dev, or the "
                "Python package nvidia-nccl, so that nccl.h lies beside cuda_runtime.h, and build again",
                id->size, id->source);
}
