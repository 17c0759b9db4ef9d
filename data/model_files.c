// model_files.c - weights under Hugging Face's names and in its layouts, in one file or in several, and optimizer
// state, a file a rank; see model_files.h.
//
// How many ranks wrote optimizer state says what each of them owned (shape_segment), so the reader knows every tensor
// of every file beforehand: all of them are there in their sizes before it uses any.
#include "data/model_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/json.h"
#include "plan/base/disk.h"

#define ONE_FILE "model.safetensors"
#define INDEX ONE_FILE ".index.json"

enum { NAME = sizeof(((SafeTensor*)0)->name), MOST_INDEX_BYTES = 1 << 26 };

// ---- what stands in files

// Hugging Face's names of a tensor, with the layer's number for %d: GPT2LMHeadModel's, and those of the other classes,
// one for each run of the axis that is cut.
typedef struct HfName {
    const char* gpt2;
    int gpt2_transposed;  // it is kept as (in, out), its Conv1D
    const char* llama[MOST_RUNS];
} HfName;

#define GPT2 "transformer.h.%d."
#define LLAMA "model.layers.%d."
#define QKV(kind) LLAMA "self_attn.q_proj." kind, LLAMA "self_attn.k_proj." kind, LLAMA "self_attn.v_proj." kind

// clang-format off
static const HfName hf_names[N_PARAMS] = {
    [WTE]      = {"transformer.wte.weight", 0, {"model.embed_tokens.weight"}},
    [WPE]      = {"transformer.wpe.weight", 0, {NULL}},
    [LN1W]     = {GPT2 "ln_1.weight", 0, {LLAMA "input_layernorm.weight"}},
    [LN1B]     = {GPT2 "ln_1.bias", 0, {NULL}},
    [QKVW]     = {GPT2 "attn.c_attn.weight", 1, {QKV("weight")}},
    [QKVB]     = {GPT2 "attn.c_attn.bias", 0, {QKV("bias")}},
    [QNORMW]   = {NULL, 0, {LLAMA "self_attn.q_norm.weight"}},
    [KNORMW]   = {NULL, 0, {LLAMA "self_attn.k_norm.weight"}},
    [ATTPROJW] = {GPT2 "attn.c_proj.weight", 1, {LLAMA "self_attn.o_proj.weight"}},
    [ATTPROJB] = {GPT2 "attn.c_proj.bias", 0, {NULL}},
    [LN2W]     = {GPT2 "ln_2.weight", 0, {LLAMA "post_attention_layernorm.weight"}},
    [LN2B]     = {GPT2 "ln_2.bias", 0, {NULL}},
    [FCW]      = {GPT2 "mlp.c_fc.weight", 1, {LLAMA "mlp.gate_proj.weight", LLAMA "mlp.up_proj.weight"}},
    [FCB]      = {GPT2 "mlp.c_fc.bias", 0, {NULL}},
    [FCPROJW]  = {GPT2 "mlp.c_proj.weight", 1, {LLAMA "mlp.down_proj.weight"}},
    [FCPROJB]  = {GPT2 "mlp.c_proj.bias", 0, {NULL}},
    [LNFW]     = {"transformer.ln_f.weight", 0, {"model.norm.weight"}},
    [LNFB]     = {"transformer.ln_f.bias", 0, {NULL}},
    [HEADW]    = {"lm_head.weight", 0, {"lm_head.weight"}},
};
// clang-format on

// A tensor of a file, inside what the staging buffer holds at once: a whole tensor of ours for weights and gradients,
// for optimizer state the segment of it that a rank owns.
typedef struct Part {
    StateKind kind;
    int unit;  // counts what is staged, so that parts of one tensor are known
    Segment segment;
    size_t first;  // of the segment
    int transposed;
    SafeTensor shown;  // without values
} Part;

static const ParamId lora_matrices[LORA_LINEARS] = {QKVW, ATTPROJW, FCW, FCPROJW};

static const char* hf_name(Arch arch, ParamId id, int run) {
    return arch == ARCH_GPT2 ? hf_names[id].gpt2 : hf_names[id].llama[run];
}

