// machine_asked.h - what searches, what-ifs and the simulator ask of a machine, and the trainer never does.
#pragma once
#include "plan/cost/machine.h"

// Returns the times of weights (2 bytes) and gradients (fp32) of `layers` layers with all parameters that the machine
// names. None travel if it names none, or if measured times include them (machine_has_weights).
WeightTimes machine_weights(const Machine* machine, int zero, int ranks, int node_size, int layers);
// The machine with one thing changed. Links move `times` the bytes in the time beyond their shortest message; ranks
// have `times` the memory; ranks of this kind (-1: all) run at the pace of the fastest.
Machine machine_with_links(const Machine* machine, double times);
Machine machine_with_memory(const Machine* machine, double times);
Machine machine_with_full_pace(const Machine* machine, int kind);
// Heads for PlanLimits: the machine's, or for 0 a number that all small cp sizes divide.
int machine_heads(const Machine* machine);
// Makes a setting with the capacity of ZeRO-3 for `ranks` ranks of this machine, `node_size` a node, no document beyond
// `context`. It fills groups (ranks + 1), the caller's. 0, or -1 with a message (the model does not fit, ranks below
// 1).
int machine_setting(Setting* setting, const Machine* machine, int ranks, int node_size, int context, GroupCost* groups,
                    Err err);
