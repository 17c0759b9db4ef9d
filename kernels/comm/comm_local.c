// comm_local.c - the Comm of ranks that were forked from one process (forked.h), over memory that they share; see
// comm.h.
//
// Collectives of n go over the boards of their Comm, a piece at a time: ranks write, all meet, ranks read. Two boards
// take turns: a rank that writes on one again has met, at the other, all that had to read it.
//
//   all-gather      a rank writes its n, and reads those of all
//   broadcast       the root writes n, all read it
//   reduce-scatter  a rank writes a part for each, and adds those for it, in the order of ranks
//   all-reduce      a rank writes its n, and adds those of all: the same sums, each on every rank
//
// Messages go through rings of bytes, one for each pair of ranks and direction, after their lengths: only the sender
// writes to a ring, only the receiver takes from it, and they wake each other by a bell that each rank has. Pages of
// rings that nobody uses do not exist.
//
// Nothing runs beside the program: a communication is over when its begin returns.
#include <stdlib.h>
#include <unistd.h>

#include "kernels/comm/comm_transport.h"
#include "kernels/comm/forked.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"  // there are no streams here

enum {
    LEAST_BOARD = 1 << 20,  // bytes
    RINGS = 256 << 20,      // bytes of all rings, but
    LEAST_RING = 256,       // of one at least,
    MOST_RING = 1 << 20     // and at most
};

// A ring of bytes; `written` and `taken` count all bytes that ever went through.
typedef struct Ring {
    atomic_size_t written, taken;
    char data[];
} Ring;

typedef struct Boards {
    atomic_uint meetings;  // that are over
    atomic_int came;       // ranks, to the next one
    char data[];           // two boards; before them, of each rank, the last meeting that it came to
} Boards;

// The rings and bells of the world, in memory of all ranks.
typedef struct Links {
    size_t ring;         // bytes of one with its head
    char* rings;         // (ranks, ranks): from, to
    atomic_uint bell[];  // (ranks)
} Links;

typedef struct LocalComm {
    Comm comm;
    Boards* boards;
    const void** terms;  // (size)
    int* member;         // (size) forked ranks
    int* marks;          // (size, 2) of each rank: the last look at rings that found a message to or from it unfinished
    size_t* done;        // (room) of each message under way, with its length: bytes that have gone or come
    int room;
} LocalComm;

static Links* links;
static Boards* of_all;  // those of the world

// A board has room for 8 bytes of each rank for each, so that no share of it is empty; shares are whole numbers of 8
// bytes. The head comes before the boards.
static size_t board_bytes(int size) { return MAX((size_t)LEAST_BOARD, 8 * (size_t)size * (size_t)size); }
static size_t head_bytes(int size) { return ROUND_UP((size_t)size * sizeof(unsigned), (size_t)64); }
static size_t share_of(size_t bytes, int size) { return bytes / (size_t)size / 8 * 8; }

// ---- waiting

static int is_hopeless(const Comm* c, double since) {
    return forked_failed(NULL) || now_seconds() - since > c->timeout_seconds;
}

// Records this rank's failure, unless another rank has failed before.
static void give_up(const Comm* c, int late) {
    char name[48];
    if (forked_failed(NULL)) return;
    forked_fail(
        "nothing moved for %g s while waiting for %s: stopped, or not at the same collective; see the first error "
        "among the ranks",
        c->timeout_seconds, forked_name(late, name));
}

static atomic_uint* last_meeting(const LocalComm* l, int r) { return (atomic_uint*)l->boards->data + r; }

static char* board(const LocalComm* l, unsigned meeting) {
    return l->boards->data + head_bytes(l->comm.size) + meeting % 2 * board_bytes(l->comm.size);
}

// Returns a rank that has not come yet; this one if all have.
static int first_late(const LocalComm* l, unsigned meeting) {
    for (int r = 0; r < l->comm.size; r++)
        if (atomic_load(last_meeting(l, r)) == meeting) return l->member[r];
    return forked_rank();
}

