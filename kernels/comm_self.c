// comm_self.c - the Comm of one rank: there is nothing to send, so every entry is a copy, or nothing where input and
// output are the same memory. Copies are in the order of the stream, so there is nothing to end. No rank waits, so
// the timer is told nothing.
#include <stdlib.h>

#include "kernels/comm_transport.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"  // entries of all transports share their signatures

typedef struct Alone {
    Comm comm;
    CopyBytes copy;
    int (*wait)(Comm* c, Stream s, char* err, size_t errlen);
} Alone;

static const Alone* alone_of(const Comm* c) { return (const Alone*)c->state; }

static void all_reduce(Comm* c, void* x, size_t n, DType dt, Stream s) {}

static void broadcast(Comm* c, void* x, size_t bytes, int root, Stream s) {}

// A reduce-scatter or an all-gather of one rank.
static Request begin_copy(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s) {
    if (n > 0 && out != in) alone_of(c)->copy(out, in, n * dtype_bytes(dt), s);
    return 0;
}

static Request begin_send_receive(Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives,
                                  Stream s) {
    int remote = 0;
    comm_check_messages(c, sends, n_sends, &remote);
    comm_check_messages(c, receives, n_receives, &remote);
    comm_copy_to_self(c, sends, n_sends, receives, n_receives, alone_of(c)->copy, s);
    return 0;
}

static void end(Comm* c, Request request, Stream s) {}

static int all_gather_host(Comm* c, void* out, const void* in, size_t bytes, char* err, size_t errlen) {
    if (bytes > 0 && out != in) memmove(out, in, bytes);
    return 0;
}

static int broadcast_host(Comm* c, void* x, size_t bytes, int root, char* err, size_t errlen) { return 0; }

static int barrier(Comm* c, char* err, size_t errlen) { return 0; }

static int wait_for_copies(Comm* c, Stream s, char* err, size_t errlen) { return alone_of(c)->wait(c, s, err, errlen); }

static int split(Comm* c, Comm** part, int color, int key, char* err, size_t errlen) {
    const Alone* a = alone_of(c);
    *part = NULL;
    if (color < 0) return 0;
    if (comm_open_alone(part, a->copy, a->wait, c->local_rank, c->local_size, c->timeout_seconds, err, errlen))
        return -1;
    (*part)->overlap = c->overlap;
    return 0;
}

static void close_self(Comm* c) { free(c->state); }

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
    .wait = wait_for_copies,
    .split = split,
    .close = close_self,
};

int comm_open_alone(Comm** c, CopyBytes copy, int (*wait)(Comm* c, Stream s, char* err, size_t errlen), int local_rank,
                    int local_size, double timeout_seconds, char* err, size_t errlen) {
    static const int node = 0;
    Alone* a = (Alone*)calloc(1, sizeof *a);
    *c = NULL;
    if (!a) return fail(err, errlen, "no memory for a Comm");
    *a = (Alone){{.table = &self_table,
                  .size = 1,
                  .local_rank = local_rank,
                  .local_size = local_size,
                  .node = &node,
                  .timeout_seconds = timeout_seconds,
                  .state = a},
                 copy,
                 wait};
    *c = &a->comm;
    return 0;
}

// ---- in host memory, where copies have finished on return

void comm_copy_host(void* to, const void* from, size_t bytes, Stream s) { memmove(to, from, bytes); }

static int wait_for_nothing(Comm* c, Stream s, char* err, size_t errlen) { return 0; }

int comm_open_self(Comm** world, double timeout_seconds, char* err, size_t errlen) {
    return comm_open_alone(world, comm_copy_host, wait_for_nothing, 0, 1, timeout_seconds, err, errlen);
}
