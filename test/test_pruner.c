// test_pruner.c - claims about run/slow/prune.c, on a model made by hand: a rank's half of a small model, without
// weights.
#include "run/slow/balance.h"

#include "run/run.h"
#include "test/shapes.h"
#include "test/test.h"

// ---- the model

static int query_heads(Model* m) { return m->whole.NH / m->whole.NKV; }      // of a key/value head
static int fc_runs(Model* m) { return m->whole.arch == ARCH_GPT2 ? 1 : 2; }  // rows of FC for a hidden unit

static Model make_model(int arch, int layers, int width, int heads) {
    Model m;
    memset(&m, 0, sizeof m);
    model_set_ranks(&m, (ModelRanks*)calloc(1, sizeof *m.ranks));
    m.whole = shape_like((Arch)arch, layers, width, heads, 100, 8);
    m.ranks->split = split_even(&m.whole, 2);
    m.shape = split_shape(&m.whole, &m.ranks->split, 0);
    return m;
}

static void free_model(Model* m) { free(m->ranks); }

static void close_both(Pruner* k, Model* m) { pruner_close(k), free_model(m); }

static SliceCount all_of(Model* m) { return (SliceCount){m->shape.kv_heads, m->shape.hidden}; }

static int columns_of(Model* m, int id, SliceCount stay) {
    int span = query_heads(m) * m->shape.HS;
    return id == LINEAR_ATTPROJ ? stay.heads * span : id == LINEAR_FCPROJ ? stay.hidden : m->shape.C;
}

static int ascends_within(const IndexList* list, int n) {
    for (int i = 0; i < list->n; i++)
        if (list->index[i] < (i ? list->index[i - 1] + 1 : 0) || list->index[i] >= n) return 0;
    return list->n <= n;
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

CLAIM(lists_of_all_layers_leave_out_what_is_asked) {
    for (int arch = 0; arch < N_ARCHS; arch++) {
        Model m = make_model(arch, 3, 128, 4);
        Pruner* k = pruner_open(&m, 1);
        CHECK(pruner_layers(k) == NULL && pruner_choose(k, 0, all_of(&m), 0) == NULL && pruner_left_out(k) == 0);
        const PrunedLayer* layers = pruner_choose(k, 0.5, all_of(&m), 1);
        CHECK(layers != NULL && layers == pruner_layers(k) && pruner_left_out(k) == 0.5);
        for (int i = 0; i < 3 * N_LINEARS && layers; i++) {
            int K = columns_of(&m, i % N_LINEARS, all_of(&m));
            const IndexList* list = &layers[i / N_LINEARS].columns[i % N_LINEARS];
            CHECK(list->n == K / 2 && ascends_within(list, K));
        }
        close_both(k, &m);
    }
}

// ---- the draw

static uint64_t drawn(Model* m, uint64_t seed, int64_t turn) {
    Pruner* k = pruner_open(m, seed);
    pruner_choose(k, 0.5, all_of(m), turn);
    uint64_t hash = hash_lists(k, m);
    pruner_close(k);
    return hash;
}

CLAIM(data_ranks_leave_out_the_same) {
    Model ranks[2];
    Comm comm[2] = {{.rank = 0, .size = 2}, {.rank = 1, .size = 2}};
    for (int r = 0; r < 2; r++) {
        ranks[r] = make_model(ARCH_GPT2, 3, 128, 4);
        ranks[r].comm = ranks[r].world = ranks[r].job = &comm[r];
    }
    for (int turn = 0; turn < 20; turn++) CHECK(drawn(&ranks[0], 7, turn) == drawn(&ranks[1], 7, turn));
    for (int r = 0; r < 2; r++) free_model(&ranks[r]);
}

// Whatever was drawn before: so a run that goes on need not know it.
CLAIM(a_draw_follows_from_its_turn) {
    Model m = make_model(ARCH_GPT2, 3, 128, 4);
    Pruner* k = pruner_open(&m, 7);
    for (int turn = 0; turn < 20; turn++) {
        pruner_choose(k, 0.5, all_of(&m), turn);
        CHECK(hash_lists(k, &m) == drawn(&m, 7, turn));
    }
    close_both(k, &m);
}

static int is_like(const IndexList* a, const IndexList* b) {
    return a->n == b->n && !memcmp(a->index, b->index, (size_t)a->n * sizeof(int));
}

CLAIM(turns_seeds_layers_and_linears_differ) {
    enum { LAYERS = 3, LISTS = LAYERS * N_LINEARS };
    Model m = make_model(ARCH_GPT2, LAYERS, 128, 4), later = m;
    later.shape.first_layer = LAYERS;  // the next stage of a pipeline
    Pruner* k[] = {pruner_open(&m, 7), pruner_open(&m, 7), pruner_open(&m, 8), pruner_open(&later, 7)};
    const IndexList* lists[COUNT(k) * LISTS];
    for (int i = 0; i < COUNT(k); i++) {
        const PrunedLayer* layers = pruner_choose(k[i], 0.5, all_of(&m), i == 1);
        for (int j = 0; j < LISTS; j++) lists[i * LISTS + j] = &layers[j / N_LINEARS].columns[j % N_LINEARS];
    }
    for (int i = 0; i < COUNT(lists); i++)
        for (int j = 0; j < i; j++) CHECK(!is_like(lists[i], lists[j]));
    for (int i = 0; i < COUNT(k); i++) pruner_close(k[i]);
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
    const PrunedLayer* layers = pruner_choose(k, gamma, stay, 1);
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
        Model m = make_model(arch, 4, 128, 4);
        Pruner* k = pruner_open(&m, 1);
        for (int i = 0; i < 100; i++) {
            double gamma = i % 16 == 0 ? 0 : random_uniform(3, (uint64_t)i);
            if (i % 16 == 8) gamma = 1;
            check_amount(k, &m, gamma, stays[i % COUNT(stays)]);
            if (test_failures_in_claim) {
                printf("    %s: gamma %g, %d heads\n", arch_table[arch].name, gamma, stays[i % COUNT(stays)].heads);
                break;
            }
        }
        close_both(k, &m);
    }
}

int main(void) { return test_main(); }
