// nccl.cc - the calls of test/emu/nccl.h by MPI.
//
// Every operation is a set of messages between pairs of ranks: posted by the call, which then returns ncclInProgress,
// and moved on by ncclCommGetAsyncError, as a nonblocking NCCL communicator may do. So data that is used before the
// communicator has been polled to its end is wrong here, not only on a bad day; and a rank that does not come leaves
// the others waiting without blocking them. A blocking communicator polls itself.
//
// What NCCL would do silently wrong, or hang on, ends the program here or is an error: a call on a communicator that
// has another in progress, messages of other lengths than expected, groups over two communicators. A message's tag
// holds the communicator's number and the operation, so that different operations never meet. Sums are taken in rank
// order, in the element type.
#include "nccl.h"

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <vector>

extern "C" {
#include "plan/base.h"
}

namespace {

enum Kind { OPEN, SPLIT, FINALIZE, SEND, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, KINDS };
// Communicators opened by NCCL_COMM_ID are numbered from NAMED by a hash of it; others count from 1.
enum { NAMED = 1 << 20, NAMES = 1 << 16 };

using Bytes = std::vector<char>;

struct Message {
    bool is_send;
    int peer;  // rank of the communicator
    void* data;
    size_t bytes;
};

// What a communicator is doing.
struct Operation {
    Kind kind;
    std::vector<Message> messages;
    std::vector<std::unique_ptr<Bytes>> sent;  // copies, for MPI may still read what was given up
    std::vector<MPI_Request> requests;
    std::function<void()> finish;
    double start;
};

}  // namespace

struct ncclComm {
    int number, rank;
    std::vector<int> world;  // the MPI rank of each rank
    bool blocking;
    ncclResult_t state;
    std::unique_ptr<Operation> doing;
    int size() const { return (int)world.size(); }
};

