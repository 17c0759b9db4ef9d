// start.c - from the command line to open documents, a device, a model's shape and the other ranks: the processes of a
// job find each other, prove that they mean the same run, and part.
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/gpt2_files.h"
#include "run/run.h"

void run_threads_without_spinning(char** argv) {
    if (getenv("OMP_WAIT_POLICY")) return;
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv("/proc/self/exe", argv);  // returns only where there is no /proc: then threads spin
}

void run_path(char* path, const char* dir, const char* name) {
    if (snprintf(path, CHECKPOINT_PATH, "%s/%s", dir, name) >= CHECKPOINT_PATH) die("%s/%s: path too long", dir, name);
}

// The run with the highest number below runs/: -1 when there is none.
static int64_t newest_run(void) {
    char path[CHECKPOINT_PATH];
    struct stat st;
    int64_t n = 0;
    for (;; n++) {
        snprintf(path, sizeof path, "runs/%" PRId64, n);
        if (stat(path, &st)) return n - 1;
    }
}

// Finds what --resume, --sample and --init begin with and takes over its options and shape.
static void find_start(Run* run, Shape* shape) {
    char err[ERR_BYTES];
    Config* c = &run->config;
    int64_t step = 0;
    int first = run->identity.rank == 0;  // one rank reads all files for their hashes; if they are bad it ends the job
    const char* why = c->resume ? "--resume" : "--sample";
    if (c->init && !c->resume) {
        snprintf(run->start_from, sizeof run->start_from, "%s", c->init);
        if (first && !checkpoint_is_foreign(c->init) && checkpoint_verify(c->init, err, sizeof err))
            die("--init: %s", err);
    } else {
        if (!c->out && newest_run() < 0) die("%s: expected a run in ./runs, found none; try --out DIR", why);
        int found = checkpoint_latest(run->out, run->start_from, sizeof run->start_from, &step, err, sizeof err);
        if (found < 0) die("%s: %s", why, err);
        if (!found)
            die("%s: no complete checkpoint in %s; try another --out, or start anew without %s", why, run->out, why);
        if (first && checkpoint_verify(run->start_from, err, sizeof err)) die("%s: %s", why, err);
    }
    size_t n = 0;
    char* text = checkpoint_read_file(run->start_from, "config.json", &n, err, sizeof err);
    if (!text || gpt2_config_parse(shape, text, n, err, sizeof err)) die("%s: %s", run->start_from, err);
    free(text);
    if (!c->resume && !c->sample) return;
    text = checkpoint_read_file(run->start_from, "state.json", &n, err, sizeof err);
    if (!text && c->sample) return;  // a model from elsewhere
    if (!text || run_state_parse(&run->state, c, text, n, err, sizeof err)) die("%s: %s", run->start_from, err);
    free(text);
}

// An option that was given must agree with the checkpoint's shape; one that was not takes its value.
static void settle_option(int* option, const char* name, int found, const char* where) {
    if (*option && *option != found)
        die("%s: expected %s %d, found %d; leave %s out", where, name, *option, found, name);
    *option = found;
}

int run_choice(const char* value, const char* choices) {
    size_t n = strlen(value);
    for (int i = 0;; i++) {
        size_t length = strcspn(choices, "|");
        if (!choices[length] || (length == n && !strncmp(choices, value, n))) return i;
        choices += length + 1;
    }
}

void run_read_options(Run* run, int argc, char** argv) {
    char err[ERR_BYTES];
    Config* c = &run->config;
    Shape shape;
    if (config_parse(c, argc, argv, err, sizeof err)) die("%s", err);
    if (c->help) config_help(stdout, c->help), exit(0);
    run->training = !c->sample;
    int64_t newest = newest_run();
    if (c->out) snprintf(run->out, sizeof run->out, "%s", c->out);
    else snprintf(run->out, sizeof run->out, "runs/%" PRId64, run->training && !c->resume ? newest + 1 : newest);
    run->state.val_loss = NAN;
    if (c->resume || c->init || c->sample) {
        find_start(run, &shape);
        if (c->sample && !config_was_given(c, "--tp")) c->tp = 1;  // however many ranks it was trained on
        settle_option(&c->layers, "--layers", shape.L, run->start_from);
        settle_option(&c->width, "--width", shape.C, run->start_from);
        settle_option(&c->heads, "--heads", shape.NH, run->start_from);
        settle_option(&c->vocab, "--vocab", shape.V, run->start_from);
        settle_option(&c->context, "--context", shape.context, run->start_from);
    } else {
        char found[CHECKPOINT_PATH];
        int64_t step = 0;
        if (checkpoint_latest(run->out, found, sizeof found, &step, err, sizeof err) == 1)
            die("%s holds a run already (step %" PRId64 "); try --resume, or another --out", run->out, step);
    }
}

