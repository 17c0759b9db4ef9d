// docs_split.c - trees that are too large, as several: each some of the paths, with all that is above their ends. What
// several have is computed several times, and learnt in the first of them.
//
//   a tree     prompt | answer 1 | answer 2 | answer 3      its parts   prompt | answer 1 | answer 3
//                                                                       prompt | answer 2
//
// Paths go to parts one after another: each to the part where it adds the fewest tokens, of equal ones the fullest
// (best fit, as plan/value/pack.h), or to a new one. They come as they stand, which keeps branches together, and the
// longest first, which fills parts; what computes fewer tokens is taken. Then the limit is lowered as far as that costs
// no token: parts become even.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/docs_making.h"

typedef struct Path {
    int64_t tokens;
    int number, leaf;  // leaf: its last segment
} Path;

typedef struct Part {
    int64_t tokens;
    int first;  // path
    char* has;  // (segments)
} Part;

// One tree.
typedef struct Splitting {
    int n, n_paths, n_parts, most_parts;
    const DocsSegment* segments;  // (n)
    int64_t* length;              // (n)
    Path *paths[2], *leaves;      // (n_paths) as they stand and the longest first
    Part* parts;                  // (n_paths), of which most_parts have memory
} Splitting;

// What came of one way to go through the paths, with a limit.
typedef struct Attempt {
    int64_t most, tokens, largest;  // largest: part
    int order;
} Attempt;

// ---- which paths go together

static int64_t added_by(const Splitting* x, const Path* path, const Part* part) {
    int64_t tokens = 0;
    for (int i = path->leaf; i >= 0 && !part->has[i]; i = x->segments[i].parent) tokens += x->length[i];
    return tokens;
}

static Part* part_for(const Splitting* x, const Path* path, int64_t most) {
    Part* best = NULL;
    int64_t least = 0;
    for (Part* part = x->parts; part < x->parts + x->n_parts; part++) {
        int64_t added = added_by(x, path, part);
        if (part->tokens + added > most) continue;
        if (best && (added > least || (added == least && part->tokens <= best->tokens))) continue;
        best = part, least = added;
    }
    return best;
}

static Part* open_part(Splitting* x, const Path* path) {
    Part* part = &x->parts[x->n_parts];
    if (x->n_parts == x->most_parts) {
        if (!(part->has = malloc((size_t)x->n))) return NULL;
        x->most_parts++;
    }
    part->tokens = 0, part->first = path->number;
    memset(part->has, 0, (size_t)x->n);
    x->n_parts++;
    return part;
}

// Fills in parts of at most `most` tokens, which every path has room in. 0, or -1 without memory.
static int split_to(Splitting* x, Attempt* s, int order, int64_t most) {
    *s = (Attempt){.most = most, .order = order};
    x->n_parts = 0;
    for (const Path* path = x->paths[order]; path < x->paths[order] + x->n_paths; path++) {
        Part* part = part_for(x, path, most);
        if (!part && !(part = open_part(x, path))) return -1;
        part->tokens += added_by(x, path, part), part->first = MIN(part->first, path->number);
        for (int i = path->leaf; i >= 0 && !part->has[i]; i = x->segments[i].parent) part->has[i] = 1;
    }
    for (int p = 0; p < x->n_parts; p++)
        s->tokens += x->parts[p].tokens, s->largest = MAX(s->largest, x->parts[p].tokens);
    return 0;
}

static int by_first(const void* a, const void* b) { return ((const Part*)a)->first - ((const Part*)b)->first; }

static int longest_first(const void* a, const void* b) {
    const Path *x = a, *y = b;
    return x->tokens != y->tokens ? (x->tokens < y->tokens) - (x->tokens > y->tokens) : x->number - y->number;
}

// Both orders; the better of what comes of them and *best.
static int try_limit(Splitting* x, Attempt* best, int64_t most) {
    for (int order = 0; order < 2; order++) {
        Attempt s;
        if (split_to(x, &s, order, most)) return -1;
        if (s.tokens < best->tokens || (s.tokens == best->tokens && s.largest < best->largest)) *best = s;
    }
    return 0;
}

static int choose_parts(Splitting* x, int64_t most) {
    Attempt best = {.tokens = INT64_MAX}, last;
    int64_t low = x->paths[1]->tokens;  // of the longest
    if (try_limit(x, &best, most)) return -1;
    for (int64_t high = best.largest; high - low > high / 256 + 1;) {
        int64_t middle = low + (high - low) / 2;
        if (try_limit(x, &best, middle)) return -1;
        if (best.largest <= middle) high = best.largest;
        else low = middle;
    }
    if (split_to(x, &last, best.order, best.most)) return -1;
    qsort(x->parts, (size_t)x->n_parts, sizeof *x->parts, by_first);
    return 0;
}

// ---- one tree

static void list_paths(Splitting* x) {
    x->n_paths = 0;
    for (int i = 0; i < x->n; i++) {
        if (i + 1 < x->n && x->segments[i + 1].parent == i) continue;  // depth first: a child would come next
        x->paths[0][x->n_paths] = (Path){x->segments[i].position + x->length[i], x->n_paths, i};
        x->n_paths++;
    }
    memcpy(x->paths[1], x->paths[0], (size_t)x->n_paths * sizeof(Path));
    qsort(x->paths[1], (size_t)x->n_paths, sizeof(Path), longest_first);
}

static void close_splitting(Splitting* x) {
    for (int p = 0; p < x->most_parts; p++) free(x->parts[p].has);
    free(x->length), free(x->paths[0]), free(x->paths[1]), free(x->parts);
}

