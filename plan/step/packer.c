// packer.c - can all documents end before a target time tau? Deadline packing of moldable tasks.
//
// Longest first, each document takes the least cp size d with T(s, d) <= tau, on the window of ranks where it ends by
// tau and wastes least: the time for which ranks of the window stand still until the last of them is free, then the
// fullest window. Where no window has room, the next wider cp size is tried, whose task is shorter: this is what fills
// gaps, and what list scheduling with fixed cp sizes lacks.
//
// Documents join micro-batches that are there already where these have room, the last of a window or older ones below
// it on the same ranks. Where a micro-batch costs something by itself, joining one, also a wider one than the document
// needs, is weighed against opening another, which a way that levels does on the emptiest window.
//
// Choosing the allotment by a deadline: Turek, Wolf and Yu 1992, Mounie, Rapine and Trystram 1999. Packing to a
// deadline by best fit instead of levelling: MULTIFIT, Coffman, Garey and Johnson 1978. Widening on failure is ours.
#include <math.h>

#include "plan/step/packer.h"

// Part of tau below which a micro-batch's own cost does not decide where documents go.
static const double small_change = 0.002;
enum { WIDENINGS = 12 };  // cp sizes tried when the least has no window

// A document at some cp size.
typedef struct Task {
    const GroupCost* g;
    int cp_size;     // units
    double t;        // ms, at full speed, without a new micro-batch's own
    int64_t tokens;  // of a ring rank
    double s, target;
} Task;

Search search_take(const int* sorted, int n, const Setting* setting, Arena* arena) {
    int ranks = setting->limits.ranks;
    return (Search){.setting = setting,
                    .sorted = sorted,
                    .n = n,
                    .ranks = ranks,
                    .node = MIN(setting->limits.node_size, ranks),
                    .alone = TAKE(arena, double, n),
                    .least_rest = TAKE(arena, double, n + 1),
                    .least2 = TAKE(arena, double, ranks + 2),
                    .least1 = TAKE(arena, double, ranks + 2),
                    .load = TAKE(arena, double, ranks),
                    .last = TAKE(arena, int, ranks),
                    .ring_docs = TAKE(arena, int, ranks),
                    .node_least = TAKE(arena, double, ranks),
                    .node_most = TAKE(arena, double, ranks),
                    .local_room = TAKE(arena, int64_t, ranks),
                    .node_room = TAKE(arena, int64_t, ranks),
                    .wide = TAKE(arena, int, ranks + 1),
                    .next_wide = TAKE(arena, int, n),
                    .wide_sizes = TAKE(arena, int, ranks),
                    .takes = TAKE(arena, double, ranks + 1),
                    .free_from = TAKE(arena, double, ranks + 1)};
}

static const GroupCost* group_of(const Search* x, int cp_size) { return &x->setting->groups[cp_size]; }

// Least rank-ms of each document. A group computes at least this, whatever it has to exchange by tables.
static void weigh_rest(Search* x) {
    int ranks = x->ranks, capacity = x->setting->limits.capacity;
    x->least2[ranks + 1] = x->least1[ranks + 1] = INFINITY;
    for (int d = ranks; d > 0; d--) {
        const GroupCost* g = group_of(x, d);
        int used = g->ulysses_size && g->canonical;
        x->least2[d] = MIN(x->least2[d + 1], used ? d * g->quadratic : INFINITY);
        x->least1[d] = MIN(x->least1[d + 1], used ? d * (g->per_token + g->shown_linear[HIDING_OWN]) : INFINITY);
    }
    x->least_rest[x->n] = x->tokens = 0;
    for (int k = x->n - 1; k >= 0; k--) {
        double s = x->sorted[k];
        int d = MIN(CEIL_DIV(x->sorted[k], capacity), ranks + 1);
        x->least_rest[k] = x->least_rest[k + 1] + (x->least2[d] * s + x->least1[d]) * s;
        x->tokens += s;
    }
}

void search_begin(Search* x) {
    const GroupCost* g = group_of(x, 1);
    for (int k = 0; k < x->n; k++) x->alone[k] = group_holds(g, x->sorted[k]) ? document_ms(g, x->sorted[k]) : INFINITY;
    weigh_rest(x);
    x->fastest = x->setting->speeds ? 0 : 1;
    for (int r = 0; r < x->ranks && x->setting->speeds; r++) x->fastest = MAX(x->fastest, x->setting->speeds[r]);
}

