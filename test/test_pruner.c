// test_pruner.c - claims about run/slow/prune.c, on a model made by hand: a rank's half of a small model, weights in
// host memory.
#include "run/slow/balance.h"

#include "kernels/cpu/cpu.h"
#include "run/run.h"
#include "test/shapes.h"
#include "test/test.h"

static char err[ERR_BYTES];

static const ParamId matrices[N_LINEARS] = {QKVW, ATTPROJW, FCW, FCPROJW};

// ---- the model

static int query_heads(Model* m) { return m->whole.NH / m->whole.NKV; }      // of a key/value head
static int fc_runs(Model* m) { return m->whole.arch == ARCH_GPT2 ? 1 : 2; }  // rows of FC for a hidden unit

static Model make_model(int arch, int layers, int width, int heads, DType dt) {
    Model m;
    memset(&m, 0, sizeof m);
    model_set_ranks(&m, (ModelRanks*)calloc(1, sizeof *m.ranks));
    m.whole = shape_like((Arch)arch, layers, width, heads, 100, 8);
    m.ranks->split = split_even(&m.whole, 2);
    m.shape = split_shape(&m.whole, &m.ranks->split, 0);
    m.dt = dt;
    m.k = cpu_kernels(CPU_REFERENCE);
    m.ranks->zero.stage = 1;
    m.array[MODEL_WEIGHTS] = m.k->alloc(shape_param_elems(&m.shape) * dtype_bytes(dt));
    zero_open(&m);
    return m;
}

static void free_model(Model* m) {
    m->k->free_memory(m->array[MODEL_WEIGHTS]);
    zero_close(m);
    free(m->ranks);
}

static void close_both(Pruner* k, Model* m) { pruner_close(k), free_model(m); }

static SliceCount all_of(Model* m) { return (SliceCount){m->shape.kv_heads, m->shape.hidden}; }

// Adds to columns first .. first + n of rows from .. from + rows of a matrix; exact in bf16 where sums have few bits.
static void add(Model* m, int id, int l, int from, int rows, int first, int n, float d) {
    ParamTensor t = shape_param(&m->shape, matrices[id], l);
    char* weights = tensor_weights(m, &t);
    for (int r = from; r < from + rows; r++)
        for (int c = first; c < first + n; c++) {
            size_t i = (size_t)r * (size_t)t.cols + (size_t)c;
            if (m->dt == DT_F32) ((float*)weights)[i] += d;
            else ((bf16*)weights)[i] = bf16_from_float(bf16_to_float(((bf16*)weights)[i]) + d);
        }
}

static void add_column(Model* m, int id, int l, int column, float d) {
    add(m, id, l, 0, shape_param(&m->shape, matrices[id], l).rows, column, 1, d);
}

// Every weight moves a little, columns by different amounts.
static void train(Model* m, uint64_t seed) {
    for (int l = 0; l < m->shape.L; l++)
        for (int id = 0; id < N_LINEARS; id++)
            for (int c = 0; c < shape_param(&m->shape, matrices[id], l).cols; c++)
                add_column(
                    m, id, l, c,
                    (float)random_uniform(seed, (uint64_t)((l * N_LINEARS + id) * 1000 + c)) * (1.0f + (float)l));
}

static int columns_of(Model* m, int id, SliceCount stay) {
    int span = query_heads(m) * m->shape.HS;
    return id == LINEAR_ATTPROJ ? stay.heads * span : id == LINEAR_FCPROJ ? stay.hidden : m->shape.C;
}

static int ascends_within(const IndexList* list, int n) {
    for (int i = 0; i < list->n; i++)
        if (list->index[i] < (i ? list->index[i - 1] + 1 : 0) || list->index[i] >= n) return 0;
    return list->n <= n;
}

static int holds(const IndexList* list, int j) {
    for (int i = 0; i < list->n; i++)
        if (list->index[i] == j) return 1;
    return 0;
}

static uint64_t hash_lists(const Pruner* k, Model* m) {
    const PrunedLayer* layers = pruner_layers(k);
    uint64_t hash = 0;
    for (int l = 0; l < m->shape.L && layers; l++)
        for (int i = 0; i < N_LINEARS; i++) {
            const IndexList* list = &layers[l].columns[i];
            hash = hash_bytes(list->index, (size_t)list->n * sizeof(int), hash);
        }
    return hash;
}

// ---- what is kept

