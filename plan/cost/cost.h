// cost.h - what a micro-batch costs: the one model that every planner, the bounds, the simulator and the log ask.
//
// Documents of s tokens each, together on a group of d = ulysses_size * ring_size ranks, take
//
//   (quadratic sum(s^2) uneven + per_token sum(s)) / d  +  communication(d, sum(s))  +  micro_batch     milliseconds,
//
// forward and backward of the whole model. uneven = ceil(K / ulysses_size) ulysses_size / K: of the K key/value heads
// that ranks share the one with most sets the pace.
//
// What hides (group_attention.h), with the attention a of a rank, a third of it forward, two thirds backward:
// heads travel in P parts (Cost.parts), one way there and one way back of x ms each, while other parts are computed;
// of the R hops of h ms of a ring (backward the fp32 gradients beside the keys) all but the last gradient's go while a
// block is computed. So under its own attention a micro-batch hides, forward and backward,
//
//   heads  min(x (P - 1) / P, a (P - 1) / P)    of each way, together at most a
//   ring   min(h, a / R)                        of each hop
//
// What is posted first and does not hide there hides under the attention of other documents of the pass (timeline.h).
//
// Link times are known in one of two ways. Published machines say the GB/s of a rank in an all-to-all among d ranks
// (`groups`), and the bytes that a model's all-to-alls move a token; what a ring sends follows from these. Messages
// between nodes go at the GB/s of more ranks than a node has, here or there, however few take part. Measured machines
// have for each kind of link a table of message size against time, and messages are counted from the formulas of
// kernels/comm/group_attention.h.
//
// Where a rank is a tensor-parallel group (tensor_ranks), all constants are of one of its ranks, and a micro-batch also
// takes the group's own exchanges.
#pragma once
#include "plan/cost/weights.h"
#include "plan/value/plan.h"

enum { LINK_POINTS = 24, COST_GROUPS = 16, GROUP_COMMUNICATIONS = 6, GROUP_ULYSSES_SIZES = 3, COST_NAME = 64 };
typedef enum LinkKind { LINK_INSIDE, LINK_ACROSS, N_LINKS } LinkKind;  // of a node; between nodes

// Time of one collective in which a rank sends so many bytes, to all its peers together. bytes ascending from the first
// point on, ms never falling; between points straight lines, below the first its time, beyond the last along the last
// line. n = 0: free.
typedef struct LinkTable {
    int n;
    double bytes[LINK_POINTS], ms[LINK_POINTS];
} LinkTable;

typedef struct Cost {
    char name[COST_NAME];
    double quadratic;    // ms a token^2, on one rank
    double per_token;    // ms
    double micro_batch;  // ms a micro-batch, whatever is in it
    double step;         // ms a step: reduce, update, gather
    double round;        // ms that a micro-batch takes at least, as measured in rounds of a system with ZeRO-3
    double link_scale;   // 1: communication as the tables say
    // published machines
    double token_bytes;  // moved a token by the all-to-alls, all layers, both ways; a rank of d moves token_bytes s / d
    int n_groups;        // 0: link tables instead
    int group_cp_size[COST_GROUPS];  // ascending; a cp size between two counts as the larger, beyond as the last
    double group_gbps[COST_GROUPS];  // 1e9 bytes/s of a rank
    int node;  // ranks of a node there: no fewer are as far apart as two nodes; 0: as many as a node has here
    int nics;  // of a node, as messages through proxies count them; 0: each rank has one
    // measured machines
    LinkTable link[N_LINKS];
    LinkTable
        sum[N_LINKS];  // the same of sums and gathers, by the bytes that collective_ms counts there; n = 0: as link
    // Of the model whose messages these are; channels of queries, kv_channels of keys, and as many of values.
    // Published machines may leave them out: then as many channels of keys as of queries, and 2 bytes.
    int layers, channels, kv_channels, elem_bytes;
    int parts;  // P; 0: exchanges hide under the attention of other documents alone, and heads travel in one part
    // A tensor-parallel group of so many ranks, 0: none; the nodes that it spans; its exchanges a layer, and the bytes
    // a token that all its ranks have together in one: of a layer, on published machines of all layers.
    int tensor_ranks, tensor_nodes;
    double tensor_exchanges, tensor_bytes;
} Cost;

// What a micro-batch costs whatever is in it. A fixed cost that was measured with the rounds of one system is every
// system's: for each of its micro-batches, which in rounds is for each round.
static inline double cost_micro_batch(const Cost* cost) { return MAX(cost->micro_batch, cost->round); }

// What can hide a communication: attention of the same documents; also that of others in the pass.
typedef enum Hiding { HIDING_OWN, HIDING_ANY, N_HIDINGS } Hiding;

// `count` collectives of bytes_per_token * tokens of the micro-batch bytes that each rank sends
typedef struct Communication {
    const LinkTable* link;
    double count, bytes_per_token;
    double shown[N_HIDINGS];  // of count, what nothing hides however long that attention is
} Communication;

