// partition.c - see partition.h.
#include "plan/layout/partition.h"

#include <math.h>

static void stage_times(double* t, const PartitionProblem* p, const int* layers) {
    for (int s = 0, first = 0; s < p->stages; first += layers[s++])
        t[s] = p->ms(p->context, s, first, first + layers[s]);
}

static double step_ms(const PartitionProblem* p, double most, double sum) {
    return (sum + (p->rounds - 1) * most) / p->rounds;
}

double partition_ms(const PartitionProblem* p, const int* layers) {
    double t[PARTITION_STAGES], most = 0, sum = 0;
    stage_times(t, p, layers);
    for (int s = 0; s < p->stages; s++) most = fmax(most, t[s]), sum += t[s];
    return sum < INFINITY ? step_ms(p, most, sum) : INFINITY;
}

// ---- exactly

// Stages up to one of them with so many layers.
typedef struct Dealt {
    double most, sum;
    int n, before;  // layers of the last stage; index among those of the stages before
} Dealt;

typedef struct DealtFront {
    Dealt* dealt;
    int n;
} DealtFront;

static int is_worse(const DealtFront* front, const Dealt* x) {
    for (int i = 0; i < front->n; i++)
        if (front->dealt[i].most <= x->most && front->dealt[i].sum <= x->sum) return 1;
    return 0;
}

static void add_dealt(DealtFront* front, const Dealt* x) {
    int kept = 0;
    if (is_worse(front, x)) return;
    for (int i = 0; i < front->n; i++)
        if (!(x->most <= front->dealt[i].most && x->sum <= front->dealt[i].sum)) front->dealt[kept++] = front->dealt[i];
    front->dealt[kept++] = *x;
    front->n = kept;
}

// Stage s ends before layer l. front has room for as many as all fronts of the stages before together, and one.
static void deal(DealtFront* front, const PartitionProblem* p, const DealtFront* before, int s, int l, double known) {
    for (int n = 1; n <= l - s; n++) {
        const DealtFront* from = &before[l - n];
        double t = from->n ? p->ms(p->context, s, l - n, l) : 0;
        if (t == INFINITY || step_ms(p, t, t) > known) return;
        for (int i = 0; i < from->n; i++) {
            Dealt x = {fmax(from->dealt[i].most, t), from->dealt[i].sum + t, n, i};
            if (step_ms(p, x.most, x.sum) <= known) add_dealt(front, &x);
        }
    }
}

static int deal_all(DealtFront* fronts, const PartitionProblem* p, double known, Arena* arena) {
    int L = p->layers, width = L + 1;
    Dealt nothing = {0};
    DealtFront start = {&nothing, 1};
    for (int l = 0; l <= L; l++) fronts[l] = l ? (DealtFront){0} : start;
    for (int s = 0; s < p->stages; s++)
        for (int l = 0; l <= L; l++) {
            const DealtFront* before = &fronts[s * width];
            DealtFront* front = &fronts[(s + 1) * width + l];
            int room = 1, reached = l > s && l <= L - (p->stages - 1 - s) && (s < p->stages - 1 || l == L);
            for (int k = 0; k < l; k++) room += before[k].n;
            *front = (DealtFront){0};
            if (!reached) continue;
            if (!(front->dealt = TAKE(arena, Dealt, room))) return -1;
            deal(front, p, before, s, l, known);
        }
    return 0;
}

int partition_exact(Partition* best, const PartitionProblem* p, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    int width = p->layers + 1, at = -1;
    best->ms = INFINITY;
    DealtFront* fronts = TAKE(arena, DealtFront, (p->stages + 1) * width);
    // Even numbers of layers are a bound: nothing slower is of use.
    int even[PARTITION_STAGES];
    for (int s = 0; s < p->stages; s++) even[s] = p->layers * (s + 1) / p->stages - p->layers * s / p->stages;
    if (p->stages > p->layers) return 0;
    if (!fronts || deal_all(fronts, p, partition_ms(p, even), arena)) return arena_check(arena, err);
    const DealtFront* last = &fronts[p->stages * width + p->layers];
    for (int i = 0; i < last->n; i++) {
        double ms = step_ms(p, last->dealt[i].most, last->dealt[i].sum);
        if (ms < best->ms) best->ms = ms, at = i;
    }
    for (int s = p->stages, l = p->layers; s > 0 && at >= 0; s--) {
        const Dealt* x = &fronts[s * width + l].dealt[at];
        best->layers[s - 1] = x->n;
        l -= x->n, at = x->before;
    }
    arena_reset(arena, mark);
    return 0;
}
