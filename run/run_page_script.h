// run_page_script.h - the parts of report.html that are the same in each; plan/page.h says where they stand.
#pragma once

extern const char run_page_head[], run_page_foot[];
