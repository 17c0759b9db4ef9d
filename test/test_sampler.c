// test_sampler.c - the sampler visits every training token once an epoch, whatever the sizes, and holds out whole
// documents.
//
// Corpora are JSONL in memory: the text of document i is given by its length and its number, so that expected tokens
// and labels are known without reading the corpus.
#include "data/sampler_mix.h"

#include <stdint.h>

#include "plan/base/base.h"
#include "test/docs_bytes.h"
#include "test/test.h"

static char err[ERR_BYTES];
static Tokenizer* tokenizer;
static Docs* docs;            // of the claim at hand
static Sampler* samplers[4];  // the last of it
static int n_samplers;

static void forget(void) {
    for (int i = 0; i < COUNT(samplers); i++) sampler_close(samplers[i]), samplers[i] = NULL;
    docs_close(docs);
    docs = NULL;
}

static char letter_at(int doc, int i) { return (char)('a' + (doc * 7 + i * (1 + doc % 5) + i / 11) % 26); }

// Documents of the given numbers of letters; copies of a document have the same name.
static void open_corpus(const int* letters, const int* names, int n) {
    size_t size = 1, at = 0;
    for (int d = 0; d < n; d++) size += (size_t)letters[d] + 16;
    char* file = malloc(size);
    for (int d = 0; d < n; d++) {
        at += (size_t)sprintf(file + at, "{\"text\":\"");
        for (int i = 0; i < letters[d]; i++) file[at++] = letter_at(names ? names[d] : d, i);
        at += (size_t)sprintf(file + at, "\"}\n");
    }
    forget();
    if (docs_open_bytes(&docs, ".jsonl", file, at, tokenizer, err)) die("%s", err);
    free(file);
}

static void open_one(int letters) { open_corpus(&letters, NULL, 1); }

static void open_random(int n, int longest, uint64_t seed) {
    int* letters = malloc((size_t)n * sizeof *letters);
    for (int d = 0; d < n; d++) letters[d] = (int)(random_uniform(seed, (uint64_t)d) * (longest + 1));
    letters[0] = longest;
    open_corpus(letters, NULL, n);
    free(letters);
}

// Of the corpus; good for the next three calls.
static Sampler* sampler_of(int context, double val_fraction, uint64_t seed) {
    Sampler** s = &samplers[n_samplers++ % COUNT(samplers)];
    sampler_close(*s);
    if (sampler_open(s, docs, context, val_fraction, seed, err)) die("%s", err);
    return *s;
}

static Piece piece_at(const Sampler* s, int64_t epoch, int64_t index) {
    return sampler_train_piece(s, (SamplerPosition){.epoch = epoch, .index = index});
}

// A counter for every token of a corpus.
static int** counters(void) {
    int** seen = malloc((size_t)docs->n * sizeof *seen);
    for (int64_t d = 0; d < docs->n; d++) seen[d] = calloc((size_t)docs_length(docs, d), sizeof **seen);
    return seen;
}

static void counters_free(int** seen) {
    for (int64_t d = 0; d < docs->n; d++) free(seen[d]);
    free(seen);
}

static void count_piece(int** seen, const Piece* p, int context) {
    CHECK(p->length >= 1 && p->length <= context);
    CHECK(p->doc >= 0 && p->doc < docs->n);
    CHECK(p->first >= 0 && p->first + p->length <= docs_length(docs, p->doc));
    CHECK(p->n_targets == p->length || p->n_targets == p->length - 1);
    for (int i = 0; i < p->length; i++) seen[p->doc][p->first + i]++;
}

static int same_piece(Piece a, Piece b) {
    return a.doc == b.doc && a.first == b.first && a.length == b.length && a.n_targets == b.n_targets;
}

// ---- claims

