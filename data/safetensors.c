// safetensors.c - reads and writes the format of safetensors.h.
//
// The reader trusts nothing: every number of the header is checked against the file before it is used. The tensors are
// then sorted by their offsets, so that "no overlap, no hole" becomes: each begins where the one before it ends.
#include "data/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/json.h"
#include "plan/base/base.h"
#include "plan/base/disk.h"

enum {
    PREFIX = 8,  // the header's length
    ALIGNMENT = 64,
    NAME_BYTES = sizeof(((SafeTensor*)0)->name),
    MOST_HEADER = 100000000,  // bytes; the format's own library takes no more
    PIECE = 1 << 20
};

static const char* const dtype_names[] = {[DT_F32] = "F32", [DT_BF16] = "BF16", [DT_F64] = "F64", [DT_F16] = "F16"};

// *bytes = product of dims * size of the type. -1 when it does not fit.
static int shape_bytes(const SafeTensor* t, size_t* bytes) {
    *bytes = dtype_bytes(t->dtype);
    for (int d = 0; d < t->n_dims; d++)
        if (t->dims[d] < 0 || __builtin_mul_overflow(*bytes, (uint64_t)t->dims[d], bytes)) return -1;
    return 0;
}

static int by_name(const void* a, const void* b) {
    return strcmp((*(const SafeTensor* const*)a)->name, (*(const SafeTensor* const*)b)->name);
}

static int check_names(const SafeTensor* tensors, int n, Err err) {
    const SafeTensor** sorted = malloc(sizeof *sorted * ((size_t)n + 1));
    if (!sorted) return fail(err, "no memory for the names of %d tensors", n);
    for (int i = 0; i < n; i++) sorted[i] = &tensors[i];
    qsort(sorted, (size_t)n, sizeof *sorted, by_name);
    int result = 0;
    for (int i = 1; i < n && !result; i++)
        if (by_name(&sorted[i - 1], &sorted[i]) == 0)
            result = fail(err, "tensor %s: expected each name once, found it twice", sorted[i]->name);
    free(sorted);
    return result;
}

// ---- reading

static int parse_name(SafeTensor* t, const JsonValue* key, Err err) {
    if (json_text(key, t->name, NAME_BYTES) == 0) return 0;
    return fail(err, "tensor %.*s: expected a name of at most %d bytes without control characters",
                (int)MIN(key->length, 80u), key->text, NAME_BYTES - 1);
}

static int parse_dtype(SafeTensor* t, const JsonValue* dtype, Err err) {
    for (int i = 0; i < COUNT(dtype_names); i++) {
        t->dtype = (DType)i;
        if (json_is(dtype, dtype_names[i])) return 0;
    }
    return fail(err, "tensor %s: expected dtype F32, BF16, F16 or F64, found %.*s; convert the file first", t->name,
                dtype ? (int)MIN(dtype->length, 40u) : 4, dtype ? dtype->text : "none");
}

static int parse_shape(SafeTensor* t, const JsonValue* shape, Err err) {
    if (!shape || shape->type != JSON_ARRAY || shape->n > COUNT(t->dims))
        return fail(err, "tensor %s: expected a shape of 0 to %d dimensions, found %s", t->name, COUNT(t->dims),
                    shape && shape->type == JSON_ARRAY ? "more" : "none");
    t->n_dims = shape->n;
    for (int d = 0; d < shape->n; d++)
        if (json_int64(json_at(shape, d), &t->dims[d]) || t->dims[d] < 0)
            return fail(err, "tensor %s: expected a whole number >= 0 as dimension %d", t->name, d);
    return 0;
}

// Reads data_offsets. Until all are known, begin counts from the first value.
static int parse_offsets(SafeTensor* t, const JsonValue* offsets, uint64_t n_data, Err err) {
    uint64_t begin, end;
    size_t bytes;
    if (!offsets || offsets->n != 2 || json_uint64(json_at(offsets, 0), &begin) ||
        json_uint64(json_at(offsets, 1), &end) || begin > end)
        return fail(err, "tensor %s: expected data_offsets [begin, end], begin <= end", t->name);
    if (end > n_data)
        return fail(err,
                    "tensor %s: expected its bytes inside the %" PRIu64 " bytes of values, found an end at %" PRIu64
                    "; is the file cut off?",
                    t->name, n_data, end);
    if (shape_bytes(t, &bytes))
        return fail(err, "tensor %s: expected a shape that fits in memory, found too large a product", t->name);
    if (bytes != end - begin)
        return fail(err, "tensor %s: expected %zu bytes for its shape and dtype %s, found %" PRIu64, t->name, bytes,
                    dtype_names[t->dtype], end - begin);
    t->begin = begin;
    t->bytes = bytes;
    return 0;
}