// One of a group's exchanges: of n tokens linear n ms (published machines), or `count` of communications[at].
typedef struct GroupExchange {
    double linear, count;
    int at;
} GroupExchange;

// What groups of one cp size cost: Cost with everything that depends on the cp size worked out.
typedef struct GroupCost {
    int cp_size, ulysses_size;                 // ulysses_size 0: there is no such group with this kind
    int across;                                // its ranks are of several nodes
    int canonical;                             // planners use it: inside a node, or whole nodes
    double quadratic, per_token, micro_batch;  // ms a token^2, a token of the micro-batch, a micro-batch
    double link_linear;                        // ms a token of communication, published machines
    double shown_linear[N_HIDINGS];            // of it, as in Communication
    double link_scale;
    int n_communications;
    Communication communications[GROUP_COMMUNICATIONS];
    GroupExchange first[2];  // of all that, what a pass posts before it computes, forward and backward
    GroupExchange hop[2];    // a hop of a ring, of its keys and values and of their gradients, in all layers
    int parts;               // 0: hides nothing under its own attention
    int capacity;            // tokens that each of its ranks holds: group_capacity
    int64_t room;            // tokens that a ring rank holds: ring_rank_capacity
} GroupCost;

typedef struct CostTerms {
    double quadratic, per_token, communication,
        micro_batch;  // ms; quadratic: attention, per_token: the rest of the model
} CostTerms;

// How much more a group takes than if all its ranks had even shares of tokens and heads: linear layers, attention,
// all-to-alls, hops of a ring. Each is of the rank that has most, for which all others wait in every layer.
typedef struct GroupFactors {
    double linear, attention, exchange, hop;
} GroupFactors;

GroupCost cost_group_in_shares(const Cost* cost, const PlanLimits* limits, int first_rank, int cp_size,
                               int ulysses_size, const GroupFactors* factors);
// A group of `cp size` ranks that begins at first_rank and shares heads among `ulysses_size`, as evenly as whole heads
// do. link tables are cost's own.
GroupCost cost_group(const Cost* cost, const PlanLimits* limits, int first_rank, int cp_size, int ulysses_size);
// groups (ranks + 1): [d] for a group of d ranks where planners would put one, with the ulysses_size of `kind` that
// costs least for a row of d * capacity / 2 tokens in documents of that length. [0] is empty. Every d from 1 to ranks
// is filled, for bounds; planners only use canonical ones. Each holds what the d contiguous ranks do that hold most.
void cost_groups(GroupCost* groups, const Cost* cost, const PlanLimits* limits, CpChoice kind);

int common_divisor(int a, int b, int most);  // the largest that is at most `most`
// What ulysses_size may be with CP_CHOICE_AUTO: all heads apart, a ring, runs that nodes' borders leave whole.
// ulysses_sizes (GROUP_ULYSSES_SIZES) =; returns how many there are.
int group_ulysses_sizes(int* ulysses_sizes, const PlanLimits* limits, int cp_size);

// ms, before link_scale, of a communication among so many ranks in which each moves so many bytes: across several nodes
// of node_size ranks, or inside one. Every time of a message comes from here.
double message_ms(const Cost* cost, int ranks, int across, int node_size, double bytes);
// ms, before link_scale, of a reduce-scatter, an all-gather or a broadcast of S = `bytes` in all among ranks of m
// nodes, k = ranks / m of each; an all-reduce is two. It travels node first, as libraries send it: over links
//
//   inside a node   S (k - 1) / k           bytes of a rank
//   between nodes   S / k (m - 1) / m       bytes of a rank, since each of the k carries its part of all
//
// at the same time, chunk behind chunk: the longer of both, and the shortest message of the other. Bandwidths:
// nccl-tests, doc/PERFORMANCE.md; latencies: Thakur, Rabenseifner and Gropp 2005. Times between nodes are those of all
// ranks of a node at once, so a machine's `nics` are in them: where k is less, ranks of other groups send, too.
double collective_ms(const Cost* cost, int ranks, int nodes, int node_size, double bytes);
// What it is made of: a link's table; on a published machine the GB/s of so many ranks, of which so many are as far
// apart as two nodes.
double link_ms(const LinkTable* link, double bytes);
double published_ms(const Cost* cost, int ranks, double bytes);
static inline int ranks_between(const Cost* cost, int node_size) { return MAX(node_size, cost->node) + 1; }

double link_sum_ms(const GroupCost* g, double tokens);  // of `communications`, before link_scale

static inline double group_communication_ms(const GroupCost* g, double tokens) {
    double ms = g->link_linear * tokens;
    return g->n_communications ? ms + g->link_scale * link_sum_ms(g, tokens) : ms;
}

// ms of communication that hides under `attention` ms of the same documents. left: ms of what a pass posts before it
// computes, forward and backward, that do not: other documents' attention can hide them. faster: NULL, or ms by which
// a ring's hops of keys and values, and those of gradients, are faster than the cost model says.
double group_hidden_ms(double left[2], const GroupCost* g, double attention, double tokens, const double faster[2]);

