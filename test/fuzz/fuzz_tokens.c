// fuzz_tokens.c - any bytes behind the head of an index of kept tokens: what opens can be read to its end.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/docs_files.h"
#include "data/tokenizer_files.h"
#include "plan/base/disk.h"

static void put(const char* path, const void* bytes, size_t n) {
    FILE* file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, n, file) != n || fclose(file)) abort();
}

// Tokens 0 to 7 in a shard; of an index whose hashes are right, so that what stands in it is what is tried.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
    static Tokenizer* tokenizer;
    static char shard[64], index[64];
    char err[ERR_BYTES], bytes[4096] = "RAGTOK3";
    int32_t header[260] = {20240520, 1, 8, 0};
    uint16_t tokens[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    const char* place = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";
    if (n > 2000) return 0;
    if (!tokenizer) {
        if (tokenizer_open(&tokenizer, NULL, err)) abort();
        snprintf(shard, sizeof shard, "%s/tokens_%ld.bin", place, (long)getpid());
        snprintf(index, sizeof index, "%s/tokens_%ld.idx", place, (long)getpid());
        memcpy(header + 256, tokens, sizeof tokens);
        put(shard, header, sizeof header);
    }
    // key, hash of these, hash of the shard, content; then seven counts, the corpora
    uint64_t words[11] = {7};
    uint64_t bytes_of_shard;
    if (disk_hash(shard, &bytes_of_shard, &words[2], err)) abort();
    uint8_t changes[sizeof(DocsCorpus) * MOST_CORPORA + 8] = {0};
    memcpy(changes, data, MIN(n, sizeof changes));
    words[10] = changes[0] & 15;
    memcpy(bytes + 8, words, 11 * sizeof *words);
    memcpy(bytes + 8 + 11 * sizeof *words, changes + 8, sizeof changes - 8);
    words[1] = hash_bytes(bytes, 8 + 11 * sizeof *words + sizeof changes - 8, 0);
    memcpy(bytes + 8, words, 11 * sizeof *words);
    put(index, bytes, 8 + 11 * sizeof *words + sizeof changes - 8);
    Docs* docs = NULL;
    if (docs_load(&docs, shard, index, 7, tokenizer, err)) return 0;
    int found[8];
    for (int64_t d = 0; d < docs->n; d++)
        if (docs_length(docs, d) > 8 || docs_read(docs, d, 0, (int)docs_length(docs, d), found, err)) abort();
    docs_close(docs);
    return 0;
}
