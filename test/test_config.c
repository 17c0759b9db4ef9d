// test_config.c - the claims of plan/config.h and plan/shape.h, and of choose_token in plan/base.h.
#include "plan/config.h"
#include "plan/shape.h"
#include "test/test.h"

static Config config;
static char err[ERR_BYTES];

// Parses a line of words; the words live as long as the test.
static int parse(const char* line) {
    static char words[32][256];
    static char* argv[33];
    char copy[1024];
    int argc = 1;
    strcpy(words[0], "train");
    argv[0] = words[0];
    snprintf(copy, sizeof copy, "%s", line);
    for (char* w = strtok(copy, " "); w && argc < 32; w = strtok(NULL, " "), argc++) {
        snprintf(words[argc], sizeof words[argc], "%s", w);
        argv[argc] = words[argc];
    }
    argv[argc] = NULL;
    err[0] = 0;
    config_free(&config);
    return config_parse(&config, argc, argv, err, sizeof err);
}

static void values_are_taken_in_both_spellings(void) {
    CHECK(parse("--steps 7 --lr=0.25 --data a b --schedule wsd --overfit --val=c") == 0);
    CHECK(config.steps == 7 && config.lr == 0.25 && config.overfit == 1);
    CHECK(config.data.n == 2 && config.val.n == 1);
    CHECK_STRING(config.data.paths[1], "b");
    CHECK_STRING(config.schedule, "wsd");
    CHECK(config_was_given(&config, "--lr") && !config_was_given(&config, "--seed"));
}

static void an_unknown_option_names_the_nearest(void) {
    CHECK(parse("--step 5") < 0);
    CHECK(strstr(err, "--steps") != NULL);
    CHECK(parse("--learning-speed 5") < 0);
    CHECK(strstr(err, "--learning-speed") != NULL);
    CHECK(parse("steps 5") < 0);
}

static void values_out_of_range_are_refused_with_the_range(void) {
    const char* bad[] = {"--steps -1",    "--steps 1.5",  "--steps abc", "--steps",        "--lr 11",
                         "--lr nan",      "--lr inf",     "--lr 1e999",  "--schedule cos", "--schedule cosine|linear",
                         "--dtype fp16",  "--threads -1", "--keep 1e30", "--steps --lr 1", "--batch-tokens -1",
                         "--overfit=yes", "--top-k 5x",   "--lr="};
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK(parse(bad[i]) < 0);
        CHECK(strstr(err, "expect") || strstr(err, "takes no value"));
        CHECK(strchr(err, '\n') == NULL);
    }
}

static void what_to_do_about_slow_ranks_is_read_and_kept(void) {
    CHECK(parse("--tp 3 --balance semi --moves keep --experiment shed=slices,fill=average --experiment priority=random "
                "--experiment=ratios=layers --semi-lambda 2.5 --straggle rank=1,x=4") == 0);
    CHECK(config.tp == 3 && config.semi_lambda == 2.5 && !strcmp(config.balance, "semi"));
    CHECK(!strcmp(config.moves, "keep") && !strcmp(config.shed, "slices") && !strcmp(config.fill, "average"));
    CHECK(!strcmp(config.priority, "random") && !strcmp(config.ratios, "layers"));
    CHECK(config_was_given(&config, "--straggle") && !config_was_given(&config, "--refresh"));
    CHECK(config_restore(&config, "--moves", "step", err, sizeof err) == 0 && !strcmp(config.moves, "keep"));
    CHECK(config_restore(&config, "--straggle", "rank=2,x=8", err, sizeof err) == 0 && config.straggle[5] == '1');
    CHECK(parse("--tp 65") < 0 && strstr(err, "--tp") && strstr(err, "64"));
    CHECK(parse("--balance fast") < 0 && strstr(err, "off|resize|migrate|semi"));
}

static void a_cp_size_means_a_static_plan(void) {
    CHECK(parse("") == 0 && config_complete(&config, 257, err, sizeof err) == 0);
    CHECK_STRING(config.plan, "flex");
    CHECK(parse("--cp 2") == 0 && config_complete(&config, 257, err, sizeof err) == 0);
    CHECK_STRING(config.plan, "static");
    CHECK(parse("--cp 2 --plan static") == 0 && config_complete(&config, 257, err, sizeof err) == 0);
    const char* both[] = {"--cp 2 --plan flex", "--cp 2 --plan adaptive", "--cp 2 --plan random"};
    for (int i = 0; i < COUNT(both); i++)
        CHECK(parse(both[i]) == 0 && config_complete(&config, 257, err, sizeof err) < 0 && strstr(err, "--cp 2"));
    CHECK(parse("--cp 0 --plan flex") == 0 && config_complete(&config, 257, err, sizeof err) == 0);
    // A run that was saved with another planner goes on under the cp size that is asked for now.
    CHECK(parse("--cp 2") == 0 && config_restore(&config, "--plan", "flex", err, sizeof err) == 0);
    CHECK(config_complete(&config, 257, err, sizeof err) == 0);
    CHECK_STRING(config.plan, "static");
}

