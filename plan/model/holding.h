// holding.h - who holds which part of which tensor, and what has to travel between two such descriptions.
//
// A layout of the model over ranks is a list of holdings: this rank has this box of this tensor, there in its memory. A
// box is a range of rows and a range of columns of the tensor of the whole model. Tensor parallelism, stages of a
// pipeline and the pieces that ranks own of optimizer state are all lists of boxes, so one function moves between any
// two of them. Pure: lists of all ranks go in, one rank's part of the transfers comes out, the same on every rank.
//
// With COPY every element that `to` names comes from one rank that has it: from this rank itself where it can, else
// from one of the same node, else from any; among equals from the one that has been given least to send so far
// (Hydraulis' rule for its slices). With SUM every copy in `from` is a part of a sum, and all of them are added up, in
// the order of ranks.
#pragma once
#include "plan/model/split.h"

typedef struct Holding {
    int rank;
    Box box;
    size_t at;   // elements from the start of the rank's array to the first of the box
    int stride;  // elements from one row of the box to the next
} Holding;

// Of all ranks; tensor i of the whole model (shape_tensor) is held as list[first[i] .. first[i + 1]), in the order of
// ranks.
typedef struct Holdings {
    int tensors;
    int* first;  // (tensors + 1)
    Holding* list;
} Holdings;

// What a rank computes of the model: rank `tp_rank` of a group divided by `split`, the layers [first_layer, end_layer).
// `shards` ranks have the same part, this one is number `shard` of them; 0: it is alone.
typedef struct Part {
    const TpSplit* split;
    int tp_rank, first_layer, end_layer, shards, shard;
} Part;

// Its tensors, in memory as shape_param says.
Shape part_shape(const Shape* whole, const Part* part);

// Both lie in the arena; 0, or -1 without memory. Of the pieces that ranks own of every bucket, whole->shards of them;
// and of the parts (ranks) that they compute. divided (L of the whole model): the layers of which a rank of several
// with the same part holds its piece alone, what follows right behind it; NULL: none.
int holdings_of_pieces(Holdings* holdings, const Shape* whole, Arena* arena, Err err);
int holdings_of_parts(Holdings* holdings, const Shape* whole, const Part* parts, int ranks, const char* divided,
                      Arena* arena, Err err);

// Elements [first, first + n) of a rank's part of a tensor, which consists of `boxes` of the whole one, as holdings of
// it: they lie one behind another from `at` on. Returns how many, at most MOST_RUN_HOLDINGS.
enum { MOST_RUN_HOLDINGS = 3 * MOST_RUNS };
int holdings_of_run(Holding out[MOST_RUN_HOLDINGS], int rank, const ParamTensor* part, const Box* boxes, int n_boxes,
                    size_t first, size_t n, size_t at);

// Between pieces and parts, where several ranks of a node hold the same box of a tensor, and nothing else there cuts
// it: each piece of a rank of another node crosses once, to or from one of them, its leader there, by turns.
typedef struct NodeHoldings {
    Holdings doors;      // what of the parts is exchanged with owners: all of it, but for what followers have
    Holdings leaders;    // of doors, what others of the node have too
    Holdings followers;  // these others
} NodeHoldings;

// In the arena; 0, or -1 without memory. node (ranks): the node of each.
int holdings_of_nodes(NodeHoldings* lists, const Holdings* parts, const Holdings* pieces, const int* node, Arena* arena,
                      Err err);

// ---- transfers

// SUM_INSIDE: as SUM, of what ranks of the same node hold.
typedef enum ReshardKind { RESHARD_COPY, RESHARD_SUM, RESHARD_SUM_INSIDE } ReshardKind;

// What moves between owners and parts moves twice: between owners and doors, and inside nodes between leaders and
// followers. Copies take the first before the second, sums the second before the first.
enum { MOVE_INSIDE, MOVE_OWNERS, N_MOVE_HOPS };
typedef struct MoveHop {
    const Holdings *from, *to;
    ReshardKind kind;
} MoveHop;
MoveHop holdings_hop(const Holdings* pieces, const NodeHoldings* parts, ReshardKind kind, int hop);

// A box in memory of this rank.
typedef struct Slice {
    size_t at;
    int rows, cols, stride;
} Slice;

// The slices of one peer, packed behind one another, in the same order on both sides.
typedef struct Message {
    int peer, first, n;  // slices[first .. first + n)
    size_t elems;
} Message;

typedef struct Messages {
    Message* list;  // in the order of peers
    int n;
    size_t elems;  // to or from others
} Messages;

// What this rank sends and receives of one wave. A message to itself is among both; it needs no travel.
typedef struct Wave {
    Messages sends, receives;
} Wave;

typedef struct Transfers {
    int waves;
    Wave* wave;                                  // one for each bucket of the whole model
    Slice* slices;                               // of all messages
    size_t most_send, most_receive, most_slice;  // elements, of any wave; of any slice
} Transfers;

// A box that goes from one rank's holding to another's, or to one of its own; wave by wave.
typedef void (*OnTravel)(void* context, int wave, const Holding* from, const Holding* to, const Box* box);
// Tells of those of all ranks; the arena is as it was. 0, or -1 with words as reshard.
int reshard_visit(const Shape* whole, const Holdings* from, const Holdings* to, ReshardKind kind, int ranks,
                  const int* node, OnTravel on_travel, void* context, Arena* arena, Err err);

// What `rank` has to do. node (ranks): the node of each. In the arena; 0, or -1 with words: no memory, or an element
// that `to` wants and nobody has.
int reshard(Transfers* transfers, const Shape* whole, const Holdings* from, const Holdings* to, ReshardKind kind,
            int rank, int ranks, const int* node, Arena* arena, Err err);
