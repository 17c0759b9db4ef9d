// cases.h - for campaigns of faults: a run in which some calls fail (test/faults/inject.c), ended by force when it
// takes too long, and what it leaves on stdout, on stderr and in the injector's log. A complaint prints the command
// that repeats the case.
//
// FAULT_CASES=N   of each list of cases only N, spread over it; without it all
#pragma once
#include <inttypes.h>

#include "test/program.h"

#define OPTIONS                                                                                                 \
    "--data $W/corpus --layers 1 --width 16 --heads 2 --context 32 --batch-tokens 64 --threads 1 --dtype fp32 " \
    "--eval-every 0 --sample-every 0 --keep 2 --timeout 5 --warmup 100 "  // no schedule of a run that goes on longer

static char command[4096], fault[128];  // of the last run
static const char* setting = "";        // the command that prepares it
static int fault_rank = -1;             // FAULT_RANK of the runs to come
static int status;                      // exit status, or 128 + signal
static int hung;                        // it was ended because it took longer than seconds_allowed
static double seconds_allowed = 20;
static const char* place = ".";  // the directory in which the next runs are launched
static char log_text[1 << 16];   // the injector's
static char told[8192];          // how to repeat the last run that had a fault

#define complain(...) complain_of(filled(__VA_ARGS__))
static inline void complain_of(const char* what) {
    if (test_failures_in_claim++ < 20)
        printf("    %s\n%s      status %d; stderr: %.1500s\n", what, told, status, errors);
}

// ---- a run

// Keeps the command of the run at hand, and which call failed in it, if that is known yet.
static inline void tell_how_to_repeat(void) {
    const char* hit = strstr(log_text, " hit ");
    snprintf(told, sizeof told, "      export W=%s; %s\n      FAULT_LIMIT=1e11 %s\n     %.*s\n", work, setting, command,
             hit ? (int)strcspn(hit, "\n") : 0, hit ? hit : "");
}

// The program with these arguments and `fault`, in the background. Its stdout and stderr go to the files out.NUMBER and
// err.NUMBER.
static inline pid_t launch(int number, const char* arguments) {
    char line[8192], rank[32] = "";
    if (fault_rank >= 0) snprintf(rank, sizeof rank, "FAULT_RANK=%d ", fault_rank);
    snprintf(command, sizeof command, "%s%s %s%s %s", fault[0] ? "FAULT=" : "", fault, fault[0] ? rank : "", program,
             arguments);
    snprintf(line, sizeof line, "cd %s && exec env FAULT_LOG=$W/injected %s > $W/out.%d 2> $W/err.%d", place, command,
             number, number);
    log_text[0] = 0;
    if (fault[0]) tell_how_to_repeat();
    fflush(stdout);
    pid_t pid = fork();
    if (pid) return pid;
    setpgid(0, 0);
    execl("/bin/sh", "sh", "-c", line, (char*)NULL);
    _exit(127);
}

// Waits for a launched run, ends what takes too long, reads what it left.
static inline void await(pid_t pid, int number) {
    double until = now_seconds() + seconds_allowed;
    char out[32], err[32];
    int how = 0, polls = 0;
    hung = 0;
    while (waitpid(pid, &how, WNOHANG) == 0) {
        if (now_seconds() > until + 5) kill(-pid, SIGKILL);
        else if (now_seconds() > until && !hung) hung = 1, kill(pid, SIGTERM);  // mpirun ends its ranks
        usleep(polls++ < 200 ? 500 : 20000);
    }
    status = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    snprintf(out, sizeof out, "out.%d", number), snprintf(err, sizeof err, "err.%d", number);
    read_text(path_of(out), output, sizeof output);
    read_text(path_of(err), errors, sizeof errors);
    read_text(path_of("injected"), log_text, sizeof log_text);
}

