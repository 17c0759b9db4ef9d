// forked.c - see forked.h.
//
// A waiting rank looks four times a second whether one has died; the parent is told by the kernel. It gives the others
// two seconds to say a line of their own, which names the step, and ends those that compute and do not see it.
#define _GNU_SOURCE  // MAP_ANONYMOUS, MAP_NORESERVE
#include "kernels/comm/forked.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ERROR_NONE, ERROR_COMES, ERROR_IS_THERE };

typedef struct Place {
    pid_t process;
    atomic_int has_left;
} Place;

typedef struct Shared {
    int ranks;
    size_t bytes;
    atomic_size_t taken;
    atomic_int said, failed;
    char error[ERR_BYTES];
    Place place[];
} Shared;

static const size_t ADDRESSES = (size_t)64 << 30;  // pages come when they are written to
static const double GRACE = 2;

static Shared* shared;
static int own;

int forked_ranks(void) { return shared ? shared->ranks : 0; }
int forked_rank(void) { return own; }
void forked_leave(void) { atomic_store(&shared->place[own].has_left, 1); }

void* forked_take(size_t bytes) {
    size_t at = atomic_fetch_add(&shared->taken, ROUND_UP(bytes, (size_t)4096));
    return at + bytes <= shared->bytes ? (char*)shared + at : NULL;
}

// ---- waiting

static long futex(atomic_uint* word, int operation, unsigned value, const struct timespec* most) {
    return syscall(SYS_futex, word, operation, value, most, NULL, 0);
}

void forked_sleep(atomic_uint* word, unsigned seen) {
    static const struct timespec look = {0, 250000000};
    futex(word, FUTEX_WAIT, seen, &look);
}

void forked_wake(atomic_uint* word) {
    atomic_fetch_add(word, 1);
    futex(word, FUTEX_WAKE, INT_MAX, NULL);
}

// ---- failures

const char* forked_name(int rank, char name[48]) {
    snprintf(name, 48, "rank %d (process %ld)", rank, (long)shared->place[rank].process);
    return name;
}

int forked_fail(const char* format, ...) {
    int none = ERROR_NONE;
    va_list arguments;
    if (!atomic_compare_exchange_strong(&shared->failed, &none, ERROR_COMES)) return -1;
    va_start(arguments, format);
    vsnprintf(shared->error, sizeof shared->error, format, arguments);
    va_end(arguments);
    atomic_store(&shared->failed, ERROR_IS_THERE);
    return -1;
}

int forked_failed(Err err) {
    if (atomic_load(&shared->failed) == ERROR_NONE) return 0;
    while (atomic_load(&shared->failed) != ERROR_IS_THERE) sched_yield();
    return fail(err, "%s", shared->error);
}

static int someone_has_said_it(void) { return atomic_exchange(&shared->said, 1); }

// ---- what is found once

int once_begin(Once* once, unsigned number, Err err) {
    unsigned before = atomic_load(&once->begun), found;
    while (before < number)
        if (atomic_compare_exchange_strong(&once->begun, &before, number)) return 1;
    while ((found = atomic_load(&once->found)) < number && !forked_failed(err)) forked_sleep(&once->found, found);
    return found < number ? -1 : 0;
}

int once_room(Once* once, size_t bytes, Err err) {
    if (bytes <= once->room) return 0;
    once->room = 2 * bytes;
    once->memory = (char*)forked_take(once->room);
    if (once->memory) return 0;
    once->room = 0;
    return fail(err, "no more memory that ranks share: %zu bytes", bytes);
}

void once_end(Once* once, unsigned number) {
    atomic_store(&once->found, number);
    futex(&once->found, FUTEX_WAKE, INT_MAX, NULL);
}

// ---- the parent

static void pass_on(int number) {
    int before = errno;
    kill(shared->place[0].process, number);
    errno = before;
}

static void nap(void) { nanosleep(&(struct timespec){0, 20000000}, NULL); }

static int rank_of(pid_t process) {
    int r = 0;
    while (r < shared->ranks && shared->place[r].process != process) r++;
    return r;
}

// Ends all ranks after the first that died, whose status is given.
__attribute__((noreturn)) static void end_all(int rank, int status) {
    char name[48], err[ERR_BYTES];
    forked_name(rank, name);
    if (WIFSIGNALED(status)) forked_fail("%s was ended by signal %d", name, WTERMSIG(status));
    else if (status) forked_fail("%s has ended: see what was said last", name);
    else forked_fail("%s has ended before the others", name);
    for (double since = now_seconds(); now_seconds() - since < GRACE;) {
        pid_t process = waitpid(-1, NULL, WNOHANG);
        if (process < 0 && errno == ECHILD) break;
        if (process <= 0) nap();
    }
    kill(-shared->place[0].process, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR) continue;
    forked_failed(err);
    if (!someone_has_said_it()) fprintf(stderr, "train: %s\n", err);
    exit(WIFEXITED(status) && status ? WEXITSTATUS(status) : 1);
}

__attribute__((noreturn)) static void wait_for_all(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
    int status;
    for (int i = 0; i < COUNT(numbers); i++)
        if (signal(numbers[i], pass_on) == SIG_IGN) signal(numbers[i], SIG_IGN);
    for (int left = shared->ranks; left > 0;) {
        pid_t process = waitpid(-1, &status, 0);
        int rank = rank_of(process);
        if (process < 0 && errno == ECHILD) break;
        if (rank == shared->ranks) continue;
        left--;
        if (status || !shared->place[rank].has_left) end_all(rank, status);
    }
    _exit(0);
}

// ---- the beginning

int forked_open(int ranks, Err err) {
    size_t head = ROUND_UP(sizeof *shared + (size_t)ranks * sizeof(Place), (size_t)4096);
    void* p = mmap(NULL, ADDRESSES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return fail(err, "no %zu MiB of addresses for memory that ranks share; raise the limit (ulimit -v)",
                    ADDRESSES >> 20);
    shared = (Shared*)p;
    shared->ranks = ranks, shared->bytes = ADDRESSES, shared->taken = head;
    return 0;
}

// Makes a new process a rank. Ranks are a process group: Ctrl-C comes to the parent alone, and to rank 0 once.
static int become(int rank, pid_t parent) {
    own = rank;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    signal(SIGTTOU, SIG_IGN);
    snprintf(die_as.who, sizeof die_as.who, "rank %d: ", rank);
    if (rank > 0) die_as.last = NULL;
    die_as.leave = _exit;
    return rank;
}

int forked_begin(Err err) {
    pid_t parent = getpid();
    int ranks = shared->ranks;
    fflush(NULL);
    die_as.is_said = someone_has_said_it;
    for (int r = 0; r < ranks; r++) {
        pid_t process = fork();
        if (process == 0) return become(r, parent);
        if (process < 0) {
            if (r > 0) kill(-shared->place[0].process, SIGKILL);
            return fail(err,
                        "expected room for %d processes, found room for %d; try fewer, or raise the limit (ulimit -u, "
                        "pids.max of a container)",
                        ranks, r);
        }
        shared->place[r].process = process;
        setpgid(process, shared->place[0].process);
    }
    die_as.last = NULL;
    wait_for_all();
}
