// layout_cost.c - see layout_cost.h.
#include "plan/search/layout_cost.h"

#include <math.h>

#include "plan/model/split.h"
#include "plan/value/tasks.h"

const char* const layout_term_names[N_LAYOUT_TERMS] = {"matmuls",
                                                       "attention",
                                                       "recomputation",
                                                       "tensor-parallel exchanges",
                                                       "sequence-parallel exchanges",
                                                       "ZeRO in rounds",
                                                       "what a round costs",
                                                       "gradients, update, weights",
                                                       "waiting of stages"};

// Weighs a bucket. Neighbouring tensors that all ranks of a group have whole count as one: they are summed at once.
static BucketWeights bucket_weights(const Shape* part, int b) {
    BucketWeights x = {.elems = (double)shape_bucket(part, b).elems};
    int joined = 0;
    for (int i = 0; i < shape_tensors(part); i++) {
        ParamTensor t = shape_tensor(part, i);
        int joins = t.bucket == b && split_is_replicated(t.id) && t.elems;
        if (joins && !joined && x.n_replicated < COUNT(x.replicated)) x.n_replicated++;
        if (joins) x.replicated[x.n_replicated - 1] += (double)t.elems;
        joined = joins;
    }
    return x;
}

static void weigh_buckets(LayoutCosts* c) {
    int L = c->whole->L;
    Shape first = shape_stage(c->whole, 0, 1), last = shape_stage(c->whole, L - 1, L);
    c->layer = bucket_weights(&first, 1);
    c->end[0] = bucket_weights(&first, 0), c->end[1] = bucket_weights(&last, 2);
    c->tied = shape_has(c->whole, HAS_HEAD) ? 0 : (double)shape_param(c->whole, WTE, 0).elems;
}

void layout_costs(LayoutCosts* c, const Shape* whole, const Machine* machine, int ranks, int node_size, int elem_bytes,
                  Arena* arena) {
    *c = (LayoutCosts){.whole = whole,
                       .machine = *machine,
                       .ranks = ranks,
                       .elem_bytes = elem_bytes,
                       .overlap = 1,
                       .tensor_overlap = 1,
                       .memory = INFINITY,
                       .arena = arena};
    c->links = transfer_times(&c->machine, whole, elem_bytes, node_size);
    weigh_buckets(c);
}

// ---- where ranks lie

static int stage_ranks(const LayoutCosts* c, const Layout* layout) { return c->ranks / layout->stages; }
// The groups of a stage, each with tokens of its own.
static int groups_of(const LayoutCosts* c, const Layout* layout) { return stage_ranks(c, layout) / layout->tp; }

// Returns 1 if runs of `run` ranks, one after another from the first on, cross a node's border.
static int is_across(const LayoutCosts* c, int run) {
    int node = c->links.node_size, first = c->first_rank % node, across = 0;
    if (first == 0) return c->ranks > node && (run > node || node % run != 0);
    for (int at = first; at < first + c->ranks && !across; at += run) across = at / node != (at + run - 1) / node;
    return across;
}

// Returns the most nodes that a run of `run` ranks touches.
static int nodes_of(const LayoutCosts* c, int run) {
    int node = c->links.node_size, first = c->first_rank % node, most = 1;
    for (int at = first; at < first + c->ranks && is_across(c, run); at += run)
        most = MAX(most, (at + run - 1) / node - at / node + 1);
    return most;
}

double layout_rounds(const LayoutCosts* c, const Layout* layout, int N) {
    return fmax(1, ceil(c->tokens / groups_of(c, layout) / N - 1e-9));
}

// The tokens of a group in a round.
static double round_tokens(const LayoutCosts* c, const Layout* layout, int N) {
    return c->tokens / groups_of(c, layout) / layout_rounds(c, layout, N);
}

// ---- parts of a layer, ms of a pass

// The shape of the rank with most of a cut of T ranks, in a group of R that is split evenly.
static Shape widest(const Shape* whole, int R, int T) {
    TpSplit split = split_even(whole, R), cut = split_cut(&split, T);
    return split_widest(whole, &cut);
}

// Sets the shares of a layer's matmuls and heads that the rank with most has by tp T.
static void widest_work(const Shape* whole, int R, int T, double* matmuls, double* heads) {
    *matmuls = *heads = 1;
    if (R == 1) return;
    Shape weights = widest(whole, R, T), core = widest(whole, R, R);
    double head = (double)whole->V * whole->C;
    *matmuls = (shape_matmul_weights(&weights) - head) / (shape_matmul_weights(whole) - head) * T / R;
    *heads = (double)core.heads / whole->NH;
}

