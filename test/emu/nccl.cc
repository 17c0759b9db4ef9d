// nccl.cc - the calls of test/emu/nccl.h by MPI.
//
// Every operation is a set of messages between pairs of ranks. A call that opens, splits or finalizes returns when they
// have arrived. Collectives are work on their stream (streams.h), which reads and writes memory when the stream reaches
// it; so an event that is recorded too early, and data that is used too early, are wrong here every time; and a rank
// that does not come leaves the streams of others waiting. The first collective of a communicator, and the first
// message between two ranks, also connect these ranks, for which the host waits as it does in NCCL. Parts that share
// resources share errors and abort.
//
// What NCCL would do silently wrong, or hang on, ends the program here or is an error: messages of other lengths than
// expected, groups over two communicators or streams, a communicator that is destroyed before its work is done or used
// afterwards. A message's tag holds the communicator's number and the operation, so that different operations never
// meet. Sums are taken in rank order, in the element type.
#include "nccl.h"

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "streams.h"

extern "C" {
#include "plan/base/base.h"
}

namespace {

enum Kind { OPEN, SPLIT, FINALIZE, CONNECT, SEND, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, KINDS };
// Communicators opened by NCCL_COMM_ID are numbered from NAMED by a hash of it; others count from 1.
enum { NAMED = 1 << 20, NAMES = 1 << 16 };

using Bytes = std::vector<char>;

struct Message {
    bool is_send;
    int peer;  // rank of the communicator
    void* data;
    size_t bytes;
};

struct Operation {
    Kind kind;
    std::vector<Message> messages;
    std::vector<std::unique_ptr<Bytes>> sent;  // copies, for MPI may still read what was given up
    std::vector<MPI_Request> requests;         // of the messages; none before they are posted
    std::function<void()> finish;
    double start;
};

// What communicators that share resources have in common.
struct Fate {
    ncclResult_t error;
    bool aborted;
};

}  // namespace

struct ncclComm {
    int number, rank;
    std::vector<int> world;  // the MPI rank of each rank
    std::shared_ptr<Fate> fate;
    std::set<int> connected = {};  // ranks
    int on_stream = 0;             // collectives there
    bool destroyed = false;
    int size() const { return (int)world.size(); }
};

