// remap.c - chooses the tokens of local micro-batches that lie on other ranks of the node: see remap.h.
//
// A pass of a rank has tokens, whose linear work takes ms, and attention. Two layouts of a node's passes are drawn: one
// of even tokens, which is best if attention is even, and one whose tokens make the ranks' times even. A rank gives
// tokens of its longest local micro-batches. Each becomes a micro-batch of the ranks from the first to the last that
// has tokens of it; ranks between without tokens take no part in it.
#include "plan/step/remap.h"

#include "plan/step/flex.h"

// ---- one node in one round

typedef enum Layout { AS_PLANNED, EVEN_TOKENS, EVEN_TIMES, N_LAYOUTS } Layout;

// A rank's pass.
typedef struct Part {
    int64_t tokens, local;  // local: those that it may give
    int64_t target, left;   // tokens that it is to have; its surplus so far
    double other_ms;        // attention and exchanges
    int shared;             // micro-batches that it shares
} Part;

typedef struct Remap {
    Plan* plan;
    const int* lengths;
    const Setting* setting;
    Arena* arena;
    int node_size, nodes;
    Keyed* order;     // (n_micro_batches) by round; in one those with most tokens first, so that few are cut
    int* begin;       // (n_rounds + 1) the start of each round in `order`
    Part* parts;      // (node_size)
    int64_t* given;   // (node_size, node_size) tokens from a rank to another
    PassLoad* loads;  // (ranks)
    // The drawn plan's micro-batches, remapped ones with more ranks than before, and their tokens on the ranks of their
    // node (n_micro_batches, node_size).
    MicroBatch* drawn;
    int* shares;
} Remap;

static int is_remapped(const Remap* x, int i) { return x->drawn[i].cp_size > x->plan->micro_batches[i].cp_size; }

static int node_ranks(const Remap* x, int node) { return MIN(x->node_size, x->plan->ranks - node * x->node_size); }

// The ms of a token of linear work on a rank.
static double token_ms(const Remap* x, int rank) {
    return x->setting->cost.per_token / slowest_speed(x->setting, rank, 1);
}

// Adds micro-batch i to the parts of ranks [first, first + n). 0, or -1 without memory.
static int add_micro_batch(Remap* x, int i, int first, int n) {
    const MicroBatch* mb = &x->plan->micro_batches[i];
    int low = MAX(first, mb->first_rank), end = MIN(first + n, mb->first_rank + mb->cp_size);
    if (low >= end) return 0;
    GroupCost g = cost_group(&x->setting->cost, &x->setting->limits, mb->first_rank, mb->cp_size, mb->ulysses_size);
    LengthSums sums = micro_batch_sums(x->plan, mb, x->lengths);
    CostTerms t = group_terms(&g, sums.squares, sums.tokens);
    for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++) x->loads[r] = (PassLoad){0, 0};
    if (plan_add_load(x->loads, x->plan, i, x->lengths, &x->setting->limits, x->arena) < 0) return -1;
    for (int r = low; r < end; r++) {
        Part* part = &x->parts[r - first];
        part->tokens += x->loads[r].tokens;
        part->local += mb->cp_size == 1 ? x->loads[r].tokens : 0;
        part->other_ms += t.communication + t.quadratic * token_ms(x, r) / x->setting->cost.per_token;
        part->shared += mb->cp_size > 1;
    }
    return 0;
}

// Sets targets as even as whole tokens and capacities allow. Ranks that have most get one more; among equals the first
// does.
static void even_tokens(const Remap* x, int first, int n) {
    Part* parts = x->parts;
    int64_t total = 0;
    int left = n;
    for (int r = 0; r < n; r++) total += parts[r].tokens, parts[r].target = -1;
    for (int r = 0; r < n && left > 0;) {
        int64_t capacity = rank_capacity(&x->setting->limits, first + r);
        int holds_less = parts[r].target < 0 && capacity < CEIL_DIV(total, left);
        if (holds_less) parts[r].target = capacity, total -= capacity, left--;
        r = holds_less ? 0 : r + 1;
    }
    for (int64_t more = left ? total % left : 0; more > 0; more--) {
        int most = -1;
        for (int r = 0; r < n; r++)
            if (parts[r].target < 0 && (most < 0 || parts[r].tokens > parts[most].tokens)) most = r;
        parts[most].target = total / left + 1;
    }
    for (int r = 0; r < n; r++)
        if (parts[r].target < 0) parts[r].target = total / left;
}

