// report.c - what a run says: before its first step what is trained, on what, where, in how much memory, and where it
// goes; of every step, for the log and for the cost model; and at the end. Its page, and those of other runs.
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "data/json.h"
#include "data/sampler_join.h"
#include "data/sampler_mix.h"
#include "kernels/table/open.h"
#include "plan/base/disk.h"
#include "run/show/run_page.h"
#include "run/files/chats.h"
#include "run/show/show.h"
#include "run/step/step.h"

#define RUN_VERSION "1.0"

// ---- the first screen

static void print_version(void) {
    printf("ragged " RUN_VERSION
           "\n"
           "compiled by "
#ifndef __clang__
           "gcc "
#endif
           __VERSION__
#ifdef HAVE_CUDA
           ", with CUDA"
#endif
#ifdef HAVE_MPI
           ", with MPI"
#endif
           "\n");
}

static void print_option(void* column, const char* name, const char* value) {
    int *at = (int*)column, n = (int)(strlen(name) + strlen(value)) + 2;
    if (*at + n > 118) printf("\n "), *at = 1;
    say_part(stdout, " %s %s", name, value);
    *at += n;
}

// "118.39M", "0.86M", "1234"
static const char* count(int64_t n, char text[32]) {
    if (n >= 100000) snprintf(text, 32, "%.2fM", (double)n / 1e6);
    else snprintf(text, 32, "%" PRId64, n);
    return text;
}

static void print_model(const Run* run) {
    Shape base = shape_base(&run->model.whole);
    const Shape *s = &base, *all = &run->model.whole;
    char n[32], layers[64], heads[64], kv[64] = "";
    if (s->NKV != s->NH) snprintf(kv, sizeof kv, " (%d of keys and values)", s->NKV);
    say(stdout, "model   %s, %s parameters: %s, width %d, %s%s, context %d, %s%d tokens", arch_table[s->arch].title,
        count((int64_t)shape_param_count(s), n), text_many(s->L, "layer", layers), s->C,
        text_many(s->NH, "head", heads), kv, s->context,
        run->data.tokenizer->is_bytes && run->data.guessed_bytes ? "bytes as " : "", s->V);
    if (all->lora.is_all)
        say(stdout, "lora    rank %d, alpha %g, on %s: %s parameters learn%s%s", all->lora.rank,
            all->lora.scale * all->lora.rank, run->config.lora_on, count((int64_t)shape_param_count(all), n),
            run->books->base[0] ? " beside the frozen ones of " : "", run->books->base);
}

// print_doubts lists files that were passed over and text that was changed, since silence would hide a smaller corpus.
static void print_doubts(const Run* run, const Docs* docs) {
    int64_t shown = run->config.verbose ? docs->skipped.n : MIN(docs->skipped.n, (int64_t)3);
    char many[64];
    for (int64_t i = 0; i < shown; i++) say(stdout, "        passed over: %s", docs->skipped.list[i]);
    if (shown < docs->skipped.n)
        say(stdout, "        and %s more: --verbose names them", text_many(docs->skipped.n - shown, "file", many));
    if (docs->more->facts.replaced)
        say(stdout, "        %s read as U+FFFD: halves of surrogate pairs without the other one",
            text_many(docs->more->facts.replaced, "character", many));
    if (docs->more->facts.not_utf8)
        say(stdout, "        %s not in UTF-8: bytes stay as they are; try: iconv -f LATIN1 -t UTF-8",
            text_many(docs->more->facts.not_utf8, "text", many));
}

