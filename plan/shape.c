// shape.c - the tables of shape.h and the arithmetic on them.
#include "plan/shape.h"

#include <math.h>
#include <stdio.h>

enum { ALIGN_ELEMS = 64, ALIGN_BYTES = 64, VOCAB_MULTIPLE = 64 };

Shape shape_make(int layers, int width, int heads, int vocab, int context) {
    Shape shape = {.L = layers, .C = width, .NH = heads, .V = vocab, .context = context, .shards = 1};
    shape.Vp = shape.vocab_rows = ROUND_UP(vocab, VOCAB_MULTIPLE);
    shape.heads = heads;
    shape.hidden = 4 * width;
    return shape;
}

// ---- parameters

// clang-format off
const ParamRow param_table[N_PARAMS] = {
    //             name        Hugging Face                per layer, transposed, init,   decay, shard axis
    [WTE]      = {"wte",      "transformer.wte.weight",             0, 0, INIT_NORMAL,   1,  0},
    [WPE]      = {"wpe",      "transformer.wpe.weight",             0, 0, INIT_NORMAL,   1, -1},
    [LN1W]     = {"ln1w",     "transformer.h.%d.ln_1.weight",       1, 0, INIT_ONE,      0, -1},
    [LN1B]     = {"ln1b",     "transformer.h.%d.ln_1.bias",         1, 0, INIT_ZERO,     0, -1},
    [QKVW]     = {"qkvw",     "transformer.h.%d.attn.c_attn.weight", 1, 1, INIT_NORMAL,  1,  0},
    [QKVB]     = {"qkvb",     "transformer.h.%d.attn.c_attn.bias",  1, 0, INIT_ZERO,     0,  0},
    [ATTPROJW] = {"attprojw", "transformer.h.%d.attn.c_proj.weight", 1, 1, INIT_RESIDUAL, 1, 1},
    [ATTPROJB] = {"attprojb", "transformer.h.%d.attn.c_proj.bias",  1, 0, INIT_ZERO,     0, -1},
    [LN2W]     = {"ln2w",     "transformer.h.%d.ln_2.weight",       1, 0, INIT_ONE,      0, -1},
    [LN2B]     = {"ln2b",     "transformer.h.%d.ln_2.bias",         1, 0, INIT_ZERO,     0, -1},
    [FCW]      = {"fcw",      "transformer.h.%d.mlp.c_fc.weight",   1, 1, INIT_NORMAL,   1,  0},
    [FCB]      = {"fcb",      "transformer.h.%d.mlp.c_fc.bias",     1, 0, INIT_ZERO,     0,  0},
    [FCPROJW]  = {"fcprojw",  "transformer.h.%d.mlp.c_proj.weight", 1, 1, INIT_RESIDUAL, 1,  1},
    [FCPROJB]  = {"fcprojb",  "transformer.h.%d.mlp.c_proj.bias",   1, 0, INIT_ZERO,     0, -1},
    [LNFW]     = {"lnfw",     "transformer.ln_f.weight",            0, 0, INIT_ONE,      0, -1},
    [LNFB]     = {"lnfb",     "transformer.ln_f.bias",              0, 0, INIT_ZERO,     0, -1},
};
// clang-format on

static void param_dims(const Shape* shape, ParamId id, int* rows, int* cols) {
    int C = shape->C, own = shape->heads * shape_head_size(shape), hidden = shape->hidden;
    *rows = 1;
    *cols = C;
    switch (id) {
        case WTE: *rows = shape->vocab_rows; break;
        case WPE: *rows = shape->context; break;
        case QKVW: *rows = 3 * own; break;
        case QKVB: *cols = 3 * own; break;
        case ATTPROJW: *rows = C, *cols = own; break;
        case FCW: *rows = hidden; break;
        case FCB: *cols = hidden; break;
        case FCPROJW: *rows = C, *cols = hidden; break;
        default: break;
    }
}

static size_t padded_elems(const Shape* shape, ParamId id) {
    int rows, cols;
    param_dims(shape, id, &rows, &cols);
    return ROUND_UP((size_t)rows * cols, (size_t)ALIGN_ELEMS);
}

// A bucket's tensors are param_table's rows [first, end): those before the layers, those of a layer, those after them.
typedef struct BucketRows {
    int first, end;
} BucketRows;

