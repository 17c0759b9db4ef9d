// layout_cost.c - see layout_cost.h.
#include "plan/layout/layout_cost.h"

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

void layout_costs(LayoutCosts* c, const Shape* whole, const Machine* machine, int ranks, int node_size, int elem_bytes,
                  Arena* arena) {
    *c = (LayoutCosts){.whole = whole,
                       .machine = *machine,
                       .ranks = ranks,
                       .elem_bytes = elem_bytes,
                       .overlap = 1,
                       .tensor_overlap = 1,
                       .slow_exchange = fmax(machine->overlap, 1),
                       .slow_computing = fmax(machine->overlap, 1),
                       .arena = arena};
    c->links = transfer_times(&c->machine, whole, elem_bytes, node_size);
}

// ---- where ranks lie

static int stage_ranks(const LayoutCosts* c, const Layout* layout) { return c->ranks / layout->stages; }
// Groups of a stage, which have tokens of their own.
static int groups_of(const LayoutCosts* c, const Layout* layout) { return stage_ranks(c, layout) / layout->tp; }

// Whether runs of so many ranks, which begin at multiples of it, cross a node's border.
static int is_across(const LayoutCosts* c, int run) {
    int node = c->links.node_size;
    return c->ranks > node && (run > node || node % run != 0);
}

double layout_rounds(const LayoutCosts* c, const Layout* layout, int N) {
    return fmax(1, ceil(c->tokens / groups_of(c, layout) / N - 1e-9));
}

// Tokens of a group in a round.
static double round_tokens(const LayoutCosts* c, const Layout* layout, int N) {
    return c->tokens / groups_of(c, layout) / layout_rounds(c, layout, N);
}

// ---- parts of a layer, ms of a round

typedef struct LayerRound {
    double matmuls, attention, again;         // forward and backward
    double tensor, sequence, gather, reduce;  // gather: once
} LayerRound;

// The most heads, key/value heads and hidden units that one of T ranks has, where a group of R is split evenly.
static Shape widest(const Shape* whole, int R, int T) {
    TpSplit split = split_even(whole, R), cut = split_cut(&split, T);
    Shape most = split_shape(whole, &cut, 0);
    for (int t = 1; t < T; t++) {
        Shape s = split_shape(whole, &cut, t);
        most.heads = MAX(most.heads, s.heads), most.kv_heads = MAX(most.kv_heads, s.kv_heads);
        most.hidden = MAX(most.hidden, s.hidden);
    }
    return most;
}

// What the rank with most of a layer by tp T has of its matmuls, and of its heads.
static void widest_work(const Shape* whole, int R, int T, double* matmuls, double* heads) {
    *matmuls = *heads = 1;
    if (R == 1) return;
    Shape weights = widest(whole, R, T), core = widest(whole, R, R);
    double head = (double)whole->V * whole->C;
    *matmuls = (shape_matmul_weights(&weights) - head) / (shape_matmul_weights(whole) - head) * T / R;
    *heads = (double)core.heads / whole->NH;
}

// Among the R / T cuts, n tokens of the group: forward queries, keys and values go to those who compute their heads,
// and come back as attention; backward the gradients of both the other way.
static double sequence_ms(const LayoutCosts* c, int R, int T, double n, int again) {
    Shape core = widest(c->whole, R, R);
    double head = n * c->whole->HS * c->elem_bytes * (1 - (double)T / R), queries = core.heads,
           all = core.heads + 2 * core.kv_heads, with_own = 1 / (1 - (double)T / R);
    int G = R / T, across = is_across(c, R);
    return (2 + again) *
           (transfer_ms(&c->links, TRANSFER_ULYSSES, G, across, head * all, head * all * with_own) +
            transfer_ms(&c->links, TRANSFER_ULYSSES, G, across, head * queries, head * queries * with_own));
}

static double weights_ms(const LayoutCosts* c, int ranks, int run, double bytes) {
    return ranks > 1
               ? transfer_ms(&c->links, TRANSFER_WEIGHTS, ranks, is_across(c, run), bytes * (ranks - 1) / ranks, bytes)
               : 0;
}

