// cost.h - what a micro-batch costs: the one model that every planner, the bounds, the simulator and the log ask.
//
// Documents of s tokens each, together on a group of d = ulysses_size * ring_size ranks, take
//
//   (quadratic sum(s^2) uneven + per_token sum(s)) / d  +  communication(d, sum(s))  +  micro_batch     milliseconds,
//
// forward and backward of the whole model. uneven = ceil(K / ulysses_size) ulysses_size / K: among ranks that share K
// key/value heads, the one with most sets the pace.
//
// A micro-batch hides exchanges (group_attention.h) under the attention a of a rank, a third of it forward, two
// thirds backward. Heads travel in P parts (Cost.parts), x ms there and x ms back, while other parts are computed. A
// ring has R hops of h ms (backward the fp32 gradients beside the keys), and all but the last gradient's go while a
// block is computed. So under its own attention a micro-batch hides, forward and backward,
//
//   heads  min(x (P - 1) / P, a (P - 1) / P)    of each way, together at most a
//   ring   min(h, a / R)                        of each hop
//
// Exchanges posted first that do not hide there hide under the attention of the pass's other documents (timeline.h).
//
// Link times are known in one of two ways. Published machines say the GB/s of a rank in an all-to-all among d ranks
// (`groups`), and the bytes that a model's all-to-alls move a token; what a ring sends follows from these. Messages
// between nodes go at the GB/s of more ranks than a node has, here or there, however few take part. Measured machines
// have a table of message size against time for each kind of link, and messages are counted from the formulas of
// kernels/comm/group_attention.h.
//
// If a rank is a tensor-parallel group (tensor_ranks), all constants are of one of its ranks, and a micro-batch also
// takes the group's own exchanges.
#pragma once
#include "plan/cost/weights.h"
#include "plan/value/plan.h"

enum { LINK_POINTS = 24, COST_GROUPS = 16, GROUP_COMMUNICATIONS = 6, GROUP_ULYSSES_SIZES = 3, COST_NAME = 64 };
typedef enum LinkKind { LINK_INSIDE, LINK_ACROSS, N_LINKS } LinkKind;  // inside a node; between nodes

// Time of one collective against the bytes that a rank sends, to all its peers together. bytes ascend from the first
// point on, ms never fall. The time is linear between points, constant below the first, and follows the last line
// beyond the last. n = 0: free.
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
    double round;        // least ms of a micro-batch, as measured in rounds of a system with ZeRO-3
    double link_scale;   // 1: communication as the tables say
    double again;        // share of layers that do the exchanges of their forward pass twice (--recompute block)
    // published machines
    double token_bytes;  // moved a token by the all-to-alls, all layers, both ways; a rank of d moves token_bytes s / d
    int n_groups;        // 0: link tables instead
    int group_cp_size[COST_GROUPS];  // ascending; a cp size between two counts as the larger, beyond as the last
    double group_gbps[COST_GROUPS];  // 1e9 bytes/s of a rank
    int node;  // ranks of a node there: no fewer are as far apart as two nodes; 0: as many as a node has here
    int nics;  // NICs of a node, as messages through proxies count them; 0: each rank has one
    // measured machines
    LinkTable link[N_LINKS];
    LinkTable sum[N_LINKS];  // sums and gathers, by the bytes that collective_ms counts there; n = 0: as link
    // The model of these messages; channels of queries, kv_channels of keys and as many of values. Published machines
    // may leave them out: then keys have as many channels as queries, and elements 2 bytes.
    int layers, channels, kv_channels, elem_bytes;
    int parts;  // P; 0: exchanges hide under the attention of other documents alone, and heads travel in one part
    // A tensor-parallel group of tensor_ranks ranks, 0: none; the nodes that it spans; its exchanges a layer; the bytes
    // a token that all its ranks have together in one: of a layer, on published machines of all layers.
    int tensor_ranks, tensor_nodes;
    double tensor_exchanges, tensor_bytes;
} Cost;

// The fixed cost of a micro-batch. One that was measured with the rounds of one system counts for every system: for
// each of its micro-batches, which in rounds is for each round.
static inline double cost_micro_batch(const Cost* cost) { return MAX(cost->micro_batch, cost->round); }

// A communication hides under attention of the same documents only, or also of others in the pass.
typedef enum Hiding { HIDING_OWN, HIDING_ANY, N_HIDINGS } Hiding;

// `count` collectives, in each of which a rank sends bytes_per_token * tokens of the micro-batch.
typedef struct Communication {
    const LinkTable* link;
    double count, bytes_per_token;
    double shown[N_HIDINGS];  // the part of count that shows however long that attention is
} Communication;

