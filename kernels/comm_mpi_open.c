// comm_mpi_open.c - open, split and close; who the ranks are.
//
// Each rank tells all others its process id and host name, so that words can name it and its neighbours can see whether
// it lives. A process that sees other ids, as in a container of its own, is not watched.
//
// MPI_Comm_split and MPI_Finalize wait for ever on a rank that has died, so all ranks meet in a barrier of this
// transport before.
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/comm_mpi.h"
#include "kernels/comm_nodes.h"

static struct {
    int worlds;    // open
    int finalize;  // MPI was initialised here
    int failed;    // a world has: MPI_Finalize would wait for ever
} process;

// ---- places

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

static int exchange_places(Comm* c, char* err, size_t errlen) {
    World* w = mpi_of(c)->world;
    Place own;
    memset(&own, 0, sizeof own);
    own.pid = (int)getpid();
    own.process_space = process_space();
    gethostname(own.host, sizeof own.host - 1);
    if (c->table->all_gather_host(c, w->places, &own, sizeof own, err, errlen)) return -1;
    for (int r = 0; r < w->size; r++)
        w->places[r].watched =
            r != w->rank && own.process_space != 0 && w->places[r].process_space == own.process_space;
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
    c->table = &comm_mpi_table;
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
    free(w->places), free(w->scratch), free(w->terms);
    free(w);
}

static World* allocate_world(int rank, int size) {
    World* w = (World*)calloc(1, sizeof *w);
    if (!w) return NULL;
    w->rank = rank;
    w->size = size;
    w->places = (Place*)calloc((size_t)size, sizeof *w->places);
    w->terms = (const void**)calloc((size_t)size, sizeof *w->terms);
    w->scratch = (char*)malloc(operation_scratch(size));
    if (w->places && w->terms && w->scratch) return w;
    free_world(w);
    return NULL;
}

// ---- open

static int initialize(char* err, size_t errlen) {
    int initialized, finalized, level;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (finalized) return fail(err, errlen, "MPI was finalized: ranks can meet only once in a process");
    if (initialized) return 0;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level)) return fail(err, errlen, "MPI_Init_thread failed");
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

static int open_world(Comm** world, const RankIdentity* id, double timeout_seconds, char* err, size_t errlen) {
    MPI_Comm mpi;
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (check_identity(id, rank, size, err, errlen)) return -1;
    World* w = allocate_world(rank, size);
    MpiComm* m = w ? allocate_comm(size) : NULL;
    if (!m || MPI_Comm_dup(MPI_COMM_WORLD, &mpi)) {
        free_world(w), free_comm(m);
        return fail(err, errlen, "no memory for a Comm of %d ranks", size);
    }
    for (int r = 0; r < size; r++) m->world_rank[r] = r;
    fill_comm(m, w, mpi);
    m->comm.timeout_seconds = timeout_seconds;
    process.worlds++;
    if (exchange_places(&m->comm, err, errlen) || comm_find_nodes(&m->comm, m->node, err, errlen)) {
        comm_mpi_close(&m->comm);
        return -1;
    }
    w->oversubscribed = m->comm.local_size > sysconf(_SC_NPROCESSORS_ONLN);
    m->comm.exposed_seconds = 0;
    *world = &m->comm;
    return 0;
}

// Undoes `initialize`, after the last world.
static void finalize(void) {
    if (process.worlds > 0 || !process.finalize || process.failed) return;
    process.finalize = 0;
    MPI_Finalize();
}

int comm_open_mpi(Comm** world, const RankIdentity* id, double timeout_seconds, char* err, size_t errlen) {
    *world = NULL;
    if (initialize(err, errlen)) return -1;
    if (open_world(world, id, timeout_seconds, err, errlen) == 0) return 0;
    finalize();
    return -1;
}

// ---- split

// Members of the part in its order, and their machines. 0, or -1 without memory.
static int describe_part(MpiComm* m, MPI_Comm mpi, int size, const MpiComm* whole) {
    uint64_t* machine = (uint64_t*)malloc((size_t)size * sizeof *machine);
    MPI_Group of_part, of_whole;
    if (!machine) return -1;
    MPI_Comm_group(mpi, &of_part);
    MPI_Comm_group(whole->mpi, &of_whole);
    for (int r = 0; r < size; r++) {
        int rank;
        MPI_Group_translate_ranks(of_part, 1, &r, of_whole, &rank);
        m->world_rank[r] = whole->world_rank[rank];
        machine[r] = (uint64_t)whole->node[rank];
    }
    comm_number_nodes(m->node, machine, size);
    MPI_Group_free(&of_part);
    MPI_Group_free(&of_whole);
    free(machine);
    return 0;
}

int comm_mpi_split(Comm* c, Comm** part, int color, int key, char* err, size_t errlen) {
    World* w = mpi_of(c)->world;
    MPI_Comm mpi;
    int size;
    *part = NULL;
    if (c->table->barrier(c, err, errlen)) return -1;
    int error = MPI_Comm_split(mpi_of(c)->mpi, color < 0 ? MPI_UNDEFINED : color, key, &mpi);
    if (error) {
        world_fail_call(w, "MPI_Comm_split", error);
        return fail(err, errlen, "%s", w->words);
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

void comm_mpi_close(Comm* c) {
    World* w = mpi_of(c)->world;
    char err[ERR_BYTES];
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
    finalize();
}
