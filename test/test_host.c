// test_host.c - what a process may take of its machine: fake /proc and /sys of machines with control groups of both
// versions, and the real limits of this process.
#define _GNU_SOURCE
#include "kernels/host.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <sys/resource.h>

#include "test/program.h"

enum { MIB = 1 << 20 };
static char root[600];

// A file of the fake machine, with its directories.
static void put(const char* path, const char* text) {
    char whole[1200];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    for (char* slash = whole + strlen(work) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(whole, 0777);
        *slash = '/';
    }
    write_file(whole, text, strlen(text));
}

// A new machine with 1000 MiB of free memory and no limits, whose process is in the group of this line.
static void machine(const char* group) {
    static int number;
    snprintf(root, sizeof root, "%s/machine%d", work, number++);
    put("/proc/meminfo", "MemTotal:       2048000 kB\nMemFree:         512000 kB\nMemAvailable:   1024000 kB\n");
    put("/proc/self/cgroup", group);
}

static int found(double mib, const char* whose) {
    HostMemory memory = host_memory(root, 1);
    int good = memory.bytes == (size_t)(mib * MIB) && strstr(memory.whose, whose);
    if (!good) printf("    found %.3f MiB, %s\n", (double)memory.bytes / MIB, memory.whose);
    return good;
}

// ---- memory

#define M50 "52428800\n"
#define M100 "104857600\n"
#define M200 "209715200\n"
#define NO_LIMIT "9223372036854771712\n"

// Machines that grow file by file, below /sys/fs/cgroup, and what is left behind each. Where a claim or a group begins
// there is a new machine.
static const struct Left {
    const char *claim, *group;
    double mib;  // 1000: no container limits it
    const char *file, *text;
} left[] = {
    {"without_groups_memory_is_what_the_machine_has_free", "", 1000, "", NULL},
    {NULL, "0::/\n", 1000, "", NULL},
    {NULL, "0::/user.slice/session\n", 1000, "/user.slice/memory.max", "max\n"},
    {NULL, NULL, 1000, "/user.slice/memory.high", "max\n"},
    {NULL, NULL, 1000, "/user.slice/memory.current", "734003200\n"},
    {"version_2_limits_count_from_the_group_up_to_the_top", "0::/a/b/c\n", 900, "/a/b/c/memory.max", "943718400\n"},
    {NULL, NULL, 100, "/a/memory.max", M100},
    {NULL, NULL, 100, "/a/b/memory.max", M200},
    {NULL, NULL, 100, "/a/b/x/memory.max", "1048576\n"},  // beside it
    {NULL, NULL, 50, "/memory.max", M50},
    {"what_a_group_uses_is_taken_off_but_not_its_file_cache", "0::/a\n", 200, "/a/memory.max", M200},
    {NULL, NULL, 100, "/a/memory.current", M100},
    {NULL, NULL, 150, "/a/memory.stat", "anon 10\nfile 62914560\ninactive_file 52428800\nactive_file 10485760\n"},
    {NULL, NULL, 200, "/a/memory.stat", "inactive_file 999999999999\n"},  // counted at another moment
    {NULL, NULL, 100, "/a/memory.stat", ""},
    {NULL, NULL, 0, "/a/memory.current", "304857600\n"},
    {"memory_high_counts_like_memory_max", "0::/a\n", 1000, "/a/memory.max", "max\n"},
    {NULL, NULL, 100, "/a/memory.high", M100},
    {NULL, NULL, 50, "/a/memory.max", M50},
    {"version_1_limits_count_and_huge_ones_do_not",
     "12:cpu,cpuacct:/job\n7:memory:/job/step\n3:memoryless:/x\n1:name=systemd:/job\n", 1000,
     "/memory/memory.limit_in_bytes", NO_LIMIT},
    {NULL, NULL, 1000, "/memory/memory.usage_in_bytes", "8589934592\n"},
    {NULL, NULL, 1000, "/memory/job/step/memory.limit_in_bytes", NO_LIMIT},
    {NULL, NULL, 200, "/memory/job/memory.limit_in_bytes", M200},
    {NULL, NULL, 100, "/memory/job/memory.usage_in_bytes", M100},
    {NULL, NULL, 150, "/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 52428800\n"},
    {NULL, NULL, 150, "/memoryless/x/memory.limit_in_bytes", "1048576\n"},  // another controller's
    {"both_versions_on_one_machine_count", "4:memory:/old\n0::/new\n", 200, "/memory/old/memory.limit_in_bytes", M200},
    {NULL, NULL, 100, "/unified/new/memory.max", M100},
    // mounted as the top; the path is that of the outside, or leads out of the namespace
    {"in_a_container_the_top_is_its_own_group", "0::/\n", 100, "/memory.max", M100},
    {NULL, "0::/docker/0123456789abcdef\n", 100, "/memory.max", M100},
    {NULL, "0::/../../system.slice/docker.scope\n", 100, "/memory.max", M100},
    {NULL, "0::/a/../b\n", 100, "/memory.max", M100},
    {NULL, "5:memory:/\n", 100, "/memory/memory.limit_in_bytes", M100},
    {NULL, "5:memory:/docker/0123456789abcdef\n", 100, "/memory/memory.limit_in_bytes", M100},
    {NULL, "5:memory:/../../x/docker.scope\n", 100, "/memory/memory.limit_in_bytes", M100},
    {NULL, "5:memory:/a/../b\n", 100, "/memory/memory.limit_in_bytes", M100},
};

