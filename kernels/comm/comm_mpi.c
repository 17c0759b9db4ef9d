// comm_mpi.c - the Comm of ranks with host memory, over MPI, see comm.h.
//
// MPI only carries messages between two ranks, nonblocking, and this transport polls for them: MPI's own collectives
// spin while they wait, and never return when a rank has died. In every operation ranks send each other their parts
// directly, all at once:
//
//   all-gather of n     a rank sends its n to each other rank                       n (R - 1) bytes
//   broadcast of n      the root sends n to each other rank                         n (R - 1) from the root
//   reduce-scatter      a rank sends each owner its part, a chunk of each at a      n (R - 1)
//     of n a part       time, and adds the chunks that come in the order of ranks
//   all-reduce of n     both, with parts of n / R rounded up                        2 n / R (R - 1)
//
// Element i of a sum is ((x_0[i] + x_1[i]) + x_2[i]) + ..., so that the bits depend on the number of ranks alone.
//
// A few calls of MPI wait for ever on a rank that does not come: MPI_Init, MPI_Comm_dup, MPI_Comm_split, MPI_Finalize.
// Before the last two all ranks meet in a gather of this transport, and each of the four has a deadline. A rank that
// fails to open leaves MPI as it is: to finalize it would wait for the others, who would wait for this one.
#include <errno.h>
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kernels/comm/comm_transport.h"
#include "kernels/host.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"  // there are no streams here

typedef struct Process {     // where a rank runs
    int pid;                 // 0: not known yet
    int watched;             // it is another process, whose end this one would see
    uint64_t process_space;  // processes see each other's ids where it is the same
    char host[64];           // for people
} Process;

typedef struct Message {  // under way
    MPI_Request request;
    int peer, bytes;  // -1: it is sent
} Message;

// The world that the Comms of one comm_open_mpi share. Only the thread that runs an operation writes to it.
typedef struct World {
    int comms;  // not yet closed
    int rank, size;
    int oversubscribed;  // the ranks of this node outnumber its cores
    atomic_int failed;   // then `error` says why, and nothing is started any more
    char error[ERR_BYTES];
    Process* processes;  // (size)
    double watched;      // when the processes of this node were last looked at
    Message* messages;   // (room) n are under way; room grows to that of the largest operation and stays
    int n, room;
    size_t bytes;                // of all that were started together
    Transfer *sends, *receives;  // (size) what a collective exchanges at a time
    char* scratch;               // of sums: the chunks of other ranks
    const void** terms;          // (size)
} World;

typedef struct MpiComm {
    Comm comm;
    World* world;
    MPI_Comm mpi;
} MpiComm;

// ---- messages
//
// For as long as the messages should take, the calling thread polls as fast as it can where every rank of the node has
// a core; elsewhere it yields after each poll. After that, and in the communication thread from the start, it sleeps
// between polls: others need the cores, and a thread that slept gets one back sooner than a thread that yielded.
//
// MPI over shared memory does not notice that a process has ended. So a rank that waits without progress looks whether
// the processes of the other ranks of its node still exist; one that sees other ids, as in a container of its own, is
// not watched. For ranks of other nodes there are MPI's errors and the timeout. After a failure MPI may not be trusted
// to finish anything: receives that no message has met are cancelled, and no call of MPI follows.

enum { PIECE = 64 << 20 };  // longer messages travel in pieces: counts are int, and each piece is progress

static const double LATENCY = 50e-6, BANDWIDTH = 4e9;  // of a good link
static const double SHORTEST_PAUSE = 20e-6, LONGEST_PAUSE = 200e-6;
static const double UNSUSPICIOUS = 0.3, BETWEEN_LOOKS = 0.1;

static atomic_int stopped;              // the process is ending: an exchange returns -1 at once and leaves all as it is
static _Thread_local int polls_slowly;  // from the start

static void abandon(World* w) {
    for (int i = 0; i < w->n; i++) {
        Message* m = &w->messages[i];
        int done;
        if (m->bytes < 0 || m->request == MPI_REQUEST_NULL) continue;
        MPI_Cancel(&m->request);
        MPI_Test(&m->request, &done, MPI_STATUS_IGNORE);
    }
    w->n = 0;
}

