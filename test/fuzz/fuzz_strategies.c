// fuzz_strategies.c - lists of --strategies: any bytes give pipelines that make sense and print back, or a line of
// words.
#include <stdlib.h>

#include "plan/strategies.h"
#include "test/fuzz/require.h"

int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
    StrategyList list, again;
    char text[STRATEGY_TEXT], err[ERR_BYTES] = "";
    if (strategies_parse(&list, (const char*)bytes, size, err, sizeof err)) {
        require(err[0] && memchr(err, 0, sizeof err) && strstr(err, "expected"));
        return 0;
    }
    require(!err[0] && list.n >= 1 && list.n <= MOST_RANK_STRATEGIES);
    for (int i = 0; i < list.n; i++) {
        const RankStrategy* s = &list.strategy[i];
        require(s->n >= 1 && s->n <= MOST_PIPELINE_GROUPS);
        for (int g = 0; g < s->n; g++) require(s->group[g].copies >= 1 && s->group[g].tp >= 1 && s->group[g].pp >= 1);
        strategy_print(s, text);
        require(strategies_parse(&again, text, strlen(text), err, sizeof err) == 0 && again.n == 1);
        require(again.strategy[0].n == s->n &&
                !memcmp(again.strategy[0].group, s->group, sizeof *s->group * (size_t)s->n));
    }
    Shape shape = shape_make(3, 32, 4, 300, 16);
    strategies_check(&list, &shape, 8, err, sizeof err);
    return 0;
}
