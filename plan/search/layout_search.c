// layout_search.c - see layout_search.h.
#include "plan/search/layout_search.h"

#include <math.h>
#include <stdlib.h>

#include "plan/search/layer_search.h"

// ---- how many layers each stage has

static double step_ms(const PartitionProblem* p, double most, double sum) {
    return (sum + (p->rounds - 1) * most) / p->rounds;
}

double partition_ms(const PartitionProblem* p, const int* layers) {
    double most = 0, sum = 0;
    for (int s = 0, first = 0; s < p->stages; first += layers[s++]) {
        double t = p->ms(p->context, s, first, first + layers[s]);
        most = fmax(most, t), sum += t;
    }
    return sum < INFINITY ? step_ms(p, most, sum) : INFINITY;
}

// A way to deal layers to the stages up to one.
typedef struct Dealt {
    double most, sum;
    int n, before;  // layers of the last stage; index in the front of the stages before
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

// Fills the front of stage s that ends before layer l. It has room for all entries of the fronts before, and one.
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
    // Even numbers of layers give a bound: slower ones are of no use.
    int even[MOST_STAGES];
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

// ---- the search

// The best way to run a stage of some number of layers: the least ms under the limit, or the least bytes, and how many
// layers run by each strategy.
typedef struct StageBest {
    double value;  // infinite: nothing fits; negative: not known yet
    short* count;  // (strategies)
} StageBest;

// The search for one P, tp and N.
typedef struct Search {
    const LayoutProblem* p;
    Arena* arena;
    Layout layout;  // stages and tp count; the rest is scratch
    int N, exact;   // exact 0: bytes of a stage are a straight line over its layers
    int n_rows;
    LayerLayout row[LAYOUT_STRATEGIES];
    double* line[2];             // (stages, strategies) bytes of a stage of one layer and of some
    double *layer_ms, *ends_ms;  // (stages, strategies)
    StageBest* known;            // (stages, L + 1)
    int by_bytes;                // 1: bytes are to be least, not ms
} Search;

// The layers of the longer of two stages whose bytes make a line.
static int line_layers(const Search* x) { return MIN(x->p->whole->L - (x->layout.stages - 1), 3); }

static double room(const Search* x, int s) {
    return x->p->room ? x->p->room(x->p->times, &x->layout, s) : x->p->memory;
}

// ---- a stage

// Makes stage s begin at `first`; where the stages before it begin does not matter.
static void set_first(Layout* layout, int s, int first) {
    for (int i = 0; i < s; i++) layout->stage[i].layers = i == 0 ? first - (s - 1) : 1;
}

static void put_stage(Search* x, int s, int first, int n, int k) {
    set_first(&x->layout, s, first);
    layout_set_stage(&x->layout, s, n, x->row[k]);
}

static double exact_bytes(Search* x, int s, int first, int n, int k) {
    put_stage(x, s, first, n, k);
    return x->p->bytes(x->p->context, &x->layout, s, x->N);
}

// The bytes of a stage of one like layer or of some (end), measured once, after one-layer stages or at the model's end.
static double line_bytes(Search* x, int s, int k, int end) {
    double* known = &x->line[end][s * x->n_rows + k];
    int n = end ? line_layers(x) : 1, is_last = s == x->layout.stages - 1;
    if (*known < 0) *known = exact_bytes(x, s, is_last ? x->p->whole->L - n : s, n, k);
    return *known;
}

static double slope(Search* x, int s, int k) {
    int most = line_layers(x);
    return most > 1 ? (line_bytes(x, s, k, 1) - line_bytes(x, s, k, 0)) / (most - 1) : line_bytes(x, s, k, 0);
}

static double stage_bytes(Search* x, int s, int first, int n, int k) {
    if (x->exact) return exact_bytes(x, s, first, n, k);
    return line_bytes(x, s, k, 0) + (n - 1) * slope(x, s, k);
}

static double row_ms(Search* x, int s, int first, int k) {
    double* known = &x->layer_ms[s * x->n_rows + k];
    if (*known >= 0) return *known;
    put_stage(x, s, first, 1, k);
    return *known = x->p->layer_ms(x->p->times, &x->layout, s, first, x->N);
}

// The ms of a stage of n layers that run alike.
static double like_ms(Search* x, int s, int first, int n, int k) {
    double ms = n * row_ms(x, s, first, k), *ends = &x->ends_ms[s * x->n_rows + k];
    put_stage(x, s, first, n, k);
    if (*ends < 0) *ends = fmax(0, x->p->ends_ms(x->p->times, &x->layout, s, x->N));
    return ms + *ends;
}

static void find_alike(StageBest* best, Search* x, int s, int first, int n) {
    int found = 0;
    best->value = INFINITY;
    for (int k = 0; k < x->n_rows; k++) {
        double bytes = stage_bytes(x, s, first, n, k);
        double value = x->by_bytes ? bytes : bytes > room(x, s) ? INFINITY : like_ms(x, s, first, n, k);
        if (value < best->value) best->value = value, found = k;
    }
    memset(best->count, 0, sizeof *best->count * (size_t)x->n_rows);
    best->count[found] = (short)n;
}

// Gives stage s of the layout these layers.
static void set_rows(Layout* layout, const Search* x, int s, int first, const short* count) {
    int l = first;
    for (int k = 0; k < x->n_rows; k++)
        for (int i = 0; i < count[k]; i++) layout->layer[l++] = x->row[k];
    layout->stage[s] = (StageLayout){l - first, layout->layer[first].zero};
}

static double measure_rows(Search* x, int s, int first, const short* count) {
    set_first(&x->layout, s, first);
    set_rows(&x->layout, x, s, first, count);
    return x->p->bytes(x->p->context, &x->layout, s, x->N);
}

// ---- a stage whose layers run by strategies of their own

// A strategy in a stage: ms and bytes of a layer, and `fixed` bytes that the stage needs once.
typedef struct Kind {
    int k;
    double ms, bytes, fixed;
} Kind;

static int by_fixed(const void* a, const void* b) {
    const Kind *x = (const Kind*)a, *y = (const Kind*)b;
    return x->fixed != y->fixed ? (x->fixed > y->fixed) - (x->fixed < y->fixed) : x->k - y->k;
}

static int by_layer_bytes(const void* a, const void* b) {
    const Kind *x = (const Kind*)a, *y = (const Kind*)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x->ms != y->ms ? (x->ms > y->ms) - (x->ms < y->ms) : x->k - y->k;
}

// Lists the kinds that no other beats in both ms and bytes, by bytes. Returns how many.
static int useful_kinds(Kind* useful, const Kind* kinds, int n) {
    int kept = 0;
    memcpy(useful, kinds, sizeof *kinds * (size_t)n);
    qsort(useful, (size_t)n, sizeof *useful, by_layer_bytes);
    for (int i = 0; i < n; i++)
        if (kept == 0 || useful[i].ms < useful[kept - 1].ms) useful[kept++] = useful[i];
    return kept;
}

// A lower bound of the mean ms of a layer if the mean layer needs no more than `bytes`.
static double mixture_ms(const Kind* kinds, int n, double bytes) {
    double least = bytes >= kinds[n - 1].bytes ? kinds[n - 1].ms : INFINITY;
    for (int i = 0; i < n && kinds[i].bytes <= bytes; i++)
        for (int j = i + 1; j < n; j++) {
            if (kinds[j].bytes <= bytes) continue;
            double part = (bytes - kinds[i].bytes) / (kinds[j].bytes - kinds[i].bytes);
            least = fmin(least, kinds[i].ms + part * (kinds[j].ms - kinds[i].ms));
        }
    return least;
}

// Searches for layers by these kinds, which need at most `fixed` once, that are faster than `best`. ends: ms beside
// layers, by the plainest strategy. Sums of bytes are not exact, so the stage is measured, and an excess comes off the
// limit.
static void find_within(StageBest* best, Search* x, int s, int first, int n, const Kind* kinds, int K, double fixed,
                        double ends) {
    enum { AGAIN = 4 };
    short count[LAYOUT_STRATEGIES];
    double *ms = TAKE(x->arena, double, n*K), *bytes = TAKE(x->arena, double, n*K);
    int* chosen = TAKE(x->arena, int, n);
    if (x->arena->missing) return;
    for (int i = 0; i < n * K; i++) ms[i] = kinds[i % K].ms, bytes[i] = kinds[i % K].bytes;
    LayerProblem p = {n, K, ms, bytes, room(x, s) - fixed, best->value - ends};
    LayerChoice choice = {.strategy = chosen};
    for (int i = 0; i < AGAIN && n * mixture_ms(kinds, K, p.memory / n) < p.known * (1 - 1e-12); i++) {
        if (layer_search(&choice, &p, x->arena, NULL) || choice.ms == INFINITY) return;
        memset(count, 0, sizeof count);
        for (int l = 0; l < n; l++) count[kinds[chosen[l]].k]++;
        double over = measure_rows(x, s, first, count) - room(x, s);
        if (over <= 0) {
            double value = choice.ms + x->p->ends_ms(x->p->times, &x->layout, s, x->N);
            if (value >= best->value) return;
            best->value = value;
            memcpy(best->count, count, sizeof *count * (size_t)x->n_rows);
            return;
        }
        p.memory = fmin(p.memory, choice.bytes) - fmax(over, 1);
    }
}

// Improves on layers that run alike.
static void find_unlike(StageBest* best, Search* x, int s, int first, int n) {
    Kind kinds[LAYOUT_STRATEGIES], useful[LAYOUT_STRATEGIES];
    ArenaMark mark = arena_mark(x->arena);
    double ends = like_ms(x, s, first, n, 0) - n * row_ms(x, s, first, 0);
    for (int k = 0; k < x->n_rows; k++) {
        double each = slope(x, s, k);
        kinds[k] = (Kind){k, row_ms(x, s, first, k), each, stage_bytes(x, s, first, n, k) - n * each};
    }
    qsort(kinds, (size_t)x->n_rows, sizeof *kinds, by_fixed);
    for (int m = 1; m <= x->n_rows && kinds[m - 1].fixed <= room(x, s); m++) {
        if (m < x->n_rows && kinds[m].fixed == kinds[m - 1].fixed) continue;
        int K = useful_kinds(useful, kinds, m);
        find_within(best, x, s, first, n, useful, K, kinds[m - 1].fixed, ends);
        arena_reset(x->arena, mark);
    }
}

// ---- all stages

static StageBest* stage_best(Search* x, int s, int first, int n) {
    StageBest* best = &x->known[s * (x->p->whole->L + 1) + n];
    if (best->value >= 0) return best;
    find_alike(best, x, s, first, n);
    if (x->p->unlike && !x->by_bytes) find_unlike(best, x, s, first, n);
    return best;
}

static double stage_ms(void* context, int s, int first, int end) {
    return stage_best((Search*)context, s, first, end - first)->value;
}

// Lists the strategies of a layer in groups of R, plain ones first. Sharding needs several ranks with the same weights.
static void list_rows(Search* x) {
    int R = x->layout.tp, least_tp = x->p->unlike ? 1 : R;
    x->n_rows = 0;
    for (int tp = R; tp >= least_tp; tp--) {
        int shards = x->p->ranks / (tp * x->layout.stages);
        int least = shards > 1 ? x->p->zero[0] : 1, most = shards > 1 ? x->p->zero[1] : 1;
        for (int zero = least; zero <= most && split_has_cut(x->p->whole, R, tp); zero++)
            for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_BLOCK; r++)
                x->row[x->n_rows++] = (LayerLayout){tp, zero, (Recompute)r};
    }
}

