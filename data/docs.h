// docs.h - a corpus as a list of documents.
//
// What may be given: a directory (every regular text file below it, in byte order of the paths; hidden files and linked
// directories are left out), a text file (one document, or several with a separator between them), a .jsonl file (the
// string "text" of each line is a document; or each line is an instruction in a form of docs_chat.c, of which only
// completions are learnt), both also as .gz or .zst, or llm.c's token shards *.bin (header of 256 int32: 20240520, 1,
// number of tokens; then uint16 tokens; or 20240801, 7 and uint32 tokens; a document begins at each end-of-text
// token). Paths may be shell patterns. Text
// that is read by bytes and shards cannot be mixed: their ids do not agree.
//
// At opening every file is read once, for an index of where documents begin and a hash of what they hold; after that,
// files are read where a document asks for it. Only text with a BPE vocabulary is encoded into memory at opening,
// because its lengths must be known.
//
// Every document begins with the end-of-text token: it stands in the shards, and is put before the text of the others.
// (One exception: tokens of a shard before its first end-of-text form a document too, the end of one that began
// elsewhere.) A document's id is its place in the list.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "data/tokenizer.h"

typedef struct Docs Docs;

enum { MOST_CORPORA = 8, CORPUS_NAME = 32 };

// NAME=WEIGHT:PATH stands for a corpus of its own; weights are shares of the tokens of training, whatever their sum.
// All paths have one, or none has. Paths of one name belong together and stand behind each other.
typedef struct DocsCorpus {
    char name[CORPUS_NAME];
    double share;        // of the sum of all weights
    int64_t first, end;  // its documents
} DocsCorpus;

// How text is read; a member that is NULL: as said.
typedef struct DocsReading {
    const char*
        separator;         // between documents of a text file, with the line breaks behind it; "none": files stay whole
    const char* text_key;  // the member of a line of JSONL that is its document
} DocsReading;
#define DOCS_SEPARATOR "<|endoftext|>"
#define DOCS_TEXT_KEY "text"

// tokenizer: for text; also gives the end-of-text token by which shards are cut (the byte tokenizer: that of the
// vocabulary they were made with, 50256 of GPT-2 or 128000 of Llama 3); it must outlive the Docs. Files of a directory
// that are no text (a NUL byte in the first 4096 bytes), unreadable or empty are passed over and counted; the same in a
// file that was named is an error, as is a corpus without a single token of text.
// Runs and checkpoints of this program below a directory are left out whole and counted; a directory that is named and
// is one is an error.
// 0 and *out owned by the caller, or -1 with a message.
int docs_open(Docs** out, const char* const* paths, int n_paths, const Tokenizer* tokenizer, char* err, size_t errlen);
int docs_open_as(Docs** out, const char* const* paths, int n_paths, const Tokenizer* tokenizer, DocsReading reading,
                 char* err, size_t errlen);
void docs_close(Docs* docs);  // NULL is fine

int docs_corpora(const Docs* docs);  // 0: no weights were given
const DocsCorpus* docs_corpus(const Docs* docs, int corpus);
int64_t docs_count(const Docs* docs);
int64_t docs_tokens(const Docs* docs);               // of all documents, end-of-text included
int64_t docs_length(const Docs* docs, int64_t doc);  // tokens of one document, at least 1
int64_t docs_skipped(const Docs* docs);              // files passed over
int64_t docs_runs(const Docs* docs);                 // directories left out
int64_t docs_files(const Docs* docs);                // files used
int docs_end_of_text(const Docs* docs);              // the token that documents begin with
int docs_max_token(const Docs* docs);                // upper bound of the ids that occur (shards: the largest found)

// out (n) = tokens first .. first + n of a document, 0 <= first, first + n <= docs_length. 0, or -1 with a message
// (a file that shrank since it was opened, say). May be called from several threads at once.
int docs_read(const Docs* docs, int64_t doc, int64_t first, int n, int* out, char* err, size_t errlen);

// Of the tokens first .. first + n of a document, how many are to be learnt: n, but of instructions only completions.
int docs_labels(const Docs* docs, int64_t doc, int64_t first, int n);
// targets (n) are the tokens first .. first + n of a document: those that are not to be learnt become -1.
void docs_mask(const Docs* docs, int64_t doc, int64_t first, int n, int* targets);
int64_t docs_packed(const Docs* docs);       // of the files passed over those that are compressed
int64_t docs_plain_jsonl(const Docs* docs);  // files *.jsonl without documents and JSON arrays, read as plain text
int64_t docs_divided(const Docs* docs);      // documents of text files in which the separator stands

// A hash of the document's content (its length and up to 4096 bytes of it): equal documents hash equally wherever they
// lie, so that a copy of a held-out document is never trained on.
uint64_t docs_hash(const Docs* docs, int64_t doc);
// A hash of the whole corpus's shape: every length and docs_hash.
uint64_t docs_fingerprint(const Docs* docs);
// A hash of every byte of every document, in their order, wherever they lie: a run that resumes on other documents is
// told so, and ranks that see different ones.
uint64_t docs_content(const Docs* docs);
