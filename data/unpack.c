// unpack.c - see unpack.h. The few functions are declared here: the libraries' headers need not be installed.
#define _GNU_SOURCE
#include "data/unpack.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plan/base/base.h"
#include "plan/base/disk_files.h"

enum { PIECE = 1 << 17 };

const char* unpack_suffix(const char* path) {
    size_t n = strlen(path);
    if (n > 3 && !strcmp(path + n - 3, ".gz")) return path + n - 3;
    return n > 4 && !strcmp(path + n - 4, ".zst") ? path + n - 4 : path + n;
}

int unpack_open(Err err) {
    char path[DISK_PATH];
    const char* dir = getenv("TMPDIR");
    if (disk_join(path, dir && *dir ? dir : "/tmp", "ragged-XXXXXX", err)) return -1;
    int fd = mkostemp(path, O_CLOEXEC | O_APPEND);
    if (fd < 0) return fail(err, "%s: cannot make a file for what is unpacked: %s", path, strerror(errno));
    unlink(path);
    return fd;
}

typedef struct InBuffer {
    const void* from;
    size_t size, at;
} InBuffer;

typedef struct OutBuffer {
    void* to;
    size_t size, at;
} OutBuffer;

enum { MOST_FUNCTIONS = 5 };

// One of the two libraries, and a stream of it.
typedef struct Decoder {
    const char *soname, *package, *names[MOST_FUNCTIONS];  // of functions; NULL behind the last
    int (*open)(struct Decoder*);                          // 0, or -1: no memory
    // From what is held to what is unpacked: 0 where a member or frame ends, 1 within one, -1: damaged, as why says.
    int (*step)(struct Decoder*, OutBuffer*, InBuffer*);
    void (*close)(struct Decoder*);
    void* f[MOST_FUNCTIONS];
    void* stream;
    const char* why;
} Decoder;

// ---- gzip

typedef struct ZStream {  // zlib's z_stream
    const void* next_in;
    unsigned avail_in;
    unsigned long total_in;
    void* next_out;
    unsigned avail_out;
    unsigned long total_out;
    const char* msg;
    void *state, *zalloc, *zfree, *opaque;
    int data_type;
    unsigned long adler, reserved;
} ZStream;

static int open_gz(Decoder* d) {
    int (*init)(ZStream*, int, const char*, int) = (int (*)(ZStream*, int, const char*, int))d->f[0];
    const int largest_window_and_header = 15 + 16;
    d->stream = calloc(1, sizeof(ZStream));
    return d->stream && !init((ZStream*)d->stream, largest_window_and_header, "1", sizeof(ZStream)) ? 0 : -1;
}

// Every member has a header and a checksum: what follows one is another, or damage.
static int step_gz(Decoder* d, OutBuffer* to, InBuffer* from) {
    enum { OK = 0, END = 1, NOTHING_TO_DO = -5 };
    ZStream* z = (ZStream*)d->stream;
    z->next_in = (const char*)from->from + from->at, z->avail_in = (unsigned)(from->size - from->at);
    z->next_out = (char*)to->to + to->at, z->avail_out = (unsigned)(to->size - to->at);
    int status = ((int (*)(ZStream*, int))d->f[1])(z, 0);
    from->at = from->size - z->avail_in, to->at = to->size - z->avail_out;
    if (status == END) return ((int (*)(ZStream*))d->f[2])(z);
    d->why = z->msg ? z->msg : "no memory, or a dictionary that is missing";
    return status == OK || status == NOTHING_TO_DO ? 1 : -1;
}

static void close_gz(Decoder* d) {
    if (d->stream) ((int (*)(ZStream*))d->f[3])((ZStream*)d->stream);
    free(d->stream);
}

// ---- zstd

static int open_zst(Decoder* d) {
    d->stream = ((void* (*)(void))d->f[0])();
    return d->stream ? 0 : -1;
}

static int step_zst(Decoder* d, OutBuffer* to, InBuffer* from) {
    size_t missing = ((size_t(*)(void*, OutBuffer*, InBuffer*))d->f[2])(d->stream, to, from);
    if (!((unsigned (*)(size_t))d->f[3])(missing)) return missing > 0;
    d->why = ((const char* (*)(size_t))d->f[4])(missing);
    return -1;
}

static void close_zst(Decoder* d) {
    if (d->stream) ((size_t(*)(void*))d->f[1])(d->stream);
}

static const Decoder decoders[] = {
    {.soname = "libz.so.1",
     .package = "zlib1g",
     .names = {"inflateInit2_", "inflate", "inflateReset", "inflateEnd"},
     .open = open_gz,
     .step = step_gz,
     .close = close_gz},
    {.soname = "libzstd.so.1",
     .package = "libzstd1",
     .names = {"ZSTD_createDStream", "ZSTD_freeDStream", "ZSTD_decompressStream", "ZSTD_isError", "ZSTD_getErrorName"},
     .open = open_zst,
     .step = step_zst,
     .close = close_zst},
};

// ---- either

static int find_functions(Decoder* d, const char* path, Err err) {
    void* handle = dlopen(d->soname, RTLD_NOW);
    for (int i = 0; i < MOST_FUNCTIONS && d->names[i]; i++) {
        d->f[i] = handle ? dlsym(handle, d->names[i]) : NULL;
        if (!d->f[i])
            return fail(err, "%s: needs %s, which is not here (Debian: apt-get install %s); or unpack it yourself",
                        path, d->soname, d->package);
    }
    return 0;
}

// All members or frames of the file, to its last byte.
static int64_t run_stream(int fd, int in, const char* path, Decoder* d, char* held, char* out, Err err) {
    int64_t total = 0, at = 0, n;
    int missing = 1;
    for (; (n = disk_read_at(in, (uint64_t)at, held, PIECE)) > 0; at += n) {
        InBuffer from = {held, (size_t)n, 0};
        OutBuffer to = {out, PIECE, PIECE};
        while (from.at < from.size || to.at == to.size) {  // a full piece may not have been all
            to.at = 0;
            missing = d->step(d, &to, &from);
            if (missing < 0) return fail(err, "%s: damaged, or of another kind: %s", path, d->why);
            if (disk_write(fd, out, to.at))
                return fail(err, "%s: cannot unpack it to TMPDIR or /tmp: %s%s", path, strerror(errno),
                            disk_hint(errno));
            total += (int64_t)to.at;
            if (missing == 0 && from.at == from.size) break;
        }
    }
    if (n < 0) return fail(err, "%s: cannot read: %s", path, strerror(errno));
    return missing ? fail(err, "%s: cut short", path) : total;
}

int64_t unpack(int fd, const char* path, Err err) {
    uint64_t bytes;
    Decoder d = decoders[strcmp(unpack_suffix(path), ".gz") != 0];
    if (find_functions(&d, path, err)) return -1;
    int in = disk_open(path, &bytes, err);
    if (in < 0) return -1;
    char* held = (char*)malloc(2 * PIECE);
    int64_t total = held && d.open(&d) == 0 ? run_stream(fd, in, path, &d, held, held + PIECE, err)
                                            : fail(err, "%s: no memory to unpack it", path);
    d.close(&d);
    free(held);
    close(in);
    return total;
}
