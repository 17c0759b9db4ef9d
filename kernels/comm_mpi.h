// comm_mpi.h - between the files of the MPI transport: comm_mpi.c opens, splits, closes and runs operations in their
// order; comm_mpi_messages.c exchanges messages and notices when no answer will come.
#pragma once
#include <mpi.h>
#include <stdatomic.h>

#include "kernels/comm_transport.h"

// Where a rank runs.
typedef struct Process {
    int pid;                 // 0: not known yet
    int watched;             // it is another process, whose end this one would see
    uint64_t process_space;  // processes see each other's ids where it is the same
    char host[64];           // for people
} Process;

// A message that is under way.
typedef struct Message {
    MPI_Request request;
    int peer, bytes;  // -1: it is sent
} Message;

// What the Comms that come from one comm_open_mpi share. Only the thread that runs an operation writes to it.
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

// Exchanges all messages that have bytes and are not to or from oneself. 0, or -1 when the world has failed.
int messages_exchange(MpiComm* m, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives);
// This thread sleeps between polls from the start.
void messages_poll_slowly(void);
// 1: the process is ending; an exchange returns -1 at once and leaves all as it is. 0: it is not.
void messages_stop(int stop);
int messages_stopped(void);
// Records the first failure, after "rank R of N: "; -1.
__attribute__((format(printf, 2, 3))) int world_fail(World* w, const char* format, ...);
int world_fail_call(World* w, const char* call, int error);
