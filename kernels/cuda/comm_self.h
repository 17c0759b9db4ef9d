// comm_self.h - the Comm of one rank in device memory. NCCL would take 512 MiB of it; here every entry is a copy.
#pragma once

extern "C" {
#include "kernels/comm_self.h"
}

// local_rank and local_size are those of the world that the Comm is part of. 0, or -1 with words.
int comm_open_cuda_self(Comm** c, int local_rank, int local_size, double timeout_seconds, char* err, size_t errlen);

// Between places in device memory, for comm_copy_to_self.
void comm_copy_device(void* to, const void* from, size_t bytes, Stream s);
