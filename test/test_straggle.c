// test_straggle.c - claims about injected slowness, of plan/slow/speeds.h: what a spec says is what comes out, and
// stragglers that overlap multiply (what is refused: test_words.c). How time passes then: test_timer.c.
#include "plan/slow/speeds.h"

#include "test/test.h"

enum { RANKS = 8 };

static Straggler list[MOST_STRAGGLERS];
static int n;
static char err[ERR_BYTES];

// The spec lies in memory of just its size, for AddressSanitizer.
static int parse(const char* spec, int ranks) {
    size_t bytes = strlen(spec) + 1;
    char* exact = (char*)malloc(bytes);
    memcpy(exact, spec, bytes);
    memset(list, 0xa5, sizeof list);
    memset(err, 0, sizeof err);
    n = -1;
    int bad = straggle_parse(list, &n, exact, ranks, err);
    free(exact);
    return bad;
}

static int is(const Straggler* s, int rank, double x, int64_t from, int64_t to, int whole) {
    return s->rank == rank && s->x == x && s->from == from && s->to == to && s->whole == whole;
}

CLAIM(a_spec_is_read_as_it_is_written) {
    static const struct {
        const char* spec;
        int n;
        Straggler last;
    } cases[] = {
        {"", 0, {0}},
        {" \t ", 0, {0}},
        {"rank=3,x=4", 1, {3, 4, 1, INT64_MAX, 0}},
        {"rank=2,x=1.5,from=20,to=80,whole", 1, {2, 1.5, 20, 80, 1}},
        {"whole,to=80,from=20,x=1.5,rank=2", 1, {2, 1.5, 20, 80, 1}},
        {"rank=1,x=4;rank=0,to=9,x=2,whole;x=1000,rank=7,from=5", 3, {7, 1000, 5, INT64_MAX, 0}},
        {"  rank = 1 ,\tx= 4 ; rank=2 , whole , x =2 ;", 2, {2, 2, 1, INT64_MAX, 1}},
        {"rank=0,x=1,from=1,to=1", 1, {0, 1, 1, 1, 0}},
        {"rank=7,x=1000,from=1000000000000,to=1000000000000", 1, {7, 1000, 1000000000000, 1000000000000, 0}},
        {"rank=00,x=1.0009765625e0", 1, {0, 1.0009765625, 1, INT64_MAX, 0}},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        const Straggler *s = &list[MAX(cases[i].n, 1) - 1], *e = &cases[i].last;
        CHECK(parse(cases[i].spec, RANKS) == 0 && n == cases[i].n && !err[0]);
        if (n > 0) CHECK(is(s, e->rank, e->x, e->from, e->to, e->whole));
    }
    n = 5;
    CHECK(straggle_parse(list, &n, NULL, RANKS, err) == 0 && n == 0);
}

CLAIM(the_example_in_the_words_is_a_spec) {
    char example[ERR_BYTES];
    CHECK(parse("nonsense", RANKS) == -1);
    const char* start = strstr(err, "example: \"");
    CHECK(start != NULL);
    if (!start) return;
    snprintf(example, sizeof example, "%s", start + strlen("example: \""));
    *strchr(example, '"') = 0;
    CHECK(parse(example, 1) == 0 && n == 1);
}

CLAIM(stragglers_are_slow_from_their_first_step_to_their_last_and_multiply) {
    static const char
        one[] = "rank=1,x=4,from=20,to=80",
        overlapping[] =
            "rank=1,x=2,to=10; rank=1,x=3,from=5; rank=2,x=8; rank=1,x=1.5,whole,from=8,to=8; rank=1,x=4,whole,to=8";
    static const struct {
        const char* spec;
        int rank;
        int64_t step;
        double linear, whole;
    } rows[] = {{one, 1, 19, 1, 1},
                {one, 1, 20, 4, 1},
                {one, 1, 80, 4, 1},
                {one, 1, 81, 1, 1},
                {one, 0, 50, 1, 1},
                {one, 2, 50, 1, 1},
                {"rank=1,x=4", 1, 1, 4, 1},
                {"", 0, 1, 1, 1},
                {"rank=1,x=4", 1, INT64_MAX, 4, 1},
                {overlapping, 1, 1, 2, 4},
                {overlapping, 1, 5, 6, 4},
                {overlapping, 1, 8, 6, 6},
                {overlapping, 1, 10, 6, 1},
                {overlapping, 1, 11, 3, 1},
                {overlapping, 2, 8, 8, 1},
                {overlapping, 3, 8, 1, 1},
                {"rank=0,x=1.5,whole", 0, 7, 1, 1.5}};
    for (int i = 0; i < COUNT(rows); i++) {
        CHECK(parse(rows[i].spec, RANKS) == 0);
        Slowness slow = straggle_at(list, n, rows[i].rank, rows[i].step);
        CHECK(slow.linear == rows[i].linear && slow.whole == rows[i].whole);
    }
}

int main(void) { return test_main(); }
