// split.c - see split.h. A cut tensor is `runs` runs of whole rows, or one range of columns of every row; QKV has three
// runs, because queries, keys and values of all heads stand one after another.
#include "plan/split.h"

enum { TILE = 64 };

static void borders(int* border, int n, int ranks, int tile) {
    int step = n / tile >= ranks ? tile : 1, pieces = CEIL_DIV(n, step);
    for (int t = 0; t <= ranks; t++) border[t] = MIN(n, (int)((int64_t)t * pieces / ranks) * step);
}

TpSplit split_even(const Shape* whole, int ranks) {
    TpSplit split;
    memset(&split, 0, sizeof split);
    split.ranks = ranks;
    borders(split.head, whole->NH, ranks, 1);
    borders(split.hidden, 4 * whole->C, ranks, TILE);
    borders(split.vocab_row, whole->Vp, ranks, TILE);
    return split;
}

Shape split_shape(const Shape* whole, const TpSplit* split, int rank) {
    Shape part = *whole;
    part.heads = split->head[rank + 1] - split->head[rank];
    part.hidden = split->hidden[rank + 1] - split->hidden[rank];
    part.first_vocab_row = split->vocab_row[rank];
    part.vocab_rows = split->vocab_row[rank + 1] - split->vocab_row[rank];
    return part;
}

int split_is_replicated(ParamId id) { return param_table[id].shard_axis < 0; }

// Elements [first, first + n) of each of `count` pieces of `stride` elements of the whole tensor, one after another.
typedef struct Cut {
    size_t count, stride, first, n;
} Cut;

static Cut cut_of(const Shape* shape, const TpSplit* split, int t, ParamId id) {
    size_t C = (size_t)shape->C, HS = (size_t)shape_head_size(shape), F = 4 * C;
    size_t h0 = (size_t)split->head[t] * HS, h = (size_t)split->head[t + 1] * HS - h0;
    size_t u0 = (size_t)split->hidden[t], u = (size_t)split->hidden[t + 1] - u0;
    size_t v0 = (size_t)split->vocab_row[t], v = (size_t)split->vocab_row[t + 1] - v0;
    switch (id) {
        case WTE: return (Cut){1, (size_t)shape->Vp * C, v0 * C, v * C};
        case QKVW: return (Cut){3, C * C, h0 * C, h * C};
        case QKVB: return (Cut){3, C, h0, h};
        case ATTPROJW: return (Cut){C, C, h0, h};
        case FCW: return (Cut){1, F * C, u0 * C, u * C};
        case FCB: return (Cut){1, F, u0, u};
        case FCPROJW: return (Cut){C, F, u0, u};
        case WPE: return (Cut){1, (size_t)shape->context * C, 0, (size_t)shape->context * C};
        default: return (Cut){1, C, 0, C};
    }
}

void split_take(float* part, const float* whole, const Shape* shape, const TpSplit* split, int rank, ParamId id) {
    Cut cut = cut_of(shape, split, rank, id);
    for (size_t i = 0; i < cut.count; i++)
        memmove(part + i * cut.n, whole + i * cut.stride + cut.first, cut.n * sizeof(float));
}

void split_put(float* whole, const float* part, const Shape* shape, const TpSplit* split, int rank, ParamId id) {
    Cut cut = cut_of(shape, split, rank, id);
    for (size_t i = 0; i < cut.count; i++)
        memcpy(whole + i * cut.stride + cut.first, part + i * cut.n, cut.n * sizeof(float));
}
