// docs_files.c - a corpus of files in all formats; see docs_files.h, and docs_format.h for what is kept.
//
// A path is a pattern, perhaps with a weight. Each format is told by the name of the file, and its reader indexes the
// documents (docs_jsonl.c, docs_shard.c, or docs.c).
#define _GNU_SOURCE
#include "data/docs_files.h"

#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/docs_format.h"
#include "data/run_dir.h"
#include "data/sampler_mix.h"
#include "data/tokenizer_files.h"
#include "data/unpack.h"
#include "plan/base/base.h"
#include "plan/base/disk_files.h"

// So many files of a corpus stay open. Two corpora take less than half of the descriptors, and none of the first 64,
// which are for communication, libraries and files of the run.
static int64_t most_open(void) {
    enum { OTHERS = 64, MOST = 128 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur < OTHERS) return 0;
    return (int64_t)MIN((limit.rlim_cur - OTHERS) / 4, (rlim_t)MOST);
}

// ---- a file

// Does text begin as a JSON array of objects or strings does? That is a data set, not a document.
static int is_json_array(const char* text, size_t n) {
    static const char blank[] = " \t\r\n";
    size_t at = 0;
    while (at < n && strchr(blank, text[at])) at++;
    if (at == n || text[at++] != '[') return 0;
    while (at < n && strchr(blank, text[at])) at++;
    return at == n ? 0 : text[at] == '{' ? 1 : text[at] == '"' ? 2 : 0;
}

static int check_array(const DocsFile* file, int* array, Err err) {
    char head[DOCS_HEAD_BYTES];
    size_t n = (size_t)MIN(file->file.size, DOCS_HEAD_BYTES);
    if (file_read(&file->file, 0, head, n, err)) return -1;
    *array = is_json_array(head, n);
    return 0;
}

static int has_suffix(const char* name, const char* suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

// All bytes of a file, where it would be indexed. Its name says how it is read.
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

// A compressed file in a directory is read when its name says that it is text.
static int is_wanted(const char* path) {
    static const char* const kinds[] = {".jsonl", ".txt", ".text", ".md"};
    const char* packed = unpack_suffix(path);
    size_t n = strlen(path) - strlen(packed);
    for (int i = 0; i < COUNT(kinds); i++)
        if (n > strlen(kinds[i]) && !strncmp(path + n - strlen(kinds[i]), kinds[i], strlen(kinds[i]))) return 1;
    return !*packed;
}

// The bytes of a compressed file, at the end of those of all others in a file without a name.
static int unpack_file(DocsMore* more, File* file, Err err) {
    if (more->unpacked < 0 && (more->unpacked = unpack_open(err)) < 0) return -1;
    int64_t bytes = unpack(more->unpacked, file->path, err);
    file_close(file);
    if (bytes < 0) return -1;
    *file = (File){file->path, more->unpacked, 1, more->unpacked_bytes, bytes};
    more->unpacked_bytes += bytes;
    return 0;
}

// Indexes a file that is open, in whatever format its name says. One that was not named is passed over (1) when it is
// no text. 0, or -1.
static int index_by_name(Docs* docs, DocsFile* file, int named, Err err) {
    const char* path = file->file.path;
    DocsMore* more = docs->more;
    char name[DISK_PATH];  // without what says that it is compressed
    int cut = file->file.is_shared ? (int)strlen(unpack_suffix(path)) : 0, is_jsonl = named;
    snprintf(name, sizeof name, "%.*s", (int)strlen(path) - cut, path);
    int is_shard = named && has_suffix(name, ".bin"), is_json = has_suffix(name, ".jsonl"), array = 0;
    int unfit = is_shard ? 0 : docs_check_text(file, err);
    if (unfit) return named ? -1 : unfit;
    if (!is_shard && check_array(file, &array, err)) return -1;
    if (named && array)
        return fail(err, "%s: expected text or JSONL, found a JSON array; try: jq -c '.[]%s' %s > DATA.jsonl", path,
                    array == 2 ? " | {text: .}" : "", path);
    if (!more->encodes && docs->n_files > 0 && is_shard != docs_is_shard(&docs->files[0]))
        return fail(err,
                    "%s and %s: token shards and text that is read by bytes cannot be one corpus; give --tokenizer",
                    docs->files[0].file.path, path);
    if (more->keying) return hash_file(docs, file, named, err);
    if (is_shard) return docs_index_shard(docs, file, err);
    docs->max_token = MAX(docs->max_token, docs->tokenizer->vocab - 1);
    if (is_json && !named && docs_looks_like_jsonl(docs, file, &is_jsonl, err)) return -1;
    if (is_json && is_jsonl) return docs_index_jsonl(docs, file, err);
    more->plain_jsonl += is_json || array;
    if (more->encodes) file->format = &docs_encoded;
    return docs_index_text(docs, file, named, err);
}

static int index_file(Docs* docs, DocsFile* file, int named, Err err) {
    if (!named && !is_wanted(file->file.path)) return docs->more->packed++, 1;
    if (*unpack_suffix(file->file.path) && unpack_file(docs->more, &file->file, err)) return -1;
    return index_by_name(docs, file, named, err);
}

// ---- directories and patterns

// Does the regular file DIR/NAME begin like this?
static int begins_with(const char* dir, const char* name, const char* beginning) {
    char path[DISK_PATH], found[32];
    uint64_t bytes;
    size_t n = strlen(beginning);
    int fd = disk_join(path, dir, name, NULL) ? -1 : disk_open(path, &bytes, NULL);
    if (fd < 0) return 0;
    int same = disk_read_at(fd, 0, found, n) == (int64_t)n && !memcmp(found, beginning, n);
    close(fd);
    return same;
}

// A run or a checkpoint of this program, by the marker in it: what it holds changes while a run goes on, and is no text
// to learn from.
static int is_run(const char* dir) { return run_dir_is_marked(dir) || begins_with(dir, "DONE", "{\"step\": "); }

static int leaves_out(void* docs, const char* directory) {
    int is = is_run(directory);
    ((Docs*)docs)->more->runs += is;
    return is;
}

static int add_directory(Docs* docs, const char* directory, Err err) {
    const DocsMore* m = docs->more;
    int64_t before = docs->n_files, skipped = docs->skipped, runs = m->runs, packed = m->packed;
    if (is_run(directory))
        return fail(err,
                    "%s: expected documents, found a run or a checkpoint of this program; try another --data, or name "
                    "its files",
                    directory);
    if (docs_add_path(docs, directory, err)) return -1;
    if (docs->n_files > before) return 0;
    return fail(err,
                "%s: no text file in this directory (%lld files passed over, %lld of them compressed, %lld runs "
                "left out); shards and compressed files of other names than *.txt.gz are read by a pattern, like "
                "'%s/*.gz'",
                directory, (long long)(docs->skipped - skipped), (long long)(m->packed - packed),
                (long long)(m->runs - runs), directory);
}

// Files and directories that a path or shell pattern names. 0, or -1 when there are none.
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

// The path behind NAME=WEIGHT:, or the whole of it; *weight is 0 then. NULL with a message.
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
    for (int i = 0; i < m->n_corpora; i++) sum += m->weights[i];
    for (int i = 0; i < m->n_corpora; i++) m->corpora[i].share = m->weights[i] / sum;
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
        *last = (DocsCorpus){.first = docs->n};
        m->weights[m->n_corpora - 1] = weight;
        strcpy(last->name, name);
    } else if (weight > 0 && weight != m->weights[m->n_corpora - 1])
        return fail(err, "%s: %s had the weight %g before", path, name, m->weights[m->n_corpora - 1]);
    if (add_path(docs, rest, err)) return -1;
    if (last) last->end = docs->n, docs->mix = &sampler_mix;
    divide_shares(m);
    return 0;
}

