// test_checkpoint_ranks.c - claims of data/model_files.h: what any number of ranks wrote, any other number reads,
// bit for bit; files that do not belong together are refused with words.
#include "data/model_files.h"
#include "test/checkpoint_dirs.h"
#include "test/shapes.h"

// With three ranks the matrices of a layer happen to lie whole on one of them; five cut them.
enum { N_KINDS = 3, FILES = 5, POISON = 0x7fc12345 };

// One rank's arrays of owned elements, and what has been put into them.
typedef struct Rank {
    Shape shape;
    int rank;
    uint32_t* owned[N_KINDS];  // m, v, master, as bits
    int puts;
    float* staging;
    ModelState state;
} Rank;

static size_t owned_elems(const Shape* shape) { return shape_param_elems(shape) / (size_t)shape->shards; }

// Any bits of a finite number, subnormal ones too: a copy must not care. Element e of the i-th tensor.
static uint32_t truth(int kind, int i, size_t e) {
    return (uint32_t)hash64((uint64_t)kind << 56 ^ (uint64_t)i << 40 ^ e) & ~(1u << 30);
}

static int index_of(StateKind kind) { return kind == STATE_M ? 0 : kind == STATE_V ? 1 : 2; }

static void fetch_owned(void* context, StateKind kind, const Segment* segment, float* value) {
    const Rank* r = (const Rank*)context;
    memcpy(value, r->owned[index_of(kind)] + segment->at, segment->n * sizeof *value);
}

static void put_owned(void* context, StateKind kind, const Segment* segment, const float* value) {
    Rank* r = (Rank*)context;
    memcpy(r->owned[index_of(kind)] + segment->at, value, segment->n * sizeof *value);
    r->puts++;
}

static void open_rank(Rank* r, Shape shape, int rank, int ranks) {
    memset(r, 0, sizeof *r);
    r->shape = shape;
    r->shape.shards = ranks;
    r->rank = rank;
    size_t n = owned_elems(&r->shape), largest = 0;
    for (int i = 0; i < shape_tensors(&shape); i++) largest = MAX(largest, shape_tensor(&shape, i).elems);
    r->staging = (float*)malloc(largest * sizeof(float));  // exactly: a sanitizer sees every element too far
    for (int kind = 0; kind < N_KINDS; kind++) {
        r->owned[kind] = (uint32_t*)malloc(n * sizeof(uint32_t));
        for (size_t i = 0; i < n; i++) r->owned[kind][i] = POISON;
    }
    ModelState state = {.shape = &r->shape,
                        .rank = rank,
                        .staging = r->staging,
                        .fetch_owned = fetch_owned,
                        .put_owned = put_owned,
                        .context = r};
    r->state = state;
}

static void close_rank(Rank* r) {
    for (int kind = 0; kind < N_KINDS; kind++) free(r->owned[kind]);
    free(r->staging);
}

// Fills the owned elements of the first n_kinds kinds with the truth, or counts those that differ from it. What belongs
// to no tensor must be POISON still.
static size_t visit(Rank* r, int n_kinds, int fill) {
    size_t n = owned_elems(&r->shape), different = 0;
    char* seen = (char*)calloc(n, 1);
    for (int i = 0; i < shape_tensors(&r->shape); i++) {
        Segment s = shape_segment(&r->shape, i, r->rank);
        for (size_t e = 0; e < s.n; e++) {
            seen[s.at + e] = 1;
            for (int kind = 0; kind < n_kinds; kind++) {
                uint32_t* x = &r->owned[kind][s.at + e];
                if (fill) *x = truth(kind, i, s.first + e);
                else different += *x != truth(kind, i, s.first + e);
            }
        }
    }
    for (int kind = 0; kind < N_KINDS; kind++)
        for (size_t e = 0; e < n; e++) different += (!seen[e] || kind >= n_kinds) && r->owned[kind][e] != POISON;
    free(seen);
    return different;
}

static int wrote;  // how many ranks the reader is told of

static void write_all(Shape shape, int ranks, int with_master) {
    wrote = ranks;
    for (int r = 0; r < ranks; r++) {
        Rank rank;
        open_rank(&rank, shape, r, ranks);
        visit(&rank, N_KINDS, 1);
        CHECK(optimizer_write(&rank.state, with_master, run_dir, err) == 0);
        close_rank(&rank);
    }
}

