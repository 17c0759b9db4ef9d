// shape.c - the tables of shape.h and the arithmetic on them.
#include "plan/model/shape.h"

#include <math.h>

enum { ALIGN_ELEMS = 64, ALIGN_BYTES = 64, VOCAB_MULTIPLE = 64 };

// clang-format off
const ArchEntry arch_table[N_ARCHS] = {
    [ARCH_GPT2]  = {"gpt2",  "GPT-2", HAS_POSITIONS | HAS_NORM_BIAS | HAS_QKV_BIAS | HAS_LINEAR_BIAS, ACT_GELU, 1e-5},
    [ARCH_LLAMA] = {"llama", "Llama", 0,                                                            ACT_SWIGLU, 1e-5},
    [ARCH_QWEN2] = {"qwen2", "Qwen2", HAS_QKV_BIAS,                                                 ACT_SWIGLU, 1e-6},
    [ARCH_QWEN3] = {"qwen3", "Qwen3", HAS_QK_NORM,                                                  ACT_SWIGLU, 1e-6},
};

const ParamEntry param_table[N_PARAMS] = {
    //            name,       rows,        columns,     needs,           init,      decay, number
    [WTE]      = {"wte",      VOCABULARY,  CHANNELS,    0,               INIT_NORMAL,   1, 0},
    [WPE]      = {"wpe",      POSITIONS,   CHANNELS,    HAS_POSITIONS,   INIT_NORMAL,   1, 1},
    [LN1W]     = {"ln1w",     ONE,         CHANNELS,    0,               INIT_ONE,      0, 2},
    [LN1B]     = {"ln1b",     ONE,         CHANNELS,    HAS_NORM_BIAS,   INIT_ZERO,     0, 3},
    [QKVW]     = {"qkvw",     QKV_OUTPUTS, CHANNELS,    0,               INIT_NORMAL,   1, 4},
    [QKVB]     = {"qkvb",     ONE,         QKV_OUTPUTS, HAS_QKV_BIAS,    INIT_ZERO,     0, 5},
    [QNORMW]   = {"qnormw",   ONE,         HEAD_SIZE,   HAS_QK_NORM,     INIT_ONE,      0, 16},
    [KNORMW]   = {"knormw",   ONE,         HEAD_SIZE,   HAS_QK_NORM,     INIT_ONE,      0, 17},
    [ATTPROJW] = {"attprojw", CHANNELS,    HEADS,       0,               INIT_RESIDUAL, 1, 6},
    [ATTPROJB] = {"attprojb", ONE,         CHANNELS,    HAS_LINEAR_BIAS, INIT_ZERO,     0, 7},
    [LN2W]     = {"ln2w",     ONE,         CHANNELS,    0,               INIT_ONE,      0, 8},
    [LN2B]     = {"ln2b",     ONE,         CHANNELS,    HAS_NORM_BIAS,   INIT_ZERO,     0, 9},
    [FCW]      = {"fcw",      FC_OUTPUTS,  CHANNELS,    0,               INIT_NORMAL,   1, 10},
    [FCB]      = {"fcb",      ONE,         FC_OUTPUTS,  HAS_LINEAR_BIAS, INIT_ZERO,     0, 11},
    [FCPROJW]  = {"fcprojw",  CHANNELS,    HIDDEN,      0,               INIT_RESIDUAL, 1, 12},
    [FCPROJB]  = {"fcprojb",  ONE,         CHANNELS,    HAS_LINEAR_BIAS, INIT_ZERO,     0, 13},
    [QKV_LORA_A]     = {"qkv_lora_a",     LORA_QKV,    CHANNELS,  HAS_LORA_ATTENTION, INIT_UNIFORM, 1, 19},
    [QKV_LORA_B]     = {"qkv_lora_b",     QKV_OUTPUTS, LORA_RANK, HAS_LORA_ATTENTION, INIT_ZERO,    1, 20},
    [ATTPROJ_LORA_A] = {"attproj_lora_a", LORA_RANK,   HEADS,     HAS_LORA_ATTENTION, INIT_UNIFORM, 1, 21},
    [ATTPROJ_LORA_B] = {"attproj_lora_b", CHANNELS,    LORA_RANK, HAS_LORA_ATTENTION, INIT_ZERO,    1, 22},
    [FC_LORA_A]      = {"fc_lora_a",      LORA_FC,     CHANNELS,  HAS_LORA_MLP,       INIT_UNIFORM, 1, 23},
    [FC_LORA_B]      = {"fc_lora_b",      FC_OUTPUTS,  LORA_RANK, HAS_LORA_MLP,       INIT_ZERO,    1, 24},
    [FCPROJ_LORA_A]  = {"fcproj_lora_a",  LORA_RANK,   HIDDEN,    HAS_LORA_MLP,       INIT_UNIFORM, 1, 25},
    [FCPROJ_LORA_B]  = {"fcproj_lora_b",  CHANNELS,    LORA_RANK, HAS_LORA_MLP,       INIT_ZERO,    1, 26},
    [LNFW]     = {"lnfw",     ONE,         CHANNELS,    0,               INIT_ONE,      0, 14},
    [LNFB]     = {"lnfb",     ONE,         CHANNELS,    HAS_NORM_BIAS,   INIT_ZERO,     0, 15},
    [HEADW]    = {"headw",    VOCABULARY,  CHANNELS,    HAS_HEAD,        INIT_NORMAL,   1, 18},
};
// clang-format on

