// test_config.c - the claims of plan/options/, of plan/model/shape.h and of run/core.h.
#include "plan/options/read.h"
#include "plan/model/split.h"
#include "run/core.h"
#include "test/readers.h"
#include "test/shapes.h"

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
    return config_read(&config, argc, argv, err);
}

static int complete(const char* line) { return parse(line) ? -1 : config_complete(&config, 257, err); }

static int restore(const char* name, const char* value) { return config_restore(&config, name, value, err); }

// ---- what is read

static char seen[1 << 14];
static void show(void* context, const char* name, const char* value) {
    size_t* n = (size_t*)context;
    *n += (size_t)snprintf(seen + *n, sizeof seen - *n, "%s %s\n", name, value);
}

// All that is saved, a line each.
static const char* saved(void) {
    size_t n = 0;
    config_visit(&config, show, &n);
    return seen;
}

CLAIM(options_are_read_as_they_are_written) {
    static const char* const cases[][2] = {
        {"--steps 7", "--steps 7\n"},
        {"--lr=0.25", "--lr 0.25\n"},
        {"--lr 0.000123", "--lr 0.000123\n"},
        {"--seed 9e15 --steps 3e0", "--steps 3\n"},
        {"--steps 10k", "--steps 10000\n"},
        {"--context 64Ki", "--context 65536\n"},
        {"--batch-tokens 1.5M", "--batch-tokens 1500000\n"},
        {"--save-every 2k", "--save-every 2000\n"},
        {"--memory 64Mi", "--memory 67108864\n"},
        {"--memory 1K", "--memory 1024\n"},
        {"--data a b --steps 3", "--data a\n--data b\n"},
        {"--data a --data b", "--data b\n"},
        {"--schedule wsd", "--schedule wsd\n"},
        {"--shared-prefix auto", "--shared-prefix auto\n"},
        {"--resume --new-data --steps 3", "--steps 3\n"},
        {"--schedule wsd,min-lr=0", "--schedule wsd\n--schedule min-lr 0\n"},
        {"--schedule min-lr=0.5", "--schedule cosine\n--schedule min-lr 0.5\n"},
        {"--cp 4,kind=ring", "--cp 4\n--cp kind ring\n"},
        {"--cp kind=ring --cp=2", "--cp 2\n--cp kind ring\n"},
        {"--overfit", "--overfit 1\n"},
        {"--machine a=b", "--machine a=b\n"},
        {"--adamw beta2=0.99,decay=1", "--adamw beta2 0.99\n--adamw decay 1\n"},
        {"--balance semi,lambda=2.5", "--balance semi\n--balance lambda 2.5\n"},
        {"--balance lambda=3 --balance=lambda=2", "--balance off\n--balance lambda 2\n"},
        {"--plan remap=yes,route=yes", "--plan remap yes\n--plan route yes\n"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        CHECK(parse(cases[i][0]) == 0);
        CHECK_STRING(strstr(saved(), cases[i][1]) ? cases[i][1] : seen, cases[i][1]);
    }
    CHECK(parse("--lr 1 --cp kind=ring --straggle x") == 0 && !strstr(saved(), "--straggle"));
    CHECK(config_was_given(&config, "--lr") && config_was_given(&config, "--cp kind"));
    CHECK(!config_was_given(&config, "--cp") && !config_was_given(&config, "--seed"));
}

CLAIM(a_word_behind_some_options_may_be_missing) {
    CHECK(parse("--resume --eval --out x") == 0 && config.resume && !config.resume_from && config.eval);
    CHECK(!config.eval_choices && !strcmp(config.out, "x") && !config.explain);
    CHECK(parse("--resume 7 --eval=f --explain") == 0 && config.resume && !strcmp(config.resume_from, "7"));
    CHECK(!strcmp(config.eval_choices, "f") && !config.eval && config.explain && !config.check_layout);
    CHECK(parse("--explain layout") == 0 && config.check_layout && !config.explain && !config.resume);
    CHECK(parse("--help") == 0 && config.help && !config.help[0] && parse("-h") == 0 && config.help);
    CHECK(parse("--help=all") == 0 && !strcmp(config.help, "all") && parse("--steps 5") == 0 && !config.help);
}

static int read_line(const void* line, size_t n) { return n ? parse((const char*)line) : -1; }

CLAIM(what_is_wrong_is_refused_in_one_line) {
    static const BadText cases[] = {
        {"--steps -1", "--steps expects a whole number from 0 to 1000000000000, found \"-1\""},
        {"--steps 10K", "0, as 10k (10000) or 64Ki (65536), found \"10K\""},
        {"--context 2Mi", "--context expects a whole number from 0 to 1048576, as 10k"},
        {"--steps 1.5", "whole number"},
        {"--steps abc", "found \"abc\""},
        {"--steps", "--steps expects a value, found the end of the line"},
        {"--steps --lr 1", "--steps expects a value, found --lr"},
        {"--keep 1e30", "from 0 to 1000000000"},
        {"--top-k 5x", "found \"5x\""},
        {"--lr 11", "--lr expects a number from 0 to 10, found \"11\""},
        {"--lr nan", "found \"nan\""},
        {"--lr inf", "found \"inf\""},
        {"--lr 1e999", "found \"1e999\""},
        {"--lr 0x1", "found \"0x1\""},
        {"--lr=", "found \"\""},
        {"--tp 65", "--tp expects a whole number from 1 to 64"},
        {"--schedule cos", "--schedule expects cosine|linear|constant|wsd, found \"cos\""},
        {"--schedule cosine|linear", "--schedule expects cosine"},
        {"--dtype fp16", "auto|bf16|fp32"},
        {"--balance fast", "off|documents|resize|migrate|semi"},
        {"--balance fill=same", "--balance expects KEY=VALUE with KEY lambda, found"},
        {"--balance =same", "with KEY lambda"},
        {"--balance semi,", "--balance expects off|documents|resize|migrate|semi, found \"\""},
        {"--balance semi,lambda=", "--balance lambda expects a number"},
        {"--adamw 0.9", "--adamw expects KEY=VALUE with KEY beta1|beta2|decay, found \"0.9\""},
        {"--overfit=yes", "--overfit takes no value, found \"yes\""},
        {"--explain plan", "--explain stands alone or before layout, found \"plan\""},
        {"--help everything", "--help stands alone or before all|data|model|optimizer"},
        {"--help=--lr", "found \"--lr\""},
        {"steps 5", "expected an option, found \"steps\"; a value follows its option"},
        {"--step 5", "unknown option --step; did you mean --steps?"},
        {"--bach-tokens 5", "did you mean --batch-tokens?"},
        {"--save_every 5", "did you mean --save-every?"},
        {"--balance lambda", "found \"lambda\""},
        {"--hlep", "did you mean --help?"},
        {"--vresion", "did you mean --version?"},
        {"--learning_rate 5", "unknown option --learning_rate; did you mean --lr?"},
        {"--batch-size=5", "unknown option --batch-size; did you mean --batch-tokens?"},
        {"--epochs 5", "did you mean --steps?"},
        {"--learning-speed 5", "unknown option --learning-speed; try --help all"},
    };
    CHECK_BAD_TEXTS(read_line, err, cases);
}

// ---- what is saved

CLAIM(what_is_visited_restores_the_same_configuration) {
    static char before[sizeof seen];
    CHECK(parse("--lr 0.000123 --data x y z --steps 99 --temperature 0.33 --balance lambda=3") == 0);
    strcpy(before, saved());
    CHECK(parse("--steps 100") == 0);
    int lines = 0;
    for (char *line = before, *end; *line; line = end + 1, lines++) {
        static char copy[512][64];
        end = strchr(line, '\n');
        snprintf(copy[lines], sizeof copy[0], "%.*s", (int)(end - line), line);
        char* value = strrchr(copy[lines], ' ');
        *value = 0;
        CHECK(restore(copy[lines], value + 1) == 0);
    }
    CHECK(lines > 55 && config.steps == 100 && config.data.n == 3);  // what was given wins
    config.steps = 99;
    CHECK(!strcmp(saved(), before));
}

CLAIM(what_was_given_wins_and_what_is_of_one_start_is_not_restored) {
    CHECK(parse("--balance lambda=3 --straggle a") == 0);
    CHECK(restore("--balance lambda", "2") == 0 && restore("--balance", "semi") == 0);
    CHECK(restore("--balance newer", "x") == 0 && restore("--newer", "x") == 0 && restore("--straggle", "b") == 0);
    CHECK(restore("--balance fill", "same") == 0 && restore("--balance moves", "keep") == 0);  // older ones
    CHECK(config.semi_lambda == 3 && !strcmp(config.balance, "semi") && config.straggle[0] == 'a');
    CHECK(restore("--cp kind", "some") < 0 && strstr(err, "auto|ulysses|ring"));
    CHECK(restore("--machine", "file") == 0 && config.machine && restore("--plan refresh", "0") == 0);
    CHECK(config.refresh == 0 && restore("--probe", "1") == 0 && !config.probe);
    CHECK(restore("--vocab", "2000000") == 0 && config.vocab == 2000000);  // a tokenizer's
}

CLAIM(a_way_to_divide_ranks_that_is_given_takes_the_place_of_saved_ones) {
    static const struct {
        const char *given, *overruled;
        int tp;
        const char *layout, *strategies;
    } cases[] = {{"", "", 4, "tp 4; stage", "4xtp1"},
                 {"--strategies none", "", 4, "tp 4; stage", "none"},
                 {"--strategies 2xtp2", "--layout", 1, "", "2xtp2"},
                 {"--layout file", "--strategies", 1, "file", ""},
                 {"--pp 2", "--layout", 4, "", ""},
                 {"--zero 2", "--layout", 4, "", "4xtp1"}};
    for (int i = 0; i < COUNT(cases); i++) {
        CHECK(parse(cases[i].given) == 0 && restore("--tp", "4") == 0 && restore("--strategies", "4xtp1") == 0);
        CHECK(restore("--layout", "tp 4; stage") == 0 && restore("--memory", "64M") == 0 && config.memory);
        CHECK(config.tp == cases[i].tp);
        CHECK_STRING(config.layout ? config.layout : "", cases[i].layout);
        CHECK_STRING(config.strategies ? config.strategies : "", cases[i].strategies);
        CHECK_STRING(config.overruled ? config.overruled : "", cases[i].overruled);
    }
}

// ---- help

// What --help TOPIC prints, and its lines; every line fits 80 columns.
static int help_on(const char* topic, char text[1 << 15]) {
    FILE* file = tmpfile();
    config_help(file, topic);
    rewind(file);
    text[fread(text, 1, (1 << 15) - 1, file)] = 0;
    fclose(file);
    int column = 0, widest = 0, lines = 0;
    for (const char* c = text; *c; c++) {
        column = *c == '\n' ? 0 : column + 1;
        widest = MAX(widest, column), lines += *c == '\n';
    }
    CHECK(widest > 40 && widest <= 80);
    return lines;
}

CLAIM(help_begins_with_what_a_person_needs_and_a_group_fits_two_screens) {
    static char first[1 << 15], all[1 << 15], one[1 << 15];
    static const char *const needed[] = {"--data", "--out", "--preset", "--steps", "--lr", "--resume", "--help ranks"},
                             *const others[] = {"--adamw", "--straggle", "lambda=", "--balance"},
                             *const groups[] = {"data",   "model", "optimizer", "rhythm", "sampling",
                                                "device", "ranks", "slow",      "inside"};
    help_on("", first), help_on("all", all);
    for (int i = 0; i < COUNT(needed); i++) CHECK(strstr(first, needed[i]) != NULL);
    for (int i = 0; i < COUNT(others); i++) CHECK(strstr(all, others[i]) && !strstr(first, others[i]));
    size_t sum = 0;
    for (int i = 0; i < COUNT(groups); i++) {
        CHECK(help_on(groups[i], one) <= 48 && strstr(all, one));
        sum += strlen(one);
    }
    CHECK(sum == strlen(all));
}

// ---- what goes together

CLAIM(a_cp_size_means_a_static_plan) {
    static const char* const plans[][2] = {{"", "flex"},
                                           {"--cp 2", "static"},
                                           {"--cp 2 --plan static", "static"},
                                           {"--cp 0 --plan flex", "flex"},
                                           {"--cp 2 --plan remap=yes", "static"},
                                           {"--cp 2 --plan flex", NULL},
                                           {"--cp 2 --plan adaptive", NULL}};
    for (int i = 0; i < COUNT(plans); i++) {
        CHECK(complete(plans[i][0]) == (plans[i][1] ? 0 : -1));
        if (plans[i][1]) CHECK_STRING(config.plan, plans[i][1]);
        else CHECK(strstr(err, "--cp 2"));
    }
    // A run that was saved with another planner goes on under the cp size that is asked for now.
    CHECK(parse("--cp 2") == 0 && restore("--plan", "flex") == 0);
    CHECK(config_complete(&config, 257, err) == 0);
    CHECK_STRING(config.plan, "static");
}

CLAIM(presets_fill_in_and_dimensions_must_agree) {
    static const char* const wrong[][2] = {
        {"--width 100 --heads 3", "102"},        {"--context 512 --batch-tokens 511", "--batch-tokens 511"},
        {"--capacity 10", "--capacity 256"},     {"--vocab 100", "257 ids"},
        {"--arch kv-heads=2", "leave them out"}, {"--arch llama,kv-heads=3", "does not divide"},
        {"--arch llama,head-size=15", "pairs"}};
    CHECK(complete("--preset gpt2-124m --context 128") == 0 && config.lr == 6e-4 && config.batch_tokens == 524288);
    CHECK(config.layers == 12 && config.width == 768 && config.context == 128 && config.vocab == 50257);
    CHECK(complete("") == 0 && config.vocab == 257);
    for (int i = 0; i < COUNT(wrong); i++) CHECK(complete(wrong[i][0]) < 0 && strstr(err, wrong[i][1]));
}

CLAIM(ranks_may_hold_unlike_much) {
    static const struct {
        const char* text;
        int of[4];  // ranks 0, 1, 2 and 9; 700 where it does not say
    } cases[] = {{"", {700, 700, 700, 700}},
                 {"2 100", {700, 700, 100, 100}},
                 {"0 5;2 0 ; 9 8", {5, 5, 0, 8}},
                 {" 1\t3 # and on\n2 4", {700, 3, 4, 4}}};
    static const char* const wrong[][2] = {{"2", "\"2^\": N"},
                                           {"x 100", "\"^x 100\": FIRST"},
                                           {"2 -5", "\"2 ^-5\": N"},
                                           {"2 5; 2 6", "\"^2 6\": FIRST: expected a whole number from 3"},
                                           {"2 5 3 6", "\"2 5 ^3 6\": expected ;"}};
    static const int ranks[] = {0, 1, 2, 9};
    for (int i = 0; i < COUNT(cases); i++)
        for (int k = 0; k < COUNT(ranks); k++)
            CHECK(capacity_of_rank(cases[i].text, 700, ranks[k], err) == cases[i].of[k]);
    for (int i = 0; i < COUNT(wrong); i++)
        CHECK(capacity_of_rank(wrong[i][0], 700, 0, err) < 0 && strstr(err, wrong[i][1]));
    // What was saved of ranks is left for a --capacity that is given now.
    CHECK(parse("--steps 5") == 0 && restore("--capacity ranks", "8 100") == 0);
    CHECK_STRING(config.rank_capacity, "8 100");
    CHECK(parse("--capacity 300") == 0 && restore("--capacity ranks", "8 100") == 0 && !config.rank_capacity);
}

CLAIM(defaults_follow_the_size_of_the_model) {
    static const struct {
        const char* options;
        double lr;
        int warmup, eval_tokens;
    } cases[] = {
        {"", 4e-3, 100, 32768},  // 0.86M parameters, the default run
        {"--steps 20", 4e-3, 2, 32768},
        {"--steps 5 --eval-every tokens=7", 4e-3, 0, 7},
        {"--layers 6 --width 352 --heads 8", 1.1e-3, 100, 32768},   // 9.1M
        {"--layers 8 --width 512 --heads 8", 8.3e-4, 200, 131072},  // 25M
        {"--preset gpt2-124m", 6e-4, 200, 131072},  // a tenth of the steps
        {"--preset gpt2-350m --steps 100000", 3e-4, 715, 131072},
        {"--preset llama-3.1-8b --steps 50", 1.1e-4, 5, 131072},
        {"--preset llama-3.1-8b --layers 320", 1e-4, 179, 131072},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        CHECK(complete(cases[i].options) == 0);
        CHECK_CLOSE(config.lr, cases[i].lr, 0);
        CHECK(config.warmup == cases[i].warmup && config.eval_tokens == cases[i].eval_tokens);
    }
}

// ---- shape

CLAIM(parameters_do_not_overlap) {
    Shape shape = shape_make(12, 768, 12, 50257, 1024);
    CHECK(shape.Vp == 50304);
    size_t end = 0;
    for (int i = 0; i < shape_tensors(&shape); i++) {
        ParamTensor t = shape_tensor(&shape, i);
        CHECK(t.offset >= end && t.offset % 64 == 0 && t.offset < end + 64);
        end = t.offset + t.elems;
        ParamTensor again = shape_param(&shape, t.id, t.layer);
        CHECK(again.offset == t.offset && again.elems == t.elems);
    }
    CHECK(shape_param_elems(&shape) >= end);
}

CLAIM(activations_do_not_overlap_and_recompute_takes_less) {
    Shape shape = shape_make(3, 40, 4, 257, 64);
    size_t last = (size_t)-1;
    for (int mode = RECOMPUTE_NONE; mode <= RECOMPUTE_BLOCK; mode++) {
        LayerLayout layer[3] = {{1, 1, (Recompute)mode}, {1, 1, (Recompute)mode}, {1, 1, (Recompute)mode}};
        ActNeeds needs = {.N = 100, .classifier_N = 10, .layer = layer, .training = 1, .tp = 1, .dt = DT_F32};
        ActPlace places[N_ACTS][4];
        size_t bytes = shape_activations(&shape, &needs, &places[0][0]), end = 0;
        for (int i = 0; i < N_ACTS; i++) {
            size_t shared = 0, own = 0;
            for (int l = 0; l < 4; l++) shared = places[i][l].is_own ? shared : MAX(shared, places[i][l].bytes);
            for (int l = 0; l < 4; l++) {
                const ActPlace* place = &places[i][l];
                CHECK(place->at == end + (place->is_own ? shared + own : 0) && place->at % 64 == 0);
                own += place->is_own ? place->bytes : 0;
            }
            end += shared + own;
        }
        CHECK(end == bytes && bytes < last);
        last = bytes;
    }
}

// Every layer's own copy of queries, keys and values, and the shared one; nothing else.
CLAIM(rows_behind_the_tokens_are_of_queries_keys_and_values) {
    Shape shape = shape_make(3, 40, 4, 257, 64);
    LayerLayout layer[3] = {{1, 1, RECOMPUTE_NONE}, {1, 1, RECOMPUTE_BLOCK}, {1, 1, RECOMPUTE_ACTIVATION}};
    ActNeeds needs = {.N = 100, .classifier_N = 10, .layer = layer, .training = 1, .tp = 1, .dt = DT_BF16};
    ActPlace without[N_ACTS][4], places[N_ACTS][4];
    shape_activations(&shape, &needs, &without[0][0]);
    needs.tail = 128;
    shape_activations(&shape, &needs, &places[0][0]);
    for (int i = 0; i < N_ACTS; i++)
        for (int l = 0; l < 4; l++)
            CHECK(places[i][l].bytes - without[i][l].bytes == (i == QKV && l < 3 ? 128 * 3 * 40 * sizeof(bf16) : 0));
}

CLAIM(initial_values_have_the_wanted_spread) {
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

CLAIM(schedules_rise_and_fall_as_described) {
    const char* kinds[] = {"cosine", "linear", "constant", "wsd"};
    for (int k = 0; k < COUNT(kinds); k++) {
        char line[128];
        snprintf(line, sizeof line, "--lr 1 --warmup 10 --steps 110 --schedule %s,min-lr=0.1", kinds[k]);
        CHECK(parse(line) == 0);
        CHECK_CLOSE(schedule_lr(&config, 1), 0.1, 1e-12);
        CHECK_CLOSE(schedule_lr(&config, 10), 1, 1e-12);
        CHECK_CLOSE(schedule_lr(&config, 110), k == 2 ? 1 : 0.1, 1e-12);
        CHECK_CLOSE(schedule_lr(&config, 60), k < 2 ? 0.55 : 1, 1e-12);
        for (int t = 11; t <= 110; t++) CHECK(schedule_lr(&config, t) <= schedule_lr(&config, t - 1));
    }
    CHECK(parse("--lr 1 --warmup 10 --steps 110 --schedule wsd,min-lr=0") == 0);
    CHECK_CLOSE(schedule_lr(&config, 99), 1 - sqrt(0.5), 1e-12);  // half of the last 22 steps
    CHECK(parse("--lr 1 --warmup 0 --steps 0") == 0 && isfinite(schedule_lr(&config, 1)));
}

int main(void) { return test_main(); }
