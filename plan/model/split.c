// split.c - see split.h. A rank has a range of every run of a cut tensor's rows, or of the columns of every row.
#include "plan/model/split.h"

Shape shape_base(const Shape* shape) {
    Shape base = *shape;
    base.features &= ~HAS_LORA, base.lora = (Lora){0};
    return base;
}

Shape shape_stage(const Shape* shape, int first, int end) {
    Shape s = *shape;
    s.first_layer = shape->first_layer + first;
    s.L = end - first;
    s.no_embedding |= first > 0;
    s.no_head |= end < shape->L;
    if (s.units) s.units += first;
    return s;
}

size_t shape_state_bytes(const Bucket* b, int zero, DType dt) {
    size_t fp32 = sizeof(float), moments = 2 * fp32, master = dt == DT_BF16 ? fp32 : 0;
    return (zero > 2 ? b->piece : b->elems) * dtype_bytes(dt) + (zero > 1 ? b->piece : b->elems) * fp32 +
           b->piece * (moments + master);
}

Segment shape_segment(const Shape* shape, int i, int rank) {
    Segment segment = {.tensor = shape_tensor(shape, i)};
    const ParamTensor* t = &segment.tensor;
    Bucket bucket = shape_bucket(shape, t->bucket);
    size_t begin = bucket.offset + bucket.piece * (size_t)rank;
    size_t low = MAX(begin, t->offset), high = MIN(begin + bucket.piece, t->offset + t->elems);
    if (low >= high) return segment;
    segment.first = low - t->offset;
    segment.n = high - low;
    segment.at = bucket.at + (low - begin);
    return segment;
}

double shape_matmul_weights(const Shape* shape) {
    double weights = (double)shape->V * shape->C;
    for (int id = LN1W; id < LNFW; id++)
        if (param_table[id].rows != ONE && !param_is_adapter((ParamId)id))
            weights += (double)shape->L * runs_sum(shape_runs(shape, param_table[id].rows)) *
                       runs_sum(shape_runs(shape, param_table[id].cols));
    return weights;
}

void split_linears(double linear[2][2], const Shape* s, double pass) {
    double qkv = (s->NH + 2 * s->NKV) * s->HS, proj = s->NH * s->HS, up = act_runs(shape_act(s)) * s->U, down = s->U;
    double all = (qkv + proj + up + down) / pass;
    linear[0][0] = qkv / all, linear[0][1] = proj / all, linear[1][0] = up / all, linear[1][1] = down / all;
}

double shape_padded_weights(const Shape* shape) {
    return shape_matmul_weights(shape) + (double)(shape->Vp - shape->V) * shape->C;
}

double shape_training_flops(const Shape* shape, double sum_s, double sum_s2) {
    double weights = 6 * shape_matmul_weights(shape);
    if (shape->lora.is_all) weights = 4 * shape_matmul_weights(shape) + 6 * (double)shape_param_count(shape);
    return weights * sum_s + 6 * shape->L * (double)(shape->NH * shape->HS) * sum_s2;
}

uint64_t shape_hash(const Shape* s) {
    const int dims[] = {(int)s->arch, s->features, s->L, s->C,       s->NH,       s->NKV,
                        s->HS,        s->U,        s->V, s->context, s->positions};
    const double numbers[] = {s->eps,         s->theta,        s->scaling.factor,
                              s->scaling.low, s->scaling.high, s->scaling.original};
    return hash_bytes(numbers, sizeof numbers, hash_bytes(dims, sizeof dims, 0));
}

// ---- tensor-parallel groups

enum { TILE = 64 };

static void borders(int* border, int n, int ranks, int tile) {
    int step = n / tile >= ranks ? tile : 1, pieces = CEIL_DIV(n, step);
    for (int t = 0; t <= ranks; t++) border[t] = MIN(n, (int)((int64_t)t * pieces / ranks) * step);
}

// Shares heads among more ranks than key/value heads: the ranks of one key/value head divide its query heads.
static void share_heads(int* head, const Shape* whole, int ranks) {
    int queries = whole->NH / whole->NKV;
    for (int j = 0; j < whole->NKV; j++) {
        int first = (int)((int64_t)j * ranks / whole->NKV), end = (int)((int64_t)(j + 1) * ranks / whole->NKV);
        for (int t = first; t <= end; t++) head[t] = j * queries + (t - first) * queries / (end - first);
    }
}

TpSplit split_even(const Shape* whole, int ranks) {
    TpSplit split;
    memset(&split, 0, sizeof split);
    split.ranks = ranks;
    borders(split.head, whole->NKV, ranks, 1);
    for (int t = 0; t <= ranks; t++) split.head[t] *= whole->NH / whole->NKV;
    if (ranks > whole->NKV) share_heads(split.head, whole, ranks);
    borders(split.hidden, whole->U, ranks, TILE);
    borders(split.vocab_row, whole->Vp, ranks, TILE);
    return split;
}

// The key/value heads of a rank: [*first, *end).
static void kv_heads(const Shape* whole, const TpSplit* split, int rank, int* first, int* end) {
    int queries = whole->NH / whole->NKV;
    *first = split->head[rank] / queries;
    *end = CEIL_DIV(split->head[rank + 1], queries);
}

