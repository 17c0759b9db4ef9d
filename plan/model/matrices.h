// matrices.h - the matrices of a model that an optimizer takes whole, and the ranks that they are dealt to.
//
// Muon makes a step of a matrix orthogonal, which needs all of it in one place. Pieces of a bucket cut matrices where
// bytes are equal, so matrices come together for that: each on one rank, dealt by what it costs, since sizes
// differ. Queries, keys and values are matrices of their own, as are gates and ups.
#pragma once
#include "plan/model/holding.h"

typedef struct Matrix {
    int tensor;           // its number in the whole model (shape_tensor)
    int row, rows, cols;  // rows of that tensor from `row` on
    int rank;             // that it is dealt to
    size_t at;            // elements of that rank's array before it
} Matrix;

// Lists the matrices of the layers of a whole model, and returns how many; list NULL: counts them.
int shape_matrices(Matrix* list, const Shape* whole);
// Deals n matrices among `ranks`, the dearest first, each to the rank that has least to do: all count as equally fast,
// since memory is planned before paces are known. Returns the most elements that any rank gets. It ends the program
// without memory.
size_t deal_matrices(Matrix* list, int n, int ranks);
// Returns the operations of a Newton-Schulz step of a matrix.
double matrix_flops(const Matrix* m);
// Makes holdings of what is dealt. In the arena; 0, or -1 without memory.
int holdings_of_matrices(Holdings* holdings, const Shape* whole, const Matrix* list, int n, Arena* arena, Err err);
// Leaves of `holdings` only tensors that have a matrix.
void holdings_keep_matrices(Holdings* holdings, const Matrix* list, int n);