int hf_module(char name[HF_MODULE], Arch arch, int linear, int run) {
    const char* form = run < (arch == ARCH_GPT2 ? 1 : MOST_RUNS) ? hf_name(arch, lora_matrices[linear], run) : NULL;
    if (!form) return 0;
    const char* path = strstr(form, "%d.") + 3;  // behind the layer, and before ".weight"
    snprintf(name, HF_MODULE, "%.*s", (int)(strrchr(path, '.') - path), path);
    return 1;
}

// Writes the name of a run of a tensor; PEFT's of an adapter's is that of its matrix with more around it.
static void put_name(char* name, Arch arch, ParamId id, int run, int layer) {
    char module[HF_MODULE];
    int k = (int)id - (int)QKV_LORA_A;
    if (!param_is_adapter(id)) snprintf(name, NAME, hf_name(arch, id, run), layer);
    else if (hf_module(module, arch, k / 2, run))
        snprintf(name, NAME, "base_model.model.%s.%d.%s.lora_%c.weight",
                 arch == ARCH_GPT2 ? "transformer.h" : "model.layers", layer, module, "AB"[k % 2]);
}

// Lists the tensors of a file that tensor i of ours consists of, in order, in parts[MOST_RUNS]. Returns their number.
static int parts_of(const ModelState* state, StateKind kind, int i, Part* parts) {
    ParamTensor t = shape_tensor(state->shape, i);
    const ParamEntry* row = &param_table[t.id];
    int is_matrix = param_is_matrix(t.id), is_gpt2 = state->shape->arch == ARCH_GPT2, cols = is_matrix ? t.cols : 1;
    Runs runs = shape_runs(state->shape, is_matrix ? row->rows : row->cols);
    if (is_gpt2) runs = (Runs){1, {is_matrix ? t.rows : t.cols}};
    if (row->rows == VOCABULARY) runs.size[0] = state->shape->V;
    size_t first = 0;
    for (int r = 0; r < runs.n; r++) {
        int transposed = is_gpt2 && hf_names[t.id].gpt2_transposed, rows = runs.size[r];
        Part* p = &parts[r];
        *p = (Part){kind, i, {t, 0, t.elems, 0}, first, transposed, {.n_dims = is_matrix ? 2 : 1}};
        put_name(p->shown.name, state->shape->arch, t.id, r, t.layer);
        p->shown.dtype = kind == STATE_WEIGHTS ? state->dt : DT_F32;
        p->shown.dims[0] = transposed ? cols : rows;
        p->shown.dims[1] = !is_matrix ? 0 : transposed ? rows : cols;
        p->shown.bytes = (size_t)rows * cols * dtype_bytes(p->shown.dtype);
        first += (size_t)rows * cols;
    }
    return runs.n;
}

static int n_owned(const Shape* shape, int with_master) { return (with_master ? 3 : 2) * shape_tensors(shape); }

// Returns the segment that a rank owns of m, v or masters, number k of n_owned; it is empty if the rank owns none.
static Part owned_part(const Shape* shape, int k, int rank) {
    static const StateKind kinds[] = {STATE_M, STATE_V, STATE_MASTER};
    static const char* const prefixes[] = {"m", "v", "master"};
    int kind = k / shape_tensors(shape);
    Part p = {.kind = kinds[kind], .unit = k, .segment = shape_segment(shape, k % shape_tensors(shape), rank)};
    const ParamTensor* t = &p.segment.tensor;
    char layer[24] = "", place[24] = "";
    int is_part = p.segment.n < t->elems, is_matrix = !is_part && param_is_matrix(t->id);
    if (param_is_per_layer(t->id)) snprintf(layer, sizeof layer, "h.%d.", t->layer);
    if (is_part) snprintf(place, sizeof place, "@%zu", p.segment.first);
    p.shown = (SafeTensor){.dtype = DT_F32, .n_dims = is_matrix ? 2 : 1, .bytes = p.segment.n * sizeof(float)};
    snprintf(p.shown.name, NAME, "%s.%s%s%s", prefixes[kind], layer, param_table[t->id].name, place);
    p.shown.dims[0] = is_matrix ? t->rows : (int64_t)p.segment.n;
    p.shown.dims[1] = is_matrix ? t->cols : 0;
    return p;
}

// ---- writing

