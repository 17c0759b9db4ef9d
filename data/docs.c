// docs.c - opens a corpus and reads documents from it; see docs.h, and docs_format.h for what is kept.
//
// Opening finds the files, tells each format by its name and lets the format's reader index the documents (docs_text.c,
// docs_shard.c). Reading finds the file of a document by bisection and reads the bytes of the wanted tokens only.
#define _GNU_SOURCE
#include "data/docs.h"

#include <dirent.h>
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
#include "data/unpack.h"
#include "plan/base/base.h"
#include "plan/base/disk.h"

// So many files of a corpus stay open. Two corpora take less than half of the descriptors, and none of the first 64,
// which are for communication, libraries and files of the run.
static int64_t most_open(void) {
    enum { OTHERS = 64, MOST = 128 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur < OTHERS) return 0;
    return (int64_t)MIN((limit.rlim_cur - OTHERS) / 4, (rlim_t)MOST);
}

// ---- which files: in byte order, so that every rank and every run numbers documents alike on any file system

typedef struct FileNames {
    char** paths;
    int64_t n, capacity;
    int64_t unreadable;  // directories that could not be listed
    int64_t runs;        // directories that this program wrote
} FileNames;

static int compare_paths(const void* a, const void* b) { return strcmp(*(char* const*)a, *(char* const*)b); }

static void sort_paths(FileNames* list) {
    if (list->n > 1) qsort(list->paths, (size_t)list->n, sizeof *list->paths, compare_paths);
}

// Takes over path, which may be NULL: memory has run out.
static int append_path(FileNames* list, char* path, char* err, size_t errlen) {
    if (!path) return fail(err, errlen, "out of memory for the list of files");
    if (docs_reserve(&list->paths, &list->capacity, list->n, 1, sizeof *list->paths, err, errlen)) {
        free(path);
        return -1;
    }
    list->paths[list->n++] = path;
    return 0;
}

static void paths_free(FileNames* list) {
    for (int64_t i = 0; i < list->n; i++) free(list->paths[i]);
    free(list->paths);
    *list = (FileNames){0};
}

// Files and directories that a path or shell pattern names. 0, or -1 when there are none.
static int paths_expand(FileNames* list, const char* pattern, char* err, size_t errlen) {
    struct stat st;
    if (stat(pattern, &st) == 0) return append_path(list, strdup(pattern), err, errlen);
    int error = errno;
    if (!strpbrk(pattern, "*?[")) return fail(err, errlen, "%s: %s%s", pattern, strerror(error), disk_hint(error));
    glob_t matches;
    int status = glob(pattern, GLOB_NOSORT, NULL, &matches);
    if (status == GLOB_NOMATCH) return fail(err, errlen, "%s: no file matches this pattern", pattern);
    if (status) return fail(err, errlen, "%s: the pattern cannot be expanded", pattern);
    for (size_t i = 0; i < matches.gl_pathc && status == 0; i++)
        status = append_path(list, strdup(matches.gl_pathv[i]), err, errlen);
    globfree(&matches);
    sort_paths(list);
    return status;
}

// Does the regular file DIR/NAME begin like this?
static int begins_with(const char* dir, const char* name, const char* beginning) {
    char path[DISK_PATH], found[32];
    uint64_t bytes;
    size_t n = strlen(beginning);
    int fd = disk_join(path, dir, name, NULL, 0) ? -1 : disk_open(path, &bytes, NULL, 0);
    if (fd < 0) return 0;
    int same = disk_read(fd, found, n) == (int64_t)n && !memcmp(found, beginning, n);
    close(fd);
    return same;
}

// A run or a checkpoint of this program, by the marker in it: what it holds changes while a run goes on, and is no text
// to learn from.
static int is_run(const char* dir) { return run_dir_is_marked(dir) || begins_with(dir, "DONE", "{\"step\": "); }

// The type of an entry of a directory, links followed: DT_REG, DT_DIR (never through a link), or another.
static int entry_type(const struct dirent* entry, const char* path) {
    struct stat st;
    int type = entry->d_type;
    if (type == DT_UNKNOWN && lstat(path, &st) == 0) type = IFTODT(st.st_mode);
    if (type == DT_LNK && stat(path, &st) == 0 && S_ISREG(st.st_mode)) type = DT_REG;
    return type;
}

