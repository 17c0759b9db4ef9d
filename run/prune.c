// prune.c - see prune.h. Values and lists are arrays (L,n), one for each kind of list that the Shed has. Behind a
// list stands all that others compute: both together were computed, so a refresh measures them.
#include "run/prune.h"

#include <stdlib.h>

#include "data/prune_file.h"
#include "run/run.h"

// Lists of columns have the numbers of LinearId; behind them come those of units, one for each sublayer.
enum { LIST_UNITS = N_LINEARS, N_LISTS = N_LINEARS + N_SUBLAYERS };

static const char* const list_names[N_LISTS] = {"qkv", "attproj", "fc", "fcproj", "heads", "units"};
static ParamId matrix_of(int linear) { return sublayers[linear / 2].weight[linear % 2]; }

// The lists of a Shed, half by half of a block. The narrower linear comes first: what it cannot leave out, or leaves
// out too much, the other one makes up for in finer steps.
static const int columns_in_order[] = {LINEAR_ATTPROJ, LINEAR_QKV, LINEAR_FCPROJ, LINEAR_FC};
static const int slices_in_order[] = {LIST_UNITS + ATTENTION, LIST_UNITS + MLP};

typedef struct List {
    int n;          // of this rank
    int stay;       // that it has not given away: the first ones
    float* value;   // (L,n)
    int* computed;  // (L,n) ascending: those of `stay` that are kept, n_kept of them, then stay .. n
    int* n_kept;    // (L)
} List;

struct Pruner {
    const Model* model;
    Shed shed;
    Priority priority;
    int by_layer;
    uint64_t seed;
    int L, C;
    int known;     // `ago` holds weights
    int left_out;  // in any layer
    const int* in_order;
    int n_lists;      // in use: in_order (n_lists)
    size_t n_floats;  // of all values
    Arena arena;
    List lists[N_LISTS];
    PrunedLayer* layers;
    char* ago;            // weights of the last refresh, layer by layer
    float *now, *then;    // of one linear
    float *change, *sum;  // of one list; of the columns of one linear
    int* scratch;
    double *ratio, *work, *mass;  // (L)
};

// ---- memory

// Of list i: things of which this rank has so many where it has so many units.
static int list_length(const Model* m, int i, const int units[N_SUBLAYERS]) {
    if (i >= LIST_UNITS) return units[i - LIST_UNITS];
    return is_column((LinearId)i) ? m->shape.C : units[i / 2] * unit_columns(&m->shape, (SublayerId)(i / 2));
}

static size_t layer_elems(const Model* m) {
    size_t elems = 0;
    for (int id = 0; id < N_LINEARS; id++) elems += shape_param(&m->shape, matrix_of(id), 0).elems;
    return elems;
}

// For the lists of k, which are empty so far. Ends the program where there is none.
static void take_memory(Pruner* k, const Model* m) {
    char err[ERR_BYTES];
    Arena* a = &k->arena;
    size_t L = (size_t)m->shape.L, matrix = 0, widest = 0;
    const int own[N_SUBLAYERS] = {m->shape.kv_heads, m->shape.hidden};
    for (int id = 0; id < N_LINEARS; id++) {
        ParamTensor t = shape_param(&m->shape, matrix_of(id), 0);
        matrix = MAX(matrix, t.elems);
        widest = MAX(widest, (size_t)t.cols);
    }
    for (int i = 0; i < k->n_lists; i++) {
        List* list = &k->lists[k->in_order[i]];
        list->n = list->stay = list_length(m, k->in_order[i], own);
        list->value = TAKE(a, float, L*(size_t)list->n);
        list->computed = TAKE(a, int, L*(size_t)list->n);
        list->n_kept = TAKE(a, int, L);
        k->n_floats += L * (size_t)list->n;
    }
    k->layers = TAKE(a, PrunedLayer, L);
    k->ago = TAKE(a, char, L* layer_elems(m) * dtype_bytes(m->dt));
    k->now = TAKE(a, float, matrix), k->then = TAKE(a, float, matrix);
    k->change = TAKE(a, float, widest), k->sum = TAKE(a, float, widest);
    k->scratch = TAKE(a, int, widest);
    k->ratio = TAKE(a, double, L), k->work = TAKE(a, double, L), k->mass = TAKE(a, double, L);
    if (arena_check(a, err, sizeof err)) die("older weights and lists: %s", err);
    memset(k->ago, 0, L * layer_elems(m) * dtype_bytes(m->dt));
    memset(k->layers, 0, L * sizeof *k->layers);
}

