// optimizer_files.c - pieces of optimizer state to files and back; see optimizer_files.h.
//
// How many ranks wrote says what each of them owned (shape_segment), so the reader knows every tensor of every file
// beforehand: all of them are there in their sizes before it uses any.
#include "data/optimizer_files.h"

#include <stdio.h>
#include <stdlib.h>

#include "plan/base/disk.h"

void optimizer_name(char name[OPTIMIZER_NAME], int rank, int ranks) {
    snprintf(name, OPTIMIZER_NAME, "optimizer-%05d-of-%05d.safetensors", rank, ranks);
}

int optimizer_path(char path[DISK_PATH], const char* dir, int rank, int ranks, Err err) {
    char name[OPTIMIZER_NAME];
    optimizer_name(name, rank, ranks);
    return disk_join(path, dir, name, err);
}

// What a rank owns of m, v or masters of a tensor of the model, and how it stands in a file.
typedef struct Piece {
    StateKind kind;
    Segment segment;   // of no elements: the rank owns none
    SafeTensor shown;  // without values
} Piece;

static int n_pieces(const Shape* shape, int with_master) { return (with_master ? 3 : 2) * shape_tensors(shape); }

// Number k of n_pieces.
static Piece piece_of(const Shape* shape, int k, int rank) {
    static const StateKind kinds[] = {STATE_M, STATE_V, STATE_MASTER};
    static const char* const prefixes[] = {"m", "v", "master"};
    int kind = k / shape_tensors(shape);
    Piece p = {.kind = kinds[kind], .segment = shape_segment(shape, k % shape_tensors(shape), rank)};
    const ParamTensor* t = &p.segment.tensor;
    const ParamRow* row = &param_table[t->id];
    char layer[24] = "", part[24] = "";
    int is_part = p.segment.n < t->elems, is_matrix = !is_part && param_is_matrix(t->id);
    if (param_is_per_layer(t->id)) snprintf(layer, sizeof layer, "h.%d.", t->layer);
    if (is_part) snprintf(part, sizeof part, "@%zu", p.segment.first);
    snprintf(p.shown.name, sizeof p.shown.name, "%s.%s%s%s", prefixes[kind], layer, row->name, part);
    p.shown.dtype = DT_F32;
    p.shown.n_dims = is_matrix ? 2 : 1;
    p.shown.dims[0] = is_matrix ? t->rows : (int64_t)p.segment.n;
    p.shown.dims[1] = is_matrix ? t->cols : 0;
    p.shown.bytes = p.segment.n * sizeof(float);
    return p;
}

// ---- writing

typedef struct Writer {
    const ModelState* state;
    Piece* pieces;
    int staged;  // index of the piece in the staging buffer, -1: none
    int wrong;   // a value is not finite, as err says
    const char* path;
    char* err;
} Writer;

static void fill(void* context, int i, size_t first, size_t n, void* out) {
    Writer* w = (Writer*)context;
    const ModelState* s = w->state;
    if (w->staged != i) s->fetch_owned(s->context, w->pieces[i].kind, &w->pieces[i].segment, s->staging);
    w->staged = i;
    memcpy(out, s->staging + first, n * sizeof(float));
    size_t wrong = w->wrong ? n : first_not_finite(s->staging + first, n);
    if (wrong < n)
        w->wrong = fail(w->err, "%s: tensor %s: expected finite values, found %g", w->path, w->pieces[i].shown.name,
                        (double)s->staging[first + wrong]);
}

