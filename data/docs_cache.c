// docs_cache.c - see docs_cache.h.
//
// The index, of 8-byte words, little-endian as all machines here: the header below, then the length of each document,
// the hash of each, and the corpora.
#include "data/docs_cache.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/docs_format.h"
#include "data/sampler_mix.h"
#include "plan/base/base.h"
#include "plan/base/user_cache.h"

enum { LEAST = 1 << 20, SHARD_HEADER = 1024 };

typedef struct Index {
    char magic[8];
    uint64_t key, content, tokens_hash, rest_hash;  // rest_hash: of the rest of the file
    int64_t n_docs, n_tokens, token_bytes, max_token;
    int64_t files, skipped, runs, packed, plain_jsonl, divided, n_corpora;
} Index;

static const char magic[8] = "RAGTOK2";

static uint64_t hash_of_rest(Index x, const void* rest, size_t n) {
    x.rest_hash = 0;
    return hash_bytes(rest, n, hash_bytes(&x, sizeof x, 0));
}

static size_t rest_bytes(const Index* x) { return (size_t)x->n_docs * 16 + (size_t)x->n_corpora * sizeof(DocsCorpus); }

// ---- writing

static void fill_header(int32_t header[256], const Index* x) {
    memset(header, 0, SHARD_HEADER);
    header[0] = x->token_bytes == 2 ? 20240520 : 20240801;
    header[1] = x->token_bytes == 2 ? 1 : 7;
    header[2] = (int32_t)x->n_tokens;
}

static Index index_of(const Docs* d, uint64_t key) {
    Index x = {.key = key, .content = d->more->content, .n_docs = d->n, .n_tokens = docs_tokens(d)};
    memcpy(x.magic, magic, sizeof magic);
    const DocsMore* m = d->more;
    x.token_bytes = m->encoded_bytes, x.max_token = d->max_token, x.files = d->n_files, x.skipped = d->skipped;
    x.runs = m->runs, x.packed = m->packed, x.plain_jsonl = m->plain_jsonl, x.divided = d->divided;
    x.n_corpora = m->n_corpora;
    return x;
}

static int save(const char* dir, const char* name, const char* path, const void* bytes, size_t n, Err err) {
    if (!dir) return user_cache_save(name, bytes, n, 1, err);
    return disk_make_dirs(dir, err) || disk_put(path, bytes, n, 1, err) ? -1 : 0;
}

// What is written: the shard whole, and the index.
static int make(const Docs* d, Index* x, char** shard, char** index, Err err) {
    size_t n = (size_t)(x->n_tokens * x->token_bytes), rest = rest_bytes(x);
    *shard = malloc(SHARD_HEADER + n);
    *index = malloc(sizeof *x + rest);
    if (!*shard || !*index) return fail(err, "no memory to keep %zu MiB of tokens", n >> 20);
    fill_header((int32_t*)(void*)*shard, x);
    memcpy(*shard + SHARD_HEADER, d->more->encoded, n);
    char* at = *index + sizeof *x;
    for (int64_t i = 0; i < d->n; i++, at += 8) {
        int64_t length = docs_length(d, i);
        memcpy(at, &length, sizeof length);
        memcpy(at + 8 * d->n, &d->list[i].hash, 8);
    }
    memcpy(at + 8 * d->n, d->more->corpora, (size_t)x->n_corpora * sizeof(DocsCorpus));
    x->tokens_hash = hash_bytes(d->more->encoded, n, 0);
    x->rest_hash = hash_of_rest(*x, *index + sizeof *x, rest);
    memcpy(*index, x, sizeof *x);
    return 0;
}

// Only what is encoded whole, without instructions, whose labels an index does not say.
static int can_be_kept(const Docs* d) {
    return d->more->n_spans == 0 && d->more->n_encoded == docs_tokens(d) && docs_tokens(d) <= INT32_MAX;
}

