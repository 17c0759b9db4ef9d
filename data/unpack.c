// unpack.c - compressed files; see docs_files.h. The few functions of the two libraries are declared here: their
// headers need not be installed.
#define _GNU_SOURCE  // mkostemp
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/docs_files.h"
#include "plan/base/disk.h"

enum { PIECE = 1 << 17 };

const char* unpack_suffix(const char* path) {
    size_t n = strlen(path);
    if (n > 3 && !strcmp(path + n - 3, ".gz")) return path + n - 3;
    return n > 4 && !strcmp(path + n - 4, ".zst") ? path + n - 4 : path + n;
}

typedef struct Buffer {  // zstd's ZSTD_inBuffer and ZSTD_outBuffer
    void* bytes;
    size_t size, at;
} Buffer;

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

typedef union Functions {
    void* found[5];
    struct {
        int (*init)(ZStream*, int, const char*, int);
        int (*inflate)(ZStream*, int);
        int (*reset)(ZStream*), (*end)(ZStream*);
    } gz;
    struct {
        void* (*create)(void);
        size_t (*free)(void*), (*decompress)(void*, Buffer*, Buffer*);
        unsigned (*is_error)(size_t);
        const char* (*error_name)(size_t);
    } zst;
} Functions;

// One of the two libraries, and a stream of it.
typedef struct Decoder {
    const char *soname, *package, *names[5];  // of Functions; NULL after the last
    int (*open)(struct Decoder*);             // 0, or -1: no memory
    // Unpacks bytes of `from` into `to`. 0: a member or frame ends there; 1: within one; -1: damaged, as why says.
    int (*step)(struct Decoder*, Buffer* to, Buffer* from);
    void (*close)(struct Decoder*);
    Functions f;
    void* stream;
    const char* why;
} Decoder;

static int open_gz(Decoder* d) {
    const int largest_window_and_header = 15 + 16;
    d->stream = calloc(1, sizeof(ZStream));
    return d->stream && !d->f.gz.init(d->stream, largest_window_and_header, "1", sizeof(ZStream)) ? 0 : -1;
}

// Unpacks one step. Every member has a header and a checksum: after one comes another, or damage.
static int step_gz(Decoder* d, Buffer* to, Buffer* from) {
    enum { OK = 0, END = 1, NOTHING_TO_DO = -5 };
    ZStream* z = d->stream;
    z->next_in = (const char*)from->bytes + from->at, z->avail_in = (unsigned)(from->size - from->at);
    z->next_out = (char*)to->bytes + to->at, z->avail_out = (unsigned)(to->size - to->at);
    int status = d->f.gz.inflate(z, 0);
    from->at = from->size - z->avail_in, to->at = to->size - z->avail_out;
    if (status == END) return d->f.gz.reset(z);
    d->why = z->msg ? z->msg : "no memory, or a dictionary that is missing";
    return status == OK || status == NOTHING_TO_DO ? 1 : -1;
}

static void close_gz(Decoder* d) {
    if (d->stream) d->f.gz.end(d->stream);
    free(d->stream);
}

static int open_zst(Decoder* d) {
    d->stream = d->f.zst.create();
    return d->stream ? 0 : -1;
}

static int step_zst(Decoder* d, Buffer* to, Buffer* from) {
    size_t missing = d->f.zst.decompress(d->stream, to, from);
    if (!d->f.zst.is_error(missing)) return missing > 0;
    d->why = d->f.zst.error_name(missing);
    return -1;
}

static void close_zst(Decoder* d) { d->f.zst.free(d->stream); }

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

static int find_functions(Decoder* d, const char* path, Err err) {
    void* handle = dlopen(d->soname, RTLD_NOW);
    for (int i = 0; i < COUNT(d->names) && d->names[i]; i++) {
        d->f.found[i] = handle ? dlsym(handle, d->names[i]) : NULL;
        if (!d->f.found[i])
            return fail(err, "%s: needs %s, which is not here (Debian: apt-get install %s); or unpack it yourself",
                        path, d->soname, d->package);
    }
    return 0;
}

// Unpacks all members or frames of the file, to its last byte. Returns the bytes written, or -1.
static int64_t run_stream(int fd, int in, const char* path, Decoder* d, char* held, char* out, Err err) {
    int64_t total = 0, at = 0, n;
    int missing = 1;
    for (; (n = disk_read_at(in, (uint64_t)at, held, PIECE)) > 0; at += n) {
        Buffer from = {held, (size_t)n, 0}, to = {out, PIECE, PIECE};
        while (from.at < from.size || to.at == to.size) {  // a full piece may not have been all
            to.at = 0;
            missing = d->step(d, &to, &from);
            if (missing < 0) return fail(err, "%s: damaged, or of another kind: %s", path, d->why);
            if (disk_write(fd, out, to.at))
                return fail(err, "%s: cannot unpack to TMPDIR or /tmp: %s%s", path, strerror(errno), disk_hint(errno));
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
    char* held = malloc(2 * PIECE);
    int64_t total = held && d.open(&d) == 0 ? run_stream(fd, in, path, &d, held, held + PIECE, err)
                                            : fail(err, "%s: no memory to unpack it", path);
    d.close(&d);
    free(held);
    close(in);
    return total;
}

// ---- the file without a name

int docs_unpacked(DocsMore* more, Err err) {
    char path[DISK_PATH];
    const char* dir = getenv("TMPDIR");
    if (more->unpacked >= 0) return more->unpacked;
    if (disk_join(path, dir && *dir ? dir : "/tmp", "ragged-XXXXXX", err)) return -1;
    more->unpacked = mkostemp(path, O_CLOEXEC | O_APPEND);
    if (more->unpacked < 0) return fail(err, "%s: cannot make a file for what is unpacked: %s", path, strerror(errno));
    unlink(path);
    return more->unpacked;
}

void docs_use_unpacked(DocsMore* more, File* file, int64_t bytes) {
    file_close(file);
    *file = (File){file->path, more->unpacked, 1, more->unpacked_bytes, bytes};
    more->unpacked_bytes += bytes;
}