static int places(const Search* x) { return x->layout.stages * (x->p->whole->L + 1); }

static int open_search(Search* x) {
    list_rows(x);
    int n = places(x), lines = x->layout.stages * x->n_rows;
    short* counts = TAKE(x->arena, short, n * x->n_rows);
    x->known = TAKE(x->arena, StageBest, n);
    x->layer_ms = TAKE(x->arena, double, lines), x->ends_ms = TAKE(x->arena, double, lines);
    for (int i = 0; i < 2; i++) x->line[i] = TAKE(x->arena, double, lines);
    if (x->arena->missing) return -1;
    for (int i = 0; i < n; i++) x->known[i] = (StageBest){-1, counts + i * x->n_rows};
    for (int i = 0; i < lines; i++) x->line[0][i] = x->line[1][i] = x->layer_ms[i] = x->ends_ms[i] = -1;
    return 0;
}

// Sets x->layout to stages of these numbers of layers, each as it runs best. Returns 1 if all fit.
static int assemble(Search* x, const int* layers) {
    double worst = 0;
    Layout* whole = &x->layout;
    for (int s = 0, first = 0; s < whole->stages; first += layers[s++])
        worst = fmax(worst, stage_best(x, s, first, layers[s])->value);
    for (int s = 0, first = 0; s < whole->stages; first += layers[s++])
        set_rows(whole, x, s, first, stage_best(x, s, first, layers[s])->count);
    return worst < INFINITY;
}