namespace {

char last_error[256];
int next_number = 1;                           // for a communicator, on this rank
std::vector<std::unique_ptr<Bytes>> given_up;  // sends that nobody received
int group_depth;
ncclComm* group_comm;
cudaStream_t group_stream;
std::vector<Message> group;
std::vector<std::unique_ptr<ncclComm>> communicators;  // all ever made: work on streams refers to them

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

void post(const ncclComm* c, Operation* o) {
    o->start = now_seconds();
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
void give_up(Operation* o) {
    for (size_t i = 0, sends = 0; i < o->requests.size(); i++) {
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
    o->requests.clear();
}

// Whether what was posted is over: it has arrived, or the time allowed has passed and it is given up.
bool progress(ncclComm* c, Operation* o) {
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
        if (o->finish) o->finish();
        return true;
    }
    if (now_seconds() - o->start <= seconds_allowed()) return false;
    give_up(o);
    char words[64];
    snprintf(words, sizeof words, "no message from or to rank %d", late);
    c->fate->error = failed(ncclRemoteError, words);
    return true;
}

// Whether the communicator can be called.
bool is_ready(const ncclComm* c) {
    if (c->destroyed) stop("a communicator is used after its end");
    return c->fate->error == ncclSuccess && !c->fate->aborted;
}

ncclResult_t not_ready() { return failed(ncclInvalidUsage, "the communicator has failed"); }

// What a call waits for. The device goes on meanwhile.
ncclResult_t exchange(ncclComm* c, Kind kind, std::vector<Message> messages, std::function<void()> finish) {
    if (!is_ready(c)) return not_ready();
    Operation o{kind, std::move(messages), {}, {}, std::move(finish), 0};
    post(c, &o);
    for (int polls = 0; !progress(c, &o); polls++) {
        emu::advance_streams();
        if (polls < 20) sched_yield();
        else usleep(50);
    }
    return c->fate->error;
}

// With those of these ranks that the communicator has not been connected with yet.
ncclResult_t connect(ncclComm* c, const std::set<int>& ranks) {
    std::vector<Message> messages;
    std::vector<char> bytes((size_t)c->size() + 1);
    for (int r : ranks) {
        if (r < 0 || r >= c->size()) stop("a message names a rank that the communicator does not have");
        if (r == c->rank || !c->connected.insert(r).second) continue;
        messages.push_back({true, r, &bytes[(size_t)c->size()], 1});
        messages.push_back({false, r, &bytes[(size_t)r], 1});
    }
    return messages.empty() ? ncclSuccess : exchange(c, CONNECT, messages, nullptr);
}

// A collective on a stream. What it sends and what it does at its end is determined when the stream reaches it.
ncclResult_t start_on(cudaStream_t stream, ncclComm* c, Kind kind, std::function<void(Operation*)> prepare) {
    if (!is_ready(c)) return not_ready();
    auto o = std::make_shared<Operation>(Operation{kind, {}, {}, {}, nullptr, 0});
    c->on_stream++;
    emu::put_on_stream(stream, [c, o, prepare] {
        bool ended = c->fate->aborted || c->fate->error != ncclSuccess, first = o->start == 0;
        if (ended) {
            give_up(o.get());
        } else if (first) {
            prepare(o.get());
            post(c, o.get());
        }
        bool over = ended || progress(c, o.get());
        c->on_stream -= over;
        return over;
    });
    return ncclSuccess;
}

// One of all ranks.
ncclResult_t start_collective(cudaStream_t stream, ncclComm* c, Kind kind, std::function<void(Operation*)> prepare) {
    if (group_depth > 0) stop("a collective within a group, which this stand-in does not know");
    std::set<int> all;
    for (int r = 0; r < c->size(); r++) all.insert(r);
    ncclResult_t connected = connect(c, all);
    return connected == ncclSuccess ? start_on(stream, c, kind, prepare) : connected;
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
    const char* words = getenv("EMU_NCCL_ONE_GPU");
    if (words) c->fate->error = failed(ncclInvalidUsage, words);
}

ncclComm* add_communicator(int number, int rank, std::shared_ptr<Fate> fate) {
    communicators.push_back(std::unique_ptr<ncclComm>(new ncclComm{number, rank, {}, fate}));
    return communicators.back().get();
}

std::shared_ptr<Fate> new_fate() { return std::make_shared<Fate>(Fate{ncclSuccess, false}); }

void make_part(ncclComm* c, ncclComm** part, const std::vector<Member>& members, bool share) {
    const Member& own = members[(size_t)c->rank];
    agree_on_number(members);
    int number = next_number++;
    if (own.color < 0) return;
    ncclComm* p = add_communicator(number, 0, share ? c->fate : new_fate());
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

int emu_most_ctas;

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
    emu_most_ctas = config->maxCTAs;
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mpi_size);
    *comm = nullptr;
    if (rank != mpi_rank || size > mpi_size) return failed(ncclInvalidArgument, "a rank must be the MPI rank");
    memcpy(&number, id.internal, sizeof number);
    ncclComm* c = add_communicator(number, rank, new_fate());
    for (int r = 0; r < size; r++) c->world.push_back(r);
    if (number < NAMED) next_number = MAX(next_number, number + 1);
    auto members = std::make_shared<std::vector<Member>>((size_t)size);
    Member own = {0, 0, next_number};
    auto messages = gather_messages(c, &own, members->data(), sizeof own);
    ncclResult_t result = exchange(c, OPEN, messages, [c, members] {
        agree_on_number(*members);
        check_gpus(c);
    });
    if (result == ncclSuccess) *comm = c;
    return result;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t* config) {
    auto members = std::make_shared<std::vector<Member>>((size_t)comm->size());
    Member own = {color, key, next_number};
    bool share = config && config->splitShare == 1;
    emu_most_ctas = config ? config->maxCTAs : NCCL_CONFIG_UNDEF_INT;
    *part = nullptr;
    auto messages = gather_messages(comm, &own, members->data(), sizeof own);
    return exchange(comm, SPLIT, messages, [=] { make_part(comm, part, *members, share); });
}

// The ranks of a node wait for each other.
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    auto all = std::make_shared<Bytes>((size_t)comm->size());
    char own = 0;
    auto messages = gather_messages(comm, &own, all->data(), 1);
    return exchange(comm, FINALIZE, messages, [all] {});
}

