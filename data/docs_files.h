// docs_files.h - a corpus of files in all formats.
//
// What may be given: a directory, a text file (docs.h), a .jsonl file (the string "text" of each line is a document; or
// each line is an instruction in a form of docs_chat.c, of which only completions are learnt), both also as .gz or
// .zst, or llm.c's token shards *.bin (docs_shard.c; a document begins at each end-of-text token). Paths may be shell
// patterns. Text that is read by bytes and shards cannot be mixed: their ids do not agree.
//
// Only text with a BPE vocabulary is encoded into memory at opening, because its lengths must be known. (A document
// without the end-of-text token: tokens of a shard before its first one form one too, the end of one that began
// elsewhere.)
#pragma once
#include "data/docs.h"

enum { CORPUS_NAME = 32 };

// NAME=WEIGHT:PATH stands for a corpus of its own; weights are shares of the tokens of training, whatever their sum.
// All paths have one, or none has. Paths of one name belong together and stand behind each other.
typedef struct DocsCorpus {
    char name[CORPUS_NAME];
    double share;        // of the sum of all weights
    int64_t first, end;  // its documents
} DocsCorpus;

// How text is read; a member that is NULL: as said.
typedef struct DocsReading {
    const char* separator;  // as docs_open's
    const char* text_key;   // the member of a line of JSONL that is its document
} DocsReading;
#define DOCS_TEXT_KEY "text"

// tokenizer: for text; also gives the end-of-text token by which shards are cut (the byte tokenizer: that of the
// vocabulary they were made with, 50256 of GPT-2 or 128000 of Llama 3). Files of a directory that are no text are
// passed over and counted; runs and checkpoints of this program below it are left out whole and counted; a directory
// that is named and is one is an error. 0, or -1 with a message.
int docs_open_as(Docs** out, const char* const* paths, int n_paths, const Tokenizer* tokenizer, DocsReading reading,
                 Err err);

int docs_corpora(const Docs* docs);  // 0: no weights were given
const DocsCorpus* docs_corpus(const Docs* docs, int corpus);
int64_t docs_runs(const Docs* docs);         // directories left out
int64_t docs_files(const Docs* docs);        // files used
int64_t docs_packed(const Docs* docs);       // of the files passed over those that are compressed
int64_t docs_plain_jsonl(const Docs* docs);  // files *.jsonl without documents and JSON arrays, read as plain text

// A hash of the whole corpus's shape: every length and hash of a document.
uint64_t docs_fingerprint(const Docs* docs);
// A hash of every byte of every document, in their order, wherever they lie: a run that resumes on other documents is
// told so, and ranks that see different ones.
uint64_t docs_content(const Docs* docs);
