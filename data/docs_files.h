// docs_files.h - a corpus of files in all formats: directories, text files (docs.h), JSONL, llm.c's token shards, the
// first two also compressed; data/README.md says how each is read. Paths may be shell patterns. Text that is read by
// bytes and shards cannot be mixed: their ids do not agree.
// Only text with a BPE vocabulary is encoded into memory at opening, because its lengths must be known. Tokens of a
// shard before its first end-of-text token are a document, too: the end of one that began elsewhere.
#pragma once
#include "data/chat.h"
#include "data/docs_formats.h"
#include "data/json.h"
#include "data/sampler.h"
#include "plan/base/disk.h"

enum { CORPUS_NAME = 32 };

// NAME=WEIGHT:PATH stands for a corpus of its own; weights are shares of the tokens of training, whatever their sum.
// All paths have one, or none has. Paths of one name belong together and stand next to each other.
typedef struct DocsCorpus {
    char name[CORPUS_NAME];
    double share;        // of the sum of all weights; while the corpus is opened: its weight
    int64_t first, end;  // its documents
} DocsCorpus;

// How text is read. A member that is NULL stands for its default.
typedef struct DocsReading {
    const char* separator;  // as docs_open's
    const char* text_key;   // the member of a line of JSONL that is its document
    int vocab;              // ids of the model, for shards that no text tokenizer describes; 0: no limit
    // Is called now and then while text is encoded, with the bytes so far, of a total that is not 0.
    void (*tell)(int64_t done, int64_t total);
    int64_t total;
    const ChatTemplate* chat;  // of messages; NULL: what the vocabulary has, or, with no_chat, none, and that says why
    const char* no_chat;
} DocsReading;
#define DOCS_TEXT_KEY "text"

// tokenizer: for text; also gives the end-of-text token by which shards are cut (the byte tokenizer: that of the
// vocabulary they were made with, 50256 of GPT-2 or 128000 of Llama 3, where the model has this id). 0, or -1 with a
// message.
int docs_open_as(Docs** out, const char* const* paths, int n_paths, const Tokenizer* tokenizer, DocsReading reading,
                 Err err);

// Text is encoded once: its tokens are kept as a shard, tokens-KEY.bin, with an index beside it, tokens-KEY.idx. KEY is
// a hash of the text, of how it is read, and of the tokenizer.
typedef struct DocsCache {
    DocsReading reading;  // of text; its total is filled in
    const char* dir;      // folder that keeps it; NULL: the user's cache, for 1 MiB or more
    // filled in:
    char path[DISK_PATH];  // path of the shard that was read or written; empty: there is none
    int was_there;
} DocsCache;

// Works as docs_open_as. If a shard cannot be kept, words (ERR_BYTES, else empty) says why; tokens stay in memory.
int docs_open_cached(Docs** out, const char* const* paths, int n_paths, const Tokenizer* tokenizer, DocsCache* cache,
                     char* words, Err err);
// Opens a shard and its index, written for this key. 0, or -1 with a message: not there, damaged, another key's.
int docs_load(Docs** out, const char* shard, const char* index, uint64_t key, const Tokenizer* tokenizer, Err err);

// ---- inside of such a corpus: what the readers of the formats fill in

// A part of a document that is a tree, such as a prompt and its answers. Segments stand depth first. One that has
// children ends before its last token: each child begins with that, so that its next token is learnt for each.
typedef struct DocsSegment {
    int64_t place;      // of its first token in DocsMore.encoded
    int first, length;  // its tokens in the document
    int parent;         // the index of a segment before it; -1: the first one
    int position;       // of its first token on the path that leads to it
    int rank;           // of an answer: lower ones are preferred; -1: none
    float reward;       // of an answer; NaN: not said
} DocsSegment;

// The terms of a label where labels do not count alike (kernels/token_loss.h); NaN: the data do not say.
typedef struct LabelTerms {
    float weight, old, reference, advantage;
} LabelTerms;

// The terms that a loss needs of every label; with `pairs` it needs answers of two ranks of every document.
typedef struct LabelNeeds {
    const char* loss;
    int old, reference, advantage, pairs;
} LabelNeeds;

// The hash of a document that is being indexed: of every byte of its text, or every token of a shard.
typedef struct ContentHash {
    uint64_t lanes[4];
    unsigned char held[32];  // the bytes after the last whole block
    uint64_t bytes;          // so far
} ContentHash;

