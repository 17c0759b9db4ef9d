// test_pace.c - steps that take long: what is said before and within them, and how they are left at a signal, by one
// rank and by several; and the peak that speeds are compared with. The program is train_faults, whose peak can be said:
// ranks ask each other only in steps that should take long.
#include "run/setup/setup.h"
#include "test/program.h"

#define TINY                                                                                                \
    "--layers 2 --width 64 --heads 4 --data plan --threads 1 --dtype fp32 --eval-every 0 --sample-every 0 " \
    "--steps 3 "

CLAIM(a_long_step_is_told_before_it_begins_and_left_at_the_first_signal) {
#define SLOW TINY "--cpu-isa reference --context 128 --capacity 256 --batch-tokens 65536 "
    setenv("FAULT_LIMIT", "1e9", 1);  // so that it should take about two minutes
    CHECK_SH(0, "$P " SLOW "--steps 0 --out $W/before");
    const char* told = strstr(output, "\ntime    a step of 65");
    CHECK(told && strstr(told, "an estimate") && strstr(told, "--batch-tokens"));
    pid_t job = start("$P " SLOW "--out $W/left");
    unsetenv("FAULT_LIMIT");
    CHECK(comes("left/log.jsonl", 20));
    sleep_ms(1000);
    kill(job, SIGINT);
    CHECK(ended_within(job, 20) == 128 + SIGINT);
    read_background();
    CHECK_SAID("step 1 is left after");
    CHECK_SAID("stopped at step 0 of 3 & nothing was learnt, and nothing is saved & !--resume");
    CHECK_SH(0, "test ! -e $W/left/step-000000 && test -e $W/left/log.jsonl");
    setenv("FAULT_LIMIT", "1e9", 1);
    job = start("$P --resume --steps 3 --cpu-isa reference --out $W/before");  // nor again what was there
    unsetenv("FAULT_LIMIT");
    for (int i = 0; i < 2000 && sh("test $(grep -c '\"start\"' $W/before/log.jsonl) = 2"); i++) sleep_ms(10);
    sleep_ms(1000);
    kill(job, SIGINT);
    CHECK(ended_within(job, 20) == 128 + SIGINT);
    read_background();
    CHECK_SAID("stopped at step 0 of 3 & --resume & !saved");
}

// The other ranks learn of it in the next pass that they share, or at the end. The straggler makes the step long.
static void check_left(int ranks, const char* options, int signalled) {
#define LEFT ON_RANKS "$P " TINY "--context 512 --capacity 300 --batch-tokens 8192 --machine a100-7b %s "
    static char hash[32];
    CHECK_SH(0, "rm -rf $W/whole $W/some; " LEFT "--out $W/whole", ranks, options);
    snprintf(hash, sizeof hash, "%s", loss_hash());
    pid_t job = start(LEFT "--out $W/some --straggle rank=1,x=300,from=2,whole", ranks, options);
    for (int i = 0; i < 2000 && steps_logged("some") < 1; i++) sleep_ms(10);
    sleep_ms(1000);
    signal_rank("some", signalled, "TERM");
    CHECK(ended_within(job, 60) == 0);
    read_background();
    CHECK_SAID("step 2 is left");
    CHECK_SAID("stopped at step 1 of 3");
    CHECK_SH(0, ON_RANKS "$P --resume --out $W/some", ranks);
    CHECK_STRING(loss_hash(), hash);
}

CLAIM(ranks_leave_steps_together_and_resume_with_the_same_bits) {
    if (!has_mpirun()) SKIP("no mpirun here");
    setenv("FAULT_LIMIT", "1e6", 1);
    check_left(3, "--zero 1", 1);
    check_left(3, "--zero 3", 2);
    check_left(4, "--tp 2", 2);
    unsetenv("FAULT_LIMIT");
}

CLAIM(a_long_step_says_how_far_it_is) {
    static Run run;
    Comm world = {.size = 1};
    Kernels none = {0};
    Task forward = {.kind = TASK_FORWARD}, backward = {.kind = TASK_BACKWARD};
    int saved = dup(STDOUT_FILENO);
    fflush(stdout);
    static RunParts parts;
    run_attach(&run, &parts);
    run.ranks = &run_ranks;
    run.model.world = &world, run.model.k = &none;
    run.config.steps = 20;
    run.batch.planned->rows[0].N = 100, run.batch.n_read = 400, run.batch.training = 1;
    pace_begin(&run, 1);
    CHECK(freopen(path_of("said"), "w", stdout));
    pace_end_task(&run, &forward);  // too early
    run.cluster->timing.pace.started -= 120, run.cluster->timing.pace.told -= 120;
    pace_end_task(&run, &backward);
    pace_end_task(&run, &forward);  // too soon after that
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    read_text(path_of("said"), output, sizeof output);
    CHECK_STRING(output, "step 1/20 | 25 % done in 2m00s | 6m00s left\n");
}

// ---- the peak

static double peak_said(void) {
    const char* at = strstr(output, " GFLOP/s at most");
    while (at && at > output && (strchr(".0123456789", at[-1]))) at--;
    return at ? atof(at) : NAN;
}

CLAIM(threads_and_ranks_beyond_the_cores_do_not_raise_the_peak) {
    CHECK_SH(0, "$P " TINY "--steps 0 --out $W/p1");
    double one = peak_said();
    int cores = host_cores("", 0);
    CHECK_SH(0, "$P " TINY "--steps 0 --threads %d --out $W/p2", 32 * cores);
    CHECK(peak_said() > 0 && peak_said() < 4 * cores * one);  // noise may halve it, but not by 32
    if (!has_mpirun()) SKIP("no mpirun here");
    CHECK_SH(0, ON_RANKS "$P " TINY "--steps 0 --out $W/p", 4 * cores);
    CHECK(peak_said() > 0 && peak_said() < 2.5 * cores * one);
}

CLAIM(a_peak_that_a_step_beats_is_measured_again) {
    double share[3], had[3];
    CHECK_SH(0, "FAULT_LIMIT=1e6 $P " TINY "--out $W/beaten");  // FLOP/s
    CHECK(log_values("beaten", "mfu", share, 3) == 3 && log_values("beaten", "had", had, 3) == 3);
    for (int i = 0; i < 3; i++) CHECK(share[i] > 0 && share[i] < 1 && had[i] > 0 && had[i] <= 1);
}

PROGRAM_TEST {}