// Without --data: the C headers of this machine, or the sources of this project where there are none.
static void default_data(Config* c) {
    struct stat st;
    if (c->data.n > 0) return;
    c->data.paths[c->data.n++] = stat("/usr/include/stdio.h", &st) ? "." : "/usr/include";
}

// The one that is named, or the one that the checkpoint carries, or bytes.
static void open_tokenizer(Run* run) {
    char err[ERR_BYTES], path[CHECKPOINT_PATH] = "";
    struct stat st;
    const char* named = run->config.tokenizer;
    if (run->start_from[0]) {
        run_path(path, run->start_from, "tokenizer.bin");
        if (stat(path, &st)) run_path(path, run->start_from, "tokenizer.json");
        if (stat(path, &st)) path[0] = 0;
    }
    run->data.guessed_bytes = !named && !path[0];
    if (tokenizer_open(&run->data.tokenizer, named ? named : path, err, sizeof err)) die("%s", err);
}

void run_open_data(Run* run) {
    char err[ERR_BYTES];
    Config* c = &run->config;
    Data* d = &run->data;
    open_tokenizer(run);
    if (!run->training) return;
    default_data(c);
    if (docs_open(&d->docs, c->data.paths, c->data.n, d->tokenizer, err, sizeof err)) die("--data: %s", err);
    if (c->val.n && docs_open(&d->val_docs, c->val.paths, c->val.n, d->tokenizer, err, sizeof err))
        die("--val: %s", err);
    if (c->resume && run->state.corpus != docs_fingerprint(d->docs))
        die("--resume: the documents differ from those of the saved run (fingerprint %016" PRIx64 ", found %016" PRIx64
            "); restore them, or start a new run with --init %s",
            run->state.corpus, docs_fingerprint(d->docs), run->start_from);
    run->state.corpus = docs_fingerprint(d->docs);
}

static void check_token_ids(const Docs* docs, const char* option, int V) {
    if (docs_max_token(docs) >= V)
        die("%s: expected token ids below the model's vocabulary of %d, found %d; try --vocab %d", option, V,
            docs_max_token(docs), docs_max_token(docs) + 1);
}

// Device, element type, model dimensions; opens the sampler, which needs the context.
void run_settle_model(Run* run) {
    char err[ERR_BYTES];
    Config* c = &run->config;
    Model* m = &run->model;
    Data* d = &run->data;
    int vocab = tokenizer_vocab(d->tokenizer);
    // Weights from elsewhere belong to a vocabulary: text must not be read as bytes for want of a tokenizer. Token
    // shards need none.
    int is_text = c->sample || (d->docs && docs_max_token(d->docs) < vocab);
    if (run->start_from[0] && is_text && (d->guessed_bytes ? vocab != c->vocab : vocab > c->vocab))
        die("%s: expected a tokenizer of %d tokens for this model, found %s of %d; try --tokenizer FILE",
            run->start_from, c->vocab, d->guessed_bytes ? "none, and bytes have a vocabulary" : "one", vocab);
    c->several_ranks = run->identity.size > 1;
    if (config_complete(c, vocab, err, sizeof err)) die("%s", err);
    m->k = kernels_find(c->device, c->cpu_isa, err, sizeof err);
    if (!m->k) die("%s", err);
    if (!strcmp(c->dtype, "auto")) c->dtype = m->k->prefers_bf16 ? "bf16" : "fp32";
    m->dt = !strcmp(c->dtype, "bf16") ? DT_BF16 : DT_F32;
    m->recompute = (Recompute)run_choice(c->recompute, "none|gelu|block");
    m->shape = m->whole = shape_make(c->layers, c->width, c->heads, c->vocab, c->context);
    if (!run->training) return;
    check_token_ids(d->docs, "--data", m->shape.V);
    if (d->val_docs) check_token_ids(d->val_docs, "--val", m->shape.V);
    double held_out = d->val_docs ? 0 : 0.05;
    if (sampler_open(&d->train, d->docs, c->context, held_out, (uint64_t)c->seed, err, sizeof err))
        die("--data: %s", err);
    d->val = d->train;
    if (d->val_docs && sampler_open(&d->val, d->val_docs, c->context, 1, 0, err, sizeof err)) die("--val: %s", err);
}

