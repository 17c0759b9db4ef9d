// test_what_if.c - simulate what-if in whole programs: what is recommended takes, on virtual ranks, what it should;
// prices, memory and changes are of all ranks, the fullest one, all links; logged steps, drawn again; what is refused.
// Argument: the program.
#include "data/json.h"
#include "plan/search/machine_asked.h"
#include "test/page_checks.h"
#include "test/program.h"

#define MACHINE                                                                                     \
    "name m\nlinear_ms 0.05\nquadratic_ms 1e-6\nmodel 8 256 4\nlink inside 4096 0.02\nlink inside " \
    "1073741824 200\nlink across 4096 0.05\nlink across 1073741824 900\ndevice 0.12 2\n"
#define MODEL                                                                                                    \
    "--data $W/corpus --val $W/corpus --layers 4 --width 256 --heads 8 --vocab 2048 --context 512 --dtype fp32 " \
    "--batch-tokens 32768 "

static char page[1 << 20];

static void ask(const char* options) {
    CHECK_SH(0, "$S what-if --out $W/asked --ranks 8 " MODEL "%s", options);
    CHECK(read_text(path_of("asked/what-if.html"), page, sizeof page) > 0);
}

// The number in this column and row of the page's table that begins with `corner`; NaN: there is none.
static double cell(const char* corner, const char* name, const char* column) {
    Json json;
    char word[256];
    double x = NAN;
    const char *line = strstr(page, filled("{\"table\":[[\"%s\",", corner)), *end = line ? strchr(line, '\n') : NULL;
    if (!end || json_parse(&json, line, (size_t)(end - line), NULL)) return NAN;
    const JsonValue *table = json_get(json.values, "table"), *head = json_at(table, 0);
    for (int r = 1, c = 0; r < table->n; r++) {
        const JsonValue* row = json_at(table, r);
        for (c = 0; c < head->n && !json_is(json_at(head, c), column);) c++;
        const JsonValue* value = json_is(json_at(row, 0), name) ? json_at(row, c) : NULL;
        if (value && json_text(value, word, sizeof word) == 0) sscanf(word, "%lf", &x);
    }
    json_free(&json);
    return x;
}
static double of(const char* cluster, const char* column) { return cell("cluster", cluster, column); }

// What it has recommended for a machine, as options.
static const char* recommended(const char* machine) {
    static char options[1 << 12];
    const char *table = strstr(output, "\ncluster\n"), *at = table ? strstr(table, filled("\n%s ", machine)) : NULL;
    CHECK(at && strstr(at, "--capacity"));
    at = at ? strstr(at, "--") : "";
    snprintf(options, sizeof options, "%.*s", (int)strcspn(at, "\n"), at);
    return options;
}

// ms of the first four steps, which the search has seen; run $W/NAME.
static double played(const char* name, const char* machine, const char* options) {
    double ms[4] = {0};
    run_on(8, name, MODEL "--device virtual --machine $W/%s %s --steps 4 --threads 1", machine, options);
    CHECK(log_values(name, "measured_ms", ms, 4) == 4);
    return (ms[0] + ms[1] + ms[2] + ms[3]) / 4;
}

CLAIM(what_is_recommended_takes_what_was_said) {
    ask("--machine $W/fast $W/slow");
    CHECK_SAID("slow ranks & no slow rank & the same with bars");
    check_page_needs_nothing_else(page);
    double fast = of("fast", "ms a step"), slow = of("slow", "ms a step");
    CHECK(slow > 1.05 * fast &&
          of("slow", "ms a step") * of("slow", "of limit") > 1.05 * fast * of("fast", "of limit"));
    char* options = strdup(recommended("slow"));
    CHECK_CLOSE(played("fast_run", "fast", recommended("fast")), fast, 0.02 * fast);
    CHECK_CLOSE(played("slow_run", "slow", options), slow, 0.02 * slow);
    free(options);
}

