// test_split.c - the claims of plan/split.h: a tensor-parallel group has the whole model once, every rank the part that
// its heads, hidden units and rows of wte name, and parts put together are the whole again, bit for bit.
//
// What a part is, is said here once more element by element: see place_in_whole.
#include "plan/split.h"
#include "test/test.h"

enum { CASES = 300, MOST_HEADS = MOST_TP + 6 };

typedef struct Case {
    uint64_t seed, index;
    Shape whole;
    TpSplit split;
} Case;

// 0 .. n - 1
static int draw(Case* c, int n) { return (int)(random_uniform(c->seed, c->index++) * n); }

static Case draw_case(uint64_t seed) {
    Case c = {.seed = seed};
    int wide = draw(&c, 8) == 0, heads = 1 + draw(&c, wide ? MOST_HEADS : 9), size = 1 + draw(&c, wide ? 2 : 12);
    int vocab = draw(&c, 4) ? 1 + draw(&c, 700) : 1 + draw(&c, 60);
    c.whole = shape_make(1 + draw(&c, 2), heads * size, heads, vocab, 1 + draw(&c, 40));
    // Half of them as many ranks as there can be.
    int most = MIN(heads, MOST_TP), ranks = draw(&c, 2) ? 1 + draw(&c, most) : most;
    c.split = split_even(&c.whole, ranks);
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

static void draw_any_split(Case* c) {
    draw_borders(c, c->split.head, c->whole.NH);
    draw_borders(c, c->split.hidden, 4 * c->whole.C);
    draw_borders(c, c->split.vocab_row, c->whole.Vp);
}

// Runs a check on many cases, every other one with any split instead of an even one; names the seed that fails.
static void all_cases(void (*check)(const Case* c)) {
    for (uint64_t seed = 0; seed < CASES && !test_failures_in_claim; seed++) {
        Case c = draw_case(seed);
        if (seed & 1) draw_any_split(&c);
        check(&c);
        if (test_failures_in_claim)
            printf("    seed %d: %d heads of %d channels, %d rows, %d ranks\n", (int)seed, c.whole.NH,
                   c.whole.HS, c.whole.Vp, c.split.ranks);
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

// Where element (row, col) of rank t's part stands in the whole tensor.
static size_t place_in_whole(const Case* c, int t, ParamId id, int row, int col) {
    int C = c->whole.C, HS = c->whole.HS, own = (c->split.head[t + 1] - c->split.head[t]) * HS;
    int channel = c->split.head[t] * HS, first_hidden = c->split.hidden[t], which;
    switch (id) {
        case WTE:  // rows are tokens
            return (size_t)(c->split.vocab_row[t] + row) * (size_t)C + (size_t)col;
        case QKVW:  // rows are channels of heads: all queries, then all keys, then all values
            which = row / own;
            return (size_t)(which * C + channel + row % own) * (size_t)C + (size_t)col;
        case QKVB: which = col / own; return (size_t)(which * C + channel + col % own);
        case ATTPROJW:  // columns are channels of heads
            return (size_t)row * (size_t)C + (size_t)(channel + col);
        case FCW:  // rows are hidden units
            return (size_t)(first_hidden + row) * (size_t)C + (size_t)col;
        case FCB: return (size_t)(first_hidden + col);
        case FCPROJW:  // columns are hidden units
            return (size_t)row * (size_t)(4 * C) + (size_t)(first_hidden + col);
        default:  // whole
            return (size_t)row * (size_t)C + (size_t)col;
    }
}

static void check_part(const Case* c, int t, ParamId id) {
    Shape shape = split_shape(&c->whole, &c->split, t);
    ParamTensor tensor = shape_param(&c->whole, id, 0), own = shape_param(&shape, id, 0);
    float *whole = some_values(c, &tensor), *part = room(own.elems + 1), after = -7;
    int wrong = 0;
    part[own.elems] = after;
    split_take(part, whole, &c->whole, &c->split, t, id);
    for (int row = 0; row < own.rows && !wrong; row++)
        for (int col = 0; col < own.cols; col++)
            wrong |= part[(size_t)row * (size_t)own.cols + (size_t)col] != whole[place_in_whole(c, t, id, row, col)];
    if (wrong || part[own.elems] != after) printf("    %s of rank %d\n", param_table[id].name, t);
    CHECK(!wrong);
    CHECK(part[own.elems] == after);
    free(whole), free(part);
}

static void check_parts(const Case* c) {
    for (int t = 0; t < c->split.ranks; t++)
        for (int id = 0; id < N_PARAMS; id++) check_part(c, t, (ParamId)id);
}

static void a_part_has_the_heads_hidden_units_and_rows_of_its_rank(void) { all_cases(check_parts); }

// ---- put together

// The whole tensor from all parts, each put over a tensor of its own: their sum for what is cut, any for what is not.
static void check_whole(const Case* c, ParamId id) {
    ParamTensor tensor = shape_param(&c->whole, id, 0);
    float *whole = some_values(c, &tensor), *sum = room(tensor.elems), *joined = room(tensor.elems);
    size_t elems = 0;
    for (int t = 0; t < c->split.ranks; t++) {
        Shape shape = split_shape(&c->whole, &c->split, t);
        size_t n = shape_param(&shape, id, 0).elems;
        float *part = room(n), *alone = room(tensor.elems);
        split_take(part, whole, &c->whole, &c->split, t, id);
        split_put(alone, part, &c->whole, &c->split, t, id);
        split_put(joined, part, &c->whole, &c->split, t, id);
        for (size_t i = 0; i < tensor.elems; i++) sum[i] += alone[i];
        elems += n;
        free(part), free(alone);
    }
    int times = split_is_replicated(id) ? c->split.ranks : 1, wrong = 0;
    for (size_t i = 0; i < tensor.elems; i++) wrong |= sum[i] != (float)times * whole[i] || joined[i] != whole[i];
    if (wrong) printf("    %s\n", param_table[id].name);
    CHECK(!wrong);
    CHECK(elems == (size_t)times * tensor.elems);
    free(whole), free(sum), free(joined);
}

static void check_wholes(const Case* c) {
    for (int id = 0; id < N_PARAMS; id++) check_whole(c, (ParamId)id);
}

static void parts_put_together_are_the_whole_once(void) { all_cases(check_wholes); }

static void check_in_place(const Case* c) {
    for (int id = 0; id < N_PARAMS; id++) {
        ParamTensor tensor = shape_param(&c->whole, (ParamId)id, 0);
        for (int t = 0; t < c->split.ranks; t++) {
            Shape shape = split_shape(&c->whole, &c->split, t);
            size_t n = shape_param(&shape, (ParamId)id, 0).elems;
            float *apart = room(n), *here = some_values(c, &tensor);
            split_take(apart, here, &c->whole, &c->split, t, (ParamId)id);
            split_take(here, here, &c->whole, &c->split, t, (ParamId)id);
            CHECK(!memcmp(here, apart, n * sizeof *here));
            free(apart), free(here);
        }
    }
}

static void a_part_may_be_taken_in_place(void) { all_cases(check_in_place); }

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

static void an_even_split_gives_all_of_everything_in_whole_heads_and_tiles(void) {
    for (uint64_t seed = 0; seed < CASES && !test_failures_in_claim; seed++) {
        Case c = draw_case(seed);
        int R = c.split.ranks, labels = 0;
        CHECK(R >= 1 && R <= MOST_TP);
        check_even(c.split.head, c.whole.NH, R, 1);
        check_even(c.split.hidden, 4 * c.whole.C, R, 64);
        check_even(c.split.vocab_row, c.whole.Vp, R, 64);
        for (int t = 0; t < R; t++) {
            Shape part = split_shape(&c.whole, &c.split, t);
            CHECK(part.heads == c.split.head[t + 1] - c.split.head[t]);
            CHECK(part.hidden == c.split.hidden[t + 1] - c.split.hidden[t]);
            CHECK(part.first_vocab_row == c.split.vocab_row[t] &&
                  part.vocab_rows == c.split.vocab_row[t + 1] - c.split.vocab_row[t]);
            CHECK(part.L == c.whole.L && part.C == c.whole.C && part.NH == c.whole.NH && part.V == c.whole.V);
            CHECK(part.Vp == c.whole.Vp && part.context == c.whole.context && part.shards == c.whole.shards);
            labels += shape_labels(&part);
        }
        CHECK(labels == c.whole.V);  // padding belongs to nobody
        if (test_failures_in_claim) printf("    seed %d, %d ranks\n", (int)seed, R);
    }
}

static void one_rank_and_as_many_ranks_as_heads_are_the_two_ends(void) {
    Shape whole = shape_make(2, 60, 5, 300, 32);
    TpSplit one = split_even(&whole, 1), five = split_even(&whole, 5);
    Shape all = split_shape(&whole, &one, 0);
    CHECK(!memcmp(&all, &whole, sizeof all));
    for (int t = 0; t < 5; t++) CHECK(five.head[t] == t && five.head[t + 1] == t + 1);
    // 240 hidden units are three tiles and a part of one: for five ranks in ones. 320 rows are five tiles.
    for (int t = 0; t <= 5; t++) CHECK(five.hidden[t] == 48 * t && five.vocab_row[t] == 64 * t);
    TpSplit two = split_even(&whole, 2);
    CHECK(two.head[1] == 2 && two.hidden[1] == 128 && two.vocab_row[1] == 128);
}

// What the table of parameters says of a tensor, and what its parts show.
static void what_is_cut_differs_between_ranks_and_what_is_not_is_replicated(void) {
    Shape whole = shape_make(2, 60, 5, 300, 32);
    TpSplit split = split_even(&whole, 3);
    for (int id = 0; id < N_PARAMS; id++) {
        int cut = 0;
        for (int t = 0; t < 3; t++) {
            Shape shape = split_shape(&whole, &split, t);
            ParamTensor a = shape_param(&whole, (ParamId)id, 0), b = shape_param(&shape, (ParamId)id, 0);
            cut += a.elems != b.elems;
            int axis = param_cut(id);
            // Biases of cut outputs are one row.
            CHECK(a.rows == b.rows || axis == 0);
            CHECK(a.cols == b.cols || axis == 1 || (axis == 0 && a.rows == 1));
        }
        int is_cut = !split_is_replicated((ParamId)id) && shape_has(&whole, param_table[id].needs);
        CHECK(cut == (is_cut ? 3 : 0));
    }
}

// ---- numbers of tensors

static void check_indices(const Case* c) {
    for (int t = -1; t < c->split.ranks; t++) {
        Shape shape = t < 0 ? c->whole : split_shape(&c->whole, &c->split, t);
        for (int i = 0; i < shape_tensors(&shape); i++) {
            ParamTensor tensor = shape_tensor(&shape, i), again = shape_param(&shape, tensor.id, tensor.layer);
            CHECK(shape_index(&shape, &tensor) == i);
            CHECK(!memcmp(&again, &tensor, sizeof again));
            CHECK(shape_index(&c->whole, &tensor) == i);  // ranks number their parts as the whole is numbered
        }
    }
}

static void the_number_of_a_tensor_leads_back_to_it(void) { all_cases(check_indices); }

int main(void) {
    RUN(a_part_has_the_heads_hidden_units_and_rows_of_its_rank);
    RUN(parts_put_together_are_the_whole_once);
    RUN(a_part_may_be_taken_in_place);
    RUN(an_even_split_gives_all_of_everything_in_whole_heads_and_tiles);
    RUN(one_rank_and_as_many_ranks_as_heads_are_the_two_ends);
    RUN(what_is_cut_differs_between_ranks_and_what_is_not_is_replicated);
    RUN(the_number_of_a_tensor_leads_back_to_it);
    return test_done();
}
