// packer.c - can documents end before a target time tau? This is deadline packing of moldable tasks, on ranks that run
// freely, and into one round.
//
// Longest first, each document takes the least cp size d with T(s, d) <= tau. It goes where it loses the fewest rank-ms
// beyond its least work:
//
//   joining a micro-batch of d ranks       nothing is lost; the one that ends last (best fit)
//   joining a wider one                    what the document takes more there
//   opening one on a window of ranks       what a micro-batch costs by itself, and the time for which ranks stand still
//                                          until the last of them is free; of equal ones the fullest window, or the
//                                          emptiest where the way levels. In rounds, where that cost is paid once for
//                                          the round, ranks that nothing has begun on have a price
//   opening a wider one                    only where no window has time: its task is shorter. This is what fills gaps,
//                                          and what list scheduling with fixed cp sizes lacks
//
// A micro-batch takes documents as long as only micro-batches on the same ranks have followed it. In rounds a document
// that fits one rank goes beside shared ones, into the same pass (timeline.h), before anything is lost: there its
// attention hides their exchange, and it has none of its own.
//
// Turek, Wolf and Yu 1992, and Mounie, Rapine and Trystram 1999, choose the allotment by a deadline. MULTIFIT (Coffman,
// Garey and Johnson 1978) packs to a deadline by best fit instead of levelling. Widening on failure is ours.
#include "plan/step/packer.h"

#include <math.h>

// The part of tau below which a micro-batch's own cost does not decide where documents go.
static const double small_change = 0.002;
enum { WIDENINGS = 12 };  // cp sizes tried if the least has no window

// A document at some cp size.
typedef struct Task {
    const GroupCost* g;
    int size;        // the place of its cp size in sizes
    double t;        // ms at full speed, without a new micro-batch's own; infinite: it does not fit
    int64_t tokens;  // of a ring rank
    int s;
    double seen;  // seen_tokens
    int needs;    // capacity of its ranks, if capacities differ
} Task;

// The most that a window holds where planners put a group of d ranks.
static int widest_window(const Packer* x, int d) {
    const PlanLimits* limits = &x->setting->limits;
    int widest = limits->capacity;
    for (int first = 0; first + d <= x->ranks && limits->capacities; first += d > x->node ? x->node : 1)
        if (d > x->node || first / x->node == (first + d - 1) / x->node)
            widest = MAX(widest, group_capacity(limits, first, d));
    return widest;
}

// The tokens that a ring rank holds if each of the group's ranks has this capacity.
static int64_t room_at(const Packer* x, const GroupCost* g, int capacity) {
    PlanLimits own = limits_at(&x->setting->limits, capacity);
    return ring_rank_capacity(&own, g->ulysses_size);
}

Packer packer_take(const int* sorted, int n, const Setting* setting, Arena* arena) {
    const PlanLimits* limits = &setting->limits;
    int ranks = limits->ranks, n_bins = 0;
    Packer x = {.setting = setting,
                .sorted = sorted,
                .n = n,
                .ranks = ranks,
                .node = MIN(limits->node_size, ranks),
                .sizes = TAKE(arena, int, ranks),
                .holds = TAKE(arena, int, ranks),
                .unlike = setting->speeds || limits->capacities,
                .room = TAKE(arena, int64_t, ranks),
                .least = TAKE(arena, int, n),
                .ms = TAKE(arena, double, (size_t)LEAST_SIZES* n),
                .work = TAKE(arena, double, n + 1),
                .tokens = TAKE(arena, double, n + 1),
                .bins = TAKE(arena, Bin, n),
                .bin_of = TAKE(arena, int, n),
                .rank_of = TAKE(arena, int, n),
                .begin = TAKE(arena, int, ranks + 1),
                .n_of_size = TAKE(arena, int, ranks),
                .load = TAKE(arena, double, ranks),
                .node_least = TAKE(arena, double, ranks),
                .node_most = TAKE(arena, double, ranks),
                .last = TAKE(arena, int, ranks),
                .ring_docs = TAKE(arena, int, ranks),
                .node_free = TAKE(arena, int, ranks),
                .wide = TAKE(arena, int, ranks),
                .attention = TAKE(arena, double, ranks),
                .linear = TAKE(arena, double, ranks),
                .local_tokens = TAKE(arena, int64_t, ranks),
                .by_start = TAKE(arena, Keyed, n)};
    x.nodes = CEIL_DIV(ranks, x.node);
    if (arena->missing) return x;
    for (int d = 1; d <= ranks; d++) {
        if (!setting->groups[d].ulysses_size || !setting->groups[d].canonical) continue;
        x.begin[x.n_sizes] = n_bins;
        x.holds[x.n_sizes] = widest_window(&x, d);
        x.room[x.n_sizes] = room_at(&x, &setting->groups[d], x.holds[x.n_sizes]);
        x.sizes[x.n_sizes++] = d;
        n_bins += ranks / d;
    }
    x.of_size = TAKE(arena, int, n_bins);
    return x;
}