// Reads as rank r of `ranks`; returns the reader's answer. Refused: nothing was put, and there are words.
static int read_one(Shape shape, int r, int ranks, int with_master) {
    Rank rank;
    open_rank(&rank, shape, r, ranks);
    err[0] = 0;
    int result = optimizer_read(&rank.state, with_master, wrote, run_dir, err);
    CHECK(visit(&rank, result ? 0 : with_master ? 3 : 2, 0) == 0);
    CHECK(!result || (rank.puts == 0 && err[0]));
    close_rank(&rank);
    return result;
}

static void fresh_dir(const char* name) {
    fresh(name);
    CHECK(mkdir(run_dir, 0777) == 0);
}

static const char* file_of(int rank, int ranks) {
    char name[OPTIMIZER_NAME];
    optimizer_name(name, rank, ranks);
    return in(run_dir, name);
}

// Nothing in these is a multiple of anything; with the second most ranks own next to nothing.
static Shape odd(void) { return shape_make(2, 21, 3, 71, 11); }
static Shape small(void) { return shape_make(1, 5, 1, 3, 1); }

// ---- what comes back

CLAIM(any_number_of_ranks_reads_what_any_other_wrote_bit_for_bit) {
    static const int counts[] = {1, 2, 3, 5, 8};
    Shape shapes[] = {odd(), small(), shape_like(ARCH_QWEN3, 1, 6, 1, 7, 3)};
    fresh_dir("all");
    for (int s = 0; s < COUNT(shapes); s++)
        for (int w = 0; w < COUNT(counts); w++)
            for (int with_master = 0; with_master < 2; with_master++) {
                write_all(shapes[s], counts[w], with_master);
                for (int n = 0; n < COUNT(counts); n++)
                    for (int r = 0; r < counts[n]; r++) {
                        CHECK(read_one(shapes[s], r, counts[n], with_master) == 0);
                        if (err[0]) printf("    %d ranks wrote, rank %d of %d: %s\n", counts[w], r, counts[n], err);
                    }
                for (int r = 0; r < counts[w]; r++) CHECK(unlink(file_of(r, counts[w])) == 0);
            }
}

// Nor where a copy in memory was meant to take them and has no room.
CLAIM(values_that_are_not_finite_are_not_written) {
    SafeImage full = {0};
    Shape shape = shape_make(1, 8, 2, 16, 4);
    const float wrong[] = {NAN, INFINITY, -INFINITY};
    fresh_dir("not_finite");
    for (int i = 0; i < COUNT(wrong); i++) {
        Rank rank;
        open_rank(&rank, shape, 0, 1);
        visit(&rank, N_KINDS, 1);
        memcpy(&rank.owned[i][shape_segment(&rank.shape, 3, 0).at], &wrong[i], sizeof wrong[i]);
        for (int in_memory = 0; in_memory < 2; in_memory++) {
            rank.state.image = in_memory ? &full : NULL;
            CHECK(optimizer_write(&rank.state, 1, run_dir, err) == -1);
            CHECK(strstr(err, "optimizer-00000-of-00001") && strstr(err, "finite") && strstr(err, "tensor"));
        }
        close_rank(&rank);
    }
}

CLAIM(masters_are_asked_for_and_may_be_left_alone) {
    fresh_dir("masters");
    write_all(odd(), 2, 0);
    CHECK(read_one(odd(), 1, 3, 0) == 0);
    CHECK(read_one(odd(), 1, 3, 1) < 0 && strstr(err, "master.wte") && strstr(err, "found none"));
    write_all(odd(), 2, 1);
    CHECK(read_one(odd(), 1, 3, 0) == 0 && read_one(odd(), 1, 3, 1) == 0);
}

// ---- files that are not there, or not whole

