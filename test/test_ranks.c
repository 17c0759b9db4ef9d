// test_ranks.c - the whole program on several ranks: the same losses, checkpoints that move between numbers of ranks,
// ranks that die, plans that differ, signals. Started alone; it starts mpirun itself.
#include "test/program.h"

#define TINY                                                                                                   \
    "--data $W/corpus --layers 2 --width 48 --heads 6 --context 128 --batch-tokens 512 --lr 0.003 --warmup 5 " \
    "--eval-every 0 --sample-every 0 --dtype fp32 --threads 1 "

static void run(int ranks, const char* name, const char* options) { run_on(ranks, name, TINY "%s", options); }

// fp32 in another order of sums, carried on through a few optimizer steps, which divide small gradients by their own
// size: differences of 1e-7 in the first step grew to at most 2e-5 in ten.
static void check_like(const char* name, const char* like, int n) {
    double first[2] = {NAN, NAN};
    CHECK_LOSSES(name, like, n, 1e-4);
    log_values(name, "loss", &first[0], 1), log_values(like, "loss", &first[1], 1);
    CHECK_CLOSE(first[0], first[1], 1e-6 * first[1]);
}

CLAIM(any_number_of_ranks_any_plan_and_any_zero_give_the_same_losses) {
    const struct {
        int ranks;
        const char* options;
    } runs[] = {
        {2, "--steps 6"},
        {3, "--steps 6 --plan refresh=1"},
        {5, "--steps 6 --plan adaptive --capacity 48"},
        {3, "--steps 6 --cp 3,kind=ulysses"},
        {3, "--steps 6 --plan random"},
        {4, "--steps 6 --cp 4 --plan node-size=2 --capacity 96"},  // heads inside, rings across
        {5, "--steps 6 --cp 5,kind=ring"},
        {8, "--steps 6 --plan random --overlap no"},
        {3, "--steps 6 --plan random --zero 2"},
        {3, "--steps 6 --plan random --zero 3"},
    };
    run(1, "one", "--steps 6");
    for (int i = 0; i < COUNT(runs); i++) run(runs[i].ranks, "other", runs[i].options), check_like("other", "one", 6);
}

// A bf16 weight or activation is off by 2^-9 of itself; the loss of some hundred targets averages that.
CLAIM(bf16_runs_agree_within_its_rounding) {
    run(1, "one", "--steps 6 --dtype bf16");
    run(4, "other", "--steps 6 --dtype bf16,grads=bf16 --plan random --zero 2");
    CHECK_LOSSES("other", "one", 6, 4e-3);
}

// ---- checkpoints

// A run is cut before its last two steps and goes on with another number of ranks: the losses are those of the run that
// was never cut. The rate of the last step is 0, so the weights saved after it are those that were loaded: bit for bit.
CLAIM(a_run_goes_on_with_another_number_of_ranks) {
    const int numbers[][2] = {{1, 2}, {2, 3}, {3, 8}, {8, 1}};
#define COURSE "--steps 8 --schedule linear,min-lr=0 --keep 0 "
    run(1, "whole", COURSE "--save-every 0");
    for (int i = 0; i < COUNT(numbers); i++) {
        const char* zero = i == 1 ? "--zero 3" : i == 2 ? "--zero 2" : "";
        int from = numbers[i][0], to = numbers[i][1];
        run_on(from, "parts", TINY COURSE "--save-every 1 %s", zero);
        CHECK_SH(0, "cd $W/parts && rm -rf step-000008 step-000007");
        CHECK_SH(0, ON_RANKS "$P --resume --threads 1 --out $W/parts", to);
        check_like("parts", "whole", 8);
        CHECK_SH(0, "cd $W/parts && cmp step-00000[78]/model.safetensors && rm -rf step-000008");
        CHECK_SH(0, ON_RANKS "$P --resume --threads 1 --zero %d --out $W/parts", from, 1 + i % 3);
        CHECK_SH(0, "cd $W/parts && cmp step-00000[78]/model.safetensors");
    }
}

// ---- ends

static void wait_for_steps(const char* run, int steps) {
    for (int i = 0; i < 600 && steps_logged(run) < steps; i++) sleep_ms(100);
    CHECK(steps_logged(run) >= steps);
}

CLAIM(a_rank_that_is_killed_ends_the_job_with_its_name_and_the_run_resumes) {
    sh("rm -rf $W/killed");
    pid_t job = start(ON_RANKS "$P " TINY "--steps 100000 --save-every 40 --cp 3 --out $W/killed", 3);
    wait_for_steps("killed", 45);
    signal_rank("killed", 1, "KILL");
    CHECK(ended_within(job, 10) > 0);
    read_background();
    CHECK_SAID("rank 1 & step & --resume");
    CHECK(sh("pgrep -f \"[o]ut $W/killed\""));  // nobody is left
    int before = steps_logged("killed");
    job = start(ON_RANKS "$P " TINY "--resume --steps 100000 --cp 2 --out $W/killed", 2);
    wait_for_steps("killed", before + 1);
    kill(job, SIGUSR1);
    CHECK(ended_within(job, 30) == 0);
}