static void print_data(const Run* run) {
    const Docs* docs = run->data.docs;
    const Sampler *train = run->data.train, *val = run->data.val;
    char n[32], held[32], many[64], words[256];
    printf("data    %s tokens in %s to train on, %s in %" PRId64 " to validate",
           count(sampler_tokens(train, SPLIT_TRAIN), n),
           text_many(sampler_documents(train, SPLIT_TRAIN), "document", many),
           count(sampler_tokens(val, SPLIT_VAL), held), sampler_documents(val, SPLIT_VAL));
    if (run->config.eval_every && sampler_tokens(val, SPLIT_VAL) > run->config.eval_tokens)
        printf(" (at most %d tokens a time)", run->config.eval_tokens);
    if (docs->skipped.n) printf("; %s passed over", text_many(docs->skipped.n, "file", many));
    if (docs->more->facts.plain_jsonl)
        printf("; %" PRId64 " .jsonl without \"text\" read as plain text", docs->more->facts.plain_jsonl);
    if (docs->more->facts.runs) printf("; %s of this program left out", text_many(docs->more->facts.runs, "run", many));
    printf("\n");
    if (!run_is_brief(run)) printf("        %s\n", sampler_describe(val, words));
    if (docs->divided)
        say(stdout,
            "        text files divided at %s into %" PRId64 " documents; --document-separator none keeps them whole",
            run->config.separator, docs->divided);
    print_doubts(run, docs);
    if (run->books->unlearnt)
        say(stdout,
            "        %s of %" PRId64
            " to train on left out: nothing of them is learnt (prompts cut off by --context %d, or "
            "weights of 0)",
            text_many(run->books->unlearnt, "piece", many), sampler_pieces(train, SPLIT_TRAIN), train->context);
    TreeCounts trees = {0, 0, 0, 0};
    for (int64_t doc = 0; doc < docs->n && docs_has_trees(docs); doc++) docs_count_tree(docs, doc, &trees);
    if (trees.trees) say(stdout, "        %s", run_spared(&trees, words));
    if (!strcmp(run->config.shared_prefix, "auto") && !docs_may_join(docs))
        say(stdout,
            "        no documents are joined (--shared-prefix): every token of these is learnt, and only what is "
            "not learnt is shared");
    for (int c = 0; c < docs->more->n_corpora; c++)
        say(stdout, "        %.1f %% of each step from %s, which has %s tokens", 100 * docs_corpus(docs, c)->share,
            docs_corpus(docs, c)->name, count(sampler_corpus_tokens(train, c), n));
}

static void print_device(const Run* run) {
    const Model* m = &run->model;
    char ranks[32] = "", threads[64] = "";
    if (m->world->size > 1) snprintf(ranks, sizeof ranks, "%d ranks of ", m->world->size);
    if (m->k->virtual_time) {
        say(stdout, "device  %s%s, %s, times of --machine %s%s", ranks, m->k->name, run->config.dtype,
            run->config.machine, m->k->no_results ? "; nothing is computed, so there are no losses" : "");
        return;
    }
    if (m->k->on_host && run->config.threads) text_many(run->config.threads, "thread", threads);
    printf("device  %s%s, %s%s%s, %.0f GFLOP/s at most%s\n", ranks, m->k->name, run->config.dtype,
           threads[0] ? ", " : "", threads, run->cluster->peak / 1e9,
           run->cluster->oversubscribed ? "; ranks share cores: expect no speed from that" : "");
}

static void put_size(TextTable* table, const char* name, size_t bytes) {
    if (bytes >= (size_t)10 << 20) text_cells(table, "%s\t%.1f MiB\n", name, (double)bytes / (1 << 20));
    else text_cells(table, "%s\t%.1f KiB\n", name, (double)bytes / (1 << 10));
}

static void print_memory(const MemoryPlan* plan) {
    for (int counts = 1; counts >= plan->on_host; counts--) {
        TextTable table = {0};
        printf("memory%s\n", plan->on_host ? "" : counts ? " of the device" : " of the host");
        for (int i = 0; i < plan->n; i++)
            if (memory_counts(plan, plan->entries[i].where) == counts)
                put_size(&table, plan->entries[i].name, plan->entries[i].bytes);
        if (counts) put_size(&table, "total", plan->total);
        text_table(stdout, &table, "  ");
    }
}

void run_print(const Run* run, const MemoryPlan* plan) {
    const Config* c = &run->config;
    int says_all = !run_is_brief(run);
    char text[64], every[64] = "no checkpoint";
    if (says_all) {
        int column = printf("options");
        Config config = run_settled_config(run);
        config_visit(&config, print_option, &column);
        printf("\n");
    }
    print_model(run);
    print_data(run);
    print_device(run);
    if (says_all) {
        printf("step    %d tokens", c->batch_tokens);
        if (!run->strategies) printf(" in rows of at most %d", run->settled.capacity);
        if (run->settled.rank_capacity) printf(" to %d, by rank", widest_capacity(&run->clock->limits, 1));
        printf("\n");
        print_memory(plan);
    } else
        printf("memory  %s%s\n", text_bytes((double)plan->total, text),
               run->settled.rank_capacity   ? " on rank 0"
               : run->model.world->size > 1 ? " on every rank"
                                            : "");
    if (!run->books->claims) return;
    if (c->save_every)
        snprintf(every, sizeof every, "a checkpoint every %d%s", abs(c->save_every), c->save_every < 0 ? " s" : "");
    say(stdout, "run     %s%s%s: %s of %d tokens, %s; report.html, log.jsonl", run->books->out,
        run->books->start_from[0] ? ", from " : "", run->books->start_from, text_many(c->steps, "step", text),
        c->batch_tokens, every);
}

