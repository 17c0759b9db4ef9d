// muon.c - see muon.h.
#include "run/model/muon.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/rank_ops.h"
#include "run/model/model_ranks.h"

// The factors of a step and their number: Jordan et al. chose them so that small singular values grow fastest.
static const float NS_A = 3.4445f, NS_B = -4.7750f, NS_C = 2.0315f;
enum { NS_STEPS = 5, ALIGNED = 64 };

static size_t shorter(const Matrix* m) { return (size_t)MIN(m->rows, m->cols); }
static size_t elems_of(const Matrix* m) { return (size_t)m->rows * (size_t)m->cols; }

// ---- memory: the norm; X and a product of it; A, A^2 and their sum; fp32 for a product that comes so

typedef struct Scratch {
    char *x, *y, *a, *a2, *b;
    float* wide;
} Scratch;

// Places the scratch of the largest matrices in memory, unless that is NULL. Returns the bytes.
static size_t place_scratch(Scratch* s, char* memory, const Matrix* list, int n, DType dt) {
    size_t most = 0, side = 0, at = 0, elem = dtype_bytes(dt);
    char** const parts[] = {&s->x, &s->y, &s->a, &s->a2, &s->b};
    for (int i = 0; i < n; i++) most = MAX(most, elems_of(&list[i])), side = MAX(side, shorter(&list[i]));
    for (int i = 0; i < COUNT(parts); i++) {
        *parts[i] = memory ? memory + at : NULL;
        at += ROUND_UP((i < 2 ? most : side * side) * elem, (size_t)ALIGNED);
    }
    s->wide = memory ? (float*)(memory + at) : NULL;
    return at + ROUND_UP(side * side * sizeof(float), (size_t)ALIGNED);
}

static Matrix* list_matrices(int* n, const Shape* whole) {
    *n = shape_matrices(NULL, whole);
    Matrix* list = (Matrix*)calloc((size_t)*n + 1, sizeof *list);
    if (!list) die("no memory for %d matrices", *n);
    shape_matrices(list, whole);
    return list;
}

// A wave of a move packs at most a layer that leaves and a layer that comes; two waves are under way.
size_t muon_bytes(const Shape* whole, DType dt, int ranks) {
    Scratch scratch;
    int n;
    Matrix* list = list_matrices(&n, whole);
    size_t dealt = ranks > 1 ? deal_matrices(list, n, ranks) : 0, layer = shape_bucket(whole, 1).elems;
    size_t bytes = ALIGNED + place_scratch(&scratch, NULL, list, n, dt) + dealt * sizeof(float);
    free(list);
    return bytes + (ranks > 1 ? 4 * layer * sizeof(float) : 0);
}

// ---- dealing

// Finds the matrices where this rank owns all of them: in the array of second moments.
static void find_own(Muon* x, const Model* m) {
    const float* v = (const float*)m->array[MODEL_V];
    for (int i = 0; i < x->n; i++) {
        Segment s = zero_segment(m, x->list[i].tensor);
        size_t at = (size_t)((float*)zero_owned(m, STATE_V, &s) - v);
        x->list[i].at = at + (size_t)x->list[i].row * (size_t)x->list[i].cols;
    }
}

static void open_movers(Muon* x, const Model* m) {
    char err[ERR_BYTES];
    Holdings owned = owned_holdings(m, STATE_V, &x->arena), dealt;
    holdings_keep_matrices(&owned, x->list, x->n);
    if (holdings_of_matrices(&dealt, &m->whole, x->list, x->n, &x->arena, err)) die("%s", err);
    x->there = mover_open(m, m->world, RESHARD_COPY, COMM_PARAMETERS, DT_F32, &owned, &dealt, &x->arena);
    x->back = mover_open(m, m->world, RESHARD_COPY, COMM_PARAMETERS, DT_F32, &dealt, &owned, &x->arena);
}

void muon_open(Muon* x, const Model* m, void* memory) {
    int rank = m->world->rank;
    Scratch scratch;
    *x = (Muon){.norm2 = (double*)memory, .scratch = (char*)memory + ALIGNED};
    x->list = list_matrices(&x->n, &m->whole);
    if (m->world->size == 1) {
        find_own(x, m);
        x->matrices = (float*)m->array[MODEL_V];
        return;
    }
    deal_matrices(x->list, x->n, m->world->size);
    for (int i = 0; i < x->n; i++)
        if (x->list[i].rank == rank) x->dealt = MAX(x->dealt, x->list[i].at + elems_of(&x->list[i]));
    x->matrices = (float*)(x->scratch + place_scratch(&scratch, NULL, x->list, x->n, m->dt));
    open_movers(x, m);
}

void muon_close(Muon* x) {
    free(x->list);
    arena_free(&x->arena);
}

// ---- the step

// Makes a matrix at `value` orthogonal, times 0.2 sqrt(max(rows, cols)): then its elements are as large as those of
// AdamW's steps (Moonlight, section 2.2). Of a tall one X^T X is smaller, so it takes that, on its other side.
static void newton_schulz(float* value, const Matrix* of, const Scratch* s, double* norm2, const Model* m) {
    const Kernels* k = m->k;
    int rows = of->rows, cols = of->cols, r = MIN(rows, cols), is_tall = rows > cols;
    float scale = 0.2f * sqrtf((float)MAX(rows, cols));
    size_t n = elems_of(of), square = (size_t)r * (size_t)r;
    DType dt = m->dt;
    k->clear(norm2, sizeof *norm2, m->s);
    k->sum_of_squares(norm2, value, n, m->s);
    k->ranks->normalize(s->x, value, norm2, n, dt, m->s);
    for (int step = 0; step < NS_STEPS; step++) {
        if (is_tall) {
            k->clear(s->wide, square * sizeof(float), m->s);
            k->matmul_backward_weight(s->wide, NULL, s->x, s->x, rows, cols, cols, dt, m->s);
            k->ranks->cast(s->a, dt, s->wide, DT_F32, square, m->s);
        } else k->matmul_forward(s->a, NULL, s->x, s->x, NULL, rows, cols, rows, dt, m->s);
        k->matmul_forward(s->a2, NULL, s->a, s->a, NULL, r, r, r, dt, m->s);
        k->ranks->combine(s->b, NS_B, s->a, NS_C, s->a2, square, dt, m->s);
        if (is_tall) k->matmul_forward(s->y, NULL, s->x, s->b, NULL, rows, cols, cols, dt, m->s);
        else k->matmul_backward_input(s->y, s->b, s->x, NULL, rows, cols, rows, dt, m->s);
        float f = step + 1 < NS_STEPS ? 1 : scale;
        k->ranks->combine(s->x, NS_A * f, s->x, f, s->y, n, dt, m->s);
    }
    k->ranks->cast(value, DT_F32, s->x, dt, n, m->s);
}

void muon_direct(Muon* x, Model* m) {
    Scratch scratch;
    float* v = (float*)m->array[MODEL_V];
    char* packed = (char*)(x->matrices + x->dealt);
    place_scratch(&scratch, x->scratch, x->list, x->n, m->dt);
    if (m->world->size > 1) mover_run(&x->there, (char*)x->matrices, (const char*)v, packed);
    for (int i = 0; i < x->n; i++)
        if (m->world->size == 1 || x->list[i].rank == m->world->rank)
            newton_schulz(x->matrices + x->list[i].at, &x->list[i], &scratch, x->norm2, m);
    if (m->world->size > 1) mover_run(&x->back, (char*)v, (const char*)x->matrices, packed);
}