// Fills x->layout with the best partition and its rows. Returns its ms by the formula; infinite if nothing fits; -1
// without memory.
static double deal_layers(Search* x) {
    Partition best;
    double rounds = x->by_bytes ? 1e9 : x->p->rounds(x->p->times, &x->layout, x->N);
    PartitionProblem p = {x->p->whole->L, x->layout.stages, rounds, stage_ms, x};
    for (int i = 0; i < places(x); i++) x->known[i].value = -1;
    if (partition_exact(&best, &p, x->arena, NULL) || x->arena->missing) return -1;
    if (best.ms < INFINITY) assemble(x, best.layers);
    return best.ms;
}

static double fullest(const Search* x) {
    double bytes = 0;
    for (int s = 0; s < x->layout.stages; s++) bytes = fmax(bytes, x->p->bytes(x->p->context, &x->layout, s, x->N));
    return bytes;
}

static int fits(const Search* x) {
    for (int s = 0; s < x->layout.stages; s++)
        if (x->p->bytes(x->p->context, &x->layout, s, x->N) > room(x, s)) return 0;
    return 1;
}

// Tries every strategy for one stage whose layers run alike: it can be played, while the formula only adds layers up.
static void try_alike(LayoutTry* t, Search* x) {
    for (int k = 0; k < x->n_rows; k++) {
        layout_set_stage(&x->layout, 0, x->p->whole->L, x->row[k]);
        double bytes = fullest(x), ms = fits(x) ? x->p->step_ms(x->p->times, &x->layout, x->N) : INFINITY;
        if (ms < t->ms * (1 - 1e-9)) *t = (LayoutTry){x->layout, x->N, 1, ms, bytes, {0}};
    }
}

