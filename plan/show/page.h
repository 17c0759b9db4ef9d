// page.h - the frame of all pages of this program: one file of HTML that needs nothing else.
//
// It has objects of JSON, one a line, and scripts that draw them. Styles and scripts are files of their own, which the
// build turns into strings: plan/show/page.js is plan_show_page_js.
//
//   page_begin(out, style);      up to where the data stand
//   ...                          the lines: JSON without '<', as page_string and page_line write it
//   page_end(out, script);       plan/show/page.js and the page's own script
#pragma once
#include <stdio.h>

void page_begin(FILE* out, const char* style);
void page_end(FILE* out, const char* script);
// Writes a string as JSON. It escapes quotes, backslashes, controls, and <, so that nothing ends the element around it.
void page_string(FILE* out, const char* text);
// Writes a line of others' JSON as it is, except that it escapes '<', which JSON has in strings only.
void page_line(FILE* out, const char* text, size_t n);
