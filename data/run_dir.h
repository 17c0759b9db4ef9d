// run_dir.h - the directory of a run belongs to one process at a time, and is known for what it is.
//
// DIR/RUN is its marker: a small file that begins with {"ragged run" and says which process is at work, over MPI that
// of rank 0. It holds a lock on it (flock), which the kernel releases however the process ends; NFS passes such locks
// to its server (Linux 2.6.12 and later).
#pragma once
#include "plan/base/base.h"
#include "plan/base/disk.h"

typedef struct RunDir {
    char path[DISK_PATH];
    int lock;      // descriptor of the marker; -1: not held
    int is_new;    // the claim made the directory
    int unlocked;  // its file system has no locks: nothing keeps another process out
} RunDir;

// Claims PARENT/N for the lowest number N above all that are there. Processes that call it together get different ones.
// 0, or -1 with a message.
int run_dir_claim_next(RunDir* dir, const char* parent, Err err);
// Claims the directory `path`, made with its parents if missing. 0, or -1 with a message, which names who holds it.
int run_dir_claim(RunDir* dir, const char* path, Err err);
// Lets it go. A directory that was made by the claim and holds nothing but the marker is removed.
void run_dir_release(RunDir* dir);

// Finds, among the directories below parent that have a number as name, the one whose checkpoint was written last. 1
// found, 0 none, -1 with a message.
int run_dir_newest(char path[DISK_PATH], const char* parent, Err err);
int run_dir_is_marked(const char* dir);  // 1 when dir holds the marker of a run
// Returns 1 for a run or a checkpoint of this program: its content changes during a run, and is no text to learn from.
// -1 with a message: that cannot be told, because too many files are open or a disk is bad.
int run_dir_is_ours(const char* dir, Err err);
