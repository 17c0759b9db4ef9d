// pipeline.h - this rank in a pipeline: its stage, and messages to the stages before and behind it.
//
// With --pp P, rank r of a job of W is in stage r / (W / P); the ranks of a stage plan, share documents and divide
// optimizer state among themselves as the ranks of a job without stages do, all stages by the same plan. So the tokens
// that rank r has of a round are those of rank r - W / P, which sends it their residual stream. Stages are outermost:
// between them only the stream travels, C elements a token and direction.
#pragma once
#include "plan/value/tasks.h"
#include "run/model/model_ranks.h"

// Rounds whose activations stage s keeps at a time: 1F1B needs so many.
static inline int pipeline_slots(int stages, int s) { return stages - s; }

// Makes the Comms of the layout, cuts m->shape, which is this rank's part of the whole model, to its stage, and takes
// what the layout says of that. All ranks call it.
void pipeline_join(Model* m);
void pipeline_close(Model* m);

// Begins a message of the task list; memory is that of the task's slot.
void pipeline_begin(Model* m, const Task* task, const Row* row);
// Before a pass: what it needs has come, what its slot sent has left.
void pipeline_settle(Model* m, const Task* task);
// After the last task.
void pipeline_finish(Model* m);
// Before and behind the forward pass of a row alone, for generation: from the stage before, to the one behind.
void pipeline_receive(Model* m, const Row* row);
void pipeline_send(Model* m, const Row* row);

// The layer of one of this rank's tensors in the whole model.
int pipeline_layer(const Model* m, const ParamTensor* own);
// This rank's part of a tensor of the whole model; without elements where its stage has nothing of it.
ParamTensor pipeline_part(const Model* m, const ParamTensor* tensor);
// The stage that has a tensor of the whole model; of wte the first one.
int pipeline_stage_of(const Model* m, const ParamTensor* tensor);
// value (n, host) from the rank of that stage to this one's place in all others. Collective in the pipeline.
void pipeline_share(const Model* m, float* value, size_t n, int stage);
