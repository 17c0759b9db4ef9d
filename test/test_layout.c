// test_layout.c - the claims of plan/layout/layout.h: even stages by brute force, files there and back, what is
// refused.
#include "plan/layout/layout.h"
#include "test/test.h"

static const Layout usual = {.tp = 2, .stages = 1, .stage = {{4, 2}}, .layer = {{2, 2, RECOMPUTE_ACTIVATION}}};

static double worst_share(const Layout* layout, const Shape* whole) {
    double matmuls[MOST_STAGES], layers[MOST_STAGES], worst = 0, sum = 0;
    layout_shares(layout, whole, matmuls, layers);
    for (int s = 0; s < layout->stages; s++) {
        worst = fmax(worst, matmuls[s]);
        sum += matmuls[s];
        CHECK_CLOSE(layers[s], (double)layout->stage[s].layers / whole->L, 1e-12);
    }
    CHECK_CLOSE(sum, 1, 1e-12);
    return worst;
}

// The least of all ways to deal the layers from stage s on, `left` of them.
static double brute_force(Layout* layout, const Shape* whole, int s, int left) {
    double least = 2;
    if (s == layout->stages - 1) {
        layout->stage[s].layers = left;
        return worst_share(layout, whole);
    }
    for (int n = 1; n <= left - (layout->stages - 1 - s); n++) {
        layout->stage[s].layers = n;
        least = fmin(least, brute_force(layout, whole, s + 1, left - n));
    }
    return least;
}

CLAIM(the_largest_stage_is_as_small_as_layers_allow) {
    for (int L = 1; L <= 9; L++)
        for (int P = 1; P <= L && P <= 5; P++)
            for (int vocab = 64; vocab <= 40000; vocab = vocab * 5 + 3) {
                Shape whole = shape_make(L, 48, 4, vocab, 64);
                Layout even = layout_even(&whole, 1, P, 1, RECOMPUTE_NONE), any = even;
                char err[ERR_BYTES];
                CHECK(layout_check(&even, &whole, P, err) == 0);
                CHECK_CLOSE(worst_share(&even, &whole), brute_force(&any, &whole, 0, L), 1e-12);
            }
}

static int parse(Layout* layout, const char* text, char* err) {
    err[0] = 0;
    return layout_parse(layout, &usual, text, strlen(text), err);
}

// A file says what it says, and the rest is as usual; lines may be joined by semicolons; layers of a stage have lines of
// their own.
CLAIM(files_are_read_as_they_are_written) {
    static const char* const rows[][2] = {
        {"# two\nstage layers 3 recompute block\n\n  stage zero 3 layers 2 # last",
         "tp 2\nstage layers 3 zero 2 recompute block\nstage layers 2 zero 3 recompute activation\n"},
        {"tp 4\r\nstage layers 1\r\n", "tp 4\nstage layers 1 zero 2 recompute activation\n"},
        {"tp 1; # of all; two\nstage layers 3 zero 1; stage zero 3;layers 1 ;  layers 2",
         "tp 1\nstage layers 3 zero 1 recompute activation\nstage layers 3 zero 3 recompute activation\n"},
        {"stage zero 3 tp 1\n  layers 1 tp 2 recompute block\n  layers 3 zero 1\n"
         "stage layers 2\n  layers 1 tp 1\n  layers 1\n tp 4\n",
         "tp 4\nstage layers 4 zero 3\n  layers 1 tp 2 zero 3 recompute block\n"
         "  layers 3 tp 1 zero 1 recompute activation\nstage layers 2 zero 2\n"
         "  layers 1 tp 1 zero 2 recompute activation\n  layers 1 tp 4 zero 2 recompute activation\n"}};
    Layout l;
    char err[ERR_BYTES], text[LAYOUT_TEXT];
    for (int i = 0; i < COUNT(rows); i++) {
        CHECK(parse(&l, rows[i][0], err) == 0);
        layout_print(&l, text, sizeof text);
        CHECK_STRING(text, rows[i][1]);
    }
    CHECK(layout_first(&l, 1) == 4 && layout_first(&l, 2) == 6);
    CHECK_CLOSE(layout_again(&l, 0), 0.25, 0);
}

static LayerLayout draw_row(uint64_t seed, int l, int tp) {
    uint64_t at = 3 * (uint64_t)l;
    return (LayerLayout){random_uniform(seed, at) < 0.5 ? tp : 1, 1 + (int)(random_uniform(seed, at + 1) * 3),
                         (Recompute)(random_uniform(seed, at + 2) * 3)};
}

CLAIM(what_is_printed_reads_back) {
    for (uint64_t seed = 0; seed < 200; seed++) {
        Layout a, b;
        static char text[LAYOUT_TEXT];
        char err[ERR_BYTES];
        memset(&a, 0, sizeof a);
        a.tp = 1 + (int)(random_uniform(seed, 0) * 64), a.stages = 1 + (int)(random_uniform(seed, 1) * MOST_STAGES);
        for (int s = 0; s < a.stages; s++) {
            int first = layout_first(&a, s), n = 1 + (int)(random_uniform(seed, 2 + (uint64_t)s) * 15);
            layout_set_stage(&a, s, n, draw_row(seed, 100 + first, a.tp));
            for (int l = first; l < first + n && s % 2; l++) a.layer[l] = draw_row(seed, 100 + l, a.tp);
        }
        size_t n = layout_print(&a, text, sizeof text);
        CHECK(n < sizeof text && n == strlen(text));
        CHECK(layout_parse(&b, &usual, text, n, err) == 0 && memcmp(&a, &b, sizeof a) == 0);
        char small[20];
        CHECK(layout_print(&a, small, sizeof small) == n && strlen(small) < sizeof small);
    }
}

CLAIM(layouts_that_ranks_cannot_run_are_refused) {
    static const struct {
        const char* text;
        int ranks;
        const char* words;
    } rows[] = {
        {"tp 2; stage layers 3; stage layers 2", 8, ""},
        {"tp 2; stage layers 3; stage layers 2", 6,
         "2 stages of tensor-parallel groups of 2 do not divide 6 ranks; try mpirun -n 8"},
        {"tp 2; stage layers 3; stage layers 2 tp 3", 8, "layer 3 has tp 3: expected a divisor of the groups' tp 2"},
        {"tp 2; stage layers 3; stage layers 3", 8, "expected stages of 5 layers together, as the model has, found 6"}};
    Shape whole = shape_make(5, 48, 4, 300, 64);
    for (int i = 0; i < COUNT(rows); i++) {
        Layout l;
        char err[ERR_BYTES];
        CHECK(parse(&l, rows[i].text, err) == 0);
        CHECK(layout_check(&l, &whole, rows[i].ranks, err) == (rows[i].words[0] ? -1 : 0));
        CHECK_STRING(err, rows[i].words);
    }
}

int main(void) { return test_main(); }