static int by_offset(const void* a, const void* b) {
    const SafeTensor *x = (const SafeTensor*)a, *y = (const SafeTensor*)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->bytes != y->bytes ? (x->bytes < y->bytes ? -1 : 1) : strcmp(x->name, y->name);  // empty ones first
}

static int check_cover(const SafeTensor* tensors, int n, uint64_t n_data, Err err) {
    uint64_t end = 0;
    const char* before = "the header";
    for (int i = 0; i < n; i++) {
        uint64_t begin = tensors[i].begin;
        if (begin != end)
            return fail(err,
                        "tensor %s: expected to begin at byte %" PRIu64 ", where %s ends, found byte %" PRIu64 " (%s)",
                        tensors[i].name, end, before, begin, begin < end ? "they overlap" : "a hole");
        end = begin + tensors[i].bytes;
        before = tensors[i].name;
    }
    if (end == n_data) return 0;
    return fail(err, "expected the file to end with %s at byte %" PRIu64 " of the values, found %" PRIu64, before, end,
                n_data);
}

static int list_tensors(SafeTensors* out, const JsonValue* root, uint64_t n_data, Err err) {
    if (root->type != JSON_OBJECT) return fail(err, "expected an object as header");
    out->tensors = (SafeTensor*)calloc((size_t)root->n + 1, sizeof(SafeTensor));
    if (!out->tensors) return fail(err, "no memory for a list of %d tensors", root->n);
    for (const JsonValue* key = json_members(root); key; key = json_next(key)) {
        SafeTensor* t = &out->tensors[out->n];
        const JsonValue* entry = key + 1;
        if (parse_name(t, key, err)) return -1;
        if (!strcmp(t->name, "__metadata__") && entry->type == JSON_OBJECT) continue;
        if (entry->type != JSON_OBJECT) return fail(err, "%s: expected an object as description of a tensor", t->name);
        if (parse_dtype(t, json_get(entry, "dtype"), err) || parse_shape(t, json_get(entry, "shape"), err) ||
            parse_offsets(t, json_get(entry, "data_offsets"), n_data, err))
            return -1;
        out->n++;
    }
    if (check_names(out->tensors, out->n, err)) return -1;
    qsort(out->tensors, (size_t)out->n, sizeof(SafeTensor), by_offset);
    return check_cover(out->tensors, out->n, n_data, err);
}

// Returns the header's length, from the first bytes of a file; -1 with a message.
static int64_t header_bytes(const unsigned char prefix[PREFIX], uint64_t n_file, Err err) {
    uint64_t n = 0;
    if (n_file < PREFIX)
        return fail(err, "expected a safetensors file of at least %d bytes, found %" PRIu64, PREFIX, n_file);
    for (int i = 0; i < PREFIX; i++) n |= (uint64_t)prefix[i] << 8 * i;
    if (n > n_file - PREFIX)
        return fail(err,
                    "expected a header inside the file of %" PRIu64 " bytes, found a length of %" PRIu64
                    "; is it safetensors?",
                    n_file, n);
    if (n > MOST_HEADER) return fail(err, "expected a header of at most %d bytes, found %" PRIu64, MOST_HEADER, n);
    return (int64_t)n;
}

// Parses n_header bytes of header, which n_data bytes of values follow.
static int parse_header(SafeTensors* out, const char* header, size_t n_header, uint64_t n_data, Err err) {
    Json json;
    char why[ERR_BYTES];
    if (n_header == 0 || header[0] != '{') return fail(err, "expected a header that begins with {; is it safetensors?");
    if (json_parse(&json, header, n_header, why)) return fail(err, "header: %s", why);
    int result = list_tensors(out, json.values, n_data, err);
    json_free(&json);
    for (int i = 0; i < out->n; i++) out->tensors[i].begin += PREFIX + n_header;
    return result;
}

int safetensors_parse(SafeTensors* out, const void* bytes, size_t n, Err err) {
    const unsigned char* p = (const unsigned char*)bytes;
    *out = (SafeTensors){0};
    int64_t n_header = header_bytes(p, n, err);
    if (n_header < 0) return -1;
    if (parse_header(out, (const char*)p + PREFIX, (size_t)n_header, n - PREFIX - (uint64_t)n_header, err)) {
        safetensors_close(out);
        return -1;
    }
    for (int i = 0; i < out->n; i++) out->tensors[i].data = p + out->tensors[i].begin;
    return 0;
}