static void clear(Search* x, Guess* guess) {
    guess->makespan = 0;
    guess->n_micro_batches = x->n_wide_sizes = 0;
    x->loaded = x->opened = 0;
    for (int r = 0; r < x->ranks; r++) x->load[r] = 0, x->last[r] = -1, x->ring_docs[r] = 0, x->local_room[r] = -1;
    for (int n = 0; n < CEIL_DIV(x->ranks, x->node); n++) x->node_least[n] = x->node_most[n] = 0, x->node_room[n] = -1;
    for (int d = 0; d <= x->ranks; d++) x->wide[d] = -1, x->takes[d] = INFINITY, x->free_from[d] = 0;
}

// ---- windows

// The micro-batch with room, this one or one below it on the same ranks; -1: none.
static int micro_batch_with_room(const Guess* guess, int id, int64_t tokens) {
    if (id < 0 || guess->micro_batches[id].most_room < tokens) return -1;
    while (guess->micro_batches[id].room < tokens) id = guess->micro_batches[id].older;
    return id;
}

static int stands_on(const OpenMicroBatch* mb, int first, int cp_size) {
    return mb->first == first && mb->cp_size == cp_size;
}

typedef struct Window {
    int first;     // -1: none
    int joins;     // the document goes into the micro-batch that runs there last
    double end;    // ms
    double start;  // ms
    double waste;  // rank-ms at speed 1, up to its end, that are not the document's work
} Window;

static double time_at(const Task* task, double pace) { return document_ms_at(task->g, task->s, task->t, pace); }

static Window look_at(const Search* x, const Guess* guess, const Task* task, int first) {
    double most = 0, sum = 0, pace = 1, speeds = task->cp_size;
    int id = x->last[first], same = 1, ring_docs = 0, last = first + task->cp_size - 1;
    if (x->setting->speeds) {
        pace = x->setting->speeds[first], speeds = 0;
        for (int u = first; u <= last; u++) pace = MIN(pace, x->setting->speeds[u]), speeds += x->setting->speeds[u];
    }
    for (int u = first; u <= last; u++) {
        most = MAX(most, x->load[u]);
        sum += x->setting->speeds ? x->load[u] * x->setting->speeds[u] : x->load[u];
        same &= x->last[u] == id;
    }
    const OpenMicroBatch* mb = id >= 0 && same ? &guess->micro_batches[id] : NULL;
    int joins = mb && stands_on(mb, first, task->cp_size) && mb->most_room >= task->tokens;
    Window w = {.first = first, .joins = joins, .start = most};
    w.end = most + time_at(task, pace) + (joins ? 0 : task->g->micro_batch);
    w.waste = speeds * w.end - sum - task->cp_size * task->t;
    if (task->g->ulysses_size == task->g->cp_size) return w;
    for (int u = first; u <= last; u++) ring_docs = MAX(ring_docs, x->ring_docs[u]);
    if (ring_docs >= x->setting->limits.max_ring_docs) w.first = -1;
    return w;
}

// Less waste first; then fuller windows, at a rate that only decides between nearly equal wastes.
static double score_of(const Search* x, const Window* w) {
    return w->waste + (x->way.levels && !w->joins ? 1e-3 : -1e-3) * w->start;
}

static void keep_better(const Search* x, Window* best, Window w, double target) {
    if (w.first < 0 || w.end > target) return;
    if (best->first < 0 || score_of(x, &w) < score_of(x, best)) *best = w;
}

// Of a document that is alone on one rank.
static double ms_at(const Search* x, const Task* task, int rank) {
    return x->setting->speeds ? task->t / x->setting->speeds[rank] : task->t;
}

// The fullest rank where the document and `own` ms beside it end by the target; with tokens >= 0 only such as have a
// micro-batch with so much room. -1: none.
static int fullest_rank(const Search* x, const Task* task, double own, int64_t tokens) {
    int best = -1;
    double load = -1, soonest = own + task->t / x->fastest;
    for (int n = 0, first = 0; first < x->ranks; n++, first += x->node) {
        if (x->node_least[n] + soonest > task->target || x->node_most[n] <= load) continue;
        if (tokens >= 0 && x->node_room[n] < tokens) continue;
        // Any of them may be it: branches would be mispredicted.
        for (int r = first, end = MIN(first + x->node, x->ranks); r < end; r++) {
            int fits = x->load[r] + (own + ms_at(x, task, r)) <= task->target;
            int fuller = fits & (x->load[r] > load) & (x->local_room[r] >= tokens);
            load = fuller ? x->load[r] : load, best = fuller ? r : best;
        }
    }
    return best;
}

