// partition.c - see partition.h.
#include "plan/partition.h"

#include <math.h>

#include "plan/galvatron.h"

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

int partition_exact(Partition* best, const PartitionProblem* p, Arena* arena, char* err, size_t errlen) {
    ArenaMark mark = arena_mark(arena);
    int width = p->layers + 1, at = -1;
    best->ms = INFINITY;
    DealtFront* fronts = TAKE(arena, DealtFront, (p->stages + 1) * width);
    // Even numbers of layers are a bound: nothing slower is of use.
    int even[PARTITION_STAGES];
    for (int s = 0; s < p->stages; s++) even[s] = p->layers * (s + 1) / p->stages - p->layers * s / p->stages;
    if (p->stages > p->layers) return 0;
    if (!fronts || deal_all(fronts, p, partition_ms(p, even), arena)) return arena_check(arena, err, errlen);
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

// ---- the bi-objective way

void partition_even_memory(int* layers, int stages, const double* bytes, int n, double first_bytes, double last_bytes) {
    double sum = first_bytes + last_bytes, own[PARTITION_STAGES] = {0};
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

static double plain_ms(void* context, int stage, int first, int end) {
    const PartitionProblem* p = (const PartitionProblem*)context;
    return p->plain_ms(p->context, stage, first, end);
}

static double memory_balance(const PartitionProblem* p, const int* layers) {
    double bytes[PARTITION_STAGES];
    for (int s = 0, first = 0; s < p->stages; first += layers[s++])
        bytes[s] = p->plain_bytes(p->context, s, first, first + layers[s]);
    return balance_degree(bytes, p->stages);
}

static PartitionStep step_of(const PartitionProblem* p, const int* layers) {
    double t[PARTITION_STAGES];
    PartitionStep step = {.alpha_m = memory_balance(p, layers)};
    memcpy(step.at.layers, layers, sizeof *layers * (size_t)p->stages);
    step.at.ms = partition_ms(p, layers);
    stage_times(t, p, layers);
    for (int s = 0; s < p->stages; s++) step.slowest = fmax(step.slowest, t[s]);
    step.alpha_t = step.slowest < INFINITY ? balance_degree(t, p->stages) : 0;
    return step;
}

static int slowest_stage(const PartitionProblem* p, const int* layers) {
    double t[PARTITION_STAGES];
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

// The faster of both neighbours that may take a layer of the slowest stage. Returns whether there is one. From where
// something does not fit any step is allowed that takes from the stage without room.
static int next_step(PartitionStep* next, const BiObjective* b, const PartitionProblem* p, double least_balance) {
    const PartitionStep* now = &b->step[b->n - 1];
    int from = slowest_stage(p, now->at.layers), found = 0;
    for (int to = from - 1; to <= from + 1; to += 2) {
        int layers[PARTITION_STAGES];
        memcpy(layers, now->at.layers, sizeof *layers * (size_t)p->stages);
        if (to < 0 || to >= p->stages || layers[from] == 1) continue;
        layers[from]--, layers[to]++;
        if (was_there(b, layers, p->stages)) continue;
        PartitionStep step = step_of(p, layers);
        int fits = step.slowest < INFINITY || now->slowest == INFINITY;
        if (!fits || step.slowest > now->slowest || step.alpha_m < least_balance) continue;
        if (!found || step.at.ms < next->at.ms) *next = step;
        found = 1;
    }
    return found;
}

int partition_bi_objective(BiObjective* b, const PartitionProblem* p, Arena* arena, char* err, size_t errlen) {
    ArenaMark mark = arena_mark(arena);
    PartitionProblem plain = *p;
    int layers[PARTITION_STAGES];
    double* bytes = TAKE(arena, double, p->layers);
    plain.ms = plain_ms, plain.context = (void*)p;
    if (!bytes || partition_exact(&b->even_time, &plain, arena, err, errlen)) return arena_check(arena, err, errlen);
    for (int l = 0; l < p->layers; l++) bytes[l] = p->plain_bytes(p->context, p->stages / 2, l, l + 1);
    partition_even_memory(layers, p->stages, bytes, p->layers, 0, 0);
    double least = memory_balance(p, b->even_time.layers);
    b->step[0] = step_of(p, layers), b->n = 1;
    while (b->n < PARTITION_STEPS && next_step(&b->step[b->n], b, p, least)) b->n++;
    b->best = b->step[0].at;
    for (int i = 1; i < b->n; i++)
        if (b->step[i].at.ms < b->best.ms) b->best = b->step[i].at;
    arena_reset(arena, mark);
    return 0;
}
