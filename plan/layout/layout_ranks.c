// layout_ranks.c - see layout_ranks.h.
#include "plan/layout/layout_ranks.h"

// Returns the part of a layer's exchanges that computing does not hide, in exchanges. A gather of tokens before a
// matmul goes in two parts, the second under the matmul of the own half. Backward sums hide under the gradients of
// weights (plan/search/layout_play.h). Times are those of a row of TOKENS tokens; `again`: extra forward passes.
static double shown_exchanges(const Cost* cost, const Shape* whole, double again) {
    enum { TOKENS = 4096 };
    int T = cost->tensor_ranks, m = cost->tensor_nodes, low = T / 2, high = T - low, node = CEIL_DIV(T, m);
    double linear[2][2], half = (double)low / T, bytes = TOKENS * cost->tensor_bytes, one = bytes / T, shown = 0;
    double head = (double)whole->V * whole->C / shape_matmul_weights(whole);
    double all = collective_ms(cost, T, m, node, bytes);
    double pass = TOKENS * cost->per_token * (1 - head) / 3;  // of all layers, as a published machine's bytes are
    split_linears(linear, whole, cost->n_groups > 0 ? pass : pass / whole->L);
    if (all <= 0) return (2 + again) * 4;
    double first = high > 1 ? message_ms(cost, MAX(high, 2), m > 1, node, (high - 1) * one) : 0;
    double second = message_ms(cost, MAX(high + (low == 1), 2), m > 1, node, high * one);
    for (int i = 0; i < 2; i++) {
        double forward = first + MAX(second - half * linear[i][0], 0) + all;
        double backward = first + MAX(second - half * linear[i][1], 0) + MAX(all - linear[i][0], 0);
        shown += (1 + again) * forward + backward;
    }
    return shown / all;
}

// A group takes as long as its rank with most of everything, and its exchanges.
static void divide_among_group(Cost* cost, const Shape* whole, const Layout* layout, const TpSplit* split,
                               int elem_bytes, int nodes, int overlap) {
    Shape most = split_widest(whole, split);
    int ranks = split->ranks, bytes_known = cost->n_groups > 0;
    double ends = (double)(most.vocab_rows - whole->V) * whole->C, share = (double)most.heads / whole->NH;
    // A block has two exchanges for each of its four linears. The ends of the model exchange the embedding's sum, the
    // last norm, both gradients, and the classifier's three numbers of each rank a token.
    double at_ends = 4 + 3.0 * sizeof(float) * ranks / ((double)whole->C * elem_bytes);
    cost->tensor_ranks = ranks;
    cost->tensor_exchanges = (2 + layout_again(layout, 0)) * 4 + at_ends / whole->L;
    if (bytes_known)
        cost->tensor_bytes = cost->token_bytes * cost->channels / (4.0 * (cost->channels + cost->kv_channels));
    else cost->tensor_bytes = (double)cost->elem_bytes * cost->channels;
    cost->per_token *= (shape_matmul_weights(&most) + ends) / shape_padded_weights(whole);
    cost->quadratic *= share;
    cost->token_bytes *= share;
    cost->tensor_nodes = nodes;
    if (overlap) cost->tensor_exchanges = shown_exchanges(cost, whole, layout_again(layout, 0)) + at_ends / whole->L;
    if (bytes_known) return;
    cost->channels = (int)(cost->channels * share + 0.5);
    cost->kv_channels = (int)(cost->kv_channels * share + 0.5);
}

// A machine's times are those of passes that keep all. Blocks computed again repeat their forward pass, a third; of
// matmuls with frozen weights half.
static void compute_again(Cost* cost, const Shape* whole, const Layout* layout) {
    double head = (double)whole->Vp * whole->C / shape_padded_weights(whole);
    for (int s = 0; s < layout->stages; s++)
        cost->again += layout_again(layout, s) * layout->stage[s].layers / whole->L;
    cost->quadratic *= 1 + cost->again / 3;
    cost->per_token *= 1 + cost->again * (1 - head) / shape_passes(whole);
}

void layout_divide_cost(Cost* cost, const Shape* whole, const Layout* layout, const TpSplit* split, int elem_bytes,
                        int nodes, int overlap) {
    int P = layout->stages;
    if (cost->n_groups > 0) {  // a published machine, which counts bytes of this model's channels
        cost->channels = whole->NH * whole->HS, cost->kv_channels = whole->NKV * whole->HS;
        cost->elem_bytes = elem_bytes;
    }
    if (split) divide_among_group(cost, whole, layout, split, elem_bytes, nodes, overlap);
    compute_again(cost, whole, layout);
    cost->quadratic /= P, cost->per_token /= P, cost->micro_batch /= P, cost->link_scale /= P;
}

int layout_node_size(int ranks, int tp, int stages, int (*node_of)(const void* context, int rank),
                     const void* context) {
    int of_stage = ranks / stages, size = 0;
    for (int r = 0; r < ranks; r++) {
        int at = r % of_stage / tp;  // its place among the data ranks
        if (at == 0 || node_of(context, r) == node_of(context, r - tp)) continue;
        for (int rest; at > 0; at = rest) rest = size % at, size = at;
    }
    return size ? size : MAX(of_stage / tp, 1);
}