// Until a launched run stops (1) or ends (0); -1 when it does neither in time.
static inline int await_stop(pid_t pid) {
    double until = now_seconds() + seconds_allowed;
    siginfo_t info = {0};
    for (; now_seconds() < until; sleep_ms(1))
        if (waitid(P_PID, (id_t)pid, &info, WSTOPPED | WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid)
            return info.si_code == CLD_STOPPED;
    return -1;
}

#define run(with, ...) run_with(with, filled(__VA_ARGS__))
static inline int run_with(const char* with, const char* arguments) {
    snprintf(fault, sizeof fault, "%s", with);
    remove(path_of("injected"));
    await(launch(0, arguments), 0);
    if (fault[0]) tell_how_to_repeat();
    return status;
}

static inline void prepare(const char* by) { sh("%s", setting = by); }

// ---- what it left

// The step of the last checkpoint that stdout calls saved, and its run's directory; -1 without one.
static inline int64_t reported_step(char dir[600]) {
    int64_t step = -1;
    char ending;
    for (const char* at = output; (at = strstr(at, "\nsaved /")); at++)
        if (sscanf(at, " saved %599[^\n ]%c", dir, &ending) == 2 && strstr(dir, "/step-")) {
            step = strtoll(strstr(dir, "/step-") + 6, NULL, 10);
            *strstr(dir, "/step-") = 0;
        }
    return step;
}

// The step from which --resume says it goes on; -1 when it says nothing of it.
static inline int64_t resumed_step(void) {
    const char *line = strstr(output, "\nrun "), *from = line ? strstr(line, "/step-") : NULL;
    return from && from < line + 1 + strcspn(line + 1, "\n") ? strtoll(from + 6, NULL, 10) : -1;
}

// Whether --resume was refused because nothing is there, and nothing needs to be.
static inline int nothing_was_saved(int64_t reported) {
    return status == 1 && reported < 0 &&
           (strstr(errors, "no complete checkpoint") || strstr(errors, "no such directory"));
}

// A run without faults goes on from the last checkpoint that was called saved in dir, or a newer one; where there is
// none, --resume says so and a new run, of `anew`, starts in the same place. The step, -1: anew; or -2: a complaint.
static inline int64_t go_on(const char* what, int64_t reported, const char* dir, const char* more, const char* anew) {
    run("", "--resume --threads 1 --out %s %s", dir, more);
    int64_t from = resumed_step();
    int begins_anew = nothing_was_saved(reported);
    if (begins_anew) run("", "%s", anew), from = -1;
    if (status) complain("%s: what it left cannot be continued, which ends with", what);
    else if (!begins_anew && from < reported)
        complain("%s: step %" PRId64 " was saved, but the next run goes on from %" PRId64, what, reported, from);
    else return from;
    return -2;
}

// Calls of a kind by one rank (-1: there are no ranks), by the log of the injector.
static inline long count_of(const char* log, const char* kind, int rank) {
    char text[64];
    snprintf(text, sizeof text, "%d count %s ", rank, kind);
    const char* at = strstr(log, text);
    return at ? strtol(at + strlen(text), NULL, 10) : 0;
}

// ---- choice of cases

static inline long cases_of(long n) {
    const char* most = getenv("FAULT_CASES");
    return most && atol(most) < n ? atol(most) : n;
}

// The i-th case of those chosen of 1 .. n.
static inline long case_at(long i, long n) { return 1 + (2 * i + 1) * n / (2 * cases_of(n)); }

// The chosen calls `at` of n, each as the fault KIND:AT:WHAT, which is in with_fault.
static char with_fault[128];
static inline int next_case(long i, long n, const char* kind, const char* what) {
    if (i >= cases_of(n)) return 0;
    snprintf(with_fault, sizeof with_fault, "%s:%ld:%s", kind, case_at(i, n), what);
    return 1;
}
#define FOR_EACH_CASE(n, kind, what) for (long i_ = 0; next_case(i_, n, kind, what); i_++)

// The directory stays after a failure, for the commands that were printed.
static inline int campaign_end(void) {
    if (test_failed) printf("    kept for these commands: %s\n", work);
    return test_failed ? test_done() : program_end();
}

// Eight documents, one that is like none of them, and some lines of JSON.
static inline void write_corpus(void) {
    static const char* const words[] = {"alpha", "beta", "gamma", "delta"};
    static const char line[] = "{\"text\": \"alpha beta gamma delta\"}\n{\"text\": \"epsilon \\u00e9\"}\n";
    sh("mkdir $W/corpus $W/elsewhere");
    for (int i = 0; i < 8; i++) {
        char text[2000], *at = text, name[64];
        for (int w = 0; w < 60; w++) at += sprintf(at, "%s ", words[(i * 31 + w * w) % 7 % 4]);
        snprintf(name, sizeof name, "corpus/%d.txt", i);
        put_text(name, text);
    }
    put_text("lines.jsonl", line);
    put_text("held.txt", line);
}

static inline void campaign_begin(int argc, char** argv) {
    static char path[PATH_MAX];
    if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 1);  // syncs take no time there
    program_begin(argc, argv);
    if (realpath(program, path)) program = path;  // some runs begin in a directory of their own
    setenv("OMP_WAIT_POLICY", "passive", 1);
    setenv("FAULT_LIMIT", "1e11", 1);
    setenv("TMPDIR", path_of("elsewhere"), 1);
    setenv("XDG_CACHE_HOME", work, 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0:exitcode=98", 1);  // a run that ends with an error need not tidy up
    setenv("UBSAN_OPTIONS", "exitcode=98", 1);
    write_corpus();
}
