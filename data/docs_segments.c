// docs_segments.c - what is asked of documents that are trees (docs_files.h).
#include <math.h>

#include "data/docs_making.h"

int docs_segments(const Docs* docs, int64_t doc, const DocsSegment** list) {
    const DocsMore* m = docs->more;
    int64_t start = docs->list[doc].start, end = docs->list[doc + 1].start, n = 0;
    if (m->n_segments == 0 || m->segments[0].first > start) return 0;
    int64_t at = last_at_most(&m->segments->first, sizeof *m->segments, m->n_segments, start);
    if (m->segments[at].first != start) return 0;
    while (at + n < m->n_segments && m->segments[at + n].first < end) n++;
    *list = m->segments + at;
    return (int)n;
}

static int64_t length_of(const Docs* docs, int64_t doc, const DocsSegment* list, int n, int i) {
    return (i + 1 < n ? list[i + 1].first : docs->list[doc + 1].start) - list[i].first;
}

int docs_cut_tree(const Docs* docs, int64_t doc, int64_t most, TreeCut* cut, int** lengths, Arena* arena, Err err) {
    const DocsSegment* list;
    int n = docs_segments(docs, doc, &list), *parents = TAKE(arena, int, n);
    *lengths = TAKE(arena, int, n);
    if (arena_check(arena, err)) return -1;
    for (int i = 0; i < n; i++) (*lengths)[i] = (int)length_of(docs, doc, list, n, i), parents[i] = list[i].parent;
    return tree_cut(cut, *lengths, parents, n, most, arena, err);
}

int docs_check_trees(const Docs* docs, int context, int64_t most, Err err) {
    const DocsSegment* list;
    for (int64_t doc = 0; doc < docs->n && docs->tree_squares; doc++) {
        int n = docs_segments(docs, doc, &list);
        for (int i = 0; i < n; i++) {
            int64_t path = list[i].position + length_of(docs, doc, list, n, i);
            if (path > context)
                return fail(err,
                            "document %lld: a path of this tree has %lld tokens, expected at most --context %d; trees "
                            "are split at branches, paths are not cut",
                            (long long)doc, (long long)path, context);
            if (path > most)
                return fail(
                    err,
                    "document %lld: a path of this tree has %lld tokens, and a group of ranks holds %lld; try a "
                    "larger --capacity",
                    (long long)doc, (long long)path, (long long)most);
        }
    }
    return 0;
}

void docs_count_tree(const Docs* docs, int64_t doc, TreeCounts* counts) {
    const DocsSegment* list;
    int n = docs_segments(docs, doc, &list);
    if (n == 0) return;
    counts->trees++, counts->segments += n, counts->tokens += docs_length(docs, doc);
    for (int i = 0; i < n; i++)
        if (i + 1 == n || list[i + 1].parent != i)  // depth first: its child would come next
            counts->path_tokens += list[i].position + length_of(docs, doc, list, n, i);
}

double docs_squares(const Docs* docs, int64_t doc) {
    const DocsSegment* list;
    double sum = 0;
    for (int i = 0, n = docs_segments(docs, doc, &list); i < n; i++) {
        double own = (double)length_of(docs, doc, list, n, i);
        sum += own * (own + 2.0 * list[i].position);
    }
    return sum;
}

void docs_tree_positions(const Docs* docs, int64_t doc, int64_t first, int n, int* positions) {
    const DocsSegment* list;
    int segments = docs_segments(docs, doc, &list);
    int64_t token = docs->list[doc].start + first;
    for (int t = 0, i = 0; t < n && segments; t++, token++) {
        while (i + 1 < segments && list[i + 1].first <= token) i++;
        positions[t] = list[i].position + (int)(token - list[i].first);
    }
}

double docs_pairs(const Docs* docs, int64_t doc, int64_t first, int n) {
    const DocsSegment* list;
    int segments = docs_segments(docs, doc, &list), pairs = 0;
    (void)first, (void)n;
    for (int i = 0; i < segments; i++)
        for (int j = 0; j < segments && list[i].rank >= 0; j++) pairs += list[j].rank > list[i].rank;
    return pairs;
}

int docs_rewards(const Docs* docs, int64_t doc, double* sum) {
    const DocsSegment* list;
    int segments = docs_segments(docs, doc, &list), n = 0;
    for (int i = 0; i < segments; i++)
        if (!isnan(list[i].reward)) *sum += list[i].reward, n++;
    return n;
}
