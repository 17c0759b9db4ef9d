// probe.c - --probe: this machine's cost model, measured in some seconds.
//
//   rows     forward and backward of rows on every rank at the same time, without communication. Rows of as many
//            tokens but unlike documents tell the quadratic work from the linear, short ones what a micro-batch costs
//            anyway. Others are held out: their error says what the model is worth.
//   links    an all-to-all among the ranks of each node; between nodes every rank sends to the one of the same
//            number on the next node, as a ring across them does
//   layouts  a row whose blocks are computed again, against one whose activations are kept; and a row beside an
//            exchange that takes as long by itself: how much both slow each other down (for plan/layout/layout_cost.h)
//   step     gradients reduced, their norm, weights gathered; AdamW on memory that activations lie in later. Gradients
//            are zero and no weight changes.
//
// Ranks that share cores take the processor time of a row, as many times as ranks share a core: what else runs on the
// machine is not in it. (Not in tensor-parallel groups, which wait for each other in a row.)
//
// Everything is done several times and the least time counts. All ranks measure alike and take the mean of their rows'
// times, and the slowest rank's of what they do together.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "run/run.h"

// ---- helpers

// Of all ranks, those of a tensor-parallel group too: they decide alike how often they do what they do together.
static double slowest(const Run* run, double mine) { return run_most(run, run->model.world, mine); }

static double mean(const Run* run, double mine) {
    double sum = 0, *all = (double*)run_ask_all(run, run->model.comm, &mine, sizeof mine);
    for (int r = 0; r < run->clock->limits.ranks; r++) sum += all[r];
    free(all);
    return sum / run->clock->limits.ranks;
}

static void together(Run* run) {
    char err[ERR_BYTES];
    Comm* c = run->model.comm;
    if (c->table->barrier(c, err)) run_lost(run, err);
}

// Until everything that was begun is done.
static void wait(Run* run) {
    char err[ERR_BYTES];
    Comm* c = run->model.comm;
    if (c->table->wait(c, run->model.s, err)) run_lost(run, err);
    run->model.k->synchronize(run->model.s);
}

// ---- least squares

// Solves a (n,n) x = b by elimination; x replaces b. 0, or -1 where a is singular. a is symmetric and positive
// semidefinite, so that no pivots are needed.
static int solve(double a[3][3], double* b, int n) {
    for (int k = 0; k < n; k++) {
        if (a[k][k] < 1e-9) return -1;
        for (int i = 0; i < n; i++) {
            double factor = i == k ? 0 : a[i][k] / a[k][k];
            for (int j = k; j < n; j++) a[i][j] -= factor * a[k][j];
            b[i] -= factor * b[k];
        }
    }
    for (int k = 0; k < n; k++) b[k] /= a[k][k];
    return 0;
}

// What constant k of 1 takes of a row's time.
static double feature(const ProbeTime* row, int k) { return (k == 0 ? row->s2 : k == 1 ? row->tokens : 1) / row->ms; }

// Least squares with the constants whose bits are set; the rest are 0. Returns the sum of squares, infinite where there
// is no such solution without negative constants.
static double fit_some(double c[3], int set, const ProbeTime* rows, int n) {
    double a[3][3] = {{0}}, b[3] = {0}, norm[3], residual = 0;
    int which[3], m = 0;
    for (int k = 0; k < 3; k++)
        if (set >> k & 1) which[m++] = k;
    for (int i = 0; i < m; i++) {
        double sum = 0;
        for (int r = 0; r < n; r++) sum += feature(&rows[r], which[i]) * feature(&rows[r], which[i]);
        norm[i] = sqrt(sum);
    }
    for (int r = 0; r < n; r++)
        for (int i = 0; i < m; i++) {
            double x = feature(&rows[r], which[i]) / norm[i];
            b[i] += x;
            for (int j = 0; j < m; j++) a[i][j] += x * feature(&rows[r], which[j]) / norm[j];
        }
    if (solve(a, b, m)) return INFINITY;
    c[0] = c[1] = c[2] = 0;
    for (int i = 0; i < m; i++) {
        if (b[i] < 0) return INFINITY;
        c[which[i]] = b[i] / norm[i];
    }
    for (int r = 0; r < n; r++) {
        double off = -1;
        for (int k = 0; k < 3; k++) off += c[k] * feature(&rows[r], k);
        residual += off * off;
    }
    return residual;
}