static int read_header(SafeTensors* st, int fd, Err err) {
    unsigned char prefix[PREFIX] = {0};
    if (disk_read_at(fd, 0, prefix, PREFIX) < 0) return fail(err, "cannot read: %s", strerror(errno));
    int64_t n = header_bytes(prefix, st->bytes, err);
    if (n < 0) return -1;
    char* header = malloc((size_t)n + 1);
    if (!header) return fail(err, "no memory for a header of %" PRId64 " bytes", n);
    int64_t got = disk_read_at(fd, PREFIX, header, (size_t)n);
    int result = got == n ? parse_header(st, header, (size_t)n, st->bytes - PREFIX - (uint64_t)n, err)
                          : fail(err, "cannot read its header of %" PRId64 " bytes: %s", n,
                                 got < 0 ? strerror(errno) : "it ends before");
    free(header);
    return result;
}

int safetensors_open(SafeTensors* out, const char* path, Err err) {
    char why[ERR_BYTES];
    *out = (SafeTensors){0};
    int fd = disk_open(path, &out->bytes, err);
    if (fd < 0) return -1;
    out->path = strdup(path);
    int failed = out->path ? read_header(out, fd, why) : fail(why, "no memory for its path");
    close(fd);
    if (!failed) return 0;
    safetensors_close(out);
    return fail(err, "%s: %s", path, why);
}

void safetensors_close(SafeTensors* st) {
    free(st->path);
    free(st->tensors);
    *st = (SafeTensors){0};
}

const SafeTensor* safetensors_get(const SafeTensors* st, const char* name) {
    for (int i = 0; i < st->n; i++)
        if (!strcmp(st->tensors[i].name, name)) return &st->tensors[i];
    return NULL;
}

// Reads bytes at .. at + n of a tensor.
static int read_bytes(const SafeTensors* st, const SafeTensor* t, size_t at, size_t n, void* out, Err err) {
    if (n == 0) return 0;
    if (t->data) return memcpy(out, (const char*)t->data + at, n), 0;
    uint64_t bytes;
    int fd = disk_open(st->path, &bytes, err);
    if (fd < 0) return -1;
    int64_t got = bytes == st->bytes ? disk_read_at(fd, t->begin + at, out, n) : 0;
    const char* why = got < 0 ? strerror(errno) : "the file has another size than when it was opened";
    close(fd);
    if (got == (int64_t)n) return 0;
    return fail(err, "%s: tensor %s: cannot read its %zu bytes: %s", st->path, t->name, t->bytes, why);
}

// Widens IEEE's half precision, as bf16_widen_in_place. Its exponent counts from 2^-15, fp32's from 2^-127.
static void f16_widen_in_place(float* buffer, size_t n) {
    for (size_t i = n; i-- > 0;) {
        uint16_t h;
        memcpy(&h, (const char*)buffer + i * sizeof h, sizeof h);
        uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13, bits;
        float f;
        memcpy(&f, &magnitude, sizeof f);
        f *= 0x1p112f;  // exact, of subnormal numbers too
        memcpy(&bits, &f, sizeof f);
        if ((h & 0x7c00) == 0x7c00) bits = 0x7f800000 | magnitude;  // infinity, NaN
        bits |= (uint32_t)(h & 0x8000) << 16;
        memcpy(&buffer[i], &bits, sizeof bits);
    }
}

int safetensors_floats(const SafeTensors* st, const SafeTensor* t, size_t first, size_t n, float* out, Err err) {
    size_t size = dtype_bytes(t->dtype);
    double wide[512];
    if (t->dtype != DT_F64) {
        if (read_bytes(st, t, first * size, n * size, out, err)) return -1;
        if (t->dtype == DT_BF16) bf16_widen_in_place(out, n);
        if (t->dtype == DT_F16) f16_widen_in_place(out, n);
        return 0;
    }
    for (size_t done = 0; done < n;) {
        size_t count = MIN(n - done, (size_t)COUNT(wide));
        if (read_bytes(st, t, (first + done) * size, count * size, wide, err)) return -1;
        for (size_t i = 0; i < count; i++) out[done++] = (float)wide[i];
    }
    return 0;
}

