// test_files.c - the claims of data/run_state.h.
#include "data/model_files.h"
#include "data/run_state.h"
#include "plan/options/read.h"
#include "test/program.h"
#include "test/readers.h"

static char err[ERR_BYTES];

static Config restored;
static RunState found;
static int read_state(const void* text, size_t n) {
    char* bare[] = {"train", "--steps", "80", NULL};
    config_free(&restored);
    CHECK(config_parse(&restored, 3, bare, err) == 0);
    return run_state_parse(&found, &restored, (const char*)text, n, err);
}

CLAIM(a_state_comes_back_and_every_prefix_of_it_is_refused) {
    static Config config;
    char* argv[] = {"train", "--data", "a \"quoted\" path", "b\nc", "--lr", "0.1234567890123456", "--steps",
                    "77",    NULL};
    RunState state = {.step = 3,
                      .position = {1, 1234567890123},
                      .loss_hash = UINT64_MAX,
                      .corpus = 1,
                      .content = UINT64_MAX,
                      .val_loss = NAN,
                      .loss = 2.5,
                      .balanced = 2,
                      .pruned = {0.5},
                      .head_work = {3, 3},
                      .measured = 3,
                      .measures = {1, 1.0 / 3, 0}};
    CHECK(config_parse(&config, 8, argv, err) == 0);
    char* text = run_state_text(&state, &config);
    size_t n = strlen(text);
    check_prefixes(read_state, text, n, n - 1);
    CHECK(found.step == 3 && !memcmp(&found.position, &state.position, sizeof found.position));
    CHECK(found.loss_hash == UINT64_MAX && found.corpus == 1 && found.content == UINT64_MAX && found.loss == 2.5);
    CHECK(found.balanced == 2 && found.pruned[0] == 0.5 && found.pruned[1] == 0 && found.head_work[1] == 3);
    CHECK(isnan(found.val_loss));
    CHECK(found.measured == 3 && !memcmp(found.measures, state.measures, sizeof found.measures));
    CHECK(restored.lr == 0.1234567890123456 && restored.steps == 80 && restored.data.n == 2);
    CHECK_STRING(restored.data.paths[0], "a \"quoted\" path");
    CHECK_STRING(restored.data.paths[1], "b\nc");
    free(text);
}

// A number between both, evenly by its logarithm; now and then 0, which leaves it to the preset.
static int draw(uint64_t seed, uint64_t i, double least, double most) {
    return random_uniform(seed, 2 * i) < 0.4 ? 0 : (int)(least * pow(most / least, random_uniform(seed, 2 * i + 1)));
}

static void draw_options(char* line, size_t room, uint64_t seed) {
    static const char* const archs[] = {"preset", "gpt2", "llama", "qwen2", "qwen3"};
    static const char* const presets[] = {"tiny",         "llama-tiny",   "gpt2-124m",
                                          "smollm2-135m", "llama-3.2-1b", "qwen3-0.6b"};
    int heads = draw(seed, 1, 1, 1024), width = draw(seed, 2, 1, 65536);
    if (heads && draw(seed, 3, 1, 3)) width = MIN(65536 / heads * heads, ROUND_UP(width, 2 * heads));
    snprintf(line, room,
             "--arch %s --preset %s --layers %d --width %d --heads %d --arch kv-heads=%d,head-size=%d,hidden=%d "
             "--arch theta=%.17g,tie=%s --context %d --vocab %d --lr %.17g --seed %.0f",
             archs[hash64(seed) % COUNT(archs)], presets[hash64(seed + 1) % COUNT(presets)], draw(seed, 4, 1, 20),
             width, heads, draw(seed, 5, 1, 1024) & -2, draw(seed, 6, 1, 256) & -2, draw(seed, 7, 1, 1 << 20),
             draw(seed, 8, 0.5, 1e9) * random_uniform(seed, 99), draw(seed, 9, 1, 3) ? "no" : "preset",
             draw(seed, 10, 1, 1 << 20), draw(seed, 11, 1, 1 << 20), random_uniform(seed, 98),
             9e15 * random_uniform(seed, 97));
}

// The largest that config.json takes; beyond it hf_config_check refuses, which a run asks before its first step.
static int is_beyond_ranges(const Shape* s) {
    int is_rotary = !shape_has(s, HAS_POSITIONS);
    return s->V > 1 << 20 || (is_rotary && (s->HS > 1024 || s->theta < 1));
}

CLAIM(options_of_any_model_that_may_be_trained_come_back) {
    enum { TRIES = 1000 };
    char line[1024], *argv[40];
    int trained = 0, refused = 0;
    for (uint64_t seed = 1; seed <= TRIES; seed++) {
        static Config config;
        RunState state = {.step = 1};
        int argc = 1;
        Shape found;
        draw_options(line, sizeof line, seed);
        for (argv[argc] = strtok(line, " "); argv[argc];) argv[++argc] = strtok(NULL, " ");
        CHECK(config_parse(&config, argc, argv, err) == 0);
        if (config_complete(&config, MAX(257, draw(seed, 12, 257, 2e6)), err)) refused++;
        else {
            Shape shape = config_shape(&config);
            size_t n;
            char* text = hf_config_text(&shape, DT_F32, 0, 0, &n);
            int comes_back = hf_config_parse(&found, text, n, err) == 0;
            comes_back = comes_back && shape_hash(&found) == shape_hash(&shape);
            free(text);
            CHECK(comes_back == !is_beyond_ranges(&shape));
            CHECK(comes_back == (hf_config_check(&shape, err) == 0));
            CHECK(run_state_check(&state, &config, err) == 0);
            trained += comes_back;
        }
        config_free(&config);
    }
    CHECK(trained > TRIES / 10 && refused > TRIES / 10);
}