void probe_fit(double c[3], const ProbeTime* rows, int n) {
    static const int sets[] = {2, 1, 4, 3, 6, 5, 7};  // fewer constants first: more must be better
    double least = INFINITY;
    c[0] = c[1] = c[2] = 0;
    for (int i = 0; i < COUNT(sets); i++) {
        double found[3], residual = fit_some(found, sets[i], rows, n);
        if (!(residual < least)) continue;
        least = residual;
        memcpy(c, found, sizeof found);
    }
}

// ---- rows

typedef struct ProbeRow {
    int parts, of;  // parts / of of the largest row's tokens
    int cut[2];     // documents by turns: the longest one divided by these
    int held_out;   // not for the fit
} ProbeRow;

static const ProbeRow design[] = {
    {1, 1, {1, 1}, 0}, {1, 1, {8, 8}, 0}, {1, 2, {1, 1}, 0},   {1, 2, {16, 16}, 0}, {1, 4, {2, 2}, 0},
    {1, 4, {8, 8}, 0}, {1, 8, {4, 4}, 0}, {1, 8, {32, 32}, 0}, {1, 32, {1, 1}, 0},  {3, 4, {3, 3}, 1},
    {3, 8, {1, 4}, 1}, {1, 2, {2, 8}, 1}, {1, 6, {4, 4}, 1},   {1, 12, {1, 16}, 1}, {7, 8, {1, 5}, 1},
};
enum { ROWS = COUNT(design), MOST_ROUNDS = 40, ROWS_MS = 3000 };  // what rounds may take in all

// ms of a row.
static double row_ms(Run* run, const int* lengths, int n) {
    const Model* m = &run->model;
    double at[2];
    m->k->record_event(0, m->s);
    double ms = run->clock->time_row(run, lengths, n, 1);
    m->k->record_event(1, m->s);
    m->k->read_events(at, 2);
    if (!run->cluster->oversubscribed || m->tp) return ms;
    return 1e3 * (at[1] - at[0]) * m->world->local_size * run->config.threads / host_cores("", getppid());
}

// Lengths of a row; returns their number.
static int row_lengths(int* lengths, const ProbeRow* row, int most, int longest) {
    int left = MAX((int)((int64_t)most * row->parts / row->of), 1), n = 0;
    for (; left > 0; n++) {
        lengths[n] = MIN(left, MAX(longest / row->cut[n % 2], 1));
        left -= lengths[n];
    }
    return n;
}

static ProbeTime row_of(const int* lengths, int n) {
    ProbeTime row = {0, 0, 0};
    for (int i = 0; i < n; i++) row.tokens += lengths[i], row.s2 += (double)lengths[i] * lengths[i];
    return row;
}

static double model_ms(const Cost* c, const ProbeTime* row) {
    return c->quadratic * row->s2 + c->per_token * row->tokens + c->micro_batch;
}

// What the estimate says of all rows of the design, once each.
static double design_ms(const Run* run, int* lengths, int most, int longest) {
    double ms = 0;
    for (int i = 0; i < ROWS; i++) {
        ProbeTime row = row_of(lengths, row_lengths(lengths, &design[i], most, longest));
        ms += model_ms(&run->clock->probed.cost, &row);
    }
    return ms;
}