// Sets the times of n tokens of a group among its R / T cuts: queries, keys and values go to the ranks that compute
// their heads, and come back as attention.
static void turn_times(LayerTimes* x, const LayoutCosts* c, int R, int T, double n) {
    Shape core = widest(c->whole, R, R);
    double head = n * c->whole->HS * c->elem_bytes * (1 - (double)T / R), queries = head * core.heads,
           all = queries + 2 * head * core.kv_heads, with_own = 1 / (1 - (double)T / R);
    int G = R / T, across = is_across(c, R);
    x->turn = across;
    x->all_heads = transfer_ms(&c->links, TRANSFER_ULYSSES, G, across, all, all * with_own);
    x->queries = transfer_ms(&c->links, TRANSFER_ULYSSES, G, across, queries, queries * with_own);
}

// ms of a sum of `bytes` among `ranks` ranks of a run.
static double weights_ms(const LayoutCosts* c, int ranks, int run, double bytes) {
    return transfer_sum_ms(&c->links, TRANSFER_WEIGHTS, ranks, nodes_of(c, run), bytes);
}

static double tokens_ms(const LayoutCosts* c, int T, double bytes) {
    return transfer_sum_ms(&c->links, TRANSFER_TENSOR, T, nodes_of(c, T), bytes);
}

// ms to gather the shares of `peers` peers, `one` bytes each; own: this rank takes part beside them.
static double part_ms(const LayoutCosts* c, int T, int peers, int own, double one) {
    return peers ? transfer_ms(&c->links, TRANSFER_TENSOR, MAX(peers + own, 2), is_across(c, T), peers * one, 0) : 0;
}

// Sets the times to gather the tokens of T ranks, `one` bytes of each: all at once, and in two parts, the own half's
// first. Of unlike halves the larger one counts, because the others wait for it.
static void gather_times(LayerTimes* x, const LayoutCosts* c, int T, double one) {
    int low = T / 2, high = T - low;
    x->cut = is_across(c, T), x->half = (double)low / T;
    x->sums = tokens_ms(c, T, T * one);
    x->first = part_ms(c, T, high - 1, 1, one);
    x->second = fmax(part_ms(c, T, low, 0, one), part_ms(c, T, high, low == 1, one));
}

// The times of a bucket that D ranks of a stage divide, in cuts of T ranks.
static BucketTimes bucket_times(const LayoutCosts* c, const Layout* layout, const BucketWeights* b, int T, int D) {
    int run = stage_ranks(c, layout);
    BucketTimes x = {.data = is_across(c, run), .cut = is_across(c, T)};
    x.gather = weights_ms(c, D, run, c->elem_bytes * b->elems / T), x.reduce = weights_ms(c, D, run, 4 * b->elems / T);
    for (int i = 0; i < b->n_replicated && T > 1; i++)
        x.replicated += 2 * weights_ms(c, T, T, sizeof(float) * b->replicated[i]);
    return x;
}

// Returns 1 if a layer's group was measured as it runs it.
static int is_measured(const LayoutCosts* c, int R, int T) { return T == R && c->of_tp[R].token > 0; }

static LayerTimes layer_times(const LayoutCosts* c, const Layout* layout, const LayerLayout* row, const RoundWork* w,
                              double speed) {
    const Shape* s = c->whole;
    const Cost* cost = &c->machine.cost;
    LayerTimes x = {0};
    int R = layout->tp, T = row->tp, D = groups_of(c, layout) * (R / T);
    double n = w->tokens, matmuls, heads, head = (double)s->V * s->C;
    double weights = shape_padded_weights(s);
    double token = cost->per_token, pair = cost->quadratic, read = cost_micro_batch(cost) / T;
    int measured = is_measured(c, R, T);
    widest_work(s, R, T, &matmuls, &heads);
    if (measured) matmuls = heads = 1, token = c->of_tp[R].token, pair = c->of_tp[R].pair, read = c->of_tp[R].row;
    token /= speed, pair /= speed;
    split_linears(x.linear, s, n * token * matmuls * (shape_matmul_weights(s) - head) / weights / s->L / 3);
    x.attention = w->squares * pair * heads / s->L / 3, x.shared = w->exchange / s->L / 2;
    x.again = c->machine.again > 0 ? 3 * c->machine.again : 1;
    if (c->rounds_read_weights) x.read = read / s->L;
    if (T > 1 && !measured) gather_times(&x, c, T, n * s->C * c->elem_bytes / R);
    if (T < R) turn_times(&x, c, R, T, n);
    if (!machine_has_weights(&c->machine, row->zero)) x.bucket = bucket_times(c, layout, &c->layer, T, D);
    if (c->has_owners && row->zero < 2) x.bucket.reduce = 0;
    if (c->has_owners && row->zero < 3) x.bucket.gather = 0;
    if (c->has_owners) x.bucket.replicated = 0;
    x.bucket.data = is_across(c, stage_ranks(c, layout));
    return x;
}

