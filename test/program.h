// program.h - for tests that run the whole program and read what it leaves: a temporary directory, a command with its
// output and status, the numbers of a log. The path of the program under test, $P in commands, is the test's first
// argument. A claim about a run is three lines:
//
//   CHECK_SH(0, "$P " TINY "--out $W/a");                      runs it, and wants this status
//   CHECK_SAID("done at step 3 of 3 & !warning");              on stdout or stderr
//   CHECK_LOSSES("b", "a", 3, 1e-5);                           the losses of two runs, within a share of 1e-5
//   CHECK_REFUSED("--lr & fast", "$P --lr fast");              in one line that has these words
//
// Its main is the last line, PROGRAM_TEST { what comes before the claims }.
#pragma once
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "data/json.h"
#include "plan/base/base.h"
#include "test/temporary.h"

static const char* program = "./train";

// build/simulate of the same build, which $S is.
static inline const char* simulator_beside(const char* words) {
    static char path[512];
    const char *end = words + strcspn(words, " "), *name = end;
    while (name > words && name[-1] != '/') name--;
    snprintf(path, sizeof path, "%.*sdev/simulate", (int)(name - words), words);
    return access(path, X_OK) ? "build/simulate" : path;
}
static char output[1 << 20];  // stdout and stderr of the last command
static char errors[1 << 16];  // its stderr alone

static char last_command[8192];
static int last_status, was_told;  // of it

// With a failed CHECK: the last command, once, and what came of it.
static inline void tell_last_command(void) {
    if (!was_told && *last_command) printf("    $ %s\n    status %d: %.1500s\n", last_command, last_status, output);
    was_told = 1;
}