// The emptiest one.
static int emptiest_rank(const Search* x, const Task* task, double own) {
    int best = -1;
    for (int n = 0, first = 0; first < x->ranks; n++, first += x->node) {
        if (best >= 0 && x->node_least[n] >= x->load[best]) continue;
        for (int r = first; r < MIN(first + x->node, x->ranks); r++)
            if ((best < 0 || x->load[r] < x->load[best]) && x->load[r] + own + ms_at(x, task, r) <= task->target)
                best = r;
    }
    return best;
}

// The window of one rank: where micro-batches cost something, the fullest that has one with room; else the fullest that
// has time for a new one, or the emptiest.
static Window local_window(const Search* x, const Task* task) {
    double own = task->g->micro_batch;
    int cares = own > small_change * task->target, r = cares ? fullest_rank(x, task, 0, task->tokens) : -1;
    Window w = {.first = r, .joins = r >= 0};
    if (r < 0) w.first = cares && x->way.levels ? emptiest_rank(x, task, own) : fullest_rank(x, task, own, -1);
    if (w.first < 0) return w;
    if (!cares) w.joins = x->local_room[w.first] >= task->tokens;
    w.start = x->load[w.first];
    w.waste = w.joins ? 0 : own;
    w.end = w.start + ms_at(x, task, w.first) + w.waste;
    return w;
}

// The windows of a node, at every stride-th place, but those where some rank is busy for too long.
static void look_inside(const Search* x, const Guess* guess, const Task* task, int first, int stride, Window* best) {
    int end = MIN(first + x->node, x->ranks);
    for (int u = first, from = first; u < end; u++) {
        if (x->load[u] + task->t > task->target && !x->setting->speeds) from = u + 1;
        int begin = u + 1 - task->cp_size;
        if (begin >= from && (begin - first) % stride == 0)
            keep_better(x, best, look_at(x, guess, task, begin), task->target);
    }
}

// What a micro-batch costs by itself, if the document can join none of this cp size.
static double own_of(const Search* x, const Task* task) {
    if (task->cp_size == 1 || task->g->micro_batch == 0) return 0;  // those of one rank are not listed
    if (x->wide[task->cp_size] >= 0 && task->s <= x->takes[task->cp_size]) return 0;
    return task->g->micro_batch;
}

// Loads only grow: before this no window of so many ranks is free.
static void note_free_from(Search* x, int cp_size, int stride) {
    double least = INFINITY;
    for (int first = 0; first < x->ranks; first += x->node)
        for (int u = first; u + cp_size <= MIN(first + x->node, x->ranks); u += stride) {
            double most = 0;
            for (int i = u; i < u + cp_size; i++) most = MAX(most, x->load[i]);
            least = MIN(least, most);
        }
    x->free_from[cp_size] = least;
}

// Inside nodes. Of nodes that nothing has touched one is as good as another, if ranks are equally fast; windows
// of many ranks begin at coarser places, so that looking stays in proportion to the ranks.
static Window inside_window(Search* x, const Guess* guess, const Task* task) {
    Window best = {.first = -1};
    int empty = 0, stride = x->way.least;
    if (task->cp_size == 1) return local_window(x, task);
    if (!x->setting->speeds && x->free_from[task->cp_size] + task->t + own_of(x, task) > task->target) return best;
    while (8 * stride <= task->cp_size) stride *= 2;
    for (int n = 0, first = 0; first < x->ranks; n++, first += x->node) {
        if (x->node_least[n] + task->t > task->target && !x->setting->speeds) continue;
        if (x->node_most[n] == 0 && !x->setting->speeds && first + x->node <= x->ranks && empty++) continue;
        look_inside(x, guess, task, first, stride, &best);
    }
    if (best.first < 0) note_free_from(x, task->cp_size, stride);
    return best;
}

// Whole nodes, or all ranks.
static Window across_window(const Search* x, const Guess* guess, const Task* task) {
    Window best = {.first = -1};
    for (int n = 0, first = 0; first + task->cp_size <= x->ranks; n++, first += x->node) {
        int busy = 0;
        for (int j = n; j < n + task->cp_size / x->node; j++) busy |= x->node_most[j] + task->t > task->target;
        if (busy && !x->setting->speeds) continue;
        keep_better(x, &best, look_at(x, guess, task, first), task->target);
    }
    return best;
}

static int next_cp_size(const Search* x, int cp_size) {
    if (cp_size < x->node) return cp_size + 1;
    int next = cp_size + x->node;
    return next > x->ranks && cp_size < x->ranks ? x->ranks : next;  // all ranks, where the last node is smaller
}

// ---- placing

