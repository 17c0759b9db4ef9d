// memory.c - see memory.h.
#include "kernels/memory.h"

#include <stdlib.h>
#include <string.h>

void memory_insert(MemoryPlan* plan, int i, const char* name, size_t bytes, Where where) {
    MemoryEntry entry = {name, bytes, where, NULL};
    if (bytes == 0) return;
    for (int j = plan->n++; j > i; j--) plan->entries[j] = plan->entries[j - 1];
    plan->entries[i] = entry;
    plan->total += memory_counts(plan, where) ? bytes : 0;
}

int memory_find(const MemoryPlan* plan, const char* name) {
    int i = 0;
    while (i < plan->n && strcmp(plan->entries[i].name, name) != 0) i++;
    return i;
}

void* memory_of(const MemoryPlan* plan, const char* name) {
    int i = memory_find(plan, name);
    return i < plan->n ? plan->entries[i].memory : NULL;
}

void memory_take(MemoryPlan* plan, const Kernels* k) {
    for (int i = 0; i < plan->n; i++) {
        MemoryEntry* entry = &plan->entries[i];
        int by_others = entry->where == AS_NEEDED || entry->where == BY_LIBRARIES;
        if (by_others || !strcmp(entry->name, "kernel scratch")) continue;
        entry->memory = entry->where == ON_HOST          ? calloc(1, entry->bytes)
                        : entry->where == ON_HOST_PINNED ? k->alloc_host(entry->bytes)
                                                         : k->alloc(entry->bytes);
        if (!entry->memory)
            die("no memory for %s, %zu MiB; try a smaller --capacity or --recompute block", entry->name,
                entry->bytes >> 20);
    }
}
