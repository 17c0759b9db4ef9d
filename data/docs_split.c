// docs_split.c - splits trees of more tokens than a step takes into several documents (tree_cut.h). Tokens that several
// have are learnt in the first of them.
#include <stdlib.h>
#include <string.h>

#include "data/docs_making.h"

// ---- all documents anew, from those that were before

// Appends a document of `length` tokens that has the hash of document `doc`, which it is or is a part of, so that all
// parts of a tree are on one side of the sampler.
static int add_document(Docs* docs, const Docs* before, int64_t doc, int64_t length, int64_t place, Err err) {
    int64_t start = docs_tokens(docs);
    if (reserve(&docs->list, &docs->capacity, docs->n, 2, sizeof *docs->list, err)) return -1;
    docs->list[docs->n++] = (Document){start, place, before->list[doc].hash};
    docs->list[docs->n].start = start + length;
    return 0;
}

static int add_segment(Docs* docs, DocsSegment segment, Err err) {
    DocsMore* m = docs->more;
    if (reserve(&m->segments, &m->segments_capacity, m->n_segments, 1, sizeof segment, err)) return -1;
    m->segments[m->n_segments++] = segment;
    return 0;
}

// Appends the learnt spans of tokens first .. end of `before`, which stand `by` further on now.
static int add_spans(Docs* docs, const DocsMore* before, int64_t first, int64_t end, int64_t by, Err err) {
    DocsMore* m = docs->more;
    int64_t k = before->n_spans, n = before->n_spans;
    if (n > 0) k = last_at_most(&before->spans->first, sizeof *before->spans, n, MAX(first, before->spans->first));
    for (; k < n && before->spans[k].first < end; k++) {
        int64_t from = MAX(before->spans[k].first, first), to = MIN(before->spans[k].end, end);
        if (from >= to) continue;
        if (reserve(&m->spans, &m->spans_capacity, m->n_spans, 1, sizeof *m->spans, err)) return -1;
        const DocsSpan* last = m->n_spans ? &m->spans[m->n_spans - 1] : NULL;
        m->spans[m->n_spans++] = (DocsSpan){from + by, to + by, last ? last->before + last->end - last->first : 0};
    }
    return 0;
}

static int add_whole(Docs* docs, const Docs* before, int64_t doc, const DocsSegment* segments, int n, Err err) {
    const Document* d = &before->list[doc];
    int64_t by = docs_tokens(docs) - d->start;
    for (int i = 0; i < n; i++)
        if (add_segment(docs,
                        (DocsSegment){segments[i].first + by, segments[i].parent, segments[i].position,
                                      segments[i].rank, segments[i].reward},
                        err))
            return -1;
    if (add_spans(docs, before->more, d->start, d[1].start, by, err)) return -1;
    if (docs_append_terms(docs, before->more, d->start, d[1].start, by, err)) return -1;
    return add_document(docs, before, doc, d[1].start - d->start, d->place, err);
}

// A tree that is being split: `places` maps its segments into a part, `learnt` marks those that earlier parts learn.
typedef struct Splitting {
    const Docs* before;
    int64_t doc;
    const DocsSegment* segments;
    int* lengths;
    int *places, *learnt;
} Splitting;

// add_part appends the part that consists of these n segments, as a document.
static int add_part(Docs* docs, const Splitting* x, const int* segments, int n, Err err) {
    const Document* d = &x->before->list[x->doc];
    int64_t place = docs->more->n_encoded, start = docs_tokens(docs), at = start;
    for (int k = 0; k < n; k++) {
        int i = segments[k];
        const DocsSegment* s = &x->segments[i];
        int64_t end = s->first + x->lengths[i], by = at - s->first;
        x->places[i] = k;
        DocsSegment segment = {at, s->parent < 0 ? -1 : x->places[s->parent], s->position, -1, s->reward};
        if (docs_append_again(docs, d->place + s->first - d->start, x->lengths[i], err)) return -1;
        if (add_segment(docs, segment, err)) return -1;
        if (docs_append_terms(docs, x->before->more, s->first, end, by, err)) return -1;
        if (!x->learnt[i] && add_spans(docs, x->before->more, s->first, end, by, err)) return -1;
        x->learnt[i] = 1, at += x->lengths[i];
    }
    return add_document(docs, x->before, x->doc, at - start, place, err);
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

static int add_parts(Docs* docs, const Docs* before, int64_t doc, const DocsSegment* segments, int n, int64_t most,
                     DocsSplit* told, Arena* arena, Err err) {
    TreeCut cut;
    Splitting x = {.before = before, .doc = doc, .segments = segments};
    int64_t tokens = docs_length(before, doc);
    arena_reset(arena, (ArenaMark){0});
    x.places = TAKE(arena, int, n), x.learnt = TAKE(arena, int, n);
    if (check_ranks(doc, segments, n, tokens, most, err) || arena_check(arena, err)) return -1;
    memset(x.learnt, 0, sizeof(int) * (size_t)n);
    if (docs_cut_tree(before, doc, most, &cut, &x.lengths, arena, err)) return -1;
    for (int p = 0; p < cut.n; p++)
        if (add_part(docs, &x, cut.segments + cut.first[p], cut.first[p + 1] - cut.first[p], err)) return -1;
    told->trees++, told->parts += cut.n, told->again += cut.tokens - tokens;
    return 0;
}

static int split_all(Docs* docs, const Docs* before, int64_t most, int64_t* now, DocsSplit* told, Arena* arena,
                     Err err) {
    for (int64_t doc = 0; doc < before->n; doc++) {
        const DocsSegment* segments = NULL;
        int n = docs_segments(before, doc, &segments);
        now[doc] = docs->n;
        int failed = n && docs_length(before, doc) > most
                         ? add_parts(docs, before, doc, segments, n, most, told, arena, err)
                         : add_whole(docs, before, doc, segments, n, err);
        if (failed) return -1;
    }
    now[before->n] = docs->n;
    return 0;
}

static int has_larger(const Docs* docs, int64_t most) {
    const DocsSegment* segments;
    for (int64_t doc = 0; doc < docs->n && docs->tree_squares; doc++)
        if (docs_length(docs, doc) > most && docs_segments(docs, doc, &segments)) return 1;
    return 0;
}

int docs_split_trees(Docs* docs, int64_t most, DocsSplit* told, Err err) {
    DocsMore *m = docs->more, more = *m;
    Docs before = *docs;
    Arena arena = {0};
    *told = (DocsSplit){0, 0, 0};
    if (!has_larger(docs, most)) return 0;
    int64_t* now = malloc((size_t)(docs->n + 1) * sizeof *now);  // the place of each document
    if (!now) return fail(err, "no memory to split trees");
    before.more = &more;
    docs->list = NULL, docs->n = docs->capacity = 0;
    m->spans = NULL, m->n_spans = m->spans_capacity = 0;
    m->segments = NULL, m->n_segments = m->segments_capacity = 0;
    m->terms = NULL, m->n_terms = m->terms_capacity = 0;
    int failed = split_all(docs, &before, most, now, told, &arena, err);
    for (int64_t i = 0; i < docs->n_files && !failed; i++) docs->files[i].first_doc = now[docs->files[i].first_doc];
    for (int i = 0; i < m->n_corpora && !failed; i++)
        m->corpora[i].first = now[m->corpora[i].first], m->corpora[i].end = now[m->corpora[i].end];
    arena_free(&arena), free(now), free(before.list), free(more.spans), free(more.segments), free(more.terms);
    return failed ? -1 : 0;
}
