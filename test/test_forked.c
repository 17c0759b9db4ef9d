// test_forked.c - ranks without a launcher (--ranks N): they have the bits of mpirun's, and end together, with one
// line.
#include "test/program.h"

#define TINY                                                                                                   \
    "--data $W/corpus --layers 2 --width 48 --heads 6 --context 128 --batch-tokens 512 --lr 0.003 --warmup 5 " \
    "--sample-every 0 --dtype fp32 --threads 1 --plan static "
#define ENDLESS TINY "--eval-every 0 --steps 1000000 --save-every 0 "

// ---- the same as mpirun's

// What `filter` leaves of the logs of runs a and b, `lines` of it at least.
static void check_same_logs(const char* filter, int lines) {
    CHECK_SH(0,
             "for r in a b; do %s $W/$r/log.jsonl > $W/$r.digits; done; cmp $W/a.digits $W/b.digits && test $(wc -l < "
             "$W/a.digits) -ge %d",
             filter, lines);
}

CLAIM(forked_ranks_have_the_losses_and_weights_of_mpirun) {
    static const char* const ways[] = {"", "--cp 3,kind=ring --zero 2", "--tp 3 --zero 3", "--pp 2 --tp 2"};
    if (!has_mpirun()) SKIP("mpirun is not here");
    for (int i = 0; i < COUNT(ways); i++) {
        int ranks = i == 3 ? 4 : 3;
        CHECK_SH(0, "rm -rf $W/a $W/b; $P --ranks %d " TINY "%s --steps 4 --eval-every 2 --out $W/a", ranks, ways[i]);
        CHECK_SAID("done at step 4 of 4 & !expected");
        run_on(ranks, "b", TINY "%s --steps 4 --eval-every 2", ways[i]);
        check_same_logs("grep -oE '\"(loss|grad_norm|val_loss)\": [^,}]*|\"bytes\": .[^}]*'", 12);
        CHECK_SH(0,
                 "for f in $(cd $W/a/step-000004 && ls model* optim*); do cmp $W/a/step-000004/$f "
                 "$W/b/step-000004/$f || exit 1; done");
    }
}

#define VIRTUAL                                                                                                      \
    "--data $W/corpus --device virtual --machine a100-7b --layers 4 --width 64 --heads 8 --context 1024 --capacity " \
    "512 --batch-tokens 32768 --steps 3 "

// The whole log, times and all: these are virtual.
static void check_virtual(int ranks, const char* options) {
    CHECK_SH(0, "rm -rf $W/a $W/b; $P --ranks %d " VIRTUAL "%s --out $W/a", ranks, options);
    run_on(ranks, "b", VIRTUAL "%s", options);
    check_same_logs("sed -E '/\"event\"/d; s/\"plan_(stall_)?us\": [^,]*,//g; s/, \"time\": [^}]*//'", 3);
}

CLAIM(virtual_ranks_that_are_forked_have_the_digits_of_mpirun) {
    if (!has_mpirun()) SKIP("mpirun is not here");
    check_virtual(64, "");
    check_virtual(8, "--tp 2 --pp 2 --zero 3");
    check_virtual(8, "--strategies '8xtp1; tp4+4xtp1'");
    check_virtual(8, "--plan zeppelin,remap=yes,route=yes");
}

// ---- how they end

// The process of the last rank of those that `pid` is the parent of.
static pid_t last_rank(pid_t pid) {
    sh("cat /proc/%d/task/%d/children", (int)pid, (int)pid);
    char* at = output + strlen(output);
    while (at > output && at[-1] == ' ') *--at = 0;
    while (at > output && at[-1] != ' ') at--;
    return atoi(at);
}

// Three ranks that train for ever.
static pid_t begin(const char* options) {
    sh("rm -rf $W/run");
    pid_t pid = start("$P --ranks 3 " ENDLESS "%s --out $W/run", options);
    for (int i = 0; i < 3000 && steps_logged("run") < 1; i++) sleep_ms(10);
    CHECK(steps_logged("run") >= 1);
    return pid;
}

// All of them end within some seconds, with one line that has these words, and nobody is left.
static void check_end(pid_t pid, int status, const char* words) {
    int lines = 0;
    CHECK(ended_within(pid, 15) == status);
    read_background();
    for (const char* at = output; (at = strstr(at, "train: ")); at++) lines++;
    CHECK(lines == 1);
    CHECK_SAID(words);
    sleep_ms(200);
    CHECK(sh("pgrep -f -- \"--out $W/run\" | grep -v $$") != 0);
}

