// comm_mpi.c - the Comm of ranks with host memory, over MPI, see comm.h.
//
// MPI only carries messages between two ranks, nonblocking, and this transport polls for them (comm_mpi_messages.c).
// MPI's own collectives spin while they wait, which takes the processor from other ranks and threads; and they never
// return when a rank has died.
//
// Every operation is one algorithm, in which ranks send each other their parts directly, all at once:
//
//   all-gather of n     a rank sends its n to each other rank                       n (R - 1) bytes
//   broadcast of n      the root sends n to each other rank                         n (R - 1) from the root
//   reduce-scatter      a rank sends each owner its part, a chunk of each at a      n (R - 1)
//     of n a part       time, and adds the chunks that come in the order of ranks
//   all-reduce of n     both, with parts of n / R rounded up                        2 n / R (R - 1)
//
// A sum is taken in the element type, bf16 in fp32: element i is ((x_0[i] + x_1[i]) + x_2[i]) + ... So the bits depend
// on nothing but the number of ranks.
//
// Operations run one after another in the order of the calls, whatever their Comm: each is copied into a slot of a
// bounded queue. A communication thread, made when it is first needed, works off what only begins. Who waits for a
// request runs operations itself when no other thread does, so that waiting needs no change of threads. `busy`: a
// thread runs one. So one thread at a time calls MPI (MPI_THREAD_SERIALIZED), and a World needs no lock of its own.
// exit() stops the thread first, because MPI shuts down while the program's exit handlers run.
//
// Each rank tells all others its process id and host name, so that messages can name it and its neighbours can see
// whether it lives. A process that sees other ids, as in a container of its own, is not watched.
//
// A few calls of MPI wait for ever on a rank that does not come: MPI_Init, MPI_Comm_dup, MPI_Comm_split, MPI_Finalize.
// Before the last two all ranks meet in a gather of this transport, and each of the four has a deadline. Whoever fails
// to open leaves MPI as it is: to finalize it would wait for the others, who would wait for this one.
#include "kernels/comm_mpi.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/deadline.h"
#include "kernels/host.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"  // there are no streams here

enum {
    LARGEST_CHUNK = 256 << 10,  // bytes from each rank at a time: it should stay in a core's cache until it is added
    SMALLEST_CHUNK = 4 << 10,
    MOST_SCRATCH = 8 << 20,  // for the chunks of all ranks, unless they are the smallest
    BLOCK = 1024             // elements that are added at a time
};

// ---- sums

// The same on all ranks of a Comm.
static size_t chunk_bytes(int size) {
    size_t share = MOST_SCRATCH / (size_t)MAX(1, size - 1) / SMALLEST_CHUNK * SMALLEST_CHUNK;
    return MIN(MAX(share, SMALLEST_CHUNK), LARGEST_CHUNK);
}

// A chunk of each other rank; enough also for any smaller Comm.
static size_t scratch_bytes(int size) {
    size_t others = (size_t)MAX(1, size - 1);
    return MIN(others * LARGEST_CHUNK, MAX(MOST_SCRATCH, others * SMALLEST_CHUNK));
}

// out[first .. first + n] = the sum of terms there, in order, for elements of one type.
#define ADD(name, T)                                                                 \
    static void name(T* out, const void** terms, int n_terms, size_t first, int n) { \
        T sum[BLOCK];                                                                \
        memcpy(sum, (const T*)terms[0] + first, (size_t)n * sizeof *sum);            \
        for (int t = 1; t < n_terms; t++)                                            \
            for (int i = 0; i < n; i++) sum[i] += ((const T*)terms[t] + first)[i];   \
        memcpy(out + first, sum, (size_t)n * sizeof *sum);                           \
    }
ADD(add_f32, float)
ADD(add_f64, double)

static void add_bf16(bf16* out, const void** terms, int n_terms, size_t first, int n) {
    float sum[BLOCK];
    for (int i = 0; i < n; i++) sum[i] = bf16_to_float(((const bf16*)terms[0])[first + (size_t)i]);
    for (int t = 1; t < n_terms; t++) {
        const bf16* x = (const bf16*)terms[t] + first;
        for (int i = 0; i < n; i++) sum[i] += bf16_to_float(x[i]);
    }
    for (int i = 0; i < n; i++) out[first + (size_t)i] = bf16_from_float(sum[i]);
}

