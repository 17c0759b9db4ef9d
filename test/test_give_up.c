// test_give_up.c - --give-up-below: a slow rank is left where the others are faster without it, and only there.
// Arguments: the trainer.
#include "test/program.h"

#define SMALL                                                                                         \
    "--data $W/corpus --layers 4 --width 64 --heads 4 --context 128 --batch-tokens 2048 --threads 1 " \
    "--eval-every 0 --sample-every 0 --dtype fp32 --plan static,refresh=5 --steps 30 --save-every 100 "

// Each rank is a node: of four, three are left.
CLAIM(a_rank_without_which_the_others_are_faster_is_given_up) {
    static const char* const ways[] = {"", "--tp 4"};
    double ms[2];
    if (!has_mpirun()) SKIP("mpirun is not installed");
    for (int i = 0; i < COUNT(ways); i++) {
        CHECK_SH(76,
                 "export RAGGED_NODE_SIZE=1; " ON_RANKS "$P " SMALL
                 "%s --straggle rank=2,x=30 --give-up-below "
                 "0.4,refreshes=2 --out $W/slow-%d",
                 4, ways[i], i);
        CHECK_SAID(
            "warning: rank 2 (process & ) is given up: it computes at 0.0 & on 3 ranks without & stopped at step 10");
        CHECK_SH(0,
                 "sed -n 's/.*\"slow rank\", \"at\": 10, \"rank\": 2.*\"ms\": \\([0-9.]*\\), \"ranks_without\": 3, "
                 "\"ms_without\": \\([0-9.]*\\),.*/\\1 \\2/p' $W/slow-%d/log.jsonl; test -d $W/slow-%d/step-000010",
                 i, i);
        CHECK(sscanf(output, "%lf %lf", &ms[0], &ms[1]) == 2 && ms[1] < ms[0] && ms[0] > 2 * ms[1]);
    }
    CHECK_SH(0, ON_RANKS "$P --resume --tp 1 --out $W/slow-1", 3);
    CHECK_SAID("step 11/30 & done at step 30");
}

// One of two at three fifths of the pace, in virtual time: the other alone would take longer.
CLAIM(a_slow_rank_stays_where_the_others_are_no_faster) {
    if (!has_mpirun()) SKIP("mpirun is not installed");
    CHECK_SH(0,
             ON_RANKS "$P " SMALL
                      "--device virtual-cpu --machine h200-8b --plan node-size=1 --straggle "
                      "rank=1,x=1.7,whole --give-up-below 0.9,refreshes=2 --out $W/stays",
             2);
    CHECK_SAID(
        "rank 1 (process & is slow, and stays: it computes at 0.59 & on 1 rank without & "
        "done at step 30");
}

CLAIM(what_does_not_go_together_is_refused) {
    static const Refusal refusals[] = {{"--give-up-below 0.5 --balance migrate", "--give-up-below: paces", 2},
                                       {"--give-up-below 0.5 --plan refresh=0", "refresh=0", 2},
                                       {"--give-up-below 2", "--give-up-below expects", 0}};
    if (!has_mpirun()) SKIP("mpirun is not installed");
    CHECK_REFUSALS(SMALL "--out $W/refused", refusals);
}

PROGRAM_TEST { sh("mkdir $W/corpus && cp plan/base/*.c $W/corpus"); }