int optimizer_write(const ModelState* state, int with_master, const SafeTensor* extra, int n_extra, const char* dir,
                    Err err) {
    char path[DISK_PATH];
    int most = n_pieces(state->shape, with_master), n = 0;
    Writer w = {state, (Piece*)malloc(sizeof(Piece) * (size_t)most), -1, 0, path, err};
    SafeTensor* shown = (SafeTensor*)malloc(sizeof(SafeTensor) * (size_t)(most + n_extra));
    int result = optimizer_path(path, dir, state->rank, state->shape->shards, err);
    if (!result && (!w.pieces || !shown)) result = fail(err, "%s: no memory for a list of %d tensors", path, most);
    for (int k = 0; k < most && !result; k++) {
        Piece piece = piece_of(state->shape, k, state->rank);
        if (piece.segment.n) w.pieces[n] = piece, shown[n++] = piece.shown;
    }
    for (int i = 0; i < n_extra && !result; i++) shown[n++] = extra[i];
    if (!result) result = safetensors_write(path, shown, n, fill, &w, err);
    if (!result) result = w.wrong;
    free(w.pieces);
    free(shown);
    return result;
}

// ---- reading

// The files of all ranks that wrote, and the shape as they divided it.
typedef struct Files {
    const SafeTensors* list;  // (shape.shards)
    Shape shape;
    const char* dir;
} Files;

// The tensor that a piece is in the file of rank f; NULL with a message.
static const SafeTensor* find_piece(const Files* files, const Piece* piece, int f, Err err) {
    char path[DISK_PATH] = "";
    const SafeTensor *wanted = &piece->shown, *t = safetensors_get(&files->list[f], wanted->name);
    if (t && t->n_dims == wanted->n_dims && !memcmp(t->dims, wanted->dims, sizeof *t->dims * (size_t)t->n_dims))
        return t;
    if (optimizer_path(path, files->dir, f, files->shape.shards, err)) return NULL;
    if (!t) fail(err, "%s: expected a tensor %s, found none; is this another model?", path, wanted->name);
    else
        fail(err,
             "%s: tensor %s: expected %lld x %lld in %d dimensions, found %lld x %lld in %d; is this another model?",
             path, t->name, (long long)wanted->dims[0], (long long)wanted->dims[1], wanted->n_dims,
             (long long)t->dims[0], (long long)t->dims[1], t->n_dims);
    return NULL;
}

// Of the k-th piece of state->rank what rank f wrote. Without `values` it is only looked for.
static int take_piece(const ModelState* state, const Files* files, int k, int f, int values, Err err) {
    Piece piece = piece_of(&files->shape, k, f);
    const Segment *from = &piece.segment,
                  own = shape_segment(state->shape, k % shape_tensors(state->shape), state->rank);
    if (from->n == 0) return 0;
    const SafeTensor* t = find_piece(files, &piece, f, err);
    size_t low = MAX(own.first, from->first), high = MIN(own.first + own.n, from->first + from->n);
    if (!t || !values || low >= high) return t ? 0 : -1;
    return safetensors_floats(&files->list[f], t, low - from->first, high - low, state->staging + (low - own.first),
                              err);
}

int optimizer_take(const ModelState* state, int with_master, const SafeTensors* list, int n_files, const char* dir,
                   Err err) {
    Files files = {list, *state->shape, dir};
    files.shape.shards = n_files;
    for (int values = 0; values < 2; values++)  // all are found first: files of another model must change nothing
        for (int k = 0; k < n_pieces(state->shape, with_master); k++) {
            for (int f = 0; f < n_files; f++)
                if (take_piece(state, &files, k, f, values, err)) return -1;
            Piece own = piece_of(state->shape, k, state->rank);
            if (values && own.segment.n) state->put_owned(state->context, own.kind, &own.segment, state->staging);
        }
    return 0;
}

int optimizer_read(const ModelState* state, int with_master, int ranks, const char* dir, Err err) {
    char path[DISK_PATH];
    int opened = 0, result = 0;
    SafeTensors* files = (SafeTensors*)malloc(sizeof(SafeTensors) * (size_t)MAX(ranks, 1));
    if (!files || ranks < 1) result = fail(err, "%s: expected files of one rank or more, found %d", dir, ranks);
    for (; opened < ranks && !result; opened += !result)
        result = optimizer_path(path, dir, opened, ranks, err) || safetensors_open(&files[opened], path, err);
    result = result ? -1 : optimizer_take(state, with_master, files, ranks, dir, err);
    for (int i = 0; i < opened; i++) safetensors_close(&files[i]);
    free(files);
    return result;
}
