// test_straggle.c - claims about plan/straggle.h: what a spec says is what comes out, stragglers that overlap multiply,
// and a spec that says nothing clear is refused with its piece, what was found and what was expected.
#include "plan/straggle.h"

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
    int bad = straggle_parse(list, &n, exact, ranks, err, sizeof err);
    free(exact);
    return bad;
}

static int is(const Straggler* s, int rank, double x, int64_t from, int64_t to, int whole) {
    return s->rank == rank && s->x == x && s->from == from && s->to == to && s->whole == whole;
}

// ---- grammar

static void rank_and_x_are_enough(void) {
    CHECK(parse("rank=3,x=4", RANKS) == 0 && n == 1);
    CHECK(is(&list[0], 3, 4, 1, INT64_MAX, 0));
    CHECK(!err[0]);
}

static void words_come_in_any_order(void) {
    static const char* const words[] = {"rank=2", "x=1.5", "from=20", "to=80", "whole"};
    char spec[128];
    for (int order = 0; order < 120; order++) {
        int left[] = {0, 1, 2, 3, 4}, code = order;
        spec[0] = 0;
        for (int k = 5; k > 0; code /= k, k--) {
            int pick = code % k;
            if (k < 5) strcat(spec, ",");
            strcat(spec, words[left[pick]]);
            memmove(left + pick, left + pick + 1, (size_t)(k - 1 - pick) * sizeof *left);
        }
        int right = parse(spec, RANKS) == 0 && n == 1 && is(&list[0], 2, 1.5, 20, 80, 1);
        if (!right) printf("    order %d: \"%s\": %s\n", order, spec, err);
        CHECK(right);
    }
}

static void several_pieces_in_one_string(void) {
    CHECK(parse("rank=1,x=4;rank=0,to=9,x=2,whole;x=1000,rank=7,from=5", RANKS) == 0 && n == 3);
    CHECK(is(&list[0], 1, 4, 1, INT64_MAX, 0));
    CHECK(is(&list[1], 0, 2, 1, 9, 1));
    CHECK(is(&list[2], 7, 1000, 5, INT64_MAX, 0));
}

static void blanks_around_words_do_not_matter(void) {
    CHECK(parse("  rank = 1 ,\tx= 4 ; rank=2 , whole , x =2 ", RANKS) == 0 && n == 2);
    CHECK(is(&list[0], 1, 4, 1, INT64_MAX, 0));
    CHECK(is(&list[1], 2, 2, 1, INT64_MAX, 1));
}

static void nothing_means_no_stragglers(void) {
    CHECK(parse("", RANKS) == 0 && n == 0);
    CHECK(parse(" \t ", RANKS) == 0 && n == 0);
    n = 5;
    CHECK(straggle_parse(list, &n, NULL, RANKS, err, sizeof err) == 0 && n == 0);
}

static void the_edges_of_each_range_are_inside(void) {
    CHECK(parse("rank=0,x=1,from=1,to=1", RANKS) == 0 && is(&list[0], 0, 1, 1, 1, 0));
    CHECK(parse("rank=7,x=1000,from=1000000000000,to=1000000000000", RANKS) == 0);
    CHECK(is(&list[0], 7, 1000, 1000000000000, 1000000000000, 0));
    CHECK(parse("rank=7,x=2.00000000000000000000000000000", RANKS) == 0 && list[0].x == 2);  // 31 characters
    CHECK(parse("rank=00,x=1.0009765625e0", 1) == 0 && is(&list[0], 0, 1.0009765625, 1, INT64_MAX, 0));
}

