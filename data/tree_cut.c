// tree_cut.c - see tree_cut.h.
//
// Paths go to parts one after another: each to the part where it adds the fewest tokens, the fullest of equal ones
// (best fit, as plan/value/pack.h), or to a new one. Two orders are tried: as they stand, which keeps branches
// together, and longest first, which fills parts; the one with fewer tokens is taken. Then the limit falls as far as
// that costs no token: parts become even. Only MOST_OPEN parts take paths at a time: else time would grow as a square.
#include "data/tree_cut.h"

#include <stdlib.h>

enum { MOST_OPEN = 16 };

typedef struct Path {
    int64_t tokens;
    int number, leaf;  // leaf: the path's last segment
} Path;

typedef struct Part {
    int64_t tokens;
    int number;
    int* has;  // (n) `stamp` of each segment that is in it
    int stamp;
} Part;

// Attempt is one way through the paths, with a limit, and its result.
typedef struct Attempt {
    int64_t most, tokens, largest;  // largest: part
    int order, n_parts;
} Attempt;

typedef struct Cutting {
    int n, n_paths, stamp;
    const DocsSegment* list;  // (n)
    Path* paths[2];           // (n_paths) as they stand, and the longest first
    int* part_of;             // (n_paths) of the last attempt
    int64_t shortest;         // leaf
    Part open[MOST_OPEN];
    int n_open, most_open;
} Cutting;

// ---- which paths go together

static int64_t added_by(const Cutting* x, const Path* path, const Part* part) {
    int64_t tokens = 0;
    for (int i = path->leaf; i >= 0 && part->has[i] != part->stamp; i = x->list[i].parent) tokens += x->list[i].length;
    return tokens;
}

static Part* part_for(Cutting* x, const Path* path, int64_t most) {
    Part* best = NULL;
    int64_t least = 0;
    for (Part* part = x->open; part < x->open + x->n_open; part++) {
        int64_t added = added_by(x, path, part);
        if (part->tokens + added > most) continue;
        if (best && (added > least || (added == least && part->tokens <= best->tokens))) continue;
        best = part, least = added;
    }
    return best;
}

// Closes a part, whose room serves the next one.
static void close_part(Cutting* x, Part* part) {
    Part closed = *part;
    *part = x->open[--x->n_open];
    x->open[x->n_open] = closed;
}

static Part* open_part(Cutting* x, int number) {
    Part* fullest = x->open;
    for (Part* part = x->open; part < x->open + x->n_open; part++)
        if (part->tokens > fullest->tokens) fullest = part;
    if (x->n_open == x->most_open) close_part(x, fullest);
    Part* part = &x->open[x->n_open++];
    part->tokens = 0, part->number = number, part->stamp = ++x->stamp;
    return part;
}

// Puts all paths into parts of at most `most` tokens, which hold every single path.
static Attempt cut_to(Cutting* x, int order, int64_t most) {
    Attempt a = {.most = most, .order = order};
    x->n_open = 0;
    for (const Path* path = x->paths[order]; path < x->paths[order] + x->n_paths; path++) {
        Part* part = part_for(x, path, most);
        if (!part) part = open_part(x, a.n_parts++);
        int64_t added = added_by(x, path, part);
        for (int i = path->leaf; i >= 0 && part->has[i] != part->stamp; i = x->list[i].parent)
            part->has[i] = part->stamp;
        x->part_of[path->number] = part->number;
        a.tokens += added, part->tokens += added, a.largest = MAX(a.largest, part->tokens);
        if (part->tokens + x->shortest > most) close_part(x, part);
    }
    return a;
}

// try_limit cuts in both orders of the paths, and keeps in *best what computes the fewest tokens.
static void try_limit(Cutting* x, Attempt* best, int64_t most) {
    for (int order = 0; order < 2; order++) {
        Attempt a = cut_to(x, order, most);
        if (a.tokens < best->tokens || (a.tokens == best->tokens && a.largest < best->largest)) *best = a;
    }
}

static Attempt choose_parts(Cutting* x, int64_t most) {
    Attempt best = {.tokens = INT64_MAX};
    int64_t low = x->paths[1]->tokens;  // of the longest
    try_limit(x, &best, most);
    for (int64_t high = best.largest; high - low > high / 256 + 1;) {
        int64_t middle = low + (high - low) / 2;
        try_limit(x, &best, middle);
        if (best.largest <= middle) high = best.largest;
        else low = middle;
    }
    return cut_to(x, best.order, best.most);
}

