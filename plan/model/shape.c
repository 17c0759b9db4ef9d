// shape.c - the tables of shape.h and the arithmetic on them.
#include "plan/model/shape.h"

#include <math.h>
#include <stdio.h>

enum { ALIGN_ELEMS = 64, ALIGN_BYTES = 64, VOCAB_MULTIPLE = 64 };

Shape shape_whole(Shape s) {
    s.Vp = s.vocab_rows = ROUND_UP(s.V, VOCAB_MULTIPLE);
    s.shards = 1;
    s.heads = s.NH, s.kv_heads = s.NKV, s.hidden = s.U;
    s.first_vocab_row = 0;
    return s;
}

Shape shape_make(int layers, int width, int heads, int vocab, int context) {
    const ArchRow* arch = &arch_table[ARCH_GPT2];
    return shape_whole((Shape){.arch = ARCH_GPT2,
                               .features = arch->features,
                               .L = layers,
                               .C = width,
                               .NH = heads,
                               .V = vocab,
                               .NKV = heads,
                               .HS = width / heads,
                               .U = 4 * width,
                               .context = context,
                               .positions = context,
                               .eps = arch->eps});
}

// ---- parameters

Runs shape_runs(const Shape* s, Axis axis) {
    int q = s->heads * s->HS, kv = s->kv_heads * s->HS;
    switch (axis) {
        case CHANNELS: return (Runs){1, {s->C}};
        case POSITIONS: return (Runs){1, {s->context}};
        case HEAD_SIZE: return (Runs){1, {s->HS}};
        case VOCABULARY: return (Runs){1, {s->vocab_rows}};
        case QKV_OUTPUTS: return (Runs){3, {q, kv, kv}};
        case HEADS: return (Runs){1, {q}};
        case FC_OUTPUTS:
            return act_runs(shape_act(s)) == 2 ? (Runs){2, {s->hidden, s->hidden}} : (Runs){1, {s->hidden}};
        case HIDDEN: return (Runs){1, {s->hidden}};
        default: return (Runs){1, {1}};
    }
}

static int length(const Shape* shape, Axis axis) { return runs_sum(shape_runs(shape, axis)); }

static int exists(const Shape* shape, ParamId id) {
    int is_classifier = id == WTE && !shape_has(shape, HAS_HEAD) && !shape->no_head;
    if (id < LN1W && shape->no_embedding && !is_classifier) return 0;
    if (id >= LNFW && shape->no_head) return 0;
    return shape_has(shape, param_table[id].needs);
}