static void as_many_pieces_as_there_is_room_for(void) {
    char spec[(MOST_STRAGGLERS + 1) * 16] = "";
    for (int i = 0; i < MOST_STRAGGLERS; i++)
        snprintf(spec + strlen(spec), 16, "%srank=%d,x=%d", i ? ";" : "", i % RANKS, i + 1);
    CHECK(parse(spec, RANKS) == 0 && n == MOST_STRAGGLERS);
    for (int i = 0; i < n; i++) CHECK(is(&list[i], i % RANKS, i + 1, 1, INT64_MAX, 0));
    strcat(spec, ";rank=0,x=2");
    CHECK(parse(spec, RANKS) == -1);
    CHECK(strstr(err, "piece 65") && strstr(err, "at most 64"));
}

// ---- refusals

typedef struct Malformed {
    const char* spec;
    const char* piece;     // as the line names it
    const char* found;     // in the line
    const char* expected;  // in the line, behind the word "expected"
} Malformed;

static const Malformed malformed[] = {
    {"rank=8,x=4", "piece 1 \"rank=8,x=4\"", "rank is \"8\"", "a whole number from 0 to 7"},
    {"rank=-1,x=4", "piece 1 \"rank=-1,x=4\"", "rank is \"-1\"", "from 0 to 7"},
    {"rank=1.5,x=4", "piece 1", "rank is \"1.5\"", "whole number"},
    {"rank=,x=4", "piece 1", "rank is \"\"", "whole number"},
    {"rank=99999999999999999999999999,x=4", "piece 1", "rank is \"99999999999999999999999999\"", "from 0 to 7"},
    {"rank=18446744073709551616,x=4", "piece 1", "rank is", "from 0 to 7"},
    {"rank=1 2,x=4", "piece 1", "rank is \"1 2\"", "whole number"},
    {"rank=1,x=4;rank=2,x=0.99", "piece 2 \"rank=2,x=0.99\"", "x is \"0.99\"", "a number from 1 to 1000"},
    {"rank=1,x=1000.1", "piece 1", "x is \"1000.1\"", "from 1 to 1000"},
    {"rank=1,x=nan", "piece 1", "x is \"nan\"", "a number"},
    {"rank=1,x=inf", "piece 1", "x is \"inf\"", "a number"},
    {"rank=1,x=1e999", "piece 1", "x is \"1e999\"", "a number"},
    {"rank=1,x=0x10", "piece 1", "x is \"0x10\"", "a number"},
    {"rank=1,x=4x", "piece 1", "x is \"4x\"", "a number"},
    {"rank=1,x=1.2.3", "piece 1", "x is \"1.2.3\"", "a number"},
    {"rank=1,x=", "piece 1", "x is \"\"", "a number"},
    {"rank=1,x=2.000000000000000000000000000000", "piece 1", "x is \"2.000", "a number"},  // 32 characters
    {"rank=1,x=4,from=0", "piece 1", "from is \"0\"", "a whole number from 1"},
    {"rank=1,x=4,to=0", "piece 1", "to is \"0\"", "a whole number from 1"},
    {"rank=1,x=4,from=1000000000001", "piece 1", "from is \"1000000000001\"", "from 1 to 1000000000000"},
    {"rank=1,x=4,to=2e3", "piece 1", "to is \"2e3\"", "a whole number"},
    {"rank=1,x=4,from=21,to=20", "piece 1", "to is 20", "at least from, which is 21"},
    {"x=4", "piece 1 \"x=4\"", "no rank=", "both rank= and x="},
    {"rank=1", "piece 1 \"rank=1\"", "no x=", "both rank= and x="},
    {"rank=1,x=2;whole", "piece 2 \"whole\"", "no rank=", "both rank= and x="},
    {"rank=1,x=4,rank=1", "piece 1", "rank is there twice", "once"},
    {"rank=1,x=4,whole,whole", "piece 1", "whole is there twice", "once"},
    {"rank=1,x=4,speed=3", "piece 1", "found \"speed=3\"", "one of rank=, x=, from=, to= and whole"},
    {"rank=1,x=4,Whole", "piece 1", "found \"Whole\"", "one of rank="},
    {"ran=1,x=4", "piece 1", "found \"ran=1\"", "one of rank="},
    {"rank=1,x=4,", "piece 1", "found \"\"", "one of rank="},
    {"rank=1,,x=4", "piece 1", "found \"\"", "one of rank="},
    {"=1,x=4", "piece 1", "found \"=1\"", "one of rank="},
    {"rank,x=4", "piece 1", "found \"rank\"", "rank= and a number"},
    {"rank=1,x", "piece 1", "found \"x\"", "x= and a number"},
    {"rank=1,x=4,whole=1", "piece 1", "found \"whole=1\"", "whole without a value"},
    {"rank==1,x=4", "piece 1", "rank is \"=1\"", "a whole number"},
    {"rank=1,x=4;", "piece 2 \"\"", "it is empty", "rank= and x="},
    {";rank=1,x=4", "piece 1 \"\"", "it is empty", "rank= and x="},
    {"rank=1,x=4; ;rank=1,x=4", "piece 2 \"\"", "it is empty", "rank= and x="},
    {";", "piece 1 \"\"", "it is empty", "rank= and x="},
    {"rank=1,x=4\nrank=2,x=3", "piece 1 \"rank=1,x=4?rank=2,x=3\"", "x is \"4?rank=2\"", "a number"},
};

