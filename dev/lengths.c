// lengths.c - draws lengths of documents from quantiles of data sets, from formulas, or from a file.
//
// Quantiles: a uniform share u between two rows (p, a) and (q, b) of a table becomes a (b / a)^((u - p) / (q - p)).
// Formulas, z standard normal: s = median exp(sigma(z) z), with a sigma that grows in the tail, fitted to the data;
// lognormals for mixes; and for source code a body of lognormal and a Pareto tail such that 16.2 % of the tokens are in
// documents above 128K (ByteScale, Ge et al. 2025). "sft" is 99.89 % documents of 1K tokens in the mean and 0.11 % of
// 37K, as the instruction mix of Llama 3 (Dubey et al. 2024). "arxiv" has a mean of 18K, that of RedPajama's papers (28
// billion tokens in 1.56 million); its spread is a guess. "mock" is the mock data of Megatron-LM's dynamic context
// parallelism.
//
// The integers are the same on every machine: exponential and logarithm are computed here, from additions,
// multiplications and divisions, because libraries differ in the last bit.
#include "dev/lengths.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// ---- lengths of two data sets as quantiles
//
// wikipedia: tokenised Wikipedia documents, from the file galvatron/datasets/wikipedia.txt of PKU-DAIR/Hetu-Galvatron,
// branch flexsp (the code of FlexSP, Wang et al. 2025): a random 99,980 of its 1,000,000 values, and the 20 largest of
// all, each side with the weight that it has among the million; then moved, in proportion and between them by straight
// lines, to the percentiles 1, 5, 10, 25, 50, 75, 90, 95, 99 and 99.9 of the million and its shares above 16K, 32K,
// 64K, 128K and 256K (0.4779, 0.1279, 0.0279, 0.0049 and 0.0007 %), from which the sample differs by up to 8 %.
// prolong: from dist_prolong.json of hao-ai-lab/distca (DistCA, Zhuang et al. 2025), 77,932 values. How they were made
// is not documented: like ProLong, not ProLong.
//
// An entry is a share of documents in millionths and the length that none of them exceeds: every fiftieth of the body,
// twelve points a decade of the tail down to 100 in a million, then 30, 20, 10, 1 and none.

// A LengthQuantile says that `ppm` millionths of the documents are at most so long; they ascend from 0 to 1000000.
typedef struct LengthQuantile {
    int ppm, length;
} LengthQuantile;

static const LengthQuantile wikipedia_quantiles[] = {
    {0, 1},           {2000, 23},       {5000, 31},       {10000, 39},      {20000, 49},       {40000, 62},
    {60000, 71},      {80000, 80},      {100000, 87},     {120000, 94},     {140000, 100},     {160000, 107},
    {180000, 114},    {200000, 122},    {220000, 131},    {240000, 141},    {260000, 150},     {280000, 160},
    {300000, 171},    {320000, 183},    {340000, 198},    {360000, 213},    {380000, 227},     {400000, 244},
    {420000, 260},    {440000, 280},    {460000, 300},    {480000, 322},    {500000, 347},     {520000, 372},
    {540000, 397},    {560000, 422},    {580000, 446},    {600000, 472},    {620000, 500},     {640000, 533},
    {660000, 575},    {680000, 626},    {700000, 683},    {720000, 747},    {740000, 822},     {760000, 902},
    {780000, 980},    {800000, 1090},   {820000, 1212},   {840000, 1363},   {860000, 1551},    {880000, 1784},
    {900000, 2112},   {917460, 2507},   {931871, 2911},   {943766, 3380},   {953584, 3907},    {961688, 4536},
    {968377, 5155},   {973898, 5892},   {978456, 6715},   {982217, 7617},   {985322, 8599},    {987885, 9723},
    {990000, 10921},  {991746, 12101},  {993187, 13536},  {994377, 15074},  {995358, 16645},   {996169, 18031},
    {996838, 20245},  {997390, 22672},  {997846, 25763},  {998222, 27779},  {998532, 30947},   {998788, 33660},
    {999000, 37367},  {999175, 41250},  {999319, 44728},  {999438, 49926},  {999536, 52172},   {999617, 56725},
    {999684, 61162},  {999739, 67103},  {999785, 75511},  {999822, 86698},  {999853, 91721},   {999879, 98319},
    {999900, 106925}, {999970, 145967}, {999980, 196066}, {999990, 235328}, {999999, 1823777}, {1000000, 1823777},
};
static const int n_wikipedia_quantiles = COUNT(wikipedia_quantiles);

