// comm_mpi.h - between the files of the MPI transport: what a world and its Comms hold, and who does what.
//
//   comm_mpi.c           the table: counts bytes, makes an Operation of each call; open, split, close
//   comm_mpi_run.c       runs operations: their one order, the thread, each operation as messages, sums
//   comm_mpi_messages.c  messages, how to wait for them, how to notice that no answer will come
//
// Each calls only those below it.
#pragma once
#include <mpi.h>
#include <stdatomic.h>

#include "kernels/comm.h"

// Where a rank runs.
typedef struct Process {
    int pid;                 // 0: not known yet
    int watched;             // it is another process, whose end this one would see
    uint64_t process_space;  // processes see each other's ids where it is the same
    char host[64];           // for people
} Process;

// Messages that are under way. Room for them grows to that of the largest operation and stays.
typedef struct Messages {
    int n, room;
    size_t bytes;           // of all that were started together
    MPI_Request* requests;  // and of each:
    struct Message {
        int peer;
        int bytes;  // -1: of one that is sent
    } * messages;
    int* finished;  // what MPI_Testsome tells
    MPI_Status* statuses;
} Messages;

// What the Comms that come from one comm_open_mpi share. Only the thread that runs an operation writes to it.
typedef struct World {
    int comms;  // not yet closed
    int rank, size;
    int oversubscribed;  // the ranks of this node outnumber its cores
    atomic_int failed;   // then `error` says why, and nothing is started any more
    char error[ERR_BYTES];
    Process* processes;  // (size)
    double watched;      // when the processes of this node were last looked at
    Messages groups[2];  // waited for separately
    char* scratch;       // of sums: operation_scratch(size) bytes
    const void** terms;  // (size)
} World;

typedef struct MpiComm {
    Comm comm;
    World* world;
    MPI_Comm mpi;
    int* world_rank;  // (size)
    int* node;        // (size), Comm.node
} MpiComm;

static inline MpiComm* mpi_of(Comm* c) { return (MpiComm*)c->state; }

// ---- comm_mpi_run.c

typedef enum OperationKind {
    OP_ALL_REDUCE,
    OP_BROADCAST,
    OP_REDUCE_SCATTER,
    OP_ALL_GATHER,
    OP_SEND_RECEIVE,
    OP_BARRIER
} OperationKind;

typedef struct Operation {
    OperationKind kind;
    MpiComm* c;
    void* out;
    const void* in;
    size_t n;  // elements of dt; bytes of a broadcast or an all-gather
    DType dt;
    int root;
    const Transfer *sends, *receives;
    int n_sends, n_receives;
} Operation;

size_t operation_scratch(int size);

// Runs the operation here, after all that have begun: to its end, or to a failure, which is recorded in the world.
void queue_run(const Operation* o);
// Leaves it to the communication thread, with copies of its lists of messages. Where there can be no thread it runs it
// here and returns 0.
Request queue_begin(const Operation* o);
// 1 when queue_begin would not wait. Only the thread that asks may begin operations.
int queue_has_room(void);
void queue_end(Request request);
// Until all that have begun are over.
void queue_drain(void);
// Ends the thread. Nothing may be under way.
void queue_close(void);

// ---- comm_mpi_messages.c; 0, or -1 when the world has failed

// Start a message to or from a rank of the Comm that is not this one. 0 bytes: a message without content.
int messages_send(MpiComm* c, Messages* group, int peer, const void* data, size_t bytes);
int messages_receive(MpiComm* c, Messages* group, int peer, void* data, size_t bytes);
// Until all messages of the group have come and gone.
int messages_finish(MpiComm* c, Messages* group);
void messages_free(Messages* group);
// This thread sleeps between polls from the start.
void messages_poll_slowly(void);
// 1: the process is ending; messages_finish returns -1 at once and leaves all as it is. 0: it is not.
void messages_stop(int stop);
int messages_stopped(void);
// Records the first failure, after "rank R of N: ".
__attribute__((format(printf, 2, 3))) int world_fail(World* w, const char* format, ...);
int world_fail_call(World* w, const char* call, int error);
