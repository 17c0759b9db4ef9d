// windows.c - on which ranks a document opens a micro-batch: where the fewest rank-ms are lost (packer.c).
//
// Groups stand inside a node, or on whole nodes. What a window wastes is what a micro-batch costs by itself, and the
// time for which ranks stand still until the last of them is free. Of equal windows the fullest is best, or the
// emptiest where the way levels. In rounds only ranks without a pass are looked at, and each has a price.
#include <math.h>

#include "plan/step/packer.h"

// Returns the end of windows that begin in the node of rank `first`: inside the node, or behind whole nodes.
static int windows_end(const Packer* x, int first, int cp_size) {
    return MIN(first + MAX(cp_size, x->node_size), x->n_ranks);
}

int widest_window(const Packer* x, int d) {
    const PlanLimits* limits = &x->setting->limits;
    int widest = limits->capacity;
    for (int first = 0; first < x->n_ranks && limits->capacities; first += x->node_size)
        for (int r = first; r + d <= windows_end(x, first, d); r++) widest = MAX(widest, group_capacity(limits, r, d));
    return widest;
}

int has_ring_room(const Packer* x, const Task* task, int first) {
    if (task->g->ulysses_size == task->g->cp_size) return 1;
    for (int r = first; r < first + task->g->cp_size; r++)
        if (x->ranks[r].ring_docs >= x->setting->limits.max_ring_docs) return 0;
    return 1;
}

// Returns 1 if the document fits the ranks from `first` on. If capacities differ, its cp size alone does not say so.
static int has_room(const Packer* x, const Task* task, int first) {
    const PlanLimits* limits = &x->setting->limits;
    if (!limits->capacities) return 1;
    PlanLimits own = limits_at(limits, group_capacity(limits, first, task->g->cp_size));
    return ring_rank_capacity(&own, task->g->ulysses_size) >= task->tokens;
}

// The bin that the document joins there: without lists of open bins the window itself must say so.
static Bin* joined(const Packer* x, const Task* task, int first) {
    Bin* last = x->ranks[first].last;
    if (x->joins || !last || last->first_rank != first || last->size != task->size) return NULL;
    return last->most_room >= task->tokens ? last : NULL;
}

// ---- one rank

// The fullest rank where the document and a new micro-batch end by the target, or the emptiest where the way levels.
static Window local_window(const Packer* x, const Task* task) {
    Window w = {.first = -1};
    double own = task->g->micro_batch, soonest = own + task->ms / x->fastest, best = -INFINITY;
    const double *speed = x->setting->speeds, sign = x->way.levels ? -1 : 1;
    for (int n = 0, first = 0; first < x->n_ranks; n++, first += x->node_size) {
        const Node* node = &x->nodes[n];
        if (node->least + soonest > x->target || (x->way.levels ? -node->least : node->most) <= best) continue;
        // Any rank may be it, so branches would be mispredicted.
        for (int r = first, end = MIN(first + x->node_size, x->n_ranks); r < end; r++) {
            double load = x->ranks[r].load, ms = speed ? task->ms / speed[r] : task->ms;
            int better = (load + (own + ms) <= x->target) & (sign * load > best) & has_room(x, task, r);
            best = better ? sign * load : best, w.first = better ? r : w.first;
        }
    }
    if (w.first < 0) return w;
    w.joined = joined(x, task, w.first);
    w.start = x->ranks[w.first].load;
    w.waste = w.joined ? 0 : own;
    return w;
}

// ---- several ranks

// Keeps the window if it wastes less. The rate lets fuller windows, or emptier ones, win among nearly equal wastes.
static void consider(const Packer* x, const Task* task, int first, Window* best) {
    const double* speed = x->setting->speeds;
    int d = task->g->cp_size, same = 1;
    double start = 0, busy = 0, speeds = 0, rate = x->way.levels ? 1e-3 : -1e-3;
    for (int r = first; r < first + d; r++) {
        const Rank* rank = &x->ranks[r];
        start = MAX(start, rank->load);
        speeds += speed ? speed[r] : 1;
        busy += speed ? rank->load * speed[r] : rank->load;
        same &= rank->last == x->ranks[first].last;
    }
    Window w = {.first = first, .joined = same ? joined(x, task, first) : NULL, .start = start};
    double end = start + task_ms(task, slowest_speed(x->setting, first, d)) + (w.joined ? 0 : task->g->micro_batch);
    w.waste = speeds * end - busy - d * task->ms;
    if (end > x->target || !has_ring_room(x, task, first) || !has_room(x, task, first)) return;
    if (best->first < 0 || w.waste + rate * w.start < best->waste + rate * best->start) *best = w;
}

// Inside nodes only a much emptier window, or a fuller one, is better than one that leaves no rank idle.
static int may_be_better(const Packer* x, const Task* task, const Window* best, const Node* node) {
    double own = x->joins ? task->g->micro_batch : 0, idle = best->waste / task->g->cp_size - own;
    if (best->first < 0 || idle > x->small || task->g->cp_size > x->node_size) return 1;
    return x->way.levels ? node->least < best->start / 2 : node->most > best->start;
}

// The best window inside a node, or of whole nodes. If capacities are alike, windows of many ranks begin at coarser
// places, which keeps the search short.
static Window group_window(const Packer* x, const Task* task) {
    Window best = {.first = -1};
    int d = task->g->cp_size, stride = x->way.least;
    double soonest = task->ms / x->fastest;
    while (4 * stride <= d && !x->setting->limits.capacities) stride *= 2;
    for (int n = 0, first = 0; first < x->n_ranks; n++, first += x->node_size) {
        const Node* node = &x->nodes[n];
        if (node->least + soonest > x->target || !may_be_better(x, task, &best, node)) continue;
        for (int r = first; r + d <= windows_end(x, first, d); r += stride)
            if (x->ranks[r].load + soonest <= x->target) consider(x, task, r, &best);
    }
    return best;
}

// ---- rounds

static int is_free(const Packer* x, int first, int cp_size) {
    for (int r = first; r < first + cp_size; r++)
        if (x->ranks[r].last) return 0;
    return 1;
}

// The first free ranks where the document ends by the target. Of unlike ranks it takes the slowest, and of these those
// that hold least. Of like ranks a node's first ones are those that have begun.
static Window free_window(const Packer* x, const Task* task) {
    const PlanLimits* limits = &x->setting->limits;
    int d = task->g->cp_size, least = 0, unlike = x->setting->speeds || limits->capacities;
    Window best = {.first = -1};
    double slowest = 0;
    for (int n = 0, first = 0; first + d <= x->n_ranks; n++, first += x->node_size) {
        int end = windows_end(x, first, d), free = x->nodes[n].free;
        if (free < MIN(d, x->node_size)) continue;
        for (int r = unlike ? first : MIN(first + x->node_size, end) - free; r + d <= end; r++) {
            if (((unlike || d > x->node_size) && !is_free(x, r, d)) || !has_room(x, task, r)) continue;
            double pace = slowest_speed(x->setting, r, d);
            int holds = group_capacity(limits, r, d);
            if (best.first >= 0 && (pace > slowest || (pace == slowest && holds >= least))) continue;
            if (task->g->micro_batch + task_ms(task, pace) > x->target) continue;
            best = (Window){.first = r, .waste = x->way.price * x->target * d}, slowest = pace, least = holds;
            if (!unlike) return best;
        }
    }
    return best;
}

Window find_window(const Packer* x, const Task* task) {
    if (x->one_pass) return free_window(x, task);
    return task->g->cp_size == 1 ? local_window(x, task) : group_window(x, task);
}
