// comm_mpi_messages.c - messages between two ranks, how to wait for them, how to notice that no answer will come.
//
// A thread that waits polls. For as long as the messages should take, the calling thread polls as fast as it can where
// every rank of the node has a core; elsewhere it yields after each poll. After that, and in the communication thread
// from the start, it sleeps between polls, from 20 us growing to 200 us: others need the cores, and a thread that slept
// gets one back sooner than a thread that yielded.
//
// MPI over shared memory does not notice that a process has ended. So after 0.3 s without progress the waiting rank
// looks ten times a second whether the processes of the other ranks of its node still exist. For ranks of other nodes
// there are MPI's errors and the timeout.
//
// After a failure MPI may not be trusted to finish anything. Receives that no message has met are cancelled, all else
// is left as it is, and no call of MPI follows.
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/comm_mpi.h"

enum { PIECE = 64 << 20 };  // longer messages travel in pieces: counts are int, and each piece is progress

static const double LATENCY = 50e-6, BANDWIDTH = 4e9;  // of a good link
static const double SHORTEST_PAUSE = 20e-6, LONGEST_PAUSE = 200e-6;
static const double UNSUSPICIOUS = 0.3, BETWEEN_LOOKS = 0.1;

static atomic_int stopped;
static _Thread_local int polls_slowly;

void messages_stop(int stop) { atomic_store(&stopped, stop); }
int messages_stopped(void) { return atomic_load(&stopped); }
void messages_poll_slowly(void) { polls_slowly = 1; }

// ---- failures

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

int world_fail(World* w, const char* format, ...) {
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

int world_fail_call(World* w, const char* call, int error) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(error, text, &length);
    return world_fail(w, "%s: %.200s; another rank ended or its link broke: see the first error among the ranks", call,
                      text);
}

// ---- starting

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

// ---- noticing

// The process is gone, or is a zombie: its parent has not asked for its status yet.
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
    char text[280];
    size_t length;
    int n, left_out;
} Names;

static void add_name(Names* names, const World* w, int rank) {
    const Process* p = &w->processes[rank];
    char name[128];
    if (p->pid) snprintf(name, sizeof name, "rank %d (process %d of node %s)", rank, p->pid, p->host);
    else snprintf(name, sizeof name, "rank %d", rank);
    names->left_out |= names->length + strlen(name) + 10 > sizeof names->text;
    if (names->left_out) name[0] = 0;
    names->length += (size_t)snprintf(names->text + names->length, sizeof names->text - names->length, "%s%s",
                                      names->n && !names->left_out ? ", " : "", name);
    names->n++;
}

// Others may have ended already because one did, so all are named.
static int look_for_the_dead(World* w) {
    Names dead = {.n = 0};
    for (int r = 0; r < w->size; r++)
        if (w->processes[r].watched && has_ended(w->processes[r].pid)) add_name(&dead, w, r);
    if (dead.n == 0) return 0;
    return world_fail(w, "%s%s: see what was said last", dead.text,
                      dead.n == 1     ? " has ended"
                      : dead.left_out ? " and others have ended"
                                      : " have ended");
}

// Which rank of the world a rank of the Comm is.
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
    return world_fail(
        w,
        "nothing moved for %g s while waiting for %s%s: ended, missing, or not at the same collective; see "
        "the first error among the ranks",
        m->comm.timeout_seconds, late.text, late.left_out ? " and others" : "");
}

// ---- waiting

static void pause_between_polls(const World* w, double waited) {
    if (waited < LATENCY + (double)w->bytes / BANDWIDTH && !polls_slowly) {
        if (w->oversubscribed) sched_yield();
        return;
    }
    struct timespec t = {0, (long)(1e9 * MIN(MAX(waited / 10, SHORTEST_PAUSE), LONGEST_PAUSE))};
    nanosleep(&t, NULL);
}

// 1 when the message has come or gone, 0 when not yet, -1 when the world has failed.
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

// How many messages have come or gone since the last poll, -1 when the world has failed.
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

static int finish(MpiComm* m) {
    World* w = m->world;
    for (double moved = now_seconds(); w->n > 0;) {
        int n = poll_all(m);
        if (n < 0 || messages_stopped()) return -1;
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

int messages_exchange(MpiComm* m, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives) {
    m->world->bytes = 0;
    for (int i = 0; i < n_receives; i++)
        if (comm_leaves(&m->comm, &receives[i]) && start(m, &receives[i], 1)) return -1;
    for (int i = 0; i < n_sends; i++)
        if (comm_leaves(&m->comm, &sends[i]) && start(m, &sends[i], 0)) return -1;
    return finish(m);
}
