// inject.c - lets one call of the program for memory, a file or a thread fail. Linked into train_faults by --wrap (see
// the Makefile), so that calls within libraries stay as they are and sanitizers work. Told by its environment:
//
//   FAULT=KIND:N:WHAT,...   KIND: one of `kinds` below. N: 17, the 17th call of that kind in this process; 17+, that
//                           and all later ones; 17-25, these. WHAT: an error of `errors` below; SHORT: half of a read
//                           or write (as EINTR only where the caller must call again); KILL: SIGKILL before the call;
//                           KILLED: behind it; STOP: SIGSTOP before it; SLOW: a fifth of a second before it
//   FAULT_RANK=R            only in rank R of a job
//   FAULT_PLACE=TEXT        writes fail only where the file's path has that in it
//   FAULT_LOG=FILE          gets "RANK hit KIND N FUNCTION +ADDRESS" of each such call (addr2line -e train_faults), and
//                           at a regular end "RANK count KIND CALLS"; rank -1 outside of jobs
//   FAULT_LIMIT=X           FLOP/s that stand for the measured peak, which takes most of a small run's time;
//                           pauses before a second try take none either
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kernels/table/open.h"

typedef enum Kind { ALLOC, OPEN, READ, WRITE, SYNC, RENAME, CLOSE, MKDIR, REMOVE, STAT, LOCK, THREAD, KINDS } Kind;

static const char* const kinds[KINDS] = {"alloc", "open",  "read",   "write", "sync", "rename",
                                         "close", "mkdir", "remove", "stat",  "lock", "thread"};

enum { NONE = 0, SHORT = -1, KILL = -2, KILLED = -3, STOP = -4, SLOW = -5 };

static const struct {
    const char* name;
    int value;
} errors[] = {{"ENOMEM", ENOMEM}, {"ENOSPC", ENOSPC}, {"EIO", EIO},       {"EMFILE", EMFILE}, {"EINTR", EINTR},
              {"EAGAIN", EAGAIN}, {"EACCES", EACCES}, {"EROFS", EROFS},   {"ENOLCK", ENOLCK}, {"EDQUOT", EDQUOT},
              {"SHORT", SHORT},   {"KILL", KILL},     {"KILLED", KILLED}, {"STOP", STOP},     {"SLOW", SLOW}};

typedef struct Fault {
    int kind, what;
    long first, last;
} Fault;

static Fault faults[8];
static int n_faults, rank = -1;
static const char* log_path;
static atomic_long calls[KINDS];
static _Thread_local int kill_behind;

extern const char __executable_start;

// ---- what the environment says

static int find_kind(const char* name, size_t n) {
    for (int i = 0; i < KINDS; i++)
        if (strlen(kinds[i]) == n && !memcmp(kinds[i], name, n)) return i;
    return -1;
}

static int find_error(const char* name, size_t n) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (strlen(errors[i].name) == n && !memcmp(errors[i].name, name, n)) return errors[i].value;
    return NONE;
}

// One KIND:N:WHAT of n bytes. A mistake ends the program: a campaign without faults would prove nothing.
static void read_fault(const char* text, size_t n) {
    Fault* fault = &faults[n_faults++];
    const char *number = (const char*)memchr(text, ':', n), *end = text + n;
    char* after = NULL;
    fault->kind = number ? find_kind(text, (size_t)(number - text)) : -1;
    if (fault->kind >= 0) fault->first = fault->last = strtol(number + 1, &after, 10);
    if (after && *after == '-') fault->last = strtol(after + 1, &after, 10);
    else if (after && *after == '+') fault->last = LONG_MAX, after++;
    if (after && *after == ':') fault->what = find_error(after + 1, (size_t)(end - after - 1));
    if (fault->what != NONE) return;
    fprintf(stderr, "inject: FAULT: expected KIND:N:WHAT, found %.*s\n", (int)n, text);
    _exit(99);
}

