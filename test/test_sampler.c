// test_sampler.c - the sampler visits every training token once an epoch, whatever the sizes, and holds out whole
// documents.
//
// Corpora are JSONL in memory: the text of document i is given by its length and its number, so that expected tokens
// and labels are known without reading the corpus.
#include "data/sampler.h"

#include <stdint.h>

#include "plan/base.h"
#include "test/docs_bytes.h"
#include "test/test.h"

typedef struct Corpus {
    Tokenizer* tokenizer;
    Docs* docs;
    char* file;
} Corpus;

static char letter_at(int doc, int i) { return (char)('a' + (doc * 7 + i * (1 + doc % 5) + i / 11) % 26); }

// Documents of the given numbers of letters; copies of a document have the same name.
static Corpus corpus_open(const int* letters, const int* names, int n) {
    Corpus c = {0};
    char err[ERR_BYTES] = "";
    size_t size = 1, at = 0;
    for (int d = 0; d < n; d++) size += (size_t)letters[d] + 16;
    c.file = malloc(size);
    for (int d = 0; d < n; d++) {
        at += (size_t)sprintf(c.file + at, "{\"text\":\"");
        for (int i = 0; i < letters[d]; i++) c.file[at++] = letter_at(names ? names[d] : d, i);
        at += (size_t)sprintf(c.file + at, "\"}\n");
    }
    if (tokenizer_open(&c.tokenizer, NULL, err, sizeof err) ||
        docs_open_bytes(&c.docs, ".jsonl", c.file, at, c.tokenizer, err, sizeof err)) {
        printf("    %s\n", err);
        exit(1);
    }
    return c;
}

static Corpus random_corpus(int n, int longest, uint64_t seed) {
    int* letters = malloc((size_t)n * sizeof *letters);
    for (int d = 0; d < n; d++) letters[d] = (int)(random_uniform(seed, (uint64_t)d) * (longest + 1));
    letters[0] = longest;
    Corpus c = corpus_open(letters, NULL, n);
    free(letters);
    return c;
}

static void corpus_close(Corpus* c) {
    docs_close(c->docs);
    tokenizer_close(c->tokenizer);
    free(c->file);
}

static Sampler* sampler_of(const Corpus* c, int context, double val_fraction, uint64_t seed) {
    char err[ERR_BYTES] = "";
    Sampler* s = NULL;
    if (sampler_open(&s, c->docs, context, val_fraction, seed, err, sizeof err)) {
        printf("    %s\n", err);
        exit(1);
    }
    return s;
}

// A counter for every token of a corpus.
static int** counters(const Docs* docs) {
    int** seen = malloc((size_t)docs_count(docs) * sizeof *seen);
    for (int64_t d = 0; d < docs_count(docs); d++) seen[d] = calloc((size_t)docs_length(docs, d), sizeof **seen);
    return seen;
}

static void counters_free(const Docs* docs, int** seen) {
    for (int64_t d = 0; d < docs_count(docs); d++) free(seen[d]);
    free(seen);
}

static void count_piece(const Docs* docs, int** seen, const Piece* p, int context) {
    CHECK(p->length >= 1 && p->length <= context);
    CHECK(p->doc >= 0 && p->doc < docs_count(docs));
    CHECK(p->first >= 0 && p->first + p->length <= docs_length(docs, p->doc));
    CHECK(p->n_targets == p->length || p->n_targets == p->length - 1);
    for (int i = 0; i < p->length; i++) seen[p->doc][p->first + i]++;
}

static int same_piece(Piece a, Piece b) {
    return a.doc == b.doc && a.first == b.first && a.length == b.length && a.n_targets == b.n_targets;
}

// ---- claims

