// test_resume.c - a run that was stopped, killed or moved to another place continues bit for bit.
#include "data/checkpoint.h"
#include "test/program.h"

#define TINY                                                                                                  \
    "--data $W/corpus --layers 2 --width 32 --heads 2 --context 64 --batch-tokens 256 --lr 0.003 --warmup 5 " \
    "--eval-every 0 "                                                                                         \
    "--sample-every 0"

static void resume(const char* dtype) {
    sh("rm -rf $W/whole $W/parts");
    CHECK_SH(0, "$P " TINY " --dtype %s --steps 30 --save-every 10 --out $W/whole", dtype);
    const char* whole = loss_hash();
    // --steps shapes the schedule: a run that is to be the same needs the same number, so the first part is ended by
    // a signal.
    CHECK_SH(0, "$P " TINY " --dtype %s --steps 30 --save-every 7 --keep 0 --out $W/parts", dtype);
    CHECK_SH(0, "cd $W/parts && rm -rf step-000030 step-000028 step-000021");  // back to step 14
    CHECK_SH(0, "$P --resume --save-every 10 --keep 2 --out $W/parts");
    CHECK_STRING(loss_hash(), whole);
    CHECK_LOSSES("parts", "whole", 30, 0);
    CHECK_SH(0,
             "cd $W/whole/step-000030 && for f in *.safetensors config.json state.json; do "
             "cmp $f ../../parts/step-000030/$f || exit; done");
}

CLAIM(a_resumed_run_repeats_losses_weights_and_log_in_fp32) { resume("fp32"); }
CLAIM(a_resumed_run_repeats_losses_weights_and_log_in_bf16) { resume("bf16"); }

CLAIM(a_killed_run_always_leaves_a_whole_checkpoint_and_continues_bit_for_bit) {
    char arguments[1024], path[CHECKPOINT_PATH], err[ERR_BYTES];
    int64_t step = 0, last = 0;
    sh("rm -rf $W/whole $W/killed");
    CHECK_SH(0, "$P " TINY " --steps 400 --save-every 400 --out $W/whole");
    const char* whole = loss_hash();
    snprintf(arguments, sizeof arguments, TINY " --steps 400 --save-every 1 --keep 2 --out %s/killed", work);
    int wait = 300;  // until it saves; longer where the machine is busy and nothing was saved
    for (int kill_n = 0; kill_n < 12; kill_n++) {
        pid_t pid = start("$P %s", arguments);
        sleep_ms(wait + (int)(hash64((uint64_t)kill_n) % 400));
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        int found = checkpoint_latest(filled("%s/killed", work), path, &step, err);
        CHECK(found >= 0 && step >= last);
        if (found == 1) {
            CHECK(checkpoint_verify(path, err) == 0);
            snprintf(arguments, sizeof arguments, "--resume --out %s/killed", work);
        }
        if (step == last && wait < 5000) wait *= 2;
        last = step;
        if (last == 400) break;
    }
    CHECK(last > 0);  // or nothing was tried
    CHECK_SH(0, "$P --resume --out $W/killed");
    CHECK_STRING(loss_hash(), whole);
    CHECK_SH(0, "cmp $W/whole/step-000400/model.safetensors $W/killed/step-000400/model.safetensors");
}

CLAIM(an_interrupt_finishes_the_step_saves_and_says_how_to_go_on) {
    pid_t pid = start("$P " TINY " --steps 100000 --save-every 0 --out $W/interrupted");
    for (int i = 0; i < 3000 && steps_logged("interrupted") < 1; i++) sleep_ms(10);
    CHECK(steps_logged("interrupted") >= 1);
    kill(pid, SIGINT);
    CHECK(ended_within(pid, 60) == 130);
    read_background();
    CHECK_SAID("stopped at step & --resume --out");
    CHECK_SH(0, "ls -d $W/interrupted/step-*");
}

// On as many ranks, by the launcher as it was typed.
CLAIM(the_command_that_is_printed_can_be_pasted) {
    char launchers[2][1024];
    if (!has_mpirun()) SKIP("mpirun is not installed");
    CHECK_SH(0, "mkdir $W/tree; cp -r scripts $W/tree; set -- $P; ln -s $(realpath $1) $W/tree/train");
    snprintf(launchers[0], sizeof launchers[0], "mpirun --oversubscribe -n 2 %s", program);
    snprintf(launchers[1], sizeof launchers[1], "$W/tree/scripts/one_node.sh -n 2");
    for (int i = 0; i < COUNT(launchers); i++) {
        CHECK_SH(0, "rm -rf $W/pasted && %s " TINY " --steps 2 --out $W/pasted", launchers[i]);
        CHECK_SH(0, "%s --resume --out $W/pasted", launchers[i]);
        const char* at = strstr(output, "to go on: ");
        CHECK(at != NULL);
        if (!at) continue;
        CHECK(sh("%.*s", (int)strcspn(at + 10, "\n"), at + 10) == 0 && strstr(output, "done at step 4") &&
              strstr(output, "device  2 ranks"));
    }
}

