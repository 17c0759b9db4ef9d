// test_docs_cache.c - text is encoded once: what is kept reads as what was encoded, is nobody else's, and is made anew
// where it is damaged.
#include "data/docs_files.h"
#include "data/tokenizer_files.h"
#include "test/program.h"

#define TINY                                                                                                        \
    "--tokenizer test/golden/tokenizers/gpt2.json --layers 1 --width 32 --heads 2 --context 64 --batch-tokens 512 " \
    "--steps 3 --eval-every 0 --sample-every 0 --save-every 0 --dtype fp32 "

static char err[ERR_BYTES], words[ERR_BYTES];
static char kept_in[600];
static Tokenizer* tokenizer;

static Docs* open_kept(const char* name, DocsCache* cache) {
    const char* path = path_of(name);
    Docs* docs = NULL;
    CHECK(docs_open_cached(&docs, &path, 1, tokenizer, cache, words, err) == 0);
    return docs;
}

static int same(const Docs* a, const Docs* b) {
    int right = a && b && a->n == b->n && docs_content(a) == docs_content(b) &&
                docs_fingerprint(a) == docs_fingerprint(b) && a->max_token == b->max_token &&
                a->more->facts.files == b->more->facts.files && a->skipped.n == b->skipped.n &&
                (!a->skipped.n || !strcmp(a->skipped.list[0], b->skipped.list[0])) && a->divided == b->divided &&
                a->end_of_text == b->end_of_text;
    for (int64_t d = 0; right && d < a->n; d++) {
        int n = (int)docs_length(a, d);
        int *x = malloc((size_t)n * sizeof *x), *y = malloc((size_t)n * sizeof *y);
        right = docs_length(b, d) == n && a->list[d].hash == b->list[d].hash && docs_read(a, d, 0, n, x, err) == 0 &&
                docs_read(b, d, n / 2, n - n / 2, y, err) == 0 &&
                !memcmp(x + n / 2, y, (size_t)(n - n / 2) * sizeof *x);
        free(x), free(y);
    }
    return right;
}

CLAIM(what_is_kept_reads_as_what_was_encoded) {
    const char* path = path_of("d");
    Docs *plain = NULL, *first, *second;
    DocsCache cache = {.dir = kept_in};
    CHECK_SH(0,
             "mkdir $W/d && cp data/*.h $W/d && cd $W/d && echo 'a<|endoftext|>b' > two.txt && "
             "printf '{\"text\": \"one\"}\\n{\"text\": \"two\"}\\n' > x.jsonl && head -c 10 /dev/zero > no.txt");
    CHECK(docs_open_as(&plain, &path, 1, tokenizer, (DocsReading){0}, err) == 0);
    first = open_kept("d", &cache);
    CHECK(!cache.was_there && cache.path[0] && !words[0] && same(plain, first));
    second = open_kept("d", &cache);
    CHECK(cache.was_there && same(plain, second));
    docs_close(second);
    docs_close(first);
    docs_close(plain);
}

CLAIM(another_text_name_or_tokenizer_has_tokens_of_its_own) {
    static const char* const changes[] = {"echo a > $W/d/y.txt", "echo b > $W/d/y.txt", "mv $W/d/y.txt $W/d/y.jsonl",
                                          "rm $W/d/y.jsonl; mv $W/d/docs.h $W/d/docs.hh"};
    DocsCache cache = {.dir = kept_in};
    Tokenizer* other = NULL;
    for (int i = 0; i < COUNT(changes); i++) {
        CHECK(sh("%s", changes[i]) == 0);
        docs_close(open_kept("d", &cache));
        CHECK(!cache.was_there);
        docs_close(open_kept("d", &cache));
        CHECK(cache.was_there);
    }
    CHECK(tokenizer_open(&other, "test/golden/tokenizers/qwen3.json", err) == 0);
    cache.reading.separator = "none";  // and how text is read
    docs_close(open_kept("d", &cache));
    CHECK(!cache.was_there);
    Tokenizer* before = tokenizer;
    tokenizer = other;
    docs_close(open_kept("d", &cache));
    CHECK(!cache.was_there);
    tokenizer = before;
    tokenizer_close(other);
}

