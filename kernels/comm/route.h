// route.h - a message between nodes by way of several NICs: dispatch, transfer, combine (Zeppelin, arXiv 2509.21841).
//
// In a ring one rank of a node sends outside and the NICs of the others are idle. So it hands parts of its message to
// proxies, ranks of its node in the same exchange; they send to as many proxies of the other node, which bring them to
// the receiver. Of n bytes and x proxies on either side, no two on one NIC, sender and receiver among them:
//
//   dispatch   n (x - 1) / x bytes inside the node     counted as COMM_ROUTE
//   transfer   n / x each, between the nodes           counted for the exchange, by who sends it
//   combine    n (x - 1) / x bytes inside the node     COMM_ROUTE
//
// Parts are multiples of ROUTE_PART bytes, but for the last. All this is three exchanges of the Comm, one after
// another.
#pragma once
#include "kernels/comm/comm.h"

enum { ROUTE_PART = 16, MOST_PROXIES = 64 };

// A message of an exchange in which every rank sends one and gets one. All its ranks know all of them.
typedef struct RouteMessage {
    int from, to;
    size_t bytes;
} RouteMessage;

// Returns the bytes of scratch for messages of at most `bytes`: a proxy holds parts there on their way.
static inline size_t route_scratch(size_t bytes) { return bytes + 3 * ROUTE_PART; }

// Returns how many proxies messages[i] has on either side; 1: it goes directly. beside: like exchanges run at once.
int route_proxies(const Comm* c, const RouteMessage* messages, int n, int i, int beside);
// Begins the exchange for this rank, which sends `send` and gets `receive`.
Request begin_routed(Comm* c, const RouteMessage* messages, int n, int beside, void* send, void* receive, void* scratch,
                     Stream s);
