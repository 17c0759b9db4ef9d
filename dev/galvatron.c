// galvatron.c - see galvatron.h. Formulas are those of the released code, the slowdown of overlap from measurements.
#include "dev/galvatron.h"

#include <math.h>
#include <stdio.h>

// ---- strategies

typedef struct Tree {
    Strategy* found;
    int n, pruned, recompute;
} Tree;

static void add_leaf(Tree* t, const Strategy* s) {
    for (int again = 0; again <= t->recompute; again++) {
        if (t->n == MOST_STRATEGIES) broken("more than %d strategies", MOST_STRATEGIES);
        t->found[t->n] = *s;
        t->found[t->n++].recompute = again;
    }
}

static int is_pruned(const Tree* t, const Strategy* s) {
    return t->pruned && strategy_degree(s, BY_DATA) > 1 && strategy_degree(s, BY_SHARDS) > 1;
}

// `ranks` are left to divide.
static void grow(Tree* t, const Strategy* s, int ranks) {
    if (ranks == 1) add_leaf(t, s);
    for (int by = 0; by < N_DIMENSIONS && ranks > 1; by++)
        for (int degree = 2; degree <= ranks && strategy_degree(s, (Dimension)by) == 1; degree *= 2) {
            Strategy deeper = *s;
            deeper.by[deeper.levels] = (Dimension)by;
            deeper.degree[deeper.levels++] = degree;
            if (!is_pruned(t, &deeper)) grow(t, &deeper, ranks / degree);
        }
}

int strategies_of(Strategy strategies[MOST_STRATEGIES], int ranks, int pruned, int recompute) {
    Tree t = {strategies, 0, pruned, recompute};
    Strategy root = {0};
    if (ranks < 1 || (ranks & (ranks - 1))) return 0;
    grow(&t, &root, ranks);
    return t.n;
}

int strategies_in_all(int ranks, int pruned, int recompute) {
    Strategy scratch[MOST_STRATEGIES];
    int n = 0;
    for (int g = 1; g <= ranks; g *= 2) n += strategies_of(scratch, g, pruned, recompute);
    return n;
}

int strategy_degree(const Strategy* s, Dimension by) {
    for (int i = 0; i < s->levels; i++)
        if (s->by[i] == by) return s->degree[i];
    return 1;
}

int strategy_data(const Strategy* s) { return strategy_degree(s, BY_DATA) * strategy_degree(s, BY_SHARDS); }

int strategy_is_consecutive(const Strategy* s, Dimension by) { return s->levels > 0 && s->by[0] == by; }

void strategy_name(char name[STRATEGY_NAME], const Strategy* s) {
    static const char* const names[] = {"dp", "sdp", "tp"};
    int n = s->levels ? 0 : snprintf(name, STRATEGY_NAME, "one");
    for (int i = 0; i < s->levels; i++)
        n += snprintf(name + n, (size_t)(STRATEGY_NAME - n), "%s%s%d", i ? " " : "", names[s->by[i]], s->degree[i]);
    if (s->recompute) snprintf(name + n, (size_t)(STRATEGY_NAME - n), " +");
}

// ---- time

static int log2_of(int ranks) {
    int i = 0;
    while (1 << (i + 1) <= ranks) i++;
    return i;
}

static double exchange_ms(const Links* links, const Strategy* s, Dimension by, int ranks, double mb) {
    return ranks > 1 ? mb * links->ms_per_mb[strategy_is_consecutive(s, by)][log2_of(ranks)] : 0;
}

// Gradients hide under the backward pass. Those of tensor-parallel layers with two data ranks hide only under half of
// it, as the released code has it.
double overlapped_ms(double exchange, double slow_exchange, double computing, double slow_computing) {
    RankClock c = {.overlap = 1, .slow_exchange = slow_exchange, .slow_computing = slow_computing};
    ClockMessage m = clock_begin(&c, 0, LINK_INSIDE, exchange, 0);
    clock_compute(&c, 0, computing);
    clock_wait(&c, 0, m);
    return c.now;
}

LayerTime layer_time(const LayerProfile* layer, const Links* links, const Strategy* s, double batch) {
    int tp = strategy_degree(s, BY_TENSOR), dp = strategy_data(s), shards = strategy_degree(s, BY_SHARDS);
    double samples = batch / dp, again = s->recompute ? 0.5 : 0;
    LayerTime t = {0};
    t.forward = layer->forward_ms * samples / tp;
    t.backward = (2 + again) * t.forward;
    t.data_mb = 2.0 * (dp - 1) / dp * layer->parameter_mb / tp;
    t.data_ms = exchange_ms(links, s, shards > 1 ? BY_SHARDS : BY_DATA, dp, t.data_mb);
    t.tensor_mb = 2.0 * (tp - 1) / tp * samples * layer->tokens * layer->channels * layer->exchanges * layer->bytes /
                  (1 << 20) * (s->recompute ? 1.5 : 1);
    t.tensor_ms = exchange_ms(links, s, BY_TENSOR, tp, t.tensor_mb);
    t.gathered = shards > 1 ? 0.5 * t.data_ms : 0;
    t.hidden_under = dp == 1 ? 0 : tp > 1 && dp == 2 ? 0.5 * t.backward : t.backward;
    t.ms = t.forward + t.backward - t.hidden_under + t.tensor_ms + t.gathered +
           overlapped_ms(t.data_ms, links->slow_exchange, t.hidden_under, links->slow_computing);
    return t;
}

// ---- memory

double zero3_share(int d, double margin) { return 1.0 / d + margin; }

double zero2_share(int d, double margin, int bits) {
    double divided = bits == 16 ? 7.0 / 8 : 3.0 / 4;
    return divided * zero3_share(d, margin) + 1 - divided;
}