static int* row_of(const List* list, int l) { return list->computed + (size_t)l * (size_t)list->n; }
static float* values_of(const List* list, int l) { return list->value + (size_t)l * (size_t)list->n; }

// The lists as callers see them.
static void show_layer(Pruner* k, int l) {
    PrunedLayer* layer = &k->layers[l];
    for (int i = 0; i < k->n_lists; i++) {
        int id = k->in_order[i];
        IndexList* shown = id < LIST_UNITS ? &layer->columns[id] : &layer->units[id - LIST_UNITS];
        *shown = (IndexList){k->lists[id].n_kept[l], row_of(&k->lists[id], l)};
    }
}

// Keeps n_kept of those that stay, which stand in the list already, and all that were given away.
static void end_list(List* list, int l, int n_kept) {
    list->n_kept[l] = n_kept;
    for (int j = list->stay; j < list->n; j++) row_of(list, l)[n_kept + j - list->stay] = j;
}

Pruner* pruner_open(const Model* m, Shed shed, Priority priority, int by_layer, uint64_t seed) {
    Pruner* k = (Pruner*)calloc(1, sizeof *k);
    if (!k) die("no memory for lists of what is left out");
    int columns = shed == SHED_COLUMNS;
    k->model = m, k->shed = shed, k->priority = priority, k->by_layer = by_layer, k->seed = seed;
    k->L = m->shape.L, k->C = m->shape.C;
    k->in_order = columns ? columns_in_order : slices_in_order;
    k->n_lists = columns ? COUNT(columns_in_order) : COUNT(slices_in_order);
    take_memory(k, m);
    for (int i = 0; i < k->n_lists; i++)
        for (int l = 0; l < k->L; l++) {
            List* list = &k->lists[k->in_order[i]];
            prune_start(values_of(list, l), list->n);
            for (int j = 0; j < list->n; j++) row_of(list, l)[j] = j;
            end_list(list, l, list->n);
        }
    for (int l = 0; l < k->L; l++) show_layer(k, l);
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
    m->k->download(copy, zero_weights(m, &t), t.elems * elem, m->s);
    memcpy(k->now, copy, t.elems * elem);
    if (m->dt == DT_BF16) {
        bf16_widen_in_place(k->now, t.elems);
        bf16_widen_in_place(k->then, t.elems);
    }
    return t;
}

// change (n) += of slices of so many rows, from row `first` on.
static void add_rows(Pruner* k, int n, int rows, int first) {
    for (int s = 0; s < n; s++) {
        size_t at = (size_t)(first + s * rows) * (size_t)k->C;
        float sum;
        prune_change(&sum, k->now + at, k->then + at, rows * k->C, 1);
        k->change[s] += sum;
    }
}

// change (n) += of slices of so many columns.
static void add_columns(Pruner* k, int n, int columns) {
    prune_change(k->sum, k->now, k->then, k->C, n * columns);
    for (int s = 0; s < n; s++)
        for (int j = 0; j < columns; j++) k->change[s] += k->sum[s * columns + j];
}

static void learn_list(Pruner* k, int i, int l) {
    const List* list = &k->lists[i];
    if (k->known)
        prune_learn(values_of(list, l), k->change, list->n, row_of(list, l), list->n_kept[l] + list->n - list->stay);
}

static void learn_columns(Pruner* k, const Model* m, int l) {
    for (int id = 0; id < N_LINEARS; id++) {
        ParamTensor t = fetch(k, m, (LinearId)id, l);
        prune_change(k->change, k->now, k->then, t.rows, t.cols);
        learn_list(k, id, l);
    }
}

static void learn_slices(Pruner* k, const Model* m, int l) {
    for (int i = 0; i < N_SUBLAYERS; i++) {
        SublayerId id = (SublayerId)i;
        int n = k->lists[LIST_UNITS + i].n, first = 0;
        Runs rows = unit_rows(&m->shape, id, 1);
        memset(k->change, 0, (size_t)n * sizeof *k->change);
        fetch(k, m, column_linear(id), l);
        for (int run = 0; run < rows.n; first += n * rows.size[run++]) add_rows(k, n, rows.size[run], first);
        fetch(k, m, row_linear(id), l);
        add_columns(k, n, unit_columns(&m->shape, id));
        learn_list(k, LIST_UNITS + i, l);
    }
}

