// layout_search.c - see layout_search.h.
#include "plan/layout_search.h"

#include <math.h>
#include <stdlib.h>

#include "plan/layer_search.h"

// The search for one P, tp and N.
typedef struct Search {
    const LayoutProblem* p;
    Arena* arena;
    Layout layout;  // stages and tp; the rest is scratch
    int N, exact;   // exact 0: bytes of a stage are a straight line over its layers
    int n_rows;
    LayerLayout row[LAYOUT_STRATEGIES];
    double* line[2];  // (stages, strategies) bytes of a stage of one layer and of the most
    double* known;    // (stages, firsts, L + 1) ms of a stage; negative: not known yet
    int firsts;       // places where a stage may begin that differ: 1 where layers are alike
    int by_bytes;     // what is least: bytes in place of ms
    int out_of_memory;
} Search;

static int most_layers(const Search* x) { return x->p->whole->L - (x->layout.stages - 1); }

// ---- a stage

// Stage s begins at `first`: where the stages before it lie does not matter.
static void set_first(Layout* layout, int s, int first) {
    for (int i = 0; i < s; i++) layout->stage[i].layers = i == 0 ? first - (s - 1) : 1;
}

static double exact_bytes(Search* x, int s, int first, int n, LayerLayout row) {
    set_first(&x->layout, s, first);
    layout_set_stage(&x->layout, s, n, row);
    return x->p->bytes(x->p->context, &x->layout, s, x->N);
}

// Layers that are alike: measured of a stage with one and with the most, which begins or ends where the model does.
static double line_bytes(Search* x, int s, int k, int end) {
    double* known = &x->line[end][s * x->n_rows + k];
    int n = end ? most_layers(x) : 1, is_last = s == x->layout.stages - 1;
    if (*known < 0) *known = exact_bytes(x, s, is_last ? x->p->whole->L - n : s, n, x->row[k]);
    return *known;
}

static double slope(Search* x, int s, int k) {
    int most = most_layers(x);
    return most > 1 ? (line_bytes(x, s, k, 1) - line_bytes(x, s, k, 0)) / (most - 1) : line_bytes(x, s, k, 0);
}

static double stage_bytes(Search* x, int s, int first, int n, int k) {
    if (x->exact) return exact_bytes(x, s, first, n, x->row[k]);
    return line_bytes(x, s, k, 0) + (n - 1) * slope(x, s, k);
}

static double row_ms(Search* x, int s, int first, int l, int k) {
    set_first(&x->layout, s, first);
    layout_set_stage(&x->layout, s, 1, x->row[k]);
    x->layout.layer[l] = x->row[k];
    return x->p->layer_ms(x->p->times, &x->layout, s, l, x->N);
}

// Of n layers that are alike in how they run.
static double like_ms(Search* x, int s, int first, int n, int k) {
    double ms = 0;
    if (x->p->alike) ms = n * row_ms(x, s, first, first, k);
    for (int l = first; l < first + n && !x->p->alike; l++) ms += row_ms(x, s, first, l, k);
    set_first(&x->layout, s, first);
    layout_set_stage(&x->layout, s, n, x->row[k]);
    return ms + x->p->ends_ms(x->p->times, &x->layout, s, x->N);
}

// The least ms of the stage under the limit, or its least bytes; infinite where nothing fits. Leaves its layers' rows.
static double best_alike(Search* x, int s, int first, int n) {
    double least = INFINITY;
    LayerLayout found = x->row[0];
    for (int k = 0; k < x->n_rows; k++) {
        double bytes = stage_bytes(x, s, first, n, k);
        double value = x->by_bytes ? bytes : bytes > x->p->memory ? INFINITY : like_ms(x, s, first, n, k);
        if (value < least) least = value, found = x->row[k];
    }
    set_first(&x->layout, s, first);
    layout_set_stage(&x->layout, s, n, found);
    return least;
}

// What n layers of a stage take by each strategy: a layer, and beside all of them what the stage needs once.
typedef struct StageRows {
    int n, first;
    double *ms, *bytes;  // (n, strategies)
    double fixed[LAYOUT_STRATEGIES];
} StageRows;

