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
     "--dtype bf16 --recompute block --steps 4 --save-every 2 --keep 2 --eval-every 2,tokens=64 "
     "--sample-every 2 --tokens 4 --out $W/run",
     "", 4, -1, "", "", NULL},
    {"sampling", "rm -rf $W/run; cp -a $W/whole $W/run", "--sample a --tokens 4 --threads 1 --out $W/run", MORE, 6, 4,
     "", "", NULL},
};

#define FOR_EACH_PHASE(p) for (Phase* p = phases; p < phases + COUNT(phases); p++)
// The chosen calls of a kind in each phase, as with_fault.
#define FOR_EACH_CALL(p, kind, what) FOR_EACH_PHASE(p) FOR_EACH_CASE(count_of(p->log, kind, -1), kind, what)

// ---- a case

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

// (c), (d): a run without faults goes on from what was saved to the losses of an undisturbed run.
static void judge_what_is_left(const Phase* p) {
    char dir[600] = "$W/run", saved_in[600];
    int64_t reported = MAX(reported_step(dir), p->saved_before);
    if (go_on(p->name, reported, dir, p->next, p->arguments) == -2) return;
    if (strcmp(loss_hash_or_none(), p->next_hash))
        complain("%s: the next run ends with losses %s, expected %s", p->name, loss_hash_or_none(), p->next_hash);
    else if (strstr(dir, "/elsewhere/") == NULL) {
        judge_log(p);
        if (reported_step(saved_in) >= 0) judge_directory(p);
    }
}

static void run_phase(const Phase* p, const char* with) {
    prepare(p->setting);
    run(with, "%s", p->arguments);
}

// A call that fails once.
static void try_fault(const Phase* p, const char* cause, int names_file) {
    run_phase(p, with_fault);
    judge_end(p, cause, names_file);
    judge_what_is_left(p);
}

// ---- claims

static const struct Failure {
    const char *claim, *kind, *what, *cause;
    int names_file;
} failures[] = {
    {"a_failed_allocation_is_named_and_loses_nothing", "alloc", "ENOMEM", "memory", 0},
    {"a_failed_thread_is_named_and_loses_nothing", "thread", "EAGAIN", "thread", 0},
    {"a_failed_open_is_named_and_loses_nothing", "open", "EMFILE", "open files", 1},
    {"a_failed_read_is_named_and_loses_nothing", "read", "EIO", "Input/output error", 1},
    {"a_failed_write_is_named_and_loses_nothing", "write", "ENOSPC", "No space left", 1},
    {"a_failed_sync_is_named_and_loses_nothing", "sync", "EIO", "Input/output error", 1},
    {"a_failed_rename_is_named_and_loses_nothing", "rename", "EIO", "Input/output error", 1},
    {"a_failed_close_is_named_and_loses_nothing", "close", "EIO", "Input/output error", 1},
    {"a_failed_mkdir_is_named_and_loses_nothing", "mkdir", "ENOSPC", "No space left", 1},
    {"a_failed_removal_is_named_and_loses_nothing", "remove", "EACCES", "Permission denied", 1},
    {"a_failed_look_at_a_name_loses_nothing", "stat", "EIO", "", 1},
    {"a_failed_lock_is_named_and_loses_nothing", "lock", "ENOLCK", "No locks available", 1},
};

// Each call of the kind fails once.
static void fail_each(const struct Failure* f) {
    long tried = 0;
    FOR_EACH_CALL(p, f->kind, f->what) try_fault(p, f->cause, f->names_file), tried++;
    if (!tried) test_skip_reason = "the program makes no such call";
}

// From the n-th write on, for ever, or for the next few: somebody has made room.
static void fill_disk(const char* format, long next) {
    FOR_EACH_CALL(p, "write", "ENOSPC") {
        long at = atol(with_fault + strlen("write:"));
        snprintf(with_fault, sizeof with_fault, format, at, at + next);
        try_fault(p, "No space left", 1);
    }
}

// The run's own disk, and no other, from some write on: the last checkpoint lies elsewhere, and so do steps of the log.
CLAIM(a_run_whose_disk_stays_full_loses_no_step_and_no_line) {
    const Phase* p = &phases[0];
    char dir[600];
    double steps[64];
    setenv("FAULT_PLACE", "/run/", 1);
    prepare(p->setting);
    run("", "%s --steps 0 --save-every 0", p->arguments);
    long first = count_of(log_text, "write", -1) + 1, tried = 0;
    run_phase(p, "");
    long n = count_of(log_text, "write", -1) - first;
    for (long i = 0; i < cases_of(n); i++) {
        long at = first + case_at(i, n);  // half of that write is there, or nothing, and nothing of those behind it
        sh("rm -rf $W/elsewhere/* $W/both; mkdir $W/both");
        run_phase(p, filled("write:%ld:%s,write:%ld+:ENOSPC", at, i % 2 ? "ENOSPC" : "SHORT", at + 1));
        if (!strstr(errors, " is saved in ")) continue;  // all was saved before
        tried++;
        if (status != 1 || reported_step(dir) != p->steps) complain("it ends otherwise");
        sh("cd $W; for f in run/log.jsonl elsewhere/*/log.jsonl; do cat $f; echo; done | grep '}$' > both/log.jsonl");
        int found = log_values("both", "loss", steps, 64);
        if (found != p->steps || log_values("both", "step", steps, 64) != found)
            complain("its logs have %d steps, expected %d", found, p->steps);
        for (int s = 0; s < found; s++)
            if (steps[s] != s + 1) complain("its logs have step %g behind step %d", steps[s], s);
        run("", "--resume --threads 1 --out %s %s", dir, p->next);
        if (status || strcmp(loss_hash_or_none(), p->next_hash)) complain("what it left cannot be continued");
    }
    unsetenv("FAULT_PLACE");
    if (!tried) complain("no run was saved elsewhere");
}