static void note_node_loads(Search* x, int first, int cp_size) {
    for (int n = first / x->node; n <= (first + cp_size - 1) / x->node; n++) {
        int begin = n * x->node, end = MIN(begin + x->node, x->ranks);
        double least = x->load[begin], most = least;
        for (int u = begin + 1; u < end; u++) least = MIN(least, x->load[u]), most = MAX(most, x->load[u]);
        x->node_least[n] = least, x->node_most[n] = most;
    }
}

// What micro-batches from this one back have room for.
static void note_room(Search* x, Guess* guess, int head) {
    OpenMicroBatch* mb = &guess->micro_batches[head];
    int64_t room = -1, was = x->local_room[mb->first];
    for (int id = head; id >= 0; id = guess->micro_batches[id].older) room = MAX(room, guess->micro_batches[id].room);
    mb->most_room = room;
    if (mb->cp_size > 1) return;
    x->local_room[mb->first] = room;
    if (x->setting->groups[1].micro_batch == 0) return;  // nobody asks for that of nodes
    int begin = mb->first / x->node * x->node;
    int64_t* of_node = &x->node_room[mb->first / x->node];
    if (room < *of_node && was == *of_node) {
        *of_node = room;
        for (int u = begin; u < MIN(begin + x->node, x->ranks); u++) *of_node = MAX(*of_node, x->local_room[u]);
    }
    *of_node = MAX(*of_node, room);
}

// Behind the others of its cp size.
static void list_wide(Search* x, int cp_size, int id) {
    int size = 0, *link = &x->wide[cp_size];
    while (size < x->n_wide_sizes && x->wide_sizes[size] != cp_size) size++;
    if (size == x->n_wide_sizes) x->wide_sizes[x->n_wide_sizes++] = cp_size;
    while (*link >= 0) link = &x->next_wide[*link];
    *link = id;
    x->next_wide[id] = -1;
    x->takes[cp_size] = INFINITY;
}

static int open_micro_batch(Search* x, Guess* guess, const GroupCost* g, int first, int cp_size, double start) {
    int id = guess->n_micro_batches++, older = x->last[first];
    for (int u = first; u < first + cp_size; u++)
        if (x->last[u] != older) older = -1;
    if (older >= 0 && !stands_on(&guess->micro_batches[older], first, cp_size)) older = -1;
    guess->micro_batches[id] = (OpenMicroBatch){first, cp_size, older, 0, g->room, g->room, start};
    x->opened += (double)g->cp_size * x->setting->limits.capacity;
    for (int u = first; u < first + cp_size; u++) {
        x->last[u] = id;
        if (cp_size > 1) x->local_room[u] = -1;
    }
    if (cp_size > 1 && g->micro_batch > 0) list_wide(x, cp_size, id);
    return id;
}

static void put_in(Search* x, Guess* guess, const GroupCost* g, int k, int id, int64_t tokens) {
    OpenMicroBatch* mb = &guess->micro_batches[id];
    mb->room -= tokens;
    mb->docs++;
    guess->micro_batch_of[k] = id;
    note_room(x, guess, x->last[mb->first]);
    if (g->ulysses_size == g->cp_size) return;
    for (int u = mb->first; u < mb->first + mb->cp_size; u++) x->ring_docs[u]++;
}

static void put_at(Search* x, Guess* guess, const Task* task, int k, const Window* w) {
    int id = w->joins ? micro_batch_with_room(guess, x->last[w->first], task->tokens) : -1;
    if (id < 0) id = open_micro_batch(x, guess, task->g, w->first, task->cp_size, w->start);
    put_in(x, guess, task->g, k, id, task->tokens);
    for (int u = w->first; u < w->first + task->cp_size; u++) x->loaded += w->end - x->load[u], x->load[u] = w->end;
    note_node_loads(x, w->first, task->cp_size);
    guess->makespan = MAX(guess->makespan, w->end);
}

static Task task_at(const Search* x, int k, int cp_size, double target) {
    const GroupCost* g = group_of(x, cp_size);
    int s = x->sorted[k];
    return (Task){g, cp_size, cp_size == 1 ? x->alone[k] : document_ms(g, s), document_takes(g, s), s, target};
}