// Plans follow from the machine file, so it belongs to the run; probing and explaining are of the moment.
static void what_plans_follow_from_is_saved_with_the_run(void) {
    CHECK(parse("--plan flex") == 0);
    CHECK(config_restore(&config, "--machine", "file", err, sizeof err) == 0 && config.machine);
    CHECK(config_restore(&config, "--refresh", "0", err, sizeof err) == 0 && config.refresh == 0);
    CHECK(config_restore(&config, "--probe", "1", err, sizeof err) == 0 && !config.probe);
    CHECK(config_restore(&config, "--explain", "1", err, sizeof err) == 0 && !config.explain);
}

static void a_way_to_divide_ranks_that_is_given_takes_the_place_of_saved_ones(void) {
    static const struct {
        const char *given, *overruled;
        int tp;
        const char *layout, *strategies;
    } cases[] = {{"", NULL, 4, "tp 4; stage", "4xtp1"},
                 {"--strategies none", NULL, 4, "tp 4; stage", "none"},
                 {"--strategies 2xtp2", "--layout", 1, NULL, "2xtp2"},
                 {"--layout file", "--strategies", 1, "file", NULL},
                 {"--pp 2", "--layout", 4, NULL, NULL},
                 {"--zero 2", "--layout", 4, NULL, "4xtp1"}};
    for (int i = 0; i < COUNT(cases); i++) {
        CHECK(parse(cases[i].given) == 0);
        CHECK(config_restore(&config, "--tp", "4", err, sizeof err) == 0);
        CHECK(config_restore(&config, "--strategies", "4xtp1", err, sizeof err) == 0);
        CHECK(config_restore(&config, "--layout", "tp 4; stage", err, sizeof err) == 0);
        CHECK(config_restore(&config, "--memory", "64M", err, sizeof err) == 0 && config.memory);
        CHECK(config.tp == cases[i].tp);
        CHECK_STRING(config.layout ? config.layout : "", cases[i].layout ? cases[i].layout : "");
        CHECK_STRING(config.strategies ? config.strategies : "", cases[i].strategies ? cases[i].strategies : "");
        CHECK_STRING(config.overruled ? config.overruled : "", cases[i].overruled ? cases[i].overruled : "");
    }
}

// Names of the version before: they mean the same, whether typed or saved with a checkpoint.
static void old_names_are_understood(void) {
    CHECK(parse("--degree 2 --kind heads --reduce bf16 --exchange-rate 3 --fill same") == 0);
    CHECK(config.cp_size == 2 && !strcmp(config.kind, "ulysses") && config.semi_lambda == 3);
    CHECK(!strcmp(config.grad_dtype, "bf16") && !strcmp(config.fill, "same"));
    CHECK(config_restore(&config, "--fill", "average", err, sizeof err) == 0 && !strcmp(config.fill, "same"));
    CHECK(config_restore(&config, "--shed", "slices", err, sizeof err) == 0 && !strcmp(config.shed, "slices"));
    CHECK(parse("--priority what") < 0 && strstr(err, "--experiment priority expects change|random|inverse"));
}

// Each key of --experiment wins alone over the saved run's.
static void experiments_are_saved_key_by_key(void) {
    CHECK(parse("--experiment fill=average") == 0);
    CHECK(config_restore(&config, "--experiment", "shed=slices,fill=same,newer=x", err, sizeof err) == 0);
    CHECK(!strcmp(config.shed, "slices") && !strcmp(config.fill, "average") && !strcmp(config.priority, "change"));
    CHECK(config_restore(&config, "--experiment", "ratios=some", err, sizeof err) < 0 && strstr(err, "equal|layers"));
    const char* bad[] = {"fill", "fil=same", "=same", "", "fill=same,", "fill=same,x=1"};
    for (int i = 0; i < COUNT(bad); i++) {
        char line[64];
        snprintf(line, sizeof line, "--experiment=%s", bad[i]);
        CHECK(parse(line) < 0 && strstr(err, "KEY=VALUE with KEY shed|fill|priority|ratios, found"));
    }
    CHECK(parse("--experiment fill=") < 0 && strstr(err, "zero|average|same"));
    CHECK(parse("--experiment --lr 1") < 0 && strstr(err, "found --lr"));
}

