// hf_files.c - Hugging Face's names, layouts and config.json; see hf_files.h.
#include "data/hf_files.h"

#include <stdio.h>
#include <stdlib.h>

#include "data/json.h"

int hf_is_matrix(const ParamTensor* tensor) { return tensor->rows > 1 || tensor->id == WTE || tensor->id == WPE; }

static int is_transposed(const ParamTensor* t) { return param_table[t->id].gpt2_transposed; }

static void hf_name(const ParamTensor* t, char* name, size_t bytes) {
    const char *pattern = param_table[t->id].gpt2, *number = strstr(pattern, "%d");
    if (!number) snprintf(name, bytes, "%s", pattern);
    else snprintf(name, bytes, "%.*s%d%s", (int)(number - pattern), pattern, t->layer, number + 2);
}

// The i-th tensor as the file shows it.
static SafeTensor describe(const ModelState* state, StateKind kind, int i) {
    ParamTensor t = shape_tensor(state->shape, i);
    SafeTensor shown;
    memset(&shown, 0, sizeof shown);
    hf_name(&t, shown.name, sizeof shown.name);
    shown.dtype = kind == STATE_WEIGHTS ? state->dt : DT_F32;
    int rows = t.id == WTE ? state->shape->V : t.rows, is_matrix = hf_is_matrix(&t);
    shown.n_dims = is_matrix ? 2 : 1;
    shown.dims[0] = is_matrix ? (is_transposed(&t) ? t.cols : rows) : t.cols;
    shown.dims[1] = is_matrix ? (is_transposed(&t) ? rows : t.cols) : 0;
    shown.bytes = (size_t)rows * t.cols * dtype_bytes(shown.dtype);
    return shown;
}

// ---- writing

// The file being written, and whose values the staging buffer holds.
typedef struct Writer {
    const ModelState* state;
    StateKind kind;
    int staged;               // index of the tensor in staging, -1: none
    const SafeTensor* extra;  // tensors of the caller's behind the model's
    int n_model, n_extra;
    SafeTensor wrong;  // the first tensor that holds a value that is not finite; no name: none does
    float value;       // this one
} Writer;

static void stage(Writer* w, int i) {
    ParamTensor t = shape_tensor(w->state->shape, i);
    w->state->fetch(w->state->context, w->kind, &t, w->state->staging);
    w->staged = i;
    if (w->kind != STATE_WEIGHTS || w->wrong.name[0]) return;
    size_t wrong = first_not_finite(w->state->staging, t.elems);
    if (wrong == t.elems) return;
    w->wrong = describe(w->state, w->kind, i);
    w->value = w->state->staging[wrong];
}

// Elements first .. first + n of tensor i as the file has them.
static void fill(void* context, int i, size_t first, size_t n, void* out) {
    Writer* w = (Writer*)context;
    if (i >= w->n_model) {
        const SafeTensor* t = &w->extra[i - w->n_model];
        memcpy(out, (const char*)t->data + first * dtype_bytes(t->dtype), n * dtype_bytes(t->dtype));
        return;
    }
    if (w->staged != i) stage(w, i);
    ParamTensor t = shape_tensor(w->state->shape, i);
    const float* value = w->state->staging;
    int transposed = is_transposed(&t), narrow = w->kind == STATE_WEIGHTS && w->state->dt == DT_BF16;
    for (size_t j = 0; j < n; j++) {
        size_t at = first + j;
        float x = value[transposed ? at % t.rows * t.cols + at / t.rows : at];
        if (narrow) ((bf16*)out)[j] = bf16_from_float(x);
        else ((float*)out)[j] = x;
    }
}

static int write_model(Writer* w, const char* path, char* err, size_t errlen) {
    int n = w->n_model + w->n_extra;
    SafeTensor* tensors = (SafeTensor*)malloc(sizeof(SafeTensor) * (size_t)n);
    if (!tensors) return fail(err, errlen, "%s: no memory for a list of %d tensors", path, n);
    for (int i = 0; i < w->n_model; i++) tensors[i] = describe(w->state, w->kind, i);
    for (int i = 0; i < w->n_extra; i++) tensors[w->n_model + i] = w->extra[i];
    int result = safetensors_write(path, tensors, n, fill, w, err, errlen);
    free(tensors);
    if (!result && w->wrong.name[0])
        result = fail(err, errlen, "%s: tensor %s: expected finite weights, found %g", path, w->wrong.name,
                      (double)w->value);
    return result;
}

