// balance_moves.c - a decision in whole heads and hidden units.
//
// Of the heads a straggler gives the share that it gives of everything, to the nearest, because attention and MLP end
// in exchanges of their own and each has to be even. Hidden units absorb the rest, in tiles. A part of a tile goes as a
// whole if that makes the helper less late than staying would make the straggler: rest / v_s > (tile - rest) / v_h. So
// a straggler ends at most tile / (v_s + v_h) after the time that was decided, less than a helper needs for one tile.
//
// Helpers get heads, then tiles, one at a time: the one that would be least late by it. Who gets whose is then settled
// by going through both in order of their ranks, which leaves few pairs: at most one less than senders and helpers
// together, for heads and for hidden units.
#include "plan/balance.h"

#include <math.h>

// What ranks give or get. tile t of a rank are its hidden units from t * tile on, so that only its last may be short.
typedef struct Whole {
    int heads[MOST_TP], tiles[MOST_TP];
} Whole;

static int is_sender(const BalanceDecision* d, int r) { return d->sent[r] > 0; }
static int is_helper(const BalanceDecision* d, int r) { return d->sent[r] <= 0 && d->taken[r] > 0; }
// A decision that was made by hand may have no speeds.
static double speed(const BalanceDecision* d, int r) { return d->v[r] > 0 ? d->v[r] : 1; }

static double mean_helper_speed(const BalanceDecision* d, int ranks) {
    double sum = 0;
    int n = 0;
    for (int r = 0; r < ranks; r++)
        if (is_helper(d, r)) sum += speed(d, r), n++;
    return n ? sum / n : 0;
}

// Tiles that a rank gives for `slices`, at most `most`, and what is then missing (> 0).
// stays: the part of a tile that had better stay.
static int whole_tiles(double* missing, double slices, int hidden, int tile, int most, double stays) {
    int tiles = 0, last = hidden - (CEIL_DIV(hidden, tile) - 1) * tile;
    while (tiles < most && slices > 0) {
        int size = tiles == 0 ? last : tile;
        if (slices < size && slices <= stays * size) break;
        slices -= size;
        tiles++;
    }
    *missing = slices;
    return tiles;
}

// What a sender gives.
static void round_sent(int* heads, int* tiles, double sent, SliceCount own, double head_work, int tile, int keep_heads,
                       double stays) {
    int most_heads = MAX(0, own.heads - keep_heads), most_tiles = MAX(0, CEIL_DIV(own.hidden, tile) - 1);
    double fraction = MIN(1, sent / (own.hidden + own.heads * head_work)), missing;
    int h = (int)floor(fraction * own.heads + 0.5);
    while (h > 0 && (h > most_heads || h * head_work > sent)) h--;
    for (;; h++) {
        *heads = h;
        *tiles = whole_tiles(&missing, sent - h * head_work, own.hidden, tile, most_tiles, stays);
        // Hidden units that are used up leave it to heads, unless one more would make a helper later than the straggler
        // is.
        double excess = MAX(0, (h + 1) * head_work - sent);
        if (h >= most_heads || missing <= stays * tile || missing * (1 - stays) <= excess * stays) return;
    }
}

// The helper that would be least late by `size` more slices, the lowest of equals; its need is less by as much.
static int least_late(double* need, const BalanceDecision* d, int ranks, double size) {
    int best = -1;
    double least = 0;
    for (int r = 0; r < ranks; r++) {
        if (!is_helper(d, r)) continue;
        double late = (size - need[r]) / speed(d, r);
        if (best < 0 || late < least) best = r, least = late;
    }
    need[best] -= size;
    return best;
}

static void round_taken(Whole* get, const Whole* give, const BalanceDecision* d, int ranks, double head_work,
                        int tile) {
    double need[MOST_TP];
    int heads = 0, tiles = 0;
    for (int r = 0; r < ranks; r++) {
        need[r] = d->taken[r];
        heads += give->heads[r];
        tiles += give->tiles[r];
    }
    for (; heads > 0; heads--) get->heads[least_late(need, d, ranks, head_work)]++;
    for (; tiles > 0; tiles--) get->tiles[least_late(need, d, ranks, tile)]++;
}

// Takes from both what both have.
static int match(int* give, int* get) {
    int n = MIN(*give, *get);
    *give -= n;
    *get -= n;
    return n;
}

int balance_moves(Move* moves, const BalanceDecision* decision, const SliceCount* own, int ranks, double head_work,
                  int tile, int keep_heads) {
    Whole give = {0}, get = {0};
    double helpers = mean_helper_speed(decision, ranks);
    if (!decision->active || helpers <= 0) return 0;
    for (int r = 0; r < ranks; r++) {
        double v = speed(decision, r);
        if (is_sender(decision, r))
            round_sent(&give.heads[r], &give.tiles[r], decision->sent[r], own[r], head_work, tile, keep_heads,
                       v / (v + helpers));
    }
    round_taken(&get, &give, decision, ranks, head_work, tile);

    int n = 0;
    for (int from = 0; from < ranks; from++) {
        int head = own[from].heads - give.heads[from];
        int first_tile = CEIL_DIV(own[from].hidden, tile) - give.tiles[from];
        for (int to = 0; to < ranks; to++) {
            int heads = match(&give.heads[from], &get.heads[to]), tiles = match(&give.tiles[from], &get.tiles[to]);
            if (heads == 0 && tiles == 0) continue;
            int first = MIN(first_tile * tile, own[from].hidden), end = MIN(first + tiles * tile, own[from].hidden);
            moves[n++] = (Move){from, to, head, heads, first, end - first};
            head += heads;
            first_tile += tiles;
        }
    }
    return n;
}

SliceCount balance_count(const Move* moves, int n_moves, const SliceCount* own, int rank) {
    SliceCount count = own[rank];
    for (int i = 0; i < n_moves; i++) {
        int sign = (moves[i].to == rank) - (moves[i].from == rank);
        count.heads += sign * moves[i].heads;
        count.hidden += sign * moves[i].hidden;
    }
    return count;
}
