// megatron.h - the two schedulers of Megatron-LM for packed documents: see megatron.c.
#pragma once
#include "plan/published/published.h"

// Dynamic context parallelism. 0, or -1 with a message that names the document and the limit.
int megatron_dynamic(Plan* plan, PlayRule* rule, int64_t step, const int* lengths, int n, const Setting* setting,
                     Arena* arena, char* err, size_t errlen);
// Its baseline: rows of one cp size, in the order of documents, as many for each of the ranks / cp size replicas.
int megatron_balanced(Plan* plan, PlayRule* rule, int64_t step, const int* lengths, int n, const Setting* setting,
                      int cp_size, Arena* arena, char* err, size_t errlen);
