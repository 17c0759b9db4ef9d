// comm_mpi.c - the Comm of ranks with host memory, over MPI, see comm.h; comm_mpi.h lists its files.
//
// MPI only carries messages between two ranks, nonblocking, and this transport polls for them. MPI's own collectives
// spin while they wait, which takes the processor from other ranks and threads; and they never return when a rank has
// died.
//
// An entry counts what it sends and makes an Operation. The queue runs operations one after another: on the calling
// thread, or, those that only begin, on the communication thread.
//
// Each rank tells all others its process id and host name, so that messages can name it and its neighbours can see
// whether it lives. A process that sees other ids, as in a container of its own, is not watched.
//
// A few calls of MPI wait for ever on a rank that does not come: MPI_Init, MPI_Comm_dup, MPI_Comm_split, MPI_Finalize.
// Before the last two all ranks meet in a barrier of this transport, and each of the four has a deadline. Whoever fails
// to open leaves MPI as it is: to finalize it would wait for the others, who would wait for this one.
#include "kernels/comm_mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/comm_transport.h"
#include "kernels/deadline.h"
#include "kernels/host.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"  // there are no streams here

// ---- running

static int is_failed(Comm* c) { return atomic_load(&mpi_of(c)->world->failed); }

// While this thread waits. The timer comes first, so that an injected slowdown is no exposed time; the CPU has one
// stream only.
typedef struct Pause {
    TimeKind before;
    double start;
} Pause;

static Pause begin_pause(Comm* c) {
    Pause pause = {.before = timer_enter(c->timer, TIME_WAIT, NULL)};
    pause.start = now_seconds();
    return pause;
}

static void end_pause(Comm* c, Pause pause) {
    c->exposed_seconds += now_seconds() - pause.start;
    timer_enter(c->timer, pause.before, NULL);
}

static void run(const Operation* o) {
    Comm* c = &o->c->comm;
    Pause pause = begin_pause(c);
    queue_run(o);
    end_pause(c, pause);
}

static Request begin(const Operation* o) {
    Comm* c = &o->c->comm;
    if (!c->overlap) return run(o), 0;
    timer_lag(c->timer, NULL);
    if (queue_has_room()) return queue_begin(o);
    Pause pause = begin_pause(c);
    Request request = queue_begin(o);
    end_pause(c, pause);
    return request;
}

static void end(Comm* c, Request request, Stream s) {
    if (request == 0) return;
    Pause pause = begin_pause(c);
    queue_end(request);
    end_pause(c, pause);
}

static int result(Comm* c, char* err, size_t errlen) {
    return is_failed(c) ? fail(err, errlen, "%s", mpi_of(c)->world->error) : 0;
}

// ---- entries

static void all_reduce(Comm* c, void* x, size_t n, DType dt, Stream s) {
    if (n == 0) return;
    comm_count_all_reduce(c, n, dt);
    run(&(Operation){.kind = OP_ALL_REDUCE, .c = mpi_of(c), .out = x, .n = n, .dt = dt});
}

static void broadcast(Comm* c, void* x, size_t bytes, int root, Stream s) {
    if (bytes == 0) return;
    comm_count_broadcast(c, bytes, root);
    run(&(Operation){.kind = OP_BROADCAST, .c = mpi_of(c), .out = x, .n = bytes, .root = root});
}

static Request begin_reduce_scatter(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s) {
    if (n == 0) return 0;
    comm_count_reduce_scatter(c, n, dt);
    return begin(&(Operation){.kind = OP_REDUCE_SCATTER, .c = mpi_of(c), .out = out, .in = in, .n = n, .dt = dt});
}

static Request begin_all_gather(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s) {
    if (n == 0) return 0;
    comm_count_all_gather(c, n, dt);
    return begin(&(Operation){.kind = OP_ALL_GATHER, .c = mpi_of(c), .out = out, .in = in, .n = n * dtype_bytes(dt)});
}

static Request begin_send_receive(Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives,
                                  Stream s) {
    int remote = 0;
    comm_check_messages(c, sends, n_sends, &remote);
    comm_check_messages(c, receives, n_receives, &remote);
    if (n_sends + n_receives == 0) return 0;
    comm_count_send_receive(c, sends, n_sends);
    return begin(&(Operation){.kind = OP_SEND_RECEIVE,
                              .c = mpi_of(c),
                              .sends = sends,
                              .n_sends = n_sends,
                              .receives = receives,
                              .n_receives = n_receives});
}

static int all_gather_host(Comm* c, void* out, const void* in, size_t bytes, char* err, size_t errlen) {
    if (bytes > 0) {
        comm_count_all_gather_host(c, bytes);
        run(&(Operation){.kind = OP_ALL_GATHER, .c = mpi_of(c), .out = out, .in = in, .n = bytes});
    }
    return result(c, err, errlen);
}

