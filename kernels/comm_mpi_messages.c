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

static void abandon(Messages* group) {
    for (int i = 0; i < group->n; i++) {
        int done;
        if (group->messages[i].bytes < 0 || group->requests[i] == MPI_REQUEST_NULL) continue;
        MPI_Cancel(&group->requests[i]);
        MPI_Test(&group->requests[i], &done, MPI_STATUS_IGNORE);
    }
    group->n = 0;
    group->bytes = 0;
}

int world_fail(World* w, const char* format, ...) {
    if (atomic_load(&w->failed)) return -1;
    int length = snprintf(w->error, sizeof w->error, "rank %d of %d: ", w->rank, w->size);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(w->error + length, sizeof w->error - (size_t)length, format, arguments);
    va_end(arguments);
    for (int g = 0; g < COUNT(w->groups); g++) abandon(&w->groups[g]);
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

static int make_room(World* w, Messages* group) {
    if (group->n < group->room) return 0;
    int room = MAX(64, 2 * group->room);
    MPI_Request* requests = (MPI_Request*)realloc(group->requests, (size_t)room * sizeof *requests);
    if (requests) group->requests = requests;
    struct Message* messages = (struct Message*)realloc(group->messages, (size_t)room * sizeof *messages);
    if (messages) group->messages = messages;
    int* finished = (int*)realloc(group->finished, (size_t)room * sizeof *finished);
    if (finished) group->finished = finished;
    MPI_Status* statuses = (MPI_Status*)realloc(group->statuses, (size_t)room * sizeof *statuses);
    if (statuses) group->statuses = statuses;
    if (!requests || !messages || !finished || !statuses) return world_fail(w, "no memory for %d messages", room);
    group->room = room;
    return 0;
}

void messages_free(Messages* group) {
    free(group->requests), free(group->messages), free(group->finished), free(group->statuses);
    memset(group, 0, sizeof *group);
}

int messages_send(MpiComm* c, Messages* group, int peer, const void* data, size_t bytes) {
    do {
        int piece = (int)MIN(bytes, (size_t)PIECE);
        if (make_room(c->world, group)) return -1;
        int error = MPI_Isend(data, piece, MPI_BYTE, peer, 0, c->mpi, &group->requests[group->n]);
        if (error) return world_fail_call(c->world, "MPI_Isend", error);
        group->messages[group->n++] = (struct Message){peer, -1};
        group->bytes += (size_t)piece;
        if (data) data = (const char*)data + piece;
        bytes -= (size_t)piece;
    } while (bytes > 0);
    return 0;
}

int messages_receive(MpiComm* c, Messages* group, int peer, void* data, size_t bytes) {
    do {
        int piece = (int)MIN(bytes, (size_t)PIECE);
        if (make_room(c->world, group)) return -1;
        int error = MPI_Irecv(data, piece, MPI_BYTE, peer, 0, c->mpi, &group->requests[group->n]);
        if (error) return world_fail_call(c->world, "MPI_Irecv", error);
        group->messages[group->n++] = (struct Message){peer, piece};
        group->bytes += (size_t)piece;
        if (data) data = (char*)data + piece;
        bytes -= (size_t)piece;
    } while (bytes > 0);
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

static int give_up(MpiComm* c, const Messages* group) {
    Names late = {.n = 0};
    for (int i = 0; i < group->n; i++) {
        int first = 0;
        while (group->messages[first].peer != group->messages[i].peer) first++;
        if (first == i) add_name(&late, c->world, c->world_rank[group->messages[i].peer]);
    }
    return world_fail(
        c->world,
        "nothing moved for %g s while waiting for %s%s: ended, missing, or not at the same collective; see "
        "the first error among the ranks",
        c->comm.timeout_seconds, late.text, late.left_out ? " and others" : "");
}

// ---- waiting

static void pause_between_polls(const World* w, const Messages* group, double waited) {
    if (waited < LATENCY + (double)group->bytes / BANDWIDTH && !polls_slowly) {
        if (w->oversubscribed) sched_yield();
        return;
    }
    struct timespec t = {0, (long)(1e9 * MIN(MAX(waited / 10, SHORTEST_PAUSE), LONGEST_PAUSE))};
    nanosleep(&t, NULL);
}

// Takes out the messages of which MPI_Testsome said that they are finished.
static int take_out(MpiComm* c, Messages* group, int n_finished, int error) {
    for (int i = 0; i < n_finished; i++) {
        const struct Message* m = &group->messages[group->finished[i]];
        const MPI_Status* status = &group->statuses[i];
        int bytes, failed = error == MPI_ERR_IN_STATUS ? status->MPI_ERROR : MPI_SUCCESS;
        if (failed == MPI_ERR_PENDING) continue;
        if (failed == MPI_ERR_TRUNCATE)
            return world_fail(c->world, "rank %d sent more than the %d bytes that were expected",
                              c->world_rank[m->peer], m->bytes);
        if (failed) return world_fail_call(c->world, "MPI_Testsome", failed);
        if (m->bytes < 0) continue;
        MPI_Get_count(status, MPI_BYTE, &bytes);
        if (bytes != m->bytes)
            return world_fail(c->world, "rank %d sent %d bytes, expected %d", c->world_rank[m->peer], bytes, m->bytes);
    }
    int n = 0;
    for (int i = 0; i < group->n; i++) {
        if (group->requests[i] == MPI_REQUEST_NULL) continue;
        group->requests[n] = group->requests[i];
        group->messages[n++] = group->messages[i];
    }
    group->n = n;
    return 0;
}

int messages_finish(MpiComm* c, Messages* group) {
    World* w = c->world;
    double moved = 0;  // when something did, 0: just now
    while (group->n > 0) {
        int n_finished = 0;
        int error = MPI_Testsome(group->n, group->requests, &n_finished, group->finished, group->statuses);
        if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS) return world_fail_call(w, "MPI_Testsome", error);
        if (n_finished > 0) {
            if (take_out(c, group, n_finished, error)) return -1;
            moved = 0;
            continue;
        }
        if (messages_stopped()) return -1;
        double now = now_seconds(), waited = moved > 0 ? now - moved : 0;
        if (moved == 0) moved = now;
        if (waited > UNSUSPICIOUS && now - w->watched > BETWEEN_LOOKS) {
            w->watched = now;
            if (look_for_the_dead(w)) return -1;
        }
        if (waited > c->comm.timeout_seconds) return give_up(c, group);
        pause_between_polls(w, group, waited);
    }
    group->bytes = 0;
    return 0;
}
