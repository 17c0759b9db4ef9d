// test_pruner.c - claims about run/prune.h, on a model made by hand: a rank's half of a small model, weights in host
// memory.
#include "run/prune.h"

#include "data/prune_file.h"
#include "kernels/cpu/cpu.h"
#include "plan/disk.h"
#include "run/run.h"
#include "test/shapes.h"
#include "test/temporary.h"

static char path[600], other_path[600], err[ERR_BYTES];

static const ParamId matrices[N_LINEARS] = {QKVW, ATTPROJW, FCW, FCPROJW};

// ---- the model

static int query_heads(const Model* m) { return m->whole.NH / m->whole.NKV; }      // of a key/value head
static int fc_runs(const Model* m) { return m->whole.arch == ARCH_GPT2 ? 1 : 2; }  // rows of FC for a hidden unit

static Model make_model(int arch, int layers, int width, int heads, DType dt) {
    Model m;
    memset(&m, 0, sizeof m);
    m.whole = shape_like((Arch)arch, layers, width, heads, 100, 8);
    m.split = split_even(&m.whole, 2);
    m.shape = split_shape(&m.whole, &m.split, 0);
    m.dt = dt;
    m.k = &cpu_reference_kernels;
    m.zero.stage = 1;
    m.zero.part[ZERO_WEIGHTS] = m.k->alloc(shape_param_elems(&m.shape) * dtype_bytes(dt));
    zero_open(&m);
    return m;
}

static void free_model(Model* m) {
    m->k->free_memory(m->zero.part[ZERO_WEIGHTS]);
    zero_close(&m->zero);
}

static SliceCount all_of(const Model* m) { return (SliceCount){m->shape.kv_heads, m->shape.hidden}; }

// Adds to columns first .. first + n of rows from .. from + rows of a matrix; exact in bf16 where sums have few bits.
static void add(const Model* m, int id, int l, int from, int rows, int first, int n, float d) {
    ParamTensor t = shape_param(&m->shape, matrices[id], l);
    char* weights = zero_weights(m, &t);
    for (int r = from; r < from + rows; r++)
        for (int c = first; c < first + n; c++) {
            size_t i = (size_t)r * (size_t)t.cols + (size_t)c;
            if (m->dt == DT_F32) ((float*)weights)[i] += d;
            else ((bf16*)weights)[i] = bf16_from_float(bf16_to_float(((bf16*)weights)[i]) + d);
        }
}

static void add_column(const Model* m, int id, int l, int column, float d) {
    add(m, id, l, 0, shape_param(&m->shape, matrices[id], l).rows, column, 1, d);
}

// Every weight moves a little, columns by different amounts.
static void train(const Model* m, uint64_t seed) {
    for (int l = 0; l < m->shape.L; l++)
        for (int id = 0; id < N_LINEARS; id++)
            for (int c = 0; c < shape_param(&m->shape, matrices[id], l).cols; c++)
                add_column(
                    m, id, l, c,
                    (float)random_uniform(seed, (uint64_t)((l * N_LINEARS + id) * 1000 + c)) * (1.0f + (float)l));
}

