// simulate_layout.c - build/simulate --layout auto: the search for a layout (plan/search/layout_search.h) or a list of
// strategies (plan/search/strategy_steps.h) beside the best that single ways of dividing a model can do, in the cost
// model (plan/search/layout_cost.h).
//
//   build/simulate --layout auto --memory 16G --machine FILE --model "--preset gpt2-1558m --batch-tokens 524288"
//   build/simulate --layout hydraulis ...                                                         lists alone
//   build/simulate --layout FILE --machine FILE --model "--preset gpt2-1558m --capacity 4096"     what this one takes
//
// Memory is what the engine's tables say of states and activations; kernel scratch and the host's buffers, which
// depend on the device, are not in it. Documents have --context tokens each. Every way may recompute.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "dev/simulate.h"
#include "plan/base/disk.h"
#include "plan/options/read.h"
#include "plan/search/layout_steps.h"
#include "plan/model/split.h"
#include "plan/search/strategy_steps.h"

typedef struct Searched {
    LayoutCosts costs;
    SampledSteps steps;  // n 0: documents of --context tokens
    Shape whole, owned;  // owned: the shape divided among all ranks
    size_t owned_bytes;  // bytes of a rank's pieces
    DType dt;
    int* node;  // (ranks)
    MoveTime links;
    StrategyMoves moves;
    Arena arena;
} Searched;

// ---- memory of a rank

// InUse is what run/model/zero.c has in use beside states: among divided buckets the embedding's, two layers', the
// head's.
typedef struct InUse {
    size_t first, layer, last, piece;  // elements
} InUse;

static void use(InUse* w, const Bucket* x, int b, int last) {
    if (b == 0) w->first = x->elems;
    else if (b == last) w->last = x->elems;
    else w->layer = MAX(w->layer, x->elems), w->piece = MAX(w->piece, x->piece);
}

// Returns the bytes of a rank's states. If these belong to owners, it has its pieces of all, and what it computes with.
static double state_bytes(const Searched* x, const Shape* part, const Layout* layout, int s, int has_owners) {
    InUse weights = {0}, grads = {0};
    size_t bytes = has_owners ? x->owned_bytes : 0, elem = dtype_bytes(x->dt);
    for (int b = 0, last = part->L + 1; b <= last; b++) {
        Bucket bucket = shape_bucket(part, b);
        int is_layer = b > 0 && b < last, shards = is_layer ? shape_units(part, b - 1).shards : part->shards;
        int zero = is_layer ? layout->layer[part->first_layer + b - 1].zero : has_owners ? 1 : layout->stage[s].zero;
        if (shards == 1) zero = 1;
        if (!has_owners) bytes += shape_state_bytes(&bucket, zero, x->dt);
        else
            bytes += (zero > 2 ? bucket.piece : bucket.elems) * elem +
                     (zero > 1 ? bucket.piece : bucket.elems) * sizeof(float);
        if (zero > 1) use(&grads, &bucket, b, last);
        if (zero > 2) use(&weights, &bucket, b, last);
    }
    bytes += (weights.first + 2 * weights.layer + weights.last) * elem;
    return (double)(bytes + (grads.first + 2 * grads.layer + grads.last + 2 * grads.piece) * sizeof(float));
}

// Returns the bytes of one of D ranks of a stage with the same part.
static double rank_bytes(Searched* x, const Layout* layout, int s, int N, int D, int has_owners) {
    static LayerUnits units[MOST_LAYERS];
    int first = layout_first(layout, s), end = layout_first(layout, s + 1), R = layout->tp, unlike = 0;
    TpSplit split = split_even(&x->whole, R);
    Shape rank = R > 1 ? split_shape(&x->whole, &split, 0) : x->whole;
    Shape part = shape_stage(&rank, first, end);
    part.shards = D;
    for (int l = first; l < end; l++) {
        units[l - first] = split_units(&x->whole, &split, 0, layout->layer[l].tp, D);
        unlike |= layout->layer[l].tp < R;
    }
    if (unlike) part.units = units;
    ActNeeds needs = {.N = N,
                      .classifier_N = MIN(N, 8192),
                      .layer = &layout->layer[first],
                      .training = 1,
                      .groups = D > 1,
                      .slots = pipeline_slots(layout->stages, s),
                      .tp = R,
                      .dt = x->dt};
    return state_bytes(x, &part, layout, s, has_owners) + (double)shape_activations(&part, &needs, NULL);
}

