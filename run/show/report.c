// report.c - what a run says after first_screen.c: of every step, for the log and for the cost model, and at the end.
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kernels/open.h"
#include "run/strategies/strategies.h"
#include "run/show/run_page.h"

// ---- the beginning

void run_unigram_loss(Run* run) {
    enum { ENOUGH_TOKENS = 4000000 };
    char err[ERR_BYTES];
    Batch* b = &run->batch;
    int V = run->model.shape.V;
    double* count = (double*)calloc((size_t)V, sizeof(double));
    double total = V, sum = 0, bytes = 0;
    int64_t next = 0, tokens = 0, targets = 0;
    if (!count) die("no memory to count %d token frequencies", V);
    for (int v = 0; v < V; v++) count[v] = 1;
    for (int64_t i = 0; i < sampler_pieces(run->data.train, SPLIT_TRAIN) && total < ENOUGH_TOKENS; i++) {
        SamplerPosition position = {.index = i};
        Piece piece = sampler_train_piece(run->data.train, position);
        if (sampler_read(run->data.train, &piece, b->tokens, b->targets, err)) die("%s", err);
        for (int t = 0; t < piece.length; t++)
            if (b->targets[t] >= 0) count[b->targets[t]]++, total++;
    }
    while (batch_draw_val(b, run, &next, &tokens))
        for (int i = 0; i < b->n_pieces; i++) {
            if (sampler_read(run->data.val, &b->pieces[i], b->tokens, b->targets, err)) die("%s", err);
            for (int t = 0; t < b->pieces[i].length; t++)
                if (b->targets[t] >= 0) {
                    size_t n = 0;
                    run->data.tokenizer->decode(run->data.tokenizer, b->targets[t], &n);
                    sum -= log(count[b->targets[t]] / total);
                    bytes += (double)n;
                    targets++;
                }
        }
    free(count);
    const Docs* docs = run->data.val_docs ? run->data.val_docs : run->data.docs;
    int describes = docs->max_token < run->data.tokenizer->vocab;
    run->books->unigram_loss = targets ? sum / (double)targets : NAN;
    run->books->val_bytes = targets && describes ? bytes / (double)targets : NAN;
}

// ---- a step

static void count_bytes(const Comm* c, const Comm* before, StepRecord* r) {
    static const CommPurpose purposes[SENT_INSIDE] = {COMM_ULYSSES,   COMM_RING,       COMM_ROUTE,  COMM_REMAP,
                                                      COMM_GRADIENTS, COMM_PARAMETERS, COMM_TENSOR, COMM_SLICES};
    memset(r->sent, 0, sizeof r->sent);
    for (int i = 0; i < COUNT(purposes); i++)
        for (int link = 0; link < 2; link++) {
            uint64_t bytes = c->sent[purposes[i]][link] - before->sent[purposes[i]][link];
            r->sent[i] += bytes;
            r->sent[SENT_INSIDE + link] += bytes;
        }
}

// The share of the peak in the time that the cores were there; a peak that steps come near to is measured again.
static void share_of_peak(Run* run, StepRecord* r) {
    enum { MOST_TIMES = 8 };
    const double near = 0.9;
    PeakShare* x = &run->cluster->share;
    int has_cores = run->cluster->cores > 0 && !r->virtual_time;
    HostTurns now = has_cores ? host_turns() : (HostTurns){0, 0};
    double ran = now.ran - run->clock->turns_before.ran, waited = now.waited - run->clock->turns_before.waited;
    run->clock->turns_before = now;
    r->cores = run->cluster->cores;
    r->used = has_cores ? fmin(1, run->cluster->processor / (r->seconds * run->cluster->cores)) : NAN;
    r->had = has_cores && ran > 0 ? ran / (ran + fmax(waited, 0)) : NAN;
    double flops = shape_training_flops(&run->model.whole, (double)r->tokens, run->batch.sum_s2);
    flops /= r->used > 0 ? r->used * r->seconds : r->seconds;
    if (flops > near * x->peak && run->cluster->cores > 0 && x->times++ < MOST_TIMES) {
        double again = kernels_peak_again(run->model.k, run->model.dt, x->cores);
        if (again > x->mine) x->peak *= again / x->mine, x->mine = again;
    }
    r->mfu = x->peak > 0 ? flops / x->peak : NAN;
}