Shape shape_whole(Shape s) {
    s.Vp = s.vocab_rows = ROUND_UP(s.V, VOCAB_MULTIPLE);
    s.shards = 1;
    s.heads = s.NH, s.kv_heads = s.NKV, s.hidden = s.U;
    s.first_vocab_row = 0;
    return s;
}

// ---- parameters

Runs shape_runs(const Shape* s, Axis axis) {
    int q = s->heads * s->HS, kv = s->kv_heads * s->HS, runs = act_runs(shape_act(s));
    if (axis == QKV_OUTPUTS) return (Runs){3, {q, kv, kv}};
    if (axis == FC_OUTPUTS) return (Runs){runs, {s->hidden, runs > 1 ? s->hidden : 0}};
    int r = s->lora.rank;
    if (axis == LORA_QKV && s->arch != ARCH_GPT2) return (Runs){3, {r, r, r}};
    if (axis == LORA_FC) return (Runs){runs, {r, runs > 1 ? r : 0}};
    int size = axis == ONE                             ? 1
               : axis == CHANNELS                      ? s->C
               : axis == POSITIONS                     ? s->context
               : axis == HEAD_SIZE                     ? s->HS
               : axis == VOCABULARY                    ? s->vocab_rows
               : axis == LORA_RANK || axis == LORA_QKV ? r
               : axis == HEADS                         ? q
                                                       : s->hidden;
    return (Runs){1, {size}};
}

static int exists(const Shape* shape, ParamId id) {
    if (shape->lora.is_all && !param_is_adapter(id)) return 0;
    int is_classifier = id == WTE && !shape_has(shape, HAS_HEAD) && !shape->no_head;
    if (id < LN1W && shape->no_embedding && !is_classifier) return 0;
    if (id >= LNFW && shape->no_head) return 0;
    return shape_has(shape, param_table[id].needs);
}

// Counts the tensors that exist among the entries [first, end) of param_table.
static int count(const Shape* shape, int first, int end) {
    int n = 0;
    for (int id = first; id < end; id++) n += exists(shape, (ParamId)id);
    return n;
}

// Returns the tensor without its offset.
static ParamTensor tensor_of(const Shape* shape, ParamId id, int layer) {
    ParamTensor t = {.id = id, .layer = layer};
    t.rows = exists(shape, id) ? runs_sum(shape_runs(shape, param_table[id].rows)) : 0;
    t.cols = runs_sum(shape_runs(shape, param_table[id].cols));
    t.elems = (size_t)t.rows * t.cols;
    return t;
}

// Elements of the entries [first, end), each rounded up to a multiple of 64.
static size_t aligned_elems(const Shape* shape, int first, int end) {
    size_t elems = 0;
    for (int id = first; id < end; id++) elems += ROUND_UP(tensor_of(shape, (ParamId)id, 0).elems, (size_t)ALIGN_ELEMS);
    return elems;
}

// A bucket's tensors are the entries [first_entry, end_entry): those before the layers, of a layer, or after them.
static int is_layer(const Shape* shape, int b) { return b > 0 && b <= shape->L; }
static int first_entry(const Shape* shape, int b) { return b == 0 ? 0 : is_layer(shape, b) ? LN1W : LNFW; }
static int end_entry(const Shape* shape, int b) { return b == 0 ? LN1W : is_layer(shape, b) ? LNFW : N_PARAMS; }

