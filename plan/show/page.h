// page.h - what all pages of this program have in common: one file of HTML that needs nothing else, in it objects of
// JSON, one a line, and scripts that draw them.
//
//   page_begin(out, style);      up to where the data stand
//   ...                          the lines: JSON without '<', as page_string and page_line write it
//   page_end(out, script);       plan/show/page.js and the page's own script
//
// Styles and scripts are files of their own, which the build turns into strings: plan/show/page.js is
// plan_show_page_js.
#pragma once
#include <stddef.h>
#include <stdio.h>

void page_begin(FILE* out, const char* style);
void page_end(FILE* out, const char* script);
// A string as JSON: quotes, backslashes, controls, and < so that nothing ends the element that it stands in.
void page_string(FILE* out, const char* text);
// A line of JSON that others wrote, as it is but for '<', which in JSON stands in strings only.
void page_line(FILE* out, const char* text, size_t n);