int docs_corpora(const Docs* docs) { return docs->more->n_corpora; }
const DocsCorpus* docs_corpus(const Docs* docs, int corpus) { return &docs->more->corpora[corpus]; }

// ---- the corpus

DocsMore* docs_more(const Tokenizer* tokenizer) {
    DocsMore* more = calloc(1, sizeof *more);
    if (!more) return NULL;
    more->unpacked = -1;
    more->encodes = !tokenizer->is_bytes;
    more->encoded_bytes = tokenizer->vocab <= 65536 ? 2 : 4;
    return more;
}

void docs_more_free(DocsMore* more) {
    if (!more) return;
    free(more->marks);
    free(more->encoded);
    free(more->spans);
    if (more->unpacked >= 0) close(more->unpacked);
    free(more);
}

static void close_more(Docs* docs) { docs_more_free(docs->more); }

const DocsFormats docs_formats = {add_weighted, index_file, docs_add_text, leaves_out, close_more};

static int open_corpus(Docs** out, const char* const* paths, int n_paths, const Tokenizer* tokenizer,
                       DocsReading reading, int keying, Err err) {
    DocsMore* more = docs_more(tokenizer);
    *out = NULL;
    if (!more) return fail(err, "out of memory for the corpus");
    more->text_key = reading.text_key ? reading.text_key : DOCS_TEXT_KEY;
    more->keying = keying;
    Docs start = {.tokenizer = tokenizer, .separator = reading.separator, .formats = &docs_formats, .more = more};
    start.most_open = most_open();
    if (!docs_open(out, start, paths, n_paths, err)) return 0;
    docs_more_free(more);
    return -1;
}

int docs_open_as(Docs** out, const char* const* paths, int n_paths, const Tokenizer* tokenizer, DocsReading reading,
                 Err err) {
    return open_corpus(out, paths, n_paths, tokenizer, reading, 0, err);
}

int docs_key(uint64_t* key, int64_t* bytes, const char* const* paths, int n_paths, const Tokenizer* tokenizer,
             DocsReading reading, Err err) {
    const char* separator = reading.separator ? reading.separator : DOCS_SEPARATOR;
    Docs* docs;
    const void* file;
    size_t n;
    if (open_corpus(&docs, paths, n_paths, tokenizer, reading, 1, err)) return -1;
    DocsMore* m = docs->more;
    tokenizer_file(tokenizer, &file, &n);
    docs_hash_content(docs, separator, strlen(separator) + 1);
    docs_hash_content(docs, m->text_key, strlen(m->text_key) + 1);
    for (int i = 0; i < m->n_corpora; i++) m->corpora[i].first = m->corpora[i].end = 0;
    docs_hash_content(docs, m->corpora, (size_t)m->n_corpora * sizeof *m->corpora);
    *key = hash_bytes(file, n, docs_finish_content(docs));
    *bytes = m->keyed_bytes;
    docs_close(docs);
    return 0;
}

int64_t docs_runs(const Docs* docs) { return docs->more->runs; }
int64_t docs_files(const Docs* docs) { return docs->more->shown_files ? docs->more->shown_files : docs->n_files; }
int64_t docs_packed(const Docs* docs) { return docs->more->packed; }
int64_t docs_plain_jsonl(const Docs* docs) { return docs->more->plain_jsonl; }
uint64_t docs_content(const Docs* docs) { return docs->more->content; }

uint64_t docs_fingerprint(const Docs* docs) {
    uint64_t h = hash64((uint64_t)docs->n);
    for (int64_t d = 0; d < docs->n; d++) h = hash64(h ^ docs->list[d].hash) + (uint64_t)docs_length(docs, d);
    return h;
}
