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
static char ranked[512];    // the command of three ranks of it

// Of the log: the line on the terminal has a mean of the steps of one start. Plans depend on measured times, so
// rounding may differ from run to run.
static double last_loss(const char* dir) {
    char path[1200], line[1 << 14];
    double loss = NAN;
    int in_work = !strncmp(dir, "$W", 2);
    snprintf(path, sizeof path, "%s%s/log.jsonl", in_work ? work : "", dir + 2 * in_work);
    FILE* file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "{\"step\": 4, \"loss\": %lf", &loss);
    if (file) fclose(file);
    return loss;
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
static void judge_what_is_left(int64_t reported, const char* dir) {
    program = alone;
    int rank = fault_rank;
    fault_rank = -1;
    run("", "--resume --threads 1 --tp 1 --out %s", dir);
    int64_t from = resumed_step();
    int begins_anew = status == 1 && reported < 0 &&
                      (strstr(errors, "no complete checkpoint") || strstr(errors, "no such directory"));
    if (begins_anew) run("", ARGUMENTS);
    if (status) complain("what it left cannot be continued, which ends with");
    else if (!begins_anew && from < reported)
        complain("step %" PRId64 " was saved, but the next run goes on from %" PRId64, reported, from);
    else if (!strstr(output, "done at step 4 of 4")) complain("the next run does not end at step 4");
    else if (!begins_anew && from < STEPS && !(fabs(last_loss(dir) - undisturbed) < 1e-3))
        complain("the next run ends with another loss: %g, expected %g", last_loss(dir), undisturbed);
    program = ranked;
    fault_rank = rank;
}

static void try_fault(const char* with_fault, const char* cause) {
    char dir[600] = "$W/run";
    setting = "rm -rf $W/run";
    sh("%s", setting);
    run(with_fault, "%s", arguments);
    judge_end(cause);
    int64_t reported = reported_step(dir);
    judge_what_is_left(reported, dir);
}

// Each call of the kind, in each of the ranks.
static void fail_each(const char* kind, const char* what, const char* cause) {
    char with_fault[128];
    for (fault_rank = 0; fault_rank < RANKS; fault_rank++) {
        long n = count_of(counted, kind, fault_rank);
        for (long i = 0; i < cases_of(n); i++) {
            snprintf(with_fault, sizeof with_fault, "%s:%ld:%s", kind, case_at(i, n), what);
            try_fault(with_fault, cause);
        }
    }
    fault_rank = -1;
}

static void a_failed_allocation_of_a_rank_is_named_and_hangs_no_other(void) { fail_each("alloc", "ENOMEM", "memory"); }
static void a_failed_thread_of_a_rank_is_named_and_hangs_no_other(void) { fail_each("thread", "EAGAIN", "thread"); }
static void a_failed_open_of_a_rank_is_named_and_hangs_no_other(void) { fail_each("open", "EMFILE", "open files"); }
static void a_failed_read_of_a_rank_is_named_and_hangs_no_other(void) { fail_each("read", "EIO", "Input/output"); }
static void a_failed_write_of_a_rank_is_named_and_hangs_no_other(void) { fail_each("write", "ENOSPC", "No space"); }
static void a_failed_sync_of_a_rank_is_named_and_hangs_no_other(void) { fail_each("sync", "EIO", "Input/output"); }
static void a_failed_close_of_a_rank_is_named_and_hangs_no_other(void) { fail_each("close", "EIO", "Input/output"); }
static void a_failed_rename_is_named_and_hangs_no_rank(void) { fail_each("rename", "EIO", "Input/output"); }
static void a_failed_mkdir_is_named_and_hangs_no_rank(void) { fail_each("mkdir", "ENOSPC", "No space"); }
static void a_killed_rank_is_named_and_hangs_no_other(void) {
    fail_each("write", "KILL", "has ended");
    fail_each("alloc", "KILL", NULL);  // also before there is anybody who could tell
}
static void a_rank_that_stands_still_ends_the_others_in_time(void) { fail_each("read", "STOP", ""); }

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
    RUN(a_failed_allocation_of_a_rank_is_named_and_hangs_no_other);
    RUN(a_failed_thread_of_a_rank_is_named_and_hangs_no_other);
    RUN(a_failed_open_of_a_rank_is_named_and_hangs_no_other);
    RUN(a_failed_read_of_a_rank_is_named_and_hangs_no_other);
    RUN(a_failed_write_of_a_rank_is_named_and_hangs_no_other);
    RUN(a_failed_sync_of_a_rank_is_named_and_hangs_no_other);
    RUN(a_failed_close_of_a_rank_is_named_and_hangs_no_other);
    RUN(a_failed_rename_is_named_and_hangs_no_rank);
    RUN(a_failed_mkdir_is_named_and_hangs_no_rank);
    RUN(a_killed_rank_is_named_and_hangs_no_other);
    RUN(a_rank_that_stands_still_ends_the_others_in_time);
    return campaign_end();
}