typedef struct Writer {
    const ModelState* state;
    Part* parts;  // (n) of the file
    int n;
    int staged;  // the unit in the staging buffer, -1: none
    int wrong;   // a value is not finite, as err says
    const char* path;
    char* err;
} Writer;

static void fetch(Writer* w, const Part* part, float* value) {
    const ModelState* s = w->state;
    int is_whole = part->kind == STATE_WEIGHTS || part->kind == STATE_GRADS;
    if (is_whole) s->fetch(s->context, part->kind, &part->segment.tensor, value);
    else s->fetch_owned(s->context, part->kind, &part->segment, value);
    w->staged = part->unit;
}

// Writes elements first .. first + n of tensor i to out as the file has them (SafeTensorFill).
static void fill(void* context, int i, size_t first, size_t n, void* out) {
    Writer* w = context;
    const Part* part = &w->parts[i];
    const SafeImage* image = w->state->image;
    int is_raw = !part->transposed && part->shown.dtype == DT_F32, in_memory = image && image->n;
    if (is_raw && in_memory && n == part->segment.n) {  // one copy is enough
        fetch(w, part, (float*)out);
        return;
    }
    if (w->staged != part->unit) fetch(w, part, w->state->staging);
    const float* value = w->state->staging + part->first;
    size_t rows = (size_t)part->segment.tensor.rows, cols = (size_t)part->segment.tensor.cols;
    if (is_raw) memcpy(out, value + first, n * sizeof *value);
    for (size_t j = 0, at = first; j < n && !is_raw; j++, at++)
        dtype_store(out, j, value[part->transposed ? at % rows * cols + at / rows : at], part->shown.dtype);
    if (in_memory || part->kind == STATE_GRADS || w->wrong) return;
    for (size_t j = 0; j < n && !w->wrong; j++) {
        double x = dtype_load(out, j, part->shown.dtype);
        if (!isfinite(x))
            w->wrong = fail(w->err, "%s: tensor %s: expected finite values, found %g", w->path, part->shown.name, x);
    }
}

static int write_parts(Writer* w, const SafeTensor* extra, int n_extra) {
    SafeTensor* shown = malloc(sizeof *shown * (size_t)(w->n + n_extra + 1));
    if (!shown) return fail(w->err, "%s: no memory for %d tensors", w->path, w->n);
    for (int i = 0; i < w->n; i++) shown[i] = w->parts[i].shown;
    for (int i = 0; i < n_extra; i++) shown[w->n + i] = extra[i];
    int result = safetensors_write(w->path, w->state->image, shown, w->n + n_extra, fill, w, w->err);
    free(shown);
    return result ? result : w->wrong;
}

int hf_write(const ModelState* state, StateKind kind, const SafeTensor* extra, int n_extra, const char* path, Err err) {
    Writer w = {.state = state, .staged = -1, .path = path, .err = err};
    int n = shape_tensors(state->shape), result = 0;
    if (path && !(w.parts = malloc(sizeof(Part) * MOST_RUNS * (size_t)n)))
        result = fail(err, "%s: no memory for %d tensors", path, n);
    for (int i = 0; w.parts && i < n; i++) w.n += parts_of(state, kind, i, w.parts + w.n);
    if (w.parts) result = write_parts(&w, extra, n_extra);
    free(w.parts);
    for (int i = w.staged + 1; i < n; i++) {  // other ranks count on it
        ParamTensor t = shape_tensor(state->shape, i);
        state->fetch(state->context, kind, &t, state->staging);
    }
    return result;
}

void optimizer_name(char name[OPTIMIZER_NAME], int rank, int ranks) {
    snprintf(name, OPTIMIZER_NAME, "optimizer-%05d-of-%05d.safetensors", rank, ranks);
}

static int optimizer_path(char path[DISK_PATH], const char* dir, int rank, int ranks, Err err) {
    char name[OPTIMIZER_NAME];
    optimizer_name(name, rank, ranks);
    return disk_join(path, dir, name, err);
}

