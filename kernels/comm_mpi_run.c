// comm_mpi_run.c - runs operations: each as messages between two ranks, and all in one order.
//
// reduce-scatter: every rank receives its part from all others directly, a chunk of each at a time, and adds the chunks
// in the order of ranks, in the element type, bf16 in fp32: element i is ((x_0[i] + x_1[i]) + x_2[i]) + ... So the bits
// depend on nothing but the number of ranks. While one chunk is added the next one is on its way.
// all-gather: every rank sends its part to all others. All-reduce: both, with parts of n / size rounded up; or, where
// that is only latency, all x to all ranks, which add in the same order to the same bits.
// Broadcast: a binomial tree. Barrier: in round i a rank hears from the one 2^i before it (Hensgen et al. 1988).
//
// Operations run one after another in the order of the calls, whatever their Comm. The calling thread runs an operation
// that must be over when the call returns, after those before it. An operation that only begins is copied into a slot
// of a bounded queue, which a communication thread, made when it is first needed, works off. A thread that waits for a
// request runs operations itself when no other thread does, so that waiting needs no change of threads. `busy`: a
// thread runs one. So one thread at a time calls MPI (MPI_THREAD_SERIALIZED), and a World needs no lock of its own.
//
// exit() stops the thread first, because MPI shuts down while the program's exit handlers run.
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "kernels/comm_mpi.h"
#include "kernels/comm_transport.h"

enum {
    LARGEST_CHUNK = 256 << 10,  // bytes from each rank at a time: it should stay in a core's cache until it is added
    SMALLEST_CHUNK = 4 << 10,
    MOST_SCRATCH = 8 << 20,      // for the chunks of all ranks, unless they are the smallest
    SMALL_SUM = SMALLEST_CHUNK,  // bytes of an all-reduce below which latency is all
    BLOCK = 1024                 // elements that are added at a time
};

// ---- sums

// The same on all ranks of a Comm.
static size_t chunk_bytes(int size) {
    size_t share = MOST_SCRATCH / (2 * (size_t)MAX(1, size - 1));
    return MIN(MAX(share / SMALLEST_CHUNK * SMALLEST_CHUNK, SMALLEST_CHUNK), LARGEST_CHUNK);
}

