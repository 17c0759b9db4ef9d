// test_docs_cache.c - text is encoded once: what is kept reads as what was encoded, is nobody else's, and is made anew
// where it is damaged.
#include "data/docs_cache.h"
#include "plan/base.h"
#include "test/program.h"

#define TINY                                                                                                        \
    "--tokenizer test/golden/tokenizers/gpt2.json --layers 1 --width 32 --heads 2 --context 64 --batch-tokens 512 " \
    "--steps 3 --eval-every 0 --sample-every 0 --save-every 0 --dtype fp32 "

static char err[ERR_BYTES], words[ERR_BYTES];
static Tokenizer* tokenizer;

static const char* at(const char* name) {
    static char paths[4096][600];  // as many as one test asks for
    static int next;
    char* path = paths[next++ % 4096];
    snprintf(path, sizeof paths[0], "%s/%s", work, name);
    return path;
}

static Docs* open_kept(const char* name, DocsCache* cache) {
    const char* path = at(name);
    Docs* docs = NULL;
    CHECK(docs_open_cached(&docs, &path, 1, tokenizer, cache, words, err, sizeof err) == 0);
    return docs;
}

static int same(const Docs* a, const Docs* b) {
    int right = a && b && docs_count(a) == docs_count(b) && docs_content(a) == docs_content(b) &&
                docs_fingerprint(a) == docs_fingerprint(b) && docs_max_token(a) == docs_max_token(b) &&
                docs_files(a) == docs_files(b) && docs_skipped(a) == docs_skipped(b) &&
                docs_divided(a) == docs_divided(b) && docs_end_of_text(a) == docs_end_of_text(b);
    for (int64_t d = 0; right && d < docs_count(a); d++) {
        int n = (int)docs_length(a, d);
        int *x = malloc((size_t)n * sizeof *x), *y = malloc((size_t)n * sizeof *y);
        right = docs_length(b, d) == n && docs_hash(a, d) == docs_hash(b, d) &&
                docs_read(a, d, 0, n, x, err, sizeof err) == 0 &&
                docs_read(b, d, n / 2, n - n / 2, y, err, sizeof err) == 0 &&
                !memcmp(x + n / 2, y, (size_t)(n - n / 2) * sizeof *x);
        free(x), free(y);
    }
    return right;
}

static void what_is_kept_reads_as_what_was_encoded(void) {
    const char* path = at("d");
    Docs *plain = NULL, *first, *second;
    DocsCache cache = {.dir = at("kept")};
    CHECK(sh("mkdir $W/d && cp data/*.h $W/d && echo 'a<|endoftext|>b' > $W/d/two.txt && printf '{\"text\": "
             "\"one\"}\\n{\"text\": \"two\"}\\n' > $W/d/x.jsonl "
             "&& head "
             "-c 10 /dev/zero > $W/d/no.txt") == 0);
    CHECK(docs_open(&plain, &path, 1, tokenizer, err, sizeof err) == 0);
    first = open_kept("d", &cache);
    CHECK(!cache.was_there && cache.path[0] && !words[0] && same(plain, first));
    second = open_kept("d", &cache);
    CHECK(cache.was_there && same(plain, second));
    docs_close(second);
    docs_close(first);
    docs_close(plain);
}

