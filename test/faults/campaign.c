// campaign.c - a run in which one call fails, or that is killed beside one, for every call that it makes: it ends by
// itself, names the cause, and whatever it has called saved is there for the next one.
//
//   build/release/test/faults/campaign build/release/train_faults
#include "test/faults/cases.h"

enum { STEPS = 4, MORE_STEPS = 6 };

typedef enum Phase { STARTING, RESUMING } Phase;  // which of the two runs meets the fault

static const char* const arguments[] = {OPTIONS "--steps 4 --save-every 2 --out $W/run",
                                        "--resume --steps 6 --save-every 1 --threads 1 --out $W/run"};
static char undisturbed[2][17];  // loss hashes
static char* counted[2];         // the injector's log of undisturbed runs

static const char* const phase_names[] = {"starting", "resuming"};

// ---- a case

// What is in the run's directory before the phase.
static void prepare(Phase phase) {
    setting = phase == STARTING ? "rm -rf $W/run" : "rm -rf $W/run; cp -a $W/whole $W/run";
    sh("%s", setting);
}

// Lines of text that begin, or with `but` do not begin, with start.
static int count_lines(const char* text, const char* start, int but) {
    int n = 0;
    for (; *text; text += strcspn(text, "\n"), text += *text == '\n')
        n += (strncmp(text, start, strlen(start)) != 0) == but;
    return n;
}

// (a), (b): it ended by itself, either as an undisturbed run or with one line that says why; before it warnings.
static void judge_end(Phase phase, const char* cause, int names_file) {
    const char* where = phase_names[phase];
    int saved_elsewhere = strstr(errors, " is saved in ") != NULL;
    if (hung) complain("%s: it hung", where);
    else if (status > 1) complain("%s: it crashed", where);
    else if (count_lines(errors, "train: ", 1)) complain("%s: stderr has other lines", where);
    else if (status == 0 && strcmp(loss_hash(), undisturbed[phase]))
        complain("%s: it ended well with other losses: %s, expected %s", where, loss_hash(), undisturbed[phase]);
    else if (count_lines(errors, "train: warning: ", 1) != (status == 1 && !saved_elsewhere))
        complain("%s: expected one line if it failed, else none", where);
    else if (status == 1 && !strstr(errors, cause)) complain("%s: it does not name \"%s\"", where, cause);
    else if (status == 1 && names_file && !strstr(errors, work)) complain("%s: it names no file", where);
}

// The run's directory after a save: nothing but checkpoints that are whole, at most --keep, and the run's own files.
static void judge_directory(Phase phase) {
    sh("cd $W/run && for f in *; do case $f in *tmp*|*.old*) echo $f;; step-*) test -f $f/DONE || echo $f;; esac; done;"
       "test $(ls -d step-* | wc -l) -le 2 || echo too many: step-*; ls -A | grep '^[.]'");
    if (output[0]) complain("%s: after the next save there is: %s", phase_names[phase], output);
}

// log.jsonl: every step once, in order.
static void judge_log(Phase phase) {
    double steps[64];
    int n = log_values("run", "step", steps, 64), expected = phase == STARTING ? STEPS : MORE_STEPS;
    int right = n == expected;
    for (int i = 0; i < n && right; i++) right = steps[i] == i + 1;
    if (!right) complain("%s: log.jsonl has %d steps, expected 1 to %d", phase_names[phase], n, expected);
}

// (c), (d): a run without faults goes on from the last checkpoint that was called saved in dir, or a newer one, to the
// losses of an undisturbed run; where there is none, --resume says so and a new run starts in the same place.
static void judge_what_is_left(Phase phase, int64_t reported, const char* dir) {
    char saved_in[600];
    const char* where = phase_names[phase];
    if (phase == RESUMING && reported < STEPS) reported = STEPS;
    run("", "--resume --threads 1 --out %s %s", dir, phase == STARTING ? "" : "--steps 6 --save-every 1");
    int64_t from = resumed_step();
    int begins_anew = status == 1 && reported < 0 &&
                      (strstr(errors, "no complete checkpoint") || strstr(errors, "no such directory"));
    if (begins_anew) run("", "%s", arguments[phase]);
    if (status) complain("%s: what it left cannot be continued, which ends with", where);
    else if (!begins_anew && from < reported)
        complain("%s: step %" PRId64 " was saved, but the next run goes on from %" PRId64, where, reported, from);
    else if (strcmp(loss_hash(), undisturbed[phase]))
        complain("%s: the next run ends with losses %s, expected %s", where, loss_hash(), undisturbed[phase]);
    else if (strstr(dir, "/elsewhere/") == NULL) {
        judge_log(phase);
        if (reported_step(saved_in) >= 0) judge_directory(phase);
    }
}