// Records the first failure, after "rank R of N: ". Returns -1.
__attribute__((format(printf, 2, 3))) static int world_fail(World* w, const char* format, ...) {
    if (atomic_load(&w->failed)) return -1;
    int length = snprintf(w->error, sizeof w->error, "rank %d of %d: ", w->rank, w->size);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(w->error + length, sizeof w->error - (size_t)length, format, arguments);
    va_end(arguments);
    abandon(w);
    atomic_store(&w->failed, 1);
    return -1;
}

static int world_fail_call(World* w, const char* call, int error) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(error, text, &length);
    return world_fail(w, "%s: %.200s; another rank ended or its link broke: see the first error among the ranks", call,
                      text);
}

static int make_room(World* w) {
    if (w->n < w->room) return 0;
    int room = MAX(64, 2 * w->room);
    Message* messages = (Message*)realloc(w->messages, (size_t)room * sizeof *messages);
    if (!messages) return world_fail(w, "no memory for %d messages", room);
    w->messages = messages;
    w->room = room;
    return 0;
}

static int start(MpiComm* m, const Transfer* t, int receives) {
    World* w = m->world;
    for (size_t at = 0, piece; at < t->bytes; at += piece) {
        if (make_room(w)) return -1;
        Message* x = &w->messages[w->n];
        char* data = (char*)t->data + at;
        piece = MIN(t->bytes - at, (size_t)PIECE);
        *x = (Message){.peer = t->peer, .bytes = receives ? (int)piece : -1};
        int error = receives ? MPI_Irecv(data, (int)piece, MPI_BYTE, t->peer, 0, m->mpi, &x->request)
                             : MPI_Isend(data, (int)piece, MPI_BYTE, t->peer, 0, m->mpi, &x->request);
        if (error) return world_fail_call(w, receives ? "MPI_Irecv" : "MPI_Isend", error);
        w->n++;
        w->bytes += piece;
    }
    return 0;
}

// Returns whether the process is gone or a zombie, whose parent has not asked for its status yet.
static int has_ended(int pid) {
    char path[64], line[256];
    if (kill(pid, 0) != 0 && errno == ESRCH) return 1;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE* file = fopen(path, "r");
    if (!file) return 0;
    const char* read = fgets(line, sizeof line, file);
    fclose(file);
    // The state follows the name, which stands in parentheses and may have some itself.
    const char* state = read ? strrchr(line, ')') : NULL;
    return state && (strncmp(state, ") Z", 3) == 0 || strncmp(state, ") X", 3) == 0);
}

typedef struct Names {
    char text[300];  // ends with "others" where not all have room
    int length, n, full;
} Names;

static void add_name(Names* names, const World* w, int rank) {
    const Process* p = &w->processes[rank];
    char name[128];
    if (p->pid) snprintf(name, sizeof name, "rank %d (process %d of node %s)", rank, p->pid, p->host);
    else snprintf(name, sizeof name, "rank %d", rank);
    if (names->full) return;
    names->full = names->length + (int)strlen(name) + 15 > (int)sizeof names->text;
    names->length += snprintf(names->text + names->length, sizeof names->text - (size_t)names->length, "%s%s",
                              names->full ? " and "
                              : names->n  ? ", "
                                          : "",
                              names->full ? "others" : name);
    names->n++;
}

// Names all ranks that have ended, because others may have ended already after the first.
static int look_for_the_dead(World* w) {
    Names dead = {.n = 0};
    for (int r = 0; r < w->size; r++)
        if (w->processes[r].watched && has_ended(w->processes[r].pid)) add_name(&dead, w, r);
    if (dead.n == 0) return 0;
    return world_fail(w, "%s %s ended: see what was said last", dead.text, dead.n == 1 ? "has" : "have");
}

