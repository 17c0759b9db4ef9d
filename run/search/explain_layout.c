// explain_layout.c - --explain layout: what every stage holds, and what a step should take; the bytes of a rank of any
// layout, of which searches ask, too.
#include <stdio.h>
#include <stdlib.h>

#include "plan/model/split.h"
#include "run/search/search.h"
#include "run/setup/setup.h"
#include "run/strategies/strategies.h"

// ---- the memory table of a rank of any layout

// A copy of a run, which shares nothing that is changed here with the live one.
typedef struct ModelPart {
    RunView view;
    Comm tp, data;
    Model owner;
    ModelRanks owner_ranks;
} ModelPart;

// Returns the run as rank `rank` of a group that runs stage s of a layout.
static const Run* part_of(ModelPart* part, const Run* run, const Layout* layout, int copies, int s, int rank) {
    run_view(&part->view, run);
    Model* m = &part->view.run.model;
    part->tp = (Comm){.size = layout->tp, .rank = rank};
    part->data = (Comm){.size = copies ? copies : m->world->size / (layout->tp * layout->stages)};
    if (copies) {
        strategies_own(&part->owner, &part->owner_ranks, &run->model);
        m->ranks->owner = &part->owner, m->ranks->zero.holds = ZERO_IN_USE;
    }
    m->tp = layout->tp > 1 ? &part->tp : NULL;
    m->comm = &part->data;
    m->ranks->layout = *layout;
    run_divide_model(&part->view.run, s);
    return &part->view.run;
}

size_t run_memory_of(const Run* run, const Layout* layout, int copies, int s, int N) {
    static ModelPart part;
    uint64_t measured = 0;
    size_t most = 0;
    for (int rank = 0; rank < layout->tp; rank++) {
        const Run* as = part_of(&part, run, layout, copies, s, rank);
        const Shape* of = &as->model.shape;
        // Ranks of a group with equal parts need equal numbers of bytes.
        int own[] = {of->heads, of->kv_heads, of->hidden, of->vocab_rows};
        uint64_t hash = hash_bytes(own, sizeof own, 0);
        if (of->units) hash = hash_bytes(of->units, sizeof *of->units * (size_t)of->L, hash);
        if (rank > 0 && hash == measured) continue;
        measured = hash;
        most = MAX(most, run_plan_rows(as, N).total);
    }
    return most;
}

// Bytes of the copies that layer l keeps for its backward pass, in all slots.
static size_t layer_activations(const Shape* shape, const ActNeeds* needs, const ActPlace* places, int l) {
    size_t bytes = 0;
    for (int i = 0; i < N_ACTS; i++) {
        const ActPlace* place = &places[i * (shape->L + 1) + l];
        if (place->is_own) bytes += place->bytes * (size_t)(place->slot ? MAX(needs->slots, 1) : 1);
    }
    return bytes;
}

// The part of it that is one layer's: weights, gradients and optimizer state; what it keeps for its backward pass, of
// all rounds in flight. bytes (layers of stage s + 1): the last is of embedding and classifier.
typedef struct LayerBytes {
    size_t states, activations;
} LayerBytes;

static void layer_bytes(LayerBytes* bytes, const Run* run, const Layout* layout, int s, int N) {
    static ModelPart part;
    const Run* as = part_of(&part, run, layout, 0, s, 0);
    const Shape* shape = &as->model.shape;
    Shape base = shape_base(shape);
    ModelNeeds needs = run_model_needs(as, N);
    ActPlace* places = (ActPlace*)calloc((size_t)N_ACTS * ((size_t)shape->L + 1), sizeof *places);
    if (!places) die("no memory for the places of %d layers", shape->L);
    shape_activations(&needs.shape, &needs.acts, places);
    for (int b = 0; b <= shape->L + 1; b++) {
        Bucket bucket = shape_bucket(shape, b);
        int zero = zero_stage_of(&as->model, b);
        size_t states = shape_state_bytes(&bucket, zero, as->model.dt);
        Bucket frozen = shape->lora.is_all ? shape_bucket(&base, b) : (Bucket){0, 0, 0, 0};
        states += (zero > 2 ? frozen.piece : frozen.elems) * dtype_bytes(as->model.dt);
        int ends = b == 0 || b > shape->L;
        bytes[ends ? shape->L : b - 1].states = states + (b > shape->L ? bytes[shape->L].states : 0);
        bytes[ends ? shape->L : b - 1].activations =
            ends ? 0 : layer_activations(&needs.shape, &needs.acts, places, b - 1);
    }
    free(places);
}

// ---- of a run