// The most tokens of a row for which three rounds take no longer than the time there is, but not so few that nothing
// can be told apart. One short row says by how much the estimate is off. The same on all ranks.
static int largest_row(Run* run, int* lengths) {
    const ProbeRow whole = {1, 1, {1, 1}, 0};
    int most = MIN(run->clock->limits.capacity, run->config.batch_tokens), least = MIN(most, 256);
    int context = run->config.context, n = row_lengths(lengths, &whole, least, MIN(least, context));
    ProbeTime row = row_of(lengths, n);
    together(run);
    double off = slowest(run, run->clock->time_row(run, lengths, n, 2)) / model_ms(&run->clock->probed.cost, &row);
    while (most / 2 >= least && 3 * off * design_ms(run, lengths, most, MIN(most, context)) > ROWS_MS) most /= 2;
    return most;
}

// What comes, for who waits: it takes most of a minute.
static void say_next(const Run* run, const char* what, double seconds) {
    if (run->model.world->rank > 0) return;
    if (seconds > 0) say(stdout, "probing %s, %.0f s or more", what, seconds);
    else say(stdout, "probing %s", what);
    fflush(stdout);
}

// Times the design, in rounds, so that a disturbance meets some of every row's times and not all of one's. The least of
// each counts, because what disturbs long rows more often than short ones would look like work. The first round is for
// caches, and for kernels that are chosen late.
static void time_rows(Run* run, ProbeTime* rows) {
    double least[ROWS], started = now_seconds();
    int room = MIN(run->clock->limits.capacity, run->config.batch_tokens),
        *lengths = (int*)malloc((size_t)room * sizeof(int));
    if (!lengths) die("no memory for %d lengths", room);
    int most = largest_row(run, lengths), longest = MIN(most, run->config.context);
    for (int round = 0; round < MOST_ROUNDS; round++) {
        for (int i = 0; i < ROWS; i++) {
            int n = row_lengths(lengths, &design[i], most, longest);
            rows[i] = row_of(lengths, n);
            together(run);
            double ms = row_ms(run, lengths, n);
            least[i] = round <= 1 ? ms : MIN(least[i], ms);
        }
        if (round > 1 && slowest(run, 1e3 * (now_seconds() - started)) > ROWS_MS) break;
    }
    for (int i = 0; i < ROWS; i++) rows[i].ms = mean(run, least[i]);
    free(lengths);
}

static void fit_rows(Cost* cost, const ProbeTime* rows) {
    ProbeTime fitted[ROWS];
    double c[3];
    int n = 0;
    for (int i = 0; i < ROWS; i++)
        if (!design[i].held_out) fitted[n++] = rows[i];
    probe_fit(c, fitted, n);
    cost->quadratic = c[0];
    cost->per_token = c[1];
    cost->micro_batch = c[2];
}

static void print_rows(const Cost* cost, const ProbeTime* rows) {
    double errors[ROWS];
    int n = 0;
    printf("probe     tokens  mean document  measured ms     model ms\n");
    for (int i = 0; i < ROWS; i++) {
        double ms = model_ms(cost, &rows[i]), error = ms / rows[i].ms - 1;
        if (design[i].held_out) errors[n++] = fabs(error);
        printf("      %10.0f %14.0f %12.3f %12.3f  %+6.1f %%%s\n", rows[i].tokens, rows[i].s2 / rows[i].tokens,
               rows[i].ms, ms, 100 * error, design[i].held_out ? "  held out" : "");
    }
    double middle = run_median(errors, n);
    printf("held-out error: median %.1f %%, worst %.1f %%%s\n", 100 * middle, 100 * errors[n - 1],
           middle > 0.06 ? "; over 6 %: is this machine busy with something else?" : "");
}

// ---- links

// Memory that nothing uses while probing.
typedef struct Buffer {
    char* memory;
    size_t bytes;
} Buffer;

static Buffer free_memory(const Run* run) {
    const Model* m = &run->model;
    return (Buffer){m->acts, m->act_bytes};
}

// From every rank so many ranks on is another node, where that can be: of unlike nodes plans know only parts.
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