// Sets the message between stages s - 1 and s: the residual stream of a round, or its gradient.
static void set_border(EndTimes* e, int side, const LayoutCosts* c, const Layout* layout, int s, double tokens) {
    int run = stage_ranks(c, layout), node = c->links.node_size;
    double bytes = tokens * c->whole->C * c->elem_bytes / layout->tp;
    if (s <= 0 || s >= layout->stages) return;
    e->border[side] = c->first_rank % node + c->ranks > node && (run >= node || (c->first_rank + s * run) % node == 0);
    e->message[side] = transfer_ms(&c->links, TRANSFER_STREAM, 2, e->border[side], bytes, bytes);
}

// The times of stage s's ends, with `layers` layers. The group exchanges the embedding's sum, the last norm, the
// gradients of both, and three numbers of each rank a token.
static EndTimes end_times(const LayoutCosts* c, const Layout* layout, int s, int layers, const RoundWork* w,
                          double speed) {
    const Shape* m = c->whole;
    int R = layout->tp, measured = is_measured(c, R, R);
    double n = w->tokens, weights = shape_padded_weights(m);
    double token = measured ? c->of_tp[R].token * m->Vp : c->machine.cost.per_token * CEIL_DIV(m->Vp, R);
    EndTimes e = {.head = n * token * m->C / weights / speed, .cut = is_across(c, R)};
    if (!c->rounds_read_weights) e.end = cost_micro_batch(&c->machine.cost) * layers / m->L;
    for (int side = 0; side < 2; side++) set_border(&e, side, c, layout, s + side, n);
    if (R == 1 || measured) return e;
    e.sums = tokens_ms(c, R, n * m->C * c->elem_bytes);
    e.numbers = tokens_ms(c, R, n * 3 * (double)sizeof(float) * R);
    return e;
}

static StepTimes step_times(const LayoutCosts* c, const Layout* layout, int s, int layers) {
    int R = layout->tp, D = groups_of(c, layout), P = layout->stages;
    StepTimes t = {.update = c->machine.cost.step * layers / c->whole->L, .tied_link = is_across(c, c->ranks)};
    if (c->has_owners || machine_has_weights(&c->machine, layout->stage[s].zero)) return t;
    if (s == 0 || (s == P - 1 && c->tied > 0)) t.bucket[0] = bucket_times(c, layout, &c->end[0], R, D);
    if (s == P - 1) t.bucket[1] = bucket_times(c, layout, &c->end[1], R, D);
    if (P > 1 && c->tied > 0)
        t.tied = 2 * transfer_sum_ms(&c->links, TRANSFER_WEIGHTS, 2, 1 + (int)t.tied_link, 4 * c->tied / R);
    return t;
}

WeightTimes layout_weights(const LayoutCosts* c, const Layout* layout, int zero) {
    int R = layout->tp, T = layout->layer[0].tp, D = groups_of(c, layout);
    WeightTimes w = {.zero = zero, .update = c->machine.cost.step, .hides = c->overlap, .inside = c->overlap && R == 1};
    if (c->has_owners || D * (R / T) == 1 || machine_has_weights(&c->machine, zero)) return w;
    StepTimes ends = step_times(c, layout, 0, c->whole->L);
    BucketTimes all[] = {ends.bucket[0], bucket_times(c, layout, &c->layer, T, D * (R / T)), ends.bucket[1]};
    double head = (double)c->whole->V * c->whole->C / shape_matmul_weights(c->whole), linear[2][2];
    split_linears(linear, c->whole, 1);
    w.layers = CEIL_DIV(c->whole->L, layout->stages), w.across = all[WEIGHTS_LAYER].data, w.head = head,
    w.before = linear[0][0];
    for (int k = 0; k < N_WEIGHTS; k++) w.gather[k] = all[k].gather, w.reduce[k] = all[k].reduce + all[k].replicated;
    return w;
}

// ---- a stage, and a step

typedef struct Works {
    const RoundWork* work;
    int n;
} Works;

static int kinds_of(int* kind, int* first, const LayerLayout* rows, int n) {
    int kinds = 0;
    for (int l = 0; l < n; l++) {
        int k = 0;
        while (k < kinds && memcmp(&rows[first[k]], &rows[l], sizeof *rows)) k++;
        if (k == kinds) first[kinds++] = l;
        kind[l] = k;
    }
    return kinds;
}

