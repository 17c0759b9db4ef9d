// page.h - what all pages of this program have in common: a file of HTML that needs nothing else, numbers as JSON
// in it, and a script that draws them. A page is
//
//   page_begin, its own style, "</style></head><body>" and elements, page_numbers, the JSON, page_functions, its own
//   script, page_end
#pragma once
#include <stdio.h>

extern const char page_begin[];    // up to where a page's own style may follow
extern const char page_numbers[];  // the box for what hovering says; then up to where the JSON begins
// From where the JSON ends: begins the script, with x (the JSON) and functions: get, css, ms, share, grouped, row (of a
// table), paper (a canvas ready to be drawn on), always (draw now, and again when the window or its colours change),
// tell (what hovering says).
extern const char page_functions[];
extern const char page_end[];

// The part of plan.html about the stages of a pipeline (plan/page_stages.c): its elements, its script, its JSON.
typedef struct ShownStages ShownStages;
extern const char page_stages_elements[], page_stages_script[];
void page_stages(FILE* out, const ShownStages* x);

// A string as JSON inside a script element: quotes, backslashes, controls, and < so that nothing ends the element.
void page_string(FILE* out, const char* text);