// Prints the part of runs of like layers in a rank's bytes, and the rest: buffers, scratch, what all layers share.
static void print_layers(Run* run, int s, size_t all) {
    static LayerBytes bytes[MOST_LAYERS + 1];
    const Layout* layout = &run->model.ranks->layout;
    int first = layout_first(layout, s), end = layout_first(layout, s + 1), L = end - first;
    double mib = 1 << 20, left = (double)all;
    layer_bytes(bytes, run, layout, s, rank_capacity(&run->clock->limits, 0));
    for (int l = first, n; l < end; l += n) {
        const LayerLayout* row = &layout->layer[l];
        const LayerBytes* each = &bytes[l - first];
        n = layout_run(layout, l);
        printf("  layers %d to %d, tp %d, zero %d, recompute %s: %d x (%.1f MiB of states, %.1f of activations)\n", l,
               l + n - 1, row->tp, row->zero, recompute_names[row->recompute], n, (double)each->states / mib,
               (double)each->activations / mib);
        left -= n * (double)(each->states + each->activations);
    }
    if (bytes[L].states) printf("  embedding and classifier: %.1f MiB of states\n", (double)bytes[L].states / mib);
    printf("  beside them: %.1f MiB\n", (left - (double)bytes[L].states) / mib);
}

static void check_layout(Run* run) {
    const Model* m = &run->model;
    char text[LAYOUT_TEXT], err[ERR_BYTES];
    double ms;
    int ranks = m->world->size / m->stages;
    size_t* bytes = (size_t*)run_ask_all(run, m->world, &run->books->memory_bytes, sizeof run->books->memory_bytes);
    for (int s = 0; s < m->stages && m->world->rank == 0; s++) {
        int first = layout_first(&m->ranks->layout, s), end = layout_first(&m->ranks->layout, s + 1);
        size_t most = 0;
        int slots = pipeline_slots(m->stages, s);
        for (int r = 0; r < ranks; r++) most = MAX(most, bytes[s * ranks + r]);
        printf("stage %d: ranks %d to %d, layers %d to %d, %.1f MiB a rank, %d round%s in flight\n", s, s * ranks,
               (s + 1) * ranks - 1, first, end - 1, (double)most / (1 << 20), slots, slots > 1 ? "s" : "");
        print_layers(run, s, bytes[s * ranks]);
    }
    free(bytes);
    if (m->world->rank == 0 && run_ask_time(&ms, run, 0, 0, 1, err)) die("%s", err);
    layout_print(&m->ranks->layout, text, sizeof text);
    printf("a layout that --layout takes:\n%s", text);
}

// ---- with --strategies

// bytes (ranks): of what a rank holds under this strategy. `first`: of its ranks.
static void print_group(const Run* run, const PipelineGroup* g, int first, const size_t* bytes) {
    Layout layout = strategies_layout(run, g);
    int ranks = g->copies * g->tp;
    for (int s = 0; s < g->pp; s++, first += ranks) {
        int begin = layout_first(&layout, s), end = layout_first(&layout, s + 1);
        size_t most = 0;
        for (int r = first; r < first + ranks; r++) most = MAX(most, bytes[r]);
        printf("  %dxtp%dpp%d stage %d: ranks %d to %d, layers %d to %d, %.1f MiB a rank, %d rounds in flight\n",
               g->copies, g->tp, g->pp, s, first, first + ranks - 1, begin, end - 1, (double)most / (1 << 20),
               pipeline_slots(g->pp, s));
        for (int l = begin, n; l < end; l += n) {
            const LayerLayout* row = &layout.layer[l];
            n = layout_run(&layout, l);
            printf("    layers %d to %d: zero %d, recompute %s\n", l, l + n - 1, g->copies > 1 ? row->zero : 1,
                   recompute_names[row->recompute]);
        }
    }
}

static void check_strategies(Run* run) {
    const Strategies* x = run->strategies;
    Comm* world = run->model.world;
    size_t table = run->books->memory_bytes;
    for (int s = 0; s < x->list.n; s++) {
        const RankStrategy* strategy = &x->list.strategy[s];
        size_t own = run_plan_job_memory(x->as[s]).total, *bytes = (size_t*)run_ask_all(run, world, &own, sizeof own);
        printf("strategy %s\n", x->name[s]);
        for (int g = 0, first = 0; g < strategy->n; first += group_ranks(&strategy->group[g++]))
            print_group(run, &strategy->group[g], first, bytes);
        free(bytes);
    }
    printf("of what each entry of the memory table needs most, together: %.1f MiB\n", (double)table / (1 << 20));
}

void explain_layout(Run* run) {
    if (run->strategies) check_strategies(run);
    else check_layout(run);
}
