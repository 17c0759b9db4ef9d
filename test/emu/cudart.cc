// cudart.cc - the runtime calls of test/emu/cuda_runtime.h, and streams as queues of work, see streams.h.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <sched.h>
#include <unistd.h>
#include <vector>

#include "cuda.h"
#include "streams.h"

// What one cudaEventRecord leaves on its stream.
struct Record {
    CUstream_st* stream;
    bool done;
    double seconds;
};

struct CUstream_st {
    std::deque<emu::Work> work;
};

enum { MOST_QUEUED = 1000 };  // of a stream's work where a launch finds room; as on a GPU it blocks else

struct CUevent_st {
    std::shared_ptr<Record> last;  // none: never recorded, which counts as done
};

static CUstream_st default_stream;
static std::vector<CUstream_st*> streams = {&default_stream};

static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- streams

static CUstream_st* named(cudaStream_t s) { return s ? s : &default_stream; }

static bool streams_are_late() {
    const char* text = getenv("EMU_STREAMS");
    return text && strcmp(text, "late") == 0;
}

// Does work in order until some must wait, or `until` is done.
static void advance(CUstream_st* s, const Record* until) {
    while (!s->work.empty() && !(until && until->done)) {
        if (!s->work.front()()) return;
        s->work.pop_front();
    }
}

// Ranks share few cores: a rank that waits for another must not keep it from running.
static void let_others_run(int polls) {
    if (polls < 20) sched_yield();
    else usleep(50);
}

void emu::put_on_stream(cudaStream_t stream, Work work) {
    CUstream_st* s = named(stream);
    s->work.push_back(std::move(work));
    if (!streams_are_late()) advance(s, nullptr);
}

static void finish_work(cudaStream_t stream) {
    CUstream_st* s = named(stream);
    for (int polls = 0; advance(s, nullptr), !s->work.empty(); polls++) let_others_run(polls);
}

long emu_launches;  // kernels and products of a library that were given to streams, for tests

void emu::put_launch(cudaStream_t stream, const std::function<void()>& run) {
    CUstream_st* s = named(stream);
    emu_launches++;
    for (int polls = 0; advance(s, nullptr), s->work.size() >= MOST_QUEUED; polls++) let_others_run(polls);
    if (s->work.empty()) run();
    else s->work.push_back([run] { return run(), true; });
}

void emu::advance_streams() {
    for (CUstream_st* s : streams) advance(s, nullptr);
}

static bool is_done(CUevent_st* e) {
    if (e->last && !e->last->done) advance(e->last->stream, e->last.get());
    return !e->last || e->last->done;
}

static void finish_all() {
    for (CUstream_st* s : streams) finish_work(s);
}

cudaError_t cudaDeviceSynchronize() { return finish_all(), cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return *least = *greatest = 0, cudaSuccess;  // as on devices that have no priorities
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
    return streams.push_back(*s = new CUstream_st), cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned flags, int) {
    return cudaStreamCreateWithFlags(s, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    finish_work(s);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == s) streams.erase(streams.begin() + (long)i);
    return delete s, cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) { return finish_work(s), cudaSuccess; }

// ---- events

static double spent;
void emu::spend(double seconds) { spent += seconds; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { return *e = new CUevent_st, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return delete e, cudaSuccess; }

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    auto record = std::make_shared<Record>(Record{named(s), false, 0});
    e->last = record;
    emu::put_on_stream(s, [record] { return record->seconds = now() + spent, record->done = true; });
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    std::shared_ptr<Record> record = e->last;
    if (!record || record->done) return cudaSuccess;
    emu::put_on_stream(s, [record] {
        if (!record->done) advance(record->stream, record.get());
        return record->done;
    });
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    for (int polls = 0; !is_done(e); polls++) let_others_run(polls);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) { return is_done(e) ? cudaSuccess : cudaErrorNotReady; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
    if (!from->last || !to->last) return cudaErrorInvalidValue;
    if (!is_done(from) || !is_done(to)) return cudaErrorNotReady;
    return *milliseconds = (float)(1e3 * (to->last->seconds - from->last->seconds)), cudaSuccess;
}

// ---- memory

// Bytes of each allocation, by the complement of its address, lest the leak sanitizer take this for a use of it.
static std::map<uintptr_t, size_t> allocations;

