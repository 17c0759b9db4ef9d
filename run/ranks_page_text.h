// ranks_page_text.h - the page around the numbers of ranks_page.c, beside what plan/page_parts.h has for all pages.
#pragma once

extern const char ranks_page_head[];  // from the end of the common style to where page_numbers begins
extern const char ranks_page_foot[];  // behind page_functions