CLAIM(an_interrupt_breaks_an_evaluation_off_on_all_ranks) {
    pid_t pid = start(
        "$P --ranks 3 --threads 1 --layers 4 --width 256 --heads 4 --loss nll --data plan run data test --eval-every "
        "tokens=999999999 "
        "--out $W/evaluating");
    CHECK(comes("evaluating/log.jsonl", 30));
    kill(pid, SIGINT);
    CHECK(ended_within(pid, 60) == 0);  // of ranks that were told, as all of them
    read_background();
    CHECK_SAID("nothing was learnt");
    CHECK(sh("grep -c val_loss $W/evaluating/log.jsonl") == 1 && sh("ls $W/evaluating/step-000000") != 0);
}

CLAIM(a_run_does_not_overwrite_another) {
    static const Refusal rows[] = {{TINY " --steps 2", "--resume", 0},
                                   {"--resume --steps 4 --data data", "documents differ", 0},
                                   {"--resume --layers 3", "--layers 3", 0}};
    CHECK_SH(0, "$P " TINY " --steps 2 --out $W/twice");
    CHECK_REFUSALS("--out $W/twice", rows);
}

CLAIM(documents_with_one_changed_byte_are_not_resumed_with) {
    CHECK_SH(0, "cp -r $W/corpus $W/edited && $P " TINY " --data $W/edited --steps 2 --out $W/edit");
    CHECK_SH(0, "printf '#' | dd of=$W/edited/config.c bs=1 seek=10000 conv=notrunc");  // the length stays
    CHECK_REFUSED("documents differ & hash of all bytes", "$P --resume --steps 4 --out $W/edit");
    CHECK_SH(0, "cp $W/corpus/config.c $W/edited && $P --resume --steps 4 --out $W/edit");
}

// As where there are no C headers: the default corpus is the directory in which runs are kept.
CLAIM(a_path_that_is_not_utf8_is_found_again) {
    CHECK_SH(0, "mkdir $W/caf\xe9 && cp $W/corpus/config.c $W/caf\xe9/ && $P " TINY
                " --data $W/caf\xe9 --steps 2 --out "
                "$W/bytes && $P --resume --steps 4 --out $W/bytes");
    CHECK_SH(0, "grep -q 'caf.udce9' $W/bytes/step-000004/state.json");
}

CLAIM(a_corpus_that_holds_its_own_runs_can_be_resumed) {
    char real[PATH_MAX];
    CHECK(realpath(program, real) != NULL);
    CHECK_SH(0, "cp -r $W/corpus $W/self && cd $W/self && %s " TINY " --data . --steps 3", real);
    const char* first = loss_hash();
    CHECK_SAID("1 run of this program left out");  // itself
    CHECK_SH(0, "cd $W/self && %s " TINY " --data . --steps 3", real);
    CHECK_STRING(loss_hash(), first);
    CHECK_SAID("2 runs of this program left out");
    CHECK_SH(0, "cd $W/self && %s --resume --steps 5 --out runs/0", real);
    CHECK_SAID("2 runs of this program left out");
    CHECK_REFUSED(" runs left out", "cd $W/self && %s " TINY " --data runs --steps 3", real);
    CHECK_REFUSED("another --data", "cd $W/self && %s " TINY " --data runs/1 --steps 3", real);
}

CLAIM(samples_and_choices_are_of_the_checkpoint_that_resume_names) {
    static char first[1 << 16];
    CHECK_SH(0, "$P " TINY " --steps 4 --save-every 2 --keep 0 --out $W/named");
    put_text("choices.jsonl", "{\"ctx\": \"int\", \"endings\": [\" a\", \";\"], \"label\": 0}\n");
    const char* uses[] = {"--sample 'int ' --tokens 100 --temperature 1", "--eval $W/choices.jsonl", "--eval"};
    for (int i = 0; i < COUNT(uses); i++) {
        CHECK_SH(0, "$P --init $W/named/step-000002 --data $W/corpus %s | sed 's/, [0-9.]* s$//'", uses[i]);
        snprintf(first, sizeof first, "%.60000s", output);
        CHECK_SH(0, "$P --resume 2 --out $W/named --data $W/corpus %s | sed 's/, [0-9.]* s$//'", uses[i]);
        CHECK_STRING(output, first);
    }
    CHECK_SH(0, "$P --resume 2 --out $W/named %s --seed 5", uses[0]);
    CHECK(strncmp(output, "int ", 4) == 0 && strcmp(output, first) != 0);
    CHECK_REFUSED("--init", "$P --resume 2 --out $W/named --init $W/named/step-000004 --sample x");
}

PROGRAM_TEST {
    sh("mkdir $W/corpus && cp plan/*/*.c plan/*/*.h $W/corpus");  // a corpus that nobody edits meanwhile
}
