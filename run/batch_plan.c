// batch_plan.c - the memory of a batch and its plan; see batch_plan.h.
#include "run/run.h"

size_t batch_plan_bytes(int max_tokens) {
    return batch_bytes(max_tokens) + (size_t)max_tokens * (sizeof(RankPass) + sizeof(RankGroup) + sizeof(Span));
}

// Besides rows of wte, and cu_seqlens of the two chunks that each rank of a ring has of a document.
size_t batch_plan_ints(const Run* run, int max_tokens) {
    size_t of_rings = 4 * (size_t)run->clock->limits.ranks * (size_t)run->clock->limits.max_ring_docs;
    return batch_index_ints(max_tokens) + (size_t)max_tokens + (run->clock->limits.ranks > 1 ? of_rings : 0);
}

void batch_plan_carve(Batch* b, void* memory, int* indices, int* device_indices, int max_tokens) {
    BatchPlan* x = b->planned;
    size_t n = (size_t)max_tokens;
    x->groups = (RankGroup*)memory;
    x->passes = (RankPass*)(x->groups + n);
    x->spans = (Span*)(x->passes + n);
    x->vocab_rows = indices;  // before all others, whose last may be of many ranks
    batch_carve(b, x->spans + n, indices + n, device_indices + n, max_tokens);
}

size_t batch_schedule_bytes(const Run* run, int max_tokens) {
    size_t v = (size_t)max_tokens, P = (size_t)run->model.stages;
    size_t groups = ((size_t)run->clock->limits.ranks + 1) * (sizeof(GroupCost) + sizeof(RankRound));
    return P * v * (6 * sizeof(Task) + 6 * sizeof(double)) + (P << 10) + groups;
}
