// sampler.h - which documents a step trains on: a pure function of (corpus, seed, position).
//
// Documents are cut into pieces of at most `context` tokens. Held-out documents are chosen by the hash of their
// content. The training pieces are visited in an order that is a permutation of them for each (seed, epoch), computed
// and never stored (a Feistel network walked until it lands inside the range: Black & Rogaway 2002). A position is two
// numbers; with several corpora three for each of them.
//
// Corpora with weights (docs.h) are drawn from so that each has its share of the tokens: the next piece is of the one
// that is furthest behind, w_c T - t_c, where t_c of the T tokens so far are from it. Each goes through its own epochs.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "data/docs.h"

typedef struct Piece {
    int64_t doc;
    int64_t first;  // its first token in the document
    int length;     // 1 .. context
    int n_targets;  // tokens with a target: length, or length - 1 where the document ends
    int n_labels;   // of these targets, those to be learnt: all, but of instructions only completions
} Piece;

// Of one of several corpora: passes that are complete, pieces taken in this one, tokens taken in all.
typedef struct CorpusPosition {
    int64_t epoch, index, tokens;
} CorpusPosition;

typedef struct SamplerPosition {
    int64_t epoch;                         // passes over the training pieces that are complete
    int64_t index;                         // pieces taken in this epoch
    CorpusPosition corpora[MOST_CORPORA];  // instead, where corpora have weights
} SamplerPosition;

typedef struct Sampler Sampler;

typedef enum Split { SPLIT_TRAIN, SPLIT_VAL } Split;

// Holds out about `val_fraction` of the documents (0: none; 1: all of them, for a corpus that is only validated on). A
// corpus too small for that (fewer than two documents on either side) gives the last val_fraction of the tokens of its
// longest document instead; sampler_describe says which. docs must outlive the sampler. 0, or -1 with a message (no
// training tokens).
int sampler_open(Sampler** out, const Docs* docs, int context, double val_fraction, uint64_t seed, char* err,
                 size_t errlen);
void sampler_close(Sampler* sampler);  // NULL is fine

int64_t sampler_pieces(const Sampler* sampler, Split split);
int64_t sampler_tokens(const Sampler* sampler, Split split);
int64_t sampler_documents(const Sampler* sampler, Split split);
// Of a corpus with a weight: its training tokens, and the name and share that it was given.
int64_t sampler_corpus_tokens(const Sampler* sampler, int corpus);
const char* sampler_describe(const Sampler* sampler);  // one line: how validation text was chosen

// seen[s] = 1 for every length s of a piece; seen (context + 1).
void sampler_mark_lengths(const Sampler* sampler, Split split, char* seen);

// The validation pieces, in a fixed mixed order that does not depend on the seed, so that the first of them are a fair
// sample: i in [0, sampler_pieces(VAL)).
Piece sampler_val_piece(const Sampler* sampler, int64_t i);
// The training piece at a position; index in [0, sampler_pieces(TRAIN)).
Piece sampler_train_piece(const Sampler* sampler, SamplerPosition position);

// Takes the next training pieces while their sum stays within batch_tokens (>= context), across the end of an epoch if
// need be, and moves the position on. Writes at most max_pieces; batch_tokens of them always suffice.
// Returns their number, at least 1.
int sampler_draw(const Sampler* sampler, SamplerPosition* position, Piece* pieces, int max_pieces, int batch_tokens);

// Tokens and labels of a piece: tokens (length), targets (length), -1 where there is none. 0, or -1 with a message.
int sampler_read(const Sampler* sampler, const Piece* piece, int* tokens, int* targets, char* err, size_t errlen);
