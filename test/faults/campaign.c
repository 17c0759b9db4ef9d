// campaign.c - a run in which one call fails, or that is killed beside one, for every call that it makes: it ends by
// itself, names the cause, and whatever it has called saved is there for the next one.
//
//   build/release/test/faults/campaign build/release/train_faults
#include "test/faults/cases.h"

// A run that meets the fault; what is there before it; what the next run, which meets none, is to do more.
typedef struct Phase {
    const char *name, *setting, *arguments, *next;
    int steps, saved_before;       // of the next run at its end; the step of a checkpoint that is there before
    char hash[17], next_hash[17];  // of losses, undisturbed
    char* log;                     // the injector's, undisturbed
} Phase;

#define MORE "--steps 6 --save-every 1"
static Phase phases[] = {
    {"starting", "rm -rf $W/run", OPTIONS "--steps 4 --save-every 2 --out $W/run", "", 4, -1, "", "", NULL},
    {"resuming", "rm -rf $W/run; cp -a $W/whole $W/run", "--resume --threads 1 --out $W/run " MORE, MORE, 6, 4, "", "",
     NULL},
    {"fine-tuning", "rm -rf $W/run",
     "--init $W/whole/step-000004 --data $W/lines.jsonl $W/corpus --val $W/held.txt --batch-tokens 64 --threads 1 "
     "--dtype bf16 --recompute block --steps 4 --save-every 2 --keep 2 --eval-every 2 --eval-tokens 64 "
     "--sample-every 2 --tokens 4 --out $W/run",
     "", 4, -1, "", "", NULL},
    {"sampling", "rm -rf $W/run; cp -a $W/whole $W/run", "--sample a --tokens 4 --threads 1 --out $W/run", MORE, 6, 4,
     "", "", NULL},
};

#define EACH_PHASE(p) (Phase* p = phases; p < phases + COUNT(phases); p++)

// ---- a case

static void prepare(const Phase* p) {
    setting = p->setting;
    sh("%s", setting);
}

static void continue_in(const Phase* p, const char* dir) { run("", "--resume --threads 1 --out %s %s", dir, p->next); }

// Lines of text that begin, or with `but` do not begin, with start.
static int count_lines(const char* text, const char* start, int but) {
    int n = 0;
    for (; *text; text += strcspn(text, "\n"), text += *text == '\n')
        n += (strncmp(text, start, strlen(start)) != 0) == but;
    return n;
}

// (a), (b): it ended by itself, either as an undisturbed run or with one line that says why; before it warnings.
static void judge_end(const Phase* p, const char* cause, int names_file) {
    const char* where = p->name;
    int saved_elsewhere = strstr(errors, " is saved in ") != NULL;
    if (hung) complain("%s: it hung", where);
    else if (status > 1) complain("%s: it crashed", where);
    else if (count_lines(errors, "train: ", 1)) complain("%s: stderr has other lines", where);
    else if (status == 0 && strcmp(loss_hash_or_none(), p->hash))
        complain("%s: it ended well with other losses: %s, expected %s", where, loss_hash_or_none(), p->hash);
    else if (count_lines(errors, "train: warning: ", 1) != (status == 1 && !saved_elsewhere))
        complain("%s: expected one line if it failed, else none", where);
    else if (status == 1 && !strstr(errors, cause)) complain("%s: it does not name \"%s\"", where, cause);
    else if (status == 1 && names_file && !strstr(errors, work)) complain("%s: it names no file", where);
}

// The run's directory after a save: nothing but checkpoints that are whole, at most --keep, and the run's own files.
static void judge_directory(const Phase* p) {
    sh("cd $W/run && for f in *; do case $f in *tmp*|*.old*) echo $f;; step-*) test -f $f/DONE || echo $f;; esac; done;"
       "test $(ls -d step-* | wc -l) -le 2 || echo too many: step-*; ls -A | grep '^[.]'");
    if (output[0]) complain("%s: after the next save there is: %s", p->name, output);
}

// log.jsonl: every step once, in order; an evaluation stands behind its step.
static void judge_log(const Phase* p) {
    double steps[64], losses[64];
    int n = log_values("run", "step", steps, 64), n_losses = log_values("run", "loss", losses, 64);
    int right = n_losses == p->steps && n > 0 && (steps[0] == 1 || (steps[0] == 0 && n > 1 && steps[1] == 1));
    for (int i = 1; i < n && right; i++) right = steps[i] == steps[i - 1] + 1 || steps[i] == steps[i - 1];
    if (!right) complain("%s: log.jsonl has %d steps, expected 1 to %d", p->name, n_losses, p->steps);
}

