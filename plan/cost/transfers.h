// transfers.h - what a communication takes on a machine, by its purpose. The virtual cluster plays it, and the search
// for layouts predicts it.
//
// A machine knows its own model as a whole; the model that runs may be any. Its messages stand for those of the
// machine's model:
//
//   published machines   an all-to-all of b bytes, with what stays here, of the B a token that this model moves in one:
//                        token_bytes b / B bytes at the GB/s of so many ranks. B = 2 L e (2 queries + 2 keys) channels
//   measured machines    with l layers of c channels for our L of C: l / L messages of b c / C bytes
//
// Gradients and weights travel as many parameters as the machine names (memory), else as many as ours.
#pragma once
#include "plan/cost/clock.h"
#include "plan/model/holding.h"
#include "plan/cost/machine.h"
#include "plan/model/shape.h"

typedef enum TransferKind {
    TRANSFER_ULYSSES,
    TRANSFER_TENSOR,
    TRANSFER_RING,
    TRANSFER_STREAM,
    TRANSFER_WEIGHTS,
    N_TRANSFER_KINDS
} TransferKind;

typedef struct TransferTimes {
    const Cost* cost;  // the machine's
    int node_size;
    double scale[N_TRANSFER_KINDS];  // bytes of the machine's model for one of ours
    double count;                    // messages of its model for one of ours in a layer
} TransferTimes;

TransferTimes transfer_times(const Machine* machine, const Shape* whole, int elem_bytes, int node_size);
// Returns ms among `ranks` ranks, `across` nodes or inside one. sent: a rank's bytes to others; whole: with those kept.
double transfer_ms(const TransferTimes* t, TransferKind kind, int ranks, int across, double sent, double whole);
// Returns ms of a reduce-scatter, an all-gather or a broadcast of `whole` bytes in all, among ranks of `nodes` nodes
// (collective_ms).
double transfer_sum_ms(const TransferTimes* t, TransferKind kind, int ranks, int nodes, double whole);

// Returns the times of a rank's `part` of a model, whose buckets `ranks` ranks of `nodes` nodes divide by this stage of
// ZeRO. grad_bytes: of an element that travels. Nothing travels if other times include it (machine_has_weights).
WeightTimes transfer_weights(const TransferTimes* t, const Shape* part, int zero, int ranks, int nodes, int elem_bytes,
                             int grad_bytes);

// ---- how long it takes to move the model between two layouts (run/model/mover.h): its waves, played
//
// In a wave a rank sends and receives at once, in the time of the larger of both. The wave begins when this rank and
// all that send to it are ready, and its link, inside a node or between nodes, is free.

typedef struct MoveTime {
    TransferTimes links;
    int ranks;
    const int* node;  // (ranks)
    int overlap;      // 0: whoever begins a wave waits until it is over
} MoveTime;

// One rank in a wave: ms on its link, 0: it takes no part.
typedef struct RankWave {
    double ms;
    int across;
} RankWave;

// A move between two lists of holdings, of all ranks.
typedef struct MoveTable {
    int waves, ranks, all;  // all: every rank sends to every other one
    RankWave* of;           // (waves, ranks)
    int *first, *sender;    // (waves ranks + 1) begin of each rank's senders in each wave
} MoveTable;

// Builds the table in the arena. elem: bytes of an element. 0, or -1 with words.
int move_table(MoveTable* table, const MoveTime* t, const Shape* whole, const Holdings* from, const Holdings* to,
               ReshardKind kind, size_t elem, Arena* arena, Err err);
// The same if every rank computes the whole model: a collective for each bucket. whole: its shards are the ranks.
int move_table_plain(MoveTable* table, const MoveTime* t, const Shape* whole, size_t elem, Arena* arena, Err err);
// over (ranks) =: when a wave is over on each rank, which has come so far at `ready` (ranks). clock (ranks): their
// links, with the waves begun before.
void move_play(double* over, RankClock* clock, const MoveTable* table, int wave, const double* ready);
