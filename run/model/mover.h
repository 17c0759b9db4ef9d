// mover.h - moves the model between two layouts over the ranks (plan/model/holding.h): weights from those who own them
// to where a step computes with them, gradients back, summed.
//
// A wave moves one bucket. Where memory is short its slices are packed, sent and received at once, and unpacked or
// added, while the next wave travels. A move of the model is `posted` instead: all waves may be on their way while
// layers compute, weights from the first bucket on, gradients from the last; what stands together in memory is sent
// from there, and weights come to where they are used. Sums are taken in the order of ranks, so that they have the same
// bits in every run; where gradients travel as bf16 they are added up as fp32. Where every rank computes the whole
// model the two layouts are those of ZeRO-1, and a wave is an all-gather or a reduce-scatter.
#pragma once
#include "kernels/comm/comm.h"
#include "plan/model/holding.h"
#include "run/model/model.h"

typedef struct Mover {
    ReshardKind kind;
    CommPurpose purpose;
    DType dt, wire;  // dt: type of both arrays; wire: type of what travels
    Comm* world;
    Shape whole;
    const Kernels* k;
    Stream s;
    int is_plain;   // all ranks have the whole model, so that waves are collectives
    int is_posted;  // several waves may be under way, and neither array changes meanwhile
    int by_turns;   // the scratch of two waves is that of all
    Transfers transfers;
    size_t* scratch_at;  // (waves + 1) where the scratch of each begins, elements of `wire`
    int slices;          // most slices of a wave
} Mover;

// A Moving is a move at work, wave after wave.
typedef struct Moving {
    const Mover* mover;
    char* to;
    const char* from;
    char* scratch;
    Transfer* list;      // (slices) messages of a wave
    Request* under_way;  // (waves)
    int begun, over;     // waves
} Moving;

// Compiles a move of elements of dt between two layouts of m->whole over the ranks of `world`. from and to NULL:
// between owned pieces and the whole model on every rank. Lists lie in the arena. It ends the program if there is no
// memory, or if nobody has what is wanted.
Mover mover_open(const Model* m, Comm* world, ReshardKind kind, CommPurpose purpose, DType dt, const Holdings* from,
                 const Holdings* to, Arena* arena);
// mover_post follows mover_open: all waves may be under way, not the last two alone, and elements travel as `wire`.
void mover_post(Mover* mover, DType wire, int two);
// Returns scratch in elements of dt: what is packed of two waves, or of all, and two slices on their way into a sum.
size_t mover_scratch(const Mover* mover);
// Moves from one array of this rank to another; RESHARD_SUM adds to `to`. All ranks of `world` call it.
void mover_run(const Mover* mover, char* to, const char* from, char* scratch);
// These are mover_run in parts. mover_advance begins the first n waves: what they send may not change any more.
// mover_arrive waits for the first n waves of a posted move, mover_end for all. Ranks advance alike, and use `world`
// between in the same order. A wave reads `from` when it begins and writes `to` once it has arrived, after the next has
// begun; both may change from wave to wave, but not in a posted move.
void mover_begin(Moving* x, const Mover* mover, char* to, const char* from, char* scratch);
void mover_advance(Moving* x, int n);
void mover_arrive(Moving* x, int n);
void mover_end(Moving* x);
