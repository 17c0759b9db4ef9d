// cost.c - finds the machine that planners know: a named file, the file of an earlier --probe, or an estimate. Rank 0
// decides and tells all others, so that every rank plans with the same bits.
//
// The estimate takes linear work at half of the measured peak, and attention at a quarter (CPU kernels reach roughly
// these). A micro-batch moves all weights and gradients once. Links are usual ones for the transport. Calibration
// (plan/cost/calibration.h) corrects all of it within some steps, except how links differ from each other.
#define _GNU_SOURCE  // gethostname
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "plan/base/disk.h"
#include "plan/base/user_cache.h"
#include "plan/cost/transfers.h"
#include "plan/layout/layout_ranks.h"
#include "plan/published/published.h"
#include "run/setup/setup.h"

// ---- the estimate

// Makes the table of a link whose messages take latency_ms, and bytes / (GB/s) on top.
static LinkTable straight_link(double latency_ms, double gbps) {
    LinkTable link = {.n = 2, .bytes = {1 << 10, 1 << 26}};
    for (int i = 0; i < link.n; i++) link.ms[i] = latency_ms + link.bytes[i] / (1e6 * gbps);
    return link;
}

// Estimates the machine from its peak and transport, without any measurement. The step is a reduce-scatter of
// gradients, an update and an all-gather of weights, as bytes over links and through memory.
static void estimate(Machine* machine, const Run* run) {
    const Model* m = &run->model;
    const PlanLimits* limits = &run->clock->limits;
    int on_host = m->k->on_host;
    double ranks = limits->ranks, elem = (double)dtype_bytes(m->dt);
    double rate = run->cluster->peak / ranks / 1e3;  // FLOP a ms
    double passes = shape_passes(&m->whole), again = (passes + layout_again(&m->ranks->layout, m->stage)) / passes;
    double bytes_a_ms = 1e6 * (on_host ? 8 : 2000), elems = (double)shape_param_elems(&m->shape);
    *machine = (Machine){.heads = limits->kv_heads, .capacity = limits->capacity};
    Cost* cost = &machine->cost;
    snprintf(cost->name, sizeof cost->name, "estimate");
    cost->per_token = again * shape_training_flops(&m->whole, 1, 0) / (LINEAR_SHARE_OF_PEAK * rate);
    cost->quadratic = again * shape_training_flops(&m->whole, 0, 1) / (ATTENTION_SHARE_OF_PEAK * rate);
    cost->micro_batch = elems * (2.0 * elem + 8) / bytes_a_ms;
    if (!on_host) cost->micro_batch += 0.1 * m->shape.L;  // some 30 kernels a layer of some us
    cost->link_scale = 1.0 / m->stages;
    cost->layers = m->whole.L;
    cost->channels = m->shape.heads * m->shape.HS;  // the channels that data ranks send
    cost->kv_channels = m->shape.kv_heads * m->shape.HS;
    cost->elem_bytes = (int)elem;
    // These are the bytes of AdamW and the norm, and of clearing gradients.
    cost->step = (elems / ranks * (28 + 2 * elem) + 8 * elems) / bytes_a_ms;
    if (limits->ranks == 1) return;
    cost->link[LINK_INSIDE] = on_host ? straight_link(0.02, 2) : straight_link(0.02, 250);
    cost->link[LINK_ACROSS] = on_host ? straight_link(0.05, 1) : straight_link(0.03, 25);
    int n = limits->ranks, nodes = CEIL_DIV(n, limits->node_size);
    cost->step += collective_ms(cost, n, nodes, limits->node_size, (4 + elem) * elems);
}

// ---- the file that a probe leaves