// Returns the mean pace of a stage's groups, each at its slowest rank's: 1 on machines whose ranks are alike.
static double stage_pace(const Machine* machine, int ranks, const Layout* layout, int s) {
    int run = ranks / layout->stages, R = layout->tp;
    double sum = 0;
    if (machine->n_kinds == 0) return 1;
    for (int at = s * run; at < (s + 1) * run; at += R) sum += machine_speed(machine, at, R);
    return sum / (run / R);
}

// Makes stage s of a layout, with n layers by these rows in place of its own. 0, or -1 without memory.
static int make_stage(PlayedStage* x, const LayoutCosts* c, const Layout* layout, int s, const LayerLayout* rows, int n,
                      const Works* works) {
    static int first[MOST_LAYERS];
    int* kind = TAKE(c->arena, int, n);
    double speed = stage_pace(&c->machine, c->ranks, layout, s);
    if (!kind) return -1;
    *x = (PlayedStage){.layers = n, .is_first = s == 0, .is_last = s == layout->stages - 1, .rows = rows, .kind = kind};
    x->kinds = kinds_of(kind, first, rows, n);
    LayerTimes* layer = TAKE(c->arena, LayerTimes, works->n * x->kinds);
    EndTimes* ends = TAKE(c->arena, EndTimes, works->n);
    if (!layer || !ends) return -1;
    for (int w = 0; w < works->n; w++) {
        for (int k = 0; k < x->kinds; k++)
            layer[w * x->kinds + k] = layer_times(c, layout, &rows[first[k]], &works->work[w], speed);
        ends[w] = end_times(c, layout, s, n, &works->work[w], speed);
    }
    x->layer = layer, x->ends = ends;
    x->step = step_times(c, layout, s, n);
    return 0;
}

static PlayedStep played_step(const LayoutCosts* c, const Layout* layout, const PlayedStage* stage, int works) {
    return (PlayedStep){.stages = layout->stages,
                        .works = works,
                        .stage = stage,
                        .overlap = c->overlap,
                        .tensor_overlap = c->tensor_overlap,
                        .reduces_inside = c->overlap && layout->tp == 1 && layout->stages == 1 && !c->has_owners,
                        .slow = fmax(c->machine.overlap, 1)};
}

// Plays v rounds that are alike: all, or only `some`, and then each of the rest takes the mean of the last `more`.
static double play_alike(double terms[N_LAYOUT_TERMS], PlayedStep* step, int v, int some, int more, Arena* arena) {
    double less[N_LAYOUT_TERMS];
    step->rounds = MIN(v, some);
    double ms = layout_play(terms, step, arena), times = (double)(v - some) / more;
    if (v <= some) return ms;
    step->rounds = some - more;
    double before = layout_play(less, step, arena);
    for (int i = 0; i < N_LAYOUT_TERMS; i++) terms[i] += times * (terms[i] - less[i]);
    return ms + times * (ms - before);
}

// Plays `rounds` rounds; they are alike if there is one work for all, else each has its own.
static double play_works(double terms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, const Works* works,
                         int rounds, int apart) {
    ArenaMark mark = arena_mark(c->arena);
    int P = layout->stages, failed = 0, most = c->played_rounds ? c->played_rounds : 8 * P + 64;
    PlayedStage* stage = TAKE(c->arena, PlayedStage, P);
    PlayedStep step = played_step(c, layout, stage, works->n);
    step.reduces_inside &= !apart;
    for (int s = 0; s < P && stage && !failed; s++)
        failed = make_stage(&stage[s], c, layout, s, &layout->layer[layout_first(layout, s)], layout->stage[s].layers,
                            works);
    if (!stage || failed) return INFINITY;
    double ms = play_alike(terms, &step, rounds, works->n > 1 ? rounds : most, 4 * P + 16, c->arena);
    terms[TERM_STAGES] = 0;
    for (int i = 0; i < N_LAYOUT_TERMS; i++) terms[TERM_STAGES] += i == TERM_STAGES ? ms : -terms[i];
    arena_reset(c->arena, mark);
    return ms;
}

double layout_rounds_ms(double terms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout,
                        const RoundWork* works, int rounds, int apart) {
    int alike = 1;
    for (int r = 1; r < rounds && alike; r++) alike = !memcmp(&works[r], works, sizeof *works);
    Works all = {works, alike ? 1 : rounds};
    return play_works(terms, c, layout, &all, rounds, apart);
}

