// probe.c - --probe: this machine's cost model, measured in some seconds.
//
//   rows     forward and backward of rows on every rank at the same time, without communication. Rows of equal tokens
//            but unlike documents tell quadratic work from linear work, short ones the fixed cost of a micro-batch.
//            Others are held out: their error is the model's.
//   links    an all-to-all among the ranks of each node; between nodes every rank sends to the one of the same
//            number on the next node, as a ring across them does. If data ranks send no such messages, each stage of a
//            pipeline sends to the next one. Sums: a reduce-scatter and an all-gather, in each node and of all.
//   layouts  a row whose blocks are computed again, against one whose activations are kept; and a row beside an
//            exchange that takes as long by itself: how much both slow each other down (for plan/search/layout_cost.h)
//   step     gradients reduced, their norm, weights gathered; AdamW on memory that activations lie in later. Gradients
//            are zero and no weight changes.
//
// In a pipeline each stage runs rows through its own layers, all stages at the same time, without messages between
// them. The file then holds the times of a stage of mean work, as plans for pipelines count (run/setup/cost.c).
//
// Under --strategies each strategy's kinds of pipelines are measured so, the jobs of a strategy at the same time, as in
// a step. Each kind leaves the file that a run with such pipelines alone finds. Its step is that run's: the update as
// timed, and sums in the times of the links that were measured. The times of moves are played from these.
//
// Ranks that share cores take a row's processor time, times the ranks that share a core: other programs' time is not in
// it. (Tensor-parallel groups do not, since their ranks wait for each other in a row.) Everything is done several times
// and the least time counts: of rows the mean of all ranks, of joint work the slowest rank's.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "run/setup/setup.h"
#include "run/step/probe.h"

typedef struct Probe {
    Run* run;
    Cost* cost;                  // the result; at first the estimate
    int most;                    // tokens of a row
    int* lengths;                // (most) of its documents
    Transfer *sends, *receives;  // (ranks)
    char* memory;                // of activations, which nothing else uses while messages are timed
    size_t bytes;
} Probe;

static Probe open_probe(Run* run) {
    const Model* m = &run->model;
    int most = MIN(run->clock->limits.capacity, run->config.batch_tokens);
    int ranks = MAX(run->clock->limits.ranks, m->stages);
    Probe p = {.run = run, .cost = &run->clock->probed.cost, .most = most, .memory = m->acts, .bytes = m->act_bytes};
    p.lengths = (int*)malloc((size_t)most * sizeof(int));
    p.sends = (Transfer*)calloc(2 * (size_t)ranks, sizeof *p.sends), p.receives = p.sends + ranks;
    if (!p.lengths || !p.sends) die("no memory for %d lengths", most);
    return p;
}

// Returns the greatest of all ranks of the job, those of a tensor-parallel group too: so they decide alike how often
// they repeat their joint work.
static double slowest(const Probe* p, double mine) { return run_most(p->run, p->run->model.job, mine); }

static double mean(const Probe* p, double mine) {
    Comm* c = p->run->model.job;
    double sum = 0, *all = (double*)run_ask_all(p->run, c, &mine, sizeof mine);
    for (int r = 0; r < c->size; r++) sum += all[r];
    free(all);
    return sum / c->size;
}

// Waits until all ranks are there, and returns the time.
static double begin(const Probe* p) {
    char err[ERR_BYTES];
    Comm* c = p->run->model.job;
    if (c->table->barrier(c, err)) run_lost(p->run, err);
    return now_seconds();
}

// Waits until everything that was begun in c is done, and returns the slowest rank's ms.
static double end(const Probe* p, Comm* c, double began) {
    char err[ERR_BYTES];
    Model* m = &p->run->model;
    if (c->table->wait(c, m->s, err)) run_lost(p->run, err);
    m->k->synchronize(m->s);
    return slowest(p, 1e3 * (now_seconds() - began));
}

// ---- least squares

