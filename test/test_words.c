// test_words.c - the claims of plan/base/words.h, and those that hold for all that reads by it: layouts, strategies,
// machine files, stragglers, and what these do (plan/slow/speeds.h). Texts lie in buffers of just their size, for
// AddressSanitizer.
#include "plan/base/words.h"

#include "plan/layout/layout.h"
#include "plan/cost/machine.h"
#include "plan/slow/speeds.h"
#include "test/test.h"

static char err[ERR_BYTES];

// ---- the readers

static const char machine_head[] = "name box\nquadratic_ms 1\nlinear_ms 1\n";

static int read_layout(const char* text, size_t n) {
    static const Layout usual = {.tp = 2, .stages = 1, .stage = {{4, 2}}, .layer = {{2, 2, RECOMPUTE_ACTIVATION}}};
    static Layout layout;
    return layout_parse(&layout, &usual, text, n, err);
}

static int read_strategies(const char* text, size_t n) {
    static StrategyList list;
    return strategies_parse(&list, text, n, err);
}

// Whatever is accepted makes sense, and what is printed of it reads back to the same.
static int read_machine(const char* text, size_t n) {
    static Machine machine, again;
    static char printed[1 << 14], other[1 << 14];
    if (machine_parse(&machine, text, n, err)) return -1;
    size_t length = machine_print(&machine, printed, sizeof printed);
    CHECK(machine.cost.name[0] && machine.cost.quadratic >= 0 && machine.cost.per_token >= 0 && machine.heads >= 0);
    CHECK(length < sizeof printed && machine_parse(&again, printed, length, err) == 0);
    CHECK(machine_print(&again, other, sizeof other) == length && !strcmp(printed, other));
    return 0;
}

// Of a machine that has what it needs in three lines before.
static int read_machine_line(const char* text, size_t n) {
    size_t before = strlen(machine_head);
    char* whole = (char*)malloc(before + n);
    memcpy(whole, machine_head, before), memcpy(whole + before, text, n);
    int bad = read_machine(whole, before + n);
    free(whole);
    return bad;
}

static int read_stragglers(const char* text, size_t n) {
    static Straggler list[MOST_STRAGGLERS];
    char* spec = (char*)calloc(n + 1, 1);
    int found = -1, bad = straggle_parse(list, &found, memcpy(spec, text, n), 8, err);
    CHECK(!bad || found == 0);
    free(spec);
    return bad;
}

typedef int (*Reader)(const char* text, size_t n);
static const Reader readers[] = {read_layout, read_strategies, read_machine, read_machine_line, read_stragglers};

// What is refused gets one printable line.
static int bad(Reader read, const char* text, size_t n) {
    char* exact = (char*)malloc(n ? n : 1);
    memcpy(exact, text, n);
    memset(err, 0, sizeof err);
    int failed = read(exact, n), clear = failed ? strlen(err) > 10 : !err[0];
    for (const char* c = err; *c; c++) clear &= *c >= ' ' && *c <= '~';
    CHECK(clear);
    free(exact);
    return failed;
}

#define LAYOUT read_layout
#define LISTS read_strategies
#define FILES read_machine
#define LINES read_machine_line
#define SLOW read_stragglers