void run_fill_record(Run* run, StepRecord* r, double seconds, const Comm* before) {
    const Batch* b = &run->batch;
    Comm now = run_sent(run);
    const Comm* c = &now;
    r->exposed_seconds = c->exposed_seconds - before->exposed_seconds;
    r->seconds = seconds;
    r->tokens = b->n_tokens;
    r->targets = b->n_targets;
    r->micro_batches = b->planned->plan.n_micro_batches;
    r->planner = run->config.plan;
    r->strategy = run->strategies ? strategies_name(run, b->planned->strategy) : NULL;
    r->plan = &b->planned->plan;
    r->plan_us = b->planned->plan_us;
    r->virtual_time = run->model.k->virtual_time;
    share_of_peak(run, r);
    r->measured_ms = 1e3 * seconds - (run->model.k->virtual_time ? 0 : 1e-3 * r->plan_stall_us);
    r->stages = run->model.stages;
    r->rounds = b->n_rows;
    r->in_flight = b->planned->schedule.stages[0].most_in_flight;
    r->bubble = schedule_bubble(&b->planned->schedule, r->stages);
    r->gap = b->planned->predicted ? prediction_gap(&b->planned->prediction) : NAN;
    count_bytes(c, before, r);
}

void run_remember_step(Run* run, const StepRecord* r) {
    const Batch* b = &run->batch;
    PlanningSums* sum = &run->clock->planning;
    sum->plan_us += b->planned->plan_us;
    sum->worst_us = MAX(sum->worst_us, b->planned->plan_us);
    sum->stall_us += r->plan_stall_us;
    sum->predicted += b->planned->predicted;
    sum->gap += b->planned->predicted ? r->gap : 0;
    if (sum->steps++ == 0 || !b->planned->predicted) return;
    if (run->model.k->virtual_time) return;  // there the model is the machine
    if (run->strategies) return;             // jobs have unlike terms
    run->clock->last_ms = r->measured_ms;
    memcpy(run->clock->last_terms, b->planned->terms, sizeof run->clock->last_terms);
}

static void print_planning(const Run* run) {
    const PlanningSums* sum = &run->clock->planning;
    if (run->model.world->size == 1 || sum->steps == 0) return;
    printf("planning took %.0f us a step, %.0f at most; steps waited for it %.1f ms in all",
           sum->plan_us / (double)sum->steps, sum->worst_us, sum->stall_us / 1e3);
    if (sum->predicted && run->clock->calibration.n > 0)
        printf("; their times were predicted within %.1f %% (median)",
               100 * calibration_median_error(&run->clock->calibration));
    if (sum->predicted) printf(", plans within %.1f %% of the bound (mean)", 100 * sum->gap / (double)sum->predicted);
    printf("\n");
}

// ---- the command that started this program, up to its options: what a person pastes to go on

// Our scripts say how they were called.
#define LAUNCHER_VARIABLE "RAGGED_LAUNCHER"

typedef struct Words {
    char* text;
    size_t n, room;
} Words;

static void add_word(Words* w, const char* word) {
    char quoted[CHECKPOINT_PATH];
    int n = snprintf(w->text + w->n, w->room - w->n, "%s%s", w->n ? " " : "", text_quoted(word, quoted, sizeof quoted));
    w->n = MIN(w->n + (size_t)n, w->room - 1);
}

// A launcher's command has this program's name as it was typed: the words up to it. Ranks of other nodes have a parent
// that was told otherwise. Whether there are any.
static int add_parent(Words* w, const char* program) {
    char path[64], words[CHECKPOINT_PATH];
    snprintf(path, sizeof path, "/proc/%ld/cmdline", (long)getppid());
    FILE* file = fopen(path, "r");
    size_t n = file ? fread(words, 1, sizeof words - 1, file) : 0, before = w->n;
    if (file) fclose(file);
    words[n] = 0;
    for (const char* word = words; word < words + n; word += strlen(word) + 1) {
        if (word > words && !strcmp(word, program)) return 1;
        add_word(w, word);
    }
    w->text[w->n = before] = 0;
    return 0;
}

void run_find_command(Run* run, const char* program) {
    const RankIdentity* id = &run->cluster->identity;
    const char* launcher = getenv(LAUNCHER_VARIABLE);
    Words w = {run->books->command, 0, sizeof run->books->command};
    char ranks[32];
    run->books->command[0] = 0;
    if (launcher && *launcher) {
        snprintf(run->books->command, sizeof run->books->command, "%s", launcher);
        return;
    }
    if (strcmp(id->source, "alone") != 0 && !add_parent(&w, program)) {
        int is_torchrun = !strcmp(id->source, "torchrun"), is_slurm = !strcmp(id->source, "slurm");
        snprintf(ranks, sizeof ranks, "%d", id->size);
        add_word(&w, is_torchrun ? "torchrun" : is_slurm ? "srun" : "mpirun");
        if (is_torchrun) add_word(&w, "--no-python");
        add_word(&w, is_torchrun ? "--nproc-per-node" : "-n");
        add_word(&w, ranks);
    }
    add_word(&w, program);
}