// Sets targets with which ranks take at most `ms`, as far as each has tokens to give and room for others. Returns their
// sum.
static int64_t tokens_by(const Remap* x, int first, int n, double ms) {
    int64_t all = 0;
    for (int r = 0; r < n; r++) {
        Part* p = &x->parts[r];
        double most =
            MIN((ms - p->other_ms) / token_ms(x, first + r), (double)rank_capacity(&x->setting->limits, first + r));
        p->target = most > (double)(p->tokens - p->local) ? (int64_t)most : p->tokens - p->local;
        all += p->target;
    }
    return all;
}

// Sets targets with which all ranks end at the least time, by bisection. A surplus is taken off ranks that get some.
static void even_times(const Remap* x, int first, int n) {
    enum { HALVES = 40 };
    double low = 0, high = 0;
    int64_t all = 0;
    for (int r = 0; r < n; r++) {
        all += x->parts[r].tokens;
        high = MAX(high, x->parts[r].other_ms + (double)x->parts[r].tokens * token_ms(x, first + r));
    }
    for (int i = 0; i < HALVES; i++) {
        double ms = low + (high - low) / 2;
        if (tokens_by(x, first, n, ms) >= all) high = ms;
        else low = ms;
    }
    int64_t surplus = tokens_by(x, first, n, high) - all;
    for (Part* p = x->parts; p < x->parts + n; p++) {
        int64_t less = MAX(0, MIN(surplus, p->target - p->tokens));
        p->target -= less, surplus -= less;
    }
}

// The rank with the most tokens above its target (sign 1) or below it (-1); -1: none.
static int largest(const Part* parts, int n, int sign) {
    int best = -1;
    for (int r = 0; r < n; r++)
        if (sign * parts[r].left > 0 && (best < 0 || sign * parts[r].left > sign * parts[best].left)) best = r;
    return best;
}

// Sends the largest surplus over a target to the largest deficit, so the largest sender has few peers; nothing proves
// that it ends first. Zeppelin's solver is not published.
static void find_given(const Remap* x, int n) {
    Part* parts = x->parts;
    memset(x->given, 0, sizeof(int64_t) * (size_t)(x->node_size * x->node_size));
    for (int r = 0; r < n; r++) parts[r].left = parts[r].tokens - parts[r].target;
    for (int from, to; (from = largest(parts, n, 1)) >= 0 && (to = largest(parts, n, -1)) >= 0;) {
        int64_t tokens = MIN(parts[from].left, -parts[to].left);
        parts[from].left -= tokens, parts[to].left += tokens;
        x->given[from * x->node_size + to] += tokens;
    }
}

// ---- which micro-batches lie where

// Spreads micro-batch i: the one rank that has its tokens gives some while it owes some.
static void spread(Remap* x, int i, int first, int n) {
    MicroBatch* mb = &x->drawn[i];
    int from = mb->first_rank - first, low = from, high = from, *share = x->shares + (size_t)i * (size_t)x->node_size;
    int heads = x->setting->limits.kv_heads, stays = (int)micro_batch_sums(x->plan, mb, x->lengths).tokens;
    memset(share, 0, sizeof(int) * (size_t)x->node_size);
    for (int to = 0; to < n; to++) {
        int64_t* owed = &x->given[from * x->node_size + to];
        int given = (int)MIN(*owed, stays), wide = MAX(high, to) - MIN(low, to) + 1, full = 0;
        for (int r = MIN(low, to); r <= MAX(high, to); r++) full |= x->parts[r].shared >= MOST_SHARED;
        if (given == 0 || wide > heads || full) continue;
        share[to] = given, stays -= given, *owed -= given;
        low = MIN(low, to), high = MAX(high, to);
    }
    if (low == high) return;
    share[from] = stays;
    for (int r = low; r <= high; r++) x->parts[r].shared++;
    mb->first_rank = first + low, mb->cp_size = mb->ulysses_size = high - low + 1;
}

