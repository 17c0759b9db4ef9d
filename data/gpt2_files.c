// gpt2_files.c - Hugging Face's names, layouts and config.json; see gpt2_files.h.
#include "data/gpt2_files.h"

#include <stdio.h>
#include <stdlib.h>

#include "data/json.h"

// ---- writing

// The file being written: which tensors, and whose values the staging buffer holds.
typedef struct Writer {
    const ModelState* state;
    StateKind kinds[3];       // the kinds written one after another, each with all tensors
    int hugging_face;         // names and layouts of GPT2LMHeadModel rather than ours
    int staged;               // index of the tensor in staging, -1: none
    const SafeTensor* extra;  // tensors of the caller's behind the model's
    int n_model, n_extra;
} Writer;

static const char* kind_prefix(StateKind kind) { return kind == STATE_M ? "m" : kind == STATE_V ? "v" : "master"; }

static ParamTensor tensor_of(const Writer* w, int i, StateKind* kind) {
    int n = shape_tensors(w->state->shape);
    *kind = w->kinds[i / n];
    return shape_tensor(w->state->shape, i % n);
}

static int is_transposed(const Writer* w, const ParamTensor* t) {
    return w->hugging_face && param_table[t->id].hf_transposed;
}

// Elements first .. first + n of tensor i as the file has them.
static void fill(void* context, int i, size_t first, size_t n, void* out) {
    Writer* w = (Writer*)context;
    StateKind kind;
    if (i >= w->n_model) {
        const SafeTensor* t = &w->extra[i - w->n_model];
        memcpy(out, (const char*)t->data + first * dtype_bytes(t->dtype), n * dtype_bytes(t->dtype));
        return;
    }
    ParamTensor t = tensor_of(w, i, &kind);
    const float* value = w->state->staging;
    if (w->staged != i) w->state->fetch(w->state->context, kind, &t, w->state->staging);
    w->staged = i;
    int transposed = is_transposed(w, &t), narrow = kind == STATE_WEIGHTS && w->state->dt == DT_BF16;
    for (size_t j = 0; j < n; j++) {
        size_t at = first + j;
        float x = value[transposed ? at % t.rows * t.cols + at / t.rows : at];
        if (narrow) ((bf16*)out)[j] = bf16_from_float(x);
        else ((float*)out)[j] = x;
    }
}

static void describe(const Writer* w, int i, SafeTensor* out) {
    StateKind kind;
    ParamTensor t = tensor_of(w, i, &kind);
    const ParamRow* row = &param_table[t.id];
    memset(out, 0, sizeof *out);
    if (w->hugging_face) shape_hf_name(&t, out->name, sizeof out->name);
    else if (row->per_layer) snprintf(out->name, sizeof out->name, "%s.h.%d.%s", kind_prefix(kind), t.layer, row->name);
    else snprintf(out->name, sizeof out->name, "%s.%s", kind_prefix(kind), row->name);
    out->dtype = kind == STATE_WEIGHTS ? w->state->dt : DT_F32;
    int rows = t.id == WTE && w->hugging_face ? w->state->shape->V : t.rows;
    int is_matrix = t.rows > 1 || t.id == WTE || t.id == WPE;
    out->n_dims = is_matrix ? 2 : 1;
    out->dims[0] = is_matrix ? (is_transposed(w, &t) ? t.cols : rows) : t.cols;
    out->dims[1] = is_matrix ? (is_transposed(w, &t) ? rows : t.cols) : 0;
    out->bytes = (size_t)rows * t.cols * dtype_bytes(out->dtype);
}

static int write_kinds(Writer* w, int n_kinds, const char* path, char* err, size_t errlen) {
    w->n_model = n_kinds * shape_tensors(w->state->shape);
    int n = w->n_model + w->n_extra;
    SafeTensor* tensors = (SafeTensor*)malloc(sizeof(SafeTensor) * (size_t)n);
    if (!tensors) return fail(err, errlen, "%s: no memory for a list of %d tensors", path, n);
    for (int i = 0; i < w->n_model; i++) describe(w, i, &tensors[i]);
    for (int i = 0; i < w->n_extra; i++) tensors[w->n_model + i] = w->extra[i];
    int result = safetensors_write(path, tensors, n, fill, w, err, errlen);
    free(tensors);
    return result;
}

int gpt2_write(const ModelState* state, StateKind kind, const SafeTensor* extra, int n_extra, const char* path,
               char* err, size_t errlen) {
    Writer w = {.state = state, .kinds = {kind}, .hugging_face = 1, .staged = -1, .extra = extra, .n_extra = n_extra};
    return write_kinds(&w, 1, path, err, errlen);
}

