// test_layout_auto.c - --layout auto in whole runs: a limit that no single way of dividing a model meets, what virtual
// ranks take against what was predicted, files that read back; and build/simulate --layout auto. Arguments: the
// program, the simulator, ranks (4).
#define RUN_FORKED
#include "test/program.h"

enum { STEPS = 8 };

#define TINY                                                                                                         \
    "--data $W/corpus --layers 6 --width 96 --heads 8 --context 128 --capacity 256 --batch-tokens 1024 --lr 0.0003 " \
    "--warmup 0 --schedule constant --steps 8 --save-every 4 --sample-every 0 --keep 0 --eval-every 0 --threads 1 "  \
    "--dtype fp32 "                                                                                                  \
    "--machine h200-8b "

static const char* simulator;
static int ranks = 4;

// The fullest rank's MiB as --explain layout says; NaN without.
static double checked_mib(void) {
    double most = NAN;
    for (const char* at = output; (at = strstr(at, "\nstage ")); at++) {
        const char* layers = strstr(at, "layers ");
        const char* comma = layers ? strchr(layers, ',') : NULL;
        if (comma) most = fmax(isnan(most) ? 0 : most, strtod(comma + 1, NULL));
    }
    return most;
}

static double needs(const char* options) {
    return sh(ON_RANKS "$P " TINY "--explain layout %s", ranks, options) ? NAN : checked_mib();
}

// What every single way needs; the limit lies below the least of them.
static double limit_of_single_ways(void) {
    static double known;
    char tp[32], pp[32];
    if (known > 0) return known;
    const char* ways[] = {"--zero 1", "--zero 2", "--zero 3", "--recompute block", tp, pp};
    double least = INFINITY;
    snprintf(tp, sizeof tp, "--tp %d", ranks), snprintf(pp, sizeof pp, "--pp %d", MIN(ranks, 6));
    for (int i = 0; i < COUNT(ways); i++) {
        if (i == COUNT(ways) - 1 && ranks > 6) continue;  // fewer layers than ranks
        double mib = needs(ways[i]);
        CHECK(mib > 1);
        least = fmin(least, mib);
    }
    return known = least - 0.1;
}

// Killed behind the checkpoint of step 4, as by kill -9, and continued under another layout.
static void check_killed(double limit) {
    pid_t pid = start(ON_RANKS "$P " TINY "--steps 1000 --layout auto --memory %.1fM --out $W/killed", ranks, limit);
    CHECK(comes("killed/step-000004/DONE", 30));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    int status = 1;
    for (int i = 0; i < 30 && status; i++) {  // ranks hold the run until they notice that their launcher is gone
        sleep_ms(300);
        status = sh(ON_RANKS "$P --resume step-000004 --steps 8 --pp 1 --tp 1 --zero 3 --memory 1G --out $W/killed", 2);
    }
    CHECK(status == 0);
    CHECK_LOSSES("killed", "one", STEPS, 1e-6);
}

CLAIM(a_limit_that_no_single_way_meets_is_met_and_trains) {
    CHECK_SH(0, "$P " TINY "--out $W/one");
    double limit = limit_of_single_ways();
    CHECK(limit > 1);
    CHECK_SH(0, ON_RANKS "$P " TINY "--verbose --layout auto --memory %.1fM --out $W/found", ranks, limit);
    CHECK_LOSSES("found", "one", STEPS, 1e-6);
    check_killed(limit);
}

// The number behind words that the last command has said.
static double said(const char* words) {
    const char* at = strstr(output, words);
    return at ? strtod(at + strlen(words), NULL) : NAN;
}

// Goes on from step 4 to the losses that the run had, in as much memory; returns what that is.
static double resumed_mib(const char* run) {
    double before[STEPS], after[STEPS];
    CHECK(log_values(run, "loss", before, STEPS) == STEPS);
    CHECK_SH(0, "rm -rf $W/%s/step-000008; " ON_RANKS "$P --resume --threads 1 --out $W/%s", run, ranks, run);
    CHECK(log_values(run, "loss", after, STEPS) == STEPS && !memcmp(before, after, sizeof before));
    double mib = said("memory ");
    CHECK_SH(0,
             "cd $W/%s; grep -h '\"--layout' step-000004/state.json >saved; "
             "grep '\"--layout.*stage layers' step-000008/state.json | cmp - saved",
             run);
    return mib;
}

