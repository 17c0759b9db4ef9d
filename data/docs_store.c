// docs_store.c - what the readers of all formats need: arrays that grow, documents and encoded tokens appended, bytes
// of files. See docs_format.h.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/docs_format.h"
#include "plan/base/base.h"
#include "plan/base/disk.h"

int docs_reserve(void* array, int64_t* capacity, int64_t n, int64_t more, size_t element_bytes, char* err,
                 size_t errlen) {
    if (more <= *capacity - n) return 0;
    int64_t wanted = MAX(n + more, MAX(16, *capacity + *capacity / 2));
    void *old, *grown = NULL;
    memcpy(&old, array, sizeof old);  // `array` points to a pointer of whatever type
    if (wanted <= (int64_t)(PTRDIFF_MAX / element_bytes)) grown = realloc(old, (size_t)wanted * element_bytes);
    if (!grown)
        return fail(err, errlen, "out of memory for %lld entries of %zu bytes", (long long)wanted, element_bytes);
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return 0;
}

int64_t docs_last_at_most(const int64_t* first, size_t stride, int64_t n, int64_t key) {
    int64_t low = 0, high = n;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (*(const int64_t*)((const char*)first + (size_t)middle * stride) <= key) low = middle;
        else high = middle;
    }
    return low;
}

// ---- content: four lanes, for speed; in each a block is a bijection, so that no single change is lost

enum { CONTENT_BLOCK = sizeof(((ContentHash*)0)->held) };

static void hash_block(ContentHash* h, const unsigned char* block) {
    for (int i = 0; i < COUNT(h->lanes); i++) {
        uint64_t word;
        memcpy(&word, block + 8 * i, sizeof word);
        word ^= h->lanes[i];
        h->lanes[i] = (word << 29 | word >> 35) * 0x9e3779b97f4a7c15u;
    }
}

void docs_hash_content(Docs* docs, const void* bytes, size_t n) {
    ContentHash* h = &docs->reading;
    const unsigned char* p = bytes;
    size_t held = h->bytes % CONTENT_BLOCK;
    h->bytes += n;
    if (held > 0) {
        size_t more = MIN(n, CONTENT_BLOCK - held);
        memcpy(h->held + held, p, more);
        p += more, n -= more;
        if (held + more < CONTENT_BLOCK) return;
        hash_block(h, h->held);
    }
    for (; n >= CONTENT_BLOCK; n -= CONTENT_BLOCK, p += CONTENT_BLOCK) hash_block(h, p);
    if (n > 0) memcpy(h->held, p, n);
}

uint64_t docs_finish_content(Docs* docs) {
    ContentHash* h = &docs->reading;
    size_t held = h->bytes % CONTENT_BLOCK;
    memset(h->held + held, 0, CONTENT_BLOCK - held);
    if (held > 0) hash_block(h, h->held);
    docs->content = hash64(docs->content ^ h->bytes);
    for (int i = 0; i < COUNT(h->lanes); i++) docs->content = hash64(docs->content ^ h->lanes[i]);
    *h = (ContentHash){.bytes = 0};
    return docs->content;
}

int docs_add(Docs* docs, int64_t length, const void* head, size_t head_bytes, char* err, size_t errlen) {
    if (docs->n_docs + 1 >= docs->docs_capacity) {  // start has one element more than hash
        int64_t capacity = docs->docs_capacity;
        if (docs_reserve(&docs->hash, &capacity, docs->n_docs, 2, sizeof *docs->hash, err, errlen)) return -1;
        capacity = docs->docs_capacity;
        if (docs_reserve(&docs->start, &capacity, docs->n_docs, 2, sizeof *docs->start, err, errlen)) return -1;
        docs->docs_capacity = capacity;
    }
    if (docs->n_docs == 0) docs->start[0] = 0;
    docs->hash[docs->n_docs] = hash_bytes(head, head_bytes, (uint64_t)length);
    docs->start[docs->n_docs + 1] = docs->start[docs->n_docs] + length;
    docs->n_docs++;
    docs_finish_content(docs);
    return 0;
}

// ---- text that is encoded at opening: tokens appended to those of all documents, in 2 or 4 bytes each

enum { TELL_EVERY = 1 << 20 };  // bytes of text

