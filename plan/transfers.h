// transfers.h - what a communication takes on a machine, by its purpose: for the virtual cluster, which plays it, and
// for the search for layouts, which predicts it.
//
// A machine knows its own model as a whole; the model that runs may be any. Its messages stand for those of the
// machine's model:
//
//   published machines   an all-to-all of b bytes, with what stays here, of the B a token that this model moves in one:
//                        token_bytes b / B bytes at the GB/s of so many ranks. B = 2 L e (2 queries + 2 keys) channels
//   measured machines    with l layers of c channels for our L of C: l / L messages of b c / C bytes
//
// Gradients and weights travel as the parameters that the machine names (memory), else as ours.
#pragma once
#include "plan/machine.h"
#include "plan/shape.h"

typedef enum TransferKind {
    TRANSFER_ULYSSES,
    TRANSFER_TENSOR,
    TRANSFER_RING,
    TRANSFER_STREAM,
    TRANSFER_WEIGHTS
} TransferKind;

typedef struct TransferTimes {
    const Cost* cost;  // the machine's
    int node_size;
    double token_scale;                      // published: bytes of the machine's model for one of ours
    double stream_scale;                     // the same of the stream between two layers
    double channel_scale, key_scale, count;  // measured
    double weight_scale;
} TransferTimes;

TransferTimes transfer_times(const Machine* machine, const Shape* whole, int elem_bytes, int node_size);
// Among so many ranks, `across` nodes or inside one; bytes that a rank sends to others, and with what stays here.
double transfer_ms(const TransferTimes* t, TransferKind kind, int ranks, int across, double sent, double whole);
