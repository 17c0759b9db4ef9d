// require.h - what must hold of anything that a reader accepts or refuses: else the fuzzer has found something.
#pragma once
#include <stdlib.h>

static inline void require(int holds) {
    if (!holds) abort();
}