// Returns the rank in the world of a rank of the Comm.
static int world_rank(const MpiComm* m, int peer) {
    MPI_Group part, all;
    int rank;
    MPI_Comm_group(m->mpi, &part), MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_translate_ranks(part, 1, &peer, all, &rank);
    MPI_Group_free(&part), MPI_Group_free(&all);
    return rank;
}

static int give_up(const MpiComm* m) {
    World* w = m->world;
    Names late = {.n = 0};
    for (int i = 0; i < w->n; i++) {
        int first = 0;
        while (w->messages[first].peer != w->messages[i].peer) first++;
        if (first == i) add_name(&late, w, world_rank(m, w->messages[i].peer));
    }
    return world_fail(w,
                      "nothing moved for %g s while waiting for %s: ended, missing, or not at the same collective; "
                      "see the first error among the ranks",
                      m->comm.timeout_seconds, late.text);
}

static void pause_between_polls(const World* w, double waited) {
    if (waited < LATENCY + (double)w->bytes / BANDWIDTH && !polls_slowly) {
        if (w->oversubscribed) sched_yield();
        return;
    }
    struct timespec t = {0, (long)(1e9 * MIN(MAX(waited / 10, SHORTEST_PAUSE), LONGEST_PAUSE))};
    nanosleep(&t, NULL);
}

// Returns 1 if the message has come or gone, 0 if not yet, -1 if the world has failed.
static int is_over(MpiComm* m, Message* x) {
    MPI_Status status;
    int done, bytes, error = MPI_Test(&x->request, &done, &status);
    if (error == MPI_ERR_TRUNCATE)
        return world_fail(m->world, "rank %d sent more than the %d bytes that were expected", world_rank(m, x->peer),
                          x->bytes);
    if (error) return world_fail_call(m->world, "MPI_Test", error);
    if (!done || x->bytes < 0) return done;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (bytes == x->bytes) return 1;
    return world_fail(m->world, "rank %d sent %d bytes, expected %d", world_rank(m, x->peer), bytes, x->bytes);
}

// Returns how many messages have come or gone since the last poll, -1 if the world has failed.
static int poll_all(MpiComm* m) {
    World* w = m->world;
    int n = w->n;
    for (int i = 0; i < w->n;) {
        int over = is_over(m, &w->messages[i]);
        if (over < 0) return -1;
        if (over) w->messages[i] = w->messages[--w->n];
        else i++;
    }
    return n - w->n;
}

static int wait_for_messages(MpiComm* m) {
    World* w = m->world;
    for (double moved = now_seconds(); w->n > 0;) {
        int n = poll_all(m);
        if (n < 0 || atomic_load(&stopped)) return -1;
        double now = now_seconds(), waited = now - moved;
        if (n > 0) {
            moved = now;
            continue;
        }
        if (waited > UNSUSPICIOUS && now - w->watched > BETWEEN_LOOKS) {
            w->watched = now;
            if (look_for_the_dead(w)) return -1;
        }
        if (waited > m->comm.timeout_seconds) return give_up(m);
        pause_between_polls(w, waited);
    }
    return 0;
}

// Exchanges all messages that have bytes and are not to or from oneself. 0, or -1 when the world has failed.
static int exchange(MpiComm* m, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives) {
    m->world->bytes = 0;
    for (int i = 0; i < n_receives; i++)
        if (comm_leaves(&m->comm, &receives[i]) && start(m, &receives[i], 1)) return -1;
    for (int i = 0; i < n_sends; i++)
        if (comm_leaves(&m->comm, &sends[i]) && start(m, &sends[i], 0)) return -1;
    return wait_for_messages(m);
}

// ---- sums

enum {
    LARGEST_CHUNK = 256 << 10,  // bytes from each rank at a time: it should stay in a core's cache until it is added
    SCRATCH = 8 << 20,          // for the chunks of all other ranks
    ROUND = 1024                // bytes that a chunk is a multiple of
};

// Returns the bytes of a chunk, the same on all ranks of a Comm.
static size_t chunk_bytes(int size) {
    return MIN((size_t)LARGEST_CHUNK, SCRATCH / (size_t)MAX(1, size - 1) / ROUND * ROUND);
}