// Solves the normal equations a c = b by coordinate descent, with constants of at least 0: a convex problem, so it ends
// at the least of all. A token's constant comes first and takes the time that the rows do not tell apart.
void probe_fit(double c[3], const ProbeTime* rows, int n) {
    enum { SWEEPS = 100000 };
    static const int order[] = {1, 0, 2};
    double a[3][3] = {{0}}, b[3] = {0};
    for (int r = 0; r < n; r++) {
        const double x[] = {rows[r].s2 / rows[r].ms, rows[r].tokens / rows[r].ms, 1 / rows[r].ms};
        for (int k = 0; k < 3; k++) {
            b[k] += x[k];
            for (int j = 0; j < 3; j++) a[k][j] += x[k] * x[j];
        }
    }
    c[0] = c[1] = c[2] = 0;
    for (int i = 0; i < 3 * SWEEPS; i++) {
        int k = order[i % 3];
        double left = b[k];
        for (int j = 0; j < 3; j++) left -= j == k ? 0 : a[k][j] * c[j];
        c[k] = left > 1e-12 * b[k] ? left / a[k][k] : 0;
    }
}

// ---- rows

typedef struct ProbeRow {
    int parts, of;  // parts / of of the largest row's tokens
    int cut[2];     // documents by turns: the longest one divided by these
    int held_out;   // 1: not for the fit
} ProbeRow;

static const ProbeRow whole_row = {1, 1, {1, 1}, 0},
                      design[] = {
                          {1, 1, {1, 1}, 0},  {1, 1, {8, 8}, 0},   {1, 2, {1, 1}, 0}, {1, 2, {16, 16}, 0},
                          {1, 4, {2, 2}, 0},  {1, 4, {8, 8}, 0},   {1, 8, {4, 4}, 0}, {1, 8, {32, 32}, 0},
                          {1, 32, {1, 1}, 0}, {3, 4, {3, 3}, 1},   {3, 8, {1, 4}, 1}, {1, 2, {2, 8}, 1},
                          {1, 6, {4, 4}, 1},  {1, 12, {1, 16}, 1}, {7, 8, {1, 5}, 1},
};
enum { ROWS = COUNT(design), MOST_ROUNDS = 40, ROWS_MS = 3000 };  // ms of all rounds, at most

// Fills p->lengths with those of a row's documents, and returns their number.
static int row_lengths(const Probe* p, const ProbeRow* row, int most) {
    int left = MAX((int)((int64_t)most * row->parts / row->of), 1), n = 0, longest = MIN(most, p->run->config.context);
    for (; left > 0; n++) {
        p->lengths[n] = MIN(left, MAX(longest / row->cut[n % 2], 1));
        left -= p->lengths[n];
    }
    return n;
}

static ProbeTime row_of(const Probe* p, int n) {
    ProbeTime row = {0, 0, 0};
    for (int i = 0; i < n; i++) row.tokens += p->lengths[i], row.s2 += (double)p->lengths[i] * p->lengths[i];
    return row;
}

static double model_ms(const Cost* c, const ProbeTime* row) {
    return c->quadratic * row->s2 + c->per_token * row->tokens + c->micro_batch;
}

// Reads N tokens and their targets into the batch, from the first training pieces on.
static void read_tokens(Batch* b, const Sampler* sampler, int N) {
    char err[ERR_BYTES];
    SamplerPosition at = {0};
    for (int n = 0; n < N; at.index++) {
        if (at.index == sampler_pieces(sampler, SPLIT_TRAIN)) at.index = 0;
        Piece piece = sampler_train_piece(sampler, at);
        piece.length = MIN(piece.length, N - n);
        piece.n_targets = MIN(piece.n_targets, piece.length);
        if (sampler_read(sampler, &piece, b->tokens + n, b->targets + n, err)) die("%s", err);
        n += piece.length;
    }
}

