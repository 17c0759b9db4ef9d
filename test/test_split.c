// test_split.c - the claims of plan/model/split.h and of the tables of tensors: a tensor-parallel group has the whole
// model once, every rank the part that its heads, hidden units and rows of the vocabulary name; parts put together are
// the whole again, bit for bit; models of all architectures have as many parameters as they are known for.
//
// What a part is, is said here once more element by element: see place_in_whole.
#include "plan/model/split.h"
#include "test/test.h"

enum { CASES = 300, MOST_HEADS = MOST_TP + 6 };

typedef struct Case {
    uint64_t seed, index;
    Shape whole;
    TpSplit split;
    int kv_first[MOST_TP], kv_end[MOST_TP];  // the key/value heads that a rank's query heads read
} Case;

// 0 .. n - 1
static int draw(Case* c, int n) { return (int)(random_uniform(c->seed, c->index++) * n); }

static void find_kv_heads(Case* c) {
    for (int t = 0; t < c->split.ranks; t++) {
        c->kv_first[t] = c->kv_end[t] = 0;
        for (int h = c->split.head[t]; h < c->split.head[t + 1]; h++) {
            int kv_head = h / (c->whole.NH / c->whole.NKV);
            if (h == c->split.head[t]) c->kv_first[t] = kv_head;
            c->kv_end[t] = kv_head + 1;
        }
    }
}

// A model of any architecture, where a half of the dimensions follow from others as in a GPT-2, with few heads or many.
static Shape draw_shape(Case* c) {
    int wide = draw(c, 8) == 0, kv_heads = 1 + draw(c, wide ? MOST_HEADS : 9), g = draw(c, 2) ? 1 : 2 + draw(c, 6);
    if (wide) g = MIN(g, MOST_HEADS / kv_heads);
    Shape s = {.arch = (Arch)draw(c, N_ARCHS), .L = 1 + draw(c, 2), .NH = g * kv_heads, .NKV = kv_heads};
    s.features = arch_table[s.arch].features | (draw(c, 2) ? HAS_HEAD : 0);
    s.HS = 1 + draw(c, 1 + MIN(11, 100 / s.NH));
    s.C = draw(c, 2) ? s.NH * s.HS : 1 + draw(c, 60);
    s.U = draw(c, 2) ? 4 * s.NH * s.HS : s.NH + draw(c, 300);  // each rank can have some
    s.V = draw(c, 4) ? 1 + draw(c, 700) : 1 + draw(c, 60);
    s.context = s.positions = 1 + draw(c, 40);
    return shape_whole(s);
}

static Case draw_case(uint64_t seed) {
    Case c = {.seed = seed};
    c.whole = draw_shape(&c);
    // Half of them as many ranks as there can be.
    int most = MIN(c.whole.NH, MOST_TP), ranks = draw(&c, 2) ? 1 + draw(&c, most) : most;
    c.split = split_even(&c.whole, ranks);
    find_kv_heads(&c);
    return c;
}

// Any borders, empty parts among them.
static void draw_borders(Case* c, int* border, int n) {
    int R = c->split.ranks;
    for (int t = 1; t < R; t++) border[t] = draw(c, n + 1);
    border[0] = 0, border[R] = n;
    for (int i = 1; i < R; i++)
        for (int t = 1; t < R - 1; t++)
            if (border[t] > border[t + 1]) {
                int larger = border[t];
                border[t] = border[t + 1], border[t + 1] = larger;
            }
}

// A key/value head stays with its query heads where it can.
static void draw_any_split(Case* c) {
    if (!split_shares_kv(&c->whole, &c->split)) {
        draw_borders(c, c->split.head, c->whole.NKV);
        for (int t = 0; t <= c->split.ranks; t++) c->split.head[t] *= c->whole.NH / c->whole.NKV;
    }
    draw_borders(c, c->split.hidden, c->whole.U);
    draw_borders(c, c->split.vocab_row, c->whole.Vp);
    find_kv_heads(c);
}

// Runs a check on many cases, every other one with any split instead of an even one; names the seed that fails.
static void all_cases(void (*check)(const Case* c)) {
    FOR_SEEDS(seed, 0, CASES) {
        Case c = draw_case(seed);
        if (seed & 1) draw_any_split(&c);
        check(&c);
        if (test_failures_in_claim)
            printf("    seed %d: %s, %d heads for %d of %d channels, %d hidden units, %d rows, %d ranks\n", (int)seed,
                   arch_table[c.whole.arch].name, c.whole.NH, c.whole.NKV, c.whole.HS, c.whole.U, c.whole.Vp,
                   c.split.ranks);
    }
}