// Fills text with everything that a measurement depends on, as comment lines of a machine file; its name is their hash.
// Returns their length.
static size_t describe(const Run* run, char text[MACHINE_TEXT], char name[64]) {
    static char layout[LAYOUT_TEXT];
    const Config* c = &run->config;
    const Model* m = &run->model;
    const Shape* s = &m->whole;
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    size_t n =
        (size_t)snprintf(text, MACHINE_TEXT,
                         "# ragged: cost model measured by --probe\n"
                         "# device %s, host %s\n"
                         "# ranks %d, %d a machine, over %s, tp %d, threads %d, zero %d, reduce %s, overlap %s\n"
                         "# layers %d, width %d, heads %d, vocabulary %d, context %d\n"
                         "# dtype %s, recompute %s, attention %s, isa %s\n",
                         m->k->name, host, run->clock->limits.ranks, run->clock->limits.node_size, m->comm->name,
                         run->settled.tp, c->threads, m->ranks->zero.stage, c->grad_dtype, c->overlap, s->L, s->C,
                         s->NH, s->V, s->context, c->dtype, c->recompute, c->attention, c->cpu_isa);
    n = MIN(n, (size_t)MACHINE_TEXT - 1);
    if (s->lora.rank) text_append(text, MACHINE_TEXT, &n, "# lora %d, %d\n", s->lora.rank, s->features & HAS_LORA);
    if (m->stages > 1) {
        size_t bytes = layout_print(&m->ranks->layout, layout, sizeof layout);
        text_append(text, MACHINE_TEXT, &n, "# stages %d, layout %016" PRIx64 "\n", m->stages,
                    hash_bytes(layout, MIN(bytes, sizeof layout - 1), 0));
    }
    snprintf(name, 64, "cost-%016" PRIx64 ".txt", hash_bytes(text, n, 0));
    return n;
}

void run_fit_machine(const Run* run, Machine* machine, int direction) {
    const Shape *whole = &run->model.whole, base = shape_base(whole);
    double share = shape_training_flops(whole, 1, 0) / shape_training_flops(&base, 1, 0);
    double factor = direction > 0 ? share : 1 / share;
    machine->cost.per_token *= factor;
    for (int i = 0; i < machine->n_tp; i++) machine->tp_token[i] *= factor;
}

int run_save_machine(const Run* run, char path[DISK_PATH], Err err) {
    static Machine machine;
    char name[64], text[MACHINE_TEXT];
    size_t n = describe(run, text, name);
    machine = run->clock->probed;
    run_fit_machine(run, &machine, -1);
    n += machine_print(&machine, text + n, sizeof text - n);
    if (n >= sizeof text) die("a machine file of %zu bytes", n);
    return user_cache_path(path, name, err) || user_cache_save(name, text, n, 1, err) ? -1 : 0;
}

// ---- reading

// Reads a machine from a file, or from the text of one that is built in. It must have times of a rank alone; one for
// whole pipelines (--strategies) may lack them.
static int read_machine(Machine* machine, const char* name, const char* builtin, int is_for_pipelines, Err err) {
    enum { MOST_BYTES = 1 << 20 };
    char words[ERR_BYTES];
    const Cost* cost = &machine->cost;
    size_t n = builtin ? strlen(builtin) : 0;
    char* text = builtin ? strdup(builtin) : disk_read_file(name, MOST_BYTES, &n, err);
    if (!text) return -1;
    int failed = machine_parse(machine, text, n, words);
    free(text);
    if (failed) return fail(err, "%s: %s", name, words);
    if (cost->per_token > 0 || cost->quadratic > 0 || (is_for_pipelines && machine->n_schemes > 0)) return 0;
    return fail(err, "%s: a rank alone has no times here, expected linear_ms or quadratic_ms%s", name,
                machine->n_schemes > 0 ? "; it has times of whole pipelines, for --strategies" : "");
}

int run_machine_named(const Run* run, Machine* machine, const char* name, Err err) {
    const Config* c = &run->config;
    char words[ERR_BYTES];
    const char* text = machine_builtin(name);
    int is_for_pipelines = c->strategies || (c->layout && !strcmp(c->layout, "hydraulis"));
    if (!text && access(name, F_OK))
        return fail(err, "--machine %s: no such file, and no machine of this name; there are %s", name,
                    machine_names());
    if (read_machine(machine, name, text, is_for_pipelines, words)) return fail(err, "--machine: %s", words);
    run_fit_machine(run, machine, 1);
    return 0;
}