static int is_clear_line(const char* line) {
    size_t length = strlen(line);
    if (strncmp(line, "--straggle: piece ", 18) || !strstr(line, "expected") || !strstr(line, "example: \"rank="))
        return 0;
    for (size_t i = 0; i < length; i++)
        if (line[i] < ' ' || line[i] > '~') return 0;
    return length > 0 && length < ERR_BYTES - 1;
}

static void every_malformed_spec_is_refused_with_its_piece(void) {
    for (int i = 0; i < COUNT(malformed); i++) {
        const Malformed* m = &malformed[i];
        int told = parse(m->spec, RANKS) == -1 && n == 0 && is_clear_line(err) && strstr(err, m->piece) &&
                   strstr(err, m->found);
        const char* expected = strstr(err, "expected");
        told = told && strstr(expected, m->expected);
        if (!told) printf("    \"%s\": \"%s\"\n", m->spec, err);
        CHECK(told);
    }
}

static void the_example_in_the_words_is_a_spec(void) {
    char example[ERR_BYTES];
    CHECK(parse("nonsense", RANKS) == -1);
    const char* start = strstr(err, "example: \"");
    CHECK(start != NULL);
    if (!start) return;
    snprintf(example, sizeof example, "%s", start + strlen("example: \""));
    *strchr(example, '"') = 0;
    CHECK(parse(example, 1) == 0 && n == 1);
}

static void words_fit_however_long_the_spec_is(void) {
    enum { LONG = 100000 };
    static char spec[LONG + 1];
    static const char* const patterns[] = {"x", "rank=1,x=4,", "rank=9", ";", "\xff", "from=1", "\n", "x=1e"};
    for (int p = 0; p < COUNT(patterns); p++) {
        size_t length = strlen(patterns[p]);
        for (size_t i = 0; i < LONG; i++) spec[i] = patterns[p][i % length];
        CHECK(parse(spec, RANKS) == -1 && is_clear_line(err));
        CHECK(patterns[p][0] == ';' || strstr(err, "...\": "));  // the piece is cut off, and seen to be
        char few[8] = "1234567";
        CHECK(straggle_parse(list, &n, spec, RANKS, few, 4) == -1 && strlen(few) == 3 && !strcmp(few + 4, "567"));
        CHECK(straggle_parse(list, &n, spec, RANKS, NULL, 0) == -1);
    }
}

