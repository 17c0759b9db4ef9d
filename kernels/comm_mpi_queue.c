// comm_mpi_queue.c - the one order of all operations of this process, and the thread that runs those that only begin.
//
// Operations are run one after another in the order in which they were handed in, whatever Comm they are of. An
// operation that is over when it returns is run by the calling thread, after those before it. One that begins is copied
// into a slot of a bounded queue; a communication thread, made when it is first needed, runs what lies there. A thread
// that waits for a request runs operations itself where nobody else does, so that waiting does not take a change of
// threads. `busy` says that somebody runs one: MPI is called by one thread at a time (MPI_THREAD_SERIALIZED), and what
// a World holds needs no lock of its own.
//
// A process that ends by exit() first stops the thread, because MPI takes itself apart while the program's exit
// handlers run.
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "kernels/comm_mpi.h"

enum { SLOTS = 64 };

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t work, over;  // for the thread; for those who wait for an operation
    struct Slot {
        Operation operation;
        Transfer* transfers;  // its sends, then its receives; room grows to that of the largest exchange and stays
        int room;
    } slots[SLOTS];
    Request begun, finished;  // the operations in between are in slots, each in that of its request modulo SLOTS
    int busy;
    int has_thread, cannot;  // cannot: MPI or the system allows no thread
    pthread_t thread;
    atomic_int stopping;
} queue = {.mutex = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .over = PTHREAD_COND_INITIALIZER};

int queue_stopping(void) { return atomic_load(&queue.stopping); }

// ---- running; the mutex is held before and after

static void run_busy(const Operation* o) {
    queue.busy = 1;
    pthread_mutex_unlock(&queue.mutex);
    operation_run(o);
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
    pthread_mutex_lock(&queue.mutex);
    while (!queue_stopping())
        if (queue.busy || queue.finished == queue.begun) pthread_cond_wait(&queue.work, &queue.mutex);
        else run_next();
    pthread_mutex_unlock(&queue.mutex);
    return NULL;
}

int queue_in_thread(void) { return queue.has_thread && pthread_equal(pthread_self(), queue.thread); }

static void stop_thread(void) {
    if (!queue.has_thread || queue_in_thread()) return;
    pthread_mutex_lock(&queue.mutex);
    atomic_store(&queue.stopping, 1);
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
    atomic_store(&queue.stopping, 0);
    for (int i = 0; i < SLOTS; i++) {
        free(queue.slots[i].transfers);
        queue.slots[i].transfers = NULL;
        queue.slots[i].room = 0;
    }
}