// Columns c in the order c * 5 mod K: neighbours change by different amounts. 1 / 64 steps are exact in bf16 below 4.
CLAIM(lists_follow_the_changes_of_columns) {
    for (int i = 0; i < 2 * N_ARCHS; i++) {
        Model m = make_model(i / 2, 3, 128, 4, i % 2 ? DT_BF16 : DT_F32);
        Pruner* k = pruner_open(&m);
        CHECK(pruner_layers(k) == NULL && pruner_choose(k, &m, 0, all_of(&m)) == NULL && pruner_left_out(k) == 0);
        for (int l = 0; l < 3; l++)
            for (int id = 0; id < N_LINEARS; id++)
                for (int c = 0, K = columns_of(&m, id, all_of(&m)); c < K; c++)
                    add_column(&m, id, l, c, (float)(c * 5 % K) * (l == 1 ? -1 : 1) / 64);
        const PrunedLayer* layers = pruner_choose(k, &m, 0.5, all_of(&m));
        CHECK(layers != NULL && layers == pruner_layers(k) && pruner_left_out(k) == 0.5);
        for (int l = 0; l < 3 && layers; l++)
            for (int id = 0; id < N_LINEARS; id++) {
                int K = columns_of(&m, id, all_of(&m)), right = 1;
                const IndexList* list = &layers[l].columns[id];
                CHECK(list->n == K / 2 && ascends_within(list, K));
                for (int c = 0; c < K; c++) right = right && holds(list, c) == (c * 5 % K >= K / 2);
                CHECK(right);
            }
        close_both(k, &m);
    }
}

CLAIM(a_change_counts_for_one_refresh) {
    Model m = make_model(ARCH_GPT2, 1, 128, 4, DT_F32);
    Pruner* k = pruner_open(&m);
    pruner_choose(k, &m, 0, all_of(&m));
    for (int c = 64; c < 128; c++) add_column(&m, LINEAR_FC, 0, c, 10);
    const PrunedLayer* layers = pruner_choose(k, &m, 0, all_of(&m));
    CHECK(layers == NULL);
    for (int c = 32; c < 96; c++) add_column(&m, LINEAR_FC, 0, c, 1);
    layers = pruner_choose(k, &m, 0.5, all_of(&m));
    const IndexList* list = &layers->columns[LINEAR_FC];
    CHECK(list->n == 64 && list->index[0] == 32 && list->index[63] == 95);
    close_both(k, &m);
}

// What is left out may well change, by weight decay: it does not count. What others compute counts in full.
static void check_what_is_measured(int arch) {
    Model m = make_model(arch, 1, 128, 4, DT_F32);
    for (int c = 0; c < 256; c++) add_column(&m, LINEAR_FCPROJ, 0, c, (float)c);  // which is no change
    Pruner* k = pruner_open(&m);
    pruner_choose(k, &m, 0, all_of(&m));
    SliceCount stay = {1, 192};
    const PrunedLayer* layers = pruner_choose(k, &m, 0.5, stay);  // nothing changed: the first ones are kept
    const IndexList* list = &layers->columns[LINEAR_FCPROJ];
    CHECK(list->n == 96 && list->index[95] == 95 && layers->columns[LINEAR_ATTPROJ].n == 16 * query_heads(&m));
    for (int c = 0; c < 256; c++) add_column(&m, LINEAR_FCPROJ, 0, c, c < 96 ? 2 : c < 192 ? 1000 : 10);
    layers = pruner_choose(k, &m, 0.5, all_of(&m));
    list = &layers->columns[LINEAR_FCPROJ];
    for (int i = 0; i < 128; i++) CHECK(list->index[i] == (i < 64 ? i : i + 128));
    close_both(k, &m);
}

CLAIM(only_what_is_computed_is_measured) {
    for (int arch = 0; arch < N_ARCHS; arch++) check_what_is_measured(arch);
}

// ---- how much

typedef struct Saved {
    double all, out, most, tile;  // work: of everything; of what is left out, and of all that may be; the dearest tile
} Saved;

static Saved plus(Saved a, Saved b) {
    return (Saved){a.all + b.all, a.out + b.out, a.most + b.most, MAX(a.tile, b.tile)};
}

static Saved of_list(const IndexList* list, int n, double work, int tile) {
    while (tile > 1 && n < 4 * tile) tile /= 2;
    int dropped = n - list->n;
    CHECK(ascends_within(list, n) && dropped % tile == 0 && (n == 0 || list->n >= MIN(n, tile)));
    return (Saved){n * work, dropped * work, MAX(0, n - tile) / tile * tile * work, tile * work};
}

// A half of a block: attention, or MLP.
static Saved of_half(Model* m, const PrunedLayer* layer, int half, SliceCount stay) {
    double rows = half ? fc_runs(m) * stay.hidden : (query_heads(m) + 2.0) * stay.heads * m->shape.HS;
    int in = 2 * half, out = in + 1, n = columns_of(m, out, stay);
    return plus(of_list(&layer->columns[in], m->shape.C, rows, WORK_TILE),
                of_list(&layer->columns[out], n, m->shape.C, WORK_TILE));
}

