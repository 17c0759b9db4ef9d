// comm_self.c - the Comm of one rank, in host memory: nothing to send, so every entry is a copy, and where input and
// output are the same memory it does nothing. All of it has finished on return. Nobody is waited for, so the timer is
// told nothing.
#include "kernels/comm_self.h"

#include <stdlib.h>

void comm_copy_host(void* to, const void* from, size_t bytes, Stream s) {
    (void)s;
    if (bytes > 0 && to != from) memmove(to, from, bytes);
}

static void check_peers(const Comm* c, const Transfer* messages, int n) {
    for (int i = 0; i < n; i++)
        if (messages[i].peer < 0 || messages[i].peer >= c->size)
            die("message %d of an exchange names rank %d of a Comm of %d", i, messages[i].peer, c->size);
}

void comm_copy_to_self(const Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives,
                       CopyBytes copy, Stream s) {
    int r = 0;
    check_peers(c, sends, n_sends);
    check_peers(c, receives, n_receives);
    for (int i = 0; i < n_sends; i++) {
        if (sends[i].peer != c->rank || sends[i].bytes == 0) continue;
        while (r < n_receives && (receives[r].peer != c->rank || receives[r].bytes == 0)) r++;
        if (r == n_receives || receives[r].bytes != sends[i].bytes)
            die("rank %d sends itself %zu bytes as message %d, but receives %zu", c->rank, sends[i].bytes, i,
                r == n_receives ? (size_t)0 : receives[r].bytes);
        copy(receives[r++].data, sends[i].data, sends[i].bytes, s);
    }
    for (; r < n_receives; r++)
        if (receives[r].peer == c->rank && receives[r].bytes > 0)
            die("rank %d receives %zu bytes from itself as message %d, but sends none", c->rank, receives[r].bytes, r);
}

static void all_reduce(Comm* c, void* x, size_t n, DType dt, Stream s) { (void)c, (void)x, (void)n, (void)dt, (void)s; }

static void broadcast(Comm* c, void* x, size_t bytes, int root, Stream s) {
    (void)c, (void)x, (void)bytes, (void)root, (void)s;
}

// A reduce-scatter or an all-gather of one rank.
static Request begin_copy(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s) {
    (void)c, (void)s;
    comm_copy_host(out, in, n * dtype_bytes(dt), NULL);
    return 0;
}

static Request begin_send_receive(Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives,
                                  Stream s) {
    comm_copy_to_self(c, sends, n_sends, receives, n_receives, comm_copy_host, s);
    return 0;
}

static void end(Comm* c, Request request, Stream s) { (void)c, (void)request, (void)s; }

static int all_gather_host(Comm* c, void* out, const void* in, size_t bytes, char* err, size_t errlen) {
    (void)c, (void)err, (void)errlen;
    comm_copy_host(out, in, bytes, NULL);
    return 0;
}

static int broadcast_host(Comm* c, void* x, size_t bytes, int root, char* err, size_t errlen) {
    (void)c, (void)x, (void)bytes, (void)root, (void)err, (void)errlen;
    return 0;
}

static int barrier(Comm* c, char* err, size_t errlen) {
    (void)c, (void)err, (void)errlen;
    return 0;
}

static int wait(Comm* c, Stream s, char* err, size_t errlen) {
    (void)s;
    return barrier(c, err, errlen);
}

static int split(Comm* c, Comm** part, int color, int key, char* err, size_t errlen) {
    (void)key;
    *part = NULL;
    if (color < 0) return 0;
    if (comm_open_self(part, c->timeout_seconds, err, errlen)) return -1;
    (*part)->overlap = c->overlap;
    return 0;
}

static void close_self(Comm* c) { free(c); }

static const CommTable self_table = {
    .name = "self",
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .begin_reduce_scatter = begin_copy,
    .begin_all_gather = begin_copy,
    .begin_send_receive = begin_send_receive,
    .end = end,
    .all_gather_host = all_gather_host,
    .broadcast_host = broadcast_host,
    .barrier = barrier,
    .wait = wait,
    .split = split,
    .close = close_self,
};

int comm_open_self(Comm** world, double timeout_seconds, char* err, size_t errlen) {
    static const int node = 0;
    *world = (Comm*)calloc(1, sizeof **world);
    if (!*world) return fail(err, errlen, "no memory for a Comm");
    (*world)->table = &self_table;
    (*world)->size = (*world)->local_size = 1;
    (*world)->node = &node;
    (*world)->timeout_seconds = timeout_seconds;
    return 0;
}