// ---- how much is left out

static PruneList prune_list(const Pruner* k, int i) {
    const Shape* shape = &k->model->shape;
    SublayerId id = (SublayerId)(i < LIST_UNITS ? i / 2 : i - LIST_UNITS);
    int rows = runs_sum(unit_rows(shape, id, 1)), columns = unit_columns(shape, id), is_unit = i >= LIST_UNITS;
    double work = k->C;  // of a column of Row
    if (is_unit) work = (double)(rows + columns) * k->C;
    else if (is_column((LinearId)i)) work = (double)(k->lists[i + 1].stay / columns) * rows;
    return (PruneList){k->lists[i].stay, i == LIST_UNITS + ATTENTION, work};
}

static double total_work(const PruneList* lists, int n) {
    double total = 0;
    for (int i = 0; i < n; i++) total += lists[i].n * lists[i].work;
    return total;
}

// ratio (L) = what each layer is to leave out of its work. A layer that hardly changed counts as a thousandth of the
// mean: its weight is a divisor.
static void find_ratios(Pruner* k, double gamma) {
    PruneList lists[N_LINEARS];
    double sum = 0;
    for (int i = 0; i < k->n_lists; i++) lists[i] = prune_list(k, k->in_order[i]);
    double most = prune_most(lists, k->n_lists, WORK_TILE) / MAX(1, total_work(lists, k->n_lists));
    for (int l = 0; l < k->L; l++) {
        k->ratio[l] = gamma, k->work[l] = 1, k->mass[l] = 0;
        for (int i = 0; i < k->n_lists; i++) {
            const List* list = &k->lists[k->in_order[i]];
            for (int j = 0; j < list->n; j++) k->mass[l] += (double)values_of(list, l)[j];
        }
        sum += k->mass[l];
    }
    for (int l = 0; l < k->L; l++) k->mass[l] = sum > 0 ? MAX(k->mass[l] / sum, 1e-3 / k->L) : 1;
    if (k->by_layer) balance_ratios(k->ratio, k->work, k->mass, k->L, gamma * k->L, most);
}

// ---- a refresh

static void set_stay(Pruner* k, SliceCount stay) {
    const int units[N_SUBLAYERS] = {stay.heads, stay.hidden};
    for (int i = 0; i < k->n_lists; i++) {
        List* list = &k->lists[k->in_order[i]];
        list->stay = list_length(k->model, k->in_order[i], units);
        if (list->stay < 0 || list->stay > list->n)
            die("%d of %d %s stay", list->stay, list->n, list_names[k->in_order[i]]);
    }
}

// Chooses the lists of layer l, given how much more than their part those before it left out; returns the same for the
// next.
static double choose_layer(Pruner* k, int l, double ahead, uint64_t seed) {
    int dropped[N_LINEARS], half = k->shed == SHED_COLUMNS && !k->by_layer ? 2 : k->n_lists;
    PruneList lists[N_LINEARS];
    for (int i = 0; i < k->n_lists; i++) lists[i] = prune_list(k, k->in_order[i]);
    for (int i = 0; i < k->n_lists; i += half) {
        double target = k->ratio[l] * total_work(&lists[i], half) - (k->by_layer ? ahead : 0);
        ahead = prune_counts(&dropped[i], &lists[i], half, target, WORK_TILE) - target;
    }
    for (int i = 0; i < k->n_lists; i++) {
        List* list = &k->lists[k->in_order[i]];
        int n_kept = list->stay - dropped[i];
        prune_choose(row_of(list, l), n_kept, values_of(list, l), list->stay, k->priority,
                     hash64(seed ^ (uint64_t)(l * N_LISTS + k->in_order[i])), k->scratch);
        end_list(list, l, n_kept);
        k->left_out |= dropped[i] > 0;
    }
    show_layer(k, l);
    return ahead;
}

const PrunedLayer* pruner_choose(Pruner* k, const Model* m, double gamma, SliceCount stay, int64_t step) {
    double ahead = 0;
    for (int l = 0; l < k->L; l++) {
        if (k->shed == SHED_COLUMNS) learn_columns(k, m, l);
        else learn_slices(k, m, l);
    }
    k->known = 1;
    set_stay(k, stay);
    find_ratios(k, gamma > 0 ? MIN(gamma, 1) : 0);
    k->left_out = 0;
    for (int l = 0; l < k->L; l++) ahead = choose_layer(k, l, ahead, hash64(hash64(k->seed) ^ (uint64_t)step));
    return pruner_layers(k);
}

