// hf_files.c - Hugging Face's names and layouts, of tensors in one file or in several; see hf_files.h.
#include "data/hf_files.h"

#include <stdio.h>
#include <stdlib.h>

#include "data/hf_names.h"
#include "data/json.h"
#include "plan/base/disk_files.h"

#define ONE_FILE "model.safetensors"
#define INDEX ONE_FILE ".index.json"

enum { NAME = sizeof(((SafeTensor*)0)->name), MOST_INDEX_BYTES = 1 << 26 };

// A tensor of a file: elements from `first` on of one of ours, most often all.
typedef struct FilePart {
    int tensor;  // ours, by its number
    size_t first;
    SafeTensor shown;  // without values
} FilePart;

static int is_transposed(const ModelState* state, ParamId id) {
    return state->shape->arch == ARCH_GPT2 && hf_names[id].gpt2_transposed;
}

static void put_name(char* name, size_t bytes, const char* pattern, int layer) {
    const char* number = strstr(pattern, "%d");
    if (!number) snprintf(name, bytes, "%s", pattern);
    else snprintf(name, bytes, "%.*s%d%s", (int)(number - pattern), pattern, layer, number + 2);
}

// Of `rows` rows of a matrix, or as many elements of a vector.
static SafeTensor show(const ModelState* state, StateKind kind, const ParamTensor* t, const char* name, int rows) {
    SafeTensor shown;
    memset(&shown, 0, sizeof shown);
    put_name(shown.name, sizeof shown.name, name, t->layer);
    int is_matrix = param_is_matrix(t->id), transposed = is_transposed(state, t->id), cols = is_matrix ? t->cols : 1;
    shown.dtype = kind == STATE_WEIGHTS ? state->dt : DT_F32;
    shown.n_dims = is_matrix ? 2 : 1;
    shown.dims[0] = transposed ? cols : rows;
    shown.dims[1] = !is_matrix ? 0 : transposed ? rows : cols;
    shown.bytes = (size_t)rows * cols * dtype_bytes(shown.dtype);
    return shown;
}

// The tensors of a file that the i-th of ours is: parts[MOST_RUNS], one behind the other. Returns their number.
static int parts_of(const ModelState* state, StateKind kind, int i, FilePart* parts) {
    ParamTensor t = shape_tensor(state->shape, i);
    const ParamRow* row = &param_table[t.id];
    int is_matrix = param_is_matrix(t.id), is_gpt2 = state->shape->arch == ARCH_GPT2;
    Runs runs = shape_runs(state->shape, is_matrix ? row->rows : row->cols);
    if (is_gpt2) runs = (Runs){1, {is_matrix ? t.rows : t.cols}};
    if (row->rows == VOCABULARY) runs.size[0] = state->shape->V;
    size_t first = 0;
    for (int r = 0; r < runs.n; r++) {
        const char* name = is_gpt2 ? hf_names[t.id].gpt2 : hf_names[t.id].llama[r];
        parts[r] = (FilePart){i, first, show(state, kind, &t, name, runs.size[r])};
        first += (size_t)runs.size[r] * (is_matrix ? t.cols : 1);
    }
    return runs.n;
}

// ---- writing

// The file being written, and whose values the staging buffer holds.
typedef struct Writer {
    const ModelState* state;
    StateKind kind;
    int staged;       // number of our tensor in staging, -1: none
    FilePart* parts;  // (n_parts) of the model
    int n_parts;
    int wrong;  // a weight is not finite, as err says
    const char* path;
    char* err;
} Writer;

static void stage(Writer* w, int i) {
    ParamTensor t = shape_tensor(w->state->shape, i);
    w->state->fetch(w->state->context, w->kind, &t, w->state->staging);
    w->staged = i;
    size_t wrong = w->kind == STATE_WEIGHTS && !w->wrong ? first_not_finite(w->state->staging, t.elems) : t.elems;
    if (wrong == t.elems) return;
    FilePart parts[MOST_RUNS];
    int part = parts_of(w->state, w->kind, i, parts) - 1;
    while (part > 0 && parts[part].first > wrong) part--;
    w->wrong = fail(w->err, "%s: tensor %s: expected finite weights, found %g", w->path, parts[part].shown.name,
                    (double)w->state->staging[wrong]);
}

