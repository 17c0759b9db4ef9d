// comm_transport.c - what every transport needs; see comm_transport.h.
#include "kernels/comm_transport.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

// ---- nodes

static uint64_t hash_of_host(void) {
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return hash_bytes(name, strlen(name), 0);
}

void comm_number_nodes(int* node, const uint64_t* host, int size) {
    for (int r = 0, nodes = 0; r < size; r++) {
        int same = 0;
        while (same < r && host[same] != host[r]) same++;
        node[r] = same < r ? node[same] : nodes++;
    }
}

static void count_local_ranks(Comm* c, const uint64_t* host) {
    c->local_rank = c->local_size = 0;
    for (int r = 0; r < c->size; r++) {
        c->local_rank += host[r] == host[c->rank] && r < c->rank;
        c->local_size += host[r] == host[c->rank];
    }
}

// 0, or -1 with a message; *ranks = the size of pretended nodes, 0: none.
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
    uint64_t own = hash_of_host(), *host = (uint64_t*)malloc((size_t)c->size * sizeof *host);
    int pretended;
    if (!host) return fail(err, errlen, "no memory for the hosts of %d ranks", c->size);
    memset(node, 0, (size_t)c->size * sizeof *node);
    c->node = node;
    int result = c->table->all_gather_host(c, host, &own, sizeof own, err, errlen);
    memset(c->sent, 0, sizeof c->sent);
    if (result == 0) result = pretended_node_size(&pretended, err, errlen);
    if (result == 0) {
        if (c->local_size == 0) count_local_ranks(c, host);
        comm_number_nodes(node, host, c->size);
        for (int r = 0; r < c->size && pretended; r++) node[r] = r / pretended;
    }
    free(host);
    return result;
}

// ---- messages

int comm_check_messages(const Comm* c, const Transfer* messages, int n, int* remote) {
    int count = 0;
    for (int i = 0; i < n; i++) {
        if (messages[i].peer < 0 || messages[i].peer >= c->size)
            broken("message %d of a send/receive names rank %d, but the Comm has %d", i, messages[i].peer, c->size);
        count += messages[i].bytes > 0;
        *remote += messages[i].bytes > 0 && messages[i].peer != c->rank;
    }
    return count;
}

void comm_copy_to_self(const Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives,
                       CopyBytes copy, Stream s) {
    int r = 0;
    for (int i = 0; i < n_sends; i++) {
        if (sends[i].peer != c->rank || sends[i].bytes == 0) continue;
        while (r < n_receives && (receives[r].peer != c->rank || receives[r].bytes == 0)) r++;
        if (r == n_receives || receives[r].bytes != sends[i].bytes)
            broken("rank %d sends itself %zu bytes as message %d, but receives %zu", c->rank, sends[i].bytes, i,
                   r == n_receives ? (size_t)0 : receives[r].bytes);
        if (receives[r].data != sends[i].data) copy(receives[r].data, sends[i].data, sends[i].bytes, s);
        r++;
    }
    for (; r < n_receives; r++)
        if (receives[r].peer == c->rank && receives[r].bytes > 0)
            broken("rank %d receives %zu bytes from itself as message %d, but sends none", c->rank, receives[r].bytes,
                   r);
}
