// tasks.h - what each stage of a pipeline does in a step, and in which order.
//
// A pipeline cuts the layers of the model into stages, each on ranks of its own. A round (MicroBatch.round) goes A
// pipeline cuts the layers of the model into stages, each on ranks of its own. A round (MicroBatch.round) goes forward
// through the stages and backward the other way. The residual stream travels forward between stages, its gradient
// backward. Stage s keeps the activations of at most slots[s] rounds; rounds take the slots by turns.
//
// The scheduler plays the step: it takes, again and again, the task that can start first. Ties go to a message, then to
// a backward pass, then to the earlier stage. For equal rounds and slots[s] = stages - s that is 1F1B (Narayanan et al.
// 2019, "PipeDream"): stages - s forward passes, then one backward and one forward in turn. With m rounds, F and B ms a
// stage, the step takes (m + stages - 1) (F + B).
//
// The result is one order of all tasks, of which each stage's list is a part. A message is a task of both its stages.
// So the first task in this order that has not ended can always go on. No stages wait for each other in a circle, even
// if a message blocks both its stages until it is through.
//
// One stage with one slot: forward and backward of the rounds one after another.
#pragma once
#include "plan/base/base.h"

typedef enum TaskKind { TASK_FORWARD, TASK_BACKWARD, TASK_SEND, TASK_RECEIVE } TaskKind;

typedef struct Task {
    TaskKind kind;
    int backward;  // of a message, 1: the gradient, to the stage before; 0: the stream, to the stage after
    int round, slot;
    double start, end;  // ms, as played; both stages of a message have the same
} Task;

typedef struct Pipeline {
    int stages, rounds;
    int training;                // 0: no backward passes; a slot is free once its stream has left
    int* slots;                  // (stages) at least 1
    double *forward, *backward;  // (stages, rounds) ms
    double* message;  // (rounds) ms, NULL: none; messages of two neighbours in one direction run one after another
} Pipeline;

typedef struct TaskList {
    Task* tasks;
    int n, most_in_flight;  // most_in_flight: rounds whose activations the stage keeps at a time
    double busy;            // ms of computing
} TaskList;

typedef struct Schedule {
    TaskList* stages;  // (stages)
    int *order, n;     // (n) the one order of all tasks: entry i is the stage that runs its next task; of a message the
                       // sender comes first
    double makespan;   // ms
} Schedule;

// The number of rounds whose activations stage s of `stages` keeps, as in 1F1B.
static inline int pipeline_slots(int stages, int s) { return stages - s; }
// Takes a pipeline with these slots from the arena; nothing in it takes any time yet. 0, or -1 without memory.
int pipeline_take(Pipeline* p, int stages, int rounds, int training, Arena* arena, Err err);
// Sets a round's ms at stage s, both ways: backward takes twice as long as forward, plus `again` of a forward pass.
void pipeline_set(Pipeline* p, int s, int round, double ms, double again);

// The schedule lies in the arena. 0, or -1 without memory. O(stages^2 rounds).
int schedule_tasks(Schedule* schedule, const Pipeline* pipeline, Arena* arena, Err err);

// The share of a step that stages spend without computing: (stages - 1) / (stages - 1 + rounds) for equal rounds.
double schedule_bubble(const Schedule* schedule, int stages);
