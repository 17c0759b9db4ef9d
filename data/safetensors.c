// safetensors.c - reads and writes the format; see safetensors.h. Everything in a header is checked before it is believed.
#define _POSIX_C_SOURCE 200809L
#include "data/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/json.h"

enum { LENGTH_BYTES = 8, ALIGNMENT = 64, PIECE_BYTES = 1 << 20 };

static const char* dtype_text(DType dt) { return dt == DT_F64 ? "F64" : dt == DT_F32 ? "F32" : "BF16"; }

static int is_text(const JsonValue* v, const char* text) {
    return v && v->type == JSON_STRING && v->length == strlen(text) && !memcmp(v->text, text, v->length);
}

// ---- reading

// shape, dtype and byte range of one tensor; data points into the `room` bytes at `data`.
static int read_tensor(SafeTensor* t, const Json* json, const JsonValue* v, const unsigned char* data, size_t room, char* err,
                       size_t errlen) {
    const JsonValue *dtype = json_get(json, v, "dtype"), *shape = json_get(json, v, "shape");
    const JsonValue* range = json_get(json, v, "data_offsets");
    uint64_t begin, end;
    if (is_text(dtype, "F32")) t->dtype = DT_F32;
    else if (is_text(dtype, "BF16")) t->dtype = DT_BF16;
    else if (is_text(dtype, "F64")) t->dtype = DT_F64;
    else return fail(err, errlen, "tensor %s: expected type F32, BF16 or F64, found %.*s", t->name, dtype ? (int)MIN(dtype->length, (size_t)20) : 4,
                     dtype ? dtype->text : "none");
    if (!shape || shape->type != JSON_ARRAY || shape->n > COUNT(t->dims))
        return fail(err, errlen, "tensor %s: expected a shape of at most %d dimensions", t->name, COUNT(t->dims));
    uint64_t bytes = dtype_bytes(t->dtype);
    t->n_dims = shape->n;
    for (int d = 0; d < t->n_dims; d++) {
        if (json_int64(json_at(json, shape, d), &t->dims[d]) || t->dims[d] < 0 ||
            __builtin_mul_overflow(bytes, (uint64_t)t->dims[d], &bytes))
            return fail(err, errlen, "tensor %s: dimension %d of its shape is no possible size", t->name, d);
    }
    if (!range || range->type != JSON_ARRAY || range->n != 2 || json_uint64(json_at(json, range, 0), &begin) ||
        json_uint64(json_at(json, range, 1), &end) || begin > end || end > room)
        return fail(err, errlen, "tensor %s: expected data_offsets within the file's %zu bytes of data", t->name, room);
    if (end - begin != bytes)
        return fail(err, errlen, "tensor %s: expected %" PRIu64 " bytes for its shape, found %" PRIu64, t->name, bytes, end - begin);
    t->data = data + begin;
    t->bytes = (size_t)bytes;
    return 0;
}

static int by_place(const void* a, const void* b) {
    const SafeTensor *x = *(const SafeTensor* const*)a, *y = *(const SafeTensor* const*)b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void* a, const void* b) { return strcmp((*(const SafeTensor* const*)a)->name, (*(const SafeTensor* const*)b)->name); }

// Together the tensors must cover the data exactly once, under different names.
static int check_cover(SafeTensors* st, const unsigned char* data, size_t room, char* err, size_t errlen) {
    const SafeTensor** sorted = (const SafeTensor**)malloc(sizeof *sorted * ((size_t)st->n + 1));
    if (!sorted) return fail(err, errlen, "no memory for %d tensors", st->n);
    for (int i = 0; i < st->n; i++) sorted[i] = &st->tensors[i];
    int result = 0;
    qsort(sorted, (size_t)st->n, sizeof *sorted, by_place);
    const unsigned char* at = data;
    for (int i = 0; i < st->n && !result; at = (const unsigned char*)sorted[i]->data + sorted[i]->bytes, i++)
        if (sorted[i]->data != at)
            result = fail(err, errlen, "tensor %s: %s the tensor before it", sorted[i]->name, (const unsigned char*)sorted[i]->data < at ? "overlaps" : "leaves a hole behind");
    if (!result && at != data + room) result = fail(err, errlen, "expected tensors to fill %zu bytes of data, found %zu", room, (size_t)(at - data));
    qsort(sorted, (size_t)st->n, sizeof *sorted, by_name);
    for (int i = 1; i < st->n && !result; i++)
        if (!strcmp(sorted[i]->name, sorted[i - 1]->name)) result = fail(err, errlen, "tensor %s: found twice", sorted[i]->name);
    free(sorted);
    return result;
}

static int read_tensors(SafeTensors* st, const Json* json, const unsigned char* data, size_t room, char* err, size_t errlen) {
    const JsonValue* root = json->values;
    if (root->type != JSON_OBJECT) return fail(err, errlen, "expected a JSON object as header");
    st->tensors = (SafeTensor*)calloc((size_t)root->n + 1, sizeof(SafeTensor));
    if (!st->tensors) return fail(err, errlen, "no memory for %d tensors", root->n);
    const JsonValue* name = root + 1;
    for (int i = 0; i < root->n; i++, name = &json->values[(name + 1)->next]) {
        SafeTensor* t = &st->tensors[st->n];
        if (is_text(name, "__metadata__")) continue;
        if (name->length >= sizeof t->name || json_string(name, t->name) < 0)
            return fail(err, errlen, "expected tensor names of at most %zu bytes, found %.*s", sizeof t->name - 1, (int)MIN(name->length, (size_t)40), name->text);
        if (read_tensor(t, json, name + 1, data, room, err, errlen)) return -1;
        st->n++;
    }
    return check_cover(st, data, room, err, errlen);
}

