// prune_file.c - see prune_file.h. The reader first reads and checks everything, then fills the tables.
#include "data/prune_file.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>

enum { PARTS = 3, CHECK_PIECES = 4, PIECE_BITS = 16 };  // tensors of a table; of the hash

typedef enum Part { PART_VALUE, PART_KEPT, PART_STAY } Part;

static const char* const part_names[PARTS] = {"value", "kept", "stay"};

// A tensor as it must be in the file; its bytes are the caller's.
static SafeTensor describe(int rows, int cols, const void* data) {
    SafeTensor t = {.dtype = DT_F32, .n_dims = 2, .dims = {rows, cols}, .data = data};
    t.bytes = (size_t)rows * (size_t)cols * sizeof(float);
    return t;
}

static SafeTensor describe_part(const PruneTable* table, Part part, int layers, const void* data) {
    SafeTensor t = part == PART_STAY ? describe(1, 1, data) : describe(layers, table->n, data);
    snprintf(t.name, sizeof t.name, "%s.%s", table->name, part_names[part]);
    return t;
}

static SafeTensor describe_check(const float* pieces) {
    SafeTensor t = describe(1, CHECK_PIECES, pieces);
    snprintf(t.name, sizeof t.name, "check");
    return t;
}

// Of the values; names and shapes are compared by themselves.
static void make_check(float pieces[CHECK_PIECES], const SafeTensor* tensors, int n) {
    uint64_t hash = 0;
    for (int i = 0; i < n; i++) hash = hash_bytes(tensors[i].data, tensors[i].bytes, hash);
    for (int i = 0; i < CHECK_PIECES; i++) pieces[i] = (float)(hash >> i * PIECE_BITS & ((1 << PIECE_BITS) - 1));
}

int prune_file_write(const PruneTable* tables, int n_tables, int layers, const char* path, char* err, size_t errlen) {
    SafeTensor tensors[MOST_PRUNE_TABLES * PARTS + 1];
    float stay[MOST_PRUNE_TABLES], pieces[CHECK_PIECES];
    int n = n_tables * PARTS;
    for (int i = 0; i < n; i++) {
        const PruneTable* table = &tables[i / PARTS];
        const float* data[PARTS] = {table->value, table->kept, &stay[i / PARTS]};
        stay[i / PARTS] = (float)table->stay;
        tensors[i] = describe_part(table, (Part)(i % PARTS), layers, data[i % PARTS]);
    }
    make_check(pieces, tensors, n);
    tensors[n] = describe_check(pieces);
    return safetensors_write(path, tensors, n + 1, NULL, NULL, err, errlen);
}

// ---- reading

// Reads the tensor that is expected to `values`, and lets it point there.
static int read_tensor(SafeTensor* expected, float* values, const SafeTensors* file, char* err, size_t errlen) {
    const SafeTensor* t = safetensors_get(file, expected->name);
    if (!t)
        return fail(err, errlen, "expected a tensor %s, found none; is this of another way to resize?", expected->name);
    if (t->dtype != DT_F32 || t->n_dims != 2 || t->dims[0] != expected->dims[0] || t->dims[1] != expected->dims[1])
        return fail(err, errlen,
                    "tensor %s: expected fp32 (%lld,%lld), found %s of %d dimensions and %zu bytes; is this of another "
                    "model or rank?",
                    expected->name, (long long)expected->dims[0], (long long)expected->dims[1], dtype_name(t->dtype),
                    t->n_dims, t->bytes);
    expected->data = values;
    return safetensors_floats(file, t, 0, t->bytes / sizeof(float), values, err, errlen);
}

static float element(const SafeTensor* t, size_t i) { return ((const float*)t->data)[i]; }

static int check_values(const SafeTensor* value, char* err, size_t errlen) {
    for (size_t i = 0; i < value->bytes / sizeof(float); i++) {
        float x = element(value, i);
        if (!(x >= 0 && x <= FLT_MAX))
            return fail(err, errlen, "tensor %s: expected finite values that are not negative, found %g at %zu",
                        value->name, (double)x, i);
    }
    return 0;
}