// ---- a machine's constants for this run

static void divide_among_ranks(Cost* cost, const Model* m) {
    const int* node = m->job->node;
    int most = 1, R = tp_size(m);
    for (int r = 0, nodes = 1; r < m->job->size; r++) {
        nodes = r % R == 0 ? 1 : nodes + (node[r] != node[r - 1]);
        most = MAX(most, nodes);
    }
    layout_divide_cost(cost, &m->whole, &m->ranks->layout, m->tp ? &m->ranks->split : NULL, (int)dtype_bytes(m->dt),
                       most, m->tp && m->tp->overlap);
}

// ---- rank 0's search

typedef struct Found {
    int failed;
    char err[ERR_BYTES];
    char from[CHECKPOINT_PATH + 64];
    Machine machine;
    WeightTimes weights[MOST_STAGES];
} Found;

// Reads the file that an earlier probe has left for such a run. Returns 1 if it can be used.
static int find_measured(Found* found, const Run* run) {
    char path[DISK_PATH], name[64], text[MACHINE_TEXT], err[ERR_BYTES];
    describe(run, text, name);
    if (user_cache_path(path, name, err)) return 0;
    int missing = user_cache_check(name, err);
    if (!missing) missing = read_machine(&found->machine, path, NULL, 0, err);
    if (missing < 0) warn("%s; going on with an estimate, --probe measures anew", err);
    if (!missing) run_fit_machine(run, &found->machine, 1);
    snprintf(found->from, sizeof found->from, "measured, %s", path);
    return !missing;
}

// Takes the machine of --machine, or a measured one, or an estimate.
static void find_machine(Found* found, const Run* run, const char* named, int may_be_measured) {
    if (named) {
        found->failed = run_machine_named(run, &found->machine, named, found->err);
        snprintf(found->from, sizeof found->from, "of --machine %s", named);
    } else if (!may_be_measured || !find_measured(found, run)) {
        estimate(&found->machine, run);
        snprintf(found->from, sizeof found->from, "estimated from the processor's peak; --probe measures it");
    }
}

// Finds the times of weights of each stage, by the first rank of a tensor-parallel group.
static void find_weights(WeightTimes weights[MOST_STAGES], const Machine* machine, const Run* run) {
    const Model* m = &run->model;
    const Layout* layout = &m->ranks->layout;
    int zero = m->ranks->zero.stage, elem = (int)dtype_bytes(m->dt), nodes = 1;
    int grad_bytes = (int)dtype_bytes(run_gradients_travel_as(run));
    TransferTimes t = transfer_times(machine, &m->whole, elem, run_node_size(run, m->world, 1, 1));
    Shape rank = m->tp ? split_shape(&m->whole, &m->ranks->split, 0) : m->whole;
    rank.shards = m->comm->size;
    for (int r = 1; r < m->comm->size; r++) nodes += m->comm->node[r] != m->comm->node[r - 1];
    for (int s = 0; s < m->stages; s++) {
        Shape part = m->stages > 1 ? shape_stage(&rank, layout_first(layout, s), layout_first(layout, s + 1)) : rank;
        WeightTimes* w = &weights[s];
        *w = (WeightTimes){.zero = zero};
        if (m->comm->size > 1 && !machine_has_weights(machine, zero))
            *w = transfer_weights(&t, &part, zero, m->comm->size, nodes, elem, grad_bytes);
        // Like pipelines of a list divide layers alone; the ends move (strategy_moves.h).
        if (run->strategies) w->gather[WEIGHTS_FIRST] = w->gather[WEIGHTS_LAST] = 0;
        if (run->strategies) w->reduce[WEIGHTS_FIRST] = w->reduce[WEIGHTS_LAST] = 0;
        w->update = machine->cost.step, w->hides = m->comm->overlap, w->inside = zero_can_reduce_inside(m);
    }
}

