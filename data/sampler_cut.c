// sampler_cut.c - see sampler_cut.h.
#include "data/sampler_cut.h"

#include <math.h>
#include <string.h>

// A tree of the step that is cut.
typedef struct CutTree {
    const Piece* tree;
    const DocsSegment* list;
    TreeCut cut;
} CutTree;

// The pieces so far, and the parts of trees, which come after all pieces.
typedef struct Pieces {
    Piece *pieces, *parts;
    int n, n_parts;
} Pieces;

static int is_cut(const Sampler* s, const Piece* p, int64_t most) {
    return p->length > most && !p->n_parts && docs_squares(s->docs, p->doc) > 0;
}

// Returns a segment of a tree; it has no labels where another part learns them.
static Piece segment_of(const Docs* docs, const Piece* tree, const DocsSegment* s, int learns) {
    int targets = s->length - (s->first + s->length == tree->length);
    int labels = learns ? docs_learnt(docs, tree->doc, s->first + 1, targets, NULL) : 0;
    double squares = (double)s->length * (s->length + 2.0 * s->position);
    return (Piece){.doc = tree->doc, s->first, s->length, targets, labels, .squares = squares};
}

// add_part adds part p; place[i] is where segment i stands in it, learnt[i] whether a part before it learns that.
static void add_part(Pieces* x, const Docs* docs, const CutTree* t, int p, int* place, int* learnt) {
    Piece part = {.doc = t->tree->doc, .part = x->n_parts, .rest = t->cut.n - 1 - p};
    for (int k = t->cut.first[p]; k < t->cut.first[p + 1]; k++) {
        int i = t->cut.segments[k];
        Piece segment = segment_of(docs, t->tree, &t->list[i], !learnt[i]);
        segment.parent = t->list[i].parent < 0 ? -1 : place[t->list[i].parent];
        place[i] = part.n_parts++, learnt[i] = 1;
        part.length += segment.length, part.n_targets += segment.n_targets, part.n_labels += segment.n_labels;
        part.squares += segment.squares;
        x->parts[x->n_parts++] = segment;
    }
    part.weight = p == 0 ? t->tree->weight : 0;  // pairs of answers are of no part alone
    x->pieces[x->n++] = part;
}

static void add_joined(Pieces* x, const Piece* tree, const Piece* parts) {
    memcpy(x->parts + x->n_parts, parts, sizeof(Piece) * (size_t)tree->n_parts);
    x->pieces[x->n] = *tree, x->pieces[x->n++].part = x->n_parts;
    x->n_parts += tree->n_parts;
}

int sampler_cut(const Sampler* s, Piece* pieces, int n, int64_t most, int room, Arena* arena, Err err) {
    int cuts = 0, segments = 0;
    int64_t all = pieces_with_parts(pieces, n);
    for (int i = 0; i < n; i++) cuts += is_cut(s, &pieces[i], most);
    if (cuts == 0) return n;
    ArenaMark mark = arena_mark(arena);
    CutTree *trees = TAKE(arena, CutTree, cuts), *t = trees;
    if (arena_check(arena, err)) return -1;
    for (int i = 0; i < n; i++) {
        if (!is_cut(s, &pieces[i], most)) continue;
        t->tree = &pieces[i];
        int of_tree = docs_segments(s->docs, pieces[i].doc, &t->list);
        if (tree_cut(&t->cut, t->list, of_tree, most, arena, err)) return -1;
        all += t->cut.n - 1 + t->cut.first[t->cut.n], segments = MAX(segments, of_tree);
        t++;
    }
    if (all > room) return fail(err, "trees of the step become %lld parts, expected at most %d", (long long)all, room);
    Pieces x = {.pieces = TAKE(arena, Piece, all), .parts = TAKE(arena, Piece, all)};
    int *place = TAKE(arena, int, segments), *learnt = TAKE(arena, int, segments);
    if (arena_check(arena, err)) return -1;
    for (int i = 0; i < n; i++)
        if (!pieces[i].n_parts && !is_cut(s, &pieces[i], most)) x.pieces[x.n++] = pieces[i];
    for (t = trees; t < trees + cuts; t++) {
        memset(learnt, 0, sizeof(int) * (size_t)segments);
        for (int p = 0; p < t->cut.n; p++) add_part(&x, s->docs, t, p, place, learnt);
    }
    for (int i = 0; i < n; i++)
        if (pieces[i].n_parts) add_joined(&x, &pieces[i], pieces + pieces[i].part);
    for (int i = 0; i < x.n; i++) x.pieces[i].part += x.pieces[i].n_parts ? x.n : 0;
    memcpy(pieces, x.pieces, sizeof(Piece) * (size_t)x.n);
    memcpy(pieces + x.n, x.parts, sizeof(Piece) * (size_t)x.n_parts);
    arena_reset(arena, mark);
    return x.n;
}

double docs_cut_factor(const Docs* docs, int64_t most, DocsSplit* told, Err err) {
    const DocsSegment* list;
    Arena arena = {0};
    double factor = 1;
    for (int64_t doc = 0; doc < docs->n && docs_has_trees(docs); doc++) {
        int64_t tokens = docs_length(docs, doc);
        TreeCut cut;
        int n = tokens > most ? docs_segments(docs, doc, &list) : 0;
        if (n == 0) continue;
        arena_reset(&arena, (ArenaMark){0});
        if (tree_cut(&cut, list, n, most, &arena, err)) factor = -1;
        if (factor < 0) break;
        factor = fmax(factor, (double)(cut.tokens + cut.n) / (double)tokens);
        told->trees++, told->parts += cut.n, told->again += cut.tokens - tokens;
    }
    arena_free(&arena);
    return factor;
}