static void every_training_token_is_drawn_once_an_epoch(void) {
    static const int contexts[] = {1, 2, 3, 16, 64, 1000};
    Corpus c = random_corpus(60, 150, 1);
    for (int k = 0; k < COUNT(contexts); k++) {
        for (int extra = 0; extra < 200; extra += 67) {
            int context = contexts[k], batch = context + extra, epochs = 3;
            Sampler* s = sampler_of(&c, context, 0, 5);
            int64_t total = sampler_tokens(s, SPLIT_TRAIN), pieces_left = epochs * sampler_pieces(s, SPLIT_TRAIN),
                    targets = 0;
            Piece* pieces = malloc((size_t)batch * sizeof *pieces);
            int** seen = counters(c.docs);
            SamplerPosition position = {0};
            while (pieces_left > 0) {
                int n = sampler_draw(s, &position, pieces, (int)MIN(batch, pieces_left), batch), sum = 0;
                CHECK(n >= 1);
                for (int i = 0; i < n; i++) {
                    count_piece(c.docs, seen, &pieces[i], context);
                    sum += pieces[i].length;
                    targets += pieces[i].n_targets;
                }
                CHECK(sum <= batch);
                pieces_left -= n;
            }
            CHECK(position.epoch == epochs && position.index == 0);
            CHECK(total == docs_tokens(c.docs));
            CHECK(targets == epochs * (docs_tokens(c.docs) - docs_count(c.docs)));
            for (int64_t d = 0; d < docs_count(c.docs); d++)
                for (int64_t i = 0; i < docs_length(c.docs, d); i++) CHECK(seen[d][i] == epochs);
            counters_free(c.docs, seen);
            free(pieces);
            sampler_close(s);
        }
    }
    corpus_close(&c);
}

static void a_draw_takes_as_many_pieces_as_fit(void) {
    Corpus c = random_corpus(40, 90, 2);
    Sampler* s = sampler_of(&c, 50, 0, 1);
    SamplerPosition position = {0};
    Piece pieces[128];
    for (int step = 0; step < 200; step++) {
        int n = sampler_draw(s, &position, pieces, 128, 128), sum = 0;
        for (int i = 0; i < n; i++) sum += pieces[i].length;
        CHECK(sum + sampler_train_piece(s, position).length > 128);  // the next one did not fit
    }
    CHECK(sampler_draw(s, &position, pieces, 1, 128) == 1);
    CHECK(sampler_draw(s, &position, pieces, 128, 50) >= 1);
    sampler_close(s);
    corpus_close(&c);
}

static void a_saved_position_continues_alike(void) {
    Corpus c = random_corpus(50, 80, 3);
    Sampler *s = sampler_of(&c, 32, 0.1, 9), *again = sampler_of(&c, 32, 0.1, 9);
    Piece pieces[64], expected[64];
    SamplerPosition position = {0};
    for (int step = 0; step < 120; step++) {
        SamplerPosition saved = position, copy = {.epoch = saved.epoch, .index = saved.index};
        int n = sampler_draw(s, &position, pieces, 64, 64);
        CHECK(sampler_draw(again, &copy, expected, 64, 64) == n);
        CHECK(copy.epoch == position.epoch && copy.index == position.index);
        for (int i = 0; i < n; i++) CHECK(same_piece(pieces[i], expected[i]));
    }
    CHECK(position.epoch >= 2);  // the ends of epochs were among the saved positions
    sampler_close(s);
    sampler_close(again);
    corpus_close(&c);
}

// Pieces of context 1 of one document are numbered by their place, so that the order is seen as a permutation.
static void the_order_is_a_permutation_for_every_length(void) {
    for (int n = 2; n <= 200; n++) {
        Corpus c = corpus_open(&(int){n - 1}, NULL, 1);
        Sampler* s = sampler_of(&c, 1, 0, (uint64_t)n);
        CHECK(sampler_pieces(s, SPLIT_TRAIN) == n);
        for (int64_t epoch = 0; epoch < 4; epoch++) {
            char seen[200] = {0};
            for (int64_t i = 0; i < n; i++)
                seen[sampler_train_piece(s, (SamplerPosition){.epoch = epoch, .index = i}).first]++;
            for (int i = 0; i < n; i++) CHECK(seen[i] == 1);
        }
        sampler_close(s);
        corpus_close(&c);
    }
}

static void a_single_piece_is_drawn_again_and_again(void) {
    Corpus c = corpus_open(&(int){5}, NULL, 1);
    Sampler* s = sampler_of(&c, 100, 0, 1);
    SamplerPosition position = {0};
    Piece pieces[20];
    CHECK(sampler_draw(s, &position, pieces, 20, 100) == 16);  // 16 x 6 tokens
    CHECK(position.epoch == 16 && position.index == 0);
    sampler_close(s);
    corpus_close(&c);
}

