// test_keep_going.c - scripts/keep_going.sh: a run goes on when ranks or hosts of it die, and ends when it should.
// Arguments: the trainer.
#include "test/program.h"

#define GOING "scripts/keep_going.sh "
#define TINY                                                                                                  \
    "--data plan --layers 2 --width 16 --heads 2 --context 64 --batch-tokens 256 --threads 1 --eval-every 0 " \
    "--sample-every 0 --save-every 50 --dtype fp32 --plan static --keep 0 --timeout 20 "

// How often the log of a run says a word.
static int times_logged(const char* run, const char* word) {
    sh("cat $W/%s/log*.jsonl | grep -c '%s'", run, word);
    return atoi(output);
}

// Whoever dies, the losses are those of a run that nothing happened to; at most the steps since a checkpoint are done
// twice.
CLAIM(killed_ranks_cost_steps_but_change_no_loss) {
    if (!has_mpirun()) SKIP("mpirun is not installed");
    pid_t job = start(GOING "-- " ON_RANKS "$P " TINY "--steps 2000 --out $W/run", 2);
    for (int i = 0; i < 3; i++) {
        CHECK(comes(filled("run/step-%06d/DONE", 100 + 400 * i), 30));
        signal_rank("run", i % 2, "KILL");
    }
    CHECK(ended_within(job, 60) == 0);
    CHECK(times_logged("run", "\"death\"") == 3);
    CHECK_SH(0, ON_RANKS "$P " TINY "--steps 2000 --out $W/alone > /dev/null", 2);
    CHECK_SH(0, "for r in run alone; do grep -o 'loss_hash[^,]*' $W/$r/log.jsonl | tail -n 1; done | uniq | wc -l");
    CHECK_STRING(output, "1\n");
    CHECK_SH(0, "sed -n 's/.*\"death\".*\"repeats\": \\([0-9]*\\).*/\\1/p' $W/run/log*.jsonl");
    for (const char* at = output; *at; at = strchr(at, '\n') + 1) CHECK(atoi(at) <= 100);
    CHECK_SH(0, "grep -c 'steps repeated' $W/run/report.html");
}

CLAIM(the_same_step_three_times_ends_it) {
    CHECK_SH(1, GOING "-- sh -c 'echo tried >> $W/tries; exit 3' x --out $W/none");
    CHECK_SAID("keep_going: step 1 has failed three times (status 3)");
    CHECK_SH(0, "test $(grep -c tried $W/tries) = 3");
}

CLAIM(what_is_told_to_end_is_not_started_again) {
    pid_t job =
        start(GOING "-- sh -c 'trap \"exit 7\" USR1; echo on > $W/on; while :; do sleep 0.1; done' x --out $W/none");
    CHECK(comes("on", 10));
    kill(job, SIGTERM);
    CHECK(ended_within(job, 20) == 7);
}

CLAIM(ctrl_c_saves_and_ends_it) {
    if (!has_mpirun()) SKIP("mpirun is not installed");
    pid_t job = start(GOING "-- scripts/save_on_signal.sh " ON_RANKS "$P " TINY "--steps 1000000 --out $W/told", 2);
    CHECK(comes("told/step-000050/DONE", 30));
    kill(job, SIGINT);
    CHECK(ended_within(job, 30) == 0);
    read_background();
    CHECK_SAID("stopped at step & !starts again");
}

// Hosts that answer are taken in order, spares behind them; with fewer slots the layout is looked for anew.
CLAIM(hosts_that_answer_take_the_place_of_those_that_do_not) {
    CHECK_SH(0,
             "printf 'a slots=2\nb slots=2 # the second\n' > $W/hosts; printf 'c slots=1\nd slots=1\ne slots=8\n' > "
             "$W/spares; "
             "printf '#!/bin/sh\ntest $1 != b\n' > $W/shell; printf '#!/bin/sh\necho \"$*\" >> $W/calls; cat $1 >> "
             "$W/calls; exit 9\n' > $W/stub; chmod +x $W/shell $W/stub");
    CHECK_SH(1, "export OMPI_MCA_plm_rsh_agent=$W/shell; " GOING
                "--hosts $W/hosts --spares $W/spares -- $W/stub $W/hosts --out $W/far; s=$?; cat $W/calls; exit $s");
    CHECK_SAID("keep_going: b does not answer & failed three times");
    CHECK_SH(0, "sed -n '4,7p' $W/calls");
    CHECK_SAID("far/hosts --out & a slots=2 & c slots=1 & d slots=1 & !e slots & !--layout");
    CHECK_SH(1, "rm -r $W/calls $W/far; export OMPI_MCA_plm_rsh_agent=$W/shell; " GOING
                "--hosts $W/hosts --fewer '--tp 1' -- $W/stub $W/hosts --out $W/far; s=$?; cat $W/calls; exit $s");
    CHECK_SH(0, "sed -n '4,5p' $W/calls");
    CHECK_SAID("far/hosts --out & --tp 1 & a slots=2 & !c slots");
    CHECK_SH(1, "echo 'exit 1' > $W/shell; export OMPI_MCA_plm_rsh_agent=$W/shell; " GOING
                "--hosts $W/hosts -- $W/stub $W/hosts --out $W/far");
    CHECK_SAID("no host answers");
}

CLAIM(mistakes_are_answered_by_a_line) {
    static const char* const bad[][2] = {{"", "-- COMMAND is missing"},
                                         {"--restarts x -- a --out b", "--restarts x: expected a number"},
                                         {"--hosts $W/nothing -- a --out b", "no hostfile"},
                                         {"--spares /dev/null -- a --out b", "--spares without --hosts"},
                                         {"--often -- a", "no option --often"},
                                         {"-- ./train --steps 3", "expected --out DIR"}};
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK_SH(2, GOING "%s", bad[i][0]);
        CHECK_SAID(bad[i][1]);
    }
}

PROGRAM_TEST {}
