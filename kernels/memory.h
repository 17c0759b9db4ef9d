// memory.h - what a run takes of memory as a table: every class of bytes has a name, a size and one allocation, and is
// in the table before any of it is taken.
#pragma once
#include "kernels/kernels.h"

// AS_NEEDED: in the host's memory, not before steps need it, and as much as they need. BY_LIBRARIES: on the device, by
// themselves.
typedef enum Where { ON_DEVICE, BY_LIBRARIES, ON_HOST, ON_HOST_PINNED, AS_NEEDED } Where;

typedef struct MemoryEntry {
    const char* name;
    size_t bytes;
    Where where;
    void* memory;
} MemoryEntry;

enum { MEMORY_ENTRIES = 28 };

// What is in the host's memory counts only where that is the device's.
typedef struct MemoryPlan {
    MemoryEntry entries[MEMORY_ENTRIES];
    int n, on_host;
    size_t total;  // of those that count
} MemoryPlan;

static inline int memory_counts(const MemoryPlan* plan, Where where) { return plan->on_host || where <= BY_LIBRARIES; }
// An entry at place i, 0 <= i <= n; without bytes there is none.
void memory_insert(MemoryPlan* plan, int i, const char* name, size_t bytes, Where where);
static inline void memory_add(MemoryPlan* plan, const char* name, size_t bytes, Where where) {
    memory_insert(plan, plan->n, name, bytes, where);
}
int memory_find(const MemoryPlan* plan, const char* name);  // its place; n: it has none
void* memory_of(const MemoryPlan* plan, const char* name);  // NULL: it has none
// What nobody else takes; "kernel scratch" is taken by Kernels.open. Ends the program where there is none.
void memory_take(MemoryPlan* plan, const Kernels* k);
