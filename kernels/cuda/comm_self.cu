// comm_self.cu - the Comm of one rank, see comm_self.h. It works against memory bandwidth alone, and where input and
// output are the same memory it does nothing. Exchanges are work on the caller's own stream. Nobody is waited for, so
// the timer is told nothing.
#include "kernels/cuda/comm_self.h"

#include <stdlib.h>

#include "kernels/cuda/cuda.h"

void comm_copy_device(void* to, const void* from, size_t bytes, Stream s) {
    if (bytes > 0 && to != from) CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_stream(s)));
}

static void all_reduce(Comm*, void*, size_t, DType, Stream) {}

static void broadcast(Comm*, void*, size_t, int, Stream) {}

// A reduce-scatter or an all-gather of one rank. What is on the stream is in order: there is nothing to end.
static Request begin_copy(Comm*, void* out, const void* in, size_t n, DType dt, Stream s) {
    comm_copy_device(out, in, n * dtype_bytes(dt), s);
    return 0;
}

static Request begin_send_receive(Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives,
                                  Stream s) {
    comm_copy_to_self(c, sends, n_sends, receives, n_receives, comm_copy_device, s);
    return 0;
}

static void end(Comm*, Request, Stream) {}

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
    "self",          all_reduce,     broadcast, begin_copy, begin_copy, begin_send_receive, end,
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
