// memory.h - the memory of a run as a table, made before any of it is taken: names, sizes, one allocation each.
#pragma once
#include <stdlib.h>

#include "kernels/kernels.h"

// AS_NEEDED: steps take it in the host's memory. BY_LIBRARIES: libraries take it on the device by themselves.
typedef enum Where { ON_DEVICE, BY_LIBRARIES, ON_HOST, ON_HOST_PINNED, AS_NEEDED } Where;

typedef struct MemoryEntry {
    const char* name;
    size_t bytes;
    Where where;
    void* memory;
} MemoryEntry;

// Entries in the host's memory count only if that is the device's.
typedef struct MemoryPlan {
    MemoryEntry entries[32];
    int n, on_host;
    size_t total;  // bytes of those that count
} MemoryPlan;

static inline int memory_counts(const MemoryPlan* plan, Where where) { return plan->on_host || where <= BY_LIBRARIES; }
// Inserts an entry at place i, 0 <= i <= n, unless it has no bytes.
static inline void memory_insert(MemoryPlan* plan, int i, const char* name, size_t bytes, Where where) {
    MemoryEntry entry = {name, bytes, where, NULL};
    if (bytes == 0) return;
    memmove(plan->entries + i + 1, plan->entries + i, (size_t)(plan->n++ - i) * sizeof entry);
    plan->entries[i] = entry;
    plan->total += memory_counts(plan, where) ? bytes : 0;
}

static inline void memory_add(MemoryPlan* plan, const char* name, size_t bytes, Where where) {
    memory_insert(plan, plan->n, name, bytes, where);
}

static inline int memory_find(const MemoryPlan* plan, const char* name) {  // its place; n: it has none
    for (int i = 0; i < plan->n; i++)
        if (strcmp(plan->entries[i].name, name) == 0) return i;
    return plan->n;
}

static inline void* memory_of(const MemoryPlan* plan, const char* name) {  // NULL: it has none
    int i = memory_find(plan, name);
    return i < plan->n ? plan->entries[i].memory : NULL;
}

// Takes the memory that nobody else takes (Kernels.open takes "kernel scratch"). Ends the program if there is none.
static inline void memory_take(MemoryPlan* plan, const Kernels* k) {
    for (MemoryEntry* x = plan->entries; x < plan->entries + plan->n; x++) {
        if (x->where == AS_NEEDED || x->where == BY_LIBRARIES || !strcmp(x->name, "kernel scratch")) continue;
        if (x->where == ON_HOST) x->memory = calloc(1, x->bytes);
        else x->memory = x->where == ON_HOST_PINNED ? k->alloc_host(x->bytes) : k->alloc(x->bytes);
        if (x->memory) continue;
        die("no memory for %s, %zu MiB; try a smaller --capacity or --recompute block", x->name, x->bytes >> 20);
    }
}