static int broadcast_host(Comm* c, void* x, size_t bytes, int root, char* err, size_t errlen) {
    if (bytes > 0) {
        comm_count_broadcast_host(c, bytes, root);
        run(&(Operation){.kind = OP_BROADCAST, .c = mpi_of(c), .out = x, .n = bytes, .root = root});
    }
    return result(c, err, errlen);
}

static int barrier(Comm* c, char* err, size_t errlen) {
    run(&(Operation){.kind = OP_BARRIER, .c = mpi_of(c)});
    return result(c, err, errlen);
}

static int wait(Comm* c, Stream s, char* err, size_t errlen) {
    Pause pause = begin_pause(c);
    queue_drain();
    end_pause(c, pause);
    return result(c, err, errlen);
}

// ---- worlds and their Comms

static const CommTable mpi_table;

static struct {
    int worlds;    // open
    int finalize;  // MPI was initialised here
    int failed;    // a world has: MPI_Finalize would wait for ever
} process;

// ---- processes

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

static int gather_processes(Comm* c, char* err, size_t errlen) {
    World* w = mpi_of(c)->world;
    Process own;
    memset(&own, 0, sizeof own);
    own.pid = (int)getpid();
    own.process_space = process_space();
    gethostname(own.host, sizeof own.host - 1);
    if (c->table->all_gather_host(c, w->processes, &own, sizeof own, err, errlen)) return -1;
    for (int r = 0; r < w->size; r++)
        w->processes[r].watched =
            r != w->rank && own.process_space != 0 && w->processes[r].process_space == own.process_space;
    return 0;
}

// ---- making

static void free_comm(MpiComm* m) {
    if (!m) return;
    free(m->world_rank);
    free(m->node);
    free(m);
}

static MpiComm* allocate_comm(int size) {
    MpiComm* m = (MpiComm*)calloc(1, sizeof *m);
    if (!m) return NULL;
    m->world_rank = (int*)calloc((size_t)size, sizeof(int));
    m->node = (int*)calloc((size_t)size, sizeof(int));
    if (m->world_rank && m->node) return m;
    free_comm(m);
    return NULL;
}

static void fill_comm(MpiComm* m, World* w, MPI_Comm mpi) {
    Comm* c = &m->comm;
    c->table = &mpi_table;
    c->state = m;
    c->node = m->node;
    m->world = w;
    m->mpi = mpi;
    w->comms++;
    MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi, &c->rank);
    MPI_Comm_size(mpi, &c->size);
}

static void free_world(World* w) {
    if (!w) return;
    for (int g = 0; g < COUNT(w->groups); g++) messages_free(&w->groups[g]);
    free(w->processes), free(w->scratch), free(w->terms);
    free(w);
}

static World* allocate_world(int rank, int size) {
    World* w = (World*)calloc(1, sizeof *w);
    if (!w) return NULL;
    w->rank = rank;
    w->size = size;
    w->processes = (Process*)calloc((size_t)size, sizeof *w->processes);
    w->terms = (const void**)calloc((size_t)size, sizeof *w->terms);
    w->scratch = (char*)malloc(operation_scratch(size));
    if (w->processes && w->terms && w->scratch) return w;
    free_world(w);
    return NULL;
}

// ---- split

// Members of the part in its order, and their nodes. 0, or -1 without memory.
static int describe_part(MpiComm* m, MPI_Comm mpi, int size, const MpiComm* whole) {
    uint64_t* host = (uint64_t*)malloc((size_t)size * sizeof *host);
    MPI_Group of_part, of_whole;
    if (!host) return -1;
    MPI_Comm_group(mpi, &of_part);
    MPI_Comm_group(whole->mpi, &of_whole);
    for (int r = 0; r < size; r++) {
        int rank;
        MPI_Group_translate_ranks(of_part, 1, &r, of_whole, &rank);
        m->world_rank[r] = whole->world_rank[rank];
        host[r] = (uint64_t)whole->node[rank];
    }
    comm_number_nodes(m->node, host, size);
    MPI_Group_free(&of_part);
    MPI_Group_free(&of_whole);
    free(host);
    return 0;
}

static int split(Comm* c, Comm** part, int color, int key, char* err, size_t errlen) {
    World* w = mpi_of(c)->world;
    MPI_Comm mpi;
    int size;
    *part = NULL;
    if (c->table->barrier(c, err, errlen)) return -1;
    deadline_begin(c->timeout_seconds, "rank %d of %d: MPI_Comm_split", w->rank, w->size);
    int error = MPI_Comm_split(mpi_of(c)->mpi, color < 0 ? MPI_UNDEFINED : color, key, &mpi);
    deadline_end();
    if (error) {
        world_fail_call(w, "MPI_Comm_split", error);
        return fail(err, errlen, "%s", w->error);
    }
    if (color < 0) return 0;
    MPI_Comm_size(mpi, &size);
    MpiComm* m = allocate_comm(size);
    if (!m || describe_part(m, mpi, size, mpi_of(c))) {
        free_comm(m);
        return fail(err, errlen, "no memory for a Comm of %d ranks", size);
    }
    fill_comm(m, w, mpi);
    m->comm.local_rank = c->local_rank;
    m->comm.local_size = c->local_size;
    m->comm.timeout_seconds = c->timeout_seconds;
    m->comm.overlap = c->overlap;
    *part = &m->comm;
    return 0;
}