static const LengthQuantile prolong_quantiles[] = {
    {0, 575},         {2000, 631},      {5000, 654},      {10000, 678},     {20000, 715},     {40000, 776},
    {60000, 826},     {80000, 872},     {100000, 919},    {120000, 962},    {140000, 1004},   {160000, 1046},
    {180000, 1089},   {200000, 1130},   {220000, 1173},   {240000, 1215},   {260000, 1259},   {280000, 1303},
    {300000, 1347},   {320000, 1392},   {340000, 1440},   {360000, 1488},   {380000, 1540},   {400000, 1594},
    {420000, 1651},   {440000, 1711},   {460000, 1775},   {480000, 1839},   {500000, 1913},   {520000, 1993},
    {540000, 2074},   {560000, 2162},   {580000, 2259},   {600000, 2362},   {620000, 2472},   {640000, 2591},
    {660000, 2725},   {680000, 2861},   {700000, 3018},   {720000, 3185},   {740000, 3374},   {760000, 3569},
    {780000, 3788},   {800000, 4050},   {820000, 4337},   {840000, 4662},   {860000, 5037},   {880000, 5472},
    {900000, 6051},   {917460, 6657},   {931871, 7303},   {943766, 7975},   {953584, 8651},   {961688, 9366},
    {968377, 10178},  {973898, 10979},  {978456, 11878},  {982217, 12878},  {985322, 13927},  {987885, 14953},
    {990000, 16273},  {991746, 17393},  {993187, 18933},  {994377, 20218},  {995358, 22425},  {996169, 24892},
    {996838, 27423},  {997390, 29134},  {997846, 32216},  {998222, 34796},  {998532, 39440},  {998788, 43218},
    {999000, 47500},  {999175, 53312},  {999319, 60596},  {999438, 71719},  {999536, 76998},  {999617, 91206},
    {999684, 100137}, {999739, 127970}, {999785, 138974}, {999822, 165433}, {999853, 185229}, {999879, 221167},
    {999900, 240055}, {999970, 333180}, {999980, 334921}, {999990, 340149}, {999999, 340149}, {1000000, 340149},
};
static const int n_prolong_quantiles = COUNT(prolong_quantiles);

typedef struct Kind Kind;

struct Lengths {
    const Kind* kind;  // NULL: values
    int limit, capacity;
    int n;
    int values[];
};

// ---- mathematics that is the same everywhere

// e^r = 2^k e^f with |f| at most ln 2 / 2, where 16 terms of the series are exact to a double.
static double exact_exp(double x) {
    const double ln2_high = 0x1.62e42fefa38p-1, ln2_low = 0x1.ef35793c7673p-45;  // their sum is ln 2
    double k = floor(x * 1.4426950408889634 + 0.5), f = x - k * ln2_high - k * ln2_low, sum = 1;
    for (int i = 16; i > 0; i--) sum = 1 + f * sum / i;
    return ldexp(sum, (int)k);
}

// ln(2^k m) = k ln 2 + 2 atanh((m - 1) / (m + 1)) with m between sqrt(1/2) and sqrt(2).
static double exact_log(double x) {
    int k;
    double m = frexp(x, &k);
    if (m < 0.7071067811865476) m *= 2, k--;
    double t = (m - 1) / (m + 1), sum = 0;
    for (int i = 23; i > 0; i -= 2) sum = sum * t * t + 1.0 / i;
    return 2 * t * sum + k * 0.6931471805599453;
}

// A Stream has the random numbers of one try at one document.
typedef struct Stream {
    uint64_t seed, next;
} Stream;

static double uniform(Stream* stream) { return random_uniform(stream->seed, stream->next++); }

// Returns a standard normal by the polar method (Marsaglia and Bray 1964), without sines.
static double normal(Stream* stream) {
    for (;;) {
        double u = 2 * uniform(stream) - 1, v = 2 * uniform(stream) - 1, q = u * u + v * v;
        if (q > 0 && q < 1) return u * sqrt(-2 * exact_log(q) / q);
    }
}

static double lognormal(Stream* stream, double median, double sigma) {
    return median * exact_exp(sigma * normal(stream));
}

static double between(double low, double x, double high) { return x < low ? low : x > high ? high : x; }

// ---- the generators

