// fuzz_log.c - lines of a log.jsonl, of which report.html is made: whatever they are, they harm nothing.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/json.h"
#include "plan/base/base.h"
#include "plan/show/page.h"
#include "run/show/run_page.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
    RunPage page;
    run_page_open(&page, "run");
    FILE* out = fopen("/dev/null", "w");
    const char *text = (const char*)data, *end = text + n;
    while (text < end) {
        const char* next = memchr(text, '\n', (size_t)(end - text));
        size_t length = (size_t)((next ? next : end) - text);
        char* line = malloc(length + 1);  // of just that size, so that a read behind it is seen
        memcpy(line, text, length);
        line[length] = 0;
        run_page_line(&page, line, length);
        page_line(out, line, length);
        free(line);
        text += length + 1;
    }
    run_page_table(out, &page, 1);
    fclose(out);
    run_page_close(&page);
    return 0;
}
