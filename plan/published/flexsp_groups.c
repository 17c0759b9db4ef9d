// flexsp_groups.c - FlexSP's planner for one round: groups of powers of two, and who goes into which.
//
// The paper (section 4.1) minimises the time of the slowest group by a mixed-integer program over (bucket, group); its
// solver takes 5 to 15 s. Here a search stands in for it: the ways to divide N ranks into powers of two are the binary
// partitions of N, 1828 for 64 ranks, 27338 for 128, so all are tried. For each, documents go longest first to the
// group that would finish earliest and has memory, and a partition is left as soon as it cannot beat the best so far:
// a group is as late, or the work done and to come divided by all ranks is as much. Cp size 1 is allowed, as in the
// paper's case study (its released code leaves it out), and groups may stay empty (sum of cp sizes at most N, as in the
// paper). Beyond 128 ranks there are too many partitions (692004 for 256): a beam keeps the 8 best, starting with those
// of one cp size, and merges or splits 1, 2, 4, .. groups of them until nothing better turns up.
//
// Time of a group as published (Eq. 12 to 14): (a1 sum s^2 + a2 sum s) / d + all-to-all bytes / (d v), additive, with
// a constant v for each cp size, "by profiling". Where a machine knows tables of message sizes, v is that of a full
// group. The fixed cost b1 of a round is Cost.round. Ranks count as equally fast.
#include "plan/published/flexsp.h"

#include <math.h>
#include <stdlib.h>

#include "plan/planner.h"

// ---- what groups and documents cost

void flexsp_cp_sizes(FlexspCpSizes* x, const Setting* setting) {
    *x = (FlexspCpSizes){.ranks = setting->limits.ranks};
    for (int d = 1; d <= x->ranks && x->n < FLEXSP_CP_SIZES; d *= 2) {
        const GroupCost* g = &setting->groups[d];
        if (g->ulysses_size == 0) return;  // heads do not suffice, nor for wider groups
        int c = x->n++;
        x->cp_size[c] = d;
        x->ulysses_size[c] = g->ulysses_size;
        x->ring_size[c] = d / g->ulysses_size;
        x->room[c] = g->room;
        double full = (double)g->room * x->ring_size[c];
        x->quadratic[c] = g->quadratic;
        x->linear[c] = g->linear + group_communication_ms(g, full) / full;
        x->micro_batch[c] = g->micro_batch;
    }
}

// Of a document of the bucket first .. end - 1, which counts as its longest. With rings a shorter one may take a token
// more of a place, because borders are rounded.
static int64_t bucket_takes(const int* lengths, int first, int end, int ring_size) {
    int64_t takes = lengths[first];
    if (ring_size == 1) return takes;
    takes = 0;
    for (int i = first; i < end; i++) takes = MAX(takes, widest_place(lengths[i], ring_size));
    return takes;
}

int flexsp_batch(FlexspBatch* batch, const int* lengths, int n, const int* first, int n_buckets,
                 const FlexspCpSizes* cp_sizes, Arena* arena) {
    int D = cp_sizes->n;
    *batch = (FlexspBatch){n, TAKE(arena, int, n), TAKE(arena, double, n * D), TAKE(arena, int64_t, n * D),
                           TAKE(arena, double, (n + 1) * D)};
    if (arena_check(arena, NULL, 0) < 0) return -1;
    for (int b = 0; b < n_buckets; b++) {
        double s = lengths[first[b]];
        for (int c = 0; c < D; c++) {
            batch->ms[b * D + c] = cp_sizes->quadratic[c] * s * s + cp_sizes->linear[c] * s;
            batch->takes[b * D + c] = bucket_takes(lengths, first[b], first[b + 1], cp_sizes->ring_size[c]);
        }
        for (int i = first[b]; i < first[b + 1]; i++) batch->bucket[i] = b;
    }
    for (int c = 0; c < D; c++) {
        double* work = batch->least_work + (size_t)c * (size_t)(n + 1);
        work[n] = 0;
        for (int i = n; i-- > 0;) {
            double least = INFINITY;
            for (int e = c; e < D; e++) {
                int of = batch->bucket[i] * D + e;
                if (batch->takes[of] <= cp_sizes->room[e]) least = fmin(least, cp_sizes->cp_size[e] * batch->ms[of]);
            }
            work[i] = work[i + 1] + least;
        }
    }
    return 0;
}

// ---- partitions

typedef struct Partitions {
    int counts[FLEXSP_CP_SIZES];
    void (*visit)(void* of, const int* counts);
    void* of;
} Partitions;

