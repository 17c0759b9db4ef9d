// core_ranks.h - what many ranks do in place of core.c or besides: the table Run.ranks, NULL on one rank.
#pragma once
#include "run/core.h"

typedef struct RunRanks {
    // Gives the pieces in run->batch a plan, the same on all ranks, and their tokens. 0: some rank has none.
    int (*plan_val)(Run* run);
    int (*end_val)(Run* run);                        // 0: the evaluation was broken off
    void (*read)(Run* run, const Sampler* sampler);  // tokens of the rows of run->batch
    void (*fill_row)(Run* run, Row* row, int i);     // adds what many ranks have to a row
    int (*next_pass)(Run* run, Pass* pass, int i, int train);
    double (*loss_sum)(Run* run);
    void (*decode)(Run* run, Row* row);       // fill_row and model_forward of generation
    void* (*logits)(Run* run, int n, int N);  // model_logits of all ranks, (N,Vp), on the device
    void (*share_draws)(Run* run, int N);     // after the ranks that have logits have drawn
} RunRanks;
