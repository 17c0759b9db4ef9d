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

// A stand-in for mpirun with hosts, for what follows: it notes how it was called, and does what the file `does` says.
static void make_hosts(const char* does) {
    CHECK_SH(
        0,
        "rm -rf $W/calls $W/far; mkdir $W/far; printf 'a slots=2\nb slots=2\nc slots=2\n' > $W/hosts; "
        "printf '#!/bin/sh\ntest ! -e %s/dead-$1\n' > $W/shell; chmod +x $W/shell; cat > $W/stub << 'END'\n#!/bin/sh\n"
        "echo \"$* on $(tr '\\n' ' ' < $1)\" >> $W/calls; calls=$(grep -c . $W/calls)\n%s\nEND\nchmod +x $W/stub",
        work, does);
    sh("rm -f $W/dead-*");
}
#define ON_HOSTS "export OMPI_MCA_plm_rsh_agent=$W/shell; " GOING "--hosts $W/hosts "
#define REFUSED "echo 'train: --tp 2: expected ranks that it divides' >&2; exit 1 ;; "
#define STARTED "echo '{\"event\": \"start\"}' >> $W/far/log.jsonl; "
#define LATE(rank, host) "rank " #rank " (process 1 of node " #host ")"

// Who hangs is silent while others wait for it; where a link is dead all speak, and most wait for who is behind it.
CLAIM(a_host_whose_ranks_hang_is_left_out) {
    static const char* const said[] = {
        "train: rank 0 of 4: nothing moved for 5 s while waiting for " LATE(1, a) ", " LATE(2, b) "\n"
        "train: rank 1 of 4: nothing moved for 5 s while waiting for " LATE(2, b),
        "train: rank 0 of 3: nothing moved for 5 s while waiting for " LATE(1, b) "\n"
        "train: rank 2 of 3: nothing moved for 5 s while waiting for " LATE(0, a) ", " LATE(1, b) "\n"
        "train: rank 1 of 3: nothing moved for 5 s while waiting for " LATE(2, c),
        "train: rank 0 of 4: nothing moved for 5 s while waiting for " LATE(1, c) "\n"
        "train: rank 3 of 4: nothing moved for 5 s while waiting for " LATE(1, c) "\n"
        "train: rank 1 of 4: nothing moved for 5 s while waiting for " LATE(2, b),
        "train: " LATE(2, b) " is given up: it is slow"};
    for (int i = 0; i < COUNT(said); i++) {
        make_hosts(filled(STARTED "[ $calls = 1 ] || exit 0; printf '%s\n' >&2; exit 1", said[i]));
        CHECK_SH(0, ON_HOSTS "-- $W/stub $W/hosts --out $W/far");
        CHECK_SAID("keep_going: b is left out: ranks there have hung");
        CHECK_SH(0, "tail -n 1 $W/calls");
        CHECK_SAID("a slots=2 c slots=2 & !b slots");
    }
}

// Refused before its first step: another layout is looked for; refused again: there is none.
CLAIM(fewer_ranks_get_a_layout_that_fits_or_a_line) {
    make_hosts("case $calls in 1) " STARTED "touch $W/dead-b; exit 1 ;; 2) " REFUSED "3) " STARTED "exit 0 ;; esac");
    CHECK_SH(0, ON_HOSTS "-- $W/stub $W/hosts --tp 2 --pp=3 --lr 1 --out $W/far");
    CHECK_SH(0, "sed -n 2p $W/calls");
    CHECK_SAID("--tp 2 --pp=3 --lr 1 --out & !--layout");
    CHECK_SH(0, "sed -n 3p $W/calls");
    CHECK_SAID("far/hosts --lr 1 --out & --layout auto --memory & M on a slots=2 c & !--tp & !--pp");
    make_hosts("case $calls in 1) " STARTED "touch $W/dead-b; exit 1 ;; *) " REFUSED "esac");
    CHECK_SH(1, ON_HOSTS "-- $W/stub $W/hosts --tp 2 --out $W/far");
    CHECK_SAID("keep_going: no layout fits 4 ranks (status 1)");
}

CLAIM(a_host_that_is_back_joins_when_asked) {
    make_hosts("case $calls in 1) " STARTED
               "touch $W/dead-b; exit 1 ;; 2) trap 'echo saved >> $W/calls; exit 0' USR1; "
               "rm $W/dead-b; while :; do sleep 0.1; done ;; esac");
    CHECK_SH(0, "export OMPI_MCA_plm_rsh_agent=$W/shell; timeout 30 " GOING
                "--grow 1 --hosts $W/hosts -- $W/stub $W/hosts --out $W/far");
    CHECK_SAID("hosts are back");
    CHECK_SH(0, "tail -n 2 $W/calls");
    CHECK_SAID("saved & a slots=2 b slots=2 c slots=2");
}

CLAIM(a_launcher_that_waits_for_ever_is_ended) {
    make_hosts("case $calls in 1) " STARTED "exit 1 ;; 2) exec sleep 1000 ;; esac");
    CHECK_SH(0, "export OMPI_MCA_plm_rsh_agent=$W/shell; timeout 30 " GOING
                "--start-within 1 --hosts $W/hosts -- $W/stub $W/hosts --out $W/far");
    CHECK_SAID("ranks are not there after 1 s & status 143");
    CHECK_SH(0, "test $(grep -c . $W/calls) = 3");
}

CLAIM(mistakes_are_answered_by_a_line) {
    static const char* const bad[][2] = {{"", "-- COMMAND is missing"},
                                         {"--restarts x -- a --out b", "--restarts x: expected a number"},
                                         {"--hosts $W/nothing -- a --out b", "no hostfile"},
                                         {"--spares /dev/null -- a --out b", "--hosts, which is missing"},
                                         {"--grow 0 -- a --out b", "--start-within: expected seconds"},
                                         {"--often -- a", "no option --often"},
                                         {"-- ./train --steps 3", "expected --out DIR"}};
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK_SH(2, GOING "%s", bad[i][0]);
        CHECK_SAID(bad[i][1]);
    }
}

PROGRAM_TEST {}
