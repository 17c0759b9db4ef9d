// layout_ranks.h - the ranks of a layout: what planners of a step know of them, and how fast they are on a machine
// whose ranks are not alike.
//
// A machine's constants are those of one rank that computes the whole model. Planners call a rank what a
// tensor-parallel group is, and with stages the groups with one place in all of them: that is as fast as they are
// together.
#pragma once
#include "plan/cost/machine.h"
#include "plan/layout/layout.h"

// *cost, of the machine, becomes that of such a rank. split: of a group; NULL: of one rank. nodes: that a group's
// ranks are of. overlap: its exchanges hide under matmuls.
void layout_divide_cost(Cost* cost, const Shape* whole, const Layout* layout, const TpSplit* split, int elem_bytes,
                        int nodes, int overlap);
// Data ranks of a node: the most that no node's border cuts, in any stage. node_of: the node of each rank.
int layout_node_size(int ranks, int tp, int stages, int (*node_of)(const void* context, int rank), const void* context);

// The mean pace of a stage's groups, each at its slowest rank's: 1 on machines whose ranks are alike.
double layout_stage_pace(const Machine* machine, int ranks, const Layout* layout, int s);
// Paces of data ranks (data ranks), as Setting.speeds (layout_pace). Returns their mean; speeds NULL: that alone.
double layout_speeds(double* speeds, const Machine* machine, int ranks, const Layout* layout, const Shape* whole);
