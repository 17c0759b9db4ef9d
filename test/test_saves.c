// test_saves.c - a checkpoint is written while training goes on: what it holds, what steps wait for, when it is due.
// Arguments: the trainer with faults (test/faults/inject.c).
#include "test/numbers.h"
#include "test/program.h"

// 0.2 s for each write of one rank's optimizer state.
#define SLOW "FAULT=write:1+:SLOW FAULT_PLACE=optimizer-0000%d FAULT_RANK=%d "
#define SLOW_ALONE "FAULT=write:1+:SLOW FAULT_PLACE=optimizer "
#define SMALL                                                                                                  \
    "--data $W/corpus --layers 2 --width 32 --heads 2 --context 64 --batch-tokens 256 --threads 1 --warmup 0 " \
    "--schedule "                                                                                              \
    "constant "                                                                                                \
    "--eval-every 0 --sample-every 0 --dtype bf16 --keep 0 "

// Of the save event of a step in a run's log.
static double told(const char* run, int step, const char* member) {
    CHECK_SH(0, "grep '\"save\", \"at\": %d,' $W/%s/log.jsonl | sed 's/.*\"%s\": \\([0-9.]*\\).*/\\1/'", step, run,
             member);
    return atof(output);
}

// How long it was written while training went on.
static double ms_apart(const char* run, int step) {
    return 1e3 * told(run, step, "save_seconds") - told(run, step, "save_blocked_ms");
}

static int64_t line_of(const char* run, const char* words) {
    sh("grep -n '%s' $W/%s/log.jsonl | cut -d: -f1", words, run);
    return atoll(output);
}

static void check_same_tensors(const char* a, const char* b, int step) {
    CHECK_SH(0, "cd $W; for f in %s/step-%06d/*.safetensors; do cmp $f %s/step-%06d/${f##*/} || exit 1; done", a, step,
             b, step);
}

// The file of step 300 is written while steps change what it holds; a run from it comes to the same end.
CLAIM(a_checkpoint_is_of_its_step_however_long_writing_takes) {
    CHECK_SH(0, "$P " SMALL "--steps 300 --out $W/short");
    CHECK_SH(0, SLOW_ALONE "$P " SMALL "--steps 590 --save-every 300 --out $W/slow | grep -o 'loss hash.*' > $W/hash");
    check_same_tensors("short", "slow", 300);
    CHECK(line_of("slow", "\"step\": 302,") < line_of("slow", "\"save\", \"at\": 300,"));
    CHECK(ms_apart("slow", 300) > 150 && ms_apart("slow", 590) < 1);
    CHECK_SH(0, "$P --resume 300 --out $W/slow | grep -o 'loss hash.*' | cmp $W/hash");
}

// One save waits for the one before; the last one of the run is not left behind.
CLAIM(no_save_is_lost_where_all_are_slow) {
    CHECK_SH(0, SLOW_ALONE "$P " SMALL "--steps 4 --save-every 1 --out $W/all");
    CHECK_SH(
        0, "ls -d $W/all/step-00000[1234] && ! ls -d $W/all/*.tmp && test $(grep -c '\"save\"' $W/all/log.jsonl) = 4");
    CHECK(told("all", 2, "save_seconds") > 0.2 && told("all", 4, "save_blocked_ms") > 200);
    CHECK_SH(0,
             "for s in 1 2 3; do cp -r $W/all $W/from$s && $P --resume $s --out $W/from$s --steps 4 | grep -o 'loss "
             "hash.*'; done | uniq | wc -l");
    CHECK_STRING(output, "1\n");
}

// Half of what --memory grants holds the state, or the state and a copy.
CLAIM(without_room_for_a_copy_it_is_written_at_once) {
    CHECK_SH(0, SLOW_ALONE "$P " SMALL "--steps 6 --save-every 4 --capacity 64 --memory 24M --out $W/tight --verbose");
    CHECK_SAID("memory & !checkpoint on its way");
    CHECK(told("tight", 4, "save_blocked_ms") > 199);
    CHECK(line_of("tight", "\"save\", \"at\": 4,") < line_of("tight", "\"step\": 5,"));
    CHECK_SH(0, "$P " SMALL "--steps 6 --save-every 4 --capacity 64 --out $W/wide --verbose");
    CHECK_SAID("checkpoint on its way");
    check_same_tensors("tight", "wide", 4);
}

// A rank that writes for long holds up none, and the marker waits for it.
CLAIM(no_rank_waits_for_another_that_writes) {
    if (!has_mpirun()) SKIP("mpirun is not installed");
    CHECK_SH(0, SLOW ON_RANKS "$P " SMALL "--zero 3 --plan static --steps 590 --save-every 300 --out $W/ranks", 1, 1,
             2);
    CHECK(line_of("ranks", "\"step\": 302,") < line_of("ranks", "\"save\", \"at\": 300,"));
    CHECK(ms_apart("ranks", 300) > 150);
    CHECK_SH(0, ON_RANKS "$P --resume 300 --out $W/ranks > $W/resumed", 2);
    CHECK_SH(
        0,
        "cd $W/ranks; grep -h '\"step\": 590,' log*.jsonl | sed 's/.*loss_hash\": \\([^,]*\\),.*/\\1/' | uniq | wc -l");
    CHECK_STRING(output, "1\n");
}

// From the beginning of one to that of the next.
CLAIM(a_save_is_due_after_so_many_seconds) {
    CHECK_SH(0, "$P " SMALL "--steps 3000 --save-every 1s --out $W/clock");
    CHECK_SAID("a checkpoint every 1 s");
    CHECK_SH(0,
             "grep '\"save\"' $W/clock/log.jsonl | sed 's/.*\"at\": \\([0-9]*\\),.*seconds\": \\([0-9.]*\\), "
             "\"time\": \\([0-9.]*\\).*/\\1 \\2 \\3/'");
    double before = 0, seconds, time;
    int step, n = 0;
    for (char *at = output, *end; sscanf(at, "%d %lf %lf", &step, &seconds, &time) == 3; at = end + 1, n++) {
        CHECK(n == 0 || step == 3000 || time - seconds - before > 0.99);
        before = time - seconds;
        if (!(end = strchr(at, '\n'))) break;
    }
    CHECK(n >= 2);
}

PROGRAM_TEST { sh("mkdir $W/corpus && cp plan/base/*.c $W/corpus"); }