static double bytes_of(void* context, const Layout* layout, int s, int N) {
    Searched* x = (Searched*)context;
    return rank_bytes(x, layout, s, N, x->costs.ranks / (layout->tp * layout->stages), 0);
}

static double job_bytes_of(void* context, const Layout* layout, int copies, int s, int N) {
    return rank_bytes((Searched*)context, layout, s, N, copies, 1);
}

// ---- the model

// Draws steps of documents of drawn lengths, or of --context tokens each.
static void draw_steps(Searched* x, const Options* o, const Config* c) {
    enum { DRAWN = 1 << 16 };
    static int drawn[DRAWN];
    Lengths* lengths = o->lengths ? open_lengths(o->lengths, c->context, c->context) : NULL;
    for (int i = 0; i < DRAWN; i++) drawn[i] = c->context;
    if (lengths) lengths_draw(lengths, drawn, DRAWN, (uint64_t)o->seed, 0);
    lengths_close(lengths);
    x->steps = sampled_steps(drawn, DRAWN, c->batch_tokens);
    layout_costs_of_steps(&x->costs, &x->steps);
}

static void open_searched(Searched* x, const Options* o, const Config* c) {
    static Machine machine;
    open_machine(&machine, o->machine);
    *x = (Searched){.whole = config_shape(c), .dt = strcmp(c->dtype, "fp32") ? DT_BF16 : DT_F32};
    layout_costs(&x->costs, &x->whole, &machine, o->ranks, o->node_size, (int)dtype_bytes(x->dt), &x->arena);
    x->costs.overlap = x->costs.tensor_overlap = strcmp(c->overlap, "no") != 0;
    x->costs.tokens = c->batch_tokens, x->costs.mean_length = x->costs.context = c->context;
    x->costs.parts = 4;
    if (o->lengths || (c->capacity && c->capacity < c->context)) draw_steps(x, o, c);  // ranks share documents
}

static void open_moves(Searched* x, const Config* c) {
    int ranks = x->costs.ranks, node = x->costs.links.node_size;
    x->node = (int*)need(sizeof(int) * (size_t)ranks);
    for (int r = 0; r < ranks; r++) x->node[r] = r / node;
    size_t elem = dtype_bytes(x->dt), gradient = !strcmp(c->grad_dtype, "bf16") ? elem : sizeof(float);
    x->owned = x->whole, x->owned.shards = ranks;
    for (int b = 0; b < shape_buckets(&x->owned); b++) {
        Bucket bucket = shape_bucket(&x->owned, b);
        x->owned_bytes += shape_state_bytes(&bucket, 3, x->dt);
    }
    x->links = (MoveTime){x->costs.links, ranks, x->node, x->costs.overlap};
    x->moves = (StrategyMoves){&x->links, &x->owned, elem, gradient, 0};
}

static LayoutProblem problem_of(Searched* x, const Config* c, double memory) {
    LayoutProblem p = layout_problem(&x->costs);
    x->costs.memory = p.memory = memory, p.bytes = bytes_of, p.context = x, p.apart = 1;
    int least = x->steps.n ? MAX(256, c->context / 8) : c->context;
    for (int N = MIN(least, c->context); N <= MAX(32768, c->context) && N <= c->batch_tokens && p.n_rows < 9; N *= 2)
        p.rows[p.n_rows++] = N;
    return p;
}

// ---- ways to divide a model

