// prune.c - see balance.h. Values and lists are arrays (L,n), one for each of the four linears. Behind a list stands
// all that others compute: both together were computed, so a refresh measures them.
#include "run/slow/balance.h"
#include "plan/base/base.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>

#include "run/run.h"

static const char* const list_names[N_LINEARS] = {"qkv", "attproj", "fc", "fcproj"};
static const char prefix[] = "pruned.";  // of a list's name in a checkpoint
static ParamId matrix_of(int linear) { return sublayers[linear / 2].weight[linear % 2]; }

// Half by half of a block, the narrower linear first: what it cannot leave out, or leaves out too much, the other one
// makes up for in finer steps.
static const LinearId order[N_LINEARS] = {LINEAR_ATTPROJ, LINEAR_QKV, LINEAR_FCPROJ, LINEAR_FC};

typedef struct List {
    LinearId id;
    int n;         // of this rank
    int stay;      // that it has not given away: the first ones
    float* value;  // (L,n)
    float* kept;   // (L,n) as in a checkpoint: 1 where it is computed and stays, else 0
} List;

struct Pruner {
    Model* model;
    int L, C;
    int known;     // `ago` holds weights
    int left_out;  // in any layer
    Arena arena;
    List lists[N_LINEARS];       // in that order
    PruneList sizes[N_LINEARS];  // of each: how many stay, and their work
    PrunedLayer* layers;
    char* ago;          // weights of the last refresh, layer by layer
    float *now, *then;  // of one linear
    float* change;      // of one list
};

// ---- memory

// Columns of a linear's input where this rank has so many units.
static int list_length(const Model* m, LinearId id, SliceCount units) {
    int n = sublayer_of(id) == ATTENTION ? units.heads : units.hidden;
    return is_linear_in(id) ? m->shape.C : n * unit_columns(&m->shape, sublayer_of(id));
}

static size_t layer_elems(const Model* m) {
    size_t elems = 0;
    for (int id = 0; id < N_LINEARS; id++) elems += shape_param(&m->shape, matrix_of(id), 0).elems;
    return elems;
}

// As callers see it: ascending those of `stay` that are kept, and behind these, which they do not see, stay .. n.
static IndexList* kept_list(const Pruner* k, const List* list, int l) { return &k->layers[l].columns[list->id]; }

// For the lists of k, which are empty so far. Ends the program where there is none.
static void take_memory(Pruner* k, const Model* m) {
    char err[ERR_BYTES];
    Arena* a = &k->arena;
    size_t L = (size_t)m->shape.L, matrix = 0, widest = 0, n = 0;
    const SliceCount own = {m->shape.kv_heads, m->shape.hidden};
    for (int id = 0; id < N_LINEARS; id++) {
        ParamTensor t = shape_param(&m->shape, matrix_of(id), 0);
        matrix = MAX(matrix, t.elems);
        widest = MAX(widest, (size_t)t.cols);
    }
    for (int i = 0; i < N_LINEARS; i++) {
        List* list = &k->lists[i];
        list->id = order[i];
        list->n = list->stay = list_length(m, list->id, own);
        list->value = TAKE(a, float, L*(size_t)list->n);
        list->kept = TAKE(a, float, L*(size_t)list->n);
        n += (size_t)list->n;
    }
    k->layers = TAKE(a, PrunedLayer, L);
    int* lists = TAKE(a, int, L* n);
    k->ago = TAKE(a, char, L* layer_elems(m) * dtype_bytes(m->dt));
    k->now = TAKE(a, float, matrix), k->then = TAKE(a, float, matrix);
    k->change = TAKE(a, float, widest);
    if (arena_check(a, err)) die("older weights and lists: %s", err);
    memset(k->ago, 0, L * layer_elems(m) * dtype_bytes(m->dt));
    memset(k->layers, 0, L * sizeof *k->layers);
    for (List* list = k->lists; list < k->lists + N_LINEARS; list++)
        for (int l = 0; l < k->L; l++, lists += list->n) kept_list(k, list, l)->index = lists;
}

static float* values_of(const List* list, int l) { return list->value + (size_t)l * (size_t)list->n; }
static float* kept_of(const List* list, int l) { return list->kept + (size_t)l * (size_t)list->n; }