int optimizer_write(const ModelState* state, int with_master, const char* dir, Err err) {
    char path[DISK_PATH];
    int most = n_owned(state->shape, with_master);
    Writer w = {.state = state, .staged = -1, .path = path, .err = err};
    if (optimizer_path(path, dir, state->rank, state->shape->shards, err)) return -1;
    w.parts = malloc(sizeof(Part) * (size_t)most);
    if (!w.parts) return fail(err, "%s: no memory for %d tensors", path, most);
    for (int k = 0; k < most; k++) {
        w.parts[w.n] = owned_part(state->shape, k, state->rank);
        w.n += w.parts[w.n].segment.n > 0;
    }
    int result = write_parts(&w, NULL, 0);
    free(w.parts);
    return result;
}

// ---- the files of a directory

// Returns the number of the file of this name, and opens it if it is not open yet; -1 with a message.
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

// Opens the file of a member of weight_map: the name of a tensor, after it that of its file.
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

// Forgets copies of a tensor in files that weight_map does not name for it.
static void drop_copies(HfFiles* files, const char* dir, const JsonValue* key) {
    char tensor[NAME], name[NAME], path[DISK_PATH];
    json_text(key, tensor, NAME), json_text(key + 1, name, NAME), disk_join(path, dir, name, NULL);
    for (SafeTensors* f = files->list; f < files->list + files->n; f++) {
        SafeTensor* t = strcmp(f->path, path) ? (SafeTensor*)safetensors_get(f, tensor) : NULL;
        if (t) memmove(t, t + 1, sizeof *t * (size_t)(f->tensors + f->n-- - t - 1));
    }
}

static int open_members(HfFiles* files, const char* dir, const JsonValue* root, Err err) {
    const JsonValue* map = json_get(root, "weight_map");
    if (!map || map->type != JSON_OBJECT) return fail(err, "%s/" INDEX ": expected an object weight_map", dir);
    for (const JsonValue* key = json_members(map); key; key = json_next(key))
        if (open_member(files, dir, key, err)) return -1;
    for (const JsonValue* key = json_members(map); key && files->n > 1; key = json_next(key))
        drop_copies(files, dir, key);
    int n = files->n;
    if (!disk_is_file(dir, ONE_FILE)) return 0;
    int one = open_file(files, dir, ONE_FILE, err);
    if (one < n) return MIN(one, 0);
    return fail(err, "%s: expected either " ONE_FILE " or files that " INDEX " names, found both; remove the older",
                dir);
}

static int open_by_index(HfFiles* files, const char* dir, Err err) {
    char path[DISK_PATH], why[ERR_BYTES];
    Json json;
    size_t n = 0;
    if (disk_join(path, dir, INDEX, err)) return -1;
    char* text = disk_read_file(path, MOST_INDEX_BYTES, &n, err);
    if (!text) return -1;
    int bad = json_parse(&json, text, n, why);
    int result = bad ? fail(err, "%s: %s", path, why) : open_members(files, dir, json.values, err);
    if (!bad) json_free(&json);
    free(text);
    return result;
}

int hf_has_model(const char* dir) { return disk_is_file(dir, ONE_FILE) || disk_is_file(dir, INDEX); }

int hf_open(HfFiles* out, const char* dir, Err err) {
    *out = (HfFiles){0};
    int failed = disk_is_file(dir, INDEX) ? open_by_index(out, dir, err) : open_file(out, dir, ONE_FILE, err) < 0;
    if (failed) hf_close(out);
    return failed ? -1 : 0;
}

void hf_close(HfFiles* files) {
    for (int i = 0; i < files->n; i++) safetensors_close(&files->list[i]);
    free(files->list);
    *files = (HfFiles){0};
}

// ---- reading

// Returns t if it has the dimensions wanted; else NULL, with a message that says where it was looked for.
static const SafeTensor* check_tensor(const SafeTensor* t, const SafeTensor* wanted, const char* where, Err err) {
    if (t && t->n_dims == wanted->n_dims && !memcmp(t->dims, wanted->dims, sizeof *t->dims * (size_t)t->n_dims))
        return t;
    if (!t) fail(err, "%s: expected a tensor %s, found none; is this another model?", where, wanted->name);
    else
        fail(err,
             "%s: tensor %s: expected shape %lld x %lld in %d dimensions, found %lld x %lld in %d; is this another "
             "model?",
             where, t->name, (long long)wanted->dims[0], (long long)wanted->dims[1], wanted->n_dims,
             (long long)t->dims[0], (long long)t->dims[1], t->n_dims);
    return NULL;
}