// Finds the best layout with these stages, tp and N; -1 without memory.
static int search_row(LayoutTry* t, Search* x) {
    double ms;
    ArenaMark mark = arena_mark(x->arena);
    if (open_search(x)) return -1;
    while ((ms = deal_layers(x)) >= 0 && ms < INFINITY && !fits(x) && !x->exact) x->exact = 1;
    if (ms == INFINITY) x->by_bytes = 1, x->exact = 0, ms = deal_layers(x);
    arena_reset(x->arena, mark);
    if (ms < 0) return -1;
    *t = (LayoutTry){x->layout, x->N, !x->by_bytes, INFINITY, fullest(x), {0}};
    if (t->fits) t->ms = x->p->step_ms ? x->p->step_ms(x->p->times, &t->layout, x->N) : ms;
    if (x->p->step_ms && x->layout.stages == 1) try_alike(t, x);
    return 0;
}

static int is_better(const LayoutTry* a, const LayoutTry* b) {
    if (a->fits != b->fits) return a->fits;
    return a->fits ? a->ms < b->ms : a->bytes < b->bytes;
}

static Search new_search(const LayoutProblem* p, int tp, int stages, int N, Arena* arena) {
    return (Search){.p = p, .arena = arena, .layout = {.tp = tp, .stages = stages}, .N = N};
}

// Moves layers one by one from stage to stage as long as the played step gets shorter; many stages only between
// neighbours. The formula does not know which stage ends last, and what it still has to do then.
enum { MOST_PAIRED = 8 };

static int polish(LayoutTry* t, const LayoutProblem* p, Arena* arena) {
    ArenaMark mark = arena_mark(arena);
    int P = t->layout.stages, layers[MOST_STAGES];
    Search x = new_search(p, t->layout.tp, P, t->N, arena);
    if (!t->fits || !p->step_ms || P == 1) return 0;
    if (open_search(&x)) return -1;
    for (int s = 0; s < P; s++) layers[s] = t->layout.stage[s].layers;
    for (int i = 0, since = 0; since < P * P; i++, since++) {
        int from = i / P % P, to = i % P;
        if (from == to || layers[from] == 1 || (P > MOST_PAIRED && abs(from - to) > 1)) continue;
        layers[from]--, layers[to]++;
        double ms = assemble(&x, layers) && fits(&x) ? p->step_ms(p->times, &x.layout, t->N) : INFINITY;
        if (ms < t->ms * (1 - 1e-9)) *t = (LayoutTry){x.layout, t->N, 1, ms, fullest(&x), {0}}, since = -1;
        else layers[from]++, layers[to]--;
    }
    arena_reset(arena, mark);
    return arena->missing ? -1 : 0;
}

// Inserts *t after all of the *n tries that are not worse; without room the last one leaves.
static void insert(LayoutTry* tries, int* n, const LayoutTry* t) {
    int at = *n;
    if (at == LAYOUT_TRIES && !is_better(t, &tries[at - 1])) return;
    for (at = MIN(at, LAYOUT_TRIES - 1); at > 0 && is_better(t, &tries[at - 1]); at--) tries[at] = tries[at - 1];
    tries[at] = *t;
    *n = MIN(*n + 1, LAYOUT_TRIES);
}