__attribute__((constructor)) static void read_environment(void) {
    const char *text = getenv("FAULT"), *only = getenv("FAULT_RANK"), *number = getenv("OMPI_COMM_WORLD_RANK");
    log_path = getenv("FAULT_LOG");
    if (number) rank = atoi(number);
    if (!text || (only && atoi(only) != rank)) return;
    for (size_t n; *text && n_faults < (int)(sizeof faults / sizeof *faults); text += n + (text[n] == ',')) {
        n = strcspn(text, ",");
        read_fault(text, n);
    }
}

// ---- what every call asks

int __real_open(const char* path, int flags, ...);
int __real_close(int fd);
ssize_t __real_write(int fd, const void* bytes, size_t n);

__attribute__((format(printf, 1, 2))) static void note(const char* format, ...) {
    char line[256];
    va_list args;
    if (!log_path) return;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args), fd = __real_open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    va_end(args);
    if (fd < 0 || __real_write(fd, line, (size_t)n) != n) abort();
    __real_close(fd);
}

__attribute__((destructor)) static void note_counts(void) {
    for (int i = 0; i < KINDS; i++)
        if (calls[i]) note("%d count %s %ld\n", rank, kinds[i], (long)calls[i]);
}

// Counts a call. What is to happen to it: NONE, SHORT or the errno of its failure. cut: whether it can be cut short.
static int next_call(Kind kind, int cut, const char* wrapper, const void* caller) {
    long n = atomic_fetch_add(&calls[kind], 1) + 1;
    int what = NONE;
    for (int i = 0; i < n_faults; i++)
        if (faults[i].kind == (int)kind && faults[i].first <= n && n <= faults[i].last) what = faults[i].what;
    if (what == NONE || (!cut && (what == SHORT || what == EINTR))) return NONE;
    note("%d hit %s %ld %s +0x%lx\n", rank, kinds[kind], n, wrapper + strlen("__wrap_"),
         (unsigned long)((const char*)caller - &__executable_start));
    if (what == KILL) raise(SIGKILL);
    if (what == STOP) raise(SIGSTOP);
    if (what == SLOW) nanosleep(&(struct timespec){0, 200000000}, NULL);
    kill_behind = what == KILLED;
    if (what > 0) errno = what;
    return what < SHORT ? NONE : what;
}

// A wrapper's head; the Makefile finds its name behind "CALL(" or "CALL_...(" at the start of a line.
#define CALL_BY(name, type, params) \
    type __real_##name params;      \
    type __wrap_##name params;      \
    type __wrap_##name params

#define FATE(kind) next_call(kind, 0, __func__, __builtin_return_address(0))
#define CUT_FATE(kind) next_call(kind, 1, __func__, __builtin_return_address(0))
#define FAILS(kind) (FATE(kind) > 0)

// The value of the real call, and the kill behind it.
#define DONE(value)                       \
    ({                                    \
        __typeof__(value) value_ = value; \
        if (kill_behind) raise(SIGKILL);  \
        value_;                           \
    })

