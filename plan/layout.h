// layout.h - who runs which layers, and how: a small file that one can write, check and give to a run (--layout FILE).
//
//   # a comment
//   tp 2
//   stage layers 3 zero 1 recompute none
//   stage layers 2 zero 3 recompute block
//
// A line a stage of the pipeline, in order. Every stage has as many ranks, in tensor-parallel groups of `tp`; they
// divide what --zero says, and compute again what --recompute says, in their layers. What a line does not say is as the
// options have it.
#pragma once
#include "plan/shape.h"

enum { MOST_STAGES = 64 };

typedef struct StageLayout {
    int layers, zero;
    Recompute recompute;
} StageLayout;

typedef struct Layout {
    int tp, stages;
    StageLayout stage[MOST_STAGES];
} Layout;

extern const char* const recompute_names[];  // by Recompute

// `stages` stages, all with the same tp, zero and recompute, that have as even a share of the matmuls' work as whole
// layers allow: the largest is least. The classifier counts; stages at most L.
Layout layout_even(const Shape* whole, int tp, int stages, int zero, Recompute recompute);
// Where stage s begins; s = stages: L.
int layout_first(const Layout* layout, int s);
// The share of a token's matmuls that stage s has.
double layout_work(const Layout* layout, const Shape* whole, int s);
// Of each stage (stages): that, and its share of the layers.
void layout_shares(const Layout* layout, const Shape* whole, double* matmuls, double* layers);

// `otherwise`: of what the text leaves out. 0, or -1 with the line, what was expected and found.
int layout_parse(Layout* layout, const Layout* otherwise, const char* text, size_t n, char* err, size_t errlen);
// Writes what layout_parse reads back; the length that it wanted, as snprintf.
size_t layout_print(const Layout* layout, char* text, size_t bytes);
// Whether `ranks` ranks can run this model by it. 0, or -1 with words.
int layout_check(const Layout* layout, const Shape* whole, int ranks, char* err, size_t errlen);
