// eval.c - how good a model is, without training it: its loss on documents, and which endings it finds likely.
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/choices.h"
#include "data/sampler_mix.h"
#include "run/run.h"
#include "run/step/batch_ranks.h"

// ---- the loss

// The sum of the losses of all ranks, between steps. A signal that any rank has seen all of them know of afterwards.
double eval_loss_sum(Run* run) {
    char err[ERR_BYTES];
    double sums[2] = {0, interrupted ? 1.0 : 0.0};
    const Model* m = &run->model;
    m->k->upload(m->grad_norm2, &sums[1], sizeof sums[1], m->s);  // stands behind the loss
    m->world->table->all_reduce(m->world, m->loss_sum, 2, DT_F64, m->s);
    if (m->world->table->wait(m->world, m->s, err)) run_lost(run, err);
    m->k->download(sums, m->loss_sum, sizeof sums, m->s);
    if (sums[1] > 0 && !run->stopped_by) run->stopped_by = interrupted ? interrupted : SIGTERM;
    return sums[0];
}

int eval_plan(Run* run) {
    char err[ERR_BYTES];
    Batch* b = &run->batch;
    Pace* pace = &run->clock->pace;
    int failed = batch_plan(b, run, run->state.step, err) || batch_read(b, run, run->data.val, err);
    if (failed) fail(run->cluster->why, "validation after step %" PRId64 ": %s", run->state.step, err);
    if (!run_agree_on_plan(run, b, failed)) return 0;
    run_enter_strategy(run, b->planned->strategy);
    pace->before = b->val_from, pace->part = b->val_to - b->val_from;
    return 1;
}

int eval_end(Run* run) {
    run_enter_strategy(run, run->ahead.planned->strategy);
    pace_end(run);
    pace_see_signals(run);
    return !run->stopped_by && !run->cluster->unplanned;
}

// Between steps, into the log.
void eval_tell(Run* run) {
    double loss = run->state.val_loss;
    runlog_strong(&run->books->log,
                  "step %" PRId64 ": validation loss %.4f over %" PRId64 " targets (a unigram model has %.4f), %.1f s",
                  run->state.step, loss, run->val_targets, run->books->unigram_loss, now_seconds() - run->val_began);
    double bits = loss / (log(2) * run->books->val_bytes);
    if (runlog_eval(&run->books->log, run->state.step, loss, run->val_targets, bits)) interrupted = SIGTERM;
}

// ---- --eval

void run_eval(Run* run) {
    int64_t targets = 0;
    double started = now_seconds();
    if (!config_was_given(&run->config, "--eval-every tokens")) run->config.eval_tokens = INT_MAX;
    if (sampler_pieces(run->data.val, SPLIT_VAL) == 0) die("--eval: these documents have no text to validate on");
    double loss = evaluate(run, &targets);
    if (run->cluster->unplanned) run_end_unplanned(run);
    if (run->model.world->rank > 0) return;
    run_unigram_loss(run);
    printf("loss %.6f, perplexity %.4f", loss, exp(loss));
    if (isfinite(run->books->val_bytes)) printf(", %.6f bits per byte", loss / (log(2) * run->books->val_bytes));
    char documents[64];
    say(stdout, ": %" PRId64 " targets in %s, %s, %.1f s", targets,
        text_many(sampler_documents(run->data.val, SPLIT_VAL), "document", documents), run->books->start_from,
        now_seconds() - started);
}

// ---- --eval FILE

// Room for the tokens of a context and the longest ending.
typedef struct Tokens {
    int *context, *ending;
    int n_context, n_ending;
} Tokens;

// log softmax(logits)[token] of token n of the last forward pass.
static double log_likelihood(Run* run, int n, int token) {
    const float* logits = run->host_logits;
    int V = run->model.shape.V;
    double most = -INFINITY, sum = 0;
    token_logits(run, n);
    for (int v = 0; v < V; v++) most = MAX(most, (double)logits[v]);
    for (int v = 0; v < V; v++) sum += exp((double)logits[v] - most);
    return (double)logits[token] - most - log(sum);
}

