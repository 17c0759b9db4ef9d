// optimizer_files.c - segments of optimizer state to files and back; see optimizer_files.h.
//
// The reader sorts the parts of all files by tensor and first element. "Every element once" then means: the parts of a
// tensor follow each other without a hole or an overlap, from its first element to its last. A segment is a copy from
// those parts that it meets.
#define _POSIX_C_SOURCE 200809L
#include "data/optimizer_files.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "plan/disk.h"

static const StateKind kinds[] = {STATE_M, STATE_V, STATE_MASTER};

enum { TENSOR_NAME = sizeof(((SafeTensor*)0)->name), MOST_RANKS = 1 << 20 };

static int n_kinds(int with_master) { return with_master ? 3 : 2; }

static void state_name(char name[TENSOR_NAME], StateKind kind, const ParamTensor* t) {
    const char* prefix = kind == STATE_M ? "m" : kind == STATE_V ? "v" : "master";
    const ParamRow* row = &param_table[t->id];
    if (param_is_per_layer(t->id)) snprintf(name, TENSOR_NAME, "%s.h.%d.%s", prefix, t->layer, row->name);
    else snprintf(name, TENSOR_NAME, "%s.%s", prefix, row->name);
}

void optimizer_name(char name[OPTIMIZER_NAME], int rank, int ranks) {
    snprintf(name, OPTIMIZER_NAME, "optimizer-%05d-of-%05d.safetensors", rank, ranks);
}

static int make_path(char* path, const char* dir, int rank, int ranks, char* err, size_t errlen) {
    char name[OPTIMIZER_NAME];
    optimizer_name(name, rank, ranks);
    return disk_join(path, dir, name, err, errlen);
}

// ---- writing

// A segment to be written.
typedef struct Outgoing {
    StateKind kind;
    Segment segment;
} Outgoing;

typedef struct Writer {
    const ModelState* state;
    Outgoing* list;
    int n, staged;  // staged: index of the segment in the staging buffer, -1: none
    int wrong;      // of the first segment that holds a value that is not finite, -1: none does
    float value;    // this one
} Writer;

static void fill(void* context, int i, size_t first, size_t n, void* out) {
    Writer* w = (Writer*)context;
    const ModelState* s = w->state;
    if (w->staged != i) s->fetch_owned(s->context, w->list[i].kind, &w->list[i].segment, s->staging);
    w->staged = i;
    memcpy(out, s->staging + first, n * sizeof(float));
    size_t wrong = w->wrong < 0 ? first_not_finite(s->staging + first, n) : n;
    if (wrong < n) w->wrong = i, w->value = s->staging[first + wrong];
}

static SafeTensor describe(const Outgoing* o) {
    const ParamTensor* t = &o->segment.tensor;
    SafeTensor shown;
    memset(&shown, 0, sizeof shown);
    state_name(shown.name, o->kind, t);
    shown.dtype = DT_F32;
    shown.bytes = o->segment.n * sizeof(float);
    shown.n_dims = 1;
    shown.dims[0] = (int64_t)o->segment.n;
    if (o->segment.n == t->elems && param_is_matrix(t->id)) {
        shown.n_dims = 2;
        shown.dims[0] = t->rows, shown.dims[1] = t->cols;
    }
    size_t length = strlen(shown.name);
    if (o->segment.n < t->elems) snprintf(shown.name + length, TENSOR_NAME - length, "@%zu", o->segment.first);
    return shown;
}

int optimizer_write(const ModelState* state, int with_master, const char* dir, char* err, size_t errlen) {
    char path[DISK_PATH];
    int n_tensors = shape_tensors(state->shape), most = n_kinds(with_master) * n_tensors;
    Writer w = {state, (Outgoing*)malloc(sizeof(Outgoing) * (size_t)most), 0, -1, -1, 0};
    SafeTensor* shown = (SafeTensor*)malloc(sizeof(SafeTensor) * (size_t)most);
    int result = make_path(path, dir, state->rank, state->shape->shards, err, errlen);
    if (!result && (!w.list || !shown))
        result = fail(err, errlen, "%s: no memory for a list of %d tensors", path, most);
    for (int i = 0; i < most && !result; i++) {
        Outgoing o = {kinds[i / n_tensors], shape_segment(state->shape, i % n_tensors, state->rank)};
        if (o.segment.n == 0) continue;
        shown[w.n] = describe(&o);
        w.list[w.n++] = o;
    }
    if (!result) result = safetensors_write(path, shown, w.n, fill, &w, err, errlen);
    if (!result && w.wrong >= 0)
        result = fail(err, errlen, "%s: tensor %s: expected finite values, found %g", path, shown[w.wrong].name,
                      (double)w.value);
    free(w.list);
    free(shown);
    return result;
}