// Every prefix of the index, and every flipped byte of it and of the shard, is refused.
CLAIM(damaged_files_are_refused_and_made_anew) {
    static char index[1 << 16], shard[1 << 20];
    char dir[600];
    DocsCache cache = {.dir = strcpy(dir, path_of("damage"))};
    CHECK(sh("mkdir $W/e && cp plan/base/base.h plan/base/text.h $W/e") == 0);
    Docs* good = open_kept("e", &cache);
    char bin[DISK_PATH], idx[DISK_PATH];
    snprintf(bin, sizeof bin, "%s", cache.path);
    snprintf(idx, sizeof idx, "%.*sidx", (int)strlen(bin) - 3, bin);
    size_t n = read_text(idx, index, sizeof index), m = read_text(bin, shard, sizeof shard);
    uint64_t key;
    const char* name = strrchr(bin, '/');
    CHECK(n > 100 && m > 2000 && name && sscanf(name, "/tokens-%16lx.bin", (unsigned long*)&key) == 1);
    Docs* d = NULL;
    CHECK(docs_load(&d, bin, idx, key, tokenizer, err) == 0);
    docs_close(d);
    CHECK(docs_load(&d, bin, idx, key + 1, tokenizer, err) == -1 && strstr(err, "no index of these"));
    for (size_t k = 0; k < n; k++) {
        index[k] ^= 1;
        write_text("bad.idx", index, n);
        CHECK(docs_load(&d, bin, path_of("bad.idx"), key, tokenizer, err) == -1);
        index[k] ^= 1;
        write_text("bad.idx", index, k);
        CHECK(docs_load(&d, bin, path_of("bad.idx"), key, tokenizer, err) == -1);
    }
    for (size_t k = 0; k < m; k += 97) {
        shard[k] ^= 4;
        write_text("bad.bin", shard, m);
        CHECK(docs_load(&d, path_of("bad.bin"), idx, key, tokenizer, err) == -1 && strstr(err, "bad.bin"));
        shard[k] ^= 4;
    }
    CHECK(sh("printf x | dd of='%s' bs=1 seek=1500 conv=notrunc", bin) == 0);
    Docs* again = open_kept("e", &cache);
    CHECK(!cache.was_there && same(good, again));
    docs_close(again);
    docs_close(good);
}

CLAIM(ranks_and_runs_share_what_the_first_has_encoded) {
#define CACHED "XDG_CACHE_HOME=$W/cache "
#define BIG TINY "--data $W/bigger.txt "
    CHECK_SH(0, "for i in 1 2; do cat plan/*/*.c data/*.c run/*/*.c; done > $W/bigger.txt && mkdir -m 700 $W/cache");
    CHECK_SH(0, CACHED "$P " BIG "--out $W/a");
    CHECK_SAID("cache/ragged/tokens- & % of ");
    const char* kept = loss_hash();
    CHECK_SH(0, CACHED "$P " BIG "--out $W/b");
    CHECK(!strstr(output, "tokens-"));
    CHECK_STRING(loss_hash(), kept);
    CHECK_SH(0, "chmod 777 $W/cache/ragged; " CACHED "$P " BIG "--out $W/c");
    CHECK_SAID("tokens are not kept:  & not trusted");
    CHECK_STRING(loss_hash(), kept);
    CHECK_SH(0, "$P " BIG "--tokenize $W/shards && ls $W/shards/*.bin $W/shards/*.idx");
    CHECK_REFUSED("--tokenizer", "$P --tokenize $W/shards --data $W/bigger.txt");
    CHECK_REFUSED("--tokenize:  & !documents in", "touch $W/file && $P " BIG "--tokenize $W/file");  // nothing is made
    if (!has_mpirun()) SKIP("mpirun is not here");
    CHECK_SH(0, "rm -r $W/cache; mkdir -m 700 $W/cache; " CACHED ON_RANKS "$P " BIG "--plan static --out $W/d", 3);
    CHECK_LOSSES("d", "a", 3, 1e-5);
}

PROGRAM_TEST {
    strcpy(kept_in, path_of("kept"));
    if (tokenizer_open(&tokenizer, "test/golden/tokenizers/gpt2.json", err)) exit(1);
}