CLAIM(a_signal_to_the_launcher_saves_at_one_step_of_all) {
    sh("rm -rf $W/stopped");
    pid_t job = start(ON_RANKS "$P " TINY "--steps 150 --save-every 1000 --plan random --out $W/stopped", 3);
    wait_for_steps("stopped", 5);
    kill(job, SIGUSR1);  // which mpirun hands to all ranks at once
    CHECK(ended_within(job, 30) == 0);
    read_background();
    int n = steps_logged("stopped");
    CHECK(n >= 5 && n < 150);
    CHECK_SH(0, "test -e $W/stopped/step-%06d/DONE", n);
    CHECK_SH(0, ON_RANKS "$P --resume --threads 1 --save-every 0 --plan random --out $W/stopped", 3);
    run(3, "whole", "--steps 150 --save-every 0 --plan random");
    CHECK_LOSSES("stopped", "whole", 150, 0);  // same ranks, same plans: the same bits
}

CLAIM(ranks_that_mean_different_runs_end_with_words) {
    static const Refusal row[] = {{"--cp 3", "--cp", 2}};
    CHECK_REFUSED("rank 1 was started with other options",
                  "rm -rf $W/x; mpirun --oversubscribe -n 1 $P " TINY "--steps 3 --out $W/x : -n 1 $P " TINY
                  "--steps 3 --lr 0.1 --out $W/x");
    CHECK_SH(1, "test -e $W/x");
    CHECK_REFUSALS(TINY "--steps 3 --out $W/refused", row);
}

// The same path, length and first page, another byte behind it.
CLAIM(ranks_that_see_other_bytes_of_a_document_end_with_words) {
    char real[PATH_MAX];
    CHECK(realpath(program, real) != NULL);
    CHECK_SH(0,
             "mkdir -p $W/a/texts $W/b/texts && cat data/*.c > $W/a/texts/1 && cp $W/a/texts/1 $W/b/texts/1 && "
             "cp plan/options/config.c $W/a/texts/2 && cp plan/options/config.c $W/b/texts/2 && "
             "printf '#' | dd of=$W/b/texts/1 bs=1 seek=20000 conv=notrunc");
    CHECK_REFUSED("rank 1 was started with other documents",
                  "mpirun --oversubscribe -n 1 -wdir $W/a %s " TINY
                  "--data texts --steps 3 --out $W/y : "
                  "-n 1 -wdir $W/b %s " TINY "--data texts --steps 3 --out $W/y",
                  real, real);
    CHECK_SH(1, "test -e $W/y");
}

// --plan node-size is each rank's own business, but plans follow from it.
CLAIM(plans_that_differ_end_the_run_with_both_hashes) {
    unsigned long long first, second;
    sh("rm -rf $W/x");
    CHECK_SH(1, "timeout 60 mpirun --oversubscribe -n 2 $P " TINY
                "--cp 4 --plan node-size=1 --steps 3 --out $W/x : -n 2 $P " TINY
                "--cp 4 --plan node-size=4 --steps 3 --out $W/x");
    const char* at = strstr(errors, "has the plan ");
    CHECK(at && sscanf(at, "has the plan %16llx, rank 0 has %16llx", &first, &second) == 2 && first != second);
}

CLAIM(what_all_ranks_refuse_is_one_line) {
    CHECK_REFUSED("train: rank 0: --strategies & --balance & !train: rank 1 & !train: rank 5",
                  ON_RANKS "$P " TINY "--strategies 6xtp1 --balance resize --out $W/refused", 6);
}

// ---- memory

// Rows are full here. A page that a run never writes to is not taken: of group attention's memory a ring uses a part.
CLAIM(memory_is_what_the_table_says) {
    for (int stage = 1; stage <= 3; stage++) {
        run_on(2, "big",
               "--data $W/corpus --layers 6 --width 512 --heads 8 --context 2048 --batch-tokens 4096 --steps 2 "
               "--capacity 2048 --eval-every 0 --sample-every 0 --save-every 0 --dtype fp32 --threads 1 "
               "--plan static --zero %d --cp 2 --verbose",
               stage);
        const char *table = strstr(output, "  total "), *taken = strstr(output, "memory at most ");
        double planned = 0, most = 0, real = 0;
        CHECK(table && sscanf(table, " total %lf MiB", &planned) == 1 && planned > 200);
        CHECK(taken && sscanf(taken, "memory at most %lf MiB on rank 0: %lf", &most, &real) == 2);
        printf("    zero %d: %.1f MiB in the table, %.1f taken\n", stage, planned, real);
        CHECK(real <= 1.02 * planned && real >= 0.9 * planned);
    }
}

PROGRAM_TEST { write_ragged_corpus(80, 7.6, 5); }
