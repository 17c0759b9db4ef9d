// emulator.cc - the machine behind emulator.h: fibers, barriers, warp operations, address spaces, asynchronous copies.
//
// Compiled without ThreadSanitizer even when the kernels are compiled with it: this file is the emulated machine, and
// it tells the sanitizer explicitly which order it creates between threads.
#include "cuda.h"
#include "emulator.h"

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sys/mman.h>

#ifdef EMU_ADDRESS_SANITIZER
extern "C" void __sanitizer_start_switch_fiber(void** save, const void* bottom, size_t bytes);
extern "C" void __sanitizer_finish_switch_fiber(void* saved, const void** bottom, size_t* bytes);
#endif
#ifdef EMU_FOR_THREAD_SANITIZER
extern "C" void* __tsan_get_current_fiber(void);
extern "C" void* __tsan_create_fiber(unsigned flags);
extern "C" void __tsan_switch_to_fiber(void* fiber, unsigned flags);
extern "C" void __tsan_acquire(void* object);
extern "C" void __tsan_release(void* object);
static void acquire(void* object) { __tsan_acquire(object); }
static void release(void* object) { __tsan_release(object); }
#else
static void acquire(void*) {}
static void release(void*) {}
#endif

// The linker's: a section, and all that is static.
extern "C" char __start_emu_shared[], __stop_emu_shared[], __data_start[], _end[];