// What was found at opening. A cache keeps it as it is.
typedef struct DocsFacts {
    uint64_t content;     // hash of all documents that were added
    int64_t files;        // used
    int64_t runs;         // directories left out
    int64_t plain_jsonl;  // files *.jsonl without documents, read as plain text
    int64_t replaced;     // halves of surrogate pairs without the other one, read as U+FFFD
    int64_t not_utf8;     // texts with other bytes than UTF-8, which stay as they are
} DocsFacts;

// A corpus may have 10^8 documents, and tens of thousands of small files: few are kept open.
typedef struct DocsMore {
    DocsReading reading;  // without a text_key that is NULL
    int64_t text_bytes;   // encoded so far
    int encodes;          // the tokenizer is no byte tokenizer: text is encoded at opening
    DocsFacts facts;
    ContentHash hashing;  // of the next one
    // Tokens of text with a BPE vocabulary and of instructions, encoded_bytes (2 or 4) each, from their place on.
    void* encoded;
    int encoded_bytes;
    int64_t n_encoded, encoded_capacity;
    // What instructions say of these tokens, by the same places: a bit for each that is learnt, and terms. Nothing is
    // said of those beyond n_learnt bytes and n_terms.
    unsigned char* learnt;
    int64_t n_learnt, learnt_capacity;
    LabelTerms* terms;
    int64_t n_terms, terms_capacity;
    DocsSegment* segments;  // of all documents that are trees, ascending by place
    int64_t n_segments, segments_capacity;
    DocsCorpus corpora[MOST_CORPORA];
    int n_corpora;  // 0: no weights were given
    int unpacked;   // descriptor of a file without a name, for text that its own file holds in another form; -1: none
    int64_t unpacked_bytes;
    int keying;  // nothing is indexed: content becomes the hash of all files and of how they are read
    int64_t keyed_bytes;
    ChatTemplate chat;    // of messages
    const char* no_chat;  // why messages cannot be read; NULL: they can
    int64_t chats;        // lists of messages that were read
    // Weight of the labels first .. first + n of a document; NULL: all count alike.
    double (*weigh)(const Docs* docs, int64_t doc, int64_t first, int n);
    const char* judges;  // name of the first member by which a line says how good its answers are; NULL: none does
} DocsMore;

static inline const DocsCorpus* docs_corpus(const Docs* docs, int corpus) { return &docs->more->corpora[corpus]; }
// Finds the segments of a document and returns their number, at least 2; 0: it is no tree.
int docs_segments(const Docs* docs, int64_t doc, const DocsSegment** list);
static inline int docs_has_trees(const Docs* docs) { return docs->more->n_segments > 0; }
double docs_squares(const Docs* docs, int64_t doc);  // twice the pairs of a token and one that it sees; 0: no tree
// terms (n) = those of tokens first .. first + n of a document, as labels.
void docs_terms(const Docs* docs, int64_t doc, int64_t first, int n, LabelTerms* terms);
int docs_lack_references(const Docs* docs);  // 1: no label has one
// Gives every label its reference: all (docs_tokens) is -log p of each token. 0, or -1 with a message.
int docs_set_references(Docs* docs, const float* all, Err err);
// DocsMore.weigh as the sum over the learnt ones of these, and as the number of pairs of answers with one preferred.
double docs_weight(const Docs* docs, int64_t doc, int64_t first, int n);
double docs_pairs(const Docs* docs, int64_t doc, int64_t first, int n);
int docs_rewards(const Docs* docs, int64_t doc, double* sum);  // number of rewards of its answers; *sum += their sum
int docs_check_labels(const Docs* docs, const LabelNeeds* needs, Err err);  // 0, or -1 with a message
// Sums over the documents that are trees.
typedef struct TreeCounts {
    int64_t trees, segments, tokens, path_tokens;  // path_tokens: of the paths written out
} TreeCounts;
void docs_count_tree(const Docs* docs, int64_t doc, TreeCounts* counts);  // adds it, if it is one
// 0, or -1 with a message: a path has more tokens than context, or than `most`, which a group of ranks holds.
int docs_check_trees(const Docs* docs, int context, int64_t most, Err err);
typedef struct DocsSplit {
    int64_t trees, parts, again;  // trees that were split; their parts; tokens that are computed again
} DocsSplit;
// Trees of more than `most` tokens, which a step takes, become several documents (docs_split.c). Each label is in
// one. Ids and fingerprint change, content does not. 0, or -1 without memory: then docs can only be closed.
int docs_split_trees(Docs* docs, int64_t most, DocsSplit* told, Err err);
// positions (n) = places of tokens first .. first + n of a tree on their paths; for other documents they stay.
void docs_tree_positions(const Docs* docs, int64_t doc, int64_t first, int n, int* positions);
// Returns a hash of every byte of every document, in their order, wherever they lie. It tells a run that resumes on
// other documents so, and ranks that see different ones.
static inline uint64_t docs_content(const Docs* docs) { return docs->more->facts.content; }
// Returns a hash of the whole corpus's shape: every length and hash of a document.
uint64_t docs_fingerprint(const Docs* docs);

