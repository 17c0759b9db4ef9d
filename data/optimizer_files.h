// optimizer_files.h - the optimizer's state in files: each rank writes the segments that it owns (plan/shape.h), any
// number of ranks reads what any other number wrote.
//
// Rank r of n writes optimizer-RRRRR-of-NNNNN.safetensors, fp32 in our own layout: "m.h.3.qkvw" is a whole tensor,
// "m.h.3.qkvw@4096" the part of it that begins at element 4096 and is as long as its only dimension. Together the files
// hold every element once; the reader proves that before it uses any.
#pragma once
#include "data/hf_files.h"

enum { OPTIMIZER_NAME = 64 };

// The name of the file of one of `ranks` ranks.
void optimizer_name(char name[OPTIMIZER_NAME], int rank, int ranks);

// m and v, and master when with_master, of state->rank into its file in dir. 0, or -1 with a message; a value that is
// not finite is an error.
int optimizer_write(const ModelState* state, int with_master, const char* dir, char* err, size_t errlen);

// Puts the same of state->rank, from all such files in dir. 0, or -1 with a message that names file, tensor and
// elements.
int optimizer_read(const ModelState* state, int with_master, const char* dir, char* err, size_t errlen);
// The same from files that are open; file i has the name of rank i in messages.
int optimizer_take(const ModelState* state, int with_master, const SafeTensors* files, int n_files, const char* dir,
                   char* err, size_t errlen);
