// labels.c - see labels.h.
#include "run/step/labels.h"

#include <math.h>
#include <stdlib.h>

#include "run/model/model_ranks.h"
#include "run/step/step.h"

// ---- memory

size_t label_ints(const Run* run, int max_tokens) {
    return run->labels ? (LABEL_LISTS + 2) * (size_t)max_tokens : 0;  // also their places, and the kept losses
}

size_t label_floats(const Run* run, int max_tokens) {
    return run->labels && run->labels->may_keep ? 2 * (size_t)max_tokens : 0;
}

static int* places_of(const Batch* b) { return (int*)b->planned->labels + LABEL_LISTS * (size_t)b->max_tokens; }
static float* list_of(const Batch* b, int list) { return b->planned->labels + (size_t)list * (size_t)b->max_tokens; }

static float* on_device(const Batch* b, const float* host) { return (float*)batch_on_device(b, (const int*)host); }

// ---- opening

static void check_options(const Config* c) {
    static const char* const grpo[] = {"--clip-low", "--clip-high", "--kl"};
    if (config_was_given(c, "--beta") && strcmp(c->loss, "dpo") != 0)
        die("--beta is for --loss dpo, found %s", c->loss);
    for (int i = 0; i < COUNT(grpo); i++)
        if (config_was_given(c, grpo[i]) && strcmp(c->loss, "grpo") != 0)
            die("%s is for --loss grpo, found %s", grpo[i], c->loss);
}

void labels_open(Run* run) {
    char err[ERR_BYTES];
    const Config* c = &run->config;
    Docs* docs = run->data.docs;
    int prefers = !strcmp(c->loss, "dpo"), draws = !strcmp(c->loss, "grpo");
    LabelNeeds needs = {c->loss, draws, prefers || c->kl > 0, draws, prefers};
    check_options(c);
    int asks = run->books->claims && config_was_given(c, "--data") && !c->resume;
    if (asks && !config_was_given(c, "--loss") && docs->more->judges)
        die("--data: lines have \"%s\", and without --loss bad answers are learnt as good ones are; try --loss dpo "
            "(chosen, rejected, rank), --loss grpo (reward, advantage), or --loss nll: all alike",
            docs->more->judges);
    if (run->books->uses_model && !c->score) return;
    if (!c->score && !prefers && !draws && docs->more->n_terms == 0) return;
    int finds = needs.reference && run->books->claims && docs_lack_references(docs);
    if (finds || c->explain) needs.reference = 0;  // a plan needs none
    if (!c->score && (prefers || draws) && docs_check_labels(docs, &needs, err)) die("--data: %s", err);
    if (!c->score) docs->more->weigh = prefers ? docs_pairs : docs_weight;
    run->labels = (Labels*)calloc(1, sizeof *run->labels);
    if (!run->labels) die("no memory for labels");
    Labels* l = run->labels;
    l->prefers = prefers, l->beta = c->beta, l->may_keep = prefers || c->score || finds;
    l->lacks_references = finds;
    l->loss = (TokenLoss){.kind = prefers ? LOSS_GIVEN : draws ? LOSS_GRPO : LOSS_NLL};
    l->loss.clip_low = (float)c->clip_low, l->loss.clip_high = (float)c->clip_high, l->loss.kl = (float)c->kl;
}

// ---- beside a row's tokens

void labels_read(Batch* b, const Sampler* sampler, const Piece* p, int first, int length, int stands_at) {
    int at = b->n_read - length, *place = places_of(b) + at, known = MIN(length, p->n_targets - first);
    LabelTerms terms;
    for (int i = 0; i < length; i++) {
        place[i] = stands_at + i;
        terms = (LabelTerms){0};
        if (i < known) docs_terms(sampler->docs, p->doc, p->first + first + i + 1, 1, &terms);
        list_of(b, 0)[at + i] = terms.weight, list_of(b, 1)[at + i] = terms.old;
        list_of(b, 2)[at + i] = terms.reference, list_of(b, 3)[at + i] = terms.advantage;
    }
}

void labels_upload(Run* run) {
    const Batch* b = &run->batch;
    TokenLoss* loss = &run->labels->loss;
    run->labels->targets = batch_on_device(b, b->targets), run->labels->places = places_of(b);
    for (int i = 0; i < LABEL_LISTS; i++) batch_upload_ints(b, &run->model, (int*)list_of(b, i), b->n_read);
    loss->weight = on_device(b, list_of(b, 0)), loss->old = on_device(b, list_of(b, 1));
    loss->reference = on_device(b, list_of(b, 2)), loss->advantage = on_device(b, list_of(b, 3));
}

// ---- after the classifier

static void weigh(const Model* m, const Row* row, void* logits, int n, int N, int train) {
    const Labels* l = row->labels;
    TokenLoss of = token_loss_from(l->loss, (int)(row->targets - l->targets) + n);
    float* losses = (float*)model_act(m, LOSSES, 0) + n;
    m->k->ranks->weigh_labels(losses, logits, row->targets + n, &of, train, N, m->shape.vocab_rows, m->dt, m->s);
}