// ---- help

static char shown[1 << 15];

// What --help TOPIC prints; every line fits 80 columns.
static const char* help_on(const char* topic) {
    FILE* file = tmpfile();
    config_help(file, topic);
    rewind(file);
    shown[fread(shown, 1, sizeof shown - 1, file)] = 0;
    fclose(file);
    int column = 0, widest = 0;
    for (const char* c = shown; *c; c++) {
        column = *c == '\n' ? 0 : column + 1;
        widest = MAX(widest, column);
    }
    CHECK(widest > 40 && widest <= 80);
    return shown;
}

static void help_begins_with_what_a_person_needs(void) {
    const char *first[] = {"--data", "--out", "--preset", "--steps", "--lr", "--resume", "--sample", "--help ranks"},
               *others[] = {"--beta1", "--straggle", "--fill", "--experiment"};
    CHECK(parse("--help") == 0 && config.help && !config.help[0]);
    for (int i = 0; i < COUNT(first); i++) CHECK(strstr(help_on(""), first[i]) != NULL);
    for (int i = 0; i < COUNT(others); i++) CHECK(strstr(help_on(""), others[i]) == NULL);
    CHECK(parse("--steps 5") == 0 && !config.help);
}

static void every_option_is_in_the_help_of_one_group(void) {
    const char* topics[] = {"data", "model", "optimizer", "rhythm", "sampling", "device", "ranks", "slow", "inside"};
    size_t all = strlen(help_on("all")), sum = 0;
    for (int i = 0; i < COUNT(topics); i++) {
        char line[64];
        snprintf(line, sizeof line, "--help %s", topics[i]);
        CHECK(parse(line) == 0);
        sum += strlen(help_on(config.help));
    }
    CHECK(sum == all);
    help_on("slow");
    CHECK(strstr(shown, "fill=zero|average|same") && !strstr(shown, "--fill") && !strstr(shown, "--lr"));
    CHECK(parse("--help=all") == 0 && !strcmp(config.help, "all"));
    const char* bad[] = {"--help --steps 5", "--help everything", "--help=--lr", "--help a|b"};
    for (int i = 0; i < COUNT(bad); i++) CHECK(parse(bad[i]) < 0 && strstr(err, "all|data|model|optimizer"));
}

typedef struct Seen {
    int n;
    char names[80][32], values[80][256];
} Seen;

static void remember(void* context, const char* name, const char* value) {
    Seen* seen = (Seen*)context;
    snprintf(seen->names[seen->n], sizeof seen->names[0], "%s", name);
    snprintf(seen->values[seen->n++], sizeof seen->values[0], "%s", value);
}

static void what_is_visited_restores_the_same_configuration(void) {
    static Seen before, after;
    before.n = after.n = 0;
    CHECK(parse("--lr 0.000123 --data x y z --steps 99 --temperature 0.33 --experiment fill=same") == 0);
    config_visit(&config, remember, &before);
    CHECK(parse("--steps 100") == 0);
    for (int i = 0; i < before.n; i++)
        CHECK(config_restore(&config, before.names[i], before.values[i], err, sizeof err) == 0);
    CHECK(config.lr == 0.000123 && config.data.n == 3 && config.steps == 100);  // what was given wins
    config.steps = 99;
    config_visit(&config, remember, &after);
    CHECK(before.n == after.n && before.n > 20);
    for (int i = 0; i < before.n; i++) CHECK_STRING(after.values[i], before.values[i]);
}

static void presets_fill_in_and_dimensions_must_agree(void) {
    CHECK(parse("--preset gpt2-124m --context 128") == 0 && config_complete(&config, 257, err, sizeof err) == 0);
    CHECK(config.lr == 6e-4 && config.batch_tokens == 524288);
    CHECK(config.layers == 12 && config.width == 768 && config.context == 128 && config.vocab == 50257);
    CHECK(parse("") == 0 && config_complete(&config, 257, err, sizeof err) == 0 && config.vocab == 257);
    CHECK(parse("--width 100 --heads 3") == 0 && config_complete(&config, 257, err, sizeof err) < 0 &&
          strstr(err, "102"));
    CHECK(parse("--context 512 --batch-tokens 511") == 0 && config_complete(&config, 257, err, sizeof err) < 0);
    CHECK(strstr(err, "--batch-tokens 511") && strstr(err, "512"));
    CHECK(parse("--capacity 10") == 0 && config_complete(&config, 257, err, sizeof err) < 0);
    CHECK(parse("--vocab 100") == 0 && config_complete(&config, 257, err, sizeof err) < 0);
}

