// die_as_rank.h - the last line of a rank among several.
#pragma once
#include "plan/base/base.h"

// From here on such a line names the rank. All but rank 0 first wait a moment: most errors are the same on all ranks,
// and the launcher ends the others when the first one is gone, so that the line appears once. A rank leaves by _exit:
// no handler that is registered for the end runs.
void die_as_rank(int rank);