static ncclResult_t end_communicator(ncclComm* c) {
    if (c->destroyed) stop("a communicator is used after its end");
    c->destroyed = true;
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (comm->on_stream > 0) stop("a communicator is destroyed while its work is on a stream");
    return end_communicator(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    comm->fate->aborted = true;
    return end_communicator(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
    if (!comm) return failed(ncclInvalidArgument, "no communicator");
    if (comm->destroyed) stop("a communicator is used after its end");
    *state = comm->fate->error;
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
    std::set<int> peers;
    for (const Message& m : group) peers.insert(m.peer);
    ncclResult_t connected = connect(c, peers);
    if (connected != ncclSuccess) return connected;
    return start_on(group_stream, c, SEND, [messages = group](Operation* o) { o->messages = messages; });
}

static ncclResult_t message(Message m, ncclComm_t comm, cudaStream_t stream) {
    ncclGroupStart();
    if (group_comm && (group_comm != comm || group_stream != stream)) stop("a group over two communicators or streams");
    if (m.peer == comm->rank) stop("a message to oneself");
    if (!group_comm) group.clear();
    group_comm = comm;
    group_stream = stream;
    group.push_back(m);
    return ncclGroupEnd();
}

ncclResult_t ncclSend(const void* data, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s) {
    return message({true, peer, (void*)data, n * type_bytes(type)}, comm, s);
}

ncclResult_t ncclRecv(void* data, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s) {
    return message({false, peer, data, n * type_bytes(type)}, comm, s);
}

// ---- collectives

ncclResult_t ncclAllReduce(const void* in, void* out, size_t n, ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                           cudaStream_t s) {
    return start_collective(s, comm, ALL_REDUCE, [=](Operation* o) {
        size_t bytes = n * type_bytes(type);
        auto all = std::make_shared<Bytes>((size_t)comm->size() * bytes);
        o->messages = gather_messages(comm, in, all->data(), bytes);
        o->finish = [=] { sum_rows(out, *all, n, comm->size(), type); };
    });
}

ncclResult_t ncclReduceScatter(const void* in, void* out, size_t n, ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                               cudaStream_t s) {
    return start_collective(s, comm, REDUCE_SCATTER, [=](Operation* o) {
        size_t bytes = n * type_bytes(type);
        auto all = std::make_shared<Bytes>((size_t)comm->size() * bytes);
        for (int r = 0; r < comm->size(); r++) {
            char *part = (char*)in + (size_t)r * bytes, *row = all->data() + (size_t)r * bytes;
            if (r == comm->rank) memcpy(row, part, bytes);
            else o->messages.push_back({true, r, part, bytes}), o->messages.push_back({false, r, row, bytes});
        }
        o->finish = [=] { sum_rows(out, *all, n, comm->size(), type); };
    });
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t n, ncclDataType_t type, ncclComm_t comm, cudaStream_t s) {
    return start_collective(s, comm, ALL_GATHER,
                    [=](Operation* o) { o->messages = gather_messages(comm, in, out, n * type_bytes(type)); });
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t s) {
    if (root < 0 || root >= comm->size()) return failed(ncclInvalidArgument, "no such root");
    return start_collective(s, comm, BROADCAST, [=](Operation* o) {
        size_t bytes = n * type_bytes(type);
        for (int r = 0; r < comm->size() && comm->rank == root; r++)
            if (r != root) o->messages.push_back({true, r, (void*)in, bytes});
        if (comm->rank != root) o->messages.push_back({false, root, out, bytes});
        else if (in != out) memcpy(out, in, bytes);
    });
}
