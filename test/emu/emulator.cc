// emulator.cc - the machine behind emulator.h: fibers, barriers, warp operations, address spaces, asynchronous copies.
//
// Compiled without ThreadSanitizer even when the kernels are compiled with it: this file is the emulated machine, and
// it tells the sanitizer explicitly which order it creates between threads.
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

enum State { DONE, READY, AT_BARRIER, AT_WARP_OPERATION };
constexpr size_t STACK_BYTES = 256 << 10;
constexpr int MOST_THREADS = 1024, MOST_COPIES = 128, MOST_MASKS = 40;

// Nothing below is allocated while threads run: the sanitizers would take the allocator's writes for the thread's.

struct Snapshot {
    Gathered gathered;
    int readers = 0;  // threads that may still look at it
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
        if (t->state != AT_BARRIER && t->state != AT_WARP_OPERATION) continue;
        if (t->state == AT_BARRIER) fprintf(stderr, "  thread %d waits at the __syncthreads in line %d\n", i, t->line);
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

static void run_another() {
    Thread* next = next_ready();
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

// ---- launch

static void report_return() {
    Thread* me = gpu.current;
    if (me->n_copies) fail("a thread returned before it waited for its cp.async");
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
    release(&gpu.start);
    switch_to(gpu.threads[gpu.order & 1 ? gpu.n - 1 : 0]);
    acquire(&gpu.end);
}

void launch(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes, void (*body)(void*), void* context) {
    gpu.kernel = kernel;
    gpu.current = &gpu.host;
    gpu.body = body;
    gpu.context = context;
    if (shared_bytes > SHARED_BYTES)
        fail("%zu bytes of dynamic shared memory; GPUs with the least have %zu", shared_bytes, SHARED_BYTES);
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