static void defaults_follow_the_size_of_the_model(void) {
    static const struct {
        const char* options;
        double lr;
        int warmup, eval_tokens;
    } cases[] = {
        {"", 4e-3, 100, 32768},  // 0.86M parameters, the default run
        {"--steps 20", 4e-3, 2, 32768},
        {"--steps 5 --eval-tokens 7", 4e-3, 0, 7},
        {"--layers 6 --width 352 --heads 8", 1.1e-3, 100, 32768},   // 9.1M
        {"--layers 8 --width 512 --heads 8", 8.3e-4, 200, 131072},  // 25M
        {"--preset gpt2-124m", 6e-4, 350, 131072},
        {"--preset gpt2-350m --steps 100000", 3e-4, 715, 131072},
        {"--preset llama-3.1-8b --steps 50", 1.1e-4, 5, 131072},
        {"--preset llama-3.1-8b --layers 320", 1e-4, 179, 131072},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        CHECK(parse(cases[i].options) == 0 && config_complete(&config, 257, err, sizeof err) == 0);
        int right =
            config.lr == cases[i].lr && config.warmup == cases[i].warmup && config.eval_tokens == cases[i].eval_tokens;
        CHECK(right);
        if (!right)
            printf("    %s: lr %g, warm-up %d, %d\n", cases[i].options, config.lr, config.warmup, config.eval_tokens);
    }
}

// ---- shape

static void parameters_do_not_overlap_and_count_as_known(void) {
    Shape shape = shape_make(12, 768, 12, 50257, 1024);
    CHECK(shape.Vp == 50304);
    CHECK(shape_param_count(&shape) == 124439808);  // GPT-2 124M as Hugging Face counts it
    size_t end = 0;
    for (int i = 0; i < shape_tensors(&shape); i++) {
        ParamTensor t = shape_tensor(&shape, i);
        CHECK(t.offset >= end && t.offset % 64 == 0 && t.offset < end + 64);
        end = t.offset + t.elems;
        ParamTensor again = shape_param(&shape, t.id, t.layer);
        CHECK(again.offset == t.offset && again.elems == t.elems);
    }
    CHECK(shape_param_elems(&shape) >= end);
    Shape xl = shape_make(48, 1600, 25, 50257, 1024);
    CHECK(shape_param_count(&xl) == 1557611200);
}

static void activations_do_not_overlap_and_recompute_takes_less(void) {
    Shape shape = shape_make(3, 40, 4, 257, 64);
    size_t last = (size_t)-1;
    for (int mode = RECOMPUTE_NONE; mode <= RECOMPUTE_BLOCK; mode++) {
        LayerLayout layer[3] = {{1, 1, (Recompute)mode}, {1, 1, (Recompute)mode}, {1, 1, (Recompute)mode}};
        ActNeeds needs = {.N = 100, .classifier_N = 10, .layer = layer, .training = 1, .tp = 1, .dt = DT_F32};
        Activation acts[N_ACTS];
        size_t bytes = shape_activations(&shape, &needs, acts), end = 0;
        for (int i = 0; i < N_ACTS; i++) {
            CHECK(acts[i].offset == end && acts[i].offset % 64 == 0);
            size_t all = acts[i].shared + acts[i].kept;
            CHECK(all >= acts[i].elems * (size_t)acts[i].copies * dtype_bytes(acts[i].dtype));
            end += all;
        }
        CHECK(end == bytes && bytes < last);
        last = bytes;
    }
}