static BucketRows bucket_rows(const Shape* shape, int b) {
    if (b == 0) return (BucketRows){0, LN1W};
    return b <= shape->L ? (BucketRows){LN1W, LNFW} : (BucketRows){LNFW, N_PARAMS};
}

static size_t bucket_elems(const Shape* shape, int b) {
    BucketRows rows = bucket_rows(shape, b);
    size_t elems = 0;
    for (int i = rows.first; i < rows.end; i++) elems += padded_elems(shape, (ParamId)i);
    return ROUND_UP(elems, (size_t)ALIGN_ELEMS * (size_t)shape->shards);
}

int shape_buckets(const Shape* shape) { return shape->L + 2; }

Bucket shape_bucket(const Shape* shape, int b) {
    Bucket bucket = {0, bucket_elems(shape, b)};
    if (b > 0) bucket.offset = bucket_elems(shape, 0) + (size_t)(b - 1) * bucket_elems(shape, 1);
    return bucket;
}

int shape_bucket_of(const ParamTensor* tensor, const Shape* shape) {
    return tensor->id < LN1W ? 0 : tensor->id < LNFW ? 1 + tensor->layer : shape->L + 1;
}

ParamTensor shape_param(const Shape* shape, ParamId id, int layer) {
    ParamTensor t = {.id = id, .layer = layer};
    param_dims(shape, id, &t.rows, &t.cols);
    t.elems = (size_t)t.rows * t.cols;
    int b = shape_bucket_of(&t, shape);
    t.offset = shape_bucket(shape, b).offset;
    for (int i = bucket_rows(shape, b).first; i < (int)id; i++) t.offset += padded_elems(shape, (ParamId)i);
    return t;
}

Segment shape_segment(const Shape* shape, int i, int rank) {
    Segment segment = {.tensor = shape_tensor(shape, i)};
    const ParamTensor* t = &segment.tensor;
    Bucket bucket = shape_bucket(shape, shape_bucket_of(t, shape));
    size_t piece = bucket.elems / (size_t)shape->shards, begin = bucket.offset + piece * (size_t)rank;
    size_t low = MAX(begin, t->offset), high = MIN(begin + piece, t->offset + t->elems);
    if (low >= high) return segment;
    segment.first = low - t->offset;
    segment.n = high - low;
    segment.at = bucket.offset / (size_t)shape->shards + (low - begin);
    return segment;
}

int shape_tensors(const Shape* shape) { return 2 + (LNFW - LN1W) * shape->L + 2; }

ParamTensor shape_tensor(const Shape* shape, int i) {
    int per_layer = LNFW - LN1W, blocks = per_layer * shape->L;
    if (i < LN1W) return shape_param(shape, (ParamId)i, 0);
    if (i - LN1W < blocks) return shape_param(shape, (ParamId)(LN1W + (i - LN1W) % per_layer), (i - LN1W) / per_layer);
    return shape_param(shape, (ParamId)(LNFW + (i - LN1W - blocks)), 0);
}

int shape_index(const Shape* shape, const ParamTensor* t) {
    int per_layer = LNFW - LN1W;
    if (t->id < LN1W) return (int)t->id;
    return t->id < LNFW ? (int)t->id + t->layer * per_layer : (int)t->id - per_layer + shape->L * per_layer;
}

size_t shape_param_elems(const Shape* shape) {
    Bucket last = shape_bucket(shape, shape_buckets(shape) - 1);
    return last.offset + last.elems;
}

size_t shape_param_count(const Shape* shape) {
    size_t count = 0;
    for (int i = 0; i < shape_tensors(shape); i++) count += shape_tensor(shape, i).elems;
    return count - (size_t)(shape->Vp - shape->V) * shape->C;
}

void shape_hf_name(const ParamTensor* tensor, char* name, size_t bytes) {
    const char *pattern = param_table[tensor->id].hf_name, *number = strstr(pattern, "%d");
    if (!number) snprintf(name, bytes, "%s", pattern);
    else snprintf(name, bytes, "%.*s%d%s", (int)(number - pattern), pattern, tensor->layer, number + 2);
}