// Elements first .. first + n of tensor i as the file has them.
static void fill(void* context, int i, size_t first, size_t n, void* out) {
    Writer* w = (Writer*)context;
    const FilePart* part = &w->parts[i];
    if (w->staged != part->tensor) stage(w, part->tensor);
    ParamTensor t = shape_tensor(w->state->shape, part->tensor);
    const float* value = w->state->staging + part->first;
    int transposed = is_transposed(w->state, t.id), narrow = w->kind == STATE_WEIGHTS && w->state->dt == DT_BF16;
    for (size_t j = 0; j < n; j++) {
        size_t at = first + j;
        float x = value[transposed ? at % t.rows * t.cols + at / t.rows : at];
        if (narrow) ((bf16*)out)[j] = bf16_from_float(x);
        else ((float*)out)[j] = x;
    }
}

static int write_file(Writer* w, const SafeTensor* extra, int n_extra) {
    int most = MOST_RUNS * shape_tensors(w->state->shape), n = 0;
    w->parts = (FilePart*)malloc(sizeof(FilePart) * (size_t)most);
    SafeTensor* shown = (SafeTensor*)malloc(sizeof(SafeTensor) * (size_t)(most + n_extra));
    int result = w->parts && shown ? 0 : fail(w->err, "%s: no memory for %d tensors", w->path, most);
    for (int i = 0; i < shape_tensors(w->state->shape) && !result; i++)
        w->n_parts += parts_of(w->state, w->kind, i, w->parts + w->n_parts);
    for (; n < w->n_parts; n++) shown[n] = w->parts[n].shown;
    for (int i = 0; i < n_extra && !result; i++) shown[n++] = extra[i];
    if (!result) result = safetensors_write(w->path, shown, n, fill, w, w->err);
    free(w->parts);
    free(shown);
    return result ? result : w->wrong;
}

int hf_write(const ModelState* state, StateKind kind, const SafeTensor* extra, int n_extra, const char* path, Err err) {
    Writer w = {.state = state, .kind = kind, .staged = -1, .path = path, .err = err};
    w.wrong = !path;  // nothing is said where nothing is written
    int result = path ? write_file(&w, extra, n_extra) : 0;
    while (w.staged < shape_tensors(state->shape) - 1) stage(&w, w.staged + 1);  // other ranks count on it
    return result;
}

// ---- the files of a directory

// The number of the file of this name, opened if it is not yet; -1 with a message.
static int open_file(HfFiles* files, const char* dir, const char* name, Err err) {
    char path[DISK_PATH];
    if (disk_join(path, dir, name, err)) return -1;
    for (int i = 0; i < files->n; i++)
        if (!strcmp(files->list[i].path, path)) return i;
    SafeTensors* list = (SafeTensors*)realloc(files->list, sizeof *list * ((size_t)files->n + 1));
    if (!list) return fail(err, "%s: no memory for a list of %d files", dir, files->n + 1);
    files->list = list;
    return safetensors_open(&list[files->n], path, err) ? -1 : files->n++;
}

// A member of weight_map: the name of a tensor, behind it that of its file.
static int open_member(HfFiles* files, const char* dir, const JsonValue* key, Err err) {
    char tensor[NAME], name[NAME];
    if (json_text(key, tensor, NAME) || json_text(key + 1, name, NAME))
        return fail(err, "%s/" INDEX ": expected names of a tensor and of its file, found %.*s", dir,
                    (int)MIN(key->length, (size_t)80), key->text);
    if (strchr(name, '/'))
        return fail(err, "%s/" INDEX ": expected the name of a file in this directory, found %.100s", dir, name);
    int file = open_file(files, dir, name, err);
    if (file < 0 || safetensors_get(&files->list[file], tensor)) return MIN(file, 0);
    return fail(err, "%s/%s: expected a tensor %s, as " INDEX " says, found none", dir, name, tensor);
}

static int open_members(HfFiles* files, const char* dir, const Json* json, Err err) {
    const JsonValue* map = json_get(json, json->values, "weight_map");
    if (!map || map->type != JSON_OBJECT) return fail(err, "%s/" INDEX ": expected an object weight_map", dir);
    const JsonValue* key = map + 1;
    for (int i = 0; i < map->n; i++, key = &json->values[key[1].next])
        if (open_member(files, dir, key, err)) return -1;
    return 0;
}

static int open_by_index(HfFiles* files, const char* dir, Err err) {
    char path[DISK_PATH], why[ERR_BYTES];
    Json json;
    size_t n = 0;
    if (disk_join(path, dir, INDEX, err)) return -1;
    char* text = disk_read_file(path, MOST_INDEX_BYTES, &n, err);
    if (!text) return -1;
    int bad = json_parse(&json, text, n, why);
    int result = bad ? fail(err, "%s: %s", path, why) : open_members(files, dir, &json, err);
    if (!bad) json_free(&json);
    free(text);
    return result;
}