typedef struct Way {
    const char* name;
    int tp, stages;  // 1: none, 0: any, -1: all ranks, -2: two or more
    int zero[2];
    enum {
        BY_STEPS,
        BY_MEAN,  // chosen as if all documents were of the mean length, in rows that hold the longest
        LISTS,    // strategies alone
        ALL
    } by;
} Way;

static const Way ways[] = {{"found", 0, 0, {1, 3}, ALL},       {"DP", 1, 1, {1, 1}, BY_STEPS},
                           {"ZeRO-3", 1, 1, {3, 3}, BY_STEPS}, {"TP", -1, 1, {1, 1}, BY_STEPS},
                           {"PP", 1, -1, {1, 1}, BY_STEPS},    {"DP+TP", 0, 1, {1, 1}, BY_STEPS},
                           {"DP+PP", 1, 0, {1, 1}, BY_STEPS},  {"3D", -2, -2, {1, 1}, BY_STEPS},
                           {"by mean", 0, 0, {1, 3}, BY_MEAN}, {"lists", 0, 0, {1, 3}, LISTS}};

// Found is the fastest of a way: a layout, or a list.
typedef struct Found {
    LayoutTry layout;
    ListTry list;
    ListCount count;
    double slack;
    int is_list;
} Found;

static double ms_of(const Found* f) { return f->is_list ? f->list.ms : f->layout.ms; }
static int fits(const Found* f) { return f->is_list || f->layout.fits; }

static void set_range(int range[2], int wanted, int ranks, int most) {
    int is_any = wanted == 0 || wanted == -2;
    range[0] = wanted == -2 ? 2 : wanted < 0 ? ranks : 1, range[1] = is_any ? most : wanted < 0 ? ranks : wanted;
    if (range[1] > most) range[0] = most + 1, range[1] = most;  // not this model
}

static void find_layout(Found* found, Searched* x, const LayoutProblem* all, const Way* way) {
    static LayoutTry tries[LAYOUT_TRIES];
    char err[ERR_BYTES];
    double terms[N_LAYOUT_TERMS];
    LayoutProblem p = *all;
    p.unlike = way->by == ALL || way->by == BY_MEAN;  // ways have one idea for all layers of a stage
    while (way->by == BY_MEAN && p.n_rows > 1 && p.rows[0] < x->costs.context)
        memmove(p.rows, p.rows + 1, sizeof *p.rows * (size_t)--p.n_rows);
    int looked, n = layout_search(tries, &p, &x->arena, err);
    if (n < 0) die("%s", err);
    if (n == 0) return;
    if (x->steps.n && way->by == BY_MEAN)
        tries->ms = layout_steps_ms(terms, &x->costs, &tries->layout, tries->N, &x->steps, err);
    else if (x->steps.n) found->slack = layout_choose(tries, n, &looked, &x->costs, &x->steps);
    found->layout = tries[0];
}

static void find_list(Found* found, Searched* x, const Config* c, const LayoutProblem* p) {
    char err[ERR_BYTES];
    double known = found->layout.fits ? LIST_GAIN * found->layout.ms : INFINITY;
    ListProblem lists = {.layouts = p,
                         .costs = &x->costs,
                         .steps = &x->steps,
                         .recompute = {RECOMPUTE_NONE, RECOMPUTE_BLOCK},
                         .capacity = c->capacity,
                         .least_copies = MAX(c->cp_size, 1),
                         .moves = x->costs.machine.cost.step > 0 ? NULL : &x->moves,
                         .bytes = job_bytes_of};
    int is_found = lists_search(&found->list, &found->count, &lists, known, &x->arena, err);
    if (is_found < 0) die("%s", err);
    found->is_list = is_found && found->list.ms < known;
}

