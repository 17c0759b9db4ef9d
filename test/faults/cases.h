// cases.h - for campaigns of faults: a run in which some calls fail (test/faults/inject.c), ended by force when it
// takes too long, and what it leaves on stdout, on stderr and in the injector's log. A complaint prints the command
// that repeats the case.
//
// FAULT_CASES=N   of each list of cases only N, spread over it; without it all
#pragma once
#include <inttypes.h>
#include <signal.h>

#include "plan/base.h"
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
static const char* place;       // the directory in which the next runs are launched
static char log_text[1 << 16];  // the injector's
static char told[8192];         // how to repeat the last run that had a fault

__attribute__((format(printf, 1, 2))) static inline void complain(const char* format, ...) {
    va_list args;
    if (test_failures_in_claim++ >= 20) return;
    va_start(args, format);
    printf("    ");
    vprintf(format, args);
    va_end(args);
    printf("\n%s      status %d; stderr: %.1500s\n", told, status, errors);
}

// ---- a run

static inline void set_environment(void) {
    char path[600], number[32];
    snprintf(path, sizeof path, "%s/injected", work);
    snprintf(number, sizeof number, "%d", fault_rank);
    setenv("FAULT_LOG", path, 1);
    if (fault[0]) setenv("FAULT", fault, 1);
    if (fault[0] && fault_rank >= 0) setenv("FAULT_RANK", number, 1);
}

static inline FILE* open_stream(const char* name, int number) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s.%d", work, name, number);
    FILE* file = fopen(path, "w");
    if (!file) printf("    cannot write %s\n", path), exit(1);
    return file;
}

// Keeps the command of the run at hand, and which call failed in it, if that is known yet.
static inline void tell_how_to_repeat(void) {
    char rank[32] = "";
    if (fault_rank >= 0) snprintf(rank, sizeof rank, " FAULT_RANK=%d", fault_rank);
    const char* hit = strstr(log_text, " hit ");
    snprintf(told, sizeof told, "      export W=%s; %s\n      FAULT=%s%s FAULT_LIMIT=1e11 %s\n     %.*s\n", work,
             setting, fault, rank, command, hit ? (int)strcspn(hit, "\n") : 0, hit ? hit : "");
}

// The program with these arguments, in which the shell sees $W, in the background. Its stdout and stderr go to the
// files out.NUMBER and err.NUMBER.
static inline pid_t launch(int number, const char* arguments) {
    char line[4200];
    FILE *out = open_stream("out", number), *err = open_stream("err", number);
    snprintf(command, sizeof command, "%s %s", program, arguments);
    snprintf(line, sizeof line, "exec %s", command);
    log_text[0] = 0;
    if (fault[0]) tell_how_to_repeat();
    fflush(stdout);
    pid_t pid = fork();
    if (pid) fclose(out), fclose(err);
    if (pid) return pid;
    setpgid(0, 0);
    set_environment();
    if (place && chdir(place)) _exit(127);
    dup2(fileno(out), 1);
    dup2(fileno(err), 2);
    fclose(out);
    fclose(err);
    execl("/bin/sh", "sh", "-c", line, (char*)NULL);
    _exit(127);
}

static inline void read_outcome(int number) {
    char path[600];
    snprintf(path, sizeof path, "%s/out.%d", work, number);
    read_text(path, output, sizeof output);
    snprintf(path, sizeof path, "%s/err.%d", work, number);
    read_text(path, errors, sizeof errors);
    snprintf(path, sizeof path, "%s/injected", work);
    read_text(path, log_text, sizeof log_text);
}

static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Waits for a launched run, ends what takes too long, reads what it left.
static inline void await(pid_t pid, int number) {
    double until = now() + seconds_allowed;
    int how = 0, polls = 0;
    hung = 0;
    while (waitpid(pid, &how, WNOHANG) == 0) {
        if (now() > until + 5) kill(-pid, SIGKILL);
        else if (now() > until && !hung) hung = 1, kill(pid, SIGTERM);  // mpirun ends its ranks
        struct timespec pause = {0, polls++ < 200 ? 500000 : 20000000};
        nanosleep(&pause, NULL);
    }
    status = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    read_outcome(number);
}

// Until a launched run stops (1) or ends (0); -1 when it does neither in time.
static inline int await_stop(pid_t pid) {
    double until = now() + seconds_allowed;
    siginfo_t info = {0};
    while (now() < until) {
        if (waitid(P_PID, (id_t)pid, &info, WSTOPPED | WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid)
            return info.si_code == CLD_STOPPED;
        sleep_ms(1);
    }
    return -1;
}

__attribute__((format(printf, 2, 3))) static inline int run(const char* with_fault, const char* format, ...) {
    char arguments[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(arguments, sizeof arguments, format, args);
    va_end(args);
    snprintf(fault, sizeof fault, "%s", with_fault);
    char path[600];
    snprintf(path, sizeof path, "%s/injected", work);
    remove(path);
    await(launch(0, arguments), 0);
    if (fault[0]) tell_how_to_repeat();
    return status;
}

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
static inline long case_at(long i, long n) {
    long cases = cases_of(n);
    return 1 + (2 * i + 1) * n / (2 * cases);
}

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
        char text[2000], name[64];
        size_t n = 0;
        for (int w = 0; w < 60; w++)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s ", words[(i * 31 + w * w) % 7 % 4]);
        snprintf(name, sizeof name, "corpus/%d.txt", i);
        write_text(name, text, n);
    }
    write_text("lines.jsonl", line, sizeof line - 1);
    write_text("held.txt", line, sizeof line - 1);
}

static inline void campaign_begin(int argc, char** argv) {
    if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 1);  // syncs take no time there
    program_begin(argc, argv);
    setenv("OMP_WAIT_POLICY", "passive", 1);
    setenv("FAULT_LIMIT", "1e11", 1);
    char path[600];
    snprintf(path, sizeof path, "%s/elsewhere", work);
    setenv("TMPDIR", path, 1);
    setenv("XDG_CACHE_HOME", work, 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0:exitcode=98", 1);  // a run that ends with an error need not tidy up
    setenv("UBSAN_OPTIONS", "exitcode=98", 1);
    write_corpus();
}