static double from_quantiles(Stream* stream, const LengthQuantile* table, int n) {
    double u = 1e6 * uniform(stream);
    int i = 0, last = n - 1;  // table[i].ppm <= u < table[last].ppm
    while (last - i > 1) {
        int middle = (i + last) / 2;
        if (table[middle].ppm <= u) i = middle;
        else last = middle;
    }
    double share = (u - table[i].ppm) / (table[last].ppm - table[i].ppm);
    return table[i].length * exact_exp(share * exact_log((double)table[last].length / table[i].length));
}

static double draw_wikipedia(const Lengths* x, Stream* stream) {
    (void)x;
    return from_quantiles(stream, wikipedia_quantiles, n_wikipedia_quantiles);
}

static double draw_prolong(const Lengths* x, Stream* stream) {
    (void)x;
    return from_quantiles(stream, prolong_quantiles, n_prolong_quantiles);
}

static double draw_wikipedia_fit(const Lengths* x, Stream* stream) {
    (void)x;
    double z = normal(stream), sigma = z < 0 ? 1.10 : MIN(1.52, 1.33 + 0.065 * z);
    return MAX(347 * exact_exp(sigma * z), 1);
}

static double draw_prolong_fit(const Lengths* x, Stream* stream) {
    (void)x;
    double s;
    do {
        double z = normal(stream), sigma = z < 0 ? 0.60 : 0.89 + 0.2 * MAX(0, z - 2.3);
        s = MAX(1914 * exact_exp(sigma * z), 575);
    } while (s > 340149);
    return s;
}

static double draw_github(const Lengths* x, Stream* stream) {
    (void)x;
    const double low = 65536, high = 2097152, alpha = 1.516;
    double s;
    if (uniform(stream) < 0.99178) {
        do s = lognormal(stream, 1500, 1.5);
        while (s > low);
        return s;
    }
    double at_low = exact_exp(-alpha * exact_log(low)), at_high = exact_exp(-alpha * exact_log(high));
    return exact_exp(-exact_log(at_low - uniform(stream) * (at_low - at_high)) / alpha);
}

// These medians make the clipped means 1K and 37K.
static double draw_sft(const Lengths* x, Stream* stream) {
    (void)x;
    if (uniform(stream) < 0.9989) return between(16, lognormal(stream, 744, 0.8), 16384);
    return between(16384, lognormal(stream, 32500, 0.5), 131072);
}

static double draw_arxiv(const Lengths* x, Stream* stream) {
    (void)x;
    return MAX(lognormal(stream, 13100, 0.8), 64);
}

static double mock(const Lengths* x, Stream* stream, double mean, double sigma) {
    return between(128, lognormal(stream, mean, sigma) * exact_exp(-sigma * sigma / 2), MIN(x->limit, 8192));
}

static double draw_mock(const Lengths* x, Stream* stream) { return mock(x, stream, 1024, 1.5); }
static double draw_mock_heavy(const Lengths* x, Stream* stream) { return mock(x, stream, 768, 1.8); }

static double draw_equal(const Lengths* x, Stream* stream) {
    (void)stream;
    return MIN(x->limit, 4096);
}

static double draw_short(const Lengths* x, Stream* stream) {
    (void)stream;
    return MIN(x->limit, 512);
}

// Draws one to eight times the capacity, and a token.
static double draw_just_above(const Lengths* x, Stream* stream) {
    int64_t most = MIN((x->limit - 1) / x->capacity, 8);
    return (double)(x->capacity * (1 + (int64_t)(uniform(stream) * (double)most)) + 1);
}

struct Kind {
    const char* name;
    double (*draw)(const Lengths* x, Stream* stream);
    int least;     // no draw is shorter, so no limit may be
    int one_long;  // one document of each batch is as long as the limit
};

static const Kind kinds[] = {
    {"wikipedia", draw_wikipedia, 1, 0},
    {"prolong", draw_prolong, 575, 0},
    {"wikipedia-fit", draw_wikipedia_fit, 1, 0},
    {"prolong-fit", draw_prolong_fit, 575, 0},
    {"github", draw_github, 1, 0},
    {"sft", draw_sft, 16, 0},
    {"arxiv", draw_arxiv, 64, 0},
    {"mock", draw_mock, 128, 0},
    {"mock-heavy", draw_mock_heavy, 128, 0},
    {"equal", draw_equal, 1, 0},
    {"one-long", draw_short, 1, 1},
    {"just-above", draw_just_above, 2, 0},
};

