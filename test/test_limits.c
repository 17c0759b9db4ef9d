// test_limits.c - the whole program under limits: of a container's memory and cores, of addresses, descriptors, sizes
// of files and processes. It works, or says in one line which limit it is and what to try.
#include "test/program.h"

#define TINY                                                                                                    \
    "--data $W/corpus --layers 1 --width 16 --heads 2 --context 32 --batch-tokens 64 --steps 3 --eval-every 0 " \
    "--sample-every 0 --dtype fp32 "
#define ONE TINY "--threads 1 --out $W/run "
// A table of some 200 MiB.
#define LARGE                                                                                                     \
    "--data $W/corpus --layers 2 --width 1024 --heads 2 --context 32 --batch-tokens 64 --steps 1 --eval-every 0 " \
    "--sample-every 0 --save-every 0 --dtype fp32 --threads 1 --out $W/run "
#define MPIRUN "timeout 60 mpirun --oversubscribe -n 2 "

static int works(int status) { return status == 0 && errors[0] == 0 && strstr(output, "loss hash"); }

// ---- containers

static char group[400];  // a control group of this test; empty where none can be made

// Below the group of this process, of a controller of version 1, or of version 2 (controller NULL).
static int make_group(const char* controller) {
    char at[300] = "/sys/fs/cgroup";
    group[0] = 0;
    if (controller) {
        snprintf(at, sizeof at, "/sys/fs/cgroup/%s", controller);
        if (sh("sed -n 's/^[0-9]*:%s:\\(.*\\)$/\\1/p' /proc/self/cgroup", controller)) return 0;
    } else if (sh("grep -q memory /sys/fs/cgroup/cgroup.subtree_control && sed -n 's/^0:://p' /proc/self/cgroup")) {
        return 0;
    }
    if (output[0] != '/') return 0;
    output[strcspn(output, "\n")] = 0;
    snprintf(group, sizeof group, "%s%.60s/ragged-test-%ld", at, output[1] ? output : "", (long)getpid());
    if (mkdir(group, 0777) == 0) return 1;
    group[0] = 0;
    return 0;
}

// A process may still be on its way out.
static void remove_group(void) {
    for (int i = 0; i < 50 && group[0] && rmdir(group); i++) sleep_ms(20);
}

static void check_container(const char* limit, const char* bytes) {
    CHECK_SH(0, "echo %s > %s/%s", bytes, group, limit);
    int status = sh("rm -rf $W/run; echo $$ > %s/cgroup.procs && exec $P " LARGE, group);
    CHECK(is_refusal(status, "found  & MiB available (memory limit of the container)"));
    CHECK(works(sh("rm -rf $W/run; echo $$ > %s/cgroup.procs && exec %s " ONE, group, program)));
}

// Without the reader of limits the kernel kills the run.
CLAIM(a_container_refuses_a_table_that_does_not_fit) {
    int version = make_group("memory") ? 1 : make_group(NULL) ? 2 : 0;
    if (!version) SKIP("no control group with memory can be made here");
    check_container(version == 1 ? "memory.limit_in_bytes" : "memory.max", "100M");
    remove_group();
}

// Two ranks of 345 MiB each: neither takes the other's memory for used when it asks.
CLAIM(ranks_share_the_memory_of_a_container) {
    if (!has_mpirun()) SKIP("mpirun is not here");
    if (!make_group("memory")) SKIP("no control group of version 1 can be made here");
    for (int mib = 500; mib <= 800; mib += 300) {
        int status =
            sh("echo %dM > %s/memory.limit_in_bytes; rm -rf $W/run; echo $$ > %s/cgroup.procs && "
               "exec " MPIRUN "$P " LARGE,
               mib, group, group);
        CHECK(mib == 800 ? status == 0 : status == 1 && strstr(errors, "(memory limit of the container)"));
    }
    remove_group();
}

// ---- addresses

CLAIM(a_limit_of_addresses_refuses_a_table_that_does_not_fit) {
    CHECK_REFUSED("MiB available (ulimit -v) & --context", "rm -rf $W/run; ulimit -v 200000; exec $P " LARGE);
    CHECK(works(sh("rm -rf $W/run; ulimit -v 200000; exec %s " ONE, program)));
}

// ---- descriptors