// The mean over the tokens of an ending, each after the context and those before it. The context's last token goes with
// the ending: its logits are those of the ending's first.
static double mean_likelihood(Run* run, const Tokens* t, int* row) {
    int N = t->n_ending, cached = t->n_context - 1, capacity = run->settled.capacity;
    double sum = 0;
    row[0] = t->context[t->n_context - 1];
    memcpy(row + 1, t->ending, (size_t)(N - 1) * sizeof *row);
    for (int at = 0, n; at < N; at += n) {
        run_decode(run, row + at, n = MIN(N - at, capacity), cached + at);
        for (int i = 0; i < n; i++) sum += log_likelihood(run, i, t->ending[at + i]);
    }
    return sum / N;
}

// Runs the context but for its last token into the cache. Of a context that does not fit beside the longest ending the
// beginning is left out.
static void run_context(Run* run, Tokens* t, int longest) {
    int room = run->model.shape.context - longest + 1, dropped = MAX(t->n_context - room, 0);
    t->context += dropped;
    t->n_context -= dropped;
    for (int at = 0, n; at < t->n_context - 1; at += n)
        run_decode(run, t->context + at, n = MIN(t->n_context - 1 - at, run->settled.capacity), at);
}

// The ending that is most likely.
static int choose_ending(Run* run, const Choice* c, Err err) {
    const Tokenizer* tokenizer = run->data.tokenizer;
    size_t most = strlen(c->context), longest = 0;
    int best = -1;
    double highest = -INFINITY;
    for (int i = 0; i < c->n; i++) longest = MAX(longest, strlen(c->endings[i]) + 1);
    int* context = (int*)malloc((most * (size_t)tokenizer->most + 1) * sizeof(int));
    int* ending = (int*)malloc((2 * longest * (size_t)tokenizer->most + 2) * sizeof(int));
    char* text = (char*)malloc(longest + 1);
    Tokens t = {context, ending, 0, 0};
    if (!context || !ending || !text) die("--eval: no memory for a question of %zu bytes", most + longest);
    context[0] = tokenizer->end_of_text;
    t.n_context = 1 + (int)tokenizer->encode(tokenizer, context + 1, c->context, most);
    int room = run->model.shape.context, n_longest = 0;
    for (int i = 0; i < c->n; i++) {
        size_t n = (size_t)snprintf(text, longest + 1, " %s", c->endings[i]);
        n_longest = MAX(n_longest, (int)tokenizer->encode(tokenizer, ending, text, n));
    }
    if (n_longest > room) fail(err, "an ending has %d tokens, the model's context %d", n_longest, room);
    else run_context(run, &t, n_longest);
    for (int i = 0; i < c->n && n_longest <= room; i++) {
        size_t n = (size_t)snprintf(text, longest + 1, " %s", c->endings[i]);
        t.n_ending = (int)tokenizer->encode(tokenizer, ending, text, n);
        double mean = mean_likelihood(run, &t, ending + t.n_ending);
        if (run->config.verbose) printf("  ending %d: %.6f\n", i, mean);
        if (mean > highest) highest = mean, best = i;
    }
    free(context);
    free(ending);
    free(text);
    return best;
}

void run_choices(Run* run) {
    const char* path = run->config.eval_choices;
    char err[ERR_BYTES], *line = NULL;
    size_t room = 0;
    int64_t number = 0, asked = 0, right = 0;
    double started = now_seconds();
    ssize_t n;
    FILE* file = fopen(path, "r");
    if (!file) die("--eval: %s: cannot read: %s", path, strerror(errno));
    while ((n = getline(&line, &room, file)) > 0) {
        Choice choice;
        number++;
        if (strspn(line, " \t\r\n") == (size_t)n) continue;
        if (choice_parse(&choice, line, (size_t)n, err)) die("%s:%" PRId64 ": %s", path, number, err);
        int chosen = choose_ending(run, &choice, err);
        if (chosen < 0) die("%s:%" PRId64 ": %s", path, number, err);
        asked++;
        right += chosen == choice.label;
        choice_free(&choice);
    }
    if (ferror(file)) die("--eval: %s: cannot read: %s", path, strerror(errno));
    fclose(file);
    free(line);
    if (asked == 0) die("--eval: %s: expected questions, found none", path);
    say(stdout,
        "accuracy %.4f: %" PRId64 " of %" PRId64 " right, by the mean log-likelihood of an ending's tokens, %.1f s",
        (double)right / (double)asked, right, asked, now_seconds() - started);
}
