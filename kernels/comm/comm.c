// comm.c - the entries of every Comm, over its transport; the Comm of one rank.
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/comm/comm_transport.h"

// ---- bytes sent: see Comm.sent

static void count_to(Comm* c, CommPurpose purpose, int peer, size_t bytes) {
    if (peer != c->rank) c->sent[purpose][c->node[peer] != c->node[c->rank]] += bytes;
}

static void count(Comm* c, CommPurpose purpose, const Operation* o) {
    size_t each = o->bytes, element = dtype_bytes(o->dt);
    if (o->kind == OP_BROADCAST && c->rank != o->root) each = 0;
    if (o->kind == OP_ALL_REDUCE) each = 2 * CEIL_DIV(o->bytes / element, (size_t)c->size) * element;
    for (int peer = 0; peer < c->size; peer++) count_to(c, purpose, peer, each);
    for (int i = 0; i < o->n_sends; i++) count_to(c, purpose, o->sends[i].peer, o->sends[i].bytes);
}

// ---- sums

enum { BLOCK = 1024 };  // elements that are added at a time

// out[first .. first + n] = the sum of terms there, in order; elements have type T, sums type S.
#define ADD(name, T, S, widen, narrow)                                                    \
    static void name(T* out, const void** terms, int n_terms, size_t first, int n) {      \
        S sum[BLOCK];                                                                     \
        for (int i = 0; i < n; i++) sum[i] = widen(((const T*)terms[0] + first)[i]);      \
        for (int t = 1; t < n_terms; t++)                                                 \
            for (int i = 0; i < n; i++) sum[i] += widen(((const T*)terms[t] + first)[i]); \
        for (int i = 0; i < n; i++) out[first + (size_t)i] = narrow(sum[i]);              \
    }
ADD(add_f32, float, float, , )
ADD(add_f64, double, double, , )
ADD(add_bf16, bf16, float, bf16_to_float, bf16_from_float)

void comm_add_in_order(void* out, const void** terms, int n_terms, size_t n, DType dt) {
    for (size_t i = 0; i < n; i += BLOCK) {
        int block = (int)MIN((size_t)BLOCK, n - i);
        if (dt == DT_F64) add_f64((double*)out, terms, n_terms, i, block);
        else if (dt == DT_F32) add_f32((float*)out, terms, n_terms, i, block);
        else add_bf16((bf16*)out, terms, n_terms, i, block);
    }
}

// ---- waiting. The timer comes first, so that an injected slowdown is no exposed time.

typedef struct Pause {
    TimeKind before;
    double start;
} Pause;

static double seconds(const Comm* c) { return c->transport->seconds ? c->transport->seconds() : 0; }

// A rank alone waits for nobody.
static Timer* timer_of(const Comm* c) { return c->size > 1 ? c->timer : NULL; }

static Pause begin_pause(Comm* c, Stream s) {
    Pause pause = {.before = timer_enter(timer_of(c), TIME_WAIT, s)};
    pause.start = seconds(c);
    return pause;
}

static void end_pause(Comm* c, Pause pause, Stream s) {
    c->exposed_seconds += seconds(c) - pause.start;
    timer_enter(timer_of(c), pause.before, s);
}

// ---- entries

static void end(Comm* c, Request request, Stream s) {
    if (request == 0) return;
    Pause pause = begin_pause(c, s);
    c->transport->end(c, request, s);
    end_pause(c, pause, s);
}

static Request begin_and_end(Comm* c, const Operation* o, Stream s) {
    Pause pause = begin_pause(c, s);
    c->transport->begin(c, o, s);
    end_pause(c, pause, s);
    return 0;
}

static Request begin(Comm* c, const Operation* o, Stream s) {
    if (o->bytes == 0 && o->n_sends + o->n_receives == 0) return 0;
    count(c, c->purpose, o);
    timer_lag(c->timer, s);
    if (!c->transport->end) return begin_and_end(c, o, s);
    Request request = c->transport->begin(c, o, s);
    if (c->overlap) return request;
    end(c, request, s);
    return 0;
}

static void all_reduce(Comm* c, void* x, size_t n, DType dt, Stream s) {
    Operation o = {.kind = OP_ALL_REDUCE, .out = x, .in = x, .bytes = n * dtype_bytes(dt), .dt = dt};
    end(c, begin(c, &o, s), s);
}

static Request begin_reduce_scatter(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s) {
    Operation o = {.kind = OP_REDUCE_SCATTER, .out = out, .in = in, .bytes = n * dtype_bytes(dt), .dt = dt};
    return begin(c, &o, s);
}

static Request begin_all_gather(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s) {
    Operation o = {.kind = OP_ALL_GATHER, .out = out, .in = in, .bytes = n * dtype_bytes(dt)};
    return begin(c, &o, s);
}