static double layer_elems(const LayoutCosts* c, int tp) {
    Shape one = shape_stage(c->whole, 0, 1);
    return (double)shape_bucket(&one, 1).elems / tp;
}

// Ranks with the same weights of a layer by this tp.
static int shards_of(const LayoutCosts* c, const Layout* layout, int tp) {
    return groups_of(c, layout) * (layout->tp / tp);
}

double overlapped_ms(double a, double slow_a, double b, double slow_b) {
    double slow = a * slow_a, other = b * slow_b;
    return slow > other ? other + (slow - other) / slow_a : slow + (other - slow) / slow_b;
}

// What of a message is seen beside computing.
static double exposed(const LayoutCosts* c, double message, double computing) {
    if (!c->overlap) return message;
    return overlapped_ms(message, c->slow_exchange, computing, c->slow_computing) - computing;
}

// Shares of a layer's matmuls; their sum is 1.
typedef struct Linears {
    double qkv, proj, up, down;
} Linears;

static Linears linears_of(const Shape* s) {
    double qkv = (s->NH + 2 * s->NKV) * s->HS, proj = s->NH * s->HS, up = act_runs(shape_act(s)) * s->U, down = s->U,
           all = qkv + proj + up + down;
    return (Linears){qkv / all, proj / all, up / all, down / all};
}

// Ms to gather the tokens of the ranks that cut a layer, `one` bytes of each: in one collective, or in two parts, first
// those of the own half of the ranks, with nothing beside it.
typedef struct Gather {
    double first, second;
} Gather;

static double part_ms(const LayoutCosts* c, int T, int peers, int own, double one) {
    if (peers == 0) return 0;
    return transfer_ms(&c->links, TRANSFER_TENSOR, MAX(peers + own, 2), is_across(c, T), peers * one, 0);
}

// Where the halves are not alike, of the larger one, for which the others wait.
static Gather gather_of(const LayoutCosts* c, int T, double one) {
    int low = T / 2, high = T - low;
    double second = fmax(part_ms(c, T, low, 0, one), part_ms(c, T, high, low == 1, one));
    return (Gather){part_ms(c, T, high - 1, 1, one), second};
}

// A layer's exchanges with the T ranks that cut it: `sums` ms to add tokens up, `tokens` to gather them. A pass of its
// matmuls takes `pass` ms. A sublayer gathers before its first matmul, which goes on with the tokens of its half of the
// ranks while the others' come, and adds up behind its second one, with nothing beside it. Backward, gradients are
// gathered before the second one's input gradient, and are added up beside the first one's weight gradient.
static double tensor_ms(const LayoutCosts* c, int T, double sums, Gather tokens, double pass, int again) {
    Linears x = linears_of(c->whole);
    double first[] = {x.qkv, x.up}, second[] = {x.proj, x.down}, half = (double)(T / 2) / T, ms = 0;
    if (!c->tensor_overlap) return 4 * (2 + again) * sums;
    for (int i = 0; i < 2; i++) {
        ms += (1 + again) * (tokens.first + exposed(c, tokens.second, pass * first[i] * half) + sums);
        ms += tokens.first + exposed(c, tokens.second, pass * second[i] * half) + exposed(c, sums, pass * first[i]);
    }
    return ms;
}

// Whether a layer's group was measured as it runs it.
static int is_measured(const LayoutCosts* c, int R, int T) { return T == R && c->of_tp[R].token > 0; }