static int store(const Docs* d, uint64_t key, const DocsCache* c, const char* names[2], char paths[2][DISK_PATH],
                 Err err) {
    char *shard = NULL, *index = NULL;
    Index x = index_of(d, key);
    int failed = make(d, &x, &shard, &index, err) ||
                 save(c->dir, names[0], paths[0], shard, SHARD_HEADER + (size_t)(x.n_tokens * x.token_bytes), err) ||
                 save(c->dir, names[1], paths[1], index, sizeof x + rest_bytes(&x), err);
    free(shard);
    free(index);
    return failed ? -1 : 0;
}

// ---- reading

// Fills starts and hashes. 0, or -1.
static int read_documents(Docs* d, const Index* x, const char* rest, const char* path, Err err) {
    d->list = malloc(((size_t)x->n_docs + 1) * sizeof *d->list);
    if (!d->list) return fail(err, "%s: no memory for %lld documents", path, (long long)x->n_docs);
    int64_t start = 0;
    for (int64_t i = 0, length; i < x->n_docs; i++, start += length) {
        memcpy(&length, rest + 8 * i, sizeof length);
        if (length < 1 || length > x->n_tokens - start)
            return fail(err, "%s: document %lld has %lld tokens", path, (long long)i, (long long)length);
        d->list[i] = (Document){.start = start, .place = start};
        memcpy(&d->list[i].hash, rest + 8 * (x->n_docs + i), sizeof d->list[i].hash);
    }
    d->list[x->n_docs].start = start;
    d->n = x->n_docs;
    if (docs_tokens(d) != x->n_tokens) return fail(err, "%s: its documents are not all of its tokens", path);
    memcpy(d->more->corpora, rest + 16 * x->n_docs, (size_t)x->n_corpora * sizeof *d->more->corpora);
    d->more->n_corpora = (int)x->n_corpora;
    for (int i = 0; i < d->more->n_corpora; i++) {
        const DocsCorpus* c = &d->more->corpora[i];
        if (c->first < 0 || c->end < c->first || c->end > d->n || !memchr(c->name, 0, CORPUS_NAME) || !(c->share > 0))
            return fail(err, "%s: corpus %d has no range of documents", path, i);
    }
    if (x->n_corpora) d->mix = &sampler_mix;
    return 0;
}

static int read_index(Docs* d, Index* x, const char* path, uint64_t key, Err err) {
    size_t n = 0;
    char* bytes = disk_read_file(path, (size_t)1 << 33, &n, err);
    if (!bytes) return -1;
    int right = n >= sizeof *x;
    if (right) memcpy(x, bytes, sizeof *x);
    right = right && !memcmp(x->magic, magic, sizeof magic) && x->key == key && x->n_docs >= 1 &&
            x->n_docs <= (int64_t)(n / 16) && x->n_corpora >= 0 && x->n_corpora <= MOST_CORPORA &&
            x->n_tokens >= x->n_docs && x->n_tokens <= INT32_MAX && (x->token_bytes == 2 || x->token_bytes == 4) &&
            n == sizeof *x + rest_bytes(x) && x->max_token >= 0 && x->max_token < 1 << 30 &&
            hash_of_rest(*x, bytes + sizeof *x, n - sizeof *x) == x->rest_hash;
    int status = right ? read_documents(d, x, bytes + sizeof *x, path, err)
                       : fail(err, "%s: is no index of these documents", path);
    free(bytes);
    return status;
}

// Is the shard the one that the index was made with? Reads it once.
static int check_shard(const DocsFile* file, const Index* x, Err err) {
    int32_t expected[256], found[256];
    size_t n = (size_t)(x->n_tokens * x->token_bytes);
    fill_header(expected, x);
    if (file->file.size != (int64_t)(SHARD_HEADER + n) || file_read(&file->file, 0, found, sizeof found, err) ||
        memcmp(expected, found, sizeof found))
        return fail(err, "%s: is not the shard of its index", file->file.path);
    char* tokens = malloc(n);
    if (!tokens) return fail(err, "%s: no memory to check it", file->file.path);
    int bad = file_read(&file->file, SHARD_HEADER, tokens, n, err);
    if (!bad && hash_bytes(tokens, n, 0) != x->tokens_hash) bad = fail(err, "%s: is damaged", file->file.path);
    free(tokens);
    return bad;
}