// out (n) = terms[0] (n) + terms[1] (n) + ... in that order; out may be one of them.
static void add_in_order(void* out, const void** terms, int n_terms, size_t n, DType dt) {
    for (size_t i = 0; i < n; i += BLOCK) {
        int block = (int)MIN((size_t)BLOCK, n - i);
        if (dt == DT_F64) add_f64((double*)out, terms, n_terms, i, block);
        else if (dt == DT_F32) add_f32((float*)out, terms, n_terms, i, block);
        else add_bf16((bf16*)out, terms, n_terms, i, block);
    }
}

// ---- operations: 0, or -1 when the world has failed

// n bytes in parts of `part` for each rank, the last ones shorter or empty.
typedef struct Parts {
    size_t n, part;
} Parts;

static size_t part_start(Parts p, int rank) { return MIN(p.n, (size_t)rank * p.part); }
static size_t part_length(Parts p, int rank) { return part_start(p, rank + 1) - part_start(p, rank); }

// What there is of a part in the chunk that begins at `first`.
static size_t chunk_length(Parts p, int rank, size_t first, size_t chunk) {
    return MIN(chunk, part_length(p, rank) - MIN(first, part_length(p, rank)));
}

// The i-th rank after this one: all ranks together then never send to one at the same time.
static int rank_after(const Comm* c, int i) { return (c->rank + i) % c->size; }

// To and from each other rank what stands in the world's lists.
static int exchange_with_all(MpiComm* m) {
    int others = m->comm.size - 1;
    return messages_exchange(m, m->world->sends, others, m->world->receives, others);
}

// out = this rank's part of the sum of `in`, which is laid out by p.
static int reduce_parts(MpiComm* m, char* out, const char* in, Parts p, DType dt) {
    const Comm* c = &m->comm;
    World* w = m->world;
    size_t chunk = chunk_bytes(c->size), own = part_start(p, c->rank);
    for (size_t first = 0; first < MIN(p.part, p.n); first += chunk) {
        size_t n = chunk_length(p, c->rank, first, chunk);
        for (int i = 1; i < c->size; i++) {
            int to = rank_after(c, i), from = rank_after(c, c->size - i);
            char* came = w->scratch + (size_t)(i - 1) * chunk;
            w->sends[i - 1] = (Transfer){to, (char*)in + part_start(p, to) + first, chunk_length(p, to, first, chunk)};
            w->receives[i - 1] = (Transfer){from, came, n};
            w->terms[from] = came;
        }
        w->terms[c->rank] = in + own + first;
        if (exchange_with_all(m)) return -1;
        if (n > 0) add_in_order(out + first, w->terms, c->size, n / dtype_bytes(dt), dt);
    }
    return 0;
}

// out, laid out by p = the parts of all ranks; this rank's is `in`.
static int gather_parts(MpiComm* m, char* out, const char* in, Parts p) {
    const Comm* c = &m->comm;
    char* own = out + part_start(p, c->rank);
    for (int i = 1; i < c->size; i++) {
        int to = rank_after(c, i), from = rank_after(c, c->size - i);
        m->world->sends[i - 1] = (Transfer){to, (char*)in, part_length(p, c->rank)};
        m->world->receives[i - 1] = (Transfer){from, out + part_start(p, from), part_length(p, from)};
    }
    if (own != in) memmove(own, in, part_length(p, c->rank));
    return exchange_with_all(m);
}

static int all_reduce(MpiComm* m, char* x, size_t bytes, DType dt) {
    size_t element = dtype_bytes(dt);
    Parts p = {bytes, CEIL_DIV(bytes / element, (size_t)m->comm.size) * element};
    char* own = x + part_start(p, m->comm.rank);
    return reduce_parts(m, own, x, p, dt) ? -1 : gather_parts(m, x, own, p);
}

static int broadcast(MpiComm* m, void* x, size_t bytes, int root) {
    const Comm* c = &m->comm;
    Transfer receive = {root, x, bytes};
    for (int i = 1; i < c->size; i++) m->world->sends[i - 1] = (Transfer){rank_after(c, i), x, bytes};
    return c->rank == root ? messages_exchange(m, m->world->sends, c->size - 1, NULL, 0)
                           : messages_exchange(m, NULL, 0, &receive, 1);
}

