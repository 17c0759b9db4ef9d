// page.c - see page.h.
#include "plan/show/page.h"

#include "plan/base/text.h"

extern const char plan_show_page_css[], plan_show_page_js[];

void page_begin(FILE* out, const char* style) {
    fprintf(out,
            "<!doctype html>\n"
            "<html lang='en'>\n"
            "<head>\n"
            "<meta charset='utf-8'>\n"
            "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
            "<title>ragged</title>\n"
            "<style>\n%s%s</style>\n"
            "</head>\n"
            "<body>\n"
            "<script id='data' type='application/json'>\n",
            plan_show_page_css, style);
}

void page_end(FILE* out, const char* script) {
    fprintf(out, "</script>\n<script>\n'use strict';\n%s%s</script>\n</body>\n</html>\n", plan_show_page_js, script);
}

void page_string(FILE* out, const char* text) {
    TextFilter safe = {{0}, 0, 0};
    char bytes[TEXT_MOST];
    fputc('"', out);
    for (; *text; text++)
        for (int i = 0, n = text_filter(&safe, (unsigned char)*text, 0, bytes); i < n; i++) {
            if (bytes[i] == '"' || bytes[i] == '\\' || bytes[i] == '<') fprintf(out, "\\u%04x", bytes[i]);
            else fputc(bytes[i], out);
        }
    text_print_end(out, &safe);
    fputc('"', out);
}

void page_line(FILE* out, const char* text, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (text[i] == '<') fputs("\\u003c", out);
        else fputc(text[i], out);
    fputc('\n', out);
}
