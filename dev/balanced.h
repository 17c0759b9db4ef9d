// balanced.h - what Megatron-LM compares its dynamic context parallelism with (released code of 2026), rebuilt.
//
// Balanced packing, its baseline (--sequence-packing-scheduler dp_balanced): micro-batches of one cp size filled in the
// order of documents, a new one when the next does not fit; then last documents leave the last micro-batches that have
// several, for micro-batches of their own, until there are a multiple of the replicas. They are dealt in turn. Replicas
// wait for each other at the end of the step only.
#pragma once
#include "plan/published/published.h"

// Micro-batches of one cp size, in the order of documents, as many for each of the ranks / cp size
// replicas.
int megatron_balanced(Plan* plan, int64_t step, const int* lengths, int n, const Setting* setting, int cp_size,
                      Arena* arena, Err err);