CLAIM(a_resumed_run_keeps_its_layout_and_meets_its_limit) {
    put_text("unlike", "tp 2\nstage layers 4 zero 3 recompute block\nstage layers 2 zero 2  # unlike\n");
    CHECK_SH(0, ON_RANKS "$P " TINY "--layout $W/unlike --memory 100M --out $W/kept", ranks);
    double mib = said("memory ");
    CHECK_SH(0, "rm $W/unlike");
    CHECK_CLOSE(resumed_mib("kept"), mib, 1e-9);
    CHECK_REFUSED("of --memory", ON_RANKS "$P --resume --threads 1 --memory 1M --out $W/kept", ranks);
    CHECK_SH(0, ON_RANKS "$P --resume --threads 1 --tp 1 --pp 1 --steps 9 --out $W/kept", ranks);
    CHECK_SAID("without its saved --layout");
    CHECK_SH(0, "$P --out $W/kept --sample a --tokens 2");
    CHECK_SH(0, ON_RANKS "$P " TINY "--layout auto --memory 100M --out $W/searched", ranks);
    resumed_mib("searched");
}

CLAIM(a_resumed_run_keeps_its_layout_and_what_moves) {
    static const char options[] =
        "--device virtual-cpu --machine h200-8b --straggle rank=1,x=6 --threads 1 --out $W/moved";
    CHECK_SH(0,
             ON_RANKS "$P " TINY
                      "%s --layout 'tp 2; stage layers 6 recompute block' --plan static,refresh=3 --steps "
                      "5 --balance migrate",
             ranks, options);
    const char* hash = loss_hash();
    CHECK_SH(0,
             "cd $W/moved; grep -E 'tiles.*[0-9]|--layout|migrate' step-000005/state.json >saved; "
             "[ $(wc -l <saved) = 3 ] && rm -r step-000005");
    CHECK_SH(0, ON_RANKS "$P --resume %s", ranks, options);
    CHECK_STRING(loss_hash(), hash);
    CHECK_SH(0, "cd $W/moved; grep -E 'tiles|--layout|migrate' step-000005/state.json | cmp - saved");
}

CLAIM(a_found_layout_reads_back) {
    static char first[1 << 14];
    double limit = limit_of_single_ways(), mib[2];
    for (int i = 0; i < 2; i++) {
        CHECK_SH(0, ON_RANKS "$P " TINY "--explain layout --layout %s --memory %.1fM", ranks, i ? "$W/layout" : "auto",
                 limit);
        const char* text = strstr(output, "a layout that --layout takes:\n");
        CHECK(text != NULL);
        if (!text) return;
        mib[i] = checked_mib();
        if (i) CHECK_STRING(strchr(text, '\n') + 1, first);
        snprintf(first, sizeof first, "%s", strchr(text, '\n') + 1);
        put_text("layout", first);
    }
    CHECK(mib[0] <= limit);
    CHECK_CLOSE(mib[1], mib[0], 1e-9);
}

// KiB of an entry of the memory table, which is rank 0's.
static double table_kib(const char* name) {
    char unit[8] = "";
    double value = NAN;
    const char* at = strstr(output, name);
    if (at) sscanf(at + strlen(name), " %lf %7s", &value, unit);
    return value * (strcmp(unit, "MiB") ? 1 : 1024);
}

