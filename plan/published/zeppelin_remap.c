// zeppelin_remap.c - Zeppelin's remapping: attention wants equal work on the ranks, linear modules equal tokens, so
// tokens move before and after.
//
// With n tokens on a rank and a target t, surpluses max(0, n - t) go to deficits max(0, t - n). Its solver is not
// published. Ours is greedy in two phases: inside machines, then across. A machine is left with surpluses or with
// deficits only after the first, so that the second moves sum over machines of max(0, surplus of the machine): no
// transfers can take fewer tokens across. The largest surplus goes to the largest deficit, so the largest sender has
// few peers; that it ends first is not certified.
#include "plan/published/zeppelin.h"

// The first rank of [first, end) with the most tokens above target (sign 1) or below it (-1); -1 when there is none.
static int largest(const int64_t* left, int first, int end, int sign) {
    int best = -1;
    for (int r = first; r < end; r++)
        if (sign * left[r] > 0 && (best < 0 || sign * left[r] > sign * left[best])) best = r;
    return best;
}

static int settle(Move* moves, int64_t* left, int first, int end) {
    for (int n = 0;; n++) {
        int from = largest(left, first, end, 1), to = largest(left, first, end, -1);
        if (from < 0 || to < 0) return n;
        int64_t tokens = MIN(left[from], -left[to]);
        left[from] -= tokens;
        left[to] += tokens;
        moves[n] = (Move){from, to, tokens};
    }
}

void remap_targets(int64_t* targets, const int64_t* tokens, int ranks) {
    int64_t total = 0;
    for (int r = 0; r < ranks; r++) total += tokens[r], targets[r] = -1;
    for (int64_t more = total % ranks; more > 0; more--) {
        int most = -1;
        for (int r = 0; r < ranks; r++)
            if (targets[r] < 0 && (most < 0 || tokens[r] > tokens[most])) most = r;
        targets[most] = total / ranks + 1;
    }
    for (int r = 0; r < ranks; r++)
        if (targets[r] < 0) targets[r] = total / ranks;
}

int remap_moves(Move* moves, const int64_t* tokens, const int64_t* targets, int64_t* left, int ranks, int node_size) {
    int n = 0;
    for (int r = 0; r < ranks; r++) left[r] = tokens[r] - targets[r];
    for (int first = 0; first < ranks; first += node_size)
        n += settle(moves + n, left, first, MIN(first + node_size, ranks));
    return n + settle(moves + n, left, 0, ranks);
}