// Parameters, gradients and two moments are 4 times the parameters.
LayerMemory layer_memory(const LayerProfile* layer, const Strategy* s, double batch, double in_flight, double margin) {
    int tp = strategy_degree(s, BY_TENSOR), shards = strategy_degree(s, BY_SHARDS);
    const double* sample = s->recompute ? layer->kept_mb : layer->activation_mb;
    return (LayerMemory){4 * layer->parameter_mb / tp * (shards > 1 ? zero3_share(shards, margin) : 1),
                         sample[log2_of(tp)] * batch / strategy_data(s) * in_flight};
}

// ---- stages

void partition_even_memory(int* layers, int stages, const double* bytes, int n, double first_bytes, double last_bytes) {
    double sum = first_bytes + last_bytes, own[MOST_STAGES] = {0};
    for (int l = 0; l < n; l++) sum += bytes[l];
    double target = sum / stages;
    int left = n;
    for (int s = stages - 1; s >= 0; s--) {
        layers[s] = 0;
        own[s] = (s == 0 ? first_bytes : 0) + (s == stages - 1 ? last_bytes : 0);
        while (left > s && (layers[s] == 0 || s == 0 || own[s] + 0.5 * bytes[left - 1] <= target))
            own[s] += bytes[--left], layers[s]++;
    }
    for (int s = 0, end = 0; s < stages - 1; s++) {
        end += layers[s];
        for (; own[s] > 1.3 * target && layers[s] > 1; layers[s]--, layers[s + 1]++, end--)
            own[s] -= bytes[end - 1], own[s + 1] += bytes[end - 1];
    }
}

double balance_degree(const double* value, int n) {
    double most = 0, sum = 0;
    for (int i = 0; i < n; i++) most = fmax(most, value[i]), sum += value[i];
    return sum > 0 ? 1 - most / sum : 0;
}

static void stage_times(double* t, const PartitionProblem* p, const int* layers) {
    for (int s = 0, first = 0; s < p->stages; first += layers[s++])
        t[s] = p->ms(p->context, s, first, first + layers[s]);
}

static double memory_balance(const PlainProblem* p, const int* layers) {
    double bytes[MOST_STAGES];
    for (int s = 0, first = 0; s < p->exact.stages; first += layers[s++])
        bytes[s] = p->bytes(p->exact.context, s, first, first + layers[s]);
    return balance_degree(bytes, p->exact.stages);
}

static PartitionStep step_of(const PlainProblem* plain, const int* layers) {
    const PartitionProblem* p = &plain->exact;
    double t[MOST_STAGES];
    PartitionStep step = {.alpha_m = memory_balance(plain, layers)};
    memcpy(step.at.layers, layers, sizeof *layers * (size_t)p->stages);
    step.at.ms = partition_ms(p, layers);
    stage_times(t, p, layers);
    for (int s = 0; s < p->stages; s++) step.slowest = fmax(step.slowest, t[s]);
    step.alpha_t = step.slowest < INFINITY ? balance_degree(t, p->stages) : 0;
    return step;
}

static int slowest_stage(const PartitionProblem* p, const int* layers) {
    double t[MOST_STAGES];
    int slowest = 0;
    stage_times(t, p, layers);
    for (int s = 1; s < p->stages; s++)
        if (t[s] > t[slowest]) slowest = s;
    return slowest;
}

static int was_there(const BiObjective* b, const int* layers, int stages) {
    for (int i = 0; i < b->n; i++)
        if (!memcmp(b->step[i].at.layers, layers, sizeof *layers * (size_t)stages)) return 1;
    return 0;
}

// Finds the faster of both neighbours that may take a layer of the slowest stage. Returns whether there is one. If
// something does not fit, any step is allowed that takes from the stage without room.
static int next_step(PartitionStep* next, const BiObjective* b, const PlainProblem* plain, double least_balance) {
    const PartitionProblem* p = &plain->exact;
    const PartitionStep* now = &b->step[b->n - 1];
    int from = slowest_stage(p, now->at.layers), found = 0;
    for (int to = from - 1; to <= from + 1; to += 2) {
        int layers[MOST_STAGES];
        memcpy(layers, now->at.layers, sizeof *layers * (size_t)p->stages);
        if (to < 0 || to >= p->stages || layers[from] == 1) continue;
        layers[from]--, layers[to]++;
        if (was_there(b, layers, p->stages)) continue;
        PartitionStep step = step_of(plain, layers);
        int fits = step.slowest < INFINITY || now->slowest == INFINITY;
        if (!fits || step.slowest > now->slowest || step.alpha_m < least_balance) continue;
        if (!found || step.at.ms < next->at.ms) *next = step;
        found = 1;
    }
    return found;
}

int partition_bi_objective(BiObjective* b, const PlainProblem* p, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    PartitionProblem plain = p->exact;
    int layers[MOST_STAGES], n = plain.layers;
    double* bytes = TAKE(arena, double, n);
    plain.ms = p->ms;
    if (!bytes || partition_exact(&b->even_time, &plain, arena, err)) return arena_check(arena, err);
    for (int l = 0; l < n; l++) bytes[l] = p->bytes(plain.context, plain.stages / 2, l, l + 1);
    partition_even_memory(layers, plain.stages, bytes, n, 0, 0);
    double least = memory_balance(p, b->even_time.layers);
    b->step[0] = step_of(p, layers), b->n = 1;
    while (b->n < PARTITION_STEPS && next_step(&b->step[b->n], b, p, least)) b->n++;
    b->best = b->step[0].at;
    for (int i = 1; i < b->n; i++)
        if (b->step[i].at.ms < b->best.ms) b->best = b->step[i].at;
    arena_reset(arena, mark);
    return 0;
}