// ---- operations: 0, or -1 when the world has failed

// n bytes in parts of `part` for each rank, the last ones shorter or empty.
typedef struct Parts {
    size_t n, part;
} Parts;

static size_t part_start(Parts p, int rank) { return MIN(p.n, (size_t)rank * p.part); }

// Returns the bytes of a part after its first ones, at most `most`.
static size_t part_length(Parts p, int rank, size_t first, size_t most) {
    size_t length = part_start(p, rank + 1) - part_start(p, rank);
    return MIN(most, length - MIN(first, length));
}

// Returns the i-th rank after this one; in this order ranks never all send to the same one at once.
static int rank_after(const Comm* c, int i) { return (c->rank + i) % c->size; }

// Exchanges the messages in the world's lists with each other rank.
static int exchange_with_all(MpiComm* m) {
    int others = m->comm.size - 1;
    return exchange(m, m->world->sends, others, m->world->receives, others);
}

// out = this rank's part of the sum of `in`, which is laid out by p.
static int reduce_parts(MpiComm* m, char* out, const char* in, Parts p, DType dt) {
    const Comm* c = &m->comm;
    World* w = m->world;
    size_t chunk = chunk_bytes(c->size), own = part_start(p, c->rank);
    for (size_t first = 0; first < MIN(p.part, p.n); first += chunk) {
        size_t n = part_length(p, c->rank, first, chunk);
        for (int i = 1; i < c->size; i++) {
            int to = rank_after(c, i), from = rank_after(c, c->size - i);
            char* came = w->scratch + (size_t)(i - 1) * chunk;
            w->sends[i - 1] = (Transfer){to, (char*)in + part_start(p, to) + first, part_length(p, to, first, chunk)};
            w->receives[i - 1] = (Transfer){from, came, n};
            w->terms[from] = came;
        }
        w->terms[c->rank] = in + own + first;
        if (exchange_with_all(m)) return -1;
        if (n > 0) comm_add_in_order(out + first, w->terms, c->size, n / dtype_bytes(dt), dt);
    }
    return 0;
}

// out, laid out by p = the parts of all ranks; this rank's is `in`.
static int gather_parts(MpiComm* m, char* out, const char* in, Parts p) {
    const Comm* c = &m->comm;
    char* own = out + part_start(p, c->rank);
    for (int i = 1; i < c->size; i++) {
        int to = rank_after(c, i), from = rank_after(c, c->size - i);
        m->world->sends[i - 1] = (Transfer){to, (char*)in, part_length(p, c->rank, 0, p.n)};
        m->world->receives[i - 1] = (Transfer){from, out + part_start(p, from), part_length(p, from, 0, p.n)};
    }
    if (own != in) memmove(own, in, part_length(p, c->rank, 0, p.n));
    return exchange_with_all(m);
}

static int broadcast(MpiComm* m, void* x, size_t bytes, int root) {
    const Comm* c = &m->comm;
    Transfer receive = {root, x, bytes};
    for (int i = 1; i < c->size; i++) m->world->sends[i - 1] = (Transfer){rank_after(c, i), x, bytes};
    return c->rank == root ? exchange(m, m->world->sends, c->size - 1, NULL, 0) : exchange(m, NULL, 0, &receive, 1);
}

static void run(MpiComm* m, const Operation* o) {
    size_t size = (size_t)m->comm.size, element = dtype_bytes(o->dt);
    Parts parts = {size * o->bytes, o->bytes}, cut = {o->bytes, CEIL_DIV(o->bytes / element, size) * element};
    char* out = (char*)o->out;
    if (atomic_load(&m->world->failed)) return;
    if (o->kind == OP_REDUCE_SCATTER) reduce_parts(m, out, (const char*)o->in, parts, o->dt);
    else if (o->kind == OP_ALL_GATHER) gather_parts(m, out, (const char*)o->in, parts);
    else if (o->kind == OP_BROADCAST) broadcast(m, out, o->bytes, o->root);
    else if (o->kind == OP_ALL_REDUCE) {
        char* own = out + part_start(cut, m->comm.rank);
        if (reduce_parts(m, own, out, cut, o->dt) == 0) gather_parts(m, out, own, cut);
    } else {
        comm_copy_to_self(&m->comm, o, comm_copy_host, NULL);
        exchange(m, o->sends, o->n_sends, o->receives, o->n_receives);
    }
}