// The shape with the units of bucket b in place of those of all layers.
static Shape of_bucket(const Shape* shape, int b) {
    Shape s = *shape;
    if (!is_layer(shape, b)) return s;
    LayerUnits u = shape_units(shape, b - 1);
    s.heads = u.heads, s.kv_heads = u.kv_heads, s.hidden = u.hidden, s.shards = u.shards;
    return s;
}

// Counts the buckets from b on that are alike: layers with equal units.
static int count_alike(const Shape* shape, int b) {
    const LayerUnits* u = shape->units;
    int n = 1;
    if (is_layer(shape, b) && !u) return shape->L + 1 - b;
    while (is_layer(shape, b) && is_layer(shape, b + n) && !memcmp(&u[b - 1], &u[b + n - 1], sizeof *u)) n++;
    return n;
}

Bucket shape_bucket(const Shape* shape, int b) {
    Bucket bucket = {0, 0, 0, 0};
    for (int i = 0, n = count_alike(shape, 0); i <= b; i += n, n = count_alike(shape, i)) {
        Shape s = of_bucket(shape, i);
        size_t shards = (size_t)s.shards, before = (size_t)MIN(n, b - i);
        bucket.elems = ROUND_UP(aligned_elems(&s, first_entry(shape, i), end_entry(shape, i)), ALIGN_ELEMS * shards);
        bucket.piece = bucket.elems / shards;
        bucket.offset += before * bucket.elems, bucket.at += before * bucket.piece;
    }
    return bucket;
}

ParamTensor shape_param(const Shape* shape, ParamId id, int layer) {
    int b = id < LN1W ? 0 : id < LNFW ? 1 + layer : shape->L + 1, first = first_entry(shape, b);
    Shape s = of_bucket(shape, b);
    ParamTensor t = tensor_of(&s, id, layer);
    t.index = count(shape, first, (int)id);
    if (b > 0) t.index += count(shape, 0, LN1W) + (b - 1) * count(shape, LN1W, LNFW);
    t.bucket = b;
    t.offset = shape_bucket(shape, b).offset + aligned_elems(&s, first, (int)id);
    return t;
}

int shape_tensors(const Shape* shape) {
    return count(shape, 0, LN1W) + count(shape, LN1W, LNFW) * shape->L + count(shape, LNFW, N_PARAMS);
}

ParamTensor shape_tensor(const Shape* shape, int i) {
    int b = 0, id;
    for (int n; n = count(shape, first_entry(shape, b), end_entry(shape, b)), i >= n; b++) i -= n;
    for (id = first_entry(shape, b); i > 0 || !exists(shape, (ParamId)id); id++) i -= exists(shape, (ParamId)id);
    return shape_param(shape, (ParamId)id, is_layer(shape, b) ? b - 1 : 0);
}

size_t shape_param_elems(const Shape* shape) {
    Bucket last = shape_bucket(shape, shape_buckets(shape) - 1);
    return last.offset + last.elems;
}

size_t shape_param_count(const Shape* shape) {
    size_t count = 0;
    for (int i = 0; i < shape_tensors(shape); i++) count += shape_tensor(shape, i).elems;
    return count - (size_t)(shape->Vp - shape->V) * shape->C * (size_t)(exists(shape, WTE) + exists(shape, HEADW));
}

void shape_init_param(const Shape* shape, const ParamTensor* tensor, uint64_t seed, size_t first, size_t n,
                      float* value) {
    Init init = param_table[tensor->id].init;
    double std = 0.02 * MAX(1, sqrt(768.0 / shape->C));
    if (init == INIT_RESIDUAL) std /= sqrt(2.0 * shape->L);
    uint64_t tensor_seed =
        hash64(hash64(seed) ^ ((uint64_t)param_table[tensor->id].number << 32 | (uint64_t)tensor->layer));
    int has_padding = param_table[tensor->id].rows == VOCABULARY;  // padding rows stay zero
    size_t used = has_padding ? (size_t)shape->V * shape->C : tensor->elems;
    int is_random = init == INIT_NORMAL || init == INIT_RESIDUAL;
    for (size_t i = first; i < first + n && !is_random; i++)
        value[i] = init != INIT_UNIFORM ? init == INIT_ONE
                                        : (float)((2 * random_uniform(tensor_seed, i) - 1) / sqrt(tensor->cols));
    for (size_t i = first, m; i < first + n && is_random; i += m) {
        double normal[512];
        m = MIN((size_t)COUNT(normal), first + n - i);
        random_normals(normal, tensor_seed, i, m);
        for (size_t j = 0; j < m; j++) value[i + j] = i + j < used ? (float)(std * normal[j]) : 0;
    }
}