static void check_messages(const Comm* c, const Transfer* messages, int n) {
    for (int i = 0; i < n; i++)
        if (messages[i].peer < 0 || messages[i].peer >= c->size)
            broken("message %d of a send/receive names rank %d, but the Comm has %d", i, messages[i].peer, c->size);
}

static Request begin_send_receive(Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives,
                                  Stream s) {
    Operation o = {.kind = OP_SEND_RECEIVE, .sends = sends, .receives = receives};
    o.n_sends = n_sends, o.n_receives = n_receives;
    check_messages(c, sends, n_sends);
    check_messages(c, receives, n_receives);
    return begin(c, &o, s);
}

// ---- entries for host values

// An operation without bytes goes to the transport too, so that it tells a failure.
static int run_on_host(Comm* c, const Operation* o, Err err) {
    if (o->bytes == 0) return c->transport->run_on_host(c, o, err);
    Pause pause = begin_pause(c, NULL);
    int result = c->transport->run_on_host(c, o, err);
    end_pause(c, pause, NULL);
    return result;
}

// Gathers without counting bytes.
static int gather(Comm* c, void* out, const void* in, size_t bytes, Err err) {
    Operation o = {.kind = OP_ALL_GATHER, .out = out, .in = in, .bytes = bytes};
    return run_on_host(c, &o, err);
}

static int all_gather_host(Comm* c, void* out, const void* in, size_t bytes, Err err) {
    count(c, COMM_HOST, &(Operation){.kind = OP_ALL_GATHER, .bytes = bytes});
    return gather(c, out, in, bytes, err);
}

static int broadcast_host(Comm* c, void* x, size_t bytes, int root, Err err) {
    Operation o = {.kind = OP_BROADCAST, .out = x, .in = x, .bytes = bytes, .root = root};
    count(c, COMM_HOST, &o);
    return run_on_host(c, &o, err);
}

// Every rank hears from every other one.
static int barrier(Comm* c, Err err) {
    char here = 1, *all = (char*)malloc((size_t)c->size);
    int result = all ? gather(c, all, &here, 1, err) : fail(err, "no memory for a barrier");
    free(all);
    return result;
}

static int wait_for_all(Comm* c, Stream s, Err err) {
    Pause pause = begin_pause(c, s);
    int result = c->transport->wait(c, s, err);
    end_pause(c, pause, s);
    return result;
}

static void close_comm(Comm* c) { c->transport->close(c); }

// ---- nodes

// node (size) = equal where host (size) is, numbered from 0 in the order of their first rank.
static void number_nodes(Comm* c, const uint64_t* host) {
    for (int r = 0, nodes = 0; r < c->size; r++) {
        int same = 0;
        while (same < r && host[same] != host[r]) same++;
        c->node[r] = same < r ? c->node[same] : nodes++;
    }
}

static uint64_t hash_of_host(void) {
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return hash_bytes(name, strlen(name), 0);
}

int comm_find_nodes(Comm* c, Err err) {
    uint64_t own = hash_of_host(), *host = (uint64_t*)malloc((size_t)c->size * sizeof *host);
    int pretended = 0;
    if (!host) return fail(err, "no memory for the hosts of %d ranks", c->size);
    int result = gather(c, host, &own, sizeof own, err);
    if (result == 0) result = variable_number(&pretended, "RAGGED_NODE_SIZE", 1, INT_MAX, err);
    if (result == 0) {
        number_nodes(c, host);
        c->local_size = 0;
        for (int r = 0; r < c->size; r++) c->local_size += host[r] == own;
        for (int r = 0; r < c->size && pretended; r++) c->node[r] = r / pretended;
    }
    c->exposed_seconds = 0;
    free(host);
    return result;
}

// ---- parts

// A rank's wish for its part.
typedef struct Wish {
    int color, key;
} Wish;

// Returns this rank's part; member = all ranks of its color, in the order of their keys.
static Part part_of(const Comm* c, const Wish* all, int* member) {
    Part p = {.color = all[c->rank].color, .member = member, .single = 1};
    for (int i = 0; i < c->size; i++) {
        for (int j = 0; j < i && p.single; j++) p.single = all[i].color < 0 || all[j].color != all[i].color;
        if (p.color < 0 || all[i].color != p.color) continue;
        int at = p.size++;
        for (; at > 0 && all[member[at - 1]].key > all[i].key; at--) member[at] = member[at - 1];
        member[at] = i;
    }
    while (p.size && member[p.rank] != c->rank) p.rank++;
    return p;
}

