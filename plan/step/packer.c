// packer.c - can documents end before a target time tau? This is deadline packing of moldable tasks, on ranks that run
// freely, and into one round.
//
// packer_open weighs documents once: what each takes at each cp size. A guess (pack) then takes them one by one, the
// longest first, and each goes through these stages up to the first that gives it a place:
//
//   choose   It takes the least cp size d with T(s, d) <= tau, since wider groups only add work.
//   join     It joins the micro-batch of d ranks that ends last of those with time and room (best fit), at no loss.
//   beside   In rounds, where it fits one rank, it goes beside what ranks share, into the same pass (timeline.h): its
//            attention hides their exchange, and it has none of its own.
//   look     It looks for the window of d ranks on which a new micro-batch wastes the fewest rank-ms (windows.c).
//   wider    It joins a wider micro-batch if its work grows there by fewer rank-ms than the window wastes.
//   widen    Where no window has time, it looks again with the next cp sizes, whose tasks are shorter. This fills gaps,
//            and is what list scheduling with fixed cp sizes lacks.
//   open     It opens a micro-batch on the window. In rounds that are levelled it looks and opens before it joins.
//
// A guess fails with the first document that has no place. flex.c and rounds.c repeat guesses with other targets and
// ways, and packer_write writes the last one down. A micro-batch takes documents as long as only micro-batches on the
// same ranks have followed it.
//
// Turek, Wolf and Yu 1992, and Mounie, Rapine and Trystram 1999, choose the allotment by a deadline. MULTIFIT (Coffman,
// Garey and Johnson 1978) packs to a deadline by best fit instead of levelling. Widening on failure is ours.
#include "plan/step/packer.h"

#include <math.h>

// The part of tau below which a micro-batch's own cost does not decide where documents go.
static const double small_change = 0.002;
enum { WIDENINGS = 12 };  // cp sizes tried if the least has no window

// ---- what documents take, once for all guesses

// The tokens that a ring rank holds if each of the group's ranks has this capacity.
static int64_t room_at(const Packer* x, const GroupCost* g, int capacity) {
    PlanLimits own = limits_at(&x->setting->limits, capacity);
    return ring_rank_capacity(&own, g->ulysses_size);
}

static void list_sizes(Packer* x, Arena* arena) {
    for (int d = 1; d <= x->n_ranks; d++) {
        const GroupCost* g = &x->setting->groups[d];
        if (!g->ulysses_size || !g->canonical) continue;
        int holds = widest_window(x, d);
        x->sizes[x->n_sizes++] = (CpSize){g, holds, room_at(x, g, holds), TAKE(arena, Bin*, x->n_ranks / d), 0};
    }
}

static double ms_on(const CpSize* size, const Document* doc) {
    return group_holds_in(size->g, doc->s, size->room) ? group_ms(size->g, doc->s * doc->seen, doc->s) : INFINITY;
}

static void weigh_documents(Packer* x, const int* sorted) {
    const Cost* cost = &x->setting->cost;
    double tokens = 0, work = 0;
    for (int k = 0; k < x->n; k++) {
        Document* doc = &x->docs[k];
        int s = sorted[k], least = 0;
        while (least < x->n_sizes - 1 && !group_holds_in(x->sizes[least].g, s, x->sizes[least].room)) least++;
        *doc = (Document){.s = s, .least = least, .tokens_before = tokens, .work_before = work};
        doc->seen = seen_tokens(x->setting->limits.squares, k, s);
        for (int i = 0; i < LEAST_SIZES && least + i < x->n_sizes; i++) doc->ms[i] = ms_on(&x->sizes[least + i], doc);
        tokens += s, work += (cost->quadratic * doc->seen + cost->per_token) * s;
    }
    x->docs[x->n] = (Document){.tokens_before = tokens, .work_before = work};
}

Packer packer_open(const int* sorted, int n, const Setting* setting, Arena* arena) {
    int ranks = setting->limits.ranks;
    Packer x = {.setting = setting,
                .docs = TAKE(arena, Document, n + 1),
                .sizes = TAKE(arena, CpSize, ranks),
                .n = n,
                .n_ranks = ranks,
                .node_size = MIN(setting->limits.node_size, ranks),
                .ranks = TAKE(arena, Rank, ranks),
                .nodes = TAKE(arena, Node, ranks),
                .bins = TAKE(arena, Bin, n),
                .by_start = TAKE(arena, Keyed, n)};
    if (arena->missing) return x;
    list_sizes(&x, arena);
    weigh_documents(&x, sorted);
    for (int r = 0; r < ranks; r++) {
        double speed = slowest_speed(setting, r, 1);
        x.fastest = MAX(x.fastest, speed), x.speeds += speed;
        x.capacity += rank_capacity(&setting->limits, r);
    }
    return x;
}