namespace {

char last_error[256];
int next_number = 1;                           // for a communicator, on this rank
std::vector<std::unique_ptr<Bytes>> given_up;  // sends that nobody received
int group_depth;
ncclComm* group_comm;
std::vector<Message> group;

[[noreturn]] void stop(const char* what) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    fprintf(stderr, "emulated NCCL, rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

ncclResult_t failed(ncclResult_t result, const char* words) {
    snprintf(last_error, sizeof last_error, "%s", words);
    return result;
}

double seconds_allowed() {
    const char* text = getenv("EMU_NCCL_SECONDS");
    return text ? atof(text) : 60;
}

void need_mpi() {
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (initialized) return;
    MPI_Init(nullptr, nullptr);
    atexit([] {
        int finalized = 0;
        MPI_Finalized(&finalized);
        if (!finalized) MPI_Finalize();
    });
}

size_t type_bytes(ncclDataType_t type) {
    return type == ncclFloat64 ? 8 : type == ncclFloat32 ? 4 : type == ncclBfloat16 ? 2 : 1;
}

// ---- operations

void post(ncclComm* c) {
    Operation* o = c->doing.get();
    for (const Message& m : o->messages) {
        if (m.peer < 0 || m.peer >= c->size()) stop("a message names a rank that the communicator does not have");
        if (m.bytes > INT_MAX) stop("a message of over 2 GiB");
        int tag = c->number * KINDS + o->kind, peer = c->world[(size_t)m.peer], bytes = (int)m.bytes;
        MPI_Request request;
        if (m.is_send) {
            o->sent.push_back(std::make_unique<Bytes>((const char*)m.data, (const char*)m.data + m.bytes));
            MPI_Isend(o->sent.back()->data(), bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request);
        } else {
            MPI_Irecv(m.data, bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request);
        }
        o->requests.push_back(request);
    }
}

// Takes back what was posted.
void give_up(ncclComm* c) {
    if (!c->doing) return;
    Operation* o = c->doing.get();
    for (size_t i = 0, sends = 0; i < o->messages.size(); i++) {
        bool is_send = o->messages[i].is_send;
        if (is_send) given_up.push_back(std::move(o->sent[sends++]));
        if (o->requests[i] == MPI_REQUEST_NULL) continue;
        if (is_send) {
            MPI_Request_free(&o->requests[i]);
        } else {
            MPI_Cancel(&o->requests[i]);
            MPI_Wait(&o->requests[i], MPI_STATUS_IGNORE);
        }
    }
    c->doing.reset();
}

void progress(ncclComm* c) {
    if (!c->doing) return;
    Operation* o = c->doing.get();
    int late = -1;
    for (size_t i = 0; i < o->requests.size(); i++) {
        if (o->requests[i] == MPI_REQUEST_NULL) continue;
        int done = 0, bytes = 0;
        MPI_Status status;
        MPI_Test(&o->requests[i], &done, &status);
        if (!done) {
            late = o->messages[i].peer;
            continue;
        }
        if (o->messages[i].is_send) continue;
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        if ((size_t)bytes != o->messages[i].bytes) stop("a message is shorter than its receiver expects");
    }
    if (late < 0) {
        c->state = ncclSuccess;
        std::unique_ptr<Operation> finished = std::move(c->doing);
        if (finished->finish) finished->finish();
    } else if (now_seconds() - o->start > seconds_allowed()) {
        give_up(c);
        char words[64];
        snprintf(words, sizeof words, "no message from or to rank %d", late);
        c->state = failed(ncclRemoteError, words);
    }
}

ncclResult_t start(ncclComm* c, Kind kind, std::vector<Message> messages, std::function<void()> finish) {
    if (c->state != ncclSuccess) return failed(ncclInvalidUsage, "the communicator has failed or is in progress");
    c->doing = std::make_unique<Operation>();
    c->doing->kind = kind;
    c->doing->messages = std::move(messages);
    c->doing->finish = std::move(finish);
    c->doing->start = now_seconds();
    c->state = ncclInProgress;
    post(c);
    while (c->blocking && c->state == ncclInProgress) progress(c), sched_yield();
    return c->state;
}

// Every rank's `bytes` into `all`, in rank order.
std::vector<Message> gather_messages(ncclComm* c, const void* own, void* all, size_t bytes) {
    std::vector<Message> messages;
    for (int r = 0; r < c->size(); r++) {
        char* place = (char*)all + (size_t)r * bytes;
        if (r == c->rank) {
            if (place != own) memcpy(place, own, bytes);
            continue;
        }
        messages.push_back({true, r, (void*)own, bytes});
        messages.push_back({false, r, place, bytes});
    }
    return messages;
}

template <class T>
void add(void* sum, const void* x, size_t n) {
    for (size_t i = 0; i < n; i++) ((T*)sum)[i] += ((const T*)x)[i];
}

// out (n) = sum of the rows of all (size, n), from the first to the last.
void sum_rows(void* out, const Bytes& all, size_t n, int rows, ncclDataType_t type) {
    size_t bytes = n * type_bytes(type);
    memcpy(out, all.data(), bytes);
    for (int r = 1; r < rows; r++) {
        const char* row = all.data() + (size_t)r * bytes;
        if (type == ncclFloat64) add<double>(out, row, n);
        else if (type == ncclFloat32) add<float>(out, row, n);
        else if (type != ncclBfloat16) stop("a sum of bytes");
        else
            for (size_t i = 0; i < n; i++)
                ((bf16*)out)[i] =
                    bf16_from_float(bf16_to_float(((bf16*)out)[i]) + bf16_to_float(((const bf16*)row)[i]));
    }
}

// ---- opening and splitting: all ranks must find the same number for the new communicator

struct Member {
    int color, key, next_number;
};

void agree_on_number(const std::vector<Member>& members) {
    for (const Member& m : members) next_number = MAX(next_number, m.next_number);
}

void check_gpus(ncclComm* c) {
    if (!getenv("EMU_NCCL_ONE_GPU")) return;
    c->state = failed(ncclInvalidUsage, "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 0");
}

void make_part(ncclComm* c, ncclComm** part, const std::vector<Member>& members, bool blocking) {
    const Member& own = members[(size_t)c->rank];
    agree_on_number(members);
    int number = next_number++;
    if (own.color < 0) return;
    auto* p = new ncclComm{number, 0, {}, blocking, ncclSuccess, nullptr};
    for (size_t r = 0; r < members.size(); r++) {
        const Member& m = members[r];
        if (m.color != own.color) continue;
        size_t place = 0;  // after those with a smaller key, and of an equal one those before it
        for (size_t s = 0; s < members.size(); s++)
            place += members[s].color == own.color && (members[s].key < m.key || (members[s].key == m.key && s < r));
        if (p->world.size() <= place) p->world.resize(place + 1);
        p->world[place] = c->world[r];
        if ((int)r == c->rank) p->rank = (int)place;
    }
    *part = p;
}

}  // namespace

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    const char* name = getenv("NCCL_COMM_ID");
    int number = name ? NAMED + (int)(hash_bytes(name, strlen(name), 0) % NAMES) : next_number++;
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &number, sizeof number);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
    int number, mpi_rank, mpi_size;
    need_mpi();
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mpi_size);
    *comm = nullptr;
    if (rank != mpi_rank || size > mpi_size) return failed(ncclInvalidArgument, "a rank must be the MPI rank");
    memcpy(&number, id.internal, sizeof number);
    auto* c = new ncclComm{number, rank, {}, config->blocking != 0, ncclSuccess, nullptr};
    for (int r = 0; r < size; r++) c->world.push_back(r);
    *comm = c;
    if (number < NAMED) next_number = MAX(next_number, number + 1);
    auto members = std::make_shared<std::vector<Member>>((size_t)size);
    Member own = {0, 0, next_number};
    auto messages = gather_messages(c, &own, members->data(), sizeof own);
    return start(c, OPEN, messages, [c, members] {
        agree_on_number(*members);
        check_gpus(c);
    });
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t* config) {
    auto members = std::make_shared<std::vector<Member>>((size_t)comm->size());
    Member own = {color, key, next_number};
    bool blocking = config ? config->blocking != 0 : comm->blocking;
    *part = nullptr;
    auto messages = gather_messages(comm, &own, members->data(), sizeof own);
    return start(comm, SPLIT, messages, [=] { make_part(comm, part, *members, blocking); });
}