// Returns whether there is one.
static int find_way(Found* found, Searched* x, const Config* c, const LayoutProblem* all, const Way* way) {
    LayoutProblem p = *all;
    *found = (Found){.layout.ms = INFINITY};
    set_range(p.tp, way->tp, p.ranks, all->tp[1]);
    set_range(p.stages, way->stages, p.ranks, MIN(all->whole->L, MOST_STAGES));
    memcpy(p.zero, way->zero, sizeof p.zero);
    if (way->by != LISTS) find_layout(found, x, &p, way);
    int may_be = way->by == LISTS || p.ranks <= LIST_RANKS;
    if (way->by >= LISTS && x->steps.n && p.ranks > 1 && may_be) find_list(found, x, c, &p);
    return found->is_list || found->layout.N > 0;
}

static const Way* way_named(const char* name) {
    for (int i = 0; i < COUNT(ways); i++)
        if (!name || !strcmp(ways[i].name, name)) return &ways[i];
    die("--way %s: expected found, DP, ZeRO-3, TP, PP, DP+TP, DP+PP, 3D, by mean, or lists", name);
}

static void print_layers(const LayoutTry* t) {
    const Layout* layout = &t->layout;
    printf("tp %d, rows of %d, layers", layout->tp, t->N);
    for (int s = 0; s < layout->stages; s++) {
        int first = layout_first(layout, s), end = layout_first(layout, s + 1), more = 1;
        for (int l = first; l < end; l += more) {
            more = layout_run(layout, l);
            printf("%s%d", l == first ? " " : "/", more);
            if (layout->layer[l].tp < layout->tp) printf("t%d", layout->layer[l].tp);
            if (layout->layer[l].zero > 1) printf("z%d", layout->layer[l].zero);
            if (layout->layer[l].recompute) printf("%c", recompute_names[layout->layer[l].recompute][0]);
        }
    }
}

static void print_list(const ListTry* t) {
    char text[STRATEGY_TEXT];
    printf("rows of %d a rank", t->N);
    if (t->how.zero > 1) printf(", zero %d", t->how.zero);
    if (t->how.recompute) printf(", recompute %s", recompute_names[t->how.recompute]);
    for (int i = 0; i < t->list.n; i++) printf("%s%s", i ? "; " : ", ", strategy_print(&t->list.strategy[i], text));
}

static void print_way(const char* name, const Found* f, int is_one, double found_ms) {
    double bytes = f->is_list ? f->list.bytes : f->layout.bytes;
    printf("%-7s ", name);
    if (!is_one) printf("%10s\n", "no such layout of this model");
    else if (!fits(f)) printf("%10s  %7.2f GB at least\n", "-", bytes / 1e9);
    else {
        printf("%10.2f  %7.2f  %7.2fx  ", ms_of(f), bytes / 1e9, ms_of(f) / found_ms);
        if (f->is_list) print_list(&f->list);
        else print_layers(&f->layout);
        printf("\n");
    }
}

// A list stands in its head, and below it how layers run.
static void write_layout(const char* path, const Found* f, int layers) {
    static char text[LAYOUT_TEXT];
    char strategy[STRATEGY_TEXT];
    char err[ERR_BYTES], *written;
    size_t bytes;
    FILE* file = open_memstream(&written, &bytes);
    if (!file) die("--layout-file: no memory");
    fprintf(file, "# for --capacity %d", f->is_list ? f->list.N : f->layout.N);
    for (int i = 0; i < f->list.list.n && f->is_list; i++)
        fprintf(file, "%s%s", i ? "; " : " --strategies \"", strategy_print(&f->list.list.strategy[i], strategy));
    layout_print(&f->layout.layout, text, sizeof text);
    if (!f->is_list) fprintf(file, "\n%s", text);
    else
        fprintf(file, "\"\ntp 1\nstage layers %d zero %d recompute %s\n", layers, f->list.how.zero,
                recompute_names[f->list.how.recompute]);
    if (disk_put_stream(path, 1, file, &written, &bytes, err)) die("--layout-file: %s", err);
}

static double step_ms(double terms[N_LAYOUT_TERMS], const Searched* x, const Layout* layout, int N) {
    char err[ERR_BYTES];
    if (x->steps.n == 0) return layout_step_ms(terms, &x->costs, layout, N);
    double ms = layout_steps_ms(terms, &x->costs, layout, N, &x->steps, err);
    if (ms == INFINITY) die("--layout: %s", err);
    return ms;
}

