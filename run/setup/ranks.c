// ranks.c - processes of a job find each other, divide themselves, and prove that they mean the same run.
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/host.h"
#include "data/docs_files.h"
#include "kernels/table/open.h"
#include "plan/base/terminal.h"
#include "plan/layout/layout_ranks.h"
#include "run/files/saving.h"
#include "run/setup/setup.h"
#include "run/model/tensor_parallel.h"
#include "run/slow/balance.h"

static void be_silent(const Run* run) {
    if (run->cluster->identity.rank == 0) return;
    int nowhere = open("/dev/null", O_WRONLY);  // takes the descriptor: lines of stdout may be wrapped on their way
    if (nowhere < 0 || dup2(nowhere, STDOUT_FILENO) < 0) die("cannot open /dev/null");
    close(nowhere);
}

void run_find_ranks(Run* run) {
    enum { LEAST_STACK_KIB = 512 };  // of all threads; the largest frame takes 110
    char err[ERR_BYTES];
    static RunParts parts;
    run_attach(run, &parts);
    if (host_stack() >> 10 < LEAST_STACK_KIB)
        die("expected a stack of %d KiB, found %zu; raise its limit (ulimit -s 8192)", LEAST_STACK_KIB,
            host_stack() >> 10);
    if (rank_identity(&run->cluster->identity, err)) die("%s", err);
    if (run->cluster->identity.size == 1) return;
    die_as_rank(run->cluster->identity.rank);
    be_silent(run);
}

void run_ask_for_ranks(Run* run) {
    enum { MOST_FORKED = 4096 };
    const Config* c = &run->config;
    RankIdentity* id = &run->cluster->identity;
    if (c->ranks == 1 || run->cluster->searches) return;
    if (id->size > 1)
        die("--ranks %d: this is rank %d of %d of %s already; leave out one of them", c->ranks, id->rank, id->size,
            id->source);
    if (!run->model.k->on_host && !run->model.k->virtual_time)
        die("--ranks %d: ranks without a launcher are for --device cpu and virtual; on GPUs start them with mpirun -n "
            "%d or scripts/one_node.sh",
            c->ranks, c->ranks);
    if (c->ranks > MOST_FORKED)
        die("--ranks %d: expected at most %d ranks without a launcher, which share this machine", c->ranks,
            MOST_FORKED);
    id->size = c->ranks;
    run->cluster->forks = 1;
}

// Forks the ranks. Open files and claims stay rank 0's; all else has been read for all.
void run_fork_ranks(Run* run) {
    char err[ERR_BYTES];
    Model* m = &run->model;
    if (!run->cluster->forks) return;
    run->cluster->forks = 0;
    m->world->table->close(m->world);
    int rank = comm_fork(run->cluster->identity.size, err);
    if (rank < 0) die("--ranks: %s", err);
    run->cluster->identity.rank = run->cluster->identity.local_rank = rank;
    be_silent(run);
    if (rank > 0) run_leave_origin(run);
    run_open_ranks(run);
    plan_once_open(run);
}

// ---- one run

static void add_option(void* context, const char* name, const char* value) {
    uint64_t* hash = (uint64_t*)context;
    *hash = hash_bytes(value, strlen(value), hash_bytes(name, strlen(name), *hash));
}

// Hashes documents: their bytes, and the tokens that these are; docs may be NULL.
static uint64_t hash_documents(const Docs* docs, uint64_t seed) {
    return docs ? hash64(hash64(seed ^ docs_content(docs)) ^ docs_fingerprint(docs)) : seed;
}

// Ends the program if options, documents or the model are not the same on all ranks.
static void check_same(Run* run) {
    enum { KINDS = 3 };
    static const char* const kinds[KINDS] = {"other options or another --out", "other documents in --data or --val",
                                             "another model, or other hardware (see --dtype)"};
    Comm* c = run->model.world;
    const Books* books = run->books;
    int dims[] = {(int)run->model.dt, run->training};
    uint64_t mine[KINDS] = {0, hash_documents(run->data.docs, hash_documents(run->data.val_docs, 0)),
                            hash_bytes(dims, sizeof dims, shape_hash(&run->model.whole))};
    Config config = run_settled_config(run);
    config.capacity = run->config.capacity, config.rank_capacity = run->config.rank_capacity;  // settled later
    config_visit(&config, add_option, &mine[0]);
    add_option(&mine[0], books->out, books->start_from);
    uint64_t* all = (uint64_t*)run_ask_all(run, c, mine, sizeof mine);
    for (int i = 0; i < c->size * KINDS; i++)
        if (all[i] != all[i % KINDS])
            die("rank %d was started with %s than rank 0; start all ranks with one command", i / KINDS,
                kinds[i % KINDS]);
    free(all);
}

static void say_stages(const Model* m) {
    const Layout* layout = &m->ranks->layout;
    for (int s = 0; s < m->stages; s++) {
        int first = layout_first(layout, s), end = layout_first(layout, s + 1);
        const LayerLayout* row = &layout->layer[first];
        printf("        stage %d: layers %d to %d, ", s, first, end - 1);
        if (layout_run(layout, first) < end - first) printf("unlike each other\n");
        else printf("zero %d, recompute %s\n", row->zero, recompute_names[row->recompute]);
    }
}