// ---- the queue
//
// Operations run one after another in the order of the calls, whatever their Comm: each is copied into a slot of a
// bounded queue. A communication thread, made when it is first needed, works off what only begins. Who waits for a
// request runs operations itself when no other thread does, so that waiting needs no change of threads. `busy`: a
// thread runs one. So one thread at a time calls MPI (MPI_THREAD_SERIALIZED), and a World needs no lock of its own.
// exit() stops the thread first, because MPI shuts down while the program's exit handlers run.

enum { SLOTS = 64 };

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t work, over;  // for the thread; for those who wait for an operation
    struct Slot {
        MpiComm* m;
        Operation operation;
        Transfer* transfers;  // its sends, then its receives; room grows to that of the longest lists and stays
        int room;
    } slots[SLOTS];
    Request begun, finished;  // the operations in between are in slots, each in that of its request modulo SLOTS
    int busy;
    int has_thread, cannot;  // cannot: MPI or the system allows no thread
    pthread_t thread;
} queue = {.mutex = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .over = PTHREAD_COND_INITIALIZER};

// Runs the next operation. The mutex is held before and after.
static void run_next(void) {
    const struct Slot* slot = &queue.slots[(queue.finished + 1) % SLOTS];
    queue.busy = 1;
    pthread_mutex_unlock(&queue.mutex);
    run(slot->m, &slot->operation);
    pthread_mutex_lock(&queue.mutex);
    queue.busy = 0;
    queue.finished++;
    pthread_cond_broadcast(&queue.over);
    if (queue.finished < queue.begun) pthread_cond_signal(&queue.work);
}

static void finish(Request request) {
    pthread_mutex_lock(&queue.mutex);
    while (queue.finished < request)
        if (queue.busy) pthread_cond_wait(&queue.over, &queue.mutex);
        else run_next();
    pthread_mutex_unlock(&queue.mutex);
}

static void* run_thread(void* unused) {
    polls_slowly = 1;
    pthread_mutex_lock(&queue.mutex);
    while (!atomic_load(&stopped))
        if (queue.busy || queue.finished == queue.begun) pthread_cond_wait(&queue.work, &queue.mutex);
        else run_next();
    pthread_mutex_unlock(&queue.mutex);
    return NULL;
}

static void stop_thread(void) {
    if (!queue.has_thread || pthread_equal(pthread_self(), queue.thread)) return;
    pthread_mutex_lock(&queue.mutex);
    atomic_store(&stopped, 1);
    pthread_cond_signal(&queue.work);
    pthread_mutex_unlock(&queue.mutex);
    pthread_join(queue.thread, NULL);
    queue.has_thread = 0;
}

