// flexsp.c - FlexSP (Wang et al., ASPLOS 2025, arXiv 2412.01523), rebuilt: whole documents on groups of powers of two.
//
// A batch is cut into M rounds (its micro-batches), and in each of them the ranks are divided anew into groups of
// unlike cp sizes:
//   time = sum over rounds of (slowest group + fixed cost)                                        (Alg. 1)
// Documents are sorted by length and cut into contiguous runs of about equal tokens. M starts at the least for which
// every run fits the memory of all ranks together; M' = 5 values are tried. Groups of a round are found for documents
// in 16 buckets or more: as in the released code, until the tokens, as buckets count them, are at most the mean of the
// true ones and what the ranks hold. After that the time of the slowest group is taken again from true lengths. It
// differs from the release: a search replaces the integer program; the members of a bucket go to groups in order of
// length, not at random, so that a plan is a function of lengths; a document that no group holds is an error, not an
// endless loop; nothing is padded (the release pads to twice the ranks). Groups are the machine's (Setting.groups):
// ulysses or ring. Every rank counts with the least capacity, because FlexSP knows one. MicroBatch.round is the round.
#include "plan/published/published.h"

#include <math.h>

// ---- cutting lists of documents into contiguous runs, twice, both times by dynamic programming
//
// Buckets (section 4.1.3, Eq. 15-16): runs of documents sorted by length, each counted as its longest. With err[k][q]
// the least over-statement of the first k documents in q buckets,
//   err[k][q] = min_j err[j][q - 1] + s_j (k - j) - (s_j + .. + s_k-1)            documents from 0, longest first.
// The cost of a run obeys the quadrangle inequality, so the best j never decreases in k, and halving the range of k
// (Galil and Park 1992) takes O(n log n) a column in place of the paper's O(n^2): the same minima.
// Rounds (section 4.2, the "sequence blaster"): runs whose largest sum of tokens is the least,
//   most[k][i] = min_j max(most[j][i - 1], s_j + .. + s_k-1).
// The first rises in j and the second falls, so the best j is where they cross. With V the least maximum of the first k
// documents in i runs, that is the least j at which the last run has at most V tokens. So no table is kept: V comes by
// bisection, each guess checked by filling runs greedily, for one prefix a run from the last to the first.

// A column of the table: prev is err[.][q - 1], now err[.][q].
typedef struct Column {
    const int* lengths;
    const int64_t* sums;  // (n + 1) tokens of the first documents
    const int64_t* prev;
    int64_t* now;
    int* cut;  // the j that was best for each k
} Column;

// Sets now[k] for k in [low, high], whose best j lies in [from, to].
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

int flexsp_buckets(int* first, const int* lengths, int n, int least, int64_t most_tokens, Arena* arena) {
    int most = MIN(n, FLEXSP_MOST_BUCKETS), q = 0;
    size_t width = (size_t)n + 1;
    if (least >= most) return without_buckets(first, n);
    ArenaMark mark = arena_mark(arena);
    int64_t* sums = TAKE(arena, int64_t, 3 * width);
    int* cut = TAKE(arena, int, (width * (size_t)most));
    if (arena->missing) return without_buckets(first, n);
    int64_t *prev = sums + width, *now = prev + width;
    sums[0] = 0;
    for (int i = 0; i < n; i++) sums[i + 1] = sums[i] + lengths[i];
    for (int k = 1; k <= n; k++) now[k] = (int64_t)lengths[0] * k - sums[k];  // one bucket
    for (q = 1; q < least || now[n] + sums[n] > most_tokens;) {
        if (++q >= most) break;
        int64_t* other = prev;
        prev = now, now = other;
        Column column = {lengths, sums, prev, now, cut + (size_t)q * width};
        solve(&column, q, n, q - 1, n - 1);
    }
    first[q] = n;
    for (int b = q; b > 1 && q < most; b--) first[b - 1] = cut[(size_t)b * width + (size_t)first[b]];
    first[0] = 0;
    arena_reset(arena, mark);
    return q < most ? q : without_buckets(first, n);
}