// Waits until all have written on the board. Returns the board; NULL: a rank has failed.
static const char* meet(const LocalComm* l) {
    Boards* b = l->boards;
    double since = now_seconds();
    unsigned meeting = atomic_load(&b->meetings);
    atomic_store(last_meeting(l, l->comm.rank), meeting + 1);
    if (atomic_fetch_add(&b->came, 1) == l->comm.size - 1) {
        atomic_store(&b->came, 0);
        forked_wake(&b->meetings);
    }
    while (atomic_load(&b->meetings) == meeting) {
        if (is_hopeless(&l->comm, since)) return give_up(&l->comm, first_late(l, meeting)), NULL;
        forked_sleep(&b->meetings, meeting);
    }
    return board(l, meeting);
}

// Returns the board that is written next.
static char* write_at(const LocalComm* l) { return board(l, atomic_load(&l->boards->meetings)); }

// ---- collectives: 0, or -1 when a rank has failed

static int all_gather(LocalComm* l, char* out, const char* in, size_t bytes) {
    const Comm* c = &l->comm;
    for (size_t first = 0, n; first < bytes; first += n) {
        n = MIN(share_of(board_bytes(c->size), c->size), bytes - first);
        memcpy(write_at(l) + (size_t)c->rank * n, in + first, n);
        const char* all = meet(l);
        if (!all) return -1;
        for (int r = 0; r < c->size; r++) memmove(out + (size_t)r * bytes + first, all + (size_t)r * n, n);
    }
    return 0;
}

static int broadcast(LocalComm* l, char* x, size_t bytes, int root) {
    for (size_t first = 0, n; first < bytes; first += n) {
        n = MIN(board_bytes(l->comm.size), bytes - first);
        if (l->comm.rank == root) memcpy(write_at(l), x + first, n);
        const char* all = meet(l);
        if (!all) return -1;
        if (l->comm.rank != root) memcpy(x + first, all, n);
    }
    return 0;
}

// out = the sum of the ranks' parts, which stand one after another.
static void add(LocalComm* l, char* out, const char* parts, size_t n, DType dt) {
    for (int r = 0; r < l->comm.size; r++) l->terms[r] = parts + (size_t)r * n;
    comm_add_in_order(out, l->terms, l->comm.size, n / dtype_bytes(dt), dt);
}

static int reduce_scatter(LocalComm* l, char* out, const char* in, size_t bytes, DType dt) {
    size_t size = (size_t)l->comm.size, rank = (size_t)l->comm.rank;
    size_t most = share_of(share_of(board_bytes(l->comm.size), l->comm.size), l->comm.size);
    for (size_t first = 0, n; first < bytes; first += n) {
        n = MIN(most, bytes - first);
        char* at = write_at(l);
        for (size_t r = 0; r < size; r++) memcpy(at + (r * size + rank) * n, in + r * bytes + first, n);
        const char* all = meet(l);
        if (!all) return -1;
        add(l, out + first, all + rank * size * n, n, dt);
    }
    return 0;
}

static int all_reduce(LocalComm* l, char* x, size_t bytes, DType dt) {
    const Comm* c = &l->comm;
    for (size_t first = 0, n; first < bytes; first += n) {
        n = MIN(share_of(board_bytes(c->size), c->size), bytes - first);
        memcpy(write_at(l) + (size_t)c->rank * n, x + first, n);
        const char* all = meet(l);
        if (!all) return -1;
        add(l, x + first, all, n, dt);
    }
    return 0;
}

static double most(Comm* c, double mine) {
    const LocalComm* l = (const LocalComm*)c;
    memcpy(write_at(l) + (size_t)c->rank * sizeof mine, &mine, sizeof mine);
    const double* all = (const double*)meet(l);
    for (int r = 0; all && r < c->size; r++) mine = MAX(mine, all[r]);
    return mine;
}

// ---- messages

static Ring* ring_between(int from, int to) {
    return (Ring*)(links->rings + ((size_t)from * (size_t)forked_ranks() + (size_t)to) * links->ring);
}

// Returns the bytes that may be written, or taken.
static size_t available(const Ring* ring, int receives) {
    size_t waiting = atomic_load(&ring->written) - atomic_load(&ring->taken);
    return receives ? waiting : links->ring - sizeof *ring - waiting;
}