// Whole numbers, so that sums are exact; none is 0.
static float* some_values(const Case* c, const ParamTensor* tensor) {
    float* x = (float*)malloc(tensor->elems * sizeof *x);
    for (size_t i = 0; i < tensor->elems; i++)
        x[i] = 1 + floorf(1024 * (float)random_uniform(c->seed + 1000, (uint64_t)tensor->id << 32 | i));
    return x;
}

static float* room(size_t n) { return (float*)calloc(MAX(n, 1), sizeof(float)); }

// ---- what a part is

// Output i of rank t's QKV among all: first channels of all queries, then of all keys, then of all values.
static int qkv_in_whole(const Case* c, int t, int i) {
    int HS = c->whole.HS, q = (c->split.head[t + 1] - c->split.head[t]) * HS, kv = (c->kv_end[t] - c->kv_first[t]) * HS;
    if (i < q) return c->split.head[t] * HS + i;
    return (c->whole.NH + (i - q) / kv * c->whole.NKV + c->kv_first[t]) * HS + (i - q) % kv;
}

// Output i of its FC: hidden units, with SwiGLU the gates of all and then what they let pass.
static int fc_in_whole(const Case* c, int t, int i) {
    int own = c->split.hidden[t + 1] - c->split.hidden[t];
    return i / own * c->whole.U + c->split.hidden[t] + i % own;
}

// Where element (row, col) of rank t's part stands in the whole tensor.
static size_t place_in_whole(const Case* c, int t, ParamId id, int row, int col) {
    int C = c->whole.C, HS = c->whole.HS;
    switch (id) {
        case WTE:  // rows are tokens
        case HEADW: return (size_t)(c->split.vocab_row[t] + row) * (size_t)C + (size_t)col;
        case QKVW: return (size_t)qkv_in_whole(c, t, row) * (size_t)C + (size_t)col;
        case QKVB: return (size_t)qkv_in_whole(c, t, col);
        case ATTPROJW:  // columns are channels of heads
            return (size_t)row * (size_t)(c->whole.NH * HS) + (size_t)(c->split.head[t] * HS + col);
        case FCW: return (size_t)fc_in_whole(c, t, row) * (size_t)C + (size_t)col;
        case FCB: return (size_t)fc_in_whole(c, t, col);
        case FCPROJW:  // columns are hidden units
            return (size_t)row * (size_t)c->whole.U + (size_t)(c->split.hidden[t] + col);
        default:  // whole
            return (size_t)row * (size_t)C + (size_t)col;
    }
}

// Ranks that have element i of the whole tensor.
static int times_of(const Case* c, ParamId id, size_t i) {
    int queries = c->whole.NH * c->whole.HS, times = 0;
    if (split_is_replicated(id)) return c->split.ranks;
    if (id != QKVW && id != QKVB) return 1;
    int output = (int)(id == QKVW ? i / (size_t)c->whole.C : i);
    if (output < queries) return 1;
    int head = (output - queries) / c->whole.HS % c->whole.NKV;
    for (int t = 0; t < c->split.ranks; t++) times += c->kv_first[t] <= head && head < c->kv_end[t];
    return times;
}

// Every rank's part: its elements stand where they should, and nothing behind them is written; taken in place it is the
// same. Parts put over a tensor of their own and all over one are the whole: every element comes from as many ranks as
// have it.
static void check_tensor(const Case* c, ParamId id) {
    ParamTensor tensor = shape_param(&c->whole, id, 0);
    float *whole = some_values(c, &tensor), *sum = room(tensor.elems), *joined = room(tensor.elems), after = -7;
    size_t elems = 0, expected = 0;
    int wrong = 0;
    for (int t = 0; t < c->split.ranks; t++) {
        Shape shape = split_shape(&c->whole, &c->split, t);
        ParamTensor own = shape_param(&shape, id, 0);
        float *part = room(own.elems + 1), *alone = room(tensor.elems), *here = some_values(c, &tensor);
        part[own.elems] = after;
        split_take(part, whole, &c->whole, &c->split, t, id);
        split_take(here, here, &c->whole, &c->split, t, id);
        wrong |= part[own.elems] != after || memcmp(here, part, own.elems * sizeof *here) != 0;
        for (int row = 0; row < own.rows && !wrong; row++)
            for (int col = 0; col < own.cols; col++)
                wrong |=
                    part[(size_t)row * (size_t)own.cols + (size_t)col] != whole[place_in_whole(c, t, id, row, col)];
        split_put(alone, part, &c->whole, &c->split, t, id);
        split_put(joined, part, &c->whole, &c->split, t, id);
        for (size_t i = 0; i < tensor.elems; i++) sum[i] += alone[i];
        elems += own.elems;
        free(part), free(alone), free(here);
    }
    for (size_t i = 0; i < tensor.elems; i++) {
        int times = times_of(c, id, i);
        wrong |= times < 1 || sum[i] != (float)times * whole[i] || joined[i] != whole[i];
        expected += (size_t)times;
    }
    if (wrong) printf("    %s\n", param_table[id].name);
    CHECK(!wrong && elems == expected);
    free(whole), free(sum), free(joined);
}

