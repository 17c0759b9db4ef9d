// comm_self.h - messages of a rank to itself, in host memory.
#pragma once
#include "kernels/comm.h"

// The messages of an exchange that this rank sends to itself: the first such send goes to the first such receive, and
// so on. Dies when they do not match.
void comm_copy_to_self(const Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives);
