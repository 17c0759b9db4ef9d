// test_run_dirs.c - a run directory belongs to one run; what is in it survives other runs, signals, damage and pipes.
#include "data/checkpoint.h"
#include "data/run_dir.h"
#include "test/program.h"

#define SMALL                                                                                      \
    "--data $W/corpus --layers 1 --width 16 --heads 2 --context 32 --batch-tokens 64 --threads 1 " \
    "--eval-every 0 --sample-every 0 --dtype fp32"

static int has(const char* name) { return access(path_of(name), F_OK) == 0; }

// A run that goes on until it is told to stop, once it has saved something.
static pid_t endless(const char* out) {
    pid_t pid = start("$P " SMALL " --steps 1000000 --save-every 50 --out $W/%s", out);
    CHECK(comes(filled("%s/step-000050/DONE", out), 10));
    return pid;
}

// ---- one directory, one run

CLAIM(a_second_run_in_a_directory_names_the_first_and_leaves_it_alone) {
    char who[64];
    pid_t pid = endless("mine");
    snprintf(who, sizeof who, "in use by process %d on  & --out", (int)pid);
    CHECK_REFUSED(who, "$P " SMALL " --steps 3 --out $W/mine");
    CHECK_REFUSED(who, "$P --resume --out $W/mine");
    CHECK_REFUSED(who, "ln -s mine $W/alias && $P --resume --out $W/alias");
    CHECK_SH(0, "$P --sample x --tokens 3 --out $W/mine");  // reading disturbs nobody
    kill(pid, SIGTERM);
    CHECK(ended_within(pid, 10) == 128 + SIGTERM);
    read_background();
    CHECK_SAID("saved & !warning");
}

CLAIM(a_start_that_fails_leaves_no_directory) {
#define FAILS "$P " SMALL " --data $W/nothing-here"
    CHECK_SH(1, "mkdir $W/failed; cd $W/failed; " FAILS);
    CHECK_SH(0, "test -z \"$(ls $W/failed/runs)\"");
    CHECK(sh(FAILS " --out $W/failed/named") == 1 && !has("failed/named"));
    CHECK(sh("mkdir $W/failed/kept; " FAILS " --out $W/failed/kept") == 1 && has("failed/kept"));
}

CLAIM(a_file_of_another_with_the_name_of_the_marker_stays) {
    CHECK_SH(1, "mkdir $W/taken; echo 'a run of ten miles' > $W/taken/RUN; $P " SMALL " --out $W/taken");
    CHECK(strstr(errors, "taken/RUN") && sh("grep 'ten miles' $W/taken/RUN") == 0);
}

CLAIM(what_is_no_run_is_not_resumed_and_stays_as_it_is) {
    CHECK_REFUSED("--resume: & texts, which is no run",
                  "mkdir $W/texts; echo 'a b' > $W/texts/a.txt; $P --resume --out $W/texts");
    CHECK_SH(0, "test \"$(ls $W/texts)\" = a.txt");
}

CLAIM(what_a_killed_run_was_writing_goes_when_the_next_begins) {
    CHECK_SH(0, "$P " SMALL " --steps 2 --save-every 1 --out $W/litter");
    CHECK_SH(0,
             "cd $W/litter; touch report.html.1-2 report.html.old report.html.1-2x; mkdir step-000001.old.tmp; "
             "touch step-000001.old.tmp/SAVING; $P --resume --steps 3 --save-every 0 --out .");
    CHECK(!has("litter/report.html.1-2") && !has("litter/step-000001.old.tmp"));
    CHECK(has("litter/report.html.old") && has("litter/report.html.1-2x"));
}

CLAIM(pages_take_the_place_of_files_alone_and_reports_of_pipes_are_refused) {
    CHECK_REFUSED("plan.html: expected a file",
                  "mkdir $W/pages; cd $W/pages; mkfifo plan.html log.jsonl report.html; timeout -k 2 10 $P " SMALL
                  " --explain");
    CHECK_SH(0, "echo kept > $W/other; mkdir $W/paged; ln -s $W/other $W/paged/report.html; $P " SMALL
                " --steps 1 --save-every 0 --out $W/paged && grep kept $W/other && test -f $W/paged/report.html");
    CHECK_REFUSED("log.jsonl: expected a file", "timeout -k 2 10 $P --report $W/pages");
}