double layout_step_ms(double terms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int N) {
    RoundWork work = {round_tokens(c, layout, N), round_tokens(c, layout, N) * c->mean_length, 0};
    Works works = {&work, 1};
    return play_works(terms, c, layout, &works, (int)layout_rounds(c, layout, N), 0);
}

// ---- for the search: stages that are all alike, by themselves

// Adds `times` times the terms of n layers by one row that run alone as stage s of a layout.
static void add_alone(double ms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int s, LayerLayout row,
                      int n, int N, double times) {
    enum { SOME = 3 };
    double terms[N_LAYOUT_TERMS] = {0};
    LayerLayout rows[SOME + 1] = {row, row, row, row};
    RoundWork work = {round_tokens(c, layout, N), round_tokens(c, layout, N) * c->mean_length, 0};
    Works works = {&work, 1};
    PlayedStage stage;
    PlayedStep step = played_step(c, layout, &stage, 1);
    ArenaMark mark = arena_mark(c->arena);
    step.stages = 1;
    if (make_stage(&stage, c, layout, s, rows, n, &works)) return;
    play_alike(terms, &step, (int)layout_rounds(c, layout, N), 3, 1, c->arena);
    for (int i = 0; i < N_LAYOUT_TERMS; i++) ms[i] += times * terms[i];
    double border = stage.ends->message[0] + stage.ends->message[1];
    if (!c->overlap) ms[TERM_STAGES] += times * 2 * layout_rounds(c, layout, N) * border;
    arena_reset(c->arena, mark);
}

enum { SOME_LAYERS = 3 };

static int some_layers(const LayoutCosts* c) { return MIN(SOME_LAYERS, c->whole->L - 1); }

void layout_layer_ms(double ms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int s, int l, int N) {
    int n = some_layers(c);
    if (n) add_alone(ms, c, layout, s, layout->layer[l], n, N, -1);
    add_alone(ms, c, layout, s, layout->layer[l], n + 1, N, 1);
}

// Ends take what is left of a stage of n layers without n times what one more of them adds.
void layout_ends_ms(double ms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int s, int N) {
    int l = layout_first(layout, s), n = some_layers(c);
    if (n) add_alone(ms, c, layout, s, layout->layer[l], n, N, n + 1);
    add_alone(ms, c, layout, s, layout->layer[l], n + 1, N, n ? -n : 1);
}

void layout_print_terms(FILE* out, const double terms[N_LAYOUT_TERMS], double ms) {
    for (int i = 0, some = 0; i < N_LAYOUT_TERMS; i++)
        if (fabs(terms[i]) > 1e-4 * ms)
            fprintf(out, "%s%s %.1f %%", some++ ? ", " : "", layout_term_names[i], 100 * terms[i] / ms);
}

// ---- for the search

static double sum_of(const double terms[N_LAYOUT_TERMS]) {
    double ms = 0;
    for (int i = 0; i < N_LAYOUT_TERMS; i++) ms += terms[i];
    return ms;
}

static double one_layer_ms(void* c, const Layout* layout, int s, int l, int N) {
    double terms[N_LAYOUT_TERMS] = {0};
    layout_layer_ms(terms, (const LayoutCosts*)c, layout, s, l, N);
    return sum_of(terms);
}

static double both_ends_ms(void* c, const Layout* layout, int s, int N) {
    double terms[N_LAYOUT_TERMS] = {0};
    layout_ends_ms(terms, (const LayoutCosts*)c, layout, s, N);
    return sum_of(terms);
}

static double all_rounds(void* costs, const Layout* layout, int N) {
    const LayoutCosts* c = (const LayoutCosts*)costs;
    return (double)N * groups_of(c, layout) < c->context ? INFINITY : layout_rounds(c, layout, N);
}

static double whole_step_ms(void* c, const Layout* layout, int N) {
    double terms[N_LAYOUT_TERMS];
    return layout_step_ms(terms, (const LayoutCosts*)c, layout, N);
}

static double stage_room(void* costs, const Layout* layout, int s) {
    const LayoutCosts* c = (const LayoutCosts*)costs;
    int run = stage_ranks(c, layout);
    return fmin(c->memory, machine_bytes(&c->machine, s * run, run));
}

LayoutProblem layout_problem(LayoutCosts* c) {
    return (LayoutProblem){.whole = c->whole,
                           .ranks = c->ranks,
                           .tp = {1, MIN(MIN(c->whole->NH, c->whole->U), MOST_TP)},
                           .stages = {1, MOST_STAGES},
                           .zero = {1, 3},
                           .layer_ms = one_layer_ms,
                           .ends_ms = both_ends_ms,
                           .rounds = all_rounds,
                           .step_ms = whole_step_ms,
                           .room = stage_room,
                           .times = c};
}