// Stretches a frequency as Llama 3 does: see RopeScaling.
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

enum { PER_LAYER = -1, PER_BORDER = -2, NEVER = 99 };

// The entry of an activation in layer l; l = L is the end of the model.
typedef struct ActEntry {
    int copies;       // PER_LAYER: L; PER_BORDER: L + 1
    int fp32;         // statistics stay fp32 whatever the model's type
    int exists;       // this model and use have it
    int shared_from;  // from this Recompute on, one copy serves all layers
    size_t elems;
} ActEntry;

// The units of layer l on a rank: the layer's own if fewer ranks cut it, with room for `places`.
static LayerUnits units_of(const Shape* shape, const ActNeeds* needs, int l) {
    LayerUnits u = {shape->heads, shape->kv_heads, shape->hidden, shape_queries(shape), shape->kv_heads, 0};
    if (!shape->units || l == shape->L || needs->layer[l].tp == needs->tp) return u;
    u = shape->units[l];
    u.core_kv_heads = ROUND_UP(u.core_kv_heads, MAX(needs->places, 1));
    return u;
}

// Each of R ranks of a tensor-parallel group has n = ceil(N / R) tokens outside attention and MLP. Inside it sees all N
// tokens in attention, and `cut` tokens, those of the T ranks that cut the layer, elsewhere. A stage without the
// model's end has none of its activations; its stream's gradient comes where that was sent from.
static ActEntry act_entry(const Shape* shape, const ActNeeds* needs, ActId id, int l) {
    LayerUnits u = units_of(shape, needs, l);
    size_t R = (size_t)needs->tp, T = shape->units && l < shape->L ? (size_t)needs->layer[l].tp : R,
           C = (size_t)shape->C, n = CEIL_DIV((size_t)needs->N, R), N = R * n, cut = T * n, HS = (size_t)shape->HS,
           chunk = (size_t)needs->classifier_N, kv = (size_t)u.core_kv_heads * HS, q = kv * (size_t)u.queries,
           qkv = N * (q + 2 * kv), hidden = cut * (size_t)u.hidden, fc = hidden * (size_t)act_runs(shape_act(shape)),
           by_tokens = T < R ? cut * HS : 0, tail = (size_t)needs->tail * (q + 2 * kv), kv_sent = (size_t)u.kv_heads,
           cache = (size_t)needs->sampling * (q + 2 * kv) + (size_t)needs->answering * 2 * kv,
           logits = MAX(chunk * (size_t)MAX(shape->vocab_rows, 1), (size_t)needs->sampled * needs->gathered);
    // Where GELU is a part of the matmuls around it, its gradient never exists apart.
    size_t d_norm = MAX(MAX(N * C, N * q), shape_fuses_gelu(shape) ? 0 : hidden);
    size_t lora = (size_t)(MOST_RUNS * shape->lora.rank);  // rows of an A, at most
    if (R > (size_t)shape->NKV) kv_sent = R / T + 1;  // each rank gets a key/value head; sums of copies
    int training = needs->training, mean = shape_has(shape, HAS_NORM_BIAS), raw = shape_has(shape, HAS_QK_NORM),
        end = !shape->no_head, group = needs->tp > 1, unlike = shape->units != NULL;
    // clang-format off
    const ActEntry entries[N_ACTS] = {
        [RESIDUAL]   = {PER_BORDER, 0, 1,               NEVER,                n * C},
        [LN1]        = {PER_LAYER,  0, 1,               RECOMPUTE_BLOCK,      cut * C},
        [LN1_MEAN]   = {PER_LAYER,  1, mean,            RECOMPUTE_BLOCK,      n},
        [LN1_RSTD]   = {PER_LAYER,  1, 1,               RECOMPUTE_BLOCK,      n},
        [QKV]        = {PER_LAYER,  0, 1,               RECOMPUTE_BLOCK,      qkv + tail},
        [ATT]        = {PER_LAYER,  0, 1,               RECOMPUTE_BLOCK,      N * q},
        [LSE]        = {PER_LAYER,  1, 1,               RECOMPUTE_BLOCK,      N * q / HS},
        [RESIDUAL2]  = {PER_LAYER,  0, 1,               RECOMPUTE_BLOCK,      n * C},
        [LN2]        = {PER_LAYER,  0, 1,               RECOMPUTE_BLOCK,      cut * C},
        [LN2_MEAN]   = {PER_LAYER,  1, mean,            RECOMPUTE_BLOCK,      n},
        [LN2_RSTD]   = {PER_LAYER,  1, 1,               RECOMPUTE_BLOCK,      n},
        [FC]         = {PER_LAYER,  0, 1,               RECOMPUTE_BLOCK,      fc},
        [FC_ACT]     = {PER_LAYER,  0, 1,               RECOMPUTE_ACTIVATION, hidden},
        [QK_RAW]     = {PER_LAYER,  0, raw && training, RECOMPUTE_BLOCK,      N * (q + kv)},
        [PROJ]       = {1,          0, 1,               NEVER,                N * C},
        [LNF]        = {1,          0, end,             NEVER,                N * C},
        [LNF_MEAN]   = {1,          1, end && mean,     NEVER,                n},
        [LNF_RSTD]   = {1,          1, end,             NEVER,                n},
        [LOGITS]     = {1,          0, end,             NEVER,                logits},
        [LOSSES]     = {1,          1, end,             NEVER,                N},
        [D_RESIDUAL] = {1,          0, end && training, NEVER,                n * C},
        [D_NORM]     = {1,          0, training,        NEVER,                d_norm},
        [D_CORE_IN]  = {1,          0, training,        NEVER,                MAX(qkv, fc)},
        [LORA_X]     = {1,          0, lora > 0,        NEVER,                N * lora},
        [D_LORA_X]   = {1,          0, lora && training, NEVER,               N * lora},
        [D_FULL]     = {1,          0, group,           NEVER,                N * C},
        [STATS]      = {1,          1, end && group,    NEVER,                3 * R * chunk},
        [ATT_HEADS]  = {PER_LAYER,  0, needs->groups,   RECOMPUTE_BLOCK,      N * q},
        [ATT_TOKENS] = {PER_LAYER,  0, unlike,          RECOMPUTE_BLOCK,      by_tokens * (size_t)u.heads},
        [EXCHANGED]  = {1,          0, unlike,          NEVER, 2 * by_tokens * ((size_t)u.heads + 2 * kv_sent)},
        [KV]         = {PER_LAYER,  0, needs->sampling, NEVER, cache},
    };
    // clang-format on
    return entries[id];
}