static void garbage_never_comes_through(void) {
    static const char* const parts[] = {
        "rank=0", "x=4", "from=7", "to=20", "whole", ",",   ",",    ",",     ";",  "rank", "x=", "1e2", "-1", " ",
        "+",      "=",   "0",      "8",     "1000",  "nan", "\xc3", "from=", "\n", ".5",   "\t", "to=", "9",  ",x=1.5"};
    int accepted = 0;
    for (uint64_t seed = 0; seed < 200000; seed++) {
        char spec[128] = "";
        int words = 1 + (int)(hash64(seed) % 14);
        for (int i = 0; i < words; i++) strcat(spec, parts[hash64(hash64(seed) ^ (uint64_t)i) % COUNT(parts)]);
        int ranks = 1 + (int)(hash64(seed + 1) % 9), bad = parse(spec, ranks), sound = bad ? n == 0 : 1;
        if (bad && !is_clear_line(err)) sound = 0;
        for (int i = 0; i < n; i++) {
            const Straggler* s = &list[i];
            sound = sound && s->rank >= 0 && s->rank < ranks && s->x >= 1 && s->x <= 1000 && s->from >= 1 &&
                    s->to >= s->from && (s->whole == 0 || s->whole == 1);
        }
        accepted += !bad && n > 0;
        if (!sound) printf("    seed %llu: \"%s\": \"%s\"\n", (unsigned long long)seed, spec, err);
        CHECK(sound);
    }
    CHECK(accepted > 20);  // or what is accepted was never looked at
}

// ---- slowness

static int slow_is(int rank, int64_t step, double linear, double whole) {
    Slowness slow = straggle_at(list, n, rank, step);
    return slow.linear == linear && slow.whole == whole;
}

static void a_straggler_is_slow_from_its_first_step_to_its_last(void) {
    CHECK(parse("rank=1,x=4,from=20,to=80", RANKS) == 0);
    CHECK(slow_is(1, 19, 1, 1) && slow_is(1, 20, 4, 1) && slow_is(1, 80, 4, 1) && slow_is(1, 81, 1, 1));
    CHECK(slow_is(0, 50, 1, 1) && slow_is(2, 50, 1, 1));
    CHECK(parse("rank=1,x=4", RANKS) == 0);
    CHECK(slow_is(1, 1, 4, 1) && slow_is(1, INT64_MAX, 4, 1));
    CHECK(parse("", RANKS) == 0);
    CHECK(slow_is(0, 1, 1, 1));
}

static void whole_slows_everything_instead_of_the_linears(void) {
    CHECK(parse("rank=0,x=1.5,whole", RANKS) == 0);
    CHECK(slow_is(0, 7, 1, 1.5));
}

static void stragglers_that_overlap_multiply(void) {
    CHECK(
        parse("rank=1,x=2,to=10; rank=1,x=3,from=5; rank=2,x=8; rank=1,x=1.5,whole,from=8,to=8; rank=1,x=4,whole,to=8",
              RANKS) == 0);
    CHECK(slow_is(1, 1, 2, 4));
    CHECK(slow_is(1, 5, 6, 4));
    CHECK(slow_is(1, 8, 6, 6));
    CHECK(slow_is(1, 10, 6, 1));
    CHECK(slow_is(1, 11, 3, 1));
    CHECK(slow_is(2, 8, 8, 1));
    CHECK(slow_is(3, 8, 1, 1));
}

int main(void) {
    RUN(rank_and_x_are_enough);
    RUN(words_come_in_any_order);
    RUN(several_pieces_in_one_string);
    RUN(blanks_around_words_do_not_matter);
    RUN(nothing_means_no_stragglers);
    RUN(the_edges_of_each_range_are_inside);
    RUN(as_many_pieces_as_there_is_room_for);
    RUN(every_malformed_spec_is_refused_with_its_piece);
    RUN(the_example_in_the_words_is_a_spec);
    RUN(words_fit_however_long_the_spec_is);
    RUN(garbage_never_comes_through);
    RUN(a_straggler_is_slow_from_its_first_step_to_its_last);
    RUN(whole_slows_everything_instead_of_the_linears);
    RUN(stragglers_that_overlap_multiply);
    return test_done();
}