int gpt2_write_optimizer(const ModelState* state, int with_master, const char* path, char* err, size_t errlen) {
    Writer w = {.state = state, .kinds = {STATE_M, STATE_V, STATE_MASTER}, .staged = -1};
    return write_kinds(&w, with_master ? 3 : 2, path, err, errlen);
}

// ---- reading

static float element(const SafeTensor* t, size_t i) {
    if (t->dtype == DT_BF16) {
        bf16 half;
        memcpy(&half, (const char*)t->data + 2 * i, sizeof half);
        return bf16_to_float(half);
    }
    if (t->dtype == DT_F64) {
        double wide;
        memcpy(&wide, (const char*)t->data + 8 * i, sizeof wide);
        return (float)wide;
    }
    float x;
    memcpy(&x, (const char*)t->data + 4 * i, sizeof x);
    return x;
}

// The tensor that `wanted` describes, under its name or without "transformer.", with the dimensions wanted.
static const SafeTensor* find_tensor(const SafeTensors* file, const SafeTensor* wanted, const char* path, char* err,
                                     size_t errlen) {
    const char prefix[] = "transformer.";
    size_t skip = strncmp(wanted->name, prefix, sizeof prefix - 1) ? 0 : sizeof prefix - 1;
    const SafeTensor* found = safetensors_get(file, wanted->name);
    if (!found && skip) found = safetensors_get(file, wanted->name + skip);
    if (!found) {
        fail(err, errlen, "%s: expected a tensor %s, found none; is this another model?", path, wanted->name);
        return NULL;
    }
    if (found->n_dims == wanted->n_dims && found->dims[0] == wanted->dims[0] &&
        (found->n_dims < 2 || found->dims[1] == wanted->dims[1]))
        return found;
    fail(err, errlen, "%s: tensor %s: expected shape %lld x %lld, found %lld x %lld in %d dimensions", path,
         wanted->name, (long long)wanted->dims[0], (long long)wanted->dims[1], (long long)found->dims[0],
         (long long)found->dims[1], found->n_dims);
    return NULL;
}

static void load(const Writer* w, const ParamTensor* t, const SafeTensor* from) {
    size_t n = 1;
    for (int d = 0; d < from->n_dims; d++) n *= (size_t)from->dims[d];
    memset(w->state->staging, 0, t->elems * sizeof(float));  // the padding rows of wte
    for (size_t i = 0; i < n; i++)
        w->state->staging[is_transposed(w, t) ? i % t->rows * t->cols + i / t->rows : i] = element(from, i);
}

int gpt2_read(const ModelState* state, int with_master, const char* path, char* err, size_t errlen) {
    SafeTensors file;
    Writer w = {.state = state, .kinds = {STATE_WEIGHTS}, .hugging_face = 1, .staged = -1};
    if (safetensors_open(&file, path, err, errlen)) return -1;
    int result = 0;
    for (int i = 0; i < shape_tensors(state->shape) && result == 0; i++) {
        ParamTensor t = shape_tensor(state->shape, i);
        SafeTensor wanted;
        describe(&w, i, &wanted);
        const SafeTensor* from = find_tensor(&file, &wanted, path, err, errlen);
        if (!from) result = -1;
        for (int master = with_master; master >= 0 && from; master--) {
            load(&w, &t, from);
            state->put(state->context, master ? STATE_MASTER : STATE_WEIGHTS, &t, state->staging);
        }
    }
    safetensors_close(&file);
    return result;
}

int gpt2_read_optimizer(const ModelState* state, int with_master, const char* path, char* err, size_t errlen) {
    SafeTensors file;
    Writer w = {.state = state, .kinds = {STATE_M, STATE_V, STATE_MASTER}, .staged = -1};
    if (safetensors_open(&file, path, err, errlen)) return -1;
    int result = 0;
    for (int i = 0; i < (with_master ? 3 : 2) * shape_tensors(state->shape) && result == 0; i++) {
        StateKind kind;
        ParamTensor t = tensor_of(&w, i, &kind);
        SafeTensor wanted;
        describe(&w, i, &wanted);
        const SafeTensor* from = find_tensor(&file, &wanted, path, err, errlen);
        if (!from) result = -1;
        else load(&w, &t, from), state->put(state->context, kind, &t, state->staging);
    }
    safetensors_close(&file);
    return result;
}

// ---- config.json