// By how many ms a ring's first hop may be late, forward and backward, before its next block of attention waits for it.
void group_slack_ms(double slack[2], const GroupCost* g, double attention, double tokens);
// Of `all` ms of communication, what a forward pass shows: of heads a half travels there, of a ring all hops but those
// of gradients and their keys and values.
double group_forward_ms(const GroupCost* g, double attention, double tokens, double all);

// ms of communication that is not hidden, of documents in a pass by themselves, whose attention takes so long.
static inline double group_shown_ms(const GroupCost* g, double attention, double tokens) {
    double left[2], ms = group_communication_ms(g, tokens);
    return g->parts ? ms - group_hidden_ms(left, g, attention, tokens, NULL) : ms;
}

// ms of documents, s2 their sum of squares, tokens their sum, without Cost.micro_batch.
static inline double group_ms(const GroupCost* g, double s2, double tokens) {
    double attention = g->quadratic * s2;
    return attention + g->per_token * tokens + group_shown_ms(g, attention, tokens);
}

// As if nothing hid.
CostTerms group_terms(const GroupCost* g, double s2, double tokens);
static inline double terms_ms(const CostTerms* t) {
    return t->quadratic + t->per_token + t->communication + t->micro_batch;
}

// ---- a document of s tokens by itself in a group

int group_holds(const GroupCost* g, int s);                   // whether it fits
int group_holds_in(const GroupCost* g, int s, int64_t room);  // with so much room
// ms at the pace of the group's slowest rank of what takes `ms` at full speed (group_ms): communication takes the same
// time at any.
static inline double document_ms_at(const GroupCost* g, double s2, double s, double ms, double pace) {
    if (pace == 1) return ms;
    double communication = group_shown_ms(g, g->quadratic * s2, s);
    return (ms - communication) / pace + communication;
}
// Tokens that it takes of GroupCost.room. On a ring a bound: chunks are rounded down.
static inline int64_t document_takes(const GroupCost* g, int s) {
    int ring_size = g->cp_size / g->ulysses_size;
    if (ring_size == 1) return s;
    return MIN(2 * (int64_t)CEIL_DIV(s, 2 * ring_size), g->room);  // a document that fits alone fits
}

// What planners know of the machine. groups point to the link tables of `cost` right here: a copy of a Setting keeps
// pointing to the original's, which must outlive it.
typedef struct Setting {
    PlanLimits limits;
    Cost cost;
    GroupCost* groups;     // (ranks + 1), by cost_groups
    const double* speeds;  // (ranks) 1: at the pace of cost, 0.5: half of it; a group goes at its slowest rank's. NULL:
                           // all 1
    CpChoice kind;
    int context;          // no document is longer: what static systems size their groups for
    int rounds;           // all ranks run micro-batches in rounds, as ZeRO-2 and 3 need: see plan_set_rounds
    int cp_size;          // of every group of a static plan; 0: the least that holds the context
    size_t route_least;   // Comm.route_least, in bytes of the machine's model; 0: nothing is routed
    int no_overlap;       // exchanges hide under nothing
    WeightTimes weights;  // of a step
} Setting;

// The slowest of n ranks.
static inline double slowest_speed(const Setting* setting, int first_rank, int n) {
    if (!setting->speeds) return 1;
    double speed = setting->speeds[first_rank];
    for (int r = 1; r < n; r++) speed = MIN(speed, setting->speeds[first_rank + r]);
    return speed;
}

// ---- what a ring's messages between nodes take, directly or through proxies (kernels/comm/route.h)
//
// A machine's times between nodes are those of all R ranks of a node at once. With N NICs a rank's message keeps its
// NIC busy for N / R of that, and k messages that leave the node together take ceil(k / N) N / R of it. With b_in and
// b_out the times inside a node and between nodes, a message of n bytes takes
//
//   directly          b_out(n)
//   with x proxies    b_in(n (x - 1) / x)  +  max(b_out(n / x), b_in(n))  +  b_in(n (x - 1) / x)
//
// since the ring's messages inside nodes go during the transfer; behind it without overlap. (Zeppelin's 0.6, 0.4 and
// 0.3 with 2, 4 and 8 proxies follow where b_in is a tenth of b_out and there are none of these.) In a ring's turns a
// node's first rank combines while its last dispatches the next, each with a proxy's part of the other: b_in(n / x)
// takes the place of one b_in(n (x - 1) / x).

// ms, before link_scale, of a message of `bytes` through x proxies, where `at_once` ranks of a node each send one;
// in_turn: of a ring's turn.
double route_ms(const Cost* cost, int node_size, double bytes, int x, int at_once, int overlap, int in_turn);
// The least bytes from which a message through a node's proxies is sooner there than directly; 0: none is.
double route_least_bytes(const Cost* cost, const PlanLimits* limits);
// ms by which the rings of a group exchange sooner than the cost model says of direct messages, with `tokens` tokens;
// hop: of it, those of a hop of keys and values, and of one of gradients.
double route_saved_ms(double hop[2], const Setting* setting, const GroupCost* g, int first_rank, double tokens);