static LayerRound layer_round(const LayoutCosts* c, const Layout* layout, int l, int N) {
    const LayerLayout* row = &layout->layer[l];
    const Shape* s = c->whole;
    const Cost* cost = &c->machine.cost;
    LayerRound x = {0};
    int R = layout->tp, T = row->tp, D = shards_of(c, layout, T), run = stage_ranks(c, layout),
        again = row->recompute == RECOMPUTE_BLOCK;
    double n = round_tokens(c, layout, N), matmuls, heads, head = (double)s->V * s->C;
    double weights = shape_matmul_weights(s) + (double)(s->Vp - s->V) * s->C;
    double token = cost->per_token, pair = cost->quadratic;
    int measured = is_measured(c, R, T);
    widest_work(s, R, T, &matmuls, &heads);
    if (measured) matmuls = heads = 1, token = c->of_tp[R].token, pair = c->of_tp[R].pair;
    x.matmuls = n * token * matmuls * (shape_matmul_weights(s) - head) / weights / s->L;
    x.attention = n * c->mean_length * pair * heads / s->L;
    x.again = again * (x.matmuls + x.attention) * (c->machine.again > 0 ? c->machine.again : 1.0 / 3);
    double sent = n * s->C * c->elem_bytes * (T - 1) / R;
    if (T > 1 && !measured) {
        double sums = transfer_ms(&c->links, TRANSFER_TENSOR, T, is_across(c, T), sent, 0);
        x.tensor = tensor_ms(c, T, sums, gather_of(c, T, sent / (T - 1)), x.matmuls / 3, again);
    }
    if (T < R) x.sequence = sequence_ms(c, R, T, n, again);
    double elems = layer_elems(c, T);
    x.reduce = weights_ms(c, D, run, 4 * elems);
    x.gather = weights_ms(c, D, run, c->elem_bytes * elems);
    return x;
}

// ---- terms of a step

static int measured_has_weights(const LayoutCosts* c, int zero) {
    return zero == 1 ? c->machine.cost.step > 0 : c->machine.cost.round > 0;
}

// Gradients of zero 1, embeddings and head are reduced inside the last backward pass only where nothing else is in the
// way (run/model/zero.c).
static int reduces_inside(const Layout* layout) { return layout->tp == 1 && layout->stages == 1; }

// What a layer computes, ms of a round, while its weights or gradients are on their way: all of a pass. But messages
// over a link leave one after another, and the group's exchanges wait for those; so there, what is before the first
// exchange.
static void passes_ms(const LayoutCosts* c, const Layout* layout, int l, const LayerRound* x, double* forward,
                      double* backward) {
    const LayerLayout* row = &layout->layer[l];
    Linears part = linears_of(c->whole);
    double pass = x->matmuls / 3, computing = pass + x->attention / 3;
    int R = layout->tp, meet = R > 1 && is_across(c, R) == is_across(c, stage_ranks(c, layout));
    int again = row->recompute == RECOMPUTE_BLOCK;
    *forward = meet ? pass * part.qkv / row->tp : computing + (x->tensor + x->sequence) / (2 + again);
    *backward = !meet          ? 3 * computing + x->again + x->tensor + x->sequence - *forward
                : again        ? *forward
                : row->tp == 1 ? 2 * pass * (1 - part.qkv)
                               : pass * part.down / row->tp;
}

void layout_layer_ms(double ms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int s, int l, int N) {
    const LayerLayout* row = &layout->layer[l];
    LayerRound x = layer_round(c, layout, l, N);
    double v = layout_rounds(c, layout, N), forward, backward, gathered = row->zero > 2 ? x.gather : 0;
    passes_ms(c, layout, l, &x, &forward, &backward);
    (void)s;
    ms[TERM_MATMULS] += v * x.matmuls, ms[TERM_ATTENTION] += v * x.attention, ms[TERM_AGAIN] += v * x.again;
    ms[TERM_TENSOR] += v * x.tensor, ms[TERM_SEQUENCE] += v * x.sequence;
    double read = cost_micro_batch(&c->machine.cost) / row->tp;
    if (is_measured(c, layout->tp, row->tp)) read = c->of_tp[row->tp].row;
    if (c->rounds_read_weights) ms[TERM_MICRO_BATCH] += v * read / c->whole->L;
    if (!measured_has_weights(c, row->zero) && row->zero > 1)
        ms[TERM_ROUNDS] += v * (exposed(c, gathered, forward) + exposed(c, gathered + x.reduce, backward));
    // Zero 1 and 2 gather their weights once a step.
    if (!measured_has_weights(c, row->zero) && row->zero < 3) ms[TERM_STEP] += exposed(c, x.gather, forward);
    if (!measured_has_weights(c, row->zero) && row->zero == 1)
        ms[TERM_STEP] += reduces_inside(layout) ? exposed(c, x.reduce, backward) : x.reduce;
    ms[TERM_STEP] += c->machine.cost.step / c->whole->L;
}