CLAIM(a_billion_tokens_cost_what_all_ranks_do) {
    ask("--machine $W/fast $W/slow --price 2.5,0");
    double hours = 1e9 / of("fast", "tokens/s") / 3600;
    CHECK_CLOSE(of("fast", "$/1e9 tokens"), 2.5 * 8 * hours, 1e-3 * 20 * hours);
    CHECK(of("slow", "$/1e9 tokens") == 0);
    ask("--machine $W/fast --price 2.5 --mtbf 1 --restart-seconds 100");
    double share = cell("where ranks die", "fast", "goodput") / 100;
    CHECK_CLOSE(of("fast", "$/1e9 tokens"), 20 * hours / share, 1e-3 * 20 * hours);
    CHECK(share > 0.5 && share < 0.95 && cell("where ranks die", "fast", "steps between saves") >= 1);
}

// Of two stages with unlike numbers of rounds in flight.
CLAIM(memory_is_that_of_the_fullest_rank) {
    double most = 0, least = INFINITY;
    ask("--machine $W/fast --pp 2 --zero 1 --recompute none");
    CHECK_SH(0, ON_RANKS "$P " MODEL "--device virtual --machine $W/fast --explain layout %s", 8, recommended("fast"));
    for (const char *at = output, *layers; (at = strstr(at, "\nstage ")) && (layers = strstr(at, "layers ")); at++) {
        double mib = strchr(layers, ',') ? strtod(strchr(layers, ',') + 1, NULL) : NAN;
        most = fmax(most, mib), least = fmin(least, mib);
    }
    CHECK(most > 1.05 * least);
    CHECK_CLOSE(1024 * of("fast", "GiB of room"), most, 0.006 * most);
}

CLAIM(twice_the_links_are_both_kinds) {
    Machine m;
    char err[ERR_BYTES];
    CHECK(machine_parse(&m, MACHINE, strlen(MACHINE), err) == 0);
    Machine other = machine_with_links(&m, 2);
    for (int k = 0; k < N_LINKS; k++) {
        const LinkTable *was = &m.cost.link[k], *is = &other.cost.link[k];
        CHECK_CLOSE(link_ms(is, was->bytes[0]), was->ms[0], 1e-12);
        CHECK_CLOSE(link_ms(is, 1e8) - was->ms[0], (link_ms(was, 1e8) - was->ms[0]) / 2, 1e-6);
    }
    CHECK(machine_parse(&m, machine_builtin("a100-7b"), strlen(machine_builtin("a100-7b")), err) == 0);
    other = machine_with_links(&m, 2);
    CHECK_CLOSE(message_ms(&other.cost, 64, 1, 8, 1e6), message_ms(&m.cost, 64, 1, 8, 1e6) / 2, 1e-12);
}

CLAIM(other_changes_change_all_of_one_thing) {
    Machine m;
    char err[ERR_BYTES];
    const char* text = MACHINE "ranks 0 1 40\nranks 3 0.5 0\nranks 4 0.8 20\n";
    CHECK(machine_parse(&m, text, strlen(text), err) == 0);
    Machine other = machine_with_memory(&m, 2);
    CHECK_CLOSE(machine_bytes(&other, 0, 1), 2 * machine_bytes(&m, 0, 1), 1);
    CHECK_CLOSE(machine_bytes(&other, 4, 9), 2 * machine_bytes(&m, 4, 9), 1);
    CHECK_CLOSE(other.device_gib, 0.24, 1e-12);
    other = machine_with_full_pace(&m, 1);
    CHECK(machine_speed(&other, 0, 4) == 1 && machine_speed(&other, 4, 1) == 0.8);
    other = machine_with_full_pace(&m, -1);
    CHECK(machine_speed(&other, 0, 9) == 1);
}

CLAIM(a_layout_that_fits_nowhere_is_a_row) {
    ask("--machine $W/fast --memory 8M");
    CHECK_SAID("no layout fits: & GiB at least, 0.00781 there");
    CHECK(isnan(of("fast", "ms a step")) && strstr(page, "[\"fast\",\"fits not\",\"fits\""));
    ask("--machine $W/tight");
    CHECK(isnan(of("tight", "ms a step")) && strstr(page, "[\"tight\",\"fits not\",\"fits\""));
    ask("--machine $W/fast --tp 3");
    CHECK_SAID("fast     expected --tp and --pp that divide 8 ranks & !no layout fits");
}