CLAIM(what_a_state_would_not_keep_is_told) {
    static Config config;
    char* argv[] = {"train", "--data", "plain", "caf\xe9", NULL};
    RunState state = {.balanced = 1, .heads = {INFINITY}};
    CHECK(config_parse(&config, 3, argv, err) == 0);
    CHECK(run_state_check(&state, &config, err) < 0);  // no number of JSON
    state.balanced = 0;
    CHECK(run_state_check(&state, &config, err) == 0);
    CHECK(config_parse(&config, 4, argv, err) == 0);
    CHECK(run_state_check(&state, &config, err) == 0);  // a name that is no UTF-8
}

// The text of a state in which a member's value is another one; NULL: the member is not there.
static void change_member(char* changed, const char* text, const char* name, const char* value) {
    char quoted[32];
    snprintf(quoted, sizeof quoted, "\"%s\": ", name);
    const char *at = strstr(text, quoted), *end = at ? at + strlen(quoted) : text;
    CHECK(at != NULL);
    if (!at) return;
    end += *end == '[' ? strcspn(end, "]") + 1 : strcspn(end, ",\n");
    if (value) sprintf(changed, "%.*s%s%s%s", (int)(at - text), text, quoted, value, end);
    else sprintf(changed, "%.*s\"other\": 0%s", (int)(at - text), text, end);
}

CLAIM(members_of_a_state_that_are_missing_or_make_no_sense_are_refused) {
    static const struct {
        const char *name, *good, *bad[7];
    } cases[] = {
        {"step", "1000000000000", {NULL, "1000000000001", "-1", "1.5", "1e3", "\"7\"", "null"}},
        {"epoch", "1000000000000", {NULL, "1000000000001", "-1", "1.5", "1e3", "[7]", "null"}},
        {"index", "1000000000000000", {NULL, "1000000000000001", "-1", "1.5", "1e3", "\"7\"", "null"}},
        {"loss_hash", "18446744073709551615", {NULL, "18446744073709551616", "-1", "1.5", "1e3", "\"7\"", "null"}},
        {"corpus", "18446744073709551615", {NULL, "-1", "1.5", "1e3", "\"7\"", "null", "[1]"}},
        {"content", "18446744073709551615", {NULL, "-1", "1.5", "1e3", "\"7\"", "null", "[1]"}},
        {"val_loss", "null", {NULL, "\"7\"", "true", "[1]", "{}", "1e999", "false"}},
        {"balanced", "2", {NULL, "3", "-1", "1025", "null", "1.5", "1"}},
        {"pruned", "[0.9, 0]", {NULL, "[1, 0]", "[-0.1, 0]", "[0, null]", "[0]", "[0, 0, 0]", "7"}},
    };
    static Config config;
    static char changed[1 << 15];
    char* argv[] = {"train", NULL};
    RunState state = {.balanced = 2}, found;
    CHECK(config_parse(&config, 1, argv, err) == 0);
    char* text = run_state_text(&state, &config);
    config_free(&config);
    CHECK(strlen(text) + 100 < sizeof changed);
    for (int i = 0; i < COUNT(cases); i++)
        for (int b = -1; b < COUNT(cases[i].bad); b++) {
            change_member(changed, text, cases[i].name, b < 0 ? cases[i].good : cases[i].bad[b]);
            CHECK(config_parse(&config, 1, argv, err) == 0);
            CHECK(run_state_parse(&found, &config, changed, strlen(changed), err) == (b < 0 ? 0 : -1));
            CHECK(b < 0 || strstr(err, "state.json"));
            config_free(&config);
        }
    free(text);
}

// Files of older programs have neither member; one without the other makes no sense.
CLAIM(a_state_without_measures_is_an_older_one) {
    static Config config;
    static char older[1 << 16], changed[1 << 16];
    char* argv[] = {"train", NULL};
    RunState state = {.step = 7}, found = {.measured = 9};
    CHECK(config_parse(&config, 1, argv, err) == 0);
    char* text = run_state_text(&state, &config);
    change_member(older, text, "measures", NULL);
    change_member(changed, older, "measured", NULL);
    CHECK(run_state_parse(&found, &config, changed, strlen(changed), err) == 0);
    CHECK(found.step == 7 && found.measured == 0);
    change_member(changed, older, "measured", "2");
    CHECK(run_state_parse(&found, &config, changed, strlen(changed), err) == -1 && strstr(err, "\"measures\""));
    free(text);
}

CLAIM(a_file_takes_the_place_of_files_alone) {
    const char* pipe = path_of("pipe");
    CHECK(mkfifo(pipe, 0600) == 0 && disk_put(pipe, "x", 1, 1, err) == -1);
    CHECK(strstr(err, "pipe: expected a file to write") && sh("test -p $W/pipe && ! ls $W/pipe.*") == 0);
    CHECK(disk_put(path_of("new"), "x", 1, 1, err) == 0 && disk_put(path_of("new"), "yz", 2, 1, err) == 0);
    CHECK_SH(0, "ln -s new $W/link && test $(cat $W/new) = yz");
    CHECK(disk_put(path_of("link"), "x", 1, 1, err) == 0);  // of the link, not of what it points to
    CHECK_SH(0, "test ! -L $W/link && test $(cat $W/new) = yz");
}

PROGRAM_TEST {}
