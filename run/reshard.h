// reshard.h - a tensor-parallel group divides the model anew: persistent migration.
#pragma once
#include "plan/split.h"

typedef struct Run Run;

// Between steps. Weights, masters and moments of heads and hidden units go to their new owners once; from then on
// nothing of the migration costs anything. ZeRO stage 1. All ranks of all groups call it together with the same split.
// Takes new memory before it gives the old back; ends the program where there is none.
void run_reshard(Run* run, const TpSplit* split);
