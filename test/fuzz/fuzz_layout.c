// fuzz_layout.c - files of --layout: any bytes give stages that make sense and print back, or a line of words.
#include <stdlib.h>

#include "plan/layout.h"
#include "test/fuzz/require.h"

int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
    static const Layout usual = {.tp = 1, .stages = 1, .stage = {{4, 1}}, .layer = {{1, 1, RECOMPUTE_NONE}}};
    Layout layout, again;
    static char text[LAYOUT_TEXT];
    char err[ERR_BYTES] = "";
    if (layout_parse(&layout, &usual, (const char*)bytes, size, err, sizeof err)) {
        require(err[0] && memchr(err, 0, sizeof err) && strstr(err, "expected"));
        return 0;
    }
    require(!err[0] && layout.stages >= 1 && layout.stages <= MOST_STAGES && layout.tp >= 1);
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
    size_t n = layout_print(&layout, text, sizeof text);
    require(n < sizeof text && layout_parse(&again, &usual, text, n, err, sizeof err) == 0);
    require(memcmp(&again, &layout, sizeof layout) == 0);
    return 0;
}
