// docs_files.c - a corpus of files in all formats; see docs_files.h.
//
// A path is a pattern, perhaps with a weight. Each format is told by the name of the file, and its reader indexes the
// documents (docs_jsonl.c, docs_shard.c, or docs.c).
#define _GNU_SOURCE
#include "data/docs_files.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/run_dir.h"
#include "data/sampler_mix.h"
#include "data/tokenizer_files.h"
#include "plan/base/disk.h"

// Returns how many files of a corpus stay open. Two corpora take less than half of the descriptors, and none of the
// first 64, which are for communication, libraries and files of the run.
static int64_t most_open(void) {
    enum { OTHERS = 64, MOST = 128 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur < OTHERS) return 0;
    return (int64_t)MIN((limit.rlim_cur - OTHERS) / 4, (rlim_t)MOST);
}

// ---- a file

static int has_suffix(const char* name, const char* suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

static int is_shard_file(const DocsFile* file) {
    return file->format == &docs_shard16 || file->format == &docs_shard32;
}

// Hashes all bytes of a file in place of indexing it, and its name, which says how it is read.
static int hash_file(Docs* docs, const DocsFile* file, int named, Err err) {
    char block[1 << 16];
    const char *slash = strrchr(file->file.path, '/'), *name = slash ? slash + 1 : file->file.path;
    uint64_t head[] = {(uint64_t)file->file.size, (uint64_t)named, hash_bytes(name, strlen(name), 0)};
    docs_hash_content(docs, head, sizeof head);
    for (int64_t at = 0; at < file->file.size; at += (int64_t)sizeof block) {
        size_t n = (size_t)MIN(file->file.size - at, (int64_t)sizeof block);
        if (file_read(&file->file, at, block, n, err)) return -1;
        docs_hash_content(docs, block, n);
    }
    docs->more->keyed_bytes += file->file.size;
    return docs_add(docs, 2, 0, "", 0, err);  // a corpus without a text is none
}

// Indexes an open file in the format that its name, without the suffix of compression, says. One that was not named is
// passed over (1) when it is no text. 0, or -1.
static int index_by_name(Docs* docs, DocsFile* file, const char* name, int named, Err err) {
    const char* path = file->file.path;
    DocsMore* more = docs->more;
    int is_shard = named && has_suffix(name, ".bin"), is_json = has_suffix(name, ".jsonl");
    if (!named && has_suffix(name, ".bin"))
        return fail(err, "%s: token shards are read by a pattern, like 'DIR/*.bin'", path), 1;
    int unfit = is_shard ? 0 : docs_check_kind(docs, file, name, err);
    if (unfit) return named ? -1 : unfit;
    if (!more->encodes && docs->n_files > 0 && is_shard != is_shard_file(&docs->files[0]))
        return fail(err,
                    "%s and %s: token shards and text that is read by bytes cannot be one corpus; give --tokenizer",
                    docs->files[0].file.path, path);
    if (more->keying) return hash_file(docs, file, named, err);
    if (is_shard) return docs_index_shard(docs, file, err);
    docs->max_token = MAX(docs->max_token, docs->tokenizer->vocab - 1);
    int status = is_json ? docs_index_jsonl(docs, file, named, err) : 1;
    if (status <= 0) return status;
    more->facts.plain_jsonl += is_json;
    if (more->encodes) file->format = &docs_encoded;
    return docs_index_text(docs, file, named, err);
}

// A compressed file in a directory is read when its name says that it is text; its unpacked bytes go to the end of
// those of all others.
static int index_file(Docs* docs, DocsFile* file, int named, Err err) {
    static const char* const kinds[] = {".jsonl", ".txt", ".text", ".md"};
    const char *path = file->file.path, *suffix = unpack_suffix(path);
    char name[DISK_PATH];
    int is_wanted = named || !*suffix;
    snprintf(name, sizeof name, "%.*s", (int)(suffix - path), path);
    for (int i = 0; i < COUNT(kinds); i++) is_wanted |= has_suffix(name, kinds[i]);
    if (!is_wanted)
        return fail(err, "%s: compressed; in a directory *.jsonl, *.txt, *.text, *.md with %s are read", path, suffix),
               1;
    if (*suffix) {
        int fd = docs_unpacked(docs->more, err);
        int64_t bytes = fd < 0 ? -1 : unpack(fd, path, err);
        if (bytes < 0) return -1;
        docs_use_unpacked(docs->more, &file->file, bytes);
    }
    int status = index_by_name(docs, file, name, named, err);
    docs->more->facts.files += status == 0;
    return status;
}

// ---- directories and patterns

static int leaves_out(void* docs, const char* directory, Err err) {
    int is = run_dir_is_ours(directory, err);
    ((Docs*)docs)->more->facts.runs += is > 0;
    return is;
}

static int add_directory(Docs* docs, const char* directory, Err err) {
    const DocsMore* m = docs->more;
    int64_t before = docs->n_files, skipped = docs->skipped.n, runs = m->facts.runs;
    int is_ours = run_dir_is_ours(directory, err);
    if (is_ours > 0)
        return fail(err, "%s: expected documents, found a run or a checkpoint of this program; try another --data",
                    directory);
    if (is_ours < 0) return -1;
    if (docs_add_path(docs, directory, err)) return -1;
    if (docs->n_files > before) return 0;
    return fail(
        err,
        "%s: no text file in this directory (%lld files passed over, %lld runs left out); shards and compressed "
        "files of other names than *.txt.gz are read by a pattern, like '%s/*.gz'%s%s",
        directory, (long long)(docs->skipped.n - skipped), (long long)(m->facts.runs - runs), directory,
        docs->skipped.n > skipped ? "; first passed over: " : "",
        docs->skipped.n > skipped ? docs->skipped.list[skipped] : "");
}

// Lists files and directories that a path or shell pattern names. 0, or -1 when there are none.
static int paths_expand(Paths* list, const char* pattern, Err err) {
    struct stat st;
    if (stat(pattern, &st) == 0) return paths_append(list, strdup(pattern), err);
    int error = errno;
    if (!strpbrk(pattern, "*?[")) return fail(err, "%s: %s%s", pattern, strerror(error), disk_hint(error));
    glob_t matches;
    int status = glob(pattern, GLOB_NOSORT, NULL, &matches);
    if (status == GLOB_NOMATCH) return fail(err, "%s: no file matches this pattern", pattern);
    if (status) return fail(err, "%s: the pattern cannot be expanded", pattern);
    for (size_t i = 0; i < matches.gl_pathc && status == 0; i++)
        status = paths_append(list, strdup(matches.gl_pathv[i]), err);
    globfree(&matches);
    paths_sort(list);
    return status;
}

static int add_path(Docs* docs, const char* pattern, Err err) {
    Paths paths = {0};
    int status = paths_expand(&paths, pattern, err);
    for (int64_t i = 0; status == 0 && i < paths.n; i++)
        status = (disk_is_dir(paths.list[i]) ? add_directory : docs_add_path)(docs, paths.list[i], err);
    paths_free(&paths);
    return status;
}

// ---- corpora with weights

// Returns the path after NAME=WEIGHT:, or the whole of it; *weight is 0 then. NULL with a message.
static const char* split_weight(const char* path, char name[CORPUS_NAME], double* weight, Err err) {
    size_t n = strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    char* end = NULL;
    *weight = 0;
    if (n == 0 || path[n] != '=' || (unsigned char)(path[n + 1] - '0') > 9) return path;
    double w = strtod(path + n + 1, &end);
    if (*end != ':') return path;
    if (n >= CORPUS_NAME || !(w > 0 && w <= 1e9) || !end[1]) {
        fail(err, "%s: expected NAME=WEIGHT:PATH with a name of at most %d characters and a weight above 0", path,
             CORPUS_NAME - 1);
        return NULL;
    }
    snprintf(name, CORPUS_NAME, "%.*s", (int)n, path);
    *weight = w;
    return end + 1;
}

static void divide_shares(DocsMore* m) {
    double sum = 0;
    for (int i = 0; i < m->n_corpora; i++) sum += m->corpora[i].share;
    for (int i = 0; i < m->n_corpora; i++) m->corpora[i].share /= sum;
}

static int add_weighted(Docs* docs, const char* path, Err err) {
    char name[CORPUS_NAME];
    double weight;
    DocsMore* m = docs->more;
    const char* rest = split_weight(path, name, &weight, err);
    if (!rest) return -1;
    if (docs->n_files > 0 && (weight > 0) != (m->n_corpora > 0))
        return fail(err, "%s: expected a weight for every path, as in NAME=0.5:PATH, or for none", path);
    DocsCorpus* last = m->n_corpora ? &m->corpora[m->n_corpora - 1] : NULL;
    if (weight > 0 && (!last || strcmp(last->name, name))) {
        for (int i = 0; i < m->n_corpora; i++)
            if (!strcmp(m->corpora[i].name, name))
                return fail(err, "%s: the paths of one corpus must stand behind each other", path);
        if (m->n_corpora == MOST_CORPORA)
            return fail(err, "%s: expected at most %d corpora with weights", path, MOST_CORPORA);
        last = &m->corpora[m->n_corpora++];
        *last = (DocsCorpus){.share = weight, .first = docs->n};
        strcpy(last->name, name);
    } else if (weight > 0 && weight != last->share)
        return fail(err, "%s: %s had the weight %g before", path, name, last->share);
    if (add_path(docs, rest, err)) return -1;
    if (last) last->end = docs->n;
    return 0;
}

// ---- the corpus

static void close_more(DocsMore* more) {
    free(more->encoded);
    free(more->learnt);
    free(more->segments);
    free(more->terms);
    if (more->unpacked >= 0) close(more->unpacked);
    free(more);
}

static void close_formats(Docs* docs) { close_more(docs->more); }

static double label_weight(const Docs* docs, int64_t doc, int64_t first, int n) {
    return docs->more->weigh ? docs->more->weigh(docs, doc, first, n) : docs_learnt(docs, doc, first, n, NULL);
}

static int open_corpus(Docs** out, const char* const* paths, int n_paths, const Tokenizer* tokenizer,
                       DocsReading reading, int keying, Err err) {
    static const DocsFormats formats = {add_weighted, index_file,   docs_add_text,     leaves_out,      close_formats,
                                        docs_squares, label_weight, sampler_mix_check, sampler_mix_next};
    DocsMore* more = calloc(1, sizeof *more);
    *out = NULL;
    if (!more) return fail(err, "out of memory for the corpus");
    more->reading = reading;
    if (!reading.text_key) more->reading.text_key = DOCS_TEXT_KEY;
    if (reading.chat) more->chat = *reading.chat;
    else if (!reading.no_chat && chat_find(&more->chat, tokenizer, NULL, 0, err)) return close_more(more), -1;
    more->keying = keying;
    more->unpacked = -1;
    more->encodes = !tokenizer->is_bytes;
    more->encoded_bytes = tokenizer->vocab <= 65536 ? 2 : 4;
    Docs start = {.tokenizer = tokenizer, .separator = reading.separator, .formats = &formats, .more = more};
    start.most_open = most_open();
    int failed = docs_open(out, start, paths, n_paths, err);
    if (failed) close_more(more);
    else divide_shares(more);
    return failed;
}

int docs_open_as(Docs** out, const char* const* paths, int n_paths, const Tokenizer* tokenizer, DocsReading reading,
                 Err err) {
    return open_corpus(out, paths, n_paths, tokenizer, reading, 0, err);
}

int docs_key(uint64_t* key, int64_t* bytes, Paths* skipped, const char* const* paths, int n_paths,
             const Tokenizer* tokenizer, DocsReading reading, Err err) {
    const char* separator = reading.separator ? reading.separator : DOCS_SEPARATOR;
    Docs* docs;
    const void* file;
    size_t n;
    if (open_corpus(&docs, paths, n_paths, tokenizer, reading, 1, err)) return -1;
    DocsMore* m = docs->more;
    tokenizer_file(tokenizer, &file, &n);
    docs_hash_content(docs, separator, strlen(separator) + 1);
    docs_hash_content(docs, m->reading.text_key, strlen(m->reading.text_key) + 1);
    for (int i = 0; i < m->n_corpora; i++) m->corpora[i].first = m->corpora[i].end = 0;
    docs_hash_content(docs, m->corpora, (size_t)m->n_corpora * sizeof *m->corpora);
    *key = hash_bytes(file, n, docs_finish_content(docs));
    *bytes = m->keyed_bytes, *skipped = docs->skipped;
    docs->skipped = (Paths){0};
    docs_close(docs);
    return 0;
}

uint64_t docs_fingerprint(const Docs* docs) {
    uint64_t h = hash64((uint64_t)docs->n);
    for (int64_t d = 0; d < docs->n; d++) h = hash64(h ^ docs->list[d].hash) + (uint64_t)docs_length(docs, d);
    return h;
}