// Saved work is gamma or all that may go, and less than a tile more.
static void check_saved(Saved s, double gamma) {
    double least = MIN(gamma * s.all, s.most);
    CHECK(s.out >= least - 1e-3 * s.tile);
    CHECK(s.out <= least + s.tile);
}

static void check_amount(Pruner* k, Model* m, double gamma, SliceCount stay) {
    const PrunedLayer* layers = pruner_choose(k, m, gamma, stay);
    Saved sum = {0, 0, 0, 0};
    CHECK((layers != NULL) == (gamma > 0) && (layers || pruner_left_out(k) == 0));
    if (!layers) return;
    for (int l = 0; l < m->shape.L; l++)
        for (int half = 0; half < 2; half++) {
            Saved s = of_half(m, &layers[l], half, stay);
            check_saved(s, gamma);
            sum = plus(sum, s);
        }
    CHECK_CLOSE(pruner_left_out(k), sum.out / sum.all, 1e-12);
}

CLAIM(what_is_left_out_meets_gamma_within_a_tile) {
    static const SliceCount stays[] = {{2, 256}, {1, 256}, {2, 192}, {1, 48}, {0, 256}};
    for (int arch = 0; arch < N_ARCHS; arch++) {
        Model m = make_model(arch, 4, 128, 4, DT_F32);
        Pruner* k = pruner_open(&m);
        for (int i = 0; i < 100; i++) {
            double gamma = i % 16 == 0 ? 0 : random_uniform(3, (uint64_t)i);
            if (i % 16 == 8) gamma = 1;
            check_amount(k, &m, gamma, stays[i % COUNT(stays)]);
            train(&m, (uint64_t)i);
            if (test_failures_in_claim) {
                printf("    %s: gamma %g, %d heads\n", arch_table[arch].name, gamma, stays[i % COUNT(stays)].heads);
                break;
            }
        }
        close_both(k, &m);
    }
}

// ---- in checkpoints

static SliceCount staying(Model* m) { return (SliceCount){m->shape.kv_heads - 1, m->shape.hidden - 16}; }

// A few refreshes, the last of which leaves something out and has given something away.
static Pruner* lived(Model* m, uint64_t seed) {
    Pruner* k = pruner_open(m);
    for (int step = 0; step < 4; step++) {
        pruner_choose(k, m, 0.3, staying(m));
        train(m, seed + (uint64_t)step);
    }
    pruner_choose(k, m, 0.4, staying(m));
    return k;
}

// The tensors of a pruner as the reader finds them in a file; the values stay the pruner's.
static SafeTensors file_of(const Pruner* k, SafeTensor tensors[PRUNER_TENSORS]) {
    return (SafeTensors){.tensors = tensors, .n = pruner_tensors(k, tensors)};
}

static int holds_the_same(const Pruner* a, const Pruner* b) {
    SafeTensor tensors[2][PRUNER_TENSORS];
    int n = pruner_tensors(a, tensors[0]), same = n == pruner_tensors(b, tensors[1]);
    for (int i = 0; i < n && same; i++)
        same = !strcmp(tensors[0][i].name, tensors[1][i].name) && tensors[0][i].bytes == tensors[1][i].bytes &&
               !memcmp(tensors[0][i].data, tensors[1][i].data, tensors[0][i].bytes);
    return same;
}

CLAIM(a_checkpoint_brings_back_values_and_lists) {
    for (int kind = 0; kind < 2 * N_ARCHS; kind++) {
        Model m = make_model(kind / 2, 3, 128, 4, kind & 1 ? DT_BF16 : DT_F32);
        SafeTensor tensors[PRUNER_TENSORS];
        Pruner *k = lived(&m, 1), *again = pruner_open(&m);
        SafeTensors file = file_of(k, tensors);
        CHECK(file.n > 0 && pruner_load(again, &file, staying(&m), err) == 0);
        CHECK(pruner_layers(again) != NULL && pruner_left_out(again) == pruner_left_out(k));
        for (int step = 5; step < 9; step++) {  // the run goes on as if it had not stopped
            CHECK(hash_lists(k, &m) == hash_lists(again, &m));
            train(&m, (uint64_t)step);
            double gamma = step == 7 ? 0 : 0.5;
            pruner_choose(k, &m, gamma, all_of(&m));
            pruner_choose(again, &m, gamma, all_of(&m));
        }
        CHECK(holds_the_same(k, again));
        pruner_choose(k, &m, 0, all_of(&m));
        file = file_of(k, tensors);  // nothing is left out: there are none, and other tensors are not its
        CHECK(file.n == 0 && pruner_load(again, &file, all_of(&m), err) == 0);
        pruner_close(k);
        pruner_close(again);
        free_model(&m);
    }
}