CLAIM(what_is_wrong_is_refused_with_its_place) {
    static const struct {
        Reader read;
        const char *text, *words;
    } wrong[] = {
        {LAYOUT, "", "at the end: expected a line stage layers N for every stage"},
        {LAYOUT, "tp 2\n", "line 2, at the end: expected a line stage"},
        {LAYOUT, "tp 2\nstages 3\n", "line 2, \"^stages 3\": expected stage ..., layers N ... or tp N"},
        {LAYOUT, "tp 2; stages 3", "\"^stages 3\": expected stage"},
        {LAYOUT, "stage\n", "expected layers N of the stage before"},
        {LAYOUT, "stage layers\n", "line 1, \"stage layers^\": expected a whole number from 1 to 1000"},
        {LAYOUT, "stage layers 3\nlayers 2\n", "expected lines of 3 layers together below stage 0, found 2"},
        {LAYOUT, "layers 2\n", "line 1, \"^layers 2\": expected stage ... before layers"},
        {LAYOUT, "stage zero 2\nstage layers 2\n", "\"stage ^layers 2\": expected layers N of the stage before"},
        {LAYOUT, "stage layers 900\nstage layers 101\n", "expected at most 1000 layers"},
        {LAYOUT, "stage tp 1\nlayers 2 tp 65\n", "line 2, \"layers 2 tp ^65\": expected a whole number from 1 to 64"},
        {LAYOUT, "stage layers 2x # two\n", "line 1, \"stage layers ^2x\": expected a whole number"},
        {LAYOUT, "stage layers 2 zero 4\n", "zero ^4\": expected a whole number from 1 to 3"},
        {LAYOUT, "stage layers 2 recompute all\n", "recompute ^all\": expected none|activation|block"},
        {LAYOUT, "stage layers 2 cp 4\n", "\"stage layers 2 ^cp 4\": expected layers N, tp N, zero"},
        {LAYOUT, "tp\n", "line 1, \"tp^\": expected a whole number"},
        {LAYOUT, "tp 2 zero 3\n", "line 1, \"tp 2 ^zero 3\": expected the end of the line"},
        {LAYOUT, "a\x01\xff b\n", "\"^a?? b\": expected stage"},
        {LISTS, "", "expected strategies like \"tp4+2xtp2; 8xtp1\", found none"},
        {LISTS, " ;\n#x\n", "found none"},
        {LISTS, "2tp1", "\"^2tp1\": expected pipelines like 2xtp2pp3, joined by +"},
        {LISTS, "tp2+", "\"tp2+^\": expected pipelines"},
        {LISTS, "tp2; tp2++tp1", "\"tp2+^+tp1\": expected pipelines"},
        {LISTS, "8xtp1\ntp1 tp2", "line 2, \"^tp1 tp2\": expected pipelines"},
        {LISTS, "tp0", "expected pipelines"},
        {LISTS, "tp65", "expected pipelines"},
        {LISTS, "pp2tp2", "expected pipelines"},
        {LISTS, "99999999999999999999xtp1", "expected pipelines"},
        {LISTS, "tp2+3xtp2", "\"tp2+^3xtp2\": expected each kind of pipeline once"},
        {FILES, "", "at the end: expected name (a word)"},
        {FILES, "quadratic_ms 1\nlinear_ms 1\n", "line 3, at the end: expected name"},
        {FILES, "name box\nlinear_ms 1\n", "expected quadratic_ms (ms a token^2)"},
        {LINES, "capacity 5\nmemory 1 1 1\n", "expected one of capacity and memory"},
        {LINES, "token_bytes 5\ngroup 2 3\nmodel 1 1 2\nlink inside 1 1\n", "expected group or link lines, found both"},
        {LINES, "link inside 1 1\n", "expected with link lines the model"},
        {LINES, "group 2 3\n", "expected token_bytes and group lines"},
        {LINES, "speed 3", "line 4, \"^speed 3\": expected a key of a machine file"},
        {LINES, "link 3 4", "line 4, \"^link 3 4\": expected a key"},
        {LINES, "\x01\xff 3", "\"^?? 3\": expected a key"},
        {LINES, "heads", "\"heads^\": expected 1 value: heads of the model's keys"},
        {LINES, "heads 1 2", "\"heads 1 ^2\": expected 1 value"},
        {LINES, "group 2", "\"group 2^\": expected 2 values: cp size, GB/s of a rank"},
        {LINES, "link inside 2", "\"link inside 2^\": expected 2 values: bytes, ms"},
        {LINES, "pipeline_memory 1 2 3 4 1 6 7 8 9 10 11 12 13 14 15", "13 ^14 15\": expected 13 values"},
        {LINES, "heads 3\nheads 3", "line 5, \"^heads 3\": expected heads once"},
        {LINES, "heads 1.5", "\"heads ^1.5\": expected a whole number from 0 to 1048576 (heads of the model's keys)"},
        {LINES, "micro_batch_ms -0.5", "expected a number from 0"},
        {LINES, "micro_batch_ms 1,5", "^1,5"},
        {LINES, "micro_batch_ms 1\x02", "^1?"},
        {LINES, "micro_batch_ms 0000000000000000000000000000000000000000000000000000000000000000000000001", "^0000"},
        {LINES, "group 1 5", "group ^1 5\": expected a whole number from 2"},
        {LINES, "group 2 0", "group 2 ^0\": expected a number from 1e-09"},
        {LINES, "group 4 5\ngroup 4 5", "line 5, \"group ^4 5\": expected more than 4"},
        {LINES, "link across 10 1\nlink across 20 0.5", "20 ^0.5\": expected at least 1"},
        {LINES, "scheme a_name_too_long_ 1 1 0 0 0", "expected a word of at most 15 ASCII characters"},
        {LINES, "scheme caf\xc3\xa9 1 1 0 0 0", "expected a word of at most 15 ASCII"},
        {LINES, "scheme A 0 1 0 0 0", "A ^0 1"},
        {LINES, "pipeline_memory 60 6656 30592 201 1.5 10240 5000 81252 36 36 37 42 50", "from 0 to 1"},
        {SLOW, "rank=8,x=4", "--straggle: \"rank=^8,x=4\": expected a whole number from 0 to 7; example: \"rank=0,"},
        {SLOW, "rank=,x=4", "rank=^,x=4"},
        {SLOW, "rank=18446744073709551616,x=4", "from 0 to 7"},
        {SLOW, "rank=1,x=4;rank=2,x=0.99", "\"rank=2,x=^0.99\": expected a number from 1 to 1000"},
        {SLOW, "rank=1,x=4,from=0", "from=^0\": expected a whole number from 1 to 1000000000000"},
        {SLOW, "rank=1,x=4,from=21,to=20", "expected to= of at least from="},
        {SLOW, "x=4", "expected both rank= and x="},
        {SLOW, "rank=1,x=2;whole", "\"whole^\": expected both"},
        {SLOW, "rank=1,x=4,rank=1", "x=4,^rank=1\": expected rank once"},
        {SLOW, "rank=1,x=4,whole,whole", "expected whole once"},
        {SLOW, "rank=1,x=4,speed=3", "\"rank=1,x=4,^speed=3\": expected rank=N, x=F, from=N, to=N or whole"},
        {SLOW, "rank=1,x=4,", "\"rank=1,x=4,^\": expected rank=N"},
        {SLOW, "rank=1,,x=4", "\"rank=1,^,x=4\": expected rank=N"},
        {SLOW, "rank,x=4", "\"^rank,x=4\": expected rank= and a number"},
        {SLOW, "rank=1,x=4,whole=1", "expected whole without a value"},
        {SLOW, "rank==1,x=4", "rank=^=1"},
    };
    for (int i = 0; i < COUNT(wrong); i++) {
        CHECK(bad(wrong[i].read, wrong[i].text, strlen(wrong[i].text)) && strstr(err, wrong[i].words));
        if (!strstr(err, wrong[i].words)) printf("    \"%s\": %s\n", wrong[i].text, err);
    }
}