// Prints what a step takes with a layout in a file and rows of the model's --capacity.
static void predict(Searched* x, const Options* o, const Config* c) {
    static Layout layout, otherwise;
    char err[ERR_BYTES];
    size_t n;
    double terms[N_LAYOUT_TERMS];
    char* text = disk_read_file(o->layout, LAYOUT_TEXT, &n, err);
    otherwise = layout_even(&x->whole, c->tp, c->pp, c->zero, (Recompute)config_choice(c, "--recompute"));
    if (!text || layout_parse(&layout, &otherwise, text, n, err) || layout_check(&layout, &x->whole, o->ranks, err))
        die("--layout %s: %s", o->layout, err);
    if (c->capacity < 1) die("--layout %s: expected --capacity in --model, found none", o->layout);
    free(text);
    double ms = step_ms(terms, x, &layout, c->capacity);
    printf("predicted %.6g ms a step: ", ms);
    layout_print_terms(stdout, terms, ms);
    printf("\n");
}

// Prints what the found layout's time consists of, or which lists were looked at.
static void print_found(const Searched* x, const Found* found) {
    if (!found->is_list) {
        double terms[N_LAYOUT_TERMS], ms = step_ms(terms, x, &found->layout.layout, found->layout.N);
        printf("found, of the stage with most: ");
        layout_print_terms(stdout, terms, ms);
        printf("\n");
    }
    if (x->steps.n == 0) return;
    double bound = found->count.bound;
    if (!found->is_list) bound = fmin(bound, fmin(ms_of(found) * (1 - found->slack), found->list.ms));
    printf("lists: %d strategies proposed, %d played; no other of all these is faster by more than %.1f %%\n",
           found->count.proposed, found->count.played, 100 * fmax(0, 1 - bound / ms_of(found)));
}

void simulate_layout(const Options* o) {
    static Searched x;
    static Found found, other;
    int lists_alone = !strcmp(o->layout, "hydraulis"), is_search = lists_alone || !strcmp(o->layout, "auto");
    if (is_search && o->memory <= 0) die("--layout %s: expected --memory with a size like 24G", o->layout);
    if (lists_alone && o->way) die("--way %s: expected --layout auto, found hydraulis, which is one way", o->way);
    Config config = read_model(o->model ? o->model : "", o->ranks);
    open_searched(&x, o, &config);
    if (!is_search) {
        predict(&x, o, &config);
        return;
    }
    if (lists_alone && x.steps.n == 0) draw_steps(&x, o, &config);
    LayoutProblem p = problem_of(&x, &config, o->memory);
    open_moves(&x, &config);
    const Way* first = lists_alone ? &ways[COUNT(ways) - 1] : way_named(o->way);
    int any = find_way(&found, &x, &config, &p, first);
    printf("%s: %d ranks in nodes of %d, %.4gG a rank; %.0f tokens a step, ", x.costs.machine.cost.name, o->ranks,
           o->node_size, o->memory / (1 << 30), x.costs.tokens);
    printf(o->lengths ? "%s up to %d\n\n" : "%sdocuments of %d\n\n", o->lengths ? o->lengths : "", config.context);
    printf("%-7s %10s  %7s  %8s\n", "way", "ms a step", "GB", "of found");
    print_way(first->name, &found, any, ms_of(&found));
    for (int i = 1; i < COUNT(ways) - (x.steps.n ? 0 : 2) && !o->way && !lists_alone; i++) {
        int is_one = find_way(&other, &x, &config, &p, &ways[i]);
        print_way(ways[i].name, &other, is_one, ms_of(&found));
    }
    if (fits(&found)) print_found(&x, &found);
    if (fits(&found) && o->layout_file) write_layout(o->layout_file, &found, x.whole.L);
    free(x.node);
    arena_free(&x.arena);
    config_free(&config);
}