#ifdef EMU_SHARED_SECTION
EMU_SHARED_SECTION alignas(emu::PAGE) char emu::last_shared_page[emu::PAGE];
#endif

const char* emu::find_allocation(const void* p, size_t bytes, size_t* of_all) {
    auto found = allocations.lower_bound(~(uintptr_t)p);
    if (found == allocations.end() || (uintptr_t)p - ~found->first > found->second) return nullptr;
    if (bytes > found->second - ((uintptr_t)p - ~found->first)) return nullptr;
    return *of_all = found->second, (const char*)~found->first;
}

// Neither the device's nor page-locked.
static bool is_pageable(const void* p) {
    size_t bytes;
    return !emu::find_allocation(p, 1, &bytes);
}

cudaError_t cudaMalloc(void** p, size_t bytes) {
    *p = emu::guarded(bytes = bytes ? bytes : 1, 256);
    if (!*p) return cudaErrorMemoryAllocation;
    memset(*p, 0xff, bytes);  // NaN: a read before the first write shows
    allocations[~(uintptr_t)*p] = bytes;
    return cudaSuccess;
}

// Waits for the device, as CUDA does.
cudaError_t cudaFree(void* p) {
    finish_all();
    auto found = allocations.find(~(uintptr_t)p);
    if (!p) return cudaSuccess;
    if (found == allocations.end()) return cudaErrorInvalidValue;
    emu::free_guarded((char*)p, found->second);
    return allocations.erase(found), cudaSuccess;
}

extern "C" char __data_start[], _end[];  // the linker's
void emu::lend_statics() { allocations[~(uintptr_t)__data_start] = (size_t)(_end - __data_start); }

cudaError_t cudaMallocHost(void** p, size_t bytes) { return cudaMalloc(p, bytes); }
cudaError_t cudaFreeHost(void* p) { return cudaFree(p); }

// As CUDA does with pageable memory of the host: it may be overwritten on return, and what goes there has arrived.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t s) {
    if (bytes == 0) return cudaSuccess;
    bool now = is_pageable(to);
    if (now) finish_work(s);
    if (now || (named(s)->work.empty() && !streams_are_late())) return memcpy(to, from, bytes), cudaSuccess;
    std::shared_ptr<std::vector<char>> kept;
    if (is_pageable(from)) {
        kept = std::make_shared<std::vector<char>>((const char*)from, (const char*)from + bytes);
        from = kept->data();
    }
    emu::put_on_stream(s, [=] { return (void)kept, memcpy(to, from, bytes), true; });
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* p, int byte, size_t bytes, cudaStream_t s) {
    if (bytes) emu::put_on_stream(s, [=] { return memset(p, byte, bytes), true; });
    return cudaSuccess;
}

// ---- the device

const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaSuccess                 ? "no error"
           : error == cudaErrorMemoryAllocation ? "out of memory"
           : error == cudaErrorNotReady         ? "not ready"
                                                : "invalid argument";
}

cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* n) { return *n = 1, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidValue; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }

// A GPU with few multiprocessors, so that small tests fill it.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulator");
    p->major = emu::capability() / 10, p->minor = emu::capability() % 10;
    p->multiProcessorCount = 4;
    p->totalGlobalMem = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    p->l2CacheSize = 1 << 20;
    return cudaSuccess;
}

// CUDA Driver API, cuTensorMapEncodeTiled.
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* base,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* steps, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    if (rank != 3 || !base || (uintptr_t)base % 16 || box[0] * 2 > 128) return CUDA_ERROR_INVALID_VALUE;
    for (int d = 0; d < 3; d++)
        if (dims[d] < 1 || dims[d] > 1ull << 32 || box[d] < 1 || box[d] > 256 || steps[d] != 1)
            return CUDA_ERROR_INVALID_VALUE;
    for (int d = 0; d < 2; d++)
        if (strides[d] % 16 || strides[d] >= 1ull << 40) return CUDA_ERROR_INVALID_VALUE;
    *map = {CUtensorMap::MAGIC,
            (const char*)base,
            {dims[0], dims[1], dims[2]},
            {strides[0], strides[1]},
            {box[0], box[1], box[2]}};
    return CUDA_SUCCESS;
}

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
    *total = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    *available = (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    return cudaSuccess;
}
