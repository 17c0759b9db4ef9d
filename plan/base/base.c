// base.c - errors, memory, hashes and the clock; see base.h.
#define _POSIX_C_SOURCE 200809L
#include "plan/base/base.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "plan/base/text.h"

DieAs die_as;

// A text that is longer than the room loses its middle, because the end has the cause.
static void format_ends(char* text, size_t room, const char* format, va_list args) {
    char all[1 << 14];
    int n = (all[0] = 0, vsnprintf(all, sizeof all, format, args)), half = (int)room / 2;
    n = MIN(MAX(n, 0), (int)sizeof all - 1);
    if (n >= (int)room) memcpy(all + half - 3, "...", 3), memmove(all + half, all + n + 1 + half - room, room - half);
    memcpy(text, all, MIN((size_t)n + 1, room));
}

__attribute__((noreturn)) static void end_with(const char* place, const char* format, va_list args) {
    char message[2048];
    format_ends(message, sizeof message, format, args);
    text_clean(message);
    fflush(stdout);
    const char* program = die_as.program ? die_as.program : "train";
    if (!die_as.is_said || !die_as.is_said()) fprintf(stderr, "%s: %s%s%s\n", program, die_as.who, message, place);
    if (die_as.last) die_as.last();
    if (die_as.leave) die_as.leave(1);
    exit(1);
}

void die(const char* format, ...) {
    va_list args;
    va_start(args, format);
    end_with("", format, args);
}

void die_at(const char* file, int line, const char* format, ...) {
    char place[256];
    va_list args;
    snprintf(place, sizeof place, " (%s:%d)", file, line);
    va_start(args, format);
    end_with(place, format, args);
}

int fail(Err err, const char* format, ...) {
    va_list args;
    va_start(args, format);
    if (err) format_ends(err, ERR_BYTES, format, args);
    va_end(args);
    return -1;
}

struct ArenaBlock {
    ArenaBlock* next;
    size_t bytes;  // size of the memory after this header
};

// Under AddressSanitizer every part is a block of its own, which a reset frees: it sees a write beyond its end, and a
// use after the reset.
#ifdef __SANITIZE_ADDRESS__
enum { ARENA_BLOCK = 0, ARENA_KEEPS = 0, ARENA_ALIGN = 1 };
#else
enum { ARENA_BLOCK = 1 << 18, ARENA_KEEPS = 1, ARENA_ALIGN = 16 };
#endif

void* arena_take(Arena* arena, size_t bytes) {
    ArenaMark* at = &arena->at;
    bytes = ROUND_UP(MAX(bytes, (size_t)1), (size_t)ARENA_ALIGN);
    if (!at->block || at->block->bytes - at->used < bytes) {
        ArenaBlock **link = at->block ? &at->block->next : &arena->first, *next;
        while ((next = *link) && next->bytes < bytes) *link = next->next, free(next);
        if (!next) {
            size_t size = MAX(bytes, (size_t)ARENA_BLOCK);
            next = *link = (ArenaBlock*)malloc(sizeof *next + size);
            if (!next) return arena->missing = bytes, NULL;
            *next = (ArenaBlock){NULL, size};
        }
        *at = (ArenaMark){next, 0};
    }
    void* part = (char*)(at->block + 1) + at->used;
    at->used += bytes;
    return part;
}

int arena_check(const Arena* arena, Err err) {
    if (!arena->missing) return 0;
    return fail(err, "no memory: %zu bytes more than %zu are needed; try a smaller --batch-tokens", arena->missing,
                arena_bytes(arena));
}

static void free_blocks(ArenaBlock** link) {
    for (ArenaBlock* block = *link; block; block = *link) *link = block->next, free(block);
}

void arena_reset(Arena* arena, ArenaMark mark) {
    if (!mark.block && ARENA_KEEPS) mark.block = arena->first;
    arena->at = mark;
    if (!ARENA_KEEPS) free_blocks(mark.block ? &mark.block->next : &arena->first);
}

size_t arena_bytes(const Arena* arena) {
    size_t bytes = 0;
    for (const ArenaBlock* block = arena->first; block; block = block->next) bytes += block->bytes;
    return bytes;
}

void arena_free(Arena* arena) {
    free_blocks(&arena->first);
    *arena = (Arena){0};
}

uint64_t hash_bytes(const void* bytes, size_t n, uint64_t seed) {
    const unsigned char* p = (const unsigned char*)bytes;
    uint64_t h = hash64(seed ^ n);
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word = 0;
        for (int i = 0; i < 8; i++) word |= (uint64_t)p[i] << 8 * i;  // little-endian on every machine
        h = hash64(h ^ word);
    }
    uint64_t tail = 0;
    for (size_t i = 0; i < n; i++) tail |= (uint64_t)p[i] << 8 * i;
    return hash64(h ^ tail);
}

double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int reserve(void* array, int64_t* capacity, int64_t n, int64_t more, size_t element_bytes, Err err) {
    if (more <= *capacity - n) return 0;
    int64_t wanted = MAX(n + more, MAX(16, *capacity + *capacity / 2));
    void *old, *grown = NULL;
    memcpy(&old, array, sizeof old);  // `array` points to a pointer of whatever type
    if (wanted <= (int64_t)(PTRDIFF_MAX / element_bytes)) grown = realloc(old, (size_t)wanted * element_bytes);
    if (!grown) return fail(err, "out of memory for %lld entries of %zu bytes", (long long)wanted, element_bytes);
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return 0;
}
