// test_checkpoint_jobs.c - a save that fails on one rank of several: nothing of it stays, every rank ends, the words
// name the rank, and the checkpoint before it is as it was. Started alone; it starts mpirun itself.
#include "data/checkpoint.h"
#include "test/program.h"

#define TINY                                                                                                    \
    "--data $W/corpus --layers 2 --width 32 --heads 2 --context 64 --batch-tokens 256 --eval-every 0 --keep 0 " \
    "--sample-every 0 --threads 1 --dtype bf16 --save-every 2 --timeout 60"
#define MPIRUN "cd $W && mpirun --oversubscribe "

enum { RANKS = 3 };

// Runs RANKS ranks of the same options, one of them behind a prefix. The exit status.
static int job(int odd_one, const char* placement, const char* prefix, const char* options) {
    char parts[RANKS][2048];
    for (int r = 0; r < RANKS; r++)
        snprintf(parts[r], sizeof parts[r], "-n 1 %s %s $TRAIN %s", r == odd_one ? placement : "",
                 r == odd_one ? prefix : "", options);
    return sh(MPIRUN "%s : %s : %s", parts[0], parts[1], parts[2]);
}

static void begin_run(const char* name, int zero) {
    CHECK(job(-1, "", "", filled(TINY " --zero %d --steps 2 --out %s", zero, name)) == 0);
}

static void check_untouched(const char* name) {
    char err[ERR_BYTES];
    CHECK(checkpoint_verify(filled("%s/%s/step-000002", work, name), err) == 0);
    CHECK(sh("ls -d $W/%s/step-*", name) == 0 && !strstr(output, "step-000004"));
}

// A file there may not grow beyond 32 KiB; log.jsonl and the small files do not.
CLAIM(a_disk_that_is_full_for_one_rank_fails_the_save_for_all) {
    static const char* const files[] = {"rank 0: full/step-000004.tmp/model.safetensors",
                                        "rank 1: full/step-000004.tmp/optimizer-00001-of-00003.safetensors",
                                        "rank 2: full/step-000004.tmp/optimizer-00002-of-00003.safetensors"};
    char limit[256];
    if (!has_mpirun()) SKIP("mpirun is not installed");
    // A signal that is ignored stays so: write returns EFBIG.
    snprintf(limit, sizeof limit, "sh -c 'trap \"\" XFSZ; ulimit -f 64; exec \"$@\"' x");
    for (int r = 0; r < RANKS; r++) {
        CHECK_SH(0, "rm -rf $W/full");
        begin_run("full", r == 1 ? 1 : 3);
        CHECK(job(r, "", limit, "--resume --steps 4 --threads 1 --out full") != 0 && has_words(errors, files[r]));
        CHECK_SAID(
            "cannot save step 4 & cannot write: File too large & nor elsewhere & older checkpoints are untouched");
        check_untouched("full");
    }
    CHECK(job(-1, "", "", "--resume --steps 4 --threads 1 --out full") == 0);
    CHECK_SH(0, "test -e $W/full/step-000004/DONE");
}

CLAIM(a_rank_that_does_not_see_the_directory_says_what_to_share) {
    if (!has_mpirun()) SKIP("mpirun is not installed");
    CHECK_SH(0, "mkdir $W/elsewhere");
    CHECK(job(2, "-wdir $W/elsewhere", "", TINY " --steps 2 --out apart") != 0);
    CHECK_SAID("rank 2: apart/step-000002.tmp: expected the directory & all nodes must share the file system of --out");
    CHECK(sh("ls -d $W/apart/step-* $W/elsewhere/apart") != 0 && !strstr(output, "step-000002"));
}

// A directory of the same name on a machine's own disk: only what rank 0 finds counts.
CLAIM(a_rank_that_writes_elsewhere_is_found_out) {
    if (!has_mpirun()) SKIP("mpirun is not installed");
    CHECK_SH(0, "mkdir -p $W/own/away/step-000002.tmp");
    CHECK(job(1, "-wdir $W/own", "", TINY " --steps 2 --out away") != 0);
    CHECK_SAID(
        "away/step-000002.tmp/optimizer-00001-of-00003.safetensors & all nodes must share the file system of --out");
    CHECK(sh("ls -d $W/away/step-*") != 0);
}

CLAIM(all_ranks_fall_back_to_the_checkpoint_that_rank_0_finds_whole) {
    if (!has_mpirun()) SKIP("mpirun is not installed");
    begin_run("back", 1);
    CHECK(job(-1, "", "", "--resume --steps 6 --threads 1 --out back") == 0);
    CHECK_SH(0,
             "printf '?' | dd of=$W/back/step-000006/optimizer-00002-of-00003.safetensors bs=1 seek=3000 "
             "conv=notrunc; rm $W/back/step-000004/state.json");
    CHECK(job(-1, "", "", "--resume --steps 6 --threads 1 --out back") == 0);
    CHECK_SAID("step-000006/optimizer-00002 & step-000004/state.json & from back/step-000002");
    CHECK_SH(0, "ls -d $W/back/step-000006.damaged $W/back/step-000006");
}

PROGRAM_TEST {
    char here[2048] = "";  // from any directory
    if (program[0] != '/' && getcwd(here, sizeof here - 1)) strcat(here, "/");
    setenv("TRAIN", filled("%s%.2000s", here, program), 1);
    sh("mkdir $W/corpus && cp plan/*/*.c plan/*/*.h $W/corpus");
}
