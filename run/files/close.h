// close.h - close copies: a checkpoint in parts, on the nodes of the ranks that have them (--close-copy DIR,every=K).
//
// A part is what one rank writes of a checkpoint (files.h). Every K steps each rank keeps its part in DIR, and that of
// a partner, on another node where there is one: no file system is shared, and a node that is lost takes no part with
// it that no other node has. A part is a directory of checkpoint.h, so it is whole or not there:
//
//   DIR/ragged-KEY/rank-00002-of-00006/step-000130/             and of a partner rank-00001-of-00006.partner/...
//
// KEY is of the run's directory. When the run goes on, the newest step of which all parts are on nodes that are there
// becomes a checkpoint of the run, where that is newer than all of these: from then on it is one like any other, for
// any ranks, --tp, --pp and --zero. Parts of unlike pasts (a run that went back and on again) have unlike hashes of
// losses.
#pragma once
#include "run/run.h"

void close_settle(Run* run);  // whether --close-copy goes with the other options, or the end of the program
// Finds the parts of this run, once rank 0 has claimed its directory. With --resume the newest step may become a
// checkpoint there: a line says so. All ranks call it.
void close_find(Run* run);
size_t close_copy_bytes(const Run* run);   // of parts on their way; 0: nobody wants them
size_t close_stage_bytes(const Run* run);  // of them on a device that has memory of its own
size_t close_files_bytes(const Run* run);  // of parts in DIR, where that is memory
void close_start(Run* run);                // of training: what lies in DIR is of the past
int close_is_due(const Run* run);
int close_is_written(void);  // this rank's files of the copy under way
// Between two steps; all ranks call them. A copy that cannot be kept is a warning, and the one before stays.
void close_begin(Run* run);
void close_end(Run* run);     // of the one under way, if there is one: waits for it
void close_finish(Run* run);  // of training: all is saved, DIR holds nothing of it any more