// Most fail whole: with this value, and errno.
#define CALL(name, type, params, args, kind, failed)                                        \
    CALL_BY(name, type, params) { return FAILS(kind) ? failed : DONE(__real_##name args); } \
    type __real_##name params

// ---- memory and threads

CALL(malloc, void*, (size_t n), (n), ALLOC, NULL);
CALL(calloc, void*, (size_t n, size_t each), (n, each), ALLOC, NULL);
CALL(realloc, void*, (void* old, size_t n), (old, n), ALLOC, NULL);
CALL(aligned_alloc, void*, (size_t to, size_t n), (to, n), ALLOC, NULL);
CALL(strdup, char*, (const char* text), (text), ALLOC, NULL);
CALL(strndup, char*, (const char* text, size_t n), (text, n), ALLOC, NULL);
CALL(open_memstream, FILE*, (char** text, size_t* n), (text, n), ALLOC, NULL);
CALL(posix_memalign, int, (void** p, size_t to, size_t n), (p, to, n), ALLOC, errno);
CALL(vasprintf, int, (char** text, const char* format, va_list args), (text, format, args), ALLOC, -1);
CALL_BY(asprintf, int, (char** text, const char* format, ...)) {
    va_list args;
    if (FAILS(ALLOC)) return -1;
    va_start(args, format);
    int n = __real_vasprintf(text, format, args);
    va_end(args);
    return DONE(n);
}
CALL(mmap, void*, (void* at, size_t n, int protection, int flags, int fd, off_t offset),
     (at, n, protection, flags, fd, offset), ALLOC, MAP_FAILED);
CALL(pthread_create, int, (pthread_t * thread, const pthread_attr_t* how, void* (*body)(void*), void* context),
     (thread, how, body, context), THREAD, errno);

// ---- names

CALL_BY(open, int, (const char* path, int flags, ...)) {
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? (mode_t)va_arg(args, int) : 0;
    va_end(args);
    return FAILS(OPEN) ? -1 : DONE(__real_open(path, flags, mode));
}
CALL_BY(openat, int, (int dir, const char* path, int flags, ...)) {
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? (mode_t)va_arg(args, int) : 0;
    va_end(args);
    return FAILS(OPEN) ? -1 : DONE(__real_openat(dir, path, flags, mode));
}
CALL(fopen, FILE*, (const char* path, const char* mode), (path, mode), OPEN, NULL);
CALL(fdopen, FILE*, (int fd, const char* mode), (fd, mode), OPEN, NULL);
CALL(freopen, FILE*, (const char* path, const char* mode, FILE* file), (path, mode, file), OPEN, NULL);
CALL(mkstemp, int, (char* name), (name), OPEN, -1);
CALL(mkostemp, int, (char* name, int flags), (name, flags), OPEN, -1);
CALL(opendir, DIR*, (const char* path), (path), OPEN, NULL);
CALL(scandir, int,
     (const char* path, struct dirent*** list, int (*wanted)(const struct dirent*),
      int (*compare)(const struct dirent**, const struct dirent**)),
     (path, list, wanted, compare), OPEN, -1);
CALL(nftw, int, (const char* path, __nftw_func_t visit, int fds, int flags), (path, visit, fds, flags), OPEN, -1);
CALL(glob, int, (const char* pattern, int flags, int (*failed)(const char*, int), glob_t* matches),
     (pattern, flags, failed, matches), ALLOC, GLOB_NOSPACE);
CALL(mkdtemp, char*, (char* name), (name), MKDIR, NULL);
CALL(mkdir, int, (const char* path, mode_t mode), (path, mode), MKDIR, -1);
CALL(rename, int, (const char* from, const char* to), (from, to), RENAME, -1);
CALL(link, int, (const char* from, const char* to), (from, to), RENAME, -1);
CALL(unlink, int, (const char* path), (path), REMOVE, -1);
CALL(remove, int, (const char* path), (path), REMOVE, -1);
CALL(rmdir, int, (const char* path), (path), REMOVE, -1);
CALL(stat, int, (const char* path, struct stat* s), (path, s), STAT, -1);
CALL(lstat, int, (const char* path, struct stat* s), (path, s), STAT, -1);
CALL(fstat, int, (int fd, struct stat* s), (fd, s), STAT, -1);
CALL(access, int, (const char* path, int mode), (path, mode), STAT, -1);

// ---- bytes

CALL_BY(read, ssize_t, (int fd, void* bytes, size_t n)) {
    int fate = CUT_FATE(READ);
    return fate > 0 ? -1 : DONE(__real_read(fd, bytes, fate == SHORT ? (n + 1) / 2 : n));
}
CALL_BY(pread, ssize_t, (int fd, void* bytes, size_t n, off_t from)) {
    int fate = CUT_FATE(READ);
    return fate > 0 ? -1 : DONE(__real_pread(fd, bytes, fate == SHORT ? (n + 1) / 2 : n, from));
}
CALL(readdir, struct dirent*, (DIR * dir), (dir), READ, NULL);
static int is_elsewhere(int fd) {
    char link[64], path[PATH_MAX] = "";
    const char* place = getenv("FAULT_PLACE");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return place && (readlink(link, path, sizeof path - 1) < 0 || !strstr(path, place));
}

CALL_BY(write, ssize_t, (int fd, const void* bytes, size_t n)) {
    int fate = is_elsewhere(fd) ? NONE : CUT_FATE(WRITE);
    return fate > 0 ? -1 : DONE(__real_write(fd, bytes, fate == SHORT ? (n + 1) / 2 : n));
}
CALL_BY(pwrite, ssize_t, (int fd, const void* bytes, size_t n, off_t at)) {
    int fate = CUT_FATE(WRITE);
    return fate > 0 ? -1 : DONE(__real_pwrite(fd, bytes, fate == SHORT ? (n + 1) / 2 : n, at));
}
CALL_BY(ftruncate, int, (int fd, off_t n)) {
    return !is_elsewhere(fd) && FAILS(WRITE) ? -1 : DONE(__real_ftruncate(fd, n));
}
CALL(fsync, int, (int fd), (fd), SYNC, -1);
CALL(fdatasync, int, (int fd), (fd), SYNC, -1);
CALL(flock, int, (int fd, int how), (fd, how), LOCK, -1);

// The file is closed all the same, as Linux does it.
CALL_BY(close, int, (int fd)) {
    int fate = FATE(CLOSE), result = __real_close(fd);
    if (fate > 0) errno = fate;
    return fate > 0 ? -1 : DONE(result);
}
CALL_BY(closedir, int, (DIR * dir)) { return DONE(__real_closedir(dir)); }

// Streams fail where the C library meets the disk, so that what it has buffered is treated as it would be: for the time
// of a call the stream's descriptor is another one, on which nothing can be written, or read.
static int exchange(FILE* file, const char* path, int flags) {
    int fd = file ? fileno(file) : -1, kept = fd < 0 ? -1 : dup(fd), bad = fd < 0 ? -1 : __real_open(path, flags);
    if (bad >= 0) dup2(bad, fd), __real_close(bad);
    return kept;
}

static void change_back(FILE* file, int kept, int error) {
    if (kept < 0) return;
    dup2(kept, fileno(file));
    __real_close(kept);
    errno = error;
}

CALL_BY(fflush, int, (FILE * file)) {
    int fate = file && file != stdout && file != stderr && !is_elsewhere(fileno(file)) ? FATE(WRITE) : NONE;
    int kept = fate > 0 ? exchange(file, "/dev/full", O_WRONLY) : -1, result = __real_fflush(file);
    change_back(file, kept, fate);
    return DONE(result);
}
CALL_BY(fclose, int, (FILE * file)) {
    if (fileno(file) < 0) return __real_fclose(file);  // a stream in memory
    int fate = FATE(CLOSE), unwritten = __fwritable(file) && __wrap_fflush(file), result = __real_fclose(file);
    if (fate > 0) errno = fate;
    return fate > 0 || unwritten ? EOF : DONE(result);
}
#define CALL_READ(name, type, params, args)                                                        \
    CALL_BY(name, type, params) {                                                                  \
        int fate = FATE(READ), kept = fate > 0 ? exchange(file, "/", O_RDONLY | O_DIRECTORY) : -1; \
        type result = __real_##name args;                                                          \
        change_back(file, kept, fate);                                                             \
        return DONE(result);                                                                       \
    }                                                                                              \
    type __real_##name params
CALL_READ(fgets, char*, (char* line, int n, FILE* file), (line, n, file));
CALL_READ(fread, size_t, (void* bytes, size_t each, size_t n, FILE* file), (bytes, each, n, file));
CALL_READ(getline, ssize_t, (char** line, size_t* room, FILE* file), (line, room, file));

// ---- time

CALL_BY(sleep, unsigned, (unsigned seconds)) { return getenv("FAULT_LIMIT") ? 0 : __real_sleep(seconds); }
CALL_BY(kernels_peak, double, (const Kernels* k, DType dt, int threads, double cores, Err err)) {
    const char* given = getenv("FAULT_LIMIT");
    return given ? atof(given) : __real_kernels_peak(k, dt, threads, cores, err);
}