void shape_init_param(const Shape* shape, const ParamTensor* tensor, uint64_t seed, size_t first, size_t n,
                      float* value) {
    Init init = param_table[tensor->id].init;
    double std = 0.02 * MAX(1, sqrt(768.0 / shape->C));
    if (init == INIT_RESIDUAL) std /= sqrt(2.0 * shape->L);
    uint64_t tensor_seed = hash64(hash64(seed) ^ ((uint64_t)tensor->id << 32 | (uint64_t)tensor->layer));
    size_t used = tensor->id == WTE ? (size_t)shape->V * shape->C : tensor->elems;  // padding rows of wte stay zero
    for (size_t i = first; i < first + n; i++) {
        if (init == INIT_NORMAL || init == INIT_RESIDUAL)
            value[i] = i < used ? (float)(std * random_normal(tensor_seed, i)) : 0;
        else value[i] = init == INIT_ONE;
    }
}

// ---- activations

typedef struct ActRow {
    const char* name;
    int copies;     // -1: L, -2: L + 1
    int per_token;  // elements a token, in units of `unit`
    char unit;      // of all tokens: 'C' channels, 'A' channels of own heads, 'H' own heads, 'U' own hidden units, 'D'
                    // the wider of 3 A and U, '1'; of own tokens: 'S' channels, 's' one; 'V' own rows of wte for a
                    // classifier chunk, 'T' what ranks tell each other of one, 'K' see KV
    int fp32;       // statistics stay fp32 whatever the model's type
    ActWhen when;
    Recompute shared_from;  // from this level on, one copy serves all layers
} ActRow;

enum { PER_LAYER = -1, PER_BORDER = -2, NEVER_SHARED = 99 };

// clang-format off
static const ActRow act_table[N_ACTS] = {
    [RESIDUAL]   = {"residual",    PER_BORDER, 1, 'S', 0, FOR_EVER,     (Recompute)NEVER_SHARED},
    [LN1]        = {"ln1",         PER_LAYER,  1, 'C', 0, FOR_EVER,     RECOMPUTE_BLOCK},
    [LN1_MEAN]   = {"ln1 mean",    PER_LAYER,  1, 's', 1, FOR_EVER,     RECOMPUTE_BLOCK},
    [LN1_RSTD]   = {"ln1 rstd",    PER_LAYER,  1, 's', 1, FOR_EVER,     RECOMPUTE_BLOCK},
    [QKV]        = {"qkv",         PER_LAYER,  3, 'A', 0, FOR_EVER,     RECOMPUTE_BLOCK},
    [ATT]        = {"attention",   PER_LAYER,  1, 'A', 0, FOR_EVER,     RECOMPUTE_BLOCK},
    [LSE]        = {"log-sum-exp", PER_LAYER,  1, 'H', 1, FOR_EVER,     RECOMPUTE_BLOCK},
    [RESIDUAL2]  = {"residual2",   PER_LAYER,  1, 'S', 0, FOR_EVER,     RECOMPUTE_BLOCK},
    [LN2]        = {"ln2",         PER_LAYER,  1, 'C', 0, FOR_EVER,     RECOMPUTE_BLOCK},
    [LN2_MEAN]   = {"ln2 mean",    PER_LAYER,  1, 's', 1, FOR_EVER,     RECOMPUTE_BLOCK},
    [LN2_RSTD]   = {"ln2 rstd",    PER_LAYER,  1, 's', 1, FOR_EVER,     RECOMPUTE_BLOCK},
    [FC]         = {"fc",          PER_LAYER,  1, 'U', 0, FOR_EVER,     RECOMPUTE_BLOCK},
    [FC_GELU]    = {"gelu",        PER_LAYER,  1, 'U', 0, FOR_EVER,     RECOMPUTE_GELU},
    [PROJ]       = {"projection",  1,          1, 'C', 0, FOR_EVER,     (Recompute)NEVER_SHARED},
    [LNF]        = {"lnf",         1,          1, 'C', 0, FOR_EVER,     (Recompute)NEVER_SHARED},
    [LNF_MEAN]   = {"lnf mean",    1,          1, 's', 1, FOR_EVER,     (Recompute)NEVER_SHARED},
    [LNF_RSTD]   = {"lnf rstd",    1,          1, 's', 1, FOR_EVER,     (Recompute)NEVER_SHARED},
    [LOGITS]     = {"logits of a chunk", 1,    1, 'V', 0, FOR_EVER,     (Recompute)NEVER_SHARED},
    [LOSSES]     = {"losses",      1,          1, '1', 1, FOR_EVER,     (Recompute)NEVER_SHARED},
    [D_RESIDUAL] = {"d residual",  1,          1, 'S', 0, FOR_TRAINING, (Recompute)NEVER_SHARED},
    [D_NORM]   = {"d ln, att",   1,          1, 'C', 0, FOR_TRAINING, (Recompute)NEVER_SHARED},
    [D_HIDDEN]     = {"d fc, qkv",   1,          1, 'D', 0, FOR_TRAINING, (Recompute)NEVER_SHARED},
    [D_FULL]     = {"d residual, gathered", 1, 1, 'C', 0, FOR_TENSOR,   (Recompute)NEVER_SHARED},
    [STATS]      = {"classifier parts", 1,     3, 'T', 1, FOR_TENSOR,   (Recompute)NEVER_SHARED},
    [ATT_HEADS]  = {"attention, heads", PER_LAYER, 1, 'A', 0, FOR_GROUPS,  RECOMPUTE_BLOCK},
    [QKV_TOKENS] = {"qkv, tokens", 1,          3, 'A', 0, FOR_GROUPS,   (Recompute)NEVER_SHARED},
    [KV]         = {"kv cache",    PER_LAYER,  3, 'K', 0, FOR_SAMPLING, (Recompute)NEVER_SHARED},
};
// clang-format on