// ---- choose

// The task of a document at a cp size from its least one on; ms are infinite if it does not fit.
static Task task_at(const Packer* x, Document* doc, int size) {
    const CpSize* at = &x->sizes[size];
    int i = size - doc->least;
    double ms = i < LEAST_SIZES ? doc->ms[i] : ms_on(at, doc);
    return (Task){doc, at->g, size, ms, ms < INFINITY ? MIN(document_takes(at->g, doc->s), at->room) : 0};
}

// Finds the least cp size from `size` on with which the document ends by the target; 0: none.
static int choose_size(const Packer* x, Document* doc, int size, Task* task) {
    for (int i = MAX(size, doc->least); i < x->n_sizes; i++) {
        int d = x->sizes[i].g->cp_size;
        if (x->way.least > 1 && d % x->way.least != 0) continue;
        if (x->way.inside && d > x->node_size) break;
        *task = task_at(x, doc, i);
        if (task->ms < INFINITY && task->g->micro_batch + task_ms(task, x->fastest) <= x->target) return 1;
    }
    return 0;
}

double round_bound(const Packer* x, int longest, double tokens, double work) {
    Document* doc = &x->docs[longest];
    double own = x->setting->groups[1].micro_batch, least = INFINITY, first[2];
    if (tokens > x->capacity) return INFINITY;
    if (doc->least == 0 && doc->ms[0] / x->fastest <= work / x->speeds) return own + work / x->speeds;
    for (int i = doc->least; i < x->n_sizes; i++) {
        Task task = task_at(x, doc, i);
        if (task.ms == INFINITY) continue;
        group_hidden_ms(first, task.g, task.g->quadratic * doc->s * doc->seen, doc->s, NULL);
        double hidden = x->setting->no_overlap ? 0 : first[0] + first[1];
        least = fmin(least, task_ms(&task, x->fastest) - hidden);
    }
    return own + MAX(work / x->speeds, least);
}

// ---- join

// The bin of the task's cp size, with time and room, that ends last, or first in levelled rounds; NULL: none.
static Bin* find_bin(const Packer* x, const Task* task) {
    const CpSize* size = &x->sizes[task->size];
    int low = 0, high = size->n_open, n = high;
    double ms = task_ms(task, x->fastest);
    while (low < high) {
        int middle = (low + high) / 2;
        if (size->open[middle]->end + ms > x->target) low = middle + 1;
        else high = middle;
    }
    for (int i = 0; i < n - low; i++) {
        Bin* bin = size->open[x->one_pass && x->way.levels ? n - 1 - i : low + i];
        if (bin->most_room - bin->kept < task->tokens || !has_ring_room(x, task, bin->first_rank)) continue;
        if (bin->end + task_ms(task, bin->pace) <= x->target) return bin;
    }
    return NULL;
}

// The wider bin that the document joins at the least work beyond its own, if below `most` rank-ms; NULL: none.
static Bin* find_wider(const Packer* x, const Task* own, double most, Task* task) {
    Bin* found = NULL;
    for (int i = own->size + 1; i < x->n_sizes; i++) {
        if (x->sizes[i].n_open == 0) continue;
        Task wider = task_at(x, own->doc, i);
        double more = wider.g->cp_size * wider.ms - own->g->cp_size * own->ms;
        Bin* bin = more < most ? find_bin(x, &wider) : NULL;
        if (bin) found = bin, most = more, *task = wider;
    }
    return found;
}

static void leave_list(CpSize* size, Bin* bin) {
    size->n_open--;
    for (int at = bin->at; at < size->n_open; at++) size->open[at] = size->open[at + 1], size->open[at]->at = at;
    bin->at = -1;
}

// Moves a bin whose documents or times have changed to its new place in its list, or takes it out if it is full.
static void move_in_list(Packer* x, Bin* bin) {
    CpSize* size = &x->sizes[bin->size];
    int at = bin->at, ring_size = bin->g->cp_size / bin->g->ulysses_size;
    if (at < 0) return;
    if (bin->most_room - bin->kept < MAX(x->shortest / ring_size, 1)) {
        leave_list(size, bin);
        return;
    }
    for (; at > 0 && size->open[at - 1]->end < bin->end; at--)
        size->open[at] = size->open[at - 1], size->open[at]->at = at;
    size->open[at] = bin, bin->at = at;
}

// The end of the pass with these ms of local documents: exchanges of shared ones hide under their attention
// (timeline.h).
static double end_of(const Packer* x, const Bin* bin, double attention, double linear) {
    double hidden = MIN(attention / 3, bin->first[0]) + MIN(2 * attention / 3, bin->first[1]);
    return bin->shared + linear + attention - (x->setting->no_overlap ? 0 : hidden);
}

