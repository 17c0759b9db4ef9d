// test_rank_identity.c - who a process is under each launcher, and what contradicts.
#include "kernels/comm/comm.h"
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

// The answer when the environment holds only these, "NAME=value|NAME=value|...".
static int identity(const char* variables) {
    char text[1024], *end = NULL;
    for (int i = 0; i < COUNT(names); i++) unsetenv(names[i]);
    snprintf(text, sizeof text, "%s", variables);
    for (char* name = strtok_r(text, "|", &end); name; name = strtok_r(NULL, "|", &end)) {
        char* value = strchr(name, '=');
        int known = 0;
        *value++ = 0;
        for (int i = 0; i < COUNT(names); i++) known |= strcmp(names[i], name) == 0;
        CHECK(known);  // else it would live on in later claims
        setenv(name, value, 1);
    }
    err[0] = 0;
    return rank_identity(&id, err);
}

typedef struct Answer {
    const char* variables;
    const char* source;
    int rank, size, local_rank;
    const char* master;  // NULL: not looked at
    int port;
} Answer;

static void check_answers(const Answer* answers, int n) {
    for (int i = 0; i < n; i++) {
        const Answer* a = &answers[i];
        int before = test_failures_in_claim;
        CHECK(identity(a->variables) == 0);
        CHECK_STRING(id.source, a->source);
        CHECK(id.rank == a->rank && id.size == a->size && id.local_rank == a->local_rank);
        if (a->master) CHECK_STRING(id.master, a->master);
        if (a->master) CHECK(id.master_port == a->port);
        if (test_failures_in_claim > before) printf("    %s: %s\n", a->variables, err);
    }
}
#define OMPI(rank, size, local) \
    "OMPI_COMM_WORLD_RANK=" rank "|OMPI_COMM_WORLD_SIZE=" size "|OMPI_COMM_WORLD_LOCAL_RANK=" local
#define TORCH(rank, size, local) "RANK=" rank "|WORLD_SIZE=" size "|LOCAL_RANK=" local
#define SLURM(rank, size, local) "SLURM_PROCID=" rank "|SLURM_NTASKS=" size "|SLURM_LOCALID=" local

CLAIM(each_launcher_is_known_by_its_variables) {
    static const Answer answers[] = {
        {"", "alone", 0, 1, 0, "", 0},
        {TORCH("5", "8", "1") "|LOCAL_WORLD_SIZE=4|MASTER_ADDR=node-a|MASTER_PORT=1234", "torchrun", 5, 8, 1, "node-a",
         1234},
        {TORCH("5", "8", "1") "|MASTER_ADDR=::1", "torchrun", 5, 8, 1, "::1", 29500},
        {TORCH("0", "1", "0"), "torchrun", 0, 1, 0, NULL, 0},
        {OMPI("2", "4", "0") "|MASTER_ADDR=10.0.0.1|MASTER_PORT=77", "mpirun", 2, 4, 0, "10.0.0.1", 77},
        {"PMI_RANK=3|PMI_SIZE=4", "mpirun", 3, 4, 3, NULL, 0},  // knows the rank only
        {"PMI_RANK=3|PMI_SIZE=4|MPI_LOCALRANKID=1|MPI_LOCALNRANKS=2", "mpirun", 3, 4, 1, NULL, 0},
        {TORCH("007", "08", "0"), "torchrun", 7, 8, 0, NULL, 0},  // decimal, as shells print padded numbers
    };
    check_answers(answers, COUNT(answers));
}

// Some platforms number machines with RANK and WORLD_SIZE; srun sets none of them.
CLAIM(a_launcher_counts_with_all_of_its_variables_torchrun_before_mpirun_before_slurm) {
    static const Answer answers[] = {
        {"RANK=1", "alone", 0, 1, 0, NULL, 0},
        {"RANK=1|WORLD_SIZE=2|MASTER_ADDR=x", "alone", 0, 1, 0, NULL, 0},
        {"RANK=1|WORLD_SIZE=2|LOCAL_RANK=", "alone", 0, 1, 0, NULL, 0},
        {"PMIX_RANK=3", "alone", 0, 1, 0, NULL, 0},
        {"RANK=1|WORLD_SIZE=2|" SLURM("7", "16", "3"), "slurm", 7, 16, 3, NULL, 0},
        {OMPI("2", "4", "0") "|OMPI_COMM_WORLD_LOCAL_SIZE=2|" SLURM("0", "1", "0"), "mpirun", 2, 4, 0, "", 0},
        {TORCH("0", "2", "0") "|" OMPI("1", "3", "1") "|" SLURM("1", "4", "1"), "torchrun", 0, 2, 0, NULL, 0},
    };
    check_answers(answers, COUNT(answers));
}

