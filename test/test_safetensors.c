// test_safetensors.c - claims about data/safetensors.c: what it writes it reads back, bit for bit; what is cut off,
// corrupted or made up is refused with a message that names the tensor. Bytes lie in buffers of just their size, for
// AddressSanitizer to watch.
#include "data/safetensors.h"

#include <sys/stat.h>

#include "data/json.h"
#include "plan/base/disk.h"
#include "test/readers.h"
#include "test/temporary.h"

static char err[ERR_BYTES], path[600];
static volatile uint64_t touched;  // makes every byte that is said to be there be read

static unsigned char* read_whole(const char* name, size_t* n) {
    static char bytes[1 << 22];
    *n = read_text(name, bytes, sizeof bytes);
    return (unsigned char*)bytes;
}

// 0 accepted, -1 refused (with a message of one line).
static int parse(const void* bytes, size_t n) {
    SafeTensors st;
    err[0] = 0;
    int result = safetensors_parse(&st, bytes, n, err);
    if (result) CHECK(err[0] && !strchr(err, '\n') && !st.tensors && st.n == 0);
    for (int i = 0; i < st.n; i++) touched = hash_bytes(st.tensors[i].data, st.tensors[i].bytes, 0);
    safetensors_close(&st);
    return result;
}

// A file of this header (with ' for ") and n_data bytes of values.
static int parse_text(const char* header, size_t n_data) {
    size_t n = strlen(header);
    unsigned char* bytes = (unsigned char*)calloc(1, 8 + n + n_data);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)n >> 8 * i);
    memcpy(bytes + 8, quoted(header), n);
    int result = parse(bytes, 8 + n + n_data);
    free(bytes);
    return result;
}

// ---- a file with every type and every number of dimensions

static float f32_values[] = {1.5f, -0.0f, INFINITY, 1e-45f, -3.25f, 7};
static bf16 bf16_values[] = {0x3f80, 0xff80, 0x7fc1, 0x0001, 0x8000};
static double f64_values[] = {0.1, -1e308, 5e-324, 2, 3, 4, 5, 6, 7, 8, 9, 10};
static float scalar = 42;

static void make_tensors(SafeTensor* t) {
    SafeTensor all[] = {
        {"matrix", DT_F32, 2, {2, 3}, f32_values, sizeof f32_values, 0},
        {"vector \"\\\xc3\xa9/.0", DT_BF16, 1, {5}, bf16_values, sizeof bf16_values, 0},
        {"four", DT_F64, 4, {3, 1, 2, 2}, f64_values, sizeof f64_values, 0},
        {"scalar", DT_F32, 0, {0}, &scalar, sizeof scalar, 0},
        {"empty", DT_BF16, 2, {0, 7}, NULL, 0, 0},
    };
    memcpy(t, all, sizeof all);
}

static void write_example(SafeTensor* t) {
    make_tensors(t);
    CHECK(safetensors_write(path, NULL, t, 5, NULL, NULL, err) == 0);
}

// Of fp32 and bf16 bits, fp64 as fp32: what a read gives is what the same values in memory give.
static void check_values(const SafeTensors* st, const SafeTensor* t, const SafeTensor* want) {
    float found[16], expected[16];
    size_t n = want->bytes / dtype_bytes(want->dtype);
    CHECK(t->data == NULL && safetensors_floats(st, t, 0, n, found, err) == 0);
    CHECK(safetensors_floats(st, want, 0, n, expected, err) == 0);
    CHECK(n == 0 || !memcmp(found, expected, n * sizeof *found));
}

static void check_same(const SafeTensors* st, const SafeTensor* expected, int n) {
    CHECK(st->n == n);
    for (int i = 0; i < n; i++) {
        const SafeTensor *want = &expected[i], *t = safetensors_get(st, want->name);
        CHECK(t != NULL);
        if (!t) continue;
        CHECK(t->dtype == want->dtype && t->n_dims == want->n_dims && t->bytes == want->bytes);
        CHECK(!memcmp(t->dims, want->dims, sizeof(int64_t) * (size_t)want->n_dims));
        check_values(st, t, want);
    }
}