static int check_finite(const SafeTensors* st, const char* path, Err err) {
    enum { MOST = PIECE / sizeof(float) };
    float* piece = malloc(PIECE);
    int result = piece ? 0 : fail(err, "%s: no memory to read it", path);
    for (const SafeTensor* t = st->tensors; t < st->tensors + st->n && !result; t++) {
        size_t n = t->bytes / dtype_bytes(t->dtype);
        for (size_t first = 0; first < n && !result; first += MOST) {
            size_t count = MIN((size_t)MOST, n - first);
            result = safetensors_floats(st, t, first, count, piece, err);
            for (size_t i = 0; i < count && !result; i++)
                if (!isfinite(piece[i]))
                    result = fail(err, "%s: tensor %s: expected finite values, found %g as element %zu", path, t->name,
                                  (double)piece[i], first + i);
        }
    }
    free(piece);
    return result;
}

int safetensors_check_finite(const char* path, const SafeImage* image, Err err) {
    SafeTensors st;
    if (image ? safetensors_parse(&st, image->bytes, image->n, err) : safetensors_open(&st, path, err)) return -1;
    int result = check_finite(&st, path, err);
    safetensors_close(&st);
    return result;
}

// ---- writing

// Returns the length and the header, with ,"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]} for each tensor;
// *bytes of both. The caller frees.
static char* make_header(const SafeTensor* tensors, int n, size_t* bytes) {
    char* header = NULL;
    size_t begin = 0;
    FILE* out = open_memstream(&header, bytes);
    if (!out) return NULL;
    fprintf(out, "%*s{\"__metadata__\":{\"format\":\"pt\"}", PREFIX, "");
    for (const SafeTensor* t = tensors; t < tensors + n; begin += t++->bytes) {
        fputc(',', out);
        json_put(out, t->name, strlen(t->name));
        fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", dtype_names[t->dtype]);
        for (int d = 0; d < t->n_dims; d++) fprintf(out, "%s%" PRId64, d ? "," : "", t->dims[d]);
        fprintf(out, "],\"data_offsets\":[%zu,%zu]}", begin, begin + t->bytes);
    }
    fputc('}', out);
    while (ftell(out) % ALIGNMENT) fputc(' ', out);
    if (!json_end(out, &header)) return NULL;
    for (int i = 0; i < PREFIX; i++) header[i] = (char)((*bytes - PREFIX) >> 8 * i);
    return header;
}

// Writes whole tensors into the image, behind its header, or pieces into the file where image is NULL.
static int write_values(int fd, SafeImage* image, size_t header, const SafeTensor* tensors, int n, SafeTensorFill fill,
                        void* context) {
    char *piece = image ? NULL : malloc(PIECE), *at = image ? image->bytes + header : piece;
    int bad = !image && !piece;
    for (const SafeTensor* t = tensors; t < tensors + n && !bad; t++)
        for (size_t done = 0, now; done < t->bytes && !bad; done += now) {
            size_t size = dtype_bytes(t->dtype);
            now = image ? t->bytes : MIN(t->bytes - done, (size_t)PIECE);
            if (t->data) memcpy(at, (const char*)t->data + done, now);
            else fill(context, (int)(t - tensors), done / size, now / size, at);
            if (image) at += now;
            else bad = disk_write(fd, at, now);
        }
    free(piece);
    return bad;
}

int safetensors_write(const char* path, SafeImage* image, const SafeTensor* tensors, int n, SafeTensorFill fill,
                      void* context, Err err) {
    char why[ERR_BYTES];
    size_t bytes = 0;
    if (check_names(tensors, n, why)) return fail(err, "%s: %s", path, why);
    char* header = make_header(tensors, n, &bytes);
    if (!header) return fail(err, "%s: no memory for the header of %d tensors", path, n);
    size_t all = bytes;
    for (int i = 0; i < n; i++) all += tensors[i].bytes;
    if (image) image->n = all <= image->room ? all : 0;  // before values are asked for, who may look
    int result = 0, fd = -1;
    if (image && image->n) {
        memcpy(image->bytes, header, bytes);
        write_values(fd, image, bytes, tensors, n, fill, context);
    } else if ((fd = disk_create(path, err)) >= 0) {
        int bad = disk_write(fd, header, bytes) || write_values(fd, NULL, bytes, tensors, n, fill, context);
        result = disk_finish(fd, path, bad, err);
    } else result = -1;
    free(header);
    return result;
}