// Whether a file or directory that nobody named may be left out after this error: it is not for us, or is gone. After
// any other (a bad disk, too many open files) another run would find another corpus.
static int may_pass_over(int error) { return error == EACCES || error == EPERM || error == ENOENT || error == ELOOP; }

static int list_one(FileNames* files, FileNames* directories, const char* directory, char* err, size_t errlen) {
    DIR* dir = opendir(directory);
    if (!dir && may_pass_over(errno)) return files->unreadable++, 0;
    if (!dir) return fail(err, errlen, "%s: %s%s", directory, strerror(errno), disk_hint(errno));
    int status = 0;
    size_t n = strlen(directory);
    for (struct dirent* entry; status == 0 && (errno = 0, entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        char* path;
        if (asprintf(&path, "%s%s%s", directory, n && directory[n - 1] == '/' ? "" : "/", entry->d_name) < 0)
            path = NULL;
        int type = path ? entry_type(entry, path) : DT_REG;
        if (type == DT_REG) status = append_path(files, path, err, errlen);
        else if (type == DT_DIR) status = append_path(directories, path, err, errlen);
        else free(path);
    }
    if (status == 0 && errno) status = fail(err, errlen, "%s: %s", directory, strerror(errno));
    closedir(dir);
    return status;
}

// Every regular file below a directory; neither hidden files and directories nor linked directories, which could be
// loops, nor runs.
static int paths_below(FileNames* list, const char* directory, char* err, size_t errlen) {
    FileNames directories = {0};  // a list, not recursion: a deep tree cannot exhaust the stack
    int status = append_path(&directories, strdup(directory), err, errlen);
    for (int64_t i = 0; status == 0 && i < directories.n; i++) {
        if (is_run(directories.paths[i])) list->runs++;
        else status = list_one(list, &directories, directories.paths[i], err, errlen);
    }
    paths_free(&directories);
    sort_paths(list);
    return status;
}

// ---- opening

// Does text begin as a JSON array of objects or strings does? That is a data set, not a document.
static int is_json_array(const char* text, size_t n) {
    static const char blank[] = " \t\r\n";
    size_t at = 0;
    while (at < n && strchr(blank, text[at])) at++;
    if (at == n || text[at++] != '[') return 0;
    while (at < n && strchr(blank, text[at])) at++;
    return at == n ? 0 : text[at] == '{' ? 1 : text[at] == '"' ? 2 : 0;
}

// Is it text? The first bytes tell: 0, or 1 with a message; -1 when they cannot be read. *array: is_json_array.
static int check_text(const DocsFile* file, int* array, char* err, size_t errlen) {
    char head[DOCS_HEAD_BYTES];
    size_t n = (size_t)MIN(file->size, (int64_t)sizeof head);
    if (n == 0) return fail(err, errlen, "%s: is empty", file->path), 1;
    if (docs_file_read(file, 0, head, n, err, errlen)) return -1;
    const char* nul = memchr(head, 0, n);
    if (nul)
        fail(err, errlen,
             "%s: is not text, byte %d is zero (token shards must be named *.bin, compressed text *.gz or *.zst; "
             "parquet: scripts/parquet_to_shards.py)",
             file->path, (int)(nul - head));
    *array = nul ? 0 : is_json_array(head, n);
    return nul != NULL;
}

static int has_suffix(const char* name, const char* suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

static int is_shard_kind(FileKind kind) { return kind == FILE_SHARD16 || kind == FILE_SHARD32; }

// All bytes of a file, where it would be indexed. Its name says how it is read.
static int hash_file(Docs* docs, const DocsFile* file, int named, char* err, size_t errlen) {
    char block[1 << 16];
    const char *slash = strrchr(file->path, '/'), *name = slash ? slash + 1 : file->path;
    uint64_t head[] = {(uint64_t)file->size, (uint64_t)named, hash_bytes(name, strlen(name), 0)};
    docs_hash_content(docs, head, sizeof head);
    for (int64_t at = 0; at < file->size; at += (int64_t)sizeof block) {
        size_t n = (size_t)MIN(file->size - at, (int64_t)sizeof block);
        if (docs_file_read(file, at, block, n, err, errlen)) return -1;
        docs_hash_content(docs, block, n);
    }
    docs->keyed_bytes += file->size;
    return 0;
}

// Adds a file that is open. A file that was not named is passed over (1) when it
// is no text. 0, or -1.
static int index_file(Docs* docs, DocsFile* file, int named, char* err, size_t errlen) {
    file->first_doc = docs->n_docs;
    file->first_encoded = docs->n_encoded;
    char name[DISK_PATH];  // without what says that it is compressed
    int cut = file->packed ? (int)strlen(unpack_suffix(file->path)) : 0, is_jsonl = named;
    snprintf(name, sizeof name, "%.*s", (int)strlen(file->path) - cut, file->path);
    int is_shard = named && has_suffix(name, ".bin"), array = 0;
    int unfit = is_shard ? 0 : check_text(file, &array, err, errlen);
    if (unfit) return named ? -1 : unfit;
    if (named && array)
        return fail(err, errlen, "%s: expected text or JSONL, found a JSON array; try: jq -c '.[]%s' %s > DATA.jsonl",
                    file->path, array == 2 ? " | {text: .}" : "", file->path);
    if (!docs->encodes && docs->n_files > 0 && is_shard != is_shard_kind(docs->files[0].kind))
        return fail(err, errlen,
                    "%s and %s: token shards and text that is read by bytes cannot be one corpus; give --tokenizer",
                    docs->files[0].path, file->path);
    if (docs->keying) return hash_file(docs, file, named, err, errlen);
    if (is_shard) return docs_index_shard(docs, file, err, errlen);
    docs->max_token = MAX(docs->max_token, tokenizer_vocab(docs->tokenizer) - 1);
    int is_json = has_suffix(name, ".jsonl");
    if (is_json && !named && docs_looks_like_jsonl(docs, file, &is_jsonl, err, errlen)) return -1;
    if (is_json && is_jsonl) return docs_index_jsonl(docs, file, err, errlen);
    docs->plain_jsonl += is_json || array;
    return docs_index_text(docs, file, err, errlen);
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
static int unpack_file(Docs* docs, DocsFile* file, char* err, size_t errlen) {
    if (docs->unpacked < 0 && (docs->unpacked = unpack_open(err, errlen)) < 0) return -1;
    int64_t bytes = unpack(docs->unpacked, file->path, err, errlen);
    docs_file_close(file);
    if (bytes < 0) return -1;
    file->packed = 1;
    file->fd = docs->unpacked;
    file->base = docs->unpacked_bytes;
    file->size = bytes;
    docs->unpacked_bytes += bytes;
    return 0;
}

// Takes over file->path unless it fails.
static int add_file(Docs* docs, DocsFile file, int named, char* err, size_t errlen) {
    if (docs_reserve(&docs->files, &docs->files_capacity, docs->n_files, 1, sizeof file, err, errlen)) return -1;
    file.fd = -1;
    int status = 0;
    if (docs_file_open(&file, err, errlen)) status = !named && may_pass_over(errno) ? 1 : -1;
    if (status == 0 && !named && !is_wanted(file.path)) status = 1, docs->packed++;
    else if (status == 0 && *unpack_suffix(file.path) && unpack_file(docs, &file, err, errlen)) status = -1;
    if (status == 0) status = index_file(docs, &file, named, err, errlen);
    if (status || docs->n_kept_open >= most_open()) docs_file_close(&file);
    if (status < 0) return -1;
    if (status > 0) {
        docs->skipped++;
        free(file.path);
        return 0;
    }
    docs->n_kept_open += file.fd >= 0 && !file.packed;
    docs->files[docs->n_files++] = file;
    return 0;
}

static int add_directory(Docs* docs, const char* directory, char* err, size_t errlen) {
    FileNames list = {0};
    int64_t before = docs->n_files, skipped = docs->skipped, runs = docs->runs, packed = docs->packed;
    if (is_run(directory))
        return fail(err, errlen,
                    "%s: expected documents, found a run or a checkpoint of this program; try another --data, or name "
                    "its files",
                    directory);
    int status = paths_below(&list, directory, err, errlen);
    docs->skipped += list.unreadable;
    docs->runs += list.runs;
    for (int64_t i = 0; status == 0 && i < list.n; i++) {
        status = add_file(docs, (DocsFile){.path = list.paths[i]}, 0, err, errlen);
        if (status == 0) list.paths[i] = NULL;
    }
    paths_free(&list);
    if (status == 0 && docs->n_files == before)
        return fail(err, errlen,
                    "%s: no text file in this directory (%lld files passed over, %lld of them compressed, %lld runs "
                    "left out); shards and compressed files of other names than *.txt.gz are read by a pattern, like "
                    "'%s/*.gz'",
                    directory, (long long)(docs->skipped - skipped), (long long)(docs->packed - packed),
                    (long long)(docs->runs - runs), directory);
    return status;
}

static int add_path(Docs* docs, const char* pattern, char* err, size_t errlen) {
    FileNames list = {0};
    struct stat st;
    int status = paths_expand(&list, pattern, err, errlen);
    for (int64_t i = 0; status == 0 && i < list.n; i++) {
        if (stat(list.paths[i], &st) == 0 && S_ISDIR(st.st_mode)) {
            status = add_directory(docs, list.paths[i], err, errlen);
        } else {
            status = add_file(docs, (DocsFile){.path = list.paths[i]}, 1, err, errlen);
            if (status == 0) list.paths[i] = NULL;
        }
    }
    paths_free(&list);
    return status;
}

// ---- corpora with weights

// The path behind NAME=WEIGHT:, or the whole of it; *weight is 0 then. NULL with a message.
static const char* split_weight(const char* path, char name[CORPUS_NAME], double* weight, char* err, size_t errlen) {
    size_t n = strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    char* end = NULL;
    *weight = 0;
    if (n == 0 || path[n] != '=' || (unsigned char)(path[n + 1] - '0') > 9) return path;
    double w = strtod(path + n + 1, &end);
    if (*end != ':') return path;
    if (n >= CORPUS_NAME || !(w > 0 && w <= 1e9) || !end[1]) {
        fail(err, errlen, "%s: expected NAME=WEIGHT:PATH with a name of at most %d characters and a weight above 0",
             path, CORPUS_NAME - 1);
        return NULL;
    }
    snprintf(name, CORPUS_NAME, "%.*s", (int)n, path);
    *weight = w;
    return end + 1;
}

static int add_weighted(Docs* docs, const char* path, int is_first, char* err, size_t errlen) {
    char name[CORPUS_NAME];
    double weight;
    const char* rest = split_weight(path, name, &weight, err, errlen);
    if (!rest) return -1;
    if (!is_first && (weight > 0) != (docs->n_corpora > 0))
        return fail(err, errlen, "%s: expected a weight for every path, as in NAME=0.5:PATH, or for none", path);
    DocsCorpus* last = docs->n_corpora ? &docs->corpora[docs->n_corpora - 1] : NULL;
    if (weight > 0 && (!last || strcmp(last->name, name))) {
        for (int i = 0; i < docs->n_corpora; i++)
            if (!strcmp(docs->corpora[i].name, name))
                return fail(err, errlen, "%s: the paths of one corpus must stand behind each other", path);
        if (docs->n_corpora == MOST_CORPORA)
            return fail(err, errlen, "%s: expected at most %d corpora with weights", path, MOST_CORPORA);
        last = &docs->corpora[docs->n_corpora++];
        *last = (DocsCorpus){.share = weight, .first = docs->n_docs};
        strcpy(last->name, name);
    } else if (weight > 0 && weight != last->share)
        return fail(err, errlen, "%s: %s had the weight %g before", path, name, last->share);
    if (add_path(docs, rest, err, errlen)) return -1;
    if (last) last->end = docs->n_docs;
    return 0;
}

static void divide_shares(Docs* docs) {
    double sum = 0;
    for (int i = 0; i < docs->n_corpora; i++) sum += docs->corpora[i].share;
    for (int i = 0; i < docs->n_corpora; i++) docs->corpora[i].share /= sum;
}

int docs_corpora(const Docs* docs) { return docs->n_corpora; }
const DocsCorpus* docs_corpus(const Docs* docs, int corpus) { return &docs->corpora[corpus]; }

static int open_corpus(Docs** out, const char* const* paths, int n_paths, const Tokenizer* tokenizer,
                       DocsReading reading, int keying, char* err, size_t errlen) {
    enum { LONGEST = 256 };
    *out = NULL;
    if (n_paths < 1) return fail(err, errlen, "no corpus given");
    if (!reading.separator) reading.separator = DOCS_SEPARATOR;
    if (!reading.text_key) reading.text_key = DOCS_TEXT_KEY;
    if (!*reading.separator || strlen(reading.separator) > LONGEST)
        return fail(err, errlen, "expected a separator of 1 to %d bytes between documents, or none", LONGEST);
    Docs* docs = calloc(1, sizeof *docs);
    if (!docs) return fail(err, errlen, "out of memory for the corpus");
    docs->keying = keying;
    docs->how = reading;
    docs->tokenizer = tokenizer;
    docs->unpacked = -1;
    docs->encodes = !tokenizer_is_bytes(tokenizer);
    docs->end_of_text = tokenizer_end_of_text(tokenizer);
    docs->encoded_bytes = tokenizer_vocab(tokenizer) <= 65536 ? 2 : 4;
    int status = 0;
    for (int i = 0; status == 0 && i < n_paths; i++) status = add_weighted(docs, paths[i], i == 0, err, errlen);
    divide_shares(docs);
    if (status == 0 && !keying && docs_tokens(docs) == docs->n_docs)
        status = fail(err, errlen, "the corpus has no text: %lld documents in %lld files, each a single token",
                      (long long)docs->n_docs, (long long)docs->n_files);
    if (status) docs_close(docs);
    else *out = docs;
    return status;
}

int docs_open_as(Docs** out, const char* const* paths, int n_paths, const Tokenizer* tokenizer, DocsReading reading,
                 char* err, size_t errlen) {
    return open_corpus(out, paths, n_paths, tokenizer, reading, 0, err, errlen);
}

int docs_open(Docs** out, const char* const* paths, int n_paths, const Tokenizer* tokenizer, char* err, size_t errlen) {
    return docs_open_as(out, paths, n_paths, tokenizer, (DocsReading){NULL, NULL}, err, errlen);
}

int docs_key(uint64_t* key, int64_t* bytes, const char* const* paths, int n_paths, const Tokenizer* tokenizer,
             DocsReading reading, char* err, size_t errlen) {
    Docs* docs;
    const void* file;
    size_t n;
    if (open_corpus(&docs, paths, n_paths, tokenizer, reading, 1, err, errlen)) return -1;
    tokenizer_file(tokenizer, &file, &n);
    docs_hash_content(docs, docs->how.separator, strlen(docs->how.separator) + 1);
    docs_hash_content(docs, docs->how.text_key, strlen(docs->how.text_key) + 1);
    docs_hash_content(docs, docs->corpora, (size_t)docs->n_corpora * sizeof *docs->corpora);
    *key = hash_bytes(file, n, docs_finish_content(docs));
    *bytes = docs->keyed_bytes;
    docs_close(docs);
    return 0;
}

void docs_close(Docs* docs) {
    if (!docs) return;
    for (int64_t i = 0; i < docs->n_files; i++) {
        docs_file_close(&docs->files[i]);
        free(docs->files[i].path);
    }
    free(docs->files);
    free(docs->start);
    free(docs->hash);
    free(docs->marks);
    free(docs->encoded);
    free(docs->spans);
    if (docs->unpacked >= 0) close(docs->unpacked);
    free(docs);
}

// ---- reading

int64_t docs_count(const Docs* docs) { return docs->n_docs; }
int64_t docs_length(const Docs* docs, int64_t doc) { return docs->start[doc + 1] - docs->start[doc]; }
int64_t docs_skipped(const Docs* docs) { return docs->skipped; }
int64_t docs_runs(const Docs* docs) { return docs->runs; }
int64_t docs_files(const Docs* docs) { return docs->shown_files ? docs->shown_files : docs->n_files; }
int docs_max_token(const Docs* docs) { return docs->max_token; }
int64_t docs_packed(const Docs* docs) { return docs->packed; }
int64_t docs_plain_jsonl(const Docs* docs) { return docs->plain_jsonl; }
int64_t docs_divided(const Docs* docs) { return docs->divided; }
int docs_end_of_text(const Docs* docs) { return docs->end_of_text; }
uint64_t docs_content(const Docs* docs) { return docs->content; }
uint64_t docs_hash(const Docs* docs, int64_t doc) { return docs->hash[doc]; }

uint64_t docs_fingerprint(const Docs* docs) {
    uint64_t h = hash64((uint64_t)docs->n_docs);
    for (int64_t d = 0; d < docs->n_docs; d++) h = hash64(h ^ docs->hash[d]) + (uint64_t)docs_length(docs, d);
    return h;
}

int docs_read(const Docs* docs, int64_t doc, int64_t first, int n, int* out, char* err, size_t errlen) {
    if (doc < 0 || doc >= docs->n_docs)
        return fail(err, errlen, "document %lld of %lld", (long long)doc, (long long)docs->n_docs);
    if (first < 0 || n < 0 || first > docs_length(docs, doc) - n)
        return fail(err, errlen, "%d tokens from %lld on of document %lld, which has %lld", n, (long long)first,
                    (long long)doc, (long long)docs_length(docs, doc));
    const DocsFile* file =
        &docs->files[docs_last_at_most(&docs->files->first_doc, sizeof *docs->files, docs->n_files, doc)];
    int64_t before = docs->start[doc] - docs->start[file->first_doc];
    if (is_shard_kind(file->kind)) return docs_read_shard(file, before + first, n, out, err, errlen);
    if (docs->encodes || file->encoded) return docs_read_encoded(docs, file->first_encoded + before + first, n, out), 0;
    if (first == 0 && n > 0) {
        *out++ = docs->end_of_text;
        n--;
        first++;
    }
    if (n == 0) return 0;
    if (file->kind == FILE_TEXT) return docs_read_text(docs, file, doc, first - 1, n, out, err, errlen);
    return docs_read_jsonl(docs, file, doc, first - 1, n, out, err, errlen);
}

// ---- what is to be learnt

static const DocsFile* file_of(const Docs* docs, int64_t doc) {
    return &docs->files[docs_last_at_most(&docs->files->first_doc, sizeof *docs->files, docs->n_files, doc)];
}

// Tokens to be learnt before `token`, counted from the beginning of the corpus.
static int64_t labels_before(const Docs* docs, int64_t token) {
    if (docs->n_spans == 0 || token <= docs->spans[0].first) return 0;
    const DocsSpan* s = &docs->spans[docs_last_at_most(&docs->spans->first, sizeof *docs->spans, docs->n_spans, token)];
    return s->before + MIN(token, s->end) - s->first;
}

int docs_labels(const Docs* docs, int64_t doc, int64_t first, int n) {
    if (docs->n_spans == 0 || n <= 0 || !file_of(docs, doc)->encoded) return n;
    int64_t token = docs->start[doc] + first;
    return (int)(labels_before(docs, token + n) - labels_before(docs, token));
}

void docs_mask(const Docs* docs, int64_t doc, int64_t first, int n, int* targets) {
    if (docs->n_spans == 0 || n <= 0 || !file_of(docs, doc)->encoded) return;
    int64_t token = docs->start[doc] + first;
    const DocsSpan* end = docs->spans + docs->n_spans;
    const DocsSpan* s = docs->spans + docs_last_at_most(&docs->spans->first, sizeof *docs->spans, docs->n_spans, token);
    for (int i = 0; i < n; i++) {
        while (s < end && s->end <= token + i) s++;
        if (s == end || token + i < s->first) targets[i] = -1;
    }
}