static void divide(Partitions* p, int c, int ranks) {
    if (c == 0) {
        p->counts[0] = ranks;
        p->visit(p->of, p->counts);
        return;
    }
    for (p->counts[c] = 0; p->counts[c] <= ranks >> c; p->counts[c]++) divide(p, c - 1, ranks - (p->counts[c] << c));
}

void flexsp_partitions(int ranks, int n_cp_sizes, void (*visit)(void* of, const int* counts), void* of) {
    Partitions p = {.visit = visit, .of = of};
    divide(&p, n_cp_sizes - 1, ranks);
}

// ---- one partition

typedef struct Group {
    double load;
    int64_t room;
    int number;
} Group;

typedef struct Search {
    const FlexspCpSizes* cp_sizes;
    const FlexspBatch* batch;
    Group* groups;  // (ranks) those of a cp size together, a heap by load
    int* place;     // (n) groups of the partition that is looked at
    double best;
    int* counts;    // (cp sizes) of the best
    int* group_of;  // (n)
} Search;

// The least loaded group that has room: the first of the heap, nearly always; -1 for none.
static int with_room(const Group* heap, int n, int64_t takes) {
    if (heap[0].room >= takes) return 0;
    int best = -1;
    for (int i = 1; i < n; i++)
        if (heap[i].room >= takes && (best < 0 || heap[i].load < heap[best].load)) best = i;
    return best;
}

// Restores the order of heap (n) where group `at` has got more load.
static void sift(Group* heap, int n, int at) {
    Group group = heap[at];
    for (int child = 2 * at + 1; child < n; at = child, child = 2 * at + 1) {
        if (child + 1 < n && heap[child + 1].load < heap[child].load) child++;
        if (heap[child].load >= group.load) break;
        heap[at] = heap[child];
    }
    heap[at] = group;
}

// The time of the slowest group where documents go into groups of these counts; INFINITY when they do not fit or
// need `limit` or more. Fills x->place.
static double fill_groups(Search* x, const int* counts, double limit) {
    const FlexspCpSizes* d = x->cp_sizes;
    const FlexspBatch* batch = x->batch;
    int present[FLEXSP_CP_SIZES], n_present = 0, number = 0, at = 0;
    Group* heap[FLEXSP_CP_SIZES];
    for (int c = d->n; c-- > 0; at += counts[c]) {
        heap[c] = x->groups + at;
        for (int g = 0; g < counts[c]; g++) heap[c][g] = (Group){d->micro_batch[c], d->room[c], number++};
    }
    for (int c = 0; c < d->n; c++)
        if (counts[c]) present[n_present++] = c;
    const double* to_come = batch->least_work + (size_t)present[0] * (size_t)(batch->n + 1);
    double most_work = limit * d->ranks, work = 0, slowest = 0;
    if (to_come[0] >= most_work) return INFINITY;
    for (int i = 0; i < batch->n; i++) {
        const double* ms = batch->ms + (size_t)batch->bucket[i] * (size_t)d->n;
        const int64_t* takes = batch->takes + (size_t)batch->bucket[i] * (size_t)d->n;
        double earliest = limit;
        int best = -1, group = 0;
        for (int p = 0; p < n_present; p++) {
            int c = present[p], g = with_room(heap[c], counts[c], takes[c]);
            if (g >= 0 && heap[c][g].load + ms[c] < earliest) earliest = heap[c][g].load + ms[c], best = c, group = g;
        }
        if (best < 0) return INFINITY;
        x->place[i] = heap[best][group].number;
        heap[best][group].load = earliest;
        heap[best][group].room -= takes[best];
        sift(heap[best], counts[best], group);
        slowest = fmax(slowest, earliest);
        work += d->cp_size[best] * ms[best];
        if (work + to_come[i + 1] >= most_work) return INFINITY;
    }
    return slowest;
}

static void keep(Search* x, const int* counts, double ms) {
    x->best = ms;
    memcpy(x->counts, counts, sizeof(int) * (size_t)x->cp_sizes->n);
    memcpy(x->group_of, x->place, sizeof(int) * (size_t)x->batch->n);
}

static void try_partition(void* of, const int* counts) {
    Search* x = (Search*)of;
    double ms = fill_groups(x, counts, x->best);
    if (ms < x->best) keep(x, counts, ms);
}