// (c), (d): a run without faults goes on from the last checkpoint that was called saved in dir, or a newer one, to the
// losses of an undisturbed run; where there is none, --resume says so and a new run starts in the same place.
static void judge_what_is_left(const Phase* p, int64_t reported, const char* dir) {
    char saved_in[600];
    reported = MAX(reported, p->saved_before);
    continue_in(p, dir);
    int64_t from = resumed_step();
    int begins_anew = status == 1 && reported < 0 &&
                      (strstr(errors, "no complete checkpoint") || strstr(errors, "no such directory"));
    if (begins_anew) run("", "%s", p->arguments);
    if (status) complain("%s: what it left cannot be continued, which ends with", p->name);
    else if (!begins_anew && from < reported)
        complain("%s: step %" PRId64 " was saved, but the next run goes on from %" PRId64, p->name, reported, from);
    else if (strcmp(loss_hash_or_none(), p->next_hash))
        complain("%s: the next run ends with losses %s, expected %s", p->name, loss_hash_or_none(), p->next_hash);
    else if (strstr(dir, "/elsewhere/") == NULL) {
        judge_log(p);
        if (reported_step(saved_in) >= 0) judge_directory(p);
    }
}

// A call that fails once.
static void try_fault(const Phase* p, const char* with_fault, const char* cause, int names_file) {
    char dir[600] = "$W/run";
    prepare(p);
    run(with_fault, "%s", p->arguments);
    int64_t reported = reported_step(dir);
    judge_end(p, cause, names_file);
    judge_what_is_left(p, reported, dir);
}

static long calls_of(const Phase* p, const char* kind) { return count_of(p->log, kind, -1); }

// Calls that are cut short, as any signal and many file systems do it, are no errors.
static void try_harmless(const Phase* p, const char* with_fault) {
    prepare(p);
    run(with_fault, "%s", p->arguments);
    if (hung || status || errors[0] || strcmp(loss_hash_or_none(), p->hash))
        complain("%s: it ended otherwise than undisturbed", p->name);
}

static void try_kill(const Phase* p, const char* with_fault) {
    char dir[600] = "$W/run";
    prepare(p);
    run(with_fault, "%s", p->arguments);
    int64_t reported = reported_step(dir);
    if (status != 128 + SIGKILL) complain("%s: the kill did not come", p->name);
    judge_what_is_left(p, reported, dir);
}