// ---- ranks

void run_find_ranks(Run* run) {
    char err[ERR_BYTES];
    if (rank_identity(&run->identity, err, sizeof err)) die("%s", err);
    if (run->identity.size == 1) return;
    die_as_rank(run->identity.rank);
    if (run->identity.rank > 0 && !freopen("/dev/null", "w", stdout)) die("cannot open /dev/null");
}

void run_lost(const Run* run, const char* words) {
    const char* saved = run->training && run->config.save_every ? run->out : NULL;
    die("step %" PRId64 ": %s; %s%s", run->state.step + 1, words,
        saved ? "continue from the last checkpoint with --resume --out " : "start it again", saved ? saved : "");
}

void* run_ask_all(const Run* run, Comm* c, const void* mine, size_t bytes) {
    char err[ERR_BYTES];
    void* all = calloc((size_t)c->size, bytes);
    if (!all) die("no memory for what %d ranks say", c->size);
    if (c->table->all_gather_host(c, all, mine, bytes, err, sizeof err)) run_lost(run, err);
    return all;
}

double run_most(const Run* run, Comm* c, double mine) {
    double most = mine, *all = (double*)run_ask_all(run, c, &mine, sizeof mine);
    for (int r = 0; r < c->size; r++) most = MAX(most, all[r]);
    free(all);
    return most;
}

// ---- one run

static void add_option(void* context, const char* name, const char* value) {
    uint64_t* hash = (uint64_t*)context;
    *hash = hash_bytes(value, strlen(value), hash_bytes(name, strlen(name), *hash));
}

// Hashes of all that must be the same on all ranks.
typedef struct Fingerprints {
    uint64_t options, data, shape;
} Fingerprints;

static Fingerprints fingerprints_of(const Run* run) {
    Fingerprints m = {0, run->training ? docs_fingerprint(run->data.docs) : 0, 0};
    const Shape* s = &run->model.shape;
    int dims[] = {s->L, s->C, s->NH, s->V, s->context, (int)run->model.dt, run->training};
    config_visit(&run->config, add_option, &m.options);
    m.options = hash_bytes(run->start_from, strlen(run->start_from), hash_bytes(run->out, strlen(run->out), m.options));
    m.shape = hash_bytes(dims, sizeof dims, 0);
    return m;
}

static void check_same(Run* run) {
    Comm* c = run->model.world;
    Fingerprints mine = fingerprints_of(run), *all = (Fingerprints*)run_ask_all(run, c, &mine, sizeof mine);
    for (int r = 1; r < c->size; r++) {
        const char* what = all[r].options != all[0].options ? "other options or another --out"
                           : all[r].data != all[0].data     ? "other documents in --data"
                           : all[r].shape != all[0].shape   ? "another model, or other hardware (see --dtype)"
                                                            : NULL;
        if (what) die("rank %d was started with %s than rank 0; start all ranks with one command", r, what);
    }
    free(all);
}

static int cores_of(pid_t process) {
    cpu_set_t set;
    return sched_getaffinity(process, sizeof set, &set) ? (int)sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
}

static void say_where(const Run* run) {
    const Model* m = &run->model;
    const Comm* c = m->world;
    int nodes = c->node[c->size - 1] + 1;
    int cores = cores_of(getppid());
    printf("ranks   %d on %d node%s (%s)\n", c->size, nodes, nodes > 1 ? "s" : "", c->table->name);
    if (m->tp) {
        int t = tp_size(m) - 1;
        printf(
            "        tensor parallelism: %d group%s of %d ranks; rank 0 of a group has %d heads and %d hidden units, "
            "the last one %d and %d\n",
            m->comm->size, m->comm->size > 1 ? "s" : "", tp_size(m), m->split.head[1], m->split.hidden[1],
            m->split.head[t + 1] - m->split.head[t], m->split.hidden[t + 1] - m->split.hidden[t]);
    }
    if (run->model.zero.stage > 1)
        printf(
            "zero    stage %d: ranks go through the micro-batches of a step in rounds, with empty ones where they have "
            "none\n",
            run->model.zero.stage);
    if (run->oversubscribed)
        printf("        %d ranks of %d threads share %d cores: expect no speed from that%s\n", c->local_size,
               run->config.threads, cores,
               getenv("OMPI_MCA_mpi_yield_when_idle") ? "" : "; if steps are slow: OMPI_MCA_mpi_yield_when_idle=1");
}

