// forked.h - ranks of one machine without a launcher: processes forked from one, the memory that they share, and how
// they end. What the one has read before they share as pages that nobody writes to.
#pragma once
#include <stdatomic.h>

#include "plan/base/base.h"

// Memory for so many ranks. 0, or -1 with a message.
int forked_open(int ranks, Err err);
// Makes this process that many. Each of them returns with its rank; from then on one line of die is said among all. The
// caller stays behind as their parent, and does not come back: it passes signals on to rank 0, waits, and ends with 0
// when all have left (forked_leave), else with the status of the first that has not. A rank that ends so ends all, and
// so does the end of the parent. -1 with a message where the system does not allow that number.
int forked_begin(Err err);
int forked_ranks(void);  // 0: this process is no such rank
int forked_rank(void);
void forked_leave(void);  // this rank waits for nobody any more, nor does anybody for it

// Zeros in memory of all ranks, at the same address on each, for ever: before forked_begin, or by one that tells the
// others where. NULL: there is no more.
void* forked_take(size_t bytes);

// What all ranks would find alike, in memory that they share: the first that comes finds it, the others take it.
typedef struct Once {
    atomic_uint begun, found;  // the number of what is looked for, of what stands here
    char* memory;
    size_t room;
} Once;
// 1: this rank is to find it: once_room, once_end; 0: it stands there; -1 with a message: a rank has failed. Numbers go
// up by any steps, from 1; whoever begins one knows that nobody looks at what stands there any more.
int once_begin(Once* once, unsigned number, Err err);
int once_room(Once* once, size_t bytes, Err err);  // 0, or -1 with a message
void once_end(Once* once, unsigned number);

// Sleeps while *word is `seen`, at most a quarter of a second, so that failures are seen.
void forked_sleep(atomic_uint* word, unsigned seen);
void forked_wake(atomic_uint* word);  // one more, and all who sleep there go on

// A failure is that of all ranks: the first one's words stay. fail returns -1; failed 0, or -1 with them.
__attribute__((format(printf, 1, 2))) int forked_fail(const char* format, ...);
int forked_failed(Err err);
// "rank 3 (process 4711)"; returns name.
const char* forked_name(int rank, char name[48]);