static void say_where(const Run* run) {
    const Model* m = &run->model;
    const Comm* c = m->world;
    int nodes = c->node[c->size - 1] + 1, first = 1, planned = run->clock->limits.node_size * tp_size(m);
    printf("ranks   %d on %d node%s (%s)\n", c->size, nodes, nodes > 1 ? "s" : "", c->name);
    if (m->stages > 1) say_stages(m);
    if (m->tp) {
        const int *head = &m->ranks->split.head[tp_size(m) - 1], *hidden = &m->ranks->split.hidden[tp_size(m) - 1];
        printf(
            "        tensor parallelism: groups of %d ranks; rank 0 of a group has %d heads and %d hidden units, the "
            "last one %d and %d%s\n",
            tp_size(m), m->ranks->split.head[1], m->ranks->split.hidden[1], head[1] - head[0], hidden[1] - hidden[0],
            split_shares_kv(&m->whole, &m->ranks->split) ? "; some share key/value heads" : "");
    }
    while (first < c->size && c->node[first] == c->node[0]) first++;
    if (planned < MIN(first, m->job->size / m->stages))
        printf("        plans take every %d ranks for a node: nodes begin inside stages or groups, or are unlike\n",
               planned);
    if (run->cluster->oversubscribed)
        printf("        %d ranks of %d threads share %d cores: expect no speed from that%s\n", c->local_size,
               run->config.threads, host_cores("", getppid()),
               getenv("OMPI_MCA_mpi_yield_when_idle") ? "" : "; if steps are slow: OMPI_MCA_mpi_yield_when_idle=1");
}

// Settles threads: the launcher's cores are those of this machine or container; a rank has its part of them, or the
// cores that the launcher has bound it to.
static void settle_threads(Run* run) {
    Config* c = &run->config;
    int local = MAX(run->model.world->local_size, 1);
    if (c->threads == 0) c->threads = MAX(1, MIN(host_cores("", 0), host_cores("", getppid()) / local));
    run->cluster->oversubscribed = run->model.k->on_host && local * c->threads > host_cores("", getppid());
}

// MPI ends the program in words of its own if the system gives it no thread or no descriptor. So the run takes as many
// first, with its own threads, on all ranks at once, and gives them back.
static void expect_threads(const Run* run, int wanted, int is_collective) {
    HostThreads held;
    int is_alone = run->cluster->identity.size == 1;
    host_take_threads(&held, wanted);
    int found = is_collective ? (int)-run_most(run, run->model.world, -held.n) : held.n;
    host_give_back_threads(&held);
    if (found < wanted)
        die("expected room for %d threads%s, found room for %d; try a smaller --threads%s, or raise the limit of "
            "processes (ulimit -u, pids.max of a container) or of memory (ulimit -v)",
            wanted, is_alone ? "" : " on every rank", found, is_alone ? "" : " or fewer ranks");
}

static void check_room_for_mpi(const Run* run) {
    enum { THREADS = 4, DESCRIPTORS = 32 };  // more than Open MPI takes when it starts
    expect_threads(run, THREADS, 0);
    int descriptors = host_descriptors(DESCRIPTORS);
    if (descriptors < DESCRIPTORS)
        die("expected %d free descriptors for communication, found %d; raise the limit of open files (ulimit -n)",
            DESCRIPTORS, descriptors);
}

// Ranks of a job are contiguous in the world.
int run_node_of(const Run* run, const Comm* job, int rank) {
    int size = run->config.node_size;
    return size ? (run->model.world->rank - job->rank + rank) / size : job->node[rank];
}

typedef struct JobOf {
    const Run* run;
    const Comm* job;
} JobOf;

static int node_of(const void* context, int rank) {
    const JobOf* x = (const JobOf*)context;
    return run_node_of(x->run, x->job, rank);
}

int run_node_size(const Run* run, const Comm* job, int tp, int stages) {
    JobOf x = {run, job};
    return layout_node_size(job->size, tp, stages, node_of, &x);
}

// Splits the ranks of a job. Contiguous ranks make a stage of the pipeline, and in it contiguous ranks a
// tensor-parallel group; those with the same number in their groups are data ranks.
static void split_ranks(Run* run) {
    Model* m = &run->model;
    Comm* job = m->job;
    int R = run->settled.tp, P = run->settled.pp, t = job->rank % R;
    job->overlap = !strcmp(run->config.overlap, "yes");
    m->comm = job;
    if (R > m->whole.NH)
        die("--tp %d: expected at most as many ranks as heads, found %d heads; try --tp %d", R, m->whole.NH,
            m->whole.NH);
    if (R > m->whole.U)
        die("--tp %d: expected at most as many ranks as hidden units, found %d; try --tp %d", R, m->whole.U,
            m->whole.U);
    int stage = job->rank / (job->size / P);
    if (R * P > 1) m->comm = model_split(m, stage * R + t, COMM_OTHER, job->overlap);
    // Ranks that share cores would be slower with overlap: run/README.md.
    if (R > 1) m->tp = model_split(m, job->rank / R, COMM_TENSOR, job->overlap && !m->k->on_host);
    run_divide_model(run, stage);
    if (R > 1) m->ranks->kv = layers_join_sharers(m, &m->ranks->split, t);
}