// Of both stages they add up to all that a rank needs, of the first one states are those of rank 0's memory table.
CLAIM(bytes_of_layers_add_up) {
    double states = 0, table = 0;
    int runs = 0, n, stage = -1;
    put_text("runs",
             "tp 2\nstage layers 4\n  layers 1 tp 1 zero 3\n  layers 3 recompute block\nstage layers 2 zero 2\n");
    CHECK_SH(0, ON_RANKS "$P " TINY "--explain layout --layout $W/runs", 8);
    const char* parts[] = {"\n  parameters  ", "\n  gradients  ", "\n  first moments  ", "\n  second moments  "};
    for (int i = 0; i < COUNT(parts); i++) table += table_kib(parts[i]);
    for (char* at = strstr(output, "\nstage "); at && at[8] == ':'; at = strstr(at + 1, "\nstage ")) {
        double all = strtod(strchr(strstr(at, "layers "), ',') + 1, NULL), sum = 0, s, a, beside;
        char* line = strchr(at + 1, '\n') + 1;
        for (stage++; !strncmp(line, "  layers", 8); line = strchr(line, '\n') + 1, runs++) {
            CHECK(sscanf(strchr(line, ':'), ": %d x (%lf MiB of states, %lf", &n, &s, &a) == 3);
            sum += n * (s + a), states += stage == 0 ? n * s : 0;
        }
        CHECK(sscanf(line, "  embedding and classifier: %lf", &s) == 1);
        sum += s, states += stage == 0 ? s : 0;
        CHECK(sscanf(strchr(line, '\n'), "\n  beside them: %lf", &beside) == 1 && beside > 0);
        CHECK_CLOSE(sum + beside, all, 0.05 * 16 + 0.1);  // tenths are written
    }
    CHECK(stage == 1 && runs == 3);
    CHECK_CLOSE(states, table / 1024, 0.05 * 6);
}

// ---- virtual ranks

#define MACHINE                                                                                     \
    "name m\nlinear_ms 0.05\nquadratic_ms 1e-6\nmodel 8 256 4\nlink inside 4096 0.02\nlink inside " \
    "1073741824 200\nlink across 4096 0.05\nlink across 1073741824 900\n"
#define MIDDLE \
    "--layers 8 --width 256 --heads 8 --vocab 2048 --context 512 --batch-tokens 65536 --dtype fp32 --overlap %s "

// The simulator counts states and activations alone: what it fills a rank with is played where more has room.
#define KINDS MACHINE "ranks 0 1 0\nranks 8 0.5 0.08\n"
#define ROOMY MACHINE "ranks 0 1 0\nranks 8 0.5 0.2\n"

// A step of virtual ranks by the layout that the simulator has found takes what it predicted, also where layers of a
// stage have unlike tp, where messages hide under computing, and where half of the ranks are slow and small.
static void write_machine(const char* text) {
    char documents[20 * 512];
    put_text("machine", text);
    memset(documents, 'a', sizeof documents);
    CHECK_SH(0, "mkdir -p $W/even");
    for (int i = 0; i < 20; i++) {
        documents[0] = (char)('a' + i);
        write_text(filled("even/%d.txt", i), documents, sizeof documents - 1);
    }
}

// ms of the third step of the layout in $W/played, on virtual ranks.
static double played(int virtual_ranks, const char* overlap, double capacity) {
    double ms[3] = {0};
    run_on(virtual_ranks, "virtual",
           "--device virtual --machine $W/machine --data $W/even --val $W/even " MIDDLE
           "--layout $W/played --capacity %.0f --steps 3 --threads 1 --plan static",
           overlap, capacity);
    CHECK(log_values("virtual", "measured_ms", ms, 3) == 3);
    return ms[2];
}