// No micro-batch of this cp size takes a longer document: by its room, or by the time until the target, in which
// s tokens compute quadratic s^2 + linear s.
static double longest_taken(const Search* x, const Guess* guess, const Task* task) {
    const GroupCost* g = task->g;
    double longest = 0, linear = g->per_token + g->shown_linear[HIDING_OWN],
           places = (double)g->cp_size / g->ulysses_size;
    for (int id = x->wide[task->cp_size]; id >= 0; id = x->next_wide[id]) {
        const OpenMicroBatch* mb = &guess->micro_batches[id];
        double ms = task->target - x->load[mb->first], by_room = places * (double)mb->most_room;
        double by_time = 1 + 2 * ms / (linear + sqrt(linear * linear + 4 * g->quadratic * MAX(ms, 0)));
        longest = MAX(longest, x->setting->speeds ? by_room : MIN(by_room, by_time));
    }
    return longest;
}

// The first micro-batch of a cp size that the document can join, -1: none. Those that something has followed or that
// have no room for any document leave the list.
static int join_of_size(Search* x, const Guess* guess, const Task* task, Window* window) {
    int64_t shortest = document_takes(task->g, x->sorted[x->n - 1]);
    for (int *link = &x->wide[task->cp_size], id; (id = *link) >= 0;) {
        const OpenMicroBatch* mb = &guess->micro_batches[id];
        if (x->last[mb->first] != id || mb->most_room < shortest) {
            *link = x->next_wide[id];
            continue;
        }
        link = &x->next_wide[id];
        if (mb->most_room < task->tokens || (!x->setting->speeds && x->load[mb->first] + task->t > task->target))
            continue;
        *window = look_at(x, guess, task, mb->first);
        if (window->first >= 0 && window->joins && window->end <= task->target) return id;
    }
    x->takes[task->cp_size] = longest_taken(x, guess, task);
    return -1;
}

// The micro-batch of several ranks that the document joins at the least work, in rank-milliseconds, infinite if there
// is none; of equal ones the first that was opened. Only such that nothing has followed on any of their ranks.
static double best_join(Search* x, const Guess* guess, int k, double target, Task* task, Window* window) {
    double least = INFINITY;
    int found = -1;
    for (int i = 0; i < x->n_wide_sizes; i++) {
        int cp_size = x->wide_sizes[i];
        if (x->wide[cp_size] < 0 || x->sorted[k] > x->takes[cp_size] ||
            !group_holds(group_of(x, cp_size), x->sorted[k]))
            continue;
        Window w;
        Task t = task_at(x, k, cp_size, target);
        double work = t.cp_size * t.t;
        int id = work > least ? -1 : join_of_size(x, guess, &t, &w);
        if (id < 0 || (work == least && id > found)) continue;
        least = work, found = id;
        *task = t, *window = w;
    }
    return least;
}

// The document on the least cp size that ends by the target somewhere, or, where that would open a micro-batch that
// costs something, in one that is open already. 0: there is no place.
static int place(Search* x, Guess* guess, int k, double target) {
    int s = x->sorted[k], tries = 0;
    double least = 0, join_work = -1;
    Task joining = {0};
    Window join = {0};
    for (int cp_size = 1; cp_size <= x->ranks && tries < WIDENINGS; cp_size = next_cp_size(x, cp_size)) {
        const GroupCost* g = group_of(x, cp_size);
        if (!g->canonical || !group_holds(g, s) || cp_size % x->way.least) continue;
        Task task = task_at(x, k, cp_size, target);
        if (time_at(&task, x->fastest) > target) continue;
        Window w = cp_size <= x->node ? inside_window(x, guess, &task) : across_window(x, guess, &task);
        if (tries++ == 0) least = cp_size * task.t;
        double waste = w.first < 0 ? INFINITY : w.waste + cp_size * task.t - least;
        if (g->micro_batch > small_change * target && waste > 0) {
            if (join_work < 0) join_work = best_join(x, guess, k, target, &joining, &join);
            if (join_work - least < waste) task = joining, w = join;
        }
        if (w.first < 0) continue;
        put_at(x, guess, &task, k, &w);
        return 1;
    }
    return 0;
}

// ---- giving up

// Whether the documents from k on take more time at least than is free before the target, counting that what fits no
// micro-batch that is open needs others.
static int is_hopeless(const Search* x, int k, double target) {
    double more = MAX(x->tokens - x->opened, 0) / x->setting->limits.capacity;
    double needed = x->least_rest[k] + more * group_of(x, 1)->micro_batch;
    return !x->setting->speeds && needed > (x->ranks * target - x->loaded) * (1 + 1e-9);
}

int search_guess(Search* x, Guess* guess, PackWay way, double target) {
    clear(x, guess);
    x->way = way;
    for (int k = 0; k < x->n; k++) {
        if (!is_hopeless(x, k, target) && place(x, guess, k, target)) continue;
        guess->makespan = INFINITY;
        return 0;
    }
    return 1;
}