// The step may be smaller than the allocation.
CLAIM(slurm_describes_the_step) {
    static const Answer answers[] = {
        {SLURM("9", "11", "1") "|SLURM_NODEID=2|SLURM_STEP_TASKS_PER_NODE=4(x2),3|SLURM_STEP_NODELIST=gpu[07-09]"
                               "|SLURM_JOB_ID=1234567",
         "slurm", 9, 11, 1, "gpu07", 15000 + 4567},
        {SLURM("1", "8", "1") "|SLURM_STEP_NUM_TASKS=2|SLURM_NTASKS_PER_NODE=8", "slurm", 1, 2, 1, NULL, 0},
        {SLURM("5", "8", "1"), "slurm", 5, 8, 1, "", 0},
        {SLURM("0", "2", "0") "|MASTER_PORT=5|SLURM_STEP_NODELIST=alpha", "slurm", 0, 2, 0, "alpha", 5},
        {SLURM("0", "2", "0") "|MASTER_PORT=5|SLURM_STEP_NODELIST=a-1,b-2", "slurm", 0, 2, 0, "a-1", 5},
        {SLURM("0", "2", "0") "|MASTER_PORT=5|SLURM_STEP_NODELIST=n[3,5-7],m1", "slurm", 0, 2, 0, "n3", 5},
        {SLURM("0", "2", "0") "|MASTER_PORT=5|SLURM_STEP_NODELIST=rack[1-2]gpu[07,09-12]-ib,login", "slurm", 0, 2, 0,
         "rack1gpu07-ib", 5},
        {SLURM("0", "2", "0") "|MASTER_PORT=5|SLURM_STEP_NODELIST=n[3", "slurm", 0, 2, 0, "n3", 5},
        {SLURM("0", "2", "0") "|MASTER_PORT=5|SLURM_STEP_NODELIST=n[3-", "slurm", 0, 2, 0, "n3", 5},
        {SLURM("0", "2", "0") "|SLURM_STEP_NODELIST=alpha|MASTER_ADDR=other", "slurm", 0, 2, 0, "other", 29500},
    };
    check_answers(answers, COUNT(answers));
}

// {variables, what the message names}
CLAIM(contradictions_and_what_is_no_number_are_refused) {
    static const char* const refused[][2] = {
        {TORCH("8", "8", "0"), "RANK"},
        {TORCH("1", "2", "2"), "LOCAL_RANK"},
        {SLURM("2", "8", "0") "|SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID"},
        {TORCH("1x", "4", "1"), "RANK"},
        {TORCH(" 1", "4", "1"), "RANK"},
        {TORCH("+1", "4", "1"), "RANK"},
        {TORCH("-1", "4", "1"), "RANK"},
        {TORCH("0x1", "4", "1"), "RANK"},
        {TORCH("1.0", "4", "1"), "RANK"},
        {TORCH("4294967297", "4", "1"), "RANK"},
        {TORCH("99999999999999999999", "4", "1"), "RANK"},
        {TORCH("2147483647", "4", "1"), "RANK"},
        {TORCH("one", "4", "1"), "RANK"},
        {TORCH("1 ", "4", "1"), "RANK"},
        {TORCH("0", "0", "0"), "WORLD_SIZE"},
        {TORCH("0", "2", "0") "|MASTER_ADDR=a|MASTER_PORT=0", "MASTER_PORT"},
        {TORCH("0", "2", "0") "|MASTER_ADDR=a|MASTER_PORT=65536", "MASTER_PORT"},
        {TORCH("0", "2", "0") "|MASTER_ADDR=a|MASTER_PORT=a", "MASTER_PORT"},
    };
    for (int i = 0; i < COUNT(refused); i++) {
        CHECK(identity(refused[i][0]) == -1);
        CHECK(strstr(err, refused[i][1]) != NULL);
    }
}

CLAIM(long_names_are_refused) {
    char longest[256], text[1024];
    memset(longest, 'a', 255), longest[255] = 0;
    snprintf(text, sizeof text, TORCH("0", "2", "0") "|MASTER_ADDR=%s", longest);
    CHECK(identity(text) == 0);
    CHECK_STRING(id.master, longest);
    snprintf(text, sizeof text, TORCH("0", "2", "0") "|MASTER_ADDR=%sa", longest);
    CHECK(identity(text) == -1 && strstr(err, "MASTER_ADDR"));
    snprintf(text, sizeof text, SLURM("0", "2", "0") "|SLURM_STEP_NODELIST=%sb", longest);
    CHECK(identity(text) == -1 && strstr(err, "SLURM_STEP_NODELIST"));
}

int main(void) { return test_main(); }