CLAIM(lists_are_read_to_their_limits_and_no_further) {
    static const struct {
        Reader read;
        const char *begin, *each;
        int most;
    } lists[] = {{LINES, "token_bytes 1\n", "group %d 5\n", COST_GROUPS},
                 {LINES, "model 1 1 2\n", "link inside %d 1\n", LINK_POINTS},
                 {LINES, "model 1 1 2\n", "link across %d 1\n", LINK_POINTS},
                 {LINES, "", "scheme S%d 1 1 0 0 0\n", MACHINE_SCHEMES},
                 {SLOW, "", "rank=1,x=%d;", MOST_STRAGGLERS},
                 {LISTS, "", "%dxtp1\n", MOST_RANK_STRATEGIES},
                 {LISTS, "tp1", "+tp%d", MOST_PIPELINE_GROUPS - 1},
                 {LAYOUT, "", "stage layers 1 #%d\n", MOST_STAGES}};
    for (int i = 0; i < COUNT(lists); i++)
        for (int over = 0; over < 2; over++) {
            char text[4096];
            size_t n = 0;
            text_append(text, sizeof text, &n, "%s", lists[i].begin);
            for (int k = 0; k < lists[i].most + over; k++) text_append(text, sizeof text, &n, lists[i].each, k + 2);
            CHECK(n < sizeof text && bad(lists[i].read, text, n) == -over);
            if (over) CHECK(strstr(err, "at most"));
        }
}

