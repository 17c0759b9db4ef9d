// zeppelin_partition.c - which ranks share a document in Zeppelin: hierarchically, across machines, inside, not at all.
//
// Zeppelin's algorithms 1 and 2 are not public as pseudo-code. This is a reconstruction from their description, on
// windows of contiguous ranks:
//   1. Machines. A document of the across zone takes k = ceil(length / mean tokens that a machine has of this zone)
//      machines, but at least ceil(length^2 / mean of length^2 that it has of it). Any other, and one with k = 1, goes
//      whole to a machine.
//   2. Ranks of a machine. What was cut across lies on all of them. A document from the inside zone on takes
//      g = ceil(length^2 / mean of length^2 that a rank has of these), a shorter one a rank.
// Documents come longest first. A cut one takes the window whose maximum of work (length^2 / ranks) is least: a window
// runs together, so all its ranks go on from that maximum. A whole one goes where fewest tokens are. Of the readings
// that the description allows (means of a zone or of all documents, whole ones by tokens or by work, k by tokens alone)
// this one came to the least mean makespan on a100-7b and h200-8b.
//
// A rank has room for the rounds that the step needs at least, ceil(tokens / (ranks capacity)). A window without
// room is passed over, a cut document may take a wider one. Where a whole document finds none, its zone's threshold
// falls to the longest document that is still whole, or further so that a 64th of all are cut, and the level starts
// over. What falls into a zone so is cut over all machines, or all ranks of its machine. Thresholds only fall, so this
// ends, at worst with every document on all ranks. What finds no room even so goes to further rounds.
#include <limits.h>
#include <stdlib.h>

#include "plan/planner.h"
#include "plan/published/zeppelin.h"

// A machine on level 1, a rank on level 2. Work and tokens are of each of its ranks.
typedef struct Bin {
    int ranks;
    double work, tokens;
} Bin;

typedef struct Level {
    const PlanLimits* limits;
    Bin* bins;
    int n_bins;
    double room;  // tokens of a rank
} Level;

typedef struct Partition {
    const PlanLimits* limits;
    const int *sorted, *docs;
    int n, n_nodes;
    Level nodes, ranks;
    Bin* across;          // (nodes) what is cut across them
    int *first, *count;   // (n) machines of a document, or with count 0 its one machine
    int *member, *whole;  // (n) the documents of one machine and their lengths
} Partition;

// ---- windows

static int holds(const PlanLimits* limits, int s, int ranks) {
    return CEIL_DIV(s, ranks) <= limits->capacity && widest_place(s, ranks) <= limits->capacity;
}

// Whether a document is in the zone from threshold on, or has to be cut because `ranks` do not hold it.
static int is_cut(const PlanLimits* limits, int s, int threshold, int ranks) {
    return s >= threshold || !holds(limits, s, ranks);
}

// By what a window is chosen; beyond_room: it need not have room for the document.
typedef struct Choice {
    int by_tokens, beyond_room;
} Choice;

// The window of `width` bins with the least maximum of work, or of tokens, among those that hold the document; -1 when
// there is none. *work: its maximum of work, *ranks: its ranks.
static int find_window(const Level* level, int s, int width, Choice choice, double* work, int* ranks) {
    double least = 0;
    int best = -1;
    for (int at = 0; at + width <= level->n_bins; at++) {
        double most = 0, tokens = 0;
        int n = 0;
        for (int b = at; b < at + width; b++) {
            n += level->bins[b].ranks;
            most = MAX(most, level->bins[b].work);
            tokens = MAX(tokens, level->bins[b].tokens);
        }
        double key = choice.by_tokens ? tokens : most;
        if (best >= 0 && key >= least) continue;
        if (!choice.beyond_room && tokens + (double)s / n > level->room) continue;
        if (!holds(level->limits, s, n)) continue;
        best = at, least = key, *work = most, *ranks = n;
    }
    return best;
}

// Puts a document on `width` bins. Returns the first of them, -1 where no window can have it.
static int put(const Level* level, int s, int width, Choice choice) {
    double work = 0;
    int ranks = 0, at = find_window(level, s, width, choice, &work, &ranks);
    for (int b = at; at >= 0 && b < at + width; b++) {
        level->bins[b].work = work + (double)s * s / ranks;
        level->bins[b].tokens += (double)s / ranks;
    }
    return at;
}