static int open_splitting(Splitting* x, const Docs* docs, int64_t doc, const DocsSegment* segments, int n) {
    size_t most = (size_t)n;
    *x = (Splitting){.n = n, .segments = segments, .length = malloc(most * sizeof *x->length)};
    for (int i = 0; i < 2; i++) x->paths[i] = malloc(most * sizeof(Path));
    x->parts = calloc(most, sizeof(Part));
    if (!x->length || !x->paths[0] || !x->paths[1] || !x->parts) return -1;
    for (int i = 0; i < n; i++)
        x->length[i] = (i + 1 < n ? segments[i + 1].first : docs->list[doc + 1].start) - segments[i].first;
    list_paths(x);
    return 0;
}

// ---- all documents anew, from those that were before

// Appends a document of so many tokens that has the hash of document `doc`, which it is or is a part of: parts of a
// tree are on one side of the sampler.
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

// What is learnt of tokens first .. end of before, which stand `by` further on now.
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
        if (add_segment(docs, (DocsSegment){segments[i].first + by, segments[i].parent, segments[i].position,
                                           segments[i].rank, segments[i].reward},
                        err))
            return -1;
    if (add_spans(docs, before->more, d->start, d[1].start, by, err)) return -1;
    if (docs_append_terms(docs, before->more, d->start, d[1].start, by, err)) return -1;
    return add_document(docs, before, doc, d[1].start - d->start, d->place, err);
}

// places, learnt (segments): where those of this part stand; those of the parts before it.
static int add_part(Docs* docs, const Docs* before, int64_t doc, const Splitting* x, const Part* part, int* places,
                    char* learnt, Err err) {
    const Document* d = &before->list[doc];
    int64_t place = docs->more->n_encoded, at = docs_tokens(docs);
    for (int i = 0, n = 0; i < x->n; i++) {
        const DocsSegment* s = &x->segments[i];
        if (!part->has[i]) continue;
        places[i] = n++;
        DocsSegment segment = {at, s->parent < 0 ? -1 : places[s->parent], s->position, -1,
                               learnt[i] ? NAN : s->reward};
        if (docs_append_again(docs, d->place + s->first - d->start, x->length[i], err)) return -1;
        if (add_segment(docs, segment, err)) return -1;
        if (docs_append_terms(docs, before->more, s->first, s->first + x->length[i], at - s->first, err)) return -1;
        if (!learnt[i] && add_spans(docs, before->more, s->first, s->first + x->length[i], at - s->first, err))
            return -1;
        learnt[i] = 1, at += x->length[i];
    }
    return add_document(docs, before, doc, part->tokens, place, err);
}

// Answers that are compared are computed together.
static int check_ranks(int64_t doc, const DocsSegment* segments, int n, int64_t tokens, int64_t most, Err err) {
    for (int i = 0; i < n; i++)
        if (segments[i].rank >= 0)
            return fail(err,
                        "document %lld: a tree of %lld tokens whose answers have ranks, expected at most %lld: such a "
                        "tree is not split; try a larger --batch-tokens or --capacity",
                        (long long)doc, (long long)tokens, (long long)most);
    return 0;
}

static int add_parts(Docs* docs, const Docs* before, int64_t doc, const DocsSegment* segments, int n, int64_t most,
                     DocsSplit* told, Err err) {
    Splitting x;
    int64_t tokens = docs_tokens(docs), before_tokens = docs_length(before, doc);
    if (check_ranks(doc, segments, n, before_tokens, most, err)) return -1;
    int *places = malloc((size_t)n * sizeof *places), failed = open_splitting(&x, before, doc, segments, n);
    char* learnt = calloc((size_t)n, 1);
    if (failed || !places || !learnt || choose_parts(&x, most))
        failed = fail(err, "no memory to split a tree of %d segments", n);
    for (int p = 0; p < x.n_parts && !failed; p++)
        failed = add_part(docs, before, doc, &x, &x.parts[p], places, learnt, err);
    told->trees++, told->parts += x.n_parts, told->again += docs_tokens(docs) - tokens - before_tokens;
    close_splitting(&x);
    free(places), free(learnt);
    return failed;
}

static int split_all(Docs* docs, const Docs* before, int64_t most, int64_t* now, DocsSplit* told, Err err) {
    for (int64_t doc = 0; doc < before->n; doc++) {
        const DocsSegment* segments = NULL;
        int n = docs_segments(before, doc, &segments);
        now[doc] = docs->n;
        int failed = n && docs_length(before, doc) > most ? add_parts(docs, before, doc, segments, n, most, told, err)
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
    *told = (DocsSplit){0, 0, 0};
    if (!has_larger(docs, most)) return 0;
    int64_t* now = malloc((size_t)(docs->n + 1) * sizeof *now);  // the place of each document
    if (!now) return fail(err, "no memory to split trees");
    before.more = &more;
    docs->list = NULL, docs->n = docs->capacity = 0;
    m->spans = NULL, m->n_spans = m->spans_capacity = 0;
    m->segments = NULL, m->n_segments = m->segments_capacity = 0;
    m->terms = NULL, m->n_terms = m->terms_capacity = 0;
    int failed = split_all(docs, &before, most, now, told, err);
    for (int64_t i = 0; i < docs->n_files && !failed; i++) docs->files[i].first_doc = now[docs->files[i].first_doc];
    for (int i = 0; i < m->n_corpora && !failed; i++)
        m->corpora[i].first = now[m->corpora[i].first], m->corpora[i].end = now[m->corpora[i].end];
    free(now), free(before.list), free(more.spans), free(more.segments), free(more.terms);
    return failed ? -1 : 0;
}