// Without a rank's slowness, and by another planner, logged steps take what a run does that has it so.
CLAIM(logged_steps_take_what_runs_do_that_differ) {
    ask("--machine $W/slow");
    const char* options = recommended("slow");
    double slow = played("logged", "slow", options), even = played("even_run", "fast", options),
           flexsp = played("flexsp_run", "slow", filled("%s --plan flexsp", options));
    CHECK_SH(0, "$S what-if $W/logged --out $W/asked");
    CHECK(read_text(path_of("asked/what-if.html"), page, sizeof page) > 0);
    CHECK_CLOSE(cell("4 logged steps", "played as it ran", "ms a step"), slow, 0.02 * slow);
    CHECK_CLOSE(cell("4 logged steps", "without rank 3's slowness", "ms a step"), even, 0.02 * even);
    CHECK_CLOSE(cell("4 logged steps", "by plans of flexsp", "ms a step"), flexsp, 0.03 * flexsp);
    CHECK(even < 0.95 * slow && flexsp > 1.05 * slow);
}

CLAIM(a_log_of_other_documents_is_refused) {
    CHECK_SH(0, "$S what-if $W/one/log.jsonl --mtbf 100 --out $W/asked");
    CHECK_SAID("played as it ran & 3 logged steps & this run & !plans of");
    CHECK_REFUSED("not the documents of that run", "$S what-if $W/one --data $W/corpus/0*.txt");
    CHECK_REFUSED("cannot read: & log.jsonl", "$S what-if $W/none");
}

// A death while a save of an hour is written costs what a restart that is an hour longer does.
CLAIM(steps_behind_a_save_under_way_are_lost) {
    double share[2];
    for (int lost = 0; lost < 2; lost++) {
        CHECK_SH(0,
                 "sed 's/\"save_seconds\": [^,}]*/\"save_seconds\": %d/' $W/one/log.jsonl > $W/saved.jsonl && "
                 "$S what-if $W/saved.jsonl --mtbf 1 --restart-seconds %d --out $W/asked",
                 lost ? 0 : 3600, lost ? 3700 : 100);
        CHECK(read_text(path_of("asked/what-if.html"), page, sizeof page) > 0);
        share[lost] = cell("where ranks die", "this run", "goodput") / 100;
    }
    CHECK(share[0] == share[1] && share[0] < 0.4);
}

CLAIM(questions_that_cannot_be_answered_are_refused) {
    static const Refusal rows[] = {
        {"--machine a b", "found 2; several are for --what-if", 0},
        {"--price 2", "--price is for --what-if", 0},
        {"--what-if", "type: build/simulate what-if --data", 0},
        {"--what-if --ranks 8 --machine h200-8b", "type: build/simulate what-if --data & --machine h200-8b", 0}};
    static const Refusal questions[] = {{"--ranks 8 --machine foo", "--machine foo & a100-7b, h200-8b", 0},
                                        {"--ranks 8", "expects machines & try --machine", 0},
                                        {"--machine h200-8b", "--ranks & try --ranks 64", 0},
                                        {"--ranks 8 --machine h200-8b --price 1,2", "each --machine, 1, found 2", 0},
                                        {"--ranks 8 --machine h200-8b --price x", "as 2.5,4, found \"x\"", 0},
                                        {"--ranks 8 --machine $W/bare", "what memory a rank of & --memory 40G", 0},
                                        {"--ranks 8 --machine $W/bare --memory 1G --mtbf 9", "device GIB GB/S", 0},
                                        {"--ranks 8 --machine h200-8b --layout auto", "found --layout", 0}};
    CHECK_SH(0, "grep -v device $W/fast > $W/bare");
    CHECK_REFUSALS(MODEL "--out $W/refused ", rows);
    for (int i = 0; i < COUNT(questions); i++)
        CHECK_REFUSED(questions[i].words, "$S what-if " MODEL "--out $W/refused %s", questions[i].options);
}

int main(int argc, char** argv) {
    program_begin(argc, argv);
    write_ragged_corpus(60, 7.6, 25);
    put_text("fast", MACHINE);
    sh("sed 's/device 0.12/device 0.0078/' $W/fast > $W/tight");
    put_text("slow", MACHINE "ranks 0 1 0\nranks 3 0.5 0\nranks 4 1 0\n");
    sh("$P --data $W/corpus --layers 1 --width 32 --heads 2 --context 64 --batch-tokens 256 --steps 3 "
       "--eval-every 0 --sample-every 0 --machine h200-8b --out $W/one");
    run_claims();
    return program_end();
}
