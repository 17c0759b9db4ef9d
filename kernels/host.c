// host.c - limits of the machine, the container and the process, signals, deadlines; see host.h.
//
// A control group limits all processes in it and below it, so what is left is the least of all groups from that of the
// process up to the top. Formats: proc_pid_cgroup(5), and the kernel's cgroup-v2.rst, cgroup-v1/memory.rst and
// scheduler/sched-bwc.rst. In a container /proc/self/cgroup may tell a path that only the outside has: then all that
// exists of it is the top, which is the container's own group.
#define _GNU_SOURCE  // CPU_COUNT
#include "kernels/host.h"

#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include "plan/base/base.h"

// ---- small files of numbers

static const uint64_t UNLIMITED = UINT64_MAX;

// Returns the number that follows `key` at the beginning of a line of DIR/NAME. UNLIMITED: there is none, as no such
// file or line, "max", -1, or anything else that is no number.
static uint64_t number_in(const char* dir, const char* name, const char* key) {
    char path[PATH_MAX], line[256];
    uint64_t number = UNLIMITED;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path) return number;
    FILE* file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        const char* value = line + strlen(key);
        while (*value == ' ') value++;
        if (isdigit((unsigned char)*value)) number = strtoull(value, NULL, 10);
        break;
    }
    if (file) fclose(file);
    return number;
}

// Returns a number that is counted rather than limited; 0: it is not known.
static uint64_t count_in(const char* dir, const char* name, const char* key) {
    uint64_t number = number_in(dir, name, key);
    return number == UNLIMITED ? 0 : number;
}

// ---- control groups

// Lowers *least to what one group leaves. version: 1 or 2.
typedef void (*Look)(const char* group, int version, uint64_t* least);

static int lists(const char* controllers, const char* wanted) {
    size_t n = strlen(wanted);
    for (const char* at = controllers; at; at = strchr(at, ','), at = at ? at + 1 : NULL)
        if (!strncmp(at, wanted, n) && (at[n] == 0 || at[n] == ',')) return 1;
    return 0;
}

// Looks at the group of this path below a mount, and at all that it lies in.
static void look_up_from(const char* root, const char* mount, const char* path, int version, Look look,
                         uint64_t* least) {
    char group[PATH_MAX];
    int top = snprintf(group, sizeof group, "%s/sys/fs/cgroup%s", root, mount), n = top;
    // ".." is how a group outside of our namespace is told.
    if (top < (int)sizeof group && !strstr(path, ".."))
        n = top + snprintf(group + top, sizeof group - (size_t)top, "%s", path);
    if (n >= (int)sizeof group) return;
    while (n >= top) {
        group[n] = 0;
        look(group, version, least);
        do n--;
        while (n > top && group[n] != '/');
    }
}

// Returns the least over the groups of a process. Lines of /proc/PID/cgroup are NUMBER:CONTROLLERS:PATH; version 2 is
// the one without controllers.
static uint64_t least_of_groups(const char* root, pid_t process, const char* controller, Look look) {
    char path[PATH_MAX], name[32] = "self", *line = NULL;
    uint64_t least = UNLIMITED;
    size_t room = 0;
    if (process) snprintf(name, sizeof name, "%ld", (long)process);
    if (snprintf(path, sizeof path, "%s/proc/%s/cgroup", root, name) >= (int)sizeof path) return least;
    FILE* file = fopen(path, "r");
    while (file && getline(&line, &room, file) > 0) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *controllers++ = *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        if (controllers[0] == 0) {
            look_up_from(root, "", group, 2, look, &least);
            look_up_from(root, "/unified", group, 2, look, &least);
        } else if (lists(controllers, controller)) {
            *--controllers = '/';
            look_up_from(root, controllers, group, 1, look, &least);
        }
    }
    if (file) fclose(file);
    free(line);
    return least;
}