CLAIM(virtual_ranks_take_what_is_predicted) {
    const struct {
        const char* memory;
        int ranks;
        const char *overlap, *machine;
    } jobs[] = {{"2G", 8, "no", MACHINE},    {"65M", 8, "no", MACHINE},  {"75M", 8, "no", MACHINE},
                {"35M", 16, "no", MACHINE},  {"2G", 8, "yes", MACHINE},  {"65M", 8, "yes", MACHINE},
                {"35M", 16, "yes", MACHINE}, {"2G", 16, "yes", MACHINE}, {"2G", 16, "no", KINDS},
                {"2G", 16, "yes", KINDS}};
    int unlike = 0;
    for (int i = 0; i < COUNT(jobs); i++) {
        // Equal rounds are what stages of unlike ranks run; data ranks of unlike pace wait for each other in rounds.
        int kinds = !strcmp(jobs[i].machine, KINDS);
        write_machine(jobs[i].machine);
        int status = sh("%s --layout auto %s --memory %s --machine $W/machine --ranks %d --model '" MIDDLE
                        "' --layout-file $W/played",
                        simulator, kinds ? "--way DP+PP" : "", jobs[i].memory, jobs[i].ranks, jobs[i].overlap);
        const char *name = kinds ? "\nDP+PP " : "\nfound ", *found = strstr(output, name),
                   *rows = found ? strstr(found, "rows of ") : NULL;
        CHECK(status == 0 && rows);
        if (!rows) continue;
        double predicted = said(name), capacity = strtod(rows + 8, NULL);
        unlike += !sh("grep -q 'layers.* tp 2' $W/played && grep -q 'layers.* tp 1' $W/played");
        if (kinds) write_machine(ROOMY);
        double ms = played(jobs[i].ranks, jobs[i].overlap, capacity);
        CHECK_CLOSE(predicted, ms, 0.002 * ms);
    }
    CHECK(unlike >= 2);
}

// What the chosen layout should take against the four steps that it was chosen by, on virtual ranks without overlap.
static void check_chosen(const char* data, const char* more) {
    double ms[4] = {0}, mean = 0;
    run_on(8, "chosen",
           "--device virtual --machine $W/machine --data $W/%s --val $W/even --layers 4 --width 64 --heads 8 "
           "--overlap no --layout auto --memory 2G --steps 4 --threads 1 %s",
           data, more);
    const char *chosen = strstr(output, "rows of "), *at = chosen ? strchr(chosen, ':') : NULL;
    CHECK(at && log_values("chosen", "measured_ms", ms, 4) == 4);
    for (int i = 0; i < 4; i++) mean += ms[i] / 4;
    CHECK_CLOSE(at ? strtod(at + 1, NULL) : NAN, mean, 0.03 * mean);
}

// Some go through their documents several times, some are planned by other planners than flex.
CLAIM(what_is_chosen_takes_what_was_predicted_for_the_first_steps) {
    write_machine(MACHINE);
    CHECK_SH(0, "head -c 400 $W/even/0.txt > $W/few.txt");
    check_chosen("few.txt", "--context 512 --batch-tokens 65536");
    check_chosen("corpus", "--context 128 --batch-tokens 4096 --capacity 64");
    check_chosen("corpus", "--context 128 --batch-tokens 4096 --capacity 64 --plan static");
    check_chosen("corpus", "--context 128 --batch-tokens 4096 --capacity 64 --cp 4");
}

// Lists of strategies take what the search says of the first steps; rank 0 finds them, and all go on with them.
CLAIM(a_list_that_is_found_takes_what_was_predicted) {
    double ms[4] = {0}, mean = 0;
    write_machine(MACHINE);
    run_on(8, "list",
           "--device virtual --machine $W/machine --data $W/corpus --val $W/even --layers 4 --width 64 --heads 8 "
           "--context 128 --batch-tokens 4096 --overlap no --layout hydraulis --memory 2G --steps 4 --threads 1");
    const char* at = strstr(output, " MiB; ");
    CHECK(at && strstr(output, "chosen") && log_values("list", "measured_ms", ms, 4) == 4);
    for (int i = 0; i < 4; i++) mean += ms[i] / 4;
    CHECK_CLOSE(at ? strtod(at + 6, NULL) : NAN, mean, 0.02 * mean);
    CHECK_REFUSED("found --tp",
                  ON_RANKS "$P --device virtual --machine $W/machine --data $W/corpus --layout hydraulis --tp 2", 4);
}

// Gathers of a group come in two parts, of which the second one hides.
CLAIM(groups_of_4_and_8_take_what_is_predicted) {
    write_machine(MACHINE);
    for (int tp = 2; tp <= 8; tp *= 2) {
        put_text("played", filled("tp %d\nstage layers 8 zero 1\n", tp));
        int status = sh(ON_RANKS "$P --device virtual --machine $W/machine --data $W/even --val $W/even " MIDDLE
                                 "--layout $W/played --capacity 16384 --plan static --explain layout",
                        8, "yes");
        CHECK(status == 0);
        double predicted = said("\npredicted "), ms = played(8, "yes", 16384);
        CHECK_CLOSE(predicted, ms, 0.002 * ms);
    }
}