// The place of a tensor of the model in files.
typedef struct Found {
    const SafeTensors* file;
    const SafeTensor* tensor;
} Found;

// Finds the tensor that `wanted` describes, under its name or without its prefix.
static int find_tensor(const HfFiles* files, const SafeTensor* wanted, Found* found, const char* dir, Err err) {
    const char* names[] = {wanted->name, strchr(wanted->name, '.') + 1};
    int has_prefix = !strncmp(names[0], "transformer.", 12) || !strncmp(names[0], "model.", 6);
    for (int i = 0; i < (1 + has_prefix) * files->n && !found->tensor; i++) {
        found->file = &files->list[i % files->n];
        found->tensor = safetensors_get(found->file, names[i / files->n]);
    }
    return check_tensor(found->tensor, wanted, found->tensor ? found->file->path : dir, err) ? 0 : -1;
}

// Finds the tensors that the i-th of ours is: found[MOST_RUNS].
static int find_parts(const ModelState* state, int i, const HfFiles* files, Found* found, const char* dir, Err err) {
    Part parts[MOST_RUNS];
    int n = parts_of(state, STATE_WEIGHTS, i, parts);
    for (int p = 0; p < n; p++)
        if (find_tensor(files, &parts[p].shown, &found[p], dir, err)) return -1;
    return 0;
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

static int read_tensor(const ModelState* state, int with_master, int i, const Found* found, Err err) {
    Segment own = shape_segment(state->shape, i, state->rank);
    Part parts[MOST_RUNS];
    int n = parts_of(state, STATE_WEIGHTS, i, parts);
    memset(state->staging, 0, own.tensor.elems * sizeof *state->staging);  // the padding rows of a vocabulary
    for (int p = 0; p < n; p++)
        if (load(found[p].file, found[p].tensor, parts[p].transposed, state->staging + parts[p].first, err)) return -1;
    // Masters first: putting weights may overwrite the staging buffer.
    if (with_master && own.n) state->put_owned(state->context, STATE_MASTER, &own, state->staging + own.first);
    state->put_weights(state->context, &own.tensor, state->staging);
    return 0;
}

// Returns whether a tensor follows from config.json: older exports hold masks or rotary frequencies beside weights.
static int is_derived(const ModelState* state, const char* name) {
    static const char* const endings[] = {".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq"};
    int is_gpt2 = state->shape->arch == ARCH_GPT2;
    for (int i = is_gpt2 ? 0 : 2; i < (is_gpt2 ? 2 : 3); i++) {
        size_t n = strlen(name), ending = strlen(endings[i]);
        if (n >= ending && !strcmp(name + n - ending, endings[i])) return 1;
    }
    return 0;
}

// Returns 1 if t is a head with the values of the embedding, 0 if it is not, -1 with a message.
static int is_tied_head(const ModelState* state, const Found* embedding, const SafeTensors* file, const SafeTensor* t,
                        Err err) {
    enum { PIECE = 1 << 13 };
    float head[PIECE], tied[PIECE];
    if (shape_has(state->shape, HAS_HEAD) || strcmp(t->name, hf_names[HEADW].gpt2)) return 0;
    size_t n = t->bytes / dtype_bytes(t->dtype);
    if (!check_tensor(t, embedding->tensor, file->path, err)) return -1;
    for (size_t first = 0; first < n; first += PIECE) {
        size_t count = MIN(n - first, (size_t)PIECE);
        if (safetensors_floats(file, t, first, count, head, err) ||
            safetensors_floats(embedding->file, embedding->tensor, first, count, tied, err))
            return -1;
        if (memcmp(head, tied, count * sizeof *head) != 0) return 0;
    }
    return 1;
}

// Checks that every tensor of the files has a place in the model (found[n]), or follows from others.
static int check_rest(const ModelState* state, const HfFiles* files, const Found* found, int n, Err err) {
    const SafeTensors* where = NULL;
    const char* name = NULL;
    int more = 0;
    for (const SafeTensors* f = files->list; f < files->list + files->n; f++)
        for (const SafeTensor* t = f->tensors; t < f->tensors + f->n; t++) {
            int is_known = is_derived(state, t->name);
            for (int i = 0; i < n && !is_known; i++) is_known = found[i].tensor == t;
            if (!is_known) is_known = is_tied_head(state, found, f, t, err);
            if (is_known < 0) return -1;
            if (!is_known && !more++) where = f, name = t->name;
        }
    if (!more) return 0;
    if (state->shape->lora.is_all)
        return fail(err, "%s: expected tensors of " ADAPTER_CONFIG " alone, found %d without a place in it, %s first",
                    where->path, more, name);
    return fail(err,
                "%s: expected tensors of the %s of config.json alone (%d layers, %s head), found %d without a place in "
                "it, %s first; is config.json (model_type, layers, tie_word_embeddings) this model's?",
                where->path, arch_table[state->shape->arch].title, state->shape->L,
                shape_has(state->shape, HAS_HEAD) ? "own" : "tied", more, name);
}

// Checks, before anything is read, that files and model have the same tensors.
int hf_read(const ModelState* state, int with_master, const char* dir, Err err) {
    HfFiles files = {0};
    if (state->shape->lora.is_all ? open_file(&files, dir, ADAPTER_FILE, err) < 0 : hf_open(&files, dir, err))
        return -1;
    int n = shape_tensors(state->shape);
    Found* found = calloc((size_t)n * MOST_RUNS, sizeof *found);
    int result = found ? 0 : fail(err, "%s: no memory for a list of %d tensors", dir, n);
    for (int i = 0; i < n && !result; i++) result = find_parts(state, i, &files, found + i * MOST_RUNS, dir, err);
    if (!result) result = check_rest(state, &files, found, n * MOST_RUNS, err);
    for (int i = 0; i < n && !result; i++) result = read_tensor(state, with_master, i, found + i * MOST_RUNS, err);
    free(found);
    hf_close(&files);
    return result;
}

// Reads the elements of number k of n_owned that rank f wrote and state->rank owns; without `values` only finds them.
static int take_part(const ModelState* state, const Shape* shape, const SafeTensors* file, int k, int f,
                     const char* dir, int values, Err err) {
    char path[DISK_PATH];
    Part part = owned_part(shape, k, f);
    const Segment *from = &part.segment,
                  own = shape_segment(state->shape, k % shape_tensors(state->shape), state->rank);
    if (from->n == 0) return 0;
    if (optimizer_path(path, dir, f, shape->shards, err)) return -1;
    const SafeTensor* t = check_tensor(safetensors_get(file, part.shown.name), &part.shown, path, err);
    size_t low = MAX(own.first, from->first), high = MIN(own.first + own.n, from->first + from->n);
    if (!t || !values || low >= high) return t ? 0 : -1;
    return safetensors_floats(file, t, low - from->first, high - low, state->staging + (low - own.first), err);
}

int optimizer_take(const ModelState* state, int with_master, const SafeTensors* files, int n_files, const char* dir,
                   Err err) {
    Shape shape = *state->shape;  // as the ranks that wrote it divided it
    shape.shards = n_files;
    for (int values = 0; values < 2; values++)  // all are found first: files of another model must change nothing
        for (int k = 0; k < n_owned(&shape, with_master); k++) {
            for (int f = 0; f < n_files; f++)
                if (take_part(state, &shape, &files[f], k, f, dir, values, err)) return -1;
            Part own = owned_part(state->shape, k, state->rank);
            if (values && own.segment.n) state->put_owned(state->context, own.kind, &own.segment, state->staging);
        }
    return 0;
}

int optimizer_read(const ModelState* state, int with_master, int ranks, const char* dir, Err err) {
    char path[DISK_PATH];
    int opened = 0, result = 0;
    SafeTensors* files = malloc(sizeof *files * (size_t)MAX(ranks, 1));
    if (!files || ranks < 1) result = fail(err, "%s: expected files of one rank or more, found %d", dir, ranks);
    for (; opened < ranks && !result; opened += !result)
        result = optimizer_path(path, dir, opened, ranks, err) || safetensors_open(&files[opened], path, err);
    result = result ? -1 : optimizer_take(state, with_master, files, ranks, dir, err);
    for (int i = 0; i < opened; i++) safetensors_close(&files[i]);
    free(files);
    return result;
}