static void initial_values_have_the_wanted_spread(void) {
    Shape shape = shape_make(2, 64, 4, 257, 32);
    static float value[1 << 16];
    for (int i = 0; i < shape_tensors(&shape); i++) {
        ParamTensor t = shape_tensor(&shape, i);
        double sum = 0, sum2 = 0, wide = 0.02 * sqrt(768.0 / 64);
        double std = param_table[t.id].init == INIT_RESIDUAL ? wide / 2 : wide;  // sqrt(2L) = 2
        shape_init_param(&shape, &t, 1, 0, t.elems, value);
        size_t n = t.id == WTE ? (size_t)shape.V * shape.C : t.elems;
        for (size_t j = 0; j < n; j++) sum += value[j], sum2 += (double)value[j] * value[j];
        if (param_table[t.id].init > INIT_RESIDUAL) CHECK(sum == (param_table[t.id].init == INIT_ONE ? (double)n : 0));
        else {
            // standard errors: std / sqrt(n) of the mean, std / sqrt(2n) of the spread; five of them
            CHECK_CLOSE(sum / (double)n, 0, 5 * std / sqrt((double)n));
            CHECK_CLOSE(sqrt(sum2 / (double)n), std, 5 * std / sqrt(2.0 * (double)n));
        }
        for (size_t j = n; j < t.elems; j++) CHECK(value[j] == 0);
    }
}

// ---- schedule, choice

static void schedules_rise_and_fall_as_described(void) {
    const char* kinds[] = {"cosine", "linear", "constant", "wsd"};
    for (int k = 0; k < COUNT(kinds); k++) {
        char line[128];
        snprintf(line, sizeof line, "--lr 1 --warmup 10 --steps 110 --min-lr 0.1 --schedule %s", kinds[k]);
        CHECK(parse(line) == 0);
        CHECK_CLOSE(schedule_lr(&config, 1), 0.1, 1e-12);
        CHECK_CLOSE(schedule_lr(&config, 10), 1, 1e-12);
        CHECK_CLOSE(schedule_lr(&config, 110), k == 2 ? 1 : 0.1, 1e-12);
        CHECK_CLOSE(schedule_lr(&config, 60), k < 2 ? 0.55 : 1, 1e-12);
        for (int t = 11; t <= 110; t++) CHECK(schedule_lr(&config, t) <= schedule_lr(&config, t - 1));
    }
    CHECK(parse("--lr 1 --warmup 10 --steps 110 --min-lr 0 --schedule wsd") == 0);
    CHECK_CLOSE(schedule_lr(&config, 99), 1 - sqrt(0.5), 1e-12);  // half of the last 22 steps
    CHECK(parse("--lr 1 --warmup 0 --steps 0") == 0 && isfinite(schedule_lr(&config, 1)));
}

static void choices_follow_the_probabilities(void) {
    float logits[4] = {0, 1, 2, -INFINITY}, scratch[4];
    CHECK(choose_token(logits, 4, 0, 0, 0.99, scratch) == 2);
    CHECK(choose_token(logits, 4, 1, 1, 0.99, scratch) == 2);
    int count[4] = {0};
    for (int i = 0; i < 100000; i++) count[choose_token(logits, 4, 2, 0, (i + 0.5) / 100000, scratch)]++;
    double total = exp(0) + exp(0.5) + exp(1);
    for (int v = 0; v < 3; v++)
        CHECK_CLOSE(count[v] / 1e5, exp(v / 2.0) / total, 2e-5);  // a stratified sample: off by one at most
    CHECK(count[3] == 0);
    memset(count, 0, sizeof count);
    for (int i = 0; i < 1000; i++) count[choose_token(logits, 4, 2, 2, (i + 0.5) / 1000, scratch)]++;
    CHECK(count[0] == 0 && count[1] > 300 && count[2] > 600);
}

int main(void) {
    RUN(values_are_taken_in_both_spellings);
    RUN(an_unknown_option_names_the_nearest);
    RUN(values_out_of_range_are_refused_with_the_range);
    RUN(what_to_do_about_slow_ranks_is_read_and_kept);
    RUN(a_cp_size_means_a_static_plan);
    RUN(what_plans_follow_from_is_saved_with_the_run);
    RUN(a_way_to_divide_ranks_that_is_given_takes_the_place_of_saved_ones);
    RUN(old_names_are_understood);
    RUN(experiments_are_saved_key_by_key);
    RUN(help_begins_with_what_a_person_needs);
    RUN(every_option_is_in_the_help_of_one_group);
    RUN(what_is_visited_restores_the_same_configuration);
    RUN(presets_fill_in_and_dimensions_must_agree);
    RUN(defaults_follow_the_size_of_the_model);
    RUN(parameters_do_not_overlap_and_count_as_known);
    RUN(activations_do_not_overlap_and_recompute_takes_less);
    RUN(initial_values_have_the_wanted_spread);
    RUN(schedules_rise_and_fall_as_described);
    RUN(choices_follow_the_probabilities);
    return test_done();
}