static const GroupCost* group_at(const Packer* x, int size) { return &x->setting->groups[x->sizes[size]]; }

int packer_holds(const Packer* x, int size, int s) { return group_holds_in(group_at(x, size), s, x->room[size]); }

static double seen_by(const Packer* x, int k) { return seen_tokens(x->setting->limits.squares, k, x->sorted[k]); }

static double ms_on(const Packer* x, int size, int k) {
    int s = x->sorted[k];
    return packer_holds(x, size, s) ? group_ms(group_at(x, size), s * seen_by(x, k), s) : INFINITY;
}

// Finds a document's least place in `sizes`, and its ms from there on.
static void weigh_document(Packer* x, int k) {
    int s = x->sorted[k], least = 0;
    while (least < x->n_sizes - 1 && !packer_holds(x, least, s)) least++;
    x->least[k] = least;
    for (int i = 0; i < LEAST_SIZES && least + i < x->n_sizes; i++) x->ms[LEAST_SIZES * k + i] = ms_on(x, least + i, k);
}

void packer_begin(Packer* x) {
    const Setting* setting = x->setting;
    x->fastest = x->speeds = x->placed = 0;
    for (int r = 0; r < x->ranks; r++) {
        double speed = slowest_speed(setting, r, 1);
        x->fastest = MAX(x->fastest, speed), x->speeds += speed;
    }
    x->capacity = 0;
    for (int r = 0; r < x->ranks; r++) x->capacity += rank_capacity(&setting->limits, r);
    x->work[0] = x->tokens[0] = 0;
    for (int k = 0; k < x->n; k++) {
        double s = x->sorted[k];
        weigh_document(x, k);
        x->work[k + 1] = x->work[k] + (setting->cost.quadratic * seen_by(x, k) + setting->cost.per_token) * s;
        x->tokens[k + 1] = x->tokens[k] + s;
    }
}

// The task of a document at a size from its least one on; t is infinite if it does not fit.
static Task task_at(const Packer* x, int k, int size) {
    const GroupCost* g = group_at(x, size);
    int s = x->sorted[k], i = size - x->least[k];
    double t = i < LEAST_SIZES ? x->ms[LEAST_SIZES * k + i] : ms_on(x, size, k);
    Task task = {g, size, t, t < INFINITY ? MIN(document_takes(g, s), x->room[size]) : 0, s, seen_by(x, k), 0};
    int heads = x->setting->limits.kv_heads;
    if (x->setting->limits.capacities)
        task.needs = (int)CEIL_DIV(task.tokens * CEIL_DIV(heads, g->ulysses_size), heads);
    return task;
}

static double time_at(const Task* task, double pace) {
    return document_ms_at(task->g, task->s * task->seen, task->s, task->t, pace);
}

// The ms on one rank, infinite if it does not fit.
static double alone_ms(const Packer* x, int k) { return x->least[k] ? INFINITY : x->ms[LEAST_SIZES * k]; }

double round_bound(const Packer* x, int longest, double tokens, double work) {
    double s = x->sorted[longest], own = x->setting->groups[1].micro_batch, least = INFINITY, first[2];
    if (tokens > x->capacity) return INFINITY;
    if (alone_ms(x, longest) / x->fastest <= work / x->speeds) return own + work / x->speeds;
    for (int i = x->least[longest]; i < x->n_sizes; i++) {
        Task task = task_at(x, longest, i);
        if (task.t == INFINITY) continue;
        group_hidden_ms(first, task.g, task.g->quadratic * s * task.seen, s, NULL);
        double hidden = x->setting->no_overlap ? 0 : first[0] + first[1];
        least = fmin(least, time_at(&task, x->fastest) - hidden);
    }
    return own + MAX(work / x->speeds, least);
}