// One of a group's exchanges: n tokens take linear n ms (published machines), or `count` of communications[at].
typedef struct GroupExchange {
    double linear, count;
    int at;
} GroupExchange;

// The cost of groups of one cp size: Cost with everything that depends on the cp size worked out.
typedef struct GroupCost {
    int cp_size, ulysses_size;                 // ulysses_size 0: there is no such group with this kind
    int across;                                // 1: its ranks are of several nodes
    int canonical;                             // 1: planners use it: inside a node, or whole nodes
    double quadratic, per_token, micro_batch;  // ms a token^2, a token of the micro-batch, a micro-batch
    double link_linear;                        // ms a token of communication, published machines
    double shown_linear[N_HIDINGS];            // ms a token of it that show, as in Communication
    double link_scale;
    int n_communications;
    Communication communications[GROUP_COMMUNICATIONS];
    GroupExchange first[2];  // part of all that a pass posts before it computes, forward and backward
    GroupExchange hop[2];    // one hop of a ring, of its keys and values and of their gradients, in all layers
    int parts;               // 0: hides nothing under its own attention
    int capacity;            // tokens that each of its ranks holds: group_capacity
    int64_t room;            // tokens that a ring rank holds: ring_rank_capacity
} GroupCost;

typedef struct CostTerms {
    double quadratic, per_token, communication,
        micro_batch;  // ms; quadratic: attention, per_token: the rest of the model
} CostTerms;

// How much more a group takes than with even shares of tokens and heads: linear layers, attention, all-to-alls, hops of
// a ring. Each is of the rank with most, for which all others wait in every layer.
typedef struct GroupFactors {
    double linear, attention, exchange, hop;
} GroupFactors;

GroupCost cost_group_in_shares(const Cost* cost, const PlanLimits* limits, int first_rank, int cp_size,
                               int ulysses_size, const GroupFactors* factors);
// The costs of a group of `cp_size` ranks that begins at first_rank and shares heads among `ulysses_size`, as evenly as
// whole heads do. Link tables are cost's own.
GroupCost cost_group(const Cost* cost, const PlanLimits* limits, int first_rank, int cp_size, int ulysses_size);
// Fills groups (ranks + 1): [d] is a group of d ranks as planners place it, [0] is empty. Its ulysses_size is that of
// `kind` which costs least for a document of d * capacity / 2 tokens. Every d from 1 to ranks is filled, for bounds;
// planners use only canonical ones. Capacities are those of the d contiguous ranks that hold most.
void cost_groups(GroupCost* groups, const Cost* cost, const PlanLimits* limits, CpChoice kind);

int common_divisor(int a, int b, int most);  // the largest that is at most `most`
// Lists the ulysses sizes of CP_CHOICE_AUTO: all heads apart, a ring, runs that nodes' borders leave whole.
// ulysses_sizes (GROUP_ULYSSES_SIZES) =; returns how many there are.
int group_ulysses_sizes(int* ulysses_sizes, const PlanLimits* limits, int cp_size);

// Returns ms, before link_scale, of a communication among `ranks` ranks that each move `bytes`: across several nodes of
// node_size ranks, or inside one. Every time of a message comes from here.
double message_ms(const Cost* cost, int ranks, int across, int node_size, double bytes);
// Returns ms, before link_scale, of a reduce-scatter, an all-gather or a broadcast of S = `bytes` in all among ranks of
// m nodes, k = ranks / m of each. An all-reduce is two. It travels node first, as libraries send it, over the links
//
//   inside a node   S (k - 1) / k           bytes of a rank
//   between nodes   S / k (m - 1) / m       bytes of a rank, since each of the k carries its part of all
//
// at the same time, chunk after chunk. So it takes the longer of both, and the shortest message of the other.
// Bandwidths: nccl-tests, doc/PERFORMANCE.md; latencies: Thakur, Rabenseifner and Gropp 2005. Times between nodes are
// those of all ranks of a node at once, so a machine's `nics` are in them: if k is less, other groups send, too.
double collective_ms(const Cost* cost, int ranks, int nodes, int node_size, double bytes);
// Its parts: a link's table, or on a published machine the GB/s of `ranks` ranks; ranks_between are as far apart as two
// nodes.
double link_ms(const LinkTable* link, double bytes);
double published_ms(const Cost* cost, int ranks, double bytes);
static inline int ranks_between(const Cost* cost, int node_size) { return MAX(node_size, cost->node) + 1; }

double link_sum_ms(const GroupCost* g, double tokens);  // ms of `communications`, before link_scale

static inline double group_communication_ms(const GroupCost* g, double tokens) {
    double ms = g->link_linear * tokens;
    return g->n_communications ? ms + g->link_scale * link_sum_ms(g, tokens) : ms;
}