// Two chunks of each other rank; enough also for any smaller Comm.
size_t operation_scratch(int size) {
    size_t others = (size_t)MAX(1, size - 1);
    return MIN(2 * others * LARGEST_CHUNK, MAX(MOST_SCRATCH, 2 * others * SMALLEST_CHUNK));
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

// ---- parts

// n things in parts of `part` for each rank, the last ones shorter or empty.
typedef struct Parts {
    size_t n, part;
} Parts;

static size_t part_start(Parts p, int rank) { return MIN(p.n, (size_t)rank * p.part); }
static size_t part_length(Parts p, int rank) { return part_start(p, rank + 1) - part_start(p, rank); }

// The i-th rank after this one: all ranks together then never send to one at the same time.
static int rank_after(const Comm* c, int i) { return (c->rank + i) % c->size; }

// Where the chunk of the i-th rank after this one is received; even and odd chunks alternate.
static char* chunk_of(const MpiComm* c, size_t index, int i) {
    size_t others = (size_t)c->comm.size - 1, bytes = chunk_bytes(c->comm.size);
    return c->world->scratch + (index % 2 * others + (size_t)(i - 1)) * bytes;
}

// Chunk `index` of each part, `chunk` elements, goes to its owner and this rank's own comes.
static int start_chunk(MpiComm* m, const char* in, Parts p, size_t index, size_t chunk, size_t element) {
    Messages* group = &m->world->groups[index % 2];
    size_t first = index * chunk;
    for (int i = 1; i < m->comm.size; i++) {
        int from = m->comm.size - i, length = part_length(p, m->comm.rank) > first;
        size_t n = length ? MIN(chunk, part_length(p, m->comm.rank) - first) : 0;
        if (n > 0 && messages_receive(m, group, rank_after(&m->comm, from), chunk_of(m, index, from), n * element))
            return -1;
    }
    for (int i = 1; i < m->comm.size; i++) {
        int to = rank_after(&m->comm, i);
        size_t n = part_length(p, to) > first ? MIN(chunk, part_length(p, to) - first) : 0;
        if (n > 0 && messages_send(m, group, to, in + (part_start(p, to) + first) * element, n * element)) return -1;
    }
    return 0;
}

// out = this rank's part of the sum of `in`, which is laid out by p.
static int reduce_parts(MpiComm* m, void* out, const void* in, Parts p, DType dt) {
    const Comm* c = &m->comm;
    size_t element = dtype_bytes(dt), chunk = chunk_bytes(c->size) / element, n = part_length(p, c->rank);
    size_t chunks = CEIL_DIV(MIN(p.part, p.n), chunk);
    const char* own = (const char*)in + part_start(p, c->rank) * element;
    if (chunks > 0 && start_chunk(m, (const char*)in, p, 0, chunk, element)) return -1;
    for (size_t k = 0; k < chunks; k++) {
        size_t first = k * chunk;
        if (k + 1 < chunks && start_chunk(m, (const char*)in, p, k + 1, chunk, element)) return -1;
        if (messages_finish(m, &m->world->groups[k % 2])) return -1;
        if (n <= first) continue;
        m->world->terms[c->rank] = own + first * element;
        for (int i = 1; i < c->size; i++) m->world->terms[rank_after(c, i)] = chunk_of(m, k, i);
        add_in_order((char*)out + first * element, m->world->terms, c->size, MIN(chunk, n - first), dt);
    }
    return 0;
}

// out, laid out by p in bytes = the parts of all ranks; this rank's is `in`.
static int gather_parts(MpiComm* m, void* out, const void* in, Parts p) {
    Messages* group = &m->world->groups[0];
    char* own = (char*)out + part_start(p, m->comm.rank);
    size_t bytes = part_length(p, m->comm.rank);
    for (int i = 1; i < m->comm.size; i++) {
        int from = rank_after(&m->comm, m->comm.size - i);
        if (part_length(p, from) > 0 &&
            messages_receive(m, group, from, (char*)out + part_start(p, from), part_length(p, from)))
            return -1;
    }
    for (int i = 1; i < m->comm.size && bytes > 0; i++)
        if (messages_send(m, group, rank_after(&m->comm, i), in, bytes)) return -1;
    if (bytes > 0 && own != in) memmove(own, in, bytes);
    return messages_finish(m, group);
}

static int all_reduce(MpiComm* m, void* x, size_t n, DType dt) {
    size_t size = (size_t)m->comm.size, element = dtype_bytes(dt), part = CEIL_DIV(n, size);
    if (n * element > SMALL_SUM) {
        char* own = (char*)x + part_start((Parts){n, part}, m->comm.rank) * element;
        if (reduce_parts(m, own, x, (Parts){n, part}, dt)) return -1;
        return gather_parts(m, x, own, (Parts){n * element, part * element});
    }
    if (gather_parts(m, m->world->scratch, x, (Parts){size * n * element, n * element})) return -1;
    for (size_t r = 0; r < size; r++) m->world->terms[r] = m->world->scratch + r * n * element;
    add_in_order(x, m->world->terms, (int)size, n, dt);
    return 0;
}

// ---- the others

static int send_receive(const Operation* o) {
    MpiComm* m = o->c;
    Messages* group = &m->world->groups[0];
    for (int i = 0; i < o->n_receives; i++) {
        const Transfer* t = &o->receives[i];
        if (t->bytes > 0 && t->peer != m->comm.rank && messages_receive(m, group, t->peer, t->data, t->bytes))
            return -1;
    }
    for (int i = 0; i < o->n_sends; i++) {
        const Transfer* t = &o->sends[i];
        if (t->bytes > 0 && t->peer != m->comm.rank && messages_send(m, group, t->peer, t->data, t->bytes)) return -1;
    }
    comm_copy_to_self(&m->comm, o->sends, o->n_sends, o->receives, o->n_receives, comm_copy_host, NULL);
    return messages_finish(m, group);
}

// Rank i, counted from the root, has it from i without its lowest bit, and sends it to i plus each lower bit.
static int broadcast(MpiComm* m, void* x, size_t bytes, int root) {
    Messages* group = &m->world->groups[0];
    int size = m->comm.size, i = (m->comm.rank - root + size) % size, bit = 1;
    while (bit < size && !(i & bit)) bit *= 2;
    if (i > 0 && (messages_receive(m, group, (i - bit + root) % size, x, bytes) || messages_finish(m, group)))
        return -1;
    for (bit /= 2; bit > 0; bit /= 2)
        if (i + bit < size && messages_send(m, group, (i + bit + root) % size, x, bytes)) return -1;
    return messages_finish(m, group);
}

static int barrier(MpiComm* m) {
    Messages* group = &m->world->groups[0];
    for (int distance = 1; distance < m->comm.size; distance *= 2)
        if (messages_receive(m, group, rank_after(&m->comm, m->comm.size - distance), NULL, 0) ||
            messages_send(m, group, rank_after(&m->comm, distance), NULL, 0) || messages_finish(m, group))
            return -1;
    return 0;
}

static void run_operation(const Operation* o) {
    size_t parts = (size_t)o->c->comm.size;
    if (atomic_load(&o->c->world->failed)) return;
    if (o->kind == OP_ALL_REDUCE) all_reduce(o->c, o->out, o->n, o->dt);
    else if (o->kind == OP_BROADCAST) broadcast(o->c, o->out, o->n, o->root);
    else if (o->kind == OP_REDUCE_SCATTER) reduce_parts(o->c, o->out, o->in, (Parts){parts * o->n, o->n}, o->dt);
    else if (o->kind == OP_ALL_GATHER) gather_parts(o->c, o->out, o->in, (Parts){parts * o->n, o->n});
    else if (o->kind == OP_SEND_RECEIVE) send_receive(o);
    else barrier(o->c);
}

// ---- the queue

enum { SLOTS = 64 };

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t work, over;  // for the thread; for those who wait for an operation
    struct Slot {
        Operation operation;
        Transfer* transfers;  // its sends, then its receives; room grows to that of the longest lists and stays
        int room;
    } slots[SLOTS];
    Request begun, finished;  // the operations in between are in slots, each in that of its request modulo SLOTS
    int busy;
    int has_thread, cannot;  // cannot: MPI or the system allows no thread
    pthread_t thread;
} queue = {.mutex = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .over = PTHREAD_COND_INITIALIZER};