// Layers whose gradients are not reduced in rounds leave inside the last one, as the others do.
CLAIM(layers_of_unlike_zero_take_as_long_as_like_ones) {
    const char* rows[] = {"  layers 8 tp 1 zero 1\n", "  layers 8 tp 1 zero 2\n",
                          "  layers 2 tp 1 zero 1\n  layers 6 tp 1 zero 2\n",
                          "  layers 6 tp 1 zero 2\n  layers 2 tp 1 zero 1\n"};
    double ms[COUNT(rows)];
    write_machine(MACHINE);
    for (int i = 0; i < COUNT(rows); i++) {
        put_text("played", filled("tp 1\nstage layers 8 zero 1\n%s", rows[i]));
        ms[i] = played(8, "yes", 1 << 16);
    }
    for (int i = 1; i < COUNT(rows); i++) CHECK_CLOSE(ms[i], ms[0], 1e-6 * ms[0]);
}

// NaN for a way that does not fit.
static double way_ms(const char* way) {
    char name[32];
    double ms;
    snprintf(name, sizeof name, "\n%-7s ", way);
    const char* at = strstr(output, name);
    return at && sscanf(at + strlen(name), "%lf", &ms) == 1 ? ms : NAN;
}

CLAIM(no_single_way_is_faster_than_what_is_found) {
    const char *memory[] = {"60M", "75M", "110M", "400M", "4G"},
               *ways[] = {"DP", "ZeRO-3", "TP", "PP", "DP+TP", "DP+PP"};
    double before = INFINITY;
    int only_found = 0;
    put_text("machine", MACHINE);
    for (int i = 0; i < COUNT(memory); i++) {
        CHECK_SH(0, "%s --layout auto --memory %s --machine $W/machine --ranks 16 --model '" MIDDLE "'", simulator,
                 memory[i], "no");
        double found = way_ms("found");
        int fit = 0;
        for (int w = 0; w < COUNT(ways); w++) {
            double ms = way_ms(ways[w]);
            CHECK(isnan(ms) || ms >= found);
            fit += !isnan(ms);
        }
        only_found += !isnan(found) && fit < COUNT(ways);
        CHECK(isnan(found) || found <= before);
        if (!isnan(found)) before = found;
    }
    CHECK(only_found > 0 && before < INFINITY);
    CHECK_REFUSED("expected --memory", "%s --layout auto --ranks 8", simulator);
    CHECK_REFUSED("size like 64M", "%s --layout auto --memory 3X --ranks 8", simulator);
    CHECK_REFUSED("expected --layout auto", "%s --way DP", simulator);
    CHECK_REFUSED("--layerz", "%s --layout auto --memory 3G --model '--layerz 3'", simulator);
}

// Which ranks share.
CLAIM(a_found_layout_with_rows_shorter_than_a_document_is_predicted) {
    static const char job[] = "--machine $W/machine --ranks 16 --lengths mock";
    put_text("machine", MACHINE);
    CHECK_SH(0, "%s --layout auto --memory 75M --way DP --layout-file $W/played %s --model '" MIDDLE "'", simulator,
             job, "no");
    double found = said("\nDP "), capacity = said("rows of ");
    CHECK(found > 0 && capacity < 512);
    CHECK_SH(0, "%s --layout $W/played %s --model '" MIDDLE "--capacity %.0f'", simulator, job, "no", capacity);
    CHECK_CLOSE(said("predicted "), found, 0.01);
    CHECK_REFUSED("try --capacity", "%s --layout $W/played %s --model '" MIDDLE "--capacity 1'", simulator, job, "no");
}