// All messages in which this rank sends `bytes`. Returns their number; the lists have room for the ranks of a node.
static int messages_of(const Run* run, Buffer b, LinkKind kind, size_t bytes, Transfer* sends, Transfer* receives) {
    int ranks = run->clock->limits.ranks, node = run->clock->limits.node_size, rank = run->model.comm->rank, n = 0;
    char* in = b.memory + b.bytes / 128 * 64;
    if (kind == LINK_ACROSS) {
        int step = step_across(run);
        sends[0] = (Transfer){(rank + step) % ranks, b.memory, bytes};
        receives[0] = (Transfer){(rank + ranks - step) % ranks, in, bytes};
        return 1;
    }
    int first = rank / node * node, last = MIN(first + node, ranks);
    size_t part = last - first > 1 ? bytes / (size_t)(last - first - 1) : 0;
    for (int peer = first; peer < last; peer++) {
        if (peer == rank) continue;
        sends[n] = (Transfer){peer, b.memory + (size_t)n * part, part};
        receives[n] = (Transfer){peer, in + (size_t)n * part, part};
        n++;
    }
    return n;
}

// ms of these messages, of the slowest rank: all ranks get the same number.
static double time_communication(Run* run, LinkKind kind, size_t bytes, int times, Transfer* lists) {
    Comm* c = run->model.comm;
    Transfer *sends = lists, *receives = lists + run->clock->limits.ranks;
    int n = messages_of(run, free_memory(run), kind, bytes, sends, receives);
    together(run);
    double started = now_seconds();
    for (int i = 0; i < times && n > 0; i++) comm_send_receive(c, sends, n, receives, n, run->model.s);
    wait(run);
    return slowest(run, 1e3 * (now_seconds() - started) / times);
}

// From 1 KiB to 64 MiB, as far as memory goes and while messages are not too slow to wait for.
static void time_link(Run* run, LinkKind kind, Transfer* lists) {
    enum { BATCHES = 5 };
    const double batch_ms = 15, slow_ms = 250;
    LinkTable* link = &run->clock->probed.cost.link[kind];
    size_t most = MIN((size_t)1 << 26, free_memory(run).bytes / 128 * 64);
    link->n = 0;
    for (size_t bytes = 1 << 10; bytes <= most && link->n < LINK_POINTS; bytes *= 4) {
        double first = time_communication(run, kind, bytes, 2, lists), ms = first;
        int repeats = (int)MAX(1, MIN(200, batch_ms / first));
        for (int i = 0; i < BATCHES && first < slow_ms; i++)
            ms = fmin(ms, time_communication(run, kind, bytes, repeats, lists));
        if (link->n > 0) ms = MAX(ms, link->ms[link->n - 1]);  // more bytes take no less; noise may say otherwise
        link->bytes[link->n] = (double)bytes;
        link->ms[link->n++] = ms;
        if (first > slow_ms) break;
    }
}

static void time_links(Run* run) {
    int ranks = run->clock->limits.ranks, node = run->clock->limits.node_size;
    Cost* cost = &run->clock->probed.cost;
    Transfer* lists = (Transfer*)calloc(2 * (size_t)ranks, sizeof *lists);
    if (!lists) die("no memory for %d messages", ranks);
    cost->link[LINK_INSIDE].n = cost->link[LINK_ACROSS].n = 0;
    if (ranks > 1 && node > 1) time_link(run, LINK_INSIDE, lists);
    if (ranks > node) time_link(run, LINK_ACROSS, lists);
    free(lists);
}

// ---- layouts

enum { LAYOUT_TIMES = 8 };

static void set_recompute(Model* m, Recompute recompute) {
    for (int l = 0; l < m->shape.L; l++) m->ranks->layout.layer[m->shape.first_layer + l].recompute = recompute;
}