static int same_places(const Sampler* a, int64_t epoch_a, const Sampler* b, int64_t epoch_b, int n) {
    int same = 0;
    for (int i = 0; i < n; i++)
        same += same_piece(sampler_train_piece(a, (SamplerPosition){.epoch = epoch_a, .index = i}),
                           sampler_train_piece(b, (SamplerPosition){.epoch = epoch_b, .index = i}));
    return same;
}

// Two random permutations of n agree in one place on average, and in more than 8 with probability below 2e-6 (Poisson).
static void epochs_and_seeds_have_orders_of_their_own(void) {
    Corpus c = corpus_open(&(int){499}, NULL, 1);
    Sampler *s = sampler_of(&c, 1, 0, 1), *other = sampler_of(&c, 1, 0, 2);
    CHECK(same_places(s, 0, s, 0, 500) == 500);
    for (int64_t epoch = 0; epoch < 5; epoch++) {
        CHECK(same_places(s, epoch, s, epoch + 1, 500) <= 8);
        CHECK(same_places(s, epoch, other, epoch, 500) <= 8);
        int fixed = 0, followed = 0;  // neither is it close to the order of the corpus
        for (int i = 0; i < 500; i++) {
            int64_t first = sampler_train_piece(s, (SamplerPosition){.epoch = epoch, .index = i}).first;
            fixed += first == i;
            followed +=
                i > 0 && sampler_train_piece(s, (SamplerPosition){.epoch = epoch, .index = i - 1}).first + 1 == first;
        }
        CHECK(fixed <= 8 && followed <= 8);
    }
    sampler_close(s);
    sampler_close(other);
    corpus_close(&c);
}

// Every one of the 24 orders of four pieces should come up: among 2000 epochs each is expected 83 times, with a
// standard deviation of 9, so that 30 and 140 are six deviations away.
static void orders_of_few_pieces_are_all_met(void) {
    Corpus c = corpus_open(&(int){3}, NULL, 1);
    Sampler* s = sampler_of(&c, 1, 0, 1);
    int count[256] = {0}, n_orders = 0;
    for (int64_t epoch = 0; epoch < 2000; epoch++) {
        int order = 0;
        for (int i = 0; i < 4; i++)
            order = order * 4 + (int)sampler_train_piece(s, (SamplerPosition){.epoch = epoch, .index = i}).first;
        count[order]++;
    }
    for (int i = 0; i < 256; i++) {
        n_orders += count[i] > 0;
        CHECK(count[i] == 0 || (count[i] > 30 && count[i] < 140));
    }
    CHECK(n_orders == 24);
    sampler_close(s);
    corpus_close(&c);
}

static void sides_are_disjoint_and_complete(void) {
    Corpus c = random_corpus(400, 60, 4);
    for (int k = 0; k < 4; k++) {
        double fraction = (double[]){0, 0.01, 0.1, 0.5}[k];
        Sampler* s = sampler_of(&c, 16, fraction, 7);
        int** seen = counters(c.docs);
        char lengths[2][17] = {{0}}, marked[2][17] = {{0}};
        for (int64_t i = 0; i < sampler_pieces(s, SPLIT_TRAIN); i++) {
            Piece p = sampler_train_piece(s, (SamplerPosition){.epoch = 3, .index = i});
            count_piece(c.docs, seen, &p, 16);
            lengths[SPLIT_TRAIN][p.length] = 1;
        }
        int64_t val_tokens = 0;
        for (int64_t i = 0; i < sampler_pieces(s, SPLIT_VAL); i++) {
            Piece p = sampler_val_piece(s, i);
            count_piece(c.docs, seen, &p, 16);
            val_tokens += p.length;
            lengths[SPLIT_VAL][p.length] = 1;
        }
        for (int side = 0; side < 2; side++) sampler_mark_lengths(s, (Split)side, marked[side]);
        CHECK(memcmp(lengths, marked, sizeof lengths) == 0);
        CHECK(val_tokens == sampler_tokens(s, SPLIT_VAL));
        CHECK(sampler_tokens(s, SPLIT_TRAIN) + val_tokens == docs_tokens(c.docs));
        if (fraction != 0.01) CHECK(sampler_documents(s, SPLIT_TRAIN) + sampler_documents(s, SPLIT_VAL) == 400);
        for (int64_t d = 0; d < 400; d++)
            for (int64_t i = 0; i < docs_length(c.docs, d); i++) CHECK(seen[d][i] == 1);
        // 6 standard deviations of a binomial distribution
        double wanted = 400 * fraction, spread = 6 * sqrt(wanted * (1 - fraction));
        if (fraction == 0 || fraction >= 0.1) CHECK_CLOSE((double)sampler_documents(s, SPLIT_VAL), wanted, spread);
        counters_free(c.docs, seen);
        sampler_close(s);
    }
    corpus_close(&c);
}