// The same on at least *width bins, if need be beyond their room; *width becomes how many. -1: all do not hold it.
static int put_cut(const Level* level, int s, int* width) {
    int least = *width;
    for (int beyond_room = 0; beyond_room < 2; beyond_room++)
        for (*width = least; *width <= level->n_bins; ++*width) {
            int at = put(level, s, *width, (Choice){0, beyond_room});
            if (at >= 0) return at;
        }
    return -1;
}

// The threshold after an overflow; some of the n lengths, in descending order, are below it.
static int lower(const int* lengths, int n, int threshold) {
    int whole = 0;
    while (lengths[whole] >= threshold) whole++;
    return lengths[MIN(whole + n / 64, n - 1)];
}

// ---- machines

static int refuse(int doc, int s, const PlanLimits* limits, char* err, size_t errlen) {
    return fail(err, errlen,
                "document %d of the step has %d tokens, and a ring of all %d ranks holds %d at capacity %d; try "
                "--capacity %lld or more ranks",
                doc, s, limits->ranks, longest_fitting(limits, s, 1, limits->ranks), limits->capacity,
                (long long)capacity_for(limits, s, 1, limits->ranks));
}

// ceil(part / (all / bins)), 1 to bins: how many bins a part of all takes.
static int bins_of(double part, double all, int bins) {
    double share = part * bins / all;
    if (share >= bins) return bins;
    int whole = (int)share;
    return MAX(whole + (whole < share), 1);
}

// Of the documents that have to be cut, those from threshold on and those that `ranks` do not hold.
typedef struct Total {
    double tokens, work;
} Total;

static Total total_cut(const PlanLimits* limits, const int* lengths, int n, int threshold, int ranks) {
    Total total = {0};
    for (int i = 0; i < n; i++) {
        double s = lengths[i];
        if (!is_cut(limits, lengths[i], threshold, ranks)) continue;
        total.tokens += s;
        total.work += s * s;
    }
    return total;
}

static int machines_of(const Partition* p, int s, const Total* total) {
    return MAX(bins_of(s, total->tokens, p->n_nodes), bins_of((double)s * s, total->work, p->n_nodes));
}

// One pass with this threshold, which may have fallen from `crossing`. 1, or 0 where a document found no room, -1 where
// one is too long.
static int assign_nodes(Partition* p, int threshold, int crossing, char* err, size_t errlen) {
    const PlanLimits* limits = p->limits;
    for (int b = 0; b < p->n_nodes; b++) {
        p->nodes.bins[b] = (Bin){.ranks = MIN(limits->node_size, limits->ranks - b * limits->node_size)};
        p->across[b] = (Bin){0};
    }
    Total total = total_cut(limits, p->sorted, p->n, threshold, p->nodes.bins[0].ranks);
    for (int i = 0; i < p->n; i++) {
        int s = p->sorted[i], *count = &p->count[i], ranks = 0;
        *count = 1;
        if (!is_cut(limits, s, threshold, p->nodes.bins[0].ranks)) {
            p->first[i] = put(&p->nodes, s, 1, (Choice){1, p->n_nodes == 1});
            if (p->first[i] < 0) return 0;
        } else {
            int fallen = s >= threshold && s < crossing;
            *count = fallen ? p->n_nodes : machines_of(p, s, &total);
            p->first[i] = put_cut(&p->nodes, s, count);
            if (p->first[i] < 0) return refuse(p->docs[i], s, limits, err, errlen);
        }
        if (*count == 1) *count = 0;
        for (int b = 0; b < *count; b++) ranks += p->nodes.bins[p->first[i] + b].ranks;
        for (int b = p->first[i]; b < p->first[i] + *count; b++) {
            p->across[b].work += (double)s * s / ranks;
            p->across[b].tokens += (double)s / ranks;
        }
    }
    return 1;
}

// ---- the ranks of a machine

