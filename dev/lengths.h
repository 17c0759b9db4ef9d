// lengths.h - lengths of documents without documents: synthetic distributions and files of lengths, for the simulator,
// tests and benches.
#pragma once
#include "plan/base/base.h"

typedef struct Lengths Lengths;

// Generators by name: "wikipedia", "prolong" (quantiles of data sets), "wikipedia-fit", "prolong-fit" (the same by
// formulas), "github", "sft", "mock", "mock-heavy", "equal", "one-long", "just-above" (s just above multiples of the
// capacity); lengths_names: all of them, with commas. limit: draws above it are drawn again (of "mock": clipped to
// 128 .. 8192). capacity: for "just-above". NULL with a message.
Lengths* lengths_open(const char* name, int limit, int capacity, Err err);
// Lengths from text, one whole number a line; those above limit are left out.
Lengths* lengths_parse(const char* text, size_t n, int limit, Err err);
void lengths_close(Lengths* lengths);
const char* lengths_names(void);

// Batch number `batch` of n documents: the same for the same seed.
void lengths_draw(const Lengths* lengths, int* out, int n, uint64_t seed, int64_t batch);
void sort_lengths(int* lengths, int n);  // descending, as bounds want them
