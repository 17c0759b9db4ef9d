// test_sample.c - the op `sample`: which token u draws, of which ids, how likely the model found it; of every table.
//
// What is drawn is checked from its definition, not against the reference's choice: where u stands at the border of two
// tokens, rounding decides. Weights are off by a few E of themselves for each unit of their exponent, of at most 40
// that show; so are the two ends of the token's share of [0, 1), by SLACK.
#include <math.h>
#include <stdlib.h>

#include "test/tables.h"

enum { MOST_V = 40000, MOST_N = 6 };
static const double SLACK = 2e-5;

static char logits[MOST_N * (MOST_V + 64) * sizeof(float)];
static Draw draws[MOST_N];

typedef struct Case {
    Sampling how;
    int N, Vp;
    DType dt;
} Case;

static double logit(const Case* c, int n, int v) {
    size_t i = (size_t)n * (size_t)c->Vp + (size_t)v;
    return c->dt == DT_BF16 ? bf16_to_float(((bf16*)logits)[i]) : ((float*)logits)[i];
}

static void set_logit(const Case* c, int n, int v, double x) {
    size_t i = (size_t)n * (size_t)c->Vp + (size_t)v;
    if (c->dt == DT_BF16) ((bf16*)logits)[i] = bf16_from_float((float)x);
    else ((float*)logits)[i] = (float)x;
}

// Random logits; what no softmax may look at is NaN.
static void fill(const Case* c, double spread, uint64_t seed) {
    for (int n = 0; n < c->N; n++)
        for (int v = 0; v < c->Vp; v++) {
            double x = random_uniform(seed + (uint64_t)n, (uint64_t)v) - 0.5;
            set_logit(c, n, v, v < c->how.V ? 2 * spread * x : NAN);
        }
    for (int n = 0; n < c->N; n++) draws[n] = (Draw){random_uniform(seed ^ 77, (uint64_t)n), NAN, -1};
}

static void call(const Kernels* k, const Case* c) {
    size_t bytes = (size_t)c->N * (size_t)c->Vp * dtype_bytes(c->dt);
    Draw* there_draws = (Draw*)there(k, draws, sizeof *draws * (size_t)c->N);
    k->sample(there_draws, there(k, logits, bytes), &c->how, c->N, c->Vp, c->dt, NULL);
    bring_back();
}

static int descending(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x < y) - (x > y);
}

static double least_of(const Case* c, int n) {
    static double sorted[MOST_V];
    if (c->how.top_k == 0 || c->how.top_k >= c->how.ids) return -INFINITY;
    for (int v = 0; v < c->how.ids; v++) sorted[v] = logit(c, n, v);
    qsort(sorted, (size_t)c->how.ids, sizeof *sorted, descending);
    return sorted[c->how.top_k - 1];
}

static void check_token(const Case* c, int n) {
    const Sampling* how = &c->how;
    int token = draws[n].token, best = 0;
    double least = least_of(c, n), total = 0, before = 0, upto = 0;
    CHECK(token >= 0 && token < how->ids);
    for (int v = 1; v < how->ids; v++) best = logit(c, n, v) > logit(c, n, best) ? v : best;
    if (how->temperature <= 0) {
        CHECK(token == best);
        return;
    }
    for (int v = 0; v < how->ids; v++) {
        double weight = logit(c, n, v) >= least ? exp((logit(c, n, v) - logit(c, n, best)) / how->temperature) : 0;
        if (v == token) before = total, upto = total + weight;
        total += weight;
    }
    CHECK(upto > before);
    CHECK(before <= (draws[n].u + SLACK) * total && upto >= (draws[n].u - SLACK) * total);
}

static void check(const Case* c) {
    for (int n = 0; n < c->N; n++) {
        double max = -INFINITY, total = 0;
        for (int v = 0; v < c->how.V; v++) max = MAX(max, logit(c, n, v));
        for (int v = 0; v < c->how.V; v++) total += exp(logit(c, n, v) - max);
        check_token(c, n);
        double expected = logit(c, n, draws[n].token) - max - log(total);
        CHECK_CLOSE(draws[n].logprob, expected, 1e-5 + 1e-6 * fabs(expected));
    }
}

