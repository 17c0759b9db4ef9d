// test_host.c - what a process may take of its machine: fake /proc and /sys of machines with control groups of both
// versions, and the real limits of this process.
#define _GNU_SOURCE
#include "kernels/host.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <sys/resource.h>

#include "plan/base.h"
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
    FILE* file = fopen(whole, "w");
    CHECK(file != NULL);
    if (file) fputs(text, file), fclose(file);
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

static void without_groups_memory_is_what_the_machine_has_free(void) {
    machine("");
    CHECK(found(1000, "machine"));
    machine("0::/\n");
    CHECK(found(1000, "machine"));
    machine("0::/user.slice/session\n");
    put("/sys/fs/cgroup/user.slice/memory.max", "max\n");
    put("/sys/fs/cgroup/user.slice/memory.high", "max\n");
    put("/sys/fs/cgroup/user.slice/memory.current", "734003200\n");
    CHECK(found(1000, "machine"));
}

static void version_2_limits_count_from_the_group_up_to_the_top(void) {
    machine("0::/a/b/c\n");
    put("/sys/fs/cgroup/a/b/c/memory.max", "943718400\n");
    CHECK(found(900, "container"));
    put("/sys/fs/cgroup/a/memory.max", "104857600\n");
    CHECK(found(100, "container"));
    put("/sys/fs/cgroup/a/b/memory.max", "209715200\n");
    CHECK(found(100, "container"));
    put("/sys/fs/cgroup/a/b/x/memory.max", "1048576\n");  // beside it
    CHECK(found(100, "container"));
    put("/sys/fs/cgroup/memory.max", "52428800\n");
    CHECK(found(50, "container"));
}

static void what_a_group_uses_is_taken_off_but_not_its_file_cache(void) {
    machine("0::/a\n");
    put("/sys/fs/cgroup/a/memory.max", "209715200\n");
    put("/sys/fs/cgroup/a/memory.current", "104857600\n");
    CHECK(found(100, "container"));
    put("/sys/fs/cgroup/a/memory.stat", "anon 10\nfile 62914560\ninactive_file 52428800\nactive_file 10485760\n");
    CHECK(found(150, "container"));
    put("/sys/fs/cgroup/a/memory.stat", "inactive_file 999999999999\n");  // counted at another moment
    CHECK(found(200, "container"));
    put("/sys/fs/cgroup/a/memory.stat", "");
    put("/sys/fs/cgroup/a/memory.current", "304857600\n");
    CHECK(found(0, "container"));
}

static void memory_high_counts_like_memory_max(void) {
    machine("0::/a\n");
    put("/sys/fs/cgroup/a/memory.max", "max\n");
    put("/sys/fs/cgroup/a/memory.high", "104857600\n");
    CHECK(found(100, "container"));
    put("/sys/fs/cgroup/a/memory.max", "52428800\n");
    CHECK(found(50, "container"));
}