// Keeps n_kept of those that stay, which stand in the list already, and all that were given away.
static void end_list(Pruner* k, const List* list, int l, int n_kept) {
    IndexList* kept = kept_list(k, list, l);
    kept->n = n_kept;
    for (int j = list->stay; j < list->n; j++) kept->index[n_kept + j - list->stay] = j;
    k->left_out |= n_kept < list->stay;
}

Pruner* pruner_open(Model* m) {
    Pruner* k = (Pruner*)calloc(1, sizeof *k);
    if (!k) die("no memory for lists of what is left out");
    k->model = m;
    k->L = m->shape.L, k->C = m->shape.C;
    take_memory(k, m);
    for (List* list = k->lists; list < k->lists + N_LINEARS; list++)
        for (int l = 0; l < k->L; l++) {
            prune_start(values_of(list, l), list->n);
            for (int j = 0; j < list->n; j++) kept_list(k, list, l)->index[j] = j;
            end_list(k, list, l, list->n);
        }
    return k;
}

void pruner_close(Pruner* pruner) {
    if (pruner) arena_free(&pruner->arena);
    free(pruner);
}

// ---- what changed

// The weights of a linear into `now`, those of the last refresh into `then`; the new ones take their place.
static ParamTensor fetch(Pruner* k, const Model* m, LinearId id, int l) {
    ParamTensor t = shape_param(&m->shape, matrix_of(id), l);
    size_t elem = dtype_bytes(m->dt), at = (size_t)l * layer_elems(m);
    for (int i = 0; i < (int)id; i++) at += shape_param(&m->shape, matrix_of(i), l).elems;
    char* copy = k->ago + at * elem;
    memcpy(k->then, copy, t.elems * elem);
    m->k->download(copy, tensor_weights(m, &t), t.elems * elem, m->s);
    memcpy(k->now, copy, t.elems * elem);
    if (m->dt == DT_BF16) bf16_widen_in_place(k->now, t.elems), bf16_widen_in_place(k->then, t.elems);
    return t;
}

static void learn(Pruner* k, Model* m) {
    for (int l = 0; l < k->L; l++) {
        zero_use_layer(m, l, 0);
        for (List* list = k->lists; list < k->lists + N_LINEARS; list++) {
            const IndexList* kept = kept_list(k, list, l);
            ParamTensor t = fetch(k, m, list->id, l);
            prune_change(k->change, k->now, k->then, t.rows, list->n);
            if (k->known)
                prune_learn(values_of(list, l), k->change, list->n, kept->index, kept->n + list->n - list->stay);
        }
    }
    k->known = 1;
}

// ---- how much is left out

static PruneList prune_list(const Pruner* k, const List* list) {
    const Shape* shape = &k->model->shape;
    SublayerId id = sublayer_of(list->id);
    int rows = runs_sum(unit_rows(shape, id, 1)), columns = unit_columns(shape, id);
    double work = k->C;                                                           // of a column of Out
    if (is_linear_in(list->id)) work = (double)(list[-1].stay / columns) * rows;  // behind its Out
    return (PruneList){list->stay, work};
}

// ---- a refresh

static void set_stay(Pruner* k, SliceCount stay) {
    for (int i = 0; i < N_LINEARS; i++) {
        List* list = &k->lists[i];
        list->stay = list_length(k->model, list->id, stay);
        if (list->stay < 0 || list->stay > list->n) die("%d of %d %s stay", list->stay, list->n, list_names[list->id]);
        k->sizes[i] = prune_list(k, list);
    }
}

const PrunedLayer* pruner_choose(Pruner* k, Model* m, double gamma, SliceCount stay) {
    int dropped[N_LINEARS];
    learn(k, m);
    set_stay(k, stay);
    k->left_out = 0;
    for (int half = 0; half < N_LINEARS; half += 2) prune_counts(&dropped[half], &k->sizes[half], 2, gamma, WORK_TILE);
    for (int i = 0; i < N_LINEARS * k->L; i++) {
        const List* list = &k->lists[i % N_LINEARS];
        int l = i / N_LINEARS, n_kept = list->stay - dropped[i % N_LINEARS];
        prune_choose(kept_list(k, list, l)->index, n_kept, values_of(list, l), list->stay);
        end_list(k, list, l, n_kept);
    }
    return pruner_layers(k);
}