static int split(Comm* c, Comm** part, int color, int key, Err err) {
    size_t size = (size_t)c->size;
    Wish own = {MAX(color, -1), key}, *all = (Wish*)malloc(size * sizeof *all);
    int* member = (int*)malloc(size * sizeof *member);
    uint64_t* host = (uint64_t*)malloc(size * sizeof *host);
    *part = NULL;
    int result = all && member && host ? gather(c, all, &own, sizeof own, err)
                                       : fail(err, "no memory for a Comm of %d ranks", c->size);
    if (result == 0) {
        Part p = part_of(c, all, member);
        result = c->transport->split(c, part, &p, err);
        for (int r = 0; r < p.size; r++) host[r] = (uint64_t)c->node[member[r]];
    }
    if (*part) {
        Comm* made = *part;
        made->local_size = c->local_size;
        made->overlap = c->overlap;
        number_nodes(made, host);
    }
    free(all), free(member), free(host);
    return result;
}

static const CommTable entries = {
    .all_reduce = all_reduce,
    .begin_reduce_scatter = begin_reduce_scatter,
    .begin_all_gather = begin_all_gather,
    .begin_send_receive = begin_send_receive,
    .end = end,
    .all_gather_host = all_gather_host,
    .broadcast_host = broadcast_host,
    .barrier = barrier,
    .wait = wait_for_all,
    .split = split,
    .close = close_comm,
};

Comm* comm_new(size_t bytes, const Transport* transport, int rank, int size, double timeout_seconds) {
    Comm* c = (Comm*)calloc(1, bytes + (size_t)size * sizeof(int));
    if (!c) return NULL;
    c->table = &entries;
    c->transport = transport;
    c->name = transport->name;
    c->rank = rank, c->size = size;
    c->node = (int*)((char*)c + bytes);
    c->timeout_seconds = timeout_seconds;
    return c;
}

// ---- messages to oneself

void comm_copy_to_self(const Comm* c, const Operation* o, CopyBytes copy, Stream s) {
    const Transfer *sends = o->sends, *receives = o->receives;
    int r = 0;
    for (int i = 0; i < o->n_sends; i++) {
        if (sends[i].peer != c->rank || sends[i].bytes == 0) continue;
        while (r < o->n_receives && (receives[r].peer != c->rank || receives[r].bytes == 0)) r++;
        if (r == o->n_receives || receives[r].bytes != sends[i].bytes)
            broken("rank %d sends itself %zu bytes as message %d, but receives %zu", c->rank, sends[i].bytes, i,
                   r == o->n_receives ? (size_t)0 : receives[r].bytes);
        if (receives[r].data != sends[i].data) copy(receives[r].data, sends[i].data, sends[i].bytes, s);
        r++;
    }
    for (; r < o->n_receives; r++)
        if (receives[r].peer == c->rank && receives[r].bytes > 0)
            broken("rank %d receives %zu bytes from itself as message %d, but sends none", c->rank, receives[r].bytes,
                   r);
}

// ---- the Comm of one rank: every entry is a copy in the order of the stream, or nothing where input and output are
// the same memory

#pragma GCC diagnostic ignored "-Wunused-parameter"  // transports share their signatures

typedef struct Alone {
    Comm comm;
    CopyBytes copy;
    int (*wait)(Comm* c, Stream s, Err err);
} Alone;

static Request begin_copy(Comm* c, const Operation* o, Stream s) {
    CopyBytes copy = ((Alone*)c)->copy;
    comm_copy_to_self(c, o, copy, s);
    if (o->bytes > 0 && o->out != o->in) copy(o->out, o->in, o->bytes, s);
    return 0;
}

static int copy_on_host(Comm* c, const Operation* o, Err err) {
    if (o->bytes > 0) memmove(o->out, o->in, o->bytes);
    return 0;
}

static int wait_for_copies(Comm* c, Stream s, Err err) { return ((Alone*)c)->wait(c, s, err); }

static int split_alone(Comm* c, Comm** part, const Part* p, Err err) {
    const Alone* a = (Alone*)c;
    return p->size ? comm_open_alone(part, a->copy, a->wait, c->timeout_seconds, err) : 0;
}

static void close_alone(Comm* c) { free(c); }

int comm_open_alone(Comm** c, CopyBytes copy, int (*wait)(Comm* c, Stream s, Err err), double timeout_seconds,
                    Err err) {
    static const Transport alone = {"self",          NULL,        begin_copy, NULL, NULL, copy_on_host,
                                    wait_for_copies, split_alone, close_alone};
    *c = comm_new(sizeof(Alone), &alone, 0, 1, timeout_seconds);
    if (!*c) return fail(err, "no memory for a Comm");
    ((Alone*)*c)->copy = copy, ((Alone*)*c)->wait = wait;
    if (comm_find_nodes(*c, err) == 0) return 0;
    free(*c);
    *c = NULL;
    return -1;
}

// ---- in host memory, where copies have finished on return

void comm_copy_host(void* to, const void* from, size_t bytes, Stream s) { memmove(to, from, bytes); }

static int wait_for_nothing(Comm* c, Stream s, Err err) { return 0; }

int comm_open_self(Comm** world, double timeout_seconds, Err err) {
    return comm_open_alone(world, comm_copy_host, wait_for_nothing, timeout_seconds, err);
}
