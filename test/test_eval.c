// test_eval.c - how good a model is, without training it: the loss of PyTorch on any ranks, the loss that training
// reports, and of several endings the one that is likely, by losses found in another way.
#include "data/choices.h"
#include "test/program.h"
#include "test/readers.h"

#define TINY \
    "--data $W/corpus --layers 2 --width 32 --heads 2 --context 64 --batch-tokens 256 --steps 30 --sample-every 0 "

#define CHOICES "--dtype fp32 --eval $W/choices.jsonl --out $W/run "

static char err[ERR_BYTES];
static const char* const archs[] = {"gpt2", "llama", "qwen2", "qwen3"};

// What --eval prints. NaN: it does not.
static double printed(const char* name) {
    const char* at = strstr(output, name);
    double x = NAN;
    if (at && sscanf(at + strlen(name), " %lf", &x) != 1) x = NAN;
    if (isnan(x)) printf("    no %s in: %s", name, output);
    return x;
}

static double bits_printed(void) {
    const char* at = strstr(output, " bits per byte");
    while (at && at > output && at[-1] != ' ') at--;
    return at ? atof(at) : NAN;
}

// The first loss in golden.json, which is of the weights as they are, and the context it was found with.
static double golden(const char* arch, int* context) {
    static char text[1 << 16];
    Json json;
    double loss = NAN;
    size_t n = read_text(filled("test/golden/%s/golden.json", arch), text, sizeof text);
    if (json_parse(&json, text, n, err)) return NAN;
    json_double(json_at(json_get(json.values, "losses"), 0), &loss);
    const JsonValue* options = json_get(json.values, "options");
    for (int i = 0; options && i + 1 < options->n; i++) {
        const JsonValue *name = json_at(options, i), *value = json_at(options, i + 1);
        if (name->length == 9 && !strncmp(name->text, "--context", 9)) *context = atoi(value->text);
    }
    json_free(&json);
    return loss;
}

CLAIM(losses_are_those_of_pytorch_on_any_ranks) {
    static const char* const ways[] = {"--cp 1", "--cp 2", "--tp 2 --zero 3"};
    static const int ranks[] = {1, 2, 4};
    for (int i = 0; i < COUNT(archs); i++) {
        int context = 0, n_ways = i == 0 && has_mpirun() ? COUNT(ways) : 1;
        char given[32] = "", on[64] = "";
        double expected = golden(archs[i], &context);
        if (context) snprintf(given, sizeof given, "--context %d", context);
        for (int w = 0; w < n_ways; w++) {
            if (w) snprintf(on, sizeof on, ON_RANKS, ranks[w]);
            CHECK_SH(0, "%s $P --eval --dtype fp32 --init test/golden/%s/init %s --data test/golden/docs.jsonl %s", on,
                     archs[i], given, ways[w]);
            CHECK_CLOSE(printed("loss"), expected, 1e-5 * expected);
            CHECK_CLOSE(printed("perplexity"), exp(expected), 2e-5 * expected * exp(expected));
        }
    }
}

CLAIM(a_run_is_evaluated_on_its_own_validation_text_or_on_others) {
    double losses[4], bits[4];
    CHECK_SH(0, "mkdir $W/corpus && cp plan/[bcv]*/*.h $W/corpus && $P " TINY "--eval-every 30 --out $W/run");
    CHECK(log_values("run", "val_loss", losses, 4) == 2 && log_values("run", "bits_per_byte", bits, 4) == 2);
    CHECK_SH(0, "$P --eval --out $W/run");
    CHECK_CLOSE(printed("loss"), losses[1], 1e-5 * losses[1]);
    CHECK_CLOSE(bits_printed(), bits[1], 1e-5 * bits[1]);
    CHECK_SH(0, "test $(ls $W/run | grep -c step-) = 1");  // nothing was written
    CHECK_SH(0, "$P --eval --out $W/run --data plan/base/base.h");
    CHECK_SAID(" in 1 document,");
    CHECK_SH(1, "$P --eval --init $W/run --data plan/base/base.h");
    CHECK_SAID("is a run");
}