int docs_load(Docs** out, const char* shard, const char* index, uint64_t key, const Tokenizer* tokenizer, Err err) {
    Index x;
    *out = NULL;
    Docs* d = calloc(1, sizeof *d);
    if (!d) return fail(err, "out of memory for the corpus");
    d->tokenizer = tokenizer;
    d->end_of_text = tokenizer->end_of_text;
    d->formats = &docs_formats;
    d->more = docs_more(tokenizer);
    d->files = calloc(1, sizeof *d->files);
    char* path = strdup(shard);
    int bad = !d->more || !d->files || !path ? fail(err, "out of memory for the corpus") : 0;
    if (d->files) d->files[0].file = (File){.path = path, .fd = -1}, d->n_files = 1;
    else free(path);
    bad = bad || read_index(d, &x, index, key, err) || file_open(&d->files[0].file, err) ||
          check_shard(&d->files[0], &x, err);
    if (bad) {
        docs_close(d);
        return -1;
    }
    DocsMore* m = d->more;
    d->files[0].format = x.token_bytes == 2 ? &docs_shard16 : &docs_shard32;
    m->encodes = 1, m->encoded_bytes = (int)x.token_bytes, d->max_token = (int)x.max_token, m->content = x.content;
    m->shown_files = x.files, d->skipped = x.skipped, m->runs = x.runs, m->packed = x.packed;
    m->plain_jsonl = x.plain_jsonl, d->divided = x.divided;
    *out = d;
    return 0;
}

// ---- both

int docs_open_cached(Docs** out, const char* const* paths, int n_paths, const Tokenizer* tokenizer, DocsCache* cache,
                     char* words, Err err) {
    char files[2][DISK_PATH], names[2][64], why[ERR_BYTES];
    const char* const list[] = {names[0], names[1]};
    uint64_t key = 0;
    int64_t bytes = 0;
    words[0] = cache->path[0] = 0;
    cache->was_there = 0;
    int is_kept = !tokenizer->is_bytes;
    if (is_kept && docs_key(&key, &bytes, paths, n_paths, tokenizer, cache->reading, err)) return -1;
    if (!is_kept || (bytes < LEAST && !cache->dir))
        return docs_open_as(out, paths, n_paths, tokenizer, cache->reading, err);
    for (int i = 0; i < 2 && is_kept; i++) {
        snprintf(names[i], sizeof names[i], "tokens-%016llx.%s", (unsigned long long)key, i ? "idx" : "bin");
        if (cache->dir ? disk_join(files[i], cache->dir, names[i], words) : user_cache_path(files[i], names[i], words))
            is_kept = 0;
        else if (!cache->dir && user_cache_check(names[i], words) < 0) is_kept = 0;
    }
    if (is_kept && docs_load(out, files[0], files[1], key, tokenizer, why) == 0) {
        snprintf(cache->path, sizeof cache->path, "%s", files[0]);
        cache->was_there = 1;
        return 0;
    }
    docs_on_progress(cache->tell, bytes);
    int status = docs_open_as(out, paths, n_paths, tokenizer, cache->reading, err);
    docs_on_progress(NULL, 0);
    if (status || !is_kept || !can_be_kept(*out)) return status;
    const char* both[2] = {list[0], list[1]};
    if (store(*out, key, cache, both, files, words)) return 0;
    snprintf(cache->path, sizeof cache->path, "%s", files[0]);
    Docs* kept = NULL;  // from here on as every other rank and run has it
    if (docs_load(&kept, files[0], files[1], key, tokenizer, words)) return 0;
    docs_close(*out);
    *out = kept;
    return 0;
}