// For each table, also the reference's.
static int tables_of(const Kernels** tables) {
    int n = tested_tables(tables);
    if (!TESTS_DEVICE) tables[n++] = reference();
    return n;
}

#define FOR_TABLES(k)                        \
    const Kernels *tables[CPU_ISAS + 1], *k; \
    for (int t_ = 0, n_ = tables_of(tables); t_ < n_ && (k = tables[t_], 1); t_++)

static const int vocabularies[] = {1, 2, 15, 16, 17, 33, 255, 256, 257, 513, 3000, 35000};

static void every_size(double temperature, int top_k, double spread) {
    FOR_TABLES(k)
    for (int i = 0; i < COUNT(vocabularies); i++)
        for (int dt = 0; dt < 2; dt++) {
            int V = at_most(vocabularies[i], 3000), hidden = i % 3 == 2 ? V / 5 : 0;
            Case c = {{V, V - hidden, temperature, top_k}, i % MOST_N + 1, V + i % 2 * 7, dt ? DT_BF16 : DT_F32};
            fill(&c, spread, (uint64_t)(100 * i + dt));
            draws[0].u = 1 - 0x1p-53;  // sums in another order may end below it
            call(k, &c);
            check(&c);
        }
}

CLAIM(the_token_is_where_its_number_falls) { every_size(1, 0, 4), every_size(0.3, 0, 4), every_size(30, 0, 4); }
CLAIM(only_the_k_largest_are_drawn) {
    every_size(1, 1, 4), every_size(2, 40, 4), every_size(5, 300, 30), every_size(5, 300, 1);
}
CLAIM(without_temperature_the_first_of_the_likeliest_is_drawn) {
    every_size(0, 0, 4), every_size(0, 7, 4), every_size(1e-300, 0, 4);
    FOR_TABLES(k) {
        Case c = {{600, 600, 0, 0}, 2, 600, DT_F32};
        fill(&c, 1, 5);
        for (int n = 0; n < 2; n++) set_logit(&c, n, 599, 3), set_logit(&c, n, 311 + n, 3);
        call(k, &c);
        CHECK(draws[0].token == 311 && draws[1].token == 312);
    }
}

// Ids that stand for no text are part of the softmax, and are never drawn, however likely.
CLAIM(ids_without_text_are_never_drawn) {
    FOR_TABLES(k)
    for (int temperature = 0; temperature < 2; temperature++) {
        Case c = {{300, 257, temperature, 0}, 3, 320, DT_BF16};
        fill(&c, 1, 9);
        for (int n = 0; n < 3; n++) set_logit(&c, n, 299, 200), draws[n].u = n / 2.1;
        call(k, &c);
        check(&c);
        CHECK(draws[1].logprob < -190);
    }
}

// The ends of [0, 1), runs that weigh nothing, and logits that are equal.
CLAIM(numbers_at_the_ends_and_ids_without_weight) {
    FOR_TABLES(k) {
        Case c = {{2000, 2000, 1, 0}, 4, 2000, DT_F32};
        fill(&c, 1, 11);
        for (int n = 0; n < 4; n++)
            for (int v = 0; v < 2000; v++) set_logit(&c, n, v, v == 700 || v == 1900 ? 0 : n % 2 ? -INFINITY : -1e30);
        for (int n = 0; n < 4; n++) draws[n].u = n < 2 ? 0 : 1 - 0x1p-53;
        call(k, &c);
        check(&c);
        CHECK(draws[0].token == 700 && draws[1].token == 700 && draws[2].token == 1900 && draws[3].token == 1900);
        c.how.top_k = 3, c.how.ids = 1000;  // those equal to the third largest are drawn, too
        for (int v = 0; v < 2000; v++) set_logit(&c, 0, v, v % 10 == 3 ? 1 : 0);
        for (int n = 0; n < 4; n++) draws[n].u = 0.5;
        call(k, &c);
        check(&c);
        CHECK(draws[0].token % 10 == 3 && draws[0].token > 400);
    }
}