// The ranks of a machine wait for each other.
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    auto all = std::make_shared<Bytes>((size_t)comm->size());
    char own = 0;
    auto messages = gather_messages(comm, &own, all->data(), 1);
    return start(comm, FINALIZE, messages, [all] {});
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (comm && comm->doing) stop("a communicator is destroyed while it is in progress");
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (comm) give_up(comm);
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
    if (!comm) return failed(ncclInvalidArgument, "no communicator");
    progress(comm);
    *state = comm->state;
    return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
    static const char* const words[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "in progress"};
    return words[result];
}

const char* ncclGetLastError(ncclComm_t) { return last_error; }

// ---- messages

ncclResult_t ncclGroupStart() {
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
    if (group_depth == 0) return failed(ncclInvalidUsage, "not in a group");
    if (--group_depth > 0 || !group_comm) return ncclSuccess;
    ncclComm* c = group_comm;
    group_comm = nullptr;
    return start(c, SEND, std::move(group), nullptr);
}

static ncclResult_t message(Message m, ncclComm_t comm) {
    ncclGroupStart();
    if (group_comm && group_comm != comm) stop("a group over two communicators");
    if (m.peer == comm->rank) stop("a message to oneself");
    if (!group_comm) group.clear();
    group_comm = comm;
    group.push_back(m);
    return ncclGroupEnd();
}

ncclResult_t ncclSend(const void* data, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t) {
    return message({true, peer, (void*)data, n * type_bytes(type)}, comm);
}

ncclResult_t ncclRecv(void* data, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t) {
    return message({false, peer, data, n * type_bytes(type)}, comm);
}

// ---- collectives

static void not_in_group() {
    if (group_depth > 0) stop("a collective within a group, which this stand-in does not know");
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t n, ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                           cudaStream_t) {
    not_in_group();
    size_t bytes = n * type_bytes(type);
    auto all = std::make_shared<Bytes>((size_t)comm->size() * bytes);
    auto messages = gather_messages(comm, in, all->data(), bytes);
    return start(comm, ALL_REDUCE, messages, [=] { sum_rows(out, *all, n, comm->size(), type); });
}

ncclResult_t ncclReduceScatter(const void* in, void* out, size_t n, ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                               cudaStream_t) {
    not_in_group();
    size_t bytes = n * type_bytes(type);
    auto all = std::make_shared<Bytes>((size_t)comm->size() * bytes);
    std::vector<Message> messages;
    for (int r = 0; r < comm->size(); r++) {
        char *part = (char*)in + (size_t)r * bytes, *row = all->data() + (size_t)r * bytes;
        if (r == comm->rank) memcpy(row, part, bytes);
        else messages.push_back({true, r, part, bytes}), messages.push_back({false, r, row, bytes});
    }
    return start(comm, REDUCE_SCATTER, messages, [=] { sum_rows(out, *all, n, comm->size(), type); });
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t n, ncclDataType_t type, ncclComm_t comm, cudaStream_t) {
    not_in_group();
    return start(comm, ALL_GATHER, gather_messages(comm, in, out, n * type_bytes(type)), nullptr);
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t) {
    not_in_group();
    size_t bytes = n * type_bytes(type);
    std::vector<Message> messages;
    if (root < 0 || root >= comm->size()) return failed(ncclInvalidArgument, "no such root");
    for (int r = 0; r < comm->size() && comm->rank == root; r++)
        if (r != root) messages.push_back({true, r, (void*)in, bytes});
    if (comm->rank != root) messages.push_back({false, root, out, bytes});
    else if (in != out) memcpy(out, in, bytes);
    return start(comm, BROADCAST, messages, nullptr);
}