static int list_stage_rows(StageRows* t, Search* x, int s) {
    int K = x->n_rows;
    t->ms = TAKE(x->arena, double, t->n* K), t->bytes = TAKE(x->arena, double, t->n* K);
    if (!t->ms || !t->bytes) return -1;
    for (int k = 0; k < K; k++) {
        double each = slope(x, s, k), same = row_ms(x, s, t->first, t->first, k);
        t->fixed[k] = stage_bytes(x, s, t->first, t->n, k) - t->n * each;
        for (int l = 0; l < t->n; l++) {
            t->bytes[l * K + k] = each;
            t->ms[l * K + k] = x->p->alike ? same : row_ms(x, s, t->first, t->first + l, k);
        }
    }
    return 0;
}

static double set_rows(Search* x, int s, const StageRows* t, const int* chosen) {
    set_first(&x->layout, s, t->first);
    layout_set_stage(&x->layout, s, t->n, x->row[chosen[0]]);
    for (int l = 0; l < t->n; l++) x->layout.layer[t->first + l] = x->row[chosen[l]];
    return x->p->bytes(x->p->context, &x->layout, s, x->N);
}

// With the strategies that need no more than `fixed` once. Bytes that do not add up otherwise are measured, and taken
// off the limit where they are too many.
static double best_within(Search* x, int s, const StageRows* t, double fixed, int* chosen, double before) {
    enum { AGAIN = 4 };
    char err[ERR_BYTES];
    int K = x->n_rows, n = t->n * K;
    double* ms = TAKE(x->arena, double, n);
    if (!ms) return x->out_of_memory = 1, INFINITY;
    for (int i = 0; i < n; i++) ms[i] = t->fixed[i % K] > fixed ? INFINITY : t->ms[i];
    LayerProblem p = {t->n, K, ms, t->bytes, NULL, x->p->memory - fixed};
    LayerChoice choice = {.strategy = chosen};
    for (int i = 0; i < AGAIN; i++) {
        if (layer_search(&choice, &p, x->arena, err, sizeof err)) return x->out_of_memory = 1, INFINITY;
        if (choice.ms >= before) break;
        double over = set_rows(x, s, t, chosen) - x->p->memory;
        if (over <= 0) return choice.ms;
        p.memory = fmin(p.memory, choice.bytes) - fmax(over, 1);
    }
    return INFINITY;
}

// Layers by rows of their own; as best_alike.
static double best_unlike(Search* x, int s, int first, int n) {
    ArenaMark mark = arena_mark(x->arena);
    StageRows t = {.n = n, .first = first};
    int *chosen = TAKE(x->arena, int, n), *best = TAKE(x->arena, int, n);
    double least = INFINITY, ends = 0;
    if (!chosen || !best || list_stage_rows(&t, x, s)) return x->out_of_memory = 1, INFINITY;
    for (int k = 0; k < x->n_rows; k++) {
        ArenaMark level = arena_mark(x->arena);
        double ms = best_within(x, s, &t, t.fixed[k], chosen, least);
        if (ms < least) least = ms, memcpy(best, chosen, sizeof *best * (size_t)n);
        arena_reset(x->arena, level);
    }
    if (least < INFINITY) {
        set_rows(x, s, &t, best);
        ends = x->p->ends_ms(x->p->times, &x->layout, s, x->N);
    }
    arena_reset(x->arena, mark);
    return least + ends;
}

static double best_stage(Search* x, int s, int first, int n) {
    if (!x->p->unlike || x->by_bytes) return best_alike(x, s, first, n);
    double unlike = best_unlike(x, s, first, n), alike = best_alike(x, s, first, n);
    return unlike < alike ? best_unlike(x, s, first, n) : alike;
}

// ---- all stages

static double stage_ms(void* context, int s, int first, int end) {
    Search* x = (Search*)context;
    double* known =
        &x->known[((size_t)s * (size_t)x->firsts + (size_t)(x->firsts > 1 ? first : 0)) * ((size_t)x->p->whole->L + 1) +
                  (size_t)(end - first)];
    if (*known < 0) *known = best_stage(x, s, first, end - first);
    return *known;
}

static double plain_bytes(void* context, int s, int first, int end) {
    Search* x = (Search*)context;
    return stage_bytes(x, s, x->exact ? first : 0, end - first, 0);
}

