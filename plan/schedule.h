// schedule.h - the learning rate as a function of the step.
#pragma once
#include "plan/config.h"

// For the 1-based step t of config->steps. Rises in a straight line over --warmup steps, so that the first step has
// lr / warmup, then
//   constant  lr
//   linear    falls in a straight line to min_lr * lr at the last step
//   cosine    the same along half a cosine
//   wsd       stays at lr, and over the last fifth of all steps falls as 1 - sqrt(x) (Haegele et al. 2024)
double schedule_lr(const Config* config, int64_t t);