// ---- the end

static void print_peak(const Run* run) {
    struct rusage usage;
    if (!run->model.k->on_host || run->books->resident_before == 0 || getrusage(RUSAGE_SELF, &usage)) return;
    double most = (double)usage.ru_maxrss * 1024, before = run->books->resident_before;
    printf("memory at most %.1f MiB%s: %.1f for the table above, %.1f before it\n", most / (1 << 20),
           run->model.world->size > 1 ? " on rank 0" : "", (most - before) / (1 << 20), before / (1 << 20));
}

static const char* const purposes[N_PURPOSES] = {"other",      "ulysses",
                                                 "ring",       "routing",
                                                 "remap",      "gradients",
                                                 "parameters", "optimizer state",
                                                 "pipeline",   "tensor parallelism",
                                                 "slices",     "agreement"};

static void add_sent(Comm* sum, const Comm* c) {
    for (int p = 0; p < N_PURPOSES; p++)
        for (int link = 0; link < 2; link++) sum->sent[p][link] += c->sent[p][link];
    sum->exposed_seconds += c->exposed_seconds;
}

static void add_comms(Comm* sum, const Model* m) {
    Comm* comms[MOST_COMMS];
    for (int i = 0, n = model_comms(comms, m); i < n; i++) add_sent(sum, comms[i]);
}

Comm run_sent(const Run* run) {
    Comm sum = *run->model.world;
    if (!run->strategies) add_comms(&sum, &run->model);
    for (int s = 0; run->strategies && s < run->strategies->list.n; s++)
        add_comms(&sum, &run->strategies->as[s]->model);
    return sum;
}

static void print_communication(Run* run) {
    char err[ERR_BYTES];
    Comm* c = run->model.world;
    Comm mine = run_sent(run), sum = {0}, *all = c->size > 1 ? (Comm*)calloc((size_t)c->size, sizeof mine) : NULL;
    double least = INFINITY, most = 0;
    if (!all || c->table->all_gather_host(c, all, &mine, sizeof mine, err)) {
        free(all);
        return;
    }
    for (int r = 0; r < c->size; r++) {
        add_sent(&sum, &all[r]);
        most = MAX(most, all[r].exposed_seconds);
        least = MIN(least, all[r].exposed_seconds);
    }
    printf("sent by all ranks, MiB inside nodes + between them:");
    for (int p = 0; p < N_PURPOSES; p++)
        if (sum.sent[p][0] + sum.sent[p][1] >= (1 << 20) / 20)  // else it would read 0.0
            printf(" %s %.1f + %.1f", purposes[p], (double)sum.sent[p][0] / (1 << 20),
                   (double)sum.sent[p][1] / (1 << 20));
    printf("\nwaiting for communication took a rank %.1f to %.1f s\n", least, most);
    free(all);
}

// Commands that paste: what to do next.
static void print_next(const Run* run) {
    char out[CHECKPOINT_PATH];
    const Config* c = &run->config;
    int64_t done = run->state.step;
    const char* command = run->books->command;
    text_quoted(run->books->out, out, sizeof out);
    if (run->stopped_by == SIGPIPE && run->model.world->rank == 0)
        warn("standard output was closed: stopped at step %" PRId64 "; continue: %s --resume --out %s", done, command,
             out);
    else if (done < c->steps) say(stdout, "continue: %s --resume --out %s", command, out);
    else if (c->resume && run->books->first_step >= c->steps)
        say(stdout, "its steps were done before; to go on: %s --resume --out %s --steps %" PRId64, command, out,
            MAX(2 * done, (int64_t)1));
    else if (c->save_every && c->steps > 0)
        say(stdout, "use it:   ./train --out %s --sample \"%s\"", out,
            c->data.n == 1 && !strcmp(c->data.paths[0], "/usr/include") ? "#include <" : "Once ");
    else if (c->save_every)
        say(stdout, "saved as it begins; to train it: %s --resume --out %s --steps 1000", command, out);
    else printf("nothing was saved\n");
}

void run_print_end(Run* run, double seconds) {
    char elapsed[32];
    const char* how = run->stopped_by || run->cluster->unplanned ? "stopped" : "done";
    run_log_event(run, "end", "how", how);
    if (run->books->page && isfinite(run_page_seconds(run->books->page))) seconds = run_page_seconds(run->books->page);
    runlog_say(&run->books->log, "%s at step %" PRId64 " of %" PRId64 " after %s; loss hash %016" PRIx64, how,
               run->state.step, run->config.steps, text_duration(seconds, elapsed), run->state.loss_hash);
    print_next(run);
    if (!run->config.verbose) return;
    print_peak(run);
    print_planning(run);
    print_communication(run);
}