// ---- the first line of the log

// Options as members of an object: one that stands several times (--data) has its values behind each other.
typedef struct Options {
    FILE* out;
    const char* last;
} Options;

static void put_option(void* context, const char* name, const char* value) {
    Options* o = (Options*)context;
    size_t n = strlen(value);
    char* quoted = (char*)malloc(6 * n + 3);
    if (o->last && !strcmp(o->last, name)) fputc(' ', o->out);
    else fprintf(o->out, "%s\"%s\": \"", o->last ? "\", " : "", name);
    if (quoted) n = json_quote(quoted, value, n), fwrite(quoted + 1, 1, n - 2, o->out);
    free(quoted);
    o->last = name;
}

// Logs what scripts/keep_going.sh says of the start before this one: when it ended, after which step, its status.
static void log_death(Run* run) {
    const char* told = getenv("RAGGED_DEATH");
    double died;
    int64_t step;
    int status;
    char members[160];
    struct timespec now;
    if (!told || sscanf(told, "%lf %" SCNd64 " %d", &died, &step, &status) != 3) return;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(members, sizeof members, ", \"status\": %d, \"repeats\": %" PRId64 ", \"seconds\": %.1f", status,
             MAX(step - run->state.step, 0), (double)now.tv_sec + 1e-9 * (double)now.tv_nsec - died);
    runlog_event(&run->books->log, "death", run->state.step, members);
}

void run_log_start(Run* run) {
    const Config* c = &run->config;
    const Model* m = &run->model;
    Shape base = shape_base(&m->whole);
    char* text = NULL;
    size_t n = 0;
    Options start = {.out = run->books->log.fd >= 0 ? open_memstream(&text, &n) : NULL}, options = start;
    if (!start.out) return;
    fputs(", ", start.out);
    if (c->straggle) put_option(&start, "straggle", c->straggle), fputs("\", ", start.out);
    fprintf(start.out,
            "\"resumed\": %d, \"ranks\": %d, \"device\": \"%s\", \"dtype\": \"%s\", \"model\": \"%s\", "
            "\"parameters\": %.0f, \"tokens\": %" PRId64 ", \"documents\": %" PRId64 ", \"version\": \"" RUN_VERSION
            "\", \"matmul_gflops\": %.4g, \"options\": {",
            c->resume, m->world->size, m->k->name, c->dtype, arch_table[m->whole.arch].title,
            (double)shape_param_count(&base), sampler_tokens(run->data.train, SPLIT_TRAIN),
            sampler_documents(run->data.train, SPLIT_TRAIN),
            isfinite(run->cluster->peak) ? run->cluster->peak / 1e9 : 0);
    Config config = run_settled_config(run);
    config_visit(&config, put_option, &options);
    fputs(options.last ? "\"}" : "}", options.out);
    int torn = ferror(start.out);
    if (!fclose(start.out) && !torn) runlog_event(&run->books->log, "start", run->state.step, text);
    log_death(run);
    free(text);
}

// ---- report.html

void run_open_report(Run* run) {
    static RunPage page;
    char err[ERR_BYTES];
    Smooth* smooth = &run->books->log.smooth;
    if (run->books->log.fd < 0) return;
    if (checkpoint_clean(run->books->out, err) || disk_clean_put(run->books->out, "report.html", err)) warn("%s", err);
    run->books->page = &page;
    run_page_open(&page, run->books->out);
    if (run->config.resume && run_page_read(&page, err)) warn("%s", err);
    smooth->loss = page.smooth.loss, smooth->losses = page.smooth.losses;  // a run has one training loss
}

void run_write_report(Run* run) {
    char path[CHECKPOINT_PATH], err[ERR_BYTES];
    if (!run->books->page) return;
    run_path(path, run->books->out, "report.html");
    if (run_page_write(run->books->page, 1, path, err)) warn("%s", err);
}

static void write_reports(const Config* c) {
    static RunPage pages[MAX_PATHS];
    char path[CHECKPOINT_PATH], err[ERR_BYTES];
    int n = c->report.n;
    const char* dir = c->out ? c->out : n == 1 ? c->report.paths[0] : ".";
    for (int i = 0; i < n; i++) run_page_open(&pages[i], c->report.paths[i]);
    run_path(path, dir, "report.html");
    if ((c->out && disk_make_dirs(dir, err)) || run_page_write(pages, n, path, err)) die("--report: %s", err);
    run_page_table(stdout, pages, n);
    say(stdout, "the same with charts: %s", path);
}

