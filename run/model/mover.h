// mover.h - moves the model between two layouts over the ranks (plan/model/holding.h): weights from those who own them
// to where a step computes with them, gradients back, summed.
//
// A wave moves one bucket: its slices are packed, sent and received at once, and unpacked or added. The next wave
// travels while this one is unpacked. Sums are taken in the order of ranks, so that they have the same bits in every
// run. Where every rank computes the whole model the two layouts are those of ZeRO-1, and a wave is an all-gather or a
// reduce-scatter.
#pragma once
#include "plan/model/holding.h"
#include "run/model/model_ranks.h"

typedef struct Mover {
    Transfers transfers;
    ReshardKind kind;
    CommPurpose purpose;
    int is_plain;  // all ranks have the whole model: collectives
} Mover;

// A move at work, wave after wave.
typedef struct Moving {
    const Mover* mover;
    Comm* world;
    const Shape* whole;
    char* to;
    const char* from;
    char* scratch;
    size_t elem;
    DType dt;
    const Kernels* k;
    Stream s;
    Transfer* list;        // (2 ranks) messages of a wave
    Request under_way[2];  // of even and of odd waves
    int begun;             // waves
    CommPurpose before;
} Moving;

// Compiles a move between two layouts of the model over the ranks of `world`. In the arena; ends the program where
// there is no memory, or nobody has what is wanted.
Mover mover_open(ReshardKind kind, CommPurpose purpose, const Comm* world, const Shape* whole, const Holdings* from,
                 const Holdings* to, Arena* arena);
// Elements of scratch: two waves on their way, and a slice that is added.
size_t mover_scratch(const Mover* mover);
size_t mover_room(const Model* m);  // bytes that its gradients and its weights take on the move, to and from owners
// From one array of this rank to another, both of dt. scratch: mover_scratch elements of dt. With RESHARD_SUM `to` is
// added to. All ranks of `world` call it; whole: of the model, its shards are the ranks.
void mover_run(const Mover* mover, Comm* world, const Shape* whole, char* to, const char* from, char* scratch, DType dt,
               const Kernels* k, Stream s);
// The same in parts: the first n waves have begun, what they send may not change any more; all have arrived. Nothing
// else uses `world` in between. All ranks advance alike.
void mover_begin(Moving* x, const Mover* mover, Comm* world, const Shape* whole, char* to, const char* from,
                 char* scratch, DType dt, const Kernels* k, Stream s);
void mover_advance(Moving* x, int n);
void mover_end(Moving* x);

// Who owns which parts of a kind of state, as a list of boxes of whole tensors: `at` counts elements of this model's
// array of it, for STATE_WEIGHTS of Model.array[MODEL_WEIGHTS]. Every rank tells the others its own list, so any layout
// will do. Collective; in the arena; ends the program where a rank is lost.
Holdings owned_holdings(const Model* m, StateKind kind, Arena* arena);

// Between steps. Weights, masters and moments of heads and hidden units go to their new owners once; from then on
// nothing of the migration costs anything. ZeRO stage 1. All ranks of all groups call it together with the same split.
// Takes new memory before it gives the old back; ends the program where there is none.
void mover_divide_anew(Model* m, const TpSplit* split);