// A call that fails once.
static void try_fault(Phase phase, const char* with_fault, const char* cause, int names_file) {
    char dir[600] = "$W/run";
    prepare(phase);
    run(with_fault, "%s", arguments[phase]);
    int64_t reported = reported_step(dir);
    judge_end(phase, cause, names_file);
    judge_what_is_left(phase, reported, dir);
}

static long calls_of(Phase phase, const char* kind) { return count_of(counted[phase], kind, -1); }

// Calls that are cut short, as any signal and many file systems do it, are no errors.
static void try_harmless(Phase phase, const char* with_fault) {
    prepare(phase);
    run(with_fault, "%s", arguments[phase]);
    if (hung || status || errors[0] || strcmp(loss_hash(), undisturbed[phase]))
        complain("%s: it ended otherwise than undisturbed", phase_names[phase]);
}

static void try_kill(Phase phase, const char* with_fault) {
    char dir[600] = "$W/run";
    prepare(phase);
    run(with_fault, "%s", arguments[phase]);
    int64_t reported = reported_step(dir);
    if (status != 128 + SIGKILL) complain("%s: the kill did not come", phase_names[phase]);
    judge_what_is_left(phase, reported, dir);
}

// Each call of the kind fails once.
static void fail_each(const char* kind, const char* what, const char* cause, int names_file) {
    char with_fault[128];
    long tried = 0;
    for (Phase phase = STARTING; phase <= RESUMING; phase++) {
        long n = calls_of(phase, kind);
        for (long i = 0; i < cases_of(n); i++, tried++) {
            snprintf(with_fault, sizeof with_fault, "%s:%ld:%s", kind, case_at(i, n), what);
            try_fault(phase, with_fault, cause, names_file);
        }
    }
    if (!tried) test_skip_reason = "the program makes no such call";
}

static void a_failed_allocation_is_named_and_loses_nothing(void) { fail_each("alloc", "ENOMEM", "memory", 0); }
static void a_failed_thread_is_named_and_loses_nothing(void) { fail_each("thread", "EAGAIN", "thread", 0); }
static void a_failed_open_is_named_and_loses_nothing(void) { fail_each("open", "EMFILE", "open files", 1); }
static void a_failed_read_is_named_and_loses_nothing(void) { fail_each("read", "EIO", "Input/output error", 1); }
static void a_failed_write_is_named_and_loses_nothing(void) { fail_each("write", "ENOSPC", "No space left", 1); }
static void a_failed_sync_is_named_and_loses_nothing(void) { fail_each("sync", "EIO", "Input/output error", 1); }
static void a_failed_rename_is_named_and_loses_nothing(void) { fail_each("rename", "EIO", "Input/output error", 1); }
static void a_failed_close_is_named_and_loses_nothing(void) { fail_each("close", "EIO", "Input/output error", 1); }
static void a_failed_mkdir_is_named_and_loses_nothing(void) { fail_each("mkdir", "ENOSPC", "No space left", 1); }
static void a_failed_removal_is_named_and_loses_nothing(void) { fail_each("remove", "EACCES", "Permission denied", 1); }
static void a_failed_look_at_a_name_loses_nothing(void) { fail_each("stat", "EIO", "", 1); }
static void a_failed_lock_is_named_and_loses_nothing(void) { fail_each("lock", "ENOLCK", "No locks available", 1); }

// From the n-th write on, for ever, or for the next few: somebody has made room.
static void fill_disk(const char* format, long next) {
    char with_fault[128];
    for (Phase phase = STARTING; phase <= RESUMING; phase++) {
        long n = calls_of(phase, "write");
        for (long i = 0; i < cases_of(n); i++) {
            long at = case_at(i, n);
            snprintf(with_fault, sizeof with_fault, format, at, at + next);
            try_fault(phase, with_fault, "No space left", 1);
        }
    }
}

static void a_full_disk_is_named_and_loses_nothing(void) { fill_disk("write:%ld+:ENOSPC", 0); }
static void a_disk_that_is_full_for_a_while_loses_nothing(void) { fill_disk("write:%ld-%ld:ENOSPC", 30); }

static void calls_that_are_cut_short_change_nothing(void) {
    static const char* const cuts[][2] = {{"read", "SHORT"}, {"read", "EINTR"}, {"write", "SHORT"}, {"write", "EINTR"}};
    char with_fault[128];
    for (Phase phase = STARTING; phase <= RESUMING; phase++)
        for (int k = 0; k < COUNT(cuts); k++) {
            long n = calls_of(phase, cuts[k][0]);
            for (long i = 0; i < cases_of(n); i++) {
                snprintf(with_fault, sizeof with_fault, "%s:%ld:%s", cuts[k][0], case_at(i, n), cuts[k][1]);
                try_harmless(phase, with_fault);
            }
        }
}

