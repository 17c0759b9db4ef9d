// virtual.c - --device virtual: the machine of --machine as a cluster of as many ranks as the job has.
//
// A machine knows its own model as a whole: ms of a token, of a token^2, bytes a token. The model that runs may be any:
// its matmuls share the ms of a token by their weights, its layers those of a token^2 by their heads, and its messages
// stand for those of the machine's model:
//
//   published machines   an all-to-all of b bytes, with what stays here, of the B a token that this model moves in one:
//                        token_bytes b / B bytes at the GB/s of so many ranks. B = 2 L e (2 queries + 2 keys) channels
//   measured machines    with l layers of c channels for our L of C: l / L messages of b c / C bytes
//
// Gradients and weights travel as the parameters that the machine names (memory), else as ours. They take no time of
// their own where what was measured has it in it: step_ms with --zero 1, round_ms with --zero 2 and 3.
#include <math.h>
#include <stdio.h>

#include "kernels/virtual/virtual.h"
#include "run/run.h"

enum { LAYERS = 32 };  // of a 7B model, where a published machine says nothing

static struct {
    Machine machine;
    double token_scale;                      // published: bytes of the machine's model for one of ours
    double stream_scale;                     // the same of the stream between two layers
    double channel_scale, key_scale, count;  // measured
    double weight_scale;
    int fixed_has_weights;
} cluster;

// ---- time of a communication

// As plan/cost.c has it: among so many ranks, between nodes as among more than a node has.
static double by_ranks_ms(const VirtualTransfer* t, double bytes) {
    const Cost* cost = &cluster.machine.cost;
    int ranks = t->across ? MAX(t->ranks, virtual_node_size() + 1) : t->ranks;
    return cost->link_scale * published_ms(cost, ranks, bytes);
}

static double measured_ms(const VirtualTransfer* t, double bytes) {
    const Cost* cost = &cluster.machine.cost;
    return cost->link_scale * link_ms(&cost->link[t->across ? LINK_ACROSS : LINK_INSIDE], bytes);
}

static double transfer_ms(const void* context, const VirtualTransfer* t) {
    (void)context;
    int published = cluster.machine.cost.n_groups > 0;
    double weights = cluster.weight_scale * t->sent;
    switch (t->purpose) {
        case COMM_ULYSSES:
            if (published) return by_ranks_ms(t, cluster.token_scale * t->whole);
            return cluster.count * measured_ms(t, cluster.channel_scale * t->sent);
        case COMM_TENSOR:
            if (published) return by_ranks_ms(t, cluster.token_scale * t->sent);
            return cluster.count * measured_ms(t, cluster.channel_scale * t->sent);
        case COMM_RING:
            if (published) return by_ranks_ms(t, cluster.token_scale * t->sent);
            return cluster.count * measured_ms(t, cluster.key_scale * t->sent);
        case COMM_GRADIENTS:
        case COMM_PARAMETERS:
            if (cluster.fixed_has_weights) return 0;
            return published ? by_ranks_ms(t, weights) : measured_ms(t, weights);
        case COMM_PIPELINE:
            return published ? by_ranks_ms(t, cluster.stream_scale * t->sent)
                             : measured_ms(t, cluster.channel_scale * t->sent);
        case COMM_STATE:
        case COMM_SLICES: return published ? by_ranks_ms(t, weights) : measured_ms(t, weights);
        default: return 0;  // some numbers
    }
}

// ---- before the first step

static void refuse(const Run* run, int is, const char* option, const char* instead) {
    if (is) die("--device %s has no %s: %s", run->config.device, option, instead);
}

// An interval that nobody asked for is 0.
static void turn_off(Run* run, int* every, const char* option) {
    refuse(run, *every > 0 && config_was_given(&run->config, option), option,
           "nothing is computed there; leave it out");
    *every = 0;
}

