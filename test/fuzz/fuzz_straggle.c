// fuzz_straggle.c - specs of --straggle: any bytes give stragglers that make sense and print back, or a line that names
// a piece. The first byte chooses how many ranks there are; a bit of it stands for a good beginning, so that what is
// accepted is reached.
#include <stdio.h>
#include <stdlib.h>

#include "plan/straggle.h"
#include "test/fuzz/require.h"

static void check_straggler(const Straggler* s, int ranks) {
    char text[128], err[ERR_BYTES];
    Straggler again[MOST_STRAGGLERS];
    int n;
    require(s->rank >= 0 && s->rank < ranks && s->x >= 1 && s->x <= 1000);
    require(s->from >= 1 && s->to >= s->from && (s->whole == 0 || s->whole == 1));
    int length = snprintf(text, sizeof text, "rank=%d,x=%.17g,from=%lld%s", s->rank, s->x, (long long)s->from,
                          s->whole ? ",whole" : "");
    if (s->to < INT64_MAX) snprintf(text + length, sizeof text - (size_t)length, ",to=%lld", (long long)s->to);
    require(straggle_parse(again, &n, text, ranks, err, sizeof err) == 0 && n == 1);
    require(again->rank == s->rank && again->x == s->x && again->from == s->from && again->to == s->to &&
            again->whole == s->whole);
    Slowness slow = straggle_at(again, 1, s->rank, s->from);
    require(slow.whole == (s->whole ? s->x : 1) && slow.linear == (s->whole ? 1 : s->x));
}

int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
    Straggler list[MOST_STRAGGLERS];
    const char* beginning = size && bytes[0] & 16 ? "rank=0,x=2," : "";
    size_t before = strlen(beginning);
    char err[ERR_BYTES] = "", *spec = (char*)calloc(before + size + 1, 1);
    int ranks = size ? 1 + bytes[0] % 16 : 1, n = -1;
    memcpy(spec, beginning, before);
    if (size) memcpy(spec + before, bytes + 1, size - 1);
    if (straggle_parse(list, &n, spec, ranks, err, sizeof err)) {
        require(n == 0 && strstr(err, "piece ") && memchr(err, 0, sizeof err) && !strchr(err, '\n'));
    } else {
        require(n >= 0 && n <= MOST_STRAGGLERS && !err[0]);
        for (int i = 0; i < n; i++) check_straggler(&list[i], ranks);
    }
    free(spec);
    return 0;
}