// A row of one document is computed with and without its blocks once more, by turns. What the blocks take of it is
// known by then: all but the classifier and what a row costs anyway.
static double time_again(Run* run, const int* lengths, int n) {
    Model* m = &run->model;
    const Cost* cost = &run->clock->probed.cost;
    const Shape* s = &m->whole;
    double least[2] = {INFINITY, INFINITY}, weights = shape_matmul_weights(s) + (double)(s->Vp - s->V) * s->C;
    ProbeTime row = row_of(lengths, n);
    for (int l = 0; l < s->L; l++)
        if (m->ranks->layout.layer[l].recompute != RECOMPUTE_NONE) return 0;  // nothing of the row is kept
    for (int i = 0; i < 2 * LAYOUT_TIMES; i++) {
        set_recompute(m, i % 2 ? RECOMPUTE_BLOCK : RECOMPUTE_NONE);
        together(run);
        least[i % 2] = fmin(least[i % 2], row_ms(run, lengths, n));  // MIN would time two rows
    }
    set_recompute(m, RECOMPUTE_NONE);
    double blocks = cost->quadratic * row.s2 + cost->per_token * row.tokens * (1 - (double)s->Vp * s->C / weights);
    return fmax(0, mean(run, (least[1] - least[0]) / blocks));
}

// ms of a row, of messages of so many bytes, or of both: the messages begin before the row and end behind it.
static double time_beside(Run* run, const int* lengths, int n, Buffer b, size_t bytes, Transfer* lists) {
    Comm* c = run->model.comm;
    Transfer *sends = lists, *receives = lists + run->clock->limits.ranks;
    LinkKind kind = run->clock->limits.ranks > run->clock->limits.node_size ? LINK_ACROSS : LINK_INSIDE;
    int messages = bytes ? messages_of(run, b, kind, bytes, sends, receives) : 0;
    double least = INFINITY;
    for (int i = 0; i < LAYOUT_TIMES; i++) {
        Request request = 0;
        together(run);
        double started = now_seconds();
        if (messages) request = c->table->begin_send_receive(c, sends, messages, receives, messages, run->model.s);
        if (n) run->clock->time_row(run, lengths, n, 1);
        if (messages) c->table->end(c, request, run->model.s);
        wait(run);
        least = fmin(least, slowest(run, 1e3 * (now_seconds() - started)));
    }
    return least;
}

// How many times as long both take beside each other: 1 where they do not meet, 2 where one waits for the other.
static double time_overlap(Run* run, const int* lengths, int n) {
    enum { MOST = 1 << 24 };
    const Kernels* k = run->model.k;
    Transfer* lists = (Transfer*)calloc(2 * (size_t)run->clock->limits.ranks, sizeof *lists);
    Buffer b = {(char*)k->alloc(2 * (size_t)MOST), 2 * (size_t)MOST};
    if (run->clock->limits.ranks == 1 || !lists || !b.memory) {
        if (b.memory) k->free_memory(b.memory);
        free(lists);
        return 0;
    }
    double row = time_beside(run, lengths, n, b, 0, lists), messages = 0, both;
    size_t bytes = 1 << 12;
    for (; bytes <= MOST / 4 && messages < row; bytes *= 4) messages = time_beside(run, lengths, 0, b, bytes, lists);
    both = time_beside(run, lengths, n, b, bytes / 4, lists);
    k->free_memory(b.memory);
    free(lists);
    return fmin(fmax(1 + (both - fmax(row, messages)) / fmin(row, messages), 1), 2);
}

// For layouts of the same model, which look for what was found with ZeRO-1 and --tp 1. The row is as long as the
// longest that was timed, at most 1024 tokens.
static void time_layouts(Run* run) {
    int room = MIN(run->clock->limits.capacity, run->config.batch_tokens), most = MIN(room, 1024), n = 0,
        *lengths = (int*)malloc((size_t)room * sizeof(int));
    if (!lengths) die("no memory for %d lengths", room);
    for (int left = most; left > 0; left -= lengths[n++]) lengths[n] = MIN(left, run->config.context);
    run->clock->probed.again = time_again(run, lengths, n);
    run->clock->probed.overlap = time_overlap(run, lengths, n);
    free(lengths);
}