// ---- any bytes

static const char* const good[] = {
    "tp 2 # of all\nstage layers 3 zero 1 recompute block\nstage zero 3;layers 1 tp 1 ;  layers 2",
    "tp4+2xtp2; tp2pp2 + 2xtp1pp2\n8xtp1 # all\n",
    "name box # a word\nquadratic_ms 5e-6\nlinear_ms .25\nmodel 12 768 2\nlink inside 1024 0.01\nlink\tacross 1024 1\n",
    "heads 12\r\ncapacity 4096\nscheme TP8PP2 8 2 1.06789378e-6 0.071058246 61.768\nscheme A 1 1 0 0 0\n",
    "  rank = 1 ,\tx= 4 ; rank=2 , whole , x =2.5e0,from=7,to=20 ",
};

CLAIM(every_prefix_and_damage_of_a_good_text_is_read_or_refused) {
    static const char signs[] = "0123456789.e-+ \n\t#\r_a\xff;,=x";
    for (int r = 0; r < COUNT(readers); r++) {
        size_t n = strlen(good[r]);
        int accepted = 0, tries = 20000;
        CHECK(bad(readers[r], good[r], n) == 0);
        for (size_t k = 0; k < n; k++) bad(readers[r], good[r], k);
        for (int k = 0; k < tries; k++) {
            char text[256];
            memcpy(text, good[r], n);
            for (uint64_t j = 0; j <= (uint64_t)k % 3; j++) {
                uint64_t x = hash64(4 * (uint64_t)k + j);
                text[x % n] = x >> 32 & 1 ? signs[(x >> 33) % sizeof signs] : (char)(x >> 40);
            }
            accepted += !bad(readers[r], text, n);
        }
        CHECK(accepted > tries / 200 && accepted < tries - tries / 20);  // both outcomes are really tried
    }
}

CLAIM(very_long_texts_are_refused_at_once_and_the_words_fit) {
    static const char* const patterns[] = {"x", "a ", "rank=1,x=4,", "stage ", "tp1+", "\xff", "x=1e", "=", "9"};
    size_t n = 2000000;
    char* text = (char*)malloc(n);
    for (int r = 0; r < COUNT(readers); r++)
        for (int p = 0; p < COUNT(patterns); p++) {
            size_t length = strlen(patterns[p]);
            for (size_t i = 0; i < n; i++) text[i] = patterns[p][i % length];
            CHECK(bad(readers[r], text, n) && strlen(err) < 300);
        }
    memset(text, 0, n);
    CHECK(bad(read_machine, text, n) && bad(read_layout, text, n));
    memset(text, '#', n);
    CHECK(bad(read_machine, text, n) && strstr(err, "expected name"));
    free(text);
}

// ---- the rules

