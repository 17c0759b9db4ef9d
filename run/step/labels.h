// labels.h - labels that do not count alike: weights, preferences, policy gradients; how likely the model finds each.
//
// The terms of each label come from the data (data/docs_files.h) and lie beside a row's tokens. After the classifier
// its loss becomes that of kernels/token_loss.h, and the gradient is multiplied by the slope. A step's loss is the sum
// of these over the sum of weights, whichever rank computed them. Evaluations take the plain loss.
//
// Preferences (--loss dpo; Rafailov et al. 2023, arXiv 2305.18290, equation 7) take each pair of answers to a prompt
// that have unlike ranks, and prefer the lower rank:
//
//   loss = -log sigmoid(beta m),  m = sum of (log p - reference) of its labels - the same of the other's
//
// They need all labels of both before the gradient of any. So a forward pass goes before, and ranks add up its losses.
// The slopes by -log p, beta sigmoid(-beta m) and its opposite, become the weights of the step's own passes. A step's
// loss is the mean over its pairs.
#pragma once
#include "data/sampler_join.h"
#include "kernels/token_loss.h"
#include "run/run.h"

enum { LABEL_LISTS = 4 };  // weight, old, reference, advantage: of TokenLoss, in its order

typedef struct Labels {
    TokenLoss loss;      // lists (max_tokens) on the device, of the batch at work
    const int* targets;  // (max_tokens) on the device, of that batch
    const int* places;   // (max_tokens) on the host: index of each token among those of all pieces
    int prefers;         // --loss dpo
    double beta;
    int keeps;             // 1: the pass at work puts -log p of labels into `kept`, and does nothing else
    int may_keep;          // 1: some pass will
    int lacks_references;  // 1: the data have none, so the starting model finds them
    int room;              // most tokens of a batch
    float* kept;  // (2, room) the tokens of all pieces, one after another; then those of a row, on their way there
} Labels;

size_t label_ints(const Run* run, int max_tokens);    // of a Batch's indices; 0 if labels count alike
size_t label_floats(const Run* run, int max_tokens);  // on the host: Labels.kept
void labels_open(Run* run);  // once documents are open; ends the program if they lack terms of the loss
// Reads the terms of `length` tokens of a stretch (sampler.h) from `first` on, which were read last. stands_at: the
// index of the first among the tokens of all pieces.
void labels_read(Batch* b, const Sampler* sampler, const Piece* stretch, int first, int length, int stands_at);
void labels_upload(Run* run);
void labels_fill_row(Run* run, Row* row);
// Runs a forward pass over the batch, and fills `kept` with -log p of every label on all ranks.
void labels_keep(Run* run, const Sampler* sampler);
void labels_prefer(Run* run);  // a mechanism of --loss dpo: labels_keep, and the weights that follow
void run_score(Run* run);      // --score
// Fills all (docs_tokens) with -log p of every label of run->data.val, at its place in the corpus, on all ranks.
// Returns their number; -1: a signal came before.
int64_t labels_score(Run* run, float* all);
// Finds the references that the data lack, or reads them from a run that goes on (run/rl/references.c).
void references_find(Run* run);