// ---- the parts in the files

// Elements first .. first + n of the tensor of this name.
typedef struct Part {
    char name[TENSOR_NAME];  // without @
    size_t first, n;
    const SafeTensor* in;
    int file;
} Part;

typedef struct Parts {
    Part* list;
    int n;
    const SafeTensors* files;
    int n_files;
    const char* dir;
} Parts;

static int by_place(const void* a, const void* b) {
    const Part *x = (const Part*)a, *y = (const Part*)b;
    int order = strcmp(x->name, y->name);
    if (order) return order;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return x->file - y->file;
}

static int fail_part(const Parts* parts, const Part* p, const char* expected, char* err, size_t errlen) {
    char name[OPTIMIZER_NAME];
    optimizer_name(name, p->file, parts->n_files);
    return fail(err, errlen, "%s/%s: tensor %s: %s", parts->dir, name, p->in->name, expected);
}

// "m.h.3.qkvw@4096" -> name and first. The number as this program writes it, no other spelling.
static int parse_part(const Parts* parts, Part* p, char* err, size_t errlen) {
    char again[32];
    const char* mark = strchr(p->in->name, '@');
    size_t length = mark ? (size_t)(mark - p->in->name) : strlen(p->in->name);
    memcpy(p->name, p->in->name, length);
    p->name[length] = 0;
    p->n = p->in->bytes / dtype_bytes(p->in->dtype);
    p->first = 0;
    if (p->n == 0) return fail_part(parts, p, "expected at least one element", err, errlen);
    if (!mark) return 0;
    errno = 0;
    unsigned long long first = strtoull(mark + 1, NULL, 10);
    snprintf(again, sizeof again, "%llu", first);
    if (errno || strcmp(again, mark + 1) || first > SIZE_MAX)
        return fail_part(parts, p, "expected the number of an element behind @", err, errlen);
    if (p->in->n_dims != 1) return fail_part(parts, p, "expected one dimension of a part", err, errlen);
    p->first = (size_t)first;
    return 0;
}

static int list_parts(Parts* parts, char* err, size_t errlen) {
    size_t n = 0;
    for (int f = 0; f < parts->n_files; f++) n += (size_t)parts->files[f].n;
    parts->list = n < INT_MAX ? (Part*)malloc(sizeof(Part) * (n + 1)) : NULL;
    if (!parts->list) return fail(err, errlen, "%s: no memory for a list of %zu tensors", parts->dir, n);
    for (int f = 0; f < parts->n_files; f++)
        for (int i = 0; i < parts->files[f].n; i++) {
            Part* p = &parts->list[parts->n++];
            p->in = &parts->files[f].tensors[i];
            p->file = f;
            if (parse_part(parts, p, err, errlen)) return -1;
        }
    qsort(parts->list, (size_t)parts->n, sizeof(Part), by_place);
    return 0;
}

// The first part of a name; *end behind the last.
static const Part* find_parts(const Parts* parts, const char* name, const Part** end) {
    int low = 0, high = parts->n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (strcmp(parts->list[middle].name, name) < 0) low = middle + 1;
        else high = middle;
    }
    const Part* first = parts->list + low;
    for (*end = first; *end < parts->list + parts->n && !strcmp((*end)->name, name);) ++*end;
    return first;
}

// Do the parts first .. end hold each of `elems` elements once?
static int check_cover(const Parts* parts, const char* name, const Part* first, const Part* end, size_t elems,
                       char* err, size_t errlen) {
    char any[OPTIMIZER_NAME + 8], why[128];
    size_t next = 0;
    if (parts->n_files == 1) optimizer_name(any, 0, 1);
    else snprintf(any, sizeof any, "optimizer-*-of-%05d.safetensors", parts->n_files);
    if (first == end)
        return fail(err, errlen, "%s/%s: expected a tensor %s, found none; is this another model?", parts->dir, any,
                    name);
    for (const Part* p = first; p <= end; p++) {
        size_t at = p < end ? p->first : elems;
        if (at > next)
            return fail(err, errlen, "%s/%s: tensor %s: expected elements %zu to %zu, found them in no file",
                        parts->dir, any, name, next, at - 1);
        if (p == end) break;
        if (p->n > elems || p->first > elems - p->n) {
            snprintf(why, sizeof why, "expected parts of %zu elements, found %zu from %zu on; is this another model?",
                     elems, p->n, p->first);
            return fail_part(parts, p, why, err, errlen);
        }
        if (at < next) {
            snprintf(why, sizeof why, "expected each element once, found %zu to %zu a second time", at,
                     MIN(next, at + p->n) - 1);
            return fail_part(parts, p, why, err, errlen);
        }
        next = p->first + p->n;
    }
    return 0;
}