// ---- close

// Undoes `initialize`, after the last world.
static void finalize(double timeout_seconds, int rank, int size) {
    if (process.worlds > 0 || !process.finalize || process.failed) return;
    process.finalize = 0;
    deadline_begin(timeout_seconds, "rank %d of %d: MPI_Finalize", rank, size);
    MPI_Finalize();
    deadline_end();
}

static void close_comm(Comm* c) {
    World* w = mpi_of(c)->world;
    char err[ERR_BYTES];
    double timeout_seconds = c->timeout_seconds;
    int rank = w->rank, size = w->size;
    queue_drain();
    int last = w->comms == 1 && process.worlds == 1;
    if (last && process.finalize) c->table->barrier(c, err, sizeof err);
    if (atomic_load(&w->failed)) process.failed = 1;
    else MPI_Comm_free(&mpi_of(c)->mpi);
    free_comm(mpi_of(c));
    if (--w->comms > 0) return;
    free_world(w);
    if (--process.worlds > 0) return;
    queue_close();
    finalize(timeout_seconds, rank, size);
}

static const CommTable mpi_table = {
    .name = "mpi",
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .begin_reduce_scatter = begin_reduce_scatter,
    .begin_all_gather = begin_all_gather,
    .begin_send_receive = begin_send_receive,
    .end = end,
    .all_gather_host = all_gather_host,
    .broadcast_host = broadcast_host,
    .barrier = barrier,
    .wait = wait,
    .split = split,
    .close = close_comm,
};

// ---- open

static int initialize(const RankIdentity* id, double timeout_seconds, char* err, size_t errlen) {
    int initialized, finalized, level;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (finalized) return fail(err, errlen, "MPI was finalized: ranks can meet only once in a process");
    if (initialized) return 0;
    deadline_begin(timeout_seconds, "rank %d of %d: MPI_Init", id->rank, id->size);
    int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    deadline_end();
    host_keep_ignored();
    if (error) return fail(err, errlen, "MPI_Init_thread failed");
    process.finalize = 1;
    return 0;
}

static int check_identity(const RankIdentity* id, int rank, int size, char* err, size_t errlen) {
    if (id->rank == rank && id->size == size) return 0;
    return fail(
        err, errlen,
        "%s says that this is rank %d of %d, but MPI says %d of %d: start it with the mpirun of the MPI that it "
        "was built with",
        id->source, id->rank, id->size, rank, size);
}

// A copy of MPI's Comm of all ranks. 0, or -1.
static int duplicate_world(MPI_Comm* mpi, const RankIdentity* id, double timeout_seconds) {
    deadline_begin(timeout_seconds, "rank %d of %d: MPI_Comm_dup", id->rank, id->size);
    int error = MPI_Comm_dup(MPI_COMM_WORLD, mpi);
    deadline_end();
    return error ? -1 : 0;
}

static int open_world(Comm** world, const RankIdentity* id, double timeout_seconds, char* err, size_t errlen) {
    MPI_Comm mpi;
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (check_identity(id, rank, size, err, errlen)) return -1;
    World* w = allocate_world(rank, size);
    MpiComm* m = w ? allocate_comm(size) : NULL;
    if (!m || duplicate_world(&mpi, id, timeout_seconds)) {
        free_world(w), free_comm(m);
        return fail(err, errlen, "no memory for a Comm of %d ranks", size);
    }
    for (int r = 0; r < size; r++) m->world_rank[r] = r;
    fill_comm(m, w, mpi);
    m->comm.timeout_seconds = timeout_seconds;
    process.worlds++;
    if (gather_processes(&m->comm, err, errlen) || comm_find_nodes(&m->comm, m->node, err, errlen)) {
        world_fail(w, "%s", err);  // nobody is waited for any more
        close_comm(&m->comm);
        return -1;
    }
    w->oversubscribed = m->comm.local_size > host_cores("", getppid());  // the launcher's: a rank may be bound to one
    m->comm.exposed_seconds = 0;
    *world = &m->comm;
    return 0;
}

int comm_open_mpi(Comm** world, const RankIdentity* id, double timeout_seconds, char* err, size_t errlen) {
    *world = NULL;
    if (initialize(id, timeout_seconds, err, errlen)) return -1;
    if (open_world(world, id, timeout_seconds, err, errlen) == 0) return 0;
    process.failed = 1;
    return -1;
}
