// test_pack.c - the claims of plan/value/pack.h.
#include "plan/value/pack.h"
#include "test/arenas.h"
#include "test/test.h"

enum { MOST = 4096 };
static int lengths[MOST];
static Arena arena;  // of one packing at a time
static char err[ERR_BYTES];

// Best-fit decreasing spelled out in O(n^2), as the words in the header have it: documents by decreasing length, equal
// ones by index; of rows with the same least room the one that has had it longest.
static int plain_best_fit(int n, int capacity, int* sorted, int* row_of) {
    static int room[MOST], since[MOST];
    int rows = 0;
    for (int i = 0; i < n; i++) {
        int j = i;
        for (; j > 0 && lengths[sorted[j - 1]] < lengths[i]; j--) sorted[j] = sorted[j - 1];
        sorted[j] = i;
    }
    for (int i = 0; i < n; i++) {
        int best = -1, length = lengths[sorted[i]];
        for (int r = 0; r < rows; r++)
            if (room[r] >= length &&
                (best < 0 || room[r] < room[best] || (room[r] == room[best] && since[r] < since[best])))
                best = r;
        if (best < 0) room[best = rows++] = capacity;
        room[best] -= length, since[best] = i;
        row_of[sorted[i]] = best;
    }
    return rows;
}

// Every rank packs for itself, so ties must be broken alike: small capacities have many of them.
CLAIM(rows_are_those_of_plain_best_fit_decreasing_ties_included) {
    static int sorted[MOST], row_of[MOST];
    for (int trial = 0; trial < 1500; trial++) {
        int most = trial % 3 ? 20 : 500, n = (int)(hash64((uint64_t)trial + 7) % 300), at = 0;
        int capacity = 1 + (int)(hash64((uint64_t)trial) % (uint64_t)most);
        for (int i = 0; i < n; i++)
            lengths[i] = 1 + (int)(pow(random_uniform((uint64_t)trial, (uint64_t)i), 3) * (capacity - 1));
        Rows p;
        soil(&arena, 0xa5, 1 << 18);
        CHECK(pack_best_fit(&p, lengths, n, capacity, &arena, err) == 0);
        CHECK(p.n == plain_best_fit(n, capacity, sorted, row_of) && p.first[0] == 0);
        for (int r = 0; r < p.n; r++) {
            for (int i = 0; i < n; i++) {
                if (row_of[sorted[i]] != r) continue;
                CHECK(p.order[at] == sorted[i]);
                at++;
            }
            CHECK(p.first[r + 1] == at);
        }
    }
}

CLAIM(a_document_longer_than_the_capacity_is_named) {
    Rows p;
    lengths[0] = 5, lengths[1] = 11;
    CHECK(pack_best_fit(&p, lengths, 2, 10, &arena, err) < 0);
    CHECK(strstr(err, "document 1") && strstr(err, "11 tokens") && strstr(err, "10"));
    lengths[1] = 0;
    CHECK(pack_best_fit(&p, lengths, 2, 10, &arena, err) < 0);
}

int main(void) { return test_main(); }