int hf_has_model(const char* dir) { return disk_is_file(dir, ONE_FILE) || disk_is_file(dir, INDEX); }

int hf_open(HfFiles* out, const char* dir, Err err) {
    int has_one = disk_is_file(dir, ONE_FILE) || !disk_is_file(dir, INDEX);
    *out = (HfFiles){0};
    int failed = has_one ? open_file(out, dir, ONE_FILE, err) < 0 : open_by_index(out, dir, err);
    if (failed) hf_close(out);
    return failed ? -1 : 0;
}

void hf_close(HfFiles* files) {
    for (int i = 0; i < files->n; i++) safetensors_close(&files->list[i]);
    free(files->list);
    *files = (HfFiles){0};
}

// ---- reading

// The tensor that `wanted` describes, under its name or without its prefix, with the dimensions wanted, and its file.
static const SafeTensor* find_tensor(const HfFiles* files, const SafeTensor* wanted, const SafeTensors** file,
                                     const char* dir, Err err) {
    const char* names[] = {wanted->name, strchr(wanted->name, '.') + 1};
    int has_prefix = !strncmp(names[0], "transformer.", 12) || !strncmp(names[0], "model.", 6);
    const SafeTensor* t = NULL;
    for (int i = 0; i < (1 + has_prefix) * files->n && !t; i++) {
        *file = &files->list[i % files->n];
        t = safetensors_get(*file, names[i / files->n]);
    }
    if (!t) {
        fail(err, "%s: expected a tensor %s, found none; is this another model?", dir, wanted->name);
        return NULL;
    }
    if (t->n_dims == wanted->n_dims && t->dims[0] == wanted->dims[0] &&
        (t->n_dims < 2 || t->dims[1] == wanted->dims[1]))
        return t;
    fail(err, "%s: tensor %s: expected shape %lld x %lld, found %lld x %lld in %d dimensions", (*file)->path,
         wanted->name, (long long)wanted->dims[0], (long long)wanted->dims[1], (long long)t->dims[0],
         (long long)t->dims[1], t->n_dims);
    return NULL;
}

// value = a tensor of a file; transposed: there (columns, rows), here (rows, columns).
static int load(const SafeTensors* file, const SafeTensor* from, int transposed, float* value, Err err) {
    enum { PIECE = 1 << 14 };
    float piece[PIECE];
    size_t n = from->bytes / dtype_bytes(from->dtype);
    if (!transposed) return safetensors_floats(file, from, 0, n, value, err);
    size_t rows = (size_t)from->dims[1], cols = (size_t)from->dims[0];  // ours
    for (size_t first = 0; first < n; first += PIECE) {
        size_t count = MIN(n - first, (size_t)PIECE);
        if (safetensors_floats(file, from, first, count, piece, err)) return -1;
        for (size_t i = first; i < first + count; i++) value[i % rows * cols + i / rows] = piece[i - first];
    }
    return 0;
}

// The i-th tensor in the staging buffer.
static int read_parts(const ModelState* state, int i, const HfFiles* files, const char* dir, Err err) {
    ParamTensor t = shape_tensor(state->shape, i);
    FilePart parts[MOST_RUNS];
    int n = parts_of(state, STATE_WEIGHTS, i, parts);
    memset(state->staging, 0, t.elems * sizeof *state->staging);  // the padding rows of a vocabulary
    for (int p = 0; p < n; p++) {
        const SafeTensors* file;
        const SafeTensor* from = find_tensor(files, &parts[p].shown, &file, dir, err);
        if (!from || load(file, from, is_transposed(state, t.id), state->staging + parts[p].first, err)) return -1;
    }
    return 0;
}

static int read_tensor(const ModelState* state, int with_master, int i, const HfFiles* files, const char* dir,
                       Err err) {
    Segment own = shape_segment(state->shape, i, state->rank);
    if (read_parts(state, i, files, dir, err)) return -1;
    // Masters first: putting weights may overwrite the staging buffer.
    if (with_master && own.n) state->put_owned(state->context, STATE_MASTER, &own, state->staging + own.first);
    state->put_weights(state->context, &own.tensor, state->staging);
    return 0;
}

int hf_read(const ModelState* state, int with_master, const char* dir, Err err) {
    HfFiles files;
    if (hf_open(&files, dir, err)) return -1;
    int result = 0;
    for (int i = 0; i < shape_tensors(state->shape) && !result; i++)
        result = read_tensor(state, with_master, i, &files, dir, err);
    hf_close(&files);
    return result;
}