// What the ends of a stage's passes change, ms of all rounds, for a layer that stands there.
typedef struct Turn {
    double first;              // more: nothing is computed yet while its weights are on their way
    double last;               // more: its gradients leave last, when nothing is computed any more
    double forward, backward;  // less: its weights are there already
} Turn;

static Turn turn_of(const LayoutCosts* c, const Layout* layout, int l, int N) {
    const LayerLayout* row = &layout->layer[l];
    LayerRound x = layer_round(c, layout, l, N);
    double v = layout_rounds(c, layout, N), forward, backward, gather = row->zero == 3 ? x.gather : 0;
    if (measured_has_weights(c, row->zero)) return (Turn){0};
    passes_ms(c, layout, l, &x, &forward, &backward);
    double leaves = row->zero > 1 ? v : reduces_inside(layout), seen = exposed(c, gather + x.reduce, backward);
    return (Turn){.first = x.gather - exposed(c, x.gather, forward),
                  .last = leaves * fmax(0, x.reduce - seen),
                  .forward = (v - 1) * exposed(c, gather, forward),
                  .backward = v * (seen - exposed(c, x.reduce, backward))};
}

// Elements of the embeddings, or of the last norm and the classifier, that a rank has.
static double bucket_elems(const Shape* part, int b, int tp) { return (double)shape_bucket(part, b).elems / tp; }

// What of the last norm's and the head's weights and gradients hides: weights under the first forward pass, gradients
// under the last backward pass, where nothing of layers is on its way. Zero 2 has room for gradients of two layers that
// wait behind the head's; with zero 3 the next layer's weights do.
static double head_hidden_ms(const LayoutCosts* c, const Layout* layout, int N) {
    int L = c->whole->L, last = layout_first(layout, layout->stages - 1);
    int D = groups_of(c, layout), run = stage_ranks(c, layout);
    double elems = bucket_elems(c->whole, L + 1, layout->tp), forward, backward, before = 0, behind = 0;
    double most_before = INFINITY, most_behind = INFINITY;
    double gather = weights_ms(c, D, run, c->elem_bytes * elems), reduce = weights_ms(c, D, run, 4 * elems);
    if (measured_has_weights(c, layout->stage[layout->stages - 1].zero)) return 0;
    for (int l = 0; l < L; l++) {
        int zero = layout->layer[l].zero;
        LayerRound x = layer_round(c, layout, l, N);
        passes_ms(c, layout, l, &x, &forward, &backward);
        before += l < L - 1 ? fmax(0, forward - (l >= last ? x.gather : 0)) : forward;
        behind += fmax(0, backward - x.reduce - (zero == 3 ? x.gather : 0));
        if (zero > 1) most_behind = (zero == 2 ? 2 : 1) * backward;
        if (zero > 2) most_before = forward;
    }
    double hidden = gather - exposed(c, gather, fmin(before, most_before));
    return reduces_inside(layout) ? hidden + reduce - exposed(c, reduce, fmin(behind, most_behind)) : hidden;
}

// The first layer of a stage waits for its weights, if no other stage computes before it, and leaves last; the window
// has weights of two layers with zero 3, which are still there where a pass turns.
static void add_turns(double ms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int s, int N) {
    int first = layout_first(layout, s), end = layout_first(layout, s + 1), gathered = 0, left = 0;
    for (int l = first; l < end; l++) left += layout->layer[l].zero == 3;
    if (s == layout->stages - 1) ms[TERM_STEP] -= head_hidden_ms(c, layout, N);
    for (int l = first; l < end; l++) {
        Turn turn = turn_of(c, layout, l, N);
        if (l == 0) ms[TERM_STEP] += turn.first;
        if (l == first) ms[layout->layer[l].zero > 1 ? TERM_ROUNDS : TERM_STEP] += turn.last;
        if (layout->layer[l].zero < 3) continue;
        if (gathered++ < 2) ms[TERM_ROUNDS] -= turn.forward;
        if (left-- <= 2) ms[TERM_ROUNDS] -= turn.backward;
    }
}