// Returns the ms of communication that hide under `attention` ms of the same documents. left: ms posted before the pass
// computes, forward and backward, that do not hide, but may under other documents' attention. faster: NULL, or ms by
// which a ring's hops of keys and values, and those of gradients, beat the cost model.
double group_hidden_ms(double left[2], const GroupCost* g, double attention, double tokens, const double faster[2]);

// Fills slack with the ms that a ring's first hop may be late, forward and backward, before attention waits for it.
void group_slack_ms(double slack[2], const GroupCost* g, double attention, double tokens);
// Returns what a forward pass shows of `all` ms of communication: half of what heads travel, and all hops of a ring but
// those of gradients and their keys and values.
double group_forward_ms(const GroupCost* g, double attention, double tokens, double all);

// ms of communication that show, for documents in a pass by themselves whose attention takes `attention` ms.
static inline double group_shown_ms(const GroupCost* g, double attention, double tokens) {
    double left[2], ms = group_communication_ms(g, tokens);
    return g->parts ? ms - group_hidden_ms(left, g, attention, tokens, NULL) : ms;
}

// ms of documents without Cost.micro_batch; s2 is their sum of squares, tokens their sum.
static inline double group_ms(const GroupCost* g, double s2, double tokens) {
    double attention = g->quadratic * s2;
    return attention + g->per_token * tokens + group_shown_ms(g, attention, tokens);
}

// The terms as if nothing hid.
CostTerms group_terms(const GroupCost* g, double s2, double tokens);
static inline double terms_ms(const CostTerms* t) {
    return t->quadratic + t->per_token + t->communication + t->micro_batch;
}

// ---- a document of s tokens by itself in a group

int group_holds(const GroupCost* g, int s);                   // whether it fits
int group_holds_in(const GroupCost* g, int s, int64_t room);  // whether it fits `room`
// ms at `pace`, that of the group's slowest rank, of what takes `ms` at full speed (group_ms). Communication takes the
// same time at any pace.
static inline double document_ms_at(const GroupCost* g, double s2, double s, double ms, double pace) {
    if (pace == 1) return ms;
    double communication = group_shown_ms(g, g->quadratic * s2, s);
    return (ms - communication) / pace + communication;
}
// Tokens of GroupCost.room that a document takes. On a ring this is a bound, because chunks are rounded down.
static inline int64_t document_takes(const GroupCost* g, int s) {
    int ring_size = g->cp_size / g->ulysses_size;
    if (ring_size == 1) return s;
    return MIN(2 * (int64_t)CEIL_DIV(s, 2 * ring_size), g->room);  // a document that fits alone fits
}

// A planner's knowledge of the machine. groups point to the link tables of `cost` right here. A copy of a Setting keeps
// pointing to the original's, which must outlive it.
typedef struct Setting {
    PlanLimits limits;
    Cost cost;
    GroupCost* groups;     // (ranks + 1), by cost_groups
    const double* speeds;  // (ranks) 1: at the pace of cost, 0.5: half of it; the slowest rank sets a group's. NULL:
                           // all 1
    CpChoice kind;
    int context;          // longest document: static systems size their groups for it
    int rounds;           // all ranks run micro-batches in rounds, as ZeRO-2 and 3 need: see plan_set_rounds
    int cp_size;          // cp size of every group of a static plan; 0: the least that holds the context
    size_t route_least;   // Comm.route_least, in bytes of the machine's model; 0: nothing is routed
    int no_overlap;       // exchanges hide under nothing
    WeightTimes weights;  // times of a step's weights and gradients
} Setting;

// The speed of the slowest of n ranks.
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
// because the ring's messages inside nodes go during the transfer; without overlap, after it. (Zeppelin's 0.6, 0.4 and
// 0.3 with 2, 4 and 8 proxies follow if b_in is a tenth of b_out and there are none of these.) In a ring's turns a
// node's first rank combines while its last dispatches the next, each with a proxy's part of the other. There b_in(n /
// x) replaces one b_in(n (x - 1) / x).

// Returns ms, before link_scale, of a message of `bytes` through x proxies, when `at_once` ranks of a node each send
// one. in_turn: a ring's turn.
double route_ms(const Cost* cost, int node_size, double bytes, int x, int at_once, int overlap, int in_turn);
// Returns the least bytes from which on a message through a node's proxies arrives sooner than directly; 0: none does.
double route_least_bytes(const Cost* cost, const PlanLimits* limits);
// Returns the ms that the rings of a group save against the cost model's direct messages, with `tokens` tokens. hop:
// the part of a hop of keys and values, and of one of gradients.
double route_saved_ms(double hop[2], const Setting* setting, const GroupCost* g, int first_rank, double tokens);