static double plain_ms(void* context, int s, int first, int end) {
    return like_ms((Search*)context, s, first, end - first, 0);
}

static PartitionProblem partition_of(Search* x) {
    double v = x->p->rounds(x->p->times, &x->layout, x->N);
    return (PartitionProblem){
        x->p->whole->L, x->layout.stages, x->by_bytes ? 1e9 : v, stage_ms, plain_bytes, plain_ms, x};
}

// Strategies of a layer in groups of R, plain ones first; sharding needs several ranks with the same weights.
static void list_rows(Search* x) {
    int R = x->layout.tp, D = x->p->ranks / (R * x->layout.stages);
    x->n_rows = 0;
    int least = D > 1 ? x->p->zero[0] : 1, most = D > 1 ? x->p->zero[1] : 1;
    for (int zero = least; zero <= most; zero++)
        for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_BLOCK; r++)
            x->row[x->n_rows++] = (LayerLayout){R, zero, (Recompute)r};
}

static int open_search(Search* x) {
    size_t L = (size_t)x->p->whole->L, P = (size_t)x->layout.stages;
    list_rows(x);
    x->firsts = x->p->alike ? 1 : (int)L + 1;
    x->exact = !x->p->alike;
    size_t n = P * (size_t)x->firsts * (L + 1), lines = P * (size_t)x->n_rows;
    x->known = TAKE(x->arena, double, n);
    for (int i = 0; i < 2; i++) x->line[i] = TAKE(x->arena, double, lines);
    if (!x->known || !x->line[0] || !x->line[1]) return -1;
    for (size_t i = 0; i < n; i++) x->known[i] = -1;
    for (size_t i = 0; i < 2 * lines; i++) x->line[i / lines][i % lines] = -1;
    return 0;
}

// x->layout becomes that of stages with so many layers, each as it runs best. Returns whether all fit.
static int assemble(Search* x, const int* layers) {
    Layout whole = x->layout;
    double worst = 0;
    for (int s = 0, first = 0; s < whole.stages; first += layers[s++]) {
        worst = fmax(worst, best_stage(x, s, first, layers[s]));
        whole.stage[s] = x->layout.stage[s];
        whole.stage[s].layers = layers[s];
        for (int l = first; l < first + layers[s]; l++) whole.layer[l] = x->layout.layer[l];
    }
    x->layout = whole;
    return worst < INFINITY;
}

// Fills x->layout with the best partition and its rows. Its ms by the formula; infinite where nothing fits; -1 without
// memory.
static double deal_layers(Search* x) {
    char err[ERR_BYTES];
    Partition best;
    PartitionProblem p = partition_of(x);
    size_t n = (size_t)x->layout.stages * (size_t)x->firsts * ((size_t)x->p->whole->L + 1);
    for (size_t i = 0; i < n; i++) x->known[i] = -1;
    if (partition_exact(&best, &p, x->arena, err, sizeof err) || x->out_of_memory) return -1;
    if (best.ms < INFINITY) assemble(x, best.layers);
    return best.ms;
}

static double fullest(const Search* x) {
    double bytes = 0;
    for (int s = 0; s < x->layout.stages; s++) bytes = fmax(bytes, x->p->bytes(x->p->context, &x->layout, s, x->N));
    return bytes;
}

// The best layout with these stages, tp and N; -1 without memory.
static int search_row(LayoutTry* t, Search* x) {
    double ms;
    ArenaMark mark = arena_mark(x->arena);
    if (open_search(x)) return -1;
    while ((ms = deal_layers(x)) >= 0 && ms < INFINITY && fullest(x) > x->p->memory && !x->exact) x->exact = 1;
    if (ms == INFINITY) x->by_bytes = 1, x->exact = !x->p->alike, ms = deal_layers(x);
    arena_reset(x->arena, mark);
    if (ms < 0) return -1;
    *t = (LayoutTry){x->layout, x->N, !x->by_bytes, INFINITY, fullest(x)};
    if (t->fits) t->ms = x->p->step_ms ? x->p->step_ms(x->p->times, &t->layout, x->N) : ms;
    return 0;
}

static int is_better(const LayoutTry* a, const LayoutTry* b) {
    if (a->fits != b->fits) return a->fits;
    return a->fits ? a->ms < b->ms : a->bytes < b->bytes;
}