// A layer's share of that, as if all of its stage were like it and stages even.
static double share_of_turns_ms(const LayoutCosts* c, const Layout* layout, int l, int N) {
    Turn turn = turn_of(c, layout, l, N);
    double layers = fmax(1, (double)c->whole->L / layout->stages);
    return (turn.last - fmin(2, layers) * (turn.forward + turn.backward)) / layers;
}

// The residual stream of a round from stage s to the next, or its gradient back. Without overlap it keeps both stages
// until it is through.
static double border_ms(const LayoutCosts* c, const Layout* layout, int s, int N) {
    int run = stage_ranks(c, layout), node = c->links.node_size;
    int across = c->ranks > node && (run >= node || (s + 1) * run % node == 0);
    double bytes = round_tokens(c, layout, N) * c->whole->C * c->elem_bytes / layout->tp;
    if (s < 0 || s == layout->stages - 1) return 0;
    return transfer_ms(&c->links, TRANSFER_STREAM, 2, across, bytes, bytes);
}

void layout_ends_ms(double ms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int s, int N) {
    const Shape* w = c->whole;
    int R = layout->tp, P = layout->stages, D = groups_of(c, layout), run = stage_ranks(c, layout);
    double v = layout_rounds(c, layout, N), n = round_tokens(c, layout, N);
    double weights = shape_matmul_weights(w) + (double)(w->Vp - w->V) * w->C, head = n * c->machine.cost.per_token;
    Shape part = shape_stage(w, layout_first(layout, s), layout_first(layout, s + 1));
    int measured = is_measured(c, R, R);
    head *= CEIL_DIV(w->Vp, R) * (double)w->C / weights;
    if (measured) head = n * c->of_tp[R].token * w->Vp * w->C / weights;
    if (s == P - 1) ms[TERM_MATMULS] += v * head;
    if (!c->overlap) ms[TERM_STAGES] += 2 * v * (border_ms(c, layout, s - 1, N) + border_ms(c, layout, s, N));
    if (s == 0 && !c->rounds_read_weights) ms[TERM_MICRO_BATCH] += v * cost_micro_batch(&c->machine.cost);
    // The embedding's sum and its gradient; the last norm, its gradient, and three numbers of each rank a token.
    double sent = n * w->C * c->elem_bytes * (R - 1) / R, numbers = n * 3 * (double)sizeof(float) * (R - 1);
    double one = R > 1 && !measured ? 2 * transfer_ms(&c->links, TRANSFER_TENSOR, R, is_across(c, R), sent, 0) : 0;
    double three = R > 1 && !measured ? transfer_ms(&c->links, TRANSFER_TENSOR, R, is_across(c, R), numbers, 0) : 0;
    ms[TERM_TENSOR] += v * ((s == 0) * one + (s == P - 1) * (one + three));
    if (measured_has_weights(c, layout->stage[s].zero)) return;
    for (int b = 0; b <= part.L + 1; b += part.L + 1) {
        double elems = bucket_elems(&part, b, R);
        ms[TERM_STEP] += weights_ms(c, D, run, 4 * elems) + weights_ms(c, D, run, c->elem_bytes * elems);
    }
    // Where the classifier is the embedding too, the first and the last stage add up its gradients.
    double tied = (double)shape_param(w, WTE, 0).elems / R;
    if (P > 1 && (s == 0 || s == P - 1) && !shape_has(w, HAS_HEAD))
        ms[TERM_STEP] += transfer_ms(&c->links, TRANSFER_WEIGHTS, 2, is_across(c, c->ranks), 4 * tied, 0);
}

// ---- a step

// Of all rounds of a stage, without what happens once a step.
static double rounds_ms(const double terms[N_LAYOUT_TERMS]) {
    double ms = 0;
    for (int i = 0; i < N_LAYOUT_TERMS; i++) ms += i == TERM_STEP || i == TERM_STAGES ? 0 : terms[i];
    return ms;
}

typedef struct StageTimes {
    double terms[MOST_STAGES][N_LAYOUT_TERMS];
    double *forward, *backward, *message;
    int slots[MOST_STAGES];
} StageTimes;

