// virtual.c - --device virtual: the machine of --machine as a cluster of as many ranks as the job has.
//
// The run's model may be another than the machine's. Its matmuls share the ms of a token by their weights, its layers
// those of a token^2 by their heads, and its messages stand for the machine's (plan/cost/transfers.h). Gradients and
// weights take no time of their own if it was measured with the rest: step_ms with --zero 1, round_ms with 2 and 3. A
// machine that knows whole pipelines has times for --strategies alone, which include the messages of their ranks.
#include <math.h>
#include <stdio.h>

#include "kernels/virtual/virtual.h"
#include "plan/cost/transfers.h"
#include "run/setup/setup.h"

static struct {
    Machine machine;
    TransferTimes links;
    int fixed_has_weights;
    int n;                                       // strategies whose pipelines have times of their own; 0 usually
    VirtualMachine under[MOST_RANK_STRATEGIES];  // of this rank's pipeline in each
} cluster;

// ---- time of a communication

static double virtual_ms(const void* context, const VirtualTransfer* t) {
    // 0: some numbers, which take no time
    static const int kinds[N_PURPOSES] = {
        [COMM_ULYSSES] = 1 + TRANSFER_ULYSSES,    [COMM_REMAP] = 1 + TRANSFER_ULYSSES,
        [COMM_TENSOR] = 1 + TRANSFER_TENSOR,      [COMM_ROUTE] = 1 + TRANSFER_RING,
        [COMM_RING] = 1 + TRANSFER_RING,          [COMM_GRADIENTS] = 1 + TRANSFER_WEIGHTS,
        [COMM_PARAMETERS] = 1 + TRANSFER_WEIGHTS, [COMM_PIPELINE] = 1 + TRANSFER_STREAM,
        [COMM_STATE] = 1 + TRANSFER_WEIGHTS,      [COMM_SLICES] = 1 + TRANSFER_WEIGHTS};
    int moves = t->purpose == COMM_GRADIENTS || t->purpose == COMM_PARAMETERS, kind = kinds[t->purpose];
    double whole = t->whole;
    (void)context;
    if (cluster.n > 0 && !moves) return 0;  // the times of pipelines include it
    if (kind == 0 || (moves && cluster.fixed_has_weights)) return 0;
    // The speeds of an all-to-all among d ranks count what stays on a rank, a d-th.
    if (t->purpose == COMM_REMAP) whole = t->sent * t->ranks / (t->ranks - 1);
    if (t->nodes) return transfer_sum_ms(&cluster.links, (TransferKind)(kind - 1), t->ranks, t->nodes, whole);
    return transfer_ms(&cluster.links, (TransferKind)(kind - 1), t->ranks, t->across, t->sent, whole);
}

// ---- before the first step

static void refuse(const Run* run, int is, const char* option, const char* instead) {
    if (is) die("--device %s has no %s: %s", run->config.device, option, instead);
}

// Turns off an interval that nobody asked for.
static void turn_off(Run* run, int* every, const char* option) {
    refuse(run, *every > 0 && config_was_given(&run->config, option), option,
           "nothing is computed there; leave it out");
    *every = 0;
}

void run_check_virtual(Run* run) {
    Config* c = &run->config;
    const Kernels* k = run->model.k;
    if (!k->virtual_time) return;
    if (!c->machine && !c->what_if && !run->cluster->searches)
        die("--device %s needs --machine FILE or NAME, whose times it takes; try %s", c->device, machine_names());
    refuse(run, c->sample != NULL, "--sample", "it is for training");
    refuse(run, c->chat, "--chat", "it is for training");
    refuse(run, c->rollouts != NULL, "--rollouts", "it is for training");
    refuse(run, c->probe, "--probe", "its times are those of --machine");
    virtual_nodes(c->node_size ? c->node_size : 8);
    if (!k->no_results) return;
    refuse(run, c->score != NULL, "--score", "nothing is computed there");
    refuse(run, c->dump_grads != NULL, "--dump-grads", "nothing is computed there");
    refuse(run, c->resume || c->init, c->resume ? "--resume" : "--init", "nothing is computed there");
    turn_off(run, &c->eval_every, "--eval-every");
    turn_off(run, &c->sample_every, "--sample-every");
    turn_off(run, &c->save_every, "--save-every");
}