// Returns whether layer l keeps its own copy: for its backward pass, or as the KV cache of earlier tokens.
static int is_kept(const Shape* shape, const ActNeeds* needs, const ActEntry* entry, ActId id, int l) {
    if (entry->copies == PER_BORDER) return needs->training;
    if (entry->copies == 1 || l == shape->L || (!needs->training && id != KV)) return 0;
    return (int)needs->layer[l].recompute < entry->shared_from;
}

size_t shape_activations(const Shape* shape, const ActNeeds* needs, ActPlace* places) {
    size_t bytes = 0;
    for (int i = 0; i < N_ACTS; i++) {
        size_t shared = 0, kept = 0, slots = i != KV ? (size_t)MAX(needs->slots, 1) : 1;
        for (int l = 0; l <= shape->L; l++) {
            ActEntry entry = act_entry(shape, needs, (ActId)i, l);
            ActPlace place = {.exists = entry.exists};
            int is_there = entry.exists && (l < shape->L || entry.copies == PER_BORDER);
            if (is_there) place.bytes = ROUND_UP(entry.elems * (entry.fp32 ? 4 : dtype_bytes(needs->dt)), ALIGN_BYTES);
            place.is_own = is_there && is_kept(shape, needs, &entry, (ActId)i, l);
            if (place.is_own) place.at = kept, kept += place.bytes;
            else shared = MAX(shared, place.bytes);
            if (places) places[i * (shape->L + 1) + l] = place;
        }
        for (int l = 0; places && l <= shape->L; l++) {
            ActPlace* place = &places[i * (shape->L + 1) + l];
            place->at += bytes + (place->is_own ? shared : 0);
            place->slot = place->is_own && i != KV ? kept : 0;
        }
        bytes += shared + kept * slots;
    }
    return bytes;
}
