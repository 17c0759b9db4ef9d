// prune_file.h - what a rank keeps of its resized linears (plan/prune.h): kept-RRRRR-of-NNNNN.safetensors.
//
// Each table is three fp32 tensors: NAME.value and NAME.kept (layers,n), NAME.stay (1,1). "check" (1,4) holds their
// hash in pieces of 16 bits: a changed bit may leave a plausible value, which nothing else would find.
#pragma once
#include "data/safetensors.h"

enum { MOST_PRUNE_TABLES = 8 };

// Of one linear's columns, of heads or of hidden units, in every layer.
typedef struct PruneTable {
    const char* name;
    int n;
    int stay;      // the first `stay` of them are this rank's to compute or to leave out; the others are given away
    float* value;  // (layers,n) priorities: finite, not negative
    float* kept;   // (layers,n) 1, or 0 where it is left out; never all of those that stay, none of the others
} PruneTable;

// 0, or -1 with a message.
int prune_file_write(const PruneTable* tables, int n_tables, int layers, const char* path, char* err, size_t errlen);
// Fills value, kept and stay of tables, whose name and n say what is expected. A file that holds anything else is
// refused with a message, and then nothing is filled. prune_file_take does the same from a file that is open.
int prune_file_read(PruneTable* tables, int n_tables, int layers, const char* path, char* err, size_t errlen);
int prune_file_take(PruneTable* tables, int n_tables, int layers, const SafeTensors* file, char* err, size_t errlen);
