// report.c - what a run says after first_screen.c: of every step, for the log and for the cost model; at the end; and
// --explain, the plan of a step beside what other
// planners do with the same documents, all played in the same cost model.
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "plan/disk.h"
#include "plan/explain.h"
#include "plan/published/published.h"
#include "run/strategies.h"

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
        if (sampler_read(run->data.train, &piece, b->tokens, b->targets, err, sizeof err)) die("%s", err);
        for (int t = 0; t < piece.length; t++)
            if (b->targets[t] >= 0) count[b->targets[t]]++, total++;
    }
    while (batch_draw_val(b, run, &next, &tokens))
        for (int i = 0; i < b->n_pieces; i++) {
            if (sampler_read(run->data.val, &b->pieces[i], b->tokens, b->targets, err, sizeof err)) die("%s", err);
            for (int t = 0; t < b->pieces[i].length; t++)
                if (b->targets[t] >= 0) {
                    size_t n = 0;
                    tokenizer_decode(run->data.tokenizer, b->targets[t], &n);
                    sum -= log(count[b->targets[t]] / total);
                    bytes += (double)n;
                    targets++;
                }
        }
    free(count);
    const Docs* docs = run->data.val_docs ? run->data.val_docs : run->data.docs;
    int describes = docs_max_token(docs) < tokenizer_vocab(run->data.tokenizer);
    run->unigram_loss = targets ? sum / (double)targets : NAN;
    run->val_bytes = targets && describes ? bytes / (double)targets : NAN;
}

// ---- a step

static uint64_t sent_for(const Comm* c, const Comm* before, CommPurpose purpose, int link) {
    return c->sent[purpose][link] - before->sent[purpose][link];
}

static void count_bytes(const Comm* c, const Comm* before, StepRecord* r) {
    const CommPurpose purposes[] = {COMM_ULYSSES,   COMM_RING,       COMM_ROUTE,  COMM_REMAP,
                                    COMM_GRADIENTS, COMM_PARAMETERS, COMM_TENSOR, COMM_SLICES};
    uint64_t* const counts[] = {&r->ulysses,   &r->ring,       &r->routing, &r->remap,
                                &r->gradients, &r->parameters, &r->tensor,  &r->slices};
    r->inside = r->across = 0;
    for (int i = 0; i < COUNT(purposes); i++) {
        uint64_t inside = sent_for(c, before, purposes[i], 0), across = sent_for(c, before, purposes[i], 1);
        *counts[i] = inside + across;
        r->inside += inside;
        r->across += across;
    }
}

void run_begin_clocks(Run* run) {
    if (run->model.k->on_host) run->processor_before = host_processor_seconds();
}

double run_processor_seconds(Run* run) {
    return run->model.k->on_host ? host_processor_seconds() - run->processor_before : 0;
}

