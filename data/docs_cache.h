// docs_cache.h - text is encoded once: its tokens are kept as a shard of llm.c's format, tokens-KEY.bin, with an index
// of documents beside it, tokens-KEY.idx. KEY is a hash of the text, of how it is read, and of the tokenizer: so ranks
// and later runs share it, and it can be nothing else's.
#pragma once
#include "data/docs_files.h"
#include "plan/base/disk.h"

typedef struct DocsCache {
    DocsReading reading;                        // of text
    const char* dir;                            // where to keep it; NULL: the user's cache, and only of 1 MiB or more
    void (*tell)(int64_t done, int64_t total);  // bytes of text encoded so far; NULL: nobody listens
    // filled in:
    char path[DISK_PATH];  // of the shard that was read or written; empty: there is none
    int was_there;
} DocsCache;

// As docs_open_as; where a shard cannot be kept, why is in words (ERR_BYTES, empty else) and the tokens stay in memory.
int docs_open_cached(Docs** out, const char* const* paths, int n_paths, const Tokenizer* tokenizer, DocsCache* cache,
                     char* words, Err err);
// A shard and its index, written for this key. 0, or -1 with a message: not there, damaged, another key's.
int docs_load(Docs** out, const char* shard, const char* index, uint64_t key, const Tokenizer* tokenizer, Err err);
