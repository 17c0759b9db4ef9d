// comm_self.h - the Comm of one rank in device memory. NCCL would take 512 MiB of it; here every entry is a copy.
#pragma once

extern "C" {
#include "kernels/comm.h"
}

// local_rank and local_size are those of the world that the Comm is part of. 0, or -1 with words.
int comm_open_cuda_self(Comm** c, int local_rank, int local_size, double timeout_seconds, char* err, size_t errlen);

// The messages of an exchange that this rank sends to itself: the first such send goes to the first such receive, and
// so on. Dies when they do not match.
void comm_copy_own(const Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives,
                   Stream s);