CLAIM(a_missing_file_is_named) {
    fresh_dir("missing");
    wrote = 1;
    CHECK(read_one(odd(), 0, 1, 0) < 0 && strstr(err, "optimizer-00000-of-00001"));
    write_all(odd(), 3, 0);
    for (int r = 0; r < 3; r++) {
        CHECK(rename(file_of(r, 3), in(run_dir, "away")) == 0);
        for (int reader = 0; reader < 2; reader++)
            CHECK(read_one(odd(), reader, 2, 0) < 0 && strstr(err, strrchr(file_of(r, 3), '/')));
        CHECK(rename(in(run_dir, "away"), file_of(r, 3)) == 0);
    }
    CHECK(read_one(odd(), 0, 1, 0) == 0);
    CHECK(mkdir(in(run_dir, "empty"), 0777) == 0);
    snprintf(run_dir, sizeof run_dir, "%s/missing/nowhere", work);
    CHECK(read_one(odd(), 0, 1, 0) < 0 && strstr(err, "nowhere"));
}

CLAIM(files_of_another_number_of_ranks_are_refused) {
    fresh_dir("count");
    write_all(odd(), 3, 0);
    wrote = 4;
    CHECK(read_one(odd(), 0, 2, 0) < 0 && strstr(err, "optimizer-00000-of-00004"));
    wrote = 0;
    CHECK(read_one(odd(), 0, 2, 0) < 0 && strstr(err, "expected files of one rank or more"));
    wrote = 2;  // two of three that call themselves all
    for (int r = 0; r < 2; r++) CHECK(rename(file_of(r, 3), file_of(r, 2)) == 0);
    CHECK(read_one(odd(), 0, 2, 0) < 0 && strstr(err, "-of-00002") && strstr(err, "m.wte"));
}

CLAIM(files_of_another_shape_are_refused) {
    fresh_dir("shape");
    write_all(shape_make(2, 24, 3, 71, 11), 2, 0);
    CHECK(read_one(odd(), 0, 2, 0) < 0 && strstr(err, "another model"));
    write_all(shape_make(2, 18, 3, 71, 11), 2, 0);
    CHECK(read_one(odd(), 0, 2, 0) < 0 && strstr(err, "tensor m."));
    write_all(shape_make(1, 21, 3, 71, 11), 2, 0);
    CHECK(read_one(odd(), 0, 2, 0) < 0 && strstr(err, "m.h.1.ln1w"));
}

// A letter more, less or another in a name; an element more or less, none, another form.
static void change(SafeTensor* t, uint64_t r) {
    static const char letters[] = "@0123456789.mvhqkwtelna+- \x7f\xff";
    size_t length = strlen(t->name), at = (r >> 8) % (length + 1);
    switch (r % 6) {
        case 0: memmove(t->name + at, t->name + at + 1, length - at + (at == length)); break;
        case 1: memmove(t->name + at + 1, t->name + at, length - at + 1); break;
        case 2: t->dims[0]++, t->bytes += 4; break;
        case 3: t->dims[0]--, t->bytes -= 4; break;
        case 4: t->dims[0] = 0, t->bytes = 0; break;
        default: t->n_dims = 3 - t->n_dims, t->dims[1] = 1;
    }
    if (r % 6 < 2) t->name[at] = letters[(r >> 16) % (sizeof letters - 1)];
    if (r % 6 == 0 && at == length) t->name[at + 1] = 0;
}

CLAIM(every_change_of_a_name_or_a_form_is_refused) {
    SafeTensors files[FILES];
    fresh_dir("changed");
    write_all(odd(), FILES, 1);
    for (int f = 0; f < FILES; f++) CHECK(safetensors_open(&files[f], file_of(f, FILES), err) == 0);
    for (uint64_t seed = 0; seed < 6000; seed++) {
        uint64_t r = hash64(seed);
        SafeTensor* t = &files[seed % FILES].tensors[(r >> 32) % (uint64_t)files[seed % FILES].n];
        SafeTensor before = *t;
        Rank rank;
        if (seed >= FILES) change(t, r);
        int is_same = !strcmp(t->name, before.name) && t->dims[0] == before.dims[0] && t->n_dims == before.n_dims;
        open_rank(&rank, odd(), (int)(r >> 24 & 1), 2);
        int result = optimizer_take(&rank.state, 1, files, FILES, "dir", err);
        CHECK(result == (is_same ? 0 : -1) && visit(&rank, result ? 0 : N_KINDS, 0) == 0);
        close_rank(&rank);
        *t = before;
    }
    for (int f = 0; f < FILES; f++) safetensors_close(&files[f]);
}

int main(void) { return temporary_main(); }