// choices.json is by PyTorch in double (dev/reference.py). Of the last one also in bf16, and on ranks.
CLAIM(endings_are_as_likely_as_pytorch_says) {
    static char text[1 << 14];
    static const char* const ways[] = {"--dtype bf16", "--ranks 2 --pp 2", "--ranks 2 --tp 2"};
    for (int i = 0; i < COUNT(archs) + COUNT(ways); i++) {
        const char *arch = archs[MIN(i, COUNT(archs) - 1)], *way = i < COUNT(archs) ? "" : ways[i - COUNT(archs)];
        double tolerance = strstr(way, "bf16") ? 5e-3 : 1e-5;
        char right[64];
        int64_t expected = -1, endings = 0;
        Json json;
        CHECK(json_parse(&json, text, read_text(filled("test/golden/%s/choices.json", arch), text, sizeof text), err) ==
              0);
        CHECK(json_int64(json_get(json.values, "right"), &expected) == 0);
        CHECK_SH(0, "$P --dtype fp32 --eval test/golden/choices.jsonl --init test/golden/%s/init --verbose %s", arch,
                 way);
        snprintf(right, sizeof right, ": %d of 4 right", (int)expected);
        CHECK_SAID(right);
        const JsonValue* means = json_get(json.values, "means");
        const char* at = output;
        for (int q = 0; means && q < means->n; q++) {
            const JsonValue* mean = json_at(means, q);
            for (int e = 0; e < mean->n && at; e++, endings++) {
                double wanted = NAN;
                CHECK(json_double(json_at(mean, e), &wanted) == 0);
                if ((at = strstr(at, " ending "))) at = strchr(at, ':');
                CHECK_CLOSE(at ? atof(at + 1) : NAN, wanted, tolerance * fabs(wanted));
            }
        }
        CHECK(endings == 12);
        json_free(&json);
    }
}

// The beginning of a context that is too long is left out; what the model cannot hold is refused.
CLAIM(long_contexts_lose_their_beginning_and_long_endings_are_refused) {
    static const char* const questions[] = {"{\"ctx\": \"%0500d\", \"endings\": [\"a\", \"b\"], \"label\": 0}",
                                            "{\"ctx\": \"a\", \"endings\": [\"%0500d\", \"b\"], \"label\": 0}"};
    for (int i = 0; i < 2; i++) {
        CHECK_SH(i, "printf '%s\\n' 7 > $W/choices.jsonl; $P " CHOICES, questions[i]);
        CHECK_SAID(i ? "choices.jsonl:1: an ending has 501 tokens" : " of 1 right");
    }
}

static int read_question(const void* text, size_t n) {
    Choice c;
    int status = choice_parse(&c, (const char*)text, n, err);
    if (status) return status;
    CHECK(c.n == 2 && c.label == 1);
    choice_free(&c);
    return 0;
}

CLAIM(questions_that_are_none_are_named) {
    static const BadText bad[] = {{"", ""},
                                  {"[]", ""},
                                  {"{", ""},
                                  {"{'ctx': 5, 'endings': ['a', 'b'], 'label': 0}", ""},
                                  {"{'ctx': 'x', 'endings': ['a'], 'label': 0}", ""},
                                  {"{'ctx': 'x', 'endings': ['a', 5], 'label': 0}", ""},
                                  {"{'ctx': 'x', 'endings': ['a', 'b'], 'label': 2}", ""},
                                  {"{'ctx': 'x', 'endings': ['a', 'b'], 'label': 'x'}", ""},
                                  {"{'ctx': 'x', 'endings': ['a', 'b']}", ""},
                                  {"{'ctx': 'x\\u0000y', 'endings': ['a', 'b'], 'label': 1}", ""}};
    const char* good = quoted("{'ctx': 'x', 'endings': ['a', 'b'], 'label': 1}");
    check_prefixes(read_question, good, strlen(good), strlen(good));
    CHECK_BAD_TEXTS(read_question, err, bad);
    CHECK_REFUSED("choices.jsonl:1:  & endings", "echo '{}' > $W/choices.jsonl; $P " CHOICES);
}

PROGRAM_TEST {}