int safetensors_parse(SafeTensors* st, const void* bytes, size_t n, char* err, size_t errlen) {
    const unsigned char* p = (const unsigned char*)bytes;
    uint64_t header = 0;
    memset(st, 0, sizeof *st);
    for (int i = 0; i < LENGTH_BYTES && n >= LENGTH_BYTES; i++) header |= (uint64_t)p[i] << 8 * i;
    if (n < LENGTH_BYTES || header > n - LENGTH_BYTES)
        return fail(err, errlen, "no safetensors file, or cut off: expected a header of %" PRIu64 " bytes, found %zu bytes in all", header, n);
    Json json;
    char why[ERR_BYTES];
    if (json_parse(&json, (const char*)p + LENGTH_BYTES, (size_t)header, why, sizeof why)) return fail(err, errlen, "header: %s", why);
    size_t before = LENGTH_BYTES + (size_t)header;
    int result = read_tensors(st, &json, p + before, n - before, err, errlen);
    json_free(&json);
    if (result) safetensors_close(st);
    return result;
}

int safetensors_open(SafeTensors* st, const char* path, char* err, size_t errlen) {
    struct stat info;
    char why[ERR_BYTES];
    memset(st, 0, sizeof *st);
    int fd = open(path, O_RDONLY);
    if (fd < 0) return fail(err, errlen, "%s: cannot read: %s", path, strerror(errno));
    int failed = fstat(fd, &info) || !S_ISREG(info.st_mode) || info.st_size == 0;
    void* file = failed ? MAP_FAILED : mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (file == MAP_FAILED) return fail(err, errlen, "%s: expected a safetensors file, found %s", path, failed ? "an empty or special file" : strerror(errno));
    if (safetensors_parse(st, file, (size_t)info.st_size, why, sizeof why)) {
        munmap(file, (size_t)info.st_size);
        return fail(err, errlen, "%s: %s", path, why);
    }
    st->file = (const unsigned char*)file;
    st->file_bytes = (size_t)info.st_size;
    return 0;
}

void safetensors_close(SafeTensors* st) {
    if (st->file) munmap((void*)st->file, st->file_bytes);
    free(st->tensors);
    memset(st, 0, sizeof *st);
}

const SafeTensor* safetensors_get(const SafeTensors* st, const char* name) {
    for (int i = 0; i < st->n; i++)
        if (!strcmp(st->tensors[i].name, name)) return &st->tensors[i];
    return NULL;
}

// ---- writing

// The header, padded with blanks so that the data begins at a multiple of 64 bytes. malloc'ed; NULL without memory.
static char* make_header(const SafeTensor* tensors, int n, size_t* length) {
    enum { MOST_A_TENSOR = 6 * (int)sizeof tensors->name + 256 };
    char* header = (char*)malloc((size_t)n * MOST_A_TENSOR + 256);
    if (!header) return NULL;
    char* at = header + LENGTH_BYTES;
    size_t offset = 0;
    at += sprintf(at, "{\"__metadata__\": {\"format\": \"pt\"}");
    for (int i = 0; i < n; i++) {
        const SafeTensor* t = &tensors[i];
        at += sprintf(at, ", ");
        at += json_quote(at, t->name, strlen(t->name));
        at += sprintf(at, ": {\"dtype\": \"%s\", \"shape\": [", dtype_text(t->dtype));
        for (int d = 0; d < t->n_dims; d++) at += sprintf(at, d ? ", %" PRId64 : "%" PRId64, t->dims[d]);
        at += sprintf(at, "], \"data_offsets\": [%zu, %zu]}", offset, offset + t->bytes);
        offset += t->bytes;
    }
    *at++ = '}';
    while ((at - header) % ALIGNMENT) *at++ = ' ';
    *length = (size_t)(at - header);
    for (int i = 0; i < LENGTH_BYTES; i++) header[i] = (char)((*length - LENGTH_BYTES) >> 8 * i);
    return header;
}

static int write_data(FILE* file, const SafeTensor* t, int i, SafeTensorFill fill, void* context, char* piece) {
    if (!fill) return fwrite(t->data, 1, t->bytes, file) == t->bytes ? 0 : -1;
    size_t elem = dtype_bytes(t->dtype), elems = t->bytes / elem, most = PIECE_BYTES / elem;
    for (size_t first = 0; first < elems; first += most) {
        size_t n = MIN(most, elems - first);
        fill(context, i, first, n, piece);
        if (fwrite(piece, elem, n, file) != n) return -1;
    }
    return 0;
}

int safetensors_write(const char* path, const SafeTensor* tensors, int n, SafeTensorFill fill, void* context, char* err,
                      size_t errlen) {
    size_t length = 0;
    char *header = make_header(tensors, n, &length), *piece = (char*)malloc(PIECE_BYTES);
    FILE* file = header && piece ? fopen(path, "wb") : NULL;
    int result = 0;
    if (!header || !piece) result = fail(err, errlen, "%s: no memory for a header of %d tensors", path, n);
    else if (!file) result = fail(err, errlen, "%s: cannot write: %s", path, strerror(errno));
    if (file) {
        int bad = fwrite(header, 1, length, file) != length;
        for (int i = 0; i < n && !bad; i++) bad = write_data(file, &tensors[i], i, fill, context, piece);
        bad = bad || fflush(file) || fsync(fileno(file));
        if (bad) result = fail(err, errlen, "%s: cannot write: %s", path, strerror(errno));
        if (fclose(file) && !bad) result = fail(err, errlen, "%s: cannot write: %s", path, strerror(errno));
        if (result) unlink(path);
    }
    free(header);
    free(piece);
    return result;
}
