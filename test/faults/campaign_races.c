// campaign_races.c - several runs that meet in one place. Where it matters who comes first, the first one stands still
// (FAULT=...:STOP) until the others have ended, so that no busy machine changes the outcome.
//
//   build/release/test/faults/campaign_races build/release/train_faults
#include "test/faults/cases.h"

enum { MOST = 3 };

#define SAVES "--steps 4 --save-every 2 "
#define GOES_ON "--resume --steps 6 --save-every 1 --threads 1 "

static char expected[MOST + 1][17];  // loss hashes of seeds 1, 2, 3

static void set_fault(const char* text) { snprintf(fault, sizeof fault, "%s", text); }

static int is_one_line(const char* text) { return text[0] && strchr(text, '\n') == text + strlen(text) - 1; }

// The directory below runs/ that a run's stdout names.
static int number_taken(void) {
    const char* at = strstr(output, "\nrun     runs/");
    return at ? atoi(at + strlen("\nrun     runs/")) : -1;
}

static void start_together(int n) {
    pid_t pids[MOST];
    int taken[MOST];
    sh("rm -rf $W/race; mkdir $W/race");
    for (int i = 0; i < n; i++) {
        pids[i] = launch(i, filled(OPTIONS SAVES "--seed %d", i + 1));
    }
    for (int i = 0; i < n; i++) {
        await(pids[i], i);
        taken[i] = number_taken();
        if (status || strcmp(loss_hash(), expected[i + 1]))
            complain("run %d of %d: it ends otherwise than alone", i, n);
        for (int k = 0; k < i; k++)
            if (taken[k] == taken[i]) complain("runs %d and %d of %d share runs/%d", k, i, n, taken[i]);
    }
    for (int i = 0; i < n; i++) {
        run("", "--resume --threads 1 --out runs/%d", taken[i]);
        if (status || resumed_step() != 4 || strcmp(loss_hash(), expected[i + 1]))
            complain("runs/%d of %d is not whole afterwards", taken[i], n);
    }
}

CLAIM(runs_that_start_together_take_directories_of_their_own) {
    set_fault("");
    place = "$W/race";
    for (long i = 0; i < cases_of(20); i++) start_together(2), start_together(3);
    place = ".";
}

// n runs in one directory, of which the one that gets to its first save stands still there until all others have ended.
static void meet(int n, int seeded, const char* options) {
    char holder[64];
    pid_t pids[MOST];
    int stopped = -1, ended = 0;
    set_fault("rename:1:STOP");
    for (int i = 0; i < n; i++) {
        pids[i] = launch(i, filled(seeded ? "%s --seed %d" : "%s", options, i + 1));
    }
    for (int i = 0; i < n; i++) {
        int how = await_stop(pids[i]);
        if (how == 1 && stopped < 0) stopped = i;
        else if (how == 1) complain("two of %d runs are at work in one directory", n), kill(pids[i], SIGKILL);
        else ended++;
    }
    snprintf(holder, sizeof holder, "process %ld ", stopped < 0 ? 0L : (long)pids[stopped]);
    for (int i = 0; i < n; i++) {
        if (i == stopped) continue;
        await(pids[i], i);
        if (status != 1 || !is_one_line(errors) || !strstr(errors, "in use by") || !strstr(errors, holder))
            complain("run %d of %d: expected one line that names %s", i, n, holder);
    }
    if (stopped < 0 || ended != n - 1) complain("none of %d runs went on", n);
    if (stopped < 0) return;
    kill(pids[stopped], SIGCONT);
    await(pids[stopped], stopped);
    if (status || errors[0] || strcmp(loss_hash(), expected[seeded ? stopped + 1 : 0]))
        complain("run %d of %d, which had the directory, ends otherwise than alone", stopped, n);
}

static void meet_often(int seeded, const char* before, const char* options) {
    for (int n = 2; n <= MOST; n++)
        for (long i = 0; i < cases_of(10); i++) sh("%s", before), meet(n, seeded, options);
}

CLAIM(of_runs_that_start_in_one_directory_one_goes_on_and_is_named) {
    meet_often(1, "rm -rf $W/run", OPTIONS SAVES "--out $W/run");
}

CLAIM(of_runs_that_resume_in_one_directory_one_goes_on_and_is_named) {
    meet_often(0, "rm -rf $W/run; cp -a $W/whole $W/run", GOES_ON "--out $W/run");
}

// However far it came.
CLAIM(a_run_that_was_killed_holds_nothing) {
    static const char* const where[] = {"mkdir:1:STOP", "write:2:STOP", "rename:1:STOP", "sync:9:STOP",
                                        "rename:2:STOP"};
    for (int i = 0; i < COUNT(where); i++) {
        sh("rm -rf $W/run");
        set_fault(where[i]);
        pid_t pid = launch(0, OPTIONS SAVES "--out $W/run");
        if (await_stop(pid) != 1) complain("%s: it does not stop", where[i]);
        kill(pid, SIGKILL);
        await(pid, 0);
        int64_t from = go_on(where[i], -1, "$W/run", SAVES, OPTIONS SAVES "--out $W/run");
        if (from != -2 && strcmp(loss_hash(), expected[1])) complain("%s: nothing goes on after a kill", where[i]);
    }
}

// The reader stands still before each file that it opens, while a run removes what it reads.
CLAIM(a_sample_is_made_while_a_run_removes_older_checkpoints) {
    char with_fault[64];
    sh("cp -a $W/whole $W/short; rm -r $W/short/step-000002");
    run("", "--sample a --tokens 2 --threads 1 --out $W/short");
    long n = count_of(log_text, "open", -1);
    for (long i = 0; i < cases_of(n); i++) {
        sh("rm -rf $W/run; cp -a $W/short $W/run");
        snprintf(with_fault, sizeof with_fault, "open:%ld:STOP", case_at(i, n));
        set_fault(with_fault);
        pid_t pid = launch(1, "--sample a --tokens 2 --threads 1 --out $W/run");
        if (await_stop(pid) != 1) complain("%s: it does not stop", with_fault);
        run("", GOES_ON "--keep 1 --out $W/run");
        if (status) complain("%s: the run is disturbed", with_fault);
        kill(pid, SIGCONT);
        await(pid, 1);
        if (status) complain("%s: there is no sample", with_fault);
    }
}

int main(int argc, char** argv) {
    campaign_begin(argc, argv);
    for (int seed = 1; seed <= MOST; seed++) {
        run("", OPTIONS SAVES "--seed %d --out $W/alone.%d", seed, seed);
        snprintf(expected[seed], sizeof expected[seed], "%s", loss_hash());
    }
    sh("cp -a $W/alone.1 $W/whole");
    run("", GOES_ON "--out $W/alone.1");
    snprintf(expected[0], sizeof expected[0], "%s", loss_hash());
    run_claims();
    return campaign_end();
}