// Where the machine gives ranks less than --memory; and documents that no ranks hold.
CLAIM(what_ranks_do_not_hold_is_refused) {
    put_text("machine", MACHINE "ranks 2 1 0.0001\n");
    static const char job[] =
        "$P --device virtual --data $W/corpus --layers 4 --width 64 --heads 4 --context 128 "
        "--batch-tokens 1024 --steps 1 --threads 1 --machine $W/machine --memory 1G";
    CHECK_REFUSED(" available (of this rank, as the machine says)", ON_RANKS "%s", 4, job);
    CHECK_REFUSED("of which some have 0.1 MiB; the least needs ", ON_RANKS "%s --layout auto", 4, job);
    put_text("machine", MACHINE);
    CHECK_REFUSED("2 ranks with --capacity 43 hold no doc", ON_RANKS "%s --layout auto --capacity 43", 2, job);
    CHECK_REFUSED("no group of up to 3 ranks holds more than 86", ON_RANKS "%s --layout auto --capacity 43 --tp 1", 3,
                  job);
}

CLAIM(what_was_asked_for_is_not_searched_for) {
    CHECK_SH(0, ON_RANKS "$P " TINY "--layout auto --memory 1G --zero 2 --tp 2 --explain layout", ranks);
    CHECK_SAID("tp 2, zero 2");
    CHECK_SH(0, ON_RANKS "$P " TINY "--layout auto --memory 1G --pp 2 --explain layout", ranks);
    CHECK_SAID("2 stages & stage 1: ranks");
    CHECK_REFUSED("--tp and --pp that divide", ON_RANKS "$P " TINY "--layout auto --memory 1G --tp 3", ranks);
}

CLAIM(the_choice_is_explained) {
    CHECK_SH(0, ON_RANKS "$P " TINY "--explain --layout auto --memory 2G --out $W/why", ranks);
    CHECK_SAID("tp 1, zero 1, rows of & chosen &  ms more");
    CHECK_SAID("of the stage with most: matmuls & times of --machine h200-8b");
}

// What another program answers is what a person gets who types its command, also with a blank and a quote in a path.
CLAIM(the_command_of_a_search_gives_the_same_answer) {
    char first[4096], again[4096];
    CHECK_SH(0, "rm -rf \"$W/it's a corpus\" && cp -r $W/corpus \"$W/it's a corpus\"");
    CHECK_SH(0, ON_RANKS "$P " TINY "--data \"$W/it's a corpus\" --layout auto --memory 1G --tp 2 --explain layout",
             ranks);
    const char *command = strstr(output, "search  "), *use = strstr(output, "use it: ");
    CHECK(command && use && strstr(use, "--capacity 256 --layout 'tp 2; stage"));
    if (!command || !use) return;
    snprintf(first, sizeof first, "%.*s", (int)strcspn(use, "\n"), use);
    snprintf(again, sizeof again, "%.*s", (int)strcspn(command + 8, "\n"), command + 8);
    CHECK_SH(0, "%s", again);
    use = strstr(output, "use it: ");
    CHECK(use && !strncmp(use, first, strlen(first)));
}

CLAIM(rows_are_as_long_as_a_search_says) {
    CHECK_SH(0, ON_RANKS "$P " TINY "--layout auto --memory 1G --capacity 0 --steps 1 --verbose --out $W/rows", ranks);
    const char *use = strstr(output, "use it: --capacity "), *rows = strstr(output, "in rows of at most ");
    CHECK(use && rows && atoi(use + 19) == atoi(rows + 19) && atoi(use + 19) < 1024);
}

CLAIM(without_the_program_that_searches_there_is_no_search) {
    CHECK_SH(0, "mkdir -p $W/alone && cp ${P%% *} $W/alone/train");
    CHECK_REFUSED("--layout: build/simulate & is not beside & make simulate",
                  "$W/alone/train " TINY "--ranks 2 --layout auto --memory 1G");
    CHECK_REFUSED("--explain: build/simulate & is not beside", "$W/alone/train " TINY "--explain");
}

int main(int argc, char** argv) {
    program_begin(argc, argv);
    simulator = argc > 2 ? argv[2] : "build/simulate";
    ranks = argc > 3 ? atoi(argv[3]) : 4;
    write_ragged_corpus(60, 7.6, 25);
    run_claims();
    return program_end();
}