static void another_text_name_or_tokenizer_has_tokens_of_its_own(void) {
    static const char* const changes[] = {"echo a > $W/d/y.txt", "echo b > $W/d/y.txt", "mv $W/d/y.txt $W/d/y.jsonl",
                                          "rm $W/d/y.jsonl; mv $W/d/docs.h $W/d/docs.hh"};
    DocsCache cache = {.dir = at("kept")};
    Tokenizer* other = NULL;
    for (int i = 0; i < COUNT(changes); i++) {
        CHECK(sh("%s", changes[i]) == 0);
        docs_close(open_kept("d", &cache));
        CHECK(!cache.was_there);
        docs_close(open_kept("d", &cache));
        CHECK(cache.was_there);
    }
    CHECK(tokenizer_open(&other, "test/golden/tokenizers/qwen3.json", err, sizeof err) == 0);
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
static void damaged_files_are_refused_and_made_anew(void) {
    static char index[1 << 16], shard[1 << 20];
    DocsCache cache = {.dir = at("damage")};
    CHECK(sh("mkdir $W/e && cp plan/base.h plan/text.h $W/e") == 0);
    Docs* good = open_kept("e", &cache);
    char bin[DISK_PATH], idx[DISK_PATH];
    snprintf(bin, sizeof bin, "%s", cache.path);
    snprintf(idx, sizeof idx, "%.*sidx", (int)strlen(bin) - 3, bin);
    size_t n = read_text(idx, index, sizeof index), m = read_text(bin, shard, sizeof shard);
    uint64_t key;
    const char* name = strrchr(bin, '/');
    CHECK(n > 100 && m > 2000 && name && sscanf(name, "/tokens-%16lx.bin", (unsigned long*)&key) == 1);
    Docs* d = NULL;
    CHECK(docs_load(&d, bin, idx, key, tokenizer, err, sizeof err) == 0);
    docs_close(d);
    CHECK(docs_load(&d, bin, idx, key + 1, tokenizer, err, sizeof err) == -1 && strstr(err, "no index of these"));
    for (size_t k = 0; k < n; k++) {
        index[k] ^= 1;
        write_text("bad.idx", index, n);
        CHECK(docs_load(&d, bin, at("bad.idx"), key, tokenizer, err, sizeof err) == -1);
        index[k] ^= 1;
        write_text("bad.idx", index, k);
        CHECK(docs_load(&d, bin, at("bad.idx"), key, tokenizer, err, sizeof err) == -1);
    }
    for (size_t k = 0; k < m; k += 97) {
        shard[k] ^= 4;
        write_text("bad.bin", shard, m);
        CHECK(docs_load(&d, at("bad.bin"), idx, key, tokenizer, err, sizeof err) == -1 && strstr(err, "bad.bin"));
        shard[k] ^= 4;
    }
    CHECK(sh("printf x | dd of='%s' bs=1 seek=1500 conv=notrunc", bin) == 0);
    Docs* again = open_kept("e", &cache);
    CHECK(!cache.was_there && same(good, again));
    docs_close(again);
    docs_close(good);
}

static void ranks_and_runs_share_what_the_first_has_encoded(void) {
    CHECK(sh("cat plan/*.c data/*.c run/*.c > $W/big.txt && cat $W/big.txt $W/big.txt > $W/bigger.txt && rm $W/big.txt "
             "&& "
             "mkdir -m 700 $W/cache") == 0);
    CHECK(sh("XDG_CACHE_HOME=$W/cache %s " TINY "--data $W/bigger.txt --out $W/a", program) == 0);
    CHECK(strstr(output, "cache/ragged/tokens-") && strstr(output, "% of "));
    const char* kept = loss_hash();
    CHECK(sh("XDG_CACHE_HOME=$W/cache %s " TINY "--data $W/bigger.txt --out $W/b", program) == 0);
    CHECK(!strstr(output, "tokens-"));
    const char* found = loss_hash();
    CHECK(sh("chmod 777 $W/cache/ragged; XDG_CACHE_HOME=$W/cache %s " TINY "--data $W/bigger.txt --out $W/c",
             program) == 0);
    CHECK(strstr(errors, "tokens are not kept: ") && strstr(errors, "not trusted"));
    CHECK_STRING(found, kept);
    CHECK_STRING(loss_hash(), kept);
    CHECK(sh("%s " TINY "--data $W/bigger.txt --tokenize $W/shards && ls $W/shards/*.bin $W/shards/*.idx", program) ==
          0);
    CHECK(sh("%s --tokenize $W/shards --data $W/bigger.txt", program) == 1 && strstr(errors, "--tokenizer"));
    CHECK(sh("touch $W/file && %s " TINY "--data $W/bigger.txt --tokenize $W/file", program) == 1);  // nothing is made
    CHECK(strstr(errors, "--tokenize: ") && !strstr(output, "documents in"));
    if (!has_mpirun()) SKIP("mpirun is not here");
    double one[3], two[3];
    CHECK(sh("rm -r $W/cache; mkdir -m 700 $W/cache; XDG_CACHE_HOME=$W/cache mpirun --oversubscribe -n 3 %s " TINY
             "--data $W/bigger.txt --plan static --out $W/d",
             program) == 0);
    CHECK(log_values("a", "loss", one, 3) == 3 && log_values("d", "loss", two, 3) == 3);
    for (int i = 0; i < 3; i++) CHECK_CLOSE(two[i], one[i], 1e-5 * one[i]);
}

int main(int argc, char** argv) {
    program_begin(argc, argv);
    if (tokenizer_open(&tokenizer, "test/golden/tokenizers/gpt2.json", err, sizeof err)) return 1;
    RUN(what_is_kept_reads_as_what_was_encoded);
    RUN(another_text_name_or_tokenizer_has_tokens_of_its_own);
    RUN(damaged_files_are_refused_and_made_anew);
    RUN(ranks_and_runs_share_what_the_first_has_encoded);
    tokenizer_close(tokenizer);
    return program_end();
}