// Above memory.high a group is slowed down until it is of no use, so it counts like memory.max. The cache of files that
// were read is in `usage`, and goes when memory is wanted.
static void look_at_memory(const char* group, int version, uint64_t* least) {
    uint64_t limit = number_in(group, version == 2 ? "memory.max" : "memory.limit_in_bytes", "");
    if (version == 2) limit = MIN(limit, number_in(group, "memory.high", ""));
    if (limit == UNLIMITED) return;
    uint64_t used = count_in(group, version == 2 ? "memory.current" : "memory.usage_in_bytes", "");
    uint64_t cache = count_in(group, "memory.stat", version == 2 ? "inactive_file " : "total_inactive_file ");
    used -= MIN(used, cache);
    *least = MIN(*least, limit - MIN(limit, used));
}

// The group may compute for `quota` us of all cores together in every `period` us of time.
static void look_at_quota(const char* group, int version, uint64_t* least) {
    uint64_t quota = number_in(group, version == 2 ? "cpu.max" : "cpu.cfs_quota_us", "");
    uint64_t period = version == 2 ? UNLIMITED : number_in(group, "cpu.cfs_period_us", "");
    char text[32];
    if (quota == UNLIMITED) return;
    if (version == 2) {  // both in one line
        snprintf(text, sizeof text, "%llu ", (unsigned long long)quota);
        period = number_in(group, "cpu.max", text);
    }
    if (period == UNLIMITED || period == 0) return;
    *least = MIN(*least, quota / period + (quota % period > 0));
}

// ---- memory

// Linux counts memory that it would free on demand as available; elsewhere half of the machine's must do.
static uint64_t free_memory(const char* root) {
    char proc[PATH_MAX];
    if (snprintf(proc, sizeof proc, "%s/proc", root) >= (int)sizeof proc) return 0;
    uint64_t kib = number_in(proc, "meminfo", "MemAvailable:");
    if (kib != UNLIMITED) return kib << 10;
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 2;
}

// Returns the bytes of this process: field 0 all addresses, 1 those in memory, 5 those for data. 0: not known.
static uint64_t own_bytes(int field) {
    long long pages = 0;
    FILE* file = fopen("/proc/self/statm", "r");
    for (int i = 0; file && i <= field; i++)
        if (fscanf(file, "%lld", &pages) != 1) pages = 0;
    if (file) fclose(file);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

size_t host_resident(void) { return (size_t)own_bytes(1); }

static void lower(HostMemory* memory, uint64_t left, const char* whose) {
    if (left < memory->bytes) *memory = (HostMemory){(size_t)left, whose};
}

HostMemory host_memory(const char* root, int processes) {
    HostMemory memory = {(size_t)free_memory(root), "free memory of this machine"};
    uint64_t all = own_bytes(0), data = own_bytes(5);
    struct rlimit limit;
    lower(&memory, least_of_groups(root, 0, "memory", look_at_memory), "memory limit of the container");
    memory.bytes /= (size_t)MAX(processes, 1);
    if (!getrlimit(RLIMIT_AS, &limit) && limit.rlim_cur != RLIM_INFINITY)
        lower(&memory, limit.rlim_cur - MIN(limit.rlim_cur, all), "ulimit -v");
    if (!getrlimit(RLIMIT_DATA, &limit) && limit.rlim_cur != RLIM_INFINITY)
        lower(&memory, limit.rlim_cur - MIN(limit.rlim_cur, data), "ulimit -d");
    return memory;
}

// ---- cores, threads, stack, descriptors

int host_cores(const char* root, pid_t process) {
    cpu_set_t set;
    int cores = sched_getaffinity(process, sizeof set, &set) ? (int)sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
    return MAX(1, (int)MIN((uint64_t)cores, least_of_groups(root, process, "cpu", look_at_quota)));
}

static double clock_seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double host_processor_seconds(void) { return clock_seconds(CLOCK_PROCESS_CPUTIME_ID); }
double host_thread_seconds(void) { return clock_seconds(CLOCK_THREAD_CPUTIME_ID); }

HostTurns host_turns(void) {
    static __thread int opened, fd = -1;
    char text[96];
    unsigned long long ran, waited;
    HostTurns turns = {host_thread_seconds(), 0};
    if (!opened) opened = 1, fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    if (sscanf(text, "%llu %llu", &ran, &waited) == 2) turns.waited = 1e-9 * (double)waited;
    return turns;
}

static void* wait_at(void* gate) {
    pthread_mutex_lock((pthread_mutex_t*)gate);
    pthread_mutex_unlock((pthread_mutex_t*)gate);
    return NULL;
}

void host_take_threads(HostThreads* held, int wanted) {
    held->n = 0;
    held->threads = (pthread_t*)malloc((size_t)MAX(wanted, 1) * sizeof *held->threads);
    pthread_mutex_init(&held->gate, NULL);
    pthread_mutex_lock(&held->gate);
    while (held->threads && held->n < wanted && !pthread_create(&held->threads[held->n], NULL, wait_at, &held->gate))
        held->n++;
}

void host_give_back_threads(HostThreads* held) {
    pthread_mutex_unlock(&held->gate);
    for (int i = 0; i < held->n; i++) pthread_join(held->threads[i], NULL);
    pthread_mutex_destroy(&held->gate);
    free(held->threads);
}

int host_begin_thread(pthread_t* thread, void* (*run)(void*), void* argument) {
    enum { STACK_BYTES = 1 << 20 };  // planners have their scratch elsewhere; sanitizers want room
    sigset_t all, before;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes)) return 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed =
        pthread_attr_setstacksize(&attributes, STACK_BYTES) || pthread_create(thread, &attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return !failed;
}

