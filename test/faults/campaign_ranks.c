// campaign_ranks.c - three ranks, and a call of one of them fails, or it is killed: no rank hangs for longer than
// --timeout, one of them names the cause, and one process goes on from what was saved.
//
//   build/release/test/faults/campaign_ranks build/release/train_faults [OPTION...], e.g. --tp 3 --heads 4
#include "test/faults/cases.h"

enum { RANKS = 3, STEPS = 4 };

#define ARGUMENTS OPTIONS "--steps 4 --save-every 2 --out $W/run"
static char arguments[1024] = ARGUMENTS;
static double undisturbed;  // the last loss
static char* counted;       // the injector's log of an undisturbed run
static const char* alone;   // the program
static char ranked[5000];   // the command of three ranks of it

// Of the log: the line on the terminal has a mean of the steps of one start. Plans depend on measured times, so
// rounding may differ from run to run.
static double last_loss(const char* dir) {
    double steps[64], losses[64];
    const char* name = dir + (dir[0] == '$' ? strlen("$W/") : strlen(work) + 1);
    int n = log_values(name, "step", steps, 64);
    return log_values(name, "loss", losses, 64) == n && n > 0 && steps[n - 1] == STEPS ? losses[n - 1] : NAN;
}

static int is_ended_by_a_fault_of_its_own(void) {
    return strstr(errors, "(Segmentation fault)") || strstr(errors, "(Aborted)") || strstr(errors, "(Bus error)") ||
           strstr(errors, "Sanitizer");
}

// Whether some line of ours has the cause; NULL: nobody but mpirun can know.
static int is_named(const char* cause) {
    if (!cause) return strstr(errors, "mpirun noticed") != NULL;
    for (const char* line = errors; *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (!strncmp(line, "train: ", 7)) {
            const char* at = strstr(line, cause);
            if (at && at < line + strcspn(line, "\n")) return 1;
        }
    return 0;
}

static void judge_end(const char* cause) {
    if (hung) complain("it hung");
    else if (is_ended_by_a_fault_of_its_own()) complain("a rank crashed");
    else if (status == 0 && !(fabs(last_loss("$W/run") - undisturbed) < 1e-3))
        complain("it ended well with another loss: %g, expected %g", last_loss("$W/run"), undisturbed);
    else if (status && !is_named(cause)) complain("nobody names \"%s\"", cause ? cause : "the rank that was killed");
}

// One process goes on, by which only rounding differs.
static void judge_what_is_left(void) {
    char dir[600] = "$W/run";
    int64_t reported = reported_step(dir);
    int rank = fault_rank;
    program = alone, fault_rank = -1;
    int64_t from = go_on("ranks", reported, dir, "--tp 1", ARGUMENTS);
    if (from != -2 && !strstr(output, "done at step 4 of 4")) complain("the next run does not end at step 4");
    else if (from >= 0 && from < STEPS && !(fabs(last_loss(dir) - undisturbed) < 1e-3))
        complain("the next run ends with another loss: %g, expected %g", last_loss(dir), undisturbed);
    program = ranked, fault_rank = rank;
}

static const struct Failure {
    const char *claim, *kind, *what, *cause;
} failures[] = {
    {"a_failed_allocation_of_a_rank_is_named_and_hangs_no_other", "alloc", "ENOMEM", "memory"},
    {"a_failed_thread_of_a_rank_is_named_and_hangs_no_other", "thread", "EAGAIN", "thread"},
    {"a_failed_open_of_a_rank_is_named_and_hangs_no_other", "open", "EMFILE", "open files"},
    {"a_failed_read_of_a_rank_is_named_and_hangs_no_other", "read", "EIO", "Input/output"},
    {"a_failed_write_of_a_rank_is_named_and_hangs_no_other", "write", "ENOSPC", "No space"},
    {"a_failed_sync_of_a_rank_is_named_and_hangs_no_other", "sync", "EIO", "Input/output"},
    {"a_failed_close_of_a_rank_is_named_and_hangs_no_other", "close", "EIO", "Input/output"},
    {"a_failed_rename_is_named_and_hangs_no_rank", "rename", "EIO", "Input/output"},
    {"a_failed_mkdir_is_named_and_hangs_no_rank", "mkdir", "ENOSPC", "No space"},
    {"a_rank_killed_at_a_write_is_named_and_hangs_no_other", "write", "KILL", "has ended"},
    {"a_rank_killed_before_anybody_could_tell_hangs_no_other", "alloc", "KILL", NULL},
    {"a_rank_that_stands_still_ends_the_others_in_time", "read", "STOP", ""},
};

// Each call of the kind, in each of the ranks.
static void fail_each(const struct Failure* f) {
    for (fault_rank = 0; fault_rank < RANKS; fault_rank++) {
        FOR_EACH_CASE(count_of(counted, f->kind, fault_rank), f->kind, f->what) {
            prepare("rm -rf $W/run");
            run(with_fault, "%s", arguments);
            judge_end(f->cause);
            judge_what_is_left();
        }
    }
    fault_rank = -1;
}

int main(int argc, char** argv) {
    campaign_begin(argc, argv);
    for (int i = 2; i < argc; i++)
        snprintf(arguments + strlen(arguments), sizeof arguments - strlen(arguments), " %s", argv[i]);
    alone = program;
    snprintf(ranked, sizeof ranked, "test/ranks.sh %d %s", RANKS, program);
    program = ranked;
    if (run("", "%s", arguments)) complain("an undisturbed run fails"), exit(1);
    undisturbed = last_loss("$W/run");
    counted = strdup(log_text);
    for (int i = 0; i < COUNT(failures); i++) RUN_AS(failures[i].claim, fail_each(&failures[i]));
    return campaign_end();
}