// The same for the n_whole documents that are whole in a machine: all of them fit it.
static int assign_ranks(Partition* p, ZeppelinWindow* windows, int node, int n_whole, int threshold, int crossing) {
    int ranks = p->nodes.bins[node].ranks;
    Total total = total_cut(p->limits, p->whole, n_whole, threshold, 1);
    p->ranks.n_bins = ranks;
    for (int r = 0; r < ranks; r++) p->ranks.bins[r] = (Bin){1, p->across[node].work, p->across[node].tokens};
    for (int i = 0; i < n_whole; i++) {
        int s = p->whole[i], cp_size = 1, at;
        if (!is_cut(p->limits, s, threshold, 1)) {
            at = put(&p->ranks, s, 1, (Choice){1, 0});
            if (at < 0) return 0;
        } else {
            cp_size = bins_of((double)s * s, total.work, ranks);
            if (s >= threshold && s < crossing) cp_size = ranks;
            at = put_cut(&p->ranks, s, &cp_size);
        }
        windows[p->member[i]] =
            (ZeppelinWindow){node * p->limits->node_size + at, cp_size, cp_size > 1 ? QUEUE_INSIDE : QUEUE_LOCAL};
    }
    return 1;
}

// What lies in machine `node`: those cut across get their windows, the others are listed. Returns how many these are.
static int list_members(Partition* p, ZeppelinWindow* windows, int node) {
    int n_whole = 0;
    for (int i = 0; i < p->n; i++) {
        if (p->first[i] != node) continue;
        if (p->count[i] == 0) {
            p->member[n_whole] = i;
            p->whole[n_whole++] = p->sorted[i];
            continue;
        }
        int ranks = 0;
        for (int b = node; b < node + p->count[i]; b++) ranks += p->nodes.bins[b].ranks;
        windows[i] = (ZeppelinWindow){node * p->limits->node_size, ranks, QUEUE_ACROSS};
    }
    return n_whole;
}

// ---- both

static int partition(Partition* p, ZeppelinWindow* windows, ZeppelinZones* zones, char* err, size_t errlen) {
    int crossing = zones->across, done;
    while ((done = assign_nodes(p, zones->across, crossing, err, errlen)) == 0)
        zones->across = lower(p->sorted, p->n, zones->across);
    if (done < 0) return -1;
    crossing = zones->inside;
    zones->inside = MIN(zones->inside, zones->across);
    for (int node = 0; node < p->n_nodes; node++) {
        int n_whole = list_members(p, windows, node), threshold = crossing;
        while (!assign_ranks(p, windows, node, n_whole, threshold, crossing))
            threshold = lower(p->whole, n_whole, threshold);
        zones->inside = MIN(zones->inside, threshold);
    }
    return 0;
}

int zeppelin_partition(ZeppelinWindow* windows, ZeppelinZones* zones, const int* sorted, const int* docs, int n,
                       const PlanLimits* limits, Arena* arena, char* err, size_t errlen) {
    ArenaMark mark = arena_mark(arena);
    Partition p = {.limits = limits,
                   .sorted = sorted,
                   .docs = docs,
                   .n = n,
                   .n_nodes = CEIL_DIV(limits->ranks, limits->node_size),
                   .first = TAKE(arena, int, n),
                   .count = TAKE(arena, int, n),
                   .member = TAKE(arena, int, n),
                   .whole = TAKE(arena, int, n)};
    p.across = TAKE(arena, Bin, p.n_nodes);
    int64_t total = 0, held = (int64_t)limits->capacity * limits->ranks;
    for (int i = 0; i < n; i++) total += sorted[i];
    int64_t room = limits->capacity * MAX(CEIL_DIV(total, held), 1);
    p.nodes = (Level){limits, TAKE(arena, Bin, p.n_nodes), p.n_nodes, (double)room};
    p.ranks = (Level){limits, TAKE(arena, Bin, limits->ranks), 0, (double)room};
    // A machine has nothing to cut across with.
    if (p.n_nodes == 1) zones->across = INT_MAX;
    zones->inside = MIN(zones->inside, zones->across);
    if (arena_check(arena, err, errlen) < 0 || partition(&p, windows, zones, err, errlen) < 0) return -1;
    arena_reset(arena, mark);
    return 0;
}