int docs_append_tokens(Docs* docs, const int* tokens, size_t n, char* err, size_t errlen) {
    if (docs_reserve(&docs->encoded, &docs->encoded_capacity, docs->n_encoded, (int64_t)n, (size_t)docs->encoded_bytes,
                     err, errlen))
        return -1;
    if (docs->encoded_bytes == 2) {
        uint16_t* out = (uint16_t*)docs->encoded + docs->n_encoded;
        for (size_t i = 0; i < n; i++) out[i] = (uint16_t)tokens[i];
    } else if (n > 0) {
        memcpy((int*)docs->encoded + docs->n_encoded, tokens, n * sizeof *tokens);
    }
    docs->n_encoded += (int64_t)n;
    return 0;
}

static void (*tell)(int64_t done, int64_t total);
static int64_t encoded_bytes, told_bytes, total_bytes;

void docs_on_progress(void (*listener)(int64_t done, int64_t total), int64_t total) {
    tell = listener;
    encoded_bytes = told_bytes = 0;
    total_bytes = total;
}

static void count_encoded(size_t n) {
    encoded_bytes += (int64_t)n;
    if (!tell || encoded_bytes - told_bytes < TELL_EVERY) return;
    told_bytes = encoded_bytes;
    tell(encoded_bytes, total_bytes);
}

int docs_append_text(Docs* docs, const char* text, size_t n, char* err, size_t errlen) {
    int* tokens = malloc(MAX(1, tokenizer_room(docs->tokenizer, n)) * sizeof *tokens);
    if (!tokens) return fail(err, errlen, "out of memory to encode %zu bytes of text", n);
    int status = docs_append_tokens(docs, tokens, tokenizer_encode(docs->tokenizer, tokens, text, n), err, errlen);
    free(tokens);
    count_encoded(n);
    return status;
}

void docs_read_encoded(const Docs* docs, int64_t at, int n, int* out) {
    for (int i = 0; i < n; i++)
        out[i] =
            docs->encoded_bytes == 2 ? ((const uint16_t*)docs->encoded)[at + i] : ((const int*)docs->encoded)[at + i];
}

int docs_add_encoded(Docs* docs, int64_t first, char* err, size_t errlen) {
    int head[DOCS_HEAD_TOKENS];
    int64_t length = docs->n_encoded - first;
    int n = (int)MIN(length, DOCS_HEAD_TOKENS);
    docs_read_encoded(docs, first, n, head);
    return docs_add(docs, length, head, (size_t)n * sizeof *head, err, errlen);
}

// ---- files

static int open_path(const char* path) { return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); }

int docs_file_read(const DocsFile* file, int64_t offset, void* out, size_t n, char* err, size_t errlen) {
    if (offset < 0 || offset > file->size || n > (uint64_t)(file->size - offset))
        return fail(err, errlen, "%s: %zu bytes from %lld on do not exist, it has %lld", file->path, n,
                    (long long)offset, (long long)file->size);
    if (file->packed) offset += file->base;
    int fd = file->fd >= 0 ? file->fd : open_path(file->path);
    if (fd < 0) return fail(err, errlen, "%s: %s%s", file->path, strerror(errno), disk_hint(errno));
    int64_t got = disk_read_at(fd, (uint64_t)offset, out, n);
    int error = errno;
    if (fd != file->fd) close(fd);
    if (got < 0) return fail(err, errlen, "%s: %s", file->path, strerror(error));
    if (got == (int64_t)n) return 0;
    return fail(err, errlen, "%s: ends at byte %lld, it had %lld when it was opened", file->path,
                (long long)(offset + got), (long long)file->size);
}

void docs_file_close(DocsFile* file) {
    if (file->packed) return;  // the corpus's own
    if (file->fd >= 0) close(file->fd);
    file->fd = -1;
}

int docs_file_open(DocsFile* file, char* err, size_t errlen) {
    struct stat st;
    file->fd = open_path(file->path);
    if (file->fd < 0 || fstat(file->fd, &st))
        return fail(err, errlen, "%s: %s%s", file->path, strerror(errno), disk_hint(errno));
    errno = ENOENT;
    if (!S_ISREG(st.st_mode)) return fail(err, errlen, "%s: is not a regular file", file->path);
    file->size = st.st_size;
    return 0;
}

int64_t docs_tokens(const Docs* docs) { return docs->n_docs ? docs->start[docs->n_docs] : 0; }