static void check_tensors(const Case* c) {
    for (int id = 0; id < N_PARAMS; id++) check_tensor(c, (ParamId)id);
}

CLAIM(parts_have_the_heads_hidden_units_and_rows_of_their_ranks_and_together_are_the_whole) {
    all_cases(check_tensors);
}

// ---- even splits

// n things in pieces of `tile` where every rank can have one, else of 1: numbers of pieces differ by one at most.
static void check_even(const int* border, int n, int ranks, int tile) {
    int step = n / tile >= ranks ? tile : 1, least = n, most = 0;
    CHECK(border[0] == 0 && border[ranks] == n);
    for (int t = 0; t < ranks; t++) {
        int pieces = CEIL_DIV(border[t + 1] - border[t], step);
        CHECK(border[t + 1] > border[t]);
        CHECK(t == 0 || border[t] % step == 0);
        least = MIN(least, pieces), most = MAX(most, pieces);
    }
    CHECK(most - least <= 1);
}

// Whole units of attention: a key/value head with its g query heads. With more ranks than units, each has some query
// heads of one, and the ranks of one divide them evenly; split_kv_sharers names these.
static void check_heads(const Case* c) {
    int R = c->split.ranks, g = c->whole.NH / c->whole.NKV, units[MOST_TP + 1], least = R, most = 0;
    if (R <= c->whole.NKV) {
        for (int t = 0; t <= R; t++) units[t] = c->split.head[t] / g;
        for (int t = 0; t <= R; t++) CHECK(c->split.head[t] % g == 0);
        check_even(units, c->whole.NKV, R, 1);
    }
    for (int t = 0, first; t < R; t++) {
        int n = split_kv_sharers(&c->whole, &c->split, t, &first), heads[MOST_TP + 1];
        CHECK(R <= c->whole.NKV ? n == 1 : c->kv_end[t] == c->kv_first[t] + 1);
        CHECK(first <= t && t < first + n && n <= g);
        for (int i = 0; i < R; i++)
            CHECK((c->kv_first[t] < c->kv_end[i] && c->kv_first[i] < c->kv_end[t]) == (first <= i && i < first + n));
        least = MIN(least, n), most = MAX(most, n);
        for (int i = 0; n > 1 && i <= n; i++) heads[i] = c->split.head[first + i] - c->kv_first[t] * g;
        if (n > 1) check_even(heads, g, n, 1);
    }
    CHECK(most - least <= 1);
}

CLAIM(an_even_split_gives_all_of_everything_in_whole_heads_and_tiles) {
    FOR_SEEDS(seed, 0, CASES) {
        Case c = draw_case(seed);
        int R = c.split.ranks, labels = 0;
        CHECK(R >= 1 && R <= MOST_TP);
        check_heads(&c);
        check_even(c.split.hidden, c.whole.U, R, 64);
        check_even(c.split.vocab_row, c.whole.Vp, R, 64);
        for (int t = 0; t < R; t++) {
            Shape part = split_shape(&c.whole, &c.split, t);
            CHECK(part.heads == c.split.head[t + 1] - c.split.head[t]);
            CHECK(part.kv_heads == c.kv_end[t] - c.kv_first[t]);
            CHECK(part.hidden == c.split.hidden[t + 1] - c.split.hidden[t]);
            CHECK(part.first_vocab_row == c.split.vocab_row[t] &&
                  part.vocab_rows == c.split.vocab_row[t + 1] - c.split.vocab_row[t]);
            CHECK(part.L == c.whole.L && part.C == c.whole.C && part.NH == c.whole.NH && part.V == c.whole.V);
            CHECK(part.NKV == c.whole.NKV && part.HS == c.whole.HS && part.U == c.whole.U);
            CHECK(part.Vp == c.whole.Vp && part.context == c.whole.context && part.shards == c.whole.shards);
            labels += shape_labels(&part);
        }
        CHECK(labels == c.whole.V);  // padding belongs to nobody
    }
}