const char* lengths_names(void) {
    return "wikipedia, prolong, wikipedia-fit, prolong-fit, github, sft, arxiv, mock, mock-heavy, equal, one-long, "
           "just-above";
}

// ---- opening, drawing

Lengths* lengths_open(const char* name, int limit, int capacity, Err err) {
    const Kind* kind = NULL;
    for (int i = 0; i < COUNT(kinds); i++)
        if (strcmp(kinds[i].name, name) == 0) kind = &kinds[i];
    if (!kind) return fail(err, "no lengths are called \"%s\"; there are %s", name, lengths_names()), NULL;
    int least = kind->draw == draw_just_above ? MAX(capacity, 1) + 1 : kind->least;
    if (limit < least)
        return fail(err, "lengths \"%s\" are %d or more, above the limit of %d", name, least, limit), NULL;
    if (kind->draw == draw_just_above && capacity < 1)
        return fail(err, "lengths \"%s\" need a capacity, not %d", name, capacity), NULL;
    Lengths* x = (Lengths*)malloc(sizeof *x);
    if (!x) return fail(err, "no memory for lengths"), NULL;
    *x = (Lengths){.kind = kind, .limit = limit, .capacity = capacity};
    return x;
}

// Reads the one number of a line that ends at `end`, blanks around it; 0 for a blank line, -1 for anything else.
static int64_t parse_line(const char* at, const char* end) {
    int64_t value = 0;
    int digits = 0;
    while (at < end && (*at == ' ' || *at == '\t')) at++;
    while (end > at && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r')) end--;
    for (; at < end && *at >= '0' && *at <= '9' && digits < 18; at++, digits++) value = 10 * value + (*at - '0');
    return at < end || (digits > 0 && value == 0) ? -1 : value;
}

Lengths* lengths_parse(const char* text, size_t n, int limit, Err err) {
    int64_t lines = 1, line = 1, left_out = 0;
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
    if (lines > INT32_MAX) return fail(err, "more lengths than can be counted"), NULL;
    Lengths* x = (Lengths*)malloc(sizeof *x + sizeof(int) * (size_t)lines);
    if (!x) return fail(err, "no memory for %lld lengths", (long long)lines), NULL;
    *x = (Lengths){.limit = limit};
    for (const char *at = text, *end; at < text + n; at = end + 1, line++) {
        end = (const char*)memchr(at, '\n', (size_t)(text + n - at));
        if (!end) end = text + n;
        int64_t value = parse_line(at, end);
        if (value < 0) {
            fail(err, "line %lld is \"%.*s\", expected a length: a whole number from 1 on", (long long)line,
                 (int)MIN(end - at, 40), at);
            free(x);
            return NULL;
        }
        if (value > limit) left_out++;
        else if (value > 0) x->values[x->n++] = (int)value;
    }
    if (x->n > 0) return x;
    free(x);
    if (left_out) fail(err, "all %lld lengths are above the limit of %d", (long long)left_out, limit);
    else fail(err, "no length in it");
    return NULL;
}

void lengths_close(Lengths* lengths) { free(lengths); }

// A limit far down in the tail would be drawn for forever.
enum { TRIES = 4096 };

static int draw_one(const Lengths* x, uint64_t seed) {
    for (uint64_t try = 0; try < TRIES; try++) {
        Stream stream = {seed, try << 32};
        double s = floor(x->kind->draw(x, &stream) + 0.5);
        if (s <= x->limit) return (int)s;
    }
    return x->limit;
}

void lengths_draw(const Lengths* x, int* out, int n, uint64_t seed, int64_t batch) {
    uint64_t of_batch = hash64(hash64(seed) ^ (uint64_t)batch);
    for (int i = 0; i < n; i++) {
        uint64_t of_document = hash64(of_batch + (uint64_t)i);
        out[i] = x->kind ? draw_one(x, of_document) : x->values[of_document % (uint64_t)x->n];
    }
    if (x->kind && x->kind->one_long && n > 0) out[of_batch % (uint64_t)n] = x->limit;
}

static int descending(const void* a, const void* b) {
    int x = *(const int*)a, y = *(const int*)b;
    return (x < y) - (x > y);
}

void sort_lengths(int* lengths, int n) { qsort(lengths, (size_t)n, sizeof(int), descending); }