// Finds the least cp size from `size` on with which the document ends by the target; 0: none.
static int least_task(const Packer* x, int k, int size, Task* task) {
    for (int i = MAX(size, x->least[k]); i < x->n_sizes; i++) {
        if (x->way.least > 1 && x->sizes[i] % x->way.least != 0) continue;
        if (x->way.inside && x->sizes[i] > x->node) break;
        *task = task_at(x, k, i);
        if (task->t < INFINITY && task->g->micro_batch + time_at(task, x->fastest) <= x->target) return 1;
    }
    return 0;
}

// ---- micro-batches that documents join

static int has_ring_room(const Packer* x, const Task* task, int first) {
    if (task->g->ulysses_size == task->g->cp_size) return 1;
    for (int r = first; r < first + task->g->cp_size; r++)
        if (x->ring_docs[r] >= x->setting->limits.max_ring_docs) return 0;
    return 1;
}

// The place in its list of the bin of the task's cp size, with time and room, that ends last, or first in levelled
// rounds; -1: none.
static int find_bin(const Packer* x, const Task* task) {
    const int* list = x->of_size + x->begin[task->size];
    int low = 0, high = x->n_of_size[task->size], n = high;
    double t = time_at(task, x->fastest);
    while (low < high) {
        int middle = (low + high) / 2;
        if (x->bins[list[middle]].end + t > x->target) low = middle + 1;
        else high = middle;
    }
    for (int i = 0; i < n - low; i++) {
        int at = x->one_pass && x->way.levels ? n - 1 - i : low + i;
        const Bin* bin = &x->bins[list[at]];
        if (bin->most_room - bin->kept < task->tokens || !has_ring_room(x, task, bin->first_rank)) continue;
        if (bin->end + time_at(task, bin->pace) <= x->target) return at;
    }
    return -1;
}

// The wider bin that the document joins at the least work beyond its own, if below `most` rank-ms; -1: none.
static int find_wider(const Packer* x, int k, const Task* own, double most, Task* task) {
    int found = -1;
    for (int i = own->size + 1; i < x->n_sizes; i++) {
        if (x->n_of_size[i] == 0) continue;
        Task t = task_at(x, k, i);
        double more = t.g->cp_size * t.t - own->g->cp_size * own->t;
        if (more >= most) continue;
        int at = find_bin(x, &t);
        if (at >= 0) found = at, most = more, *task = t;
    }
    return found;
}

static void leave_list(Packer* x, Bin* bin, int at) {
    int *list = x->of_size + x->begin[bin->size], *n = &x->n_of_size[bin->size];
    memmove(list + at, list + at + 1, sizeof(int) * (size_t)(--*n - at));
    bin->listed = 0;
}

static int place_in_list(const Packer* x, int id) {
    const int* list = x->of_size + x->begin[x->bins[id].size];
    int at = 0;
    while (list[at] != id) at++;
    return at;
}

// Moves a bin whose documents or times have changed to its new place in its list, or takes it out.
static void move_in_list(Packer* x, Bin* bin, int at) {
    int *list = x->of_size + x->begin[bin->size], id = list[at];
    const GroupCost* g = group_at(x, bin->size);
    if (bin->most_room - bin->kept < MAX(x->shortest / (g->cp_size / g->ulysses_size), 1)) {
        leave_list(x, bin, at);
        return;
    }
    for (; at > 0 && x->bins[list[at - 1]].end < bin->end; at--) list[at] = list[at - 1];
    list[at] = id;
}

// The end of the pass with these ms of local documents: exchanges of shared ones hide under their attention
// (timeline.h).
static double end_of(const Packer* x, const Bin* bin, double attention, double linear) {
    double hidden = MIN(attention / 3, bin->first[0]) + MIN(2 * attention / 3, bin->first[1]);
    return bin->shared + linear + attention - (x->setting->no_overlap ? 0 : hidden);
}

// The most tokens of local documents of a rank of the bin, less one, because shares are rounded.
static int64_t most_local(const Packer* x, const Bin* bin) {
    int heads = x->setting->limits.kv_heads, of_rank = CEIL_DIV(heads, x->setting->groups[bin->cp_size].ulysses_size);
    return bin->room * of_rank / heads - 1;
}