void run_check_virtual(Run* run) {
    Config* c = &run->config;
    const Kernels* k = run->model.k;
    if (!k->virtual_time) return;
    if (!c->machine)
        die("--device %s needs --machine FILE or NAME, whose times it takes; try %s", c->device, machine_names());
    refuse(run, c->sample != NULL, "--sample", "it is for training");
    refuse(run, c->probe, "--probe", "its times are those of --machine");
    virtual_nodes(c->node_size ? c->node_size : 8);
    if (!k->no_results) return;
    refuse(run, c->dump_grads != NULL, "--dump-grads", "nothing is computed there");
    refuse(run, c->resume || c->init, c->resume ? "--resume" : "--init", "nothing is computed there");
    refuse(run, !strcmp(c->balance, "resize") || !strcmp(c->balance, "semi"), "--balance resize or semi",
           "what to leave out depends on weights; try --balance migrate");
    refuse(run, !strcmp(c->moves, "keep"), "--moves keep", "nothing is computed there; try --moves step");
    turn_off(run, &c->eval_every, "--eval-every");
    turn_off(run, &c->sample_every, "--sample-every");
    turn_off(run, &c->save_every, "--save-every");
}

// What the machine says of memory, where it does.
static void take_limits(Run* run) {
    const Machine* machine = &cluster.machine;
    Machine stage = *machine;  // has its part of the parameters, and of as many rounds as stages its part of a token
    Config* c = &run->config;
    int ranks = run->limits.ranks, known = machine->capacity > 0 || machine->token_mb > 0;
    stage.parameters /= run->model.stages;
    int capacity = known ? machine_capacity(&stage, ranks, run->model.zero.stage) : 0;
    if (known && capacity < 1 && !c->capacity)
        die("%s: the states of --zero %d leave no room for a token on %d ranks of %.15g GB; try --zero 3, more ranks, "
            "or --capacity to go on as if they did",
            machine->cost.name, run->model.zero.stage, ranks, machine->memory_gb);
    if (!c->capacity) c->capacity = capacity;
    if (!run->model.k->no_results) return;
    run->available = (HostMemory){(size_t)1 << 46, "of a machine that does not say how much"};
    if (machine->gpu_mib > 0)
        run->available = (HostMemory){(size_t)(machine->gpu_mib * (1 << 20)), "gpu_mib of the machine"};
}

void run_open_virtual(Run* run) {
    const Model* m = &run->model;
    const Shape* s = &m->whole;
    const Cost* cost = &cluster.machine.cost;
    if (!m->k->virtual_time || !run->training) return;
    run_read_machine(run, &cluster.machine);
    double elem = (double)dtype_bytes(m->dt), queries = s->NH * s->HS, keys = s->NKV * s->HS;
    cluster.token_scale = cost->token_bytes / (2 * s->L * elem * (2 * queries + 2 * keys));
    cluster.stream_scale = cluster.token_scale * s->L / (cluster.machine.layers > 0 ? cluster.machine.layers : LAYERS);
    cluster.channel_scale = cost->elem_bytes * cost->channels / (elem * queries);
    cluster.key_scale = cost->elem_bytes * cost->kv_channels / (elem * keys);
    cluster.count = (double)cost->layers / s->L;
    cluster.weight_scale =
        cluster.machine.parameters > 0 ? cluster.machine.parameters * (1 << 30) / (double)shape_param_count(s) : 1;
    cluster.fixed_has_weights = m->zero.stage == 1 ? cost->step > 0 : cost->round > 0;
    VirtualMachine machine = {.token_ms = cost->per_token,
                              .pair_ms = cost->quadratic,
                              .micro_batch_ms = cost_micro_batch(cost),
                              .step_ms = cost->step,
                              .matmul_weights = shape_matmul_weights(s) + (double)(s->Vp - s->V) * s->C,
                              .layers = s->L,
                              .heads = s->NH,
                              .transfer_ms = transfer_ms};
    virtual_use(&machine);
    take_limits(run);
}