static void fill_times(StageTimes* t, const LayoutCosts* c, const Layout* layout, int N, int v) {
    int P = layout->stages;
    double longest = 0;
    for (int s = 0; s < P; s++) {
        memset(t->terms[s], 0, sizeof t->terms[s]);
        for (int l = layout_first(layout, s); l < layout_first(layout, s + 1); l++)
            layout_layer_ms(t->terms[s], c, layout, s, l, N);
        layout_ends_ms(t->terms[s], c, layout, s, N);
        add_turns(t->terms[s], c, layout, s, N);
        double all = rounds_ms(t->terms[s]) / v, passes = 3 + layout_again(layout, s);
        double kept = t->terms[s][TERM_STAGES] / (2 * v);
        t->slots[s] = rounds_in_flight(P, s);
        longest = fmax(longest, border_ms(c, layout, s, N));
        for (int r = 0; r < v; r++) {
            t->forward[s * v + r] = all / passes + kept;
            t->backward[s * v + r] = all - all / passes + kept;
        }
    }
    for (int r = 0; r < v; r++) t->message[r] = c->overlap ? longest : 0;
}

double layout_step_ms(double terms[N_LAYOUT_TERMS], const LayoutCosts* c, const Layout* layout, int N) {
    char err[ERR_BYTES];
    ArenaMark mark = arena_mark(c->arena);
    int P = layout->stages, v = (int)layout_rounds(c, layout, N), longest = 0;
    double ms = 0, most = 0;
    Schedule schedule;
    StageTimes* t = TAKE(c->arena, StageTimes, 1);
    double* times = TAKE(c->arena, double, (2 * P + 1) * v);
    if (!t || !times) return INFINITY;
    t->forward = times, t->backward = times + P * v, t->message = times + 2 * P * v;
    fill_times(t, c, layout, N, v);
    Pipeline pipeline = {P, v, 1, t->slots, t->forward, t->backward, P > 1 ? t->message : NULL};
    if (schedule_tasks(&schedule, &pipeline, c->arena, err)) return INFINITY;
    for (int s = 0; s < P; s++) {
        const TaskList* list = &schedule.stages[s];
        double own = rounds_ms(t->terms[s]) + t->terms[s][TERM_STEP];
        ms = fmax(ms, list->tasks[list->n - 1].end + t->terms[s][TERM_STEP]);
        if (own > most) most = own, longest = s;
    }
    memcpy(terms, t->terms[longest], sizeof *terms * N_LAYOUT_TERMS);
    terms[TERM_STAGES] = ms - most;
    arena_reset(c->arena, mark);
    return ms;
}

void layout_print_terms(FILE* out, const LayoutCosts* c, const Layout* layout, int N) {
    double terms[N_LAYOUT_TERMS], ms = layout_step_ms(terms, c, layout, N);
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
    return sum_of(terms) + share_of_turns_ms((const LayoutCosts*)c, layout, l, N);
}

static double both_ends_ms(void* c, const Layout* layout, int s, int N) {
    double terms[N_LAYOUT_TERMS] = {0};
    layout_ends_ms(terms, (const LayoutCosts*)c, layout, s, N);
    return sum_of(terms);
}

static double all_rounds(void* c, const Layout* layout, int N) {
    return layout_rounds((const LayoutCosts*)c, layout, N);
}

static double whole_step_ms(void* c, const Layout* layout, int N) {
    double terms[N_LAYOUT_TERMS];
    return layout_step_ms(terms, (const LayoutCosts*)c, layout, N);
}

LayoutProblem layout_problem(LayoutCosts* c) {
    return (LayoutProblem){.whole = c->whole,
                           .ranks = c->ranks,
                           .tp = {1, MIN(MIN(c->whole->NH, c->whole->U), MOST_TP)},
                           .stages = {1, MOST_STAGES},
                           .zero = {1, 3},
                           .alike = 1,
                           .layer_ms = one_layer_ms,
                           .ends_ms = both_ends_ms,
                           .rounds = all_rounds,
                           .step_ms = whole_step_ms,
                           .times = c};
}