static void check_left(const struct Left* row) {
    do {
        if (row->group) machine(row->group);
        if (row->text) put(filled("/sys/fs/cgroup%s", row->file), row->text);
        CHECK(found(row->mib, row->mib == 1000 ? "machine" : "container"));
    } while (++row < left + COUNT(left) && !row->claim);
}

CLAIM(what_is_malformed_is_no_limit) {
    const char* lines[] = {"",         "\n",         ":",         "0:",     "0::",
                           "0::\n",    "4:memory\n", "4:memory:", "::::\n", "0::no/root",
                           "junk\n\n", "0::/",       "0::///\n",  ":,,,:/", "4:,memory,:/\n"};
    const char* values[] = {"", "\n", "max", "-1\n", "many\n", " \n", "99999999999999999999999999\n", "x\377\n"};
    for (int i = 0; i < COUNT(lines); i++)
        for (int v = 0; v < COUNT(values); v++) {
            machine(lines[i]);
            put("/sys/fs/cgroup/memory/memory.limit_in_bytes", values[v]);
            put("/sys/fs/cgroup/memory.max", values[v]);
            put("/sys/fs/cgroup/memory.current", values[v]);
            CHECK(found(1000, "machine"));
            CHECK(host_cores(root, 0) >= 1);
        }
    static char line[3 * PATH_MAX] = "0::/";
    memset(line + 4, 'x', sizeof line - 6);  // no such path can be
    machine(line);
    CHECK(found(1000, "machine"));
}

CLAIM(ranks_share_a_machine_and_a_container) {
    machine("0::/a\n");
    CHECK(host_memory(root, 4).bytes == 250 * (size_t)MIB);
    put("/sys/fs/cgroup/a/memory.max", "209715200\n");
    CHECK(host_memory(root, 4).bytes == 50 * (size_t)MIB);
}

// In a process of its own. Returns what it found, in MiB more than it had left to itself.
static double left_under(int resource, const char* whose, int processes) {
    int ends[2];
    double mib = NAN;
    if (pipe(ends)) return NAN;
    pid_t pid = fork();
    if (pid == 0) {
        long pages[6] = {0};
        FILE* file = fopen("/proc/self/statm", "r");
        for (int i = 0; file && i < 6; i++)
            if (fscanf(file, "%ld", &pages[i]) != 1) _exit(1);
        rlim_t most = (rlim_t)pages[resource == RLIMIT_AS ? 0 : 5] * (rlim_t)sysconf(_SC_PAGESIZE) + 64 * MIB;
        if (setrlimit(resource, &(struct rlimit){most, most})) _exit(1);
        HostMemory memory = host_memory(root, processes);
        mib = strstr(memory.whose, whose) ? (double)memory.bytes / MIB : -1;
        _exit(write(ends[1], &mib, sizeof mib) != sizeof mib);
    }
    close(ends[1]);
    if (read(ends[0], &mib, sizeof mib) != sizeof mib) mib = NAN;
    close(ends[0]);
    waitpid(pid, NULL, 0);
    return mib;
}

