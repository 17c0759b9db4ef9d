// holding.h - who holds which part of which tensor, and what has to travel between two such descriptions.
//
// A layout of the model over ranks is a list of holdings: this rank has this box of this tensor, there in its memory. A
// box is a range of rows and a range of columns of the tensor of the whole model. Tensor parallelism, stages of a
// pipeline and the pieces that ranks own of optimizer state are all lists of boxes, so one function moves between any
// two of them. Pure: lists of all ranks go in, one rank's part of the transfers comes out, the same on every rank.
//
// With COPY every element that `to` names comes from one rank that has it: this rank itself if it can, else one of the
// same node, else any. Ties go to the one with least to send so far (Hydraulis' rule for its slices). With SUM every
// copy in `from` is a part of a sum, and all of them are added up, in the order of ranks.
#pragma once
#include "plan/model/split.h"

typedef struct Holding {
    int rank;
    Box box;
    size_t at;   // elements from the start of the rank's array to the first of the box
    int stride;  // elements from one row of the box to the next
} Holding;

// The holdings of all ranks. Tensor i of the whole model (shape_tensor) is held as list[first[i] .. first[i + 1]), in
// the order of ranks.
typedef struct Holdings {
    int tensors;
    int* first;  // (tensors + 1)
    Holding* list;
} Holdings;

// The part of the model that a rank computes: rank `tp_rank` of a group divided by `split`, layers [first_layer,
// end_layer). `shards` ranks have the same part, and this one is number `shard` of them; 0: it is alone.
typedef struct Part {
    const TpSplit* split;
    int tp_rank, first_layer, end_layer, shards, shard;
} Part;

// The tensors of a part, in memory as shape_param says.
Shape part_shape(const Shape* whole, const Part* part);

// holdings_of_pieces lists the pieces that ranks own of every bucket, whole->shards of them; holdings_of_parts the
// parts (ranks) that they compute. divided (L of the whole model): layers of which a rank that shares its part holds
// only its piece, later tensors right after it; NULL: none. Both lie in the arena; 0, or -1 without memory.
int holdings_of_pieces(Holdings* holdings, const Shape* whole, Arena* arena, Err err);
int holdings_of_parts(Holdings* holdings, const Shape* whole, const Part* parts, int ranks, const char* divided,
                      Arena* arena, Err err);

// Lists elements [first, first + n) of a rank's part of a tensor as holdings of the whole one, of which the part has
// `boxes`. They lie one after another from `at` on. Returns how many, at most MOST_RUN_HOLDINGS.
enum { MOST_RUN_HOLDINGS = 3 * MOST_RUNS };
int holdings_of_run(Holding out[MOST_RUN_HOLDINGS], int rank, const ParamTensor* part, const Box* boxes, int n_boxes,
                    size_t first, size_t n, size_t at);

// Serves moves between pieces and parts if several ranks of a node hold the same box of a tensor uncut there. Each
// piece of another node's rank crosses once, to or from one of them, its leader there, by turns.
typedef struct NodeHoldings {
    Holdings doors;      // the parts' side of the exchange with owners: all but what followers have
    Holdings leaders;    // the part of doors that others of the node have too
    Holdings followers;  // the same on these others
} NodeHoldings;

// The lists lie in the arena; 0, or -1 without memory. node (ranks): the node of each.
int holdings_of_nodes(NodeHoldings* lists, const Holdings* parts, const Holdings* pieces, const int* node, Arena* arena,
                      Err err);

// ---- transfers

// SUM_INSIDE: as SUM, over the holdings of ranks of the same node only.
typedef enum ReshardKind { RESHARD_COPY, RESHARD_SUM, RESHARD_SUM_INSIDE } ReshardKind;

// Data between owners and parts moves twice: between owners and doors, and inside nodes between leaders and followers.
// Copies take the owners' hop first, sums the hop inside first.
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

// The slices of one peer, packed one after another, in the same order on both sides.
typedef struct Message {
    int peer, first, n;  // slices[first .. first + n)
    size_t elems;
} Message;

typedef struct Messages {
    Message* list;  // in the order of peers
    int n;
    size_t elems;  // elements to or from others
} Messages;

// The messages that this rank sends and receives in one wave. A message to itself is in both, and needs no travel.
typedef struct Wave {
    Messages sends, receives;
} Wave;

typedef struct Transfers {
    int waves;
    Wave* wave;                                  // one for each bucket of the whole model
    Slice* slices;                               // of all messages
    size_t most_send, most_receive, most_slice;  // elements, the most of any wave; of any slice
} Transfers;

// Called for each box that goes from one rank's holding to another's, or to one of its own; wave by wave.
typedef void (*OnTravel)(void* context, int wave, const Holding* from, const Holding* to, const Box* box);
// Reports the boxes of all ranks; the arena is as it was. 0, or -1 with words as reshard.
int reshard_visit(const Shape* whole, const Holdings* from, const Holdings* to, ReshardKind kind, int ranks,
                  const int* node, OnTravel on_travel, void* context, Arena* arena, Err err);

// The transfers of `rank`, in the arena. node (ranks): the node of each. 0, or -1 with words: no memory, or an element
// that `to` wants and nobody has.
int reshard(Transfers* transfers, const Shape* whole, const Holdings* from, const Holdings* to, ReshardKind kind,
            int rank, int ranks, const int* node, Arena* arena, Err err);