const PrunedLayer* pruner_layers(const Pruner* k) { return k->left_out ? k->layers : NULL; }

double pruner_left_out(const Pruner* k) {
    double all = 0, kept = 0;
    for (int i = 0; i < N_LINEARS; i++) {
        all += k->L * k->sizes[i].n * k->sizes[i].work;
        for (int l = 0; l < k->L; l++) kept += kept_list(k, &k->lists[i], l)->n * k->sizes[i].work;
    }
    return all > 0 ? 1 - kept / all : 0;
}

// ---- in checkpoints

static SafeTensor describe(const Pruner* k, const List* list, const char* what, const float* data) {
    SafeTensor t = {.dtype = DT_F32, .n_dims = 2, .dims = {k->L, list->n}, .data = data};
    t.bytes = (size_t)k->L * (size_t)list->n * sizeof *data;
    snprintf(t.name, sizeof t.name, "%s%s.%s", prefix, list_names[list->id], what);
    return t;
}

int pruner_tensors(const Pruner* k, SafeTensor tensors[PRUNER_TENSORS]) {
    int n = 0;
    for (const List* list = k->lists; list < k->lists + N_LINEARS && k->left_out; list++) {
        for (int l = 0; l < k->L; l++) {
            float* kept = kept_of(list, l);
            memset(kept, 0, (size_t)list->n * sizeof *kept);
            const IndexList* indices = kept_list(k, list, l);
            for (int j = 0; j < indices->n; j++) kept[indices->index[j]] = 1;
        }
        tensors[n++] = describe(k, list, "value", list->value);
        tensors[n++] = describe(k, list, "kept", list->kept);
    }
    return n;
}

static int read_tensor(const Pruner* k, const List* list, const char* what, float* values, const SafeTensors* file,
                       Err err) {
    SafeTensor wanted = describe(k, list, what, values);
    const SafeTensor* t = safetensors_get(file, wanted.name);
    if (!t || t->n_dims != 2 || t->dims[0] != wanted.dims[0] || t->dims[1] != wanted.dims[1])
        return fail(err,
                    "expected a tensor %s of %d x %d; is this of another model, another rank or another way to resize?",
                    wanted.name, k->L, list->n);
    return safetensors_floats(file, t, 0, wanted.bytes / sizeof *values, values, err);
}

// Values are finite and not negative; of those that stay at least one is kept, of the others none.
static int load_layer(Pruner* k, const List* list, int l, Err err) {
    const float *value = values_of(list, l), *kept = kept_of(list, l);
    const char* name = list_names[list->id];
    int n = 0;
    for (int j = 0; j < list->n; j++) {
        if (!(value[j] >= 0 && value[j] <= FLT_MAX) || (kept[j] != 0 && (kept[j] != 1 || j >= list->stay)))
            return fail(err, "%s%s, layer %d: expected a value >= 0 and kept 0%s, found %g and %g at %d", prefix, name,
                        l, j < list->stay ? " or 1" : "", (double)value[j], (double)kept[j], j);
        if (kept[j] == 1) kept_list(k, list, l)->index[n++] = j;
    }
    if (n == 0 && list->stay > 0)
        return fail(err, "%s%s, layer %d: expected at least one that is kept", prefix, name, l);
    end_list(k, list, l, n);
    return 0;
}

int pruner_load(Pruner* k, const SafeTensors* file, SliceCount stay, Err err) {
    int has_lists = 0;
    for (int i = 0; i < file->n; i++) has_lists |= !strncmp(file->tensors[i].name, prefix, sizeof prefix - 1);
    if (!has_lists) return 0;
    set_stay(k, stay);
    for (List* list = k->lists; list < k->lists + N_LINEARS; list++) {
        if (read_tensor(k, list, "value", list->value, file, err) ||
            read_tensor(k, list, "kept", list->kept, file, err))
            return -1;
        for (int l = 0; l < k->L; l++)
            if (load_layer(k, list, l, err)) return -1;
    }
    for (int l = 0; l < k->L; l++) {
        zero_use_layer(k->model, l, 0);
        for (int id = 0; id < N_LINEARS; id++) fetch(k, k->model, (LinearId)id, l);
    }
    k->known = 1;
    return 0;
}