static void note_loads(Packer* x, const Bin* bin) {
    int end = bin->first_rank + bin->g->cp_size;
    for (int r = bin->first_rank; r < end; r++) x->ranks[r].load = bin->end;
    for (int n = bin->first_rank / x->node_size; n <= (end - 1) / x->node_size; n++) {
        double least = INFINITY, most = 0;
        for (int r = n * x->node_size; r < MIN((n + 1) * x->node_size, x->n_ranks); r++)
            least = MIN(least, x->ranks[r].load), most = MAX(most, x->ranks[r].load);
        x->nodes[n].least = least, x->nodes[n].most = most;
    }
}

// Puts the document into the oldest bin of these ranks with room; the newest one ends later all the same.
static void put_in(Packer* x, const Task* task, Bin* bin) {
    Bin* taker = bin;
    for (Bin* b = bin; b; b = b->older)
        if (b->room - b->kept >= task->tokens) taker = b;
    taker->docs++, taker->room -= task->tokens;
    bin->most_room = 0;
    for (const Bin* b = bin; b; b = b->older) bin->most_room = MAX(bin->most_room, b->room);
    bin->shared += task_ms(task, bin->pace);
    if (x->one_pass && bin->g->cp_size > 1) {
        bin->tokens += task->doc->s, bin->s2 += task->doc->s * task->doc->seen;
        group_hidden_ms(bin->first, bin->g, bin->g->quadratic * bin->s2, bin->tokens, NULL);
    }
    bin->end = end_of(x, bin, bin->attention, bin->linear);
    for (int i = 0; i < bin->g->cp_size && bin->g->ulysses_size < bin->g->cp_size; i++)
        x->ranks[bin->first_rank + i].ring_docs++;
    if (!x->one_pass) note_loads(x, bin);
    move_in_list(x, bin);
    task->doc->bin = taker, task->doc->rank = -1;
}

// ---- beside

// The room of a ring rank that local documents take. It counts one token more, because shares are rounded.
static int64_t kept_by(const Packer* x, const Bin* bin, int64_t local_tokens) {
    int heads = x->setting->limits.kv_heads;
    return CEIL_DIV((local_tokens + 1) * heads, CEIL_DIV(heads, bin->g->ulysses_size));
}

// The rank of the bin with least local work.
static int idlest(const Packer* x, const Bin* bin) {
    const Rank* best = &x->ranks[bin->first_rank];
    for (const Rank *r = best + 1, *end = best + bin->g->cp_size; r < end; r++)
        if (r->attention + r->linear < best->attention + best->linear) best = r;
    return (int)(best - x->ranks);
}

// Puts the document on the idlest rank of the shared bin that then ends last; 0: none.
static int put_beside(Packer* x, Document* doc) {
    Bin* bin = NULL;
    double attention = x->setting->groups[1].quadratic * doc->s * doc->seen, last = 0;
    double linear = doc->ms[0] - attention;
    for (Bin* b = x->bins; b < x->bins + x->n_bins; b++) {
        const Rank* rank = &x->ranks[b->idlest];
        if (b->g->cp_size == 1 || kept_by(x, b, rank->local_tokens + doc->s) > b->room) continue;
        double end =
            end_of(x, b, MAX(b->attention, rank->attention + attention), MAX(b->linear, rank->linear + linear));
        if (end <= x->target && (!bin || end > last)) bin = b, last = end;
    }
    if (!bin) return 0;
    Rank* rank = &x->ranks[bin->idlest];
    doc->bin = bin, doc->rank = bin->idlest;
    rank->attention += attention, rank->linear += linear, rank->local_tokens += doc->s;
    bin->attention = MAX(bin->attention, rank->attention), bin->linear = MAX(bin->linear, rank->linear);
    bin->kept = MAX(bin->kept, kept_by(x, bin, rank->local_tokens));
    bin->end = last, bin->idlest = idlest(x, bin);
    move_in_list(x, bin);
    return 1;
}

// ---- open