CLAIM(a_rank_that_is_killed_ends_the_others_with_one_line) {
    pid_t pid = begin(""), rank = last_rank(pid);
    kill(rank, SIGKILL);
    check_end(pid, 1, filled("step & rank 2 (process %d) was ended by signal 9", (int)rank));
}

CLAIM(a_rank_that_stands_still_is_waited_for_so_long) {
    pid_t pid = begin("--timeout 2"), rank = last_rank(pid);
    kill(rank, SIGSTOP);
    check_end(pid, 1, filled("nothing moved for 2 s while waiting for rank 2 (process %d)", (int)rank));
}

CLAIM(ranks_do_not_outlive_their_parent) {
    pid_t pid = begin("");
    kill(pid, SIGKILL);
    CHECK(ended_within(pid, 5) == 128 + SIGKILL);
    sleep_ms(500);
    CHECK(sh("pgrep -f -- \"--out $W/run\" | grep -v $$") != 0);
}

CLAIM(what_is_wrong_on_all_ranks_is_said_once) {
    static const Refusal rows[] = {
        {"--ranks 3 --tp 3 --heads 2 --width 64", "rank & --tp 3: expected at most as many ranks as heads", 0},
        {"--ranks 5000", "--ranks 5000: expected at most 4096 ranks without a launcher", 0},
        {"--ranks 3", "--ranks 3: this is rank & of 2 of mpirun already", 2},
        {"--ranks 2 --plan fixed --capacity 8", "the longest document", 0}};
    for (int i = 0; i < COUNT(rows); i++)
        if (!rows[i].ranks || has_mpirun())
            check_refusals("--data $W/corpus --context 128 --steps 3 --threads 1 --out $W/refused", &rows[i], 1);
}

// A saved way to divide ranks is dropped where these are others; one that is given is refused.
CLAIM(a_run_goes_on_with_any_number_of_ranks) {
    static const char* const saved[] = {"--cp 4", "--pp 2 --tp 2", "--strategies tp2+2xtp1", "--capacity 50",
                                        "--layout 'tp 2; stage layers 1; stage layers 1'"};
#define SHORT                                                                                                          \
    "--data $W/corpus --layers 2 --width 48 --heads 6 --context 128 --batch-tokens 512 --eval-every 0 --sample-every " \
    "0 "
    for (int i = 0; i < COUNT(saved); i++) {
        CHECK_SH(0, "rm -rf $W/any; $P --ranks 4 " SHORT "--threads 1 --steps 1 %s --out $W/any", saved[i]);
        CHECK_SH(0, "rm -rf $W/same; cp -r $W/any $W/same; $P --ranks %d --resume --threads 1 --steps 2 --out $W/any",
                 i % 2 ? 1 : 3);
        CHECK_SAID(filled("done at step 2 of 2 & resume  without its saved %.4s", saved[i]));
    }
    CHECK_SH(0, "$P --ranks 4 --resume --threads 1 --steps 2 --out $W/same");
    CHECK_SAID("!without its saved");
    // A model of 131072 positions: what ranks hold is held against the run's own context.
    CHECK_SH(0,
             "$P --init test/golden/llama/init --ranks 4 --data $W/corpus --context 24 --capacity 24 --batch-tokens 96 "
             "--eval-every 0 --sample-every 0 --threads 1 --steps 1 --out $W/far; $P --ranks 2 --resume --threads 1 "
             "--steps 2 --out $W/far");
    CHECK_SAID("!without its saved & done at step 2");
    CHECK_REFUSED("--tp: & do not divide 3 ranks", "$P --ranks 3 --resume --threads 1 --steps 3 --tp 2 --out $W/any");
}

// The command that goes on has the ranks in it.
CLAIM(a_signal_ends_all_ranks_behind_the_same_step) {
    pid_t pid = begin("--save-every 1000000");
    kill(pid, SIGTERM);
    CHECK(ended_within(pid, 20) == 0);
    read_background();
    CHECK_SAID("stopped at step & continue: & --ranks 3 --resume --out");
    CHECK_SH(0,
             "$(sed -n 's/^continue: //p' $W/background) --steps $(($(ls $W/run | sed -n "
             "'s/^step-0*//p' | tail -n 1) + 2)) --threads 1");
    CHECK_SAID("done at step");
}

PROGRAM_TEST { write_ragged_corpus(80, 7.2, 5); }
