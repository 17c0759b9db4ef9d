// optimizer_files.h - the optimizer's state in files: each rank writes the segments that it owns (plan/model/shape.h),
// any number of ranks reads what any other number wrote.
//
// Rank r of n writes optimizer-RRRRR-of-NNNNN.safetensors, fp32 in our own layout: "m.h.3.qkvw" is a whole tensor,
// "m.h.3.qkvw@4096" the part of it that begins at element 4096 and is as long as its only dimension. Behind these may
// stand what else the rank keeps to itself (run/slow/prune.c).
#pragma once
#include "data/hf_files.h"
#include "plan/base/disk.h"

enum { OPTIMIZER_NAME = 64 };

// The name of the file of one of `ranks` ranks; its path in dir, 0, or -1 with a message.
void optimizer_name(char name[OPTIMIZER_NAME], int rank, int ranks);
int optimizer_path(char path[DISK_PATH], const char* dir, int rank, int ranks, Err err);

// m and v, and master when with_master, of state->rank into its file in dir, and n_extra tensors with data of their own
// behind them. 0, or -1 with a message; a value that is not finite is an error.
int optimizer_write(const ModelState* state, int with_master, const SafeTensor* extra, int n_extra, const char* dir,
                    Err err);

// Puts the same of state->rank, from the files of `ranks` ranks in dir. 0, or -1 with a message that names file and
// tensor; files of another model, or of which one is missing, put nothing.
int optimizer_read(const ModelState* state, int with_master, int ranks, const char* dir, Err err);
// The same from files that are open; file i has the name of rank i in messages.
int optimizer_take(const ModelState* state, int with_master, const SafeTensors* files, int n_files, const char* dir,
                   Err err);
