// page_text.h - the page around the numbers of page.c, beside what plan/page_parts.h has for all pages.
#pragma once

extern const char page_head[];  // from the end of the style to where page_numbers begins
extern const char page_foot[];  // behind page_functions
