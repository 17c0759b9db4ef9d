// layout_ranks.h - the ranks of a layout: what planners of a step know of them.
//
// A machine's constants are those of one rank that computes the whole model. What planners call a rank is a
// tensor-parallel group or, with stages, the groups with one place in all of them: it is as fast as they are together.
#pragma once
#include "plan/cost/cost.h"
#include "plan/layout/layout.h"

// Turns *cost from the machine's into that of such a rank. split is a group's; NULL: one rank. nodes: how many a
// group's ranks span. overlap: its exchanges hide under matmuls.
void layout_divide_cost(Cost* cost, const Shape* whole, const Layout* layout, const TpSplit* split, int elem_bytes,
                        int nodes, int overlap);
// The data ranks of a node: the largest runs that no node's border cuts, in any stage. node_of: the node of each rank.
int layout_node_size(int ranks, int tp, int stages, int (*node_of)(const void* context, int rank), const void* context);
