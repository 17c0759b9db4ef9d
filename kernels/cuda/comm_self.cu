// comm_self.cu - the Comm of one rank, see comm_self.h. It works against memory bandwidth alone, and where input and
// output are the same memory it does nothing. Exchanges are work on the caller's own stream.
#include "kernels/cuda/comm_self.h"

#include <stdlib.h>

#include "kernels/cuda/cuda.h"

static void copy(void* to, const void* from, size_t bytes, Stream s) {
    if (bytes > 0 && to != from) CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_stream(s)));
}

void comm_copy_own(const Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives,
                   Stream s) {
    int r = 0;
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

static void all_reduce(Comm*, void*, size_t, DType, Stream) {}

static void broadcast(Comm*, void*, size_t, int, Stream) {}

// A reduce-scatter or an all-gather of one rank. What is on the stream is in order: there is nothing to end.
static Ticket begin_copy(Comm*, void* out, const void* in, size_t n, DType dt, Stream s) {
    copy(out, in, n * dtype_bytes(dt), s);
    return 0;
}

static void check_alone(const Transfer* messages, int n) {
    for (int i = 0; i < n; i++)
        if (messages[i].peer != 0) die("message %d of an exchange names rank %d of a Comm of 1", i, messages[i].peer);
}

static Ticket begin_exchange(Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives,
                             Stream s) {
    check_alone(sends, n_sends);
    check_alone(receives, n_receives);
    comm_copy_own(c, sends, n_sends, receives, n_receives, s);
    return 0;
}

static void end(Comm*, Ticket, Stream) {}

static int all_gather_host(Comm*, void* out, const void* in, size_t bytes, char*, size_t) {
    if (bytes > 0) memmove(out, in, bytes);
    return 0;
}

static int broadcast_host(Comm*, void*, size_t, int, char*, size_t) { return 0; }

static int barrier(Comm*, char*, size_t) { return 0; }

// Nobody else can be late.
static int wait(Comm*, Stream s, char* err, size_t errlen) {
    cudaError_t error = cudaStreamSynchronize(cuda_stream(s));
    return error == cudaSuccess ? 0 : fail(err, errlen, "CUDA: %s", cudaGetErrorString(error));
}

static int split(Comm* c, Comm** part, int color, int, char* err, size_t errlen) {
    *part = NULL;
    if (color < 0) return 0;
    if (comm_open_cuda_self(part, c->local_rank, c->local_size, c->timeout_seconds, err, errlen)) return -1;
    (*part)->overlap = c->overlap;
    return 0;
}

static void close_self(Comm* c) { free(c); }

// In the order of the struct: C++17 has no designated initializers.
static const CommTable self_table = {
    "self",          all_reduce,     broadcast, begin_copy, begin_copy, begin_exchange, end,
    all_gather_host, broadcast_host, barrier,   wait,       split,      close_self,
};

int comm_open_cuda_self(Comm** c, int local_rank, int local_size, double timeout_seconds, char* err, size_t errlen) {
    static const int node = 0;
    *c = (Comm*)calloc(1, sizeof **c);
    if (!*c) return fail(err, errlen, "no memory for a Comm");
    (*c)->table = &self_table;
    (*c)->size = 1;
    (*c)->local_rank = local_rank;
    (*c)->local_size = local_size;
    (*c)->node = &node;
    (*c)->timeout_seconds = timeout_seconds;
    return 0;
}
