// step_record.h - what is known of a training step when it is over.
#pragma once
#include "plan/plan.h"

// One rank in one step; NaN: not known.
typedef struct RankStep {
    float compute_ms, wait_ms;  // computing; standing still for others; not known in a step that was not timed
    float gamma;                // fraction of its resizable matmuls that was left out
    float sent, taken;          // work given away and taken over, counted in hidden units of the MLP
    float speed;                // as plans see it, 1 being usual; of a tensor-parallel rank: hidden units a millisecond
} RankStep;

typedef struct StepRecord {
    int64_t step, steps;  // this one (from 1), and of the whole run
    double loss, grad_norm, lr;
    int64_t tokens, targets;
    int micro_batches;
    double seconds, mfu;
    // NaN or 0 where they are not known: cores of all ranks; which share of their time these used; and of the time in
    // which this rank wanted a core the share in which it had one.
    double cores, used, had;
    int virtual_time;  // seconds are virtual
    const char* planner;
    const char* strategy;  // of --strategies; NULL: there are none
    double moving_ms;      // then: of predicted_ms, gradients to their owners and weights to the next step
    const Plan* plan;  // NULL: not known
    double plan_us, plan_stall_us;
    double predicted_ms, measured_ms, gap;  // NaN: not known
    int stages, rounds, in_flight;          // of a pipeline; stages 1: there is none
    double bubble;
    double emulated_ms;  // 0 or NaN: not known
    // bytes
    uint64_t ulysses, ring, routing, remap, gradients, parameters, tensor, slices, inside, across;
    const RankStep* ranks;  // (n_ranks); NULL: not known
    int n_ranks;
    double exposed_seconds;  // this rank stood still for other ranks
    double seconds_left;
    uint64_t loss_hash;
} StepRecord;

// What the line of a step shows instead of the step's own loss and speed, see progress.h.
typedef struct Smooth {
    double loss, losses, tokens, seconds;
    double at_peak, busy, had;  // seconds: busy ones as they would be at the peak; busy ones; those with a core
} Smooth;