static void run(MpiComm* m, const Operation* o) {
    Parts parts = {(size_t)m->comm.size * o->bytes, o->bytes};
    if (atomic_load(&m->world->failed)) return;
    if (o->kind == OP_ALL_REDUCE) all_reduce(m, (char*)o->out, o->bytes, o->dt);
    else if (o->kind == OP_BROADCAST) broadcast(m, o->out, o->bytes, o->root);
    else if (o->kind == OP_REDUCE_SCATTER) reduce_parts(m, (char*)o->out, (const char*)o->in, parts, o->dt);
    else if (o->kind == OP_ALL_GATHER) gather_parts(m, (char*)o->out, (const char*)o->in, parts);
    else {
        comm_copy_to_self(&m->comm, o, comm_copy_host, NULL);
        messages_exchange(m, o->sends, o->n_sends, o->receives, o->n_receives);
    }
}

// ---- the queue

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

// The mutex is held before and after.
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
    messages_poll_slowly();
    pthread_mutex_lock(&queue.mutex);
    while (!messages_stopped())
        if (queue.busy || queue.finished == queue.begun) pthread_cond_wait(&queue.work, &queue.mutex);
        else run_next();
    pthread_mutex_unlock(&queue.mutex);
    return NULL;
}

static void stop_thread(void) {
    if (!queue.has_thread || pthread_equal(pthread_self(), queue.thread)) return;
    pthread_mutex_lock(&queue.mutex);
    messages_stop(1);
    pthread_cond_signal(&queue.work);
    pthread_mutex_unlock(&queue.mutex);
    pthread_join(queue.thread, NULL);
    queue.has_thread = 0;
}

// Where there can be none operations run when somebody waits for them. Signals are for the other threads.
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

// A copy of the operation and of its lists. 0: without memory its lists are the caller's.
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
    finish(queue.begun);  // so that there is room: the wait is counted once
    finish(begin(c, o, NULL));
    return result(c, err);
}

static int wait(Comm* c, Stream s, Err err) {
    finish(queue.begun);
    return result(c, err);
}

static void close_queue(void) {
    stop_thread();
    messages_stop(0);
    for (int i = 0; i < SLOTS; i++) {
        free(queue.slots[i].transfers);
        queue.slots[i].transfers = NULL;
        queue.slots[i].room = 0;
    }
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

// Undoes `initialize`, after the last world.
static void finalize(double timeout_seconds, int rank, int size) {
    if (!process.finalize || process.failed) return;
    process.finalize = 0;
    deadline_begin(timeout_seconds, "rank %d of %d: MPI_Finalize", rank, size);
    MPI_Finalize();
    deadline_end();
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
    free(w->processes), free(w->messages), free(w->sends), free(w->receives), free(w->scratch), free(w->terms);
    free(w);
}

static World* make_world(int rank, int size) {
    size_t n = (size_t)size;
    World* w = (World*)calloc(1, sizeof *w);
    if (!w) return NULL;
    w->rank = rank;
    w->size = size;
    w->processes = (Process*)calloc(n, sizeof *w->processes);
    w->sends = (Transfer*)calloc(n, sizeof *w->sends);
    w->receives = (Transfer*)calloc(n, sizeof *w->receives);
    w->terms = (const void**)calloc(n, sizeof *w->terms);
    w->scratch = (char*)malloc(scratch_bytes(size));
    if (w->processes && w->sends && w->receives && w->terms && w->scratch) return w;
    free_world(w);
    return NULL;
}

static void close_comm(Comm* c) {
    World* w = ((MpiComm*)c)->world;
    char err[ERR_BYTES];
    double timeout_seconds = c->timeout_seconds;
    int rank = w->rank, size = w->size;
    finish(queue.begun);
    int last = w->comms == 1 && process.worlds == 1;
    if (last && process.finalize) c->table->barrier(c, err);
    if (atomic_load(&w->failed)) process.failed = 1;
    else MPI_Comm_free(&((MpiComm*)c)->mpi);
    free(c);
    if (--w->comms > 0) return;
    free_world(w);
    if (--process.worlds > 0) return;
    close_queue();
    finalize(timeout_seconds, rank, size);
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

static const Transport mpi_transport = {"mpi", now_seconds, begin, end, run_on_host, wait, split, close_comm};

// ---- open

// The same for processes of one running system that see each other's ids; 0: not known.
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

// A copy of MPI's Comm of all ranks. 0, or -1.
static int duplicate_world(MPI_Comm* mpi, const RankIdentity* id, double timeout_seconds) {
    deadline_begin(timeout_seconds, "rank %d of %d: MPI_Comm_dup", id->rank, id->size);
    int error = MPI_Comm_dup(MPI_COMM_WORLD, mpi);
    deadline_end();
    return error ? -1 : 0;
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
    Comm* c = !w || duplicate_world(&mpi, id, timeout_seconds) ? NULL : make_comm(w, mpi, rank, size, timeout_seconds);
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