// ---- numbers of parameters

// Models as their config.json says, and the parameters that they are known for. Matmuls have all weights but biases,
// norms, positions and, with a head, the embeddings: numbers that are worked out here by hand.
CLAIM(models_have_the_parameters_that_they_are_known_for) {
    static const struct {
        const char* name;
        Arch arch;
        int L, C, NH, NKV, HS, U, V, head;
        double parameters, others;
    } models[] = {
        // 13 C a layer: biases 3 C, C, 4 C, C, norms 4 C; 2 C at the end, 1024 positions.
        {"GPT-2 124M", ARCH_GPT2, 12, 768, 12, 12, 64, 3072, 50257, 0, 124439808, (12 * 13 + 2 + 1024) * 768.0},
        {"SmolLM2-135M", ARCH_LLAMA, 30, 576, 9, 3, 64, 1536, 49152, 0, 134515008, (30 * 2 + 1) * 576.0},
        {"Llama-3.2-1B", ARCH_LLAMA, 16, 2048, 32, 8, 64, 8192, 128256, 0, 1235814400, (16 * 2 + 1) * 2048.0},
        {"Llama-3.1-8B", ARCH_LLAMA, 32, 4096, 32, 8, 128, 14336, 128256, 1, 8030261248,
         (32 * 2 + 1 + 128256) * 4096.0},
        // Biases of 14 + 2 + 2 heads.
        {"Qwen2.5-0.5B", ARCH_QWEN2, 24, 896, 14, 2, 64, 4864, 151936, 0, 494032768,
         (24 * 2 + 1) * 896.0 + 24 * 18 * 64},
        // Two norms of a head.
        {"Qwen3-0.6B", ARCH_QWEN3, 28, 1024, 16, 8, 128, 3072, 151936, 0, 596049920,
         (28 * 2 + 1) * 1024.0 + 28 * 2 * 128},
        // Padding of both the embeddings and the head: 2 65 8; 3 8; 4 4 8, 8 8, 3 16 8.
        {"a small one", ARCH_LLAMA, 1, 8, 2, 1, 4, 16, 65, 1, 1640, 3 * 8 + 65 * 8},
    };
    for (int i = 0; i < COUNT(models); i++) {
        Shape s = {.arch = models[i].arch, .L = models[i].L, .C = models[i].C, .NH = models[i].NH};
        s.features = arch_table[s.arch].features | (models[i].head ? HAS_HEAD : 0);
        s.NKV = models[i].NKV, s.HS = models[i].HS, s.U = models[i].U, s.V = models[i].V;
        s.context = s.positions = 1024;
        Shape whole = shape_whole(s);
        int before = test_failures_in_claim;
        CHECK((double)shape_param_count(&whole) == models[i].parameters);
        CHECK(shape_matmul_weights(&whole) == models[i].parameters - models[i].others);
        // 6 FLOPs a weight and token; two products of all heads' channels for each pair of tokens, causal, three times.
        CHECK(shape_training_flops(&whole, 1, 0) == 6 * shape_matmul_weights(&whole));
        CHECK(shape_training_flops(&whole, 0, 1) == 6.0 * s.L * s.NH * s.HS);
        if (test_failures_in_claim > before) printf("    %s: %zu\n", models[i].name, shape_param_count(&whole));
    }
}

// ---- numbers of tensors

static void check_indices(const Case* c) {
    for (int t = -1; t < c->split.ranks; t++) {
        Shape shape = t < 0 ? c->whole : split_shape(&c->whole, &c->split, t);
        for (int i = 0; i < shape_tensors(&shape); i++) {
            ParamTensor tensor = shape_tensor(&shape, i), again = shape_param(&shape, tensor.id, tensor.layer);
            CHECK(tensor.index == i && again.index == i);
            CHECK(!memcmp(&again, &tensor, sizeof again));
            ParamTensor whole = shape_param(&c->whole, tensor.id, tensor.layer);
            CHECK(whole.index == i);  // ranks number their parts as the whole is numbered
        }
    }
}

CLAIM(the_number_of_a_tensor_leads_back_to_it) { all_cases(check_indices); }

int main(void) { return test_main(); }