static void note_loads(Packer* x, const Bin* bin) {
    int end = bin->first_rank + bin->cp_size;
    for (int r = bin->first_rank; r < end; r++) x->load[r] = bin->end;
    for (int n = bin->first_rank / x->node; n <= (end - 1) / x->node; n++) {
        double least = x->load[n * x->node], most = least;
        for (int r = n * x->node + 1; r < MIN((n + 1) * x->node, x->ranks); r++)
            least = MIN(least, x->load[r]), most = MAX(most, x->load[r]);
        x->node_least[n] = least, x->node_most[n] = most;
    }
}

// Puts document i of the list into the last bin of these ranks, or an older one. at: the last bin's place in its list.
static void put_in(Packer* x, int i, const Task* task, int id, int at) {
    Bin *bin = &x->bins[id], *taker = bin;
    double s = task->s;
    for (Bin* b = bin;; b = &x->bins[b->older]) {
        if (b->room - b->kept >= task->tokens) taker = b;
        if (b->older < 0) break;
    }
    taker->docs++;
    taker->room -= task->tokens;
    x->bin_of[i] = (int)(taker - x->bins), x->rank_of[i] = -1;
    bin->most_room = -1;
    for (const Bin* b = bin;; b = &x->bins[b->older]) {
        bin->most_room = MAX(bin->most_room, b->room);
        if (b->older < 0) break;
    }
    bin->shared += time_at(task, bin->pace);
    if (x->one_pass && bin->cp_size > 1) {
        bin->tokens += s, bin->s2 += s * task->seen;
        bin->beside = most_local(x, bin);
        group_hidden_ms(bin->first, task->g, task->g->quadratic * bin->s2, bin->tokens, NULL);
    }
    bin->end = end_of(x, bin, bin->attention, bin->linear);
    for (int r = bin->first_rank; r < bin->first_rank + bin->cp_size && task->g->ulysses_size < bin->cp_size; r++)
        x->ring_docs[r]++;
    if (!x->one_pass) note_loads(x, bin);
    if (at >= 0) move_in_list(x, bin, at);
}

// ---- windows

typedef struct Window {
    int first;     // -1: none
    int joins;     // 1 (used without lists): the micro-batch that runs there last has room
    double end;    // ms
    double start;  // ms
    double waste;  // rank-ms at speed 1, up to its end, that are not the document's work
} Window;

// Returns 1 if the document fits the ranks from `first` on.
static int has_room(const Packer* x, const Task* task, int first) {
    return !task->needs || group_capacity(&x->setting->limits, first, task->g->cp_size) >= task->needs;
}

static int stands_on(const Packer* x, int id, int first, int cp_size) {
    return id >= 0 && x->bins[id].first_rank == first && x->bins[id].cp_size == cp_size;
}

static Window look_at(const Packer* x, const Task* task, int first) {
    const double* speed = x->setting->speeds;
    int d = task->g->cp_size, id = x->last[first], same = 1;
    double most = 0, sum = 0, pace = slowest_speed(x->setting, first, d), speeds = 0;
    for (int r = first; r < first + d; r++) {
        most = MAX(most, x->load[r]);
        speeds += speed ? speed[r] : 1;
        sum += speed ? x->load[r] * speed[r] : x->load[r];
        same &= x->last[r] == id;
    }
    int joins = !x->joins && same && stands_on(x, id, first, d) && x->bins[id].most_room >= task->tokens;
    int fits = has_ring_room(x, task, first) && has_room(x, task, first);
    Window w = {.first = fits ? first : -1, .joins = joins, .start = most};
    w.end = most + time_at(task, pace) + (joins ? 0 : task->g->micro_batch);
    w.waste = speeds * w.end - sum - d * task->t;
    return w;
}

// Keeps the window with less waste. The rate lets fuller windows, or emptier ones, win among nearly equal wastes.
static void keep_better(const Packer* x, Window* best, Window w) {
    double rate = x->way.levels ? 1e-3 : -1e-3;
    if (w.first < 0 || w.end > x->target) return;
    if (best->first < 0 || w.waste + rate * w.start < best->waste + rate * best->start) *best = w;
}

// The ms of a document that is alone on one rank.
static double ms_at(const Packer* x, const Task* task, int rank) {
    return x->setting->speeds ? task->t / x->setting->speeds[rank] : task->t;
}