// Hundreds of files, of which many would be kept open.
CLAIM(few_descriptors_are_enough_and_leave_no_document_out) {
    CHECK(works(sh("rm -rf $W/run; exec %s " ONE, program)));
    const char* hash = loss_hash();
    CHECK(works(sh("rm -rf $W/run; ulimit -n 40; exec %s " ONE, program)));
    CHECK(strstr(output, hash) && strstr(output, "in 279 documents to train on"));
    if (!has_mpirun()) return;
    CHECK_SH(0, "rm -rf $W/run; " MPIRUN "sh -c 'ulimit -n 40; exec %s " ONE "'", program);
    CHECK(strstr(output, "in 279 documents to train on") && errors[0] == 0);
}

CLAIM(too_few_descriptors_get_one_line) {
    CHECK_REFUSED("Too many open files & ulimit -n", "rm -rf $W/run; ulimit -n 4; exec %s " ONE, program);
}

// The launcher has words of its own, and more than one rank may be heard before it ends the job.
CLAIM(too_few_descriptors_for_mpi_are_told_before_it_starts) {
    if (!has_mpirun()) SKIP("mpirun is not here");
    CHECK_SH(1, "rm -rf $W/run; " MPIRUN "sh -c 'ulimit -n 16; exec %s " ONE "'", program);
    CHECK_SAID("train: rank 0: expected 32 free descriptors & ulimit -n & !PMIX & !evutil");
}

// ---- stack

CLAIM(too_small_a_stack_gets_one_line) {
    const int kib[] = {64, 96, 112, 511};
    for (int i = 0; i < COUNT(kib); i++)
        CHECK_REFUSED("expected a stack of 512 KiB & ulimit -s", "rm -rf $W/run; ulimit -s %d; exec %s " ONE, kib[i],
                      program);
    CHECK(works(sh("rm -rf $W/run; ulimit -s 512; exec $P " TINY "--threads 4 --out $W/run")));
}

// ---- processes and threads

CLAIM(more_threads_than_there_is_room_for_get_one_line) {
    CHECK_REFUSED("expected room for 1000 threads & smaller --threads",
                  "rm -rf $W/run; ulimit -v 400000; exec $P " TINY "--threads 1000 --out $W/run");
}

// Where addresses are too few for the table and for stacks, one of both is refused, in our words.
CLAIM(threads_of_a_sample_have_room_or_get_one_line) {
    int refusals = 0;
    CHECK(works(sh("rm -rf $W/run; exec %s " ONE, program)));
    int tries = 0;  // scratch of so many threads is 20 to 92 MiB, by instruction set
    for (int kib = 150000; kib <= 360000; kib += 10000, tries++) {
        int status = sh("ulimit -v %d; exec $P --out $W/run --sample x --tokens 4 --threads 20", kib);
        CHECK(status == 0 || is_refusal(status, "train:  & try "));
        CHECK(!strstr(errors, "libgomp"));
        refusals += status != 0;
    }
    CHECK(refusals > 0 && refusals < tries);
}

// As a user whose processes are counted: those of root are not.
static const char* as_somebody(void) {
    if (geteuid() != 0) return "";
    return sh("setpriv --reuid 65534 --regid 65534 --clear-groups test -x $W/train && "
              "setpriv --reuid 65534 --regid 65534 --clear-groups test -w $W/open") == 0
               ? "setpriv --reuid 65534 --regid 65534 --clear-groups "
               : NULL;
}

CLAIM(too_few_processes_get_one_line) {
    const char* as = as_somebody();
    if (!as) SKIP("root's processes are not counted, and setpriv to another user does not work here");
    for (int threads = 1; threads <= 4; threads += 3) {
        int status = sh("%sprlimit --nproc=1 $W/train " TINY "--threads %d --out $W/open/run", as, threads);
        CHECK(is_refusal(status, threads == 1 ? "room for 1 threads & ulimit -u" : "room for 4 threads & ulimit -u"));
    }
}

CLAIM(too_few_processes_for_mpi_are_told_before_it_starts) {
    const char* as = as_somebody();
    if (!has_mpirun()) SKIP("mpirun is not here");
    if (!as) SKIP("root's processes are not counted, and setpriv to another user does not work here");
    int status = sh("cd $W/open; HOME=$W/open TMPDIR=$W/open %s" MPIRUN "prlimit --nproc=2 $W/train " TINY
                    "--threads 1 --out $W/open/run",
                    as);
    CHECK(status == 1);
    CHECK_SAID("train: rank 0: expected room for 4 threads on every rank & ulimit -u & !libgomp & !PMIX");
}

PROGRAM_TEST {
    sh("mkdir -p $W/corpus $W/open && chmod 755 $W && chmod 777 $W/open && cp $P $W/train && chmod 755 $W/train && "
       "for i in $(seq 300); do echo \"document number $i, and a few words more for it\" > $W/corpus/$i.txt; done");
}