int flexsp_least_chunks(const int* lengths, int n, int64_t capacity) {
    int64_t in_chunk = 0;
    int chunks = n > 0;
    for (int i = 0; i < n; i++) {
        if (lengths[i] > capacity) return n + 1;
        if (in_chunk + lengths[i] > capacity) chunks++, in_chunk = 0;
        in_chunk += lengths[i];
    }
    return chunks;
}

static int64_t least_maximum(const int* lengths, int n, int64_t tokens, int runs) {
    int64_t low = CEIL_DIV(tokens, runs), high = tokens;
    while (low < high) {
        int64_t most = low + (high - low) / 2;
        if (flexsp_least_chunks(lengths, n, most) <= runs) high = most;
        else low = most + 1;
    }
    return low;
}

void flexsp_chunks(int* first, const int* lengths, int n, int m) {
    int64_t tokens = 0;
    for (int i = 0; i < n; i++) tokens += lengths[i];
    first[m] = n;
    for (int runs = m, j = n; runs > 0; runs--) {
        int64_t left = least_maximum(lengths, j, tokens, runs);
        for (; j >= runs && left >= lengths[j - 1]; left -= lengths[j]) tokens -= lengths[--j];
        first[runs - 1] = j;
    }
}

// ---- groups of one round, and who goes into which
//
// The paper (section 4.1) minimises the time of the slowest group by a mixed-integer program over (bucket, group), in 5
// to 15 s. Here all ways to divide N ranks into powers of two are tried, 1828 for 64 ranks, 27338 for 128. For each,
// documents go longest first to the group that would finish earliest and has memory, and a partition is left as soon as
// it cannot beat the best so far: a group is as late, or the work done and to come divided by all ranks is as much. Cp
// size 1 is allowed, as in the paper's case study (its released code leaves it out), and groups may stay empty. Beyond
// 128 ranks (692004 ways for 256) a beam keeps the 8 best, starting with those of one cp size, and merges or splits 1,
// 2, 4, .. groups of them until nothing better turns up.
//
// A group takes, as published (Eq. 12 to 14), (a1 sum s^2 + a2 sum s) / d + all-to-all bytes / (d v), with a constant v
// for each cp size; if a machine has tables of message sizes, a full group's. The fixed cost b1 of a round is what a
// micro-batch costs by itself. Ranks count as equally fast.

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
        x->linear[c] = g->per_token + group_communication_ms(g, full) / full;
    }
}