const PrunedLayer* pruner_layers(const Pruner* k) { return k->left_out ? k->layers : NULL; }

double pruner_left_out(const Pruner* k) {
    double all = 0, kept = 0;
    for (int i = 0; i < k->n_lists; i++) {
        PruneList list = prune_list(k, k->in_order[i]);
        for (int l = 0; l < k->L; l++) {
            all += list.n * list.work;
            kept += k->lists[k->in_order[i]].n_kept[l] * list.work;
        }
    }
    return all > 0 ? 1 - kept / all : 0;
}

// ---- files

// The tables of a file. Their flags `kept` lie in memory, and with `values` their values behind these; else the values
// are those in use.
static void make_tables(PruneTable* tables, const Pruner* k, float* memory, int values) {
    for (int i = 0; i < k->n_lists; i++) {
        const List* list = &k->lists[k->in_order[i]];
        size_t n = (size_t)k->L * (size_t)list->n;
        tables[i] = (PruneTable){list_names[k->in_order[i]], list->n, list->stay, list->value, memory};
        if (values) tables[i].value = memory + k->n_floats;
        memory += n;
    }
}

int pruner_save(const Pruner* k, const char* path, char* err, size_t errlen) {
    PruneTable tables[N_LISTS];
    float* memory = (float*)calloc(k->n_floats + 1, sizeof *memory);
    if (!memory) return fail(err, errlen, "%s: no memory for lists", path);
    make_tables(tables, k, memory, 0);
    for (int i = 0; i < k->n_lists; i++)
        for (int l = 0; l < k->L; l++) {
            const List* list = &k->lists[k->in_order[i]];
            int computed = list->n_kept[l] + list->n - list->stay;
            for (int j = 0; j < computed; j++)
                tables[i].kept[(size_t)l * (size_t)list->n + (size_t)row_of(list, l)[j]] = 1;
        }
    int result = prune_file_write(tables, k->n_lists, k->L, path, err, errlen);
    free(memory);
    return result;
}

static void take_layer(List* list, const PruneTable* table, int l) {
    const float* kept = table->kept + (size_t)l * (size_t)list->n;
    int n = 0;
    for (int j = 0; j < list->stay; j++)
        if (kept[j] == 1) row_of(list, l)[n++] = j;
    end_list(list, l, n);
}

static void take_tables(Pruner* k, const PruneTable* tables) {
    k->left_out = 0;
    for (int i = 0; i < k->n_lists; i++) {
        List* list = &k->lists[k->in_order[i]];
        list->stay = tables[i].stay;
        memcpy(list->value, tables[i].value, (size_t)k->L * (size_t)list->n * sizeof *list->value);
        for (int l = 0; l < k->L; l++) {
            take_layer(list, &tables[i], l);
            k->left_out |= list->n_kept[l] < list->stay;
        }
    }
    for (int l = 0; l < k->L; l++) {
        show_layer(k, l);
        for (int id = 0; id < N_LINEARS; id++) fetch(k, k->model, (LinearId)id, l);
    }
    k->known = 1;
}

// Inputs of Columns are whole, and units stay as wholes.
static int check_stay(const Pruner* k, const PruneTable* tables, const char* path, char* err, size_t errlen) {
    for (int i = 0; i < k->n_lists; i++) {
        int id = k->in_order[i], stay = tables[i].stay;
        if (id >= LIST_UNITS) continue;
        int whole = is_column((LinearId)id), unit = unit_columns(&k->model->shape, (SublayerId)(id / 2));
        if (whole ? stay != k->C : stay % unit)
            return fail(err, errlen, "%s: tensor %s.stay: expected %s %d, found %d", path, tables[i].name,
                        whole ? "all" : "a multiple of", whole ? k->C : unit, stay);
    }
    return 0;
}

int pruner_load(Pruner* k, const char* path, char* err, size_t errlen) {
    PruneTable tables[N_LISTS];
    float* memory = (float*)calloc(2 * k->n_floats + 1, sizeof *memory);
    if (!memory) return fail(err, errlen, "%s: no memory for lists", path);
    make_tables(tables, k, memory, 1);
    int result = prune_file_read(tables, k->n_lists, k->L, path, err, errlen);
    if (!result) result = check_stay(k, tables, path, err, errlen);
    if (!result) take_tables(k, tables);
    free(memory);
    return result;
}