CLAIM(threads_are_those_of_openmps_variable) {
    const char *said[] = {"2", "3,1", "none"}, *device[] = {", 2 threads", ", 3 threads", "device"};
    for (int i = 0; i < COUNT(said); i++) {
        CHECK_SH(0,
                 "OMP_NUM_THREADS=%s $P --data $W/corpus --layers 1 --width 16 --heads 2 --context 32 "
                 "--batch-tokens 64 --steps 0 --out $W/threads-%d",
                 said[i], i);
        CHECK_SAID(device[i]);
    }
}

// ---- the newest

CLAIM(the_newest_run_is_the_one_that_was_written_last_whatever_its_number) {
    static const char* const ways[][2] = {
        {"$P --resume --out runs/1 --steps 6", ""},
        {"$P --resume --steps 8", "run     runs/1, from runs/1/step-000006"},
        {"rm -r runs/0; $P --resume --steps 10", "run     runs/1"},
        {"cp -r runs copies; rm -r runs; mv copies runs; $P --sample x --tokens 2", ""},
        {"$P --resume --steps 12", "run     runs/1"},
        {"$P " SMALL " --steps 2", "run     runs/3"}};
    CHECK_SH(0, "mkdir $W/newest; cd $W/newest; for s in 1 2 3; do $P " SMALL " --steps 4 --seed $s; done");
    for (int i = 0; i < COUNT(ways); i++) {
        CHECK_SH(0, "cd $W/newest; %s", ways[i][0]);
        CHECK_SAID(ways[i][1]);
    }
}

CLAIM(resume_from_goes_on_from_the_step_that_it_names) {
    CHECK_SH(0, "$P " SMALL " --steps 30 --save-every 10 --keep 0 --out $W/back");
    const char* hash = loss_hash();
    CHECK(sh("$P --resume step-000010 --out $W/back") == 0 && has_words(output, hash));
    CHECK_SH(0, "$P --resume $W/back/step-000020// --steps 25");
    CHECK(sh("$P --resume --out $W/back --steps 26") == 0 && has_words(output, "from & step-000025"));
    CHECK_REFUSED("no checkpoint of step 15", "$P --resume 15 --out $W/back");
    CHECK_REFUSED("step-000120", "$P --resume best --out $W/back");
}

// ---- damage

CLAIM(resume_falls_back_to_the_newest_whole_checkpoint_and_names_what_it_skipped) {
    CHECK_SH(0, "$P " SMALL " --steps 30 --save-every 10 --keep 3 --out $W/damage");
    const char* hash = loss_hash();
    CHECK_SH(0,
             "cp -r $W/damage $W/worse; printf '?' | dd of=$W/damage/step-000030/model.safetensors bs=1 seek=3000 "
             "conv=notrunc; rm $W/damage/step-000020/config.json");
    CHECK_SH(0, "$P --sample x --tokens 2 --out $W/damage");
    CHECK_SAID("step-000030/model.safetensors & step-000020/config.json");
    CHECK(has("damage/step-000030"));  // who only reads moves nothing
    CHECK(sh("$P --resume --out $W/damage") == 0 && has_words(output, hash));
    CHECK_SAID("from & step-000010 & warning & step-000030/model.safetensors: expected content of hash");
    CHECK(has("damage/step-000030.damaged") && has("damage/step-000020.damaged") && has("damage/step-000030/DONE"));
    CHECK_REFUSED("step-000030", "rm $W/worse/*/config.json; $P --resume --out $W/worse");
    CHECK(has("worse/step-000010") && has("worse/step-000030"));
}

static int add(void* context, const char* path, const char* name, Err err) {
    uint64_t bytes, hash;
    if (!strcmp(name, "SAVING")) return 0;
    return disk_hash(path, &bytes, &hash, err) ||
           checkpoint_add_file((CheckpointWriter*)context, name, bytes, hash, err);
}

