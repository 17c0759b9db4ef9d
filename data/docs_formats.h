// docs_formats.h - how files of other formats hang on docs.c and sampler.c: a reader for each file, and hooks of the
// whole corpus.
#pragma once
#include "data/sampler.h"

enum { DOCS_HEAD_BYTES = 4096 };  // bytes of a document that its hash covers, beside its length

typedef struct DocsFile {
    File file;
    const struct DocsFormat* format;
    int64_t first_doc;  // its first document
} DocsFile;

// The reader of the documents of a file.
typedef struct DocsFormat {
    int is_text;  // files lack the end-of-text token: `first` of read counts from the token after it
    // out (n) = tokens of a document from `first` on. 0, or -1 with a message.
    int (*read)(const Docs* docs, const DocsFile* file, int64_t doc, int64_t first, int n, int* out, Err err);
    int (*learnt)(const Docs* docs, int64_t doc, int64_t first, int n, int* targets);  // docs_learnt; NULL: all are
} DocsFormat;

// Hooks by which docs_files.c replaces the plain-text reader: docs_add_path, docs_index_text, and the function that
// adds bytes [begin, end) of a text file as a document (in memory: text, or NULL). 0, or -1 with a message. The last
// four are of trees, of labels that do not count alike, and of corpora with weights.
typedef struct DocsFormats {
    int (*add_path)(Docs* docs, const char* path, Err err);
    int (*index)(Docs* docs, DocsFile* file, int named, Err err);  // 1: passed over, with a message
    int (*add_text)(Docs* docs, const DocsFile* file, int64_t begin, int64_t end, const char* text, Err err);
    int (*leaves_out)(void* docs, const char* directory, Err err);
    void (*close)(Docs* docs);
    double (*squares)(const Docs* docs, int64_t doc);  // Piece.squares of a tree, 0 of other documents
    double (*weight)(const Docs* docs, int64_t doc, int64_t first, int n);  // of the labels first .. first + n
    int (*check)(const Sampler* s, Err err);                                // at the opening of a sampler that trains
    Piece (*next)(const Sampler* s, SamplerPosition* at);                   // takes the next training piece
} DocsFormats;

const DocsFile* docs_file_of(const Docs* docs, int64_t doc);
int docs_add_path(Docs* docs, const char* path, Err err);  // a file or directory. 0, or -1
int docs_check_text(DocsFile* file, Err err);              // skips a byte order mark; 1 and a message: it is no text
int docs_index_text(Docs* docs, DocsFile* file, int named, Err err);
// Appends a document; its hash covers `head` beside the length.
int docs_add(Docs* docs, int64_t length, int64_t place, const void* head, size_t head_bytes, Err err);