static int columns_of(const Model* m, int id, SliceCount stay) {
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

static uint64_t hash_lists(const Pruner* k, const Model* m, Shed shed) {
    const PrunedLayer* layers = pruner_layers(k);
    uint64_t hash = 0;
    for (int l = 0; l < m->shape.L && layers; l++) {
        const IndexList slices[] = {layers[l].units[ATTENTION], layers[l].units[MLP]};
        const IndexList* lists = shed == SHED_COLUMNS ? layers[l].columns : slices;
        for (int i = 0; i < (shed == SHED_COLUMNS ? 4 : 2); i++)
            hash = hash_bytes(lists[i].index, (size_t)lists[i].n * sizeof(int), hash);
    }
    return hash;
}

// ---- what is kept

// Columns c in the order c * 5 mod K: neighbours change by different amounts. 1 / 64 steps are exact in bf16 below 4.
static void lists_follow_the_changes_of_columns(void) {
    for (int i = 0; i < 2 * N_ARCHS; i++) {
        Model m = make_model(i / 2, 3, 128, 4, i % 2 ? DT_BF16 : DT_F32);
        Pruner* k = pruner_open(&m, SHED_COLUMNS, PRIORITY_CHANGE, 0, 1);
        CHECK(pruner_layers(k) == NULL && pruner_choose(k, &m, 0, all_of(&m), 0) == NULL && pruner_left_out(k) == 0);
        for (int l = 0; l < 3; l++)
            for (int id = 0; id < N_LINEARS; id++)
                for (int c = 0, K = columns_of(&m, id, all_of(&m)); c < K; c++)
                    add_column(&m, id, l, c, (float)(c * 5 % K) * (l == 1 ? -1 : 1) / 64);
        const PrunedLayer* layers = pruner_choose(k, &m, 0.5, all_of(&m), 20);
        CHECK(layers != NULL && layers == pruner_layers(k) && pruner_left_out(k) == 0.5);
        for (int l = 0; l < 3 && layers; l++)
            for (int id = 0; id < N_LINEARS; id++) {
                int K = columns_of(&m, id, all_of(&m)), right = 1;
                const IndexList* list = &layers[l].columns[id];
                CHECK(list->n == K / 2 && ascends_within(list, K));
                for (int c = 0; c < K; c++) right = right && holds(list, c) == (c * 5 % K >= K / 2);
                CHECK(right);
            }
        pruner_close(k);
        free_model(&m);
    }
}

// Weights that are large have not changed: the first refresh takes the first ones, as all values are equal.
static void nothing_is_known_before_the_second_refresh(void) {
    for (int shed = SHED_COLUMNS; shed <= SHED_SLICES; shed++) {
        Model m = make_model(ARCH_GPT2, 1, 128, 4, DT_F32);
        train(&m, 1);
        Pruner* k = pruner_open(&m, (Shed)shed, PRIORITY_CHANGE, 0, 1);
        const PrunedLayer* layers = pruner_choose(k, &m, 0.5, all_of(&m), 0);
        const IndexList* list = shed ? &layers->units[MLP] : &layers->columns[LINEAR_FCPROJ];
        CHECK(list->n == 128 && list->index[127] == 127);
        pruner_close(k);
        free_model(&m);
    }
}

static void a_change_counts_for_one_refresh(void) {
    Model m = make_model(ARCH_GPT2, 1, 128, 4, DT_F32);
    Pruner* k = pruner_open(&m, SHED_COLUMNS, PRIORITY_CHANGE, 0, 1);
    pruner_choose(k, &m, 0, all_of(&m), 0);
    for (int c = 64; c < 128; c++) add_column(&m, LINEAR_FC, 0, c, 10);
    const PrunedLayer* layers = pruner_choose(k, &m, 0, all_of(&m), 1);
    CHECK(layers == NULL);
    for (int c = 32; c < 96; c++) add_column(&m, LINEAR_FC, 0, c, 1);
    layers = pruner_choose(k, &m, 0.5, all_of(&m), 2);
    const IndexList* list = &layers->columns[LINEAR_FC];
    CHECK(list->n == 64 && list->index[0] == 32 && list->index[63] == 95);
    pruner_close(k);
    free_model(&m);
}

// Key/value head 1 changes in its keys, by 4096 in all. Head 0 changes less: by 3072 in the rows of its queries, keys
// and values, by 512 or 2048 in its columns.
static void change_heads(const Model* m, int l) {
    int g = query_heads(m), kv = m->shape.kv_heads * 32, q = g * kv, rows[] = {g * 32, 32, 32},
        first[] = {0, q, q + kv};
    add(m, LINEAR_QKV, l, q + 32, 32, 0, 128, 1);
    for (int run = 0; run < 3; run++) add(m, LINEAR_QKV, l, first[run], rows[run], 0, 128, 0.75f / (float)(g + 2));
    add(m, LINEAR_ATTPROJ, l, 0, 128, 0, g * 32, (l == 0 ? 0.125f : 0.5f) / (float)g);
}

// Each in a row of FC, with SwiGLU its gate or its up row, or in its column of FCPROJ.
static void change_hidden_units(const Model* m, int l) {
    for (int u = 0; u < 256; u++) {
        int place = u % (fc_runs(m) + 1);
        if (place) add(m, LINEAR_FC, l, (place - 1) * 256 + u, 1, 0, 128, (float)u / 64);
        else add_column(m, LINEAR_FCPROJ, l, u, (float)u / 64);
    }
}

static void lists_follow_the_changes_of_heads_and_hidden_units(void) {
    for (int i = 0; i < 2 * N_ARCHS; i++) {
        Model m = make_model(i / 2, 2, 128, 4, i % 2 ? DT_BF16 : DT_F32);
        Pruner* k = pruner_open(&m, SHED_SLICES, PRIORITY_CHANGE, 0, 1);
        CHECK(pruner_choose(k, &m, 0, all_of(&m), 0) == NULL);
        for (int l = 0; l < 2; l++) change_heads(&m, l), change_hidden_units(&m, l);
        const PrunedLayer* layers = pruner_choose(k, &m, 0.5, all_of(&m), 20);
        CHECK(layers != NULL && pruner_left_out(k) == 0.5);
        for (int l = 0; l < 2 && layers; l++) {
            CHECK(layers[l].units[ATTENTION].n == 1 && layers[l].units[ATTENTION].index[0] == (l == 0));
            CHECK(layers[l].units[MLP].n == 128 && layers[l].units[MLP].index[0] == 128);
        }
        pruner_close(k);
        free_model(&m);
    }
}

// What is left out may well change, by weight decay: it does not count. What others compute counts in full.
static void check_what_is_measured(int arch) {
    Model m = make_model(arch, 1, 128, 4, DT_F32);
    Pruner* k = pruner_open(&m, SHED_COLUMNS, PRIORITY_CHANGE, 0, 1);
    pruner_choose(k, &m, 0, all_of(&m), 0);
    SliceCount stay = {1, 192};
    const PrunedLayer* layers = pruner_choose(k, &m, 0.5, stay, 1);  // nothing changed: the first ones are kept
    const IndexList* list = &layers->columns[LINEAR_FCPROJ];
    CHECK(list->n == 96 && list->index[95] == 95 && layers->columns[LINEAR_ATTPROJ].n == 16 * query_heads(&m));
    for (int c = 0; c < 256; c++) add_column(&m, LINEAR_FCPROJ, 0, c, c < 96 ? 2 : c < 192 ? 1000 : 10);
    layers = pruner_choose(k, &m, 0.5, all_of(&m), 2);
    list = &layers->columns[LINEAR_FCPROJ];
    for (int i = 0; i < 128; i++) CHECK(list->index[i] == (i < 64 ? i : i + 128));
    pruner_close(k);
    free_model(&m);
}

static void only_what_is_computed_is_measured(void) {
    for (int arch = 0; arch < N_ARCHS; arch++) check_what_is_measured(arch);
}

static void random_and_inverse_are_options(void) {
    Model m = make_model(ARCH_GPT2, 2, 128, 4, DT_F32);
    Pruner *random = pruner_open(&m, SHED_COLUMNS, PRIORITY_RANDOM, 0, 1),
           *inverse = pruner_open(&m, SHED_COLUMNS, PRIORITY_INVERSE, 0, 1);
    pruner_choose(random, &m, 0, all_of(&m), 0);
    pruner_choose(inverse, &m, 0, all_of(&m), 0);
    for (int c = 0; c < 128; c++) add_column(&m, LINEAR_QKV, 0, c, (float)c);
    const PrunedLayer* layers = pruner_choose(inverse, &m, 0.5, all_of(&m), 1);
    CHECK(layers->columns[LINEAR_QKV].n == 64 && layers->columns[LINEAR_QKV].index[63] == 63);
    layers = pruner_choose(random, &m, 0.5, all_of(&m), 1);
    CHECK(memcmp(layers[0].columns[LINEAR_QKV].index, layers[1].columns[LINEAR_QKV].index, 64 * sizeof(int)) != 0);
    CHECK(memcmp(layers[0].columns[LINEAR_QKV].index, layers[0].columns[LINEAR_FC].index, 64 * sizeof(int)) != 0);
    uint64_t first = hash_lists(random, &m, SHED_COLUMNS);
    pruner_choose(random, &m, 0.5, all_of(&m), 2);
    CHECK(hash_lists(random, &m, SHED_COLUMNS) != first);
    pruner_choose(random, &m, 0.5, all_of(&m), 1);
    CHECK(hash_lists(random, &m, SHED_COLUMNS) == first);
    Pruner* other = pruner_open(&m, SHED_COLUMNS, PRIORITY_RANDOM, 0, 2);
    pruner_choose(other, &m, 0.5, all_of(&m), 1);
    CHECK(hash_lists(other, &m, SHED_COLUMNS) != first);
    pruner_close(random);
    pruner_close(inverse);
    pruner_close(other);
    free_model(&m);
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
static Saved of_half(const Model* m, const PrunedLayer* layer, int half, SliceCount stay) {
    double rows = half ? fc_runs(m) * stay.hidden : (query_heads(m) + 2.0) * stay.heads * m->shape.HS;
    int in = 2 * half, out = in + 1, n = columns_of(m, out, stay);
    return plus(of_list(&layer->columns[in], m->shape.C, rows, WORK_TILE),
                of_list(&layer->columns[out], n, m->shape.C, WORK_TILE));
}

static Saved of_slices(const Model* m, const PrunedLayer* layer, SliceCount stay) {
    double C = m->shape.C, HS = m->shape.HS;
    Saved heads = of_list(&layer->units[ATTENTION], stay.heads, (2 * query_heads(m) + 2) * HS * C, 1),
          hidden = of_list(&layer->units[MLP], stay.hidden, (fc_runs(m) + 1) * C, 16);
    heads.tile = 0;  // rounded down: hidden units absorb the rest
    return plus(heads, hidden);
}

// Saved work is gamma or all that may go, and less than a tile more.
static void check_saved(Saved s, double gamma) {
    double least = MIN(gamma * s.all, s.most);
    CHECK(s.out >= least - 1e-3 * s.tile);
    CHECK(s.out <= least + s.tile);
}

static void check_amount(Pruner* k, const Model* m, Shed shed, int by_layer, double gamma, SliceCount stay,
                         int64_t step) {
    const PrunedLayer* layers = pruner_choose(k, m, gamma, stay, step);
    Saved sum = {0, 0, 0, 0};
    CHECK((layers != NULL) == (gamma > 0) && (layers || pruner_left_out(k) == 0));
    if (!layers) return;
    for (int l = 0; l < m->shape.L; l++) {
        Saved layer = {0, 0, 0, 0};
        if (shed == SHED_SLICES) layer = of_slices(m, &layers[l], stay);
        for (int half = 0; half < 2 && shed == SHED_COLUMNS; half++) {
            Saved s = of_half(m, &layers[l], half, stay);
            if (!by_layer) check_saved(s, gamma);
            layer = plus(layer, s);
        }
        if (!by_layer && shed == SHED_SLICES) check_saved(layer, gamma);
        sum = plus(sum, layer);
    }
    if (by_layer) check_saved(sum, gamma);
    CHECK_CLOSE(pruner_left_out(k), sum.out / sum.all, 1e-12);
}

// Hidden units can absorb what heads leave in all of these, so that the dearest tile is one of theirs.
static void what_is_left_out_meets_gamma_within_a_tile(void) {
    static const SliceCount stays[] = {{2, 256}, {1, 256}, {2, 192}, {1, 48}, {0, 256}};
    for (int kind = 0; kind < 8; kind++) {
        Shed shed = kind & 1 ? SHED_SLICES : SHED_COLUMNS;
        int by_layer = kind >> 1 & 1, arch = kind < 4 ? ARCH_GPT2 : 1 + kind % 3;
        Model m = make_model(arch, 4, 128, 4, DT_F32);
        Pruner* k = pruner_open(&m, shed, PRIORITY_CHANGE, by_layer, 1);
        for (int i = 0; i < 100; i++) {
            double gamma = i % 16 == 0 ? 0 : random_uniform(3, (uint64_t)i);
            if (i % 16 == 8) gamma = 1;
            check_amount(k, &m, shed, by_layer, gamma, stays[i % COUNT(stays)], i);
            train(&m, (uint64_t)i);
            if (test_failures_in_claim) {
                printf("    %s: %s%s, gamma %g, %d heads\n", arch_table[arch].name, shed ? "slices" : "columns",
                       by_layer ? " by layer" : "", gamma, stays[i % COUNT(stays)].heads);
                break;
            }
        }
        pruner_close(k);
        free_model(&m);
    }
}

static void layers_that_change_more_leave_out_less(void) {
    for (int i = 0; i < 2 * N_ARCHS; i++) {
        int shed = i % 2;
        Model m = make_model(i / 2, 4, 128, 4, DT_F32);
        Pruner* k = pruner_open(&m, (Shed)shed, PRIORITY_CHANGE, 1, 1);
        double share[4];
        pruner_choose(k, &m, 0, all_of(&m), 0);
        train(&m, 1);  // layer l changes by 1 + l
        const PrunedLayer* layers = pruner_choose(k, &m, 0.4, all_of(&m), 1);
        for (int l = 0; l < 4; l++) {
            Saved s = shed ? of_slices(&m, &layers[l], all_of(&m))
                           : plus(of_half(&m, &layers[l], 0, all_of(&m)), of_half(&m, &layers[l], 1, all_of(&m)));
            share[l] = s.out / s.all;
        }
        // g_l is as 1 / (1 + l), and their mean 0.4: 0.768, 0.384, 0.256, 0.192. A tile is at most 6 % of a layer.
        for (int l = 0; l < 4; l++) CHECK_CLOSE(share[l], 0.4 * 4 / (1 + l) / (1 + 1 / 2.0 + 1 / 3.0 + 1 / 4.0), 0.07);
        pruner_close(k);
        free_model(&m);
    }
}

static void the_same_weights_give_the_same_lists(void) {
    for (int kind = 0; kind < 12; kind++) {
        Shed shed = kind & 1 ? SHED_SLICES : SHED_COLUMNS;
        Model m = make_model(kind / 3, 3, 128, 4, DT_BF16);
        Pruner* k[2];
        for (int i = 0; i < 2; i++) k[i] = pruner_open(&m, shed, (Priority)(kind / 4), kind >> 1 & 1, 5);
        for (int step = 0; step < 10; step++) {
            double gamma = 0.1 * (step % 7);
            for (int i = 0; i < 2; i++) pruner_choose(k[i], &m, gamma, all_of(&m), step);
            CHECK(hash_lists(k[0], &m, shed) == hash_lists(k[1], &m, shed));
            train(&m, (uint64_t)step);
        }
        for (int i = 0; i < 2; i++) pruner_close(k[i]);
        free_model(&m);
    }
}

// ---- files

static size_t get(const char* name, char* bytes, size_t most) {
    FILE* f = fopen(name, "rb");
    if (!f) exit(1);
    size_t n = fread(bytes, 1, most, f);
    fclose(f);
    return n;
}

// A few refreshes, the last of which leaves something out and has given something away.
static Pruner* lived(const Model* m, Shed shed, uint64_t seed) {
    Pruner* k = pruner_open(m, shed, PRIORITY_CHANGE, 1, 1);
    for (int step = 0; step < 4; step++) {
        pruner_choose(k, m, 0.3, (SliceCount){m->shape.kv_heads - 1, m->shape.hidden - 16}, step);
        train(m, seed + (uint64_t)step);
    }
    pruner_choose(k, m, 0.4, (SliceCount){m->shape.kv_heads - 1, m->shape.hidden - 16}, 4);
    return k;
}

static void a_file_brings_back_values_and_lists(void) {
    for (int kind = 0; kind < 2 * N_ARCHS; kind++) {
        Shed shed = kind & 1 ? SHED_SLICES : SHED_COLUMNS;
        Model m = make_model(kind / 2, 3, 128, 4, kind & 2 ? DT_BF16 : DT_F32);
        Pruner *k = lived(&m, shed, 1), *again = pruner_open(&m, shed, PRIORITY_CHANGE, 1, 1);
        CHECK(pruner_save(k, path, err, sizeof err) == 0);
        CHECK(pruner_load(again, path, err, sizeof err) == 0);
        CHECK(pruner_layers(again) != NULL && pruner_left_out(again) == pruner_left_out(k));
        for (int step = 5; step < 9; step++) {  // the run goes on as if it had not stopped
            CHECK(hash_lists(k, &m, shed) == hash_lists(again, &m, shed));
            train(&m, (uint64_t)step);
            double gamma = step == 7 ? 0 : 0.5;
            pruner_choose(k, &m, gamma, all_of(&m), step);
            pruner_choose(again, &m, gamma, all_of(&m), step);
        }
        static char bytes[2][1 << 17];
        CHECK(pruner_save(k, path, err, sizeof err) == 0 && pruner_save(again, other_path, err, sizeof err) == 0);
        size_t n = get(path, bytes[0], sizeof bytes[0]);
        CHECK(n == get(other_path, bytes[1], sizeof bytes[1]) && n < sizeof bytes[0]);
        CHECK(!memcmp(bytes[0], bytes[1], n));
        pruner_choose(k, &m, 0, all_of(&m), 9);
        CHECK(pruner_save(k, path, err, sizeof err) == 0 && pruner_load(again, path, err, sizeof err) == 0);
        CHECK(pruner_layers(again) == NULL);
        pruner_close(k);
        pruner_close(again);
        free_model(&m);
    }
}

// Loads what is in the file: refused with words, which leaves what was there before, or equal to `good`. A save shows
// it.
static void check_load(Pruner* into, char* before, size_t* n_before, const char* good, size_t n_good) {
    static char found[1 << 14];
    memset(err, 0, sizeof err);
    int refused = pruner_load(into, path, err, sizeof err);
    CHECK(!refused || (refused == -1 && strstr(err, path)));
    CHECK(pruner_save(into, other_path, err, sizeof err) == 0);
    size_t n = get(other_path, found, sizeof found);
    if (!refused) memcpy(before, good, *n_before = n_good);
    CHECK(n == *n_before && !memcmp(found, before, n));
}

static void damage_is_refused_and_changes_nothing(void) {
    static char good[1 << 14], before[1 << 14], bad[1 << 14];
    for (int shed = SHED_COLUMNS; shed <= SHED_SLICES; shed++) {
        Model m = make_model(ARCH_GPT2, 1, 32, 4, DT_F32);
        Pruner *k = lived(&m, (Shed)shed, 1), *into = lived(&m, (Shed)shed, 100);
        CHECK(pruner_save(into, path, err, sizeof err) == 0);
        size_t n_before = get(path, before, sizeof before);
        CHECK(pruner_save(k, path, err, sizeof err) == 0);
        size_t n = get(path, good, sizeof good);
        CHECK(n < sizeof good && (n != n_before || memcmp(good, before, n) != 0));
        for (size_t length = n; length-- > 0;) {
            if (truncate(path, (off_t)length)) exit(1);
            memset(err, 0, sizeof err);
            CHECK(pruner_load(into, path, err, sizeof err) == -1 && strstr(err, path));
        }
        check_load(into, before, &n_before, good, n);
        int accepted = 0;
        for (uint64_t seed = 0; seed < 1500; seed++) {
            int edits = 1 + (int)(hash64(seed) % 3);
            memcpy(bad, good, n);
            for (int e = 0; e < edits; e++)
                bad[hash64(seed * 8 + 1 + (uint64_t)e) % n] ^= (char)(1 << hash64(seed * 8 + 5 + (uint64_t)e) % 8);
            write_file(path, bad, n);
            Pruner* fresh = pruner_open(&m, (Shed)shed, PRIORITY_CHANGE, 1, 1);
            if (pruner_load(fresh, path, err, sizeof err) == 0) accepted++;
            pruner_close(fresh);
            if (seed % 5 == 0 || seed > 1490) check_load(into, before, &n_before, good, n);
            if (test_failures_in_claim) {
                printf("    seed %llu: %s\n", (unsigned long long)seed, err);
                break;
            }
        }
        printf("    %d of 1500 damaged files were taken: their values were whole\n", accepted);
        CHECK(accepted < 150);
        write_file(path, good, n);
        CHECK(pruner_load(into, path, err, sizeof err) == 0);
        pruner_close(k);
        pruner_close(into);
        free_model(&m);
    }
}

static void files_of_other_models_and_methods_are_refused(void) {
    Model m = make_model(ARCH_GPT2, 2, 64, 4, DT_F32),
          models[] = {make_model(ARCH_GPT2, 3, 64, 4, DT_F32), make_model(ARCH_GPT2, 2, 128, 4, DT_F32)};
    for (int shed = SHED_COLUMNS; shed <= SHED_SLICES; shed++) {
        Pruner* k = lived(&m, (Shed)shed, 1);
        uint64_t lists = hash_lists(k, &m, (Shed)shed);
        for (int i = 0; i < COUNT(models); i++) {
            Pruner* other = lived(&models[i], (Shed)shed, 1);
            CHECK(pruner_save(other, path, err, sizeof err) == 0);
            CHECK(pruner_load(k, path, err, sizeof err) == -1 && strstr(err, "another model or rank"));
            pruner_close(other);
        }
        Pruner* other = lived(&m, (Shed)!shed, 1);
        CHECK(pruner_save(other, path, err, sizeof err) == 0);
        CHECK(pruner_load(k, path, err, sizeof err) == -1 && strstr(err, "another way"));
        CHECK(pruner_load(k, work, err, sizeof err) == -1 && strstr(err, work));
        CHECK(pruner_load(k, "/proc/no/such/file", err, sizeof err) == -1 && strstr(err, "no/such"));
        CHECK(pruner_save(k, "/proc/no/such/file", err, sizeof err) == -1 && strstr(err, "no/such"));
        CHECK(hash_lists(k, &m, (Shed)shed) == lists);
        pruner_close(other);
        pruner_close(k);
    }
    free_model(&m);
    for (int i = 0; i < COUNT(models); i++) free_model(&models[i]);
}

// A whole file of a rank with 2 heads of 8 and 64 hidden units, written with a right hash whatever is in it.
static int load_written(const Model* m, int table, float value, float kept, int j, int stay) {
    static float values[4][64], keeps[4][64];
    PruneTable tables[] = {{"attproj", 16, 16, values[0], keeps[0]},
                           {"qkv", 32, 32, values[1], keeps[1]},
                           {"fcproj", 64, 64, values[2], keeps[2]},
                           {"fc", 32, 32, values[3], keeps[3]}};
    for (int i = 0; i < 4 * 64; i++) values[i / 64][i % 64] = keeps[i / 64][i % 64] = 1;
    values[table][MAX(j, 0)] = value;
    for (int i = 0; i < 64; i++)
        if (i == j || j < 0) keeps[table][i] = kept;
    if (stay >= 0) tables[table].stay = stay;
    CHECK(prune_file_write(tables, 4, 1, path, err, sizeof err) == 0);
    Pruner* k = pruner_open(m, SHED_COLUMNS, PRIORITY_CHANGE, 0, 1);
    memset(err, 0, sizeof err);
    int result = pruner_load(k, path, err, sizeof err);
    CHECK(pruner_layers(k) == NULL || result == 0);
    if (result == 0) pruner_choose(k, m, 0.5, all_of(m), 1);
    pruner_close(k);
    return result;
}

static void contents_that_make_no_sense_are_refused(void) {
    Model m = make_model(ARCH_GPT2, 1, 32, 4, DT_F32);
    CHECK(load_written(&m, 0, 1, 1, 0, -1) == 0 && load_written(&m, 2, 0, 0, 63, -1) == 0);
    CHECK(load_written(&m, 0, 1, 1, 0, 8) == 0 && load_written(&m, 2, 1, 1, 0, 48) == 0);
    static const float values[] = {-1, NAN, INFINITY}, kept[] = {0.5f, 2, -1, NAN};
    for (int i = 0; i < COUNT(values); i++)
        CHECK(load_written(&m, 1, values[i], 1, 31, -1) == -1 && strstr(err, "qkv.value"));
    for (int i = 0; i < COUNT(kept); i++) CHECK(load_written(&m, 3, 1, kept[i], 5, -1) == -1 && strstr(err, "fc.kept"));
    CHECK(load_written(&m, 2, 1, 0, 50, 48) == -1 && strstr(err, "expected 1, found 0 at 50"));  // given away
    CHECK(load_written(&m, 2, 1, 0, -1, -1) == -1 && strstr(err, "at least one that is kept"));
    CHECK(load_written(&m, 2, 1, 1, 0, 65) == -1 && strstr(err, "fcproj.stay"));
    CHECK(load_written(&m, 1, 1, 1, 0, 24) == -1 && strstr(err, "qkv.stay: expected all 32, found 24"));
    CHECK(load_written(&m, 3, 1, 1, 0, 0) == -1 && strstr(err, "fc.stay: expected all 32, found 0"));
    float more = 1;
    PruneTable tables[] = {{"attproj", 16, 16, NULL, NULL},
                           {"qkv", 32, 32, NULL, NULL},
                           {"fcproj", 64, 64, NULL, NULL},
                           {"fc", 32, 32, NULL, NULL},
                           {"more", 1, 1, &more, &more}};
    static float ones[64];
    for (int i = 0; i < 64; i++) ones[i] = 1;
    for (int i = 0; i < 4; i++) tables[i].value = tables[i].kept = ones;
    Pruner* k = pruner_open(&m, SHED_COLUMNS, PRIORITY_CHANGE, 0, 1);
    CHECK(prune_file_write(tables, 5, 1, path, err, sizeof err) == 0);
    CHECK(pruner_load(k, path, err, sizeof err) == -1 && strstr(err, "expected 13 tensors, found 16"));
    pruner_close(k);
    CHECK(load_written(&m, 0, 1, 1, 0, 12) == -1 && strstr(err, "attproj.stay: expected a multiple of 8, found 12"));
    free_model(&m);
}

int main(void) {
    temporary_begin();
    snprintf(path, sizeof path, "%s/kept.safetensors", work);
    snprintf(other_path, sizeof other_path, "%s/other.safetensors", work);
    RUN(nothing_is_known_before_the_second_refresh);
    RUN(a_change_counts_for_one_refresh);
    RUN(lists_follow_the_changes_of_columns);
    RUN(lists_follow_the_changes_of_heads_and_hidden_units);
    RUN(only_what_is_computed_is_measured);
    RUN(random_and_inverse_are_options);
    RUN(what_is_left_out_meets_gamma_within_a_tile);
    RUN(layers_that_change_more_leave_out_less);
    RUN(the_same_weights_give_the_same_lists);
    RUN(a_file_brings_back_values_and_lists);
    RUN(damage_is_refused_and_changes_nothing);
    RUN(contents_that_make_no_sense_are_refused);
    RUN(files_of_other_models_and_methods_are_refused);
    return temporary_end();
}