static size_t act_elems(const Shape* shape, const ActNeeds* needs, const ActRow* row) {
    size_t R = (size_t)needs->tp, C = (size_t)shape->C, n = (size_t)token_share(needs->N, needs->tp),
           per = (size_t)row->per_token, N = R * n, hidden = (size_t)shape->hidden,
           own = (size_t)shape->heads * (size_t)shape_head_size(shape);
    switch (row->unit) {
        case 'C': return per * N * C;
        case 'A': return per * N * own;
        case 'H': return per * N * (size_t)shape->heads;
        case 'U': return per * N * hidden;
        case 'D': return per * N * MAX(3 * own, hidden);
        case 'S': return per * n * C;
        case 's': return per * n;
        case 'V': return per * (size_t)needs->classifier_N * (size_t)MAX(shape->vocab_rows, 1);
        case 'T': return per * R * (size_t)needs->classifier_N;
        case 'K': return per * (size_t)shape->context * own;
        default: return per * N;
    }
}

size_t shape_activations(const Shape* shape, const ActNeeds* needs, Activation acts[N_ACTS]) {
    size_t bytes = 0;
    for (int i = 0; i < N_ACTS; i++) {
        const ActRow* row = &act_table[i];
        Activation a = {.name = row->name, .offset = bytes};
        a.copies = row->copies == PER_BORDER ? shape->L + 1 : row->copies == PER_LAYER ? shape->L : 1;
        // Without a backward pass nothing is kept for one.
        if (!needs->training && row->when == FOR_EVER) a.copies = 1;
        if (needs->recompute >= row->shared_from) a.copies = 1;
        int unwanted[] = {[FOR_TRAINING] = !needs->training,
                          [FOR_SAMPLING] = !needs->sampling,
                          [FOR_GROUPS] = !needs->groups,
                          [FOR_TENSOR] = needs->tp == 1};
        if (row->when != FOR_EVER && unwanted[row->when]) a.copies = 0;
        a.dtype = row->fp32 ? DT_F32 : needs->dt;
        a.elems = act_elems(shape, needs, row);
        a.copy_bytes = ROUND_UP(a.elems * dtype_bytes(a.dtype), (size_t)ALIGN_BYTES);
        bytes += a.copy_bytes * (size_t)a.copies;
        acts[i] = a;
    }
    return bytes;
}

// ---- work

double shape_training_flops(const Shape* shape, double sum_s, double sum_s2) {
    double C = shape->C, weights = 12.0 * shape->L * C * C + (double)shape->V * C;
    return 6 * weights * sum_s + 6 * shape->L * C * sum_s2;
}