// Makes one row of n documents of p->lengths for this rank alone.
static Row make_row(const Probe* p, int n) {
    static const MicroBatch alone = {.cp_size = 1, .ulysses_size = 1};
    Run* run = p->run;
    Batch* b = &run->batch;
    int N = 0;
    b->cu[0] = 0;
    for (int i = 0; i < n; b->cu[++i] = N)
        for (int t = 0; t < p->lengths[i]; t++) b->positions[N++] = t;
    read_tokens(b, run->data.train, N);
    b->planned->groups[0] = (RankGroup){.mb = &alone};
    b->planned->passes[0] = (RankPass){0, 1};
    b->rows[0] = (RowPlace){0, 0}, b->rows[1] = (RowPlace){N, n + 1};
    b->n_read = N, b->n_cu = n + 1, b->is_read = 1;
    batch_upload(run, NULL);
    return batch_row(run, 0);
}

// Returns the ms of a row's forward and backward passes, the least of `repeats`, and leaves gradients zero. With ZeRO-2
// and 3 all ranks call it together.
static double train_row(const Probe* p, int n, int repeats) {
    Model* m = &p->run->model;
    Row row = make_row(p, n);
    double least = INFINITY;
    if (m->shape.no_embedding)  // the stage before would send this
        m->k->clear(model_act(m, RESIDUAL, 0), (size_t)row.own * (size_t)m->shape.C * dtype_bytes(m->dt), m->s);
    m->k->synchronize(m->s);
    for (int i = 0; i < repeats; i++) {
        double started = now_seconds();
        model_train(m, &row, 1 / (float)row.N);
        m->k->synchronize(m->s);
        least = fmin(least, 1e3 * (now_seconds() - started));
    }
    zero_clear_grads(m);
    m->k->synchronize(m->s);
    return least;
}

// Returns this rank's ms of the row of n documents, once all ranks are there.
static double row_ms(const Probe* p, int n) {
    const Run* run = p->run;
    const Model* m = &run->model;
    double at[2];
    begin(p);
    m->k->record_event(0, m->s);
    double ms = train_row(p, n, 1);
    m->k->record_event(1, m->s);
    m->k->read_events(at, 2);
    if (!run->cluster->oversubscribed || m->tp) return ms;
    return 1e3 * (at[1] - at[0]) * m->world->local_size * run->config.threads / host_cores("", getppid());
}

// Returns the most tokens of a row for which three rounds take at most ROWS_MS, at least 256: fewer tell nothing apart.
// One short row says by how much the estimate is off. The same on all ranks.
static int largest_row(const Probe* p) {
    int most = p->most, least = MIN(most, 256), n = row_lengths(p, &whole_row, least);
    ProbeTime row = row_of(p, n);
    begin(p);
    double off = slowest(p, train_row(p, n, 2)) / model_ms(p->cost, &row);
    for (; most / 2 >= least; most /= 2) {
        double ms = 0;
        for (int i = 0; i < ROWS; i++) row = row_of(p, row_lengths(p, &design[i], most)), ms += model_ms(p->cost, &row);
        if (3 * off * ms <= ROWS_MS) break;
    }
    return most;
}

// Times the design, in rounds, so that a disturbance meets some of every row's times and not all of one's. The least of
// each counts, because disturbances meet long rows more often than short ones, and would look like work. The first
// round is for caches, and for kernels that are chosen late.
static void time_rows(const Probe* p, ProbeTime* rows) {
    double least[ROWS], started = now_seconds();
    int most = largest_row(p);
    for (int round = 0; round < MOST_ROUNDS; round++) {
        for (int i = 0; i < ROWS; i++) {
            int n = row_lengths(p, &design[i], most);
            rows[i] = row_of(p, n);
            double ms = row_ms(p, n);
            least[i] = round <= 1 ? ms : MIN(least[i], ms);
        }
        if (round > 1 && slowest(p, 1e3 * (now_seconds() - started)) > ROWS_MS) break;
    }
    for (int i = 0; i < ROWS; i++) rows[i].ms = mean(p, least[i]);
}

static void fit_rows(Cost* cost, const ProbeTime* rows) {
    ProbeTime fitted[ROWS];
    double c[3];
    int n = 0;
    for (int i = 0; i < ROWS; i++)
        if (!design[i].held_out) fitted[n++] = rows[i];
    probe_fit(c, fitted, n);
    cost->quadratic = c[0], cost->per_token = c[1], cost->micro_batch = c[2];
}