// Moves as many of n bytes as it can; returns how many.
static size_t move(Ring* ring, char* data, size_t n, int receives) {
    atomic_size_t* count = receives ? &ring->taken : &ring->written;
    size_t room = links->ring - sizeof *ring, at = atomic_load(count), most = available(ring, receives);
    n = MIN(n, most);
    for (size_t i = 0, part; i < n; i += part) {
        char* place = ring->data + (at + i) % room;
        part = MIN(n - i, room - (at + i) % room);
        memcpy(receives ? data + i : place, receives ? place : data + i, part);
    }
    atomic_store(count, at + n);
    return n;
}

// Moves a message, which is its length and then its bytes; *done counts both. 1: something moved, 0: nothing, or -1.
static int advance(const LocalComm* l, const Transfer* t, size_t* done, int receives) {
    int peer = l->member[t->peer];
    Ring* ring = receives ? ring_between(peer, forked_rank()) : ring_between(forked_rank(), peer);
    size_t length = t->bytes, before = *done;
    if (available(ring, receives) < (before ? 1 : sizeof length)) return 0;
    if (before == 0) *done = move(ring, (char*)&length, sizeof length, receives);
    if (length != t->bytes) return forked_fail("rank %d sent %zu bytes, expected %zu", peer, length, t->bytes);
    *done += move(ring, (char*)t->data + (*done - sizeof length), t->bytes + sizeof length - *done, receives);
    forked_wake(&links->bell[peer]);
    return 1;
}

static int is_over(const LocalComm* l, const Transfer* t, size_t done) {
    return !comm_leaves(&l->comm, t) || done == t->bytes + sizeof t->bytes;
}

// Moves messages, of each rank only the first that is not over. Returns how many are not over, or -1.
static int advance_all(LocalComm* l, const Transfer* list, int n, size_t* done, int receives, int look, int* moved) {
    int left = 0;
    for (int i = 0; i < n; i++) {
        int* mark = &l->marks[2 * list[i].peer + receives];
        if (is_over(l, &list[i], done[i])) continue;
        int result = *mark == look ? 0 : advance(l, &list[i], &done[i], receives);
        if (result < 0) return -1;
        *moved |= result;
        if (is_over(l, &list[i], done[i])) continue;
        *mark = look;
        left++;
    }
    return left;
}

static int late_peer(const LocalComm* l, const Operation* o) {
    for (int i = 0; i < o->n_receives; i++)
        if (!is_over(l, &o->receives[i], l->done[o->n_sends + i])) return l->member[o->receives[i].peer];
    for (int i = 0; i < o->n_sends; i++)
        if (!is_over(l, &o->sends[i], l->done[i])) return l->member[o->sends[i].peer];
    return forked_rank();
}

static void exchange(LocalComm* l, const Operation* o) {
    static int look;
    atomic_uint* bell = &links->bell[forked_rank()];
    int n = o->n_sends + o->n_receives;
    if (n > l->room) l->done = (size_t*)realloc(l->done, (size_t)(l->room = n) * sizeof *l->done);
    if (!l->done) die("no memory for %d messages", n);
    memset(l->done, 0, (size_t)n * sizeof *l->done);
    for (double since = now_seconds();;) {
        unsigned rung = atomic_load(bell);
        int moved = 0;
        look++;
        int out = advance_all(l, o->sends, o->n_sends, l->done, 0, look, &moved);
        int in = out < 0 ? -1 : advance_all(l, o->receives, o->n_receives, l->done + o->n_sends, 1, look, &moved);
        if (out < 0 || in < 0 || out + in == 0) return;
        if (moved) since = now_seconds();
        else if (is_hopeless(&l->comm, since)) return give_up(&l->comm, late_peer(l, o));
        else forked_sleep(bell, rung);
    }
}

// ---- the transport

static void run(LocalComm* l, const Operation* o) {
    char* out = (char*)o->out;
    const char* in = (const char*)o->in;
    if (o->kind == OP_ALL_REDUCE) all_reduce(l, out, o->bytes, o->dt);
    else if (o->kind == OP_BROADCAST) broadcast(l, out, o->bytes, o->root);
    else if (o->kind == OP_REDUCE_SCATTER) reduce_scatter(l, out, in, o->bytes, o->dt);
    else if (o->kind == OP_ALL_GATHER) all_gather(l, out, in, o->bytes);
    else {
        comm_copy_to_self(&l->comm, o, comm_copy_host, NULL);
        exchange(l, o);
    }
}