// Opens a bin for the document. It closes the bins before it to documents, unless these stand on the same ranks.
static void open_bin(Packer* x, const Task* task, Window w) {
    int d = task->g->cp_size, same = 1;
    Bin *bin = &x->bins[x->n_bins++], *older = x->ranks[w.first].last;
    for (int r = w.first; r < w.first + d; r++) {
        Rank* rank = &x->ranks[r];
        if (rank->last && rank->last->at >= 0) leave_list(&x->sizes[rank->last->size], rank->last);
        same &= rank->last == older;
        rank->last = bin;
    }
    for (int r = w.first; r < w.first + d && x->one_pass; r += x->node_size)
        x->nodes[r / x->node_size].free -= MIN(x->node_size, w.first + d - r);
    *bin = (Bin){.first_rank = w.first, .size = task->size, .g = task->g, .at = -1, .idlest = w.first};
    if (same && older && older->first_rank == w.first && older->size == task->size) bin->older = older;
    bin->room = room_at(x, task->g, group_capacity(&x->setting->limits, w.first, d));
    bin->pace = slowest_speed(x->setting, w.first, d);
    bin->start = w.start, bin->shared = w.start + task->g->micro_batch;
    CpSize* size = &x->sizes[bin->size];
    if (x->joins) bin->at = size->n_open, size->open[size->n_open++] = bin;
    put_in(x, task, bin);
}

// ---- a guess

// Takes a document through the stages; 0: there is no place.
static int give_place(Packer* x, Document* doc) {
    Task own, wider;
    Window w = {.first = -1};
    int opens_first = x->one_pass && x->way.levels;
    if (!choose_size(x, doc, 0, &own)) return 0;
    if (opens_first) w = find_window(x, &own);
    if (w.first >= 0) return open_bin(x, &own, w), 1;
    Bin* bin = x->joins ? find_bin(x, &own) : NULL;
    if (bin) return put_in(x, &own, bin), 1;
    if (x->one_pass && doc->least == 0 && !x->setting->speeds && put_beside(x, doc)) return 1;
    if (!opens_first) w = find_window(x, &own);
    double waste = w.first < 0 ? INFINITY : w.waste;
    bin = x->joins && waste > 0 ? find_wider(x, &own, waste, &wider) : NULL;
    if (bin) return put_in(x, &wider, bin), 1;
    for (int tries = 1; w.first < 0 && !x->one_pass && tries < WIDENINGS; tries++) {
        if (!choose_size(x, doc, own.size + 1, &own)) return 0;
        w = find_window(x, &own);
    }
    if (w.first < 0) return 0;
    if (w.joined) put_in(x, &own, w.joined);
    else open_bin(x, &own, w);
    return 1;
}

double pack(Packer* x, const int* docs, int n, int one_pass, PackWay way, double target) {
    double end = 0;
    x->one_pass = one_pass, x->way = way, x->target = target, x->shortest = n ? x->docs[docs[n - 1]].s : 0;
    x->small = small_change * target;
    x->joins = one_pass || x->setting->groups[1].micro_batch > x->small;
    x->n_bins = 0;
    for (int i = 0; i < x->n_sizes; i++) x->sizes[i].n_open = 0;
    memset(x->ranks, 0, sizeof(Rank) * (size_t)x->n_ranks);
    for (int i = 0, first = 0; first < x->n_ranks; i++, first += x->node_size)
        x->nodes[i] = (Node){.free = MIN(x->node_size, x->n_ranks - first)};
    for (int i = 0; i < n; i++) {
        x->placed++;
        if (!give_place(x, &x->docs[docs[i]])) return INFINITY;
    }
    for (int i = 0; i < x->n_bins; i++) end = MAX(end, x->bins[i].end);
    return end;
}

// ---- the plan

void packer_write(const Packer* x, Plan* plan, const int* docs, int n, const int* order, int round) {
    const MicroBatch* before = &plan->micro_batches[plan->n_micro_batches - (plan->n_micro_batches > 0)];
    int doc = plan->n_micro_batches ? before->first_doc + before->n_docs : 0;
    for (int b = 0; b < x->n_bins; b++) x->by_start[b] = (Keyed){x->bins[b].start, b};
    sort_keyed(x->by_start, x->n_bins);
    for (int b = 0; b < x->n_bins; b++) {
        Bin* bin = &x->bins[x->by_start[b].i];
        plan->micro_batches[plan->n_micro_batches++] =
            (MicroBatch){bin->first_rank, bin->g->cp_size, bin->g->ulysses_size, doc, bin->docs, round};
        bin->next = doc, doc += bin->docs;
    }
    for (int i = 0; i < n; i++)
        if (x->docs[docs[i]].rank < 0) plan->docs[x->docs[docs[i]].bin->next++] = order[docs[i]];
    for (int rank = 0; rank < x->n_ranks && x->one_pass; rank++) {
        int first = doc;
        for (int i = 0; i < n; i++)
            if (x->docs[docs[i]].rank == rank) plan->docs[doc++] = order[docs[i]];
        if (doc > first)
            plan->micro_batches[plan->n_micro_batches++] = (MicroBatch){rank, 1, 1, first, doc - first, round};
    }
}