static int read_segment(const Parts* parts, const Segment* s, const Part* first, const Part* end, float* out, char* err,
                        size_t errlen) {
    for (const Part* p = first; p < end; p++) {
        size_t low = MAX(s->first, p->first), high = MIN(s->first + s->n, p->first + p->n);
        if (low < high && safetensors_floats(&parts->files[p->file], p->in, low - p->first, high - low,
                                             out + (low - s->first), err, errlen))
            return -1;
    }
    return 0;
}

static int take_parts(const ModelState* state, int with_master, const Parts* parts, char* err, size_t errlen) {
    int n_tensors = shape_tensors(state->shape), n = n_kinds(with_master) * n_tensors;
    for (int use = 0; use < 2; use++)  // all checks first: files that do not belong together must change nothing
        for (int i = 0; i < n; i++) {
            char name[TENSOR_NAME];
            StateKind kind = kinds[i / n_tensors];
            Segment own = shape_segment(state->shape, i % n_tensors, state->rank);
            state_name(name, kind, &own.tensor);
            const Part *end, *first = find_parts(parts, name, &end);
            if (!use && check_cover(parts, name, first, end, own.tensor.elems, err, errlen)) return -1;
            if (!use || own.n == 0) continue;
            if (read_segment(parts, &own, first, end, state->staging, err, errlen)) return -1;
            state->put_owned(state->context, kind, &own, state->staging);
        }
    return 0;
}

int optimizer_take(const ModelState* state, int with_master, const SafeTensors* files, int n_files, const char* dir,
                   char* err, size_t errlen) {
    Parts parts = {NULL, 0, files, n_files, dir};
    int result = list_parts(&parts, err, errlen) ? -1 : take_parts(state, with_master, &parts, err, errlen);
    free(parts.list);
    return result;
}

// ---- the files in a directory

// The number of ranks in a name as optimizer_name makes it, 0 in any other.
static int ranks_of_name(const char* name) {
    char again[OPTIMIZER_NAME];
    long rank, ranks;
    if (sscanf(name, "optimizer-%7ld-of-%7ld", &rank, &ranks) != 2) return 0;
    if (ranks < 1 || ranks > MOST_RANKS || rank < 0 || rank >= ranks) return 0;
    optimizer_name(again, (int)rank, (int)ranks);
    return strcmp(again, name) ? 0 : (int)ranks;
}

typedef struct RanksFound {
    int least, most;  // 0: none
} RanksFound;

static int note_ranks(void* context, const char* path, const char* name, char* err, size_t errlen) {
    RanksFound* found = (RanksFound*)context;
    int ranks = ranks_of_name(name);
    (void)path, (void)err, (void)errlen;
    if (ranks && (!found->least || ranks < found->least)) found->least = ranks;
    found->most = MAX(found->most, ranks);
    return 0;
}

// How many ranks wrote the files in dir; -1 with a message.
static int count_ranks(const char* dir, char* err, size_t errlen) {
    RanksFound found = {0, 0};
    if (disk_visit(dir, note_ranks, &found, err, errlen)) return -1;
    if (found.least != found.most)
        return fail(err, errlen, "%s: expected optimizer files of one number of ranks, found some of %d and some of %d",
                    dir, found.least, found.most);
    if (!found.most)
        return fail(err, errlen,
                    "%s: expected optimizer-00000-of-00001.safetensors, or files of more ranks, found none", dir);
    return found.most;
}

int optimizer_read(const ModelState* state, int with_master, const char* dir, char* err, size_t errlen) {
    char path[DISK_PATH];
    int n = count_ranks(dir, err, errlen), opened = 0, result = 0;
    if (n < 0) return -1;
    SafeTensors* files = (SafeTensors*)malloc(sizeof(SafeTensors) * (size_t)n);
    if (!files) return fail(err, errlen, "%s: no memory for a list of %d files", dir, n);
    for (; opened < n && !result; opened += !result) {
        result = make_path(path, dir, opened, n, err, errlen) || safetensors_open(&files[opened], path, err, errlen);
        if (!result) safetensors_rest(&files[opened]);  // there may be more ranks than descriptors
    }
    result = result ? -1 : optimizer_take(state, with_master, files, n, dir, err, errlen);
    for (int i = 0; i < opened; i++) safetensors_close(&files[i]);
    free(files);
    return result;
}