CLAIM(every_type_and_shape_comes_back_bit_for_bit) {
    SafeTensor t[5];
    SafeTensors st;
    write_example(t);
    CHECK(safetensors_open(&st, path, err) == 0);
    check_same(&st, t, 5);
    CHECK(!safetensors_get(&st, "matri") && !safetensors_get(&st, "") && !safetensors_get(&st, "__metadata__"));
    safetensors_close(&st);
    CHECK(!st.path && !st.tensors && st.n == 0);
}

// From an odd address, as in a file.
CLAIM(elements_of_every_type_come_as_fp32) {
    static const float expected[4][12] = {{1.5f, -0.0f, INFINITY, 1e-45f, -3.25f, 7},
                                          {1, -INFINITY, NAN, 0x1p-133f, -0.0f},
                                          {0.1f, -INFINITY, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10},
                                          {42}};
    SafeTensor t[5];
    float found[12];
    make_tensors(t);
    for (int i = 0; i < 4; i++)
        for (size_t n = t[i].bytes / dtype_bytes(t[i].dtype), first = 0; first <= n; first++) {
            SafeTensor moved = t[i];
            char* bytes = (char*)malloc(t[i].bytes + 1);
            moved.data = memcpy(bytes + 1, t[i].data, t[i].bytes);
            CHECK(safetensors_floats(NULL, &moved, first, n - first, found, err) == 0);
            for (size_t e = first; e < n; e++)
                CHECK(isnan(expected[i][e]) ? isnan(found[e - first])
                                            : !memcmp(&found[e - first], &expected[i][e], sizeof(float)));
            free(bytes);
        }
}