// Nor are those of heads and hidden units read, which were once left out whole.
CLAIM(lists_of_other_models_and_methods_are_refused) {
    Model m = make_model(ARCH_GPT2, 2, 64, 4, DT_F32),
          others[] = {make_model(ARCH_GPT2, 3, 64, 4, DT_F32), make_model(ARCH_GPT2, 2, 128, 4, DT_F32)};
    SafeTensor of_units = {.name = "pruned.heads.value", .dtype = DT_F32, .n_dims = 2, .dims = {2, 2}};
    SafeTensors file = {.tensors = &of_units, .n = 1};
    for (int i = 0; i <= COUNT(others); i++) {
        SafeTensor tensors[PRUNER_TENSORS];
        Pruner *k = pruner_open(&m), *other = i ? lived(&others[i - 1], 1) : NULL;
        if (other) file = file_of(other, tensors);
        CHECK(pruner_load(k, &file, staying(&m), err) == -1 && strstr(err, "another model"));
        pruner_close(other);
        pruner_close(k);
    }
    for (int i = 0; i < COUNT(others); i++) free_model(&others[i]);
    free_model(&m);
}

// Of a rank with 2 heads of 8 and 64 hidden units, of which `hidden` stay: element j of a list's values and flags is
// what is given; j < 0: all.
static int load_changed(Model* m, const char* list, float value, float kept, int j, int hidden) {
    static float values[PRUNER_TENSORS][64];
    SafeTensor tensors[PRUNER_TENSORS];
    Pruner *k = lived(m, 1), *again = pruner_open(m);
    SafeTensors file = file_of(k, tensors);
    for (int t = 0; t < file.n; t++) {
        int is_kept = strstr(tensors[t].name, ".kept") != NULL, n = (int)tensors[t].dims[1];
        int stay = strstr(tensors[t].name, ".fcproj.") ? hidden : n;
        for (int i = 0; i < n; i++) values[t][i] = is_kept ? i < stay : 1;
        for (int i = 0; i < n; i++)
            if (strstr(tensors[t].name, list) && (i == j || j < 0)) values[t][i] = is_kept ? kept : value;
        tensors[t].data = values[t];
    }
    memset(err, 0, sizeof err);
    int result = pruner_load(again, &file, (SliceCount){m->shape.kv_heads, hidden}, err);
    if (result == 0) pruner_choose(again, m, 0.5, all_of(m));
    pruner_close(k);
    pruner_close(again);
    return result;
}

CLAIM(contents_that_make_no_sense_are_refused) {
    static const struct {
        const char* list;
        float value, kept;
        int j, hidden;
        const char* words;  // NULL: they do make sense
    } cases[] = {
        {".attproj.", 1, 1, 0, 64, NULL},
        {".fcproj.", 0, 0, 63, 64, NULL},
        {".fcproj.", 1, 1, 0, 48, NULL},
        {".qkv.", -1, 1, 31, 64, "pruned.qkv, layer 0: expected a value >= 0"},
        {".qkv.", NAN, 1, 31, 64, "pruned.qkv"},
        {".qkv.", INFINITY, 1, 31, 64, "pruned.qkv"},
        {".fc.", 1, 0.5f, 5, 64, "pruned.fc, layer 0: expected a value >= 0 and kept 0 or 1, found 1 and 0.5 at 5"},
        {".fc.", 1, 2, 5, 64, "pruned.fc"},
        {".fc.", 1, -1, 5, 64, "pruned.fc"},
        {".fc.", 1, NAN, 5, 64, "pruned.fc"},
        {".fcproj.", 1, 1, 50, 48, "pruned.fcproj, layer 0: expected a value >= 0 and kept 0, found 1 and 1 at 50"},
        {".fcproj.", 1, 0, -1, 64, "at least one that is kept"},
    };
    Model m = make_model(ARCH_GPT2, 1, 32, 4, DT_F32);
    for (int i = 0; i < COUNT(cases); i++) {
        int result = load_changed(&m, cases[i].list, cases[i].value, cases[i].kept, cases[i].j, cases[i].hidden);
        CHECK(cases[i].words ? result == -1 && strstr(err, cases[i].words) : result == 0);
        if (test_failures_in_claim) printf("    case %d: %s\n", i, err);
    }
    free_model(&m);
}

int main(void) { return test_main(); }