CLAIM(limits_of_the_process_count_for_it_alone) {
    machine("");
    CHECK_CLOSE(left_under(RLIMIT_AS, "ulimit -v", 1), 64, 2);
    CHECK_CLOSE(left_under(RLIMIT_AS, "ulimit -v", 8), 64, 2);
    CHECK_CLOSE(left_under(RLIMIT_DATA, "ulimit -d", 8), 64, 2);
}

// ---- cores

static int affinity(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 0 : CPU_COUNT(&set);
}

// The quota of a group in the forms of both versions.
static void put_quota(const char* group, const char* quota, const char* period) {
    char path[200];
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group),
        put(path, filled("%s %s\n", atol(quota) < 0 ? "max" : quota, period));
    snprintf(path, sizeof path, "/sys/fs/cgroup/cpu,cpuacct%s/cpu.cfs_quota_us", group), put(path, quota);
    snprintf(path, sizeof path, "/sys/fs/cgroup/cpu,cpuacct%s/cpu.cfs_period_us", group), put(path, period);
}

CLAIM(quotas_are_rounded_up_to_cores_and_the_least_on_the_way_up_counts) {
    static const struct {
        const char *quota, *period, *above;  // of a group, and of the one it lies in, of 100000 us
        int cores;                           // 0: all
    } rows[] = {{"-1", "100000", "-1", 0},       {"100000", "0", "-1", 0},       {"1000", "100000", "-1", 1},
                {"100000", "100000", "-1", 1},   {"100001", "100000", "-1", 2},  {"200000", "100000", "-1", 2},
                {"50000", "50000", "-1", 1},     {"5000000", "100000", "-1", 0}, {"-1", "100000", "100001", 2},
                {"900000", "100000", "80000", 1}};
    for (int i = 0; i < COUNT(rows); i++)
        for (int version = 1; version <= 2; version++) {
            int all = affinity(), wanted = rows[i].cores ? MIN(rows[i].cores, all) : all;
            machine(version == 2 ? "0::/a/b\n" : "3:cpuset:/\n2:cpu,cpuacct:/a/b\n");
            put_quota("/a/b", rows[i].quota, rows[i].period);
            put_quota("/a", rows[i].above, "100000");
            CHECK(host_cores(root, 0) == wanted);
        }
}

CLAIM(a_process_bound_to_one_core_has_one) {
    cpu_set_t before, one;
    machine("");
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    CPU_ZERO(&one);
    for (int i = 0; CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    CHECK(host_cores(root, 0) == 1);
    CHECK(sched_setaffinity(0, sizeof before, &before) == 0);
}

CLAIM(another_process_has_groups_of_its_own) {
    machine("0::/a\n");
    put(filled("/proc/%ld/cgroup", (long)getppid()), "0::/b\n");
    put("/sys/fs/cgroup/b/cpu.max", "50000 100000\n");
    CHECK(host_cores(root, 0) == affinity());
    CHECK(host_cores(root, getppid()) == 1);
}

// ---- threads and descriptors

CLAIM(threads_and_descriptors_are_counted_and_given_back) {
    HostThreads held;
    struct rlimit limit;
    int end = 100, taken = 0;
    for (int i = 0; i < 3; i++) {
        host_take_threads(&held, 20);
        CHECK(held.n == 20);
        host_give_back_threads(&held);
    }
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = (rlim_t)end;
    for (int fd = 0; fd < end; fd++) taken += fcntl(fd, F_GETFD) >= 0;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (int i = 0; i < 3; i++) CHECK(host_descriptors(5) == 5 && host_descriptors(500) == end - taken);
    limit.rlim_cur = before;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

PROGRAM_TEST {
    for (int i = 0; i < COUNT(left); i++)
        if (left[i].claim) RUN_AS(left[i].claim, check_left(&left[i]));
}
