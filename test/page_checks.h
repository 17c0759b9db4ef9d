// page_checks.h - for tests of pages (plan/show/page.h): what stands in a page, and what holds for all.
#pragma once
#include "data/json.h"
#include "plan/base/base.h"
#include "test/test.h"

static inline const JsonValue* member(const JsonValue* of, const char* name) {
    const JsonValue* value = json_get(of, name);
    if (!value) printf("    no member %s\n", name);
    return value;
}

static inline double number(const JsonValue* of, const char* name) {
    double x = NAN;
    json_double(member(of, name), &x);
    return x;
}

static inline int count(const char* text, const char* words) {
    int n = 0;
    for (; (text = strstr(text, words)); text++) n++;
    return n;
}

// Line i of a page's data, from 0, in a page that must outlive it. 0, or -1 when it is no JSON.
static inline int page_line_json(Json* json, const char* page, int i) {
    const char* mark = "type='application/json'>\n";
    char err[ERR_BYTES] = "no data";
    const char* begin = strstr(page, mark);
    if (begin) begin += strlen(mark);
    for (; begin && i > 0; i--) begin = strchr(begin, '\n') ? strchr(begin, '\n') + 1 : NULL;
    const char* end = begin ? strchr(begin, '\n') : NULL;
    if (end && !json_parse(json, begin, (size_t)(end - begin), err)) return 0;
    printf("    %s\n", err);
    test_failures_in_claim++;
    return -1;
}

static inline int page_json(Json* json, const char* page) { return page_line_json(json, page, 0); }

static inline void check_page_needs_nothing_else(const char* page) {
    CHECK(!strncmp(page, "<!doctype html>", 15) && strstr(page, "</html>"));
    CHECK(count(page, "<script") == 2 && count(page, "</script>") == 2);
    CHECK(count(page, "<style>") == 1 && count(page, "</style>") == 1 && count(page, "<body>") == 1);
    CHECK(!strstr(page, "http:") && !strstr(page, "https:") && !strstr(page, "src=") && !strstr(page, "@import"));
}
