// pace.c - signals that end a run, and long steps: the time that one should take, how far it is, how it is left.
//
// A rank that shares a pass with nobody may leave it out at any time, and nobody waits for it. Ranks that share a pass,
// directly or by others, ask each other before it, in the order of their exchanges. All of them leave it out or none
// does: so no rank waits for one that has left, nor longer than it would for the exchanges of the pass. The rest of the
// step happens as always, but the norm of the gradients is infinite, so model_update changes no weight and no moment.
// A pipeline finishes its step, because rounds of several stages are under way at any time.
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "data/sampler_mix.h"
#include "run/step/step.h"

enum {
    LONG_STEP = 60,      // seconds: people are told before the first step if it should take longer
    SILENCE = 10,        // seconds of a step before a terminal shows its progress
    PLAIN_INTERVAL = 60  // seconds between lines that stay
};
static const double least_left = 2;  // seconds that a step must have ahead of it to be left

// ---- signals

volatile sig_atomic_t interrupted;
static volatile sig_atomic_t tells_of_it;

// The first Ctrl-C finishes the step, or leaves it, and saves; the second ends the program as usual. A terminal that
// closes, or a reader of a pipe that ends, says so more than once, so later ones are ignored.
static void on_signal(int number) {
    static const char words[] = "\nends with this step, or leaves it, and saves; Ctrl-C again ends at once\n";
    interrupted = number;
    if (tells_of_it && number == SIGINT && write(STDERR_FILENO, words, sizeof words - 1) < 0) tells_of_it = 0;
    signal(number, number == SIGHUP || number == SIGPIPE ? SIG_IGN : SIG_DFL);
}

// Catches the signals that end a run. One that is ignored stays so, as nohup wants it.
void run_catch_signals(const Run* run) {
    tells_of_it = isatty(STDERR_FILENO) && !strcmp(run->cluster->identity.source, "alone");
    const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE};
    for (int i = 0; i < COUNT(numbers); i++)
        if (signal(numbers[i], on_signal) == SIG_IGN) signal(numbers[i], SIG_IGN);
}

double run_processor_seconds(Run* run) {
    return run->model.k->on_host ? host_processor_seconds() - run->cluster->timing.processor_before : 0;
}

void pace_see_signals(Run* run) {
    if (run->model.world->size == 1) run->stopped_by = interrupted;
    run->ends = run->stopped_by || run->cluster->unplanned || run->cluster->given_up;
}

// ---- the time that a step should take

// Returns the seconds of a step or an evaluation of all ranks, by its operations and the peak; NaN: no peak is known.
static double expected_seconds(const Run* run, const Batch* b) {
    const Shape* s = &run->model.whole;
    double linear = shape_training_flops(s, (double)b->n_tokens, 0), attention = shape_training_flops(s, 0, b->sum_s2);
    double passes = b->training ? (3 + layout_again(&run->model.ranks->layout, 0)) / 3 : 1.0 / 3;
    if (!(run->cluster->peak > 0)) return NAN;
    return passes * (linear / LINEAR_SHARE_OF_PEAK + attention / ATTENTION_SHARE_OF_PEAK) / run->cluster->peak;
}

void run_tell_of_long_steps(const Run* run) {
    const Config* c = &run->config;
    char text[32], other[32], option[96] = "a smaller model: --preset, --layers, --width";
    double seconds = expected_seconds(run, &run->ahead), each = seconds / (double)MAX(run->ahead.n_tokens, 1);
    int tokens = 1;
    if (!(seconds > LONG_STEP)) return;
    while (2 * tokens * each <= LONG_STEP && tokens < c->batch_tokens) tokens *= 2;
    if (tokens >= c->context)
        snprintf(option, sizeof option, "--batch-tokens %d, about %s", tokens, text_duration(tokens * each, other));
    say(stdout, "time    a step of %" PRId64 " tokens should take about %s (an estimate, from the peak); try %s",
        run->ahead.n_tokens, text_duration(seconds, text), option);
    double tested = (double)MIN((int64_t)c->eval_tokens, sampler_tokens(run->data.val, SPLIT_VAL)) * each / 3;
    if (c->eval_every && tested > LONG_STEP)
        say(stdout, "        a validation about %s; try --eval-every with a smaller tokens=N, or 0",
            text_duration(tested, text));
}

// ---- how far it is

void pace_begin(Run* run, int train) {
    Pace* p = &run->cluster->timing.pace;
    if (train) p->before = 0, p->part = 1;
    if (p->before <= 0) p->started = p->told = now_seconds();
    p->done = 0;
    p->all = (int64_t)run->batch.n_read * (train ? 3 : 1);
    p->left_from = INT_MAX;
    p->asks = expected_seconds(run, &run->batch) > least_left;
    run->model.left = 0;
}

static double share_done(const Pace* p) {
    return p->before + p->part * (double)p->done / (double)MAX(p->all, (int64_t)1);
}

// Returns the seconds ahead: by the time of the part that is done, or as expected if none is.
static double seconds_left(const Run* run, double now) {
    const Pace* p = &run->cluster->timing.pace;
    if (p->done > 0) return (now - p->started) * (1 / share_done(p) - 1);
    return p->asks ? expected_seconds(run, &run->batch) : 0;
}