// Takes the capacity and the memory that the machine says, if it does.
static void take_limits(Run* run) {
    const Machine* machine = &cluster.machine;
    Machine stage = machine_part(machine, run->model.world->rank, 1);
    // A stage has its part of the parameters, and its part of a token for as many rounds as there are stages.
    int ranks = run->clock->limits.ranks, zero = run->model.ranks->zero.stage,
        known = machine->capacity > 0 || machine->token_mb > 0;
    stage.parameters /= run->model.stages;
    int capacity = known ? machine_capacity(&stage, ranks, zero) : 0;
    if (known && capacity < 1 && !run->settled.capacity)
        die("%s: the states of --zero %d leave no room for a token on %d ranks of %.15g GB; try --zero 3, more ranks, "
            "or --capacity to go on as if they did",
            machine->cost.name, zero, ranks, stage.memory_gb);
    if (!run->settled.capacity) run->settled.capacity = capacity;
    if (!run->model.k->no_results) return;
    if (!run->config.memory)
        run->cluster->available = (HostMemory){(size_t)1 << 46, "of a machine that does not say how much"};
    double bytes = machine_bytes(machine, run->model.world->rank, 1);
    if (bytes < (double)run->cluster->available.bytes)
        run->cluster->available = (HostMemory){(size_t)bytes, "of this rank, as the machine says"};
    if (machine->gpu_mib > 0 && !run->config.memory)
        run->cluster->available = (HostMemory){(size_t)(machine->gpu_mib * (1 << 20)), "gpu_mib of the machine"};
}

// Gives this rank the time of its stage, in a machine that knows whole pipelines.
static void take_schemes(Run* run) {
    for (int s = 0; s < run_layouts(run); s++) {
        Run* as = run_under(run, s);
        const Shape* part = &as->model.shape;
        const Scheme* scheme = machine_scheme(&cluster.machine, tp_size(&as->model), as->model.stages);
        if (!scheme) die("--strategies: %s has no times of %s", cluster.machine.cost.name, strategies_name(run, s));
        double linears = shape_matmul_weights(part) - (double)part->V * part->C,
               head = part->no_head ? 0 : (double)part->vocab_rows * part->C;
        VirtualMachine* v = &cluster.under[cluster.n++];
        *v = (VirtualMachine){.layers = part->L, .heads = part->heads, .transfer_ms = virtual_ms};
        v->token_ms = scheme->linear, v->pair_ms = scheme->quadratic, v->micro_batch_ms = scheme->fixed;
        v->matmul_weights = linears + head;
        if (!as->settled.capacity && cluster.machine.gpu_mib > 0)
            as->settled.capacity =
                MAX(1, machine_scheme_tokens(&cluster.machine, scheme, run->model.world->size, 1, 1));
    }
    run_turn_virtual(0);
}

void run_turn_virtual(int strategy) {
    if (cluster.n > 0) virtual_use(&cluster.under[strategy]);
}

void run_open_virtual(Run* run) {
    const Model* m = &run->model;
    const Shape* s = &m->whole;
    const Cost* cost = &cluster.machine.cost;
    if (!m->k->virtual_time || !run->training) return;
    run_read_machine(run, &cluster.machine);
    cluster.links = transfer_times(&cluster.machine, s, (int)dtype_bytes(m->dt), virtual_node_size());
    cluster.fixed_has_weights = run->strategies || m->ranks->zero.stage == 1 ? cost->step > 0 : cost->round > 0;
    VirtualMachine machine = {.layers = s->L, .heads = s->NH, .transfer_ms = virtual_ms};
    double speed = machine_speed(&cluster.machine, m->world->rank, 1);
    machine.token_ms = cost->per_token / speed, machine.pair_ms = cost->quadratic / speed;
    machine.step_ms = cost->step;
    machine.micro_batch_ms = cost_micro_batch(cost) * m->shape.L / s->L;
    machine.matmul_weights = shape_padded_weights(s);
    if (run->strategies && cluster.machine.n_schemes > 0) take_schemes(run);
    else virtual_use(&machine);
    take_limits(run);
}