// A document of a bucket counts as its longest. With rings a shorter one may take a token more of a rank, because
// borders are rounded.
void flexsp_batch(FlexspBatch* batch, const int* lengths, int n, const int* first, int n_buckets,
                  const FlexspCpSizes* cp_sizes, Arena* arena) {
    int D = cp_sizes->n;
    *batch = (FlexspBatch){n, TAKE(arena, int, n), TAKE(arena, double, n* D), TAKE(arena, int64_t, n * D),
                           TAKE(arena, double, (n + 1) * D)};
    if (arena->missing) return;
    for (int b = 0; b < n_buckets; b++) {
        double s = lengths[first[b]];
        for (int c = 0; c < D; c++) {
            batch->ms[b * D + c] = cp_sizes->quadratic[c] * s * s + cp_sizes->linear[c] * s;
            int64_t takes = 0;
            for (int i = first[b]; i < first[b + 1]; i++)
                takes = MAX(takes, widest_ring_rank(lengths[i], cp_sizes->ring_size[c]));
            batch->takes[b * D + c] = takes;
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
}

// ---- partitions

static void divide(int* counts, int c, int ranks, void (*visit)(void* of, const int* counts), void* of) {
    if (c == 0) {
        counts[0] = ranks;
        visit(of, counts);
        return;
    }
    for (counts[c] = 0; counts[c] <= ranks >> c; counts[c]++)
        divide(counts, c - 1, ranks - (counts[c] << c), visit, of);
}

void flexsp_partitions(int ranks, int n_cp_sizes, void (*visit)(void* of, const int* counts), void* of) {
    int counts[FLEXSP_CP_SIZES] = {0};
    divide(counts, n_cp_sizes - 1, ranks, visit, of);
}

// ---- one partition

typedef struct Group {
    double load;
    int64_t room;
    int number;
} Group;

// A partition of the beam.
typedef struct Candidate {
    int counts[FLEXSP_CP_SIZES], expanded;
    double ms;
} Candidate;

typedef struct Search {
    const FlexspCpSizes* cp_sizes;
    const FlexspBatch* batch;
    Group* groups;  // (ranks) those of a cp size together, a heap by load
    int* chosen;    // (n) groups of the partition at hand
    double best;
    int* counts;    // (cp sizes) of the best
    int* group_of;  // (n)
    int n_beam;
    Candidate beam[FLEXSP_BEAM];  // in order of time
} Search;

// The least loaded group that has room, nearly always the first of the heap; -1 for none.
static int with_room(const Group* heap, int n, int64_t takes) {
    if (heap[0].room >= takes) return 0;
    int best = -1;
    for (int i = 1; i < n; i++)
        if (heap[i].room >= takes && (best < 0 || heap[i].load < heap[best].load)) best = i;
    return best;
}

// Restores the order of heap (n) after group `at` has got more load.
static void sift(Group* heap, int n, int at) {
    Group group = heap[at];
    for (int child = 2 * at + 1; child < n; at = child, child = 2 * at + 1) {
        if (child + 1 < n && heap[child + 1].load < heap[child].load) child++;
        if (heap[child].load >= group.load) break;
        heap[at] = heap[child];
    }
    heap[at] = group;
}

// Fills groups of these counts, and x->chosen. Returns the time of the slowest group; INFINITY if documents do not fit
// or need `limit` or more.
static double fill_groups(Search* x, const int* counts, double limit) {
    const FlexspCpSizes* d = x->cp_sizes;
    const FlexspBatch* batch = x->batch;
    int present[FLEXSP_CP_SIZES], n_present = 0, number = 0, at = 0;
    Group* heap[FLEXSP_CP_SIZES];
    for (int c = d->n; c-- > 0; at += counts[c]) {
        heap[c] = x->groups + at;
        for (int g = 0; g < counts[c]; g++) heap[c][g] = (Group){0, d->room[c], number++};
        if (counts[c]) present[n_present++] = c;
    }
    const double* to_come = batch->least_work + (size_t)present[n_present - 1] * (size_t)(batch->n + 1);
    double most_work = limit * d->ranks, work = 0, slowest = 0;
    if (to_come[0] >= most_work) return INFINITY;
    for (int i = 0; i < batch->n; i++) {
        const double* ms = batch->ms + (size_t)batch->bucket[i] * (size_t)d->n;
        const int64_t* takes = batch->takes + (size_t)batch->bucket[i] * (size_t)d->n;
        double earliest = limit;
        int best = -1, group = 0;
        for (int p = n_present; p-- > 0;) {
            int c = present[p], g = with_room(heap[c], counts[c], takes[c]);
            if (g >= 0 && heap[c][g].load + ms[c] < earliest) earliest = heap[c][g].load + ms[c], best = c, group = g;
        }
        if (best < 0) return INFINITY;
        x->chosen[i] = heap[best][group].number;
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
    memcpy(x->group_of, x->chosen, sizeof(int) * (size_t)x->batch->n);
}

static void try_partition(void* of, const int* counts) {
    Search* x = (Search*)of;
    double ms = fill_groups(x, counts, x->best);
    if (ms < x->best) keep(x, counts, ms);
}

// Counts as many groups of cp size c as fit, and puts the other ranks into the widest that fit.
static void homogeneous(int* counts, int c, int ranks) {
    memset(counts, 0, sizeof(int) * FLEXSP_CP_SIZES);
    for (; c >= 0; c--) {
        counts[c] = ranks >> c;
        ranks -= counts[c] << c;
    }
}

// ---- the beam

// Puts a partition into the beam if it is better than the last of a full one. One that failed or has left it fails
// again later.
static void offer(Search* x, const int* counts) {
    Candidate one = {.ms = INFINITY};
    memcpy(one.counts, counts, sizeof one.counts);
    for (int i = 0; i < x->n_beam; i++)
        if (!memcmp(x->beam[i].counts, one.counts, sizeof one.counts)) return;
    double limit = x->n_beam == FLEXSP_BEAM ? x->beam[FLEXSP_BEAM - 1].ms : INFINITY;
    one.ms = fill_groups(x, counts, limit);
    if (one.ms >= limit) return;
    if (one.ms < x->best) keep(x, counts, one.ms);
    int at = x->n_beam < FLEXSP_BEAM ? x->n_beam++ : FLEXSP_BEAM - 1;
    for (; at > 0 && x->beam[at - 1].ms > one.ms; at--) x->beam[at] = x->beam[at - 1];
    x->beam[at] = one;
}

// Merges 2 k groups of a cp size into k of the next, or splits k into 2 k of the one below, for k = 1, 2, 4, ...
static void expand(Search* x, const Candidate from) {
    int counts[FLEXSP_CP_SIZES], D = x->cp_sizes->n;
    for (int c = 0; c < D; c++)
        for (int k = 1; k <= from.counts[c]; k *= 2) {
            memcpy(counts, from.counts, sizeof counts);
            if (c > 0) counts[c] -= k, counts[c - 1] += 2 * k, offer(x, counts);
            memcpy(counts, from.counts, sizeof counts);
            if (c + 1 < D && 2 * k <= counts[c]) counts[c] -= 2 * k, counts[c + 1] += k, offer(x, counts);
        }
}

static void search_beam(Search* x) {
    int counts[FLEXSP_CP_SIZES];
    for (int c = 0; c < x->cp_sizes->n; c++) homogeneous(counts, c, x->cp_sizes->ranks), offer(x, counts);
    for (int i = 0; i < x->n_beam; i++) {
        if (x->beam[i].expanded) continue;
        x->beam[i].expanded = 1;
        expand(x, x->beam[i]);
        i = -1;  // from the best one again
    }
}

double flexsp_groups(const FlexspCpSizes* cp_sizes, const FlexspBatch* batch, int enumerated, int* counts,
                     int* group_of, Arena* arena) {
    ArenaMark mark = arena_mark(arena);
    int all = cp_sizes->ranks <= enumerated, start[FLEXSP_CP_SIZES];
    Search x = {cp_sizes,
                batch,
                .groups = TAKE(arena, Group, cp_sizes->ranks),
                .chosen = TAKE(arena, int, batch->n),
                .best = INFINITY,
                .counts = counts,
                .group_of = group_of};
    if (arena->missing) return INFINITY;
    if (all) {
        // One cp size for all first, the paper's warm start, so that there is something to beat.
        for (int c = cp_sizes->n; c-- > 0;) homogeneous(start, c, cp_sizes->ranks), try_partition(&x, start);
        flexsp_partitions(cp_sizes->ranks, cp_sizes->n, try_partition, &x);
    } else search_beam(&x);
    arena_reset(arena, mark);
    return x.best;
}

// ---- whole plans

// A group of a round: its cp size, documents, micro-batch and load.
typedef struct RoundGroup {
    int c, n_docs, mb;
    double load;
} RoundGroup;

typedef struct Work {
    const Setting* setting;
    int n, no_buckets;
    FlexspCpSizes cp_sizes;
    int *documents, *lengths;  // (n) the longest first, and their lengths
    double* area;              // (n + 1) least rank-ms of the first documents
    int* first;                // (n + 1) rounds
    int* bucket;               // (n + 1)
    int* group_of;             // (n)
    int* mb_of;                // (n) of each document, in `trial`
    RoundGroup* groups;        // (ranks) of the round
    Plan trial;                // the plan of the trial at hand
    Arena* arena;
    double best;  // ms of the best trial
} Work;

// Sorts documents, and sums their least rank-ms. -1 if no group holds one of them.
static int sort_documents(Work* x, const int* lengths, Err err) {
    const FlexspCpSizes* d = &x->cp_sizes;
    sort_longest_first(x->documents, x->lengths, lengths, x->n);
    x->area[0] = 0;
    for (int i = 0; i < x->n; i++) {
        double s = x->lengths[i], least = INFINITY;
        for (int c = 0; c < d->n; c++)
            if (widest_ring_rank(x->lengths[i], d->ring_size[c]) <= d->room[c])
                least = fmin(least, d->cp_size[c] * (d->quadratic[c] * s * s + d->linear[c] * s));
        if (least == INFINITY) return refuse_document(x->documents[i], x->lengths[i], &x->setting->limits, err);
        x->area[i + 1] = x->area[i] + least;
    }
    return 0;
}

// Appends the micro-batches of a round. Returns the time of the slowest, from true lengths. The widest group begins at
// rank 0; each cp size divides those before it, so every group begins at a multiple of its own.
static double write_round(Work* x, int round, int first, int n, const int* counts) {
    const FlexspCpSizes* d = &x->cp_sizes;
    Plan* plan = &x->trial;
    double slowest = 0;
    int groups = 0;
    for (int c = d->n; c-- > 0;)
        for (int g = 0; g < counts[c]; g++) x->groups[groups++] = (RoundGroup){.c = c};
    for (int i = 0; i < n; i++) {
        RoundGroup* group = &x->groups[x->group_of[i]];
        double s = x->lengths[first + i];
        group->load += d->quadratic[group->c] * s * s + d->linear[group->c] * s;
        group->n_docs++;
        slowest = fmax(slowest, group->load);
    }
    for (int g = 0, rank = 0; g < groups; g++) {
        int c = x->groups[g].c;
        x->groups[g].mb = plan->n_micro_batches;
        if (x->groups[g].n_docs)
            plan->micro_batches[plan->n_micro_batches++] = (MicroBatch){
                .first_rank = rank, .cp_size = d->cp_size[c], .ulysses_size = d->ulysses_size[c], .round = round};
        rank += d->cp_size[c];
    }
    for (int i = 0; i < n; i++) x->mb_of[x->documents[first + i]] = x->groups[x->group_of[i]].mb;
    return slowest;
}

// Plans documents [first, end) as round `round`. Returns its time, INFINITY if they do not fit or memory is missing.
static double plan_round(Work* x, int round, int first, int end) {
    int n = end - first, counts[FLEXSP_CP_SIZES];
    int64_t tokens = 0, capacity = (int64_t)x->cp_sizes.ranks * x->setting->limits.capacity;
    ArenaMark mark = arena_mark(x->arena);
    FlexspBatch batch;
    for (int i = first; i < end; i++) tokens += x->lengths[i];
    // Bucketed tokens may be the mean of the true ones and the ranks' capacity, which a round never exceeds.
    int64_t most = tokens + (capacity - tokens) / 2;
    int least = x->no_buckets ? n : MIN(n, FLEXSP_BUCKETS);
    int buckets = flexsp_buckets(x->bucket, x->lengths + first, n, least, most, x->arena);
    flexsp_batch(&batch, x->lengths + first, n, x->bucket, buckets, &x->cp_sizes, x->arena);
    double ms = flexsp_groups(&x->cp_sizes, &batch, FLEXSP_ENUMERATED, counts, x->group_of, x->arena);
    arena_reset(x->arena, mark);
    return ms == INFINITY ? ms : write_round(x, round, first, n, counts);
}

// ---- trials

// M rounds. The total in ms, INFINITY where one does not fit or the total cannot beat the best.
static double try_rounds(Work* x, int m) {
    double total = 0, fixed = x->setting->groups[1].micro_batch;
    flexsp_chunks(x->first, x->lengths, x->n, m);
    x->trial.n_micro_batches = 0;
    for (int i = 0; i < m; i++) {
        double to_come = (x->area[x->n] - x->area[x->first[i]]) / x->cp_sizes.ranks + fixed * (m - i);
        if (total + to_come >= x->best) return INFINITY;
        double ms = plan_round(x, i, x->first[i], x->first[i + 1]);
        if (ms == INFINITY) return ms;
        total += ms + fixed;
    }
    x->trial.n_rounds = m;
    return total;
}

// M' values of M from M_min on, and as many again while none of them fits.
static int try_all(Work* x, Plan* plan, Err err) {
    int64_t capacity = (int64_t)x->cp_sizes.ranks * x->setting->limits.capacity;
    for (int from = flexsp_least_chunks(x->lengths, x->n, capacity); from <= x->n && x->best == INFINITY;
         from += FLEXSP_TRIALS) {
        for (int m = from; m <= MIN(from + FLEXSP_TRIALS - 1, x->n); m++) {
            double ms = try_rounds(x, m);
            if (ms >= x->best) continue;
            x->best = ms;
            plan_fill(&x->trial, x->documents, x->mb_of);
            plan_copy(plan, &x->trial);
        }
        if (arena_check(x->arena, err) < 0) return -1;
    }
    if (x->n > 0 && x->best == INFINITY)
        return fail(err, "no division of %d ranks into powers of two holds the %d documents of the step",
                    x->cp_sizes.ranks, x->n);
    return 0;
}

int flexsp_plan(Plan* plan, double* ms, int64_t step, const int* lengths, int n, const Setting* setting, int no_buckets,
                Arena* arena, Err err) {
    if (plan_begin(plan, step, lengths, n, &setting->limits, arena, err) < 0) return -1;
    ArenaMark mark = arena_mark(arena);
    Setting own;
    if (planner_alike(&own, setting, arena, err) < 0) return -1;
    plan->has_barriers = 1;
    Work x = {.setting = &own,
              .n = n,
              .no_buckets = no_buckets,
              .documents = TAKE(arena, int, n),
              .lengths = TAKE(arena, int, n),
              .area = TAKE(arena, double, n + 1),
              .first = TAKE(arena, int, n + 1),
              .bucket = TAKE(arena, int, n + 1),
              .group_of = TAKE(arena, int, n),
              .mb_of = TAKE(arena, int, n),
              .groups = TAKE(arena, RoundGroup, setting->limits.ranks),
              .arena = arena,
              .best = INFINITY};
    plan_take(&x.trial, n, arena);
    x.trial.squares = plan->squares;
    x.trial.n_docs = n, x.trial.step = step, x.trial.ranks = setting->limits.ranks, x.trial.has_barriers = 1;
    flexsp_cp_sizes(&x.cp_sizes, &own);
    if (arena_check(arena, err) < 0 || sort_documents(&x, lengths, err) < 0) return -1;
    if (n > 0 && try_all(&x, plan, err) < 0) return -1;
    if (ms) *ms = x.best;
    arena_reset(arena, mark);
    return 0;
}

// ---- the entry of the table

static int plan_flexsp(const void* planner, Plan* plan, int64_t step, const int* lengths, int n, Arena* arena,
                       Err err) {
    return flexsp_plan(plan, NULL, step, lengths, n, (const Setting*)planner, 0, arena, err);
}

// Counts tables of buckets, or times and rooms of every cp size, and lists of documents.
static size_t more_bytes(int n, const PlanLimits* limits) {
    return (size_t)n * (FLEXSP_MOST_BUCKETS * sizeof(int) + 64) + (size_t)limits->ranks * 64;
}

const Planner planner_flexsp = {
    .name = "flexsp",
    .words = "FlexSP (ASPLOS 2025): rounds of sorted documents, groups of unlike powers of two in each",
    .open = planner_open_setting,
    .plan = plan_flexsp,
    .more_bytes = more_bytes};
