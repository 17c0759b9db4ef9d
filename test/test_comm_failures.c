// test_comm_failures.c - ranks that die, stay away or send something else: the others are told in time, by name.
//
//   mpirun -n 1, 2 or 4 build/release/test/test_comm_failures
//
// Claims about ranks that die run with one rank, which starts mpirun again with this program and a mode.
#include <signal.h>

#include "plan/base/terminal.h"
#include "test/ranks.h"

enum { MOST_RANKS = 64 };
enum { GIVE_UP = 1, OPENS_WITHIN = 3, SOON = 20 };  // seconds

static char err[ERR_BYTES];
static const char* program;

// ---- ranks that are not where they should be; each claim opens a world of its own

// After a failure everything returns at once, and says the same.
static void check_failed(Comm* c, Comm* part, const char* words) {
    static float x[4 * MOST_RANKS];
    double start = now_seconds();
    ranks_check_failed(c, part, words, x);
    CHECK(now_seconds() - start < GIVE_UP);
}

static void a_rank_that_stays_away_is_not_waited_for(void) {
    for (int overlap = 0; overlap < 2; overlap++) {
        Comm* c = ranks_open(GIVE_UP);
        Comm* part = NULL;
        float x[100] = {0}, all[100 * MOST_RANKS];
        char name[32];
        CHECK(c && c->table->split(c, &part, 0, 0, err) == 0);
        if (!c) return;
        c->overlap = overlap;
        double start = now_seconds();
        if (rank != size - 1) {
            comm_all_gather(c, all, x, 100, DT_F32, NULL);
            CHECK(c->table->wait(c, NULL, err) == -1);
            snprintf(name, sizeof name, "rank %d (process ", size - 1);
            CHECK(strstr(err, name) && strstr(err, "nothing moved for 1 s"));
            CHECK(now_seconds() - start >= GIVE_UP && now_seconds() - start < GIVE_UP + SOON);
            check_failed(c, part, err);
        } else {
            ranks_sleep(2 * GIVE_UP);
        }
        if (part) part->table->close(part);
        c->table->close(c);
        MPI_Barrier(MPI_COMM_WORLD);  // the next world opens within its time-out
    }
}

// One rank expects another length than the other one sends.
static void lengths_that_differ_are_told(void) {
    for (int longer = 0; longer < 2; longer++) {
        Comm* c = ranks_open(SOON);
        char x[300] = {0};
        if (!c) return;
        Transfer send = {1, x, 100}, receive = {0, x, longer ? 300 : 30};
        if (rank == 0) comm_send_receive(c, &send, 1, NULL, 0, NULL);
        if (rank == 1) {
            comm_send_receive(c, NULL, 0, &receive, 1, NULL);
            CHECK(c->table->wait(c, NULL, err) == -1);
            CHECK(strstr(err, longer ? "rank 0 sent 100 bytes, expected 300" : "rank 0 sent more than the 30 bytes"));
        }
        c->table->close(c);
    }
}

// ---- allocations that fail: calls of malloc, calloc and realloc from code of ours come here (Makefile)

static int succeed = -1;  // before one fails; -1: none does

void* __real_malloc(size_t bytes);
void* __real_calloc(size_t n, size_t bytes);
void* __real_realloc(void* p, size_t bytes);
void* __wrap_malloc(size_t bytes);
void* __wrap_calloc(size_t n, size_t bytes);
void* __wrap_realloc(void* p, size_t bytes);

static int fails(void) { return succeed >= 0 && succeed-- == 0; }
void* __wrap_malloc(size_t bytes) { return fails() ? NULL : __real_malloc(bytes); }
void* __wrap_calloc(size_t n, size_t bytes) { return fails() ? NULL : __real_calloc(n, bytes); }
void* __wrap_realloc(void* p, size_t bytes) { return fails() ? NULL : __real_realloc(p, bytes); }

// ---- modes: what a rank does that another mpirun has started, and the claims that start it

// The last rank ends without a word, by a signal or by exit() in the midst of a collective that has begun.
static void end_suddenly(Comm* c, const char* mode) {
    static float x[1000];
    Transfer receive = {0, x, sizeof x};
    ranks_sleep(0.3);
    if (strstr(mode, "killed")) raise(SIGKILL);
    c->overlap = 1;
    c->table->begin_send_receive(c, NULL, 0, &receive, 1, NULL);  // of which nothing comes
    ranks_sleep(0.3);
    exit(strstr(mode, "exit-0") ? 0 : 7);
}

static int survive(Comm* c, const char* mode) {
    static float x[100000], all[100000];
    Transfer receive = {c->size - 1, x, sizeof x};
    char name[64];
    c->overlap = strstr(mode, "overlap") != NULL;
    double start = now_seconds();
    if (strstr(mode, "message")) comm_send_receive(c, NULL, 0, &receive, 1, NULL);
    else if (strstr(mode, "sum")) c->table->all_reduce(c, x, COUNT(x), DT_F32, NULL);
    else comm_all_gather(c, all, x, COUNT(x) / (size_t)c->size, DT_F32, NULL);
    CHECK(c->table->wait(c, NULL, err) == -1);
    CHECK(now_seconds() - start < 10);
    snprintf(name, sizeof name, "rank %d (process ", c->size - 1);
    CHECK(strstr(err, name) && strstr(err, "ended: see"));  // others may have ended because of it
    if (test_failures_in_claim) printf("%s\n", err);
    check_failed(c, NULL, err);
    start = now_seconds();
    c->table->close(c);
    CHECK(now_seconds() - start < 1);
    if (!test_failures_in_claim) printf("survived\n");
    fflush(stdout);
    return test_failures_in_claim > 0;
}