void run_open_ranks(Run* run) {
    char err[ERR_BYTES];
    Model* m = &run->model;
    RankIdentity alone = {.size = 1, .source = "alone"};
    const RankIdentity* id = run->cluster->forks ? &alone : &run->cluster->identity;
    if (id->size > 1 && !comm_is_forked()) check_room_for_mpi(run);
    if (comm_open(&m->world, m->k, id, run->config.timeout, err)) die("%s", err);
    if (m->world->size > 1) settle_threads(run);
}

void run_set_limits(Run* run, int tp, int data_ranks) {
    const Config* c = &run->config;
    run->clock->limits.ranks = data_ranks, run->clock->limits.capacities = NULL;
    run->clock->limits.kv_heads = MAX(1, run->model.whole.NKV / tp);
    run->clock->limits.max_ring_docs = MIN(MAX(c->batch_tokens, c->context), 4096);
}

void run_divide_model(Run* run, int stage) {
    Model* m = &run->model;
    const Layout* layout = &m->ranks->layout;
    m->ranks->split = split_even(&m->whole, layout->tp);
    Shape part = split_shape(&m->whole, &m->ranks->split, tp_rank(m));
    m->stages = layout->stages, m->stage = stage;
    m->shape = shape_stage(&part, layout_first(layout, stage), layout_first(layout, stage + 1));
    m->shape.shards = m->comm->size;
    layers_plan(m);
    m->ranks->zero.stage = zero_most(m);
    run_set_limits(run, layout->tp, m->comm->size);
}

void run_join_job(Run* run) {
    Model* m = &run->model;
    split_ranks(run);
    pipeline_join(m);
    m->ranks->zero.grad_dtype = run_gradients_travel_as(run);
    layers_join(m);
    model_set_many(m);
    run->clock->limits.node_size = run_node_size(run, m->job, run->settled.tp, run->settled.pp);
    run->clock->limits.quadratic = row_quadratic(&m->whole);
    run->clock->groups = (GroupCost*)calloc((size_t)m->comm->size + 1, sizeof *run->clock->groups);
    run->clock->capacities = (int*)calloc((size_t)m->comm->size, sizeof *run->clock->capacities);
    int n = m->stages * m->comm->size;
    double* speeds = run->clock->stage_speeds = (double*)calloc((size_t)(n + m->comm->size), sizeof *speeds);
    run->clock->paces = speeds ? speeds + n : NULL;
    if (!run->clock->groups || !run->clock->capacities || !speeds) die("no memory for %d ranks", m->comm->size);
    for (int i = 0; i < n; i++) speeds[i] = 1;
}

void run_leave_job(Run* run) {
    Model* m = &run->model;
    zero_close(m);
    free(m->act_places);
    model_close_comms(m);
    arena_free(&run->clock->settled_in);
    free(run->clock->groups);
    free(run->clock->capacities);
    free(run->clock->stage_speeds);
}

void run_compare_ranks(Run* run) {
    int ranks = run->model.world->size;
    run->cluster->agreed = (Agreement*)calloc((size_t)ranks, sizeof *run->cluster->agreed);
    if (!run->cluster->agreed) die("no memory for %d ranks", ranks);
    if (ranks > 1) {
        check_same(run);
        if (!run_is_brief(run)) say_where(run);
    }
    // The threads of the kernels, one that plans, and one that communicates.
    int threads = run->config.threads ? run->config.threads : host_cores("", 0);
    expect_threads(run, (run->model.k->on_host ? threads - 1 : 0) + 1 + (ranks > 1), ranks > 1);
}

// Returns the cores of this rank: at most one a thread, those that it may use, and its part of the node's.
static double own_cores(const Run* run) {
    const Comm* c = run->model.world;
    double mine = host_cores("", 0);
    if (run->config.threads) mine = fmin(mine, run->config.threads);
    return c->size == 1 ? mine : fmin(mine, (double)host_cores("", getppid()) / MAX(c->local_size, 1));
}

void run_measure_limit(Run* run) {
    char err[ERR_BYTES];
    Cluster* x = run->cluster;
    const Model* m = &run->model;
    if (x->peak > 0) return;  // the search for a layout has asked already
    x->peak = NAN;
    if (m->k->virtual_time) return;
    double mine[2] = {0, m->k->on_host ? own_cores(run) : 0}, sums[2] = {0};  // peaks, cores
    mine[0] = kernels_peak(m->k, m->dt, run->config.threads, mine[1], err);
    if (mine[0] < 0) die("%s", err);
    double* all = (double*)run_ask_all(run, m->world, mine, sizeof mine);
    for (int i = 0; i < 2 * m->world->size; i++) sums[i % 2] += all[i];
    free(all);
    x->peak = sums[0], x->cores += sums[1];
    x->share = (PeakShare){x->peak, mine[0], mine[1], 0};
}
