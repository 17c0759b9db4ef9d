// sampler_join.c - see sampler_join.h.
//
// Beginnings are sorted by their tokens, so that those with most in common are neighbours. A tree is a run of them
// whose neighbours have JOIN_LEAST tokens in common or more: what all have is its root, and the run falls into shorter
// ones where neighbours have no JOIN_LEAST tokens more in common, which are its children: a trie of no short ones.
#include "data/sampler_join.h"

#include <stdlib.h>

// The beginning of a document that others may share.
typedef struct Beginning {
    Piece piece;
    int at;             // among the pieces
    const int* tokens;  // (n)
    int n, shared;      // shared: with the one before it in its tree; 0: it begins one
} Beginning;

// Returns how many first tokens of a document others may share, or 0. No target among them is learnt, so that documents
// with these tokens have the same targets there; and at least one token of the document is left.
static int may_share(const Sampler* s, const Piece* p) {
    int n = 0, most = p->length - 1;
    if (p->length != docs_length(s->docs, p->doc) || docs_squares(s->docs, p->doc) > 0) return 0;
    while (n + JOIN_LEAST <= most && docs_learnt(s->docs, p->doc, n + 1, JOIN_LEAST, NULL) == 0) n += JOIN_LEAST;
    while (n > 0 && n < most && docs_learnt(s->docs, p->doc, n + 1, 1, NULL) == 0) n++;
    return n;
}

static int common(const Beginning* a, const Beginning* b) {
    int n = 0;
    while (n < MIN(a->n, b->n) && a->tokens[n] == b->tokens[n]) n++;
    return n;
}

static int in_order(const void* x, const void* y) {
    const Beginning *a = x, *b = y;
    int n = common(a, b);
    if (n < MIN(a->n, b->n)) return a->tokens[n] < b->tokens[n] ? -1 : 1;
    return a->n != b->n ? (a->n < b->n ? -1 : 1) : a->at - b->at;
}

// Divides the sorted list into runs, each a tree or a document alone. size: most tokens of a run, because
// JOIN_LEAST - 1 of those that a document has in common with the one before it may be too few for a segment.
static void divide(Beginning* list, int n, int64_t most) {
    int64_t size = 0;
    for (int i = 0; i < n; i++) {
        Beginning* x = &list[i];
        int shared = i ? common(x - 1, x) : 0, more = x->piece.length - MAX(JOIN_LEAST, shared - JOIN_LEAST + 1);
        int joins = shared >= JOIN_LEAST && size + more <= most;
        x->shared = joins ? shared : 0;
        size = joins ? size + more : x->piece.length;
    }
}

static int run_end(const Beginning* list, int n, int i) {
    for (i++; i < n && list[i].shared; i++) continue;
    return i;
}

// ---- a tree

typedef struct Joining {
    const Beginning* list;
    Piece *tree, *parts;
} Joining;

// Adds tokens [first, end) of a document; nothing is learnt unless they reach its end. Returns the index of the part.
static int add_part(Joining* g, int doc, int first, int end, int parent) {
    Piece *tree = g->tree, part = g->list[doc].piece;
    int n = end - first, is_end = end == part.length;
    part.first = first, part.length = n, part.parent = parent;
    part.n_targets = n - is_end;
    part.n_labels = is_end ? part.n_labels : 0, part.weight = is_end ? part.weight : 0;
    part.squares = (double)n * (n + 2.0 * first);
    tree->length += n, tree->n_targets += part.n_targets, tree->n_labels += part.n_labels;
    tree->weight += part.weight, tree->squares += part.squares;
    g->parts[tree->n_parts] = part;
    return tree->n_parts++;
}

// Adds documents from .. to, whose first `first` tokens are those of the path to `parent`.
static void grow(Joining* g, int from, int to, int first, int parent) {
    for (int i = from, end; i < to; i = end) {
        int shared = g->list[i].piece.length;
        for (end = i + 1; end < to && g->list[end].shared >= first + JOIN_LEAST; end++)
            shared = MIN(shared, g->list[end].shared);
        int part = add_part(g, i, first, shared, parent);
        if (end - i > 1) grow(g, i, end, shared, part);
    }
}

// Puts the trees after `kept` pieces, and their parts after these. Returns the number of pieces without parts.
static int add_trees(Piece* pieces, int kept, const Beginning* list, int n) {
    int trees = 0, at = kept;
    for (int i = 0, end; i < n; i = end) trees += (end = run_end(list, n, i)) - i > 1;
    int parts = kept + trees;
    for (int i = 0, end; i < n; i = end) {
        if ((end = run_end(list, n, i)) - i == 1) continue;
        Joining g = {list, &pieces[at], &pieces[parts]};
        pieces[at++] = (Piece){.doc = list[i].piece.doc, .part = parts};
        grow(&g, i, end, 0, -1);
        parts += g.tree->n_parts;
    }
    return at;
}

// ---- a step

static int read_beginnings(const Sampler* s, const Piece* pieces, int n, int* tokens, Beginning* list, Err err) {
    int found = 0;
    for (int i = 0; i < n; i++) {
        int shared = may_share(s, &pieces[i]);
        if (shared == 0) continue;
        if (docs_read(s->docs, pieces[i].doc, 0, shared, tokens, err)) return -1;
        list[found++] = (Beginning){pieces[i], i, tokens, shared, 0};
        tokens += shared;
    }
    return found;
}

int sampler_join(const Sampler* s, Piece* pieces, int n, int64_t most, int* tokens, Arena* arena, Err err) {
    Beginning* list = TAKE(arena, Beginning, n);
    if (arena_check(arena, err)) return -1;
    int found = read_beginnings(s, pieces, n, tokens, list, err), kept = 0;
    if (found < 0) return -1;
    qsort(list, (size_t)found, sizeof *list, in_order);
    divide(list, found, most);
    for (int i = 0, end; i < found; i = end) {
        end = run_end(list, found, i);
        for (int k = i; k < end && end - i > 1; k++) pieces[list[k].at].length = 0;
    }
    for (int i = 0; i < n; i++)
        if (pieces[i].length) pieces[kept++] = pieces[i];
    return add_trees(pieces, kept, list, found);
}
