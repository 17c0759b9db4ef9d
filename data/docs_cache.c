// docs_cache.c - text that was encoded before, kept as a token shard with an index of its documents; see docs_files.h.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/docs_files.h"
#include "plan/base/user_cache.h"

// The facts that the shard does not hold. `hash` covers all of them, itself as 0.
typedef struct Index {
    char magic[8];
    uint64_t key, hash, shard_hash;
    DocsFacts facts;
    int64_t divided, n_corpora;
    DocsCorpus corpora[MOST_CORPORA];
} Index;

static const char index_magic[8] = "RAGTOK4";

static uint64_t hash_index(Index x) {
    x.hash = 0;
    return hash_bytes(&x, sizeof x, 0);
}

// The two files of one key.
enum { SHARD, INDEX };
typedef struct Kept {
    const char* dir;  // NULL: the user's cache
    uint64_t key;
    char names[2][64], paths[2][DISK_PATH];
} Kept;

// Finds where the files are, or will be. 1: they may not be kept, as words says.
static int find_files(Kept* k, char* words) {
    for (int i = 0; i < 2; i++) {
        snprintf(k->names[i], sizeof k->names[i], "tokens-%016llx.%s", (unsigned long long)k->key, i ? "idx" : "bin");
        if (k->dir ? disk_join(k->paths[i], k->dir, k->names[i], words)
                   : user_cache_path(k->paths[i], k->names[i], words) || user_cache_check(k->names[i], words) < 0)
            return 1;
    }
    return 0;
}

static int save(const Kept* k, int file, const void* bytes, size_t n, Err err) {
    if (!k->dir) return user_cache_save(k->names[file], bytes, n, 1, err);
    return disk_make_dirs(k->dir, err) || disk_put(k->paths[file], bytes, n, 1, err) ? -1 : 0;
}

static int save_both(const Docs* d, const Kept* k, Err err) {
    const DocsMore* m = d->more;
    size_t n;
    char* shard = docs_shard_of(d, &n, err);
    if (!shard) return -1;
    Index x = {.key = k->key, .facts = m->facts, .divided = d->divided, .n_corpora = m->n_corpora};
    memcpy(x.magic, index_magic, sizeof x.magic);
    memcpy(x.corpora, m->corpora, sizeof x.corpora);
    x.shard_hash = disk_hash_bytes(shard, n);
    x.hash = hash_index(x);
    int failed = save(k, SHARD, shard, n, err) || save(k, INDEX, &x, sizeof x, err);
    free(shard);
    return failed;
}

static int read_index(Index* x, const char* path, uint64_t key, Err err) {
    size_t n = 0;
    char* bytes = disk_read_file(path, sizeof *x + 1, &n, err);
    if (!bytes) return -1;
    int right = n == sizeof *x;
    if (right) memcpy(x, bytes, sizeof *x);
    free(bytes);
    if (right && !memcmp(x->magic, index_magic, sizeof index_magic) && x->key == key && x->hash == hash_index(*x) &&
        x->n_corpora >= 0 && x->n_corpora <= MOST_CORPORA)
        return 0;
    return fail(err, "%s: is no index of these documents", path);
}

static int take_index(Docs* d, const Index* x, const char* path, Err err) {
    DocsMore* m = d->more;
    for (int i = 0; i < x->n_corpora; i++) {
        const DocsCorpus* c = &x->corpora[i];
        if (c->first < 0 || c->end < c->first || c->end > d->n || !memchr(c->name, 0, CORPUS_NAME) || !(c->share > 0))
            return fail(err, "%s: corpus %d has no range of documents", path, i);
    }
    memcpy(m->corpora, x->corpora, sizeof m->corpora);
    m->n_corpora = (int)x->n_corpora;
    d->max_token = d->tokenizer->vocab - 1;
    m->facts = x->facts, d->divided = x->divided;
    return 0;
}

int docs_load(Docs** out, const char* shard, const char* index, uint64_t key, const Tokenizer* tokenizer, Err err) {
    Index x;
    uint64_t bytes, hash;
    *out = NULL;
    if (read_index(&x, index, key, err) || disk_hash(shard, &bytes, &hash, err)) return -1;
    if (hash != x.shard_hash) return fail(err, "%s: is damaged, or not the shard of its index", shard);
    if (docs_open_as(out, &shard, 1, tokenizer, (DocsReading){0}, err)) return -1;
    if (take_index(*out, &x, index, err) == 0) return 0;
    docs_close(*out);
    *out = NULL;
    return -1;
}

// Opens text of `bytes` bytes and this key, from its shard where the cache has one.
static int open_keyed(Docs** out, const char* const* paths, int n_paths, uint64_t key, int64_t bytes,
                      const Tokenizer* tokenizer, DocsCache* cache, char* words, Err err) {
    enum { LEAST = 1 << 20 };
    char why[ERR_BYTES];
    Kept k = {.dir = cache->dir, .key = key};
    words[0] = cache->path[0] = 0;
    cache->was_there = 0;
    if (tokenizer->is_bytes || (bytes < LEAST && !cache->dir))
        return docs_open_as(out, paths, n_paths, tokenizer, cache->reading, err);
    int is_kept = !find_files(&k, words);
    cache->was_there = is_kept && docs_load(out, k.paths[SHARD], k.paths[INDEX], key, tokenizer, why) == 0;
    if (!cache->was_there) {
        cache->reading.total = bytes;
        int status = docs_open_as(out, paths, n_paths, tokenizer, cache->reading, err);
        // Only what is encoded whole is kept, without instructions, whose labels an index does not say.
        const DocsMore* m = status ? NULL : (*out)->more;
        if (!m || !is_kept || m->n_learnt || m->n_encoded != docs_tokens(*out)) return status;
        if (save_both(*out, &k, words)) return 0;
        Docs* kept = NULL;  // the shard, as every other rank and run reads it
        if (docs_load(&kept, k.paths[SHARD], k.paths[INDEX], key, tokenizer, words)) kept = *out;
        else docs_close(*out);
        *out = kept;
    }
    snprintf(cache->path, sizeof cache->path, "%s", k.paths[SHARD]);
    return 0;
}

int docs_open_cached(Docs** out, const char* const* paths, int n_paths, const Tokenizer* tokenizer, DocsCache* cache,
                     char* words, Err err) {
    uint64_t key = 0;
    int64_t bytes = 0;
    Paths skipped = {0};
    if (!tokenizer->is_bytes && docs_key(&key, &bytes, &skipped, paths, n_paths, tokenizer, cache->reading, err))
        return -1;
    int status = open_keyed(out, paths, n_paths, key, bytes, tokenizer, cache, words, err);
    if (status || (*out)->skipped.n) paths_free(&skipped);
    else (*out)->skipped = skipped;  // a shard knows of none
    return status;
}