// Finds the median and the worst error of the rows that were not fitted.
static void find_errors(double* middle, double* worst, const Cost* cost, const ProbeTime* rows) {
    double errors[ROWS];
    int n = 0;
    for (int i = 0; i < ROWS; i++)
        if (design[i].held_out) errors[n++] = fabs(model_ms(cost, &rows[i]) / rows[i].ms - 1);
    *middle = run_median(errors, n), *worst = errors[n - 1];
}

// ---- links

// Returns a number of ranks after which every rank meets another node, or node_size if there is none: of unlike nodes
// plans know only parts.
static int step_across(const Run* run) {
    const Model* m = &run->model;
    int ranks = run->clock->limits.ranks, tp = tp_size(m), node = run->clock->limits.node_size;
    for (int step = node; step < ranks; step += node) {
        int r = 0;
        while (r < ranks && run_node_of(run, m->job, r * tp) != run_node_of(run, m->job, (r + step) % ranks * tp)) r++;
        if (r == ranks) return step;
    }
    return node;
}

// A Station is a table to fill: by messages over links of a kind, inside nodes or to the rank that is `step` ranks
// further on; or by sums and gathers of all ranks of the Comm, with `node` 0.
typedef struct Station {
    int exists;
    LinkTable* table;
    Comm* comm;
    LinkKind kind;
    int node, step;
    double part;  // the share of all bytes that a rank sends over these links
} Station;

// Lists the messages in which this rank sends `bytes`, from the lower half of the memory into the upper, and returns
// their number.
static int list_messages(const Probe* p, const Station* x, size_t bytes) {
    int ranks = x->comm->size, node = x->node, rank = x->comm->rank, n = 0;
    char* in = p->memory + p->bytes / 128 * 64;
    if (x->kind == LINK_ACROSS) {
        p->sends[0] = (Transfer){(rank + x->step) % ranks, p->memory, bytes};
        p->receives[0] = (Transfer){(rank + ranks - x->step) % ranks, in, bytes};
        return 1;
    }
    int first = rank / node * node, last = MIN(first + node, ranks);
    size_t part = last - first > 1 ? bytes / (size_t)(last - first - 1) : 0;
    for (int peer = first; peer < last; peer++) {
        if (peer == rank) continue;
        p->sends[n] = (Transfer){peer, p->memory + (size_t)n * part, part};
        p->receives[n] = (Transfer){peer, in + (size_t)n * part, part};
        n++;
    }
    return n;
}

// Returns the ms of a message, or the mean of a reduce-scatter and an all-gather; the same on all ranks.
static double time_once(const Probe* p, const Station* x, size_t bytes, int times) {
    Model* m = &p->run->model;
    Comm* c = x->comm;
    int sums = x->node == 0, n = sums ? 0 : list_messages(p, x, bytes);
    size_t elems = bytes / (size_t)c->size / sizeof(float);
    double began = begin(p);
    for (int i = 0; i < times && n > 0; i++) comm_send_receive(c, p->sends, n, p->receives, n, m->s);
    for (int i = 0; i < times && sums; i++) {
        char* own = p->memory + (size_t)c->rank * elems * sizeof(float);
        comm_reduce_scatter(c, own, p->memory, elems, DT_F32, m->s);
        comm_all_gather(c, p->memory, own, elems, DT_F32, m->s);
    }
    return end(p, c, began) / times / (sums ? 2 : 1);
}