Shape split_shape(const Shape* whole, const TpSplit* split, int rank) {
    Shape part = *whole;
    int first, end;
    kv_heads(whole, split, rank, &first, &end);
    part.heads = split->head[rank + 1] - split->head[rank];
    part.kv_heads = end - first;
    part.hidden = split->hidden[rank + 1] - split->hidden[rank];
    part.first_vocab_row = split->vocab_row[rank];
    part.vocab_rows = split->vocab_row[rank + 1] - split->vocab_row[rank];
    return part;
}

Shape split_widest(const Shape* whole, const TpSplit* split) {
    Shape most = split_shape(whole, split, 0);
    for (int t = 1; t < split->ranks; t++) {
        Shape s = split_shape(whole, split, t);
        most.heads = MAX(most.heads, s.heads), most.kv_heads = MAX(most.kv_heads, s.kv_heads);
        most.hidden = MAX(most.hidden, s.hidden), most.vocab_rows = MAX(most.vocab_rows, s.vocab_rows);
    }
    return most;
}

TpSplit split_cut(const TpSplit* split, int T) {
    TpSplit cut = {.ranks = T};
    int G = split->ranks / T;
    for (int j = 0; j <= T; j++) {
        cut.head[j] = split->head[j * G], cut.hidden[j] = split->hidden[j * G];
        cut.vocab_row[j] = split->vocab_row[j * G];
    }
    return cut;
}

LayerUnits split_units(const Shape* whole, const TpSplit* split, int rank, int T, int data_ranks) {
    TpSplit cut = split_cut(split, T);
    int G = split->ranks / T, j = rank % T;
    Shape weights = split_shape(whole, &cut, j), core = split_shape(whole, split, j * G + rank / T);
    return (LayerUnits){weights.heads,        weights.kv_heads, weights.hidden,
                        shape_queries(&core), core.kv_heads,    data_ranks * G};
}

int split_kv_sharers(const Shape* whole, const TpSplit* split, int rank, int* first) {
    int n = 0;
    *first = rank;
    if (!split_shares_kv(whole, split)) return 1;
    for (int t = split->ranks - 1; t >= 0; t--) {
        int mine, theirs, end;
        kv_heads(whole, split, rank, &mine, &end);
        kv_heads(whole, split, t, &theirs, &end);
        if (mine == theirs) *first = t, n++;
    }
    return n;
}

// Returns where a rank's part of a run begins in the whole run.
static int first_of(const Shape* whole, const TpSplit* split, int t, Axis axis, int run) {
    int first, end, HS = whole->HS;
    kv_heads(whole, split, t, &first, &end);
    switch (axis) {
        case VOCABULARY: return split->vocab_row[t];
        case QKV_OUTPUTS: return (run == 0 ? split->head[t] : first) * HS;
        case HEADS: return split->head[t] * HS;
        case FC_OUTPUTS:
        case HIDDEN: return split->hidden[t];
        default: return 0;
    }
}

int split_boxes(Box boxes[MOST_RUNS], const Shape* whole, const TpSplit* split, int rank, ParamId id) {
    Shape own = split_shape(whole, split, rank);
    Axis rows = param_table[id].rows, cols = param_table[id].cols;
    int is_vector = rows == ONE;
    if (!shape_has(whole, param_table[id].needs)) return 0;
    Runs all = shape_runs(whole, is_vector ? cols : rows), mine = shape_runs(&own, is_vector ? cols : rows);
    for (int i = 0, run = 0; i < all.n; run += all.size[i++]) {
        int first = run + first_of(whole, split, rank, is_vector ? cols : rows, i);
        boxes[i] = is_vector ? (Box){0, first, 1, mine.size[i]}
                             : (Box){first, first_of(whole, split, rank, cols, 0), mine.size[i],
                                     shape_runs(&own, cols).size[0]};
    }
    return all.n;
}

// Copies between rank t's part of a tensor and the whole, in ascending order, so that a part may be taken in place.
static void copy(float* part, float* whole, int take, const Shape* shape, const TpSplit* split, int t, ParamId id) {
    Box boxes[MOST_RUNS];
    size_t width = (size_t)runs_sum(shape_runs(shape, param_table[id].cols));
    int n = split_boxes(boxes, shape, split, t, id);
    for (const Box* box = boxes; box < boxes + n; box++)
        for (int r = 0; r < box->rows; r++, part += box->cols) {
            float* at = whole + (size_t)(box->row + r) * width + (size_t)box->col;
            memmove(take ? part : at, take ? at : part, (size_t)box->cols * sizeof(float));
        }
}

void split_take(float* part, const float* whole, const Shape* shape, const TpSplit* split, int rank, ParamId id) {
    copy(part, (float*)whole, 1, shape, split, rank, id);
}

void split_put(float* whole, const float* part, const Shape* shape, const TpSplit* split, int rank, ParamId id) {
    copy((float*)part, whole, 0, shape, split, rank, id);
}
