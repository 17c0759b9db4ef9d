// test_rank_identity.c - who a process is under each launcher, and what contradicts.
#include "kernels/comm.h"
#include "test/test.h"

static const char* const names[] = {
    "RANK",         "WORLD_SIZE",      "LOCAL_RANK",           "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",  "MASTER_PORT",     "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "SLURM_PROCID", "SLURM_NTASKS",    "SLURM_LOCALID",        "OMPI_COMM_WORLD_LOCAL_RANK",
    "SLURM_NODEID", "SLURM_JOB_ID",    "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_RANK",     "PMI_SIZE",        "SLURM_STEP_NODELIST",  "SLURM_STEP_TASKS_PER_NODE",
    "PMIX_RANK",    "MPI_LOCALRANKID", "MPI_LOCALNRANKS",      "SLURM_NTASKS_PER_NODE",
};

static RankIdentity id;
static char err[ERR_BYTES];

// The answer when the environment holds only these: {"NAME=value", ..., NULL}.
static int identity(const char* const* variables) {
    char name[64];
    for (int i = 0; i < COUNT(names); i++) unsetenv(names[i]);
    for (; *variables; variables++) {
        size_t length = strcspn(*variables, "=");
        int known = 0;
        snprintf(name, sizeof name, "%.*s", (int)length, *variables);
        for (int i = 0; i < COUNT(names); i++) known |= strcmp(names[i], name) == 0;
        CHECK(known);  // else it would live on in later claims
        setenv(name, *variables + length + 1, 1);
    }
    err[0] = 0;
    return rank_identity(&id, err, sizeof err);
}
#define IDENTITY(...) identity((const char* const[]){__VA_ARGS__, NULL})

static void check_ranks(const char* source, int rank, int size, int local_rank, int local_size) {
    CHECK_STRING(id.source, source);
    CHECK(id.rank == rank);
    CHECK(id.size == size);
    CHECK(id.local_rank == local_rank);
    CHECK(id.local_size == local_size);
}

static void check_master(const char* host, int port) {
    CHECK_STRING(id.master, host);
    CHECK(id.master_port == port);
}

static void nothing_set_means_alone(void) {
    CHECK(identity((const char* const[]){NULL}) == 0);
    check_ranks("alone", 0, 1, 0, 1);
    check_master("", 0);
}

static void torchrun_says_everything(void) {
    CHECK(IDENTITY("RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=node-a",
                   "MASTER_PORT=1234") == 0);
    check_ranks("torchrun", 5, 8, 1, 4);
    check_master("node-a", 1234);
    CHECK(IDENTITY("RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1", "MASTER_ADDR=::1") == 0);
    check_ranks("torchrun", 5, 8, 1, 0);
    check_master("::1", 29500);
    CHECK(IDENTITY("RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0") == 0);
    check_ranks("torchrun", 0, 1, 0, 1);
}

// Some platforms number machines with RANK and WORLD_SIZE; srun sets none of them.
static void rank_without_local_rank_says_nothing(void) {
    CHECK(IDENTITY("RANK=1") == 0);
    check_ranks("alone", 0, 1, 0, 1);
    CHECK(IDENTITY("RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=x") == 0);
    check_ranks("alone", 0, 1, 0, 1);
    CHECK(IDENTITY("RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=") == 0);
    check_ranks("alone", 0, 1, 0, 1);
    CHECK(IDENTITY("PMIX_RANK=3") == 0);
    check_ranks("alone", 0, 1, 0, 1);
    CHECK(IDENTITY("RANK=1", "WORLD_SIZE=2", "SLURM_PROCID=7", "SLURM_NTASKS=16", "SLURM_LOCALID=3") == 0);
    check_ranks("slurm", 7, 16, 3, 0);
}

static void mpirun_comes_before_slurm(void) {
    CHECK(IDENTITY("OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=0",
                   "OMPI_COMM_WORLD_LOCAL_SIZE=2", "SLURM_PROCID=0", "SLURM_NTASKS=1", "SLURM_LOCALID=0") == 0);
    check_ranks("mpirun", 2, 4, 0, 2);
    check_master("", 0);
    CHECK(IDENTITY("OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=0",
                   "MASTER_ADDR=10.0.0.1", "MASTER_PORT=77") == 0);
    check_ranks("mpirun", 2, 4, 0, 0);
    check_master("10.0.0.1", 77);
}

static void torchrun_comes_first(void) {
    CHECK(IDENTITY("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=3",
                   "OMPI_COMM_WORLD_LOCAL_RANK=1", "SLURM_PROCID=1", "SLURM_NTASKS=4", "SLURM_LOCALID=1") == 0);
    check_ranks("torchrun", 0, 2, 0, 0);
}