// The fullest rank where the document and a new micro-batch end by the target; -1: none.
static int fullest_rank(const Packer* x, const Task* task) {
    int best = -1;
    double load = -1, own = task->g->micro_batch, soonest = own + task->t / x->fastest;
    for (int n = 0, first = 0; n < x->nodes; n++, first += x->node) {
        if (x->node_least[n] + soonest > x->target || x->node_most[n] <= load) continue;
        // Any rank may be it, so branches would be mispredicted.
        for (int r = first, end = MIN(first + x->node, x->ranks); r < end; r++) {
            int fuller =
                (x->load[r] + (own + ms_at(x, task, r)) <= x->target) & (x->load[r] > load) & has_room(x, task, r);
            load = fuller ? x->load[r] : load, best = fuller ? r : best;
        }
    }
    return best;
}

static int emptiest_rank(const Packer* x, const Task* task) {
    int best = -1;
    double own = task->g->micro_batch;
    for (int n = 0, first = 0; n < x->nodes; n++, first += x->node) {
        if (best >= 0 && x->node_least[n] >= x->load[best]) continue;
        for (int r = first; r < MIN(first + x->node, x->ranks); r++)
            if ((best < 0 || x->load[r] < x->load[best]) && x->load[r] + own + ms_at(x, task, r) <= x->target &&
                has_room(x, task, r))
                best = r;
    }
    return best;
}

static Window local_window(const Packer* x, const Task* task) {
    Window w = {.first = x->way.levels ? emptiest_rank(x, task) : fullest_rank(x, task)};
    if (w.first < 0) return w;
    w.joins =
        !x->joins && stands_on(x, x->last[w.first], w.first, 1) && x->bins[x->last[w.first]].most_room >= task->tokens;
    w.start = x->load[w.first];
    w.waste = w.joins ? 0 : task->g->micro_batch;
    w.end = w.start + ms_at(x, task, w.first) + w.waste;
    return w;
}

// Looks at the windows of a node, at every stride-th place, except those where some rank is busy for too long.
static void look_inside(const Packer* x, const Task* task, int first, int stride, Window* best) {
    int end = MIN(first + x->node, x->ranks);
    double soonest = task->t / x->fastest;
    for (int r = first, from = first; r < end; r++) {
        if (x->load[r] + soonest > x->target) from = r + 1;
        int begin = r + 1 - task->g->cp_size;
        if (begin >= from && (begin - first) % stride == 0) keep_better(x, best, look_at(x, task, begin));
    }
}

// Only a much emptier window, or a fuller one, is better than one that leaves no rank idle.
static int may_be_better(const Packer* x, const Task* task, const Window* best, int node) {
    double own = x->joins ? task->g->micro_batch : 0, idle = best->waste / task->g->cp_size - own;
    if (best->first < 0 || idle > small_change * x->target) return 1;
    return x->way.levels ? x->node_least[node] < best->start / 2 : x->node_most[node] > best->start;
}

// The best window inside a node. If capacities are alike, windows of many ranks begin at coarser places, which keeps
// the search short.
static Window inside_window(const Packer* x, const Task* task) {
    Window best = {.first = -1};
    int stride = x->way.least;
    double soonest = task->t / x->fastest;
    if (task->g->cp_size == 1) return local_window(x, task);
    while (4 * stride <= task->g->cp_size && !x->setting->limits.capacities) stride *= 2;
    for (int n = 0, first = 0; n < x->nodes; n++, first += x->node) {
        if (x->node_least[n] + soonest > x->target || !may_be_better(x, task, &best, n)) continue;
        look_inside(x, task, first, stride, &best);
    }
    return best;
}

// The best window of whole nodes, or of all ranks.
static Window across_window(const Packer* x, const Task* task) {
    Window best = {.first = -1};
    int d = task->g->cp_size;
    for (int first = 0; first + d <= x->ranks; first += x->node) keep_better(x, &best, look_at(x, task, first));
    return best;
}

static int is_free(const Packer* x, int first, int cp_size) {
    for (int r = first; r < first + cp_size; r++)
        if (x->last[r] >= 0) return 0;
    return 1;
}