static void print_layouts(const Machine* machine) {
    if (machine->again > 0) printf("blocks computed again take %.3g of what they take", machine->again);
    if (machine->again > 0 && machine->overlap > 0) printf("; ");
    if (machine->overlap > 0) printf("computing and exchanging at once take %.3g times as long", machine->overlap);
    if (machine->again > 0 || machine->overlap > 0) printf("\n");
}

static void print_links(const Cost* cost) {
    static const char* const names[N_LINKS] = {"inside a node", "between nodes"};
    for (int kind = 0; kind < N_LINKS; kind++) {
        const LinkTable* link = &cost->link[kind];
        for (int i = 0; i < link->n; i++)
            printf("%s %10.0f KiB %12.4f ms %8.2f GB/s\n", i == 0 ? names[kind] : "                ",
                   link->bytes[i] / 1024, link->ms[i], link->bytes[i] / (1e6 * link->ms[i]));
    }
}

// ---- the step

// AdamW on zeros, as many as memory has room for, for all that this rank owns.
static double time_update(Run* run) {
    const Model* m = &run->model;
    Buffer b = free_memory(run);
    size_t owned = shape_param_elems(&m->shape) / (size_t)m->shape.shards, room = b.bytes / (5 * sizeof(float));
    size_t n = MIN(owned, room / 64 * 64);
    if (n == 0) return 0;
    float* part = (float*)b.memory;
    AdamW a = {.master = part, .m = part + n, .v = part + 2 * n, .grad = part + 3 * n, .n = n, .t = 1, .eps = 1e-8f};
    a.param = has_master(m) ? (void*)(part + 4 * n) : (void*)a.master;
    a.grad_scale = m->grad_scale;
    m->k->clear(b.memory, n * 5 * sizeof(float), m->s);
    m->k->synchronize(m->s);
    double started = now_seconds();
    m->k->adamw(&a, m->dt, m->s);
    m->k->synchronize(m->s);
    return 1e3 * (now_seconds() - started) * (double)owned / (double)n;
}

static double time_step(Run* run) {
    enum { TIMES = 4 };
    Model* m = &run->model;
    double least = INFINITY;
    for (int i = 0; i < TIMES; i++) {
        double update = time_update(run);
        together(run);
        double started = now_seconds();
        zero_reduce(m);
        zero_sum_of_squares(m);
        m->comm->table->all_reduce(m->comm, m->loss_sum, 2, DT_F64, m->s);
        zero_clear_grads(m);
        zero_gather(m);
        zero_settle(m);
        wait(run);
        least = fmin(least, slowest(run, update + 1e3 * (now_seconds() - started)));
    }
    return least;
}

// ---- all of it

void run_probe(Run* run) {
    char path[CHECKPOINT_PATH], err[ERR_BYTES];
    ProbeTime rows[ROWS];
    Cost* cost = &run->clock->probed.cost;
    double started = now_seconds();
    say_next(run, "rows of documents", 1e-3 * ROWS_MS);
    time_rows(run, rows);
    fit_rows(cost, rows);
    if (run->clock->limits.ranks > 1) say_next(run, "messages between ranks", 0);
    time_links(run);
    say_next(run, "blocks computed again, computing beside messages, the end of a step", 0);
    if (run->model.ranks->zero.stage == 1 && !run->model.tp) time_layouts(run);
    cost->step = time_step(run);
    snprintf(cost->name, sizeof cost->name, "probed");
    if (run->model.world->rank > 0) return;
    print_rows(cost, rows);
    print_links(cost);
    print_layouts(&run->clock->probed);
    printf("%.4g ms a token, %.4g ms a token^2, %.4g ms a micro-batch, %.4g ms a step; measured in %.1f s\n",
           cost->per_token, cost->quadratic, cost->micro_batch, cost->step, now_seconds() - started);
    if (cost_cache_path(run, path, err) || cost_cache_save(run, err)) die("--probe: %s", err);
    say(stdout, "saved %s, which runs like this one find; others take it by --machine", path);
}