// A checkpoint of that step like the newest, one value of which is not a number; whole otherwise.
static void add_diverged(const char* run, int64_t step, const char* file) {
    char err[ERR_BYTES], dir[600], path[CHECKPOINT_PATH];
    const float wrong = NAN;
    int64_t newest;
    CheckpointWriter w;
    snprintf(dir, sizeof dir, "%s/%s", work, run);
    CHECK(checkpoint_latest(dir, path, &newest, err) == 1);
    CHECK(checkpoint_begin(&w, dir, step, err) == 0);
    CHECK(shell("cd %s && cp $(ls | grep -v DONE) %s", path, w.dir) == 0);
    snprintf(path, sizeof path, "%.3000s/%s", w.dir, file);
    FILE* f = fopen(path, "r+b");
    CHECK(f && fseek(f, -40, SEEK_END) == 0 && fwrite(&wrong, sizeof wrong, 1, f) == 1 && fclose(f) == 0);
    CHECK(disk_visit(w.dir, add, &w, err) == 0 && checkpoint_commit(&w, 0, err) == 0);
}

CLAIM(a_checkpoint_that_is_not_finite_is_passed_over) {
    CHECK_SH(0, "$P " SMALL " --steps 20 --save-every 10 --out $W/nan");
    add_diverged("nan", 30, "optimizer-00000-of-00001.safetensors");
    add_diverged("nan", 40, "model.safetensors");
    CHECK_SH(0, "$P --resume --out $W/nan --steps 22");
    CHECK_SAID("step-000020 & step-000030/optimizer & step-000040/model & finite");
    CHECK(has("nan/step-000030.damaged") && has("nan/step-000022/DONE"));
}

// The newest of the steps 5, 10, ... whose loss is within a tenth of the least of them.
static int last_good_step(const char* run) {
    double loss[200], least = INFINITY;
    int n = log_values(run, "loss", loss, 200), good = 0;
    for (int i = 4; i < n; i += 5) least = fmin(least, loss[i]);
    for (int i = 4; i < n; i += 5) good = loss[i] <= 1.1 * least ? i + 1 : good;
    return good;
}

// Weight decay of more than 2 / lr makes weights grow without bound. With these numbers the step of the least loss, the
// oldest good one and the newest are three.
CLAIM(after_a_divergence_the_command_that_is_printed_works) {
    char command[512];
    CHECK_SH(1, "seq 1 4000 > $W/numbers.txt; $P " SMALL
                " --data $W/numbers.txt --seed 4 --steps 150 --schedule constant --save-every 5 --keep 0 --lr 0.9 "
                "--adamw decay=3 --warmup 100 --out $W/diverged");
    const char* at = strstr(errors, " --resume step-0000");
    CHECK_SAID(filled("finite & step 1 & --resume step-%06d", last_good_step("diverged")));
    if (!at) return;
    snprintf(command, sizeof command, "%.*s", (int)strcspn(at, "\n"), at);
    CHECK(strstr(command, "--lr 0.225"));
    CHECK(sh("$P %s", command) == 0 && strstr(output, "done at step 150"));
}

// ---- the log

CLAIM(a_new_run_moves_a_log_that_is_there_aside) {
#define SHORT "$P " SMALL " --save-every 0 "
    CHECK_SH(0, "mkdir $W/logs; echo 'felled an oak' > $W/logs/log.jsonl; " SHORT "--steps 3 --out $W/logs");
    CHECK_SAID("log.1.jsonl");
    CHECK_SH(0, "cd $W/logs; grep oak log.1.jsonl && test $(grep -c loss_hash log.jsonl) = 3");
    CHECK_SH(0, SHORT "--steps 2 --out $W/logs");
    CHECK_SH(0, "cd $W/logs; test $(grep -c loss_hash log.2.jsonl) = 3 && test $(grep -c loss_hash log.jsonl) = 2");
    CHECK_SH(0, "mkdir $W/links; ln -s ../logs/log.1.jsonl $W/links/log.jsonl; " SHORT "--steps 2 --out $W/links");
    CHECK_SH(0, "grep oak $W/logs/log.1.jsonl && test ! -L $W/links/log.jsonl");
}