// Finds the machine and the times of weights for the ranks of this job.
static void find(Found* found, const Run* run) {
    const Model* m = &run->model;
    Machine* machine = &found->machine;
    Cost* cost = &machine->cost;
    const char* named = run->config.probe ? NULL : run->config.machine;
    find_machine(found, run, named, !run->config.probe);
    if (!named || found->failed) return;
    // A rank in plans is a pipeline then, with all that its ranks send each other.
    if (cost->per_token <= 0 && cost->quadratic <= 0) {
        const Scheme* s = machine_scheme(machine, tp_size(m), m->stages);
        if (!s)
            found->failed =
                fail(found->err, "--machine %s has no times of tp%dpp%d", cost->name, tp_size(m), m->stages);
        else cost->quadratic = s->quadratic, cost->per_token = s->linear, cost->micro_batch = s->fixed;
        cost->link[LINK_INSIDE].n = cost->link[LINK_ACROSS].n = 0;
        return;
    }
    if (!run->strategies || m->ranks->zero.stage > 1) find_weights(found->weights, machine, run);
    divide_among_ranks(cost, m);
}

// Views the run as if each rank had all layers, in groups of `tp`. Ranks are not joined yet, so the view holds only the
// parts that find_machine needs.
static void view_groups(RunView* as, const Run* run, Comm* ranks, int tp) {
    run_view(as, run);
    Model* m = &as->run.model;
    m->world = m->comm = ranks;
    run_set_limits(&as->run, tp, m->world->size / tp);
    as->clock.limits.node_size = run_node_size(&as->run, m->world, tp, 1);
    as->run.settled.tp = tp, as->run.config.recompute = "none";
    m->shape = m->whole, m->stages = 1, m->stage = 0, m->ranks->zero.stage = 1;
    m->ranks->layout = layout_even(&m->whole, 1, 1, 1, RECOMPUTE_NONE);
}

int run_machine_of_layouts(const Run* run, Comm* ranks, Machine* m, char from[ERR_BYTES], Err err) {
    Found found = {0};
    RunView as;
    view_groups(&as, run, ranks, 1);
    find_machine(&found, &as.run, run->config.machine, 1);
    *m = found.machine;
    snprintf(from, ERR_BYTES, "%.500s", found.from);
    if (found.failed) return fail(err, "%s", found.err);
    if (run->config.machine) return 0;
    m->cost.step = 0;  // gradients and weights depend on the layout, and an update is cheap
    for (int tp = 2; tp <= MIN(MOST_TP, ranks->size) && m->n_tp < MACHINE_TP; tp++) {
        view_groups(&as, run, ranks, tp);
        if (ranks->size % tp || tp > run->model.whole.NH || !find_measured(&found, &as.run)) continue;
        const Cost* group = &found.machine.cost;
        m->tp[m->n_tp] = tp, m->tp_token[m->n_tp] = group->per_token;
        m->tp_pair[m->n_tp] = group->quadratic, m->tp_row[m->n_tp++] = cost_micro_batch(group);
    }
    return 0;
}

// ---- all ranks

void run_read_machine(Run* run, Machine* machine) {
    Found found = {0};
    if (run->model.world->rank == 0)
        found.failed = run_machine_named(run, &found.machine, run->config.machine, found.err);
    run_tell_all(run->model.world, &found, sizeof found);
    if (found.failed) die("%s", found.err);
    *machine = found.machine;
    run_fit_machine(run, machine, -1);
}

static void print_cost(const Run* run, const char* from) {
    static const char* const where[N_LINKS] = {"inside a node", "between nodes"};
    const Cost* c = &run->clock->probed.cost;
    const PlanLimits* limits = &run->clock->limits;
    say(stdout, "cost    %s", from);
    printf("        %.3g ms a token, %.3g ms a token^2, %.3g ms a micro-batch, %.3g ms a step", c->per_token,
           c->quadratic, c->micro_batch, c->step);
    for (int k = 0; k < (limits->ranks > limits->node_size ? N_LINKS : limits->ranks > 1); k++)
        if (c->link[k].n > 0) printf(", 1 MiB %s %.3g ms", where[k], link_ms(&c->link[k], 1 << 20));
    printf("\n");
}