// Makes the communication thread, if it can; else operations run when waited for. Other threads take the signals.
static void make_thread(void) {
    static int at_exit;
    int level;
    sigset_t all, before;
    if (queue.has_thread || queue.cannot) return;
    MPI_Query_thread(&level);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    queue.has_thread = level >= MPI_THREAD_SERIALIZED && (at_exit || !atexit(stop_thread)) &&
                       !pthread_create(&queue.thread, NULL, run_thread, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    at_exit |= queue.has_thread;
    queue.cannot = !queue.has_thread;
}

// Copies the operation and its lists into a slot. 0: there is no memory, and the lists are the caller's.
static int fill_slot(struct Slot* slot, MpiComm* m, const Operation* o) {
    int n = o->n_sends + o->n_receives;
    slot->m = m;
    slot->operation = *o;
    if (n > slot->room) {
        Transfer* transfers = (Transfer*)realloc(slot->transfers, (size_t)n * sizeof *transfers);
        if (!transfers) return 0;
        slot->transfers = transfers;
        slot->room = n;
    }
    for (int i = 0; i < n; i++) slot->transfers[i] = i < o->n_sends ? o->sends[i] : o->receives[i - o->n_sends];
    slot->operation.sends = slot->transfers;
    slot->operation.receives = slot->transfers + o->n_sends;
    return 1;
}

// Only the thread that asks may begin operations, so that a slot stays free. To wait for one is an end as any other.
static Request begin(Comm* c, const Operation* o, Stream s) {
    pthread_mutex_lock(&queue.mutex);
    int full = queue.begun - queue.finished == SLOTS;
    pthread_mutex_unlock(&queue.mutex);
    if (full) c->table->end(c, queue.begun - SLOTS + 1, s);
    pthread_mutex_lock(&queue.mutex);
    int copied = fill_slot(&queue.slots[(queue.begun + 1) % SLOTS], (MpiComm*)c, o);
    Request request = ++queue.begun;
    if (c->overlap) make_thread(), pthread_cond_signal(&queue.work);
    pthread_mutex_unlock(&queue.mutex);
    if (!copied) finish(request);
    return request;
}

static void end(Comm* c, Request request, Stream s) { finish(request); }

static int result(Comm* c, Err err) {
    World* w = ((MpiComm*)c)->world;
    return atomic_load(&w->failed) ? fail(err, "%s", w->error) : 0;
}

static int run_on_host(Comm* c, const Operation* o, Err err) {
    finish(queue.begun);  // makes room: the wait is counted once
    finish(begin(c, o, NULL));
    return result(c, err);
}

static int wait(Comm* c, Stream s, Err err) {
    finish(queue.begun);
    return result(c, err);
}

static void close_queue(void) {
    stop_thread();
    atomic_store(&stopped, 0);
    for (int i = 0; i < SLOTS; i++) free(queue.slots[i].transfers);
    memset(queue.slots, 0, sizeof queue.slots);
}

// ---- the process

static struct {
    int worlds;    // open
    int finalize;  // MPI was initialised here
    int failed;    // a world has: MPI_Finalize would wait for ever
} process;

static int initialize(const RankIdentity* id, double timeout_seconds, Err err) {
    int initialized, finalized, level;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (finalized) return fail(err, "MPI was finalized: ranks can meet only once in a process");
    if (initialized) return 0;
    deadline_begin(timeout_seconds, "rank %d of %d: MPI_Init", id->rank, id->size);
    int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    deadline_end();
    host_keep_ignored();
    if (error) return fail(err, "MPI_Init_thread failed");
    process.finalize = 1;
    return 0;
}

// ---- worlds and their Comms

static const Transport mpi_transport;

static Comm* make_comm(World* w, MPI_Comm mpi, int rank, int size, double timeout_seconds) {
    MpiComm* m = (MpiComm*)comm_new(sizeof *m, &mpi_transport, rank, size, timeout_seconds);
    if (!m) return NULL;
    m->world = w;
    m->mpi = mpi;
    w->comms++;
    MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN);
    return &m->comm;
}

static void free_world(World* w) {
    free(w->messages);
    free(w);
}

// Makes a world with its lists, an entry for each rank, and the scratch after it.
static World* make_world(int rank, int size) {
    size_t n = (size_t)size;
    World* w = (World*)calloc(1, sizeof *w + n * (sizeof(Process) + 2 * sizeof(Transfer) + sizeof(void*)) + SCRATCH);
    if (!w) return NULL;
    w->rank = rank;
    w->size = size;
    w->processes = (Process*)(w + 1);
    w->sends = (Transfer*)(w->processes + n);
    w->receives = w->sends + n;
    w->terms = (const void**)(w->receives + n);
    w->scratch = (char*)(w->terms + n);
    return w;
}

