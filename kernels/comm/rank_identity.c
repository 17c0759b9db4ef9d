// rank_identity.c - who this process is, from the variables that launchers set, see comm.h.
//
// A launcher counts only when all of its variables are set: some platforms export RANK and WORLD_SIZE as the number of
// the node for scripts that start torchrun, so that RANK without LOCAL_RANK says nothing. Slurm comes after mpirun,
// which runs inside its jobs.
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/comm/comm.h"

enum {
    DEFAULT_PORT = 29500,      // torchrun's
    SLURM_FIRST_PORT = 15000,  // below the ports that Linux hands out itself (32768 and more)
    SLURM_PORTS = 10000,       // a job gets the one of its number
    LAST_PORT = 65535
};

typedef struct Launcher {
    const char *source, *rank, *size, *local_rank;
    int local_rank_needed;
} Launcher;

static const Launcher launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", 1},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", 1},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", 1},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", 0},  // MPICH's and Intel's
};

static const char* variable(const char* name) {
    const char* value = name ? getenv(name) : NULL;
    return value && *value ? value : NULL;
}

int variable_number(int* value, const char* name, int least, int most, Err err) {
    const char* text = variable(name);
    long number = 0;
    if (!text) return 0;
    for (const char* c = text; *c && number <= most; c++)
        number = isdigit((unsigned char)*c) ? 10 * number + (*c - '0') : (long)most + 1;
    if (number < least || number > most)
        return fail(err, "%s is \"%.40s\", expected a number from %d to %d", name, text, least, most);
    *value = (int)number;
    return 0;
}

// Writes the first host of a list such as rack[1-2]gpu[07,09-12],login: rack1gpu07. -1: it is longer than the room.
static int first_host(char* host, size_t room, const char* list) {
    size_t length = 0;
    int choosing = 0;  // between brackets, where the first choice ends at - or ,
    for (; *list && (choosing || *list != ','); list++) {
        if (choosing && (*list == '-' || *list == ',')) {
            while (*list && *list != ']') list++;
            if (!*list) break;
        }
        if (*list == '[' || *list == ']') {
            choosing = *list == '[';
        } else {
            if (length + 1 >= room) return -1;
            host[length++] = *list;
        }
    }
    host[length] = 0;
    return 0;
}

// ---- where rank 0 is

static int read_master(RankIdentity* id, Err err) {
    const char* address = variable("MASTER_ADDR");
    const char* hosts = variable("SLURM_STEP_NODELIST");
    int port = DEFAULT_PORT;
    if (address) {
        if (strlen(address) >= sizeof id->master)
            return fail(err, "MASTER_ADDR has %zu characters, expected a host name or address", strlen(address));
        memcpy(id->master, address, strlen(address) + 1);
    } else if (strcmp(id->source, "slurm") == 0 && hosts) {
        if (first_host(id->master, sizeof id->master, hosts))
            return fail(err, "SLURM_STEP_NODELIST begins with a name of over %zu characters; set MASTER_ADDR",
                        sizeof id->master - 1);
        const char* job = variable("SLURM_JOB_ID");  // two jobs of a node must not meet at one port
        if (job) port = SLURM_FIRST_PORT + (int)(strtoul(job, NULL, 10) % SLURM_PORTS);
    }
    if (variable_number(&port, "MASTER_PORT", 1, LAST_PORT, err)) return -1;
    id->master_port = id->master[0] ? port : 0;
    return 0;
}

static int read_launcher(RankIdentity* id, const Launcher* l, Err err) {
    const int most = INT_MAX - 1;
    id->source = l->source;
    if (variable_number(&id->rank, l->rank, 0, most, err)) return -1;
    id->local_rank = id->rank;
    if (variable_number(&id->size, l->size, 1, INT_MAX, err) ||
        variable_number(&id->local_rank, l->local_rank, 0, most, err))
        return -1;
    // The job step of Slurm may be smaller than the allocation.
    if (strcmp(l->source, "slurm") == 0 && variable_number(&id->size, "SLURM_STEP_NUM_TASKS", 1, INT_MAX, err))
        return -1;
    if (id->rank >= id->size)
        return fail(err, "%s is %d, expected less than %s, which is %d", l->rank, id->rank, l->size, id->size);
    if (id->local_rank >= id->size)
        return fail(err, "%s is %d, expected less than the number of ranks, %d", l->local_rank, id->local_rank,
                    id->size);
    return 0;
}

int rank_identity(RankIdentity* id, Err err) {
    memset(id, 0, sizeof *id);
    id->source = "alone";
    id->size = 1;
    for (int i = 0; i < COUNT(launchers); i++) {
        const Launcher* l = &launchers[i];
        if (!variable(l->rank) || !variable(l->size) || (l->local_rank_needed && !variable(l->local_rank))) continue;
        if (read_launcher(id, l, err)) return -1;
        return read_master(id, err);
    }
    return 0;
}
