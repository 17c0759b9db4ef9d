// fuzz_words.c - what people write, read by plan/base/words.h: any bytes give a layout, strategies, a machine,
// stragglers or options that make sense and print back, or one line. The first byte says which, and how many ranks
// there are.
#include <math.h>
#include <stdio.h>

#include "plan/options/read.h"
#include "plan/layout/layout.h"
#include "plan/search/machine_asked.h"
#include "plan/slow/speeds.h"
#include "test/fuzz/require.h"
#include "test/shapes.h"

static char err[ERR_BYTES];

static void check_layout(const char* text, size_t size) {
    static const Layout usual = {.tp = 1, .stages = 1, .stage = {{4, 1}}, .layer = {{1, 1, RECOMPUTE_NONE}}};
    static Layout layout, again;
    static char printed[LAYOUT_TEXT];
    if (layout_parse(&layout, &usual, text, size, err)) return;
    require(layout.stages >= 1 && layout.stages <= MOST_STAGES && layout.tp >= 1);
    for (int s = 0; s < layout.stages; s++) {
        const StageLayout* stage = &layout.stage[s];
        require(stage->layers >= 1 && stage->zero >= 1 && stage->zero <= 3);
    }
    require(layout_first(&layout, layout.stages) <= MOST_LAYERS);
    for (int l = 0; l < layout_first(&layout, layout.stages); l += layout_run(&layout, l)) {
        const LayerLayout* row = &layout.layer[l];
        require(row->tp >= 1 && row->zero >= 1 && row->zero <= 3);
        require(row->recompute >= RECOMPUTE_NONE && row->recompute <= RECOMPUTE_BLOCK);
    }
    size_t n = layout_print(&layout, printed, sizeof printed);
    require(n < sizeof printed && layout_parse(&again, &usual, printed, n, err) == 0);
    require(memcmp(&again, &layout, sizeof layout) == 0);
}

static void check_strategies(const char* text, size_t size) {
    StrategyList list, again;
    char printed[STRATEGY_TEXT];
    if (strategies_parse(&list, text, size, err)) return;
    require(list.n >= 1 && list.n <= MOST_RANK_STRATEGIES);
    for (int i = 0; i < list.n; i++) {
        const RankStrategy* s = &list.strategy[i];
        require(s->n >= 1 && s->n <= MOST_PIPELINE_GROUPS);
        for (int g = 0; g < s->n; g++) require(s->group[g].copies >= 1 && s->group[g].tp >= 1 && s->group[g].pp >= 1);
        strategy_print(s, printed);
        require(strategies_parse(&again, printed, strlen(printed), err) == 0 && again.n == 1);
        require(again.strategy[0].n == s->n &&
                !memcmp(again.strategy[0].group, s->group, sizeof *s->group * (size_t)s->n));
    }
    Shape shape = shape_make(3, 32, 4, 300, 16);
    strategies_check(&list, &shape, 8, err);
    err[0] = 0;
}

static void check_setting(const Machine* machine, int ranks) {
    static GroupCost groups[32];
    Setting setting;
    if (machine_setting(&setting, machine, ranks, 8, 1 << 20, groups, err) == 0)
        for (int d = 1; d <= ranks; d++) {
            double ms = group_ms(&groups[d], 1e10, 1e5);
            require(groups[d].ulysses_size >= 1 && groups[d].room >= 1 && isfinite(ms) && ms >= 0);
        }
    else require(err[0]);
    err[0] = 0;
}

static void check_machine(const char* text, size_t size) {
    static Machine machine, again;
    static char printed[1 << 14], twice[1 << 14];
    if (machine_parse(&machine, text, size, err)) return;
    size_t length = machine_print(&machine, printed, sizeof printed);
    require(length < sizeof printed && machine_parse(&again, printed, length, err) == 0);
    require(machine_print(&again, twice, sizeof twice) == length && !strcmp(printed, twice));
    for (int ranks = 1; ranks <= 24; ranks++) check_setting(&machine, ranks);
    for (int i = 0; i < machine.n_schemes; i++)
        require(machine_scheme_tokens(&machine, &machine.schemes[i], 2, 4, 1) % 128 == 0);
}

static void check_straggler(const Straggler* s, int ranks) {
    char text[128];
    Straggler again[MOST_STRAGGLERS];
    int n;
    require(s->rank >= 0 && s->rank < ranks && s->x >= 1 && s->x <= 1000);
    require(s->from >= 1 && s->to >= s->from && (s->whole == 0 || s->whole == 1));
    int length = snprintf(text, sizeof text, "rank=%d,x=%.17g,from=%lld%s", s->rank, s->x, (long long)s->from,
                          s->whole ? ",whole" : "");
    if (s->to < INT64_MAX) snprintf(text + length, sizeof text - (size_t)length, ",to=%lld", (long long)s->to);
    require(straggle_parse(again, &n, text, ranks, err) == 0 && n == 1);
    require(again->rank == s->rank && again->x == s->x && again->from == s->from && again->to == s->to &&
            again->whole == s->whole);
    Slowness slow = straggle_at(again, 1, s->rank, s->from);
    require(slow.whole == (s->whole ? s->x : 1) && slow.linear == (s->whole ? 1 : s->x));
}

static void check_stragglers(const char* spec, int ranks) {
    Straggler list[MOST_STRAGGLERS];
    int n = -1;
    if (straggle_parse(list, &n, spec, ranks, err)) require(n == 0);
    for (int i = 0; i < n; i++) check_straggler(&list[i], ranks);
}

static void restore(void* again, const char* name, const char* value) {
    require(config_restore((Config*)again, name, value, err) == 0);
}

// Options with new lines between them: what a checkpoint keeps of them can be restored.
static void check_options(char* text) {
    static Config config, again;
    char* argv[64] = {"train"};
    int argc = 1;
    for (char* word = strtok(text, "\n"); word && argc < 63; word = strtok(NULL, "\n")) argv[argc++] = word;
    if (config_read(&config, argc, argv, err) == 0) {
        char* none[] = {"train"};
        require(config_read(&again, 1, none, err) == 0);
        config_visit(&config, restore, &again);
        config_free(&again);
    }
    config_free(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
    if (size == 0) return 0;
    char* text = (char*)calloc(size, 1);
    memcpy(text, bytes + 1, size - 1);
    err[0] = 0;
    int ranks = 1 + bytes[0] / 5 % 16;
    switch (bytes[0] % 5) {
        case 0: check_layout(text, size - 1); break;
        case 1: check_strategies(text, size - 1); break;
        case 2: check_machine(text, size - 1); break;
        case 3: check_stragglers(text, ranks); break;
        default: check_options(text);
    }
    require(memchr(err, 0, sizeof err) != NULL);
    require(!err[0] || strstr(err, "expect") || bytes[0] % 5 == 4);
    free(text);
    return 0;
}