CLAIM(a_resume_moves_superseded_lines_aside_and_keeps_what_it_cannot_read) {
    CHECK_SH(0, "$P " SMALL " --steps 12 --save-every 4 --keep 0 --out $W/lines");
    CHECK_SH(0,
             "cd $W/lines; cp log.jsonl ../lines.all; sed -i '3s/\"step\"/\"stEp\"/; 4s/^./?/' log.jsonl; printf "
             "'{\"step\": 3}\n{\"step\"' "
             ">> log.jsonl; $P --resume 8 --out .");
    CHECK_SAID("log.jsonl: 2 lines cannot be read, the first is line 3 & log.1.jsonl");
    CHECK_SH(0, "cd $W/lines; test $(grep -c loss_hash log.jsonl) = 12 && sed -n 3p log.jsonl | grep stEp");
    CHECK_SH(0,
             "cd $W/lines; sed -n '/\"step\": 9,/,$p' ../lines.all > want; test $(grep -c loss_hash want) = 4 && "
             "head -n $(wc -l < want) log.1.jsonl | cmp want && tail -c 7 log.1.jsonl | "
             "grep '{\"step\"'");
}

CLAIM(a_log_that_is_no_file_is_refused_at_once) {
    CHECK_REFUSED("fifo/log.jsonl: expected a file",
                  "mkdir $W/fifo; mkfifo $W/fifo/log.jsonl; timeout -k 2 10 $P " SMALL " --steps 3 --out $W/fifo");
}

// ---- signals and pipes

// Started by `launcher`, behind nohup and with a library that may take the signal; then a process's terminal closes.
static void nohup_goes_on(const char* launcher, const char* library) {
    char text[32] = "";
    CHECK_SH(0, "rm -rf $W/nohup $W/pid");
    pid_t pid = start("%s sh -c 'echo $$ > $W/pid; exec nohup env LD_PRELOAD=%s %s " SMALL
                      " --steps 1000000 --save-every 50 --out $W/nohup > $W/said 2>&1'",
                      launcher, library, program);
    for (int step = 50; step <= 150; step += 50) {
        CHECK(comes(filled("nohup/step-%06d/DONE", step), 20));
        read_text(path_of("pid"), text, sizeof text);
        if (step == 50) CHECK(atoi(text) > 1 && kill(atoi(text), SIGHUP) == 0);
    }
    kill(pid, SIGTERM);
    CHECK(ended_within(pid, 10) == 128 + SIGTERM || *launcher);  // mpirun has a status of its own
}

// Some libraries of networks do so, when they are loaded or by MPI_Init.
CLAIM(nohup_goes_on_where_a_library_takes_the_signal) {
    static const char source[] =
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <signal.h>\n#include <unistd.h>\n"
        "static void on_hangup(int n) { _exit(7); }\n"
        "__attribute__((constructor)) static void take(void) { signal(SIGHUP, on_hangup); }\n"
        "int MPI_Init_thread(int* n, char*** v, int wanted, int* level) {\n"
        "    int (*next)(int*, char***, int, int*) = dlsym(RTLD_NEXT, \"MPI_Init_thread\");\n"
        "    int error = next(n, v, wanted, level);\n    take();\n    return error;\n}\n";
    write_text("take.c", source, sizeof source - 1);
    if (sh("cc -shared -fPIC -o $W/take.so $W/take.c -ldl")) SKIP("no C compiler here");
    nohup_goes_on("", "$W/take.so");
    if (has_mpirun()) nohup_goes_on("mpirun --oversubscribe -n 2", "$W/take.so");
}

CLAIM(a_terminal_that_closes_saves_and_nohup_goes_on) {
    char err[ERR_BYTES], path[CHECKPOINT_PATH];
    int64_t step = 0;
    pid_t pid = endless("hangup");
    kill(pid, SIGHUP);
    CHECK(ended_within(pid, 10) == 128 + SIGHUP);
    read_background();
    const char* at = strstr(output, "stopped at step ");
    CHECK(at && checkpoint_latest(path_of("hangup"), path, &step, err) == 1 && atoll(at + 16) == step);
    nohup_goes_on("", "");
}

CLAIM(a_reader_that_ends_stops_the_run_with_a_checkpoint) {
    CHECK_SH(0, "{ $P " SMALL " --steps 1000000 --save-every 0 --out $W/pipe; echo $? > $W/status; } | head -1");
    CHECK(sh("grep 141 $W/status") == 0 && sh("ls $W/pipe/step-*/DONE") == 0);
    CHECK_SH(0, "$P --resume --out $W/pipe --steps 2");
}

