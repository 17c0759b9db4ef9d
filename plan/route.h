// route.h - what a ring's messages between nodes take in the cost model, directly or through proxies (kernels/route.h).
//
// The times of a machine between nodes are those of all R ranks of a node at once. With N NICs a rank's message keeps
// its NIC busy for N / R of that, and k messages that leave the node together take ceil(k / N) N / R of it. With b_in
// and b_out the times of bytes inside a node and between nodes, a message of n bytes takes
//
//   directly          b_out(n)
//   with x proxies    b_in(n (x - 1) / x)  +  max(b_out(n / x), b_in(n))  +  b_in(n (x - 1) / x)
//
// since the ring's messages inside nodes go during the transfer; behind it without overlap. Zeppelin's 0.6, 0.4 and 0.3
// with 2, 4 and 8 proxies follow where b_in is a tenth of b_out and there are none of these.
//
// In a ring such messages go turn after turn, out of a node's last rank and into its first. While the first combines,
// the last dispatches its next: each of them has one of the two to do, and a proxy's part n / x of the other. So a turn
// takes b_in(n / x) in place of one of the two b_in(n (x - 1) / x).
#pragma once
#include "plan/cost.h"

// ms, before link_scale, of a message of `bytes` through x proxies, where `at_once` ranks of a node each send one;
// in_turn: of a ring's turn.
double route_ms(const Cost* cost, int node_size, double bytes, int x, int at_once, int overlap, int in_turn);
// The least bytes from which a message through a node's proxies is sooner there than directly; 0: none is.
double route_least_bytes(const Cost* cost, const PlanLimits* limits);
// ms by which the rings of a group exchange sooner than the cost model says of direct messages, with `tokens` tokens;
// hop: of it, those of a hop of keys and values, and of one of gradients.
double route_saved_ms(double hop[2], const Setting* setting, const GroupCost* g, int first_rank, double tokens);