// ---- the tree

static int longest_first(const void* a, const void* b) {
    const Path *x = a, *y = b;
    return x->tokens != y->tokens ? (x->tokens < y->tokens) - (x->tokens > y->tokens) : x->number - y->number;
}

// list_paths finds the paths, and sorts a copy; end[i] becomes the tokens of a path up to the end of segment i.
static void list_paths(Cutting* x, int64_t* end) {
    x->shortest = INT64_MAX;
    for (int i = 0; i < x->n; i++) {
        end[i] = x->list[i].length + (x->list[i].parent < 0 ? 0 : end[x->list[i].parent]);
        if (i + 1 < x->n && x->list[i + 1].parent == i) continue;  // depth first: a child would come next
        x->paths[0][x->n_paths] = (Path){end[i], x->n_paths, i};
        x->n_paths++, x->shortest = MIN(x->shortest, x->list[i].length);
    }
    memcpy(x->paths[1], x->paths[0], (size_t)x->n_paths * sizeof(Path));
    qsort(x->paths[1], (size_t)x->n_paths, sizeof(Path), longest_first);
}

// order_parts numbers parts by their first paths, so that they stand as in the tree; place[p]: the new number.
static void order_parts(Cutting* x, int* place, int n_parts) {
    int n = 0;
    for (int p = 0; p < n_parts; p++) place[p] = -1;
    for (int i = 0; i < x->n_paths; i++) {
        int* at = &place[x->part_of[i]];
        if (*at < 0) *at = n++;
        x->part_of[i] = *at;
    }
}

static int ascending(const void* a, const void* b) { return *(const int*)a - *(const int*)b; }

// list_segments fills cut->segments and cut->first; paths and first_path list the paths of each part.
static void list_segments(TreeCut* cut, const Cutting* x, int* seen, int* paths, int* first_path) {
    int at = 0;
    for (int i = 0; i < x->n_paths; i++) first_path[x->part_of[i] + 1]++;
    for (int p = 0; p < cut->n; p++) first_path[p + 1] += first_path[p], cut->first[p] = first_path[p];
    for (int i = 0; i < x->n_paths; i++) paths[cut->first[x->part_of[i]]++] = x->paths[0][i].leaf;
    for (int p = 0; p < cut->n; p++) {
        cut->first[p] = at;
        for (int k = first_path[p]; k < first_path[p + 1]; k++)
            for (int i = paths[k]; i >= 0 && seen[i] != p + 1; i = x->list[i].parent)
                seen[i] = p + 1, cut->segments[at++] = i;
        qsort(cut->segments + cut->first[p], (size_t)(at - cut->first[p]), sizeof(int), ascending);
    }
    cut->first[cut->n] = at;
}

static int count_segments(const Cutting* x) {
    int n = 0;
    for (int i = 0; i < x->n_paths; i++)
        for (int k = x->paths[0][i].leaf; k >= 0; k = x->list[k].parent) n++;
    return n;
}

int tree_cut(TreeCut* cut, const DocsSegment* list, int n, int64_t most, Arena* arena, Err err) {
    Cutting* x = TAKE(arena, Cutting, 1);
    int64_t* end = TAKE(arena, int64_t, n);
    if (arena_check(arena, err)) return -1;
    *x = (Cutting){.n = n, .list = list, .most_open = MIN(n, MOST_OPEN)};
    for (int i = 0; i < 2; i++) x->paths[i] = TAKE(arena, Path, n);
    x->part_of = TAKE(arena, int, n);
    for (int i = 0; i < x->most_open; i++) x->open[i].has = TAKE(arena, int, n);
    if (arena_check(arena, err)) return -1;
    for (int i = 0; i < x->most_open; i++) memset(x->open[i].has, 0, sizeof(int) * (size_t)n);
    list_paths(x, end);
    Attempt a = choose_parts(x, most);
    *cut = (TreeCut){.n = a.n_parts, .tokens = a.tokens};
    int *scratch = TAKE(arena, int, 2 * n + a.n_parts + 1), *place = TAKE(arena, int, a.n_parts);
    cut->first = TAKE(arena, int, a.n_parts + 1), cut->segments = TAKE(arena, int, count_segments(x));
    if (arena_check(arena, err)) return -1;
    memset(scratch, 0, sizeof(int) * (size_t)(2 * n + a.n_parts + 1));
    order_parts(x, place, a.n_parts);
    list_segments(cut, x, scratch, scratch + n, scratch + 2 * n);
    return 0;
}
