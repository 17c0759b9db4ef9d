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

#include "plan/base.h"
#include "plan/disk.h"

enum { PIECE = 1 << 17 };

const char* unpack_suffix(const char* path) {
    size_t n = strlen(path);
    if (n > 3 && !strcmp(path + n - 3, ".gz")) return path + n - 3;
    return n > 4 && !strcmp(path + n - 4, ".zst") ? path + n - 4 : path + n;
}

int unpack_open(char* err, size_t errlen) {
    char path[DISK_PATH];
    const char* dir = getenv("TMPDIR");
    if (disk_join(path, dir && *dir ? dir : "/tmp", "ragged-XXXXXX", err, errlen)) return -1;
    int fd = mkostemp(path, O_CLOEXEC | O_APPEND);
    if (fd < 0) return fail(err, errlen, "%s: cannot make a file for what is unpacked: %s", path, strerror(errno));
    unlink(path);
    return fd;
}

static int64_t cannot_write(const char* path, char* err, size_t errlen) {
    return fail(err, errlen, "%s: cannot unpack it to TMPDIR or /tmp: %s%s", path, strerror(errno), disk_hint(errno));
}

// Opens a library and finds n functions in it. 0, or -1 with a message.
static int find(const char* library, const char* package, const char* const* names, void** functions, int n,
                const char* path, char* err, size_t errlen) {
    void* handle = dlopen(library, RTLD_NOW);
    for (int i = 0; i < n; i++) functions[i] = handle ? dlsym(handle, names[i]) : NULL;
    for (int i = 0; i < n; i++)
        if (!functions[i])
            return fail(err, errlen,
                        "%s: needs %s, which is not here (Debian: apt-get install %s); or unpack it yourself", path,
                        library, package);
    return 0;
}

// ---- gzip, by zlib's own reader of files

static int64_t unpack_gz(int fd, const char* path, unsigned char* out, char* err, size_t errlen) {
    static const char* const names[] = {"gzopen", "gzread", "gzclose", "gzerror", "gzdirect"};
    void* f[COUNT(names)];
    int64_t total = 0;
    int n = 0, state = 0;
    if (find("libz.so.1", "zlib1g", names, f, COUNT(names), path, err, errlen)) return -1;
    void* (*open_file)(const char*, const char*) = (void* (*)(const char*, const char*))f[0];
    int (*read_file)(void*, void*, unsigned) = (int (*)(void*, void*, unsigned))f[1];
    int (*close_file)(void*) = (int (*)(void*))f[2];
    const char* (*words)(void*, int*) = (const char* (*)(void*, int*))f[3];
    int (*is_plain)(void*) = (int (*)(void*))f[4];
    void* file = open_file(path, "rb");
    if (!file) return fail(err, errlen, "%s: cannot read: %s", path, strerror(errno));
    while ((n = read_file(file, out, PIECE)) > 0 && disk_write(fd, out, (size_t)n) == 0) total += n;
    if (n > 0) total = cannot_write(path, err, errlen);
    const char* why = words(file, &state);
    size_t named = strlen(path);
    if (!strncmp(why, path, named) && !strncmp(why + named, ": ", 2)) why += named + 2;  // said already
    // A file that is cut short is told by the error that reading leaves.
    if (n < 0 || (n == 0 && state != 0)) total = fail(err, errlen, "%s: damaged or cut short: %s", path, why);
    else if (total > 0 && is_plain(file)) total = fail(err, errlen, "%s: is no gzip file", path);
    if (close_file(file) && total >= 0) total = fail(err, errlen, "%s: damaged or cut short", path);
    return total;
}

// ---- zstd

typedef struct InBuffer {
    const void* from;
    size_t size, at;
} InBuffer;

typedef struct OutBuffer {
    void* to;
    size_t size, at;
} OutBuffer;

// All frames of the file. 0, or what the end lacks; -1 with a message.
static int64_t run_stream(int fd, int in, const char* path, void* stream, void** f, unsigned char* held,
                          unsigned char* out, char* err, size_t errlen) {
    size_t (*step)(void*, OutBuffer*, InBuffer*) = (size_t(*)(void*, OutBuffer*, InBuffer*))f[2];
    unsigned (*is_error)(size_t) = (unsigned (*)(size_t))f[3];
    const char* (*name)(size_t) = (const char* (*)(size_t))f[4];
    int64_t total = 0, n;
    size_t missing = 1;
    while ((n = disk_read(in, held, PIECE)) > 0) {
        InBuffer from = {held, (size_t)n, 0};
        OutBuffer to = {out, PIECE, PIECE};
        while (from.at < from.size || to.at == to.size) {  // a full piece may not have been all
            to.at = 0;
            missing = step(stream, &to, &from);
            if (is_error(missing)) return fail(err, errlen, "%s: damaged: %s", path, name(missing));
            if (disk_write(fd, out, to.at)) return cannot_write(path, err, errlen);
            total += (int64_t)to.at;
            if (missing == 0 && from.at == from.size) break;
        }
    }
    if (n < 0) return fail(err, errlen, "%s: cannot read: %s", path, strerror(errno));
    return missing ? fail(err, errlen, "%s: cut short", path) : total;
}

static int64_t unpack_zst(int fd, const char* path, unsigned char* out, char* err, size_t errlen) {
    static const char* const names[] = {"ZSTD_createDStream", "ZSTD_freeDStream", "ZSTD_decompressStream",
                                        "ZSTD_isError", "ZSTD_getErrorName"};
    void* f[COUNT(names)];
    uint64_t bytes;
    if (find("libzstd.so.1", "libzstd1", names, f, COUNT(names), path, err, errlen)) return -1;
    void* (*make)(void) = (void* (*)(void))f[0];
    size_t (*drop)(void*) = (size_t(*)(void*))f[1];
    int in = disk_open(path, &bytes, err, errlen);
    if (in < 0) return -1;
    unsigned char* held = (unsigned char*)malloc(PIECE);
    void* stream = make();
    int64_t total = held && stream ? run_stream(fd, in, path, stream, f, held, out, err, errlen)
                                   : fail(err, errlen, "%s: no memory to unpack it", path);
    if (stream) drop(stream);
    free(held);
    close(in);
    return total;
}

int64_t unpack(int fd, const char* path, char* err, size_t errlen) {
    unsigned char* out = (unsigned char*)malloc(PIECE);
    if (!out) return fail(err, errlen, "%s: no memory to unpack it", path);
    int64_t total = !strcmp(unpack_suffix(path), ".gz") ? unpack_gz(fd, path, out, err, errlen)
                                                        : unpack_zst(fd, path, out, err, errlen);
    free(out);
    return total;
}