static void slurm_describes_the_step(void) {
    CHECK(IDENTITY("SLURM_PROCID=9", "SLURM_NTASKS=11", "SLURM_LOCALID=1", "SLURM_NODEID=2",
                   "SLURM_STEP_TASKS_PER_NODE=4(x2),3", "SLURM_STEP_NODELIST=gpu[07-09]", "SLURM_JOB_ID=1234567") == 0);
    check_ranks("slurm", 9, 11, 1, 3);
    check_master("gpu07", 15000 + 4567);
    // An allocation of 8 tasks, of which this step uses 2.
    CHECK(IDENTITY("SLURM_PROCID=1", "SLURM_NTASKS=8", "SLURM_STEP_NUM_TASKS=2", "SLURM_LOCALID=1",
                   "SLURM_NTASKS_PER_NODE=8") == 0);
    check_ranks("slurm", 1, 2, 1, 0);
    CHECK(IDENTITY("SLURM_PROCID=5", "SLURM_NTASKS=8", "SLURM_LOCALID=1", "SLURM_NTASKS_PER_NODE=4") == 0);
    check_ranks("slurm", 5, 8, 1, 4);
    check_master("", 0);
    CHECK(IDENTITY("SLURM_PROCID=5", "SLURM_NTASKS=8", "SLURM_LOCALID=1", "SLURM_NODEID=2",
                   "SLURM_STEP_TASKS_PER_NODE=4(x2)") == 0);
    check_ranks("slurm", 5, 8, 1, 0);  // the list has no third machine
}

static void first_host_of_a_slurm_list(void) {
    static const char* const lists[][2] = {
        {"SLURM_STEP_NODELIST=alpha", "alpha"},
        {"SLURM_STEP_NODELIST=a-1,b-2", "a-1"},
        {"SLURM_STEP_NODELIST=n[3,5-7],m1", "n3"},
        {"SLURM_STEP_NODELIST=rack[1-2]gpu[07,09-12]-ib,login", "rack1gpu07-ib"},
        {"SLURM_STEP_NODELIST=n[3", "n3"},
        {"SLURM_STEP_NODELIST=n[3-", "n3"},
    };
    for (int i = 0; i < COUNT(lists); i++) {
        CHECK(IDENTITY("SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_LOCALID=0", "MASTER_PORT=5", lists[i][0]) == 0);
        check_master(lists[i][1], 5);
    }
    CHECK(IDENTITY("SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_LOCALID=0", lists[0][0], "MASTER_ADDR=other") == 0);
    check_master("other", 29500);
}

static void pmi_knows_the_rank_only(void) {
    CHECK(IDENTITY("PMI_RANK=3", "PMI_SIZE=4") == 0);
    check_ranks("mpirun", 3, 4, 3, 0);
    CHECK(IDENTITY("PMI_RANK=3", "PMI_SIZE=4", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2") == 0);
    check_ranks("mpirun", 3, 4, 1, 2);
}

static void check_refused(int result, const char* variable) {
    CHECK(result == -1);
    CHECK(strstr(err, variable) != NULL);
}

static void contradictions_are_refused(void) {
    check_refused(IDENTITY("RANK=8", "WORLD_SIZE=8", "LOCAL_RANK=0"), "RANK");
    check_refused(IDENTITY("RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=2"), "LOCAL_RANK");
    check_refused(IDENTITY("RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=3", "LOCAL_WORLD_SIZE=2"), "LOCAL_RANK");
    check_refused(IDENTITY("RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=3", "LOCAL_WORLD_SIZE=5"), "torchrun");
    check_refused(IDENTITY("SLURM_PROCID=2", "SLURM_NTASKS=8", "SLURM_STEP_NUM_TASKS=2", "SLURM_LOCALID=0"),
                  "SLURM_PROCID");
}

static void numbers_are_read_strictly(void) {
    static const char* const wrong[] = {"RANK=1x",  "RANK= 1",         "RANK=+1",         "RANK=-1",
                                        "RANK=0x1", "RANK=1.0",        "RANK=4294967297", "RANK=99999999999999999999",
                                        "RANK=one", "RANK=2147483647", "RANK=1 "};
    for (int i = 0; i < COUNT(wrong); i++) check_refused(IDENTITY("WORLD_SIZE=4", "LOCAL_RANK=1", wrong[i]), "RANK");
    check_refused(IDENTITY("RANK=0", "WORLD_SIZE=0", "LOCAL_RANK=0"), "WORLD_SIZE");
    check_refused(IDENTITY("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_ADDR=a", "MASTER_PORT=0"), "MASTER_PORT");
    check_refused(IDENTITY("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_ADDR=a", "MASTER_PORT=65536"),
                  "MASTER_PORT");
    check_refused(IDENTITY("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_ADDR=a", "MASTER_PORT=a"), "MASTER_PORT");
    CHECK(IDENTITY("RANK=007", "WORLD_SIZE=08", "LOCAL_RANK=0") == 0);  // decimal, as shells print padded numbers
    check_ranks("torchrun", 7, 8, 0, 0);
}

static void long_names_are_refused(void) {
    char address[400] = "MASTER_ADDR=", list[400] = "SLURM_STEP_NODELIST=";
    memset(address + strlen(address), 'a', 255);
    CHECK(IDENTITY("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", address) == 0);
    CHECK(strlen(id.master) == 255);
    strcat(address, "a");
    check_refused(IDENTITY("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", address), "MASTER_ADDR");
    memset(list + strlen(list), 'b', 256);
    check_refused(IDENTITY("SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_LOCALID=0", list), "SLURM_STEP_NODELIST");
}

int main(void) {
    RUN(nothing_set_means_alone);
    RUN(torchrun_says_everything);
    RUN(rank_without_local_rank_says_nothing);
    RUN(mpirun_comes_before_slurm);
    RUN(torchrun_comes_first);
    RUN(slurm_describes_the_step);
    RUN(first_host_of_a_slurm_list);
    RUN(pmi_knows_the_rank_only);
    RUN(contradictions_are_refused);
    RUN(numbers_are_read_strictly);
    RUN(long_names_are_refused);
    return test_done();
}
