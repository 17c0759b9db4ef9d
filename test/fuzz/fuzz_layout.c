// fuzz_layout.c - files of --layout: any bytes give stages that make sense and print back, or a line of words.
#include <stdlib.h>

#include "plan/layout.h"

static void require(int holds) {
    if (!holds) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
    static const Layout usual = {.tp = 1, .stages = 1, .stage = {{4, 1, RECOMPUTE_NONE}}};
    Layout layout, again;
    char err[ERR_BYTES] = "", text[MOST_STAGES * 64];
    if (layout_parse(&layout, &usual, (const char*)bytes, size, err, sizeof err)) {
        require(err[0] && memchr(err, 0, sizeof err) && strstr(err, "expected"));
        return 0;
    }
    require(!err[0] && layout.stages >= 1 && layout.stages <= MOST_STAGES && layout.tp >= 1);
    for (int s = 0; s < layout.stages; s++) {
        const StageLayout* stage = &layout.stage[s];
        require(stage->layers >= 1 && stage->zero >= 1 && stage->zero <= 3);
        require(stage->recompute >= RECOMPUTE_NONE && stage->recompute <= RECOMPUTE_BLOCK);
    }
    size_t n = layout_print(&layout, text, sizeof text);
    require(n < sizeof text && layout_parse(&again, &usual, text, n, err, sizeof err) == 0);
    require(memcmp(&again, &layout, sizeof layout) == 0);
    return 0;
}