CLAIM(every_training_token_is_drawn_once_an_epoch) {
    static const int contexts[] = {1, 2, 3, 16, 64, 1000};
    open_random(60, 150, 1);
    for (int k = 0; k < COUNT(contexts); k++) {
        for (int extra = 0; extra < 200; extra += 67) {
            int context = contexts[k], batch = context + extra, epochs = 3;
            Sampler* s = sampler_of(context, 0, 5);
            int64_t total = sampler_tokens(s, SPLIT_TRAIN), pieces_left = epochs * sampler_pieces(s, SPLIT_TRAIN),
                    targets = 0;
            Piece pieces[1200];
            int** seen = counters();
            SamplerPosition position = {0};
            while (pieces_left > 0) {
                int n = sampler_draw(s, &position, pieces, (int)MIN(batch, pieces_left), batch), sum = 0;
                CHECK(n >= 1);
                for (int i = 0; i < n; i++) {
                    count_piece(seen, &pieces[i], context);
                    sum += pieces[i].length;
                    targets += pieces[i].n_targets;
                }
                CHECK(sum <= batch);
                pieces_left -= n;
            }
            CHECK(position.epoch == epochs && position.index == 0);
            CHECK(total == docs_tokens(docs));
            CHECK(targets == epochs * (docs_tokens(docs) - docs->n));
            for (int64_t d = 0; d < docs->n; d++)
                for (int64_t i = 0; i < docs_length(docs, d); i++) CHECK(seen[d][i] == epochs);
            counters_free(seen);
        }
    }
}

CLAIM(a_draw_takes_as_many_pieces_as_fit) {
    open_random(40, 90, 2);
    Sampler* s = sampler_of(50, 0, 1);
    SamplerPosition position = {0};
    Piece pieces[128];
    for (int step = 0; step < 200; step++) {
        int n = sampler_draw(s, &position, pieces, 128, 128), sum = 0;
        for (int i = 0; i < n; i++) sum += pieces[i].length;
        CHECK(sum + sampler_train_piece(s, position).length > 128);  // the next one did not fit
    }
    CHECK(sampler_draw(s, &position, pieces, 1, 128) == 1);
    CHECK(sampler_draw(s, &position, pieces, 128, 50) >= 1);
}

// Documents of a context and a token more: the last one alone would fill no step.
CLAIM(no_step_is_without_a_label) {
    int letters[] = {64, 64, 64, 64};
    open_corpus(letters, NULL, 4);
    Sampler* s = sampler_of(64, 0, 1);
    SamplerPosition plain = {0}, position = {0};
    Piece pieces[64];
    int without = 0, targets = 0;
    while (plain.epoch < 8) without += sampler_draw(s, &plain, pieces, 64, 64) == 1 && pieces[0].n_targets == 0;
    while (position.epoch < 8 && targets < 8 * 4 * 64) {
        int n = sampler_draw_step(s, &position, pieces, 64, 64), of_step = 0;
        for (int i = 0; i < n; i++) of_step += pieces[i].n_targets;
        CHECK(of_step > 0);
        targets += of_step;
    }
    CHECK(without > 0 && targets == 8 * 4 * 64);
}

// Pieces of context 1 of one document are numbered by their place, so that the order is seen as a permutation.
CLAIM(the_order_is_a_permutation_for_every_length) {
    for (int n = 2; n <= 200; n++) {
        open_one(n - 1);
        Sampler* s = sampler_of(1, 0, (uint64_t)n);
        CHECK(sampler_pieces(s, SPLIT_TRAIN) == n);
        for (int64_t epoch = 0; epoch < 4; epoch++) {
            char seen[200] = {0};
            for (int64_t i = 0; i < n; i++) seen[piece_at(s, epoch, i).first]++;
            for (int i = 0; i < n; i++) CHECK(seen[i] == 1);
        }
    }
}

static int same_places(const Sampler* a, int64_t epoch_a, const Sampler* b, int64_t epoch_b, int n) {
    int same = 0;
    for (int i = 0; i < n; i++) same += same_piece(piece_at(a, epoch_a, i), piece_at(b, epoch_b, i));
    return same;
}

// Two random permutations of n agree in one place on average, and in more than 8 with probability below 2e-6 (Poisson).
CLAIM(epochs_and_seeds_have_orders_of_their_own) {
    open_one(499);
    Sampler *s = sampler_of(1, 0, 1), *other = sampler_of(1, 0, 2);
    CHECK(same_places(s, 0, s, 0, 500) == 500);
    for (int64_t epoch = 0; epoch < 5; epoch++) {
        CHECK(same_places(s, epoch, s, epoch + 1, 500) <= 8);
        CHECK(same_places(s, epoch, other, epoch, 500) <= 8);
        int fixed = 0, followed = 0;  // neither is it close to the order of the corpus
        for (int i = 0; i < 500; i++) {
            int64_t first = piece_at(s, epoch, i).first;
            fixed += first == i;
            followed += i > 0 && piece_at(s, epoch, i - 1).first + 1 == first;
        }
        CHECK(fixed <= 8 && followed <= 8);
    }
}