// As any signal and many file systems do it.
CLAIM(calls_that_are_cut_short_change_nothing) {
    static const char* const cuts[][2] = {{"read", "SHORT"}, {"read", "EINTR"}, {"write", "SHORT"}, {"write", "EINTR"}};
    for (int k = 0; k < COUNT(cuts); k++) FOR_EACH_CALL(p, cuts[k][0], cuts[k][1]) {
            run_phase(p, with_fault);
            if (hung || status || errors[0] || strcmp(loss_hash_or_none(), p->hash))
                complain("%s: it ended otherwise than undisturbed", p->name);
        }
}

// Every file operation separates two states of the disk.
CLAIM(a_kill_beside_any_call_loses_nothing_that_was_saved) {
    static const char* const changes[] = {"open", "write", "sync", "rename", "close", "mkdir", "remove"};
    for (int k = 0; k < 2 * COUNT(changes); k++) FOR_EACH_CALL(p, changes[k / 2], k % 2 ? "KILLED" : "KILL") {
            run_phase(p, with_fault);
            if (status != 128 + SIGKILL) complain("%s: the kill did not come", p->name);
            judge_what_is_left(p);
        }
}

// Of all that a program may call for them, what this one calls is wrapped.
CLAIM(every_call_for_memory_files_and_threads_can_be_made_to_fail) {
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
CLAIM(a_log_line_or_a_save_that_fails_once_ends_no_run) {
    enum { TOLD = 4 };  // of the first four kinds: others also close and open what is only read
    static const char* const ways[][2] = {{"write", "ENOSPC"}, {"sync", "EIO"},    {"rename", "EIO"},
                                          {"mkdir", "ENOSPC"}, {"open", "EMFILE"}, {"close", "EIO"}};
    const Phase* p = &phases[0];
    char* start;
    prepare(p->setting);
    run("", "%s --steps 0", p->arguments);
    start = strdup(log_text);
    for (int k = 0; k < COUNT(ways); k++) {
        long first = count_of(start, ways[k][0], -1), n = count_of(p->log, ways[k][0], -1) - first;
        for (long i = 0; i < cases_of(n); i++) {
            run_phase(p, filled("%s:%ld:%s", ways[k][0], first + case_at(i, n), ways[k][1]));
            if (status || strcmp(loss_hash_or_none(), p->hash)) complain("%s: one failure ends the run", p->name);
            else if (k < TOLD && !strstr(errors, "train: warning: ")) complain("%s: nobody hears of it", p->name);
        }
    }
    free(start);
}

// Moments that no call marks: computing, printing, the beginning and the end of the process.
CLAIM(a_kill_at_any_time_loses_nothing_that_was_saved) {
    enum { MOMENTS = 100 };
    FOR_EACH_PHASE(p) {
        double started = now_seconds();
        run_phase(p, "");
        double whole = now_seconds() - started;
        for (long i = 0; i < cases_of(MOMENTS); i++) {
            double moment = whole * (double)case_at(i, MOMENTS) / MOMENTS;
            prepare(p->setting);
            snprintf(told, sizeof told, "      killed after %.1f ms\n", 1e3 * moment);
            pid_t pid = launch(0, p->arguments);
            usleep((useconds_t)(1e6 * moment));
            kill(pid, SIGKILL);
            await(pid, 0);
            judge_what_is_left(p);
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
             "--preset %s --arch %s --layers %d --width %d --heads %d --arch kv-heads=%d,head-size=%d,hidden=%d "
             "--arch theta=%g,tie=%s --context %d --vocab %d --batch-tokens 512 --dtype %s",
             draw(seed, 4, 1) ? "tiny" : "llama-tiny", archs[draw(seed, 5, 4)], draw(seed, 6, 2), width,
             width ? heads : 0, draw(seed, 7, 2) ? 0 : kv_heads, draw(seed, 9, 2) ? 0 : draw(seed, 10, 40),
             draw(seed, 11, 1) * draw(seed, 12, 200), draw(seed, 13, 1) * exp(20 * random_uniform(seed, 14) - 1),
             ties[draw(seed, 15, 2)], draw(seed, 16, 1) * (1 + draw(seed, 17, 299)),
             draw(seed, 18, 1) * (257 + draw(seed, 19, 300)), draw(seed, 20, 3) ? "fp32" : "bf16");
}

// Whatever is refused, is so before anything is trained.
CLAIM(a_model_of_any_shape_that_was_saved_is_read_again) {
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
    run_phase(p, "");
    int failed = status;
    snprintf(p->hash, sizeof p->hash, "%s", loss_hash_or_none());
    p->log = strdup(log_text);
    if (!failed && p == phases) sh("cp -a $W/run $W/whole");
    if (!failed) failed = run("", "--resume --threads 1 --out $W/run %s", p->next);
    snprintf(p->next_hash, sizeof p->next_hash, "%s", loss_hash_or_none());
    if (failed) printf("    %s: an undisturbed run fails: %s\n0 passed, 1 failed\n", p->name, errors);
    return failed;
}

int main(int argc, char** argv) {
    campaign_begin(argc, argv);
    FOR_EACH_PHASE(p) if (run_undisturbed(p)) return 1;
    run_claims();
    for (int i = 0; i < COUNT(failures); i++) RUN_AS(failures[i].claim, fail_each(&failures[i]));
    RUN_AS("a_full_disk_is_named_and_loses_nothing", fill_disk("write:%ld+:ENOSPC", 0));
    RUN_AS("a_disk_that_is_full_for_a_while_loses_nothing", fill_disk("write:%ld-%ld:ENOSPC", 30));
    return campaign_end();
}
