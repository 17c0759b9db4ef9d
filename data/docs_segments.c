// docs_segments.c - what is asked of documents that are trees (docs_files.h).
#include <math.h>

#include "data/docs_making.h"

int docs_add_segment(DocsMore* m, DocsSegment segment, Err err) {
    if (reserve(&m->segments, &m->segments_capacity, m->n_segments, 1, sizeof segment, err)) return -1;
    m->segments[m->n_segments++] = segment;
    return 0;
}

int docs_segments(const Docs* docs, int64_t doc, const DocsSegment** list) {
    const DocsMore* m = docs->more;
    int64_t place = m->n_segments ? docs_place(docs, doc) : -1, n = 1;
    if (place < 0 || m->segments[0].place > place) return 0;
    int64_t at = last_at_most(&m->segments->place, sizeof *m->segments, m->n_segments, place);
    if (m->segments[at].place != place) return 0;
    while (at + n < m->n_segments && m->segments[at + n].parent >= 0) n++;
    *list = m->segments + at;
    return (int)n;
}

int docs_check_trees(const Docs* docs, int context, int64_t most, Err err) {
    const DocsSegment* list;
    for (int64_t doc = 0; doc < docs->n && docs_has_trees(docs); doc++) {
        int n = docs_segments(docs, doc, &list);
        for (int i = 0; i < n; i++) {
            int path = list[i].position + list[i].length;
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
            counts->path_tokens += list[i].position + list[i].length;
}

double docs_squares(const Docs* docs, int64_t doc) {
    const DocsSegment* list;
    double sum = 0;
    for (int i = 0, n = docs_segments(docs, doc, &list); i < n; i++)
        sum += (double)list[i].length * (list[i].length + 2.0 * list[i].position);
    return sum;
}

void docs_tree_positions(const Docs* docs, int64_t doc, int64_t first, int n, int* positions) {
    const DocsSegment* list;
    int segments = docs_segments(docs, doc, &list);
    for (int t = 0, i = 0; t < n && segments; t++) {
        while (i + 1 < segments && list[i + 1].first <= first + t) i++;
        positions[t] = list[i].position + (int)(first + t - list[i].first);
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
