// page_text.h - the page around the numbers of page.c.
#pragma once

extern const char page_head[];  // up to where the JSON begins
extern const char page_foot[];  // from where it ends