// ---- running; the mutex is held before and after

static void run_busy(const Operation* o) {
    queue.busy = 1;
    pthread_mutex_unlock(&queue.mutex);
    run_operation(o);
    pthread_mutex_lock(&queue.mutex);
    queue.busy = 0;
}

static void run_next(void) {
    run_busy(&queue.slots[(queue.finished + 1) % SLOTS].operation);
    queue.finished++;
    pthread_cond_broadcast(&queue.over);
    if (queue.finished < queue.begun) pthread_cond_signal(&queue.work);
}

static void finish(Request request) {
    while (queue.finished < request)
        if (queue.busy) pthread_cond_wait(&queue.over, &queue.mutex);
        else run_next();
}

// ---- the thread

static void* run_thread(void* unused) {
    (void)unused;
    messages_poll_slowly();
    pthread_mutex_lock(&queue.mutex);
    while (!messages_stopped())
        if (queue.busy || queue.finished == queue.begun) pthread_cond_wait(&queue.work, &queue.mutex);
        else run_next();
    pthread_mutex_unlock(&queue.mutex);
    return NULL;
}

static int in_thread(void) { return queue.has_thread && pthread_equal(pthread_self(), queue.thread); }

static void stop_thread(void) {
    if (!queue.has_thread || in_thread()) return;
    pthread_mutex_lock(&queue.mutex);
    messages_stop(1);
    pthread_cond_signal(&queue.work);
    pthread_mutex_unlock(&queue.mutex);
    pthread_join(queue.thread, NULL);
    queue.has_thread = 0;
}

// 1 when there is one. Signals are for the other threads.
static int have_thread(void) {
    static int at_exit;
    int level;
    sigset_t all, before;
    if (queue.has_thread || queue.cannot) return queue.has_thread;
    MPI_Query_thread(&level);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    queue.has_thread = level >= MPI_THREAD_SERIALIZED && (at_exit || !atexit(stop_thread)) &&
                       !pthread_create(&queue.thread, NULL, run_thread, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    at_exit |= queue.has_thread;
    queue.cannot = !queue.has_thread;
    return queue.has_thread;
}

// ---- entries

void queue_run(const Operation* o) {
    pthread_mutex_lock(&queue.mutex);
    while (queue.busy || queue.finished < queue.begun)
        if (queue.busy) pthread_cond_wait(&queue.over, &queue.mutex);
        else run_next();
    run_busy(o);
    pthread_cond_broadcast(&queue.over);
    if (queue.finished < queue.begun) pthread_cond_signal(&queue.work);
    pthread_mutex_unlock(&queue.mutex);
}

// 0 when there is no memory for the lists.
static int copy_into(struct Slot* slot, const Operation* o) {
    int n = o->n_sends + o->n_receives;
    if (n > slot->room) {
        Transfer* transfers = (Transfer*)realloc(slot->transfers, (size_t)n * sizeof *transfers);
        if (!transfers) return 0;
        slot->transfers = transfers;
        slot->room = n;
    }
    slot->operation = *o;
    slot->operation.sends = slot->transfers;
    slot->operation.receives = slot->transfers + o->n_sends;
    for (int i = 0; i < n; i++) slot->transfers[i] = i < o->n_sends ? o->sends[i] : o->receives[i - o->n_sends];
    return 1;
}

int queue_has_room(void) {
    pthread_mutex_lock(&queue.mutex);
    int room = have_thread() && queue.begun - queue.finished < SLOTS;
    pthread_mutex_unlock(&queue.mutex);
    return room;
}

Request queue_begin(const Operation* o) {
    Request request = 0;
    pthread_mutex_lock(&queue.mutex);
    if (have_thread()) {
        while (queue.begun - queue.finished == SLOTS) finish(queue.begun - SLOTS + 1);
        if (copy_into(&queue.slots[(queue.begun + 1) % SLOTS], o)) {
            request = ++queue.begun;
            pthread_cond_signal(&queue.work);
        }
    }
    pthread_mutex_unlock(&queue.mutex);
    if (request == 0) queue_run(o);
    return request;
}

void queue_end(Request request) {
    pthread_mutex_lock(&queue.mutex);
    finish(request);
    pthread_mutex_unlock(&queue.mutex);
}

void queue_drain(void) {
    pthread_mutex_lock(&queue.mutex);
    finish(queue.begun);
    pthread_mutex_unlock(&queue.mutex);
}

void queue_close(void) {
    stop_thread();
    messages_stop(0);
    for (int i = 0; i < SLOTS; i++) {
        free(queue.slots[i].transfers);
        queue.slots[i].transfers = NULL;
        queue.slots[i].room = 0;
    }
}
