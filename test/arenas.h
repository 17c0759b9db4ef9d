// arenas.h - arenas for tests: what planners find there is dirt, so that nothing may rely on it.
#pragma once
#include <stdlib.h>

#include "plan/base/base.h"

// Empties the arena; its next `bytes` are of this value. A sanitizer sees every part alone, and dirties it by itself.
static inline void soil(Arena* arena, int value, size_t bytes) {
    arena_reset(arena, (ArenaMark){0});
    void* all = arena_take(arena, bytes);
    if (!all) abort();
    memset(all, value, bytes);
    arena_reset(arena, (ArenaMark){0});
}