static int lay_out(Remap* x, int round, int node, Layout layout) {
    int first = node * x->node_size, n = node_ranks(x, node);
    if (layout == AS_PLANNED) return 0;
    memset(x->parts, 0, sizeof(Part) * (size_t)n);
    for (int j = x->begin[round]; j < x->begin[round + 1]; j++)
        if (add_micro_batch(x, x->order[j].i, first, n) < 0) return -1;
    if (layout == EVEN_TIMES) even_times(x, first, n);
    else even_tokens(x, first, n);
    find_given(x, n);
    for (int j = x->begin[round]; j < x->begin[round + 1]; j++) {
        const MicroBatch* mb = &x->plan->micro_batches[x->order[j].i];
        if (mb->cp_size == 1 && mb->first_rank / x->node_size == node) spread(x, x->order[j].i, first, n);
    }
    return 0;
}

// Sets the placement of micro-batch i, which is *mb of the drawn plan.
static void place(const Remap* x, const Plan* to, const MicroBatch* mb, int i) {
    const MicroBatch* was = &x->plan->micro_batches[i];
    int kv_heads = x->setting->limits.kv_heads, attends = was->first_rank - mb->first_rank;
    const int* share = x->shares + (size_t)i * (size_t)x->node_size + mb->first_rank % x->node_size;
    Placement p = plan_placement(to, mb);
    if (x->plan->placed_at && !is_remapped(x, i))
        memcpy(p.head_border, plan_placement(x->plan, was).head_border, sizeof(int) * placement_ints(mb));
    else fill_usual_placement(&p, to, mb, x->lengths, kv_heads);
    if (!is_remapped(x, i)) return;
    for (int b = 0; b <= mb->cp_size; b++) p.head_border[b] = b > attends ? kv_heads : 0;
    for (int b = 0; b < mb->cp_size; b++) p.token_border[b + 1] = p.token_border[b] + share[b];
}

// Draws the plan with these layouts (n_rounds, nodes), in the order of rounds, in memory of its own. Returns how many
// micro-batches are remapped, or -1.
static int draw_plan(Remap* x, Plan* to, const Layout* layouts, Err err) {
    int n = x->plan->n_micro_batches, remapped = 0;
    memcpy(x->drawn, x->plan->micro_batches, sizeof(MicroBatch) * (size_t)n);
    for (int i = 0; i < x->plan->n_rounds * x->nodes; i++)
        if (lay_out(x, i / x->nodes, i % x->nodes, layouts[i]) < 0) return arena_check(x->arena, err);
    *to = *x->plan;
    to->micro_batches = TAKE(x->arena, MicroBatch, n);
    to->placed_at = TAKE(x->arena, int, n);
    if (arena_check(x->arena, err) < 0) return -1;
    to->n_placed = 0;
    for (int j = 0; j < n; j++) {
        to->micro_batches[j] = x->drawn[x->order[j].i];
        to->placed_at[j] = to->n_placed;
        to->n_placed += (int)placement_ints(&to->micro_batches[j]);
        remapped += is_remapped(x, x->order[j].i);
    }
    to->placed = TAKE(x->arena, int, to->n_placed);
    if (arena_check(x->arena, err) < 0) return -1;
    for (int j = 0; j < n; j++) place(x, to, &to->micro_batches[j], x->order[j].i);
    return remapped;
}

// ---- the choice

// Sets ms (n_rounds, nodes) to each node's time of each round, without rounds to its end. Returns the makespan, or -1.
static double play(const Remap* x, const Plan* plan, double* ms, Err err) {
    Timeline t;
    int in_rounds = x->setting->rounds || plan->has_barriers;
    ArenaMark mark = arena_mark(x->arena);
    if (timeline_play(&t, plan, x->lengths, x->setting, x->arena, err) < 0) return -1;
    for (int i = 0; i < plan->n_rounds * x->nodes; i++) ms[i] = 0;
    for (int i = 0; i < plan->n_micro_batches && in_rounds; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        for (int node = mb->first_rank / x->node_size; node * x->node_size < mb->first_rank + mb->cp_size; node++) {
            double* end = &ms[mb->round * x->nodes + node];
            *end = MAX(*end, t.end[i] - t.start[i]);
        }
    }
    for (int i = 0; i < plan->n_rounds * x->nodes && !in_rounds; i++)
        for (int r = i % x->nodes * x->node_size, end = r + node_ranks(x, i % x->nodes); r < end; r++)
            ms[i] = MAX(ms[i], t.rank_end[r]);
    arena_reset(x->arena, mark);
    return t.makespan;
}

