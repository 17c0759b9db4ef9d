// split.c - see split.h. Of a cut tensor a rank has a range of every run of its rows, or of the columns of every row.
#include "plan/model/split.h"

enum { TILE = 64 };

static void borders(int* border, int n, int ranks, int tile) {
    int step = n / tile >= ranks ? tile : 1, pieces = CEIL_DIV(n, step);
    for (int t = 0; t <= ranks; t++) border[t] = MIN(n, (int)((int64_t)t * pieces / ranks) * step);
}

// More ranks than key/value heads: those of one key/value head divide its query heads.
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

// Key/value heads of a rank: [*first, *end).
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
    return (LayerUnits){weights.heads, weights.kv_heads, weights.hidden, core.heads, core.kv_heads, data_ranks * G};
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

// Where a rank's part of a run begins in the whole run.
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

// Copies between rank t's part of a tensor and the whole. Ascending, so that a part may be taken in place.
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