static inline void program_begin(int argc, char** argv) {
    if (argc > 1) program = argv[1];
    test_context = tell_last_command;
    setenv("P", program, 1);
    setenv("S", simulator_beside(program), 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    temporary_begin();
}

// Runs a shell command; returns its exit status, or 128 + the signal that ended it.
#define sh(...) run_shell(filled(__VA_ARGS__))
static inline int run_shell(const char* command) {
    char whole[10000];
    snprintf(last_command, sizeof last_command, "%s", command);
    snprintf(whole, sizeof whole, "{ %s ; } > %s/stdout 2> %s/stderr", last_command, work, work);
    int status = system(whole);
    size_t n = read_text(path_of("stdout"), output, sizeof output / 2);
    read_text(path_of("stderr"), errors, sizeof errors);
    snprintf(output + n, sizeof output - n, "%s", errors);
    was_told = 0;
    return last_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Whether a text has all of some words with " & " between them, and none of those behind a "!".
static inline int has_words(const char* text, const char* words) {
    char word[600];
    for (const char* next; words; words = next) {
        if ((next = strstr(words, " & "))) next += 3;
        int wanted = *words != '!';
        snprintf(word, sizeof word, "%.*s", next ? (int)(next - 3 - words) : 599, words + !wanted);
        if ((strstr(text, word) != NULL) == wanted) continue;
        printf("    %s: %s\n", wanted ? "not said" : "said", word);
        return 0;
    }
    return 1;
}

// Several ranks of what follows: sh(ON_RANKS "$P --out $W/a", 2).
#define ON_RANKS "mpirun --oversubscribe --bind-to none -n %d "

// Status 1 without a step, and one line on stderr, but for warnings and a launcher's, that has these words and names no
// place in the code.
static inline int is_refusal(int status, const char* words) {
    int lines = 0;
    for (const char* line = errors; *line; line = *line ? line + 1 : line) {
        lines += strncmp(line, "train: warning: ", strlen("train: warning: ")) != 0;
        line += strcspn(line, "\n");
    }
    return status == 1 && (lines == 1 || strstr(last_command, "mpirun")) && !strstr(errors, ".c:") &&
           !strstr(output, "step 1/") && has_words(errors, words);
}

#define CHECK_SH(status, ...) CHECK(sh(__VA_ARGS__) == (status))
#define CHECK_SAID(words) CHECK(has_words(output, words))
#define CHECK_REFUSED(words, ...) CHECK(is_refusal(sh(__VA_ARGS__), words))

typedef struct Refusal {
    const char *options, *words;
    int ranks;  // 0: without a launcher
} Refusal;

// Of the program with `options` and those of each row; nothing is left in $W/refused.
static inline void check_refusals(const char* options, const Refusal* rows, int n) {
    char launcher[64] = "";
    for (int i = 0; i < n; i++) {
        if (rows[i].ranks) snprintf(launcher, sizeof launcher, ON_RANKS, rows[i].ranks);
        CHECK_REFUSED(rows[i].words, "%s$P %s %s", rows[i].ranks ? launcher : "", options, rows[i].options);
        CHECK(access(path_of("refused"), F_OK) != 0);
    }
}
#define CHECK_REFUSALS(options, rows) check_refusals(options, rows, COUNT(rows))

// The same in the background, with its output in the file `background`; returns its process id.
#define start(...) start_shell(filled(__VA_ARGS__))
static inline pid_t start_shell(const char* command) {
    char whole[9000];
    snprintf(whole, sizeof whole, "exec %s > %s/background 2>&1", command, work);
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", whole, (char*)NULL);
        _exit(127);
    }
    return pid;
}

static inline void sleep_ms(int ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

// The status of what was started, as sh gives it; -1 when it is not over after so many seconds: then it is ended.
static inline int ended_within(pid_t pid, double seconds) {
    int status;
    for (int i = 0; i < seconds * 100; i++, sleep_ms(10))
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    kill(pid, SIGTERM);  // mpirun ends its ranks then, those that are stopped too
    sleep_ms(3000);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -1;
}

// What it said, to output.
static inline void read_background(void) { read_text(path_of("background"), output, sizeof output); }

// Waits until a file in $W holds something, for at most so many seconds. Returns whether it does.
static inline int comes(const char* name, double seconds) {
    struct stat s;
    for (int i = 0; i < seconds * 100; i++, sleep_ms(10))
        if (stat(path_of(name), &s) == 0 && s.st_size > 0) return 1;
    return 0;
}

// Runs the program on so many ranks in $W/NAME, which was empty; returns its status, which should be 0. By mpirun, or
// where a test says so before it includes this, forked.
#ifdef RUN_FORKED
#define RUN_ON "$P --ranks %d "
#else
#define RUN_ON ON_RANKS "$P "
#endif
#define run_on(ranks, name, ...) run_job(ranks, name, filled(__VA_ARGS__))
static inline int run_job(int ranks, const char* name, const char* options) {
    sh("rm -rf $W/%s", name);
    CHECK_SH(0, RUN_ON "%s --out $W/%s", ranks, options, name);
    return last_status;
}

static inline int has_mpirun(void) { return sh("command -v mpirun") == 0; }

static inline int lines_in(const char* text) {
    int n = 0;
    for (; (text = strchr(text, '\n')); text++) n++;
    return n;
}

// That the last command printed, "" where it printed none; good for the next three calls.
static inline const char* loss_hash_or_none(void) {
    static char hashes[4][17];
    static int next;
    const char* at = strstr(output, "loss hash ");
    char* hash = hashes[next++ % 4];
    snprintf(hash, sizeof hashes[0], "%.16s", at ? at + 10 : "");
    return hash;
}

static inline const char* loss_hash(void) {
    const char* hash = loss_hash_or_none();
    CHECK(*hash);
    return hash;
}

// W/corpus: documents of lengths spread evenly in their logarithm, up to exp(most) letters, most at most 8.2.
static inline void write_ragged_corpus(int docs, double most, uint64_t seed) {
    char name[64], text[4000];
    CHECK(sh("mkdir -p %s/corpus", work) == 0);
    for (int d = 0; d < docs; d++) {
        int n = (int)exp(most * random_uniform(seed, (uint64_t)d)) + 1;
        for (int i = 0; i < n; i++)
            text[i] = (char)('a' + (int)(6 * random_uniform(seed + 1 + (uint64_t)d, (uint64_t)i)));
        snprintf(name, sizeof name, "corpus/%02d.txt", d);
        write_text(name, text, (size_t)n);
    }
}

// Calls read for each object of a run's log.jsonl, in order; a line that is none fails the claim.
static inline void each_logged(const char* run, void (*read)(void* context, const Json* json), void* context) {
    char name[600], *line = NULL;
    size_t bytes = 0;
    ssize_t length;
    Json json;
    snprintf(name, sizeof name, "%s/log.jsonl", run);
    FILE* file = fopen(path_of(name), "r");
    while (file && (length = getline(&line, &bytes, file)) > 0) {
        int failed = json_parse(&json, line, (size_t)length, NULL);
        CHECK(!failed);
        if (failed) break;
        read(context, &json);
        json_free(&json);
    }
    free(line);
    if (file) fclose(file);
}

typedef struct LoggedValues {
    const char* member;
    double* values;
    int n, room;
} LoggedValues;

static inline void read_logged_value(void* context, const Json* json) {
    LoggedValues* v = (LoggedValues*)context;
    const char *dot = strchr(v->member, '.'), *name = dot ? dot + 1 : v->member;
    const JsonValue* object = json->values;
    char group[64];
    if (dot) snprintf(group, sizeof group, "%.*s", (int)(dot - v->member), v->member);
    if (dot) object = json_get(object, group);
    if (!object || json_get(json->values, "event")) return;
    const JsonValue* value = json_get(object, name);
    if (value && value->type == JSON_NUMBER && v->n < v->room) json_double(value, &v->values[v->n++]);
}

// The values of one member in a run's log.jsonl, in order; "bytes.ring" is a member of a member. Objects without it are
// passed over. Returns their number.
static inline int log_values(const char* run, const char* member, double* values, int room) {
    LoggedValues v = {member, values, 0, room};
    each_logged(run, read_logged_value, &v);
    return v.n;
}

static inline int steps_logged(const char* run) {
    static double values[100000];
    return log_values(run, "loss", values, COUNT(values));
}

// A run has logged n values of a member, which are those of a member of a run, within a share.
static inline int logged_differ(const char* run, const char* member, const char* like, const char* as, int n,
                                double tolerance) {
    static double found[100000], wanted[100000];
    int n_found = log_values(run, member, found, COUNT(found)), n_wanted = log_values(like, as, wanted, COUNT(wanted));
    if (n_found != n || n_wanted != n) printf("    %s: %d and %d, expected %d\n", member, n_found, n_wanted, n);
    for (int i = 0; i < MIN(n, MIN(n_found, n_wanted)); i++)
        if (!(fabs(found[i] - wanted[i]) <= tolerance * wanted[i])) {
            printf("    %s: value %d of %s is %.9g, expected %.9g of %s\n", run, i + 1, member, found[i], wanted[i],
                   like);
            return 1;
        }
    return n_found != n || n_wanted != n;
}

#define CHECK_LOGGED(run, member, like, as, n, tolerance) CHECK(!logged_differ(run, member, like, as, n, tolerance))
#define CHECK_LOSSES(run, like, n, tolerance) CHECK_LOGGED(run, "loss", like, "loss", n, tolerance)

// Sends one rank of the runs whose --out is $W/NAME a signal; it is known by its place in the environment.
static inline void signal_rank(const char* name, int rank, const char* signal) {
    CHECK(sh("for p in $(pgrep -f '[o]ut %s/%s'); do tr '\\0' '\\n' < /proc/$p/environ 2>/dev/null | "
             "grep -qx OMPI_COMM_WORLD_RANK=%d && kill -%s $p && echo sent; done; true",
             work, name, rank, signal) == 0);
    CHECK_SAID("sent");
}

static inline int program_end(void) { return temporary_end(); }

#define PROGRAM_TEST                  \
    static void before_claims(void);  \
    int main(int argc, char** argv) { \
        program_begin(argc, argv);    \
        before_claims();              \
        run_claims();                 \
        return program_end();         \
    }                                 \
    static void before_claims(void)

// ---- curves: what runs that are one must have alike

enum { CURVE_STEPS = 64 };

typedef struct Curve {
    double loss[CURVE_STEPS], norm[CURVE_STEPS], tokens[CURVE_STEPS], val[8];
    char hash[17], sample[512];  // of losses; the last sample
} Curve;

// Of a run of n steps in $W/NAME, the last command's.
static inline Curve curve_in(const char* name, int n) {
    Curve c;
    memset(&c, 0, sizeof c);
    const char *sample = NULL, *next = output;
    while ((next = strstr(next, ": a sample\n"))) sample = next += strlen(": a sample\n");
    const char* end = sample ? strstr(sample, "\nsaved ") : NULL;
    if (end) snprintf(c.sample, sizeof c.sample, "%.*s", (int)MIN(end - sample, 500), sample);
    strcpy(c.hash, loss_hash_or_none());
    CHECK(n <= CURVE_STEPS && log_values(name, "loss", c.loss, CURVE_STEPS) == n);
    CHECK(log_values(name, "grad_norm", c.norm, CURVE_STEPS) == n);
    log_values(name, "tokens", c.tokens, CURVE_STEPS), log_values(name, "val_loss", c.val, COUNT(c.val));
    return c;
}

// From index `from` on: losses within a share, norms, which are no means over targets, within ten times that. The same
// last sample.
static inline void check_curves(const char* what, const Curve* c, const Curve* like, int from, int n,
                                double tolerance) {
    double worst = 0;
    for (int i = from; i < n; i++) {
        CHECK(like->loss[i] > 0 && c->tokens[i] == like->tokens[i]);
        CHECK_CLOSE(c->loss[i], like->loss[i], tolerance * like->loss[i]);
        CHECK_CLOSE(c->norm[i], like->norm[i], 10 * tolerance * like->norm[i]);
        worst = fmax(worst, fabs(c->loss[i] - like->loss[i]) / like->loss[i]);
    }
    printf("    %-32s losses differ by %.1e at most\n", what, worst);
}

// Evaluations, within a share.
static inline void check_val(const Curve* c, const Curve* like, int n, double tolerance) {
    for (int e = 0; e < n; e++) {
        CHECK(like->val[e] > 0);
        CHECK_CLOSE(c->val[e], like->val[e], tolerance * like->val[e]);
    }
}