// Each of 512 equal ids weighs exactly 1, and has its lower border, not its upper one.
CLAIM(a_border_belongs_to_the_token_above_it) {
    FOR_TABLES(k) {
        static const int tokens[MOST_N] = {0, 1, 255, 256, 257, 511};
        Case c = {{512, 512, 1, 0}, MOST_N, 512, DT_F32};
        fill(&c, 0, 15);
        for (int n = 0; n < MOST_N; n++) draws[n].u = tokens[n] / 512.0;
        call(k, &c);
        for (int n = 0; n < MOST_N; n++) CHECK(draws[n].token == tokens[n]);
    }
}

// The third largest of two finite logits is -infinity, which draws neither less nor more than these two.
CLAIM(fewer_finite_logits_than_k_are_all_drawn) {
    FOR_TABLES(k)
    for (int dt = 0; dt < 2; dt++) {
        Case c = {{300, 300, 1, 3}, 2, 300, dt ? DT_BF16 : DT_F32};
        fill(&c, 0, 17);
        for (int n = 0; n < 2; n++)
            for (int v = 0; v < 300; v++) set_logit(&c, n, v, v == 20 || v == 270 ? -n - 1 : -INFINITY);
        draws[0].u = 0.2, draws[1].u = 0.7;
        call(k, &c);
        check(&c);
        CHECK(draws[0].token == 20 && draws[1].token == 270);
    }
}

CLAIM(tokens_are_as_frequent_as_they_are_likely) {
    FOR_TABLES(k) {
        int draws_each = WATCHED || TESTS_DEVICE ? 200 : 20000, count[4] = {0};
        Case c = {{4, 4, 2, 0}, 1, 4, DT_F32};
        for (int i = 0; i < draws_each; i++) {
            for (int v = 0; v < 4; v++) set_logit(&c, 0, v, v < 3 ? v : -INFINITY);
            draws[0] = (Draw){(i + 0.5) / draws_each, NAN, -1};
            call(k, &c);
            count[draws[0].token]++;
        }
        double total = exp(0) + exp(0.5) + exp(1);
        for (int v = 0; v < 3; v++)  // a stratified sample: off by one at most
            CHECK_CLOSE(count[v] / (double)draws_each, exp(v / 2.0) / total, 1.01 / draws_each);
        CHECK(count[3] == 0);
    }
}

CLAIM(a_nan_shows_in_its_row_only) {
    FOR_TABLES(k)
    for (int top_k = 0; top_k < 10; top_k += 9) {
        Case c = {{700, 650, 1, top_k}, 3, 704, DT_BF16};
        fill(&c, 2, 13);
        set_logit(&c, 1, 100, NAN);
        call(k, &c);
        CHECK(!isfinite(draws[1].logprob) && draws[1].token >= 0 && draws[1].token < 650);
        CHECK(isfinite(draws[0].logprob) && isfinite(draws[2].logprob));
    }
}

CLAIM(the_same_bits_on_any_threads) {
    FOR_TABLES(k) {
        Draw first[MOST_N];
        Case c = {{9000, 9000, 0.9, 50}, MOST_N, 9000, DT_BF16};
        for (int threads = 1; threads <= most_threads(); threads++) {
            KernelLimits limits = {.N = 8, .C = 8, .OC = 9000, .NH = 1, .NKV = 1, .HS = 8, .context = 8};
            char err[ERR_BYTES];
            limits.threads = threads, limits.attention = ATTENTION_OWN;
            CHECK(k->open(&limits, err) == 0);
            fill(&c, 3, 21);
            call(k, &c);
            if (threads == 1) memcpy(first, draws, sizeof first);
            else CHECK(!memcmp(first, draws, sizeof first));
        }
    }
}

static int has_own(const Kernels* t, const Kernels* r) { return t->sample != r->sample; }

int main(void) {
    const Kernels* tables[CPU_ISAS + 1];
    char err[ERR_BYTES];
    claim_own_entries(has_own);
    for (int i = 0, n = tested_tables(tables); i < n && TESTS_DEVICE; i++) {
        KernelLimits limits = {.N = 8, .C = 8, .OC = 64, .NH = 1, .NKV = 1, .HS = 8, .context = 8};
        limits.attention = ATTENTION_OWN;
        if (tables[i]->open(&limits, err)) die("%s", err);
    }
    run_claims();
    return test_done();
}