static Remap open_remap(Plan* plan, const int* lengths, const Setting* setting, Arena* arena) {
    int n = plan->n_micro_batches, node = MIN(setting->limits.node_size, plan->ranks);
    Remap x = {.plan = plan,
               .lengths = lengths,
               .setting = setting,
               .arena = arena,
               .node_size = node,
               .nodes = CEIL_DIV(plan->ranks, node),
               .order = TAKE(arena, Keyed, n),
               .begin = TAKE(arena, int, plan->n_rounds + 1),
               .parts = TAKE(arena, Part, node),
               .given = TAKE(arena, int64_t, node * node),
               .loads = TAKE(arena, PassLoad, plan->ranks),
               .drawn = TAKE(arena, MicroBatch, n),
               .shares = TAKE(arena, int, (size_t)n*(size_t)node)};
    if (arena->missing) return x;
    memset(x.begin, 0, sizeof(int) * ((size_t)plan->n_rounds + 1));
    for (int i = 0; i < n; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        x.order[i] = (Keyed){mb->round * (double)INT32_MAX - micro_batch_sums(plan, mb, lengths).tokens, i};
        x.begin[mb->round + 1]++;
    }
    for (int r = 0; r < plan->n_rounds; r++) x.begin[r + 1] += x.begin[r];
    sort_keyed(x.order, n);
    return x;
}

// Tries each layout everywhere, then in every node and round the one that ended soonest, and puts the best plan into
// `to`. Returns how many micro-batches it remaps, 0 if none is worth it, or -1.
static int best_plan(Remap* x, Plan* to, Err err) {
    static const double worth = 0.995;  // of the makespan as planned
    int n = x->plan->n_rounds * x->nodes, best = 0;
    double *ms = TAKE(x->arena, double, n), *least = TAKE(x->arena, double, n);
    Layout *layouts = TAKE(x->arena, Layout, n), *chosen = TAKE(x->arena, Layout, n);
    if (arena_check(x->arena, err) < 0) return -1;
    double makespan = worth * play(x, x->plan, least, err);
    if (makespan < 0) return -1;
    for (int i = 0; i < n; i++) chosen[i] = AS_PLANNED;
    for (int layout = EVEN_TOKENS; layout <= N_LAYOUTS; layout++) {
        Plan drawn;
        for (int i = 0; i < n; i++) layouts[i] = layout < N_LAYOUTS ? (Layout)layout : chosen[i];
        int remapped = draw_plan(x, &drawn, layouts, err);
        double played = remapped < 0 ? -1 : play(x, &drawn, ms, err);
        if (played < 0) return -1;
        if (remapped && played < makespan) makespan = played, best = remapped, *to = drawn;
        for (int i = 0; i < n; i++)
            if (ms[i] < worth * least[i]) least[i] = ms[i], chosen[i] = layouts[i];
    }
    return best;
}

int plan_remap(Plan* plan, int* changed, const int* lengths, const Setting* setting, RemapChoice choice, Arena* arena,
               Err err) {
    Plan drawn;
    *changed = 0;
    if (choice == REMAP_NO || plan->ranks == 1 || plan->n_micro_batches == 0) return 0;
    if (choice == REMAP_AUTO && !(setting->groups && setting->cost.per_token > 0)) return 0;
    if (plan->n_rounds == 0 && plan_set_rounds(plan, arena, err) < 0) return -1;
    Remap x = open_remap(plan, lengths, setting, arena);
    Layout* even = TAKE(arena, Layout, plan->n_rounds * x.nodes);
    if (arena_check(arena, err) < 0) return -1;
    for (int i = 0; i < plan->n_rounds * x.nodes; i++) even[i] = EVEN_TOKENS;
    *changed = choice == REMAP_YES ? draw_plan(&x, &drawn, even, err) : best_plan(&x, &drawn, err);
    if (*changed < 0) return -1;
    if (*changed) *plan = drawn;
    return 0;
}
