// test_checkpoint_ranks.c - claims of data/optimizer_files.h: what any number of ranks wrote, any other number reads,
// bit for bit; files that do not belong together are refused with words.
#include "data/hf_files.h"
#include "data/optimizer_files.h"
#include "test/checkpoint_dirs.h"

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

static void write_all(Shape shape, int ranks, int with_master) {
    for (int r = 0; r < ranks; r++) {
        Rank rank;
        open_rank(&rank, shape, r, ranks);
        visit(&rank, N_KINDS, 1);
        CHECK(optimizer_write(&rank.state, with_master, run_dir, err, sizeof err) == 0);
        close_rank(&rank);
    }
}

// Reads as rank r of `ranks`; returns the reader's answer. Refused: nothing was put, and there are words.
static int read_one(Shape shape, int r, int ranks, int with_master) {
    Rank rank;
    open_rank(&rank, shape, r, ranks);
    err[0] = 0;
    int result = optimizer_read(&rank.state, with_master, run_dir, err, sizeof err);
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

static void any_number_of_ranks_reads_what_any_other_wrote_bit_for_bit(void) {
    static const int counts[] = {1, 2, 3, 5, 8};
    Shape shapes[] = {odd(), small()};
    fresh_dir("all");
    for (int s = 0; s < 2; s++)
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

static void each_rank_writes_what_it_owns_under_names_that_say_where_it_lies(void) {
    Shape shape = odd();
    fresh_dir("names");
    write_all(shape, FILES, 0);
    shape.shards = FILES;
    int parts = 0, wholes = 0;
    for (int r = 0; r < FILES; r++) {
        SafeTensors file;
        int expected = 0;
        CHECK(safetensors_open(&file, file_of(r, FILES), err, sizeof err) == 0);
        for (int i = 0; i < shape_tensors(&shape); i++) {
            Segment s = shape_segment(&shape, i, r);
            if (s.n == 0) continue;
            expected += 2;
            char name[128], plain[100];
            const ParamRow* row = &param_table[s.tensor.id];
            if (param_is_per_layer(s.tensor.id)) snprintf(plain, sizeof plain, "v.h.%d.%s", s.tensor.layer, row->name);
            else snprintf(plain, sizeof plain, "v.%s", row->name);
            int whole = s.n == s.tensor.elems, is_matrix = s.tensor.rows > 1;
            snprintf(name, sizeof name, whole ? "%s" : "%s@%zu", plain, s.first);
            const SafeTensor* t = safetensors_get(&file, name);
            CHECK(t && t->dtype == DT_F32 && t->bytes == 4 * s.n && t->n_dims == (whole && is_matrix ? 2 : 1));
            CHECK(t && t->dims[0] == (int64_t)(!whole ? s.n : (size_t)(is_matrix ? s.tensor.rows : s.tensor.cols)));
            *(whole ? &wholes : &parts) += 1;
        }
        CHECK(file.n == expected);
        safetensors_close(&file);
    }
    CHECK(parts > 10 && wholes > 10);
}

// Files of one rank have looked like this from the beginning: whole tensors, (rows, cols).
static void a_file_of_whole_tensors_is_read_by_any_number_of_ranks(void) {
    enum { MOST = 100 };
    SafeTensor tensors[MOST];
    static const char* const prefixes[] = {"m", "v", "master"};
    Shape shape = odd();
    int n = 0, per_kind = shape_tensors(&shape);
    fresh_dir("old");
    for (int k = 0; k < N_KINDS * per_kind; k++) {
        ParamTensor t = shape_tensor(&shape, k % per_kind);
        const ParamRow* row = &param_table[t.id];
        SafeTensor whole = {.dtype = DT_F32, .n_dims = t.rows > 1 ? 2 : 1, .bytes = t.elems * 4};
        whole.dims[0] = t.rows > 1 ? t.rows : t.cols;
        whole.dims[1] = t.rows > 1 ? t.cols : 0;
        char layer[20] = "";
        if (param_is_per_layer(t.id)) snprintf(layer, sizeof layer, "h.%d.", t.layer);
        snprintf(whole.name, sizeof whole.name, "%s.%s%s", prefixes[k / per_kind], layer, row->name);
        uint32_t* value = (uint32_t*)malloc(whole.bytes);
        for (size_t e = 0; e < t.elems; e++) value[e] = truth(k / per_kind, k % per_kind, e);
        whole.data = value;
        tensors[n++] = whole;
    }
    CHECK(n <= MOST);
    CHECK(safetensors_write(file_of(0, 1), tensors, n, NULL, NULL, err, sizeof err) == 0);
    for (int ranks = 1; ranks <= 5; ranks++)
        for (int r = 0; r < ranks; r++) CHECK(read_one(shape, r, ranks, 1) == 0);
    // And the same bytes are written today.
    CHECK(rename(file_of(0, 1), in(run_dir, "before")) == 0);
    write_all(shape, 1, 1);
    size_t sizes[2] = {0, 0};
    char* texts[] = {checkpoint_read_file(run_dir, "before", &sizes[0], err, sizeof err),
                     checkpoint_read_file(run_dir, "optimizer-00000-of-00001.safetensors", &sizes[1], err, sizeof err)};
    CHECK(texts[0] && texts[1] && sizes[0] == sizes[1] && !memcmp(texts[0], texts[1], sizes[0]));
    for (int i = 0; i < 2; i++) free(texts[i]);
    for (int i = 0; i < n; i++) free((void*)tensors[i].data);
}

static void values_that_are_not_finite_are_not_written(void) {
    Shape shape = shape_make(1, 8, 2, 16, 4);
    const float wrong[] = {NAN, INFINITY, -INFINITY};
    fresh_dir("not_finite");
    for (int i = 0; i < COUNT(wrong); i++) {
        Rank rank;
        open_rank(&rank, shape, 0, 1);
        visit(&rank, N_KINDS, 1);
        memcpy(&rank.owned[i][shape_segment(&rank.shape, 3, 0).at], &wrong[i], sizeof wrong[i]);
        CHECK(optimizer_write(&rank.state, 1, run_dir, err, sizeof err) == -1);
        CHECK(strstr(err, "optimizer-00000-of-00001") && strstr(err, "finite") && strstr(err, "tensor"));
        close_rank(&rank);
    }
}

static void masters_are_asked_for_and_may_be_left_alone(void) {
    fresh_dir("masters");
    write_all(odd(), 2, 0);
    CHECK(read_one(odd(), 1, 3, 0) == 0);
    CHECK(read_one(odd(), 1, 3, 1) < 0 && strstr(err, "master.wte") && strstr(err, "found none"));
    write_all(odd(), 2, 1);
    CHECK(read_one(odd(), 1, 3, 0) == 0 && read_one(odd(), 1, 3, 1) == 0);
}

// ---- files that are not there, or not whole

static void a_missing_file_is_named(void) {
    fresh_dir("missing");
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

static void a_file_that_was_cut_off_is_named(void) {
    size_t n = 0;
    fresh_dir("cut");
    write_all(small(), 2, 1);
    char* bytes = checkpoint_read_file(run_dir, "optimizer-00001-of-00002.safetensors", &n, err, sizeof err);
    CHECK(bytes && n > 1000);
    for (size_t kept = 0; kept < n; kept += kept < 200 ? 1 : 37) {
        CHECK(truncate(file_of(1, 2), 0) == 0);
        write_file(file_of(1, 2), bytes, kept);
        CHECK(read_one(small(), 0, 1, 1) < 0 && strstr(err, "optimizer-00001-of-00002"));
    }
    write_file(file_of(1, 2), bytes, n);
    CHECK(read_one(small(), 0, 1, 1) == 0);
    free(bytes);
}

static void files_of_another_number_of_ranks_are_refused(void) {
    fresh_dir("count");
    write_all(odd(), 3, 0);
    write_file(in(run_dir, "optimizer-00003-of-00003.safetensors"), "x", 1);  // no such rank
    write_file(in(run_dir, "optimizer-0-of-2.safetensors"), "x", 1);          // not as they are written
    write_file(in(run_dir, "optimizer-00000-of-00002.safetensors.tmp"), "x", 1);
    CHECK(read_one(odd(), 0, 2, 0) == 0);
    CHECK(link(file_of(0, 3), file_of(0, 2)) == 0);
    CHECK(read_one(odd(), 0, 2, 0) < 0 && strstr(err, "some of 2 and some of 3"));
    CHECK(unlink(file_of(0, 2)) == 0);
    for (int r = 0; r < 3; r++) CHECK(rename(file_of(r, 3), file_of(r, 4)) == 0);
    CHECK(unlink(in(run_dir, "optimizer-00003-of-00003.safetensors")) == 0);
    CHECK(read_one(odd(), 0, 2, 0) < 0 && strstr(err, "optimizer-00003-of-00004"));
    // Two of three that call themselves all: everything of the third is missing.
    CHECK(unlink(file_of(2, 4)) == 0);
    for (int r = 0; r < 2; r++) CHECK(rename(file_of(r, 4), file_of(r, 2)) == 0);
    CHECK(read_one(odd(), 0, 2, 0) < 0 && strstr(err, "tensor m.wte: expected elements") && strstr(err, "in no file"));
}

static void a_file_that_is_there_twice_is_refused(void) {
    fresh_dir("twice");
    write_all(odd(), 3, 0);
    CHECK(unlink(file_of(1, 3)) == 0 && link(file_of(0, 3), file_of(1, 3)) == 0);
    CHECK(read_one(odd(), 0, 2, 0) < 0 && strstr(err, "00001-of-00003") && strstr(err, "a second time"));
}

static void files_of_another_shape_are_refused(void) {
    fresh_dir("shape");
    write_all(shape_make(2, 24, 3, 71, 11), 2, 0);
    CHECK(read_one(odd(), 0, 2, 0) < 0 && strstr(err, "another model"));
    write_all(shape_make(2, 18, 3, 71, 11), 2, 0);
    CHECK(read_one(odd(), 0, 2, 0) < 0 && strstr(err, "in no file"));
    write_all(shape_make(1, 21, 3, 71, 11), 2, 0);
    CHECK(read_one(odd(), 0, 2, 0) < 0 && strstr(err, "m.h.1.ln1w"));
}

// ---- parts that do not fit together

// Files, and copies of their lists of tensors that a claim may damage.
static SafeTensors files[FILES], damaged[FILES];

static void open_files(Shape shape) {
    write_all(shape, FILES, 1);
    for (int f = 0; f < FILES; f++) {
        CHECK(safetensors_open(&files[f], file_of(f, FILES), err, sizeof err) == 0);
        damaged[f] = files[f];
        damaged[f].tensors = (SafeTensor*)malloc(sizeof(SafeTensor) * (size_t)files[f].n);
        memcpy(damaged[f].tensors, files[f].tensors, sizeof(SafeTensor) * (size_t)files[f].n);
    }
}

static void close_files(void) {
    for (int f = 0; f < FILES; f++) free(damaged[f].tensors), safetensors_close(&files[f]);
}

// All tensors are wanted: is the damage refused, whole as they were the files taken?
static int take(Shape shape, int r, int ranks) {
    Rank rank;
    open_rank(&rank, shape, r, ranks);
    err[0] = 0;
    int result = optimizer_take(&rank.state, 1, damaged, FILES, "dir", err, sizeof err);
    CHECK(visit(&rank, result ? 0 : N_KINDS, 0) == 0 && (!result || err[0]));
    close_rank(&rank);
    return result;
}

static void every_change_of_a_name_is_refused(void) {
    static const char letters[] = "@0123456789.mvhqkwtelna+- \x7f\xff";
    fresh_dir("renamed");
    open_files(odd());
    CHECK(take(odd(), 1, 2) == 0);
    for (int f = 0; f < FILES; f++)
        for (int i = 0; i < files[f].n; i++) {
            const char* name = files[f].tensors[i].name;
            char* changed = damaged[f].tensors[i].name;
            size_t length = strlen(name);
            for (size_t at = 0; at <= length; at++) {
                uint64_t r = hash64((uint64_t)(f * 1000 + i) << 20 | at);
                char letter = letters[r % (sizeof letters - 1)];
                switch (r >> 32 & 3) {
                    case 0:  // taken out
                        memmove(changed + at, changed + at + 1, length - at + (at == length));
                        break;
                    case 1:  // put in
                        memmove(changed + at + 1, changed + at, length - at + 1);
                        changed[at] = letter;
                        break;
                    default:  // another in its place; at the end: appended
                        changed[at] = letter;
                        if (at == length) changed[at + 1] = 0;
                }
                int is_same = !strcmp(changed, name), result = take(odd(), (int)(r >> 40 & 1), 2);
                CHECK(result == (is_same ? 0 : -1));
                if (!result && !is_same) printf("    %s was taken for %s\n", changed, name);
                strcpy(changed, name);
            }
        }
    close_files();
}

// A part one element too short, too long, too early, too late; the neighbour's numbers.
static void parts_must_follow_each_other_exactly(void) {
    fresh_dir("shifted");
    open_files(odd());
    int tried = 0;
    for (int f = 0; f < FILES; f++)
        for (int i = 0; i < files[f].n; i++) {
            const SafeTensor* t = &files[f].tensors[i];
            SafeTensor* d = &damaged[f].tensors[i];
            const char* mark = strchr(t->name, '@');
            if (!mark) continue;
            size_t first = strtoull(mark + 1, NULL, 10), before = (size_t)(mark - t->name);
            for (int change = 0; change < 6; change++) {
                char base[64];
                snprintf(base, sizeof base, "%.*s", (int)before, t->name);
                if (change == 0) d->dims[0]--, d->bytes -= 4;
                if (change == 1) d->dims[0]++, d->bytes += 4;
                if (change == 2) snprintf(d->name, sizeof d->name, "%s@%zu", base, first + 1);
                if (change == 3) snprintf(d->name, sizeof d->name, "%s@%zu", base, first - (first > 0));
                if (change == 4) snprintf(d->name, sizeof d->name, "%s@18446744073709551615", base);
                if (change == 5) snprintf(d->name, sizeof d->name, "%s@18446744073709551616", base);
                if (!strcmp(d->name, t->name) && d->bytes == t->bytes) continue;
                CHECK(take(odd(), 0, 1) == -1 && strstr(err, base) && strstr(err, "expected"));
                tried++;
                *d = *t;
            }
        }
    CHECK(tried > 50);
    close_files();
}

static void parts_of_no_element_or_two_dimensions_are_refused(void) {
    fresh_dir("forms");
    open_files(odd());
    for (int i = 0; i < files[1].n; i++) {
        SafeTensor* d = &damaged[1].tensors[i];
        int is_part = strchr(d->name, '@') != NULL;
        d->dims[0] = 0, d->bytes = 0;
        CHECK(take(odd(), 0, 1) == -1 && strstr(err, "at least one element"));
        *d = files[1].tensors[i];
        if (!is_part) continue;
        d->n_dims = 2, d->dims[1] = 1;
        CHECK(take(odd(), 0, 1) == -1 && strstr(err, "one dimension"));
        *d = files[1].tensors[i];
    }
    CHECK(take(odd(), 0, 1) == 0);
    close_files();
}

// ---- weights, by several ranks together

static int fetched;
static float* weights;

static void fetch_in_order(void* context, StateKind kind, const ParamTensor* tensor, float* value) {
    const Rank* r = (const Rank*)context;
    CHECK(kind == STATE_WEIGHTS && tensor->offset == shape_tensor(&r->shape, fetched).offset);
    fetched++;
    for (size_t e = 0; e < tensor->elems; e++) value[e] = (float)(hash64(tensor->offset + e) % 1000);
}

static void put_weights(void* context, const ParamTensor* tensor, float* value) {
    (void)context;
    memcpy(weights + tensor->offset, value, tensor->elems * sizeof *value);
    memset(value, 0xff, tensor->elems * sizeof *value);
}

static void every_rank_fetches_every_tensor_once_whatever_the_file(void) {
    Rank r;
    fresh_dir("fetches");
    open_rank(&r, odd(), 0, 3);
    r.state.fetch = fetch_in_order;
    const char* paths[] = {in(run_dir, "model"), NULL, in(run_dir, "no/such/directory")};
    for (int i = 0; i < 3; i++) {
        fetched = 0;
        CHECK(hf_write(&r.state, STATE_WEIGHTS, NULL, 0, paths[i], err, sizeof err) == (i == 2 ? -1 : 0));
        CHECK(fetched == shape_tensors(&r.shape));
    }
    CHECK(exists(paths[0]));
    close_rank(&r);
}

static void weights_go_to_every_rank_and_masters_to_their_owners(void) {
    Rank r;
    fresh_dir("weights");
    for (int rank = 0; rank < 3; rank++) {
        open_rank(&r, odd(), rank, 3);
        r.state.fetch = fetch_in_order, r.state.put_weights = put_weights;
        fetched = 0;
        CHECK(hf_write(&r.state, STATE_WEIGHTS, NULL, 0, in(run_dir, "model.safetensors"), err, sizeof err) == 0);
        weights = (float*)calloc(shape_param_elems(&r.shape), sizeof(float));
        CHECK(hf_read(&r.state, 1, run_dir, err, sizeof err) == 0);
        for (int i = 0; i < shape_tensors(&r.shape); i++) {
            Segment s = shape_segment(&r.shape, i, rank);
            for (size_t e = 0; e < s.tensor.elems; e++) {
                size_t used = s.tensor.id == WTE ? (size_t)r.shape.V * r.shape.C : s.tensor.elems;
                float expected = e < used ? (float)(hash64(s.tensor.offset + e) % 1000) : 0, master = expected;
                if (e >= s.first && e < s.first + s.n) memcpy(&master, &r.owned[2][s.at + e - s.first], 4);
                CHECK(weights[s.tensor.offset + e] == expected && master == expected);
            }
        }
        free(weights);
        close_rank(&r);
    }
}

int main(void) {
    temporary_begin();
    RUN(any_number_of_ranks_reads_what_any_other_wrote_bit_for_bit);
    RUN(each_rank_writes_what_it_owns_under_names_that_say_where_it_lies);
    RUN(a_file_of_whole_tensors_is_read_by_any_number_of_ranks);
    RUN(values_that_are_not_finite_are_not_written);
    RUN(masters_are_asked_for_and_may_be_left_alone);
    RUN(a_missing_file_is_named);
    RUN(a_file_that_was_cut_off_is_named);
    RUN(files_of_another_number_of_ranks_are_refused);
    RUN(a_file_that_is_there_twice_is_refused);
    RUN(files_of_another_shape_are_refused);
    RUN(every_change_of_a_name_is_refused);
    RUN(parts_must_follow_each_other_exactly);
    RUN(parts_of_no_element_or_two_dimensions_are_refused);
    RUN(every_rank_fetches_every_tensor_once_whatever_the_file);
    RUN(weights_go_to_every_rank_and_masters_to_their_owners);
    return temporary_end();
}