// Every file operation separates two states of the disk.
static void a_kill_beside_any_call_loses_nothing_that_was_saved(void) {
    static const char* const changes[] = {"open", "write", "sync", "rename", "close", "mkdir", "remove"};
    char with_fault[128];
    for (Phase phase = STARTING; phase <= RESUMING; phase++)
        for (int k = 0; k < COUNT(changes); k++) {
            long n = calls_of(phase, changes[k]);
            for (long i = 0; i < 2 * cases_of(n); i++) {
                snprintf(with_fault, sizeof with_fault, "%s:%ld:%s", changes[k], case_at(i / 2, n),
                         i % 2 ? "KILLED" : "KILL");
                try_kill(phase, with_fault);
            }
        }
}

// Of all that a program may call for them, what this one calls is wrapped.
static void every_call_for_memory_files_and_threads_can_be_made_to_fail(void) {
    static const char memory[] =
        ".*alloc|.*memalign|v?asprintf|str.?dup|.*memstream|fmemopen|mmap(64)?|mremap|"
        "pthread_create";
    static const char names[] =
        "f?d?open(64|at|dir)?|fdopendir|freopen(64)?|creat|mk[a-z]*temp|tmpfile|scandir|nftw|"
        "glob|mkdir(at)?|rmdir|rename(at2?)?|link(at)?|symlink|unlink(at)?|remove|"
        "l?f?stat(at)?(64)?|access|faccessat";
    static const char content[] =
        "p?(read|write)v?(64)?|readdir|fread|fgets|getline|getdelim|f?truncate(64)?|"
        ".*fallocate|copy_file_range|sendfile|fsync|fdatasync|msync|sync|flock|lockf|close|"
        "fclose|fflush";
    if (sh("command -v nm")) SKIP("nm is not installed");
    sh("at=$(dirname %s); nm -u $at/ragged.a $at/train_gpt.o | sed -n 's/^ *U //p' | grep -xE '(%s|%s|%s)' > $W/used; "
       "nm %s | sed -n 's/.* T __wrap_//p' > $W/wrapped; grep -vxFf $W/wrapped $W/used",
       program, memory, names, content, program);
    CHECK_STRING(output, "");
    CHECK(sh("grep -qx write $W/used") == 0);
}

// Moments that no call marks: computing, printing, the beginning and the end of the process.
static void a_kill_at_any_time_loses_nothing_that_was_saved(void) {
    enum { MOMENTS = 100 };
    for (Phase phase = STARTING; phase <= RESUMING; phase++) {
        double started = now();
        prepare(phase);
        run("", "%s", arguments[phase]);
        double whole = now() - started;
        for (long i = 0; i < cases_of(MOMENTS); i++) {
            char dir[600] = "$W/run";
            prepare(phase);
            snprintf(told, sizeof told, "      killed after %.1f ms\n",
                     1e3 * whole * (double)case_at(i, MOMENTS) / MOMENTS);
            pid_t pid = launch(0, arguments[phase]);
            usleep((useconds_t)(1e6 * whole * (double)case_at(i, MOMENTS) / MOMENTS));
            kill(pid, SIGKILL);
            await(pid, 0);
            int64_t reported = reported_step(dir);
            judge_what_is_left(phase, reported, dir);
        }
    }
}

int main(int argc, char** argv) {
    campaign_begin(argc, argv);
    for (Phase phase = STARTING; phase <= RESUMING; phase++) {
        if (run("", "%s", arguments[phase])) complain("an undisturbed run fails");
        snprintf(undisturbed[phase], 17, "%s", loss_hash());
        counted[phase] = strdup(log_text);
        if (phase == STARTING) sh("cp -a $W/run $W/whole");
    }
    RUN(every_call_for_memory_files_and_threads_can_be_made_to_fail);
    RUN(a_failed_allocation_is_named_and_loses_nothing);
    RUN(a_failed_thread_is_named_and_loses_nothing);
    RUN(a_failed_open_is_named_and_loses_nothing);
    RUN(a_failed_read_is_named_and_loses_nothing);
    RUN(a_failed_write_is_named_and_loses_nothing);
    RUN(a_failed_sync_is_named_and_loses_nothing);
    RUN(a_failed_rename_is_named_and_loses_nothing);
    RUN(a_failed_close_is_named_and_loses_nothing);
    RUN(a_failed_mkdir_is_named_and_loses_nothing);
    RUN(a_failed_removal_is_named_and_loses_nothing);
    RUN(a_failed_look_at_a_name_loses_nothing);
    RUN(a_failed_lock_is_named_and_loses_nothing);
    RUN(a_full_disk_is_named_and_loses_nothing);
    RUN(a_disk_that_is_full_for_a_while_loses_nothing);
    RUN(calls_that_are_cut_short_change_nothing);
    RUN(a_kill_beside_any_call_loses_nothing_that_was_saved);
    RUN(a_kill_at_any_time_loses_nothing_that_was_saved);
    return campaign_end();
}