// The share of the peak in the time that the cores were there; a peak that steps come near to is measured again.
static void share_of_peak(Run* run, StepRecord* r) {
    enum { MOST_TIMES = 8 };
    const double near = 0.9;
    PeakShare* x = &run->share;
    int has_cores = run->cores > 0 && !r->virtual_time;
    HostTurns now = has_cores ? host_turns() : (HostTurns){0, 0};
    double ran = now.ran - run->turns_before.ran, waited = now.waited - run->turns_before.waited;
    run->turns_before = now;
    r->cores = run->cores;
    r->used = has_cores ? fmin(1, run->processor / (r->seconds * run->cores)) : NAN;
    r->had = has_cores && ran > 0 ? ran / (ran + fmax(waited, 0)) : NAN;
    double flops = shape_training_flops(&run->model.whole, (double)r->tokens, run->batch.sum_s2);
    flops /= r->used > 0 ? r->used * r->seconds : r->seconds;
    if (flops > near * x->peak && run->cores > 0 && x->times++ < MOST_TIMES) {
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
    r->micro_batches = b->plan.n_micro_batches;
    r->planner = run->config.plan;
    r->strategy = run->strategies ? strategies_name(run, b->strategy) : NULL;
    r->plan = &b->plan;
    r->plan_us = b->plan_us;
    r->virtual_time = run->model.k->virtual_time;
    share_of_peak(run, r);
    r->measured_ms = 1e3 * seconds - (run->model.k->virtual_time ? 0 : 1e-3 * r->plan_stall_us);
    r->stages = run->model.stages;
    r->rounds = b->n_passes;
    r->in_flight = b->schedule.stages[0].most_in_flight;
    r->bubble = schedule_bubble(&b->schedule, r->stages);
    r->gap = b->predicted ? prediction_gap(&b->prediction) : NAN;
    count_bytes(c, before, r);
}

void run_remember_step(Run* run, const StepRecord* r) {
    const Batch* b = &run->batch;
    PlanningSums* sum = &run->planning;
    sum->plan_us += b->plan_us;
    sum->worst_us = MAX(sum->worst_us, b->plan_us);
    sum->stall_us += r->plan_stall_us;
    sum->predicted += b->predicted;
    sum->gap += b->predicted ? r->gap : 0;
    if (sum->steps++ == 0 || !b->predicted) return;
    if (run->model.k->virtual_time) return;  // there the model is the machine
    if (run->strategies) return;             // jobs have unlike terms
    run->last_ms = r->measured_ms;
    memcpy(run->last_terms, b->terms, sizeof run->last_terms);
}

static void print_planning(const Run* run) {
    const PlanningSums* sum = &run->planning;
    if (run->model.world->size == 1 || sum->steps == 0) return;
    printf("planning took %.0f us a step, %.0f at most; steps waited for it %.1f ms in all",
           sum->plan_us / (double)sum->steps, sum->worst_us, sum->stall_us / 1e3);
    if (sum->predicted && run->calibration.n > 0)
        printf("; their times were predicted within %.1f %% (median)",
               100 * calibration_median_error(&run->calibration));
    if (sum->predicted) printf(", plans within %.1f %% of the bound (mean)", 100 * sum->gap / (double)sum->predicted);
    printf("\n");
}

// ---- the end

static void print_peak(const Run* run) {
    struct rusage usage;
    if (!run->model.k->on_host || run->resident_before == 0 || getrusage(RUSAGE_SELF, &usage)) return;
    double most = (double)usage.ru_maxrss * 1024, before = run->resident_before;
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
    if (m->comm != m->job) add_sent(sum, m->comm);
    if (m->job != m->world) add_sent(sum, m->job);
    if (m->tp) add_sent(sum, m->tp);
    if (m->pipe.comm) add_sent(sum, m->pipe.comm);
    if (m->pipe.ends) add_sent(sum, m->pipe.ends);
    if (m->kv) add_sent(sum, m->kv);
    for (int i = 0; i < m->n_groups; i++) {
        const LayerGroup* g = &m->groups[i];
        if (g->cut) add_sent(sum, g->cut);
        add_sent(sum, g->spread);
        add_sent(sum, g->data);
    }
}

Comm run_sent(const Run* run) {
    Comm sum = *run->model.world;
    if (!run->strategies) add_comms(&sum, &run->model);
    for (int s = 0; run->strategies && s < run->strategies->list.n; s++)
        add_comms(&sum, &run->strategies->as[s]->model);
    return sum;
}

typedef struct Sent {
    uint64_t bytes[N_PURPOSES][2];
    double exposed;
} Sent;

static void print_communication(Run* run) {
    char err[ERR_BYTES];
    Comm* c = run->model.world;
    if (c->size == 1) return;
    Sent mine, sum, *all = (Sent*)calloc((size_t)c->size, sizeof mine);
    memset(&sum, 0, sizeof sum);
    Comm total = run_sent(run);
    memcpy(mine.bytes, total.sent, sizeof mine.bytes);
    mine.exposed = total.exposed_seconds;
    if (!all || c->table->all_gather_host(c, all, &mine, sizeof mine, err, sizeof err)) {
        free(all);
        return;
    }
    double least = all[0].exposed;
    for (int r = 0; r < c->size; r++) {
        for (int p = 0; p < N_PURPOSES; p++)
            for (int link = 0; link < 2; link++) sum.bytes[p][link] += all[r].bytes[p][link];
        sum.exposed = MAX(sum.exposed, all[r].exposed);
        least = MIN(least, all[r].exposed);
    }
    printf("sent by all ranks, MiB inside nodes + between them:");
    for (int p = 0; p < N_PURPOSES; p++)
        if (sum.bytes[p][0] + sum.bytes[p][1] >= (1 << 20) / 20)  // else it would read 0.0
            printf(" %s %.1f + %.1f", purposes[p], (double)sum.bytes[p][0] / (1 << 20),
                   (double)sum.bytes[p][1] / (1 << 20));
    printf("\nwaiting for communication took a rank %.1f to %.1f s\n", least, sum.exposed);
    free(all);
}

// Commands that paste: what to do next.
static void print_next(const Run* run) {
    char out[CHECKPOINT_PATH];
    const Config* c = &run->config;
    int64_t done = run->state.step;
    const char* command = run->command;
    text_quoted(run->out, out, sizeof out);
    if (run->stopped_by == SIGPIPE && run->model.world->rank == 0)
        warn("standard output was closed: stopped at step %" PRId64 "; continue: %s --resume --out %s", done, command,
             out);
    else if (done < c->steps) say(stdout, "continue: %s --resume --out %s", command, out);
    else if (c->resume && run->first_step >= c->steps)
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
    const char* how = run->stopped_by || run->unplanned ? "stopped" : "done";
    run_log_event(run, "end", "how", how);
    if (run->page && isfinite(run_page_seconds(run->page))) seconds = run_page_seconds(run->page);
    runlog_say(&run->log, "%s at step %" PRId64 " of %" PRId64 " after %s; loss hash %016" PRIx64, how, run->state.step,
               run->config.steps, text_duration(seconds, elapsed), run->state.loss_hash);
    print_next(run);
    if (!run->config.verbose) return;
    print_peak(run);
    print_planning(run);
    print_communication(run);
}

// ---- --explain

enum { MOST_SHOWN = 16 };

// A plan with everything that showing it takes.
typedef struct Played {
    Plan plan;
    PlayRule rule;
    Timeline timeline;
} Played;

typedef struct Stage {
    const Run* run;
    Arena arena;
    Played played[MOST_SHOWN];
    Shown shown[MOST_SHOWN];
    int n;
} Stage;

// Puts the plan in played[n] on the stage. 0, or -1 with words.
static int play(Stage* stage, const char* name, const char* words, double plan_us, char* err, size_t errlen) {
    Played* p = &stage->played[stage->n];
    const Run* run = stage->run;
    p->rule = (PlayRule){.in_rounds = run->setting.rounds || p->plan.has_barriers};
    int failed = step_play(&p->timeline, &p->plan, run->batch.lengths, &run->setting, &stage->arena, err, errlen);
    Shown shown = {name, words, &p->plan, &p->timeline, &p->rule, plan_us, stage->n == 0};
    stage->shown[stage->n] = shown;
    return failed;
}

static void play_chosen(Stage* stage) {
    char err[ERR_BYTES];
    const Batch* b = &stage->run->batch;
    const char* words = "";
    if (planner_named(stage->run->config.plan)) words = planner_named(stage->run->config.plan)->words;
    stage->played[0].plan = b->plan;
    if (play(stage, stage->run->config.plan, words, b->plan_us, err, sizeof err)) die("--explain: %s", err);
    stage->n = 1;
}

static int play_planner(Stage* stage, const Planner* planner, const int* sample, int n_sample, char* err,
                        size_t errlen) {
    Played* p = &stage->played[stage->n];
    const Run* run = stage->run;
    const Batch* b = &run->batch;
    void* opened = planner->open(&run->setting, sample, n_sample, &stage->arena, err, errlen);
    if (!opened) return -1;
    double started = now_seconds();
    int failed =
        planner->plan(opened, &p->plan, &p->rule, b->plan.step, b->lengths, b->n_pieces, &stage->arena, err, errlen);
    double plan_us = 1e6 * (now_seconds() - started);
    return failed || play(stage, planner->name, planner->words, plan_us, err, errlen) ? -1 : 0;
}

static void play_planners(Stage* stage) {
    static int sample[SAMPLED_LENGTHS];
    char err[ERR_BYTES];
    int n_sample = run_sample_lengths(stage->run, sample);
    for (int i = 0; i < n_planners && stage->n < MOST_SHOWN; i++) {
        if (!strcmp(planners[i]->name, stage->run->config.plan)) continue;
        if (!play_planner(stage, planners[i], sample, n_sample, err, sizeof err)) stage->n++;
        else say(stdout, "%s has no plan: %s", planners[i]->name, err);
    }
}

static void write_page(const Run* run, const Explained* x) {
    char path[CHECKPOINT_PATH], err[ERR_BYTES];
    if (run->config.out && disk_make_dirs(run->out, err, sizeof err)) die("--explain: %s", err);
    if (snprintf(path, sizeof path, "%s%splan.html", run->config.out ? run->out : "", run->config.out ? "/" : "") >=
        (int)sizeof path)
        die("%s: path too long", run->out);
    FILE* file = fopen(path, "w");
    int failed = !file || explain_page(file, x);
    if (file && fclose(file)) failed = 1;
    if (failed) die("%s: cannot write: %s", path, strerror(errno));
    say(stdout, "the same with timelines: %s", path);
}

void run_explain(const Run* run) {
    static Stage stage;
    char title[256], documents[64], ranks[64];
    const Batch* b = &run->batch;
    int64_t tokens = 0;  // of this job
    for (int i = 0; i < b->n_pieces; i++) tokens += b->lengths[i];
    if (!run->setting.groups) die("--explain: no cost model is known; try --probe, or --machine FILE");
    stage.run = run;
    play_chosen(&stage);
    play_planners(&stage);
    snprintf(title, sizeof title, "step %" PRId64 ": %s, %" PRId64 " tokens on %s", b->plan.step,
             text_many(b->n_pieces, "document", documents), tokens, text_many(run->limits.ranks, "rank", ranks));
    Explained x = {title, b->lengths, b->n_pieces, &run->setting, &b->prediction, stage.shown, stage.n, {0}};
    run_show_stages(&x.stages, run, &stage.arena);
    if (run->strategies) run_explain_strategies(run);
    explain_text(stdout, &x);
    write_page(run, &x);
    arena_free(&stage.arena);
}