static void validation_pieces_do_not_depend_on_the_seed(void) {
    Corpus c = random_corpus(200, 60, 5);
    Sampler *a = sampler_of(&c, 16, 0.2, 1), *b = sampler_of(&c, 16, 0.2, 2);
    CHECK(sampler_pieces(a, SPLIT_VAL) > 10 && sampler_pieces(a, SPLIT_VAL) == sampler_pieces(b, SPLIT_VAL));
    for (int64_t i = 0; i < sampler_pieces(a, SPLIT_VAL); i++)
        CHECK(same_piece(sampler_val_piece(a, i), sampler_val_piece(b, i)));
    sampler_close(a);
    sampler_close(b);
    corpus_close(&c);
}

static void a_fraction_of_one_holds_out_everything(void) {
    Corpus c = random_corpus(9, 30, 6);
    Sampler* s = sampler_of(&c, 16, 1, 1);
    CHECK(sampler_tokens(s, SPLIT_VAL) == docs_tokens(c.docs) && sampler_pieces(s, SPLIT_TRAIN) == 0);
    CHECK(strstr(sampler_describe(s), "validation on all 9 documents") != NULL);
    sampler_close(s);
    corpus_close(&c);
}

static void copies_of_a_document_land_on_one_side(void) {
    enum { N = 300 };
    int letters[N], names[N];
    for (int d = 0; d < N; d++) {
        names[d] = d % 100;  // three copies of each
        letters[d] = 20 + names[d] % 30;
    }
    Corpus c = corpus_open(letters, names, N);
    Sampler* s = sampler_of(&c, 1000, 0.3, 1);
    char side[N] = {0};
    for (int64_t i = 0; i < sampler_pieces(s, SPLIT_VAL); i++) side[sampler_val_piece(s, i).doc] = 1;
    int n_val = 0;
    for (int d = 0; d < N; d++) {
        CHECK(side[d] == side[names[d]]);
        n_val += side[d];
    }
    CHECK(n_val > 30 && n_val < 200);
    sampler_close(s);
    corpus_close(&c);
}

static void a_small_corpus_gives_the_end_of_its_longest_document(void) {
    int letters[] = {10, 99, 20};
    Corpus c = corpus_open(letters, NULL, 3);
    Sampler* s = sampler_of(&c, 16, 0.1, 1);
    CHECK(strstr(sampler_describe(s), "last 10 tokens of the longest document") != NULL);
    CHECK(sampler_pieces(s, SPLIT_VAL) == 1 && sampler_tokens(s, SPLIT_VAL) == 10);
    Piece p = sampler_val_piece(s, 0);
    CHECK(p.doc == 1 && p.first == 90 && p.length == 10 && p.n_targets == 9);
    // No label of the training part comes from the held-out part.
    int found = 0, tokens[16], targets[16];
    char err[ERR_BYTES];
    for (int64_t i = 0; i < sampler_pieces(s, SPLIT_TRAIN); i++) {
        p = sampler_train_piece(s, (SamplerPosition){.index = i});
        if (p.doc != 1 || p.first + p.length != 90) continue;
        found++;
        CHECK(p.n_targets == p.length - 1);
        CHECK(sampler_read(s, &p, tokens, targets, err, sizeof err) == 0);
        CHECK(targets[p.length - 1] == -1);
    }
    CHECK(found == 1);
    CHECK(sampler_tokens(s, SPLIT_TRAIN) == docs_tokens(c.docs) - 10);
    sampler_close(s);
    corpus_close(&c);
}

static void at_least_a_token_and_its_label_are_held_out(void) {
    Corpus c = corpus_open(&(int){9}, NULL, 1);
    Sampler* s = sampler_of(&c, 16, 0.001, 1);
    CHECK(sampler_tokens(s, SPLIT_VAL) == 2 && sampler_val_piece(s, 0).n_targets == 1);
    sampler_close(s);
    s = sampler_of(&c, 16, 0.999, 1);
    CHECK(sampler_tokens(s, SPLIT_TRAIN) == 2);
    sampler_close(s);
    corpus_close(&c);
}