static void param_dims(const Shape* shape, ParamId id, int* rows, int* cols) {
    *rows = exists(shape, id) ? length(shape, param_table[id].rows) : 0;
    *cols = length(shape, param_table[id].cols);
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

LayerUnits shape_units(const Shape* s, int l) {
    if (s->units) return s->units[l];
    return (LayerUnits){s->heads, s->kv_heads, s->hidden, s->heads, s->kv_heads, s->shards};
}

static int is_layer(const Shape* shape, int b) { return b > 0 && b <= shape->L; }

// With that of bucket b in place of what all layers are like.
static Shape of_bucket(const Shape* shape, int b) {
    Shape s = *shape;
    if (!shape->units || !is_layer(shape, b)) return s;
    LayerUnits u = shape->units[b - 1];
    s.heads = u.heads, s.kv_heads = u.kv_heads, s.hidden = u.hidden, s.shards = u.shards;
    return s;
}

static size_t bucket_elems(const Shape* shape, int b) {
    Shape s = of_bucket(shape, b);
    BucketRows rows = bucket_rows(shape, b);
    size_t elems = 0;
    for (int i = rows.first; i < rows.end; i++) elems += padded_elems(&s, (ParamId)i);
    return ROUND_UP(elems, (size_t)ALIGN_ELEMS * (size_t)s.shards);
}

int shape_buckets(const Shape* shape) { return shape->L + 2; }

Bucket shape_bucket(const Shape* shape, int b) {
    size_t all = (size_t)shape->shards;
    Bucket bucket = {0, bucket_elems(shape, b), 0, 0};
    if (b > 0) bucket.offset = bucket_elems(shape, 0);
    bucket.at = bucket.offset / all;
    size_t elems = 0;
    for (int i = 1; i < b && shape->units; i++) {
        const LayerUnits* u = &shape->units[i - 1];
        if (i == 1 || memcmp(u, u - 1, sizeof *u)) elems = bucket_elems(shape, i);
        bucket.offset += elems, bucket.at += elems / (size_t)shape->units[i - 1].shards;
    }
    if (b > 0 && !shape->units) {
        bucket.offset += (size_t)(b - 1) * bucket_elems(shape, 1);
        bucket.at = bucket.offset / all;
    }
    bucket.piece = bucket.elems / (size_t)of_bucket(shape, b).shards;
    return bucket;
}

int shape_bucket_of(const ParamTensor* tensor, const Shape* shape) {
    return tensor->id < LN1W ? 0 : tensor->id < LNFW ? 1 + tensor->layer : shape->L + 1;
}

ParamTensor shape_param(const Shape* shape, ParamId id, int layer) {
    ParamTensor t = {.id = id, .layer = layer};
    int b = shape_bucket_of(&t, shape);
    Shape s = of_bucket(shape, b);
    param_dims(&s, id, &t.rows, &t.cols);
    t.elems = (size_t)t.rows * t.cols;
    t.offset = shape_bucket(shape, b).offset;
    for (int i = bucket_rows(shape, b).first; i < (int)id; i++) t.offset += padded_elems(&s, (ParamId)i);
    return t;
}

// Tensors that exist among the rows [first, end) of param_table.
static int count(const Shape* shape, int first, int end) {
    int n = 0;
    for (int id = first; id < end; id++) n += exists(shape, (ParamId)id);
    return n;
}

int shape_tensors(const Shape* shape) {
    return count(shape, 0, LN1W) + count(shape, LN1W, LNFW) * shape->L + count(shape, LNFW, N_PARAMS);
}

ParamTensor shape_tensor(const Shape* shape, int i) {
    int b = 0, id;
    for (BucketRows rows; rows = bucket_rows(shape, b), i >= count(shape, rows.first, rows.end); b++)
        i -= count(shape, rows.first, rows.end);
    for (id = bucket_rows(shape, b).first; i > 0 || !exists(shape, (ParamId)id); id++) i -= exists(shape, (ParamId)id);
    return shape_param(shape, (ParamId)id, b >= 1 && b <= shape->L ? b - 1 : 0);
}

int shape_index(const Shape* shape, const ParamTensor* t) {
    int b = shape_bucket_of(t, shape), i = count(shape, bucket_rows(shape, b).first, (int)t->id);
    if (b > 0) i += count(shape, 0, LN1W) + (b - 1) * count(shape, LN1W, LNFW);
    return i;
}

size_t shape_param_elems(const Shape* shape) {
    Bucket last = shape_bucket(shape, shape_buckets(shape) - 1);
    return last.offset + last.elems;
}

size_t shape_param_count(const Shape* shape) {
    size_t count = 0;
    for (int i = 0; i < shape_tensors(shape); i++) count += shape_tensor(shape, i).elems;
    return count - (size_t)(shape->Vp - shape->V) * shape->C * (exists(shape, HEADW) ? 2 : 1);
}

void shape_init_param(const Shape* shape, const ParamTensor* tensor, uint64_t seed, size_t first, size_t n,
                      float* value) {
    Init init = param_table[tensor->id].init;
    double std = 0.02 * MAX(1, sqrt(768.0 / shape->C));
    if (init == INIT_RESIDUAL) std /= sqrt(2.0 * shape->L);
    uint64_t tensor_seed =
        hash64(hash64(seed) ^ ((uint64_t)param_table[tensor->id].number << 32 | (uint64_t)tensor->layer));
    int has_padding = param_table[tensor->id].rows == VOCABULARY;  // rows that stay zero
    size_t used = has_padding ? (size_t)shape->V * shape->C : tensor->elems;
    int is_random = init == INIT_NORMAL || init == INIT_RESIDUAL;
    for (size_t i = first; i < first + n && !is_random; i++) value[i] = init == INIT_ONE;
    for (size_t i = first, m; i < first + n && is_random; i += m) {
        double normal[512];
        m = MIN((size_t)COUNT(normal), first + n - i);
        random_normals(normal, tensor_seed, i, m);
        for (size_t j = 0; j < m; j++) value[i + j] = i + j < used ? (float)(std * normal[j]) : 0;
    }
}

// Llama 3's: see RopeScaling.
static double stretched(const RopeScaling* r, double frequency) {
    const double pi = 3.141592653589793;
    double turns = r->original * frequency / (2 * pi), smooth = (turns - r->low) / (r->high - r->low);
    if (r->factor == 0 || turns > r->high) return frequency;
    if (turns < r->low) return frequency / r->factor;
    return (1 - smooth) * frequency / r->factor + smooth * frequency;
}

void shape_rope(const Shape* shape, float* table) {
    for (int j = 0; j < shape->HS / 2; j++) {
        double frequency = stretched(&shape->scaling, pow(shape->theta, -2.0 * j / shape->HS));
        for (int position = 0; position < shape->context; position++) {
            float* at = table + 2 * ((size_t)position * (size_t)(shape->HS / 2) + (size_t)j);
            at[0] = (float)cos(position * frequency), at[1] = (float)sin(position * frequency);
        }
    }
}

// ---- activations

typedef struct ActRow {
    const char* name;
    int copies;  // -1: L, -2: L + 1
    // What there is of it a token. All tokens: 'C' channels; of own heads 'A' channels, 'Q' those of queries, keys and
    // values, 'R' of queries and keys, 'H' heads; '1'. The tokens of the ranks that cut the layer's weights: 'N'
    // channels, 'F' outputs of FC, 'U' own hidden units, 'B' channels of the weights' heads, 'X' twice those of their
    // queries, keys and values. 'D' the more of Q and F, 'G' the most of C, A and U. Own tokens: 'S' channels, 's' one.
    // 'V' own rows of the vocabulary for a classifier chunk, 'T' what ranks tell each other of one, 'K' see KV.
    char unit;
    int fp32;   // statistics stay fp32 whatever the model's type
    int needs;  // only where the model has these features
    ActWhen when;
    Recompute shared_from;  // from this level on, one copy serves all layers
} ActRow;

enum { PER_LAYER = -1, PER_BORDER = -2, NEVER_SHARED = 99 };

// clang-format off
static const ActRow act_table[N_ACTS] = {
    [RESIDUAL]   = {"residual",             PER_BORDER, 'S', 0, 0,             FOR_EVER,     (Recompute)NEVER_SHARED},
    [LN1]        = {"ln1",                  PER_LAYER,  'N', 0, 0,             FOR_EVER,     RECOMPUTE_BLOCK},
    [LN1_MEAN]   = {"ln1 mean",             PER_LAYER,  's', 1, HAS_NORM_BIAS, FOR_EVER,     RECOMPUTE_BLOCK},
    [LN1_RSTD]   = {"ln1 rstd",             PER_LAYER,  's', 1, 0,             FOR_EVER,     RECOMPUTE_BLOCK},
    [QKV]        = {"qkv",                  PER_LAYER,  'Q', 0, 0,             FOR_EVER,     RECOMPUTE_BLOCK},
    [ATT]        = {"attention",            PER_LAYER,  'A', 0, 0,             FOR_EVER,     RECOMPUTE_BLOCK},
    [LSE]        = {"log-sum-exp",          PER_LAYER,  'H', 1, 0,             FOR_EVER,     RECOMPUTE_BLOCK},
    [RESIDUAL2]  = {"residual2",            PER_LAYER,  'S', 0, 0,             FOR_EVER,     RECOMPUTE_BLOCK},
    [LN2]        = {"ln2",                  PER_LAYER,  'N', 0, 0,             FOR_EVER,     RECOMPUTE_BLOCK},
    [LN2_MEAN]   = {"ln2 mean",             PER_LAYER,  's', 1, HAS_NORM_BIAS, FOR_EVER,     RECOMPUTE_BLOCK},
    [LN2_RSTD]   = {"ln2 rstd",             PER_LAYER,  's', 1, 0,             FOR_EVER,     RECOMPUTE_BLOCK},
    [FC]         = {"fc",                   PER_LAYER,  'F', 0, 0,             FOR_EVER,     RECOMPUTE_BLOCK},
    [FC_ACT]     = {"activated",            PER_LAYER,  'U', 0, 0,             FOR_EVER,     RECOMPUTE_ACTIVATION},
    [QK_RAW]     = {"q, k before the norm", PER_LAYER,  'R', 0, HAS_QK_NORM,   FOR_TRAINING, RECOMPUTE_BLOCK},
    [PROJ]       = {"projection",           1,          'C', 0, 0,             FOR_EVER,     (Recompute)NEVER_SHARED},
    [LNF]        = {"lnf",                  1,          'C', 0, 0,             FOR_EVER,     (Recompute)NEVER_SHARED},
    [LNF_MEAN]   = {"lnf mean",             1,          's', 1, HAS_NORM_BIAS, FOR_EVER,     (Recompute)NEVER_SHARED},
    [LNF_RSTD]   = {"lnf rstd",             1,          's', 1, 0,             FOR_EVER,     (Recompute)NEVER_SHARED},
    [LOGITS]     = {"logits of a chunk",    1,          'V', 0, 0,             FOR_EVER,     (Recompute)NEVER_SHARED},
    [LOSSES]     = {"losses",               1,          '1', 1, 0,             FOR_EVER,     (Recompute)NEVER_SHARED},
    [D_RESIDUAL] = {"d residual",           1,          'S', 0, 0,             FOR_TRAINING, (Recompute)NEVER_SHARED},
    [D_NORM]     = {"d ln, att, activated", 1,          'G', 0, 0,             FOR_TRAINING, (Recompute)NEVER_SHARED},
    [D_COLUMN]   = {"d fc, qkv",            1,          'D', 0, 0,             FOR_TRAINING, (Recompute)NEVER_SHARED},
    [D_FULL]     = {"d residual, gathered", 1,          'C', 0, 0,             FOR_TENSOR,   (Recompute)NEVER_SHARED},
    [STATS]      = {"classifier parts",     1,          'T', 1, 0,             FOR_TENSOR,   (Recompute)NEVER_SHARED},
    [ATT_HEADS]  = {"attention, heads",     PER_LAYER,  'A', 0, 0,             FOR_GROUPS,   RECOMPUTE_BLOCK},
    [ATT_TOKENS] = {"attention, tokens",    PER_LAYER,  'B', 0, 0,             FOR_UNLIKE,   RECOMPUTE_BLOCK},
    [EXCHANGED]  = {"tokens to heads",      1,          'X', 0, 0,             FOR_UNLIKE,   (Recompute)NEVER_SHARED},
    [KV]         = {"kv cache",             PER_LAYER,  'K', 0, 0,             FOR_SAMPLING, (Recompute)NEVER_SHARED},
};
// clang-format on

// What a rank computes of layer l, or of the layers that the whole group cuts alike; l = L: nothing.
static LayerUnits units_of(const Shape* shape, const ActNeeds* needs, int l) {
    LayerUnits u = {0};
    int is_unlike = shape->units && l < shape->L && needs->layer[l].tp < needs->tp;
    if (l < shape->L) u = (LayerUnits){shape->heads, shape->kv_heads, shape->hidden, shape->heads, shape->kv_heads, 0};
    if (!is_unlike) return u;
    u = shape->units[l];
    int queries = u.core_heads / MAX(u.core_kv_heads, 1);
    u.core_kv_heads = ROUND_UP(u.core_kv_heads, MAX(needs->places, 1));
    u.core_heads = queries * u.core_kv_heads;
    return u;
}

static size_t act_elems(const Shape* shape, const ActNeeds* needs, char unit, int l) {
    LayerUnits u = units_of(shape, needs, l);
    int T = shape->units && l < shape->L ? needs->layer[l].tp : needs->tp, runs = act_runs(shape_act(shape));
    size_t R = (size_t)needs->tp, C = (size_t)shape->C, n = (size_t)token_share(needs->N, needs->tp), N = R * n,
           cut = (size_t)T * n, HS = (size_t)shape->HS, heads = (size_t)u.core_heads, kv = (size_t)u.core_kv_heads,
           weights = (size_t)u.heads, hidden = (size_t)u.hidden, qkv = (heads + 2 * kv) * HS,
           fc = hidden * (size_t)runs;
    // GELU is a part of the matmuls around it: its gradient never exists apart.
    size_t activated = shape_act(shape) == ACT_GELU ? 0 : cut * hidden;
    switch (unit) {
        case 'C': return N * C;
        case 'N': return cut * C;
        case 'A': return N * heads * HS;
        case 'Q': return N * qkv;
        case 'R': return N * (heads + kv) * HS;
        case 'H': return N * heads;
        case 'F': return cut * fc;
        case 'U': return cut * hidden;
        case 'B': return T < needs->tp ? cut * weights * HS : 0;
        case 'X': return T < needs->tp ? 2 * cut * (weights + 2 * (size_t)u.kv_heads) * HS : 0;
        case 'D': return MAX(N * qkv, cut * fc);
        case 'G': return MAX(MAX(N * C, N * heads * HS), activated);
        case 'S': return n * C;
        case 's': return n;
        case 'V': return (size_t)needs->classifier_N * (size_t)MAX(shape->vocab_rows, 1);
        case 'T': return 3 * R * (size_t)needs->classifier_N;
        case 'K': return (size_t)shape->context * qkv;
        default: return N;
    }
}

// Of stages without the end of the model. The gradient of their stream lies where the stream was sent from.
static int is_of_head(ActId id) {
    return id == LNF || id == LNF_MEAN || id == LNF_RSTD || id == LOGITS || id == LOSSES || id == STATS ||
           id == D_RESIDUAL;
}

// Whether layer l keeps a copy of its own: for its backward pass, or of what generation knows of earlier tokens.
static int is_kept(const ActRow* row, const ActNeeds* needs, int l) {
    if (row->copies == 1 || (!needs->training && row->when != FOR_SAMPLING)) return 0;
    return row->copies == PER_BORDER || needs->layer[l].recompute < row->shared_from;
}

static int is_needed(const Shape* shape, const ActNeeds* needs, ActId id) {
    const ActRow* row = &act_table[id];
    int unwanted[] = {[FOR_EVER] = 0,
                      [FOR_TRAINING] = !needs->training,
                      [FOR_SAMPLING] = !needs->sampling,
                      [FOR_GROUPS] = !needs->groups,
                      [FOR_TENSOR] = needs->tp == 1,
                      [FOR_UNLIKE] = !shape->units};
    return !(shape->no_head && is_of_head(id)) && shape_has(shape, row->needs) && !unwanted[row->when];
}

static size_t copy_bytes(const Activation* a, size_t elems) {
    return ROUND_UP(elems * dtype_bytes(a->dtype), (size_t)ALIGN_BYTES);
}

// Layers that one may have copies for, or the end of the model.
static int rows_of(const Shape* shape, const ActRow* row) { return shape->L + (row->copies == PER_BORDER); }

size_t shape_activations(const Shape* shape, const ActNeeds* needs, Activation acts[N_ACTS]) {
    size_t bytes = 0;
    for (int i = 0; i < N_ACTS; i++) {
        const ActRow* row = &act_table[i];
        Activation a = {.name = row->name, .offset = bytes, .slots = 1, .dtype = row->fp32 ? DT_F32 : needs->dt};
        for (int l = 0; l < rows_of(shape, row) && is_needed(shape, needs, (ActId)i); l++) {
            size_t elems = act_elems(shape, needs, row->unit, l);
            int keeps = is_kept(row, needs, l);
            a.copies += keeps || !a.shared;
            a.elems = MAX(a.elems, elems);
            if (keeps) a.kept += copy_bytes(&a, elems);
            else a.shared = MAX(a.shared, copy_bytes(&a, elems));
        }
        if (a.kept && row->when != FOR_SAMPLING) a.slots = MAX(needs->slots, 1);
        bytes += a.shared + a.kept * (size_t)a.slots;
        acts[i] = a;
    }
    return bytes;
}

size_t shape_layer_activations(const Shape* shape, const ActNeeds* needs, int l) {
    Activation acts[N_ACTS];
    size_t bytes = 0;
    shape_activations(shape, needs, acts);
    for (int i = 0; i < N_ACTS; i++) {
        const ActRow* row = &act_table[i];
        if (acts[i].copies && is_kept(row, needs, l))
            bytes += copy_bytes(&acts[i], act_elems(shape, needs, row->unit, l)) * (size_t)acts[i].slots;
    }
    return bytes;
}

void shape_act_places(const Shape* shape, const ActNeeds* needs, const Activation acts[N_ACTS], ActPlace* places) {
    for (int i = 0; i < N_ACTS; i++) {
        const ActRow* row = &act_table[i];
        const Activation* a = &acts[i];
        size_t kept = a->offset + a->shared;
        for (int l = 0; l <= shape->L; l++) {
            int keeps = l < rows_of(shape, row) && is_kept(row, needs, l);
            ActPlace place = {a->offset, 0, a->copies > 0};
            if (keeps) place.at = kept, place.slot = a->slots > 1 ? a->kept : 0;
            if (keeps) kept += copy_bytes(a, act_elems(shape, needs, row->unit, l));
            places[i * (shape->L + 1) + l] = place;
        }
    }
}
