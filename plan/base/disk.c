// disk.c - see disk.h.
#include "plan/base/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plan/base/base.h"

const char* disk_hint(int error) {
    if (error == ENOSPC || error == EDQUOT) return "; free some space there";
    if (error == EFBIG) return "; raise the limit of a file's size (ulimit -f)";
    if (error == EMFILE) return "; raise the limit of open files (ulimit -n)";
    return "";
}

int disk_join(char path[DISK_PATH], const char* dir, const char* name, Err err) {
    if ((size_t)snprintf(path, DISK_PATH, "%s/%s", dir, name) < DISK_PATH) return 0;
    return fail(err, "%.60s.../%s: expected a path of at most %d bytes", dir, name, DISK_PATH - 1);
}

int disk_open(const char* path, uint64_t* bytes, Err err) {
    struct stat s;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // O_NONBLOCK: a named pipe would wait for its writer
    if (fd < 0) return fail(err, "%s: cannot read: %s%s", path, strerror(errno), disk_hint(errno));
    if (fstat(fd, &s) || !S_ISREG(s.st_mode)) {
        close(fd);
        return fail(err, "%s: expected a file, found another kind", path);
    }
    *bytes = (uint64_t)s.st_size;
    return fd;
}

// at: NULL: from where the descriptor stands.
static int64_t read_from(int fd, const uint64_t* at, void* bytes, size_t n) {
    size_t done = 0;
    while (done < n) {
        char* to = (char*)bytes + done;
        ssize_t got = at ? pread(fd, to, n - done, (off_t)(*at + done)) : read(fd, to, n - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += (size_t)got;
    }
    return (int64_t)done;
}

int64_t disk_read(int fd, void* bytes, size_t n) { return read_from(fd, NULL, bytes, n); }
int64_t disk_read_at(int fd, uint64_t at, void* bytes, size_t n) { return read_from(fd, &at, bytes, n); }

char* disk_read_file(const char* path, size_t most, size_t* n, Err err) {
    uint64_t bytes;
    int fd = disk_open(path, &bytes, err);
    if (fd < 0) return NULL;
    char* text = bytes <= most ? (char*)malloc((size_t)bytes + 1) : NULL;
    int64_t got = text ? disk_read(fd, text, (size_t)bytes) : 0;
    int error = errno;
    close(fd);
    if (!text)
        fail(err, "%s: expected a file of at most %zu bytes that fits in memory, found %" PRIu64, path, most, bytes);
    else if (got < 0) fail(err, "%s: cannot read: %s%s", path, strerror(error), disk_hint(error));
    else if (got != (int64_t)bytes) fail(err, "%s: expected %" PRIu64 " bytes, could read %" PRId64, path, bytes, got);
    if (got != (int64_t)bytes || !text) {
        free(text);
        return NULL;
    }
    *n = (size_t)bytes;
    text[bytes] = 0;
    return text;
}