// IEEE 754's binary16, by its definition.
static double half_value(int h) {
    int e = h >> 10 & 31, m = h & 1023;
    double magnitude = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(m + 1024, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -magnitude : magnitude;
}

CLAIM(every_half_precision_number_comes_as_itself) {
    static uint16_t halves[1 << 16];
    static float found[1 << 16];
    int wrong = 0;
    for (int h = 0; h < 1 << 16; h++) halves[h] = (uint16_t)h;
    SafeTensor t = {"halves", DT_F16, 1, {1 << 16}, halves, sizeof halves, 0};
    SafeTensors st;
    CHECK(safetensors_write(path, NULL, &t, 1, NULL, NULL, err) == 0);
    CHECK(safetensors_open(&st, path, err) == 0);
    CHECK(safetensors_floats(&st, st.tensors, 0, 1 << 16, found, err) == 0);
    for (int h = 0; h < 1 << 16; h++) {
        double want = half_value(h);
        wrong += isnan(want) ? !isnan(found[h]) : found[h] != want || !signbit(found[h]) != !signbit(want);
    }
    CHECK(wrong == 0);
    safetensors_close(&st);
}

CLAIM(the_header_is_aligned_json_in_the_given_order) {
    SafeTensor t[5];
    size_t n;
    Json json;
    write_example(t);
    unsigned char* bytes = read_whole(path, &n);
    size_t n_header = bytes[0] | (size_t)bytes[1] << 8;
    CHECK((8 + n_header) % 64 == 0 && !memcmp(bytes + 2, "\0\0\0\0\0\0", 6) && bytes[8] == '{');
    CHECK(n == 8 + n_header + sizeof f32_values + sizeof bf16_values + sizeof f64_values + sizeof scalar);
    CHECK(json_parse(&json, (const char*)bytes + 8, n_header, err) == 0);
    CHECK(json_get(json_get(json.values, "__metadata__"), "format") != NULL);
    const JsonValue* offsets = json_get(json_get(json.values, "four"), "data_offsets");
    uint64_t begin = 0;
    CHECK(json_uint64(json_at(offsets, 0), &begin) == 0 && begin == sizeof f32_values + sizeof bf16_values);
    json_free(&json);
}

CLAIM(a_file_without_tensors_is_one) {
    SafeTensors st;
    CHECK(safetensors_write(path, NULL, NULL, 0, NULL, NULL, err) == 0);
    CHECK(safetensors_open(&st, path, err) == 0 && st.n == 0);
    safetensors_close(&st);
    CHECK(parse_text("{}", 0) == 0);
    CHECK(parse_text("{}", 1) == -1);
}

// ---- values from a function

typedef struct Calls {
    const SafeTensor* tensors;
    size_t next;  // the element expected next
    int tensor, calls;
} Calls;

static void fill_ramp(void* context, int i, size_t first, size_t n, void* out) {
    Calls* c = (Calls*)context;
    if (i != c->tensor) c->tensor = i, c->next = 0;
    CHECK(first == c->next && n > 0);
    for (size_t j = 0; j < n; j++) {
        if (c->tensors[i].dtype == DT_F32) ((float*)out)[j] = (float)(first + j);
        else ((bf16*)out)[j] = (bf16)(first + j);
    }
    c->next = first + n;
    c->calls++;
}

// A file of a tensor "big" of 300003 floats and one of 7 behind it.
static Calls write_ramps(void) {
    static SafeTensor t[] = {{"big", DT_F32, 2, {3, 100001}, NULL, 1200012, 0},
                             {"none", DT_F32, 1, {0}, NULL, 0, 0},
                             {"end", DT_BF16, 1, {7}, NULL, 14, 0},
                             {"mine", DT_F32, 0, {0}, &scalar, 4, 0}};
    Calls calls = {t, 0, -1, 0};
    CHECK(safetensors_write(path, NULL, t, COUNT(t), fill_ramp, &calls, err) == 0);
    return calls;
}

CLAIM(a_fill_function_gives_values_piece_by_piece_where_there_are_none) {
    static float x[300003];
    SafeTensors st;
    Calls calls = write_ramps();
    CHECK(calls.calls >= 3 && calls.tensor == 2 && calls.next == 7);  // the first, of more than 1 MiB, takes several
    CHECK(safetensors_open(&st, path, err) == 0);
    int wrong = 0;
    CHECK(safetensors_floats(&st, safetensors_get(&st, "big"), 0, 300003, x, err) == 0);
    for (size_t j = 0; j < 300003; j++) wrong += x[j] != (float)j;
    CHECK(safetensors_floats(&st, safetensors_get(&st, "end"), 0, 7, x, err) == 0);
    for (size_t j = 0; j < 7; j++) wrong += x[j] != bf16_to_float((bf16)j);
    CHECK(safetensors_floats(&st, safetensors_get(&st, "mine"), 0, 1, x, err) == 0 && x[0] == scalar);
    CHECK(wrong == 0);
    safetensors_close(&st);
}

// In memory it is what the file is, byte by byte; where that has no room, it is the file.
CLAIM(an_image_is_the_file) {
    SafeTensors st;
    static char memory[1 << 21];
    Calls calls = write_ramps();
    size_t n;
    uint64_t all, hash;
    unsigned char* bytes = read_whole(path, &n);
    CHECK(disk_hash(path, &all, &hash, err) == 0 && disk_hash_bytes(bytes, n) == hash);
    for (size_t room = n - 1; room <= n + 1; room++) {
        SafeImage image = {memory, room, 77};
        Calls again = {calls.tensors, 0, -1, 0};
        CHECK(remove(path) == 0 || room > n - 1);
        CHECK(safetensors_write(path, &image, calls.tensors, 4, fill_ramp, &again, err) == 0);
        CHECK(image.n == (room < n ? 0 : n) && (access(path, F_OK) == 0) == (room < n));
        if (room < n) continue;
        CHECK(memcmp(memory, bytes, n) == 0 && again.calls == 2 && safetensors_check_finite(path, &image, err) == 0);
        float nan = NAN;
        CHECK(safetensors_parse(&st, memory, n, err) == 0);
        memcpy(memory + st.tensors[0].begin + 4 * 300002, &nan, sizeof nan);
        safetensors_close(&st);
        CHECK(safetensors_check_finite(path, &image, err) == -1 && strstr(err, "big") && strstr(err, "300002"));
    }
}

// ---- refusals

CLAIM(every_truncated_prefix_is_refused) {
    SafeTensor t[5];
    size_t n;
    write_example(t);
    unsigned char* bytes = read_whole(path, &n);
    CHECK(n > 300);
    check_prefixes(parse, bytes, n, n);
    for (size_t k = 0; k < n; k += 61) {  // the same as a file
        SafeTensors st;
        write_file(path, bytes, k);
        CHECK(safetensors_open(&st, path, err) == -1 && strstr(err, path));
    }
}

// One tensor "aa" with these members; a member that is "" is left out.
static int parse_one(const char* dtype, const char* shape, const char* offsets, size_t n_data) {
    char header[512];
    int n = snprintf(header, sizeof header, "{'aa':{'note':0");
    if (dtype[0]) n += snprintf(header + n, sizeof header - (size_t)n, ",'dtype':'%s'", dtype);
    if (shape[0]) n += snprintf(header + n, sizeof header - (size_t)n, ",'shape':%s", shape);
    if (offsets[0]) n += snprintf(header + n, sizeof header - (size_t)n, ",'data_offsets':%s", offsets);
    snprintf(header + n, sizeof header - (size_t)n, "}}");
    return parse_text(header, n_data);
}

// clang-format off
CLAIM(a_tensor_that_does_not_fit_is_refused_by_name) {
    static const struct {
        const char *dtype, *shape, *offsets;
        size_t n_data;
        const char* says;
    } cases[] = {
        {"F32",  "[2]",  "[0,8]",       7, "tensor aa: expected its bytes inside the 7 bytes"},
        {"F32",  "[1]",  "[4,8]",       8, "tensor aa: expected to begin at byte 0"},
        {"F32",  "[1]",  "[0,4]",       5, "end with aa at byte 4"},
        {"F32",  "[1]",  "[8,4]",       8, "tensor aa: expected data_offsets"},
        {"F32",  "[1]",  "[-4,0]",      8, "tensor aa: expected data_offsets"},
        {"F32",  "[1]",  "[0,4.0]",     4, "tensor aa: expected data_offsets"},
        {"F32",  "[1]",  "[0,4,8]",     8, "tensor aa: expected data_offsets"},
        {"F32",  "[1]",  "{'0':0,'1':4}", 4, "tensor aa: expected data_offsets"},
        {"F32",  "[1]",  "",            4, "tensor aa: expected data_offsets"},
        {"F32",  "[1]",  "[18446744073709551612,18446744073709551615]", 4, "tensor aa: expected its bytes inside"},
        {"F32",  "[3]",  "[0,8]",       8, "tensor aa: expected 12 bytes for its shape and dtype F32, found 8"},
        {"BF16", "[2]",  "[0,8]",       8, "tensor aa: expected 4 bytes"},
        {"F64",  "[]",   "[0,4]",       4, "tensor aa: expected 8 bytes"},
        {"F32",  "[4611686018427387904]",       "[0,0]", 0, "tensor aa: expected a shape that fits"},
        {"F32",  "[4294967296,4294967296]",     "[0,0]", 0, "tensor aa: expected a shape that fits"},
        {"F32",  "[65536,65536,65536,65536]",   "[0,0]", 0, "tensor aa: expected a shape that fits"},
        {"F32",  "[65536,65536,65536,65536,0]", "[0,0]", 0, "tensor aa: expected a shape of 0 to 4 dimensions"},
        {"F32",  "[9223372036854775808]",       "[0,0]", 0, "tensor aa: expected a whole number >= 0 as dimension 0"},
        {"F32",  "[1,-1]",      "[0,4]",    4, "tensor aa: expected a whole number >= 0 as dimension 1"},
        {"F32",  "[-2,-2]",     "[0,16]",  16, "tensor aa: expected a whole number >= 0 as dimension 0"},
        {"F32",  "['1']",       "[0,4]",    4, "tensor aa: expected a whole number >= 0 as dimension 0"},
        {"F32",  "[1,1,1,1,1]", "[0,4]",    4, "tensor aa: expected a shape of 0 to 4 dimensions, found more"},
        {"F32",  "",            "[0,4]",    4, "tensor aa: expected a shape"},
        {"F32",  "4",           "[0,4]",    4, "tensor aa: expected a shape"},
        {"F16",  "[2]",         "[0,8]",    8, "tensor aa: expected 4 bytes for its shape and dtype F16"},
        {"I16",  "[2]",         "[0,4]",    4, "tensor aa: expected dtype F32, BF16, F16 or F64, found I16"},
        {"F3",   "[1]",         "[0,4]",    4, "tensor aa: expected dtype"},
        {"",     "[1]",         "[0,4]",    4, "tensor aa: expected dtype"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        CHECK(parse_one(cases[i].dtype, cases[i].shape, cases[i].offsets, cases[i].n_data) == -1);
        CHECK_STRING(strstr(err, cases[i].says) ? cases[i].says : err, cases[i].says);
    }
    CHECK(parse_one("F32", "[1]", "[0,4]", 4) == 0 && parse_one("F64", "[0,9]", "[0,0]", 0) == 0);
}

CLAIM(a_header_that_contradicts_itself_is_refused) {
    static const struct {
        const char *header, *says;
        size_t n_data;
    } cases[] = {
        {"{'aa':{'dtype':'F32','shape':[2],'data_offsets':[0,8]},"
         " 'bb':{'dtype':'F32','shape':[2],'data_offsets':[4,12]}}",
         "tensor bb: expected to begin at byte 8, where aa ends, found byte 4 (they overlap)", 12},
        {"{'bb':{'dtype':'F32','shape':[2],'data_offsets':[0,8]},"
         " 'aa':{'dtype':'F32','shape':[2],'data_offsets':[0,8]}}",
         "tensor bb: expected to begin at byte 8, where aa ends, found byte 0 (they overlap)", 8},
        {"{'aa':{'dtype':'F32','shape':[1],'data_offsets':[0,4]},"
         " 'bb':{'dtype':'F32','shape':[1],'data_offsets':[8,12]}}",
         "tensor bb: expected to begin at byte 4, where aa ends, found byte 8 (a hole)", 12},
        {"{'aa':{'dtype':'F32','shape':[1],'data_offsets':[0,4]},"
         " 'bb':{'dtype':'F32','shape':[0],'data_offsets':[4,4]},"
         " 'a\\u0061':{'dtype':'F32','shape':[1],'data_offsets':[4,8]}}",
         "tensor aa: expected each name once, found it twice", 8},
        {"{'aa':[1]}", "aa: expected an object", 0},
        {"{'__metadata__':7}", "__metadata__: expected an object", 0},
        {"{'a\\u0000a':{'dtype':'F32','shape':[1],'data_offsets':[0,4]}}", "tensor a\\u0000a: expected a name", 4},
        {"{'a\\na':{'dtype':'F32','shape':[1],'data_offsets':[0,4]}}", "tensor a\\na: expected a name", 4},
        {"{'a\\xa':{'dtype':'F32','shape':[1],'data_offsets':[0,4]}}", "tensor a\\xa: expected a name", 4},
        {"[]", "begins with {", 0},
        {" {}", "begins with {", 0},
        {"", "begins with {", 0},
        {"{} x", "header: JSON: expected the end of the text", 0},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        CHECK(parse_text(cases[i].header, cases[i].n_data) == -1);
        CHECK_STRING(strstr(err, cases[i].says) ? cases[i].says : err, cases[i].says);
    }
}
// clang-format on

CLAIM(a_good_header_passes_with_unknown_members_and_any_order) {
    CHECK(parse_text("{'bb':{'data_offsets':[4,6],'shape':[1],'dtype':'BF16','note':[{}]},"
                     " 'empty':{'dtype':'F64','shape':[3,0],'data_offsets':[4,4]}, '__metadata__':{},"
                     " 'aa':{'dtype':'F32','shape':[1,1,1,1],'data_offsets':[0,4]}}   ",
                     6) == 0);
}

CLAIM(a_header_length_that_lies_is_refused) {
    static const uint64_t lies[] = {UINT64_MAX, UINT64_MAX - 7, 1ull << 63, 1ull << 32, 3, 1, 0};
    unsigned char bytes[10] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    CHECK(parse(bytes, sizeof bytes) == 0);
    for (int k = 0; k < COUNT(lies); k++) {
        for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(lies[k] >> 8 * i);
        CHECK(parse(bytes, sizeof bytes) == -1 && strstr(err, lies[k] > 2 ? "inside the file of 10 bytes" : "header"));
    }
}

CLAIM(names_up_to_127_bytes_fit_and_longer_ones_do_not) {
    for (int escaped = 0; escaped < 2; escaped++) {
        for (int n = 126; n <= 129; n++) {
            char header[1200] = "{'";
            for (int i = 0; i < n; i++) strcat(header, escaped ? "\\u0041" : "A");
            strcat(header, "':{'dtype':'F32','shape':[1],'data_offsets':[0,4]}}");
            CHECK(parse_text(header, 4) == (n <= 127 ? 0 : -1));
        }
    }
}

CLAIM(a_file_that_is_cut_off_while_it_is_read_is_an_error) {
    static float x[300003];
    SafeTensors st;
    write_ramps();
    CHECK(safetensors_open(&st, path, err) == 0);
    CHECK(safetensors_floats(&st, &st.tensors[0], 0, 300003, x, err) == 0 && x[300002] == 300002);
    CHECK(truncate(path, 4096) == 0);
    CHECK(safetensors_floats(&st, &st.tensors[0], 0, 300003, x, err) == -1 && strstr(err, path));
    CHECK(strstr(err, "tensor big: cannot read") && strstr(err, "another size than when it was opened"));
    CHECK(unlink(path) == 0);
    CHECK(safetensors_floats(&st, &st.tensors[1], 3, 2, x, err) == -1 && strstr(err, path));
    safetensors_close(&st);
}

CLAIM(the_first_value_that_is_not_finite_is_named) {
    static float many[300003];
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const size_t places[] = {0, 262143, 262144, 300002};  // pieces are 262144 long
    bf16 halves[3] = {0x3f80, 0x7f7f, 0x7f80};                   // 1, the largest, infinity
    double wide[2] = {1e38, 1e39};                               // the second is infinite as fp32
    SafeTensor t[] = {{"many", DT_F32, 1, {300003}, many, sizeof many, 0},
                      {"halves", DT_BF16, 1, {3}, halves, sizeof halves, 0},
                      {"wide", DT_F64, 1, {2}, wide, sizeof wide, 0}};
    for (int k = 0; k <= COUNT(places) + 2; k++) {
        char says[128] = "tensor halves: expected finite values, found inf as element 2";
        int in_many = k < COUNT(places);
        if (in_many) {
            many[places[k]] = bad[k % COUNT(bad)];
            snprintf(says, sizeof says, "tensor many: expected finite values, found %g as element %zu",
                     (double)many[places[k]], places[k]);
        }
        if (k == COUNT(places) + 1)
            halves[2] = 0, strcpy(says, "tensor wide: expected finite values, found inf as element 1");
        if (k == COUNT(places) + 2) wide[1] = -1e38;
        CHECK(safetensors_write(path, NULL, t, 3, NULL, NULL, err) == 0);
        int finite = k == COUNT(places) + 2, found = safetensors_check_finite(path, NULL, err);
        CHECK(finite ? found == 0 : found == -1 && strstr(err, says) && strstr(err, path));
        if (in_many) many[places[k]] = 1;
    }
    CHECK(truncate(path, 900000) == 0 && safetensors_check_finite(path, NULL, err) == -1 && strstr(err, path));
}

CLAIM(what_is_no_file_cannot_be_opened) {
    SafeTensors st;
    const char* other = path_of("missing");
    CHECK(safetensors_open(&st, other, err) == -1 && strstr(err, other) && !st.tensors);
    CHECK(safetensors_open(&st, work, err) == -1 && strstr(err, work));
    write_file(path, "", 0);
    CHECK(safetensors_open(&st, path, err) == -1 && strstr(err, path));
    other = path_of("pipe");
    CHECK(mkfifo(other, 0600) == 0);
    CHECK(safetensors_open(&st, other, err) == -1 && strstr(err, other));  // and does not wait for a writer
    CHECK(safetensors_write(other, NULL, NULL, 0, NULL, NULL, err) == -1 && access(other, F_OK) == 0);
}

int main(void) {
    temporary_begin();
    snprintf(path, sizeof path, "%s/model.safetensors", work);
    run_claims();
    return temporary_end();
}
