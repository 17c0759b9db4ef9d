// labels.h - labels that do not count alike: weights, preferences, policy gradients; and what the model thinks of them.
//
// What each label counts comes from the data (data/docs_files.h) and lies beside a row's tokens. Behind the classifier
// its loss becomes that of kernels/token_loss.h, and the gradient is multiplied by the slope. A step's loss is the sum
// of these over the sum of weights, whoever computed what. Evaluations take the plain loss.
//
// Preferences (--loss dpo; Rafailov et al. 2023, arXiv 2305.18290, equation 7), of each pair of answers to a prompt of
// which one has the lower rank:
//
//   loss = -log sigmoid(beta m),  m = sum of (log p - reference) of its labels - the same of the other's
//
// They need all labels of both before the gradient of any: a forward pass goes before, ranks add up what they found,
// and the slopes by -log p, beta sigmoid(-beta m) and its opposite, become the weights of the step's own passes. A
// step's loss is the mean over its pairs.
#pragma once
#include "data/sampler_join.h"
#include "kernels/token_loss.h"
#include "run/run.h"

enum { LABEL_LISTS = 4 };  // weight, old, reference, advantage: of TokenLoss, in its order

typedef struct Labels {
    TokenLoss loss;      // lists (max_tokens) on the device, of the batch at work
    const int* targets;  // its targets there
    const int* places;   // (max_tokens) on the host: where its tokens stand in its pieces, one behind another
    int prefers;         // --loss dpo
    double beta;
    int keeps;     // at work: -log p of labels goes to `kept`, and nothing else happens
    int may_keep;  // some pass will
    int room;      // most tokens of a batch
    float* kept;   // (2, most tokens of a batch) of its pieces' tokens, one behind another; room for those of a row
} Labels;

size_t label_ints(const Run* run, int max_tokens);    // of a Batch's indices; 0 where labels count alike
size_t label_floats(const Run* run, int max_tokens);  // on the host: Labels.kept
void labels_open(Run* run);  // when documents are open. Dies where they lack what the loss needs
// Terms of `length` tokens of a stretch (sampler.h) from `first` on, which were read last, and where they stand among
// the tokens of all pieces.
void labels_read(Batch* b, const Sampler* sampler, const Piece* stretch, int first, int length, int stands_at);
void labels_upload(Run* run);
void labels_fill_row(Run* run, Row* row);
// A forward pass over the batch, of which ranks tell each other -log p of every label: in `kept`.
void labels_keep(Run* run, const Sampler* sampler);
void labels_prefer(Run* run);  // a mechanism: with --loss dpo that, and what follows for the step
void run_score(Run* run);      // --score