// The cores of the launcher are those of this machine or container; a rank has its part of them, or what the launcher
// has bound it to.
static void settle_threads(Run* run) {
    Config* c = &run->config;
    int local = MAX(run->model.world->local_size, 1);
    if (c->threads == 0) c->threads = MAX(1, MIN(cores_of(0), cores_of(getppid()) / local));
    run->oversubscribed = run->model.k->on_host && local * c->threads > cores_of(getppid());
}

// For plans, which must be the same on all ranks even where nodes have unlike numbers of them.
static int ranks_of_first_node(const Comm* c) {
    int n = 0;
    while (n < c->size && c->node[n] == c->node[0]) n++;
    return MAX(n, 1);
}

// Contiguous ranks make a tensor-parallel group; those with the same number in theirs are data ranks.
static void split_ranks(Run* run) {
    char err[ERR_BYTES];
    Model* m = &run->model;
    Comm* world = m->world;
    int R = run->config.tp, t = world->rank % R;
    world->overlap = !strcmp(run->config.overlap, "yes");
    m->comm = world;
    if (world->size % R)
        die("--tp %d does not divide the %d ranks of this job; try --tp 1 or mpirun -n %d", R, world->size,
            ROUND_UP(world->size, R));
    if (R == 1) return;
    if (R > m->whole.NH)
        die("--tp %d: expected at most as many ranks as heads, found %d heads; try --tp %d", R, m->whole.NH,
            m->whole.NH);
    if (world->table->split(world, &m->tp, world->rank / R, world->rank, err, sizeof err) ||
        world->table->split(world, &m->comm, t, world->rank, err, sizeof err))
        die("--tp %d: %s", R, err);
    m->comm->overlap = world->overlap;
    m->tp->overlap = 0;
    m->tp->purpose = COMM_TENSOR;
    m->split = split_even(&m->whole, R);
    m->shape = split_shape(&m->whole, &m->split, t);
}

void run_join_ranks(Run* run) {
    char err[ERR_BYTES];
    Config* c = &run->config;
    Model* m = &run->model;
    if (comm_open(&m->world, m->k, &run->identity, c->timeout, err, sizeof err)) die("%s", err);
    split_ranks(run);
    m->zero.stage = m->comm->size > 1 ? c->zero : 1;
    m->zero.grad_dtype = !strcmp(c->grad_dtype, "bf16") ? DT_BF16 : DT_F32;
    m->shape.shards = m->comm->size;
    m->whole.shards = m->world->size;
    run->limits.ranks = m->comm->size;
    run->limits.node_size = c->node_size ? MAX(1, c->node_size / c->tp) : ranks_of_first_node(m->comm);
    run->limits.NH = m->whole.NH / c->tp;
    run->limits.max_ring_docs = MIN(MAX(c->batch_tokens, c->context), 4096);
    run->limits.quadratic = 1.0 / (12 * m->shape.C);
    run->agreed = (Agreement*)calloc((size_t)m->world->size, sizeof *run->agreed);
    run->groups = (GroupCost*)calloc((size_t)m->comm->size + 1, sizeof *run->groups);
    if (!run->agreed || !run->groups) die("no memory for %d ranks", m->world->size);
    if (m->world->size == 1) return;
    settle_threads(run);
    check_same(run);
    say_where(run);
}

void run_measure_limit(Run* run) {
    char err[ERR_BYTES];
    Comm* c = run->model.world;
    double mine = kernels_matmul_limit(run->model.k, run->model.dt, run->config.threads, err, sizeof err);
    if (mine < 0) die("%s", err);
    double* all = (double*)run_ask_all(run, c, &mine, sizeof mine);
    run->matmul_limit = 0;
    for (int r = 0; r < c->size; r++) run->matmul_limit += all[r];
    free(all);
}

// ---- the end

void run_close(Run* run) {
    Model* m = &run->model;
    ahead_close(run);
    if (run->data.val != run->data.train) sampler_close(run->data.val);
    sampler_close(run->data.train);
    docs_close(run->data.val_docs);
    docs_close(run->data.docs);
    tokenizer_close(run->data.tokenizer);
    run->model.k->close();
    work_close(m->work);
    zero_close(&m->zero);
    balance_close(run->balance);
    if (m->tp) m->tp->table->close(m->tp);
    if (m->comm != m->world) m->comm->table->close(m->comm);
    m->world->table->close(m->world);
    arena_free(&run->batch.arena);
    arena_free(&run->ahead.arena);
    free(m->timer);  // Comms tell it until they are closed
    free(run->agreed);
    free(run->groups);
    config_free(&run->config);
}