// As many groups of cp size c as there is room for, and what is left in the widest that go.
static void homogeneous(int* counts, int c, int ranks) {
    memset(counts, 0, sizeof(int) * FLEXSP_CP_SIZES);
    for (; c >= 0; c--) {
        counts[c] = ranks >> c;
        ranks -= counts[c] << c;
    }
}

// ---- the beam

typedef struct Candidate {
    int counts[FLEXSP_CP_SIZES];
    double ms;
    int expanded;
} Candidate;

enum { SEEN = 1 << 14 };  // partitions that are remembered; the beam ends when half of them are

typedef struct Beam {
    Search* x;
    Candidate candidates[FLEXSP_BEAM];
    int n, n_seen;
    uint64_t seen[SEEN];  // hashes, 0: free
} Beam;

static int seen_before(Beam* beam, const int* counts) {
    uint64_t hash = hash_bytes(counts, sizeof(int) * FLEXSP_CP_SIZES, 1);
    size_t at = hash % SEEN;
    for (; beam->seen[at]; at = (at + 1) % SEEN)
        if (beam->seen[at] == hash) return 1;
    beam->seen[at] = hash;
    beam->n_seen++;
    return 0;
}

// Into its place among the candidates, which are in order of time, if it is better than the last of a full beam.
static void offer(Beam* beam, const int* counts) {
    if (seen_before(beam, counts)) return;
    double limit = beam->n == FLEXSP_BEAM ? beam->candidates[beam->n - 1].ms : INFINITY;
    double ms = fill_groups(beam->x, counts, limit);
    if (ms >= limit) return;
    if (ms < beam->x->best) keep(beam->x, counts, ms);
    int at = beam->n < FLEXSP_BEAM ? beam->n++ : FLEXSP_BEAM - 1;
    for (; at > 0 && beam->candidates[at - 1].ms > ms; at--) beam->candidates[at] = beam->candidates[at - 1];
    beam->candidates[at].ms = ms;
    beam->candidates[at].expanded = 0;
    memcpy(beam->candidates[at].counts, counts, sizeof beam->candidates[at].counts);
}

// Merges 2 k groups of a cp size into k of the next, or splits k into 2 k of the one below, for k = 1, 2, 4, ...
static void expand(Beam* beam, const Candidate* from) {
    int counts[FLEXSP_CP_SIZES];
    for (int c = 0; c < beam->x->cp_sizes->n; c++)
        for (int k = 1; k <= from->counts[c]; k *= 2) {
            memcpy(counts, from->counts, sizeof counts);
            if (c > 0) counts[c] -= k, counts[c - 1] += 2 * k, offer(beam, counts);
            memcpy(counts, from->counts, sizeof counts);
            if (c + 1 == beam->x->cp_sizes->n || 2 * k > counts[c]) continue;
            counts[c] -= 2 * k, counts[c + 1] += k, offer(beam, counts);
        }
}

static int search_beam(Search* x) {
    int counts[FLEXSP_CP_SIZES];
    Beam* beam = (Beam*)calloc(1, sizeof *beam);
    if (!beam) return -1;
    beam->x = x;
    for (int c = 0; c < x->cp_sizes->n; c++) homogeneous(counts, c, x->cp_sizes->ranks), offer(beam, counts);
    for (int i = 0; i < beam->n && beam->n_seen < SEEN / 2;) {
        if (beam->candidates[i].expanded) {
            i++;
            continue;
        }
        beam->candidates[i].expanded = 1;
        Candidate from = beam->candidates[i];
        expand(beam, &from);
        i = 0;
    }
    free(beam);
    return 0;
}

double flexsp_groups(const FlexspCpSizes* cp_sizes, const FlexspBatch* batch, int enumerated, int* counts,
                     int* group_of) {
    size_t groups = sizeof(Group) * (size_t)cp_sizes->ranks;
    char* memory = (char*)malloc(groups + sizeof(int) * (size_t)batch->n);
    if (!memory) return -2;
    Search x = {cp_sizes, batch, (Group*)memory, (int*)(memory + groups), INFINITY, counts, group_of};
    int done = 0, start[FLEXSP_CP_SIZES];
    if (cp_sizes->ranks <= enumerated) {
        // One cp size for all first, the paper's warm start, so that there is something to beat.
        for (int c = cp_sizes->n; c-- > 0;) homogeneous(start, c, cp_sizes->ranks), try_partition(&x, start);
        flexsp_partitions(cp_sizes->ranks, cp_sizes->n, try_partition, &x);
    } else done = search_beam(&x);
    free(memory);
    return done < 0 ? -2 : x.best;
}