// Every one of the 24 orders of four pieces should come up: among 2000 epochs each is expected 83 times, with a
// standard deviation of 9, so that 30 and 140 are six deviations away.
CLAIM(orders_of_few_pieces_are_all_met) {
    open_one(3);
    Sampler* s = sampler_of(1, 0, 1);
    int count[256] = {0}, n_orders = 0;
    for (int64_t epoch = 0; epoch < 2000; epoch++) {
        int order = 0;
        for (int i = 0; i < 4; i++) order = order * 4 + (int)piece_at(s, epoch, i).first;
        count[order]++;
    }
    for (int i = 0; i < 256; i++) {
        n_orders += count[i] > 0;
        CHECK(count[i] == 0 || (count[i] > 30 && count[i] < 140));
    }
    CHECK(n_orders == 24);
}

CLAIM(sides_are_disjoint_and_complete) {
    open_random(400, 60, 4);
    for (int k = 0; k < 4; k++) {
        double fraction = (double[]){0, 0.01, 0.1, 0.5}[k];
        Sampler* s = sampler_of(16, fraction, 7);
        int** seen = counters();
        char lengths[2][17] = {{0}}, marked[2][17] = {{0}};
        for (int64_t i = 0; i < sampler_pieces(s, SPLIT_TRAIN); i++) {
            Piece p = piece_at(s, 3, i);
            count_piece(seen, &p, 16);
            lengths[SPLIT_TRAIN][p.length] = 1;
        }
        int64_t val_tokens = 0;
        for (int64_t i = 0; i < sampler_pieces(s, SPLIT_VAL); i++) {
            Piece p = sampler_val_piece(s, i);
            count_piece(seen, &p, 16);
            val_tokens += p.length;
            lengths[SPLIT_VAL][p.length] = 1;
        }
        for (int side = 0; side < 2; side++) sampler_mark_lengths(s, (Split)side, marked[side]);
        CHECK(memcmp(lengths, marked, sizeof lengths) == 0);
        CHECK(val_tokens == sampler_tokens(s, SPLIT_VAL));
        CHECK(sampler_tokens(s, SPLIT_TRAIN) + val_tokens == docs_tokens(docs));
        if (fraction != 0.01) CHECK(sampler_documents(s, SPLIT_TRAIN) + sampler_documents(s, SPLIT_VAL) == 400);
        for (int64_t d = 0; d < 400; d++)
            for (int64_t i = 0; i < docs_length(docs, d); i++) CHECK(seen[d][i] == 1);
        // 6 standard deviations of a binomial distribution
        double wanted = 400 * fraction, spread = 6 * sqrt(wanted * (1 - fraction));
        if (fraction == 0 || fraction >= 0.1) CHECK_CLOSE((double)sampler_documents(s, SPLIT_VAL), wanted, spread);
        counters_free(seen);
    }
}

CLAIM(validation_pieces_do_not_depend_on_the_seed) {
    open_random(200, 60, 5);
    Sampler *a = sampler_of(16, 0.2, 1), *b = sampler_of(16, 0.2, 2);
    CHECK(sampler_pieces(a, SPLIT_VAL) > 10 && sampler_pieces(a, SPLIT_VAL) == sampler_pieces(b, SPLIT_VAL));
    for (int64_t i = 0; i < sampler_pieces(a, SPLIT_VAL); i++)
        CHECK(same_piece(sampler_val_piece(a, i), sampler_val_piece(b, i)));
}

CLAIM(copies_of_a_document_land_on_one_side) {
    enum { N = 300 };
    int letters[N], names[N];
    for (int d = 0; d < N; d++) {
        names[d] = d % 100;  // three copies of each
        letters[d] = 20 + names[d] % 30;
    }
    open_corpus(letters, names, N);
    Sampler* s = sampler_of(1000, 0.3, 1);
    char side[N] = {0};
    for (int64_t i = 0; i < sampler_pieces(s, SPLIT_VAL); i++) side[sampler_val_piece(s, i).doc] = 1;
    int n_val = 0;
    for (int d = 0; d < N; d++) {
        CHECK(side[d] == side[names[d]]);
        n_val += side[d];
    }
    CHECK(n_val > 30 && n_val < 200);
}

