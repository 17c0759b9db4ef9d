// sampler.h - which documents a step trains on: a pure function of (corpus, seed, position).
//
// Documents are cut into pieces of at most `context` tokens; a tree is one piece. A document is held out if its hash is
// below val_fraction. Training visits its pieces in a permutation for each (seed, epoch), computed and never stored.
#pragma once
#include "data/docs.h"

typedef struct Piece {
    int64_t doc;
    int64_t first;   // its first token in the document
    int length;      // 1 .. context, of a tree as long as that is
    int n_targets;   // tokens with a target: length, or length - 1 where the document ends
    int n_labels;    // learnt ones of these targets
    double weight;   // sum over these labels
    double squares;  // length^2; of a tree twice the pairs of a token and one that it sees: the cost of attention
    int n_parts, part, parent;  // a tree's parts, the first, a part's parent (sampler_join.h, sampler_cut.h); 0: none
    int rest;                   // number of parts of the same cut tree after this one
} Piece;

typedef enum Split { SPLIT_TRAIN, SPLIT_VAL } Split;
enum { MOST_CORPORA = 8 };

typedef struct CorpusPosition {
    int64_t epoch, index, tokens;  // as below, and tokens taken in all
} CorpusPosition;

typedef struct SamplerPosition {
    int64_t epoch, index;                  // complete passes over the training pieces; pieces taken in this one
    CorpusPosition corpora[MOST_CORPORA];  // used instead where corpora have weights
} SamplerPosition;

typedef struct SideDocument {
    int64_t doc, first_piece;  // its id; pieces of the documents before
} SideDocument;
typedef struct Side {
    SideDocument* list;  // (n + 1)
    int64_t n, n_tokens;
} Side;

typedef struct Sampler {
    const Docs* docs;
    int context;
    uint64_t seed;
    double val_fraction;
    int64_t cut, cut_length;  // 0, or: documents of this length and hash, one and its copies, train up to this token
    uint64_t cut_hash;        // and validate from it on
    Side sides[2];            // by Split
} Sampler;

// Holds out about `val_fraction` of the documents (0: none; 1: all of them, for a corpus that is only validated on). A
// corpus too small for that (fewer than two documents on either side) gives the last val_fraction of the tokens of its
// longest document instead. docs must outlive the sampler. 0, or -1 with a message (no training tokens).
int sampler_open(Sampler** out, const Docs* docs, int context, double val_fraction, uint64_t seed, Err err);
void sampler_close(Sampler* s);  // NULL is fine

int64_t sampler_pieces(const Sampler* s, Split split);
// The tokens [*begin, *end) of a document that lie on a side; returns their number, which may be 0.
int64_t sampler_extent(const Sampler* s, Split split, int64_t doc, int64_t* begin, int64_t* end);

// Returns piece number `index` of the n pieces of a side from `first` on, in the order that `key` chooses.
Piece sampler_piece(const Sampler* s, Split split, int64_t first, int64_t n, int64_t index, uint64_t key);
// Returns validation piece i < sampler_pieces(VAL), in a mixed order without the seed: the first are a fair sample.
Piece sampler_val_piece(const Sampler* s, int64_t i);
Piece sampler_train_piece(const Sampler* s, SamplerPosition position);
Piece sampler_next(const Sampler* s, SamplerPosition* position);  // takes it; none that has targets, but no label

// Takes the next training pieces while their sum stays within batch_tokens (>= context), across the end of an epoch if
// need be, and moves the position on. At most max_pieces (batch_tokens suffice). Returns their number, at least 1.
// Pieces that have targets but no learnt one are left out.
int sampler_draw(const Sampler* s, SamplerPosition* position, Piece* pieces, int max_pieces, int batch_tokens);

// sampler_draw_step draws a step that has a label: last tokens of documents alone have none.
int sampler_draw_step(const Sampler* s, SamplerPosition* position, Piece* pieces, int max_pieces, int batch_tokens);

// sampler_read fills tokens and targets (length each) of a stretch; a target is -1 where there is none, everywhere if
// n_labels is 0. 0, or -1 with a message.
int sampler_read(const Sampler* s, const Piece* piece, int* tokens, int* targets, Err err);
