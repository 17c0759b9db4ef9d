// test_close.c - close copies (--close-copy): which state a run goes on from when ranks, nodes or parts are lost.
// Arguments: the trainer with faults (test/faults/inject.c).
#include "test/program.h"

#define SMALL                                                                                       \
    "--data $W/corpus --layers 2 --width 32 --heads 2 --context 64 --batch-tokens 256 --threads 1 " \
    "--eval-every 0 --sample-every 0 --dtype fp32 --plan static --keep 0 --timeout 20 --steps 60 "
// All die where they begin to write parts of step 40; the last copy is that of step 30. Without threads for what is
// written, copies have no time to miss the next one.
#define DIES "FAULT=thread:12+:EAGAIN,write:1+:KILL FAULT_PLACE=step-000040.tmp "
// Two nodes of two ranks, each with files of its own below $W/node.
#define ON_NODES \
    "RAGGED_NODE_SIZE=2 mpirun --oversubscribe -n 2 -wdir $W/a $(realpath $P) %s : -n 2 -wdir $W/b $(realpath $P) %s"

// Of a run in $W/NAME, with copies in $W/close-NAME.
static const char* close_to(const char* name, const char* more) {
    return filled(SMALL "--out $W/%s --close-copy $W/close-%s,every=10 %s", name, name, more);
}

static void die_on(int ranks, const char* name, const char* more) {
    CHECK(sh(DIES ON_RANKS "$P %s", ranks, close_to(name, more)) != 0);
    CHECK_SH(0, "test -d $W/%s/step-000010 && ! test -d $W/%s/step-000020", name, name);
}

CLAIM(a_rank_that_dies_costs_the_steps_since_the_last_copy_and_no_bit) {
    if (!has_mpirun()) SKIP("mpirun is not installed");
    die_on(3, "bits", "");
    CHECK_SH(0, ON_RANKS "$P %s", 3, close_to("bits", "--resume"));
    CHECK_SAID("resume  step 30, from close copies of 3 ranks; the newest checkpoint was of step 10 & step 60/60");
    const char* hash = loss_hash();
    CHECK_SH(0, "grep -c '\"from close copies\", \"at\": 30,.*\"checkpoint\": 10' $W/bits/log.jsonl");
    CHECK_SH(0, "test -d $W/bits/step-000010 && test -d $W/bits/step-000030 && ! ls -d $W/close-bits/*");
    CHECK_SH(0, ON_RANKS "$P " SMALL "--out $W/alone", 3);
    CHECK_STRING(loss_hash(), hash);
}

// Three ranks of one process die and go on, and lose no bit. begins: options that only the first start has.
static void forked_ranks_go_on(const char* name, const char* begins) {
    CHECK(sh(DIES "$P %s %s", begins, close_to(name, "--ranks 3")) != 0);
    CHECK_SH(0, "test -d $W/%s/step-000010 && ! test -d $W/%s/step-000020", name, name);
    CHECK_SH(0, "$P %s", close_to(name, "--ranks 3 --resume"));
    CHECK_SAID("resume  step 30, from close copies of 3 ranks; the newest checkpoint was of step 10 & step 60/60");
    const char* hash = loss_hash();
    CHECK_SH(0, "$P %s " SMALL "--out $W/%s-not-killed --ranks 3", begins, name);
    CHECK_STRING(loss_hash(), hash);
}

// Ranks of one process are there before copies are looked for.
CLAIM(forked_ranks_keep_copies_too) { forked_ranks_go_on("forked", ""); }

// The base of adapters is in no copy: each rank reads it again.
CLAIM(adapters_go_on_from_copies_too) {
    CHECK_SH(0, "$P " SMALL "--optimizer adamw --steps 1 --out $W/base");
    forked_ranks_go_on("adapters", "--init $W/base/step-000001 --lora rank=3 --zero 3");
}

// Files know whole tensors, wherever they lay; the loss is that of one rank up to rounding.
CLAIM(other_ranks_and_layouts_go_on_from_them) {
    static const char* const ways[][2] = {{"--tp 2 --pp 2", "--tp 1 --pp 1"},
                                          {"--zero 3", "--zero 2 --tp 2"},
                                          {"--capacity 128 --strategies '4xtp1; 2xtp2'", "--strategies none --pp 2"}};
    double last[60];
    if (!has_mpirun()) SKIP("mpirun is not installed");
    CHECK_SH(0, "$P " SMALL "--out $W/one");
    log_values("one", "loss", last, 60);
    for (int i = 0; i < COUNT(ways); i++) {
        double loss[60];
        const char* name = i == 0 ? "first" : i == 1 ? "second" : "third";
        die_on(4, name, ways[i][0]);
        CHECK_SH(0, ON_RANKS "$P %s", i ? 2 : 1, close_to(name, filled("--resume %s", ways[i][1])));
        CHECK_SAID("resume  step 30, from close copies of 4 ranks");
        CHECK(log_values(name, "loss", loss, 60) == 60);
        CHECK_CLOSE(loss[59], last[59], 1e-3 * last[59]);
    }
}

