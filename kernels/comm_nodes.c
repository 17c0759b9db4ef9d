// comm_nodes.c - see comm_nodes.h.
#include "kernels/comm_nodes.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

static uint64_t hash_of_host(void) {
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return hash_bytes(name, strlen(name), 0);
}

void comm_number_nodes(int* node, const uint64_t* machine, int size) {
    for (int r = 0, nodes = 0; r < size; r++) {
        int same = 0;
        while (same < r && machine[same] != machine[r]) same++;
        node[r] = same < r ? node[same] : nodes++;
    }
}

static void count_local_ranks(Comm* c, const uint64_t* machine) {
    c->local_rank = c->local_size = 0;
    for (int r = 0; r < c->size; r++) {
        c->local_rank += machine[r] == machine[c->rank] && r < c->rank;
        c->local_size += machine[r] == machine[c->rank];
    }
}

// 0, or -1 with words; *ranks is 0 where nothing is pretended.
static int pretended_node_size(int* ranks, char* err, size_t errlen) {
    const char* text = getenv("RAGGED_NODE_SIZE");
    char* end;
    *ranks = 0;
    if (!text || !*text) return 0;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (errno || *end || number < 1 || number > INT_MAX)
        return fail(err, errlen, "RAGGED_NODE_SIZE is \"%.40s\", expected a number of ranks from 1 on", text);
    *ranks = (int)number;
    return 0;
}

int comm_find_nodes(Comm* c, int* node, char* err, size_t errlen) {
    uint64_t own = hash_of_host(), *machine = (uint64_t*)malloc((size_t)c->size * sizeof *machine);
    int pretended;
    if (!machine) return fail(err, errlen, "no memory for the hosts of %d ranks", c->size);
    memset(node, 0, (size_t)c->size * sizeof *node);
    c->node = node;
    int result = c->table->all_gather_host(c, machine, &own, sizeof own, err, errlen);
    memset(c->sent, 0, sizeof c->sent);
    if (result == 0) result = pretended_node_size(&pretended, err, errlen);
    if (result == 0) {
        if (c->local_size == 0) count_local_ranks(c, machine);
        comm_number_nodes(node, machine, c->size);
        for (int r = 0; r < c->size && pretended; r++) node[r] = r / pretended;
    }
    free(machine);
    return result;
}
