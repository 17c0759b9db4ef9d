// eval.c - judges a model without training it: its loss beside a unigram model's, endings that it finds likely, text.
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/choices.h"
#include "data/sampler_mix.h"
#include "run/model/tensor_parallel.h"
#include "run/setup/setup.h"

// ---- the loss

// Returns the sum of the losses of all ranks, between steps. Afterwards all ranks know of a signal that any has seen.
double eval_loss_sum(Run* run) {
    char err[ERR_BYTES];
    double sums[2] = {0, interrupted ? 1.0 : 0.0};
    const Model* m = &run->model;
    m->k->upload(m->grad_norm2, &sums[1], sizeof sums[1], m->s);  // lies after the loss
    m->world->table->all_reduce(m->world, m->loss_sum, 2, DT_F64, m->s);
    if (m->world->table->wait(m->world, m->s, err)) run_lost(run, err);
    m->k->download(sums, m->loss_sum, sizeof sums, m->s);
    if (sums[1] > 0 && !run->stopped_by) run->stopped_by = interrupted ? interrupted : SIGTERM;
    return sums[0];
}

int eval_plan(Run* run) {
    char err[ERR_BYTES];
    Batch* b = &run->batch;
    Pace* pace = &run->cluster->timing.pace;
    if (b->val_from == 0) run->books->val_began = now_seconds();
    int failed = batch_cut_trees(b, run, run->data.val, err) || batch_plan(b, run, run->state.step, err) ||
                 batch_read(b, run, run->data.val, err);
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

void run_tell_loss(Run* run) {
    double loss = run->state.val_loss;
    runlog_strong(&run->books->log,
                  "step %" PRId64 ": validation loss %.4f over %" PRId64 " targets (a unigram model has %.4f), %.1f s",
                  run->state.step, loss, run->val_targets, run->books->unigram_loss,
                  now_seconds() - run->books->val_began);
    double bits = loss / (log(2) * run->books->val_bytes);
    if (runlog_eval(&run->books->log, run->state.step, loss, run->val_targets, bits)) interrupted = SIGTERM;
}

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

// ---- --eval

void run_eval(Run* run) {
    int64_t targets = 0;
    double started = now_seconds();
    if (!config_was_given(&run->config, "--eval-every tokens")) run->config.eval_tokens = INT_MAX;
    if (sampler_pieces(run->data.val, SPLIT_VAL) == 0) die("--eval: these documents have no text to validate on");
    double loss = evaluate(run, &targets);
    if (run->cluster->unplanned) run_end_unplanned(run);
    if (isnan(loss) && targets > 0 && !run->model.k->no_results)
        die("--eval: expected a loss, found %g: the model of %s has weights that are no numbers", loss,
            run->books->start_from);
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

double log_softmax(const float* logits, int V, int token) {
    double most = -INFINITY, sum = 0;
    for (int v = 0; v < V; v++) most = MAX(most, (double)logits[v]);
    for (int v = 0; v < V; v++) sum += exp((double)logits[v] - most);
    return (double)logits[token] - most - log(sum);
}

const float* token_logits(Run* run, int n) {
    const Model* m = &run->model;
    float* host = run->books->logits;
    size_t Vp = (size_t)m->shape.Vp;
    if (!m->shape.no_head) {
        m->k->download(host, tp_logits(m, n, 1), Vp * dtype_bytes(m->dt), m->s);
        if (m->dt == DT_BF16) bf16_widen_in_place(host, Vp);
    }
    pipeline_share(m, host, Vp * sizeof *host, m->stages - 1);
    return host;
}

// Returns the mean log-likelihood of the N tokens of an ending, each after the context and those before it. row begins
// with the context's last token, whose logits judge the first of them.
static double mean_likelihood(Run* run, const int* row, int N, int cached) {
    double sum = 0;
    run_decode(run, row, &N, 1, 0, cached);
    for (int i = 0; i < N; i++) sum += log_softmax(token_logits(run, i), run->model.shape.V, row[i + 1]);
    return sum / N;
}

// Runs the n tokens of a context but for the last into the cache, and returns how many. It leaves out the beginning of
// one that does not fit beside the longest ending.
static int run_context(Run* run, const int* context, int n, int longest) {
    int most = run->model.shape.context - longest, cached = MIN(n - 1, most);
    context += n - 1 - cached;
    if (cached) run_decode(run, context, &cached, 1, 0, 0);
    return cached;
}

// Returns the most likely ending, or -1 with a message.
static int choose_ending(Run* run, const Choice* c, Err err) {
    const Tokenizer* t = run->data.tokenizer;
    size_t bytes = strlen(c->context) + 1;
    int best = -1, longest = 0, cached = 0;
    double highest = -INFINITY;
    for (int i = 0; i < c->n; i++) bytes += strlen(c->endings[i]) + 2;
    int *tokens = (int*)malloc((bytes * (size_t)t->most + (size_t)c->n + 1) * sizeof(int)),
        *length = (int*)malloc((size_t)c->n * sizeof(int));
    char* text = (char*)malloc(bytes);
    if (!tokens || !length || !text) die("--eval: no memory for a question of %zu bytes", bytes);
    tokens[0] = t->end_of_text;
    int n_context = 1 + (int)t->encode(t, tokens + 1, c->context, strlen(c->context));
    int *endings = tokens + n_context, *row = endings, last = endings[-1];
    for (int i = 0; i < c->n; row += 1 + length[i++]) {
        size_t n = (size_t)snprintf(text, bytes, " %s", c->endings[i]);
        row[0] = last;
        length[i] = (int)t->encode(t, row + 1, text, n);
        longest = MAX(longest, length[i]);
    }
    int fits = longest <= run->model.shape.context;
    if (fits) cached = run_context(run, tokens, n_context, longest);
    else fail(err, "an ending has %d tokens, the model's context %d", longest, run->model.shape.context);
    row = endings;
    for (int i = 0; i < c->n && fits; row += 1 + length[i++]) {
        double mean = mean_likelihood(run, row, length[i], cached);
        if (run->config.verbose) printf("  ending %d: %.6f\n", i, mean);
        if (mean > highest) highest = mean, best = i;
    }
    free(tokens);
    free(length);
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

// ---- text from the model while it trains: prompts that are the same at every step, so that samples compare

// Fills text, which has room for a context and its end-of-text already, with the beginning of a document that is not
// trained on: of an instruction, up to what is learnt. If there are too few documents it takes a piece of one. Returns
// the number of all tokens.
static int held_out_prompt(const Run* run, int which, int* text) {
    enum { SEARCHED = 1000, LENGTH = 16 };
    const Sampler* val = run->data.val;
    char err[ERR_BYTES];
    int64_t pieces = sampler_pieces(val, SPLIT_VAL), chosen = -1;
    int found = 0;
    for (int64_t i = 0; i < MIN(pieces, SEARCHED) && chosen < 0; i++)
        if (sampler_val_piece(val, i).first == 0 && found++ == which) chosen = i;
    if (pieces == 0) return 1;
    Piece piece = sampler_val_piece(val, chosen < 0 ? MIN((int64_t)which, pieces - 1) : chosen);
    int *tokens = run->batch.tokens, *targets = run->batch.targets, n = 0;  // between steps
    if (sampler_read(val, &piece, tokens, targets, err)) die("%s", err);
    while (n < piece.length - 1 && targets[n] < 0) n++;
    n = n ? n + 1 : MIN(LENGTH, MAX(piece.length / 2, 1));
    int skips = piece.first == 0;  // the end-of-text
    memcpy(text + 1, tokens + skips, (size_t)(n - skips) * sizeof *tokens);
    return 1 + n - skips;
}

// Prints a sample, and writes it into the log.
static void print_sample(Run* run, int which, uint64_t seed) {
    enum { LENGTH = 128 };
    static const char* const of_headers[] = {"#include <", "static inline "};
    const PathList* data = &run->config.data;
    char* copied = NULL;
    size_t n = 0;
    int n_new = MIN(run->config.tokens, LENGTH);
    FILE* copy = open_memstream(&copied, &n);
    if (data->n == 1 && !strcmp(data->paths[0], "/usr/include"))
        sample_print(run, of_headers[which], n_new, seed, copy);
    else {
        int* text = sample_begin(run, (size_t)run->config.context + (size_t)n_new);
        sample_tokens(run, text, held_out_prompt(run, which, text), n_new, seed, copy);
        free(text);
    }
    if (copy && !fclose(copy)) run_log_event(run, "sample", "text", copied);
    free(copied);
}

void run_sample(Run* run) {
    enum { SAMPLES = 2 };
    if (run->data.docs->max_token >= run->data.tokenizer->vocab) {
        runlog_say(&run->books->log, "step %" PRId64 ": no sample, the tokens of these shards need --tokenizer",
                   run->state.step);
        return;
    }
    // Other ranks must join in only if weights are divided: those of one tensor-parallel group, or all.
    if (run->model.comm->rank > 0 && run->model.ranks->zero.stage < 3) return;
    uint64_t seed = hash64((uint64_t)run->config.seed ^ (uint64_t)run->state.step);
    for (int which = 0; which < SAMPLES; which++) {
        runlog_say(&run->books->log, "step %" PRId64 ": a sample", run->state.step);
        wrap_pause(1);
        print_sample(run, which, hash64(seed + (uint64_t)which));
        wrap_pause(0);
    }
}