void run_set_cost(Run* run) {
    Clock* x = run->clock;
    calibration_apply(&x->setting.cost, &x->probed.cost, &run->cluster->timing.calibration);
    cost_groups(x->groups, &x->setting.cost, &x->setting.limits, x->setting.kind);
    x->setting.groups = x->groups;
}

// Sets the speeds of ranks that the machine knows.
static void know_paces(Run* run) {
    const Model* m = &run->model;
    int ranks = m->comm->size, tp = tp_size(m), first = m->world->rank - m->job->rank;
    for (int i = 0; i < m->stages * ranks; i++)
        run->clock->stage_speeds[i] = machine_speed(&run->clock->probed, first + i * tp, tp);
    if (run->clock->probed.n_kinds > 0) run_set_paces(run);
}

// Settles routing alike on all ranks, and for good: sender and receiver of a message must cut it alike.
static void set_routing(Run* run) {
    const Model* m = &run->model;
    const Cost* cost = &run->clock->probed.cost;
    int is_auto = !strcmp(run->config.route, "auto");
    double least = is_auto ? route_least_bytes(cost, &run->clock->limits) : strcmp(run->config.route, "no") != 0;
    // A message of the machine's model stands for one of this model.
    double own = (double)m->shape.kv_heads * m->shape.HS * (double)dtype_bytes(m->dt),
           its = (double)cost->kv_channels * cost->elem_bytes;
    m->comm->nics = m->tp ? 0 : cost->nics;
    run->clock->setting.route_least = (size_t)least;
    m->comm->route_least = (size_t)(is_auto && least > 0 && its > 0 ? MAX(1, least * own / its) : least);
}

// ---- the planner of --plan, from the table of plan/published/published.h
//
// static, adaptive and flex look at the cost model as it is now. Hydraulis proposes its strategies, and Zeppelin its
// zones, before the first step, for the model that is known then, from the same numbers on every rank.

const Planner* run_planner(const Run* run) {
    return run->clock->limits.ranks > 1 ? planner_named(run->config.plan) : NULL;
}

size_t run_planning_bytes(const Run* run, const PlanLimits* limits, int max_tokens) {
    const Planner* planner = run_planner(run);
    size_t steps = run->training ? 2 : 1;  // the one at work and the next
    if (!planner) return steps * planning_bytes(max_tokens, limits);
    return steps * planner_bytes(planner, max_tokens, limits) + planner_open_bytes(planner, limits);
}

static void open_planner(Run* run) {
    static int sample[SAMPLED_LENGTHS];
    char err[ERR_BYTES];
    const Planner* planner = run_planner(run);
    if (!planner) return;
    run->clock->settled =
        planner->open(&run->clock->setting, sample, run_sample_lengths(run, sample), &run->clock->settled_in, err);
    if (!run->clock->settled) die("--plan %s: %s", planner->name, err);
}

void run_find_job_cost(Run* run) {
    Found found = {0};
    Clock* x = run->clock;
    const Model* m = &run->model;
    if (m->job->rank == 0) find(&found, run);
    run_tell_all(m->job, &found, sizeof found);
    if (found.failed) die("%s", found.err);
    x->probed = found.machine;
    // Messages that the computing cores send take time from these, so they hide nowhere.
    if (m->job->overlap && !m->k->on_host) x->probed.cost.parts = attention_parts(m);
    // Times of whole pipelines say nothing of documents that ranks share, so none are shared.
    if (found.machine.n_schemes > 0) x->limits.kv_heads = 1, x->setting.kind = CP_CHOICE_ULYSSES;
    x->setting.limits = x->limits, x->setting.weights = found.weights[0];
    memcpy(x->stage_weights, found.weights, sizeof x->stage_weights);
    know_paces(run);
    set_routing(run);
    if (run->config.probe) return;
    calibration_start(&run->cluster->timing.calibration);
    run_set_cost(run);
    open_planner(run);
    // A rank that is alone has nothing to plan with an estimate.
    int counts = x->limits.ranks > 1 || run->config.explain || strncmp(found.from, "estimated", 9) != 0;
    if (counts && !run_is_brief(run)) print_cost(run, found.from);
}
