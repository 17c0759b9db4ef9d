// test_lost_ranks.c - a rank that never comes, stops or stands still: what the other ranks of ./train do, with
// --timeout of some seconds. Started alone; it starts mpirun itself.
//
//   test_lost_ranks PROGRAM    "build/release/train", or "build/release/train_emu --device emu": ranks with NCCL
#include "test/program.h"

enum { RANKS = 2, TIMEOUT = 3, SOON = 20 };  // seconds; SOON: how late a busy machine may be

#define TINY                                                                                                  \
    "--data plan --layers 2 --width 16 --heads 2 --context 64 --batch-tokens 256 --threads 1 --eval-every 0 " \
    "--sample-every 0 --save-every 0 --dtype fp32 --steps 1000000 --timeout 3 --out $W/run "

// ---- a run of two ranks in the background

static pid_t job;

#define LAST_SLEEPS "sh -c 'test $OMPI_COMM_WORLD_RANK = 0 || exec sleep 60; exec \"$@\"' run "
static void start_run(const char* by, const char* options) {
    sh("rm -rf $W/run");
    job = start(ON_RANKS "%s $P " TINY "%s", RANKS, by, options);
}

static int comes_to_step(int n, double seconds) {
    for (int i = 0; i < seconds * 20 && steps_logged("run") < n && kill(job, 0) == 0; i++) sleep_ms(50);
    return steps_logged("run") >= n;
}

// The job's status; -1 when it is not over in time: then all of it is killed.
static int job_ended_within(double seconds) {
    int status = ended_within(job, seconds);
    if (status < 0) sh("pkill -9 -f '[o]ut %s/run'", work);
    return status;
}

// It ended in time, rank 0 with a line that has these words, and nobody is left.
static void check_end(const char* words) {
    int status = job_ended_within(TIMEOUT + SOON);
    read_background();
    CHECK(status > 0 && has_words(output, "train: rank 0") && has_words(output, words));
    CHECK(sh("pgrep -f '[o]ut %s/run'", work) != 0);
}

// ---- the start

CLAIM(a_rank_that_never_comes_is_given_up_within_the_timeout) {
    start_run(LAST_SLEEPS, "");
    check_end("not done after 3 s");
}

CLAIM(ctrl_c_ends_a_start_that_waits) {
    start_run(LAST_SLEEPS, "--timeout 1000");
    sleep_ms(1500);
    CHECK(waitpid(job, NULL, WNOHANG) == 0);  // it waits
    kill(job, SIGINT);
    CHECK(job_ended_within(SOON) > 0);
    CHECK(sh("pgrep -f '[o]ut %s/run'", work) != 0);
}

// ---- a step

CLAIM(a_rank_that_stops_is_given_up_within_the_timeout) {
    static const char* const options[] = {"--plan static", "--cp 2,kind=ring --zero 3", "--tp 2"};
    for (int i = 0; i < COUNT(options); i++) {
        start_run("", options[i]);
        CHECK(comes_to_step(3, 60));
        signal_rank("run", RANKS - 1, "STOP");
        check_end("start it again");
    }
}

CLAIM(a_rank_that_stands_still_for_less_is_waited_for) {
    start_run("", "--plan static");
    CHECK(comes_to_step(3, 60));
    signal_rank("run", RANKS - 1, "STOP");
    sleep_ms(1500);
    int before = steps_logged("run");
    signal_rank("run", RANKS - 1, "CONT");
    CHECK(comes_to_step(before + 3, SOON));
    kill(job, SIGUSR1);
    CHECK(job_ended_within(SOON) == 0);
}

PROGRAM_TEST {}
