// muon.h - Muon: the step of a layer's matrix is its momentum made orthogonal (Jordan et al. 2024,
// kellerjordan.github.io/posts/muon), with the weight decay and the scale of Moonlight (arXiv 2502.16982), so that
// AdamW's learning rate holds:
//
//   m = beta m + (1 - beta) g,  u = beta m + (1 - beta) g                   on the pieces that ranks own (ZeRO)
//   O = newton_schulz(u)                                                    on whole matrices, dealt among all ranks
//   W -= lr (0.2 sqrt(max(rows, columns)) O + decay W)                      on the pieces again
//
// newton_schulz: X = u / |u|, five times X = a X + (b A + c A^2) X with A = X X^T, in the type of weights. Singular
// values then lie in 0.7 .. 1.2, and their vectors stay. Embeddings, classifier, norms and biases take AdamW's steps.
//
// The state of ranks stays as AdamW has it. The second moment of a matrix has no use, so its memory holds the direction
// u, then O. On several ranks directions travel to where the matrix was dealt and back, whatever the layout is: between
// lists of holdings, as all that moves (run/model/mover.h).
#pragma once
#include "plan/model/matrices.h"
#include "run/model/mover.h"

typedef struct Muon {
    Matrix* list;  // (n) of the whole model
    int n;
    size_t dealt;       // elements of this rank's array of dealt matrices; 0: it has all, where they are
    Mover there, back;  // between owned pieces and dealt matrices
    float* matrices;    // (dealt)
    char* scratch;      // newton_schulz works there
    double* norm2;      // (1) on the device
    Arena arena;        // holds the lists
} Muon;

// Returns the most bytes on the device that any of `ranks` needs, which share the whole model's matrices.
size_t muon_bytes(const Shape* whole, DType dt, int ranks);
// Deals the matrices. memory has muon_bytes, m the optimizer state. Collective; it ends the program without memory.
void muon_open(Muon* x, const Model* m, void* memory);
void muon_close(Muon* x);
// Returns 1 if a tensor takes steps of Muon.
static inline int muon_takes(ParamId id) { return param_is_per_layer(id) && param_is_matrix(id); }
// Makes every u in the memory of the second moments to O. Collective.
void muon_direct(Muon* x, Model* m);