enum { DOCS_HEAD_TOKENS = 1024 };  // tokens of a document that its hash covers

// docs_unpacked returns the descriptor, for appending, of the file without a name, in TMPDIR or /tmp, of all that is
// unpacked; -1 with a message. docs_use_unpacked makes `file` the `bytes` bytes that were appended last.
int docs_unpacked(DocsMore* more, Err err);
void docs_use_unpacked(DocsMore* more, File* file, int64_t bytes);
// docs_key hashes all text that these paths name, and how it is read. *bytes: how much that is; *skipped, which the
// caller frees: Docs.skipped. 0, or -1 as docs_open.
int docs_key(uint64_t* key, int64_t* bytes, Paths* skipped, const char* const* paths, int n_paths,
             const Tokenizer* tokenizer, DocsReading reading, Err err);

// ---- docs_kinds.c

// docs_check_kind tells by its name, without .gz, and its first bytes what a file is. 0: text in UTF-8, which UTF-16
// becomes; 1: something else, with a message that says what to try; or -1.
int docs_check_kind(Docs* docs, DocsFile* file, const char* name, Err err);

// ---- docs_encoded.c

// Adds bytes of the next document to the hash of all content: piece by piece, in order, before docs_finish_content.
void docs_hash_content(Docs* docs, const void* bytes, size_t n);
uint64_t docs_finish_content(Docs* docs);  // ends a document; returns the hash of all so far
// Calls docs_add and docs_finish_content.
int docs_add_hashed(Docs* docs, int64_t length, int64_t place, const void* head, size_t n, Err err);
// Text is encoded at opening: its tokens stand in DocsMore.encoded, a document's from its place on. These append
// tokens; docs_add_encoded adds a document of all that were appended from `first` on.
int docs_append_tokens(Docs* docs, const int* tokens, size_t n, Err err);
int docs_append_text(Docs* docs, const char* text, size_t n, Err err);
// docs_utf8_open returns how many bytes a character still lacks after n more of text, `open` before; -1: no UTF-8.
int docs_utf8_open(int open, const char* text, size_t n);
int docs_add_encoded(Docs* docs, int64_t first, Err err);
int docs_drop_token(DocsMore* more);  // removes the last token; returns it
// Repeats tokens that stand there already, with their terms, and as learnt ones if they are and this one learns.
int docs_append_again(DocsMore* more, int64_t from, int64_t n, int learns, Err err);
// Tokens from .. end, the last of which stands there already or will, are learnt.
int docs_learn(DocsMore* more, int64_t from, int64_t end, Err err);
LabelTerms* docs_terms_to(DocsMore* more, int64_t n, Err err);  // terms of n tokens, to be said; NULL without memory
int64_t docs_place(const Docs* docs, int64_t doc);              // of an instruction's first token; -1: it is none
extern const DocsFormat docs_encoded;
// See DocsFormats.
int docs_add_text(Docs* docs, const DocsFile* file, int64_t begin, int64_t end, const char* text, Err err);

// ---- docs_jsonl.c, docs_shard.c, docs_chat.c: index the documents of an open file

extern const DocsFormat docs_shard16, docs_shard32;
int docs_index_shard(Docs* docs, DocsFile* file, Err err);
// Returns a corpus that was encoded in memory as such a shard; the caller frees. NULL with a message.
char* docs_shard_of(const Docs* docs, size_t* bytes, Err err);
int docs_index_jsonl(Docs* docs, DocsFile* file, int named, Err err);  // 1: not named, its first line is no document
// docs_is_instruction returns whether a line of JSONL is an instruction; docs_add_instruction adds its document.
extern const DocsFormat docs_instructions;
int docs_is_instruction(const JsonValue* root);
int docs_add_instruction(Docs* docs, const JsonValue* root, Err err);

// ---- unpack.c: through the system's zlib and libzstd, which are opened when a file needs them

// Returns ".gz" or ".zst" at the end of a name; "" if it ends otherwise.
const char* unpack_suffix(const char* path);
// Appends the file unpacked, by its suffix. Returns the number of bytes, or -1 with a message: a library is missing,
// the file is damaged or cut short, a disk is full.
int64_t unpack(int fd, const char* path, Err err);