static Request begin(Comm* c, const Operation* o, Stream s) {
    if (forked_failed(NULL) == 0) run((LocalComm*)c, o);
    return 0;
}

static int wait_for_all(Comm* c, Stream s, Err err) { return forked_failed(err); }

static int run_on_host(Comm* c, const Operation* o, Err err) {
    if (o->bytes > 0) begin(c, o, NULL);
    return forked_failed(err);
}

static void close_local(Comm* c) {
    LocalComm* l = (LocalComm*)c;
    if (l->boards == of_all) forked_leave();
    free(l->done);
    free(l->terms);
    free(c);
}

// ---- open and split

static const Transport local_transport;

static size_t bytes_of_boards(int size) { return sizeof(Boards) + head_bytes(size) + 2 * board_bytes(size); }

// Makes a Comm of the ranks in `member`; NULL: of all.
static int make(Comm** made, Boards* boards, const int* member, int rank, int size, double timeout_seconds, Err err) {
    LocalComm* l = (LocalComm*)comm_new(sizeof *l, &local_transport, rank, size, timeout_seconds);
    void* lists = calloc((size_t)size, sizeof *l->terms + 3 * sizeof(int));
    if (!l || !lists) return free(l), free(lists), fail(err, "no memory for a Comm of %d ranks", size);
    l->boards = boards;
    l->terms = (const void**)lists;
    l->member = (int*)(l->terms + size);
    l->marks = l->member + size;
    for (int r = 0; r < size; r++) l->member[r] = member ? member[r] : r;
    *made = &l->comm;
    return 0;
}

// The first rank of a part takes memory for its boards, and all hear where.
static int split(Comm* c, Comm** part, const Part* p, Err err) {
    const LocalComm* l = (const LocalComm*)c;
    Boards *mine = NULL, **all = (Boards**)malloc((size_t)c->size * sizeof *all);
    int *member = (int*)malloc((size_t)MAX(p->size, 1) * sizeof *member), result = -1;
    if (!all || !member) forked_fail("no memory for a Comm of %d ranks", c->size);
    else if (p->size > 0 && p->rank == 0 && !(mine = (Boards*)forked_take(bytes_of_boards(p->size))))
        forked_fail("no more memory that ranks share: too many Comms");
    else all_gather((LocalComm*)c, (char*)all, (const char*)&mine, sizeof mine);
    for (int r = 0; member && r < p->size; r++) member[r] = l->member[p->member[r]];
    if (forked_failed(err) == 0)
        result = p->size ? make(part, all[p->member[0]], member, p->rank, p->size, c->timeout_seconds, err) : 0;
    free(all), free(member);
    return result;
}

static const Transport local_transport = {
    .name = "local",
    .seconds = now_seconds,
    .begin = begin,
    .most = most,
    .run_on_host = run_on_host,
    .wait = wait_for_all,
    .split = split,
    .close = close_local,
};

// Every Comm that is opened so has the boards of the world, so that several may only be used in turns.
int comm_open_local(Comm** world, double timeout_seconds, Err err) {
    *world = NULL;
    if (make(world, of_all, NULL, forked_rank(), forked_ranks(), timeout_seconds, err)) return forked_fail("%s", err);
    if (comm_find_nodes(*world, err) == 0) return 0;
    close_local(*world);
    *world = NULL;
    return -1;
}

int comm_is_forked(void) { return forked_ranks() > 0; }

int comm_fork(int ranks, Err err) {
    size_t n = (size_t)ranks;
    if (forked_open(ranks, err)) return -1;
    links = (Links*)forked_take(sizeof *links + n * sizeof *links->bell);
    links->ring = MIN(MAX(RINGS / n / n / 64 * 64, (size_t)LEAST_RING), (size_t)MOST_RING);
    links->rings = (char*)forked_take(n * n * links->ring);
    of_all = (Boards*)forked_take(bytes_of_boards(ranks));
    if (!links->rings || !of_all) return fail(err, "no memory for links between %d ranks; try fewer", ranks);
    return forked_begin(err);
}
