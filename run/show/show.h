// show.h - what a run says: its first screen, the records of its steps, its pages.
#pragma once
#include "data/docs_files.h"
#include "run/run.h"

// Says what trees spare, for people.
const char* run_spared(const TreeCounts* counts, char words[160]);
void run_show_others(Run* run);  // --report, --version: end the program
void run_print(const Run* run, const MemoryPlan* plan);
void run_log_start(Run* run);  // the first line of the log: the options and what the run consists of
// report.html is made of the lines of log.jsonl; both do nothing but on rank 0.
void run_open_report(Run* run);
void run_write_report(Run* run);
Comm run_sent(const Run* run);  // bytes and waiting of this rank in all its Comms so far; the rest is the world's
// Ends the record of run->batch, behind its step; record.plan_stall_us is known.
void run_end_record(Run* run);
// At the end: how far it came and what to do next; with --verbose also memory, planning and bytes. All ranks call it.
void run_print_end(Run* run);
