// docs_split.c - splits trees of more tokens than a step takes into several documents (tree_cut.h). Tokens that several
// have are learnt in the first of them.
#include <stdlib.h>

#include "data/docs_making.h"
#include "data/tree_cut.h"

// Appends a document of `length` tokens that has the hash of `whole`, which it is or is a part of, so that all parts of
// a tree are on one side of the sampler.
static int add_document(Docs* docs, const Document* whole, int64_t length, int64_t place, Err err) {
    int64_t start = docs_tokens(docs);
    if (reserve(&docs->list, &docs->capacity, docs->n, 2, sizeof *docs->list, err)) return -1;
    docs->list[docs->n++] = (Document){start, place, whole->hash};
    docs->list[docs->n].start = start + length;
    return 0;
}

// A tree that is being split: `places` maps its segments into a part, `learnt` marks those that earlier parts learn.
typedef struct Splitting {
    const Document* whole;
    int64_t segments;  // of all trees before it
    int *places, *learnt;
} Splitting;

// Appends the part that consists of these n segments, as a document.
static int add_part(Docs* docs, const Splitting* x, const int* segments, int n, Err err) {
    DocsMore* m = docs->more;
    int64_t place = m->n_encoded;
    for (int k = 0; k < n; k++) {
        int i = segments[k];
        DocsSegment segment = m->segments[x->segments + i];
        int64_t from = segment.place;
        segment.place = m->n_encoded, segment.first = (int)(m->n_encoded - place);
        if (segment.parent >= 0) segment.parent = x->places[segment.parent];
        if (docs_append_again(m, from, segment.length, !x->learnt[i], err)) return -1;
        if (docs_add_segment(m, segment, err)) return -1;
        x->places[i] = k, x->learnt[i] = 1;
    }
    return add_document(docs, x->whole, m->n_encoded - place, place, err);
}

// Refuses trees whose answers have ranks, because answers that are compared must be computed together.
static int check_ranks(int64_t doc, const DocsSegment* segments, int n, int64_t tokens, int64_t most, Err err) {
    for (int i = 0; i < n; i++)
        if (segments[i].rank >= 0)
            return fail(err,
                        "document %lld: a tree of %lld tokens whose answers have ranks, expected at most %lld: such a "
                        "tree is not split; try a larger --batch-tokens",
                        (long long)doc, (long long)tokens, (long long)most);
    return 0;
}

// Appends the parts of a document of all that were `before`, a tree of these n segments.
static int add_parts(Docs* docs, const Docs* before, int64_t doc, const DocsSegment* list, int n, int64_t most,
                     DocsSplit* told, Arena* arena, Err err) {
    TreeCut cut;
    int64_t tokens = docs_length(before, doc);
    arena_reset(arena, (ArenaMark){0});
    Splitting x = {&before->list[doc], list - docs->more->segments, TAKE(arena, int, n), TAKE(arena, int, n)};
    if (check_ranks(doc, list, n, tokens, most, err) || arena_check(arena, err)) return -1;
    memset(x.learnt, 0, sizeof(int) * (size_t)n);
    if (tree_cut(&cut, list, n, most, arena, err)) return -1;
    for (int p = 0; p < cut.n; p++)
        if (add_part(docs, &x, cut.segments + cut.first[p], cut.first[p + 1] - cut.first[p], err)) return -1;
    told->trees++, told->parts += cut.n, told->again += cut.tokens - tokens;
    return 0;
}

// Lists all documents anew; now[doc]: the place of each.
static int split_all(Docs* docs, const Docs* before, int64_t most, int64_t* now, DocsSplit* told, Arena* arena,
                     Err err) {
    for (int64_t doc = 0; doc < before->n; doc++) {
        const DocsSegment* list = NULL;
        const Document* d = &before->list[doc];
        int64_t length = docs_length(before, doc);
        int n = length > most ? docs_segments(before, doc, &list) : 0;
        now[doc] = docs->n;
        if (n ? add_parts(docs, before, doc, list, n, most, told, arena, err)
              : add_document(docs, d, length, d->place, err))
            return -1;
    }
    now[before->n] = docs->n;
    return 0;
}

int docs_split_trees(Docs* docs, int64_t most, DocsSplit* told, Err err) {
    DocsMore* m = docs->more;
    Docs before = *docs;
    Arena arena = {0};
    *told = (DocsSplit){0, 0, 0};
    if (!docs_has_trees(docs)) return 0;
    int64_t* now = malloc((size_t)(docs->n + 1) * sizeof *now);
    if (!now) return fail(err, "no memory to split trees");
    docs->list = NULL, docs->n = docs->capacity = 0;
    int failed = split_all(docs, &before, most, now, told, &arena, err);
    for (int64_t i = 0; i < docs->n_files && !failed; i++) docs->files[i].first_doc = now[docs->files[i].first_doc];
    for (int i = 0; i < m->n_corpora && !failed; i++)
        m->corpora[i].first = now[m->corpora[i].first], m->corpora[i].end = now[m->corpora[i].end];
    arena_free(&arena), free(now), free(before.list);
    return failed ? -1 : 0;
}