// In rounds: the first free ranks where the document ends by the target. Of unlike ranks it takes the slowest, and of
// these those that hold least. Of like ranks a node's first ones are those that have begun.
static Window free_window(const Packer* x, const Task* task) {
    int d = task->g->cp_size, least = 0;
    Window best = {.first = -1};
    double pace = 0;
    for (int n = 0, begin = 0; begin + d <= x->ranks; n++, begin += x->node) {
        int end = d > x->node ? begin + d : MIN(begin + x->node, x->ranks);
        if (x->node_free[n] < MIN(d, x->node)) continue;
        for (int r = x->unlike ? begin : MIN(begin + x->node, end) - x->node_free[n]; r + d <= end; r++) {
            if ((x->unlike || d > x->node) && !is_free(x, r, d)) continue;
            double own = slowest_speed(x->setting, r, d);
            int holds = group_capacity(&x->setting->limits, r, d);
            if (holds < task->needs) continue;
            if (best.first >= 0 && (own > pace || (own == pace && holds >= least))) continue;
            if (task->g->micro_batch + time_at(task, own) > x->target) continue;
            best = (Window){.first = r, .waste = x->way.price * x->target * d}, pace = own, least = holds;
            if (!x->unlike) return best;
        }
    }
    return best;
}

static Window find_window(const Packer* x, const Task* task) {
    if (x->one_pass) return free_window(x, task);
    return task->g->cp_size <= x->node ? inside_window(x, task) : across_window(x, task);
}

// Puts the document there, in a new micro-batch unless the last one there has room.
static int open_bin(Packer* x, int i, const Task* task, Window w) {
    int d = task->g->cp_size, id = x->n_bins, older = x->last[w.first], at = -1;
    double free_at = w.start + task->g->micro_batch;
    if (w.joins) return put_in(x, i, task, older, -1), 1;
    Bin* bin = &x->bins[x->n_bins++];
    *bin = (Bin){.first_rank = w.first, .cp_size = d, .size = task->size, .older = older};
    bin->most_room = bin->room = room_at(x, task->g, group_capacity(&x->setting->limits, w.first, d)),
    bin->idlest = w.first, bin->pace = slowest_speed(x->setting, w.first, d);
    bin->start = w.start, bin->shared = bin->end = free_at;
    for (int r = w.first; r < w.first + d; r++) {
        int last = x->last[r];
        if (last >= 0 && x->bins[last].listed) leave_list(x, &x->bins[last], place_in_list(x, last));
        if (last != older || !stands_on(x, older, w.first, d)) bin->older = -1;
        x->last[r] = id;
    }
    for (int r = w.first; r < w.first + d && x->one_pass; r += x->node)
        x->node_free[r / x->node] -= MIN(x->node, w.first + d - r);
    if (x->one_pass && d > 1) x->wide[x->n_wide++] = id;
    if (x->joins) bin->listed = 1, at = x->n_of_size[bin->size]++, x->of_size[x->begin[bin->size] + at] = id;
    put_in(x, i, task, id, at);
    return 1;
}

// ---- local documents beside shared ones

// The rank of the bin with least local work.
static int idlest(const Packer* x, const Bin* bin) {
    int best = bin->first_rank;
    for (int r = best + 1; r < bin->first_rank + bin->cp_size; r++)
        if (x->attention[r] + x->linear[r] < x->attention[best] + x->linear[best]) best = r;
    return best;
}

// Puts document i of the list beside bin `id`, on its idlest rank.
static void put_local(Packer* x, int i, int k, int id, double attention, double linear) {
    Bin* bin = &x->bins[id];
    int r = bin->idlest, heads = x->setting->limits.kv_heads;
    int of_rank = CEIL_DIV(heads, x->setting->groups[bin->cp_size].ulysses_size);
    x->attention[r] += attention, x->linear[r] += linear, x->local_tokens[r] += x->sorted[k];
    bin->attention = MAX(bin->attention, x->attention[r]), bin->linear = MAX(bin->linear, x->linear[r]);
    bin->kept = MAX(bin->kept, CEIL_DIV((x->local_tokens[r] + 1) * heads, of_rank));
    bin->end = end_of(x, bin, bin->attention, bin->linear);
    bin->idlest = idlest(x, bin);
    x->bin_of[i] = id, x->rank_of[i] = r;
    if (bin->listed) move_in_list(x, bin, place_in_list(x, id));
}

// Puts the document beside the bin of several ranks that then ends last; 0: none.
static int put_beside(Packer* x, int i, int k) {
    int found = -1;
    double s = x->sorted[k], attention = x->setting->groups[1].quadratic * s * seen_by(x, k), last = 0;
    double linear = alone_ms(x, k) - attention;
    for (int w = 0; w < x->n_wide; w++) {
        const Bin* bin = &x->bins[x->wide[w]];
        int r = bin->idlest;
        int64_t room = bin->beside - x->local_tokens[r];
        if (room < x->sorted[k]) continue;
        double end =
            end_of(x, bin, MAX(bin->attention, x->attention[r] + attention), MAX(bin->linear, x->linear[r] + linear));
        if (end <= x->target && (found < 0 || end > last)) found = x->wide[w], last = end;
    }
    if (found >= 0) put_local(x, i, k, found, attention, linear);
    return found >= 0;
}

