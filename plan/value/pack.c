// pack.c - best-fit decreasing; see pack.h.
//
// Open rows are found by the room they have left in a complete binary tree over 0 .. capacity: each leaf heads the list
// of rows with exactly that much room, each inner node knows whether a leaf below it has any. "The least room >=
// length" is one walk up and one down.
#include "plan/value/pack.h"

#include <stdio.h>

typedef struct RoomTree {
    int leaves;        // a power of two > capacity
    int* occupied;     // (2 * leaves) number of rows below each node
    int *head, *tail;  // (leaves) first and last row with that room, -1: none
    int* next;         // (n) the list's links
} RoomTree;

static int tree_leaves(int capacity) {
    int leaves = 1;
    while (leaves <= capacity) leaves *= 2;
    return leaves;
}

static void tree_count(RoomTree* t, int room, int change) {
    for (int node = t->leaves + room; node > 0; node /= 2) t->occupied[node] += change;
}

static void tree_add(RoomTree* t, int room, int row) {
    t->next[row] = -1;
    if (t->head[room] < 0) t->head[room] = row;
    else t->next[t->tail[room]] = row;
    t->tail[room] = row;
    tree_count(t, room, 1);
}

// Takes out a row with the least room >= length, the one that has had it longest; -1 when there is none. *room is what
// it has.
static int tree_take(RoomTree* t, int length, int* room) {
    int node = t->leaves + length;
    while (!t->occupied[node]) {
        while (node & 1) node /= 2;  // a right child: its subtree and everything left of it is done
        if (node == 0) return -1;
        node++;
        if (t->occupied[node]) break;
    }
    while (node < t->leaves) node = t->occupied[2 * node] ? 2 * node : 2 * node + 1;
    *room = node - t->leaves;
    int row = t->head[*room];
    t->head[*room] = t->next[row];
    tree_count(t, *room, -1);
    return row;
}

// Indices by decreasing length, equal lengths by index: a counting sort.
static void sort_decreasing(int* order, const int* lengths, int n, int capacity, int* count) {
    memset(count, 0, sizeof(int) * ((size_t)capacity + 2));
    for (int i = 0; i < n; i++) count[capacity - lengths[i] + 1]++;
    for (int c = 1; c <= capacity; c++) count[c] += count[c - 1];
    for (int i = 0; i < n; i++) order[count[capacity - lengths[i]]++] = i;
}

int pack_best_fit(Packing* out, const int* lengths, int n, int capacity, Arena* arena, char* err, size_t errlen) {
    for (int i = 0; i < n; i++)
        if (lengths[i] < 1 || lengths[i] > capacity)
            return fail(err, errlen,
                        "document %d of the step has %d tokens, expected 1 to the capacity of %d; try --capacity %d", i,
                        lengths[i], capacity, MAX(lengths[i], 1));
    int leaves = tree_leaves(capacity);
    *out = (Packing){0, TAKE(arena, int, n), TAKE(arena, int, n + 1)};
    ArenaMark mark = arena_mark(arena);
    int *row_of = TAKE(arena, int, n), *count = TAKE(arena, int, capacity + 2);
    RoomTree tree = {leaves, TAKE(arena, int, 2 * leaves), TAKE(arena, int, leaves), TAKE(arena, int, leaves),
                     TAKE(arena, int, n)};
    if (arena_check(arena, err, errlen) < 0) return -1;
    memset(tree.occupied, 0, sizeof(int) * 2 * (size_t)leaves);
    memset(tree.head, -1, sizeof(int) * (size_t)leaves);
    sort_decreasing(out->order, lengths, n, capacity, count);

    memset(out->first, 0, sizeof(int) * ((size_t)n + 1));
    for (int i = 0; i < n; i++) {
        int room = capacity, length = lengths[out->order[i]], row = tree_take(&tree, length, &room);
        if (row < 0) row = out->n_rows++;
        row_of[i] = row;
        out->first[row + 1]++;
        tree_add(&tree, room - length, row);
    }
    for (int r = 0; r < out->n_rows; r++) out->first[r + 1] += out->first[r];
    // Into row order, keeping the order inside a row. The tree's links are free by now: they hold the sorted documents.
    memcpy(tree.next, out->order, sizeof(int) * (size_t)n);
    for (int i = n - 1; i >= 0; i--) out->order[--out->first[row_of[i] + 1]] = tree.next[i];
    // Each first[r + 1] has walked down to the start of row r: move them one entry back.
    for (int r = 0; r < out->n_rows; r++) out->first[r] = out->first[r + 1];
    out->first[out->n_rows] = n;
    arena_reset(arena, mark);
    return 0;
}
