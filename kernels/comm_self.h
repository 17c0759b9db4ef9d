// comm_self.h - messages of a rank to itself: copies, in whatever memory.
#pragma once
#include "kernels/comm.h"

typedef void (*CopyBytes)(void* to, const void* from, size_t bytes, Stream s);

// The messages of an exchange that this rank sends to itself: the first such send goes to the first such receive, and
// so on. Dies when they do not match.
void comm_copy_to_self(const Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives,
                       CopyBytes copy, Stream s);
// In host memory.
void comm_copy_host(void* to, const void* from, size_t bytes, Stream s);