// ---- a guess

static int join(Packer* x, int i, const Task* task, int at) {
    put_in(x, i, task, x->of_size[x->begin[task->size] + at], at);
    return 1;
}

// Places document k, the i-th of the list; 0: there is no place.
static int place(Packer* x, int i, int k) {
    Task own, wider;
    Window w = {.first = -1};
    if (!least_task(x, k, 0, &own)) return 0;
    if (x->one_pass && x->way.levels) w = find_window(x, &own);
    if (w.first >= 0) return open_bin(x, i, &own, w);
    int at = x->joins ? find_bin(x, &own) : -1;
    if (at >= 0) return join(x, i, &own, at);
    if (x->one_pass && alone_ms(x, k) < INFINITY && !x->setting->speeds && put_beside(x, i, k)) return 1;
    w = find_window(x, &own);
    double waste = w.first < 0 ? INFINITY : w.waste;
    at = x->joins && waste > 0 ? find_wider(x, k, &own, waste, &wider) : -1;
    if (at >= 0) return join(x, i, &wider, at);
    for (int tries = 1; w.first < 0 && !x->one_pass && tries < WIDENINGS; tries++) {
        if (!least_task(x, k, own.size + 1, &own)) return 0;
        w = find_window(x, &own);
    }
    return w.first >= 0 && open_bin(x, i, &own, w);
}

static void clear(Packer* x) {
    x->n_bins = x->n_wide = 0;
    memset(x->n_of_size, 0, sizeof(int) * (size_t)x->n_sizes);
    for (int r = 0; r < x->ranks; r++) {
        x->load[r] = 0, x->last[r] = -1, x->ring_docs[r] = 0;
        x->attention[r] = x->linear[r] = 0, x->local_tokens[r] = 0;
    }
    for (int n = 0; n < x->nodes; n++) {
        x->node_least[n] = x->node_most[n] = 0;
        x->node_free[n] = MIN(x->node, x->ranks - n * x->node);
    }
}

double pack(Packer* x, const int* docs, int n, int one_pass, PackWay way, double target) {
    double end = 0;
    clear(x);
    x->one_pass = one_pass, x->way = way, x->target = target, x->shortest = n ? x->sorted[docs[n - 1]] : 0;
    x->joins = one_pass || x->setting->groups[1].micro_batch > small_change * target;
    for (int i = 0; i < n; i++) {
        x->placed++;
        if (!place(x, i, docs[i])) return INFINITY;
    }
    for (int i = 0; i < x->n_bins; i++) end = MAX(end, x->bins[i].end);
    return end;
}

void packer_write(const Packer* x, Plan* plan, const int* docs, int n, const int* order, int round) {
    const MicroBatch* before = &plan->micro_batches[plan->n_micro_batches - (plan->n_micro_batches > 0)];
    int doc = plan->n_micro_batches ? before->first_doc + before->n_docs : 0;
    for (int b = 0; b < x->n_bins; b++) x->by_start[b] = (Keyed){x->bins[b].start, b};
    sort_keyed(x->by_start, x->n_bins);
    for (int b = 0; b < x->n_bins; b++) {
        const Bin* bin = &x->bins[x->by_start[b].i];
        plan->micro_batches[plan->n_micro_batches++] =
            (MicroBatch){bin->first_rank, bin->cp_size, group_at(x, bin->size)->ulysses_size, doc, bin->docs, round};
        x->bins[x->by_start[b].i].at = doc;
        doc += bin->docs;
    }
    for (int i = 0; i < n; i++)
        if (x->rank_of[i] < 0) plan->docs[x->bins[x->bin_of[i]].at++] = order[docs[i]];
    for (int rank = 0; rank < x->ranks && x->one_pass; rank++) {
        int first = doc;
        for (int i = 0; i < n; i++)
            if (x->rank_of[i] == rank) plan->docs[doc++] = order[docs[i]];
        if (doc > first)
            plan->micro_batches[plan->n_micro_batches++] = (MicroBatch){rank, 1, 1, first, doc - first, round};
    }
}