size_t gpt2_config_text(const Shape* shape, DType dt, int end_of_text, char* text, size_t bytes) {
    int n = snprintf(
        text, bytes,
        "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n"
        "  \"activation_function\": \"gelu_new\",\n  \"n_layer\": %d,\n  \"n_embd\": %d,\n  \"n_head\": %d,\n"
        "  \"n_inner\": null,\n  \"vocab_size\": %d,\n  \"n_positions\": %d,\n  \"n_ctx\": %d,\n"
        "  \"layer_norm_epsilon\": 1e-05,\n  \"scale_attn_weights\": true,\n  \"scale_attn_by_inverse_layer_idx\": "
        "false,\n"
        "  \"reorder_and_upcast_attn\": false,\n  \"tie_word_embeddings\": true,\n"
        "  \"attn_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n  \"resid_pdrop\": 0.0,\n  \"initializer_range\": 0.02,\n"
        "  \"bos_token_id\": %d,\n  \"eos_token_id\": %d,\n  \"torch_dtype\": \"%s\"\n}\n",
        shape->L, shape->C, shape->NH, shape->V, shape->context, shape->context, end_of_text, end_of_text,
        dt == DT_BF16 ? "bfloat16" : "float32");
    return (size_t)n;
}

static int dimension(const Json* json, const char* name, int64_t most, int* out, char* err, size_t errlen) {
    int64_t x = 0;
    if (json_int64(json_get(json, json->values, name), &x) || x < 1 || x > most)
        return fail(err, errlen, "config.json: expected %s from 1 to %lld, found %s", name, (long long)most,
                    json_get(json, json->values, name) ? "another value" : "none");
    *out = (int)x;
    return 0;
}

// Values that change what is computed: absent or exactly this one.
static int expect(const Json* json, const char* name, const char* wanted, char* err, size_t errlen) {
    const JsonValue* v = json_get(json, json->values, name);
    if (!v || v->type == JSON_NULL || (v->length == strlen(wanted) && !memcmp(v->text, wanted, v->length))) return 0;
    return fail(err, errlen, "config.json: expected %s %s, found %.*s; this trainer computes plain GPT-2", name, wanted,
                (int)MIN(v->length, (size_t)60), v->text);
}

static int parse_shape(Shape* shape, const Json* json, char* err, size_t errlen) {
    int L = 0, C = 0, NH = 0, V = 0, context = 0, inner = 0;
    double epsilon = 1e-5;
    if (json->values->type != JSON_OBJECT) return fail(err, errlen, "config.json: expected an object");
    if (expect(json, "model_type", "gpt2", err, errlen) ||
        expect(json, "activation_function", "gelu_new", err, errlen) ||
        expect(json, "scale_attn_weights", "true", err, errlen) ||
        expect(json, "scale_attn_by_inverse_layer_idx", "false", err, errlen) ||
        expect(json, "add_cross_attention", "false", err, errlen) ||
        expect(json, "tie_word_embeddings", "true", err, errlen) || dimension(json, "n_layer", 1000, &L, err, errlen) ||
        dimension(json, "n_embd", 65536, &C, err, errlen) || dimension(json, "n_head", 1024, &NH, err, errlen) ||
        dimension(json, "vocab_size", 1 << 20, &V, err, errlen) ||
        dimension(json, "n_positions", 1 << 20, &context, err, errlen))
        return -1;
    const JsonValue* n_inner = json_get(json, json->values, "n_inner");
    if (n_inner && n_inner->type != JSON_NULL &&
        (dimension(json, "n_inner", 1 << 20, &inner, err, errlen) || inner != 4 * C))
        return fail(err, errlen, "config.json: expected n_inner of 4 * n_embd = %d, found %d", 4 * C, inner);
    if (C % NH) return fail(err, errlen, "config.json: n_embd %d is not a multiple of n_head %d", C, NH);
    json_double(json_get(json, json->values, "layer_norm_epsilon"), &epsilon);
    if (epsilon != 1e-5) return fail(err, errlen, "config.json: expected layer_norm_epsilon 1e-05, found %g", epsilon);
    *shape = shape_make(L, C, NH, V, context);
    return 0;
}

int gpt2_config_parse(Shape* shape, const char* text, size_t n, char* err, size_t errlen) {
    Json json;
    char why[ERR_BYTES];
    if (json_parse(&json, text, n, why, sizeof why)) return fail(err, errlen, "config.json: %s", why);
    int result = parse_shape(shape, &json, err, errlen);
    json_free(&json);
    return result;
}