// Times 1 KiB to 64 MiB, as far as memory goes and while messages are not too slow to wait for.
static void fill_table(const Probe* p, const Station* x) {
    enum { BATCHES = 5 };
    const double batch_ms = 15, slow_ms = 250;
    LinkTable* table = x->table;
    size_t most = (size_t)-slowest(p, -(double)MIN((size_t)1 << 26, p->bytes / 128 * 64));
    for (size_t bytes = 1 << 10; bytes <= most && table->n < LINK_POINTS; bytes *= 4) {
        double first = time_once(p, x, bytes, 2), ms = first;
        int repeats = (int)MAX(1, MIN(200, batch_ms / first));
        for (int i = 0; i < BATCHES && first < slow_ms; i++) ms = fmin(ms, time_once(p, x, bytes, repeats));
        if (table->n > 0) ms = MAX(ms, table->ms[table->n - 1]);  // more bytes take no less; noise may say otherwise
        table->bytes[table->n] = x->part * (double)bytes;
        table->ms[table->n++] = ms;
        if (first > slow_ms) break;
    }
}

// Returns the ranks of this stage and this rank's node, with one place in their groups; NULL: it is alone there.
static Comm* split_node(const Model* m, int node) {
    int stage = m->job->rank / (m->job->size / m->stages);
    int color = stage * m->job->size + m->comm->rank / node * tp_size(m) + tp_rank(m);
    return MIN(node, m->comm->size) > 1 ? model_split(m, color, COMM_OTHER, 0) : NULL;
}

// Stages send to each other where data ranks tell nothing of such links. Sums are timed inside every node at the same
// time, and among all data ranks if they are on several nodes.
static void time_links(const Probe* p) {
    const Model* m = &p->run->model;
    Cost* cost = p->cost;
    int ranks = m->comm->size, node = p->run->clock->limits.node_size, step = step_across(p->run);
    int nodes = CEIL_DIV(ranks, node), k = MIN(node, ranks), P = m->stages;
    int across = run_node_size(p->run, m->job, 1, 1)<m->job->size, inside = ranks> 1 && node > 1;
    Comm* of_node = split_node(m, node);
    const Station stations[] = {
        {inside, &cost->link[LINK_INSIDE], m->comm, LINK_INSIDE, node, step, 1},
        {nodes > 1, &cost->link[LINK_ACROSS], m->comm, LINK_ACROSS, node, step, 1},
        {P > 1 && !across && !inside, &cost->link[LINK_INSIDE], m->ranks->pipe.comm, LINK_INSIDE, P, 1, 1},
        {P > 1 && across && nodes == 1, &cost->link[LINK_ACROSS], m->ranks->pipe.comm, LINK_ACROSS, P, 1, 1},
        {k > 1, &cost->sum[LINK_INSIDE], of_node, LINK_INSIDE, 0, 0, (k - 1.0) / k},
        {nodes > 1, &cost->sum[LINK_ACROSS], m->comm, LINK_ACROSS, 0, 0, (nodes - 1.0) / nodes / k},
    };
    for (int kind = 0; kind < N_LINKS; kind++) cost->link[kind].n = cost->sum[kind].n = 0;
    for (int i = 0; i < COUNT(stations); i++)
        if (stations[i].exists) fill_table(p, &stations[i]);
    if (of_node) of_node->table->close(of_node);
}

// ---- layouts

enum { LAYOUT_TIMES = 8 };

static void set_recompute(Model* m, Recompute recompute) {
    for (int l = 0; l < m->shape.L; l++) m->ranks->layout.layer[m->shape.first_layer + l].recompute = recompute;
}

// Computes a row of n documents with and without its blocks once more, by turns, and returns the extra time as a share
// of the blocks' own. That is the fitted time but for the classifier and a row's fixed cost.
static double time_again(const Probe* p, int n) {
    Model* m = &p->run->model;
    const Shape* s = &m->whole;
    double least[2] = {INFINITY, INFINITY}, weights = shape_padded_weights(s);
    ProbeTime row = row_of(p, n);
    for (int l = 0; l < s->L; l++)
        if (m->ranks->layout.layer[l].recompute != RECOMPUTE_NONE) return 0;  // nothing of the row is kept
    for (int i = 0; i < 2 * LAYOUT_TIMES; i++) {
        set_recompute(m, i % 2 ? RECOMPUTE_BLOCK : RECOMPUTE_NONE);
        least[i % 2] = fmin(least[i % 2], row_ms(p, n));  // MIN would time two rows
    }
    set_recompute(m, RECOMPUTE_NONE);
    double linear = p->cost->per_token * row.tokens * (1 - (double)s->Vp * s->C / weights);
    return fmax(0, mean(p, (least[1] - least[0]) / (p->cost->quadratic * row.s2 + linear)));
}

