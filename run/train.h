// train.h - what train_gpt.cu does in a step, for programs that link it without its main: see test/trainer.h. Shapes
// and conditions stand there, above each function.
#pragma once
#include "run/run.h"

void run_micro_batches(Run* run, const Sampler* sampler, int train);
double loss_sum(Run* run);
double evaluate(Run* run, int64_t* targets);
void model_update(Model* m, const Config* config, double lr, int64_t t);