size_t host_stack(void) {
    struct rlimit limit;
    return getrlimit(RLIMIT_STACK, &limit) ? SIZE_MAX : (size_t)limit.rlim_cur;
}

int host_descriptors(int wanted) {
    int n = 0, *descriptors = (int*)malloc((size_t)MAX(wanted, 1) * sizeof *descriptors);
    while (descriptors && n < wanted && (descriptors[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) n++;
    for (int i = 0; i < n; i++) close(descriptors[i]);
    free(descriptors);
    return n;
}

// ---- signals

static const int ends[] = {SIGHUP, SIGINT, SIGTERM, SIGUSR1};
static int was_ignored[COUNT(ends)];

static void look_at_signals(void) {
    struct sigaction now;
    for (int i = 0; i < COUNT(ends); i++) was_ignored[i] = !sigaction(ends[i], NULL, &now) && now.sa_handler == SIG_IGN;
}

// This section runs before the constructors of libraries.
__attribute__((section(".preinit_array"), used)) static void (*const before_libraries)(void) = look_at_signals;

// This is a constructor of the program, so it runs after those of libraries.
__attribute__((constructor)) void host_keep_ignored(void) {
    for (int i = 0; i < COUNT(ends); i++)
        if (was_ignored[i]) signal(ends[i], SIG_IGN);
}

// ---- deadlines

// The line is made beforehand: a signal handler must not.
static char last_line[2 * ERR_BYTES];
static struct sigaction action_before;

static void leave(int number) {
    (void)number;
    ssize_t written = write(STDERR_FILENO, last_line, strlen(last_line));
    _exit(written >= 0 ? 1 : 2);
}

static void set_alarm(double seconds) {
    struct itimerval t = {{0, 0}, {(time_t)seconds, (suseconds_t)(1e6 * (seconds - floor(seconds)))}};
    setitimer(ITIMER_REAL, &t, NULL);
}

void deadline_begin(double seconds, const char* format, ...) {
    struct sigaction action;
    sigset_t alarm_only;
    char call[ERR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(call, sizeof call, format, arguments);
    va_end(arguments);
    snprintf(last_line, sizeof last_line,
             "train: %s: not done after %g s (--timeout): a rank was not started, has ended, or has not come so far; "
             "see the first error among the ranks\n",
             call, seconds);
    memset(&action, 0, sizeof action);
    action.sa_handler = leave;
    sigaction(SIGALRM, &action, &action_before);
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &alarm_only, NULL);
    set_alarm(MAX(seconds, 1e-3));
}

void deadline_end(void) {
    set_alarm(0);
    sigaction(SIGALRM, &action_before, NULL);
}