// Returns the ms of a row of n documents, of messages of `bytes`, or of both: the messages begin before the row and end
// after it.
static double time_beside(const Probe* p, int n, size_t bytes) {
    Model* m = &p->run->model;
    Comm* c = m->comm;
    const PlanLimits* limits = &p->run->clock->limits;
    LinkKind kind = limits->ranks > limits->node_size ? LINK_ACROSS : LINK_INSIDE;
    Station data = {1, NULL, c, kind, limits->node_size, step_across(p->run), 1};
    int messages = bytes ? list_messages(p, &data, bytes) : 0;
    double least = INFINITY;
    for (int i = 0; i < LAYOUT_TIMES; i++) {
        Request request = 0;
        double began = begin(p);
        if (messages) request = c->table->begin_send_receive(c, p->sends, messages, p->receives, messages, m->s);
        if (n) train_row(p, n, 1);
        if (messages) c->table->end(c, request, m->s);
        least = fmin(least, end(p, c, began));
    }
    return least;
}

// Returns 1 if a row and messages of equal time do not slow each other, up to 2 if one waits for the other; 0: unknown.
static double time_overlap(const Probe* p, int n) {
    enum { MOST = 1 << 24 };
    const Kernels* k = p->run->model.k;
    Probe apart = *p;  // rows have the other memory
    apart.memory = p->run->clock->limits.ranks > 1 ? (char*)k->alloc(2 * (size_t)MOST) : NULL;
    apart.bytes = 2 * (size_t)MOST;
    if (!apart.memory) return 0;
    double row = time_beside(&apart, n, 0), messages = 0, both;
    size_t bytes = 1 << 12;
    for (; bytes <= MOST / 4 && messages < row; bytes *= 4) messages = time_beside(&apart, 0, bytes);
    both = time_beside(&apart, n, bytes / 4);
    k->free_memory(apart.memory);
    return fmin(fmax(1 + (both - fmax(row, messages)) / fmin(row, messages), 1), 2);
}

// Measures two numbers for layouts, with at most 1024 tokens: a search takes them from a probe with ZeRO-1 and --tp 1.
static void time_layouts(const Probe* p) {
    Machine* machine = &p->run->clock->probed;
    int n = row_lengths(p, &whole_row, MIN(p->most, 1024));
    machine->again = time_again(p, n);
    machine->overlap = time_overlap(p, n);
}

// ---- the step

// Runs AdamW on as many zeros as memory has room for, and returns the ms for all that this rank owns.
static double time_update(const Probe* p) {
    const Model* m = &p->run->model;
    size_t owned = shape_param_elems(&m->shape) / (size_t)m->shape.shards;
    size_t n = MIN(owned, p->bytes / (5 * sizeof(float)) / 64 * 64);
    if (n == 0) return 0;
    float* part = (float*)p->memory;
    AdamW a = {.master = part, .m = part + n, .v = part + 2 * n, .grad = part + 3 * n, .n = n, .t = 1, .eps = 1e-8f};
    a.param = has_master(m) ? (void*)(part + 4 * n) : (void*)a.master;
    a.grad_scale = m->grad_scale;
    m->k->clear(p->memory, n * 5 * sizeof(float), m->s);
    m->k->synchronize(m->s);
    double started = now_seconds();
    m->k->adamw(&a, m->dt, m->s);
    m->k->synchronize(m->s);
    return 1e3 * (now_seconds() - started) * (double)owned / (double)n;
}