static void keep(const Model* m, const Row* row, void* logits, int n, int N, int train) {
    const Labels* l = row->labels;
    (void)logits, (void)train;
    if (tp_rank(m) > 0 || m->k->no_results) return;
    float* losses = l->kept + l->room;
    m->k->download(losses, (float*)model_act(m, LOSSES, 0) + n, (size_t)N * sizeof(float), m->s);
    const int* places = l->places + (row->targets - l->targets) + n;
    for (int i = 0; i < N; i++) l->kept[places[i]] = losses[i];
}

void labels_fill_row(Run* run, Row* row) {
    row->labels = run->labels;
    row->weigh = run->labels->keeps ? keep : run->batch.training ? weigh : NULL;
}

// ---- the model's judgement of labels

void labels_keep(Run* run, const Sampler* sampler) {
    char err[ERR_BYTES];
    Labels* l = run->labels;
    Model* m = &run->model;
    size_t n = 0;
    for (int i = 0; i < run->batch.n_pieces; i++) n += (size_t)run->batch.pieces[i].length;
    memset(l->kept, 0, n * sizeof *l->kept);
    l->keeps = 1;
    run_micro_batches(run, sampler, 0);
    l->keeps = 0;
    float* all = on_device(&run->batch, list_of(&run->batch, LABEL_LISTS + 1));
    m->k->upload(all, l->kept, n * sizeof *l->kept, m->s);
    m->job->table->all_reduce(m->job, all, n, DT_F32, m->s);
    if (m->job->table->wait(m->job, m->s, err)) run_lost(run, err);
    m->k->download(l->kept, all, n * sizeof *l->kept, m->s);
}

// ---- preferences

// An answer is n labels from `at` on among the tokens of all pieces; margin: sum of (log p - reference).
typedef struct Answer {
    int at, n;
    double margin;
} Answer;

// Returns the place of a token that this piece, or a later part of its tree, learns.
static int where_learnt(const Batch* b, int piece, int64_t token) {
    for (int i = piece; i <= piece + b->pieces[piece].rest; i++)
        for (int k = 0, at = b->planned->starts[i]; k < piece_stretches(&b->pieces[i]); k++) {
            const Piece* part = piece_stretch(b->pieces, &b->pieces[i], k);
            int64_t within = token - part->first;
            if (part->n_labels && within >= 0 && within < part->length) return at + (int)within;
            at += part->length;
        }
    broken("token %lld of a tree is learnt in no part of it", (long long)token);
}

static Answer answer_of(const Run* run, int piece, const float* kept, const DocsSegment* segment) {
    const Docs* docs = run->data.docs;
    int64_t doc = run->batch.pieces[piece].doc;
    Answer a = {where_learnt(&run->batch, piece, segment->first), segment->length - 1, 0};
    for (int t = 0; t < a.n; t++) {
        LabelTerms terms;
        docs_terms(docs, doc, segment->first + t + 1, 1, &terms);
        a.margin += -(double)kept[a.at + t] - terms.reference;
    }
    return a;
}

static void add_slope(double* slopes, const Answer* a, double slope) {
    for (int t = 0; t < a->n; t++) slopes[a->at + t] += slope;
}

// Adds slopes and losses (of all pieces' tokens) of the pairs of a tree, whose first piece this is.
static void add_pairs(const Run* run, int piece, const float* kept, double* slopes, double* losses) {
    const DocsSegment* segments;
    double beta = run->labels->beta;
    int n = docs_segments(run->data.docs, run->batch.pieces[piece].doc, &segments);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            if (segments[i].rank < 0 || segments[j].rank <= segments[i].rank) continue;
            Answer better = answer_of(run, piece, kept, &segments[i]);
            Answer worse = answer_of(run, piece, kept, &segments[j]);
            double x = beta * (better.margin - worse.margin), slope = beta / (1 + exp(x));
            losses[better.at] += x > 0 ? log1p(exp(-x)) : -x + log1p(exp(x));
            add_slope(slopes, &better, slope), add_slope(slopes, &worse, -slope);
        }
}

void labels_prefer(Run* run) {
    Labels* l = run->labels;
    const Batch* b = &run->batch;
    size_t n = (size_t)b->max_tokens;
    if (!l || !l->prefers) return;
    labels_keep(run, run->data.train);
    double *slopes = (double*)calloc(2 * n, sizeof *slopes), *losses = slopes + n;
    if (!slopes) die("no memory for the preferences of %d tokens", b->max_tokens);
    for (int i = 0; i < b->n_pieces && !run->model.k->no_results; i += 1 + b->pieces[i].rest)
        add_pairs(run, i, l->kept, slopes, losses);
    for (int t = 0; t < b->n_read && !run->model.k->no_results; t++) {
        list_of(b, 0)[t] = (float)slopes[places_of(b)[t]];
        list_of(b, 1)[t] = (float)losses[places_of(b)[t]];
    }
    free(slopes);
}
