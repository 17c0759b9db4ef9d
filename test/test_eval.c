// test_eval.c - how good a model is, without training it: the loss of PyTorch on any ranks, the loss that training
// reports, and of several endings the one that is likely, by losses found in another way.
#include "data/choices.h"
#include "plan/base/base.h"
#include "test/program.h"

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
    char path[128];
    Json json;
    double loss = NAN;
    snprintf(path, sizeof path, "test/golden/%s/golden.json", arch);
    size_t n = read_text(path, text, sizeof text);
    if (json_parse(&json, text, n, err)) return NAN;
    json_double(json_at(&json, json_get(&json, json.values, "losses"), 0), &loss);
    const JsonValue* options = json_get(&json, json.values, "options");
    for (int i = 0; options && i + 1 < options->n; i++) {
        const JsonValue *name = json_at(&json, options, i), *value = json_at(&json, options, i + 1);
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
    CHECK_SH(0, "mkdir $W/corpus && cp plan/*/*.h $W/corpus && $P " TINY "--eval-every 30 --out $W/run");
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

// Two documents differ by the ending: what it adds to the loss is its likelihood.
static double loss_of(const char* text) {
    char line[512];
    snprintf(line, sizeof line, "{\"text\": \"%s\"}\n", text);
    put_text("one.jsonl", line);
    CHECK_SH(0, "$P --eval --dtype fp32 --out $W/run --data $W/one.jsonl");
    const char* at = strchr(output, ':');
    return printed("loss") * (at ? atof(at + 1) : NAN);
}

// choices.json is by PyTorch in double (dev/reference.py).
CLAIM(endings_are_as_likely_as_pytorch_says) {
    static char text[1 << 14];
    for (int i = 0; i < COUNT(archs); i++) {
        char path[128], right[64];
        int64_t expected = -1, endings = 0;
        Json json;
        snprintf(path, sizeof path, "test/golden/%s/choices.json", archs[i]);
        CHECK(json_parse(&json, text, read_text(path, text, sizeof text), err) == 0);
        CHECK(json_int64(json_get(&json, json.values, "right"), &expected) == 0);
        CHECK_SH(0, "$P --eval test/golden/choices.jsonl --dtype fp32 --init test/golden/%s/init --verbose", archs[i]);
        snprintf(right, sizeof right, ": %d of 4 right", (int)expected);
        CHECK_SAID(right);
        const JsonValue* means = json_get(&json, json.values, "means");
        const char* at = output;
        for (int q = 0; means && q < means->n; q++) {
            const JsonValue* mean = json_at(&json, means, q);
            for (int e = 0; e < mean->n && at; e++, endings++) {
                double wanted = NAN;
                CHECK(json_double(json_at(&json, mean, e), &wanted) == 0);
                if ((at = strstr(at, " ending "))) at = strchr(at, ':');
                CHECK_CLOSE(at ? atof(at + 1) : NAN, wanted, 1e-5 * fabs(wanted));
            }
        }
        CHECK(endings == 12);
        json_free(&json);
    }
}

CLAIM(the_chosen_ending_has_the_highest_mean_likelihood_of_its_tokens) {
    const char *context = "static int", *endings[] = {"the end(void);", "zzqqx", "int n, int m) {"};
    double mean[3];
    int best = 0;
    for (int i = 0; i < 3; i++) {
        char whole[256];
        snprintf(whole, sizeof whole, "%s %s", context, endings[i]);
        mean[i] = -(loss_of(whole) - loss_of(context)) / (double)(1 + strlen(endings[i]));
        if (mean[i] > mean[best]) best = i;
    }
    char list[256], file[1024];
    snprintf(list, sizeof list, "\"endings\": [\"%s\", \"%s\", \"%s\"]", endings[0], endings[1], endings[2]);
    snprintf(file, sizeof file,
             "{\"ctx\": \"%s\", %s, \"label\": %d}\n\n{\"context\": \"%s\", %s, \"label\": \"%d\", \"x\": null}\n",
             context, list, best, context, list, (best + 1) % 3);
    put_text("choices.jsonl", file);
    CHECK_SH(0, "$P " CHOICES "--verbose");
    const char* at = output;
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "ending %d:", i);
        at = at ? strstr(at, name) : NULL;
        // Losses are printed with half a millionth, here of some 25 tokens twice; five bytes are the shortest ending.
        CHECK_CLOSE(at ? atof(at + strlen(name)) : NAN, mean[i], 1e-6 + 2 * 25 * 5e-7 / 5);
    }
    CHECK_SAID("accuracy 0.5000: 1 of 2 right");
    CHECK_SH(0, "$P " CHOICES "--capacity 64 --threads 1");
    CHECK_SAID("accuracy 0.5000: 1 of 2 right");
    if (!has_mpirun()) return;
    CHECK_SH(0, ON_RANKS "$P " CHOICES "--tp 2", 2);
    CHECK_SAID("accuracy 0.5000: 1 of 2 right");
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

CLAIM(questions_that_are_none_are_named) {
    static const char* const bad[] = {"",
                                      "[]",
                                      "{",
                                      "{\"ctx\": 5, \"endings\": [\"a\", \"b\"], \"label\": 0}",
                                      "{\"ctx\": \"x\", \"endings\": [\"a\"], \"label\": 0}",
                                      "{\"ctx\": \"x\", \"endings\": [\"a\", 5], \"label\": 0}",
                                      "{\"ctx\": \"x\", \"endings\": [\"a\", \"b\"], \"label\": 2}",
                                      "{\"ctx\": \"x\", \"endings\": [\"a\", \"b\"], \"label\": \"x\"}",
                                      "{\"ctx\": \"x\", \"endings\": [\"a\", \"b\"]}",
                                      "{\"ctx\": \"x\\u0000y\", \"endings\": [\"a\", \"b\"], \"label\": 1}"};
    const char* good = "{\"ctx\": \"x\", \"endings\": [\"a\", \"b\"], \"label\": 1}";
    Choice c;
    for (int i = 0; i < COUNT(bad); i++) CHECK(choice_parse(&c, bad[i], strlen(bad[i]), err) == -1 && err[0]);
    CHECK(choice_parse(&c, good, strlen(good), err) == 0 && c.n == 2 && c.label == 1);
    choice_free(&c);
    for (size_t n = 0; n < strlen(good); n++) {
        char* prefix = strndup(good, n);
        CHECK(choice_parse(&c, prefix, n, err) == -1);
        free(prefix);
    }
    CHECK_SH(1, "echo '{}' > $W/choices.jsonl; $P " CHOICES);
    CHECK(strstr(errors, "choices.jsonl:1: ") && strstr(errors, "endings"));
}

PROGRAM_TEST {}