static void version_1_limits_count_and_huge_ones_do_not(void) {
    machine("12:cpu,cpuacct:/job\n7:memory:/job/step\n3:memoryless:/x\n1:name=systemd:/job\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "8589934592\n");
    put("/sys/fs/cgroup/memory/job/step/memory.limit_in_bytes", "9223372036854771712\n");
    CHECK(found(1000, "machine"));
    put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "209715200\n");
    put("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "104857600\n");
    put("/sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 52428800\n");
    CHECK(found(150, "container"));
    put("/sys/fs/cgroup/memoryless/x/memory.limit_in_bytes", "1048576\n");  // another controller's
    CHECK(found(150, "container"));
}

static void both_versions_on_one_machine_count(void) {
    machine("4:memory:/old\n0::/new\n");
    put("/sys/fs/cgroup/memory/old/memory.limit_in_bytes", "209715200\n");
    CHECK(found(200, "container"));
    put("/sys/fs/cgroup/unified/new/memory.max", "104857600\n");
    CHECK(found(100, "container"));
}

// The container's own group is mounted as the top, and the path is that of the outside, or leads out of the namespace.
static void in_a_container_the_top_is_its_own_group(void) {
    const char* paths[] = {"/", "/docker/0123456789abcdef", "/../../system.slice/docker.scope", "/a/../b"};
    char line[200];
    for (int i = 0; i < COUNT(paths); i++) {
        snprintf(line, sizeof line, "0::%s\n", paths[i]);
        machine(line);
        put("/sys/fs/cgroup/memory.max", "104857600\n");
        CHECK(found(100, "container"));
        snprintf(line, sizeof line, "5:memory:%s\n", paths[i]);
        machine(line);
        put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600\n");
        CHECK(found(100, "container"));
    }
}

static void what_is_malformed_is_no_limit(void) {
    const char *lines[] = {"",       "\n",         ":",        "0:",   "0::",      "0::\n", "4:memory\n", "4:memory:",
                           "::::\n", "0::no/root", "junk\n\n", "0::/", "0::///\n", ":,,,:/", "4:,memory,:/\n"};
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

static void ranks_share_a_machine_and_a_container(void) {
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

static void limits_of_the_process_count_for_it_alone(void) {
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

static void without_a_quota_cores_are_those_of_the_affinity_mask(void) {
    machine("0::/a\n");
    put("/sys/fs/cgroup/a/cpu.max", "max 100000\n");
    CHECK(host_cores(root, 0) == affinity());
    machine("2:cpu:/a\n");
    put("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
    CHECK(host_cores(root, 0) == affinity());
    put("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "100000\n");
    put("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "0\n");
    CHECK(host_cores(root, 0) == affinity());
}

static void a_process_bound_to_one_core_has_one(void) {
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

static void quotas_are_rounded_up_to_cores(void) {
    if (affinity() < 2) SKIP("there is one core only");
    const char* quotas[][2] = {{"1000", "100000"},   {"100000", "100000"}, {"100001", "100000"},
                               {"200000", "100000"}, {"50000", "50000"},   {"5000000", "100000"}};
    const int cores[] = {1, 1, 2, 2, 1, affinity()};
    for (int i = 0; i < COUNT(quotas); i++) {
        char both[64];
        snprintf(both, sizeof both, "%s %s\n", quotas[i][0], quotas[i][1]);
        machine("0::/a/b\n");
        put("/sys/fs/cgroup/a/b/cpu.max", both);
        CHECK(host_cores(root, 0) == MIN(cores[i], affinity()));
        machine("3:cpuset:/\n2:cpu,cpuacct:/a/b\n");
        put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", quotas[i][0]);
        put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", quotas[i][1]);
        CHECK(host_cores(root, 0) == MIN(cores[i], affinity()));
    }
}

static void the_least_quota_on_the_way_up_counts(void) {
    machine("0::/a/b\n");
    put("/sys/fs/cgroup/a/b/cpu.max", "900000 100000\n");
    put("/sys/fs/cgroup/a/cpu.max", "80000 100000\n");
    CHECK(host_cores(root, 0) == 1);
}

static void another_process_has_groups_of_its_own(void) {
    char path[100];
    machine("0::/a\n");
    snprintf(path, sizeof path, "/proc/%ld/cgroup", (long)getppid());
    put(path, "0::/b\n");
    put("/sys/fs/cgroup/b/cpu.max", "50000 100000\n");
    CHECK(host_cores(root, 0) == affinity());
    CHECK(host_cores(root, getppid()) == 1);
}

// ---- threads and descriptors

static void threads_and_descriptors_are_counted_and_given_back(void) {
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

int main(int argc, char** argv) {
    program_begin(argc, argv);
    RUN(without_groups_memory_is_what_the_machine_has_free);
    RUN(version_2_limits_count_from_the_group_up_to_the_top);
    RUN(what_a_group_uses_is_taken_off_but_not_its_file_cache);
    RUN(memory_high_counts_like_memory_max);
    RUN(version_1_limits_count_and_huge_ones_do_not);
    RUN(both_versions_on_one_machine_count);
    RUN(in_a_container_the_top_is_its_own_group);
    RUN(what_is_malformed_is_no_limit);
    RUN(ranks_share_a_machine_and_a_container);
    RUN(limits_of_the_process_count_for_it_alone);
    RUN(without_a_quota_cores_are_those_of_the_affinity_mask);
    RUN(a_process_bound_to_one_core_has_one);
    RUN(quotas_are_rounded_up_to_cores);
    RUN(the_least_quota_on_the_way_up_counts);
    RUN(another_process_has_groups_of_its_own);
    RUN(threads_and_descriptors_are_counted_and_given_back);
    return program_end();
}
