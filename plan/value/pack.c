// pack.c - best-fit decreasing; see pack.h.
#include "plan/value/pack.h"

#include <stdlib.h>

enum { MOST_UNITS = 65535 };  // most units of a row's room

// Open rows by the room that they have left.
typedef struct Rooms {
    uint64_t* some;    // bit r of all words: some row has room r
    int *head, *tail;  // (capacity + 1) first and last row with that room, where there is one
    int* next;         // (n) the list's links
} Rooms;

static void rooms_add(Rooms* x, int room, int row) {
    uint64_t *word = &x->some[room / 64], bit = (uint64_t)1 << room % 64;
    if (*word & bit) x->next[x->tail[room]] = row;
    else x->head[room] = row;
    x->tail[room] = row;
    *word |= bit;
}

// Takes out the row with the least room >= length, the oldest such; -1: none has it. *room is its room.
static int rooms_take(Rooms* x, int length, int capacity, int* room) {
    int w = length / 64;
    uint64_t word = x->some[w] >> length % 64 << length % 64;
    while (!word && w < capacity / 64) word = x->some[++w];
    if (!word) return -1;
    int at = *room = 64 * w + __builtin_ctzll(word), row = x->head[at];
    x->head[at] = x->next[row];
    if (row == x->tail[at]) x->some[w] &= ~((uint64_t)1 << at % 64);
    return row;
}

// Sorts items (n; NULL: 0 .. n - 1) stably by keys below n_keys; those of key k begin at first[k].
static void counting_sort(int* out, const int* items, const int* key, int n, int* first, int n_keys) {
    memset(first, 0, sizeof(int) * ((size_t)n_keys + 1));
    for (int i = 0; i < n; i++) first[key[i]]++;
    for (int k = 0, sum = 0; k <= n_keys; k++) sum += first[k], first[k] = sum;
    for (int i = n - 1; i >= 0; i--) out[--first[key[i]]] = items ? items[i] : i;
}

int pack_best_fit(Rows* out, const int* lengths, int n, int capacity, Arena* arena, Err err) {
    for (int i = 0; i < n; i++)
        if (lengths[i] < 1 || lengths[i] > capacity)
            return fail(err,
                        "document %d of the step has %d tokens, expected 1 to the capacity of %d; try --capacity %d", i,
                        lengths[i], capacity, MAX(lengths[i], 1));
    *out = (Rows){0, TAKE(arena, int, n), TAKE(arena, int, n + 1), NULL};
    ArenaMark mark = arena_mark(arena);
    int *key = TAKE(arena, int, n), *sorted = TAKE(arena, int, n), *count = TAKE(arena, int, capacity + 2);
    size_t words = (size_t)capacity / 64 + 1;
    Rooms rooms = {TAKE(arena, uint64_t, words), TAKE(arena, int, capacity + 1), TAKE(arena, int, capacity + 1),
                   TAKE(arena, int, n)};
    if (arena_check(arena, err) < 0) return -1;
    memset(rooms.some, 0, words * sizeof *rooms.some);
    for (int i = 0; i < n; i++) key[i] = capacity - lengths[i];
    counting_sort(sorted, NULL, key, n, count, capacity + 1);
    for (int i = 0; i < n; i++) {
        int room = capacity, length = lengths[sorted[i]], row = rooms_take(&rooms, length, capacity, &room);
        key[i] = row < 0 ? out->n++ : row;
        rooms_add(&rooms, room - length, key[i]);
    }
    counting_sort(out->order, sorted, key, n, out->first, out->n);
    arena_reset(arena, mark);
    return 0;
}

int pack_rows(Rows* out, const int* lengths, int n, int64_t capacity, Arena* arena, Err err) {
    int64_t unit = CEIL_DIV(capacity, MOST_UNITS), most = capacity / unit;
    int* units = TAKE(arena, int, n);
    if (arena_check(arena, err) < 0) return -1;
    // A document that rounding makes larger than a row fills that row, alone.
    for (int i = 0; i < n; i++) units[i] = (int)MIN(CEIL_DIV(lengths[i], unit), most);
    return pack_best_fit(out, units, n, (int)most, arena, err);
}

static int heavier_first(const void* a, const void* b) {
    const WeighedRow *x = (const WeighedRow*)a, *y = (const WeighedRow*)b;
    return x->cost != y->cost ? (x->cost < y->cost) - (x->cost > y->cost) : x->number - y->number;
}

int rows_weigh(Rows* rows, const int* lengths, const double* squares, double quadratic, Arena* arena, Err err) {
    rows->heaviest = TAKE(arena, WeighedRow, rows->n);
    if (arena_check(arena, err) < 0) return -1;
    for (int r = 0; r < rows->n; r++) {
        rows->heaviest[r] = (WeighedRow){0, r};
        for (int i = rows->first[r]; i < rows->first[r + 1]; i++) {
            double s = lengths[rows->order[i]];
            rows->heaviest[r].cost += s + (squares ? quadratic * squares[rows->order[i]] : quadratic * s * s);
        }
    }
    qsort(rows->heaviest, (size_t)rows->n, sizeof(WeighedRow), heavier_first);
    return 0;
}
