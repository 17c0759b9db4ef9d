// fuzz_optimizer.c - lists of tensors as several ranks write them, edited at will, to the reader of optimizer state.
// Whatever it accepts must give each owned element one value from the files; whatever it refuses gives none, and words.
#include <stdio.h>
#include <stdlib.h>

#include "data/optimizer_files.h"
#include "test/fuzz/require.h"

enum { FILES = 3, MOST = 64, MOST_ELEMS = 4096 };

static SafeTensor written[FILES][MOST], lists[FILES][MOST];  // before and after the edits
static int n_written[FILES], counts[FILES];
static float staging[MOST_ELEMS], ones[MOST_ELEMS];
static size_t owned_elems, n_put;
static unsigned char* was_put[2];

static void put_owned(void* context, StateKind kind, const Segment* segment, const float* value) {
    (void)context;
    for (size_t i = 0; i < segment->n; i++, n_put++) {
        unsigned char* put = &was_put[kind == STATE_V][segment->at + i];
        require(segment->at + i < owned_elems && !*put && value[i] == 1);
        *put = 1;
    }
}

// Values are the last ones, so that a read behind them is seen.
static void set_elems(SafeTensor* t, size_t n) {
    n = MIN(n, MOST_ELEMS);
    t->data = ones + (MOST_ELEMS - n);
    t->n_dims = 1;
    t->dims[0] = (int64_t)n;
    t->bytes = n * sizeof(float);
}

// What three ranks would have written.
static void make_lists(Shape shape) {
    shape.shards = FILES;
    for (int i = 0; i < MOST_ELEMS; i++) ones[i] = 1;
    for (int f = 0; f < FILES; f++) {
        for (int k = 0; k < 2 * shape_tensors(&shape); k++) {
            Segment s = shape_segment(&shape, k % shape_tensors(&shape), f);
            SafeTensor* t = &written[f][n_written[f]];
            if (s.n == 0) continue;
            memset(t, 0, sizeof *t);
            const ParamRow* row = &param_table[s.tensor.id];
            int n = snprintf(t->name, sizeof t->name, "%s.%s%s", k < shape_tensors(&shape) ? "m" : "v",
                             param_is_per_layer(s.tensor.id) ? "h.0." : "", row->name);
            if (s.n < s.tensor.elems) snprintf(t->name + n, sizeof t->name - (size_t)n, "@%zu", s.first);
            set_elems(t, s.n);
            n_written[f]++;
        }
    }
}

// Four bytes are an edit: which tensor, what, and two to do it with.
static void edit(const uint8_t* e) {
    int f = e[0] % FILES, i = e[0] / FILES;
    if (i >= counts[f]) return;
    SafeTensor* t = &lists[f][i];
    switch (e[1] % 6) {
        case 0:
            if (e[2] < sizeof t->name - 1) t->name[e[2]] = (char)e[3];
            break;
        case 1: set_elems(t, ((size_t)e[2] << 8 | e[3]) % MOST_ELEMS); break;
        case 2: set_elems(t, (size_t)(t->dims[0] + (e[2] & 1 ? 1 : t->dims[0] ? -1 : 0))); break;
        case 3:  // taken out
            memmove(t, t + 1, sizeof *t * (size_t)(--counts[f] - i));
            break;
        case 4:  // a copy in another file
            if (counts[e[2] % FILES] < MOST) lists[e[2] % FILES][counts[e[2] % FILES]++] = *t;
            break;
        default:  // another number
            if (strchr(t->name, '@'))
                snprintf(strchr(t->name, '@'), (size_t)(t->name + sizeof t->name - strchr(t->name, '@')), "@%d",
                         e[2] << 8 | e[3]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    char err[128] = "";
    Shape shape = shape_make(1, 5, 1, 3, 1);
    if (size < 1) return 0;
    if (!n_written[0]) make_lists(shape);
    memcpy(lists, written, sizeof lists);
    memcpy(counts, n_written, sizeof counts);
    for (size_t at = 1; at + 4 <= size; at += 4) edit(data + at);
    SafeTensors files[FILES];
    memset(files, 0, sizeof files);
    for (int f = 0; f < FILES; f++) {
        files[f].tensors = lists[f];
        files[f].n = counts[f];
    }
    shape.shards = 1 + data[0] % 4;
    owned_elems = shape_param_elems(&shape) / (size_t)shape.shards;
    for (int k = 0; k < 2; k++) was_put[k] = (unsigned char*)calloc(owned_elems, 1);
    n_put = 0;
    memset(staging, 0, sizeof staging);
    ModelState state = {
        .shape = &shape, .rank = data[0] / 4 % shape.shards, .staging = staging, .put_owned = put_owned};
    int result = optimizer_take(&state, 0, files, FILES, "dir", err, sizeof err);
    size_t expected = 0;
    for (int i = 0; i < shape_tensors(&shape); i++) expected += 2 * shape_segment(&shape, i, state.rank).n;
    require(result ? err[0] && memchr(err, 0, sizeof err) && n_put == 0 : n_put == expected);
    for (int k = 0; k < 2; k++) free(was_put[k]);
    return 0;
}
