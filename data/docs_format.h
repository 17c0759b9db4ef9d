// docs_format.h - inside of a corpus of files: what docs_files.c keeps beside Docs, and what the readers of the formats
// fill in. For them; everybody else includes docs_files.h.
#pragma once
#include "data/docs_files.h"
#include "data/json.h"
#include "data/sampler.h"

// Tokens that are to be learnt, of a document of which not all are: [first, end), counted from the beginning of the
// corpus; before: how many such tokens there are before it.
typedef struct DocsSpan {
    int64_t first, end, before;
} DocsSpan;

// In long documents of JSONL, where escapes lie between, the offset of a character every few thousand.
typedef struct DocsMark {
    int64_t token;  // counted from the beginning of the corpus
    int64_t place;  // offset of its character in the file
} DocsMark;

// Of a document that is being indexed: every byte of its text, every token of a shard.
typedef struct ContentHash {
    uint64_t lanes[4];
    unsigned char held[32];  // the bytes behind the last whole block
    uint64_t bytes;          // so far
} ContentHash;

// Documents are 24 bytes each (docs.h): a corpus may have 10^8 of them. Tens of thousands of small files are common, so
// nothing is mapped and few files are kept open.
typedef struct DocsMore {
    const char* text_key;
    int encodes;          // the tokenizer is no byte tokenizer: text is encoded at opening
    uint64_t content;     // of all documents that were added
    ContentHash reading;  // of the next one
    DocsMark* marks;      // in the order of tokens
    int64_t n_marks, marks_capacity;
    void* encoded;  // text with a BPE vocabulary: its tokens, encoded_bytes (2 or 4) each
    int encoded_bytes;
    int64_t n_encoded, encoded_capacity;
    DocsSpan* spans;  // of all files of instructions, ascending
    int64_t n_spans, spans_capacity;
    DocsCorpus corpora[MOST_CORPORA];
    double weights[MOST_CORPORA];
    int n_corpora;
    int unpacked;  // a file without a name, -1: there is none
    int64_t unpacked_bytes;
    int64_t shown_files;  // where a shard stands for them; 0: n_files
    int keying;           // nothing is indexed: content becomes the hash of all files and of how they are read
    int64_t keyed_bytes;
    int64_t runs, packed, plain_jsonl;  // see docs_files.h
} DocsMore;

enum { DOCS_HEAD_TOKENS = 1024 };  // what the hash of a document of tokens covers

extern const DocsFormats docs_formats;
DocsMore* docs_more(const Tokenizer* tokenizer);  // NULL: no memory
void docs_more_free(DocsMore* more);

// ---- docs_encoded.c

// Bytes of the next document, for the hash of the whole content: piece by piece, in order, before docs_finish_content.
void docs_hash_content(Docs* docs, const void* bytes, size_t n);
uint64_t docs_finish_content(Docs* docs);  // what was hashed is a document: the hash of all so far
// docs_add, and the end of what was hashed.
int docs_add_hashed(Docs* docs, int64_t length, int64_t place, const void* head, size_t n, Err err);
// Text is encoded at opening: its tokens stand in DocsMore.encoded, a document's from its place on. Appends tokens, and
// a document of all that were appended from `first` on.
int docs_append_tokens(Docs* docs, const int* tokens, size_t n, Err err);
int docs_append_text(Docs* docs, const char* text, size_t n, Err err);
int docs_add_encoded(Docs* docs, int64_t first, Err err);
extern const DocsFormat docs_encoded;
int docs_read_encoded(const Docs* docs, const DocsFile* file, int64_t doc, int64_t first, int n, int* out, Err err);
// See DocsFormats.
int docs_add_text(Docs* docs, const DocsFile* file, int64_t begin, int64_t end, const char* text, Err err);
// tell is called now and then while text is encoded, with `total`. One corpus at a time; NULL: nobody is told.
void docs_on_progress(void (*tell)(int64_t done, int64_t total), int64_t total);

// ---- docs_jsonl.c, docs_shard.c, docs_chat.c: index the documents of an open file

extern const DocsFormat docs_shard16, docs_shard32;
static inline int docs_is_shard(const DocsFile* file) {
    return file->format == &docs_shard16 || file->format == &docs_shard32;
}
int docs_index_shard(Docs* docs, DocsFile* file, Err err);
int docs_index_jsonl(Docs* docs, DocsFile* file, Err err);
// Does a line of this file say that it is JSONL of documents? 0, or -1 with *is_jsonl unchanged.
int docs_looks_like_jsonl(const Docs* docs, const DocsFile* file, int* is_jsonl, Err err);
// Whether a line of JSONL is an instruction, and the document that it makes.
extern const DocsFormat docs_instructions;
int docs_is_instruction(const Json* json);
int docs_add_instruction(Docs* docs, const Json* json, Err err);

// A hash of all text that these paths name, and of how it is read; *bytes: how much. 0, or -1 as docs_open.
int docs_key(uint64_t* key, int64_t* bytes, const char* const* paths, int n_paths, const Tokenizer* tokenizer,
             DocsReading reading, Err err);