CLAIM(statements_and_words_end_where_the_rules_say) {
    static const struct {
        char sign;
        const char *text, *words;
    } cases[] = {
        {' ', "", ""},
        {' ', " \t\n;;#a\n ", ""},
        {' ', "a  b\tc\r\nd", "1 <a><b><c> 2 <d>"},
        {' ', "a; b;c # d; e\nf", "1 <a> 1 <b> 1 <c> 2 <f>"},
        {' ', "a\n\n#\n b#c", "1 <a> 4 <b>"},
        {' ', "a;b", "0 <a> 0 <b>"},
        {',', "a, b ,c", "0 <a><b><c>"},
        {',', "a,,b,", "0 <a><><b><>"},
        {',', ",", "0 <><>"},
        {'+', "a + b;c+\nd", "1 <a><b> 1 <c><> 2 <d>"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        char found[128] = "";
        size_t n = 0;
        Words text = words_of(cases[i].text, strlen(cases[i].text), err), statement;
        Word word;
        while (words_statement(&text, &statement)) {
            text_append(found, sizeof found, &n, "%s%d ", n ? " " : "", statement.line);
            while (words_next(&statement, cases[i].sign, &word))
                text_append(found, sizeof found, &n, "<%.*s>", (int)word.n, word.at);
        }
        CHECK_STRING(found, cases[i].words);
    }
}

CLAIM(numbers_are_read_as_written_and_printed_as_short_as_they_can_be) {
    static const char* const cases[][3] = {
        // read, as a number, as a whole one; NULL: refused
        {"5", "5", "5"},           {"-5", "-5", "-5"},    {"3e0", "3", "3"},
        {"1e3", "1000", "1000"},   {"0.10", "0.1", NULL}, {".5", "0.5", NULL},
        {"2.", "2", "2"},          {"+2", "2", "2"},      {"-0", "0", "0"},
        {"1e-7", "1e-07", NULL},   {"", NULL, NULL},      {"1x", NULL, NULL},
        {"inf", NULL, NULL},       {"nan", NULL, NULL},   {"0x1", NULL, NULL},
        {"1e4", NULL, NULL},       {"-1e4", NULL, NULL},  {"1 2", NULL, NULL},
        {"e", NULL, NULL},         {"--1", NULL, NULL},   {"0.33333333333333331", "0.33333333333333331", NULL},
        {"0.3333", "0.3333", NULL}};
    static const ValueType types[] = {REAL, INT, INT64};
    for (int i = 0; i < COUNT(cases); i++)
        for (int t = 0; t < COUNT(types); t++) {
            const Field field = {"x", types[t], 0, -1000, 1000, NULL};
            const char* expected = cases[i][t ? 2 : 1];
            char text[64], wanted[WANTED];
            double at[1] = {7};
            CHECK(!field_set(&field, at, (Word){cases[i][0], strlen(cases[i][0])}, wanted) == (expected != NULL));
            if (!expected) CHECK(at[0] == 7 && strstr(wanted, "number from -1000 to 1000"));
            if (!expected) continue;
            field_print(&field, at, text, sizeof text);
            CHECK_STRING(text, expected);
        }
}

CLAIM(printing_stays_inside_its_buffer) {
    for (size_t bytes = 0; bytes <= 12; bytes++) {
        char* text = (char*)malloc(bytes ? bytes : 1);
        size_t n = 0;
        for (int i = 0; i < 5; i++) text_append(text, bytes, &n, "%d,", i);
        CHECK(n == 10);
        if (bytes) CHECK(strlen(text) == MIN(n, bytes - 1) && !strncmp(text, "0,1,2,3,4,", MIN(n, bytes - 1)));
        free(text);
    }
}

// ---- injected slowness; how time passes then: test_timer.c

static Straggler stragglers[MOST_STRAGGLERS];

CLAIM(stragglers_are_read_as_they_are_written) {
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
    int n;
    for (int i = 0; i < COUNT(cases); i++) {
        const Straggler *s = &stragglers[MAX(cases[i].n, 1) - 1], *e = &cases[i].last;
        CHECK(straggle_parse(stragglers, &n, cases[i].spec, 8, err) == 0 && n == cases[i].n);
        if (n > 0)
            CHECK(s->rank == e->rank && s->x == e->x && s->from == e->from && s->to == e->to && s->whole == e->whole);
    }
    n = 5;
    CHECK(straggle_parse(stragglers, &n, NULL, 8, err) == 0 && n == 0);
}

CLAIM(the_example_in_the_words_is_a_spec) {
    char example[ERR_BYTES];
    int n;
    CHECK(straggle_parse(stragglers, &n, "nonsense", 8, err) == -1);
    const char* start = strstr(err, "example: \"");
    CHECK(start != NULL);
    if (!start) return;
    snprintf(example, sizeof example, "%s", start + strlen("example: \""));
    *strchr(example, '"') = 0;
    CHECK(straggle_parse(stragglers, &n, example, 1, err) == 0 && n == 1);
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
        int n;
        CHECK(straggle_parse(stragglers, &n, rows[i].spec, 8, err) == 0);
        Slowness slow = straggle_at(stragglers, n, rows[i].rank, rows[i].step);
        CHECK(slow.linear == rows[i].linear && slow.whole == rows[i].whole);
    }
}

int main(void) { return test_main(); }