CLAIM(output_that_cannot_be_written_ends_with_a_status) {
    CHECK_REFUSED("standard output", "$P --help > /dev/full");
    CHECK_REFUSED("standard output", "$P " SMALL " --steps 2 --out $W/full > /dev/full");
    CHECK(has("full/step-000002/DONE"));
    CHECK_REFUSED("standard output", "$P --sample x --tokens 2 --out $W/full > /dev/full");
}

// ---- saves that fail

CLAIM(a_save_that_fails_is_tried_again_and_the_run_goes_on) {
    CHECK_SH(0,
             "mkdir -p $W/again/step-000010.tmp $W/again/step-000011.tmp; touch $W/again/step-000010.tmp/mine "
             "$W/again/step-000011.tmp/mine; $P " SMALL " --steps 30 --save-every 10 --keep 0 --out $W/again");
    CHECK_SAID("cannot save step 10 & again at step 11 & at step 13");
    CHECK(has("again/step-000013/DONE") && has("again/step-000020/DONE") && has("again/step-000030/DONE"));
    CHECK(has("again/step-000010.tmp/mine") && !has("again/step-000010"));
}

CLAIM(a_last_save_that_fails_goes_elsewhere_or_ends_with_a_status) {
    CHECK_SH(1,
             "mkdir -p $W/last/step-000006.tmp $W/spare; touch $W/last/step-000006.tmp/mine; TMPDIR=$W/spare $P " SMALL
             " --steps 6 --save-every 3 --out $W/last");
    CHECK(has("last/step-000003/DONE") && has_words(errors, "try 3 of 3 & is saved in "));
    CHECK_SH(0, "$P --resume --steps 8 --out $W/spare/ragged-last-*");
    CHECK_SAID("done at step 8");
    CHECK_SH(1, "rm -r $W/last/step-000003; TMPDIR=/proc/x $P " SMALL " --steps 6 --out $W/last");
    CHECK_SAID("nor elsewhere (/proc/x & step-000006.tmp");
}

// $W/last cannot take step 6. What somebody has put where it might go is left alone, and a directory of others passed
// by.
CLAIM(a_save_elsewhere_trusts_no_directory_of_others) {
    char run[] = "exec $P " SMALL " --steps 6 --out $W/last", dir[600] = "";
    CHECK_SH(1,
             "rm -rf $W/last $W/spare; mkdir -p $W/last/step-000006.tmp $W/spare; touch $W/last/step-000006.tmp/mine; "
             "export TMPDIR=$W/spare; sh -c 'mkdir -m 777 $TMPDIR/ragged-last-$$; %s --save-every 6'",
             run);
    CHECK_SH(0, "find $W/spare -maxdepth 1 -perm 777 -name 'ragged-last-*' -empty | grep .");
    CHECK_SH(0, "find $W/spare -maxdepth 1 -perm 700 -name 'ragged-last-*' -uid $(id -u) | grep .");
    CHECK_SH(1, "chmod 777 $W/spare; TMPDIR=$W/spare sh -c '%s --save-every 6'", run);
    const char* at = strstr(errors, " is saved in ");
    CHECK(at && sscanf(at, " is saved in %599[^,]", dir) == 1 && !strncmp(dir, "/tmp/ragged-last-", 17));
    if (!strncmp(dir, "/tmp/ragged-last-", 17)) CHECK_SH(0, "rm -r %s", dir);
    CHECK_SH(0,
             "echo kept > $W/victim; ln -s victim $W/link; $P --init $W/spare/ragged-last-*/step-000006 "
             "--data $W/corpus --batch-tokens 64 --dump-grads $W/link");
    CHECK_SH(0, "grep -qx kept $W/victim && test ! -L $W/link");
}

CLAIM(the_hint_after_all_steps_names_more_than_were_done) {
    CHECK_SH(0, "$P " SMALL " --steps 10 --out $W/hint && $P --resume --steps 4 --out $W/hint");
    CHECK_SAID("--steps 20 & !--steps 8");
}

PROGRAM_TEST {
    char path[4096];
    CHECK(realpath(program, path) != NULL);
    setenv("P", path, 1);
    sh("mkdir $W/corpus && cp plan/*/b*.c plan/*/s*.c $W/corpus");
}