static int check_kept(const SafeTensor* kept, const SafeTensor* stay, int layers, int n, char* err, size_t errlen) {
    float staying = element(stay, 0);
    if (!(staying >= 0 && staying <= (float)n && staying == (float)(int)staying))
        return fail(err, errlen, "tensor %s: expected a whole number from 0 to %d, found %g", stay->name, n,
                    (double)staying);
    for (int l = 0; l < layers; l++) {
        int found = 0;
        for (int j = 0; j < n; j++) {
            float x = element(kept, (size_t)l * (size_t)n + (size_t)j);
            if (x != 1 && (x != 0 || j >= (int)staying))
                return fail(err, errlen, "tensor %s, layer %d: expected 1%s, found %g at %d", kept->name, l,
                            j < (int)staying ? " or 0" : "", (double)x, j);
            found += j < (int)staying && x == 1;
        }
        if (staying > 0 && !found)
            return fail(err, errlen, "tensor %s, layer %d: expected at least one that is kept", kept->name, l);
    }
    return 0;
}

// The tensors of all tables and the check behind them.
static int check_tensors(const SafeTensor* tensors, const PruneTable* tables, int n_tables, int layers, char* err,
                         size_t errlen) {
    float pieces[CHECK_PIECES];
    int n = n_tables * PARTS;
    for (int i = 0; i < n_tables; i++) {
        const SafeTensor* part = &tensors[i * PARTS];
        if (check_values(&part[PART_VALUE], err, errlen) ||
            check_kept(&part[PART_KEPT], &part[PART_STAY], layers, tables[i].n, err, errlen))
            return -1;
    }
    make_check(pieces, tensors, n);
    for (int i = 0; i < CHECK_PIECES; i++)
        if (pieces[i] != element(&tensors[n], (size_t)i))
            return fail(err, errlen, "expected values of the hash in the tensor check; is the file damaged?");
    return 0;
}

static void fill_table(PruneTable* table, const SafeTensor part[PARTS]) {
    memcpy(table->value, part[PART_VALUE].data, part[PART_VALUE].bytes);
    memcpy(table->kept, part[PART_KEPT].data, part[PART_KEPT].bytes);
    table->stay = (int)element(&part[PART_STAY], 0);
}

int prune_file_take(PruneTable* tables, int n_tables, int layers, const SafeTensors* file, char* err, size_t errlen) {
    SafeTensor tensors[MOST_PRUNE_TABLES * PARTS + 1];
    int n = n_tables * PARTS;
    size_t elems = CHECK_PIECES, at = 0;
    for (int i = 0; i < n_tables; i++) elems += 2 * (size_t)layers * (size_t)tables[i].n + 1;
    float* values = (float*)malloc(elems * sizeof *values);
    int bad = values ? 0 : fail(err, errlen, "no memory for %zu values", elems);
    for (int i = 0; i <= n && !bad; at += tensors[i++].bytes / sizeof *values) {
        tensors[i] = i == n ? describe_check(NULL) : describe_part(&tables[i / PARTS], (Part)(i % PARTS), layers, NULL);
        bad = read_tensor(&tensors[i], values + at, file, err, errlen);
    }
    if (!bad && file->n != n + 1) bad = fail(err, errlen, "expected %d tensors, found %d", n + 1, file->n);
    if (!bad) bad = check_tensors(tensors, tables, n_tables, layers, err, errlen);
    for (int i = 0; i < n_tables && !bad; i++) fill_table(&tables[i], &tensors[i * PARTS]);
    free(values);
    return bad;
}

int prune_file_read(PruneTable* tables, int n_tables, int layers, const char* path, char* err, size_t errlen) {
    char why[ERR_BYTES];
    SafeTensors file;
    if (safetensors_open(&file, path, err, errlen)) return -1;
    int result = prune_file_take(tables, n_tables, layers, &file, why, sizeof why);
    safetensors_close(&file);
    return result ? fail(err, errlen, "%s: %s", path, why) : 0;
}