// Adds the best of all, and with `apart` the best that run all layers by zero 1 or 3. Documents of many lengths make
// rounds long, which equal rounds do not show.
static int try_row(LayoutTry* tries, int* n, const LayoutProblem* p, int tp, int stages, int N, Arena* arena) {
    static LayoutTry t, best;
    for (int zero = 0; zero <= (p->apart ? 3 : 0); zero += 1 + (zero == 1)) {
        LayoutProblem part = *p;
        if (zero) part.zero[0] = part.zero[1] = zero, part.unlike = 0;
        if (zero && (zero < p->zero[0] || zero > p->zero[1] || p->ranks == tp * stages)) continue;
        Search x = new_search(&part, tp, stages, N, arena);
        if (search_row(&t, &x)) return -1;
        if (zero && (!t.fits || !memcmp(&t.layout, &best.layout, sizeof t.layout))) continue;
        if (!zero) best = t;
        insert(tries, n, &t);
    }
    return 0;
}

static int try_all_rows(LayoutTry* tries, int* n, const LayoutProblem* p, int tp, int stages, Arena* arena) {
    double before = INFINITY;
    int longer = 0;
    for (int i = 0; i < p->n_rows; i++) {
        Search x = new_search(p, tp, stages, p->rows[i], arena);
        double rounds = p->rounds(p->times, &x.layout, x.N);
        if (rounds == INFINITY) continue;
        // A longer row saves no round. But unlike documents do not fill a row, so with `apart` one longer row is tried.
        if (rounds == before && rounds == 1 && longer++ == p->apart) break;
        before = rounds;
        if (try_row(tries, n, p, tp, stages, p->rows[i], arena)) return -1;
    }
    return 0;
}

// The one stage of ZeRO of all layers if every stage's layers are alike; else 0.
static int zero_of_all(const Layout* layout) {
    int L = layout_first(layout, layout->stages), zero = layout->layer[0].zero;
    for (int s = 0; s < layout->stages; s++)
        if (layout_run(layout, layout_first(layout, s)) < layout->stage[s].layers) return 0;
    for (int l = 1; l < L; l++)
        if (layout->layer[l].zero != zero) return 0;
    return zero;
}

// Returns 1 if no try before tries[i] has the same stages, tp and ZeRO.
static int is_first_of_its_kind(const LayoutTry* tries, int i) {
    const Layout* layout = &tries[i].layout;
    int zero = zero_of_all(layout);
    for (int k = 0; k < i; k++)
        if (tries[k].layout.tp == layout->tp && tries[k].layout.stages == layout->stages &&
            zero_of_all(&tries[k].layout) == zero)
            return 0;
    return 1;
}

#define CLOSE 1.25  // a try up to so much longer than the best may become the best

typedef struct Pair {
    int tp, stages;
} Pair;

// Fills pairs, if not NULL, with each tp and number of stages that divide the ranks. Returns how many there are.
static int list_pairs(Pair* pairs, const LayoutProblem* p) {
    int n = 0;
    for (int tp = p->tp[0]; tp <= p->tp[1]; tp++)
        for (int stages = p->stages[0]; stages <= MIN(p->whole->L, p->stages[1]); stages++) {
            if (p->ranks % (tp * stages)) continue;
            if (pairs) pairs[n] = (Pair){tp, stages};
            n++;
        }
    return n;
}

int layout_search(LayoutTry tries[LAYOUT_TRIES], const LayoutProblem* p, Arena* arena, Err err) {
    int n = 0, n_pairs = list_pairs(NULL, p);
    static LayoutTry t;
    Pair* pairs = TAKE(arena, Pair, n_pairs);
    if (!pairs) return arena_check(arena, err);
    list_pairs(pairs, p);
    for (int i = 0; i < n_pairs && (!p->goes_on || p->goes_on(p->context, (double)i / n_pairs)); i++)
        if (try_all_rows(tries, &n, p, pairs[i].tp, pairs[i].stages, arena)) return arena_check(arena, err);
    double close = n ? CLOSE * tries[0].ms : 0;
    for (int i = 0; i < n && tries[i].fits && tries[i].ms <= close; i++) {
        if (!is_first_of_its_kind(tries, i)) continue;
        t = tries[i];
        LayoutProblem part = *p;  // a layout that runs alike stays so
        int zero = p->apart ? zero_of_all(&t.layout) : 0;
        if (zero) part.zero[0] = part.zero[1] = zero, part.unlike = 0;
        if (polish(&t, &part, arena)) return arena_check(arena, err);
        memmove(&tries[i], &tries[i + 1], sizeof *tries * (size_t)(n - 1 - i)), n--;
        insert(tries, &n, &t);
    }
    return n;
}