// Opens a world and splits it, as a run does; in the last rank the n-th allocation of this fails.
static int open_without_memory(int n) {
    RankIdentity id;
    Comm *c = NULL, *part = NULL;
    if (rank_identity(&id, err)) die("%s", err);
    die_as_rank(id.rank);
    if (id.rank == id.size - 1) succeed = n;
    if (comm_open_mpi(&c, &id, OPENS_WITHIN, err)) die("%s", err);
    if (c->table->split(c, &part, 0, 0, err)) die("%s", err);
    if (c->table->barrier(part, err)) die("%s", err);
    printf("survived\n");
    fflush(stdout);
    succeed = -1;
    part->table->close(part);
    c->table->close(c);
    return 0;
}

static int run_mode(const char* mode) {
    if (strncmp(mode, "mode-memory-", 12) == 0) return open_without_memory(atoi(mode + 12));
    Comm* c = ranks_open(25);
    float x = 1;
    if (!c) return 1;
    rank = c->rank, size = c->size;
    c->table->all_reduce(c, &x, 1, DT_F32, NULL);
    CHECK(x == (float)size);
    if (strcmp(mode, "mode-finish") == 0) {
        c->table->close(c);
        int finalized;
        MPI_Finalized(&finalized);
        CHECK(finalized);
        if (!test_failures_in_claim) printf("survived\n");
        return test_failures_in_claim > 0;
    }
    if (rank == size - 1) end_suddenly(c, mode);
    return survive(c, mode);
}

static char said[1 << 16];  // by all ranks of the last mode

// Starts this program on some ranks, without what tells it that it is a rank itself, by way of the command `through`.
// Returns how many survived.
static int survivors(const char* mode, int ranks, const char* through, int* status) {
    char command[1200], line[1000];
    size_t length = 0;
    int n = 0;
    said[0] = 0;
    snprintf(command, sizeof command,
             "env -i PATH=\"$PATH\" HOME=\"$HOME\" LD_LIBRARY_PATH=\"$LD_LIBRARY_PATH\" ASAN_OPTIONS=\"$ASAN_OPTIONS\" "
             "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout -k 5 50 "
             "mpirun --oversubscribe --bind-to none --enable-recovery -n %d %s %s %s 2>&1",
             ranks, through, program, mode);
    FILE* out = popen(command, "r");
    while (out && fgets(line, sizeof line, out)) {
        n += strcmp(line, "survived\n") == 0;
        if (length + strlen(line) < sizeof said)
            length += (size_t)snprintf(said + length, sizeof said - length, "%s", line);
    }
    *status = out ? pclose(out) : -1;
    return n;
}

static void check_survivors(const char* mode, int ranks, const char* through) {
    int status, n = survivors(mode, ranks, through, &status);
    if (n != ranks - 1) printf("    %s:\n%s", mode, said);
    CHECK(n == ranks - 1);
}

static void the_dead_are_named_to_those_who_wait(void) {
    static const char* const modes[] = {
        "mode-killed-sum",     "mode-killed-message",         "mode-killed-gather-overlap",
        "mode-exit-7-message", "mode-exit-0-message-overlap", "mode-exit-7-sum"};
    for (int i = 0; i < COUNT(modes); i++) {
        check_survivors(modes[i], i % 2 ? 2 : 4, "");
    }
}

// The parent of each rank here is a `sleep`, which does not ask how its child ended.
static void the_dead_that_nobody_buries_are_named_too(void) {
    check_survivors("mode-killed-sum", 3, "sh -c '\"$0\" \"$1\" & exec sleep 10'");
}

static void mpi_is_finalized_where_it_was_initialized(void) {
    int status = -1;
    CHECK(survivors("mode-finish", 3, "", &status) == 3);
    CHECK(status == 0);
}

// How many of the ranks left with a line of their own.
static int ranks_with_a_line(int ranks) {
    char name[32];
    int n = 0;
    for (int r = 0; r < ranks; r++) {
        snprintf(name, sizeof name, "train: rank %d", r);
        n += strstr(said, name) != NULL;
    }
    return n;
}

// mpirun does not end the others here: each has to leave by itself. With one allocation after another that fails, until
// none does.
static void a_rank_without_memory_while_mpi_opens_ends_all_within_the_timeout(void) {
    enum { MOST = 100, RANKS = 3 };
    char mode[32];
    int n = 0, status, survived = 0;
    for (; n < MOST && survived == 0 && !test_failures_in_claim; n++) {
        double start = now_seconds();
        snprintf(mode, sizeof mode, "mode-memory-%d", n);
        survived = survivors(mode, RANKS, "", &status);
        int lines = ranks_with_a_line(RANKS), named = strstr(said, "no memory for") != NULL;
        CHECK(survived == RANKS || (survived == 0 && lines == RANKS && named));
        CHECK(now_seconds() - start < OPENS_WITHIN + SOON);
        if (test_failures_in_claim) printf("    %s: %g s, %s", mode, now_seconds() - start, said);
    }
    CHECK(survived == RANKS && n > 5);
}

// ---- running

int main(int n_arguments, char** arguments) {
    if (n_arguments > 1 && strncmp(arguments[1], "mode-", 5) == 0) return run_mode(arguments[1]);
    program = arguments[0];
    ranks_start(&n_arguments, &arguments);
    if (size > 1) {
        RUN_TOGETHER(a_rank_that_stays_away_is_not_waited_for);
        RUN_TOGETHER(lengths_that_differ_are_told);
    } else {
        RUN_TOGETHER(the_dead_are_named_to_those_who_wait);
        RUN_TOGETHER(the_dead_that_nobody_buries_are_named_too);
        RUN_TOGETHER(mpi_is_finalized_where_it_was_initialized);
        RUN_TOGETHER(a_rank_without_memory_while_mpi_opens_ends_all_within_the_timeout);
    }
    return ranks_done();
}