// Tokens of both sides, and words of the description.
CLAIM(few_documents_give_a_part_of_the_longest_or_all_or_nothing) {
    static const struct {
        int letters[9], n;
        double fraction;
        int train, val;
        const char* words;
    } cases[] = {
        {{10, 99, 20}, 3, 0.1, 122, 10, "last 10 tokens of the longest document"},
        {{9}, 1, 0.001, 8, 2, "last 2 tokens"},  // at least a token and its label are held out,
        {{9}, 1, 0.999, 2, 8, "last 8 tokens"},  // and left
        {{2}, 1, 0.5, 3, 0, "no validation text held out"},
        {{5, 30, 9, 1, 7, 20, 3, 3, 8}, 9, 1, 0, 95, "validation on all 9 documents"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        open_corpus(cases[i].letters, NULL, cases[i].n);
        Sampler* s = sampler_of(16, cases[i].fraction, 1);
        CHECK(sampler_tokens(s, SPLIT_TRAIN) == cases[i].train && sampler_tokens(s, SPLIT_VAL) == cases[i].val);
        CHECK(docs_tokens(docs) == cases[i].train + cases[i].val);
        CHECK(strstr(sampler_describe(s, (char[256]){0}), cases[i].words));
    }
}

// No label of the training part comes from the held-out part.
CLAIM(a_document_that_is_cut_has_no_label_across_the_cut) {
    open_corpus((int[]){10, 99, 20}, NULL, 3);
    Sampler* s = sampler_of(16, 0.1, 1);
    Piece p = sampler_val_piece(s, 0);
    CHECK(sampler_pieces(s, SPLIT_VAL) == 1 && p.doc == 1 && p.first == 90 && p.length == 10 && p.n_targets == 9);
    int found = 0, tokens[16], targets[16];
    for (int64_t i = 0; i < sampler_pieces(s, SPLIT_TRAIN); i++) {
        p = piece_at(s, 0, i);
        if (p.doc != 1 || p.first + p.length != 90) continue;
        found++;
        CHECK(p.n_targets == p.length - 1);
        CHECK(sampler_read(s, &p, tokens, targets, err) == 0 && targets[p.length - 1] == -1);
    }
    CHECK(found == 1);
}

CLAIM(copies_of_the_longest_document_are_cut_too) {
    open_corpus((int[]){50, 50, 10}, (int[]){4, 4, 5}, 3);
    Sampler* s = sampler_of(64, 0.2, 1);
    CHECK(sampler_documents(s, SPLIT_VAL) == 2 && sampler_documents(s, SPLIT_TRAIN) == 3);
    for (int64_t i = 0; i < 3; i++) {
        Piece p = piece_at(s, 0, i);
        CHECK(p.doc == 2 || p.first + p.length == 41);  // 51 tokens, a fifth of which is 10
    }
}

CLAIM(a_label_is_the_next_token_of_the_document) {
    open_random(30, 70, 8);
    for (int context = 1; context < 80; context += 13) {
        Sampler* s = sampler_of(context, 0, 1);
        int tokens[80], targets[80];
        for (int64_t k = 0; k < sampler_pieces(s, SPLIT_TRAIN); k++) {
            Piece p = piece_at(s, 0, k);
            CHECK(sampler_read(s, &p, tokens, targets, err) == 0);
            for (int i = 0; i < p.length; i++) {
                int64_t place = p.first + i, last = docs_length(docs, p.doc) - 1;
                CHECK(tokens[i] == (place == 0 ? 256 : letter_at((int)p.doc, (int)place - 1)));
                CHECK(targets[i] == (place == last ? -1 : letter_at((int)p.doc, (int)place)));
            }
        }
    }
}

CLAIM(wrong_settings_are_refused) {
    static const struct {
        int context;
        double fraction;
        const char* words;
    } wrong[] = {{0, 0, "context is 0, expected at least 1"},
                 {8, -0.1, "the held-out fraction is -0.1, expected 0 .. 1"},
                 {8, 1.1, "the held-out fraction is 1.1, expected 0 .. 1"},
                 {8, NAN, "the held-out fraction is nan, expected 0 .. 1"}};
    Sampler* s = NULL;
    open_one(9);
    for (int i = 0; i < COUNT(wrong); i++) {
        CHECK(sampler_open(&s, docs, wrong[i].context, wrong[i].fraction, 1, err) == -1 && s == NULL);
        CHECK_STRING(err, wrong[i].words);
    }
}

int main(void) {
    if (tokenizer_open(&tokenizer, NULL, err)) die("%s", err);
    run_claims();
    forget();
    tokenizer_close(tokenizer);
    return test_done();
}