static void close_comm(Comm* c) {
    World* w = ((MpiComm*)c)->world;
    char err[ERR_BYTES];
    double timeout_seconds = c->timeout_seconds;
    int rank = w->rank, size = w->size;
    finish(queue.begun);
    if (w->comms == 1 && process.worlds == 1 && process.finalize) c->table->barrier(c, err);
    if (atomic_load(&w->failed)) process.failed = 1;
    else MPI_Comm_free(&((MpiComm*)c)->mpi);
    free(c);
    if (--w->comms > 0) return;
    free_world(w);
    if (--process.worlds > 0) return;
    close_queue();
    if (!process.finalize || process.failed) return;
    process.finalize = 0;
    deadline_begin(timeout_seconds, "rank %d of %d: MPI_Finalize", rank, size);
    MPI_Finalize();
    deadline_end();
}

static int split(Comm* c, Comm** part, const Part* p, Err err) {
    World* w = ((MpiComm*)c)->world;
    MPI_Comm mpi;
    deadline_begin(c->timeout_seconds, "rank %d of %d: MPI_Comm_split", w->rank, w->size);
    int error = MPI_Comm_split(((MpiComm*)c)->mpi, p->size ? p->color : MPI_UNDEFINED, p->rank, &mpi);
    deadline_end();
    if (error) {
        world_fail_call(w, "MPI_Comm_split", error);
        return fail(err, "%s", w->error);
    }
    if (p->size && !(*part = make_comm(w, mpi, p->rank, p->size, c->timeout_seconds)))
        return fail(err, "no memory for a Comm of %d ranks", p->size);
    return 0;
}

static const Transport mpi_transport = {"mpi", now_seconds, begin, end, NULL, run_on_host, wait, split, close_comm};

// ---- open

// Returns a number that is the same for processes of a running system that see each other's ids; 0: not known.
static uint64_t process_space(void) {
    struct stat ids;
    char boot[64] = "";
    FILE* file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (!file) return 0;
    const char* read = fgets(boot, sizeof boot, file);
    fclose(file);
    return read && stat("/proc/self/ns/pid", &ids) == 0 ? hash_bytes(boot, strlen(boot), (uint64_t)ids.st_ino) : 0;
}

static int gather_processes(Comm* c, Err err) {
    World* w = ((MpiComm*)c)->world;
    Process own;
    memset(&own, 0, sizeof own);
    own.pid = (int)getpid();
    own.process_space = process_space();
    gethostname(own.host, sizeof own.host - 1);
    Operation o = {.kind = OP_ALL_GATHER, .out = w->processes, .in = &own, .bytes = sizeof own};
    if (run_on_host(c, &o, err)) return -1;
    for (int r = 0; r < w->size; r++)
        w->processes[r].watched =
            r != w->rank && own.process_space != 0 && w->processes[r].process_space == own.process_space;
    return 0;
}

static int open_world(Comm** world, const RankIdentity* id, double timeout_seconds, Err err) {
    MPI_Comm mpi;
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (id->rank != rank || id->size != size)
        return fail(err,
                    "%s says that this is rank %d of %d, but MPI says %d of %d: start it with the mpirun of the MPI "
                    "that it was built with",
                    id->source, id->rank, id->size, rank, size);
    World* w = make_world(rank, size);
    deadline_begin(timeout_seconds, "rank %d of %d: MPI_Comm_dup", id->rank, id->size);
    int error = MPI_Comm_dup(MPI_COMM_WORLD, &mpi);
    deadline_end();
    Comm* c = w && !error ? make_comm(w, mpi, rank, size, timeout_seconds) : NULL;
    if (!c) {
        if (w) free_world(w);
        return fail(err, "no memory for a Comm of %d ranks", size);
    }
    process.worlds++;
    if (gather_processes(c, err) || comm_find_nodes(c, err)) {
        world_fail(w, "%s", err);  // nobody is waited for any more
        close_comm(c);
        return -1;
    }
    w->oversubscribed = c->local_size > host_cores("", getppid());  // the launcher's: a rank may be bound to one
    *world = c;
    return 0;
}

int comm_open_mpi(Comm** world, const RankIdentity* id, double timeout_seconds, Err err) {
    *world = NULL;
    if (initialize(id, timeout_seconds, err)) return -1;
    if (open_world(world, id, timeout_seconds, err) == 0) return 0;
    process.failed = 1;
    return -1;
}
