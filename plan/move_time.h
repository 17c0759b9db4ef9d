// move_time.h - how long it takes to move the model between two layouts (run/mover.h) on a machine: its waves, played.
//
// Of a wave a rank sends and receives at once, in the time of the larger of both. It begins when this rank and all that
// send to it are ready; a rank is ready when the wave before the last is over, and its link, inside a node or between
// nodes, free. Nothing else goes on.
#pragma once
#include "plan/holding.h"
#include "plan/transfers.h"

typedef struct MoveTime {
    TransferTimes links;
    int ranks;
    const int* node;  // (ranks)
    int overlap;      // a wave begins before the one before it is over
} MoveTime;

// ends (ranks): ms after which each rank has all, where all begin at 0. elem: bytes of an element. 0, or -1 with words.
int move_time(double* ends, const MoveTime* t, const Shape* whole, const Holdings* from, const Holdings* to,
              ReshardKind kind, size_t elem, Arena* arena, char* err, size_t errlen);
// The same where every rank computes the whole model: a collective for each bucket. whole: its shards are the ranks.
double move_time_plain(const MoveTime* t, const Shape* whole, size_t elem);