// Returns the ms of a job's step as if it were alone: under --strategies its sums are among all ranks.
static double step_alone(const Probe* p) {
    const Model* m = &p->run->model;
    const PlanLimits* limits = &p->run->clock->limits;
    double elems = (double)shape_param_elems(&m->shape), update = slowest(p, fmin(time_update(p), time_update(p)));
    size_t bytes[] = {dtype_bytes(run_gradients_travel_as(p->run)), dtype_bytes(m->dt)};
    int ranks = limits->ranks, node = limits->node_size;
    for (int i = 0; i < COUNT(bytes); i++)
        update += collective_ms(p->cost, ranks, CEIL_DIV(ranks, node), node, elems * (double)bytes[i]);
    return update;
}

static double time_step(const Probe* p) {
    enum { TIMES = 4 };
    Model* m = &p->run->model;
    double least = INFINITY;
    if (p->run->strategies) return step_alone(p);
    for (int i = 0; i < TIMES; i++) {
        double update = time_update(p), began = begin(p);
        zero_reduce(m);
        zero_sum_of_squares(m);
        m->comm->table->all_reduce(m->comm, m->loss_sum, 2, DT_F64, m->s);
        zero_clear_grads(m);
        zero_gather(m);
        zero_settle(m);
        least = fmin(least, end(p, m->comm, began - 1e-3 * update));
    }
    return least;
}

// ---- all of it

// Says what comes, because a probe takes most of a minute.
static void say_next(const char* what) {
    say(stdout, "probing %s", what);  // only the first rank's stdout is open
    fflush(stdout);
}

// The result of a job; its first rank tells it.
typedef struct ProbeReport {
    int failed, tells;
    PipelineGroup pipelines;
    Cost cost;
    double error, worst, seconds;
    char path[DISK_PATH], words[ERR_BYTES];
} ProbeReport;

static void probe_job(Run* run, ProbeReport* report) {
    ProbeTime rows[ROWS];
    Probe p = open_probe(run);
    Cost* cost = p.cost;
    const Model* m = &run->model;
    double started = now_seconds();
    say_next("rows of documents, 3 s or more");
    time_rows(&p, rows);
    fit_rows(cost, rows);
    if (m->world->size > tp_size(m)) say_next("messages between ranks");
    time_links(&p);
    say_next("blocks computed again, computing beside messages, the end of a step");
    if (m->ranks->zero.stage == 1 && !m->tp && m->stages == 1) time_layouts(&p);
    cost->step = time_step(&p);
    snprintf(cost->name, sizeof cost->name, "probed");
    free(p.lengths);
    free(p.sends);
    *report = (ProbeReport){.tells = m->job->rank == 0, .cost = *cost, .seconds = now_seconds() - started};
    report->pipelines = (PipelineGroup){m->comm->size, tp_size(m), m->stages};
    find_errors(&report->error, &report->worst, cost, rows);
    if (report->tells) report->failed = run_save_machine(run, report->path, report->words);
}

static void print_report(const Run* run, const ProbeReport* r) {
    const Cost* cost = &r->cost;
    if (r->failed) die("--probe: %s", r->words);
    if (run->strategies) printf("%dxtp%dpp%d: ", r->pipelines.copies, r->pipelines.tp, r->pipelines.pp);
    printf("held-out error: median %.1f %%, worst %.1f %%%s\n", 100 * r->error, 100 * r->worst,
           r->error > 0.06 ? "; over 6 %: is this machine busy with something else?" : "");
    printf("%.4g ms a token, %.4g ms a token^2, %.4g ms a micro-batch, %.4g ms a step; measured in %.1f s\n",
           cost->per_token, cost->quadratic, cost->micro_batch, cost->step, r->seconds);
    say(stdout, "saved %s, which runs like this one find; others take it by --machine", r->path);
}

void run_probe(Run* run) {
    Comm* world = run->model.world;
    for (int s = 0; s < run_layouts(run); s++) {
        ProbeReport mine, *all;
        if (run->strategies) {
            say(stdout, "strategy %s", strategies_name(run, s));
            run_enter_strategy(run, s);
        }
        probe_job(run, &mine);
        all = (ProbeReport*)run_ask_all(run, world, &mine, sizeof mine);
        for (int r = 0; r < world->size && world->rank == 0; r++)
            if (all[r].tells) print_report(run, &all[r]);
        free(all);
    }
}
