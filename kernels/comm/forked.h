// forked.h - ranks of one machine without a launcher: processes forked from one, the memory that they share, and how
// they end. They share all that the one read before, as pages that nobody writes to.
#pragma once
#include <stdatomic.h>

#include "plan/base/base.h"

// Maps memory for `ranks` ranks. 0, or -1 with a message.
int forked_open(int ranks, Err err);
// Makes this process the ranks of forked_open. Each returns with its rank; from then on die says one line among all.
// The caller stays as their parent, and does not come back: it passes signals on to rank 0, waits, and ends with 0 when
// all have left (forked_leave), else with the status of the first that has not. A rank that ends so ends all, and so
// does the end of the parent. -1 with a message: the system does not allow that number.
int forked_begin(Err err);
int forked_ranks(void);  // 0: this process is no rank that was forked
int forked_rank(void);
void forked_leave(void);  // this rank waits for nobody any more, nor does anybody for it

// Takes zeroed memory of all ranks, at the same address on each, for ever. The caller does so before forked_begin, or
// is one rank that tells the others where it is. NULL: there is no more.
void* forked_take(size_t bytes);

// A result that all ranks would find alike, in memory that they share: the first that comes finds it for all.
typedef struct Once {
    atomic_uint begun, found;  // number of the result that is looked for; of the one that is here
    char* memory;
    size_t room;
} Once;
// Returns 1: this rank is to find it, by once_room and once_end; 0: it is there; -1 with a message: a rank has failed.
// Numbers rise by any steps, from 1; who begins one knows that nobody looks at the result before it any more.
int once_begin(Once* once, unsigned number, Err err);
int once_room(Once* once, size_t bytes, Err err);  // 0, or -1 with a message
void once_end(Once* once, unsigned number);

// Sleeps while *word is `seen`, at most a quarter of a second, so that failures are seen.
void forked_sleep(atomic_uint* word, unsigned seen);
void forked_wake(atomic_uint* word);  // adds 1 to it, and wakes all who sleep there

// forked_fail makes a failure that of all ranks: the first one's words stay. It returns -1; forked_failed 0, or -1
// with the words.
__attribute__((format(printf, 1, 2))) int forked_fail(const char* format, ...);
int forked_failed(Err err);
// "rank 3 (process 4711)"; returns name.
const char* forked_name(int rank, char name[48]);
