// galvatron.c - see galvatron.h. Formulas are those of the released code, the slowdown of overlap from measurements.
#include "plan/galvatron.h"

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

double overlapped_ms(double a, double slow_a, double b, double slow_b) {
    double slow = a * slow_a, other = b * slow_b;
    return slow > other ? other + (slow - other) / slow_a : slow + (other - slow) / slow_b;
}

static int log2_of(int ranks) {
    int i = 0;
    while (1 << (i + 1) <= ranks) i++;
    return i;
}

static double exchange_ms(const Links* links, const Strategy* s, Dimension by, int ranks, double mb) {
    return ranks > 1 ? mb * links->ms_per_mb[strategy_is_consecutive(s, by)][log2_of(ranks)] : 0;
}

// Gradients hide under the backward pass; of tensor-parallel layers with two data ranks only under half of it, as the
// released code has it.
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

// ---- pipelines

double balance_degree(const double* value, int n) {
    double most = 0, sum = 0;
    for (int i = 0; i < n; i++) most = fmax(most, value[i]), sum += value[i];
    return sum > 0 ? 1 - most / sum : 0;
}
