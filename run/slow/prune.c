// prune.c - see balance.h.
#include "run/slow/balance.h"

#include <stdlib.h>

#include "run/run.h"

struct Pruner {
    const Model* model;
    uint64_t seed;
    double left_out;      // of the resizable work that stays
    PrunedLayer* layers;  // (L)
    Arena arena;
};

// Half by half of a block, the narrower linear first: what it cannot leave out, or leaves out too much, the other one
// makes up for in finer steps.
static const LinearId order[N_LINEARS] = {LINEAR_ATTPROJ, LINEAR_QKV, LINEAR_FCPROJ, LINEAR_FC};

static int units_of(LinearId id, SliceCount n) { return sublayer_of(id) == ATTENTION ? n.heads : n.hidden; }

// Returns the columns of a linear's input if this rank has so many units.
static int count_columns(const Shape* shape, LinearId id, SliceCount units) {
    return is_linear_in(id) ? shape->C : units_of(id, units) * unit_columns(shape, sublayer_of(id));
}

Pruner* pruner_open(const Model* m, uint64_t seed) {
    char err[ERR_BYTES];
    const SliceCount own = {m->shape.kv_heads, m->shape.hidden};
    int lists = N_LINEARS * m->shape.L;
    size_t columns = 0;
    Pruner* k = (Pruner*)calloc(1, sizeof *k);
    if (!k) die("no memory for lists of what is left out");
    k->model = m, k->seed = seed;
    for (int i = 0; i < lists; i++) columns += (size_t)count_columns(&m->shape, (LinearId)(i % N_LINEARS), own);
    k->layers = TAKE(&k->arena, PrunedLayer, m->shape.L);
    int* index = TAKE(&k->arena, int, columns);
    if (arena_check(&k->arena, err)) die("lists of what is left out: %s", err);
    for (int i = 0; i < lists; i++) {
        k->layers[i / N_LINEARS].columns[i % N_LINEARS] = (IndexList){0, index};
        index += count_columns(&m->shape, (LinearId)(i % N_LINEARS), own);
    }
    return k;
}

void pruner_close(Pruner* pruner) {
    if (pruner) arena_free(&pruner->arena);
    free(pruner);
}

// A column of one that is cut by rows costs its outputs; of one that is cut by columns the outputs that stay.
static PruneList list_of(const Shape* shape, LinearId id, SliceCount stay) {
    int n = count_columns(shape, id, stay),
        own = count_columns(shape, id, (SliceCount){shape->kv_heads, shape->hidden});
    if (n < 0 || n > own) die("%d of %d columns of a linear stay", n, own);
    return (PruneList){
        n, is_linear_in(id) ? (double)units_of(id, stay) * runs_sum(unit_rows(shape, sublayer_of(id), 1)) : shape->C};
}

const PrunedLayer* pruner_choose(Pruner* k, double gamma, SliceCount stay, int64_t turn) {
    const Shape* shape = &k->model->shape;
    PruneList lists[N_LINEARS];
    int dropped[N_LINEARS];
    double all = 0, out = 0;
    uint64_t seed = hash64(hash64(k->seed) ^ (uint64_t)turn);
    for (int i = 0; i < N_LINEARS; i++) lists[i] = list_of(shape, order[i], stay);
    for (int half = 0; half < N_LINEARS; half += 2) prune_counts(&dropped[half], &lists[half], 2, gamma, WORK_TILE);
    for (int i = 0; i < N_LINEARS; i++) all += lists[i].n * lists[i].work, out += dropped[i] * lists[i].work;
    for (int i = 0; i < N_LINEARS * shape->L; i++) {
        int l = i / N_LINEARS, at = i % N_LINEARS;
        IndexList* kept = &k->layers[l].columns[order[at]];
        uint64_t list = (uint64_t)((shape->first_layer + l) * N_LINEARS + (int)order[at]);
        kept->n = lists[at].n - dropped[at];
        prune_draw(kept->index, kept->n, lists[at].n, hash64(seed ^ list));
    }
    k->left_out = all > 0 ? out / all : 0;
    return pruner_layers(k);
}

const PrunedLayer* pruner_layers(const Pruner* k) { return k->left_out > 0 ? k->layers : NULL; }
double pruner_left_out(const Pruner* k) { return k->left_out; }
