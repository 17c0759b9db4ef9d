// route.c - an exchange whose messages between nodes go through proxies: see route.h.
#include "kernels/comm/route.h"

// A message in parts; from[0] is who sends it, to[0] who gets it.
typedef struct Parts {
    int n, from[MOST_PROXIES], to[MOST_PROXIES];
    size_t part, bytes;
} Parts;

static size_t part_at(const Parts* p, int j) { return MIN(p->bytes, (size_t)j * p->part); }
static size_t part_bytes(const Parts* p, int j) { return part_at(p, j + 1) - part_at(p, j); }

// Returns the NIC of a rank. Those of a node are dealt to its ranks, which are neighbours, in runs.
static int nic_of(const Comm* c, int rank) {
    int first = rank, end = rank + 1;
    if (c->nics == 0) return rank;
    while (first > 0 && c->node[first - 1] == c->node[rank]) first--;
    while (end < c->size && c->node[end] == c->node[rank]) end++;
    return c->nics < end - first ? (rank - first) * c->nics / (end - first) : rank;
}

// Lists ranks of the exchange in the node of `first`, from it on, no two on one NIC, at most `most`.
static int proxies_of(int* proxies, const Comm* c, const RouteMessage* messages, int n, int first, int most) {
    int found = 0, start = 0;
    while (start < n && messages[start].from != first) start++;
    for (int i = 0; i < n && found < most; i++) {
        int rank = messages[(start + i) % n].from, fresh = c->node[rank] == c->node[first];
        for (int j = 0; j < found && fresh; j++) fresh = nic_of(c, proxies[j]) != nic_of(c, rank);
        if (fresh) proxies[found++] = rank;
    }
    return found;
}

static Parts parts_of(const Comm* c, const RouteMessage* messages, int n, int i, int beside) {
    const RouteMessage* m = &messages[i];
    Parts p = {.n = 1, .from = {m->from}, .to = {m->to}, .part = m->bytes, .bytes = m->bytes};
    if (c->route_least == 0 || m->bytes < c->route_least || c->node[m->from] == c->node[m->to]) return p;
    int most = c->nics > 0 ? MAX(1, c->nics / MAX(1, beside)) : MOST_PROXIES;
    int from = proxies_of(p.from, c, messages, n, m->from, MIN(most, MOST_PROXIES));
    int to = proxies_of(p.to, c, messages, n, m->to, MIN(most, MOST_PROXIES));
    p.n = MIN(from, to);
    p.part = ROUND_UP(CEIL_DIV(m->bytes, (size_t)p.n), (size_t)ROUTE_PART);
    return p;
}

int route_proxies(const Comm* c, const RouteMessage* messages, int n, int i, int beside) {
    return parts_of(c, messages, n, i, beside).n;
}

typedef enum Stage { DISPATCH, TRANSFER, DIRECT, COMBINE, N_STAGES } Stage;

typedef struct List {
    Transfer sends[MOST_PROXIES], receives[MOST_PROXIES];
    int n_sends, n_receives;
} List;

static void add_send(List* list, int peer, void* data, size_t bytes) {
    list->sends[list->n_sends++] = (Transfer){peer, data, bytes};
}
static void add_receive(List* list, int peer, void* data, size_t bytes) {
    list->receives[list->n_receives++] = (Transfer){peer, data, bytes};
}

// Adds this rank's transfers for one message. held: places for a part on its way out, and on its way in.
static void add_message(List* lists, const Parts* p, int own, char* send, char* receive, char* const held[2]) {
    for (int j = 0; j < p->n; j++) {
        int from = p->from[j], to = p->to[j];
        size_t at = part_at(p, j), bytes = part_bytes(p, j);
        char *out = j ? held[0] : send, *in = j ? held[1] : receive;
        if (j && p->from[0] == own) add_send(&lists[DISPATCH], from, send + at, bytes);
        if (j && from == own) add_receive(&lists[DISPATCH], p->from[0], out, bytes);
        if (from == own) add_send(&lists[TRANSFER], to, out, bytes);
        if (to == own) add_receive(&lists[TRANSFER], from, in, bytes);
        if (j && to == own) add_send(&lists[COMBINE], p->to[0], in, bytes);
        if (j && p->to[0] == own) add_receive(&lists[COMBINE], to, receive + at, bytes);
    }
}

static Request begin_stage(Comm* c, const List* list, CommPurpose purpose, Request after, Stream s) {
    CommPurpose before = c->purpose;
    if (list->n_sends + list->n_receives == 0) return 0;
    c->purpose = purpose, c->after = after;
    Request request = c->table->begin_send_receive(c, list->sends, list->n_sends, list->receives, list->n_receives, s);
    c->purpose = before, c->after = 0;
    return request;
}

// Begins the stages; messages inside the node go while parts are transferred. The end of the last request is that of
// all: they run one after another, or by `after`.
static Request begin_stages(Comm* c, const List* lists, Stream s) {
    Request dispatched = begin_stage(c, &lists[DISPATCH], COMM_ROUTE, 0, s);
    Request transferred = begin_stage(c, &lists[TRANSFER], c->purpose, dispatched, s);
    Request there = begin_stage(c, &lists[DIRECT], c->purpose, 0, s);
    Request combined = begin_stage(c, &lists[COMBINE], COMM_ROUTE, transferred, s);
    return combined ? combined : there ? there : transferred ? transferred : dispatched;
}

// One message of a ring leaves each node and one comes, so that a rank is proxy of at most one of either. Where nobody
// is, all messages go at once.
Request begin_routed(Comm* c, const RouteMessage* messages, int n, int beside, void* send, void* receive, void* scratch,
                     Stream s) {
    List lists[N_STAGES];
    int own = c->rank, out = 0, in = 0, most = 1;  // parts of others that this rank passes on
    size_t largest = 0;
    for (int stage = 0; stage < N_STAGES; stage++) lists[stage].n_sends = lists[stage].n_receives = 0;
    for (int i = 0; i < n; i++) {
        Parts p = parts_of(c, messages, n, i, beside);
        if (p.n > 1) largest = MAX(largest, p.part);
        most = MAX(most, p.n);
    }
    List* direct = &lists[most > 1 ? DIRECT : TRANSFER];
    for (int i = 0; i < n; i++) {
        const RouteMessage* m = &messages[i];
        Parts p = parts_of(c, messages, n, i, beside);
        char* held[2] = {(char*)scratch, (char*)scratch + largest};
        for (int j = 1; j < p.n; j++) out += p.from[j] == own, in += p.to[j] == own;
        if (c->node[m->from] != c->node[m->to]) add_message(lists, &p, own, (char*)send, (char*)receive, held);
        else if (m->from == own) add_send(direct, m->to, send, m->bytes);
        if (c->node[m->from] == c->node[m->to] && m->to == own) add_receive(direct, m->from, receive, m->bytes);
    }
    if (out > 1 || in > 1) broken("rank %d is a proxy of %d messages out of its node and %d into it", own, out, in);
    c->at_once = most * beside;
    Request request = begin_stages(c, lists, s);
    c->at_once = 0;
    return request;
}
