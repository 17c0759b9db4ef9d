// simulate_baselines.h - what the papers compare their planners with: one way to divide for all steps, rebuilt. They
// are planners of the simulator alone, each with a setting of its own: what its system can run is what it is charged
// for.
//
//   deepspeed    heads alone (Ulysses, ZeRO-3), one cp size that holds the context (FlexSP's DeepSpeed)
//   batchada     heads alone, the best cp size of every step (FlexSP's BatchAda)
//   te-cp        a ring, the least cp size that holds the context (Transformer Engine's context parallelism)
//   te-cp-all    a ring of all ranks, as Zeppelin seems to have run it: its own does not scale with ranks
//   kv-gather    a ring's shares whose keys and values are gathered before attention, so that nothing of it hides
//                (Llama 3's context parallelism); bytes as a ring's
//   tp1-cp ..    tensor parallelism of 1 to 16 ranks, with sequence parallelism, and a ring of such groups, with ZeRO-1
//   tp16-cp      (Megatron-LM, hand-tuned: the best of them is to be taken). Needs --model
//   balanced     micro-batches of one cp size, in the order of documents (dev/balanced.h)
#pragma once
#include "dev/simulate.h"

// What one is held to.
typedef struct Baseline {
    const char* name;
    const Planner* planner;  // that plans for it
    CpChoice kind;           // how its ranks share a document; CP_CHOICE_AUTO: as the simulation says
    int of_all, gathers;     // a ring of all ranks; nothing hides
    int tp;                  // 0: without tensor parallelism
} Baseline;

// Makes *own, a copy of the simulation's setting whose groups (ranks + 1) are its own, this system's. 0, or -1 with a
// message.
int baseline_set(const Baseline* x, Setting* own, const Simulation* s, Err err);
const Baseline* baseline_named(const char* name);  // NULL: there is none
const char* baseline_names(void);
