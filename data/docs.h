// docs.h - text as tokens: tokenizers, and a corpus as a list of documents.
//
// A corpus consists of text files and directories. A file is one document, or several with a separator between them;
// of a directory every text file below it is read. docs_files.h adds other formats, patterns and weights. Opening reads
// every file once, to index where documents begin and to hash their content; later only the documents asked for are
// read. Every document begins with the end-of-text token. Its id is its place in the list.
#pragma once
#include "plan/base/base.h"
#include "plan/base/many_files.h"

// ---- tokenizers: text to tokens and back. Bytes are 256 tokens; tokenizer_files.h reads vocabularies.

typedef struct Tokenizer {
    int vocab;        // number of ids, end-of-text included
    int end_of_text;  // stands between documents, at the beginning of each
    int stop;         // the token with which a model ends a text
    int is_bytes;
    int most;  // upper bound of the tokens that one byte becomes
    // Encodes n bytes of text, recognizing no special tokens; out has room for n * most. Returns the number of tokens.
    size_t (*encode)(const struct Tokenizer* t, int* out, const char* text, size_t n);
    // Returns the bytes of one token (not terminated), *n their number; end-of-text and unknown ids have none.
    const char* (*decode)(const struct Tokenizer* t, int token, size_t* n);
} Tokenizer;

extern const Tokenizer byte_tokenizer;

// ---- documents

typedef struct Docs Docs;

typedef struct Document {
    int64_t start;  // tokens of all documents before
    int64_t place;  // where its text begins in the file, as the format counts
    uint64_t hash;  // equal documents hash equally wherever they lie: no copy of a held-out one is trained on
} Document;

struct Docs {
    const Tokenizer* tokenizer;
    const char* separator;  // stands between documents of a text file, before line breaks; "": files stay whole
    int end_of_text;        // the token that documents begin with
    int max_token;          // upper bound of the ids that occur
    struct DocsFile* files;
    int64_t n_files, files_capacity, n_open, most_open;
    Document* list;  // (n + 1)
    int64_t n, capacity;
    Paths skipped;    // a message for each file of a directory that was passed over: no text, unreadable, unfit
    int64_t divided;  // documents of text files in which the separator stands
    const struct DocsFormats* formats;  // docs_formats.h; NULL: all files are text read by bytes
    struct DocsMore* more;              // data of the formats
};

#define DOCS_SEPARATOR "<|endoftext|>"

// start holds the tokenizer, which must outlive the Docs; a separator ("none": files stay whole; NULL: DOCS_SEPARATOR);
// formats and their data; most_open. A named file or a corpus without text is an error. 0 and *out owned by the
// caller, or -1 with a message.
int docs_open(Docs** out, Docs start, const char* const* paths, int n_paths, Err err);
void docs_close(Docs* docs);  // NULL is fine

static inline int64_t docs_length(const Docs* docs, int64_t doc) {  // tokens, at least 1
    return docs->list[doc + 1].start - docs->list[doc].start;
}
static inline int64_t docs_tokens(const Docs* docs) { return docs->n ? docs->list[docs->n].start : 0; }

// out (n) = tokens first .. first + n of a document. 0, or -1 with a message. Several threads may call it at once.
int docs_read(const Docs* docs, int64_t doc, int64_t first, int n, int* out, Err err);
// docs_learnt returns how many of the tokens first .. first + n of a document are learnt: all n, but of instructions
// only completions. The others become -1 in targets (n), unless that is NULL.
int docs_learnt(const Docs* docs, int64_t doc, int64_t first, int n, int* targets);