void run_show_others(Run* run) {
    const Config* c = &run->config;
    if (c->report.n) write_reports(c);
    else if (c->version) print_version();
    else return;
    end_output();
    exit(0);
}

// ---- a step

static void add_sent(Comm* sum, const Comm* c) {
    for (int p = 0; p < N_PURPOSES && c; p++)
        for (int link = 0; link < 2; link++) sum->sent[p][link] += c->sent[p][link];
    if (c) sum->exposed_seconds += c->exposed_seconds;
}

Comm run_sent(const Run* run) {
    Comm sum = *run->model.world, *comms[MOST_COMMS];
    for (int s = 0; s < run_layouts(run); s++)
        for (int i = 0, n = model_comms(comms, &run_under((Run*)run, s)->model); i < n; i++) add_sent(&sum, comms[i]);
    return sum;
}

static void count_bytes(StepRecord* r, const Comm* now, const Comm* before) {
    static const CommPurpose purposes[SENT_INSIDE] = {COMM_ULYSSES,   COMM_RING,       COMM_ROUTE,  COMM_REMAP,
                                                      COMM_GRADIENTS, COMM_PARAMETERS, COMM_TENSOR, COMM_SLICES};
    memset(r->sent, 0, sizeof r->sent);
    for (int i = 0; i < COUNT(purposes); i++)
        for (int link = 0; link < 2; link++) {
            uint64_t bytes = now->sent[purposes[i]][link] - before->sent[purposes[i]][link];
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
    double ran = now.ran - run->cluster->timing.turns_before.ran,
           waited = now.waited - run->cluster->timing.turns_before.waited;
    run->cluster->timing.turns_before = now;
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

// Keeps what is told to the others in the next agreement. The first step of an invocation also pays for what is touched
// and opened first: nothing is learnt from it.
static void remember_step(Run* run, const StepRecord* r) {
    const BatchPlan* b = run->batch.planned;
    PlanningSums* sum = &run->cluster->timing.planning;
    sum->plan_us += b->plan_us;
    sum->worst_us = MAX(sum->worst_us, b->plan_us);
    sum->stall_us += r->plan_stall_us;
    sum->predicted += b->made.predicted;
    sum->gap += b->made.predicted ? r->gap : 0;
    sum->tokens += r->tokens, sum->drawn += r->drawn;
    if (sum->steps++ == 0 || !b->made.predicted) return;
    if (r->virtual_time) return;  // there the model is the machine
    run->cluster->timing.last_ms = fmax(0, r->measured_ms - b->behind_ms),
    run->cluster->timing.last_late_ms = b->late_ms;
    memcpy(run->cluster->timing.last_terms, b->made.terms, sizeof run->cluster->timing.last_terms);
}

// Returns the mean reward of the step's answers; NaN: none has one, or the batch is that of one job of many.
static double mean_reward(const Run* run) {
    const Batch* b = &run->batch;
    double sum = 0;
    int n = 0;
    for (int i = 0; i < b->n_pieces && run->labels && !run->strategies; i += 1 + b->pieces[i].rest)
        n += docs_rewards(run->data.docs, b->pieces[i].doc, &sum);
    return n ? sum / n : NAN;
}

void run_end_record(Run* run) {
    StepRecord* r = &run->books->record;
    const Batch* b = &run->batch;
    const BatchPlan* x = b->planned;
    const Step* step = &run->step;
    Comm now = run_sent(run), *before = &run->cluster->sent_before;
    r->step = step->number, r->steps = run->config.steps;
    r->loss = step->loss, r->grad_norm = step->grad_norm, r->lr = step->lr;
    r->exposed_seconds = now.exposed_seconds - before->exposed_seconds;
    r->seconds = run_seconds(run) - run->cluster->timing.step_began;
    r->tokens = b->n_tokens, r->targets = b->n_targets, r->drawn = run_joins(run) ? x->drawn : 0;
    r->reward = mean_reward(run), r->micro_batches = x->made.plan.n_micro_batches;
    r->planner = run->config.plan, r->plan = &x->made.plan, r->plan_us = x->plan_us;
    r->strategy = run->strategies ? strategies_name(run, x->strategy) : NULL;
    r->virtual_time = run->model.k->virtual_time;
    share_of_peak(run, r);
    r->measured_ms = 1e3 * r->seconds - (r->virtual_time ? 0 : 1e-3 * r->plan_stall_us);
    r->stages = run->model.stages, r->rounds = b->n_rows;
    r->in_flight = x->made.schedule.stages[0].most_in_flight;
    r->bubble = schedule_bubble(&x->made.schedule, r->stages);
    r->gap = x->made.predicted ? prediction_gap(&x->made.prediction) : NAN;
    count_bytes(r, &now, before);
    remember_step(run, r);
}

// ---- the end

static void print_peak(const Run* run) {
    struct rusage usage;
    double before = run->books->resident_before, mib = 1 << 20;
    if (!run->model.k->on_host || before == 0 || getrusage(RUSAGE_SELF, &usage)) return;
    double most = (double)usage.ru_maxrss * 1024;
    printf("memory at most %.1f MiB%s: %.1f for the table above, %.1f before it\n", most / mib,
           run->model.world->size > 1 ? " on rank 0" : "", (most - before) / mib, before / mib);
}

static void print_planning(const Run* run) {
    const PlanningSums* sum = &run->cluster->timing.planning;
    if (run->model.world->size == 1 || sum->steps == 0) return;
    printf("planning took %.0f us a step, %.0f at most; steps waited for it %.1f ms in all",
           sum->plan_us / (double)sum->steps, sum->worst_us, sum->stall_us / 1e3);
    if (sum->predicted && run->cluster->timing.calibration.n > 0)
        printf("; their times were predicted within %.1f %% (median)",
               100 * calibration_median_error(&run->cluster->timing.calibration));
    if (sum->predicted) printf(", plans within %.1f %% of the bound (mean)", 100 * sum->gap / (double)sum->predicted);
    printf("\n");
}

static void print_communication(Run* run) {
    static const char* const purposes[N_PURPOSES] = {"other",      "ulysses",
                                                     "ring",       "routing",
                                                     "remap",      "gradients",
                                                     "parameters", "optimizer state",
                                                     "pipeline",   "tensor parallelism",
                                                     "slices",     "agreement"};
    char err[ERR_BYTES];
    Comm *c = run->model.world, mine = run_sent(run), sum = {0};
    Comm* all = c->size > 1 ? (Comm*)calloc((size_t)c->size, sizeof mine) : NULL;
    double least = INFINITY, most = 0;
    if (!all || c->table->all_gather_host(c, all, &mine, sizeof mine, err)) {
        free(all);
        return;
    }
    for (int r = 0; r < c->size; r++) {
        add_sent(&sum, &all[r]);
        most = MAX(most, all[r].exposed_seconds), least = MIN(least, all[r].exposed_seconds);
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
    if (run->stopped_by != SIGPIPE && done < c->steps && !c->resume && done == run->books->first_step)
        say(stdout, "nothing was learnt, and nothing is saved: start it again");
    else if (run->stopped_by == SIGPIPE && run->model.world->rank == 0)
        warn("standard output was closed: stopped at step %" PRId64 "; continue: %s --resume --out %s", done, command,
             out);
    else if (done < c->steps) say(stdout, "continue: %s --resume --out %s", command, out);
    else if (c->resume && run->books->first_step >= c->steps)
        say(stdout, "its steps were done before; to go on: %s --resume --out %s --steps %" PRId64, command, out,
            MAX(2 * done, (int64_t)1));
    else if (c->save_every && c->steps > 0 && (run_ends_turns(run) || run_learns_chats(run)))
        say(stdout, "use it:   ./train --out %s --chat", out);
    else if (c->save_every && c->steps > 0)
        say(stdout, "use it:   ./train --out %s --sample \"%s\"", out,
            c->data.n == 1 && !strcmp(c->data.paths[0], "/usr/include") ? "#include <" : "Once ");
    else if (c->save_every)
        say(stdout, "saved as it begins; to train it: %s --resume --out %s --steps 1000", command, out);
    else printf("nothing was saved\n");
}

void run_print_end(Run* run) {
    char elapsed[32], joined[96], err[ERR_BYTES];
    const PlanningSums* sum = &run->cluster->timing.planning;
    const char* how = run->stopped_by || run->cluster->unplanned || run->cluster->given_up ? "stopped" : "done";
    RunPage* page = run->books->page;
    double seconds = now_seconds() - run->began;
    run_log_event(run, "end", "how", how);
    if (page && !run_page_read(page, err) && isfinite(page->seconds)) seconds = page->seconds;
    runlog_say(&run->books->log, "%s at step %" PRId64 " of %" PRId64 " after %s; loss hash %016" PRIx64, how,
               run->state.step, run->config.steps, text_duration(seconds, elapsed), run->state.loss_hash);
    if (run_joins(run)) runlog_say(&run->books->log, "%s", run_joined(sum->tokens, sum->drawn, joined));
    print_next(run);
    if (!run->config.verbose) return;
    print_peak(run);
    print_planning(run);
    print_communication(run);
}
