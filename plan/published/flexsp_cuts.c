// flexsp_cuts.c - FlexSP cuts lists of documents into contiguous runs twice, both times by dynamic programming.
//
// Buckets (section 4.1.3, Eq. 15-16): runs of documents sorted by length, each counted as its longest. With err[k][q]
// the least over-statement of the first k documents in q buckets,
//   err[k][q] = min_j err[j][q - 1] + s_j (k - j) - (s_j + .. + s_k-1)            documents from 0, longest first.
// The cost of a run obeys the quadrangle inequality, so the best j never decreases in k, and halving the range of k
// (Galil and Park 1992) takes O(n log n) a column in place of the paper's O(n^2): the same minima.
// Rounds (section 4.2, the "sequence blaster"): runs whose largest sum of tokens is the least,
//   most[k][i] = min_j max(most[j][i - 1], s_j + .. + s_k-1).
// The first rises in j and the second falls, so the best j is where they cross.
#include "plan/published/flexsp.h"

#include <stdlib.h>

// ---- buckets

// A column of the table: prev is err[.][q - 1], now err[.][q].
typedef struct Column {
    const int* lengths;
    const int64_t* sums;  // (n + 1) tokens of the first documents
    const int64_t* prev;
    int64_t* now;
    int* cut;  // the j that was best for each k
} Column;

// now[k] for k in [low, high], whose best j lies in [from, to].
static void solve(const Column* x, int low, int high, int from, int to) {
    if (low > high) return;
    int k = low + (high - low) / 2, best = from;
    int64_t least = INT64_MAX;
    for (int j = from; j <= MIN(to, k - 1); j++) {
        int64_t error = x->prev[j] + (int64_t)x->lengths[j] * (k - j) - (x->sums[k] - x->sums[j]);
        if (error < least) least = error, best = j;
    }
    x->now[k] = least;
    x->cut[k] = best;
    solve(x, low, k - 1, from, best);
    solve(x, k + 1, high, best, to);
}

static int without_buckets(int* first, int n) {
    for (int i = 0; i <= n; i++) first[i] = i;
    return n;
}

int flexsp_buckets(int* first, const int* lengths, int n, int least, int64_t most_tokens) {
    int most = MIN(n, FLEXSP_MOST_BUCKETS), row = n + 1, q = 0;
    if (least >= most) return without_buckets(first, n);
    int64_t* sums = (int64_t*)malloc(sizeof(int64_t) * 3 * (size_t)row);
    int* cut = (int*)malloc(sizeof(int) * (size_t)row * (size_t)most);
    if (!sums || !cut) return free(sums), free(cut), -1;
    int64_t *prev = sums + row, *now = prev + row;
    sums[0] = 0;
    for (int i = 0; i < n; i++) sums[i + 1] = sums[i] + lengths[i];
    for (int k = 1; k <= n; k++) now[k] = (int64_t)lengths[0] * k - sums[k];  // one bucket
    for (q = 1; q < least || now[n] + sums[n] > most_tokens;) {
        if (++q >= most) break;
        int64_t* other = prev;
        prev = now, now = other;
        Column column = {lengths, sums, prev, now, cut + (size_t)q * (size_t)row};
        solve(&column, q, n, q - 1, n - 1);
    }
    first[q] = n;
    for (int b = q; b > 1 && q < most; b--) first[b - 1] = cut[(size_t)b * (size_t)row + (size_t)first[b]];
    first[0] = 0;
    free(sums);
    free(cut);
    return q < most ? q : without_buckets(first, n);
}

// ---- rounds

// The j that is best for the first k documents in one more run than prev has, at least `from`. The least of equals.
static int crossing(const int64_t* prev, const int64_t* sums, int k, int from) {
    int low = from, high = k - 1;
    while (low < high) {
        int j = low + (high - low) / 2;
        if (prev[j] >= sums[k] - sums[j]) high = j;
        else low = j + 1;
    }
    return low > from && sums[k] - sums[low - 1] <= prev[low] ? low - 1 : low;
}

void flexsp_blast(int* cut, const int* lengths, int n, int most, int64_t* scratch) {
    size_t row = (size_t)n + 1;
    int64_t *sums = scratch, *prev = sums + row, *now = prev + row;
    sums[0] = 0;
    for (int i = 0; i < n; i++) sums[i + 1] = sums[i] + lengths[i];
    for (int k = 0; k <= n; k++) now[k] = sums[k], cut[row + (size_t)k] = 0;
    for (int m = 2; m <= most; m++) {
        int64_t* other = prev;
        prev = now, now = other;
        for (int k = m; k <= n; k++) {
            int j = crossing(prev, sums, k, m - 1);
            now[k] = MAX(prev[j], sums[k] - sums[j]);
            cut[(size_t)m * row + (size_t)k] = j;
        }
    }
}

void flexsp_chunks(int* first, const int* cut, int n, int m) {
    first[m] = n;
    for (; m > 0; m--) first[m - 1] = cut[(size_t)m * ((size_t)n + 1) + (size_t)first[m]];
}

int flexsp_least_chunks(const int* lengths, int n, int64_t capacity) {
    int64_t tokens = 0, in_chunk = 0;
    int chunks = n > 0;
    for (int i = 0; i < n; i++) {
        if (lengths[i] > capacity) return n + 1;
        if (in_chunk + lengths[i] > capacity) chunks++, in_chunk = 0;
        in_chunk += lengths[i];
        tokens += lengths[i];
    }
    return (int)MAX((int64_t)chunks, CEIL_DIV(tokens, capacity));
}