// The first node has lost its disk, or both have lost parts.
CLAIM(a_node_takes_no_part_with_it_and_two_do) {
    static const char* const lost[] = {"a/here", "*/here/*/*0-of*"};
    const char* options = filled(SMALL "--out $W/nodes --close-copy here,every=10");
    if (!has_mpirun()) SKIP("mpirun is not installed");
    CHECK(sh("mkdir $W/a $W/b; " DIES ON_NODES, options, options) != 0);
    CHECK_SH(0,
             "cd $W && ls -d a/here/*/*2-of-00004.partner a/here/*/*3-of-00004.partner b/here/*/*0-of-00004.partner "
             "b/here/*/*1-of-00004.partner && ls b/here/*/*.partner/step-000030/model.safetensors && "
             "cp -r a a0 && cp -r b b0 && cp -r nodes nodes0");
    for (int i = 0; i < COUNT(lost); i++) {
        CHECK_SH(0,
                 "cd $W && rm -r a b nodes/* && cp -r a0 a && cp -r b0 b && cp -r nodes0/* nodes && "
                 "rm -r %s",
                 lost[i]);
        options = filled(SMALL "--out $W/nodes --close-copy here,every=10 --resume --steps 31");
        CHECK_SH(0, ON_NODES, options, options);
        if (i == 0) CHECK_SAID("resume  step 30, from close copies of 4 ranks");
        else
            CHECK_SAID("of step 30 the part of rank 0 is on no node that is here; an older state & !from close copies");
    }
}

// What cannot be read back, or is of another run that was at the same step, is nobody's part.
CLAIM(a_part_that_is_damaged_or_of_another_past_is_not_taken) {
    if (!has_mpirun()) SKIP("mpirun is not installed");
    die_on(2, "whole", "");
    CHECK_SH(0,
             "cp -r $W/whole $W/kept; cp -r $W/close-whole $W/close-kept; cd $W/close-whole/* && "
             "echo x >> rank-00001-of-00002/step-000030/optimizer-00001-of-00002.safetensors");
    CHECK_SH(0, ON_RANKS "$P %s", 2, close_to("whole", "--resume --steps 31"));
    CHECK_SAID("--close-copy: & optimizer-00001-of-00002.safetensors: expected & resume  step 30");
    die_on(2, "other", "--seed 2");
    CHECK_SH(0,
             "rm -r $W/whole/* $W/close-whole; cp -r $W/kept/* $W/whole; cp -r $W/close-kept $W/close-whole; "
             "cd $W/close-whole/* && rm -r *1-of* && cp -r $W/close-other/*/*1-of* .");
    CHECK_SH(0, ON_RANKS "$P %s", 2, close_to("whole", "--resume --steps 31"));
    CHECK_SAID("step 30 the part of rank & is on no node & !from close copies");
}

// Others could have put it there, or read it.
CLAIM(a_directory_that_others_can_enter_is_not_trusted) {
    if (!has_mpirun()) SKIP("mpirun is not installed");
    die_on(1, "open", "");
    CHECK_SH(0, "chmod 755 $W/close-open/* && $P %s", close_to("open", "--resume --steps 21"));
    CHECK_SAID("--close-copy: & not trusted & !from close copies & done at step 21");
}

CLAIM(a_full_disk_costs_a_copy_and_nothing_else) {
    CHECK_SH(0, "FAULT=write:1+:ENOSPC FAULT_PLACE=close-full $P %s", close_to("full", "--steps 31 --save-every 20"));
    CHECK_SAID(
        "warning: --close-copy: step 10 is not kept & No space left & step 20 is not kept & training goes on, with "
        "none yet & step 31/31");
    CHECK_SH(0, "ls -d $W/full/step-000010 $W/full/step-000020 $W/full/step-000031 && ! ls -d $W/close-full/*");
}

CLAIM(what_does_not_go_together_is_refused) {
    static const Refusal refusals[] = {{"--close-copy ''", "--close-copy: expected a directory", 0},
                                       {"--close-copy $W/c,every=0", "--close-copy every expects", 0},
                                       {"--close-copy $W/c --save-every 0", "found --save-every 0", 0}};
    CHECK_REFUSALS(SMALL "--out $W/refused", refusals);
    CHECK_SH(0, "$P %s --verbose", close_to("table", "--steps 11"));
    CHECK_SAID("close copy, and a partner's");
}

PROGRAM_TEST { sh("mkdir $W/corpus && cp plan/base/*.c $W/corpus"); }