static Search new_search(const LayoutProblem* p, int tp, int stages, int N, Arena* arena) {
    Search x = {.p = p, .arena = arena, .layout = {.tp = tp, .stages = stages}, .N = N};
    return x;
}

// The formula does not know which stage ends last, and what it still has to do then. So layers move one by one from
// stage to stage as long as the played step gets shorter; of many stages between neighbours.
enum { MOST_PAIRED = 8 };

static int polish(LayoutTry* t, const LayoutProblem* p, Arena* arena) {
    ArenaMark mark = arena_mark(arena);
    int P = t->layout.stages, layers[PARTITION_STAGES];
    Search x = new_search(p, t->layout.tp, P, t->N, arena);
    if (!t->fits || !p->step_ms || P == 1) return 0;
    if (open_search(&x)) return -1;
    for (int s = 0; s < P; s++) layers[s] = t->layout.stage[s].layers;
    for (int i = 0, since = 0; since < P * P; i++, since++) {
        int from = i / P % P, to = i % P;
        if (from == to || layers[from] == 1 || (P > MOST_PAIRED && abs(from - to) > 1)) continue;
        layers[from]--, layers[to]++;
        int fits = assemble(&x, layers) && fullest(&x) <= p->memory;
        double ms = fits ? p->step_ms(p->times, &x.layout, t->N) : INFINITY;
        if (ms < t->ms * (1 - 1e-9)) *t = (LayoutTry){x.layout, t->N, 1, ms, fullest(&x)}, since = -1;
        else layers[from]++, layers[to]--;
    }
    arena_reset(arena, mark);
    return x.out_of_memory ? -1 : 0;
}

static int try_all_rows(LayoutTry* best, const LayoutProblem* p, int tp, int stages, Arena* arena) {
    double before = INFINITY;
    for (int i = 0; i < p->n_rows; i++) {
        LayoutTry t;
        Search x = new_search(p, tp, stages, p->rows[i], arena);
        double rounds = p->rounds(p->times, &x.layout, x.N);
        if (rounds == before && rounds == 1) break;  // a longer row holds no more
        before = rounds;
        if (search_row(&t, &x)) return -1;
        if (i == 0 || is_better(&t, best)) *best = t;
    }
    return 0;
}

// Behind all of n that are not worse.
static void insert(LayoutTry* tries, int n, const LayoutTry* t) {
    for (; n > 0 && is_better(t, &tries[n - 1]); n--) tries[n] = tries[n - 1];
    tries[n] = *t;
}

#define CLOSE 1.05  // so much longer than the best may become the best

int layout_search(LayoutTry tries[LAYOUT_TRIES], const LayoutProblem* p, Arena* arena, char* err, size_t errlen) {
    int n = 0, L = p->whole->L;
    static LayoutTry t;
    for (int tp = p->tp[0]; tp <= p->tp[1]; tp++)
        for (int stages = p->stages[0]; stages <= MIN(L, p->stages[1]) && n < LAYOUT_TRIES; stages++) {
            if (p->ranks % (tp * stages)) continue;
            if (try_all_rows(&t, p, tp, stages, arena)) return arena_check(arena, err, errlen);
            insert(tries, n++, &t);
        }
    double close = n ? CLOSE * tries[0].ms : 0;
    for (int i = 0; i < n && tries[i].fits && tries[i].ms <= close; i++) {
        t = tries[i];
        if (polish(&t, p, arena)) return arena_check(arena, err, errlen);
        insert(tries, i, &t);
    }
    return n;
}

int layout_compare(BiObjective* other, double* ms, const LayoutProblem* p, const LayoutTry* found, Arena* arena,
                   char* err, size_t errlen) {
    int layers[PARTITION_STAGES];
    Search x = new_search(p, found->layout.tp, found->layout.stages, found->N, arena);
    if (open_search(&x)) return arena_check(arena, err, errlen);
    PartitionProblem partition = partition_of(&x);
    for (int s = 0; s < found->layout.stages; s++) layers[s] = found->layout.stage[s].layers;
    *ms = partition_ms(&partition, layers);
    return partition_bi_objective(other, &partition, arena, err, errlen);
}