// Each call of the kind fails once.
static void fail_each(const char* kind, const char* what, const char* cause, int names_file) {
    char with_fault[128];
    long tried = 0;
    for
        EACH_PHASE(p) {
            long n = calls_of(p, kind);
            for (long i = 0; i < cases_of(n); i++, tried++) {
                snprintf(with_fault, sizeof with_fault, "%s:%ld:%s", kind, case_at(i, n), what);
                try_fault(p, with_fault, cause, names_file);
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
    for
        EACH_PHASE(p) {
            long n = calls_of(p, "write");
            for (long i = 0; i < cases_of(n); i++) {
                long at = case_at(i, n);
                snprintf(with_fault, sizeof with_fault, format, at, at + next);
                try_fault(p, with_fault, "No space left", 1);
            }
        }
}

static void a_full_disk_is_named_and_loses_nothing(void) { fill_disk("write:%ld+:ENOSPC", 0); }
static void a_disk_that_is_full_for_a_while_loses_nothing(void) { fill_disk("write:%ld-%ld:ENOSPC", 30); }

// The run's own disk, and no other, from some write on: the last checkpoint lies elsewhere, and so do steps of the log.
static void a_run_whose_disk_stays_full_loses_no_step_and_no_line(void) {
    const Phase* p = &phases[0];
    char with_fault[128], dir[600];
    double steps[64];
    setenv("FAULT_PLACE", "/run/", 1);
    prepare(p);
    run("", "%s --steps 0 --save-every 0", p->arguments);
    long first = count_of(log_text, "write", -1) + 1, tried = 0;
    prepare(p);
    run("", "%s", p->arguments);
    long n = count_of(log_text, "write", -1) - first;
    for (long i = 0; i < cases_of(n); i++) {
        long at = first + case_at(i, n);  // half of that write is there, or nothing, and nothing of those behind it
        snprintf(with_fault, sizeof with_fault, "write:%ld:%s,write:%ld+:ENOSPC", at, i % 2 ? "ENOSPC" : "SHORT",
                 at + 1);
        prepare(p);
        sh("rm -rf $W/elsewhere/* $W/both; mkdir $W/both");
        run(with_fault, "%s", p->arguments);
        if (!strstr(errors, " is saved in ")) continue;  // all was saved before
        tried++;
        if (status != 1 || reported_step(dir) != p->steps) complain("it ends otherwise");
        sh("cd $W; for f in run/log.jsonl elsewhere/*/log.jsonl; do cat $f; echo; done | grep '}$' > both/log.jsonl");
        int found = log_values("both", "loss", steps, 64);
        if (found != p->steps || log_values("both", "step", steps, 64) != found)
            complain("its logs have %d steps, expected %d", found, p->steps);
        for (int s = 0; s < found; s++)
            if (steps[s] != s + 1) complain("its logs have step %g behind step %d", steps[s], s);
        continue_in(p, dir);
        if (status || strcmp(loss_hash_or_none(), p->next_hash)) complain("what it left cannot be continued");
    }
    unsetenv("FAULT_PLACE");
    if (!tried) complain("no run was saved elsewhere");
}

static void calls_that_are_cut_short_change_nothing(void) {
    static const char* const cuts[][2] = {{"read", "SHORT"}, {"read", "EINTR"}, {"write", "SHORT"}, {"write", "EINTR"}};
    char with_fault[128];
    for
        EACH_PHASE(p)
    for (int k = 0; k < COUNT(cuts); k++) {
        long n = calls_of(p, cuts[k][0]);
        for (long i = 0; i < cases_of(n); i++) {
            snprintf(with_fault, sizeof with_fault, "%s:%ld:%s", cuts[k][0], case_at(i, n), cuts[k][1]);
            try_harmless(p, with_fault);
        }
    }
}

// Every file operation separates two states of the disk.
static void a_kill_beside_any_call_loses_nothing_that_was_saved(void) {
    static const char* const changes[] = {"open", "write", "sync", "rename", "close", "mkdir", "remove"};
    char with_fault[128];
    for
        EACH_PHASE(p)
    for (int k = 0; k < COUNT(changes); k++) {
        long n = calls_of(p, changes[k]);
        for (long i = 0; i < 2 * cases_of(n); i++) {
            snprintf(with_fault, sizeof with_fault, "%s:%ld:%s", changes[k], case_at(i / 2, n),
                     i % 2 ? "KILLED" : "KILL");
            try_kill(p, with_fault);
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

// What comes after the start: steps that are logged, and saves.
static void a_log_line_or_a_save_that_fails_once_ends_no_run(void) {
    enum { TOLD = 4 };  // of the first four kinds: others also close and open what is only read
    static const char* const ways[][2] = {{"write", "ENOSPC"}, {"sync", "EIO"},    {"rename", "EIO"},
                                          {"mkdir", "ENOSPC"}, {"open", "EMFILE"}, {"close", "EIO"}};
    const Phase* p = &phases[0];
    char with_fault[128];
    long first[COUNT(ways)];
    prepare(p);
    run("", "%s --steps 0", p->arguments);
    for (int k = 0; k < COUNT(ways); k++) first[k] = count_of(log_text, ways[k][0], -1);
    for (int k = 0; k < COUNT(ways); k++)
        for (long i = 0, n = calls_of(p, ways[k][0]) - first[k]; i < cases_of(n); i++) {
            snprintf(with_fault, sizeof with_fault, "%s:%ld:%s", ways[k][0], first[k] + case_at(i, n), ways[k][1]);
            prepare(p);
            run(with_fault, "%s", p->arguments);
            if (status || strcmp(loss_hash_or_none(), p->hash)) complain("%s: one failure ends the run", p->name);
            else if (k < TOLD && !strstr(errors, "train: warning: ")) complain("%s: nobody hears of it", p->name);
        }
}

// Moments that no call marks: computing, printing, the beginning and the end of the process.
static void a_kill_at_any_time_loses_nothing_that_was_saved(void) {
    enum { MOMENTS = 100 };
    for
        EACH_PHASE(p) {
            double started = now();
            prepare(p);
            run("", "%s", p->arguments);
            double whole = now() - started;
            for (long i = 0; i < cases_of(MOMENTS); i++) {
                char dir[600] = "$W/run";
                prepare(p);
                snprintf(told, sizeof told, "      killed after %.1f ms\n",
                         1e3 * whole * (double)case_at(i, MOMENTS) / MOMENTS);
                pid_t pid = launch(0, p->arguments);
                usleep((useconds_t)(1e6 * whole * (double)case_at(i, MOMENTS) / MOMENTS));
                kill(pid, SIGKILL);
                await(pid, 0);
                int64_t reported = reported_step(dir);
                judge_what_is_left(p, reported, dir);
            }
        }
}

// A number from 0 to `most`.
static int draw(uint64_t seed, uint64_t i, int most) { return (int)((most + 1) * random_uniform(seed, i)); }

// Of any architecture, of which some are refused at the start.
static void draw_model(char* options, size_t room, uint64_t seed) {
    static const char* const archs[] = {"preset", "gpt2", "llama", "qwen2", "qwen3"};
    static const char* const ties[] = {"preset", "yes", "no"};
    int heads = 1 + draw(seed, 1, 7), shared = 1 + draw(seed, 8, 3);
    int kv_heads = heads % shared ? shared : heads / shared;
    int width = draw(seed, 2, 5) ? 2 * heads * draw(seed, 3, 10) : draw(seed, 3, 160);
    snprintf(options, room,
             "--preset %s --arch %s --layers %d --width %d --heads %d --kv-heads %d --head-size %d --hidden %d "
             "--rope-theta %g --tie %s --context %d --vocab %d --batch-tokens 512 --dtype %s",
             draw(seed, 4, 1) ? "tiny" : "llama-tiny", archs[draw(seed, 5, 4)], draw(seed, 6, 2), width,
             width ? heads : 0, draw(seed, 7, 2) ? 0 : kv_heads, draw(seed, 9, 2) ? 0 : draw(seed, 10, 40),
             draw(seed, 11, 1) * draw(seed, 12, 200), draw(seed, 13, 1) * exp(20 * random_uniform(seed, 14) - 1),
             ties[draw(seed, 15, 2)], draw(seed, 16, 1) * (1 + draw(seed, 17, 299)),
             draw(seed, 18, 1) * (257 + draw(seed, 19, 300)), draw(seed, 20, 3) ? "fp32" : "bf16");
}

// Whatever is refused, is so before anything is trained.
static void a_model_of_any_shape_that_was_saved_is_read_again(void) {
    static const char* const uses[] = {"--resume --steps 2 --out $W/run", "--sample a --tokens 2 --out $W/run",
                                       "--eval --out $W/run", "--init $W/run/step-000001 --steps 1 --out $W/tuned"};
    char options[512], dir[600];
    int trained = 0, refused = 0;
    for (long i = 0; i < cases_of(400); i++) {
        draw_model(options, sizeof options, (uint64_t)case_at(i, 400));
        sh("rm -rf $W/run $W/tuned");
        run("", OPTIONS "%s --steps 1 --out $W/run", options);
        snprintf(told, sizeof told, "      export W=%s; %s\n", work, command);
        if (status == 1 && count_lines(errors, "train: ", 0) == 1 && reported_step(dir) < 0) {
            refused++;
            continue;
        }
        if (status) complain("it ends otherwise");
        for (int u = 0; u < COUNT(uses) && !status; u++)
            if (run("", "%s --data $W/corpus --threads 1 --eval-every 0 --sample-every 0", uses[u]))
                complain("it is saved, and %s fails", uses[u]);
        trained++;
    }
    printf("    %d trained, %d refused\n", trained, refused);
    if (cases_of(400) == 400 && (trained < 150 || refused < 50)) complain("too few of either");
}

static int run_undisturbed(Phase* p) {
    prepare(p);
    int failed = run("", "%s", p->arguments);
    snprintf(p->hash, sizeof p->hash, "%s", loss_hash_or_none());
    p->log = strdup(log_text);
    if (!failed && p == phases) sh("cp -a $W/run $W/whole");
    if (!failed) continue_in(p, "$W/run"), failed = status;
    snprintf(p->next_hash, sizeof p->next_hash, "%s", loss_hash_or_none());
    if (failed) printf("    %s: an undisturbed run fails: %s\n0 passed, 1 failed\n", p->name, errors);
    return failed;
}

int main(int argc, char** argv) {
    campaign_begin(argc, argv);
    for
        EACH_PHASE(p)
    if (run_undisturbed(p)) return 1;
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
    RUN(a_run_whose_disk_stays_full_loses_no_step_and_no_line);
    RUN(a_log_line_or_a_save_that_fails_once_ends_no_run);
    RUN(calls_that_are_cut_short_change_nothing);
    RUN(a_kill_beside_any_call_loses_nothing_that_was_saved);
    RUN(a_kill_at_any_time_loses_nothing_that_was_saved);
    RUN(a_model_of_any_shape_that_was_saved_is_read_again);
    return campaign_end();
}