namespace emu {

#ifdef EMU_SHARED_SECTION
EMU_SHARED_SECTION alignas(PAGE) static char first_shared_page[PAGE];
static char *static_shared = first_shared_page + PAGE, *static_shared_end = last_shared_page;
#else  // __shared__ variables are somewhere in here
static char *static_shared = __data_start, *static_shared_end = _end;
#endif

enum State { DONE, READY, AT_BARRIER, AT_WARP_OPERATION, AT_OBJECT };
constexpr size_t STACK_BYTES = 256 << 10;
constexpr int MOST_THREADS = 1024, MOST_COPIES = 128, MOST_MASKS = 40;

// Nothing below is allocated while threads run: the sanitizers would take the allocator's writes for the thread's.

struct Snapshot {
    Gathered gathered;
    int readers = 0;  // threads that may still look at it
};

// What a thread has under way on Hopper.
constexpr int MOST_PRODUCTS = 128, MOST_ACCUMULATORS = 4, MOST_FLOATS = 64;
struct Accumulator {
    float* d = nullptr;
    int n = 0;
    float value[MOST_FLOATS];
};
struct Hopper {
    Product products[MOST_PRODUCTS];
    int n_products = 0, next = 0, open_group = 0, count = 0;
    bool fenced = false;
    Accumulator accumulators[MOST_ACCUMULATORS];
    int registers = 0;
};

struct Thread {
    Position position{};
    State state = DONE;
    int index = 0, warp = 0;
    unsigned mask = 0;             // of the warp operation it waits in
    int line = 0;                  // of the barrier it waits at
    Snapshot* snapshot = nullptr;  // of its last warp operation
    Copy copies[MOST_COPIES];      // cp.async that were not waited for
    int n_copies = 0, open_group = 0;
    const void* object = nullptr;  // that it waits for
    Hopper hopper;
    void* stack_pointer = nullptr;
    char* stack = nullptr;
    void *sanitizer_fiber = nullptr, *fake_stack = nullptr;
};

// Threads that meet in one place release an object before and acquire it after. Consecutive meetings use two objects in
// turn: with one, a thread that has gone on would seem to order those that have not.
struct Meeting {
    unsigned mask = 0;
    int generation = 0;
    char objects[2] = {0, 0};
    void* object() { return &objects[generation & 1]; }
};

struct Warp {
    unsigned left = 0;  // lanes that have returned
    unsigned char value[WARP][LANE_BYTES];
    Meeting meetings[MOST_MASKS];  // one for each mask that was used
    int n_meetings = 0;
    Snapshot snapshots[WARP + 1];  // each lane holds one at most
};

static struct {
    Thread* threads[MOST_THREADS];
    Warp warps[MOST_THREADS / WARP];
    Thread host;
    Thread* current = nullptr;
    int n_stacks = 0, n = 0, arrived = 0, left = 0, order = 0;
    Meeting barrier;
    const char* kernel = "";
    void (*body)(void*) = nullptr;
    void* context = nullptr;
    char* shared = nullptr;  // of the running block, dynamic; it stays for launches with as much
    size_t shared_bytes = 0;
    char start, end;  // objects: host to threads, threads to host
    const void* host_stack = nullptr;
    size_t host_stack_bytes = 0;
} gpu;

Position* position = &gpu.host.position;

// memcpy would be seen by ThreadSanitizer.
static inline void copy_bytes(void* to, const void* from, size_t n) {
#ifdef EMU_FOR_THREAD_SANITIZER
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
#else
    if (n) memcpy(to, from, n);
#endif
}

void fail(const char* format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fflush(stdout);
    uint3 b = gpu.current ? gpu.current->position.block : uint3{0, 0, 0};
    fprintf(stderr, "emulator: kernel %s, block (%u,%u,%u), thread %d: %s\n", gpu.kernel, b.x, b.y, b.z,
            gpu.current ? gpu.current->index : 0, text);
    int shown = 0;
    for (int i = 0; i < gpu.n && shown < 8; i++) {
        const Thread* t = gpu.threads[i];
        if (t->state != AT_BARRIER && t->state != AT_WARP_OPERATION && t->state != AT_OBJECT) continue;
        if (t->state == AT_OBJECT)
            fprintf(stderr, "  thread %d waits at a barrier in shared memory, or a named one\n", i);
        else if (t->state == AT_BARRIER)
            fprintf(stderr, "  thread %d waits at the __syncthreads in line %d\n", i, t->line);
        else fprintf(stderr, "  thread %d waits at a warp operation of lanes %08x\n", i, t->mask);
        shown++;
    }
    abort();
}

// ---- fibers: the callee-saved registers go onto the stack of the one that leaves

extern "C" void emu_switch_stack(void** save, void* to);
#ifdef __x86_64__
asm(".text\n.globl emu_switch_stack\n.type emu_switch_stack,@function\nemu_switch_stack:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
enum { SAVED_REGISTERS = 6 };
#else
#error "the emulator switches stacks in x86-64 assembly; it was not written for this processor"
#endif

static void switch_to(Thread* to) {
    Thread* from = gpu.current;
    gpu.current = to;
    position = &to->position;
#ifdef EMU_ADDRESS_SANITIZER
    bool host = to == &gpu.host;
    __sanitizer_start_switch_fiber(&from->fake_stack, host ? gpu.host_stack : to->stack,
                                   host ? gpu.host_stack_bytes : STACK_BYTES);
#endif
#ifdef EMU_FOR_THREAD_SANITIZER
    __tsan_switch_to_fiber(to->sanitizer_fiber, 1);  // 1: no order between the two
#endif
    emu_switch_stack(&from->stack_pointer, to->stack_pointer);
#ifdef EMU_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

// The next thread that can run, by the order that was asked for: the whole block in turn, or first the own warp.
static Thread* next_ready() {
    int i = gpu.current->index, n = gpu.n, down = gpu.order & 1;
    if (gpu.order >= 2) {
        int base = i / WARP * WARP, width = base + WARP < n ? WARP : n - base;
        for (int k = 1; k <= width; k++) {
            Thread* t = gpu.threads[base + (i - base + (down ? width - k : k)) % width];
            if (t->state == READY) return t;
        }
    }
    for (int k = 1; k <= n; k++) {
        Thread* t = gpu.threads[(i + (down ? n - k : k)) % n];
        if (t->state == READY) return t;
    }
    return nullptr;
}

static bool finish_a_copy();

static void run_another() {
    Thread* next = next_ready();
    while (!next && finish_a_copy()) next = next_ready();
    if (!next && gpu.left == gpu.n) next = &gpu.host;
    if (!next) fail("deadlock: threads wait at different places");
    if (next != gpu.current) switch_to(next);
}

// ---- __syncthreads

static void open_barrier() {
    int line = 0;
    for (int i = 0; i < gpu.n; i++) {
        Thread* t = gpu.threads[i];
        if (t->state != AT_BARRIER) continue;
        if (line && t->line != line) fail("threads of one block wait at different __syncthreads");
        line = t->line;
    }
    if (gpu.left) fail("%d threads returned before a __syncthreads that others wait at", gpu.left);
    for (int i = 0; i < gpu.n; i++) gpu.threads[i]->state = READY;
    gpu.arrived = 0;
    gpu.barrier.generation++;
}

void block_barrier(int line) {
    Thread* me = gpu.current;
    void* object = gpu.barrier.object();
    me->line = line;
    me->state = AT_BARRIER;
    release(object);
    if (++gpu.arrived + gpu.left == gpu.n) open_barrier();
    while (me->state == AT_BARRIER) run_another();
    acquire(object);
}

// ---- warp operations: all lanes of the mask bring a value, and go on when the last has come

static Meeting* meeting(Warp& w, unsigned mask) {
    for (int i = 0; i < w.n_meetings; i++)
        if (w.meetings[i].mask == mask) return &w.meetings[i];
    if (w.n_meetings == MOST_MASKS) fail("a warp uses more than %d different masks", MOST_MASKS);
    Meeting* m = &w.meetings[w.n_meetings++];
    m->mask = mask;
    return m;
}

static void forget_snapshot(Thread* t) {
    if (t->snapshot) t->snapshot->readers--;
    t->snapshot = nullptr;
}

static void open_warp_operation(Warp& w, Meeting* m, int first, unsigned mask) {
    Snapshot* s = w.snapshots;
    while (s->readers) s++;
    s->gathered.mask = mask;
    copy_bytes(s->gathered.value, w.value, sizeof w.value);
    m->generation++;
    for (int lane = 0; lane < WARP; lane++) {
        if (!(mask >> lane & 1)) continue;
        Thread* t = gpu.threads[first + lane];
        t->state = READY;
        t->snapshot = s;
        s->readers++;
    }
}

const Gathered* gather(unsigned mask, const void* value, size_t bytes) {
    Thread* me = gpu.current;
    Warp& w = gpu.warps[me->warp];
    int first = me->warp * WARP, lanes = gpu.n - first;
    if (lanes < WARP) mask &= (1u << lanes) - 1;  // a warp that is not full has no other lanes
    if (!(mask >> me->position.lane & 1)) fail("a thread calls a warp operation whose mask does not name it");
    if (mask & w.left) fail("a warp operation names lanes that have returned (mask %08x)", mask & w.left);
    forget_snapshot(me);
    copy_bytes(w.value[me->position.lane], value, bytes);
    me->state = AT_WARP_OPERATION;
    me->mask = mask;
    Meeting* m = meeting(w, mask);
    void* object = m->object();
    release(object);
    bool all = true;
    for (int lane = 0; lane < WARP && all; lane++) {
        if (!(mask >> lane & 1)) continue;
        const Thread* t = gpu.threads[first + lane];
        all = t->state == AT_WARP_OPERATION && t->mask == mask;
    }
    if (all) open_warp_operation(w, m, first, mask);
    while (me->state == AT_WARP_OPERATION) run_another();
    acquire(object);
    return &me->snapshot->gathered;
}

void read_lane(void* value, const Gathered* g, int lane, size_t offset, size_t bytes) {
    copy_bytes(value, g->value[lane] + offset, bytes);
}

// ---- address spaces

#ifdef EMU_ADDRESS_SANITIZER
char* guarded(size_t bytes, size_t alignment) {
    void* p = nullptr;
    return posix_memalign(&p, alignment, bytes) ? nullptr : (char*)p;
}
void free_guarded(char* p, size_t) { free(p); }
#else
// What was freed stays, as pages that nobody may touch, for the next one of its size: new pages are dear.
static struct {
    char* pages;
    size_t inside;
} freed[16];

char* guarded(size_t bytes, size_t alignment) {
    bytes = (bytes + alignment - 1) / alignment * alignment;
    size_t inside = (bytes + PAGE - 1) / PAGE * PAGE;
    char* pages = nullptr;
    for (auto& f : freed)
        if (!pages && f.pages && f.inside == inside) pages = f.pages, f.pages = nullptr;
    if (!pages)
        pages = (char*)mmap(nullptr, inside + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) return nullptr;
    if (!mprotect(pages + PAGE, inside, PROT_READ | PROT_WRITE)) return pages + PAGE + inside - bytes;
    munmap(pages, inside + 2 * PAGE);
    return nullptr;
}

void free_guarded(char* p, size_t bytes) {
    static unsigned next;
    char* pages = (char*)((uintptr_t)p / PAGE * PAGE) - PAGE;
    size_t inside = ((size_t)(p - pages) + bytes - 1) / PAGE * PAGE;
    auto& f = freed[next++ % (sizeof freed / sizeof *freed)];
    if (f.pages) munmap(f.pages, f.inside + 2 * PAGE);
    f = {pages, inside};
    if (mprotect(pages + PAGE, inside, PROT_NONE)) fail("no guard around what was freed");
}
#endif

static bool lies_in(const char* p, size_t bytes, const char* begin, const char* end) {
    return p >= begin && p <= end && bytes <= (size_t)(end - p);
}

static bool is_shared(const char* p, size_t bytes) {
    if (gpu.shared && lies_in(p, bytes, gpu.shared, gpu.shared + gpu.shared_bytes)) return true;
    return lies_in(p, bytes, static_shared, static_shared_end);
}

// Where the bytes are, in words.
static const char* place_of(const char* p, size_t bytes) {
    size_t of_all;
    if (is_shared(p, bytes)) return "in shared memory";
    if (find_allocation(p, bytes, &of_all)) return "in global memory";
    if (gpu.shared && p >= gpu.shared && p < gpu.shared + gpu.shared_bytes + PAGE)
        return "beyond the block's shared memory";
    if (find_allocation(p, 0, &of_all) || find_allocation(p - PAGE, 0, &of_all))
        return "behind an allocation of global memory";
    return "in no memory of the device";
}

static void check_address(const char* instruction, const char* p, size_t bytes, bool right, const char* space) {
    if ((uintptr_t)p % bytes) fail("%s: address %p is no multiple of %zu", instruction, (const void*)p, bytes);
    if (right) return;
    fail("%s: address %p is %s, not in %s memory", instruction, (const void*)p, place_of(p, bytes), space);
}

void check_shared_address(const char* instruction, const void* p, size_t bytes) {
    check_address(instruction, (const char*)p, bytes, is_shared((const char*)p, bytes), "shared");
}

void check_global_address(const char* instruction, const void* p, size_t bytes) {
    size_t of_all;
    check_address(instruction, (const char*)p, bytes, find_allocation(p, bytes, &of_all), "global");
}

void check_pointer(const char* kernel, const void* p) {
    size_t of_all;
    if (!p || find_allocation(p, 0, &of_all)) return;
    gpu.kernel = kernel;
    fail("an argument, address %p, is %s", p, place_of((const char*)p, 1));
}

#ifndef EMU_ADDRESS_SANITIZER  // which reports these itself
// A read or a write of a kernel that no mapped page answers.
static void report_fault(int signal_number, siginfo_t* info, void*) {
    if (!gpu.current || gpu.current == &gpu.host) {  // the host's own: as ever
        signal(signal_number, SIG_DFL);
        return;
    }
    fail("it reads or writes at address %p, %s", info->si_addr, place_of((const char*)info->si_addr, 1));
}

static void report_faults() {
    static char stack[64 << 10];  // that of the fiber may be full
    stack_t other = {};
    other.ss_sp = stack, other.ss_size = sizeof stack;
    struct sigaction action = {};
    action.sa_sigaction = report_fault, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    if (sigaltstack(&other, nullptr) || sigaction(SIGSEGV, &action, nullptr) || sigaction(SIGBUS, &action, nullptr))
        fail("no handler for faults");
}
#else
static void report_faults() {}
#endif

static void guard_spaces() {
    static bool done;
    if (done) return;
    done = true;
    report_faults();
#ifdef EMU_SHARED_SECTION
    const char *begin = __start_emu_shared, *end = __stop_emu_shared;
    asm("" : "+r"(begin), "+r"(end));  // compilers think that no two symbols are one address
    if (static_shared - PAGE != begin || static_shared_end + PAGE != end)
        fail("kernels must be linked behind emulator.o and before cudart.o");
    if (mprotect(first_shared_page, PAGE, PROT_NONE) || mprotect(last_shared_page, PAGE, PROT_NONE))
        fail("no guard around shared memory");
#endif
}

// ---- cp.async

void async_copy(void* shared, const void* global, int bytes) {
    if (bytes < 0 || bytes > 16) fail("cp.async: %d bytes; 0 to 16 are possible", bytes);
    check_shared_address("cp.async", shared, 16);
    if ((uintptr_t)global & 15) fail("cp.async: the global address is not 16-byte aligned");
    if (bytes) check_global_address("cp.async", global, 16);
    Thread* me = gpu.current;
    if (me->n_copies == MOST_COPIES) fail("a thread has more than %d cp.async under way", MOST_COPIES);
    me->copies[me->n_copies++] = {shared, global, bytes, me->open_group};
}

void async_commit() { gpu.current->open_group++; }

int finished_copies(int groups_that_may_be_open, const Copy** list) {
    static Copy finished[MOST_COPIES];
    Thread* me = gpu.current;
    int n = 0, kept = 0;
    for (int i = 0; i < me->n_copies; i++) {
        Copy c = me->copies[i];
        if (c.group < me->open_group - groups_that_may_be_open) finished[n++] = c;
        else me->copies[kept++] = c;
    }
    me->n_copies = kept;
    *list = finished;
    return n;
}

// ---- Hopper: barriers in shared memory and named ones

int capability() {
    const char* text = getenv("EMU_CAPABILITY");
    return text ? atoi(text) : 89;
}

static bool is_hopper() { return capability() == 90; }

// An mbarrier as it lies in shared memory, where NaN means that it was never initialised.
struct MBarrier {
    int32_t bytes;  // announced, less those that are here
    uint16_t pending;
    uint16_t count : 15, phase : 1;
};
constexpr int NAMED = 16, MOST_BOXES = 256, LOG = 4096, REGISTERS = 64 << 10, SHARED_BEGIN = 1024 + 16;

static struct {
    const void* unshown[64];  // mbarriers that were initialised and not fenced
    int n_unshown;
    struct {
        int arrived, threads;
        char objects[2];
        int generation;
    } named[NAMED];
    BoxCopy boxes[MOST_BOXES];  // under way
    int n_boxes, first_box;
    uint16_t writer[SHARED_BYTES_HOPPER / 4 + 1];  // of each 4 bytes of dynamic shared memory, if it did not fence them
    struct {
        int index;  // of a warpgroup's products, from 1
        uint64_t a, b;
    } log[MOST_THREADS / 128][LOG];  // what its first warp multiplied
} hopper;

static void wake(const void* object) {
    for (int i = 0; i < gpu.n; i++)
        if (gpu.threads[i]->state == AT_OBJECT && gpu.threads[i]->object == object) gpu.threads[i]->state = READY;
}

static void sleep_at(const void* object) {
    gpu.current->object = object;
    gpu.current->state = AT_OBJECT;
    while (gpu.current->state == AT_OBJECT) run_another();
}

static MBarrier read_mbarrier(const char* instruction, const uint64_t* barrier) {
    MBarrier b;
    uint64_t word;
    check_shared_address(instruction, barrier, sizeof *barrier);
    copy_bytes(&word, barrier, sizeof word);
    if (word == ~0ull) fail("%s: the barrier was not initialised", instruction);
    memcpy(&b, &word, sizeof b);
    return b;
}

// Writes it back, or its next phase when this one is complete.
static void write_mbarrier(uint64_t* barrier, MBarrier b) {
    bool complete = !b.pending && !b.bytes;
    if (complete) b.pending = b.count, b.phase ^= 1;
    copy_bytes(barrier, &b, sizeof b);
    if (complete) wake(barrier);
}

void mbarrier_init(uint64_t* barrier, unsigned arrivals) {
    check_shared_address("mbarrier.init", barrier, sizeof *barrier);
    if (arrivals < 1 || arrivals > 1024) fail("mbarrier.init for %u arrivals", arrivals);
    MBarrier b = {0, (uint16_t)arrivals, (uint16_t)(arrivals & 0x7fff), 0};
    copy_bytes(barrier, &b, sizeof b);
    if (hopper.n_unshown < 64) hopper.unshown[hopper.n_unshown++] = barrier;
}

void mbarrier_init_fence() { hopper.n_unshown = 0; }

void mbarrier_arrive(uint64_t* barrier, unsigned bytes) {
    MBarrier b = read_mbarrier("mbarrier.arrive", barrier);
    if (!b.pending) fail("mbarrier.arrive: more than %d arrivals in a phase", b.count);
    release((char*)barrier + b.phase);
    b.pending--;
    b.bytes += (int)bytes;
    write_mbarrier(barrier, b);
}

void mbarrier_wait(uint64_t* barrier, unsigned parity) {
    while (read_mbarrier("mbarrier.try_wait", barrier).phase == parity) sleep_at(barrier);
    acquire((char*)barrier + parity);
}

void named_barrier(int index, int threads, bool waits) {
    if (index < 1 || index >= NAMED) fail("bar: barrier %d; 1 to 15 are possible", index);
    auto& b = hopper.named[index];
    if (threads < WARP || threads % WARP || threads > gpu.n) fail("bar: %d threads of %d", threads, gpu.n);
    if (b.arrived && b.threads != threads)
        fail("bar: barrier %d is for %d and for %d threads", index, b.threads, threads);
    void* object = &b.objects[b.generation & 1];
    release(object);
    b.threads = threads;
    if (++b.arrived == threads) {
        b.arrived = 0;
        b.generation++;
        wake(object);
    } else if (waits) {
        sleep_at(object);
    }
    if (waits) acquire(object);
}

void set_registers(int registers, bool more) {
    Thread* me = gpu.current;
    gather(~0u, nullptr, 0);
    if (registers < 24 || registers > 256 || registers % 8) fail("setmaxnreg: %d registers", registers);
    if (more != (registers >= me->hopper.registers))
        fail("setmaxnreg: from %d to %d registers is the other direction", me->hopper.registers, registers);
    me->hopper.registers = registers;
}

static void begin_hopper_block() {
    hopper.n_unshown = hopper.n_boxes = hopper.first_box = 0;
    if (!is_hopper()) return;
    for (auto& b : hopper.named) b.arrived = 0;
    memset(hopper.writer, 0, sizeof hopper.writer);
    memset(hopper.log, 0, sizeof hopper.log);
    for (int i = 0; i < gpu.n; i++) {
        Hopper& h = gpu.threads[i]->hopper;
        h.n_products = h.next = h.open_group = h.count = 0;
        h.fenced = false;
        for (Accumulator& a : h.accumulators) a.d = nullptr;
        h.registers = REGISTERS / gpu.n / 8 * 8;
        if (h.registers > 256) h.registers = 256;
    }
}

static void end_hopper_block() {
    if (!is_hopper()) return;
    int registers = 0;
    for (int i = 0; i < gpu.n; i++) {
        registers += gpu.threads[i]->hopper.registers;
        if (gpu.threads[i]->hopper.registers != gpu.threads[i / 128 * 128]->hopper.registers)
            fail("setmaxnreg: warps of a warpgroup have different numbers of registers");
    }
    if (registers > REGISTERS / gpu.n / 8 * 8 * gpu.n)
        fail("setmaxnreg: the warpgroups wait for ever for %d registers", registers);
    if (hopper.n_boxes) fail("the block ended before its tensor copies arrived");
    for (int i = 1; i < NAMED; i++)
        if (hopper.named[i].arrived)
            fail("the block ended while %d threads were at barrier %d", hopper.named[i].arrived, i);
}

// ---- Hopper: proxies and tensor copies

unsigned shared_address(const void* p) {
    if (!gpu.shared || !lies_in((const char*)p, 0, gpu.shared, gpu.shared + gpu.shared_bytes))
        fail("a shared address of %p, which is %s", p, place_of((const char*)p, 1));
    return (unsigned)((const char*)p - gpu.shared) + SHARED_BEGIN;
}

char* at_shared_address(const char* instruction, unsigned address) {
    if (address < SHARED_BEGIN || address >= SHARED_BEGIN + gpu.shared_bytes)
        fail("%s: shared address %u is outside the block's shared memory", instruction, address);
    return gpu.shared + (address - SHARED_BEGIN);
}

void wrote_for_proxy(const void* p, size_t bytes) {
    size_t from = (shared_address(p) - SHARED_BEGIN) / 4;
    for (size_t i = from; i < from + bytes / 4; i++) hopper.writer[i] = (uint16_t)(gpu.current->index + 1);
}

void fence_proxy() {
    for (size_t i = 0; i < gpu.shared_bytes / 4; i++)
        if (hopper.writer[i] == gpu.current->index + 1) hopper.writer[i] = 0;
}

void check_proxy(const char* instruction, const void* p) {
    int writer = hopper.writer[((const char*)p - gpu.shared) / 4];
    if (writer) fail("%s reads what thread %d wrote without a fence.proxy.async after it", instruction, writer - 1);
}

static void finish_copy(const BoxCopy& c) {
    const CUtensorMap& m = *c.map;
    const int64_t at[3] = {c.column, c.head, c.row};
    unsigned bytes = 0;
    for (unsigned row = 0; row < m.box[2]; row++)
        for (unsigned head = 0; head < m.box[1]; head++)
            for (unsigned i = 0; i < m.box[0]; i++, bytes += 2) {
                int64_t place[3] = {at[0] + i, at[1] + head, at[2] + row};
                bool inside = true;
                for (int d = 0; d < 3; d++) inside &= place[d] >= 0 && place[d] < (int64_t)m.dims[d];
                unsigned to = c.to + bytes;
                to ^= (to >> 7 & 7) << 4;
                uint16_t value = 0;
                if (inside)
                    copy_bytes(
                        &value,
                        m.base + 2 * place[0] + (int64_t)m.strides[0] * place[1] + (int64_t)m.strides[1] * place[2], 2);
                copy_bytes(at_shared_address("cp.async.bulk.tensor", to), &value, 2);
            }
    MBarrier b = read_mbarrier("cp.async.bulk.tensor", c.barrier);
    b.bytes -= (int)bytes;
    write_mbarrier(c.barrier, b);
}

static bool finish_a_copy() {
    if (!hopper.n_boxes) return false;
    hopper.n_boxes--;
    return finish_copy(hopper.boxes[hopper.first_box++ % MOST_BOXES]), true;
}

void tma_load(const BoxCopy& c) {
    const CUtensorMap& m = *c.map;
    size_t bytes = 2 * m.box[0] * m.box[1] * m.box[2], of_all;
    if (m.magic != CUtensorMap::MAGIC) fail("cp.async.bulk.tensor: no tensor map");
    if (c.to % 1024) fail("cp.async.bulk.tensor: shared address %u is no multiple of 1024", c.to);
    at_shared_address("cp.async.bulk.tensor", c.to + (unsigned)bytes - 1);
    if (!find_allocation(m.base, 1, &of_all)) fail("cp.async.bulk.tensor: the tensor is not in global memory");
    read_mbarrier("cp.async.bulk.tensor", c.barrier);
    for (int i = 0; i < hopper.n_unshown; i++)
        if (hopper.unshown[i] == c.barrier) fail("cp.async.bulk.tensor: the barrier was initialised without a fence");
    for (size_t i = 0; i < bytes; i += 4)
        check_proxy("cp.async.bulk.tensor", at_shared_address("", c.to + (unsigned)i));
    if (gpu.order < 2) return finish_copy(c);
    for (size_t i = 0; i < bytes; i++) {
        unsigned char nan = 0xff;
        copy_bytes(at_shared_address("", c.to + (unsigned)i), &nan, 1);
    }
    if (hopper.n_boxes == MOST_BOXES) fail("more than %d tensor copies are under way", MOST_BOXES);
    hopper.boxes[(hopper.first_box + hopper.n_boxes++) % MOST_BOXES] = c;
}

// ---- Hopper: matmuls of a warpgroup

void wgmma_fence() {
    gather(~0u, nullptr, 0);
    gpu.current->hopper.fenced = true;
}

void wgmma_begin(Product p) {
    Thread* me = gpu.current;
    Hopper& h = me->hopper;
    if (!h.fenced) fail("wgmma without a wgmma.fence since registers were free");
    if (h.n_products == MOST_PRODUCTS && !h.next) fail("a thread has more than %d wgmma under way", MOST_PRODUCTS);
    auto& entry = hopper.log[me->warp / 4][++h.count % LOG];
    if (entry.index < h.count) entry = {h.count, p.a_described, p.b_described};
    if (entry.index == h.count && (entry.a != p.a_described || entry.b != p.b_described))
        fail("wgmma: warps of a warpgroup describe different operands");
    Accumulator* found = nullptr;
    for (Accumulator& a : h.accumulators)
        if (a.d == p.d) found = &a;
    for (Accumulator& a : h.accumulators)
        if (!found && !a.d) {
            (found = &a)->d = p.d;
            a.n = p.n / 2;
            memcpy(a.value, p.d, sizeof(float) * (size_t)a.n);
            memset(p.d, 0xff, sizeof(float) * (size_t)a.n);
        }
    if (!found) fail("a thread has more than %d accumulators under way", MOST_ACCUMULATORS);
    p.value = found->value;
    p.group = h.open_group;
    if (p.a) memcpy(p.a_before, p.a, sizeof p.a_before);
    if (h.next == h.n_products) h.next = h.n_products = 0;
    if (h.n_products == MOST_PRODUCTS) {
        memmove(h.products, h.products + h.next, sizeof *h.products * (size_t)(h.n_products -= h.next));
        h.next = 0;
    }
    h.products[h.n_products++] = p;
}

void wgmma_commit() {
    gather(~0u, nullptr, 0);
    gpu.current->hopper.open_group++;
}

Product* wgmma_next(int open) {
    Hopper& h = gpu.current->hopper;
    if (h.next == h.n_products || h.products[h.next].group >= h.open_group - open) return nullptr;
    Product* p = &h.products[h.next++];
    if (p->a && memcmp(p->a, p->a_before, sizeof p->a_before))
        fail("registers of a wgmma changed while it was under way");
    return p;
}

void wgmma_settle() {
    Hopper& h = gpu.current->hopper;
    gather(~0u, nullptr, 0);
    h.fenced = false;
    for (Accumulator& a : h.accumulators) {
        bool open = false;
        for (int i = h.next; i < h.n_products; i++) open |= h.products[i].d == a.d;
        if (!a.d || open) continue;
        for (size_t i = 0; i < sizeof(float) * (size_t)a.n; i++)
            if (((const unsigned char*)a.d)[i] != 0xff) fail("accumulators of a wgmma changed while it was under way");
        memcpy(a.d, a.value, sizeof(float) * (size_t)a.n);
        a.d = nullptr;
    }
}

// ---- launch

static void report_return() {
    Thread* me = gpu.current;
    if (me->n_copies) fail("a thread returned before it waited for its cp.async");
    if (me->hopper.next < me->hopper.n_products) fail("a thread returned before it waited for its wgmma");
    forget_snapshot(me);
    me->state = DONE;
    gpu.left++;
    Warp& w = gpu.warps[me->warp];
    w.left |= 1u << me->position.lane;
    for (int lane = 0; lane < WARP && me->warp * WARP + lane < gpu.n; lane++) {
        const Thread* t = gpu.threads[me->warp * WARP + lane];
        if (t->state == AT_WARP_OPERATION && (t->mask & w.left))
            fail("a lane returned that a warp operation of others names (mask %08x)", t->mask & w.left);
    }
    if (gpu.arrived && gpu.arrived + gpu.left == gpu.n) open_barrier();
}

static void thread_main() {
#ifdef EMU_ADDRESS_SANITIZER
    const void* bottom = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (!gpu.host_stack) gpu.host_stack = bottom, gpu.host_stack_bytes = bytes;
#endif
    for (;;) {  // once a block
        acquire(&gpu.start);
        gpu.body(gpu.context);
        release(&gpu.end);
        report_return();
        run_another();
    }
}

static Thread* new_thread(int index) {
    Thread* t = new Thread;
    t->index = index;
    t->warp = index / WARP;
    t->position.lane = index % WARP;
    t->stack = guarded(STACK_BYTES, PAGE);
    if (!t->stack) fail("no memory for the stack of a thread");
#ifdef EMU_FOR_THREAD_SANITIZER
    t->sanitizer_fiber = __tsan_create_fiber(0);
#endif
    // What emu_switch_stack pops: the registers, then where to go, then a return address that is never used. The ABI
    // wants the stack pointer to be 8 beyond a multiple of 16 at the first instruction of a function.
    void** top = (void**)(t->stack + STACK_BYTES - 64);
    *--top = nullptr;
    *--top = (void*)thread_main;
    for (int i = 0; i < SAVED_REGISTERS; i++) *--top = nullptr;
    t->stack_pointer = top;
    return t;
}

static void prepare_threads(dim3 block) {
    gpu.n = (int)(block.x * block.y * block.z);
    if (gpu.n < 1 || gpu.n > MOST_THREADS) fail("a block of %d threads; 1 to %d are possible", gpu.n, MOST_THREADS);
    for (; gpu.n_stacks < gpu.n; gpu.n_stacks++) gpu.threads[gpu.n_stacks] = new_thread(gpu.n_stacks);
    for (Warp& w : gpu.warps) w.n_meetings = 0;
    const char* order = getenv("EMU_ORDER");
    gpu.order = order ? atoi(order) & 3 : 0;
#ifdef EMU_FOR_THREAD_SANITIZER
    gpu.host.sanitizer_fiber = __tsan_get_current_fiber();
#endif
}

static void run_block(uint3 index, dim3 block, dim3 grid) {
#ifdef EMU_SHARED_SECTION
    memset(static_shared, 0xff, (size_t)(static_shared_end - static_shared));
#endif
    if (gpu.shared_bytes) memset(gpu.shared, 0xff, gpu.shared_bytes);
    gpu.arrived = gpu.left = 0;
    for (Warp& w : gpu.warps) w.left = 0;
    for (int i = 0; i < gpu.n; i++) {
        Thread* t = gpu.threads[i];
        unsigned u = (unsigned)i;
        t->position.thread = {u % block.x, u / block.x % block.y, u / block.x / block.y};
        t->position.block = index;
        t->position.block_size = block;
        t->position.grid_size = grid;
        t->state = READY;
        t->open_group = 0;
    }
    begin_hopper_block();
    release(&gpu.start);
    switch_to(gpu.threads[gpu.order & 1 ? gpu.n - 1 : 0]);
    acquire(&gpu.end);
    end_hopper_block();
}

void launch(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes, void (*body)(void*), void* context) {
    gpu.kernel = kernel;
    gpu.current = &gpu.host;
    gpu.body = body;
    gpu.context = context;
    size_t most = is_hopper() ? SHARED_BYTES_HOPPER : SHARED_BYTES;
    if (shared_bytes > most)
        fail("%zu bytes of dynamic shared memory; GPUs with the least have %zu", shared_bytes, most);
    if (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535)
        fail("invalid grid (%u,%u,%u)", grid.x, grid.y, grid.z);
    guard_spaces();
    prepare_threads(block);
    if (shared_bytes != gpu.shared_bytes) {
        if (gpu.shared) free_guarded(gpu.shared, gpu.shared_bytes);
        gpu.shared_bytes = shared_bytes;
        gpu.shared = shared_bytes ? guarded(shared_bytes, 16) : nullptr;
        if (shared_bytes && !gpu.shared) fail("no memory for shared memory");
    }
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) run_block({x, y, z}, block, grid);
    gpu.current = nullptr;
    position = &gpu.host.position;
}

static std::map<const void*, size_t> allowed_shared;

void allow_shared(const void* kernel, size_t bytes) { allowed_shared[kernel] = bytes; }

void check_shared(const void* kernel, const char* name, size_t bytes) {
    auto asked = allowed_shared.find(kernel);
    if (bytes <= (asked == allowed_shared.end() ? SHARED_UNASKED : asked->second)) return;
    gpu.kernel = name;
    fail("%zu bytes of dynamic shared memory without cudaFuncSetAttribute for as many", bytes);
}

void* dynamic_shared() {
    if (!gpu.shared) fail("the kernel uses dynamic shared memory, but was launched without");
    return gpu.shared;
}

}  // namespace emu