static int rewrites_lines(const Run* run) { return run->model.world->size == 1 && progress_is_terminal(); }

void pace_end_task(Run* run, const Task* task) {
    Pace* p = &run->cluster->timing.pace;
    char spent[32], left[32], what[64] = "validation", line[256];
    double now = now_seconds(), elapsed = now - p->started;
    if (task->kind > TASK_BACKWARD) return;
    p->done += (int64_t)run->batch.planned->rows[task->slot].N * (task->kind == TASK_BACKWARD ? 2 : 1);
    if (run->model.world->rank > 0 || run->model.k->virtual_time || p->done == p->all) return;
    int rewrites = rewrites_lines(run);
    double silence = !rewrites ? PLAIN_INTERVAL : run->batch.training ? SILENCE : 1;
    if (elapsed < silence || now - p->told < (rewrites ? 0.1 : PLAIN_INTERVAL)) return;
    p->told = now;
    if (run->books->log.line_open) printf("\n");
    run->books->log.line_open = 0;
    if (run->batch.training)
        snprintf(what, sizeof what, "step %" PRId64 "/%" PRId64, run->state.step + 1, run->config.steps);
    snprintf(line, sizeof line, "%s | %.0f %% done in %s | %s left", what, 100 * share_done(p),
             text_duration(elapsed, spent), text_duration(seconds_left(run, now), left));
    progress_print(line, rewrites);
}

void pace_end(const Run* run) {
    if (run->cluster->timing.pace.told > run->cluster->timing.pace.started && rewrites_lines(run))
        progress_print("", 1);
}

void pace_say_left(Run* run) {
    char spent[32];
    pace_end(run);
    runlog_say(&run->books->log, "step %" PRId64 " is left after %s, and nothing of it is kept", run->state.step + 1,
               text_duration(now_seconds() - run->cluster->timing.pace.started, spent));
}

// ---- how it is left

// Returns 1 if one of the ranks first .. end of c has `mine` set. All ranks of c sum at once; some of them pass a sum
// from neighbour to neighbour and back.
static int any_of(const Model* m, Comm* c, int first, int end, int mine) {
    double sum = mine, other = 0;
    CommPurpose before = c->purpose;
    Transfer down = {c->rank - 1, m->ranks->barrier, sizeof sum}, up = {c->rank + 1, m->ranks->barrier, sizeof sum};
    int has_down = c->rank > first, has_up = c->rank < end - 1;
    c->purpose = COMM_HOST;
    m->k->upload(m->ranks->barrier, &sum, sizeof sum, m->s);
    if (end - first == c->size) c->table->all_reduce(c, m->ranks->barrier, 1, DT_F64, m->s);
    else {
        comm_send_receive(c, NULL, 0, &down, has_down, m->s);
        if (has_down) m->k->download(&other, m->ranks->barrier, sizeof other, m->s);
        sum += other;
        m->k->upload(m->ranks->barrier, &sum, sizeof sum, m->s);
        comm_send_receive(c, &up, has_up, NULL, 0, m->s);
        comm_send_receive(c, NULL, 0, &up, has_up, m->s);
        comm_send_receive(c, &down, has_down, NULL, 0, m->s);
    }
    m->k->download(&sum, m->ranks->barrier, sizeof sum, m->s);
    c->purpose = before;
    return sum > 0;
}

// Finds the data ranks first .. end that wait for each other in pass i of this rank: those that share a micro-batch of
// its round, those that share one with these, and so on.
static void find_peers(const BatchPlan* x, const Model* m, int i, int* first, int* end) {
    const RankPass* pass = &x->passes[i];
    int round = pass->n_groups ? x->groups[pass->first_group].mb->round : -1, ranks = 0;
    *first = m->comm->rank, *end = *first + 1;
    if (m->ranks->zero.stage > 1 || x->made.plan.has_barriers) *first = 0, *end = m->comm->size;
    while (ranks < *end - *first) {
        ranks = *end - *first;
        for (int k = 0; k < x->made.plan.n_micro_batches; k++) {
            const MicroBatch* mb = &x->made.plan.micro_batches[k];
            int last = mb->first_rank + mb->cp_size;
            if (mb->round != round || mb->first_rank >= *end || last <= *first) continue;
            *first = MIN(*first, mb->first_rank), *end = MAX(*end, last);
        }
    }
}

int pace_leaves(Run* run, const Task* task) {
    Pace* p = &run->cluster->timing.pace;
    Model* m = &run->model;
    int first, end, leaves = task->round >= p->left_from;
    if (m->stages > 1 || m->k->virtual_time) return 0;
    if (interrupted && seconds_left(run, now_seconds()) > least_left) leaves = 1;
    find_peers(run->batch.planned, m, task->round, &first, &end);
    int is_shared = m->tp || end - first > 1;
    if (is_shared && !p->asks) return 0;
    if (m->tp) leaves = any_of(m, m->tp, 0, tp_size(m), leaves);
    if (end - first > 1) leaves = any_of(m, m->comm, first, end, leaves);
    if (leaves) p->left_from = MIN(p->left_from, task->round), m->left = 1;
    return leaves;
}