static void copies_of_the_longest_document_are_cut_too(void) {
    int letters[] = {50, 50, 10}, names[] = {4, 4, 5};
    Corpus c = corpus_open(letters, names, 3);
    Sampler* s = sampler_of(&c, 64, 0.2, 1);
    CHECK(sampler_documents(s, SPLIT_VAL) == 2 && sampler_documents(s, SPLIT_TRAIN) == 3);
    for (int64_t i = 0; i < 3; i++) {
        Piece p = sampler_train_piece(s, (SamplerPosition){.index = i});
        CHECK(p.doc == 2 || p.first + p.length == 41);  // 51 tokens, a fifth of which is 10
    }
    sampler_close(s);
    corpus_close(&c);
}

static void a_corpus_too_small_to_cut_has_no_validation(void) {
    Corpus c = corpus_open(&(int){2}, NULL, 1);
    Sampler* s = sampler_of(&c, 8, 0.5, 1);
    CHECK(sampler_tokens(s, SPLIT_VAL) == 0 && sampler_tokens(s, SPLIT_TRAIN) == 3);
    CHECK_STRING(sampler_describe(s), "no validation text held out");
    sampler_close(s);
    corpus_close(&c);
}

static void a_label_is_the_next_token_of_the_document(void) {
    Corpus c = random_corpus(30, 70, 8);
    for (int context = 1; context < 80; context += 13) {
        Sampler* s = sampler_of(&c, context, 0, 1);
        int *tokens = malloc((size_t)context * sizeof *tokens), *targets = malloc((size_t)context * sizeof *targets);
        char err[ERR_BYTES];
        for (int64_t k = 0; k < sampler_pieces(s, SPLIT_TRAIN); k++) {
            Piece p = sampler_train_piece(s, (SamplerPosition){.index = k});
            CHECK(sampler_read(s, &p, tokens, targets, err, sizeof err) == 0);
            for (int i = 0; i < p.length; i++) {
                int64_t place = p.first + i, last = docs_length(c.docs, p.doc) - 1;
                CHECK(tokens[i] == (place == 0 ? 256 : letter_at((int)p.doc, (int)place - 1)));
                CHECK(targets[i] == (place == last ? -1 : letter_at((int)p.doc, (int)place)));
            }
        }
        free(tokens);
        free(targets);
        sampler_close(s);
    }
    corpus_close(&c);
}

static void wrong_settings_are_refused(void) {
    Corpus c = corpus_open(&(int){9}, NULL, 1);
    Sampler* s = NULL;
    char err[ERR_BYTES] = "";
    CHECK(sampler_open(&s, c.docs, 0, 0, 1, err, sizeof err) == -1 && s == NULL);
    CHECK_STRING(err, "context is 0, expected at least 1");
    CHECK(sampler_open(&s, c.docs, 8, -0.1, 1, err, sizeof err) == -1);
    CHECK(sampler_open(&s, c.docs, 8, 1.1, 1, err, sizeof err) == -1);
    CHECK(sampler_open(&s, c.docs, 8, (double)NAN, 1, err, sizeof err) == -1);
    CHECK_STRING(err, "the held-out fraction is nan, expected 0 .. 1");
    corpus_close(&c);
}

int main(void) {
    RUN(every_training_token_is_drawn_once_an_epoch);
    RUN(a_draw_takes_as_many_pieces_as_fit);
    RUN(a_saved_position_continues_alike);
    RUN(the_order_is_a_permutation_for_every_length);
    RUN(a_single_piece_is_drawn_again_and_again);
    RUN(epochs_and_seeds_have_orders_of_their_own);
    RUN(orders_of_few_pieces_are_all_met);
    RUN(sides_are_disjoint_and_complete);
    RUN(validation_pieces_do_not_depend_on_the_seed);
    RUN(a_fraction_of_one_holds_out_everything);
    RUN(copies_of_a_document_land_on_one_side);
    RUN(a_small_corpus_gives_the_end_of_its_longest_document);
    RUN(at_least_a_token_and_its_label_are_held_out);
    RUN(copies_of_the_longest_document_are_cut_too);
    RUN(a_corpus_too_small_to_cut_has_no_validation);
    RUN(a_label_is_the_next_token_of_the_document);
    RUN(wrong_settings_are_refused);
    return test_done();
}