int hf_write(const ModelState* state, StateKind kind, const SafeTensor* extra, int n_extra, const char* path,
               char* err, size_t errlen) {
    Writer w = {state, kind, -1, extra, shape_tensors(state->shape), n_extra, {.n_dims = 0}, 0};
    int result = path ? write_model(&w, path, err, errlen) : 0;
    while (w.staged < w.n_model - 1) stage(&w, w.staged + 1);  // other ranks count on it
    return result;
}

// ---- reading

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

// A tensor of the file in our layout.
static int load(const ParamTensor* t, const SafeTensors* file, const SafeTensor* from, float* value, char* err,
                size_t errlen) {
    enum { PIECE = 1 << 14 };
    float piece[PIECE];
    size_t n = from->bytes / dtype_bytes(from->dtype);
    memset(value + n, 0, (t->elems - n) * sizeof *value);  // the padding rows of wte
    if (!is_transposed(t)) return safetensors_floats(file, from, 0, n, value, err, errlen);
    for (size_t first = 0; first < n; first += PIECE) {
        size_t count = MIN(n - first, (size_t)PIECE);
        if (safetensors_floats(file, from, first, count, piece, err, errlen)) return -1;
        for (size_t i = first; i < first + count; i++) value[i % t->rows * t->cols + i / t->rows] = piece[i - first];
    }
    return 0;
}

static int read_tensor(const ModelState* state, int with_master, int i, const SafeTensors* file, const char* path,
                       char* err, size_t errlen) {
    Segment own = shape_segment(state->shape, i, state->rank);
    SafeTensor wanted = describe(state, STATE_WEIGHTS, i);
    const SafeTensor* from = find_tensor(file, &wanted, path, err, errlen);
    if (!from || load(&own.tensor, file, from, state->staging, err, errlen)) return -1;
    // Masters first: putting weights may overwrite the staging buffer.
    if (with_master && own.n) state->put_owned(state->context, STATE_MASTER, &own, state->staging + own.first);
    state->put_weights(state->context, &own.tensor, state->staging);
    return 0;
}

int hf_read(const ModelState* state, int with_master, const char* path, char* err, size_t errlen) {
    SafeTensors file;
    if (safetensors_open(&file, path, err, errlen)) return -1;
    int result = 0;
    for (int i = 0; i < shape_tensors(state->shape) && !result; i++)
        result = read_tensor(state, with_master, i, &file, path, err, errlen);
    safetensors_close(&file);
    return result;
}

// ---- config.json

size_t hf_config_text(const Shape* shape, DType dt, int end_of_text, char* text, size_t bytes) {
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
    static const char* const fixed[][2] = {
        {"model_type", "gpt2"},           {"activation_function", "gelu_new"},
        {"scale_attn_weights", "true"},   {"scale_attn_by_inverse_layer_idx", "false"},
        {"add_cross_attention", "false"}, {"tie_word_embeddings", "true"},
    };
    int L = 0, C = 0, NH = 0, V = 0, context = 0, inner = 0;
    double epsilon = 1e-5;
    if (json->values->type != JSON_OBJECT) return fail(err, errlen, "config.json: expected an object");
    for (int i = 0; i < COUNT(fixed); i++)
        if (expect(json, fixed[i][0], fixed[i][1], err, errlen)) return -1;
    if (dimension(json, "n_layer", 1000, &L, err, errlen) || dimension(json, "n_embd", 65536, &C, err, errlen) ||
        dimension(json, "n_head", 1024, &NH, err, errlen) || dimension(json, "vocab_size", 1 << 20, &V, err, errlen) ||
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

int hf_config_parse(Shape* shape, const char* text, size_t n, char* err, size_t errlen) {
    Json json;
    char why[ERR_BYTES];
    if (json_parse(&json, text, n, why, sizeof why)) return fail(err, errlen, "config.json: %s", why);
    int result = parse_shape(shape, &json, err, errlen);
    json_free(&json);
    return result;
}
