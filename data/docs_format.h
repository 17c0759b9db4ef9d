// docs_format.h - inside of a corpus: what docs.c keeps, and what the readers of the formats (docs_text.c,
// docs_shard.c) fill in. For them; everybody else includes docs.h.
#pragma once
#include "data/docs.h"
#include "data/json.h"

typedef enum FileKind { FILE_TEXT, FILE_JSONL, FILE_SHARD16, FILE_SHARD32 } FileKind;

typedef struct DocsFile {
    char* path;
    int fd;  // kept open, or -1: opened for each read
    FileKind kind;
    int64_t size;           // bytes
    int64_t first_doc;      // its first document
    int64_t first_encoded;  // where its tokens begin in Docs.encoded
    int encoded;            // its tokens stand there, whatever the tokenizer
    int packed;             // it was compressed: its bytes are in Docs.unpacked from base on
    int64_t base;
} DocsFile;

// Tokens that are to be learnt, of a document of which not all are: [first, end), counted from the beginning of the
// corpus; before: how many such tokens there are before it.
typedef struct DocsSpan {
    int64_t first, end, before;
} DocsSpan;

// The offset of a character in text that is read by bytes: a mark holds that of a document's first one, and in long
// documents of JSONL, where escapes lie between, that of one every few thousand.
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

// Documents are 16 bytes each (start, hash), and 16 more in text that is read by bytes: a corpus may have 10^8 of them.
// Tens of thousands of small files are common, so nothing is mapped and few files are kept open.
struct Docs {
    const Tokenizer* tokenizer;
    DocsReading how;
    int encodes;  // the tokenizer is no byte tokenizer: text is encoded at opening
    int end_of_text, max_token;
    DocsFile* files;
    int64_t n_files, files_capacity, n_kept_open, skipped, runs;
    int64_t* start;       // (n_docs + 1): tokens of all documents before
    uint64_t* hash;       // (n_docs)
    uint64_t content;     // of all documents that were added
    ContentHash reading;  // of the next one
    int64_t n_docs, docs_capacity;
    DocsMark* marks;  // text read by bytes, in the order of tokens
    int64_t n_marks, marks_capacity;
    void* encoded;  // text with a BPE vocabulary: its tokens, encoded_bytes (2 or 4) each
    int encoded_bytes;
    int64_t n_encoded, encoded_capacity;
    DocsSpan* spans;  // of all files of instructions, ascending
    int64_t n_spans, spans_capacity;
    DocsCorpus corpora[MOST_CORPORA];
    int n_corpora;
    int unpacked;  // a file without a name, -1: there is none
    int64_t unpacked_bytes;
    int64_t shown_files;  // where a shard stands for them; 0: n_files
    int keying;           // nothing is indexed: content becomes the hash of all files and of how they are read
    int64_t keyed_bytes;
    int64_t packed, plain_jsonl;  // of the files: compressed ones passed over; JSON that is read as plain text
    int64_t divided;              // documents of files with a separator
};

enum { DOCS_HEAD_TOKENS = 1024, DOCS_HEAD_BYTES = 4096 };  // what the hash of a document covers

// ---- docs_store.c

// Opens file->path and finds its size; it must be a regular file. 0, or -1 with a message and errno.
int docs_file_open(DocsFile* file, char* err, size_t errlen);
void docs_file_close(DocsFile* file);
// Bytes offset .. offset + n of a file. 0, or -1 with a message (shrunk, unreadable).
int docs_file_read(const DocsFile* file, int64_t offset, void* out, size_t n, char* err, size_t errlen);
// Makes room in an array: *array has n elements of element_bytes, and shall take `more`. 0, or -1.
int docs_reserve(void* array, int64_t* capacity, int64_t n, int64_t more, size_t element_bytes, char* err,
                 size_t errlen);
// The last of n > 0 entries of `stride` bytes whose number, an int64_t at its offset from `first`, is at most `key`;
// ascending, the first at most `key`.
int64_t docs_last_at_most(const int64_t* first, size_t stride, int64_t n, int64_t key);
// Bytes of the next document, for the hash of the whole content: piece by piece, in order, before docs_add.
void docs_hash_content(Docs* docs, const void* bytes, size_t n);
uint64_t docs_finish_content(Docs* docs);  // what was hashed is a document: the hash of all so far
// Appends a document. head: what its own hash covers beside the length.
int docs_add(Docs* docs, int64_t length, const void* head, size_t head_bytes, char* err, size_t errlen);

// ---- docs_text.c, docs_shard.c: index the documents of an open file; read n tokens from `at` on, which counts bytes
// of the text (behind its end-of-text) or tokens of the shard

int docs_index_text(Docs* docs, DocsFile* file, char* err, size_t errlen);
// Does a line of this file say that it is JSONL of documents? 0, or -1 with *is_jsonl unchanged.
int docs_looks_like_jsonl(const Docs* docs, const DocsFile* file, int* is_jsonl, char* err, size_t errlen);
int docs_index_jsonl(Docs* docs, DocsFile* file, char* err, size_t errlen);
int docs_index_shard(Docs* docs, DocsFile* file, char* err, size_t errlen);
int docs_read_text(const Docs* docs, const DocsFile* file, int64_t doc, int64_t at, int n, int* out, char* err,
                   size_t errlen);
int docs_read_jsonl(const Docs* docs, const DocsFile* file, int64_t doc, int64_t at, int n, int* out, char* err,
                    size_t errlen);
int docs_read_shard(const DocsFile* file, int64_t at, int n, int* out, char* err, size_t errlen);

// Appends tokens, and a document of all that were appended from `first` on, to Docs.encoded.
int docs_append_tokens(Docs* docs, const int* tokens, size_t n, char* err, size_t errlen);
int docs_append_text(Docs* docs, const char* text, size_t n, char* err, size_t errlen);
int docs_add_encoded(Docs* docs, int64_t first, char* err, size_t errlen);
// The names of an object's members, in quotes, for a message.
const char* docs_member_names(const Json* json, char* words, size_t room);
// docs_chat.c: whether a line of JSONL is an instruction, and the document that it makes.
int docs_is_instruction(const Json* json);
int docs_add_instruction(Docs* docs, const Json* json, char* err, size_t errlen);

// A hash of all text that these paths name, and of how it is read; *bytes: how much. 0, or -1 as docs_open.
int docs_key(uint64_t* key, int64_t* bytes, const char* const* paths, int n_paths, const Tokenizer* tokenizer,
             DocsReading reading, char* err, size_t errlen);
// tell is called now and then while text is encoded, with `total`. One corpus at a time; NULL: nobody is told.
void docs_on_progress(void (*tell)(int64_t done, int64_t total), int64_t total);

// Tokens at .. at + n of Docs.encoded.
void docs_read_encoded(const Docs* docs, int64_t at, int n, int* out);
